//! The sampler thread: rings → order of time → process table → unwinding → folding → batches.
//!
//! It never blocks but in its one wait, never logs, never opens a file. What it cannot hand on it
//! keeps folding, and what it cannot keep it counts. It wakes once a second, when somebody asks for
//! fresh data, and when a ring has filled to the watermark, unless there are many (`Rings::quiet`).

use crate::aggregate::batch::RawBatch;
use crate::aggregate::fold::Folder;
use crate::aggregate::losses::Losses;
use crate::ids::{CpuId, Pid};
use crate::lateness::Lateness;
use crate::perf::cpu_ring::{CpuCounts, CpuRing};
use crate::perf::record::{Record, Sample};
use crate::perf::rings::{Drained, HORIZON, Rings, horizon_at};
use crate::process::looker;
use crate::process::scan::ScannedProcess;
use crate::process::scout::{Handover, Request, Scanned};
use crate::process::space::Backing;
use crate::process::{ProcessCounts, ProcessTable};
use crate::sys::{Poller, WakeFd};
use crate::time::Mono;
use crate::unwind::engine::UnwindCounts;
use crate::unwind::look::Answer;
use crate::unwind::modules::Loaded;
use crate::unwind::{Depths, StackBuffer, Unwinder};
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Longest sleep. Rings hold more, so this is about how fresh data is and how soon the end of a window
/// is noticed.
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
        /// Most frames of a stack.
        depths: Depths,
        /// Weight of one sample; 0 when it varies.
        period: u64,
        /// The daemon's budget allows less than is configured.
        reduced: bool,
    },
    /// Sample one more CPU, or one again that was away.
    AddCpu {
        /// Opened and enabled.
        ring: Box<CpuRing>,
        /// Since when the CPU may have run unsampled.
        since: Mono,
        /// Since when it had been offline; as `since` where it was not.
        left: Mono,
    },
    /// A CPU went away.
    RemoveCpu(CpuId),
    /// Close windows this long, at multiples of it before and after `boundary`.
    Windows {
        /// The length.
        length: Duration,
        /// Where one ends and the next begins.
        boundary: Mono,
    },
}

/// Rings that are to be sampled from `cut` on. Both run for a moment, so that nothing is missing
/// between them, and what both have is taken from one.
struct Successor {
    rings: Rings,
    depths: Depths,
    period: u64,
    reduced: bool,
    cut: Mono,
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
            heartbeat: AtomicU64::new(Mono::now().0),
            newest_sample: AtomicU64::new(0),
            wakeups: AtomicU64::new(0),
            samples: AtomicU64::new(0),
            deferred_batches: AtomicU64::new(0),
            announcements_deferred: AtomicU64::new(0),
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
    /// Unwind information of files, and what is known of it on both sides.
    pub modules: (Receiver<Loaded>, Arc<Handover>),
    /// Requests for looks at the memory of threads, and their answers; `None` where none are had.
    pub looks: Option<(SyncSender<looker::Request>, Receiver<Answer>)>,
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
    successor: Option<Box<Successor>>,
    /// Commands that wait for the successor.
    commands: VecDeque<Command>,
    unwinder: Unwinder,
    processes: ProcessTable,
    folder: Folder,
    losses: Losses,
    queues: Queues,
    shared: Arc<Shared>,
    poller: Poller,
    /// Waits for what is asked alone, not for the rings.
    deaf: Poller,
    /// Address ranges of the kernel's idle loop, sorted.
    idle: Vec<(u64, u64)>,
    kernel_symbols_hidden: bool,
    stack: StackBuffer,
    window: Duration,
    window_end: Mono,
    repair: Repair,
    lateness: Lateness,
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
        let deaf = Poller::new().map_err(SamplerError::Wait)?;
        for poller in [&poller, &deaf] {
            poller
                .add(shared.wake.as_raw_fd(), WAKE)
                .map_err(SamplerError::Wait)?;
        }
        for fd in start.rings.fds() {
            poller.add_edge(fd, 0).map_err(SamplerError::Wait)?;
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
            successor: None,
            commands: VecDeque::new(),
            unwinder: start.unwinder,
            processes,
            folder,
            losses: Losses::default(),
            queues,
            shared,
            poller,
            deaf,
            idle: start.idle,
            stack: StackBuffer::default(),
            window: start.window,
            window_end: start.first_window_end,
            repair: Repair::default(),
            lateness: Lateness::default(),
            behind: false,
        })
    }

    /// What it samples with: benches write to rings in memory.
    pub fn rings_mut(&mut self) -> &mut Rings {
        &mut self.rings
    }

    /// Runs until asked to stop; hands over what it has at the end.
    ///
    /// # Errors
    /// [`SamplerError`] when it cannot go on.
    pub fn run(mut self) -> Result<(), SamplerError> {
        let mut next_tick = Mono::now().plus(TICK);
        loop {
            // A drain that left records behind is followed by the next one at once.
            let now = Mono::now();
            let due = if self.behind {
                Duration::ZERO
            } else {
                self.due(next_tick).since(now)
            };
            let (poller, wait) = match self.rings.quiet() {
                Some(quiet) => (&self.deaf, quiet.min(due)),
                None => (&self.poller, due),
            };
            poller
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

    /// One pass at `now`, as [`Sampler::run`] makes them: drains, folds, hands over, obeys.
    ///
    /// # Errors
    /// [`SamplerError`] when it cannot go on.
    pub fn pass(&mut self, now: Mono) -> Result<(), SamplerError> {
        self.lateness.begin(now, self.behind);
        let flush = self.shared.flush.swap(false, Ordering::AcqRel);
        if let Ok(scanned) = self.queues.scanned.try_recv() {
            self.processes.repair(&scanned.processes, scanned.asked);
        }
        self.take_modules();
        self.take_looks(now);
        let horizon = self.drain_up_to(horizon_at(now))?;
        self.ask_for_looks(now);
        if flush {
            self.hand_over(horizon, false)?;
        }
        while let Some(left) = self.rings.take_left() {
            self.unwatch(&left)?;
        }
        self.processes.sweep(horizon);
        self.ask_for_repair(now);
        if let Ok(mut commands) = self.shared.commands.lock() {
            self.commands.extend(commands.drain(..));
        }
        // A command is about the rings that come, once they are known.
        while self.successor.is_none()
            && let Some(command) = self.commands.pop_front()
        {
            self.obey(command, horizon)?;
        }
        Ok(())
    }

    /// Takes in what `fp-files` read since the last pass, and asks for what was missed.
    fn take_modules(&mut self) {
        let (modules, handover) = &self.queues.modules;
        // Copies may have been turned on since the start.
        if self.unwinder.counts().walks > 0 {
            handover.wanted.store(true, Ordering::Relaxed);
        }
        while let Ok(loaded) = modules.try_recv() {
            let untaken_bytes = &handover.untaken_bytes;
            untaken_bytes.fetch_sub(loaded.heap_bytes() as u64, Ordering::AcqRel);
            self.unwinder.install(loaded);
        }
        let scout = &self.queues.scout;
        self.unwinder
            .begin_drain(|file| scout.try_send(Request::Module(file)).is_ok());
    }

    /// Takes in what `fp-look` saw since the last pass, and drops what does not hold any more. All
    /// samples of the drain that follows are older than `now`.
    fn take_looks(&mut self, now: Mono) {
        let Sampler {
            queues,
            unwinder,
            processes,
            ..
        } = self;
        let Some((_, answers)) = &queues.looks else {
            return;
        };
        while let Ok(answer) = answers.try_recv() {
            unwinder.looks.take(answer, now);
        }
        unwinder.looks.begin(now, |(id, _), pid| {
            let known = processes.get(pid);
            known.is_some_and(|known| known.id == id && known.ended.is_none())
        });
    }

    /// Asks for looks at threads whose samples were cut.
    fn ask_for_looks(&mut self, now: Mono) {
        let Some((requests, _)) = &self.queues.looks else {
            return;
        };
        let looks = &mut self.unwinder.looks;
        looks.give_away(
            |watch| match requests.try_send(looker::Request::Close(watch)) {
                Err(TrySendError::Full(looker::Request::Close(watch))) => Some(watch),
                _ => None,
            },
        );
        looks.ask(now, |wanted| {
            requests.try_send(looker::Request::Look(wanted)).is_ok()
        });
    }

    /// When the next pass is due: at the tick, or when the rings that come can take over.
    fn due(&self, next_tick: Mono) -> Mono {
        let margin = HORIZON + Duration::from_millis(1);
        let cut = self.successor.as_ref().map(|next| next.cut.plus(margin));
        cut.map_or(next_tick, |cut| cut.min(next_tick))
    }

    /// Drains up to `horizon` and closes the windows that end before; a successor takes over on the
    /// way. Returns up to where it came.
    fn drain_up_to(&mut self, horizon: Mono) -> Result<Mono, SamplerError> {
        if let Some(cut) = self.successor.as_ref().map(|next| next.cut) {
            let reached = self.drain(horizon.min(cut))?;
            self.close_windows(reached)?;
            if reached < cut {
                self.behind = reached < horizon;
                return Ok(reached);
            }
            self.succeed()?;
        }
        let reached = self.drain(horizon)?;
        self.behind = reached < horizon;
        self.close_windows(reached)?;
        Ok(reached)
    }

    fn close_windows(&mut self, horizon: Mono) -> Result<(), SamplerError> {
        while self.window_end <= horizon {
            self.hand_over(self.window_end, true)?;
            self.window_end = self.window_end.plus(self.window);
        }
        Ok(())
    }

    /// Goes over to the successor, whose cut has been reached.
    fn succeed(&mut self) -> Result<(), SamplerError> {
        let Some(next) = self.successor.take() else {
            return Ok(());
        };
        let mut next = *next;
        // Weights differ from here on.
        self.hand_over(next.cut, false)?;
        next.rings.follow(&self.rings, next.cut);
        for fd in next.rings.fds() {
            self.poller.add_edge(fd, 0).map_err(SamplerError::Wait)?;
        }
        for fd in self.rings.fds() {
            self.poller.remove(fd).map_err(SamplerError::Wait)?;
        }
        self.rings = next.rings;
        self.unwinder.depths = next.depths;
        self.folder.batch().period = next.period;
        self.folder.reduced = next.reduced;
        Ok(())
    }

    fn unwatch(&self, ring: &CpuRing) -> Result<(), SamplerError> {
        match ring.fd() {
            Some(fd) => self.poller.remove(fd).map_err(SamplerError::Wait),
            None => Ok(()),
        }
    }

    fn drain(&mut self, horizon: Mono) -> Result<Mono, SamplerError> {
        let Sampler {
            rings,
            unwinder,
            processes,
            folder,
            losses,
            queues,
            shared,
            stack,
            idle,
            kernel_symbols_hidden,
            window_end,
            window,
            repair,
            lateness,
            ..
        } = self;
        let mut gone = false;
        let mut newest = Mono(0);
        let mut folded = 0;
        let horizon = rings.drain(horizon, |drained| {
            let (time, record) = match drained {
                Drained::Record { time, record, .. } => (time, record),
                Drained::Gap(gap) => return losses.add(gap),
            };
            while time >= *window_end {
                // Counts of the rings are not at hand inside the drain: they go with the next batch.
                gone |= !send(folder, losses, processes, queues, shared, *window_end, true);
                *window_end = window_end.plus(*window);
            }
            match record {
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
                Record::Mmap(mmap) => processes.mmap(&mmap, time),
                Record::Comm {
                    pid,
                    tid,
                    comm,
                    exec,
                } => {
                    processes.comm(pid, tid, comm, exec, time);
                }
                Record::Fork {
                    pid,
                    tid,
                    parent,
                    parent_tid,
                } => {
                    processes.fork(pid, tid, parent, parent_tid, time);
                }
                Record::Exit { pid, tid } => {
                    if let Some(process) = processes.get(pid) {
                        unwinder.looks.forget((process.id, tid));
                    }
                    processes.exit(pid, tid, time);
                }
                Record::Cgroup { id, path } => {
                    // A cgroup made: rare, and the path must outlive the record.
                    folder.batch().cgroups.push((id, path.into()));
                }
                Record::KernelCode => {
                    folder.batch().kernel_changed = true;
                    shared.kernel_code_changes.fetch_add(1, Ordering::Relaxed);
                }
                // The rings count them.
                Record::Lost(_) | Record::Throttle | Record::Other => {}
            }
        });
        let quality = &mut folder.batch().quality;
        let news = rings.news;
        quality.lost += news.lost;
        if let Some(delay) = lateness.delay().filter(|_| news.lost > 0) {
            quality.lost_late += news.lost;
            let delay = delay.as_nanos() as u64;
            shared.longest_delay.fetch_max(delay, Ordering::Relaxed);
        }
        repair.wanted |= news.lost > 0;
        quality.throttled += news.throttled;
        quality.malformed += news.malformed;
        shared.samples.fetch_add(folded, Ordering::Relaxed);
        shared.late_records.store(rings.late, Ordering::Relaxed);
        shared
            .malformed_records
            .store(rings.malformed, Ordering::Relaxed);
        if newest.0 != 0 {
            shared.newest_sample.store(newest.0, Ordering::Relaxed);
        }
        if let Ok(mut facts) = shared.facts.try_lock() {
            facts.horizon = horizon;
            facts.cpus.clear();
            facts.cpus.extend(rings.counts());
            facts.processes = processes.counts();
            facts.processes_known = processes.len();
            facts.unwinding = unwinder.counts();
            let (_, handover) = &queues.modules;
            facts.unwinding.unread = handover.unread.load(Ordering::Relaxed);
            facts.unwinding.untaken = handover.untaken.load(Ordering::Relaxed);
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
            losses,
            processes,
            queues,
            shared,
            ..
        } = self;
        let sent = send(folder, losses, processes, queues, shared, end, closes);
        if sent {
            Ok(())
        } else {
            Err(SamplerError::NamerGone)
        }
    }

    fn obey(&mut self, command: Command, horizon: Mono) -> Result<(), SamplerError> {
        match command {
            Command::Windows { length, boundary } => {
                self.window = length;
                self.window_end = end_after(horizon, boundary, length);
            }
            Command::Replace {
                rings,
                depths,
                period,
                reduced,
            } => {
                self.successor = Some(Box::new(Successor {
                    rings: *rings,
                    depths,
                    period,
                    reduced,
                    cut: Mono::now(),
                }));
            }
            Command::AddCpu { ring, since, left } => {
                for gap in self.rings.missed_around(&ring, left, since) {
                    self.losses.add(gap);
                }
                if let Some(fd) = ring.fd() {
                    self.poller.add_edge(fd, 0).map_err(SamplerError::Wait)?;
                }
                self.rings.add(*ring);
            }
            Command::RemoveCpu(cpu) => self.rings.leave(cpu),
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(), SamplerError> {
        // The last samples are younger than the horizon of an ordinary drain.
        let now = Mono::now();
        self.take_looks(now);
        let mut end = self.drain_up_to(now)?;
        while end < now {
            end = self.drain_up_to(now)?;
        }
        let batch = self.folder.batch();
        self.losses.take(end, batch);
        let batch = self.folder.take(end, true, RawBatch::default());
        // Blocking is right here: sampling is over, and the namer is emptying the queue.
        self.queues
            .batches
            .send(batch)
            .map_err(|_| SamplerError::NamerGone)
    }
}

/// The first end of a window after `time`, when windows of `length` meet at `boundary`.
fn end_after(time: Mono, boundary: Mono, length: Duration) -> Mono {
    let length = (length.as_nanos() as i128).max(1);
    let into = (i128::from(time.0) - i128::from(boundary.0)).rem_euclid(length);
    time.plus(Duration::from_nanos((length - into) as u64))
}

/// Sends the batch when there is an empty one to go on with and room in the queue; otherwise folding
/// goes on in it, and the window is longer. Returns false when the namer is gone.
fn send(
    folder: &mut Folder,
    losses: &mut Losses,
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
    let batch = folder.batch();
    losses.take(end, batch);
    for known in &mut batch.processes {
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
    unwinder: &mut Unwinder,
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
    let mut send = |seen| {
        let sent = queues.scout.try_send(Request::File(seen)).is_ok();
        folder.batch().files_announced += u64::from(sent);
        shared
            .announcements_deferred
            .fetch_add(u64::from(!sent), Ordering::Relaxed);
        sent
    };
    for mapping in &stack.files {
        if let Backing::File(file) = mapping.backing {
            processes.announce(sample.pid, file, mapping, sample.time, &mut send);
        }
    }
    if sample.user.is_some() {
        processes.announce_all(sample.pid, sample.time, send);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::record::{self, Layout};
    use crate::perf::synthetic;

    const LOOP: &[(u64, u64)] = &[(0x1000, 0x1100), (0x3000, 0x3080)];

    fn check_idle(ip: u64, hidden: bool, expected: bool) {
        let layout = Layout {
            cgroup: true,
            user_regs: 0,
            user_stack: false,
        };
        let bytes = synthetic::sample(Mono(1), 0, 0, 10, &[ip]);
        let Ok(Record::Sample(sample)) = record::parse(&bytes, &layout) else {
            panic!("not a sample")
        };
        assert_eq!(is_idle(&sample, LOOP, hidden), expected, "{ip:#x}");
    }

    #[test]
    fn the_idle_loop_is_idle() {
        check_idle(0x1000, false, true);
        check_idle(0x307f, false, true);
    }

    #[test]
    fn interrupt_work_on_an_idle_cpu_is_work() {
        check_idle(0x2000, false, false);
        check_idle(0x1100, false, false);
        check_idle(0x9000, false, false);
    }

    #[test]
    fn with_hidden_symbols_all_of_the_idle_task_is_idle() {
        check_idle(0x2000, true, true);
    }

    fn check_end(time: u64, boundary: u64, length: u64, expected: u64) {
        let end = end_after(Mono(time), Mono(boundary), Duration::from_nanos(length));
        assert_eq!(end, Mono(expected));
    }

    #[test]
    fn windows_are_aligned_to_a_boundary_before_or_after() {
        check_end(103, 110, 10, 110);
        check_end(103, 150, 10, 110);
        check_end(103, 20, 10, 110);
        check_end(103, 1007, 10, 107);
    }

    #[test]
    fn a_window_that_would_end_now_lasts_its_whole_length() {
        check_end(110, 110, 10, 120);
    }
}
