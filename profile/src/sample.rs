//! Profiles: sample values keyed by labels, stack and how the stack ended.

use crate::counters::counters;
use crate::dictionary::{Dictionary, Remap};
use crate::frame::{FrameKind, FrameRef};
use crate::labels::LabelSetId;
use crate::ledger::Coverage;
use crate::moments::Moments;
use crate::outcome::StackEnd;
use crate::stack::StackId;
use crate::strings::StrId;
use crate::unit::is_time;
use hashbrown::HashMap;

/// What was counted under one key. Sums end at the largest number instead of starting again from 0:
/// see [`Value::is_capped`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Value {
    /// Number of samples.
    pub count: u64,
    /// What they stand for in [`Info::unit`]: the sum of their periods. CPU time in nanoseconds for
    /// `cpu-clock`. Stays right when the rate changes while a profile is taken.
    pub weight: u64,
}

impl Value {
    /// True for a sum that may be more than it says. In nanoseconds that is more than 584
    /// CPU-years: 1000 hosts of 16 busy CPUs pass it in 13 days. Stores tell such sums in a coarser
    /// unit ([`crate::unit`]); where there is none, whoever shows it says so.
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

counters! {
    /// What is known of the waits that a profile of [`OFF_CPU`] is made of. Lengths are in
    /// nanoseconds.
    pub struct Waits {
        /// Waits whose begin and end were seen.
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
        /// Waits in the profile whose outer callers are estimated: [`StackEnd::Alike`].
        pub alike: u64,
        /// Their length.
        pub alike_ns: u64,
        /// Waits in the profile whose stack is not known to be complete.
        pub cut: u64,
        /// Their length.
        pub cut_ns: u64,
        /// Estimates of outer callers that a larger copy of the same wait could check.
        pub alike_checked: u64,
        /// Of those: wrong.
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

/// Facts about a profile as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Info {
    /// Begin of the time covered, nanoseconds since the Unix epoch.
    pub start_unix_ns: i64,
    /// Length of the time covered, begin to end, in nanoseconds.
    pub duration_ns: u64,
    /// The event that was sampled: `cpu-clock`, `cycles`.
    pub event: String,
    /// Unit of [`Value::weight`]: `nanoseconds` or `cycles`; of sums over a fleet that do not fit
    /// the coarser one, see [`crate::unit`].
    pub unit: String,
    /// Weight of one sample at the configured rate; 0 when it varies.
    pub period: u64,
    /// What is missing.
    pub quality: Quality,
    /// What the kernel's own accounting says of the same CPU time.
    pub coverage: Coverage,
    /// Of a profile of waits: what is known of them; else zero.
    pub waits: Waits,
    /// Why the ends of some waits were not seen, and on which CPUs; empty when all were.
    pub waits_cause: String,
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
        self.period == 0 && !matches!(self.unit.as_str(), "" | "samples") && !is_time(&self.unit)
    }

    /// What the weight is in words: `CPU time`, `Time waited`, or its unit.
    pub fn weighs(&self) -> &str {
        match self.unit.as_str() {
            unit if is_time(unit) && self.is_waiting() => "Time waited",
            unit if is_time(unit) => "CPU time",
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

    /// True when a frame of a sample says which module it is of.
    pub fn has_modules(&self) -> bool {
        let mut frames = self.dict.frames.as_slice().iter();
        frames.any(|frame| frame.module != StrId::EMPTY)
    }

    /// The same profile with frames that have nothing but their names; only what stands for
    /// something else than code keeps its kind.
    pub fn by_name_alone(&self) -> Profile {
        let mut bare = Profile {
            info: self.info.clone(),
            ..Profile::default()
        };
        let mut path = Vec::new();
        for (key, value) in self.sorted() {
            self.dict.stacks.root_first(key.stack, &mut path);
            let mut stack = StackId::EMPTY;
            for &frame in &path {
                let FrameRef { kind, function, .. } = self.dict.frame(frame);
                let frame = bare.dict.intern_frame(FrameRef {
                    kind: match kind {
                        FrameKind::Synthetic => kind,
                        _ => FrameKind::Native,
                    },
                    function,
                    ..FrameRef::default()
                });
                stack = bare.dict.stacks.child(stack, frame);
            }
            let labels = bare.dict.intern_labels(self.dict.labels(key.labels));
            let key = SampleKey {
                labels,
                stack,
                end: key.end,
            };
            bare.add(key, value);
        }
        bare
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
        // In the order of the key, compared as one number.
        all.sort_unstable_by_key(|&(SampleKey { labels, stack, end }, _)| {
            (u64::from(labels.0) << 32 | u64::from(stack.0), end)
        });
        all
    }
}
