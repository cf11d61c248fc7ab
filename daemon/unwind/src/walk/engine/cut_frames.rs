//! Of which functions the frames are at which walks are cut.

use super::Engine;
use crate::process::Process;
use crate::walk::cut::{Cut, FramePlace};
use crate::walk::known_callers::{CutFrame, WantedFrame};
use crate::walk::modules::ModuleState;
use host::frame::RawFrame;
use host::ids::{Avma, CgroupId, FileId, FileOffset};
use host::time::MonotonicTime;

impl Engine {
    /// The function at which a walk was `cut`.
    pub(in crate::walk) fn cut_frame(
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
    pub(in crate::walk) fn is_of(
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
