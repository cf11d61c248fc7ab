//! Series: the time axis, the heaviest lines, and the sum of the others.

use super::activity::{AnswerFacts, quality};
use super::{QueryBudget, Units, WindowSource};
use crate::store::{
    LabelSet, Limits, QueryResult, Resolution, Scope, Series, Step, StoreError, TimeRange,
    TimeSeries,
};
use hashbrown::HashMap;
use profile::{GroupBy, Value};

/// Most steps of a line. A chart has some hundreds; a year in steps of a second is a mistake.
const STEPS_MAX: u64 = 1 << 20;

/// The time axis of lines.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    /// Start of the first step.
    pub start: i64,
    /// Length of a step. Unit: nanoseconds.
    pub step_ns: u64,
    /// How many there are.
    pub steps: usize,
}

/// An engine's sums for a series.
#[derive(Clone, Debug)]
pub struct SeriesSums {
    /// Weights by step of each combination of kept labels.
    pub lines: HashMap<LabelSet, Vec<u64>>,
    /// What all of them add up to.
    pub total: Value,
    /// Units of weights.
    pub units: Units,
    /// What was read.
    pub resolution: Resolution,
    /// What each step is made of.
    pub steps: Vec<Step>,
}

impl Axis {
    /// Steps of `step_ns` over a range, which start at multiples of it.
    fn of(range: TimeRange, step_ns: u64) -> Result<Axis, StoreError> {
        let step = i64::try_from(step_ns).unwrap_or(i64::MAX).max(1);
        let start = range.start_unix_ns.div_euclid(step).saturating_mul(step);
        let covered = i128::from(range.end_unix_ns) - i128::from(start);
        let steps = covered
            .max(0)
            .unsigned_abs()
            .div_ceil(step.unsigned_abs().into());
        if steps > STEPS_MAX.into() {
            return Err(StoreError::TooLarge(format!(
                "{steps} steps exceed the limit of {STEPS_MAX}; use a longer step or a shorter \
                 range"
            )));
        }
        Ok(Axis {
            start,
            step_ns: step.unsigned_abs(),
            steps: steps as usize,
        })
    }

    /// The step in which an instant lies; what lies before the first counts as of the first.
    pub fn step_of(&self, at: i64) -> usize {
        let step = at.saturating_sub(self.start) / self.step_ns as i64;
        step.max(0) as usize
    }
}

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
    let quality = quality(source, &scope, facts, &mut budget)?;
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
pub(in crate::store) struct Heaviest {
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
pub(in crate::store) fn heaviest(
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

    fn range(start_unix_ns: i64, end_unix_ns: i64) -> TimeRange {
        TimeRange {
            start_unix_ns,
            end_unix_ns,
        }
    }

    #[test]
    fn steps_start_at_multiples_of_their_length() {
        let check = |(from, to), step_ns, expected| {
            let axis = Axis::of(range(from, to), step_ns).unwrap();
            assert_eq!((axis.start, axis.steps), expected);
        };
        check((0, 100), 10, (0, 10));
        check((5, 95), 10, (0, 10));
        check((-5, 5), 10, (-10, 2));
        check((20, 20), 10, (20, 0));
        check((20, 10), 10, (20, 0));
        check((7, 9), u64::MAX, (0, 1));
        assert!(Axis::of(range(0, i64::MAX), 1).is_err());
    }

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
