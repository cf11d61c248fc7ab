//! What other threads see of the sampler and ask of it.

use super::Command;
use crate::cgroup::containers::Announcer;
use crate::ids::CpuId;
use crate::perf::cpu_ring::CpuCounts;
use crate::process::ProcessCounts;
use crate::sys::WakeFd;
use crate::time::Mono;
use crate::unwind::engine::UnwindCounts;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

/// What other threads see of the sampler and ask of it.
pub struct Shared {
    pub(super) wake: WakeFd,
    pub(super) commands: Mutex<Vec<Command>>,
    pub(super) flush: AtomicBool,
    pub(super) stop: AtomicBool,
    /// Who wants to know of cgroups as they are made.
    pub containers: OnceLock<Announcer>,
    /// Monotonic time of the last pass of the loop: the watchdog's heartbeat.
    pub heartbeat: AtomicU64,
    /// Monotonic time of the newest sample.
    pub newest_sample: AtomicU64,
    /// Times the thread was woken.
    pub wakeups: AtomicU64,
    /// Samples folded since the start.
    pub samples: AtomicU64,
    /// Times a batch was ready and the namer was not, so folding went on in it.
    pub deferred_batches: AtomicU64,
    /// Files announced while the queue was full; announced again with the next sample.
    pub announcements_deferred: AtomicU64,
    /// Processes with generated code that `fp-jit` had no room to be told of; told again with the next
    /// sample.
    pub notices_deferred: AtomicU64,
    /// Longest time between two passes with a loss that is blamed on it, since it was last taken out.
    /// Unit: nanoseconds.
    pub longest_delay: AtomicU64,
    /// Records older than ones already used.
    pub late_records: AtomicU64,
    /// Damaged records.
    pub malformed_records: AtomicU64,
    /// Kernel code that came or went, by count of records.
    pub kernel_code_changes: AtomicU64,
    /// Rarely changing facts, copied when somebody looks: counts of each CPU, of the process table.
    pub facts: Mutex<Facts>,
}

/// Counts that other threads read.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// By CPU, since the start.
    pub cpus: Vec<(CpuId, CpuCounts)>,
    /// Up to when all that is counted here has been seen.
    pub horizon: Mono,
    /// The process table's.
    pub processes: ProcessCounts,
    /// Processes known now.
    pub processes_known: usize,
    /// The unwinder's.
    pub unwinding: UnwindCounts,
}

impl Shared {
    /// Nothing asked for yet.
    pub fn new() -> io::Result<Shared> {
        Ok(Shared {
            wake: WakeFd::new()?,
            commands: Mutex::new(Vec::new()),
            flush: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            containers: OnceLock::new(),
            heartbeat: AtomicU64::new(Mono::now().0),
            newest_sample: AtomicU64::new(0),
            wakeups: AtomicU64::new(0),
            samples: AtomicU64::new(0),
            deferred_batches: AtomicU64::new(0),
            announcements_deferred: AtomicU64::new(0),
            notices_deferred: AtomicU64::new(0),
            longest_delay: AtomicU64::new(0),
            late_records: AtomicU64::new(0),
            malformed_records: AtomicU64::new(0),
            kernel_code_changes: AtomicU64::new(0),
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

    /// Has a command carried out at the next pass.
    pub fn command(&self, command: Command) {
        if let Ok(mut commands) = self.commands.lock() {
            commands.push(command);
        }
        self.wake.wake();
    }
}
