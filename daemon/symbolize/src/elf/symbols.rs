//! The function symbols of an image, sorted by address, and look-ups in them.

use super::{ElfError, Headers, ReadAt, Section, Segment, until_nul};
use crate::budget::{Charge, FileBudget};
use object::pod::{Pod, slice_from_bytes};
use object::read::elf::Sym;
use object::{LittleEndian as LE, elf};

/// Symbols read at a time. Bounds the memory that reading takes next to the table itself.
const SYMBOLS_AT_ONCE: usize = 2048;

/// Most symbols of one table looked at, whatever they are of. The largest programs have some three
/// million with their debug information. Larger tables are refused before they are read: a sparse
/// file may state any size.
const SYMBOLS_MAX: u64 = 8 << 20;

/// How far back a look-up goes for an outer symbol that covers the address. Symbols nest one or two
/// deep; the bound keeps a hostile table from making every look-up a scan.
const NESTING_MAX: usize = 16;

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

/// Bit position of a symbol's rank in [`Entry::size`], so that reading a table takes no more memory
/// than storing it. No function has 256 MiB.
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

/// Rank of a symbol: the lowest of several at one address is kept.
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
    /// If several symbols are at one address, a sized one wins, then a typed one, then a global
    /// one. `None` when there is no such table or it names no function. `code` are the segments of
    /// the file that ran: a separate debug file has no content for its own.
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
    pub(crate) fn of_functions(
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

/// Ends symbols of unknown length at the end of their section, if the next symbol is beyond it.
/// Otherwise `_init` would name all of the procedure linkage table that follows it.
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
pub(crate) fn each_symbols<S: Sym<Endian = LE> + Pod, R: ReadAt + ?Sized>(
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

/// The symbol, with its rank, if it is that of a function in `code`. `marks`: the table is of an
/// architecture with symbols that separate code from data, `$x` and `$d` (ELF for the Arm 64-bit
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
