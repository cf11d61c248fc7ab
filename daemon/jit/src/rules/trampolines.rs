//! Recognizes CPython's trampolines by their instructions: code for each Python function that only
//! calls the interpreter.
//!
//! `python -X perf` (3.12 and later) copies one template for each function into arenas of 64 KiB,
//! so that the function's name appears in the stack. It keeps the stack pointer aligned and saves
//! no frame pointer, and nothing describes it, so without rules no stack of a Python program could
//! be walked past it. An arena is filled with copies when it is created, so one look finds all
//! functions that it will ever hold. Seen: 3.12.1 (11 bytes, packed), 3.13.0 (11 bytes each 16, or
//! each 272 with `-X perf_jit`), both built without control-flow protection.
//!
//! The memory belongs to another process, and reading it may take forever, so [`look`] is for
//! helpers only.

use host::ids::Pid;
use std::fs::File;
use std::io::{BufReader, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use symbolize::open::base_name;
use unwind::info::rule::Rule;
use unwind::process::maps::{self, Map};

/// Most of one arena that is read. Unit: bytes. CPython's have 64 KiB; neighbours look like one.
const ARENA_BYTES_MAX: u64 = 1 << 20;

/// Most arenas read in one look; the others are for the next.
const ARENAS_A_LOOK: usize = 16;

/// Longest list of mappings read. Unit: bytes, as in `workers/stack_reader.rs`.
const MAPS_BYTES_MAX: u64 = 1 << 20;

/// Prefix of trampolines' names.
const PREFIX: &str = "py::";

const ENDBR64: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];

/// `sub $8,%rsp; call *%rcx; add $8,%rsp; ret`: CPython 3.12 to 3.14.
const ALIGNS: &[u8] = &[0x48, 0x83, 0xec, 8, 0xff, 0xd1, 0x48, 0x83, 0xc4, 8, 0xc3];

/// `push %rbp; mov %rsp,%rbp; call *%rcx; pop %rbp; ret`: later.
const PUSHES: &[u8] = &[0x55, 0x48, 0x89, 0xe5, 0xff, 0xd1, 0x5d, 0xc3];

/// A kind of trampoline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Starts with `endbr64`.
    protected: bool,
    /// Pushes the frame pointer.
    pushes: bool,
}

impl Shape {
    /// The trampoline that `code` starts with.
    fn of(code: &[u8]) -> Option<Shape> {
        let bare = code.strip_prefix(ENDBR64);
        let protected = bare.is_some();
        let bare = bare.unwrap_or(code);
        let pushes = bare.starts_with(PUSHES);
        (pushes || bare.starts_with(ALIGNS)).then_some(Shape { protected, pushes })
    }

    /// Its length in bytes.
    pub fn code_bytes(self) -> u64 {
        let bare = if self.pushes { PUSHES } else { ALIGNS };
        self.first() + bare.len() as u64
    }

    /// Offset of its first relevant instruction.
    fn first(self) -> u64 {
        if self.protected {
            ENDBR64.len() as u64
        } else {
            0
        }
    }

    /// The rules from each offset on.
    pub fn rows(self) -> [(u32, Rule); 3] {
        let at = |offset: u32| self.first() as u32 + offset;
        let bare = Rule::return_address_at(0);
        match self.pushes {
            true => [
                (0, bare),
                (at(1), Rule::frame_pointer_pushed()),
                (at(7), bare),
            ],
            false => [
                (0, bare),
                (at(4), Rule::return_address_at(8)),
                (at(10), bare),
            ],
        }
    }
}

/// True for the name of what may be a trampoline.
pub fn may_be(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// What to examine in a process.
#[derive(Debug)]
pub struct ScanRequest {
    pid: Pid,
    /// Addresses of what was named; sorted.
    addresses: Vec<u64>,
    /// Whether all memory of a Python may contain trampolines: 3.13's `-X perf_jit` names them only
    /// once it has written two MiB of records.
    unnamed: bool,
    /// Memory that was examined before.
    seen: Vec<Range<u64>>,
}

impl ScanRequest {
    /// `None` when there is nothing to look at.
    pub(super) fn new(
        pid: Pid,
        addresses: impl Iterator<Item = u64>,
        unnamed: bool,
        seen: &[Range<u64>],
    ) -> Option<ScanRequest> {
        let mut addresses: Vec<u64> = addresses.collect();
        addresses.sort_unstable();
        (unnamed || !addresses.is_empty()).then(|| ScanRequest {
            pid,
            addresses,
            unnamed,
            seen: seen.to_vec(),
        })
    }

    /// The part of a mapping that is to be read; `None` when it is not. `unnamed`: whatever may
    /// hold trampolines is.
    fn part(&self, mapping: &Map, unnamed: bool) -> Option<Range<u64>> {
        let seen = |from: u64, to: u64| {
            let mut seen = self.seen.iter();
            seen.any(|seen| seen.start <= from && to <= seen.end)
        };
        let first = self.addresses.partition_point(|&at| at < mapping.start);
        let named = self.addresses.get(first).filter(|&&at| at < mapping.end);
        let start = match named {
            Some(&at) if at - mapping.start >= ARENA_BYTES_MAX => at,
            Some(_) => mapping.start,
            None if unnamed && mapping.path.is_empty() => mapping.start,
            None => return None,
        };
        let end = mapping.end.min(start.saturating_add(ARENA_BYTES_MAX));
        (!seen(start, end)).then_some(start..end)
    }
}

/// A stretch of memory that was looked at.
#[derive(Debug, PartialEq, Eq)]
pub struct Arena {
    /// All of it; needs no other look.
    pub(super) looked_at: Range<u64>,
    /// The trampolines in it.
    pub(super) found: Vec<(u64, Shape)>,
}

/// Result of an examination.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Looked {
    pub(super) arenas: Vec<Arena>,
    /// False when the process maps no Python.
    pub(super) python: bool,
}

/// Examines the memory of a process. May block forever.
///
/// Nothing is found where the process is gone, or its memory may not be read.
pub fn look(asked: &ScanRequest) -> Looked {
    let pid = asked.pid.0;
    let open = |name| File::open(format!("/proc/{pid}/{name}"));
    let (Ok(memory), Ok(list)) = (open("mem"), open("maps")) else {
        return Looked::default();
    };
    let list = BufReader::with_capacity(16 << 10, list.take(MAPS_BYTES_MAX));
    let mappings = maps::executable(list);
    let python = mappings.iter().any(is_python);
    let unnamed = asked.unnamed && python;
    let parts = mappings
        .iter()
        .filter_map(|mapping| asked.part(mapping, unnamed));
    let arenas = parts.take(ARENAS_A_LOOK).map(|range| {
        let mut code = vec![0; (range.end - range.start) as usize];
        // What cannot be read is not asked for again.
        let read = memory.read_at(&mut code, range.start).unwrap_or(0);
        Arena {
            found: scan(&code[..read], range.start),
            looked_at: range,
        }
    });
    Looked {
        arenas: arenas.collect(),
        python,
    }
}

/// True for the program of CPython or its library.
fn is_python(mapping: &Map) -> bool {
    let name = base_name(&mapping.path);
    mapping.is_file() && (name.starts_with(b"python") || name.starts_with(b"libpython"))
}

/// The trampolines in `code`, which starts at `base`.
fn scan(code: &[u8], base: u64) -> Vec<(u64, Shape)> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(rest) = code.get(at..)
        && !rest.is_empty()
    {
        match Shape::of(rest) {
            Some(shape) => {
                found.push((base + at as u64, shape));
                at += shape.code_bytes() as usize;
            }
            None => at += 1,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trampolines_are_found_at_any_distance_from_each_other() {
        let mut code = vec![0x90; 3];
        code.extend_from_slice(ALIGNS);
        code.extend_from_slice(ALIGNS);
        code.extend_from_slice(&[0; 5]);
        code.extend_from_slice(ENDBR64);
        code.extend_from_slice(PUSHES);
        code.extend_from_slice(&ALIGNS[..10]);
        let found: Vec<u64> = scan(&code, 0x1000).iter().map(|found| found.0).collect();
        assert_eq!(found, [0x1003, 0x100e, 0x101e]);
    }

    #[test]
    fn a_trampoline_has_a_frame_between_its_first_and_last_change_of_the_stack() {
        let rule = |shape: Shape, at: u32| {
            let rows = shape.rows();
            let after = rows.partition_point(|row| row.0 <= at);
            rows[after - 1].1
        };
        let plain = Shape::of(ALIGNS).expect("is one");
        let (outside, inside) = (Rule::return_address_at(0), Rule::return_address_at(8));
        let expected = [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 0];
        for (at, framed) in expected.into_iter().enumerate() {
            let expected = [outside, inside][framed];
            assert_eq!(rule(plain, at as u32), expected, "at {at}");
        }
        let pushing = [ENDBR64, PUSHES].concat();
        let pushing = Shape::of(&pushing).expect("is one");
        assert_eq!(rule(pushing, 4), outside);
        assert_eq!(rule(pushing, 5), Rule::frame_pointer_pushed());
        assert_eq!(rule(pushing, 10), Rule::frame_pointer_pushed());
        assert_eq!(rule(pushing, 11), outside);
    }
}
