//! Which captures run, and which ran: limits, memory, the list, and a line in the log for each.
//!
//! [`Capturing::begin`] opens events and reads /proc and cgroupfs: to be called where blocking is allowed.
//! From then on a thread of the capture's own, `fp-capture`, does the rest; see `run.rs`.

use super::Capturing;
use super::backend::CaptureBackend;
use super::monitor::CaptureMonitor;
use super::request::Wanted;
use super::run::Run;
use crate::aggregate::recorder::{BUDGET_MIN_BYTES, Recorder, RecorderOptions};
use crate::aggregate::recorders::{Recorders, Taken};
use agent_config as config;
use host::ids::CaptureId;
use host::sync::lock;
use host::time::Mono;
use prost::Message;
use proto::agent::{self, CaptureInfo, CaptureState, capture_response};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;
use tonic::Status;

#[cfg(test)]
mod tests;

/// Messages that wait for the reader of a capture. Progress that finds no room is left out: what matters
/// comes at the end, and that waits.
const MESSAGES_MAX: usize = 4;

/// Length of a window of a capture's recorder: as the continuous profile's, so that memory is bounded for
/// each ten seconds and old ones can be given up alone.
const WINDOW: Duration = Duration::from_secs(10);

/// A window of a capture may take its budget divided by this. Less than of the continuous profile: there is
/// no hour of others that one window could push out, and most captures are of one or two windows.
const WINDOW_PART: usize = 2;

/// A capture that begins gets this part of the memory that the others left.
const MEMORY_PART: usize = 4;

/// The part of a capture's memory that the times of its samples may take.
const TIMES_SHARE: usize = 4;

/// The part of a capture's memory that the time before it may take while it is held, packed.
const PAST_SHARE: usize = 4;

/// Least memory of a capture. Unit: bytes. Less holds no second of samples.
const MEMORY_MIN: usize = 2 * BUDGET_MIN_BYTES;

/// How often it is looked whether the last capture is answered, when the daemon stops.
const ANSWERED_POLL: Duration = Duration::from_millis(5);

/// Largest request that is listed as it was. Unit: encoded bytes. Of a larger one the matchers and filters
/// are left out, so that the history stays small.
const REQUEST_LISTED_MAX: usize = 4096;

/// What became of captures since the start.
#[derive(Debug, Default)]
pub struct Counts {
    /// Begun.
    pub begun: AtomicU64,
    /// With their whole duration.
    pub complete: AtomicU64,
    /// Ended before their time with what there was.
    pub cancelled: AtomicU64,
    /// Given up: the client left, or nothing could be captured.
    pub failed: AtomicU64,
    /// Not begun because a limit was reached.
    pub refused_limit: AtomicU64,
    /// Not begun because of what was asked: a bad request, no such target, no such event.
    pub refused_request: AtomicU64,
    /// Times a capture went on with a cgroup that was made again.
    pub followed: AtomicU64,
    /// Captures whose event happened too often and went on by rate.
    pub slowed: AtomicU64,
    /// Captures of waits that ended because threads switched too often.
    pub excessive: AtomicU64,
    /// Samples taken.
    pub samples: AtomicU64,
    /// CPU time of sampler and namer for captures that ended. Unit: nanoseconds.
    pub cpu_ns: AtomicU64,
}

/// One that runs.
pub(super) struct Running {
    pub id: CaptureId,
    pub cancelled: AtomicBool,
    pub info: Mutex<CaptureInfo>,
    pub taken: Arc<Taken>,
    /// Its share of what the threads took that sample and name. Unit: nanoseconds.
    pub cpu_ns: AtomicU64,
}

#[derive(Default)]
struct State {
    last: u64,
    running: BTreeMap<u64, Arc<Running>>,
    /// Slots taken, by those too that are just beginning.
    slots: u32,
    /// Memory promised. Unit: bytes.
    promised: usize,
    /// Newest first.
    ended: VecDeque<CaptureInfo>,
}

/// See the module.
pub struct Captures {
    pub(super) world: Box<dyn CaptureBackend>,
    pub(super) recorders: Arc<Recorders>,
    state: Mutex<State>,
    stopping: AtomicBool,
    /// What became of them.
    pub counts: Counts,
}

/// A place among the captures that run, and memory; given back when dropped.
pub(super) struct Slot {
    captures: Arc<Captures>,
    bytes: usize,
}

impl Slot {
    /// Memory for the time before the capture. Unit: bytes.
    pub fn past_bytes(&self) -> usize {
        self.bytes / PAST_SHARE
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = lock(&self.captures.state);
        state.slots -= 1;
        state.promised -= self.bytes;
    }
}

impl Captures {
    /// None runs yet. Their samples come into `recorders`.
    pub fn new(world: Box<dyn CaptureBackend>, recorders: Arc<Recorders>) -> Arc<Captures> {
        Arc::new(Captures {
            world,
            recorders,
            state: Mutex::default(),
            stopping: AtomicBool::new(false),
            counts: Counts::default(),
        })
    }

    /// Has all captures end with what there is, and takes no more.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.world.stop();
    }

    /// Waits until all captures are answered, until `deadline` at most: a client may be slow, or not read at
    /// all. True when they are.
    pub fn wait_until_answered(&self, deadline: Mono) -> bool {
        while lock(&self.state).slots > 0 {
            if Mono::now() >= deadline {
                return false;
            }
            std::thread::sleep(ANSWERED_POLL);
        }
        true
    }

    /// True once [`Captures::stop`] was called.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// How many run now.
    pub fn running(&self) -> u64 {
        lock(&self.state).running.len() as u64
    }

    /// Memory of the samples of those that run, and of what their lines are read from. Unit: bytes.
    pub fn bytes(&self) -> u64 {
        let running: Vec<Arc<Running>> = lock(&self.state).running.values().cloned().collect();
        let progress = running.iter().filter_map(|one| lock(&one.info).progress);
        let samples: u64 = progress.map(|progress| progress.bytes).sum();
        samples.saturating_add(self.recorders.lines_bytes())
    }

    /// CPU time of sampler and namer for captures, those that run included. Unit: nanoseconds.
    pub fn cpu_ns(&self) -> u64 {
        let state = lock(&self.state);
        let running = state.running.values();
        let now: u64 = running.map(|one| one.cpu_ns.load(Ordering::Relaxed)).sum();
        self.counts
            .cpu_ns
            .load(Ordering::Relaxed)
            .saturating_add(now)
    }

    /// A slot, when there is one.
    fn slot(self: &Arc<Self>, limits: &config::Captures) -> Result<Slot, Status> {
        if limits.max == 0 {
            return Err(Status::failed_precondition(
                "failed to start the capture: `captures.max` is 0, none are taken\n\
                 set it and reload: agent-ctl config reload",
            ));
        }
        let mut state = lock(&self.state);
        if state.slots >= limits.max {
            let running = state.slots;
            return Err(Status::resource_exhausted(format!(
                "failed to start the capture: {running} captures run already, as many as \
                 `captures.max` allows\nagent-ctl captures shows them"
            )));
        }
        let left = limits.memory_bytes().saturating_sub(state.promised);
        // As much as each that may still begin needs is left to them.
        let others = (limits.max - state.slots - 1) as usize * MEMORY_MIN;
        let bytes = (left / MEMORY_PART)
            .min(left.saturating_sub(others))
            .max(MEMORY_MIN);
        if left < MEMORY_MIN {
            return Err(Status::resource_exhausted(format!(
                "failed to start the capture: the captures that run hold what `captures.memory_mib`, \
                 {} MiB, allows\nagent-ctl captures shows them",
                limits.memory_mib
            )));
        }
        state.slots += 1;
        state.promised += bytes;
        drop(state);
        Ok(Slot {
            captures: Arc::clone(self),
            bytes,
        })
    }

    fn start(
        self: &Arc<Self>,
        request: agent::CaptureRequest,
        peer: String,
    ) -> Result<mpsc::Receiver<agent::CaptureResponse>, Status> {
        if self.is_stopping() {
            return Err(Status::unavailable("the daemon is shutting down"));
        }
        let limits = self.world.limits();
        let wanted = Wanted::new(&request, &limits)?;
        let slot = self.slot(&limits)?;
        let scope = self.world.resolve(wanted.query.selector())?;
        let id = {
            let mut state = lock(&self.state);
            state.last += 1;
            CaptureId(state.last)
        };
        let times_bytes = match wanted.times {
            true => slot.bytes / TIMES_SHARE,
            false => 0,
        };
        let past_bytes = match wanted.before.is_zero() {
            true => 0,
            false => slot.past_bytes(),
        };
        let recorder = Recorder::new(RecorderOptions {
            // Whatever is taken is asked for at the end.
            retention: Duration::MAX,
            budget_bytes: slot.bytes - times_bytes - past_bytes,
            window: WINDOW,
            times_bytes,
            window_share: WINDOW_PART,
        });
        let taken = Arc::new(Taken::new(recorder, wanted.detail));
        self.recorders.insert(id, Arc::clone(&taken));
        let started = match self.world.begin(id, &wanted, &scope) {
            Ok(started) => started,
            Err(refused) => {
                self.recorders.remove(id);
                return Err(refused);
            }
        };
        let began = Mono::now();
        if let Ok(mut recorder) = taken.recorder.write() {
            recorder.set_event(&started.event, &started.unit);
        }
        let info = CaptureInfo {
            id: id.0,
            state: CaptureState::Running.into(),
            request: Some(listed(request)),
            peer,
            started_unix_ns: self.world.unix_ns(began),
            rate_hz: started.rate_hz,
            period: started.period,
            stack_bytes: started.stack_bytes,
            notices: started.notices.clone(),
            ..CaptureInfo::default()
        };
        self.tell_begin(&info, &started.event);
        let running = Arc::new(Running {
            id,
            cancelled: AtomicBool::new(false),
            info: Mutex::new(info.clone()),
            taken,
            cpu_ns: AtomicU64::new(0),
        });
        lock(&self.state).running.insert(id.0, Arc::clone(&running));
        let (messages, receiver) = mpsc::channel(MESSAGES_MAX);
        // There is room for the first.
        let _ = messages.try_send(message(capture_response::Body::Accepted(info)));
        // Of rings that others opened it counts from here.
        let counted = (began, self.world.seen(id));
        let course = CaptureMonitor::new(id, counted, scope.presence, started.excess);
        let run = Run::new(
            Arc::clone(self),
            slot,
            running,
            wanted,
            course,
            began,
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

    fn tell_begin(&self, info: &CaptureInfo, event: &str) {
        self.counts.begun.fetch_add(1, Ordering::Relaxed);
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
            "capture began"
        );
    }

    /// Takes a capture off the list of those that run, once, and frees what it held of others.
    pub(super) fn close(&self, running: &Running, info: CaptureInfo) {
        let keep = self.world.limits().history as usize;
        let mut state = lock(&self.state);
        if state.running.remove(&running.id.0).is_none() {
            return;
        }
        state.ended.push_front(info.clone());
        state.ended.truncate(keep);
        drop(state);
        self.world.end(running.id);
        self.recorders.remove(running.id);
        let counts = &self.counts;
        let count = match info.state() {
            CaptureState::Complete => &counts.complete,
            CaptureState::Cancelled => &counts.cancelled,
            _ => &counts.failed,
        };
        count.fetch_add(1, Ordering::Relaxed);
        let progress = info.progress.unwrap_or_default();
        counts
            .samples
            .fetch_add(progress.samples_all, Ordering::Relaxed);
        let cpu_ns = running.cpu_ns.load(Ordering::Relaxed);
        counts.cpu_ns.fetch_add(cpu_ns, Ordering::Relaxed);
        tracing::info!(
            id = info.id,
            peer = ?info.peer,
            outcome = info.state().as_str_name(),
            elapsed_s = info.elapsed_ns as f64 / 1e9,
            samples = progress.samples,
            lost = progress.lost_samples,
            cpu_ms = progress.cpu_ns / 1_000_000,
            error = ?info.error,
            notices = ?info.notices,
            "capture ended"
        );
    }
}

impl Capturing for Arc<Captures> {
    fn begin(
        &self,
        request: agent::CaptureRequest,
        peer: String,
    ) -> Result<mpsc::Receiver<agent::CaptureResponse>, Status> {
        self.start(request, peer.clone()).inspect_err(|refused| {
            let count = match refused.code() {
                tonic::Code::ResourceExhausted => &self.counts.refused_limit,
                _ => &self.counts.refused_request,
            };
            count.fetch_add(1, Ordering::Relaxed);
            tracing::info!(?peer, reason = ?refused.message(), "capture refused");
        })
    }

    fn cancel(&self, id: u64) -> bool {
        let running = lock(&self.state).running.get(&id).cloned();
        let found = running.inspect(|running| running.cancelled.store(true, Ordering::Release));
        found.is_some()
    }

    fn list(&self) -> Vec<CaptureInfo> {
        let (running, ended) = {
            let state = lock(&self.state);
            let running: Vec<Arc<Running>> = state.running.values().rev().cloned().collect();
            (running, state.ended.clone())
        };
        let running = running.iter().map(|one| lock(&one.info).clone());
        let mut all: Vec<CaptureInfo> = running.chain(ended).collect();
        all.sort_by_key(|info| std::cmp::Reverse(info.id));
        all
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

pub(super) fn message(body: capture_response::Body) -> agent::CaptureResponse {
    agent::CaptureResponse { body: Some(body) }
}
