//! Unwind rules for generated code: rules by address for the code of one process.
//!
//! No executable file describes generated code. Some runtimes write unwind information next to the
//! code (jitdump, `written.rs`), and some code is recognized by its shape (CPython's trampolines,
//! `trampolines.rs`). `fp-jit` gathers both in a [`RulesBuilder`] per process and hands the result
//! to the sampler as [`GeneratedRules`]. All rows are computed there, so that the sampler only
//! searches.
//!
//! The rules describe the present: code that replaced other code has its address from then on,
//! whatever the time of the sample. A sample unwound before the rules of its code arrive, or after
//! that code is gone, is unwound without rules or with those of the newer code. The engine checks
//! where a rule leads and counts rules that lead nowhere.

mod beam;
mod lent;
mod trampolines;
mod written;

#[cfg(test)]
mod tests;

use super::code::CodeMap;
use hashbrown::HashSet;
use host::ids::Pid;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use trampolines::{Looked, ScanRequest};
use unwind::arch::READS_RUNTIME_CODE;
use unwind::info::generated::{BeamStacks, GeneratedRules, Rows};
use unwind::info::rule::Rule;
pub use written::Unwinding;

/// Most pieces of code with rules of one process. Unit: pieces, some 48 bytes each. Code beyond it
/// is stepped over by frame pointers, as all is without rules.
pub const PIECES_MAX: usize = 65_536;

/// Most rows of rules of one process. Unit: rows, of 28 bytes (arm64: 40). Equal code has them
/// once; optimised JavaScript has five each.
pub const ROWS_MAX: usize = 131_072;

/// How the names of PHP's stubs start, which are in every perf map and jitdump it writes.
const PHP_STUBS: &str = "JIT$$";

/// PHP's compiled code runs in the frame of this function.
const PHP_LOOP: &[u8] = b"execute_ex";

/// Arenas of trampolines remembered of one process. Unit: arenas, of 64 KiB in CPython: 5,900
/// functions.
const ARENAS_MAX: usize = 1024;

/// How often memory is looked at for trampolines without a name, once it was often enough. Unit:
/// askings, of a second.
const UNNAMED_EVERY: u64 = 64;

/// Counters of a builder since the last check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCounts {
    /// Pieces of code that came with rules.
    pub taken: u64,
    /// Trampolines found by their shape.
    pub trampolines: u64,
    /// Unwind information that made no sense, or does not belong to the code it came with.
    pub senseless: u64,
    /// Pieces refused at the bounds.
    pub refused: u64,
}

/// Whether the code of the process runs in frames lent to it (`lent.rs`).
#[derive(Clone, Copy, Debug, Default)]
enum Lent {
    /// No code was seen yet.
    #[default]
    Unknown,
    /// It does not, or the function that lends them was not found.
    Nothing,
    /// By this rule it is left.
    By(Rule),
}

/// Whether the code of the process is Erlang's (`beam.rs`).
#[derive(Clone, Debug, Default)]
enum Beam {
    /// It was not looked at, or not when its runtime had started.
    #[default]
    Unknown,
    /// It is not.
    No,
    /// Unwind rules for stacks of Erlang's virtual machine.
    Stacks(Arc<BeamStacks>),
}

/// What needs to be examined in a process; see [`RulesBuilder::unseen`].
#[derive(Debug)]
pub struct ToLook {
    pid: Pid,
    beam: bool,
    stubs: bool,
    trampolines: Option<ScanRequest>,
}

/// What was found.
#[derive(Debug)]
pub struct RuleScan {
    beam: Beam,
    lent: Option<Rule>,
    trampolines: Option<Looked>,
}

impl ToLook {
    /// Examines the process. Reads its files and memory, and so may wait forever: for helpers only.
    pub fn look(&self) -> RuleScan {
        let stubs = self.stubs.then_some(self.pid);
        RuleScan {
            beam: match self.beam {
                true => beam::look(self.pid.0),
                false => Beam::Unknown,
            },
            lent: stubs.and_then(|pid| lent::rule_of(pid.0, PHP_LOOP)),
            trampolines: self.trampolines.as_ref().map(trampolines::look),
        }
    }
}

#[derive(Clone, Debug)]
struct Piece {
    end: u64,
    rows: Rows,
}

/// Gathers rules of one process.
#[derive(Debug, Default)]
pub struct RulesBuilder {
    pieces: BTreeMap<u64, Piece>,
    /// Every set of rows in use, and some that were: found again by content.
    known: HashSet<Rows>,
    known_rows: usize,
    arenas: Vec<Range<u64>>,
    beam: Beam,
    lent: Lent,
    /// Code in which frames hold the method that they are of.
    interpreter: Option<Range<u64>>,
    /// How often it was asked what is to be looked at, and whether the process is known to be no
    /// Python.
    asked: u64,
    no_python: bool,
    changed: bool,
    counts: RuleCounts,
}

impl RulesBuilder {
    /// Adds code that came with unwind information.
    pub fn load(&mut self, range: Range<u64>, unwinding: Unwinding<'_>) {
        self.unload(range.clone());
        match written::rows(&range, unwinding) {
            Ok(Some(rows)) => {
                if self.put(range, &rows) {
                    self.counts.taken += 1;
                }
            }
            // Nothing is described: frame pointers lead on.
            Ok(None) => {}
            Err(written::Senseless) => self.counts.senseless += 1,
        }
    }

    /// Adds code of which the rules are known.
    pub fn describe(&mut self, range: Range<u64>, rows: &[(u32, Rule)]) {
        self.unload(range.clone());
        if self.put(range, rows) {
            self.counts.taken += 1;
        }
    }

    /// In this code, frames hold the method that they are of.
    pub fn interpret(&mut self, interpreter: Option<Range<u64>>) {
        self.changed |= self.interpreter != interpreter;
        self.interpreter = interpreter;
    }

    /// Code came or went of which nothing is known.
    pub fn unload(&mut self, range: Range<u64>) {
        let below = self.pieces.range(..range.start).next_back();
        let first = below.filter(|(_, piece)| piece.end > range.start);
        let first = first.map_or(range.start, |(&start, _)| start);
        while let Some((&start, _)) = self.pieces.range(first..range.end).next() {
            // A piece that lost a part lost its code: offsets count from its start.
            self.pieces.remove(&start);
            self.changed = true;
        }
    }

    /// Code moved, with what is known of it.
    pub fn relocate(&mut self, from: u64, to: u64, len: u64) {
        let moved = self.pieces.get(&from).cloned();
        self.unload(from..from.saturating_add(len));
        self.unload(to..to.saturating_add(len));
        if let Some(piece) = moved
            && let Some(end) = to.checked_add(piece.end - from)
        {
            self.changed = true;
            self.pieces.insert(to, Piece { end, ..piece });
        }
    }

    /// Returns what needs to be examined: code among the current names that may have a known shape
    /// and, from time to time, any memory that may hold such code without a name. Pass it to
    /// [`ToLook::look`], in a helper, and its result to [`RulesBuilder::add`]. Call once a second
    /// while the process has samples in generated code; `changed` says that names may differ from
    /// the last call.
    pub fn unseen(&mut self, pid: Pid, code: &CodeMap, changed: bool) -> Option<ToLook> {
        self.asked += 1;
        let stubs = match self.lent {
            // Its stubs are the first that it writes.
            Lent::Unknown if !code.is_empty() => {
                self.lent = Lent::Nothing;
                let mut names = code.iter().map(|(_, code)| &code.name);
                names.any(|name| name.starts_with(PHP_STUBS))
            }
            Lent::By(rule) if changed => {
                self.put_lent(rule, code);
                false
            }
            _ => false,
        };
        let trampolines = self.unseen_trampolines(pid, code, changed);
        // Erlang's code has its stack elsewhere than x86-64's.
        let beam = READS_RUNTIME_CODE
            && matches!(self.beam, Beam::Unknown)
            && self.asked.is_power_of_two();
        (beam || stubs || trampolines.is_some()).then_some(ToLook {
            pid,
            beam,
            stubs,
            trampolines,
        })
    }

    fn unseen_trampolines(&self, pid: Pid, code: &CodeMap, changed: bool) -> Option<ScanRequest> {
        // Trampolines of other architectures keep frame pointers.
        if !READS_RUNTIME_CODE || self.arenas.len() >= ARENAS_MAX {
            return None;
        }
        let due = self.asked.is_power_of_two() || self.asked.is_multiple_of(UNNAMED_EVERY);
        let unnamed = due && !self.no_python;
        let named = code
            .iter()
            .filter(|(_, code)| trampolines::may_be(&code.name));
        let starts = named.map(|(range, _)| range.start);
        let unseen = starts.filter(|&start| !self.is_seen(start));
        // A map may have 100,000 lines: they are looked through only where they may say something,
        // and now and then where no Python is known to be.
        let through = changed && !self.no_python || due;
        let unseen = unseen.take(if through { usize::MAX } else { 0 });
        ScanRequest::new(pid, unseen, unnamed, &self.arenas)
    }

    fn is_seen(&self, address: u64) -> bool {
        let of_arena = |arena: &Range<u64>| arena.contains(&address);
        self.arenas.iter().any(of_arena) || self.pieces.contains_key(&address)
    }

    /// Examines the process and adds the result, while `code` does not change. May wait forever.
    pub fn look_at(&mut self, pid: Pid, code: &CodeMap) {
        if let Some(asked) = self.unseen(pid, code, true) {
            let seen = asked.look();
            self.add(seen, code);
        }
    }

    /// Adds what was found; `code` has the current names.
    pub fn add(&mut self, found: RuleScan, code: &CodeMap) {
        if !matches!(found.beam, Beam::Unknown) {
            self.beam = found.beam;
            self.changed |= matches!(self.beam, Beam::Stacks(_));
        }
        if let Some(rule) = found.lent {
            self.lent = Lent::By(rule);
            self.put_lent(rule, code);
        }
        if let Some(looked) = found.trampolines {
            self.add_trampolines(looked);
        }
    }

    fn add_trampolines(&mut self, looked: Looked) {
        self.no_python = !looked.python;
        for arena in looked.arenas {
            let now = arena.looked_at;
            let inside = |old: &Range<u64>| now.start <= old.start && old.end <= now.end;
            self.arenas.retain(|old| !inside(old));
            if self.arenas.len() >= ARENAS_MAX {
                self.counts.refused += arena.found.len() as u64;
                continue;
            }
            self.arenas.push(now);
            for (start, shape) in arena.found {
                let range = start..start + shape.code_bytes();
                // What a runtime wrote of it itself stays.
                if !self.pieces.contains_key(&start) && self.put(range, &shape.rows()) {
                    self.counts.trampolines += 1;
                }
            }
        }
    }

    /// Code that PHP compiled has one rule.
    fn put_lent(&mut self, rule: Rule, code: &CodeMap) {
        for (range, _) in code.iter() {
            let known = self.pieces.get(&range.start);
            if known.is_none_or(|known| known.end != range.end) {
                self.unload(range.clone());
                self.put(range, &[(0, rule)]);
            }
        }
    }

    /// The rules, when they are others than at the last call.
    pub fn take(&mut self) -> Option<Arc<GeneratedRules>> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let pieces = self.pieces.iter();
        let rules = GeneratedRules::of(pieces.map(|(&start, it)| (start, it.end, &it.rows)));
        // Rows of code that is gone go with it.
        self.known = rules.rows().iter().cloned().collect();
        self.known_rows = rules.rows().iter().map(|rows| rows.len()).sum();
        let beam = match &self.beam {
            Beam::Stacks(stacks) => Some(Arc::clone(stacks)),
            Beam::Unknown | Beam::No => None,
        };
        let rules = rules
            .with_beam(beam)
            .with_interpreter(self.interpreter.clone());
        Some(Arc::new(rules))
    }

    /// Counters since the last call.
    pub fn take_counts(&mut self) -> RuleCounts {
        std::mem::take(&mut self.counts)
    }

    /// Memory held, in bytes, about.
    pub fn heap_bytes(&self) -> usize {
        self.pieces.len() * 48 + self.known_rows * size_of::<(u32, Rule)>() + self.known.len() * 48
    }

    /// Adds rows for a piece of code where there are none. False if a bound rejects it.
    fn put(&mut self, range: Range<u64>, rows: &[(u32, Rule)]) -> bool {
        let known = self.known.get(rows).cloned();
        let room = known.is_some() || self.known_rows + rows.len() <= ROWS_MAX;
        let sound = range.end - range.start <= u64::from(u32::MAX);
        if self.pieces.len() >= PIECES_MAX || !room || !sound {
            self.counts.refused += 1;
            return false;
        }
        let rows = known.unwrap_or_else(|| {
            let rows: Rows = rows.into();
            self.known_rows += rows.len();
            self.known.insert(Arc::clone(&rows));
            rows
        });
        self.changed = true;
        let end = range.end;
        self.pieces.insert(range.start, Piece { end, rows });
        true
    }
}
