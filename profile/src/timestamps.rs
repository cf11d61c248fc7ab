//! The times at which samples were taken, which sums do not contain.
//!
//! They are kept for captures and for the last minutes of the flight recorder; older windows have
//! none. For the time they cover, timestamps repeat what the samples of the profile say in sum, so
//! they are never added to them.

use crate::dictionary::{Dictionary, Remap};
use crate::sample::SampleKey;

/// One sample and when it was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp {
    /// Time since [`Timestamps::start_unix_ns`]; of a wait, its end. Unit: nanoseconds.
    pub at_ns: u64,
    /// What was sampled, with ids of the profile's dictionary.
    pub key: SampleKey,
    /// Its weight, in the profile's unit.
    pub weight: u64,
}

/// Samples in order of time, and the time they cover.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Timestamps {
    /// Start of the time covered, nanoseconds since the Unix epoch.
    pub start_unix_ns: i64,
    /// Its length; 0: no times were kept. Unit: nanoseconds.
    pub duration_ns: u64,
    /// Samples in that time whose moment did not fit.
    pub dropped: u64,
    /// The samples, oldest first.
    pub list: Vec<Timestamp>,
}

impl Timestamps {
    /// True when no times were kept. With times kept there may still be no sample.
    pub fn is_absent(&self) -> bool {
        self.duration_ns == 0 && self.list.is_empty()
    }

    /// Leaves out when samples were taken and counts them as dropped: how many these were. The time
    /// covered stays.
    pub fn shed(&mut self) -> u64 {
        let shed = std::mem::take(&mut self.list).len() as u64;
        self.dropped = self.dropped.saturating_add(shed);
        shed
    }

    /// Heap memory held, in bytes.
    pub fn heap_bytes(&self) -> usize {
        self.list.capacity() * size_of::<Timestamp>()
    }

    /// End of the time covered.
    fn end_unix_ns(&self) -> i128 {
        i128::from(self.start_unix_ns) + i128::from(self.duration_ns)
    }

    /// Adds those of another dictionary, in order of time; the time covered becomes the union.
    pub(crate) fn merge(
        &mut self,
        dict: &mut Dictionary,
        other: &Timestamps,
        source: &Dictionary,
        remap: &mut Remap,
    ) {
        if other.is_absent() {
            return;
        }
        if self.is_absent() {
            (self.start_unix_ns, self.duration_ns) = (other.start_unix_ns, other.duration_ns);
        }
        let start = self.start_unix_ns.min(other.start_unix_ns);
        let end = self.end_unix_ns().max(other.end_unix_ns());
        let behind = |from: i64| u64::try_from(i128::from(from) - i128::from(start)).unwrap_or(0);
        let (mine, theirs) = (behind(self.start_unix_ns), behind(other.start_unix_ns));
        for timestamp in &mut self.list {
            timestamp.at_ns = timestamp.at_ns.saturating_add(mine);
        }
        self.list
            .extend(other.list.iter().map(|timestamp| Timestamp {
                at_ns: timestamp.at_ns.saturating_add(theirs),
                key: remap.key(source, dict, timestamp.key),
                weight: timestamp.weight,
            }));
        self.list.sort_by_key(|timestamp| timestamp.at_ns);
        self.start_unix_ns = start;
        self.duration_ns = (end - i128::from(start)).try_into().unwrap_or(u64::MAX);
        self.dropped = self.dropped.saturating_add(other.dropped);
    }
}

impl Remap {
    /// A sample's key of `source` in `target`.
    pub(crate) fn key(
        &mut self,
        source: &Dictionary,
        target: &mut Dictionary,
        key: SampleKey,
    ) -> SampleKey {
        SampleKey {
            labels: self.label_set(source, target, key.labels),
            stack: self.stack(source, target, key.stack),
            end: key.end,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::StackEnd;
    use crate::stack::StackId;
    use crate::{FrameKind, FrameRef, GroupBy, Profile};

    /// A profile of one second from `start`, with a sample of each function at its time.
    fn of(start: i64, samples: &[(u64, &str)]) -> Profile {
        let mut profile = Profile::default();
        profile.info.start_unix_ns = start;
        profile.info.duration_ns = 1_000;
        profile.info.unit = "nanoseconds".into();
        profile.timestamps.start_unix_ns = start;
        profile.timestamps.duration_ns = 1_000;
        for &(at_ns, function) in samples {
            let frame = profile.dict.intern_frame(FrameRef {
                kind: FrameKind::Native,
                function,
                ..FrameRef::default()
            });
            let key = SampleKey {
                labels: profile.dict.intern_labels([("comm", function)]),
                stack: profile.dict.stacks.child(StackId::EMPTY, frame),
                end: StackEnd::Complete,
            };
            let weight = 10;
            profile.add(key, crate::Value { count: 1, weight });
            profile
                .timestamps
                .list
                .push(Timestamp { at_ns, key, weight });
        }
        profile
    }

    fn shown(profile: &Profile) -> Vec<(u64, String)> {
        let name = |timestamp: &Timestamp| {
            let (_, frame) = profile.dict.stacks.node(timestamp.key.stack).unwrap();
            profile.dict.frame(frame).function.to_owned()
        };
        let list = &profile.timestamps.list;
        list.iter().map(|at| (at.at_ns, name(at))).collect()
    }

    #[test]
    fn merged_moments_stand_in_order_of_time() {
        let mut left = of(5_000, &[(0, "b"), (900, "d")]);
        left.merge(&of(4_500, &[(100, "a"), (700, "c")])).unwrap();
        let found = shown(&left);
        let found: Vec<_> = found
            .iter()
            .map(|(at, name)| (*at, name.as_str()))
            .collect();
        assert_eq!(found, [(100, "a"), (500, "b"), (700, "c"), (1_400, "d")]);
        assert_eq!(left.timestamps.start_unix_ns, 4_500);
        assert_eq!(left.timestamps.duration_ns, 1_500);
    }

    #[test]
    fn a_profile_without_times_adds_none() {
        let mut left = of(5_000, &[(1, "a")]);
        let mut other = of(4_000, &[(1, "b")]);
        other.timestamps = Timestamps::default();
        left.merge(&other).unwrap();
        assert_eq!(left.timestamps.start_unix_ns, 5_000);
        assert_eq!((left.timestamps.list.len(), left.total().count), (1, 2));
    }

    #[test]
    fn a_part_has_what_was_sampled_in_its_time() {
        let whole = of(5_000, &[(0, "a"), (100, "b"), (200, "b"), (300, "c")]);
        let part = whole.between(100, 300);
        assert_eq!(shown(&part), [(0, "b".to_owned()), (100, "b".to_owned())]);
        let info = &part.info;
        assert_eq!((info.start_unix_ns, info.duration_ns), (5_100, 200));
        assert_eq!((part.total().count, part.total().weight), (2, 20));
        assert_eq!(info.quality.taken, 2);
    }

    #[test]
    fn grouping_keeps_the_moments() {
        let grouped = of(5_000, &[(0, "a"), (100, "b")]).group_by(&GroupBy::Keys(Vec::new()));
        assert_eq!(shown(&grouped).len(), 2);
        assert_eq!(grouped.timestamps.duration_ns, 1_000);
        let labels = grouped.timestamps.list.iter().map(|at| at.key.labels.0);
        assert_eq!(labels.collect::<Vec<_>>(), [0, 0]);
    }
}
