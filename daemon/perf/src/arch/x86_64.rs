//! Registers of samples on x86-64.

/// User registers taken with a copy of the stack, by bit (`enum perf_event_x86_regs`): all general
/// registers. Instruction, stack and frame pointer are enough for compiled code; assembler uses any
/// register for its frames, and 136 bytes cost nothing compared with a copy of 16 KiB.
pub const USER_REGS: u64 = 0x00ff_01ff;
