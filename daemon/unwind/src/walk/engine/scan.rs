//! Finds the caller of generated code with an unknown frame: the nearest word on its stack that may
//! be a return address and from which the stack is complete.
//!
//! Compilers that keep no frame pointer and write no unwind information (LuaJIT, Guile) run their
//! code in one frame below the function that entered it. The layout of that frame is unknown; its
//! caller has tables. A word is taken for the return address only if tables describe a function
//! with a frame of its own there, if their rules lead, from its place on the stack alone, step by
//! step to an outermost function, and if its call can have led to generated code (`call_sites.rs`),
//! because a word left by an earlier call may lead to the same callers.
//!
//! A word is skipped only if it is refuted. If something about it is unknown, or not known yet, the
//! scan ends: continuing would give a stack that looks complete but lacks callers. Callers that are
//! generated code themselves are not found, because any word may be an address in it.
//!
//! If the frame is known after all, from what a runtime publishes, every [`CHECK_EVERY`]th is
//! scanned as well, and the results are compared: [`ScanCounts`].

use super::{Cursor, Engine};
use crate::arch::code_address;
use crate::info::rule::{Rule, Step};
use crate::info::state::Registers;
use crate::process::space::Backing;
use crate::walk::StackBuffer;
use crate::walk::call_sites::CallSite;
use host::frame::RawFrame;
use host::ids::Avma;
use profile::StackEnd;

/// Words scanned from the stack pointer up. Unit: words of 8 bytes. LuaJIT has at most 1 KiB of
/// values there, plus 80 bytes of saved registers.
const WORDS_MAX: u64 = 256;

/// Words looked at in all scans of one stack. At 20 ns each they cost 20 µs.
const ALL_WORDS_MAX: u32 = 1024;

/// Words tried for one stack, from which the walk goes on.
const TRIES_MAX: u32 = 32;

/// Frames walked in all tries for one stack. At 40 ns each they cost 40 µs.
const STEPS_MAX: u32 = 1024;

/// For comparison, one in this many frames of generated code with a known caller is scanned too.
const CHECK_EVERY: u64 = 16;

/// Counters of scans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanCounts {
    /// Frames of generated code for which the stack was scanned.
    pub attempts: u64,
    /// Those where one was found.
    pub found: u64,
    /// Frames of generated code with a known caller.
    pub known: u64,
    /// Results compared with a known caller.
    pub checked: u64,
    /// Scans that found another caller.
    pub wrong: u64,
}

/// Scan work for one stack.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::walk) struct Scanner {
    /// The last walk came to a function that nobody called.
    pub outermost: bool,
    /// A known caller was compared.
    compared: bool,
    words: u32,
    tries: u32,
    steps: u32,
}

impl Scanner {
    /// True when a frame may be walked: outside of tries always.
    pub fn may_step(&mut self) -> bool {
        self.steps += u32::from(self.tries > 0);
        self.steps <= STEPS_MAX
    }
}

/// Classification of a word on a stack.
enum Word {
    /// No return address of a call that led to generated code.
    Refuted,
    /// The return address of a call that can have led to generated code.
    Leads,
    /// Whether it is that is not known.
    Unclear,
    /// Nothing can be said, or not yet.
    Unknown,
}

impl Engine {
    /// Continues from generated code, which is the last frame in `out`, by scanning.
    pub(in crate::walk) fn scan(
        &mut self,
        cursor: &mut Cursor<'_>,
        depth_max: usize,
        out: &mut StackBuffer,
    ) -> StackEnd {
        self.counts.scans.attempts += 1;
        let from = cursor.registers;
        match self.first_caller(cursor, depth_max, out) {
            Ok(_) => {
                self.counts.scans.found += 1;
                StackEnd::Scanned
            }
            Err(end) => {
                cursor.registers = from;
                (self.cut, self.switch) = Default::default();
                end
            }
        }
    }

    /// Compares what a scan would find with the caller of generated code that is known to be right.
    /// At most once for a stack, and not within tries.
    pub(in crate::walk) fn check_scan(&mut self, cursor: &Cursor<'_>, known: &Registers) {
        if !self.scans || self.scanner.compared || self.scanner.tries > 0 {
            return;
        }
        self.counts.scans.known += 1;
        if !self.counts.scans.known.is_multiple_of(CHECK_EVERY) {
            return;
        }
        let space = cursor.process.space();
        let mapping = space.find(Avma(known.ip().wrapping_sub(1)));
        if !mapping.is_some_and(|mapping| matches!(mapping.backing, Backing::File(_))) {
            return;
        }
        let mut aside = Cursor { ..*cursor };
        let mut out = std::mem::take(&mut self.scanned);
        out.clear();
        let leaf = Avma(cursor.registers.ip());
        out.frames.push(RawFrame::Jit(cursor.process.id, leaf));
        let before = (self.scanner, self.counts, self.operations.get());
        let lent = self.lent;
        let found = self.first_caller(&mut aside, usize::MAX, &mut out);
        self.operations.set(before.2);
        self.lent = lent;
        (self.scanner, self.counts) = (before.0, before.1);
        (self.cut, self.switch) = Default::default();
        self.scanner.compared = true;
        self.scanned = out;
        if let Ok(found) = found {
            self.counts.scans.checked += 1;
            let wrong = (found.ip(), found.sp()) != (known.ip(), known.sp());
            self.counts.scans.wrong += u64::from(wrong);
        }
    }

    /// Returns the registers of the nearest caller from which the stack is complete; its frames are
    /// added.
    ///
    /// # Errors
    /// How the stack ends where none is found.
    fn first_caller(
        &mut self,
        cursor: &mut Cursor<'_>,
        depth_max: usize,
        out: &mut StackBuffer,
    ) -> Result<Registers, StackEnd> {
        let none = StackEnd::GeneratedCode;
        let from = cursor.registers;
        let (frames, files, lent) = (out.frames.len(), out.files.len(), self.lent);
        for slot in (0..WORDS_MAX).map(|word| from.sp().wrapping_add(word * 8)) {
            self.scanner.words += 1;
            if self.scanner.words > ALL_WORDS_MAX {
                return Err(none);
            }
            let word = cursor.stack.read(slot).map_err(|_| none)?;
            let leads = match self.word(cursor, word) {
                Word::Refuted => continue,
                Word::Unknown => return Err(none),
                Word::Leads => true,
                Word::Unclear => false,
            };
            if self.scanner.tries == TRIES_MAX {
                return Err(none);
            }
            self.scanner.tries += 1;
            self.scanner.outermost = false;
            // What the generated code did to the other registers is not known.
            let caller = Registers::at_return(word, slot.wrapping_add(8));
            (cursor.registers, cursor.exact) = (caller, false);
            self.lent = lent;
            let end = self.go_on(cursor, depth_max, out);
            let whole = match end {
                StackEnd::Scanned => true,
                StackEnd::Complete => self.scanner.outermost,
                // It contradicts itself.
                StackEnd::Unmapped | StackEnd::NoProgress => false,
                end => {
                    out.frames.truncate(frames);
                    out.files.truncate(files);
                    return Err(match end {
                        // More of the stack, or a file's tables, may show it.
                        StackEnd::CopyTooSmall | StackEnd::ModuleLoading if leads => end,
                        _ => none,
                    });
                }
            };
            if whole && leads {
                return Ok(caller);
            }
            out.frames.truncate(frames);
            out.files.truncate(files);
            if whole {
                return Err(none);
            }
        }
        Err(none)
    }

    /// Classifies a word.
    fn word(&mut self, cursor: &Cursor<'_>, word: u64) -> Word {
        let word = code_address(word);
        let before = Avma(word.wrapping_sub(1));
        let Some(mapping) = cursor.process.space().find(before) else {
            return Word::Refuted;
        };
        let Backing::File(file) = mapping.backing else {
            return Word::Refuted;
        };
        let (rule, _) = self.rule(file, mapping.offset_of(before), cursor.now);
        let described = match rule.step {
            // A pointer to a function: its first instruction, before which no call lies.
            step if step == Rule::at_first_instruction().step => return Word::Refuted,
            Step::Outermost => return Word::Refuted,
            Step::Saved { .. } | Step::Computed => !(rule.derived || rule.signal || rule.entered),
            Step::Unknown | Step::Switched(_) => false,
        };
        let place = (file, mapping.offset_of(Avma(word)));
        match self.call_sites.known(place, cursor.now) {
            Some(CallSite::Over) => Word::Refuted,
            Some(CallSite::Leads) if described => Word::Leads,
            Some(CallSite::Unclear) if described => Word::Unclear,
            _ => Word::Unknown,
        }
    }
}
