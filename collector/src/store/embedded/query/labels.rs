//! Names and values of labels, from the label sets that windows of a range have.

use super::super::chunk_slice::ends;
use super::super::level::Level;
use super::super::partition::{Facts, Partition};
use super::super::reader::StoreReader;
use super::super::summaries::decode_whole;
use super::activity::each_summary;
use super::{Stop, each_partition, select, slices};
use crate::store::query::QueryBudget;
use crate::store::{Scope, StoreError, TimeRange};
use crate::sync::read;
use std::collections::BTreeSet;
use std::sync::Arc;

/// See [`WindowSource::label_names`](crate::store::query::WindowSource::label_names).
pub fn names(
    reader: &StoreReader,
    scope: &Scope,
    budget: &mut QueryBudget<'_>,
) -> Result<Vec<String>, StoreError> {
    let mut all = BTreeSet::new();
    collect(
        reader,
        scope,
        budget,
        |name, _| Some(name.to_owned()),
        &mut all,
    )?;
    Ok(all.into_iter().collect())
}

/// See [`WindowSource::label_values`](crate::store::query::WindowSource::label_values).
pub fn values(
    reader: &StoreReader,
    scope: &Scope,
    name: &str,
    prefix: &str,
    limit: usize,
    budget: &mut QueryBudget<'_>,
) -> Result<(Vec<String>, bool), StoreError> {
    let mut all = BTreeSet::new();
    let value = |own: &str, value: &str| {
        (own == name && !value.is_empty() && value.starts_with(prefix)).then(|| value.to_owned())
    };
    collect(reader, scope, budget, value, &mut all)?;
    let more = all.len() > limit;
    Ok((all.into_iter().take(limit).collect(), more))
}

/// The first of `labels` that a partition of the range has lost for its age, and the end of the
/// last such partition.
pub fn not_kept(
    reader: &StoreReader,
    range: TimeRange,
    labels: &[&str],
    budget: &mut QueryBudget<'_>,
) -> Result<Option<(String, i64)>, StoreError> {
    let mut lost: Option<(String, i64)> = None;
    each_partition(
        reader,
        range,
        budget,
        |partition, _| {
            if partition.level != Level::ServiceHours {
                return Ok(None);
            }
            let dict = partition.dict_for(budget.limits)?;
            let dict = read(&dict);
            let gone = labels.iter().find(|label| !dict.service_has(label));
            Ok(gone.map(|label| ((*label).to_owned(), partition.end)))
        },
        |found, _| {
            // Oldest first.
            lost = found.or(lost.take());
            Ok(())
        },
    )?;
    Ok(lost)
}

fn collect(
    reader: &StoreReader,
    scope: &Scope,
    budget: &mut QueryBudget<'_>,
    of: impl Fn(&str, &str) -> Option<String>,
    all: &mut BTreeSet<String>,
) -> Result<(), StoreError> {
    each_partition(
        reader,
        scope.range,
        budget,
        |partition, budget| read_partition(partition, scope, budget, &of),
        |found, budget| {
            for text in found {
                let bytes = text.len() + 48;
                if all.insert(text) {
                    budget.hold(bytes)?;
                }
            }
            Ok(())
        },
    )
}

fn read_partition(
    partition: &Arc<Partition>,
    scope: &Scope,
    budget: &mut QueryBudget<'_>,
    of: &impl Fn(&str, &str) -> Option<String>,
) -> Result<BTreeSet<String>, Stop> {
    let dict = partition.dict_for(budget.limits)?;
    let slices = slices(partition, scope.range);
    let range = ends(&slices);
    let (view, ()) = partition.view(
        budget.limits,
        range,
        Facts::of(&slices),
        || (),
        |(), _| false,
    )?;
    let held = view.heap_bytes();
    budget.hold(held)?;
    let mut there: BTreeSet<u32> = BTreeSet::new();
    let read_all = each_summary(
        partition,
        (&view, decode_whole),
        &slices,
        range,
        budget,
        |_, inside| {
            there.extend(inside.iter().flat_map(|inside| &inside.label_sets));
            Ok(())
        },
    );
    view.close(partition);
    budget.release(held);
    read_all?;
    let dict = read(&dict);
    let taken = select(&dict, &scope.selector);
    let mut found = BTreeSet::new();
    for labels in there {
        if taken.get(labels as usize).is_some_and(|taken| *taken) {
            let pairs = dict.tables.labels(::profile::LabelSetId(labels));
            found.extend(pairs.filter_map(|(name, value)| of(name, value)));
        }
    }
    Ok(found)
}
