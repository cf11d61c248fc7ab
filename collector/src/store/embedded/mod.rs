//! The store that needs nothing installed: a directory of partitions by time, and a write-ahead log.
//!
//! ```text
//! DIR/lock              held while a process has the store open
//! DIR/layout            length of a partition
//! DIR/hosts             what is known of hosts, rewritten as a whole
//! DIR/manifest          what a start needs of partitions that have not changed since
//! DIR/evicted           up to when the disk budget removed partitions
//! DIR/wal/NUMBER.wal    windows that are in no partition's file yet
//! DIR/wal/*.dict        dictionaries of partitions, once more, for replaying without their files
//! DIR/wal/*.removed     partitions whose records are passed over
//! DIR/wal/*.unusable    segments of which something could not be replayed
//! DIR/partitions/SECONDS.sqlite   six hours each (an option), named by their begin
//! DIR/partitions/SECONDS.{1m,10m,1h}.sqlite   the same, coarser, in the place of the one before
//! DIR/partitions/*.damaged        set aside
//! ```
//!
//! A push gives its windows dense ids of their partition (`prepare`), adds one record a window to a
//! batch, and waits until one of the waiting threads has written and synced the batch (`wal`). Then
//! the windows are put in memory (`memtable`), where queries find them. Ten minutes later they are
//! written as columns (`encode`, `block`) into the partition's file (`file`) in one transaction,
//! together with the entries of the dictionary (`dict`) that they use, and the log is cut.
//!
//! A window belongs to the partition, and to the chunk of ten minutes, in which it begins; a repeat of it
//! is recognised by the numbers that all partitions keep. After a crash the log is replayed; a record
//! whose chunk is in the file up to that record, is passed over (`replay`).
//!
//! What is acknowledged is in the log until it is in a file, and the log needs no file to be read: a
//! partition's file that is destroyed takes with it what had been flushed into it, and nothing else.
//!
//! Clocks: none. Callers say what time it is.

mod block;
mod boots;
mod coarsen;
mod codec;
mod compact;
mod counters;
mod defined;
mod dict;
mod dictlog;
mod encode;
mod evicted;
mod file;
mod host_index;
mod hosts;
mod leftovers;
mod level;
mod manifest;
mod marks;
mod memtable;
mod meta;
mod options;
mod order;
mod partition;
mod prepare;
mod push;
mod query;
pub mod readers;
mod recover;
mod replay;
mod seen;
mod summaries;
mod tidy;
mod upkeep;
mod wal;

pub use options::{OpenError, Options};

use super::names::{FrameNaming, Named, NamedBy, Nameless, Names};
use super::{
    Cancel, Defined, HostRecord, Limits, NewWindow, NoticeBoard, StoreError, StoreStatus, Taken,
    TimeRange, WindowSink,
};
use crate::sync::{lock, read, write};
use counters::Counters;
use dict::Dict;
use file::FileError;
use host_index::HostIndex;
use hosts::HostTable;
use partition::Partition;
use profile::Dictionary;
use push::Writer;
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, RwLock, TryLockError, Weak};
use std::time::{Duration, Instant};
use wal::Wal;

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

/// A store in a directory. See the module.
pub struct EmbeddedStore {
    dir: PathBuf,
    options: Options,
    /// Locked for as long as the store is open.
    _lock: recover::DirectoryLock,
    /// By begin.
    partitions: RwLock<BTreeMap<i64, Arc<Partition>>>,
    /// What is on its way into the log.
    writer: Mutex<Writer>,
    /// A batch was written, or failed.
    written: Condvar,
    wal: Mutex<Wal>,
    /// Held by whoever flushes or removes partitions.
    upkeep: Mutex<()>,
    /// Held by whoever compacts or makes coarser; taken before `upkeep`.
    tidy: Mutex<tidy::Tidy>,
    hosts: Mutex<HostTable>,
    /// Every window's host, number and time.
    host_index: RwLock<HostIndex>,
    counters: Counters,
    /// What does not work, by what it is about.
    troubles: Mutex<BTreeMap<String, String>>,
    /// Names of partitions set aside, with the time they held.
    damaged: Mutex<Vec<(TimeRange, String)>>,
    /// Partitions that were removed while the log had records of them, with the number of the first
    /// record after those.
    removed: Mutex<BTreeMap<dictlog::Ids, u64>>,
    /// End of the last partition that the disk budget removed.
    evicted_before: AtomicI64,
    /// When the manifest was written last, since the Unix epoch. Unit: nanoseconds.
    manifest_unix_ns: AtomicI64,
    uses: AtomicU64,
    /// Partitions that keep connections, the one read last at the end.
    connected: Mutex<VecDeque<Weak<Partition>>>,
    /// Memory of dictionaries that queries loaded since it was last seen whether all fit. Unit:
    /// bytes.
    loaded_bytes: AtomicUsize,
    closed: AtomicBool,
    names: NamedBy,
}

impl EmbeddedStore {
    /// Names what of a dictionary agents could not name, as far as the time goes. What another
    /// query looks up is waited for.
    fn name_frames(&self, dict: &RwLock<Dict>, limits: &Limits) {
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
    fn name_ahead(&self) {
        let limits = Limits {
            cancel: Cancel::default(),
            deadline: Instant::now() + NAME_AHEAD,
            memory_bytes: 0,
            nodes: 0,
            lines: 0,
        };
        let newest = read(&self.partitions).values().next_back().cloned();
        if let Some(dict) = newest.and_then(|newest| newest.dict_in_memory()) {
            self.name_frames(&dict, &limits);
        }
    }

    /// The partition that an instant belongs to.
    fn partition_start(&self, at: i64) -> i64 {
        let len = self.options.partition_len();
        at.div_euclid(len).saturating_mul(len)
    }

    fn use_partition(&self, partition: &Partition) {
        let now = self.uses.fetch_add(1, Ordering::Relaxed);
        partition.used.store(now, Ordering::Relaxed);
    }

    /// Says, or no longer says, that something does not work.
    fn set_trouble(&self, about: &str, trouble: Option<String>) {
        let mut troubles = lock(&self.troubles);
        match trouble {
            Some(text) => drop(troubles.insert(about.to_owned(), text)),
            None => drop(troubles.remove(about)),
        }
    }

    /// What a caller is told when a partition's file fails; a damaged one is marked to be set aside.
    fn file_error(
        &self,
        operation: &'static str,
        partition: &Partition,
        error: FileError,
    ) -> StoreError {
        let path = partition.path.display();
        match error {
            FileError::Damaged(text) => {
                self.mark_damaged(partition, &text);
                StoreError::Engine {
                    operation,
                    message: format!("`{path}` is damaged: {text}"),
                }
            }
            FileError::Unavailable(text) => {
                StoreError::Unavailable(format!("failed to {operation} of `{path}`: {text}"))
            }
            FileError::Other(text) => StoreError::Engine {
                operation,
                message: format!("`{path}`: {text}"),
            },
        }
    }

    fn mark_damaged(&self, partition: &Partition, text: &str) {
        if partition.set_damaged() {
            self.counters
                .partitions_damaged
                .fetch_add(1, Ordering::Relaxed);
            self.note_damaged(partition.start, partition.end, &partition.path, text);
        }
    }

    fn note_damaged(&self, start: i64, end: i64, path: &std::path::Path, text: &str) {
        let text = format!("is damaged and set aside as `*.damaged`: {text}");
        self.note_unreadable((start, end), path, &text);
    }

    /// Says of some hours that their file cannot be read, in answers as well.
    fn note_unreadable(&self, (start, end): (i64, i64), path: &std::path::Path, text: &str) {
        let name = path
            .file_name()
            .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let range = TimeRange {
            start_unix_ns: start,
            end_unix_ns: end,
        };
        let trouble = format!(
            "partition `{name}` {text}; the others answer. Look at the disk; remove what was set aside \
             when it is of no use"
        );
        self.set_trouble(&format!("partition {name}"), Some(trouble));
        lock(&self.damaged).push((range, name));
    }

    fn check_open(&self) -> Result<(), StoreError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(StoreError::Unavailable("it is closed".to_owned()));
        }
        Ok(())
    }
}

impl FrameNaming for EmbeddedStore {
    fn name_by(&self, names: Arc<dyn Names>) {
        self.names.set(names);
    }
}

impl WindowSink for EmbeddedStore {
    fn push(
        &self,
        windows: &[NewWindow],
        definitions: &Dictionary,
        now_unix_ns: i64,
    ) -> Result<Vec<Taken>, StoreError> {
        let all = Arc::new(Defined::of(definitions));
        self.push_windows(windows, &[all], now_unix_ns)
    }

    fn push_defined(
        &self,
        windows: &[NewWindow],
        definitions: &[Arc<Defined>],
        now_unix_ns: i64,
    ) -> Result<Vec<Taken>, StoreError> {
        self.push_windows(windows, definitions, now_unix_ns)
    }

    fn knows_callers(&self) -> bool {
        true
    }

    fn put_hosts(&self, hosts: &[HostRecord]) -> Result<(), StoreError> {
        self.push_hosts(hosts)
    }

    fn maintain(&self, now_unix_ns: i64) -> Result<(), StoreError> {
        self.keep_up(now_unix_ns)
    }

    fn close(&self) -> Result<(), StoreError> {
        self.shut()
    }
}

impl NoticeBoard for EmbeddedStore {}

impl StoreStatus for EmbeddedStore {
    fn engine(&self) -> (&'static str, String) {
        ("embedded", format!("SQLite {}", rusqlite::version()))
    }

    fn counters(&self) -> Vec<(String, u64)> {
        self.all_counters()
    }

    fn degraded(&self) -> Vec<String> {
        let mut all: Vec<String> = lock(&self.troubles).values().cloned().collect();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let stacks = count(&self.counters.stacks_folded);
        if stacks > 0 {
            all.push(format!(
                "{stacks} rows were put under `[other]`: a partition's dictionary is full; raise \
                 partition_dictionary_bytes, or find what makes so many stacks"
            ));
        }
        let sets = count(&self.counters.label_sets_folded);
        if sets > 0 {
            all.push(format!(
                "{sets} label sets were put under `overflow`: a partition has too many; find the \
                 label whose values never repeat"
            ));
        }
        all
    }
}
