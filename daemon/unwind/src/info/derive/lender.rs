//! Finds the function that lends its frame to compiled Haskell code, which has no frame of its own.
//!
//! GHC's code keeps its continuations on a stack of its own; it neither pushes nor returns on the
//! machine stack. `StgRun` in its runtime saves the registers that calls preserve, makes room for
//! what the code may need there, and jumps into it. So the caller of all Haskell code is the caller
//! of `StgRun`, at a fixed distance from the stack pointer.
//!
//! Stripped files have no names and describe nothing of that code, so `StgRun` is recognized by
//! what it does: from its start, without a branch, it saves all registers that calls preserve and
//! jumps through a register. On a stack, its frame is recognized by its return address: a word that
//! follows one of the few calls that lead to it. Seen with GHC 9.0 of Debian 12 on x86-64,
//! 2026-11-26. Called by `fp-files`, once per file. No lender is found in programs with Haskell
//! libraries in separate files.

use super::frame::{Accesses, Frame, Value};
use super::{Piece, kind};
use crate::arch::psabi as number;
use crate::info::rule::{Kind, Rule, Step, return_slot, step_saved};
use crate::info::state::{Registers, StackCopy};
use crate::info::table::Table;
use hashbrown::HashMap;
use host::ids::FileOffset;
use iced_x86::{Decoder, DecoderOptions, FlowControl, OpKind};
use profile::StackEnd;
use std::ops::Range;
use symbolize::budget::{FileBudget, Over};
use symbolize::elf::{Headers, ReadAt};

/// Longest function that is looked at. Unit: bytes. `StgRun` has 90.
const FUNCTION_BYTES_MAX: u64 = 512;

/// Most functions of a file that are looked at. The C code of GHC's runtime has some 700.
const FUNCTIONS_MAX: usize = 16 << 10;

/// Most code in which calls are looked for. Unit: bytes. That of GHC's runtime has half a MiB.
const CALLERS_BYTES_MAX: u64 = 16 << 20;

/// Most calls to a lender that are known. GHC's runtime has one or two.
const RETURNS_MAX: usize = 16;

/// Functions that may be one. Those that save all registers and jump away are few.
const CANDIDATES_MAX: usize = 16;

/// Smallest frame: six registers and the return address. Unit: bytes.
const FRAME_BYTES_MIN: i32 = 6 * 8;

/// Bytes read at once.
const PIECE_BYTES: usize = 64 << 10;

/// Length of a direct call.
const CALL_BYTES: usize = 5;

/// Words that code without a frame may have pushed: arguments of a C function, and what aligns the
/// stack for it.
const PUSHED_MAX: u64 = 8;

/// See the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lender {
    /// The rule at its jump.
    rule: Rule,
    /// Where its calls return to.
    returns: Box<[FileOffset]>,
}

impl Lender {
    /// Memory held. Unit: bytes.
    pub fn heap_bytes(&self) -> usize {
        size_of_val(&*self.returns)
    }

    /// Where the return address is that its frame starts with, as long as nothing was pushed.
    pub fn slot(&self, registers: &Registers) -> Option<u64> {
        match self.rule.step {
            Step::Saved {
                base,
                offset,
                places,
            } => return_slot(base, offset, &places, registers),
            _ => None,
        }
    }

    /// The caller's registers. `None` when the stack has no frame of the lender there. `place_of`:
    /// where in the file an address is; `is_code`: whether it is one of code at all.
    ///
    /// # Errors
    /// How the stack ends if this is unknown for lack of memory.
    pub fn caller(
        &self,
        registers: &Registers,
        stack: &StackCopy<'_>,
        place_of: impl Fn(u64) -> Option<FileOffset>,
        is_code: impl Fn(u64) -> bool,
    ) -> Result<Option<Registers>, StackEnd> {
        let (
            Some(slot),
            Step::Saved {
                base,
                offset,
                places,
            },
        ) = (self.slot(registers), self.rule.step)
        else {
            return Ok(None);
        };
        let mut unread = None;
        for pushed in 0..=PUSHED_MAX {
            // A return address among what was pushed is that of a function in between.
            let skipped = pushed
                .checked_sub(1)
                .map(|last| registers.sp().wrapping_add(last * 8));
            if skipped.is_some_and(|at| stack.read(at).is_ok_and(&is_code)) {
                return Ok(None);
            }
            match stack.read(slot.wrapping_add(pushed * 8)) {
                Ok(word) if place_of(word).is_some_and(|place| self.returns.contains(&place)) => {
                    let mut entered = *registers;
                    entered.set(number::RSP, registers.sp().wrapping_add(pushed * 8));
                    return step_saved(base, offset, &places, &entered, stack).map(Some);
                }
                Ok(_) => {}
                Err(end) => {
                    unread.get_or_insert(end);
                }
            }
        }
        unread.map_or(Ok(None), Err)
    }
}

/// Looks for it in a file of which `tables` describe less than half, without what is in
/// `undescribed`.
///
/// # Errors
/// When that takes more than `budget` has left.
pub fn find<R: ReadAt + ?Sized>(
    image: &R,
    headers: &Headers,
    tables: &[Table],
    undescribed: &[Piece],
    budget: &FileBudget<'_>,
) -> Result<Option<Lender>, Over> {
    let code = undescribed.iter().map(|piece| piece.len);
    let without = code.fold(0u64, u64::saturating_add);
    // Others repeat what the first says.
    let Some(table) = tables.first() else {
        return Ok(None);
    };
    let mut segments: Vec<Range<u64>> = (headers.segments.iter())
        .filter(|segment| segment.executable)
        .map(|segment| segment.address..segment.address.saturating_add(segment.file_size))
        .collect();
    segments.sort_unstable_by_key(|segment| segment.start);
    let (mut described, mut with, mut end): (Vec<Range<u64>>, u64, u64) = (Vec::new(), 0, 0);
    for segment in segments {
        budget.check()?;
        // What overlaps is looked at once.
        if segment.start < end {
            continue;
        }
        end = segment.end;
        table.described(segment, |function| {
            let function = function.start..function.end.min(end);
            with = with.saturating_add(length(&function));
            if described.len() < FUNCTIONS_MAX {
                described.push(function);
            }
        });
    }
    if with >= without {
        return Ok(None);
    }
    let _charge = budget.charge(size_of_val(&*described) + PIECE_BYTES)?;
    let candidates = candidates(image, headers, &described, budget)?;
    let targets: Vec<u64> = candidates.iter().map(|(start, _)| *start).collect();
    let mut returns = returns_of(image, headers, &described, &targets, budget)?;
    let found = candidates.into_iter().find_map(|(start, rule)| {
        let returns = returns.remove(&start)?.into();
        Some(Lender { rule, returns })
    });
    Ok(found)
}

/// The functions that do what a lender does, and their rules where they jump.
fn candidates<R: ReadAt + ?Sized>(
    image: &R,
    headers: &Headers,
    described: &[Range<u64>],
    budget: &FileBudget<'_>,
) -> Result<Vec<(u64, Rule)>, Over> {
    let (mut found, mut accesses, mut unpaid) = (Vec::new(), Accesses::new(), 0);
    for function in described {
        if length(function) > FUNCTION_BYTES_MAX || found.len() == CANDIDATES_MAX {
            continue;
        }
        let mut bytes = [0; FUNCTION_BYTES_MAX as usize];
        let bytes = &mut bytes[..length(function) as usize];
        unpaid += bytes.len();
        if unpaid >= PIECE_BYTES {
            budget.reads(std::mem::take(&mut unpaid))?;
        }
        if read(image, headers, function.start, bytes)
            && let Some(rule) = rule_at_jump(bytes, &mut accesses)
        {
            found.push((function.start, rule));
        }
    }
    Ok(found)
}

fn length(function: &Range<u64>) -> u64 {
    function.end.saturating_sub(function.start)
}

/// Reads code at an address; false where there is none.
fn read<R: ReadAt + ?Sized>(image: &R, headers: &Headers, address: u64, into: &mut [u8]) -> bool {
    let offset = headers.offset_of(address);
    offset.is_some_and(|offset| image.read_exact_at(into, offset).is_ok())
}

/// The rule of a function where it jumps away, if it saves all registers before and comes there
/// without a branch.
fn rule_at_jump(code: &[u8], accesses: &mut Accesses) -> Option<Rule> {
    let mut frame = Frame::ENTERED;
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    loop {
        // At the end of the code there is an invalid one.
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return None;
        }
        match instruction.flow_control() {
            FlowControl::Next => frame.step(&instruction, accesses),
            FlowControl::IndirectBranch if instruction.op0_kind() == OpKind::Register => break,
            _ => return None,
        }
    }
    let saves = |(_, value)| matches!(value, Value::At(_));
    // The frame is above, and has the return address and what was saved.
    let is_frame = frame.sp.is_some_and(|sp| sp > FRAME_BYTES_MIN);
    if !is_frame || !frame.saved().into_iter().all(saves) {
        return None;
    }
    match kind(&frame) {
        Kind::Rule(rule) => Some(rule),
        _ => None,
    }
}

/// Where the calls return to that lead to each of `targets`.
fn returns_of<R: ReadAt + ?Sized>(
    image: &R,
    headers: &Headers,
    described: &[Range<u64>],
    targets: &[u64],
    budget: &FileBudget<'_>,
) -> Result<HashMap<u64, Vec<FileOffset>>, Over> {
    let mut found: HashMap<u64, Vec<FileOffset>> = HashMap::new();
    let (mut left, mut unpaid) = (CALLERS_BYTES_MAX, 0);
    let mut bytes = vec![0; PIECE_BYTES];
    for function in described.iter().filter(|_| !targets.is_empty()) {
        let mut at = function.start;
        while at < function.end && left > 0 {
            let len = (function.end - at).min(PIECE_BYTES as u64).min(left);
            let bytes = &mut bytes[..len as usize];
            unpaid += bytes.len();
            if unpaid >= PIECE_BYTES {
                budget.reads(std::mem::take(&mut unpaid))?;
            }
            if !read(image, headers, at, bytes) {
                break;
            }
            for (behind, target) in calls(bytes, at).filter(|call| targets.contains(&call.1)) {
                let returns = found.entry(target).or_default();
                let place = headers.offset_of(behind).map(FileOffset);
                let room = returns.len() < RETURNS_MAX;
                returns.extend(place.filter(|place| room && !returns.contains(place)));
            }
            left -= len;
            // A call may lie across two pieces.
            at += match at + len < function.end {
                true => len.saturating_sub(CALL_BYTES as u64 - 1).max(1),
                false => len,
            };
        }
    }
    Ok(found)
}

/// What may be direct calls in code that lies at `address`: the address behind each, and where it
/// leads.
fn calls(code: &[u8], address: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
    memchr::memchr_iter(0xe8, code).filter_map(move |at| {
        let [_, a, b, c, d] = *code.get(at..at + CALL_BYTES)? else {
            return None;
        };
        let behind = address.wrapping_add((at + CALL_BYTES) as u64);
        let distance = i64::from(i32::from_le_bytes([a, b, c, d]));
        Some((behind, behind.wrapping_add_signed(distance)))
    })
}

#[cfg(all(test, target_arch = "x86_64"))] // They read programs of this machine.
mod tests {
    use super::*;

    /// `StgRun` as GHC 9.0 has it.
    const STG_RUN: &[u8] = &[
        0x48, 0x83, 0xec, 0x30, // sub $0x30,%rsp
        0x48, 0x89, 0xe0, // mov %rsp,%rax
        0x48, 0x81, 0xec, 0x00, 0x40, 0x00, 0x00, // sub $0x4000,%rsp
        0x48, 0x89, 0x18, // mov %rbx,(%rax)
        0x48, 0x89, 0x68, 0x08, // mov %rbp,8(%rax)
        0x4c, 0x89, 0x60, 0x10, // mov %r12,16(%rax)
        0x4c, 0x89, 0x68, 0x18, // mov %r13,24(%rax)
        0x4c, 0x89, 0x70, 0x20, // mov %r14,32(%rax)
        0x4c, 0x89, 0x78, 0x28, // mov %r15,40(%rax)
        0x49, 0x89, 0xf5, // mov %rsi,%r13
        0x48, 0x89, 0xf8, // mov %rdi,%rax
        0xff, 0xe0, // jmp *%rax
    ];

    fn lender() -> Lender {
        Lender {
            rule: rule_at_jump(STG_RUN, &mut Accesses::new()).expect("a rule"),
            returns: [FileOffset(0x500)].into(),
        }
    }

    /// A stack of `words` with these at their places.
    fn stack(words: usize, set: &[(usize, u64)]) -> Vec<u8> {
        let mut stack = vec![0u64; words];
        for &(at, word) in set {
            stack[at] = word;
        }
        stack.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    const SP: u64 = 0x7000_0000;
    /// A word that is an address of code.
    const CODE: u64 = 0x700;
    /// The word of the return address.
    const SLOT: usize = (0x4000 + 0x30) / 8;

    fn caller(set: &[(usize, u64)], words: usize) -> Result<Option<(u64, u64, u64)>, StackEnd> {
        let bytes = stack(words, set);
        let copy = StackCopy::new(SP, &bytes, false);
        let registers = Registers::at_return(0x1234, SP);
        let found = lender().caller(
            &registers,
            &copy,
            |ip| Some(FileOffset(ip)),
            |ip| ip == CODE,
        );
        Ok(found?.map(|caller| {
            let rbx = caller.get(number::RBX).expect("saved");
            (caller.ip(), caller.sp(), rbx)
        }))
    }

    #[test]
    fn the_frame_is_that_of_the_function_that_saves_all_registers_and_jumps() {
        let registers = Registers::at_return(0x1234, SP);
        assert_eq!(lender().slot(&registers), Some(SP + SLOT as u64 * 8));
        let set = [(SLOT, 0x500), (SLOT - 6, 77)];
        let behind = SP + (SLOT as u64 + 1) * 8;
        assert_eq!(caller(&set, SLOT + 9), Ok(Some((0x500, behind, 77))));
    }

    #[test]
    fn it_lies_further_up_where_arguments_were_pushed() {
        let set = [(SLOT + 3, 0x500), (SLOT - 3, 77)];
        let behind = SP + (SLOT as u64 + 4) * 8;
        assert_eq!(caller(&set, SLOT + 20), Ok(Some((0x500, behind, 77))));
        let too_far = [(SLOT + PUSHED_MAX as usize + 1, 0x500)];
        assert_eq!(caller(&too_far, SLOT + 20), Ok(None));
    }

    #[test]
    fn where_another_function_called_in_between_its_frame_comes_first() {
        let called = [(1, CODE), (SLOT + 3, 0x500)];
        assert_eq!(caller(&called, SLOT + 20), Ok(None));
        let further = [(3, CODE), (SLOT + 3, 0x500)];
        assert!(matches!(caller(&further, SLOT + 20), Ok(Some(_))));
    }

    #[test]
    fn without_one_of_its_return_addresses_there_is_no_frame() {
        assert_eq!(caller(&[(SLOT, 0x501)], SLOT + 20), Ok(None));
        let short = caller(&[], SLOT - 1);
        assert!(short.is_err(), "{short:?}");
    }

    #[test]
    fn functions_that_branch_call_or_keep_registers_lend_nothing() {
        let rule = |code: &[u8]| rule_at_jump(code, &mut Accesses::new());
        // A dispatch through a table: a branch comes before.
        let (before, jump) = STG_RUN.split_at(STG_RUN.len() - 2);
        let branch = [before, &[0x77, 0x02], jump].concat();
        assert_eq!(rule(&branch), None);
        let call = [before, &[0xff, 0xd7], jump].concat();
        assert_eq!(rule(&call), None);
        // jmp *%rdi alone, and all registers saved, but a return.
        assert_eq!(rule(&[0xff, 0xe7]), None);
        let returns = [before, &[0xc3]].concat();
        assert_eq!(rule(&returns), None);
        assert_eq!(rule(before), None, "no jump");
    }

    #[test]
    fn a_program_of_ghc_has_one_and_others_have_none() {
        let lender_of = |path: &str| {
            let file = std::fs::File::open(path).ok()?;
            let image = symbolize::files::Image::open(file).expect("facts");
            let budget = FileBudget::default();
            let module = crate::info::module::Module::read(&image, None, b"", (&[], true), &budget);
            let module = module.expect("within the budget").expect("a module");
            Some(module.lender().cloned())
        };
        match lender_of("/usr/bin/shellcheck") {
            None => testkit::skip("no program in Haskell"),
            Some(lender) => {
                let lender = lender.expect("StgRun");
                let registers = Registers::at_return(0x1234, SP);
                assert_eq!(lender.slot(&registers), Some(SP + SLOT as u64 * 8));
                assert!(!lender.returns.is_empty());
            }
        }
        assert_eq!(lender_of("/proc/self/exe"), Some(None));
    }

    #[test]
    fn calls_are_found_by_where_they_lead() {
        // nop; call 0x2000; call 0x2001
        let code = [
            0x90, 0xe8, 0xfa, 0x0f, 0, 0, 0xe8, 0xf6, 0x0f, 0, 0, 0xe8, 1,
        ];
        let found: Vec<(u64, u64)> = calls(&code, 0x1000).collect();
        assert_eq!(found, [(0x1006, 0x2000), (0x100b, 0x2001)]);
    }
}
