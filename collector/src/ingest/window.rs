//! From the parts of an agent's stream to windows of the store.
//!
//! A [`Decoder`] has what a stream carries from window to window: label sets and stacks by id. Faults of
//! the protocol are a [`Fault`] and end the stream; a window that is well formed but cannot be kept is
//! [`Decoded::Refused`], so that its agent gives up that window and not all after it.

use super::limits::{
    CPUS_MAX, FACT_BYTES_MAX, HOST_LABELS_MAX, LABEL_NAME_BYTES_MAX, LABEL_SETS_PER_STREAM_MAX,
    LABEL_SETS_PER_WINDOW_MAX, LABEL_VALUE_BYTES_MAX, LABELS_PER_SET_MAX, ROWS_PER_WINDOW_MAX,
    STACKS_PER_STREAM_MAX, WINDOW_NS_MAX,
};
use super::memory::Held;
use crate::metrics::Metrics;
use crate::store::{
    Gap, HostFacts, HostKey, LabelSet, NewWindow, Origin, Row, StackMemo, StreamStacks, TimeRange,
    WindowAccount,
};
use profile::{ContentId, StackEnd, Value, key};
use proto::collector as wire;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// The agent breaks the protocol; its stream ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Columns that belong together differ in length.
    #[error("columns of `{table}` differ in length")]
    Columns {
        /// Which.
        table: &'static str,
    },
    /// An id or number that was never given a meaning.
    #[error("`{table}` has no row `{id}`")]
    Id {
        /// Which table.
        table: &'static str,
        /// The id.
        id: u32,
    },
    /// Names and values do not come in pairs.
    #[error("a label set has a name without a value")]
    OddLabels,
    /// Hashes are not whole.
    #[error("`stack_hashes` has `{bytes}` bytes, which is no multiple of 16")]
    TornHash {
        /// How many there are.
        bytes: usize,
    },
    /// The dictionary of the stream is full.
    #[error("the dictionary has more than `{limit}` {what}: begin a new one")]
    DictionaryFull {
        /// `label sets` or `stacks`.
        what: &'static str,
        /// The bound.
        limit: usize,
    },
    /// A part of another window before the last part of the one before.
    #[error("window `{found}` begins before the last part of window `{open}`")]
    Interleaved {
        /// The window that is not finished.
        open: u64,
        /// The one that came.
        found: u64,
    },
    /// `new_dictionary` within a window.
    #[error("window `{sequence}` begins a new dictionary after its first part")]
    LateDictionary {
        /// The window.
        sequence: u64,
    },
    /// Facts in another part than the last, or none in the last.
    #[error("window `{sequence}` must have facts in its last part, and there only")]
    Facts {
        /// The window.
        sequence: u64,
    },
}

/// What a part made of its window.
pub enum Decoded {
    /// More parts follow.
    More,
    /// It is whole.
    Whole(Box<Pending>),
    /// It will never be taken.
    Refused {
        /// The window.
        sequence: u64,
        /// Why, for people.
        reason: String,
    },
}

/// A window on its way to the store.
pub struct Pending {
    /// The window.
    pub window: NewWindow,
    /// Times that its stacks were asked for.
    pub needs: u32,
    /// All stacks that were asked for: a store may know some of them only from windows beside which
    /// this one came, so a second question must not forget the first.
    pub asked: HashSet<ContentId>,
    /// It goes to the store with frames.
    pub defines: bool,
    /// The memory it holds.
    pub held: Held,
}

/// Label sets and stacks of a stream, by id.
#[derive(Default)]
struct Tables {
    /// As the agent sent them. Id 0, the empty set, is row 0.
    own: Vec<LabelSet>,
    /// With the labels of the host; emptied when these change.
    merged: Vec<Option<LabelSet>>,
    /// Id 0, the empty stack, is row 0.
    stacks: Vec<ContentId>,
    /// What the store remembers of `stacks`.
    memo: Arc<StackMemo>,
    held: Held,
}

/// Rows whose weight is their count times the period, which the last part tells.
type Unweighted = Range<usize>;

struct Open {
    sequence: u64,
    label_sets: Vec<LabelSet>,
    /// From the stream's id to the index in `label_sets`.
    index: HashMap<u32, u32>,
    rows: Vec<Row>,
    stack_ids: Vec<u32>,
    unweighted: Vec<Unweighted>,
    held: Held,
    /// Why it will be refused. Its parts are checked no further than the dictionary needs.
    refused: Option<String>,
}

/// Puts windows together from the parts of one stream.
pub struct Decoder {
    host: HostKey,
    /// `host` first: see [`Decoder::set_facts`].
    host_name: String,
    host_labels: Vec<(String, String)>,
    tables: Tables,
    open: Option<Open>,
    metrics: Arc<Metrics>,
}

impl Decoder {
    /// A decoder for the windows of `host`.
    pub fn new(host: HostKey, facts: &HostFacts, metrics: Arc<Metrics>) -> Decoder {
        let mut decoder = Decoder {
            host,
            host_name: String::new(),
            host_labels: Vec::new(),
            tables: Tables::new(),
            open: None,
            metrics,
        };
        decoder.set_facts(facts);
        decoder
    }

    /// Labels of the host that all label sets get from now on: `host`, which nothing an agent sends can
    /// replace, and those configured, which give way to labels of the samples.
    pub fn set_facts(&mut self, facts: &HostFacts) {
        self.host_name = match facts.hostname.is_empty() {
            true => self.host.host_id.clone(),
            false => facts.hostname.clone(),
        };
        let labels = facts.labels.iter();
        self.host_labels = labels.map(|(k, v)| (k.clone(), v.clone())).collect();
        self.tables.merged.fill(None);
    }

    /// What the labels of the host add to each label set. Unit: bytes.
    pub fn host_bytes(&self) -> usize {
        let configured = self.host_labels.iter();
        let text: usize = configured
            .map(|(name, value)| name.len() + value.len())
            .sum();
        let pairs = self.host_labels.len() + 1;
        text + self.host_name.len() + pairs * 2 * size_of::<String>()
    }

    /// The window of which parts are missing.
    pub fn unfinished(&self) -> Option<u64> {
        self.open.as_ref().map(|open| open.sequence)
    }

    /// Takes a part. `held` is the memory that [`cost`] says it will hold.
    ///
    /// # Errors
    /// When the agent breaks the protocol; the stream cannot go on.
    pub fn part(&mut self, part: wire::WindowPart, held: Cost<Held>) -> Result<Decoded, Fault> {
        let sequence = part.sequence;
        if let Some(open) = &self.open {
            let found = sequence;
            if open.sequence != found {
                let open = open.sequence;
                return Err(Fault::Interleaved { open, found });
            }
            if part.new_dictionary {
                return Err(Fault::LateDictionary { sequence });
            }
        }
        if part.last != part.facts.is_some() {
            return Err(Fault::Facts { sequence });
        }
        if part.new_dictionary {
            self.tables = Tables::new();
        }
        self.define(&part, held.tables)?;
        let mut open = self.open.take().unwrap_or_else(|| Open::new(sequence));
        open.held.join(held.rows);
        self.rows(&mut open, &part)?;
        let Some(facts) = part.facts else {
            self.open = Some(open);
            return Ok(Decoded::More);
        };
        self.accounts(open, facts)
    }

    /// Takes new label sets and stacks into the tables.
    fn define(&mut self, part: &wire::WindowPart, held: Held) -> Result<(), Fault> {
        let tables = &mut self.tables;
        if tables.own.len() + part.label_sets.len() > LABEL_SETS_PER_STREAM_MAX {
            let (what, limit) = ("label sets", LABEL_SETS_PER_STREAM_MAX);
            return Err(Fault::DictionaryFull { what, limit });
        }
        let (hashes, torn) = part.stack_hashes.as_chunks::<16>();
        if !torn.is_empty() {
            let bytes = part.stack_hashes.len();
            return Err(Fault::TornHash { bytes });
        }
        if tables.stacks.len() + hashes.len() > STACKS_PER_STREAM_MAX {
            let (what, limit) = ("stacks", STACKS_PER_STREAM_MAX);
            return Err(Fault::DictionaryFull { what, limit });
        }
        for labels in &part.label_sets {
            let set = own_labels(&labels.names_values, &self.metrics)?;
            tables.own.push(set);
            tables.merged.push(None);
        }
        let hashes = hashes.iter().map(|&hash| ContentId(hash));
        tables.stacks.extend(hashes);
        tables.held.join(held);
        Ok(())
    }

    fn rows(&mut self, open: &mut Open, part: &wire::WindowPart) -> Result<(), Fault> {
        let rows = part.sample_stacks.len();
        let absent_or = |length: usize| length == 0 || length == rows;
        if part.sample_label_sets.len() != rows
            || part.sample_counts.len() != rows
            || !absent_or(part.sample_ends.len())
            || !absent_or(part.sample_weights.len())
        {
            return Err(Fault::Columns { table: "samples" });
        }
        if open.rows.len() + rows > ROWS_PER_WINDOW_MAX {
            open.refuse(format!(
                "it has more than {ROWS_PER_WINDOW_MAX} rows of samples"
            ));
        }
        let begin = open.rows.len();
        if open.refused.is_none() {
            open.rows.reserve(rows);
            open.stack_ids.reserve(rows);
        }
        // Rows of a label set come one after the other.
        let mut run: Option<(u32, u32)> = None;
        for at in 0..rows {
            let set = part.sample_label_sets[at];
            let id = part.sample_stacks[at];
            let stack = self.tables.stack(id)?;
            let end = match part.sample_ends.get(at) {
                None => StackEnd::Complete,
                Some(&id) => {
                    u8::try_from(id)
                        .ok()
                        .and_then(StackEnd::from_u8)
                        .ok_or(Fault::Id {
                            table: "stack ends",
                            id,
                        })?
                }
            };
            let value = Value {
                count: part.sample_counts[at],
                weight: part.sample_weights.get(at).copied().unwrap_or(0),
            };
            let labels = match run {
                Some((own, labels)) if own == set => labels,
                _ => self.window_labels(open, set)?,
            };
            run = Some((set, labels));
            if open.refused.is_none() && (value.count > 0 || value.weight > 0) {
                open.rows.push(Row {
                    labels,
                    stack,
                    end,
                    value,
                });
                open.stack_ids.push(id);
            }
        }
        if part.sample_weights.is_empty() && open.rows.len() > begin {
            open.unweighted.push(begin..open.rows.len());
        }
        Ok(())
    }

    /// The index in the window of the stream's label set `id`.
    fn window_labels(&mut self, open: &mut Open, id: u32) -> Result<u32, Fault> {
        if let Some(&known) = open.index.get(&id) {
            return Ok(known);
        }
        let Some(merged) = self.tables.merged.get_mut(id as usize) else {
            let table = "label sets";
            return Err(Fault::Id { table, id });
        };
        let own = &self.tables.own[id as usize];
        let set = merged.get_or_insert_with(|| {
            let host = std::iter::once((key::HOST.to_owned(), self.host_name.clone()));
            let own = own.iter().map(|(k, v)| (k.to_owned(), v.to_owned()));
            // Of equal names the first stays.
            LabelSet::new(host.chain(own).chain(self.host_labels.iter().cloned()))
        });
        if open.label_sets.len() >= LABEL_SETS_PER_WINDOW_MAX {
            open.refuse(format!(
                "it has more than {LABEL_SETS_PER_WINDOW_MAX} label sets"
            ));
            return Ok(0);
        }
        let index = open.label_sets.len() as u32;
        open.label_sets.push(set.clone());
        open.index.insert(id, index);
        Ok(index)
    }

    /// Takes the accounts and ends the window.
    fn accounts(&mut self, mut open: Open, facts: wire::WindowFacts) -> Result<Decoded, Fault> {
        let accounts = facts.account_label_sets.len();
        if facts.account_ns.len() != accounts || facts.account_estimated_ns.len() != accounts {
            return Err(Fault::Columns { table: "accounts" });
        }
        let mut list = Vec::with_capacity(accounts.min(LABEL_SETS_PER_WINDOW_MAX));
        for at in 0..accounts {
            let labels = self.window_labels(&mut open, facts.account_label_sets[at])?;
            if open.refused.is_none() {
                list.push(WindowAccount {
                    labels,
                    ns: facts.account_ns[at],
                    estimated_ns: facts.account_estimated_ns[at].min(facts.account_ns[at]),
                });
            }
        }
        let sequence = open.sequence;
        let finished = open.refused.take().map_or_else(|| range(&facts), Err);
        let range = match finished {
            Ok(range) => range,
            Err(reason) => return Ok(Decoded::Refused { sequence, reason }),
        };
        if facts.period == 0 && !open.unweighted.is_empty() {
            let reason = "its samples have neither weights nor a period".to_owned();
            return Ok(Decoded::Refused { sequence, reason });
        }
        for row in open.unweighted.drain(..).flatten() {
            let value = &mut open.rows[row].value;
            value.weight = value.count.saturating_mul(facts.period);
        }
        if let Err(reason) = plausible(&facts, &open.rows) {
            return Ok(Decoded::Refused { sequence, reason });
        }
        let origin = Origin {
            host: self.host.clone(),
            sequence,
        };
        let window = NewWindow {
            origin,
            range,
            event: text(&facts.event, FACT_BYTES_MAX),
            unit: text(&facts.unit, FACT_BYTES_MAX),
            period: facts.period,
            quality: facts.quality.unwrap_or_default().into(),
            label_sets: open.label_sets,
            rows: open.rows,
            accounts: list,
            dropped_before: facts.dropped_before.and_then(|gap| self.gap(gap)),
            stream: Some(StreamStacks {
                ids: open.stack_ids,
                memo: self.tables.memo.clone(),
            }),
        };
        Ok(Decoded::Whole(Box::new(Pending {
            window,
            needs: 0,
            asked: HashSet::new(),
            defines: false,
            held: open.held,
        })))
    }

    fn gap(&self, gap: wire::Gap) -> Option<Gap> {
        if gap.end_unix_ns < gap.start_unix_ns || gap.start_unix_ns < 0 {
            self.metrics.gaps_malformed.inc();
            return None;
        }
        Some(Gap {
            range: TimeRange {
                start_unix_ns: gap.start_unix_ns,
                end_unix_ns: gap.end_unix_ns,
            },
            windows: gap.windows,
            samples: gap.samples,
            cause: text(&gap.cause, FACT_BYTES_MAX),
        })
    }
}

impl Tables {
    fn new() -> Tables {
        Tables {
            own: vec![LabelSet::default()],
            merged: vec![None],
            stacks: vec![ContentId::default()],
            memo: Arc::default(),
            held: Held::default(),
        }
    }

    fn stack(&self, id: u32) -> Result<ContentId, Fault> {
        let table = "stacks";
        let found = self.stacks.get(id as usize).copied();
        found.ok_or(Fault::Id { table, id })
    }
}

impl Open {
    fn new(sequence: u64) -> Open {
        Open {
            sequence,
            label_sets: Vec::new(),
            index: HashMap::new(),
            rows: Vec::new(),
            stack_ids: Vec::new(),
            unweighted: Vec::new(),
            held: Held::default(),
            refused: None,
        }
    }

    /// Gives up what came of it; its other parts are read for the dictionary alone.
    fn refuse(&mut self, reason: String) {
        self.refused.get_or_insert(reason);
        self.rows = Vec::new();
        self.stack_ids = Vec::new();
        self.unweighted = Vec::new();
    }
}

/// Memory that a part holds: as a number of bytes, or taken.
pub struct Cost<T> {
    /// With the stream's dictionary.
    pub tables: T,
    /// With the window, until it is answered.
    pub rows: T,
}

/// What a part will hold when each label set also gets the labels of the host, `host_bytes` of them.
/// Unit: bytes.
pub fn cost(part: &wire::WindowPart, host_bytes: usize) -> Cost<usize> {
    const PAIR: usize = 2 * size_of::<String>();
    let labels = part.label_sets.iter().map(|set| {
        let text: usize = set.names_values.iter().map(String::len).sum();
        // Twice: as sent, and with the labels of the host.
        2 * (text + set.names_values.len().div_ceil(2) * PAIR + 2 * size_of::<LabelSet>())
            + host_bytes
    });
    let accounts = part
        .facts
        .as_ref()
        .map_or(0, |facts| facts.account_label_sets.len());
    let row = size_of::<Row>() + size_of::<u32>();
    Cost {
        // A hash, and what the store remembers of it.
        tables: labels.sum::<usize>() + part.stack_hashes.len() / 4 * 5,
        rows: part.sample_stacks.len() * row + accounts * size_of::<WindowAccount>(),
    }
}

/// Refuses more CPU time than any host has: one such window would hide all others of the fleet.
fn plausible(facts: &wire::WindowFacts, rows: &[Row]) -> Result<(), String> {
    let weight: u128 = rows.iter().map(|row| u128::from(row.value.weight)).sum();
    let most = u128::from(facts.duration_ns) * CPUS_MAX;
    if facts.unit == "nanoseconds" && weight > most {
        return Err(format!("it says that more than {CPUS_MAX} CPUs were busy"));
    }
    Ok(())
}

/// The time of a window, when it can be one.
fn range(facts: &wire::WindowFacts) -> Result<TimeRange, String> {
    let start_unix_ns = facts.start_unix_ns;
    if start_unix_ns <= 0 {
        return Err("it begins before 1970".to_owned());
    }
    if facts.duration_ns == 0 || facts.duration_ns > WINDOW_NS_MAX {
        let ns = facts.duration_ns;
        return Err(format!("it is {ns} ns long, not up to an hour"));
    }
    if facts.unit.is_empty() || facts.event.is_empty() {
        return Err("it names no event or no unit".to_owned());
    }
    let end = i64::try_from(facts.duration_ns)
        .ok()
        .and_then(|duration| start_unix_ns.checked_add(duration));
    let end_unix_ns = end.ok_or("it ends after the end of time")?;
    Ok(TimeRange {
        start_unix_ns,
        end_unix_ns,
    })
}

/// A label set of an agent, within bounds and without its own `host`.
fn own_labels(names_values: &[String], metrics: &Metrics) -> Result<LabelSet, Fault> {
    let (pairs, odd) = names_values.as_chunks::<2>();
    if !odd.is_empty() {
        return Err(Fault::OddLabels);
    }
    let pairs = pairs.iter().map(|[name, value]| (name, value));
    let mut pairs = bounded(pairs, LABELS_PER_SET_MAX, metrics);
    let all = pairs.len();
    pairs.retain(|(name, _)| name != key::HOST);
    metrics.label_hosts.add((all - pairs.len()) as u64);
    Ok(LabelSet::new(pairs))
}

/// At most `limit` labels within the bounds of names and values.
fn bounded<'a>(
    pairs: impl Iterator<Item = (&'a String, &'a String)>,
    limit: usize,
    metrics: &Metrics,
) -> Vec<(String, String)> {
    let mut kept: Vec<(String, String)> = Vec::new();
    let (mut cut, mut dropped) = (0, 0);
    for (name, value) in pairs {
        if name.is_empty() || name.len() > LABEL_NAME_BYTES_MAX {
            dropped += 1;
            continue;
        }
        cut += u64::from(value.len() > LABEL_VALUE_BYTES_MAX);
        kept.push((name.clone(), text(value, LABEL_VALUE_BYTES_MAX)));
    }
    if kept.len() > limit {
        kept.sort();
        dropped += (kept.len() - limit) as u64;
        kept.truncate(limit);
    }
    metrics.labels_cut.add(cut);
    metrics.labels_dropped.add(dropped);
    kept
}

/// Facts of a host as they are kept.
pub fn host_facts(facts: wire::HostFacts, metrics: &Metrics) -> HostFacts {
    let spool = facts.spool.unwrap_or_default();
    // In order, so that of too many labels the same ones go each time.
    let mut labels: Vec<_> = facts.labels.iter().collect();
    labels.sort();
    let mut labels = bounded(labels.into_iter(), HOST_LABELS_MAX, metrics);
    labels.retain(|(name, value)| name != key::HOST && !value.is_empty());
    HostFacts {
        hostname: text(&facts.hostname, FACT_BYTES_MAX),
        kernel: text(&facts.kernel, FACT_BYTES_MAX),
        arch: text(&facts.arch, FACT_BYTES_MAX),
        cpus_online: facts.cpus_online,
        memory_bytes: facts.memory_bytes,
        agent_version: text(&facts.agent_version, FACT_BYTES_MAX),
        labels: labels.into_iter().collect(),
        spool_windows: spool.windows,
        spool_bytes: spool.bytes,
        spool_bytes_max: spool.bytes_max,
        spool_oldest_unix_ns: spool.oldest_unix_ns,
        dropped_windows: spool.dropped_windows,
    }
}

fn text(text: &str, bytes_max: usize) -> String {
    text[..text.floor_char_boundary(bytes_max)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decoder() -> Decoder {
        let host = HostKey {
            host_id: "id".to_owned(),
            boot_id: [1; 16],
        };
        Decoder::new(host, &HostFacts::default(), Arc::default())
    }

    fn held() -> Cost<Held> {
        Cost {
            tables: Held::default(),
            rows: Held::default(),
        }
    }

    fn facts() -> wire::WindowFacts {
        wire::WindowFacts {
            start_unix_ns: 1,
            duration_ns: 10_000_000_000,
            event: "cpu-clock".to_owned(),
            unit: "nanoseconds".to_owned(),
            period: 3,
            ..wire::WindowFacts::default()
        }
    }

    #[test]
    fn more_cpus_than_any_host_has_are_refused() {
        let mut parts = parts(&[(0, 1, 1, Some(1))], 1);
        parts[0].sample_weights[0] = u64::MAX;
        let decoded = decoder().part(parts.remove(0), held());
        let refused =
            matches!(&decoded, Ok(Decoded::Refused { reason, .. }) if reason.contains("CPUs"));
        assert!(refused);
    }

    /// A row: label set and stack by number, count, and weight if it has one.
    type Sent = (u8, u8, u16, Option<u16>);

    /// The rows in parts of at most `size`, each with what it uses for the first time.
    fn parts(rows: &[Sent], size: usize) -> Vec<wire::WindowPart> {
        let (mut sets, mut stacks) = (Vec::new(), Vec::new());
        let weighted = rows.iter().all(|row| row.3.is_some());
        let mut parts = Vec::new();
        for chunk in rows.chunks(size) {
            let mut part = wire::WindowPart {
                sequence: 7,
                ..wire::WindowPart::default()
            };
            for &(set, stack, count, weight) in chunk {
                let set_id = sets
                    .iter()
                    .position(|known| *known == set)
                    .unwrap_or_else(|| {
                        sets.push(set);
                        let names_values = vec!["comm".to_owned(), format!("c{set}")];
                        part.label_sets.push(wire::Labels { names_values });
                        sets.len() - 1
                    });
                let stack_id = stacks.iter().position(|known| *known == stack);
                let stack_id = stack_id.unwrap_or_else(|| {
                    stacks.push(stack);
                    part.stack_hashes.extend([stack; 16]);
                    stacks.len() - 1
                });
                part.sample_label_sets.push(set_id as u32 + 1);
                part.sample_stacks.push(stack_id as u32 + 1);
                part.sample_counts.push(count.into());
                if weighted {
                    part.sample_weights.extend(weight.map(u64::from));
                }
            }
            parts.push(part);
        }
        if let Some(last) = parts.last_mut() {
            last.last = true;
            last.facts = Some(facts());
        }
        parts
    }

    fn decode(parts: Vec<wire::WindowPart>) -> NewWindow {
        let mut decoder = decoder();
        for part in parts {
            if let Decoded::Whole(pending) = decoder.part(part, held()).expect("sound") {
                let mut window = pending.window;
                let numbers = window.stream.take().expect("it is of a stream").ids;
                assert_eq!(window.rows.len(), numbers.len());
                return window;
            }
        }
        panic!("the window is not whole");
    }

    fn any_column() -> impl Strategy<Value = Vec<u32>> {
        prop::collection::vec(prop_oneof![0u32..4, any::<u32>()], 0..4)
    }

    prop_compose! {
        fn any_part()(
            sequence in 0u64..3,
            last in any::<bool>(),
            new_dictionary in prop::bool::weighted(0.1),
            has_facts in any::<bool>(),
            sets in prop::collection::vec(prop::collection::vec("[a-c]{0,2}|host", 0..5), 0..3),
            stack_hashes in prop_oneof![
                Just(Vec::new()),
                prop::collection::vec(any::<u8>(), 32),
                prop::collection::vec(any::<u8>(), 0..40),
            ],
            columns in (any_column(), any_column(), any_column()),
            counts in prop::collection::vec(any::<u64>(), 0..4),
            weights in prop::collection::vec(any::<u64>(), 0..4),
            times in (any::<i64>(), any::<u64>(), any::<u64>()),
            accounts in any_column(),
        ) -> wire::WindowPart {
            let facts = wire::WindowFacts {
                start_unix_ns: times.0,
                duration_ns: times.1,
                period: times.2,
                account_ns: vec![u64::MAX; accounts.len()],
                account_estimated_ns: vec![u64::MAX; accounts.len()],
                account_label_sets: accounts,
                ..facts()
            };
            wire::WindowPart {
                sequence,
                last,
                new_dictionary,
                label_sets: sets.into_iter().map(|names_values| wire::Labels { names_values }).collect(),
                stack_hashes,
                sample_label_sets: columns.0,
                sample_stacks: columns.1,
                sample_ends: columns.2,
                sample_counts: counts,
                sample_weights: weights,
                facts: has_facts.then_some(facts),
            }
        }
    }

    proptest! {
        #[test]
        fn parts_say_the_same_however_they_are_cut(
            rows in prop::collection::vec(
                (0u8..5, 0u8..9, 1u16.., prop::option::weighted(0.9, 1u16..)), 1..40),
            size in 1usize..40,
        ) {
            let cut = decode(parts(&rows, size));
            prop_assert_eq!(&cut, &decode(parts(&rows, rows.len())));
            let sent: u64 = rows.iter().map(|row| u64::from(row.2)).sum();
            let kept: u64 = cut.rows.iter().map(|row| row.value.count).sum();
            prop_assert_eq!(sent, kept);
        }

        #[test]
        fn any_parts_are_taken_or_refused(parts in prop::collection::vec(any_part(), 1..6)) {
            let mut decoder = decoder();
            for part in parts {
                match decoder.part(part, held()) {
                    Ok(Decoded::Whole(pending)) => {
                        let window = pending.window;
                        let sets = window.label_sets.len() as u32;
                        prop_assert!(window.rows.iter().all(|row| row.labels < sets));
                        prop_assert!(window.accounts.iter().all(|account| account.labels < sets));
                        prop_assert!(window.range.start_unix_ns < window.range.end_unix_ns);
                        prop_assert!(window.label_sets.iter().all(|set| set.get("host") == "id"));
                    }
                    Ok(_) => {}
                    Err(_) => break,
                }
            }
        }
    }
}
