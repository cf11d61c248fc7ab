//! The dictionary of one partition, which gives its dense ids their meaning.
//!
//! It only grows, so an id that was read once stays valid, and what was added between two
//! [`DictVersion`]s can be written as one [`delta`](Dict::put_delta): to the write-ahead log with
//! the window that needs it, and to the partition's file with the blocks that do. Applying a delta
//! that is partly known already changes nothing, so a record may be replayed over a file that has
//! it. Content ids of stacks are sixteen incompressible bytes each: the file has them, the log does
//! not, and they are computed again during replay.

use super::codec::{Corrupt, Reader, encode_bytes, encode_u64};
use super::dict_version::DictVersion;
use crate::store::names::Nameless;
use crate::store::{Defined, HostKey, LabelSet};
use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use profile::{
    ContentId, Dictionary, Frame, FrameId, FrameKind, FrameRef, LabelSetId, OTHER_FRAME, Remap,
    StackEnd, StackId, StrId, UnnamedReason, key,
};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Labels that distinguish processes of one cgroup. Samples that differ only in them are stored in
/// one block, because each of them has few.
const PROCESS_LABELS: [&str; 4] = [key::COMM, key::THREAD, key::PID, key::CONTEXT];

/// Label of the label set that takes what is beyond the bound of label sets.
pub const OVERFLOW_LABEL: &str = "overflow";

/// Most (event, unit, period) of one partition. A fleet has a handful; an agent that changes its
/// period with every window is refused beyond it.
pub const KINDS_MAX: usize = 256;

/// The value for nothing.
pub const NONE: u32 = u32::MAX;

/// Common properties of a window's samples.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    /// The event that was sampled.
    pub event: String,
    /// Unit of weights.
    pub unit: String,
    /// Weight of one sample; 0: it varied.
    pub period: u64,
}

/// Label set and kind of samples, and what they are stored with.
#[derive(Clone, Copy, Debug)]
pub struct Series {
    /// All labels.
    pub labels: LabelSetId,
    /// Index in [`Dict::kinds`].
    pub kind: u16,
    /// Index in [`Dict::groups`]: the same labels without those of processes.
    pub group: u32,
    /// Index in [`Dict::services`].
    pub service: u32,
}

/// Series that are stored, or added up, together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bundle {
    /// The labels they have in common.
    pub labels: LabelSetId,
    /// Index in [`Dict::kinds`].
    pub kind: u16,
}

/// Bundles with an index.
#[derive(Default)]
pub struct Bundles {
    all: Vec<Bundle>,
    index: HashMap<Bundle, u32>,
}

impl Bundles {
    fn intern(&mut self, bundle: Bundle) -> u32 {
        let next = self.all.len() as u32;
        let id = *self.index.entry(bundle).or_insert(next);
        if id == next {
            self.all.push(bundle);
        }
        id
    }

    /// All, by id.
    pub fn iter(&self) -> impl Iterator<Item = Bundle> + '_ {
        self.all.iter().copied()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }
}

/// See the module.
pub struct Dict {
    /// Strings, frames, stacks and label sets.
    pub tables: Dictionary,
    /// Kinds of samples.
    pub kinds: Vec<Kind>,
    /// Series; label sets with a kind.
    pub series: Vec<Series>,
    series_index: HashMap<Bundle, u32>,
    /// What series are stored with.
    pub groups: Bundles,
    /// What series are added up in.
    pub services: Bundles,
    /// Hosts that pushed windows.
    pub hosts: Vec<HostKey>,
    hosts_index: HashMap<HostKey, u32>,
    /// What rows name: a stack and how it ended.
    pub leaves: Vec<(StackId, StackEnd)>,
    complete: Vec<u32>,
    other_ends: HashMap<(StackId, StackEnd), u32>,
    /// By stack: a row named it.
    named: Vec<bool>,
    /// By stack; with [`Dict::with_contents`] only.
    contents: Vec<ContentId>,
    contents_index: HashTable<u32>,
    /// Frames by stack, as far as there are contents.
    depths: Vec<u16>,
    hasher: DefaultHashBuilder,
    with_contents: bool,
    service_labels: Vec<String>,
    /// By service label: a label set has it, but is added up under an earlier one.
    hidden: Vec<bool>,
    other: Option<StackId>,
    identity: u64,
    /// Its frames without a name, to be looked up. Taken after the dictionary's lock is given back.
    pub unnamed: Arc<Mutex<Nameless>>,
}

/// Mapping of frames and stacks of another dictionary: each is looked up once.
#[derive(Default)]
pub struct Adopted {
    remap: Remap,
    /// By stack of the other.
    stacks: Vec<u32>,
    path: Vec<(StackId, FrameId)>,
}

impl Adopted {
    fn find(&self, stack: StackId) -> Option<StackId> {
        let own = self.stacks.get(stack.0 as usize).copied();
        own.filter(|&own| own != NONE).map(StackId)
    }

    /// Notes where a stack is.
    pub fn note(&mut self, stack: StackId, own: StackId) {
        let at = stack.0 as usize;
        if self.stacks.len() <= at {
            self.stacks.resize((at + 1).next_power_of_two(), NONE);
        }
        self.stacks[at] = own.0;
    }
}

/// Gives each dictionary in memory its number.
static IDENTITIES: AtomicU64 = AtomicU64::new(1);

impl Dict {
    /// An empty dictionary that identifies services by the first existing label of
    /// `service_labels`.
    pub fn new(service_labels: &[String], with_contents: bool) -> Dict {
        Dict {
            tables: Dictionary::default(),
            kinds: Vec::new(),
            series: Vec::new(),
            series_index: HashMap::new(),
            groups: Bundles::default(),
            services: Bundles::default(),
            hosts: Vec::new(),
            hosts_index: HashMap::new(),
            leaves: Vec::new(),
            complete: vec![NONE],
            other_ends: HashMap::new(),
            named: Vec::new(),
            contents: vec![ContentId::default()],
            contents_index: HashTable::new(),
            depths: vec![0],
            hasher: DefaultHashBuilder::default(),
            with_contents,
            service_labels: service_labels.to_vec(),
            hidden: vec![false; service_labels.len()],
            other: None,
            identity: IDENTITIES.fetch_add(1, Ordering::Relaxed),
            unnamed: Arc::default(),
        }
    }

    /// Unique in the process: what is remembered of ids is of this dictionary.
    pub fn identity(&self) -> u64 {
        self.identity
    }

    /// True when stacks can be found by content.
    pub fn with_contents(&self) -> bool {
        self.with_contents
    }

    /// Heap memory held, in bytes; an estimate.
    pub fn heap_bytes(&self) -> usize {
        self.tables.heap_bytes()
            + self.series.capacity() * (size_of::<Series>() + 24)
            + (self.groups.len() + self.services.len()) * 32
            + self.hosts.len() * 200
            + self.leaves.capacity() * 8
            + self.complete.capacity() * 4
            + self.named.capacity()
            + self.other_ends.capacity() * 16
            + self.contents.capacity() * 16
            + self.depths.capacity() * 2
            + self.contents_index.allocation_size()
    }

    /// What of it is stored, in bytes: names that came later are not.
    pub fn stored_bytes(&self) -> usize {
        self.heap_bytes() - self.tables.later.heap_bytes()
    }

    /// True if the service rollup has `label` exactly as the series do: wherever a series has it,
    /// it is the label under which the series is summed.
    pub fn service_has(&self, label: &str) -> bool {
        let at = self.service_labels.iter().position(|own| own == label);
        at.is_some_and(|at| !self.hidden[at])
    }

    /// The id of a host, adding it when it is new.
    pub fn host(&mut self, host: &HostKey) -> u32 {
        if let Some(&id) = self.hosts_index.get(host) {
            return id;
        }
        let id = self.hosts.len() as u32;
        self.hosts.push(host.clone());
        self.hosts_index.insert(host.clone(), id);
        id
    }

    /// The id of a host when it is known.
    pub fn find_host(&self, host: &HostKey) -> Option<u32> {
        self.hosts_index.get(host).copied()
    }

    /// The id of a kind, adding it when it is new; `None` when there are too many.
    pub fn kind(&mut self, kind: Kind) -> Option<u16> {
        if let Some(at) = self.kinds.iter().position(|known| *known == kind) {
            return Some(at as u16);
        }
        if self.kinds.len() >= KINDS_MAX {
            return None;
        }
        self.kinds.push(kind);
        Some((self.kinds.len() - 1) as u16)
    }

    /// The id of a label set when it is known.
    pub fn find_labels(&self, labels: &LabelSet) -> Option<LabelSetId> {
        let strings = &self.tables.strings;
        let mut pairs: Vec<(StrId, StrId)> = labels
            .iter()
            .map(|(name, value)| Some((strings.find(name)?, strings.find(value)?)))
            .collect::<Option<_>>()?;
        self.tables.label_sets.find(&mut pairs)
    }

    /// The id of a label set, adding it when it is new.
    pub fn labels(&mut self, labels: &LabelSet) -> LabelSetId {
        self.tables.intern_labels(labels.iter())
    }

    /// The series of a label set, adding it when it is new.
    pub fn series(&mut self, labels: LabelSetId, kind: u16) -> u32 {
        let bundle = Bundle { labels, kind };
        if let Some(&id) = self.series_index.get(&bundle) {
            return id;
        }
        let pairs = self.tables.label_sets.get(labels).to_vec();
        let mut common = pairs.clone();
        common.retain(|&(name, _)| !PROCESS_LABELS.contains(&self.tables.strings.get(name)));
        let mut service = Vec::new();
        for (at, label) in self.service_labels.iter().enumerate() {
            let found = pairs
                .iter()
                .find(|&&(name, _)| self.tables.strings.get(name) == label);
            match found {
                Some(&pair) if service.is_empty() => service.push(pair),
                Some(_) => self.hidden[at] = true,
                None => {}
            }
        }
        let label_sets = &mut self.tables.label_sets;
        let group = self.groups.intern(Bundle {
            labels: label_sets.intern(&mut common),
            kind,
        });
        let service = self.services.intern(Bundle {
            labels: label_sets.intern(&mut service),
            kind,
        });
        let id = self.series.len() as u32;
        self.series.push(Series {
            labels,
            kind,
            group,
            service,
        });
        self.series_index.insert(bundle, id);
        id
    }

    /// The id that rows use for a stack with its end; adds it if it is new.
    pub fn leaf(&mut self, stack: StackId, end: StackEnd) -> u32 {
        let next = self.leaves.len() as u32;
        let slot = if end == StackEnd::Complete {
            let at = stack.0 as usize;
            if self.complete.len() <= at {
                self.complete
                    .resize(self.tables.stacks.len().max(at + 1), NONE);
            }
            &mut self.complete[at]
        } else {
            self.other_ends.entry((stack, end)).or_insert(NONE)
        };
        if *slot == NONE {
            *slot = next;
            self.leaves.push((stack, end));
            let at = stack.0 as usize;
            if self.named.len() <= at {
                self.named
                    .resize(self.tables.stacks.len().max(at + 1), false);
            }
            self.named[at] = true;
        }
        *slot
    }

    /// As [`Dict::find_named`], with what rows name the complete stack by, when one did.
    pub fn find_leaf(&self, content: ContentId) -> Option<(StackId, Option<u32>)> {
        let stack = self.find_named(content)?;
        let leaf = self.complete.get(stack.0 as usize).copied();
        Some((stack, leaf.filter(|&leaf| leaf != NONE)))
    }

    /// The stack with this content, when a row has named it. Callers of stacks are there too, but
    /// an agent is asked for each stack it names, as other engines ask for it.
    pub fn find_named(&self, content: ContentId) -> Option<StackId> {
        let stack = self.find_stack(content)?;
        let named =
            stack == StackId::EMPTY || self.named.get(stack.0 as usize).is_some_and(|named| *named);
        named.then_some(stack)
    }

    /// How many frames a stack has that was found by its content.
    pub fn depth(&self, stack: StackId) -> u16 {
        self.depths.get(stack.0 as usize).copied().unwrap_or(0)
    }

    /// The stack with this content.
    pub fn find_stack(&self, content: ContentId) -> Option<StackId> {
        if content == ContentId::default() {
            return Some(StackId::EMPTY);
        }
        let hash = self.hasher.hash_one(content);
        self.contents_index
            .find(hash, |&id| self.contents[id as usize] == content)
            .map(|&id| StackId(id))
    }

    /// True when this is the content of a stack.
    pub fn is_called(&self, stack: StackId, content: ContentId) -> bool {
        self.contents.get(stack.0 as usize) == Some(&content)
    }

    /// Adds a stack that came with a push; `None` when it comes from one that should be known and
    /// is not.
    pub fn adopt_defined(
        &mut self,
        source: &Defined,
        adopted: &mut Adopted,
        stack: StackId,
    ) -> Option<StackId> {
        let (node, content) = (|at| source.node(at), |at| source.content(at));
        self.adopt(source.frames(), node, content, adopted, stack)
    }

    /// Adds a stack of another dictionary: `node` gives callers and frames, `content` content ids.
    fn adopt(
        &mut self,
        source: &Dictionary,
        node: impl Fn(StackId) -> Option<(StackId, FrameId)>,
        content: impl Fn(StackId) -> ContentId,
        adopted: &mut Adopted,
        stack: StackId,
    ) -> Option<StackId> {
        let mut path = std::mem::take(&mut adopted.path);
        path.clear();
        let mut at = stack;
        let found = loop {
            if let Some(own) = adopted.find(at) {
                break Some(own);
            }
            if let Some(own) = self.find_stack(content(at)) {
                adopted.note(at, own);
                break Some(own);
            }
            let Some((parent, frame)) = node(at) else {
                break None;
            };
            path.push((at, frame));
            at = parent;
        };
        let own = found.map(|mut own| {
            for &(node, frame) in path.iter().rev() {
                let frame = adopted.remap.frame(source, &mut self.tables, frame);
                own = self.tables.stacks.child(own, frame);
                self.set_content(own, content(node));
                adopted.note(node, own);
            }
            own
        });
        adopted.path = path;
        own
    }

    /// Adds a stack of another partition.
    pub fn adopt_from(&mut self, other: &Dict, adopted: &mut Adopted, stack: StackId) -> StackId {
        let content = |stack: StackId| other.contents[stack.0 as usize];
        let node = |stack: StackId| other.tables.stacks.node(stack);
        // Callers of all are there, and the first of them is the empty stack.
        self.adopt(&other.tables, node, content, adopted, stack)
            .unwrap_or(StackId::EMPTY)
    }

    fn set_content(&mut self, stack: StackId, content: ContentId) {
        if stack.0 as usize == self.contents.len() {
            let caller = self.tables.stacks.node(stack);
            let depth = caller.map_or(0, |(caller, _)| self.depth(caller).saturating_add(1));
            self.depths.push(depth);
            self.contents.push(content);
            let (contents, hasher) = (&self.contents, &self.hasher);
            let hash = hasher.hash_one(content);
            self.contents_index
                .insert_unique(hash, stack.0, |&id| hasher.hash_one(contents[id as usize]));
        }
    }

    /// The stack for what is beyond the bound of stacks.
    pub fn other_stack(&mut self) -> StackId {
        if let Some(other) = self.other {
            return other;
        }
        let frame = FrameRef {
            kind: FrameKind::Synthetic,
            function: OTHER_FRAME,
            ..FrameRef::default()
        };
        let content = ContentId::default().child(ContentId::of_frame(frame));
        let frame = self.tables.intern_frame(frame);
        let stack = self.tables.stacks.child(StackId::EMPTY, frame);
        self.set_content(stack, content);
        self.other = Some(stack);
        stack
    }

    /// How much there is.
    pub fn version(&self) -> DictVersion {
        DictVersion {
            strings: self.tables.strings.len() as u32,
            frames: self.tables.frames.len() as u32,
            stacks: self.tables.stacks.len() as u32,
            label_sets: self.tables.label_sets.len() as u32,
            kinds: self.kinds.len() as u32,
            series: self.series.len() as u32,
            hosts: self.hosts.len() as u32,
            leaves: self.leaves.len() as u32,
        }
    }

    /// Appends what was added between two versions; contents of stacks go to `contents`.
    pub fn encode_delta(
        &self,
        from: DictVersion,
        to: DictVersion,
        out: &mut Vec<u8>,
        contents: &mut Vec<u8>,
    ) {
        let span = |out: &mut Vec<u8>, from: u32, to: u32| {
            encode_u64(out, from.into());
            encode_u64(out, to.saturating_sub(from).into());
            from..to
        };
        for id in span(out, from.strings, to.strings) {
            encode_bytes(out, self.tables.strings.get(StrId(id)).as_bytes());
        }
        for id in span(out, from.frames, to.frames) {
            let frame = self.tables.frames.get(FrameId(id));
            encode_frame(frame, out);
        }
        for id in span(out, from.stacks, to.stacks) {
            let (parent, frame) = self
                .tables
                .stacks
                .node(StackId(id))
                .unwrap_or((StackId::EMPTY, FrameId(0)));
            // A parent is most often one of the nodes just before.
            encode_u64(out, (id - parent.0).into());
            encode_u64(out, frame.0.into());
            if self.with_contents {
                contents.extend_from_slice(&self.contents[id as usize].0);
            }
        }
        for id in span(out, from.label_sets, to.label_sets) {
            let pairs = self.tables.label_sets.get(LabelSetId(id));
            encode_u64(out, pairs.len() as u64);
            for &(name, value) in pairs {
                encode_u64(out, name.0.into());
                encode_u64(out, value.0.into());
            }
        }
        for id in span(out, from.kinds, to.kinds) {
            let kind = &self.kinds[id as usize];
            encode_bytes(out, kind.event.as_bytes());
            encode_bytes(out, kind.unit.as_bytes());
            encode_u64(out, kind.period);
        }
        for id in span(out, from.series, to.series) {
            let series = self.series[id as usize];
            encode_u64(out, series.labels.0.into());
            encode_u64(out, series.kind.into());
        }
        for id in span(out, from.hosts, to.hosts) {
            let host = &self.hosts[id as usize];
            encode_bytes(out, host.host_id.as_bytes());
            out.extend_from_slice(&host.boot_id);
        }
        for id in span(out, from.leaves, to.leaves) {
            let (stack, end) = self.leaves[id as usize];
            encode_u64(out, stack.0.into());
            out.push(end as u8);
        }
    }

    /// Appends what was added between two versions, without contents of stacks.
    pub fn encode_logged(&self, from: DictVersion, to: DictVersion, out: &mut Vec<u8>) {
        self.encode_delta(from, to, out, &mut Vec::new());
    }

    /// Applies what [`Dict::encode_delta`] wrote.
    pub fn apply_delta(
        &mut self,
        input: &mut Reader<'_>,
        contents: &mut Reader<'_>,
    ) -> Result<(), Corrupt> {
        self.apply(input, Some(contents))
    }

    /// Applies a delta of the log, which is without contents of stacks.
    pub fn apply_logged(&mut self, input: &mut Reader<'_>) -> Result<(), Corrupt> {
        self.apply(input, None)
    }

    fn apply(
        &mut self,
        input: &mut Reader<'_>,
        contents: Option<&mut Reader<'_>>,
    ) -> Result<(), Corrupt> {
        let tables = &mut self.tables;
        each(input, tables.strings.len(), |input, new| {
            let text = input.decode_str()?;
            is(!new || tables.strings.intern(text).0 as usize + 1 == tables.strings.len())
        })?;
        each(input, tables.frames.len(), |input, new| {
            let frame = decode_frame(input, tables.strings.len())?;
            is(!new || tables.frames.intern(frame).0 as usize + 1 == tables.frames.len())
        })?;
        self.apply_stacks(input, contents)?;
        let tables = &mut self.tables;
        each(input, tables.label_sets.len(), |input, new| {
            let mut pairs = Vec::new();
            for _ in 0..input.decode_count()? {
                let pair = (StrId(input.decode_u32()?), StrId(input.decode_u32()?));
                is((pair.0.0.max(pair.1.0) as usize) < tables.strings.len())?;
                pairs.push(pair);
            }
            let sets = &mut tables.label_sets;
            is(!new || sets.intern(&mut pairs).0 as usize + 1 == sets.len())
        })?;
        each(input, self.kinds.len(), |input, new| {
            let kind = Kind {
                event: input.decode_str()?.to_owned(),
                unit: input.decode_str()?.to_owned(),
                period: input.decode_u64()?,
            };
            is(!new || self.kind(kind).map(usize::from) == Some(self.kinds.len() - 1))
        })?;
        each(input, self.series.len(), |input, new| {
            let (labels, kind) = (LabelSetId(input.decode_u32()?), input.decode_u16()?);
            is((labels.0 as usize) < self.tables.label_sets.len())?;
            is(usize::from(kind) < self.kinds.len())?;
            is(!new || self.series(labels, kind) as usize + 1 == self.series.len())
        })?;
        each(input, self.hosts.len(), |input, new| {
            let host = HostKey {
                host_id: input.decode_str()?.to_owned(),
                boot_id: input.decode_16()?,
            };
            is(!new || self.host(&host) as usize + 1 == self.hosts.len())
        })?;
        each(input, self.leaves.len(), |input, new| {
            let stack = StackId(input.decode_u32()?);
            let end = StackEnd::from_u8(input.decode_exact(1)?[0]);
            let end = end.ok_or(Corrupt("an end of a stack is not known"))?;
            is((stack.0 as usize) < self.tables.stacks.len())?;
            is(!new || self.leaf(stack, end) as usize + 1 == self.leaves.len())
        })
    }

    fn apply_stacks(
        &mut self,
        input: &mut Reader<'_>,
        mut contents: Option<&mut Reader<'_>>,
    ) -> Result<(), Corrupt> {
        let mut frames: HashMap<FrameId, ContentId> = HashMap::new();
        let known = self.tables.stacks.len();
        let (from, count) = (input.decode_u64()? as usize, input.decode_count()?);
        is(from <= known)?;
        for id in from..from + count {
            let back = input.decode_u64()? as usize;
            let frame = FrameId(input.decode_u32()?);
            is(back >= 1 && back <= id && (frame.0 as usize) < self.tables.frames.len())?;
            let parent = StackId((id - back) as u32);
            let given = match &mut contents {
                Some(contents) if self.with_contents => Some(ContentId(contents.decode_16()?)),
                _ => None,
            };
            if id < known {
                continue;
            }
            let content = given.unwrap_or_else(|| {
                if !self.with_contents {
                    return ContentId::default();
                }
                let of = |frame| ContentId::of_frame(self.tables.frame(frame));
                let parent = self.contents.get(parent.0 as usize).copied();
                parent
                    .unwrap_or_default()
                    .child(*frames.entry(frame).or_insert_with(|| of(frame)))
            });
            is(self.tables.stacks.child(parent, frame).0 as usize == id)?;
            if self.with_contents {
                self.set_content(StackId(id as u32), content);
            }
        }
        Ok(())
    }

    /// The replacement for the label set of `row` beyond the bound: the host alone.
    pub fn overflow_labels(&mut self, labels: &LabelSet) -> LabelSetId {
        let host = labels.get(key::HOST).to_owned();
        let pairs = [(key::HOST, host.as_str()), (OVERFLOW_LABEL, "true")];
        self.tables.intern_labels(pairs)
    }
}

fn is(right: bool) -> Result<(), Corrupt> {
    if right {
        Ok(())
    } else {
        Err(Corrupt(
            "an entry of the dictionary is not what follows the one before",
        ))
    }
}

/// Reads a span of entries; `entry` gets whether the entry is beyond the `known` ones.
fn each(
    input: &mut Reader<'_>,
    known: usize,
    mut entry: impl FnMut(&mut Reader<'_>, bool) -> Result<(), Corrupt>,
) -> Result<(), Corrupt> {
    let (from, count) = (input.decode_u64()? as usize, input.decode_count()?);
    is(from <= known)?;
    for id in from..from + count {
        entry(input, id >= known)?;
    }
    Ok(())
}

/// Set in the byte of a frame's kind when a system name follows its line. Frames without one, which
/// are most, are written as they were before there were any: stores of earlier collectors are read
/// as they are. An earlier collector takes a frame that has one for damage.
const HAS_SYSTEM_NAME: u8 = 0x80;

/// Set there when the first line of the function comes last. The same goes for it.
const HAS_START_LINE: u8 = 0x40;

fn encode_frame(frame: Frame, out: &mut Vec<u8>) {
    let named_twice = frame.system_name != StrId::EMPTY;
    let mut flags = if named_twice { HAS_SYSTEM_NAME } else { 0 };
    if frame.start_line != 0 {
        flags |= HAS_START_LINE;
    }
    out.extend_from_slice(&[frame.kind as u8 | flags, frame.unnamed as u8]);
    for number in [frame.function.0, frame.module.0, frame.file.0, frame.line] {
        encode_u64(out, number.into());
    }
    if named_twice {
        encode_u64(out, frame.system_name.0.into());
    }
    if frame.start_line != 0 {
        encode_u64(out, frame.start_line.into());
    }
}

fn decode_frame(input: &mut Reader<'_>, strings: usize) -> Result<Frame, Corrupt> {
    let bytes = input.decode_exact(2)?;
    let named_twice = bytes[0] & HAS_SYSTEM_NAME != 0;
    let has_start_line = bytes[0] & HAS_START_LINE != 0;
    let kind = FrameKind::from_u8(bytes[0] & !(HAS_SYSTEM_NAME | HAS_START_LINE));
    let unnamed = UnnamedReason::from_u8(bytes[1]);
    let text = |input: &mut Reader<'_>| -> Result<StrId, Corrupt> {
        let id = input.decode_u32()?;
        is((id as usize) < strings)?;
        Ok(StrId(id))
    };
    let [function, module, file] = [text(input)?, text(input)?, text(input)?];
    Ok(Frame {
        kind: kind.ok_or(Corrupt("a kind of frame is not known"))?,
        unnamed: unnamed.ok_or(Corrupt("a reason for no symbol is not known"))?,
        function,
        module,
        file,
        line: input.decode_u32()?,
        system_name: match named_twice {
            true => text(input)?,
            false => StrId::EMPTY,
        },
        start_line: match has_start_line {
            true => input.decode_u32()?,
            false => 0,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_without_a_system_name_or_first_line_are_written_as_before_there_were_any() {
        let frame = Frame {
            kind: FrameKind::Jit,
            function: StrId(1),
            module: StrId(2),
            line: 7,
            ..Frame::default()
        };
        let named_twice = Frame {
            system_name: StrId(3),
            ..frame
        };
        let started = Frame {
            start_line: 5,
            ..frame
        };
        let both = Frame {
            start_line: 5,
            ..named_twice
        };
        for (frame, expected) in [
            (frame, &[2, 0, 1, 2, 0, 7][..]),
            (named_twice, &[0x82, 0, 1, 2, 0, 7, 3]),
            (started, &[0x42, 0, 1, 2, 0, 7, 5]),
            (both, &[0xc2, 0, 1, 2, 0, 7, 3, 5]),
        ] {
            let mut bytes = Vec::new();
            encode_frame(frame, &mut bytes);
            assert_eq!(bytes, expected);
            assert_eq!(decode_frame(&mut Reader::new(&bytes), 4), Ok(frame));
        }
        let beyond = decode_frame(&mut Reader::new(&[0x82, 0, 1, 2, 0, 7, 4]), 4);
        assert!(beyond.is_err());
    }
}
