//! File and line of an address in a program in Go.
//!
//! Nothing asks for them yet: lines of the daemon come from debug information, by file.

use super::functions::Function;
use super::values::{Lists, Span, Values};
use super::{GoTables, Pieces, u32_at};
use crate::symbolize::budget::{FileBudget, Over};
use crate::symbolize::elf::ReadAt;
use crate::symbolize::names;

/// Longest name of a file that is read. Unit: bytes.
const FILE_BYTES_MAX: usize = 4096;

/// Where an instruction was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Source file.
    pub file: String,
    /// Source line.
    pub line: u32,
}

/// The lines of a program.
#[derive(Clone, Copy, Debug)]
pub struct Source<'t> {
    tables: &'t GoTables,
}

impl<'t> Source<'t> {
    /// Those of a program.
    pub fn new(tables: &'t GoTables) -> Source<'t> {
        Source { tables }
    }

    /// Where the instruction at `address` (SVMA) of a function was written; `None` when the table does
    /// not say.
    ///
    /// # Errors
    /// When reading takes more than `budget` has left.
    pub fn place<R: ReadAt + ?Sized>(
        &self,
        image: &R,
        function: &Function,
        address: u64,
        budget: &FileBudget<'_>,
    ) -> Result<Option<Place>, Over> {
        let Some(Ok(into)) = address.checked_sub(function.start).map(u32::try_from) else {
            return Ok(None);
        };
        let mut lists = Lists::new(image, self.tables, budget);
        let _charge = budget.charge(lists.heap_bytes())?;
        let value = |list: Option<Values<'_>>| {
            let holds = |span: &Span| span.from <= into && into < span.until;
            list?.find(holds).map(|span| span.value)
        };
        let line = value(lists.at(function.lines)?).and_then(|line| u32::try_from(line).ok());
        let file = value(lists.at(function.files)?).and_then(|file| u32::try_from(file).ok());
        let (Some(line), Some(file)) = (line, file) else {
            return Ok(None);
        };
        let file = self.file(image, function.unit, file, budget)?;
        Ok(file.map(|file| Place { file, line }))
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
        let Some(place) = place.filter(|&place| place != u32::MAX) else {
            return Ok(None);
        };
        let mut files = Pieces::new(image, budget, self.tables.files, FILE_BYTES_MAX);
        let text = files.up_to(place.into(), FILE_BYTES_MAX)?;
        let end = text.iter().position(|&byte| byte == 0);
        Ok(end
            .filter(|&end| end > 0)
            .map(|end| names::capped_bytes(&text[..end])))
    }
}
