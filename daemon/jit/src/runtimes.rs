//! The table of processes with generated code: which runtime each uses, how much of its code has
//! names and complete stacks, and the result of asking it.
//!
//! The symbolizer counts while naming (`aggregate/src/runtimes.rs`), `fp-jit` reports the results
//! of asking, and the status shows the table ([`Runtimes::list`]). It is locked only for as long as
//! updating a few counters takes. Counts cover the last one to two minutes, so that a fix shows
//! soon.

use super::runtime::Facts;
use hashbrown::HashMap;
use host::ids::{Comm, Pid, ProcessId};
use host::sync::lock;
use host::time::MonotonicTime;
use profile::UnnamedReason;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// Most processes in the table. Those with the fewest samples go first.
pub const PROCESSES_MAX: usize = 256;

/// Counts older than this start to be forgotten.
const GENERATION: Duration = Duration::from_secs(60);

/// Samples of a process with frames in generated code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackCounts {
    /// Samples.
    pub samples: u64,
    /// Samples with a complete stack.
    pub complete: u64,
    /// Samples with an incomplete stack that ends at a frame in generated code.
    pub cut: u64,
    /// Frames in generated code, by samples.
    pub frames: u64,
    /// Frames with a name.
    pub named: u64,
    /// The reason of most others.
    pub reason: UnnamedReason,
    /// Frames without a name for that reason.
    pub reason_frames: u64,
}

impl StackCounts {
    /// Adds those of another time.
    pub fn add(&mut self, more: &StackCounts) {
        self.samples = self.samples.saturating_add(more.samples);
        self.complete = self.complete.saturating_add(more.complete);
        self.cut = self.cut.saturating_add(more.cut);
        self.frames = self.frames.saturating_add(more.frames);
        self.named = self.named.saturating_add(more.named);
        self.reason(more.reason, more.reason_frames);
    }

    /// Keeps the reason that outweighs the others, exactly where there are two.
    pub fn reason(&mut self, reason: UnnamedReason, frames: u64) {
        if reason == self.reason {
            self.reason_frames = self.reason_frames.saturating_add(frames);
        } else if frames > self.reason_frames {
            (self.reason, self.reason_frames) = (reason, frames - self.reason_frames);
        } else {
            self.reason_frames -= frames;
        }
    }
}

/// Result of asking a process for its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskReport {
    /// Why there is no map; nothing when there is one.
    pub failure: Option<String>,
}

impl AskReport {
    /// It has written its map.
    pub fn written() -> AskReport {
        AskReport { failure: None }
    }

    /// It has not.
    pub fn failed(reason: String) -> AskReport {
        AskReport {
            failure: Some(reason),
        }
    }
}

/// A process with generated code.
#[derive(Clone, Debug)]
pub struct RuntimeEntry {
    /// Its pid.
    pub pid: Pid,
    /// Name of its main thread.
    pub comm: Comm,
    /// Facts about it; `None` before it was examined, or if it ended before that.
    pub facts: Option<Facts>,
    /// Counts of the last one to two minutes.
    pub counts: StackCounts,
    /// Result of asking it, if it was asked.
    pub asked: Option<AskReport>,
    before: StackCounts,
    /// When it was last looked at.
    pub looked: Option<MonotonicTime>,
}

/// The table. See the head of this file.
#[derive(Debug, Default)]
pub struct Runtimes {
    table: Mutex<Table>,
}

/// The processes of the table.
#[derive(Debug, Default)]
pub struct Table {
    /// By process.
    pub entries: HashMap<ProcessId, RuntimeEntry>,
    /// Results of asking processes that have no counted samples yet, because a process is asked at
    /// its first sample. Oldest first.
    pub asked: VecDeque<(ProcessId, AskReport)>,
    generation: MonotonicTime,
}

impl RuntimeEntry {
    /// A process with these counts.
    pub fn new(pid: Pid, comm: Comm, facts: Option<Facts>, counts: StackCounts) -> RuntimeEntry {
        RuntimeEntry {
            pid,
            comm,
            facts,
            counts,
            asked: None,
            before: StackCounts::default(),
            looked: None,
        }
    }
}

impl Runtimes {
    /// The processes, for as long as the guard lives.
    pub fn lock(&self) -> MutexGuard<'_, Table> {
        // Plain data, sound whenever a holder panics.
        lock(&self.table)
    }

    /// Stores the result of asking a process.
    pub fn note_asked(&self, process: ProcessId, report: AskReport) {
        let mut table = self.lock();
        match table.entries.get_mut(&process) {
            Some(entry) => entry.asked = Some(report),
            None => {
                if table.asked.len() >= PROCESSES_MAX {
                    table.asked.pop_front();
                }
                table.asked.push_back((process, report));
            }
        }
    }

    /// Every process with samples in generated code in the last one to two minutes, most first. One
    /// that was taken for another after a while, as its records came, is one.
    pub fn list(&self) -> Vec<RuntimeEntry> {
        let table = self.lock();
        let mut all: Vec<(ProcessId, &RuntimeEntry)> = table
            .entries
            .iter()
            .map(|(&id, entry)| (id, entry))
            .collect();
        all.sort_unstable_by_key(|(id, entry)| (entry.pid, *id));
        let mut list: Vec<RuntimeEntry> = Vec::new();
        for (_, entry) in all {
            let mut entry = entry.clone();
            entry.counts.add(&entry.before);
            match list.last_mut() {
                Some(last) if (last.pid, last.comm) == (entry.pid, entry.comm) => {
                    last.counts.add(&entry.counts);
                    last.facts = entry.facts.or(last.facts);
                    last.asked = entry.asked.or(last.asked.take());
                }
                _ => list.push(entry),
            }
        }
        list.retain(|entry| entry.counts.samples > 0);
        list.sort_by_key(|entry| (std::cmp::Reverse(entry.counts.samples), entry.pid));
        list
    }
}

impl Table {
    /// Starts a new generation when it is time.
    pub fn age(&mut self, now: MonotonicTime) {
        if now.since(self.generation) < GENERATION {
            return;
        }
        self.generation = now;
        for entry in self.entries.values_mut() {
            entry.before = std::mem::take(&mut entry.counts);
        }
        self.entries.retain(|_, entry| entry.before.samples > 0);
    }

    /// Adds what was counted of a process.
    pub fn add(&mut self, process: ProcessId, (pid, comm): (Pid, Comm), counts: &StackCounts) {
        let asked = &mut self.asked;
        let new = || {
            let mut entry = RuntimeEntry::new(pid, comm, None, StackCounts::default());
            while let Some(at) = asked.iter().position(|(id, _)| *id == process) {
                entry.asked = asked.remove(at).map(|(_, report)| report);
            }
            entry
        };
        let entry = self.entries.entry(process).or_insert_with(new);
        entry.comm = comm;
        entry.counts.add(counts);
        if self.entries.len() > PROCESSES_MAX {
            let weight = |entry: &RuntimeEntry| entry.counts.samples + entry.before.samples;
            let least = self.entries.iter().min_by_key(|(_, entry)| weight(entry));
            if let Some(id) = least.map(|(&id, _)| id) {
                self.entries.remove(&id);
            }
        }
    }
}
