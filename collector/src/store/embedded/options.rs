//! Options of the operator, and reasons why the store could not be opened.

use super::archive::{ArchiveError, ArchiveOptions};
use super::chunk::CHUNK_NS;
use super::level::Level;
use std::path::PathBuf;

const SECOND_NS: u64 = 1_000_000_000;
const DAY_NS: u64 = 86_400 * SECOND_NS;

/// How an embedded store behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Length of a partition, rounded to complete chunks: from ten minutes to seven days. Unit:
    /// nanoseconds. Retention removes complete partitions; each has a dictionary of its own.
    pub partition_ns: u64,
    /// Partitions older than it are removed. Unit: nanoseconds.
    pub retention_ns: u64,
    /// Partitions older than it are kept in steps of a minute. Unit: nanoseconds.
    pub windows_ns: u64,
    /// Partitions older than it are kept in steps of ten minutes. Unit: nanoseconds.
    pub minutes_ns: u64,
    /// Partitions older than it are kept by service in steps of an hour; windows older than it are
    /// refused. Unit: nanoseconds.
    pub ten_minutes_ns: u64,
    /// Windows that start later than so long after now are refused: the agent's clock is wrong.
    /// Unit: nanoseconds.
    pub future_ns: u64,
    /// Most space on disk; beyond it the oldest partitions go. 0: no bound. Unit: bytes.
    pub disk_bytes: u64,
    /// Most memory for windows that are not in a file yet. Unit: bytes. Smaller makes smaller, less
    /// dense blocks.
    pub memtable_bytes: usize,
    /// Most memory for dictionaries of partitions. Unit: bytes. Those used least recently go first;
    /// the one that is written to stays.
    pub dictionary_bytes: usize,
    /// Most memory for the dictionary of one partition. Unit: bytes. Beyond it new stacks are put
    /// under `[other]` and new label sets under `overflow`.
    pub partition_dictionary_bytes: usize,
    /// Most label sets of one partition; rows beyond keep their host only.
    pub label_sets: usize,
    /// Labels that say which service a sample is of: the first that is there counts.
    pub service_labels: Vec<String>,
    /// Size of the write-ahead log at which everything is flushed. Unit: bytes.
    pub log_bytes: u64,
    /// Where sealed partitions are copied to, and kept longer.
    pub archive: Option<ArchiveOptions>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            partition_ns: 6 * 3600 * SECOND_NS,
            retention_ns: 365 * DAY_NS,
            windows_ns: 2 * DAY_NS,
            minutes_ns: 14 * DAY_NS,
            ten_minutes_ns: 90 * DAY_NS,
            future_ns: 600 * SECOND_NS,
            disk_bytes: 0,
            memtable_bytes: 192 << 20,
            dictionary_bytes: 512 << 20,
            partition_dictionary_bytes: 256 << 20,
            label_sets: 200_000,
            service_labels: ["service", "unit", "container", "comm"]
                .map(str::to_owned)
                .to_vec(),
            log_bytes: 1 << 30,
            archive: None,
        }
    }
}

impl Options {
    /// Length of a partition in complete chunks. Unit: nanoseconds.
    pub(super) fn partition_len(&self) -> i64 {
        let chunks = (self.partition_ns / CHUNK_NS).clamp(1, 7 * DAY_NS / CHUNK_NS);
        (chunks * CHUNK_NS) as i64
    }

    /// Age at which nothing of a host is kept any more. Unit: nanoseconds.
    pub(super) fn kept_ns(&self) -> u64 {
        let archive = self.archive.as_ref();
        archive.map_or(self.retention_ns, |of| {
            self.retention_ns.max(of.retention_ns)
        })
    }

    /// Age at which windows are refused. Unit: nanoseconds.
    pub(super) fn taken_ns(&self) -> u64 {
        self.ten_minutes_ns.min(self.retention_ns)
    }

    /// How coarse a partition that ends at `end` is to be.
    pub(super) fn level_at(&self, end: i64, now_unix_ns: i64) -> Level {
        let older = |age: u64| end <= now_unix_ns.saturating_sub_unsigned(age);
        if older(self.ten_minutes_ns) {
            Level::ServiceHours
        } else if older(self.minutes_ns) {
            Level::TenMinutes
        } else if older(self.windows_ns) {
            Level::Minutes
        } else {
            Level::Windows
        }
    }
}

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error(
        "failed to lock `{path}`: another process has this store open; stop that process, or set \
         another directory"
    )]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// The directory holds partitions of another length.
    #[error(
        "failed to open `{path}`: its partitions are {found} s long, but the option is {wanted} s; \
         keep the length, or start with a new directory"
    )]
    PartitionLength {
        /// The directory.
        path: PathBuf,
        /// Unit: seconds.
        found: i64,
        /// Unit: seconds.
        wanted: i64,
    },
    /// The directory has windows in a log of another version.
    #[error(
        "failed to open `{path}`: its write-ahead log has version {found}, and this collector \
         reads version {wanted}; start and stop the collector that wrote the log, which moves all \
         windows into partitions, then start this collector; or start with a new directory"
    )]
    LogVersion {
        /// The directory.
        path: PathBuf,
        /// The version that the directory has.
        found: u64,
        /// The version that this program reads.
        wanted: u64,
    },
    /// A file or directory could not be used.
    #[error("failed to {operation} `{path}`: {error}")]
    Io {
        /// The operation that failed.
        operation: &'static str,
        /// With what.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// The archive cannot be used.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The write-ahead log could not be read.
    #[error(transparent)]
    Log(#[from] super::wal::WalError),
    /// The log could not be replayed.
    #[error("failed to replay the write-ahead log: {0}")]
    Replay(String),
}
