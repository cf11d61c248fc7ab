//! Who the hosts are: which have a stream open, what they last said, and what is odd about them.
//!
//! Streams tell at once, under a lock that is held for microseconds; the store is told by
//! [`Hosts::flush`] from the upkeep's thread, which may block.

use super::limits::{CLOCK_WARNING_NS, HOST_INTERVAL, HOSTS_MAX, TWINS_FOR};
use crate::metrics::Metrics;
use crate::store::{HostFacts, HostKey, HostRecord, Limits, Store, StoreError, TimeRange};
use crate::time::Clock;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
}

#[derive(Default)]
struct Inner {
    /// What is known of each, as it is or will be in the store.
    known: HashMap<HostKey, Known>,
    /// Streams by host id. More than one while an old one lingers, or when two machines have one id.
    open: HashMap<String, Vec<OpenStream>>,
    /// What the store has not been told.
    unsaved: BTreeSet<HostKey>,
    /// What the store knew at the start has been read.
    loaded: bool,
    next: u64,
    /// Ids in use by two at once, and when that was last seen.
    twins: HashMap<String, Twins>,
}

struct Known {
    record: HostRecord,
    saved: Option<Instant>,
    /// Unit of the weights of its last window; empty until one came.
    unit: String,
}

struct OpenStream {
    number: u64,
    boot_id: [u8; 16],
    superseded: Arc<Notify>,
}

/// Two that call themselves by one id.
#[derive(Clone, Copy)]
struct Twins {
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
                "the host id is used by two boots at once: two machines share it (a cloned \
                 machine-id?), and are shown as one; give one of them another"
            }
            TwinKind::Agents => {
                "two agents push as this host in turns: one of them is one too many, and windows \
                 of one may be taken for repeats of the other's"
            }
        }
    }
}

/// An open stream; closes it when it is dropped.
pub struct Ticket {
    hosts: Arc<Hosts>,
    key: HostKey,
    number: u64,
    /// Notified when another stream of the same boot has begun.
    pub superseded: Arc<Notify>,
}

impl Hosts {
    /// Nobody yet.
    pub fn new(clock: Clock, metrics: Arc<Metrics>) -> Hosts {
        Hosts {
            inner: Mutex::default(),
            clock,
            metrics,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change below leaves the maps whole, so a panic elsewhere spoils nothing.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A stream of `key` begins. An older one of the same boot is told to end: its connection is most
    /// likely gone without a word.
    pub fn open(self: &Arc<Self>, key: &HostKey, facts: HostFacts, clock_ahead_ns: i64) -> Ticket {
        let superseded = Arc::new(Notify::new());
        let mut inner = self.lock();
        let number = inner.next;
        inner.next += 1;
        let streams = inner.open.entry(key.host_id.clone()).or_default();
        for older in streams.iter().filter(|open| open.boot_id == key.boot_id) {
            older.superseded.notify_one();
        }
        streams.push(OpenStream {
            number,
            boot_id: key.boot_id,
            superseded: superseded.clone(),
        });
        self.note(&mut inner, key, Some(facts), Some(clock_ahead_ns));
        drop(inner);
        self.metrics.streams.inc();
        self.metrics.streams_begun.inc();
        Ticket {
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
                record,
                saved: None,
                unit: String::new(),
            };
            inner.known.insert(key.clone(), known);
        }
        let Some(known) = inner.known.get_mut(key) else {
            return;
        };
        known.record.last_seen_unix_ns = now;
        let mut changed = false;
        if let Some(facts) = facts
            && known.record.facts != facts
        {
            known.record.facts = facts;
            changed = true;
        }
        if let Some(ahead) = clock_ahead_ns {
            changed |= known.record.clock_ahead_ns != ahead;
            known.record.clock_ahead_ns = ahead;
        }
        if changed
            || known
                .saved
                .is_none_or(|saved| saved.elapsed() >= HOST_INTERVAL)
        {
            inner.unsaved.insert(key.clone());
        }
    }

    /// Tells the store what it has not been told. Blocks.
    ///
    /// # Errors
    /// The first failure; what was not told is told next time.
    pub fn flush(&self, store: &dyn Store) -> Result<(), StoreError> {
        self.load(store)?;
        loop {
            let record = {
                let mut inner = self.lock();
                let Some(key) = inner.unsaved.pop_first() else {
                    return Ok(());
                };
                let Some(known) = inner.known.get_mut(&key) else {
                    continue;
                };
                known.saved = Some(Instant::now());
                known.record.clone()
            };
            if let Err(error) = store.put_host(&record) {
                self.metrics.hosts_failed.inc();
                self.lock().unsaved.insert(record.key);
                return Err(error);
            }
        }
    }

    /// Reads once what the store knows, so that hosts keep the day they were first seen.
    fn load(&self, store: &dyn Store) -> Result<(), StoreError> {
        if self.lock().loaded {
            return Ok(());
        }
        let now = self.clock.now_unix_ns();
        let range = TimeRange {
            start_unix_ns: now,
            end_unix_ns: now,
        };
        let limits = Limits {
            cancel: crate::store::Cancel::default(),
            deadline: Instant::now() + LOAD_TIMEOUT,
            memory_bytes: LOAD_BYTES_MAX,
            nodes: 0,
            lines: HOSTS_MAX,
        };
        let found = store.hosts(range, &limits)?;
        let mut inner = self.lock();
        for (record, _) in found {
            if let Some(known) = inner.known.get_mut(&record.key) {
                let first = &mut known.record.first_seen_unix_ns;
                *first = record.first_seen_unix_ns.min(*first);
            } else if inner.known.len() < HOSTS_MAX {
                let known = Known {
                    record,
                    saved: Some(Instant::now()),
                    unit: String::new(),
                };
                inner.known.insert(known.record.key.clone(), known);
            }
        }
        inner.loaded = true;
        Ok(())
    }

    /// The name of a host, for answers that know its id; empty when it is not known.
    pub fn hostname(&self, key: &HostKey) -> String {
        let inner = self.lock();
        let known = inner.known.get(key);
        known.map_or_else(String::new, |known| known.record.facts.hostname.clone())
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

    /// What an operator should know of a host, in sentences. `namesakes` are hosts, by id, that have
    /// the same name.
    pub fn warnings(&self, record: &HostRecord, namesakes: usize) -> Vec<String> {
        let mut warnings = Vec::new();
        let ahead = record.clock_ahead_ns;
        if ahead.unsigned_abs() >= CLOCK_WARNING_NS.unsigned_abs() {
            let seconds = ahead.unsigned_abs() as f64 / 1e9;
            let side = if ahead > 0 { "ahead of" } else { "behind" };
            warnings.push(format!(
                "its clock is {seconds:.1} s {side} the collector's: its windows stand at the wrong \
                 time"
            ));
        }
        let twins = self.lock().twins.get(&record.key.host_id).copied();
        if let Some(twins) = twins.filter(|twins| twins.seen.elapsed() < TWINS_FOR) {
            warnings.push(twins.kind.sentence().to_owned());
        }
        if namesakes > 1 {
            warnings.push(format!(
                "{namesakes} hosts with different ids have this name: the label `host` does not \
                 tell them apart"
            ));
        }
        warnings
    }
}

impl Inner {
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
        self.known.remove(&key).is_some()
    }

    fn mark_twins(&mut self, host_id: &str, kind: TwinKind) {
        if !self.twins.contains_key(host_id) {
            self.twins
                .retain(|_, twins| twins.seen.elapsed() < TWINS_FOR);
            if self.twins.len() >= HOSTS_MAX {
                return;
            }
            tracing::warn!(host_id, "{}", kind.sentence());
        }
        let seen = Instant::now();
        self.twins.insert(host_id.to_owned(), Twins { kind, seen });
    }
}

impl Ticket {
    /// The host sent a window with weights in `unit`.
    pub fn seen(&self, unit: &str) {
        let mut inner = self.hosts.lock();
        self.hosts.note(&mut inner, &self.key, None, None);
        if let Some(known) = inner.known.get_mut(&self.key)
            && known.unit != unit
        {
            unit.clone_into(&mut known.unit);
        }
        // An older stream of another boot that still sends, after a newer one began, is no leftover of
        // a reboot.
        let streams = inner.open.get(&self.key.host_id);
        let twins = streams.is_some_and(|streams| {
            let newer = |one: &OpenStream| one.number > self.number;
            streams
                .iter()
                .any(|one| newer(one) && one.boot_id != self.key.boot_id)
        });
        if twins {
            inner.mark_twins(&self.key.host_id, TwinKind::Boots);
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
            inner.mark_twins(&self.key.host_id, TwinKind::Agents);
        }
    }
}

impl Drop for Ticket {
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
        self.hosts.metrics.streams.sub(1);
    }
}
