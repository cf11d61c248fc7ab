//! Detects whether most of an answer is missing, so that nobody takes the rest, or `[lost]`, for a
//! finding.

use crate::units;
use crate::when::{Clock, Range};
use profile::{Coverage, Profile, Quality, StackEnd, Value, is_mostly_lost};
use std::time::Duration;

/// Samples below which nothing is concluded from what was lost of them.
const SAMPLES_MIN: u64 = 20;

/// An agent that is well answers with samples of the last second or two; its newest ones are this
/// old only when nothing comes any more.
const STALE: Duration = Duration::from_secs(10);

/// A range that ends so soon before now goes on until now. Unit: nanoseconds.
const NOW_NS: i64 = 2_000_000_000;

/// Why most of a profile is missing; `None` when it is not.
pub fn of_profile(profile: &Profile) -> Option<String> {
    let (mut taken, mut lost) = (Value::default(), Value::default());
    for (key, &value) in &profile.samples {
        match key.end {
            StackEnd::Lost => lost += value,
            _ => taken += value,
        }
    }
    let is_lost = is_mostly_lost(taken.weight, lost.weight);
    sentence(taken.count, lost.count, is_lost)
        .or_else(|| uncovered(&profile.info.coverage, &profile.info.quality))
}

/// The same of an answer of which only the sums are known.
pub fn of_sums(quality: &Quality, coverage: &Coverage) -> Option<String> {
    let Quality {
        taken,
        lost_samples,
        ..
    } = *quality;
    sentence(taken, lost_samples, is_mostly_lost(taken, lost_samples))
        .or_else(|| uncovered(coverage, quality))
}

/// Why an agent's answer ends long before it should: what was asked for goes on until now, and more
/// than half of it is not there.
pub fn of_time(asked: Range, end_ns: i64, clock: &Clock) -> Option<String> {
    let now_ns = clock.now_ns();
    let until_ns = match asked.end_ns {
        0 => now_ns,
        end_ns => end_ns.min(now_ns),
    };
    if now_ns.saturating_sub(until_ns) >= NOW_NS {
        // A past range has what is kept of it.
        return None;
    }
    let missing_ns = until_ns.saturating_sub(end_ns).max(0).unsigned_abs();
    let asked_ns = until_ns
        .saturating_sub(asked.start_ns)
        .max(0)
        .unsigned_abs();
    let stale = Duration::from_nanos(missing_ns) >= STALE;
    (stale && missing_ns > asked_ns / 2).then(|| {
        let missing = units::duration(Duration::from_secs(missing_ns / 1_000_000_000));
        format!("the last {missing} of the range are missing: no samples arrive")
    })
}

fn sentence(taken: u64, lost: u64, is_lost: bool) -> Option<String> {
    let all = taken.saturating_add(lost);
    (is_lost && all >= SAMPLES_MIN).then(|| {
        format!(
            "{} of {} samples ({}) were lost",
            units::count(lost),
            units::count(all),
            units::percent(lost, all)
        )
    })
}

fn uncovered(coverage: &Coverage, quality: &Quality) -> Option<String> {
    // Idle samples were taken and left out: without any there is no sampling to judge by.
    let known = quality.taken.saturating_add(quality.lost_samples) > 0;
    let share = coverage.share()? * 100.0;
    (known && coverage.misses_most())
        .then(|| format!("only {share:.1} % of the CPU time in cpu.stat was sampled"))
}

/// Says on standard error why most is missing.
pub fn note(why: &str) {
    note!("agent-ctl: {why}: the rest is misleading; `agent-ctl status` tells why");
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;

    fn sums(taken: u64, lost_samples: u64, expected_s: u64, taken_s: u64) -> Option<String> {
        let quality = Quality {
            taken,
            lost_samples,
            ..Quality::default()
        };
        let coverage = Coverage {
            expected_ns: expected_s * S as u64,
            taken_ns: taken_s * S as u64,
            ..Coverage::default()
        };
        of_sums(&quality, &coverage)
    }

    #[test]
    fn more_lost_than_taken_is_said_with_its_share() {
        let said = sums(10, 30, 0, 0);
        assert_eq!(said.as_deref(), Some("30 of 40 samples (75.0 %) were lost"));
        assert_eq!(sums(30, 30, 0, 0), None);
        assert_eq!(sums(0, 19, 0, 0), None, "too few to say");
    }

    #[test]
    fn what_is_missing_without_being_counted_as_lost_is_said_too() {
        let said = sums(100, 0, 10, 4);
        let expected = "only 40.0 % of the CPU time in cpu.stat was sampled";
        assert_eq!(said.as_deref(), Some(expected));
        assert_eq!(sums(100, 0, 10, 6), None);
        assert_eq!(sums(0, 0, 10, 0), None, "an idle machine");
    }

    #[test]
    fn an_answer_that_ends_long_ago_misses_most_of_what_was_asked() {
        let clock = Clock::at(1000 * S);
        let asked = |start_s: i64, end_s: i64| Range {
            start_ns: start_s * S,
            end_ns: end_s * S,
        };
        let said = of_time(asked(970, 0), 980 * S, &clock);
        assert!(said.is_some_and(|said| said.contains("20 s")), "20 of 30 s");
        assert_eq!(of_time(asked(900, 0), 980 * S, &clock), None, "20 of 100 s");
        assert_eq!(of_time(asked(992, 0), 993 * S, &clock), None, "on its way");
        assert_eq!(of_time(asked(900, 960), 920 * S, &clock), None, "the past");
    }
}
