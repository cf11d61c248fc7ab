//! The data that every sample passes on its way into a batch: the process table, the unwinder, and
//! the receivers of notices about its files.

use super::Queues;
use super::held::{Awaited, HeldOutcome, HeldSamples, HeldSelection, Waiting};
use crate::workers::file_loader::Request;
use aggregate::batch::RawBatch;
use aggregate::fold::{Folder, SampleInfo};
use host::frame::RawFrame;
use host::ids::{Comm, Pid};
use jit::notice::Notice;
use perf::record::Sample;
use profile::StackEnd;
use std::sync::atomic::{AtomicU64, Ordering};
use unwind::process::space::Backing;
use unwind::process::{Process, ProcessTable};
use unwind::walk::recall::RecallCounts;
use unwind::walk::{StackBuffer, Unwinder};

/// Pid of the idle task, one for each CPU.
pub(super) const IDLE: Pid = Pid(0);

/// Notes which processes of a batch have ended.
pub(super) fn mark_ended(batch: &mut RawBatch, processes: &ProcessTable) {
    for known in &mut batch.processes {
        let now = processes.get(known.pid);
        known.ended = !now.is_some_and(|now| now.id == known.id && !now.has_ended());
    }
}

/// Notices that did not fit the queue of another thread; each is sent again with the next sample.
#[derive(Debug, Default)]
pub struct Deferred {
    /// Files that were to be opened.
    pub files: AtomicU64,
    /// Notices to `fp-jit` about processes with generated code.
    pub notices: AtomicU64,
}

/// How the name of an Erlang process starts: its stacks in generated code wait until it was
/// examined. For other runtimes nothing is known at once, and their stacks would only take the room
/// of others.
const BEAM: &[u8] = b"beam.";

/// Everything that a sample passes on its way into a batch.
pub(super) struct SampleContext<'a> {
    pub(super) unwinder: &'a mut Unwinder,
    pub(super) processes: &'a mut ProcessTable,
    stack: &'a mut StackBuffer,
    queues: &'a Queues,
    deferred: &'a Deferred,
    pub(super) held: &'a mut HeldSamples,
}

impl<'a> SampleContext<'a> {
    pub(super) fn new(
        unwinder: &'a mut Unwinder,
        processes: &'a mut ProcessTable,
        stack: &'a mut StackBuffer,
        queues: &'a Queues,
        deferred: &'a Deferred,
        held: &'a mut HeldSamples,
    ) -> SampleContext<'a> {
        SampleContext {
            unwinder,
            processes,
            stack,
            queues,
            deferred,
            held,
        }
    }

    pub(super) fn fold(&mut self, sample: &Sample<'_>, folder: &mut Folder) {
        let thread = self.processes.thread_comm(sample.pid, sample.tid);
        let end = self.unwind(sample);
        self.announce(sample, folder);
        if let Some(awaited) = self.awaits(sample.pid, end) {
            if awaited == Awaited::Rules {
                self.watch(sample.pid);
            }
            if let Some(process) = self.processes.get(sample.pid)
                && self.held.hold(sample, (process.id, thread), awaited)
            {
                return;
            }
        }
        self.unwinder.count_copy();
        self.add(sample, thread, end, folder);
    }

    /// What is being read that would complete the last unwound stack.
    fn awaits(&self, pid: Pid, end: StackEnd) -> Option<Awaited> {
        if end.is_complete() {
            return None;
        }
        let module = self.unwinder.awaits().map(Awaited::Module);
        let untold = |process: &Process| {
            let is_beam = process.comm.as_bytes().starts_with(BEAM);
            is_beam && process.generated().is_none()
        };
        let rules = end == StackEnd::GeneratedCode && self.processes.get(pid).is_some_and(untold);
        module.or(rules.then_some(Awaited::Rules))
    }

    /// True while what a sample waits for has not come.
    fn is_awaited(&self, pid: Pid, waiting: Waiting) -> bool {
        match waiting.awaited {
            Awaited::Module(file) => self.unwinder.is_awaited(file),
            Awaited::Rules => self.processes.get(pid).is_some_and(|process| {
                process.id == waiting.process && process.generated().is_none()
            }),
        }
    }

    /// Walks samples that waited once more, and folds those that are done.
    pub(super) fn look_at_held(&mut self, which: HeldSelection, folder: &mut Folder) {
        let concerned = match which {
            HeldSelection::Of(pid) => self.held.has(pid),
            HeldSelection::Ready | HeldSelection::All => !self.held.is_empty(),
        };
        if !concerned {
            return;
        }
        // What is walked is not held meanwhile.
        let mut held = std::mem::take(self.held);
        held.look(which, |sample, waiting, is_last| {
            if !is_last && self.is_awaited(sample.pid, waiting) {
                return HeldOutcome::Awaits(waiting.awaited);
            }
            let known = self.processes.get(sample.pid);
            // A reading of /proc may have found another process in its place: then the kernel's
            // chain is all there is.
            let known = known.filter(|known| known.id == waiting.process);
            let is_known = known.is_some();
            let end = self.unwinder.unwind(sample, known, self.stack);
            self.announce(sample, folder);
            let awaited = self.awaits(sample.pid, end);
            match awaited.filter(|&it| is_known || it != Awaited::Rules) {
                Some(awaited) if !is_last => HeldOutcome::Awaits(awaited),
                awaited => {
                    if awaited == Some(Awaited::Rules) && which == HeldSelection::Ready {
                        // Nobody answers: the next samples do not wait.
                        self.processes.forgo_rules(sample.pid);
                    }
                    self.unwinder.count_copy();
                    self.add(sample, waiting.thread, end, folder);
                    match awaited {
                        Some(_) => HeldOutcome::GivenUp,
                        None => HeldOutcome::Done,
                    }
                }
            }
        });
        *self.held = held;
    }

    /// The names of the thread of a sample and of its process, where that is known.
    pub(super) fn names(&self, sample: &Sample<'_>) -> [Comm; 2] {
        let thread = self.processes.thread_comm(sample.pid, sample.tid);
        let process = self.processes.get(sample.pid);
        [thread, process.map_or(thread, |process| process.comm)]
    }

    /// Leaves the frames in the buffer.
    pub(super) fn unwind(&mut self, sample: &Sample<'_>) -> StackEnd {
        self.processes.meet(sample.pid, sample.time);
        let process = self.processes.get(sample.pid);
        self.unwinder.unwind(sample, process, self.stack)
    }

    /// The same for the sample of a wait, for which `near_bytes` of the stack are copied each time.
    pub(super) fn unwind_wait(&mut self, sample: &Sample<'_>, near_bytes: u32) -> StackEnd {
        self.processes.meet(sample.pid, sample.time);
        let process = self.processes.get(sample.pid);
        let unwinder = &mut *self.unwinder;
        unwinder.unwind_wait(sample, process, near_bytes, self.stack)
    }

    /// Counters of recognized waits since the start.
    pub(super) fn recall(&self) -> RecallCounts {
        self.unwinder.recall.counts
    }

    /// Adds a sample that was unwound.
    pub(super) fn add(
        &mut self,
        sample: &Sample<'_>,
        thread: Comm,
        end: StackEnd,
        folder: &mut Folder,
    ) {
        let process = self.processes.get(sample.pid);
        // A process refused at the table's bound is counted with the idle task's rows, as unknown.
        let Some(process) = process.or_else(|| self.processes.get(IDLE)) else {
            return;
        };
        let taken = SampleInfo {
            time: sample.time,
            cgroup: sample.cgroup,
            thread,
            end,
            weight: sample.period,
        };
        if folder.add(process, &taken, &self.stack.frames) {
            self.watch(sample.pid);
        }
    }

    /// The frames of what was unwound last, leaf first.
    pub(super) fn frames(&self) -> &[RawFrame] {
        &self.stack.frames
    }

    /// The frames of what was unwound last, leaf first, and the processes.
    pub(super) fn found(&self) -> (&[RawFrame], &ProcessTable) {
        (&self.stack.frames, self.processes)
    }

    /// Reports a process with frames in generated code to `fp-jit`, unless it was reported.
    pub(super) fn watch(&mut self, pid: Pid) {
        let Some(process) = self.processes.get(pid).filter(|it| !it.is_watched()) else {
            return;
        };
        let whose = process.whose();
        match self.queues.code.try_send(Notice::Met(whose)) {
            Ok(()) => self.processes.watch(whose.pid),
            Err(_) => {
                let deferred = &self.deferred.notices;
                deferred.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Reports the files of an unwound sample to the store; counted in the continuous profile's
    /// batch.
    pub(super) fn announce(&mut self, sample: &Sample<'_>, main: &mut Folder) {
        let SampleContext {
            queues, deferred, ..
        } = self;
        let mut send = |seen| {
            let sent = queues.file_loader.try_send(Request::File(seen)).is_ok();
            main.batch().files_announced += u64::from(sent);
            deferred
                .files
                .fetch_add(u64::from(!sent), Ordering::Relaxed);
            sent
        };
        for mapping in &self.stack.files {
            if let Backing::File(file) = mapping.backing {
                let time = sample.time;
                self.processes
                    .announce(sample.pid, file, mapping, time, &mut send);
            }
        }
        if sample.user.is_some() {
            self.processes.announce_all(sample.pid, sample.time, send);
        }
    }
}
