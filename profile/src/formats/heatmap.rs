//! Writes a heat map as a picture and as JSON. [`super::html`] has it as a part of a page;
//! terminals draw their own.
//!
//! The JSON. Keys are added and never changed:
//!
//! ```text
//! { "schema": "fleetprof.heatmap/1",
//!   "start_unix_ns": 0, "column_ns": 1000000000, "columns": 1, "rows": 50,
//!   "covered": { "start_unix_ns": 0, "duration_ns": 0 },
//!   "event": "cpu-clock", "unit": "nanoseconds",
//!   "total": { "count": 1, "weight": 10 },
//!   "dropped": 0,                              samples in that time without a cell
//!   "cells": [[0, 7, 1, 10]] }                 column, row, count, weight; no empty cells
//! ```

use super::json::SafeText;
use super::summary::utc;
use super::{FormatError, Measure, Options};
use crate::heatmap::{Cell, HeatMap};
use crate::profile::Profile;
use crate::text::grouped;
use crate::text::{markup, printable};
use crate::unit::time_unit_ns;
use serde::Serialize;
use std::fmt::Write as _;
use std::io::Write;

/// Value of the key `schema`.
pub const SCHEMA: &str = "fleetprof.heatmap/1";

/// Shades that a cell with something in it can have.
pub const LEVELS: u64 = 12;

/// Room left of the map, for offsets; above it, for headings; and below it, for times and the
/// legend.
const LEFT: u32 = 64;
const TOP: u32 = 76;
const BELOW: u32 = 66;
/// Width that the map is given, which bounds that of a column. Unit: pixels.
const WIDTH: u32 = 1_200;
const HEIGHT: u32 = 500;
/// Pixels between two times on the axis: a date and a time have room.
const LABEL_PIXELS: u32 = 140;

#[derive(Serialize)]
struct Json<'a> {
    schema: &'static str,
    start_unix_ns: i64,
    column_ns: u64,
    columns: u32,
    rows: u32,
    covered: Covered,
    event: &'a str,
    unit: &'a str,
    total: Sum,
    dropped: u64,
    cells: Vec<(u32, u32, u64, u64)>,
}

#[derive(Serialize)]
struct Covered {
    start_unix_ns: i64,
    duration_ns: u64,
}

#[derive(Serialize)]
struct Sum {
    count: u64,
    weight: u64,
}

/// Writes the map of a profile as JSON.
///
/// # Errors
/// When `out` fails.
pub fn write_json(
    profile: &Profile,
    map: &HeatMap,
    out: &mut impl Write,
) -> Result<(), FormatError> {
    let cells = map.filled();
    let json = Json {
        schema: SCHEMA,
        start_unix_ns: map.start_unix_ns,
        column_ns: map.column_ns,
        columns: map.columns,
        rows: map.rows,
        covered: Covered {
            start_unix_ns: profile.timestamps.start_unix_ns,
            duration_ns: profile.timestamps.duration_ns,
        },
        event: &profile.info.event,
        unit: &profile.info.unit,
        total: Sum {
            count: map.total.count,
            weight: map.total.weight,
        },
        dropped: map.dropped,
        cells: cells
            .map(|(cell, value)| (cell.column, cell.row, value.count, value.weight))
            .collect(),
    };
    let mut serializer = serde_json::Serializer::with_formatter(&mut *out, SafeText);
    json.serialize(&mut serializer)?;
    out.write_all(b"\n")?;
    Ok(())
}

/// The shade of a value, 0 for nothing and at most [`LEVELS`]; `max` is the most of any cell.
pub fn level(value: u64, max: u64) -> u64 {
    if max == 0 {
        return 0;
    }
    let level = (u128::from(value) * u128::from(LEVELS)).div_ceil(u128::from(max));
    u64::try_from(level).unwrap_or(LEVELS).min(LEVELS)
}

/// The colour of a shade: from pale to dark red, as red, green and blue.
pub fn colour(level: u64) -> [u8; 3] {
    let part = level.saturating_sub(1) as f64 / (LEVELS - 1) as f64;
    let mix = |from: f64, to: f64| (from + (to - from) * part).round() as u8;
    match level {
        0 => [255, 255, 255],
        _ => [mix(255.0, 150.0), mix(225.0, 0.0), mix(205.0, 20.0)],
    }
}

/// One line on a map: samples, the most of a cell, what is missing.
pub fn summary(profile: &Profile, map: &HeatMap, measure: Measure) -> String {
    let most = map.max(|value| measure.of(value));
    let mut line = format!(
        "{} samples with their times · at most {} in a cell of {}",
        grouped(map.total.count),
        amount(most, measure, &profile.info.unit),
        length(map.column_ns as f64 / f64::from(map.rows)),
    );
    if !profile.info.event.is_empty() {
        let _ = write!(line, " · {}", printable(&profile.info.event));
    }
    let dropped = grouped(map.dropped);
    let _ = write!(line, " · {dropped} more whose time was not kept");
    line
}

/// A value with its unit, as people read it.
pub fn amount(value: u64, measure: Measure, unit: &str) -> String {
    match time_unit_ns(unit) {
        Some(unit_ns) if measure == Measure::Weight => length(value as f64 * unit_ns as f64),
        _ => format!("{} {}", grouped(value), printable(measure.word(unit))),
    }
}

/// A length of time in the unit that suits it.
pub fn length(ns: f64) -> String {
    let units = [(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns")];
    let fits = |&&(size, _): &&(f64, &str)| ns >= size;
    let (size, unit) = units.iter().find(fits).unwrap_or(&units[3]);
    let number = format!("{:.2}", ns / size);
    let number = number.trim_end_matches('0').trim_end_matches('.');
    format!("{number} {unit}")
}

/// Writes the map as a picture. Takes [`Options::title`] and `measure`.
///
/// # Errors
/// When `out` fails.
pub fn write_svg(
    profile: &Profile,
    map: &HeatMap,
    options: &Options,
    out: &mut impl Write,
) -> Result<(), FormatError> {
    let cell_width = (WIDTH / map.columns.max(1)).clamp(2, 16);
    let cell_height = (HEIGHT / map.rows.max(1)).clamp(1, 20);
    let (wide, high) = (map.columns * cell_width, map.rows * cell_height);
    // Headings and legend have room on a narrow map too.
    let (width, height) = ((LEFT + wide + 24).max(900), TOP + high + BELOW);
    writeln!(
        out,
        r##"<?xml version="1.0" standalone="no"?>
<svg version="1.1" width="{width}" height="{height}" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<rect width="{width}" height="{height}" fill="#fafafa"/>
<g font-family="sans-serif" font-size="12" fill="#222">"##
    )?;
    let title = markup(&printable(&options.title));
    let about = markup(&summary(profile, map, options.measure));
    writeln!(
        out,
        r#"<text x="{LEFT}" y="28" font-size="17">{title}</text>"#
    )?;
    writeln!(out, r#"<text x="{LEFT}" y="50">{about}</text>"#)?;
    write_axes(map, cell_width, cell_height, out)?;
    let most = map.max(|value| options.measure.of(value));
    let most = amount(most, options.measure, &profile.info.unit);
    write_legend(map, &markup(&most), TOP + high + 48, out)?;
    writeln!(out, "</g>")?;
    // Time that is not covered is grey, so that it does not look like time in which nothing ran.
    writeln!(
        out,
        r##"<g transform="translate({LEFT} {TOP})" shape-rendering="crispEdges">
<rect width="{wide}" height="{high}" fill="#cfd3d8"/>"##
    )?;
    let white = paths(map, cell_width, cell_height, |cell| {
        u64::from(map.is_covered(cell))
    });
    if let Some(path) = white.get(1).filter(|path| !path.is_empty()) {
        writeln!(out, r##"<path fill="#fff" d="{path}"/>"##)?;
    }
    let max = map.max(|value| options.measure.of(value));
    let filled = paths(map, cell_width, cell_height, |cell| {
        level(options.measure.of(map.value(cell)), max)
    });
    for (shade, path) in filled.iter().enumerate().skip(1) {
        if !path.is_empty() {
            let [red, green, blue] = colour(shade as u64);
            writeln!(
                out,
                r##"<path fill="#{red:02x}{green:02x}{blue:02x}" d="{path}"/>"##
            )?;
        }
    }
    writeln!(out, "</g>\n</svg>")?;
    Ok(())
}

/// The outlines of all cells of each shade; those next to each other in a column are one rectangle.
fn paths(
    map: &HeatMap,
    cell_width: u32,
    cell_height: u32,
    shade: impl Fn(Cell) -> u64,
) -> Vec<String> {
    let mut paths = vec![String::new(); LEVELS as usize + 1];
    for column in 0..map.columns {
        let mut row = 0;
        while row < map.rows {
            let found = shade(Cell { column, row });
            let start = row;
            while row < map.rows && shade(Cell { column, row }) == found {
                row += 1;
            }
            if let Some(path) = paths.get_mut(found as usize).filter(|_| found > 0) {
                // The start of a second is at the bottom, as people draw axes.
                let (x, y) = (column * cell_width, (map.rows - row) * cell_height);
                let high = (row - start) * cell_height;
                let _ = write!(path, "M{x} {y}h{cell_width}v{high}h-{cell_width}z");
            }
        }
    }
    paths
}

fn write_axes(
    map: &HeatMap,
    cell_width: u32,
    cell_height: u32,
    out: &mut impl Write,
) -> std::io::Result<()> {
    let high = map.rows * cell_height;
    for part in 0..=4u32 {
        let y = TOP + high - high * part / 4 + 4;
        let offset = length(map.column_ns as f64 * f64::from(part) / 4.0);
        let offset = if part == 0 { "0".to_owned() } else { offset };
        let x = LEFT - 6;
        writeln!(
            out,
            r#"<text x="{x}" y="{y}" text-anchor="end">{offset}</text>"#
        )?;
    }
    let every = LABEL_PIXELS.div_ceil(cell_width).max(1);
    let y = TOP + high;
    for column in (0..map.columns).step_by(every as usize) {
        let x = LEFT + column * cell_width;
        let time = utc(map.column_unix_ns(column).div_euclid(1_000_000_000));
        // The day stands once, and where columns are long.
        let time = match time.split_once(' ') {
            Some((_, time)) if column > 0 && map.column_ns < 60_000_000_000 => time,
            _ => &time,
        };
        writeln!(
            out,
            r##"<path d="M{x} {y}v4" stroke="#888"/><text x="{x}" y="{}">{time}</text>"##,
            y + 18
        )?;
    }
    Ok(())
}

fn write_legend(map: &HeatMap, most: &str, y: u32, out: &mut impl Write) -> std::io::Result<()> {
    let column = length(map.column_ns as f64);
    writeln!(
        out,
        r#"<text x="{LEFT}" y="{y}">columns of {column}, times in UTC · in a cell: up to</text>"#
    )?;
    let from = LEFT + 270;
    for shade in 1..=LEVELS {
        let [red, green, blue] = colour(shade);
        let x = from + (shade as u32 - 1) * 14;
        writeln!(
            out,
            r##"<rect x="{x}" y="{}" width="14" height="12" fill="#{red:02x}{green:02x}{blue:02x}"/>"##,
            y - 10
        )?;
    }
    let x = from + LEVELS as u32 * 14 + 6;
    writeln!(
        out,
        r##"<text x="{x}" y="{y}">{most}</text>
<rect x="{}" y="{}" width="14" height="12" fill="#cfd3d8"/><text x="{}" y="{y}">not covered</text>"##,
        x + 120,
        y - 10,
        x + 140
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn something_is_never_drawn_as_nothing() {
        assert_eq!((level(0, 9), level(0, 0)), (0, 0));
        assert_eq!(level(1, u64::MAX), 1);
        assert_eq!(level(u64::MAX, u64::MAX), LEVELS);
        let shades: std::collections::BTreeSet<_> = (0..=LEVELS).map(colour).collect();
        assert_eq!(shades.len() as u64, LEVELS + 1);
    }

    #[test]
    fn lengths_have_the_unit_that_suits_them() {
        for (ns, expected) in [
            (1e9, "1 s"),
            (2e7, "20 ms"),
            (12_500.0, "12.5 µs"),
            (0.5, "0.5 ns"),
            (1_157_346_063.0, "1.16 s"),
            (86_400e9, "86400 s"),
        ] {
            assert_eq!(length(ns), expected);
        }
    }
}
