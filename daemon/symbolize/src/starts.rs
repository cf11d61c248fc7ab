//! Functions at which stacks start, and what they say of how a stack ended.
//!
//! A chain of frame pointers does not say where it ends: once its frames have names, its root does.

use profile::{FrameKind, FrameRef, StackEnd, UnnamedReason};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// It does not.
    No,
    /// It has no name to decide by.
    Unnamed,
    /// A start function that others may call too.
    Maybe,
    /// A start function that nothing but another one calls.
    Outermost,
}

impl Start {
    /// True for start functions.
    pub fn is_start(self) -> bool {
        matches!(self, Start::Maybe | Start::Outermost)
    }

    /// Decides by name and kind.
    ///
    /// A program may call a function of its own `start_thread` or `_start`, so these are outermost
    /// only where the C library is the one that has them. The others are reserved names.
    pub fn of(frame: FrameRef<'_>) -> Start {
        if frame.unnamed != UnnamedReason::No {
            return Start::Unnamed;
        }
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

/// True for ends that a start function at the root may correct.
fn is_unsure(end: StackEnd) -> bool {
    matches!(
        end,
        StackEnd::BrokenChain
            | StackEnd::GeneratedCode
            | StackEnd::Unmapped
            | StackEnd::NoUnwindInfo
            | StackEnd::ThirtyTwoBit
    )
}

/// Cuts a stack behind its start functions. Returns how many of its frames are left, and how it
/// ends.
///
/// `frames` are leaf first; those before `own` are not the thread's own. `look` says of a frame
/// whether a stack starts there.
pub fn cut_at_start<T>(
    frames: &[T],
    own: usize,
    end: StackEnd,
    mut look: impl FnMut(&T) -> Start,
) -> (usize, StackEnd) {
    if !is_unsure(end) {
        return (frames.len(), end);
    }
    let mut of_itself = frames[own..].iter();
    if let Some(first) = of_itself.position(|frame| look(frame) == Start::Outermost) {
        let first = own + first;
        let starts = frames[first..].iter();
        let starts = starts.take_while(|frame| look(frame).is_start());
        return (first + starts.count(), StackEnd::Complete);
    }
    let end = match (frames.last().map(look), end) {
        (Some(root), end) if root.is_start() && end != StackEnd::Unmapped => StackEnd::Complete,
        (Some(Start::Unnamed), StackEnd::BrokenChain) => StackEnd::Unresolved,
        (_, end) => end,
    };
    (frames.len(), end)
}
