//! The edge to the terminal: escaping of text from outside, colour, tables, standard output.
//!
//! Names of tasks, cgroups and functions are chosen by whoever runs something on the machine.
//! [`clean`] is the one function that makes them fit for a terminal; everything printed as text goes
//! through it. JSON goes through [`json`], which escapes the same characters in JSON's way.

use anyhow::Context;
use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use unicode_width::UnicodeWidthStr;

/// True for what must not reach a terminal: what no output may carry, and on top of it characters
/// that are not seen, with which one name can be made to look like another.
fn is_hostile(c: char) -> bool {
    profile::text::is_hostile(c)
        || matches!(c,
            '\u{ad}' | '\u{180e}'
            // Zero width, invisible operators, deprecated formatting.
            | '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{206f}'
            | '\u{fff9}'..='\u{fffb}'
            // Tags: text that nobody sees.
            | '\u{e0000}'..='\u{e007f}')
}

/// Text from outside made safe for a terminal: hostile characters become `\n`, `\x1b`, `\u{202e}`.
pub fn clean(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hostile) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if is_hostile(c) && c.is_ascii() => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c if is_hostile(c) => {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// [`clean`] for text of our own that holds text of others: its line breaks stay.
pub fn clean_lines(text: &str) -> String {
    text.split('\n').map(clean).collect::<Vec<_>>().join("\n")
}

/// A value as JSON without any character that [`clean`] would escape; the value stays the same.
///
/// # Errors
/// When the value cannot be serialized.
pub fn json(value: &impl serde::Serialize, pretty: bool) -> serde_json::Result<String> {
    let text = if pretty {
        serde_json::to_string_pretty(value)?
    } else {
        serde_json::to_string(value)?
    };
    // Outside of strings JSON is ASCII without control characters but line breaks, so what is
    // hostile beyond those is inside a string.
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c != '\n' && is_hostile(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    Ok(out)
}

/// The work of `note!`.
pub fn note(text: std::fmt::Arguments<'_>) {
    // One write a line, so that those of several processes do not mix.
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Writes to standard output at once.
///
/// # Errors
/// When nobody reads it, or it cannot be written: the error says what it was.
pub fn write_stdout(bytes: &[u8]) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(bytes).and_then(|()| stdout.flush());
    written.context("failed to write to standard output")
}

/// Cells a text takes on a terminal.
pub fn width(text: &str) -> usize {
    text.width()
}

/// The text cut to `cells`, with `…` where something is missing.
pub fn fit(text: &str, cells: usize) -> Cow<'_, str> {
    if width(text) <= cells {
        return Cow::Borrowed(text);
    }
    let mut out = String::new();
    let mut used = 0;
    for c in text.chars() {
        let wide = unicode_width::UnicodeWidthChar::width(c).unwrap_or(0);
        if used + wide + 1 > cells {
            break;
        }
        used += wide;
        out.push(c);
    }
    if cells > 0 {
        out.push('…');
    }
    Cow::Owned(out)
}

/// What a text means; how it looks depends on the terminal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// Headings.
    Strong,
    /// As it should be.
    Good,
    /// Something is missing.
    Warn,
    /// Does not work.
    Bad,
    /// Less important.
    Dim,
}

/// Standard output and whether it takes colour.
pub struct Out {
    colour: bool,
    terminal: bool,
}

impl Out {
    /// Standard output; colour on terminals, unless `NO_COLOR` is set or the terminal is dumb.
    pub fn stdout() -> Out {
        let terminal = std::io::stdout().is_terminal();
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Out {
            colour: terminal && !set("NO_COLOR") && !dumb,
            terminal,
        }
    }

    /// True when a person reads it.
    pub fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// True when colour is wanted.
    pub fn colour(&self) -> bool {
        self.colour
    }

    /// `text`, cleaned, in the colour of its tone where that is wanted.
    pub fn tone(&self, tone: Tone, text: &str) -> String {
        let text = clean(text);
        if !self.colour {
            return text.into_owned();
        }
        let code = match tone {
            Tone::Strong => "1",
            Tone::Good => "32",
            Tone::Warn => "33",
            Tone::Bad => "31",
            Tone::Dim => "2",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    /// Writes to standard output at once.
    ///
    /// # Errors
    /// When nobody reads it, or it cannot be written.
    pub fn write(&self, text: &str) -> anyhow::Result<()> {
        write_stdout(text.as_bytes())
    }

    /// Writes a value as JSON, several lines for one answer.
    ///
    /// # Errors
    /// When it cannot be serialized or written.
    pub fn write_json(&self, value: &impl serde::Serialize) -> anyhow::Result<()> {
        self.write(&(json(value, true)? + "\n"))
    }

    /// Columns of the terminal; `None` when output goes elsewhere.
    pub fn columns(&self) -> Option<usize> {
        if !self.terminal {
            return None;
        }
        crossterm::terminal::size()
            .ok()
            .map(|(columns, _)| usize::from(columns))
            .filter(|&c| c > 0)
    }
}

/// A table of text: columns as wide as their content, the last one cut to the terminal.
pub struct Table {
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings; those that begin with `>` are aligned right.
    pub fn new(headings: &[&str]) -> Table {
        let right = headings
            .iter()
            .map(|heading| heading.starts_with('>'))
            .collect();
        let heading = headings
            .iter()
            .map(|h| h.trim_start_matches('>').to_owned())
            .collect();
        Table {
            right,
            rows: vec![heading],
        }
    }

    /// Adds a row; every cell is cleaned.
    pub fn row<S: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(
            cells
                .into_iter()
                .map(|cell| clean(cell.as_ref()).into_owned())
                .collect(),
        );
    }

    /// The table as lines, headings in strong tone.
    pub fn show(&self, out: &Out) -> String {
        let mut widths = vec![0; self.right.len()];
        for row in &self.rows {
            for (column, cell) in widths.iter_mut().zip(row) {
                *column = width(cell).max(*column);
            }
        }
        let mut text = String::new();
        for (at, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let pad = widths[column].saturating_sub(width(cell));
                if column > 0 {
                    line.push_str("  ");
                }
                if self.right[column] {
                    line.extend(std::iter::repeat_n(' ', pad));
                }
                line.push_str(cell);
                if !self.right[column] && column + 1 < row.len() {
                    line.extend(std::iter::repeat_n(' ', pad));
                }
            }
            let line = line.trim_end();
            let line = match out.columns() {
                Some(columns) => fit(line, columns),
                None => Cow::Borrowed(line),
            };
            if at == 0 {
                text.push_str(&out.tone(Tone::Strong, &line))
            } else {
                text.push_str(&line)
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Out = Out {
        colour: false,
        terminal: false,
    };

    #[test]
    fn hostile_text_is_made_visible() {
        for (text, expected) in [
            ("nginx: worker", "nginx: worker"),
            ("päth/日本", "päth/日本"),
            ("a\nb\r\tc", "a\\nb\\r\\tc"),
            ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("a\u{202e}txt.exe", "a\\u{202e}txt.exe"),
            ("zero\u{200b}width", "zero\\u{200b}width"),
            ("x\u{7f}", "x\\x7f"),
            ("\u{2066}iso\u{2069}", "\\u{2066}iso\\u{2069}"),
        ] {
            assert_eq!(clean(text), expected);
        }
    }

    #[test]
    fn cleaning_leaves_nothing_hostile() {
        for c in '\0'..=char::MAX {
            assert!(
                !clean(c.encode_utf8(&mut [0; 4])).contains(is_hostile),
                "{c:?}"
            );
        }
    }

    #[test]
    fn json_says_the_same_without_hostile_characters() {
        let text = "\x1b[2J\n\u{202e}\u{9b}\u{e0041} \"é\"\x7f";
        let json = json(&text, false).unwrap();
        assert!(!json.contains(is_hostile), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
    }

    #[test]
    fn tables_align_and_escape() {
        let mut table = Table::new(&[">CPU", "NAME", "NOTE"]);
        table.row(["7 %", "日本", "x"]);
        table.row(["100 %", "a\nb", ""]);
        assert_eq!(
            table.show(&PLAIN),
            "  CPU  NAME  NOTE\n  7 %  日本  x\n100 %  a\\nb\n"
        );
    }

    #[test]
    fn text_is_cut_by_cells() {
        assert_eq!(fit("abcdef", 4), "abc…");
        assert_eq!(fit("日本語", 5), "日本…");
        assert_eq!(fit("abc", 3), "abc");
        assert_eq!(fit("abc", 0), "");
    }
}
