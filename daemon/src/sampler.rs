//! The sampler thread: rings → order of time → process table → unwinding → folding → batches.
//!
//! It never blocks but in its one wait, never logs, never opens a file. What it cannot hand on it
//! keeps folding, and what it cannot keep it counts. It wakes when a ring has filled to the
//! watermark, once a second, and when somebody asks for fresh data.

use crate::aggregate::batch::RawBatch;
use crate::aggregate::fold::Folder;
use crate::ids::{CpuId, Pid};
use crate::perf::record::{Record, Sample};
use crate::perf::rings::{self, CpuCounts, Rings};
use crate::process::scan::ScannedProcess;
use crate::process::scout::{Request, Scanned};
use crate::process::space::Backing;
use crate::process::{ProcessCounts, ProcessTable};
use crate::sys::{Poller, WakeFd};
use crate::time::Mono;
use crate::unwind::{StackBuffer, Unwinder};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Longest sleep. Rings hold more than five seconds at 99 Hz, so this is about how fresh data is and
/// how soon the end of a window is noticed.
const TICK: Duration = Duration::from_secs(1);

/// Shortest time between two readings of /proc: each costs about 50 µs a process.
const REPAIR_INTERVAL: Duration = Duration::from_secs(10);

/// Token of the wake descriptor; ring descriptors all have token 0.
const WAKE: u64 = 1;

/// Pid of the idle task, one for each CPU.
const IDLE: Pid = Pid(0);

/// What changes while the sampler runs.
pub enum Command {
    /// Sample with these rings from now on, and count this weight for a sample without one.
    Replace {
        /// Opened and enabled.
        rings: Box<Rings>,
        /// How to unwind.
        unwinder: Unwinder,
        /// Weight of one sample; 0 when it varies.
        period: u64,
    },
    /// Close windows this long from the next one on.
    WindowLength(Duration),
}

/// What other threads see of the sampler and ask of it.
pub struct Shared {
    wake: WakeFd,
    commands: Mutex<Vec<Command>>,
    flush: AtomicBool,
    stop: AtomicBool,
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
    /// By CPU, since the rings were opened.
    pub cpus: Vec<(CpuId, CpuCounts)>,
    /// The process table's.
    pub processes: ProcessCounts,
    /// Processes known now.
    pub processes_known: usize,
}

impl Shared {
    /// Nothing asked for yet.
    pub fn new() -> io::Result<Shared> {
        Ok(Shared {
            wake: WakeFd::new()?,
            commands: Mutex::new(Vec::new()),
            flush: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            heartbeat: AtomicU64::new(Mono::now().0),
            newest_sample: AtomicU64::new(0),
            wakeups: AtomicU64::new(0),
            samples: AtomicU64::new(0),
            deferred_batches: AtomicU64::new(0),
            announcements_deferred: AtomicU64::new(0),
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

/// Ends of the queues the sampler uses.
pub struct Queues {
    /// Batches to the namer.
    pub batches: SyncSender<RawBatch>,
    /// Empty ones back.
    pub recycled: Receiver<RawBatch>,
    /// Files with samples, and wishes for a reading of /proc.
    pub scout: SyncSender<Request>,
    /// Readings of /proc.
    pub scanned: Receiver<Scanned>,
}

/// Why the sampler ended early.
#[derive(Debug, thiserror::Error)]
pub enum SamplerError {
    /// epoll.
    #[error("failed to wait for the ring buffers")]
    Wait(#[source] io::Error),
    /// The namer is gone.
    #[error("the namer thread has ended")]
    NamerGone,
}

/// The sampler.
pub struct Sampler {
    rings: Rings,
    unwinder: Unwinder,
    processes: ProcessTable,
    folder: Folder,
    queues: Queues,
    shared: Arc<Shared>,
    poller: Poller,
    /// Address ranges of the kernel's idle loop, sorted.
    idle: Vec<(u64, u64)>,
    kernel_symbols_hidden: bool,
    stack: StackBuffer,
    window: Duration,
    window_end: Mono,
    malformed_handed_over: u64,
    repair: Repair,
    /// The last drain left records behind.
    behind: bool,
}

/// When to read /proc again: after a loss, and when a process turns up that no record told of.
#[derive(Default)]
struct Repair {
    wanted: bool,
    not_before: Mono,
    unannounced: u64,
}

/// What the sampler begins with.
pub struct Start {
    /// Opened and enabled.
    pub rings: Rings,
    /// How to unwind.
    pub unwinder: Unwinder,
    /// Weight of one sample; 0 when it varies.
    pub period: u64,
    /// Processes found in /proc after the rings were opened.
    pub processes: Vec<ScannedProcess>,
    /// Address ranges of the kernel's idle loop; empty when kernel symbols are hidden.
    pub idle: Vec<(u64, u64)>,
    /// Length of windows.
    pub window: Duration,
    /// End of the first window.
    pub first_window_end: Mono,
}

impl Sampler {
    /// Builds it on the thread it will run on.
    ///
    /// # Errors
    /// When epoll cannot be set up.
    pub fn new(start: Start, queues: Queues, shared: Arc<Shared>) -> Result<Sampler, SamplerError> {
        let poller = Poller::new().map_err(SamplerError::Wait)?;
        poller
            .add(shared.wake.as_raw_fd(), WAKE)
            .map_err(SamplerError::Wait)?;
        for fd in start.rings.fds() {
            poller.add(fd, 0).map_err(SamplerError::Wait)?;
        }
        let mut processes = ProcessTable::new();
        for scanned in &start.processes {
            processes.adopt(scanned);
        }
        let mut folder = Folder::new(Mono::now());
        folder.batch().period = start.period;
        Ok(Sampler {
            kernel_symbols_hidden: start.idle.is_empty(),
            rings: start.rings,
            unwinder: start.unwinder,
            processes,
            folder,
            queues,
            shared,
            poller,
            idle: start.idle,
            stack: StackBuffer::default(),
            window: start.window,
            window_end: start.first_window_end,
            malformed_handed_over: 0,
            repair: Repair::default(),
            behind: false,
        })
    }

    /// Runs until asked to stop; hands over what it has at the end.
    ///
    /// # Errors
    /// [`SamplerError`] when it cannot go on.
    pub fn run(mut self) -> Result<(), SamplerError> {
        let mut next_tick = Mono::now().plus(TICK);
        loop {
            // A drain that left records behind is followed by the next one at once.
            let wait = if self.behind {
                Duration::ZERO
            } else {
                next_tick.since(Mono::now())
            };
            self.poller
                .wait(Some(wait), |_| {})
                .map_err(SamplerError::Wait)?;
            self.shared.wake.clear();
            self.shared.wakeups.fetch_add(1, Ordering::Relaxed);
            let now = Mono::now();
            // Every pass empties all rings, so the next is due a tick from here.
            next_tick = now.plus(TICK);
            self.pass(now)?;
            self.shared.heartbeat.store(now.0, Ordering::Relaxed);
            if self.shared.stop.load(Ordering::Acquire) {
                return self.finish();
            }
        }
    }

    fn pass(&mut self, now: Mono) -> Result<(), SamplerError> {
        let flush = self.shared.flush.swap(false, Ordering::AcqRel);
        if let Ok(scanned) = self.queues.scanned.try_recv() {
            self.processes.repair(&scanned.processes, scanned.asked);
        }
        let horizon = self.drain(now)?;
        self.behind = horizon.plus(rings::HORIZON) < now;
        while self.window_end <= horizon {
            self.hand_over(self.window_end, true)?;
            self.window_end = self.window_end.plus(self.window);
        }
        if flush {
            self.hand_over(horizon, false)?;
        }
        self.processes.sweep(horizon);
        self.ask_for_repair(now);
        let commands = match self.shared.commands.lock() {
            Ok(mut commands) if !commands.is_empty() => std::mem::take(&mut *commands),
            _ => return Ok(()),
        };
        for command in commands {
            self.obey(command)?;
        }
        Ok(())
    }

    fn drain(&mut self, now: Mono) -> Result<Mono, SamplerError> {
        let Sampler {
            rings,
            unwinder,
            processes,
            folder,
            queues,
            shared,
            stack,
            idle,
            kernel_symbols_hidden,
            window_end,
            window,
            malformed_handed_over,
            repair,
            ..
        } = self;
        let mut gone = false;
        let mut newest = Mono(0);
        let mut folded = 0;
        let mut lost = CpuCounts::default();
        let horizon = rings.drain(now, |drained| {
            while drained.time >= *window_end {
                // Counts of the rings are not at hand inside the drain: they go with the next batch.
                gone |= !send(folder, processes, queues, shared, *window_end, true);
                *window_end = window_end.plus(*window);
            }
            match drained.record {
                Record::Sample(sample) => {
                    newest = newest.max(sample.time);
                    let hidden = *kernel_symbols_hidden;
                    if sample.pid == IDLE && is_idle(&sample, idle, hidden) {
                        folder.batch().quality.idle += 1;
                        return;
                    }
                    folded += 1;
                    fold(&sample, unwinder, processes, folder, stack, queues, shared);
                }
                Record::Mmap(mmap) => processes.mmap(&mmap, drained.time),
                Record::Comm {
                    pid,
                    tid,
                    comm,
                    exec,
                } => {
                    processes.comm(pid, tid, comm, exec, drained.time);
                }
                Record::Fork {
                    pid,
                    tid,
                    parent,
                    parent_tid,
                } => {
                    processes.fork(pid, tid, parent, parent_tid, drained.time);
                }
                Record::Exit { pid, tid } => processes.exit(pid, tid, drained.time),
                Record::Cgroup { id, path } => {
                    // A cgroup made: rare, and the path must outlive the record.
                    folder.batch().cgroups.push((id, path.into()));
                }
                Record::Lost(count) => lost.lost += count,
                Record::Throttle => lost.throttled += 1,
                Record::KernelCode => {
                    folder.batch().kernel_changed = true;
                    shared.kernel_code_changes.fetch_add(1, Ordering::Relaxed);
                }
                Record::Other => {}
            }
        });
        let quality = &mut folder.batch().quality;
        quality.lost += lost.lost;
        repair.wanted |= lost.lost > 0;
        quality.throttled += lost.throttled;
        quality.malformed += rings.malformed - *malformed_handed_over;
        *malformed_handed_over = rings.malformed;
        shared.samples.fetch_add(folded, Ordering::Relaxed);
        shared.late_records.store(rings.late, Ordering::Relaxed);
        shared
            .malformed_records
            .store(rings.malformed, Ordering::Relaxed);
        if newest.0 != 0 {
            shared.newest_sample.store(newest.0, Ordering::Relaxed);
        }
        if let Ok(mut facts) = shared.facts.try_lock() {
            facts.cpus.clear();
            facts.cpus.extend(rings.counts());
            facts.processes = processes.counts();
            facts.processes_known = processes.len();
        }
        if gone {
            Err(SamplerError::NamerGone)
        } else {
            Ok(horizon)
        }
    }

    fn ask_for_repair(&mut self, now: Mono) {
        let unannounced = self.processes.counts().unannounced;
        self.repair.wanted |= unannounced > self.repair.unannounced;
        self.repair.unannounced = unannounced;
        if self.repair.wanted && now >= self.repair.not_before {
            // When the queue is full the wish stays.
            self.repair.wanted = self.queues.scout.try_send(Request::Processes).is_err();
            self.repair.not_before = now.plus(REPAIR_INTERVAL);
        }
    }

    fn hand_over(&mut self, end: Mono, closes: bool) -> Result<(), SamplerError> {
        let Sampler {
            folder,
            processes,
            queues,
            shared,
            ..
        } = self;
        let sent = send(folder, processes, queues, shared, end, closes);
        if sent {
            Ok(())
        } else {
            Err(SamplerError::NamerGone)
        }
    }

    fn obey(&mut self, command: Command) -> Result<(), SamplerError> {
        match command {
            Command::WindowLength(length) => self.window = length,
            Command::Replace {
                rings,
                unwinder,
                period,
            } => {
                // What the old rings still hold is taken before they go.
                self.drain(Mono::now())?;
                self.hand_over(Mono::now(), false)?;
                for fd in self.rings.fds() {
                    self.poller.remove(fd).map_err(SamplerError::Wait)?;
                }
                for fd in rings.fds() {
                    self.poller.add(fd, 0).map_err(SamplerError::Wait)?;
                }
                self.rings = *rings;
                self.malformed_handed_over = 0;
                self.unwinder = unwinder;
                self.folder.batch().period = period;
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(), SamplerError> {
        // The last samples are younger than the horizon of an ordinary drain.
        let horizon = self.drain(Mono::now().plus(TICK))?;
        let end = horizon.min(Mono::now());
        let batch = self.folder.take(end, true, RawBatch::default());
        // Blocking is right here: sampling is over, and the namer is emptying the queue.
        self.queues
            .batches
            .send(batch)
            .map_err(|_| SamplerError::NamerGone)
    }
}

/// Sends the batch when there is an empty one to go on with and room in the queue; otherwise folding
/// goes on in it, and the window is longer. Returns false when the namer is gone.
fn send(
    folder: &mut Folder,
    processes: &ProcessTable,
    queues: &Queues,
    shared: &Shared,
    end: Mono,
    closes: bool,
) -> bool {
    let empty = match queues.recycled.try_recv() {
        Ok(empty) => empty,
        Err(TryRecvError::Empty) => {
            shared.deferred_batches.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        Err(TryRecvError::Disconnected) => return false,
    };
    for known in &mut folder.batch().processes {
        let now = processes.get(known.pid);
        known.ended = !now.is_some_and(|now| now.id == known.id && now.ended.is_none());
    }
    // As many batches exist as the queue holds, so an empty one in hand means there is room.
    queues
        .batches
        .try_send(folder.take(end, closes, empty))
        .is_ok()
}

fn fold(
    sample: &Sample<'_>,
    unwinder: &Unwinder,
    processes: &mut ProcessTable,
    folder: &mut Folder,
    stack: &mut StackBuffer,
    queues: &Queues,
    shared: &Shared,
) {
    let thread = processes.thread_comm(sample.pid, sample.tid);
    processes.meet(sample.pid, sample.time);
    let process = processes.get(sample.pid);
    let end = unwinder.unwind(sample, process, stack);
    // A process refused at the table's bound is counted with the idle task's rows, as unknown.
    let Some(process) = process.or_else(|| processes.get(IDLE)) else {
        return;
    };
    folder.add(
        process,
        sample.cgroup,
        thread,
        &stack.frames,
        end,
        sample.period,
    );
    for mapping in &stack.files {
        let Backing::File(file) = mapping.backing else {
            continue;
        };
        processes.announce(sample.pid, file, mapping, sample.time, |seen| {
            let sent = queues.scout.try_send(Request::File(seen)).is_ok();
            folder.batch().files_announced += u64::from(sent);
            shared
                .announcements_deferred
                .fetch_add(u64::from(!sent), Ordering::Relaxed);
            sent
        });
    }
}

/// True for a sample of the idle loop itself: the idle task, with nothing on top of it. Interrupt
/// work on an idle CPU is work and is kept. With hidden kernel symbols nobody can tell, and all of
/// the idle task is taken for idle.
fn is_idle(sample: &Sample<'_>, ranges: &[(u64, u64)], hidden: bool) -> bool {
    if hidden {
        return true;
    }
    let after = ranges.partition_point(|&(start, _)| start <= sample.ip);
    after > 0 && sample.ip < ranges[after - 1].1
}
