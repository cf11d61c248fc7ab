//! The recorders of running captures: the manager creates them and the symbolizer fills them.
//!
//! May be used from any thread. A batch for a capture that no longer exists is discarded unnamed.

use crate::batch::RawBatch;
use crate::recorder::Recorder;
use hashbrown::HashMap;
use host::ids::CaptureId;
use host::sync::lock;
use offcpu::WaitCounts;
use profile::Withholding;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::time::Duration;

/// How detailed frames of native code are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Detail {
    /// By function, as the configuration says.
    #[default]
    Functions,
    /// By source line, with inlined functions.
    Lines,
    /// And by instruction.
    Instructions,
}

/// The recording of one capture by the symbolizer.
pub struct CaptureRecording {
    /// Its named samples.
    pub recorder: RwLock<Recorder>,
    /// How closely they are named.
    pub detail: Detail,
    /// What the reader of the capture must not see.
    pub withhold: Arc<Withholding>,
    /// CPU time that naming them with lines took. Unit: nanoseconds.
    naming_ns: AtomicU64,
    ended: Mutex<bool>,
    told: Condvar,
    beside: Mutex<BatchTotals>,
}

/// Sums of what the batches of a capture report besides their samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BatchTotals {
    /// Samples that its pre-filter refused.
    pub passed_over: u64,
    /// Samples that the sampler had no time to take.
    pub dropped: u64,
    /// CPUs that came or went.
    pub cpus_changed: u64,
    /// cgroups made for which its pre-filter had no room.
    pub cgroups_refused: u64,
    /// For how long events of the processor were to be counted on all CPUs, and were. Unit:
    /// nanoseconds.
    pub counted_ns: (u64, u64),
    /// Counts of waits of event `off-cpu` that were seen or missed.
    pub waits: WaitCounts,
}

impl CaptureRecording {
    /// Creates an empty recording into this recorder, for a reader on the host.
    pub fn new(recorder: Recorder, detail: Detail) -> CaptureRecording {
        CaptureRecording::withholding(recorder, detail, Arc::default())
    }

    /// Creates an empty recorder. Wakers that `withhold` selects are removed for a reader who must
    /// not see them.
    pub fn withholding(
        recorder: Recorder,
        detail: Detail,
        withhold: Arc<Withholding>,
    ) -> CaptureRecording {
        CaptureRecording {
            recorder: RwLock::new(recorder),
            detail,
            withhold,
            naming_ns: AtomicU64::new(0),
            ended: Mutex::new(false),
            told: Condvar::new(),
            beside: Mutex::default(),
        }
    }

    /// Adds what a batch reports besides its samples.
    pub fn note(&self, batch: &RawBatch) {
        let mut beside = lock(&self.beside);
        beside.passed_over += batch.passed_over;
        beside.dropped += batch.dropped;
        beside.cpus_changed += u64::from(batch.cpus_changed);
        beside.cgroups_refused += batch.cgroups_refused;
        beside.counted_ns.0 += batch.counted_ns.0;
        beside.counted_ns.1 += batch.counted_ns.1;
        beside.waits.add(&batch.waits);
    }

    /// Sums of what its batches reported besides their samples.
    pub fn beside(&self) -> BatchTotals {
        *lock(&self.beside)
    }

    /// CPU time that naming its samples with lines took. Unit: nanoseconds.
    pub fn naming_ns(&self) -> u64 {
        self.naming_ns.load(Ordering::Relaxed)
    }

    /// The last batch of the capture is named: nothing comes any more.
    pub fn end(&self) {
        *lock(&self.ended) = true;
        self.told.notify_all();
    }

    /// Waits until [`CaptureRecording::end`] was called, so long at most. True when it was.
    pub fn wait_for_end(&self, at_most: Duration) -> bool {
        let ended = lock(&self.ended);
        let waited = self
            .told
            .wait_timeout_while(ended, at_most, |ended| !*ended);
        let (ended, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *ended
    }
}

/// By capture. Their number is bounded by `captures.max`.
#[derive(Default)]
pub struct Recorders {
    by_id: Mutex<HashMap<CaptureId, Arc<CaptureRecording>>>,
    /// Samples of all captures since the start.
    samples: AtomicU64,
    /// See [`CaptureRecording::naming_ns`]; of all captures since the start.
    naming_ns: AtomicU64,
    /// See [`Recorders::lines_bytes`].
    lines_bytes: AtomicUsize,
}

impl Recorders {
    /// The one of a capture; `None` when nobody wants its samples any more.
    pub fn get(&self, id: CaptureId) -> Option<Arc<CaptureRecording>> {
        lock(&self.by_id).get(&id).cloned()
    }

    /// From now on the samples of `id` are recorded there.
    pub fn insert(&self, id: CaptureId, taken: Arc<CaptureRecording>) {
        lock(&self.by_id).insert(id, taken);
    }

    /// From now on they are let go.
    pub fn remove(&self, id: CaptureId) {
        lock(&self.by_id).remove(&id);
    }

    /// Adds to the number of named samples of captures.
    pub fn note_samples(&self, samples: u64) {
        self.samples.fetch_add(samples, Ordering::Relaxed);
    }

    /// Samples of all captures since the start.
    pub fn samples(&self) -> u64 {
        self.samples.load(Ordering::Relaxed)
    }

    /// Naming samples of one with lines took so long.
    pub fn note_naming(&self, of: &CaptureRecording, spent: Duration) {
        let ns = spent.as_nanos() as u64;
        of.naming_ns.fetch_add(ns, Ordering::Relaxed);
        self.naming_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// CPU time that naming with lines took, of all captures since the start. Unit: nanoseconds.
    pub fn naming_ns(&self) -> u64 {
        self.naming_ns.load(Ordering::Relaxed)
    }

    /// True while a capture with source lines runs.
    pub fn have_lines(&self) -> bool {
        let by_id = lock(&self.by_id);
        let mut all = by_id.values();
        all.any(|taken| taken.detail != Detail::Functions)
    }

    /// So much memory is held for lines of captures. Unit: bytes.
    pub fn note_lines_bytes(&self, bytes: usize) {
        self.lines_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Memory of what captures with lines are named with: of all together. Unit: bytes.
    pub fn lines_bytes(&self) -> u64 {
        self.lines_bytes.load(Ordering::Relaxed) as u64
    }

    /// Their ids, in no order.
    pub fn ids(&self) -> Vec<CaptureId> {
        lock(&self.by_id).keys().copied().collect()
    }
}
