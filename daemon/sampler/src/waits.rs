//! Runs the off-CPU machine on the rings' records: from samples of the scheduler's tracepoints to
//! rows.
//!
//! Runs on the sampler's thread, in order of time. Only what the machine can use is unwound: stacks
//! of threads that the capture is about as they start to wait, and stacks of their wakers. Its
//! tables grow with the number of threads seen, up to the bounds of [`offcpu`]; nothing else is
//! allocated.

use super::context::{IDLE, SampleContext};
use crate::filter::Filter;
use aggregate::fold::{Folder, SampleInfo};
use host::frame::RawFrame;
use host::ids::{Comm, CpuId, Tid};
use host::time::MonotonicTime;
use offcpu::format::{Leaving, Switch, Waking};
use offcpu::machine::{At, Loss, Machine, Waiting};
use offcpu::reading::{Reading, event};
use offcpu::{CpuMask, Wait, WaitCounts, Who, shape};
use perf::record::Sample;
use profile::StackEnd;
use unwind::process::{ProcessTable, REAPED};

/// Makes waits of samples.
pub struct Waits {
    reading: Reading,
    machine: Machine,
    /// What the batches so far have reported.
    told: WaitCounts,
    /// CPUs for which arrivals were requested.
    asked: CpuMask,
    /// One stack of a wait and who ended it.
    shaped: Vec<RawFrame>,
}

impl std::fmt::Debug for Waits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Waits {{ threads: {} }}", self.machine.threads())
    }
}

impl Waits {
    /// Reads samples as `reading` says, with an empty machine.
    pub fn new(reading: Reading, machine: Machine) -> Waits {
        Waits {
            reading,
            machine,
            told: WaitCounts::default(),
            asked: CpuMask::default(),
            shaped: Vec::with_capacity(256),
        }
    }

    /// Samples of an event are missing.
    pub(super) fn lost(&mut self, number: u8, from: MonotonicTime, until: MonotonicTime) {
        let loss = Loss { from, until };
        match number {
            event::BLOCKED | event::READY => self.machine.lost_switches(loss),
            event::WAKING => self.machine.lost_wakings(loss),
            // The others report the same, including the stack.
            _ => {}
        }
    }

    /// From here on it is not seen any more what all threads do.
    pub(super) fn lost_from(&mut self, since: MonotonicTime) {
        let until = MonotonicTime(u64::MAX);
        let loss = Loss { from: since, until };
        self.machine.lost_switches(loss);
        self.machine.lost_wakings(loss);
    }

    /// A CPU that was found to record no switches of its idle task, once each.
    pub(super) fn silent_cpu(&mut self) -> Option<CpuId> {
        let silent = &self.machine.counts.silent;
        let found = silent.iter().find(|&cpu| !self.asked.has(cpu))?;
        self.asked.add(found);
        Some(found)
    }

    /// Counts since the last call.
    pub(super) fn take_counts(&mut self) -> WaitCounts {
        let counts = self.machine.counts.since(&self.told);
        self.told = self.machine.counts;
        counts
    }

    /// Handles a sample of event `number` of the set.
    pub(super) fn take(
        &mut self,
        number: u8,
        sample: &Sample<'_>,
        (filter, folder): (&Filter, &mut Folder),
        main: &mut Folder,
        way: &mut SampleContext<'_>,
    ) {
        let raw = sample.raw.unwrap_or_default();
        let at = At {
            time: sample.time,
            cpu: sample.cpu,
        };
        match number {
            event::BLOCKED | event::READY | event::COPIED => {
                let Some(switch) = self.reading.switch.read(raw) else {
                    folder.batch().quality.malformed += 1;
                    return;
                };
                if !self.machine.start_record(at) {
                    return;
                }
                let copied = number == event::COPIED;
                self.leaves(at, &switch, sample, (filter, copied), (main, folder), way);
                if !copied {
                    self.runs(at, Tid(switch.next), folder, way);
                }
            }
            event::WAKING | event::COPIED_WAKING => {
                let Some(waking) = self.reading.waking.read(raw) else {
                    folder.batch().quality.malformed += 1;
                    return;
                };
                let copied = number == event::COPIED_WAKING;
                if self.machine.start_record(at) {
                    self.woken(at, &waking, sample, copied, main, way);
                }
            }
            _ => {}
        }
    }

    /// A thread leaves its CPU; which is that of the sample.
    fn leaves(
        &mut self,
        at: At,
        switch: &Switch,
        sample: &Sample<'_>,
        (filter, copied): (&Filter, bool),
        (main, folder): (&mut Folder, &mut Folder),
        way: &mut SampleContext<'_>,
    ) {
        let prev = Tid(switch.prev);
        let who = self.who(prev, sample, filter, way);
        let waits = matches!(
            switch.leaving,
            Leaving::Sleep | Leaving::Uninterruptible | Leaving::Stopped
        );
        let end = match who {
            Some(_) if waits && switch.prev != 0 => {
                let before = way.recall();
                let near = Some(self.reading.near_bytes);
                let end = unwind(sample, near, main, way);
                self.machine.counts.note_checks(before, way.recall());
                end
            }
            _ => StackEnd::Complete,
        };
        let Waits {
            machine, shaped, ..
        } = self;
        let (frames, processes) = way.found();
        // A wait before this one may have ended unseen.
        let emit = &mut |wait: Wait<'_>| add(&wait, at.time, shaped, folder, processes);
        let Some(who) = who.filter(|_| switch.prev != 0) else {
            if !copied {
                machine.passes(at, prev, emit);
            }
            return;
        };
        match switch.leaving {
            Leaving::Dead | Leaving::Preempted if copied => {}
            Leaving::Dead => machine.ends(at, prev, emit),
            Leaving::Preempted => machine.preempted(at, prev, who, emit),
            leaving => {
                let waiting = Waiting {
                    who,
                    leaving,
                    frames,
                    end,
                };
                machine.waits(at, prev, &waiting, copied, emit);
            }
        }
    }

    /// The thread that leaves; `None` if the capture is not about it.
    fn who(
        &self,
        tid: Tid,
        sample: &Sample<'_>,
        filter: &Filter,
        way: &SampleContext<'_>,
    ) -> Option<Who> {
        if sample.pid == REAPED {
            return self.machine.who(tid);
        }
        let names = way.names(sample);
        let passes = filter.passes(sample.pid, names, sample.cgroup);
        passes.then(|| Who {
            pid: sample.pid,
            process: way.processes.get(sample.pid).map(|process| process.id),
            thread: names[0],
            cgroup: sample.cgroup,
        })
    }

    /// A thread is woken, by the one of the sample or by an interrupt on top of it.
    fn woken(
        &mut self,
        at: At,
        waking: &Waking,
        sample: &Sample<'_>,
        copied: bool,
        main: &mut Folder,
        way: &mut SampleContext<'_>,
    ) {
        let woken = Tid(waking.woken);
        if !self.machine.wants_waker(woken) {
            return;
        }
        let end = unwind(sample, None, main, way);
        let name = way.processes.thread_comm(sample.pid, sample.tid);
        let entries = &self.reading.interrupts;
        let whole = end.is_complete();
        let waker = shape::waker_of(
            (name, sample.cgroup),
            waking.within,
            way.frames(),
            whole,
            entries,
        );
        self.machine.woken(at, woken, &waker, copied);
    }

    /// A thread runs: its wait is over.
    fn runs(&mut self, at: At, tid: Tid, folder: &mut Folder, way: &SampleContext<'_>) {
        let Waits {
            machine, shaped, ..
        } = self;
        let processes = &*way.processes;
        machine.runs(at, tid, &mut |wait| {
            add(&wait, at.time, shaped, folder, processes)
        });
    }

    /// A thread arrived on a CPU for which arrivals were requested. The idle task never waits.
    pub(super) fn arrives(
        &mut self,
        at: At,
        tid: Tid,
        folder: &mut Folder,
        processes: &ProcessTable,
    ) {
        let Waits {
            machine, shaped, ..
        } = self;
        if tid != Tid(0) && machine.start_record(at) {
            machine.arrives(at, tid, &mut |wait| {
                add(&wait, at.time, shaped, folder, processes)
            });
        }
    }

    /// Emits waits that are still in progress at the end of the capture. They get no time: nothing
    /// happened then, and all long waits would appear in the heat map as one burst.
    pub(super) fn finish(
        &mut self,
        end: MonotonicTime,
        folder: &mut Folder,
        processes: &ProcessTable,
    ) {
        let Waits {
            machine, shaped, ..
        } = self;
        let keep_timestamps = std::mem::replace(&mut folder.keep_timestamps, false);
        machine.finish(end, &mut |wait| add(&wait, end, shaped, folder, processes));
        folder.keep_timestamps = keep_timestamps;
    }
}

/// Unwinds a sample and reports its files and its generated code; the frames are left in the
/// buffer. `near_bytes`: for a wait, how much of its stack is copied each time.
fn unwind(
    sample: &Sample<'_>,
    near_bytes: Option<u32>,
    main: &mut Folder,
    way: &mut SampleContext<'_>,
) -> StackEnd {
    let end = match near_bytes {
        Some(near_bytes) => way.unwind_wait(sample, near_bytes),
        None => way.unwind(sample),
    };
    way.announce(sample, main);
    if way
        .frames()
        .iter()
        .any(|frame| matches!(frame, RawFrame::Jit(..)))
    {
        way.watch(sample.pid);
    }
    end
}

/// Adds a wait to the batch, with its end for a time.
fn add(
    wait: &Wait<'_>,
    end: MonotonicTime,
    shaped: &mut Vec<RawFrame>,
    folder: &mut Folder,
    processes: &ProcessTable,
) {
    let who = &wait.who;
    let process = processes.get(who.pid);
    // If the process has run another program since, only its earlier name is lost; if it is another
    // process by now, everything is.
    let Some(process) = process.or_else(|| processes.get(IDLE)) else {
        return;
    };
    shape::stack_of(wait, shaped);
    let taken = SampleInfo {
        time: end,
        cgroup: who.cgroup,
        thread: if who.process.is_some() {
            who.thread
        } else {
            Comm::default()
        },
        end: wait.end,
        weight: wait.length_ns,
    };
    folder.add(process, &taken, shaped);
}
