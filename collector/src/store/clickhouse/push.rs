//! Converts pushed windows to rows: which are rejected, which are stored already, and which stacks
//! are missing.

use super::fault::Fault;
use super::hosts::{GAP_AFTER_S_MAX, GAP_S_MAX};
use super::keys::{Keys, NS_PER_S, TimeSlot, oldest_day, origin};
use super::known::Known;
use super::rows::{FeedRow, FrameRow, GapRow, SeriesRow, StackRow, TotalRow, WindowRow};
use super::shard::Shard;
use super::statement::Statement;
use super::window::{WEIGHT_MAX, alone, pairs_of, rejection, service_of};
use super::{Counters, Options};
use crate::store::admission::host_labels;
use crate::store::{LabelSet, NewWindow, PressureSum, PushOutcome, Row};
use crate::sync::lock;
use clickhouse::Row as Fields;
use profile::{ContentId, Dictionary, FrameId, Quality, StackEnd, StackId, Value};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Mutex;

/// Ids of one look-up. Unit: ids, about 20 bytes each in the request.
const LOOKUP_MAX: usize = 20_000;

/// How often a batch is tried to be finished once the server is back. One that it never takes, for
/// its size perhaps, must not keep others out: with more, agents wait longer; with less, a server
/// that comes back slowly has rollups that lack something.
const TRIES_MAX: u32 = 5;

/// A window that is to be stored.
struct Planned<'w> {
    at: usize,
    window: &'w NewWindow,
    place: TimeSlot,
    host: u64,
}

/// All rows of a push, by table.
#[derive(Default)]
pub(super) struct Batch {
    frames: Vec<FrameRow>,
    stacks: Vec<StackRow>,
    series: Vec<SeriesRow>,
    services: Vec<SeriesRow>,
    gaps: Vec<GapRow>,
    totals: Vec<TotalRow>,
    feed: Vec<FeedRow>,
    windows: Vec<WindowRow>,
    /// Ids that are in the dictionaries once the batch is.
    learned: HashMap<u16, HashSet<u64>>,
    /// Stacks to be copied to a day, by that day and the one they are copied from.
    copies: BTreeMap<(u16, u16), BTreeSet<u64>>,
    /// How often it was tried to finish it.
    tries: u32,
}

impl Batch {
    /// A name for the samples: equal for the same rows in the same order, and for no others.
    fn token(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for row in &self.feed {
            let FeedRow {
                chunk,
                slot,
                series,
                service,
                stack,
                end,
                origin,
                n,
                w,
                period,
            } = row;
            hasher.update(&chunk.to_le_bytes());
            hasher.update(&[*slot, *end]);
            for number in [series, service, stack, origin, n, w, period] {
                hasher.update(&number.to_le_bytes());
            }
        }
        hasher.finalize().to_hex().to_string()
    }
}

/// What a window is known by: its day, host and sequence.
type WindowKey = (u16, u64, u64);

/// A day with those before and after it: a clock that was set may have moved a window by a little.
fn around(day: u16) -> [u16; 3] {
    [day.saturating_sub(1), day, day.saturating_add(1)]
}

/// Stacks of the database that were looked up: what they are, and the days that have them.
type Found = HashMap<u64, (ContentId, BTreeSet<u16>)>;

/// Days as a list in SQL.
fn listed(days: &BTreeSet<u16>) -> String {
    let days: Vec<String> = days.iter().map(u16::to_string).collect();
    days.join(", ")
}

/// Frames that came with a push.
pub(super) struct Definitions<'d> {
    dict: &'d Dictionary,
    by_content: HashMap<ContentId, StackId>,
}

impl<'d> Definitions<'d> {
    /// Those of a dictionary.
    pub fn of(dict: &'d Dictionary) -> Definitions<'d> {
        let ids = dict.content_ids().into_iter().enumerate();
        Definitions {
            dict,
            by_content: ids.map(|(at, id)| (id, StackId(at as u32))).collect(),
        }
    }
}

/// Takes what one push has for one shard.
pub(super) struct Push<'s> {
    pub shard: &'s Shard,
    pub keys: &'s Keys,
    pub options: &'s Options,
    pub known: &'s Mutex<Known>,
    pub counters: &'s Counters,
    /// A batch of which the server may have stored a part in the last call.
    pub unfinished: &'s Mutex<Option<Batch>>,
}

impl Push<'_> {
    /// Stores what can be stored; the answers in the order of `windows`.
    pub async fn take(
        &self,
        windows: &[&NewWindow],
        definitions: &Definitions<'_>,
        now_unix_ns: i64,
    ) -> Result<Vec<PushOutcome>, Fault> {
        self.finish().await?;
        let mut answers: Vec<Option<PushOutcome>> = vec![None; windows.len()];
        let mut planned = Vec::new();
        let mut first: HashMap<(u64, u64), usize> = HashMap::new();
        let mut repeats = Vec::new();
        for (at, &window) in windows.iter().enumerate() {
            let place = TimeSlot::of(window.range.start_unix_ns);
            let reason = rejection(window, self.options, now_unix_ns);
            let (Some(place), None) = (place, &reason) else {
                answers[at] = Some(PushOutcome::Rejected(reason.unwrap_or_default()));
                continue;
            };
            let host = self.keys.host(&window.origin.host);
            match first.entry((host, window.origin.sequence)) {
                std::collections::hash_map::Entry::Occupied(same) => {
                    repeats.push((at, *same.get()))
                }
                std::collections::hash_map::Entry::Vacant(new) => {
                    new.insert(at);
                    planned.push(Planned {
                        at,
                        window,
                        place,
                        host,
                    });
                }
            }
        }
        let keys = planned.iter().map(|plan| {
            let sequence = plan.window.origin.sequence;
            (plan.place.day(), plan.host, sequence)
        });
        let stored = self.stored(&keys.collect::<Vec<_>>()).await?;
        planned.retain(|plan| {
            let is_stored = stored.contains(&(plan.host, plan.window.origin.sequence));
            if is_stored {
                answers[plan.at] = Some(PushOutcome::Duplicate);
            }
            !is_stored
        });
        let oldest = oldest_day(now_unix_ns, self.options.retention);
        self.store(&mut planned, definitions, oldest, &mut answers)
            .await?;
        for (at, first) in repeats {
            answers[at] = match &answers[first] {
                Some(PushOutcome::Stored) => Some(PushOutcome::Duplicate),
                other => other.clone(),
            };
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// Which of the windows are stored already. What is sent again has the time it had before, so
    /// only days around those of the windows are looked at, however many are kept.
    async fn stored(&self, windows: &[WindowKey]) -> Result<HashSet<(u64, u64)>, Fault> {
        #[derive(Fields, Deserialize)]
        struct Origin {
            host: u64,
            sequence: u64,
        }
        let mut found = HashSet::new();
        for some in windows.chunks(LOOKUP_MAX) {
            let pairs = some.iter().map(|&(_, host, sequence)| (host, sequence));
            let mut ask = Statement::default();
            let pairs = ask.pairs(&pairs.collect::<Vec<_>>());
            let days: BTreeSet<u16> = some.iter().flat_map(|&(day, _, _)| around(day)).collect();
            ask.sql = format!(
                "SELECT DISTINCT host, sequence FROM windows WHERE toDate(chunk) IN ({}) AND \
                 (host, sequence) IN (SELECT pair.1, pair.2 FROM (SELECT arrayJoin({pairs}) AS pair))",
                listed(&days)
            );
            let rows: Vec<Origin> = self.shard.all(&ask).await?;
            found.extend(rows.into_iter().map(|row| (row.host, row.sequence)));
        }
        Ok(found)
    }

    /// Looks up which stacks the database has on these days, if this collector does not know it
    /// yet.
    async fn look_up(&self, ids: &[u64], days: &BTreeSet<u16>) -> Result<Found, Fault> {
        #[derive(Fields, Deserialize)]
        struct Stack {
            day: u16,
            stack: u64,
            hash: [u8; 16],
        }
        let mut found = Found::new();
        for some in ids.chunks(LOOKUP_MAX) {
            let mut ask = Statement::default();
            let ids = ask.numbers(some);
            ask.sql = format!(
                "SELECT DISTINCT day, stack, hash FROM stacks \
                 WHERE day IN ({}) AND stack IN (SELECT arrayJoin({ids}))",
                listed(days)
            );
            for row in self.shard.all::<Stack>(&ask).await? {
                let of = found.entry(row.stack);
                let of = of.or_insert_with(|| (ContentId(row.hash), BTreeSet::new()));
                of.1.insert(row.day);
            }
        }
        Ok(found)
    }

    async fn store(
        &self,
        planned: &mut Vec<Planned<'_>>,
        definitions: &Definitions<'_>,
        oldest_day: u16,
        answers: &mut [Option<PushOutcome>],
    ) -> Result<(), Fault> {
        let given = &definitions.by_content;
        let mut ids: HashMap<ContentId, u64> = HashMap::new();
        let mut unsure: BTreeSet<u64> = BTreeSet::new();
        // A stack that was used yesterday is copied and need not come again. One that was not is
        // asked for once more: its agent has it, and older days, of which there may be hundreds,
        // have no index by stack. Days over age may be dropped before they are copied from.
        let mut days: BTreeSet<u16> = BTreeSet::new();
        {
            let known = lock(self.known);
            for plan in planned.iter() {
                for row in &plan.window.rows {
                    let id = *ids
                        .entry(row.stack)
                        .or_insert_with(|| self.keys.stack(row.stack));
                    if id != 0 && !known.has(plan.place.day(), id) {
                        unsure.insert(id);
                        days.extend(around(plan.place.day()));
                    }
                }
            }
        }
        let unsure: Vec<u64> = unsure.into_iter().collect();
        days.retain(|&day| day >= oldest_day);
        let found = self.look_up(&unsure, &days).await?;
        let mut coming = HashSet::new();
        planned.retain(|plan| {
            let missing = self.missing(plan, &ids, &found, given, &coming);
            let complete = missing.is_empty();
            if complete {
                // A stack that is known to be on this window's day may be on no day near another's.
                let stacks = plan.window.rows.iter().map(|row| row.stack);
                coming.extend(stacks.filter(|stack| given.contains_key(stack)));
            }
            answers[plan.at] = Some(if complete {
                PushOutcome::Stored
            } else {
                PushOutcome::NeedStacks(missing)
            });
            complete
        });
        let mut batch = Batch::default();
        for plan in planned.iter() {
            self.add(&mut batch, plan, definitions, &ids, &found);
        }
        self.insert(batch).await
    }

    /// Stacks that a window lacks: none when all of them are defined or in the database. Otherwise
    /// also those that only another window of the push defines: that one may be stored or not, and
    /// need not come again with this one. `coming` are the stacks of windows
    /// before it, which this push stores.
    fn missing(
        &self,
        plan: &Planned<'_>,
        ids: &HashMap<ContentId, u64>,
        found: &Found,
        given: &HashMap<ContentId, StackId>,
        coming: &HashSet<ContentId>,
    ) -> Vec<ContentId> {
        let known = lock(self.known);
        let mut seen = HashSet::new();
        let mut missing = Vec::new();
        let mut is_complete = true;
        for Row { stack, .. } in &plan.window.rows {
            let id = ids.get(stack).copied().unwrap_or_default();
            if id == 0 || !seen.insert(id) || known.has(plan.place.day(), id) {
                continue;
            }
            if !found.contains_key(&id) && !coming.contains(stack) {
                is_complete &= given.contains_key(stack);
                missing.push(*stack);
            }
        }
        if is_complete {
            missing.clear();
        }
        missing
    }

    /// Adds the rows of one window.
    fn add(
        &self,
        batch: &mut Batch,
        plan: &Planned<'_>,
        definitions: &Definitions<'_>,
        ids: &HashMap<ContentId, u64>,
        found: &Found,
    ) {
        let window = plan.window;
        let place = plan.place;
        let origin = origin(plan.host, window.origin.sequence, place);
        let sets: Vec<(u64, u64)> = window
            .label_sets
            .iter()
            .map(|labels| self.add_labels(batch, place.day(), labels, &window.unit))
            .collect();
        let mut cells: BTreeMap<(u64, u64, u64, u8), Value> = BTreeMap::new();
        let mut totals: BTreeMap<u64, TotalRow> = BTreeMap::new();
        let total_of = |series| TotalRow {
            chunk: place.chunk,
            series,
            slot: place.slot,
            origin,
            n: 0,
            w: 0,
            lost_n: 0,
            lost_w: 0,
            expected_ns: 0,
            estimated_ns: 0,
            alone_ns: 0,
            alone_estimated_ns: 0,
            throttled_ns: 0,
            throttle_used_ns: 0,
            limit_millicores: 0,
        };
        for row in &window.rows {
            let (series, service) = sets[row.labels as usize];
            let id = ids.get(&row.stack).copied().unwrap_or_default();
            let stack = self.add_stack(batch, place.day(), id, row.stack, found, || {
                let given = definitions.by_content.get(&row.stack);
                given.map(|&stack| (definitions.dict, stack))
            });
            *cells
                .entry((series, service, stack, row.end as u8))
                .or_default() += row.value;
            let total = totals.entry(series).or_insert_with(|| total_of(series));
            let (n, w) = if row.end == StackEnd::Lost {
                (&mut total.lost_n, &mut total.lost_w)
            } else {
                (&mut total.n, &mut total.w)
            };
            *n += row.value.count;
            *w += row.value.weight;
        }
        for (account, alone) in window.accounts.iter().zip(alone(window)) {
            let series = sets[account.labels as usize].0;
            let total = totals.entry(series).or_insert_with(|| total_of(series));
            total.expected_ns += account.ns as i64;
            total.estimated_ns += account.estimated_ns as i64;
            total.alone_ns += alone.0;
            total.alone_estimated_ns += alone.1;
            let throttling = account.throttling();
            total.throttled_ns += throttling.ns;
            total.throttle_used_ns += throttling.used_ns;
            total.limit_millicores = total.limit_millicores.max(throttling.limit_millicores);
        }
        if window.accounts.is_empty() {
            // Expected because it was taken: neither lowers nor raises the share that is covered.
            for total in totals.values_mut() {
                total.alone_ns = total.w as i64;
                total.alone_estimated_ns = total.w as i64;
            }
        }
        let rows = cells.len() as u64;
        let of_window = |((series, service, stack, end), value): (_, Value)| FeedRow {
            chunk: place.chunk,
            slot: place.slot,
            series,
            service,
            stack,
            end,
            origin,
            n: value.count,
            w: value.weight,
            period: window.period,
        };
        batch.feed.extend(cells.into_iter().map(of_window));
        let sums = |of: fn(&TotalRow) -> u64| totals.values().map(of).sum::<u64>();
        let value = Value {
            count: sums(|total| total.n + total.lost_n),
            weight: sums(|total| total.w + total.lost_w),
        };
        let lost = Value {
            count: sums(|total| total.lost_n),
            weight: sums(|total| total.lost_w),
        };
        let ns = |of: fn(&TotalRow) -> i64| totals.values().map(of).sum::<i64>().max(0) as u64;
        let expected = (
            ns(|total| total.alone_ns),
            ns(|total| total.alone_estimated_ns),
        );
        batch.totals.extend(totals.into_values());
        add_window(batch, plan, origin, rows, (value, lost), expected);
    }

    /// Ids of a label set and of its service.
    fn add_labels(&self, batch: &mut Batch, day: u16, labels: &LabelSet, unit: &str) -> (u64, u64) {
        let service_labels = service_of(labels);
        let series = self.keys.series(labels, unit);
        let service = self.keys.series(&service_labels, unit);
        let row = |series, labels| SeriesRow {
            day,
            series,
            unit: unit.to_owned(),
            labels: pairs_of(labels),
        };
        if self.is_new(batch, day, series) {
            batch.series.push(row(series, labels));
        }
        // A service that is a label set as well has one id in two tables, distinguished by a flip.
        if self.is_new(batch, day, !service) {
            batch.services.push(row(service, &service_labels));
        }
        (series, service)
    }

    /// True when neither the database nor the batch is known to have it; from now on the batch has.
    fn is_new(&self, batch: &mut Batch, day: u16, id: u64) -> bool {
        !lock(self.known).has(day, id) && batch.learned.entry(day).or_default().insert(id)
    }

    /// Sees to it that the day's dictionary has the stack; returns the id to store.
    fn add_stack<'d>(
        &self,
        batch: &mut Batch,
        day: u16,
        id: u64,
        content: ContentId,
        found: &Found,
        definition: impl FnOnce() -> Option<(&'d Dictionary, StackId)>,
    ) -> u64 {
        if let Some((other, days)) = found.get(&id) {
            if *other != content {
                // Two stacks with one id among 2^64: the later one keeps its samples, not its
                // frames.
                self.counters.collisions.inc();
                return 0;
            }
            let newest = days.last().copied().unwrap_or(day);
            if self.is_new(batch, day, id) && !days.contains(&day) {
                batch.copies.entry((day, newest)).or_default().insert(id);
            }
            return id;
        }
        if id == 0 || !self.is_new(batch, day, id) {
            return id;
        }
        if let Some((dict, stack)) = definition() {
            let mut path: Vec<FrameId> = dict.stacks.leaf_first(stack).collect();
            path.reverse();
            let frames = path
                .into_iter()
                .map(|id| self.add_frame(batch, day, dict, id));
            let frames = frames.collect();
            batch.stacks.push(StackRow {
                day,
                stack: id,
                hash: content.0,
                frames,
            });
        }
        id
    }

    fn add_frame(&self, batch: &mut Batch, day: u16, dict: &Dictionary, id: FrameId) -> u64 {
        let frame = dict.frame(id);
        let id = self.keys.frame(&frame);
        if self.is_new(batch, day, id) {
            batch.frames.push(FrameRow {
                day,
                frame: id,
                kind: frame.kind as u8,
                unnamed: frame.unnamed as u8,
                line: frame.line,
                start_line: frame.start_line,
                function: frame.function.to_owned(),
                module: frame.module.to_owned(),
                file: frame.file.to_owned(),
                system_name: frame.system_name.to_owned(),
            });
        }
        id
    }

    /// Writes to its end what was started when the server went away, before anything else: the same
    /// samples under the same token, so that what it took of them does not count twice. Their
    /// agents come again as they like.
    async fn finish(&self) -> Result<(), Fault> {
        let Some(mut batch) = lock(self.unfinished).take() else {
            return Ok(());
        };
        let windows = batch.windows.iter();
        let keys = windows.map(|row| ((row.chunk / 86_400) as u16, row.host, row.sequence));
        match self.stored(&keys.collect::<Vec<_>>()).await {
            Ok(stored) if stored.is_empty() && batch.tries < TRIES_MAX => {
                batch.tries += 1;
                self.insert(batch).await
            }
            // The last insert was done, or agents went to another collector: the others come again.
            Ok(_) => Ok(()),
            Err(fault) => {
                *lock(self.unfinished) = Some(batch);
                Err(fault)
            }
        }
    }

    /// Writes the rows. What the server is away for is remembered.
    async fn insert(&self, batch: Batch) -> Result<(), Fault> {
        if batch.windows.is_empty() {
            return Ok(());
        }
        let written = self.write(&batch).await;
        match &written {
            Ok(()) => {
                let mut known = lock(self.known);
                for (day, ids) in batch.learned {
                    known.add(day, ids);
                }
            }
            Err(Fault::Away(_)) => *lock(self.unfinished) = Some(batch),
            Err(_) => {}
        }
        written
    }

    /// Writes the rows: dictionaries before what names them, windows last.
    async fn write(&self, batch: &Batch) -> Result<(), Fault> {
        for (&(day, from), stacks) in &batch.copies {
            self.copy(day, from, stacks).await?;
        }
        self.shard.insert("frames", &batch.frames).await?;
        self.shard.insert("stacks", &batch.stacks).await?;
        self.shard.insert("series", &batch.series).await?;
        self.shard.insert("services", &batch.services).await?;
        self.shard.insert("gaps", &batch.gaps).await?;
        self.shard.insert("totals", &batch.totals).await?;
        let token = batch.token();
        self.shard.insert_once("feed", &batch.feed, &token).await?;
        self.shard.insert("windows", &batch.windows).await?;
        let add = |counter: &metrics::Counter, more: usize| {
            counter.inc_by(more as u64);
        };
        add(&self.counters.windows, batch.windows.len());
        add(&self.counters.rows, batch.feed.len());
        add(&self.counters.stacks, batch.stacks.len());
        Ok(())
    }

    /// Copies stacks and their frames from the dictionary of another day, which has all of both.
    async fn copy(&self, day: u16, from: u16, stacks: &BTreeSet<u64>) -> Result<(), Fault> {
        let stacks: Vec<u64> = stacks.iter().copied().collect();
        for some in stacks.chunks(LOOKUP_MAX) {
            let mut frames = Statement::default();
            let ids = frames.numbers(some);
            frames.sql = format!(
                "INSERT INTO frames (day, frame, kind, unnamed, line, start_line, function, module, \
                 file, system_name) SELECT toDate({day}), frame, kind, unnamed, line, start_line, \
                 function, module, file, system_name FROM frames WHERE day = toDate({from}) AND frame IN \
                 (SELECT arrayJoin(frames) FROM stacks WHERE day = toDate({from}) \
                 AND stack IN (SELECT arrayJoin({ids}))) LIMIT 1 BY frame"
            );
            self.shard.run(&frames).await?;
            let mut copy = Statement::default();
            let ids = copy.numbers(some);
            copy.sql = format!(
                "INSERT INTO stacks SELECT toDate({day}), stack, hash, frames FROM stacks \
                 WHERE day = toDate({from}) AND stack IN (SELECT arrayJoin({ids})) LIMIT 1 BY stack"
            );
            self.shard.run(&copy).await?;
        }
        Ok(())
    }
}

fn add_window(
    batch: &mut Batch,
    plan: &Planned<'_>,
    origin: u64,
    rows: u64,
    (value, lost_value): (Value, Value),
    (expected_ns, estimated_ns): (u64, u64),
) {
    let (window, place) = (plan.window, plan.place);
    let host_id = &window.origin.host.host_id;
    let start_ns = window.range.start_unix_ns;
    let labels = pairs_of(&host_labels(window));
    let dropped = window.dropped_before.as_ref().map(|gap| {
        // Those who look for gaps rely on it.
        let from = start_ns.saturating_sub(GAP_S_MAX * NS_PER_S);
        let to = start_ns.saturating_add(GAP_AFTER_S_MAX * NS_PER_S);
        let range = gap.range;
        (
            gap,
            range.start_unix_ns.max(from),
            range.end_unix_ns.min(to),
        )
    });
    // One that ends before it starts says nothing.
    if let Some((gap, from_ns, to_ns)) = dropped.filter(|(_, from, to)| from < to) {
        batch.gaps.push(GapRow {
            chunk: place.chunk,
            host: plan.host,
            sequence: window.origin.sequence,
            host_id: host_id.clone(),
            boot: window.origin.host.boot_id,
            labels: labels.clone(),
            from_ns,
            to_ns,
            windows: gap.windows,
            samples: gap.samples,
            cause: gap.cause.clone(),
        });
    }
    // Counters of one window; larger ones are nonsense that must not make sums wrap.
    let bounded = |counter: u64| counter.min(WEIGHT_MAX);
    // Those that stand in a column of the window. The others are counted over its samples; who adds
    // a field decides which it is.
    let Quality {
        idle,
        lost,
        throttled,
        malformed,
        reduced,
        lost_late,
        taken: _,
        folded: _,
        truncated: _,
        depth_limit: _,
        unnamed: _,
        lost_samples: _,
    } = window.quality;
    let length = window
        .range
        .end_unix_ns
        .abs_diff(window.range.start_unix_ns);
    let pressure = PressureSum::of(window.pressure, length);
    batch.windows.push(WindowRow {
        chunk: place.chunk,
        slot: place.slot,
        host: plan.host,
        sequence: window.origin.sequence,
        origin,
        host_id: host_id.clone(),
        boot: window.origin.host.boot_id,
        start_ns,
        end_ns: window.range.end_unix_ns,
        event: window.event.clone(),
        unit: window.unit.clone(),
        period: window.period,
        labels,
        idle: bounded(idle),
        lost: bounded(lost),
        throttled: bounded(throttled),
        malformed: bounded(malformed),
        reduced: bounded(reduced),
        lost_late: bounded(lost_late),
        measured: u8::from(!window.accounts.is_empty()),
        expected_ns,
        estimated_ns,
        n: value.count,
        w: value.weight,
        rows,
        lost_n: lost_value.count,
        lost_w: lost_value.weight,
        pressure_known_ns: pressure.covered_ns,
        pressure_cpu_ns: pressure.cpu_ns,
        pressure_memory_ns: pressure.memory_ns,
        pressure_io_ns: pressure.io_ns,
    });
}
