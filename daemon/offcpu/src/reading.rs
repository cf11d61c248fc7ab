//! The numbering of an off-CPU capture's events, and how their samples are read.

use super::format::{SwitchFormat, WakingFormat};

/// Numbers of the events of a set.
pub mod event {
    /// Switches away from threads that cannot go on, with callchains and small copies of the stack.
    pub const BLOCKED: u8 = 0;
    /// All other switches, without.
    pub const READY: u8 = 1;
    /// Wake-ups, with callchains.
    pub const WAKING: u8 = 2;
    /// Some of [`WAKING`], with copies of the stack.
    pub const COPIED_WAKING: u8 = 3;
    /// Some of [`BLOCKED`], with larger copies of the stack.
    pub const COPIED: u8 = 4;
}

/// How samples of the set are read.
#[derive(Clone, Debug)]
pub struct Reading {
    /// How samples of switches are read.
    pub switch: SwitchFormat,
    /// How samples of wake-ups are read.
    pub waking: WakingFormat,
    /// Address ranges of the kernel's entries into interrupts, sorted; empty when its symbols are
    /// hidden.
    pub interrupts: Vec<(u64, u64)>,
    /// Bytes of the stack copied with every wait.
    pub near_bytes: u32,
}
