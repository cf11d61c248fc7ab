//! What the manifest has of one partition.

use super::file::names;
use super::level::Level;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Shows whether a file has changed. Times are those of the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its number in the file system.
    pub inode: u64,
    /// Its length. Unit: bytes.
    pub len: u64,
    /// When it was changed last.
    pub modified_ns: i128,
}

impl Identity {
    /// The identity of a partition's file; `None` while SQLite's log next to it is not empty.
    pub fn of(path: &Path) -> Option<Identity> {
        let [file, log, _] = names(path);
        let with_log = std::fs::metadata(log).is_ok_and(|log| log.len() > 0);
        let found = std::fs::metadata(file).ok().filter(|_| !with_log)?;
        Some(Identity {
            inode: found.ino(),
            len: found.len(),
            modified_ns: i128::from(found.mtime()) * 1_000_000_000 + i128::from(found.mtime_nsec()),
        })
    }
}

/// What is read of one partition when it is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// `None` when the partition is to be read whatever its file looks like.
    pub identity: Option<Identity>,
    /// How fine its data is.
    pub level: Level,
    /// End of its time, since the Unix epoch. Unit: nanoseconds.
    pub end: i64,
    /// Which set of ids it has.
    pub generation: u64,
    /// Which data it has.
    pub lineage: u64,
    /// How many flushes are in it.
    pub flushes: u64,
    /// What its services are told by.
    pub service_labels: Vec<String>,
    /// Last record of the log by chunk.
    pub records: BTreeMap<u16, u64>,
}

impl Entry {
    /// True when a file is what the entry is about.
    pub fn is_of(&self, path: &Path) -> bool {
        let as_it_was = self.identity.is_some() && self.identity == Identity::of(path);
        as_it_was && self.level == Level::of(path)
    }
}
