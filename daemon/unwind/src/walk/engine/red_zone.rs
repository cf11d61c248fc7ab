//! Unwinds frames with a CFA stored below the stack pointer, in a word that no sample has.
//!
//! OpenSSL's code for SHA-256 and SHA-512 on AVX2 moves the stack pointer in its loop, and its
//! unwind table reads the CFA at -8(%rsp), in the red zone. The kernel copies stacks only from the
//! stack pointer upwards. The same word is also in the frame, from the prologue: it is the only
//! word there that points further up, to a return address.
//!
//! A call would overwrite the red zone, so only frames that have not made a call are examined: the
//! leaf, and a frame interrupted by a signal. A stack of many frames with such tables costs no
//! more.

use super::{Cursor, Engine};
use crate::arch;
use crate::info::state::Registers;
use crate::info::words::Words;
use crate::walk::modules::ModuleState;
use host::ids::{Avma, FileId, FileOffset};

/// How far up the word is looked for, and from the stack pointer to where it points. Unit: bytes.
/// OpenSSL's frames have 1.5 KiB, and are aligned to 2 KiB.
const WORD_REACH: u64 = 4 << 10;
const FRAME_REACH: u64 = 8 << 10;

/// The word below the stack pointer: one word, of which the walk changes address and value.
pub(in crate::walk) fn one_word() -> Words {
    Words {
        base: 0,
        at: [0].into(),
        values: [0].into(),
    }
}

impl Engine {
    /// The caller by a row that could not be computed, if what it lacks is that word. `None` where
    /// there is no such word in the frame, or more than one.
    pub(in crate::walk) fn by_red_zone(
        &mut self,
        cursor: &Cursor<'_>,
        file: FileId,
        offset: FileOffset,
    ) -> Option<Registers> {
        if !arch::HAS_RED_ZONE || !cursor.exact {
            return None;
        }
        let (stack, sp) = (&cursor.stack, cursor.registers.sp());
        let is_code = |ip: u64| {
            let call = Avma(arch::code_address(ip).wrapping_sub(1));
            cursor.process.space().find(call).is_some()
        };
        let mut found = None;
        let end = stack.end().min(sp.checked_add(WORD_REACH)?);
        let mut at = sp.next_multiple_of(8);
        while at < end {
            let word = stack.read(at).ok()?;
            let points_up = word > at && word - sp < FRAME_REACH && word % 8 == 0;
            if points_up && stack.read(word).is_ok_and(is_code) {
                if found.is_some_and(|found| found != word) {
                    return None;
                }
                found = Some(word);
            }
            at += 8;
        }
        self.red_zone.base = sp.wrapping_sub(8);
        *self.red_zone.values.first_mut()? = found?;
        let ModuleState::Here(module) = self.modules.get(file, cursor.now) else {
            return None;
        };
        let stack = stack.with(&self.red_zone);
        let caller = module.compute(offset, &cursor.registers, &stack, &self.operations);
        let caller = caller.ok().filter(|caller| caller.sp() > sp)?;
        cursor.leads_to_code(&caller).then_some(caller)
    }
}
