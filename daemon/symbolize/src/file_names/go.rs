//! Names, files and lines of Go programs, from the tables that Go's linker leaves in each.

use super::{FileNames, Reader, Table};
use crate::budget::{FileBudget, Over};
use crate::counters::{SymbolCounters, bump};
use crate::files::Image;
use crate::go::{self, lines::Source};
use crate::lines::SourceFrame;
use profile::Dictionary;

impl FileNames {
    /// Reads the names of functions.
    pub(super) fn add_go_functions(&mut self, image: &Image, budget: &FileBudget<'_>) {
        let found = match go::find(image, &self.headers, budget) {
            Ok(Some(tables)) => go::symbols(image, &tables, budget),
            Ok(None) => return,
            Err(over) => Err(over.into()),
        };
        match found {
            Ok(Some(symbols)) => self.tables.push(Table {
                symbols,
                names_in: None,
                frames: Vec::new(),
                hint: 0,
            }),
            Ok(None) => {}
            Err(error) => self.note(&error),
        }
    }

    /// Finds out where lines are.
    pub(super) fn add_go_lines(&mut self, image: &Image, budget: &FileBudget<'_>) {
        let inlined = self.lines_wanted.1;
        let source = || -> Result<Option<Source>, Over> {
            let Some(tables) = go::find(image, &self.headers, budget)? else {
                return Ok(None);
            };
            Source::new(image, &self.headers, tables, inlined, budget).map(Some)
        };
        self.go_lines = source().ok().flatten();
    }

    /// Fills `exact` for offsets not seen yet: pairs of offset and address. What takes too much is
    /// not tried again.
    pub(super) fn find_go_lines(
        &mut self,
        image: &Image,
        new: &[(u64, u64)],
        dict: &mut Dictionary,
        counters: &SymbolCounters,
    ) {
        let Some(source) = self.go_lines.filter(|_| image.unchanged()) else {
            return;
        };
        let budget = FileBudget::default();
        let mut reader = Reader {
            image: Some(image),
            checked: Some(true),
        };
        for &(offset, address) in new {
            let Ok(calls) = source.calls(image, address, &budget) else {
                self.go_lines = None;
                bump(&counters.lines_refused);
                return;
            };
            let place = |call: go::lines::Call| SourceFrame {
                function: call.function,
                file: call.file,
                line: call.line,
            };
            let places: Vec<SourceFrame> = calls.into_iter().map(place).collect();
            let symbol = self.symbol(offset, &mut reader, dict, counters).ok();
            self.keep_exact(offset, &places, symbol, dict);
        }
    }
}
