//! pprof: the protocol buffers that `go tool pprof` and most profile stores read, in gzip.
//!
//! Where the parts of a profile are:
//!
//! - Two values a sample: `samples/count` and the weight, `cpu/nanoseconds` for CPU time,
//!   `off_cpu/nanoseconds` for time waited, and otherwise the unit twice (`cycles/cycles`).
//! - One mapping for each (module, kind). Frames without a module stand in a mapping named after
//!   their kind (`[jit]`), native ones in none. The format has no field for a frame's kind, so a
//!   comment says it: `fleetprof mappings: 2=kernel 3=jit*`, with a star where the name is made up.
//! - An inlined frame is a line of its caller's location. A stack that starts (root end) with
//!   inlined frames has a location of its own for them, in a mapping of kind `inlined`.
//! - `system_name` is the raw name where a runtime wrote another than is shown, and empty
//!   otherwise.
//! - A function that has no symbol is one whose name is made up: a comment says which they are, and
//!   why: `fleetprof unnamed: 7=no_symbols`.
//! - Labels are string labels. How a stack ended is the label `stack_end`, left out when complete.
//! - The first line of a function stands there where it is known: Go's compiler needs it. A comment
//!   says of how many it is, where not of all:
//!   `fleetprof first_lines: known of 40 of 52 functions`.
//! - Event and quality are comments: `fleetprof event: cpu-clock`, `fleetprof quality: taken=9 …`.
//!
//! A profile that is written and read back is the same.

#[expect(
    missing_docs,
    reason = "the fields of the public schema, under its names"
)]
pub mod messages;
mod pgo;
mod read;
mod write;

pub use pgo::GoPgo;
pub use read::{
    DECODE_BYTES_MAX, DecodeError, STACK_FRAMES_MAX, TOTAL_FRAMES_MAX, TYPES_MAX, TypeName, Typed,
    Types, decode,
};
pub use write::{weights, write};

use crate::frame::{FrameKind, FrameRef};

/// True for a frame that was inlined into the frame it is called by: they are one location.
fn is_inlined_into(callee: &FrameRef<'_>, caller: &FrameRef<'_>) -> bool {
    callee.kind == FrameKind::Inlined && callee.module == caller.module
}

/// Label that says how a stack ended: [`StackEnd::word`](crate::StackEnd::word).
pub const STACK_END_LABEL: &str = "stack_end";

/// Start of every comment of ours.
const COMMENT_PREFIX: &str = "fleetprof ";
/// Marks the kind of a mapping with a file name that stands for frames without one.
const WITHOUT_FILE: &str = "*";
