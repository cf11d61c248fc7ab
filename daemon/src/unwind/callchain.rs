//! The callchain as the kernel walked it: kernel frames, then user frames by frame pointers.
//!
//! A frame-pointer chain does not say where it ends: code without frame pointers uses the register
//! for something else, and the kernel then follows whatever it holds. An address outside every
//! executable mapping is therefore the end of the chain, not a frame. Whether a chain that stays in
//! mapped code has reached its start function shows when its root frame has a name (the namer turns
//! [`StackEnd::BrokenChain`] into [`StackEnd::Complete`] then).

use super::StackBuffer;
use crate::aggregate::batch::RawFrame;
use crate::ids::Avma;
use crate::perf::record::{CpuMode, Sample};
use crate::process::Process;
use crate::process::space::Backing;
use perf_event_open_sys::bindings as sys;
use profile::{StackEnd, Unnamed};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Context {
    Kernel,
    User,
    Other,
}

/// Walks the chain of a sample.
pub fn walk(
    sample: &Sample<'_>,
    process: Option<&Process>,
    depth_max: usize,
    out: &mut StackBuffer,
) -> StackEnd {
    let mut context = match sample.mode {
        CpuMode::Kernel => Context::Kernel,
        CpuMode::User => Context::User,
        CpuMode::Other => Context::Other,
    };
    let (mut depth, mut in_context, mut user_frames) = (0usize, 0usize, 0usize);
    let mut broken_off = false;
    for word in sample.callchain.iter() {
        if word >= sys::PERF_CONTEXT_MAX {
            context = match word {
                sys::PERF_CONTEXT_KERNEL => Context::Kernel,
                sys::PERF_CONTEXT_USER => Context::User,
                _ => Context::Other,
            };
            in_context = 0;
            continue;
        }
        depth += 1;
        // The first address of each part is where the CPU stood; the others are return addresses,
        // which may lie behind the end of the calling function: the call is one byte before.
        let address = if in_context == 0 {
            word
        } else {
            word.wrapping_sub(1)
        };
        in_context += 1;
        match context {
            Context::Kernel => out.frames.push(RawFrame::Kernel(address)),
            Context::User if broken_off => {}
            Context::User => {
                broken_off = !user_frame(Avma(address), process, user_frames == 0, out);
                user_frames += 1;
            }
            Context::Other => {}
        }
    }
    if depth == 0 {
        out.frames.push(RawFrame::Unknown(Unnamed::NoMapping));
    }
    let kernel_only = process.is_some_and(|process| process.kernel);
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
        out.frames.push(RawFrame::Unknown(Unnamed::ProcessUnknown));
        return false;
    };
    let Some(mapping) = process.space().find(address) else {
        if leaf {
            let nothing_known = process.space().is_empty();
            let reason = if nothing_known {
                Unnamed::ProcessUnknown
            } else {
                Unnamed::NoMapping
            };
            out.frames.push(RawFrame::Unknown(reason));
        }
        return false;
    };
    out.frames.push(match mapping.backing {
        Backing::File(file) => {
            // Neighbouring frames are mostly of one file.
            if out.files.last() != Some(mapping) {
                out.files.push(*mapping);
            }
            RawFrame::File(file, mapping.offset_of(address))
        }
        Backing::Jit => RawFrame::Jit(process.id, address),
        Backing::Nothing(reason) => RawFrame::Unknown(reason),
    });
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{CgroupId, CpuId, Pid, Tid};
    use crate::perf::record::Callchain;
    use crate::perf::record::{MapFile, Mmap};
    use crate::process::ProcessTable;
    use crate::time::Mono;

    const KERNEL: u64 = sys::PERF_CONTEXT_KERNEL;
    const USER: u64 = sys::PERF_CONTEXT_USER;

    /// Walks a chain of a process with one file mapped at 0x1000..0x2000.
    fn check(words: &[u64], depth_max: usize, expected: &[RawFrame], expected_end: StackEnd) {
        let mut table = ProcessTable::new();
        table.fork(Pid(7), Tid(7), Pid(1), Tid(1), Mono(1));
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
            path: b"/bin/x",
        };
        table.mmap(&mmap, Mono(2));
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let sample = Sample {
            mode: CpuMode::User,
            ip: 0,
            pid: Pid(7),
            tid: Tid(7),
            time: Mono(3),
            cpu: CpuId(0),
            period: 1,
            callchain: Callchain::from_bytes(&bytes),
            user: None,
            cgroup: CgroupId(1),
        };
        let mut out = StackBuffer::default();
        let end = walk(&sample, table.get(Pid(7)), depth_max, &mut out);
        assert_eq!((out.frames.as_slice(), end), (expected, expected_end));
    }

    fn file(offset: u64) -> RawFrame {
        RawFrame::File(crate::ids::FileId(0), crate::ids::FileOffset(offset))
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
            &[RawFrame::Unknown(Unnamed::NoMapping)],
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
    fn a_chain_without_user_part_says_so() {
        check(
            &[KERNEL, 0xffff_ffff_8100_0010],
            127,
            &[RawFrame::Kernel(0xffff_ffff_8100_0010)],
            StackEnd::NoUserStack,
        );
    }

    #[test]
    fn an_empty_chain_is_still_a_stack() {
        check(
            &[],
            127,
            &[RawFrame::Unknown(Unnamed::NoMapping)],
            StackEnd::NoUserStack,
        );
    }
}
