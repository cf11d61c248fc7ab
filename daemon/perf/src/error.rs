//! Reasons why rings could not be opened.

use crate::event::OpenError;
use std::io;
use thiserror::Error;

/// Why the rings could not be opened.
#[derive(Debug, Error)]
pub enum RingsError {
    /// The event.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The buffer.
    #[error(
        "failed to map a ring buffer of {bytes} bytes for CPU `{cpu}`\n  locked memory is limited: \
         grant CAP_IPC_LOCK, raise `ulimit -l` or kernel.perf_event_mlock_kb, or lower \
         sampling.ring_kib"
    )]
    Map {
        /// The CPU.
        cpu: u32,
        /// Bytes asked for.
        bytes: usize,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// Starting it.
    #[error("failed to enable the perf event on CPU `{cpu}`")]
    Enable {
        /// The CPU.
        cpu: u32,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// Memory other than the rings.
    #[error("failed to map memory for records")]
    Memory(#[source] io::Error),
    /// A kernel that takes less for one CPU than for the others.
    #[error(
        "failed to sample CPU `{cpu}` like the others: the kernel supports fewer features \
        there"
    )]
    Features {
        /// The CPU.
        cpu: u32,
    },
    /// No CPU at all.
    #[error("failed to sample: no CPU is online")]
    NoCpus,
}
