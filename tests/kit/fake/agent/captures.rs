//! The captures of a fake agent: made up, with hostile text among them.

use super::Behaviour;
use crate::fake::samples::{NOW_NS, S, chunks, profile};
use profile::{FrameKind, FrameRef, Profile, SampleKey, StackEnd, StackId, UnnamedReason, Value};
use proto::agent::capture_response::Body;
use proto::agent::*;
use tonic::Status;

/// The capture at its end.
pub fn ended(behaviour: &Behaviour, request: CaptureRequest) -> CaptureInfo {
    let state = match behaviour.degraded {
        true => CaptureState::Cancelled,
        false => CaptureState::Complete,
    };
    CaptureInfo {
        id: 7,
        state: state.into(),
        peer: "uid=0 gid=0 pid=4711".into(),
        started_unix_ns: NOW_NS - 60 * S,
        elapsed_ns: 10 * S as u64,
        rate_hz: 997,
        progress: Some(CaptureProgress {
            elapsed_ns: 10 * S as u64,
            samples: 1000,
            samples_all: 4000,
            cpu_ns: 50_000_000,
            bytes: 3 << 20,
            ..CaptureProgress::default()
        }),
        notices: vec!["the kernel throttled it\x1b[2J".into()],
        error: match behaviour.degraded {
            true => "the captured process ended".into(),
            false => String::new(),
        },
        request: Some(request),
        ..CaptureInfo::default()
    }
}

/// Everything that a capture of this request says.
pub fn messages(
    behaviour: &Behaviour,
    request: CaptureRequest,
) -> Result<Vec<CaptureResponse>, Status> {
    if request.event == "cycles" {
        return Err(Status::failed_precondition(
            "this machine does not support it\n  use cpu-clock",
        ));
    }
    let mut own = match (behaviour.empty, request.lines) {
        (true, _) => Profile::default(),
        (false, true) => with_lines(request.instructions),
        (false, false) => profile(1),
    };
    let other_unit = request.event == "page-faults" && !behaviour.empty;
    if other_unit {
        own.info.unit = "faults".into();
    }
    let ended = ended(behaviour, request.clone());
    let accepted = CaptureInfo {
        state: CaptureState::Running.into(),
        ..ended.clone()
    };
    let mut bodies = vec![Body::Accepted(accepted)];
    bodies.extend(ended.progress.map(Body::Progress));
    if request.before_ns > 0 {
        bodies.extend(chunks(profile(2)).map(Body::Past));
    }
    bodies.extend(chunks(own).map(Body::Chunk));
    bodies.push(Body::Result(ended));
    let message = |body| CaptureResponse { body: Some(body) };
    Ok(bodies.into_iter().map(message).collect())
}

/// A made-up build.
const BUILD: &str = "0123456789abcdef0123456789abcdef01234567";

/// Samples with source lines, hostile text among them: `decode` is inlined into `serve` and calls
/// itself elsewhere.
fn with_lines(instructions: bool) -> Profile {
    use FrameKind::{Inlined, Kernel, Native};
    type Frame = (FrameKind, &'static str, &'static str, u32, u64);
    let main: Frame = (Native, "main", "src/web.c", 21, 0x1200);
    let serve: Frame = (Native, "serve", "src/web.c", 14, 0x1140);
    let inner = |line, address| -> [Frame; 2] {
        [
            (Native, "serve", "src/web.c", 14, address),
            (Inlined, "decode", "src/web.c", line, address),
        ]
    };
    let apart: Frame = (Native, "decode", "src/web.c", 8, 0x1304);
    let stacks: [(Vec<Frame>, u64); 6] = [
        ([&[main][..], &inner(6, 0x1144)].concat(), 600),
        ([&[main][..], &inner(7, 0x1150)].concat(), 250),
        (
            [
                &[main][..],
                &inner(8, 0x1158),
                &[(Kernel, "page_fault", "", 0, 0)],
            ]
            .concat(),
            50,
        ),
        ([&[main, apart, apart][..]].concat(), 40),
        (
            vec![main, (Native, "decode", "/gone/\x1b[31mx.h", 3, 0x1400)],
            10,
        ),
        (vec![main, serve], 50),
    ];
    let mut made = profile(1);
    made.samples.clear();
    let labels = made.dict.intern_labels([("pid", "4294967295")]);
    for (frames, count) in stacks {
        let mut stack = StackId::EMPTY;
        for (kind, function, file, line, address) in frames {
            let place = match instructions && kind != Kernel {
                true => format!("{BUILD}+{address:#x}"),
                false => String::new(),
            };
            let frame = made.dict.intern_frame(FrameRef {
                kind,
                unnamed: UnnamedReason::No,
                function,
                module: if kind == Kernel { "[kernel]" } else { "web" },
                file,
                line,
                system_name: &place,
                ..FrameRef::default()
            });
            stack = made.dict.stacks.child(stack, frame);
        }
        let key = SampleKey {
            labels,
            stack,
            end: StackEnd::Complete,
        };
        let weight = count * made.info.period;
        made.add(key, Value { count, weight });
    }
    made
}
