//! Folded stacks: `root;…;leaf count`, one line a stack, sorted by frames.
//!
//! Frames are escaped as [`crate::text`] says, and this reader undoes it; a name that was not
//! escaped is read as it is. With [`Annotations`](super::Annotations) a frame's kind follows its
//! name. Differentials have two counts: before and after.

use super::tree::{Tree, TreeBuilder};
use super::{FormatError, Measure, Options, root_frames};
use crate::dictionary::Dictionary;
use crate::diff::Diff;
use crate::frame::{FrameKind, FrameRef};
use crate::outcome::StackEnd;
use crate::profile::{Info, Profile};
use crate::sample::{SampleKey, Value};
use crate::text::{escape_folded, unescape_folded};
use std::io::Write;

/// Most frames read of one stack. Real stacks end at 127 or 1,024; more is not a profile.
pub const STACK_FRAMES_MAX: usize = 8192;

/// Writes the profile's stacks. Takes [`Options::measure`], `annotations`, `lines`,
/// `root_labels`, `mark_cut`.
///
/// # Errors
/// When `out` fails.
pub fn write(
    profile: &Profile,
    options: &Options,
    out: &mut impl Write,
) -> Result<(), FormatError> {
    let tree = text_tree(
        &profile.dict,
        profile
            .sorted()
            .into_iter()
            .map(|(key, value)| (key, [options.measure.of(value)])),
        options,
    );
    tree.for_each_stack(|path, node| {
        write_path(out, path)?;
        writeln!(out, " {}", node.own[0])?;
        Ok(())
    })
}

/// Writes both counts of every stack of either profile: `stack before after`.
///
/// With `normalise` the first profile is scaled to the total of the second, so that columns compare
/// shares.
///
/// # Errors
/// When `out` fails.
pub fn write_diff(
    diff: &Diff,
    normalise: bool,
    options: &Options,
    out: &mut impl Write,
) -> Result<(), FormatError> {
    diff_tree(diff, normalise, options).for_each_stack(|path, node| {
        write_path(out, path)?;
        writeln!(out, " {} {}", node.own[0], node.own[1])?;
        Ok(())
    })
}

pub(super) fn diff_tree(diff: &Diff, normalise: bool, options: &Options) -> Tree<String, 2> {
    let measure = options.measure;
    let samples = diff.samples.iter().map(|sample| {
        let before = sample.change.before;
        let before = if normalise {
            diff.normalised(before)
        } else {
            before
        };
        (
            sample.key,
            [measure.of(before), measure.of(sample.change.after)],
        )
    });
    text_tree(&diff.dict, samples, options)
}

/// The tree of escaped, annotated frame texts.
pub(super) fn text_tree<const N: usize>(
    dict: &Dictionary,
    samples: impl Iterator<Item = (SampleKey, [u64; N])>,
    options: &Options,
) -> Tree<String, N> {
    text_tree_seen(dict, samples, options, |_, _| {})
}

/// See [`text_tree`]; `seen` is given each frame with its text.
pub(super) fn text_tree_seen<const N: usize>(
    dict: &Dictionary,
    samples: impl Iterator<Item = (SampleKey, [u64; N])>,
    options: &Options,
    seen: impl Fn(&str, FrameRef<'_>),
) -> Tree<String, N> {
    let mut builder = TreeBuilder::new(dict);
    for (key, values) in samples {
        let roots = root_frames(dict, options, key.labels, key.end)
            .map(|root| escape_folded(&root.text()).into_owned());
        builder.add(key, values, roots, |frame| {
            let mut text = escape_folded(&super::called(frame, options)).into_owned();
            text.push_str(options.annotations.suffix(frame.kind));
            seen(&text, frame);
            text
        });
    }
    builder.finish()
}

fn write_path(out: &mut impl Write, path: &[&String]) -> std::io::Result<()> {
    for (at, name) in path.iter().enumerate() {
        if at > 0 {
            out.write_all(b";")?;
        }
        out.write_all(name.as_bytes())?;
    }
    Ok(())
}

/// Why a text is not folded stacks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The line does not end in a space and a number.
    #[error("failed to read folded stacks: line {line} does not end in a count")]
    NoCount {
        /// 1-based.
        line: usize,
    },
    /// More frames than [`STACK_FRAMES_MAX`].
    #[error("failed to read folded stacks: line {line} has more than {STACK_FRAMES_MAX} frames")]
    TooDeep {
        /// 1-based.
        line: usize,
    },
    /// Every line has two counts: differential stacks are two profiles at once.
    #[error(
        "failed to read folded stacks: each line ends in two counts, as in differential stacks\n\
         read the two original files, or remove one column: sed -E 's/ [0-9.]+$//' FILE"
    )]
    Differential,
}

/// Reads folded stacks with one count a line. Empty lines and lines that start with `# ` are
/// skipped.
///
/// The text has no time, event or unit: `info` provides them. A sample weighs [`Info::period`], or
/// 1 if that is 0. `_[k]`, `_[j]` and `_[i]` become kinds; `[lost]`, `[truncated]` and `[other]`
/// are synthetic; everything else is native. A stack with the leaf `[lost]` counts as lost, not as
/// taken. Fractions of a sample are cut off. The caller bounds the length of `text`; memory use is
/// a small multiple of it.
///
/// # Errors
/// When a line has no count or too many frames, or each has two counts.
pub fn read(text: &str, info: Info) -> Result<Profile, ReadError> {
    let mut profile = Profile {
        info,
        ..Profile::default()
    };
    let weight = profile.info.period.max(1);
    let (mut lines, mut double) = (0u64, 0u64);
    for (at, line) in text.lines().enumerate() {
        let line_number = at + 1;
        if line.trim().is_empty() || line.starts_with("# ") {
            continue;
        }
        let line = line.trim_end_matches(['\r', ' ']);
        let (stack, count) = line
            .rsplit_once(' ')
            .and_then(|(stack, count)| Some((stack, read_count(count)?)))
            .ok_or(ReadError::NoCount { line: line_number })?;
        lines += 1;
        let before = stack.rsplit_once(' ').map(|(_, before)| before);
        double += u64::from(before.and_then(read_count).is_some());
        if stack.bytes().filter(|&byte| byte == b';').count() >= STACK_FRAMES_MAX {
            return Err(ReadError::TooDeep { line: line_number });
        }
        let mut id = Default::default();
        for frame in stack.split(';') {
            let frame = intern_frame(&mut profile.dict, frame);
            id = profile.dict.stacks.child(id, frame);
        }
        // A name that was not escaped: only the writer makes such a frame, always alone or below
        // labels.
        let lost = stack.rsplit(';').next() == Some(crate::LOST_FRAME);
        let key = SampleKey {
            labels: Default::default(),
            stack: id,
            end: match lost {
                true => StackEnd::Lost,
                false => StackEnd::Complete,
            },
        };
        profile.add(
            key,
            Value {
                count,
                weight: count.saturating_mul(weight),
            },
        );
    }
    if lines > 0 && lines == double {
        return Err(ReadError::Differential);
    }
    let (mut taken, mut lost) = (0u64, 0u64);
    for (key, value) in &profile.samples {
        let sum = match key.end {
            StackEnd::Lost => &mut lost,
            _ => &mut taken,
        };
        *sum = sum.saturating_add(value.count);
    }
    profile.info.quality.taken = taken;
    profile.info.quality.lost_samples = lost;
    Ok(profile)
}

fn read_count(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(fraction) || !digits(whole) {
        None
    } else {
        whole.parse().ok()
    }
}

fn intern_frame(dict: &mut Dictionary, text: &str) -> crate::FrameId {
    let kinds = [
        ("_[k]", FrameKind::Kernel),
        ("_[j]", FrameKind::Jit),
        ("_[i]", FrameKind::Inlined),
    ];
    let annotated = kinds
        .iter()
        .find_map(|&(mark, kind)| Some((text.strip_suffix(mark)?, kind)));
    let (text, kind) = match annotated {
        Some(found) => found,
        None if matches!(text, "[lost]" | "[truncated]" | "[other]") => {
            (text, FrameKind::Synthetic)
        }
        None => (text, FrameKind::Native),
    };
    let function = if text.is_empty() {
        "[unknown]".into()
    } else {
        unescape_folded(text)
    };
    dict.intern_frame(FrameRef {
        kind,
        function: &function,
        ..FrameRef::default()
    })
}

impl Measure {
    /// What the counts of a folded file or flame graph are, for its axis.
    pub(super) fn word(self, unit: &str) -> &str {
        match self {
            Measure::Count => "samples",
            Measure::Weight => unit,
        }
    }
}
