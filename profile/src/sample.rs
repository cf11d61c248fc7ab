//! The key and the values of one sample, and what the samples of a profile miss.

use crate::counters::counters;
use crate::labels::LabelSetId;
use crate::outcome::StackEnd;
use crate::stack::StackId;

/// What was counted under one key. Sums end at the largest number instead of starting again from 0:
/// see [`Value::is_capped`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Value {
    /// Number of samples.
    pub count: u64,
    /// What they stand for in [`Info::unit`](crate::Info::unit): the sum of their periods. CPU time
    /// in nanoseconds for
    /// `cpu-clock`. Stays right when the rate changes while a profile is taken.
    pub weight: u64,
}

impl Value {
    /// True for a sum that may be too small. In nanoseconds the limit is 584 CPU-years: 1000 hosts
    /// of 16 busy CPUs exceed it in 13 days. Stores give such sums in a coarser unit
    /// ([`crate::unit`]); if there is none, the display says so.
    pub fn is_capped(self) -> bool {
        self.weight == u64::MAX || self.count == u64::MAX
    }
}

impl std::ops::AddAssign for Value {
    fn add_assign(&mut self, other: Value) {
        self.count = self.count.saturating_add(other.count);
        self.weight = self.weight.saturating_add(other.weight);
    }
}

/// The key of a sample value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SampleKey {
    /// Labels of the samples.
    pub labels: LabelSetId,
    /// Their stack.
    pub stack: StackId,
    /// How the stack ended at its root end.
    pub end: StackEnd,
}

counters! {
    /// What was missed while a profile was taken, by cause. Unit: samples, unless stated otherwise.
    pub struct Quality {
        /// Samples that are in the profile.
        pub taken: u64,
        /// Samples of the idle loop, left out on purpose.
        pub idle: u64,
        /// Records the kernel could not place in a full ring buffer.
        pub lost: u64,
        /// Times the kernel throttled a sampling event. Unit: events.
        pub throttled: u64,
        /// Samples folded under `[other]` because a bound was reached.
        pub folded: u64,
        /// Samples with a stack that is known to be cut, for any reason: see
        /// [`StackEnd::is_truncated`].
        pub truncated: u64,
        /// Truncated samples that were cut by the depth limit. The unwinder could not go on with
        /// the others.
        pub depth_limit: u64,
        /// Samples with a leaf frame without a symbol.
        pub unnamed: u64,
        /// Damaged records, skipped.
        pub malformed: u64,
        /// Samples estimated to have been lost: the rows under `[lost]`, which `taken` does not
        /// count.
        pub lost_samples: u64,
        /// Samples taken while the daemon's budget had lowered the rate or the copy of the stack.
        pub reduced: u64,
        /// Records lost while the daemon came late to empty the rings, so that their size is not to
        /// blame.
        pub lost_late: u64,
    }
}

counters! {
    /// Statistics of the waits in a profile of [`OFF_CPU`](crate::OFF_CPU). Lengths are in
    /// nanoseconds.
    pub struct Waits {
        /// Waits with a known start and end.
        pub complete: u64,
        /// Their length.
        pub complete_ns: u64,
        /// Waits that end with their wake-up, because no record says when the thread ran again.
        pub estimated: u64,
        /// Their length up to the wake-up.
        pub estimated_ns: u64,
        /// Waits that had not ended when the capture did.
        pub ongoing: u64,
        /// Their length up to then.
        pub ongoing_ns: u64,
        /// Waits left out because no record says when they ended.
        pub dropped: u64,
        /// The most that they can have lasted.
        pub dropped_ns: u64,
        /// Waits in the profile with estimated outer callers: [`StackEnd::Alike`].
        pub alike: u64,
        /// Their length.
        pub alike_ns: u64,
        /// Waits in the profile with a stack that is not known to be complete.
        pub cut: u64,
        /// Their length.
        pub cut_ns: u64,
        /// Estimates of outer callers that a larger copy of the same wait could check.
        pub alike_checked: u64,
        /// Checked estimates that were wrong.
        pub alike_wrong: u64,
    }
}

impl Waits {
    /// Waits in the profile.
    pub fn taken(&self) -> u64 {
        self.complete
            .saturating_add(self.estimated)
            .saturating_add(self.ongoing)
    }

    /// Time of the waits in the profile. Unit: nanoseconds.
    pub fn taken_ns(&self) -> u64 {
        self.complete_ns
            .saturating_add(self.estimated_ns)
            .saturating_add(self.ongoing_ns)
    }
}
