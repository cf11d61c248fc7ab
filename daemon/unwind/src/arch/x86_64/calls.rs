//! Decodes calls and jumps of x86-64 for `walk/call_sites.rs`.

use crate::arch::{Called, PointerCall};
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl};

/// Longest instruction that calls through a pointer, with a prefix.
pub const CALL_BYTES: usize = 8;

/// Where the call goes that ends before `address`, if it is one to a fixed address.
pub fn direct_target(code: &[u8; CALL_BYTES], address: u64) -> Option<u64> {
    let [.., 0xe8, a, b, c, d] = *code else {
        return None;
    };
    let distance = i64::from(i32::from_le_bytes([a, b, c, d]));
    Some(address.wrapping_add_signed(distance))
}

/// What the first instructions of a function show.
pub fn called(code: &[u8]) -> Called {
    let all = Decoder::new(64, code, DecoderOptions::NONE);
    let mut straight = all
        .into_iter()
        .take_while(|instruction| !instruction.is_invalid())
        .filter(|instruction| instruction.code() != Code::Endbr64)
        .take_while(|instruction| {
            use FlowControl::{Interrupt, Return, UnconditionalBranch};
            let flow = instruction.flow_control();
            !matches!(flow, Return | UnconditionalBranch | Interrupt)
        })
        .map(|instruction| instruction.flow_control() == FlowControl::IndirectBranch);
    let is_stub = straight.next().unwrap_or(false);
    Called {
        jumps_on: is_stub || straight.any(|jumps| jumps),
        is_stub,
    }
}

/// The call through a pointer that ends with these bytes, before `address`: instructions of any
/// length may. One through a fixed place counts most.
pub fn pointer_call(
    code: &[u8; CALL_BYTES],
    address: u64,
    is_linkage: impl Fn(u64) -> bool,
) -> PointerCall {
    let calls = (2..=CALL_BYTES).filter_map(|len| {
        let bytes = &code[CALL_BYTES - len..];
        let ip = address.wrapping_sub(len as u64);
        let instruction = Decoder::with_ip(64, bytes, ip, DecoderOptions::NONE).decode();
        let whole = instruction.len() == len;
        (whole && instruction.flow_control() == FlowControl::IndirectCall).then_some(instruction)
    });
    let mut found = PointerCall::None;
    for call in calls {
        let fixed = call.is_ip_rel_memory_operand();
        if fixed && is_linkage(call.ip_rel_memory_address()) {
            return PointerCall::Linkage;
        }
        found = PointerCall::Other;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_that_jumps_on_is_told_from_one_that_returns() {
        let told = |code: &[u8]| {
            let called = called(code);
            (called.jumps_on, called.is_stub)
        };
        // endbr64; jmp *x(%rip): a linkage table.
        let stub = [0xf3, 0x0f, 0x1e, 0xfa, 0xff, 0x25, 1, 2, 3, 4];
        assert_eq!(told(&stub), (true, true));
        // push %rbx; jmp *%rdi
        assert_eq!(told(&[0x53, 0xff, 0xe7]), (true, false));
        // ret, and behind it another function's jmp *%rdi
        assert_eq!(told(&[0xc3, 0xff, 0xe7]), (false, false));
    }
}
