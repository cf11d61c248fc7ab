//! Checks queries of clients: selections, ranges and steps.

use crate::store::{StoreError, TimeRange};
use profile::{FrameFilter, GroupBy, Query, Selector};
use proto::{agent, collector as wire};
use tonic::Status;

/// Length of a window: the finest step there is. Unit: nanoseconds.
pub const WINDOW_NS: u64 = 10_000_000_000;

/// The range of a request that names none. Unit: nanoseconds, up to now.
const RANGE_NS_DEFAULT: i64 = 3_600_000_000_000;

/// Steps of a series when the request does not say how long they are.
const STEPS_DEFAULT: u64 = 300;

/// Most points of a series, over all its lines. A point is up to ten bytes of the answer.
pub const POINTS_MAX: u64 = 400_000;

/// Lengths a step is chosen from. Unit: seconds.
pub const STEPS_S: [u64; 18] = [
    10, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800,
    604_800, 2_419_200,
];

/// A selection with a range that is not yet tied to the time of the call.
#[derive(Clone, Debug)]
pub struct Selected {
    range: Option<agent::TimeRange>,
    /// Which samples, by label.
    pub selector: Selector,
    /// Which samples and frames, by function.
    pub filters: Vec<FrameFilter>,
}

impl Selected {
    /// Checks a selection of the CPU profiles of agents. An absent one takes everything of the last
    /// hour. `Queries::select` takes one of any profile type.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with the reason.
    pub fn new(selection: Option<wire::Selection>) -> Result<Selected, Status> {
        let selection = selection.unwrap_or_default();
        if !selection.profile_type.is_empty() {
            return Err(invalid(
                "failed to use the profile type: this call answers for the CPU profiles of agents \
                 alone",
            ));
        }
        check(selection.range)?;
        let selector = match (selection.matchers.is_empty(), selection.selector.as_str()) {
            (_, "") => proto::query::selector(selection.matchers).map_err(invalid)?,
            (true, text) => text.parse().map_err(invalid)?,
            (false, _) => {
                return Err(invalid(
                    "failed to use the selection: it has matchers and a selector; give only one of \
                     them",
                ));
            }
        };
        Ok(Selected {
            range: selection.range,
            selector,
            filters: proto::query::frame_filters(selection.frame_filters).map_err(invalid)?,
        })
    }

    /// The query of this selection, grouped.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with the reason.
    pub fn query(&self, group_by: &[String]) -> Result<Query, Status> {
        proto::query::check_count("labels to group by", group_by.len()).map_err(invalid)?;
        let group_by = GroupBy::from_keys(group_by);
        Query::new(self.selector.clone(), self.filters.clone(), group_by).map_err(invalid)
    }

    /// Refuses frame filters where an answer has no stacks.
    ///
    /// # Errors
    /// INVALID_ARGUMENT when there are any.
    pub fn without_filters(self, call: &str) -> Result<Selected, Status> {
        if self.filters.is_empty() {
            return Ok(self);
        }
        Err(invalid(format!(
            "failed to use frame filters: {call} does not read stacks"
        )))
    }

    /// The range of the selection, as it was asked for.
    pub fn range(&self) -> Option<agent::TimeRange> {
        self.range
    }
}

/// Checks a range without knowing the time.
///
/// # Errors
/// INVALID_ARGUMENT with the reason.
pub fn check(range: Option<agent::TimeRange>) -> Result<(), Status> {
    let range = range.unwrap_or_default();
    if range.start_unix_ns < 0 || range.end_unix_ns < 0 {
        return Err(invalid(
            "failed to use the time range: a time is before 1970",
        ));
    }
    if range.end_unix_ns != 0 && range.end_unix_ns < range.start_unix_ns {
        return Err(invalid(
            "failed to use the time range: it ends before it starts",
        ));
    }
    Ok(())
}

/// The range of a request. Absent means the last hour, end 0 means `now`, and start 0 means the
/// start of what is kept.
///
/// # Errors
/// When the store cannot say what it keeps.
pub fn resolve(
    range: Option<agent::TimeRange>,
    now: i64,
    kept: impl FnOnce() -> Result<Option<TimeRange>, StoreError>,
) -> Result<TimeRange, StoreError> {
    let hour = TimeRange {
        start_unix_ns: now.saturating_sub(RANGE_NS_DEFAULT).max(0),
        end_unix_ns: now,
    };
    let Some(range) = range else {
        return Ok(hour);
    };
    let end_unix_ns = match range.end_unix_ns {
        0 => now,
        end => end,
    };
    let start_unix_ns = match range.start_unix_ns {
        0 => kept()?.map_or(hour.start_unix_ns, |kept| kept.start_unix_ns),
        start => start,
    };
    Ok(TimeRange {
        // A start that lies in the future, with the end left open.
        start_unix_ns: start_unix_ns.min(end_unix_ns),
        end_unix_ns,
    })
}

/// The step of a series over `range`: the requested one in complete windows, or one that gives
/// about [`STEPS_DEFAULT`] steps.
///
/// # Errors
/// RESOURCE_EXHAUSTED when that makes too many points.
pub fn step(range: TimeRange, asked_ns: u64, lines: usize) -> Result<u64, Status> {
    let length = range.end_unix_ns.abs_diff(range.start_unix_ns);
    let step = if asked_ns == 0 {
        let fits = |step: &u64| length / step <= STEPS_DEFAULT;
        let mut steps = STEPS_S.iter().map(|seconds| seconds * 1_000_000_000);
        steps
            .find(fits)
            .unwrap_or(length / STEPS_DEFAULT / WINDOW_NS * WINDOW_NS + WINDOW_NS)
    } else {
        whole_windows(asked_ns)
    };
    let points = (length / step + 2).saturating_mul(lines as u64 + 1);
    if points > POINTS_MAX {
        return Err(Status::resource_exhausted(format!(
            "failed to make a series of {points} points, more than {POINTS_MAX}: use a shorter \
             range, longer steps or fewer lines"
        )));
    }
    Ok(step)
}

/// A step as it is asked for, in complete windows.
pub fn whole_windows(asked_ns: u64) -> u64 {
    asked_ns.div_ceil(WINDOW_NS).saturating_mul(WINDOW_NS)
}

/// A range widened to complete steps, which start at multiples of their length since the epoch.
pub fn whole_steps(range: TimeRange, step_ns: u64) -> TimeRange {
    let step = i64::try_from(step_ns).unwrap_or(i64::MAX).max(1);
    let (start, end) = (range.start_unix_ns, range.end_unix_ns);
    if start >= end {
        return range;
    }
    TimeRange {
        start_unix_ns: start - start.rem_euclid(step),
        end_unix_ns: match end.rem_euclid(step) {
            0 => end,
            into => end.saturating_add(step - into),
        },
    }
}

/// The number asked for, or its default, up to its limit.
pub fn limit(asked: u32, default: usize, max: usize) -> usize {
    match asked {
        0 => default,
        asked => (asked as usize).min(max),
    }
}

/// A request that is wrong.
pub fn invalid(reason: impl ToString) -> Status {
    Status::invalid_argument(reason.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = RANGE_NS_DEFAULT;
    const NOW: i64 = 100 * HOUR;

    fn resolved(range: Option<(i64, i64)>) -> (i64, i64) {
        let range = range.map(|(start_unix_ns, end_unix_ns)| agent::TimeRange {
            start_unix_ns,
            end_unix_ns,
        });
        let kept = || {
            Ok(Some(TimeRange {
                start_unix_ns: 7,
                end_unix_ns: NOW,
            }))
        };
        let found = resolve(range, NOW, kept).expect("a range");
        (found.start_unix_ns, found.end_unix_ns)
    }

    #[test]
    fn ranges_that_are_left_open_get_their_meaning() {
        assert_eq!(resolved(None), (NOW - HOUR, NOW));
        assert_eq!(resolved(Some((0, 0))), (7, NOW));
        assert_eq!(resolved(Some((5, 0))), (5, NOW));
        assert_eq!(resolved(Some((0, 50))), (7, 50));
        assert_eq!(resolved(Some((0, 3))), (3, 3));
        assert_eq!(resolved(Some((NOW + 5, 0))), (NOW, NOW));
    }

    #[test]
    fn ranges_that_make_no_sense_are_refused() {
        for (start_unix_ns, end_unix_ns) in [(-1, 0), (0, -1), (5, 4)] {
            let range = agent::TimeRange {
                start_unix_ns,
                end_unix_ns,
            };
            assert!(check(Some(range)).is_err(), "{range:?}");
        }
        assert!(check(None).is_ok());
    }

    #[test]
    fn steps_are_whole_windows_and_bounded_in_number() {
        let hours = |hours: i64| TimeRange {
            start_unix_ns: 0,
            end_unix_ns: hours * HOUR,
        };
        let seconds = |range, asked_s: u64| {
            step(range, asked_s * 1_000_000_000, 20).map(|step| step / 1_000_000_000)
        };
        assert_eq!(seconds(hours(1), 0).ok(), Some(20));
        assert_eq!(seconds(hours(24), 0).ok(), Some(300));
        assert_eq!(seconds(hours(24 * 365), 0).ok(), Some(172_800));
        assert_eq!(seconds(hours(1), 61).ok(), Some(70));
        assert!(seconds(hours(24 * 365), 10).is_err());
        assert!(step(hours(1), u64::MAX, 20).is_ok());
        assert!(step(hours(2_000_000), 0, 20).is_ok());
    }

    #[test]
    fn series_are_read_in_whole_steps() {
        let whole = |start_unix_ns, end_unix_ns, step| {
            let range = TimeRange {
                start_unix_ns,
                end_unix_ns,
            };
            let found = whole_steps(range, step);
            (found.start_unix_ns, found.end_unix_ns)
        };
        assert_eq!(whole(13, 27, 10), (10, 30));
        assert_eq!(whole(20, 30, 10), (20, 30));
        assert_eq!(whole(7, 7, 10), (7, 7), "nothing stays nothing");
        assert_eq!(whole(5, i64::MAX, 10), (0, i64::MAX));
        assert_eq!(whole(5, 9, u64::MAX), (0, i64::MAX));
    }

    #[test]
    fn matchers_or_text_but_not_both() {
        let text = wire::Selection {
            selector: "unit=\"a\"".to_owned(),
            ..wire::Selection::default()
        };
        assert_eq!(
            Selected::new(Some(text.clone()))
                .expect("valid")
                .selector
                .matchers()
                .len(),
            1
        );
        let matcher = agent::LabelMatcher {
            label: "unit".to_owned(),
            op: agent::MatchOp::Equal.into(),
            value: "a".to_owned(),
        };
        let both = wire::Selection {
            matchers: vec![matcher],
            ..text
        };
        assert!(Selected::new(Some(both)).is_err());
        let wrong = wire::Selection {
            selector: "unit=~\"(\"".to_owned(),
            ..wire::Selection::default()
        };
        assert!(Selected::new(Some(wrong)).is_err());
    }
}
