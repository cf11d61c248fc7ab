//! Tests that rows become rules, and that rules lead to callers, on handwritten tables and stacks.

use super::StackBuffer;
use super::engine::Engine;
use super::modules::Loaded;
use super::{go_on_elsewhere, place_in_chain};
use crate::arch::{HAS_RED_ZONE, ORDER, PLACES, RETURN_COLUMN};
use crate::info::module::Module;
use crate::info::rule::{Behind, Rule, Step, step_saved};
use crate::info::section::{Bases, Dialect};
use crate::info::state::{REGISTERS, Registers, StackCopy, number};
use crate::info::table::Table;
use crate::process::ProcessTable;
use host::frame::RawFrame;
use host::ids::{Avma, Pid, Tid};
use host::time::MonotonicTime;
use perf::record::{MapFile, Mmap, UserState};
use profile::{StackEnd, UnnamedReason};
use std::cell::Cell;
use std::sync::Arc;
use symbolize::budget::FileBudget;

/// Where the functions of the tables start.
const CODE: u64 = 0x1000;
/// The stack pointer of every leaf.
const SP: u64 = 0x7f00;

const DEF_CFA_EXPRESSION: u8 = 0x0f;
const EXPRESSION: u8 = 0x10;

/// The column of the return address, and the stack pointer's number, as they are written.
const RETURNS: u8 = RETURN_COLUMN as u8;
const SP_NUMBER: u8 = number::SP as u8;
/// The operation that takes the stack pointer and adds a number (`DW_OP_bregN`).
const FROM_SP: u8 = 0x70 + SP_NUMBER;
/// A register that calls keep.
const KEPT: u16 = PLACES[1];

/// An `.eh_frame` with one function of 64 bytes at [`CODE`]: at its entry the CFA is sp + 8 and
/// the return address below it; `instructions` follow. With `augmentation` `S` it is a signal
/// trampoline.
fn table(augmentation: &str, instructions: &[u8]) -> Table {
    let mut cie = vec![0, 0, 0, 0, 1];
    cie.extend_from_slice(augmentation.as_bytes());
    // Code alignment 1, data alignment -8; CFA sp + 8, return address at -8.
    cie.extend_from_slice(&[0, 1, 0x78, RETURNS, 0x0c, SP_NUMBER, 8, 0x80 | RETURNS, 1]);
    let mut bytes = entry(&cie);
    let mut fde = (bytes.len() as u32 + 4).to_le_bytes().to_vec();
    fde.extend_from_slice(&CODE.to_le_bytes());
    fde.extend_from_slice(&64u64.to_le_bytes());
    fde.extend_from_slice(instructions);
    bytes.extend(entry(&fde));
    bytes.extend_from_slice(&[0; 4]);
    let bases = Bases {
        code: CODE,
        ..Bases::default()
    };
    let table = Table::of_bytes(Dialect::Eh, &bytes, bases, &FileBudget::default());
    table
        .expect("within the budget")
        .expect("a function is described")
}

fn entry(content: &[u8]) -> Vec<u8> {
    let padded = content.len().next_multiple_of(4);
    let mut bytes = (padded as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(content);
    bytes.resize(4 + padded, 0);
    bytes
}

fn rule(table: &Table, address: u64) -> Option<Rule> {
    table.rule(address)
}

/// Registers of a leaf: each holds its number in the kernel's order, but the stack pointer.
fn leaf() -> Option<Registers> {
    let sp = |at: u64| ORDER[at as usize] == number::SP;
    let words = (0..REGISTERS as u64).map(|at| if sp(at) { SP } else { at });
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    let user = UserState {
        is_64: true,
        regs: &bytes,
        stack: &[],
        full: false,
    };
    let leaf = Registers::from_sample(&user);
    if leaf.is_none() {
        testkit::cannot("a sample has other registers");
    }
    leaf
}

/// A stack with its own address in each word.
fn stack_bytes() -> Vec<u8> {
    (0..64u64)
        .flat_map(|at| (SP + at * 8).to_le_bytes())
        .collect()
}

#[test]
fn a_pushed_register_is_restored_from_where_it_was_saved() {
    // After one byte: CFA sp + 16, the frame pointer at CFA - 16.
    let table = table("", &[0x41, 0x0e, 16, 0x80 | number::FP as u8, 2]);
    let Some(leaf) = leaf() else { return };
    let bytes = stack_bytes();
    let stack = StackCopy::new(SP, &bytes, true);
    let Some(Rule {
        step: Step::Saved {
            base,
            offset,
            places,
        },
        signal: false,
        ..
    }) = rule(&table, CODE + 1)
    else {
        panic!("a rule of fixed distances")
    };
    let caller = step_saved(base, offset, &places, &leaf, &stack).expect("leads to its caller");
    assert_eq!((caller.ip(), caller.sp()), (SP + 8, SP + 16));
    assert_eq!(caller.get(number::FP), Some(SP));
    assert_eq!(caller.get(KEPT), leaf.get(KEPT));
}

#[test]
fn at_its_first_instruction_a_function_has_saved_nothing() {
    let table = table("", &[0x41, 0x0e, 16, 0x80 | number::FP as u8, 2]);
    assert_eq!(rule(&table, CODE), Some(Rule::return_address_at(0)));
}

#[test]
fn an_address_behind_the_last_function_has_no_rule() {
    let table = table("", &[]);
    assert_eq!(rule(&table, CODE + 64), None);
    assert_eq!(rule(&table, CODE - 1), None);
}

#[test]
fn a_function_without_return_address_is_the_outermost() {
    let table = table("", &[0x07, RETURNS]);
    assert_eq!(
        rule(&table, CODE).map(|rule| rule.step),
        Some(Step::Outermost)
    );
}

#[cfg(target_arch = "x86_64")] // Other linkers describe theirs by rows, or not at all.
#[test]
fn entries_of_a_linkage_table_are_reckoned_from_their_address() {
    // rsp + 8 + ((rip & 15) >= 11) * 8, as GNU linkers write it.
    let plt = [0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
    let mut instructions = vec![DEF_CFA_EXPRESSION, plt.len() as u8];
    instructions.extend_from_slice(&plt);
    let table = table("", &instructions);
    assert_eq!(rule(&table, CODE + 10), Some(Rule::return_address_at(0)));
    assert_eq!(rule(&table, CODE + 11), Some(Rule::return_address_at(8)));
}

#[test]
fn a_signal_frame_takes_all_registers_from_memory() {
    // CFA = *(sp + 16); register 0 at sp + 24; return address at sp + 32.
    let instructions = [
        &[DEF_CFA_EXPRESSION, 3, FROM_SP, 16, 0x06][..],
        &[EXPRESSION, 0, 2, FROM_SP, 24],
        &[EXPRESSION, RETURNS, 2, FROM_SP, 32],
    ];
    let table = table("S", &instructions.concat());
    let Some(leaf) = leaf() else { return };
    let bytes = stack_bytes();
    let stack = StackCopy::new(SP, &bytes, true);
    let found = rule(&table, CODE).expect("a row");
    assert_eq!((found.step, found.signal), (Step::Computed, true));
    let caller = table
        .compute(CODE, &leaf, &stack, &Cell::new(100))
        .expect("a row")
        .expect("leads to what was interrupted");
    assert_eq!((caller.ip(), caller.sp()), (SP + 32, SP + 16));
    assert_eq!(caller.get(0), Some(SP + 24));
}

#[test]
fn a_loop_in_an_expression_ends() {
    // lit1; bra to itself.
    let table = table("", &[DEF_CFA_EXPRESSION, 4, 0x31, 0x28, 0xfc, 0xff]);
    let Some(leaf) = leaf() else { return };
    let stack = StackCopy::new(SP, &[], true);
    let left = Cell::new(1000);
    let end = table.compute(CODE, &leaf, &stack, &left);
    assert_eq!(end, Some(Err(StackEnd::NoUnwindInfo)));
    assert!((500..999).contains(&left.get()), "{left:?}");
    let end = table.compute(CODE, &leaf, &stack, &Cell::new(100));
    assert_eq!(end, Some(Err(StackEnd::WorkLimit)));
}

proptest::proptest! {
    #[test]
    fn tables_of_strangers_do_no_harm(
        bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..400),
        damage in proptest::collection::vec((0usize..100, proptest::num::u8::ANY), 0..8),
    ) {
        let mut sound = vec![0, 0, 0, 0, 1, b'S', 0, 1, 0x78, RETURNS, 0x0c, SP_NUMBER, 8, 0x80 | RETURNS, 1];
        sound = entry(&sound);
        let mut fde = (sound.len() as u32 + 4).to_le_bytes().to_vec();
        fde.extend_from_slice(&CODE.to_le_bytes());
        fde.extend_from_slice(&64u64.to_le_bytes());
        fde.extend_from_slice(&bytes);
        sound.extend(entry(&fde));
        for (at, value) in damage {
            if let Some(byte) = sound.get_mut(at) {
                *byte = value;
            }
        }
        let bases = Bases { code: CODE, ..Bases::default() };
        let Some(leaf) = leaf() else { return Ok(()) };
        let stack = stack_bytes();
        let stack = StackCopy::new(SP, &stack, true);
        for dialect in [Dialect::Eh, Dialect::Debug] {
            let budget = FileBudget::default();
            let table = Table::of_bytes(dialect, &sound, bases, &budget).expect("within the budget");
            proptest::prop_assert!(budget.most_held() < 1 << 20);
            let Some(table) = table else { continue };
            for address in CODE..CODE + 64 {
                rule(&table, address);
                let left = Cell::new(1000);
                table.compute(address, &leaf, &stack, &left);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")] // The offsets are its own; `real_stacks.rs` has signals of any.
#[test]
fn a_signal_handler_of_go_returns_to_where_the_kernel_put_the_registers() {
    let Some(leaf) = leaf() else { return };
    let bytes = stack_bytes();
    let stack = StackCopy::new(SP, &bytes, true);
    use crate::info::rule::{ComputedRow, step_computed};
    let row = ComputedRow::signal_return();
    let struck = step_computed(&row, &[], &leaf, &stack, &Cell::new(1)).expect("registers");
    // Offsets of `struct ucontext`.
    assert_eq!((struck.ip(), struck.sp()), (SP + 168, SP + 160));
    assert_eq!(struck.get(number::RBP), Some(SP + 120));
    assert_eq!(struck.get(number::R12), Some(SP + 72));
    assert_eq!(struck.get(0), Some(SP + 144), "rax is another's too");
}

#[test]
fn the_chain_goes_on_where_the_frame_pointer_of_the_switch_led_it() {
    // The sample's frame pointer leads to a frame in the copy, that to one on another stack.
    let elsewhere = 0xc000_1000u64;
    let mut bytes = stack_bytes();
    bytes[64..72].copy_from_slice(&elsewhere.to_le_bytes());
    let stack = StackCopy::new(SP, &bytes, true);
    let Some(mut leaf) = leaf() else { return };
    leaf.set(number::FP, SP + 64);
    let place = |to| place_in_chain(&leaf, &stack, to);
    assert_eq!(place(SP + 64), Some(1), "nobody changed it");
    assert_eq!(place(elsewhere), Some(2));
    assert_eq!(place(elsewhere + 8), None, "the chain went another way");
}

#[test]
fn who_called_a_function_that_changed_stacks_is_said_to_be_missing_where_it_is() {
    let frame = |at| RawFrame::Kernel(at);
    let missing = RawFrame::Unknown(UnnamedReason::OtherStack);
    let (own, rest) = ([frame(1)], [frame(8), frame(9)]);
    let go_on = |behind, rest: &[RawFrame]| {
        let mut engine = Engine::new(0);
        engine.switch.behind = behind;
        let mut walked = own.to_vec();
        let end = go_on_elsewhere(
            &mut engine,
            &mut walked,
            rest,
            (StackEnd::BrokenChain, MonotonicTime(1)),
        );
        (walked, end)
    };
    let (chain_end, cut) = (StackEnd::BrokenChain, StackEnd::OtherStack);
    let whole = vec![own[0], rest[0], rest[1]];
    assert_eq!(go_on(Behind::Caller, &rest), (whole, chain_end));
    let marked = vec![own[0], missing, rest[0], rest[1]];
    assert_eq!(go_on(Behind::CallersCaller, &rest), (marked, chain_end));
    assert_eq!(go_on(Behind::Unknown, &rest), (own.to_vec(), cut));
    assert_eq!(go_on(Behind::Caller, &[]), (own.to_vec(), cut));
}

/// How many frames of a stack with these words are found, how it ends, and how often the red zone
/// was made up for: by a table that has the CFA at the word below the stack pointer, plus 8.
fn walk_by_red_zone(words: &[(usize, u64)]) -> Option<(usize, StackEnd, u64)> {
    let rows = [DEF_CFA_EXPRESSION, 5, FROM_SP, 0x78, 0x06, 0x23, 8];
    let mut leaf = leaf()?;
    leaf.set(number::RA, CODE + 1);
    let (pid, now) = (Pid(7), MonotonicTime(1));
    let mut processes = ProcessTable::new();
    processes.fork(pid, Tid(7), Pid(1), Tid(1), now);
    let map = Mmap {
        pid,
        start: CODE,
        len: 0x1000,
        file_offset: CODE,
        file: MapFile::Inode {
            major: 8,
            minor: 1,
            inode: 1,
            generation: 0,
        },
        private: true,
        path: b"/usr/bin/thing",
    };
    processes.mmap(&map, now);
    let process = processes.get(pid).expect("a process");
    let mapping = process.space().find(Avma(CODE)).expect("mapped");
    let mut engine = Engine::new(1 << 20);
    engine.modules.install(Loaded {
        file: mapping.backing.file().expect("a file"),
        module: Ok(Some(Arc::new(Module::of_table(table("", &rows))))),
    });
    let mut stack = [0; 64];
    words.iter().for_each(|&(at, word)| stack[at] = word);
    let bytes: Vec<u8> = stack.into_iter().flat_map(u64::to_le_bytes).collect();
    let copy = StackCopy::new(SP, &bytes, true);
    let mut out = StackBuffer::default();
    let end = engine.walk(process, leaf, copy, now, 16, &mut out);
    Some((out.frames.len(), end, engine.counts.by_red_zone))
}

#[test]
fn a_word_below_the_stack_pointer_is_found_where_the_frame_has_it_too() {
    let place = |at: u64| SP + 8 * at;
    let cut = StackEnd::UnreadableMemory;
    // A number, one that points down, one at data, and the one to a return address.
    let noise = [(3, 7), (20, place(2)), (5, place(50))];
    let found = [noise.as_slice(), &[(10, place(40)), (40, CODE + 0x30)]].concat();
    let Some(told) = walk_by_red_zone(&found) else {
        return;
    };
    let expected = match HAS_RED_ZONE {
        true => (2, cut, 1),
        false => (1, cut, 0),
    };
    assert_eq!(told, expected);
    // It is unknown which of the two it is.
    let other = [(12, place(41)), (41, CODE + 0x20)];
    let two = [found.as_slice(), &other].concat();
    assert_eq!(walk_by_red_zone(&two), Some((1, cut, 0)));
    assert_eq!(walk_by_red_zone(&noise), Some((1, cut, 0)));
}
