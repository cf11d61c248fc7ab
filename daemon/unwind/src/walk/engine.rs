//! Walks a stack by unwind information, from the registers and the copy of a sample.
//!
//! There is one engine for all processes: addresses become places in files through the process's
//! mappings, and everything known about a file is shared; generated code has its own rules
//! (`generated.rs`). Frames without unwind information are passed by their frame pointer if it
//! leads to mapped code; what follows such a step is a guess until the walk reaches an outermost
//! frame. Allocates nothing once the buffers have grown.

mod beam;
mod cut_frames;
mod interpreted;
mod red_zone;
mod scan;

use super::StackBuffer;
use super::call_sites::CallSites;
use super::cut::{Cut, FramePlace};
use super::deep_stacks::LookCounts;
use super::holes::HoleCounts;
use super::known_callers::KnownCallersCounts;
use super::modules::{ModuleCounts, ModuleState, Modules};
use super::recall::RecallCounts;
use crate::arch;
use crate::info::generated::GeneratedRules;
use crate::info::rule::{Behind, Rule, Step, go_to_caller, return_slot, step_saved};
use crate::info::state::{Registers, StackCopy, number};
use crate::info::words::Words;
use crate::process::Process;
use crate::process::space::{Backing, Mapping};
use host::frame::RawFrame;
use host::ids::{Avma, FileId, FileOffset};
use host::time::MonotonicTime;
use profile::StackEnd;
use scan::{ScanCounts, Scanner};
use std::cell::Cell;
use std::cmp::Ordering;

/// Most operations of DWARF expressions for one stack. Real stacks take some dozen; one of 512
/// frames of functions with realigned stacks takes 1,500. At 10 ns each a stack costs at most 40 µs
/// more than its frames do. Where it is too small stacks end with [`StackEnd::WorkLimit`], which is
/// counted.
const OPERATIONS_MAX: u32 = 4096;

/// Cost of looking for a lent frame: it reads up to 18 words.
const LENT_OPERATIONS: u32 = 32;

/// Sizes of copies for which use is counted. Unit: bytes.
pub const COPIES: [u32; 5] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 56 << 10];

/// How much of their copies samples used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyCounts {
    /// Samples with a copy.
    pub samples: u64,
    /// Samples with a stack that is cut because the copy ends.
    pub cut: u64,
    /// Samples that used this much of the copy, or all of it; by [`COPIES`].
    pub beyond: [u64; COPIES.len()],
}

/// How much of its copy a walk used.
#[derive(Clone, Copy, Debug)]
enum Used {
    Bytes(u64),
    /// All of the copy, which was not enough.
    All(u64),
}

/// Counters of the engine since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnwindCounts {
    /// Counts of scans for the caller of generated code.
    pub scans: ScanCounts,
    /// Counts of modules and rules.
    pub modules: ModuleCounts,
    /// Counts of looks at the memory of threads.
    pub looks: LookCounts,
    /// Counts of pages that end copies of stacks.
    pub holes: HoleCounts,
    /// What is known of functions at which copies end.
    pub known_callers: KnownCallersCounts,
    /// Counts of waits that were recognized.
    pub recall: RecallCounts,
    /// Frames whose rule had to be computed from its row, each time.
    pub computed: u64,
    /// Frames passed by frame pointer because there is no unwind information.
    pub by_frame_pointer: u64,
    /// Frames passed by rows that were derived from instructions.
    pub by_derived_rule: u64,
    /// Frames whose derived row led nowhere.
    pub derived_misled: u64,
    /// Frames of code that runs in the frame of the function that jumped to it.
    pub by_lent_frame: u64,
    /// Frames with a CFA in a word below the stack pointer that is also in the frame.
    pub by_red_zone: u64,
    /// Stacks of Erlang processes.
    pub beam_stacks: u64,
    /// Frames of functions that HotSpot interprets, by their method.
    pub interpreted: u64,
    /// Frames of generated code passed by what is known of it.
    pub by_generated_rule: u64,
    /// Frames of generated code whose rule led nowhere: older or newer code than what ran.
    pub generated_misled: u64,
    /// Copies unwound.
    pub walks: u64,
    /// How they ended, by [`StackEnd`].
    pub ends: [u64; StackEnd::ALL.len()],
    /// How much of their copies the samples of the continuous profile used.
    pub copies: CopyCounts,
    /// Walks whose result was replaced or continued by the kernel's chain.
    pub chains_used: u64,
    /// Files whose unwind information was not read because too many waited.
    pub unread: u64,
    /// Files whose unwind information was dropped because the sampler did not keep up.
    pub untaken: u64,
}

impl Default for UnwindCounts {
    fn default() -> Self {
        UnwindCounts {
            scans: ScanCounts::default(),
            modules: ModuleCounts::default(),
            looks: LookCounts::default(),
            holes: HoleCounts::default(),
            known_callers: KnownCallersCounts::default(),
            recall: RecallCounts::default(),
            computed: 0,
            by_frame_pointer: 0,
            by_derived_rule: 0,
            derived_misled: 0,
            by_lent_frame: 0,
            by_red_zone: 0,
            beam_stacks: 0,
            interpreted: 0,
            by_generated_rule: 0,
            generated_misled: 0,
            walks: 0,
            ends: [0; StackEnd::ALL.len()],
            copies: CopyCounts::default(),
            chains_used: 0,
            unread: 0,
            untaken: 0,
        }
    }
}

/// See the file.
pub struct Engine {
    /// The modules.
    pub modules: Modules,
    /// Counters.
    pub counts: UnwindCounts,
    /// Where the last walk needed a return address beyond the copy.
    pub cut: Option<Cut>,
    /// Where the last walk ended with [`StackEnd::OtherStack`].
    pub switch: Switch,
    /// What is known of the calls that words on stacks return to.
    pub call_sites: CallSites,
    /// Whether callers of generated code are scanned for.
    pub scans: bool,
    /// Use of the last walk, until it is counted.
    used: Option<Used>,
    /// Remaining scan work for the current stack.
    pub(super) scanner: Scanner,
    /// Result of a scan that is only compared.
    pub(super) scanned: StackBuffer,
    /// See `red_zone.rs`.
    pub(super) red_zone: Words,
    /// Operations left of [`OPERATIONS_MAX`] for the stack under way.
    pub(super) operations: Cell<u32>,
    /// The stack under way came through a lent frame.
    pub(super) lent: bool,
    /// The frame to be noted in the next walk.
    pub(super) wanted: Option<FramePlace>,
    /// How many frames the last walk had found when it had passed that.
    pub(super) passed: Option<usize>,
}

/// A frame of a function that called on another stack than its caller's.
#[derive(Clone, Copy, Debug)]
pub struct Switch {
    /// What is behind it.
    pub behind: Behind,
    /// Its frame pointer, where that is known.
    pub frame_pointer: Option<u64>,
}

impl Default for Switch {
    fn default() -> Self {
        Switch {
            behind: Behind::Unknown,
            frame_pointer: None,
        }
    }
}

impl Switch {
    fn at(behind: Behind, registers: &Registers) -> Switch {
        Switch {
            behind,
            frame_pointer: registers.get(number::FP),
        }
    }
}

/// Where a walk is.
pub(super) struct Cursor<'a> {
    pub(super) process: &'a Process,
    pub(super) stack: StackCopy<'a>,
    pub(super) registers: Registers,
    /// The instruction pointer is that of an instruction, not of the one after a call.
    pub(super) exact: bool,
    pub(super) now: MonotonicTime,
    /// The mapping of the frame before: mostly that of the next, too.
    pub(super) mapping: Option<&'a Mapping>,
}

impl<'a> Cursor<'a> {
    /// The mapping that holds an address.
    fn mapping_of(&mut self, address: Avma) -> Option<&'a Mapping> {
        let known = self.mapping.filter(|known| known.holds(address));
        self.mapping = known.or_else(|| self.process.space().find(address));
        self.mapping
    }

    /// True when a caller's instruction pointer is one, or says that nobody called.
    pub(super) fn leads_to_code(&self, caller: &Registers) -> bool {
        let before = Avma(caller.ip().wrapping_sub(1));
        caller.ip() == 0 || self.process.space().find(before).is_some()
    }

    /// A walk that is cut here, for lack of the return address at `slot`, if that lies beyond the
    /// copy.
    pub(super) fn cut_at(&self, slot: u64) -> Option<Cut> {
        self.stack.ends_before(slot).then_some(Cut {
            slot,
            registers: self.registers,
            exact: self.exact,
            place: FramePlace::Slot(slot),
        })
    }
}

/// The step after one frame.
pub(super) enum Next {
    Caller,
    End(StackEnd),
}

impl Engine {
    /// An engine with modules of at most `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Engine {
        Engine {
            modules: Modules::new(bytes_max),
            counts: UnwindCounts::default(),
            cut: None,
            switch: Switch::default(),
            call_sites: CallSites::default(),
            scans: true,
            used: None,
            scanner: Scanner::default(),
            scanned: StackBuffer::default(),
            red_zone: red_zone::one_word(),
            operations: Cell::new(0),
            lent: false,
            wanted: None,
            passed: None,
        }
    }

    /// Excludes the last walk from the counts.
    pub fn forget_copy(&mut self) {
        self.used = None;
    }

    /// Counts how much of its copy the last walk used, if there was one since the last count.
    pub fn count_copy(&mut self) {
        let Some(used) = self.used.take() else {
            return;
        };
        let counts = &mut self.counts.copies;
        let (bytes, cut) = match used {
            Used::Bytes(bytes) => (bytes, false),
            Used::All(bytes) => (bytes, true),
        };
        counts.samples += 1;
        counts.cut += u64::from(cut);
        for (count, copy) in counts.beyond.iter_mut().zip(COPIES) {
            *count += u64::from(bytes >= copy.into());
        }
    }

    /// Walks from `registers` to the outermost frame, adding frames to `out`, at most `depth_max`.
    pub fn walk(
        &mut self,
        process: &Process,
        registers: Registers,
        stack: StackCopy<'_>,
        now: MonotonicTime,
        depth_max: usize,
        out: &mut StackBuffer,
    ) -> StackEnd {
        let mut cursor = Cursor {
            process,
            stack,
            registers,
            exact: true,
            now,
            mapping: None,
        };
        self.scanner = Scanner::default();
        self.operations.set(OPERATIONS_MAX);
        self.lent = false;
        self.passed = None;
        let end = self.go_on(&mut cursor, depth_max, out);
        let end = self.or_lent(end);
        self.counts.walks += 1;
        self.counts.ends[end as usize] += 1;
        self.used = match end {
            StackEnd::Complete | StackEnd::Scanned | StackEnd::LentFrame => {
                let used = cursor.registers.sp().saturating_sub(registers.sp());
                Some(Used::Bytes(used.min(stack.size())))
            }
            StackEnd::CopyTooSmall => Some(Used::All(stack.size())),
            _ => Some(Used::Bytes(0)),
        };
        end
    }

    /// Goes on where the last walk was `cut`, with what `stack` has beyond the copy by now.
    pub fn resume(
        &mut self,
        process: &Process,
        cut: Cut,
        stack: StackCopy<'_>,
        now: MonotonicTime,
        depth_max: usize,
        out: &mut StackBuffer,
    ) -> StackEnd {
        let mut cursor = Cursor {
            process,
            stack,
            registers: cut.registers,
            exact: cut.exact,
            now,
            mapping: None,
        };
        // The cut frame comes again.
        out.frames.pop();
        let end = self.go_on(&mut cursor, depth_max, out);
        self.or_lent(end)
    }

    /// How a stack ends that may have come through a lent frame.
    fn or_lent(&self, end: StackEnd) -> StackEnd {
        match end {
            StackEnd::Complete if self.lent => StackEnd::LentFrame,
            end => end,
        }
    }

    pub(super) fn go_on(
        &mut self,
        cursor: &mut Cursor<'_>,
        depth_max: usize,
        out: &mut StackBuffer,
    ) -> StackEnd {
        self.cut = None;
        self.switch = Switch::default();
        for depth in out.frames.len()..depth_max {
            if !self.scanner.may_step() {
                return StackEnd::GeneratedCode;
            }
            match self.frame(cursor, depth == 0, depth_max, out) {
                Next::Caller => {
                    if let Some(FramePlace::Slot(slot)) = self.wanted
                        && arch::has_passed(slot, cursor.registers.sp(), self.passed.is_some())
                    {
                        self.passed = Some(out.frames.len());
                    }
                }
                Next::End(StackEnd::GeneratedCode) if self.scans => {
                    return self.scan(cursor, depth_max, out);
                }
                Next::End(found) => return found,
            }
        }
        StackEnd::DepthLimit
    }

    fn frame(
        &mut self,
        cursor: &mut Cursor<'_>,
        leaf: bool,
        depth_max: usize,
        out: &mut StackBuffer,
    ) -> Next {
        let ip = cursor.registers.ip();
        // A return address may lie behind the end of its function: the call is one byte before.
        let address = Avma(if cursor.exact { ip } else { ip.wrapping_sub(1) });
        let Some(mapping) = cursor.mapping_of(address) else {
            if leaf {
                out.frames
                    .push(super::callchain::unmapped_leaf(cursor.process));
            }
            return Next::End(match ip {
                0 if !leaf => StackEnd::Complete,
                _ => StackEnd::Unmapped,
            });
        };
        match mapping.backing {
            Backing::File(file) => {
                let offset = mapping.offset_of(address);
                let (rule, without) = self.rule(file, offset, cursor.now);
                // Nobody called the function that a signal handler returns to, or that a stack
                // starts with: its first instruction is the frame.
                let named_at = match rule.entered && !cursor.exact {
                    true => FileOffset(offset.0.wrapping_add(1)),
                    false => offset,
                };
                out.add_file(mapping, file, named_at);
                self.follow(cursor, rule, without, file, offset, leaf)
            }
            Backing::Jit => {
                if let Some(next) = self.through_interpreted(cursor, address, out) {
                    return next;
                }
                out.frames.push(RawFrame::Jit(cursor.process.id, address));
                if let Some(beam) = cursor.process.generated().and_then(GeneratedRules::beam) {
                    return self.through_beam(cursor, beam, (address, leaf), depth_max, out);
                }
                self.through_generated(cursor, address, leaf)
            }
            Backing::Nothing(reason) => {
                out.frames.push(RawFrame::Unknown(reason));
                Next::End(StackEnd::Unmapped)
            }
        }
    }

    /// Which of these frames is the first one of a stack, according to its file: frames of a chain
    /// do not show where it ends.
    pub fn outermost(&mut self, frames: &[RawFrame], now: MonotonicTime) -> Option<usize> {
        frames.iter().position(|frame| match *frame {
            RawFrame::File(file, offset) => {
                let (rule, _) = self.rule(file, offset, now);
                matches!(rule.step, Step::Outermost | Step::Switched(Behind::Nobody))
            }
            _ => false,
        })
    }

    /// The rule of a place, and why there is none.
    pub(super) fn rule(
        &mut self,
        file: FileId,
        offset: FileOffset,
        now: MonotonicTime,
    ) -> (Rule, StackEnd) {
        if let Some(rule) = self.modules.known_rule(file, offset) {
            return (rule, StackEnd::NoUnwindInfo);
        }
        let rule = match self.modules.get(file, now) {
            ModuleState::Here(module) => module.rule(offset),
            ModuleState::Without => return (Rule::UNKNOWN, StackEnd::NoUnwindInfo),
            ModuleState::Refused => return (Rule::UNKNOWN, StackEnd::ModuleRefused),
            ModuleState::Awaited => return (Rule::UNKNOWN, StackEnd::ModuleLoading),
        };
        self.modules.keep_rule(file, offset, rule);
        (rule, StackEnd::NoUnwindInfo)
    }

    fn follow(
        &mut self,
        cursor: &mut Cursor<'_>,
        rule: Rule,
        without: StackEnd,
        file: FileId,
        offset: FileOffset,
        leaf: bool,
    ) -> Next {
        if rule.lent
            && let Some(next) = self.by_lent_frame(cursor, file, rule.derived)
        {
            return next;
        }
        let Cursor {
            registers, stack, ..
        } = &*cursor;
        let caller = match rule.step {
            Step::Outermost => {
                self.scanner.outermost = true;
                return Next::End(StackEnd::Complete);
            }
            // With the instruction pointer there, it may be either stack: its frame pointer
            // decides, which leads out of the copy once the stack has changed.
            Step::Switched(behind) if cursor.exact => {
                let behind = match behind {
                    Behind::Caller => behind,
                    _ => Behind::Unknown,
                };
                self.switch = Switch::at(behind, registers);
                return self.by_frame_pointer(cursor, StackEnd::OtherStack);
            }
            Step::Switched(Behind::Nobody) => return Next::End(StackEnd::Complete),
            Step::Switched(behind) => {
                self.switch = Switch::at(behind, registers);
                return Next::End(StackEnd::OtherStack);
            }
            Step::Unknown if without == StackEnd::ModuleLoading => return Next::End(without),
            Step::Unknown => return self.by_frame_pointer(cursor, without),
            Step::Saved {
                base,
                offset,
                places,
            } => {
                let cut_at = |cursor: &Cursor<'_>| {
                    let slot = return_slot(base, offset, &places, &cursor.registers);
                    slot.and_then(|slot| cursor.cut_at(slot))
                };
                if !rule.derived {
                    let below = registers.sp();
                    let Cursor {
                        registers, stack, ..
                    } = cursor;
                    return match go_to_caller(base, offset, &places, registers, stack) {
                        Ok(()) if is_no_progress(below, registers, rule, (leaf, cursor.exact)) => {
                            Next::End(StackEnd::NoProgress)
                        }
                        Ok(()) => {
                            cursor.exact = rule.signal;
                            Next::Caller
                        }
                        Err(end) => {
                            self.cut = cut_at(cursor);
                            self.missed(cursor, end)
                        }
                    };
                }
                let caller = step_saved(base, offset, &places, registers, stack);
                if caller.is_err() {
                    self.cut = cut_at(cursor);
                }
                caller
            }
            Step::Computed => {
                self.counts.computed += 1;
                let computed = match self.modules.get(file, cursor.now) {
                    ModuleState::Here(module) => {
                        module.compute(offset, registers, stack, &self.operations)
                    }
                    ModuleState::Without => Err(StackEnd::NoUnwindInfo),
                    ModuleState::Refused => Err(StackEnd::ModuleRefused),
                    ModuleState::Awaited => Err(StackEnd::ModuleLoading),
                };
                match computed {
                    Err(end @ StackEnd::UnreadableMemory) => {
                        let caller = self.by_red_zone(cursor, file, offset);
                        self.counts.by_red_zone += u64::from(caller.is_some());
                        caller.ok_or(end)
                    }
                    computed => computed,
                }
            }
        };
        if rule.derived {
            return self.by_derived_rule(cursor, caller, leaf);
        }
        match caller {
            Ok(caller) if is_no_progress(registers.sp(), &caller, rule, (leaf, cursor.exact)) => {
                Next::End(StackEnd::NoProgress)
            }
            Ok(caller) => {
                cursor.exact = rule.signal;
                cursor.registers = caller;
                Next::Caller
            }
            Err(end) => self.missed(cursor, end),
        }
    }

    /// Where a rule does not lead to a caller.
    fn missed(&mut self, cursor: &mut Cursor<'_>, end: StackEnd) -> Next {
        // A frame that was passed by its frame pointer ended somewhere above.
        let is_lost = !arch::FRAME_RECORD_IS_LAST && cursor.registers.get(number::SP).is_none();
        match end {
            StackEnd::NoUnwindInfo if is_lost => self.by_frame_pointer(cursor, end),
            end => Next::End(end),
        }
    }

    /// Passes code that runs in the frame of the function that jumped to it. `None` if the stack
    /// has no such frame, or it is unknown and there is a derived rule.
    fn by_lent_frame(
        &mut self,
        cursor: &mut Cursor<'_>,
        file: FileId,
        derived: bool,
    ) -> Option<Next> {
        let left = self.operations.get().checked_sub(LENT_OPERATIONS)?;
        self.operations.set(left);
        let ModuleState::Here(module) = self.modules.get(file, cursor.now) else {
            return None;
        };
        let lender = module.lender()?;
        let space = cursor.process.space();
        let place_of = |ip: u64| {
            let mapping = space.find(Avma(ip.wrapping_sub(1)))?;
            let same = matches!(mapping.backing, Backing::File(found) if found == file);
            same.then(|| mapping.offset_of(Avma(ip)))
        };
        let is_code = |ip: u64| space.find(Avma(ip.wrapping_sub(1))).is_some();
        match lender.caller(&cursor.registers, &cursor.stack, place_of, is_code) {
            Ok(caller) => {
                cursor.registers = caller.filter(|it| it.sp() > cursor.registers.sp())?;
                cursor.exact = false;
                self.counts.by_lent_frame += 1;
                self.lent = true;
                Some(Next::Caller)
            }
            Err(_) if derived => None,
            Err(end) => {
                // What calls C aligns the stack for it, mostly by a word.
                let aligned = if cursor.exact { 0 } else { 8 };
                let slot = lender.slot(&cursor.registers);
                self.cut = slot.and_then(|slot| cursor.cut_at(slot.wrapping_add(aligned)));
                Some(Next::End(end))
            }
        }
    }

    /// Passes a frame by a rule derived from its instructions, if that leads to code; else by its
    /// frame pointer.
    fn by_derived_rule(
        &mut self,
        cursor: &mut Cursor<'_>,
        caller: Result<Registers, StackEnd>,
        leaf: bool,
    ) -> Next {
        match caller {
            Ok(caller) => {
                let upwards = leaf || caller.sp() > cursor.registers.sp();
                if upwards && cursor.leads_to_code(&caller) {
                    self.counts.by_derived_rule += 1;
                    cursor.registers = caller;
                    cursor.exact = false;
                    return Next::Caller;
                }
            }
            // What lies beyond the copy may be looked at.
            Err(end) if self.cut.is_some() || end == StackEnd::CopyTooSmall => {
                return Next::End(end);
            }
            Err(_) => {}
        }
        self.counts.derived_misled += 1;
        self.by_frame_pointer(cursor, StackEnd::NoUnwindInfo)
    }

    /// Passes a frame of generated code by its runtime's rules, else by its frame pointer. The
    /// rules may belong to earlier or later code at that address, so their result is checked first.
    pub(super) fn through_generated(
        &mut self,
        cursor: &mut Cursor<'_>,
        address: Avma,
        leaf: bool,
    ) -> Next {
        let Cursor {
            process,
            registers,
            stack,
            ..
        } = &*cursor;
        let known = process.generated().map(|rules| rules.rule(address).step);
        let (base, offset, places) = match known {
            Some(Step::Outermost) => return Next::End(StackEnd::Complete),
            Some(Step::Saved {
                base,
                offset,
                places,
            }) => (base, offset, places),
            _ => return self.by_frame_pointer(cursor, StackEnd::GeneratedCode),
        };
        match step_saved(base, offset, &places, registers, stack) {
            Ok(caller) => {
                let upwards = leaf || caller.sp() > registers.sp();
                if upwards && cursor.leads_to_code(&caller) {
                    self.counts.by_generated_rule += 1;
                    self.check_scan(cursor, &caller);
                    cursor.registers = caller;
                    cursor.exact = false;
                    return Next::Caller;
                }
            }
            Err(StackEnd::CopyTooSmall) => {
                let slot = return_slot(base, offset, &places, registers);
                self.cut = slot.and_then(|slot| cursor.cut_at(slot));
                return Next::End(StackEnd::CopyTooSmall);
            }
            Err(_) => {}
        }
        self.counts.generated_misled += 1;
        self.by_frame_pointer(cursor, StackEnd::GeneratedCode)
    }

    /// Passes a frame that nothing describes by its frame pointer. `otherwise` is the end when that
    /// leads nowhere.
    fn by_frame_pointer(&mut self, cursor: &mut Cursor<'_>, otherwise: StackEnd) -> Next {
        let Cursor {
            registers,
            stack,
            process,
            ..
        } = cursor;
        stack.goes_by(registers, number::FP);
        let caller = || {
            let frame = registers.get(number::FP)?;
            if frame < registers.sp() || frame % 8 != 0 {
                return None;
            }
            let (saved, ip) = (
                stack.read(frame).ok()?,
                stack.read(frame.wrapping_add(8)).ok()?,
            );
            let call = arch::code_address(ip).wrapping_sub(1);
            process.space().find(Avma(call))?;
            let mut caller = registers.after_return(ip, frame.wrapping_add(16));
            if !arch::FRAME_RECORD_IS_LAST {
                caller.forget(number::SP);
            }
            caller.set(number::FP, saved);
            Some(caller)
        };
        let Some(caller) = caller() else {
            return Next::End(otherwise);
        };
        self.counts.by_frame_pointer += 1;
        cursor.registers = caller;
        cursor.exact = false;
        Next::Caller
    }
}

/// True where a caller's frame does not lie above one that starts at `below`. Stacks grow down. A
/// signal handler may have run on a stack of its own, and a frame may be empty where the leaf saved
/// nothing, or what a signal struck where calls leave nothing on the stack.
fn is_no_progress(below: u64, caller: &Registers, rule: Rule, (leaf, exact): (bool, bool)) -> bool {
    let may_be_empty = leaf || arch::LINK_REGISTER.is_some() && exact;
    match caller.sp().cmp(&below) {
        Ordering::Less => !rule.signal && !leaf,
        Ordering::Equal => !rule.signal && !may_be_empty,
        Ordering::Greater => false,
    }
}
