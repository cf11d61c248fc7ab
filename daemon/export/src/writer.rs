//! The spool's thread: makes each window durable, keeps the limits, and continues in memory while
//! the disk rejects writes.
//!
//! A window is one append and one fdatasync. If that fails, the generation continues in memory,
//! within a limit, and the next generation after [`DISK_RETRY`] tries the disk again, as does
//! shutdown; windows in memory are then written first. While some are in memory, the file of gaps
//! says so, so that they are reported even if the daemon is killed. The sampler and the symbolizer
//! notice nothing of the disk except a full queue, which they count.

use super::ExportState;
use super::disk::Dir;
use super::gaps::{Cause, SpoolGap};
use super::identity::Identity;
use super::spool::{RecordPlace, Stranded};
use super::window_exporter::SpoolEntry;
use host::sync::lock;
use host::time::{MonotonicTime, WallAnchor};
use profile::text::with_causes;
use segment::file::{ReadError, SegmentFile};
use segment::record;
use segment::window::{self, WindowHeader};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// How soon a disk that failed is tried again.
const DISK_RETRY: Duration = Duration::from_secs(60);

/// Most bytes of windows that are kept in memory while the disk takes none. Unit: bytes. About half
/// an hour of a small host; it comes out of the daemon's memory budget.
const MEMORY_BYTES_MAX: u64 = 8 << 20;

/// Windows of a segment in memory: what is given up at once there.
const MEMORY_SEGMENT_WINDOWS: usize = 6;

/// Most segments of a spool that is full: a segment is at most this part of the bound, so that no
/// more is given up at once.
const SEGMENTS_MIN: u64 = 16;

/// Ids of segments that have no file: above all of those that have one.
const MEMORY_IDS: u64 = 1 << 62;

/// Most bytes of a segment's start: see [`segment::file`]. Unit: bytes.
const SEGMENT_HEAD_MAX: u64 = 512;

struct Current {
    id: u64,
    generation: u64,
    file: Option<SegmentFile>,
    in_memory: usize,
}

/// See the module.
pub struct Writer {
    shared: Arc<ExportState>,
    path: PathBuf,
    identity: Arc<Identity>,
    clock: Arc<WallAnchor>,
    dir: Option<Arc<Dir>>,
    /// When the disk last failed.
    failed: Option<MonotonicTime>,
    next_id: u64,
    next_memory_id: u64,
    memory_bytes_max: u64,
    current: Option<Current>,
    /// A generation with incomplete tables: its windows cannot be stored.
    broken: Option<u64>,
    /// Start of the first window.
    first_unix_ns: Option<i64>,
    /// End of the last window of a crashed run, until the time since is reported as a gap.
    broke_off_unix_ns: Option<i64>,
}

impl Writer {
    /// A writer that has not looked at the disk yet.
    pub fn new(
        shared: Arc<ExportState>,
        path: PathBuf,
        identity: Arc<Identity>,
        clock: Arc<WallAnchor>,
    ) -> Writer {
        Writer {
            shared,
            path,
            identity,
            clock,
            dir: None,
            failed: None,
            next_id: 1,
            next_memory_id: MEMORY_IDS,
            memory_bytes_max: MEMORY_BYTES_MAX,
            current: None,
            broken: None,
            first_unix_ns: None,
            broke_off_unix_ns: None,
        }
    }

    /// Receives windows until the window exporter is gone.
    pub fn run(mut self, entries: &Receiver<SpoolEntry>) {
        self.open_dir();
        self.shared.wake.notify_one();
        while let Ok(entry) = entries.recv() {
            self.take(entry);
        }
        self.finish();
    }

    /// The end: whatever the disk said last, it is asked once more to take what is in memory.
    pub(super) fn finish(&mut self) {
        self.take_lost();
        if lock(&self.shared.index).only_in_memory().is_some() {
            if self.dir.is_none() {
                self.open_dir();
            }
            self.rescue();
        }
        self.save_gaps();
        if let Some(left) = lock(&self.shared.index).only_in_memory() {
            tracing::warn!(
                windows = left.windows,
                "windows are only in memory: those that the collector does not accept now are lost"
            );
        }
        self.shared.written.store(true, Ordering::Release);
        self.shared.wake.notify_one();
        self.shared.thread_ended(&self.identity);
    }

    /// Makes one window durable.
    pub(super) fn take(&mut self, entry: SpoolEntry) {
        self.take_lost();
        self.first_unix_ns.get_or_insert(entry.header.start_unix_ns);
        if self.dir.is_none() && self.may_try() {
            self.open_dir();
        }
        self.tell_of_broken_run();
        if self
            .current
            .as_ref()
            .is_none_or(|current| current.generation != entry.generation)
        {
            self.start_segment(entry.generation);
        }
        let payload = window::join(&entry.tables, &entry.body);
        self.keep(entry.generation, &payload, &entry.header);
        self.save_gaps();
        self.shared.wake.notify_one();
    }

    fn keep(&mut self, generation: u64, payload: &[u8], header: &WindowHeader) {
        if self.broken == Some(generation) {
            lock(&self.shared.index)
                .gaps
                .add(SpoolGap::of(Cause::DiskFull, header));
            return;
        }
        // A segment holds one generation: none of its records starts another.
        let packed = match record::pack(payload, header, false) {
            Ok(packed) => packed,
            Err(error) => {
                tracing::warn!(%error, "failed to pack a window: it was dropped");
                return self.refuse(generation, header);
            }
        };
        if let Some(offset) = self.write(&packed) {
            let len = packed.len() as u32;
            lock(&self.shared.index).push(RecordPlace::Disk { offset, len }, *header);
        } else {
            self.keep_in_memory(generation, packed, header);
        }
    }

    /// Appends to the current segment's file; none when the disk does not take it.
    fn write(&mut self, packed: &[u8]) -> Option<u64> {
        let settings = self.shared.settings();
        let need = packed.len() as u64;
        let oldest = self.now_unix_ns().saturating_sub(settings.max_age_ns);
        let removed = lock(&self.shared.index).make_room(need, settings.max_bytes, oldest);
        self.remove(&removed);
        let fits = lock(&self.shared.index).disk_bytes() + need <= settings.max_bytes;
        let current = self.current.as_mut()?;
        let file = current.file.as_mut()?;
        if !fits {
            // One window fills the complete spool.
            current.file = None;
            self.shared.rotate.store(true, Ordering::Release);
            return None;
        }
        let started = Instant::now();
        let appended = file.append(packed);
        let took = started.elapsed().as_secs_f64();
        self.shared.times.spool_write.observe(took);
        match appended {
            Ok(offset) => {
                if file.bytes() >= settings.max_bytes / SEGMENTS_MIN {
                    self.shared.rotate.store(true, Ordering::Release);
                }
                Some(offset)
            }
            Err(error) => {
                current.file = None;
                self.disk_failed(format!("failed to write to the spool: {error}"));
                None
            }
        }
    }

    fn keep_in_memory(&mut self, generation: u64, packed: Vec<u8>, header: &WindowHeader) {
        let (fits, removed) =
            lock(&self.shared.index).make_memory(packed.len() as u64, self.memory_bytes_max);
        self.remove(&removed);
        if !fits {
            return self.refuse(generation, header);
        }
        lock(&self.shared.index).push(RecordPlace::Memory(packed.into()), *header);
        if let Some(current) = &mut self.current {
            current.in_memory += 1;
            if current.in_memory >= MEMORY_SEGMENT_WINDOWS {
                self.shared.rotate.store(true, Ordering::Release);
            }
        }
    }

    /// Drops a window; what its generation defined there is missing from now on.
    fn refuse(&mut self, generation: u64, header: &WindowHeader) {
        lock(&self.shared.index)
            .gaps
            .add(SpoolGap::of(Cause::DiskFull, header));
        self.broken = Some(generation);
        self.shared.rotate.store(true, Ordering::Release);
    }

    fn start_segment(&mut self, generation: u64) {
        if let Some(before) = self.current.take() {
            let finished = lock(&self.shared.index).close(before.id);
            if finished {
                self.remove(&[before.id]);
            }
        }
        let mut file = None;
        if self.may_try() {
            self.rescue();
        }
        if let Some(dir) = self.dir.clone()
            && self.may_try()
        {
            match dir.create(self.next_id, &self.identity) {
                Ok(made) => {
                    file = Some(made);
                    self.disk_works();
                }
                Err(error) => {
                    self.disk_failed(format!("failed to create a segment of the spool: {error}"));
                }
            }
        }
        let ids = match file {
            Some(_) => &mut self.next_id,
            None => &mut self.next_memory_id,
        };
        let id = *ids;
        *ids += 1;
        let bytes = file.as_ref().map_or(0, SegmentFile::bytes);
        lock(&self.shared.index).start_segment(id, &self.identity, bytes);
        self.current = Some(Current {
            id,
            generation,
            file,
            in_memory: 0,
        });
    }

    /// Writes what is in memory only to the disk, oldest first, as far as it takes it.
    fn rescue(&mut self) {
        let Some(dir) = self.dir.clone() else {
            return;
        };
        let stranded = lock(&self.shared.index).stranded();
        if stranded.is_empty() {
            return;
        }
        for stranded in stranded {
            if let Err(error) = self.land(&dir, &stranded) {
                return self.disk_failed(format!("failed to write to the spool: {error}"));
            }
        }
        if lock(&self.shared.index).only_in_memory().is_none() {
            tracing::info!("windows that waited in memory are on disk now");
        }
    }

    /// Writes the records of a segment that are in memory to its file, or to a new one.
    fn land(&mut self, dir: &Dir, stranded: &Stranded) -> std::io::Result<()> {
        let settings = self.shared.settings();
        let need = stranded.records.iter().map(|bytes| bytes.len() as u64);
        let need = need.sum::<u64>() + SEGMENT_HEAD_MAX;
        let oldest = self.now_unix_ns().saturating_sub(settings.max_age_ns);
        let (removed, fits) = {
            let mut index = lock(&self.shared.index);
            let removed = index.make_room(need, settings.max_bytes, oldest);
            let there = index.place(stranded.segment, stranded.first).is_some();
            let fits = index.disk_bytes() + need <= settings.max_bytes;
            (removed, there && fits)
        };
        self.remove(&removed);
        if !fits {
            // It was dropped itself, or stays in memory like a window that fills the complete
            // spool.
            return Ok(());
        }
        let (id, mut file) = match stranded.file_len {
            Some(len) => (stranded.segment, dir.reopen(stranded.segment, len)?),
            None => {
                self.next_id += 1;
                let id = self.next_id - 1;
                (id, dir.create(id, &stranded.identity)?)
            }
        };
        let (offsets, failed) = file.append_all(&stranded.records);
        let landed = match offsets.is_empty() {
            true => None,
            false => lock(&self.shared.index).landed(stranded, id, &offsets),
        };
        match landed {
            // What cannot be noted is sent again.
            Some(done) => done.iter().for_each(|&record| {
                let _ = dir.ack(id, record);
            }),
            None if stranded.file_len.is_none() => dir.remove(id),
            None => {}
        }
        failed.map_or(Ok(()), Err)
    }

    fn may_try(&self) -> bool {
        self.failed
            .is_none_or(|at| MonotonicTime::now().since(at) >= DISK_RETRY)
    }

    fn disk_failed(&mut self, reason: String) {
        self.failed = Some(MonotonicTime::now());
        let mut progress = lock(&self.shared.progress);
        if progress.spool_error.is_none() {
            tracing::warn!(reason, "windows wait for the collector in memory");
        }
        progress.spool_error = Some(reason);
    }

    fn disk_works(&mut self) {
        self.failed = None;
        if lock(&self.shared.progress).spool_error.take().is_some() {
            tracing::info!("windows wait for the collector on disk again");
        }
    }

    /// Opens the directory and takes in what earlier runs left there.
    pub(super) fn open_dir(&mut self) {
        let dir = match Dir::open(&self.path) {
            Ok(dir) => Arc::new(dir),
            Err(error) => return self.disk_failed(with_causes(&error)),
        };
        let ids = match dir.segments() {
            Ok(ids) => ids,
            Err(error) => return self.disk_failed(format!("failed to read the spool: {error}")),
        };
        let mut newest_end = None;
        for (at, &id) in ids.iter().enumerate() {
            self.take_found(&dir, id, at + 1 == ids.len(), &mut newest_end);
        }
        let earlier = {
            let text = dir.gaps().read();
            let mut index = lock(&self.shared.index);
            let earlier = index.gaps.load(&text, &self.identity.boot());
            index.release_gaps();
            earlier
        };
        if earlier.broke_off {
            self.broke_off_unix_ns = newest_end.max(earlier.end_unix_ns);
        }
        let last = ids.last().copied().unwrap_or(0);
        self.next_id = self.next_id.max(last.saturating_add(1)).min(MEMORY_IDS - 1);
        self.shared.set_dir(Arc::clone(&dir));
        self.dir = Some(dir);
        self.disk_works();
        self.tell_of_broken_run();
        // From now on the file says that a run is open.
        lock(&self.shared.index).gaps.unsaved();
        self.save_gaps();
    }

    /// Adds one segment of an earlier run. `newest_end` is the end of the newest known window of
    /// this boot.
    fn take_found(&self, dir: &Dir, id: u64, newest: bool, newest_end: &mut Option<i64>) {
        let scanned = match dir.scan(id, newest) {
            Ok(scanned) => scanned,
            Err(ReadError::Io(error)) if error.kind() == std::io::ErrorKind::NotFound => return,
            Err(error) => {
                tracing::warn!(
                    segment = id,
                    %error,
                    "failed to read a segment of the spool: it was set aside"
                );
                self.lost_segment(dir, id, *newest_end);
                if let Err(error) = dir.quarantine(id) {
                    tracing::warn!(segment = id, %error, "failed to set the segment aside");
                }
                return;
            }
        };
        if scanned.damaged {
            tracing::warn!(segment = id, "a segment of the spool is damaged");
            let last = scanned.records.last();
            let last = last.map(|(last, _)| last.header.end_unix_ns);
            self.lost_segment(dir, id, last.or(*newest_end));
        }
        if scanned.identity.as_ref() == Some(&*self.identity) {
            let headers = scanned.records.iter().map(|(found, _)| found.header);
            let sequence = headers.clone().map(|header| header.sequence).max();
            let last_sequence = &self.shared.last_sequence;
            last_sequence.fetch_max(sequence.unwrap_or(0), Ordering::AcqRel);
            let end = headers.map(|header| header.end_unix_ns).max();
            *newest_end = (*newest_end).max(end);
        }
        let waits = lock(&self.shared.index).add_found(id, &scanned);
        if !waits {
            dir.remove(id);
        }
    }

    /// Counts windows of a segment that cannot be read. How many there were is not known: one at
    /// least. They are younger than `after`, and no younger than the file.
    fn lost_segment(&self, dir: &Dir, id: u64, after: Option<i64>) {
        let modified = dir.modified_unix_ns(id);
        let end = modified.or(after).unwrap_or_else(|| self.now_unix_ns());
        lock(&self.shared.index).gaps.add(SpoolGap {
            cause: Cause::Damaged,
            start_unix_ns: after.map_or(end, |after| after.min(end)),
            end_unix_ns: end,
            windows: 1,
            samples: 0,
        });
    }

    /// Reports the time between the last known window of a crashed run and the first window of this
    /// run as a gap. The number of windows in it is unknown: at least one, which was still open.
    fn tell_of_broken_run(&mut self) {
        let (Some(start), Some(end)) = (self.broke_off_unix_ns, self.first_unix_ns) else {
            return;
        };
        self.broke_off_unix_ns = None;
        if end <= start {
            return;
        }
        let seconds = end.abs_diff(start) / 1_000_000_000;
        tracing::warn!(
            seconds,
            "the last run ended without a clean stop: windows after its last saved window are \
             missing"
        );
        lock(&self.shared.index).gaps.add(SpoolGap {
            cause: Cause::Unsaved,
            start_unix_ns: start,
            end_unix_ns: end,
            windows: 1,
            samples: 0,
        });
    }

    /// Makes the next write try the disk again.
    #[cfg(test)]
    pub(super) fn forget_failure(&mut self) {
        self.failed = None;
    }

    /// Marks the disk as failed.
    #[cfg(test)]
    pub(super) fn fail(&mut self) {
        self.failed = Some(MonotonicTime::now());
        self.current
            .iter_mut()
            .for_each(|current| current.file = None);
    }

    #[cfg(test)]
    pub(super) fn set_memory_max(&mut self, bytes: u64) {
        self.memory_bytes_max = bytes;
    }

    fn take_lost(&mut self) {
        let lost = std::mem::take(&mut *lock(&self.shared.lost));
        let mut index = lock(&self.shared.index);
        lost.into_iter().for_each(|gap| index.gaps.add(gap));
    }

    fn save_gaps(&mut self) {
        self.shared.save_gaps(&self.identity);
    }

    fn remove(&self, segments: &[u64]) {
        if let Some(dir) = &self.dir {
            segments.iter().for_each(|&id| dir.remove(id));
        }
    }

    fn now_unix_ns(&self) -> i64 {
        self.clock.to_unix_ns(MonotonicTime::now())
    }
}

impl ExportState {
    /// Rewrites the gaps when they have changed. What cannot be written is tried again with the
    /// next window. Returns false when the disk does not say what is true.
    pub(super) fn save_gaps(&self, identity: &Identity) -> bool {
        let Some(dir) = self.dir() else {
            return false;
        };
        let mut file = dir.gaps();
        let text = lock(&self.index).take_unsaved_gaps(&identity.boot());
        let Some(text) = text else {
            return true;
        };
        let written = file.write(&text);
        if let Err(error) = &written {
            tracing::debug!(%error, "failed to save the gaps");
            lock(&self.index).gaps.unsaved();
        }
        written.is_ok()
    }
}
