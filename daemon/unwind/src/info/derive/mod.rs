//! Unwind rows for undescribed code, derived from its instructions.
//!
//! Functions are followed from their entry along all paths. At each instruction it is noted how far
//! the stack pointer is from the CFA and where registers were saved: what a compiler would have
//! written as unwind information. If no entry is known one is guessed. A guess counts only if a way
//! out confirms it and none contradicts it: a return finds the return address, a jump to another
//! function leaves the stack as it was found, paths that meet agree. Code that contradicts itself
//! gets no rows.
//!
//! Compared with the unwind information of 1,429 programs and libraries that have it, 99.8 % of the
//! rows are right, more in C and less in C++: `benches derive`.
//!
//! The input is untrusted code; each byte of it allows a bounded number of decoded instructions.
//! Called by `fp-files`, once per file.

pub mod aarch64;
mod code;
pub mod compare;
mod explore;
mod frame;
pub mod lender;
mod returns;
mod runs;
#[cfg(all(test, target_arch = "x86_64"))] // They read programs of this machine.
mod tests;

use super::pack::build::Builder;
use super::rule::{ComputedRow, Kind, Rule};
use super::table::Table;
use crate::arch::{self, a64, psabi as number};
use code::Code;
use explore::{address_taken, derive};
use frame::{Frame, Value};
use iced_x86::{Decoder, DecoderOptions, FlowControl, OpKind, Register};
use runs::Derived;
use std::ops::Range;
use std::time::Duration;
use symbolize::budget::{FileBudget, Over};
use symbolize::elf::{Headers, ReadAt};

/// Shortest code that is looked at. Unit: bytes. What linkers fill up with is shorter.
const PIECE_BYTES_MIN: u64 = 64;

/// Longest code that is followed at once. Unit: bytes. Calls from one piece to another are not
/// followed; larger ones would have the reading of two files wait for each other
/// (`symbolize/src/budget.rs`).
const PIECE_BYTES_MAX: u64 = 1 << 20;

/// Most code of a file. Unit: bytes. What lies behind it stays without rows.
const CODE_BYTES_MAX: u64 = 32 << 20;

/// Most pieces of a file. ffmpeg, with assembler between described code, has some hundred.
const PIECES_MAX: usize = 4096;

/// Memory per byte of code while it is followed: itself, the function it belongs to, calls with an
/// unknown return, and paths to follow. Unit: bytes.
const HELD_PER_BYTE: usize = 9;

/// Memory next to that, for frames and the instructions of the largest function: of a long piece,
/// and for each byte of a short one. Unit: bytes.
const HELD: usize = 5 << 20;
const HELD_PER_BYTE_AT_FIRST: usize = 256;

/// Memory that `len` bytes of code take while they are followed. Unit: bytes.
fn held_for(len: usize) -> usize {
    HELD.min(len * HELD_PER_BYTE_AT_FIRST) + len * HELD_PER_BYTE
}

/// Most time that is spent on the code of a file. A MiB takes some 40 ms, so it is enough for ten.
/// What is left then stays without rows, and the rest of the file's unwind information is as it
/// was.
const CPU_MAX: Duration = Duration::from_millis(400);

/// Most places that signal handlers return to. A C library has one or two.
const SIGNAL_RETURNS_MAX: usize = 16;

/// Code at the kernel's entry that is looked through for the function that it has called. Unit:
/// bytes. C libraries have some forty.
const ENTRY_BYTES: usize = 96;

/// Where a program is entered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryPoint {
    /// Where the kernel does; 0 when it does not.
    entry: u64,
    /// `main`, which the code there passes to the C library, and which calls everything else. If it
    /// never returns, nothing else shows that a function starts there.
    main: Option<u64>,
}

impl EntryPoint {
    /// Looks at the code that the kernel enters.
    pub fn of<R: ReadAt + ?Sized>(image: &R, headers: &Headers) -> EntryPoint {
        let mut entry = EntryPoint {
            entry: headers.entry,
            main: None,
        };
        let Some(offset) = headers
            .offset_of(headers.entry)
            .filter(|_| headers.entry != 0)
        else {
            return entry;
        };
        let mut code = [0; ENTRY_BYTES];
        let len = image.read_some_at(&mut code, offset).unwrap_or(0);
        let first_argument = match arch::ELF_MACHINE {
            a64::ELF_MACHINE => aarch64::first_argument,
            _ => first_argument,
        };
        entry.main = first_argument(&code[..len], headers.entry);
        entry
    }
}

/// The address that code has in the register of the first argument when it first calls something.
fn first_argument(code: &[u8], address: u64) -> Option<u64> {
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let mut argument = None;
    for instruction in &mut decoder {
        match instruction.flow_control() {
            FlowControl::Next => {}
            FlowControl::Call | FlowControl::IndirectCall => return argument,
            _ => return None,
        }
        if instruction.op0_kind() != OpKind::Register || instruction.op_count() != 2 {
            continue;
        }
        if instruction.op0_register().full_register() == Register::RDI {
            argument = address_taken(&instruction);
        }
    }
    None
}

/// The table of the code in `pieces` of a file, with addresses counted from `base`. `None` if
/// nothing could be derived.
///
/// # Errors
/// When that takes more than `budget` has left.
pub fn table<R: ReadAt + ?Sized>(
    image: &R,
    pieces: &[Piece],
    base: u64,
    entry: EntryPoint,
    budget: &FileBudget<'_>,
) -> Result<Option<Table>, Over> {
    let mut builder = Builder::new();
    let pieces_held = size_of_val(pieces);
    let mut charge = budget.charge(pieces_held)?;
    let started = budget.spent();
    let in_time = || budget.spent().saturating_sub(started) < CPU_MAX;
    let mut left = CODE_BYTES_MAX;
    'all: for piece in pieces {
        let mut piece = *piece;
        while piece.len >= PIECE_BYTES_MIN {
            let held = pieces_held + builder.heap_bytes();
            charge.set(held)?;
            let room = budget.room().saturating_sub(HELD) / HELD_PER_BYTE;
            let len = piece.len.min(PIECE_BYTES_MAX).min(left).min(room as u64);
            if len < PIECE_BYTES_MIN || !in_time() {
                break 'all;
            }
            charge.set(held + held_for(len as usize))?;
            budget.reads(len as usize)?;
            let mut bytes = vec![0; len as usize];
            if image.read_exact_at(&mut bytes, piece.offset).is_err() {
                break;
            }
            let mut check = || in_time() && budget.check().is_ok();
            let starts_function = piece.starts_function;
            match arch::ELF_MACHINE {
                a64::ELF_MACHINE => aarch64::add(
                    &mut builder,
                    (&bytes, piece.address),
                    &mut check,
                    starts_function,
                    base,
                    entry,
                )?,
                _ => {
                    let code = Code::new(&bytes, piece.address, &mut check);
                    add(&mut builder, code, starts_function, base, entry)?;
                }
            }
            budget.check()?;
            left -= len;
            piece = Piece {
                address: piece.address + len,
                offset: piece.offset + len,
                len: piece.len - len,
                starts_function: false,
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
    address: u64,
    /// Where it is in the file.
    offset: u64,
    /// Unit: bytes.
    len: u64,
    /// A function starts there, or what fills up before one.
    starts_function: bool,
}

impl Piece {
    /// `None` for what no table can describe: rows count from `base` in 32 bits.
    fn new(
        (address, offset, len): (u64, u64, u64),
        starts_function: bool,
        base: u64,
    ) -> Option<Piece> {
        let end = address.checked_add(len)?;
        u32::try_from(end.checked_sub(base)?).ok()?;
        offset.checked_add(len)?;
        (address >= base).then_some(Piece {
            address,
            offset,
            len,
            starts_function,
        })
    }

    /// The rest of it without what a table describes.
    fn without(self, table: &Table, into: &mut Vec<Piece>) {
        let end = self.address + self.len;
        let mut from = self;
        let mut add = |from: Piece, to: u64| {
            let len = to.saturating_sub(from.address);
            if len >= PIECE_BYTES_MIN && into.len() < PIECES_MAX {
                into.push(Piece { len, ..from });
            }
        };
        table.described(self.address..end, |described: Range<u64>| {
            add(from, described.start.min(end));
            let behind = described.end.clamp(from.address, end);
            from = Piece {
                address: behind,
                offset: self.offset + (behind - self.address),
                starts_function: true,
                ..from
            };
        });
        add(from, end);
    }
}

/// The code of a file that none of `tables` describes; procedure linkage tables apart. At most
/// 4,096 pieces. `base`: what addresses are counted from.
pub fn undescribed(headers: &Headers, tables: &[Table], base: u64) -> Vec<Piece> {
    const NOBITS: u32 = 8;
    let sections = headers.sections.iter().filter(|section| {
        section.executable && section.kind != NOBITS && !section.name.starts_with(b".plt")
    });
    let sections = sections.filter_map(|section| {
        let place = (section.address, section.offset, section.size);
        Piece::new(place, true, base)
    });
    let mut pieces: Vec<Piece> = sections.filter(|piece| piece.address != 0).collect();
    if pieces.is_empty() {
        let segments = headers.segments.iter().filter(|segment| segment.executable);
        pieces.extend(segments.filter_map(|segment| {
            let place = (segment.address, segment.offset, segment.file_size);
            Piece::new(place, false, base)
        }));
    }
    // What overlaps is looked at once.
    pieces.sort_unstable_by_key(|piece| piece.address);
    let mut end = 0;
    pieces.retain(|piece| {
        let apart = piece.address >= end;
        end = end.max(piece.address + piece.len);
        apart
    });
    for table in tables {
        let mut left = Vec::new();
        for piece in pieces {
            piece.without(table, &mut left);
        }
        pieces = left;
    }
    pieces
}

/// Adds what can be derived of a piece. `starts_function`: a function does at its start.
fn add(
    builder: &mut Builder,
    mut code: Code<'_, '_>,
    starts_function: bool,
    base: u64,
    program: EntryPoint,
) -> Result<(), Over> {
    let bytes = code.bytes();
    let Some(Ok(start)) = code.base().checked_sub(base).map(u32::try_from) else {
        return Ok(());
    };
    let first = starts_function.then(|| code.padding_end(0)).flatten();
    let entry = code.place(program.entry).filter(|_| program.entry != 0);
    let main = program.main.and_then(|main| code.place(main));
    let entries: Vec<u32> = first.into_iter().chain(main).collect();
    let Some(Derived { runs, frames }) = derive(code, entry, &entries) else {
        return Ok(());
    };
    let mut kinds = Vec::with_capacity(frames.len());
    for frame in &frames {
        kinds.push(builder.number(kind(frame))?);
    }
    let returns = signal_returns(bytes);
    let mut ahead = returns.iter().peekable();
    let described = runs.into_iter().filter(|run| {
        while ahead.next_if(|at| at.end <= run.start).is_some() {}
        // Rows of what signal handlers return to are not those of a function.
        !ahead.peek().is_some_and(|at| at.contains(&run.start))
    });
    runs::add(builder, described, &kinds, start);
    for at in returns {
        let number = builder.number(Kind::Computed(Box::new(ComputedRow::signal_return())))?;
        if let (Some(before), Some(rows)) = (at.start.checked_sub(1), builder.keep(&[(0, number)]))
        {
            builder.add(start + before, at.end - before, rows);
        }
    }
    Ok(())
}

/// Where signal handlers return to: the system call that no function has but this one
/// (`rt_sigreturn`, number 15), as the C libraries write it.
fn signal_returns(bytes: &[u8]) -> Vec<Range<u32>> {
    const FORMS: [&[u8]; 2] = [
        &[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05],
        &[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05],
    ];
    let found = FORMS.iter().flat_map(|form| {
        let found = memchr::memmem::find_iter(bytes, form);
        found.map(|at| at as u32..(at + form.len()) as u32)
    });
    let mut found: Vec<_> = found.take(SIGNAL_RETURNS_MAX).collect();
    found.sort_unstable_by_key(|at| at.start);
    found
}

/// The kind of row for a frame. Nothing if the caller's frame pointer is lost, because with a wrong
/// one the caller's own caller would be found at a wrong place.
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
    if frame.saved().contains(&(number::RBP, Value::Lost)) {
        return Kind::Nothing;
    }
    let saved = frame
        .saved()
        .into_iter()
        .filter_map(|(register, value)| match value {
            Value::At(below) => Some((register, -below)),
            Value::Same | Value::Lost => None,
        });
    let rule = base.and_then(|base| Rule::derived(base, Some(-8), saved));
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
