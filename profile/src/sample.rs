//! Profiles: sample values keyed by labels, stack and how the stack ended.

use crate::counters::counters;
use crate::dictionary::{Dictionary, Remap};
use crate::labels::LabelSetId;
use crate::ledger::Coverage;
use crate::moments::Moments;
use crate::outcome::StackEnd;
use crate::stack::StackId;
use hashbrown::HashMap;

/// What was counted under one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Value {
    /// Number of samples.
    pub count: u64,
    /// What they stand for in [`Info::unit`]: the sum of their periods. CPU time in nanoseconds for
    /// `cpu-clock`. Stays right when the rate changes while a profile is taken.
    pub weight: u64,
}

impl std::ops::AddAssign for Value {
    fn add_assign(&mut self, other: Value) {
        self.count = self.count.saturating_add(other.count);
        self.weight = self.weight.saturating_add(other.weight);
    }
}

/// What a sample value is kept under.
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
    /// What was missed while a profile was taken, each by its cause. Unit: samples, unless said.
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
        /// Samples whose stack is known to be cut, for whatever cause: see [`StackEnd::is_truncated`].
        pub truncated: u64,
        /// Of those: cut by the depth limit. The unwinder could not go on with the others.
        pub depth_limit: u64,
        /// Samples whose leaf frame has no symbol.
        pub unnamed: u64,
        /// Damaged records, skipped.
        pub malformed: u64,
        /// Samples estimated to have been lost: the rows under `[lost]`, which `taken` does not count.
        pub lost_samples: u64,
        /// Samples taken while the daemon's budget had lowered the rate or the copy of the stack.
        pub reduced: u64,
        /// Of the records lost: while the daemon came late to empty the rings, so that their size is not to
        /// blame.
        pub lost_late: u64,
    }
}

/// Facts about a profile as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Info {
    /// Begin of the time covered, nanoseconds since the Unix epoch.
    pub start_unix_ns: i64,
    /// Length of the time covered, begin to end, in nanoseconds.
    pub duration_ns: u64,
    /// The event that was sampled: `cpu-clock`, `cycles`.
    pub event: String,
    /// Unit of [`Value::weight`]: `nanoseconds` or `cycles`.
    pub unit: String,
    /// Weight of one sample at the configured rate; 0 when it varies.
    pub period: u64,
    /// What is missing.
    pub quality: Quality,
    /// What the kernel's own accounting says of the same CPU time.
    pub coverage: Coverage,
}

/// The event whose samples are waits. Their weight is time, but no CPU time.
pub const OFF_CPU: &str = "off-cpu";

impl Info {
    /// True when a sample is a wait, and its weight how long it was.
    pub fn is_waiting(&self) -> bool {
        self.event == OFF_CPU
    }

    /// True when samples stand for different numbers of what happened, as those of an event by rate do: counts
    /// of samples then have no meaning of their own.
    pub fn weighs_apart(&self) -> bool {
        self.period == 0 && !matches!(self.unit.as_str(), "" | "nanoseconds" | "samples")
    }

    /// What the weight is in words: `CPU time`, `Time waited`, or its unit.
    pub fn weighs(&self) -> &str {
        match self.unit.as_str() {
            "nanoseconds" if self.is_waiting() => "Time waited",
            "nanoseconds" => "CPU time",
            "" => "Weight",
            unit => unit,
        }
    }
}

/// Samples with the dictionary that gives their ids meaning.
#[derive(Clone, Default)]
pub struct Profile {
    /// Strings, frames, stacks and label sets.
    pub dict: Dictionary,
    /// The samples. Iteration order is arbitrary; see [`Profile::sorted`].
    pub samples: HashMap<SampleKey, Value>,
    /// Facts about the whole.
    pub info: Info,
    /// When samples were taken, as far as that was kept.
    pub moments: Moments,
}

impl Profile {
    /// Adds to the value under `key`, whose ids are of this profile's dictionary.
    pub fn add(&mut self, key: SampleKey, value: Value) {
        *self.samples.entry(key).or_default() += value;
    }

    /// Adds a sample of another dictionary; `remap` is the one kept for that dictionary.
    pub fn add_from(
        &mut self,
        source: &Dictionary,
        remap: &mut Remap,
        key: SampleKey,
        value: Value,
    ) {
        let key = remap.key(source, &mut self.dict, key);
        self.add(key, value);
    }

    /// The sum of all sample values.
    pub fn total(&self) -> Value {
        self.samples
            .values()
            .fold(Value::default(), |mut sum, &value| {
                sum += value;
                sum
            })
    }

    /// Heap memory held, in bytes, without that of the texts in [`Info`].
    pub fn heap_bytes(&self) -> usize {
        self.dict.heap_bytes() + self.samples.allocation_size() + self.moments.heap_bytes()
    }

    /// The samples in key order: the same profile gives the same order.
    pub fn sorted(&self) -> Vec<(SampleKey, Value)> {
        let mut all: Vec<_> = self
            .samples
            .iter()
            .map(|(&key, &value)| (key, value))
            .collect();
        all.sort_unstable_by_key(|&(key, _)| key);
        all
    }
}
