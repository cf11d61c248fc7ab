//! Series: the heaviest lines, and the sum of the others.

use super::activity::AnswerFacts;
use super::quality::quality_of;
use super::{Axis, FleetActivity, QueryBudget, WindowSource};
use crate::store::{LabelSet, Limits, QueryResult, Scope, Series, Step, StoreError, TimeSeries};
use profile::GroupBy;

/// See [`StoreQueries::series`](crate::store::StoreQueries::series).
pub(super) fn series(
    source: &impl WindowSource,
    scope: &Scope,
    group_by: &[String],
    step_ns: u64,
    limits: &Limits,
) -> Result<QueryResult<TimeSeries>, StoreError> {
    let mut budget = QueryBudget::new(limits);
    budget.check()?;
    let (scope, axis) = covered(source, scope, step_ns)?;
    budget.hold(axis.steps * size_of::<Step>())?;
    let group_by = GroupBy::from_keys(group_by);
    let found = source.series(&scope, &group_by, axis, &mut budget)?;
    let facts = AnswerFacts {
        resolution: found.resolution,
        total: found.total,
        unit: found.units.into_text(),
    };
    let activity = match limits.reports {
        true => source.activity(&scope, &mut budget)?,
        false => FleetActivity::default(),
    };
    let quality = quality_of(source, &scope, (activity, facts), &mut budget)?;
    let heaviest = heaviest(found.lines, axis.steps, limits.lines);
    let data = TimeSeries {
        start_unix_ns: axis.start,
        step_ns: axis.step_ns,
        lines: heaviest.lines,
        rest: heaviest.rest,
        rest_lines: heaviest.rest_lines,
        steps: found.steps,
    };
    Ok(QueryResult { data, quality })
}

/// A scope at the resolution of the data, and its steps.
pub(super) fn covered(
    source: &impl WindowSource,
    scope: &Scope,
    step_ns: u64,
) -> Result<(Scope, Axis), StoreError> {
    // What coarser data does not distinguish is in one step.
    let shortest = source.step_ns(scope.range).max(1);
    let step_ns = step_ns.max(1).checked_next_multiple_of(shortest);
    let scope = Scope {
        range: source.covered(scope.range),
        ..scope.clone()
    };
    let axis = Axis::of(scope.range, step_ns.unwrap_or(u64::MAX))?;
    Ok((scope, axis))
}

/// Lines within a limit.
pub(crate) struct Heaviest {
    /// The heaviest first.
    pub lines: Vec<Series>,
    /// Sum of the others by step; empty when there is none.
    pub rest: Vec<u64>,
    /// How many they are.
    pub rest_lines: u64,
    /// What all weigh.
    pub weight: u64,
}

/// The heaviest lines, and the sum of the others.
pub(crate) fn heaviest(
    lines: impl IntoIterator<Item = (LabelSet, Vec<u64>)>,
    steps: usize,
    limit: usize,
) -> Heaviest {
    let sum = |weights: &[u64]| weights.iter().copied().fold(0, u64::saturating_add);
    let lines = lines.into_iter();
    let mut lines: Vec<(u64, Series)> = lines
        .map(|(labels, weights)| (sum(&weights), Series { labels, weights }))
        .collect();
    let weights = lines.iter().map(|(weight, _)| *weight);
    let weight = weights.fold(0, u64::saturating_add);
    lines.sort_by(|(left, line), (right, other)| {
        right.cmp(left).then_with(|| line.labels.cmp(&other.labels))
    });
    let left_out = lines.split_off(lines.len().min(limit));
    let mut rest = Vec::new();
    if !left_out.is_empty() {
        rest.resize(steps, 0);
    }
    for (_, line) in &left_out {
        add_line(&mut rest, &line.weights);
    }
    Heaviest {
        lines: lines.into_iter().map(|(_, line)| line).collect(),
        rest,
        rest_lines: left_out.len() as u64,
        weight,
    }
}

/// Adds weights by step.
pub(in crate::store) fn add_line(sum: &mut [u64], line: &[u64]) {
    for (sum, weight) in sum.iter_mut().zip(line) {
        *sum = sum.saturating_add(*weight);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_limit_are_one_sum() {
        let set = |name: &str| LabelSet::new([("unit".to_owned(), name.to_owned())]);
        let lines = [
            (set("a"), vec![1, 2]),
            (set("b"), vec![u64::MAX, 1]),
            (set("c"), vec![2, 1]),
        ];
        let found = heaviest(lines.clone(), 2, 1);
        assert_eq!(found.lines[0].labels, set("b"));
        assert_eq!((found.rest, found.rest_lines), (vec![3, 3], 2));
        assert_eq!(found.weight, u64::MAX);
        let all = heaviest(lines, 2, 3);
        let order: Vec<_> = all.lines.iter().map(|line| &line.labels).collect();
        assert_eq!(order, [&set("b"), &set("a"), &set("c")]);
        assert_eq!((all.rest, all.rest_lines), (Vec::new(), 0));
    }
}
