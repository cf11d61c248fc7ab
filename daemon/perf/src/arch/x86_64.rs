//! Registers of samples on x86-64.

/// User registers taken with a copy of the stack, by bit (`enum perf_event_x86_regs`): all general
/// registers. Instruction, stack and frame pointer are enough for compiled code; assembler keeps
/// frames by any register, and 136 bytes beside a copy of 16 KiB cost nothing.
pub const USER_REGS: u64 = 0x00ff_01ff;
