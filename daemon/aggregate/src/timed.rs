//! Names generated code by the time of each sample. If the code at an address changed during a
//! batch, the rows of its stacks are split by time.
//!
//! Most code does not change between the first and the last sample of a batch; its frame has one
//! name. If it does change, each sample of its stacks is looked up at its own time. Samples of a
//! row with the same names stay together; the others become rows with stacks of their own. Counts
//! are exact, weights are split in proportion, and both add up to those of the original row.
//!
//! Runs on the symbolizer's thread.

use super::batch::{RawBatch, RawSample, RawStack};
use hashbrown::HashMap;
use host::frame::RawFrame;
use host::ids::ProcessId;
use host::time::MonotonicTime;
use jit::lookup::{self, CodeMapGuard, CodeMaps};
use jit::notice::SymbolRequest;
use profile::{Dictionary, FrameId, UnnamedReason, Value};
use symbolize::Named;
use symbolize::counters::{SymbolCounters, add, bump};
use unwind::process::ProcessInstance;

/// Most frames that split stacks add to a batch. Unit: frames; 16 MiB.
const SPLIT_FRAMES_MAX: usize = 1 << 20;

/// The data for naming one batch: its distinct frames and their names.
pub(super) struct Frames<'a> {
    /// Distinct frames.
    pub distinct: &'a mut Vec<RawFrame>,
    /// For each frame of the batch its place in `distinct`.
    pub frames: &'a mut Vec<u32>,
    /// For each distinct frame its names: a range of `named.frames`.
    pub spans: &'a mut Vec<(u32, u32)>,
    /// Names.
    pub named: &'a mut Named,
    /// The dictionary of names.
    pub names: &'a mut Dictionary,
}

/// Names generated code of one batch after the other. Its buffers are kept.
#[derive(Default)]
pub(super) struct Timed {
    maps: CodeMaps,
    /// For each distinct frame of the batch: between which times it was sampled.
    ranges: Vec<(MonotonicTime, MonotonicTime)>,
    /// Distinct frames with code that changed while they were sampled.
    changing: HashMap<u32, ()>,
    /// Samples of stacks with such frames: process, row and time.
    samples: Vec<(ProcessId, u32, MonotonicTime)>,
    /// Distinct frames made for one name of a changing one.
    made: HashMap<(u32, FrameId), u32>,
    /// Stacks made, by what they were and the places of their frames.
    stacks: HashMap<(u32, Box<[u32]>), u32>,
    /// The parts of a row: its samples by the places of the frames that change, the first met
    /// first.
    parts: Vec<(Box<[u32]>, u64)>,
    /// Index of each part.
    part_of: HashMap<Box<[u32]>, usize>,
    /// The places of one sample.
    resolved: Vec<u32>,
    /// Where the samples of split rows are now, by row.
    splits: HashMap<u32, RowSplit>,
}

/// Where the samples of a split row are now.
struct RowSplit {
    /// By the time of the sample, in order.
    by_time: Vec<(MonotonicTime, u32)>,
    /// Samples without a time.
    untimed: u32,
}

impl RowSplit {
    /// The row of the sample of a time. Samples of one time had the same code.
    fn row_at(&self, time: MonotonicTime) -> u32 {
        let found = self.by_time.binary_search_by_key(&time, |&(time, _)| time);
        found.map_or(self.untimed, |at| self.by_time[at].1)
    }
}

/// What must be looked up before the batch is named: for each process with frames in generated
/// code, their addresses.
pub(super) fn wanted(batch: &RawBatch, distinct: &[RawFrame]) -> Vec<SymbolRequest> {
    let mut by_process: HashMap<ProcessId, Vec<u64>> = HashMap::new();
    for frame in distinct {
        if let RawFrame::Jit(process, address) = *frame {
            by_process.entry(process).or_default().push(address.0);
        }
    }
    if by_process.is_empty() {
        return Vec::new();
    }
    let wanted = batch.processes.iter().filter_map(|process| {
        let addresses = by_process.remove(&process.id)?;
        let whose = ProcessInstance {
            id: process.id,
            pid: process.pid,
            started: process.started,
        };
        Some(SymbolRequest {
            whose,
            addresses,
            ended: process.ended,
        })
    });
    wanted.collect()
}

impl Timed {
    /// Starts a batch with this data. `frames` maps each frame of the batch to one of the
    /// `distinct` ones.
    pub fn start_batch(
        &mut self,
        maps: CodeMaps,
        batch: &RawBatch,
        frames: &[u32],
        distinct: usize,
    ) {
        self.maps = maps;
        self.changing.clear();
        self.made.clear();
        self.stacks.clear();
        self.ranges.clear();
        if !batch.stacks.iter().any(|stack| stack.generated) {
            return;
        }
        let never = (MonotonicTime(u64::MAX), MonotonicTime(0));
        // Those without a time of their own are samples of the end of the batch.
        let refused = batch.times_refused > 0;
        let all = if refused {
            (batch.end, batch.end)
        } else {
            never
        };
        let mut of_stacks = vec![all; batch.stacks.len()];
        for sample in &batch.times {
            let stack = batch.samples[sample.row as usize].stack;
            let range = &mut of_stacks[stack as usize];
            *range = (range.0.min(sample.time), range.1.max(sample.time));
        }
        self.ranges.resize(distinct, never);
        for (stack, times) in batch.stacks.iter().zip(of_stacks) {
            if !stack.generated {
                continue;
            }
            for &at in &frames[places(stack)] {
                let range = &mut self.ranges[at as usize];
                *range = (range.0.min(times.0), range.1.max(times.1));
            }
        }
    }

    /// Names addresses of one process, which are the distinct frames `members`: appends one span of
    /// one frame for each.
    pub fn name(
        &mut self,
        process: ProcessId,
        addresses: &[u64],
        members: &[u32],
        counters: &SymbolCounters,
        (names, out): (&mut Dictionary, &mut Named),
    ) {
        let map = self.maps.of(process);
        let mut missing = 0;
        for (&address, &member) in addresses.iter().zip(members) {
            let (from, until) = self.ranges[member as usize];
            let frame = match &map {
                Ok(map) => map.steady_frame(names, address, from, until),
                Err(reason) => Some(lookup::unnamed(names, *reason)),
            };
            let frame = frame.unwrap_or_else(|| {
                self.changing.insert(member, ());
                lookup::unnamed(names, UnnamedReason::JitReused)
            });
            missing += u64::from(names.frames.get(frame).unnamed != UnnamedReason::No);
            out.push(&[frame]);
        }
        if self.maps.is_over(&map) {
            bump(&counters.code_looked_up_too_long);
        }
        add(&counters.addresses_unnamed, missing);
        add(&counters.addresses_named, addresses.len() as u64 - missing);
    }

    /// Splits rows with frames of code that changed while they were sampled.
    pub fn split_rows(
        &mut self,
        batch: &mut RawBatch,
        frames: &mut Frames<'_>,
        counters: &SymbolCounters,
    ) {
        add(&counters.sample_times_refused, batch.times_refused);
        if self.changing.is_empty() {
            return;
        }
        self.gather(batch, frames.frames);
        self.splits.clear();
        let maps = std::mem::take(&mut self.maps);
        let samples = std::mem::take(&mut self.samples);
        for of_process in samples.chunk_by(|a, b| a.0 == b.0) {
            let map = maps.of(of_process[0].0);
            // Without it the frames of its changing code have no names.
            if let Ok(map) = &map {
                for of_row in of_process.chunk_by(|a, b| a.1 == b.1) {
                    self.split_row(map, of_row, batch, frames, counters);
                }
            }
            if maps.is_over(&map) {
                bump(&counters.code_looked_up_too_long);
            }
        }
        self.samples = samples;
        for timestamp in &mut batch.timestamps {
            if let Some(split) = self.splits.get(&timestamp.row) {
                timestamp.row = split.row_at(timestamp.time);
            }
        }
    }

    /// The samples of rows to be split, by process and row.
    fn gather(&mut self, batch: &RawBatch, frames: &[u32]) {
        let changes: Vec<bool> = batch
            .stacks
            .iter()
            .map(|stack| {
                let mut frames = frames[places(stack)].iter();
                stack.generated && frames.any(|at| self.changing.contains_key(at))
            })
            .collect();
        self.samples.clear();
        for taken in &batch.times {
            let row = &batch.samples[taken.row as usize];
            if changes[row.stack as usize] {
                let process = batch.processes[row.process as usize].id;
                self.samples.push((process, taken.row, taken.time));
            }
        }
        if batch.times_refused > 0 {
            // Rows without any time need only one sample to be split.
            for (number, row) in batch.samples.iter().enumerate() {
                if changes[row.stack as usize] {
                    let process = batch.processes[row.process as usize].id;
                    self.samples
                        .push((process, number as u32, MonotonicTime(u64::MAX)));
                }
            }
        }
        self.samples.sort_unstable();
    }

    fn split_row(
        &mut self,
        map: &CodeMapGuard<'_>,
        samples: &[(ProcessId, u32, MonotonicTime)],
        batch: &mut RawBatch,
        frames: &mut Frames<'_>,
        counters: &SymbolCounters,
    ) {
        let number = samples[0].1 as usize;
        let row = batch.samples[number];
        let stack = batch.stacks[row.stack as usize];
        if batch.frames.len() + stack.len as usize > self.frames_max(batch) {
            return bump(&counters.rows_unsplit);
        }
        self.parts.clear();
        self.part_of.clear();
        let timed = samples
            .iter()
            .filter(|sample| sample.2 != MonotonicTime(u64::MAX));
        let mut untimed = row.value.count;
        let mut split = RowSplit {
            by_time: Vec::new(),
            untimed: 0,
        };
        for &(_, _, time) in timed {
            let part = self.add_part(map, &stack, (time, 1), frames);
            split.by_time.push((time, part));
            untimed = untimed.saturating_sub(1);
        }
        if untimed > 0 {
            split.untimed = self.add_part(map, &stack, (batch.end, untimed), frames);
        }
        let parts = std::mem::take(&mut self.parts);
        let mut given = Value::default();
        let mut counted = 0;
        for (index, (resolved, count)) in parts.iter().enumerate() {
            let stack = self.stack_of(row.stack, resolved, batch, frames);
            counted += count;
            let until = share(row.value, counted);
            let value = Value {
                count: until.count - given.count,
                weight: until.weight - given.weight,
            };
            given = until;
            let part = RawSample {
                stack,
                value,
                ..row
            };
            match index {
                0 => batch.samples[number] = part,
                _ => batch.samples.push(part),
            }
        }
        add(&counters.rows_split, u64::from(parts.len() > 1));
        if parts.len() > 1 && !batch.timestamps.is_empty() {
            // The first part took the row's place, the others stand at the end.
            let others = (batch.samples.len() + 1 - parts.len()) as u32;
            let row_of = |part: u32| match part {
                0 => number as u32,
                part => others + part - 1,
            };
            let timed = split.by_time.iter_mut();
            timed.for_each(|(_, part)| *part = row_of(*part));
            split.untimed = row_of(split.untimed);
            self.splits.insert(number as u32, split);
        }
        self.parts = parts;
    }

    /// Frames a batch may have with those that split stacks add.
    fn frames_max(&self, batch: &RawBatch) -> usize {
        let made: usize = self.stacks.len();
        let before = batch.stacks.len() - made;
        let unsplit = batch.stacks[..before]
            .last()
            .map_or(0, |last| places(last).end);
        unsplit + SPLIT_FRAMES_MAX
    }

    /// Adds samples of a time to the part of the row that has the same names; returns which it is.
    fn add_part(
        &mut self,
        map: &CodeMapGuard<'_>,
        stack: &RawStack,
        (time, count): (MonotonicTime, u64),
        frames: &mut Frames<'_>,
    ) -> u32 {
        self.resolved.clear();
        for place in places(stack) {
            let at = frames.frames[place];
            if !self.changing.contains_key(&at) {
                continue;
            }
            let RawFrame::Jit(_, address) = frames.distinct[at as usize] else {
                continue;
            };
            let frame = map.frame_at(frames.names, address.0, time);
            let made = self.made.entry((at, frame)).or_insert_with(|| {
                let made = frames.distinct.len() as u32;
                frames.distinct.push(frames.distinct[at as usize]);
                let first = frames.named.frames.len() as u32;
                frames.named.push(&[frame]);
                frames.spans.push((first, 1));
                made
            });
            self.resolved.push(*made);
        }
        if let Some(&part) = self.part_of.get(&self.resolved[..]) {
            self.parts[part].1 += count;
            return part as u32;
        }
        let resolved: Box<[u32]> = self.resolved[..].into();
        self.part_of.insert(resolved.clone(), self.parts.len());
        self.parts.push((resolved, count));
        self.parts.len() as u32 - 1
    }

    /// The stack that has these frames in the places of those that change.
    fn stack_of(
        &mut self,
        stack: u32,
        resolved: &[u32],
        batch: &mut RawBatch,
        frames: &mut Frames<'_>,
    ) -> u32 {
        let key = (stack, Box::from(resolved));
        if let Some(&made) = self.stacks.get(&key) {
            return made;
        }
        let from = batch.stacks[stack as usize];
        let first = batch.frames.len() as u32;
        let mut next = resolved.iter();
        for place in places(&from) {
            let at = frames.frames[place];
            let at = match self.changing.contains_key(&at) {
                true => next.next().copied().unwrap_or(at),
                false => at,
            };
            batch.frames.push(batch.frames[place]);
            frames.frames.push(at);
        }
        let made = batch.stacks.len() as u32;
        batch.stacks.push(RawStack { first, ..from });
        self.stacks.insert(key, made);
        made
    }
}

/// Weight of `counted` samples of a row, in proportion and rounded down.
fn share(all: Value, counted: u64) -> Value {
    let weight = u128::from(all.weight) * u128::from(counted) / u128::from(all.count.max(1));
    Value {
        count: counted,
        weight: weight as u64,
    }
}

fn places(stack: &RawStack) -> std::ops::Range<usize> {
    let first = stack.first as usize;
    first..first + stack.len as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{RawTime, RawTimestamp};
    use crate::fold::{Folder, SampleInfo};
    use host::ids::{Avma, CgroupId, Comm, Pid, Tid};
    use jit::code::{CodeLookup, Lines, When};
    use jit::notice::SharedCodeMap;
    use jit::reader::{CodeLock, GeneratedCode, Room};
    use profile::StackEnd;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use unwind::process::ProcessTable;

    const END: MonotonicTime = MonotonicTime(1000);

    /// One process, what is known of its code, and its samples.
    struct Rig {
        table: ProcessTable,
        folder: Folder,
        known: GeneratedCode,
        counters: SymbolCounters,
        /// The time and names of every sample, once the rows were split.
        timestamps: Vec<(u64, String)>,
    }

    impl Rig {
        fn new() -> Rig {
            let mut table = ProcessTable::new();
            table.fork(Pid(7), Tid(7), Pid(0), Tid(0), MonotonicTime(1));
            Rig {
                table,
                folder: Folder::new(MonotonicTime(0)),
                known: GeneratedCode::new(Room::new(1 << 20)),
                counters: SymbolCounters::default(),
                timestamps: Vec::new(),
            }
        }

        fn load(&mut self, address: u64, name: &str, when: When) {
            let range = address..address + 0x100;
            assert!(self.known.dumped.load(range, name, Lines::default(), when));
        }

        /// A sample with a frame of the kernel and these addresses.
        fn sample(&mut self, time: u64, addresses: &[u64], weight: u64) {
            let process = self.table.get(Pid(7)).expect("made above");
            let mut frames = vec![RawFrame::Kernel(5)];
            frames.extend(
                addresses
                    .iter()
                    .map(|&at| RawFrame::Jit(process.id, Avma(at))),
            );
            let taken = SampleInfo {
                time: MonotonicTime(time),
                cgroup: CgroupId(1),
                thread: Comm::default(),
                end: StackEnd::Complete,
                weight,
            };
            assert!(self.folder.add(process, &taken, &frames));
        }

        /// Rows as they are named: names of the frames in generated code, samples and weight.
        fn rows(&mut self, refused: u64) -> Vec<(String, Value)> {
            let mut batch = self.folder.take(END, true, RawBatch::default());
            batch.times_refused = refused;
            let timestamp = |taken: &RawTime| RawTimestamp {
                row: taken.row,
                time: taken.time,
                weight: 1,
            };
            batch.timestamps = batch.times.iter().map(timestamp).collect();
            batch.times.truncate(batch.times.len() - refused as usize);
            let (mut distinct, mut frames) = (Vec::new(), Vec::new());
            for &frame in &batch.frames {
                let known = distinct.iter().position(|&at| at == frame);
                frames.push(known.unwrap_or(distinct.len()) as u32);
                if known.is_none() {
                    distinct.push(frame);
                }
            }
            let id = batch.processes[0].id;
            let known = std::mem::replace(&mut self.known, GeneratedCode::new(Room::new(1)));
            let shared = SharedCodeMap {
                id,
                known: Arc::new(CodeLock::new(known)),
                late: false,
            };
            let mut timed = Timed::default();
            timed.start_batch(CodeMaps::new(vec![shared]), &batch, &frames, distinct.len());
            let (mut named, mut names) = (Named::default(), Dictionary::default());
            let mut spans = Vec::new();
            for (at, &frame) in distinct.iter().enumerate() {
                let first = named.frames.len() as u32;
                match frame {
                    RawFrame::Jit(_, address) => {
                        let into = (&mut names, &mut named);
                        timed.name(id, &[address.0], &[at as u32], &self.counters, into);
                    }
                    _ => {
                        let kernel = lookup::unnamed(&mut names, UnnamedReason::KernelHidden);
                        named.push(&[kernel]);
                    }
                }
                spans.push((first, 1));
            }
            let mut work = Frames {
                distinct: &mut distinct,
                frames: &mut frames,
                spans: &mut spans,
                named: &mut named,
                names: &mut names,
            };
            timed.split_rows(&mut batch, &mut work, &self.counters);
            let text = |sample: &RawSample| {
                let stack = &batch.stacks[sample.stack as usize];
                let own = &frames[places(stack)][1..];
                let name = |&at: &u32| {
                    let frame = names.frame(named.frames[spans[at as usize].0 as usize]);
                    match frame.unnamed {
                        UnnamedReason::No => frame.function.to_owned(),
                        reason => reason.word().to_owned(),
                    }
                };
                own.iter().map(name).collect::<Vec<_>>().join(" ")
            };
            let timestamps = batch.timestamps.iter();
            let timestamp = |at: &RawTimestamp| (at.time.0, text(&batch.samples[at.row as usize]));
            self.timestamps = timestamps.map(timestamp).collect();
            let rows = batch.samples.iter().map(|row| (text(row), row.value));
            let mut rows: Vec<_> = rows.collect();
            rows.sort_by(|a, b| a.0.cmp(&b.0));
            rows
        }
    }

    fn value(count: u64, weight: u64) -> Value {
        Value { count, weight }
    }

    #[test]
    fn samples_before_and_after_a_change_have_their_own_names() {
        let mut rig = Rig::new();
        rig.load(0x1000, "before", When::at(MonotonicTime(10)));
        rig.load(0x1000, "after", When::at(MonotonicTime(50)));
        rig.load(0x2000, "caller", When::at(MonotonicTime(10)));
        for time in [20, 30, 49, 50] {
            rig.sample(time, &[0x1010, 0x2010], 10);
        }
        let expected = [
            ("after caller".to_owned(), value(1, 10)),
            ("before caller".to_owned(), value(3, 30)),
        ];
        assert_eq!(rig.rows(0), expected);
    }

    #[test]
    fn where_nothing_tells_which_code_it_was_there_is_no_name_and_a_reason() {
        let mut rig = Rig::new();
        rig.load(
            0x1000,
            "old",
            When::between(MonotonicTime(0), MonotonicTime(10)),
        );
        rig.load(
            0x1000,
            "new",
            When::between(MonotonicTime(40), MonotonicTime(60)),
        );
        for time in [20, 50, 70] {
            rig.sample(time, &[0x1010], 1);
        }
        let rows = rig.rows(0);
        let names: Vec<&str> = rows.iter().map(|row| row.0.as_str()).collect();
        assert_eq!(names, ["jit_reused", "new", "old"]);
    }

    #[test]
    fn each_moment_goes_to_the_row_of_the_code_of_its_time() {
        let mut rig = Rig::new();
        rig.load(0x1000, "before", When::at(MonotonicTime(10)));
        rig.load(0x1000, "after", When::at(MonotonicTime(50)));
        rig.load(0x1000, "last", When::at(MonotonicTime(70)));
        for time in [20, 80, 30, 50, 60] {
            rig.sample(time, &[0x1010], 1);
        }
        rig.rows(0);
        let names = [
            (20, "before"),
            (80, "last"),
            (30, "before"),
            (50, "after"),
            (60, "after"),
        ];
        assert_eq!(
            rig.timestamps,
            names.map(|(at, name)| (at, name.to_owned()))
        );
    }

    #[test]
    fn samples_without_a_time_are_those_of_the_end_of_the_batch() {
        let mut rig = Rig::new();
        rig.load(0x1000, "before", When::at(MonotonicTime(10)));
        rig.load(0x1000, "after", When::at(MonotonicTime(50)));
        for time in [20, 30, 40] {
            rig.sample(time, &[0x1010], 5);
        }
        let expected = [
            ("after".to_owned(), value(2, 10)),
            ("before".to_owned(), value(1, 5)),
        ];
        assert_eq!(rig.rows(2), expected);
    }

    #[test]
    fn a_row_of_samples_without_any_time_has_the_names_of_the_end() {
        let mut rig = Rig::new();
        rig.load(0x1000, "before", When::at(MonotonicTime(10)));
        rig.load(0x1000, "after", When::at(MonotonicTime(50)));
        rig.sample(20, &[0x1010, 0x1020], 5);
        rig.sample(20, &[0x1010], 5);
        let expected = [
            ("after".to_owned(), value(1, 5)),
            ("before before".to_owned(), value(1, 5)),
        ];
        assert_eq!(rig.rows(1), expected);
    }

    proptest! {
        #[test]
        fn every_sample_has_the_name_of_its_time_and_totals_add_up(
            loads in prop::collection::vec((0u64..3, 1u64..100, 0u64..2), 0..20),
            samples in prop::collection::vec(
                (prop::collection::vec(0u64..4, 1..4), 0u64..120, 1u64..50), 1..60),
        ) {
            let mut rig = Rig::new();
            let mut loads = loads;
            loads.sort_by_key(|load| load.1);
            for (number, &(place, time, name)) in loads.iter().enumerate() {
                let name = format!("n{place}.{name}");
                let when = match number % 3 {
                    0 => When::at(MonotonicTime(time)),
                    _ => When::between(MonotonicTime(time - 1), MonotonicTime(time)),
                };
                rig.load(place * 0x1000, &name, when);
            }
            let mut expected: BTreeMap<String, u64> = BTreeMap::new();
            let mut weight = 0;
            for (places, time, own) in &samples {
                let addresses: Vec<u64> = places.iter().map(|place| place * 0x1000 + 8).collect();
                let name = |&at: &u64| match rig.known.find(at, MonotonicTime(*time)) {
                    CodeLookup::Code(code, _) => code.name.to_string(),
                    CodeLookup::Unsure => "jit_reused".to_owned(),
                    CodeLookup::Nothing => "jit_no_map".to_owned(),
                };
                let names: Vec<String> = addresses.iter().map(name).collect();
                *expected.entry(names.join(" ")).or_default() += 1;
                weight += own;
                rig.sample(*time, &addresses, *own);
            }
            let mut timestamps: Vec<(u64, String)> = Vec::new();
            for (places, time, _) in &samples {
                let name = |&place: &u64| match rig.known.find(place * 0x1000 + 8, MonotonicTime(*time)) {
                    CodeLookup::Code(code, _) => code.name.to_string(),
                    CodeLookup::Unsure => "jit_reused".to_owned(),
                    CodeLookup::Nothing => "jit_no_map".to_owned(),
                };
                let names: Vec<String> = places.iter().map(name).collect();
                timestamps.push((*time, names.join(" ")));
            }
            let mut found: BTreeMap<String, u64> = BTreeMap::new();
            let mut found_weight = 0;
            for (names, value) in rig.rows(0) {
                prop_assert!(value.count > 0);
                *found.entry(names).or_default() += value.count;
                found_weight += value.weight;
            }
            prop_assert_eq!(found, expected);
            prop_assert_eq!(found_weight, weight);
            prop_assert_eq!(&rig.timestamps, &timestamps);
        }
    }
}
