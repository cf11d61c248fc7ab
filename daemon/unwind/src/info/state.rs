//! The input of unwinding: the registers of a thread and the copy of its stack.
//!
//! Both are views of a record in the ring. Stack bytes may contain secrets: they are read here a
//! word at a time and never copied, logged or kept.

use super::words::{Reads, Words};
use crate::arch::{KEPT_OVER_CALLS, ORDER, RegisterSet, code_address};
pub use crate::arch::{REGISTERS, number};
use perf::arch::USER_REGS;
use perf::record::UserState;
use profile::StackEnd;

const REGISTERS_U16: u16 = REGISTERS as u16;

/// The stack pointer and the instruction pointer.
const PLACE: RegisterSet = 1 << number::SP | 1 << number::RA;

/// All registers.
const ALL: RegisterSet = RegisterSet::MAX >> (RegisterSet::BITS as usize - REGISTERS);

/// The general registers by their number in unwind tables, as far as they are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    values: [u64; REGISTERS],
    known: RegisterSet,
    /// Registers with the same value as in the sample.
    original: RegisterSet,
}

impl Registers {
    /// The registers of a sample; `None` when the record has too few.
    pub fn from_sample(user: &UserState<'_>) -> Option<Registers> {
        if USER_REGS.count_ones() as usize != REGISTERS || user.regs.len() != REGISTERS * 8 {
            return None;
        }
        let mut values = [0; REGISTERS];
        for (word, &number) in user.regs.chunks_exact(8).zip(&ORDER) {
            values[usize::from(number)] = word_of(word);
        }
        Some(Registers {
            values,
            known: ALL,
            original: ALL,
        })
    }

    /// Registers of a caller about which only the return address and the stack pointer are known.
    pub fn at_return(ip: u64, sp: u64) -> Registers {
        let mut registers = Registers {
            values: [0; REGISTERS],
            known: 0,
            original: 0,
        };
        registers.set(number::RA, code_address(ip));
        registers.set(number::SP, sp);
        registers
    }

    /// The registers in `mask` that have the same value as in the sample, without the stack pointer
    /// and the instruction pointer.
    fn original_of(&self, mask: RegisterSet) -> RegisterSet {
        self.original & mask & !PLACE
    }

    /// The value of a register, where it is known.
    pub fn get(&self, number: u16) -> Option<u64> {
        let known = u32::from(number) < RegisterSet::BITS && self.known & 1 << number != 0;
        known.then(|| self.values[usize::from(number)])
    }

    /// Sets a register; numbers of vector registers and the like are nobody's business.
    pub fn set(&mut self, number: u16, value: u64) {
        if let Some(place) = self.values.get_mut(usize::from(number)) {
            *place = value;
            self.known |= 1 << number;
            self.original &= !(1 << number);
        }
    }

    /// Forgets a register.
    pub fn forget(&mut self, number: u16) {
        if usize::from(number) < REGISTERS {
            self.known &= !(1 << number);
            self.original &= !(1 << number);
        }
    }

    /// The instruction pointer.
    pub fn ip(&self) -> u64 {
        self.values[usize::from(number::RA)]
    }

    /// The stack pointer; where that is not known, an address that it is not below.
    pub fn sp(&self) -> u64 {
        self.values[usize::from(number::SP)]
    }

    /// Registers of a caller after a call: those that calls preserve, and where it continues.
    pub fn after_return(mut self, ip: u64, sp: u64) -> Registers {
        self.returned(ip, sp);
        self
    }

    /// The same in place.
    pub fn returned(&mut self, ip: u64, sp: u64) {
        self.known &= KEPT_OVER_CALLS;
        self.original &= KEPT_OVER_CALLS;
        self.set(number::RA, code_address(ip));
        self.set(number::SP, sp);
    }
}

/// The copy of a stack, from the stack pointer of the sample up, and what is known beyond.
#[derive(Clone, Copy)]
pub struct StackCopy<'a> {
    start: u64,
    bytes: &'a [u8],
    full: bool,
    beyond: Option<&'a Words>,
    reads: Option<&'a Reads>,
}

/// How far behind a full copy an address still counts as the same stack. The usual limit of a
/// stack.
const STACK_REACH: u64 = 8 << 20;

impl<'a> StackCopy<'a> {
    /// `bytes` as they were at `start`; `full` when the stack may go on behind them.
    pub fn new(start: u64, bytes: &'a [u8], full: bool) -> StackCopy<'a> {
        StackCopy {
            start,
            bytes,
            full,
            beyond: None,
            reads: None,
        }
    }

    /// Notes what is read of it.
    pub fn noting(self, reads: &'a Reads) -> StackCopy<'a> {
        StackCopy {
            reads: Some(reads),
            ..self
        }
    }

    /// Notes that a walk went by a register.
    pub fn goes_by(&self, registers: &Registers, number: u16) {
        if let (Some(reads), 0..REGISTERS_U16) = (self.reads, number) {
            reads.registers(registers.original_of(1 << number));
        }
    }

    /// Notes that a walk may have gone by any register.
    pub fn goes_by_any(&self, registers: &Registers) {
        if let Some(reads) = self.reads {
            reads.registers(registers.original_of(ALL));
        }
    }

    /// Bytes of it.
    pub fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// First address that was not copied.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.size())
    }

    /// With words that lie beyond it.
    pub fn with(self, beyond: &'a Words) -> StackCopy<'a> {
        StackCopy {
            beyond: Some(beyond),
            ..self
        }
    }

    /// True for a word that lies further out than the copy, and may well be on the same stack.
    pub fn ends_before(&self, address: u64) -> bool {
        let end = self.end();
        address.is_multiple_of(8) && end <= address && address - end < STACK_REACH
    }

    /// The word at an address.
    ///
    /// # Errors
    /// How a stack ends that needs it and cannot have it: beyond the copy, or elsewhere.
    #[inline]
    pub fn read(&self, address: u64) -> Result<u64, StackEnd> {
        let found = self.copied(address);
        if let Some(reads) = self.reads {
            reads.word(address, found.is_some());
        }
        match found {
            Some(word) => Ok(word),
            None => self.read_beyond(address),
        }
    }

    /// The word at an address that was copied.
    #[inline]
    fn copied(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.wrapping_sub(self.start)).ok()?;
        self.bytes.get(at..at.checked_add(8)?).map(word_of)
    }

    /// The word at an address that was not.
    #[cold]
    fn read_beyond(&self, address: u64) -> Result<u64, StackEnd> {
        let at = address.wrapping_sub(self.start);
        match self.beyond.and_then(|words| words.get(address)) {
            Some(word) => Ok(word),
            // Anything before the stack pointer is far away in this arithmetic.
            None if self.full && at < self.bytes.len() as u64 + STACK_REACH => {
                Err(StackEnd::CopyTooSmall)
            }
            None => Err(StackEnd::UnreadableMemory),
        }
    }
}

/// A word of eight bytes, of which there must be as many.
fn word_of(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_behind_a_full_copy_was_not_copied_and_what_lies_elsewhere_cannot_be_read() {
        let bytes: Vec<u8> = (0..4u64).flat_map(u64::to_le_bytes).collect();
        let full = StackCopy::new(0x7000, &bytes, true);
        let whole = StackCopy::new(0x7000, &bytes, false);
        assert_eq!(full.read(0x7008), Ok(1));
        assert_eq!(full.read(0x701c), Err(StackEnd::CopyTooSmall));
        assert_eq!(full.read(0x7020), Err(StackEnd::CopyTooSmall));
        assert_eq!(whole.read(0x7020), Err(StackEnd::UnreadableMemory));
        assert_eq!(full.read(0x6ff8), Err(StackEnd::UnreadableMemory));
        assert_eq!(full.read(u64::MAX), Err(StackEnd::UnreadableMemory));
        assert_eq!(full.read(0x7fff_0000), Err(StackEnd::UnreadableMemory));
    }

    #[cfg(target_arch = "x86_64")] // Elsewhere the kernel's order is that of the tables.
    #[test]
    fn registers_of_a_sample_are_in_the_kernels_order() {
        let bytes: Vec<u8> = (0..REGISTERS as u64).flat_map(u64::to_le_bytes).collect();
        let user = UserState {
            is_64: true,
            regs: &bytes,
            stack: &[],
            full: false,
        };
        let Some(registers) = Registers::from_sample(&user) else {
            testkit::cannot("a sample has other registers");
            return;
        };
        // ax, bx, cx, dx are the kernel's first four; dx and bx are 1 and 3 in tables.
        assert_eq!(
            [0, 1, 2, 3].map(|n| registers.get(n)),
            [0, 3, 2, 1].map(Some)
        );
        assert_eq!((registers.sp(), registers.ip()), (7, 8));
        assert_eq!(registers.get(number::R15), Some(16));
    }

    #[test]
    fn a_caller_knows_only_what_calls_keep() {
        let bytes: Vec<u8> = (0..REGISTERS as u64).flat_map(u64::to_le_bytes).collect();
        let user = UserState {
            is_64: true,
            regs: &bytes,
            stack: &[],
            full: false,
        };
        let Some(registers) = Registers::from_sample(&user) else {
            testkit::cannot("a sample has other registers");
            return;
        };
        let caller = registers.after_return(0x400, 0x7000);
        assert_eq!((caller.ip(), caller.sp()), (0x400, 0x7000));
        assert_eq!(caller.get(0), None, "it holds a result");
        let kept = crate::arch::PLACES[1];
        assert_eq!(caller.get(kept), registers.get(kept));
    }
}
