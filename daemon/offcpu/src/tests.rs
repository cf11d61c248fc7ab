//! Tests the machine against a model: a small scheduler that knows what each thread did when.

mod cases;

use super::format::{Leaving, Within};
use super::machine::{At, Loss, Machine, Waiting};
use super::{Ending, Wait, WaitCounts, Waker, Who};
use host::frame::RawFrame;
use host::ids::{CgroupId, Comm, CpuId, Pid, Tid};
use host::time::MonotonicTime;
use profile::StackEnd;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

const CPUS: usize = 3;
const THREADS: u32 = 7;
/// Waker of a wait that nobody was seen to end.
const UNSEEN: u32 = u32::MAX;

/// Which of the two events reports a switch first, and whether the copying one does at all.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Copied {
    No,
    Before,
    After,
}

#[derive(Clone, Copy, Debug)]
enum EventKind {
    Switch {
        prev: u32,
        leaving: Leaving,
        next: u32,
        copied: Copied,
    },
    Waking {
        woken: u32,
        waker: u32,
    },
}

#[derive(Clone, Copy, Debug)]
struct Event {
    at: At,
    kind: EventKind,
}

/// CPUs with an idle task that records no switch.
type Silent = [bool; CPUS];

/// A wait as the model knows it and as the machine gives it out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Known {
    start: u64,
    tid: u32,
    length: u64,
    leaving: String,
    /// Thread that woke it; `None`: it goes on.
    waker: Option<u32>,
    /// When that was; 0: not known. The machine does not say it.
    woken: u64,
    frames: Vec<RawFrame>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    OnCpu,
    Ready,
    Blocked,
    Dead,
}

/// What a thread was last seen to do, and since when; the first time of each is not known.
#[derive(Clone, Debug)]
enum Since {
    Unknown,
    Runs(u64),
    Preempted(u64),
    Waits(Known),
}

/// A machine with some CPUs; the test's random choices move its threads.
struct World {
    now: u64,
    current: [u32; CPUS],
    states: Vec<State>,
    since: Vec<Since>,
    events: Vec<Event>,
    waits: Vec<Known>,
    running_ns: u64,
    preempted_ns: u64,
    wall_ns: u64,
    first: BTreeMap<u32, u64>,
}

fn place(tid: u32, start: u64, copied: bool) -> Vec<RawFrame> {
    vec![
        RawFrame::Kernel(start),
        RawFrame::Kernel(u64::from(tid) << 1 | u64::from(copied)),
    ]
}

impl World {
    /// Every other thread waits, for nobody knows how long.
    fn new() -> World {
        let state = |tid| {
            if tid % 2 == 0 {
                State::Ready
            } else {
                State::Blocked
            }
        };
        World {
            now: 1_000,
            current: [0; CPUS],
            states: (0..=THREADS).map(state).collect(),
            since: vec![Since::Unknown; THREADS as usize + 1],
            events: Vec::new(),
            waits: Vec::new(),
            running_ns: 0,
            preempted_ns: 0,
            wall_ns: 0,
            first: BTreeMap::new(),
        }
    }

    fn at(&self, cpu: usize) -> At {
        At {
            time: MonotonicTime(self.now),
            cpu: CpuId(cpu as u32),
        }
    }

    fn wake(&mut self, woken: u32, cpu: usize) {
        let waker = self.current[cpu];
        let kind = EventKind::Waking { woken, waker };
        self.events.push(Event {
            at: self.at(cpu),
            kind,
        });
        if let Since::Waits(known) = &mut self.since[woken as usize] {
            known.waker = Some(waker);
            known.woken = self.now;
        }
    }

    /// Wakes a thread that is blocked, from a CPU.
    fn wake_any(&mut self, which: usize, cpu: usize) {
        let blocked: Vec<_> = (1..=THREADS)
            .filter(|&tid| self.states[tid as usize] == State::Blocked)
            .collect();
        if !blocked.is_empty() {
            let woken = blocked[which % blocked.len()];
            self.wake(woken, cpu);
            self.states[woken as usize] = State::Ready;
        }
    }

    /// Reports a wake-up of a running thread: it has no effect, or takes effect when the thread
    /// then blocks.
    fn wake_running(&mut self, cpu: usize, by: usize) -> Option<u32> {
        let woken = self.current[cpu];
        (woken != 0 && cpu != by).then(|| {
            self.wake(woken, by);
            self.current[by]
        })
    }

    fn switch(
        &mut self,
        cpu: usize,
        leaving: Leaving,
        which: usize,
        early: Option<u32>,
        copied: Copied,
    ) {
        let prev = self.current[cpu];
        let ready: Vec<_> = (1..=THREADS)
            .filter(|&tid| self.states[tid as usize] == State::Ready)
            .collect();
        let next = *ready.get(which % (ready.len() + 1)).unwrap_or(&0);
        if prev == next {
            return;
        }
        let leaving = if prev == 0 {
            Leaving::Preempted
        } else {
            leaving
        };
        let kind = EventKind::Switch {
            prev,
            leaving,
            next,
            copied,
        };
        self.events.push(Event {
            at: self.at(cpu),
            kind,
        });
        if prev != 0 {
            self.leave(prev, leaving, early, copied);
        }
        if next != 0 {
            self.arrive(next);
        }
        self.current[cpu] = next;
    }

    fn leave(&mut self, tid: u32, leaving: Leaving, early: Option<u32>, copied: Copied) {
        let at = tid as usize;
        if let Since::Runs(since) = self.since[at] {
            self.running_ns += self.now - since;
        }
        let known = self.first.contains_key(&tid);
        self.first.entry(tid).or_insert(self.now);
        // A thread that was never seen to leave is nobody yet.
        let early = early.map(|waker| if known { waker } else { UNSEEN });
        (self.states[at], self.since[at]) = match leaving {
            Leaving::Preempted => (State::Ready, Since::Preempted(self.now)),
            Leaving::Dead => {
                self.wall_ns += self.now - self.first[&tid];
                self.first.remove(&tid);
                (State::Dead, Since::Unknown)
            }
            _ => {
                let known = Known {
                    start: self.now,
                    tid,
                    length: 0,
                    leaving: format!("{leaving:?}"),
                    waker: early,
                    woken: early.map_or(0, |_| self.now),
                    frames: place(tid, self.now, copied != Copied::No),
                };
                let woken = if early.is_some() {
                    State::Ready
                } else {
                    State::Blocked
                };
                (woken, Since::Waits(known))
            }
        };
    }

    fn arrive(&mut self, tid: u32) {
        let at = tid as usize;
        self.states[at] = State::OnCpu;
        self.end(tid);
        self.since[at] = if self.first.contains_key(&tid) {
            Since::Runs(self.now)
        } else {
            Since::Unknown
        };
    }

    /// Ends what the thread does.
    fn end(&mut self, tid: u32) {
        match std::mem::replace(&mut self.since[tid as usize], Since::Unknown) {
            Since::Waits(known) => {
                let length = self.now - known.start;
                self.waits.push(Known { length, ..known });
            }
            Since::Preempted(since) => self.preempted_ns += self.now - since,
            Since::Runs(since) => self.running_ns += self.now - since,
            Since::Unknown => {}
        }
    }

    /// The end of the capture.
    fn finish(&mut self) {
        for tid in 1..=THREADS {
            if let Since::Waits(known) = &mut self.since[tid as usize] {
                known.waker = None;
            }
            if let Some(first) = self.first.get(&tid) {
                self.wall_ns += self.now - first;
            }
            self.end(tid);
        }
    }
}

type Op = (u8, usize, usize, u8, u8, u64);

fn world(ops: &[Op]) -> World {
    let mut world = World::new();
    for &(kind, cpu, which, how, copied, step) in ops {
        world.now += step;
        let leaving = match how % 8 {
            0..=2 => Leaving::Sleep,
            3 | 4 => Leaving::Uninterruptible,
            5 => Leaving::Stopped,
            6 => Leaving::Preempted,
            _ => Leaving::Dead,
        };
        let copied = match copied {
            0 => Copied::Before,
            1 => Copied::After,
            _ => Copied::No,
        };
        let cpu = cpu % CPUS;
        match kind {
            0..=3 => world.wake_any(which, cpu),
            4 => drop(world.wake_running(cpu, which % CPUS)),
            5 if !matches!(leaving, Leaving::Preempted | Leaving::Dead) => {
                // Woken between making up its mind and leaving. It must leave, or the wake-up is of
                // no effect.
                let waker = world.wake_running(cpu, which % CPUS);
                world.switch(cpu, leaving, which, waker, copied);
            }
            _ => world.switch(cpu, leaving, which, None, copied),
        }
    }
    world.now += 10;
    world.finish();
    world
}

/// A machine, and what it gave out.
struct Run {
    machine: Machine,
    found: Vec<Known>,
}

impl Run {
    fn new(min_wait: u64) -> Run {
        Run {
            machine: Machine::new(Duration::from_nanos(min_wait)),
            found: Vec::new(),
        }
    }

    fn note(found: &mut Vec<Known>, wait: &Wait<'_>) {
        let waker = match wait.ending {
            Ending::Woken(waker) => {
                let number = u32::from(waker.thread.0[0] - b'a');
                let limit = RawFrame::Unknown(profile::UnnamedReason::Limit);
                assert!([RawFrame::Kernel(number.into()), limit].contains(&waker.frames[0]));
                Some(number)
            }
            Ending::Ongoing => None,
            Ending::Unseen => Some(UNSEEN),
        };
        found.push(Known {
            start: wait.start.0,
            tid: wait.who.pid.0,
            length: wait.length_ns,
            leaving: format!("{:?}", wait.leaving),
            waker,
            woken: 0,
            frames: wait.frames.to_vec(),
        });
    }

    fn tell(&mut self, event: &Event) {
        let Run { machine, found } = self;
        let at = event.at;
        if !machine.start_record(at) {
            return;
        }
        match event.kind {
            EventKind::Waking { woken, waker } => {
                let waker = Waker {
                    thread: Comm::from_bytes(&[b'a' + waker as u8]),
                    cgroup: CgroupId(0),
                    within: Within::Thread,
                    frames: &[RawFrame::Kernel(waker.into())],
                    cut: false,
                };
                machine.woken(at, Tid(woken), &waker, false);
            }
            EventKind::Switch {
                prev,
                leaving,
                next,
                copied,
            } => {
                let who = Who {
                    pid: Pid(prev),
                    process: None,
                    thread: Comm::default(),
                    cgroup: CgroupId(1),
                };
                let mut waits = |copy: bool, found: &mut Vec<Known>| {
                    let emit = &mut |wait: Wait<'_>| Run::note(found, &wait);
                    let waiting = Waiting {
                        who,
                        leaving,
                        frames: &place(prev, at.time.0, copy),
                        end: StackEnd::Complete,
                    };
                    machine.waits(at, Tid(prev), &waiting, copy, emit);
                };
                match leaving {
                    _ if prev == 0 => machine.passes(at, Tid(0), &mut |_| {}),
                    Leaving::Preempted => {
                        let emit = &mut |wait: Wait<'_>| Run::note(found, &wait);
                        machine.preempted(at, Tid(prev), who, emit);
                    }
                    Leaving::Dead => {
                        let emit = &mut |wait: Wait<'_>| Run::note(found, &wait);
                        machine.ends(at, Tid(prev), emit);
                    }
                    _ => {
                        if copied == Copied::Before {
                            waits(true, found);
                        }
                        waits(false, found);
                        if copied == Copied::After {
                            waits(true, found);
                        }
                    }
                }
                machine.runs(at, Tid(next), &mut |wait| Run::note(found, &wait));
            }
        }
    }

    fn finish(mut self, now: u64) -> (Vec<Known>, WaitCounts) {
        let found = &mut self.found;
        self.machine
            .finish(MonotonicTime(now), &mut |wait| Run::note(found, &wait));
        self.found.sort();
        (self.found, self.machine.counts)
    }
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = (0u8..12, 0..CPUS, 0usize..8, 0u8..8, 0u8..5, 1u64..50);
    proptest::collection::vec(op, 0..250)
}

/// Without what the machine does not say.
fn seen(waits: &[Known]) -> Vec<Known> {
    let seen = waits.iter().map(|wait| Known {
        woken: 0,
        ..wait.clone()
    });
    let mut seen: Vec<_> = seen.collect();
    seen.sort();
    seen
}

proptest! {
    #[test]
    fn where_idle_tasks_are_silent_waits_end_with_their_wake_up_and_none_is_made_up(
        ops in ops(), silent in any::<Silent>()
    ) {
        let world = world(&ops);
        let mut run = Run::new(0);
        for event in &world.events {
            let idle = matches!(event.kind, EventKind::Switch { prev: 0, .. });
            if !idle || !silent[event.at.cpu.0 as usize] {
                run.tell(event);
            }
        }
        let (found, counts) = run.finish(world.now);
        let (mut complete_ns, mut most_ns) = (0, 0);
        for wait in &found {
            let mut known = world.waits.iter();
            let known = known.find(|it| (it.start, it.tid) == (wait.start, wait.tid));
            prop_assert!(known.is_some(), "never was: {:?}", wait);
            let known = known.unwrap();
            most_ns += known.length;
            let until_woken = known.woken.saturating_sub(known.start);
            // A wait without any sign of its end continues to the end of the capture.
            let ongoing = wait.waker.is_none() && wait.length == world.now - wait.start;
            // A thread that was woken before it left for the first time: of that wake-up nobody
            // knows. The next one need not have had an effect, and each later one may be taken for
            // the one before it.
            let mut of_thread = world.waits.iter().filter(|it| it.tid == wait.tid);
            let unknown =
                of_thread.any(|it| it.waker == Some(UNSEEN) && it.start <= wait.start);
            prop_assert!(
                wait.length == known.length || wait.length == until_woken || ongoing || unknown,
                "{:?} was {:?}", wait, known
            );
            most_ns += if unknown { wait.length } else { 0 };
            if wait.length == known.length {
                complete_ns += known.length;
            }
        }
        // Each wait that was seen to start is there, or counted as dropped.
        prop_assert_eq!(found.len() as u64 + counts.unknown, world.waits.len() as u64);
        prop_assert!(counts.waits_ns - counts.ongoing_ns <= most_ns);
        prop_assert!(complete_ns <= counts.waits_ns);
        if silent == [false; CPUS] {
            prop_assert_eq!((counts.estimated, counts.unknown), (0, 0));
            prop_assert!(counts.silent.is_empty());
            prop_assert_eq!(found, seen(&world.waits));
        }
    }

    #[test]
    fn where_threads_tell_of_their_arrival_silent_idle_tasks_hide_nothing(
        ops in ops(), silent in any::<Silent>()
    ) {
        let world = world(&ops);
        let mut run = Run::new(0);
        for event in &world.events {
            let at = event.at;
            let of_idle = matches!(event.kind, EventKind::Switch { prev: 0, .. });
            if !of_idle || !silent[at.cpu.0 as usize] {
                run.tell(event);
            }
            if let EventKind::Switch { next: next @ 1.., .. } = event.kind {
                let Run { machine, found } = &mut run;
                prop_assert!(machine.start_record(at));
                machine.arrives(at, Tid(next), &mut |wait| Run::note(found, &wait));
            }
        }
        let (found, counts) = run.finish(world.now);
        prop_assert_eq!(found, seen(&world.waits));
        prop_assert_eq!((counts.estimated, counts.unknown), (0, 0));
    }

    #[test]
    fn waits_are_those_of_the_model_and_time_adds_up(ops in ops(), min_wait in 0u64..120) {
        let world = world(&ops);
        let mut run = Run::new(min_wait);
        world.events.iter().for_each(|event| run.tell(event));
        let (found, counts) = run.finish(world.now);
        let all = &world.waits;
        let expected: Vec<_> = all.iter().filter(|wait| wait.length >= min_wait).cloned().collect();
        let expected = seen(&expected);
        prop_assert_eq!(&found, &expected);
        prop_assert_eq!(counts.waits, found.len() as u64);
        prop_assert_eq!(counts.short, (all.len() - found.len()) as u64);
        let unseen = found.iter().filter(|wait| wait.waker == Some(UNSEEN)).count();
        prop_assert_eq!((counts.unknown, counts.late), (0, 0));
        prop_assert_eq!(counts.wakers_unseen, unseen as u64);
        prop_assert_eq!(counts.preempted_ns, world.preempted_ns);
        let waited = counts.waits_ns + counts.short_ns;
        prop_assert_eq!(waited + counts.preempted_ns + world.running_ns, world.wall_ns);
        prop_assert!(counts.delay_ns <= counts.waits_ns);
    }

    #[test]
    fn where_records_are_missing_nothing_is_guessed(
        ops in ops(), from in 0u64..4_000, length in 1u64..800, cpu in 0..CPUS
    ) {
        let world = world(&ops);
        let (from, until) = (1_000 + from, 1_000 + from + length);
        let mut run = Run::new(0);
        let loss = Loss { from: MonotonicTime(from), until: MonotonicTime(until) };
        run.machine.lost_switches(loss);
        run.machine.lost_wakings(loss);
        for event in &world.events {
            let missing = (from..until).contains(&event.at.time.0) && event.at.cpu.0 == cpu as u32;
            if !missing {
                run.tell(event);
            }
        }
        let (found, _) = run.finish(world.now);
        let same = |known: &Known, wait: &Known| {
            let waker = if wait.waker == Some(UNSEEN) { wait.waker } else { known.waker };
            let until_woken = known.woken.saturating_sub(known.start);
            let estimate = Known { waker: wait.waker, length: until_woken, ..known.clone() };
            let known = [Known { waker, ..known.clone() }, estimate];
            known.map(|known| Known { woken: 0, ..known }).contains(wait)
        };
        for wait in &found {
            prop_assert!(world.waits.iter().any(|known| same(known, wait)), "never was: {wait:?}");
        }
        for known in &world.waits {
            let sure = known.start >= until || known.start + known.length < from;
            let there = |wait: &Known| same(known, wait) && wait.length == known.length;
            prop_assert!(!sure || found.iter().any(there), "left out: {known:?}");
        }
    }

    #[test]
    fn where_only_wake_ups_are_missing_every_wait_is_known(
        ops in ops(), from in 0u64..4_000, length in 1u64..800
    ) {
        let world = world(&ops);
        let (from, until) = (1_000 + from, 1_000 + from + length);
        let mut run = Run::new(0);
        run.machine.lost_wakings(Loss { from: MonotonicTime(from), until: MonotonicTime(until) });
        for event in &world.events {
            let missing = (from..until).contains(&event.at.time.0);
            if !missing || !matches!(event.kind, EventKind::Waking { .. }) {
                run.tell(event);
            }
        }
        let (found, _) = run.finish(world.now);
        let expected = seen(&world.waits);
        prop_assert_eq!(found.len(), expected.len());
        for (wait, known) in found.iter().zip(&expected) {
            let waker = if wait.waker == Some(UNSEEN) { wait.waker } else { known.waker };
            prop_assert_eq!(wait, &Known { waker, ..known.clone() });
        }
    }

    #[test]
    fn bounds_hold_and_what_they_refuse_is_counted(ops in ops()) {
        let world = world(&ops);
        let mut run = Run::new(0);
        run.machine = Machine::with_bounds(Duration::ZERO, 3, 24);
        for event in &world.events {
            run.tell(event);
            prop_assert!(run.machine.threads() <= 3);
        }
        let (found, counts) = run.finish(world.now);
        let limit = [RawFrame::Unknown(profile::UnnamedReason::Limit)];
        for wait in &found {
            let same = world.waits.iter().any(|known| {
                (known.start, known.tid, known.length) == (wait.start, wait.tid, wait.length)
            });
            prop_assert!(same && (wait.frames == limit || wait.frames.len() == 2));
        }
        let left_out = world.waits.len() - found.len();
        prop_assert!(counts.threads_refused >= left_out as u64);
    }
}
