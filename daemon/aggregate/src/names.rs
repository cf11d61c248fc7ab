//! Names frames: a symbolizer, the frames it has named so far, and what they mean for stacks.
//!
//! The continuous profile has one set of names. Captures with source lines use a second set, which
//! exists only while such a capture runs, because frames that differ by line would push function
//! frames out of the cache. Used only by the symbolizer's thread.

use super::context::Context;
use hashbrown::HashMap;
use profile::{Dictionary, FrameId};
use symbolize::Symbolizer;
use symbolize::starts::Start;

/// Memory of the symbolizer's own dictionary of frames. When it is used up everything named so far
/// is forgotten and named again as it is met. 12 MiB hold about 100,000 frames.
const NAMES_BYTES_MAX: usize = 12 << 20;

/// See the head of this file.
pub(super) struct Names {
    pub symbolizer: Symbolizer,
    /// Frames named so far, outside the recorders.
    pub dict: Dictionary,
    /// Whether a stack starts at a frame.
    starts: HashMap<FrameId, Start>,
    /// The kernel's context by frame.
    contexts: HashMap<FrameId, Option<Context>>,
}

impl Names {
    /// Creates it empty.
    pub fn new(symbolizer: Symbolizer) -> Names {
        Names {
            symbolizer,
            dict: Dictionary::default(),
            starts: HashMap::new(),
            contexts: HashMap::new(),
        }
    }

    /// True when they are to be forgotten, and named again as they are met.
    pub fn is_full(&self) -> bool {
        self.dict.heap_bytes() > NAMES_BYTES_MAX
    }

    /// Forgets every frame.
    pub fn forget(&mut self) {
        self.dict = Dictionary::default();
        self.starts.clear();
        self.contexts.clear();
        self.symbolizer.forget_frames();
    }

    /// Whether a stack starts at this frame.
    pub fn start(&mut self, frame: FrameId) -> Start {
        let dict = &self.dict;
        let start = self.starts.entry(frame);
        *start.or_insert_with(|| Start::of(dict.frame(frame)))
    }

    /// What the kernel was doing, according to a frame.
    pub fn context(&mut self, frame: FrameId) -> Option<Context> {
        let dict = &self.dict;
        let context = self.contexts.entry(frame);
        *context.or_insert_with(|| Context::of(dict.frame(frame)))
    }

    /// Memory of files and frames. Unit: bytes. What is known of the kernel is shared.
    pub fn heap_bytes(&self) -> usize {
        self.symbolizer.files_bytes() + self.dict.heap_bytes()
    }
}
