//! Maintenance besides pushes and queries: flushing, cutting the log, removing what is too old or
//! too much, setting damaged partitions aside, closing.

mod compactor;

use super::catalog::Catalog;
use super::ceiling::{Ceiling, Round};
use super::chunk::CHUNK_NS;
use super::file::{FileError, has_log, quarantine_file, remove};
use super::level::Level;
use super::log_writer::LogWriter;
use super::memtable::ChunkRows;
use super::partition::Partition;
use super::quarantine::{self, QuarantinedFile};
use super::{eviction_watermark, manifest, partition_log};
use crate::store::StoreError;
use crate::sync::{lock, read, write};
use compactor::Compactor;
pub use compactor::has_closed;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A chunk is flushed so long after its end: agents push a window some seconds after it ended.
/// Unit: nanoseconds.
const GRACE_NS: i64 = 60_000_000_000;

/// A chunk of the past is flushed when nothing came for so long: what an agent had spooled is in.
/// Unit: nanoseconds.
const QUIET_NS: i64 = 20_000_000_000;

/// A chunk is flushed when its first window came so long ago, whatever still comes. Unit:
/// nanoseconds. With it the log is cut, however wrong clocks are.
const AGE_NS_MAX: i64 = 1_200_000_000_000;

/// A push flushes by itself when memory or log are beyond their bounds by one part in so many of
/// them. `maintain`, which is called every two seconds on a thread of its own, flushes at the
/// bounds: a flush of everything takes seconds, and every acknowledgement waits for one that a push
/// does.
const LATE_SHARE: u64 = 2;

/// Hosts that sent something so long ago count as connected. Unit: nanoseconds. Each says once a
/// minute that it is there.
const CONNECTED_NS: i64 = 900_000_000_000;

/// The manifest is written so often: what changed after it is read at a start after a kill. Unit:
/// nanoseconds.
const MANIFEST_AGE_NS: i64 = 3_600_000_000_000;

/// Keeps the store in order, by calls from outside: it has no thread of its own.
pub struct Maintenance {
    pub(super) catalog: Arc<Catalog>,
    pub(super) log: Arc<LogWriter>,
    /// Held by whoever flushes or removes partitions.
    pub(super) upkeep: Mutex<()>,
    /// Held by whoever compacts or downsamples; taken before `upkeep`.
    pub(super) compactor: Mutex<Compactor>,
    /// How near its end the machine is.
    pub ceiling: Ceiling,
    /// When the manifest was written last, since the Unix epoch. Unit: nanoseconds.
    manifest_unix_ns: AtomicI64,
}

impl Maintenance {
    /// Creates the upkeep of a store that is opened now.
    pub fn new(catalog: Arc<Catalog>, log: Arc<LogWriter>, now_unix_ns: i64) -> Maintenance {
        Maintenance {
            ceiling: Ceiling::new(catalog.options.partition_len()),
            catalog,
            log,
            upkeep: Mutex::default(),
            compactor: Mutex::default(),
            manifest_unix_ns: AtomicI64::new(now_unix_ns),
        }
    }

    /// Writes what the next start needs of partitions. To be called with `upkeep`. Without it that
    /// start takes longer, and nothing else.
    fn save_manifest(&self) {
        let path = self.catalog.manifest_path();
        let saved = manifest::save(
            &path,
            &self.catalog.all_partitions(),
            &self.catalog.all_archived(),
            &self.catalog.host_index,
        );
        if let Err(error) = saved {
            let path = path.display();
            tracing::warn!("failed to write `{path}`: {error}; the next start takes longer");
        }
    }

    /// Waits for a flush when pushes come faster than flushes take.
    pub fn apply_backpressure(&self) -> Result<(), StoreError> {
        let most = self.catalog.options.memtable_bytes.saturating_mul(2);
        if self.catalog.mem_bytes() <= most {
            return Ok(());
        }
        let upkeep = lock(&self.upkeep);
        if self.catalog.mem_bytes() > most {
            self.flush(|_, _, _| true)
                .map_err(|text| StoreError::Unavailable(format!("memory is full: {text}")))?;
        }
        drop(upkeep);
        Ok(())
    }

    /// True when memory or log are beyond their bounds by more than one part in `beyond` of them;
    /// 0: at all.
    fn is_large(&self, beyond: u64) -> bool {
        let most = |bytes: u64| bytes.saturating_add(bytes.checked_div(beyond).unwrap_or(0));
        self.catalog.mem_bytes() as u64 > most(self.catalog.options.memtable_bytes as u64)
            || self.catalog.log_bytes() > most(self.catalog.options.log_bytes)
    }

    /// Flushes everything when there is much more of it than `maintain` leaves, unless a flush
    /// runs. All that is pushed waits for it meanwhile.
    pub fn flush_when_large(&self) {
        if self.is_large(LATE_SHARE)
            && let Ok(_upkeep) = self.upkeep.try_lock()
        {
            // What fails is counted, said, and tried again by `maintain`.
            let _ = self.flush(|_, _, _| true);
        }
    }

    /// Flushes what a replay puts in memory when that is much. What cannot be flushed stays there.
    pub fn flush_while_replaying(&self) {
        if self.catalog.mem_bytes() <= self.catalog.options.memtable_bytes {
            return;
        }
        for partition in self.catalog.all_partitions() {
            match partition.flush(|_, _| true) {
                Err(FileError::Damaged(text)) => self.catalog.mark_damaged(&partition, &text),
                Err(_) => drop(self.catalog.counters.flush_failures.inc()),
                Ok(_) => {}
            }
        }
    }

    /// See [`WindowSink::maintain`](crate::store::WindowSink::maintain).
    pub fn run(&self, now_unix_ns: i64) -> Result<(), StoreError> {
        let upkeep = lock(&self.upkeep);
        let mut undone = Vec::new();
        self.quarantine_damaged(&mut undone);
        let closed = |partition: &Partition, chunk: u16, rows: &ChunkRows| {
            let end = partition.chunk_start(chunk).saturating_add(CHUNK_NS as i64);
            let over = now_unix_ns.saturating_sub(end) >= GRACE_NS;
            let quiet = now_unix_ns.saturating_sub(rows.touched_unix_ns) >= QUIET_NS;
            let old = now_unix_ns.saturating_sub(rows.started_unix_ns) >= AGE_NS_MAX;
            (over && quiet) || old
        };
        let large = self.is_large(0);
        if let Err(text) = self.flush(|of, chunk, rows| large || closed(of, chunk, rows)) {
            undone.push(text);
        }
        self.retire(now_unix_ns, &mut undone);
        self.report_quarantine();
        let last = self.manifest_unix_ns.load(Ordering::Relaxed);
        // A clock that was set back must not stop it.
        if !(0..MANIFEST_AGE_NS).contains(&now_unix_ns.saturating_sub(last)) {
            self.manifest_unix_ns.store(now_unix_ns, Ordering::Relaxed);
            self.save_manifest();
        }
        drop(upkeep);
        // Long work, which flushes shall not wait for.
        if let Err(text) = self.compact_slice(now_unix_ns) {
            undone.push(text);
        }
        if let Some(first) = undone.into_iter().next() {
            return Err(StoreError::Unavailable(first));
        }
        Ok(())
    }

    /// Flushes chunks that `which` takes, saves hosts, and cuts the log. To be called with
    /// `upkeep`.
    fn flush(&self, which: impl Fn(&Partition, u16, &ChunkRows) -> bool) -> Result<(), String> {
        let mut failed: Option<String> = None;
        for partition in self.catalog.all_partitions() {
            if partition.damaged.load(Ordering::Acquire) {
                continue;
            }
            let started = Instant::now();
            match partition.flush(|chunk, rows| which(&partition, chunk, rows)) {
                Ok(0) => {}
                Ok(rows) => {
                    let took = started.elapsed().as_secs_f64();
                    self.catalog.counters.flush_time.observe(took);
                    self.catalog.counters.rows_flushed.inc_by(rows);
                }
                Err(FileError::Damaged(text)) => self.catalog.mark_damaged(&partition, &text),
                Err(error) => {
                    self.catalog.counters.flush_failures.inc();
                    let path = partition.path.display();
                    failed.get_or_insert(format!("failed to flush into `{path}`: {error}"));
                }
            }
        }
        if let Err(error) = self.save_and_cut() {
            failed.get_or_insert(error);
        }
        let issue = failed
            .clone()
            .map(|text| format!("{text}; nothing is lost: the windows are in the write-ahead log"));
        self.catalog.report_issue("flush", issue);
        failed.map_or(Ok(()), Err)
    }

    /// Cuts from logs what is in files.
    fn save_and_cut(&self) -> Result<(), String> {
        let mut done = self.log.save_hosts(false);
        for partition in self.catalog.all_partitions() {
            if partition.log.bytes() == 0 {
                continue;
            }
            let needed = {
                let _pushing = lock(&self.log.pushing);
                let first = partition.first_record();
                first.unwrap_or_else(|| lock(&partition.log.wal).next())
            };
            if let Err(error) = partition.cut_log(needed) {
                let path = partition.path.display();
                let text = format!("failed to cut the write-ahead log of `{path}`: {error}");
                done = done.and(Err(text));
            }
        }
        done
    }

    /// Removes partitions that are too old, or the oldest when there is too much.
    fn retire(&self, now_unix_ns: i64, undone: &mut Vec<String>) {
        let horizon = now_unix_ns.saturating_sub_unsigned(self.catalog.options.retention_ns);
        let forgotten = now_unix_ns.saturating_sub_unsigned(self.catalog.options.kept_ns());
        lock(&self.catalog.hosts).forget_before(forgotten);
        for partition in self.catalog.all_partitions() {
            if self.is_local_too_long(&partition, now_unix_ns) {
                self.leave_to_archive(&partition, undone);
            } else if partition.end <= horizon {
                self.remove_partition(&partition, undone);
                self.catalog.counters.partitions_expired.inc();
            }
        }
        self.expire_quarantined(horizon);
        if self.catalog.options.disk_bytes == 0 {
            return;
        }
        let mut partitions = self.catalog.all_partitions();
        let mut used = self.bytes_beside_partitions();
        used = used.saturating_add(self.catalog.counters.downsampling_bytes.get());
        for partition in &partitions {
            used = used.saturating_add(partition.bytes());
        }
        // What cannot be read gives way before what can.
        for quarantined in quarantine::list(&self.catalog.dir) {
            if used <= self.catalog.options.disk_bytes {
                return;
            }
            used = used.saturating_sub(quarantined.bytes);
            self.remove_quarantined(&quarantined, undone);
        }
        // A year of service hours is less than days of windows: they go last.
        partitions.sort_by_key(|of| (of.level == Level::ServiceHours, of.start));
        // What the archive has goes before what nobody else has.
        partitions.sort_by_key(|of| self.catalog.archived_copy(of).is_none());
        // The newest stays: a budget smaller than one partition would leave nothing to ask.
        let newest = partitions.iter().map(|partition| partition.start).max();
        partitions.retain(|partition| Some(partition.start) != newest);
        for partition in &partitions {
            if used <= self.catalog.options.disk_bytes {
                break;
            }
            // Its log and the copy of its dictionary go with it.
            let log = partition.log.bytes() + partition.log.copy_bytes();
            used = used.saturating_sub(partition.bytes().saturating_add(log));
            if self.leave_to_archive(partition, undone) {
                continue;
            }
            self.refuse_before(partition.end, undone);
            self.remove_partition(partition, undone);
            self.catalog.counters.partitions_evicted.inc();
        }
    }

    fn is_local_too_long(&self, partition: &Partition, now_unix_ns: i64) -> bool {
        let options = &self.catalog.options;
        let Some(archive) = &options.archive else {
            return false;
        };
        let is_old = partition.end <= now_unix_ns.saturating_sub_unsigned(archive.local_ns);
        // As coarse as its age wants it: it stays so in the archive.
        is_old && partition.level >= options.level_at(partition.end, now_unix_ns)
    }

    /// Removes the file of a partition that is read from the archive from now on. Returns whether
    /// the archive has all of it.
    fn leave_to_archive(&self, partition: &Partition, undone: &mut Vec<String>) -> bool {
        let _pushing = lock(&self.log.pushing);
        // A collector that was fenced does not know what the bucket has by now.
        let archive = self.catalog.archive.as_ref();
        let is_ours = archive.is_some_and(|archive| archive.fenced().is_none());
        let has_all = || self.catalog.archived_copy(partition).is_some();
        if !is_ours || !partition.is_flushed() || !has_all() {
            return false;
        }
        self.remove_files(partition, undone);
        self.catalog.counters.partitions_archived.inc();
        true
    }

    /// Notes how much of this machine a round took, and says what is near its end.
    fn note_ceiling(&self, now_unix_ns: i64, (used, given): (Duration, Duration), pending: bool) {
        let catalog = &self.catalog;
        let partitions = catalog.all_partitions();
        let on_disk: u64 = partitions.iter().map(|partition| partition.bytes()).sum();
        let space = rustix::fs::statvfs(&catalog.dir).ok();
        let since = now_unix_ns.saturating_sub(CONNECTED_NS);
        let hosts = lock(&catalog.hosts);
        let hosts = hosts.records.values();
        let hosts = hosts.filter(|host| host.last_seen_unix_ns >= since).count() as u64;
        self.ceiling.note(Round {
            now: now_unix_ns,
            used,
            given,
            is_pending: pending,
            memory_bytes: catalog.mem_bytes() as u64,
            memory_bytes_max: (catalog.options.memtable_bytes as u64).saturating_mul(2),
            store_bytes: on_disk.saturating_add(self.bytes_beside_partitions()),
            budget_bytes: catalog.options.disk_bytes,
            free_bytes: space.map(|space| space.f_bavail.saturating_mul(space.f_frsize)),
            hosts,
        });
        for (subject, issue) in self.ceiling.issues() {
            catalog.report_issue(subject, issue);
        }
    }

    /// Logs, and what was set aside. Unit: bytes.
    pub fn bytes_beside_partitions(&self) -> u64 {
        let aside = quarantine::list(&self.catalog.dir);
        let aside: u64 = aside.iter().map(|quarantined| quarantined.bytes).sum();
        let partitions = self.catalog.all_partitions();
        let copies = partitions.iter().map(|of| of.log.copy_bytes()).sum();
        let logs = self.catalog.log_bytes().saturating_add(copies);
        aside.saturating_add(logs)
    }

    /// Refuses from now on what comes for the time of a partition that has no room.
    fn refuse_before(&self, end: i64, undone: &mut Vec<String>) {
        self.catalog
            .evicted_before
            .fetch_max(end, Ordering::Relaxed);
        let path = self.catalog.eviction_watermark_path();
        if let Err(error) = eviction_watermark::save(&path, end, self.catalog.options.disk_bytes) {
            undone.push(format!("failed to write `{}`: {error}", path.display()));
        }
    }

    fn remove_quarantined(&self, quarantined: &QuarantinedFile, undone: &mut Vec<String>) {
        let path = quarantined.path.display();
        match std::fs::remove_file(&quarantined.path) {
            Ok(()) => {
                let bytes = quarantined.bytes;
                tracing::warn!("removed `{path}` ({bytes} bytes): the disk budget is used up");
                let removed = &self.catalog.counters.quarantined_removed;
                removed.inc();
            }
            Err(error) => undone.push(format!("failed to remove `{path}`: {error}")),
        }
    }

    /// Says how much was set aside of the log; of partitions each is said by itself.
    pub fn report_quarantine(&self) {
        let all = quarantine::list(&self.catalog.dir);
        let segments = || all.iter().filter(|quarantined| quarantined.is_segment());
        let (count, bytes) = (
            segments().count(),
            segments().map(|segment| segment.bytes).sum::<u64>(),
        );
        let said = (count > 0).then(|| {
            format!(
                "{count} segments of the write-ahead log ({bytes} bytes) were renamed to \
                 `wal/*.unusable`, because some of their records could not be replayed; delete \
                 them when you no longer need them"
            )
        });
        self.catalog.report_issue("unusable segments", said);
    }

    fn remove_partition(&self, partition: &Partition, undone: &mut Vec<String>) {
        // Nothing of it is on its way into its log. Out of the table first: from then on nobody
        // starts to read it. Who reads it now, goes on with the file, which is gone when the last
        // closes it.
        let _pushing = lock(&self.log.pushing);
        self.remove_files(partition, undone);
        if self.catalog.has_archived(partition.start) {
            // Of its time something is left, which must not come again.
            self.catalog.index_hosts_again();
        } else {
            write(&self.catalog.host_index).cut(partition.start, partition.end);
        }
    }

    /// Removes the files of a partition, into which nothing is on its way.
    fn remove_files(&self, partition: &Partition, undone: &mut Vec<String>) {
        let mut partitions = write(&self.catalog.partitions);
        partitions.remove(&partition.start);
        self.catalog.show_archived(&partitions);
        drop(partitions);
        partition.close_files();
        let path = partition.path.display();
        let log = self.catalog.partition_log(partition.start);
        // Where even that cannot be written, the space matters more: what comes back after a crash
        // is removed again.
        if let Err(error) = partition_log::start_removal(&log) {
            undone.push(format!("failed to note that `{path}` is removed: {error}"));
        }
        let removed = remove(&partition.path).and_then(|()| partition_log::end_removal(&log));
        if let Err(error) = removed {
            undone.push(format!("failed to remove `{path}`: {error}"));
        }
    }

    /// Damaged files are kept as long as others of their age.
    fn expire_quarantined(&self, horizon: i64) {
        let mut damaged = lock(&self.catalog.damaged);
        damaged.retain(|(range, name)| {
            let old = range.end_unix_ns <= horizon;
            if old {
                for suffix in ["", "-wal", "-shm"] {
                    let aside = format!("{name}{suffix}.damaged");
                    let _ = std::fs::remove_file(self.catalog.dir.join("partitions").join(aside));
                }
                let start = range.start_unix_ns;
                if !read(&self.catalog.partitions).contains_key(&start) {
                    let _ = partition_log::remove_folder(&self.catalog.partition_log(start));
                }
                self.catalog
                    .report_issue(&format!("partition {name}"), None);
            }
            !old
        });
    }

    /// Renames files that cannot be read. What memory has of them goes into a new file: the
    /// dictionary is complete in memory wherever windows are.
    fn quarantine_damaged(&self, undone: &mut Vec<String>) {
        for partition in self.catalog.all_partitions() {
            if !partition.damaged.load(Ordering::Acquire) {
                continue;
            }
            let _pushing = lock(&self.log.pushing);
            partition.close_files();
            if let Err(error) = quarantine_file(&partition.path) {
                undone.push(format!(
                    "failed to rename `{}`: {error}",
                    partition.path.display()
                ));
                continue;
            }
            let mut partitions = write(&self.catalog.partitions);
            match partition.recreated() {
                Ok(Some(recreated)) => {
                    partitions.insert(partition.start, Arc::new(recreated));
                    self.catalog.show_archived(&partitions);
                }
                Ok(None) => {
                    // Everything was in the file: what comes now for its time starts with new ids.
                    partitions.remove(&partition.start);
                    self.catalog.show_archived(&partitions);
                    if let Err(error) = partition.log.clear() {
                        let path = partition.path.display();
                        undone.push(format!("failed to remove the log of `{path}`: {error}"));
                    }
                }
                // It stays as it is, with what it has in memory, until there is room.
                Err(error) => undone.push(format!(
                    "failed to recreate `{}`: {error}",
                    partition.path.display()
                )),
            }
            drop(partitions);
            self.catalog.index_hosts_again();
        }
    }

    /// See [`WindowSink::close`](crate::store::WindowSink::close).
    pub fn close(&self) -> Result<(), StoreError> {
        let _upkeep = lock(&self.upkeep);
        self.catalog.closed.store(true, Ordering::Release);
        let flushed = self.flush(|_, _, _| true);
        let saved = self.log.save_hosts(true);
        for partition in self.catalog.all_partitions() {
            // A file without its log can be copied as one. Those that nobody has open have none.
            if has_log(&partition.path) {
                let _ = partition.reader().and_then(|file| file.checkpoint(true));
            }
            partition.close_files();
        }
        if flushed.is_ok() {
            self.save_manifest();
        }
        flushed.map_err(StoreError::Unavailable)?;
        saved.map_err(StoreError::Unavailable)
    }
}
