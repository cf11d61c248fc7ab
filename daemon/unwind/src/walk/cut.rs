//! Frames at which walks are cut, and where they go on.

use crate::info::state::Registers;

/// How a frame is known when a walk comes through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FramePlace {
    /// By where its return address is.
    Slot(u64),
    /// It is Erlang's, on the stack of a thread, and returns there, if that is certain.
    Beam(Option<u64>),
}

/// A frame with a return address beyond the copy.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// Where the return address is; for Erlang's frame, where the copy ends.
    pub slot: u64,
    pub(super) registers: Registers,
    pub(super) exact: bool,
    pub(super) place: FramePlace,
}

impl Cut {
    /// True when no copy of so many bytes shows what called it.
    pub(super) fn is_larger_than(&self, size: u64) -> bool {
        self.slot.wrapping_sub(self.registers.sp()) >= size
    }

    /// True for Erlang's frame on the stack of a thread.
    pub(super) fn is_beam(&self) -> bool {
        matches!(self.place, FramePlace::Beam(_))
    }
}
