//! From switches and wake-ups to waits: a table of threads, driven in order of time.
//!
//! Called by the sampler thread, which tells of each record what it means for whom: on a switch first who
//! leaves ([`Machine::waits`], [`Machine::preempted`], [`Machine::ends`]), then who comes
//! ([`Machine::runs`]). No clock, no I/O; nothing is allocated once table and stacks have grown to what the
//! load needs. Idle tasks, which all have the id 0, are nobody.
//!
//! Which wake-up ended a wait: the last one before the thread ran. `try_to_wake_up` (kernel/sched/core.c)
//! tells only of a wake-up that changes the state of the thread, and a thread that was woken is not woken again
//! until it has run. Between the moment a thread makes up its mind to wait and the record of its switch another
//! CPU may wake it: such a wake-up comes before the switch, and is kept for it.

use super::format::Leaving;
use super::stacks::{StackRef, Stacks};
use super::{Ending, FRAMES_MAX, THREADS_MAX, Wait, WaitCounts, Waker, Who};
use crate::aggregate::batch::RawFrame;
use crate::ids::{Comm, CpuId, Tid};
use crate::time::Mono;
use hashbrown::HashMap;
use profile::{StackEnd, Unnamed};
use std::time::Duration;

/// Of a stack that found no room.
const NO_ROOM: [RawFrame; 1] = [RawFrame::Unknown(Unnamed::Limit)];

/// CPUs whose switches are counted apart; `NR_CPUS` of the largest kernels is 8,192.
const CPUS_MAX: usize = 1 << 14;

/// When and where a record was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// When.
    pub time: Mono,
    /// Where.
    pub cpu: CpuId,
}

/// A time in which records were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Its begin.
    pub from: Mono,
    /// Its end.
    pub until: Mono,
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

/// A thread that begins to wait.
#[derive(Clone, Copy, Debug)]
pub struct Waiting<'a> {
    /// Who.
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
    since: Mono,
    cpu: CpuId,
    /// Number of the switch on that CPU.
    switch: u64,
    leaving: Leaving,
    stack: Option<StackRef>,
    end: StackEnd,
    told: Told,
}

/// Which events have told of a switch or a wake-up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    /// The one that tells of every switch.
    Every,
    /// The one that copies stacks.
    Copying,
    Both,
}

/// Who woke it, and when.
struct Woken {
    time: Mono,
    cpu: CpuId,
    /// Number of the newest switch on that CPU: the waker is the one that runs since.
    switch: u64,
    told: Told,
    thread: Comm,
    within: super::format::Within,
    stack: Option<StackRef>,
    cut: bool,
}

enum State {
    /// On a CPU, as far as is known.
    Runs,
    /// Had to leave its CPU.
    Preempted(Mono),
    Waits(Place),
}

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
    /// Switches seen of each CPU.
    switches: Vec<u64>,
    newest: Mono,
    /// Switches older than this were lost: what a thread has done since before is not known.
    doubt: Mono,
    /// Wake-ups older than this were lost.
    waker_doubt: Mono,
    /// Losses of switches and of wake-ups that begin later than the newest record.
    coming: [Option<Loss>; 2],
    /// The doubt for which the table was last searched for threads of which nothing is known.
    swept: Mono,
    /// What was seen.
    pub counts: WaitCounts,
}

impl Machine {
    /// One that leaves out waits shorter than `min_wait`.
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
            switches: Vec::new(),
            newest: Mono(0),
            doubt: Mono(0),
            waker_doubt: Mono(0),
            coming: [None; 2],
            swept: Mono(0),
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

    /// Switches are missing, or may be. Every wait that began before the end of that time and had not ended
    /// before its begin is unknown. Told before the records of that time.
    pub fn lost_switches(&mut self, loss: Loss) {
        self.coming[0] = Some(loss.with(self.coming[0]));
    }

    /// Wake-ups are missing, or may be: it is not known who ended the waits of that time.
    pub fn lost_wakings(&mut self, loss: Loss) {
        self.coming[1] = Some(loss.with(self.coming[1]));
    }

    /// Begins a record. False: it is older than one that was used, and must be left alone; what it would have
    /// said is lost.
    #[must_use]
    pub fn begin(&mut self, at: At) -> bool {
        self.reach(at.time);
        if at.time < self.newest {
            self.counts.late += 1;
            self.doubt = self.doubt.max(self.newest);
            return false;
        }
        self.newest = at.time;
        true
    }

    fn reach(&mut self, time: Mono) {
        let doubts = [&mut self.doubt, &mut self.waker_doubt];
        for (doubt, coming) in doubts.into_iter().zip(&mut self.coming) {
            if let Some(loss) = coming.take_if(|loss| time >= loss.from) {
                *doubt = (*doubt).max(loss.until);
            }
        }
    }

    /// A thread leaves its CPU, to wait. `copied`: told by the event that copies stacks, which tells of a
    /// switch beside the one that tells of every switch, before it or after.
    pub fn waits(&mut self, at: At, tid: Tid, waiting: &Waiting<'_>, copied: bool) {
        let switch = self.switch_of(at.cpu, !copied);
        let known = self.threads.get_mut(&tid);
        if let Some(thread) = known
            && let State::Waits(place) = &mut thread.state
            && place.since >= self.doubt
            && place.is_of(at.cpu, switch, copied)
        {
            // The same switch, told twice: the stack that was copied counts.
            if copied {
                let kept = keep(&mut self.stacks, &mut self.counts, waiting.frames);
                let before = std::mem::replace(&mut place.stack, kept);
                place.end = waiting.end;
                before
                    .into_iter()
                    .for_each(|stack| self.stacks.release(stack));
            } else {
                place.since = at.time;
            }
            place.told = Told::Both;
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
            told: if copied { Told::Copying } else { Told::Every },
        });
        self.set(at.time, tid, waiting.who, state);
    }

    /// A thread that could go on leaves its CPU.
    pub fn preempted(&mut self, at: At, tid: Tid, who: Who) {
        self.switch_of(at.cpu, true);
        self.set(at.time, tid, who, State::Preempted(at.time));
        self.counts.preempted += 1;
    }

    /// A thread that nobody wants to know of, or not any more, leaves its CPU; or the idle task.
    pub fn passes(&mut self, at: At, tid: Tid) {
        self.ends(at, tid);
    }

    /// A thread leaves its CPU for ever.
    pub fn ends(&mut self, at: At, tid: Tid) {
        self.switch_of(at.cpu, true);
        if let Some(thread) = self.threads.remove(&tid) {
            self.drop_thread(at.time, thread.state, thread.woken);
        }
    }

    /// A thread runs. `emit` gets the wait that ends with that, if one does.
    pub fn runs(&mut self, at: At, tid: Tid, emit: &mut impl FnMut(Wait<'_>)) {
        let Some(thread) = self.threads.get_mut(&tid) else {
            return;
        };
        let woken = thread.woken.take();
        match std::mem::replace(&mut thread.state, State::Runs) {
            State::Waits(place) if place.since >= self.doubt => {
                let who = thread.who;
                self.finish_wait(at.time, (who, &place), woken.as_ref(), false, emit);
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
            state => self.drop_thread(at.time, state, woken),
        }
    }

    /// Who a thread was when it was last seen to leave. One that ends leaves some more times when its process
    /// has forgotten it.
    pub fn who(&self, tid: Tid) -> Option<Who> {
        self.threads.get(&tid).map(|thread| thread.who)
    }

    /// True when it is of use to tell who wakes this thread.
    pub fn wants_waker(&self, tid: Tid) -> bool {
        self.threads.contains_key(&tid)
    }

    /// A thread is woken. `copied`: told by the event that copies stacks, as in [`Machine::waits`].
    ///
    /// Where both events tell of a wake-up, the thread on the CPU is the same and woke the same thread, and has
    /// not been away in between: of one that woke it twice, the first time to no effect, the newest stack that
    /// is not a copy counts.
    pub fn woken(&mut self, at: At, tid: Tid, waker: &Waker<'_>, copied: bool) {
        let switch = self.switch_of(at.cpu, false);
        let Some(thread) = self.threads.get_mut(&tid) else {
            return;
        };
        let told = if copied { Told::Copying } else { Told::Every };
        let known = thread.woken.as_mut();
        let known = known.filter(|known| (known.cpu, known.switch) == (at.cpu, switch));
        if let Some(known) = known
            && known.told != Told::Both
            && known.told != told
        {
            known.told = Told::Both;
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
        let before = thread.woken.replace(Woken {
            time: at.time,
            cpu: at.cpu,
            switch,
            told,
            thread: waker.thread,
            within: waker.within,
            stack,
            cut: waker.cut,
        });
        self.release(None, before);
    }

    /// Gives out the waits that go on at `end`, up to it, and forgets all threads.
    pub fn finish(&mut self, end: Mono, emit: &mut impl FnMut(Wait<'_>)) {
        self.reach(end);
        let mut threads = std::mem::take(&mut self.threads);
        for (_, thread) in threads.drain() {
            match thread.state {
                State::Waits(place) if place.since >= self.doubt => {
                    let woken = thread.woken;
                    self.finish_wait(end, (thread.who, &place), woken.as_ref(), true, emit);
                    self.release(place.stack, woken);
                }
                State::Preempted(since) if since >= self.doubt => {
                    self.counts.preempted_ns += end.since(since).as_nanos() as u64;
                    self.release(None, thread.woken);
                }
                state => self.drop_thread(end, state, thread.woken),
            }
        }
    }

    fn finish_wait(
        &mut self,
        end: Mono,
        (who, place): (Who, &Place),
        woken: Option<&Woken>,
        ongoing: bool,
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
        let woken = woken.filter(|woken| woken.time >= self.doubt.max(self.waker_doubt));
        let ending = match woken {
            _ if ongoing => Ending::Ongoing,
            Some(woken) => Ending::Woken(Waker {
                thread: woken.thread,
                within: woken.within,
                frames: frames(&woken.stack),
                cut: woken.cut,
            }),
            None => Ending::Unseen,
        };
        let counts = &mut self.counts;
        counts.waits += 1;
        counts.waits_ns += length_ns;
        counts.ongoing += u64::from(ongoing);
        counts.wakers_unseen += u64::from(ending == Ending::Unseen);
        if let Some(woken) = woken {
            let since = woken.time.max(place.since);
            counts.delay_ns += end.since(since).as_nanos() as u64;
        }
        emit(Wait {
            who,
            leaving: place.leaving,
            frames: frames(&place.stack),
            end: if place.stack.is_some() {
                place.end
            } else {
                StackEnd::Unresolved
            },
            start: place.since,
            length_ns,
            ending,
        });
    }

    /// Number of the switch on a CPU that is the newest, or that begins with this record.
    fn switch_of(&mut self, cpu: CpuId, begins: bool) -> u64 {
        let at = (cpu.0 as usize).min(CPUS_MAX - 1);
        if at >= self.switches.len() {
            self.switches.resize(at + 1, 0);
        }
        self.switches[at] += u64::from(begins);
        self.switches[at]
    }

    /// Sets the state of a thread that ran until now.
    fn set(&mut self, now: Mono, tid: Tid, who: Who, state: State) {
        if let Some(known) = self.threads.get_mut(&tid) {
            known.who = who;
            match std::mem::replace(&mut known.state, state) {
                // A wake-up that came while it still ran is that of the wait that begins.
                State::Runs => {}
                // It left without having come back.
                state => {
                    let woken = known.woken.take();
                    self.drop_thread(now, state, woken);
                }
            }
            return;
        }
        if self.threads.len() >= self.threads_max {
            self.sweep(now);
        }
        if self.threads.len() < self.threads_max {
            self.counts.begun_before += 1;
            let woken = None;
            self.threads.insert(tid, Thread { who, state, woken });
            return;
        }
        self.counts.threads_refused += 1;
        if let State::Waits(place) = state {
            self.release(place.stack, None);
        }
    }

    /// Forgets what a thread did, as not known.
    fn drop_thread(&mut self, now: Mono, state: State, woken: Option<Woken>) {
        let mut stack = None;
        if let State::Waits(place) = state {
            self.counts.unknown += 1;
            self.counts.unknown_ns += now.since(place.since).as_nanos() as u64;
            stack = place.stack;
        }
        self.release(stack, woken);
    }

    fn release(&mut self, stack: Option<StackRef>, woken: Option<Woken>) {
        let waker = woken.and_then(|woken| woken.stack);
        for stack in stack.into_iter().chain(waker) {
            self.stacks.release(stack);
        }
    }

    /// Forgets threads of which nothing is known, once after each loss: some of them have ended.
    fn sweep(&mut self, now: Mono) {
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
            self.drop_thread(now, thread.state, thread.woken);
        }
        self.threads = threads;
    }
}

impl Place {
    /// True when a record tells of the switch that this is of.
    fn is_of(&self, cpu: CpuId, switch: u64, copied: bool) -> bool {
        let same = match self.told {
            // The copy comes after: of the newest switch.
            Told::Every => copied && self.switch == switch,
            // It came before: of the one after that.
            Told::Copying => !copied && self.switch + 1 == switch,
            Told::Both => false,
        };
        self.cpu == cpu && same
    }
}

fn keep(stacks: &mut Stacks, counts: &mut WaitCounts, frames: &[RawFrame]) -> Option<StackRef> {
    let kept = stacks.keep(frames);
    counts.stacks_refused += u64::from(kept.is_none());
    kept
}
