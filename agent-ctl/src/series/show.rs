//! CPU over time as text, table, CSV and JSON.

use super::{Line, Rate, Series};
use crate::terminal::{Out, Table, clean, fit};
use crate::when::{Clock, rfc3339};
use anyhow::Result;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Signs of a chart from nothing to the most, and that for no data.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const BARS_ASCII: [char; 8] = ['_', '.', ':', '-', '=', '+', '*', '#'];
const NO_DATA: char = ' ';

/// Cells of a chart where no terminal bounds it.
const CHART_CELLS: usize = 60;

/// Cells that the numbers of a line take, and fewest for its name and its chart.
const NUMBERS_CELLS: usize = 32;
const NAME_CELLS_MIN: usize = 12;
const NAME_CELLS_MAX: usize = 50;
const CHART_CELLS_MIN: usize = 8;

/// Columns of a table where no terminal bounds it.
const TABLE_LINES_MAX: usize = 50;

/// What a line is called.
fn name(line: &Line, rest_lines: u64) -> String {
    if line.rest {
        return format!("({rest_lines} more)");
    }
    let shown = |value: &String| match value.as_str() {
        "" => "(none)".to_owned(),
        value => clean(value).into_owned(),
    };
    match line.values.as_slice() {
        [] => "all".to_owned(),
        values => values.iter().map(shown).collect::<Vec<_>>().join("/"),
    }
}

/// A line each, with a small chart. All charts have one scale.
pub fn text(series: &Series, out: &Out, ascii: bool) -> String {
    let names: Vec<String> = series
        .lines
        .iter()
        .map(|line| name(line, series.rest_lines))
        .collect();
    let longest = names.iter().map(|name| crate::terminal::width(name)).max();
    let longest = longest.unwrap_or(0).clamp(NAME_CELLS_MIN, NAME_CELLS_MAX);
    let room = out
        .columns()
        .map(|columns| columns.saturating_sub(NUMBERS_CELLS + 4));
    let steps = series.lines.first().map_or(0, |line| line.cores.len());
    // A name that is cut helps nobody: the chart gives way first.
    let chart = room.map_or(CHART_CELLS, |room| room.saturating_sub(longest));
    let chart = chart.clamp(CHART_CELLS_MIN, CHART_CELLS).min(steps.max(1));
    let names_room = room.map_or(longest, |room| room.saturating_sub(chart).min(longest));
    let all = series
        .lines
        .iter()
        .flat_map(|line| line.cores.iter().flatten());
    let most = all.copied().fold(0.0, f64::max);
    let heading = match series.labels.as_slice() {
        [] => String::new(),
        labels => labels.join("/").to_uppercase(),
    };
    let unit = series.unit.name().to_uppercase();
    let mut table = Table::new(&[">MEAN", ">MIN", ">MAX", ">LAST", &unit, &heading]);
    for (line, name) in series.lines.iter().zip(&names) {
        let known = || line.cores.iter().flatten().copied();
        let least = known().fold(f64::INFINITY, f64::min);
        let show = |value: f64| match value.is_finite() {
            true => series.unit.show(value),
            false => "-".to_owned(),
        };
        table.row([
            show(line.mean()),
            show(least),
            show(known().fold(0.0, f64::max)),
            known().next_back().map_or("-".to_owned(), show),
            spark(&line.cores, chart, most, ascii),
            fit(name, names_room.max(NAME_CELLS_MIN)).into_owned(),
        ]);
    }
    table.sparing(&["MIN", "LAST", &unit]).show(out)
}

/// A chart of so many cells; each has the largest of its steps, for a peak is what is looked for.
fn spark(cores: &[Option<f64>], cells: usize, most: f64, ascii: bool) -> String {
    let bars = if ascii { BARS_ASCII } else { BARS };
    let cells = cells.clamp(1, cores.len().max(1));
    let of_cell = |cell: usize| {
        let (from, to) = (cell * cores.len() / cells, (cell + 1) * cores.len() / cells);
        let known = cores[from..to].iter().flatten().copied();
        known.reduce(f64::max)
    };
    let sign = |value: Option<f64>| match value {
        None => NO_DATA,
        Some(_) if most <= 0.0 => bars[0],
        Some(value) => {
            let at = (value / most * (bars.len() - 1) as f64).round();
            bars[(at as usize).min(bars.len() - 1)]
        }
    };
    (0..cells).map(|cell| sign(of_cell(cell))).collect()
}

/// A row for each step, a column for each line, as many as there is room for.
pub fn table(series: &Series, out: &Out, clock: &Clock) -> String {
    let names: Vec<String> = series
        .lines
        .iter()
        .map(|line| format!(">{}", name(line, series.rest_lines)))
        .collect();
    let steps = series.lines.first().map_or(0, |line| line.cores.len());
    let start = |at: usize| series.start_ns + (series.step_ns * at as u64) as i64;
    let mut room = out.columns().map(|columns| columns.saturating_sub(27));
    let mut shown = 0;
    for name in names.iter().take(TABLE_LINES_MAX) {
        if let Some(left) = &mut room {
            let cells = crate::terminal::width(name).max(8) + 1;
            if *left < cells && shown > 0 {
                break;
            }
            *left = left.saturating_sub(cells);
        }
        shown += 1;
    }
    let mut headings = vec!["TIME"];
    headings.extend(names.iter().take(shown).map(String::as_str));
    let mut table = Table::new(&headings);
    for at in 0..steps {
        let lines = series.lines.iter().take(shown);
        let values = lines
            .map(|line| line.cores[at].map_or("-".to_owned(), |value| series.unit.show(value)));
        table.row(std::iter::once(clock.show(start(at))).chain(values));
    }
    let mut text = table.show(out);
    if shown < names.len() {
        let _ = writeln!(
            text,
            "{} more lines have no room here: --format csv has all",
            names.len() - shown
        );
    }
    text
}

/// A row for each step of each line; a step without data has an empty number.
pub fn csv(series: &Series) -> String {
    let mut text = "start,".to_owned();
    for label in &series.labels {
        let _ = write!(text, "{},", quoted(label));
    }
    let _ = writeln!(text, "{}", quoted(&series.unit.name()));
    for line in &series.lines {
        for (at, value) in line.cores.iter().enumerate() {
            let start = series.start_ns + (series.step_ns * at as u64) as i64;
            let _ = write!(text, "{},", rfc3339(start));
            for column in 0..series.labels.len() {
                let value = match line.rest {
                    true => "[rest]",
                    false => line.values.get(column).map_or("", String::as_str),
                };
                let _ = write!(text, "{},", quoted(value));
            }
            match value {
                Some(value) => {
                    let _ = writeln!(text, "{value:.6}");
                }
                None => text.push('\n'),
            }
        }
    }
    text
}

/// A field of CSV. A spreadsheet must not take a name for a formula, nor a terminal for a command.
fn quoted(text: &str) -> String {
    let mut text = clean(text).into_owned();
    if text.starts_with(['=', '+', '-', '@']) {
        text.insert(0, '\'');
    }
    match text.contains([',', '"', ' ', ';']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}

#[derive(Serialize)]
struct Json<'a> {
    start: String,
    step_s: f64,
    /// `kernel`, `samples` or `senders`.
    source: &'static str,
    /// `cores`, or that of a profile type.
    unit: String,
    lines: Vec<JsonLine<'a>>,
    rest_lines: u64,
    /// By step: part of the samples that was lost, from 0 to 1.
    lost: &'a [f64],
}

#[derive(Serialize)]
struct JsonLine<'a> {
    labels: BTreeMap<&'a str, &'a str>,
    rest: bool,
    mean: f64,
    /// By step; null: no data.
    #[serde(skip_serializing_if = "Option::is_none")]
    cores: Option<&'a [Option<f64>]>,
    /// The same where the unit is not cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    rates: Option<&'a [Option<f64>]>,
}

/// All of it for scripts.
///
/// # Errors
/// When it cannot be serialized.
pub fn json(series: &Series) -> Result<String> {
    let is_cores = series.unit == Rate::Cores;
    let lines = series.lines.iter().map(|line| JsonLine {
        labels: series
            .labels
            .iter()
            .map(String::as_str)
            .zip(line.values.iter().map(String::as_str))
            .collect(),
        rest: line.rest,
        mean: line.mean(),
        cores: is_cores.then_some(&line.cores),
        rates: (!is_cores).then_some(&line.cores),
    });
    let json = Json {
        start: rfc3339(series.start_ns),
        step_s: series.step_ns as f64 / 1e9,
        source: match (series.accounted, series.of_senders) {
            (true, _) => "kernel",
            (false, true) => "senders",
            (false, false) => "samples",
        },
        unit: series.unit.name(),
        lines: lines.collect(),
        rest_lines: series.rest_lines,
        lost: &series.lost,
    };
    Ok(crate::terminal::json(&json, true)? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series() -> Series {
        Series {
            start_ns: 1_763_683_200_000_000_000,
            step_ns: 60_000_000_000,
            labels: vec!["unit".to_owned()],
            lines: vec![
                Line {
                    values: vec!["a.service".to_owned()],
                    rest: false,
                    cores: vec![Some(0.0), Some(2.0), None, Some(1.0)],
                },
                Line {
                    values: vec!["=x\x1b[2J,b".to_owned()],
                    rest: false,
                    cores: vec![Some(0.5), Some(0.5), None, Some(0.5)],
                },
            ],
            rest_lines: 0,
            accounted: true,
            lost: vec![0.0; 4],
            ..Series::default()
        }
    }

    #[test]
    fn a_line_has_its_mean_extremes_and_chart() {
        assert_eq!(
            text(&series(), &Out::plain(), false),
            " MEAN    MIN    MAX   LAST  CORES  UNIT
1.000      0  2.000  1.000  ▁█ ▅   a.service
0.500  0.500  0.500  0.500  ▃▃ ▃   =x\\x1b[2J,b
"
        );
        let ascii = text(&series(), &Out::plain(), true);
        assert!(ascii.is_ascii() && ascii.contains("_# ="), "{ascii}");
    }

    #[test]
    fn a_chart_of_fewer_cells_keeps_the_peaks() {
        let mut cores = vec![Some(0.0); 100];
        cores[41] = Some(1.0);
        let chart = spark(&cores, 10, 1.0, false);
        assert_eq!(chart, "▁▁▁▁█▁▁▁▁▁");
        assert_eq!(spark(&[], 10, 0.0, false).trim(), "");
    }

    #[test]
    fn no_data_is_empty_in_csv_null_in_json_and_a_dash_in_a_table() {
        let csv = csv(&series());
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines[0], "start,unit,cores");
        assert_eq!(lines[2], "2025-11-21T00:01:00Z,a.service,2.000000");
        assert_eq!(lines[3], "2025-11-21T00:02:00Z,a.service,");
        assert_eq!(lines[5], "2025-11-21T00:00:00Z,\"'=x\\x1b[2J,b\",0.500000");
        let json: serde_json::Value = serde_json::from_str(&json(&series()).unwrap()).unwrap();
        assert_eq!(json["lines"][0]["labels"]["unit"], "a.service");
        assert!(json["lines"][0]["cores"][2].is_null());
        assert_eq!(json["source"], "kernel");
        let table = table(&series(), &Out::plain(), &Clock::at(0));
        let row = table.lines().nth(3).unwrap();
        assert!(row.contains(":02:00") && row.ends_with('-'), "{table}");
    }
}
