//! Folding: samples with equal cgroup, process, thread name and stack become one row with a count.
//!
//! Runs on the sampler thread. Buffers keep their size from window to window, so a steady load
//! allocates nothing. Bounds hold under any load: samples that do not fit are folded under
//! `[other]` of their own cgroup and process, so totals stay right, and they are counted.

use super::batch::{RawBatch, RawProcess, RawSample, RawStack, RawTime, RawTimestamp};
use hashbrown::{DefaultHashBuilder, HashTable};
use host::frame::RawFrame;
use host::ids::{CaptureId, CgroupId, Comm, ProcessId};
use host::time::MonotonicTime;
use profile::{StackEnd, UnnamedReason, Value};
use std::hash::BuildHasher;
use unwind::process::Process;

/// Frames kept per batch, over all stacks: 32 MiB at 16 bytes. 64 CPUs at 99 Hz for 10 s with 30
/// frames a stack and no stack twice make 1.9 million.
const FRAMES_MAX: usize = 2 << 20;

/// Rows kept per batch: 64 CPUs at 99 Hz for 10 s with no two samples alike make 63,360.
const SAMPLES_MAX: usize = 1 << 18;

/// Most processes with rows of their own per batch. Beyond it samples go to the row of their
/// cgroup's first process.
const PROCESSES_MAX: usize = 1 << 16;

/// Times kept per batch, of samples with frames in generated code: 2 MiB. 64 CPUs at 99 Hz for 10
/// s, all of it in generated code, make half of them. What finds no room is named as of the batch's
/// end.
pub const TIMES_MAX: usize = 1 << 17;

/// Timestamps kept per batch: 6 MiB. 26 busy CPUs at 9,999 Hz make as many in the second that a
/// batch of a capture covers; 64 at 99 Hz a quarter in 10 s. What finds no room is counted.
pub const TIMESTAMPS_MAX: usize = 1 << 18;

/// Limits of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoldBounds {
    /// Frames of all stacks.
    pub frames: usize,
    /// Rows.
    pub samples: usize,
}

impl FoldBounds {
    /// Bounds of the continuous profile, which fills a batch for a complete window.
    pub const WINDOW: FoldBounds = FoldBounds {
        frames: FRAMES_MAX,
        samples: SAMPLES_MAX,
    };
    /// Bounds of a capture, which fills a batch for a part of a second and has it handed over when
    /// it is half full: 12 MiB, and there are two.
    pub const CAPTURE: FoldBounds = FoldBounds {
        frames: 1 << 19,
        samples: 1 << 16,
    };
}

impl Default for FoldBounds {
    fn default() -> FoldBounds {
        FoldBounds::WINDOW
    }
}

/// Weight of a sample, and where and when it was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleInfo {
    /// Its time.
    pub time: MonotonicTime,
    /// The cgroup from the record.
    pub cgroup: CgroupId,
    /// Name of the thread.
    pub thread: Comm,
    /// How its stack ended.
    pub end: StackEnd,
    /// Its weight, in the event's unit.
    pub weight: u64,
}

/// Folds samples into the batch under construction.
#[derive(Default)]
pub struct Folder {
    batch: RawBatch,
    /// Samples count as taken by less than what is configured.
    pub reduced: bool,
    /// Says of every sample when it was taken.
    pub keep_timestamps: bool,
    bounds: FoldBounds,
    stacks: HashTable<u32>,
    samples: HashTable<u32>,
    processes: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Folder {
    /// Creates a folder with a first batch that starts at `start`.
    pub fn new(start: MonotonicTime) -> Folder {
        Folder {
            batch: RawBatch {
                start,
                ..RawBatch::default()
            },
            ..Folder::default()
        }
    }

    /// A folder for a capture that folds into `first`.
    pub fn of_capture(id: CaptureId, start: MonotonicTime, mut first: RawBatch) -> Folder {
        first.clear();
        first.capture = Some(id);
        first.start = start;
        Folder {
            batch: first,
            bounds: FoldBounds::CAPTURE,
            ..Folder::default()
        }
    }

    /// The batch under construction, for what is not a sample.
    pub fn batch(&mut self) -> &mut RawBatch {
        &mut self.batch
    }

    /// True when nothing has been folded.
    pub fn is_empty(&self) -> bool {
        self.batch.samples.is_empty()
    }

    /// True when a part of it is half full: time to hand it over, before what comes finds no room.
    pub fn is_half_full(&self) -> bool {
        let (batch, bounds) = (&self.batch, &self.bounds);
        batch.frames.len() >= bounds.frames / 2
            || batch.samples.len() >= bounds.samples / 2
            || batch.timestamps.len() >= TIMESTAMPS_MAX / 2
            || batch.times.len() >= TIMES_MAX / 2
    }

    /// Adds one sample. Returns true when it has a frame in generated code.
    pub fn add(&mut self, process: &Process, taken: &SampleInfo, frames: &[RawFrame]) -> bool {
        self.batch.quality.taken += 1;
        self.batch.quality.reduced += u64::from(self.reduced);
        let process = self.process(process);
        let full = self.batch.samples.len() >= self.bounds.samples;
        let stack = match self.stack(frames, taken.end) {
            Some(stack) if !full => stack,
            _ => {
                self.batch.quality.folded += 1;
                self.other()
            }
        };
        let thread = if full { Comm::default() } else { taken.thread };
        let weight = taken.weight;
        let row = self.count(RawSample {
            cgroup: taken.cgroup,
            process,
            thread,
            stack,
            value: Value { count: 1, weight },
        });
        if self.keep_timestamps {
            self.keep_timestamp(row, taken);
        }
        let generated = self.batch.stacks[stack as usize].generated;
        if generated {
            if self.batch.times.len() < TIMES_MAX {
                let time = taken.time;
                self.batch.times.push(RawTime { row, time });
            } else {
                self.batch.times_refused += 1;
            }
        }
        generated
    }

    fn keep_timestamp(&mut self, row: u32, taken: &SampleInfo) {
        let SampleInfo { time, weight, .. } = *taken;
        if self.batch.timestamps.len() < TIMESTAMPS_MAX {
            self.batch
                .timestamps
                .push(RawTimestamp { row, time, weight });
        } else {
            self.batch.timestamps_refused += 1;
        }
    }

    /// Adds to the row of the sample's key; returns which it is.
    fn count(&mut self, sample: RawSample) -> u32 {
        let key = |s: &RawSample| (s.cgroup, s.process, s.thread, s.stack);
        let hash = self.hasher.hash_one(key(&sample));
        let rows = &mut self.batch.samples;
        if let Some(&row) = self
            .samples
            .find(hash, |&row| key(&rows[row as usize]) == key(&sample))
        {
            rows[row as usize].value += sample.value;
            return row;
        }
        let row = rows.len() as u32;
        rows.push(sample);
        let hasher = &self.hasher;
        self.samples
            .insert_unique(hash, row, |&row| hasher.hash_one(key(&rows[row as usize])));
        row
    }

    fn process(&mut self, process: &Process) -> u32 {
        let hash = self.hasher.hash_one(process.id);
        let known = &mut self.batch.processes;
        if let Some(&at) = self
            .processes
            .find(hash, |&at| known[at as usize].id == process.id)
        {
            // The name may have changed since the first sample; the last one is shown.
            known[at as usize].comm = process.comm;
            return at;
        }
        if known.len() >= PROCESSES_MAX {
            return self.made_up_process();
        }
        let at = known.len() as u32;
        known.push(RawProcess {
            id: process.id,
            pid: process.pid,
            comm: process.comm,
            kernel: process.kernel,
            started: process.started,
            ended: false,
        });
        let hasher = &self.hasher;
        self.processes
            .insert_unique(hash, at, |&at| hasher.hash_one(known[at as usize].id));
        at
    }

    /// The process that stands for those beyond the bound; one more than the bound.
    fn made_up_process(&mut self) -> u32 {
        if self.batch.processes.len() == PROCESSES_MAX {
            self.batch.processes.push(RawProcess {
                id: ProcessId(u32::MAX),
                pid: host::ids::Pid(0),
                comm: Comm::from_bytes(b"[other]"),
                kernel: false,
                started: MonotonicTime(0),
                ended: true,
            });
        }
        PROCESSES_MAX as u32
    }

    fn stack(&mut self, frames: &[RawFrame], end: StackEnd) -> Option<u32> {
        let hash = self.hasher.hash_one((frames, end as u8));
        let (stacks, arena) = (&mut self.batch.stacks, &mut self.batch.frames);
        let found = self.stacks.find(hash, |&at| {
            let stack = stacks[at as usize];
            stack.end == end && frames_of(arena, stack) == frames
        });
        if let Some(&at) = found {
            return Some(at);
        }
        if arena.len() + frames.len() > self.bounds.frames {
            return None;
        }
        let at = stacks.len() as u32;
        stacks.push(RawStack {
            first: arena.len() as u32,
            len: frames.len() as u32,
            end,
            // Once for each distinct stack, not for each sample.
            generated: frames
                .iter()
                .any(|frame| matches!(frame, RawFrame::Jit(..))),
        });
        arena.extend_from_slice(frames);
        let hasher = &self.hasher;
        self.stacks.insert_unique(hash, at, |&at| {
            let stack = stacks[at as usize];
            hasher.hash_one((frames_of(arena, stack), stack.end as u8))
        });
        Some(at)
    }

    /// The stack of what a bound refused. Always has room: the bounds leave a frame for it.
    fn other(&mut self) -> u32 {
        let other = RawFrame::Unknown(UnnamedReason::Limit);
        let found =
            self.batch.stacks.iter().rposition(|stack| {
                stack.len == 1 && self.batch.frames[stack.first as usize] == other
            });
        found.map_or_else(
            || {
                let first = self.batch.frames.len() as u32;
                self.batch.frames.push(other);
                self.batch.stacks.push(RawStack {
                    first,
                    len: 1,
                    end: StackEnd::Unresolved,
                    generated: false,
                });
                self.batch.stacks.len() as u32 - 1
            },
            |at| at as u32,
        )
    }

    /// Ends the batch at `end` and starts the next one there, in `empty`'s buffers.
    pub fn take(&mut self, end: MonotonicTime, closes: bool, mut empty: RawBatch) -> RawBatch {
        empty.clear();
        empty.capture = self.batch.capture;
        empty.start = end;
        empty.period = self.batch.period;
        empty.files_announced = self.batch.files_announced;
        self.stacks.clear();
        self.samples.clear();
        self.processes.clear();
        let mut batch = std::mem::replace(&mut self.batch, empty);
        batch.end = end;
        batch.closes = closes;
        batch
    }
}

fn frames_of(arena: &[RawFrame], stack: RawStack) -> &[RawFrame] {
    &arena[stack.first as usize..(stack.first + stack.len) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::ids::{Pid, Tid};
    use proptest::prelude::*;
    use unwind::process::ProcessTable;

    fn table() -> ProcessTable {
        let mut table = ProcessTable::new();
        for pid in 1..5 {
            table.fork(Pid(pid), Tid(pid), Pid(0), Tid(0), MonotonicTime(1));
        }
        table
    }

    fn taken(cgroup: u64, weight: u64) -> SampleInfo {
        SampleInfo {
            time: MonotonicTime(5),
            cgroup: CgroupId(cgroup),
            thread: Comm::default(),
            end: StackEnd::Complete,
            weight,
        }
    }

    #[test]
    fn samples_in_generated_code_have_their_times_and_no_others() {
        let table = table();
        let mut folder = Folder::new(MonotonicTime(0));
        let process = table.get(Pid(1)).expect("made above");
        let generated = [
            RawFrame::Kernel(1),
            RawFrame::Jit(process.id, host::ids::Avma(7)),
        ];
        for (number, frames) in [&generated[..], &generated[..1], &generated]
            .iter()
            .enumerate()
        {
            let time = MonotonicTime(number as u64);
            let taken = SampleInfo {
                time,
                ..taken(1, 1)
            };
            assert_eq!(folder.add(process, &taken, frames), frames.len() == 2);
        }
        let batch = folder.take(MonotonicTime(9), true, RawBatch::default());
        let times = batch.times.iter().map(|time| (time.row, time.time.0));
        assert_eq!(times.collect::<Vec<_>>(), [(0, 0), (0, 2)]);
    }

    #[test]
    fn times_beyond_the_bound_are_counted_and_their_samples_kept() {
        let table = table();
        let mut folder = Folder::new(MonotonicTime(0));
        let process = table.get(Pid(1)).expect("made above");
        let frames = [RawFrame::Jit(process.id, host::ids::Avma(7))];
        for _ in 0..TIMES_MAX + 5 {
            folder.add(process, &taken(1, 1), &frames);
        }
        let batch = folder.take(MonotonicTime(9), true, RawBatch::default());
        assert_eq!((batch.times.len(), batch.times_refused), (TIMES_MAX, 5));
        assert_eq!(batch.samples[0].value.count as usize, TIMES_MAX + 5);
        let next = folder.take(MonotonicTime(19), true, batch);
        assert_eq!((next.times.len(), next.times_refused), (0, 0));
    }

    #[test]
    fn a_capture_knows_when_each_sample_was_taken_as_far_as_there_is_room() {
        let table = table();
        let mut folder = Folder::of_capture(CaptureId(7), MonotonicTime(3), RawBatch::default());
        folder.keep_timestamps = true;
        let process = table.get(Pid(1)).expect("made above");
        for number in 0..TIMESTAMPS_MAX as u64 + 2 {
            let frames = [RawFrame::Kernel(number % 2)];
            folder.add(process, &taken(1, number), &frames);
        }
        let batch = folder.take(MonotonicTime(9), true, RawBatch::default());
        assert_eq!(
            (batch.capture, batch.start),
            (Some(CaptureId(7)), MonotonicTime(3))
        );
        assert_eq!(batch.timestamps_refused, 2);
        assert_eq!(batch.quality.taken as usize, TIMESTAMPS_MAX + 2);
        for (number, timestamp) in batch.timestamps.iter().enumerate() {
            assert_eq!(
                (timestamp.row as usize, timestamp.weight),
                (number % 2, number as u64)
            );
        }
        assert_eq!(
            folder.batch().capture,
            Some(CaptureId(7)),
            "the next one too"
        );
    }

    #[test]
    fn equal_samples_become_one_row() {
        let table = table();
        let mut folder = Folder::new(MonotonicTime(0));
        let process = table.get(Pid(1)).expect("made above");
        for _ in 0..3 {
            let frames = [RawFrame::Kernel(1), RawFrame::Kernel(2)];
            folder.add(process, &taken(1, 10), &frames);
        }
        let batch = folder.take(MonotonicTime(9), true, RawBatch::default());
        assert_eq!(batch.samples.len(), 1);
        assert_eq!(
            batch.samples[0].value,
            Value {
                count: 3,
                weight: 30
            }
        );
        assert_eq!(batch.frames.len(), 2);
    }

    #[test]
    fn samples_taken_with_less_are_counted_until_it_ends() {
        let table = table();
        let mut folder = Folder::new(MonotonicTime(0));
        let process = table.get(Pid(1)).expect("made above");
        for reduced in [false, true, true, false] {
            folder.reduced = reduced;
            let frames = [RawFrame::Kernel(1)];
            folder.add(process, &taken(1, 1), &frames);
        }
        let batch = folder.take(MonotonicTime(9), true, RawBatch::default());
        assert_eq!((batch.quality.taken, batch.quality.reduced), (4, 2));
    }

    #[test]
    fn what_exceeds_the_frame_bound_is_other_and_still_counted() {
        let table = table();
        let mut folder = Folder::new(MonotonicTime(0));
        let process = table.get(Pid(1)).expect("made above");
        let mut frames = vec![RawFrame::Kernel(0); 127];
        let total = (FRAMES_MAX / frames.len() + 100) as u64;
        for number in 0..total {
            frames[0] = RawFrame::Kernel(number);
            folder.add(process, &taken(1, 1), &frames);
        }
        let batch = folder.take(MonotonicTime(9), true, RawBatch::default());
        assert!(batch.frames.len() <= FRAMES_MAX + 1);
        assert!(batch.quality.folded > 0);
        assert_eq!(
            batch.samples.iter().map(|row| row.value.count).sum::<u64>(),
            total
        );
    }

    proptest! {
        #[test]
        fn folding_keeps_every_sample(
            samples in proptest::collection::vec((1u32..5, 0u64..3, 0u64..4, 1u64..100), 0..200)
        ) {
            let table = table();
            let mut folder = Folder::new(MonotonicTime(0));
            let mut expected = std::collections::BTreeMap::new();
            for &(pid, cgroup, leaf, weight) in &samples {
                let process = table.get(Pid(pid)).expect("made above");
                let frames = [RawFrame::Kernel(leaf), RawFrame::Kernel(99)];
                folder.add(process, &taken(cgroup, weight), &frames);
                *expected.entry((pid, cgroup, leaf)).or_insert(0) += weight;
            }
            let batch = folder.take(MonotonicTime(9), true, RawBatch::default());
            let mut found = std::collections::BTreeMap::new();
            for row in &batch.samples {
                let stack = batch.stacks[row.stack as usize];
                let RawFrame::Kernel(leaf) = batch.frames[stack.first as usize] else { panic!() };
                let pid = batch.processes[row.process as usize].pid.0;
                *found.entry((pid, row.cgroup.0, leaf)).or_insert(0) += row.value.weight;
            }
            prop_assert_eq!(found, expected);
        }
    }
}
