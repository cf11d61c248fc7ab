//! Names of generated code as people write them.

use profile::{Dictionary, FrameId, FrameKind, FrameRef};

/// Module of generated code in frames.
pub const MODULE: &str = "[jit]";

/// The frame for code that its runtime calls `raw`. `place` is a source file and line known from elsewhere.
pub fn intern(dict: &mut Dictionary, raw: &str, place: Option<(&str, u32)>) -> FrameId {
    let (file, line) = place.unwrap_or_default();
    dict.intern_frame(FrameRef {
        kind: kind_of(raw),
        function: raw,
        module: MODULE,
        file,
        line,
        ..FrameRef::default()
    })
}

fn kind_of(name: &str) -> FrameKind {
    match name.starts_with("py::") || name.starts_with("JS:~") {
        true => FrameKind::Interpreted,
        false => FrameKind::Jit,
    }
}
