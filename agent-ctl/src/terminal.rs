//! Output to the terminal: escaping of text from outside, colour, tables, standard output.
//!
//! Anybody who runs something on the machine chooses names of tasks, cgroups and functions. Only
//! [`clean`] makes them safe for a terminal, and everything printed as text goes through it. JSON
//! goes through [`json`], which escapes the same characters in JSON's way.

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

/// The work of `note!`. Lines wider than the terminal go on below, indented.
pub fn note(text: std::fmt::Arguments<'_>) {
    let mut text = text.to_string();
    if std::io::stderr().is_terminal() {
        text = hang(&text, columns(), NOTE_INDENT);
    }
    // One write a line, so that those of several processes do not mix.
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Columns by which the rest of a long note is indented.
const NOTE_INDENT: usize = 2;

/// Fewest columns that text is wrapped to: in less it is easier to read as the terminal breaks it.
const HANG_COLUMNS_MIN: usize = 40;

/// Columns of the terminal that this process has; `None` when it has none.
fn columns() -> Option<usize> {
    let size = crossterm::terminal::size().ok();
    size.map(|(columns, _)| usize::from(columns))
        .filter(|&columns| columns > 0)
}

/// The text with lines no wider than `columns`: what is too long goes on below, `indent` columns
/// in. Lines break between words, after a comma or the like where that is not far.
pub fn hang(text: &str, columns: Option<usize>, indent: usize) -> String {
    let Some(columns) = columns.filter(|&columns| columns >= HANG_COLUMNS_MIN) else {
        return text.to_owned();
    };
    let lines: Vec<String> = text
        .split('\n')
        .map(|line| hang_line(line, columns, indent))
        .collect();
    lines.join("\n")
}

fn hang_line(line: &str, columns: usize, indent: usize) -> String {
    let mut out = String::with_capacity(line.len() + 16);
    let (mut rest, mut room, mut from) = (line, columns, indent);
    while let Some(at) = break_at(rest, room, from) {
        out.push_str(rest[..at].trim_end());
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', indent));
        rest = rest[at..].trim_start();
        (room, from) = (columns - indent, 0);
    }
    out.push_str(rest);
    out
}

/// Where a text that is wider than `room` is to be broken: at a space, none of the first `from`
/// cells.
fn break_at(text: &str, room: usize, from: usize) -> Option<usize> {
    let (mut cells, mut in_escape) = (0, false);
    let (mut word, mut phrase) = (None, None);
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        // What colours it takes no room.
        in_escape |= c == '\x1b';
        if in_escape {
            in_escape = c != 'm';
            continue;
        }
        if c == ' ' && cells >= from.max(1) {
            if cells > room {
                return word.or(Some(at));
            }
            word = Some(at);
            if matches!(before, ',' | ';' | ':' | ')') && cells > room / 3 * 2 {
                phrase = Some(at);
            }
        }
        before = c;
        cells += unicode_width::UnicodeWidthChar::width(c).unwrap_or(0);
        if cells > room && word.is_some() {
            return phrase.or(word);
        }
    }
    None
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
#[derive(Clone, Copy, Debug)]
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

    /// No terminal: without colour, as wide as it is.
    pub fn plain() -> Out {
        Out {
            colour: false,
            terminal: false,
        }
    }

    /// True when a person reads it.
    pub fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// True when colour is on.
    pub fn colour(&self) -> bool {
        self.colour
    }

    /// `text`, cleaned, in the colour of its tone where colour is on.
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
        columns()
    }
}

/// A table of text: columns as wide as their content. Where the terminal has too few, those that
/// matter least are left out, and the last one is cut.
pub struct Table {
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
    /// Columns that may be left out, what matters least first.
    spare: Vec<usize>,
    /// Fewest cells that the last column is cut to before others are left out.
    last_cells_min: usize,
}

/// Columns between those of a table.
const GAP: usize = 2;

/// Most cells of a column where no terminal bounds it: one long name must not push the others of
/// its column far away. A longer cell moves what is behind it.
const COLUMN_CELLS_MAX: usize = 100;

/// Most cells of a cell. A C++ name with its templates may have thousands; JSON has all of them.
const CELL_CELLS_MAX: usize = 400;

/// Fewest cells that the last column of a table is cut to before others are left out, where the
/// table does not say.
const LAST_CELLS_MIN: usize = 16;

impl Table {
    /// A table with these headings; those that start with `>` are aligned right.
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
            spare: Vec::new(),
            last_cells_min: LAST_CELLS_MIN,
        }
    }

    /// The same table; where the terminal is too narrow for all columns, those with these headings
    /// are left out, the first one first.
    pub fn sparing(mut self, headings: &[&str]) -> Table {
        let at = |name: &&str| self.rows[0].iter().position(|heading| heading == name);
        self.spare = headings.iter().filter_map(at).collect();
        self
    }

    /// The same table; the last column says what matters, so others are left out before it is cut
    /// to less than these cells.
    pub fn last_at_least(mut self, cells: usize) -> Table {
        self.last_cells_min = cells;
        self
    }

    /// Adds a row; every cell is cleaned.
    pub fn row<S: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(
            cells
                .into_iter()
                .map(|cell| fit(&clean(cell.as_ref()), CELL_CELLS_MAX).into_owned())
                .collect(),
        );
    }

    /// The table as text, headings in strong tone.
    pub fn show(&self, out: &Out) -> String {
        let mut text = String::new();
        for line in self.lines(out) {
            text.push_str(&line);
            text.push('\n');
        }
        text
    }

    /// The table as lines: headings in strong tone, then one of each row.
    pub fn lines(&self, out: &Out) -> Vec<String> {
        let columns = out.columns();
        let mut lines = self.plain(columns);
        lines[0] = out.tone(Tone::Strong, &lines[0]);
        lines
    }

    /// The lines without colour, none wider than `columns`.
    fn plain(&self, columns: Option<usize>) -> Vec<String> {
        let mut widths = vec![0; self.right.len()];
        for row in &self.rows {
            for (column, cell) in widths.iter_mut().zip(row) {
                *column = width(cell).min(COLUMN_CELLS_MAX).max(*column);
            }
        }
        let shown = self.columns_shown(&widths, columns);
        let line = |row: &Vec<String>| {
            let mut line = String::new();
            for &column in &shown {
                let cell = row.get(column).map_or("", String::as_str);
                let pad = widths[column].saturating_sub(width(cell));
                if column != shown[0] {
                    line.extend(std::iter::repeat_n(' ', GAP));
                }
                if self.right[column] {
                    line.extend(std::iter::repeat_n(' ', pad));
                }
                line.push_str(cell);
                if !self.right[column] {
                    line.extend(std::iter::repeat_n(' ', pad));
                }
            }
            let line = line.trim_end();
            match columns {
                Some(columns) => fit(line, columns).into_owned(),
                None => line.to_owned(),
            }
        };
        self.rows.iter().map(line).collect()
    }

    /// The columns for which there is room, with some of the last one.
    fn columns_shown(&self, widths: &[usize], room: Option<usize>) -> Vec<usize> {
        let mut shown: Vec<usize> = (0..widths.len()).collect();
        let mut spare = self.spare.iter();
        while let (Some(room), Some((&last, rest))) = (room, shown.split_last()) {
            let taken: usize = rest.iter().map(|&column| widths[column] + GAP).sum();
            if taken + widths[last].min(self.last_cells_min) <= room {
                break;
            }
            let Some(gone) = spare.next() else { break };
            shown.retain(|column| column != gone);
        }
        shown
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
    fn a_narrow_terminal_has_the_columns_that_matter() {
        let mut table = Table::new(&["HOST", ">CPU", "VERSION", "WARNINGS"]);
        table.row([
            "web-1",
            "1.25",
            "0.1.0",
            "coverage is low, records were lost",
        ]);
        table.row(["database-12", "0.50", "0.1.0", ""]);
        let table = table.sparing(&["VERSION", "CPU"]);
        let shown = |columns| table.plain(columns).join("\n");
        assert_eq!(
            shown(None),
            "HOST          CPU  VERSION  WARNINGS\n\
             web-1        1.25  0.1.0    coverage is low, records were lost\n\
             database-12  0.50  0.1.0"
        );
        assert_eq!(
            shown(Some(40)),
            "HOST          CPU  WARNINGS\n\
             web-1        1.25  coverage is low, rec…\n\
             database-12  0.50"
        );
        assert_eq!(
            shown(Some(30)),
            "HOST         WARNINGS\n\
             web-1        coverage is low,…\n\
             database-12"
        );
        for columns in 1..60 {
            let lines = table.plain(Some(columns));
            assert!(lines.iter().all(|line| width(line) <= columns), "{columns}");
        }
    }

    #[test]
    fn one_long_name_does_not_push_the_others_away() {
        let mut table = Table::new(&["FUNCTION", "MODULE"]);
        table.row(["x".repeat(1000).as_str(), "libx.so"]);
        table.row(["short", "libx.so"]);
        let lines = table.plain(None);
        assert_eq!(width(&lines[1]), CELL_CELLS_MAX + GAP + "libx.so".len());
        assert_eq!(width(&lines[2]), COLUMN_CELLS_MAX + GAP + "libx.so".len());
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
    fn long_lines_go_on_below_between_words() {
        let wrapped = |text: &str, columns, indent| hang(text, Some(columns), indent);
        let text = "samples    one two three, four five six seven eight nine";
        assert_eq!(
            wrapped(text, 40, 11),
            "samples    one two three, four five six\n           seven eight nine"
        );
        // After a comma where that is near the end: numbers stay with their units.
        let text = "0 lost (0.0 %), truncated 72.5 %, unnamed 0.1 %";
        assert_eq!(
            wrapped(text, 41, 2),
            "0 lost (0.0 %), truncated 72.5 %,\n  unnamed 0.1 %"
        );
        // A word without spaces is not broken; colours take no room.
        let long = "x".repeat(50);
        assert_eq!(wrapped(&long, 40, 2), long);
        assert_eq!(wrapped(&format!("{long} y"), 40, 2), format!("{long}\n  y"));
        let coloured = "\x1b[1msampling  \x1b[0m cpu-clock at 99 Hz on two";
        assert_eq!(wrapped(coloured, 40, 11), coloured);
        for columns in 40..120 {
            let text = "alpha beta, gamma delta; ".repeat(20);
            let lines = wrapped(text.trim_end(), columns, 4);
            assert!(lines.lines().all(|line| width(line) <= columns), "{lines}");
            let words = |text: &str| text.split_whitespace().count();
            assert_eq!(words(&lines), words(&text));
        }
        assert_eq!(hang("a b", None, 2), "a b");
    }

    #[test]
    fn text_is_cut_by_cells() {
        assert_eq!(fit("abcdef", 4), "abc…");
        assert_eq!(fit("日本語", 5), "日本…");
        assert_eq!(fit("abc", 3), "abc");
        assert_eq!(fit("abc", 0), "");
    }
}
