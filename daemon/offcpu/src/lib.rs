//! Waits, as recorded by captures of event `off-cpu`: how long threads waited, where, and who woke
//! them.
//!
//! The scheduler reports each switch and each wake-up (`format.rs` parses them). The machine
//! (`machine.rs`) combines them into waits: from the switch away from a thread that cannot continue
//! to the switch back to it, with the last wake-up in between. `shape.rs` makes one stack of a
//! wait. A wait with a missing switch back ends at its wake-up and is counted as an estimate. A
//! wait without a recorded wake-up too, or one that started before the capture, is dropped and
//! counted.
//!
//! A wait ends when the thread runs again, not when it was woken. The time that it then spent in
//! the run queue is part of the wait and is also summed separately ([`WaitCounts::delay_ns`]).
#![forbid(unsafe_code)]

pub mod format;
pub mod machine;
pub mod reading;
pub mod shape;
mod stacks;

#[cfg(test)]
mod tests;

use format::{Leaving, Within};
use host::ids::{CgroupId, Comm, CpuId, Pid, ProcessId};
use host::time::MonotonicTime;
use profile::StackEnd;
use profile::text::grouped;
use unwind::walk::recall::RecallCounts;

/// Threads followed in one capture, 8 MiB with their waits. More are left out and counted
/// ([`WaitCounts::threads_refused`]): a thread of which nothing is known has no wait. Hosts that
/// run more at once exist (`kernel.threads-max` allows 125,000 on 16 GiB), mostly with threads that
/// never run.
pub const THREADS_MAX: usize = 1 << 16;

/// Frames of the stacks of threads that wait and of their wakers, equal stacks once: 16 MiB. What
/// finds no room has no stack and is counted ([`WaitCounts::stacks_refused`]).
pub const FRAMES_MAX: usize = 1 << 20;

/// Frames kept of a waker, from its leaf: it is there to say who and where, and what matters is
/// near the leaf. What lies behind is cut and marked. Without a bound a wait's stack has twice the
/// depth of any other.
pub const WAKER_FRAMES_MAX: usize = 64;

/// The thread that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who {
    /// Its process.
    pub pid: Pid,
    /// The process in this lifetime; `None` when the process is not known.
    pub process: Option<ProcessId>,
    /// Its name.
    pub thread: Comm,
    /// Its cgroup.
    pub cgroup: CgroupId,
}

/// The waker: who or what ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waker<'a> {
    /// Name of the thread that did, or was interrupted.
    pub thread: Comm,
    /// Its cgroup; 0: not known.
    pub cgroup: CgroupId,
    /// Whether an interrupt on top of that thread did.
    pub within: Within,
    /// Its frames, leaf first, [`WAKER_FRAMES_MAX`] at most.
    pub frames: &'a [host::frame::RawFrame],
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
    /// The thread that waited.
    pub who: Who,
    /// Why it left: any reason except [`Leaving::Preempted`] and [`Leaving::Dead`].
    pub leaving: Leaving,
    /// Its stack, leaf first.
    pub frames: &'a [host::frame::RawFrame],
    /// How that stack ended.
    pub end: StackEnd,
    /// When it started.
    pub start: MonotonicTime,
    /// How long. Unit: nanoseconds.
    pub length_ns: u64,
    /// How it ended.
    pub ending: Ending<'a>,
}

/// CPUs by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuMask([u64; CPU_WORDS]);

/// Words of a [`CpuMask`]: 512 CPUs. It goes with each batch; a CPU beyond counts as the last.
const CPU_WORDS: usize = 8;

/// CPUs that are named to people before the rest is a number.
const CPUS_NAMED: usize = 4;

impl CpuMask {
    /// Adds a CPU.
    pub fn add(&mut self, cpu: CpuId) {
        let at = (cpu.0 as usize).min(CPU_WORDS * 64 - 1);
        self.0[at / 64] |= 1 << (at % 64);
    }

    /// True when it is among them.
    pub fn has(&self, cpu: CpuId) -> bool {
        let at = (cpu.0 as usize).min(CPU_WORDS * 64 - 1);
        self.0[at / 64] & 1 << (at % 64) != 0
    }

    /// The CPUs, in order.
    pub fn iter(&self) -> impl Iterator<Item = CpuId> + '_ {
        let all = (0..CPU_WORDS as u32 * 64).map(CpuId);
        all.filter(|&cpu| self.has(cpu))
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.0 == [0; CPU_WORDS]
    }

    /// `CPU 1`, `CPUs 1, 3 and 12 more`.
    pub fn text(&self) -> String {
        let all: Vec<_> = self.iter().collect();
        let named: Vec<_> = all
            .iter()
            .take(CPUS_NAMED)
            .map(|cpu| cpu.0.to_string())
            .collect();
        let rest = match all.len() - named.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let plural = if all.len() == 1 { "" } else { "s" };
        format!("CPU{plural} {}{rest}", named.join(", "))
    }
}

macro_rules! wait_counts {
    ($($(#[$meta:meta])* $field:ident,)*) => {
        /// Counts of what a capture saw and missed.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct WaitCounts {
            $($(#[$meta])* pub $field: u64,)*
            /// CPUs with an idle task that does not report when it switches to a thread.
            pub silent: CpuMask,
        }

        impl WaitCounts {
            /// Adds what was seen in another time.
            pub fn add(&mut self, more: &WaitCounts) {
                $(self.$field += more.$field;)*
                for (mine, more) in self.silent.0.iter_mut().zip(more.silent.0) {
                    *mine |= more;
                }
            }

            /// Difference to an earlier count.
            pub fn since(&self, before: &WaitCounts) -> WaitCounts {
                WaitCounts {
                    $($field: self.$field - before.$field,)*
                    silent: self.silent,
                }
            }
        }
    };
}

wait_counts! {
    /// Waits given out, those that go on at the end included.
    waits,
    /// Their length. Unit: nanoseconds, as for every field that ends in `_ns`.
    waits_ns,
    /// The part of it from the wake-up until the thread ran.
    delay_ns,
    /// Waits given out that go on at the end.
    ongoing,
    /// Their length up to the end.
    ongoing_ns,
    /// Waits with an unseen end: they end at their wake-up.
    estimated,
    /// Their length up to the wake-up.
    estimated_ns,
    /// Waits that ended without a recorded wake-up.
    wakers_unseen,
    /// Large copies that showed what likeness would have said of the same wait.
    alike_checked,
    /// Copies among these that showed the estimate to be wrong.
    alike_wrong,
    /// Waits shorter than was asked for: left out.
    short,
    /// Their length.
    short_ns,
    /// Times a thread that could go on had to leave its CPU: no waits.
    preempted,
    /// How long until it ran again.
    preempted_ns,
    /// Threads that ran before they were seen to leave: if they had been waiting when the capture
    /// started, that wait is not known.
    started_before,
    /// Waits without a recorded wake-up of which a record was lost, or may have been: dropped,
    /// because they may have been several waits.
    unknown,
    /// The most that they can have lasted, as far as a start is known.
    unknown_ns,
    /// Unknown waits that were in progress while records were lost.
    unknown_lost,
    /// Times a thread was not followed because [`THREADS_MAX`] are.
    threads_refused,
    /// Stacks that found no room in [`FRAMES_MAX`].
    stacks_refused,
    /// Records older than ones already used: as lost ones.
    late,
}

/// A number of things, for people: `1 wait`, `2,000 waits`.
pub fn many(count: u64, one: &str, more: &str) -> String {
    let word = if count == 1 { one } else { more };
    format!("{} {word}", grouped(count))
}

impl WaitCounts {
    /// Counts what large copies showed of estimates between two moments.
    pub fn note_checks(&mut self, before: RecallCounts, after: RecallCounts) {
        self.alike_checked += after.checked - before.checked;
        self.alike_wrong += after.wrong - before.wrong;
    }

    /// Statistics of the waits for a profile.
    pub fn summary(&self) -> profile::Waits {
        profile::Waits {
            complete: self.waits - self.estimated - self.ongoing,
            complete_ns: self.waits_ns - self.estimated_ns - self.ongoing_ns,
            estimated: self.estimated,
            estimated_ns: self.estimated_ns,
            ongoing: self.ongoing,
            ongoing_ns: self.ongoing_ns,
            dropped: self.unknown,
            dropped_ns: self.unknown_ns,
            alike_checked: self.alike_checked,
            alike_wrong: self.alike_wrong,
            // Known when the stacks have names.
            ..profile::Waits::default()
        }
    }

    /// Why ends of most of the waits were not seen; empty when all were.
    pub fn cause(&self) -> String {
        if self.estimated + self.unknown == 0 {
            return String::new();
        }
        if self.unknown_lost * 2 > self.estimated + self.unknown {
            "records were lost".to_owned()
        } else if self.silent.is_empty() {
            "a record was lost, or the kernel made none".to_owned()
        } else {
            format!("{} reports no switches from idle", self.silent.text())
        }
    }

    /// Notices for the reader of a capture.
    pub fn notices(&self) -> Vec<String> {
        let seconds = |ns: u64| ns as f64 / 1e9;
        let mut notices = Vec::new();
        let mut note = |count: u64, text: String| {
            if count > 0 {
                notices.push(text);
            }
        };
        note(
            self.estimated,
            format!(
                "estimated: {} ({:.3} s) that end at their wake-up, as the switch to the thread was not recorded; {}",
                many(self.estimated, "wait", "waits"),
                seconds(self.estimated_ns),
                self.cause()
            ),
        );
        note(
            self.unknown,
            format!(
                "{} (at most {:.3} s) dropped, because no record tells when they ended; {}",
                many(self.unknown, "wait", "waits"),
                seconds(self.unknown_ns),
                self.cause()
            ),
        );
        let hides_ends = self.estimated + self.unknown > self.unknown_lost;
        let silence_matters = hides_ends || self.wakers_unseen > 0;
        note(
            u64::from(silence_matters && !self.silent.is_empty()),
            format!(
                "{}: the kernel stopped recording the idle task, as it does after CPU hotplug \
                 (Linux 6.11 and later) until the next boot: switches from idle and their wakers \
                 are missing",
                self.silent.text()
            ),
        );
        note(
            self.short,
            format!(
                "{} ({:.3} s) shorter than --min-wait left out",
                many(self.short, "wait", "waits"),
                seconds(self.short_ns)
            ),
        );
        note(
            self.delay_ns,
            format!(
                "{:.3} s of {:.3} s was run-queue latency",
                seconds(self.delay_ns),
                seconds(self.waits_ns)
            ),
        );
        note(
            self.preempted,
            format!(
                "{} ({:.3} s) are not counted as waits",
                many(self.preempted, "preemption", "preemptions"),
                seconds(self.preempted_ns)
            ),
        );
        note(
            self.ongoing,
            format!(
                "{} had not ended when the capture did: [still waiting]",
                many(self.ongoing, "wait", "waits")
            ),
        );
        note(
            self.threads_refused,
            format!(
                "{} a thread was not followed: at most {THREADS_MAX} are",
                many(self.threads_refused, "time", "times")
            ),
        );
        note(
            self.stacks_refused,
            format!(
                "{} of waits are counted as unknown for lack of room",
                many(self.stacks_refused, "stack", "stacks")
            ),
        );
        notices
    }
}
