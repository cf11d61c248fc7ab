//! Decides how much of each stack is copied: a state machine without clock or syscalls.
//!
//! The configured size reaches the start of nearly every program's stack. If compilers or other
//! deep code use much of the machine, their stacks are cut; then as much is copied as a record can
//! hold, and less again once nearly all stacks would be complete with less. The kernel writes only
//! as much of a stack as exists, so the cost of a larger copy is mostly room in the rings.

use host::time::MonotonicTime;
use std::time::Duration;
use unwind::walk::engine::{COPIES, CopyCounts};

/// Share of stacks, cut by the copy, at which more is copied. Unit: percent.
const CUT_PERCENT: u64 = 2;

/// Share of stacks that may be cut when less is copied again. Unit: percent.
const CUT_AGAIN_PERCENT: u64 = 1;

/// Cut stacks without which their share may be chance.
const CUT_MIN: u64 = 10;

/// Longest time over which a demand is gathered.
const GATHERED_MAX: Duration = Duration::from_secs(10);

/// Time in which less would have been enough before less is copied again.
const LOWER_AFTER: Duration = Duration::from_secs(300);

/// Samples without which that is not known.
const LOWER_SAMPLES_MIN: u64 = 500;

/// Time until more is copied again after that could not be, or cost too much. Each time that
/// happens it is twice as long.
const RETRY: Duration = Duration::from_secs(300);
const RETRY_MAX: Duration = Duration::from_secs(4 * 3600);

/// See the file.
#[derive(Debug)]
pub struct CopyGovernor {
    /// As configured. Unit: bytes.
    base: u32,
    max: u32,
    in_force: u32,
    /// Counts when gathering started: for a demand, and for what would be enough.
    demand: Option<(MonotonicTime, CopyCounts)>,
    enough: Option<(MonotonicTime, CopyCounts)>,
    not_before: MonotonicTime,
    retry: Duration,
}

/// Difference between two readings.
fn between(before: &CopyCounts, now: &CopyCounts) -> CopyCounts {
    let mut beyond = now.beyond;
    for (count, before) in beyond.iter_mut().zip(before.beyond) {
        *count = count.saturating_sub(before);
    }
    CopyCounts {
        samples: now.samples.saturating_sub(before.samples),
        cut: now.cut.saturating_sub(before.cut),
        beyond,
    }
}

impl CopyGovernor {
    /// `base` is in force. Nothing ever changes where `max` is no more, or where nothing is copied.
    pub fn new(base: u32, max: u32) -> CopyGovernor {
        CopyGovernor {
            base,
            max: if base == 0 { 0 } else { max.max(base) },
            in_force: base,
            demand: None,
            enough: None,
            not_before: MonotonicTime(0),
            retry: RETRY,
        }
    }

    /// Bytes of each stack that are copied.
    pub fn in_force(&self) -> u32 {
        self.in_force
    }

    /// Size of the copy without demand. Unit: bytes.
    pub fn base(&self) -> u32 {
        self.base
    }

    /// True when so much may be copied by what is configured.
    pub fn allows(&self, bytes: u32) -> bool {
        (self.base..=self.max).contains(&bytes)
    }

    /// True while more is copied than without demand.
    pub fn is_raised(&self) -> bool {
        self.in_force > self.base
    }

    /// Notes that so much is copied from now on.
    pub fn enter(&mut self, bytes: u32) {
        self.in_force = bytes;
        // What was gathered was with another copy.
        (self.demand, self.enough) = (None, None);
    }

    /// More could not be copied at `now`, or cost too much.
    pub fn refused(&mut self, now: MonotonicTime) {
        self.not_before = now.plus(self.retry);
        self.retry = (self.retry * 2).min(RETRY_MAX);
        (self.demand, self.enough) = (None, None);
    }

    /// Processes a reading of the counts since the start. Returns how much should be copied, if
    /// that differs from the size in force. The caller applies it and reports that with
    /// [`CopyGovernor::enter`] or [`CopyGovernor::refused`].
    pub fn observe(&mut self, now: MonotonicTime, counted: CopyCounts) -> Option<u32> {
        self.more(now, &counted)
            .or_else(|| self.less(now, &counted))
    }

    fn more(&mut self, now: MonotonicTime, counted: &CopyCounts) -> Option<u32> {
        if self.in_force >= self.max || now < self.not_before {
            return None;
        }
        let (since, before) = *self.demand.get_or_insert((now, *counted));
        let seen = between(&before, counted);
        if seen.cut >= CUT_MIN && seen.cut * 100 >= seen.samples * CUT_PERCENT {
            return Some(self.max);
        }
        if now.since(since) >= GATHERED_MAX {
            self.demand = Some((now, *counted));
        }
        None
    }

    fn less(&mut self, now: MonotonicTime, counted: &CopyCounts) -> Option<u32> {
        if !self.is_raised() {
            return None;
        }
        let (since, before) = *self.enough.get_or_insert((now, *counted));
        let seen = between(&before, counted);
        if now.since(since) < LOWER_AFTER || seen.samples < LOWER_SAMPLES_MIN {
            return None;
        }
        self.enough = Some((now, *counted));
        // A size between two counts as the smaller one, which more stacks go beyond.
        let few_beyond = |bytes: u32| {
            let at = COPIES.iter().rposition(|&copy| copy <= bytes).unwrap_or(0);
            seen.beyond[at] * 100 < seen.samples * CUT_AGAIN_PERCENT
        };
        let larger = COPIES.into_iter().filter(|&copy| copy > self.base);
        std::iter::once(self.base)
            .chain(larger)
            .find(|&bytes| few_beyond(bytes))
            .filter(|&bytes| bytes < self.in_force)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KIB: u32 = 1 << 10;

    /// A governor with what it has wanted and got at which second. It is shown, every five seconds,
    /// samples of which shares go beyond 16, 32 and 56 KiB.
    struct Run {
        governor: CopyGovernor,
        counted: CopyCounts,
        second: u64,
        steps: Vec<(u64, u32)>,
    }

    impl Run {
        fn new() -> Run {
            Run {
                governor: CopyGovernor::new(16 * KIB, 56 * KIB),
                counted: CopyCounts::default(),
                second: 0,
                steps: Vec::new(),
            }
        }

        fn seconds(&mut self, seconds: u64, samples: u64, deep: [u64; 3]) {
            for _ in 0..seconds / 5 {
                self.second += 5;
                self.counted.samples += samples * 5;
                let in_force = self.governor.in_force();
                for ((count, more), size) in self.counted.beyond[2..]
                    .iter_mut()
                    .zip(deep)
                    .zip([16, 32, 56])
                {
                    // Deeper than the copy is not seen to be so.
                    if size * KIB <= in_force {
                        *count += more * 5;
                    }
                    if size * KIB == in_force {
                        self.counted.cut += more * 5;
                    }
                }
                let now = MonotonicTime(self.second * 1_000_000_000);
                if let Some(bytes) = self.governor.observe(now, self.counted) {
                    self.governor.enter(bytes);
                    self.steps.push((self.second, bytes / KIB));
                }
            }
        }
    }

    #[test]
    fn where_stacks_are_cut_as_much_is_copied_as_can_be() {
        let mut run = Run::new();
        run.seconds(100, 100, [1, 0, 0]);
        assert_eq!(run.steps, []);
        run.seconds(20, 100, [5, 0, 0]);
        assert_eq!(run.steps.len(), 1);
        assert_eq!(run.steps[0].1, 56);
    }

    #[test]
    fn less_is_copied_again_after_five_minutes_in_which_that_was_enough() {
        let mut run = Run::new();
        run.seconds(600, 100, [50, 40, 0]);
        assert_eq!(
            run.steps.len(),
            1,
            "they need more than 32 KiB: {:?}",
            run.steps
        );
        run.seconds(700, 100, [50, 0, 0]);
        run.seconds(700, 100, [0, 0, 0]);
        let sizes: Vec<u32> = run.steps.iter().map(|step| step.1).collect();
        assert_eq!(sizes, [56, 32, 16], "{:?}", run.steps);
        assert!(!run.governor.is_raised());
    }

    #[test]
    fn a_deep_stack_now_and_then_does_not_keep_the_copy_large() {
        let mut run = Run::new();
        run.seconds(10, 20, [10, 0, 0]);
        for _ in 0..10 {
            run.seconds(60, 20, [0, 0, 0]);
            run.seconds(5, 20, [1, 0, 0]);
        }
        let sizes: Vec<u32> = run.steps.iter().map(|step| step.1).collect();
        assert_eq!(sizes, [56, 16]);
    }

    #[test]
    fn a_few_samples_say_nothing() {
        let mut run = Run::new();
        run.seconds(600, 1, [1, 1, 1]);
        assert_eq!(run.steps.len(), 1, "ten in ten seconds do");
        let mut governor = CopyGovernor::new(16 * KIB, 56 * KIB);
        let nine = |count| CopyCounts {
            samples: count,
            cut: count,
            beyond: [count; COPIES.len()],
        };
        assert_eq!(governor.observe(MonotonicTime(1), nine(0)), None);
        assert_eq!(governor.observe(MonotonicTime(2), nine(9)), None);
        assert_eq!(governor.observe(MonotonicTime(3), nine(10)), Some(56 * KIB));
    }

    #[test]
    fn what_cost_too_much_is_tried_again_later_and_later() {
        let mut governor = CopyGovernor::new(16 * KIB, 56 * KIB);
        let (mut counted, mut tries) = (CopyCounts::default(), Vec::new());
        for second in 1..3000 {
            counted.samples += 100;
            counted.cut += 100;
            let now = MonotonicTime(second * 1_000_000_000);
            if governor.observe(now, counted).is_some() {
                tries.push(second);
                governor.refused(now);
            }
        }
        let apart = tries.windows(2).map(|pair| (pair[1] - pair[0]) / 100);
        assert_eq!(apart.collect::<Vec<_>>(), [3, 6, 12]);
    }

    proptest! {
        /// Whatever is counted, it asks for what is configured and for a change alone.
        #[test]
        fn it_stays_within_what_is_configured(
            base in 0u32..57,
            max in 1u32..57,
            readings in prop::collection::vec((0u64..10_000, 0u64..10_000, any::<[u16; 5]>(), 1u64..400), 1..60)
        ) {
            let mut governor = CopyGovernor::new(base * KIB, max * KIB);
            let (mut counted, mut now) = (CopyCounts::default(), MonotonicTime(0));
            for (samples, cut, beyond, seconds) in readings {
                counted.samples += samples;
                counted.cut += cut.min(samples);
                for (count, more) in counted.beyond.iter_mut().zip(beyond) {
                    *count += u64::from(more).min(samples);
                }
                now = now.plus(Duration::from_secs(seconds));
                if let Some(bytes) = governor.observe(now, counted) {
                    prop_assert!(base > 0 && governor.allows(bytes));
                    prop_assert_ne!(bytes, governor.in_force());
                    governor.enter(bytes);
                }
            }
        }
    }
}
