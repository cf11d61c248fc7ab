//! Taken, lost and expected amounts by label set, without stacks.

use super::super::block::Sum;
use super::super::chunk_slice::ends;
use super::super::meta::Account;
use super::super::partition::{Facts, Partition};
use super::super::reader::StoreReader;
use super::super::summaries::decode_whole;
use super::super::table::Table;
use super::activity::each_summary;
use super::choice::Choice;
use super::plan::{Read, level_of};
use super::{Stop, each_partition, kept_labels, select, slices};
use crate::store::query::{LabelSum, LabelSums, QueryBudget, Units};
use crate::store::{LabelSet, Scope, StoreError};
use crate::sync::read;
use ::profile::{GroupBy, LabelSetId};
use hashbrown::HashMap;
use std::sync::Arc;

/// Taken for each row of an answer. Unit: bytes.
const ROW_BYTES: usize = 300;

/// Rows of one partition.
struct Found {
    rows: HashMap<LabelSet, LabelSum>,
    units: Vec<String>,
}

/// See [`WindowSource::totals`](crate::store::query::WindowSource::totals).
pub fn totals(
    reader: &StoreReader,
    scope: &Scope,
    group_by: &GroupBy,
    budget: &mut QueryBudget<'_>,
) -> Result<LabelSums, StoreError> {
    let read = Read {
        windows: true,
        level: level_of(reader, scope.range),
        ..Read::default()
    };
    let mut rows: HashMap<LabelSet, LabelSum> = HashMap::new();
    let mut units = Units::default();
    each_partition(
        reader,
        scope.range,
        budget,
        |partition, budget| read_partition(partition, scope, group_by, budget),
        |found, budget| {
            for unit in &found.units {
                units.add(unit)?;
            }
            for (labels, row) in found.rows {
                if !rows.contains_key(&labels) {
                    budget.hold(ROW_BYTES)?;
                }
                *rows.entry(labels).or_default() += row;
            }
            Ok(())
        },
    )?;
    Ok(LabelSums {
        rows,
        units,
        resolution: read.resolution(),
    })
}

fn read_partition(
    partition: &Arc<Partition>,
    scope: &Scope,
    group_by: &GroupBy,
    budget: &mut QueryBudget<'_>,
) -> Result<Found, Stop> {
    let dict = partition.dict_for(budget.limits)?;
    let slices = slices(partition, scope.range);
    let choose = || {
        let dict = read(&dict);
        let taken = select(&dict, &scope.selector);
        let choice = Choice::new(&dict, &taken, group_by, Table::Head);
        let units: Vec<String> = dict.kinds.iter().map(|kind| kind.unit.clone()).collect();
        (choice, taken, units)
    };
    let range = ends(&slices);
    let (view, (choice, taken, units)) = partition.view(
        budget.limits,
        range,
        Facts::of(&slices),
        choose,
        |(choice, ..), group| choice.wants(group),
    )?;
    let held = view.heap_bytes();
    budget.hold(held)?;
    let mut sums: Vec<Option<Sum>> = vec![None; choice.labels.len()];
    let mut kinds_used = vec![false; units.len()];
    let mut accounts: HashMap<u32, Account> = HashMap::new();
    let read_all = choice
        .read_heads(
            &view,
            (&slices, &slices),
            true,
            true,
            budget,
            |kept, kind, _, _, sum| {
                *sums[kept as usize].get_or_insert_default() += sum;
                kinds_used[usize::from(kind)] = true;
                Ok(())
            },
        )
        .and_then(|()| {
            each_summary(
                partition,
                (&view, decode_whole),
                &slices,
                range,
                budget,
                |_, inside| {
                    for (&labels, &account) in inside.iter().flat_map(|inside| &inside.accounts) {
                        if taken.get(labels as usize).is_some_and(|taken| *taken) {
                            *accounts.entry(labels).or_default() += account;
                        }
                    }
                    Ok(())
                },
            )
        });
    view.close(partition);
    budget.release(held);
    read_all?;
    let mut rows: HashMap<LabelSet, LabelSum> = HashMap::new();
    for (labels, sum) in choice.labels.into_iter().zip(sums) {
        if let Some(Sum { taken, lost }) = sum {
            *rows.entry(labels).or_default() += LabelSum {
                taken,
                lost,
                ..LabelSum::default()
            };
        }
    }
    let dict = read(&dict);
    for (labels, account) in accounts {
        let labels = kept_labels(&dict, LabelSetId(labels), group_by);
        *rows.entry(labels).or_default() += LabelSum {
            expected_ns: account.ns - account.below_ns,
            estimated_ns: account.estimated_ns - account.below_estimated_ns,
            throttling: account.throttling,
            ..LabelSum::default()
        };
    }
    let used = units.into_iter().zip(kinds_used).filter(|(_, used)| *used);
    Ok(Found {
        rows,
        units: used.map(|(unit, _)| unit).collect(),
    })
}
