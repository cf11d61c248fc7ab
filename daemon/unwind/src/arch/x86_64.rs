//! x86-64: a call pushes the return address, so every frame ends with it.

mod calls;

use super::GoFrame;
pub use calls::{CALL_BYTES, called, direct_target, pointer_call};

/// Numbers of the registers in unwind tables.
pub mod number {
    pub use crate::arch::psabi::*;

    /// The stack pointer, on any architecture.
    pub const SP: u16 = RSP;
    /// The frame pointer where there is one, on any architecture.
    pub const FP: u16 = RBP;
}

/// Number of registers that unwinding knows.
pub const REGISTERS: usize = 17;

/// A set of registers, by bit.
pub type RegisterSet = u32;

/// Where each register of the sample's mask goes: the kernel's order is ax, bx, cx, dx, si, di, bp,
/// sp, ip, r8–r15 (`enum perf_event_x86_regs`).
pub const ORDER: [u16; REGISTERS] = [0, 3, 2, 1, 4, 5, 6, 7, 16, 8, 9, 10, 11, 12, 13, 14, 15];

/// Registers that a called function gives back as it found them.
pub const KEPT_OVER_CALLS: RegisterSet = 1 << number::RBX
    | 1 << number::RBP
    | 1 << number::R12
    | 1 << number::R13
    | 1 << number::R14
    | 1 << number::R15;

/// Registers with a place in rules, the return address first.
pub const PLACES: [u16; 7] = [
    number::RA,
    number::RBX,
    number::RBP,
    number::R12,
    number::R13,
    number::R14,
    number::R15,
];

/// Which of [`PLACES`] is the frame pointer's.
pub const FRAME_POINTER_PLACE: usize = 2;

/// The column of unwind tables that has the return address.
pub const RETURN_COLUMN: u16 = number::RA;

/// The vendor whose unwind extensions are understood.
pub const CFI_VENDOR: gimli::Vendor = gimli::Vendor::Default;

/// The register that has the return address until it is saved.
pub const LINK_REGISTER: Option<u16> = None;

/// Behind the saved frame pointer and return address is the caller's frame.
pub const FRAME_RECORD_IS_LAST: bool = true;

/// Code of runtimes (Haskell, Erlang, trampolines of Python) is read for where its frames are.
pub const READS_RUNTIME_CODE: bool = true;

/// Functions may keep words below the stack pointer.
pub const HAS_RED_ZONE: bool = true;

/// `e_machine` of ELF files.
pub const ELF_MACHINE: u16 = 62;

/// The address of code that a word leads to.
#[inline(always)]
pub fn code_address(word: u64) -> u64 {
    word
}

/// True if a walk at `sp` is past the frame with its return address at `slot`.
#[inline(always)]
pub fn has_passed(slot: u64, sp: u64, _before: bool) -> bool {
    slot.wrapping_add(8) == sp
}

/// The frame of a function of Go. One with a frame starts it with the caller's frame pointer; until
/// Go 1.20 that is written two instructions after the stack pointer has changed.
pub fn go_frame(depth: i32, _injected: bool) -> Option<GoFrame> {
    Some(GoFrame {
        cfa: depth.checked_add(8)?,
        returns_at: Some(-1),
        frame_pointer_at: (depth >= 8).then_some(-2),
    })
}

/// Instructions of Go that save the caller's frame pointer and set the own one: `push %rbp; mov
/// %rsp,%rbp` from 1.21 on, `mov %rbp,N(%rsp); lea N(%rsp),%rbp` before.
pub const GO_KEEPS_FRAME_POINTER: [&[u8]; 2] =
    [&[0x55, 0x48, 0x89, 0xe5], &[0x48, 0x89, 0x6c, 0x24]];

/// Where the registers are that a signal struck in, from the stack pointer of the function that its
/// handler returns to: behind flags, link and stack of `struct ucontext` (`struct rt_sigframe`,
/// `arch/x86/include/asm/sigframe.h`). Unit: bytes.
pub const SIGNAL_REGISTERS_AT: i64 = 40;

/// In the order of `struct sigcontext`: r8 to r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp; then
/// rip.
pub const SIGNAL_ORDER: [u16; 16] = [
    8,
    9,
    10,
    11,
    12,
    13,
    14,
    15,
    5,
    4,
    6,
    3,
    1,
    0,
    2,
    number::RSP,
];

/// What the function starts with that a signal handler returns to, where nothing describes it.
pub const SIGNAL_RETURN: Option<[u8; 8]> = None;

/// Length of the first entry of a procedure linkage table that leads to the dynamic linker, and of
/// the others. Unit: bytes.
pub const PLT_FIRST_BYTES: u64 = 16;
const PLT_ENTRY_BYTES: u64 = 16;

/// Where in the first entry of a procedure linkage table, which starts so, it has pushed, if it is
/// the way to the dynamic linker: `push [rip + GOT + 8]` starts that and nothing else.
pub fn plt_pushes_at(first: &[u8; 8]) -> Option<u64> {
    (first[..2] == [0xff, 0x35]).then_some(6)
}

/// Bytes between the stack pointer and the return address at a place in a procedure linkage table;
/// `None`: as at the first instruction of a function. An entry jumps (6 bytes), pushes (5 bytes)
/// and jumps to the first entry, which pushes too.
pub fn plt_pushed(at: u64, pushes_at: Option<u64>, lazy: bool) -> Option<i32> {
    let into = at % PLT_ENTRY_BYTES;
    match pushes_at {
        Some(from) if at < PLT_FIRST_BYTES => Some(if into >= from { 16 } else { 8 }),
        _ if lazy && into >= 11 => Some(8),
        _ => Some(0),
    }
}
