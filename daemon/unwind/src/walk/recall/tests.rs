//! Tests remembering and recognizing waits, with handwritten stacks.

use super::*;
use crate::arch::{ORDER, PLACES};
use crate::info::state::{REGISTERS, number};
use crate::info::words::WORDS_MAX;
use crate::process::ProcessTable;
use host::ids::Pid;
use host::time::MonotonicTime;
use perf::record::UserState;

const SP: u64 = 0x7f00;
const NEAR: usize = 64;

/// A register that calls keep.
const KEPT: u16 = PLACES[1];

fn registers(kept: u64) -> Option<Registers> {
    let words = (0..REGISTERS).map(|at| match ORDER[at] {
        KEPT => kept,
        number::SP => SP,
        _ => at as u64,
    });
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    Registers::from_sample(&UserState {
        is_64: true,
        regs: &bytes,
        stack: &[],
        full: false,
    })
}

/// With processes 7 and 8.
fn process() -> ProcessTable {
    let mut table = ProcessTable::new();
    table.fork(Pid(7), Tid(7), Pid(1), Tid(1), MonotonicTime(1));
    table.fork(Pid(8), Tid(8), Pid(1), Tid(1), MonotonicTime(1));
    table
}

/// A stack with the word number in each word, except for some.
fn stack(changed: &[(usize, u64)]) -> Vec<u8> {
    let mut words: Vec<u64> = (0..64).collect();
    changed.iter().for_each(|&(at, word)| words[at] = word);
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Threads that wait at one place, as walks see them.
struct Rig {
    recall: Recall,
    table: ProcessTable,
    /// Who waits.
    who: (Pid, Tid),
}

impl Rig {
    fn new() -> Rig {
        Rig {
            recall: Recall::default(),
            table: process(),
            who: (Pid(7), Tid(7)),
        }
    }

    fn key(&self) -> ThreadKey {
        let process = self.table.get(self.who.0).expect("it was made");
        (process.id, self.who.1)
    }

    /// Walks of ever new threads of a process, until something is forgotten.
    fn fill(&mut self, pid: u32) {
        let before = self.recall.counts.forgotten;
        for tid in 100.. {
            self.who = (Pid(pid), Tid(tid));
            self.walks(&stack(&[]), &[1, 4], u64::from(tid));
            assert!(self.recall.heap_bytes() <= BYTES_MAX);
            if self.recall.counts.forgotten > before {
                return;
            }
        }
    }

    /// A walk of a large copy that reads these words and goes by rbx, and finds this frame.
    fn walks(&mut self, bytes: &[u8], words: &[u64], frame: u64) {
        let Some(registers) = registers(5) else {
            return;
        };
        let copy = StackCopy::new(SP, bytes, true);
        self.recall.begin();
        let noting = copy.noting(&self.recall.reads);
        noting.goes_by(&registers, KEPT);
        for word in words {
            let _ = noting.read(SP + word * 8);
        }
        let mut walked = StackBuffer::default();
        walked.frames.push(RawFrame::Kernel(frame));
        let process = self.table.get(self.who.0).expect("it was made");
        let who = (process, self.who.1);
        let near = NEAR as u64;
        self.recall.remember(who, &registers, &copy, near, &walked);
    }

    /// What a small copy is recognized as: how it ends, and the frame.
    fn sees(&mut self, bytes: &[u8], rbx: u64) -> Option<(StackEnd, RawFrame)> {
        let registers = registers(rbx)?;
        let mut recall_out = StackBuffer::default();
        let process = self.table.get(self.who.0).expect("it was made");
        let who = (process, self.who.1);
        let copy = StackCopy::new(SP, &bytes[..NEAR], true);
        let end = self.recall.find(who, &registers, &copy, &mut recall_out);
        end.map(|end| (end, recall_out.frames[0]))
    }
}

fn is_supported() -> bool {
    let supported = registers(5).is_some();
    if !supported {
        testkit::cannot("a sample has other registers");
    }
    supported
}

#[test]
fn a_stack_is_the_same_where_all_that_its_walk_read_is() {
    if !is_supported() {
        return;
    }
    let mut rig = Rig::new();
    rig.walks(&stack(&[]), &[1, 4], 77);
    let known = Some((StackEnd::Complete, RawFrame::Kernel(77)));
    assert_eq!(rig.sees(&stack(&[]), 5), known);
    assert_eq!(rig.sees(&stack(&[(3, 999)]), 5), known, "no walk reads it");
    assert_eq!(rig.sees(&stack(&[(4, 999)]), 5), None, "another caller");
    assert_eq!(rig.sees(&stack(&[]), 6), None, "another frame");
}

#[test]
fn callers_that_differ_in_a_word_nearby_are_told_apart() {
    if !is_supported() {
        return;
    }
    let mut rig = Rig::new();
    let (one, other) = (stack(&[]), stack(&[(4, 999)]));
    rig.walks(&one, &[1, 4], 77);
    rig.walks(&other, &[1, 4], 88);
    let seen = [&one, &other].map(|bytes| rig.sees(bytes, 5).map(|(_, frame)| frame));
    assert_eq!(seen, [77, 88].map(|frame| Some(RawFrame::Kernel(frame))));
}

#[test]
fn callers_beyond_the_small_copy_are_an_estimate_until_a_large_copy_refutes_it() {
    if !is_supported() {
        return;
    }
    let mut rig = Rig::new();
    let (one, other) = (stack(&[]), stack(&[(20, 999)]));
    rig.walks(&one, &[1, 20], 77);
    let estimate = Some((StackEnd::Alike, RawFrame::Kernel(77)));
    assert_eq!(rig.sees(&other, 5), estimate);
    rig.walks(&one, &[1, 20], 77);
    assert_eq!((rig.recall.counts.checked, rig.recall.counts.wrong), (1, 0));
    // The same wait from another caller, at the same depth.
    rig.walks(&other, &[1, 20], 88);
    assert_eq!((rig.recall.counts.checked, rig.recall.counts.wrong), (2, 1));
    assert_eq!(rig.sees(&one, 5), None, "never estimated again");
    rig.walks(&one, &[1, 20], 77);
    assert_eq!(rig.sees(&one, 5), None);
}

#[test]
fn walks_that_were_refused_memory_or_read_too_much_are_not_remembered() {
    if !is_supported() {
        return;
    }
    let mut rig = Rig::new();
    rig.walks(&stack(&[]), &[1, 500], 77);
    assert_eq!(rig.sees(&stack(&[]), 5), None);
    rig.walks(&stack(&[]), &vec![1; WORDS_MAX + 1], 77);
    assert_eq!(rig.sees(&stack(&[]), 5), None);
}

#[test]
fn walks_that_others_replace_are_not_counted_any_more() {
    if !is_supported() {
        return;
    }
    let mut rig = Rig::new();
    let mut held = Vec::new();
    for caller in 0..10_000 {
        rig.walks(&stack(&[(4, caller)]), &[1, 4], caller);
        held.push(rig.recall.heap_bytes());
    }
    assert_eq!(held[VARIANTS_MAX], held[9999]);
    assert_eq!(rig.recall.counts.forgotten, 0);
}

#[test]
fn a_process_that_fills_the_memory_forgets_its_own() {
    if !is_supported() {
        return;
    }
    let mut rig = Rig::new();
    rig.who = (Pid(8), Tid(8));
    rig.walks(&stack(&[]), &[1, 4], 88);
    (0..3).for_each(|_| rig.fill(7));
    let threads = rig.recall.threads.len();
    assert!(threads > 5_000, "half of them are left, not {threads}");
    rig.who = (Pid(8), Tid(8));
    let known = Some((StackEnd::Complete, RawFrame::Kernel(88)));
    assert_eq!(rig.sees(&stack(&[]), 5), known);
}

#[test]
fn what_is_counted_is_what_is_there() {
    if !is_supported() {
        return;
    }
    let mut rig = Rig::new();
    rig.fill(7);
    rig.fill(8);
    let recall = &rig.recall;
    let threads = || recall.threads.values();
    let walks = |thread: &Thread| thread.places.values().map(bytes_of).sum::<usize>();
    assert!(threads().all(|thread| thread.walks == walks(thread)));
    let bytes: usize = threads().map(Thread::heap_bytes).sum();
    assert_eq!(recall.bytes, bytes);
    assert_eq!(recall.processes.values().sum::<usize>(), bytes);
}

#[test]
fn threads_that_end_are_forgotten_and_all_when_nobody_asks() {
    if !is_supported() {
        return;
    }
    let mut rig = Rig::new();
    rig.walks(&stack(&[]), &[1, 4], 77);
    rig.recall.forget(rig.key());
    assert_eq!(rig.sees(&stack(&[]), 5), None);
    assert_eq!((rig.recall.bytes, rig.recall.processes.len()), (0, 0));
    rig.walks(&stack(&[]), &[1, 20], 77);
    rig.walks(&stack(&[]), &[1, 20], 77);
    assert!(rig.recall.counts().bytes > 0);
    rig.recall.clear();
    assert_eq!(rig.sees(&stack(&[]), 5), None);
    let counts = rig.recall.counts();
    assert_eq!((counts.bytes, counts.checked), (0, 1));
}
