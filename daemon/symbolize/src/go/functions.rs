//! The functions of a Go program, in order of address.

use super::{GoTables, Layout, Part, Pieces, u32_at, u64_at};
use crate::budget::{FileBudget, Over};
use crate::elf::ReadAt;
use std::ops::Range;

/// Bytes of the list of functions, and of what is known of each, in memory at a time.
const PIECE_BYTES: usize = 64 << 10;

/// Functions between two looks at the budget.
const AT_ONCE: u64 = 1024;

/// A stack ends in this function.
pub const TOP_FRAME: u8 = 1 << 0;
/// This function changes the stack pointer in a way that its depths do not show.
pub const WRITES_SP: u8 = 1 << 1;

/// The table's data about a function. Numbers called a place are those of lists of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its first instruction (SVMA).
    pub start: u64,
    /// Where the next function starts.
    pub end: u64,
    /// Where its name starts among the names.
    pub name: u32,
    /// Place of the depths of its stack.
    pub depths: u32,
    /// Place of its files.
    pub files: u32,
    /// Place of its lines.
    pub lines: u32,
    /// Place of the numbers of inlined calls; 0 when there are none.
    pub inlined: u32,
    /// Where its files start among those of all compilation units.
    pub unit: u32,
    /// The line it starts at; 0 when that is not known.
    pub start_line: u32,
    /// [`TOP_FRAME`], [`WRITES_SP`]; 0 before Go 1.17.
    pub flags: u8,
    /// Where the tree of inlined calls is, from the start of such data; `None` when there is none.
    pub tree: Option<u32>,
}

/// Index of the list with the numbers of inlined calls (`PCDATA_InlTreeIndex`).
const INLINED: u32 = 2;
/// Index of the data with the tree of inlined calls (`FUNCDATA_InlTree`).
const TREE: u32 = 3;

impl GoTables {
    /// Number of functions that the table lists.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Length of the list of functions. Unit: bytes.
    pub(super) fn list_bytes(&self) -> u64 {
        let address = self.layout.address_bytes();
        self.count * 2 * address + address
    }

    /// Where the first function starts and where the last ends.
    pub(super) fn ends<R: ReadAt + ?Sized>(
        &self,
        image: &R,
        budget: &FileBudget<'_>,
    ) -> Result<Option<(u64, u64)>, Over> {
        let mut list = self.list(image, budget);
        let (Some(first), Some(end)) = (
            self.start(&mut list, 0)?,
            self.start(&mut list, self.count)?,
        ) else {
            return Ok(None);
        };
        Ok(Some((first, end)))
    }

    fn list<'a, 'b, R: ReadAt + ?Sized>(
        &self,
        image: &'a R,
        budget: &'a FileBudget<'b>,
    ) -> Pieces<'a, 'b, R> {
        let part = Part {
            at: self.functions.at,
            len: self.list_bytes(),
        };
        Pieces::new(image, budget, part, PIECE_BYTES)
    }

    /// Start of the function with this number; the number after the last gives the end of the last.
    fn start<R: ReadAt + ?Sized>(
        &self,
        list: &mut Pieces<'_, '_, R>,
        number: u64,
    ) -> Result<Option<u64>, Over> {
        let address = self.layout.address_bytes();
        let bytes = list.get(number * 2 * address, address as usize)?;
        Ok(bytes.and_then(|bytes| match self.layout {
            Layout::Addresses => u64_at(bytes, 0),
            _ => self.text.checked_add(u32_at(bytes, 0)?.into()),
        }))
    }

    /// The function at an address (SVMA).
    ///
    /// # Errors
    /// When reading takes more than `budget` has left.
    pub fn function_at<R: ReadAt + ?Sized>(
        &self,
        image: &R,
        address: u64,
        budget: &FileBudget<'_>,
    ) -> Result<Option<Function>, Over> {
        let part = Part {
            at: self.functions.at,
            len: self.list_bytes(),
        };
        // Places far apart are read, so little of each.
        let mut list = Pieces::new(image, budget, part, 64);
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.start(&mut list, middle)? {
                Some(start) if start <= address => low = middle + 1,
                _ => high = middle,
            }
        }
        let Some(number) = low.checked_sub(1) else {
            return Ok(None);
        };
        let mut known = Pieces::new(image, budget, self.functions, 256);
        let found = self.function(&mut list, &mut known, number)?;
        Ok(found.filter(|one| one.start <= address && address < one.end))
    }

    /// Hands every function to `each`, in order of address. Those that start before the one before
    /// ends, and those of which nothing can be read, are left out.
    ///
    /// # Errors
    /// When reading takes more than `budget` has left, or `each` fails.
    pub fn each<R: ReadAt + ?Sized, E: From<Over>>(
        &self,
        image: &R,
        budget: &FileBudget<'_>,
        each: impl FnMut(&Function) -> Result<(), E>,
    ) -> Result<(), E> {
        let _charge = budget.charge(2 * PIECE_BYTES)?;
        self.each_of(image, 0..self.count, budget, each)
    }

    /// The same for some of them.
    pub(super) fn each_of<R: ReadAt + ?Sized, E: From<Over>>(
        &self,
        image: &R,
        numbers: Range<u64>,
        budget: &FileBudget<'_>,
        mut each: impl FnMut(&Function) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut list = self.list(image, budget);
        let mut known = Pieces::new(image, budget, self.functions, PIECE_BYTES);
        let mut behind = 0;
        for number in numbers {
            if number % AT_ONCE == 0 {
                budget.check()?;
            }
            let Some(function) = self.function(&mut list, &mut known, number)? else {
                continue;
            };
            if function.start >= behind && function.start < function.end {
                behind = function.end;
                each(&function)?;
            }
        }
        Ok(())
    }

    /// The function of a number; `None` when nothing of it can be read.
    fn function<R: ReadAt + ?Sized>(
        &self,
        list: &mut Pieces<'_, '_, R>,
        known: &mut Pieces<'_, '_, R>,
        number: u64,
    ) -> Result<Option<Function>, Over> {
        let (start, end) = (self.start(list, number)?, self.start(list, number + 1)?);
        let address = self.layout.address_bytes();
        let place = list.get(number * 2 * address + address, address as usize)?;
        let place = place.and_then(|bytes| match self.layout {
            Layout::Addresses => u64_at(bytes, 0),
            _ => u32_at(bytes, 0).map(u64::from),
        });
        let (Some(start), Some(end), Some(place)) = (start, end, place) else {
            return Ok(None);
        };
        let len = self.layout.function_bytes();
        let Some(bytes) = known.get(place, len)? else {
            return Ok(None);
        };
        let Some((mut function, lists, data)) = self.parse(bytes, start, end) else {
            return Ok(None);
        };
        // Behind it are the places of its further lists, then those of its data.
        let behind = place + len as u64;
        let mut word = |number: u64| -> Result<Option<u32>, Over> {
            Ok(known
                .get(behind + number * 4, 4)?
                .and_then(|word| u32_at(word, 0)))
        };
        if lists > INLINED {
            function.inlined = word(INLINED.into())?.unwrap_or(0);
        }
        if self.layout != Layout::Addresses && data > TREE {
            let tree = word(u64::from(lists) + u64::from(TREE))?;
            function.tree = tree.filter(|&tree| tree != u32::MAX);
        }
        Ok(Some(function))
    }

    /// A function, the number of its further lists, and the number of its data.
    fn parse(&self, bytes: &[u8], start: u64, end: u64) -> Option<(Function, u32, u32)> {
        let (own, first) = match self.layout {
            Layout::Addresses => (u64_at(bytes, 0)?, 8),
            _ => (self.text.checked_add(u32_at(bytes, 0)?.into())?, 4),
        };
        // One that is of another function is damaged.
        if own != start {
            return None;
        }
        let word = |number: usize| u32_at(bytes, first + number * 4);
        let (start_line, last) = match self.layout {
            Layout::StartLines => (word(8)?, 9),
            _ => (0, 8),
        };
        let marks = bytes.get(first + last * 4..)?.first_chunk::<4>()?;
        let function = Function {
            start,
            end,
            name: word(0)?,
            depths: word(3)?,
            files: word(4)?,
            lines: word(5)?,
            inlined: 0,
            unit: word(7)?,
            start_line,
            flags: marks[1],
            tree: None,
        };
        Some((function, word(6)?, marks[3].into()))
    }
}
