//! Checks queries of clients and converts wire requests to queries and ranges.

use host::time::{MonotonicTime, WallAnchor};
use profile::{GroupBy, Query, Selector};
use proto::agent;
use std::time::Duration;
use tonic::Status;

/// Shortest and longest interval of a live stream. Unit: milliseconds.
const INTERVAL_MS: std::ops::RangeInclusive<u32> = 500..=10_000;

/// The query of a request.
///
/// # Errors
/// INVALID_ARGUMENT with the reason.
pub fn query(
    matchers: Vec<agent::LabelMatcher>,
    frame_filters: Vec<agent::FrameFilter>,
    group_by: &[String],
) -> Result<Query, Status> {
    // All before anything is compiled: the counts bound the work that one request can ask for.
    proto::query::check_count("frame filters", frame_filters.len()).map_err(invalid)?;
    proto::query::check_count("labels to group by", group_by.len()).map_err(invalid)?;
    let selector = proto::query::selector(matchers).map_err(invalid)?;
    let filters = proto::query::frame_filters(frame_filters).map_err(invalid)?;
    Query::new(selector, filters, GroupBy::from_keys(group_by)).map_err(invalid)
}

/// The selector of a request.
///
/// # Errors
/// INVALID_ARGUMENT with the reason.
pub fn selector(matchers: Vec<agent::LabelMatcher>) -> Result<Selector, Status> {
    Ok(query(matchers, Vec::new(), &[])?.selector().clone())
}

/// Monotonic start and end of a range; an absent range, start or end leaves that side open.
///
/// # Errors
/// INVALID_ARGUMENT when it ends before it starts.
pub fn range(
    range: Option<agent::TimeRange>,
    clock: &WallAnchor,
) -> Result<(MonotonicTime, MonotonicTime), Status> {
    let agent::TimeRange {
        start_unix_ns,
        end_unix_ns,
    } = range.unwrap_or_default();
    if start_unix_ns < 0 || end_unix_ns < 0 {
        return Err(invalid(
            "failed to use the time range: a time is before 1970",
        ));
    }
    if end_unix_ns != 0 && end_unix_ns < start_unix_ns {
        return Err(invalid(
            "failed to use the time range: it ends before it starts",
        ));
    }
    let start = if start_unix_ns == 0 {
        MonotonicTime(0)
    } else {
        clock.to_mono(start_unix_ns)
    };
    let end = if end_unix_ns == 0 {
        MonotonicTime(u64::MAX)
    } else {
        clock.to_mono(end_unix_ns)
    };
    Ok((start, end))
}

/// The interval of a live stream; `None`: by windows.
///
/// # Errors
/// INVALID_ARGUMENT when it is out of bounds.
pub fn interval(interval_ms: u32) -> Result<Option<Duration>, Status> {
    match interval_ms {
        0 => Ok(None),
        ms if INTERVAL_MS.contains(&ms) => Ok(Some(Duration::from_millis(ms.into()))),
        ms => Err(invalid(format!(
            "failed to use an interval of {ms} ms: expected 0, or {} to {}",
            INTERVAL_MS.start(),
            INTERVAL_MS.end()
        ))),
    }
}

fn invalid(reason: impl ToString) -> Status {
    Status::invalid_argument(reason.to_string())
}
