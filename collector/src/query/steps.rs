//! A range in steps, each answered with a profile of its own.

use super::request::{self, WINDOW_NS, invalid, whole_windows};
use crate::store::{Limits, QueryResult, Scope, StoreError, StoreQueries, TimeRange, TimeSeries};
use profile::{Profile, Query};
use tonic::Status;

/// Most steps of a range. Each one reads the stacks of its part; a day in steps of two minutes is
/// 720.
const STEPS_MAX: u64 = 1024;

/// The profiles of the steps of a range that have data, first to last. Each is read when it is
/// asked for, so there is one in memory at a time.
pub(crate) struct Steps<'a> {
    store: &'a dyn StoreQueries,
    query: &'a Query,
    limits: &'a Limits,
    range: TimeRange,
    series: TimeSeries,
    at: usize,
}

impl<'a> Steps<'a> {
    /// Steps of `step_ns` over a range, rounded up to what is kept of it. They start at multiples
    /// of their length; the first and the last are cut to the range.
    ///
    /// # Errors
    /// As every query.
    pub fn new(
        store: &'a dyn StoreQueries,
        range: TimeRange,
        query: &'a Query,
        step_ns: u64,
        limits: &'a Limits,
    ) -> Result<Steps<'a>, StoreError> {
        let scope = Scope {
            range: request::whole_steps(range, step_ns),
            selector: query.selector().clone(),
        };
        // Which steps have data, and how long they can be, is known without stacks.
        let series = store.series(&scope, &[], step_ns, limits)?.data;
        Ok(Steps {
            store,
            query,
            limits,
            range,
            series,
            at: 0,
        })
    }
}

impl Iterator for Steps<'_> {
    type Item = Result<QueryResult<Profile>, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.series.steps.get(self.at..)?;
        self.at += rest.iter().position(|step| step.hosts > 0)?;
        let step = self.series.step(self.at);
        let range = TimeRange {
            start_unix_ns: step.start_unix_ns.max(self.range.start_unix_ns),
            end_unix_ns: step.end_unix_ns.min(self.range.end_unix_ns),
        };
        self.at += 1;
        Some(self.store.profile(range, self.query, self.limits))
    }
}

/// The step that is asked for, in complete windows.
///
/// # Errors
/// INVALID_ARGUMENT when that makes too many of a range.
pub(crate) fn step(range: TimeRange, asked_ns: u64) -> Result<u64, Status> {
    let step = whole_windows(asked_ns).max(WINDOW_NS);
    let length = range.end_unix_ns.abs_diff(range.start_unix_ns);
    // A range that does not start at a multiple of the step touches one more.
    match length.div_ceil(step) < STEPS_MAX {
        true => Ok(step),
        false => Err(invalid(format!(
            "failed to use the step: the range has more than {STEPS_MAX} of them: use a longer \
             step or a shorter range"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_complete_windows_and_bounded_in_number() {
        const SECOND: i64 = 1_000_000_000;
        let seconds = |length: i64, asked: u64| {
            let range = TimeRange {
                start_unix_ns: 7,
                end_unix_ns: 7 + length * SECOND,
            };
            let found = step(range, asked * SECOND as u64).ok();
            found.map(|step| step / SECOND as u64)
        };
        assert_eq!(seconds(3600, 60), Some(60));
        assert_eq!(seconds(3600, 1), Some(10));
        assert_eq!(seconds(3600, 61), Some(70));
        assert_eq!(seconds(10_230, 10), Some(10));
        assert_eq!(seconds(10_240, 10), None);
    }
}
