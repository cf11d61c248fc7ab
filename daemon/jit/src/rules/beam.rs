//! Finds the addresses that are needed to walk the stacks of Erlang's virtual machine.
//!
//! The BEAM has one variable for the address that the first function of every process returns to,
//! and exports it. Its value is the same as long as the program runs. The threads that run
//! processes call `process_main`, which jumps to generated code: where these calls return to is
//! found in the program's instructions. With both, stacks are walked without a switch
//! (`daemon/unwind/src/walk/engine/beam.rs`). Seen with OTP 25 of Debian 12 on x86-64, 2026-11-26.

use super::Beam;
use crate::target;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;
use symbolize::budget::FileBudget;
use symbolize::elf::{self, Headers, ReadAt, SymbolTable};
use symbolize::files::Image;
use symbolize::open::{self, base_name};
use unwind::info::generated::BeamStacks;
use unwind::process::maps::{self, Map};

/// Most memory that looking into the program takes. Unit: bytes. OTP 25 takes 0.6 MiB.
const BYTES_MAX: usize = 8 << 20;

/// Most CPU time for it. OTP 25 takes 5 ms.
const CPU_MAX: Duration = Duration::from_millis(100);

/// Most code that is looked through for calls. Unit: bytes. OTP 25 has 2.7 MiB.
const CODE_BYTES_MAX: u64 = 32 << 20;

/// How much of it is read at a time. Unit: bytes.
const PIECE_BYTES: usize = 256 << 10;

/// Most calls of the function that are remembered. OTP 25 has one.
const CALLS_MAX: usize = 8;

/// The variable.
const EXIT: &[u8] = b"beam_normal_exit";

/// The function.
const ENTERS: &[u8] = b"process_main";

/// `call rel32`.
const CALL: u8 = 0xe8;

/// Its length.
const CALL_BYTES: usize = 5;

/// Examines the process `pid`. May wait forever: for helpers only.
pub(super) fn look(pid: u32) -> Beam {
    let Ok(text) = target::maps_of(pid) else {
        return Beam::No;
    };
    let mut mappings = maps::executable(text).into_iter();
    // `beam.smp`; variants for developers have other endings.
    let is_beam = |map: &Map| map.is_file() && base_name(&map.path).starts_with(b"beam.");
    let Some(program) = mappings.find(is_beam) else {
        return Beam::No;
    };
    let Some(Places { variable, entered }) = places(pid, &program) else {
        return Beam::No;
    };
    let mut word = [0; 8];
    let memory = File::open(format!("/proc/{pid}/mem"));
    match memory.and_then(|memory| FileExt::read_exact_at(&memory, &mut word, variable)) {
        Ok(()) => match u64::from_le_bytes(word) {
            // The runtime has not started yet.
            0 => Beam::Unknown,
            exit => Beam::Stacks(Arc::new(BeamStacks { exit, entered })),
        },
        Err(_) => Beam::No,
    }
}

/// Where the needed data is in the process's memory.
struct Places {
    variable: u64,
    entered: Box<[u64]>,
}

fn places(pid: u32, program: &Map) -> Option<Places> {
    let file = open::open_mapping(pid, program.start, program.end).ok()?;
    let image = Image::open(file).ok()?;
    let headers = elf::read_headers(&image).ok()?;
    let budget = FileBudget::new(BYTES_MAX, CPU_MAX);
    let variable = elf::exported_variable(&image, &headers, EXIT, &budget)?;
    let segments = &headers.segments;
    let table = SymbolTable::read(&image, &headers, b".dynsym", segments, &budget).ok()??;
    let (function, _) = table.named(&image, ENTERS, &budget)?;
    let returns = returns_from(&image, &headers, function, &budget)?;
    let moved = program
        .start
        .wrapping_sub(headers.address_of(program.file_offset)?);
    Some(Places {
        variable: variable.wrapping_add(moved),
        entered: returns.iter().map(|at| at.wrapping_add(moved)).collect(),
    })
}

/// The addresses (SVMA) behind direct calls of a function, in the code of its file.
fn returns_from<R: ReadAt + ?Sized>(
    image: &R,
    headers: &Headers,
    function: u64,
    budget: &FileBudget<'_>,
) -> Option<Vec<u64>> {
    let mut found = Vec::new();
    let _charge = budget.charge(PIECE_BYTES).ok()?;
    let mut bytes = vec![0; PIECE_BYTES];
    for segment in headers.segments.iter().filter(|segment| segment.executable) {
        let size = segment.file_size.min(CODE_BYTES_MAX);
        let mut at = 0;
        while at + (CALL_BYTES as u64) <= size {
            let here = (size - at).min(PIECE_BYTES as u64) as usize;
            let piece = &mut bytes[..here];
            budget.reads(here).ok()?;
            image
                .read_exact_at(piece, segment.offset.checked_add(at)?)
                .ok()?;
            let base = segment.address.wrapping_add(at);
            found.extend(calls_in(piece, base, function));
            if found.len() > CALLS_MAX {
                return None;
            }
            // A call may lie across the end of a piece.
            at += (here - (CALL_BYTES - 1)) as u64;
        }
    }
    found.dedup();
    Some(found)
}

/// Return addresses of calls to a function, in code that starts at `base`.
fn calls_in(code: &[u8], base: u64, function: u64) -> impl Iterator<Item = u64> {
    let calls = code.windows(CALL_BYTES).enumerate();
    calls.filter_map(move |(at, bytes)| {
        let (&CALL, &[a, b, c, d]) = bytes.split_first()? else {
            return None;
        };
        let behind = base.wrapping_add((at + CALL_BYTES) as u64);
        let distance = i32::from_le_bytes([a, b, c, d]);
        (behind.wrapping_add_signed(distance.into()) == function).then_some(behind)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_no_erlang_has_no_such_stacks() {
        assert!(matches!(look(std::process::id()), Beam::No));
        assert!(matches!(look(u32::MAX), Beam::No));
    }

    #[test]
    fn a_call_is_found_by_what_it_leads_to() {
        let mut code = vec![0x90; 16];
        code[4..9].copy_from_slice(&[CALL, 0x07, 0, 0, 0]);
        code[10..15].copy_from_slice(&[CALL, 0x01, 0, 0, 0]);
        let found: Vec<u64> = calls_in(&code, 0x1000, 0x1010).collect();
        assert_eq!(found, [0x1009, 0x100f]);
        assert_eq!(calls_in(&code, 0x2000, 0x1010).next(), None, "elsewhere");
    }

    #[test]
    fn the_program_of_this_machine_has_both() {
        let find = |root: &str| {
            let versions = std::fs::read_dir(root).ok()?.flatten();
            let programs = versions.map(|it| it.path().join("bin/beam.smp"));
            programs.into_iter().find(|path| path.exists())
        };
        let Some(path) = find("/usr/lib/erlang") else {
            return testkit::skip("no Erlang");
        };
        let image = Image::open(File::open(path).expect("readable")).expect("an image");
        let headers = elf::read_headers(&image).expect("headers");
        let budget = FileBudget::new(BYTES_MAX, Duration::from_secs(60));
        assert!(elf::exported_variable(&image, &headers, EXIT, &budget).is_some());
        let table = SymbolTable::read(&image, &headers, b".dynsym", &headers.segments, &budget);
        let table = table.expect("in budget").expect("has one");
        let (function, _) = table.named(&image, ENTERS, &budget).expect("is exported");
        let returns = returns_from(&image, &headers, function, &budget);
        assert!(returns.is_some_and(|found| !found.is_empty()));
        assert!(budget.most_held() < BYTES_MAX / 4, "{}", budget.most_held());
    }
}
