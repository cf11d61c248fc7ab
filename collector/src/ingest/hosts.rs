//! The known hosts: which have an open stream, what they last reported, and what is wrong with
//! them.
//!
//! Streams report at once, under a lock that is held for microseconds. [`Hosts::flush`] informs the
//! store from the upkeep thread, which may block.

use super::judge::{self, HostActivity, LastWindow, Listening, Verdict, Windows};
use super::limits::{
    BLIND_HOSTS_MAX, HEALTH_BYTES_MAX, HOST_INTERVAL, HOSTS_MAX, HOSTS_TOGETHER, OTHERS_INTERVAL,
    SILENT_FOR_NS, SURVEY_INTERVAL, TWINS_FOR,
};
use crate::audit::{Audit, Event};
use crate::metrics::Metrics;
use crate::store::{HostFacts, HostKey, HostRecord, Limits, OpenStore, StoreError, TimeRange};
use crate::sync::lock;
use crate::time::Clock;
use proto::agent::Degradation;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Time the store may take to say which hosts it knows, once after a start.
const LOAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Memory it may take for that. Unit: bytes.
const LOAD_BYTES_MAX: usize = 512 << 20;

/// The hosts.
pub struct Hosts {
    inner: Mutex<Inner>,
    clock: Clock,
    metrics: Arc<Metrics>,
    /// Start of the collector, by its clock: no host was heard of before.
    started_unix_ns: i64,
    survey: Mutex<Arc<Survey>>,
    audit: OnceLock<Audit>,
}

/// A blind host, by its name, and why it is blind.
type Blind = (HostKey, String, Degradation);

/// The trouble of all hosts at one time.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// Hosts that are blind, those that are so the longest first; at most [`BLIND_HOSTS_MAX`].
    pub blind: Vec<Blind>,
    /// All that are blind.
    pub blind_total: u64,
    /// Hosts with warnings or errors, blind ones among them.
    pub warned: u64,
    taken: Option<Instant>,
}

#[derive(Default)]
struct Inner {
    /// Known hosts, as they are or will be in the store.
    known: HashMap<HostKey, Known>,
    /// Streams by host id. More than one while an old one lingers, or when two machines have one
    /// id.
    open: HashMap<String, Vec<OpenStream>>,
    /// Changes that the store does not have yet.
    unsaved: BTreeSet<HostKey>,
    /// When what the store knows was last read.
    loaded: Option<Instant>,
    next: u64,
    /// Memory for the health of all of `known`. Unit: bytes.
    health_bytes: usize,
    /// Ids in use by two at once, and when that was last seen.
    twins: HashMap<String, DuplicateHostId>,
}

struct Known {
    /// Shared with those that judge it without the lock.
    record: Arc<HostRecord>,
    saved: Option<Instant>,
    /// Unit of the weights of its last window; empty until one came.
    unit: String,
    windows: Windows,
}

/// State of a host at one time, copied out of the lock.
struct View {
    /// Its latest facts; `None` if only the store has them.
    record: Option<Arc<HostRecord>>,
    seen: HostActivity,
    twins: Option<TwinKind>,
}

struct OpenStream {
    number: u64,
    boot_id: [u8; 16],
    listening: Listening,
    superseded: Arc<Notify>,
}

/// Two that call themselves by one id.
#[derive(Clone, Copy)]
struct DuplicateHostId {
    kind: TwinKind,
    seen: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TwinKind {
    /// Two machines, or what looks like it: two boots at once.
    Boots,
    /// Two agents in one boot.
    Agents,
}

impl TwinKind {
    fn sentence(self) -> &'static str {
        match self {
            TwinKind::Boots => {
                "two boots use the same host id at once: two machines share the id (a cloned \
                 machine-id?) and appear as one; give one of them another id"
            }
            TwinKind::Agents => {
                "two agents push in turns with the id of this host: stop one of them, because \
                 windows of one may be mistaken for repeats of the other"
            }
        }
    }
}

/// An open stream; closes it when it is dropped.
pub struct StreamGuard {
    hosts: Arc<Hosts>,
    key: HostKey,
    number: u64,
    /// Notified when another stream of the same boot has started.
    pub superseded: Arc<Notify>,
}

impl Hosts {
    /// Creates it empty.
    pub fn new(clock: Clock, metrics: Arc<Metrics>) -> Hosts {
        Hosts {
            inner: Mutex::default(),
            started_unix_ns: clock.now_unix_ns(),
            clock,
            metrics,
            survey: Mutex::default(),
            audit: OnceLock::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change below leaves the maps consistent, so a panic elsewhere spoils nothing.
        lock(&self.inner)
    }

    /// Has it put on record when two use one id.
    pub fn audited_by(&self, audit: Audit) {
        // Nobody says so twice.
        let _ = self.audit.set(audit);
    }

    /// Tells of two that use the id of `key`, once as long as they do.
    fn mark_twins(&self, inner: &mut Inner, key: &HostKey, kind: TwinKind) {
        if !inner.mark_twins(&key.host_id, kind) {
            return;
        }
        let host_id = key.host_id.as_str();
        tracing::warn!(host_id, "{}", kind.sentence());
        let Some(audit) = self.audit.get() else {
            return;
        };
        let known = inner.known.get(key);
        let name = known.map_or("", |known| known.record.facts.hostname.as_str());
        let event = Event::by(name, String::new(), "host-duplicate");
        audit.note(
            event
                .with("host_id", host_id)
                .with("found", kind.sentence()),
        );
    }

    /// A stream of `key` starts. An older one of the same boot is asked to end: its connection is
    /// most likely gone without a word.
    pub fn open(
        self: &Arc<Self>,
        key: &HostKey,
        facts: HostFacts,
        clock_ahead_ns: i64,
    ) -> StreamGuard {
        let superseded = Arc::new(Notify::new());
        let mut inner = self.lock();
        let number = inner.next;
        inner.next += 1;
        let now = self.clock.now_unix_ns();
        let streams = inner.open.entry(key.host_id.clone()).or_default();
        for older in streams.iter().filter(|open| open.boot_id == key.boot_id) {
            older.superseded.notify_one();
        }
        streams.push(OpenStream {
            number,
            boot_id: key.boot_id,
            listening: Listening {
                open_since_unix_ns: now,
                answered_unix_ns: Some(now),
            },
            superseded: superseded.clone(),
        });
        self.note(&mut inner, key, Some(facts), Some(clock_ahead_ns));
        drop(inner);
        self.metrics.streams.inc();
        self.metrics.streams_opened.inc();
        StreamGuard {
            hosts: self.clone(),
            key: key.clone(),
            number,
            superseded,
        }
    }

    /// Remembers what a host said. Facts that are new are saved soon; a sign of life alone at most
    /// each [`HOST_INTERVAL`].
    fn note(
        &self,
        inner: &mut Inner,
        key: &HostKey,
        facts: Option<HostFacts>,
        clock_ahead_ns: Option<i64>,
    ) {
        let now = self.clock.now_unix_ns();
        if !inner.known.contains_key(key) {
            if inner.known.len() >= HOSTS_MAX && !inner.forget_one() {
                self.metrics.hosts_dropped.inc();
                return;
            }
            let record = HostRecord {
                key: key.clone(),
                facts: HostFacts::default(),
                first_seen_unix_ns: now,
                last_seen_unix_ns: now,
                clock_ahead_ns: 0,
            };
            let known = Known {
                record: Arc::new(record),
                saved: None,
                unit: String::new(),
                windows: Windows::default(),
            };
            inner.known.insert(key.clone(), known);
        }
        let Some(known) = inner.known.get_mut(key) else {
            return;
        };
        let record = Arc::make_mut(&mut known.record);
        record.last_seen_unix_ns = now;
        let mut changed = false;
        if let Some(mut facts) = facts {
            let before = record.facts.health.len();
            self.fit(&mut inner.health_bytes, before, &mut facts);
            changed = record.facts != facts;
            record.facts = facts;
        }
        if let Some(ahead) = clock_ahead_ns {
            changed |= record.clock_ahead_ns != ahead;
            record.clock_ahead_ns = ahead;
        }
        if changed
            || known
                .saved
                .is_none_or(|saved| saved.elapsed() >= HOST_INTERVAL)
        {
            inner.unsaved.insert(key.clone());
        }
    }

    /// Charges the health of a host, which took `before` bytes of `total`; drops its reasons when
    /// all hosts together take too much.
    fn fit(&self, total: &mut usize, before: usize, facts: &mut HostFacts) {
        *total = total.saturating_sub(before);
        if *total + facts.health.len() > HEALTH_BYTES_MAX {
            facts.health = judge::without_degradations(&facts.health);
            self.metrics.health_dropped.inc();
        }
        *total += facts.health.len();
    }

    /// Sends the store the changes that it does not have yet. Blocks.
    ///
    /// # Errors
    /// A failure; what was not told is told next time.
    pub fn flush(&self, store: &OpenStore) -> Result<(), StoreError> {
        let loaded = self.load(store);
        if loaded.is_err() && self.lock().loaded.is_none() {
            // Sending changes earlier would change the day that hosts were first seen.
            return loaded;
        }
        loop {
            let records = self.lock().take_unsaved(HOSTS_TOGETHER);
            if records.is_empty() {
                return loaded;
            }
            if let Err(error) = store.sink.put_hosts(&records) {
                self.metrics.hosts_failed.inc_by(records.len() as u64);
                let keys = records.into_iter().map(|record| record.key);
                self.lock().unsaved.extend(keys);
                return Err(error);
            }
        }
    }

    /// Reads what the store knows: once, so that hosts keep the day they were first seen, and
    /// repeatedly if other collectors add their hosts.
    fn load(&self, store: &OpenStore) -> Result<(), StoreError> {
        let due = |read: Instant| store.board.is_shared() && read.elapsed() >= OTHERS_INTERVAL;
        if self.lock().loaded.is_some_and(|read| !due(read)) {
            return Ok(());
        }
        let now = self.clock.now_unix_ns();
        let range = TimeRange {
            start_unix_ns: now,
            end_unix_ns: now,
        };
        let limits = Limits {
            hosts: None,
            waiting: true,
            reports: true,
            cancel: crate::store::Cancel::default(),
            deadline: Instant::now() + LOAD_TIMEOUT,
            memory_bytes: LOAD_BYTES_MAX,
            nodes: 0,
            lines: HOSTS_MAX,
        };
        let found = store.queries.hosts(range, &limits)?;
        let mut inner = self.lock();
        let inner = &mut *inner;
        for (mut record, _) in found {
            let total = &mut inner.health_bytes;
            if let Some(known) = inner.known.get_mut(&record.key) {
                let first = record.first_seen_unix_ns;
                let first = first.min(known.record.first_seen_unix_ns);
                if record.last_seen_unix_ns > known.record.last_seen_unix_ns {
                    self.fit(total, known.record.facts.health.len(), &mut record.facts);
                    known.record = Arc::new(record);
                }
                if known.record.first_seen_unix_ns != first {
                    Arc::make_mut(&mut known.record).first_seen_unix_ns = first;
                }
            } else if inner.known.len() < HOSTS_MAX {
                self.fit(total, 0, &mut record.facts);
                let known = Known {
                    record: Arc::new(record),
                    saved: Some(Instant::now()),
                    unit: String::new(),
                    windows: Windows::default(),
                };
                inner.known.insert(known.record.key.clone(), known);
            }
        }
        inner.loaded = Some(Instant::now());
        Ok(())
    }

    /// The name of a host, for answers that know its id; empty when it is not known.
    pub fn hostname(&self, key: &HostKey) -> String {
        let inner = self.lock();
        let known = inner.known.get(key);
        known.map_or_else(String::new, |known| known.record.facts.hostname.clone())
    }

    /// The labels of all hosts as they were said last, by id.
    pub fn labels(&self) -> HashMap<String, BTreeMap<String, String>> {
        let inner = self.lock();
        let mut newest: HashMap<&str, &HostRecord> = HashMap::new();
        for known in inner.known.values() {
            let record = &*known.record;
            let of_host = newest.entry(&record.key.host_id).or_insert(record);
            if record.last_seen_unix_ns > of_host.last_seen_unix_ns {
                *of_host = record;
            }
        }
        let newest = newest.into_iter();
        newest
            .map(|(id, record)| (id.to_owned(), record.facts.labels.clone()))
            .collect()
    }

    /// When the host was last heard of; the store knows that only to [`HOST_INTERVAL`].
    pub fn last_seen_unix_ns(&self, key: &HostKey) -> Option<i64> {
        let inner = self.lock();
        let known = inner.known.get(key);
        known.map(|known| known.record.last_seen_unix_ns)
    }

    /// Unit of the weights of the last window that came; empty when none did since the start.
    pub fn unit(&self, key: &HostKey) -> String {
        let inner = self.lock();
        let known = inner.known.get(key);
        known.map_or_else(String::new, |known| known.unit.clone())
    }

    /// True when a stream of this host is open.
    pub fn is_connected(&self, key: &HostKey) -> bool {
        let inner = self.lock();
        let streams = inner.open.get(&key.host_id);
        streams.is_some_and(|open| open.iter().any(|one| one.boot_id == key.boot_id))
    }

    /// Decides what is wrong with a host. `namesakes` are the ids of hosts with the same name; a
    /// host that `is_superseded` has booted again since.
    pub fn verdict(&self, record: &HostRecord, namesakes: usize, is_superseded: bool) -> Verdict {
        let mut view = self.lock().view(record, self.started_unix_ns);
        view.seen.is_superseded = is_superseded;
        // What it said last may not be in the store yet.
        let said = view.record.clone();
        let record = said.as_deref().unwrap_or(record);
        view.verdict(record, namesakes, self.clock.now_unix_ns())
    }

    /// The trouble of all hosts, as it was some seconds ago at most.
    pub fn survey(&self) -> Arc<Survey> {
        let survey = lock(&self.survey);
        Arc::clone(&survey)
    }

    /// Judges all hosts, when that is due, and logs which are blind and which are so no longer.
    pub fn look(&self) {
        let before = self.survey();
        let recent = |taken: Instant| taken.elapsed() < SURVEY_INTERVAL;
        if before.taken.is_some_and(recent) {
            return;
        }
        let new = Arc::new(self.survey_now());
        let now = self.clock.now_unix_ns();
        self.metrics.hosts_blind.set(new.blind_total);
        self.metrics.hosts_warned.set(new.warned);
        let inner = self.lock();
        let over = new.over(&before);
        let over: Vec<_> = over.map(|of| (of, inner.is_heard(of, now))).collect();
        drop(inner);
        new.log_after(&before, &over);
        *lock(&self.survey) = new;
    }

    fn survey_now(&self) -> Survey {
        let now = self.clock.now_unix_ns();
        let inner = self.lock();
        let mut newest: HashMap<&str, &Arc<HostRecord>> = HashMap::new();
        for known in inner.known.values() {
            let record = &known.record;
            let of_host = newest.entry(&record.key.host_id).or_insert(record);
            if record.last_seen_unix_ns > of_host.last_seen_unix_ns {
                *of_host = record;
            }
        }
        let newest = newest.into_values();
        let views: Vec<_> = newest
            .map(|record| (Arc::clone(record), inner.view(record, self.started_unix_ns)))
            .collect();
        // Streams wait for the lock; what agents said is read without it.
        drop(inner);
        let mut survey = Survey {
            taken: Some(Instant::now()),
            ..Survey::default()
        };
        for (record, view) in views {
            // How many have one name is in the list of hosts: nobody has to act on it at once.
            let verdict = view.verdict(&record, 1, now);
            survey.warned += u64::from(verdict.is_warning());
            let why = verdict.degradations.into_iter().next();
            if let (true, Some(why)) = (verdict.is_blind, why) {
                let name = record.facts.name(&record.key.host_id).to_owned();
                survey.blind.push((record.key.clone(), name, why));
            }
        }
        survey.blind_total = survey.blind.len() as u64;
        let order =
            |(key, _, why): &Blind| (why.since_unix_ns == 0, why.since_unix_ns, key.clone());
        survey.blind.sort_by_cached_key(order);
        survey.blind.truncate(BLIND_HOSTS_MAX);
        survey
    }
}

impl Survey {
    fn has(&self, key: &HostKey) -> bool {
        self.blind.iter().any(|(blind, ..)| blind == key)
    }

    /// Returns the hosts that were blind before and are no longer. When more hosts are blind than
    /// the survey keeps, it returns none, because the missing ones may still be blind.
    fn over<'a>(&'a self, before: &'a Survey) -> impl Iterator<Item = &'a Blind> {
        let all_told = self.blind_total <= BLIND_HOSTS_MAX as u64;
        let over = before.blind.iter().filter(|(key, ..)| !self.has(key));
        over.filter(move |_| all_told)
    }

    /// Logs what changed since `before`. Hosts beyond the bound are not logged one by one: their
    /// number says enough. `over` are those that are no longer blind, and whether they are still
    /// heard of.
    fn log_after(&self, before: &Survey, over: &[(&Blind, bool)]) {
        for (key, host, why) in self.blind.iter().filter(|(key, ..)| !before.has(key)) {
            let (host_id, reason) = (&key.host_id, &why.message);
            tracing::warn!(host, host_id, reason, "the host sends no usable samples");
        }
        for ((key, host, _), is_heard) in over {
            let host_id = &key.host_id;
            match is_heard {
                true => tracing::info!(host, host_id, "the host sends usable samples again"),
                false => tracing::warn!(
                    host,
                    host_id,
                    "a host that sent no usable samples has disappeared"
                ),
            }
        }
        if self.blind_total > BLIND_HOSTS_MAX as u64 && before.blind_total != self.blind_total {
            let hosts = self.blind_total;
            tracing::warn!(hosts, "many hosts send no usable samples");
        }
    }
}

impl Inner {
    /// Some changes that the store does not have yet; they then count as sent.
    fn take_unsaved(&mut self, most: usize) -> Vec<HostRecord> {
        let mut records = Vec::new();
        while records.len() < most
            && let Some(key) = self.unsaved.pop_first()
        {
            if let Some(known) = self.known.get_mut(&key) {
                known.saved = Some(Instant::now());
                records.push(HostRecord::clone(&known.record));
            }
        }
        records
    }

    /// Copies the data for judging a host out of the lock.
    fn view(&self, record: &HostRecord, started_unix_ns: i64) -> View {
        let key = &record.key;
        let known = self.known.get(key);
        let heard = known.map_or(i64::MIN, |known| known.record.last_seen_unix_ns);
        let twins = self.twins.get(&key.host_id);
        let twins = twins.filter(|twins| twins.seen.elapsed() < TWINS_FOR);
        View {
            record: known.map(|known| Arc::clone(&known.record)),
            seen: HostActivity {
                stream: self.newest(key).map(|open| open.listening),
                windows: known.map(|known| known.windows).unwrap_or_default(),
                heard_unix_ns: heard.max(record.last_seen_unix_ns).max(started_unix_ns),
                is_superseded: false,
            },
            twins: twins.map(|twins| twins.kind),
        }
    }

    /// The newest stream of a host; older ones were asked to end.
    fn newest(&self, key: &HostKey) -> Option<&OpenStream> {
        let streams = self.open.get(&key.host_id)?.iter();
        let of_boot = streams.filter(|open| open.boot_id == key.boot_id);
        of_boot.max_by_key(|open| open.number)
    }

    /// Whether a host that is blind no longer is there. That no windows come ends with the stream.
    fn is_heard(&self, (key, _, why): &Blind, now_unix_ns: i64) -> bool {
        let recent = |known: &Known| {
            let silent_ns = now_unix_ns.saturating_sub(known.record.last_seen_unix_ns);
            let stopping = judge::health(&known.record.facts).is_some_and(|health| health.stopping);
            silent_ns < SILENT_FOR_NS && !stopping && why.id != judge::NO_WINDOWS
        };
        self.open.contains_key(&key.host_id) || self.known.get(key).is_some_and(recent)
    }

    /// Forgets the host that was silent the longest, unless it has a stream; true when one went.
    fn forget_one(&mut self) -> bool {
        let open = &self.open;
        let gone = self
            .known
            .values()
            .filter(|known| !open.contains_key(&known.record.key.host_id))
            .min_by_key(|known| known.record.last_seen_unix_ns)
            .map(|known| known.record.key.clone());
        let Some(key) = gone else {
            return false;
        };
        self.unsaved.remove(&key);
        let gone = self.known.remove(&key);
        let bytes = gone.as_ref().map_or(0, |of| of.record.facts.health.len());
        self.health_bytes = self.health_bytes.saturating_sub(bytes);
        gone.is_some()
    }

    /// Notes that two have an id; true when that is new.
    fn mark_twins(&mut self, host_id: &str, kind: TwinKind) -> bool {
        let is_recent = |twins: &DuplicateHostId| twins.seen.elapsed() < TWINS_FOR;
        let is_new = !self.twins.get(host_id).is_some_and(is_recent);
        if is_new {
            self.twins.retain(|_, twins| is_recent(twins));
            if self.twins.len() >= HOSTS_MAX {
                return false;
            }
        }
        let seen = Instant::now();
        self.twins
            .insert(host_id.to_owned(), DuplicateHostId { kind, seen });
        is_new
    }
}

impl View {
    fn verdict(&self, record: &HostRecord, namesakes: usize, now_unix_ns: i64) -> Verdict {
        let mut verdict = judge::judge(record, &self.seen, now_unix_ns);
        verdict.add(judge::clock(record.clock_ahead_ns));
        let twins = self.twins.map(TwinKind::sentence);
        verdict.add(twins.map(|sentence| judge::warning("twins", sentence.to_owned())));
        verdict.add((namesakes > 1).then(|| {
            let message = format!(
                "{namesakes} hosts with different ids have this name: the label `host` cannot \
                 distinguish them"
            );
            judge::warning("namesakes", message)
        }));
        verdict
    }
}

impl StreamGuard {
    /// The host sent a window of this time, with weights in `unit` and so many samples taken and
    /// lost. An answer is owed until [`StreamGuard::answered`].
    pub fn seen(&self, unit: &str, range: TimeRange, (taken, lost): (u64, u64)) {
        let received_unix_ns = self.hosts.clock.now_unix_ns();
        let mut inner = self.hosts.lock();
        self.hosts.note(&mut inner, &self.key, None, None);
        let listening = inner.newest(&self.key).map(|open| open.listening);
        if let Some(known) = inner.known.get_mut(&self.key) {
            if known.unit != unit {
                unit.clone_into(&mut known.unit);
            }
            let ahead_ns = known.record.clock_ahead_ns;
            let window = LastWindow {
                received_unix_ns,
                end_unix_ns: range.end_unix_ns.saturating_sub(ahead_ns),
                length_ns: range.end_unix_ns.abs_diff(range.start_unix_ns),
                taken,
                lost,
            };
            if let Some(listening) = listening {
                known.windows.came(window, listening);
            }
        }
        self.note_answered(&mut inner, None);
        // An older stream of another boot that still sends, after a newer one started, is no
        // leftover of a reboot.
        let streams = inner.open.get(&self.key.host_id);
        let twins = streams.is_some_and(|streams| {
            let newer = |one: &OpenStream| one.number > self.number;
            streams
                .iter()
                .any(|one| newer(one) && one.boot_id != self.key.boot_id)
        });
        if twins {
            self.hosts
                .mark_twins(&mut inner, &self.key, TwinKind::Boots);
        }
    }

    /// All windows that came over this stream have their answer.
    pub fn answered(&self) {
        let now = self.hosts.clock.now_unix_ns();
        self.note_answered(&mut self.hosts.lock(), Some(now));
    }

    fn note_answered(&self, inner: &mut Inner, answered_unix_ns: Option<i64>) {
        let streams = inner.open.get_mut(&self.key.host_id).into_iter().flatten();
        for own in streams.filter(|open| open.number == self.number) {
            own.listening.answered_unix_ns = answered_unix_ns;
        }
    }

    /// The host said other facts.
    pub fn facts(&self, facts: HostFacts) {
        let mut inner = self.hosts.lock();
        self.hosts.note(&mut inner, &self.key, Some(facts), None);
    }

    /// Another stream of this boot took over from this one. One that was `alive` then belongs to
    /// another agent.
    pub fn was_superseded(&self, alive: bool) {
        if alive {
            let mut inner = self.hosts.lock();
            self.hosts
                .mark_twins(&mut inner, &self.key, TwinKind::Agents);
        }
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        let mut inner = self.hosts.lock();
        if let Some(streams) = inner.open.get_mut(&self.key.host_id) {
            streams.retain(|open| open.number != self.number);
            if streams.is_empty() {
                inner.open.remove(&self.key.host_id);
            }
        }
        // When it was last seen should be right for a host that does not come back.
        if inner.known.contains_key(&self.key) {
            inner.unsaved.insert(self.key.clone());
        }
        drop(inner);
        self.hosts.metrics.streams.dec();
    }
}
