//! Names, files and lines of Go programs, from the tables that Go's linker leaves in each.

use super::{FileNames, Reader, Table, Wanted};
use crate::budget::{FileBudget, Over};
use crate::counters::{SymbolCounters, bump};
use crate::files::Image;
use crate::go::{self, lines::Source};
use crate::lines::SourceFrame;
use host::ids::FileOffset;
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

    /// Finds out where lines are. With first lines these tables say more than debug information,
    /// and are read as they are needed; without, they are for programs that have none.
    pub(super) fn add_go_lines(&mut self, image: &Image, budget: &FileBudget<'_>) {
        let Wanted {
            lines,
            inlined_frames,
            go_lines,
        } = self.wanted;
        let source = || -> Result<Option<Source>, Over> {
            let Some(tables) = go::find(image, &self.headers, budget)? else {
                return Ok(None);
            };
            let inlined = inlined_frames || go_lines;
            Source::new(image, &self.headers, tables, inlined, budget).map(Some)
        };
        let found = source().ok().flatten();
        let others = (lines || inlined_frames) && self.lines_in.is_none();
        self.go_lines = found.filter(|source| source.has_start_lines() || others);
    }

    /// Fills `exact` for offsets not seen yet. What takes too much is not tried again.
    pub fn find_go_lines(
        &mut self,
        image: Option<&Image>,
        offsets: &[FileOffset],
        dict: &mut Dictionary,
        counters: &SymbolCounters,
    ) {
        let (Some(source), Some(image)) = (self.go_lines, image) else {
            return;
        };
        let new = self.not_seen(offsets);
        if new.is_empty() || !image.unchanged() {
            return;
        }
        let lines = self.wanted.lines || self.wanted.go_lines;
        let budget = FileBudget::default();
        let mut reader = Reader {
            image: Some(image),
            checked: Some(true),
        };
        for (offset, address) in new {
            let Ok(calls) = source.calls(image, address, &budget) else {
                self.go_lines = None;
                bump(&counters.lines_refused);
                return;
            };
            let place = |call: go::lines::Call| SourceFrame {
                function: call.function,
                file: call.file,
                line: call.line,
                start_line: call.start_line,
            };
            let places: Vec<SourceFrame> = calls.into_iter().map(place).collect();
            let symbol = self.symbol(offset, &mut reader, dict, counters).ok();
            self.keep_exact(offset, &places, lines, symbol, dict);
        }
    }
}
