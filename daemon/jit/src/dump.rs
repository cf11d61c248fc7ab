//! Parses a jitdump file: the code that a runtime loaded, moved and described, with times.
//!
//! The bytes are fed as they were appended to the file, in pieces of any size; the code itself is
//! skipped. Layout: Linux, tools/perf/Documentation/jitdump-specification.txt. What runtimes really
//! write (Node 20.19, CPython 3.13.0, wasmtime 50.0, seen 2026-11-22):
//!
//! - Records have times of `CLOCK_MONOTONIC`, in order. The head's time is no such time with V8 and
//!   CPython (wall clock, microseconds), so nothing is taken from it.
//! - CPython names no machine: `elf_mach` is 0. It writes 2 MiB at a time, the head included, so
//!   that most programs have told nothing until they end. V8 writes 4 KiB at a time: the last
//!   functions may wait.
//! - `code_addr` and `vma` are equal. Nobody writes MOVE or CLOSE.
//! - UNWINDING_INFO is the `.eh_frame` and behind it its header, the other way round than
//!   specified; V8 writes a header alone where frame pointers lead on (`jit/src/rules.rs`).
//! - V8 writes DEBUG_INFO, UNWINDING_INFO, LOAD. Its lines: `dump/lines.rs`.
//!
//! The file is untrusted: every number is checked, what makes no sense is counted and skipped by
//! its size, and parsing ends at a record with an impossible size. Pure; memory is bounded.

mod lines;
#[cfg(test)]
mod tests;

use super::code::{CodeMap, Lines, When};
use crate::rules::{RulesBuilder, Unwinding};
use host::time::MonotonicTime;
use lines::Pending;
use profile::names::{self, NAME_BYTES_MAX};
use std::ops::Range;
use unwind::arch::ELF_MACHINE;

/// Largest record, and largest head. Unit: bytes. A record holds one function with its code, of
/// which the largest seen are interpreters of some 100 KiB. A larger one is damage, behind which
/// nothing can be found.
pub const RECORD_BYTES_MAX: u32 = 256 << 20;

/// Longest name looked at. Unit: bytes; four times what is kept, for names of other alphabets.
const NAME_READ_MAX: usize = 4 * NAME_BYTES_MAX;

/// Most of one record with lines that is read. Unit: bytes. 10,000 lines of short names; what is
/// behind it is left out.
const LINES_READ_MAX: usize = 256 << 10;

/// Largest unwinding information of one function. Unit: bytes. Real ones have 20 to some 100.
/// Larger ones are left out.
const UNWINDING_BYTES_MAX: usize = 64 << 10;

/// First address that no process has code at: the upper half is the kernel's.
const ADDRESSES_END: u64 = 1 << 63;

const HEAD_BYTES: usize = 40;
const PREFIX_BYTES: usize = 16;
const LOAD_BYTES: usize = 40;
const MOVE_BYTES: usize = 48;
const UNWINDING_BYTES: usize = 24;

const MAGIC: u32 = 0x4a69_5444;
const VERSION: u32 = 1;
/// The times are not of a clock of the kernel's.
const FLAG_ARCH_TIMESTAMP: u64 = 1;
/// What V8 fills the head with.
const PADDING_OF_V8: u32 = 0xdead_beef;

/// Why a file is not read further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DumpError {
    /// It does not start as a jitdump.
    #[error("the file is not a jitdump")]
    NotADump,
    /// It was written by a machine of the other byte order.
    #[error("the jitdump has the other byte order")]
    ByteOrder,
    /// A version of the format that is not known.
    #[error("the jitdump has unknown version {0}")]
    Version(u32),
    /// Code of another architecture.
    #[error("the jitdump is for another architecture, ELF machine {0}")]
    Machine(u32),
    /// A head or record with an impossible size: it is unknown where the next one starts.
    #[error("the jitdump is damaged: it has a record of {0} bytes")]
    RecordSize(u32),
}

/// What was read from a file since the last check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DumpCounts {
    /// Code that came.
    pub loads: u64,
    /// Records that made no sense.
    pub skipped: u64,
    /// Records of another process than the one that the head names: of a child that writes on.
    pub foreign: u64,
    /// Records with a time that is impossible or not of the sampler's clock: the time of reading
    /// was used.
    pub untimed: u64,
    /// Lines left out: too many, or not within the code they were written for.
    pub lines_dropped: u64,
    /// Unwinding information left out: too long.
    pub unwinding_dropped: u64,
}

/// The kind of part that is being gathered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Part {
    #[default]
    Head,
    Prefix,
    Load,
    LoadName(LoadFacts),
    Move,
    Lines,
    Unwinding,
}

/// The fixed part of a LOAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LoadFacts {
    pid: u32,
    start: u64,
    end: u64,
}

/// The prefix of the record that is read.
#[derive(Clone, Copy, Debug, Default)]
struct Prefix {
    time: u64,
    /// Bytes of the record that are not gathered yet.
    rest: u32,
}

/// Reads one jitdump, fed in pieces of any size as the file grows.
#[derive(Debug)]
pub struct DumpReader {
    part: Part,
    /// Bytes gathered for the part, and how many it needs.
    gathered: Vec<u8>,
    wanted: usize,
    /// Bytes to pass over before the part starts.
    skip: u64,
    record: Prefix,
    /// The process that writes it, by its own pid; 0 until the head is read, or if the head does
    /// not say.
    pid: u32,
    arch_timestamps: bool,
    of_v8: bool,
    /// Time of the latest record that had one.
    latest: u64,
    /// Records before this time may be out of order, because one of them had no time.
    unsure_until: Option<MonotonicTime>,
    lines: Pending,
    unwinding: Option<Vec<u8>>,
    header_bytes: usize,
    closed: bool,
    failed: Option<DumpError>,
    counts: DumpCounts,
}

impl Default for DumpReader {
    fn default() -> Self {
        DumpReader {
            part: Part::Head,
            gathered: Vec::new(),
            wanted: HEAD_BYTES,
            skip: 0,
            record: Prefix::default(),
            pid: 0,
            arch_timestamps: false,
            of_v8: false,
            latest: 0,
            unsure_until: None,
            lines: Pending::default(),
            unwinding: None,
            header_bytes: 0,
            closed: false,
            failed: None,
            counts: DumpCounts::default(),
        }
    }
}

impl DumpReader {
    /// Feeds the next bytes of the file, written at `read`, which is used if the records' own clock
    /// is not the sampler's.
    ///
    /// # Errors
    /// When nothing more can be made of the file: the same error for all that follows. What was
    /// read stays.
    pub fn feed(
        &mut self,
        mut bytes: &[u8],
        read: When,
        code: &mut CodeMap,
        rules: &mut RulesBuilder,
    ) -> Result<(), DumpError> {
        while self.failed.is_none() && !self.closed {
            let skipped = self.skip.min(bytes.len() as u64);
            bytes = &bytes[skipped as usize..];
            self.skip -= skipped;
            let missing = self.wanted - self.gathered.len();
            if self.skip > 0 || bytes.len() < missing {
                break;
            }
            let (now, rest) = bytes.split_at(missing);
            bytes = rest;
            // A part that is completely in this piece is parsed in place.
            let mut whole = std::mem::take(&mut self.gathered);
            let part = if whole.is_empty() {
                now
            } else {
                whole.extend_from_slice(now);
                &whole
            };
            if let Err(error) = self.take(part, read, code, rules) {
                self.fail(error);
            }
            whole.clear();
            self.gathered = whole;
        }
        match self.failed {
            Some(error) => Err(error),
            None if self.closed => Ok(()),
            None => {
                self.gathered.extend_from_slice(bytes);
                Ok(())
            }
        }
    }

    fn fail(&mut self, error: DumpError) {
        self.failed = Some(error);
        self.lines = Pending::default();
        self.unwinding = None;
    }

    /// True when the runtime said that nothing follows.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Counts of what was read and skipped since the last call.
    pub fn take_counts(&mut self) -> DumpCounts {
        std::mem::take(&mut self.counts)
    }

    /// Memory held, in bytes, about.
    pub fn heap_bytes(&self) -> usize {
        let unwinding = self.unwinding.as_ref().map_or(0, Vec::capacity);
        self.gathered.capacity() + self.lines.heap_bytes() + unwinding
    }

    /// Handles a complete part.
    fn take(
        &mut self,
        part: &[u8],
        read: When,
        code: &mut CodeMap,
        rules: &mut RulesBuilder,
    ) -> Result<(), DumpError> {
        match self.part {
            Part::Head => return self.head(part),
            Part::Prefix => return self.prefix(part),
            Part::Load => self.load(part),
            Part::LoadName(facts) => self.named(facts, part, read, code, rules),
            Part::Move => self.moved(part, read, code, rules),
            Part::Lines => {
                let dropped = self.lines.read(part);
                self.counts.lines_dropped += dropped;
                self.next_record();
            }
            Part::Unwinding => self.unwinding(part),
        }
        Ok(())
    }

    fn head(&mut self, head: &[u8]) -> Result<(), DumpError> {
        match u32_at(head, 0) {
            MAGIC => {}
            swapped if swapped == MAGIC.swap_bytes() => return Err(DumpError::ByteOrder),
            _ => return Err(DumpError::NotADump),
        }
        let (version, size, machine) = (u32_at(head, 4), u32_at(head, 8), u32_at(head, 12));
        if version != VERSION {
            return Err(DumpError::Version(version));
        }
        if machine != u32::from(ELF_MACHINE) && machine != 0 {
            return Err(DumpError::Machine(machine));
        }
        let more = (size as usize).checked_sub(HEAD_BYTES);
        let more = more.filter(|_| size <= RECORD_BYTES_MAX);
        self.skip = more.ok_or(DumpError::RecordSize(size))? as u64;
        self.of_v8 = u32_at(head, 16) == PADDING_OF_V8;
        self.pid = u32_at(head, 20);
        self.arch_timestamps = u64_at(head, 32) & FLAG_ARCH_TIMESTAMP != 0;
        self.next_record();
        Ok(())
    }

    /// Goes on behind what is left of the record.
    fn next_record(&mut self) {
        self.skip += u64::from(std::mem::take(&mut self.record.rest));
        self.part = Part::Prefix;
        self.wanted = PREFIX_BYTES;
    }

    /// Gathers the next `wanted` bytes of the record.
    fn gather(&mut self, part: Part, wanted: usize) {
        self.part = part;
        self.wanted = wanted;
        self.record.rest -= wanted as u32;
    }

    fn prefix(&mut self, prefix: &[u8]) -> Result<(), DumpError> {
        let (id, size) = (u32_at(prefix, 0), u32_at(prefix, 4));
        let rest = size.checked_sub(PREFIX_BYTES as u32);
        let rest = rest.filter(|_| size <= RECORD_BYTES_MAX);
        let rest = rest.ok_or(DumpError::RecordSize(size))?;
        let time = u64_at(prefix, 8);
        self.record = Prefix { time, rest };
        let rest = rest as usize;
        let (part, least, wanted) = match id {
            0 => (Part::Load, LOAD_BYTES, LOAD_BYTES),
            1 => (Part::Move, MOVE_BYTES, MOVE_BYTES),
            2 => (Part::Lines, lines::LEAST_BYTES, rest.min(LINES_READ_MAX)),
            3 => {
                self.closed = true;
                return Ok(());
            }
            4 if rest > UNWINDING_BYTES + UNWINDING_BYTES_MAX => {
                self.unwinding = None;
                self.counts.unwinding_dropped += 1;
                self.next_record();
                return Ok(());
            }
            4 => (Part::Unwinding, UNWINDING_BYTES, rest),
            _ => {
                self.next_record();
                return Ok(());
            }
        };
        if rest < least {
            self.counts.skipped += 1;
            self.next_record();
        } else {
            self.gather(part, wanted);
        }
        Ok(())
    }

    fn load(&mut self, fixed: &[u8]) {
        let (start, size) = (u64_at(fixed, 16), u64_at(fixed, 24));
        let facts = end_of(start, size).map(|end| LoadFacts {
            pid: u32_at(fixed, 0),
            start,
            end,
        });
        let Some(facts) = facts else {
            self.counts.skipped += 1;
            // The information that precedes this code belongs to no other.
            self.unwinding = None;
            return self.next_record();
        };
        // Behind the name is the code; a record too short for it says nothing of the name's length.
        let rest = self.record.rest;
        let name = u64::from(rest).checked_sub(size).unwrap_or(rest.into());
        self.gather(Part::LoadName(facts), (name as usize).min(NAME_READ_MAX));
    }

    fn named(
        &mut self,
        facts: LoadFacts,
        name: &[u8],
        read: When,
        code: &mut CodeMap,
        rules: &mut RulesBuilder,
    ) {
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        let unwinding = self.unwinding.take();
        let range = facts.start..facts.end;
        if self.is_foreign(facts.pid) {
            self.counts.foreign += 1;
        } else if name.is_empty() {
            // Whatever it is called, what lay there is gone.
            self.counts.skipped += 1;
            code.unload(range.clone(), self.when(read));
            rules.unload(range);
        } else {
            self.counts.loads += 1;
            let when = self.when(read);
            let lines = self.lines_of(&range);
            code.load(range.clone(), &names::harmless(name), lines, when);
            match unwinding {
                Some(unwinding) => {
                    rules.load(range, Unwinding::as_written(&unwinding, self.header_bytes));
                }
                None => rules.unload(range),
            }
        }
        self.next_record();
    }

    fn lines_of(&mut self, range: &Range<u64>) -> Lines {
        let (lines, dropped) = self.lines.of(range, self.of_v8);
        self.counts.lines_dropped += dropped;
        lines
    }

    fn moved(&mut self, fixed: &[u8], read: When, code: &mut CodeMap, rules: &mut RulesBuilder) {
        let (from, to, size) = (u64_at(fixed, 16), u64_at(fixed, 24), u64_at(fixed, 32));
        let ends = (end_of(from, size), end_of(to, size));
        if self.is_foreign(u32_at(fixed, 0)) {
            self.counts.foreign += 1;
        } else if let (Some(_), Some(end)) = ends
            && size > 0
        {
            let when = self.when(read);
            if !code.relocate(from, to, size, when) {
                // What came has no name here, and what lay there is gone.
                code.unload(to..end, when);
                self.counts.skipped += 1;
            }
            rules.relocate(from, to, size);
        } else {
            self.counts.skipped += 1;
        }
        self.next_record();
    }

    fn unwinding(&mut self, part: &[u8]) {
        let (size, header) = (u64_at(part, 0), u64_at(part, 8));
        let content = &part[UNWINDING_BYTES..];
        let content = usize::try_from(size).ok().and_then(|n| content.get(..n));
        match content {
            Some(content) if header <= size => {
                self.unwinding = Some(content.into());
                self.header_bytes = header as usize;
            }
            _ => {
                self.unwinding = None;
                self.counts.skipped += 1;
            }
        }
        self.next_record();
    }

    fn is_foreign(&self, pid: u32) -> bool {
        self.pid != 0 && pid != self.pid
    }

    /// Time of the record. Times must not decrease within a file: an earlier one is taken for the
    /// latest seen. One that is impossible is ignored, and until the time of the reading no order
    /// is known. One from before the process is possible: a forked child has its parent's file
    /// mapped.
    fn when(&mut self, read: When) -> When {
        let time = MonotonicTime(self.record.time);
        let possible = !self.arch_timestamps && time > MonotonicTime(0) && time <= read.by();
        if !possible {
            self.unsure_until = Some(read.by());
        }
        if self
            .unsure_until
            .is_some_and(|until| time <= until || !possible)
        {
            self.counts.untimed += 1;
            return read;
        }
        self.latest = self.latest.max(time.0);
        When::at(MonotonicTime(self.latest))
    }
}

/// The end of a piece of code; `None` when it cannot be code of a process.
fn end_of(start: u64, size: u64) -> Option<u64> {
    let end = start.checked_add(size)?;
    (start > 0 && end < ADDRESSES_END && size <= u64::from(RECORD_BYTES_MAX)).then_some(end)
}

/// The number at a place; 0 behind the end, which callers rule out.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
    word.map_or(0, |&word| u32::from_le_bytes(word))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
    word.map_or(0, |&word| u64::from_le_bytes(word))
}
