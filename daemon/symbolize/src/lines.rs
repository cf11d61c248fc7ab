//! Source lines and inlined functions, from DWARF, through blazesym.
//!
//! blazesym maps the file it reads into memory and follows debug links by path. Neither is safe
//! with untrusted files: truncating a mapped file ends the process with SIGBUS, and a link from a
//! container's file would be followed in the daemon's mount namespace. So it gets a file in memory
//! that contains only the debug sections, copied and decompressed within a bound, and only after
//! their shape was checked (`debug_shape`). There is one blazesym symbolizer per file: dropping it
//! frees everything, and a panic costs one file its lines.

use super::budget::{FILE_CPU_MAX, FileBudget};
use super::debug_shape::{self, ShapeError};
use super::elf::{ElfError, Headers, ReadAt, Section};
use super::inflate::{self, Content};
use super::open::memory_file;
use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Symbolized, Symbolizer};
use host::time::thread_cpu;
use profile::names;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Why there are no lines.
#[derive(Debug, thiserror::Error)]
pub enum LinesError {
    /// The sections cannot be read or are over the limit.
    #[error("failed to read the debug sections")]
    Sections(#[from] ElfError),
    /// The library is not given what is of this shape.
    #[error("failed to use the debug information")]
    Shape(#[from] ShapeError),
    /// Looking through it takes more CPU time than one file may.
    #[error(
        "failed to search the debug information: it takes more time than the limit for one \
        file"
    )]
    Time,
    /// No file in memory could be made.
    #[error("failed to copy the debug sections to memory")]
    Copy(#[source] io::Error),
    /// The library refused the sections.
    #[error("failed to read the debug information")]
    Library,
    /// The library panicked.
    #[error("failed to read the debug information: the library panicked")]
    Panicked,
}

/// One frame of an address, according to the debug information.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceFrame {
    /// Function; empty when the debug information names none.
    pub function: String,
    /// Source file; empty when not known.
    pub file: String,
    /// Source line; 0 when not known.
    pub line: u32,
    /// First line of the function; 0 when not known.
    pub start_line: u32,
}

/// The debug information of one file.
pub struct LineSource {
    symbolizer: Symbolizer,
    source: Source<'static>,
    /// The library opens it by the path of this descriptor, so it stays open as long.
    _image: File,
    bytes: usize,
}

impl LineSource {
    /// Copies the debug sections of an image; `None` when it has none.
    ///
    /// # Errors
    /// When they are damaged, of a shape that the library is not given, or would take more than
    /// `bytes_max` of memory.
    pub fn new<R: ReadAt + ?Sized>(
        image: &R,
        headers: &Headers,
        inlined: bool,
        bytes_max: usize,
    ) -> Result<Option<LineSource>, LinesError> {
        if !headers.is_64 || headers.section(b".debug_info").is_none() {
            return Ok(None);
        }
        let sections = wanted(image, headers)?;
        let bytes = bytes_for(&sections);
        if bytes > bytes_max as u64 {
            return Err(ElfError::TooLarge.into());
        }
        let file = memory_file("fleetprof-debug", &[]).map_err(LinesError::Copy)?;
        // The memory is that of the cache, which made room for it.
        let budget = FileBudget::new(bytes_max, FILE_CPU_MAX);
        let parts = copy_sections(image, headers, &sections, &budget, &file)?;
        let part = |name: &[u8]| {
            let found = parts.iter().find(|(section, _)| *section == name);
            found.map_or(&[][..], |(_, content)| content)
        };
        let [info, abbrev, line] = INSPECTED.map(part);
        debug_shape::check(info, abbrev, line, &budget)?;
        drop(parts);
        let symbolizer = Symbolizer::builder()
            .enable_auto_reload(false)
            .enable_code_info(true)
            .enable_inlined_fns(inlined)
            .enable_demangling(false)
            .set_debug_dirs(Some(std::iter::empty::<&str>()))
            .build();
        let source = Source::Elf(Elf::new(format!("/proc/self/fd/{}", file.as_raw_fd())));
        Ok(Some(LineSource {
            symbolizer,
            source,
            _image: file,
            bytes: bytes as usize,
        }))
    }

    /// Memory that the debug information of an image takes, in bytes, without reading it. `None`
    /// when it has none or it is damaged.
    pub fn bytes_for<R: ReadAt + ?Sized>(image: &R, headers: &Headers) -> Option<usize> {
        let sections = wanted(image, headers).ok()?;
        usize::try_from(bytes_for(&sections)).ok()
    }

    /// Gives the frames of each address (SVMA), the function itself first, what was inlined into it
    /// after; nothing for addresses that the debug information does not cover.
    ///
    /// # Errors
    /// When the library rejects the file, panics or takes more CPU time than one file may; then
    /// this source is of no more use. Earlier results stay valid.
    pub fn places(
        &self,
        addresses: &[u64],
        mut each: impl FnMut(usize, &[SourceFrame]),
    ) -> Result<(), LinesError> {
        let until = thread_cpu() + FILE_CPU_MAX;
        let mut places = Vec::new();
        for (number, part) in addresses.chunks(AT_ONCE).enumerate() {
            let call = || {
                self.symbolizer
                    .symbolize(&self.source, Input::VirtOffset(part))
            };
            let found = catch_unwind(AssertUnwindSafe(call)).map_err(|_| LinesError::Panicked)?;
            let found = found.map_err(|_| LinesError::Library)?;
            for (index, symbol) in found.iter().enumerate() {
                places.clear();
                if let Symbolized::Sym(symbol) = symbol {
                    places.push(place(&symbol.name, symbol.code_info.as_deref()));
                    let inlined = symbol.inlined.iter();
                    places.extend(inlined.map(|one| place(&one.name, one.code_info.as_ref())));
                }
                each(number * AT_ONCE + index, &places);
            }
            if thread_cpu() > until {
                return Err(LinesError::Time);
            }
        }
        Ok(())
    }

    /// Memory held, in bytes; a guess for what is inside the library.
    pub fn heap_bytes(&self) -> usize {
        self.bytes
    }
}

fn bytes_for(sections: &[(&Section, u64)]) -> u64 {
    let each = sections.iter().map(|&(section, size)| {
        size.saturating_mul(match &*section.name {
            b".debug_line" => BYTES_PER_LINE_BYTE,
            _ => BYTES_PER_BYTE,
        })
    });
    each.fold(0, u64::saturating_add)
}

fn place(name: &str, info: Option<&CodeInfo<'_>>) -> SourceFrame {
    let function = names::readable(name.as_bytes());
    match info {
        Some(info) => SourceFrame {
            function,
            file: names::capped(&info.to_path().to_string_lossy()),
            line: info.line.unwrap_or(0),
            start_line: 0,
        },
        None => SourceFrame {
            function,
            ..SourceFrame::default()
        },
    }
}

/// The sections that lines and inlined functions are read from. Those of variables, types and
/// macros, a third of all, are not.
const SECTIONS: [&[u8]; 10] = [
    b".debug_abbrev",
    b".debug_addr",
    b".debug_aranges",
    b".debug_info",
    b".debug_line",
    b".debug_line_str",
    b".debug_ranges",
    b".debug_rnglists",
    b".debug_str",
    b".debug_str_offsets",
];

/// Memory for each byte of those sections: the copy, and what the library builds from it. With ten
/// files of this project's debug build sampled, 75 MiB of copies and 21 MiB of heap came on top
/// (`symbols.lines=true`, cache 400 MiB, 2026-11-21): 1.3; programs with more functions in use take
/// more. Too small and memory goes over the bound of the cache.
const BYTES_PER_BYTE: u64 = 2;

/// The same for each byte of line programs. A row is 24 bytes in the library and one byte of a
/// program at least, about three in what compilers write; they are read where samples are. So this
/// is what is likely, not a bound: programs made for it take three times as much, and that as often
/// as units name them (`debug_shape`).
const BYTES_PER_LINE_BYTE: u64 = 8;

/// Addresses the library looks up at once: it cannot be stopped half-way.
const AT_ONCE: usize = 16;

/// The sections with a shape that is checked: entries, their abbreviations, and line programs.
const INSPECTED: [&[u8]; 3] = [b".debug_info", b".debug_abbrev", b".debug_line"];

/// Returns the sections to copy and how long each is in the copy. If several have one name, it is
/// the first, so that the library reads what was looked at.
fn wanted<'h, R: ReadAt + ?Sized>(
    image: &R,
    headers: &'h Headers,
) -> Result<Vec<(&'h Section, u64)>, ElfError> {
    let wanted = SECTIONS.iter().filter_map(|name| headers.section(name));
    wanted
        .map(|section| {
            let size = inflate::content_size(image, section, headers.is_64)?;
            Ok((section, size))
        })
        .collect()
}

/// Writes a 64-bit ELF file that has only the wanted sections, uncompressed, one after the other,
/// so that at most one of them is in memory twice in addition to the [`INSPECTED`] ones, which it
/// returns by name.
fn copy_sections<'s, 'b, R: ReadAt + ?Sized>(
    image: &R,
    headers: &Headers,
    sections: &[(&'s Section, u64)],
    budget: &'b FileBudget<'_>,
    to: &File,
) -> Result<Vec<(&'s [u8], Content<'b>)>, LinesError> {
    const HEADER: u64 = 64;
    let mut at = HEADER;
    let mut names = vec![0];
    let mut inspected = Vec::new();
    // (name, kind, offset, size) of each section; the first is the empty one.
    let mut table: Vec<(u32, u32, u64, u64)> = vec![(0, 0, 0, 0)];
    for &(section, size) in sections {
        let content = inflate::content(image, section, headers.is_64, size as usize, budget)?;
        at = at.next_multiple_of(16);
        table.push((names.len() as u32, 1, at, content.len() as u64));
        names.extend_from_slice(&section.name);
        names.push(0);
        to.write_all_at(&content, at).map_err(LinesError::Copy)?;
        at += content.len() as u64;
        if INSPECTED.contains(&&*section.name) {
            inspected.push((&*section.name, content));
        }
    }
    let names_at = names.len() as u32;
    names.extend_from_slice(b".shstrtab\0");
    table.push((names_at, 3, at, names.len() as u64));
    let table_at = (at + names.len() as u64).next_multiple_of(16);
    names.resize((table_at - at) as usize, 0);
    for &(name, kind, offset, size) in &table {
        names.extend_from_slice(&name.to_le_bytes());
        names.extend_from_slice(&kind.to_le_bytes());
        // Flags, address, offset, size, link and info, alignment, entry size.
        for word in [0, 0, offset, size, 0, 1, 0] {
            names.extend_from_slice(&word.to_le_bytes());
        }
    }
    to.write_all_at(&names, at).map_err(LinesError::Copy)?;
    let mut header = [0; HEADER as usize];
    header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    header[16..18].copy_from_slice(&3u16.to_le_bytes());
    header[18..20].copy_from_slice(&headers.machine.to_le_bytes());
    header[20..24].copy_from_slice(&1u32.to_le_bytes());
    header[40..48].copy_from_slice(&table_at.to_le_bytes());
    header[52..54].copy_from_slice(&64u16.to_le_bytes());
    header[54..56].copy_from_slice(&56u16.to_le_bytes());
    header[58..60].copy_from_slice(&64u16.to_le_bytes());
    header[60..62].copy_from_slice(&(table.len() as u16).to_le_bytes());
    header[62..64].copy_from_slice(&(table.len() as u16 - 1).to_le_bytes());
    to.write_all_at(&header, 0).map_err(LinesError::Copy)?;
    Ok(inspected)
}
