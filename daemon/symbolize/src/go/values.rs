//! Decodes lists of values by address, which Go writes for everything that changes within a
//! function: depth of the stack, file, line, inlined call.
//!
//! A list consists of pairs of numbers of variable length: the change of the value, zigzag-coded,
//! and how much code has that value, in units of the shortest instruction. The value starts at -1;
//! a change of 0 ends the list, except at its first pair.

use super::{GoTables, Pieces};
use crate::budget::{FileBudget, Over};
use crate::elf::ReadAt;

/// Longest list that is read. Unit: bytes. Those of stack depths have some ten, those of lines of
/// the largest generated functions some ten thousand. What is behind is not known.
pub const LIST_BYTES_MAX: usize = 32 << 10;

/// Bytes of lists in memory at a time.
const PIECE_BYTES: usize = 128 << 10;

/// One value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Where it starts. Unit: bytes from the start of the function.
    pub from: u32,
    /// Where it ends.
    pub until: u32,
    /// What it is.
    pub value: i32,
}

/// The values of one list, in order; ends where the bytes make no sense.
#[derive(Clone, Debug)]
pub struct Values<'a> {
    bytes: &'a [u8],
    at: u32,
    value: i32,
    first: bool,
    quantum: u32,
}

impl<'a> Values<'a> {
    /// The values of a list that starts with these bytes, for code with instructions of a multiple
    /// of `quantum` bytes.
    pub fn new(bytes: &'a [u8], quantum: u32) -> Values<'a> {
        Values {
            bytes,
            at: 0,
            value: -1,
            first: true,
            quantum,
        }
    }

    fn number(&mut self) -> Option<u32> {
        let mut number = 0u32;
        for shift in (0..35).step_by(7) {
            let (&byte, rest) = self.bytes.split_first()?;
            self.bytes = rest;
            number |= u32::from(byte & 0x7f).checked_shl(shift)?;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }
}

impl Iterator for Values<'_> {
    type Item = Span;

    fn next(&mut self) -> Option<Span> {
        let change = self.number()?;
        if change == 0 && !self.first {
            self.bytes = &[];
            return None;
        }
        self.first = false;
        let sign = (change & 1).wrapping_neg();
        self.value = self.value.wrapping_add(((change >> 1) ^ sign) as i32);
        let from = self.at;
        self.at = from.checked_add(self.number()?.checked_mul(self.quantum)?)?;
        Some(Span {
            from,
            until: self.at,
            value: self.value,
        })
    }
}

/// The lists of a program, read as they are asked for: those of one function are next to each
/// other.
pub struct Lists<'a, 'b, R: ?Sized> {
    pieces: Pieces<'a, 'b, R>,
    quantum: u32,
}

impl<'a, 'b, R: ReadAt + ?Sized> Lists<'a, 'b, R> {
    /// Creates it for a program.
    pub fn new(image: &'a R, tables: &GoTables, budget: &'a FileBudget<'b>) -> Self {
        Lists {
            pieces: Pieces::new(image, budget, tables.values, PIECE_BYTES),
            quantum: tables.quantum,
        }
    }

    /// Their memory. Unit: bytes.
    pub fn heap_bytes(&self) -> usize {
        PIECE_BYTES
    }

    /// The list at a place; `None` for place 0, which says that there is none.
    ///
    /// # Errors
    /// When reading takes more than the budget has left.
    pub fn at(&mut self, place: u32) -> Result<Option<Values<'_>>, Over> {
        if place == 0 {
            return Ok(None);
        }
        let bytes = self.pieces.up_to(place.into(), LIST_BYTES_MAX)?;
        Ok((!bytes.is_empty()).then(|| Values::new(bytes, self.quantum)))
    }
}
