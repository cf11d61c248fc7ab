//! Compacts closed chunks of a partition's file: parts written by several flushes become one, and
//! hours are summed by service.
//!
//! The unit of work is one range of bundles, read and encoded without blocking anything else and
//! written in a transaction of its own. A crash between two leaves some ranges in parts, which are
//! found again. An hour counts only with its mark, which is written last and says how much had been
//! flushed: data that is flushed later invalidates the mark until the hour is summed again.

use super::block::Block;
use super::chunk::{HOUR_CHUNKS, HOURS_FROM};
use super::codec::{SectionReader, SectionWriter};
use super::dict::Dict;
use super::dict_version::DictVersion;
use super::encode::again::{Gathered, Moment};
use super::encode::{EncodeError, HEADS_SHARED, SERVICE_STEP_NS, Tables};
use super::file::{FileError, PartitionFile, Replacement};
use super::level::Level;
use super::partition::Partition;
use super::summaries::ChunkWindows;
use super::table::Table;
use crate::sync::read;
use std::sync::{Arc, RwLock};

/// More parts than a chunk can have.
const ALL_PARTS: u64 = 1 << 16;

impl From<EncodeError> for FileError {
    fn from(error: EncodeError) -> FileError {
        match error {
            EncodeError::Corrupt(damage) => damage.into(),
            EncodeError::Zstd(error) => error.into(),
        }
    }
}

/// Reads blocks of ranges of bundles.
pub struct Unpacker {
    dict: Arc<RwLock<Dict>>,
    version: DictVersion,
    /// What blocks are decoded and encoded with.
    pub tables: Tables,
    opener: SectionReader,
    block: Block,
}

impl Unpacker {
    /// An unpacker of a partition's blocks.
    pub fn new(partition: &Partition) -> Result<Unpacker, FileError> {
        let dict = partition.dict(false)?;
        let (version, tables) = {
            let dict = read(&dict);
            (dict.version(), Tables::of(&dict))
        };
        Ok(Unpacker {
            dict,
            version,
            tables,
            opener: SectionReader::new()?,
            block: Block::default(),
        })
    }

    /// To be called after a state of the file was fixed: blocks in it may use what the dictionary
    /// got meanwhile. What the file has is in the dictionary, unless that was read again.
    fn follow(&mut self, partition: &Partition) -> Result<(), FileError> {
        let dict = partition.dict(false)?;
        let version = read(&dict).version();
        if version != self.version || !Arc::ptr_eq(&dict, &self.dict) {
            (self.tables, self.version) = (Tables::of(&read(&dict)), version);
            self.dict = dict;
        }
        Ok(())
    }

    /// Adds the rows of a range of bundles of one chunk, with the times that `time` makes of
    /// theirs.
    pub fn gather(
        &mut self,
        file: &PartitionFile,
        (table, chunk, range): (Table, u16, u32),
        time: impl Fn(u64) -> u64,
        into: &mut Gathered,
    ) -> Result<(), FileError> {
        let from = range.saturating_mul(HEADS_SHARED);
        let to = u64::from(from) + u64::from(HEADS_SHARED);
        let (tables, opener, block) = (&self.tables, &mut self.opener, &mut self.block);
        file.each_blob(
            table,
            chunk,
            (from, to),
            |_| true,
            |bundle, body| -> Result<(), FileError> {
                let period = tables.period(table, bundle);
                block.each_moment(opener, body, period, |start, entry| {
                    let start = time(start);
                    into.add(bundle, Moment { start, entry });
                })?;
                Ok(())
            },
        )?;
        Ok(())
    }
}

/// What times are rounded down to in a table of a partition of this level. Unit: nanoseconds.
pub fn step_of(table: Table, level: Level) -> u64 {
    match table {
        Table::Block | Table::Head => level.step_ns(),
        Table::ServiceBlock | Table::ServiceHead => level.step_ns().max(SERVICE_STEP_NS),
    }
}

/// A partition's file while it is put in order.
pub struct Compaction<'p> {
    partition: &'p Partition,
    file: PartitionFile,
    unpacker: Unpacker,
}

impl<'p> Compaction<'p> {
    /// Takes a file that was opened for it.
    pub fn new(partition: &'p Partition, file: PartitionFile) -> Result<Self, FileError> {
        Ok(Compaction {
            partition,
            file,
            unpacker: Unpacker::new(partition)?,
        })
    }

    fn reading<T>(
        &mut self,
        read: impl FnOnce(&PartitionFile, &mut Unpacker) -> Result<T, FileError>,
    ) -> Result<T, FileError> {
        self.file.begin()?;
        let done = self
            .unpacker
            .follow(self.partition)
            .and_then(|()| read(&self.file, &mut self.unpacker));
        self.file.end();
        done
    }

    /// Puts the parts of a chunk together; `go_on` is asked before each unit. Returns whether it is
    /// done.
    pub fn chunk(
        &mut self,
        chunk: u16,
        mut go_on: impl FnMut() -> bool,
    ) -> Result<bool, FileError> {
        for table in [Table::Block, Table::ServiceBlock] {
            for range in self.file.ranges_in_parts(table, chunk)? {
                if !go_on() {
                    return Ok(false);
                }
                self.range(table, chunk, range)?;
            }
        }
        if !go_on() {
            return Ok(false);
        }
        self.windows(chunk)?;
        self.file.checkpoint(false)?;
        Ok(true)
    }

    fn range(&mut self, table: Table, chunk: u16, range: u32) -> Result<(), FileError> {
        let step = step_of(table, self.partition.level);
        let (parts, gathered) = self.reading(|file, unpacker| {
            let parts = file.chunk_parts()?.get(&chunk).copied().unwrap_or(0);
            let mut gathered = Gathered::default();
            unpacker.gather(
                file,
                (table, chunk, range),
                |start| start - start % step,
                &mut gathered,
            )?;
            Ok((parts, gathered))
        })?;
        let again = gathered.encode(&self.unpacker.tables, table)?;
        self.file.replace(&Replacement {
            table,
            chunk,
            range,
            parts,
            blocks: again.blocks,
            heads: again.heads,
        })
    }

    fn windows(&mut self, chunk: u16) -> Result<(), FileError> {
        let (parts, mut windows) = self.reading(|file, unpacker| {
            let parts = file.chunk_parts()?.get(&chunk).copied().unwrap_or(0);
            Ok((parts, windows_of(file, &mut unpacker.opener, chunk)?))
        })?;
        windows.downsample(self.partition.level, self.partition.chunk_start(chunk));
        let mut body = Vec::new();
        windows.encode(&mut SectionWriter::new()?, &mut body)?;
        self.file.replace_windows(chunk, parts, &body)
    }

    /// Adds an hour up by service; as [`Compaction::chunk`].
    pub fn hour(&mut self, hour: u16, mut go_on: impl FnMut() -> bool) -> Result<bool, FileError> {
        let Some(parts) = self.file.hours()?.get(&hour).copied() else {
            return Ok(true);
        };
        self.file.forget_hour(hour)?;
        let mut range = 0;
        loop {
            if !go_on() {
                return Ok(false);
            }
            let table = Table::ServiceBlock;
            let (ranges, gathered) = self.reading(|file, unpacker| {
                let mut gathered = Gathered::default();
                for chunk in hour * HOUR_CHUNKS..(hour + 1) * HOUR_CHUNKS {
                    unpacker.gather(file, (table, chunk, range), |_| 0, &mut gathered)?;
                }
                Ok((unpacker.tables.ranges(table), gathered))
            })?;
            if range >= ranges {
                break;
            }
            let again = gathered.encode(&self.unpacker.tables, table)?;
            self.file.replace(&Replacement {
                table,
                chunk: HOURS_FROM + hour,
                range,
                parts: ALL_PARTS,
                blocks: again.blocks,
                heads: again.heads,
            })?;
            range += 1;
        }
        let done = self.file.hour_is_added_up(hour, parts)?;
        self.file.checkpoint(false)?;
        Ok(done)
    }
}

/// The metadata in a file about the windows of a chunk, all parts together.
pub fn windows_of(
    file: &PartitionFile,
    opener: &mut SectionReader,
    chunk: u16,
) -> Result<ChunkWindows, FileError> {
    let mut windows = ChunkWindows::default();
    file.each_windows(chunk, chunk, |_, body| -> Result<(), FileError> {
        Ok(windows.add(opener, body)?)
    })?;
    Ok(windows)
}
