//! Prepares a pushed window for the log: checks it, and looks up or adds dense ids.

use super::block::{Entry, Sum};
use super::catalog::Catalog;
use super::defined::{Definitions, Settled};
use super::dict::{Adopted, Dict, Kind, NONE};
use super::memtable::{Prepared, WindowRows};
use super::meta::{Account, WindowMeta};
use super::order::order_by;
use super::partition::Partition;
use crate::store::admission::{
    self, Below, TimeBounds, accounted_below, host_labels, is_host_label,
};
use crate::store::{
    LabelSet, NewWindow, PushOutcome, Row, StoreError, StreamStacks, WindowAccount,
};
use crate::sync::{lock, read, write};
use hashbrown::HashSet;
use profile::{LabelSetId, StackEnd, StackId};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, RwLock};

/// Number of other partitions searched for a stack before the agent is asked.
const NEIGHBOURS: usize = 2;

/// Why a window is never taken, or `None`.
pub fn rejection(catalog: &Catalog, window: &NewWindow, now_unix_ns: i64) -> Option<String> {
    let bounds = TimeBounds {
        future_ns: catalog.options.future_ns,
        age_ns: catalog.options.taken_ns(),
    };
    let reason = admission::rejection(window, bounds, now_unix_ns);
    let evicted_before = catalog.evicted_before.load(Ordering::Relaxed);
    if reason.is_none() && window.range.start_unix_ns < evicted_before {
        let reason = "it is older than what the disk budget of the collector \
                      (`retention.disk_gib`) has room for";
        return Some(reason.to_owned());
    }
    reason
}

/// Label sets of a window in the dictionary.
struct Labels {
    /// By index in the window.
    ids: Vec<LabelSetId>,
    /// Labels of the complete host.
    host: LabelSet,
    host_id: LabelSetId,
}

/// Looks label sets up, or adds them. Those that the stream brought before are remembered with it.
fn labels(catalog: &Catalog, dict: &mut Dict, window: &NewWindow) -> Labels {
    let mut ids = Vec::with_capacity(window.label_sets.len());
    let mut memo = window
        .stream
        .as_ref()
        .map(|stream| stream.memo.of(dict.identity()));
    let mut all_exact = true;
    for set in &window.label_sets {
        if let Some(known) = memo.as_ref().and_then(|memo| memo.labels(set)) {
            ids.push(LabelSetId(known));
            continue;
        }
        let (id, is_exact) = bounded_labels(catalog, dict, set);
        if let Some(memo) = &mut memo
            && is_exact
        {
            memo.set_labels(set, id.0);
        }
        all_exact &= is_exact;
        ids.push(id);
    }
    let Some(memo) = memo.as_mut().filter(|_| all_exact) else {
        let host = host_labels(window);
        let host_id = dict.labels(&host);
        return Labels { ids, host, host_id };
    };
    // As `host_labels` does, by ids.
    let tables = &mut dict.tables;
    let mut shared = match ids.first() {
        Some(&first) => tables.label_sets.get(first).to_vec(),
        None => Vec::new(),
    };
    shared.retain(|pair| is_host_label(tables.strings.get(pair.0)));
    for &other in ids.iter().skip(1) {
        let other = tables.label_sets.get(other);
        shared.retain(|pair| other.contains(pair));
    }
    let host_id = tables.label_sets.intern(&mut shared);
    let host = memo.host(host_id.0, || {
        let text = |id| tables.strings.get(id).to_owned();
        let pairs = shared.iter();
        LabelSet::new(pairs.map(|&(name, value)| (text(name), text(value))))
    });
    Labels { ids, host, host_id }
}

/// A window with what its host is called.
pub struct Ready {
    /// Dense ids.
    pub window: Prepared,
    /// Labels of the host.
    pub host_labels: LabelSet,
}

/// Assigns a window dense ids of its partition. `Err(taken)` if it is not accepted.
pub fn prepare(
    catalog: &Catalog,
    partition: &Partition,
    window: &NewWindow,
    definitions: &mut Definitions<'_>,
) -> Result<Result<Ready, PushOutcome>, StoreError> {
    let dict = partition
        .dict(true)
        .map_err(|error| catalog.file_error("read a dictionary", partition, error))?;
    let mut known = known_stacks(&read(&dict), window);
    // Most windows have no stack that their host had not before.
    let has_unknown = known.contains(&Stack::Unknown);
    if has_unknown {
        let missing = find_missing(catalog, partition, &dict, window, definitions, &mut known);
        if let Some(missing) = missing {
            return Ok(Err(missing));
        }
    }
    let mut dict = write(&dict);
    let kind = dict.kind(Kind {
        event: window.event.clone(),
        unit: window.unit.clone(),
        period: window.period,
    });
    let Some(kind) = kind else {
        let reason = "too many events, units or periods within a few hours";
        return Ok(Err(PushOutcome::Rejected(reason.to_owned())));
    };
    if has_unknown {
        adopt_defined(catalog, &mut dict, window, definitions, &mut known);
    }
    let labels = labels(catalog, &mut dict, window);
    let rows = entries(&mut dict, window, &labels.ids, &known, kind);
    let (chunk, start) = partition.chunk_of(window.range.start_unix_ns);
    let has_lost = window.rows.iter().any(|row| row.end == StackEnd::Lost);
    let parts = pack(&dict, &rows, window.period, has_lost);
    let window = Prepared {
        chunk,
        start,
        meta: meta(&mut dict, window, &labels),
        parts,
    };
    Ok(Ok(Ready {
        window,
        host_labels: labels.host,
    }))
}

/// Rows with dense ids, in the order they came.
fn entries(
    dict: &mut Dict,
    window: &NewWindow,
    labels: &[LabelSetId],
    known: &[Stack],
    kind: u16,
) -> Vec<Entry> {
    let mut series = vec![NONE; labels.len()];
    let mut rows = Vec::with_capacity(window.rows.len());
    let mut stream = of_stream(window).map(|stream| (stream, stream.memo.of(dict.identity())));
    for ((at_row, row), known) in window.rows.iter().enumerate().zip(known) {
        let at = row.labels as usize;
        if series[at] == NONE {
            series[at] = dict.series(labels[at], kind);
        }
        let leaf = match *known {
            Stack::Leaf(leaf) => leaf,
            Stack::Node(stack) => {
                let leaf = dict.leaf(stack, row.end);
                // Not what stands for it where the dictionary is full.
                if let Some((stream, memo)) = &mut stream
                    && row.end == StackEnd::Complete
                    && dict.is_called(stack, row.stack)
                {
                    memo.set(stream.ids[at_row], leaf);
                }
                leaf
            }
            // Not after definitions were adopted.
            Stack::Unknown => dict.leaf(StackId::EMPTY, row.end),
        };
        rows.push(Entry {
            series: series[at],
            leaf,
            value: row.value,
        });
    }
    rows
}

/// The metadata of the window besides its rows.
fn meta(dict: &mut Dict, window: &NewWindow, labels: &Labels) -> WindowMeta {
    let mut label_sets: Vec<u32> = labels.ids.iter().map(|labels| labels.0).collect();
    label_sets.sort_unstable();
    label_sets.dedup();
    let mut sum = Sum::default();
    for row in &window.rows {
        let part = if row.end == StackEnd::Lost {
            &mut sum.lost
        } else {
            &mut sum.taken
        };
        *part += row.value;
    }
    WindowMeta {
        host: dict.host(&window.origin.host),
        sequence: window.origin.sequence,
        range: window.range,
        host_labels: labels.host_id.0,
        quality: window.quality,
        pressure: window.pressure,
        sum,
        accounts: accounts(window, &labels.ids),
        label_sets,
        dropped: window.dropped_before.clone(),
    }
}

/// State of a row's stack.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stack {
    Unknown,
    /// It is in the dictionary.
    Node(StackId),
    /// With its end it was in a row before.
    Leaf(u32),
}

/// How the stream of a window numbers the stacks of its rows.
fn of_stream(window: &NewWindow) -> Option<&StreamStacks> {
    let stream = window.stream.as_ref();
    stream.filter(|stream| stream.ids.len() == window.rows.len())
}

/// What is known of the stacks of a window, by row.
fn known_stacks(dict: &Dict, window: &NewWindow) -> Vec<Stack> {
    let find = |row: &Row| {
        dict.find_named(row.stack)
            .map_or(Stack::Unknown, Stack::Node)
    };
    let rows = &window.rows;
    let Some(stream) = of_stream(window) else {
        return rows.iter().map(find).collect();
    };
    let mut memo = stream.memo.of(dict.identity());
    // In a loop of its own: see where the decoder looks stacks up.
    let leaves: Vec<Option<u32>> = stream.ids.iter().map(|&id| memo.get(id)).collect();
    let mut known = Vec::with_capacity(rows.len());
    for ((row, &id), leaf) in rows.iter().zip(&stream.ids).zip(leaves) {
        // Other ends are rare; a number of the stream stands for one leaf.
        if row.end != StackEnd::Complete {
            known.push(find(row));
            continue;
        }
        if let Some(leaf) = leaf {
            known.push(Stack::Leaf(leaf));
            continue;
        }
        known.push(match dict.find_leaf(row.stack) {
            None => Stack::Unknown,
            Some((stack, None)) => Stack::Node(stack),
            Some((_, Some(leaf))) => {
                memo.set(id, leaf);
                Stack::Leaf(leaf)
            }
        });
    }
    known
}

/// Why a window cannot be taken yet: stacks that nobody knows, each once. Those that a neighbouring
/// partition has are copied from there.
fn find_missing(
    catalog: &Catalog,
    partition: &Partition,
    dict: &RwLock<Dict>,
    window: &NewWindow,
    definitions: &mut Definitions<'_>,
    stacks: &mut [Stack],
) -> Option<PushOutcome> {
    let neighbours = neighbours(catalog, partition);
    let mut open: Vec<usize> = Vec::new();
    let mut lacks_callers = false;
    {
        let mut target = write(dict);
        let is_full = is_full(catalog, &target);
        for (at, row) in window.rows.iter().enumerate() {
            if stacks[at] == Stack::Unknown {
                match definitions.settle(row.stack, &mut target, &neighbours, is_full) {
                    Settled::Usable => {}
                    Settled::Absent => open.push(at),
                    Settled::LacksCallers => {
                        lacks_callers = true;
                        open.push(at);
                    }
                }
            }
        }
    }
    for neighbour in neighbours {
        if open.is_empty() {
            break;
        }
        let source = read(&neighbour);
        let mut target = write(dict);
        let mut adopted = Adopted::default();
        open.retain(|&at| {
            let content = window.rows[at].stack;
            if let Some(own) = target.find_named(content) {
                stacks[at] = Stack::Node(own);
            } else if let Some(stack) = source.find_named(content) {
                stacks[at] = Stack::Node(if is_full(catalog, &target) {
                    catalog.counters.stacks_folded.inc();
                    target.other_stack()
                } else {
                    target.adopt_from(&source, &mut adopted, stack)
                });
            }
            stacks[at] == Stack::Unknown
        });
    }
    if open.is_empty() {
        return None;
    }
    // Also what only another window of the push defines: that one may be stored or not, and need
    // not come again with this one.
    let unknown = (0..window.rows.len()).filter(|&at| stacks[at] == Stack::Unknown);
    let mut named = HashSet::new();
    let unknown = unknown.map(|at| window.rows[at].stack);
    let missing = unknown.filter(|&stack| named.insert(stack)).collect();
    Some(match lacks_callers {
        true => PushOutcome::NeedCallers(missing),
        false => PushOutcome::NeedStacks(missing),
    })
}

/// Dictionaries of the partitions used last that can be searched by content.
fn neighbours(catalog: &Catalog, partition: &Partition) -> Vec<Arc<RwLock<Dict>>> {
    let mut found: Vec<_> = read(&catalog.partitions)
        .values()
        .filter(|other| other.start != partition.start)
        .filter_map(|other| {
            let dict = other.dict_in_memory()?;
            let used = other.used.load(Ordering::Relaxed);
            let searchable = read(&dict).with_contents();
            searchable.then_some((used, dict))
        })
        .collect();
    found.sort_by_key(|(used, _)| std::cmp::Reverse(*used));
    found.truncate(NEIGHBOURS);
    found.into_iter().map(|(_, dict)| dict).collect()
}

fn is_full(catalog: &Catalog, dict: &Dict) -> bool {
    dict.stored_bytes() > catalog.options.partition_dictionary_bytes
}

fn adopt_defined(
    catalog: &Catalog,
    dict: &mut Dict,
    window: &NewWindow,
    definitions: &mut Definitions<'_>,
    stacks: &mut [Stack],
) {
    let mut full = is_full(catalog, dict);
    let mut since_asked = 0;
    for (row, slot) in window.rows.iter().zip(stacks) {
        if *slot != Stack::Unknown {
            continue;
        }
        since_asked += 1;
        if since_asked == 256 {
            since_asked = 0;
            full = is_full(catalog, dict);
        }
        let own = match full {
            true => None,
            false => definitions.adopt(row.stack, dict),
        };
        let own = own.or_else(|| dict.find_named(row.stack));
        *slot = Stack::Node(own.unwrap_or_else(|| {
            catalog.counters.stacks_folded.inc();
            dict.other_stack()
        }));
    }
}

/// The label set, or what stands for it beyond the bound; whether it is the set itself.
fn bounded_labels(catalog: &Catalog, dict: &mut Dict, set: &LabelSet) -> (LabelSetId, bool) {
    let full =
        dict.tables.label_sets.len() >= catalog.options.label_sets.max(1) || is_full(catalog, dict);
    if !full {
        return (dict.labels(set), true);
    }
    if let Some(known) = dict.find_labels(set) {
        return (known, true);
    }
    catalog.counters.label_sets_folded.inc();
    (dict.overflow_labels(set), false)
}

/// Rows by group, each (series, leaf) once. `has_lost` says that some are of samples that were
/// lost: mostly none is, and the ends of stacks need not be looked at.
fn pack(dict: &Dict, rows: &[Entry], period: u64, has_lost: bool) -> Vec<WindowRows> {
    // Rows of a label set come one after the other: it is runs of one series that are put in order,
    // and the leaves within each series.
    let mut runs: Vec<Run<'_>> = rows
        .chunk_by(|left, right| left.series == right.series)
        .map(|rows| Run {
            group: dict.series[rows[0].series as usize].group,
            series: rows[0].series,
            rows,
        })
        .collect();
    runs.sort_unstable_by_key(|run| (run.group, run.series));
    let is_lost = |leaf: u32| has_lost && dict.leaves[leaf as usize].1 == StackEnd::Lost;
    let mut entries: Vec<Entry> = Vec::with_capacity(rows.len());
    let mut spare = Vec::new();
    let mut parts = Vec::new();
    for of_group in runs.chunk_by(|left, right| left.group == right.group) {
        entries.clear();
        for of_series in of_group.chunk_by(|left, right| left.series == right.series) {
            let start = entries.len();
            for run in of_series {
                entries.extend_from_slice(run.rows);
            }
            order_by(&mut entries[start..], &mut spare, 0, |row| row.leaf.into());
        }
        entries.dedup_by(|later, first| {
            let same = (later.series, later.leaf) == (first.series, first.leaf);
            if same {
                first.value += later.value;
            }
            same
        });
        parts.push(WindowRows::new(
            of_group[0].group,
            &entries,
            period,
            is_lost,
        ));
    }
    parts
}

/// Neighbouring rows of one series.
struct Run<'r> {
    group: u32,
    series: u32,
    rows: &'r [Entry],
}

/// Accounts with what the nearest accounted cgroups below each have. Without any: what was taken.
fn accounts(window: &NewWindow, labels: &[LabelSetId]) -> Vec<(u32, Account)> {
    if window.accounts.is_empty() {
        let mut by_set = vec![0u64; labels.len()];
        let rows = window.rows.iter();
        for row in rows.filter(|row| row.end != StackEnd::Lost) {
            let sum = &mut by_set[row.labels as usize];
            *sum = sum.saturating_add(row.value.weight);
        }
        let mut taken: BTreeMap<u32, u64> = BTreeMap::new();
        for (labels, ns) in labels.iter().zip(by_set).filter(|&(_, ns)| ns > 0) {
            let sum = taken.entry(labels.0).or_default();
            *sum = sum.saturating_add(ns);
        }
        let of_taken = |(labels, ns)| (labels, Account::unmeasured(ns));
        return taken.into_iter().map(of_taken).collect();
    }
    let of_account = |(account, below): (&WindowAccount, Below)| Account {
        ns: account.ns.into(),
        estimated_ns: account.estimated_ns.into(),
        below_ns: below.ns,
        below_estimated_ns: below.estimated_ns,
        throttling: account.throttling(),
    };
    let accounts = window.accounts.iter().zip(accounted_below(window));
    let accounts = accounts.map(|of| (labels[of.0.labels as usize].0, of_account(of)));
    accounts.collect()
}

/// Room for what a record has besides the rows of its window. Unit: bytes. With less, growing it
/// only costs time.
const RECORD_ROOM: usize = 4096;

/// Adds to a record what the window's ids need that neither an earlier record nor the log's own
/// copy of the dictionary has: what can be read back whatever becomes of the partition's file.
pub fn encode_record(partition: &Partition, dict: &Dict, window: &Prepared, out: &mut Vec<u8>) {
    out.reserve(window.bytes() + RECORD_ROOM);
    let mut logged = lock(&partition.log.logged);
    let version = dict.version();
    let mut entries = Vec::new();
    dict.encode_logged(*logged, version, &mut entries);
    super::codec::encode_bytes(out, &entries);
    window.encode(out);
    *logged = version;
}
