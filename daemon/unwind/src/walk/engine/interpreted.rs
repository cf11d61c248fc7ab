//! Frames of functions that HotSpot interprets. The interpreter's code is the same for all of them;
//! a frame has the address of its method at a fixed place below the frame pointer, and the address
//! takes the place of the frame's own: `fp-jit` has its name (`daemon/jit/src/hotspot.rs`).
//!
//! A function that is entered or left has no such frame for some instructions: then it is missing,
//! or has no name. Compiled callers are found by the size of their frame, from where their stack
//! pointer was at the call: code between them and an interpreted function moves it, so the frame
//! has that too. Seen with OpenJDK 17 on x86-64.

use super::{Cursor, Engine, Next};
use crate::info::state::number;
use crate::walk::StackBuffer;
use host::frame::RawFrame;
use host::ids::Avma;

/// Where a frame has its method, and its caller's stack pointer. Unit: bytes below the frame
/// pointer.
const METHOD_BELOW: u64 = 24;
const CALLER_SP_BELOW: u64 = 8;

/// How far apart a frame's end and its caller's stack pointer can be. Unit: bytes. A method has up
/// to 65,535 local variables.
const LOCALS_BYTES_MAX: u64 = 8 * 65_536;

impl Engine {
    /// Passes the frame of an interpreted function; `None` where it is none.
    pub(super) fn through_interpreted(
        &mut self,
        cursor: &mut Cursor<'_>,
        address: Avma,
        out: &mut StackBuffer,
    ) -> Option<Next> {
        let Cursor {
            process,
            registers,
            stack,
            ..
        } = &*cursor;
        if !process.generated()?.is_interpreted(address) {
            return None;
        }
        let frame = registers.get(number::FP)?;
        if frame < registers.sp() || frame % 8 != 0 {
            return None;
        }
        let word = |at: u64| stack.read(at).ok();
        let method = word(frame.checked_sub(METHOD_BELOW)?)?;
        let caller_sp = word(frame.checked_sub(CALLER_SP_BELOW)?)?;
        let (saved, ip) = (word(frame)?, word(frame.checked_add(8)?)?);
        let end = frame.checked_add(16)?;
        let sound = method != 0 && method % 8 == 0 && caller_sp % 8 == 0;
        if !sound || !(end..end.checked_add(LOCALS_BYTES_MAX)?).contains(&caller_sp) {
            return None;
        }
        let mut caller = registers.after_return(ip, caller_sp);
        caller.set(number::FP, saved);
        if !cursor.leads_to_code(&caller) {
            return None;
        }
        stack.goes_by(registers, number::FP);
        out.frames.push(RawFrame::Jit(process.id, Avma(method)));
        self.counts.interpreted += 1;
        cursor.registers = caller;
        cursor.exact = false;
        Some(Next::Caller)
    }
}
