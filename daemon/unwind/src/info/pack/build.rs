//! Combines the rows of a file's functions: stores each kind and each list of rows once, and where
//! functions start and end. The readers of the formats hand over functions in any order.

use super::{GAP_BITS, PackedEntry};
use crate::info::row_words::WIDE;
use crate::info::rule::{Expressions, Kind};
use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;
use symbolize::budget::{Charge, Over};

/// Most memory of the rows of a file that are computed for each frame. Unit: bytes. Of 400 programs
/// and libraries of Debian 12 libmvec has most: 96 rows, 16 KiB; node has 30, libcrypto 21, libc 5,
/// LLVM, rustc and programs in Go none. Files over it have no unwind information.
const COMPUTED_BYTES_MAX: usize = 1 << 20;

/// Most words of rows. Unit: words of two bytes. More than the budget of a file has room for.
const WORDS_MAX: usize = (1 << (u32::BITS - GAP_BITS)) - 1;

/// Data read from a file.
#[derive(Debug, Default)]
pub struct Packed {
    /// Where functions start, in order of address, and where nothing is described.
    pub index: Vec<PackedEntry>,
    /// The rows of all descriptions; see `table.rs`.
    pub rows: Vec<u16>,
    /// Kinds of rows.
    pub kinds: Vec<Kind>,
    /// Additional memory of kinds. Unit: bytes.
    kinds_bytes: usize,
    /// The expressions of kinds.
    pub expressions: Expressions,
}

impl Packed {
    /// Memory held. Unit: bytes.
    fn heap_bytes(&self) -> usize {
        self.rows.len() * 2
            + self.kinds.len() * size_of::<Kind>()
            + self.kinds_bytes
            + self.expressions.bytes.len()
            + self.index.len() * size_of::<PackedEntry>()
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

/// See the file.
pub struct Builder {
    packed: Packed,
    hasher: DefaultHashBuilder,
    /// Places of rows, found again by content.
    kept: HashTable<u32>,
    /// Numbers of kinds, found again by content.
    kinds_known: HashTable<u16>,
    found: Vec<Found>,
    words: Vec<u16>,
}

impl Builder {
    /// Creates it without functions.
    pub fn new() -> Builder {
        let packed = Packed {
            // Kind 0: nothing is described.
            kinds: vec![Kind::Nothing],
            ..Packed::default()
        };
        Builder {
            packed,
            hasher: DefaultHashBuilder::default(),
            kept: HashTable::new(),
            kinds_known: HashTable::new(),
            found: Vec::new(),
            words: Vec::new(),
        }
    }

    /// The hasher for deduplication by content.
    pub fn hasher(&self) -> &DefaultHashBuilder {
        &self.hasher
    }

    /// The expressions of rows.
    pub fn expressions(&mut self) -> &mut Expressions {
        &mut self.packed.expressions
    }

    /// Number of functions.
    pub fn len(&self) -> usize {
        self.found.len()
    }

    /// Memory held. Unit: bytes.
    pub fn heap_bytes(&self) -> usize {
        // Tables of hashes are twice in memory, for a moment, when they grow.
        let tables = self.packed.expressions.tables_bytes()
            + self.kept.allocation_size()
            + self.kinds_known.allocation_size();
        let found = self.found.len() * size_of::<Found>();
        tables + tables / 2 + found + self.packed.heap_bytes()
    }

    /// The number of a kind, kept when it is met for the first time. There are more than fit the
    /// numbers in no file that a compiler wrote: nothing is described then.
    ///
    /// # Errors
    /// When the kinds take more memory than those of one file may.
    pub fn number(&mut self, kind: Kind) -> Result<u16, Over> {
        if kind == Kind::Nothing {
            return Ok(0);
        }
        let (known, hasher) = (&mut self.kinds_known, &self.hasher);
        let packed = &mut self.packed;
        let kinds = &mut packed.kinds;
        let hash = hasher.hash_one(&kind);
        if let Some(&number) = known.find(hash, |&at| kinds.get(usize::from(at)) == Some(&kind)) {
            return Ok(number);
        }
        let Ok(number) = u16::try_from(kinds.len()) else {
            return Ok(0);
        };
        packed.kinds_bytes += kind.heap_bytes();
        if packed.kinds_bytes > COMPUTED_BYTES_MAX {
            return Err(Over::Memory);
        }
        kinds.push(kind);
        let hash_of = |&at: &u16| hasher.hash_one(&kinds[usize::from(at)]);
        known.insert_unique(hash, number, hash_of);
        Ok(number)
    }

    /// Keeps rows, as (offset, number of a kind), once. Where they are; `None` when they do not
    /// start at the start of their function or there is no more room. At most
    /// [`ROWS_MAX`](crate::info::row_words::ROWS_MAX).
    pub fn keep(&mut self, rows: &[(u32, u16)]) -> Option<u32> {
        let Some(&(0, _)) = rows.first() else {
            return None;
        };
        let wide = rows.iter().any(|&(offset, _)| offset > u32::from(u16::MAX));
        self.words.clear();
        self.words
            .push(rows.len() as u16 | if wide { WIDE } else { 0 });
        for &(offset, kind) in rows {
            self.words.push(offset as u16);
            if wide {
                self.words.push((offset >> 16) as u16);
            }
            self.words.push(kind);
        }
        self.keep_words()
    }

    fn keep_words(&mut self) -> Option<u32> {
        let Builder {
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

    /// Adds a function: its start less the base of the table, its length, and where its rows are.
    pub fn add(&mut self, start: u32, len: u32, rows: u32) {
        self.found.push(Found { start, rows, len });
    }

    /// All of it, with the index; what it takes is charged and kept.
    ///
    /// # Errors
    /// When that is more than the budget has left.
    pub fn finish(self, mut charge: Charge<'_>) -> Result<Packed, Over> {
        // What is not needed for the index makes room for it.
        let Builder {
            mut found,
            mut packed,
            ..
        } = self;
        packed.rows.shrink_to_fit();
        packed.kinds.shrink_to_fit();
        let kept = packed.heap_bytes();
        let found_bytes = found.len() * size_of::<Found>();
        let len = entries_of_index(&mut found);
        charge.set(kept + found_bytes + len * size_of::<PackedEntry>())?;
        packed.index = index(&found, len);
        charge.set(kept + len * size_of::<PackedEntry>())?;
        charge.keep();
        Ok(packed)
    }
}

/// Adds a row behind those there are. One that starts where the last does is in its place:
/// advancing by nothing is allowed.
pub fn put(rows: &mut Vec<(u32, u16)>, start: u32, kind: u16) {
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
fn index(found: &[Found], len: usize) -> Vec<PackedEntry> {
    let mut index = Vec::with_capacity(len);
    each_of_index(found, |entry| index.push(entry));
    index
}

fn each_of_index(found: &[Found], mut each: impl FnMut(PackedEntry)) {
    for (number, function) in found.iter().enumerate() {
        let next = found.get(number + 1).map_or(u32::MAX, |next| next.start);
        let Found { start, rows, len } = *function;
        let end = start.saturating_add(len).min(next);
        let gap = match next - end {
            gap if gap >> GAP_BITS == 0 && next != u32::MAX => gap,
            _ => 0,
        };
        let place = rows << GAP_BITS | gap;
        each(PackedEntry { start, place });
        if end + gap < next || next == u32::MAX {
            let place = PackedEntry::NOTHING;
            each(PackedEntry { start: end, place });
        }
    }
}
