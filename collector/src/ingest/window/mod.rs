//! Decodes the parts of an agent's stream to windows of the store.
//!
//! A [`Decoder`] has the state that a stream keeps between windows: label sets and stacks by id. A
//! violation of the protocol is a [`Fault`] and ends the stream. A well-formed window that cannot
//! be stored is [`Decoded::Refused`], so that its agent drops that window and not all later ones.

mod bounds;
mod cost;
mod fault;
mod tables;
#[cfg(test)]
mod tests;
mod waiting;

pub use bounds::{host_facts, programs};
pub use cost::{Cost, cost};
pub use fault::Fault;

use super::limits::{
    FACT_BYTES_MAX, LABEL_SETS_PER_STREAM_MAX, LABEL_SETS_PER_WINDOW_MAX, ROWS_PER_WINDOW_MAX,
    STACKS_PER_STREAM_MAX,
};
use crate::memory::Reservation;
use crate::metrics::Metrics;
use crate::store::{
    Gap, HostFacts, HostKey, LabelSet, NewWindow, Origin, Row, StreamStacks, TimeRange,
    WindowAccount, reserve,
};
use bounds::{own_labels, plausible, range, text};
use hashbrown::{HashMap, HashSet};
use profile::{ContentId, StackEnd, Value, key};
use proto::collector as wire;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;
use tables::Tables;

/// Result of decoding a part of a window.
pub enum Decoded {
    /// More parts follow.
    More,
    /// It is complete.
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
    /// All requested stacks: the store may know some of them only from windows that were pushed
    /// together with this one, so a second request must not forget the first.
    pub asked: HashSet<ContentId>,
    /// It goes to the store with frames.
    pub defines: bool,
    /// The memory it holds.
    pub held: Reservation,
    /// When its last part had come.
    pub arrived: Instant,
}

/// Stacks that are looked up one after the other. Some of them are on their way from memory then;
/// with many more, the first ones have left the cache before they are used.
const STACKS_TOGETHER: usize = 256;

/// Rows with a weight of count times the period; the last part has the period.
type Unweighted = Range<usize>;

struct Open {
    sequence: u64,
    label_sets: Vec<LabelSet>,
    /// From the stream's id to the index in `label_sets`.
    index: HashMap<u32, u32>,
    rows: Vec<Row>,
    stack_ids: Vec<u32>,
    unweighted: Vec<Unweighted>,
    held: Reservation,
    /// Why it will be refused. Its parts are checked no further than the dictionary needs.
    refused: Option<String>,
}

/// Puts windows together from the parts of one stream.
pub struct Decoder {
    host: HostKey,
    /// `host` first: see [`Decoder::set_facts`].
    host_name: String,
    host_labels: Vec<(String, String)>,
    /// Labels that the fleet gave the host: nothing it sends can replace them.
    assigned: Vec<(String, String)>,
    tables: Tables,
    open: Option<Open>,
    metrics: Arc<Metrics>,
}

impl Decoder {
    /// A decoder for the windows of `host`. Labels `assigned` by the fleet go before all others but
    /// the name.
    pub fn new(
        host: HostKey,
        facts: &HostFacts,
        assigned: &BTreeMap<String, String>,
        metrics: Arc<Metrics>,
    ) -> Decoder {
        let mut decoder = Decoder {
            host,
            host_name: String::new(),
            host_labels: Vec::new(),
            assigned: assigned.clone().into_iter().collect(),
            tables: Tables::new(),
            open: None,
            metrics,
        };
        decoder.set_facts(facts);
        decoder
    }

    /// Labels of the host that all label sets get from now on: `host`, which nothing an agent sends
    /// can replace, and those configured, which give way to labels of the samples.
    pub fn set_facts(&mut self, facts: &HostFacts) {
        let name = facts.name(&self.host.host_id);
        let labels = facts.labels.iter();
        let is_same = name == self.host_name
            && labels
                .clone()
                .eq(self.host_labels.iter().map(|(k, v)| (k, v)));
        // Agents say every minute what waits on their disk.
        if is_same {
            return;
        }
        name.clone_into(&mut self.host_name);
        self.host_labels = labels.map(|(k, v)| (k.clone(), v.clone())).collect();
        self.tables.merged.fill(None);
        self.tables.memo.forget_labels();
    }

    /// Size of the host's labels, which are added to each label set. Unit: bytes.
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
    pub fn part(
        &mut self,
        part: wire::WindowPart,
        held: Cost<Reservation>,
    ) -> Result<Decoded, Fault> {
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

    /// Adds new label sets and stacks to the tables.
    fn define(&mut self, part: &wire::WindowPart, held: Reservation) -> Result<(), Fault> {
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
        reserve(&mut tables.stacks, hashes.len());
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
        let start = open.rows.len();
        if open.refused.is_none() {
            open.rows.reserve(rows);
            open.stack_ids.reserve(rows);
        }
        // Stacks lie all over the tables of the stream. In a loop that does nothing else the
        // processor waits for many of them at a time.
        let mut stacks = [ContentId::default(); STACKS_TOGETHER];
        // Rows of a label set come one after the other.
        let mut run: Option<(u32, u32)> = None;
        for at in 0..rows {
            let set = part.sample_label_sets[at];
            let id = part.sample_stacks[at];
            if at % STACKS_TOGETHER == 0 {
                let ids = &part.sample_stacks[at..];
                for (stack, &id) in stacks.iter_mut().zip(ids) {
                    *stack = self.tables.stack(id)?;
                }
            }
            let stack = stacks[at % STACKS_TOGETHER];
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
        if part.sample_weights.is_empty() && open.rows.len() > start {
            open.unweighted.push(start..open.rows.len());
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
            let assigned = self.assigned.iter().cloned();
            let own = own.iter().map(|(k, v)| (k.to_owned(), v.to_owned()));
            let configured = self.host_labels.iter().cloned();
            // If names are equal, the first wins.
            LabelSet::new(host.chain(assigned).chain(own).chain(configured))
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

    /// Adds the accounts and ends the window.
    fn accounts(&mut self, mut open: Open, facts: wire::WindowFacts) -> Result<Decoded, Fault> {
        let accounts = facts.account_label_sets.len();
        if facts.account_ns.len() != accounts || facts.account_estimated_ns.len() != accounts {
            return Err(Fault::Columns { table: "accounts" });
        }
        let throttling = waiting::Throttled::of(&facts, accounts)?;
        let mut list = Vec::with_capacity(accounts.min(LABEL_SETS_PER_WINDOW_MAX));
        for at in 0..accounts {
            let labels = self.window_labels(&mut open, facts.account_label_sets[at])?;
            if open.refused.is_none() {
                let (throttled_ns, limit_millicores) = throttling.at(at);
                list.push(WindowAccount {
                    labels,
                    ns: facts.account_ns[at],
                    estimated_ns: facts.account_estimated_ns[at].min(facts.account_ns[at]),
                    throttled_ns,
                    limit_millicores,
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
            pressure: facts.pressure.map(|of| waiting::pressure(of, range)),
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
            arrived: Instant::now(),
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

impl Open {
    fn new(sequence: u64) -> Open {
        Open {
            sequence,
            label_sets: Vec::new(),
            index: HashMap::new(),
            rows: Vec::new(),
            stack_ids: Vec::new(),
            unweighted: Vec::new(),
            held: Reservation::default(),
            refused: None,
        }
    }

    /// Discards its data; its other parts are read only for the dictionary.
    fn refuse(&mut self, reason: String) {
        self.refused.get_or_insert(reason);
        self.rows = Vec::new();
        self.stack_ids = Vec::new();
        self.unweighted = Vec::new();
    }
}
