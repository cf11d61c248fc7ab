//! Reads the functions of an ELF file: the symbol table and the build id, nothing else.
//!
//! Files come from whoever may upload, and from servers. They lie in a file of our own by then, so nobody
//! changes them meanwhile; what they say of sizes is checked before anything is read.

use object::elf::{SHF_EXECINSTR, STB_GLOBAL, STB_WEAK, STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE};
use object::read::{ReadCache, ReadRef};
use object::{Object, ObjectSection, ObjectSymbol, SectionFlags, SymbolFlags, SymbolSection};
use std::fs::File;

/// Largest table of symbols, and of their names. Unit: bytes. Those of the largest browsers have 100 to
/// 200 MB together; reading takes them, and about as much for what is kept of them.
const TABLE_BYTES_MAX: u64 = 192 << 20;

/// Longest name kept. Unit: bytes. Longer ones are of templates, and are cut when they are shown.
const NAME_BYTES_MAX: usize = profile::names::MANGLED_BYTES_MAX;

/// Why a file is of no use.
#[derive(Debug, thiserror::Error)]
pub enum ExtractError {
    /// It is no ELF file, or a damaged one.
    #[error("it is no ELF file, or is damaged: {0}")]
    NotElf(#[from] object::read::Error),
    /// Nothing tells which build it is of.
    #[error("it has no GNU build id: link with `-Wl,--build-id`")]
    NoBuildId,
    /// It has no symbol table, or one without functions.
    #[error("it has no symbol table: it was stripped")]
    NoSymbols,
    /// Its symbol table is over the bound.
    #[error("its symbol table has more than {} MiB", TABLE_BYTES_MAX >> 20)]
    TooLarge,
}

/// A function: `start..end` as the file counts addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its first byte.
    pub start: u64,
    /// The first byte behind it.
    pub end: u64,
    /// Begin of its name in [`Functions::names`].
    name: u32,
    /// Its length.
    name_len: u16,
    /// Which of several symbols at one address is kept: the lowest.
    rank: u8,
}

/// What a file has.
#[derive(Debug)]
pub struct Functions {
    /// Its build id, in lower-case hexadecimal.
    pub build_id: String,
    /// By address; no two begin at the same.
    pub list: Vec<Function>,
    names: Vec<u8>,
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
        let cache = ReadCache::new(file);
        let image = object::File::parse(&cache)?;
        let build_id = image.build_id()?.ok_or(ExtractError::NoBuildId)?;
        let build_id: String = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
        if !profile::is_build_id(&build_id) {
            return Err(ExtractError::NoBuildId);
        }
        for name in [".symtab", ".strtab"] {
            let section = image.section_by_name(name);
            let size = section.map_or(0, |section| section.size());
            let length = (&cache).len().unwrap_or(0);
            if size > TABLE_BYTES_MAX.min(length) {
                return Err(ExtractError::TooLarge);
            }
        }
        let mut all = Functions {
            build_id,
            list: Vec::new(),
            names: Vec::new(),
        };
        for symbol in image.symbols() {
            all.add(&image, &symbol);
        }
        let rank = |one: &Function| (one.start, one.rank, one.name);
        all.list.sort_unstable_by_key(rank);
        all.list.dedup_by_key(|one| one.start);
        all.end_open(&image);
        match all.list.is_empty() {
            true => Err(ExtractError::NoSymbols),
            false => Ok(all),
        }
    }

    fn add<'d, R: ReadRef<'d>>(
        &mut self,
        image: &object::File<'d, R>,
        symbol: &object::Symbol<'d, '_, R>,
    ) {
        let SymbolFlags::Elf { st_info, .. } = symbol.flags() else {
            return;
        };
        let (kind, bind) = (st_info.st_type(), st_info.st_bind());
        let is_code = || {
            let section = match symbol.section() {
                SymbolSection::Section(index) => image.section_by_index(index).ok(),
                _ => None,
            };
            // Not by its kind: in a separate debug file code has no content.
            section.is_some_and(|section| match section.flags() {
                SectionFlags::Elf { sh_flags, .. } => sh_flags.contains(SHF_EXECINSTR),
                _ => false,
            })
        };
        let typed = kind == STT_FUNC || kind == STT_GNU_IFUNC;
        let is_function = typed || kind == STT_NOTYPE && is_code();
        if symbol.is_undefined() || !is_function {
            return;
        }
        let Ok(name) = symbol.name_bytes() else {
            return;
        };
        let name = &name[..name.len().min(NAME_BYTES_MAX)];
        let Ok(at) = u32::try_from(self.names.len()) else {
            return;
        };
        if name.is_empty() {
            return;
        }
        self.names.extend_from_slice(name);
        let (start, size) = (symbol.address(), symbol.size());
        // The same order as agents': the sized before others, then the typed, then the global.
        let bound = match bind {
            STB_GLOBAL => 0,
            STB_WEAK => 1,
            _ => 2,
        };
        let rank = 8 * u8::from(size == 0) + 4 * u8::from(!typed) + bound;
        self.list.push(Function {
            start,
            end: start.saturating_add(size),
            name: at,
            name_len: name.len() as u16,
            rank,
        });
    }

    /// Lets functions without a size end where the next begins, or their section ends.
    fn end_open<'d, R: ReadRef<'d>>(&mut self, image: &object::File<'d, R>) {
        let sections: Vec<_> = image
            .sections()
            .map(|section| (section.address(), section.size()))
            .filter(|(address, _)| *address != 0)
            .collect();
        for at in 0..self.list.len() {
            let next = self.list.get(at + 1).map_or(u64::MAX, |next| next.start);
            let one = &mut self.list[at];
            if one.end != one.start {
                continue;
            }
            let of = sections
                .iter()
                .find(|(address, size)| one.start.wrapping_sub(*address) < *size);
            let end = of.map_or(one.start, |(address, size)| address.saturating_add(*size));
            one.end = end.min(next);
        }
        self.list.retain(|one| one.end > one.start);
    }
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
            assert!(
                matches!(refused, Err(ExtractError::NotElf(_))),
                "{refused:?}"
            );
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
