//! Makes the stack of a wait: where the thread waited and, towards the leaf, who woke it.
//!
//! From the root: the stack of the waiting thread; `[uninterruptible]` or `[stopped]` if it was; a
//! frame that names the waker; and the waker's stack turned over, so that its leaf, the wake-up, is
//! next to the wait and its root at the tip. In a flame graph, waits at one place are thus
//! separated by waker, as in off-wake graphs. For an interrupt only its own frames are used,
//! because the interrupted code has nothing to do with the wait.

use super::format::{Leaving, Within};
use super::{Ending, WAKER_FRAMES_MAX, Wait, Waker};
use host::frame::{Mark, RawFrame};
use host::ids::{CgroupId, Comm};

/// Makes the stack, leaf first.
pub fn stack_of(wait: &Wait<'_>, out: &mut Vec<RawFrame>) {
    out.clear();
    match &wait.ending {
        Ending::Woken(waker) => {
            if waker.cut {
                out.push(RawFrame::Mark(Mark::WakerCut));
            }
            out.extend(waker.frames.iter().rev());
            if waker.within == Within::Thread {
                out.push(RawFrame::WakerCgroup(waker.cgroup));
            }
            out.push(match waker.within {
                Within::Thread => RawFrame::woken_by(waker.thread),
                Within::Softirq => RawFrame::Mark(Mark::WokenBySoftirq),
                Within::Hardirq => RawFrame::Mark(Mark::WokenByHardirq),
            });
        }
        Ending::Unseen => out.push(RawFrame::Mark(Mark::WakerUnseen)),
        Ending::Ongoing => out.push(RawFrame::Mark(Mark::StillWaiting)),
    }
    match wait.leaving {
        Leaving::Uninterruptible => out.push(RawFrame::Mark(Mark::Uninterruptible)),
        Leaving::Stopped => out.push(RawFrame::Mark(Mark::Stopped)),
        Leaving::Sleep | Leaving::Preempted | Leaving::Dead => {}
    }
    out.extend_from_slice(wait.frames);
}

/// The kept frames of a waker with the stack `frames`, leaf first; `whole` says that the stack is
/// complete. `entries` are the sorted address ranges of the kernel's entries into interrupts: the
/// frames after them were interrupted.
pub fn waker_of<'a>(
    (thread, cgroup): (Comm, CgroupId),
    within: Within,
    frames: &'a [RawFrame],
    whole: bool,
    entries: &[(u64, u64)],
) -> Waker<'a> {
    let (len, whole) = match within {
        Within::Thread => (frames.len(), whole),
        Within::Softirq | Within::Hardirq => {
            let is_entry = |frame: &RawFrame| match frame {
                RawFrame::Kernel(address) => is_within(entries, *address),
                _ => false,
            };
            match frames.iter().position(is_entry) {
                Some(entry) => (entry + 1, true),
                None => {
                    let kernel = |frame: &&RawFrame| matches!(frame, RawFrame::Kernel(_));
                    (frames.iter().take_while(kernel).count(), true)
                }
            }
        }
    };
    let kept = len.min(WAKER_FRAMES_MAX);
    Waker {
        thread,
        cgroup,
        within,
        frames: &frames[..kept],
        cut: kept < len || !whole,
    }
}

fn is_within(ranges: &[(u64, u64)], address: u64) -> bool {
    let after = ranges.partition_point(|&(start, _)| start <= address);
    after > 0 && address < ranges[after - 1].1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Who;
    use host::ids::Pid;
    use host::time::MonotonicTime;
    use profile::StackEnd;

    const K: fn(u64) -> RawFrame = RawFrame::Kernel;

    fn wait<'a>(leaving: Leaving, frames: &'a [RawFrame], ending: Ending<'a>) -> Wait<'a> {
        Wait {
            who: Who {
                pid: Pid(7),
                process: None,
                thread: Comm::default(),
                cgroup: CgroupId(1),
            },
            leaving,
            frames,
            end: StackEnd::Complete,
            start: MonotonicTime(1),
            length_ns: 5,
            ending,
        }
    }

    fn shaped(wait: &Wait<'_>) -> Vec<RawFrame> {
        let mut out = vec![K(99)];
        stack_of(wait, &mut out);
        out
    }

    #[test]
    fn the_waker_stands_above_the_wait_upside_down() {
        let name = Comm::from_bytes(b"writer");
        let chain = [K(1), K(2), K(3)];
        let waker = waker_of((name, CgroupId(7)), Within::Thread, &chain, true, &[]);
        let frames = [K(10), K(11)];
        let found = shaped(&wait(Leaving::Sleep, &frames, Ending::Woken(waker)));
        let mark = RawFrame::woken_by(name);
        let cgroup = RawFrame::WakerCgroup(CgroupId(7));
        assert_eq!(found, [K(3), K(2), K(1), cgroup, mark, K(10), K(11)]);
    }

    #[test]
    fn a_wait_that_no_signal_ends_says_so() {
        let frames = [K(10)];
        let found = shaped(&wait(Leaving::Uninterruptible, &frames, Ending::Unseen));
        let marks = [Mark::WakerUnseen, Mark::Uninterruptible].map(RawFrame::Mark);
        assert_eq!(found, [marks[0], marks[1], K(10)]);
        let found = shaped(&wait(Leaving::Stopped, &frames, Ending::Ongoing));
        let marks = [Mark::StillWaiting, Mark::Stopped].map(RawFrame::Mark);
        assert_eq!(found, [marks[0], marks[1], K(10)]);
    }

    #[test]
    fn of_an_interrupt_only_its_own_frames_are_kept() {
        let user = RawFrame::File(host::ids::FileId(1), host::ids::FileOffset(2));
        let chain = [K(1), K(55), K(3), user];
        let of = |within, entries: &[(u64, u64)]| {
            let who = (Comm::default(), CgroupId(0));
            let waker = waker_of(who, within, &chain, false, entries);
            (waker.frames.to_vec(), waker.cut)
        };
        let entries = [(20, 30), (50, 60)];
        assert_eq!(of(Within::Hardirq, &entries), (chain[..2].to_vec(), false));
        // Without symbols of the kernel it is not known where the interrupt starts.
        assert_eq!(of(Within::Softirq, &[]), (chain[..3].to_vec(), false));
        assert_eq!(of(Within::Thread, &entries), (chain.to_vec(), true));
    }

    #[test]
    fn a_deep_waker_is_cut_behind_its_leaf_and_says_so() {
        let chain: Vec<_> = (0..200).map(K).collect();
        let who = (Comm::default(), CgroupId(0));
        let waker = waker_of(who, Within::Thread, &chain, true, &[]);
        let found = shaped(&wait(Leaving::Sleep, &[], Ending::Woken(waker)));
        assert_eq!(found.len(), WAKER_FRAMES_MAX + 3);
        assert_eq!(found[0], RawFrame::Mark(Mark::WakerCut));
        assert_eq!(found[WAKER_FRAMES_MAX], K(0));
    }
}
