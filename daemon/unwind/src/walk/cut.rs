//! Frames at which walks are cut: where they would continue, and which function they belong to.

use super::engine::Engine;
use super::known_callers::{CutFrame, WantedFrame};
use super::modules::ModuleState;
use crate::info::state::Registers;
use crate::process::Process;
use host::frame::RawFrame;
use host::ids::{Avma, CgroupId, FileId, FileOffset};
use host::time::MonotonicTime;

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

impl Engine {
    /// The function at which a walk was `cut`.
    pub(super) fn cut_frame(
        &mut self,
        process: &Process,
        cut: &Cut,
        (cgroup, now): (CgroupId, MonotonicTime),
    ) -> Option<CutFrame> {
        let ip = match cut.place {
            FramePlace::Beam(entered) => entered?,
            FramePlace::Slot(_) => cut.registers.ip(),
        };
        let exact = cut.exact && !cut.is_beam();
        let address = Avma(if exact { ip } else { ip.wrapping_sub(1) });
        let mapping = process.space().find(address)?;
        let (file, offset) = (mapping.backing.file()?, mapping.offset_of(address));
        match cut.place {
            FramePlace::Beam(_) => Some(CutFrame::new(cgroup, file, offset.0, 0)),
            FramePlace::Slot(slot) => {
                let function = self.function_start(file, offset, now)?;
                Some(CutFrame::new(cgroup, file, function, slot))
            }
        }
    }

    /// True when a frame that a walk came through is of the function that is wanted.
    pub(super) fn is_of(
        &mut self,
        wanted: WantedFrame,
        passed: Option<&RawFrame>,
        now: MonotonicTime,
    ) -> bool {
        match (wanted.place, passed) {
            (FramePlace::Beam(_), Some(RawFrame::Jit(..))) => true,
            (FramePlace::Slot(slot), Some(&RawFrame::File(file, offset))) => {
                let function = self.function_start(file, offset, now);
                function.is_some_and(|it| wanted.frame.is(file, it, slot))
            }
            _ => false,
        }
    }

    fn function_start(
        &mut self,
        file: FileId,
        offset: FileOffset,
        now: MonotonicTime,
    ) -> Option<u64> {
        match self.modules.get(file, now) {
            ModuleState::Here(module) => module.function_start(offset),
            _ => None,
        }
    }
}
