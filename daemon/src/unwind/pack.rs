//! Writes a section of unwind information anew: what the sampler keeps of it, at half the size.
//!
//! Input is an `.eh_frame` or `.debug_frame` as a stranger wrote it; output an `.eh_frame` in which
//! every function begins at address zero and has no end, and an index that says where functions begin
//! and end and which description is theirs. Descriptions then no longer differ in addresses and personality
//! routines, and each is kept once: compilers describe two functions of three like another.
//! Bytes a function, index included, as read and as kept (2026-11-21): librustc_driver 67 and 33,
//! libLLVM 22 56 and 29, cc1 61 and 37, node 45 and 27. With libLLVM 15, libjvm and chromium they took
//! 30.6 MB, now 16.5.
//!
//! Called by `fp-files`, once a file; work and memory grow with the section alone. Heads that many
//! functions share are read once, and what is longer than the bounds is not kept.

use super::table::{Bases, Dialect, ENTRIES_MAX, Slice};
use gimli::{
    BaseAddresses, CieOrFde, CommonInformationEntry, DebugFrame, EhFrame, LittleEndian, Reader,
    UnwindSection,
};
use hashbrown::HashMap;

/// Longest description of one function that is kept. Unit: bytes. Real ones have some hundred, the
/// largest generated ones a few thousand; a longer one would hold up the sampler, which evaluates it
/// for every address.
const ENTRY_BYTES_MAX: usize = 64 << 10;

/// Longest head, shared by many functions, that is kept. Unit: bytes. Real ones have some twenty.
const HEAD_BYTES_MAX: usize = 4 << 10;

/// Where a function begins, or where nothing is described until the next begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Address less the base of the table.
    pub start: u32,
    /// Place of the description in the section, and below it in [`GAP_BITS`] how many bytes before the
    /// next entry the function ends: linkers align functions to 16 bytes.
    place: u32,
}

/// Bits of [`Entry::gap`].
const GAP_BITS: u32 = 4;

/// Largest section written. Unit: bytes. Twice and more what is read.
const SECTION_BYTES_MAX: usize = 1 << (u32::BITS - GAP_BITS);

impl Entry {
    const NOTHING: u32 = u32::MAX;

    /// Place of the description; `None` where nothing is described.
    pub fn at(self) -> Option<usize> {
        (self.place != Entry::NOTHING).then_some((self.place >> GAP_BITS) as usize)
    }

    /// Bytes between the end of the function and the next entry.
    pub fn gap(self) -> u32 {
        self.place & ((1 << GAP_BITS) - 1)
    }
}

/// A section written anew.
#[derive(Debug, Default)]
pub struct Packed {
    /// Descriptions, in the dialect [`Dialect::Eh`].
    pub section: Vec<u8>,
    /// Where functions begin, in order of address, and where nothing is described.
    pub index: Vec<Entry>,
}

/// A function as it was found.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Found {
    start: u32,
    /// Place in the section read: of two that begin at one address the later one counts.
    from: u32,
    len: u32,
    at: u32,
}

/// What is kept of a head.
struct Head<'a> {
    /// As it was read.
    entry: CommonInformationEntry<Slice<'a>>,
    /// Where it was written.
    at: u32,
    /// Descriptions have a length of data before their instructions.
    has_data: bool,
    /// How descriptions write addresses; see [`skip_pointer`].
    pointer: u8,
}

struct Packer<'a> {
    bytes: &'a [u8],
    base: u64,
    dialect: Dialect,
    /// Address of the section.
    section_at: u64,
    heads: Vec<Head<'a>>,
    /// Numbers of heads by their place; `None`: not to be had.
    heads_read: HashMap<usize, Option<usize>>,
    last_head: Option<(usize, Option<usize>)>,
    heads_written: HashMap<Vec<u8>, u32>,
    written: HashMap<(u32, &'a [u8]), u32>,
    found: Vec<Found>,
    section: Vec<u8>,
}

/// Writes anew the section `bytes`, in which `places` lead to descriptions; without, the whole section
/// is read.
pub fn pack(dialect: Dialect, bytes: &[u8], places: Option<Vec<u32>>, bases: &Bases) -> Packed {
    let at = BaseAddresses::default()
        .set_text(bases.text)
        .set_eh_frame(bases.section)
        .set_eh_frame_hdr(bases.header);
    let packer = Packer {
        bytes,
        base: bases.code,
        dialect,
        section_at: bases.section,
        heads: Vec::new(),
        heads_read: HashMap::new(),
        last_head: None,
        heads_written: HashMap::new(),
        written: HashMap::new(),
        found: Vec::new(),
        section: Vec::new(),
    };
    match dialect {
        Dialect::Eh => {
            let mut section = EhFrame::new(bytes, LittleEndian);
            section.set_address_size(8);
            packer.pack(&section, &at, places)
        }
        Dialect::Debug => {
            let mut section = DebugFrame::new(bytes, LittleEndian);
            section.set_address_size(8);
            packer.pack(&section, &at, places)
        }
    }
}

impl<'a> Packer<'a> {
    fn pack<S: UnwindSection<Slice<'a>>>(
        mut self,
        section: &S,
        bases: &BaseAddresses,
        places: Option<Vec<u32>>,
    ) -> Packed {
        match places {
            Some(places) => {
                for at in places {
                    let _ = self.add(section, bases, at as usize);
                }
            }
            None => {
                let mut entries = section.entries(bases);
                // What follows something unreadable is not read: its begin is not known.
                while let Ok(Some(entry)) = entries.next() {
                    if let CieOrFde::Fde(partial) = entry {
                        let _ = self.add(section, bases, partial.offset());
                    }
                    if self.found.len() >= ENTRIES_MAX {
                        break;
                    }
                }
            }
        }
        Packed {
            index: index(self.found),
            section: self.section,
        }
    }

    /// Keeps the function described at `at`; `None` when it does not parse.
    fn add<S: UnwindSection<Slice<'a>>>(
        &mut self,
        section: &S,
        bases: &BaseAddresses,
        at: usize,
    ) -> Option<()> {
        let content = self.entry(at)?;
        if content.len() > ENTRY_BYTES_MAX {
            return None;
        }
        let id = u32::from_le_bytes(*content.first_chunk()?) as usize;
        let head_at = match self.dialect {
            // A head itself.
            Dialect::Eh if id == 0 => return None,
            Dialect::Eh => at.checked_add(4)?.checked_sub(id)?,
            Dialect::Debug => id,
        };
        let head = self.head(section, bases, head_at)?;
        let head = &self.heads[head];
        let (begin, length) = match usual_range(content, self.section_at, at, head.pointer) {
            Some(range) => range,
            None => {
                let partial = section.partial_fde_from_offset(bases, S::Offset::from(at));
                let function = partial.ok()?.parse(|_, _, _| Ok(head.entry.clone())).ok()?;
                (function.initial_address(), function.len())
            }
        };
        // Functions that the linker dropped are described at address zero.
        if begin == 0 || length == 0 {
            return None;
        }
        let start = u32::try_from(begin.checked_sub(self.base)?).ok()?;
        let instructions = instructions(content, head)?;
        if names_an_address(instructions) {
            return None;
        }
        let at_new = self.write(head.at, instructions)?;
        self.found.push(Found {
            start,
            from: u32::try_from(at).ok()?,
            len: u32::try_from(length).unwrap_or(u32::MAX),
            at: at_new,
        });
        Some(())
    }

    fn word(&self, at: usize) -> Option<usize> {
        let bytes = self.bytes.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
    }

    /// The content of an entry behind its length.
    fn entry(&self, at: usize) -> Option<&'a [u8]> {
        let (length, begin) = (self.word(at)?, at.checked_add(4)?);
        self.bytes.get(begin..begin.checked_add(length)?)
    }

    /// The number of the head at `at`, read and written when it is met for the first time.
    fn head<S: UnwindSection<Slice<'a>>>(
        &mut self,
        section: &S,
        bases: &BaseAddresses,
        at: usize,
    ) -> Option<usize> {
        // Neighbours mostly share theirs.
        if let Some((last, known)) = self.last_head
            && last == at
        {
            return known;
        }
        if let Some(&known) = self.heads_read.get(&at) {
            self.last_head = Some((at, known));
            return known;
        }
        let head = self.new_head(section, bases, at).map(|head| {
            self.heads.push(head);
            self.heads.len() - 1
        });
        self.heads_read.insert(at, head);
        head
    }

    fn new_head<S: UnwindSection<Slice<'a>>>(
        &mut self,
        section: &S,
        bases: &BaseAddresses,
        at: usize,
    ) -> Option<Head<'a>> {
        self.word(at).filter(|&length| length <= HEAD_BYTES_MAX)?;
        let entry = section.cie_from_offset(bases, S::Offset::from(at)).ok()?;
        let RawHead {
            has_data,
            pointer,
            instructions,
        } = raw_head(self.entry(at)?)?;
        if names_an_address(instructions) {
            return None;
        }
        let mut content = vec![0, 0, 0, 0, 1];
        content.extend_from_slice(match entry.is_signal_trampoline() {
            true => b"zRS\0",
            false => b"zR\0",
        });
        put_unsigned(&mut content, entry.code_alignment_factor());
        put_signed(&mut content, entry.data_alignment_factor());
        content.push(u8::try_from(entry.return_address_register().0).ok()?);
        // One byte of data: addresses are written as LEB128.
        content.extend_from_slice(&[1, gimli::DW_EH_PE_uleb128.0]);
        content.extend_from_slice(instructions);
        let at = match self.heads_written.get(&content) {
            Some(&at) => at,
            None => {
                let at = self.put_entry(&content)?;
                self.heads_written.insert(content, at);
                at
            }
        };
        Some(Head {
            entry,
            at,
            has_data,
            pointer,
        })
    }

    /// Writes a description, once. The place where it is.
    fn write(&mut self, head: u32, instructions: &'a [u8]) -> Option<u32> {
        if let Some(&at) = self.written.get(&(head, instructions)) {
            return Some(at);
        }
        let back = u32::try_from(self.section.len() + 4).ok()? - head;
        let mut content = back.to_le_bytes().to_vec();
        // From zero to the largest address, and no data.
        content.extend_from_slice(&[0, 0xff, 0xff, 0xff, 0xff, 0x0f, 0]);
        content.extend_from_slice(instructions);
        let at = self.put_entry(&content)?;
        self.written.insert((head, instructions), at);
        Some(at)
    }

    fn put_entry(&mut self, content: &[u8]) -> Option<u32> {
        if self.section.len() + content.len() + 4 >= SECTION_BYTES_MAX {
            return None;
        }
        let at = u32::try_from(self.section.len()).ok()?;
        let length = u32::try_from(content.len()).ok()?;
        self.section.extend_from_slice(&length.to_le_bytes());
        self.section.extend_from_slice(content);
        Some(at)
    }
}

/// The index: each function from its begin to its end or to the begin of the next.
fn index(mut found: Vec<Found>) -> Vec<Entry> {
    found.sort_unstable();
    let mut index = Vec::with_capacity(found.len());
    for (number, function) in found.iter().enumerate() {
        let next = found.get(number + 1).map_or(u32::MAX, |next| next.start);
        if next == function.start {
            continue;
        }
        let Found { start, at, .. } = *function;
        let end = start.saturating_add(function.len).min(next);
        let gap = match next - end {
            gap if gap >> GAP_BITS == 0 && next != u32::MAX => gap,
            _ => 0,
        };
        let place = at << GAP_BITS | gap;
        index.push(Entry { start, place });
        if end + gap < next || next == u32::MAX {
            let place = Entry::NOTHING;
            index.push(Entry { start: end, place });
        }
    }
    index.shrink_to_fit();
    index
}

struct RawHead<'a> {
    has_data: bool,
    pointer: u8,
    instructions: &'a [u8],
}

/// What gimli does not tell of a head: where its instructions are, and how addresses are written.
/// `content` begins behind the length.
fn raw_head(content: &[u8]) -> Option<RawHead<'_>> {
    let mut rest = Slice::new(content, LittleEndian);
    let _id = rest.read_u32().ok()?;
    let version = rest.read_u8().ok()?;
    let augmentation = rest.read_null_terminated_slice().ok()?;
    if version >= 4 {
        let (_address_size, _segment_size) = (rest.read_u8().ok()?, rest.read_u8().ok()?);
    }
    let (_code, _data) = (rest.read_uleb128().ok()?, rest.read_sleb128().ok()?);
    match version {
        1 => drop(rest.read_u8().ok()?),
        _ => drop(rest.read_uleb128().ok()?),
    }
    let mut pointer = gimli::DW_EH_PE_absptr.0;
    let letters = augmentation.slice().strip_prefix(b"z");
    if let Some(letters) = letters {
        let length = rest.read_uleb128().ok()?;
        let mut data = rest.split(usize::try_from(length).ok()?).ok()?;
        for letter in letters {
            match letter {
                b'R' => pointer = data.read_u8().ok()?,
                b'L' => drop(data.read_u8().ok()?),
                b'P' => {
                    let personality = data.read_u8().ok()?;
                    skip_pointer(&mut data, personality)?;
                }
                b'S' | b'B' => {}
                _ => return None,
            }
        }
    } else if !matches!(augmentation.slice(), b"" | b"S") {
        return None;
    }
    Some(RawHead {
        has_data: letters.is_some(),
        pointer,
        instructions: rest.slice(),
    })
}

/// Begin and length of a function where they are written as every linker writes them: four bytes each,
/// the begin relative to its own place. `None` otherwise. `content` begins behind the length.
fn usual_range(content: &[u8], section: u64, at: usize, pointer: u8) -> Option<(u64, u64)> {
    if pointer != gimli::DW_EH_PE_pcrel.0 | gimli::DW_EH_PE_sdata4.0 {
        return None;
    }
    let word = |at: usize| Some(i32::from_le_bytes(*content.get(at..)?.first_chunk()?));
    let place = section.wrapping_add(at as u64 + 8);
    let begin = place.wrapping_add(i64::from(word(4)?) as u64);
    Some((begin, u64::try_from(word(8)?).ok()?))
}

/// The instructions of a function's entry; `content` begins behind the length.
fn instructions<'a>(content: &'a [u8], head: &Head<'_>) -> Option<&'a [u8]> {
    let mut rest = Slice::new(content, LittleEndian);
    let _head = rest.read_u32().ok()?;
    for _ in ["begin", "length"] {
        skip_pointer(&mut rest, head.pointer)?;
    }
    if head.has_data {
        let length = rest.read_uleb128().ok()?;
        rest.skip(usize::try_from(length).ok()?).ok()?;
    }
    Some(rest.slice())
}

/// Passes an address written as `encoding` (LSB, exception frames) says.
fn skip_pointer(rest: &mut Slice<'_>, encoding: u8) -> Option<()> {
    let aligned = encoding & 0x70 == 0x50;
    let length = match encoding & 0x0f {
        _ if aligned => return None,
        0x00 | 0x04 | 0x0c => 8,
        0x02 | 0x0a => 2,
        0x03 | 0x0b => 4,
        0x01 | 0x09 => return rest.read_uleb128().ok().map(drop),
        _ => return None,
    };
    rest.skip(length).ok()
}

/// What the operands of a call frame instruction are (DWARF 5, 7.24).
enum Operands {
    Bytes(usize),
    Numbers(usize),
    /// So many numbers, then a length and as many bytes.
    Block(usize),
}

/// True where an instruction names an address: it would be another one here, and compilers write none.
fn names_an_address(instructions: &[u8]) -> bool {
    use Operands::{Block, Bytes, Numbers};
    const SET_LOCATION: u8 = 0x01;
    // Most have nothing that looks like it.
    if !instructions.contains(&SET_LOCATION) {
        return false;
    }
    let mut rest = Slice::new(instructions, LittleEndian);
    while let Ok(code) = rest.read_u8() {
        let operands = match code {
            0x40..0x80 | 0xc0.. | 0x00 | 0x0a | 0x0b | 0x2d => Bytes(0),
            0x80..0xc0 | 0x06..=0x08 | 0x0d | 0x0e | 0x13 | 0x2e => Numbers(1),
            SET_LOCATION => return true,
            0x02 => Bytes(1),
            0x03 => Bytes(2),
            0x04 => Bytes(4),
            0x05 | 0x09 | 0x0c | 0x11 | 0x12 | 0x14 | 0x15 => Numbers(2),
            0x0f => Block(0),
            0x10 | 0x16 => Block(1),
            // Whoever evaluates it stops here.
            _ => return false,
        };
        let numbers = |rest: &mut Slice<'_>, count| (0..count).all(|_| rest.skip_leb128().is_ok());
        let whole = match operands {
            Bytes(count) => rest.skip(count).is_ok(),
            Numbers(count) => numbers(&mut rest, count),
            Block(count) => {
                let length = numbers(&mut rest, count)
                    .then(|| rest.read_uleb128().ok())
                    .flatten();
                let length = length.and_then(|length| usize::try_from(length).ok());
                length.is_some_and(|length| rest.skip(length).is_ok())
            }
        };
        if !whole {
            return false;
        }
    }
    false
}

fn put_unsigned(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

fn put_signed(to: &mut Vec<u8>, mut value: i64) {
    while !(-0x40..0x40).contains(&value) {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8 & 0x7f);
}

#[cfg(test)]
mod tests {
    use super::super::rule::Rule;
    use super::super::table::{RowContext, RowFacts, Table};
    use super::*;
    use crate::symbolize::elf::{self, ReadAt};
    use std::fs::File;

    /// Every row of every function of a program, from the section as it is in the file.
    #[test]
    fn every_row_of_a_program_leads_to_the_same_rule_as_before() {
        let program = std::env::current_exe().expect("a program");
        let image = File::open(program).expect("the program's file");
        let headers = elf::read_headers(&image).expect("headers");
        let found = headers.section(b".eh_frame").expect("unwind information");
        let mut bytes = vec![0; found.size as usize];
        image.read_exact_at(&mut bytes, found.offset).expect("read");
        let bases = Bases {
            section: found.address,
            ..Bases::default()
        };
        let table = Table::new(Dialect::Eh, &bytes, None, bases).expect("functions");
        let mut section = EhFrame::new(&bytes, LittleEndian);
        section.set_address_size(8);
        let at = BaseAddresses::default().set_eh_frame(found.address);
        let (mut checked, mut context, mut other) = (0, RowContext::new_in(), RowContext::new_in());
        let mut entries = section.entries(&at);
        while let Ok(Some(entry)) = entries.next() {
            let CieOrFde::Fde(partial) = entry else {
                continue;
            };
            let function = partial.parse(EhFrame::cie_from_offset).expect("a function");
            let mut rows = function.rows(&section, &at, &mut context).expect("rows");
            while let Ok(Some(row)) = rows.next_row() {
                let facts = RowFacts {
                    signal: function.is_signal_trampoline(),
                    return_register: function.cie().return_address_register().0,
                    section: &bytes,
                };
                let address = row.start_address();
                let expected = Rule::of_row(row, facts, address);
                let kept = table.with_row(address, &mut other, |row, facts| {
                    Rule::of_row(row, facts, address)
                });
                assert_eq!(kept, Some(expected), "at {address:#x}");
                checked += 1;
            }
            let end = function.end_address();
            if !table.begins_at(end) {
                assert_eq!(table.with_row(end, &mut other, |_, _| ()), None);
            }
        }
        assert!(checked > 10_000, "{checked} rows");
        assert!(
            table.heap_bytes() * 3 < bytes.len() * 2,
            "{} of {} bytes",
            table.heap_bytes(),
            bytes.len()
        );
    }

    /// An `.eh_frame` whose head has so many bytes of instructions that `functions` share.
    fn shared_head(head_bytes: usize, functions: u32) -> Vec<u8> {
        let entry = |content: &[u8]| [&(content.len() as u32).to_le_bytes(), content].concat();
        // Version 1, no augmentation, factors 1 and -8, return address in 16; CFA rsp + 8.
        let head = [0, 0, 0, 0, 1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1];
        // "The CFA is at rsp + 16", again and again.
        let instructions = [0x0e, 16].repeat(head_bytes / 2);
        let mut bytes = entry(&[&head[..], &instructions].concat());
        for number in 0..functions {
            let back = bytes.len() as u32 + 4;
            let start = 0x1000 + u64::from(number) * 64;
            let function = [
                &back.to_le_bytes()[..],
                &start.to_le_bytes(),
                &64u64.to_le_bytes(),
            ];
            bytes.extend(entry(&function.concat()));
        }
        bytes
    }

    /// Bytes of instructions, heads included, that all lookups of `functions` together evaluate.
    fn evaluated(head_bytes: usize, functions: u32) -> usize {
        let bytes = shared_head(head_bytes, functions);
        let packed = pack(Dialect::Eh, &bytes, None, &Bases::default());
        let word = |at: usize| {
            let bytes = packed.section[at..at + 4].try_into().expect("four bytes");
            u32::from_le_bytes(bytes) as usize
        };
        let described = packed.index.iter().filter_map(|entry| entry.at());
        let evaluated = described.map(|at| word(at) + word(at + 4 - word(at + 4)));
        evaluated.sum()
    }

    #[test]
    fn a_head_of_megabytes_is_evaluated_for_none_of_its_functions() {
        assert_eq!(evaluated(15 << 20, 1000), 0);
        let bearable = evaluated(HEAD_BYTES_MAX - 100, 1000);
        assert!(
            (1..=1000 * (HEAD_BYTES_MAX + 100)).contains(&bearable),
            "{bearable}"
        );
    }

    #[test]
    fn a_head_is_kept_once_and_functions_described_alike_once() {
        let bytes = shared_head(2000, 1000);
        let packed = pack(Dialect::Eh, &bytes, None, &Bases::default());
        assert!(packed.section.len() < 2100, "{}", packed.section.len());
        // The functions lie side by side: nothing but their begins, and the end of the last.
        assert_eq!(packed.index.len(), 1001);
    }

    #[test]
    fn what_names_an_address_is_not_taken_and_what_looks_like_it_is() {
        let check = |instructions: &[u8], expected| {
            assert_eq!(names_an_address(instructions), expected, "{instructions:?}");
        };
        check(&[0x41, 0x01, 0, 0, 0, 0, 0, 0, 0, 0], true);
        check(&[0x0f, 2, 0x77, 1, 0x01, 0, 0, 0, 0], true);
        // One byte further; the return address in its usual place; an expression.
        check(&[0x02, 1, 0x0e, 16], false);
        check(&[0x90, 1, 0x41, 0x0e, 1], false);
        check(&[0x10, 6, 2, 0x77, 1, 0x0a], false);
        // What is cut off or unknown is left to whoever evaluates it.
        check(&[0x41, 0x0f, 200, 1], false);
        check(&[0x3f, 1], false);
    }
}
