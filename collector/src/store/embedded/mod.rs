//! The store that needs nothing installed: a directory of partitions by time, each with a
//! write-ahead log.
//!
//! ```text
//! DIR/lock              held while a process has the store open
//! DIR/layout            length of a partition
//! DIR/hosts             what is known of hosts, rewritten as a whole
//! DIR/manifest          what a start needs of partitions that have not changed since
//! DIR/evicted           up to when the disk budget removed partitions
//! DIR/wal/SECONDS/      the log of a partition: windows that are not in its file yet, and its
//!                       dictionary once more, for replaying without the file
//! DIR/wal/hosts/        hosts that are not in the file of hosts yet
//! DIR/wal/*.removed     logs of partitions whose removal has started
//! DIR/wal/*.unusable    segments of which something could not be replayed
//! DIR/partitions/SECONDS.sqlite   six hours each (an option), named by their start
//! DIR/partitions/SECONDS.{1m,10m,1h}.sqlite   the same, downsampled, in place of the one before
//! DIR/partitions/*.damaged        set aside
//! DIR/archive/          what is known of the archive, when there is one (`archive`)
//! ```
//!
//! A push gives its windows dense ids of their partition (`prepare`), adds one record per window to
//! a batch for each partition, and writes and syncs the batches (`wal`), usually one. Then the
//! windows are put in memory (`memtable`), where queries find them. Ten minutes later they are
//! written as columns (`encode`, `block`) into the partition's file (`file`) in one transaction,
//! together with the entries of the dictionary (`dict`) that they use, and the log is cut
//! (`partition_log`).
//!
//! A window belongs to the partition, and to the chunk of ten minutes, in which it starts; repeats
//! are recognized by the window numbers that all partitions store. After a crash the log is
//! replayed; a record is skipped if its chunk is in the file up to that record (`replay`).
//!
//! Acknowledged windows are in the log until they are in a file, and the log can be read without a
//! file: if a partition's file is destroyed, only what had been flushed into it is lost.
//!
//! It uses no clock. Callers pass the time.
//!
//! The parts of the store: `Catalog` is the shared state, `LogWriter` writes, `StoreReader` reads,
//! `Maintenance` cleans up.

mod archive;
mod archiver;
mod block;
mod catalog;
mod ceiling;
mod chunk;
mod chunk_slice;
mod codec;
mod compact;
mod counters;
mod defined;
mod dict;
mod dict_version;
mod downsample;
mod encode;
mod eviction_watermark;
mod file;
mod host_index;
mod host_state;
mod hosts;
mod level;
mod log_record;
mod log_writer;
mod maintenance;
mod manifest;
mod manifest_entry;
mod memtable;
mod meta;
mod options;
mod order;
mod partition;
mod partition_log;
mod prepare;
mod quarantine;
mod query;
mod read_file;
mod reader;
pub mod readers;
mod recover;
mod replay;
mod sequence_set;
mod summaries;
mod table;
mod wal;
mod windows;

pub use archive::{ArchiveError, ArchiveOptions, BucketOptions, Owner};
pub use options::{OpenError, Options};

use super::names::{FrameNaming, Names};
use super::{
    Cancel, Defined, HostRecord, NewWindow, NoticeBoard, PushOutcome, StoreError, StoreStatus,
    TimeRange, WindowSink,
};
use crate::sync::{lock, read};
use archiver::Archiver;
use catalog::Catalog;
use level::Level;
use log_writer::LogWriter;
use maintenance::Maintenance;
use metrics::{Family, gather};
use profile::Dictionary;
use reader::StoreReader;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A store in a directory. See the module.
pub struct EmbeddedStore {
    catalog: Arc<Catalog>,
    log: Arc<LogWriter>,
    reader: StoreReader,
    maintenance: Arc<Maintenance>,
    archiver: Archiver,
    /// Locked for as long as the store is open.
    _lock: recover::DirectoryLock,
}

impl EmbeddedStore {
    fn push_all(
        &self,
        windows: &[NewWindow],
        definitions: &[Arc<Defined>],
        now_unix_ns: i64,
    ) -> Result<Vec<PushOutcome>, StoreError> {
        self.catalog.check_open()?;
        self.maintenance.apply_backpressure()?;
        let taken = self.log.push_windows(windows, definitions, now_unix_ns)?;
        self.maintenance.flush_when_large();
        Ok(taken)
    }

    fn sizes(&self) -> Sizes {
        let partitions = self.catalog.all_partitions();
        let bytes_of = |level: Level| {
            let of_level = partitions.iter().filter(|of| of.level == level);
            of_level.map(|of| of.bytes()).sum::<u64>()
        };
        let on_disk: u64 = partitions.iter().map(|partition| partition.bytes()).sum();
        let beside = self.maintenance.bytes_beside_partitions();
        let aside = quarantine::list(&self.catalog.dir);
        let mut sizes = Sizes {
            partitions: partitions.len() as u64,
            levels: Level::ALL.map(|level| (level.name(), bytes_of(level))),
            bytes: on_disk.saturating_add(beside),
            quarantined_bytes: aside.iter().map(|quarantined| quarantined.bytes).sum(),
            bytes_max: self.catalog.options.disk_bytes,
            log_bytes: self.catalog.log_bytes(),
            memtable_bytes: self.catalog.mem_bytes() as u64,
            ..Sizes::default()
        };
        let dicts = partitions
            .iter()
            .filter_map(|partition| partition.dict_in_memory());
        for dict in dicts {
            let dict = read(&dict);
            sizes.dictionary_bytes += dict.heap_bytes() as u64;
            sizes.stacks += dict.tables.stacks.len() as u64;
            sizes.series += dict.series.len() as u64;
        }
        sizes
    }
}

/// Current sizes of the store.
#[derive(Default)]
struct Sizes {
    partitions: u64,
    levels: [(&'static str, u64); Level::ALL.len()],
    bytes: u64,
    quarantined_bytes: u64,
    bytes_max: u64,
    log_bytes: u64,
    memtable_bytes: u64,
    dictionary_bytes: u64,
    stacks: u64,
    series: u64,
}

metrics::rows! { SIZES: Sizes;
    /// Partitions in use.
    Gauge fleetprof_store_partitions = |s| s.partitions;
    /// Disk space of partitions, by resolution.
    Gauge fleetprof_store_level_bytes{level} = |s| s.levels;
    /// Disk space of the store.
    Gauge fleetprof_store_bytes = |s| s.bytes;
    /// Disk space the store may use; 0 if there is no limit.
    Gauge fleetprof_store_bytes_max = |s| s.bytes_max;
    /// Disk space of damaged partitions and unusable log segments that were set aside.
    Gauge fleetprof_store_quarantined_bytes = |s| s.quarantined_bytes;
    /// Size of the write-ahead log.
    Gauge fleetprof_store_log_bytes = |s| s.log_bytes;
    /// Memory for windows that are in the log but not yet in a partition.
    Gauge fleetprof_store_memtable_bytes = |s| s.memtable_bytes;
    /// Memory for dictionaries of partitions.
    Gauge fleetprof_store_dictionary_bytes = |s| s.dictionary_bytes;
    /// Stacks in the dictionaries in memory.
    Gauge fleetprof_store_stacks = |s| s.stacks;
    /// Label sets in the dictionaries in memory.
    Gauge fleetprof_store_series = |s| s.series;
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        if !self.catalog.closed.load(Ordering::Acquire) {
            // Files only: what memory has is in the log, as after a crash.
            for partition in self.catalog.all_partitions() {
                partition.close_files();
            }
        }
    }
}

impl FrameNaming for EmbeddedStore {
    fn name_by(&self, names: Arc<dyn Names>) {
        self.reader.names.set(names);
    }
}

impl WindowSink for EmbeddedStore {
    fn push(
        &self,
        windows: &[NewWindow],
        definitions: &Dictionary,
        now_unix_ns: i64,
    ) -> Result<Vec<PushOutcome>, StoreError> {
        let all = Arc::new(Defined::of(definitions));
        self.push_all(windows, &[all], now_unix_ns)
    }

    fn push_defined(
        &self,
        windows: &[NewWindow],
        definitions: &[Arc<Defined>],
        now_unix_ns: i64,
    ) -> Result<Vec<PushOutcome>, StoreError> {
        self.push_all(windows, definitions, now_unix_ns)
    }

    fn knows_callers(&self) -> bool {
        true
    }

    fn put_hosts(&self, hosts: &[HostRecord]) -> Result<(), StoreError> {
        self.catalog.check_open()?;
        self.log.push_hosts(hosts)
    }

    fn maintain(&self, now_unix_ns: i64) -> Result<(), StoreError> {
        self.catalog.check_open()?;
        let kept = self.maintenance.run(now_unix_ns);
        self.reader.evict_dictionaries();
        self.reader.name_ahead();
        kept
    }

    fn archive(&self, now_unix_ns: i64, cancel: &Cancel) -> Result<bool, StoreError> {
        self.catalog.check_open()?;
        self.archiver.step(now_unix_ns, cancel)
    }

    fn close(&self) -> Result<(), StoreError> {
        self.maintenance.close()
    }
}

impl NoticeBoard for EmbeddedStore {}

impl StoreStatus for EmbeddedStore {
    fn engine(&self) -> (&'static str, String) {
        ("embedded", format!("SQLite {}", rusqlite::version()))
    }

    fn metrics(&self) -> Vec<Family> {
        let mut all = self.catalog.counters.families();
        all.extend(gather(SIZES, &self.sizes()));
        all.extend(self.maintenance.ceiling.families());
        all.extend(self.archiver.families());
        all
    }

    fn issues(&self) -> Vec<String> {
        let mut all: Vec<String> = lock(&self.catalog.issues).values().cloned().collect();
        let stacks = self.catalog.counters.stacks_folded.get();
        if stacks > 0 {
            all.push(format!(
                "{stacks} rows are counted as `[other]`: the dictionary of a partition is full; \
                 raise partition_dictionary_bytes, or find the program with so many different \
                 stacks"
            ));
        }
        let sets = self.catalog.counters.label_sets_folded.get();
        if sets > 0 {
            all.push(format!(
                "{sets} label sets are counted as `overflow`: a partition has too many; find the \
                 label whose values never repeat"
            ));
        }
        all
    }
}
