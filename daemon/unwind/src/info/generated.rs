//! Rules by address for the generated code of one process, in the form that the sampler searches.
//!
//! `fp-jit` gathers them (`jit/src/rules.rs`) and hands them over; the process table keeps them.

use super::rule::Rule;
use hashbrown::HashMap;
use host::ids::{Avma, Pid, ProcessId};
use std::ops::Range;
use std::sync::Arc;

/// Rules that wait for the sampler, which takes them at every pass. Unit: processes.
pub const QUEUED_MAX: usize = 64;

/// Rules for the generated code of one process, in place of those it had.
#[derive(Debug)]
pub struct Generated {
    /// The process it belongs to.
    pub process: ProcessId,
    /// Its pid.
    pub pid: Pid,
    /// The rules.
    pub rules: Arc<GeneratedRules>,
}

/// The rules of one piece of code: offset from its start from which on, sorted, each up to the
/// next. The first is of offset 0.
pub type Rows = Arc<[(u32, Rule)]>;

/// Equal pieces of code at equal distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    start: u64,
    end: u64,
    /// Distance from one start to the next, and how long each piece is.
    stride: u32,
    len: u32,
    rows: u32,
}

/// Rules by address. Never changed once made.
#[derive(Debug, Default)]
pub struct GeneratedRules {
    runs: Box<[Run]>,
    rows: Box<[Rows]>,
    beam: Option<Arc<BeamStacks>>,
    interpreter: Option<Range<u64>>,
}

/// What tells the stacks of Erlang's virtual machine (`walk/engine/beam.rs`).
#[derive(Debug, PartialEq, Eq)]
pub struct BeamStacks {
    /// The address that the first function of every Erlang process returns to.
    pub exit: u64,
    /// The addresses that the code which runs processes returns to, in the threads that do.
    pub entered: Box<[u64]>,
}

impl GeneratedRules {
    /// Makes the rules of pieces of code in order, without overlap: start, end, rows.
    pub fn of<'r>(pieces: impl Iterator<Item = (u64, u64, &'r Rows)>) -> GeneratedRules {
        let mut numbers: HashMap<*const (u32, Rule), u32> = HashMap::new();
        let mut rows: Vec<Rows> = Vec::new();
        let mut runs: Vec<Run> = Vec::new();
        for (start, end, of_piece) in pieces {
            let number = *numbers.entry(of_piece.as_ptr()).or_insert_with(|| {
                rows.push(Arc::clone(of_piece));
                (rows.len() - 1) as u32
            });
            add_to_runs(&mut runs, start, end, number);
        }
        GeneratedRules {
            runs: runs.into(),
            rows: rows.into(),
            beam: None,
            interpreter: None,
        }
    }

    /// With the stacks of Erlang.
    pub fn with_beam(self, beam: Option<Arc<BeamStacks>>) -> GeneratedRules {
        GeneratedRules { beam, ..self }
    }

    /// The stacks of Erlang; `None` where the code is none.
    pub fn beam(&self) -> Option<&BeamStacks> {
        self.beam.as_deref()
    }

    /// With the code of an interpreter whose frames hold their method.
    pub fn with_interpreter(self, interpreter: Option<Range<u64>>) -> GeneratedRules {
        GeneratedRules {
            interpreter,
            ..self
        }
    }

    /// True in the code of an interpreter whose frames hold the method that they are of
    /// (`walk/engine/interpreted.rs`).
    pub fn is_interpreted(&self, address: Avma) -> bool {
        let interpreter = self.interpreter.as_ref();
        interpreter.is_some_and(|code| code.contains(&address.0))
    }

    /// Each set of rows once.
    pub fn rows(&self) -> &[Rows] {
        &self.rows
    }

    /// The rule of an address, that of an instruction or the last byte of a call; an unknown one
    /// where nothing is known.
    pub fn rule(&self, address: Avma) -> Rule {
        self.find(address.0).unwrap_or(Rule::UNKNOWN)
    }

    fn find(&self, address: u64) -> Option<Rule> {
        let after = self.runs.partition_point(|run| run.start <= address);
        let run = self.runs.get(after.checked_sub(1)?)?;
        if address >= run.end {
            return None;
        }
        let into = (address - run.start) % u64::from(run.stride);
        let into = u32::try_from(into).ok().filter(|&into| into < run.len)?;
        let rows = self.rows.get(run.rows as usize)?;
        let after = rows.partition_point(|row| row.0 <= into);
        Some(rows.get(after.checked_sub(1)?)?.1)
    }

    /// Stretches of code with rules; equal neighbours are one.
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Memory held, in bytes, about. Rows are shared with the builder.
    pub fn heap_bytes(&self) -> usize {
        let rows = self.rows.iter().map(|rows| 32 + size_of_val(&**rows));
        size_of_val(&*self.runs) + rows.sum::<usize>()
    }
}

/// Adds a piece behind all others: to the last run when it goes on as that does.
fn add_to_runs(runs: &mut Vec<Run>, start: u64, end: u64, rows: u32) {
    let len = (end - start) as u32;
    if let Some(run) = runs.last_mut()
        && (run.rows, run.len) == (rows, len)
        && let Ok(distance) = u32::try_from(start - run.start)
    {
        let alone = run.end - run.start == u64::from(run.len);
        let stride = if alone { distance } else { run.stride };
        // A run of two far from each other would take what lies between.
        let near = stride <= len.saturating_mul(2).saturating_add(512);
        if near && distance % stride == 0 && run.end - u64::from(len) + u64::from(stride) == start {
            run.stride = stride;
            run.end = end;
            return;
        }
    }
    runs.push(Run {
        start,
        end,
        stride: len.max(1),
        len,
        rows,
    });
}
