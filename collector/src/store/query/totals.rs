//! Totals by label set: taken, lost and expected amounts, without stacks.

use super::activity::{AnswerFacts, quality};
use super::{QueryBudget, Units, WindowSource};
use crate::store::{LabelSet, LabelTotals, Limits, QueryResult, Resolution, Scope, StoreError};
use hashbrown::HashMap;
use profile::{GroupBy, Value};

/// An engine's sums for one label set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LabelSum {
    /// Samples taken.
    pub taken: Value,
    /// Samples lost, an estimate.
    pub lost: Value,
    /// What the kernel accounts for these cgroups alone. Unit: nanoseconds.
    pub expected_ns: i128,
    /// The part of it that was not measured. Unit: nanoseconds.
    pub estimated_ns: i128,
}

impl std::ops::AddAssign for LabelSum {
    fn add_assign(&mut self, other: LabelSum) {
        self.taken += other.taken;
        self.lost += other.lost;
        self.expected_ns = self.expected_ns.saturating_add(other.expected_ns);
        self.estimated_ns = self.estimated_ns.saturating_add(other.estimated_ns);
    }
}

/// An engine's sums for totals.
#[derive(Clone, Debug)]
pub struct LabelSums {
    /// By kept labels.
    pub rows: HashMap<LabelSet, LabelSum>,
    /// Units of weights.
    pub units: Units,
    /// What was read.
    pub resolution: Resolution,
}

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
