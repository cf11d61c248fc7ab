//! Ranges that others are compared with: by a word, or as FROM..TO.

use crate::exit::{self, fail};
use crate::when::{Clock, Range};
use anyhow::Result;
use proto::agent::TimeRange;

/// The time that a word or range names; `None`: the collector takes as much time right before.
///
/// # Errors
/// When it names none.
pub fn named(text: &str, range: Range, clock: &Clock) -> Result<Option<TimeRange>> {
    const DAY_NS: i64 = 86_400_000_000_000;
    let earlier = |days: i64| {
        let end = match range.end_ns {
            0 => clock.now_ns(),
            end => end,
        };
        let by = days * DAY_NS;
        Some(TimeRange {
            start_unix_ns: range.start_ns.saturating_sub(by).max(1),
            end_unix_ns: end.saturating_sub(by).max(1),
        })
    };
    match text {
        "previous" => Ok(None),
        "yesterday" => Ok(earlier(1)),
        "last-week" => Ok(earlier(7)),
        text => {
            let found = clock.parse_range(text).map_err(|error| {
                fail(
                    exit::USAGE,
                    format!(
                        "failed to use the baseline: {error}\ngive `previous`, `yesterday`, \
                         `last-week` or FROM..TO"
                    ),
                )
            })?;
            Ok(Some(found.noted().into()))
        }
    }
}

/// The same, with as much time right before `range` for `previous`.
///
/// # Errors
/// When it names none.
pub fn of(text: &str, range: Range, clock: &Clock) -> Result<TimeRange> {
    let end_ns = match range.end_ns {
        0 => clock.now_ns(),
        end => end,
    };
    let length = end_ns.saturating_sub(range.start_ns);
    Ok(named(text, range, clock)?.unwrap_or(TimeRange {
        start_unix_ns: range.start_ns.saturating_sub(length).max(1),
        end_unix_ns: range.start_ns,
    }))
}
