//! Walks by what the last one found are those that would be without it.

use super::super::StackBuffer;
use super::super::engine::Engine;
use super::*;
use crate::info::rule::{Rule, Step};
use crate::info::state::{REGISTERS, number};
use crate::process::ProcessTable;
use crate::process::space::Backing;
use host::ids::{Avma, Pid};
use host::time::MonotonicTime;
use perf::record::{MapFile, Mmap, UserState};
use profile::StackEnd;
use proptest::prelude::*;

/// Where the program is mapped, and the first address beyond the stack.
const CODE: u64 = 0x40_0000;
const TOP: u64 = 0x7fff_0000;
const WORDS: usize = 4096;
/// Each function has so many bytes, calls at three places, and is interrupted at a fourth.
const FUNCTION: u64 = 0x100;
const CALLS: [u64; 3] = [0x10, 0x20, 0x30];
const STRUCK: u64 = 0x40;
/// Kinds of functions; the first is where the stack starts.
const KINDS: u64 = 6;

const SAME: i16 = i16::MIN;

/// The rule of a kind of function: what it pushes is in [`Thread::call`].
fn rule_of(kind: u64) -> Rule {
    let saved = |base: u16, offset, rbx, rbp| Rule {
        step: Step::Saved {
            base: base as u8,
            offset,
            places: [-1, rbx, rbp, SAME, SAME, SAME, SAME],
        },
        ..Rule::UNKNOWN
    };
    match kind {
        0 => Rule::OUTERMOST,
        1 => saved(number::RSP, 16, SAME, SAME),
        2 => saved(number::RSP, 32, SAME, -2),
        3 => saved(number::RBP, 16, SAME, -2),
        4 => saved(number::RBX, 32, -3, SAME),
        _ => Rule {
            derived: true,
            ..saved(number::RSP, 24, -2, SAME)
        },
    }
}

/// A thread that calls and returns as its functions' rules say.
struct Thread {
    memory: Vec<u64>,
    sp: u64,
    rbp: u64,
    rbx: u64,
    kind: u64,
    /// What each function in progress returns to.
    callers: Vec<(u64, u64, u64, u64)>,
}

impl Thread {
    fn new() -> Thread {
        Thread {
            memory: vec![0; WORDS],
            sp: TOP - 64,
            rbp: 0,
            rbx: 0,
            kind: 0,
            callers: Vec::new(),
        }
    }

    fn push(&mut self, word: u64) {
        self.sp -= 8;
        let at = (TOP - self.sp) as usize / 8;
        self.memory[WORDS - at] = word;
    }

    fn call(&mut self, kind: u64, from: usize, noise: u64) {
        self.callers.push((self.sp, self.rbp, self.rbx, self.kind));
        let (rbp, rbx) = (self.rbp, self.rbx);
        self.push(CODE + self.kind * FUNCTION + CALLS[from]);
        self.kind = kind;
        match kind {
            1 => self.push(noise),
            2 => {
                self.push(rbp);
                self.rbp = noise;
                self.push(noise);
                self.push(noise);
            }
            3 => {
                self.push(rbp);
                self.rbp = self.sp;
                (0..noise % 5).for_each(|_| self.push(noise));
            }
            4 => {
                self.push(noise);
                self.push(rbx);
                self.push(noise);
                self.rbx = self.sp;
                (0..noise % 3).for_each(|_| self.push(noise));
            }
            _ => {
                self.push(rbx);
                self.rbx = noise;
                self.push(noise);
            }
        }
    }

    fn returns(&mut self) {
        if let Some(caller) = self.callers.pop() {
            (self.sp, self.rbp, self.rbx, self.kind) = caller;
        }
    }

    fn registers(&self) -> Option<Registers> {
        // The kernel's order: ax, bx, cx, dx, si, di, bp, sp, ip, r8 to r15.
        let mut words = [0; REGISTERS];
        words[1] = self.rbx;
        words[6] = self.rbp;
        words[7] = self.sp;
        words[8] = CODE + self.kind * FUNCTION + STRUCK;
        let bytes: Vec<u8> = words
            .iter()
            .flat_map(|word: &u64| word.to_le_bytes())
            .collect();
        let user = UserState {
            is_64: true,
            regs: &bytes,
            stack: &[],
            full: false,
        };
        Registers::from_sample(&user)
    }

    /// The stack from the stack pointer on, at most so many bytes.
    fn copy(&self, most: usize) -> Vec<u8> {
        let from = WORDS - (TOP - self.sp) as usize / 8;
        let bytes = self.memory[from..]
            .iter()
            .flat_map(|word| word.to_le_bytes());
        bytes.take(most).collect()
    }
}

fn processes() -> ProcessTable {
    let mut table = ProcessTable::new();
    table.fork(Pid(7), Tid(7), Pid(1), Tid(1), MonotonicTime(1));
    map(&mut table, CODE, 3);
    table
}

fn map(table: &mut ProcessTable, start: u64, inode: u64) {
    let mapped = Mmap {
        pid: Pid(7),
        start,
        len: 0x1000,
        file_offset: 0,
        file: MapFile::Inode {
            major: 8,
            minor: 1,
            inode,
            generation: 0,
        },
        private: true,
        path: b"/usr/bin/thing",
    };
    table.mmap(&mapped, MonotonicTime(2));
}

/// An engine that knows the rules of all places that a stack may have.
fn engine(process: &Process) -> Engine {
    let mut engine = Engine::new(1 << 20);
    let mapping = process.space().find(Avma(CODE)).expect("mapped");
    let Backing::File(file) = mapping.backing else {
        panic!("a file")
    };
    for kind in 0..KINDS {
        for at in CALLS.map(|call| call - 1).into_iter().chain([STRUCK]) {
            let offset = mapping.offset_of(Avma(CODE + kind * FUNCTION + at));
            engine.modules.keep_rule(file, offset, rule_of(kind));
        }
    }
    engine
}

#[derive(Clone, Debug)]
enum Event {
    Call(u64, usize, u64),
    Return(u8),
    Sample { most: usize, depth: usize },
}

fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (1..KINDS, 0..CALLS.len(), 0..8u64).prop_map(|(kind, from, noise)| {
            Event::Call(kind, from, noise * 0x1111)
        }),
        2 => (0..4u8).prop_map(Event::Return),
        4 => prop_oneof![Just((1 << 15, 128)), (0..600usize, 1..20usize)]
            .prop_map(|(most, depth)| Event::Sample { most, depth }),
    ]
}

/// Samples a thread twice: by its last walk, and without. Gives how both ended and what was taken.
fn both(
    engines: &mut (Engine, Engine),
    process: &Process,
    thread: &Thread,
    (most, depth): (usize, usize),
) -> Option<((StackEnd, StackBuffer), (StackEnd, StackBuffer))> {
    let registers = thread.registers()?;
    let bytes = thread.copy(most);
    let stack = StackCopy::new(thread.sp, &bytes, bytes.len() == most);
    let (mut again, mut anew) = (StackBuffer::default(), StackBuffer::default());
    let now = MonotonicTime(9);
    let who = (process, Tid(7));
    let first = engines
        .0
        .walk_again(who, registers, stack, now, depth, &mut again);
    let second = engines
        .1
        .walk(process, registers, stack, now, depth, &mut anew);
    engines.0.count_copy();
    engines.1.count_copy();
    Some(((first, again), (second, anew)))
}

proptest! {
    #[test]
    fn a_walk_by_the_last_one_is_the_one_that_would_be_without(
        events in prop::collection::vec(events(), 1..300)
    ) {
        let table = processes();
        let process = table.get(Pid(7)).expect("forked");
        let mut engines = (engine(process), engine(process));
        let mut thread = Thread::new();
        for event in events {
            match event {
                Event::Call(kind, from, noise) if thread.callers.len() < 60 => {
                    thread.call(kind, from, noise);
                }
                Event::Call(..) => {}
                Event::Return(frames) => (0..frames).for_each(|_| thread.returns()),
                Event::Sample { most, depth } => {
                    let walks = both(&mut engines, process, &thread, (most, depth));
                    let Some((again, anew)) = walks else { return Ok(()) };
                    prop_assert_eq!(again.0, anew.0);
                    prop_assert_eq!(again.1.frames, anew.1.frames);
                    prop_assert_eq!(again.1.files, anew.1.files);
                    prop_assert_eq!(engines.0.counts.copies, engines.1.counts.copies);
                }
            }
        }
    }
}

/// A thread in a function of each kind, outermost first, walked once.
fn walked_once(kinds: &[u64]) -> (ProcessTable, Thread, (Engine, Engine)) {
    let table = processes();
    let process = table.get(Pid(7)).expect("forked");
    let mut engines = (engine(process), engine(process));
    let mut thread = Thread::new();
    for &kind in kinds {
        thread.call(kind, 0, 3);
    }
    both(&mut engines, process, &thread, (1 << 15, 128));
    (table, thread, engines)
}

#[test]
fn outer_frames_are_taken_from_the_last_walk_of_the_thread() {
    let (table, mut thread, mut engines) = walked_once(&[1, 2, 3, 4, 1, 2]);
    let process = table.get(Pid(7)).expect("forked");
    thread.returns();
    thread.returns();
    thread.call(3, 1, 5);
    if both(&mut engines, process, &thread, (1 << 15, 128)).is_none() {
        return;
    }
    let counts = engines.0.last_walks.counts;
    // The call is at another place of the function of kind 4; its callers are as they were.
    assert_eq!((counts.joined, counts.frames), (1, 4));
}

#[test]
fn where_something_else_was_mapped_nothing_is_taken() {
    let (mut table, thread, mut engines) = walked_once(&[1, 2, 3, 1]);
    map(&mut table, CODE, 4);
    let process = table.get(Pid(7)).expect("forked");
    let Some((again, anew)) = both(&mut engines, process, &thread, (1 << 15, 128)) else {
        return;
    };
    assert_eq!(again.0, anew.0);
    assert_eq!(engines.0.last_walks.counts.joined, 0);
}

#[test]
fn memory_of_last_walks_is_bounded() {
    let table = processes();
    let process = table.get(Pid(7)).expect("forked");
    let mut engine = engine(process);
    let mut thread = Thread::new();
    (0..200).for_each(|_| thread.call(4, 0, 3));
    let Some(registers) = thread.registers() else {
        return;
    };
    let bytes = thread.copy(1 << 15);
    let stack = StackCopy::new(thread.sp, &bytes, false);
    for tid in 0..4 * THREADS as u32 {
        let mut out = StackBuffer::default();
        let who = (process, Tid(tid));
        engine.walk_again(who, registers, stack, MonotonicTime(9), 512, &mut out);
        let walks = &engine.last_walks.walks;
        let held: usize = walks.iter().map(LastWalk::heap_bytes).sum();
        assert_eq!(held, engine.last_walks.bytes);
        assert!(held <= BYTES_MAX);
    }
    assert!(engine.last_walks.counts.emptied > 0);
}
