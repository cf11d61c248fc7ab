//! CPU time over time from the kernel's accounting, and for how long each host sent it.

use super::activity::AnswerFacts;
use super::quality::quality;
use super::series::{covered, heaviest};
use super::{QueryBudget, WindowSource};
use crate::store::{AccountedSeries, Limits, QueryResult, Scope, StoreError, THROTTLED_MAX};
use profile::{GroupBy, Value, unit};

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
    let facts = AnswerFacts {
        resolution: found.resolution,
        total: Value {
            count: 0,
            weight: heaviest.weight,
        },
        unit: unit::TIME.to_owned(),
    };
    let quality = quality(source, &scope, facts, &mut budget)?;
    let mut throttled = found.throttled;
    throttled.sort_by(|a, b| {
        let longer = b.sum.ns.cmp(&a.sum.ns);
        longer.then_with(|| a.labels.cmp(&b.labels))
    });
    let throttled_left_out = throttled.len().saturating_sub(THROTTLED_MAX) as u64;
    throttled.truncate(THROTTLED_MAX);
    let data = AccountedSeries {
        start_unix_ns: axis.start,
        step_ns: axis.step_ns,
        lines: heaviest.lines,
        rest: heaviest.rest,
        rest_lines: heaviest.rest_lines,
        hosts: found.hosts.into_iter().collect(),
        pressure: found.pressure.into_iter().collect(),
        throttled,
        throttled_left_out,
        throttling_known: found.throttling_known,
    };
    Ok(QueryResult { data, quality })
}
