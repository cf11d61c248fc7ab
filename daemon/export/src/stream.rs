//! The state of a stream to the collector: the label sets and stacks that were sent, with their ids
//! in the stream; and how windows and definitions are split into messages.

use super::gaps::SpoolGap;
use profile::{Account, ContentIds, Dictionary, LabelSetId, Remap, StackEnd, StackId};
use proto::Definer;
use proto::collector as wire;
use proto::definitions::dictionary_stacks_max;
use segment::window::{Tables, Window};
use std::collections::BTreeSet;

/// Memory of a stream's dictionary; beyond it a new one is started. Unit: bytes. Some 60,000
/// frames: stacks that are met again then travel as 16 bytes each once more.
const DICTIONARY_BYTES_MAX: usize = 8 << 20;

/// Smallest bound of messages that is worked with. Unit: bytes. A label set or a frame takes up to
/// 48 KiB, with texts as long as they leave the host.
pub const MESSAGE_BYTES_MIN: u64 = 64 << 10;

/// Largest message sent, whatever the collector takes. Unit: bytes. Larger ones hold more memory on
/// both sides and save nothing.
const MESSAGE_BYTES_MAX: u64 = 1 << 20;

/// Most encoded bytes of a sample: two 32-bit ids, an end, count and weight.
const ROW_BYTES: usize = 2 * 5 + 1 + 2 * 10;

/// Most encoded bytes of an account.
///
/// Three of them are its place, if its throttling is not known or it was throttled.
const ACCOUNT_BYTES: usize = 5 + 2 * 10 + 3;

/// Most encoded bytes that an account has in addition if it was throttled: a time and a limit. If
/// all were, they would take half of a message instead of a third of it, which still fits.
const THROTTLED_BYTES: usize = 2 * 10;

/// Encoded bytes of facts without the accounts, with room to spare.
const FACTS_BYTES: usize = 2048;

/// The collector asked for a stack that it was never sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the collector asks for the frames of stack `{0}`, which the agent never sent")]
pub struct UnknownStack(u32);

/// See the module.
pub struct Stream {
    dict: Dictionary,
    ids: ContentIds,
    /// Ids of the stream by stacks of `dict`; 0: not sent.
    stack_ids: Vec<u32>,
    /// And back: the first is of id 1.
    stacks: Vec<StackId>,
    /// Which of them the collector has.
    definer: Definer,
    label_ids: Vec<u32>,
    labels_sent: u32,
    /// Counts the dictionaries.
    epoch: u64,
    /// The next part starts a dictionary.
    fresh: bool,
    /// Largest message. Unit: bytes.
    limit: usize,
    /// Most stacks that the collector wants to remember of a dictionary; 0: it does not say.
    stacks_told: u32,
    /// Rows of the newest window.
    rows: usize,
}

impl Stream {
    /// A stream to a collector that takes messages of so many bytes, and wants a new dictionary
    /// after so many stacks; 0: it does not say. `known_stacks`: see the protocol's Welcome.
    pub fn new(message_bytes_max: u64, dictionary_stacks: u32, known_stacks: bool) -> Stream {
        Stream {
            dict: Dictionary::default(),
            ids: ContentIds::default(),
            stack_ids: Vec::new(),
            stacks: Vec::new(),
            definer: Definer::new(known_stacks),
            label_ids: Vec::new(),
            labels_sent: 0,
            epoch: 0,
            fresh: false,
            limit: message_bytes_max.min(MESSAGE_BYTES_MAX) as usize,
            stacks_told: dictionary_stacks,
            rows: 0,
        }
    }

    /// True when a new dictionary should start, for which nothing may be in flight.
    pub fn is_full(&self) -> bool {
        let ids = self.stack_ids.capacity() + self.stacks.capacity();
        let bytes = self.dict.heap_bytes() + self.ids.heap_bytes() + self.definer.heap_bytes();
        let stacks_max = dictionary_stacks_max(self.stacks_told, self.rows);
        self.stacks.len() >= stacks_max || bytes + ids * 4 > DICTIONARY_BYTES_MAX
    }

    /// Starts a new dictionary.
    pub fn start_dictionary(&mut self) {
        let mut definer = std::mem::take(&mut self.definer);
        definer.start_dictionary();
        *self = Stream {
            definer,
            epoch: self.epoch + 1,
            fresh: true,
            limit: self.limit,
            stacks_told: self.stacks_told,
            rows: self.rows,
            ..Stream::new(u64::MAX, 0, false)
        };
    }

    /// Counts the dictionaries: a [`Remap`] into one is void with the next.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Cuts a window into parts, each within the bound of messages.
    pub fn parts(
        &mut self,
        tables: &Tables,
        remap: &mut Remap,
        window: &Window,
        gap: Option<SpoolGap>,
    ) -> Vec<wire::WindowPart> {
        self.rows = window.rows.len();
        let accounts = self.fitting_accounts(&window.accounts);
        let mut parts = Vec::new();
        let mut part = self.part(window);
        // Two thirds: what is estimated and what the message adds is well within the rest.
        let target = self.limit / 3 * 2;
        let mut bytes = 0;
        for &(key, value) in &window.rows {
            if bytes >= target {
                parts.push(finish(
                    std::mem::replace(&mut part, self.part(window)),
                    window,
                ));
                bytes = 0;
            }
            let labels = self.labels(tables, remap, key.labels, &mut part, &mut bytes);
            let stack = self.stack(tables, remap, key.stack, &mut part, &mut bytes);
            part.sample_label_sets.push(labels);
            part.sample_stacks.push(stack);
            part.sample_ends.push(key.end as u32);
            part.sample_counts.push(value.count);
            part.sample_weights.push(value.weight);
            bytes += ROW_BYTES;
        }
        let throttled = accounts.iter().filter(|of| of.throttled_ns > Some(0));
        let throttled_bytes = throttled.count() * THROTTLED_BYTES;
        let own = accounts.len() * ACCOUNT_BYTES + throttled_bytes + FACTS_BYTES;
        bytes += own;
        let mut facts = facts(window, gap);
        let mut accounts = accounts.iter();
        loop {
            if bytes > target && bytes > own {
                parts.push(finish(
                    std::mem::replace(&mut part, self.part(window)),
                    window,
                ));
                bytes = own;
            }
            let Some(account) = accounts.next() else {
                break;
            };
            let labels = self.labels(tables, remap, account.labels, &mut part, &mut bytes);
            add_throttling(&mut facts, account);
            facts.account_label_sets.push(labels);
            facts.account_ns.push(account.ns);
            facts.account_estimated_ns.push(account.estimated_ns);
        }
        part = finish(part, window);
        part.last = true;
        part.facts = Some(facts);
        parts.push(part);
        let sent = parts.iter().flat_map(|part| &part.sample_stacks);
        let sent = sent.filter_map(|&id| self.stacks.get((id as usize).checked_sub(1)?));
        self.definer.sent(window.facts.sequence, sent.copied());
        parts
    }

    /// Notes the answer to a window.
    pub fn answered(&mut self, sequence: u64, stored: bool) {
        self.definer.answered(&self.dict, sequence, stored);
    }

    /// The largest accounts for which a message has room; the time of the others counts to the
    /// nearest cgroup above.
    fn fitting_accounts(&self, accounts: &[Account]) -> Vec<Account> {
        let mut accounts = accounts.to_vec();
        let most = self.limit / 3 / ACCOUNT_BYTES;
        if accounts.len() > most {
            accounts.sort_unstable_by_key(|account| std::cmp::Reverse(account.ns));
            accounts.truncate(most);
        }
        accounts
    }

    fn part(&mut self, window: &Window) -> wire::WindowPart {
        wire::WindowPart {
            sequence: window.facts.sequence,
            new_dictionary: std::mem::take(&mut self.fresh),
            ..wire::WindowPart::default()
        }
    }

    fn labels(
        &mut self,
        tables: &Tables,
        remap: &mut Remap,
        id: LabelSetId,
        part: &mut wire::WindowPart,
        bytes: &mut usize,
    ) -> u32 {
        let moved = remap.label_set(&tables.dict, &mut self.dict, id);
        if moved == LabelSetId(0) {
            return 0;
        }
        let slot = slot(&mut self.label_ids, moved.0);
        if *slot == 0 {
            self.labels_sent += 1;
            *slot = self.labels_sent;
            let pairs = self.dict.labels(moved);
            let names_values: Vec<String> = pairs
                .flat_map(|(name, value)| [name.to_owned(), value.to_owned()])
                .collect();
            *bytes += 8 + names_values.iter().map(|t| t.len() + 4).sum::<usize>();
            part.label_sets.push(wire::Labels { names_values });
        }
        *slot
    }

    fn stack(
        &mut self,
        tables: &Tables,
        remap: &mut Remap,
        id: StackId,
        part: &mut wire::WindowPart,
        bytes: &mut usize,
    ) -> u32 {
        let moved = remap.stack(&tables.dict, &mut self.dict, id);
        if moved == StackId::EMPTY {
            return 0;
        }
        let slot = slot(&mut self.stack_ids, moved.0);
        if *slot == 0 {
            self.ids.update(&self.dict);
            self.stacks.push(moved);
            *slot = self.stacks.len() as u32;
            part.stack_hashes
                .extend_from_slice(&self.ids.stack(moved).0);
            *bytes += 16;
        }
        *slot
    }

    /// The frames of stacks that are asked for, in messages within the bound.
    ///
    /// # Errors
    /// When one of them was never sent.
    pub fn definitions(
        &mut self,
        need: &wire::Need,
    ) -> Result<Vec<wire::Definitions>, UnknownStack> {
        let ids = need.stacks.iter().copied().collect::<BTreeSet<u32>>();
        let stack_of = |id: u32| {
            let at = (id as usize).checked_sub(1);
            let stack = at.and_then(|at| self.stacks.get(at));
            stack.copied().ok_or(UnknownStack(id))
        };
        let asked = ids.into_iter().map(stack_of);
        let asked: Vec<StackId> = asked.collect::<Result<_, _>>()?;
        let content = |stack| self.ids.stack(stack);
        // A message may be over its target by one entry, which is a text at most.
        let target = self.limit / 2;
        Ok(self
            .definer
            .define(&self.dict, content, need, &asked, target))
    }
}

fn slot(table: &mut Vec<u32>, id: u32) -> &mut u32 {
    let id = id as usize;
    if table.len() <= id {
        table.resize((id + 1).next_power_of_two(), 0);
    }
    &mut table[id]
}

/// Leaves out columns that say nothing.
fn finish(mut part: wire::WindowPart, window: &Window) -> wire::WindowPart {
    let complete = |&end: &u32| end == StackEnd::Complete as u32;
    if part.sample_ends.iter().all(complete) {
        part.sample_ends.clear();
    }
    let period = window.facts.period;
    let mut values = part.sample_counts.iter().zip(&part.sample_weights);
    if period > 0 && values.all(|(&count, &weight)| count.checked_mul(period) == Some(weight)) {
        part.sample_weights.clear();
    }
    part
}

/// Adds the throttling of the account that comes next.
fn add_throttling(facts: &mut wire::WindowFacts, account: &Account) {
    let place = facts.account_ns.len() as u32;
    match account.throttled_ns {
        Some(0) => {}
        Some(ns) => {
            facts.throttled_accounts.push(place);
            facts.throttled_ns.push(ns);
            facts.throttled_limits.push(account.limit_millicores);
        }
        None if facts.throttling_known => facts.throttling_unknown.push(place),
        None => {}
    }
}

fn facts(window: &Window, gap: Option<SpoolGap>) -> wire::WindowFacts {
    let facts = &window.facts;
    wire::WindowFacts {
        start_unix_ns: facts.start_unix_ns,
        duration_ns: facts.duration_ns,
        event: facts.event.clone(),
        unit: facts.unit.clone(),
        period: facts.period,
        quality: Some(facts.quality.into()),
        throttling_known: window.accounts.iter().any(|of| of.throttled_ns.is_some()),
        pressure: facts.pressure.map(|pressure| wire::Pressure {
            cpu_ns: pressure.cpu_ns,
            memory_ns: pressure.memory_ns,
            io_ns: pressure.io_ns,
        }),
        dropped_before: gap.map(|gap| wire::Gap {
            start_unix_ns: gap.start_unix_ns,
            end_unix_ns: gap.end_unix_ns,
            windows: gap.windows,
            samples: gap.samples,
            cause: gap.cause.word().to_owned(),
        }),
        ..wire::WindowFacts::default()
    }
}
