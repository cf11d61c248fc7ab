//! Downsampling of a partition: when it is allowed, and what replaces it.

use super::{Partition, lock, read};
use crate::store::embedded::file::FileError;
use crate::store::embedded::level::Level;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Partition {
    /// True when everything is in the file.
    pub fn is_flushed(&self) -> bool {
        let mem = read(&self.mem);
        mem.frozen.is_none() && mem.active.is_empty()
    }

    /// Chunks with windows that are not in the file.
    pub fn chunks_in_memory(&self) -> BTreeSet<u16> {
        read(&self.mem).chunks().map(|(chunk, _)| chunk).collect()
    }

    /// The last record of the log that is in the file, by chunk: the same as long as nothing is
    /// flushed.
    pub fn flushed_records(&self) -> BTreeMap<u16, u64> {
        lock(&self.records).clone()
    }

    /// The partition that takes the place of this one, of a downsampled file that has its name
    /// already. Nothing may be on its way into this one.
    pub fn downsampled(&self, level: Level) -> Result<Partition, FileError> {
        let range = (self.start, self.end);
        let mut downsampled = Partition::open(level.path(&self.path), self.log.folder(), range)?;
        if downsampled.generation == self.generation {
            // The same ids, and perhaps entries that are not in the file yet.
            downsampled.log = Arc::clone(&self.log);
            *lock(&downsampled.flushed) = *lock(&self.flushed);
            *lock(&downsampled.dict) = lock(&self.dict).clone();
        }
        downsampled.close_files();
        let used = self.used.load(Ordering::Relaxed);
        downsampled.used.store(used, Ordering::Relaxed);
        Ok(downsampled)
    }
}
