//! How figures are shown: as aligned text for people, as Markdown for docs/measurements.

use crate::machine::Machine;
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;

/// Rows of text under headings. The first column is words, the others are numbers.
#[derive(Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings.
    pub fn new(headings: &[&str]) -> Table {
        let mut table = Table::default();
        table.row(headings.iter().map(|&heading| heading.to_owned()));
        table
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Adds cells to the row that was added last.
    pub fn extend_last(&mut self, cells: impl IntoIterator<Item = String>) {
        if let Some(last) = self.rows.last_mut() {
            last.extend(cells);
        }
    }

    /// As aligned columns.
    pub fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                line += &match column {
                    0 => format!("{cell:<width$}"),
                    _ => format!("  {cell:>width$}"),
                };
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }

    /// As a Markdown table.
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        for (number, row) in self.rows.iter().enumerate() {
            let cells: Vec<String> = row.iter().map(|cell| cell.replace('|', "\\|")).collect();
            let _ = writeln!(text, "| {} |", cells.join(" | "));
            if number == 0 {
                let _ = writeln!(text, "|---{}|", "|---:".repeat(row.len().saturating_sub(1)));
            }
        }
        text
    }
}

/// Prints a report as `text` has it, and writes it as JSON to `file` beside that; with `-` prints
/// the JSON instead.
///
/// # Errors
/// When the file cannot be written.
pub fn put<R: Serialize>(
    report: &R,
    file: Option<&Path>,
    text: impl FnOnce(&R) -> String,
) -> anyhow::Result<()> {
    let json = serde_json::to_string_pretty(report)?;
    match file {
        Some(file) if file.as_os_str() == "-" => println!("{json}"),
        file => {
            if let Some(file) = file {
                std::fs::write(file, json)?;
            }
            print!("{}", text(report));
        }
    }
    Ok(())
}

/// The machine in two lines.
pub fn machine(machine: &Machine) -> String {
    format!(
        "machine  {} × {}, {} GiB\n         Linux {}, {}, {}, {} build\n",
        machine.cpus,
        machine.model,
        machine.memory_gib,
        machine.kernel,
        machine.perf,
        machine.date,
        machine.build
    )
}

/// A number with so many digits after the point; a dash when there is none.
pub fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or("–".to_owned(), |value| format!("{value:.digits$}"))
}

/// A share in per cent.
pub fn percent(share: Option<f64>) -> String {
    share.map_or("–".to_owned(), |share| format!("{:.1} %", share * 100.0))
}

/// A count with commas between thousands.
pub fn count(value: Option<u64>) -> String {
    let Some(value) = value else {
        return "–".to_owned();
    };
    let digits = value.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes in MiB.
pub fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// The middle of these; 0 of none.
pub fn median(all: &[f64]) -> f64 {
    let mut all = all.to_vec();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&["what", "n"]);
        table.row(["a|b".to_owned(), count(Some(1_234_567))]);
        table
    }

    #[test]
    fn text_is_aligned() {
        assert_eq!(table().text(), "what          n\na|b   1,234,567\n");
    }

    #[test]
    fn markdown_has_a_rule_and_escapes() {
        assert_eq!(
            table().markdown(),
            "| what | n |\n|---|---:|\n| a\\|b | 1,234,567 |\n"
        );
    }

    #[test]
    fn what_is_not_known_is_a_dash() {
        assert_eq!((number(None, 2), percent(None)), ("–".into(), "–".into()));
        assert_eq!((count(Some(999)), count(None)), ("999".into(), "–".into()));
    }
}
