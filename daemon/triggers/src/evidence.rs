//! The capture of a trigger: starts it, waits on a pool thread for its profile, and stores that
//! with the pin.

use super::Triggers;
use agent_config::TriggerCapture;
use capture::request::TEXT_BYTES_MAX;
use capture::{Asker, Capturing};
use host::blocking_pool::BlockingPool;
use host::sync::lock;
use pins::{Evidence, Pins};
use profile::text::with_causes;
use proto::agent::{self as wire, capture_response::Body};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc::Receiver;

/// Most captures of triggers that run at once.
pub const RUNNING_MAX: usize = 2;

/// Starts captures.
pub struct TriggerCaptures {
    triggers: Arc<Triggers>,
    pins: Arc<Pins>,
    /// Its quota is beyond [`RUNNING_MAX`].
    helpers: BlockingPool,
}

/// Counts a capture as long as it runs.
struct Running(Arc<Triggers>);

impl Running {
    /// `None`: as many as may run do so already.
    fn new(triggers: &Arc<Triggers>) -> Option<Running> {
        let mut now = lock(&triggers.capturing_now);
        if *now >= RUNNING_MAX {
            return None;
        }
        *now += 1;
        Some(Running(Arc::clone(triggers)))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        *lock(&self.0.capturing_now) -= 1;
        self.0.kept.notify_all();
    }
}

/// Result of a capture.
#[derive(Debug, Default)]
struct Outcome {
    evidence: Evidence,
    complete: bool,
    error: String,
}

impl TriggerCaptures {
    /// Counts in `triggers`, keeps in `pins`.
    pub fn new(triggers: Arc<Triggers>, pins: Arc<Pins>) -> TriggerCaptures {
        TriggerCaptures {
            triggers,
            pins,
            helpers: BlockingPool::new("evidence"),
        }
    }

    /// Starts a capture for a trigger that fired. Never waits for it. What fails is counted and
    /// logged: the pin is there all the same.
    pub fn start(
        &self,
        capturing: Option<&Arc<dyn Capturing>>,
        wanted: &TriggerCapture,
        fired: (&str, &str, &str),
        pin: Option<u64>,
    ) {
        if let Err(reason) = self.try_start(capturing, wanted, fired, pin) {
            self.triggers
                .captures_failed
                .fetch_add(1, Ordering::Relaxed);
            let trigger = fired.0;
            tracing::warn!(trigger, reason, "failed to capture for the trigger");
        }
    }

    fn try_start(
        &self,
        capturing: Option<&Arc<dyn Capturing>>,
        wanted: &TriggerCapture,
        (trigger, cgroup, cause): (&str, &str, &str),
        pin: Option<u64>,
    ) -> Result<(), String> {
        let capturing = capturing.ok_or("this daemon cannot capture")?;
        let pin = pin.ok_or("there is no pin for the capture")?;
        let running = Running::new(&self.triggers)
            .ok_or_else(|| format!("{RUNNING_MAX} captures of triggers run already"))?;
        let request = request(wanted, trigger, cgroup, cause);
        let messages = capturing.start(request, Asker::here(format!("trigger {trigger}")));
        let messages = messages.map_err(|status| status.message().to_owned())?;
        let (triggers, pins) = (Arc::clone(&self.triggers), Arc::clone(&self.pins));
        let trigger = trigger.to_owned();
        let started = self.helpers.spawn(move || {
            let _running = running;
            let most = pins.evidence_max();
            let outcome = collect(messages, most, |id| pins.set_capture(pin, id));
            let kept = match outcome.complete {
                true => pins
                    .keep_capture(pin, outcome.evidence)
                    .map_err(|error| with_causes(&error)),
                false => Err(outcome.error),
            };
            match kept {
                Ok(()) => tracing::info!(trigger, pin, "stored the capture with its pin"),
                Err(reason) => {
                    triggers.captures_failed.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(
                        trigger,
                        pin,
                        reason,
                        "failed to keep the capture of the trigger"
                    );
                }
            }
        });
        started
            .map(drop)
            .ok_or_else(|| "failed to start a thread for the capture".to_owned())
    }
}

/// The past is in the pin, so the capture is asked for its own time alone.
fn request(
    wanted: &TriggerCapture,
    trigger: &str,
    cgroup: &str,
    cause: &str,
) -> wire::CaptureRequest {
    let subtree = (!cgroup.is_empty()).then(|| wire::LabelMatcher {
        label: profile::key::CGROUP.to_owned(),
        op: wire::MatchOp::Subtree as i32,
        value: cgroup.to_owned(),
    });
    let duration = Duration::from(wanted.duration);
    let mut reason = cause.to_owned();
    reason.truncate(reason.floor_char_boundary(TEXT_BYTES_MAX));
    wire::CaptureRequest {
        matchers: subtree.into_iter().collect(),
        group_by: vec!["*".to_owned()],
        duration_ns: duration.as_nanos() as u64,
        event: wanted.event.clone(),
        rate_hz: wanted.rate_hz,
        filter: wanted.filter.clone(),
        who: format!("trigger {trigger}"),
        reason,
        ..wire::CaptureRequest::default()
    }
}

/// Collects the messages of a capture until it ends.
fn collect(
    mut messages: Receiver<wire::CaptureResponse>,
    bytes_max: u64,
    accepted: impl Fn(u64),
) -> Outcome {
    let mut outcome = Outcome::default();
    while let Some(message) = messages.blocking_recv() {
        match message.body {
            Some(Body::Accepted(info)) => accepted(info.id),
            Some(Body::Chunk(chunk)) => {
                outcome.complete |= chunk.last;
                outcome.evidence.push(&chunk);
                if outcome.evidence.bytes() > bytes_max {
                    outcome.complete = false;
                    outcome.error = format!(
                        "the capture has more than {bytes_max} bytes, a quarter of \
                         recorder.pins_mib"
                    );
                    return outcome;
                }
            }
            Some(Body::Result(info)) => {
                outcome.error = info.error;
                break;
            }
            Some(Body::Progress(_) | Body::Past(_)) | None => {}
        }
    }
    if !outcome.complete && outcome.error.is_empty() {
        outcome.error = "the capture ended without a result".to_owned();
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::wire::ProfileChunk;

    fn outcome(bodies: Vec<Body>, bytes_max: u64) -> (bool, String) {
        let (sender, receiver) = tokio::sync::mpsc::channel(bodies.len().max(1));
        for body in bodies {
            let body = Some(body);
            sender.try_send(wire::CaptureResponse { body }).unwrap();
        }
        drop(sender);
        let outcome = collect(receiver, bytes_max, |id| assert_eq!(id, 7));
        (outcome.complete, outcome.error)
    }

    fn info(error: &str) -> wire::CaptureInfo {
        wire::CaptureInfo {
            id: 7,
            error: error.to_owned(),
            ..wire::CaptureInfo::default()
        }
    }

    fn chunk(last: bool) -> Body {
        Body::Chunk(ProfileChunk {
            last,
            strings: vec!["x".repeat(100)],
            ..ProfileChunk::default()
        })
    }

    #[test]
    fn a_capture_is_kept_when_its_last_chunk_came() {
        let all = vec![
            Body::Accepted(info("")),
            Body::Progress(wire::CaptureProgress::default()),
            chunk(false),
            chunk(true),
            Body::Result(info("")),
        ];
        assert_eq!(outcome(all, 1000), (true, String::new()));
    }

    #[test]
    fn one_that_fails_or_is_too_large_is_not() {
        let failed = vec![Body::Accepted(info("")), Body::Result(info("no event"))];
        assert_eq!(outcome(failed, 1000), (false, "no event".to_owned()));
        let (complete, error) = outcome(vec![chunk(false)], 1000);
        assert_eq!(
            (complete, error.as_str()),
            (false, "the capture ended without a result")
        );
        let (complete, error) = outcome(vec![chunk(false), chunk(true)], 150);
        assert_eq!(
            (complete, error.as_str()),
            (
                false,
                "the capture has more than 150 bytes, a quarter of recorder.pins_mib"
            )
        );
    }

    #[test]
    fn a_trigger_asks_for_its_target_alone() {
        let wanted = TriggerCapture {
            event: "off-cpu".to_owned(),
            ..TriggerCapture::default()
        };
        let asked = request(&wanted, "t", "/a", &"ä".repeat(300));
        assert_eq!(asked.matchers[0].value, "/a");
        assert_eq!(asked.duration_ns, 30_000_000_000);
        assert!(asked.reason.len() <= 256);
        assert!(request(&wanted, "t", "", "").matchers.is_empty());
    }
}
