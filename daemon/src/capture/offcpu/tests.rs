//! The machine beside a model: a small scheduler that knows what each thread did when.

use super::format::{Leaving, Within};
use super::machine::{At, Loss, Machine, Waiting};
use super::{Ending, Wait, WaitCounts, Waker, Who};
use crate::aggregate::batch::RawFrame;
use crate::ids::{CgroupId, Comm, CpuId, Pid, Tid};
use crate::time::Mono;
use profile::StackEnd;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

const CPUS: usize = 3;
const THREADS: u32 = 7;
/// Waker of a wait that nobody was seen to end.
const UNSEEN: u32 = u32::MAX;

/// Which of the two events tells of a switch first, and whether the one that copies does at all.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Copied {
    No,
    Before,
    After,
}

#[derive(Clone, Copy, Debug)]
enum Told {
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
    told: Told,
}

/// A wait as the model knows it and as the machine gives it out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Known {
    start: u64,
    tid: u32,
    length: u64,
    leaving: String,
    /// Thread that woke it; `None`: it goes on.
    waker: Option<u32>,
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

/// A machine of some CPUs whose threads are moved by what a test draws.
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
            time: Mono(self.now),
            cpu: CpuId(cpu as u32),
        }
    }

    fn wake(&mut self, woken: u32, cpu: usize) {
        let waker = self.current[cpu];
        let told = Told::Waking { woken, waker };
        self.events.push(Event {
            at: self.at(cpu),
            told,
        });
        if let Since::Waits(known) = &mut self.since[woken as usize] {
            known.waker = Some(waker);
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

    /// Tells of a wake-up of a thread that runs: of no effect, or of effect when it then blocks.
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
        let told = Told::Switch {
            prev,
            leaving,
            next,
            copied,
        };
        self.events.push(Event {
            at: self.at(cpu),
            told,
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
                // Woken between making up its mind and leaving. It must leave, or the wake-up is of no effect.
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
                let limit = RawFrame::Unknown(profile::Unnamed::Limit);
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
            frames: wait.frames.to_vec(),
        });
    }

    fn tell(&mut self, event: &Event) {
        let Run { machine, found } = self;
        let at = event.at;
        if !machine.begin(at) {
            return;
        }
        match event.told {
            Told::Waking { woken, waker } => {
                let waker = Waker {
                    thread: Comm::from_bytes(&[b'a' + waker as u8]),
                    within: Within::Thread,
                    frames: &[RawFrame::Kernel(waker.into())],
                    cut: false,
                };
                machine.woken(at, Tid(woken), &waker, false);
            }
            Told::Switch {
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
                let mut waits = |copy: bool| {
                    let waiting = Waiting {
                        who,
                        leaving,
                        frames: &place(prev, at.time.0, copy),
                        end: StackEnd::Complete,
                    };
                    machine.waits(at, Tid(prev), &waiting, copy);
                };
                match leaving {
                    _ if prev == 0 => machine.passes(at, Tid(0)),
                    Leaving::Preempted => machine.preempted(at, Tid(prev), who),
                    Leaving::Dead => machine.ends(at, Tid(prev)),
                    _ => {
                        if copied == Copied::Before {
                            waits(true);
                        }
                        waits(false);
                        if copied == Copied::After {
                            waits(true);
                        }
                    }
                }
                if next != 0 {
                    machine.runs(at, Tid(next), &mut |wait| Run::note(found, &wait));
                }
            }
        }
    }

    fn finish(mut self, now: u64) -> (Vec<Known>, WaitCounts) {
        let found = &mut self.found;
        self.machine
            .finish(Mono(now), &mut |wait| Run::note(found, &wait));
        self.found.sort();
        (self.found, self.machine.counts)
    }
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = (0u8..12, 0..CPUS, 0usize..8, 0u8..8, 0u8..5, 1u64..50);
    proptest::collection::vec(op, 0..250)
}

proptest! {
    #[test]
    fn waits_are_those_of_the_model_and_time_adds_up(ops in ops(), min_wait in 0u64..120) {
        let world = world(&ops);
        let mut run = Run::new(min_wait);
        world.events.iter().for_each(|event| run.tell(event));
        let (found, counts) = run.finish(world.now);
        let all = &world.waits;
        let mut expected: Vec<_> = all.iter().filter(|wait| wait.length >= min_wait).cloned().collect();
        expected.sort();
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
        let loss = Loss { from: Mono(from), until: Mono(until) };
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
            Known { waker, ..known.clone() } == *wait
        };
        for wait in &found {
            prop_assert!(world.waits.iter().any(|known| same(known, wait)), "never was: {wait:?}");
        }
        for known in &world.waits {
            let sure = known.start >= until || known.start + known.length < from;
            prop_assert!(!sure || found.iter().any(|wait| same(known, wait)), "left out: {known:?}");
        }
    }

    #[test]
    fn where_only_wake_ups_are_missing_every_wait_is_known(
        ops in ops(), from in 0u64..4_000, length in 1u64..800
    ) {
        let world = world(&ops);
        let (from, until) = (1_000 + from, 1_000 + from + length);
        let mut run = Run::new(0);
        run.machine.lost_wakings(Loss { from: Mono(from), until: Mono(until) });
        for event in &world.events {
            let missing = (from..until).contains(&event.at.time.0);
            if !missing || !matches!(event.told, Told::Waking { .. }) {
                run.tell(event);
            }
        }
        let (found, _) = run.finish(world.now);
        let mut expected = world.waits.clone();
        expected.sort();
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
        let limit = [RawFrame::Unknown(profile::Unnamed::Limit)];
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

fn at(time: u64, cpu: u32) -> At {
    At {
        time: Mono(time),
        cpu: CpuId(cpu),
    }
}

fn sleep(run: &mut Run, time: u64, cpu: u32, tid: u32, next: u32) {
    let told = Told::Switch {
        prev: tid,
        leaving: Leaving::Sleep,
        next,
        copied: Copied::No,
    };
    run.tell(&Event {
        at: at(time, cpu),
        told,
    });
}

fn resume(run: &mut Run, time: u64, cpu: u32, tid: u32) {
    sleep(run, time, cpu, 0, tid);
}

#[test]
fn a_wait_that_began_before_the_capture_is_not_known_and_counted() {
    let mut run = Run::new(0);
    resume(&mut run, 10, 0, 5);
    sleep(&mut run, 20, 0, 5, 0);
    let (found, counts) = run.finish(50);
    assert_eq!(found.len(), 1);
    assert_eq!(
        (found[0].start, found[0].length, found[0].waker),
        (20, 30, None)
    );
    assert_eq!((counts.begun_before, counts.ongoing), (1, 1));
}

#[test]
fn a_thread_id_used_again_does_not_go_on_with_the_wait_of_the_one_before() {
    let mut run = Run::new(0);
    sleep(&mut run, 10, 0, 5, 0);
    // It comes back and ends, and another one gets its id.
    resume(&mut run, 20, 0, 5);
    run.machine.ends(at(30, 0), Tid(5));
    resume(&mut run, 90, 0, 5);
    sleep(&mut run, 95, 0, 5, 0);
    resume(&mut run, 99, 0, 5);
    let (found, _) = run.finish(100);
    let found: Vec<_> = found.iter().map(|wait| (wait.start, wait.length)).collect();
    assert_eq!(found, [(10, 10), (95, 4)]);
}

#[test]
fn a_thread_that_left_twice_or_came_twice_waited_for_an_unknown_time() {
    let mut run = Run::new(0);
    sleep(&mut run, 10, 0, 5, 0);
    sleep(&mut run, 30, 1, 5, 0);
    resume(&mut run, 40, 1, 5);
    resume(&mut run, 70, 0, 5);
    let (found, counts) = run.finish(100);
    let found: Vec<_> = found.iter().map(|wait| (wait.start, wait.length)).collect();
    assert_eq!(found, [(30, 10)]);
    assert_eq!((counts.unknown, counts.unknown_ns), (2, 20));
}

#[test]
fn a_record_that_comes_late_is_as_a_lost_one() {
    let mut run = Run::new(0);
    sleep(&mut run, 10, 0, 5, 0);
    sleep(&mut run, 30, 0, 6, 0);
    resume(&mut run, 20, 1, 5);
    resume(&mut run, 40, 0, 6);
    resume(&mut run, 50, 0, 5);
    let (found, counts) = run.finish(100);
    let found: Vec<_> = found.iter().map(|wait| (wait.tid, wait.length)).collect();
    assert_eq!(found, [(6, 10)]);
    assert_eq!((counts.late, counts.unknown), (1, 1));
}

#[test]
fn a_full_table_has_room_again_when_a_loss_made_its_threads_unknown() {
    let mut run = Run::new(0);
    run.machine = Machine::with_bounds(Duration::ZERO, 2, 64);
    sleep(&mut run, 10, 0, 1, 0);
    sleep(&mut run, 11, 0, 2, 0);
    sleep(&mut run, 12, 0, 3, 0);
    assert_eq!(run.machine.counts.threads_refused, 1);
    run.machine.lost_switches(Loss {
        from: Mono(20),
        until: Mono(20),
    });
    sleep(&mut run, 21, 0, 3, 0);
    let (found, counts) = run.finish(30);
    assert_eq!(found.len(), 1);
    assert_eq!((counts.threads_refused, counts.unknown), (1, 2));
}

#[test]
fn time_in_the_queue_for_a_cpu_is_told_apart() {
    let mut run = Run::new(0);
    sleep(&mut run, 10, 0, 5, 0);
    let told = Told::Waking { woken: 5, waker: 2 };
    run.tell(&Event {
        at: at(30, 1),
        told,
    });
    resume(&mut run, 37, 0, 5);
    let (found, counts) = run.finish(100);
    assert_eq!((found[0].length, found[0].waker), (27, Some(2)));
    assert_eq!((counts.waits_ns, counts.delay_ns), (27, 7));
}

#[test]
fn a_thread_that_is_not_wanted_any_more_is_forgotten() {
    let mut run = Run::new(0);
    sleep(&mut run, 10, 0, 5, 0);
    resume(&mut run, 20, 0, 5);
    run.machine.passes(at(30, 0), Tid(5));
    assert_eq!(run.machine.who(Tid(5)), None);
    resume(&mut run, 40, 0, 5);
    let (found, counts) = run.finish(50);
    assert_eq!((found.len(), counts.unknown), (1, 0));
}
