//! Reads what naming needs from an ELF image: segments, build id, debug link, function symbols.
//!
//! Images come from strangers and may change while they are read. So nothing is memory-mapped (a
//! file that is cut short under a mapping kills its reader with SIGBUS); everything is read with
//! bounded positional reads, and every number in the image is checked before use. Little-endian
//! images of 32 and 64 bits; other machines' files give [`ElfError::Foreign`].

use super::budget::{Charge, FileBudget, Over};
use object::LittleEndian as LE;
use object::elf;
use object::pod::{Pod, from_bytes, slice_from_bytes};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, Sym};
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

/// Symbols read at a time. Bounds the memory that reading takes next to the table itself.
const SYMBOLS_AT_ONCE: usize = 2048;

/// Most symbols of one table looked at, whatever they are of. The largest programs have some three
/// million with their debug information. Larger tables are refused before they are read: a sparse
/// file may state any size.
const SYMBOLS_MAX: u64 = 8 << 20;

/// How far back a look-up goes for an outer symbol that covers the address. Symbols nest one or two
/// deep; the bound keeps a hostile table from making every look-up a scan.
const NESTING_MAX: usize = 16;

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
    #[error("failed to read the image")]
    Read(#[from] io::Error),
    /// Not an ELF image.
    #[error("failed to read the image: not an ELF file")]
    NotElf,
    /// Of a byte order this build does not read.
    #[error("failed to read the image: of another kind of machine")]
    Foreign,
    /// Headers contradict themselves or are over a limit.
    #[error("failed to read the image: damaged headers")]
    Damaged,
    /// A table or a section is larger than any is read.
    #[error("failed to read the image: over a limit of size")]
    TooLarge,
    /// Reading it took more than one file may.
    #[error("failed to read the image")]
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

/// A function symbol. 16 bytes, so that the tables of a host's binaries fit the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    start: u64,
    /// Length; 0 when not known. While a table is read the rank of the symbol is in the bits from
    /// [`RANK_SHIFT`] on.
    size: u32,
    /// Place of the name in the string table.
    name: u32,
}

/// Where the rank of a symbol is in [`Entry::size`], so that reading a table takes no more memory
/// than keeping it. No function has 256 MiB.
const RANK_SHIFT: u32 = 28;

/// Longest function. Unit: bytes. Longer ones are cut.
const SIZE_MAX: u32 = (1 << RANK_SHIFT) - 1;

/// The function symbols of one symbol table, sorted; names stay in the file until asked for.
#[derive(Debug)]
pub struct SymbolTable {
    entries: Box<[Entry]>,
    names_at: u64,
    names_size: u64,
    /// True for the dynamic table, which leaves gaps that unsized symbols must not fill.
    sparse: bool,
}

/// Which of several symbols at one address to keep: the lowest.
fn rank(size: u64, kind: elf::SymbolType, bind: elf::SymbolBind) -> u8 {
    let sized = if size > 0 { 0 } else { 8 };
    let typed = if kind == elf::STT_NOTYPE { 4 } else { 0 };
    let bound = match bind {
        elf::STB_GLOBAL => 0,
        elf::STB_WEAK => 1,
        _ => 2,
    };
    sized + typed + bound
}

impl SymbolTable {
    /// Reads a symbol table, `.symtab` or `.dynsym`, keeping functions of executable segments.
    ///
    /// Of several symbols at one address the sized, the typed and the global is kept, in this order
    /// of weight. `None` when there is no such table or it names no function. `code` are the
    /// segments of the file that ran: a separate debug file has no content for its own.
    ///
    /// # Errors
    /// When reading fails or takes more than `budget` has left.
    pub fn read<R: ReadAt + ?Sized>(
        image: &R,
        headers: &Headers,
        section: &[u8],
        code: &[Segment],
        budget: &FileBudget<'_>,
    ) -> Result<Option<SymbolTable>, ElfError> {
        let Some(table) = headers.section(section) else {
            return Ok(None);
        };
        let names = headers
            .sections
            .get(table.link as usize)
            .ok_or(ElfError::Damaged)?;
        if table.compressed || names.compressed {
            return Err(ElfError::Damaged);
        }
        let code: Vec<Segment> = code.iter().filter(|one| one.executable).copied().collect();
        let code = (&*code, headers.machine == elf::EM_AARCH64.0);
        let mut charge = budget.charge(0)?;
        let mut found = match headers.is_64 {
            true => read_symbols::<elf::Sym64<LE>, R>(image, table, code, budget, &mut charge)?,
            false => read_symbols::<elf::Sym32<LE>, R>(image, table, code, budget, &mut charge)?,
        };
        found.sort_unstable_by_key(|entry| (entry.start, entry.size >> RANK_SHIFT, entry.name));
        found.dedup_by_key(|entry| entry.start);
        found.iter_mut().for_each(|entry| entry.size &= SIZE_MAX);
        if found.is_empty() {
            return Ok(None);
        }
        if section != b".dynsym" {
            end_with_sections(&mut found, headers);
        }
        let entries = found.into_boxed_slice();
        charge.set(size_of_val(&*entries))?;
        charge.keep();
        budget.check()?;
        Ok(Some(SymbolTable {
            entries,
            names_at: names.offset,
            names_size: names.size,
            sparse: section == b".dynsym",
        }))
    }

    /// A table of functions that no symbol table lists: address, length and place of the name of
    /// each, in order of address. `names` is where names are in the file and how long that is.
    pub(super) fn of_functions(
        functions: impl Iterator<Item = (u64, u32, u32)>,
        names: (u64, u64),
    ) -> SymbolTable {
        let entry = |(start, size, name): (u64, u32, u32)| Entry {
            start,
            size: size.min(SIZE_MAX),
            name,
        };
        SymbolTable {
            entries: functions.map(entry).collect(),
            names_at: names.0,
            names_size: names.1,
            sparse: false,
        }
    }

    /// The symbol that covers an address: its index, to be kept by the caller.
    ///
    /// `hint` is where the last look-up ended and is moved on. Addresses asked for in order are
    /// then found a few entries away, in memory that is in the processor's cache; any hint gives
    /// the right answer.
    pub fn find(&self, address: u64, hint: &mut usize) -> Option<u32> {
        let after = self.first_after(address, *hint);
        *hint = after;
        let next = self
            .entries
            .get(after)
            .map_or(u64::MAX, |entry| entry.start);
        for (back, index) in (0..after).rev().take(NESTING_MAX).enumerate() {
            let entry = &self.entries[index];
            let covers = match entry.size {
                // Only the nearest symbol can reach up to the next one.
                0 if self.sparse => address == entry.start,
                0 => back == 0 && address < next,
                size => address - entry.start < u64::from(size),
            };
            if covers {
                return Some(index as u32);
            }
            if entry.size == 0 && !self.sparse {
                return None;
            }
        }
        None
    }

    /// Index of the first symbol that starts after an address, searched for in growing steps from
    /// `hint` on.
    fn first_after(&self, address: u64, hint: usize) -> usize {
        let begins_by = |entry: &Entry| entry.start <= address;
        let mut low = hint.min(self.entries.len());
        if low > 0 && !begins_by(&self.entries[low - 1]) {
            return self.entries[..low].partition_point(begins_by);
        }
        let mut step = 1;
        while let Some(entry) = self.entries.get(low + step)
            && begins_by(entry)
        {
            low += step;
            step *= 2;
        }
        let high = (low + step).min(self.entries.len());
        low + self.entries[low..high].partition_point(begins_by)
    }

    /// Reads the name of a symbol that [`SymbolTable::find`] gave. `None` when it is not there.
    pub fn name<R: ReadAt + ?Sized>(&self, image: &R, index: u32) -> Option<Vec<u8>> {
        let place = u64::from(self.entries.get(index as usize)?.name);
        let mut len = 128usize;
        loop {
            let len_here = len.min(usize::try_from(self.names_size.checked_sub(place)?).ok()?);
            let mut text = vec![0; len_here];
            let got = image
                .read_some_at(&mut text, self.names_at.checked_add(place)?)
                .ok()?;
            let name = until_nul(&text[..got]);
            if name.len() < got || got < len || len > profile::names::MANGLED_BYTES_MAX {
                return (!name.is_empty()).then(|| name.to_vec());
            }
            len *= 8;
        }
    }

    /// Address and length of the symbol of this name, if the table of names fits what is left of
    /// `budget`.
    pub fn named<R: ReadAt + ?Sized>(
        &self,
        image: &R,
        name: &[u8],
        budget: &FileBudget<'_>,
    ) -> Option<(u64, u32)> {
        let size = usize::try_from(self.names_size).ok()?;
        let _charge = budget.charge(size).ok()?;
        budget.reads(size).ok()?;
        let mut names = vec![0; size];
        image.read_exact_at(&mut names, self.names_at).ok()?;
        let mut entries = self.entries.iter();
        let found = entries.find(|entry| has_name(&names, entry.name, name))?;
        Some((found.start, found.size))
    }

    /// Number of symbols.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Heap memory held, in bytes.
    pub fn heap_bytes(&self) -> usize {
        size_of_val(&*self.entries)
    }
}

/// Gives symbols of unknown length that of the rest of their section, where the next symbol lies
/// behind it. `_init` would else name all of the procedure linkage table that follows it.
fn end_with_sections(found: &mut [Entry], headers: &Headers) {
    let loaded = headers
        .sections
        .iter()
        .filter(|section| section.address != 0);
    let mut ranges: Vec<(u64, u64)> = loaded
        .map(|section| {
            (
                section.address,
                section.address.saturating_add(section.size),
            )
        })
        .collect();
    ranges.sort_unstable();
    for at in 0..found.len() {
        let next = found.get(at + 1).map_or(u64::MAX, |next| next.start);
        let entry = &mut found[at];
        let before = ranges.partition_point(|&(start, _)| start <= entry.start);
        if entry.size == 0
            && let Some(&(_, end)) = ranges[..before].last()
            && entry.start < end
            && end <= next
        {
            entry.size = u32::try_from(end - entry.start).unwrap_or(0);
        }
    }
}

/// True when the name at a place of a string table is `name`.
fn has_name(names: &[u8], at: u32, name: &[u8]) -> bool {
    let text = names.get(at as usize..);
    text.is_some_and(|text| until_nul(&text[..text.len().min(name.len() + 1)]) == name)
}

/// Address (SVMA) of the variable of this name in the dynamic symbols of a 64-bit file.
pub fn exported_variable<R: ReadAt + ?Sized>(
    image: &R,
    headers: &Headers,
    name: &[u8],
    budget: &FileBudget<'_>,
) -> Option<u64> {
    let table = headers.section(b".dynsym").filter(|_| headers.is_64)?;
    let names = headers.sections.get(table.link as usize)?;
    let size = usize::try_from(names.size).ok()?;
    let _charge = budget.charge(size).ok()?;
    budget.reads(size).ok()?;
    let mut text = vec![0; size];
    image.read_exact_at(&mut text, names.offset).ok()?;
    let mut found = None;
    let is_it = |symbol: &elf::Sym64<LE>| {
        let here = symbol.st_type() == elf::STT_OBJECT && symbol.st_shndx(LE) != elf::SHN_UNDEF;
        here && has_name(&text, symbol.st_name(LE), name)
    };
    let read = each_symbols::<elf::Sym64<LE>, R>(image, table, budget, |symbols, _| {
        let here = symbols.iter().find(|symbol| is_it(symbol));
        found = found.or(here.map(|symbol| symbol.st_value(LE)));
        Ok(())
    });
    read.ok().and(found)
}

fn read_symbols<S: Sym<Endian = LE> + Pod, R: ReadAt + ?Sized>(
    image: &R,
    table: &Section,
    code: (&[Segment], bool),
    budget: &FileBudget<'_>,
    charge: &mut Charge<'_>,
) -> Result<Vec<Entry>, ElfError> {
    let mut found: Vec<Entry> = Vec::new();
    each_symbols::<S, R>(image, table, budget, |symbols, left| {
        let here = symbols.len();
        if found.capacity() - found.len() < here {
            // By half and exactly, so that what is charged is what is taken; but by no more than
            // the table may need or the budget has left, so that all of the budget can be used.
            let room = (charge.room() / size_of::<Entry>()).saturating_sub(found.len());
            let left = left.min(room as u64);
            let more = here.max(left.min(found.capacity() as u64 / 2) as usize);
            charge.set((found.len() + more) * size_of::<Entry>())?;
            found.reserve_exact(more);
        }
        found.extend(symbols.iter().filter_map(|symbol| function(symbol, code)));
        Ok(())
    })?;
    Ok(found)
}

/// Reads a table of symbols in pieces. `each` gets the next ones, and how many there are from the
/// first of these on.
///
/// # Errors
/// When the table cannot be read, is larger than any, or `each` fails.
pub(super) fn each_symbols<S: Sym<Endian = LE> + Pod, R: ReadAt + ?Sized>(
    image: &R,
    table: &Section,
    budget: &FileBudget<'_>,
    mut each: impl FnMut(&[S], u64) -> Result<(), ElfError>,
) -> Result<(), ElfError> {
    let size = size_of::<S>() as u64;
    let count = table.size / size;
    if count > SYMBOLS_MAX {
        return Err(ElfError::TooLarge);
    }
    let mut buffer = vec![0; SYMBOLS_AT_ONCE * size_of::<S>()];
    let mut at = 0;
    while at < count {
        let here = (count - at).min(SYMBOLS_AT_ONCE as u64);
        let bytes = &mut buffer[..(here * size) as usize];
        let offset = at
            .checked_mul(size)
            .and_then(|at| at.checked_add(table.offset));
        budget.reads(bytes.len())?;
        image.read_exact_at(bytes, offset.ok_or(ElfError::Damaged)?)?;
        let (symbols, _) =
            slice_from_bytes::<S>(bytes, here as usize).map_err(|()| ElfError::Damaged)?;
        each(symbols, count - at)?;
        at += here;
    }
    Ok(())
}

/// The symbol, with its rank, when it is that of a function in `code`. `marks`: the table is of an
/// architecture where symbols also tell code from data, by `$x` and `$d` (ELF for the Arm 64-bit
/// Architecture, 5.7).
fn function<S: Sym<Endian = LE>>(symbol: &S, (code, marks): (&[Segment], bool)) -> Option<Entry> {
    let kind = symbol.st_type();
    let untyped = kind == elf::STT_NOTYPE && symbol.st_bind() == elf::STB_LOCAL;
    let size: u64 = symbol.st_size(LE).into();
    if marks && untyped && size == 0 {
        return None;
    }
    let named = symbol.st_name(LE) != 0 && symbol.st_shndx(LE) != elf::SHN_UNDEF;
    if !named || ![elf::STT_FUNC, elf::STT_GNU_IFUNC, elf::STT_NOTYPE].contains(&kind) {
        return None;
    }
    let start: u64 = symbol.st_value(LE).into();
    let inside = |segment: &Segment| start.wrapping_sub(segment.address) < segment.memory_size;
    if !code.iter().any(inside) {
        return None;
    }
    let rank = u32::from(rank(size, kind, symbol.st_bind()));
    Some(Entry {
        start,
        size: size.min(u64::from(SIZE_MAX)) as u32 | rank << RANK_SHIFT,
        name: symbol.st_name(LE),
    })
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
