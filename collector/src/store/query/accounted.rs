//! CPU time over time as the kernel accounts it, and for how long each host sent it.

use super::activity::{AnswerFacts, quality_of};
use super::series::{covered, heaviest};
use super::{Axis, FleetActivity, QueryBudget, WindowSource};
use crate::store::{
    AccountedSeries, LabelSet, Limits, QueryResult, Resolution, Scope, StoreError, TimeRange,
};
use hashbrown::HashMap;
use profile::{GroupBy, Value, unit};
use std::collections::BTreeMap;

/// Length of most windows: what follows one another without a gap is counted in these. Unit:
/// nanoseconds.
const WINDOW_NS: u64 = 10_000_000_000;

/// What an engine adds up of accounts.
#[derive(Clone, Debug)]
pub struct AccountSums {
    /// Time by step of each combination of kept labels: what cgroups ran without those below them.
    /// Readings of the two are a moment apart, so it may be below zero. Unit: nanoseconds.
    pub lines: HashMap<LabelSet, Vec<i128>>,
    /// What was read.
    pub resolution: Resolution,
}

/// See [`StoreQueries::accounted`](crate::store::StoreQueries::accounted).
pub(super) fn accounted(
    source: &impl WindowSource,
    scope: &Scope,
    group_by: &[String],
    step_ns: u64,
    limits: &Limits,
) -> Result<QueryResult<AccountedSeries>, StoreError> {
    let mut budget = QueryBudget::new(limits);
    budget.check()?;
    let (scope, axis) = covered(source, scope, step_ns)?;
    let group_by = GroupBy::from_keys(group_by);
    let found = source.accounted(&scope, &group_by, axis, &mut budget)?;
    let clip = |ns: i128| u64::try_from(ns.max(0)).unwrap_or(u64::MAX);
    let lines = found.lines.into_iter().filter_map(|(labels, line)| {
        let line: Vec<u64> = line.into_iter().map(clip).collect();
        line.iter().any(|ns| *ns > 0).then_some((labels, line))
    });
    let heaviest = heaviest(lines, axis.steps, limits.lines);
    let activity = source.activity(&scope, &mut budget)?;
    let hosts = hosts(source, &activity, (scope.range, axis), &mut budget)?;
    let facts = AnswerFacts {
        resolution: found.resolution,
        total: Value {
            count: 0,
            weight: heaviest.weight,
        },
        unit: unit::TIME.to_owned(),
    };
    let quality = quality_of(source, activity, scope.range, facts, &mut budget)?;
    let data = AccountedSeries {
        start_unix_ns: axis.start,
        step_ns: axis.step_ns,
        lines: heaviest.lines,
        rest: heaviest.rest,
        rest_lines: heaviest.rest_lines,
        hosts,
    };
    Ok(QueryResult { data, quality })
}

/// For how long hosts sent windows in each step, by name.
fn hosts(
    source: &impl WindowSource,
    activity: &FleetActivity,
    (range, axis): (TimeRange, Axis),
    budget: &mut QueryBudget<'_>,
) -> Result<BTreeMap<String, Vec<u64>>, StoreError> {
    let records = source.host_records(budget)?;
    let names: HashMap<_, _> = records
        .iter()
        .map(|record| (&record.key, record.facts.name(&record.key.host_id)))
        .collect();
    let mut hosts: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for (key, of_host) in &activity.hosts {
        if of_host.inside.windows == 0 {
            continue;
        }
        let name = names.get(key).copied().unwrap_or(&key.host_id);
        if !hosts.contains_key(name) {
            budget.hold(axis.steps * size_of::<u64>() + name.len())?;
            hosts.insert(name.to_owned(), vec![0; axis.steps]);
        }
        if let Some(line) = hosts.get_mut(name) {
            for &span in &of_host.spans {
                add_run(line, (range, axis), span);
            }
        }
    }
    Ok(hosts)
}

/// Adds windows that follow one another, those that start in the range: each is of the step in
/// which it starts, as what is accounted in it is.
fn add_run(line: &mut [u64], (range, axis): (TimeRange, Axis), (start, end): (i64, i64)) {
    let axis_start = i128::from(axis.start);
    let step = i128::from(axis.step_ns);
    let first = axis_start.max(range.start_unix_ns.into());
    let last = (axis_start + step * line.len() as i128).min(range.end_unix_ns.into());
    let window = i128::from(WINDOW_NS);
    let (mut at, end) = (i128::from(start), i128::from(end));
    if at < first {
        at += (first - at + window - 1) / window * window;
    }
    while at < end.min(last) {
        let into = (at - axis_start) / step;
        let next = (axis_start + step * (into + 1)).min(last);
        let windows = (next - at + window - 1) / window;
        let to = (at + windows * window).min(end);
        if let Some(covered) = line.get_mut(into as usize) {
            *covered = covered.saturating_add(u64::try_from(to - at).unwrap_or(u64::MAX));
        }
        at = to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_of_the_step_in_which_they_start() {
        const SECOND: i64 = 1_000_000_000;
        let axis = Axis {
            start: 0,
            step_ns: 60 * SECOND as u64,
            steps: 4,
        };
        let range = TimeRange {
            start_unix_ns: 0,
            end_unix_ns: 240 * SECOND,
        };
        let covered = |spans: &[(i64, i64)]| -> Vec<u64> {
            let mut line = vec![0; 4];
            for (from, to) in spans {
                add_run(&mut line, (range, axis), (from * SECOND, to * SECOND));
            }
            line.iter().map(|ns| ns / SECOND as u64).collect()
        };
        assert_eq!(covered(&[(0, 240)]), [60, 60, 60, 60]);
        assert_eq!(covered(&[(3, 243)]), [60, 60, 60, 60]);
        assert_eq!(covered(&[(33, 83)]), [30, 20, 0, 0]);
        assert_eq!(covered(&[(-35, 25)]), [20, 0, 0, 0]);
        assert_eq!(covered(&[(230, 900), (-50, -10), (7, 7)]), [0, 0, 0, 10]);
    }

    #[test]
    fn a_range_without_end_is_no_endless_work() {
        let axis = Axis {
            start: 0,
            step_ns: 60_000_000_000,
            steps: 2,
        };
        let range = TimeRange {
            start_unix_ns: i64::MIN,
            end_unix_ns: i64::MAX,
        };
        let mut line = vec![0; 2];
        add_run(&mut line, (range, axis), (i64::MIN, i64::MAX));
        assert!(line.iter().all(|ns| *ns >= 50_000_000_000));
    }
}
