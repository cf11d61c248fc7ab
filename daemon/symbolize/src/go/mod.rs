//! Reads the tables that Go's linker leaves in every program, stripped or not: where functions
//! start, what they are called, their stack frames, files, lines and inlined calls (`.gopclntab`).
//!
//! Three layouts are read, those of Go 1.16 and 1.17, of 1.18 and 1.19, and of 1.20 and later, for
//! little-endian machines of 64 bits. Source: `internal/abi/symtab.go`,
//! `cmd/link/internal/ld/pcln.go` and `runtime/symtab.go` of Go 1.16 to 1.27. The table has no
//! version except its magic number, and the numbers that mark functions of the runtime have another
//! meaning in every release, so those functions are recognized by name ([`roles`]).
//!
//! The image is untrusted. It is read a piece at a time, each offset is looked up within the table,
//! and lists end where their bytes do; functions that are out of order are left out. Memory and
//! time count toward the file's budget.

mod find;
pub mod functions;
pub mod lines;
pub mod roles;
pub mod values;

#[cfg(test)]
mod tests;

use super::budget::{FileBudget, Over};
use super::elf::{ElfError, ReadAt, SymbolTable};
pub use find::find;
use functions::Function;

/// Most functions of a program. Unit: functions. Kubernetes' largest have 150,000. A table that
/// claims more is not read.
const FUNCTIONS_MAX: u64 = 4 << 20;

/// The layout of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// Go 1.16 and 1.17: functions have addresses.
    Addresses,
    /// Go 1.18 and 1.19: functions are counted from the start of the code.
    Offsets,
    /// Go 1.20 and later: functions have the line that they start at.
    StartLines,
}

impl Layout {
    /// By the first four bytes.
    fn of(magic: u32) -> Option<Layout> {
        match magic {
            0xffff_fffa => Some(Layout::Addresses),
            0xffff_fff0 => Some(Layout::Offsets),
            0xffff_fff1 => Some(Layout::StartLines),
            _ => None,
        }
    }

    /// Length of an address in the list of functions. Unit: bytes.
    fn address_bytes(self) -> u64 {
        match self {
            Layout::Addresses => 8,
            Layout::Offsets | Layout::StartLines => 4,
        }
    }

    /// Length of what is fixed of a function. Unit: bytes.
    fn function_bytes(self) -> usize {
        match self {
            Layout::Addresses => 44,
            Layout::Offsets => 40,
            Layout::StartLines => 44,
        }
    }
}

/// A part of the table: where it is in the file, and its length at most. Unit: bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Part {
    at: u64,
    len: u64,
}

/// The tables of a program, found and checked.
#[derive(Clone, Copy, Debug)]
pub struct GoTables {
    layout: Layout,
    /// Where the header is in the file.
    at: u64,
    /// Address of the header (SVMA).
    address: u64,
    /// Address that functions are counted from (SVMA); 0 where they have addresses.
    text: u64,
    /// Every instruction's length is a multiple of this. Unit: bytes.
    quantum: u32,
    /// Number of functions.
    count: u64,
    names: Part,
    units: Part,
    files: Part,
    values: Part,
    functions: Part,
}

/// The table of a program as [`SymbolTable`]: its functions, by the names that Go gives them. Type
/// arguments are `[...]` in them.
///
/// # Errors
/// When reading takes more than `budget` has left.
pub fn symbols<R: ReadAt + ?Sized>(
    image: &R,
    tables: &GoTables,
    budget: &FileBudget<'_>,
) -> Result<Option<SymbolTable>, ElfError> {
    let mut charge = budget.charge(0)?;
    let mut found: Vec<(u64, u32, u32)> = Vec::new();
    tables.each(image, budget, |function: &Function| {
        if found.len() == found.capacity() {
            let more = (found.capacity() / 2).max(1024);
            charge.set((found.len() + more) * size_of::<(u64, u32, u32)>())?;
            found.reserve_exact(more);
        }
        let len = u32::try_from(function.end - function.start).unwrap_or(u32::MAX);
        found.push((function.start, len, function.name));
        Ok::<(), Over>(())
    })?;
    if found.is_empty() {
        return Ok(None);
    }
    found.shrink_to_fit();
    let names = (tables.names.at, tables.names.len);
    let table = SymbolTable::of_functions(found.into_iter(), names);
    charge.set(table.heap_bytes())?;
    charge.keep();
    Ok(Some(table))
}

/// A view of a part of an image, a piece at a time.
struct Pieces<'a, 'b, R: ?Sized> {
    image: &'a R,
    budget: &'a FileBudget<'b>,
    part: Part,
    bytes: Vec<u8>,
    /// Where the piece starts in the part.
    at: u64,
    /// Bytes read at a time.
    piece: usize,
}

impl<'a, 'b, R: ReadAt + ?Sized> Pieces<'a, 'b, R> {
    fn new(image: &'a R, budget: &'a FileBudget<'b>, part: Part, piece: usize) -> Self {
        Pieces {
            image,
            budget,
            part,
            bytes: Vec::new(),
            at: 0,
            piece,
        }
    }

    /// Up to `most` bytes from a place of the part on; less at its end, or that of the file.
    fn up_to(&mut self, at: u64, most: usize) -> Result<&[u8], Over> {
        let most = most.min(self.piece);
        let there = self.part.len.saturating_sub(at).min(most as u64);
        let into = at.checked_sub(self.at);
        let has = into.is_some_and(|into| into.saturating_add(there) <= self.bytes.len() as u64);
        if !has {
            let wanted = self.part.len.saturating_sub(at).min(self.piece as u64) as usize;
            self.budget.reads(wanted)?;
            self.bytes.resize(wanted, 0);
            let offset = self.part.at.checked_add(at);
            let read = offset.and_then(|at| self.image.read_some_at(&mut self.bytes, at).ok());
            self.bytes.truncate(read.unwrap_or(0));
            self.at = at;
        }
        let rest = self.bytes.get((at - self.at) as usize..).unwrap_or(&[]);
        Ok(&rest[..rest.len().min(most)])
    }

    /// Exactly `len` bytes.
    fn get(&mut self, at: u64, len: usize) -> Result<Option<&[u8]>, Over> {
        let found = self.up_to(at, len)?;
        Ok((found.len() == len).then_some(found))
    }
}

/// The number in the four bytes at `at`; `None` where `bytes` end before.
fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(*word.first_chunk()?))
}

/// The number in the eight bytes at `at`; `None` where `bytes` end before.
fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(*word.first_chunk()?))
}
