//! Walks the stacks of Erlang's virtual machine: those of its processes, by the tags of their
//! words, and those of the threads that run them.
//!
//! The BEAM virtual machine compiles functions to code that runs with the stack pointer in the heap
//! of an Erlang process. By default it keeps no frame pointers, and nothing describes its frames.
//! But its garbage collector and its own stack traces must distinguish return addresses from
//! values, and do so by the two lowest bits: those of a value are never both 0, those of a return
//! address always are (`is_CP` in the emulator). The outermost return address is that of the code
//! that ends a process, which is the same for all (`daemon/jit/src/rules/beam.rs`).
//!
//! A function that has just made room for values has not written all of them yet. An old return
//! address may still be there, which would be one frame too many. So a stack counts only if every
//! word that looks like a return address is an address of generated code, up to the outermost one.
//!
//! C functions of the emulator run on the stack of their thread. Generated code called them, in a
//! frame of 17 KiB that nothing describes, which the thread's own function entered by a call of
//! `process_main`: its return address is the next word that follows such a call. The stack does not
//! say which process it was, so it ends like other code that runs in the frame of the function that
//! entered it.

use super::{Cursor, Engine, Next};
use crate::info::generated::BeamStacks;
use crate::info::state::Registers;
use crate::process::space::Backing;
use crate::walk::StackBuffer;
use crate::walk::cut::{Cut, FramePlace};
use host::frame::RawFrame;
use host::ids::Avma;
use profile::StackEnd;

/// The bits that distinguish values from return addresses.
const TAG: u64 = 3;

/// Words looked at for the return address of a thread's call. Unit: words, of 8 bytes, at 1 ns
/// each.
const THREAD_WORDS_MAX: u64 = 4096;

/// Cost of an attempt to walk an Erlang stack: it reads up to 7,000 words.
const OPERATIONS: u32 = 128;

impl Engine {
    /// Passes Erlang code, which is the last frame in `out`.
    pub(in crate::walk) fn through_beam(
        &mut self,
        cursor: &mut Cursor<'_>,
        beam: &BeamStacks,
        (address, leaf): (Avma, bool),
        depth_max: usize,
        out: &mut StackBuffer,
    ) -> Next {
        let Some(left) = self.operations.get().checked_sub(OPERATIONS) else {
            return Next::End(StackEnd::WorkLimit);
        };
        self.operations.set(left);
        if let Some(end) = callers(cursor, beam.exit, depth_max, out) {
            self.counts.beam_stacks += 1;
            return Next::End(end);
        }
        // With a switch it keeps frame pointers.
        match self.through_generated(cursor, address, leaf) {
            Next::End(StackEnd::GeneratedCode) => {}
            next => return next,
        }
        match thread_caller(cursor, &beam.entered) {
            Ok(caller) => {
                cursor.registers = caller;
                cursor.exact = false;
                self.counts.by_lent_frame += 1;
                self.lent = true;
                if let Some(FramePlace::Beam(_)) = self.wanted {
                    self.passed = Some(out.frames.len());
                }
                Next::Caller
            }
            Err(end) => {
                // Most of that frame is never touched. A leaf may be on an Erlang stack after all.
                let entered = match *beam.entered {
                    [only] if !leaf => Some(only),
                    _ => None,
                };
                let cut = cursor.cut_at(cursor.stack.end());
                self.cut = cut.map(|cut| Cut {
                    place: FramePlace::Beam(entered),
                    ..cut
                });
                Next::End(end)
            }
        }
    }
}

/// Adds the callers of generated code, which is the last frame in `out`, where its stack pointer is
/// in an Erlang stack that ends at `exit`. `None` when it is not: nothing is added.
fn callers(
    cursor: &Cursor<'_>,
    exit: u64,
    depth_max: usize,
    out: &mut StackBuffer,
) -> Option<StackEnd> {
    let before = out.frames.len();
    let end = add_callers(cursor, exit, depth_max, out);
    if end.is_none() {
        out.frames.truncate(before);
    }
    end
}

fn add_callers(
    cursor: &Cursor<'_>,
    exit: u64,
    depth_max: usize,
    out: &mut StackBuffer,
) -> Option<StackEnd> {
    let space = cursor.process.space();
    let is_generated = |ip: u64| {
        let mapping = space.find(Avma(ip.wrapping_sub(1)));
        mapping.is_some_and(|mapping| mapping.backing == Backing::Jit)
    };
    let (before, mut last) = (out.frames.len(), None);
    for slot in (0..).map(|word: u64| cursor.registers.sp().wrapping_add(word * 8)) {
        let word = match cursor.stack.read(slot) {
            Ok(word) => word,
            // It goes on behind the copy.
            Err(StackEnd::CopyTooSmall) if out.frames.len() > before => {
                return Some(StackEnd::CopyTooSmall);
            }
            Err(_) => return None,
        };
        if word & TAG != 0 {
            continue;
        }
        // Recursion returns to one place many times.
        if last != Some(word) && !is_generated(word) {
            return None;
        }
        last = Some(word);
        if out.frames.len() >= depth_max {
            return Some(StackEnd::DepthLimit);
        }
        let call = Avma(word.wrapping_sub(1));
        out.frames.push(RawFrame::Jit(cursor.process.id, call));
        if word == exit {
            return Some(StackEnd::Complete);
        }
    }
    None
}

/// The registers of the function that entered generated code on the stack of its thread, by a call
/// that returns to one of `entered`.
///
/// # Errors
/// How the stack ends where there is none.
fn thread_caller(cursor: &Cursor<'_>, entered: &[u64]) -> Result<Registers, StackEnd> {
    let sp = cursor.registers.sp();
    for slot in (0..THREAD_WORDS_MAX).map(|word| sp.wrapping_add(word * 8)) {
        let word = cursor.stack.read(slot)?;
        if entered.contains(&word) {
            // What the generated code did to the other registers is not known.
            return Ok(Registers::at_return(word, slot.wrapping_add(8)));
        }
    }
    Err(StackEnd::GeneratedCode)
}
