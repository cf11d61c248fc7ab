//! Captures of event `off-cpu`: how long threads waited, where, and who ended it.
//!
//! The scheduler tells of each switch and of each wake-up (`format.rs` reads what it tells). The machine
//! (`machine.rs`) puts them together to waits: from the switch away from a thread that cannot go on to the
//! switch back to it, with the last wake-up in between. `shape.rs` makes one stack of a wait. Nothing is
//! guessed: a wait of which a record may be missing is counted as unknown, and so is one that had begun before
//! the capture.
//!
//! A wait ends when the thread runs again, not when it was woken: what it spent in the queue for a CPU in
//! between is part of the time it was kept from running, and is added up beside ([`WaitCounts::delay_ns`]).

pub mod format;
pub mod machine;
pub mod setup;
pub mod shape;
mod stacks;

#[cfg(test)]
mod tests;

use crate::ids::{CgroupId, Comm, Pid, ProcessId};
use crate::time::Mono;
use format::{Leaving, Within};
use profile::StackEnd;

/// Threads followed in one capture, 8 MiB with their waits. More are left out and counted
/// ([`WaitCounts::threads_refused`]): a thread of which nothing is known has no wait. Hosts that run more at
/// once exist (`kernel.threads-max` allows 125,000 on 16 GiB), mostly with threads that never run.
pub const THREADS_MAX: usize = 1 << 16;

/// Frames of the stacks of threads that wait and of their wakers, equal stacks once: 16 MiB. What finds no
/// room has no stack and is counted ([`WaitCounts::stacks_refused`]).
pub const FRAMES_MAX: usize = 1 << 20;

/// Frames kept of a waker, from its leaf: it is there to say who and where, and what matters is near the
/// leaf. What lies behind is cut and marked. Without a bound a wait's stack has twice the depth of any other.
pub const WAKER_FRAMES_MAX: usize = 64;

/// The thread that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who {
    /// Its process.
    pub pid: Pid,
    /// Of which lifetime; `None` when the process is not known.
    pub process: Option<ProcessId>,
    /// Its name.
    pub thread: Comm,
    /// Its cgroup.
    pub cgroup: CgroupId,
}

/// Who or what ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waker<'a> {
    /// Name of the thread that did, or was interrupted.
    pub thread: Comm,
    /// Whether an interrupt on top of that thread did.
    pub within: Within,
    /// Its frames, leaf first, [`WAKER_FRAMES_MAX`] at most.
    pub frames: &'a [crate::aggregate::batch::RawFrame],
    /// There are more, or may be.
    pub cut: bool,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending<'a> {
    /// A thread or an interrupt woke it.
    Woken(Waker<'a>),
    /// It ran again, and no wake-up was seen.
    Unseen,
    /// It had not when the capture ended: the length is up to then.
    Ongoing,
}

/// A wait that is over, or that goes on at the end of the capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait<'a> {
    /// Who waited.
    pub who: Who,
    /// What for: any but [`Leaving::Preempted`] and [`Leaving::Dead`].
    pub leaving: Leaving,
    /// Where, leaf first.
    pub frames: &'a [crate::aggregate::batch::RawFrame],
    /// How that stack ended.
    pub end: StackEnd,
    /// When it began.
    pub start: Mono,
    /// How long. Unit: nanoseconds.
    pub length_ns: u64,
    /// How it ended.
    pub ending: Ending<'a>,
}

/// What was seen in a capture, and what could not be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitCounts {
    /// Waits given out, those that go on at the end included.
    pub waits: u64,
    /// Their length. Unit: nanoseconds, as of all that end in `_ns`.
    pub waits_ns: u64,
    /// Of those, the time from the wake-up until the thread ran.
    pub delay_ns: u64,
    /// Of those, waits that go on at the end.
    pub ongoing: u64,
    /// Of those, waits that ended and whose wake-up was not seen.
    pub wakers_unseen: u64,
    /// Waits shorter than was asked for: left out.
    pub short: u64,
    /// Their length.
    pub short_ns: u64,
    /// Times a thread that could go on had to leave its CPU: no waits.
    pub preempted: u64,
    /// How long until it ran again.
    pub preempted_ns: u64,
    /// Threads that ran before they were seen to leave: if they had been waiting when the capture began, that
    /// wait is not known.
    pub begun_before: u64,
    /// Waits of which a record was lost, or may have been: left out, for they may have been several. A few are
    /// there without any loss on hosts with threads whose switches the kernel does not tell: whoever runs after
    /// such a thread came unseen.
    pub unknown: u64,
    /// The most that they can have lasted, as far as a begin is known.
    pub unknown_ns: u64,
    /// Times a thread was not followed because [`THREADS_MAX`] are.
    pub threads_refused: u64,
    /// Stacks that found no room in [`FRAMES_MAX`].
    pub stacks_refused: u64,
    /// Records older than ones already used: as lost ones.
    pub late: u64,
}

impl WaitCounts {
    /// Adds what was seen in another time.
    pub fn add(&mut self, more: &WaitCounts) {
        self.waits += more.waits;
        self.waits_ns += more.waits_ns;
        self.delay_ns += more.delay_ns;
        self.ongoing += more.ongoing;
        self.wakers_unseen += more.wakers_unseen;
        self.short += more.short;
        self.short_ns += more.short_ns;
        self.preempted += more.preempted;
        self.preempted_ns += more.preempted_ns;
        self.begun_before += more.begun_before;
        self.unknown += more.unknown;
        self.unknown_ns += more.unknown_ns;
        self.threads_refused += more.threads_refused;
        self.stacks_refused += more.stacks_refused;
        self.late += more.late;
    }

    /// What the reader of a capture must know, for people.
    pub fn notices(&self) -> Vec<String> {
        let seconds = |ns: u64| ns as f64 / 1e9;
        let mut notices = Vec::new();
        let mut note = |count: u64, text: String| {
            if count > 0 {
                notices.push(text);
            }
        };
        note(
            self.unknown,
            format!(
                "{} waits of {:.3} s at most are left out: records of them are missing, so they may have been \
                 several",
                self.unknown,
                seconds(self.unknown_ns)
            ),
        );
        note(
            self.short,
            format!(
                "{} waits shorter than was asked for are left out, {:.3} s together",
                self.short,
                seconds(self.short_ns)
            ),
        );
        note(
            self.delay_ns,
            format!(
                "of {:.3} s waited {:.3} s were spent after the wake-up, in the queue for a CPU",
                seconds(self.waits_ns),
                seconds(self.delay_ns)
            ),
        );
        note(
            self.preempted,
            format!(
                "{} times a thread that could run had to leave its CPU, {:.3} s together: no waits, and not \
                 counted as such",
                self.preempted,
                seconds(self.preempted_ns)
            ),
        );
        note(
            self.ongoing,
            format!(
                "{} waits had not ended with the capture: they stand under [still waiting]",
                self.ongoing
            ),
        );
        note(
            self.threads_refused,
            format!(
                "{} times a thread was not followed: {THREADS_MAX} are the most",
                self.threads_refused
            ),
        );
        note(
            self.stacks_refused,
            format!(
                "{} stacks of waits found no room and stand as unknown",
                self.stacks_refused
            ),
        );
        notices
    }

    /// What happened since `before` was counted.
    pub fn since(&self, before: &WaitCounts) -> WaitCounts {
        WaitCounts {
            waits: self.waits - before.waits,
            waits_ns: self.waits_ns - before.waits_ns,
            delay_ns: self.delay_ns - before.delay_ns,
            ongoing: self.ongoing - before.ongoing,
            wakers_unseen: self.wakers_unseen - before.wakers_unseen,
            short: self.short - before.short,
            short_ns: self.short_ns - before.short_ns,
            preempted: self.preempted - before.preempted,
            preempted_ns: self.preempted_ns - before.preempted_ns,
            begun_before: self.begun_before - before.begun_before,
            unknown: self.unknown - before.unknown,
            unknown_ns: self.unknown_ns - before.unknown_ns,
            threads_refused: self.threads_refused - before.threads_refused,
            stacks_refused: self.stacks_refused - before.stacks_refused,
            late: self.late - before.late,
        }
    }
}
