//! Merged profiles: combines sums of samples from each dictionary into one profile through its
//! names.

use super::activity::AnswerFacts;
use super::fold::{STACK_BYTES, callers_kept, parents, prune};
use super::quality::quality;
use super::{BatchDict, QueryBudget, SampleBatch, WindowSource};
use crate::store::{Limits, QueryResult, Scope, StoreError, TimeRange};
use hashbrown::HashMap;
use profile::{
    Dictionary, Info, LabelSetId, Profile, Query, QueryRunner, SampleKey, Selector, StackEnd,
    StackId, Value,
};

/// Samples put into an answer between looks at the clock, and before pushes get their turn.
pub(super) const SLICE: usize = 8192;

/// With fewer samples than one stack in so many has, no table by stack is made.
const DENSE_SHARE: usize = 8;

/// Taken for each sample of a batch in the answer. Unit: bytes.
const SAMPLE_BYTES: usize = 48;

/// See [`StoreQueries::profile`](crate::store::StoreQueries::profile).
pub(super) fn profile<S: WindowSource>(
    source: &S,
    range: TimeRange,
    query: &Query,
    limits: &Limits,
) -> Result<QueryResult<Profile>, StoreError> {
    let mut budget = QueryBudget::new(limits);
    budget.check()?;
    let rest = unselected(query);
    let mut merge = Merge {
        nodes: limits.nodes,
        folds: query.frame_filters().is_empty(),
        runner: QueryRunner::new(&rest),
        info: Info::default(),
        folded: Folded::default(),
    };
    let read = source.samples(range, query, &mut budget, &mut |batch, budget| {
        merge.batch(batch, budget)
    })?;
    let Merge {
        runner,
        mut info,
        mut folded,
        ..
    } = merge;
    let scope = Scope {
        range: read.covered,
        selector: query.selector().clone(),
    };
    let facts = AnswerFacts {
        resolution: read.resolution,
        total: Value::default(),
        unit: info.unit.clone(),
    };
    let mut quality = quality(source, &scope, facts, &mut budget)?;
    info.quality = quality.sampling;
    quality.named_later = runner.named_later();
    let mut answer = runner.finish(info);
    quality.total = answer.total();
    quality.sampling = answer.info.quality;
    budget.check()?;
    prune(&mut answer, limits.nodes, |key, value| {
        let before = folded.by_key.get(key).copied().unwrap_or(0);
        let moved = value.weight.saturating_sub(before);
        folded.weight = folded.weight.saturating_add(moved);
    });
    budget.check()?;
    quality.pruned_weight = folded.weight;
    Ok(QueryResult {
        data: answer,
        quality,
    })
}

/// What is left of a query once its samples were selected: sources group, so the labels of samples
/// need not have those that they were selected by.
fn unselected(query: &Query) -> Query {
    let filters = query.frame_filters().to_vec();
    let by = query.group_by().clone();
    // Never more filters than the query has.
    Query::new(Selector::default(), filters, by).unwrap_or_else(|_| query.clone())
}

/// Weight that was moved to callers.
#[derive(Default)]
struct Folded {
    weight: u64,
    /// What of a sample of the answer came there by moving, when it may move once more.
    by_key: HashMap<SampleKey, u64>,
}

/// An answer on its way.
struct Merge<'q> {
    nodes: usize,
    /// What filters make of frames is only known when they were applied: without them stacks are
    /// folded before.
    folds: bool,
    runner: QueryRunner<'q>,
    info: Info,
    folded: Folded,
}

impl Merge<'_> {
    fn batch<D: BatchDict>(
        &mut self,
        batch: SampleBatch<D>,
        budget: &mut QueryBudget<'_>,
    ) -> Result<(), StoreError> {
        for kind in &batch.kinds {
            self.info.merge(kind)?;
        }
        self.runner.next_dictionary();
        let samples: usize = batch.lists.iter().map(|(_, list)| list.len()).sum();
        let stacks = batch.dict.read(|dict, _| dict.stacks.len());
        budget.hold(samples * SAMPLE_BYTES + stacks * 8)?;
        let stays = self.fold(&batch, budget)?;
        let most = if stays.is_some() { self.nodes } else { samples };
        self.runner.reserve(samples.min(most));
        let several = batch.is_one_of_several;
        for (labels, mut list) in batch.lists {
            if let Some(stays) = stays.as_deref().filter(|_| !several) {
                self.add_up(&batch.dict, &labels, &mut list, stays, budget)?;
            }
            for slice in list.chunks(SLICE) {
                budget.check()?;
                batch.dict.read(|dict, leaves| {
                    for &(kept, leaf, value) in slice {
                        if let Some(&(stack, end)) = leaves.get(leaf as usize) {
                            let labels = labels[kept as usize];
                            let key = SampleKey { labels, stack, end };
                            self.sample(dict, key, (stays.as_deref(), several), value);
                        }
                    }
                });
            }
        }
        Ok(())
    }

    /// Adds up what is kept under the same stack before it is put into the answer, one label set
    /// after the other: a table by stack is faster than one by key. What it leaves in `list` is of
    /// other ends, or of label sets with too few samples for such a table.
    fn add_up(
        &mut self,
        dict: &impl BatchDict,
        labels: &[LabelSetId],
        list: &mut Vec<(u32, u32, Value)>,
        stays: &[StackId],
        budget: &mut QueryBudget<'_>,
    ) -> Result<(), StoreError> {
        let held = stays.len() * size_of::<Option<Value>>();
        let is_dense = |run: &[_]| run.len() * DENSE_SHARE >= stays.len();
        if !list.chunk_by(|left, right| left.0 == right.0).any(is_dense) {
            return Ok(());
        }
        budget.hold(held)?;
        let mut sums: Vec<Option<Value>> = vec![None; stays.len()];
        let mut left = Vec::new();
        for run in list.chunk_by(|left, right| left.0 == right.0) {
            if !is_dense(run) {
                left.extend_from_slice(run);
                continue;
            }
            let labels = labels[run[0].0 as usize];
            for slice in run.chunks(SLICE) {
                budget.check()?;
                dict.read(|dict, leaves| {
                    for row in slice {
                        let Some(&(stack, end)) = leaves.get(row.1 as usize) else {
                            continue;
                        };
                        if end != StackEnd::Complete {
                            left.push(*row);
                            continue;
                        }
                        let key = SampleKey { labels, stack, end };
                        self.runner.count(dict, key, row.2.count);
                        let caller = stays[stack.0 as usize];
                        *sums[caller.0 as usize].get_or_insert_default() += row.2;
                        if caller != stack {
                            self.folded.weight = self.folded.weight.saturating_add(row.2.weight);
                        }
                    }
                });
            }
            for (slice, first) in sums.chunks_mut(SLICE).zip((0..).step_by(SLICE)) {
                budget.check()?;
                dict.read(|dict, _| {
                    for (sum, stack) in slice.iter_mut().zip(first..) {
                        if let Some(sum) = sum.take() {
                            let (stack, end) = (StackId(stack), StackEnd::Complete);
                            let key = SampleKey { labels, stack, end };
                            self.runner.add_sum(dict, key, sum);
                        }
                    }
                });
            }
        }
        budget.release(held);
        *list = left;
        Ok(())
    }

    fn sample(
        &mut self,
        dict: &Dictionary,
        key: SampleKey,
        (stays, several): (Option<&[StackId]>, bool),
        value: Value,
    ) {
        let Some(stays) = stays else {
            return self.runner.add(dict, key, value);
        };
        let caller = stays[key.stack.0 as usize];
        let kept = self.runner.add_folded(dict, key, caller, value);
        if let Some(kept) = kept
            && caller != key.stack
        {
            self.folded.weight = self.folded.weight.saturating_add(value.weight);
            if several {
                let moved = self.folded.by_key.entry(kept).or_default();
                *moved = moved.saturating_add(value.weight);
            }
        }
    }

    /// Which stacks stand for which, when there are more than an answer may have.
    fn fold<D: BatchDict>(
        &self,
        batch: &SampleBatch<D>,
        budget: &mut QueryBudget<'_>,
    ) -> Result<Option<Vec<StackId>>, StoreError> {
        if !self.folds {
            return Ok(None);
        }
        // The heaviest of all batches are not the heaviest of each.
        let times = if batch.is_one_of_several { 2 } else { 1 };
        let nodes = self.nodes.saturating_mul(times);
        let sizes = |dict: &Dictionary, leaves: &[_]| (dict.stacks.len(), leaves.len());
        let (stacks, leaves) = batch.dict.read(sizes);
        let held = stacks * STACK_BYTES + leaves * size_of::<(StackId, StackEnd)>();
        budget.hold(held)?;
        let copied = |dict: &Dictionary, leaves: &[_]| (parents(&dict.stacks), leaves.to_vec());
        let (parents, leaves) = batch.dict.read(copied);
        budget.check()?;
        let samples = batch.lists.iter().flat_map(|(_, list)| list);
        let samples = samples.filter_map(|row| {
            let (stack, _): (StackId, StackEnd) = *leaves.get(row.1 as usize)?;
            Some((stack, row.2))
        });
        let stays = callers_kept(&parents, samples, nodes);
        budget.release(held);
        budget.check()?;
        Ok(stays)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profile::GroupBy;

    #[test]
    fn what_was_selected_is_not_selected_again() {
        let query = Query::new("unit=web".parse().unwrap(), Vec::new(), GroupBy::All).unwrap();
        let rest = unselected(&query);
        assert!(rest.selector().matchers().is_empty());
        assert_eq!(*rest.group_by(), GroupBy::All);
    }
}
