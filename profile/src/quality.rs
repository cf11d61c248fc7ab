//! The quality of a profile's samples: counts by how each stack ends and whether its leaf has a
//! name.

use crate::dictionary::Dictionary;
use crate::frame::{FrameId, FrameKind, OTHER_FRAME};
use crate::functions::is_mark;
use crate::later::NameSource;
use crate::outcome::{StackEnd, UnnamedReason};
use crate::sample::{Quality, SampleKey};
use crate::stack::StackId;

/// Counts samples of one key.
pub(crate) fn count_quality(
    quality: &mut Quality,
    source: &Dictionary,
    key: SampleKey,
    count: u64,
) {
    let _ = count_leaf(quality, source, key, count, own_leaf);
}

/// Counts samples of one key; `leaf` finds the leaf frame of a stack. Returns the source of the
/// leaf's name, if the leaf got it later.
pub(crate) fn count_leaf(
    quality: &mut Quality,
    source: &Dictionary,
    key: SampleKey,
    count: u64,
    leaf: impl Fn(&Dictionary, StackId) -> Option<FrameId>,
) -> Option<NameSource> {
    let add = |counter: &mut u64| *counter = counter.saturating_add(count);
    if key.end == StackEnd::Lost {
        add(&mut quality.lost_samples);
        return None;
    }
    add(&mut quality.taken);
    if key.end.is_truncated() {
        add(&mut quality.truncated);
    }
    if key.end == StackEnd::DepthLimit {
        add(&mut quality.depth_limit);
    }
    let id = leaf(source, key.stack)?;
    let (leaf, later) = (source.frames.get(id), source.later.source(id));
    if leaf.unnamed != UnnamedReason::No && later.is_none() {
        add(&mut quality.unnamed);
    }
    if leaf.kind == FrameKind::Synthetic && source.strings.get(leaf.function) == OTHER_FRAME {
        add(&mut quality.folded);
    }
    later
}

/// The leaf frame of a stack without marks.
pub(crate) fn last_frame(source: &Dictionary, stack: StackId) -> Option<FrameId> {
    let (_, leaf) = source.stacks.node(stack)?;
    Some(leaf)
}

/// The leaf frame; of a wait the last frame of the thread that waits.
pub(crate) fn own_leaf(source: &Dictionary, stack: StackId) -> Option<FrameId> {
    let mut leaf = last_frame(source, stack)?;
    let mut beyond = false;
    for frame in source.stacks.leaf_first(stack) {
        if is_mark(source, source.frames.get(frame)) {
            beyond = true;
        } else if std::mem::take(&mut beyond) {
            leaf = frame;
        }
    }
    Some(leaf)
}
