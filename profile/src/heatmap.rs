//! Heat maps of time: one column per second, one row per part of a second, and in each cell what
//! was sampled then.
//!
//! Something that happens for some milliseconds now and then is invisible in a flame graph of
//! minutes; here it is a spot. Two cells select a range, and
//! [`Profile::between`](crate::Profile::between) makes a profile of it.
//!
//! Columns start at full seconds of the Unix clock (or multiples of wider columns), so that what
//! happens each second is in one row, and maps of several hosts line up. There are no time zones
//! here.

use crate::sample::Value;
use crate::timestamps::Timestamps;
use std::ops::Range;

/// Most columns. At a column a second: four hours, four times the longest capture.
pub const COLUMNS_MAX: u64 = 14_400;

/// Most rows. A thousand rows of a second are a millisecond each, and no screen has more.
pub const ROWS_MAX: u32 = 1_000;

/// Most cells, 16 bytes each.
pub const CELLS_MAX: u64 = 2_000_000;

/// Widths of columns that are tried, narrowest first, when none is asked for. Unit: nanoseconds.
const WIDTHS_NS: [u64; 9] = [
    1_000_000_000,
    10_000_000_000,
    60_000_000_000,
    600_000_000_000,
    3_600_000_000_000,
    86_400_000_000_000,
    2_592_000_000_000_000,
    // A year, and more than a file can hold columns of.
    31_536_000_000_000_000,
    3_153_600_000_000_000_000,
];

/// How time is cut into cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Time of a column; 0: a second, or as much more as it takes to have at most [`COLUMNS_MAX`].
    /// Unit: nanoseconds.
    pub column_ns: u64,
    /// Rows of a column.
    pub rows: u32,
}

impl Default for Grid {
    fn default() -> Self {
        Grid {
            column_ns: 0,
            rows: 50,
        }
    }
}

/// Why there is no heat map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeatMapError {
    /// The profile says nothing of times.
    #[error("failed to draw a heat map: the profile does not say when its samples were taken")]
    NoTimes,
    /// None, more than [`ROWS_MAX`], or rows of less than a nanosecond.
    #[error(
        "failed to draw a heat map with {rows} rows: expected 1 to {ROWS_MAX}, each at least a \
         nanosecond"
    )]
    Rows {
        /// As asked.
        rows: u32,
    },
    /// More columns or cells than are kept.
    #[error(
        "failed to draw a heat map of {columns} columns with {rows} rows: at most {COLUMNS_MAX} \
         columns and {CELLS_MAX} cells are allowed\nchoose wider columns or a shorter time"
    )]
    TooLarge {
        /// It takes so many.
        columns: u128,
        /// As asked.
        rows: u32,
    },
}

/// A cell by its place. Order is order of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cell {
    /// From the left, 0-based.
    pub column: u32,
    /// From the start of the column, 0-based.
    pub row: u32,
}

/// What was sampled in each cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeatMap {
    /// Start of the first column, nanoseconds since the Unix epoch.
    pub start_unix_ns: i64,
    /// Time of a column. Unit: nanoseconds.
    pub column_ns: u64,
    /// Rows of a column.
    pub rows: u32,
    /// Columns.
    pub columns: u32,
    /// Column by column, each from its start.
    pub cells: Vec<Value>,
    /// Sum of all cells.
    pub total: Value,
    /// Samples in this time without a stored moment: they are in no cell.
    pub dropped: u64,
    /// Time between the start of the first column and that of the timestamps. Unit: nanoseconds.
    lead_ns: u64,
    /// Length of the time covered. Unit: nanoseconds.
    covered_ns: u64,
}

impl HeatMap {
    /// The map of these timestamps.
    ///
    /// # Errors
    /// When there are no times, or the map would be too large.
    pub fn new(timestamps: &Timestamps, grid: Grid) -> Result<HeatMap, HeatMapError> {
        if timestamps.is_absent() {
            return Err(HeatMapError::NoTimes);
        }
        let last = timestamps.list.last().map_or(0, |last| last.at_ns);
        // A sample at the very end has its cell too.
        let covered_ns = timestamps.duration_ns.max(last.saturating_add(1));
        let column_ns = match grid.column_ns {
            0 => width(timestamps.start_unix_ns, covered_ns, grid.rows),
            asked => asked,
        };
        let rows = grid.rows;
        if !(1..=ROWS_MAX).contains(&rows) || u64::from(rows) > column_ns {
            return Err(HeatMapError::Rows { rows });
        }
        let lead_ns = lead(timestamps.start_unix_ns, column_ns);
        let columns = columns(timestamps.start_unix_ns, covered_ns, column_ns);
        let too_large = HeatMapError::TooLarge { columns, rows };
        if !fits(columns, rows) {
            return Err(too_large);
        }
        let columns = u32::try_from(columns).map_err(|_| too_large)?;
        let behind = i64::try_from(lead_ns).unwrap_or(i64::MAX);
        let mut map = HeatMap {
            start_unix_ns: timestamps.start_unix_ns.saturating_sub(behind),
            column_ns,
            rows,
            columns,
            cells: vec![Value::default(); columns as usize * rows as usize],
            total: Value::default(),
            dropped: timestamps.dropped,
            lead_ns,
            covered_ns,
        };
        for timestamp in &timestamps.list {
            let value = Value {
                count: 1,
                weight: timestamp.weight,
            };
            let at = map.index(map.cell_at(timestamp.at_ns));
            map.cells[at] += value;
            map.total += value;
        }
        Ok(map)
    }

    /// What was sampled in a cell; nothing where there is no such cell.
    pub fn value(&self, cell: Cell) -> Value {
        let inside = cell.column < self.columns && cell.row < self.rows;
        let found = inside.then(|| self.cells[self.index(cell)]);
        found.unwrap_or_default()
    }

    /// The cell of a time. Unit: nanoseconds since the start of the timestamps.
    pub fn cell_at(&self, at_ns: u64) -> Cell {
        let at = u128::from(self.lead_ns) + u128::from(at_ns.min(self.covered_ns - 1));
        let (column, offset) = (
            at / u128::from(self.column_ns),
            at % u128::from(self.column_ns),
        );
        let row = offset * u128::from(self.rows) / u128::from(self.column_ns);
        Cell {
            column: u32::try_from(column).unwrap_or(u32::MAX),
            row: u32::try_from(row).unwrap_or(u32::MAX),
        }
    }

    /// The time from the start of the earlier of two cells to the end of the later one, both
    /// included, as [`Profile::between`](crate::Profile::between) takes it. Cells beyond the map
    /// are those at its border.
    pub fn range(&self, one: Cell, other: Cell) -> Range<u64> {
        let inside = |cell: Cell| Cell {
            column: cell.column.min(self.columns - 1),
            row: cell.row.min(self.rows - 1),
        };
        let (one, other) = (inside(one), inside(other));
        let start = self.start(one.min(other));
        start..self.end(one.max(other))
    }

    /// True when the time of a cell, or a part of it, is covered: an empty cell says that nothing
    /// ran.
    pub fn is_covered(&self, cell: Cell) -> bool {
        cell.column < self.columns && cell.row < self.rows && self.start(cell) < self.end(cell)
    }

    /// Start of a column, nanoseconds since the Unix epoch.
    pub fn column_unix_ns(&self, column: u32) -> i64 {
        let at = i128::from(self.start_unix_ns) + i128::from(column) * i128::from(self.column_ns);
        i64::try_from(at).unwrap_or(i64::MAX)
    }

    /// The cell with the most in it, by `of`.
    pub fn max(&self, of: impl Fn(Value) -> u64) -> u64 {
        self.cells.iter().map(|&value| of(value)).max().unwrap_or(0)
    }

    /// Cells that something was sampled in, in order of time.
    pub fn filled(&self) -> impl Iterator<Item = (Cell, Value)> + '_ {
        let all = self.cells.iter().enumerate();
        let filled = all.filter(|(_, value)| **value != Value::default());
        filled.map(|(at, &value)| {
            let at = at as u32;
            let (column, row) = (at / self.rows, at % self.rows);
            (Cell { column, row }, value)
        })
    }

    fn index(&self, cell: Cell) -> usize {
        cell.column as usize * self.rows as usize + cell.row as usize
    }

    /// First time that is in the cell and covered.
    fn start(&self, cell: Cell) -> u64 {
        let (column, rows) = (u128::from(self.column_ns), u128::from(self.rows));
        // The first offset that belongs to this row.
        let offset = (u128::from(cell.row) * column).div_ceil(rows);
        let at = u128::from(cell.column) * column + offset;
        let since = at.saturating_sub(u128::from(self.lead_ns));
        u64::try_from(since)
            .unwrap_or(u64::MAX)
            .min(self.covered_ns)
    }

    fn end(&self, cell: Cell) -> u64 {
        match cell.row + 1 < self.rows {
            true => self.start(Cell {
                row: cell.row + 1,
                ..cell
            }),
            false => self.start(Cell {
                column: cell.column.saturating_add(1),
                row: 0,
            }),
        }
    }
}

/// Time from the start of the column that `start` is in.
fn lead(start_unix_ns: i64, column_ns: u64) -> u64 {
    let lead = i128::from(start_unix_ns).rem_euclid(i128::from(column_ns.max(1)));
    u64::try_from(lead).unwrap_or(0)
}

fn columns(start_unix_ns: i64, covered_ns: u64, column_ns: u64) -> u128 {
    let lead = lead(start_unix_ns, column_ns);
    (u128::from(lead) + u128::from(covered_ns)).div_ceil(u128::from(column_ns.max(1)))
}

fn fits(columns: u128, rows: u32) -> bool {
    columns <= u128::from(COLUMNS_MAX) && columns * u128::from(rows) <= u128::from(CELLS_MAX)
}

/// The narrowest column with which the map has room.
fn width(start_unix_ns: i64, covered_ns: u64, rows: u32) -> u64 {
    let widest = WIDTHS_NS[WIDTHS_NS.len() - 1];
    let mut all = WIDTHS_NS.into_iter();
    all.find(|&width| fits(columns(start_unix_ns, covered_ns, width), rows))
        .unwrap_or(widest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::StackEnd;
    use crate::sample::SampleKey;
    use crate::{LabelSetId, StackId, Timestamp};
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;
    const MS: u64 = 1_000_000;

    fn timestamps(start_unix_ns: i64, duration_ns: u64, at: &[u64]) -> Timestamps {
        let key = SampleKey {
            labels: LabelSetId(0),
            stack: StackId::EMPTY,
            end: StackEnd::Complete,
        };
        let list = at.iter().map(|&at_ns| Timestamp {
            at_ns,
            key,
            weight: 10,
        });
        Timestamps {
            start_unix_ns,
            duration_ns,
            dropped: 3,
            list: list.collect(),
        }
    }

    fn cell(column: u32, row: u32) -> Cell {
        Cell { column, row }
    }

    #[test]
    fn columns_are_seconds_of_the_clock_and_rows_their_parts() {
        // From 7.5 s, so that half a second of the first column is before the start.
        let at = [0, 19 * MS, 500 * MS, 1_000 * MS];
        let map =
            HeatMap::new(&timestamps(7_500_000_000, 2 * SECOND, &at), Grid::default()).unwrap();
        assert_eq!((map.start_unix_ns, map.columns), (7_000_000_000, 3));
        let filled: Vec<_> = map.filled().collect();
        let value = |count| Value {
            count,
            weight: count * 10,
        };
        assert_eq!(
            filled,
            [
                (cell(0, 25), value(2)),
                (cell(1, 0), value(1)),
                (cell(1, 25), value(1))
            ]
        );
        assert_eq!((map.total, map.dropped), (value(4), 3));
        assert!(!map.is_covered(cell(0, 24)) && map.is_covered(cell(0, 25)));
        assert!(map.is_covered(cell(2, 24)) && !map.is_covered(cell(2, 25)));
        assert_eq!(map.column_unix_ns(2), 9_000_000_000);
    }

    #[test]
    fn two_cells_pick_the_time_between_them_whichever_comes_first() {
        let map =
            HeatMap::new(&timestamps(7_500_000_000, 2 * SECOND, &[]), Grid::default()).unwrap();
        let picked = map.range(cell(1, 0), cell(0, 30));
        assert_eq!(picked, 100 * MS..520 * MS);
        assert_eq!(map.range(cell(0, 30), cell(1, 0)), picked);
        assert_eq!(map.range(cell(0, 0), cell(9, 99)), 0..2 * SECOND);
    }

    #[test]
    fn times_before_the_epoch_are_aligned_too() {
        let map = HeatMap::new(&timestamps(-1, 2, &[0, 1]), Grid::default()).unwrap();
        assert_eq!((map.start_unix_ns, map.columns), (-1_000_000_000, 2));
        let cells: Vec<_> = map.filled().map(|(cell, _)| cell).collect();
        assert_eq!(cells, [cell(0, 49), cell(1, 0)]);
    }

    #[test]
    fn columns_widen_only_when_nobody_said_how_wide_they_are() {
        let day = timestamps(0, 86_400 * SECOND, &[]);
        let map = HeatMap::new(&day, Grid::default()).unwrap();
        assert_eq!((map.column_ns, map.columns), (10 * SECOND, 8_640));
        let asked = Grid {
            column_ns: SECOND,
            rows: 50,
        };
        let error = HeatMap::new(&day, asked).unwrap_err();
        assert!(error.to_string().contains("of 86400 columns"), "{error}");
    }

    #[test]
    fn what_cannot_be_drawn_is_refused() {
        let refused = |timestamps: &Timestamps, column_ns, rows| {
            HeatMap::new(timestamps, Grid { column_ns, rows }).unwrap_err()
        };
        assert_eq!(
            refused(&Timestamps::default(), 0, 50),
            HeatMapError::NoTimes
        );
        let some = timestamps(0, 5, &[]);
        for (column_ns, rows) in [(0, 0), (0, ROWS_MAX + 1), (10, 11)] {
            assert_eq!(refused(&some, column_ns, rows), HeatMapError::Rows { rows });
        }
    }

    proptest! {
        #[test]
        fn whatever_the_times_each_sample_is_in_one_cell_that_its_range_holds(
            start: i64, duration: u64, mut at: Vec<u64>, rows in 1..=ROWS_MAX
        ) {
            at.sort_unstable();
            let timestamps = timestamps(start, duration, &at);
            prop_assume!(!timestamps.is_absent());
            let map = HeatMap::new(&timestamps, Grid { column_ns: 0, rows }).unwrap();
            prop_assert_eq!(map.total.count, at.len() as u64);
            let cells: u64 = map.cells.iter().map(|value| value.count).sum();
            prop_assert_eq!(cells, at.len() as u64);
            for at in at.into_iter().filter(|&at| at < u64::MAX) {
                let cell = map.cell_at(at);
                prop_assert!(map.is_covered(cell));
                prop_assert!(map.range(cell, cell).contains(&at), "{at} {cell:?}");
            }
        }

        #[test]
        fn the_cells_of_a_map_follow_each_other_without_gaps(
            start: i64, duration in 1..5 * SECOND, rows in 1..=ROWS_MAX
        ) {
            let map = HeatMap::new(&timestamps(start, duration, &[]), Grid { column_ns: 0, rows }).unwrap();
            let mut at = 0;
            for column in 0..map.columns {
                for row in 0..rows {
                    let range = map.range(cell(column, row), cell(column, row));
                    prop_assert_eq!(range.start, at);
                    at = range.end;
                }
            }
            prop_assert_eq!(at, duration);
        }
    }
}
