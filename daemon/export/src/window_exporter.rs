//! The window exporter: takes each window out of the recorder as it closes and hands it to the
//! spool's thread.
//!
//! Runs on the symbolizer's thread with the recorder locked, so it never blocks: it copies new
//! dictionary entries and packs the rows, which takes a millisecond for a window of some thousand
//! rows. It has a dictionary of its own for one *generation*: the tables that windows share until
//! the next generation starts. A generation is one segment of the spool. If the queue is full, the
//! window is dropped and counted; its definitions go with the next window.

use super::{Cause, ExportState};
use aggregate::recorder::{ClosedSink, ClosedWindow, Row};
use host::time::WallAnchor;
use profile::{
    Account, Dictionary, Frame, FrameId, LabelSetId, SampleKey, StackEnd, StackId, StrId,
    Withholding, withhold,
};
use segment::window::{self, EncodedLengths, Facts, Window, WindowHeader};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, TrySendError};

/// Windows of one generation. Ten minutes of windows of 10 s: what a damaged segment can take
/// along, and what is defined again when one starts.
const GENERATION_WINDOWS: usize = 60;

/// Memory of a generation's dictionary. Unit: bytes. About 30,000 frames; when it is reached the
/// next window starts a new one.
const GENERATION_BYTES_MAX: usize = 4 << 20;

/// Longest text that leaves the host. Unit: bytes; longer ones are cut. Longer symbol names are
/// template instances nobody reads to the end, and every message has room for a few of these.
pub const TEXT_BYTES_MAX: usize = 4096;

/// A window on its way to the spool.
#[derive(Debug)]
pub struct SpoolEntry {
    /// The generation of its tables; it grows.
    pub generation: u64,
    /// Definitions, to be taken before the body.
    pub tables: Vec<u8>,
    /// Facts, samples, accounts.
    pub body: Vec<u8>,
    /// Its header for the spool.
    pub header: WindowHeader,
}

/// See the module.
pub struct WindowExporter {
    queue: SyncSender<SpoolEntry>,
    shared: Arc<ExportState>,
    clock: Arc<WallAnchor>,
    generation: u64,
    windows: usize,
    dict: Dictionary,
    encoded: EncodedLengths,
    /// Tables of windows that found no room in the queue.
    unsent: Vec<u8>,
    carry: Carry,
    epoch: u64,
    /// Settings the label sets in `carry` were made with.
    settings: u64,
    drop_labels: Vec<String>,
    withhold: Arc<Withholding>,
}

impl WindowExporter {
    /// An exporter that hands windows to `queue`.
    pub fn new(
        queue: SyncSender<SpoolEntry>,
        shared: Arc<ExportState>,
        clock: Arc<WallAnchor>,
    ) -> WindowExporter {
        WindowExporter {
            queue,
            shared,
            clock,
            generation: 1,
            windows: 0,
            dict: Dictionary::default(),
            encoded: EncodedLengths::default(),
            unsent: Vec::new(),
            carry: Carry::default(),
            epoch: 0,
            settings: u64::MAX,
            drop_labels: Vec::new(),
            withhold: Arc::default(),
        }
    }

    fn start_generation(&mut self) {
        self.generation += 1;
        self.windows = 0;
        self.dict = Dictionary::default();
        self.encoded = EncodedLengths::default();
        self.unsent.clear();
        self.carry = Carry::default();
    }

    fn prepare(&mut self, epoch: u64) {
        let rotate = self.shared.rotate.swap(false, Ordering::AcqRel);
        let full = self.windows >= GENERATION_WINDOWS
            || self.dict.heap_bytes() + self.carry.heap_bytes() > GENERATION_BYTES_MAX;
        if rotate || full {
            self.start_generation();
        }
        if epoch != self.epoch {
            self.carry = Carry::default();
            self.epoch = epoch;
        }
        let version = self.shared.settings_version();
        if version != self.settings {
            let settings = self.shared.settings();
            if *self.withhold != *settings.withhold {
                // Names that wait to be sent may be of what is withheld from now on.
                self.start_generation();
            }
            self.drop_labels = settings.drop_labels;
            self.withhold = settings.withhold;
            self.carry.label_sets.clear();
            self.carry.hidden.clear();
            self.settings = version;
        }
        self.windows += 1;
    }

    fn sequence(&self, window: &ClosedWindow<'_>) -> u64 {
        let wanted = self.clock.to_boot_ns(window.start);
        self.shared.next_sequence(wanted)
    }

    fn copy(&mut self, window: &ClosedWindow<'_>) -> (Vec<Row>, Vec<Account>) {
        let mut rows: Vec<Row> = Vec::new();
        let mut withheld = 0;
        for (key, value) in window.rows() {
            let hidden = key.end != StackEnd::Lost && self.hides(window.dict, key.labels);
            let (stack, end) = match hidden {
                true => (Withholding::stack(&mut self.dict), withhold::END),
                false => {
                    let stack = self.carry.stack(window.dict, &mut self.dict, key.stack);
                    (stack, key.end)
                }
            };
            withheld += if hidden { value.count } else { 0 };
            let labels = self.labels(window.dict, key.labels);
            rows.push((SampleKey { labels, stack, end }, value));
        }
        self.shared.count_withheld(withheld);
        rows.sort_unstable_by_key(|row| row.0);
        rows.dedup_by(|later, first| {
            let same = later.0 == first.0;
            if same {
                first.1 += later.1;
            }
            same
        });
        let accounts = window.accounts().map(|account| Account {
            labels: self.labels(window.dict, account.labels),
            ..account
        });
        let accounts = accounts.collect();
        (rows, accounts)
    }

    /// Whether samples of a label set are withheld, which is asked once for each.
    fn hides(&mut self, source: &Dictionary, id: LabelSetId) -> bool {
        if self.withhold.is_empty() {
            return false;
        }
        let known = known(&mut self.carry.hidden, id.0);
        known.unwrap_or_else(|| {
            let hides = u32::from(self.withhold.hides(source, id));
            self.carry.hidden[id.0 as usize] = hides;
            hides
        }) == 1
    }

    fn labels(&mut self, source: &Dictionary, id: LabelSetId) -> LabelSetId {
        if let Some(found) = known(&mut self.carry.label_sets, id.0) {
            return LabelSetId(found);
        }
        let hidden = self.hides(source, id);
        let mut set = Vec::with_capacity(8);
        for &(name, value) in source.label_sets.get(id) {
            let text = source.strings.get(name);
            let dropped = self.drop_labels.iter().any(|dropped| dropped == text);
            if dropped || hidden && !Withholding::keeps(text) {
                continue;
            }
            let name = self.carry.string(source, &mut self.dict, name);
            set.push((name, self.carry.string(source, &mut self.dict, value)));
        }
        let moved = self.dict.label_sets.intern(&mut set);
        self.carry.label_sets[id.0 as usize] = moved.0;
        moved
    }
}

impl ClosedSink for WindowExporter {
    fn take(&mut self, window: &ClosedWindow<'_>) {
        self.prepare(window.epoch);
        let (rows, accounts) = self.copy(window);
        let facts = Facts {
            sequence: self.sequence(window),
            start_unix_ns: self.clock.to_unix_ns(window.start),
            duration_ns: window.end.since(window.start).as_nanos() as u64,
            event: window.event.to_owned(),
            unit: window.unit.to_owned(),
            period: window.period,
            quality: window.quality,
            pressure: window.pressure,
        };
        let header = facts.header();
        let mut tables = std::mem::take(&mut self.unsent);
        window::encode_tables(&mut tables, &self.dict, &mut self.encoded);
        let mut body = Vec::with_capacity(rows.len() * 6 + 256);
        window::encode_body(
            &mut body,
            &Window {
                facts,
                rows,
                accounts,
                times: None,
            },
        );
        self.shared.count_taken(header);
        let entry = SpoolEntry {
            generation: self.generation,
            tables,
            body,
            header,
        };
        match self.queue.try_send(entry) {
            Ok(()) => {}
            Err(TrySendError::Full(entry)) => {
                self.unsent = entry.tables;
                self.shared.lost(Cause::DiskFull, header);
            }
            // The spool's thread has ended, and with it the process does.
            Err(TrySendError::Disconnected(_)) => self.shared.lost(Cause::DiskFull, header),
        }
    }
}

const UNSEEN: u32 = u32::MAX;

/// From ids of the recorder's dictionary to those of the exporter's, each looked up once.
#[derive(Default)]
struct Carry {
    strings: Vec<u32>,
    frames: Vec<u32>,
    stacks: Vec<u32>,
    label_sets: Vec<u32>,
    /// By label set: 1 for those that are withheld.
    hidden: Vec<u32>,
    path: Vec<StackId>,
}

impl Carry {
    fn heap_bytes(&self) -> usize {
        let ids = self.strings.capacity() + self.frames.capacity() + self.stacks.capacity();
        (ids + self.label_sets.capacity() + self.hidden.capacity()) * size_of::<u32>()
    }

    fn string(&mut self, source: &Dictionary, target: &mut Dictionary, id: StrId) -> StrId {
        if let Some(found) = known(&mut self.strings, id.0) {
            return StrId(found);
        }
        let text = source.strings.get(id);
        let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
        let moved = target.strings.intern(text);
        self.strings[id.0 as usize] = moved.0;
        moved
    }

    fn frame(&mut self, source: &Dictionary, target: &mut Dictionary, id: FrameId) -> FrameId {
        if let Some(found) = known(&mut self.frames, id.0) {
            return FrameId(found);
        }
        let frame = source.frames.get(id);
        let moved = Frame {
            function: self.string(source, target, frame.function),
            system_name: self.string(source, target, frame.system_name),
            module: self.string(source, target, frame.module),
            file: self.string(source, target, frame.file),
            ..frame
        };
        let moved = target.frames.intern(moved);
        self.frames[id.0 as usize] = moved.0;
        moved
    }

    fn stack(&mut self, source: &Dictionary, target: &mut Dictionary, id: StackId) -> StackId {
        let mut path = std::mem::take(&mut self.path);
        path.clear();
        let (mut at, mut moved) = (id, StackId::EMPTY);
        while let Some((parent, _)) = source.stacks.node(at) {
            if let Some(found) = known(&mut self.stacks, at.0) {
                moved = StackId(found);
                break;
            }
            path.push(at);
            at = parent;
        }
        for &node in path.iter().rev() {
            if let Some((_, frame)) = source.stacks.node(node) {
                let frame = self.frame(source, target, frame);
                moved = target.stacks.child(moved, frame);
                self.stacks[node.0 as usize] = moved.0;
            }
        }
        self.path = path;
        moved
    }
}

/// The mapped value of `id`, for which it makes room if there is none.
fn known(table: &mut Vec<u32>, id: u32) -> Option<u32> {
    let id = id as usize;
    if table.len() <= id {
        table.resize((id + 1).next_power_of_two(), UNSEEN);
    }
    (table[id] != UNSEEN).then_some(table[id])
}
