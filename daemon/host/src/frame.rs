//! A frame of a stack before it is named: the output of unwinding and the input of the later
//! stages.

use crate::ids::{Avma, CgroupId, Comm, FileId, FileOffset, ProcessId};
use profile::UnnamedReason;

/// One frame before it has a name. Caller frames hold the address of the call, not of the return.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RawFrame {
    /// Kernel address.
    Kernel(u64),
    /// Place in an executable file.
    File(FileId, FileOffset),
    /// Address in anonymous executable memory of a process: generated code.
    Jit(ProcessId, Avma),
    /// Address that nothing is known of, and why.
    Unknown(UnnamedReason),
    /// No code: before it the stack of the thread of this name, which ended the wait that the stack
    /// is of, root first.
    WokenBy([u8; 15]),
    /// Neither code nor a name: the cgroup of the waker thread, next to its name, for deciding
    /// whether it may be shown.
    WakerCgroup(CgroupId),
    /// No code: says something else of the wait that the stack is of.
    Mark(Mark),
}

/// Marks in the stack of a wait that are not code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mark {
    /// As [`RawFrame::WokenBy`], of a hard interrupt.
    WokenByHardirq,
    /// As [`RawFrame::WokenBy`], of a soft interrupt.
    WokenBySoftirq,
    /// The wait ended, and nobody was seen to end it.
    WakerUnseen,
    /// It had not ended when the capture did.
    StillWaiting,
    /// The waker is withheld.
    WakerWithheld,
    /// The waker has more frames than are shown.
    WakerCut,
    /// No signal ends it.
    Uninterruptible,
    /// The thread was stopped.
    Stopped,
}

// Frames are kept by the million.
const _: () = assert!(size_of::<RawFrame>() == 16);

impl RawFrame {
    /// A frame that names the waker thread.
    pub fn woken_by(thread: Comm) -> RawFrame {
        let mut name = [0; 15];
        name.copy_from_slice(&thread.0[..15]);
        RawFrame::WokenBy(name)
    }

    /// True for what is no code: frames before the last of them are not the thread's own.
    pub fn is_mark(self) -> bool {
        matches!(
            self,
            RawFrame::WokenBy(_) | RawFrame::WakerCgroup(_) | RawFrame::Mark(_)
        )
    }

    /// The text of a mark. Names of threads are shorter than the texts of other marks, so none
    /// looks like one.
    pub fn mark_text(self) -> Option<std::borrow::Cow<'static, str>> {
        Some(match self {
            RawFrame::WokenBy(name) if name[0] == 0 => "[woken by an unknown thread]".into(),
            RawFrame::WokenBy(name) => {
                format!("[woken by {}]", Comm::from_bytes(&name).text()).into()
            }
            RawFrame::Mark(mark) => mark.text().into(),
            _ => return None,
        })
    }
}

impl Mark {
    fn text(self) -> &'static str {
        match self {
            Mark::WokenByHardirq => profile::WOKEN_BY_HARDIRQ,
            Mark::WokenBySoftirq => profile::WOKEN_BY_SOFTIRQ,
            Mark::WakerUnseen => "[waker unseen]",
            Mark::WakerWithheld => profile::withhold::WAKER,
            Mark::StillWaiting => "[still waiting]",
            Mark::WakerCut => "[waker cut]",
            Mark::Uninterruptible => "[uninterruptible]",
            Mark::Stopped => "[stopped]",
        }
    }
}
