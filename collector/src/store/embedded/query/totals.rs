//! Taken, lost and expected by label set, without stacks.

use super::super::EmbeddedStore;
use super::super::block::Sum;
use super::super::file::Table;
use super::super::meta::Account;
use super::super::partition::{Facts, Partition};
use super::plan::{Read, covered, level_of};
use super::profile::grouping;
use super::quality::{activity, damaged, each_summary};
use super::series::{HeadChoice, ends};
use super::{Stop, Units, each_partition, kept_labels, pieces, select};
use crate::store::query::{Beside, QueryBudget};
use crate::store::{Answer, LabelSet, Labelled, Limits, Scope, StoreError};
use crate::sync::read;
use ::profile::{GroupBy, LabelSetId};
use hashbrown::HashMap;
use std::sync::Arc;

#[derive(Default)]
struct Row {
    sum: Sum,
    account: Account,
}

/// Rows of one partition.
struct Found {
    rows: HashMap<LabelSet, Row>,
    units: Vec<String>,
}

/// See [`StoreQueries::totals`](crate::store::StoreQueries::totals).
pub fn totals(
    store: &EmbeddedStore,
    scope: &Scope,
    group_by: &[String],
    limits: &Limits,
) -> Result<Answer<Vec<Labelled>>, StoreError> {
    let mut budget = QueryBudget::new(limits);
    budget.check()?;
    let group_by = grouping(group_by);
    let scope = &Scope {
        range: covered(store, scope.range),
        ..scope.clone()
    };
    let read = Read {
        windows: true,
        level: level_of(store, scope.range),
        ..Read::default()
    };
    let mut rows: HashMap<LabelSet, Row> = HashMap::new();
    let mut units = Units::default();
    each_partition(
        store,
        scope.range,
        &mut budget,
        |partition, budget| read_partition(partition, scope, &group_by, budget),
        |found, budget| {
            for unit in &found.units {
                units.add(unit)?;
            }
            for (labels, row) in found.rows {
                if !rows.contains_key(&labels) {
                    budget.hold(300)?;
                }
                let sum = rows.entry(labels).or_default();
                sum.sum += row.sum;
                sum.account += row.account;
            }
            Ok(())
        },
    )?;
    let (data, total) = into_rows(rows, limits.lines);
    let fleet = activity(store, scope.range, &scope.selector, &mut budget)?;
    let beside = Beside {
        covered: scope.range,
        rollup: read.rollup(),
        total: total.all(),
        unit: units.into_text(),
        damaged: damaged(store, scope.range),
    };
    let quality = fleet.quality(beside, &mut budget)?;
    Ok(Answer { data, quality })
}

/// Rows of the answer, heaviest first, and what all of them add up to.
fn into_rows(rows: HashMap<LabelSet, Row>, limit: usize) -> (Vec<Labelled>, Sum) {
    let mut total = Sum::default();
    let mut data: Vec<Labelled> = rows
        .into_iter()
        .map(|(labels, row)| {
            total += row.sum;
            let Account {
                ns,
                estimated_ns,
                below_ns,
                below_estimated_ns,
            } = row.account;
            let clip = |ns: i128| ns.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
            Labelled {
                labels,
                taken: row.sum.taken,
                lost: row.sum.lost,
                expected_ns: clip(ns - below_ns),
                estimated_ns: clip(estimated_ns - below_estimated_ns),
            }
        })
        .collect();
    data.sort_by(|left, right| {
        let weight = |row: &Labelled| row.taken.weight.saturating_add(row.lost.weight);
        weight(right)
            .cmp(&weight(left))
            .then_with(|| left.labels.cmp(&right.labels))
    });
    data.truncate(limit);
    (data, total)
}

fn read_partition(
    partition: &Arc<Partition>,
    scope: &Scope,
    group_by: &GroupBy,
    budget: &mut QueryBudget<'_>,
) -> Result<Found, Stop> {
    let dict = partition.dict(false)?;
    let pieces = pieces(partition, scope.range);
    let choose = || {
        let dict = read(&dict);
        let choice = HeadChoice::new(&dict, &scope.selector, group_by, Table::Head);
        let units: Vec<String> = dict.kinds.iter().map(|kind| kind.unit.clone()).collect();
        (choice, select(&dict, &scope.selector), units)
    };
    let range = ends(&pieces);
    let (view, (choice, taken, units)) =
        partition.view(range, Facts::of(&pieces), choose, |(choice, ..), group| {
            choice.wants_group(group)
        })?;
    let held = view.heap_bytes();
    budget.hold(held)?;
    let mut sums: Vec<Option<Sum>> = vec![None; choice.labels.len()];
    let mut kinds_used = vec![false; units.len()];
    let mut accounts: HashMap<u32, Account> = HashMap::new();
    let read_all = choice
        .read(
            &view,
            (&pieces, &pieces),
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
            each_summary(partition, &view, &pieces, range, budget, |_, inside| {
                for (&labels, &account) in inside.iter().flat_map(|inside| &inside.accounts) {
                    if taken.get(labels as usize).is_some_and(|taken| *taken) {
                        *accounts.entry(labels).or_default() += account;
                    }
                }
                Ok(())
            })
        });
    view.close(partition);
    budget.release(held);
    read_all?;
    let mut rows: HashMap<LabelSet, Row> = HashMap::new();
    for (labels, sum) in choice.labels.into_iter().zip(sums) {
        if let Some(sum) = sum {
            rows.entry(labels).or_default().sum += sum;
        }
    }
    let dict = read(&dict);
    for (labels, account) in accounts {
        let labels = kept_labels(&dict, LabelSetId(labels), group_by);
        rows.entry(labels).or_default().account += account;
    }
    let used = units.into_iter().zip(kinds_used).filter(|(_, used)| *used);
    Ok(Found {
        rows,
        units: used.map(|(unit, _)| unit).collect(),
    })
}
