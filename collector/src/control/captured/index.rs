//! What a capture has by labels and steps, without stacks, and a bounded memory of it for the
//! captures that are asked about most.

use super::slots::{TIMED_BYTES, each_step};
use crate::store::query::QueryBudget;
use crate::store::{LabelSet, StoreError, TimeRange, selects};
use crate::sync::lock;
use hashbrown::HashMap;
use profile::{LabelSetId, Profile, Quality, Selector, StackEnd, Value, key};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

/// Memory for all of them. Unit: bytes. One has some 200 bytes for each label set and 24 for each
/// of its steps. What has no room is read from its file for each question.
const BYTES_MAX: usize = 32 << 20;

/// Most captures whose damage was logged that are remembered: one that is forgotten is logged
/// again.
const DAMAGED_MAX: usize = 1024;

/// Sums of a label set.
pub(super) struct Row {
    /// Its labels.
    pub labels: LabelSet,
    /// Whether it is of what was lost.
    pub is_lost: bool,
    /// Start of a step and what it has, ordered. Unit: nanoseconds since the Unix epoch.
    steps: Vec<(i64, Value)>,
}

impl Row {
    /// Its steps in a range.
    pub fn steps(&self, range: TimeRange) -> &[(i64, Value)] {
        let first = |at: i64| self.steps.partition_point(|(step, _)| *step < at);
        let (from, to) = (first(range.start_unix_ns), first(range.end_unix_ns));
        &self.steps[from..to.max(from)]
    }
}

/// A capture by labels and steps.
pub(super) struct Index {
    rows: Vec<Row>,
    /// Unit of its weights.
    pub unit: String,
    /// What was missed.
    pub quality: Quality,
    /// Memory. Unit: bytes.
    pub bytes: usize,
}

impl Index {
    /// Adds up a capture that ran in `span`.
    ///
    /// # Errors
    /// When the query has no memory for it, or is given up.
    pub fn of(
        profile: &Profile,
        span: TimeRange,
        budget: &mut QueryBudget<'_>,
    ) -> Result<Index, StoreError> {
        let timed = profile.samples.len() * TIMED_BYTES;
        budget.hold(timed)?;
        let mut sums: HashMap<(LabelSetId, bool), HashMap<i64, Value>> = HashMap::new();
        each_step(
            profile,
            span,
            || budget.check(),
            |key, step, value| {
                let of = sums.entry((key.labels, key.end == StackEnd::Lost));
                *of.or_default().entry(step).or_default() += value;
            },
        )?;
        budget.release(timed);
        let rows = sums.into_iter().map(|((labels, is_lost), steps)| {
            let mut steps: Vec<_> = steps.into_iter().collect();
            steps.sort_unstable_by_key(|(step, _)| *step);
            let pairs = profile.dict.labels(labels);
            let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
            Row {
                labels: LabelSet::new(pairs),
                is_lost,
                steps,
            }
        });
        let rows: Vec<Row> = rows.collect();
        let bytes = |row: &Row| {
            let texts = row.labels.iter();
            let texts: usize = texts
                .map(|(name, value)| name.len() + value.len() + 48)
                .sum();
            texts + size_of::<Row>() + row.steps.capacity() * size_of::<(i64, Value)>()
        };
        Ok(Index {
            bytes: rows.iter().map(bytes).sum(),
            rows,
            unit: profile.info.unit.clone(),
            quality: profile.info.quality,
        })
    }

    /// Rows that a selector takes with something in a range.
    pub fn rows<'i>(
        &'i self,
        range: TimeRange,
        selector: &'i Selector,
    ) -> impl Iterator<Item = &'i Row> {
        let rows = self.rows.iter();
        rows.filter(move |row| selects(selector, &row.labels) && !row.steps(range).is_empty())
    }

    /// Names of the hosts of such rows: at least one, which may be empty, where there are rows.
    pub fn hosts<'i>(&'i self, range: TimeRange, selector: &'i Selector) -> BTreeSet<&'i str> {
        let rows = self.rows(range, selector);
        let mut hosts: BTreeSet<&str> = rows.map(|row| row.labels.get(key::HOST)).collect();
        if hosts.len() > 1 {
            hosts.remove("");
        }
        hosts
    }
}

/// Those that were used last. Clones are not made: all queries share one.
#[derive(Default)]
pub(super) struct Indexes(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// By number of the capture, with when each was last used.
    all: HashMap<u64, (Arc<Index>, u64)>,
    bytes: usize,
    uses: u64,
    damaged: BTreeSet<u64>,
}

impl Indexes {
    /// That of a capture, if it is known.
    pub fn get(&self, id: u64) -> Option<Arc<Index>> {
        let mut known = lock(&self.0);
        known.uses += 1;
        let now = known.uses;
        let (index, used) = known.all.get_mut(&id)?;
        *used = now;
        Some(index.clone())
    }

    /// Remembers one while there is room, in the place of those that nobody used for longest.
    pub fn keep(&self, id: u64, index: &Arc<Index>) {
        if index.bytes > BYTES_MAX / 4 {
            return;
        }
        let mut known = lock(&self.0);
        known.uses += 1;
        let now = known.uses;
        known.bytes += index.bytes;
        if let Some((before, _)) = known.all.insert(id, (index.clone(), now)) {
            known.bytes -= before.bytes;
        }
        while known.bytes > BYTES_MAX {
            let oldest = known.all.iter().min_by_key(|(_, (_, used))| *used);
            let Some(oldest) = oldest.map(|(id, _)| *id) else {
                break;
            };
            if let Some((gone, _)) = known.all.remove(&oldest) {
                known.bytes -= gone.bytes;
            }
        }
    }

    /// True the first time that a capture cannot be read.
    pub fn is_news(&self, id: u64) -> bool {
        let damaged = &mut lock(&self.0).damaged;
        if damaged.len() >= DAMAGED_MAX {
            damaged.pop_first();
        }
        damaged.insert(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_bytes(bytes: usize) -> Arc<Index> {
        Arc::new(Index {
            rows: Vec::new(),
            unit: String::new(),
            quality: Quality::default(),
            bytes,
        })
    }

    #[test]
    fn those_used_last_stay_within_the_bound() {
        let indexes = Indexes::default();
        for id in 1..=4 {
            indexes.keep(id, &of_bytes(BYTES_MAX / 4));
        }
        assert!(indexes.get(1).is_some());
        indexes.keep(5, &of_bytes(BYTES_MAX / 4));
        let known: Vec<u64> = (1..=5).filter(|&id| indexes.get(id).is_some()).collect();
        assert_eq!(known, [1, 3, 4, 5]);
        indexes.keep(6, &of_bytes(BYTES_MAX / 4 + 1));
        assert!(indexes.get(6).is_none(), "too large to push others out");
    }

    #[test]
    fn one_that_is_kept_again_counts_once() {
        let indexes = Indexes::default();
        for _ in 0..9 {
            indexes.keep(1, &of_bytes(BYTES_MAX / 4));
        }
        assert_eq!(lock(&indexes.0).bytes, BYTES_MAX / 4);
    }
}
