//! CPU time over time from the kernel's accounting, and for how long each host sent it.

use super::activity::{AnswerFacts, quality};
use super::series::{covered, heaviest};
use super::{QueryBudget, WindowSource};
use crate::store::{AccountedSeries, LabelSet, Limits, QueryResult, Resolution, Scope, StoreError};
use hashbrown::HashMap;
use profile::{GroupBy, Value, unit};

/// An engine's sums of accounts.
#[derive(Clone, Debug)]
pub struct AccountSums {
    /// Time by step of each combination of kept labels: what cgroups ran without those below them.
    /// Readings of the two are a moment apart, so it may be below zero. Unit: nanoseconds.
    pub lines: HashMap<LabelSet, Vec<i128>>,
    /// See [`AccountedSeries::hosts`].
    pub hosts: HashMap<String, Vec<u64>>,
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
    let facts = AnswerFacts {
        resolution: found.resolution,
        total: Value {
            count: 0,
            weight: heaviest.weight,
        },
        unit: unit::TIME.to_owned(),
    };
    let quality = quality(source, &scope, facts, &mut budget)?;
    let data = AccountedSeries {
        start_unix_ns: axis.start,
        step_ns: axis.step_ns,
        lines: heaviest.lines,
        rest: heaviest.rest,
        rest_lines: heaviest.rest_lines,
        hosts: found.hosts.into_iter().collect(),
    };
    Ok(QueryResult { data, quality })
}
