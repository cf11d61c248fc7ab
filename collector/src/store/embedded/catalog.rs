//! State shared by all parts of the store: its directory, its partitions, its hosts, and its
//! problems.
//!
//! Nothing here writes to the log or to a partition's file.

use super::archive::{Archive, ArchivedObject, Entry};
use super::counters::Counters;
use super::file::{FileError, remove};
use super::host_index::HostIndex;
use super::hosts::HostTable;
use super::level::Level;
use super::options::Options;
use super::partition::Partition;
use super::wal::LogLocation;
use super::{manifest, partition_log};
use crate::store::{StoreError, TimeRange};
use crate::sync::{lock, read, write};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};

/// See the module.
pub struct Catalog {
    /// The store's directory.
    pub dir: PathBuf,
    /// How the store was opened.
    pub options: Options,
    /// By start.
    pub partitions: RwLock<BTreeMap<i64, Arc<Partition>>>,
    /// Partitions that are read from the archive, by start: those of which no file is here. Changed
    /// by [`Catalog::show_archived`] alone.
    archived: RwLock<BTreeMap<i64, Vec<Arc<Partition>>>>,
    /// The archive, if there is one.
    pub archive: Option<Arc<Archive>>,
    /// Facts that hosts report.
    pub hosts: Mutex<HostTable>,
    /// Every window's host, number and time.
    pub host_index: RwLock<HostIndex>,
    /// Counters of the store.
    pub counters: Counters,
    /// Problems, by subject.
    pub issues: Mutex<BTreeMap<String, String>>,
    /// Names of partitions set aside, with the time they held.
    pub damaged: Mutex<Vec<(TimeRange, String)>>,
    /// End of the last partition that the disk budget removed.
    pub evicted_before: AtomicI64,
    /// It accepts nothing any more.
    pub closed: AtomicBool,
    uses: AtomicU64,
}

impl Catalog {
    /// A catalog without partitions and hosts yet.
    pub fn new(
        dir: &Path,
        options: Options,
        archive: Option<Arc<Archive>>,
        evicted_before: i64,
    ) -> Catalog {
        Catalog {
            archive,
            archived: RwLock::default(),
            dir: dir.to_owned(),
            options,
            partitions: RwLock::default(),
            hosts: Mutex::default(),
            host_index: RwLock::default(),
            counters: Counters::default(),
            issues: Mutex::default(),
            damaged: Mutex::default(),
            evicted_before: AtomicI64::new(evicted_before),
            closed: AtomicBool::new(false),
            uses: AtomicU64::new(1),
        }
    }

    /// Every partition, oldest first.
    pub fn all_partitions(&self) -> Vec<Arc<Partition>> {
        read(&self.partitions).values().cloned().collect()
    }

    /// Shows the objects of which no file is here. To be called with every change of `partitions`
    /// that makes one go, before the lock is released, so that readers find each partition once.
    pub fn show_archived(&self, partitions: &BTreeMap<i64, Arc<Partition>>) {
        let Some(archive) = &self.archive else {
            return;
        };
        let mut archived = write(&self.archived);
        let shown = std::mem::take(&mut *archived).into_values().flatten();
        let mut shown: HashMap<String, Arc<Partition>> = shown
            .filter_map(|of| Some((of.object.as_ref()?.entry.name.clone(), of)))
            .collect();
        for entry in archive.manifest().partitions {
            let start = entry.start_s.saturating_mul(1_000_000_000);
            let local = partitions.get(&start);
            if local.is_some_and(|local| local.lineage == entry.lineage()) {
                continue;
            }
            let Some(level) = entry.level() else { continue };
            let partition = shown.remove(&entry.name).unwrap_or_else(|| {
                let end = entry.end_s.saturating_mul(1_000_000_000);
                let labels = entry.service_labels.clone();
                Arc::new(Partition::archived(
                    level.path(&self.partition_path(start)),
                    self.partition_log(start),
                    (start, end),
                    level,
                    &labels,
                    ArchivedObject::new(archive, entry),
                ))
            });
            archived.entry(start).or_default().push(partition);
        }
    }

    /// Every partition that is read from the archive, oldest first.
    pub fn all_archived(&self) -> Vec<Arc<Partition>> {
        read(&self.archived).values().flatten().cloned().collect()
    }

    /// The object that has all that is in a partition's file.
    pub fn archived_copy(&self, partition: &Partition) -> Option<Entry> {
        let archive = self.archive.as_ref()?;
        let start_s = partition.start.div_euclid(1_000_000_000);
        let entry = archive.find(start_s, partition.lineage)?;
        let same = (entry.flushes, entry.level()) == (partition.flushes(), Some(partition.level));
        same.then_some(entry)
    }

    /// True when the archive is read for the partition that starts then.
    pub fn has_archived(&self, start: i64) -> bool {
        read(&self.archived).contains_key(&start)
    }

    /// The object with the data of a partition whose file is gone.
    pub fn archived_as(&self, partition: &Partition) -> Option<Arc<Partition>> {
        let archived = read(&self.archived);
        let mut of_start = archived.get(&partition.start)?.iter();
        let found = of_start.find(|archived| archived.lineage == partition.lineage);
        found.cloned()
    }

    /// Partitions of which `wanted` says that they are to be read, wherever they are, oldest first.
    pub fn readable(&self, wanted: impl Fn(&Partition) -> bool) -> Vec<Arc<Partition>> {
        let partitions = read(&self.partitions);
        let archived = read(&self.archived);
        let all = partitions.values().chain(archived.values().flatten());
        let mut wanted: Vec<_> = all.filter(|of| wanted(of)).cloned().collect();
        wanted.sort_by_key(|partition| partition.start);
        wanted
    }

    /// Memory of windows that are in no file yet. Unit: bytes.
    pub fn mem_bytes(&self) -> usize {
        let partitions = read(&self.partitions);
        partitions
            .values()
            .map(|partition| read(&partition.mem).bytes())
            .sum()
    }

    /// The partition that an instant belongs to.
    pub fn partition_start(&self, at: i64) -> i64 {
        let len = self.options.partition_len();
        at.div_euclid(len).saturating_mul(len)
    }

    /// Notes that a partition was used now.
    pub fn use_partition(&self, partition: &Partition) {
        let now = self.uses.fetch_add(1, Ordering::Relaxed);
        partition.used.store(now, Ordering::Relaxed);
    }

    /// Says, or no longer says, that something does not work.
    pub fn report_issue(&self, about: &str, issue: Option<String>) {
        let mut issues = lock(&self.issues);
        match issue {
            Some(text) => drop(issues.insert(about.to_owned(), text)),
            None => drop(issues.remove(about)),
        }
    }

    /// The error for a caller if a partition's file fails; a damaged one is marked to be set aside.
    pub fn file_error(
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
            FileError::Archive(text) => StoreError::Unavailable(text),
            FileError::Cancelled => StoreError::Cancelled,
            FileError::Other(text) => StoreError::Engine {
                operation,
                message: format!("`{path}`: {text}"),
            },
        }
    }

    /// Marks a partition with an unreadable file: upkeep sets it aside.
    pub fn mark_damaged(&self, partition: &Partition, text: &str) {
        if partition.set_damaged() {
            self.counters.partitions_damaged.inc();
            self.note_damaged(partition.start, partition.end, &partition.path, text);
        }
    }

    /// Says that a file was set aside.
    pub fn note_damaged(&self, start: i64, end: i64, path: &Path, text: &str) {
        let text = format!("is damaged and was renamed to `*.damaged`: {text}");
        self.note_unreadable((start, end), path, &text);
    }

    /// Says of some hours that their file cannot be read, in answers as well.
    pub fn note_unreadable(&self, (start, end): (i64, i64), path: &Path, text: &str) {
        let name = path
            .file_name()
            .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let range = TimeRange {
            start_unix_ns: start,
            end_unix_ns: end,
        };
        let issue = format!(
            "partition `{name}` {text}; the others still answer. Check the disk; delete the \
             renamed file when you no longer need it"
        );
        self.report_issue(&format!("partition {name}"), Some(issue));
        lock(&self.damaged).push((range, name));
    }

    /// Fails once the store is closed.
    pub fn check_open(&self) -> Result<(), StoreError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(StoreError::Unavailable("the store is closed".to_owned()));
        }
        Ok(())
    }

    /// Where the partition that starts at `start` has its file.
    pub fn partition_path(&self, start: i64) -> PathBuf {
        let seconds = start.div_euclid(1_000_000_000);
        self.dir
            .join("partitions")
            .join(format!("{seconds}.sqlite"))
    }

    /// Where what is known of hosts is kept.
    pub fn hosts_path(&self) -> PathBuf {
        self.dir.join("hosts")
    }

    /// Where the write-ahead logs are.
    pub fn log_folder(&self) -> PathBuf {
        self.dir.join("wal")
    }

    /// Where the log of the partition that starts at `start` is.
    pub fn partition_log(&self, start: i64) -> PathBuf {
        partition_log::folder(&self.log_folder(), start)
    }

    /// Where the log of what is known of hosts is.
    pub fn hosts_log(&self) -> LogLocation {
        LogLocation {
            folder: self.log_folder().join("hosts"),
            ending: "wal",
            generation: 0,
        }
    }

    /// Size of all logs, without copies of dictionaries. Unit: bytes.
    pub fn log_bytes(&self) -> u64 {
        let partitions = read(&self.partitions);
        partitions.values().map(|of| of.log.bytes()).sum()
    }

    /// Removes the file of a partition if its removal was started and not finished.
    pub fn end_removal(&self, start: i64) -> std::io::Result<()> {
        let log = self.partition_log(start);
        if !partition_log::is_being_removed(&log) {
            return Ok(());
        }
        let path = self.partition_path(start);
        for level in Level::ALL {
            remove(&level.path(&path))?;
        }
        partition_log::end_removal(&log)
    }

    /// Where it is kept up to when the disk budget removed partitions.
    pub fn eviction_watermark_path(&self) -> PathBuf {
        self.dir.join("evicted")
    }

    /// Where it is kept what a start needs of partitions.
    pub fn manifest_path(&self) -> PathBuf {
        self.dir.join("manifest")
    }

    /// Lets the next start read every partition: what the manifest has of hosts may be too much.
    pub fn forget_manifest(&self) {
        let path = self.manifest_path();
        if let Err(error) = manifest::forget(&path) {
            let path = path.display();
            tracing::warn!("failed to remove `{path}`: {error}");
        }
    }

    /// Reads the index of hosts again: what a damaged file had may come again. Nothing may be on
    /// its way into the log. Where a file cannot be read now, the index stays as it is: windows
    /// that it calls stored though they are not are better than windows that are stored twice.
    pub fn index_hosts_again(&self) {
        self.forget_manifest();
        let mut index = HostIndex::default();
        for partition in self.readable(|_| true) {
            match partition.index_hosts(&mut index) {
                Ok(()) => {}
                Err(FileError::Damaged(text)) => self.mark_damaged(&partition, &text),
                Err(error) => {
                    let path = partition.path.display();
                    tracing::warn!("failed to read the hosts of `{path}`: {error}");
                    return;
                }
            }
        }
        *write(&self.host_index) = index;
    }
}
