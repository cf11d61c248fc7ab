//! What a fake collector remembers of what it was told.

use crate::wire::has_bytes;
use prost::Message;
use proto::agent::CaptureRequest;
use proto::collector as wire;
use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A window as it was stored.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stored {
    /// Samples in rows that were taken.
    pub taken: u64,
    /// Samples in rows that were lost.
    pub lost: u64,
    /// What the window's quality says was taken.
    pub quality_taken: u64,
    /// Start.
    pub start_unix_ns: i64,
    /// Length.
    pub duration_ns: u64,
    /// Names of all labels of samples.
    pub label_names: Vec<String>,
    /// Values of the label `comm`.
    pub comms: Vec<String>,
    /// CPU time the kernel accounted, over all rows.
    pub account_rows: usize,
    /// The gap that came with it.
    pub gap: Option<wire::Gap>,
    /// Parts it came in.
    pub parts: usize,
}

/// Host, boot and sequence.
pub type Key = (String, Vec<u8>, u64);

/// What a collector remembers; outlives it.
#[derive(Default)]
pub struct Memory {
    /// Windows that were stored.
    pub windows: BTreeMap<Key, Stored>,
    /// Windows that came again.
    pub repeats: u64,
    /// Windows that were refused.
    pub refused: u64,
    /// Hellos, in order.
    pub hellos: Vec<wire::Hello>,
    /// Facts told after a Hello.
    pub facts: Vec<wire::HostFacts>,
    /// Stacks whose frames are known.
    pub(super) stacks: HashSet<[u8; 16]>,
    /// Questions asked.
    pub needs: u64,
    /// Those of them that wanted all callers.
    pub needs_all: u64,
    /// Stacks that definitions named by their content.
    pub known: u64,
    /// What was said, to one that hears.
    pub heard: Heard,
    /// How the agent broke the protocol.
    pub violations: Vec<String>,
}

impl Memory {
    /// Samples taken in all stored windows.
    pub fn taken(&self) -> u64 {
        self.windows.values().map(|window| window.taken).sum()
    }
}

/// Everything that was said to it over all services.
#[derive(Default)]
pub struct Heard {
    /// Every message as it was encoded.
    pub bytes: Vec<u8>,
    /// Captures to be ordered.
    pub(super) orders: Vec<CaptureRequest>,
    /// Captures that are over: the samples of each, or why it was refused.
    pub captures: Vec<Result<profile::Profile, String>>,
    /// Pins that were brought, by the names of their triggers.
    pub pins: Vec<String>,
}

impl Heard {
    /// True when these bytes came in any message.
    pub fn has(&self, text: &str) -> bool {
        has_bytes(&self.bytes, text)
    }

    pub(super) fn hear(&mut self, message: &impl Message) {
        // Lengths need no room of their own.
        let _ = message.encode(&mut self.bytes);
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
