//! The cost of functions or modules: added up over dictionaries, without a profile.

use super::activity::AnswerFacts;
use super::profile::{SLICE, profile};
use super::quality::quality;
use super::{BatchDict, QueryBudget, SampleBatch, WindowSource};
use crate::store::{Limits, QueryResult, Scope, StoreError, TimeRange};
use profile::{
    CostBy, Costs, Counted, Info, LabelSetId, Query, SampleKey, Shape, StackEnd, StackId, Value,
};

/// Memory that [`Costs::sum`] takes for each stack of a dictionary. Unit: bytes.
const STACK_BYTES: usize = 50;

/// See [`StoreQueries::costs`](crate::store::StoreQueries::costs).
pub(super) fn costs<S: WindowSource>(
    source: &S,
    range: TimeRange,
    query: &Query,
    by: CostBy,
    limits: &Limits,
) -> Result<QueryResult<Costs>, StoreError> {
    if !query.frame_filters().is_empty() {
        // What filters make of stacks is not in the dictionaries.
        return of_profile(source, range, query, by, limits);
    }
    let mut budget = QueryBudget::new(limits);
    budget.check()?;
    let mut sum = Sum {
        info: Info::default(),
        costs: Costs::new(by),
        counted: Counted::default(),
    };
    let read = source.samples(range, query, &mut budget, &mut |batch, budget| {
        sum.batch(batch, budget)
    })?;
    let scope = Scope {
        range: read.covered,
        selector: query.selector().clone(),
    };
    let facts = AnswerFacts {
        resolution: read.resolution,
        total: sum.costs.total(),
        unit: sum.info.unit,
    };
    let mut quality = quality(source, &scope, facts, &mut budget)?;
    quality.named_later = sum.counted.named_later();
    quality.sampling = sum.counted.quality().of_selection(quality.sampling);
    Ok(QueryResult {
        data: sum.costs,
        quality,
    })
}

/// Costs of a profile of all stacks: what limits fold would be charged to callers.
fn of_profile<S: WindowSource>(
    source: &S,
    range: TimeRange,
    query: &Query,
    by: CostBy,
    limits: &Limits,
) -> Result<QueryResult<Costs>, StoreError> {
    let unpruned = Limits {
        nodes: usize::MAX,
        ..limits.clone()
    };
    let QueryResult { data, quality } = profile(source, range, query, &unpruned)?;
    Ok(QueryResult {
        data: Costs::of(&data, by),
        quality,
    })
}

/// Costs on their way.
struct Sum {
    info: Info,
    costs: Costs,
    counted: Counted,
}

impl Sum {
    fn batch<D: BatchDict>(
        &mut self,
        batch: SampleBatch<D>,
        budget: &mut QueryBudget<'_>,
    ) -> Result<(), StoreError> {
        let SampleBatch {
            dict, lists, kinds, ..
        } = batch;
        for kind in &kinds {
            self.info.merge(kind)?;
        }
        self.counted.next_dictionary();
        // Who adds to a dictionary waits while it is looked at: it is copied from and looked at in
        // slices.
        let shape = dict.read(|dict, _| {
            let shape = Shape::of(dict);
            budget.hold(shape.bytes() + dict.stacks.len() * STACK_BYTES)?;
            Ok::<_, StoreError>(shape.into_owned())
        })?;
        let mut samples: Vec<(StackId, Value)> = Vec::new();
        for (labels, list) in lists {
            budget.hold(list.len() * size_of::<(StackId, Value)>())?;
            for slice in list.chunks(SLICE) {
                budget.check()?;
                self.count(&dict, &labels, slice, &mut samples);
            }
        }
        let mut sums = self.costs.sum(&shape, samples);
        let before = self.costs.heap_bytes();
        loop {
            budget.check()?;
            if !dict.read(|dict, _| self.costs.name(dict, &mut sums, SLICE)) {
                break;
            }
        }
        budget.hold(self.costs.heap_bytes().saturating_sub(before))
    }

    fn count(
        &mut self,
        dict: &impl BatchDict,
        labels: &[LabelSetId],
        slice: &[(u32, u32, Value)],
        samples: &mut Vec<(StackId, Value)>,
    ) {
        dict.read(|dict, leaves| {
            for &(kept, leaf, value) in slice {
                let Some(&(stack, end)) = leaves.get(leaf as usize) else {
                    continue;
                };
                let labels = labels[kept as usize];
                let key = SampleKey { labels, stack, end };
                self.counted.add(dict, key, value.count);
                match end {
                    StackEnd::Lost => self.costs.add_lost(value),
                    _ => samples.push((stack, value)),
                }
            }
        });
    }
}
