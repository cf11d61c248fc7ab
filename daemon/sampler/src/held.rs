//! Holds samples with stacks that cannot be walked yet, because the unwind information of a file or
//! the generated code of a process is not loaded, as in the first seconds of a program.
//!
//! A walk that reaches a new file ends there, while `fp-files` reads the file, which takes some
//! milliseconds. A walk that ends in generated code of a process that `fp-jit` has not reported yet
//! waits for that. Until then the sample's registers and its copy of the stack stay here, and are
//! walked again once the file is read. Such copies contain other people's secrets. So they are kept
//! for [`HELD_MAX`] at most, in memory of a fixed size that is excluded from core dumps; each is
//! overwritten as soon as it was walked, and the memory goes back to the kernel when nothing waits.
//! Called by the sampler thread only.

use hashbrown::HashMap;
use host::ids::{CgroupId, Comm, CpuId, FileId, Pid, ProcessId, Tid};
use host::time::MonotonicTime;
use memmap2::{Advice, MmapMut};
use perf::record::{Callchain, CpuMode, Sample, UserState};
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

/// Longest time that a sample waits: as long as a file that was asked for is awaited. The tables of
/// the largest programs take a second to read on a machine that has no CPU to spare.
const HELD_MAX: Duration = Duration::from_secs(2);

/// How much older a sample may be than the first that waits: rings are merged by time, but for
/// records that were late.
const LATE_MAX: Duration = Duration::from_secs(1);

/// How long a window that is over stays open for what waits, where the rings hold what comes
/// meanwhile.
pub(super) const WINDOW_WAITS_MAX: Duration = Duration::from_millis(250);

/// Memory for what waits: 250 samples with a copy of 16 KiB, of the 400 that two busy CPUs take in
/// [`HELD_MAX`]. Most copies end with the stack and are shorter; what finds no room is counted.
/// Unit: bytes.
const ARENA_BYTES: usize = 4 << 20;

/// Samples that wait at once, however small they are.
const SAMPLES_MAX: usize = 4096;

/// Shortest and longest time until the sampler looks again whether a file was read. Each look is a
/// pass; they come less and less often while a sample waits.
const LOOK_AGAIN: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));

/// Outcomes of waiting samples since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldCounts {
    /// Samples that waited.
    pub held: u64,
    /// Samples that were walked once what they waited for arrived, or turned out not to exist.
    pub walked_on: u64,
    /// Samples for which it did not arrive in time.
    pub given_up: u64,
    /// Samples that could not wait: no room.
    pub refused: u64,
}

/// What a sample waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaited {
    /// The unwind information of a file.
    Module(FileId),
    /// How to step over the generated code of its process.
    Rules,
}

/// What a sample waits for, its process and the name of its thread.
#[derive(Clone, Copy)]
pub(super) struct Waiting {
    /// What it waits for.
    pub(super) awaited: Awaited,
    /// Its process.
    pub(super) process: ProcessId,
    /// The name its thread had.
    pub(super) thread: Comm,
}

/// A sample that waits; its bytes are in the arena.
struct Copied {
    waiting: Waiting,
    since: MonotonicTime,
    mode: CpuMode,
    ip: u64,
    pid: Pid,
    tid: Tid,
    time: MonotonicTime,
    cpu: CpuId,
    period: u64,
    cgroup: CgroupId,
    is_64: bool,
    full: bool,
    /// Where its bytes start, and how many are of the chain, the registers and the stack.
    at: usize,
    lens: [usize; 3],
    /// It was walked: its bytes are overwritten, and its place becomes free when those before it
    /// do.
    done: bool,
}

impl Copied {
    fn bytes(&self) -> Range<usize> {
        self.at..self.at + self.lens.iter().sum::<usize>()
    }

    fn sample<'a>(&self, arena: &'a [u8]) -> Sample<'a> {
        let [chain, regs, _] = self.lens;
        let bytes = &arena[self.bytes()];
        let (chain, rest) = bytes.split_at(chain);
        let (regs, stack) = rest.split_at(regs);
        Sample {
            mode: self.mode,
            ip: self.ip,
            pid: self.pid,
            tid: self.tid,
            time: self.time,
            cpu: self.cpu,
            period: self.period,
            callchain: Callchain::from_bytes(chain),
            user: Some(UserState {
                is_64: self.is_64,
                regs,
                stack,
                full: self.full,
            }),
            raw: None,
            cgroup: self.cgroup,
        }
    }
}

/// Which of the waiting samples to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeldSelection {
    /// Samples with a file that may have been read.
    Ready,
    /// Samples of a process that executes another program, for the last time.
    Of(Pid),
    /// All, for the last time.
    All,
}

/// Outcome of trying a sample again.
pub(super) enum HeldOutcome {
    /// It was walked as far as it goes, and folded.
    Done,
    /// It was folded as it is.
    GivenUp,
    /// It waits for this now.
    Awaits(Awaited),
}

/// See the file.
#[derive(Default)]
pub(super) struct HeldSamples {
    copied: VecDeque<Copied>,
    /// How many of each process wait.
    pids: HashMap<Pid, u32>,
    arena: Option<MmapMut>,
    /// Where the next sample's bytes go.
    end: usize,
    /// Counters.
    pub(super) counts: HeldCounts,
    /// When the pass of the sampler started.
    pub(super) now: MonotonicTime,
    /// Sampling ends, so nothing may wait any more.
    pub(super) closed: bool,
}

impl HeldSamples {
    /// True when nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.copied.is_empty()
    }

    /// True when a sample of this process waits.
    pub(super) fn has(&self, pid: Pid) -> bool {
        self.pids.contains_key(&pid)
    }

    /// A time before which no sample that waits was taken: its process is to be known still.
    pub(super) fn oldest(&self) -> Option<MonotonicTime> {
        // Samples come in order, but for some that were late.
        let first = self.copied.front()?.time;
        Some(MonotonicTime(
            first.0.saturating_sub(LATE_MAX.as_nanos() as u64),
        ))
    }

    /// When to look whether a file was read: the first one that is still awaited.
    pub(super) fn due(&self) -> Option<MonotonicTime> {
        let waits = self.now.since(self.copied.front()?.since);
        let (soonest, latest) = LOOK_AGAIN;
        Some(self.now.plus((waits / 2).clamp(soonest, latest)))
    }

    /// Makes a sample wait. False if it cannot.
    pub(super) fn hold(
        &mut self,
        sample: &Sample<'_>,
        (process, thread): (ProcessId, Comm),
        awaited: Awaited,
    ) -> bool {
        let Some(user) = sample.user.filter(|_| !self.closed) else {
            return false;
        };
        let chain = sample.callchain.bytes();
        let lens = [chain.len(), user.regs.len(), user.stack.len()];
        let Some(at) = self.place(lens.iter().sum()) else {
            self.counts.refused += 1;
            return false;
        };
        let Some(arena) = self.arena() else {
            self.counts.refused += 1;
            return false;
        };
        let mut to = at;
        for part in [chain, user.regs, user.stack] {
            arena[to..to + part.len()].copy_from_slice(part);
            to += part.len();
        }
        self.end = to;
        self.counts.held += 1;
        *self.pids.entry(sample.pid).or_default() += 1;
        self.copied.push_back(Copied {
            waiting: Waiting {
                awaited,
                process,
                thread,
            },
            since: self.now,
            mode: sample.mode,
            ip: sample.ip,
            pid: sample.pid,
            tid: sample.tid,
            time: sample.time,
            cpu: sample.cpu,
            period: sample.period,
            cgroup: sample.cgroup,
            is_64: user.is_64,
            full: user.full,
            at,
            lens,
            done: false,
        });
        true
    }

    /// A place for this many bytes: after the last sample, or at the start if that is free again.
    fn place(&self, bytes: usize) -> Option<usize> {
        if self.copied.len() >= SAMPLES_MAX {
            return None;
        }
        let Some(first) = self.copied.front().map(|first| first.at) else {
            return (bytes <= ARENA_BYTES).then_some(0);
        };
        let wrapped = self.end <= first;
        match wrapped {
            true => (self.end + bytes < first).then_some(self.end),
            false if self.end + bytes <= ARENA_BYTES => Some(self.end),
            false => (bytes < first).then_some(0),
        }
    }

    fn arena(&mut self) -> Option<&mut MmapMut> {
        if self.arena.is_none() {
            let arena = MmapMut::map_anon(ARENA_BYTES).ok()?;
            // Where the kernel refuses, copies of stacks would be in core dumps.
            arena.advise(Advice::DontDump).ok()?;
            self.arena = Some(arena);
        }
        self.arena.as_mut()
    }

    /// Shows samples that wait to `look`, oldest first, and whether it is for the last time: none
    /// is kept beyond [`HELD_MAX`].
    pub(super) fn look(
        &mut self,
        which: HeldSelection,
        mut look: impl FnMut(&Sample<'_>, Waiting, bool) -> HeldOutcome,
    ) {
        let HeldSamples {
            copied,
            pids,
            arena: Some(arena),
            counts,
            now,
            ..
        } = self
        else {
            return;
        };
        for it in copied.iter_mut().filter(|it| !it.done) {
            let is_last = match which {
                HeldSelection::Ready => now.since(it.since) >= HELD_MAX,
                HeldSelection::Of(pid) if it.pid != pid => continue,
                HeldSelection::Of(_) | HeldSelection::All => true,
            };
            match look(&it.sample(arena), it.waiting, is_last) {
                HeldOutcome::Awaits(awaited) => {
                    it.waiting.awaited = awaited;
                    continue;
                }
                HeldOutcome::Done => counts.walked_on += 1,
                HeldOutcome::GivenUp => counts.given_up += 1,
            }
            arena[it.bytes()].fill(0);
            it.done = true;
            if let Some(count) = pids.get_mut(&it.pid) {
                *count -= 1;
                if *count == 0 {
                    pids.remove(&it.pid);
                }
            }
        }
        while copied.front().is_some_and(|first| first.done) {
            copied.pop_front();
        }
        if copied.is_empty() {
            self.arena = None;
            self.end = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: MonotonicTime = MonotonicTime(1_000_000_000);

    /// A sample with a stack of `bytes` bytes of `fill`.
    fn with_sample<T>(pid: u32, fill: u8, bytes: usize, then: impl FnOnce(&Sample<'_>) -> T) -> T {
        let (chain, regs, stack) = ([fill; 24], [fill; 144], vec![fill; bytes]);
        then(&Sample {
            mode: CpuMode::User,
            ip: 1,
            pid: Pid(pid),
            tid: Tid(pid),
            time: NOW,
            cpu: CpuId(0),
            period: 1,
            callchain: Callchain::from_bytes(&chain),
            user: Some(UserState {
                is_64: true,
                regs: &regs,
                stack: &stack,
                full: true,
            }),
            raw: None,
            cgroup: CgroupId(1),
        })
    }

    fn hold(held: &mut HeldSamples, pid: u32, fill: u8, bytes: usize) -> bool {
        let whose = (ProcessId(pid), Comm::from_bytes(b"new"));
        with_sample(pid, fill, bytes, |sample| {
            held.hold(sample, whose, Awaited::Module(FileId(7)))
        })
    }

    fn held() -> HeldSamples {
        HeldSamples {
            now: NOW,
            ..HeldSamples::default()
        }
    }

    /// Nothing but `fill` in all that the sample has.
    fn is_of(sample: &Sample<'_>, fill: u8) -> bool {
        let user = sample.user.expect("held with its registers");
        let parts = [sample.callchain.bytes(), user.regs, user.stack];
        parts
            .iter()
            .all(|part| part.iter().all(|&byte| byte == fill))
    }

    /// Pids of those that are shown, and whether for the last time; each gets `outcome`.
    fn shown(
        held: &mut HeldSamples,
        which: HeldSelection,
        mut outcome: impl FnMut(u32) -> HeldOutcome,
    ) -> Vec<(u32, bool)> {
        let mut shown = Vec::new();
        held.look(which, |sample, _, is_last| {
            shown.push((sample.pid.0, is_last));
            outcome(sample.pid.0)
        });
        shown
    }

    #[test]
    fn a_sample_waits_until_it_was_walked() {
        let mut held = held();
        assert!(hold(&mut held, 1, 0xaa, 512));
        assert!(hold(&mut held, 2, 0xbb, 64));
        let waits = |pid| match pid {
            1 => HeldOutcome::Awaits(Awaited::Module(FileId(8))),
            _ => HeldOutcome::Done,
        };
        let both = [(1, false), (2, false)];
        assert_eq!(shown(&mut held, HeldSelection::Ready, waits), both);
        held.look(HeldSelection::Ready, |sample, waiting, _| {
            assert_eq!(
                (sample.pid, waiting.awaited),
                (Pid(1), Awaited::Module(FileId(8)))
            );
            assert!(is_of(sample, 0xaa));
            HeldOutcome::Done
        });
        assert!(held.is_empty() && held.arena.is_none());
        assert_eq!((held.counts.held, held.counts.walked_on), (2, 2));
    }

    #[test]
    fn a_copy_is_overwritten_as_soon_as_it_was_walked() {
        let mut held = held();
        hold(&mut held, 1, 0xaa, 4096);
        hold(&mut held, 2, 0xbb, 4096);
        let second_done = |pid| match pid {
            1 => HeldOutcome::Awaits(Awaited::Module(FileId(7))),
            _ => HeldOutcome::Done,
        };
        shown(&mut held, HeldSelection::Ready, second_done);
        let arena = held.arena.as_deref().expect("one waits");
        assert!(arena.contains(&0xaa) && !arena.contains(&0xbb));
    }

    #[test]
    fn none_waits_longer_than_the_bound() {
        let mut held = held();
        hold(&mut held, 1, 1, 64);
        held.now = NOW.plus(HELD_MAX);
        let given_up = |_| HeldOutcome::GivenUp;
        assert_eq!(
            shown(&mut held, HeldSelection::Ready, given_up),
            [(1, true)]
        );
        assert!(held.is_empty());
        assert_eq!(held.counts.given_up, 1);
    }

    #[test]
    fn what_a_process_left_behind_is_shown_before_it_becomes_another() {
        let mut held = held();
        hold(&mut held, 1, 1, 64);
        hold(&mut held, 2, 2, 64);
        let done = |_| HeldOutcome::Done;
        assert_eq!(
            shown(&mut held, HeldSelection::Of(Pid(2)), done),
            [(2, true)]
        );
        assert_eq!(shown(&mut held, HeldSelection::All, done), [(1, true)]);
    }

    #[test]
    fn without_room_a_sample_is_refused_and_counted() {
        let mut held = held();
        let fit = (0..).take_while(|_| hold(&mut held, 1, 1, 65_528)).count();
        let each = 24 + 144 + 65_528;
        assert_eq!(fit, ARENA_BYTES / each);
        assert_eq!(held.counts.refused, 1);
        assert!(!hold(
            &mut HeldSamples {
                closed: true,
                ..HeldSamples::default()
            },
            1,
            1,
            64
        ));
    }

    #[test]
    fn it_looks_again_less_and_less_often() {
        let mut held = held();
        assert_eq!(held.due(), None);
        hold(&mut held, 1, 1, 64);
        // Also while others come.
        let after = |held: &mut HeldSamples, ms: u64| {
            held.now = NOW.plus(Duration::from_millis(ms));
            hold(held, 2, 2, 64);
            held.due().map(|due| due.since(held.now).as_millis())
        };
        let waits = [0, 40, 900].map(|ms| after(&mut held, ms));
        assert_eq!(waits, [Some(5), Some(20), Some(100)]);
        held.now = NOW;
        shown(&mut held, HeldSelection::Of(Pid(1)), |_| HeldOutcome::Done);
        assert!(!held.has(Pid(1)) && held.has(Pid(2)));
    }

    proptest! {
        /// Whatever comes and goes in which order, each sample is shown with its own bytes.
        #[test]
        fn samples_do_not_overwrite_each_other(
            steps in prop::collection::vec((0u8..3, 0usize..40_000, any::<u64>()), 1..200)
        ) {
            let mut held = held();
            let mut live = Vec::new();
            for (number, (what, bytes, chosen)) in steps.into_iter().enumerate() {
                let pid = number as u32 + 1;
                match what {
                    0 | 1 => {
                        if hold(&mut held, pid, pid as u8, bytes) {
                            live.push(pid);
                        }
                    }
                    _ => {
                        let mut seen = Vec::new();
                        held.look(HeldSelection::Ready, |sample, _, _| {
                            let pid = sample.pid.0;
                            assert!(is_of(sample, pid as u8));
                            if (chosen >> (pid % 64)) & 1 == 0 {
                                seen.push(pid);
                                return HeldOutcome::Awaits(Awaited::Module(FileId(7)));
                            }
                            HeldOutcome::Done
                        });
                        live.retain(|pid| (chosen >> (pid % 64)) & 1 == 0);
                        prop_assert_eq!(&seen, &live);
                    }
                }
            }
        }
    }
}
