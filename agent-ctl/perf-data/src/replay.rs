//! Replays the records in order of time: processes come and go, and samples become stacks of
//! addresses, which are named at the end.

use crate::attr::{Attr, sample};
use crate::container::{Container, Record};
use crate::fields::Fields;
use crate::listed;
use crate::local::LocalFiles;
use crate::naming::Names;
use crate::record::{self, Mapped, Sampled, kind};
use hashbrown::{HashMap, HashSet};
use host::bounds::{Bounds, CacheBounds};
use host::frame::RawFrame;
use host::ids::{CgroupId, Comm, FileId, Pid, ProcessId, Tid};
use host::time::MonotonicTime;
use perf::arch::USER_REGS;
use perf::record::{Callchain, CpuMode, MapFile, Mmap, Sample, UserState};
use perf_event_open_sys::bindings as sys;
use profile::formats::is_dateless;
use profile::{
    FrameId, LabelSetId, Profile, SampleKey, StackEnd, StackId, StackTrie, Timestamp, Timestamps,
    Value, key,
};
use std::sync::Arc;
use unwind::process::ProcessTable;
use unwind::process::space::Backing;
use unwind::walk::{Depths, Missed, StackBuffer, Unwinder};

/// Memory for unwind information. Unit: bytes.
const UNWIND_BYTES_MAX: usize = 512 << 20;

/// Most frames of a callchain where the file does not say: `perf_event_max_stack`.
const CHAIN_DEPTH: usize = 127;

/// Most user frames of a copied stack: as many as fit into the largest copy, of 64 KiB.
const WALK_DEPTH: usize = 4096;

/// Times one sample is unwound. Each reads a file of its stack that was not read before, or looks
/// at a call; beyond it the stack stays cut where it is.
const ROUNDS_MAX: usize = 256;

/// Ends of threads after which processes that ended are let go: each time all of those are looked
/// at that ended since.
const SWEEP_EVERY: u64 = 4096;

/// `PERF_SAMPLE_REGS_ABI_64`.
const REGISTERS_64: u64 = 2;

/// A sample with a stack of addresses.
#[derive(Clone, Copy)]
struct Row {
    time: u64,
    labels: LabelSetId,
    stack: StackId,
    end: StackEnd,
    weight: u64,
}

/// What the labels of a sample depend on: process and thread by name, pid, cgroup.
type Who = (Comm, Comm, Pid, u64);

/// See the head of this file.
pub struct Replay<'c, 'f> {
    container: &'c Container<'f>,
    event: usize,
    attr: &'c Attr,
    /// Stacks can be unwound that were copied.
    unwinds: bool,
    files: LocalFiles,
    processes: ProcessTable,
    unwinder: Unwinder,
    loaded: HashSet<FileId>,
    stack: StackBuffer,
    /// Each address once, and its number, which stands for it in `stacks`.
    addresses: Vec<RawFrame>,
    numbers: HashMap<RawFrame, FrameId>,
    stacks: StackTrie,
    /// Pids of the processes with generated code in a stack.
    generated: HashMap<ProcessId, Pid>,
    cgroups: HashMap<u64, &'c [u8]>,
    labels: HashMap<Who, LabelSetId>,
    profile: Profile,
    rows: Vec<Row>,
    exits: u64,
    lost: u64,
    throttled: u64,
    malformed: u64,
    without_period: u64,
    kernel_met: bool,
}

impl<'c, 'f> Replay<'c, 'f> {
    /// Of the samples of one event.
    pub fn new(container: &'c Container<'f>, event: usize, files: LocalFiles) -> Self {
        let attr = &container.attrs[event];
        let depths = Depths {
            chain: match usize::from(attr.max_stack) {
                0 => CHAIN_DEPTH,
                most => most,
            },
            walk: WALK_DEPTH,
        };
        let bounds = Bounds {
            symbols: 0,
            unwind: UNWIND_BYTES_MAX,
            recorder: 0,
        };
        let arch = container.machine.arch;
        let is_ours = arch.is_empty() || arch == std::env::consts::ARCH.as_bytes();
        Replay {
            container,
            event,
            attr,
            unwinds: is_ours && attr.regs_user & USER_REGS == USER_REGS,
            files,
            processes: ProcessTable::new(),
            unwinder: Unwinder::new(depths, Arc::new(CacheBounds::new(bounds))),
            loaded: HashSet::new(),
            stack: StackBuffer::default(),
            addresses: Vec::new(),
            numbers: HashMap::new(),
            stacks: StackTrie::default(),
            generated: HashMap::new(),
            cgroups: HashMap::new(),
            labels: HashMap::new(),
            profile: Profile::default(),
            rows: Vec::new(),
            exits: 0,
            lost: 0,
            throttled: 0,
            malformed: container.malformed,
            without_period: 0,
            kernel_met: false,
        }
    }

    /// Replays all records. What the file lacks is added to the notes.
    pub fn run(mut self, notes: &mut Vec<String>) -> Profile {
        for record in self.container.records() {
            if self.take(&record).is_none() {
                self.malformed += 1;
            }
        }
        self.name();
        self.describe();
        self.note(notes);
        self.profile
    }

    /// Takes a record; `None` when it is damaged.
    fn take(&mut self, record: &Record<'c>) -> Option<()> {
        let time = MonotonicTime(record.time);
        let body = record.body;
        // What all records end with is not a part of a text.
        let attr = &self.container.attrs[record.attr];
        let own = attr.without_end(body);
        match record.kind {
            kind::SAMPLE if record.attr != self.event => {}
            kind::SAMPLE => {
                let sampled = record::sampled(self.attr, record.misc, body)?;
                self.sample(&sampled, record.time);
            }
            kind::MMAP | kind::MMAP2 => {
                match record::mapped(attr, (record.kind, record.misc), own)? {
                    Mapped::Process(mmap) => self.map(mmap, time),
                    Mapped::Kernel { symbol, address } if !self.kernel_met => {
                        self.kernel_met = true;
                        let build = self.container.build_ids.get(&b"[kernel.kallsyms]"[..]);
                        self.files
                            .meet_kernel(symbol, address, build.copied().flatten());
                    }
                    Mapped::Kernel { .. } | Mapped::Other => {}
                }
            }
            kind::COMM => {
                let mut fields = Fields(own);
                let (pid, tid) = (Pid(fields.u32()?), Tid(fields.u32()?));
                let comm = Comm::from_bytes(fields.text());
                let exec = record.misc & record::MISC_EXEC != 0;
                self.processes.comm(pid, tid, comm, exec, time);
            }
            kind::FORK => {
                let [pid, tid, parent, parent_tid] = record::task(body)?;
                let parent = (Pid(parent), Tid(parent_tid));
                self.processes
                    .fork(Pid(pid), Tid(tid), parent.0, parent.1, time);
            }
            kind::EXIT => {
                let [pid, tid, ..] = record::task(body)?;
                self.processes.exit(Pid(pid), Tid(tid), time);
                self.exits += 1;
                if self.exits.is_multiple_of(SWEEP_EVERY) {
                    self.processes.sweep(time);
                }
            }
            kind::LOST => {
                let mut fields = Fields(body);
                let _id = fields.u64()?;
                self.lost = self.lost.saturating_add(fields.u64()?);
            }
            kind::LOST_SAMPLES => self.lost = self.lost.saturating_add(Fields(body).u64()?),
            kind::THROTTLE => self.throttled += 1,
            kind::CGROUP => {
                let mut fields = Fields(own);
                let id = fields.u64()?;
                self.cgroups.insert(id, fields.text());
            }
            _ => {}
        }
        Some(())
    }

    /// A mapping, with the build id that the file has for its path where the record has none.
    fn map(&mut self, mut mmap: Mmap<'c>, time: MonotonicTime) {
        if let MapFile::Inode { .. } = mmap.file
            && let Some(&Some(id)) = self.container.build_ids.get(mmap.path)
        {
            mmap.file = MapFile::BuildId(id);
        }
        self.processes.mmap(&mmap, time);
    }

    fn sample(&mut self, sampled: &Sampled<'_>, time: u64) {
        let mut leaf = [0; 16];
        let context = match sampled.mode {
            CpuMode::Kernel => sys::PERF_CONTEXT_KERNEL,
            CpuMode::User => sys::PERF_CONTEXT_USER,
            CpuMode::Other => sys::PERF_CONTEXT_GUEST,
        };
        leaf[..8].copy_from_slice(&context.to_le_bytes());
        leaf[8..].copy_from_slice(&sampled.ip.to_le_bytes());
        let mut regs = [0; size_of::<u64>() * u64::BITS as usize];
        let user = match (sampled.regs, sampled.stack) {
            (Some((abi, values)), Some((stack, full))) if self.unwinds => {
                let len = select(values, self.attr.regs_user, &mut regs);
                Some(UserState {
                    is_64: abi == REGISTERS_64,
                    regs: &regs[..len],
                    stack,
                    full,
                })
            }
            _ => None,
        };
        let period = sampled
            .period
            .or(self.attr.period)
            .filter(|&period| period > 0);
        self.without_period += u64::from(period.is_none());
        let sample = Sample {
            mode: sampled.mode,
            ip: sampled.ip,
            pid: sampled.pid,
            tid: sampled.tid,
            time: MonotonicTime(time),
            cpu: sampled.cpu,
            period: period.unwrap_or(1),
            callchain: Callchain::from_bytes(sampled.chain.unwrap_or(&leaf)),
            user,
            raw: None,
            cgroup: CgroupId(sampled.cgroup),
        };
        self.processes.meet(sampled.pid, sample.time);
        let mut end = self.unwind(&sample);
        if sampled.chain.is_none() && user.is_none() {
            // The one frame is all that was recorded.
            end = StackEnd::NoUserStack;
        }
        self.open_files(&sample);
        let row = Row {
            time,
            labels: self.labels(sampled),
            stack: self.intern(sampled.pid),
            end,
            weight: sample.period,
        };
        self.rows.push(row);
    }

    /// Unwinds a sample, reading what that needs of the files on the way.
    fn unwind(&mut self, sample: &Sample<'_>) -> StackEnd {
        let mut rounds = 0;
        loop {
            let process = self.processes.get(sample.pid);
            let end = self.unwinder.unwind(sample, process, &mut self.stack);
            rounds += 1;
            if sample.user.is_none() || end.is_complete() || rounds == ROUNDS_MAX {
                return end;
            }
            let mut missed = Vec::new();
            self.unwinder.begin_drain(|what| {
                missed.push(what);
                true
            });
            let mut has_news = false;
            for what in missed {
                has_news |= self.load(what, sample);
            }
            if !has_news {
                return end;
            }
        }
    }

    /// Reads what the unwinder missed. True if there is anything new.
    fn load(&mut self, missed: Missed, sample: &Sample<'_>) -> bool {
        let update = match missed {
            Missed::Module(file) => {
                let first = self.loaded.insert(file);
                let process = self.processes.get(sample.pid);
                let mapping = process.and_then(|process| {
                    let mut all = process.space().iter();
                    all.find(|mapping| mapping.backing == Backing::File(file))
                        .copied()
                });
                let Some(mapping) = mapping.filter(|_| first) else {
                    return false;
                };
                self.open_file(file, &mapping, sample);
                Some(self.files.module(file))
            }
            Missed::CallSite(place) => self.files.call_site(place),
        };
        update.map(|update| self.unwinder.install(update)).is_some()
    }

    /// Opens the files of the stack that are new.
    fn open_files(&mut self, sample: &Sample<'_>) {
        for mapping in std::mem::take(&mut self.stack.files) {
            if let Backing::File(file) = mapping.backing
                && self.files.is_new(file)
            {
                self.open_file(file, &mapping, sample);
            }
        }
    }

    fn open_file(
        &mut self,
        file: FileId,
        mapping: &unwind::process::space::Mapping,
        sample: &Sample<'_>,
    ) {
        let files = &mut self.files;
        let (pid, now) = (sample.pid, sample.time);
        self.processes.announce(pid, file, mapping, now, |seen| {
            files.see(seen);
            true
        });
    }

    fn labels(&mut self, sampled: &Sampled<'_>) -> LabelSetId {
        let (pid, tid) = (sampled.pid, sampled.tid);
        let process = self
            .processes
            .get(pid)
            .map_or(Comm::default(), |known| known.comm);
        let thread = self.processes.thread_comm(pid, tid);
        let who = (process, thread, pid, sampled.cgroup);
        if let Some(&known) = self.labels.get(&who) {
            return known;
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let cgroup = self
            .cgroups
            .get(&sampled.cgroup)
            .map_or("".into(), |path| text(path));
        let host = text(self.container.machine.host);
        // A task without an id any more has -1.
        let pid = pid.0.cast_signed().to_string();
        let (process, thread) = (process.text(), thread.text());
        let pairs = [
            (key::CGROUP, cgroup.as_str()),
            (key::COMM, &process),
            (key::THREAD, &thread),
            (key::PID, &pid),
            (key::HOST, &host),
        ];
        let some = pairs.into_iter().filter(|(_, value)| !value.is_empty());
        let labels = self.profile.dict.intern_labels(some);
        self.labels.insert(who, labels);
        labels
    }

    /// The stack of addresses.
    fn intern(&mut self, pid: Pid) -> StackId {
        let Replay {
            stack,
            addresses,
            numbers,
            stacks,
            generated,
            ..
        } = self;
        stacks.intern(stack.frames.iter().rev().map(|&frame| {
            *numbers.entry(frame).or_insert_with(|| {
                if let RawFrame::Jit(process, _) = frame {
                    generated.insert(process, pid);
                }
                addresses.push(frame);
                FrameId(addresses.len() as u32 - 1)
            })
        }))
    }

    /// Names the addresses, and with them the stacks.
    fn name(&mut self) {
        let dict = &mut self.profile.dict;
        let names = Names::of(&self.addresses, &self.files, &self.generated, dict);
        let mut named: HashMap<(StackId, StackEnd), SampleKey> = HashMap::new();
        let (start, end) = (self.rows.first(), self.rows.last());
        let times = start.zip(end).map(|(first, last)| (first.time, last.time));
        let (first, last) = times.unwrap_or_default();
        let offset = self.container.machine.wall_offset.unwrap_or(0);
        let start_unix_ns = i64::try_from(first)
            .unwrap_or(i64::MAX)
            .saturating_add(offset);
        let has_times = self.attr.has(sample::TIME);
        // The last sample is a part of the time too.
        let duration_ns = match has_times {
            true => (last - first).saturating_add(1),
            false => 0,
        };
        let mut list = Vec::new();
        for row in &self.rows {
            let known = named.entry((row.stack, row.end)).or_insert_with(|| {
                let (stack, end) =
                    names.stack(&self.stacks, row.stack, row.end, &mut self.profile.dict);
                SampleKey {
                    labels: LabelSetId::default(),
                    stack,
                    end,
                }
            });
            let key = SampleKey {
                labels: row.labels,
                ..*known
            };
            let weight = row.weight;
            self.profile.add(key, Value { count: 1, weight });
            if has_times {
                list.push(Timestamp {
                    at_ns: row.time - first,
                    key,
                    weight,
                });
            }
        }
        self.profile.timestamps = Timestamps {
            start_unix_ns,
            duration_ns,
            dropped: 0,
            list,
        };
        if has_times {
            let info = &mut self.profile.info;
            (info.start_unix_ns, info.duration_ns) = (start_unix_ns, duration_ns);
        }
    }

    fn describe(&mut self) {
        let info = &mut self.profile.info;
        let rows = self.rows.len() as u64;
        let (event, unit) = profile::formats::perf_script::event_and_unit(&self.attr.name);
        info.event = event;
        if self.without_period < rows {
            info.unit = unit;
        }
        let mut weights = self.rows.iter().map(|row| row.weight);
        let first = weights.next().unwrap_or(0);
        info.period = if weights.all(|weight| weight == first) {
            first
        } else {
            0
        };
        info.quality.lost = self.lost;
        info.quality.throttled = self.throttled;
        info.quality.malformed = self.malformed;
    }

    fn note(&self, notes: &mut Vec<String>) {
        if self.lost > 0 {
            notes.push(format!(
                "{} records were lost while perf recorded",
                self.lost
            ));
        }
        if self.malformed > 0 {
            notes.push(format!("{} damaged records were skipped", self.malformed));
        }
        if self.without_period > 0 {
            let what = "samples do not say what they stand for: each counts as 1";
            notes.push(format!("{} {what}", self.without_period));
        }
        let info = &self.profile.info;
        if !self.attr.has(sample::TIME) {
            notes.push("samples have no time".to_owned());
        } else if is_dateless(info.start_unix_ns) {
            notes.push("times count from boot, not from a date (perf record -k mono)".to_owned());
        }
        if !self.attr.has(sample::CALLCHAIN | sample::STACK_USER) {
            let note = "recorded without callers (perf record -g): each stack is its last function";
            notes.push(note.to_owned());
        }
        if self.attr.has(sample::BRANCH_STACK) {
            notes.push("branch stacks were left out".to_owned());
        }
        if self.attr.has(sample::STACK_USER) {
            self.note_copies(notes);
        }
        let kernel = self
            .addresses
            .iter()
            .any(|frame| matches!(frame, RawFrame::Kernel(_)));
        if kernel && !self.files.has_kernel() {
            let release = String::from_utf8_lossy(self.container.machine.release);
            let note = "functions of the kernel have no names: it is not the one that runs here \
                        since the same boot, or hides its symbols";
            notes.push(match release.is_empty() {
                true => note.to_owned(),
                false => format!("{note} (recorded: {release})"),
            });
        }
        let counts = self.processes.counts();
        let without_room = counts.refused
            + counts.mappings_refused
            + counts.spaces_forgotten
            + counts.files_refused;
        if without_room > 0 {
            notes.push(format!(
                "{without_room} processes or mappings found no room: their functions have no names"
            ));
        }
        let put_off = self.files.put_off();
        if put_off > 0 {
            notes.push(format!(
                "functions of {put_off} files have no names, because reading the files of their \
                 owner takes more CPU time than an owner may use; import the output of perf script"
            ));
        }
        let missing = self.files.missing();
        if !missing.is_empty() {
            notes.push(format!(
                "functions of {} files have no names, because the files are not here or other \
                 builds: {}",
                missing.len(),
                listed(missing)
            ));
        }
    }

    /// How many copied stacks were not unwound to their start, and mostly why.
    fn note_copies(&self, notes: &mut Vec<String>) {
        let mut ends: HashMap<StackEnd, u64> = HashMap::new();
        for (key, value) in &self.profile.samples {
            if key.end.is_truncated() {
                *ends.entry(key.end).or_default() += value.count;
            }
        }
        let Some((end, most)) = ends.iter().max_by_key(|(end, count)| (**count, **end)) else {
            return;
        };
        let cut: u64 = ends.values().sum();
        let cause = match self.unwinds {
            true => format!("{most} because {}", end.sentence()),
            false => {
                "they were copied on another architecture, or without all registers".to_owned()
            }
        };
        notes.push(format!(
            "{cut} of {} copied stacks were not unwound to their start; {cause}",
            self.rows.len()
        ));
    }
}

/// Copies the registers that the unwinder wants out of those of a mask. Returns their length.
fn select(values: &[u8], mask: u64, out: &mut [u8]) -> usize {
    let mut len = 0;
    let recorded = (0..u64::BITS).filter(|bit| mask >> bit & 1 != 0);
    for (bit, value) in recorded.zip(values.chunks_exact(8)) {
        if USER_REGS >> bit & 1 != 0 {
            out[len..len + 8].copy_from_slice(value);
            len += 8;
        }
    }
    len
}
