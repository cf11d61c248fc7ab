//! Parses ranges of a heat map.

use crate::when::{Clock, WhenError, duration};
use profile::Timestamps;
use profile::heatmap::{Cell, HeatMap};
use std::ops::Range;

/// A range that cannot be picked.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PickError {
    /// Not a range, or an end of it is no time.
    #[error(transparent)]
    When(#[from] WhenError),
    /// Nothing of the map is in it.
    #[error("failed to pick `{text}`: it is outside the range of the map, {from} to {to}")]
    Outside {
        /// As it was written.
        text: String,
        /// Start of the map.
        from: String,
        /// Its end.
        to: String,
    },
}

/// An end of a range.
enum End {
    /// Since the start of the map. Unit: nanoseconds.
    At(u64),
    Cell(Cell),
}

/// Reads `A..B`: the time from A to B since the start of the timestamps. A cell is a part of the
/// range at either end.
///
/// # Errors
/// When it is no range, or beyond the map.
pub fn range(
    text: &str,
    map: &HeatMap,
    timestamps: &Timestamps,
    clock: &Clock,
) -> Result<Range<u64>, PickError> {
    let (from, to) = text
        .split_once("..")
        .ok_or_else(|| WhenError::Range(text.to_owned()))?;
    let end = |text: &str| end(text.trim(), timestamps, clock);
    let start = match end(from)? {
        None => 0,
        Some(End::At(at)) => at,
        Some(End::Cell(cell)) => map.range(cell, cell).start,
    };
    let until = match end(to)? {
        None => u64::MAX,
        Some(End::At(at)) => at,
        Some(End::Cell(cell)) => map.range(cell, cell).end,
    };
    if until <= start {
        return Err(WhenError::Backwards(text.to_owned()).into());
    }
    // A file may end with its last sample.
    let length = timestamps.duration_ns.max(1);
    if start >= length {
        let show = |ns: i64| clock.show(ns);
        let end = timestamps
            .start_unix_ns
            .saturating_add(i64::try_from(length).unwrap_or(i64::MAX));
        return Err(PickError::Outside {
            text: text.to_owned(),
            from: show(timestamps.start_unix_ns),
            to: show(end),
        });
    }
    Ok(start..until.min(length.saturating_add(1)))
}

fn end(text: &str, timestamps: &Timestamps, clock: &Clock) -> Result<Option<End>, WhenError> {
    if text.is_empty() {
        return Ok(None);
    }
    if let Some(offset) = text.strip_prefix('+') {
        let offset = duration(offset)?.as_nanos();
        return Ok(Some(End::At(u64::try_from(offset).unwrap_or(u64::MAX))));
    }
    let cell = text
        .split_once(',')
        .and_then(|(column, row)| Some((column.trim().parse().ok()?, row.trim().parse().ok()?)));
    if let Some((column, row)) = cell {
        return Ok(Some(End::Cell(Cell { column, row })));
    }
    let at = i128::from(clock.parse(text)?) - i128::from(timestamps.start_unix_ns);
    Ok(Some(End::At(u64::try_from(at.max(0)).unwrap_or(u64::MAX))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use profile::heatmap::Grid;

    const S: u64 = 1_000_000_000;

    fn picked(text: &str) -> Result<Range<u64>, PickError> {
        let timestamps = Timestamps {
            start_unix_ns: 1_000_500_000_000,
            duration_ns: 10 * S,
            ..Timestamps::default()
        };
        let map = HeatMap::new(&timestamps, Grid::default()).unwrap();
        range(text, &map, &timestamps, &Clock::at(1_010_000_000_000))
    }

    #[test]
    fn ends_are_times_offsets_and_cells() {
        for (text, expected) in [
            ("+1s..+1500ms", S..3 * S / 2),
            ("..+2s", 0..2 * S),
            ("+2s..", 2 * S..10 * S + 1),
            ("@1001.5..@1002", S..3 * S / 2),
            ("1,0..1,49", S / 2..3 * S / 2),
            ("0,25..+1s", 0..S),
            ("..", 0..10 * S + 1),
        ] {
            assert_eq!(picked(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_part_of_the_map_is_refused() {
        for text in ["+1s", "+2s..+1s", "+10s..", "x..y", "@2000..@3000"] {
            assert!(picked(text).is_err(), "{text}");
        }
    }
}
