//! Opens a directory: its lock and its partitions, before the log is replayed over them.

use super::archive::{Archive, ArchiveOptions, Owner};
use super::archiver::Archiver;
use super::catalog::Catalog;
use super::file::{FileError, quarantine_file, remove};
use super::host_index::HostIndex;
use super::hosts::HostTable;
use super::log_writer::LogWriter;
use super::maintenance::Maintenance;
use super::manifest_entry::Entry;
use super::options::{OpenError, Options};
use super::partition::Partition;
use super::reader::StoreReader;
use super::{EmbeddedStore, eviction_watermark, level, manifest, partition_log};
use crate::durable::replace;
use crate::sync::{lock, write};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn io_error(operation: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> OpenError {
    let path = path.to_owned();
    move |error| OpenError::Io {
        operation,
        path,
        error,
    }
}

/// Version of the logs of partitions; up to 2 there was one log for all.
const LOG_VERSION: u64 = 3;

/// Size of a segment of version 2 without a record. Unit: bytes.
const COMMON_LOG_HEAD_LEN: u64 = 16;

/// Keeps other stores from the directory until it is dropped.
pub struct DirectoryLock(File);

impl DirectoryLock {
    fn take(path: PathBuf) -> Result<DirectoryLock, OpenError> {
        let file = File::create(&path).map_err(io_error("create", &path))?;
        match file.try_lock() {
            Ok(()) => Ok(DirectoryLock(file)),
            Err(TryLockError::WouldBlock) => Err(OpenError::Locked { path }),
            Err(TryLockError::Error(error)) => Err(io_error("lock", &path)(error)),
        }
    }
}

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        // Closing is not enough: a process that is being started has the file as well until it runs
        // its own program, and the lock with it.
        let _ = self.0.unlock();
    }
}

impl EmbeddedStore {
    /// Opens the store in `dir`, which is made when it is not there. What a crash left is brought
    /// in order; a partition that is damaged is set aside, and [`StoreStatus::issues`] says so.
    ///
    /// # Errors
    /// When another process has it open, or the directory cannot be read or written.
    ///
    /// [`StoreStatus::issues`]: crate::store::StoreStatus::issues
    pub fn open(
        dir: &Path,
        options: Options,
        now_unix_ns: i64,
    ) -> Result<EmbeddedStore, OpenError> {
        let folder = dir.join("partitions");
        std::fs::create_dir_all(&folder).map_err(io_error("create", &folder))?;
        let lock_path = dir.join("lock");
        let locked = DirectoryLock::take(lock_path)?;
        check_layout(dir, &options)?;
        let logs = dir.join("wal");
        std::fs::create_dir_all(&logs).map_err(io_error("create", &logs))?;
        let before = eviction_watermark::load(&dir.join("evicted"), options.disk_bytes);
        let archive = options.archive.clone();
        let partition_s = options.partition_len() / 1_000_000_000;
        let archive = archive
            .map(|archive| Archive::open(dir, archive, partition_s))
            .transpose()?;
        let catalog = Arc::new(Catalog::new(dir, options, archive.map(Arc::new), before));
        for (start, removed) in partition_log::list(&logs).map_err(io_error("list", &logs))? {
            if removed {
                let ended = catalog.end_removal(start);
                ended.map_err(io_error("end a removal in", &folder))?;
            }
        }
        let log = Arc::new(LogWriter::new(Arc::clone(&catalog)));
        let maintenance = Maintenance::new(Arc::clone(&catalog), Arc::clone(&log), now_unix_ns);
        let maintenance = Arc::new(maintenance);
        let store = EmbeddedStore {
            reader: StoreReader::new(Arc::clone(&catalog), Arc::clone(&log)),
            archiver: Archiver::new(Arc::clone(&catalog), Arc::clone(&maintenance)),
            maintenance,
            catalog,
            log,
            _lock: locked,
        };
        store.open_hosts()?;
        store.open_partitions(&folder, now_unix_ns)?;
        store.replay(now_unix_ns)?;
        store.maintenance.report_quarantine();
        Ok(store)
    }

    /// Makes the collector of `dir`, which must not run, the one that writes to an archive; returns
    /// which one it was, if there is a manifest.
    ///
    /// # Errors
    /// When another process has the directory, or the bucket does not let it.
    pub fn take_over_archive(
        dir: &Path,
        options: ArchiveOptions,
    ) -> Result<Option<Owner>, OpenError> {
        std::fs::create_dir_all(dir).map_err(io_error("create", dir))?;
        let _locked = DirectoryLock::take(dir.join("lock"))?;
        Ok(Archive::take_over(dir, options)?)
    }

    fn open_hosts(&self) -> Result<(), OpenError> {
        let path = self.catalog.hosts_path();
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let archive = self.catalog.archive.as_ref();
                match archive.map_or(Ok(None), |archive| archive.hosts()) {
                    Ok(None) => return Ok(()),
                    Ok(Some(bytes)) => {
                        replace(&path, &bytes, 0o666).map_err(io_error("write", &path))?;
                        bytes.to_vec()
                    }
                    // Hosts that are there say so within a minute.
                    Err(error) => {
                        tracing::warn!("{error}");
                        return Ok(());
                    }
                }
            }
            Err(error) => return Err(io_error("read", &path)(error)),
        };
        match HostTable::load(&bytes) {
            Ok(book) => *lock(&self.catalog.hosts) = book,
            Err(damage) => {
                let aside = path.with_extension("damaged");
                std::fs::rename(&path, &aside).map_err(io_error("rename", &path))?;
                self.catalog.report_issue(
                    "hosts",
                    Some(format!(
                        "the file of hosts is damaged and was renamed: {damage}; hosts appear \
                         again when their agents connect"
                    )),
                );
            }
        }
        Ok(())
    }

    fn open_partitions(&self, folder: &Path, now_unix_ns: i64) -> Result<(), OpenError> {
        let len = self.catalog.options.partition_len();
        let mut partitions: BTreeMap<i64, Arc<Partition>> = BTreeMap::new();
        let mut known = Known::load(&self.catalog.manifest_path());
        let entries = std::fs::read_dir(folder).map_err(io_error("list", folder))?;
        let paths: Result<Vec<_>, _> = entries.map(|entry| entry.map(|of| of.path())).collect();
        let mut paths = paths.map_err(io_error("list", folder))?;
        // Ordered by time, so that the index of hosts adds at its end, complete runs at once.
        paths.sort_unstable();
        for path in paths {
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            if name.ends_with(".new") {
                // A partition that a crash kept from being made; it holds nothing.
                std::fs::remove_file(&path).map_err(io_error("remove", &path))?;
                continue;
            }
            let damaged = name.strip_suffix(".damaged");
            let parsed = level::parse_name(damaged.unwrap_or(name));
            let start = parsed.and_then(|(seconds, _)| seconds.checked_mul(1_000_000_000));
            let Some(start) = start.filter(|start| start.rem_euclid(len) == 0) else {
                continue;
            };
            let end = start.saturating_add(len);
            if damaged.is_some() {
                self.catalog.note_damaged(
                    start,
                    end,
                    &path.with_extension(""),
                    "it was set aside before",
                );
                continue;
            }
            let log = self.catalog.partition_log(start);
            let opened = match known.unchanged(start, &path) {
                Some(entry) => Ok(Partition::unchanged(path.clone(), log, start, entry)),
                None => self.open_partition(&path, (start, end), &mut known),
            };
            match opened {
                Ok(partition) => {
                    if let Some(finer) = keep_downsampled(&mut partitions, partition) {
                        finer.close_files();
                        remove(&finer.path).map_err(io_error("remove", &finer.path))?;
                    }
                }
                Err(FileError::Damaged(text)) => {
                    quarantine_file(&path).map_err(io_error("rename", &path))?;
                    self.catalog.counters.partitions_damaged.inc();
                    self.catalog.note_damaged(start, end, &path, &text);
                }
                Err(error) => {
                    let error = std::io::Error::other(error.to_string());
                    return Err(io_error("open", &path)(error));
                }
            }
        }
        let horizon = now_unix_ns.saturating_sub_unsigned(self.catalog.options.retention_ns);
        let evicted = self.catalog.evicted_before.load(Ordering::Relaxed);
        self.catalog.show_archived(&partitions);
        let archived = self.catalog.all_archived();
        let index = known.index(&partitions, &archived, horizon.max(evicted));
        *write(&self.catalog.partitions) = partitions;
        match index {
            Some(index) => *write(&self.catalog.host_index) = index,
            None => self.catalog.index_hosts_again(),
        }
        Ok(())
    }

    /// Opens a partition of which the manifest does not know enough.
    fn open_partition(
        &self,
        path: &Path,
        range: (i64, i64),
        known: &mut Known,
    ) -> Result<Partition, FileError> {
        let opened = &self.catalog.counters.partitions_opened;
        opened.inc();
        let log = self.catalog.partition_log(range.0);
        let partition = Partition::open(path.to_owned(), log, range)?;
        known.add(&partition)?;
        // A year of them would use up the files that a process may have open.
        partition.close_files();
        Ok(partition)
    }
}

/// Data of the manifest while partitions are opened.
struct Known {
    /// By start: partitions that were not found in the folder yet.
    entries: BTreeMap<i64, Entry>,
    /// Archived partitions of which `hosts` has the hosts, by start and lineage.
    archived: BTreeSet<(i64, u64)>,
    /// Hosts; `None` when they have to be read of every partition.
    hosts: Option<HostIndex>,
}

impl Known {
    fn load(path: &Path) -> Known {
        let manifest = manifest::load(path).unwrap_or_default();
        Known {
            entries: manifest.entries,
            archived: manifest.archived,
            hosts: Some(manifest.hosts),
        }
    }

    /// What the manifest has of a file, when it is the same still.
    fn unchanged(&mut self, start: i64, path: &Path) -> Option<Entry> {
        let entry = self.entries.get(&start)?;
        if !entry.is_of(path) {
            return None;
        }
        self.entries.remove(&start)
    }

    /// Adds the hosts of a partition that was opened. What the manifest had of it is among them,
    /// unless it is another one.
    fn add(&mut self, partition: &Partition) -> Result<(), FileError> {
        if let Some(hosts) = &mut self.hosts {
            partition.index_hosts(hosts)?;
        }
        if let Some(entry) = self.entries.remove(&partition.start)
            && entry.generation != partition.generation
        {
            self.hosts = None;
        }
        Ok(())
    }

    /// The hosts of all partitions, without those of partitions that ended before `removed_before`
    /// and are gone. `None` when any other is gone.
    fn index(
        mut self,
        partitions: &BTreeMap<i64, Arc<Partition>>,
        archived: &[Arc<Partition>],
        removed_before: i64,
    ) -> Option<HostIndex> {
        let mut hosts = self.hosts?;
        for partition in archived {
            // The manifest was written when its file was here, or later.
            let was_here = self.entries.get(&partition.start);
            let is_known = was_here.is_some_and(|entry| entry.lineage == partition.lineage)
                | self.archived.remove(&(partition.start, partition.lineage));
            if !is_known && let Err(error) = partition.index_hosts(&mut hosts) {
                let path = partition.path.display();
                tracing::warn!("failed to read the hosts of `{path}` in the archive: {error}");
            }
        }
        // One of them expired, or its file is here again.
        let is_here = |(start, lineage): &(i64, u64)| {
            let local = partitions.get(start);
            local.is_some_and(|local| local.lineage == *lineage)
        };
        if !self.archived.iter().all(is_here) {
            return None;
        }
        let is_archived = |start: i64, entry: &Entry| {
            let mut archived = archived.iter();
            archived.any(|of| (of.start, of.lineage) == (start, entry.lineage))
        };
        for (start, entry) in self.entries {
            if partitions.contains_key(&start) || is_archived(start, &entry) {
                continue;
            }
            if entry.end > removed_before {
                return None;
            }
            hosts.cut(start, entry.end);
        }
        Some(hosts)
    }
}

/// Adds a partition; of two of one time the downsampled one stays, which a crash kept from
/// replacing the other. Returns the other.
fn keep_downsampled(
    partitions: &mut BTreeMap<i64, Arc<Partition>>,
    partition: Partition,
) -> Option<Arc<Partition>> {
    let partition = Arc::new(partition);
    match partitions.get(&partition.start) {
        Some(known) if known.level > partition.level => Some(partition),
        _ => partitions.insert(partition.start, partition),
    }
}

/// Checks what all partitions and logs of the directory have in common: their length, which names
/// of files do not say, and the version of the logs.
fn check_layout(dir: &Path, options: &Options) -> Result<(), OpenError> {
    let path = dir.join("layout");
    let wanted = options.partition_len() / 1_000_000_000;
    let text = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        read => Some(read.map_err(io_error("read", &path))?),
    };
    let number = |name: &str| {
        let mut lines = text.as_deref()?.lines();
        lines.find_map(|line| line.strip_prefix(name)?.trim().parse::<i64>().ok())
    };
    let found = number("partition_s ");
    if text.is_some() && found != Some(wanted) {
        return Err(OpenError::PartitionLength {
            path: dir.to_owned(),
            found: found.unwrap_or(0),
            wanted,
        });
    }
    match number("log ") {
        Some(found) if found == LOG_VERSION as i64 => return Ok(()),
        Some(found) => {
            return Err(OpenError::LogVersion {
                path: dir.to_owned(),
                found: found.unsigned_abs(),
                wanted: LOG_VERSION,
            });
        }
        None => remove_common_log(dir)?,
    }
    let layout = format!("partition_s {wanted}\nlog {LOG_VERSION}\n");
    replace(&path, layout.as_bytes(), 0o666).map_err(io_error("write", &path))
}

/// Removes the log that all partitions had in common up to version 2, when all of it is in files,
/// as it is after a stop.
fn remove_common_log(dir: &Path) -> Result<(), OpenError> {
    let folder = dir.join("wal");
    let entries = match std::fs::read_dir(&folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(io_error("list", &folder))?,
    };
    let mut old = Vec::new();
    for entry in entries {
        let entry = entry.map_err(io_error("list", &folder))?;
        let path = entry.path();
        let metadata = entry.metadata().map_err(io_error("look at", &path))?;
        let is_segment = path.extension().is_some_and(|end| end == "wal");
        if metadata.is_file() && is_segment && metadata.len() > COMMON_LOG_HEAD_LEN {
            return Err(OpenError::LogVersion {
                path: dir.to_owned(),
                found: 2,
                wanted: LOG_VERSION,
            });
        }
        let is_kept = path.extension().is_some_and(|end| end == "unusable");
        if metadata.is_file() && !is_kept {
            old.push(path);
        }
    }
    for path in old {
        std::fs::remove_file(&path).map_err(io_error("remove", &path))?;
    }
    Ok(())
}
