//! Learned callers of functions at which copies of stacks end.
//!
//! A compiler with all of its state in one local variable (rustc has half a megabyte) is cut there
//! in every sample. Reading its memory completes a stack (`deep_stacks.rs`), but only after some
//! tenths of a second, when many such processes are about to end. The same applies to copies that
//! end at untouched pages (`holes.rs`). But the result is the same in each process: the function is
//! called by one chain of callers, at one distance from the start of the stack.
//!
//! So the callers found by watched reads, and by the thread's next complete stack, are remembered
//! by function and by the place of its return address within a page. The stacks of threads start at
//! a fixed place within a page (the C library lays them out), so another chain of callers has the
//! same place only if all its frames together are as large. A cut stack is completed if two
//! processes of a cgroup had the same callers and none had others. A thread below a larger frame is
//! read soon anyway, and one with an untouched page has a complete stack later; each is then
//! compared. One different caller stops this for that function, as long as that is remembered.
//! [`KnownCallersCounts`] counts them.

use super::StackBuffer;
use super::cut::FramePlace;
use super::look::Thread;
use crate::process::Process;
use crate::process::space::{Backing, Mapping};
use hashbrown::HashMap;
use host::frame::RawFrame;
use host::ids::{CgroupId, FileId, FileOffset, ProcessId};

/// Threads remembered that are to show a function's callers. Others are not asked.
const WANTED_MAX: usize = 1024;

/// Functions remembered. Unit: functions with a place each, of some 300 bytes. Hosts have a few;
/// when there are more those go first that only one process had, and those given up last.
const FUNCTIONS_MAX: usize = 512;

/// Mappings of a process beyond which its stacks are not completed: callers are looked for in all.
const MAPPINGS_MAX: usize = 1024;

/// Most callers of one.
const CALLERS_MAX: usize = 64;

/// Processes that must have had the same callers.
const AGREED_MIN: u32 = 2;

/// How far above a place an address counts as one of the same stack.
const STACK_REACH: u64 = 8 << 20;

/// The distance from one place to the next of which nothing is known.
const PAGE: u64 = 4096;

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KnownCallersCounts {
    /// Functions with remembered callers.
    pub functions: u64,
    /// Threads compared with what was known by then from other processes.
    pub checked: u64,
    /// Threads that had other callers.
    pub wrong: u64,
    /// Stacks completed.
    pub completed: u64,
    /// Times that what several processes had was forgotten at the bound.
    pub emptied: u64,
    /// Threads that are not to show a function's callers, and stacks that are not completed,
    /// because of a bound.
    pub refused: u64,
}

/// A function, by where it starts in its file, and the place of its return address within a page.
/// What one cgroup's processes have is not taken for another's: its owner may be anybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct CutFrame {
    cgroup: CgroupId,
    file: FileId,
    function: u64,
    place: u64,
}

impl CutFrame {
    /// The frame of a function with its return address at `slot`.
    pub fn new(cgroup: CgroupId, file: FileId, function: u64, slot: u64) -> CutFrame {
        CutFrame {
            cgroup,
            file,
            function,
            place: slot % PAGE,
        }
    }

    /// True when it is that of this function.
    pub fn is(self, file: FileId, function: u64, slot: u64) -> bool {
        self == CutFrame::new(self.cgroup, file, function, slot)
    }
}

/// A function at which a thread's stacks are cut for now, and how it is known when they are not.
#[derive(Clone, Copy, Debug)]
pub(super) struct WantedFrame {
    pub(super) frame: CutFrame,
    pub(super) place: FramePlace,
}

/// The return address that a thread must have at `slot` if its callers are those that are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpectedCaller {
    pub(super) frame: CutFrame,
    pub(super) slot: u64,
    pub(super) address: u64,
}

impl ExpectedCaller {
    /// Whether a word that a look found in the place is the caller; `None` where it is an address
    /// on the stack, so that the call has returned.
    pub(super) fn is(&self, word: Option<u64>) -> Option<bool> {
        // A frame that nobody called is named by its first instruction.
        let same = |word: u64| word == self.address || word.wrapping_add(1) == self.address;
        match word {
            Some(word) if word.wrapping_sub(self.slot) < STACK_REACH => None,
            word => Some(word.is_some_and(same)),
        }
    }
}

#[derive(Debug)]
struct Known {
    /// None, once another process had others.
    callers: Box<[(FileId, FileOffset)]>,
    /// Processes that had them.
    agreed: u32,
    /// The last of them: what one process has twice counts once.
    last: ProcessId,
}

/// See the file.
#[derive(Debug)]
pub struct KnownCallers {
    /// False when no stack is completed.
    pub on: bool,
    functions: HashMap<CutFrame, Known>,
    wanted: HashMap<Thread, WantedFrame>,
    counts: KnownCallersCounts,
}

impl Default for KnownCallers {
    fn default() -> Self {
        KnownCallers {
            on: true,
            functions: HashMap::new(),
            wanted: HashMap::new(),
            counts: KnownCallersCounts::default(),
        }
    }
}

impl KnownCallers {
    /// Counters.
    pub fn counts(&self) -> KnownCallersCounts {
        KnownCallersCounts {
            functions: self.functions.len() as u64,
            ..self.counts
        }
    }

    /// Requests the callers of a function from the next complete stack of a thread.
    pub(super) fn want(&mut self, thread: Thread, wanted: WantedFrame) {
        if !self.on {
            return;
        }
        if self.wanted.len() >= WANTED_MAX && !self.wanted.contains_key(&thread) {
            self.counts.refused += 1;
            return;
        }
        self.wanted.insert(thread, wanted);
    }

    /// What the next complete stack of a thread should show.
    pub(super) fn wanted(&self, thread: Thread) -> Option<WantedFrame> {
        self.wanted.get(&thread).copied()
    }

    /// A thread had a complete stack, or has ended.
    pub(super) fn met(&mut self, thread: Thread) {
        self.wanted.remove(&thread);
    }

    /// Adds the callers found in a complete stack of a process. It counts as a comparison if
    /// `counts` says so, or if they differ.
    pub(super) fn learn(
        &mut self,
        frame: CutFrame,
        (process, counts): (ProcessId, bool),
        found: &[RawFrame],
    ) {
        if !self.on || found.is_empty() || found.len() > CALLERS_MAX {
            return;
        }
        let place_of = |frame: &RawFrame| match *frame {
            RawFrame::File(file, offset) => Some((file, offset)),
            _ => None,
        };
        let Some(known) = self.functions.get_mut(&frame) else {
            // Generated code is of one process.
            let Some(callers) = found.iter().map(place_of).collect() else {
                return;
            };
            self.make_room();
            let known = Known {
                callers,
                agreed: 1,
                last: process,
            };
            self.functions.insert(frame, known);
            return;
        };
        if known.is_refuted() {
            return;
        }
        let same = known.callers.len() == found.len()
            && std::iter::zip(&known.callers, found).all(|(one, it)| Some(*one) == place_of(it));
        let used = known.agreed >= AGREED_MIN;
        self.counts.checked += u64::from(used && (counts || !same));
        if !same {
            self.counts.wrong += u64::from(used);
            known.refute();
        } else if known.last != process {
            known.agreed = known.agreed.saturating_add(1);
            known.last = process;
        }
    }

    /// Records whether a thread had the expected caller.
    pub(super) fn compare(&mut self, frame: CutFrame, right: bool) {
        self.counts.checked += 1;
        if !right {
            self.counts.wrong += 1;
            if let Some(known) = self.functions.get_mut(&frame) {
                known.refute();
            }
        }
    }

    /// Adds the callers that the function is known to have, and returns the first. `None` when they
    /// are not known, or the process does not map the code that they are in.
    pub(super) fn complete(
        &mut self,
        (frame, slot): (CutFrame, u64),
        process: &Process,
        depth_max: usize,
        out: &mut StackBuffer,
    ) -> Option<ExpectedCaller> {
        let known = self.functions.get(&frame);
        let known = known.filter(|it| self.on && it.counts())?;
        let space = process.space();
        if out.frames.len() + known.callers.len() > depth_max || space.len() > MAPPINGS_MAX {
            self.counts.refused += 1;
            return None;
        }
        let (frames, files) = (out.frames.len(), out.files.len());
        let (mut first, mut last) = (None, None);
        for &(file, offset) in &known.callers {
            let holds = |mapping: &&Mapping| {
                let into = offset.0.wrapping_sub(mapping.file_offset);
                mapping.backing == Backing::File(file) && into < mapping.end - mapping.start
            };
            let Some(mapping) = last.filter(holds).or_else(|| space.iter().find(holds)) else {
                out.frames.truncate(frames);
                out.files.truncate(files);
                return None;
            };
            // A call ends one byte before its return address.
            let into = offset.0.wrapping_sub(mapping.file_offset);
            let address = mapping.start.wrapping_add(into).wrapping_add(1);
            first = first.or(Some(ExpectedCaller {
                frame,
                slot,
                address,
            }));
            out.add_file(mapping, file, offset);
            last = Some(mapping);
        }
        self.counts.completed += 1;
        first
    }

    /// Makes room for another function.
    fn make_room(&mut self) {
        if self.functions.len() < FUNCTIONS_MAX {
            return;
        }
        self.functions
            .retain(|_, it| it.is_refuted() || it.agreed > 1);
        if self.functions.len() <= FUNCTIONS_MAX / 2 {
            return;
        }
        // A function that was given up is to stay so.
        self.counts.emptied += 1;
        self.functions.retain(|_, it| it.is_refuted());
        if self.functions.len() > FUNCTIONS_MAX / 2 {
            self.functions.clear();
        }
    }
}

impl Known {
    /// True where enough processes had the same callers and none had others.
    fn counts(&self) -> bool {
        self.agreed >= AGREED_MIN && !self.is_refuted()
    }

    fn is_refuted(&self) -> bool {
        self.callers.is_empty()
    }

    fn refute(&mut self) {
        self.callers = Box::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: CutFrame = CutFrame {
        cgroup: CgroupId(1),
        file: FileId(1),
        function: 0x1000,
        place: 0x238,
    };

    fn callers(offsets: &[u64]) -> Vec<RawFrame> {
        let frame = |&offset: &u64| RawFrame::File(FileId(1), FileOffset(offset));
        offsets.iter().map(frame).collect()
    }

    fn agreed(known: &KnownCallers, frame: CutFrame) -> u32 {
        let found = known.functions.get(&frame);
        found
            .filter(|it| !it.is_refuted())
            .map_or(0, |it| it.agreed)
    }

    #[test]
    fn what_one_process_shows_again_and_again_counts_once() {
        let mut known = KnownCallers::default();
        for _ in 0..10 {
            known.learn(FRAME, (ProcessId(1), true), &callers(&[1, 2]));
        }
        assert_eq!(agreed(&known, FRAME), 1);
        known.learn(FRAME, (ProcessId(2), true), &callers(&[1, 2]));
        assert_eq!(agreed(&known, FRAME), 2);
    }

    #[test]
    fn a_function_with_other_callers_is_given_up_for_good() {
        let mut known = KnownCallers::default();
        for process in 1..=AGREED_MIN {
            known.learn(FRAME, (ProcessId(process), true), &callers(&[1, 2]));
        }
        assert_eq!((known.counts().checked, known.counts().wrong), (0, 0));
        known.learn(FRAME, (ProcessId(100), true), &callers(&[1, 2]));
        known.learn(FRAME, (ProcessId(101), true), &callers(&[1, 3]));
        assert_eq!((known.counts().checked, known.counts().wrong), (2, 1));
        for process in 1..=AGREED_MIN {
            known.learn(FRAME, (ProcessId(process), true), &callers(&[1, 2]));
        }
        assert_eq!(agreed(&known, FRAME), 0);
    }

    #[test]
    fn another_place_of_the_return_address_is_another_chain_of_callers() {
        let mut known = KnownCallers::default();
        let at = |slot| CutFrame::new(CgroupId(1), FileId(1), 0x1000, slot);
        known.learn(
            at(0x7f00_0000_1238),
            (ProcessId(1), true),
            &callers(&[1, 2]),
        );
        known.learn(
            at(0x7f00_0000_1248),
            (ProcessId(2), true),
            &callers(&[1, 3]),
        );
        known.learn(
            at(0x7f12_3456_7238),
            (ProcessId(3), true),
            &callers(&[1, 2]),
        );
        assert_eq!(agreed(&known, at(0x238)), 2);
        assert_eq!(agreed(&known, at(0x248)), 1);
    }

    #[test]
    fn generated_callers_and_none_are_not_remembered() {
        let mut known = KnownCallers::default();
        let generated = RawFrame::Jit(ProcessId(1), host::ids::Avma(0x1000));
        known.learn(FRAME, (ProcessId(1), true), &[generated]);
        known.learn(FRAME, (ProcessId(1), true), &[]);
        assert_eq!(known.counts().functions, 0);
    }

    #[test]
    fn a_thread_without_the_expected_caller_ends_it_for_its_function() {
        let mut known = KnownCallers::default();
        for process in 1..=AGREED_MIN {
            known.learn(FRAME, (ProcessId(process), true), &callers(&[1, 2]));
        }
        known.compare(FRAME, true);
        assert_eq!(agreed(&known, FRAME), AGREED_MIN);
        known.compare(FRAME, false);
        assert_eq!(agreed(&known, FRAME), 0);
        assert_eq!((known.counts().checked, known.counts().wrong), (2, 1));
    }

    #[test]
    fn of_too_many_functions_those_that_one_process_had_are_forgotten_first() {
        let mut known = KnownCallers::default();
        let learn = |known: &mut KnownCallers, function, process| {
            let frame = CutFrame { function, ..FRAME };
            known.learn(frame, (ProcessId(process), true), &callers(&[1]));
        };
        for function in 0..=FUNCTIONS_MAX as u64 {
            learn(&mut known, function, 1);
            if function < 10 {
                learn(&mut known, function, 2);
            }
        }
        assert_eq!((known.counts().functions, known.counts().emptied), (11, 0));
        for function in 0..=FUNCTIONS_MAX as u64 {
            learn(&mut known, function, 3);
            learn(&mut known, function, 4);
        }
        assert_eq!(known.counts().emptied, 1);
    }
}
