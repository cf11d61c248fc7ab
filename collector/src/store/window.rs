//! Windows of hosts as they are pushed into a store, and facts about the hosts.

use super::MissingStacks;
use crate::sync::lock;
use hashbrown::{HashMap, HashSet};
use profile::{
    ContentId, Dictionary, FrameId, Pressure, Quality, Remap, StackEnd, StackId, Throttling, Value,
};
use proto::DefinedTables;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// Wall time, half open. Unit: nanoseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TimeRange {
    /// First instant.
    pub start_unix_ns: i64,
    /// First instant after it.
    pub end_unix_ns: i64,
}

/// Time for which a host that was alive has no windows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The time.
    pub range: TimeRange,
    /// Windows that are gone; 0: not known.
    pub windows: u64,
    /// Samples that were in them; 0: not known.
    pub samples: u64,
    /// `spool_bytes`, `disk_full`, …: given up by the agent; `absent`: nothing came (yet).
    pub cause: String,
}

/// A host, or what claims to be one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostKey {
    /// Stays over reboots. At most 128 bytes.
    pub host_id: String,
    /// Differs at each boot, so two machines with one id differ in it.
    pub boot_id: [u8; 16],
}

/// Origin of a window, by which a repeat is recognized.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Origin {
    /// The host.
    pub host: HostKey,
    /// Unique for `host`.
    pub sequence: u64,
}

/// Names and values, sorted by name, no name twice, no empty value. Clones share them: each window
/// of a stream has the label sets of the one before.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct LabelSet(Arc<[(String, String)]>);

impl LabelSet {
    /// A set of these pairs; of equal names the first stays, empty values are left out.
    pub fn new(pairs: impl IntoIterator<Item = (String, String)>) -> LabelSet {
        let mut pairs: Vec<_> = pairs
            .into_iter()
            .filter(|(name, value)| !name.is_empty() && !value.is_empty())
            .collect();
        pairs.sort_by(|left, right| left.0.cmp(&right.0));
        pairs.dedup_by(|later, first| later.0 == first.0);
        LabelSet(pairs.into())
    }

    /// Where the pairs are: the same for clones.
    fn place(&self) -> usize {
        self.0.as_ptr().addr()
    }

    /// The value of a label; absent labels have the empty value.
    pub fn get(&self, name: &str) -> &str {
        self.0
            .binary_search_by(|(own, _)| own.as_str().cmp(name))
            .map_or("", |at| self.0[at].1.as_str())
    }

    /// The pairs by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

/// Samples of one label set with one stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Index in [`NewWindow::label_sets`].
    pub labels: u32,
    /// The stack.
    pub stack: ContentId,
    /// How it ended.
    pub end: StackEnd,
    /// What was counted.
    pub value: Value,
}

/// CPU time of a cgroup and all below it, as the kernel counts it. See [`profile::Account`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowAccount {
    /// Index in [`NewWindow::label_sets`].
    pub labels: u32,
    /// Unit: nanoseconds.
    pub ns: u64,
    /// The part of it that was not measured. Unit: nanoseconds.
    pub estimated_ns: u64,
    /// For how long its own CPU limit held the cgroup back; `None` if that is not known. Unit:
    /// nanoseconds.
    pub throttled_ns: Option<u64>,
    /// The limit that did; 0 if it did not, or is not known. Unit: thousandths of a core.
    pub limit_millicores: u64,
}

impl WindowAccount {
    /// How its limit held the cgroup back.
    pub fn throttling(&self) -> Throttling {
        Throttling::of(self.ns, self.throttled_ns, self.limit_millicores)
    }
}

/// One window of one host, as it is pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewWindow {
    /// Where it comes from.
    pub origin: Origin,
    /// The time it covers: at most an hour.
    pub range: TimeRange,
    /// The event that was sampled.
    pub event: String,
    /// Unit of weights.
    pub unit: String,
    /// Weight of one sample at the configured rate; 0: it varied.
    pub period: u64,
    /// What was missed on the complete host. Losses and cut stacks of single label sets are in the
    /// rows.
    pub quality: Quality,
    /// Label sets of rows and accounts, with the labels of the host (`host`, and configured ones).
    pub label_sets: Vec<LabelSet>,
    /// The samples; a (label set, stack, end) may occur more than once.
    pub rows: Vec<Row>,
    /// The kernel's accounting; empty when nothing was measured.
    pub accounts: Vec<WindowAccount>,
    /// For how long tasks of the host waited; `None` if that is not known.
    pub pressure: Option<Pressure>,
    /// Windows before this one that the agent gave up.
    pub dropped_before: Option<Gap>,
    /// The rows' stacks as their stream numbers them, when they come over one.
    pub stream: Option<StreamStacks>,
}

impl NewWindow {
    /// Samples taken and lost in it.
    pub fn counts(&self) -> (u64, u64) {
        let (mut taken, mut lost) = (0u64, 0u64);
        for row in &self.rows {
            let sum = match row.end {
                StackEnd::Lost => &mut lost,
                _ => &mut taken,
            };
            *sum = sum.saturating_add(row.value.count);
        }
        (taken, lost)
    }
}

/// Frames that come with windows. Computing contents costs more than anything else that is done
/// with frames, so they are computed once, from the frames and not from what an agent says, and
/// kept.
///
/// Some stacks have no frames here and are named by their contents: the store should know them. The
/// contents of what is called from them follow from these.
#[derive(Default)]
pub struct Defined {
    /// Strings and frames.
    dict: Dictionary,
    /// Contents by stack: of the empty one, of those that should be known, of the others.
    ids: Vec<ContentId>,
    /// By stack that should be known, the most frames that a stack has beyond it.
    reach: Vec<u16>,
    /// Caller and frame of the others, callers first.
    nodes: Vec<(StackId, FrameId)>,
    /// What was asked for; the others are their callers.
    wanted: Vec<StackId>,
}

impl Defined {
    /// Computes the contents; `None` when some of `wanted` are not there.
    pub fn new(tables: DefinedTables, wanted: &HashSet<ContentId>) -> Option<Defined> {
        let ids = tables.content_ids();
        let mut found = HashMap::with_capacity(wanted.len());
        let all = ids.iter().zip(0..);
        for (id, at) in all.filter(|(id, _)| wanted.contains(*id)) {
            found.insert(*id, StackId(at));
        }
        let nodes = tables.nodes.into_iter();
        (found.len() == wanted.len()).then(|| Defined {
            dict: tables.dict,
            ids,
            reach: tables.reach,
            nodes: nodes
                .map(|(caller, frame)| (StackId(caller), frame))
                .collect(),
            wanted: found.into_values().collect(),
        })
    }

    /// All stacks of a dictionary.
    pub fn of(dict: &Dictionary) -> Defined {
        Defined {
            dict: dict.clone(),
            ids: dict.content_ids(),
            reach: Vec::new(),
            nodes: dict
                .stacks
                .iter()
                .map(|(_, of, frame)| (of, frame))
                .collect(),
            wanted: (0..dict.stacks.len() as u32).map(StackId).collect(),
        }
    }

    /// The frames that [`Defined::node`] names.
    pub fn frames(&self) -> &Dictionary {
        &self.dict
    }

    /// The content of a stack.
    pub fn content(&self, stack: StackId) -> ContentId {
        self.ids[stack.0 as usize]
    }

    /// Stacks that should be known, and the most frames that any has beyond each.
    pub fn known(&self) -> impl Iterator<Item = (StackId, u16)> {
        let of = (1..).map(StackId);
        of.zip(self.reach.iter().copied())
    }

    /// Caller and frame of a stack; `None` of the empty one, and of those that should be known.
    pub fn node(&self, stack: StackId) -> Option<(StackId, FrameId)> {
        let at = (stack.0 as usize).checked_sub(1 + self.reach.len());
        at.map(|at| self.nodes[at])
    }

    /// What was asked for.
    pub fn wanted(&self) -> &[StackId] {
        &self.wanted
    }

    /// The stacks that were asked for of several, for an engine that does not know callers by their
    /// content: all of them have their frames then.
    pub fn dictionary(all: &[Arc<Defined>]) -> Dictionary {
        let mut target = Dictionary::default();
        for source in all {
            let mut remap = Remap::default();
            let mut here = vec![None; source.ids.len()];
            let mut path = Vec::new();
            for &stack in &source.wanted {
                let mut at = stack;
                while here[at.0 as usize].is_none()
                    && let Some((caller, frame)) = source.node(at)
                {
                    path.push((at, frame));
                    at = caller;
                }
                let mut own = here[at.0 as usize].unwrap_or(StackId::EMPTY);
                for (at, frame) in path.drain(..).rev() {
                    let frame = remap.frame(&source.dict, &mut target, frame);
                    own = target.stacks.child(own, frame);
                    here[at.0 as usize] = Some(own);
                }
            }
        }
        target
    }
}

/// Numbers of stacks that stay the same from window to window, with room for what an engine knows
/// of them: it need not find each stack of each window by its content again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamStacks {
    /// Number of each row's stack, in the order of [`NewWindow::rows`]. A number never means
    /// another content while the memo is the same.
    pub ids: Vec<u32>,
    /// Shared by all windows of the stream.
    pub memo: Arc<StackMemo>,
}

/// An engine's cache of a stream's stacks.
#[derive(Debug, Default)]
pub struct StackMemo(Mutex<Memo>);

/// See [`StackMemo`].
#[derive(Debug, Default)]
pub struct Memo {
    /// The owner of the remembered numbers.
    owner: u64,
    known: Vec<u32>,
    /// Numbers of label sets by where their pairs are. The set itself keeps that place taken.
    labels: HashMap<usize, (LabelSet, u32)>,
    /// Labels of the complete host, with their number.
    host: Option<(u32, LabelSet)>,
}

/// Most label sets that are remembered of a stream: a host has some hundreds. Beyond it all are
/// looked up once more.
const LABEL_SETS_REMEMBERED: usize = 4096;

/// A number that was not remembered.
const UNKNOWN: u32 = u32::MAX;

impl StackMemo {
    /// What `owner` remembered; what another did is forgotten. `owner` is unique in the process.
    pub fn of(&self, owner: u64) -> MutexGuard<'_, Memo> {
        let mut memo = lock(&self.0);
        if memo.owner != owner {
            memo.owner = owner;
            memo.known.clear();
            memo.forget_labels();
        }
        memo
    }

    /// Lets go of label sets, which are not used again.
    pub fn forget_labels(&self) {
        let mut memo = lock(&self.0);
        memo.forget_labels();
    }
}

impl PartialEq for StackMemo {
    /// A memo equals itself only.
    fn eq(&self, other: &StackMemo) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for StackMemo {}

impl Memo {
    /// What was remembered of a stack.
    pub fn get(&self, id: u32) -> Option<u32> {
        let known = self.known.get(id as usize).copied();
        known.filter(|&known| known != UNKNOWN)
    }

    /// What was remembered of a label set: this very one, not one that is equal.
    pub fn labels(&self, set: &LabelSet) -> Option<u32> {
        self.labels.get(&set.place()).map(|&(_, id)| id)
    }

    /// Remembers a number of a label set.
    pub fn set_labels(&mut self, set: &LabelSet, id: u32) {
        if self.labels.len() >= LABEL_SETS_REMEMBERED {
            self.labels.clear();
        }
        self.labels.insert(set.place(), (set.clone(), id));
    }

    /// The labels of the host that have this number, as they were remembered; made when they are
    /// others.
    pub fn host(&mut self, id: u32, make: impl FnOnce() -> LabelSet) -> LabelSet {
        if let Some((known, labels)) = &self.host
            && *known == id
        {
            return labels.clone();
        }
        let labels = make();
        self.host = Some((id, labels.clone()));
        labels
    }

    fn forget_labels(&mut self) {
        self.labels.clear();
        self.host = None;
    }

    /// Remembers a number of a stack.
    pub fn set(&mut self, id: u32, known: u32) {
        let at = id as usize;
        if self.known.len() <= at {
            let more = at + 1 - self.known.len();
            reserve(&mut self.known, more);
            self.known.resize(at + 1, UNKNOWN);
        }
        self.known[at] = known;
    }
}

/// Least room that is made beyond what is needed. Unit: items.
const ROOM_MIN: usize = 64;

/// Makes room for `more` items and, where that is more than there is, for an eighth more. A stream
/// has a stack for each that its host ever had, and there are thousands of streams: twice the room
/// that is used, as vectors take it, would be hundreds of MiB.
pub(crate) fn reserve<T>(items: &mut Vec<T>, more: usize) {
    if items.capacity() - items.len() < more {
        items.reserve_exact(more + (items.len() / 8).max(ROOM_MIN));
    }
}

/// What became of a pushed window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PushOutcome {
    /// It is durable.
    Stored,
    /// It was there already; nothing was added.
    Duplicate,
    /// Not taken until these stacks are defined.
    NeedStacks(MissingStacks),
    /// Not taken until these stacks are defined with all their callers: some that should be known
    /// are not. See [`WindowSink::knows_callers`](super::WindowSink::knows_callers).
    NeedCallers(MissingStacks),
    /// It will never be taken; the reason is for people.
    Rejected(String),
    /// Not taken now, unlike others of the call: it is to come again later. The reason is for
    /// people.
    Unavailable(String),
}

/// Facts about a host from its agent.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct HostFacts {
    /// As uname(2) says.
    pub hostname: String,
    /// Release of the kernel.
    pub kernel: String,
    /// As uname(2) says: `x86_64`.
    pub arch: String,
    /// CPUs that run.
    pub cpus_online: u32,
    /// Unit: bytes.
    pub memory_bytes: u64,
    /// Version of the agent.
    pub agent_version: String,
    /// Labels from the agent's configuration.
    pub labels: BTreeMap<String, String>,
    /// What waits on the agent's disk.
    pub spool_windows: u64,
    /// Unit: bytes.
    pub spool_bytes: u64,
    /// Bound of the spool. Unit: bytes.
    pub spool_bytes_max: u64,
    /// Start of the oldest window that waits; 0: none does.
    pub spool_oldest_unix_ns: i64,
    /// Windows given up since the boot.
    pub dropped_windows: u64,
    /// The agent's own health: an encoded message `HostFacts` with only its `health`. Empty: the
    /// agent reports none, as older versions. Engines store it unchanged.
    pub health: Vec<u8>,
}

impl HostFacts {
    /// Name of the host and value of its samples' label `host`; its id if it has no name.
    pub fn name<'a>(&'a self, host_id: &'a str) -> &'a str {
        match self.hostname.is_empty() {
            true => host_id,
            false => &self.hostname,
        }
    }
}

/// Stored data of a host, by [`HostKey`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRecord {
    /// The host and its boot.
    pub key: HostKey,
    /// What it said last.
    pub facts: HostFacts,
    /// On the collector's clock.
    pub first_seen_unix_ns: i64,
    /// On the collector's clock.
    pub last_seen_unix_ns: i64,
    /// By how much its clock was ahead of the collector's, last time.
    pub clock_ahead_ns: i64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use profile::FrameRef;
    use proto::collector::Need;
    use proto::{Definer, TableAssembler};

    #[test]
    fn a_memo_of_label_sets_is_bounded_and_knows_no_other_set() {
        let memo = StackMemo::default();
        let mut memo = memo.of(1);
        let set = |value: usize| LabelSet::new([("comm".to_owned(), value.to_string())]);
        let sets: Vec<LabelSet> = (0..3 * LABEL_SETS_REMEMBERED).map(set).collect();
        for (set, id) in sets.iter().zip(0..) {
            assert_eq!(memo.labels(set), None);
            memo.set_labels(set, id);
            assert_eq!(memo.labels(&set.clone()), Some(id));
            assert!(memo.labels.len() <= LABEL_SETS_REMEMBERED);
        }
    }

    #[test]
    fn what_one_owner_remembers_is_nothing_to_another() {
        let memo = StackMemo::default();
        let set = LabelSet::new([("comm".to_owned(), "web".to_owned())]);
        let known = |owner| {
            let memo = memo.of(owner);
            (memo.get(7), memo.labels(&set))
        };
        memo.of(1).set(7, 70);
        memo.of(1).set_labels(&set, 71);
        assert_eq!(known(1), (Some(70), Some(71)));
        assert_eq!(known(2), (None, None));
        assert_eq!(known(1), (None, None));
    }

    fn sampled() -> (Dictionary, StackId, StackId) {
        let mut dict = Dictionary::default();
        let frames = ["main", "work", "read", "idle"].map(|function| {
            dict.intern_frame(FrameRef {
                function,
                ..FrameRef::default()
            })
        });
        let [main, work, read, idle] = frames;
        let deep = dict.stacks.intern([main, work, read]);
        let beside = dict.stacks.intern([main, idle]);
        (dict, deep, beside)
    }

    /// What comes for `asked`, when windows with `stored` were stored before.
    fn sent(dict: &Dictionary, stored: &[StackId], asked: &[StackId]) -> DefinedTables {
        let mut definer = Definer::new(true);
        definer.sent(1, stored.iter().copied());
        definer.answered(dict, 1, true);
        let ids = dict.content_ids();
        let content = |stack: StackId| ids[stack.0 as usize];
        let messages = definer.define(dict, content, &Need::default(), asked, 64);
        let mut tables = TableAssembler::new(1 << 20, true);
        for message in messages {
            tables.push(&message).unwrap();
        }
        tables.finish().unwrap()
    }

    #[test]
    fn stacks_have_the_same_contents_with_callers_as_with_a_known_one() {
        let (dict, deep, beside) = sampled();
        let ids = dict.content_ids();
        let wanted: HashSet<ContentId> = [ids[deep.0 as usize]].into();
        for (stored, nodes) in [(&[][..], 3), (&[beside], 2), (&[deep], 0)] {
            let tables = sent(&dict, stored, &[deep]);
            assert_eq!(tables.nodes.len(), nodes);
            let defined = Defined::new(tables, &wanted).unwrap();
            let [found] = defined.wanted() else {
                panic!("{:?}", defined.wanted());
            };
            assert_eq!(defined.content(*found), ids[deep.0 as usize]);
        }
        assert!(Defined::new(sent(&dict, &[], &[beside]), &wanted).is_none());
    }

    #[test]
    fn only_what_was_asked_for_goes_to_engines_that_know_no_callers() {
        let (dict, deep, beside) = sampled();
        let ids = dict.content_ids();
        let wanted: HashSet<ContentId> = [ids[beside.0 as usize]].into();
        let all = sent(&dict, &[], &[deep, beside]);
        let defined = Arc::new(Defined::new(all, &wanted).unwrap());
        let found = Defined::dictionary(&[defined.clone(), defined]);
        assert_eq!(found.stacks.len(), 3);
        assert!(found.content_ids().contains(&ids[beside.0 as usize]));
        assert_eq!(Defined::of(&dict).wanted().len(), dict.stacks.len());
    }
}
