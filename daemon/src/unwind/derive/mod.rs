//! Unwind rows of code that nothing describes, derived from its instructions.
//!
//! Functions are followed from where they are entered, all ways, and at each instruction stands how
//! far the stack pointer is from the CFA and where registers were saved: what a compiler would have
//! written as unwind information. Where no entry is known one is guessed, and a guess counts only
//! if a way out confirms it and none contradicts it: a return finds the return address, a jump to
//! another function leaves the stack as it was found, ways that meet agree. Code that contradicts
//! itself stays without rows.
//!
//! Compared with the unwind information of programs that have it, 99.99 % of the rows are right:
//! `benches derive`.
//!
//! Input is code as a stranger wrote it; each byte of it is worth a bounded number of decoded
//! instructions. Called by `fp-files`, once a file.

mod code;
pub mod compare;
mod explore;
mod frame;
mod returns;
#[cfg(test)]
mod tests;

use super::pack::build::{Builder, put};
use super::rule::{ComputedRow, Kind, Rule};
use super::state::number;
use super::table::{ROWS_MAX, Table};
use crate::symbolize::budget::{FileBudget, Over};
use crate::symbolize::elf::{Headers, ReadAt};
use code::Code;
use explore::{Derived, Run, derive};
use frame::{Frame, Value};
use iced_x86::Register;
use std::ops::Range;
use std::time::Duration;

/// Shortest code that is looked at. Unit: bytes. What linkers fill up with between functions is
/// shorter.
const PIECE_BYTES_MIN: u64 = 32;

/// Longest code that is followed at once. Unit: bytes. Calls from one piece to another are not
/// followed; larger ones would have the reading of two files wait for each other
/// (`symbolize/budget.rs`).
const PIECE_BYTES_MAX: u64 = 3 << 19;

/// Memory that a byte of code takes while it is followed: itself, whose function it is, and a share
/// of what is kept by instruction. Unit: bytes.
const HELD_PER_BYTE: u64 = 6;

/// Most time that is spent on the code of a file. 40 ms a MiB are usual, so it is enough for 10 MiB.
/// What is left then stays without rows, and the rest of the file's unwind information is as it was.
const CPU_MAX: Duration = Duration::from_millis(400);

/// The table of the code in `pieces` of a file, by where they are in it and their addresses.
/// `entry`: where the kernel enters it. `None` when nothing could be derived.
///
/// # Errors
/// When that takes more than `budget` has left.
pub fn table<R: ReadAt + ?Sized>(
    image: &R,
    pieces: &[Piece],
    base: u64,
    entry: u64,
    budget: &FileBudget<'_>,
) -> Result<Option<Table>, Over> {
    let mut builder = Builder::new();
    let mut charge = budget.charge(0)?;
    let spent = budget.spent();
    let in_time = || budget.spent().saturating_sub(spent) < CPU_MAX;
    for piece in pieces {
        let mut piece = *piece;
        while piece.len >= PIECE_BYTES_MIN && in_time() {
            let len = piece.len.min(PIECE_BYTES_MAX);
            let held = builder.heap_bytes();
            charge.set(held)?;
            let needed = (len * HELD_PER_BYTE) as usize;
            if needed > budget.room() {
                break;
            }
            charge.set(held + needed)?;
            budget.reads(len as usize)?;
            let mut bytes = vec![0; len as usize];
            if image.read_exact_at(&mut bytes, piece.offset).is_err() {
                break;
            }
            let mut check = || in_time() && budget.check().is_ok();
            let code = Code::new(&bytes, piece.address, &mut check);
            add(&mut builder, code, base, entry)?;
            budget.check()?;
            piece = Piece {
                address: piece.address + len,
                offset: piece.offset + len,
                len: piece.len - len,
            };
        }
    }
    charge.set(builder.heap_bytes())?;
    let packed = builder.finish(charge)?;
    Ok(Table::of(packed, base))
}

/// A piece of code of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its address (SVMA).
    pub address: u64,
    /// Where it is in the file.
    pub offset: u64,
    /// Unit: bytes.
    pub len: u64,
}

impl Piece {
    /// What is left of it without what a table describes.
    fn without(self, table: &Table, into: &mut Vec<Piece>) {
        let end = self.address.saturating_add(self.len);
        let mut from = self.address;
        let mut add = |from: u64, to: u64| {
            if to.saturating_sub(from) >= PIECE_BYTES_MIN {
                into.push(Piece {
                    address: from,
                    offset: self.offset + (from - self.address),
                    len: to - from,
                });
            }
        };
        table.described(self.address..end, |described: Range<u64>| {
            add(from, described.start);
            from = from.max(described.end);
        });
        add(from, end);
    }
}

/// The code of a file that none of `tables` describes; procedure linkage tables apart.
pub fn undescribed(headers: &Headers, tables: &[Table]) -> Vec<Piece> {
    let sections = headers.sections.iter();
    let code = sections.filter(|section| {
        section.executable && section.address != 0 && !section.name.starts_with(b".plt")
    });
    let mut pieces: Vec<Piece> = code
        .map(|section| Piece {
            address: section.address,
            offset: section.offset,
            len: section.size,
        })
        .collect();
    if pieces.is_empty() {
        let segments = headers.segments.iter();
        let code = segments.filter(|segment| segment.executable);
        pieces.extend(code.map(|segment| Piece {
            address: segment.address,
            offset: segment.offset,
            len: segment.file_size,
        }));
    }
    for table in tables {
        let mut left = Vec::new();
        for piece in pieces {
            piece.without(table, &mut left);
        }
        pieces = left;
    }
    pieces
}

/// Adds what can be derived of a piece.
fn add(builder: &mut Builder, mut code: Code<'_, '_>, base: u64, entry: u64) -> Result<(), Over> {
    let (bytes, address) = (code.bytes(), code.base());
    let Some(Ok(start)) = address.checked_sub(base).map(u32::try_from) else {
        return Ok(());
    };
    // A piece begins behind something described, with a function or what fills up before one.
    let begin = code.padding_end(0).unwrap_or(0);
    let entry = code.place(entry);
    let Some(derived) = derive(code, entry, &[begin]) else {
        return Ok(());
    };
    let returns = signal_returns(bytes);
    let mut kinds = Vec::with_capacity(derived.frames.len());
    for frame in &derived.frames {
        kinds.push(builder.number(kind(frame))?);
    }
    let Derived { runs, .. } = derived;
    let mut function = Function::default();
    for run in runs {
        // Rows of what signal handlers return to are not those of a function.
        if returns.iter().any(|at| at.contains(&run.start)) {
            continue;
        }
        if run.entry || !function.takes(&run) {
            function.add_to(builder, start);
            function = Function::begin(&run);
        }
        put(
            &mut function.rows,
            run.start - function.start,
            kinds[usize::from(run.frame)],
        );
        function.end = run.end;
    }
    function.add_to(builder, start);
    for at in returns {
        let number = builder.number(Kind::Computed(Box::new(ComputedRow::signal_return())))?;
        if let (Some(before), Some(rows)) = (at.start.checked_sub(1), builder.keep(&[(0, number)]))
        {
            builder.add(start + before, at.end - before, rows);
        }
    }
    Ok(())
}

/// Rows that follow each other without a gap.
#[derive(Default)]
struct Function {
    start: u32,
    end: u32,
    rows: Vec<(u32, u16)>,
}

impl Function {
    fn begin(run: &Run) -> Function {
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

/// Where signal handlers return to: the system call that no function has but this one
/// (`rt_sigreturn`, number 15), as the C libraries write it.
fn signal_returns(bytes: &[u8]) -> Vec<Range<u32>> {
    const FORMS: [&[u8]; 2] = [
        &[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05],
        &[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05],
    ];
    let found = FORMS.iter().flat_map(|form| {
        memchr::memmem::find_iter(bytes, form).map(|at| at as u32..(at + form.len()) as u32)
    });
    found.collect()
}

/// What a frame leads to.
fn kind(frame: &Frame) -> Kind {
    if frame.outermost {
        return Kind::Rule(Rule::OUTERMOST);
    }
    let base = match (frame.sp, frame.fp, frame.other) {
        (Some(sp), ..) => Some((number::RSP, sp)),
        (None, Some(fp), _) => Some((number::RBP, fp)),
        (None, None, Some((register, distance))) => {
            number_of(register).map(|register| (register, distance))
        }
        (None, None, None) => None,
    };
    let saved = frame
        .saved()
        .into_iter()
        .filter_map(|(register, value)| match value {
            Value::At(below) => Some((register, -below)),
            Value::Same | Value::Lost => None,
        });
    let rule = base.and_then(|base| Rule::derived(base, saved));
    rule.map_or(Kind::Nothing, Kind::Rule)
}

/// The number of a register in unwind tables (x86-64 psABI, figure 3.36).
fn number_of(register: Register) -> Option<u16> {
    const ORDER: [Register; 16] = [
        Register::RAX,
        Register::RDX,
        Register::RCX,
        Register::RBX,
        Register::RSI,
        Register::RDI,
        Register::RBP,
        Register::RSP,
        Register::R8,
        Register::R9,
        Register::R10,
        Register::R11,
        Register::R12,
        Register::R13,
        Register::R14,
        Register::R15,
    ];
    let place = ORDER.iter().position(|&own| own == register);
    place.map(|place| place as u16)
}
