//! Maintains partitions as they age: closed chunks become one part, closed hours are summed by
//! service, and old partitions are downsampled.
//!
//! The caller of `maintain` does it in slices, after flushing and outside the lock that flushes
//! need: a slice ends after [`SLICE`], however much is left.

use super::Maintenance;
use crate::store::embedded::chunk::{CHUNK_NS, HOUR_CHUNKS};
use crate::store::embedded::compact::Compaction;
use crate::store::embedded::downsample::{Downsampling, Written};
use crate::store::embedded::file::{FileError, PartitionFile, put_in_place, remove};
use crate::store::embedded::level::Level;
use crate::store::embedded::partition::Partition;
use crate::sync::{lock, read, write};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A chunk is closed so long after its end: agents that were cut off for minutes have brought what
/// they had. What comes later is one more part, and is put together again. Unit: nanoseconds.
const CLOSED_NS: i64 = 3_600_000_000_000;

/// Time that one call takes of its caller. `maintain` is called every two seconds: at most a fifth
/// of one CPU goes into compaction.
const SLICE: Duration = Duration::from_millis(400);

/// After a failure nothing is tried for so long. Unit: nanoseconds.
const RETRY_NS: i64 = 60_000_000_000;

/// State of the work between two slices.
#[derive(Default)]
pub struct Compactor {
    /// Partitions that were in order, by start.
    up_to_date: HashMap<i64, UpToDate>,
    downsampling: Option<Downsampling>,
    retry_unix_ns: Option<i64>,
}

/// A partition in order.
struct UpToDate {
    level: Level,
    records: BTreeMap<u16, u64>,
    /// When time alone makes work.
    until_unix_ns: i64,
}

/// Why a slice ended.
enum Stopped {
    /// Its time is over.
    Slice,
    /// A file failed.
    File(Arc<Partition>, FileError),
}

impl Maintenance {
    /// Does a slice of what is due. Another thread that is at it already is left alone.
    pub(super) fn compact_slice(&self, now_unix_ns: i64) -> Result<(), String> {
        let Ok(mut compactor) = self.compactor.try_lock() else {
            return Ok(());
        };
        // A clock that was set back must not stop the work forever.
        let waits = compactor
            .retry_unix_ns
            .is_some_and(|at| now_unix_ns < at && at - now_unix_ns <= RETRY_NS);
        if waits {
            return Ok(());
        }
        compactor.retry_unix_ns = None;
        let started = Instant::now();
        let until = started + SLICE;
        let done = self.compact_partitions(&mut compactor, now_unix_ns, until);
        let took = started.elapsed();
        self.note_ceiling(now_unix_ns, (took, SLICE), done.is_err());
        let pending = match &done {
            Ok(()) => 0,
            Err(_) => 1,
        };
        self.catalog.counters.compaction_pending.set(pending);
        match done {
            Ok(()) => {
                self.catalog.report_issue("compaction", None);
                Ok(())
            }
            Err(Stopped::Slice) => Ok(()),
            Err(Stopped::File(partition, FileError::Damaged(text))) => {
                self.abandon_downsampling(&mut compactor);
                self.catalog.mark_damaged(&partition, &text);
                Ok(())
            }
            Err(Stopped::File(partition, error)) => {
                self.abandon_downsampling(&mut compactor);
                compactor.retry_unix_ns = Some(now_unix_ns.saturating_add(RETRY_NS));
                self.catalog.counters.compaction_failures.inc();
                let path = partition.path.display();
                let text = format!("failed to compact or downsample `{path}`: {error}");
                let more = "; the finer data stays, and the collector retries in a minute";
                self.catalog
                    .report_issue("compaction", Some(format!("{text}{more}")));
                Err(text)
            }
        }
    }

    /// Forgets a downsampled file that is not complete.
    fn abandon_downsampling(&self, compactor: &mut Compactor) {
        if let Some(downsampling) = compactor.downsampling.take() {
            let temporary = downsampling.temporary();
            drop(downsampling);
            // What stays is removed when the store is opened, or written over.
            let _ = remove(&temporary);
        }
        self.catalog.counters.downsampling_bytes.set(0);
    }

    fn compact_partitions(
        &self,
        compactor: &mut Compactor,
        now: i64,
        until: Instant,
    ) -> Result<(), Stopped> {
        if compactor.downsampling.is_some() {
            self.continue_downsampling(compactor, until)?;
        }
        let partitions: Vec<Arc<Partition>> =
            read(&self.catalog.partitions).values().cloned().collect();
        let starts: std::collections::HashSet<i64> =
            partitions.iter().map(|partition| partition.start).collect();
        compactor
            .up_to_date
            .retain(|start, _| starts.contains(start));
        for partition in partitions {
            let wanted = self.catalog.options.level_at(partition.end, now);
            let skip = partition.level == Level::ServiceHours
                || partition.damaged.load(Ordering::Acquire)
                || compactor.is_up_to_date(&partition, wanted, now);
            if skip {
                continue;
            }
            if Instant::now() >= until {
                return Err(Stopped::Slice);
            }
            let failed = |error| Stopped::File(Arc::clone(&partition), error);
            let compacted = self.compact(&partition, now, until);
            partition.forget_bytes();
            let until_unix_ns = compacted.map_err(failed)?;
            let until_unix_ns = until_unix_ns.ok_or(Stopped::Slice)?;
            if wanted > partition.level && partition.is_flushed() {
                let started =
                    Downsampling::start(Arc::clone(&partition), wanted).map_err(failed)?;
                if started.is_some() {
                    compactor.downsampling = started;
                    self.continue_downsampling(compactor, until)?;
                    continue;
                }
            }
            let rest = UpToDate {
                level: partition.level,
                records: partition.flushed_records(),
                until_unix_ns,
            };
            // One that is coarser than wanted, since ages were raised, stays as it is.
            if partition.is_flushed() && wanted <= partition.level {
                compactor.up_to_date.insert(partition.start, rest);
            }
        }
        Ok(())
    }

    /// Puts closed chunks and hours of a partition in order. Returns when more are closed, or
    /// `None` when the slice was over before.
    fn compact(
        &self,
        partition: &Partition,
        now: i64,
        until: Instant,
    ) -> Result<Option<i64>, FileError> {
        let go_on = || Instant::now() < until;
        let in_memory = partition.chunks_in_memory();
        let closes = |chunk: u16| {
            let end = partition.chunk_start(chunk).saturating_add(CHUNK_NS as i64);
            end.min(partition.end).saturating_add(CLOSED_NS)
        };
        let is_closed = |chunk: u16| closes(chunk) <= now && !in_memory.contains(&chunk);
        let file = PartitionFile::open(&partition.path)?;
        let chunks: Vec<u16> = file.chunk_parts()?.into_keys().collect();
        let mut in_parts = file.chunks_in_parts()?;
        in_parts.retain(|&chunk| is_closed(chunk));
        let valid = file.hours_valid()?;
        let mut hours: Vec<u16> = file.hours()?.into_keys().collect();
        hours.retain(|hour| {
            let first = hour * HOUR_CHUNKS;
            // An hour ends with its last chunk, whether something came in that or not.
            !valid.contains(hour) && (first..first + HOUR_CHUNKS).all(is_closed)
        });
        if !in_parts.is_empty() || !hours.is_empty() {
            let mut compaction = Compaction::new(partition, file)?;
            for chunk in in_parts {
                let started = Instant::now();
                if !compaction.chunk(chunk, go_on)? {
                    return Ok(None);
                }
                let took = started.elapsed().as_secs_f64();
                self.catalog.counters.compaction_time.observe(took);
                self.catalog.counters.chunks_compacted.inc();
            }
            for hour in hours {
                if !compaction.hour(hour, go_on)? {
                    return Ok(None);
                }
                self.catalog.counters.hours_added_up.inc();
            }
        }
        // Hours close with a chunk that may have nothing in it.
        let ends = chunks.iter().flat_map(|&chunk| {
            let last = chunk / HOUR_CHUNKS * HOUR_CHUNKS + HOUR_CHUNKS - 1;
            [closes(chunk), closes(last)]
        });
        let next = ends.filter(|&closes| closes > now).min();
        Ok(Some(next.unwrap_or(i64::MAX)))
    }

    fn continue_downsampling(
        &self,
        compactor: &mut Compactor,
        until: Instant,
    ) -> Result<(), Stopped> {
        let Some(mut downsampling) = compactor.downsampling.take() else {
            return Ok(());
        };
        let partition = Arc::clone(&downsampling.partition);
        let failed = |error| Stopped::File(Arc::clone(&partition), error);
        let path = downsampling.path();
        let is_current = read(&self.catalog.partitions)
            .get(&partition.start)
            .is_some_and(|current| Arc::ptr_eq(current, &partition));
        if !is_current || downsampling.records != partition.flushed_records() {
            compactor.downsampling = Some(downsampling);
            self.abandon_downsampling(compactor);
            return Ok(());
        }
        let worked = downsampling.work(|| Instant::now() < until);
        let bytes = crate::store::embedded::file::bytes(&downsampling.temporary());
        self.catalog.counters.downsampling_bytes.set(bytes);
        match worked {
            Ok(true) => {}
            Ok(false) => {
                compactor.downsampling = Some(downsampling);
                return Err(Stopped::Slice);
            }
            Err(error) => {
                compactor.downsampling = Some(downsampling);
                return Err(failed(error));
            }
        }
        let done = downsampling
            .into_durable()
            .and_then(|written| self.install_downsampled(&written));
        self.catalog.counters.downsampling_bytes.set(0);
        let in_place = matches!(done, Ok(true));
        if !in_place {
            let _ = remove(&path.with_extension("new"));
        }
        done.map_err(failed)?;
        if in_place {
            self.catalog.counters.partitions_downsampled.inc();
        }
        Ok(())
    }

    /// Puts a downsampled file in the place of the finer one, unless something came meanwhile.
    fn install_downsampled(&self, written: &Written) -> Result<bool, FileError> {
        let finer = &written.partition;
        let _upkeep = lock(&self.upkeep);
        if self.catalog.closed.load(Ordering::Acquire) {
            return Ok(false);
        }
        // Nothing is on its way into the finer partition, and nothing can be.
        let _pushing = lock(&self.log.pushing);
        let is_current = read(&self.catalog.partitions)
            .get(&finer.start)
            .is_some_and(|current| Arc::ptr_eq(current, finer));
        let same = is_current && finer.is_flushed() && finer.flushed_records() == written.records;
        if !same || finer.damaged.load(Ordering::Acquire) {
            return Ok(false);
        }
        let path = written.level.path(&finer.path);
        if written.level == Level::ServiceHours {
            // All of it is in the file, and its ids mean nothing in the coarser one.
            finer.log.clear()?;
        }
        let opened = put_in_place(&path)
            .map_err(FileError::from)
            .and_then(|()| finer.downsampled(written.level));
        let downsampled = match opened {
            Ok(downsampled) => Arc::new(downsampled),
            Err(error) => {
                // The finer one goes on, so the next start must not find the other.
                remove(&path)?;
                return Err(error);
            }
        };
        write(&self.catalog.partitions).insert(finer.start, downsampled);
        finer.close_files();
        // One that stays is removed when the store is opened: the coarser one counts.
        let _ = remove(&finer.path);
        Ok(true)
    }
}

impl Maintenance {
    /// Partitions that stay as they are until they get older, or a window comes late: closed,
    /// complete in their file, and as coarse as their age wants them.
    pub fn sealed(&self, now_unix_ns: i64) -> Vec<Arc<Partition>> {
        let compactor = lock(&self.compactor);
        let mut all = self.catalog.all_partitions();
        all.retain(|partition| {
            let wanted = self.catalog.options.level_at(partition.end, now_unix_ns);
            // Nothing is coarser, so nobody looks at those.
            let is_coarsest = partition.level == Level::ServiceHours;
            has_closed(partition, now_unix_ns)
                && !partition.damaged.load(Ordering::Acquire)
                && partition.is_flushed()
                && (is_coarsest || compactor.is_up_to_date(partition, wanted, now_unix_ns))
        });
        all
    }
}

/// True when agents have long brought what they had of a partition's time.
pub fn has_closed(partition: &Partition, now_unix_ns: i64) -> bool {
    partition.end.saturating_add(CLOSED_NS) <= now_unix_ns
}

impl Compactor {
    fn is_up_to_date(&self, partition: &Partition, wanted: Level, now: i64) -> bool {
        self.up_to_date.get(&partition.start).is_some_and(|rest| {
            rest.level == partition.level
                && rest.level >= wanted
                && now < rest.until_unix_ns
                && rest.records == partition.flushed_records()
        })
    }
}
