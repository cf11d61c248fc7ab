//! Reads the text of `perf script`, of any version and with any fields.
//!
//! The text is untrusted. A line that cannot be read is skipped and counted; the stack of an event
//! is cut at the depth limit; names that are too long are cut. If a file has several events, the
//! first is used, as in other readers. A single number before the time is taken for the process,
//! though perf may mean the thread; CPUs are ignored.

use crate::formats::{Import, Known, is_dateless};
use crate::frame::{FrameId, FrameKind, FrameRef};
use crate::labels::key;
use crate::outcome::{StackEnd, UnnamedReason};
use crate::profile::Profile;
use crate::sample::{SampleKey, Value};
use crate::timestamps::{Timestamp, Timestamps};
use hashbrown::HashMap;

/// Most frames of one stack; the root end of deeper ones is cut. The kernel's own limit is far
/// below.
pub const STACK_FRAMES_MAX: usize = 8_192;

/// Longest name of a function, module or process. Unit: bytes. C++ makes names of some thousands.
pub const NAME_BYTES_MAX: usize = 8_192;

/// Lines examined to decide whether a text has this format.
const LINES_TRIED: usize = 200;

/// Why a text is not perf's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PerfScriptError {
    /// No line is an event.
    #[error(
        "failed to read perf script text: no event in {lines} lines; line {line} is neither an \
         event nor a frame"
    )]
    NoEvents {
        /// Lines of the text.
        lines: usize,
        /// The first that could not be read, 1-based; 0: there is none.
        line: usize,
    },
}

/// The line above a stack.
#[derive(Debug, Default, PartialEq, Eq)]
struct EventLine<'t> {
    comm: &'t str,
    pid: &'t str,
    at_ns: Option<u64>,
    period: Option<u64>,
    event: &'t str,
    /// What follows the event: where no stack was recorded, the one frame.
    rest: &'t str,
}

/// True when a text seems to be perf's: one of its first lines is an event with its time, or one
/// without and a frame below it.
pub fn looks_like(text: &str) -> bool {
    let lines = text.lines().take(LINES_TRIED);
    let lines = lines.filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let mut above = false;
    for line in lines {
        if above && line.starts_with([' ', '\t']) && frame_line(line.trim()).is_some() {
            return true;
        }
        let event = event_line(line);
        above = event.as_ref().is_some_and(|event| !event.pid.is_empty());
        if event.is_some_and(|event| event.at_ns.is_some() || above && !event.event.is_empty()) {
            return true;
        }
    }
    false
}

/// Reads the text. The caller bounds its length; memory taken is a small multiple of it.
///
/// # Errors
/// When there is no event in it.
pub fn read(text: &str) -> Result<Import, PerfScriptError> {
    let mut reader = Reader::default();
    let mut lines = 0;
    for line in text.lines() {
        lines += 1;
        reader.line(line.trim_end(), lines);
    }
    reader.flush();
    if reader.events.is_empty() && reader.untimed == 0 {
        return Err(PerfScriptError::NoEvents {
            lines,
            line: reader.first_skipped,
        });
    }
    if !text.ends_with('\n') {
        let note = "the text ends in the middle of a line: the last stack may be incomplete";
        reader.notes.push(note.to_owned());
    }
    Ok(reader.finish())
}

/// The sample with the frames being read.
struct Open<'t> {
    line: EventLine<'t>,
    /// Leaf first.
    frames: Vec<FrameId>,
    is_deep: bool,
}

#[derive(Default)]
struct Reader<'t> {
    profile: Profile,
    open: Option<Open<'t>>,
    /// The event that is taken: the file's first.
    event: Option<&'t str>,
    /// Frames by what stands behind their address.
    known: HashMap<&'t str, FrameId>,
    events: Vec<(u64, SampleKey, u64)>,
    untimed: u64,
    without_period: u64,
    skipped: u64,
    first_skipped: usize,
    other_events: u64,
    deep: u64,
    notes: Vec<String>,
    cut_names: u64,
}

impl<'t> Reader<'t> {
    fn line(&mut self, line: &'t str, number: usize) {
        if line.trim().is_empty() {
            return self.flush();
        }
        if line.starts_with('#') {
            return;
        }
        // A stack is indented by a tab, or by spaces if perf was given a list of fields to print,
        // and then events without a stack are, too.
        let event = match line.as_bytes()[0] {
            b'\t' => None,
            b' ' if self.open.is_some() => event_line(line).filter(|found| found.at_ns.is_some()),
            _ => event_line(line),
        };
        if let Some(event) = event {
            self.flush();
            let mut open = Open {
                line: event,
                frames: Vec::new(),
                is_deep: false,
            };
            if let Some((symbol, module)) = frame_line(open.line.rest) {
                let frame = self.frame(open.line.rest, symbol, module);
                open.frames.push(frame);
            }
            self.open = Some(open);
            return;
        }
        let found = frame_line(line.trim_start());
        match (found, self.open.take()) {
            (Some((symbol, module)), Some(mut open)) => {
                if open.frames.len() < STACK_FRAMES_MAX {
                    let frame = self.frame(line.trim_start(), symbol, module);
                    open.frames.push(frame);
                } else {
                    open.is_deep = true;
                }
                self.open = Some(open);
            }
            (_, open) => {
                self.open = open;
                self.skipped += 1;
                if self.first_skipped == 0 {
                    self.first_skipped = number;
                }
            }
        }
    }

    fn frame(&mut self, line: &'t str, symbol: &'t str, module: &'t str) -> FrameId {
        let behind = line.split_once(' ').map_or(line, |(_, behind)| behind);
        if let Some(&known) = self.known.get(behind) {
            return known;
        }
        let symbol = self.name(without_offset(symbol.trim()));
        let module = self.name(module);
        let frame = self.profile.dict.intern_frame(describe(
            symbol,
            module,
            &format!("[{}]", base_name(module)),
        ));
        self.known.insert(behind, frame);
        frame
    }

    /// A name no longer than is kept.
    fn name(&mut self, name: &'t str) -> &'t str {
        if name.len() <= NAME_BYTES_MAX {
            return name;
        }
        self.cut_names += 1;
        &name[..name.floor_char_boundary(NAME_BYTES_MAX)]
    }

    /// Ends the sample with the frames that were read.
    fn flush(&mut self) {
        let Some(open) = self.open.take() else {
            return;
        };
        let Open {
            line,
            mut frames,
            is_deep,
        } = open;
        let taken = *self.event.get_or_insert(line.event);
        if line.event != taken {
            self.other_events += 1;
            return;
        }
        frames.reverse();
        let first = frames.first().map(|&frame| self.profile.dict.frame(frame));
        let lost = first.is_some_and(|frame| {
            frame.kind == FrameKind::Synthetic && frame.function == crate::LOST_FRAME
        });
        let comm = self.name(line.comm);
        let pairs = [(key::COMM, comm), (key::PID, line.pid)];
        let labels = self.profile.dict.intern_labels(pairs);
        let key = SampleKey {
            labels,
            stack: self.profile.dict.stacks.intern(frames),
            end: match (is_deep, lost) {
                (true, _) => StackEnd::DepthLimit,
                (_, true) => StackEnd::Lost,
                _ => StackEnd::Complete,
            },
        };
        self.deep += u64::from(is_deep);
        self.without_period += u64::from(line.period.is_none());
        let weight = line.period.unwrap_or(1);
        self.profile.add(key, Value { count: 1, weight });
        match line.at_ns {
            Some(at) => self.events.push((at, key, weight)),
            None => self.untimed += 1,
        }
    }

    fn finish(mut self) -> Import {
        let samples = self.events.len() as u64 + self.untimed;
        let (event, unit) = event_and_unit(self.event.unwrap_or(""));
        let info = &mut self.profile.info;
        info.event = event;
        if self.without_period < samples {
            info.unit = unit;
        }
        self.events.sort_by_key(|&(at, ..)| at);
        if let (Some(&(first, _, weight)), Some(&(last, ..))) =
            (self.events.first(), self.events.last())
        {
            let start = i64::try_from(first).unwrap_or(i64::MAX);
            // The last sample is a part of the time too.
            let duration_ns = (last - first).saturating_add(1);
            (info.start_unix_ns, info.duration_ns) = (start, duration_ns);
            let even = self.events.iter().all(|&(.., other)| other == weight);
            info.period = if even { weight } else { 0 };
            let list = self.events.iter().map(|&(at, key, weight)| Timestamp {
                at_ns: at - first,
                key,
                weight,
            });
            self.profile.timestamps = Timestamps {
                start_unix_ns: start,
                duration_ns,
                dropped: self.untimed,
                list: list.collect(),
            };
        }
        self.note();
        let known = Known {
            unnamed: true,
            ..Known::SAMPLES
        };
        Import::new(self.profile, self.notes).knowing(known)
    }

    fn note(&mut self) {
        let counted = [
            (
                self.skipped,
                format!(
                    "lines that are neither events nor frames were skipped, the first is line {}",
                    self.first_skipped
                ),
            ),
            (
                self.other_events,
                format!(
                    "samples of events other than `{}` were skipped",
                    self.profile.info.event
                ),
            ),
            (
                self.deep,
                format!("stacks have more than {STACK_FRAMES_MAX} frames and were cut"),
            ),
            (
                self.cut_names,
                format!("names of more than {NAME_BYTES_MAX} bytes were cut"),
            ),
            (self.untimed, "samples have no time".to_owned()),
        ];
        let some = counted.into_iter().filter(|(count, _)| *count > 0);
        self.notes
            .extend(some.map(|(count, what)| format!("{count} {what}")));
        let start_ns = self.profile.info.start_unix_ns;
        if !self.events.is_empty() && is_dateless(start_ns) {
            let note = "times count from boot, not from a date";
            self.notes.push(note.to_owned());
        }
    }
}

/// An event as perf spells it, without modifiers, and the unit of its periods.
pub fn event_and_unit(event: &str) -> (String, String) {
    let base = event.split(':').next().unwrap_or(event);
    let is_tracepoint = event.contains(':') && !is_modifier(event);
    // `cycles:P` is cycles; of a tracepoint both parts are its name.
    let name = if is_tracepoint { event } else { base };
    let unit = match base {
        "cpu-clock" | "task-clock" => "nanoseconds",
        _ if is_tracepoint => "events",
        base => base,
    };
    let short = |text: &str| text.chars().take(256).collect();
    (short(name), short(unit))
}

/// True when what follows the event's name are letters that modify it: `cycles:ppp`,
/// `cpu-clock:HG`.
fn is_modifier(event: &str) -> bool {
    let modifiers = event.split_once(':').map_or("", |(_, modifiers)| modifiers);
    modifiers
        .bytes()
        .all(|byte| b"ukhIGHpPSDWebR".contains(&byte))
}

/// `comm pid[/tid] [cpu] seconds.fraction: [period] event: rest`, with any of the middle left out.
fn event_line(line: &str) -> Option<EventLine<'_>> {
    let mut words = Words { line, at: 0 };
    let mut before: Vec<(usize, &str)> = Vec::with_capacity(8);
    let mut at_ns = None;
    let mut end = 0;
    // A process may be named like a time: the time is the word behind a pid or CPU, and the first
    // that looks like one only where none stands there.
    let mut first = None;
    while let Some((at, word)) = words.next() {
        if let Some(ns) = word.strip_suffix(':').and_then(nanoseconds) {
            let known = |(_, word): &(usize, &str)| is_pid(word) || is_cpu(word) || is_flags(word);
            if before.last().is_some_and(known) {
                at_ns = Some(ns);
                end = words.at;
                break;
            }
            first.get_or_insert((ns, words.at, before.len()));
        }
        // Names of processes are short, and words of theirs few.
        if before.len() == 16 {
            break;
        }
        before.push((at, word));
    }
    if let (None, Some((ns, behind, words))) = (at_ns, first) {
        (at_ns, end) = (Some(ns), behind);
        before.truncate(words);
    }
    if at_ns.is_none() {
        // Without a time it takes a process to know an event by.
        let place = before.iter().skip(1).position(|(_, word)| is_pid(word))? + 1;
        let (at, word) = before[place];
        end = at + word.len();
        before.truncate(place + 1);
        let cpu = Words { line, at: end }.next();
        if let Some((at, word)) = cpu.filter(|(_, word)| is_cpu(word)) {
            end = at + word.len();
        }
    }
    while before
        .last()
        .is_some_and(|(_, word)| is_cpu(word) || is_flags(word))
    {
        before.pop();
    }
    let pid = match before.last() {
        Some(&(_, word)) if is_pid(word) => {
            before.pop();
            word.split('/').next().unwrap_or(word)
        }
        _ => "",
    };
    let comm = match (before.first(), before.last()) {
        (Some(&(from, _)), Some(&(at, word))) => &line[from..at + word.len()],
        _ => "",
    };
    let (period, event, rest) = tail(&line[end..]);
    if at_ns.is_none() && event.is_empty() && !rest.is_empty() {
        return None;
    }
    Some(EventLine {
        comm,
        pid,
        at_ns,
        period,
        event,
        rest,
    })
}

/// `[period] event: rest`.
fn tail(text: &str) -> (Option<u64>, &str, &str) {
    let text = text.trim();
    let (first, behind) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let (period, text) = match first.parse::<u64>() {
        Ok(period) => (Some(period), behind.trim_start()),
        Err(_) => (None, text),
    };
    let (event, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    match event.strip_suffix(':') {
        Some(event) => (period, event, rest.trim_start()),
        None => (period, "", text),
    }
}

/// Words of a line with their places.
struct Words<'t> {
    line: &'t str,
    at: usize,
}

impl<'t> Iterator for Words<'t> {
    type Item = (usize, &'t str);

    fn next(&mut self) -> Option<(usize, &'t str)> {
        let rest = &self.line[self.at..];
        let from = self.at + rest.find(|found: char| !found.is_whitespace())?;
        let rest = &self.line[from..];
        let len = rest.find(char::is_whitespace).unwrap_or(rest.len());
        self.at = from + len;
        Some((from, &rest[..len]))
    }
}

fn digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// `12`, `12/13`, or `-1` for a process that is gone.
fn is_pid(word: &str) -> bool {
    let number = |text: &str| digits(text.strip_prefix('-').unwrap_or(text)) && text.len() <= 11;
    match word.split_once('/') {
        Some((pid, tid)) => number(pid) && number(tid),
        None => number(word),
    }
}

fn is_cpu(word: &str) -> bool {
    let inside = word
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    inside.is_some_and(digits)
}

/// Whether a word is the CPU state in trace events: `d..2.`.
fn is_flags(word: &str) -> bool {
    let mut bytes = word.bytes();
    (4..=6).contains(&word.len())
        && word.contains('.')
        && bytes.all(|byte| b".dDNnpPhHsSzZb0123456789".contains(&byte))
}

/// `seconds.fraction` in nanoseconds; digits beyond them are cut.
fn nanoseconds(text: &str) -> Option<u64> {
    let (seconds, fraction) = text.split_once('.')?;
    if !digits(seconds) || !digits(fraction) {
        return None;
    }
    let fraction = &fraction[..fraction.len().min(9)];
    let scale = 10u64.pow(9 - fraction.len() as u32);
    let below: u64 = fraction.parse().ok()?;
    let ns = seconds.parse::<u64>().ok()?.checked_mul(1_000_000_000)?;
    let ns = ns.checked_add(below * scale)?;
    // The clock of profiles is signed.
    (ns <= i64::MAX as u64).then_some(ns)
}

/// `hexaddress symbol (module)`: symbol and module; empty where there is none.
fn frame_line(line: &str) -> Option<(&str, &str)> {
    let (address, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let address = address.strip_prefix("0x").unwrap_or(address);
    let is_hex =
        (1..=16).contains(&address.len()) && address.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_hex {
        return None;
    }
    let rest = rest.trim();
    let split = rest.strip_suffix(')').and_then(|rest| {
        // A name may hold parentheses, a module hardly ever: from a space on, or from the start.
        rest.rsplit_once(" (")
            .or_else(|| Some(("", rest.strip_prefix('(')?)))
    });
    // Without a module, `f(int)` as a whole is a name.
    Some(split.unwrap_or((rest, "")))
}

fn without_offset(symbol: &str) -> &str {
    match symbol.rsplit_once("+0x") {
        Some((name, offset))
            if !offset.is_empty() && offset.bytes().all(|byte| byte.is_ascii_hexdigit()) =>
        {
            name
        }
        _ => symbol,
    }
}

fn base_name(module: &str) -> &str {
    module
        .rsplit('/')
        .find(|part| !part.is_empty())
        .unwrap_or(module)
}

/// The frame of a symbol in a module; `stand_in` is the name of what has none.
fn describe<'a>(symbol: &'a str, module: &'a str, stand_in: &'a str) -> FrameRef<'a> {
    let marks = [
        ("_[k]", FrameKind::Kernel),
        ("_[j]", FrameKind::Jit),
        ("_[i]", FrameKind::Inlined),
    ];
    let mut marked = marks.iter();
    let marked = marked.find_map(|&(mark, kind)| Some((symbol.strip_suffix(mark)?, kind)));
    let (symbol, kind) = marked.unwrap_or_else(|| (symbol, kind(module)));
    let module = match module {
        "[unknown]" | "inlined" => "",
        "[kernel.kallsyms]" => "[kernel]",
        _ if kind == FrameKind::Jit => "",
        module if kind == FrameKind::Kernel => module.trim_matches(['[', ']']),
        module => module,
    };
    let is_ours = matches!(
        symbol,
        crate::LOST_FRAME | crate::OTHER_FRAME | "[truncated]"
    );
    let (function, unnamed) = match symbol {
        "" | "[unknown]" if module.is_empty() => ("[unknown]", UnnamedReason::NoMapping),
        "" | "[unknown]" if module.starts_with('[') => (module, UnnamedReason::NotInSymbols),
        "" | "[unknown]" => (stand_in, UnnamedReason::NotInSymbols),
        symbol => (symbol, UnnamedReason::No),
    };
    FrameRef {
        kind: match is_ours && module.is_empty() {
            true => FrameKind::Synthetic,
            false => kind,
        },
        unnamed,
        function,
        module,
        ..FrameRef::default()
    }
}

/// What code a module holds, by its name.
fn kind(module: &str) -> FrameKind {
    let of_process = [
        "[unknown]",
        "[vdso]",
        "[vsyscall]",
        "[stack]",
        "[heap]",
        "[uprobes]",
    ];
    let file = base_name(module);
    let map = file
        .strip_prefix("perf-")
        .and_then(|rest| rest.strip_suffix(".map"));
    let dumped = file
        .strip_prefix("jitted-")
        .and_then(|rest| rest.strip_suffix(".so"));
    if module == "inlined" {
        FrameKind::Inlined
    } else if map.is_some_and(digits)
        || dumped.is_some()
        || module.starts_with("[JIT]")
        || module == "[jit]"
    {
        FrameKind::Jit
    } else if of_process.contains(&module) || module.starts_with("[anon") {
        FrameKind::Native
    } else if module.starts_with('[') || file.starts_with("vmlinux") || file.contains(".ko") {
        FrameKind::Kernel
    } else {
        FrameKind::Native
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
