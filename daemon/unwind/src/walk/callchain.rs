//! The callchain from the kernel: kernel frames, then user frames by frame pointers.
//!
//! A frame-pointer chain does not say where it ends: code without frame pointers uses the register
//! for something else, and the kernel then follows whatever it contains. So an address outside
//! every executable mapping is the end of the chain, not a frame. Whether a chain that stays in
//! mapped code has reached its start function is known when its root frame has a name (the
//! symbolizer then turns [`StackEnd::BrokenChain`] into [`StackEnd::Complete`]).

use super::StackBuffer;
use crate::process::Process;
use crate::process::space::Backing;
use host::frame::RawFrame;
use host::ids::Avma;
use perf::record::{CpuMode, Sample};
use perf_event_open_sys::bindings as sys;
use profile::{StackEnd, UnnamedReason};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Context {
    Kernel,
    User,
    Other,
}

/// The addresses of a chain, innermost first, and what each is of. The first of each part is where
/// the CPU stood; the others are return addresses, which may lie behind the end of the calling
/// function: the call is one byte before.
fn addresses(sample: &Sample<'_>) -> impl Iterator<Item = (Context, u64)> {
    let mut context = match sample.mode {
        CpuMode::Kernel => Context::Kernel,
        CpuMode::User => Context::User,
        CpuMode::Other => Context::Other,
    };
    let mut is_first = true;
    sample.callchain.iter().filter_map(move |word| {
        if word >= sys::PERF_CONTEXT_MAX {
            context = match word {
                sys::PERF_CONTEXT_KERNEL => Context::Kernel,
                sys::PERF_CONTEXT_USER => Context::User,
                _ => Context::Other,
            };
            is_first = true;
            return None;
        }
        let call = u64::from(!std::mem::take(&mut is_first));
        Some((context, word.wrapping_sub(call)))
    })
}

/// Adds the kernel frames of a sample, which its chain has before those of the user.
pub fn kernel_frames(sample: &Sample<'_>, out: &mut StackBuffer) {
    for (context, address) in addresses(sample) {
        match context {
            Context::Kernel => out.frames.push(RawFrame::Kernel(address)),
            Context::User => break,
            Context::Other => {}
        }
    }
    out.user_at = out.frames.len();
}

/// Walks the chain of a sample.
pub fn walk(
    sample: &Sample<'_>,
    process: Option<&Process>,
    depth_max: usize,
    out: &mut StackBuffer,
) -> StackEnd {
    let (mut depth, mut user_frames) = (0usize, 0usize);
    let mut broken_off = false;
    for (context, address) in addresses(sample) {
        depth += 1;
        match context {
            Context::Kernel => {
                out.frames.push(RawFrame::Kernel(address));
                out.user_at = out.frames.len();
            }
            Context::User if broken_off => {}
            Context::User => {
                broken_off = !user_frame(Avma(address), process, user_frames == 0, out);
                user_frames += 1;
            }
            Context::Other => {}
        }
    }
    if depth == 0 {
        out.user_at = 0;
        out.frames.push(RawFrame::Unknown(UnnamedReason::NoMapping));
    }
    // The kernel adds at least one user address where there is user memory. A task that is ending
    // has given its own back, and all that is left of it is in the kernel.
    let in_kernel = sample.mode == CpuMode::Kernel && out.user_at > 0 && user_frames == 0;
    let kernel_only = in_kernel || process.is_some_and(|process| process.kernel);
    if broken_off {
        StackEnd::Unmapped
    } else if depth >= depth_max {
        StackEnd::DepthLimit
    } else if kernel_only {
        StackEnd::Complete
    } else if user_frames == 0 {
        StackEnd::NoUserStack
    } else {
        StackEnd::BrokenChain
    }
}

/// Adds a user frame. Returns false when the address is in no mapping, so the chain ends here. The
/// leaf is added all the same: the CPU was there.
fn user_frame(address: Avma, process: Option<&Process>, leaf: bool, out: &mut StackBuffer) -> bool {
    let Some(process) = process else {
        out.frames
            .push(RawFrame::Unknown(UnnamedReason::ProcessUnknown));
        return false;
    };
    let Some(mapping) = process.space().find(address) else {
        if leaf {
            out.frames.push(unmapped_leaf(process));
        }
        return false;
    };
    match mapping.backing {
        Backing::File(file) => out.add_file(mapping, file, mapping.offset_of(address)),
        Backing::Jit => out.frames.push(RawFrame::Jit(process.id, address)),
        Backing::Nothing(reason) => out.frames.push(RawFrame::Unknown(reason)),
    }
    true
}

/// The frame for a leaf outside of every mapping: the CPU was there all the same.
pub(super) fn unmapped_leaf(process: &Process) -> RawFrame {
    RawFrame::Unknown(if process.space().is_empty() {
        UnnamedReason::ProcessUnknown
    } else {
        UnnamedReason::NoMapping
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::ProcessTable;
    use host::ids::{CgroupId, CpuId, Pid, Tid};
    use host::time::MonotonicTime;
    use perf::record::Callchain;
    use perf::record::{MapFile, Mmap};

    const KERNEL: u64 = sys::PERF_CONTEXT_KERNEL;
    const USER: u64 = sys::PERF_CONTEXT_USER;

    fn check(words: &[u64], depth_max: usize, expected: &[RawFrame], expected_end: StackEnd) {
        check_in(CpuMode::User, words, depth_max, expected, expected_end);
    }

    /// Walks a chain of a process with one file mapped at 0x1000..0x2000.
    fn check_in(
        mode: CpuMode,
        words: &[u64],
        depth_max: usize,
        expected: &[RawFrame],
        expected_end: StackEnd,
    ) {
        let mut table = ProcessTable::new();
        table.fork(Pid(7), Tid(7), Pid(1), Tid(1), MonotonicTime(1));
        let file = MapFile::Inode {
            major: 8,
            minor: 1,
            inode: 5,
            generation: 0,
        };
        let mmap = Mmap {
            pid: Pid(7),
            start: 0x1000,
            len: 0x1000,
            file_offset: 0x400,
            file,
            private: true,
            path: b"/bin/x",
        };
        table.mmap(&mmap, MonotonicTime(2));
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let sample = Sample {
            mode,
            ip: 0,
            pid: Pid(7),
            tid: Tid(7),
            time: MonotonicTime(3),
            cpu: CpuId(0),
            period: 1,
            callchain: Callchain::from_bytes(&bytes),
            user: None,
            raw: None,
            cgroup: CgroupId(1),
        };
        let mut out = StackBuffer::default();
        let end = walk(&sample, table.get(Pid(7)), depth_max, &mut out);
        assert_eq!((out.frames.as_slice(), end), (expected, expected_end));
    }

    fn file(offset: u64) -> RawFrame {
        RawFrame::File(host::ids::FileId(0), host::ids::FileOffset(offset))
    }

    #[test]
    fn callers_are_looked_up_at_their_call() {
        check(
            &[
                KERNEL,
                0xffff_ffff_8100_0010,
                0xffff_ffff_8200_0020,
                USER,
                0x1100,
                0x1200,
            ],
            127,
            &[
                RawFrame::Kernel(0xffff_ffff_8100_0010),
                RawFrame::Kernel(0xffff_ffff_8200_001f),
                file(0x500),
                file(0x5ff),
            ],
            StackEnd::BrokenChain,
        );
    }

    #[test]
    fn a_chain_ends_where_it_leaves_mapped_code() {
        check(
            &[USER, 0x1100, 0x1200, 0x7fff_0000_1234, 0x1300],
            127,
            &[file(0x500), file(0x5ff)],
            StackEnd::Unmapped,
        );
    }

    #[test]
    fn a_leaf_outside_every_mapping_is_kept() {
        check(
            &[USER, 0x9000],
            127,
            &[RawFrame::Unknown(UnnamedReason::NoMapping)],
            StackEnd::Unmapped,
        );
    }

    #[test]
    fn a_chain_as_long_as_the_limit_was_cut() {
        check(
            &[USER, 0x1100, 0x1200],
            2,
            &[file(0x500), file(0x5ff)],
            StackEnd::DepthLimit,
        );
    }

    #[test]
    fn a_task_in_the_kernel_that_has_no_user_memory_any_more_is_whole() {
        let chain = [KERNEL, 0xffff_ffff_8100_0010];
        let frames = [RawFrame::Kernel(0xffff_ffff_8100_0010)];
        check_in(CpuMode::Kernel, &chain, 127, &frames, StackEnd::Complete);
        check_in(CpuMode::User, &chain, 127, &frames, StackEnd::NoUserStack);
        check_in(CpuMode::Kernel, &chain, 1, &frames, StackEnd::DepthLimit);
    }

    #[test]
    fn an_empty_chain_is_still_a_stack() {
        check(
            &[],
            127,
            &[RawFrame::Unknown(UnnamedReason::NoMapping)],
            StackEnd::NoUserStack,
        );
    }
}
