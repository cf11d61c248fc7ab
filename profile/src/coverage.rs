//! Coverage: how much of the CPU time in the kernel's accounting was sampled.

use crate::counters::counters;

counters! {
    /// The kernel's accounting for a complete profile. Its times are in nanoseconds, or in
    /// microseconds if the weights of the profile are in microseconds: see [`crate::unit`].
    pub struct Coverage {
        /// See [`Expected::ns`](crate::ledger::Expected::ns); 0 when not known, as for selections
        /// that are not about cgroups.
        pub expected_ns: u64,
        /// See [`Expected::estimated_ns`](crate::ledger::Expected::estimated_ns).
        pub estimated_ns: u64,
        /// See [`Expected::samples`](crate::ledger::Expected::samples).
        pub expected_samples: u64,
        /// CPU time of the samples that were taken; those under `[lost]` are not. Unit:
        /// nanoseconds.
        pub taken_ns: u64,
        /// Windows that were added up.
        pub windows: u64,
        /// Windows for which there is no accounting at all, the open one among them.
        pub windows_unmeasured: u64,
    }
}

/// CPU time below which nothing is concluded from what of it was sampled. Unit: nanoseconds. A
/// second is 99 samples at the default rate, of which chance never leaves out half.
const MEASURED_NS_MIN: u64 = 1_000_000_000;

impl Coverage {
    /// The part of the CPU time the kernel accounts that was sampled; `None` when nothing was
    /// measured.
    ///
    /// Sampling error takes it above 1 as often as below.
    pub fn share(&self) -> Option<f64> {
        share(self.taken_ns, self.expected_ns, self.estimated_ns)
    }

    /// True when more than half of what was measured was not sampled, for whatever cause. Never of
    /// less than a second: on an idle machine the kernel's accounting is as coarse as the sampling.
    pub fn misses_most(&self) -> bool {
        self.measured_ns() >= MEASURED_NS_MIN && self.share().is_some_and(|share| share < 0.5)
    }

    /// CPU time that was really measured. Unit: nanoseconds.
    pub fn measured_ns(&self) -> u64 {
        self.expected_ns.saturating_sub(self.estimated_ns)
    }
}

/// The part of the time really measured that was taken; `None` when nothing was measured.
pub(crate) fn share(taken_ns: u64, expected_ns: u64, estimated_ns: u64) -> Option<f64> {
    let measured = expected_ns.saturating_sub(estimated_ns);
    let taken = taken_ns.saturating_sub(estimated_ns);
    (measured > 0).then(|| taken as f64 / measured as f64)
}
