//! Registers of samples on arm64.

/// User registers taken with a copy of the stack, by bit (`enum perf_event_arm_regs`): x0 to x30,
/// sp, pc. The return address of a function that has saved nothing is in x30 alone.
pub const USER_REGS: u64 = (1 << 33) - 1;
