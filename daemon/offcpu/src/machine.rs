//! Combines switches and wake-ups into waits: a table of threads, driven in order of time.
//!
//! Called by the sampler thread, which translates each record: for a switch first the thread that
//! leaves ([`Machine::waits`], [`Machine::preempted`], [`Machine::ends`]), then the thread that
//! comes ([`Machine::runs`]). It uses no clock and no I/O, and allocates nothing once the table and
//! the stacks have grown to what the load needs. Idle tasks, which all have the id 0, are ignored.
//!
//! The wake-up that ended a wait is the last one before the thread ran. `try_to_wake_up`
//! (kernel/sched/core.c) reports only a wake-up that changes the state of the thread, and a thread
//! that was woken is not woken again until it has run. Between the moment a thread decides to wait
//! and the record of its switch, another CPU may wake it: such a wake-up comes before the switch
//! and is kept for it.
//!
//! Some switches to a thread are never recorded. After a CPU was taken offline and online again,
//! Linux 6.11 and later record none of its idle task until the next boot, so switches from idle to
//! a thread on that CPU are missing. A thread records when it leaves, so it waited once between two
//! such records, and the first wake-up after the first record ended that wait. The wait then ends
//! there, as an estimate ([`WaitCounts::estimated`]). The same applies if records were lost after
//! the wake-up. Once a CPU is known to be silent, its threads are made to report their arrival
//! ([`Machine::arrives`]), at the cost of one more record each.

use super::format::Leaving;
use super::stacks::{StackRef, Stacks};
use super::{Ending, FRAMES_MAX, THREADS_MAX, Wait, WaitCounts, Waker, Who};
use hashbrown::HashMap;
use host::frame::RawFrame;
use host::ids::{CgroupId, Comm, CpuId, Tid};
use host::time::MonotonicTime;
use profile::{StackEnd, UnnamedReason};
use std::time::Duration;

/// Frames of a stack that found no room.
const NO_ROOM: [RawFrame; 1] = [RawFrame::Unknown(UnnamedReason::Limit)];

/// Most CPUs; `NR_CPUS` of the largest kernels is 8,192.
const CPUS_MAX: usize = 1 << 14;

/// When and where a record was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// Its time.
    pub time: MonotonicTime,
    /// The CPU.
    pub cpu: CpuId,
}

/// A time in which records were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Its start.
    pub from: MonotonicTime,
    /// Its end.
    pub until: MonotonicTime,
}

impl Loss {
    fn with(self, other: Option<Loss>) -> Loss {
        let other = other.unwrap_or(self);
        Loss {
            from: self.from.min(other.from),
            until: self.until.max(other.until),
        }
    }
}

/// A thread that starts to wait.
#[derive(Clone, Copy, Debug)]
pub struct Waiting<'a> {
    /// The thread.
    pub who: Who,
    /// How it leaves.
    pub leaving: Leaving,
    /// Where it waits, leaf first.
    pub frames: &'a [RawFrame],
    /// How that stack ended.
    pub end: StackEnd,
}

/// Where a thread waits.
struct Place {
    since: MonotonicTime,
    cpu: CpuId,
    /// Number of the switch on that CPU.
    switch: u64,
    leaving: Leaving,
    stack: Option<StackRef>,
    end: StackEnd,
    seen_by: SeenBy,
    /// The first wake-up since, once another followed it: the thread ran in between, unseen.
    first: Option<Woken>,
}

/// Which events have reported a switch or a wake-up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SeenBy {
    /// The event that reports every switch.
    Every,
    /// The one that copies stacks.
    Copying,
    Both,
}

/// Its waker, and when.
struct Woken {
    time: MonotonicTime,
    /// No switch was lost between the start of the wait and this, so it ended that wait and no
    /// other; before the start of a wait: none was lost at all.
    sound: bool,
    cpu: CpuId,
    /// Number of the newest switch on that CPU: the waker is the one that runs since.
    switch: u64,
    seen_by: SeenBy,
    thread: Comm,
    cgroup: CgroupId,
    within: super::format::Within,
    stack: Option<StackRef>,
    cut: bool,
}

enum State {
    /// On a CPU, as far as is known.
    Runs,
    /// Had to leave its CPU.
    Preempted(MonotonicTime),
    Waits(Place),
}

/// How the end of a wait is known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// The thread was seen to run.
    Seen,
    /// It was woken, and not seen to run.
    Estimated,
    /// It goes on.
    Ongoing,
}

/// State of a CPU.
#[derive(Clone, Copy, Default)]
struct Cpu {
    /// Switches seen.
    switches: u64,
    /// The thread that runs since the newest of these; 0: the idle task.
    next: Option<Tid>,
    /// A switch away from its idle task was seen.
    idle_left: bool,
    /// Threads that left it and were not seen to come to it, up to [`SILENT_MIN`].
    unseen: u32,
}

/// Number of threads that arrive unannounced on a CPU, while its idle task never reports leaving,
/// before the CPU is called silent. A record that the kernel skips now and then is not enough.
pub(super) const SILENT_MIN: u32 = 16;

struct Thread {
    who: Who,
    state: State,
    woken: Option<Woken>,
}

/// Puts switches and wake-ups together.
pub struct Machine {
    threads: HashMap<Tid, Thread>,
    threads_max: usize,
    stacks: Stacks,
    min_wait: Duration,
    cpus: Vec<Cpu>,
    newest: MonotonicTime,
    /// Switches older than this were lost: what a thread has done since before is not known.
    doubt: MonotonicTime,
    /// Wake-ups older than this were lost.
    waker_doubt: MonotonicTime,
    /// Losses of switches and of wake-ups that start later than the newest record.
    coming: [Option<Loss>; 2],
    /// The doubt for which the table was last searched for threads of which nothing is known.
    swept: MonotonicTime,
    /// What was seen.
    pub counts: WaitCounts,
}

impl Machine {
    /// Creates a machine that leaves out waits shorter than `min_wait`.
    pub fn new(min_wait: Duration) -> Machine {
        Machine::with_bounds(min_wait, THREADS_MAX, FRAMES_MAX)
    }

    /// As [`Machine::new`], with other bounds.
    pub fn with_bounds(min_wait: Duration, threads_max: usize, frames_max: usize) -> Machine {
        Machine {
            threads: HashMap::new(),
            threads_max,
            stacks: Stacks::new(frames_max),
            min_wait,
            cpus: Vec::new(),
            newest: MonotonicTime(0),
            doubt: MonotonicTime(0),
            waker_doubt: MonotonicTime(0),
            coming: [None; 2],
            swept: MonotonicTime(0),
            counts: WaitCounts::default(),
        }
    }

    /// Memory held. Unit: bytes.
    pub fn bytes(&self) -> usize {
        self.threads.allocation_size() + self.stacks.bytes()
    }

    /// Threads followed.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Switches are missing, or may be. Every wait that started before the end of that time and had
    /// not ended before its start is unknown. Must be called before the records of that time.
    pub fn lost_switches(&mut self, loss: Loss) {
        self.coming[0] = Some(loss.with(self.coming[0]));
    }

    /// Wake-ups are missing, or may be: it is not known who ended the waits of that time.
    pub fn lost_wakings(&mut self, loss: Loss) {
        self.coming[1] = Some(loss.with(self.coming[1]));
    }

    /// Starts a record. False: it is older than one that was used, and must be left alone; what it
    /// would have said is lost.
    #[must_use]
    pub fn start_record(&mut self, at: At) -> bool {
        self.reach(at.time);
        if at.time < self.newest {
            self.counts.late += 1;
            self.doubt = self.doubt.max(self.newest);
            return false;
        }
        self.newest = at.time;
        true
    }

    fn reach(&mut self, time: MonotonicTime) {
        let doubts = [&mut self.doubt, &mut self.waker_doubt];
        for (doubt, coming) in doubts.into_iter().zip(&mut self.coming) {
            if let Some(loss) = coming.take_if(|loss| time >= loss.from) {
                *doubt = (*doubt).max(loss.until);
            }
        }
    }

    /// A thread leaves its CPU to wait. `copied`: reported by the event that copies stacks, which
    /// reports a switch in addition to the event for all switches, before it or after.
    ///
    /// `emit` gets the wait before, if that ended unseen.
    pub fn waits(
        &mut self,
        at: At,
        tid: Tid,
        waiting: &Waiting<'_>,
        copied: bool,
        emit: &mut impl FnMut(Wait<'_>),
    ) {
        let switch = self.switch_of(at.cpu, !copied);
        let known = self.threads.get_mut(&tid);
        if let Some(thread) = known
            && let State::Waits(place) = &mut thread.state
            && place.since >= self.doubt
            && place.is_of(at.cpu, switch, copied)
        {
            // The same switch, reported twice: the larger copy counts, unless only that one is
            // incomplete.
            let better = match (waiting.end.is_complete(), place.end.is_complete()) {
                (true, false) => true,
                (false, true) => false,
                (true, true) | (false, false) => copied,
            };
            if better {
                let kept = keep(&mut self.stacks, &mut self.counts, waiting.frames);
                let before = std::mem::replace(&mut place.stack, kept);
                place.end = waiting.end;
                before
                    .into_iter()
                    .for_each(|stack| self.stacks.release(stack));
            }
            if !copied {
                place.since = at.time;
            }
            place.seen_by = SeenBy::Both;
            return;
        }
        let stack = keep(&mut self.stacks, &mut self.counts, waiting.frames);
        let state = State::Waits(Place {
            since: at.time,
            cpu: at.cpu,
            switch,
            leaving: waiting.leaving,
            stack,
            end: waiting.end,
            seen_by: if copied {
                SeenBy::Copying
            } else {
                SeenBy::Every
            },
            first: None,
        });
        self.set(at, tid, waiting.who, state, emit);
    }

    /// A thread that could go on leaves its CPU. `emit` as in [`Machine::waits`].
    pub fn preempted(&mut self, at: At, tid: Tid, who: Who, emit: &mut impl FnMut(Wait<'_>)) {
        self.switch_of(at.cpu, true);
        self.set(at, tid, who, State::Preempted(at.time), emit);
        self.counts.preempted += 1;
    }

    /// A thread that nobody wants to know of, or not any more, leaves its CPU; or the idle task.
    pub fn passes(&mut self, at: At, tid: Tid, emit: &mut impl FnMut(Wait<'_>)) {
        self.ends(at, tid, emit);
    }

    /// A thread ends and leaves its CPU. `emit` as in [`Machine::waits`].
    pub fn ends(&mut self, at: At, tid: Tid, emit: &mut impl FnMut(Wait<'_>)) {
        self.switch_of(at.cpu, true);
        self.cpu(at.cpu).idle_left |= tid == Tid(0);
        if let Some(thread) = self.threads.remove(&tid) {
            self.note_silent(at.cpu, &thread.state);
            let next = self.end_unseen(at.time, thread.who, thread.state, thread.woken, emit);
            self.release(None, next);
        }
    }

    /// A thread runs, or the idle task. `emit` gets the wait that ends with that, if one does.
    pub fn runs(&mut self, at: At, tid: Tid, emit: &mut impl FnMut(Wait<'_>)) {
        self.cpu(at.cpu).next = Some(tid);
        let Some(thread) = self.threads.get_mut(&tid) else {
            return;
        };
        let woken = thread.woken.take();
        match std::mem::replace(&mut thread.state, State::Runs) {
            State::Waits(place) if place.since >= self.doubt && place.first.is_none() => {
                let who = thread.who;
                self.finish_wait(at.time, (who, &place), woken.as_ref(), End::Seen, emit);
                self.release(place.stack, woken);
            }
            State::Preempted(since) if since >= self.doubt => {
                self.counts.preempted_ns += at.time.since(since).as_nanos() as u64;
                self.release(None, woken);
            }
            State::Runs => {
                // It came back without having left.
                self.counts.unknown += 1;
                self.release(None, woken);
            }
            state => {
                let who = thread.who;
                let next = self.end_unseen(at.time, who, state, woken, emit);
                self.release(None, next);
            }
        }
    }

    /// A thread reports itself that it runs. If the switch to it was already reported, nothing
    /// changes.
    pub fn arrives(&mut self, at: At, tid: Tid, emit: &mut impl FnMut(Wait<'_>)) {
        if self.cpu(at.cpu).next != Some(tid) {
            self.runs(at, tid, emit);
        }
    }

    /// Identity of a thread when it was last seen leaving. An ending thread leaves a few more times
    /// after its process has forgotten it.
    pub fn who(&self, tid: Tid) -> Option<Who> {
        self.threads.get(&tid).map(|thread| thread.who)
    }

    /// True if the waker of this thread is needed.
    pub fn wants_waker(&self, tid: Tid) -> bool {
        self.threads.contains_key(&tid)
    }

    /// A thread is woken. `copied`: reported by the event that copies stacks, as in
    /// [`Machine::waits`].
    ///
    /// If both events report a wake-up, the thread on the CPU is the same, it woke the same thread,
    /// and it has not left in between. If it woke that thread twice, the first time without effect,
    /// the newest stack that is not a copy counts.
    pub fn woken(&mut self, at: At, tid: Tid, waker: &Waker<'_>, copied: bool) {
        let switch = self.switch_of(at.cpu, false);
        let Some(thread) = self.threads.get_mut(&tid) else {
            return;
        };
        let seen_by = if copied {
            SeenBy::Copying
        } else {
            SeenBy::Every
        };
        let known = thread.woken.as_mut();
        let known = known.filter(|known| (known.cpu, known.switch) == (at.cpu, switch));
        if let Some(known) = known
            && known.seen_by != SeenBy::Both
            && known.seen_by != seen_by
        {
            known.seen_by = SeenBy::Both;
            if copied {
                known.cut = waker.cut;
                let kept = keep(&mut self.stacks, &mut self.counts, waker.frames);
                let before = std::mem::replace(&mut known.stack, kept);
                before
                    .into_iter()
                    .for_each(|stack| self.stacks.release(stack));
            }
            return;
        }
        let stack = keep(&mut self.stacks, &mut self.counts, waker.frames);
        let sound = match &thread.state {
            State::Waits(place) => place.since >= self.doubt,
            State::Runs | State::Preempted(_) => self.doubt == MonotonicTime(0),
        };
        let mut before = thread.woken.replace(Woken {
            time: at.time,
            sound,
            cpu: at.cpu,
            switch,
            seen_by,
            thread: waker.thread,
            cgroup: waker.cgroup,
            within: waker.within,
            stack,
            cut: waker.cut,
        });
        if let State::Waits(place) = &mut thread.state
            && place.first.is_none()
        {
            let ends = |woken: &mut Woken| woken.sound && woken.time >= place.since;
            place.first = before.take_if(ends);
        }
        self.release(None, before);
    }

    /// Emits the waits that are still in progress at `end`, up to it, and forgets all threads.
    pub fn finish(&mut self, end: MonotonicTime, emit: &mut impl FnMut(Wait<'_>)) {
        self.reach(end);
        let mut threads = std::mem::take(&mut self.threads);
        for (_, thread) in threads.drain() {
            match thread.state {
                // Where switches are silent one that was woken may run since.
                State::Waits(place)
                    if place.since >= self.doubt
                        && (thread.woken.is_none() || self.counts.silent.is_empty()) =>
                {
                    let woken = thread.woken;
                    self.finish_wait(
                        end,
                        (thread.who, &place),
                        woken.as_ref(),
                        End::Ongoing,
                        emit,
                    );
                    self.release(place.stack, woken);
                    self.release(None, place.first);
                }
                State::Preempted(since) if since >= self.doubt => {
                    self.counts.preempted_ns += end.since(since).as_nanos() as u64;
                    self.release(None, thread.woken);
                }
                state => {
                    let next = self.end_unseen(end, thread.who, state, thread.woken, emit);
                    self.release(None, next);
                }
            }
        }
    }

    /// Ends a wait with an unseen end: at its wake-up if there was one, otherwise it is dropped.
    /// Returns the wake-up that belongs to the next wait.
    fn end_unseen(
        &mut self,
        now: MonotonicTime,
        who: Who,
        state: State,
        woken: Option<Woken>,
        emit: &mut impl FnMut(Wait<'_>),
    ) -> Option<Woken> {
        let State::Waits(mut place) = state else {
            // Nobody wakes a thread that could go on: it came unseen, and was woken as it was about
            // to wait.
            return self.early(woken);
        };
        let (ended, next) = match place.first.take() {
            Some(first) => (Some(first), woken),
            None => (woken, None),
        };
        // One from before the wait ends it only if none can have come since.
        let doubt = self.doubt.max(self.waker_doubt);
        let ends =
            |woken: &Woken| woken.sound && (woken.time >= place.since || woken.time >= doubt);
        match &ended {
            Some(woken) if ends(woken) => {
                let end = woken.time.max(place.since);
                self.finish_wait(end, (who, &place), Some(woken), End::Estimated, emit);
            }
            _ => {
                self.counts.unknown += 1;
                self.counts.unknown_ns += now.since(place.since).as_nanos() as u64;
                self.counts.unknown_lost += u64::from(place.since < self.doubt);
            }
        }
        self.release(place.stack, ended);
        self.early(next)
    }

    /// A wake-up of a thread that is about to wait. Once switches were lost nobody knows that it
    /// was.
    fn early(&self, woken: Option<Woken>) -> Option<Woken> {
        woken.map(|woken| Woken {
            sound: woken.sound && self.doubt == MonotonicTime(0),
            ..woken
        })
    }

    /// Notes the cause when a thread leaves a CPU that it was not seen to come to, with nothing
    /// lost.
    fn note_silent(&mut self, cpu: CpuId, state: &State) {
        let since = match state {
            State::Waits(place) => place.since,
            State::Preempted(since) => *since,
            State::Runs => return,
        };
        let doubt = self.doubt;
        let of = self.cpu(cpu);
        if since >= doubt && of.next == Some(Tid(0)) && !of.idle_left {
            of.unseen = of.unseen.saturating_add(1);
            if of.unseen >= SILENT_MIN {
                self.counts.silent.add(cpu);
            }
        }
    }

    fn finish_wait(
        &mut self,
        end: MonotonicTime,
        (who, place): (Who, &Place),
        woken: Option<&Woken>,
        how: End,
        emit: &mut impl FnMut(Wait<'_>),
    ) {
        let length = end.since(place.since);
        let length_ns = length.as_nanos() as u64;
        if length < self.min_wait {
            self.counts.short += 1;
            self.counts.short_ns += length_ns;
            return;
        }
        let stacks = &self.stacks;
        let frames = |stack: &Option<StackRef>| match stack {
            Some(stack) => stacks.frames(stack),
            None => &NO_ROOM[..],
        };
        // One from before a loss need not be the last.
        let doubt = match how {
            End::Estimated => MonotonicTime(0),
            End::Seen | End::Ongoing => self.doubt.max(self.waker_doubt),
        };
        let woken = woken.filter(|woken| woken.time >= doubt);
        let ending = match woken {
            _ if how == End::Ongoing => Ending::Ongoing,
            Some(woken) => Ending::Woken(Waker {
                thread: woken.thread,
                cgroup: woken.cgroup,
                within: woken.within,
                frames: frames(&woken.stack),
                cut: woken.cut,
            }),
            None => Ending::Unseen,
        };
        let stack_end = match place.stack {
            Some(_) => place.end,
            None => StackEnd::Unresolved,
        };
        let counts = &mut self.counts;
        counts.waits += 1;
        counts.waits_ns += length_ns;
        match how {
            End::Seen => {}
            End::Estimated => {
                counts.estimated += 1;
                counts.estimated_ns += length_ns;
            }
            End::Ongoing => {
                counts.ongoing += 1;
                counts.ongoing_ns += length_ns;
            }
        }
        counts.wakers_unseen += u64::from(ending == Ending::Unseen);
        if let Some(woken) = woken {
            let since = woken.time.max(place.since);
            counts.delay_ns += end.since(since).as_nanos() as u64;
        }
        emit(Wait {
            who,
            leaving: place.leaving,
            frames: frames(&place.stack),
            end: stack_end,
            start: place.since,
            length_ns,
            ending,
        });
    }

    /// Number of the switch on a CPU that is the newest, or that starts with this record.
    fn switch_of(&mut self, cpu: CpuId, starts: bool) -> u64 {
        let cpu = self.cpu(cpu);
        cpu.switches += u64::from(starts);
        cpu.switches
    }

    fn cpu(&mut self, cpu: CpuId) -> &mut Cpu {
        let at = (cpu.0 as usize).min(CPUS_MAX - 1);
        if at >= self.cpus.len() {
            self.cpus.resize(at + 1, Cpu::default());
        }
        &mut self.cpus[at]
    }

    /// Sets the state of a thread that ran until now.
    fn set(&mut self, at: At, tid: Tid, who: Who, state: State, emit: &mut impl FnMut(Wait<'_>)) {
        if let Some(known) = self.threads.get_mut(&tid) {
            let was = std::mem::replace(&mut known.who, who);
            let before = std::mem::replace(&mut known.state, state);
            // A wake-up that came while it still ran is that of the wait that starts.
            if matches!(before, State::Runs) {
                return;
            }
            // It left without having been seen to come back.
            let woken = known.woken.take();
            self.note_silent(at.cpu, &before);
            let next = self.end_unseen(at.time, was, before, woken, emit);
            if let Some(known) = self.threads.get_mut(&tid) {
                known.woken = next;
            }
            return;
        }
        if self.threads.len() >= self.threads_max {
            self.sweep(at.time, emit);
        }
        if self.threads.len() < self.threads_max {
            self.counts.started_before += 1;
            let woken = None;
            self.threads.insert(tid, Thread { who, state, woken });
            return;
        }
        self.counts.threads_refused += 1;
        if let State::Waits(place) = state {
            self.release(place.stack, None);
        }
    }

    fn release(&mut self, stack: Option<StackRef>, woken: Option<Woken>) {
        let waker = woken.and_then(|woken| woken.stack);
        for stack in stack.into_iter().chain(waker) {
            self.stacks.release(stack);
        }
    }

    /// Forgets threads of which nothing is known, once after each loss: some of them have ended.
    fn sweep(&mut self, now: MonotonicTime, emit: &mut impl FnMut(Wait<'_>)) {
        if self.swept == self.doubt {
            return;
        }
        self.swept = self.doubt;
        let doubt = self.doubt;
        let mut threads = std::mem::take(&mut self.threads);
        let doubtful = threads.extract_if(|_, thread| match &thread.state {
            State::Waits(place) => place.since < doubt,
            State::Preempted(since) => *since < doubt,
            State::Runs => true,
        });
        for (_, thread) in doubtful {
            let next = self.end_unseen(now, thread.who, thread.state, thread.woken, emit);
            self.release(None, next);
        }
        self.threads = threads;
    }
}

impl Place {
    /// True if a record reports the switch to which this belongs.
    fn is_of(&self, cpu: CpuId, switch: u64, copied: bool) -> bool {
        let same = match self.seen_by {
            // The copy comes after: of the newest switch.
            SeenBy::Every => copied && self.switch == switch,
            // It came before: of the one after that.
            SeenBy::Copying => !copied && self.switch + 1 == switch,
            SeenBy::Both => false,
        };
        self.cpu == cpu && same
    }
}

fn keep(stacks: &mut Stacks, counts: &mut WaitCounts, frames: &[RawFrame]) -> Option<StackRef> {
    let kept = stacks.keep(frames);
    counts.stacks_refused += u64::from(kept.is_none());
    kept
}
