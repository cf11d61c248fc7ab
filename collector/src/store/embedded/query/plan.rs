//! Chooses which data of a partition answers a query: the coarsest that is exact.
//!
//! If services are enough, hour sums stand for their chunks, complete chunks and minutes are read
//! from the rollup by minutes, and the rest from the series' own blocks. In coarser partitions,
//! ranges are widened to the resolution there.

use super::super::chunk::{CHUNK_NS, HOUR_CHUNKS, HOUR_NS, HOURS_FROM};
use super::super::chunk_slice::ChunkSlice;
use super::super::encode::SERVICE_STEP_NS;
use super::super::file::FileError;
use super::super::level::Level;
use super::super::partition::Partition;
use super::super::read_file::ReadFile;
use super::super::reader::StoreReader;
use super::activity::WINDOW_STEP_NS;
use super::partitions;
use crate::store::{Resolution, TimeRange};

/// Which data was read.
#[derive(Clone, Copy, Default)]
pub struct Read {
    /// Samples of windows, or their totals over complete chunks, by series.
    pub windows: bool,
    /// The rollup by service in minutes.
    pub services: bool,
    /// The rollup by service in hours.
    pub hours: bool,
    /// The coarsest level of the partitions in the range.
    pub level: Level,
}

impl Read {
    /// The resolution stated in answers: the finest that was read, unless a partition has no finer.
    pub fn resolution(self) -> Resolution {
        let by_service = (self.services || self.hours) && !self.windows;
        let finest = match (self.windows, self.services, self.hours) {
            (false, true, _) => SERVICE_STEP_NS,
            (false, false, true) => HOUR_NS,
            _ => WINDOW_STEP_NS,
        };
        Resolution {
            step_ns: finest.max(self.level.step_ns()),
            by_service: by_service || self.level == Level::ServiceHours,
        }
    }

    /// Notes a slice of the rollup by service that was read.
    pub fn note_service(&mut self, slice: ChunkSlice) {
        if slice.chunk >= HOURS_FROM {
            self.hours = true;
        } else {
            self.services = true;
        }
    }
}

impl std::ops::BitOrAssign for Read {
    fn bitor_assign(&mut self, other: Read) {
        self.windows |= other.windows;
        self.services |= other.services;
        self.hours |= other.hours;
        self.level = self.level.max(other.level);
    }
}

/// The coarsest level of a range.
pub fn level_of(reader: &StoreReader, range: TimeRange) -> Level {
    let partitions = partitions(reader, range);
    let levels = partitions.iter().map(|partition| partition.level);
    levels.max().unwrap_or_default()
}

/// A range widened to the resolution of the partitions at its ends.
pub fn covered(reader: &StoreReader, range: TimeRange) -> TimeRange {
    if range.start_unix_ns >= range.end_unix_ns {
        return range;
    }
    let mut covered = range;
    // Two of one time, of which one is archived, may have two levels: the coarser one counts.
    for partition in partitions(reader, range) {
        let own = widened(&partition, range);
        if (partition.start..partition.end).contains(&range.start_unix_ns) {
            covered.start_unix_ns = covered.start_unix_ns.min(own.start_unix_ns);
        }
        if (partition.start..partition.end).contains(&(range.end_unix_ns - 1)) {
            covered.end_unix_ns = covered.end_unix_ns.max(own.end_unix_ns);
        }
    }
    covered
}

/// The part of a range in a partition, in complete steps of the partition's level.
pub fn widened(partition: &Partition, range: TimeRange) -> TimeRange {
    let from = range.start_unix_ns.max(partition.start);
    let to = range.end_unix_ns.min(partition.end);
    let step = partition.level.step_ns() as i64;
    if step == 1 || from >= to {
        return TimeRange {
            start_unix_ns: from,
            end_unix_ns: to,
        };
    }
    let into = |at: i64| at - partition.start;
    let up = (into(to) + step - 1) / step * step;
    TimeRange {
        start_unix_ns: partition.start + into(from) / step * step,
        end_unix_ns: partition.start.saturating_add(up).min(partition.end),
    }
}

/// What to read from a partition's file.
pub struct Plan {
    /// From the rollups by service.
    pub services: Vec<ChunkSlice>,
    /// From the series' own blocks.
    pub own: Vec<ChunkSlice>,
}

/// Divides slices between the rollups and the series. `by_service` gets those that the rollup by
/// minutes may answer; `hours`: complete hours are wanted as one.
pub fn plan(
    partition: &Partition,
    file: &ReadFile,
    slices: &[ChunkSlice],
    by_service: impl Fn(&ChunkSlice) -> bool,
    hours: bool,
) -> Result<Plan, FileError> {
    let (mut services, own): (Vec<ChunkSlice>, Vec<ChunkSlice>) =
        slices.iter().copied().partition(|slice| by_service(slice));
    let valid = match services.is_empty() || !hours {
        true => Vec::new(),
        false => file.hours_valid()?,
    };
    let chunks = ((partition.end - partition.start) as u64 / CHUNK_NS) as u16;
    for hour in valid {
        let first = hour * HOUR_CHUNKS;
        let of_hour = first..chunks.min(first + HOUR_CHUNKS);
        let is_of = |slice: &&ChunkSlice| slice.part.is_none() && of_hour.contains(&slice.chunk);
        if services.iter().filter(is_of).count() == of_hour.len() {
            services.retain(|slice| !of_hour.contains(&slice.chunk));
            services.push(ChunkSlice {
                chunk: HOURS_FROM + hour,
                part: None,
            });
        }
    }
    Ok(Plan { services, own })
}
