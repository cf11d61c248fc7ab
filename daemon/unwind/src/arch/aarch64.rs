//! arm64: a call leaves the return address in x30. Functions that call others save it, mostly next
//! to the frame pointer at the lowest address of their frame. It may be signed: its upper bits then
//! contain an authentication code.

mod calls;

use super::GoFrame;
pub use super::a64::ELF_MACHINE;
pub use calls::{CALL_BYTES, called, direct_target, pointer_call};

/// Numbers of the registers in unwind tables (DWARF for the Arm 64-bit Architecture, 4.1).
pub mod number {
    /// x19, the first that is kept over calls.
    pub const X19: u16 = 19;
    /// x29, kept over calls: the frame pointer.
    pub const FP: u16 = 29;
    /// x30, the link register: the return address until it is saved.
    pub const LR: u16 = 30;
    /// The stack pointer.
    pub const SP: u16 = 31;
    /// The instruction pointer.
    pub const RA: u16 = 32;
}

/// Number of registers that unwinding knows.
pub const REGISTERS: usize = 33;

/// A set of registers, by bit.
pub type RegisterSet = u64;

/// Where each register of the sample's mask goes: the kernel's order is x0 to x29, lr, sp, pc
/// (`enum perf_event_arm_regs`), which is that of the tables.
pub const ORDER: [u16; REGISTERS] = {
    let mut order = [0; REGISTERS];
    let mut at = 0;
    while at < REGISTERS {
        order[at] = at as u16;
        at += 1;
    }
    order
};

/// Registers that a called function gives back as it found them: x19 to x28, and x29.
pub const KEPT_OVER_CALLS: RegisterSet = (1 << number::LR) - (1 << number::X19);

/// Registers with a place in rules, the return address first.
pub const PLACES: [u16; 12] = [
    number::RA,
    number::X19,
    number::FP,
    20,
    21,
    22,
    23,
    24,
    25,
    26,
    27,
    28,
];

/// Which of [`PLACES`] is the frame pointer's.
pub const FRAME_POINTER_PLACE: usize = 2;

/// The column of unwind tables that has the return address.
pub const RETURN_COLUMN: u16 = number::LR;

/// The vendor whose unwind extensions are understood.
pub const CFI_VENDOR: gimli::Vendor = gimli::Vendor::AArch64;

/// The register that has the return address until it is saved.
pub const LINK_REGISTER: Option<u16> = Some(number::LR);

/// The saved frame pointer and return address are anywhere in their frame, mostly where it starts.
pub const FRAME_RECORD_IS_LAST: bool = false;

/// Code of runtimes (Haskell, Erlang, trampolines of Python) is read for where its frames are: that
/// of x86-64 alone.
pub const READS_RUNTIME_CODE: bool = false;

/// Nothing lies below the stack pointer.
pub const HAS_RED_ZONE: bool = false;

/// Bits of addresses that programs get by default. Machines with 52-bit addresses map nothing above
/// unless `mmap` is given such an address; code mapped there is not found.
const ADDRESS_BITS: u32 = 48;

/// The address of code that a word leads to: without the bits that authenticate it. Whether it was
/// signed need not be known: all addresses of programs have zeros there.
#[inline(always)]
pub fn code_address(word: u64) -> u64 {
    word & ((1 << ADDRESS_BITS) - 1)
}

/// True if a walk at `sp`, which moved if not `before`, is past the frame with its return address
/// at `slot`: saved registers may lie between it and the end of the frame.
#[inline(always)]
pub fn has_passed(slot: u64, sp: u64, before: bool) -> bool {
    !before && slot < sp
}

/// Returns the frame of a function of Go: at its lowest address the return address, below that,
/// outside, the caller's frame pointer. If the runtime made the frame up as a call from the
/// instruction that a signal struck (`injected`), two more words hold the return address of the
/// function that was struck.
pub fn go_frame(depth: i32, injected: bool) -> Option<GoFrame> {
    let cfa = depth.checked_add(if injected { 16 } else { 0 })?;
    Some(GoFrame {
        cfa,
        returns_at: (depth > 0).then_some(-(cfa / 8)),
        frame_pointer_at: (depth > 0).then_some(-(cfa / 8) - 1),
    })
}

/// An instruction of Go that saves the caller's frame pointer: `stur x29, [sp, #-8]`, `str x29,
/// [sp, #-8]!`.
pub const GO_KEEPS_FRAME_POINTER: [&[u8]; 2] =
    [&[0xfd, 0x83, 0x1f, 0xf8], &[0xfd, 0x8f, 0x1f, 0xf8]];

/// Where the registers are that a signal struck in, from the stack pointer of the function that its
/// handler returns to: behind 128 bytes of `siginfo`, 176 of `struct ucontext` and the address of a
/// fault (`struct rt_sigframe`, `arch/arm64/kernel/signal.c`). Unit: bytes.
pub const SIGNAL_REGISTERS_AT: i64 = 312;

/// In the order of `struct sigcontext`: x0 to x30, sp; then pc.
pub const SIGNAL_ORDER: [u16; 32] = {
    let mut order = [0; 32];
    let mut at = 0;
    while at < order.len() {
        order[at] = at as u16;
        at += 1;
    }
    order
};

/// What the function starts with that a signal handler returns to, where nothing describes it: `mov
/// x8, #139; svc #0`. The kernel's has no unwind information on purpose
/// (`arch/arm64/kernel/vdso/sigreturn.S`): all who unwind know it by these instructions.
pub const SIGNAL_RETURN: Option<[u8; 8]> = Some([0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4]);

/// Length of the first entry of a procedure linkage table that leads to the dynamic linker. Unit:
/// bytes.
pub const PLT_FIRST_BYTES: u64 = 32;

/// Where in the first entry of a procedure linkage table, which starts so, it has pushed, if it is
/// the way to the dynamic linker: `stp x16, x30, [sp, #-16]!`, behind `bti c` where that is.
pub fn plt_pushes_at(first: &[u8; 8]) -> Option<u64> {
    const PUSH: [u8; 4] = [0xf0, 0x7b, 0xbf, 0xa9];
    match [&first[..4], &first[4..]] {
        [push, _] if push == PUSH => Some(4),
        [_, push] if push == PUSH => Some(8),
        _ => None,
    }
}

/// Bytes between the stack pointer and the return address at a place in a procedure linkage table;
/// `None`: as at the first instruction of a function.
pub fn plt_pushed(at: u64, pushes_at: Option<u64>, _lazy: bool) -> Option<i32> {
    let pushed = pushes_at.is_some_and(|from| (from..PLT_FIRST_BYTES).contains(&at));
    pushed.then_some(8)
}

#[cfg(test)]
mod tests;
