//! Holds what was derived from code, and converts it to rows of functions.

use crate::info::pack::build::{Builder, put};
use crate::info::row_words::ROWS_MAX;

/// Instructions with one frame. Places are relative to the start of the code. Unit: bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Where they start.
    pub start: u32,
    /// Where they end.
    pub end: u32,
    /// The frame, by its place among those of [`Derived`].
    pub frame: u16,
    /// A function starts here.
    pub entry: bool,
}

/// Derived data, with frames of an architecture.
#[derive(Debug)]
pub struct Derived<F> {
    /// In order of address.
    pub runs: Vec<Run>,
    /// The frames of runs.
    pub frames: Vec<F>,
}

/// Rows that follow each other without a gap.
#[derive(Default)]
struct Function {
    start: u32,
    end: u32,
    rows: Vec<(u32, u16)>,
}

impl Function {
    fn start(run: &Run) -> Function {
        Function {
            start: run.start,
            end: run.end,
            rows: Vec::new(),
        }
    }

    fn takes(&self, run: &Run) -> bool {
        self.end == run.start && !self.rows.is_empty() && self.rows.len() < ROWS_MAX
    }

    fn add_to(&self, builder: &mut Builder, base: u32) {
        if let (false, Some(rows)) = (self.rows.is_empty(), builder.keep(&self.rows)) {
            builder.add(base + self.start, self.end - self.start, rows);
        }
    }
}

/// Adds rows of functions. `kinds`: the number of what each frame leads to. `start`: where the code
/// is, as the builder counts.
pub fn add(builder: &mut Builder, runs: impl Iterator<Item = Run>, kinds: &[u16], start: u32) {
    let mut function = Function::default();
    for run in runs {
        if run.entry || !function.takes(&run) {
            function.add_to(builder, start);
            function = Function::start(&run);
        }
        let offset = run.start - function.start;
        put(&mut function.rows, offset, kinds[usize::from(run.frame)]);
        function.end = run.end;
    }
    function.add_to(builder, start);
}
