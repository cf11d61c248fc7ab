//! Decodes calls and jumps of arm64 for `walk/call_sites.rs`. All instructions have four bytes (Arm
//! Architecture Reference Manual, C6.2).

use crate::arch::a64::{Flow, Word};
use crate::arch::{Called, PointerCall};

/// A call, and what may have loaded its pointer: `adrp; ldr; blr`.
pub const CALL_BYTES: usize = 12;

/// Code ends there, but for what a pointer leads to.
fn ends(word: &Word) -> bool {
    matches!(word.flow(), Flow::Jump(_) | Flow::Return | Flow::Nowhere)
}

/// Hints, which do nothing where they are not known: `nop`, `bti`, `paciasp`.
fn is_hint(word: &Word) -> bool {
    word.is(0xd503_201f, 0xffff_f01f)
}

/// `adrp x16`, with which entries of linkage tables start.
fn begins_stub(word: Word) -> bool {
    word.is(0x9000_0010, 0x9f00_001f)
}

/// `ldr xT, [xN, #…]`: T.
fn loads(word: Word) -> Option<u32> {
    word.is(0xf940_0000, 0xffc0_0000).then_some(word.bits(0, 5))
}

fn words(code: &[u8]) -> impl DoubleEndedIterator<Item = Word> {
    let (words, _) = code.as_chunks::<4>();
    words.iter().map(|word| Word(u32::from_le_bytes(*word)))
}

/// Where the call goes that ends before `address`, if it is one to a fixed address.
pub fn direct_target(code: &[u8; CALL_BYTES], address: u64) -> Option<u64> {
    let Flow::Call(Some(distance)) = words(code).next_back()?.flow() else {
        return None;
    };
    let call = address.wrapping_sub(4);
    Some(call.wrapping_add_signed(i64::from(distance) * 4))
}

/// What the first instructions of a function show.
pub fn called(code: &[u8]) -> Called {
    let mut straight = words(code)
        .filter(|word| !is_hint(word))
        .take_while(|word| !ends(word));
    let begins = straight.next();
    let jumps = |word: Word| word.flow() == Flow::PointerJump;
    let jumps_on = begins.is_some_and(jumps) || straight.any(jumps);
    Called {
        jumps_on,
        is_stub: jumps_on && begins.is_some_and(begins_stub),
    }
}

/// The call through a pointer that ends before `_address`. Where the pointer was loaded right
/// before, from a page that is named, it may be in a linkage table: programs built without stubs
/// for them do that.
pub fn pointer_call(
    code: &[u8; CALL_BYTES],
    _address: u64,
    _is_linkage: impl Fn(u64) -> bool,
) -> PointerCall {
    let mut words = words(code);
    let (Some(page), Some(load), Some(call)) = (words.next(), words.next(), words.next()) else {
        return PointerCall::None;
    };
    let names_page = page.is(0x9000_0000, 0x9f00_0000);
    match call.flow() == Flow::Call(None) {
        false => PointerCall::None,
        true if names_page && loads(load) == Some(call.bits(5, 5)) => PointerCall::Linkage,
        true => PointerCall::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(words: [u32; 3]) -> [u8; CALL_BYTES] {
        let mut code = [0; CALL_BYTES];
        for (bytes, word) in code.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        code
    }

    const NOP: u32 = 0xd503_201f;

    #[test]
    fn a_direct_call_has_a_target() {
        let target = |call| direct_target(&code([NOP, NOP, call]), 0x4800);
        // bl .-0x100; bl .+8; b .+8
        assert_eq!(target(0x97ff_ffc0), Some(0x4800 - 4 - 0x100));
        assert_eq!(target(0x9400_0002), Some(0x4804));
        assert_eq!(target(0x1400_0002), None);
    }

    #[test]
    fn a_call_through_a_loaded_pointer_of_a_named_page_may_be_one_of_a_linkage_table() {
        let call = |words| pointer_call(&code(words), 0x4800, |_| false);
        // blr x3; blraa x3, x4
        assert_eq!(call([NOP, NOP, 0xd63f_0060]), PointerCall::Other);
        assert_eq!(call([NOP, NOP, 0xd73f_0864]), PointerCall::Other);
        // ldr x8, [x8, #24]; blr x8
        assert_eq!(call([NOP, 0xf940_0d08, 0xd63f_0100]), PointerCall::Other);
        // adrp x0, …; ldr x0, [x0, #24]; blr x0
        let linked = [0x9000_0000, 0xf940_0c00, 0xd63f_0000];
        assert_eq!(call(linked), PointerCall::Linkage);
        // ret; br x17
        assert_eq!(call([NOP, NOP, 0xd65f_03c0]), PointerCall::None);
        assert_eq!(call([NOP, NOP, 0xd61f_0220]), PointerCall::None);
    }

    #[test]
    fn a_function_that_jumps_on_is_told_from_one_that_returns() {
        let told = |words: &[u32]| {
            let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let called = called(&code);
            (called.jumps_on, called.is_stub)
        };
        // bti c; adrp x16; ldr x17, [x16, #8]; add x16, x16, #8; br x17: a linkage table.
        let stub = [
            0xd503_245f,
            0x9000_0110,
            0xf940_0611,
            0x9100_2210,
            0xd61f_0220,
        ];
        assert_eq!(told(&stub), (true, true));
        // mov x1, x2; br x3
        assert_eq!(told(&[0xaa02_03e1, 0xd61f_0060]), (true, false));
        // ret, and behind it another function's br x3
        assert_eq!(told(&[0xd65f_03c0, 0xd61f_0060]), (false, false));
        // retaa
        assert_eq!(told(&[0xd65f_0bff, 0xd61f_0060]), (false, false));
    }
}
