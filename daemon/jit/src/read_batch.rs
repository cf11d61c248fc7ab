//! A batch of work for `fp-jit`'s helpers: one process after the other, each taken by a free
//! helper.

use super::reader::{CodeLock, ReadOutcome, ReadRequest, Reader};
use host::ids::ProcessId;
use host::sync::lock;
use host::time::MonotonicTime;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use symbolize::counters::SymbolCounters;

/// Work on one process, on its way to a helper and back.
pub(super) struct Work {
    pub id: ProcessId,
    pub reader: Reader,
    pub request: ReadRequest,
    pub known: Arc<CodeLock>,
    pub outcome: ReadOutcome,
    pub started: MonotonicTime,
    pub took: Duration,
}

/// Work that helpers take one after the other.
#[derive(Default)]
pub(super) struct ReadBatch {
    pub todo: Mutex<VecDeque<Work>>,
    /// Work in progress by helpers, and since when.
    pub in_hand: Mutex<Vec<(ProcessId, MonotonicTime)>>,
}

impl ReadBatch {
    /// The body of a helper: all there is to do. What is late comes back through `done` all the
    /// same.
    pub fn work(&self, done: &Mutex<Vec<Work>>, counters: &SymbolCounters) {
        while let Some(mut work) = self.take() {
            let started = MonotonicTime::now();
            lock(&self.in_hand).push((work.id, started));
            work.outcome = work.reader.refresh(&work.request, &work.known, counters);
            work.took = MonotonicTime::now().since(started);
            lock(&self.in_hand).retain(|(id, _)| *id != work.id);
            lock(done).push(work);
        }
    }

    pub fn take(&self) -> Option<Work> {
        lock(&self.todo).pop_front()
    }

    /// True when what was taken last has been in hand for `time`.
    pub fn is_stuck(&self, time: Duration) -> bool {
        let newest = lock(&self.in_hand).iter().map(|&(_, since)| since).max();
        newest.is_some_and(|since| MonotonicTime::now().since(since) >= time)
    }
}
