//! CPU time over time of what frame filters keep.
//!
//! The sums that other series are read from have no stacks, so each step is a query for stacks, and
//! there are only a few steps: enough to see since when a function costs more, and where.

use super::cgroups;
use super::request::{STEPS_S, invalid, whole_windows};
use crate::store::query::heaviest;
use crate::store::{
    LabelSet, Limits, QueryResult, Scope, StoreError, StoreQueries, TimeRange, TimeSeries,
};
use profile::{Query, unit};
use std::collections::HashMap;
use tonic::Status;

/// Most steps of a filtered series. Each one reads the stacks of its part of the range; together
/// they read about as much as one profile of the range. More steps than this on a screen of the
/// width of a panel are narrower than four pixels.
pub(super) const STEPS_MAX: u64 = 48;

/// Most combinations of labels that are added up before the lightest go into `rest`. With
/// [`STEPS_MAX`] steps they take about 10 MB.
const GROUPS_MAX: usize = 20_000;

/// The step of a filtered series over `range`: the requested one, or the shortest that gives at
/// most [`STEPS_MAX`] steps.
///
/// # Errors
/// INVALID_ARGUMENT when the requested one gives more.
pub(crate) fn step(range: TimeRange, asked_ns: u64) -> Result<u64, Status> {
    let length = range.end_unix_ns.abs_diff(range.start_unix_ns);
    // A range that does not start at a multiple of the step touches one more.
    let fits = |step: &u64| length.div_ceil(*step) < STEPS_MAX;
    if asked_ns > 0 {
        let asked = whole_windows(asked_ns);
        return match fits(&asked) {
            true => Ok(asked),
            false => Err(invalid(format!(
                "failed to make a series with frame filters: it has at most {STEPS_MAX} steps; \
                 use longer steps or a shorter range"
            ))),
        };
    }
    let mut steps = STEPS_S.iter().map(|seconds| seconds * 1_000_000_000);
    Ok(steps
        .find(fits)
        .unwrap_or(length.div_ceil(STEPS_MAX - 1).max(1)))
}

/// The series of what `query` keeps in `scope`, which has the same selector, grouped by the labels
/// that the query keeps. `scope` is widened to complete steps.
///
/// # Errors
/// As every query; also when there are more than [`GROUPS_MAX`] combinations of labels.
pub(crate) fn series(
    store: &dyn StoreQueries,
    scope: &Scope,
    query: &Query,
    step_ns: u64,
    limits: &Limits,
) -> Result<QueryResult<TimeSeries>, StoreError> {
    // Which hosts sent what in each step is known without stacks.
    let mut found = store.series(scope, &[], step_ns, limits)?;
    let steps = found.data.steps.len();
    let mut groups: HashMap<LabelSet, Vec<u64>> = HashMap::new();
    found.quality.total = profile::Value::default();
    for at in 0..steps {
        if found.data.steps[at].hosts == 0 {
            continue;
        }
        let QueryResult { data, quality } = store.profile(found.data.step(at), query, limits)?;
        // A heavy part may be in a coarser unit than its neighbours.
        let (unit, by) = unit::base(&quality.unit);
        if !unit.is_empty() {
            found.quality.unit = unit.to_owned();
        }
        for row in cgroups::totals(&data) {
            let mut value = row.taken;
            value += row.lost;
            value.weight = value.weight.saturating_mul(by);
            found.quality.total += value;
            let known = groups.len();
            let line = groups.entry(row.labels).or_insert_with(|| vec![0; steps]);
            line[at] = line[at].saturating_add(value.weight);
            if known >= GROUPS_MAX {
                return Err(StoreError::TooLarge(format!(
                    "the series has more than {GROUPS_MAX} combinations of labels: group by fewer \
                     labels"
                )));
            }
        }
    }
    let heaviest = heaviest(groups, steps, limits.lines);
    (found.data.lines, found.data.rest) = (heaviest.lines, heaviest.rest);
    found.data.rest_lines = heaviest.rest_lines;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn seconds(length: i64, asked: u64) -> Option<u64> {
        let range = TimeRange {
            start_unix_ns: 0,
            end_unix_ns: length * SECOND,
        };
        let found = step(range, asked * SECOND as u64).ok();
        found.map(|step| step / SECOND as u64)
    }

    #[test]
    fn steps_are_few_whatever_the_range() {
        assert_eq!(seconds(60, 0), Some(10));
        assert_eq!(seconds(3600, 0), Some(120));
        assert_eq!(seconds(86_400, 0), Some(3600));
        for days in [1, 30, 365, 40_000] {
            let length = days * 86_400;
            let step = seconds(length, 0).expect("a step");
            assert!(length as u64 / step < STEPS_MAX, "{days} days: {step} s");
        }
    }

    #[test]
    fn a_step_that_makes_too_many_is_refused() {
        assert_eq!(seconds(3600, 120), Some(120));
        assert_eq!(seconds(3600, 10), None);
    }

    #[test]
    fn the_heaviest_lines_come_first_and_the_others_are_a_rest() {
        let labels = |host: &str| LabelSet::new([("host".to_owned(), host.to_owned())]);
        let groups = HashMap::from([
            (labels("a"), vec![1, 2]),
            (labels("b"), vec![5, 0]),
            (labels("c"), vec![0, 1]),
        ]);
        let found = heaviest(groups, 2, 1);
        assert_eq!(found.lines.len(), 1);
        assert_eq!(found.lines[0].labels, labels("b"));
        assert_eq!((found.rest, found.rest_lines), (vec![1, 3], 2));
    }
}
