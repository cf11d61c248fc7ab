//! What Go's compiler takes of a profile: calls, by the distance of their line from the first line
//! of the caller.

use super::is_inlined_into;
use crate::frame::FrameRef;
use crate::profile::Profile;
use crate::sample::SampleKey;
use crate::stack::StackId;

/// What is kept of each stack for Go's compiler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GoPgo {
    /// Locations at the leaf: what was inlined is of the location of its caller. 0: all. The
    /// compiler counts the last call of a stack, so two are enough for it.
    pub keep_locations: usize,
    /// Leaves of one function are one, whichever line they are at: it is no line of a call.
    pub aggregate_callees: bool,
}

impl GoPgo {
    /// The profile with this of it; `None` when nothing of that has a first line, without which the
    /// compiler refuses it.
    pub fn of(self, profile: &Profile) -> Option<Profile> {
        let mut kept = Profile {
            info: profile.info.clone(),
            ..Profile::default()
        };
        let mut has_start_lines = profile.samples.is_empty();
        for (key, value) in profile.sorted() {
            let frames = profile.dict.stacks.leaf_first(key.stack);
            let mut frames: Vec<FrameRef<'_>> = frames.map(|id| profile.dict.frame(id)).collect();
            if self.keep_locations > 0 {
                let locations = frames.chunk_by(is_inlined_into);
                let end = locations.take(self.keep_locations).map(<[_]>::len).sum();
                frames.truncate(end);
            }
            if let Some(leaf) = frames.first_mut().filter(|_| self.aggregate_callees) {
                leaf.line = 0;
            }
            let mut stack = StackId::EMPTY;
            for frame in frames.into_iter().rev() {
                has_start_lines |= frame.start_line != 0;
                let frame = kept.dict.intern_frame(frame);
                stack = kept.dict.stacks.child(stack, frame);
            }
            let labels = kept.dict.intern_labels(profile.dict.labels(key.labels));
            let end = key.end;
            kept.add(SampleKey { labels, stack, end }, value);
        }
        has_start_lines.then_some(kept)
    }
}
