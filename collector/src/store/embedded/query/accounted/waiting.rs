//! Which cgroups their CPU limits held back, over all partitions of a range.
//!
//! Most are never held back. What those used has to be known all the same, because they may be held
//! back in another partition, so it is kept by a hash of their labels, and labels are made only of
//! those that were.

use super::super::super::dict::Dict;
use super::LabelSet;
use super::labels_of;
use crate::store::query::{Axis, QueryBudget};
use crate::store::{StoreError, ThrottledCgroup};
use crate::sync::read;
use ::profile::{LabelSetId, Throttling};
use hashbrown::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::RwLock;

/// Memory for one cgroup in a table. Unit: bytes.
const ENTRY_BYTES: usize = 64;

/// Sums of one partition while it is read, by its label sets.
pub(super) struct Throttled {
    axis: Axis,
    sums: HashMap<u32, Throttling>,
    steps: HashMap<u32, Vec<u64>>,
}

impl Throttled {
    pub(super) fn new(axis: Axis) -> Throttled {
        Throttled {
            axis,
            sums: HashMap::new(),
            steps: HashMap::new(),
        }
    }

    /// Adds the throttling of a label set in a step.
    pub(super) fn add(
        &mut self,
        step: usize,
        labels: u32,
        of: Throttling,
        budget: &mut QueryBudget<'_>,
    ) -> Result<(), StoreError> {
        if of == Throttling::default() {
            return Ok(());
        }
        match self.sums.get_mut(&labels) {
            Some(sum) => *sum += of,
            None => {
                budget.hold(ENTRY_BYTES)?;
                self.sums.insert(labels, of);
            }
        }
        if of.ns == 0 {
            return Ok(());
        }
        if !self.steps.contains_key(&labels) {
            budget.hold(self.axis.steps * size_of::<u64>() + ENTRY_BYTES)?;
            self.steps.insert(labels, vec![0; self.axis.steps]);
        }
        let line = self.steps.get_mut(&labels);
        if let Some(sum) = line.and_then(|line| line.get_mut(step)) {
            *sum = sum.saturating_add(of.ns);
        }
        Ok(())
    }

    /// The sums by labels instead of numbers of the partition, whose dictionary this is.
    pub(super) fn finish(
        mut self,
        dict: &RwLock<Dict>,
        budget: &mut QueryBudget<'_>,
    ) -> Result<FoundThrottled, StoreError> {
        let mut found = FoundThrottled::default();
        for (labels, sum) in self.sums {
            // Locked for each: whoever stores windows waits for it.
            let hash = hash_of(&read(dict), labels);
            *found.sums.entry(hash).or_default() += sum;
            if let Some(steps) = self.steps.remove(&labels) {
                let set = labels_of(&read(dict), labels);
                let bytes: usize = set
                    .iter()
                    .map(|(name, value)| name.len() + value.len())
                    .sum();
                budget.hold(bytes)?;
                found.steps.insert(hash, (set, steps));
            }
        }
        Ok(found)
    }
}

/// The same in all partitions, whatever order their dictionaries have labels in: a sum over them.
fn hash_of(dict: &Dict, labels: u32) -> u128 {
    if labels as usize >= dict.tables.label_sets.len() {
        return 0;
    }
    let hash = |pair: (&str, &str)| {
        // Twice, so that two cgroups never meet by chance.
        let half = |seed: u8| {
            let mut hasher = DefaultHasher::new();
            (seed, pair).hash(&mut hasher);
            u128::from(hasher.finish())
        };
        half(0) << 64 | half(1)
    };
    let pairs = dict.tables.labels(LabelSetId(labels));
    pairs.fold(0u128, |sum, pair| sum.wrapping_add(hash(pair)))
}

/// What partitions have, by a hash of the labels.
#[derive(Default)]
pub(super) struct FoundThrottled {
    sums: HashMap<u128, Throttling>,
    /// Of those that were held back.
    steps: HashMap<u128, (LabelSet, Vec<u64>)>,
}

impl FoundThrottled {
    /// Adds what another partition has.
    pub(super) fn add(&mut self, other: FoundThrottled, budget: &mut QueryBudget<'_>) {
        for (hash, sum) in other.sums {
            match self.sums.get_mut(&hash) {
                Some(own) => {
                    budget.release(ENTRY_BYTES);
                    *own += sum;
                }
                None => drop(self.sums.insert(hash, sum)),
            }
        }
        for (hash, (labels, steps)) in other.steps {
            match self.steps.get_mut(&hash) {
                Some((_, own)) => {
                    budget.release(steps.len() * size_of::<u64>() + ENTRY_BYTES);
                    own.iter_mut()
                        .zip(steps)
                        .for_each(|(sum, ns)| *sum = sum.saturating_add(ns));
                }
                None => drop(self.steps.insert(hash, (labels, steps))),
            }
        }
    }

    /// The cgroups that were held back, and whether anything is known at all.
    pub(super) fn finish(self) -> (Vec<ThrottledCgroup>, bool) {
        let known = !self.sums.is_empty();
        let cgroups = self.steps.into_iter().map(|(hash, (labels, steps))| {
            let sum = self.sums.get(&hash).copied().unwrap_or_default();
            ThrottledCgroup { labels, sum, steps }
        });
        (cgroups.collect(), known)
    }
}
