//! Reading for queries: state that they share. They read partitions through [`Catalog`] and name
//! the results; what they loaded stays in memory as far as it fits.

use super::catalog::Catalog;
use super::dict::Dict;
use super::log_writer::LogWriter;
use super::partition::Partition;
use crate::store::names::{Named, NamedBy, Nameless};
use crate::store::{Cancel, Limits};
use crate::sync::{lock, read, write};
use profile::Dictionary;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock, TryLockError, Weak};
use std::time::{Duration, Instant};

/// How long a query waits for another that looks the same names up, before it looks again.
const NAMES_WAIT: Duration = Duration::from_millis(5);

/// A dictionary that pushes go on with while it gets names.
struct Locked<'a>(&'a RwLock<Dict>);

impl Named for Locked<'_> {
    fn read<T>(&mut self, look: impl FnOnce(&Dictionary) -> T) -> T {
        look(&read(self.0).tables)
    }

    fn change(&mut self, change: impl FnOnce(&mut Dictionary)) {
        change(&mut write(self.0).tables);
    }
}

/// Most time that upkeep takes to look names up.
const NAME_AHEAD: Duration = Duration::from_millis(500);

/// Dictionaries may take this part of their memory more until it is seen whether all fit.
const LOADED_SHARE: usize = 8;

/// Most partitions that keep connections between queries. Questions of a page are about the last
/// hours, a partition or two; a query of more opens what it needs, which takes half a millisecond a
/// partition.
const CONNECTED_MAX: usize = 32;

/// See the module.
pub struct StoreReader {
    /// The partitions to read.
    pub catalog: Arc<Catalog>,
    /// Source of names of functions.
    pub names: NamedBy,
    log: Arc<LogWriter>,
    /// Partitions that keep connections, the one read last at the end.
    connected: Mutex<VecDeque<Weak<Partition>>>,
    /// Memory of dictionaries that queries loaded since it was last seen whether all fit. Unit:
    /// bytes.
    loaded_bytes: AtomicUsize,
}

impl StoreReader {
    /// A reader that has loaded nothing yet.
    pub fn new(catalog: Arc<Catalog>, log: Arc<LogWriter>) -> StoreReader {
        StoreReader {
            catalog,
            names: NamedBy::default(),
            log,
            connected: Mutex::default(),
            loaded_bytes: AtomicUsize::new(0),
        }
    }

    /// Names what of a dictionary agents could not name, as far as the time goes. What another
    /// query looks up is waited for.
    pub fn name_frames(&self, dict: &RwLock<Dict>, limits: &Limits) {
        let unnamed = Arc::clone(&read(dict).unnamed);
        loop {
            match unnamed.try_lock() {
                Ok(mut unnamed) => return self.names.name(Locked(dict), &mut unnamed, limits),
                Err(TryLockError::Poisoned(poisoned)) => {
                    // Frames that were being looked up are looked up again.
                    *poisoned.into_inner() = Nameless::default();
                    unnamed.clear_poison();
                }
                Err(TryLockError::WouldBlock) => {
                    if limits.cancel.is_cancelled() || Instant::now() >= limits.deadline {
                        return;
                    }
                    std::thread::sleep(NAMES_WAIT);
                }
            }
        }
    }

    /// Looks up what came since the last time, before somebody asks: what nobody knows yet can be
    /// fetched meanwhile. What is left goes on the next time.
    pub fn name_ahead(&self) {
        let limits = Limits {
            hosts: None,
            waiting: true,
            reports: true,
            cancel: Cancel::default(),
            deadline: Instant::now() + NAME_AHEAD,
            memory_bytes: 0,
            nodes: 0,
            lines: 0,
        };
        let newest = read(&self.catalog.partitions).values().next_back().cloned();
        if let Some(dict) = newest.and_then(|newest| newest.dict_in_memory()) {
            self.name_frames(&dict, &limits);
        }
    }

    /// Counts the dictionary that a query loaded; once enough are, those used longest ago are
    /// forgotten. To look after each would take a query of a year as many looks at all partitions
    /// as there are.
    pub fn note_loaded(&self, partition: &Partition) {
        let bytes = partition.dict_bytes().unwrap_or(0);
        let loaded = self.loaded_bytes.fetch_add(bytes, Ordering::Relaxed);
        if loaded.saturating_add(bytes) > self.catalog.options.dictionary_bytes / LOADED_SHARE {
            self.evict_dictionaries();
        }
    }

    /// Keeps connections of the partitions that queries read last, and closes those of others: a
    /// query of a year would leave three open files and two megabytes for each of its partitions.
    pub fn note_connected(&self, partition: &Arc<Partition>) {
        let mut connected = lock(&self.connected);
        let this = Arc::downgrade(partition);
        connected.retain(|other| !other.ptr_eq(&this));
        connected.push_back(this);
        let oldest = if connected.len() > CONNECTED_MAX {
            connected.pop_front()
        } else {
            None
        };
        drop(connected);
        if let Some(oldest) = oldest.and_then(|oldest| oldest.upgrade()) {
            oldest.close_readers();
        }
    }

    /// Forgets dictionaries used longest ago until the rest fits.
    pub fn evict_dictionaries(&self) {
        // A thread that pushes must not find its dictionary replaced.
        let Ok(_pushing) = self.log.pushing.try_lock() else {
            return;
        };
        self.loaded_bytes.store(0, Ordering::Relaxed);
        let mut loaded: Vec<(u64, usize, Arc<Partition>)> = Vec::new();
        for partition in self.catalog.readable(|_| true) {
            if let Some(bytes) = partition.dict_bytes() {
                let used = partition.used.load(Ordering::Relaxed);
                loaded.push((used, bytes, partition));
            }
        }
        loaded.sort_by_key(|(used, ..)| *used);
        let mut held: usize = loaded.iter().map(|(_, bytes, _)| bytes).sum();
        let newest = loaded.len().saturating_sub(1);
        for (_, bytes, partition) in &loaded[..newest] {
            if held <= self.catalog.options.dictionary_bytes {
                break;
            }
            if partition.evict() {
                held -= bytes;
            }
        }
    }
}
