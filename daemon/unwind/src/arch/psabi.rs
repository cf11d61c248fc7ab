//! Numbers of the registers in unwind tables (x86-64 psABI, figure 3.36). Compiled on every
//! architecture, as is the code that reads x86-64's instructions.

/// rbx, kept over calls.
pub const RBX: u16 = 3;
/// rbp, kept over calls.
pub const RBP: u16 = 6;
/// The stack pointer.
pub const RSP: u16 = 7;
/// r12, kept over calls.
pub const R12: u16 = 12;
/// r13, kept over calls.
pub const R13: u16 = 13;
/// r14, kept over calls.
pub const R14: u16 = 14;
/// r15, kept over calls.
pub const R15: u16 = 15;
/// The return address; in a frame's registers, the instruction pointer.
pub const RA: u16 = 16;
