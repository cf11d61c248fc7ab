//! The result of one read of a thread's stack memory: addresses, and the evidence that they are
//! valid.
//!
//! Stack bytes may contain secrets. Only words that can be steps of a stack are kept: a return
//! address, which points into executable memory, and a saved frame address, which points further
//! out on the same stack. Everything else stays in the buffer it was read into.
//!
//! The result is valid only for the very call that its first return address belongs to. A frame of
//! the same function at the same place may have another caller by now, and no sample shows that,
//! because the caller is beyond its copy. So the word is watched ([`Watchpoint`]) from before it is
//! read, and a sample may be completed with the result as long as the word has not been written.

use crate::arch::code_address;
use crate::info::words::Words;
use host::ids::{Pid, ProcessId, Tid};
use host::time::MonotonicTime;
use perf::watch::Watchpoint;
use std::ops::Range;

/// Words kept of a look. 12 bytes each. A stack of 256 KiB of rustc has about 3,000; what lies
/// further out is left out.
pub const WORDS_MAX: usize = 8192;

/// A thread of a process of one lifetime and one executable.
pub type Thread = (ProcessId, Tid);

/// What is asked for: a look at a stack from a return address on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackReadRequest {
    /// The thread that owns the stack.
    pub thread: Thread,
    /// The process's pid.
    pub pid: Pid,
    /// Where the return address of the cut frame is.
    pub slot: u64,
}

/// An answer: the look, or why there is none.
#[derive(Debug)]
pub struct StackReadAnswer {
    /// The requested value.
    pub wanted: StackReadRequest,
    /// Its result.
    pub look: Result<StackSnapshot, Failure>,
}

/// A look.
#[derive(Debug)]
pub struct StackSnapshot {
    /// The words.
    pub words: Words,
    /// Watches the return address since before it was read.
    pub watch: Watchpoint,
    /// When the watch was on: samples from then on can be completed.
    pub armed: MonotonicTime,
}

/// Why a look was not had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The thread ended.
    Gone,
    /// Not permitted to read its memory or to watch it.
    Denied,
    /// All its watches are in use by a debugger.
    Busy,
    /// This machine has no watches.
    Unsupported,
    /// Nothing readable is there.
    Unreadable,
    /// The call returned while it was looked at.
    Returned,
    /// It has more mappings than are read.
    Mappings,
    /// Reading it did not come to an end in time.
    Late,
    /// It did not come to an end for this process before, or too many others hang.
    Shunned,
}

impl Failure {
    /// All, in order.
    pub const ALL: [Failure; 9] = [
        Failure::Gone,
        Failure::Denied,
        Failure::Busy,
        Failure::Unsupported,
        Failure::Unreadable,
        Failure::Returned,
        Failure::Mappings,
        Failure::Late,
        Failure::Shunned,
    ];

    /// As in metrics.
    pub fn word(self) -> &'static str {
        match self {
            Failure::Gone => "gone",
            Failure::Denied => "denied",
            Failure::Busy => "busy",
            Failure::Unsupported => "unsupported",
            Failure::Unreadable => "unreadable",
            Failure::Returned => "returned",
            Failure::Mappings => "mappings",
            Failure::Late => "late",
            Failure::Shunned => "shunned",
        }
    }
}

/// Picks the words to keep.
#[derive(Debug)]
pub struct Sieve<'a> {
    /// Executable ranges in order.
    code: &'a [Range<u64>],
    /// The end of the stack.
    stack_end: u64,
    base: u64,
    at: Vec<u32>,
    values: Vec<u64>,
}

impl<'a> Sieve<'a> {
    /// Creates it for the stack from `base` to `stack_end` of a process with executable memory
    /// `code`, in order.
    pub fn new(base: u64, stack_end: u64, code: &'a [Range<u64>]) -> Sieve<'a> {
        Sieve {
            code,
            stack_end,
            base,
            at: Vec::new(),
            values: Vec::new(),
        }
    }

    /// Adds the bytes at `address`, a multiple of eight; each call must be further out. False if
    /// the limit is reached.
    pub fn add(&mut self, address: u64, bytes: &[u8]) -> bool {
        for (number, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
            let here = address + 8 * number as u64;
            let word = u64::from_le_bytes(*word);
            if !self.is_step(here, word) {
                continue;
            }
            let Ok(at) = u32::try_from(here - self.base) else {
                return false;
            };
            if self.at.len() == WORDS_MAX {
                return false;
            }
            self.at.push(at);
            self.values.push(word);
        }
        true
    }

    /// True for a word at `here` that leads further out on the stack or into code.
    fn is_step(&self, here: u64, word: u64) -> bool {
        if here < word && word < self.stack_end {
            return word.is_multiple_of(8);
        }
        // A return address may lie behind the end of its function.
        let call = code_address(word).wrapping_sub(1);
        let after = self.code.partition_point(|range| range.start <= call);
        self.code[..after]
            .last()
            .is_some_and(|range| call < range.end)
    }

    /// The stored words.
    pub fn words(self) -> Words {
        Words {
            base: self.base,
            at: self.at.into(),
            values: self.values.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CODE: &[Range<u64>] = &[0x40_0000..0x50_0000, 0x7f00_0000_0000..0x7f00_0001_0000];
    const BASE: u64 = 0x7ffc_0000_0000;
    const END: u64 = BASE + 0x1_0000;

    fn sieved(words: &[u64]) -> Words {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut sieve = Sieve::new(BASE, END, CODE);
        assert!(sieve.add(BASE, &bytes));
        sieve.words()
    }

    fn check(word: u64, kept: bool) {
        let words = sieved(&[0, word]);
        assert_eq!(words.get(BASE + 8), kept.then_some(word), "{word:#x}");
        assert_eq!(words.len(), usize::from(kept));
    }

    #[test]
    fn return_addresses_are_kept() {
        check(0x40_0001, true);
        check(0x50_0000, true);
        check(0x40_0000, false);
        check(0x50_0001, false);
        check(0x7f00_0000_1234, true);
    }

    #[test]
    fn frame_addresses_further_out_are_kept() {
        check(BASE + 16, true);
        check(END - 8, true);
        check(END, false);
        check(BASE + 8, false);
        check(BASE, false);
        check(BASE + 17, false);
    }

    #[test]
    fn a_secret_is_not_kept() {
        let secret = b"correct horse battery staple, and some more of that";
        let (chunks, _) = secret.as_chunks::<8>();
        let secret: Vec<u64> = chunks
            .iter()
            .map(|chunk| u64::from_le_bytes(*chunk))
            .collect();
        let mut stack = secret.clone();
        stack.push(0x40_1000);
        stack.extend(&secret);
        let words = sieved(&stack);
        assert_eq!(words.len(), 1);
        assert_eq!(words.get(BASE + 8 * secret.len() as u64), Some(0x40_1000));
    }

    #[test]
    fn no_more_is_kept_than_the_bound() {
        let bytes = 0x40_1000u64.to_le_bytes().repeat(WORDS_MAX + 1);
        let mut sieve = Sieve::new(BASE, END + 0x10_0000, CODE);
        assert!(!sieve.add(BASE, &bytes));
        assert_eq!(sieve.words().len(), WORDS_MAX);
    }

    proptest! {
        /// Whatever lies on a stack, what is kept are addresses of code and of the stack.
        #[test]
        fn only_addresses_are_kept(stack in proptest::collection::vec(any::<u64>(), 1..200), near in 0u64..0x2_0000) {
            let mut stack = stack;
            stack.extend([BASE + near, 0x40_0000 + near, 0x7f00_0000_0000 + near]);
            let words = sieved(&stack);
            for (number, &word) in stack.iter().enumerate() {
                let here = BASE + 8 * number as u64;
                if words.get(here).is_some() {
                    prop_assert_eq!(words.get(here), Some(word));
                    let code = CODE.iter().any(|range| range.contains(&(word - 1)));
                    prop_assert!(code || (here + 1..END).contains(&word));
                }
            }
        }
    }
}
