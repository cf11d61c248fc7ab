//! Shows an annotated function: as text for people, as JSON for scripts.

use super::code::{Code, Decoded, Place};
use super::source::Sources;
use super::tally::{At, Binary, Line, Sums, Tally};
use crate::terminal::{Out, Table, Tone, clean, json};
use crate::units;
use anyhow::Result;
use profile::FrameKind;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

/// Lines and instructions shown on each side of one with samples.
const AROUND: usize = 3;

/// Functions of one file shown by instruction, those with most samples: one that was inlined may be
/// in hundreds.
const FUNCTIONS_MAX: usize = 8;

/// Source files read, those with most samples: a function into which much was inlined has lines in
/// dozens.
const SOURCES_MAX: usize = 8;

/// Kinds of frames with instructions in files.
const NATIVE: [FrameKind; 2] = [FrameKind::Native, FrameKind::Inlined];

/// Hot means at least this fraction of the function's samples.
const HOT: f64 = 0.1;

/// Everything that is known of a function.
pub struct Listing<'p> {
    tally: &'p Tally<'p>,
    /// What samples are called.
    unit: &'static str,
    files: Vec<SourceFile<'p>>,
    code: Option<Vec<ModuleCode<'p>>>,
    /// What is missing, and why.
    notes: Vec<String>,
}

/// Lines of one source file.
struct SourceFile<'p> {
    path: &'p str,
    /// Its text; empty when it cannot be read.
    text: Vec<String>,
    lines: BTreeMap<u32, Sums>,
}

impl SourceFile<'_> {
    /// Reads its text, and notes why there is none or it is not that of the samples.
    fn read(&mut self, sources: &Sources, notes: &mut Vec<String>) {
        match sources.read(self.path) {
            Ok(text) => self.text = text,
            Err(why) => return notes.push(why),
        }
        let last = self.lines.keys().next_back().copied().unwrap_or_default();
        if last as usize > self.text.len() {
            notes.push(format!(
                "`{}` has {} lines here, but samples are at line {last}: it is not the version \
                 that was built",
                clean(self.path),
                self.text.len()
            ));
        }
    }
}

/// Instructions of one file, those with samples and what is around them.
struct ModuleCode<'p> {
    module: &'p str,
    build_id: &'p str,
    rows: Vec<Row<'p>>,
}

/// One instruction; without one a gap.
#[derive(Clone)]
enum Row<'p> {
    Gap,
    At(u64, Option<At<'p>>, String),
}

impl<'p> Listing<'p> {
    /// Looks up what is known of a function, by instruction where that is asked for or lines are
    /// not known.
    pub fn of(
        tally: &'p Tally<'p>,
        unit: &'static str,
        sources: &Sources,
        place: &Place,
        instructions: bool,
    ) -> Listing<'p> {
        let mut notes = Vec::new();
        let mut files: BTreeMap<&str, BTreeMap<u32, Sums>> = BTreeMap::new();
        for (&(file, line), &sums) in tally.lines.iter().filter(|((_, line), _)| *line > 0) {
            files.entry(file).or_default().insert(line, sums);
        }
        let unknown: u64 = of_lines(tally, |line| line == 0);
        if unknown > 0 && !files.is_empty() {
            let share = units::percent(unknown, tally.sums.total);
            notes.push(format!("{share} of the samples have no source line"));
        }
        let instructions = instructions || files.is_empty();
        let is_native = NATIVE.iter().any(|kind| tally.kinds.contains(kind.word()));
        if files.is_empty() && is_native {
            notes.push("no source lines: the agent finds no debug information".to_owned());
        }
        if !is_native {
            notes.push("only native code has instructions".to_owned());
        }
        if tally.binaries.len() > 1 && !files.is_empty() {
            let builds = tally.binaries.len();
            notes.push(format!(
                "the samples come from {builds} builds; lines combine all of them"
            ));
        }
        let mut files: Vec<SourceFile<'_>> = files
            .into_iter()
            .map(|(path, lines)| SourceFile {
                path,
                text: Vec::new(),
                lines,
            })
            .collect();
        let weight =
            |file: &SourceFile<'_>| file.lines.values().map(|sums| sums.total).sum::<u64>();
        files.sort_by_key(|file| (Reverse(weight(file)), file.path));
        for file in files.iter_mut().take(SOURCES_MAX) {
            file.read(sources, &mut notes);
        }
        if let Some(more @ 1..) = files.len().checked_sub(SOURCES_MAX) {
            notes.push(format!(
                "more than {SOURCES_MAX} source files: {more} not read"
            ));
        }
        let code = instructions.then(|| {
            if tally.binaries.is_empty() && is_native {
                notes.push(
                    "no instructions: the file of the code has no build id, or the agent is too old"
                        .to_owned(),
                );
            }
            let binaries = tally.binaries.iter();
            binaries
                .map(|(build_id, binary)| part(build_id, binary, place, &mut notes))
                .collect()
        });
        Listing {
            tally,
            unit,
            files,
            code,
            notes,
        }
    }

    /// What is missing, and why.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// As text.
    pub fn text(&self, out: &Out) -> String {
        let Tally {
            function,
            kinds,
            modules,
            sums,
            all,
            ..
        } = self.tally;
        let kinds: Vec<&str> = kinds.iter().copied().collect();
        let modules: Vec<&str> = modules
            .iter()
            .copied()
            .filter(|name| !name.is_empty())
            .collect();
        let mut text = out.tone(Tone::Strong, function);
        let of = match modules.is_empty() {
            true => kinds.join(", "),
            false => format!("{}, {}", kinds.join(", "), modules.join(", ")),
        };
        text.push_str(&format!(
            " ({}): {} {} in it, {} with what it calls, {} of {}\n",
            clean(&of),
            units::count(sums.own),
            self.unit,
            units::count(sums.total),
            units::percent(sums.total, *all),
            units::count(*all)
        ));
        for file in &self.files {
            text.push_str(&format!("\n{}\n", out.tone(Tone::Strong, file.path)));
            text.push_str(&self.source(file, out));
        }
        for part in self.code.iter().flatten() {
            let head = format!("{} {}", part.module, part.build_id);
            text.push_str(&format!("\n{}\n", out.tone(Tone::Strong, &head)));
            text.push_str(&self.instructions(part, out));
        }
        text
    }

    fn source(&self, file: &SourceFile<'_>, out: &Out) -> String {
        let mut table = Table::new(&[">SELF", ">TOTAL", ">LINE", "SOURCE"]);
        let mut sums = vec![Sums::default()];
        let numbers: Vec<usize> = file.lines.keys().map(|&line| line as usize - 1).collect();
        let ranges = match file.text.is_empty() {
            true => numbers.iter().map(|&at| at..at + 1).collect(),
            false => around(&numbers, file.text.len()),
        };
        let mut end = None;
        for range in ranges {
            if !file.text.is_empty() && end.is_some_and(|end| end < range.start) {
                table.row(["", "", "…", ""]);
                sums.push(Sums::default());
            }
            end = Some(range.end);
            for at in range {
                let own = file.lines.get(&(at as u32 + 1)).copied();
                let text = file.text.get(at).map_or("", String::as_str);
                let [self_, total] = self.columns(own);
                table.row([self_, total, (at + 1).to_string(), text.to_owned()]);
                sums.push(own.unwrap_or_default());
            }
        }
        self.lit(&table, &sums, out)
    }

    fn instructions(&self, part: &ModuleCode<'_>, out: &Out) -> String {
        let mut table = Table::new(&[">SELF", ">TOTAL", ">ADDRESS", "INSTRUCTION", "LINE"]);
        let mut sums = vec![Sums::default()];
        for row in &part.rows {
            match row {
                Row::Gap => {
                    table.row(["", "", "…"]);
                    sums.push(Sums::default());
                }
                Row::At(address, at, text) => {
                    let [self_, total] = self.columns(at.as_ref().map(|at| at.sums));
                    let line = at.as_ref().map_or_else(String::new, |at| short(at.line));
                    table.row([self_, total, format!("{address:x}"), text.clone(), line]);
                    sums.push(at.as_ref().map_or_else(Sums::default, |at| at.sums));
                }
            }
        }
        self.lit(&table, &sums, out)
    }

    fn columns(&self, sums: Option<Sums>) -> [String; 2] {
        let all = self.tally.sums.total;
        match sums {
            None => [String::new(), String::new()],
            Some(Sums { own, total }) => [own, total].map(|part| match part {
                0 => String::new(),
                _ => units::percent(part, all),
            }),
        }
    }

    /// The table, hot rows lit: `sums` are of its rows, the heading first.
    fn lit(&self, table: &Table, sums: &[Sums], out: &Out) -> String {
        let mut text = String::new();
        for (at, line) in table.lines(out).iter().enumerate() {
            let own = sums.get(at).map_or(0, |sums| sums.own);
            match at > 0 && units::share(own, self.tally.sums.total) >= HOT {
                true => text.push_str(&out.tone(Tone::Bad, line)),
                false => text.push_str(line),
            }
            text.push('\n');
        }
        text
    }

    /// As JSON.
    ///
    /// # Errors
    /// When it cannot be serialized.
    pub fn json(&self) -> Result<String> {
        let Tally {
            function,
            kinds,
            modules,
            sums,
            all,
            ..
        } = self.tally;
        let lines = self.files.iter().flat_map(|file| {
            file.lines.iter().map(|(&line, sums)| LineJson {
                file: file.path,
                line,
                own: sums.own,
                total: sums.total,
                text: file.text.get(line as usize - 1),
            })
        });
        let parts = self.code.as_ref();
        let instructions = parts.map(|parts| {
            let rows = parts.iter().flat_map(|part| {
                part.rows.iter().filter_map(|row| match row {
                    Row::At(address, Some(at), text) => Some(InstructionJson {
                        module: part.module,
                        build_id: part.build_id,
                        address: format!("{address:#x}"),
                        own: at.sums.own,
                        total: at.sums.total,
                        text: (!text.is_empty()).then_some(text),
                        file: at.line.0,
                        line: at.line.1,
                    }),
                    _ => None,
                })
            });
            rows.collect()
        });
        let json_ = Json {
            function,
            kinds: kinds.iter().copied().collect(),
            modules: modules.iter().copied().collect(),
            unit: self.unit,
            all: *all,
            own: sums.own,
            total: sums.total,
            lines: lines.collect(),
            instructions,
            notes: &self.notes,
        };
        Ok(json(&json_, true)? + "\n")
    }
}

/// Samples of the lines that are meant.
fn of_lines(tally: &Tally<'_>, meant: impl Fn(u32) -> bool) -> u64 {
    let lines = tally.lines.iter().filter(|((_, line), _)| meant(*line));
    lines.map(|(_, sums)| sums.total).sum()
}

/// Ranges of what is shown of `len` rows: those at `places`, which are in order, and those around
/// them.
fn around(places: &[usize], len: usize) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for &place in places {
        let range = place.saturating_sub(AROUND)..(place + AROUND + 1).min(len.max(place + 1));
        match ranges.last_mut() {
            Some(last) if range.start <= last.end => last.end = range.end.max(last.end),
            _ => ranges.push(range),
        }
    }
    ranges
}

/// The instructions of one file with samples. What is not known is noted.
fn part<'p>(
    build_id: &'p str,
    binary: &Binary<'p>,
    place: &Place,
    notes: &mut Vec<String>,
) -> ModuleCode<'p> {
    let mut rows = Vec::new();
    // Those not shown within their function yet.
    let mut left = binary.places.clone();
    match place.open(build_id, binary.module, binary.pids.iter().copied()) {
        Err(why) => notes.push(why),
        Ok(code) => {
            let mut functions = functions(&code, binary, &mut left, notes);
            functions.sort_by_key(|function| function.first().map(|(row, _)| row.address));
            for function in functions {
                if !rows.is_empty() {
                    rows.push(Row::Gap);
                }
                show(&function, &mut rows);
            }
        }
    }
    if !rows.is_empty() && !left.is_empty() {
        rows.push(Row::Gap);
    }
    let bare = left.into_iter();
    rows.extend(bare.map(|(address, at)| Row::At(address, Some(at), String::new())));
    ModuleCode {
        module: binary.module,
        build_id,
        rows,
    }
}

/// An instruction and its samples.
type Counted<'p> = (Decoded, Option<At<'p>>);

/// Removes places from `left` and returns the functions that contain them, most samples first.
fn functions<'p>(
    code: &Code,
    binary: &Binary<'p>,
    left: &mut BTreeMap<u64, At<'p>>,
    notes: &mut Vec<String>,
) -> Vec<Vec<Counted<'p>>> {
    let mut functions = Vec::new();
    let mut refused = 0;
    let mut by_weight: Vec<(u64, u64)> =
        left.iter().map(|(&at, one)| (at, one.sums.total)).collect();
    by_weight.sort_by_key(|&(at, total)| (Reverse(total), at));
    for (address, _) in by_weight {
        if functions.len() + refused == FUNCTIONS_MAX {
            break;
        }
        if !left.contains_key(&address) {
            continue;
        }
        let decoded = match code.function(address) {
            Ok(decoded) => decoded,
            Err(why) => {
                notes.push(why);
                refused += 1;
                continue;
            }
        };
        let counted = decoded.into_iter().map(|row| {
            // An address within a call stands for it.
            let instruction = row.address..row.next;
            let within = left.range(instruction.clone()).map(|(&at, _)| at);
            let within: Vec<u64> = within.collect();
            let sums = match within.is_empty() {
                true => None,
                false => binary.at(instruction),
            };
            for at in &within {
                left.remove(at);
            }
            (row, sums)
        });
        let counted: Vec<Counted<'p>> = counted.collect();
        match counted.iter().any(|(_, at)| at.is_some()) {
            true => functions.push(counted),
            false => refused += 1,
        }
    }
    functions
}

/// Adds the rows of a function that have samples, and what is around them.
fn show<'p>(function: &[Counted<'p>], rows: &mut Vec<Row<'p>>) {
    let sampled = function.iter().enumerate();
    let sampled = sampled
        .filter(|(_, (_, at))| at.is_some())
        .map(|(at, _)| at);
    let sampled: Vec<usize> = sampled.collect();
    for (number, range) in around(&sampled, function.len()).into_iter().enumerate() {
        if number > 0 {
            rows.push(Row::Gap);
        }
        let shown = function[range].iter();
        rows.extend(shown.map(|(row, at)| Row::At(row.address, at.clone(), row.text.clone())));
    }
}

/// `work.c:12`; nothing when it is not known.
fn short((file, line): Line<'_>) -> String {
    match line {
        0 => String::new(),
        _ => format!("{}:{line}", file.rsplit('/').next().unwrap_or_default()),
    }
}

#[derive(Serialize)]
struct Json<'a> {
    function: &'a str,
    kinds: Vec<&'a str>,
    modules: Vec<&'a str>,
    /// What is counted.
    unit: &'a str,
    /// Samples of all functions.
    all: u64,
    #[serde(rename = "self")]
    own: u64,
    total: u64,
    lines: Vec<LineJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    instructions: Option<Vec<InstructionJson<'a>>>,
    /// What is missing, and why.
    notes: &'a [String],
}

#[derive(Serialize)]
struct LineJson<'a> {
    file: &'a str,
    line: u32,
    #[serde(rename = "self")]
    own: u64,
    total: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a String>,
}

#[derive(Serialize)]
struct InstructionJson<'a> {
    module: &'a str,
    build_id: &'a str,
    address: String,
    #[serde(rename = "self")]
    own: u64,
    total: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a String>,
    file: &'a str,
    line: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_of_several_builds_and_of_many_files_is_told() {
        let paths: Vec<String> = (0..10).map(|at| format!("src/{at}.c")).collect();
        let sums = Sums { own: 1, total: 1 };
        let tally = Tally {
            function: "walk",
            kinds: [FrameKind::Inlined.word()].into(),
            modules: ["api"].into(),
            sums,
            all: 1,
            lines: paths.iter().map(|path| ((&**path, 3), sums)).collect(),
            binaries: [("aa", Binary::default()), ("bb", Binary::default())].into(),
        };
        let (sources, place) = (Sources::default(), Place::default());
        let shown = Listing::of(&tally, "samples", &sources, &place, false);
        let notes = shown.notes();
        assert_eq!(
            notes[0],
            "the samples come from 2 builds; lines combine all of them"
        );
        let unread = notes.iter().filter(|note| note.contains("--source-dir"));
        assert_eq!(unread.count(), SOURCES_MAX);
        assert_eq!(notes[9], "more than 8 source files: 2 not read");
    }
}
