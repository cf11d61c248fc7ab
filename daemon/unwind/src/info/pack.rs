//! Reads a section of unwind information and computes all of its rows, which the sampler keeps.
//!
//! The input is an untrusted `.eh_frame` or `.debug_frame`, read a window at a time and in the
//! order of the file. The output is where functions start and end, and the rows of each as (offset,
//! number of a kind). Rows are relative to their function, so descriptions that differ only in the
//! address are evaluated and stored once: compilers describe two of three functions like another
//! one.
//!
//! Called by `fp-files`, once per file. Each entry of the section is visited once, entries cannot
//! overlap, and the budget of the file bounds their evaluation. `.eh_frame_hdr` is not needed: it
//! repeats what the section says, and would let a file name one entry a million times.

pub mod build;
mod entries;

use super::row::RowStorage;
use super::row_words::ROWS_MAX;
use super::rule::{RowFacts, kind_of_row};
use super::section::{Bases, Dialect, SectionRange};
use crate::arch;
use build::{Builder, Packed, put};
use entries::{CommonInfo, Function, head_of, names_an_address, write_function};
use gimli::{BaseAddresses, EhFrame, EhFrameOffset, LittleEndian, UnwindContext, UnwindSection};
use hashbrown::HashMap;
use std::hash::BuildHasher;
use symbolize::budget::{Charge, FileBudget, Over};
use symbolize::elf::ReadAt;

/// Longest description of one function that is read. Unit: bytes. Real ones have some hundred, the
/// largest generated ones a few thousand; longer ones are left out.
const ENTRY_BYTES_MAX: usize = 64 << 10;

/// Longest head, shared by many functions, that is read. Unit: bytes. Real ones have some twenty.
const HEAD_BYTES_MAX: usize = 4 << 10;

/// Bytes of a section in memory at a time. An entry has to fit.
const WINDOW_BYTES: usize = 256 << 10;

/// Rows computed between two looks at the budget: some ten µs.
const ROWS_AT_ONCE: usize = 256;

/// Most functions of a section. Unit: functions. A browser has about a million. What lies behind
/// them in the section is not described.
const FUNCTIONS_MAX: usize = 4 << 20;

/// Where a function starts, or where nothing is described until the next starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedEntry {
    /// Address less the base of the table.
    pub start: u32,
    /// Place of the rows, and below it in [`GAP_BITS`] how many bytes before the next entry the
    /// function ends: linkers align functions to 16 bytes.
    place: u32,
}

/// Bits of [`PackedEntry::gap`].
const GAP_BITS: u32 = 4;

impl PackedEntry {
    const NOTHING: u32 = u32::MAX;

    /// Place of the rows; `None` where nothing is described.
    pub fn at(self) -> Option<usize> {
        (self.place != PackedEntry::NOTHING).then_some((self.place >> GAP_BITS) as usize)
    }

    /// Bytes between the end of the function and the next entry.
    pub fn gap(self) -> u32 {
        match self.place {
            PackedEntry::NOTHING => 0,
            place => place & ((1 << GAP_BITS) - 1),
        }
    }
}

/// The section as it lies in the image, a window at a time.
struct Window<'a, R: ?Sized> {
    image: &'a R,
    place: SectionRange,
    bytes: Vec<u8>,
    /// Where the window starts in the section.
    at: u64,
}

impl<R: ReadAt + ?Sized> Window<'_, R> {
    /// True when these bytes of the section are in the window.
    fn has(&self, at: u64, len: usize) -> bool {
        let into = at.checked_sub(self.at);
        into.is_some_and(|into| into + len as u64 <= self.bytes.len() as u64)
    }

    /// Moves the window to a place. Bytes behind the end of the section or the image are not there.
    fn move_to(&mut self, at: u64, budget: &FileBudget<'_>) -> Result<(), Over> {
        let left = self.place.len.saturating_sub(at);
        let wanted = left.min(WINDOW_BYTES as u64) as usize;
        budget.reads(wanted)?;
        self.bytes.resize(wanted, 0);
        self.at = at;
        let offset = self.place.offset.checked_add(at);
        let read = offset.and_then(|offset| self.image.read_some_at(&mut self.bytes, offset).ok());
        self.bytes.truncate(read.unwrap_or(0));
        Ok(())
    }

    /// Bytes of the section that are in the window.
    fn get(&self, at: u64, len: usize) -> Option<&[u8]> {
        let into = usize::try_from(at.checked_sub(self.at)?).ok()?;
        self.bytes.get(into..into.checked_add(len)?)
    }

    /// Makes bytes of the section be in the window; false when there are none.
    fn bring(&mut self, at: u64, len: usize, budget: &FileBudget<'_>) -> Result<bool, Over> {
        if !self.has(at, len) {
            self.move_to(at, budget)?;
        }
        Ok(self.has(at, len))
    }
}

struct Packer<'a, 'p, R: ?Sized> {
    window: Window<'a, R>,
    bases: Bases,
    dialect: Dialect,
    budget: &'a FileBudget<'p>,
    charge: Charge<'a>,
    heads: Vec<CommonInfo>,
    heads_bytes: usize,
    /// Numbers of heads by their place; `None`: not to be had.
    heads_read: HashMap<u64, Option<u32>>,
    last_head: Option<(u64, Option<u32>)>,
    /// Rows by the hash of their description. Two descriptions of one file may share a hash, once
    /// in some million files of a million descriptions: then a function has the rows of another.
    described: HashMap<u64, Option<u32>>,
    builder: Builder,
    context: Box<UnwindContext<usize, RowStorage>>,
    /// The entry under evaluation, behind its head.
    scratch: Vec<u8>,
    rows_computed: usize,
}

/// Reads the section at `place` of an image.
///
/// # Errors
/// When that takes more than `budget` has left.
pub fn pack<R: ReadAt + ?Sized>(
    dialect: Dialect,
    image: &R,
    place: SectionRange,
    bases: Bases,
    budget: &FileBudget<'_>,
) -> Result<Packed, Over> {
    let packer = Packer {
        window: Window {
            image,
            place,
            bytes: Vec::new(),
            at: 0,
        },
        bases,
        dialect,
        budget,
        charge: budget.charge(WINDOW_BYTES)?,
        heads: Vec::new(),
        heads_bytes: 0,
        heads_read: HashMap::new(),
        last_head: None,
        described: HashMap::new(),
        builder: Builder::new(),
        context: Box::new(UnwindContext::new_in()),
        scratch: Vec::new(),
        rows_computed: 0,
    };
    packer.pack()
}

impl<R: ReadAt + ?Sized> Packer<'_, '_, R> {
    fn pack(mut self) -> Result<Packed, Over> {
        let (mut at, mut entries) = (0, 0usize);
        let mut accounted_at = 0;
        while self.builder.len() < FUNCTIONS_MAX && self.window.bring(at, 4, self.budget)? {
            entries += 1;
            // Short entries have rows of their own, and long ones the expressions that are written
            // there.
            if entries.is_multiple_of(ROWS_AT_ONCE) || at - accounted_at >= WINDOW_BYTES as u64 {
                self.account()?;
                accounted_at = at;
            }
            let length = match self.window.get(at, 4).and_then(|word| word.first_chunk()) {
                Some(word) => u32::from_le_bytes(*word),
                None => break,
            };
            match length {
                0 if self.window.place.ends_at_zero => break,
                // Linkers put sections behind each other, each with its end.
                0 => at += 4,
                // Lengths of 64 bits start so; no linker writes them here. What follows something
                // unreadable is not read: its start is not known.
                u32::MAX => break,
                _ => {
                    let next = at + 4 + u64::from(length);
                    if next > self.window.place.len {
                        break;
                    }
                    self.add(at, length as usize)?;
                    at = next;
                }
            }
        }
        self.account()?;
        self.builder.finish(self.charge)
    }

    /// Charges what is held, and asks whether that is still within the budget.
    fn account(&mut self) -> Result<(), Over> {
        // As tables of hashes grow they are twice in memory for a moment.
        let tables = self.described.allocation_size() + self.heads_read.allocation_size();
        let heads = self.heads.len() * size_of::<CommonInfo>() + self.heads_bytes;
        let held = WINDOW_BYTES + tables + tables / 2 + heads + self.builder.heap_bytes();
        self.charge.set(held)?;
        self.budget.check()
    }

    /// Adds the function described by the entry at `at`, which has `length` bytes.
    fn add(&mut self, at: u64, length: usize) -> Result<(), Over> {
        if length > ENTRY_BYTES_MAX || !self.window.bring(at + 4, length, self.budget)? {
            return Ok(());
        }
        let Some(content) = self.window.get(at + 4, length) else {
            return Ok(());
        };
        let Some(head_at) = head_of(self.dialect, content, at) else {
            return Ok(());
        };
        let Some(head) = self.head(head_at)? else {
            return Ok(());
        };
        let Some(content) = self.window.get(at + 4, length) else {
            return Ok(());
        };
        let Some(function) = Function::parse(content, at, &self.heads[head as usize], &self.bases)
        else {
            return Ok(());
        };
        let Function {
            start: address,
            length,
            instructions,
        } = function;
        // Functions that the linker dropped are described at address zero.
        let start = address.checked_sub(self.bases.code).map(u32::try_from);
        let (Some(Ok(start)), true) = (start, address != 0 && length != 0) else {
            return Ok(());
        };
        let hash = self.builder.hasher().hash_one((head, instructions));
        let rows = match self.described.get(&hash) {
            Some(&rows) => rows,
            None => {
                self.scratch.clear();
                write_function(&mut self.scratch, &self.heads[head as usize], instructions);
                let sound = !names_an_address(instructions);
                let rows = if sound { self.evaluate(head)? } else { None };
                self.described.insert(hash, rows);
                rows
            }
        };
        if let Some(rows) = rows {
            let len = u32::try_from(length).unwrap_or(u32::MAX);
            self.builder.add(start, len, rows);
        }
        Ok(())
    }

    /// The number of the head at `at`, read when it is met for the first time.
    fn head(&mut self, at: u64) -> Result<Option<u32>, Over> {
        // Neighbours mostly share theirs.
        if let Some((last, known)) = self.last_head
            && last == at
        {
            return Ok(known);
        }
        let known = match self.heads_read.get(&at) {
            Some(&known) => known,
            None => {
                // Each costs as much as some thousand entries that share one.
                self.account()?;
                let head = self.new_head(at)?.map(|head| {
                    self.heads_bytes += head.entry.len();
                    self.heads.push(head);
                    (self.heads.len() - 1) as u32
                });
                self.heads_read.insert(at, head);
                head
            }
        };
        self.last_head = Some((at, known));
        Ok(known)
    }

    /// Reads a head. Not through the window: its functions are there.
    fn new_head(&self, at: u64) -> Result<Option<CommonInfo>, Over> {
        let SectionRange { offset, len, .. } = self.window.place;
        let most = len.saturating_sub(at).min((4 + HEAD_BYTES_MAX) as u64) as usize;
        self.budget.reads(most)?;
        let mut bytes = vec![0; most];
        let read = offset
            .checked_add(at)
            .and_then(|offset| self.window.image.read_some_at(&mut bytes, offset).ok());
        bytes.truncate(read.unwrap_or(0));
        let content = bytes.split_at_checked(4).and_then(|(length, rest)| {
            let length = u32::from_le_bytes(*length.first_chunk()?) as usize;
            rest.get(..length)
        });
        Ok(content.and_then(|content| CommonInfo::parse(self.dialect, content)))
    }

    /// Computes the rows of the description in `scratch`; where they are. `None` when there are
    /// none.
    fn evaluate(&mut self, head: u32) -> Result<Option<u32>, Over> {
        let Packer {
            scratch,
            context,
            builder,
            budget,
            rows_computed,
            heads,
            ..
        } = self;
        let mut section = EhFrame::new(scratch, LittleEndian);
        section.set_address_size(8);
        // Code 0x2d: return addresses are signed from here on, or no longer. On x86-64 it is
        // refused.
        section.set_vendor(arch::CFI_VENDOR);
        let bases = BaseAddresses::default();
        let at = EhFrameOffset(heads[head as usize].entry.len());
        let Ok(function) = section.fde_from_offset(&bases, at, EhFrame::cie_from_offset) else {
            return Ok(None);
        };
        let facts = RowFacts {
            signal: function.is_signal_trampoline(),
            return_register: function.cie().return_address_register().0,
            section: scratch,
        };
        let Ok(mut rows) = function.rows(&section, &bases, context) else {
            return Ok(None);
        };
        let mut found: Vec<(u32, u16)> = Vec::new();
        let mut behind = 0;
        loop {
            *rows_computed += 1;
            if rows_computed.is_multiple_of(ROWS_AT_ONCE) {
                budget.check()?;
            }
            let row = match rows.next_row() {
                Ok(Some(row)) => row,
                Ok(None) => break,
                // What follows makes no sense.
                Err(_) => {
                    put(&mut found, behind, 0);
                    break;
                }
            };
            let Ok(start) = u32::try_from(row.start_address()) else {
                break;
            };
            behind = u32::try_from(row.end_address()).unwrap_or(u32::MAX);
            let kind = kind_of_row(row, facts, builder.expressions());
            let number = builder.number(kind)?;
            put(&mut found, start, number);
            // There is room for one that says where the last ends.
            if found.len() >= ROWS_MAX - 1 {
                put(&mut found, behind, 0);
                break;
            }
        }
        Ok(builder.keep(&found))
    }
}

#[cfg(test)]
mod tests;
