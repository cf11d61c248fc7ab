//! Where a function of an executable begins in its file: where a uprobe is to be set.
//!
//! Unlike [`super::elf::SymbolTable`], which keeps one name for each address, all names of the
//! tables are looked at, aliases too. The file is a stranger's: reads are bounded and every number
//! is checked.

use super::budget::FileBudget;
use super::elf::{ElfError, Headers, ReadAt, SYMBOLS_MAX, Section, read_headers};

/// Most places in a table of names where the name is found. Names may end alike and share their
/// ends, so there are some; a file that repeats one without end is refused.
const PLACES_MAX: usize = 4096;

/// Bytes of names looked through at a time.
const NAMES_AT_ONCE: usize = 1 << 20;

/// Symbols read at a time.
const AT_ONCE: usize = 4096;

/// `STT_FUNC`: what is called.
const FUNCTION: u8 = 2;

/// `STT_GNU_IFUNC`: what chooses at load time which function is called. Its address is that of the
/// choosing code.
const INDIRECT: u8 = 10;

/// What was found of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FunctionLocation {
    /// Offset in the file of its first instruction.
    At(u64),
    /// It is one of several functions, chosen when the program is loaded: its name stands at what
    /// chooses.
    Indirect,
    /// Tables of symbols are there, and it is in none.
    NotThere,
    /// The file has no names of functions.
    Stripped,
}

/// Looks for the function of this name, without or with its version (`memcpy@@GLIBC_2.14`).
///
/// # Errors
/// When the image cannot be read or is damaged.
pub fn place_of<R: ReadAt + ?Sized>(image: &R, name: &[u8]) -> Result<FunctionLocation, ElfError> {
    let headers = read_headers(image)?;
    let budget = FileBudget::default();
    let mut place = FunctionLocation::Stripped;
    for table in [&b".symtab"[..], b".dynsym"] {
        let Some(table) = headers.section(table) else {
            continue;
        };
        match search(image, &headers, table, name, &budget)? {
            Some(Found::Function(address)) => {
                let offset = headers.offset_of(address);
                return offset.map(FunctionLocation::At).ok_or(ElfError::Damaged);
            }
            Some(Found::Indirect) => return Ok(FunctionLocation::Indirect),
            None => place = FunctionLocation::NotThere,
        }
    }
    Ok(place)
}

/// What has a name.
enum Found {
    /// A function, by its address.
    Function(u64),
    /// What chooses one.
    Indirect,
}

/// The function of this name in one table, the first of several. Where one of them is chosen at
/// load time none is found: the others are for programs that were linked with an older version, as
/// of `memcpy` in glibc.
fn search<R: ReadAt + ?Sized>(
    image: &R,
    headers: &Headers,
    table: &Section,
    name: &[u8],
    budget: &FileBudget<'_>,
) -> Result<Option<Found>, ElfError> {
    let names = headers.sections.get(table.link as usize);
    let names = names.ok_or(ElfError::Damaged)?;
    if table.compressed || names.compressed {
        return Err(ElfError::Damaged);
    }
    let size = if headers.is_64 { 24 } else { 16 };
    let count = table.size / size;
    if count > SYMBOLS_MAX {
        return Err(ElfError::TooLarge);
    }
    let places = places_of_name(image, names, name, budget)?;
    let size = size as usize;
    let mut chunk = vec![0; AT_ONCE * size];
    let (mut at, mut found) = (0, None);
    while at < count {
        let here = (count - at).min(AT_ONCE as u64) as usize;
        let chunk = &mut chunk[..here * size];
        let offset = (at * size as u64).checked_add(table.offset);
        budget.reads(chunk.len())?;
        image.read_exact_at(chunk, offset.ok_or(ElfError::Damaged)?)?;
        for entry in chunk.chunks_exact(size) {
            let symbol = Symbol::parse(entry, headers.is_64);
            if symbol.section == 0 || places.binary_search(&symbol.name).is_err() {
                // Only called from here, or another one.
                continue;
            }
            match symbol.kind {
                INDIRECT => return Ok(Some(Found::Indirect)),
                FUNCTION if found.is_none() => found = Some(Found::Function(symbol.address)),
                _ => {}
            }
        }
        at += here as u64;
    }
    Ok(found)
}

/// Where the name stands in a table of names, without or with a version; in order. The table is
/// looked through piece by piece: those of the largest programs have more than 100 MiB.
fn places_of_name<R: ReadAt + ?Sized>(
    image: &R,
    names: &Section,
    name: &[u8],
    budget: &FileBudget<'_>,
) -> Result<Vec<u32>, ElfError> {
    let mut places = Vec::new();
    // The name, and the byte that ends it.
    let needed = name.len() + 1;
    let mut text = vec![0; NAMES_AT_ONCE + needed];
    let _charge = budget.charge(text.len())?;
    // Symbols hold places of 32 bits.
    let size = names.size.min(u64::from(u32::MAX));
    let mut at = 0;
    while at < size {
        let here = (size - at).min(text.len() as u64) as usize;
        budget.reads(here)?;
        let offset = names.offset.checked_add(at).ok_or(ElfError::Damaged)?;
        image.read_exact_at(&mut text[..here], offset)?;
        let starts = text[..here].windows(needed).take(NAMES_AT_ONCE).enumerate();
        let found = starts.filter(|(_, window)| is_called(window, name));
        places.extend(found.map(|(into, _)| (at + into as u64) as u32));
        if places.len() > PLACES_MAX {
            return Err(ElfError::TooLarge);
        }
        at += NAMES_AT_ONCE as u64;
    }
    Ok(places)
}

/// True when the string that begins here is the name, or the name and a version.
fn is_called(text: &[u8], name: &[u8]) -> bool {
    let rest = text.strip_prefix(name);
    !name.is_empty() && matches!(rest.and_then(|rest| rest.first()), Some(0 | b'@'))
}

/// What is needed of an entry of a table.
struct Symbol {
    name: u32,
    kind: u8,
    section: u16,
    address: u64,
}

impl Symbol {
    /// `entry` has 24 or 16 bytes, as `Elf64_Sym` or `Elf32_Sym`.
    fn parse(entry: &[u8], is_64: bool) -> Symbol {
        let u32_at = |at: usize| {
            let bytes = entry.get(at..at + 4).and_then(|part| part.try_into().ok());
            u32::from_le_bytes(bytes.unwrap_or_default())
        };
        let byte = |at: usize| entry.get(at).copied().unwrap_or_default();
        let (info, section, address) = match is_64 {
            true => {
                let address = u64::from(u32_at(8)) | u64::from(u32_at(12)) << 32;
                (byte(4), u16::from_le_bytes([byte(6), byte(7)]), address)
            }
            false => {
                let section = u16::from_le_bytes([byte(14), byte(15)]);
                (byte(12), section, u32_at(4).into())
            }
        };
        Symbol {
            name: u32_at(0),
            kind: info & 0xf,
            section,
            address,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_have_a_version_and_no_more() {
        assert!(is_called(b"memcpy\0x", b"memcpy"));
        assert!(is_called(b"memcpy@@GLIBC_2.14\0", b"memcpy"));
        assert!(!is_called(b"memcpy_s\0", b"memcpy"));
        assert!(!is_called(b"memcpy", b"memcpy"), "the table ends");
        assert!(!is_called(b"\0", b""));
    }

    #[test]
    fn functions_of_this_program_are_found_where_their_code_lies() {
        let image = std::fs::File::open("/proc/self/exe").expect("readable");
        let FunctionLocation::At(offset) = place_of(&image, b"main").expect("sound") else {
            panic!("a program has a main function");
        };
        let headers = read_headers(&image).expect("sound");
        let within = |segment: &super::super::elf::Segment| {
            segment.executable
                && (segment.offset..segment.offset + segment.file_size).contains(&offset)
        };
        assert!(headers.segments.iter().any(within), "{offset:#x}");
        let none = place_of(&image, b"no function has this name").expect("sound");
        assert_eq!(none, FunctionLocation::NotThere);
    }

    #[test]
    fn a_function_that_is_chosen_at_load_time_is_none() {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("readable");
        let mut paths = maps
            .lines()
            .filter_map(|line| line.split_whitespace().nth(5));
        let library = paths.find(|path| path.ends_with("/libc.so.6"));
        let Some(image) = library.and_then(|path| std::fs::File::open(path).ok()) else {
            return testkit::cannot("another C library");
        };
        let place = |name: &[u8]| place_of(&image, name).expect("sound");
        assert!(matches!(place(b"getpid"), FunctionLocation::At(_)));
        assert_eq!(
            place(b"memcpy"),
            FunctionLocation::Indirect,
            "of two versions one is"
        );
        assert_eq!(place(b"strlen"), FunctionLocation::Indirect);
    }

    #[test]
    fn what_is_no_program_is_refused() {
        assert!(matches!(
            place_of(&b"#!/bin/sh\n"[..], b"main"),
            Err(ElfError::NotElf)
        ));
    }
}
