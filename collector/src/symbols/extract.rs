//! Reads the functions of an ELF file: the symbol table and the build id, nothing else.
//!
//! Files come from users who may upload, and from servers. By now they are in a file of our own, so
//! nobody can change them meanwhile. Each table is bounded before it is read, and read once and
//! completely: a file with false sizes, names that share their text, or endless sections costs no
//! more than the bounds.

use object::LittleEndian as LE;
use object::elf::{
    ELFMAG, ET_REL, FileHeader64, SHF_COMPRESSED, SHF_EXECINSTR, SHT_NOTE, SHT_SYMTAB, STB_GLOBAL,
    STB_WEAK, STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE, SectionHeader64, Sym64,
};
use object::pod::{Pod, from_bytes, slice_from_bytes};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Most section headers. Linked files have some dozens.
const SECTIONS_MAX: usize = 8192;

/// Notes looked at, and most bytes of one.
const NOTES_MAX: usize = 16;
const NOTE_BYTES_MAX: u64 = 64 << 10;

/// Largest table of symbols. Unit: bytes. Four million; the largest browsers have three.
const SYMBOLS_BYTES_MAX: u64 = 96 << 20;

/// Largest table of their names. Unit: bytes. Those of the largest browsers have 150 MB.
const NAMES_BYTES_MAX: u64 = 256 << 20;

/// Longest name kept. Unit: bytes. Longer ones are of templates, and are cut when they are shown.
const NAME_BYTES_MAX: usize = profile::names::MANGLED_BYTES_MAX;

/// Most bytes of all names, which may share their text in the file. Unit: bytes.
const ALL_NAMES_BYTES_MAX: u64 = 1 << 30;

/// Why a file is of no use.
#[derive(Debug, thiserror::Error)]
pub enum ExtractError {
    /// It is none, or a damaged one.
    #[error("the file is not an ELF file, or is truncated or damaged")]
    NotElf,
    /// It is of another machine.
    #[error("the file is not a 64-bit little-endian ELF file")]
    Foreign,
    /// Its functions have no addresses yet.
    #[error("the file is an object file: upload the linked program or library")]
    Relocatable,
    /// It cannot be read.
    #[error("failed to read the file: {0}")]
    Read(io::Error),
    /// Nothing says which build it is.
    #[error("the file has no GNU build id: link it with `-Wl,--build-id`")]
    NoBuildId,
    /// It has no symbol table, or one without functions.
    #[error("the file has no symbol table: upload it before you strip it")]
    NoSymbols,
    /// Its tables are over a bound.
    #[error("the symbol table of the file is too large")]
    TooLarge,
}

impl From<io::Error> for ExtractError {
    fn from(error: io::Error) -> ExtractError {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => ExtractError::NotElf,
            _ => ExtractError::Read(error),
        }
    }
}

/// A function: `start..end` as the file counts addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its first byte.
    pub start: u64,
    /// The first byte behind it.
    pub end: u64,
    /// Where its name starts in the table of names.
    name: u32,
    /// Its length.
    name_len: u16,
    /// Rank of the symbol: the lowest of several at one address is kept.
    rank: u8,
}

/// What a file has.
#[derive(Debug)]
pub struct Functions {
    /// Its build id, in lower-case hexadecimal.
    pub build_id: String,
    /// By address; no two start at the same.
    pub list: Vec<Function>,
    names: Vec<u8>,
}

/// Reads a range of a file that is at most so long.
fn read(file: &File, offset: u64, len: u64, most: u64) -> Result<Vec<u8>, ExtractError> {
    if len > most {
        return Err(ExtractError::TooLarge);
    }
    // A sparse file may state any length, so it is looked at first.
    let end = offset.checked_add(len).ok_or(ExtractError::NotElf)?;
    if end > file.metadata()?.len() {
        return Err(ExtractError::NotElf);
    }
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

/// Returns the complete entries of a table; a cut last one is left out.
fn entries<T: Pod>(bytes: &[u8]) -> &[T] {
    slice_from_bytes(bytes, bytes.len() / size_of::<T>()).map_or(&[], |(entries, _)| entries)
}

/// The GNU build id in the content of a section of notes.
fn build_id(notes: &[u8]) -> Option<String> {
    const GNU_BUILD_ID: u32 = 3;
    let word = |at: usize| Some(u32::from_le_bytes(*notes.get(at..)?.first_chunk()?));
    let padded = |len: u32| (len as usize).next_multiple_of(4);
    let mut at = 0;
    loop {
        let (name_len, len, kind) = (word(at)?, word(at + 4)?, word(at + 8)?);
        let name = notes.get(at + 12..)?.get(..name_len as usize)?;
        let content = at + 12 + padded(name_len);
        if kind == GNU_BUILD_ID && name == b"GNU\0" {
            let id = notes.get(content..)?.get(..len as usize)?;
            return Some(profile::build_id_text(id));
        }
        at = content + padded(len);
    }
}

impl Functions {
    /// The name of a function, as the linker spells it.
    pub fn name(&self, function: &Function) -> &[u8] {
        &self.names[function.name as usize..][..usize::from(function.name_len)]
    }

    /// Reads a file.
    ///
    /// # Errors
    /// See [`ExtractError`].
    pub fn read(file: &File) -> Result<Functions, ExtractError> {
        const HEADER: u64 = size_of::<FileHeader64<LE>>() as u64;
        let head = read(file, 0, HEADER, HEADER)?;
        let (header, _) =
            from_bytes::<FileHeader64<LE>>(&head).map_err(|()| ExtractError::NotElf)?;
        let ident = &header.e_ident;
        if ident.magic != ELFMAG {
            return Err(ExtractError::NotElf);
        }
        if (ident.class.0, ident.data.0) != (2, 1) {
            return Err(ExtractError::Foreign);
        }
        if header.e_type.get(LE) == ET_REL {
            return Err(ExtractError::Relocatable);
        }
        let count = usize::from(header.e_shnum.get(LE));
        if count > SECTIONS_MAX {
            return Err(ExtractError::TooLarge);
        }
        let len = (count * size_of::<SectionHeader64<LE>>()) as u64;
        let sections = read(file, header.e_shoff.get(LE), len, len)?;
        let sections: &[SectionHeader64<LE>] = entries(&sections);
        let build_id = find_build_id(file, sections)?;
        let is_table = |section: &&SectionHeader64<LE>| section.sh_type.get(LE) == SHT_SYMTAB;
        let table = sections
            .iter()
            .find(is_table)
            .ok_or(ExtractError::NoSymbols)?;
        let names = sections.get(table.sh_link.get(LE) as usize);
        let names = names.ok_or(ExtractError::NotElf)?;
        let content = |section: &SectionHeader64<LE>, most: u64| {
            if section.sh_flags.get(LE).contains(SHF_COMPRESSED) {
                return Err(ExtractError::NotElf);
            }
            read(
                file,
                section.sh_offset.get(LE),
                section.sh_size.get(LE),
                most,
            )
        };
        let symbols = content(table, SYMBOLS_BYTES_MAX)?;
        let mut all = Functions {
            build_id,
            list: Vec::new(),
            names: content(names, NAMES_BYTES_MAX)?,
        };
        all.take(entries(&symbols), sections)?;
        drop(symbols);
        all.list
            .sort_unstable_by_key(|one| (one.start, one.rank, one.name));
        all.list.dedup_by_key(|one| one.start);
        all.end_open(sections);
        match all.list.is_empty() {
            true => Err(ExtractError::NoSymbols),
            false => Ok(all),
        }
    }

    fn take(
        &mut self,
        symbols: &[Sym64<LE>],
        sections: &[SectionHeader64<LE>],
    ) -> Result<(), ExtractError> {
        let mut names_bytes = 0;
        for symbol in symbols {
            let section = usize::from(symbol.st_shndx.get(LE).0);
            let (kind, bind) = (symbol.st_info.st_type(), symbol.st_info.st_bind());
            let typed = kind == STT_FUNC || kind == STT_GNU_IFUNC;
            // Not by its type: in a separate debug file code has no content.
            let is_code = || {
                let section = sections.get(section);
                section.is_some_and(|section| section.sh_flags.get(LE).contains(SHF_EXECINSTR))
            };
            if section == 0 || !(typed || kind == STT_NOTYPE && is_code()) {
                continue;
            }
            let name = symbol.st_name.get(LE);
            let text = self.names.get(name as usize..).unwrap_or(&[]);
            let text = &text[..text.len().min(NAME_BYTES_MAX)];
            let len = text
                .iter()
                .position(|&byte| byte == 0)
                .unwrap_or(text.len());
            names_bytes += len as u64;
            if names_bytes > ALL_NAMES_BYTES_MAX {
                return Err(ExtractError::TooLarge);
            }
            if len == 0 {
                continue;
            }
            let (start, size) = (symbol.st_value.get(LE), symbol.st_size.get(LE));
            // The same order as agents': the sized before others, then the typed, then the global.
            let bound = match bind {
                STB_GLOBAL => 0,
                STB_WEAK => 1,
                _ => 2,
            };
            self.list.push(Function {
                start,
                end: start.saturating_add(size),
                name,
                name_len: len as u16,
                rank: 8 * u8::from(size == 0) + 4 * u8::from(!typed) + bound,
            });
        }
        Ok(())
    }

    /// Lets functions without a size end where the next starts, or their section ends.
    fn end_open(&mut self, sections: &[SectionHeader64<LE>]) {
        let code = sections.iter().filter(|section| {
            section.sh_flags.get(LE).contains(SHF_EXECINSTR) && section.sh_addr.get(LE) != 0
        });
        let mut code: Vec<(u64, u64)> = code
            .map(|section| (section.sh_addr.get(LE), section.sh_size.get(LE)))
            .collect();
        code.sort_unstable();
        for at in 0..self.list.len() {
            let next = self.list.get(at + 1).map_or(u64::MAX, |next| next.start);
            let one = &mut self.list[at];
            if one.end != one.start {
                continue;
            }
            let section = code.partition_point(|(address, _)| *address <= one.start);
            let end = section.checked_sub(1).map_or(one.start, |section| {
                let (address, size) = code[section];
                address.saturating_add(size)
            });
            one.end = end.clamp(one.start, next.max(one.start));
        }
        self.list.retain(|one| one.end > one.start);
    }
}

fn find_build_id(file: &File, sections: &[SectionHeader64<LE>]) -> Result<String, ExtractError> {
    let notes = sections
        .iter()
        .filter(|section| section.sh_type.get(LE) == SHT_NOTE);
    for section in notes.take(NOTES_MAX) {
        let len = section.sh_size.get(LE).min(NOTE_BYTES_MAX);
        let notes = read(file, section.sh_offset.get(LE), len, NOTE_BYTES_MAX)?;
        if let Some(found) = build_id(&notes).filter(|found| profile::is_build_id(found)) {
            return Ok(found);
        }
    }
    Err(ExtractError::NoBuildId)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn read(content: &[u8]) -> Result<Functions, ExtractError> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        Functions::read(&file)
    }

    /// This test's own program.
    fn own() -> Functions {
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        Functions::read(&file).unwrap()
    }

    #[test]
    fn functions_of_a_program_are_in_order_and_have_names() {
        let own = own();
        assert!(own.list.len() > 1000);
        assert!(
            own.list
                .windows(2)
                .all(|pair| pair[0].start < pair[1].start)
        );
        assert!(own.list.iter().all(|one| one.start < one.end));
        let main = own.list.iter().find(|one| own.name(one) == b"main");
        assert!(main.is_some());
        assert!(profile::is_build_id(&own.build_id));
    }

    #[test]
    fn what_is_no_program_is_refused() {
        for content in [&b""[..], b"#!/bin/sh\n", b"\x7fELF", &[0; 4096]] {
            let refused = read(content);
            assert!(matches!(refused, Err(ExtractError::NotElf)), "{refused:?}");
        }
    }

    #[test]
    fn a_stripped_program_is_refused_for_what_it_lacks() {
        // Programs of the distribution are stripped.
        let refused = Functions::read(&File::open("/bin/sh").unwrap());
        assert!(
            matches!(refused, Err(ExtractError::NoSymbols)),
            "{refused:?}"
        );
    }

    /// A file of nothing but headers: sections of these types and contents, the last one text for
    /// all.
    fn made(symbols: &[u8], names: &[u8]) -> Vec<u8> {
        let note = b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0aaaabbbbccccddddeeee";
        let contents: [(u32, u32, &[u8]); 4] =
            [(0, 0, b""), (7, 0, note), (2, 3, symbols), (3, 0, names)];
        let mut file = vec![0; 64];
        let mut headers = Vec::new();
        for (kind, link, content) in contents {
            let mut header = [0u8; 64];
            header[4..8].copy_from_slice(&kind.to_le_bytes());
            header[24..32].copy_from_slice(&(file.len() as u64).to_le_bytes());
            header[32..40].copy_from_slice(&(content.len() as u64).to_le_bytes());
            header[40..44].copy_from_slice(&link.to_le_bytes());
            headers.extend_from_slice(&header);
            file.extend_from_slice(content);
        }
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[16] = 2;
        let at = file.len() as u64;
        file[40..48].copy_from_slice(&at.to_le_bytes());
        file[60] = 4;
        file.extend_from_slice(&headers);
        file
    }

    fn symbol(name: u32, start: u64, size: u64) -> [u8; 24] {
        let mut symbol = [0; 24];
        symbol[..4].copy_from_slice(&name.to_le_bytes());
        (symbol[4], symbol[6]) = (0x12, 1);
        symbol[8..16].copy_from_slice(&start.to_le_bytes());
        symbol[16..].copy_from_slice(&size.to_le_bytes());
        symbol
    }

    #[test]
    fn what_is_made_by_hand_is_read() {
        let symbols = [symbol(1, 0x10, 4), symbol(3, 0x20, 4)].concat();
        let found = read(&made(&symbols, b"\0f\0g\0")).unwrap();
        let names: Vec<_> = found.list.iter().map(|one| found.name(one)).collect();
        assert_eq!(names, [b"f", b"g"]);
        assert_eq!(found.build_id.len(), 40);
    }

    #[test]
    fn object_files_and_files_of_other_machines_are_told_apart() {
        let mut file = made(&symbol(1, 0x10, 4), b"\0f\0");
        file[16] = 1;
        assert!(matches!(read(&file), Err(ExtractError::Relocatable)));
        file[4] = 1;
        assert!(matches!(read(&file), Err(ExtractError::Foreign)));
    }

    #[test]
    fn names_that_share_their_text_cost_no_more_than_the_bound() {
        let one: Vec<[u8; 24]> = (0..300_000u64).map(|at| symbol(0, at * 16, 16)).collect();
        let refused = read(&made(&one.concat(), &vec![b'x'; NAME_BYTES_MAX * 2]));
        assert!(
            matches!(refused, Err(ExtractError::TooLarge)),
            "{refused:?}"
        );
    }

    #[test]
    fn tables_larger_than_the_file_are_not_read() {
        let mut file = made(&symbol(1, 0x10, 4), b"\0f\0");
        // The length of the symbols, in the third of four headers.
        let at = file.len() - 2 * 64 + 32;
        for len in [u64::MAX, 1 << 40, 90 << 20] {
            file[at..at + 8].copy_from_slice(&len.to_le_bytes());
            assert!(read(&file).is_err(), "{len}");
        }
    }

    #[test]
    fn a_damaged_program_does_no_harm() {
        let whole = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let headers = whole.len() - 64 * 40;
        for step in 0..20 {
            let mut damaged = whole.clone();
            // In the headers of sections at the end, and of the file.
            for at in [headers + step * 12, step % 64, 64 + step] {
                if let Some(byte) = damaged.get_mut(at) {
                    *byte ^= 0xff;
                }
            }
            let _ = read(&damaged);
        }
        for cut in [100, 4096, whole.len() / 2, whole.len() - 1] {
            let _ = read(&whole[..cut]);
        }
    }
}
