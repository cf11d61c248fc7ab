//! Tracks which degradations hold and since when, and announces them: in the log once when one
//! starts and once when it ends, to the collector with the facts of the host, and through the
//! daemon's health.
//!
//! The daemon is *blind* when there are no usable samples: the sampler does not run, no samples
//! arrive though CPUs are busy, or most of the newest window was lost. The reason may change while
//! it is blind. It is no longer blind when a window that closed after the last reason has more
//! samples than it lost. [`Alarms`] is bookkeeping without clock or syscalls; the main thread calls
//! it every few seconds.

use super::status::to_wire;
use super::{Agent, Uplink};
use aggregate::recorder::read;
use host::health::{Degradation, Severity};
use host::sync::lock;
use host::time::MonotonicTime;
use proto::agent as wire;
use proto::collector::HostHealth;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A sampler that has not passed its loop for so long does not run: it wakes every second. The
/// rings hold more than two seconds of a busy CPU, so what comes later is lost.
pub const SAMPLER_SILENT: Duration = Duration::from_secs(5);

/// Time of the newest windows that are judged: a default window, so that one that is good ends the
/// alarm.
const NEWEST: Duration = Duration::from_secs(10);

/// Samples of the newest windows below which nothing is concluded from what was lost of them.
const SAMPLES_MIN: u64 = 20;

/// A longer time between two looks means that the process was paused as a whole, or got no CPU: one
/// look is skipped, so that what was paused with it can run first.
const PAUSED: Duration = Duration::from_secs(15);

/// The main thread looks every five seconds; when it has not for so long it is stuck itself.
const LOOKS_MISSING: Duration = Duration::from_secs(60);

/// Least time between two lines of the log about one alarm's start. Starts in between are counted.
const LINES_APART: Duration = Duration::from_secs(60);

/// A line for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Line {
    Start {
        id: &'static str,
        reason: String,
        remedy: String,
        /// Starts since the last line that were not logged.
        unlogged: u64,
    },
    End {
        id: &'static str,
        lasted: Duration,
    },
}

/// Name of blindness among the alarms: no degradation is called so.
const BLIND: &str = "blind";

/// An alarm that is on, or was.
#[derive(Clone, Debug, Default)]
struct Alarm {
    since: Option<MonotonicTime>,
    /// When its start was last logged.
    logged: Option<MonotonicTime>,
    /// The start of the alarm that is on was logged.
    is_logged: bool,
    unlogged: u64,
}

impl Alarm {
    fn start(
        &mut self,
        since: MonotonicTime,
        now: MonotonicTime,
        id: &'static str,
        why: &Degradation,
    ) -> Option<Line> {
        if self.since.is_some() {
            return None;
        }
        self.since = Some(since);
        self.is_logged = self.logged.is_none_or(|at| now.since(at) >= LINES_APART);
        if !self.is_logged {
            self.unlogged += 1;
            return None;
        }
        self.logged = Some(now);
        Some(Line::Start {
            id,
            reason: why.message.clone(),
            remedy: why.remedy.clone(),
            unlogged: std::mem::take(&mut self.unlogged),
        })
    }

    fn end(&mut self, now: MonotonicTime, id: &'static str) -> Option<Line> {
        let since = self.since.take()?;
        let lasted = now.since(since);
        self.is_logged.then_some(Line::End { id, lasted })
    }
}

/// Why the daemon is blind.
#[derive(Clone, Debug)]
pub(super) struct Blind {
    why: Degradation,
    since: MonotonicTime,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Alarms {
    looked: Option<MonotonicTime>,
    skipped: bool,
    /// When the daemon went on after the last pause of all of it.
    resumed: MonotonicTime,
    /// By id of degradation: since when it holds.
    holds: BTreeMap<&'static str, MonotonicTime>,
    /// Errors, and blindness.
    alarms: BTreeMap<&'static str, Alarm>,
    /// The reason of now, or the last one while it is not known whether it is over.
    blind: Option<Blind>,
    /// When a reason for being blind was last found.
    blind_seen: MonotonicTime,
}

impl Alarms {
    /// True when a look at `now` comes too late to judge others by it.
    fn is_paused(&mut self, now: MonotonicTime) -> bool {
        let before = self.looked.replace(now);
        let pause = before.map(|before| now.since(before));
        let pause = pause.filter(|&pause| pause > PAUSED && !self.skipped);
        self.skipped = pause.is_some();
        if let Some(pause) = pause {
            self.resumed = now;
            tracing::warn!(
                seconds = pause.as_secs(),
                "the daemon was stopped or had no CPU: samples of that time are lost"
            );
        }
        self.skipped
    }

    /// Updates the state at `now`: all degradations, why the daemon is blind if it is, and the end
    /// of the newest closed window.
    fn note(
        &mut self,
        now: MonotonicTime,
        list: &[Degradation],
        blind: Option<Blind>,
        newest_window: MonotonicTime,
    ) -> Vec<Line> {
        self.holds
            .retain(|id, _| list.iter().any(|found| found.id == *id));
        for found in list {
            self.holds.entry(found.id).or_insert(now);
        }
        let mut lines = self.note_blind(now, blind, newest_window);
        let is_blind = self.blind.is_some();
        // Blindness is one alarm: its reasons come and go, and follow from one another.
        let errors: Vec<&Degradation> = list
            .iter()
            .filter(|found| found.severity == Severity::Error && !blinds(found.id))
            .collect();
        for (id, alarm) in &mut self.alarms {
            let holds = errors.iter().any(|found| found.id == *id);
            if !holds && (*id != BLIND || !is_blind) {
                lines.extend(alarm.end(now, id));
            }
        }
        for found in errors {
            let alarm = self.alarms.entry(found.id).or_default();
            lines.extend(alarm.start(now, now, found.id, found));
        }
        lines
    }

    fn note_blind(
        &mut self,
        now: MonotonicTime,
        blind: Option<Blind>,
        newest_window: MonotonicTime,
    ) -> Vec<Line> {
        let Some(found) = blind else {
            if newest_window > self.blind_seen {
                self.blind = None;
            }
            return Vec::new();
        };
        self.blind_seen = now;
        let alarm = self.alarms.entry(BLIND).or_default();
        let line = alarm.start(found.since, now, BLIND, &found.why);
        let since = alarm.since.unwrap_or(found.since);
        self.holds.insert(found.why.id, since);
        self.blind = Some(Blind { since, ..found });
        line.into_iter().collect()
    }
}

/// True for degradations that say why the daemon is blind.
fn blinds(id: &str) -> bool {
    ["sampler_stuck", "no_samples", "samples_lost"].contains(&id)
}

fn log(line: Line) {
    // Nothing is said of none.
    let some = |unlogged: u64| (unlogged > 0).then_some(unlogged);
    match line {
        Line::Start {
            id: BLIND,
            reason,
            remedy,
            unlogged,
        } => tracing::warn!(
            reason,
            remedy,
            unlogged = some(unlogged),
            "no usable samples"
        ),
        Line::End { id: BLIND, lasted } => {
            tracing::warn!(seconds = lasted.as_secs(), "usable samples again");
        }
        Line::Start {
            id,
            reason,
            remedy,
            unlogged,
        } => tracing::warn!(id, reason, remedy, unlogged = some(unlogged), "degraded"),
        Line::End { id, lasted } => {
            tracing::info!(id, seconds = lasted.as_secs(), "no longer degraded");
        }
    }
}

impl Agent {
    /// How long the sampler has not run, when that is too long.
    fn sampler_silent(&self, now: MonotonicTime) -> Option<Duration> {
        let age = now.since(self.sampler_beat());
        (age > SAMPLER_SILENT).then_some(age)
    }

    fn sampler_beat(&self) -> MonotonicTime {
        MonotonicTime(self.sampling.sampler.heartbeat.load(Ordering::Relaxed))
    }

    /// Checks what holds now, logs what starts and ends, and reports it to the collector. The main
    /// thread calls it every few seconds.
    pub fn look_around(&self, now: MonotonicTime) {
        if lock(&self.health.alarms).is_paused(now) {
            return;
        }
        let list = self.degradations_now(now);
        let blind = self.blind_now(now, &list);
        let newest_window = read(&self.recorder).newest_end();
        let lines = lock(&self.health.alarms).note(now, &list, blind, newest_window);
        for line in lines {
            log(line);
        }
        if let Some(Uplink { exporter, .. }) = self.uplink.get() {
            exporter.set_health(self.health_for_collector(&list));
            exporter.set_programs(self.counters.programs.list());
        }
    }

    /// Returns why the daemon is blind now, if it is: the reason that explains the others.
    fn blind_now(&self, now: MonotonicTime, list: &[Degradation]) -> Option<Blind> {
        let why = list.iter().find(|found| blinds(found.id))?.clone();
        let newest = MonotonicTime(self.sampling.sampler.newest_sample.load(Ordering::Relaxed));
        let since = match why.id {
            "sampler_stuck" => self.sampler_beat(),
            "no_samples" if newest != MonotonicTime(0) => newest,
            _ => now,
        };
        Some(Blind { why, since })
    }

    /// Reasons why the daemon is blind; the one that explains the others comes first.
    pub(super) fn blinding(&self, now: MonotonicTime) -> Vec<Degradation> {
        let mut list = Vec::new();
        if let Some(age) = self.sampler_silent(now) {
            list.push(Degradation::new(
                "sampler_stuck",
                Severity::Error,
                format!(
                    "the thread that empties the rings has not run for {} s: samples are being lost",
                    age.as_secs()
                ),
                "see what blocks the thread: cat /proc/$(pidof \
                 fleetprofd)/task/*/{comm,status,stack}; end a debugger or freezer that blocks it, \
                 or run systemctl restart fleetprofd and report it",
            ));
        }
        list.extend(self.no_samples(now));
        let (taken, lost, (from, until)) = read(&self.recorder).newest_counts(NEWEST);
        // Losses during a pause of the complete daemon end with it, and were reported as a pause.
        let is_new = from >= lock(&self.health.alarms).resumed;
        if is_new && taken + lost >= SAMPLES_MIN && profile::is_mostly_lost(taken, lost) {
            list.push(Degradation::new(
                "samples_lost",
                Severity::Error,
                format!(
                    "{lost} of the {} samples of the newest {:.0} s were lost",
                    taken + lost,
                    until.since(from).as_secs_f64()
                ),
                // The cause of the losses is a degradation of its own; this one gets its remedy.
                "report it with the output of agent-ctl status --json",
            ));
        }
        list
    }

    /// Warnings and errors with since when they hold, the most severe first, for the collector.
    fn health_for_collector(&self, list: &[Degradation]) -> HostHealth {
        let mut told = self.dated(list);
        told.retain(|found| found.severity >= wire::Severity::Warning as i32);
        told.sort_by_key(|found| std::cmp::Reverse((found.severity, blinds(&found.id))));
        let blind = lock(&self.health.alarms).blind.clone();
        if let Some(blind) = &blind
            && !told.iter().any(|found| blinds(&found.id))
        {
            // The reason is over, and whether samples are well is not known yet.
            told.insert(0, to_wire(&blind.why, self.clock.to_unix_ns(blind.since)));
        }
        HostHealth {
            degradations: told,
            blind: blind.is_some(),
            stopping: false,
        }
    }

    /// As messages, with the times since when they hold, as far as that is known.
    pub(super) fn dated(&self, list: &[Degradation]) -> Vec<wire::Degradation> {
        let holds = lock(&self.health.alarms).holds.clone();
        let since = |found: &Degradation| {
            let since = holds.get(found.id);
            since.map_or(0, |&since| self.clock.to_unix_ns(since))
        };
        list.iter()
            .map(|found| to_wire(found, since(found)))
            .collect()
    }

    /// Says whether the daemon does its work. Takes no lock that others hold for long.
    ///
    /// # Errors
    /// The reason, when a stage does not move, or no usable samples come.
    pub fn health(&self) -> Result<(), String> {
        let now = MonotonicTime::now();
        if let Some(age) = self.sampler_silent(now) {
            return Err(format!("the sampler has not moved for {} s", age.as_secs()));
        }
        let (blind, looked) = {
            let alarms = lock(&self.health.alarms);
            (alarms.blind.clone(), alarms.looked)
        };
        if let Some(Blind { why, since }) = blind {
            let seconds = now.since(since).as_secs();
            return Err(format!(
                "no usable samples for {seconds} s: {}",
                why.message
            ));
        }
        let age = looked.map_or(Duration::ZERO, |looked| now.since(looked));
        if age > LOOKS_MISSING {
            return Err(format!(
                "the main thread has not moved for {} s",
                age.as_secs()
            ));
        }
        if let Some(age) = self.health.symbolizer_slow() {
            return Err(format!(
                "the symbolizer has worked on one window for {} s",
                age.as_secs()
            ));
        }
        if let Some(age) = self.health.files_slow() {
            return Err(format!(
                "the thread that opens files has worked on one request for {} s",
                age.as_secs()
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> MonotonicTime {
        MonotonicTime(seconds * 1_000_000_000)
    }

    fn error(id: &'static str) -> Degradation {
        Degradation::new(id, Severity::Error, "why", "do it")
    }

    /// At these seconds: the errors that hold, and when the newest window ended. What is logged:
    /// `+` and `-` with the id, and of an end its seconds.
    #[track_caller]
    fn check(looks: &[(u64, &[&'static str], u64)], expected: &[&str]) {
        let mut alarms = Alarms::default();
        let mut said = Vec::new();
        for &(at, ids, newest) in looks {
            let list: Vec<_> = ids.iter().map(|id| error(id)).collect();
            let blind = list.iter().find(|found| blinds(found.id)).cloned();
            let blind = blind.map(|why| Blind { why, since: s(at) });
            for line in alarms.note(s(at), &list, blind, s(newest)) {
                said.push(match line {
                    Line::Start {
                        id, unlogged: 0, ..
                    } => format!("+{id}"),
                    Line::Start { id, unlogged, .. } => format!("+{id} after {unlogged}"),
                    Line::End { id, lasted } => format!("-{id} {}", lasted.as_secs()),
                });
            }
        }
        assert_eq!(said, expected);
    }

    #[test]
    fn blindness_is_one_alarm_whatever_its_reasons() {
        check(
            &[
                (5, &[], 0),
                (10, &["sampler_stuck"], 0),
                (15, &["sampler_stuck", "no_samples"], 0),
                // It runs again, and the windows of the time before are not there yet.
                (20, &[], 0),
                (25, &["samples_lost"], 20),
                (30, &["samples_lost"], 20),
                (35, &[], 31),
                (40, &[], 41),
            ],
            &["+blind", "-blind 25"],
        );
    }

    #[test]
    fn blindness_ends_with_a_window_that_closed_after_it() {
        check(
            &[(10, &["no_samples"], 5), (20, &[], 5), (30, &[], 10)],
            &["+blind"],
        );
    }

    #[test]
    fn an_error_is_said_when_it_starts_and_when_it_ends() {
        check(
            &[
                (5, &["files_stalled"], 0),
                (10, &["files_stalled"], 0),
                (15, &[], 0),
                (20, &[], 0),
            ],
            &["+files_stalled", "-files_stalled 10"],
        );
    }

    #[test]
    fn an_alarm_that_comes_and_goes_is_said_once_a_minute() {
        let looks: Vec<(u64, &[&'static str], u64)> = (0..20)
            .map(|at| match at % 2 {
                0 => (at * 5, &["x"][..], 0),
                _ => (at * 5, &[][..], 0),
            })
            .collect();
        check(&looks, &["+x", "-x 5", "+x after 5", "-x 5"]);
    }

    #[test]
    fn after_a_pause_of_the_process_one_look_is_left_out() {
        let mut alarms = Alarms::default();
        let looks = [5, 10, 60, 65, 90, 120].map(|at| alarms.is_paused(s(at)));
        assert_eq!(looks, [false, false, true, false, true, false]);
        // Windows from before are not judged.
        assert_eq!(alarms.resumed, s(90));
    }

    #[test]
    fn since_when_it_holds_is_kept_while_it_does() {
        let mut alarms = Alarms::default();
        for at in [5, 10] {
            alarms.note(s(at), &[error("a")], None, s(0));
        }
        assert_eq!(alarms.holds.get("a"), Some(&s(5)));
        alarms.note(s(15), &[], None, s(0));
        assert!(alarms.holds.is_empty());
    }
}
