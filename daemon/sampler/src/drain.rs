//! From the rings to batches: draining in order of time, folding, closing windows.

use super::captures::CaptureFolders;
use super::context::{IDLE, SampleContext, mark_ended};
use super::held::{HeldSelection, WINDOW_WAITS_MAX};
use super::{Queues, Sampler, SamplerError, SamplerHandle};
use aggregate::fold::Folder;
use aggregate::losses::Losses;
use host::ids::Pid;
use host::time::MonotonicTime;
use jit::notice::Notice;
use offcpu::machine::At;
use perf::record::{Record, Sample};
use perf::rings::Drained;
use std::sync::atomic::Ordering;
use unwind::process::{Process, ProcessTable};

impl Sampler {
    /// Drains up to `horizon` and closes the windows that end before; a successor takes over on the
    /// way. Returns up to where it came.
    pub(super) fn drain_up_to(
        &mut self,
        horizon: MonotonicTime,
    ) -> Result<MonotonicTime, SamplerError> {
        if let Some(cut) = self.successor.as_ref().map(|next| next.cut) {
            let reached = self.drain_windows(horizon.min(cut))?;
            if reached < cut {
                return Ok(reached);
            }
            self.succeed()?;
        }
        self.drain_windows(horizon)
    }

    /// Drains up to `horizon`, a window after the other, and notes whether records were left that
    /// could be had. A window that is over stays open for samples that wait for a file, and what
    /// follows it stays in the rings meanwhile.
    fn drain_windows(&mut self, horizon: MonotonicTime) -> Result<MonotonicTime, SamplerError> {
        loop {
            let last = MonotonicTime(self.window_end.0.saturating_sub(1));
            let part = horizon.min(last);
            let reached = self.drain(part)?;
            self.behind = reached < part;
            let is_over = reached == last && horizon >= self.window_end;
            if !is_over || self.window_waits() {
                return Ok(reached);
            }
            self.look_at_held(HeldSelection::All);
            self.hand_over(self.window_end, true)?;
            self.window_end = self.window_end.plus(self.window);
            self.window_over = None;
        }
    }

    /// True while a window that is over waits for samples of it: not where what comes meanwhile
    /// might find no room.
    fn window_waits(&mut self) -> bool {
        let now = self.held.now;
        let over = *self.window_over.get_or_insert(now);
        !self.held.is_empty() && now.since(over) < self.rings.may_wait(WINDOW_WAITS_MAX)
    }

    /// Walks samples that waited for a file once more, and folds those that are done.
    pub(super) fn look_at_held(&mut self, which: HeldSelection) {
        let Sampler {
            unwinder,
            processes,
            folder,
            queues,
            shared,
            stack,
            held,
            ..
        } = self;
        let way =
            &mut SampleContext::new(unwinder, processes, stack, queues, &shared.deferred, held);
        way.look_at_held(which, folder);
    }

    fn drain(&mut self, horizon: MonotonicTime) -> Result<MonotonicTime, SamplerError> {
        let Sampler {
            rings,
            unwinder,
            processes,
            folder,
            losses,
            captures,
            queues,
            shared,
            stack,
            idle,
            kernel_symbols_hidden,
            repair,
            lateness,
            held,
            ..
        } = self;
        let mut newest = MonotonicTime(0);
        let mut folded = 0;
        let mut way =
            SampleContext::new(unwinder, processes, stack, queues, &shared.deferred, held);
        let horizon = rings.drain(horizon, |drained| {
            let (time, record) = match drained {
                Drained::Record { time, record, .. } => (time, record),
                Drained::LossGap(gap) => return losses.add(gap),
                Drained::SetGap { set, event, gap } => return captures.add_gap(set, event, gap),
                Drained::SetSample { set, event, sample } => {
                    let hidden = *kernel_symbols_hidden;
                    let is_idle = sample.pid == IDLE && is_idle(&sample, idle, hidden);
                    captures.fold((set, event), &sample, is_idle, folder, &mut way);
                    return;
                }
                Drained::SetArrival {
                    set,
                    time,
                    cpu,
                    tid,
                } => return captures.arrive(set, At { time, cpu }, tid, way.processes),
            };
            match record {
                Record::Sample(sample) => {
                    newest = newest.max(sample.time);
                    let hidden = *kernel_symbols_hidden;
                    if sample.pid == IDLE && is_idle(&sample, idle, hidden) {
                        folder.batch().quality.idle += 1;
                        return;
                    }
                    folded += 1;
                    way.fold(&sample, folder);
                }
                Record::Mmap(mmap) => {
                    let range = mmap.start..mmap.start.saturating_add(mmap.len);
                    let overlaps = |known: &Process| known.space().overlaps(range);
                    if way.held.has(mmap.pid) && way.processes.get(mmap.pid).is_some_and(overlaps) {
                        // They are of what lay there before.
                        way.look_at_held(HeldSelection::Of(mmap.pid), folder);
                    }
                    way.processes.mmap(&mmap, time);
                }
                Record::Comm {
                    pid,
                    tid,
                    comm,
                    exec,
                } => {
                    if exec {
                        way.look_at_held(HeldSelection::Of(pid), folder);
                        // From here on the process has another id.
                        if let Some(process) = way.processes.get(pid) {
                            way.unwinder.recall.forget((process.id, tid));
                        }
                        tell_end(way.processes, queues, pid, time, true);
                    }
                    way.processes.comm(pid, tid, comm, exec, time);
                }
                Record::Fork {
                    pid,
                    tid,
                    parent,
                    parent_tid,
                } => {
                    // The end of who had the pid before may have been lost.
                    if pid != parent {
                        way.look_at_held(HeldSelection::Of(pid), folder);
                    }
                    way.processes.fork(pid, tid, parent, parent_tid, time);
                }
                Record::Exit { pid, tid } => {
                    if let Some(process) = way.processes.get(pid) {
                        way.unwinder.forget((process.id, tid));
                    }
                    way.processes.exit(pid, tid, time);
                    tell_end(way.processes, queues, pid, time, false);
                }
                Record::Cgroup { id, path } => {
                    // A cgroup made: rare, and the path must outlive the record.
                    if let Some(containers) = shared.containers.get() {
                        containers.announce(path);
                    }
                    captures.note_created(time, id, path);
                    if !folder.batch().note_cgroup(id, path) {
                        shared.cgroups_refused.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Record::KernelCode => {
                    folder.batch().kernel_changed = true;
                    shared.kernel_code_changes.fetch_add(1, Ordering::Relaxed);
                }
                // The rings count them.
                Record::Lost(_) | Record::Throttle | Record::Arrival { .. } | Record::Other => {}
            }
        });
        captures.take_news(rings);
        let stats = rings.stats;
        // Kernel code that came or went may be among what was lost.
        folder.batch().kernel_changed |= stats.lost_side_band > 0;
        let quality = &mut folder.batch().quality;
        quality.lost += stats.lost;
        if let Some(delay) = lateness.delay().filter(|_| stats.lost > 0) {
            quality.lost_late += stats.lost;
            let delay = delay.as_nanos() as u64;
            shared.longest_delay.fetch_max(delay, Ordering::Relaxed);
        }
        // What was lost, flushed or damaged may have been of the side band.
        let missed = [
            stats.lost,
            stats.lost_side_band,
            stats.flushed,
            stats.malformed,
        ];
        repair.wanted |= missed.iter().any(|&count| count > 0);
        quality.throttled += stats.throttled;
        quality.malformed += stats.malformed;
        shared.samples.fetch_add(folded, Ordering::Relaxed);
        shared.late_records.store(rings.late, Ordering::Relaxed);
        shared
            .malformed_records
            .store(rings.malformed, Ordering::Relaxed);
        shared.rings_flushed.store(rings.flushed, Ordering::Relaxed);
        let lost_stalled = &shared.lost_stalled;
        lost_stalled.store(rings.lost_stalled, Ordering::Relaxed);
        let lost_side_band = &shared.lost_side_band;
        lost_side_band.store(rings.lost_side_band, Ordering::Relaxed);
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
            facts.held = held.counts;
            let (_, handover) = &queues.modules;
            facts.unwinding.unread = handover.unread.load(Ordering::Relaxed);
            facts.unwinding.untaken = handover.untaken.load(Ordering::Relaxed);
        }
        Ok(horizon)
    }

    pub(super) fn hand_over(
        &mut self,
        end: MonotonicTime,
        closes: bool,
    ) -> Result<(), SamplerError> {
        let Sampler {
            folder,
            losses,
            captures,
            processes,
            queues,
            shared,
            ..
        } = self;
        let whose = (folder, losses, captures);
        match send(whose, processes, (queues, shared), (end, closes)) {
            true => Ok(()),
            false => Err(SamplerError::SymbolizerGone),
        }
    }

    /// Hands over what is due of captures when everything up to `reached` has been folded.
    pub(super) fn hand_over_captures(
        &mut self,
        reached: MonotonicTime,
    ) -> Result<(), SamplerError> {
        let Sampler {
            folder,
            captures,
            processes,
            queues,
            shared,
            rings,
            poller,
            unwinder,
            ..
        } = self;
        if !captures.make_waits() {
            unwinder.recall.clear();
        }
        // Also when none runs: their batches come back after they have ended.
        captures.take_back(queues)?;
        // A set may have come for a capture that had ended.
        if captures.is_empty() && rings.sets().is_empty() {
            return Ok(());
        }
        let known = (&*processes, rings.sets());
        captures.hand_over(reached, folder, known, queues, shared)?;
        captures
            .sweep(rings, poller, (queues, shared))
            .map_err(SamplerError::Wait)
    }
}

/// Sends the batch when there is an empty one to go on with and room in the queue; otherwise
/// folding goes on in it, and the window is longer. Returns false when the symbolizer is gone.
fn send(
    (folder, losses, captures): (&mut Folder, &mut Losses, &mut CaptureFolders),
    processes: &ProcessTable,
    (queues, shared): (&Queues, &SamplerHandle),
    (end, closes): (MonotonicTime, bool),
) -> bool {
    let gone = captures.take_back(queues).is_err();
    let Some(empty) = captures.spare() else {
        shared.deferred_batches.fetch_add(1, Ordering::Relaxed);
        return !gone;
    };
    let batch = folder.batch();
    losses.take(end, batch);
    mark_ended(batch, processes);
    // As many batches exist as the queue holds, so an empty one in hand means there is room.
    queues
        .batches
        .try_send(folder.take(end, closes, empty))
        .is_ok()
}

/// Reports the end of a process known to `fp-jit`: by `exec`, or of its last thread. If the queue
/// is full, the batch reports it.
fn tell_end(processes: &ProcessTable, queues: &Queues, pid: Pid, time: MonotonicTime, exec: bool) {
    let Some(process) = processes.get(pid) else {
        return;
    };
    if process.is_watched() && (exec || process.has_ended()) {
        let _ = queues.code.try_send(Notice::Ended(process.id, time));
    }
}

/// True for a sample of the idle loop itself: the idle task, with nothing on top of it. Interrupt
/// work on an idle CPU is work and is kept. If kernel symbols are hidden this cannot be seen, and
/// everything in the idle task counts as idle.
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
    use perf::record::{self, Layout};
    use perf::synthetic;

    const LOOP: &[(u64, u64)] = &[(0x1000, 0x1100), (0x3000, 0x3080)];

    fn check_idle(ip: u64, hidden: bool, expected: bool) {
        let layout = Layout {
            cgroup: true,
            user_regs: 0,
            user_stack: false,
            raw: false,
            fixed_period: 0,
        };
        let bytes = synthetic::sample(MonotonicTime(1), 0, 0, 10, &[ip]);
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
}
