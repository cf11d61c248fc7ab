//! Source lines of generated code from a jitdump, which has them before the code itself.
//!
//! V8 counts addresses from the head of the ELF image that `perf inject` makes for each function,
//! 64 bytes before the code. In each run of Node 20.19 there is one function with a freed string in
//! place of its file name; its lines make no sense from there on. A name of the single byte 255
//! means: the same name as before.

use super::{u32_at, u64_at};
use crate::code::Lines;
use profile::names;
use std::ops::Range;

/// Fixed part of a record. Unit: bytes.
pub(super) const LEAST_BYTES: usize = 16;

/// Fixed part of an entry. Unit: bytes.
const ENTRY_BYTES: usize = 16;

/// Most lines kept of one function. Unit: lines. Real functions have some hundred.
const LINES_MAX: usize = 4096;

/// Most files kept of one function: those of the functions in it that were inlined.
const FILES_MAX: usize = 64;

/// Most functions with lines that wait for their code. There is one, unless threads write at once.
const PENDING_MAX: usize = 8;

/// Size of the head of an ELF image of 64 bits.
const ELF_HEAD_BYTES: u64 = 64;

/// Lines of code that is not there yet.
#[derive(Debug, Default)]
pub(super) struct Pending {
    functions: Vec<Function>,
}

#[derive(Debug)]
struct Function {
    start: u64,
    files: Vec<Box<str>>,
    /// Address, index of the file, line.
    rows: Vec<(u64, u32, u32)>,
}

impl Pending {
    /// Reads a record, which may be cut. Returns how many lines were left out.
    pub(super) fn read(&mut self, record: &[u8]) -> u64 {
        let (start, count) = (u64_at(record, 0), u64_at(record, 8));
        let mut function = Function {
            start,
            files: Vec::new(),
            rows: Vec::new(),
        };
        let mut rest = &record[LEAST_BYTES..];
        let mut seen = 0;
        let mut dropped = 0;
        while seen < count
            && let Some((entry, behind)) = rest.split_at_checked(ENTRY_BYTES)
            && let Some(end) = behind.iter().position(|&byte| byte == 0)
        {
            rest = &behind[end + 1..];
            seen += 1;
            dropped += u64::from(!function.add(entry, &behind[..end]));
        }
        // What the record has no room for was never there: it cannot claim to have lost more than
        // bytes.
        let missing = (count - seen).min((rest.len() / (ENTRY_BYTES + 1)) as u64);
        self.functions.retain(|other| other.start != start);
        if self.functions.len() == PENDING_MAX {
            dropped += self.functions.remove(0).rows.len() as u64;
        }
        self.functions.push(function);
        dropped + missing
    }

    /// The lines of the code in `range`, which came now, and how many made no sense. `from_head`:
    /// addresses are counted from the head of an image.
    pub(super) fn of(&mut self, range: &Range<u64>, from_head: bool) -> (Lines, u64) {
        let found = self.functions.iter().position(|f| f.start == range.start);
        let Some(function) = found.map(|at| self.functions.remove(at)) else {
            return (Lines::default(), 0);
        };
        let shift = if from_head { ELF_HEAD_BYTES } else { 0 };
        let all = function.rows.len();
        let rows = function
            .rows
            .into_iter()
            .filter_map(|(address, file, line)| {
                let offset = address.checked_sub(shift)?.checked_sub(range.start)?;
                let offset = u32::try_from(offset).ok()?;
                (u64::from(offset) < range.end - range.start).then_some((offset, file, line))
            });
        let mut rows: Vec<(u32, u32, u32)> = rows.collect();
        let dropped = all - rows.len();
        // If two rows are at one place, the later counts; a stable sort keeps it behind the other.
        rows.sort_by_key(|row| row.0);
        let lines = Lines {
            files: function.files.into(),
            rows: rows.into(),
        };
        (lines, dropped as u64)
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let function = |function: &Function| {
            let files: usize = function.files.iter().map(|file| file.len() + 16).sum();
            files + function.rows.capacity() * size_of::<(u64, u32, u32)>()
        };
        self.functions.iter().map(function).sum()
    }
}

impl Function {
    /// Adds a line. False when there is no room or its file has no name.
    fn add(&mut self, entry: &[u8], name: &[u8]) -> bool {
        const AS_BEFORE: &[u8] = &[0xff];
        let file = match name {
            AS_BEFORE => self.rows.last().map(|row| row.1),
            _ => self.file(name),
        };
        let (Some(file), true) = (file, self.rows.len() < LINES_MAX) else {
            return false;
        };
        let (address, line) = (u64_at(entry, 0), u32_at(entry, 8));
        self.rows.push((address, file, line));
        true
    }

    /// The index of a file; `None` when it is no text or there is no room.
    fn file(&mut self, name: &[u8]) -> Option<u32> {
        let text = std::str::from_utf8(name).ok()?;
        if text.is_empty() || text.contains(char::is_control) {
            return None;
        }
        let text = names::capped(text);
        let known = self.files.iter().rposition(|file| **file == *text);
        let at = known.or_else(|| {
            (self.files.len() < FILES_MAX).then(|| {
                self.files.push(text.into());
                self.files.len() - 1
            })
        });
        at.and_then(|at| u32::try_from(at).ok())
    }
}
