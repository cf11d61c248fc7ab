//! From a sample to frames: which addresses belong to its stack, and how the stack ended.
//!
//! [`Unwinder`] has two methods. The kernel's callchain (`callchain.rs`) is in every sample: kernel
//! frames, then user frames by frame pointers. If the sample has registers and a copy of the user
//! stack, the engine (`engine.rs`) walks it by unwind information, for all processes with one set
//! of modules (`modules.rs`) and rules (`unwind/src/info/rule.rs`). The complete walk wins, else
//! the longer one; a walk that stops inside the chain continues with the rest of the chain. If the
//! copy is too short, the walk continues with a read of the thread's memory (`deep_stacks.rs`) or
//! stays cut.
//!
//! Called by the sampler thread for each sample; allocates nothing once its buffers have grown, and
//! leaves the bytes of the stack where they are, in the ring.

pub mod call_sites;
mod callchain;
pub mod cut;
pub mod deep_stacks;
pub mod engine;
pub mod holes;
pub mod known_callers;
pub mod look;
pub mod modules;
pub mod recall;

#[cfg(test)]
mod real_stacks;
#[cfg(test)]
mod tests;

use crate::info::rule::Behind;
use crate::info::state::{Registers, StackCopy, number};
use crate::process::Process;
use crate::process::space::Mapping;
use cut::Cut;
use deep_stacks::DeepStacks;
use engine::{Engine, UnwindCounts};
use holes::{Hole, Holes};
use host::bounds::CacheBounds;
use host::frame::RawFrame;
use host::ids::{FileId, FileOffset, ProcessId, Tid};
use host::time::MonotonicTime;
use known_callers::{KnownCallers, WantedFrame};
use look::StackReadAnswer;
use modules::Loaded;
use perf::record::{CpuMode, Sample, UserState};
use profile::{StackEnd, UnnamedReason};
use recall::Recall;
use std::sync::Arc;

/// Longest chain that is compared with a walk. Unit: frames. As `perf_event_max_stack` unless
/// somebody raised it; what lies behind is cut.
const CHAIN_MAX: usize = 127;

/// An unwound stack, leaf first. The buffer is used again for each sample.
#[derive(Debug, Default)]
pub struct StackBuffer {
    /// The frames.
    pub frames: Vec<RawFrame>,
    /// The mappings of its file frames: files without samples so far are announced through them.
    /// Copied because the address space belongs to the process table.
    pub files: Vec<Mapping>,
    /// Number of kernel frames: where those of the user start.
    user_at: usize,
}

impl StackBuffer {
    fn clear(&mut self) {
        self.frames.clear();
        self.files.clear();
        self.user_at = 0;
    }

    /// Replaces its user frames by those of `walked`.
    fn take_user(&mut self, walked: &StackBuffer) {
        self.frames.truncate(self.user_at);
        self.frames.extend_from_slice(&walked.frames);
        self.files.extend_from_slice(&walked.files);
    }

    fn add_file(&mut self, mapping: &Mapping, file: FileId, offset: FileOffset) {
        // Neighbouring frames are mostly of one file.
        if self.files.last() != Some(mapping) {
            self.files.push(*mapping);
        }
        self.frames.push(RawFrame::File(file, offset));
    }
}

/// Most frames of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depths {
    /// Most frames of a callchain, kernel and user frames together: the kernel cuts it there.
    pub chain: usize,
    /// Most user frames walked by unwind information.
    pub walk: usize,
}

/// Data of a file that walks lacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    /// Its unwind information.
    Module(FileId),
    /// What kind of call a place of it follows.
    CallSite(call_sites::ReturnSite),
}

/// New data about a file.
#[derive(Debug)]
pub enum UnwindUpdate {
    /// Its unwind information.
    Module(Loaded),
    /// The same, of which another file has it already: it takes no memory.
    Shared(Loaded),
    /// What kind of call a place of it follows.
    CallSite(call_sites::Looked),
}

impl UnwindUpdate {
    /// Memory that it holds in addition to itself. Unit: bytes.
    pub fn heap_bytes(&self) -> usize {
        match self {
            UnwindUpdate::Module(loaded) => loaded.heap_bytes(),
            UnwindUpdate::Shared(_) | UnwindUpdate::CallSite(_) => 0,
        }
    }
}

/// Turns samples into stacks.
pub struct Unwinder {
    /// Most frames of a stack.
    pub depths: Depths,
    /// Completes cut stacks from looks at the thread's memory.
    pub looks: DeepStacks,
    /// Pages that end copies of stacks.
    pub holes: Holes,
    /// Completes stacks that are cut at a function with callers known from elsewhere.
    pub known_callers: KnownCallers,
    /// Recognizes the stacks of waits.
    pub recall: Recall,
    engine: Engine,
    scans: bool,
    /// The file without loaded unwind information at which the last walk stopped.
    missed: Option<FileId>,
    bounds: Arc<CacheBounds>,
    /// The engine's result, before it is known which walk wins.
    walked: StackBuffer,
}

impl Unwinder {
    /// Creates it without any file; it keeps as much unwind information as `bounds` allow.
    pub fn new(depths: Depths, bounds: Arc<CacheBounds>) -> Unwinder {
        Unwinder {
            depths,
            looks: DeepStacks::default(),
            holes: Holes::default(),
            known_callers: KnownCallers::default(),
            recall: Recall::default(),
            engine: Engine::new(bounds.unwind()),
            scans: true,
            missed: None,
            bounds,
            walked: StackBuffer::default(),
        }
    }

    /// Whether to scan for callers of generated code with an unknown frame.
    pub fn scan(&mut self, on: bool) {
        self.scans = on;
    }

    /// Forgets a thread that ended.
    pub fn forget(&mut self, thread: (ProcessId, Tid)) {
        self.looks.forget(thread);
        self.known_callers.met(thread);
        self.recall.forget(thread);
    }

    /// Adds new data about a file.
    pub fn install(&mut self, learnt: UnwindUpdate) {
        match learnt {
            UnwindUpdate::Module(loaded) | UnwindUpdate::Shared(loaded) => {
                self.engine.modules.install(loaded);
            }
            UnwindUpdate::CallSite(looked) => self.engine.call_sites.install(looked),
        }
    }

    /// Adds a read of the memory of a thread.
    pub fn take_look(&mut self, answer: StackReadAnswer, now: MonotonicTime) {
        self.looks.take(answer, now);
        for (frame, right) in self.looks.compared() {
            self.known_callers.compare(frame, right);
        }
    }

    /// Starts a drain; asks for what the one before missed. `send` returns false when nobody can be
    /// asked now.
    pub fn begin_drain(&mut self, mut send: impl FnMut(Missed) -> bool) {
        self.engine.modules.set_bytes_max(self.bounds.unwind());
        self.engine.modules.tick();
        self.engine.modules.ask(|file| send(Missed::Module(file)));
        let call_sites = &mut self.engine.call_sites;
        call_sites.ask(|place| send(Missed::CallSite(place)));
    }

    /// Counts how much of its copy the sample unwound last used.
    pub fn count_copy(&mut self) {
        self.engine.count_copy();
    }

    /// The file that cut the last stack because its unwind information has not come, but will.
    pub fn awaits(&self) -> Option<FileId> {
        self.missed.filter(|&file| self.is_awaited(file))
    }

    /// True while the unwind information of a file was asked for and has not come.
    pub fn is_awaited(&self, file: FileId) -> bool {
        self.engine.modules.is_awaited(file)
    }

    /// What was done since the start.
    pub fn counts(&self) -> UnwindCounts {
        UnwindCounts {
            modules: self.engine.modules.counts(),
            looks: self.looks.counts(),
            holes: self.holes.counts(),
            known_callers: self.known_callers.counts(),
            recall: self.recall.counts(),
            ..self.engine.counts
        }
    }

    /// Unwinds one sample into `out`. `process` is `None` when nothing is known of it.
    pub fn unwind(
        &mut self,
        sample: &Sample<'_>,
        process: Option<&Process>,
        out: &mut StackBuffer,
    ) -> StackEnd {
        self.unwind_either(sample, process, None, out)
    }

    /// The same for the sample of a wait, using what is remembered of the thread's stack if it
    /// waited here before. `near_bytes`: how much is copied of the stack in every wait; this sample
    /// may have more.
    pub fn unwind_wait(
        &mut self,
        sample: &Sample<'_>,
        process: Option<&Process>,
        near_bytes: u32,
        out: &mut StackBuffer,
    ) -> StackEnd {
        self.unwind_either(sample, process, Some(near_bytes), out)
    }

    /// Unwinds a sample; `near_bytes` is there when it is that of a wait.
    fn unwind_either(
        &mut self,
        sample: &Sample<'_>,
        process: Option<&Process>,
        near_bytes: Option<u32>,
        out: &mut StackBuffer,
    ) -> StackEnd {
        out.clear();
        self.missed = None;
        self.engine.forget_copy();
        let end = match (sample.user, process) {
            (Some(user), Some(process)) => {
                self.unwind_copy((sample, &user), process, near_bytes, out)
            }
            _ => self.chain(sample, process, out),
        };
        match (end, out.frames.last()) {
            (StackEnd::BrokenChain, Some(RawFrame::Jit(..))) => StackEnd::GeneratedCode,
            _ => end,
        }
    }

    /// The kernel's chain of a sample.
    fn chain(
        &self,
        sample: &Sample<'_>,
        process: Option<&Process>,
        out: &mut StackBuffer,
    ) -> StackEnd {
        callchain::walk(sample, process, self.depths.chain, out)
    }

    /// Unwinds a sample that has registers: by the copy of its stack if that shows more than the
    /// kernel's chain.
    fn unwind_copy(
        &mut self,
        (sample, user): (&Sample<'_>, &UserState<'_>),
        process: &Process,
        near_bytes: Option<u32>,
        out: &mut StackBuffer,
    ) -> StackEnd {
        let registers = Registers::from_sample(user).filter(|_| user.is_64);
        let Some(registers) = registers else {
            return match self.chain(sample, Some(process), out) {
                end if user.is_64 || end == StackEnd::DepthLimit => end,
                _ => StackEnd::ThirtyTwoBit,
            };
        };
        let stack = StackCopy::new(registers.sp(), user.stack, user.full);
        let mut chain_end = None;
        // A larger copy shows more than what is remembered.
        if near_bytes.is_some_and(|bytes| user.stack.len() <= bytes as usize) {
            chain_end = Some(self.chain(sample, Some(process), out));
            let who = (process, sample.tid);
            if let Some(end) = self.recall.find(who, &registers, &stack, out) {
                return end;
            }
        }
        let end = self.walk(sample, (process, registers), near_bytes, stack);
        if end.is_complete() {
            // Only the kernel's frames of the chain are needed, which is nearly always the case.
            if chain_end.is_none() {
                callchain::kernel_frames(sample, out);
            }
            out.take_user(&self.walked);
            return end;
        }
        if end == StackEnd::ModuleLoading
            && let Some(&RawFrame::File(file, _)) = self.walked.frames.last()
        {
            self.missed = Some(file);
        }
        let switch = (end == StackEnd::OtherStack).then_some(self.engine.switch);
        let frame_pointer = switch.and_then(|switch| switch.frame_pointer);
        let behind = frame_pointer.and_then(|to| place_in_chain(&registers, &stack, to));
        let chain_end = chain_end.unwrap_or_else(|| self.chain(sample, Some(process), out));
        self.settle((sample, user), end, (chain_end, behind), out)
    }

    /// Takes the incomplete walk with this end, or the chain in `out`, whichever has more. `behind`
    /// is where the chain continues after a change of stacks, if known.
    fn settle(
        &mut self,
        (sample, user): (&Sample<'_>, &UserState<'_>),
        end: StackEnd,
        (chain_end, behind): (StackEnd, Option<usize>),
        out: &mut StackBuffer,
    ) -> StackEnd {
        if end == StackEnd::Unmapped && user.stack.is_empty() && sample.mode == CpuMode::Kernel {
            // In the middle of exec: the old program is gone and the new one not there yet. What is
            // left of the stack is the kernel's.
            out.frames.truncate(out.user_at);
            return StackEnd::Complete;
        }
        // Tables would have shown what frame pointers did not: the chain broke for lack of them.
        let chain_end = match (end, chain_end) {
            (StackEnd::ModuleLoading, StackEnd::BrokenChain) => end,
            _ => chain_end,
        };
        let Unwinder { walked, engine, .. } = self;
        let chain = &out.frames[out.user_at..];
        let (replaced, end) = match end {
            StackEnd::OtherStack => {
                let rest = match behind {
                    Some(behind) => chain.get(behind..),
                    None => rest_of_chain(&walked.frames, chain),
                };
                let rest = rest.unwrap_or_default();
                (
                    true,
                    go_on_elsewhere(engine, &mut walked.frames, rest, (chain_end, sample.time)),
                )
            }
            _ => match rest_of_chain(&walked.frames, chain) {
                Some(rest) if !rest.is_empty() => {
                    walked.frames.extend_from_slice(rest);
                    engine.counts.chains_used += 1;
                    (true, chain_end)
                }
                None if chain.len() > walked.frames.len() => {
                    engine.counts.chains_used += 1;
                    (false, chain_end)
                }
                _ => (true, end),
            },
        };
        if replaced {
            out.take_user(walked);
        }
        end
    }

    /// Walks the copy of a stack, and goes on where it ends with a look at the thread's memory, if
    /// one is known to hold. The walk of a wait is remembered if it is complete, by what a copy of
    /// `near_bytes` has of the words it read.
    fn walk(
        &mut self,
        sample: &Sample<'_>,
        (process, registers): (&Process, Registers),
        near_bytes: Option<u32>,
        stack: StackCopy<'_>,
    ) -> StackEnd {
        let Unwinder {
            engine,
            walked,
            known_callers,
            recall,
            ..
        } = self;
        walked.clear();
        // Waits come by the hundred thousand, and scanned stacks are not remembered.
        engine.scans = self.scans && near_bytes.is_none();
        let wanted = known_callers.wanted((process.id, sample.tid));
        engine.wanted = wanted.map(|it| it.place);
        let (depth, time) = (self.depths.walk, sample.time);
        let end = match near_bytes {
            None => engine.walk(process, registers, stack, time, depth, walked),
            Some(near_bytes) => {
                recall.begin();
                let noting = stack.noting(&recall.reads);
                let end = engine.walk(process, registers, noting, time, depth, walked);
                if end == StackEnd::Complete {
                    let who = (process, sample.tid);
                    recall.remember(who, &registers, &stack, near_bytes.into(), walked);
                }
                end
            }
        };
        if let Some(cut) = engine.cut {
            return self.behind((sample, process), (cut, end), near_bytes, stack);
        }
        if let (Some(wanted), Some(at)) = (wanted, engine.passed)
            && matches!(end, StackEnd::Complete | StackEnd::LentFrame)
            && let Some((passed, callers)) = walked.frames.split_at_checked(at)
            && engine.is_of(wanted, passed.last(), time)
        {
            known_callers.met((process.id, sample.tid));
            known_callers.learn(wanted.frame, (process.id, true), callers);
        }
        end
    }

    /// Continues after a frame at which a walk was cut, with this end: by a read of memory, or by
    /// the callers that the function has elsewhere. Requests what would show more.
    fn behind(
        &mut self,
        (sample, process): (&Sample<'_>, &Process),
        (cut, end): (Cut, StackEnd),
        near_bytes: Option<u32>,
        stack: StackCopy<'_>,
    ) -> StackEnd {
        let Unwinder {
            engine,
            walked,
            looks,
            holes,
            known_callers,
            ..
        } = self;
        let (depth, time) = (self.depths.walk, sample.time);
        let thread = (process.id, sample.tid);
        let (pid, start) = (process.pid, stack.end());
        let place = (sample.cgroup, time);
        let frame = match end {
            // Waits have little copied, and the kernel places the stacks of main threads at random.
            _ if near_bytes.is_some() || sample.tid.0 == process.pid.0 => None,
            StackEnd::CopyTooSmall if cut.is_beam() || cut.is_larger_than(stack.size()) => {
                engine.cut_frame(process, &cut, place)
            }
            StackEnd::UnreadableMemory => engine.cut_frame(process, &cut, place),
            _ => None,
        };
        let is_hole = end == StackEnd::UnreadableMemory;
        // Once a page was touched the next sample may be complete without a look.
        let touched = is_hole && holes.met(Hole { thread, pid, start }, time);
        let by_look = !touched && !cut.is_beam();
        if by_look && let Some((words, first)) = looks.words(thread, cut.slot, time) {
            let seen = walked.frames.len();
            return match engine.resume(process, cut, stack.with(words), time, depth, walked) {
                StackEnd::Complete => {
                    looks.completed();
                    if let Some(frame) = frame.filter(|_| first && !is_hole) {
                        known_callers.learn(frame, (process.id, false), &walked.frames[seen..]);
                    }
                    StackEnd::Stitched
                }
                StackEnd::LentFrame => {
                    looks.completed();
                    StackEnd::LentFrame
                }
                end => end,
            };
        }
        let known = frame
            .and_then(|frame| known_callers.complete((frame, cut.slot), process, depth, walked));
        match (end, frame) {
            _ if !by_look => {}
            (StackEnd::CopyTooSmall, Some(_)) => {
                looks.cut_at_large((thread, pid), cut.slot, time, known);
            }
            (StackEnd::CopyTooSmall | StackEnd::UnreadableMemory, _) => {
                looks.cut(thread, pid, cut.slot, time);
            }
            _ => {}
        }
        if let Some(frame) = frame.filter(|_| is_hole || cut.is_beam()) {
            let place = cut.place;
            known_callers.want(thread, WantedFrame { frame, place });
        }
        match known {
            Some(_) if cut.is_beam() || engine.lent => StackEnd::LentFrame,
            Some(_) => StackEnd::KnownCallers,
            None => end,
        }
    }
}

/// Continues a walk that came to where the program changed to another stack: the copy does not hold
/// the one it came from, but the kernel followed the frame pointers there. How the stack ends.
fn go_on_elsewhere(
    engine: &mut Engine,
    walked: &mut Vec<RawFrame>,
    rest: &[RawFrame],
    (chain_end, now): (StackEnd, MonotonicTime),
) -> StackEnd {
    match engine.switch.behind {
        _ if rest.is_empty() => return StackEnd::OtherStack,
        Behind::Caller => {}
        Behind::CallersCaller => walked.push(RawFrame::Unknown(UnnamedReason::OtherStack)),
        Behind::Unknown | Behind::Nobody => return StackEnd::OtherStack,
    }
    engine.counts.chains_used += 1;
    match engine.outermost(rest, now) {
        Some(last) => {
            walked.extend_from_slice(&rest[..=last]);
            StackEnd::Complete
        }
        None => {
            walked.extend_from_slice(rest);
            chain_end
        }
    }
}

/// Where the chain has the return address that lies next to the frame pointer `to`: the kernel's
/// steps are taken again, from frame pointer to frame pointer, as far as the copy has them. Code
/// without frame pointers that leaves the register alone is one step.
fn place_in_chain(registers: &Registers, stack: &StackCopy<'_>, to: u64) -> Option<usize> {
    let mut frame = registers.get(number::FP)?;
    for place in 1..CHAIN_MAX {
        if frame == to {
            return Some(place);
        }
        frame = stack.read(frame).ok()?;
    }
    None
}

/// The rest of the chain after the frame at which a walk stopped, if the chain includes that frame.
fn rest_of_chain<'a>(walked: &[RawFrame], chain: &'a [RawFrame]) -> Option<&'a [RawFrame]> {
    let last = walked.last()?;
    let met = chain.iter().position(|frame| frame == last)?;
    Some(&chain[met + 1..])
}

#[cfg(test)]
mod exec_tests {
    use super::*;
    use crate::info::state::REGISTERS;
    use crate::process::ProcessTable;
    use host::bounds::Bounds;
    use host::ids::{CgroupId, CpuId, Pid, Tid};
    use perf::record::Callchain;
    use perf_event_open_sys::bindings as sys;

    #[test]
    fn in_the_middle_of_exec_the_kernels_frames_are_the_whole_stack() {
        let mut table = ProcessTable::new();
        table.fork(Pid(7), Tid(7), Pid(1), Tid(1), MonotonicTime(1));
        // The registers are those of the old program, and its memory is gone.
        let regs: Vec<u8> = [0x7000u64; REGISTERS]
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect();
        let words = [
            sys::PERF_CONTEXT_KERNEL,
            0xffff_ffff_8100_0010,
            sys::PERF_CONTEXT_USER,
            0x7000,
        ];
        let chain: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut unwinder = Unwinder::new(
            Depths {
                chain: 127,
                walk: 512,
            },
            Arc::new(CacheBounds::new(Bounds {
                symbols: 0,
                unwind: 1 << 20,
                recorder: 0,
            })),
        );
        let mut out = StackBuffer::default();
        let mut unwind = |mode, stack: &[u8]| {
            let sample = Sample {
                mode,
                ip: 0,
                pid: Pid(7),
                tid: Tid(7),
                time: MonotonicTime(3),
                cpu: CpuId(0),
                period: 1,
                callchain: Callchain::from_bytes(&chain),
                user: Some(UserState {
                    is_64: true,
                    regs: &regs,
                    stack,
                    full: false,
                }),
                raw: None,
                cgroup: CgroupId(1),
            };
            let end = unwinder.unwind(&sample, table.get(Pid(7)), &mut out);
            (out.frames.len(), end)
        };
        assert_eq!(unwind(CpuMode::Kernel, &[]), (1, StackEnd::Complete));
        // With memory there is a program, of which nothing is known.
        assert_eq!(unwind(CpuMode::Kernel, &[0; 64]), (2, StackEnd::Unmapped));
        assert_eq!(unwind(CpuMode::User, &[]), (2, StackEnd::Unmapped));
    }
}
