//! A profile: samples, the dictionary of their ids, and facts about all of it.

use crate::coverage::Coverage;
use crate::dictionary::{Dictionary, Remap};
use crate::frame::{FrameKind, FrameRef};
use crate::quality::count_quality;
use crate::sample::{Quality, SampleKey, Value, Waits};
use crate::stack::StackId;
use crate::strings::StrId;
use crate::timestamps::{Timestamp, Timestamps};
use crate::unit::{coarser, is_time, rescaled};
use hashbrown::HashMap;

/// Facts about a complete profile.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Info {
    /// Start of the time covered, nanoseconds since the Unix epoch.
    pub start_unix_ns: i64,
    /// Length of the time covered, start to end, in nanoseconds.
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
    /// Statistics of the waits, in a profile of waits; otherwise zero.
    pub waits: Waits,
    /// Why the ends of some waits were not seen, and on which CPUs; empty when all were.
    pub waits_cause: String,
}

/// The event with waits as samples. Their weight is time, but not CPU time.
pub const OFF_CPU: &str = "off-cpu";

impl Info {
    /// True when a sample is a wait, and its weight how long it was.
    pub fn is_waiting(&self) -> bool {
        self.event == OFF_CPU
    }

    /// True when samples stand for different numbers of what happened, as waits do, those of an
    /// event by rate, and bytes of a heap: counts of samples then have no meaning of their own.
    pub fn has_variable_weight(&self) -> bool {
        match self.unit.as_str() {
            "" | "samples" => false,
            unit if is_time(unit) => !self.is_cpu_time(),
            // The period of a heap is a mean.
            "bytes" => true,
            _ => self.period == 0,
        }
    }

    /// True when weights are CPU time. Profiles of others may be of other time, such as `wall`.
    pub fn is_cpu_time(&self) -> bool {
        let event = self.event.as_str();
        is_time(&self.unit) && matches!(event, "" | "cpu" | "cpu-clock" | "task-clock")
    }

    /// What the weight is in words: `CPU time`, `Time waited`, `Time`, or its unit.
    pub fn weight_label(&self) -> &str {
        match self.unit.as_str() {
            unit if is_time(unit) && self.is_waiting() => "Time waited",
            _ if self.is_cpu_time() => "CPU time",
            unit if is_time(unit) => "Time",
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
    /// Facts about the complete profile.
    pub info: Info,
    /// When samples were taken, as far as that was kept.
    pub timestamps: Timestamps,
}

impl Profile {
    /// Adds to the value under `key`, which has ids of this profile's dictionary.
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
        self.dict.heap_bytes() + self.samples.allocation_size() + self.timestamps.heap_bytes()
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

impl Profile {
    /// The samples of `from..until` of the time the timestamps cover, as a profile of their own,
    /// with their timestamps. Unit: nanoseconds since [`Timestamps::start_unix_ns`].
    ///
    /// What was missed is known only for the complete profile, so the part's quality has only what
    /// its samples show.
    pub fn between(&self, from: u64, until: u64) -> Profile {
        let list = &self.timestamps.list;
        let first = list.partition_point(|timestamp| timestamp.at_ns < from);
        let last = list
            .partition_point(|timestamp| timestamp.at_ns < until)
            .max(first);
        let mut part = Profile {
            dict: self.dict.clone(),
            info: self.info.clone(),
            ..Profile::default()
        };
        let start = i64::try_from(from).unwrap_or(i64::MAX);
        part.info.start_unix_ns = self.timestamps.start_unix_ns.saturating_add(start);
        part.info.duration_ns = until.saturating_sub(from);
        part.info.coverage = Coverage::default();
        part.info.quality = Quality::default();
        part.timestamps = Timestamps {
            start_unix_ns: part.info.start_unix_ns,
            duration_ns: part.info.duration_ns,
            dropped: 0,
            list: Vec::with_capacity(last - first),
        };
        for timestamp in &list[first..last] {
            let value = Value {
                count: 1,
                weight: timestamp.weight,
            };
            part.add(timestamp.key, value);
            count_quality(&mut part.info.quality, &part.dict, timestamp.key, 1);
            part.timestamps.list.push(Timestamp {
                at_ns: timestamp.at_ns - from,
                ..*timestamp
            });
        }
        part
    }
}

impl Profile {
    /// Weighs the samples in the coarser unit, each rounded to the nearest. Nothing changes where
    /// the unit has none.
    pub fn rescale(&mut self) {
        let Some(unit) = coarser(&self.info.unit) else {
            return;
        };
        unit.clone_into(&mut self.info.unit);
        if self.info.period > 0 {
            // 0 would say that it varied.
            self.info.period = rescaled(self.info.period).max(1);
        }
        if is_time(unit) {
            self.info.coverage = self.info.coverage.rescaled();
        }
        for value in self.samples.values_mut() {
            *value = value.rescaled();
        }
        for timestamp in &mut self.timestamps.list {
            timestamp.weight = rescaled(timestamp.weight);
        }
    }
}

/// Converts two profiles to one unit if one uses the coarser unit of the other. Unrelated units
/// stay, and the profiles cannot be compared.
pub fn equalize(left: &mut Profile, right: &mut Profile) {
    if coarser(&left.info.unit).is_some_and(|unit| unit == right.info.unit) {
        left.rescale();
    } else if coarser(&right.info.unit).is_some_and(|unit| unit == left.info.unit) {
        right.rescale();
    }
}
