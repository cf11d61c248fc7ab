//! The caller of generated code of whose frame nothing is known: the nearest word on its stack that
//! may be a return address and from which the stack is whole.
//!
//! Compilers that keep no frame pointer and tell no unwinding information (LuaJIT, Guile) run their
//! code in one frame below the function that entered it. What lies in that frame is not known; what
//! called it has tables. A word is taken for the return address only where tables describe a
//! function with a frame of its own there, and their rules lead, from its place on the stack, step by
//! step to a function that nobody called; and only where its call can have led to generated code
//! (`call_sites.rs`), for a word that an earlier call left behind may lead to the same callers.
//!
//! Callers that are generated code themselves are not found: any word may be an address in it.
//!
//! Where the frame is known after all, by what a runtime tells, every [`CHECK_EVERY`]th is scanned
//! as well, and the result compared: [`ScanCounts`].

use super::StackBuffer;
use super::engine::{Cursor, Engine};
use super::rule::{Rule, Step};
use super::state::Registers;
use crate::aggregate::batch::RawFrame;
use crate::ids::Avma;
use crate::process::space::Backing;
use profile::StackEnd;

/// Words looked at from the stack pointer up. Unit: words, of 8 bytes. LuaJIT keeps at most 1 KiB of
/// values there, beside 80 bytes of saved registers.
const WORDS_MAX: usize = 256;

/// Words tried for one stack, from which the walk goes on. Further ones are not.
const TRIES_MAX: u32 = 32;

/// Frames walked in all tries for one stack. At 40 ns each they cost 40 µs.
const STEPS_MAX: u32 = 1024;

/// Of so many frames of generated code whose caller is known and described one is scanned to compare.
const CHECK_EVERY: u64 = 16;

/// What scans found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanCounts {
    /// Frames of generated code whose caller was scanned for.
    pub attempts: u64,
    /// Those where one was found.
    pub found: u64,
    /// Frames of generated code whose caller is known, and one that a scan could find.
    pub known: u64,
    /// Results compared with a known caller.
    pub checked: u64,
    /// Those that were another.
    pub wrong: u64,
}

/// What scans may still do for one stack.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scanner {
    /// The last walk came to a function that nobody called.
    pub outermost: bool,
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

impl Engine {
    /// Goes on from generated code, whose frame is the last in `out`, by scanning.
    pub(super) fn scan(
        &mut self,
        cursor: &mut Cursor<'_>,
        depth_max: usize,
        out: &mut StackBuffer,
    ) -> StackEnd {
        self.counts.scans.attempts += 1;
        let from = cursor.registers;
        let found = self.first_caller(cursor, depth_max, out);
        if found.is_none() {
            cursor.registers = from;
            (self.cut, self.switch) = Default::default();
            return StackEnd::GeneratedCode;
        }
        self.counts.scans.found += 1;
        StackEnd::Scanned
    }

    /// Compares what a scan would find with the caller of generated code that is known to be right.
    pub(super) fn check_scan(&mut self, cursor: &Cursor<'_>, known: &Registers) {
        if !self.scans || self.may_have_called(cursor, known.ip()) != Some(true) {
            return;
        }
        self.counts.scans.known += 1;
        if !self.counts.scans.known.is_multiple_of(CHECK_EVERY) {
            return;
        }
        let mut aside = Cursor { ..*cursor };
        let mut out = std::mem::take(&mut self.scanned);
        out.clear();
        out.frames.push(RawFrame::Jit(
            cursor.process.id,
            Avma(cursor.registers.ip()),
        ));
        let before = (self.scanner, self.counts);
        let found = self.first_caller(&mut aside, usize::MAX, &mut out);
        (self.scanner, self.counts) = before;
        (self.cut, self.switch) = Default::default();
        self.scanned = out;
        if let Some(found) = found {
            self.counts.scans.checked += 1;
            let wrong = (found.ip(), found.sp()) != (known.ip(), known.sp());
            self.counts.scans.wrong += u64::from(wrong);
        }
    }

    /// The registers of the nearest caller from which the stack is whole, whose frames are added.
    fn first_caller(
        &mut self,
        cursor: &mut Cursor<'_>,
        depth_max: usize,
        out: &mut StackBuffer,
    ) -> Option<Registers> {
        let from = cursor.registers;
        let (frames, files) = (out.frames.len(), out.files.len());
        for slot in (0..WORDS_MAX as u64).map(|word| from.sp().wrapping_add(word * 8)) {
            let word = cursor.stack.read(slot).ok()?;
            match self.may_have_called(cursor, word) {
                Some(true) => {}
                Some(false) => continue,
                // Nothing further out can be told from what is behind this one.
                None => return None,
            }
            if self.scanner.tries == TRIES_MAX {
                return None;
            }
            self.scanner.tries += 1;
            self.scanner.outermost = false;
            let caller = from.after_return(word, slot.wrapping_add(8));
            (cursor.registers, cursor.exact) = (caller, false);
            match self.go_on(cursor, depth_max, out) {
                StackEnd::Scanned => return Some(caller),
                StackEnd::Complete if self.scanner.outermost => return Some(caller),
                _ => {}
            }
            out.frames.truncate(frames);
            out.files.truncate(files);
        }
        None
    }

    /// True when tables describe the function that a word returns to, which has a frame, and made
    /// a call that can have led to generated code. `None` while nothing is known of the call.
    fn may_have_called(&mut self, cursor: &Cursor<'_>, word: u64) -> Option<bool> {
        let before = Avma(word.wrapping_sub(1));
        let Some(mapping) = cursor.process.space().find(before) else {
            return Some(false);
        };
        let Backing::File(file) = mapping.backing else {
            return Some(false);
        };
        let (rule, _) = self.rule(file, mapping.offset_of(before), cursor.now);
        let has_frame = matches!(rule.step, Step::Saved { .. } | Step::Computed)
            && rule.step != Rule::return_address_at(0).step;
        let described = !(rule.derived || rule.signal || rule.entered);
        if !has_frame || !described {
            return Some(false);
        }
        let place = (file, mapping.offset_of(Avma(word)));
        self.call_sites.leads(place)
    }
}
