//! Warnings of `status`, `doctor` and the metrics when so much of the last minute is missing that
//! its profiles mislead, with the reasons. Pure arithmetic.

use super::advice::{RING, RUN, STALLED, THROTTLE};
use aggregate::recorder::Covered;
use host::health::{Degradation, Severity};
use profile::Ledger;
use std::time::Duration;

/// Coverage of the last minute below which profiles are said to miss something. A busy machine is
/// covered to 100.0 % when nothing is lost (two CPUs, 79.87 s, 2026-11-21), so a twentieth is far
/// from it; a higher value would warn of losses that change no order of functions.
const COVERAGE_MIN: f64 = 0.95;

/// Samples expected in the last minute below which it says nothing: a tenth of one CPU at 99 Hz. An
/// idle machine takes fewer, and its kernel's accounting by ticks is as coarse as its sampling.
const SAMPLES_MIN: f64 = 600.0;

/// Standard errors by which samples must be missing, so that chance never does it. Counts of
/// samples vary by their square root at most.
const SIGMAS: f64 = 4.0;

/// Time that must be covered: the last minute, less what the ends of windows are off. Sooner after
/// the start the first reading of the processes and a cut first window would be judged.
pub(super) const LENGTH_MIN: Duration = Duration::from_secs(59);

/// Why samples are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The daemon came late to empty the rings.
    Late,
    /// The rings were full though it came in time.
    RingFull,
    /// A ring was full and stood still: what lay in it could not be read.
    RingStalled,
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
    pub(super) const ALL: [Cause; 7] = [
        Cause::Late,
        Cause::RingFull,
        Cause::RingStalled,
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
            Cause::RingStalled => "ring_stalled",
            Cause::Throttled => "throttled",
            Cause::Silent => "silent",
            Cause::NotSampled => "not_sampled",
            Cause::Unknown => "unknown",
        }
    }

    fn sentence(self) -> &'static str {
        match self {
            Cause::Late => "the daemon was stopped, frozen or got no CPU while the rings filled",
            Cause::RingFull => "a ring buffer is too small for the records between two reads",
            Cause::RingStalled => "a ring buffer was full and not read until it was flushed",
            Cause::Throttled => "the kernel paused sampling because samples took too long",
            Cause::Silent => "the event of a CPU died and was replaced, or started late",
            Cause::NotSampled => "some CPUs run and are not sampled",
            Cause::Unknown => "the cause is unknown: the event did not tick while CPUs were busy",
        }
    }

    fn remedy(self) -> &'static str {
        match self {
            Cause::Late => RUN,
            Cause::RingFull => RING,
            Cause::RingStalled => STALLED,
            Cause::Throttled => THROTTLE,
            Cause::Silent => "agent-ctl status --cpus",
            Cause::NotSampled => "systemctl restart fleetprofd",
            Cause::Unknown => "agent-ctl cgroups: shows the cgroups with the lowest coverage",
        }
    }
}

/// Data about the last minute.
pub(super) struct LastMinute<'a> {
    /// The ledger of the windows that closed in it.
    pub(super) ledger: &'a Ledger,
    /// Their time, and what was missed before it had a cgroup.
    pub(super) covered: &'a Covered,
    /// All CPUs that run are sampled.
    pub(super) all_sampled: bool,
    /// Records lost in rings that stood still.
    pub(super) lost_stalled: u64,
}

/// Coverage that is too low.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Low {
    /// The part of the kernel's CPU time that was sampled.
    pub(super) share: f64,
    /// The cause of most missing samples.
    pub(super) cause: Cause,
}

/// Says when coverage is low by more than chance, and why. `None` also when nothing can be said:
/// the kernel's accounting is not known, or too little was expected.
pub(super) fn low(recent: &LastMinute<'_>) -> Option<Low> {
    let LastMinute {
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

/// Finds the largest cause. Losses are divided by the rings' counts: a lost record is at most one
/// sample.
fn largest_cause(recent: &LastMinute<'_>, missing: u64) -> Cause {
    let quality = &recent.covered.quality;
    let lost = recent.ledger.host.lost;
    let in_rings = lost.min(quality.lost);
    let late = u128::from(in_rings) * u128::from(quality.lost_late);
    let late = late.checked_div(quality.lost.into()).unwrap_or(0) as u64;
    let in_time = in_rings.saturating_sub(late);
    let stalled = in_time.min(recent.lost_stalled);
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
        (Cause::RingFull, in_time - stalled),
        (Cause::RingStalled, stalled),
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
            "{:.1} % of the last minute's CPU time was sampled; most of the rest is missing \
             because {}",
            low.share * 100.0,
            low.cause.sentence()
        ),
        low.cause.remedy(),
    )
}

#[cfg(test)]
mod tests {
    use super::super::losses::tests::CLEAN;
    use super::*;
    use host::time::MonotonicTime;
    use profile::{Expected, Quality, Tally};

    const PERIOD: u64 = 10_101_010;
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
            start: MonotonicTime(1_000_000_000),
            end: MonotonicTime((1 + seconds) * 1_000_000_000),
            quality,
            ..Covered::default()
        };
        low(&LastMinute {
            ledger: &ledger,
            covered: &covered,
            all_sampled,
            lost_stalled: 0,
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
}
