//! Finds files, lines and inlined calls of addresses in a Go program.
//!
//! Each function has lists of files, of lines and of numbers of inlined calls by instruction. A
//! number leads to an entry of the function's tree: what was inlined, and at which instruction of
//! its caller. `runtime.firstmoduledata` says where the trees are. Before Go 1.18 they are not
//! read.

use super::functions::Function;
use super::values::{Lists, Span, Values};
use super::{GoTables, Layout, Part, Pieces, find, u32_at};
use crate::budget::{FileBudget, Over};
use crate::elf::{Headers, ReadAt};
use profile::names;

/// Longest name of a file or function that is read. Unit: bytes.
const NAME_BYTES_MAX: usize = 4096;

/// Bytes of trees in memory at a time: neighbouring calls are next to each other.
const TREE_PIECE_BYTES: usize = 4096;

/// Most calls that are inlined into each other. Real ones are below twenty.
const INLINED_MAX: usize = 64;

/// A function that runs at an address, and where in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Its name.
    pub function: String,
    /// Source file; empty when not known.
    pub file: String,
    /// Source line; 0 when not known.
    pub line: u32,
    /// The line that the function starts at; 0 when not known, or when `line` may be of a function
    /// that was inlined into it.
    pub start_line: u32,
}

/// What was inlined at an instruction.
enum Inlined {
    Nothing,
    /// Something that cannot be read: the line there is its own.
    Unknown,
    /// A call: place of its name, the instruction of its caller that represents the call, and the
    /// line that it starts at.
    Call(u32, u32, u32),
}

/// The lines of a program.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    tables: GoTables,
    /// Base of the offsets of trees.
    pub(super) trees: Option<Part>,
}

impl Source {
    /// Creates it for a program, with inlined calls if they are `wanted`.
    ///
    /// # Errors
    /// When looking for them takes more than `budget` has left.
    pub fn new<R: ReadAt + ?Sized>(
        image: &R,
        headers: &Headers,
        tables: GoTables,
        wanted: bool,
        budget: &FileBudget<'_>,
    ) -> Result<Source, Over> {
        let trees = match wanted {
            true => find::trees(image, headers, &tables, budget)?,
            false => None,
        };
        Ok(Source { tables, trees })
    }

    /// True where functions have first lines, of a program whose inlined calls are known.
    pub fn has_start_lines(&self) -> bool {
        self.tables.layout == Layout::StartLines && self.trees.is_some()
    }

    /// The calls at an address (SVMA), the function itself first, what was inlined into it after;
    /// none where the tables have no function.
    ///
    /// # Errors
    /// When reading takes more than `budget` has left.
    pub fn calls<R: ReadAt + ?Sized>(
        &self,
        image: &R,
        address: u64,
        budget: &FileBudget<'_>,
    ) -> Result<Vec<Call>, Over> {
        let Some(function) = self.tables.function_at(image, address, budget)? else {
            return Ok(Vec::new());
        };
        let mut lists = Lists::new(image, &self.tables, budget);
        let _charge = budget.charge(lists.heap_bytes() + TREE_PIECE_BYTES + NAME_BYTES_MAX)?;
        let mut at = (address - function.start) as u32;
        let mut calls = Vec::new();
        loop {
            let (file, line) = self.place(image, &function, at, &mut lists, budget)?;
            let inlined = match calls.len() < INLINED_MAX {
                true => self.inlined(image, &function, at, &mut lists, budget)?,
                false => Inlined::Unknown,
            };
            let (name, caller, start_line) = match inlined {
                Inlined::Call(name, caller, start_line) => (name, Some(caller), start_line),
                Inlined::Nothing => (function.name, None, function.start_line),
                Inlined::Unknown => (function.name, None, 0),
            };
            let function = self.text(image, self.tables.names, name.into(), budget)?;
            let function = function.unwrap_or_default();
            calls.push(Call {
                function,
                file,
                line,
                start_line,
            });
            match caller {
                Some(caller) => at = caller,
                None => break,
            }
        }
        calls.reverse();
        Ok(calls)
    }

    /// File and line of an instruction of a function, `at` bytes behind its start.
    fn place<R: ReadAt + ?Sized>(
        &self,
        image: &R,
        function: &Function,
        at: u32,
        lists: &mut Lists<'_, '_, R>,
        budget: &FileBudget<'_>,
    ) -> Result<(String, u32), Over> {
        let line = value(lists.at(function.lines)?, at).unwrap_or(0);
        let file = match value(lists.at(function.files)?, at) {
            Some(file) => self.file(image, function.unit, file, budget)?,
            None => None,
        };
        Ok((file.unwrap_or_default(), line))
    }

    /// The inlined call at an instruction.
    fn inlined<R: ReadAt + ?Sized>(
        &self,
        image: &R,
        function: &Function,
        at: u32,
        lists: &mut Lists<'_, '_, R>,
        budget: &FileBudget<'_>,
    ) -> Result<Inlined, Over> {
        let Some(number) = value(lists.at(function.inlined)?, at) else {
            return Ok(Inlined::Nothing);
        };
        let (Some(trees), Some(tree)) = (self.trees, function.tree) else {
            return Ok(Inlined::Unknown);
        };
        // Length of an entry, and where name, instruction and first line are in it.
        let (len, name, caller, start_line) = match self.tables.layout {
            Layout::Addresses => return Ok(Inlined::Unknown),
            Layout::Offsets => (20, 12, 16, None),
            Layout::StartLines => (16, 4, 8, Some(12)),
        };
        let mut trees = Pieces::new(image, budget, trees, TREE_PIECE_BYTES);
        let entry = trees.get(u64::from(tree) + u64::from(number) * len as u64, len)?;
        let found = entry.and_then(|entry| {
            let start_line = start_line.map_or(Some(0), |at| u32_at(entry, at))?;
            Some((u32_at(entry, name)?, u32_at(entry, caller)?, start_line))
        });
        Ok(
            found.map_or(Inlined::Unknown, |(name, caller, start_line)| {
                Inlined::Call(name, caller, start_line)
            }),
        )
    }

    /// The name of a file by its number among those of a compilation unit.
    fn file<R: ReadAt + ?Sized>(
        &self,
        image: &R,
        unit: u32,
        number: u32,
        budget: &FileBudget<'_>,
    ) -> Result<Option<String>, Over> {
        let mut units = Pieces::new(image, budget, self.tables.units, 4);
        let place = (u64::from(unit) + u64::from(number)) * 4;
        let place = units.get(place, 4)?.and_then(|word| u32_at(word, 0));
        match place.filter(|&place| place != u32::MAX) {
            Some(place) => self.text(image, self.tables.files, place.into(), budget),
            None => Ok(None),
        }
    }

    /// The text at a place of a part, which a zero ends.
    fn text<R: ReadAt + ?Sized>(
        &self,
        image: &R,
        part: Part,
        place: u64,
        budget: &FileBudget<'_>,
    ) -> Result<Option<String>, Over> {
        let mut pieces = Pieces::new(image, budget, part, NAME_BYTES_MAX);
        let text = pieces.up_to(place, NAME_BYTES_MAX)?;
        let end = text.iter().position(|&byte| byte == 0);
        let end = end.filter(|&end| end > 0);
        Ok(end.map(|end| names::capped_bytes(&text[..end])))
    }
}

/// The value of a list at an instruction; `None` where it has none or a negative one.
fn value(list: Option<Values<'_>>, at: u32) -> Option<u32> {
    let holds = |span: &Span| span.from <= at && at < span.until;
    u32::try_from(list?.find(holds)?.value).ok()
}
