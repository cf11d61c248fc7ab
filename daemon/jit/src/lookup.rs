//! The symbolizer's interface to `fp-jit`: fetches what is known of processes' code, and names
//! frames with it.

use super::code::CodeLookup;
use super::names::{self, MODULE};
use super::notice::{Notice, SharedCodeMap, SymbolRequest};
use super::reader::GeneratedCode;
use hashbrown::HashMap;
use host::ids::ProcessId;
use host::time::MonotonicTime;
use profile::{Dictionary, FrameId, FrameKind, UnnamedReason};
use std::cell::Cell;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

/// Longest wait for an answer: `fp-jit` waits for helpers for two seconds, and may have started to
/// do so for others just before.
const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// Longest wait for the lock of one process's code, which is held for as long as it takes to read a
/// piece of a file in, some milliseconds.
const LOCK_WAIT: Duration = Duration::from_millis(500);

/// Longest time for naming the addresses of one process, once for all that did not change and once
/// for the others. An address takes one or two microseconds, so this is for half a million of them;
/// a thousand times as long where a process made its code to that end.
const LOOK_UP_MAX: Duration = Duration::from_secs(1);

/// The same for all processes of a batch.
const LOOK_UPS_MAX: Duration = Duration::from_secs(3);

/// Asks `fp-jit`.
#[derive(Debug)]
pub struct JitSymbolLookup {
    notices: SyncSender<Notice>,
    /// Batches without generated code that `fp-jit` still has to be informed of, so that it forgets
    /// processes with their last samples in earlier ones.
    owed: u8,
}

/// Names for the processes of one batch.
#[derive(Debug, Default)]
pub struct CodeMaps {
    by_process: HashMap<ProcessId, SharedCodeMap>,
    /// Nobody answered.
    unanswered: bool,
    /// Time taken by look-ups so far.
    spent: Cell<Duration>,
}

/// Names for one process, locked.
pub struct CodeMapGuard<'a> {
    known: parking_lot::MutexGuard<'a, GeneratedCode>,
    late: bool,
    started: MonotonicTime,
    over: Cell<bool>,
    spent: &'a Cell<Duration>,
}

impl JitSymbolLookup {
    /// Asks over this queue.
    pub fn new(notices: SyncSender<Notice>) -> JitSymbolLookup {
        JitSymbolLookup { notices, owed: 0 }
    }

    /// Creates it without `fp-jit`: generated code has no names.
    pub fn closed() -> JitSymbolLookup {
        JitSymbolLookup::new(sync_channel(1).0)
    }

    /// Names for these processes, brought up to date first.
    pub fn open(&mut self, wanted: Vec<SymbolRequest>, named_until: MonotonicTime) -> CodeMaps {
        if wanted.is_empty() {
            if self.owed > 0 && self.notices.try_send(Notice::Named(named_until)).is_ok() {
                self.owed -= 1;
            }
            return CodeMaps::default();
        }
        self.owed = 2;
        let (reply, answer) = sync_channel(1);
        let notice = Notice::Refresh {
            wanted,
            named_until,
            reply,
        };
        // Waits where the queue is full: `fp-jit` never waits for long.
        let asked = self.notices.send(notice).is_ok();
        match answer.recv_timeout(ANSWER_WAIT) {
            Ok(shared) if asked => CodeMaps::new(shared),
            _ => CodeMaps {
                unanswered: true,
                ..CodeMaps::default()
            },
        }
    }
}

impl CodeMaps {
    /// Creates the maps from what `fp-jit` shares.
    pub fn new(shared: Vec<SharedCodeMap>) -> CodeMaps {
        CodeMaps {
            by_process: shared.into_iter().map(|one| (one.id, one)).collect(),
            ..CodeMaps::default()
        }
    }

    /// State of one process.
    ///
    /// # Errors
    /// The reason for its frames to have no names.
    pub fn of(&self, process: ProcessId) -> Result<CodeMapGuard<'_>, UnnamedReason> {
        let Some(shared) = self.by_process.get(&process) else {
            return Err(match self.unanswered {
                true => UnnamedReason::JitMapLate,
                false => UnnamedReason::Limit,
            });
        };
        if self.is_spent() {
            return Err(UnnamedReason::Limit);
        }
        let map = |known| CodeMapGuard {
            known,
            late: shared.late,
            started: MonotonicTime::now(),
            over: Cell::new(false),
            spent: &self.spent,
        };
        let known = shared.known.try_lock_for(LOCK_WAIT);
        known.map(map).ok_or(UnnamedReason::JitMapLate)
    }

    /// True when looking up has taken as long as it may: by this map, or by all of them.
    pub fn is_over(&self, map: &Result<CodeMapGuard<'_>, UnnamedReason>) -> bool {
        match map {
            Ok(map) => map.over.get(),
            Err(_) => self.is_spent(),
        }
    }

    fn is_spent(&self) -> bool {
        self.spent.get() >= LOOK_UPS_MAX
    }
}

impl CodeMapGuard<'_> {
    /// The frame of an address at a time.
    pub fn frame_at(&self, dict: &mut Dictionary, address: u64, at: MonotonicTime) -> FrameId {
        if self.is_over() {
            return unnamed(dict, UnnamedReason::Limit);
        }
        self.frame(dict, &self.known.find(address, at))
    }

    /// The frame of an address during all of `from..=until`; `None` when it is not the same all the
    /// time.
    pub fn steady_frame(
        &self,
        dict: &mut Dictionary,
        address: u64,
        from: MonotonicTime,
        until: MonotonicTime,
    ) -> Option<FrameId> {
        if self.is_over() {
            return Some(unnamed(dict, UnnamedReason::Limit));
        }
        let found = self.known.steady(address, from, until)?;
        Some(self.frame(dict, &found))
    }

    /// True when looking up has taken as long as it may: what is left has no names in this batch.
    fn is_over(&self) -> bool {
        if !self.over.get() {
            self.over
                .set(MonotonicTime::now().since(self.started) >= LOOK_UP_MAX);
        }
        self.over.get()
    }

    fn frame(&self, dict: &mut Dictionary, found: &CodeLookup<'_>) -> FrameId {
        match found {
            CodeLookup::Code(code, offset) => names::intern(dict, &code.name, code.place(*offset)),
            CodeLookup::Unsure => unnamed(dict, UnnamedReason::JitReused),
            CodeLookup::Nothing if self.late => unnamed(dict, UnnamedReason::JitMapLate),
            CodeLookup::Nothing => unnamed(dict, self.known.reason),
        }
    }
}

impl Drop for CodeMapGuard<'_> {
    fn drop(&mut self) {
        let took = MonotonicTime::now().since(self.started);
        self.spent.set(self.spent.get().saturating_add(took));
    }
}

/// The frame of generated code without a name.
pub fn unnamed(dict: &mut Dictionary, reason: UnnamedReason) -> FrameId {
    symbolize::unnamed(dict, FrameKind::Jit, MODULE, reason)
}
