//! Describes a capture in words: its event, its state, its target; and all of it as JSON.

use crate::select;
use crate::when::rfc3339;
use proto::agent::{CaptureInfo, CaptureState, LabelMatcher};
use serde::Serialize;

/// The event of a request; where it names none, that of an agent.
pub fn event(requested: &str) -> &str {
    match requested {
        "" => "cpu-clock",
        event => event,
    }
}

/// A state in a word.
pub fn state_word(state: CaptureState) -> &'static str {
    match state {
        CaptureState::Unspecified => "unknown",
        CaptureState::Running => "running",
        CaptureState::Complete => "complete",
        CaptureState::Cancelled => "cancelled",
        CaptureState::Failed => "failed",
    }
}

/// The matchers as a selector; `host` when there is none.
pub fn target(matchers: &[LabelMatcher]) -> String {
    let shown = |one: &LabelMatcher| {
        let op = select::symbol(one);
        format!("{}{op}\"{}\"", one.label, one.value)
    };
    match matchers {
        [] => "host".to_owned(),
        matchers => matchers.iter().map(shown).collect::<Vec<_>>().join(","),
    }
}

/// A capture for scripts.
#[derive(Serialize)]
pub struct Json<'a> {
    id: u64,
    state: &'static str,
    peer: &'a str,
    who: String,
    reason: String,
    started: String,
    elapsed_ns: u64,
    duration_ns: u64,
    event: String,
    target: String,
    rate_hz: u32,
    period: u64,
    stack_bytes: u32,
    before_ns: u64,
    samples: u64,
    samples_all: u64,
    lost_samples: u64,
    throttled: u64,
    cpu_ns: u64,
    bytes: u64,
    notices: &'a [String],
    error: &'a str,
}

impl Json<'_> {
    /// The capture as an agent describes it.
    pub fn of(info: &CaptureInfo) -> Json<'_> {
        let request = info.request.clone().unwrap_or_default();
        let progress = info.progress.unwrap_or_default();
        Json {
            id: info.id,
            state: state_word(info.state()),
            peer: &info.peer,
            who: request.who,
            reason: request.reason,
            started: rfc3339(info.started_unix_ns),
            elapsed_ns: info.elapsed_ns,
            duration_ns: request.duration_ns,
            event: request.event,
            target: target(&request.matchers),
            rate_hz: info.rate_hz,
            period: info.period,
            stack_bytes: info.stack_bytes,
            before_ns: request.before_ns,
            samples: progress.samples,
            samples_all: progress.samples_all,
            lost_samples: progress.lost_samples,
            throttled: progress.throttled,
            cpu_ns: progress.cpu_ns,
            bytes: progress.bytes,
            notices: &info.notices,
            error: &info.error,
        }
    }
}
