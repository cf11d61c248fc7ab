//! The sampler thread: rings → order of time → process table → unwinding → folding → batches.
//!
//! It never blocks but in its one wait, never logs, never opens a file. What it cannot hand on it
//! keeps folding, and what it cannot keep it counts. It wakes once a second, when somebody asks for
//! fresh data, and when a ring has filled to the watermark, unless there are many (`Rings::quiet`).

mod captures;
mod commands;
mod drain;
mod recent;
mod shared;
pub mod waits;

pub use captures::{Begin, CAPTURE_BATCHES, CAPTURES_MAX, Follow, HAND_OVER, Seam, SetOf};
pub use commands::Command;
pub use shared::{Facts, Shared};

use crate::aggregate::batch::RawBatch;
use crate::aggregate::fold::Folder;
use crate::aggregate::losses::Losses;
use crate::jit::notice::Notice;
use crate::lateness::Lateness;
use crate::perf::rings::{HORIZON, Rings, horizon_at};
use crate::process::ProcessTable;
use crate::process::looker;
use crate::process::scan::ScannedProcess;
use crate::process::scout::{Handover, Request, Scanned};
use crate::sys::Poller;
use crate::time::Mono;
use crate::unwind::generated::Generated;
use crate::unwind::look::Answer;
use crate::unwind::modules::Loaded;
use crate::unwind::{StackBuffer, Unwinder};
use captures::{Captures, NamerGone};
use commands::Successor;
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError};
use std::time::Duration;

/// Longest sleep. Rings hold more, so this is about how fresh data is and how soon the end of a window
/// is noticed.
const TICK: Duration = Duration::from_secs(1);

/// Shortest time between two readings of /proc: each costs about 50 µs a process.
const REPAIR_INTERVAL: Duration = Duration::from_secs(10);

/// Token of the wake descriptor; ring descriptors all have token 0.
const WAKE: u64 = 1;

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
    /// How to step over generated code.
    pub generated: Receiver<Generated>,
    /// Processes with generated code.
    pub code: SyncSender<Notice>,
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

impl From<NamerGone> for SamplerError {
    fn from(_: NamerGone) -> SamplerError {
        SamplerError::NamerGone
    }
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
    captures: Captures,
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
        // What was asked for before there was a sampler holds from its first sample on.
        if let Ok(commands) = shared.commands.lock() {
            let kept = commands.iter().rev().find_map(|command| match command {
                Command::KeepTimes(keep) => Some(*keep),
                _ => None,
            });
            folder.keep_moments = kept.unwrap_or(false);
        }
        Ok(Sampler {
            kernel_symbols_hidden: start.idle.is_empty(),
            rings: start.rings,
            successor: None,
            commands: VecDeque::new(),
            unwinder: start.unwinder,
            processes,
            folder,
            losses: Losses::default(),
            captures: Captures::default(),
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
        while let Ok(generated) = self.queues.generated.try_recv() {
            self.processes.set_generated(generated);
        }
        self.take_looks(now);
        let horizon = self.drain_up_to(horizon_at(now))?;
        self.ask_for_looks(now);
        self.hand_over_captures(horizon)?;
        if flush {
            self.hand_over(horizon, false)?;
        }
        while let Some(left) = self.rings.take_left() {
            self.unwatch(&left)?;
        }
        self.tell_of_dumps();
        self.processes.sweep(horizon);
        self.ask_for_repair(now);
        if let Ok(mut commands) = self.shared.commands.lock() {
            self.commands.extend(commands.drain(..));
        }
        // A command is about the rings that come, once they are known.
        while self.successor.is_none()
            && let Some(command) = self.commands.pop_front()
        {
            self.obey(command, horizon, now)?;
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

    /// Tells of jitdumps mapped since the last pass. When the queue is full they wait.
    fn tell_of_dumps(&mut self) {
        let code = &self.queues.code;
        self.processes.tell_of_dumps(|seen| {
            let sent = code.try_send(Notice::Dump(Box::new(seen)));
            match sent {
                Err(TrySendError::Full(Notice::Dump(seen))) => Some(*seen),
                _ => None,
            }
        });
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

    /// When the next pass is due: at the tick, when the rings that come can take over, or when a capture
    /// hands over.
    fn due(&self, next_tick: Mono) -> Mono {
        let margin = HORIZON + Duration::from_millis(1);
        let cut = self.successor.as_ref().map(|next| next.cut.plus(margin));
        let captured = self.captures.due().map(|due| due.plus(margin));
        let sooner = cut.into_iter().chain(captured).min();
        sooner.map_or(next_tick, |sooner| sooner.min(next_tick))
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

    fn finish(mut self) -> Result<(), SamplerError> {
        // The last samples are younger than the horizon of an ordinary drain.
        let now = Mono::now();
        self.take_looks(now);
        let mut end = self.drain_up_to(now)?;
        while end < now {
            end = self.drain_up_to(now)?;
        }
        // One that was asked for and never began ends like the others.
        if let Ok(mut commands) = self.shared.commands.lock() {
            self.commands.extend(commands.drain(..));
        }
        while let Some(command) = self.commands.pop_front() {
            if let Command::BeginCapture(_) = command {
                self.obey(command, end, now)?;
            }
        }
        let known = (&self.processes, self.rings.sets());
        self.captures
            .finish(end, &mut self.folder, known, &self.queues)?;
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
