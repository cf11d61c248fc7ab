//! Opening a directory: its lock, its partitions, and what the log has that no file has.

use super::EmbeddedStore;
use super::codec::{Damage, Reader};
use super::file::{FileError, names};
use super::hosts::{HostBook, replace, take_host};
use super::memtable::Prepared;
use super::options::{OpenError, Options};
use super::partition::{Partition, lock, read, write};
use super::push::Writer;
use super::wal::Wal;
use super::{file, level};
use crate::store::LabelSet;
use profile::LabelSetId;
use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, RwLock};

/// First byte of the record of a window.
pub const RECORD_WINDOW: u8 = 1;

/// First byte of the record of a host.
pub const RECORD_HOST: u8 = 2;

fn io_error(operation: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> OpenError {
    let path = path.to_owned();
    move |error| OpenError::Io {
        operation,
        path,
        error,
    }
}

impl EmbeddedStore {
    /// Opens the store in `dir`, which is made when it is not there. What a crash left is brought in
    /// order; a partition that is damaged is set aside, and [`Store::degraded`] says so.
    ///
    /// # Errors
    /// When another process has it open, or the directory cannot be read or written.
    ///
    /// [`Store::degraded`]: crate::store::Store::degraded
    pub fn open(
        dir: &Path,
        options: Options,
        now_unix_ns: i64,
    ) -> Result<EmbeddedStore, OpenError> {
        let folder = dir.join("partitions");
        std::fs::create_dir_all(&folder).map_err(io_error("create", &folder))?;
        let lock_path = dir.join("lock");
        let lock_file = File::create(&lock_path).map_err(io_error("create", &lock_path))?;
        match lock_file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(OpenError::Locked { path: lock_path }),
            Err(TryLockError::Error(error)) => return Err(io_error("lock", &lock_path)(error)),
        }
        check_layout(dir, &options)?;
        let store = EmbeddedStore {
            dir: dir.to_owned(),
            options,
            _lock: lock_file,
            partitions: RwLock::default(),
            writer: Mutex::new(Writer::new(1)),
            written: Condvar::new(),
            wal: Mutex::new(Wal::closed(&dir.join("wal"))),
            upkeep: Mutex::default(),
            tidy: Mutex::default(),
            hosts: Mutex::default(),
            counters: super::Counters::default(),
            troubles: Mutex::default(),
            damaged: Mutex::default(),
            uses: AtomicU64::new(1),
            closed: AtomicBool::new(false),
        };
        store.open_hosts()?;
        store.open_partitions(&folder)?;
        store.replay(now_unix_ns)?;
        Ok(store)
    }

    /// Where the partition that begins at `start` has its file.
    pub(super) fn partition_path(&self, start: i64) -> PathBuf {
        let seconds = start.div_euclid(1_000_000_000);
        self.dir
            .join("partitions")
            .join(format!("{seconds}.sqlite"))
    }

    /// Where what is known of hosts is kept.
    pub(super) fn hosts_path(&self) -> PathBuf {
        self.dir.join("hosts")
    }

    fn open_hosts(&self) -> Result<(), OpenError> {
        let path = self.hosts_path();
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(io_error("read", &path)(error)),
        };
        match HostBook::load(&bytes) {
            Ok(book) => *lock(&self.hosts) = book,
            Err(damage) => {
                let aside = path.with_extension("damaged");
                std::fs::rename(&path, &aside).map_err(io_error("rename", &path))?;
                self.set_trouble(
                    "hosts",
                    Some(format!(
                        "the file of hosts is damaged and set aside: {damage}; hosts are known again \
                         when their agents connect"
                    )),
                );
            }
        }
        Ok(())
    }

    fn open_partitions(&self, folder: &Path) -> Result<(), OpenError> {
        let len = self.options.partition_len();
        let mut partitions: BTreeMap<i64, Arc<Partition>> = BTreeMap::new();
        for entry in std::fs::read_dir(folder).map_err(io_error("list", folder))? {
            let path = entry.map_err(io_error("list", folder))?.path();
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
                self.note_damaged(
                    start,
                    end,
                    &path.with_extension(""),
                    "it was set aside before",
                );
                continue;
            }
            match Partition::open(path.clone(), (start, end)) {
                Ok(partition) => {
                    let replaced = keep_coarser(&mut partitions, partition);
                    if let Some(finer) = replaced {
                        file::remove(&finer.path).map_err(io_error("remove", &finer.path))?;
                    }
                }
                Err(FileError::Damaged(text)) => {
                    set_aside(&path).map_err(io_error("rename", &path))?;
                    self.counters
                        .partitions_damaged
                        .fetch_add(1, Ordering::Relaxed);
                    self.note_damaged(start, end, &path, &text);
                }
                Err(error) => {
                    let error = std::io::Error::other(error.to_string());
                    return Err(io_error("open", &path)(error));
                }
            }
        }
        *write(&self.partitions) = partitions;
        Ok(())
    }

    fn replay(&self, now_unix_ns: i64) -> Result<(), OpenError> {
        let mut unusable: Option<String> = None;
        let (wal, recovered) = Wal::open(&self.dir.join("wal"), |record, payload| {
            if let Err(text) = self.replay_record(record, payload, now_unix_ns) {
                self.counters
                    .records_unusable
                    .fetch_add(1, Ordering::Relaxed);
                unusable.get_or_insert(text);
            }
        })?;
        let counters = &self.counters;
        counters
            .records_replayed
            .fetch_add(recovered.records, Ordering::Relaxed);
        counters
            .log_torn_bytes
            .fetch_add(recovered.torn_bytes, Ordering::Relaxed);
        if recovered.segments_unusable > 0 {
            unusable.get_or_insert("a segment of it does not follow the one before".to_owned());
        }
        if let Some(text) = unusable {
            self.set_trouble(
                "replay",
                Some(format!(
                    "the write-ahead log was not replayed as a whole: {text}"
                )),
            );
        }
        let numbers = lock(&self.hosts).saved_record.saturating_add(1);
        let files = read(&self.partitions);
        let in_files = files.values().filter_map(|partition| {
            lock(&partition.records)
                .values()
                .max()
                .map(|&record| record.saturating_add(1))
        });
        let floor = in_files.max().unwrap_or(1).max(numbers);
        drop(files);
        let mut wal = wal;
        wal.skip_to(floor)?;
        *lock(&self.writer) = Writer::new(wal.next());
        *lock(&self.wal) = wal;
        Ok(())
    }

    fn replay_record(&self, record: u64, payload: &[u8], now_unix_ns: i64) -> Result<(), String> {
        let mut input = Reader::new(payload);
        let kind = input.take_exact(1).map_err(|damage| damage.to_string())?;
        match kind[0] {
            RECORD_HOST => {
                let host = take_host(&mut input).map_err(|damage| damage.to_string())?;
                let mut book = lock(&self.hosts);
                if record > book.saved_record {
                    book.set(record, host);
                }
                Ok(())
            }
            RECORD_WINDOW => self.replay_window(record, input, now_unix_ns),
            other => Err(format!("a record of kind {other} is not known")),
        }
    }

    fn replay_window(
        &self,
        record: u64,
        mut input: Reader<'_>,
        now_unix_ns: i64,
    ) -> Result<(), String> {
        let text = |damage: Damage| damage.to_string();
        let start = input.take_signed().map_err(text)?;
        let entries = input.take_bytes().map_err(text)?;
        let contents = input.take_bytes().map_err(text)?;
        let window = Prepared::take(&mut input).map_err(text)?;
        let known = read(&self.partitions).get(&start).cloned();
        let partition = match known {
            Some(partition) => partition,
            None if start < now_unix_ns.saturating_sub_unsigned(self.options.taken_ns()) => {
                return Ok(());
            }
            // Its file is gone or was set aside. Where the log has the dictionary from its begin on,
            // the windows come back.
            None => {
                let end = start.saturating_add(self.options.partition_len());
                let path = self.partition_path(start);
                let labels = &self.options.service_labels;
                let made = Partition::create(path, (start, end), labels);
                let made = Arc::new(made.map_err(|error| error.to_string())?);
                write(&self.partitions).insert(start, Arc::clone(&made));
                made
            }
        };
        let flushed = lock(&partition.records).get(&window.chunk).copied();
        if flushed.is_some_and(|flushed| record <= flushed) {
            return Ok(());
        }
        let dict = partition.dict(true).map_err(|error| error.to_string())?;
        let mut dict = write(&dict);
        dict.apply_delta(&mut Reader::new(entries), &mut Reader::new(contents))
            .map_err(text)?;
        *lock(&partition.logged) = dict.marks();
        let host = dict.hosts.get(window.meta.host as usize).cloned();
        let host = host.ok_or("a host is not there")?;
        if window.meta.host_labels as usize >= dict.tables.label_sets.len() {
            return Err("a label set is not there".to_owned());
        }
        let labels = dict
            .tables
            .label_sets
            .get(LabelSetId(window.meta.host_labels));
        let strings = &dict.tables.strings;
        let pairs = labels
            .iter()
            .map(|&(name, value)| (strings.get(name).to_owned(), strings.get(value).to_owned()));
        let labels = LabelSet::new(pairs);
        drop(dict);
        partition.apply(record, now_unix_ns, &host, &labels, window);
        self.use_partition(&partition);
        Ok(())
    }
}

/// Adds a partition; of two of one time the coarser stays, which a crash kept from replacing the other.
/// Returns the other.
fn keep_coarser(
    partitions: &mut BTreeMap<i64, Arc<Partition>>,
    partition: Partition,
) -> Option<Arc<Partition>> {
    let partition = Arc::new(partition);
    match partitions.get(&partition.start) {
        Some(known) if known.level > partition.level => Some(partition),
        _ => partitions.insert(partition.start, partition),
    }
}

/// Renames a partition's file, so that it is never read again, and can be looked at.
pub fn set_aside(path: &Path) -> std::io::Result<()> {
    for name in names(path) {
        let mut aside = name.as_os_str().to_owned();
        aside.push(".damaged");
        // The log of SQLite belongs to its file: both keep their names but for the end.
        match std::fs::rename(&name, &aside) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// The length of partitions is of the directory: their names say their begins only.
fn check_layout(dir: &Path, options: &Options) -> Result<(), OpenError> {
    let path = dir.join("layout");
    let wanted = options.partition_len() / 1_000_000_000;
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            let found = text
                .trim()
                .strip_prefix("partition_s ")
                .and_then(|len| len.parse().ok());
            match found {
                Some(found) if found == wanted => Ok(()),
                found => Err(OpenError::PartitionLength {
                    path: dir.to_owned(),
                    found: found.unwrap_or(0),
                    wanted,
                }),
            }
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            replace(&path, format!("partition_s {wanted}\n").as_bytes())
                .map_err(io_error("write", &path))
        }
        Err(error) => Err(io_error("read", &path)(error)),
    }
}
