//! Totals by label set: taken, lost and expected amounts, without stacks.

use super::activity::AnswerFacts;
use super::quality::quality;
use super::{QueryBudget, WindowSource};
use crate::store::{LabelTotals, Limits, QueryResult, Scope, StoreError};
use profile::{GroupBy, Value};

/// See [`StoreQueries::totals`](crate::store::StoreQueries::totals).
pub(super) fn totals(
    source: &impl WindowSource,
    scope: &Scope,
    group_by: &[String],
    limits: &Limits,
) -> Result<QueryResult<Vec<LabelTotals>>, StoreError> {
    let mut budget = QueryBudget::new(limits);
    budget.check()?;
    let scope = Scope {
        range: source.covered(scope.range),
        ..scope.clone()
    };
    let found = source.totals(&scope, &GroupBy::from_keys(group_by), &mut budget)?;
    let mut total = Value::default();
    let clip = |ns: i128| ns.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
    let rows = found.rows.into_iter().map(|(labels, sum)| {
        total += sum.taken;
        total += sum.lost;
        LabelTotals {
            labels,
            taken: sum.taken,
            lost: sum.lost,
            expected_ns: clip(sum.expected_ns),
            estimated_ns: clip(sum.estimated_ns),
            throttling: sum.throttling,
        }
    });
    let mut data: Vec<LabelTotals> = rows.collect();
    keep_heaviest(&mut data, limits.lines);
    let facts = AnswerFacts {
        resolution: found.resolution,
        total,
        unit: found.units.into_text(),
    };
    let quality = quality(source, &scope, facts, &mut budget)?;
    Ok(QueryResult { data, quality })
}

/// Orders rows, the heaviest first, and cuts them at a limit.
pub(in crate::store) fn keep_heaviest(rows: &mut Vec<LabelTotals>, limit: usize) {
    rows.sort_by(|left, right| {
        let heavier = right.weight().cmp(&left.weight());
        heavier.then_with(|| left.labels.cmp(&right.labels))
    });
    rows.truncate(limit);
}
