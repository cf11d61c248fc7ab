//! Finds where a function of an executable starts in its file, to set a uprobe there.
//!
//! Unlike [`super::elf::SymbolTable`], which keeps one name per address, this looks at all names in
//! the tables, including aliases. The file is untrusted: reads are bounded and every number is
//! checked.

use super::budget::FileBudget;
use super::elf::{ElfError, Headers, ReadAt, Section, each_symbols, read_headers};
use object::LittleEndian as LE;
use object::elf::{self, SHN_UNDEF, STT_FUNC, STT_GNU_IFUNC};
use object::pod::Pod;
use object::read::elf::Sym;

/// Most places in a table of names where the name is found. Names may end alike and share their
/// ends, so there are some; a file that repeats one without end is refused.
const PLACES_MAX: usize = 4096;

/// Bytes of names looked through at a time.
const NAMES_AT_ONCE: usize = 1 << 20;

/// Where a function was found.
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

/// What a name refers to.
enum Found {
    /// A function, by its address.
    Function(u64),
    /// A resolver that chooses the function.
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
    let places = places_of_name(image, names, name, budget)?;
    match headers.is_64 {
        true => search_in::<elf::Sym64<LE>, R>(image, table, &places, budget),
        false => search_in::<elf::Sym32<LE>, R>(image, table, &places, budget),
    }
}

fn search_in<S: Sym<Endian = LE> + Pod, R: ReadAt + ?Sized>(
    image: &R,
    table: &Section,
    places: &[u32],
    budget: &FileBudget<'_>,
) -> Result<Option<Found>, ElfError> {
    let (mut found, mut indirect) = (None, false);
    each_symbols::<S, R>(image, table, budget, |symbols, _| {
        for symbol in symbols {
            let is_it = || places.binary_search(&symbol.st_name(LE)).is_ok();
            if symbol.st_shndx(LE) == SHN_UNDEF || !is_it() {
                // Only called from here, or another one.
                continue;
            }
            match symbol.st_type() {
                // `STT_GNU_IFUNC` is what chooses at load time which function is called. Its
                // address is that of the choosing code.
                STT_GNU_IFUNC => indirect = true,
                STT_FUNC if found.is_none() => found = Some(symbol.st_value(LE).into()),
                _ => {}
            }
        }
        Ok(())
    })?;
    Ok(match indirect {
        true => Some(Found::Indirect),
        false => found.map(Found::Function),
    })
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

/// True when the string that starts here is the name, or the name and a version.
fn is_called(text: &[u8], name: &[u8]) -> bool {
    let rest = text.strip_prefix(name);
    !name.is_empty() && matches!(rest.and_then(|rest| rest.first()), Some(0 | b'@'))
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
