//! Reads the data for naming from an ELF image: segments, build id, debug link, function symbols.
//!
//! Images are untrusted and may change while they are read. So nothing is memory-mapped (truncating
//! a mapped file kills its reader with SIGBUS). Everything is read with bounded positional reads,
//! and every number in the image is checked before use. Little-endian images of 32 and 64 bits;
//! other machines' files give [`ElfError::Foreign`].

mod symbols;

pub(crate) use symbols::each_symbols;
pub use symbols::{SymbolTable, exported_variable};

use super::budget::Over;
use object::pod::{Pod, from_bytes};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use object::{LittleEndian as LE, elf};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Most program headers looked at. Real files have about a dozen.
const SEGMENTS_MAX: usize = 512;

/// Most section headers looked at. Unit: sections. Files built with one section a function have
/// some thousands before they are linked and a few dozen after.
const SECTIONS_MAX: usize = 8192;

/// Longest section name kept. Unit: bytes. Longer ones are cut, and are the names of no section
/// that is looked for. Names may share one string that ends nowhere, so each is bounded by itself.
const SECTION_NAME_BYTES_MAX: usize = 64;

/// Largest table of section names read. Unit: bytes. Names behind it are empty.
const SECTION_NAMES_BYTES_MAX: u64 = 1 << 20;

/// Longest notes segment read. Unit: bytes.
const NOTES_BYTES_MAX: u64 = 64 << 10;

/// Most notes segments read. Real files have two or three; a build id behind them is not found.
const NOTES_MAX: usize = 16;

/// Something that can be read at an offset.
pub trait ReadAt {
    /// Fills `to` from `offset`.
    ///
    /// # Errors
    /// When the image ends before, or reading fails.
    fn read_exact_at(&self, to: &mut [u8], offset: u64) -> io::Result<()>;

    /// Reads up to `to.len()` bytes; less only at the end of the image.
    ///
    /// # Errors
    /// When reading fails.
    fn read_some_at(&self, to: &mut [u8], offset: u64) -> io::Result<usize>;
}

impl ReadAt for File {
    fn read_exact_at(&self, to: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, to, offset)
    }

    fn read_some_at(&self, to: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < to.len() {
            match self.read_at(&mut to[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(more) => done += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }
}

impl ReadAt for [u8] {
    fn read_exact_at(&self, to: &mut [u8], offset: u64) -> io::Result<()> {
        if self.read_some_at(to, offset)? < to.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    fn read_some_at(&self, to: &mut [u8], offset: u64) -> io::Result<usize> {
        let from = usize::try_from(offset)
            .ok()
            .and_then(|at| self.get(at..))
            .unwrap_or(&[]);
        let len = to.len().min(from.len());
        to[..len].copy_from_slice(&from[..len]);
        Ok(len)
    }
}

/// Why an image cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ElfError {
    /// Reading failed, or the image ends too early.
    #[error("failed to read the ELF file")]
    Read(#[from] io::Error),
    /// Not an ELF image.
    #[error("failed to read the ELF file: it is not an ELF file")]
    NotElf,
    /// The file has a byte order that this build does not read.
    #[error("failed to read the ELF file: it is for another architecture")]
    Foreign,
    /// Headers contradict themselves or are over a limit.
    #[error("failed to read the ELF file: its headers are damaged")]
    Damaged,
    /// A table or a section is larger than any is read.
    #[error("failed to read the ELF file: it exceeds a size limit")]
    TooLarge,
    /// Reading it took more than one file may.
    #[error("failed to read the ELF file")]
    Over(#[from] Over),
}

impl ElfError {
    /// True when the image was given up for what reading it costs.
    pub fn is_over_budget(&self) -> bool {
        matches!(self, ElfError::TooLarge | ElfError::Over(_))
    }
}

/// A loaded segment with code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it starts in the file.
    pub offset: u64,
    /// Its length in the file.
    pub file_size: u64,
    /// Its address as the image states it (SVMA).
    pub address: u64,
    /// Its length in memory.
    pub memory_size: u64,
    /// True when it may be executed.
    pub executable: bool,
}

/// A section, as far as naming needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Its name.
    pub name: Box<[u8]>,
    /// `sh_type`.
    pub kind: u32,
    /// True when the content is compressed.
    pub compressed: bool,
    /// True when it is code.
    pub executable: bool,
    /// Its address as the image states it (SVMA); 0 when it is not loaded.
    pub address: u64,
    /// Where the content starts in the file.
    pub offset: u64,
    /// Length of the content in the file.
    pub size: u64,
    /// Index of the section it refers to.
    pub link: u32,
    /// Length of one entry of a table.
    pub entry_size: u64,
}

/// The headers of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headers {
    /// True for images of 64 bits.
    pub is_64: bool,
    /// `e_machine`.
    pub machine: u16,
    /// Address at which the kernel enters it (SVMA); 0 when nothing does.
    pub entry: u64,
    /// Loaded segments in file order.
    pub segments: Vec<Segment>,
    /// Where `.eh_frame_hdr` is, by its own program header, which survives without sections.
    pub eh_frame_hdr: Option<Segment>,
    /// Where the dynamic linker's table is, by its own program header.
    pub dynamic: Option<Segment>,
    /// It has a note of Go's linker.
    pub go_note: bool,
    /// Sections; empty when they were stripped.
    pub sections: Vec<Section>,
    /// GNU build id; empty when there is none.
    pub build_id: Box<[u8]>,
}

/// Reads the headers of an image.
///
/// # Errors
/// When it is no ELF image or is damaged. Damaged section headers count as none, since the loader
/// does not need them either.
pub fn read_headers<R: ReadAt + ?Sized>(image: &R) -> Result<Headers, ElfError> {
    read_with(image, true)
}

/// Reads the GNU build id alone; empty when there is none.
///
/// # Errors
/// When it is no ELF image or is damaged.
pub fn read_build_id<R: ReadAt + ?Sized>(image: &R) -> Result<Box<[u8]>, ElfError> {
    Ok(read_with(image, false)?.build_id)
}

fn read_with<R: ReadAt + ?Sized>(image: &R, sections: bool) -> Result<Headers, ElfError> {
    let mut ident = [0; 16];
    if image.read_some_at(&mut ident, 0)? < ident.len() || ident[..4] != elf::ELFMAG {
        return Err(ElfError::NotElf);
    }
    match (ident[4], ident[5]) {
        (2, 1) => read_class::<elf::FileHeader64<LE>, R>(image, sections),
        (1, 1) => read_class::<elf::FileHeader32<LE>, R>(image, sections),
        _ => Err(ElfError::Foreign),
    }
}

fn read_class<H: FileHeader<Endian = LE>, R: ReadAt + ?Sized>(
    image: &R,
    with_sections: bool,
) -> Result<Headers, ElfError> {
    let mut buffer = Vec::new();
    let header: H = read_pod(image, 0, &mut buffer)?;
    let count = usize::from(header.e_phnum(LE)).min(SEGMENTS_MAX);
    let table: Vec<H::ProgramHeader> =
        read_pods(image, header.e_phoff(LE).into(), count, &mut buffer)?;
    let mut segments = Vec::new();
    let (mut eh_frame_hdr, mut dynamic, mut go_note) = (None, None, false);
    let mut build_id: Box<[u8]> = Box::default();
    let mut notes_left = NOTES_MAX;
    for entry in &table {
        let segment = Segment {
            offset: entry.p_offset(LE).into(),
            file_size: entry.p_filesz(LE).into(),
            address: entry.p_vaddr(LE).into(),
            memory_size: entry.p_memsz(LE).into(),
            executable: entry.p_flags(LE).contains(elf::PF_X),
        };
        let Segment {
            offset, file_size, ..
        } = segment;
        if entry.p_type(LE) == elf::PT_LOAD {
            if segment.offset.checked_add(file_size).is_none()
                || segment
                    .address
                    .checked_add(segment.memory_size.max(file_size))
                    .is_none()
            {
                return Err(ElfError::Damaged);
            }
            segments.push(segment);
        } else if entry.p_type(LE) == elf::PT_GNU_EH_FRAME {
            eh_frame_hdr = Some(segment);
        } else if entry.p_type(LE) == elf::PT_DYNAMIC {
            dynamic = Some(segment);
        } else if entry.p_type(LE) == elf::PT_NOTE && notes_left > 0 {
            notes_left -= 1;
            let mut notes = vec![0; file_size.min(NOTES_BYTES_MAX) as usize];
            let len = image.read_some_at(&mut notes, offset)?;
            let (notes, align) = (&notes[..len], entry.p_align(LE).into());
            if build_id.is_empty() {
                build_id = find_build_id(notes, align).unwrap_or_default();
            }
            go_note |= find_note(notes, align, GO_NOTE).is_some();
        }
    }
    let sections = match with_sections {
        true => read_sections(image, &header, &mut buffer).unwrap_or_default(),
        false => Vec::new(),
    };
    let machine = header.e_machine(LE).0;
    Ok(Headers {
        is_64: H::is_type_64_sized(),
        machine,
        entry: header.e_entry(LE).into(),
        segments,
        eh_frame_hdr,
        dynamic,
        go_note,
        sections,
        build_id,
    })
}

fn read_sections<H: FileHeader<Endian = LE>, R: ReadAt + ?Sized>(
    image: &R,
    header: &H,
    buffer: &mut Vec<u8>,
) -> Result<Vec<Section>, ElfError> {
    let start: u64 = header.e_shoff(LE).into();
    if start == 0 {
        return Ok(Vec::new());
    }
    // With 65,280 sections and more the numbers are in the first header; that is over the limit.
    let count = usize::from(header.e_shnum(LE));
    if count > SECTIONS_MAX {
        return Err(ElfError::Damaged);
    }
    let table: Vec<H::SectionHeader> = read_pods(image, start, count, buffer)?;
    let names = table
        .get(usize::from(header.e_shstrndx(LE).0))
        .ok_or(ElfError::Damaged)?;
    let names_size: u64 = names.sh_size(LE).into();
    let mut text = vec![0; names_size.min(SECTION_NAMES_BYTES_MAX) as usize];
    let len = image.read_some_at(&mut text, names.sh_offset(LE).into())?;
    text.truncate(len);
    let name = |at: usize| {
        let rest = text.get(at..).unwrap_or(&[]);
        until_nul(&rest[..rest.len().min(SECTION_NAME_BYTES_MAX)])
    };
    let section = |entry: &H::SectionHeader| Section {
        name: name(entry.sh_name(LE) as usize).into(),
        kind: entry.sh_type(LE).0,
        compressed: entry.sh_flags(LE).contains(elf::SHF_COMPRESSED),
        executable: entry.sh_flags(LE).contains(elf::SHF_EXECINSTR),
        address: entry.sh_addr(LE).into(),
        offset: entry.sh_offset(LE).into(),
        size: entry.sh_size(LE).into(),
        link: entry.sh_link(LE),
        entry_size: entry.sh_entsize(LE).into(),
    };
    Ok(table.iter().map(section).collect())
}

/// Kind and name of the note that Go's linker writes, with the build id of its own.
const GO_NOTE: (u32, &[u8]) = (4, b"Go\0\0");

/// Finds the GNU build id in the content of a notes segment.
pub fn find_build_id(notes: &[u8], align: u64) -> Option<Box<[u8]>> {
    let wanted = (elf::NT_GNU_BUILD_ID.0, &b"GNU\0"[..]);
    find_note(notes, align, wanted).map(Into::into)
}

/// The content of the first note of a kind and a name that has any.
fn find_note<'n>(notes: &'n [u8], align: u64, wanted: (u32, &[u8])) -> Option<&'n [u8]> {
    // Only segments that say 8 pad to 8; 0, 1 and 4 all mean 4.
    let padded = |len: u32| (len as usize).next_multiple_of(if align == 8 { 8 } else { 4 });
    let mut rest = notes;
    while rest.len() >= 12 {
        let word =
            |at: usize| u32::from_le_bytes([rest[at], rest[at + 1], rest[at + 2], rest[at + 3]]);
        let (name_len, content_len, kind) = (word(0), word(4), word(8));
        // The name is padded together with the 12 bytes of header before it.
        let content_at = match align {
            8 => padded(name_len.checked_add(12)?),
            _ => 12 + padded(name_len),
        };
        let name = rest.get(12..12 + name_len as usize)?;
        let content = rest.get(content_at..content_at.checked_add(content_len as usize)?)?;
        if (kind, name) == wanted && !content.is_empty() {
            return Some(content);
        }
        rest = rest.get(content_at + padded(content_len)..)?;
    }
    None
}

impl Headers {
    /// The section of this name, when it has content.
    pub fn section(&self, name: &[u8]) -> Option<&Section> {
        self.sections
            .iter()
            .find(|section| &*section.name == name && section.kind != elf::SHT_NOBITS.0)
    }

    /// The address (SVMA) of a place in the file, that of the executable segment where several
    /// hold the place: linkers put two segments on one page.
    pub fn address_of(&self, offset: u64) -> Option<u64> {
        let holds = |segment: &&Segment| {
            offset >= segment.offset && offset - segment.offset < segment.file_size
        };
        let mut holders = self.segments.iter().filter(holds);
        let first = holders.clone().next();
        let segment = holders.find(|segment| segment.executable).or(first)?;
        Some(offset - segment.offset + segment.address)
    }

    /// The place in the file of an address (SVMA) of code.
    pub fn offset_of(&self, address: u64) -> Option<u64> {
        let mut code = self.segments.iter().filter(|segment| segment.executable);
        let segment = code.find(|segment| {
            address >= segment.address && address - segment.address < segment.file_size
        })?;
        Some(address - segment.address + segment.offset)
    }

    /// Name and checksum of the separate debug file, from `.gnu_debuglink`.
    pub fn debug_link<R: ReadAt + ?Sized>(&self, image: &R) -> Option<(Box<[u8]>, u32)> {
        let section = self.section(b".gnu_debuglink")?;
        let mut content = vec![0; section.size.min(4096) as usize];
        image.read_exact_at(&mut content, section.offset).ok()?;
        let name = until_nul(&content);
        let at = (name.len() + 1).next_multiple_of(4);
        let crc = content.get(at..at + 4)?;
        let usable = !name.is_empty() && !name.contains(&b'/') && name != b".." && name != b".";
        usable.then(|| {
            (
                name.into(),
                u32::from_le_bytes([crc[0], crc[1], crc[2], crc[3]]),
            )
        })
    }
}

fn read_pod<T: Pod, R: ReadAt + ?Sized>(
    image: &R,
    offset: u64,
    buffer: &mut Vec<u8>,
) -> Result<T, ElfError> {
    read_pods(image, offset, 1, buffer)?
        .pop()
        .ok_or(ElfError::Damaged)
}

/// Reads `count` plain structures; the caller bounds `count`.
fn read_pods<T: Pod, R: ReadAt + ?Sized>(
    image: &R,
    offset: u64,
    count: usize,
    buffer: &mut Vec<u8>,
) -> Result<Vec<T>, ElfError> {
    buffer.clear();
    buffer.resize(count * size_of::<T>(), 0);
    image.read_exact_at(buffer, offset)?;
    let mut rest = &buffer[..];
    let mut all = Vec::with_capacity(count);
    for _ in 0..count {
        let (one, after) = from_bytes::<T>(rest).map_err(|()| ElfError::Damaged)?;
        all.push(*one);
        rest = after;
    }
    Ok(all)
}

fn until_nul(text: &[u8]) -> &[u8] {
    &text[..text
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(text.len())]
}
