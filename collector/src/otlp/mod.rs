//! OTLP profiles as a protocol: messages of the newest layout, the call, and words of the semantic
//! conventions, for what comes in (`senders/otlp`) and what goes out (`export`).

pub mod messages;

use profile::{FrameKind, FrameRef};

/// The generated messages and service of the call.
#[expect(clippy::allow_attributes, reason = "generated")]
pub(crate) mod wire {
    tonic::include_proto!("opentelemetry.proto.collector.profiles.v1development");
}

/// Path of the call over HTTP.
pub(crate) const HTTP_PATH: &str = "/v1development/profiles";

/// Path of the call over gRPC.
pub(crate) const GRPC_PATH: &str =
    "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export";

/// Attribute of a location with the kind of its frames.
pub const FRAME_TYPE: &str = "profile.frame.type";

/// What kind of frame a runtime has. Names are those of the semantic conventions, and `jit` and
/// `interpreted` of frames whose runtime is not known.
pub fn kind_of(word: &str) -> FrameKind {
    match word {
        "kernel" => FrameKind::Kernel,
        "jvm" | "v8js" | "dotnet" | "beam" | "luajit" | "jit" => FrameKind::Jit,
        "cpython" | "php" | "perl" | "ruby" | "lua" | "interpreted" => FrameKind::Interpreted,
        "abort-marker" => FrameKind::Synthetic,
        _ => FrameKind::Native,
    }
}

/// The word for a frame. What a runtime runs is told by its source file.
pub fn word_of(frame: &FrameRef<'_>) -> &'static str {
    let extension = frame.file.rsplit_once('.').map_or("", |(_, after)| after);
    match (frame.kind, extension) {
        (FrameKind::Kernel, _) => "kernel",
        (FrameKind::Synthetic, _) => "abort-marker",
        (FrameKind::Native | FrameKind::Inlined, _) => "native",
        (FrameKind::Jit | FrameKind::Interpreted, "java" | "kt" | "scala") => "jvm",
        (FrameKind::Jit | FrameKind::Interpreted, "js" | "mjs" | "cjs" | "ts") => "v8js",
        (FrameKind::Jit, "cs" | "fs" | "vb") => "dotnet",
        (FrameKind::Jit, "erl" | "ex") => "beam",
        (FrameKind::Interpreted, "py") => "cpython",
        (FrameKind::Interpreted, "rb") => "ruby",
        (FrameKind::Interpreted, "php") => "php",
        (FrameKind::Interpreted, "pl" | "pm") => "perl",
        (FrameKind::Jit, _) => "jit",
        (FrameKind::Interpreted, _) => "interpreted",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_frames_are_read_as_their_kinds() {
        for (kind, file, word) in [
            (FrameKind::Native, "", "native"),
            (FrameKind::Inlined, "a.c", "native"),
            (FrameKind::Kernel, "", "kernel"),
            (FrameKind::Jit, "Main.java", "jvm"),
            (FrameKind::Jit, "a/b.mjs", "v8js"),
            (FrameKind::Jit, "", "jit"),
            (FrameKind::Interpreted, "x.py", "cpython"),
            (FrameKind::Interpreted, "", "interpreted"),
            (FrameKind::Synthetic, "", "abort-marker"),
        ] {
            let frame = FrameRef {
                kind,
                file,
                ..FrameRef::default()
            };
            assert_eq!(word_of(&frame), word);
            let read = match kind {
                FrameKind::Inlined => FrameKind::Native,
                kind => kind,
            };
            assert_eq!(kind_of(word), read, "{word}");
        }
    }
}
