//! Writes the text of `perf script`.

use crate::formats::timeline::Timeline;
use crate::formats::{FormatError, Options, RootFrame, quality_line, root_frames};
use crate::frame::{FrameId, FrameKind, FrameRef};
use crate::labels::{LabelSetId, key};
use crate::outcome::UnnamedReason;
use crate::profile::Profile;
use crate::text::printable;
use std::fmt::Write as _;
use std::io::Write;

/// Writes the profile's samples. Takes [`Options::mark_cut`].
///
/// # Errors
/// When `out` fails.
pub fn write(
    profile: &Profile,
    options: &Options,
    out: &mut impl Write,
) -> Result<(), FormatError> {
    let options = &Options {
        root_labels: Vec::new(),
        ..options.clone()
    };
    let timeline = Timeline::of(profile);
    let unit = match profile.info.unit.as_str() {
        "" => "what the event counts",
        unit => unit,
    };
    writeln!(
        out,
        "# {}\n# fleetprof: {}\n# times: seconds since the Unix epoch; periods: {}; addresses are made up",
        quality_line(&profile.info),
        timeline.note(),
        printable(unit),
    )?;
    let event = match profile.info.event.as_str() {
        "" => "samples".to_owned(),
        event => word(event),
    };
    let mut lines = Lines::default();
    for sample in &timeline.events {
        let at = i128::from(timeline.start_unix_ns) + i128::from(sample.at_ns);
        // What was before 1970 is a clock that is wrong, and a sign that no reader takes.
        let at = at.max(0);
        let (seconds, nanoseconds) = (at / 1_000_000_000, at % 1_000_000_000);
        let head = lines.head(profile, sample.key.labels);
        writeln!(
            out,
            "{head} {seconds}.{nanoseconds:09}: {:>10} {event}:",
            sample.value.weight
        )?;
        for frame in profile.dict.stacks.leaf_first(sample.key.stack) {
            writeln!(out, "{}", lines.frame(profile, frame))?;
        }
        for root in root_frames(&profile.dict, options, sample.key.labels, sample.key.end) {
            if let RootFrame::Truncated = root {
                writeln!(out, "\t{:>16} {} ([unknown])", 0, root.text())?;
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Lines that were needed before.
#[derive(Default)]
struct Lines {
    heads: Vec<Option<String>>,
    frames: Vec<Option<String>>,
}

impl Lines {
    fn head(&mut self, profile: &Profile, labels: LabelSetId) -> &str {
        let text = || {
            let label = |key| profile.dict.label(labels, key);
            let comm = label(key::COMM).or_else(|| label(key::THREAD));
            let pid = label(key::PID).and_then(|pid| pid.parse::<u32>().ok());
            format!("{} {}", comm_text(comm.unwrap_or("")), pid.unwrap_or(0))
        };
        slot(&mut self.heads, labels.0).get_or_insert_with(text)
    }

    fn frame(&mut self, profile: &Profile, frame: FrameId) -> &str {
        let text = || frame_line(profile.dict.frame(frame));
        slot(&mut self.frames, frame.0).get_or_insert_with(text)
    }
}

fn slot(lines: &mut Vec<Option<String>>, id: u32) -> &mut Option<String> {
    let id = id as usize;
    if lines.len() <= id {
        lines.resize((id + 1).next_power_of_two(), None);
    }
    &mut lines[id]
}

/// Text in which every space is an underscore.
fn word(text: &str) -> String {
    let text = printable(text);
    text.chars()
        .map(|found| if found.is_whitespace() { '_' } else { found })
        .collect()
}

/// A comm that cannot be taken for a comment, for what follows it, or for a frame.
fn comm_text(comm: &str) -> String {
    let text = printable(comm.trim());
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(found) = rest.next() {
        let before_number = rest
            .peek()
            .is_some_and(|next| next.is_ascii_digit() || matches!(next, '[' | '-'));
        match found {
            '#' if out.is_empty() => out.push('_'),
            found if found.is_whitespace() => out.push(if before_number { '_' } else { ' ' }),
            found => out.push(found),
        }
    }
    match out.as_str() {
        "" => "[unknown]".to_owned(),
        _ => out,
    }
}

fn frame_line(frame: FrameRef<'_>) -> String {
    let symbol = match frame.unnamed {
        UnnamedReason::No => printable(frame.function).into_owned(),
        _ => "[unknown]".to_owned(),
    };
    let mut line = format!("\t{:>16x} {}", address(frame), symbol.trim());
    // Readers cut an offset off: one that belongs to the name is kept by another behind it.
    let offset = symbol.rsplit_once("+0x");
    if offset.is_some_and(|(_, digits)| digits.bytes().all(|byte| byte.is_ascii_hexdigit())) {
        line.push_str("+0x0");
    }
    let _ = write!(line, " ({})", module(frame));
    line
}

/// The text in parentheses. Kernel code is in brackets, generated code in a perf map, by which
/// readers recognize them.
fn module(frame: FrameRef<'_>) -> String {
    let bare = word(frame.module);
    match frame.kind {
        FrameKind::Kernel => match bare.trim_matches(['[', ']']) {
            "" | "kernel" => "[kernel.kallsyms]".to_owned(),
            module => format!("[{module}]"),
        },
        FrameKind::Jit => "/tmp/perf-0.map".to_owned(),
        FrameKind::Inlined => "inlined".to_owned(),
        FrameKind::Native | FrameKind::Interpreted | FrameKind::Synthetic => match bare.as_str() {
            "" => "[unknown]".to_owned(),
            _ => bare,
        },
    }
}

/// A made-up address for a frame: equal frames have equal addresses, and kernel frames are in the
/// kernel's part of the address space.
fn address(frame: FrameRef<'_>) -> u64 {
    let bytes = frame
        .function
        .bytes()
        .chain([0])
        .chain(frame.module.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    match frame.kind {
        FrameKind::Kernel => 0xffff_ffff_8000_0000 | (hash & 0x3fff_fff0),
        _ => 0x1000 | (hash & 0x7fff_ffff_fff0),
    }
}
