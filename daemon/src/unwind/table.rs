//! One section of unwind information (`.eh_frame` or `.debug_frame`) and how to find a row in it.
//!
//! The section is kept as `pack.rs` writes it anew, beside a sorted index of where functions begin. Rows
//! are computed when they are needed, on the sampler thread: no allocation, and work bounded by the
//! longest description kept. The content is a stranger's; whatever does not parse is no row.

use super::pack::{Entry, Packed, pack};
use gimli::{
    BaseAddresses, EhFrame, EhFrameOffset, FrameDescriptionEntry, LittleEndian, UnwindContext,
    UnwindContextStorage, UnwindSection, UnwindTableRow,
};
use std::ops::Range;

/// A view of a section's bytes.
pub type Slice<'a> = gimli::EndianSlice<'a, LittleEndian>;

/// Most entries of a table. Unit: functions. A browser has about a million.
pub const ENTRIES_MAX: usize = 4 << 20;

/// Room for rows under evaluation: 32 registers are more than x86-64 code ever describes.
#[derive(Debug)]
pub struct RowStorage;

impl UnwindContextStorage<usize> for RowStorage {
    type Rules = [(gimli::Register, gimli::RegisterRule<usize>); 32];
    type Stack = Box<[UnwindTableRow<usize, RowStorage>; 8]>;
}

/// What rows are computed in; used again and again.
pub type RowContext = UnwindContext<usize, RowStorage>;

/// A row.
pub type Row = UnwindTableRow<usize, RowStorage>;

/// Which of the two dialects a section is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `.eh_frame`
    Eh,
    /// `.debug_frame`
    Debug,
}

/// A section of unwind information with its index.
#[derive(Debug)]
pub struct Table {
    bytes: Box<[u8]>,
    base: u64,
    index: Box<[Entry]>,
}

/// Where the sections of an image are: what relative pointers are relative to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bases {
    /// The first executable segment; the index is relative to it.
    pub code: u64,
    /// `.text`
    pub text: u64,
    /// The section itself.
    pub section: u64,
    /// `.eh_frame_hdr`
    pub header: u64,
}

impl Table {
    /// A table of the section `bytes`, indexed by `header`, the content of `.eh_frame_hdr`, where that
    /// holds a search table, else by reading the whole section. `None` when it describes nothing.
    pub fn new(
        dialect: Dialect,
        bytes: &[u8],
        header: Option<&[u8]>,
        bases: Bases,
    ) -> Option<Table> {
        let places = header.and_then(|header| places_of_header(header, &bases, bytes.len()));
        let Packed { section, index } = pack(dialect, bytes, places, &bases);
        let table = Table {
            bytes: section.into(),
            base: bases.code,
            index: index.into(),
        };
        (!table.index.is_empty()).then_some(table)
    }

    /// Memory held. Unit: bytes.
    pub fn heap_bytes(&self) -> usize {
        self.bytes.len() + size_of_val(&*self.index)
    }

    /// Finds the row of an address (SVMA) and hands it to `with`, together with what belongs to it.
    /// `None` when no function that is described covers the address.
    pub fn with_row<T>(
        &self,
        address: u64,
        context: &mut RowContext,
        with: impl FnOnce(&Row, RowFacts<'_>) -> T,
    ) -> Option<T> {
        let relative = u32::try_from(address.checked_sub(self.base)?).ok()?;
        let after = self.index.partition_point(|entry| entry.start <= relative);
        let entry = self.index[..after].last()?;
        let at = EhFrameOffset(entry.at()?);
        // Behind the last function there is always an entry for nothing.
        let end = self.index.get(after)?.start - entry.gap();
        if relative >= end {
            return None;
        }
        let mut section = EhFrame::new(&self.bytes, LittleEndian);
        section.set_address_size(8);
        let bases = BaseAddresses::default();
        let function: FrameDescriptionEntry<Slice<'_>> = section
            .fde_from_offset(&bases, at, EhFrame::cie_from_offset)
            .ok()?;
        let into = u64::from(relative - entry.start);
        let row = function
            .unwind_info_for_address(&section, &bases, context, into)
            .ok()?;
        let facts = RowFacts {
            signal: function.is_signal_trampoline(),
            return_register: function.cie().return_address_register().0,
            section: &self.bytes,
        };
        Some(with(row, facts))
    }

    /// Hands every row of every function to `each`, in order, with the addresses it is for, less the base.
    /// `None` when one does not parse.
    pub fn rows(
        &self,
        context: &mut RowContext,
        mut each: impl FnMut(Range<u32>, &Row, RowFacts<'_>),
    ) -> Option<()> {
        let mut section = EhFrame::new(&self.bytes, LittleEndian);
        section.set_address_size(8);
        let bases = BaseAddresses::default();
        for pair in self.index.windows(2) {
            let [entry, next] = pair else { continue };
            let Some(at) = entry.at() else { continue };
            let end = next.start - entry.gap();
            let function: FrameDescriptionEntry<Slice<'_>> = section
                .fde_from_offset(&bases, EhFrameOffset(at), EhFrame::cie_from_offset)
                .ok()?;
            let facts = RowFacts {
                signal: function.is_signal_trampoline(),
                return_register: function.cie().return_address_register().0,
                section: &self.bytes,
            };
            let mut rows = function.rows(&section, &bases, context).ok()?;
            while let Some(row) = rows.next_row().ok()? {
                let place = |offset: u64| {
                    let at = u64::from(entry.start).saturating_add(offset);
                    u32::try_from(at).unwrap_or(u32::MAX).min(end)
                };
                let (start, end) = (place(row.start_address()), place(row.end_address()));
                if start < end {
                    each(start..end, row, facts);
                }
            }
        }
        Some(())
    }

    /// True when a function that is described begins at `address` (SVMA).
    pub fn begins_at(&self, address: u64) -> bool {
        let relative = address.checked_sub(self.base).map(u32::try_from);
        let Some(Ok(relative)) = relative else {
            return false;
        };
        let found = self
            .index
            .binary_search_by_key(&relative, |entry| entry.start);
        found.is_ok_and(|at| self.index[at].at().is_some())
    }
}

/// What belongs to a row beside its rules.
#[derive(Clone, Copy, Debug)]
pub struct RowFacts<'a> {
    /// True in the function that a signal handler returns to.
    pub signal: bool,
    /// The column that holds the return address.
    pub return_register: u16,
    pub(super) section: &'a [u8],
}

impl<'a> RowFacts<'a> {
    /// The bytes of an expression.
    pub fn expression(
        &self,
        expression: &gimli::UnwindExpression<usize>,
    ) -> Option<gimli::Expression<Slice<'a>>> {
        let end = expression.offset.checked_add(expression.length)?;
        let bytes = self.section.get(expression.offset..end)?;
        Some(gimli::Expression(Slice::new(bytes, LittleEndian)))
    }
}

/// Where the entries of an `.eh_frame` end: behind the zero length that closes it, or where an entry
/// would go on behind the end of `bytes`.
pub fn end_of_entries(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(length) = bytes.get(at..at + 4) {
        let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]);
        let next = at + 4 + length as usize;
        match length {
            0 => return next,
            // Lengths of 64 bits begin so; no linker writes them here.
            u32::MAX => return at,
            _ if next > bytes.len() => return at,
            _ => at = next,
        }
    }
    at
}

/// The places of descriptions that `.eh_frame_hdr` lists, when it is the usual one: version 1, count of
/// four bytes, pairs of four bytes relative to the header. `None` otherwise.
fn places_of_header(header: &[u8], bases: &Bases, section_bytes: usize) -> Option<Vec<u32>> {
    const VERSION: u8 = 1;
    const UDATA4: u8 = 0x03;
    const DATAREL_SDATA4: u8 = 0x3b;
    let (facts, rest) = header.split_at_checked(4)?;
    // A pointer to the section of four bytes: 0x1b in practice. Of another size it moves the rest.
    let four_bytes = matches!(facts[1] & 0x0f, 0x03 | 0x0b);
    if facts[0] != VERSION || !four_bytes || facts[2..] != [UDATA4, DATAREL_SDATA4] {
        return None;
    }
    let (count, pairs) = rest.get(4..)?.split_at_checked(4)?;
    let count = u32::from_le_bytes(count.try_into().ok()?) as usize;
    if count == 0 || count > ENTRIES_MAX || pairs.len() / 8 < count {
        return None;
    }
    let relative = |bytes: &[u8]| {
        let offset = i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        bases.header.wrapping_add(i64::from(offset) as u64)
    };
    let places = pairs.chunks_exact(8).take(count).filter_map(|pair| {
        let at = relative(&pair[4..]).checked_sub(bases.section)?;
        u32::try_from(at)
            .ok()
            .filter(|&at| (at as usize) < section_bytes)
    });
    let places: Vec<u32> = places.collect();
    (!places.is_empty()).then_some(places)
}
