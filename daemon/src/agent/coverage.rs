//! What `status`, `doctor` and the metrics say of samples that are missing: why records were lost, and
//! when so much of the last minute is missing that profiles of it mislead. Pure arithmetic.

use crate::aggregate::recorder::Covered;
use crate::perf::environment::{Degradation, Severity};
use crate::time::Mono;
use profile::{Ledger, Quality};
use std::collections::VecDeque;
use std::time::Duration;

/// Coverage of the last minute below which profiles are said to miss something. A busy machine is
/// covered to 100.0 % when nothing is lost (two CPUs, 79.87 s, 2026-11-21), so a twentieth is far from
/// it; a higher value would warn of losses that change no order of functions.
const COVERAGE_MIN: f64 = 0.95;

/// Samples expected in the last minute below which it says nothing: a tenth of one CPU at 99 Hz. An
/// idle machine takes fewer, and its kernel's accounting by ticks is as coarse as its sampling.
const SAMPLES_MIN: f64 = 600.0;

/// Standard errors by which samples must be missing, so that chance never does it. Counts of samples
/// vary by their square root at most.
const SIGMAS: f64 = 4.0;

/// Time that must be covered: the last minute, less what the ends of windows are off. Sooner after the
/// start the first reading of the processes and a cut first window would be judged.
const LENGTH_MIN: Duration = Duration::from_secs(59);

/// How far back [`losses`] looks: long enough that who comes because of an alert still sees it, short
/// enough that one lost record does not call a machine degraded until the next restart.
const LOSSES_SPAN: Duration = Duration::from_secs(300);

/// A delay is known at once, the records lost by it only once their batch has been named. Kept for so
/// much longer, or the last seconds of a loss would be told without its delay.
const NAMED_WITHIN: Duration = Duration::from_secs(60);

/// Shortest time between two readings that are kept.
const READINGS_APART: Duration = Duration::from_millis(9_500);

/// Readings kept at most, so that more of them than are wanted cannot grow the list: the span, and
/// twice what is needed to look past its begin.
const READINGS_MAX: usize = 40;

/// What mends a daemon that does not run when it should.
const RUN: &str = "see that nothing stops it, and give it CPU: \
                   systemctl set-property fleetprofd CPUQuota= CPUWeight=1000";
/// What mends rings that are too small.
const RING: &str = "raise sampling.ring_kib and reload: agent-ctl config reload";
/// What mends throttling.
const THROTTLE: &str = "sysctl -w kernel.perf_cpu_time_max_percent=25, or lower sampling.rate_hz";

/// Why samples are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The daemon came late to empty the rings.
    Late,
    /// The rings were full though it came in time.
    RingFull,
    /// The kernel throttled the events.
    Throttled,
    /// The event of a CPU was dead, or the CPU had none yet.
    Silent,
    /// CPUs run without being sampled.
    NotSampled,
    /// Neither taken nor known to be lost.
    Unknown,
}

impl Cause {
    /// Every cause, for the metrics.
    pub(super) const ALL: [Cause; 6] = [
        Cause::Late,
        Cause::RingFull,
        Cause::Throttled,
        Cause::Silent,
        Cause::NotSampled,
        Cause::Unknown,
    ];

    /// Short name, for metrics.
    pub(super) fn word(self) -> &'static str {
        match self {
            Cause::Late => "late",
            Cause::RingFull => "ring_full",
            Cause::Throttled => "throttled",
            Cause::Silent => "silent",
            Cause::NotSampled => "not_sampled",
            Cause::Unknown => "unknown",
        }
    }

    fn sentence(self) -> &'static str {
        match self {
            Cause::Late => "the daemon was stopped, frozen or got no CPU while the rings filled",
            Cause::RingFull => "records found no room in a ring buffer",
            Cause::Throttled => "the kernel paused sampling because samples took too long",
            Cause::Silent => "the event of a CPU had died and was replaced, or came late",
            Cause::NotSampled => "some CPUs run and are not sampled",
            Cause::Unknown => "nothing accounts for it: the event did not tick while CPUs worked",
        }
    }

    fn remedy(self) -> &'static str {
        match self {
            Cause::Late => RUN,
            Cause::RingFull => RING,
            Cause::Throttled => THROTTLE,
            Cause::Silent => "agent-ctl status --cpus",
            Cause::NotSampled => "systemctl restart fleetprofd",
            Cause::Unknown => "agent-ctl cgroups: shows which are covered least",
        }
    }
}

/// What is known of the last minute.
pub(super) struct Recent<'a> {
    /// Of the windows that closed in it.
    pub(super) ledger: &'a Ledger,
    /// Their time, and what was missed before it had a cgroup.
    pub(super) covered: &'a Covered,
    /// All CPUs that run are sampled.
    pub(super) all_sampled: bool,
}

/// Coverage that is too low.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Low {
    /// The part of the kernel's CPU time that was sampled.
    pub(super) share: f64,
    /// What most of the missing samples went by.
    pub(super) cause: Cause,
}

/// Says when coverage is low by more than chance, and why. `None` also when nothing can be said: the
/// kernel's accounting is not known, or too little was expected.
pub(super) fn low(recent: &Recent<'_>) -> Option<Low> {
    let Recent {
        ledger, covered, ..
    } = recent;
    if covered.end.since(covered.start) < LENGTH_MIN {
        return None;
    }
    let coverage = ledger.coverage();
    let share = coverage.share()?;
    let measured = coverage.measured_ns() as f64 / coverage.expected_ns.max(1) as f64;
    let expected = coverage.expected_samples as f64 * measured;
    let missing = expected * (1.0 - share);
    if expected < SAMPLES_MIN || share >= COVERAGE_MIN || missing <= SIGMAS * expected.sqrt() {
        return None;
    }
    let cause = largest_cause(recent, missing as u64);
    Some(Low { share, cause })
}

/// What was lost is divided by what the rings counted: a lost record is a sample at most.
fn largest_cause(recent: &Recent<'_>, missing: u64) -> Cause {
    let quality = &recent.covered.quality;
    let lost = recent.ledger.host.lost;
    let in_rings = lost.min(quality.lost);
    let late = u128::from(in_rings) * u128::from(quality.lost_late);
    let late = late.checked_div(quality.lost.into()).unwrap_or(0) as u64;
    let otherwise = match quality.throttled {
        0 => Cause::Silent,
        _ => Cause::Throttled,
    };
    let untold = match recent.all_sampled {
        true => Cause::Unknown,
        false => Cause::NotSampled,
    };
    let parts = [
        (untold, missing.saturating_sub(lost)),
        (otherwise, lost - in_rings),
        (Cause::RingFull, in_rings.saturating_sub(late)),
        (Cause::Late, late),
    ];
    let largest = parts.into_iter().max_by_key(|&(_, samples)| samples);
    largest.map_or(untold, |(cause, _)| cause)
}

/// The degradation of low coverage.
pub(super) fn degradation(low: Low) -> Degradation {
    Degradation::new(
        "coverage_low",
        Severity::Warning,
        format!(
            "{:.1} % of the last minute's CPU time was sampled; most of what is missing is so because \
             {}",
            low.share * 100.0,
            low.cause.sentence()
        ),
        low.cause.remedy(),
    )
}

/// What the rings missed: since the start, or in a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
struct Missed {
    lost: u64,
    lost_late: u64,
    throttled: u64,
}

impl Missed {
    fn of(quality: &Quality) -> Missed {
        Missed {
            lost: quality.lost,
            lost_late: quality.lost_late,
            throttled: quality.throttled,
        }
    }

    fn since(self, before: Missed) -> Missed {
        Missed {
            lost: self.lost.saturating_sub(before.lost),
            lost_late: self.lost_late.saturating_sub(before.lost_late),
            throttled: self.throttled.saturating_sub(before.throttled),
        }
    }
}

/// Counters since the start, remembered with their times, so that losses go away again. Bounded; read
/// by whoever asks for the status, fed every ten seconds by the main thread.
#[derive(Debug, Default)]
pub struct RecentLosses {
    /// Time, totals and longest delay since the reading before; oldest first.
    readings: VecDeque<(Mono, Missed, Duration)>,
}

impl RecentLosses {
    /// Takes a reading: totals since the start. `take_delay` gives the longest delay since it was last
    /// asked; it is asked only when the reading is kept.
    pub(super) fn note(
        &mut self,
        now: Mono,
        quality: &Quality,
        take_delay: impl FnOnce() -> Duration,
    ) {
        let newest = self.readings.back();
        if newest.is_some_and(|&(at, ..)| now.since(at) < READINGS_APART) {
            return;
        }
        // The newest reading before the span is what later ones are compared with.
        let span = LOSSES_SPAN + NAMED_WITHIN;
        let past = |reading: Option<&(Mono, Missed, Duration)>| {
            reading.is_some_and(|&(at, ..)| now.since(at) >= span)
        };
        while past(self.readings.get(1)) || self.readings.len() == READINGS_MAX {
            self.readings.pop_front();
        }
        let reading = (now, Missed::of(quality), take_delay());
        self.readings.push_back(reading);
    }

    /// What was missed in the span before `now`, and the longest delay by which. `quality`: totals
    /// since the start; `delay`: the longest delay since the last reading.
    fn recent(&self, now: Mono, quality: &Quality, delay: Duration) -> (Missed, Duration) {
        let before = |&&(at, ..): &&(Mono, Missed, Duration)| now.since(at) >= LOSSES_SPAN;
        // Without a reading that old the daemon has not run for longer: the start counts.
        let base = self.readings.iter().rev().find(before);
        let base = base.map_or(Missed::default(), |&(_, missed, _)| missed);
        let span = LOSSES_SPAN + NAMED_WITHIN;
        let delays = self.readings.iter().rev();
        let delays = delays.take_while(|&&(at, ..)| now.since(at) < span);
        let longest = delays.map(|&(.., longest)| longest).max();
        (
            Missed::of(quality).since(base),
            delay.max(longest.unwrap_or_default()),
        )
    }

    /// What was lost and throttled in the last minutes, each with the remedy of its cause. `quality`:
    /// totals since the start; `delay`: the longest time since the last reading that the daemon left
    /// rings alone that then had lost records.
    pub(super) fn degradations(
        &self,
        now: Mono,
        quality: &Quality,
        delay: Duration,
    ) -> Vec<Degradation> {
        let (missed, longest) = self.recent(now, quality, delay);
        losses(missed, longest)
    }
}

fn losses(missed: Missed, longest: Duration) -> Vec<Degradation> {
    let mut list = Vec::new();
    let mut say = |id, message: String, remedy| {
        let minutes = LOSSES_SPAN.as_secs() / 60;
        let message = format!("in the last {minutes} minutes {message}");
        list.push(Degradation::new(id, Severity::Warning, message, remedy));
    };
    let late = missed.lost_late.min(missed.lost);
    let in_time = missed.lost - late;
    if in_time > 0 {
        let message = format!("{in_time} records found no room in a ring buffer");
        say("records_lost", message, RING);
    }
    if late > 0 {
        let message = format!(
            "{late} records found no room in a ring buffer while the daemon was stopped, frozen or got \
             no CPU, for {:.1} s at the longest",
            longest.as_secs_f64()
        );
        say("sampler_late", message, RUN);
    }
    if missed.throttled > 0 {
        let message = format!(
            "the kernel paused sampling {} times because samples took too long",
            missed.throttled
        );
        say("throttled", message, THROTTLE);
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Mono;
    use profile::{Expected, Tally};

    const PERIOD: u64 = 10_101_010;
    const CLEAN: Quality = Quality {
        taken: 0,
        idle: 0,
        lost: 0,
        throttled: 0,
        folded: 0,
        truncated: 0,
        depth_limit: 0,
        unnamed: 0,
        malformed: 0,
        lost_samples: 0,
        reduced: 0,
        lost_late: 0,
    };

    /// So many seconds in which `expected` samples should have been taken.
    fn minute(seconds: u64, expected: u64, taken: u64, lost: u64, quality: Quality) -> Option<Low> {
        low_of(seconds, expected, 0, (taken, lost), quality, true)
    }

    fn low_of(
        seconds: u64,
        expected: u64,
        estimated: u64,
        (taken, lost): (u64, u64),
        quality: Quality,
        all_sampled: bool,
    ) -> Option<Low> {
        let ledger = Ledger {
            host: Tally {
                taken,
                taken_weight: taken * PERIOD,
                lost,
                lost_weight: lost * PERIOD,
                ..Tally::default()
            },
            expected: Expected {
                ns: expected * PERIOD,
                estimated_ns: estimated * PERIOD,
                samples: expected,
            },
            windows: seconds / 10,
            ..Ledger::default()
        };
        let covered = Covered {
            start: Mono(1_000_000_000),
            end: Mono((1 + seconds) * 1_000_000_000),
            quality,
            ..Covered::default()
        };
        low(&Recent {
            ledger: &ledger,
            covered: &covered,
            all_sampled,
        })
    }

    #[track_caller]
    fn check(found: Option<Low>, cause: Cause) {
        assert_eq!(found.map(|low| low.cause), Some(cause));
    }

    #[test]
    fn a_busy_minute_that_misses_a_tenth_is_low() {
        let found = minute(
            60,
            12_000,
            10_800,
            1_200,
            Quality {
                lost: 1_500,
                ..CLEAN
            },
        );
        let found = found.expect("it is low");
        assert!((found.share - 0.9).abs() < 1e-9, "{found:?}");
        let said = degradation(found);
        assert_eq!(said.id, "coverage_low");
        assert!(said.message.starts_with("90.0 % of"), "{}", said.message);
    }

    #[test]
    fn what_is_near_whole_is_well() {
        assert_eq!(minute(60, 12_000, 11_500, 500, CLEAN), None);
        assert_eq!(minute(60, 12_000, 12_900, 0, CLEAN), None);
    }

    #[test]
    fn an_idle_minute_says_nothing() {
        assert_eq!(minute(60, 0, 0, 0, CLEAN), None);
        assert_eq!(minute(60, 599, 300, 0, CLEAN), None);
    }

    #[test]
    fn what_chance_can_do_says_nothing() {
        // Of 625 samples 100 are four standard errors.
        assert_eq!(minute(60, 625, 530, 0, CLEAN), None);
        check(minute(60, 625, 520, 0, CLEAN), Cause::Unknown);
    }

    #[test]
    fn less_than_a_minute_says_nothing() {
        assert_eq!(minute(50, 12_000, 6_000, 6_000, CLEAN), None);
    }

    #[test]
    fn what_was_not_measured_proves_nothing() {
        // All but 500 samples' worth was taken from the samples themselves.
        let found = low_of(60, 12_000, 11_500, (11_600, 0), CLEAN, true);
        assert_eq!(found, None);
    }

    #[test]
    fn the_largest_cause_is_named() {
        let lost = |lost, lost_late| Quality {
            lost,
            lost_late,
            ..CLEAN
        };
        check(
            minute(60, 12_000, 9_000, 3_000, lost(4_000, 0)),
            Cause::RingFull,
        );
        check(
            minute(60, 12_000, 9_000, 3_000, lost(4_000, 3_900)),
            Cause::Late,
        );
        let throttled = Quality {
            lost: 10,
            throttled: 7,
            ..CLEAN
        };
        check(
            minute(60, 12_000, 9_000, 3_000, throttled),
            Cause::Throttled,
        );
        check(minute(60, 12_000, 9_000, 3_000, CLEAN), Cause::Silent);
        check(minute(60, 12_000, 9_000, 1_000, CLEAN), Cause::Unknown);
        let found = low_of(60, 12_000, 0, (9_000, 0), CLEAN, false);
        check(found, Cause::NotSampled);
    }

    const DELAY: Duration = Duration::from_millis(9_960);

    fn lost(lost: u64, lost_late: u64, throttled: u64) -> Quality {
        Quality {
            lost,
            lost_late,
            throttled,
            ..CLEAN
        }
    }

    fn said(recent: &RecentLosses, at_s: u64, quality: &Quality) -> Vec<Degradation> {
        recent.degradations(Mono(at_s * 1_000_000_000), quality, Duration::ZERO)
    }

    fn ids(found: &[Degradation]) -> Vec<&'static str> {
        found.iter().map(|found| found.id).collect()
    }

    #[track_caller]
    fn check_losses(quality: &Quality, expected: &[&str]) {
        let found = said(&RecentLosses::default(), 1_000, quality);
        assert_eq!(ids(&found), expected);
    }

    #[test]
    fn records_lost_by_a_late_daemon_do_not_blame_the_rings() {
        check_losses(&lost(0, 0, 0), &[]);
        check_losses(&lost(5, 0, 0), &["records_lost"]);
        check_losses(&lost(5, 5, 0), &["sampler_late"]);
        check_losses(&lost(5, 2, 0), &["records_lost", "sampler_late"]);
        let recent = RecentLosses::default();
        let found = &recent.degradations(Mono(1), &lost(5, 5, 0), DELAY)[0];
        assert!(found.message.contains("for 10.0 s"), "{}", found.message);
        assert!(!found.remedy.contains("ring_kib"), "{}", found.remedy);
    }

    /// Readings every ten seconds up to `until_s`; at 1000 s `what` was missed, and never again.
    fn read_until(until_s: u64, what: &Quality) -> RecentLosses {
        let mut recent = RecentLosses::default();
        for at_s in (10..=until_s).step_by(10) {
            let now = Mono(at_s * 1_000_000_000);
            let (quality, delay) = match at_s {
                ..1000 => (CLEAN, Duration::ZERO),
                // The delay is known a batch before its losses.
                1000 => (CLEAN, DELAY),
                _ => (*what, Duration::ZERO),
            };
            recent.note(now, &quality, || delay);
        }
        recent
    }

    #[test]
    fn losses_are_told_for_five_minutes_and_then_go_away() {
        let what = lost(7, 3, 2);
        let all = ["records_lost", "sampler_late", "throttled"];
        for at_s in [1_010, 1_290] {
            let found = said(&read_until(at_s, &what), at_s, &what);
            assert_eq!(ids(&found), all, "{at_s} s");
            let message = &found[1].message;
            let begin = "in the last 5 minutes 3 records";
            assert!(message.starts_with(begin), "{message}");
            assert!(message.ends_with("for 10.0 s at the longest"), "{message}");
        }
        for at_s in [1_320, 5_000] {
            assert_eq!(
                ids(&said(&read_until(at_s, &what), at_s, &what)),
                [""; 0],
                "{at_s} s"
            );
        }
    }

    #[test]
    fn what_is_lost_anew_is_counted_alone() {
        let recent = read_until(2_000, &lost(7, 0, 0));
        let found = said(&recent, 2_005, &lost(9, 0, 0));
        assert_eq!(ids(&found), ["records_lost"]);
        let message = &found[0].message;
        assert!(message.contains(" 2 records "), "{message}");
    }

    #[test]
    fn readings_do_not_grow_however_often_they_are_taken() {
        let mut recent = RecentLosses::default();
        for at_ms in 0..1_000_000 {
            recent.note(Mono(at_ms * 1_000_000), &CLEAN, || Duration::ZERO);
        }
        assert!(recent.readings.len() <= READINGS_MAX);
    }
}
