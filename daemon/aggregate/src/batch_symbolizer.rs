//! The symbolizer thread: turns folded addresses into named stacks with labels, and records them.
//!
//! Naming reads files and may take long, so it runs outside the recorder's lock, with a dictionary
//! of its own. Only the finished names are copied under the lock, which takes milliseconds. So
//! neither queries nor the sampler ever wait for a slow disk.

use super::batch::{RawBatch, RawProcess, RawSample, RawStack};
use super::context::Context;
use super::ledger::{Closed, LedgerKeeper};
use super::names::Names;
use super::programs::{ProgramTable, Programs, service_labels};
use super::recorder::{Recorder, Row, WindowPart};
use super::recorders::{Detail, Recorders};
use super::runtimes::RuntimeWatch;
use super::target::{Target, Targets};
use super::timed::{self, Frames, Timed};
use super::wakers;
use cgroup::CgroupTable;
use cgroup::usage::UsageStats;
use hashbrown::HashMap;
use host::frame::{Mark, RawFrame};
use host::ids::{CaptureId, CgroupId, Comm, FileId, Pid, ProcessId};
use host::time::thread_cpu;
use jit::JitSymbolLookup;
use jit::runtimes::Runtimes;
use profile::{
    Account, Dictionary, FrameKind, FrameRef, LabelSetId, SampleKey, StackEnd, StackId, StrId,
    UnnamedReason, Value, key,
};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use symbolize::files::FileStore;
use symbolize::starts::{Start, cut_at_start};
use symbolize::{Named, SymbolCounters, Symbolizer};

/// Memory of the symbolizer's own label sets; forgotten likewise. 2 MiB hold about 15,000.
const LABELS_BYTES_MAX: usize = 2 << 20;

/// Longest wait for the files of a batch to be opened. Opening takes microseconds; what a slow file
/// system keeps waiting has a name in the next window.
const FILES_WAIT: Duration = Duration::from_millis(500);

/// Names batches and records them.
pub struct BatchSymbolizer {
    /// Names for the current batch.
    names: Names,
    /// The others, while a capture with lines runs.
    others: Option<Names>,
    /// Memory for debug information. Unit: bytes.
    lines_bytes: usize,
    store: Arc<FileStore>,
    code: JitSymbolLookup,
    timed: Timed,
    counters: Arc<SymbolCounters>,
    cgroups: CgroupTable,
    /// Label sets made outside the recorder, for naming a cgroup may read the file system.
    label_sets: Dictionary,
    /// From both to the dictionaries of the recorders.
    targets: Targets,
    captures: Arc<Recorders>,
    ledger: LedgerKeeper,
    runtimes: RuntimeWatch,
    programs: Programs,
    work: Work,
}

/// Buffers of one batch, kept for the next.
#[derive(Default)]
struct Work {
    /// Distinct frames and where each is in `distinct`.
    seen: HashMap<RawFrame, u32>,
    distinct: Vec<RawFrame>,
    /// For each frame of the batch its place in `distinct`.
    frames: Vec<u32>,
    /// `distinct` in order.
    order: Vec<u32>,
    /// For each distinct frame its names: a range of `named.frames`.
    spans: Vec<(u32, u32)>,
    named: Named,
    /// Files with samples.
    files: Vec<FileId>,
    stacks: Vec<NamedStack>,
    /// For each stack of the batch what the kernel was doing.
    contexts: Vec<Option<Context>>,
    labels: HashMap<LabelKey, LabelSetId>,
    /// Its keys in order of first use.
    label_keys: Vec<LabelKey>,
    rows: Vec<Row>,
}

/// What the labels of a sample depend on: cgroup, index of the process, thread, context.
type LabelKey = (CgroupId, u32, Comm, Context);

#[derive(Clone, Copy)]
struct NamedStack {
    id: StackId,
    end: StackEnd,
    unnamed_leaf: bool,
    folded: bool,
}

impl BatchSymbolizer {
    /// Built on its own thread: the symbolizer cannot move.
    pub fn new(
        symbolizer: Symbolizer,
        store: Arc<FileStore>,
        code: JitSymbolLookup,
        cgroups: CgroupTable,
    ) -> BatchSymbolizer {
        let ledger = LedgerKeeper::new(&cgroups);
        BatchSymbolizer {
            store,
            counters: Arc::clone(symbolizer.counters()),
            names: Names::new(symbolizer),
            others: None,
            lines_bytes: agent_config::Captures::default().lines_bytes(),
            code,
            timed: Timed::default(),
            cgroups,
            label_sets: Dictionary::default(),
            targets: Targets::default(),
            captures: Arc::default(),
            ledger,
            runtimes: RuntimeWatch::new(Arc::default()),
            programs: Programs::default(),
            work: Work::default(),
        }
    }

    /// Counts samples in generated code into this table.
    pub fn counting_runtimes(mut self, runtimes: Arc<Runtimes>) -> BatchSymbolizer {
        self.runtimes = RuntimeWatch::new(runtimes);
        self
    }

    /// Reports builds of programs into this table.
    pub fn reporting_programs(mut self, table: Arc<ProgramTable>) -> BatchSymbolizer {
        self.programs = Programs::new(table);
        self
    }

    /// Names the batches of captures into these.
    pub fn capturing(mut self, captures: Arc<Recorders>) -> BatchSymbolizer {
        self.captures = captures;
        self
    }

    /// Sets how much memory debug information for captures with lines may use. Unit: bytes.
    pub fn with_lines_in(mut self, bytes: usize) -> BatchSymbolizer {
        self.lines_bytes = bytes;
        self
    }

    /// Names batches until the sampler is gone. `tick` is called before and after each: the
    /// watchdog's heartbeat.
    pub fn run(
        mut self,
        batches: &Receiver<RawBatch>,
        recycled: &SyncSender<RawBatch>,
        recorder: &RwLock<Recorder>,
        mut tick: impl FnMut(bool),
    ) {
        while let Ok(mut batch) = batches.recv() {
            tick(true);
            self.take(&mut batch, recorder);
            batch.clear();
            // The sampler may be gone already, with this its last batch.
            let _ = recycled.try_send(batch);
            tick(false);
        }
    }

    /// Names one batch into the recorder it is for: that of its capture, or `recorder`.
    pub fn take(&mut self, batch: &mut RawBatch, recorder: &RwLock<Recorder>) {
        match batch.capture {
            Some(id) => self.take_of_capture(id, batch),
            None => self.record(batch, recorder),
        }
        self.targets.keep(&self.captures.ids());
        if self.others.is_some() {
            self.others.take_if(|_| !self.captures.have_lines());
            let bytes = self.others.as_ref().map_or(0, Names::heap_bytes);
            self.captures.note_lines_bytes(bytes);
        }
    }

    fn take_of_capture(&mut self, id: CaptureId, batch: &mut RawBatch) {
        self.captures.note_samples(batch.quality.taken);
        let Some(taken) = self.captures.get(id) else {
            return self.note_changes(batch);
        };
        taken.note(batch);
        // Cgroups of wakers may be new.
        self.note_changes(batch);
        wakers::hide(batch, &taken.withhold, &mut self.cgroups);
        match taken.detail {
            Detail::Functions => self.record(batch, &taken.recorder),
            detail => {
                let names = &self.names;
                let with_lines = || Names::new(names.symbolizer.with_lines(self.lines_bytes));
                let mut others = self.others.take().unwrap_or_else(with_lines);
                let (started, instructions) = (thread_cpu(), detail == Detail::Instructions);
                others.symbolizer.start_capture(instructions);
                let usual = std::mem::replace(&mut self.names, others);
                self.others = Some(usual);
                self.record(batch, &taken.recorder);
                if let Some(usual) = self.others.take() {
                    self.others = Some(std::mem::replace(&mut self.names, usual));
                }
                let spent = thread_cpu().saturating_sub(started);
                self.captures.note_naming(&taken, spent);
            }
        }
        if batch.closes {
            taken.end();
        }
    }

    /// Handles everything in a batch except its samples.
    fn note_changes(&mut self, batch: &mut RawBatch) {
        if std::mem::take(&mut batch.kernel_changed) {
            let all = self.others.iter_mut().chain([&mut self.names]);
            all.for_each(|names| names.symbolizer.kernel_changed());
        }
        for (id, path) in batch.cgroups.drain(..) {
            self.cgroups.note_created(id, &path);
            self.ledger.note_created(&path);
        }
    }

    /// Names one batch and adds it to the recorder.
    pub fn record(&mut self, batch: &mut RawBatch, recorder: &RwLock<Recorder>) {
        self.store.wait_for(batch.files_announced, FILES_WAIT);
        self.note_changes(batch);
        if self.names.is_full() {
            self.names.forget();
            self.targets.forget_names();
        }
        if self.label_sets.heap_bytes() > LABELS_BYTES_MAX {
            self.label_sets = Dictionary::default();
            self.targets.forget_labels();
        }
        self.name_frames(batch);
        let Work {
            distinct,
            frames,
            spans,
            named,
            ..
        } = &mut self.work;
        let mut frames = Frames {
            distinct,
            frames,
            spans,
            named,
            names: &mut self.names.dict,
        };
        self.timed.split_rows(batch, &mut frames, &self.counters);
        self.find_contexts(batch);
        self.label_samples(batch);
        let is_time = {
            let recorder = super::recorder::read(recorder);
            // Decided before the kernel's accounting is read, which goes with the window that
            // closes.
            batch.closes |= batch.capture.is_none() && recorder.is_overdue(batch.start, batch.end);
            recorder.event().1 == "nanoseconds"
        };
        let closed = self.keep_ledger(batch, is_time);
        // A poisoned lock means a query panicked; what it read is still sound.
        let mut recorder = recorder.write().unwrap_or_else(PoisonError::into_inner);
        // Taken out meanwhile, and always put back.
        let mut target = std::mem::take(self.targets.of(batch.capture));
        target.follow(recorder.epoch());
        self.intern_stacks(batch, &mut recorder, &mut target);
        self.make_rows(batch, &mut recorder, &mut target);
        let accounts = self.carry_over(&closed, batch, &mut recorder, &mut target);
        *self.targets.of(batch.capture) = target;
        if batch.capture.is_none() {
            recorder.note_usage(UsageStats {
                names: self.cgroups.stats(),
                ..self.ledger.stats()
            });
        }
        recorder.add(WindowPart {
            pressure: closed.pressure,
            start: batch.start,
            end: batch.end,
            closes: batch.closes,
            period: batch.period,
            quality: batch.quality,
            rows: &mut self.work.rows,
            accounts: &accounts,
            timestamps: &batch.timestamps,
            timestamps_refused: batch.timestamps_refused,
            timeless: batch.waits.ongoing,
        });
        drop(recorder);
        // Runtimes are counted by the continuous profile, in which all of them are.
        if batch.capture.is_none() {
            self.count_runtimes(batch);
            let cgroups = &mut self.cgroups;
            self.programs.note(batch, &self.store, |id| {
                let containers = cgroups.containers().clone();
                let cgroup = cgroups.get(id, None);
                let told = containers.of(&cgroup.labels);
                let mut all: Vec<(&str, &str)> = Vec::with_capacity(12);
                cgroup.pairs().for_each(|pair| all.push(pair));
                let of_container = told.iter().flat_map(|known| known.pairs());
                of_container.for_each(|pair| all.push(pair));
                service_labels(all.into_iter())
            });
        }
        let files = self.work.files.iter().copied();
        self.store.close_unused(files, batch.end);
    }

    fn count_runtimes(&mut self, batch: &RawBatch) {
        let (work, names) = (&self.work, &self.names.dict);
        let unnamed = |place: usize| {
            let (first, _) = work.spans[work.frames[place] as usize];
            let frame = work.named.frames[first as usize];
            names.frames.get(frame).unnamed
        };
        self.runtimes
            .note(batch, |stack| work.stacks[stack].end, unnamed);
    }

    /// Gives every distinct frame of the batch its names, file after file.
    fn name_frames(&mut self, batch: &RawBatch) {
        let (work, names) = (&mut self.work, &mut self.names);
        work.seen.clear();
        work.distinct.clear();
        work.frames.clear();
        for &frame in &batch.frames {
            let next = work.distinct.len() as u32;
            let at = *work.seen.entry(frame).or_insert(next);
            if at == next {
                work.distinct.push(frame);
            }
            work.frames.push(at);
        }
        let wanted = timed::wanted(batch, &work.distinct);
        let maps = self.code.open(wanted, batch.start);
        let distinct = work.distinct.len();
        self.timed.start_batch(maps, batch, &work.frames, distinct);
        work.order.clear();
        work.order.extend(0..work.distinct.len() as u32);
        let distinct = &work.distinct;
        work.order.sort_unstable_by_key(|&at| distinct[at as usize]);
        work.named.clear();
        work.files.clear();
        work.spans.clear();
        work.spans.resize(work.distinct.len(), (0, 0));
        let mut rest = &work.order[..];
        while let Some(&first) = rest.first() {
            let group = group_of(distinct[first as usize]);
            let len = rest.partition_point(|&at| group_of(distinct[at as usize]) == group);
            let (members, after) = rest.split_at(len);
            let before = work.named.spans.len();
            let frames = members.iter().map(|&at| distinct[at as usize]);
            match group {
                Group::Kernel => {
                    let addresses: Vec<u64> = frames
                        .filter_map(|frame| match frame {
                            RawFrame::Kernel(address) => Some(address),
                            _ => None,
                        })
                        .collect();
                    names
                        .symbolizer
                        .kernel(&addresses, &mut names.dict, &mut work.named);
                }
                Group::File(file) => {
                    work.files.push(file);
                    let offsets: Vec<_> = frames
                        .filter_map(|frame| match frame {
                            RawFrame::File(_, offset) => Some(offset),
                            _ => None,
                        })
                        .collect();
                    names
                        .symbolizer
                        .file(file, &offsets, &mut names.dict, &mut work.named);
                }
                Group::Jit(id) => {
                    let addresses: Vec<_> = frames
                        .filter_map(|frame| match frame {
                            RawFrame::Jit(_, address) => Some(address.0),
                            _ => None,
                        })
                        .collect();
                    let into = (&mut names.dict, &mut work.named);
                    self.timed
                        .name(id, &addresses, members, &self.counters, into);
                }
                Group::Unknown => {
                    for frame in frames {
                        let RawFrame::Unknown(reason) = frame else {
                            continue;
                        };
                        push_unknown(&mut work.named, &mut names.dict, reason);
                    }
                }
                Group::Mark => {
                    for frame in frames {
                        let Some(text) = frame.mark_text() else {
                            // Nothing to be read.
                            work.named.push(&[]);
                            continue;
                        };
                        let frame = names.dict.intern_frame(FrameRef {
                            kind: FrameKind::Synthetic,
                            function: &text,
                            ..FrameRef::default()
                        });
                        work.named.push(&[frame]);
                    }
                }
            }
            for (&member, span) in members.iter().zip(&work.named.spans[before..]) {
                work.spans[member as usize] = (span.first, span.len);
            }
            rest = after;
        }
    }

    fn intern_stacks(&mut self, batch: &RawBatch, recorder: &mut Recorder, target: &mut Target) {
        self.work.stacks.clear();
        for &stack in &batch.stacks {
            let named = self.intern_stack(batch, stack, recorder, target);
            self.work.stacks.push(named);
        }
    }

    fn intern_stack(
        &mut self,
        batch: &RawBatch,
        stack: RawStack,
        recorder: &mut Recorder,
        target: &mut Target,
    ) -> NamedStack {
        let frames = &self.work.frames[stack.first as usize..(stack.first + stack.len) as usize];
        let named = |at: &u32| {
            let (first, len) = self.work.spans[*at as usize];
            &self.work.named.frames[first as usize..(first + len) as usize]
        };
        let names = &mut self.names;
        let own = batch.own_frames_at(stack);
        let leaf = frames.get(own).and_then(|at| named(at).first().copied());
        let unnamed = |leaf| names.dict.frames.get(leaf).unnamed != UnnamedReason::No;
        let unnamed_leaf = leaf.is_none_or(unnamed);
        let refused = batch.frames[stack.first as usize] == RawFrame::Unknown(UnnamedReason::Limit);
        if refused || !recorder.has_room() {
            let (id, end) = (recorder.other(), StackEnd::Unresolved);
            return NamedStack {
                id,
                end,
                unnamed_leaf: false,
                folded: true,
            };
        }
        let mut start = |at: &u32| {
            let outer = named(at).last();
            outer.map_or(Start::No, |&outer| names.start(outer))
        };
        // The waker's frames, which stand before the thread's own, root first, are treated alike:
        // what lies behind the waker's start function is no frame, and a stack with a start
        // function is not cut.
        let outermost = frames[..own]
            .iter()
            .rposition(|at| start(at) == Start::Outermost);
        let marked = match frames.first().map(|&at| self.work.distinct[at as usize]) {
            Some(RawFrame::Mark(Mark::WakerCut)) => {
                let root = frames[..own].get(1);
                usize::from(root.is_some_and(|root| start(root).is_start()))
            }
            _ => 0,
        };
        let cut = outermost.unwrap_or(marked);
        let (frames, own) = (&frames[cut..], own - cut);
        let (len, end) = cut_at_start(frames, own, stack.end, start);
        let frames = &frames[..len];
        let dict = recorder.dict_mut();
        let mut id = StackId::EMPTY;
        for at in frames.iter().rev() {
            for &frame in named(at).iter().rev() {
                let frame = target.names.frame(&names.dict, dict, frame);
                id = dict.stacks.child(id, frame);
            }
        }
        NamedStack {
            id,
            end,
            unnamed_leaf,
            folded: false,
        }
    }

    /// Finds what the kernel was doing in each stack of the batch, if its frames show it.
    fn find_contexts(&mut self, batch: &RawBatch) {
        let (work, names) = (&mut self.work, &mut self.names);
        work.contexts.clear();
        for stack in &batch.stacks {
            let frames = &work.frames[stack.first as usize..(stack.first + stack.len) as usize];
            let mut found = None;
            for &at in &frames[batch.own_frames_at(*stack)..] {
                if !matches!(work.distinct[at as usize], RawFrame::Kernel(_)) {
                    break;
                }
                let (first, len) = work.spans[at as usize];
                let named = &work.named.frames[first as usize..(first + len) as usize];
                found = named.iter().find_map(|&frame| names.context(frame));
                if found.is_some() {
                    break;
                }
            }
            work.contexts.push(found);
        }
    }

    /// Gives every (cgroup, process, thread, context) of the batch its labels.
    fn label_samples(&mut self, batch: &RawBatch) {
        let Work {
            labels,
            label_keys,
            contexts,
            ..
        } = &mut self.work;
        labels.clear();
        label_keys.clear();
        for sample in &batch.samples {
            let (_, key) = label_key(batch, contexts, sample);
            labels.entry(key).or_insert_with(|| {
                label_keys.push(key);
                LabelSetId::default()
            });
        }
        let process = |key: &LabelKey| &batch.processes[key.1 as usize];
        let seen = label_keys.iter().map(|key| (key.0, process(key).pid));
        self.cgroups.meet(seen);
        for &key in label_keys.iter() {
            let (cgroups, dict) = (&mut self.cgroups, &mut self.label_sets);
            labels.insert(key, label_set(cgroups, dict, process(&key), key));
        }
    }

    /// Adds the batch to the ledger. When the batch closes its window, returns the losses per
    /// cgroup and the kernel's accounting, with label sets of `label_sets`; for a capture, only its
    /// losses.
    fn keep_ledger(&mut self, batch: &RawBatch, is_time: bool) -> Closed {
        let mut sums: HashMap<LabelSetId, Value> = HashMap::new();
        for sample in &batch.samples {
            let (_, key) = label_key(batch, &self.work.contexts, sample);
            *sums.entry(self.work.labels[&key]).or_default() += sample.value;
        }
        let path = |labels| self.label_sets.label(labels, key::CGROUP).unwrap_or("");
        if batch.capture.is_some() {
            let mut taken: BTreeMap<Box<str>, Value> = BTreeMap::new();
            for (labels, value) in sums {
                *taken.entry(path(labels).into()).or_default() += value;
            }
            let containers = self.cgroups.containers();
            let target = self.targets.of(batch.capture);
            return Closed {
                losses: target.losses(batch, taken, containers, &mut self.label_sets),
                accounts: Vec::new(),
                pressure: None,
            };
        }
        for (labels, value) in sums {
            self.ledger.add(path(labels), value);
        }
        self.ledger.close(batch, is_time, &mut self.label_sets)
    }

    /// Adds rows for what was lost, and brings the accounts into the recorder's dictionary.
    fn carry_over(
        &mut self,
        closed: &Closed,
        batch: &mut RawBatch,
        recorder: &mut Recorder,
        target: &mut Target,
    ) -> Vec<Account> {
        let stack = recorder.lost();
        let dict = recorder.dict_mut();
        let mut carry = |labels| target.labels.label_set(&self.label_sets, dict, labels);
        for &(labels, value) in &closed.losses {
            let key = SampleKey {
                labels: carry(labels),
                stack,
                end: StackEnd::Lost,
            };
            batch.quality.lost_samples += value.count;
            self.work.rows.push((key, value));
        }
        let accounts = closed.accounts.iter();
        accounts
            .map(|account| Account {
                labels: carry(account.labels),
                ..*account
            })
            .collect()
    }

    /// A row for each sample, in their order: timestamps name them by their place.
    fn make_rows(&mut self, batch: &mut RawBatch, recorder: &mut Recorder, target: &mut Target) {
        let work = &mut self.work;
        work.rows.clear();
        let dict = recorder.dict_mut();
        for sample in &batch.samples {
            let stack = work.stacks[sample.stack as usize];
            let (_, key) = label_key(batch, &work.contexts, sample);
            let labels = work.labels[&key];
            let labels = target.labels.label_set(&self.label_sets, dict, labels);
            let count = sample.value.count;
            let quality = &mut batch.quality;
            let count_if = |yes: bool| if yes { count } else { 0 };
            if stack.folded {
                quality.folded += count;
            } else {
                quality.truncated += count_if(stack.end.is_truncated());
                quality.depth_limit += count_if(stack.end == StackEnd::DepthLimit);
            }
            quality.unnamed += count_if(stack.unnamed_leaf);
            let key = SampleKey {
                labels,
                stack: stack.id,
                end: stack.end,
            };
            work.rows.push((key, sample.value));
        }
    }
}

/// Frames that are named together.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Group {
    Kernel,
    File(host::ids::FileId),
    Jit(ProcessId),
    Unknown,
    Mark,
}

fn group_of(frame: RawFrame) -> Group {
    match frame {
        RawFrame::Kernel(_) => Group::Kernel,
        RawFrame::File(file, _) => Group::File(file),
        RawFrame::Jit(process, _) => Group::Jit(process),
        RawFrame::Unknown(_) => Group::Unknown,
        RawFrame::WokenBy(_) | RawFrame::WakerCgroup(_) | RawFrame::Mark(_) => Group::Mark,
    }
}

fn push_unknown(named: &mut Named, names: &mut Dictionary, reason: UnnamedReason) {
    let frame = names.intern_frame(FrameRef {
        unnamed: reason,
        function: "[unknown]",
        ..FrameRef::default()
    });
    named.push(&[frame]);
}

/// The key of a sample's label set, and its process.
fn label_key<'b>(
    batch: &'b RawBatch,
    contexts: &[Option<Context>],
    sample: &RawSample,
) -> (&'b RawProcess, LabelKey) {
    let process = &batch.processes[sample.process as usize];
    // Where the frames say nothing it is what the task does, and the idle task idles.
    let context = contexts[sample.stack as usize].unwrap_or(match process.pid {
        Pid(0) if process.kernel => Context::Idle,
        _ => Context::Task,
    });
    let key = (sample.cgroup, sample.process, sample.thread, context);
    (process, key)
}

fn label_set(
    cgroups: &mut CgroupTable,
    dict: &mut Dictionary,
    process: &RawProcess,
    (cgroup, _, thread, context): LabelKey,
) -> LabelSetId {
    let mut pairs: Vec<(StrId, StrId)> = Vec::with_capacity(12);
    let mut add = |key: &str, value: &str| {
        if !value.is_empty() {
            pairs.push((dict.strings.intern(key), dict.strings.intern(value)));
        }
    };
    let containers = cgroups.containers().clone();
    let cgroup = cgroups.get(cgroup, Some(process.pid));
    cgroup.pairs().for_each(|(key, value)| add(key, value));
    if let Some(known) = containers.of(&cgroup.labels) {
        known.pairs().for_each(|(key, value)| add(key, value));
    }
    add(key::COMM, &process.comm.text());
    add(key::THREAD, &thread.text());
    // The pid of a task without an id is -1, as the kernel says.
    add(key::PID, &process.pid.0.cast_signed().to_string());
    add(key::CONTEXT, context.word());
    dict.label_sets.intern(&mut pairs)
}
