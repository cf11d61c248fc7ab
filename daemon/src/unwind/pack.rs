//! Reads a section of unwind information and computes all of its rows: what the sampler keeps of
//! it.
//!
//! Input is an `.eh_frame` or `.debug_frame` as a stranger wrote it, read a window at a time and in
//! the order of the file; output is where functions begin and end, and the rows of each as (offset,
//! number of a kind). Rows are relative to their function, so descriptions that differ in nothing
//! but the address are evaluated and kept once: compilers describe two functions of three like
//! another.
//!
//! Called by `fp-files`, once a file. Each entry of the section is visited once, entries cannot
//! overlap, and the budget of the file bounds what their evaluation takes. `.eh_frame_hdr` is not
//! needed: it repeats what the section says, and would let a file name one entry a million times.

mod entries;

use super::rule::{Expressions, Kind, RowFacts, kind_of_row};
use super::table::{Bases, Dialect, ROWS_MAX, WIDE};
use crate::symbolize::budget::{Charge, FileBudget, Over};
use crate::symbolize::elf::ReadAt;
use entries::{Function, Head, head_of, names_an_address, write_function};
use gimli::{
    BaseAddresses, EhFrame, EhFrameOffset, LittleEndian, UnwindContext, UnwindContextStorage,
    UnwindSection, UnwindTableRow,
};
use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use std::hash::BuildHasher;

/// Longest description of one function that is read. Unit: bytes. Real ones have some hundred, the
/// largest generated ones a few thousand; longer ones are left out.
const ENTRY_BYTES_MAX: usize = 64 << 10;

/// Longest head, shared by many functions, that is read. Unit: bytes. Real ones have some twenty.
const HEAD_BYTES_MAX: usize = 4 << 10;

/// Bytes of a section in memory at a time. An entry has to fit.
const WINDOW_BYTES: usize = 256 << 10;

/// Rows computed between two looks at the budget: some ten µs.
const ROWS_AT_ONCE: usize = 256;

/// Most functions of a section. Unit: functions. A browser has about a million. What lies behind
/// them in the section is not described.
const FUNCTIONS_MAX: usize = 4 << 20;

/// Most memory of the rows of a file that are computed for each frame. Unit: bytes. Of 400 programs
/// and libraries of Debian 12 libmvec has most: 96 rows, 16 KiB; node has 30, libcrypto 21, libc 5,
/// LLVM, rustc and programs in Go none. Files over it have no unwind information.
const COMPUTED_BYTES_MAX: usize = 1 << 20;

/// Room for rows under evaluation: 32 registers are more than x86-64 code ever describes.
#[derive(Debug)]
pub(super) struct RowStorage;

impl UnwindContextStorage<usize> for RowStorage {
    type Rules = [(gimli::Register, gimli::RegisterRule<usize>); 32];
    type Stack = Box<[UnwindTableRow<usize, RowStorage>; 8]>;
}

/// A row as it is computed.
pub(super) type Row = UnwindTableRow<usize, RowStorage>;

/// Where a section is in its image.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Where it begins. Unit: bytes.
    pub offset: u64,
    /// Its length, or the most that it can have. Unit: bytes.
    pub len: u64,
    /// It ends at the first entry of length zero: its length is not known.
    pub ends_at_zero: bool,
}

/// Where a function begins, or where nothing is described until the next begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Address less the base of the table.
    pub start: u32,
    /// Place of the rows, and below it in [`GAP_BITS`] how many bytes before the next entry the
    /// function ends: linkers align functions to 16 bytes.
    place: u32,
}

/// Bits of [`Entry::gap`].
const GAP_BITS: u32 = 4;

/// Most words of rows. Unit: words of two bytes. More than the budget of a file has room for.
const WORDS_MAX: usize = (1 << (u32::BITS - GAP_BITS)) - 1;

impl Entry {
    const NOTHING: u32 = u32::MAX;

    /// Place of the rows; `None` where nothing is described.
    pub fn at(self) -> Option<usize> {
        (self.place != Entry::NOTHING).then_some((self.place >> GAP_BITS) as usize)
    }

    /// Bytes between the end of the function and the next entry.
    pub fn gap(self) -> u32 {
        match self.place {
            Entry::NOTHING => 0,
            place => place & ((1 << GAP_BITS) - 1),
        }
    }
}

/// A section, read.
#[derive(Debug, Default)]
pub struct Packed {
    /// Where functions begin, in order of address, and where nothing is described.
    pub index: Vec<Entry>,
    /// The rows of all descriptions; see `table.rs`.
    pub rows: Vec<u16>,
    /// What rows lead to.
    pub kinds: Vec<Kind>,
    /// What kinds hold apart from themselves. Unit: bytes.
    kinds_bytes: usize,
    /// The expressions of kinds.
    pub expressions: Expressions,
}

impl Packed {
    /// The number of a kind, kept when it is met for the first time. There are more than fit the
    /// numbers in no file that a compiler wrote: nothing is described then.
    fn number(
        &mut self,
        kind: Kind,
        known: &mut HashTable<u16>,
        hasher: &DefaultHashBuilder,
    ) -> Result<u16, Over> {
        let kinds = &mut self.kinds;
        let hash = hasher.hash_one(&kind);
        if let Some(&number) = known.find(hash, |&at| kinds.get(usize::from(at)) == Some(&kind)) {
            return Ok(number);
        }
        let Ok(number) = u16::try_from(kinds.len()) else {
            return Ok(0);
        };
        self.kinds_bytes += kind.heap_bytes();
        if self.kinds_bytes > COMPUTED_BYTES_MAX {
            return Err(Over::Memory);
        }
        kinds.push(kind);
        let hash_of = |&at: &u16| hasher.hash_one(&kinds[usize::from(at)]);
        known.insert_unique(hash, number, hash_of);
        Ok(number)
    }

    /// Memory held. Unit: bytes.
    fn heap_bytes(&self) -> usize {
        self.rows.len() * 2
            + self.kinds.len() * size_of::<Kind>()
            + self.kinds_bytes
            + self.expressions.bytes.len()
            + self.index.len() * size_of::<Entry>()
    }
}

/// A function as it was found.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Found {
    start: u32,
    /// Where its rows are.
    rows: u32,
    len: u32,
}

/// The section as it lies in the image, a window at a time.
struct Window<'a, R: ?Sized> {
    image: &'a R,
    place: Place,
    bytes: Vec<u8>,
    /// Where the window starts in the section.
    at: u64,
}

impl<R: ReadAt + ?Sized> Window<'_, R> {
    /// True when these bytes of the section are in the window.
    fn has(&self, at: u64, len: usize) -> bool {
        let into = at.checked_sub(self.at);
        into.is_some_and(|into| into + len as u64 <= self.bytes.len() as u64)
    }

    /// Moves the window to a place. Bytes behind the end of the section or the image are not there.
    fn move_to(&mut self, at: u64, budget: &FileBudget<'_>) -> Result<(), Over> {
        let left = self.place.len.saturating_sub(at);
        let wanted = left.min(WINDOW_BYTES as u64) as usize;
        budget.reads(wanted)?;
        self.bytes.resize(wanted, 0);
        self.at = at;
        let offset = self.place.offset.checked_add(at);
        let read = offset.and_then(|offset| self.image.read_some_at(&mut self.bytes, offset).ok());
        self.bytes.truncate(read.unwrap_or(0));
        Ok(())
    }

    /// Bytes of the section that are in the window.
    fn get(&self, at: u64, len: usize) -> Option<&[u8]> {
        let into = usize::try_from(at.checked_sub(self.at)?).ok()?;
        self.bytes.get(into..into.checked_add(len)?)
    }

    /// Makes bytes of the section be in the window; false when there are none.
    fn bring(&mut self, at: u64, len: usize, budget: &FileBudget<'_>) -> Result<bool, Over> {
        if !self.has(at, len) {
            self.move_to(at, budget)?;
        }
        Ok(self.has(at, len))
    }
}

struct Packer<'a, 'p, R: ?Sized> {
    window: Window<'a, R>,
    bases: Bases,
    dialect: Dialect,
    budget: &'a FileBudget<'p>,
    charge: Charge<'a>,
    heads: Vec<Head>,
    heads_bytes: usize,
    /// Numbers of heads by their place; `None`: not to be had.
    heads_read: HashMap<u64, Option<u32>>,
    last_head: Option<(u64, Option<u32>)>,
    hasher: DefaultHashBuilder,
    /// Rows by the hash of their description. Two descriptions of one file may share a hash, once
    /// in some million files of a million descriptions: then a function has the rows of another.
    described: HashMap<u64, Option<u32>>,
    /// Places of rows, found again by content.
    kept: HashTable<u32>,
    /// Numbers of kinds, found again by content.
    kinds_known: HashTable<u16>,
    found: Vec<Found>,
    packed: Packed,
    context: Box<UnwindContext<usize, RowStorage>>,
    /// The entry under evaluation, behind its head.
    scratch: Vec<u8>,
    words: Vec<u16>,
    rows_computed: usize,
}

/// Reads the section at `place` of an image.
///
/// # Errors
/// When that takes more than `budget` has left.
pub fn pack<R: ReadAt + ?Sized>(
    dialect: Dialect,
    image: &R,
    place: Place,
    bases: Bases,
    budget: &FileBudget<'_>,
) -> Result<Packed, Over> {
    let packer = Packer {
        window: Window {
            image,
            place,
            bytes: Vec::new(),
            at: 0,
        },
        bases,
        dialect,
        budget,
        charge: budget.charge(WINDOW_BYTES)?,
        heads: Vec::new(),
        heads_bytes: 0,
        heads_read: HashMap::new(),
        last_head: None,
        hasher: DefaultHashBuilder::default(),
        described: HashMap::new(),
        kept: HashTable::new(),
        kinds_known: HashTable::new(),
        found: Vec::new(),
        packed: Packed::default(),
        context: Box::new(UnwindContext::new_in()),
        scratch: Vec::new(),
        words: Vec::new(),
        rows_computed: 0,
    };
    packer.pack()
}

impl<R: ReadAt + ?Sized> Packer<'_, '_, R> {
    fn pack(mut self) -> Result<Packed, Over> {
        // Kind 0: nothing is described.
        self.packed.kinds.push(Kind::Nothing);
        let (mut at, mut entries) = (0, 0usize);
        let mut accounted_at = 0;
        while self.found.len() < FUNCTIONS_MAX && self.window.bring(at, 4, self.budget)? {
            entries += 1;
            // Short entries have rows of their own, and long ones the expressions that are written
            // there.
            if entries.is_multiple_of(ROWS_AT_ONCE) || at - accounted_at >= WINDOW_BYTES as u64 {
                self.account()?;
                accounted_at = at;
            }
            let length = match self.window.get(at, 4).and_then(|word| word.first_chunk()) {
                Some(word) => u32::from_le_bytes(*word),
                None => break,
            };
            match length {
                0 if self.window.place.ends_at_zero => break,
                // Linkers put sections behind each other, each with its end.
                0 => at += 4,
                // Lengths of 64 bits begin so; no linker writes them here. What follows something
                // unreadable is not read: its start is not known.
                u32::MAX => break,
                _ => {
                    let next = at + 4 + u64::from(length);
                    if next > self.window.place.len {
                        break;
                    }
                    self.add(at, length as usize)?;
                    at = next;
                }
            }
        }
        self.account()?;
        // What is not needed for the index makes room for it.
        let Packer {
            mut found,
            mut packed,
            mut charge,
            ..
        } = self;
        packed.rows.shrink_to_fit();
        packed.kinds.shrink_to_fit();
        let kept = packed.heap_bytes();
        let found_bytes = found.len() * size_of::<Found>();
        let len = entries_of_index(&mut found);
        charge.set(kept + found_bytes + len * size_of::<Entry>())?;
        packed.index = index(&found, len);
        charge.set(kept + len * size_of::<Entry>())?;
        charge.keep();
        Ok(packed)
    }

    /// Charges what is held, and asks whether that is still within the budget.
    fn account(&mut self) -> Result<(), Over> {
        // Tables of hashes are twice in memory, for a moment, when they grow.
        let tables = self.packed.expressions.tables_bytes()
            + self.described.allocation_size()
            + self.kept.allocation_size()
            + self.heads_read.allocation_size()
            + self.kinds_known.allocation_size();
        let heads = self.heads.len() * size_of::<Head>() + self.heads_bytes;
        let found = self.found.len() * size_of::<Found>();
        let held = WINDOW_BYTES + tables + tables / 2 + heads + found + self.packed.heap_bytes();
        self.charge.set(held)?;
        self.budget.check()
    }

    /// Takes in the function described by the entry at `at`, whose content has `length` bytes.
    fn add(&mut self, at: u64, length: usize) -> Result<(), Over> {
        if length > ENTRY_BYTES_MAX || !self.window.bring(at + 4, length, self.budget)? {
            return Ok(());
        }
        let Some(content) = self.window.get(at + 4, length) else {
            return Ok(());
        };
        let Some(head_at) = head_of(self.dialect, content, at) else {
            return Ok(());
        };
        let Some(head) = self.head(head_at)? else {
            return Ok(());
        };
        let Some(content) = self.window.get(at + 4, length) else {
            return Ok(());
        };
        let Some(function) = Function::parse(content, at, &self.heads[head as usize], &self.bases)
        else {
            return Ok(());
        };
        let Function {
            begin,
            length,
            instructions,
        } = function;
        // Functions that the linker dropped are described at address zero.
        let start = begin.checked_sub(self.bases.code).map(u32::try_from);
        let (Some(Ok(start)), true) = (start, begin != 0 && length != 0) else {
            return Ok(());
        };
        let hash = self.hasher.hash_one((head, instructions));
        let rows = match self.described.get(&hash) {
            Some(&rows) => rows,
            None => {
                self.scratch.clear();
                write_function(&mut self.scratch, &self.heads[head as usize], instructions);
                let sound = !names_an_address(instructions);
                let rows = if sound { self.evaluate(head)? } else { None };
                self.described.insert(hash, rows);
                rows
            }
        };
        if let Some(rows) = rows {
            self.found.push(Found {
                start,
                rows,
                len: u32::try_from(length).unwrap_or(u32::MAX),
            });
        }
        Ok(())
    }

    /// The number of the head at `at`, read when it is met for the first time.
    fn head(&mut self, at: u64) -> Result<Option<u32>, Over> {
        // Neighbours mostly share theirs.
        if let Some((last, known)) = self.last_head
            && last == at
        {
            return Ok(known);
        }
        let known = match self.heads_read.get(&at) {
            Some(&known) => known,
            None => {
                // Each costs as much as some thousand entries that share one.
                self.account()?;
                let head = self.new_head(at)?.map(|head| {
                    self.heads_bytes += head.entry.len();
                    self.heads.push(head);
                    (self.heads.len() - 1) as u32
                });
                self.heads_read.insert(at, head);
                head
            }
        };
        self.last_head = Some((at, known));
        Ok(known)
    }

    /// Reads a head. Not through the window: its functions are there.
    fn new_head(&self, at: u64) -> Result<Option<Head>, Over> {
        let Place { offset, len, .. } = self.window.place;
        let most = len.saturating_sub(at).min((4 + HEAD_BYTES_MAX) as u64) as usize;
        self.budget.reads(most)?;
        let mut bytes = vec![0; most];
        let read = offset
            .checked_add(at)
            .and_then(|offset| self.window.image.read_some_at(&mut bytes, offset).ok());
        bytes.truncate(read.unwrap_or(0));
        let content = bytes.split_at_checked(4).and_then(|(length, rest)| {
            let length = u32::from_le_bytes(*length.first_chunk()?) as usize;
            rest.get(..length)
        });
        Ok(content.and_then(|content| Head::parse(self.dialect, content)))
    }

    /// Computes the rows of the description in `scratch`; where they are. `None` when there are
    /// none.
    fn evaluate(&mut self, head: u32) -> Result<Option<u32>, Over> {
        self.words.clear();
        let Packer {
            scratch,
            context,
            words,
            packed,
            kinds_known,
            budget,
            rows_computed,
            heads,
            hasher,
            ..
        } = self;
        let mut section = EhFrame::new(scratch, LittleEndian);
        section.set_address_size(8);
        let bases = BaseAddresses::default();
        let at = EhFrameOffset(heads[head as usize].entry.len());
        let Ok(function) = section.fde_from_offset(&bases, at, EhFrame::cie_from_offset) else {
            return Ok(None);
        };
        let facts = RowFacts {
            signal: function.is_signal_trampoline(),
            return_register: function.cie().return_address_register().0,
            section: scratch,
        };
        let Ok(mut rows) = function.rows(&section, &bases, context) else {
            return Ok(None);
        };
        let mut found: Vec<(u32, u16)> = Vec::new();
        let mut behind = 0;
        loop {
            *rows_computed += 1;
            if rows_computed.is_multiple_of(ROWS_AT_ONCE) {
                budget.check()?;
            }
            let row = match rows.next_row() {
                Ok(Some(row)) => row,
                Ok(None) => break,
                // What follows makes no sense.
                Err(_) => {
                    put(&mut found, behind, 0);
                    break;
                }
            };
            let Ok(start) = u32::try_from(row.start_address()) else {
                break;
            };
            behind = u32::try_from(row.end_address()).unwrap_or(u32::MAX);
            let kind = kind_of_row(row, facts, &mut packed.expressions);
            let number = match kind {
                Kind::Nothing => 0,
                kind => packed.number(kind, kinds_known, hasher)?,
            };
            put(&mut found, start, number);
            // There is room for one that says where the last ends.
            if found.len() >= ROWS_MAX - 1 {
                put(&mut found, behind, 0);
                break;
            }
        }
        let wide = found
            .iter()
            .any(|&(offset, _)| offset > u32::from(u16::MAX));
        let Some(&(0, _)) = found.first() else {
            return Ok(None);
        };
        words.push(found.len() as u16 | if wide { WIDE } else { 0 });
        for (offset, kind) in found {
            words.push(offset as u16);
            if wide {
                words.push((offset >> 16) as u16);
            }
            words.push(kind);
        }
        Ok(self.keep_words())
    }

    /// Keeps the rows in `words`, once.
    fn keep_words(&mut self) -> Option<u32> {
        let Packer {
            kept,
            packed,
            words,
            hasher,
            ..
        } = self;
        let rows = &mut packed.rows;
        let hash = hasher.hash_one(&*words);
        let same = |&at: &u32| rows.get(at as usize..at as usize + words.len()) == Some(words);
        if let Some(&at) = kept.find(hash, same) {
            return Some(at);
        }
        let at = rows.len();
        if at + words.len() > WORDS_MAX {
            return None;
        }
        rows.extend_from_slice(words);
        let words_at = |at: u32| {
            let first = rows.get(at as usize).copied().unwrap_or_default();
            let each = if first & WIDE != 0 { 3 } else { 2 };
            let len = 1 + usize::from(first & !WIDE) * each;
            rows.get(at as usize..at as usize + len).unwrap_or(&[])
        };
        kept.insert_unique(hash, at as u32, |&at| hasher.hash_one(words_at(at)));
        Some(at as u32)
    }
}

/// Adds a row behind those there are. One that begins where the last does is in its place:
/// advancing by nothing is allowed.
fn put(rows: &mut Vec<(u32, u16)>, start: u32, kind: u16) {
    if let Some(last) = rows.last_mut()
        && last.0 >= start
    {
        last.1 = kind;
        return;
    }
    if rows.last().is_none_or(|last| last.1 != kind) {
        rows.push((start, kind));
    }
}

/// Sorts what was found and keeps one of several at the same address: functions that the linker
/// folded are described alike. How many entries the index has.
fn entries_of_index(found: &mut Vec<Found>) -> usize {
    found.sort_unstable();
    found.dedup_by_key(|function| function.start);
    let mut len = 0;
    each_of_index(found, |_| len += 1);
    len
}

/// The index: each function from its start to its end or to the start of the next.
fn index(found: &[Found], len: usize) -> Vec<Entry> {
    let mut index = Vec::with_capacity(len);
    each_of_index(found, |entry| index.push(entry));
    index
}

fn each_of_index(found: &[Found], mut each: impl FnMut(Entry)) {
    for (number, function) in found.iter().enumerate() {
        let next = found.get(number + 1).map_or(u32::MAX, |next| next.start);
        let Found { start, rows, len } = *function;
        let end = start.saturating_add(len).min(next);
        let gap = match next - end {
            gap if gap >> GAP_BITS == 0 && next != u32::MAX => gap,
            _ => 0,
        };
        let place = rows << GAP_BITS | gap;
        each(Entry { start, place });
        if end + gap < next || next == u32::MAX {
            let place = Entry::NOTHING;
            each(Entry { start: end, place });
        }
    }
}

#[cfg(test)]
mod tests;
