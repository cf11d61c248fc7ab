//! Starts captures within their limits, and logs a line for each.
//!
//! [`Capturing::start`] opens events and reads /proc and cgroupfs, so call it where blocking is
//! allowed. Afterwards the capture's own thread, `fp-capture`, does the rest; see `run.rs`.

use super::monitor::CaptureMonitor;
use super::request::CaptureSpec;
use super::run::Run;
use super::table::{CaptureTable, Running, message};
use super::{Asker, Capturing};
use aggregate::recorder::{Recorder, RecorderOptions};
use aggregate::recorders::CaptureRecording;
use host::time::MonotonicTime;
use prost::Message;
use proto::agent::{self, CaptureInfo, CaptureState, capture_response};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;
use tonic::Status;

#[cfg(test)]
mod tests;

/// Messages that wait for the reader of a capture. Progress that finds no room is left out: what
/// matters comes at the end, and that waits.
const MESSAGES_MAX: usize = 4;

/// Length of a window of a capture's recorder: as the continuous profile's, so that memory is
/// bounded for each ten seconds and old ones can be given up alone.
const WINDOW: Duration = Duration::from_secs(10);

/// A window of a capture may take its budget divided by this. Less than of the continuous profile:
/// there is no hour of others that one window could push out, and most captures are of one or two
/// windows.
const WINDOW_PART: usize = 2;

/// The part of a capture's memory that the times of its samples may take.
const TIMES_SHARE: usize = 4;

/// Largest request that is listed as it was. Unit: encoded bytes. The matchers and filters of a
/// larger one are left out, so that the history stays small.
const REQUEST_LISTED_MAX: usize = 4096;

impl CaptureTable {
    fn try_start(
        self: &Arc<Self>,
        request: agent::CaptureRequest,
        asker: Asker,
    ) -> Result<mpsc::Receiver<agent::CaptureResponse>, Status> {
        let Asker { peer, withhold } = asker;
        if self.is_stopping() {
            return Err(Status::unavailable("the daemon is shutting down"));
        }
        let limits = self.backend.limits();
        let wanted = CaptureSpec::new(&request, &limits)?;
        let slot = self.slot(&limits)?;
        let scope = self.backend.resolve(wanted.query.selector(), &withhold)?;
        let id = self.next_id();
        let times_bytes = match wanted.times {
            true => slot.bytes() / TIMES_SHARE,
            false => 0,
        };
        let past_bytes = match wanted.before.is_zero() {
            true => 0,
            false => slot.past_bytes(),
        };
        let recorder = Recorder::new(RecorderOptions {
            // Whatever is taken is asked for at the end.
            retention: Duration::MAX,
            budget_bytes: slot.bytes() - times_bytes - past_bytes,
            window: WINDOW,
            times_bytes,
            window_share: WINDOW_PART,
            cpu_by: None,
        });
        let taken = CaptureRecording::withholding(recorder, wanted.detail, withhold);
        let taken = Arc::new(taken);
        self.recorders.insert(id, Arc::clone(&taken));
        let started = match self.backend.start(id, &wanted, &scope) {
            Ok(started) => started,
            Err(refused) => {
                self.recorders.remove(id);
                return Err(refused);
            }
        };
        let started_at = MonotonicTime::now();
        if let Ok(mut recorder) = taken.recorder.write() {
            recorder.set_event(&started.event, &started.unit);
        }
        let info = CaptureInfo {
            id: id.0,
            state: CaptureState::Running.into(),
            request: Some(listed(request)),
            peer,
            started_unix_ns: self.backend.unix_ns(started_at),
            rate_hz: started.rate_hz,
            period: started.period,
            stack_bytes: started.stack_bytes,
            notices: started.notices.clone(),
            ..CaptureInfo::default()
        };
        self.log_start(&info, &started.event);
        let running = Arc::new(Running {
            id,
            cancelled: AtomicBool::new(false),
            info: Mutex::new(info.clone()),
            taken,
            cpu_ns: AtomicU64::new(0),
        });
        self.insert(Arc::clone(&running));
        let (messages, receiver) = mpsc::channel(MESSAGES_MAX);
        // There is room for the first.
        let _ = messages.try_send(message(capture_response::Body::Accepted(info)));
        // If others opened the rings before, its count starts here.
        let counted = (started_at, self.backend.seen(id));
        let course = CaptureMonitor::new(id, counted, scope.presence, started.excess);
        let run = Run::new(
            Arc::clone(self),
            slot,
            running,
            wanted,
            course,
            started_at,
            messages,
        );
        let spawned = std::thread::Builder::new()
            .name("fp-capture".into())
            .spawn(move || run.run());
        if let Err(error) = spawned {
            // What was moved into the thread is dropped, and ends the capture.
            tracing::error!(%error, id = id.0, "failed to start the thread of a capture");
            return Err(Status::internal(
                "failed to start the thread of the capture",
            ));
        }
        Ok(receiver)
    }

    fn log_start(&self, info: &CaptureInfo, event: &str) {
        self.counts.started.fetch_add(1, Ordering::Relaxed);
        let request = info.request.clone().unwrap_or_default();
        let target: Vec<String> = request.matchers.iter().map(shown).collect();
        tracing::info!(
            id = info.id,
            peer = ?info.peer,
            who = ?request.who,
            reason = ?request.reason,
            target = ?target.join(","),
            event = ?event,
            rate_hz = info.rate_hz,
            period = info.period,
            duration_s = request.duration_ns as f64 / 1e9,
            "capture started"
        );
    }
}

impl Capturing for Arc<CaptureTable> {
    fn start(
        &self,
        request: agent::CaptureRequest,
        asker: Asker,
    ) -> Result<mpsc::Receiver<agent::CaptureResponse>, Status> {
        let peer = asker.peer.clone();
        self.try_start(request, asker).inspect_err(|refused| {
            let count = match refused.code() {
                tonic::Code::ResourceExhausted => &self.counts.refused_limit,
                _ => &self.counts.refused_request,
            };
            count.fetch_add(1, Ordering::Relaxed);
            tracing::info!(?peer, reason = ?refused.message(), "capture refused");
        })
    }

    fn cancel(&self, id: u64) -> bool {
        CaptureTable::cancel(self, id)
    }

    fn list(&self) -> Vec<CaptureInfo> {
        CaptureTable::list(self)
    }
}

/// The request as it is listed.
fn listed(request: agent::CaptureRequest) -> agent::CaptureRequest {
    if request.encoded_len() <= REQUEST_LISTED_MAX {
        return request;
    }
    agent::CaptureRequest {
        matchers: Vec::new(),
        frame_filters: Vec::new(),
        group_by: Vec::new(),
        event: request.event.chars().take(256).collect(),
        filter: request.filter.chars().take(256).collect(),
        ..request
    }
}

fn shown(matcher: &agent::LabelMatcher) -> String {
    let op = match matcher.op() {
        agent::MatchOp::NotEqual => "!=",
        agent::MatchOp::Regex => "=~",
        agent::MatchOp::NotRegex => "!~",
        agent::MatchOp::Subtree => "^=",
        agent::MatchOp::Equal | agent::MatchOp::Unspecified => "=",
    };
    format!("{}{op}\"{}\"", matcher.label, matcher.value)
}
