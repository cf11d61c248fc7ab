//! The table of running and past captures: their number, their memory, the list, and the outcome of
//! each.
//!
//! `manager.rs` starts them, and the thread of each (`run.rs`) takes its capture off the list.

use super::backend::CaptureBackend;
use agent_config as config;
use aggregate::recorder::BUDGET_MIN_BYTES;
use aggregate::recorders::{CaptureRecording, Recorders};
use host::ids::CaptureId;
use host::sync::lock;
use host::time::MonotonicTime;
use proto::agent::{self, CaptureInfo, CaptureState, capture_response};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use tonic::Status;

/// A capture that starts gets this part of the memory that the others left.
const MEMORY_PART: usize = 4;

/// The part of a capture's memory that the time before it may take while it is held, packed.
const PAST_SHARE: usize = 4;

/// Least memory of a capture. Unit: bytes. Less holds no second of samples.
const MEMORY_MIN: usize = 2 * BUDGET_MIN_BYTES;

/// Outcomes of captures since the start.
#[derive(Debug, Default)]
pub struct CaptureCounts {
    /// Started.
    pub started: AtomicU64,
    /// Captures that ran for their complete duration.
    pub complete: AtomicU64,
    /// Ended before their time with what there was.
    pub cancelled: AtomicU64,
    /// Given up: the client left, or nothing could be captured.
    pub failed: AtomicU64,
    /// Not started because a limit was reached.
    pub refused_limit: AtomicU64,
    /// Not started because of what was asked: a bad request, no such target, no such event.
    pub refused_request: AtomicU64,
    /// Times a capture went on with a cgroup that was made again.
    pub followed: AtomicU64,
    /// Captures that were slowed to a rate because their event occurred too often.
    pub slowed: AtomicU64,
    /// Captures of waits that ended because threads switched too often.
    pub excessive: AtomicU64,
    /// Samples taken.
    pub samples: AtomicU64,
    /// CPU time of sampler and symbolizer for captures that ended. Unit: nanoseconds.
    pub cpu_ns: AtomicU64,
}

/// A running capture.
pub(super) struct Running {
    pub id: CaptureId,
    pub cancelled: AtomicBool,
    pub info: Mutex<CaptureInfo>,
    pub taken: Arc<CaptureRecording>,
    /// Its share of the CPU time of the threads that sample and name. Unit: nanoseconds.
    pub cpu_ns: AtomicU64,
}

#[derive(Default)]
struct State {
    last: u64,
    running: BTreeMap<u64, Arc<Running>>,
    /// Slots taken, by those too that are just starting.
    slots: u32,
    /// Memory promised. Unit: bytes.
    promised: usize,
    /// Newest first.
    ended: VecDeque<CaptureInfo>,
}

/// See the module.
pub struct CaptureTable {
    pub(super) backend: Arc<dyn CaptureBackend>,
    pub(super) recorders: Arc<Recorders>,
    state: Mutex<State>,
    /// Notified whenever a slot is returned.
    answered: Condvar,
    stopping: AtomicBool,
    /// Their outcomes.
    pub counts: CaptureCounts,
}

/// A place among the captures that run, and memory; given back when dropped.
pub(super) struct Slot {
    captures: Arc<CaptureTable>,
    bytes: usize,
}

impl Slot {
    /// Memory of the capture. Unit: bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

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
        drop(state);
        self.captures.answered.notify_all();
    }
}

impl CaptureTable {
    /// Creates an empty table. Samples of captures go to `recorders`.
    pub fn new(backend: Arc<dyn CaptureBackend>, recorders: Arc<Recorders>) -> Arc<CaptureTable> {
        Arc::new(CaptureTable {
            backend,
            recorders,
            state: Mutex::default(),
            answered: Condvar::new(),
            stopping: AtomicBool::new(false),
            counts: CaptureCounts::default(),
        })
    }

    /// Ends all captures, keeps what they have, and accepts no more.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.backend.stop();
    }

    /// Waits until all captures are answered, until `deadline` at most: a client may be slow, or
    /// not read at all. True when they are.
    pub fn wait_until_answered(&self, deadline: MonotonicTime) -> bool {
        let wait = deadline.since(MonotonicTime::now());
        let waited = self
            .answered
            .wait_timeout_while(lock(&self.state), wait, |state| state.slots > 0);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.slots == 0
    }

    /// True once [`CaptureTable::stop`] was called.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Slots taken and memory promised.
    #[cfg(test)]
    pub(super) fn held(&self) -> (u32, usize) {
        let state = lock(&self.state);
        (state.slots, state.promised)
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

    /// CPU time of sampler and symbolizer for captures, those that run included. Unit: nanoseconds.
    pub fn cpu_ns(&self) -> u64 {
        let state = lock(&self.state);
        let running = state.running.values();
        let now: u64 = running.map(|one| one.cpu_ns.load(Ordering::Relaxed)).sum();
        self.counts
            .cpu_ns
            .load(Ordering::Relaxed)
            .saturating_add(now)
    }

    /// The id of the next one.
    pub(super) fn next_id(&self) -> CaptureId {
        let mut state = lock(&self.state);
        state.last += 1;
        CaptureId(state.last)
    }

    /// Lists one that runs.
    pub(super) fn insert(&self, running: Arc<Running>) {
        lock(&self.state).running.insert(running.id.0, running);
    }

    /// Ends a capture and keeps what it has. False: no capture with this id is running.
    pub fn cancel(&self, id: u64) -> bool {
        let running = lock(&self.state).running.get(&id).cloned();
        let found = running.inspect(|running| running.cancelled.store(true, Ordering::Release));
        found.is_some()
    }

    /// Running and past captures, newest first.
    pub fn list(&self) -> Vec<CaptureInfo> {
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

    /// A slot, when there is one.
    pub(super) fn slot(self: &Arc<Self>, limits: &config::Captures) -> Result<Slot, Status> {
        if limits.max == 0 {
            return Err(Status::failed_precondition(
                "failed to start the capture: `captures.max` is 0\nraise it and reload: agent-ctl \
                 config reload",
            ));
        }
        let mut state = lock(&self.state);
        if state.slots >= limits.max {
            let running = state.slots;
            return Err(Status::resource_exhausted(format!(
                "failed to start the capture: {running} captures run already, the limit of \
                 `captures.max`\nlist them: agent-ctl captures"
            )));
        }
        let left = limits.memory_bytes().saturating_sub(state.promised);
        // As much as each that may still start needs is left to them.
        let others = (limits.max - state.slots - 1) as usize * MEMORY_MIN;
        let bytes = (left / MEMORY_PART)
            .min(left.saturating_sub(others))
            .max(MEMORY_MIN);
        if left < MEMORY_MIN {
            return Err(Status::resource_exhausted(format!(
                "failed to start the capture: running captures use all {} MiB of \
                 `captures.memory_mib`\nlist them: agent-ctl captures",
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

    /// Removes a capture from the running ones, once, and frees what it held.
    pub(super) fn close(&self, running: &Running, info: CaptureInfo) {
        let keep = self.backend.limits().history as usize;
        let mut state = lock(&self.state);
        if state.running.remove(&running.id.0).is_none() {
            return;
        }
        state.ended.push_front(info.clone());
        state.ended.truncate(keep);
        drop(state);
        self.backend.end(running.id);
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

pub(super) fn message(body: capture_response::Body) -> agent::CaptureResponse {
    agent::CaptureResponse { body: Some(body) }
}
