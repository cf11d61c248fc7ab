//! What an engine adds up for an answer.

use super::Units;
use crate::store::{LabelSet, PressureSum, Resolution, Step, ThrottledCgroup};
use hashbrown::HashMap;
use profile::{Throttling, Value};

/// What an engine adds up of accounts.
#[derive(Clone, Debug)]
pub struct AccountSums {
    /// Time by step of each combination of kept labels: what cgroups ran without those below them.
    /// Readings of the two are a moment apart, so it may be below zero. Unit: nanoseconds.
    pub lines: HashMap<LabelSet, Vec<i128>>,
    /// See [`AccountedSeries::hosts`](crate::store::AccountedSeries::hosts).
    pub hosts: HashMap<String, Vec<u64>>,
    /// See [`AccountedSeries::pressure`](crate::store::AccountedSeries::pressure).
    pub pressure: HashMap<String, Vec<PressureSum>>,
    /// Cgroups that were held back, in any order.
    pub throttled: Vec<ThrottledCgroup>,
    /// See [`AccountedSeries::throttling_known`](crate::store::AccountedSeries::throttling_known).
    pub throttling_known: bool,
    /// What was read.
    pub resolution: Resolution,
}

/// An engine's sums for a series.
#[derive(Clone, Debug)]
pub struct SeriesSums {
    /// Weights by step of each combination of kept labels.
    pub lines: HashMap<LabelSet, Vec<u64>>,
    /// What all of them add up to.
    pub total: Value,
    /// Units of weights.
    pub units: Units,
    /// What was read.
    pub resolution: Resolution,
    /// What each step is made of.
    pub steps: Vec<Step>,
}

/// An engine's sums for one label set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LabelSum {
    /// Samples taken.
    pub taken: Value,
    /// Samples lost, an estimate.
    pub lost: Value,
    /// What the kernel accounts for these cgroups alone. Unit: nanoseconds.
    pub expected_ns: i128,
    /// The part of it that was not measured. Unit: nanoseconds.
    pub estimated_ns: i128,
    /// How their own limits held them back.
    pub throttling: Throttling,
}

impl std::ops::AddAssign for LabelSum {
    fn add_assign(&mut self, other: LabelSum) {
        self.taken += other.taken;
        self.lost += other.lost;
        self.expected_ns = self.expected_ns.saturating_add(other.expected_ns);
        self.estimated_ns = self.estimated_ns.saturating_add(other.estimated_ns);
        self.throttling += other.throttling;
    }
}

/// What an engine adds up for totals.
#[derive(Clone, Debug)]
pub struct LabelSums {
    /// By kept labels.
    pub rows: HashMap<LabelSet, LabelSum>,
    /// Units of weights.
    pub units: Units,
    /// What was read.
    pub resolution: Resolution,
}
