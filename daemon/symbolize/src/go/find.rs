//! Finds the tables of a Go program, whichever linker linked it and whatever was stripped from it.
//!
//! They are in a section of their own, with two exceptions: position-independent programs from
//! another linker have them somewhere in `.data.rel.ro`, and some files have no section headers.
//! There the data is searched for what looks like the start of a header. The address of the code is
//! in the header (until Go 1.25; 0 if it is written when the program is loaded) and in
//! `runtime.firstmoduledata`.

use super::functions::Function;
use super::{FUNCTIONS_MAX, GoTables, Layout, Part, u32_at, u64_at};
use crate::budget::{FileBudget, Over};
use crate::elf::{Headers, ReadAt, Segment};

/// Most bytes of data searched for the header. Unit: bytes. It is among the read-only data, which
/// is as large as the tables themselves; the largest programs have 150 MiB.
const SEARCH_BYTES_MAX: u64 = 256 << 20;

/// Bytes searched at a time.
const SEARCH_AT_ONCE: usize = 256 << 10;

/// Most places that look like a header and are tried.
const CANDIDATES_MAX: usize = 64;

/// Longest header. Unit: bytes.
const HEADER_BYTES: usize = 72;

/// Where `runtime.firstmoduledata` has the address of the code. Unit: bytes. Before it are a
/// pointer to the header, six slices and three pointers, in every version that is read.
const MODULE_TEXT: usize = 176;

/// Where it has the address that the trees of inlined calls are counted from: of Go 1.18 and 1.19,
/// and from 1.20 to 1.25. Unit: bytes. Later it moves; the trees are among the tables then, so it
/// is the first address there behind [`MODULE_REST`].
const MODULE_TREES: [usize; 2] = [304, 320];
const MODULE_REST: usize = 256;

/// Bytes of it that are looked at.
const MODULE_BYTES: usize = 368;

/// Most relocations looked at. The largest programs have some million.
const RELOCATIONS_MAX: u64 = 8 << 20;

/// Length of a relocation with addend, and how many are read at a time.
const RELOCATION_BYTES: usize = 24;
const RELOCATIONS_AT_ONCE: usize = 4096;

/// `R_X86_64_RELATIVE` and `R_AARCH64_RELATIVE`: the address is the addend. Either is nothing that
/// linkers write for the other.
const RELATIVE: [u64; 2] = [8, 1027];

/// The tables of an image; `None` when it has none that make sense.
///
/// # Errors
/// When looking takes more than `budget` has left.
pub fn find<R: ReadAt + ?Sized>(
    image: &R,
    headers: &Headers,
    budget: &FileBudget<'_>,
) -> Result<Option<GoTables>, Over> {
    if !headers.is_64 {
        return Ok(None);
    }
    for name in [&b".gopclntab"[..], b".data.rel.ro.gopclntab"] {
        let section = headers.section(name).filter(|section| !section.compressed);
        if let Some(section) = section {
            let part = Part {
                at: section.offset,
                len: section.size,
            };
            if let Some(found) = check(image, headers, part, section.address, budget)? {
                return Ok(Some(found));
            }
        }
    }
    let of_go = |name: &[u8]| name.starts_with(b".go.") || name.starts_with(b".note.go.");
    let mut sections = headers.sections.iter();
    let is_go = headers.go_note || sections.any(|section| of_go(&section.name));
    match is_go || headers.sections.is_empty() {
        true => search(image, headers, budget),
        false => Ok(None),
    }
}

/// Looks for a header in what is not code.
fn search<R: ReadAt + ?Sized>(
    image: &R,
    headers: &Headers,
    budget: &FileBudget<'_>,
) -> Result<Option<GoTables>, Over> {
    let mut candidates = 0;
    // Only the first eight bytes are looked for, and those are aligned: none lie across two pieces.
    search_data(image, headers, 0, budget, |segment, at, piece| {
        for (number, word) in piece.chunks_exact(8).enumerate() {
            if !starts_header(word) || candidates >= CANDIDATES_MAX {
                continue;
            }
            candidates += 1;
            let into = at + number as u64 * 8;
            let part = Part {
                at: segment.offset + into,
                len: segment.file_size - into,
            };
            let address = segment.address + into;
            if let Some(found) = check(image, headers, part, address, budget)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    })
}

/// Hands what is not code to `each`, a piece at a time, until that finds something: the segment,
/// where the piece starts in it, and the piece, aligned in memory as what is looked for. The last
/// `overlap` bytes of a full piece are handed over again with the next, so that what lies across
/// two pieces is complete in one. At most [`SEARCH_BYTES_MAX`] are read.
fn search_data<R: ReadAt + ?Sized, T>(
    image: &R,
    headers: &Headers,
    overlap: usize,
    budget: &FileBudget<'_>,
    mut each: impl FnMut(&Segment, u64, &[u8]) -> Result<Option<T>, Over>,
) -> Result<Option<T>, Over> {
    let _charge = budget.charge(SEARCH_AT_ONCE)?;
    let mut left = SEARCH_BYTES_MAX;
    let mut bytes = vec![0; SEARCH_AT_ONCE];
    for segment in headers.segments.iter().filter(|one| !one.executable) {
        let mut at = segment.address.wrapping_neg() % 8;
        while at < segment.file_size && left > 0 {
            let here = (segment.file_size - at)
                .min(SEARCH_AT_ONCE as u64)
                .min(left);
            budget.reads(here as usize)?;
            let read = image.read_some_at(&mut bytes[..here as usize], segment.offset + at);
            let piece = &bytes[..read.unwrap_or(0)];
            if let Some(found) = each(segment, at, piece)? {
                return Ok(Some(found));
            }
            left -= here;
            at += match here as usize {
                SEARCH_AT_ONCE => (SEARCH_AT_ONCE - overlap) as u64,
                here => here as u64,
            };
        }
    }
    Ok(None)
}

/// True for the first eight bytes of a header: a magic number, two zeros, instructions of one byte
/// and pointers of eight.
fn starts_header(bytes: &[u8]) -> bool {
    let magic = u32_at(bytes, 0).and_then(Layout::of);
    magic.is_some() && matches!(bytes.get(4..8), Some([0, 0, 1 | 4, 8]))
}

/// The tables with their header at `part`, if everything in it makes sense:
/// - it starts as [`starts_header`] says;
/// - there are functions, and not more than [`FUNCTIONS_MAX`];
/// - names, units, files, values and functions follow it in this order, within `part`;
/// - the list of functions fits;
/// - the address of the code is in a segment with code, and so are the start of the first function
///   and the end of the last;
/// - the first function that is listed says the same start itself, and has a name.
fn check<R: ReadAt + ?Sized>(
    image: &R,
    headers: &Headers,
    part: Part,
    address: u64,
    budget: &FileBudget<'_>,
) -> Result<Option<GoTables>, Over> {
    budget.reads(HEADER_BYTES)?;
    let mut header = [0; HEADER_BYTES];
    if image.read_exact_at(&mut header, part.at).is_err() {
        return Ok(None);
    }
    let Some(mut tables) = parse(&header, part, address) else {
        return Ok(None);
    };
    if tables.layout != Layout::Addresses {
        let stated = u64_at(&header, 24).unwrap_or(0);
        let text = match stated {
            0 => text_of_module(image, headers, &tables, budget)?,
            _ => Some(stated),
        };
        let Some(text) = text else { return Ok(None) };
        tables.text = text;
    }
    Ok(makes_sense(image, headers, &tables, budget)?.then_some(tables))
}

/// The tables by their header, without the address of the code.
fn parse(header: &[u8], part: Part, address: u64) -> Option<GoTables> {
    let layout = Layout::of(u32_at(header, 0)?).filter(|_| starts_header(header))?;
    let word = |number: usize| u64_at(header, 8 + number * 8);
    let (count, _file_count) = (word(0)?, word(1)?);
    let first = if layout == Layout::Addresses { 2 } else { 3 };
    // Where each part starts, and behind the last where all of it ends.
    let mut starts = [0; 6];
    for (number, start) in starts.iter_mut().take(5).enumerate() {
        *start = word(first + number)?;
    }
    starts[5] = part.len;
    let ordered = starts.windows(2).all(|pair| pair[0] <= pair[1]);
    if !ordered || starts[0] < 64 || count == 0 || count > FUNCTIONS_MAX {
        return None;
    }
    let parts = |number: usize| {
        Some(Part {
            at: part.at.checked_add(starts[number])?,
            len: starts[number + 1] - starts[number],
        })
    };
    let tables = GoTables {
        layout,
        at: part.at,
        address,
        text: 0,
        quantum: header.get(6).copied()?.into(),
        count,
        names: parts(0)?,
        units: parts(1)?,
        files: parts(2)?,
        values: parts(3)?,
        functions: parts(4)?,
    };
    (tables.list_bytes() <= tables.functions.len).then_some(tables)
}

fn makes_sense<R: ReadAt + ?Sized>(
    image: &R,
    headers: &Headers,
    tables: &GoTables,
    budget: &FileBudget<'_>,
) -> Result<bool, Over> {
    let code = |address: u64| {
        let mut code = headers.segments.iter().filter(|one| one.executable);
        code.any(|one| {
            let into = address.wrapping_sub(one.address);
            into <= one.memory_size
        })
    };
    let Some((first, end)) = tables.ends(image, budget)? else {
        return Ok(false);
    };
    if !code(tables.text.max(first)) || !code(first) || !code(end) || first >= end {
        return Ok(false);
    }
    let mut named = false;
    tables.each_of(image, 0..1, budget, |function: &Function| {
        named = function.start == first && u64::from(function.name) < tables.names.len;
        Ok::<(), Over>(())
    })?;
    Ok(named)
}

/// What the first two pointers of `runtime.firstmoduledata` lead to: the header and the names.
fn start_of_module(tables: &GoTables) -> [u64; 2] {
    let names = tables.names.at - tables.at;
    [tables.address, tables.address.wrapping_add(names)]
}

/// The address of the code, from `runtime.firstmoduledata`.
fn text_of_module<R: ReadAt + ?Sized>(
    image: &R,
    headers: &Headers,
    tables: &GoTables,
    budget: &FileBudget<'_>,
) -> Result<Option<u64>, Over> {
    let module = module(image, headers, tables, budget)?;
    Ok(module.and_then(|module| u64_at(&module, MODULE_TEXT)))
}

/// Where the trees of inlined calls are; `None` where that is not in the file.
///
/// # Errors
/// When looking takes more than `budget` has left.
pub(super) fn trees<R: ReadAt + ?Sized>(
    image: &R,
    headers: &Headers,
    tables: &GoTables,
    budget: &FileBudget<'_>,
) -> Result<Option<Part>, Over> {
    let Some(module) = module(image, headers, tables, budget)? else {
        return Ok(None);
    };
    let own = tables.functions.at - tables.at + tables.address;
    let among = |address: &u64| address.wrapping_sub(own) < tables.functions.len;
    let mut rest = (MODULE_REST..MODULE_BYTES).step_by(8);
    let address = match tables.layout {
        Layout::Addresses => None,
        Layout::Offsets => u64_at(&module, MODULE_TREES[0]),
        Layout::StartLines => {
            let found = rest.find_map(|at| u64_at(&module, at).filter(among));
            found.or_else(|| u64_at(&module, MODULE_TREES[1]))
        }
    };
    let Some(address) = address.filter(|&address| address != 0) else {
        return Ok(None);
    };
    let holds = |one: &&Segment| address.wrapping_sub(one.address) < one.file_size;
    Ok(headers.segments.iter().find(holds).map(|segment| {
        let into = address - segment.address;
        Part {
            at: segment.offset + into,
            len: segment.file_size - into,
        }
    }))
}

/// The start of `runtime.firstmoduledata`: as it is in the file, or as the relocations of the
/// program will write it, whose numbers are then 0.
fn module<R: ReadAt + ?Sized>(
    image: &R,
    headers: &Headers,
    tables: &GoTables,
    budget: &FileBudget<'_>,
) -> Result<Option<[u8; MODULE_BYTES]>, Over> {
    let wanted = start_of_module(tables);
    let is_module = |bytes: &[u8]| {
        let [header, names, text] = [0, 8, MODULE_TEXT].map(|at| u64_at(bytes, at));
        [header, names] == wanted.map(Some) && text.is_some_and(|text| text != 0)
    };
    if let Some(section) = headers.section(b".go.module") {
        let mut bytes = [0; MODULE_BYTES];
        budget.reads(bytes.len())?;
        let read = image.read_exact_at(&mut bytes, section.offset);
        if read.is_ok() && is_module(&bytes) {
            return Ok(Some(bytes));
        }
    }
    let found = search_data(image, headers, MODULE_BYTES, budget, |_, _, piece| {
        let mut places = (0..piece.len().saturating_sub(MODULE_BYTES - 1)).step_by(8);
        let found = places.find(|&into| is_module(&piece[into..]));
        Ok(found.and_then(|into| piece[into..].first_chunk().copied()))
    })?;
    match found {
        Some(found) => Ok(Some(found)),
        None => relocated_module(image, headers, wanted, budget),
    }
}

/// The same where all of it is written when the program is loaded: two passes over the relocations,
/// for where the pointers to the header are, and for what is written behind each.
fn relocated_module<R: ReadAt + ?Sized>(
    image: &R,
    headers: &Headers,
    [header, names]: [u64; 2],
    budget: &FileBudget<'_>,
) -> Result<Option<[u8; MODULE_BYTES]>, Over> {
    let Some(part) = relocations(image, headers, budget)? else {
        return Ok(None);
    };
    let mut modules: Vec<(u64, [u8; MODULE_BYTES])> = Vec::new();
    each_relocation(image, part, budget, |at, addend| {
        if addend == header && modules.len() < CANDIDATES_MAX {
            modules.push((at, [0; MODULE_BYTES]));
        }
    })?;
    if modules.is_empty() {
        return Ok(None);
    }
    each_relocation(image, part, budget, |at, addend| {
        for (module, bytes) in &mut modules {
            let into = usize::try_from(at.wrapping_sub(*module)).unwrap_or(MODULE_BYTES);
            let word = bytes.get_mut(into..).and_then(<[u8]>::first_chunk_mut);
            if let Some(word) = word {
                *word = addend.to_le_bytes();
            }
        }
    })?;
    let mut modules = modules.into_iter().map(|(_, bytes)| bytes);
    Ok(modules.find(|bytes| {
        u64_at(bytes, 8) == Some(names) && u64_at(bytes, MODULE_TEXT).is_some_and(|text| text != 0)
    }))
}

/// Where the dynamic linker's relocations are, by its own table.
fn relocations<R: ReadAt + ?Sized>(
    image: &R,
    headers: &Headers,
    budget: &FileBudget<'_>,
) -> Result<Option<Part>, Over> {
    /// `DT_RELA` and `DT_RELASZ`.
    const PLACE: u64 = 7;
    const LENGTH: u64 = 8;
    /// Entries of the table; real ones have some thirty.
    const ENTRIES_MAX: u64 = 256;
    let Some(dynamic) = headers.dynamic else {
        return Ok(None);
    };
    let mut bytes = vec![0; dynamic.file_size.min(ENTRIES_MAX * 16) as usize];
    budget.reads(bytes.len())?;
    let read = image.read_some_at(&mut bytes, dynamic.offset).unwrap_or(0);
    let value = |tag: u64| {
        let mut entries = bytes[..read].chunks_exact(16);
        let entry = entries.find(|entry| u64_at(entry, 0) == Some(tag))?;
        u64_at(entry, 8)
    };
    let (Some(address), Some(len)) = (value(PLACE), value(LENGTH)) else {
        return Ok(None);
    };
    let holds = |one: &&Segment| address.wrapping_sub(one.address) < one.file_size;
    Ok(headers.segments.iter().find(holds).map(|segment| {
        let into = address - segment.address;
        Part {
            at: segment.offset + into,
            len: len.min(segment.file_size - into),
        }
    }))
}

/// Hands place and value of each relocation that writes an address of the image to `each`.
fn each_relocation<R: ReadAt + ?Sized>(
    image: &R,
    part: Part,
    budget: &FileBudget<'_>,
    mut each: impl FnMut(u64, u64),
) -> Result<(), Over> {
    let mut bytes = vec![0; RELOCATIONS_AT_ONCE * RELOCATION_BYTES];
    let _charge = budget.charge(bytes.len())?;
    let len = part.len.min(RELOCATIONS_MAX * RELOCATION_BYTES as u64);
    let mut at = 0;
    while at < len {
        let here = (len - at).min(bytes.len() as u64) as usize;
        budget.reads(here)?;
        let read = image.read_some_at(&mut bytes[..here], part.at + at);
        let read = read.unwrap_or(0);
        for entry in bytes[..read].chunks_exact(RELOCATION_BYTES) {
            let [place, info, addend] = [0, 8, 16].map(|at| u64_at(entry, at).unwrap_or(0));
            if RELATIVE.contains(&info) {
                each(place, addend);
            }
        }
        if read < here {
            break;
        }
        at += here as u64;
    }
    Ok(())
}
