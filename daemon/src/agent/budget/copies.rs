//! The decision how much of each stack is copied: a state machine without clock or syscalls.
//!
//! What is configured reaches the start of nearly every program. Where compilers or other deep code take
//! a share of the machine, their stacks are cut; then as much is copied as a record holds, and less again
//! once nearly all stacks would be whole with less. The kernel writes only as much as there is of a
//! stack, so what a larger copy costs is mostly room in the rings.

use crate::time::Mono;
use crate::unwind::engine::COPIES;
use std::time::Duration;

/// Share of stacks, cut by the copy, at which more is copied. Unit: percent.
const CUT_PERCENT: u64 = 2;

/// Share of stacks that may be cut when less is copied again. Unit: percent.
const CUT_AGAIN_PERCENT: u64 = 1;

/// Walks without which shares say nothing.
const WALKS_MIN: u64 = 50;

/// Longest time over which they are gathered.
const GATHERED_MAX: Duration = Duration::from_secs(10);

/// Time in which less must have been enough before less is copied again.
const LOWER_AFTER: Duration = Duration::from_secs(300);

/// Time until more is copied again after that could not be, or cost too much. Each time that happens it is
/// twice as long.
const RETRY: Duration = Duration::from_secs(300);
const RETRY_MAX: Duration = Duration::from_secs(4 * 3600);

/// What the unwinder counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Walked {
    /// Copies walked.
    pub walks: u64,
    /// Walks that used so much of the copy or needed more, by [`COPIES`].
    pub beyond: [u64; COPIES.len()],
}

/// See the file.
#[derive(Debug)]
pub struct CopyGovernor {
    /// As configured. Unit: bytes.
    base: u32,
    max: u32,
    in_force: u32,
    /// Where gathering began.
    from: (Mono, Walked),
    /// Since when less would do, and how much that is.
    less: Option<(Mono, u32)>,
    not_before: Mono,
    retry: Duration,
}

impl CopyGovernor {
    /// `base` is in force. Nothing ever changes where `max` is no more, or where nothing is copied.
    pub fn new(base: u32, max: u32) -> CopyGovernor {
        CopyGovernor {
            base,
            max: if base == 0 { 0 } else { max.max(base) },
            in_force: base,
            from: Default::default(),
            less: None,
            not_before: Mono(0),
            retry: RETRY,
        }
    }

    /// Bytes of each stack that are copied.
    pub fn in_force(&self) -> u32 {
        self.in_force
    }

    /// What is copied without demand. Unit: bytes.
    pub fn base(&self) -> u32 {
        self.base
    }

    /// True while more is copied than that.
    pub fn is_raised(&self) -> bool {
        self.in_force > self.base
    }

    /// Notes that so much is copied from `now` on.
    pub fn enter(&mut self, bytes: u32, now: Mono) {
        self.in_force = bytes;
        self.forget(now);
    }

    /// More could not be copied, or cost too much.
    pub fn refused(&mut self, now: Mono) {
        self.not_before = now.plus(self.retry);
        self.retry = (self.retry * 2).min(RETRY_MAX);
        self.forget(now);
    }

    /// What was gathered was with another copy.
    fn forget(&mut self, now: Mono) {
        self.from.0 = now;
        self.from.1.walks = u64::MAX;
        self.less = None;
    }

    /// Takes a reading. Returns how much should be copied, when that is another size than the one in
    /// force. The caller puts it in force and says so by [`CopyGovernor::enter`], or
    /// [`CopyGovernor::refused`].
    pub fn observe(&mut self, now: Mono, walked: Walked) -> Option<u32> {
        let (begin, before) = self.from;
        if walked.walks < before.walks {
            self.from = (now, walked);
            return None;
        }
        let walks = walked.walks - before.walks;
        if walks < WALKS_MIN {
            if now.since(begin) >= GATHERED_MAX {
                self.from = (now, walked);
            }
            return None;
        }
        self.from = (now, walked);
        // A size between two counts as the smaller one.
        let cut_by = |bytes: u32| {
            let at = COPIES.iter().rposition(|&copy| copy <= bytes).unwrap_or(0);
            walked.beyond[at].saturating_sub(before.beyond[at])
        };
        let many = |cut: u64, percent: u64| cut * 100 >= walks * percent;
        if self.in_force < self.max
            && now >= self.not_before
            && many(cut_by(self.in_force), CUT_PERCENT)
        {
            return Some(self.max);
        }
        let sizes = COPIES.into_iter().filter(|&copy| copy > self.base);
        let enough = std::iter::once(self.base)
            .chain(sizes)
            .find(|&bytes| !many(cut_by(bytes), CUT_AGAIN_PERCENT))
            .filter(|&bytes| bytes < self.in_force);
        self.less = enough.map(|enough| match self.less {
            Some((since, most)) => (since, most.max(enough)),
            None => (now, enough),
        });
        let (since, bytes) = self.less?;
        (now.since(since) >= LOWER_AFTER).then_some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u32 = 1 << 10;

    /// A governor that is shown, once a second, a hundred walks of which so many go beyond 16, 32 and 56
    /// KiB; and what it has wanted and got at which second.
    struct Run {
        governor: CopyGovernor,
        walked: Walked,
        second: u64,
        steps: Vec<(u64, u32)>,
    }

    impl Run {
        fn new() -> Run {
            Run {
                governor: CopyGovernor::new(16 * KIB, 56 * KIB),
                walked: Walked::default(),
                second: 0,
                steps: Vec::new(),
            }
        }

        fn seconds(&mut self, seconds: u64, walks: u64, deep: [u64; 3]) {
            for _ in 0..seconds {
                self.second += 1;
                self.walked.walks += walks;
                for (count, more) in self.walked.beyond[2..].iter_mut().zip(deep) {
                    *count += more;
                }
                let now = Mono(self.second * 1_000_000_000);
                if let Some(bytes) = self.governor.observe(now, self.walked) {
                    self.governor.enter(bytes, now);
                    self.steps.push((self.second, bytes / KIB));
                }
            }
        }
    }

    #[test]
    fn where_stacks_are_cut_as_much_is_copied_as_can_be() {
        let mut run = Run::new();
        run.seconds(10, 100, [1, 0, 0]);
        assert_eq!(run.steps, []);
        run.seconds(1, 100, [2, 0, 0]);
        assert_eq!(run.steps, [(11, 56)]);
    }

    #[test]
    fn less_is_copied_again_after_five_minutes_in_which_that_was_enough() {
        let mut run = Run::new();
        run.seconds(2, 100, [50, 40, 0]);
        run.seconds(200, 100, [50, 40, 0]);
        assert_eq!(run.steps, [(1, 56)], "they need more than 32 KiB");
        run.seconds(200, 100, [50, 0, 0]);
        run.seconds(200, 100, [0, 0, 0]);
        assert_eq!(
            run.steps[1].1, 32,
            "the most that was needed in five minutes"
        );
        run.seconds(302, 100, [0, 0, 0]);
        let sizes: Vec<u32> = run.steps.iter().map(|step| step.1).collect();
        assert_eq!(sizes, [56, 32, 16]);
        assert!(!run.governor.is_raised());
    }

    #[test]
    fn a_moment_of_demand_begins_the_five_minutes_anew() {
        let mut run = Run::new();
        run.seconds(2, 100, [50, 50, 50]);
        for _ in 0..5 {
            run.seconds(250, 100, [0, 0, 0]);
            run.seconds(1, 100, [50, 50, 50]);
        }
        assert_eq!(run.steps, [(1, 56)]);
    }

    #[test]
    fn a_few_walks_say_nothing() {
        let mut run = Run::new();
        run.seconds(60, 4, [4, 4, 4]);
        assert_eq!(run.steps, []);
    }

    #[test]
    fn what_cost_too_much_is_tried_again_later_and_later() {
        let mut governor = CopyGovernor::new(16 * KIB, 56 * KIB);
        let (mut walked, mut tries) = (Walked::default(), Vec::new());
        for second in 1..3000 {
            walked.walks += 100;
            walked.beyond[2] += 100;
            let now = Mono(second * 1_000_000_000);
            if governor.observe(now, walked).is_some() {
                tries.push(second);
                governor.refused(now);
            }
        }
        let apart = tries.windows(2).map(|pair| (pair[1] - pair[0]) / 100);
        assert_eq!(apart.collect::<Vec<_>>(), [3, 6, 12]);
    }

    #[test]
    fn nothing_changes_where_nothing_is_copied_or_the_size_is_fixed() {
        for (base, max) in [(0, 56 * KIB), (16 * KIB, 16 * KIB), (32 * KIB, 16 * KIB)] {
            let mut governor = CopyGovernor::new(base, max);
            let walked = |count| Walked {
                walks: count,
                beyond: [count; COPIES.len()],
            };
            for second in 1..1000 {
                let now = Mono(second * 1_000_000_000);
                assert_eq!(governor.observe(now, walked(second * 100)), None);
            }
        }
    }
}
