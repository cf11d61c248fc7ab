//! What functions or modules cost: added up over the dictionaries of partitions, without a profile.

use super::super::EmbeddedStore;
use super::each_partition;
use super::plan::{Read, covered};
use super::profile::{Found, SLICE, merge_kinds, read_partition};
use super::quality::{activity, damaged};
use crate::store::query::{Beside, QueryBudget};
use crate::store::{Answer, Limits, StoreError, TimeRange};
use crate::sync::read;
use ::profile::{CostBy, Costs, Counted, Info, Query, SampleKey, Shape, StackEnd, StackId, Value};

/// Memory that [`Costs::sum`] takes for each stack of a dictionary. Unit: bytes.
const STACK_BYTES: usize = 50;

/// See [`StoreQueries::costs`](crate::store::StoreQueries::costs); `query` has no frame filters.
pub fn costs(
    store: &EmbeddedStore,
    range: TimeRange,
    query: &Query,
    by: CostBy,
    limits: &Limits,
) -> Result<Answer<Costs>, StoreError> {
    let mut budget = QueryBudget::new(limits);
    budget.check()?;
    let range = covered(store, range);
    let (mut info, mut used) = (Info::default(), Read::default());
    let (mut costs, mut counted) = (Costs::new(by), Counted::default());
    each_partition(
        store,
        range,
        &mut budget,
        |partition, budget| read_partition(partition, range, query, budget),
        |found, budget| {
            let Found {
                dict,
                lists,
                kinds,
                read: of,
            } = found;
            used |= of;
            store.name_frames(&dict, limits);
            counted.next_dictionary();
            // A dictionary that is locked keeps pushes waiting: it is copied from and looked at in slices.
            let shape = {
                let dict = read(&dict);
                merge_kinds(&mut info, &dict, &kinds, range)?;
                let shape = Shape::of(&dict.tables);
                budget.hold(shape.bytes() + dict.tables.stacks.len() * STACK_BYTES)?;
                shape.into_owned()
            };
            let mut samples: Vec<(StackId, Value)> = Vec::new();
            for (labels, list) in lists {
                budget.hold(list.len() * size_of::<(StackId, Value)>())?;
                for slice in list.chunks(SLICE) {
                    budget.check()?;
                    let dict = read(&dict);
                    for &(kept, leaf, value) in slice {
                        if let Some(&(stack, end)) = dict.leaves.get(leaf as usize) {
                            let labels = labels[kept as usize];
                            let key = SampleKey { labels, stack, end };
                            counted.add(&dict.tables, key, value.count);
                            match end {
                                StackEnd::Lost => costs.add_lost(value),
                                _ => samples.push((stack, value)),
                            }
                        }
                    }
                }
            }
            let mut sums = costs.sum(&shape, samples);
            let before = costs.heap_bytes();
            loop {
                budget.check()?;
                if !costs.name(&read(&dict).tables, &mut sums, SLICE) {
                    break;
                }
            }
            budget.hold(costs.heap_bytes().saturating_sub(before))
        },
    )?;
    let fleet = activity(store, range, query.selector(), &mut budget)?;
    let beside = Beside {
        covered: range,
        rollup: used.rollup(),
        total: costs.total(),
        unit: info.unit,
        damaged: damaged(store, range),
    };
    let mut quality = fleet.quality(beside, &mut budget)?;
    quality.named_later = counted.named_later();
    quality.sampling = counted.quality().of_selection(quality.sampling);
    Ok(Answer {
        data: costs,
        quality,
    })
}
