//! The symbolizer's part of the table of processes with generated code (`jit/src/runtimes.rs`): it
//! counts their samples while naming, and has helpers find out which runtime each process uses.

use super::batch::{RawBatch, RawProcess};
use hashbrown::HashMap;
use host::blocking_pool::{BlockingPool, Pending};
use host::frame::RawFrame;
use host::ids::ProcessId;
use host::time::MonotonicTime;
use jit::runtime::{self, Facts};
use jit::runtimes::{Runtimes, StackCounts};
use profile::{StackEnd, UnnamedReason};
use std::sync::Arc;
use std::time::Duration;

/// A process is looked at again after this long: a runtime may be loaded late, and a jitdump be
/// opened.
const LOOK_AGAIN: Duration = Duration::from_secs(300);

/// Processes looked at at a time.
const LOOKING_MAX: usize = 4;

/// The symbolizer's side of the table.
pub struct RuntimeWatch {
    runtimes: Arc<Runtimes>,
    helpers: BlockingPool,
    looking: Vec<(ProcessId, Pending<Option<Facts>>)>,
    /// Counts of one batch by process, kept for the next.
    counts: HashMap<ProcessId, StackCounts>,
    /// Counts of each stack of a batch, kept for the next.
    stacks: Vec<Option<(ProcessId, StackCounts)>>,
    /// Processes that were there before the daemon started before this.
    created: MonotonicTime,
}

impl RuntimeWatch {
    /// Counts into this table.
    pub fn new(runtimes: Arc<Runtimes>) -> RuntimeWatch {
        RuntimeWatch {
            runtimes,
            helpers: BlockingPool::new("runtime"),
            looking: Vec::new(),
            counts: HashMap::new(),
            stacks: Vec::new(),
            created: MonotonicTime::now(),
        }
    }

    /// Counts a batch that has been named: `end` says of a stack how it ended, `unnamed` of a
    /// frame, both by their place in the batch, why it has no name. Does not wait.
    pub fn note(
        &mut self,
        batch: &RawBatch,
        end: impl Fn(usize) -> StackEnd,
        unnamed: impl Fn(usize) -> UnnamedReason,
    ) {
        self.count(batch, end, unnamed);
        let mut table = self.runtimes.lock();
        // Batches without generated code too: what ran it may have ended.
        table.age(batch.end);
        if table.entries.is_empty() && self.counts.is_empty() && self.looking.is_empty() {
            return;
        }
        for process in &batch.processes {
            if let Some(counts) = self.counts.get(&process.id) {
                table.add(process.id, (process.pid, process.comm), counts);
            }
        }
        for (id, looking) in std::mem::take(&mut self.looking) {
            match looking.wait(Duration::ZERO) {
                Ok(facts) => {
                    if let (Some(entry), Some(_)) = (table.entries.get_mut(&id), facts) {
                        entry.facts = facts;
                    }
                }
                Err(Some(looking)) => self.looking.push((id, looking)),
                Err(None) => {}
            }
        }
        // Those that were never looked at come first.
        let never = |process: &&RawProcess| {
            let entry = table.entries.get(&process.id);
            entry.is_some_and(|entry| entry.looked.is_none())
        };
        let (new, old): (Vec<&RawProcess>, Vec<_>) = batch.processes.iter().partition(never);
        for process in new.into_iter().chain(old) {
            let Some(entry) = table.entries.get_mut(&process.id) else {
                continue;
            };
            let known = entry
                .looked
                .is_some_and(|looked| batch.end.since(looked) < LOOK_AGAIN);
            if known || process.ended || self.looking.len() >= LOOKING_MAX {
                continue;
            }
            let started_by = match process.started {
                MonotonicTime(0) => self.created,
                started => started,
            };
            let pid = process.pid.0;
            let Some(looking) = self.helpers.spawn(move || runtime::look(pid, started_by)) else {
                return;
            };
            entry.looked = Some(batch.end);
            self.looking.push((process.id, looking));
        }
    }

    fn count(
        &mut self,
        batch: &RawBatch,
        end: impl Fn(usize) -> StackEnd,
        unnamed: impl Fn(usize) -> UnnamedReason,
    ) {
        self.counts.clear();
        self.stacks.clear();
        for (at, stack) in batch.stacks.iter().enumerate() {
            if !stack.generated {
                self.stacks.push(None);
                continue;
            }
            let places = stack.first as usize..(stack.first + stack.len) as usize;
            let mut found: Option<(ProcessId, StackCounts)> = None;
            for place in places.clone() {
                let RawFrame::Jit(process, _) = batch.frames[place] else {
                    continue;
                };
                let (_, counts) = found.get_or_insert((process, StackCounts::default()));
                counts.frames += 1;
                match unnamed(place) {
                    UnnamedReason::No => counts.named += 1,
                    reason => counts.reason(reason, 1),
                }
            }
            if let Some((_, counts)) = &mut found {
                counts.samples = 1;
                let end = end(at);
                counts.complete = u64::from(end.is_complete());
                let root = batch.frames[places].last();
                let generated = matches!(root, Some(RawFrame::Jit(..)));
                counts.cut = u64::from(!end.is_complete() && generated);
            }
            self.stacks.push(found);
        }
        for sample in &batch.samples {
            let Some(Some((process, counts))) = self.stacks.get(sample.stack as usize) else {
                continue;
            };
            let times = sample.value.count;
            let more = StackCounts {
                samples: times,
                complete: counts.complete * times,
                cut: counts.cut * times,
                frames: counts.frames.saturating_mul(times),
                named: counts.named.saturating_mul(times),
                reason: counts.reason,
                reason_frames: counts.reason_frames.saturating_mul(times),
            };
            self.counts.entry(*process).or_default().add(&more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{RawSample, RawStack};
    use host::ids::{Avma, CgroupId, Comm, Pid};
    use jit::runtimes::{AskReport, PROCESSES_MAX};
    use profile::Value;

    const SECOND: u64 = 1_000_000_000;

    fn process(id: u32) -> RawProcess {
        RawProcess {
            id: ProcessId(id),
            pid: Pid(id),
            comm: Comm::from_bytes(b"java"),
            kernel: false,
            started: MonotonicTime(1),
            ended: true,
        }
    }

    /// A batch of one process that ends at a time: stacks as frames, with the count of each.
    fn batch(id: u32, end: u64, stacks: &[(&[RawFrame], u64)]) -> RawBatch {
        let mut batch = RawBatch {
            end: MonotonicTime(end * SECOND),
            processes: vec![process(id)],
            ..RawBatch::default()
        };
        for &(frames, count) in stacks {
            batch.samples.push(RawSample {
                cgroup: CgroupId(1),
                process: 0,
                thread: Comm::default(),
                stack: batch.stacks.len() as u32,
                value: Value { count, weight: 0 },
            });
            batch.stacks.push(RawStack {
                first: batch.frames.len() as u32,
                len: frames.len() as u32,
                end: StackEnd::Complete,
                generated: true,
            });
            batch.frames.extend_from_slice(frames);
        }
        batch
    }

    fn jit(address: u64) -> RawFrame {
        RawFrame::Jit(ProcessId(7), Avma(address))
    }

    const KERNEL: RawFrame = RawFrame::Kernel(1);

    fn watch() -> (Arc<Runtimes>, RuntimeWatch) {
        let runtimes = Arc::new(Runtimes::default());
        (Arc::clone(&runtimes), RuntimeWatch::new(runtimes))
    }

    #[test]
    fn samples_frames_names_and_ends_are_counted() {
        let (runtimes, mut watch) = watch();
        let batch = batch(
            7,
            1,
            &[
                (&[jit(1), jit(2), KERNEL], 10),
                (&[KERNEL, jit(3)], 5),
                (&[KERNEL], 100),
            ],
        );
        let end = |stack| match stack {
            1 => StackEnd::BrokenChain,
            _ => StackEnd::Complete,
        };
        let unnamed = |frame| match frame {
            0 => UnnamedReason::JitNotInMap,
            4 => UnnamedReason::JitNoMap,
            _ => UnnamedReason::No,
        };
        watch.note(&batch, end, unnamed);
        let list = runtimes.list();
        let counts = list[0].counts;
        assert_eq!(list.len(), 1);
        assert_eq!((counts.samples, counts.complete, counts.cut), (15, 10, 5));
        assert_eq!((counts.frames, counts.named), (25, 10));
        assert_eq!(
            counts.reason,
            UnnamedReason::JitNotInMap,
            "ten against five"
        );
    }

    #[test]
    fn a_process_without_generated_code_is_not_listed() {
        let (runtimes, mut watch) = watch();
        let batch = batch(7, 1, &[(&[KERNEL], 10)]);
        watch.note(&batch, |_| StackEnd::Complete, |_| UnnamedReason::No);
        assert!(runtimes.list().is_empty());
    }

    #[test]
    fn what_is_minutes_old_is_forgotten() {
        let (runtimes, mut watch) = watch();
        let mut at = |seconds, unnamed| {
            let batch = batch(7, seconds, &[(&[jit(1)], 10)]);
            watch.note(&batch, |_| StackEnd::Complete, |_| unnamed);
            let counts = runtimes.list()[0].counts;
            (counts.named, counts.frames)
        };
        assert_eq!(at(100, UnnamedReason::JitNoMap), (0, 10));
        assert_eq!(at(161, UnnamedReason::No), (10, 20));
        assert_eq!(at(222, UnnamedReason::No), (20, 20));
    }

    #[test]
    fn who_ended_is_forgotten_though_nobody_else_runs_generated_code() {
        let (runtimes, mut watch) = watch();
        let mut at = |seconds, frame| {
            let batch = batch(7, seconds, &[(&[frame], 10)]);
            watch.note(&batch, |_| StackEnd::Complete, |_| UnnamedReason::No);
            runtimes.list().len()
        };
        assert_eq!(at(100, jit(1)), 1);
        assert_eq!(at(161, KERNEL), 1);
        assert_eq!(at(222, KERNEL), 0);
    }

    #[test]
    fn the_table_is_bounded_and_keeps_the_busy() {
        let (runtimes, mut watch) = watch();
        for id in 0..PROCESSES_MAX as u32 + 50 {
            let frame = RawFrame::Jit(ProcessId(id), Avma(1));
            let batch = batch(id, 1, &[(&[frame], u64::from(id) + 1)]);
            watch.note(&batch, |_| StackEnd::Complete, |_| UnnamedReason::No);
        }
        let list = runtimes.list();
        assert_eq!(list.len(), PROCESSES_MAX);
        assert_eq!(list[0].pid, Pid(PROCESSES_MAX as u32 + 49));
    }

    #[test]
    fn a_process_that_was_taken_for_another_is_one() {
        let (runtimes, mut watch) = watch();
        for id in [7, 8] {
            let frame = RawFrame::Jit(ProcessId(id), Avma(1));
            let mut batch = batch(id, 1, &[(&[frame], 10)]);
            batch.processes[0].pid = Pid(7);
            watch.note(&batch, |_| StackEnd::Complete, |_| UnnamedReason::No);
        }
        let list = runtimes.list();
        assert_eq!((list.len(), list[0].counts.samples), (1, 20));
    }

    #[test]
    fn what_came_of_asking_is_kept_also_of_who_has_no_counted_samples_yet() {
        let (runtimes, mut watch) = watch();
        let asked = |runtimes: &Runtimes| runtimes.list()[0].asked.clone();
        runtimes.note_asked(ProcessId(7), AskReport::failed("not yet".into()));
        runtimes.note_asked(ProcessId(7), AskReport::written());
        let batch = batch(7, 1, &[(&[jit(1)], 10)]);
        watch.note(&batch, |_| StackEnd::Complete, |_| UnnamedReason::No);
        assert_eq!(asked(&runtimes), Some(AskReport::written()));
        runtimes.note_asked(ProcessId(7), AskReport::failed("no".into()));
        assert_eq!(asked(&runtimes), Some(AskReport::failed("no".into())));
    }

    #[test]
    fn answers_of_processes_that_never_have_samples_are_bounded() {
        let runtimes = Runtimes::default();
        for id in 0..=PROCESSES_MAX as u32 {
            runtimes.note_asked(ProcessId(id), AskReport::written());
        }
        let table = runtimes.lock();
        assert_eq!(table.asked.len(), PROCESSES_MAX);
        assert_eq!(table.asked[0].0, ProcessId(1), "the oldest goes");
    }
}
