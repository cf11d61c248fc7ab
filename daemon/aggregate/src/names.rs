//! Names frames: a symbolizer, the frames it has named so far, and what they mean for stacks.
//!
//! The continuous profile has one set of names. Captures with source lines use a second set, which
//! exists only while such a capture runs, because frames that differ by line would push function
//! frames out of the cache. Used only by the symbolizer's thread.

use super::context::Context;
use hashbrown::HashMap;
use profile::{Dictionary, FrameId, FrameKind, FrameRef};
use symbolize::Symbolizer;

/// Memory of the symbolizer's own dictionary of frames. When it is used up everything named so far
/// is forgotten and named again as it is met. 12 MiB hold about 100,000 frames.
const NAMES_BYTES_MAX: usize = 12 << 20;

/// Functions at which a stack starts: a frame-pointer chain with one of them as root is complete.
const START_FUNCTIONS: &[&str] = &[
    "_start",
    "__libc_start_main",
    "__libc_start_call_main",
    "__libc_start_main_impl",
    "__libc_start_main@@GLIBC_2.34",
    "start_thread",
    "clone",
    "clone3",
    "__clone",
    "__clone3",
    "_dl_start_user",
    "_dl_start",
    "runtime.goexit",
    "runtime.goexit.abi0",
    // It leaves the goroutine for the scheduler, and what it calls never returns.
    "runtime.mcall",
    "runtime.mcall.abi0",
    "runtime.mstart",
    "runtime.mstart.abi0",
    "runtime.rt0_go",
    "runtime.rt0_go.abi0",
    "_rt0_amd64_linux",
];

/// Start functions that only another start function ever calls. glibc's are built without frame
/// pointers, so a chain beyond them follows a random register value: it is cut there.
const OUTERMOST_FUNCTIONS: &[&str] = &[
    "_start",
    "__libc_start_main",
    "__libc_start_call_main",
    "__libc_start_main_impl",
    "__libc_start_main@@GLIBC_2.34",
    "start_thread",
];

/// Generated code at which a stack starts. An Erlang process has a stack of its own, whose
/// outermost return address is that of the code that ends the process; the other runs the
/// schedulers' threads.
const GENERATED_STARTS: &[&str] = &["erts_beamasm:normal_exit/0", "global::process_main"];

/// Whether a stack starts at a frame, according to its name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    No,
    /// A start function that others may call too.
    Maybe,
    Outermost,
}

impl Start {
    /// A program may call a function of its own `start_thread` or `_start`, so these are outermost
    /// only where the C library is the one that has them. The others are reserved names.
    pub fn of(frame: FrameRef<'_>) -> Start {
        let function = frame.function;
        if frame.kind == FrameKind::Jit {
            let name = function.strip_prefix('$').unwrap_or(function);
            let is_start = GENERATED_STARTS.iter().any(|start| name.starts_with(start));
            return if is_start {
                Start::Outermost
            } else {
                Start::No
            };
        }
        if frame.kind != FrameKind::Native || !START_FUNCTIONS.contains(&function) {
            return Start::No;
        }
        let in_libc = ["libc.", "libc-", "libpthread", "ld-"]
            .iter()
            .any(|library| frame.module.starts_with(library));
        if OUTERMOST_FUNCTIONS.contains(&function) && (in_libc || function.starts_with("__libc_")) {
            Start::Outermost
        } else {
            Start::Maybe
        }
    }
}

/// See the head of this file.
pub(super) struct Names {
    pub symbolizer: Symbolizer,
    /// Frames named so far, outside the recorders.
    pub dict: Dictionary,
    /// Whether a frame is a start function.
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
