//! State that other threads share with the sampler.

use super::HeldCounts;
use super::command::Command;
use super::context::Deferred;
use cgroup::containers::Announcer;
use host::ids::CpuId;
use host::sys::WakeFd;
use host::time::MonotonicTime;
use perf::cpu_ring::CpuCounts;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock};
use unwind::process::ProcessCounts;
use unwind::walk::engine::UnwindCounts;

/// Commands that wait for the next pass. As many captures as may run start, follow and end within
/// one pass with a fourth of it; the queue is full only when the sampler stands still, and then the
/// supervisor ends the daemon.
pub const COMMANDS_MAX: usize = 1024;

/// What other threads see of the sampler and ask of it.
pub struct SamplerHandle {
    pub(super) wake: WakeFd,
    commands: SyncSender<Command>,
    /// The other end, until the sampler takes it: it never waits for a lock.
    obeyed: Mutex<Option<Receiver<Command>>>,
    pub(super) flush: AtomicBool,
    pub(super) stop: AtomicBool,
    /// Woken when many stacks were cut by their copies; the counts in `facts` say how many.
    pub deep: WakeFd,
    /// Receiver of notices about created cgroups.
    pub containers: OnceLock<Announcer>,
    /// Monotonic time of the last pass of the loop: the watchdog's heartbeat.
    pub heartbeat: AtomicU64,
    /// Monotonic time of the newest sample.
    pub newest_sample: AtomicU64,
    /// Times the thread was woken.
    pub wakeups: AtomicU64,
    /// Samples folded since the start.
    pub samples: AtomicU64,
    /// Times a batch was ready and the symbolizer was not, so folding went on in it.
    pub deferred_batches: AtomicU64,
    /// Notices that did not fit a queue, to be sent again.
    pub deferred: Deferred,
    /// Longest time between two passes with a loss that is blamed on it, since it was last taken
    /// out. Unit: nanoseconds.
    pub longest_delay: AtomicU64,
    /// Records older than ones already used.
    pub late_records: AtomicU64,
    /// Damaged records.
    pub malformed_records: AtomicU64,
    /// Times a ring that was full and did not move was flushed.
    pub rings_flushed: AtomicU64,
    /// Rings, or sets of them, that the sampler closed itself because `fp-files` stood still.
    pub rings_closed: AtomicU64,
    /// Records lost in rings that did not move.
    pub lost_stalled: AtomicU64,
    /// Records of the side band lost in rings of its own.
    pub lost_side_band: AtomicU64,
    /// Kernel code that came or went, by count of records.
    pub kernel_code_changes: AtomicU64,
    /// Commands refused at [`COMMANDS_MAX`].
    pub commands_refused: AtomicU64,
    /// Created cgroups with a path that did not fit: they are named from the tree, if they still
    /// exist.
    pub cgroups_refused: AtomicU64,
    /// Rarely changing facts, copied when somebody looks: counts of each CPU, of the process table.
    pub facts: Mutex<Facts>,
}

/// Counts that other threads read.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// By CPU, since the start.
    pub cpus: Vec<(CpuId, CpuCounts)>,
    /// Up to when all that is counted here has been seen.
    pub horizon: MonotonicTime,
    /// The process table's.
    pub processes: ProcessCounts,
    /// Processes known now.
    pub processes_known: usize,
    /// The unwinder's.
    pub unwinding: UnwindCounts,
    /// Samples that waited for a file.
    pub held: HeldCounts,
}

impl SamplerHandle {
    /// Creates it without any requests.
    pub fn new() -> io::Result<SamplerHandle> {
        let (commands, obeyed) = sync_channel(COMMANDS_MAX);
        Ok(SamplerHandle {
            wake: WakeFd::new()?,
            deep: WakeFd::new()?,
            commands,
            obeyed: Mutex::new(Some(obeyed)),
            flush: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            containers: OnceLock::new(),
            heartbeat: AtomicU64::new(MonotonicTime::now().0),
            newest_sample: AtomicU64::new(0),
            wakeups: AtomicU64::new(0),
            samples: AtomicU64::new(0),
            deferred_batches: AtomicU64::new(0),
            deferred: Deferred::default(),
            longest_delay: AtomicU64::new(0),
            late_records: AtomicU64::new(0),
            malformed_records: AtomicU64::new(0),
            rings_flushed: AtomicU64::new(0),
            rings_closed: AtomicU64::new(0),
            lost_stalled: AtomicU64::new(0),
            lost_side_band: AtomicU64::new(0),
            kernel_code_changes: AtomicU64::new(0),
            commands_refused: AtomicU64::new(0),
            cgroups_refused: AtomicU64::new(0),
            facts: Mutex::new(Facts::default()),
        })
    }

    /// Asks for what has been sampled up to now as a batch.
    pub fn flush(&self) {
        self.flush.store(true, Ordering::Release);
        self.wake.wake();
    }

    /// Asks the sampler to hand over what it has and end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake.wake();
    }

    /// Queues a command for the next pass. Beyond [`COMMANDS_MAX`] it is dropped and counted.
    pub fn command(&self, command: Command) {
        if self.commands.try_send(command).is_err() {
            self.commands_refused.fetch_add(1, Ordering::Relaxed);
        }
        self.wake.wake();
    }

    /// The receiving end of commands; `None` if a sampler already has it.
    pub(super) fn take_obeyed(&self) -> Option<Receiver<Command>> {
        self.obeyed.lock().ok()?.take()
    }
}
