//! Keeps the archive up to date: uploads sealed partitions, removes what expires, and says how far
//! behind it is.
//!
//! One step is one piece of work. A partition counts as archived once its object was written, read
//! back and compared, and is named by the manifest: in this order, so that a kill between any two
//! leaves an object that nobody names, which a later step removes. The local file goes later
//! ([`Maintenance`]), and only if the manifest names an object with all of it.

use super::archive::{
    Archive, ArchiveError, CacheCounters, Entry, HostsObject, Packed, Sink, Upload, UploadError,
    pack,
};
use super::catalog::Catalog;
use super::file::{FileError, PartitionFile};
use super::maintenance::{Maintenance, has_closed};
use super::partition::Partition;
use crate::store::{Cancel, StoreError};
use crate::sync::{lock, read, write};
use bytes::Bytes;
use metrics::{Family, gather};
use std::sync::{Arc, Mutex};

const SECOND_NS: i64 = 1_000_000_000;

/// After a failure nothing is tried for so long, and after each further one for twice as long.
/// Unit: nanoseconds.
const RETRY_NS: i64 = 2 * SECOND_NS;

/// Longest pause after a failure. Unit: nanoseconds.
const RETRY_NS_MAX: i64 = 300 * SECOND_NS;

/// The table of hosts is uploaded so often, if it changed. Unit: nanoseconds.
const HOSTS_NS: i64 = 3600 * SECOND_NS;

/// Objects that nobody names are looked for so often. Unit: nanoseconds.
const ORPHANS_NS: i64 = 24 * 3600 * SECOND_NS;

/// So far behind, the archive is an issue by itself, whatever the reason. Unit: seconds. A
/// partition is six hours long: another one waits by then.
const BEHIND_S_MAX: u64 = 6 * 3600;

metrics::counted! {
    /// What the archiver did.
    pub struct ArchiverCounters;
    /// Partitions uploaded to the archive, once more when they were downsampled or got late
    /// windows.
    Counter fleetprof_archive_uploads_total = uploads;
    /// Bytes of partitions uploaded to the archive.
    Counter fleetprof_archive_uploaded_bytes_total = uploaded_bytes;
    /// Times that the bucket, or a local file, kept the archive from being brought up to date.
    Counter fleetprof_archive_failures_total = failures;
    /// Objects removed from the archive, by cause.
    Counter fleetprof_archive_objects_removed_total{cause} =
        "age" expired,
        "replaced" replaced,
        "orphaned" orphaned;
    /// Sealed partitions that the archive does not have as they are.
    Gauge fleetprof_archive_pending_partitions = pending;
    /// Size of the files of sealed partitions that the archive does not have as they are.
    Gauge fleetprof_archive_pending_bytes = pending_bytes;
    /// Time since the end of the oldest sealed partition that the archive does not have as it is.
    /// Alert on it.
    Gauge fleetprof_archive_behind_seconds = behind_s;
    /// 1 when another collector writes to the archive, or its manifest is gone. Alert on it.
    Gauge fleetprof_archive_fenced = fenced;
}

/// What the archive holds.
#[derive(Default)]
struct Held {
    is_configured: bool,
    objects: u64,
    bytes: u64,
    read_remotely: u64,
}

metrics::rows! { HELD: Held;
    /// 1 when the store has an archive.
    Gauge fleetprof_archive_configured = |h| u64::from(h.is_configured);
    /// Partitions in the archive.
    Gauge fleetprof_archive_partitions = |h| h.objects;
    /// Size of the partitions in the archive.
    Gauge fleetprof_archive_bytes = |h| h.bytes;
    /// Partitions of which the archive has the only copy.
    Gauge fleetprof_archive_partitions_remote = |h| h.read_remotely;
}

/// When things are due.
#[derive(Default)]
struct Schedule {
    failures_in_a_row: u32,
    retry_unix_ns: Option<i64>,
    hosts_unix_ns: Option<i64>,
    orphans_unix_ns: Option<i64>,
}

/// See the module.
pub struct Archiver {
    catalog: Arc<Catalog>,
    maintenance: Arc<Maintenance>,
    schedule: Mutex<Schedule>,
    counters: ArchiverCounters,
}

/// Why a step ended early.
enum Stopped {
    /// It was told to.
    Cancelled,
    /// Something failed, in a sentence.
    Failed(String),
}

impl From<ArchiveError> for Stopped {
    fn from(error: ArchiveError) -> Stopped {
        Stopped::Failed(error.to_string())
    }
}

/// True when `last` is so long ago, or lies in the future: a clock that was set back must not stop
/// the work.
fn is_due(last: Option<i64>, every_ns: i64, now: i64) -> bool {
    last.is_none_or(|last| !(0..every_ns).contains(&now.saturating_sub(last)))
}

impl Archiver {
    /// An archiver that has done nothing yet.
    pub fn new(catalog: Arc<Catalog>, maintenance: Arc<Maintenance>) -> Archiver {
        Archiver {
            catalog,
            maintenance,
            schedule: Mutex::default(),
            counters: ArchiverCounters::default(),
        }
    }

    /// Numbers of the archive; without one, all are 0.
    pub fn families(&self) -> Vec<Family> {
        let mut all = self.counters.families();
        let mut held = Held::default();
        match &self.catalog.archive {
            Some(archive) => {
                let manifest = archive.manifest();
                held = Held {
                    is_configured: true,
                    objects: manifest.partitions.len() as u64,
                    bytes: manifest.partitions.iter().map(|entry| entry.bytes).sum(),
                    read_remotely: self.catalog.all_archived().len() as u64,
                };
                all.extend(archive.cache_counters().families());
            }
            None => all.extend(CacheCounters::default().families()),
        }
        all.extend(gather(HELD, &held));
        all
    }

    /// See [`WindowSink::archive`](crate::store::WindowSink::archive).
    pub fn step(&self, now: i64, cancel: &Cancel) -> Result<bool, StoreError> {
        let Some(archive) = &self.catalog.archive else {
            return Ok(false);
        };
        self.report(archive, now);
        if let Some(at) = lock(&self.schedule).retry_unix_ns
            && (1..=RETRY_NS_MAX).contains(&at.saturating_sub(now))
        {
            return Ok(false);
        }
        let done = match archive.fenced() {
            None => self.work(archive, now, cancel),
            Some(_) => Ok(false),
        };
        self.report(archive, now);
        let mut schedule = lock(&self.schedule);
        match done {
            Ok(more) => {
                (schedule.retry_unix_ns, schedule.failures_in_a_row) = (None, 0);
                self.catalog.report_issue("archive", archive.fenced());
                Ok(more)
            }
            Err(Stopped::Cancelled) => Ok(false),
            Err(Stopped::Failed(text)) => {
                let doubled = RETRY_NS.saturating_mul(1 << schedule.failures_in_a_row.min(20));
                let pause = doubled.min(RETRY_NS_MAX);
                schedule.failures_in_a_row += 1;
                schedule.retry_unix_ns = Some(now.saturating_add(pause));
                self.counters.failures.inc();
                let waits = self.counters.pending.get();
                let issue = format!(
                    "{text}; {waits} partitions wait on this disk, and the collector retries"
                );
                self.catalog.report_issue("archive", Some(issue));
                Err(StoreError::Unavailable(text))
            }
        }
    }

    /// Says how far behind it is.
    fn report(&self, archive: &Archive, now: i64) {
        let (mut pending, mut bytes, mut behind) = (0, 0, 0);
        for partition in self.catalog.all_partitions() {
            if has_closed(&partition, now) && self.catalog.archived_copy(&partition).is_none() {
                pending += 1;
                bytes += partition.bytes();
                behind = behind.max(now.saturating_sub(partition.end));
            }
        }
        self.counters.pending.set(pending);
        self.counters.pending_bytes.set(bytes);
        let behind_s = (behind / SECOND_NS).unsigned_abs();
        self.counters.behind_s.set(behind_s);
        self.counters.fenced.set(archive.fenced().is_some().into());
        let issue = (behind_s > BEHIND_S_MAX).then(|| {
            format!(
                "the archive `{}` is behind by {} h: {pending} partitions ({bytes} bytes) are on \
                 this disk alone",
                archive.shown(),
                behind_s / 3600
            )
        });
        self.catalog.report_issue("archive behind", issue);
    }

    fn work(&self, archive: &Arc<Archive>, now: i64, cancel: &Cancel) -> Result<bool, Stopped> {
        let now_s = now.div_euclid(SECOND_NS);
        if archive.claim(now_s)? {
            // What the run before had written without a copy of the manifest.
            self.show();
            self.catalog.index_hosts_again();
        }
        let sealed = self.maintenance.sealed(now);
        let kept_from = now.saturating_sub_unsigned(archive.options.retention_ns);
        let due = sealed.into_iter().find(|partition| {
            partition.end > kept_from && self.catalog.archived_copy(partition).is_none()
        });
        if let Some(partition) = due {
            self.upload(archive, &partition, now_s, cancel)?;
            return Ok(archive.fenced().is_none());
        }
        self.expire(archive, kept_from, now_s)?;
        if is_due(lock(&self.schedule).hosts_unix_ns, HOSTS_NS, now) {
            self.upload_hosts(archive, now_s)?;
            lock(&self.schedule).hosts_unix_ns = Some(now);
        }
        if is_due(lock(&self.schedule).orphans_unix_ns, ORPHANS_NS, now) {
            for name in archive.orphans()? {
                if cancel.is_cancelled() {
                    return Err(Stopped::Cancelled);
                }
                archive.remove(&name)?;
                self.counters.orphaned.inc();
            }
            lock(&self.schedule).orphans_unix_ns = Some(now);
        }
        Ok(false)
    }

    /// Shows readers what the manifest has now.
    fn show(&self) {
        // Locked as where one goes: readers find each partition once.
        let partitions = write(&self.catalog.partitions);
        self.catalog.show_archived(&partitions);
    }

    fn upload(
        &self,
        archive: &Arc<Archive>,
        partition: &Partition,
        now_s: i64,
        cancel: &Cancel,
    ) -> Result<(), Stopped> {
        let start_s = partition.start.div_euclid(SECOND_NS);
        let end_s = partition.end.div_euclid(SECOND_NS);
        let level = partition.level;
        let name = archive.new_name(&format!("{start_s}-{}", level.name()));
        let packed = self.pack(archive, partition, &name, cancel)?;
        archive.verify(&name, &packed.extent)?;
        if cancel.is_cancelled() {
            return Err(Stopped::Cancelled);
        }
        archive.keep_head(&name, &packed.head);
        let entry = Entry::new(
            name.clone(),
            (start_s, end_s),
            level,
            &packed.facts,
            &packed.extent,
        );
        let mut replaced = None;
        let written = archive.commit(now_s, |manifest| replaced = manifest.insert(entry));
        if !written? {
            archive.forget(&name);
            return Ok(());
        }
        // The file may have gone while it was uploaded.
        self.show();
        self.counters.uploads.inc();
        self.counters.uploaded_bytes.inc_by(packed.extent.bytes);
        if let Some(replaced) = replaced {
            // One that stays is an orphan, and removed later.
            if archive.remove(&replaced.name).is_ok() {
                self.counters.replaced.inc();
            }
        }
        Ok(())
    }

    /// Writes a partition's file as an object that no manifest names yet.
    fn pack(
        &self,
        archive: &Archive,
        partition: &Partition,
        name: &str,
        cancel: &Cancel,
    ) -> Result<Packed, Stopped> {
        let packed = PartitionFile::open_to_read(&partition.path)
            .and_then(|file| file.begin().map(|_| file))
            .map_err(UploadError::File)
            .and_then(|file| {
                let mut uploading = Uploading {
                    upload: archive.upload(name, partition.bytes()),
                    cancel,
                };
                let packed = pack(&file, archive.options.piece_bytes, &mut uploading)?;
                file.end();
                uploading.upload.end()?;
                Ok(packed)
            });
        partition.forget_bytes();
        packed.map_err(|error| match error {
            UploadError::File(FileError::Cancelled) => Stopped::Cancelled,
            UploadError::File(FileError::Damaged(text)) => {
                self.catalog.mark_damaged(partition, &text);
                Stopped::Failed(format!("`{}` is damaged: {text}", partition.path.display()))
            }
            UploadError::File(error) => {
                let path = partition.path.display();
                Stopped::Failed(format!("failed to read `{path}` for the archive: {error}"))
            }
            UploadError::Bucket(error) => Stopped::Failed(format!(
                "failed to write to the archive `{}`: {error}",
                archive.shown()
            )),
        })
    }

    /// Removes what is over its age.
    fn expire(&self, archive: &Archive, kept_from: i64, now_s: i64) -> Result<(), Stopped> {
        let kept_from_s = kept_from.div_euclid(SECOND_NS);
        let is_old = |entry: &Entry| entry.end_s <= kept_from_s;
        let old: Vec<Entry> = archive.manifest().partitions;
        let old: Vec<Entry> = old.into_iter().filter(is_old).collect();
        if old.is_empty() {
            return Ok(());
        }
        let written = archive.commit(now_s, |manifest| {
            manifest.partitions.retain(|entry| !is_old(entry));
        });
        if !written? {
            return Ok(());
        }
        self.show();
        for entry in &old {
            let start = entry.start_s.saturating_mul(SECOND_NS);
            let end = entry.end_s.saturating_mul(SECOND_NS);
            let is_here = read(&self.catalog.partitions).contains_key(&start);
            if !is_here && !self.catalog.has_archived(start) {
                write(&self.catalog.host_index).cut(start, end);
            }
            self.counters.expired.inc();
            // One that stays is an orphan, and removed later.
            let _ = archive.remove(&entry.name);
        }
        Ok(())
    }

    /// Uploads the table of hosts if it changed.
    fn upload_hosts(&self, archive: &Archive, now_s: i64) -> Result<(), Stopped> {
        let encoded = lock(&self.catalog.hosts).encode();
        let bytes = encoded.map_err(|error| Stopped::Failed(error.to_string()))?;
        let hash = blake3::hash(&bytes).to_hex().to_string();
        let before = archive.manifest().hosts;
        if before.as_ref().is_some_and(|before| before.hash == hash) {
            return Ok(());
        }
        let name = archive.new_name("hosts");
        archive.put(&name, Bytes::from(bytes))?;
        let hosts = HostsObject { name, hash };
        let written = archive.commit(now_s, |manifest| manifest.hosts = Some(hosts));
        if written? && let Some(before) = before {
            // As above.
            let _ = archive.remove(&before.name);
        }
        Ok(())
    }
}

/// An upload that can be told to stop.
struct Uploading<'a> {
    upload: Upload<'a>,
    cancel: &'a Cancel,
}

impl Sink for Uploading<'_> {
    type Error = UploadError;

    fn append(&mut self, bytes: &[u8]) -> Result<(), UploadError> {
        if self.cancel.is_cancelled() {
            return Err(FileError::Cancelled.into());
        }
        self.upload.append(bytes)
    }
}
