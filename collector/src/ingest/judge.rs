//! Decides what is wrong with a host, from its agent's reports and from what the collector sees.
//! Pure: no clock, no store.
//!
//! A host is blind when it sends no usable samples although its agent is connected. A host that
//! sends nothing at all is silent, which is a warning, because a broken network looks the same from
//! here. A host that was blind when last heard of stays blind until it is gone: its death is no
//! reason to end an alarm.

use super::limits::{CLOCK_WARNING_NS, SILENT_FOR_NS, SILENT_MAX_NS, STOPPED_MAX_NS};
use crate::store::{HostFacts, HostRecord};
use prost::Message as _;
use proto::agent::{Degradation, Severity};
use proto::collector as wire;

/// Samples of a window below which nothing is concluded from the part that was lost: a tenth of one
/// CPU.
const SAMPLES_MIN: u64 = 10;

/// Windows that may fail to come before their absence means something, with [`LATE_NS`] on top: one
/// is being taken, and one may be on its way or wait for its names.
const WINDOWS_LATE: u64 = 3;

/// Id of the degradation of a host that is connected and sends no windows.
pub const NO_WINDOWS: &str = "no_windows";

/// Time a window may take to come, beyond its length. Unit: nanoseconds. Naming takes seconds on a
/// host that starts, and a connection that was lost comes back within ten.
const LATE_NS: u64 = 15_000_000_000;

/// The newest window of a host, as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastWindow {
    /// When it came, on the collector's clock.
    pub received_unix_ns: i64,
    /// When it ended, on the collector's clock as far as the host's is known.
    pub end_unix_ns: i64,
    /// Unit: nanoseconds.
    pub length_ns: u64,
    /// Samples taken in it.
    pub taken: u64,
    /// Samples lost in it, an estimate.
    pub lost: u64,
}

/// The windows of a host, as far as their absence is an alarm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Windows {
    /// `None`: none came since the collector started.
    pub last: Option<LastWindow>,
    /// The alarm that has not ended.
    alarm: Option<Absence>,
}

/// An alarm because no window came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Absence {
    /// Since when none came.
    since_unix_ns: i64,
    /// When that became an alarm.
    from_unix_ns: i64,
}

impl Windows {
    /// A window came over `stream`.
    ///
    /// An alarm ends with a usable window that ended after the alarm started. After a pause an
    /// agent sends first what had closed before it: such a window says nothing of now.
    pub fn came(&mut self, window: LastWindow, stream: Listening) {
        let alarm = self.alarm_of(stream, window.received_unix_ns);
        let is_over = |alarm: &Absence| {
            window.end_unix_ns > alarm.from_unix_ns && mostly_lost(window).is_none()
        };
        self.alarm = alarm.filter(|alarm| !is_over(alarm));
        self.last = Some(window);
    }

    /// The alarm at `now_unix_ns`: one that did not end, or one that started since the last window.
    /// Windows that keep coming, as in a replay of older ones, start none.
    fn alarm_of(&self, stream: Listening, now_unix_ns: i64) -> Option<Absence> {
        // An agent that connects again starts over.
        let is_of_stream = |alarm: &Absence| alarm.from_unix_ns >= stream.open_since_unix_ns;
        let last = self.last;
        let received = last.map_or(i64::MIN, |window| window.received_unix_ns);
        let new_alarm = || {
            let since = received
                .max(stream.open_since_unix_ns)
                .max(stream.answered_unix_ns?);
            // Nothing is known of the length of the first: a minute is the longest that agents
            // take.
            let length_ns = last.map_or(60_000_000_000, |window| window.length_ns);
            let limit_ns = length_ns
                .saturating_mul(WINDOWS_LATE)
                .saturating_add(LATE_NS);
            let from_unix_ns = since.saturating_add_unsigned(limit_ns);
            (now_unix_ns > from_unix_ns).then_some(Absence {
                since_unix_ns: since,
                from_unix_ns,
            })
        };
        self.alarm.filter(is_of_stream).or_else(new_alarm)
    }
}

/// An open stream of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listening {
    /// Since when it is open, on the collector's clock.
    pub open_since_unix_ns: i64,
    /// Since when its agent has an answer to all windows that it sent; `None` while it waits for
    /// one. An agent that waits may send no more: that a store is slow is no fault of the host.
    pub answered_unix_ns: Option<i64>,
}

/// What the collector sees of a host.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostActivity {
    /// Its stream, while one is open.
    pub stream: Option<Listening>,
    /// What came of it.
    pub windows: Windows,
    /// When it was last heard of, or, when that is later, when the collector started to listen.
    pub heard_unix_ns: i64,
    /// A later boot of the same host is known.
    pub is_superseded: bool,
}

/// Problems of a host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// The most severe first; why it is blind before all others.
    pub degradations: Vec<Degradation>,
    /// No usable samples come from it now.
    pub is_blind: bool,
}

impl Verdict {
    /// True when an operator should know of something.
    pub fn is_warning(&self) -> bool {
        self.degradations.iter().any(is_warning)
    }

    /// The messages of warnings and errors.
    pub fn warnings(&self) -> Vec<String> {
        let warnings = self.degradations.iter().filter(|of| is_warning(of));
        warnings.map(|of| of.message.clone()).collect()
    }

    /// Without sentences: what an agent says of its work may be about anything on its host.
    pub fn without_texts(mut self) -> Verdict {
        let degradations = self.degradations.into_iter();
        self.degradations = degradations.map(without_text).collect();
        self
    }

    /// With the sentences, as far as they fit into what is `left` of an answer; then with ids
    /// alone, then with one that says that there were more. Unit: bytes.
    pub fn within(mut self, left: &mut usize) -> Verdict {
        let mut charge = |bytes: usize| {
            let rest = left.checked_sub(bytes);
            rest.inspect(|rest| *left = *rest).is_some()
        };
        let was_warning = self.is_warning();
        self.degradations.retain_mut(|of| {
            if charge(of.id.len() + of.message.len() + of.remedy.len()) {
                return true;
            }
            of.id.clone_into(&mut of.message);
            of.remedy.clear();
            charge(2 * of.id.len())
        });
        if was_warning && !self.is_warning() {
            let message = "this answer has no room for the warnings of the host".to_owned();
            self.add([warning("left_out", message)]);
        }
        self
    }

    /// A host may be blind although its reasons were too long to store.
    fn explain(&mut self) {
        let is_error = |of: &Degradation| of.severity >= Severity::Error as i32;
        if self.is_blind && !self.degradations.iter().any(is_error) {
            let message = "the host sends no usable samples".to_owned();
            self.add([degradation("blind", Severity::Error, message, "", 0)]);
        }
    }

    /// Adds what is known otherwise, and puts all in order.
    pub fn add(&mut self, more: impl IntoIterator<Item = Degradation>) {
        self.degradations.extend(more);
        self.degradations
            .sort_by_key(|of| std::cmp::Reverse(of.severity));
    }
}

/// What is wrong by its id alone.
pub fn without_text(degradation: Degradation) -> Degradation {
    Degradation {
        message: degradation.id.clone(),
        id: degradation.id,
        severity: degradation.severity,
        since_unix_ns: degradation.since_unix_ns,
        ..Degradation::default()
    }
}

fn is_warning(degradation: &Degradation) -> bool {
    degradation.severity >= Severity::Warning as i32
}

/// The agent's report on its own health; `None` if there is none.
pub fn health(facts: &HostFacts) -> Option<wire::HostHealth> {
    // Written by this collector, or by another version of it: what cannot be read says nothing.
    wire::HostFacts::decode(&*facts.health).ok()?.health
}

/// The same health without its reasons.
pub fn without_degradations(said: &[u8]) -> Vec<u8> {
    let Ok(mut facts) = wire::HostFacts::decode(said) else {
        return Vec::new();
    };
    if let Some(health) = &mut facts.health {
        health.degradations.clear();
    }
    let health = facts.health;
    let facts = wire::HostFacts {
        health,
        ..wire::HostFacts::default()
    };
    facts.encode_to_vec()
}

/// A warning that has no command to fix it.
pub fn warning(id: &str, message: String) -> Degradation {
    degradation(id, Severity::Warning, message, "", 0)
}

fn degradation(
    id: &str,
    severity: Severity,
    message: String,
    remedy: &str,
    since_unix_ns: i64,
) -> Degradation {
    Degradation {
        id: id.to_owned(),
        message,
        remedy: remedy.to_owned(),
        severity: severity.into(),
        since_unix_ns,
    }
}

/// Judges a host at `now_unix_ns`.
pub fn judge(record: &HostRecord, seen: &HostActivity, now_unix_ns: i64) -> Verdict {
    let mut verdict = Verdict::default();
    if seen.is_superseded {
        return verdict;
    }
    let health = health(&record.facts);
    let silent_ns = now_unix_ns.saturating_sub(seen.heard_unix_ns);
    if seen.stream.is_none() && silent_ns >= SILENT_FOR_NS {
        if silent_ns < SILENT_MAX_NS {
            let stopped = health.as_ref().is_some_and(|health| health.stopping);
            verdict.add([silence(seen.heard_unix_ns, silent_ns, stopped)]);
            if let Some(health) = health.filter(|health| health.blind && !health.stopping) {
                verdict.is_blind = true;
                verdict.add(health.degradations);
                verdict.explain();
            }
        }
        return verdict;
    }
    // What an agent that ends finds degraded is of no interest.
    if let Some(health) = health.clone().filter(|health| !health.stopping) {
        verdict.is_blind = health.blind;
        verdict.add(health.degradations);
    }
    let absent = seen
        .stream
        .and_then(|stream| no_windows(&seen.windows, stream, now_unix_ns));
    let lost = match health {
        Some(_) => None,
        // The agent judges over a minute; one that does not is judged by its newest window.
        None => seen.windows.last.and_then(mostly_lost),
    };
    let found = absent.or(lost);
    verdict.is_blind |= found.is_some();
    verdict.add(found);
    verdict.explain();
    verdict
}

fn silence(heard_unix_ns: i64, silent_ns: i64, stopped: bool) -> Degradation {
    let minutes = silent_ns / 60_000_000_000;
    match stopped {
        true if silent_ns >= STOPPED_MAX_NS => degradation(
            "agent_stopped",
            Severity::Warning,
            format!("the agent was stopped {minutes} min ago and has not come back"),
            "start the agent, or see why it does not start: systemctl status fleetprofd",
            heard_unix_ns,
        ),
        true => degradation(
            "agent_stopped",
            Severity::Info,
            format!("the agent was stopped {minutes} min ago"),
            "",
            heard_unix_ns,
        ),
        false => degradation(
            "host_silent",
            Severity::Warning,
            format!("the host has been silent for {minutes} min"),
            "check that the host is up, and that its agent runs (systemctl status fleetprofd) and \
             can reach the collector",
            heard_unix_ns,
        ),
    }
}

/// The stream is open, and no usable windows of now come over it.
fn no_windows(windows: &Windows, stream: Listening, now_unix_ns: i64) -> Option<Degradation> {
    let alarm = windows.alarm_of(stream, now_unix_ns)?;
    let seconds = |from: i64| now_unix_ns.saturating_sub(from).max(0) / 1_000_000_000;
    let late = windows.last.filter(|_| windows.alarm == Some(alarm));
    let message = match late {
        // The one that it should end with.
        Some(window) if window.end_unix_ns > alarm.from_unix_ns => {
            return mostly_lost(window);
        }
        Some(window) => format!(
            "the agent still sends windows from before the pause: the last one ended {} s ago",
            seconds(window.end_unix_ns)
        ),
        None => format!(
            "no window has arrived for {} s, although the agent is connected",
            seconds(alarm.since_unix_ns)
        ),
    };
    Some(degradation(
        NO_WINDOWS,
        Severity::Error,
        message,
        "run agent-ctl status on the host to see which stage is stuck",
        alarm.since_unix_ns,
    ))
}

fn mostly_lost(window: LastWindow) -> Option<Degradation> {
    let LastWindow { taken, lost, .. } = window;
    let all = taken.saturating_add(lost);
    (profile::is_mostly_lost(taken, lost) && all >= SAMPLES_MIN).then(|| {
        degradation(
            "samples_lost",
            Severity::Error,
            format!("{lost} of the {all} samples in the newest window were lost"),
            "run agent-ctl status on the host to see why",
            0,
        )
    })
}

/// The clock of a host is wrong by this; `None` when it is right enough.
pub fn clock(ahead_ns: i64) -> Option<Degradation> {
    (ahead_ns.unsigned_abs() >= CLOCK_WARNING_NS.unsigned_abs()).then(|| {
        let seconds = ahead_ns.unsigned_abs() as f64 / 1e9;
        let side = if ahead_ns > 0 { "ahead of" } else { "behind" };
        warning(
            "clock",
            format!(
                "the clock of the host is {seconds:.1} s {side} the collector's: its windows have \
                 wrong times"
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::HostKey;

    const S: i64 = 1_000_000_000;
    const NOW: i64 = 1_000_000 * S;

    fn record(health: Option<wire::HostHealth>) -> HostRecord {
        let said = wire::HostFacts {
            health,
            ..wire::HostFacts::default()
        };
        HostRecord {
            key: HostKey {
                host_id: "a".to_owned(),
                boot_id: [1; 16],
            },
            facts: HostFacts {
                health: said.encode_to_vec(),
                ..HostFacts::default()
            },
            first_seen_unix_ns: 0,
            last_seen_unix_ns: 0,
            clock_ahead_ns: 0,
        }
    }

    fn well() -> Option<wire::HostHealth> {
        Some(wire::HostHealth::default())
    }

    fn window(age_s: i64, taken: u64, lost: u64) -> Option<LastWindow> {
        Some(LastWindow {
            received_unix_ns: NOW - age_s * S,
            end_unix_ns: NOW - (age_s + 2) * S,
            length_ns: 10 * S as u64,
            taken,
            lost,
        })
    }

    /// A stream that has been open for this long; all its windows have answers.
    fn open_for(age_s: i64) -> Listening {
        Listening {
            open_since_unix_ns: NOW - age_s * S,
            answered_unix_ns: Some(NOW - age_s * S),
        }
    }

    /// A host with a stream that is open for an hour.
    fn connected(last: Option<LastWindow>) -> HostActivity {
        HostActivity {
            stream: Some(open_for(3600)),
            windows: Windows { last, alarm: None },
            heard_unix_ns: NOW,
            is_superseded: false,
        }
    }

    /// One that was last heard of so long ago.
    fn gone(age_s: i64) -> HostActivity {
        HostActivity {
            heard_unix_ns: NOW - age_s * S,
            ..HostActivity::default()
        }
    }

    #[track_caller]
    fn check(health: Option<wire::HostHealth>, seen: HostActivity, expected: &[&str], blind: bool) {
        let verdict = judge(&record(health), &seen, NOW);
        let ids = verdict.degradations.iter().map(|of| of.id.as_str());
        assert_eq!(ids.collect::<Vec<_>>(), expected);
        assert_eq!(verdict.is_blind, blind);
    }

    #[test]
    fn a_host_that_sends_samples_is_well() {
        check(well(), connected(window(9, 100, 0)), &[], false);
        check(None, connected(window(9, 100, 0)), &[], false);
    }

    #[test]
    fn what_the_agent_says_of_itself_goes_first() {
        let said = wire::HostHealth {
            degradations: vec![
                degradation("no_samples", Severity::Error, "m".into(), "r", 7),
                warning("cpu_budget", "b".into()),
            ],
            blind: true,
            stopping: false,
        };
        let mut verdict = judge(&record(Some(said)), &connected(window(9, 1, 0)), NOW);
        verdict.add(clock(6 * S));
        let ids: Vec<_> = verdict.degradations.iter().map(|of| &*of.id).collect();
        assert_eq!(ids, ["no_samples", "cpu_budget", "clock"]);
        assert!(verdict.is_blind && verdict.is_warning());
        assert_eq!(verdict.warnings().len(), 3);
    }

    #[test]
    fn a_connected_agent_without_windows_is_blind() {
        check(well(), connected(window(45, 100, 0)), &[], false);
        check(well(), connected(window(46, 100, 0)), &["no_windows"], true);
        let fresh = HostActivity {
            stream: Some(open_for(100)),
            ..connected(None)
        };
        check(well(), fresh, &[], false);
        check(well(), connected(None), &["no_windows"], true);
    }

    /// Windows of ten seconds, each given by when it came and when it ended (seconds ago); what is
    /// said of them after each.
    fn alarms(stream: Listening, windows: &[(i64, i64)]) -> Vec<bool> {
        let mut of = Windows::default();
        let said = windows.iter().map(|&(came_s, ended_s)| {
            let window = LastWindow {
                received_unix_ns: NOW - came_s * S,
                end_unix_ns: NOW - ended_s * S,
                length_ns: 10 * S as u64,
                taken: 100,
                lost: 0,
            };
            of.came(window, stream);
            no_windows(&of, stream, window.received_unix_ns).is_some()
        });
        said.collect()
    }

    #[test]
    fn an_alarm_ends_with_a_window_that_ended_after_it_started() {
        // The agent stands still from 500 to 400 s ago; the alarm starts 455 s ago. What had closed
        // before the pause comes first, then the window in which it stood still, which ends it.
        let windows = [
            (500, 502),
            (400, 500),
            (399, 490),
            (398, 455),
            (397, 400),
            (387, 390),
        ];
        let expected = [false, true, true, true, false, false];
        assert_eq!(alarms(open_for(3600), &windows), expected);
    }

    #[test]
    fn a_window_of_which_most_is_lost_does_not_end_an_alarm() {
        let stream = open_for(3600);
        let mut windows = Windows::default();
        windows.came(window(100, 100, 0).expect("one"), stream);
        let lost = LastWindow {
            end_unix_ns: NOW - 3 * S,
            ..window(2, 10, 90).expect("one")
        };
        windows.came(lost, stream);
        let seen = HostActivity {
            windows,
            ..connected(None)
        };
        check(well(), seen, &["samples_lost"], true);
        windows.came(window(1, 100, 0).expect("one"), stream);
        let seen = HostActivity {
            windows,
            ..connected(None)
        };
        check(well(), seen, &[], false);
    }

    #[test]
    fn a_replay_of_older_windows_is_no_silence() {
        // An agent that was cut off for an hour connects, and sends one window after the other.
        let windows: Vec<(i64, i64)> = (0..360).map(|at| (300 - at / 2, 3900 - 10 * at)).collect();
        let said = alarms(open_for(301), &windows);
        assert!(said.iter().all(|alarm| !alarm));
        // Nor is what was missed in an earlier stream an alarm of this one.
        let mut of = Windows::default();
        of.came(window(1000, 100, 0).expect("one"), open_for(3600));
        let at = NOW - 500 * S;
        assert!(no_windows(&of, open_for(3600), at).is_some());
        of.came(window(499, 100, 0).expect("one"), open_for(510));
        assert_eq!(no_windows(&of, open_for(510), NOW - 499 * S), None);
    }

    #[test]
    fn an_agent_that_waits_for_an_answer_is_not_silent() {
        let waits = |answered_unix_ns| HostActivity {
            stream: Some(Listening {
                answered_unix_ns,
                ..open_for(3600)
            }),
            ..connected(window(200, 100, 0))
        };
        check(well(), waits(None), &[], false);
        check(well(), waits(Some(NOW - 45 * S)), &[], false);
        check(well(), waits(Some(NOW - 46 * S)), &["no_windows"], true);
    }

    #[test]
    fn an_old_agent_is_judged_by_its_newest_window() {
        check(
            None,
            connected(window(1, 100, 101)),
            &["samples_lost"],
            true,
        );
        check(None, connected(window(1, 101, 100)), &[], false);
        check(None, connected(window(1, 0, 9)), &[], false);
        // One that speaks for itself knows better.
        check(well(), connected(window(1, 0, 1000)), &[], false);
    }

    #[test]
    fn a_host_that_is_not_heard_of_is_silent_and_then_forgotten() {
        check(well(), gone(179), &[], false);
        check(well(), gone(180), &["host_silent"], false);
        check(well(), gone(86_400), &[], false);
        let superseded = HostActivity {
            is_superseded: true,
            ..gone(500)
        };
        check(well(), superseded, &[], false);
    }

    #[test]
    fn a_host_that_was_blind_when_it_died_stays_blind_until_it_is_gone() {
        let said = wire::HostHealth {
            degradations: vec![degradation(
                "no_samples",
                Severity::Error,
                "m".into(),
                "r",
                7,
            )],
            blind: true,
            stopping: false,
        };
        let silent = &["no_samples", "host_silent"];
        check(Some(said.clone()), gone(20), &["no_samples"], true);
        check(Some(said.clone()), gone(180), silent, true);
        check(Some(said.clone()), gone(86_399), silent, true);
        check(Some(said), gone(86_400), &[], false);
    }

    #[test]
    fn an_agent_that_was_stopped_is_a_warning_when_it_does_not_come_back() {
        let stopping = wire::HostHealth {
            stopping: true,
            blind: true,
            ..wire::HostHealth::default()
        };
        check(Some(stopping.clone()), gone(20), &[], false);
        check(Some(stopping.clone()), gone(500), &["agent_stopped"], false);
        let warns = |age_s| judge(&record(Some(stopping.clone())), &gone(age_s), NOW).is_warning();
        assert_eq!([warns(899), warns(900)], [false, true]);
    }

    #[test]
    fn without_its_reasons_a_host_is_still_blind() {
        let said = wire::HostHealth {
            degradations: vec![warning("cpu_budget", "b".repeat(99)); 9],
            blind: true,
            stopping: false,
        };
        let bytes = without_degradations(&record(Some(said)).facts.health);
        assert!((1..9).contains(&bytes.len()), "{bytes:?}");
        let mut of = record(None);
        of.facts.health = bytes;
        let verdict = judge(&of, &connected(window(9, 1, 0)), NOW);
        assert!(verdict.is_blind && verdict.is_warning());
    }

    #[test]
    fn an_answer_without_room_still_says_that_there_are_warnings() {
        let mut verdict = Verdict::default();
        verdict.add((0..9).map(|_| warning("cpu_budget", "m".repeat(20))));
        let ids = |left: &mut usize| -> Vec<String> {
            let verdict = verdict.clone().within(left);
            verdict.degradations.into_iter().map(|of| of.id).collect()
        };
        // One in full, one by its id alone.
        assert_eq!(ids(&mut 50), ["cpu_budget", "cpu_budget"]);
        assert_eq!(ids(&mut 0), ["left_out"]);
    }

    #[test]
    fn health_that_cannot_be_read_says_nothing() {
        let facts = HostFacts {
            health: vec![255; 9],
            ..HostFacts::default()
        };
        assert_eq!(health(&facts), None);
    }
}
