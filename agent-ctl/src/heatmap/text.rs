//! Draws a heat map on a terminal: one character per column, coloured blocks if there is colour.

use crate::terminal::clean;
use crate::when::Clock;
use profile::Value;
use profile::formats::Measure;
use profile::formats::heatmap::{LEVELS, amount, colour, length, level};
use profile::heatmap::{Cell, HeatMap};
use std::fmt::Write as _;

/// Rows unless asked otherwise: as many as a small terminal has, with room for the axis.
pub const ROWS: u32 = 20;

/// Width where output is no terminal. Unit: characters.
const COLUMNS_DEFAULT: usize = 120;

/// Room for offsets left of the map.
const LEFT: usize = 9;

/// Shades without colour, nothing first.
const BLOCKS: [char; 5] = [' ', '░', '▒', '▓', '█'];
const ASCII: [char; 10] = [' ', '.', ':', '-', '=', '+', '*', '#', '%', '@'];
/// Time that is not covered.
const OUTSIDE: char = '~';

/// How a map is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    columns: usize,
    colour: bool,
    ascii: bool,
}

impl Look {
    /// `columns` of the terminal, if it is one.
    pub fn of(ascii: bool, columns: Option<usize>, colour: bool) -> Look {
        let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let locale = set("LC_ALL")
            .or_else(|| set("LC_CTYPE"))
            .or_else(|| set("LANG"));
        let utf8 = locale.is_some_and(|name| {
            let name = name.to_ascii_lowercase();
            name.contains("utf-8") || name.contains("utf8")
        });
        Look {
            columns: columns.unwrap_or(COLUMNS_DEFAULT),
            colour: colour && !ascii,
            ascii: ascii || !utf8,
        }
    }

    fn shade(self, value: u64, max: u64) -> String {
        let level = level(value, max);
        if self.colour && level > 0 {
            let [red, green, blue] = colour(level);
            // The palette of 256 colours: a cube of six steps each.
            let step = |part: u8| u16::from(part) * 5 / 255;
            let index = 16 + 36 * step(red) + 6 * step(green) + step(blue);
            return format!("\x1b[48;5;{index}m \x1b[0m");
        }
        let shades: &[char] = if self.ascii { &ASCII } else { &BLOCKS };
        let last = shades.len() as u64 - 1;
        shades[(level * last).div_ceil(LEVELS) as usize].to_string()
    }
}

/// The map. Where it has more columns than there is room for, some that are next to each other are
/// one character, which is said.
pub fn draw(map: &HeatMap, look: &Look, measure: Measure, unit: &str, clock: &Clock) -> String {
    let room = look.columns.saturating_sub(LEFT + 1).max(10);
    let each = (map.columns as usize).div_ceil(room).max(1) as u32;
    let shown = map.columns.div_ceil(each);
    let of = |value: Value| match measure {
        Measure::Count => value.count,
        Measure::Weight => value.weight,
    };
    let sum = |at: u32, row: u32| {
        let columns = at * each..(at * each + each).min(map.columns);
        let values = columns.map(|column| of(map.value(Cell { column, row })));
        values.fold(0u64, u64::saturating_add)
    };
    let cells = (0..shown).flat_map(|at| (0..map.rows).map(move |row| (at, row)));
    let max = cells.map(|(at, row)| sum(at, row)).max().unwrap_or(0);
    let mut text = String::new();
    for row in (0..map.rows).rev() {
        let offset = map.column_ns as f64 * f64::from(row) / f64::from(map.rows);
        let label = match row {
            row if row % 5 == 0 => offset_text(offset),
            _ => String::new(),
        };
        let _ = write!(text, "{label:>LEFT$}|", LEFT = LEFT);
        for at in 0..shown {
            let mut columns = at * each..(at * each + each).min(map.columns);
            match columns.any(|column| map.is_covered(Cell { column, row })) {
                true => text.push_str(&look.shade(sum(at, row), max)),
                false => text.push(OUTSIDE),
            }
        }
        // Space at the end of a line is not seen and only makes it longer.
        text.truncate(text.trim_end_matches(' ').len());
        text.push('\n');
    }
    let _ = write!(text, "{:LEFT$}+", "", LEFT = LEFT);
    let every = 10u32;
    let marks: String = (0..shown)
        .map(|at| if at % every == 0 { '|' } else { '-' })
        .collect();
    text.push_str(&marks);
    text.push('\n');
    let mut times = String::new();
    for at in (0..shown).step_by(every as usize) {
        let time = clock.show_bare_time(map.column_unix_ns(at * each));
        let _ = write!(times, "{time:<width$}", width = every as usize);
    }
    let zone = clock.zone(map.column_unix_ns(0));
    let times = format!("{} {zone}", times.trim_end());
    let _ = writeln!(text, "{:LEFT$} {}", "", times.trim_end(), LEFT = LEFT);
    let column = length(map.column_ns as f64 * f64::from(each));
    let _ = write!(text, "{:LEFT$} a column is {column}", "", LEFT = LEFT);
    if each > 1 {
        let one = length(map.column_ns as f64);
        let _ = write!(text, ", {each} of {one} added up");
    }
    text.push_str("; in a cell: ");
    for level in 1..=LEVELS {
        text.push_str(&look.shade(level, LEVELS));
    }
    let max = clean(&amount(max, measure, unit)).into_owned();
    let _ = writeln!(text, " up to {max}; {OUTSIDE} not covered");
    text
}

fn offset_text(ns: f64) -> String {
    match ns {
        0.0 => "0".to_owned(),
        ns => length(ns),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profile::heatmap::Grid;
    use profile::{LabelSetId, SampleKey, StackEnd, StackId, Timestamp, Timestamps};

    fn map(seconds: u64, at_ms: &[u64]) -> HeatMap {
        let key = SampleKey {
            labels: LabelSetId(0),
            stack: StackId::EMPTY,
            end: StackEnd::Complete,
        };
        let list = at_ms.iter().map(|&at| Timestamp {
            at_ns: at * 1_000_000,
            key,
            weight: 1,
        });
        let timestamps = Timestamps {
            start_unix_ns: 500_000_000,
            duration_ns: seconds * 1_000_000_000,
            dropped: 0,
            list: list.collect(),
        };
        let grid = Grid {
            column_ns: 0,
            rows: 4,
        };
        HeatMap::new(&timestamps, grid).unwrap()
    }

    fn look(columns: usize) -> Look {
        Look {
            columns,
            colour: false,
            ascii: true,
        }
    }

    #[test]
    fn a_burst_is_a_spot() {
        // 250 ms after each second, most of it in the third.
        let at = [750, 1750, 2750, 2751, 2752, 2753];
        let drawn = draw(&map(4, &at), &look(80), Measure::Count, "", &Clock::at(0));
        let lines: Vec<&str> = drawn.lines().collect();
        assert_eq!(lines[0], "         |    ~");
        assert_eq!(lines[2], "         |~--@", "{drawn}");
        assert_eq!(lines[3], "        0|~");
        assert_eq!(lines[4], "         +|----");
    }

    #[test]
    fn a_long_map_fits_the_terminal_and_says_how() {
        let drawn = draw(
            &map(1_000, &[1]),
            &look(60),
            Measure::Count,
            "",
            &Clock::at(0),
        );
        assert!(
            drawn.lines().take(6).all(|line| line.chars().count() <= 60),
            "{drawn}"
        );
        assert!(
            drawn.contains("a column is 21 s, 21 of 1 s added up"),
            "{drawn}"
        );
    }

    #[test]
    fn colour_is_only_where_it_is_wanted() {
        let coloured = Look {
            colour: true,
            ..look(80)
        };
        assert!(draw(&map(4, &[1]), &coloured, Measure::Count, "", &Clock::at(0)).contains('\x1b'));
        assert!(
            !draw(&map(4, &[1]), &look(80), Measure::Count, "", &Clock::at(0)).contains('\x1b')
        );
    }
}
