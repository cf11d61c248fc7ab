//! Merges one profile into another, and merges labels away.
//!
//! Merging is commutative and associative on contents: in whatever order windows or hosts are
//! merged, the samples and the [`Info`] are the same (ids differ, text does not).

use crate::dictionary::{Dictionary, Remap};
use crate::labels::LabelSetId;
use crate::profile::{Info, Profile};
use crate::sample::SampleKey;

/// Value of [`Info::event`] once profiles of different events were merged.
pub const MIXED_EVENTS: &str = "mixed";

/// Most causes in a merged profile; of thousands of hosts, the first ones in text order.
const CAUSES_MAX: usize = 8;

/// The causes of both, each once.
fn causes(left: &str, right: &str) -> String {
    let all = left
        .split(CAUSES_BETWEEN)
        .chain(right.split(CAUSES_BETWEEN));
    let all: std::collections::BTreeSet<&str> = all.filter(|cause| !cause.is_empty()).collect();
    let kept: Vec<&str> = all.into_iter().take(CAUSES_MAX).collect();
    kept.join(CAUSES_BETWEEN)
}

/// Separator between causes.
const CAUSES_BETWEEN: &str = "; ";

/// Why two profiles cannot become one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// Their weights are not the same quantity: nanoseconds and cycles have no sum.
    #[error("failed to merge profiles: one has weights in `{left}`, the other in `{right}`")]
    UnitMismatch {
        /// Unit of the profile merged into.
        left: String,
        /// Unit of the other.
        right: String,
    },
}

impl Info {
    /// Adds the facts of another profile; its samples are merged into this one's.
    ///
    /// The time range becomes the union (a range of length 0 that starts at 0 is not known and adds
    /// nothing), quality is summed, different events become [`MIXED_EVENTS`], different periods 0.
    /// An `Info` without a unit, of a range in which nothing was sampled, has no say in unit, event
    /// and period; a default one is neutral.
    ///
    /// # Errors
    /// When the units differ; `self` is unchanged then.
    pub fn merge(&mut self, other: &Info) -> Result<(), MergeError> {
        if *other == Info::default() {
            return Ok(());
        }
        if *self == Info::default() {
            self.clone_from(other);
            return Ok(());
        }
        if self.unit.is_empty() {
            self.unit.clone_from(&other.unit);
            self.event.clone_from(&other.event);
            self.period = other.period;
        } else if !other.unit.is_empty() {
            if self.unit != other.unit {
                return Err(MergeError::UnitMismatch {
                    left: self.unit.clone(),
                    right: other.unit.clone(),
                });
            }
            if self.event != other.event {
                self.event = MIXED_EVENTS.to_owned();
            }
            if self.period != other.period {
                self.period = 0;
            }
        }
        let known = |info: &Info| info.start_unix_ns != 0 || info.duration_ns != 0;
        if !known(self) {
            (self.start_unix_ns, self.duration_ns) = (other.start_unix_ns, other.duration_ns);
        } else if known(other) {
            let start = self.start_unix_ns.min(other.start_unix_ns);
            let end = self.end_unix_ns().max(other.end_unix_ns());
            self.start_unix_ns = start;
            self.duration_ns = (end - i128::from(start)).try_into().unwrap_or(u64::MAX);
        }
        self.quality += other.quality;
        self.coverage += other.coverage;
        self.waits += other.waits;
        self.waits_cause = causes(&self.waits_cause, &other.waits_cause);
        Ok(())
    }

    /// End of the time covered, wide enough for every start and length.
    fn end_unix_ns(&self) -> i128 {
        i128::from(self.start_unix_ns) + i128::from(self.duration_ns)
    }
}

/// Which labels stay when samples are grouped; samples that differ only in others are merged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupBy {
    /// Every label stays.
    All,
    /// These labels stay; an empty list merges all labels away.
    Keys(Vec<String>),
}

impl GroupBy {
    /// The grouping a request names: `*` anywhere in the list keeps all, no key keeps none.
    pub fn from_keys<S: AsRef<str>>(keys: &[S]) -> GroupBy {
        if keys.iter().any(|key| key.as_ref() == "*") {
            return GroupBy::All;
        }
        GroupBy::Keys(keys.iter().map(|key| key.as_ref().to_owned()).collect())
    }

    /// True when the label `key` stays.
    pub fn keeps(&self, key: &str) -> bool {
        match self {
            GroupBy::All => true,
            GroupBy::Keys(keys) => keys.iter().any(|kept| kept == key),
        }
    }

    /// The label set `id` of `source`, projected and interned in `target`. Not cached: callers keep
    /// the result per id.
    pub(crate) fn project(
        &self,
        source: &Dictionary,
        target: &mut Dictionary,
        id: LabelSetId,
    ) -> LabelSetId {
        target.intern_labels(source.labels(id).filter(|(key, _)| self.keeps(key)))
    }
}

impl Profile {
    /// Adds every sample of `other` to this profile.
    ///
    /// # Errors
    /// When the units differ; `self` is unchanged then.
    pub fn merge(&mut self, other: &Profile) -> Result<(), MergeError> {
        self.info.merge(&other.info)?;
        let mut remap = Remap::default();
        for (&key, &value) in &other.samples {
            self.add_from(&other.dict, &mut remap, key, value);
        }
        self.timestamps
            .merge(&mut self.dict, &other.timestamps, &other.dict, &mut remap);
        Ok(())
    }

    /// This profile with the labels that `group` does not keep merged away.
    pub fn group_by(&self, group: &GroupBy) -> Profile {
        let mut grouped = Profile {
            info: self.info.clone(),
            ..Profile::default()
        };
        let mut remap = Remap::default();
        let mut projected = vec![None; self.dict.label_sets.len()];
        let mut regroup = |key: SampleKey, dict: &mut Dictionary| SampleKey {
            labels: *projected[key.labels.0 as usize]
                .get_or_insert_with(|| group.project(&self.dict, dict, key.labels)),
            stack: remap.stack(&self.dict, dict, key.stack),
            end: key.end,
        };
        for (key, value) in self.sorted() {
            let key = regroup(key, &mut grouped.dict);
            grouped.add(key, value);
        }
        grouped.timestamps.clone_from(&self.timestamps);
        for timestamp in &mut grouped.timestamps.list {
            timestamp.key = regroup(timestamp.key, &mut grouped.dict);
        }
        grouped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Quality;

    fn info(start: i64, duration: u64) -> Info {
        Info {
            start_unix_ns: start,
            duration_ns: duration,
            event: "cpu-clock".into(),
            unit: "nanoseconds".into(),
            period: 10,
            ..Info::default()
        }
    }

    #[test]
    fn time_ranges_are_united() {
        let mut left = info(100, 10);
        left.merge(&info(50, 20)).unwrap();
        assert_eq!((left.start_unix_ns, left.duration_ns), (50, 60));
    }

    #[test]
    fn unknown_time_adds_nothing() {
        let mut left = info(0, 0);
        left.merge(&info(50, 20)).unwrap();
        assert_eq!((left.start_unix_ns, left.duration_ns), (50, 20));
        left.merge(&info(0, 0)).unwrap();
        assert_eq!((left.start_unix_ns, left.duration_ns), (50, 20));
    }

    #[test]
    fn extreme_times_do_not_overflow() {
        let mut left = info(i64::MIN, 1);
        left.merge(&info(i64::MAX, u64::MAX)).unwrap();
        assert_eq!(left.duration_ns, u64::MAX);
    }

    #[test]
    fn units_do_not_mix() {
        let mut left = info(1, 1);
        let right = Info {
            unit: "cycles".into(),
            ..info(2, 2)
        };
        let error = left.merge(&right).unwrap_err();
        assert_eq!(
            error.to_string(),
            "failed to merge profiles: one has weights in `nanoseconds`, the other in `cycles`"
        );
        assert_eq!(left, info(1, 1));
    }

    #[test]
    fn a_range_in_which_nothing_was_sampled_has_no_unit_to_differ() {
        let empty = Info {
            start_unix_ns: 1,
            duration_ns: 1,
            quality: Quality {
                idle: 3,
                ..Quality::default()
            },
            ..Info::default()
        };
        let (mut left, mut right) = (info(2, 2), empty.clone());
        left.merge(&empty).unwrap();
        right.merge(&info(2, 2)).unwrap();
        assert_eq!(left, right);
        assert_eq!((left.unit.as_str(), left.period), ("nanoseconds", 10));
        assert_eq!((left.start_unix_ns, left.quality.idle), (1, 3));
    }

    #[test]
    fn a_different_event_or_period_is_said() {
        let mut left = info(1, 1);
        left.merge(&Info {
            event: "task-clock".into(),
            period: 20,
            ..info(1, 1)
        })
        .unwrap();
        assert_eq!((left.event.as_str(), left.period), ("mixed", 0));
    }
}
