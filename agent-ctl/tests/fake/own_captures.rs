//! The captures of the FAKE agent: made up, with hostile text among them.

use super::{Behaviour, NOW_NS, S, chunks, profile};
use profile::Profile;
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
            true => "the process that was captured ended".into(),
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
            "this machine does not have it\n  use cpu-clock",
        ));
    }
    let mut own = match behaviour.empty {
        true => Profile::default(),
        false => profile(1),
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
