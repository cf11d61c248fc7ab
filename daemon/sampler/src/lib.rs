//! The sampler thread: rings → order of time → process table → unwinding → folding → batches.
//!
//! The thread blocks in one place only, where it waits for records. It never logs and never opens a
//! file. The one exception is that it opens an event for each CPU that an off-CPU capture finds
//! silent, for which the kernel took 15 ms the first time. If no batch is free it keeps folding
//! into the current one; samples that it must drop are counted. It wakes once a second, and more
//! often while new programs start, when somebody asks for fresh data, and when a ring is filled to
//! the watermark, unless there are many rings (`Rings::quiet`).
#![forbid(unsafe_code)]

mod captures;
mod command;
mod commands;
mod context;
mod drain;
pub mod filter;
mod held;
mod lateness;
mod pace;
mod recent;
mod shared;
pub mod waits;
pub mod workers;

pub use captures::{CAPTURE_BATCHES, CAPTURES_MAX};
pub use command::{CaptureStart, CaptureSwitch, Command, HAND_OVER, RingSetSwitch, SetOf};
pub use context::Deferred;
pub use held::HeldCounts;
pub use shared::{COMMANDS_MAX, Facts, SamplerHandle};

use crate::lateness::Lateness;
use crate::workers::file_loader::{Handover, Request, Retired, Scanned};
use crate::workers::stack_reader;
use aggregate::batch::RawBatch;
use aggregate::fold::Folder;
use aggregate::losses::Losses;
use captures::{CaptureFolders, SymbolizerGone};
use commands::{Successor, listen};
use held::{HeldSamples, HeldSelection, WINDOW_WAITS_MAX};
use host::sys::Poller;
use host::time::MonotonicTime;
use jit::notice::Notice;
use pace::{CopyWatch, PassPacing};
use perf::rings::{HORIZON, Rings, horizon_at};
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError};
use std::time::Duration;
use unwind::info::generated::Generated;
use unwind::process::ProcessTable;
use unwind::process::scan::ScannedProcess;
use unwind::walk::UnwindUpdate;
use unwind::walk::look::StackReadAnswer;
use unwind::walk::{StackBuffer, Unwinder};

/// Time between two readings of /proc on a large host. On a smaller one it is as much shorter as
/// there are fewer processes, so that readings, which cost about 50 µs a process, take half a
/// percent of a CPU: what lost its records in somebody's storm has its names back the sooner.
pub const REPAIR_INTERVAL: Duration = Duration::from_secs(10);

/// Shortest time between two.
const REPAIR_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// How much of the interval each process adds.
const REPAIR_INTERVAL_EACH: Duration = Duration::from_millis(10);

/// Readings of /proc in a row that each leave a doubt. Each leaves fewer, but where processes come
/// and go by the hundred there is always one.
const REPAIRS_IN_ROW_MAX: u32 = 3;

/// Rings, or sets of them, that wait to be closed because `fp-files` stands still. Each keeps its
/// memory until then; beyond it the oldest is closed here, which is counted: that may take
/// milliseconds.
const CLOSING_MAX: usize = 16;

/// Nice value of the sampler's thread: it works little, and others' records fill the rings while it
/// waits for a CPU. With queues of four to five on both of two CPUs and a program that renames
/// itself without end, a sampler of nice 0 waited 5.0 of 6 s, and 546,426 records were lost, 280
/// samples among them; of nice -10 it waited 1.5 s, and none were (debug build, 2026-11-23). It
/// counts among the threads of one cgroup: where the daemon has a cgroup of its own the files in
/// `deploy/` raise the weight of that.
pub const NICE: i32 = -10;

/// Token of the wake descriptor; ring descriptors all have token 0.
const WAKE: u64 = 1;

/// Ends of the queues the sampler uses.
pub struct Queues {
    /// Batches to the symbolizer.
    pub batches: SyncSender<RawBatch>,
    /// Empty ones back.
    pub recycled: Receiver<RawBatch>,
    /// Files with samples, and wishes for a reading of /proc.
    pub file_loader: SyncSender<Request>,
    /// Readings of /proc.
    pub scanned: Receiver<Scanned>,
    /// Unwind information of files, and what is known of it on both sides.
    pub modules: (Receiver<UnwindUpdate>, Arc<Handover>),
    /// How to step over generated code.
    pub generated: Receiver<Generated>,
    /// Processes with generated code.
    pub code: SyncSender<Notice>,
    /// Requests for looks at the memory of threads, and their answers; `None` where none are had.
    pub looks: Option<(SyncSender<stack_reader::Request>, Receiver<StackReadAnswer>)>,
}

/// Why the sampler ended early.
#[derive(Debug, thiserror::Error)]
pub enum SamplerError {
    /// epoll.
    #[error("failed to wait for the ring buffers")]
    Wait(#[source] io::Error),
    /// The symbolizer is gone.
    #[error("the symbolizer thread has ended")]
    SymbolizerGone,
}

impl From<SymbolizerGone> for SamplerError {
    fn from(_: SymbolizerGone) -> SamplerError {
        SamplerError::SymbolizerGone
    }
}

/// The sampler.
pub struct Sampler {
    rings: Rings,
    successor: Option<Box<Successor>>,
    /// Commands that wait for the successor.
    commands: VecDeque<Command>,
    /// Commands that come.
    obeyed: Option<Receiver<Command>>,
    /// Rings with events to close, while the queue of `fp-files` is full; at most [`CLOSING_MAX`].
    closing: VecDeque<Retired>,
    unwinder: Unwinder,
    processes: ProcessTable,
    folder: Folder,
    losses: Losses,
    captures: CaptureFolders,
    queues: Queues,
    shared: Arc<SamplerHandle>,
    poller: Poller,
    /// Waits for what is asked and for the side band, not for samples.
    deaf: Poller,
    /// Address ranges of the kernel's idle loop, sorted.
    idle: Vec<(u64, u64)>,
    kernel_symbols_hidden: bool,
    stack: StackBuffer,
    window: Duration,
    window_end: MonotonicTime,
    /// When it was first seen that the window is over, while samples of it wait.
    window_over: Option<MonotonicTime>,
    /// Since when somebody waits for fresh data, while samples wait.
    flush_since: Option<MonotonicTime>,
    /// Samples that wait for a file.
    held: HeldSamples,
    pace: PassPacing,
    deep: CopyWatch,
    repair: Repair,
    lateness: Lateness,
    /// The last drain left records behind.
    behind: bool,
}

/// When to read /proc again: after a loss, and when an unreported process appears.
#[derive(Default)]
struct Repair {
    wanted: bool,
    not_before: MonotonicTime,
    /// How many events had left the table unsure when they were last counted.
    uncertain: u64,
    /// Readings in a row that left something to be read again.
    in_row: u32,
    /// It was asked for and has not come.
    awaited: bool,
    /// It came, and waits until every record older than it has been applied.
    scanned: Option<Scanned>,
}

/// Data with which the sampler starts.
pub struct SamplerStart {
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
    pub first_window_end: MonotonicTime,
}

/// Time until /proc may be read again where so many processes run.
fn repair_interval(processes: usize) -> Duration {
    let processes = u32::try_from(processes).unwrap_or(u32::MAX);
    REPAIR_INTERVAL_EACH
        .saturating_mul(processes)
        .clamp(REPAIR_INTERVAL_MIN, REPAIR_INTERVAL)
}

impl Sampler {
    /// Builds it on the thread it will run on.
    ///
    /// # Errors
    /// When epoll cannot be set up.
    pub fn new(
        start: SamplerStart,
        queues: Queues,
        shared: Arc<SamplerHandle>,
    ) -> Result<Sampler, SamplerError> {
        let poller = Poller::new().map_err(SamplerError::Wait)?;
        let deaf = Poller::new().map_err(SamplerError::Wait)?;
        for poller in [&poller, &deaf] {
            poller
                .add(shared.wake.as_raw_fd(), WAKE)
                .map_err(SamplerError::Wait)?;
        }
        for watched in start.rings.fds() {
            listen(&poller, &deaf, watched)?;
        }
        let mut processes = ProcessTable::new();
        for scanned in &start.processes {
            processes.adopt(scanned);
        }
        let mut folder = Folder::new(MonotonicTime::now());
        folder.batch().period = start.period;
        // What was asked for before there was a sampler holds from its first sample on.
        let obeyed = shared.take_obeyed();
        let commands: VecDeque<Command> = obeyed.iter().flat_map(Receiver::try_iter).collect();
        let kept = commands.iter().rev().find_map(|command| match command {
            Command::KeepTimes(keep) => Some(*keep),
            _ => None,
        });
        folder.keep_timestamps = kept.unwrap_or(false);
        Ok(Sampler {
            kernel_symbols_hidden: start.idle.is_empty(),
            rings: start.rings,
            successor: None,
            commands,
            obeyed,
            closing: VecDeque::new(),
            unwinder: start.unwinder,
            processes,
            folder,
            losses: Losses::default(),
            captures: CaptureFolders::default(),
            queues,
            shared,
            poller,
            deaf,
            idle: start.idle,
            stack: StackBuffer::default(),
            window: start.window,
            window_end: start.first_window_end,
            window_over: None,
            flush_since: None,
            held: HeldSamples::default(),
            pace: PassPacing::default(),
            deep: CopyWatch::default(),
            repair: Repair::default(),
            lateness: Lateness::default(),
            behind: false,
        })
    }

    /// Its rings: benches write to rings in memory.
    pub fn rings_mut(&mut self) -> &mut Rings {
        &mut self.rings
    }

    /// Runs until asked to stop; hands over what it has at the end.
    ///
    /// # Errors
    /// [`SamplerError`] when it cannot go on.
    pub fn run(mut self) -> Result<(), SamplerError> {
        let mut next_tick = MonotonicTime::now().plus(pace::TICK);
        loop {
            // A drain that left records behind is followed by the next one at once.
            let now = MonotonicTime::now();
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
            let now = MonotonicTime::now();
            self.pass(now)?;
            // Every pass empties all rings, so the next is due a tick from here.
            next_tick = now.plus(self.pace.tick(now));
            self.shared.heartbeat.store(now.0, Ordering::Relaxed);
            if self.shared.stop.load(Ordering::Acquire) {
                return self.finish();
            }
        }
    }

    /// Makes one pass at `now`, as [`Sampler::run`] does: drains, folds, hands over, executes
    /// commands.
    ///
    /// # Errors
    /// [`SamplerError`] when it cannot go on.
    pub fn pass(&mut self, now: MonotonicTime) -> Result<(), SamplerError> {
        self.lateness.begin(now, self.behind);
        self.held.now = now;
        let flush = self.shared.flush.swap(false, Ordering::AcqRel);
        if let Ok(scanned) = self.queues.scanned.try_recv() {
            self.repair.scanned = Some(scanned);
        }
        self.take_modules();
        while let Ok(generated) = self.queues.generated.try_recv() {
            self.processes.set_generated(generated);
        }
        self.take_looks(now);
        self.look_at_held(HeldSelection::Ready);
        let horizon = self.drain_up_to(horizon_at(now))?;
        self.ask_for_looks(now);
        let unwinding = self.unwinder.counts();
        let files = self.processes.files_met();
        self.pace.met(files, unwinding.holes.asked, now);
        if self.deep.is_due(unwinding.copies.cut, now) {
            self.shared.deep.wake();
        }
        self.hand_over_captures(horizon)?;
        if flush || self.flush_since.is_some() {
            self.flush(horizon, now)?;
        }
        while let Some(left) = self.rings.take_left() {
            self.unwatch(&left)?;
            self.retire(Retired(Box::new(left)));
        }
        self.close_rings();
        self.tell_of_dumps();
        self.repair(horizon);
        let oldest = self.held.oldest().unwrap_or(horizon);
        self.processes.sweep(horizon.min(oldest));
        self.ask_for_repair(now);
        self.take_commands();
        // A command is about the rings that come, once they are known.
        while self.successor.is_none()
            && let Some(command) = self.commands.pop_front()
        {
            self.obey(command, horizon, now)?;
        }
        Ok(())
    }

    /// Hands over what there is for somebody who asked for fresh data; a moment later where samples
    /// wait for a file: what is handed over lacks nothing up to its end.
    fn flush(&mut self, horizon: MonotonicTime, now: MonotonicTime) -> Result<(), SamplerError> {
        let since = *self.flush_since.get_or_insert(now);
        if !self.held.is_empty() && now.since(since) < WINDOW_WAITS_MAX {
            return Ok(());
        }
        self.flush_since = None;
        self.look_at_held(HeldSelection::All);
        self.hand_over(horizon, false)
    }

    /// Adds what `fp-files` read since the last pass, and requests what was missing.
    fn take_modules(&mut self) {
        let (modules, handover) = &self.queues.modules;
        // Copies may have been turned on since the start.
        if self.unwinder.counts().walks > 0 {
            handover.wanted.store(true, Ordering::Relaxed);
        }
        while let Ok(learnt) = modules.try_recv() {
            let untaken_bytes = &handover.untaken_bytes;
            untaken_bytes.fetch_sub(learnt.heap_bytes() as u64, Ordering::AcqRel);
            self.unwinder.install(learnt);
        }
        let file_loader = &self.queues.file_loader;
        self.unwinder
            .begin_drain(|missed| file_loader.try_send(Request::Missed(missed)).is_ok());
    }

    /// Reports jitdumps mapped since the last pass. They wait while the queue is full.
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

    /// Adds what `fp-look` read since the last pass, and drops what is no longer valid. All samples
    /// of the following drain are older than `now`.
    fn take_looks(&mut self, now: MonotonicTime) {
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
            unwinder.take_look(answer, now);
        }
        unwinder.looks.begin(now, |(id, _), pid| {
            let known = processes.get(pid);
            known.is_some_and(|known| known.id == id && known.ended.is_none())
        });
    }

    /// Requests memory reads of threads with cut samples.
    fn ask_for_looks(&mut self, now: MonotonicTime) {
        let Some((requests, _)) = &self.queues.looks else {
            return;
        };
        let Unwinder { looks, holes, .. } = &mut self.unwinder;
        looks.give_away(
            |watch| match requests.try_send(stack_reader::Request::Close(watch)) {
                Err(TrySendError::Full(stack_reader::Request::Close(watch))) => Some(watch),
                _ => None,
            },
        );
        looks.ask(now, |wanted| {
            requests
                .try_send(stack_reader::Request::StackSnapshot(wanted))
                .is_ok()
        });
        holes.ask(|hole| {
            requests
                .try_send(stack_reader::Request::Touch(hole))
                .is_ok()
        });
    }

    /// When the next pass is due: at the tick, when the rings that come can take over, when a
    /// capture hands over, or when a file may have been read that samples wait for.
    fn due(&self, next_tick: MonotonicTime) -> MonotonicTime {
        let margin = HORIZON + Duration::from_millis(1);
        let cut = self.successor.as_ref().map(|next| next.cut.plus(margin));
        let captured = self.captures.due().map(|due| due.plus(margin));
        let waits = [self.window_over, self.flush_since].into_iter().flatten();
        let held = waits.map(|since| since.plus(WINDOW_WAITS_MAX));
        let held = held.chain(self.held.due());
        let sooner = cut.into_iter().chain(captured).chain(held).min();
        sooner.map_or(next_tick, |sooner| sooner.min(next_tick))
    }

    /// [`COMMANDS_MAX`] wait at most, however long the successor takes: the channel fills then, and
    /// [`SamplerHandle::command`] refuses and counts.
    fn take_commands(&mut self) {
        let coming = self.obeyed.iter().flat_map(Receiver::try_iter);
        fill_up(&mut self.commands, coming, COMMANDS_MAX);
    }

    /// Makes `fp-files` close unused events, because the kernel may wait for all CPUs.
    fn close_rings(&mut self) {
        while let Some(rings) = self.closing.pop_front() {
            let sent = self.queues.file_loader.try_send(Request::CloseRings(rings));
            if let Err(TrySendError::Full(Request::CloseRings(rings))) = sent {
                self.closing.push_front(rings);
                return;
            }
        }
    }

    /// Hands over rings to be closed.
    fn retire(&mut self, rings: Retired) {
        self.closing.push_back(rings);
        self.close_rings();
        let beyond = keep_newest(&mut self.closing, CLOSING_MAX);
        self.shared
            .rings_closed
            .fetch_add(beyond, Ordering::Relaxed);
    }

    /// Corrects the process table by the reading of /proc that came, when all records older than it
    /// have been applied.
    fn repair(&mut self, horizon: MonotonicTime) {
        let is_due = |scanned: &Scanned| scanned.asked <= horizon;
        if !self.repair.scanned.as_ref().is_some_and(is_due) {
            return;
        }
        if let Some(Scanned { asked, scan }) = self.repair.scanned.take() {
            self.repair.awaited = false;
            // It may replace a process that has waiting samples.
            self.look_at_held(HeldSelection::All);
            let is_enough = self.processes.repair(&scan, asked);
            self.repair.in_row = if is_enough { 0 } else { self.repair.in_row + 1 };
            self.repair.wanted |= !is_enough && self.repair.in_row < REPAIRS_IN_ROW_MAX;
        }
    }

    fn ask_for_repair(&mut self, now: MonotonicTime) {
        let counts = self.processes.counts();
        let uncertain = counts.unannounced + counts.ends_uncertain;
        self.repair.wanted |= uncertain > self.repair.uncertain;
        self.repair.uncertain = uncertain;
        if self.repair.wanted && !self.repair.awaited && now >= self.repair.not_before {
            // When the queue is full the wish stays.
            self.repair.awaited = self.queues.file_loader.try_send(Request::Processes).is_ok();
            self.repair.wanted = !self.repair.awaited;
            self.repair.not_before = now.plus(repair_interval(self.processes.len()));
            if self.repair.awaited {
                self.processes.expect_scan();
            }
        }
    }

    fn finish(mut self) -> Result<(), SamplerError> {
        // The last samples are younger than the horizon of an ordinary drain.
        let now = MonotonicTime::now();
        self.take_looks(now);
        self.held.closed = true;
        self.take_modules();
        self.look_at_held(HeldSelection::All);
        let mut end = self.drain_up_to(now)?;
        while end < now {
            end = self.drain_up_to(now)?;
        }
        // One that was asked for and never started ends like the others.
        self.take_commands();
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
        // Blocking is right here: sampling is over, and the symbolizer is emptying the queue.
        self.queues
            .batches
            .send(batch)
            .map_err(|_| SamplerError::SymbolizerGone)
    }
}

/// Moves items to `list` until it has `max`; the rest stays.
fn fill_up<T>(list: &mut VecDeque<T>, coming: impl Iterator<Item = T>, max: usize) {
    let room = max.saturating_sub(list.len());
    list.extend(coming.take(room));
}

/// Drops the oldest of `list` beyond `max`; returns how many.
fn keep_newest<T>(list: &mut VecDeque<T>, max: usize) -> u64 {
    let beyond = list.len().saturating_sub(max);
    list.drain(..beyond);
    beyond as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_find_no_room_stay_in_the_channel() {
        let (commands, obeyed) = std::sync::mpsc::sync_channel(8);
        let mut waiting = VecDeque::from([1, 2]);
        for command in 3..=6 {
            commands.send(command).expect("room");
        }
        fill_up(&mut waiting, obeyed.try_iter(), 4);
        fill_up(&mut waiting, obeyed.try_iter(), 4);
        assert_eq!(waiting, [1, 2, 3, 4]);
        assert_eq!(obeyed.try_iter().collect::<Vec<_>>(), [5, 6]);
    }

    #[test]
    fn beyond_the_bound_the_oldest_is_closed_and_counted() {
        let mut closing: VecDeque<u32> = VecDeque::new();
        let beyond = [1, 2, 3, 4].map(|rings| {
            closing.push_back(rings);
            keep_newest(&mut closing, 2)
        });
        assert_eq!(beyond, [0, 0, 1, 1]);
        assert_eq!(closing, [3, 4]);
    }
}
