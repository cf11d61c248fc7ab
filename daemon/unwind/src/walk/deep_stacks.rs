//! Decides which threads' memory is worth reading, and holds the results.
//!
//! If samples of a thread are cut at the same return address again and again, it has one or several
//! frames larger than the copy, and no sample shows anything further out. Then a read of its memory
//! is requested (`workers/stack_reader.rs`); the result completes its samples as long as that call
//! runs. Called by the sampler thread; never blocks. Allocates, within bounds, when a thread is cut
//! for the first time and when a result arrives.

use super::known_callers::{CutFrame, ExpectedCaller};
use super::look::{Failure, StackReadAnswer, StackReadRequest, StackSnapshot, Thread};
use crate::info::words::Words;
use hashbrown::HashMap;
use host::ids::Pid;
use host::time::MonotonicTime;
use perf::watch::Watchpoint;
use std::time::Duration;

/// Threads remembered as cut. Beyond it no more are taken in until some have not been cut for a
/// while.
const THREADS_MAX: usize = 1024;

/// Looks held or asked for at once. Each has a descriptor and takes a debug register of its thread.
pub const LOOKS_MAX: usize = 64;

/// Memory of all looks. Unit: bytes. One takes some 30 KiB.
const BYTES_MAX: usize = 4 << 20;

/// Looks asked for in a second, of all threads. Each costs the machine some hundred microseconds.
const ASKS_PER_SECOND: u32 = 16;

/// Samples that must be cut at one place, those at other places taken off, before it is looked at.
const VOTES_MIN: u32 = 2;
/// Most votes counted, so that other places get their turn.
const VOTES_MAX: u32 = 8;
/// Places of a thread that votes are counted for.
const PLACES_MAX: usize = 4;

/// How long a thread has to have been cut before it is looked at: calls of compilers that run for a
/// third of a second return before a look is of use. Those that run for two gain by it.
const CUT_MIN: Duration = Duration::from_millis(400);

/// Without a cut for so long it has not been cut until then.
const CUT_APART: Duration = Duration::from_secs(1);

/// Shortest time from the end of one look at a thread to the next; doubled for each that was of no
/// use.
const WAIT_MIN: Duration = Duration::from_secs(2);
/// And the longest.
const WAIT_MAX: Duration = Duration::from_secs(128);

/// Age after which a thread that was not cut is forgotten.
const UNCUT_MAX: Duration = Duration::from_secs(60);

/// Age after which a look that no sample used is dropped: its thread does something else by now,
/// and may be cut somewhere else.
const UNUSED_MAX: Duration = Duration::from_secs(10);

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookCounts {
    /// Looks asked for.
    pub asked: u64,
    /// Looks taken in.
    pub taken: u64,
    /// Looks that were wanted and not asked for, or dropped, because of a bound.
    pub refused: u64,
    /// Looks that could not be had, by [`Failure`].
    pub failed: [u64; Failure::ALL.len()],
    /// Looks dropped because their call had returned.
    pub outlived: u64,
    /// Looks dropped because nobody used them, or their thread or program ended.
    pub dropped: u64,
    /// Samples completed.
    pub completed: u64,
    /// Looks held now.
    pub held: u64,
    /// Their memory. Unit: bytes.
    pub bytes: u64,
}

#[derive(Debug)]
enum LookState {
    Idle,
    Asked,
    Held(Box<StackSnapshot>),
}

#[derive(Debug)]
struct DeepThread {
    pid: Pid,
    /// Where it was looked at, or is to be.
    slot: u64,
    /// Where its stacks are cut most, and how often.
    places: [(u64, u32); PLACES_MAX],
    /// When it was cut last, or its look used.
    used: MonotonicTime,
    not_before: MonotonicTime,
    wait: Duration,
    /// The look held has completed a sample.
    served: bool,
    /// Expected caller of the function at which it was cut last.
    expected: Option<ExpectedCaller>,
    state: LookState,
}

impl DeepThread {
    /// Counts a cut at a place. The most common ones of a stream stay, and what comes once goes
    /// (Misra and Gries).
    fn vote(&mut self, slot: u64) {
        let known = self
            .places
            .iter()
            .position(|&(known, votes)| votes > 0 && known == slot);
        let place = known.or_else(|| self.places.iter().position(|&(_, votes)| votes == 0));
        match place {
            Some(place) => {
                let votes = self.places[place].1;
                self.places[place] = (slot, (votes + 1).min(VOTES_MAX));
            }
            None => {
                for (_, votes) in &mut self.places {
                    *votes -= 1;
                }
            }
        }
    }

    /// The place to read: of those with enough votes, the outermost, because its call lasts
    /// longest.
    fn outermost(&self) -> Option<u64> {
        let voted = self.places.iter().filter(|(_, votes)| *votes >= VOTES_MIN);
        voted.map(|&(slot, _)| slot).max()
    }

    /// Puts the next look off.
    fn put_off(&mut self, now: MonotonicTime) {
        self.places = Default::default();
        self.not_before = now.plus(self.wait);
        self.wait = (self.wait * 2).min(WAIT_MAX);
        self.state = LookState::Idle;
    }
}

/// See the file.
#[derive(Debug)]
pub struct DeepStacks {
    /// Whether reads are requested at all.
    pub on: bool,
    threads: HashMap<Thread, DeepThread>,
    /// Looks asked for or held.
    looks: usize,
    /// Watches to be closed by somebody who may block.
    spent: Vec<Watchpoint>,
    /// Functions, and whether their expected caller was found.
    compared: Vec<(CutFrame, bool)>,
    /// Up to when all watches were known to be untouched.
    verified: MonotonicTime,
    tokens: f64,
    refilled: MonotonicTime,
    counts: LookCounts,
}

impl Default for DeepStacks {
    fn default() -> Self {
        DeepStacks {
            on: false,
            threads: HashMap::new(),
            looks: 0,
            spent: Vec::new(),
            compared: Vec::new(),
            verified: MonotonicTime(0),
            tokens: f64::from(ASKS_PER_SECOND),
            refilled: MonotonicTime(0),
            counts: LookCounts::default(),
        }
    }
}

impl DeepStacks {
    /// Counters.
    pub fn counts(&self) -> LookCounts {
        self.counts
    }

    /// Notes that a sample of a thread was cut where the return address at `slot` was needed.
    pub fn cut(&mut self, thread: Thread, pid: Pid, slot: u64, time: MonotonicTime) {
        if !self.on {
            return;
        }
        if self.threads.len() >= THREADS_MAX && !self.threads.contains_key(&thread) {
            self.counts.refused += 1;
            return;
        }
        let entry = self.threads.entry(thread).or_insert(DeepThread {
            pid,
            slot,
            places: Default::default(),
            used: time,
            not_before: time.plus(CUT_MIN),
            wait: WAIT_MIN,
            served: false,
            expected: None,
            state: LookState::Idle,
        });
        if !matches!(entry.state, LookState::Idle) {
            return;
        }
        if time.since(entry.used) > CUT_APART {
            entry.places = Default::default();
            entry.not_before = entry.not_before.max(time.plus(CUT_MIN));
        }
        entry.used = time;
        entry.expected = None;
        entry.vote(slot);
    }

    /// The same for a function with a frame larger than the copy: all samples of the call will be
    /// cut there, so it is read soon. The read shows whether the caller is the `expected` one.
    pub fn cut_at_large(
        &mut self,
        (thread, pid): (Thread, Pid),
        slot: u64,
        time: MonotonicTime,
        expected: Option<ExpectedCaller>,
    ) {
        self.cut(thread, pid, slot, time);
        let entry = self.threads.get_mut(&thread);
        if let Some(entry) = entry.filter(|it| matches!(it.state, LookState::Idle)) {
            entry.expected = expected;
            if entry.wait == WAIT_MIN {
                entry.not_before = entry.not_before.min(time);
            }
        }
    }

    /// The functions that looks have been compared at since the last call, and whether the caller
    /// was the expected one.
    pub(super) fn compared(&mut self) -> impl Iterator<Item = (CutFrame, bool)> {
        self.compared.drain(..)
    }

    /// The words outside of the return address at `slot` of a thread, when they are known to hold
    /// at `time`, and whether they are asked for for the first time.
    pub fn words(
        &mut self,
        thread: Thread,
        slot: u64,
        time: MonotonicTime,
    ) -> Option<(&Words, bool)> {
        if self.counts.held == 0 {
            return None;
        }
        let entry = self.threads.get_mut(&thread)?;
        let LookState::Held(look) = &entry.state else {
            return None;
        };
        if entry.slot != slot || time < look.armed || self.verified < time {
            return None;
        }
        entry.used = time;
        let first = !std::mem::replace(&mut entry.served, true);
        Some((&look.words, first))
    }

    /// Counts a sample that was completed.
    pub fn completed(&mut self) {
        self.counts.completed += 1;
    }

    /// Adds an answer. False if nobody waits for it any more or there is no room.
    pub fn take(&mut self, answer: StackReadAnswer, now: MonotonicTime) -> bool {
        let StackReadAnswer { wanted, look } = answer;
        let waiting = self
            .threads
            .get_mut(&wanted.thread)
            .filter(|entry| matches!(entry.state, LookState::Asked) && entry.slot == wanted.slot);
        let Some(entry) = waiting else {
            self.counts.dropped += u64::from(look.is_ok());
            self.spent.extend(look.ok().map(|look| look.watch));
            return false;
        };
        let look = match look {
            Ok(look) => look,
            Err(failure) => {
                self.counts.failed[failure as usize] += 1;
                // Nothing will be different later.
                self.on &= failure != Failure::Unsupported;
                self.looks -= 1;
                entry.put_off(now);
                return false;
            }
        };
        if let Some(expected) = entry.expected.filter(|it| it.slot == wanted.slot) {
            let right = expected.is(look.words.get(wanted.slot));
            self.compared
                .extend(right.map(|right| (expected.frame, right)));
        }
        let bytes = look.words.heap_bytes();
        if self.counts.bytes as usize + bytes > BYTES_MAX {
            self.counts.refused += 1;
            self.looks -= 1;
            entry.put_off(now);
            self.spent.push(look.watch);
            return false;
        }
        self.counts.taken += 1;
        self.counts.held += 1;
        self.counts.bytes += bytes as u64;
        entry.used = now;
        entry.served = false;
        entry.state = LookState::Held(Box::new(look));
        true
    }

    /// Starts a drain of samples older than `now`: drops reads of calls that have returned, or of
    /// programs that have ended according to `lives`.
    pub fn begin(&mut self, now: MonotonicTime, mut lives: impl FnMut(Thread, Pid) -> bool) {
        let DeepStacks {
            threads,
            looks,
            spent,
            counts,
            ..
        } = self;
        threads.retain(|&thread, entry| {
            let age = now.since(entry.used);
            let held = match std::mem::replace(&mut entry.state, LookState::Idle) {
                LookState::Held(look) => look,
                LookState::Idle => return age <= UNCUT_MAX,
                LookState::Asked if age <= UNCUT_MAX => {
                    entry.state = LookState::Asked;
                    return true;
                }
                // The answer found no room.
                LookState::Asked => {
                    *looks -= 1;
                    return false;
                }
            };
            let stays = age <= UNUSED_MAX && lives(thread, entry.pid);
            if stays && held.watch.is_untouched() {
                entry.state = LookState::Held(held);
                return true;
            }
            counts.held -= 1;
            counts.bytes -= held.words.heap_bytes() as u64;
            *looks -= 1;
            spent.push(held.watch);
            if !stays {
                counts.dropped += 1;
                return false;
            }
            counts.outlived += 1;
            if entry.served {
                entry.wait = WAIT_MIN;
            }
            entry.put_off(now);
            true
        });
        self.verified = now;
    }

    /// Forgets a thread that ended.
    pub fn forget(&mut self, thread: Thread) {
        let Some(entry) = self.threads.remove(&thread) else {
            return;
        };
        if !matches!(entry.state, LookState::Idle) {
            self.looks -= 1;
        }
        if let LookState::Held(look) = entry.state {
            self.counts.held -= 1;
            self.counts.bytes -= look.words.heap_bytes() as u64;
            self.counts.dropped += 1;
            self.spent.push(look.watch);
        }
    }

    /// Asks for looks at the threads that were cut at one place most of the time. `send` returns
    /// false when nobody can be asked now.
    pub fn ask(&mut self, now: MonotonicTime, mut send: impl FnMut(StackReadRequest) -> bool) {
        let limit = f64::from(ASKS_PER_SECOND);
        let since = now.since(self.refilled).as_secs_f64();
        self.tokens = (self.tokens + since * limit).min(limit);
        self.refilled = now;
        for (&thread, entry) in &mut self.threads {
            let due = matches!(entry.state, LookState::Idle) && entry.not_before <= now;
            let Some(slot) = entry.outermost().filter(|_| due) else {
                continue;
            };
            let wanted = StackReadRequest {
                thread,
                pid: entry.pid,
                slot,
            };
            if self.looks >= LOOKS_MAX || self.tokens < 1.0 || !send(wanted) {
                self.counts.refused += 1;
                continue;
            }
            self.tokens -= 1.0;
            self.looks += 1;
            self.counts.asked += 1;
            entry.slot = slot;
            entry.state = LookState::Asked;
        }
    }

    /// Hands over the watches to close; `send` returns what it cannot accept now.
    pub fn give_away(&mut self, mut send: impl FnMut(Watchpoint) -> Option<Watchpoint>) {
        while let Some(watch) = self.spent.pop() {
            if let Some(kept) = send(watch) {
                self.spent.push(kept);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::walk::look::Sieve;
    use host::ids::{ProcessId, Tid};
    use std::sync::atomic::{AtomicU64, Ordering};

    const PID: Pid = Pid(7);
    const SECOND: u64 = 1_000_000_000;

    fn at(seconds: u64) -> MonotonicTime {
        MonotonicTime(seconds * SECOND)
    }

    fn deep_stacks() -> DeepStacks {
        DeepStacks {
            on: true,
            ..DeepStacks::default()
        }
    }

    fn thread(number: u32) -> Thread {
        (ProcessId(number), Tid(number))
    }

    fn asked(deep_stacks: &mut DeepStacks, now: MonotonicTime) -> Vec<StackReadRequest> {
        let mut asked = Vec::new();
        deep_stacks.ask(now, |wanted| {
            asked.push(wanted);
            true
        });
        asked
    }

    /// A look at a word of this thread, and where it is; `None` where no watch can be had.
    fn look(armed: MonotonicTime) -> Option<(Box<AtomicU64>, StackSnapshot)> {
        let word = Box::new(AtomicU64::new(0x40_1000));
        let slot = word.as_ptr() as u64;
        let path = std::fs::read_link("/proc/thread-self").ok()?;
        let tid = Tid(path.file_name()?.to_str()?.parse().ok()?);
        let Ok(watch) = Watchpoint::arm(tid, slot) else {
            testkit::skip("no watch can be had");
            return None;
        };
        let code = std::slice::from_ref(&(0x40_0000..0x50_0000));
        let mut sieve = Sieve::new(slot, slot + 8, code);
        sieve.add(slot, &0x40_1000u64.to_le_bytes());
        let words = sieve.words();
        Some((
            word,
            StackSnapshot {
                words,
                watch,
                armed,
            },
        ))
    }

    /// Deep stacks with a look from second 3 on, the word it depends on, and where that is.
    fn held() -> Option<(DeepStacks, Box<AtomicU64>, u64)> {
        let (word, look) = look(at(3))?;
        let slot = word.as_ptr() as u64;
        let mut deep_stacks = deep_stacks();
        for _ in 0..VOTES_MIN {
            deep_stacks.cut(thread(1), PID, slot, at(0));
        }
        let [wanted] = asked(&mut deep_stacks, at(2))[..] else {
            panic!("not asked")
        };
        let look = Ok(look);
        assert!(deep_stacks.take(StackReadAnswer { wanted, look }, at(4)));
        Some((deep_stacks, word, slot))
    }

    #[test]
    fn one_cut_is_not_enough() {
        let mut deep_stacks = deep_stacks();
        deep_stacks.cut(thread(1), PID, 0x1000, at(0));
        assert!(asked(&mut deep_stacks, at(1)).is_empty());
        for slot in [0x2000, 0x1000, 0x3000, 0x1000, 0x1000, 0x1000] {
            deep_stacks.cut(thread(1), PID, slot, at(0));
        }
        let wanted = StackReadRequest {
            thread: thread(1),
            pid: PID,
            slot: 0x1000,
        };
        assert_eq!(asked(&mut deep_stacks, at(1)), [wanted]);
        assert!(asked(&mut deep_stacks, at(1)).is_empty(), "once");
    }

    #[test]
    fn what_was_cut_for_a_moment_is_not_looked_at() {
        let mut deep_stacks = deep_stacks();
        for _ in 0..VOTES_MIN {
            deep_stacks.cut(thread(1), PID, 0x1000, at(1));
        }
        let short = MonotonicTime(at(1).plus(CUT_MIN).0 - 1);
        assert!(asked(&mut deep_stacks, short).is_empty());
        assert_eq!(asked(&mut deep_stacks, at(1).plus(CUT_MIN)).len(), 1);
    }

    #[test]
    fn of_places_that_come_again_the_outermost_is_asked_for() {
        let mut deep_stacks = deep_stacks();
        for slot in [0x1000, 0x2000, 0x1000, 0x9000, 0x1000, 0x2000, 0x1000] {
            deep_stacks.cut(thread(1), PID, slot, at(0));
        }
        let slots = asked(&mut deep_stacks, at(1)).into_iter().map(|w| w.slot);
        assert_eq!(slots.collect::<Vec<_>>(), [0x2000]);
    }

    #[test]
    fn places_that_come_once_are_never_asked_for() {
        let mut deep_stacks = deep_stacks();
        for slot in 0..1000 {
            deep_stacks.cut(thread(1), PID, 0x1000 + 8 * slot, at(0));
        }
        assert!(asked(&mut deep_stacks, at(1)).is_empty());
    }

    #[test]
    fn nothing_is_asked_for_when_it_is_off() {
        let mut deep_stacks = DeepStacks::default();
        for _ in 0..10 {
            deep_stacks.cut(thread(1), PID, 0x1000, at(0));
        }
        assert!(asked(&mut deep_stacks, at(1)).is_empty());
    }

    #[test]
    fn looks_in_a_second_are_bounded() {
        let mut deep_stacks = deep_stacks();
        for number in 0..2 * THREADS_MAX as u32 {
            for _ in 0..VOTES_MIN {
                deep_stacks.cut(thread(number), PID, 0x1000, at(0));
            }
        }
        assert_eq!(deep_stacks.threads.len(), THREADS_MAX);
        let per_second = ASKS_PER_SECOND as usize;
        assert_eq!(asked(&mut deep_stacks, at(1)).len(), per_second);
        assert_eq!(asked(&mut deep_stacks, at(2)).len(), per_second);
        for second in 3..100 {
            asked(&mut deep_stacks, at(second));
        }
        assert_eq!(
            deep_stacks.counts().asked,
            LOOKS_MAX as u64,
            "none is answered"
        );
        assert!(deep_stacks.counts().refused > 0);
    }

    #[test]
    fn a_look_that_failed_is_tried_again_later_and_later() {
        let mut deep_stacks = deep_stacks();
        let mut times = Vec::new();
        for second in 1..40 {
            for _ in 0..VOTES_MIN {
                deep_stacks.cut(thread(1), PID, 0x1000, at(second));
            }
            for wanted in asked(&mut deep_stacks, at(second)) {
                times.push(second);
                let look = Err(Failure::Busy);
                assert!(!deep_stacks.take(StackReadAnswer { wanted, look }, at(second)));
            }
        }
        assert_eq!(times, [2, 4, 8, 16, 32]);
        assert_eq!(deep_stacks.counts().failed[Failure::Busy as usize], 5);
    }

    #[test]
    fn a_machine_without_watches_is_asked_once() {
        let mut deep_stacks = deep_stacks();
        deep_stacks.cut(thread(1), PID, 0x1000, at(0));
        deep_stacks.cut(thread(1), PID, 0x1000, at(0));
        let wanted = asked(&mut deep_stacks, at(1))[0];
        let look = Err(Failure::Unsupported);
        deep_stacks.take(StackReadAnswer { wanted, look }, at(1));
        assert!(!deep_stacks.on);
    }

    #[test]
    fn a_look_serves_its_own_call_from_when_it_was_watched_to_when_that_was_checked_needs_root() {
        let Some((mut deep_stacks, _word, slot)) = held() else {
            return;
        };
        deep_stacks.begin(at(10), |_, _| true);
        assert!(deep_stacks.words(thread(1), slot, at(5)).is_some());
        assert!(
            deep_stacks.words(thread(1), slot, at(2)).is_none(),
            "before"
        );
        assert!(
            deep_stacks.words(thread(1), slot, at(11)).is_none(),
            "unchecked"
        );
        assert!(deep_stacks.words(thread(1), slot + 8, at(5)).is_none());
        assert!(deep_stacks.words(thread(2), slot, at(5)).is_none());
    }

    #[test]
    fn a_look_of_a_call_that_has_returned_is_dropped_needs_root() {
        let Some((mut deep_stacks, word, slot)) = held() else {
            return;
        };
        // The next call from the same place writes the same address again.
        word.store(0x40_1000, Ordering::Relaxed);
        deep_stacks.begin(at(5), |_, _| true);
        assert!(deep_stacks.words(thread(1), slot, at(4)).is_none());
        let counts = deep_stacks.counts();
        assert_eq!((counts.outlived, counts.held, counts.bytes), (1, 0, 0));
        let mut closed = 0;
        deep_stacks.give_away(|_| {
            closed += 1;
            None
        });
        assert_eq!(closed, 1);
    }

    #[test]
    fn a_look_of_a_program_that_is_gone_is_dropped_needs_root() {
        let Some((mut deep_stacks, _word, slot)) = held() else {
            return;
        };
        deep_stacks.begin(at(5), |_, pid| pid != PID);
        assert!(deep_stacks.words(thread(1), slot, at(4)).is_none());
        assert_eq!((deep_stacks.counts().dropped, deep_stacks.looks), (1, 0));
        let Some((mut deep_stacks, _word, slot)) = held() else {
            return;
        };
        deep_stacks.forget(thread(1));
        assert!(deep_stacks.words(thread(1), slot, at(4)).is_none());
        assert_eq!((deep_stacks.counts().held, deep_stacks.looks), (0, 0));
    }

    #[test]
    fn a_look_that_nobody_uses_is_dropped_needs_root() {
        let Some((mut deep_stacks, _word, _)) = held() else {
            return;
        };
        deep_stacks.begin(at(13), |_, _| true);
        assert_eq!(deep_stacks.counts().dropped, 0, "it is young");
        deep_stacks.begin(at(15), |_, _| true);
        assert_eq!(deep_stacks.counts().dropped, 1);
    }
}
