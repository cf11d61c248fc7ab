//! Detects whether the sampler was late to empty the rings, so that two causes of losses can be
//! separated: rings that are too small lose records although the sampler is on time, and rings of
//! any size lose records if it does not run. Bookkeeping on times only; it neither blocks nor
//! allocates.

use host::time::MonotonicTime;
use std::time::Duration;

/// Passes further apart than this are late: the sampler wakes every second, and half a second more
/// is beyond what scheduling takes on a machine that gives it a CPU. Rings hold more than two
/// seconds of a busy CPU, so a larger value would blame their size for what a starved sampler lost.
const LATE: Duration = Duration::from_millis(1500);

/// Number of passes that still belong to a late one, including itself: the kernel reports a loss
/// when there is room again, with the first record after it, which the next pass reads. Passes
/// within [`LATE`] of it belong to it too, however many: the full rings of one CPU after the other
/// wake the sampler.
const PASSES: u8 = 2;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lateness {
    last: Option<MonotonicTime>,
    /// Start of the newest late pass.
    late: MonotonicTime,
    delay: Duration,
    passes: u8,
}

impl Lateness {
    /// A pass starts at `now`; the one before may have left records behind.
    pub fn begin(&mut self, now: MonotonicTime, behind: bool) {
        let apart = self.last.map_or(Duration::ZERO, |last| now.since(last));
        self.last = Some(now);
        if apart >= LATE {
            self.late = now;
            self.delay = apart;
            self.passes = PASSES;
        } else if !behind && (self.passes > 1 || now.since(self.late) >= LATE) {
            self.passes = self.passes.saturating_sub(1);
        }
    }

    /// Time between the passes when losses found now are of a late sampler.
    pub fn delay(&self) -> Option<Duration> {
        (self.passes > 0).then_some(self.delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passes at these milliseconds, each with whether the one before left records behind: which
    /// are late.
    #[track_caller]
    fn check(passes: &[(u64, bool)], expected: &[bool]) {
        let mut lateness = Lateness::default();
        let late = passes.iter().map(|&(ms, behind)| {
            lateness.begin(MonotonicTime(ms * 1_000_000), behind);
            lateness.delay().is_some()
        });
        assert_eq!(late.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_sampler_that_wakes_every_second_is_in_time() {
        check(
            &[
                (5_000, false),
                (6_000, false),
                (6_100, false),
                (7_200, false),
            ],
            &[false; 4],
        );
    }

    #[test]
    fn a_stop_is_late_and_the_pass_after_it_too() {
        check(
            &[
                (1_000, false),
                (11_000, false),
                (12_000, false),
                (13_000, false),
            ],
            &[false, true, true, false],
        );
    }

    #[test]
    fn a_backlog_belongs_to_the_pass_that_was_late() {
        check(
            &[
                (1_000, false),
                (11_000, false),
                (11_010, true),
                (11_020, true),
                (11_030, true),
                (12_000, false),
                (13_000, false),
            ],
            &[false, true, true, true, true, true, false],
        );
    }

    #[test]
    fn passes_that_catch_up_belong_to_the_late_one() {
        check(
            &[
                (1_000, false),
                (11_000, false),
                (11_010, false),
                (11_020, false),
                (12_490, false),
                (12_500, false),
                (13_000, false),
            ],
            &[false, true, true, true, true, false, false],
        );
    }

    #[test]
    fn the_delay_is_the_time_without_a_pass() {
        let mut lateness = Lateness::default();
        lateness.begin(MonotonicTime(1_000_000_000), false);
        lateness.begin(MonotonicTime(4_000_000_000), false);
        assert_eq!(lateness.delay(), Some(Duration::from_secs(3)));
    }
}
