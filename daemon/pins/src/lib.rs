//! Pins: minutes of the flight recorder that are kept beyond its retention, because a trigger
//! fired.
//!
//! A pin is a copy. When it is opened, the windows before are copied out of the recorder, and those
//! after as they close, each as a chunk of the pin's file. So the recorder's own windows age, are
//! downsampled and dropped as usual, and the pin survives restarts and reboots. Pins have a disk
//! budget of their own: above it, the trigger that uses most of it loses its oldest pin, so a
//! trigger that fires all the time does not displace the pins of others. If the disk rejects
//! writes, chunks and captures wait in memory, at most [`MEMORY_BYTES_MAX`], and are written when
//! it works again.
//!
//! Threads: only `fp-trigger` opens pins and adds to them ([`writer`]); any thread lists and reads
//! them. The list is locked only briefly, never while a file is read or written.
#![forbid(unsafe_code)]

mod answer;
mod disk;
#[cfg(test)]
mod tests;
pub mod uploader;
pub mod writer;

pub use answer::PinError;
pub use disk::Evidence;
pub use writer::{KeepError, PinRequest, PinWriter};

use disk::Disk;
use host::health::{Degradation, Severity};
use host::sync::lock;
use host::time::WallAnchor;
use profile::text::with_causes;
use proto::agent as wire;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use tokio::sync::Notify;

/// Most pins. More have no room in one answer that lists them, and nobody looks at so many.
pub const PINS_MAX: usize = 512;

/// Most bytes of chunks and captures that wait in memory for a disk that takes nothing. Unit:
/// bytes.
pub const MEMORY_BYTES_MAX: u64 = 8 << 20;

/// The windows of a pin may take this part of the budget; then it is cut. Its capture may take as
/// much again, or is not kept.
const PIN_SHARE: u64 = 4;

/// A chunk: one window, packed. Cheap to hold while it waits.
type Chunk = Arc<[u8]>;

/// Counters of pins since the start.
#[derive(Debug, Default)]
pub struct PinCounts {
    /// Opened.
    pub opened: AtomicU64,
    /// Removed because the budget was used up.
    pub dropped: AtomicU64,
    /// Cut because they were larger than their share, together with others that were open larger
    /// than the budget, or waited for a disk for too long.
    pub cut: AtomicU64,
    /// Files that could not be read at the start, or not to their end.
    pub damaged: AtomicU64,
    /// Writes that failed.
    pub failed_writes: AtomicU64,
    /// Uploaded to the collector.
    pub uploaded: AtomicU64,
    /// That the collector will never take, or that cannot be read.
    pub refused: AtomicU64,
    /// Tries to upload one that failed.
    pub upload_failures: AtomicU64,
}

/// Which collector has or rejected a pin, and whether including its capture.
#[derive(Clone, Debug, PartialEq)]
struct UploadRecord {
    to: String,
    with_capture: bool,
    refused: bool,
}

/// State of a pin.
#[derive(Clone, Debug, PartialEq, Default)]
struct Entry {
    /// Range and bytes as they are now.
    pin: wire::Pin,
    /// Bytes of complete chunks in its file.
    file_bytes: u64,
    /// Bytes of its capture's file.
    capture_bytes: u64,
    /// Chunks that are not on disk yet, behind those that are.
    waiting: Vec<Chunk>,
    /// The capture, if it is not on disk yet.
    waiting_capture: Option<Arc<Evidence>>,
    /// Windows are still added to it.
    open: bool,
    /// From the start of its first window to the end of its last, since it was opened. Unit:
    /// nanoseconds since the Unix epoch.
    covered: Option<(i64, i64)>,
    /// None: no collector has answered for it.
    uploaded: Option<UploadRecord>,
}

impl Entry {
    fn waiting_bytes(&self) -> u64 {
        let windows: u64 = self.waiting.iter().map(|chunk| chunk.len() as u64).sum();
        windows + self.waiting_capture_bytes()
    }

    fn waiting_capture_bytes(&self) -> u64 {
        let capture = self.waiting_capture.as_ref();
        capture.map_or(0, |capture| capture.bytes())
    }

    /// There are windows of it, and no more come.
    fn is_whole(&self) -> bool {
        !self.open && (self.file_bytes > 0 || !self.waiting.is_empty())
    }

    fn has_capture(&self) -> bool {
        self.capture_bytes > 0 || self.waiting_capture.is_some()
    }

    fn is_written(&self) -> bool {
        self.waiting.is_empty() && self.waiting_capture.is_none()
    }

    fn bytes(&self) -> u64 {
        self.file_bytes + self.capture_bytes + self.waiting_bytes()
    }

    fn seen(&self) -> wire::Pin {
        wire::Pin {
            bytes: self.bytes(),
            capture_bytes: self.capture_bytes + self.waiting_capture_bytes(),
            open: self.open,
            at_collector: self
                .uploaded
                .as_ref()
                .is_some_and(|uploaded| !uploaded.refused),
            ..self.pin.clone()
        }
    }
}

/// See the module.
pub struct Pins {
    path: PathBuf,
    disk: OnceLock<Disk>,
    /// Oldest first.
    list: Mutex<Vec<Entry>>,
    budget_bytes: AtomicU64,
    clock: Arc<WallAnchor>,
    /// Why the disk takes nothing now.
    error: Mutex<Option<String>>,
    /// Notified when a pin has closed, or has its capture.
    closed: Notify,
    /// One pin is unpacked at a time.
    unpacking: Mutex<()>,
    /// Counters.
    pub counts: PinCounts,
}

impl Pins {
    /// The pins of a directory; with none where there is no such directory yet.
    pub fn new(path: PathBuf, budget_bytes: u64, clock: Arc<WallAnchor>) -> Pins {
        let there = path.symlink_metadata().is_ok();
        let pins = Pins {
            path,
            disk: OnceLock::new(),
            list: Mutex::default(),
            budget_bytes: AtomicU64::new(budget_bytes),
            clock,
            error: Mutex::default(),
            closed: Notify::new(),
            unpacking: Mutex::default(),
            counts: PinCounts::default(),
        };
        if there {
            pins.open_disk();
            pins.keep_budget();
        }
        pins
    }

    /// Puts another budget in force.
    pub fn set_budget(&self, bytes: u64) {
        self.budget_bytes.store(bytes, Ordering::Relaxed);
        self.keep_budget();
    }

    /// Newest first.
    pub fn list(&self) -> Vec<wire::Pin> {
        lock(&self.list).iter().rev().map(Entry::seen).collect()
    }

    /// Bytes on disk and in memory, and the budget.
    pub fn bytes(&self) -> (u64, u64) {
        let used = lock(&self.list).iter().map(Entry::bytes).sum();
        (used, self.budget_bytes.load(Ordering::Relaxed))
    }

    /// Number of pins.
    pub fn len(&self) -> usize {
        lock(&self.list).len()
    }

    /// True without pins.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The degradation if pins cannot be stored.
    pub fn degradation(&self) -> Option<Degradation> {
        let error = lock(&self.error).clone()?;
        let waiting: u64 = lock(&self.list).iter().map(Entry::waiting_bytes).sum();
        Some(Degradation::new(
            "pins_disk",
            Severity::Warning,
            format!(
                "failed to write pins: {waiting} bytes wait in memory and are lost if the daemon \
                 stops: {error}"
            ),
            format!("df -h {}", self.path.display()),
        ))
    }

    /// The directory, created if missing; `None` if it cannot be used, which is reported.
    fn open_disk(&self) -> Option<&Disk> {
        if let Some(disk) = self.disk.get() {
            return Some(disk);
        }
        match Disk::open(&self.path) {
            Ok(disk) => {
                self.load(&disk);
                Some(self.disk.get_or_init(|| disk))
            }
            Err(error) => {
                self.failed(with_causes(&error));
                None
            }
        }
    }

    /// The number of a new pin. Numbers that files have are not known before the disk can be used,
    /// and are small: until then a pin takes the second it fired.
    fn next_id(&self, list: &[Entry], fired_unix_ns: i64) -> u64 {
        let next = list.last().map_or(0, |entry| entry.pin.id) + 1;
        match self.disk.get() {
            Some(_) => next,
            None => next.max(u64::try_from(fired_unix_ns / 1_000_000_000).unwrap_or(0)),
        }
    }

    fn load(&self, disk: &Disk) {
        let (found, damaged) = disk.scan(PINS_MAX);
        self.counts.damaged.fetch_add(damaged, Ordering::Relaxed);
        if damaged > 0 {
            tracing::warn!(damaged, "some pins cannot be read, or only in part");
        }
        let mut list = lock(&self.list);
        // Those that were made while the disk could not be used have numbers of their own
        // (`next_id`).
        let own: Vec<u64> = list.iter().map(|entry| entry.pin.id).collect();
        list.extend(
            found
                .into_iter()
                .filter(|entry| !own.contains(&entry.pin.id)),
        );
        list.sort_by_key(|entry| entry.pin.id);
    }

    /// Remembers that the disk took nothing; logged when the reason is another.
    fn failed(&self, error: String) {
        self.counts.failed_writes.fetch_add(1, Ordering::Relaxed);
        let mut known = lock(&self.error);
        if known.as_ref() != Some(&error) {
            tracing::warn!(reason = error, "failed to write pins; they wait in memory");
        }
        *known = Some(error);
    }

    fn wrote(&self) {
        if lock(&self.error).take().is_some() {
            tracing::info!("pins are written again");
        }
    }

    /// Removes pins until all keep to the budget and their number. Pins that are still added to are
    /// cut before they take more than that together.
    fn keep_budget(&self) {
        let budget = self.budget_bytes.load(Ordering::Relaxed);
        let mut removed = Vec::new();
        {
            let mut list = lock(&self.list);
            loop {
                let used: u64 = list.iter().map(Entry::bytes).sum();
                let weight: fn(&Entry) -> u64 = match (used <= budget, list.len() <= PINS_MAX) {
                    (true, true) => break,
                    (false, _) => Entry::bytes,
                    (true, false) => |_| 1,
                };
                let Some(at) = dispensable(&list, weight) else {
                    break;
                };
                removed.push(list.remove(at));
            }
        }
        for entry in removed {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
            let (pin, trigger) = (entry.pin.id, &entry.pin.trigger);
            tracing::info!(pin, trigger, "dropped a pin: the budget is used up");
            if let Some(disk) = self.disk.get() {
                disk.remove(entry.pin.id);
            }
        }
    }

    /// The pin that a collector should get next, and whether with its capture: of those that were
    /// tried least the newest.
    fn next_to_bring(&self, to: &str, tries: &HashMap<u64, u32>) -> Option<(wire::Pin, bool)> {
        let list = lock(&self.list);
        let waits = |entry: &&Entry| {
            let done = |uploaded: &UploadRecord| {
                uploaded.to == to && (uploaded.with_capture || !entry.has_capture())
            };
            entry.is_whole() && !entry.uploaded.as_ref().is_some_and(done)
        };
        let tried = |entry: &&Entry| tries.get(&entry.pin.id).copied().unwrap_or(0);
        let next = list.iter().rev().filter(waits).min_by_key(tried)?;
        Some((next.seen(), next.has_capture()))
    }

    /// The collector has a pin, or will never take it.
    fn note(&self, id: u64, to: &str, with_capture: bool, refused: bool) {
        let uploaded = UploadRecord {
            to: to.to_owned(),
            with_capture,
            refused,
        };
        self.change(id, |entry| entry.uploaded = Some(uploaded.clone()));
        if refused {
            // This holds for this run only: another version may take the pin, and a start asks
            // once.
            return;
        }
        let noted = self.disk.get().map(|disk| disk.note(id, &uploaded));
        if let Some(Err(error)) = noted {
            // It comes again after the next start, which the collector answers at once.
            tracing::debug!(pin = id, %error, "failed to store the state of a pin");
        }
        if let Some(disk) = self.disk.get() {
            self.remove_dropped(disk, id);
        }
    }

    /// Most bytes of what one capture found.
    pub fn evidence_max(&self) -> u64 {
        self.budget_bytes.load(Ordering::Relaxed) / PIN_SHARE
    }

    /// Firings of a trigger since a wall time, as far as pins show: the only knowledge of the time
    /// before a restart.
    pub fn fired_since(&self, trigger: &str, unix_ns: i64) -> u32 {
        let list = lock(&self.list);
        let same =
            |entry: &&Entry| entry.pin.trigger == trigger && entry.pin.fired_unix_ns >= unix_ns;
        u32::try_from(list.iter().filter(same).count()).unwrap_or(u32::MAX)
    }

    /// When a trigger last fired for a target, as far as pins show. Unit: nanoseconds since the
    /// Unix epoch.
    pub fn last_fired(&self, trigger: &str, cgroup: &str) -> Option<i64> {
        let list = lock(&self.list);
        let same = |entry: &&Entry| entry.pin.trigger == trigger && entry.pin.cgroup == cgroup;
        list.iter()
            .filter(same)
            .map(|entry| entry.pin.fired_unix_ns)
            .max()
    }
}

/// The pin to drop first: the oldest of the trigger that uses most, among triggers with more than
/// one pin. If each has one, the oldest. Never a pin that is still open.
fn dispensable(list: &[Entry], weight: fn(&Entry) -> u64) -> Option<usize> {
    let mut takes: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
    for entry in list {
        let (pins, sum) = takes.entry(&entry.pin.trigger).or_default();
        (*pins, *sum) = (*pins + 1, *sum + weight(entry));
    }
    let takes = |entry: &Entry| match takes.get(entry.pin.trigger.as_str()) {
        Some(&(pins, sum)) if pins > 1 => sum,
        _ => 0,
    };
    let closed = list.iter().enumerate().filter(|(_, entry)| !entry.open);
    closed
        .max_by_key(|&(at, entry)| (takes(entry), Reverse(at)))
        .map(|(at, _)| at)
}
