//! The unwind information of one section (`.eh_frame`, `.debug_frame` or Go's) as the sampler uses
//! it: which rule applies from which address on.
//!
//! All rows are computed once, by the thread that reads the file (`pack.rs`). Finding a rule takes
//! two searches in sorted arrays, whatever the file contains: long or nested descriptions cost the
//! sampler nothing. Blocks of code say where in the first array to search, because a search in all
//! of it misses the CPU's caches a dozen times. Only DWARF expressions remain to be computed for
//! each frame, bounded by the walk.

use super::pack::build::Packed;
use super::pack::{PackedEntry, pack};
use super::row_words::Rows;
use super::rule::{Kind, Rule, step_computed};
use super::section::{Bases, Dialect, SectionRange};
use super::state::{Registers, StackCopy};
use profile::StackEnd;
use std::cell::Cell;
use std::ops::Range;
use symbolize::budget::{FileBudget, Over};
use symbolize::elf::ReadAt;

/// The rows of a section. See the file.
#[derive(Debug)]
pub struct Table {
    base: u64,
    index: Box<[PackedEntry]>,
    blocks: Blocks,
    rows: Box<[u16]>,
    kinds: Box<[Kind]>,
    expressions: Box<[u8]>,
}

impl Table {
    /// The table of the section at `place` of an image. `None` when it describes nothing.
    ///
    /// # Errors
    /// When reading it takes more than `budget` has left.
    pub fn read<R: ReadAt + ?Sized>(
        dialect: Dialect,
        image: &R,
        place: SectionRange,
        bases: Bases,
        budget: &FileBudget<'_>,
    ) -> Result<Option<Table>, Over> {
        let packed = pack(dialect, image, place, bases, budget)?;
        Ok(Table::of(packed, bases.code))
    }

    /// The table of functions with addresses counted from `base`; `None` without any.
    pub fn of(packed: Packed, base: u64) -> Option<Table> {
        let Packed {
            index,
            rows,
            kinds,
            expressions,
            ..
        } = packed;
        let table = Table {
            base,
            blocks: Blocks::of(&index),
            index: index.into(),
            rows: rows.into(),
            kinds: kinds.into(),
            expressions: expressions.bytes.into(),
        };
        (!table.index.is_empty()).then_some(table)
    }

    /// The table of a section in memory.
    ///
    /// # Errors
    /// When reading it takes more than `budget` has left.
    pub fn of_bytes(
        dialect: Dialect,
        bytes: &[u8],
        bases: Bases,
        budget: &FileBudget<'_>,
    ) -> Result<Option<Table>, Over> {
        let place = SectionRange {
            offset: 0,
            len: bytes.len() as u64,
            ends_at_zero: false,
        };
        Table::read(dialect, bytes, place, bases, budget)
    }

    /// Memory held. Unit: bytes.
    pub fn heap_bytes(&self) -> usize {
        let kinds = self.kinds.iter().map(Kind::heap_bytes);
        size_of_val(&*self.index)
            + size_of_val(&*self.blocks.before)
            + size_of_val(&*self.rows)
            + size_of_val(&*self.kinds)
            + kinds.sum::<usize>()
            + self.expressions.len()
    }

    /// Number of functions that are described.
    pub fn functions(&self) -> usize {
        let described = self.index.iter().filter(|entry| entry.at().is_some());
        described.count()
    }

    /// The rule of an address (SVMA). `None` when no function that is described covers it, or its
    /// description makes no sense there.
    pub fn rule(&self, address: u64) -> Option<Rule> {
        self.kind(address)?.rule(address)
    }

    /// The caller's registers by the rule of an address that is
    /// [`Step::Computed`](super::rule::Step). `operations` is what expressions may still cost.
    /// `None` as for [`Table::rule`].
    pub fn compute(
        &self,
        address: u64,
        registers: &Registers,
        stack: &StackCopy<'_>,
        operations: &Cell<u32>,
    ) -> Option<Result<Registers, StackEnd>> {
        match self.kind(address)? {
            Kind::Computed(row) => {
                let caller = step_computed(row, &self.expressions, registers, stack, operations);
                Some(caller)
            }
            _ => None,
        }
    }

    fn kind(&self, address: u64) -> Option<&Kind> {
        let (entry, into) = self.entry(address)?;
        let kind = Rows::at(&self.rows, entry.at()?)?.find(into)?;
        self.kinds.get(usize::from(kind))
    }

    /// The entry of the function that covers an address, and how far into it that is.
    fn entry(&self, address: u64) -> Option<(&PackedEntry, u32)> {
        let relative = u32::try_from(address.checked_sub(self.base)?).ok()?;
        let within = self.blocks.range(relative, self.index.len());
        let entries = self.index.get(within.clone())?;
        let after = within.start + entries.partition_point(|entry| entry.start <= relative);
        let entry = self.index[..after].last()?;
        entry.at()?;
        // Behind the last function there is always an entry for nothing.
        let end = self.index.get(after)?.start - entry.gap();
        (relative < end).then_some((entry, relative - entry.start))
    }

    /// Where the function starts that covers an address (SVMA).
    pub fn function_start(&self, address: u64) -> Option<u64> {
        let (_, into) = self.entry(address)?;
        Some(address - u64::from(into))
    }

    /// Hands every row of every function to `each`, in order, with the addresses it is for, less
    /// the base. `None` when one makes no sense.
    pub fn rows(&self, mut each: impl FnMut(Range<u32>, Rule)) -> Option<()> {
        for pair in self.index.windows(2) {
            let [entry, next] = pair else { continue };
            let Some(at) = entry.at() else { continue };
            let end = next.start - entry.gap();
            let rows = Rows::at(&self.rows, at)?;
            for number in 0..rows.len() {
                let place = |offset: u32| entry.start.saturating_add(offset).min(end);
                let start = place(rows.offset(number));
                let until = match number + 1 < rows.len() {
                    true => place(rows.offset(number + 1)),
                    false => end,
                };
                if start < until {
                    let kind = self.kinds.get(usize::from(rows.kind(number)))?;
                    let address = self.base.wrapping_add(u64::from(start));
                    each(start..until, kind.rule(address)?);
                }
            }
        }
        Some(())
    }

    /// Hands what is described of a range of addresses (SVMA) to `each`, in order.
    pub fn described(&self, range: Range<u64>, mut each: impl FnMut(Range<u64>)) {
        let after = self
            .index
            .partition_point(|entry| self.base.saturating_add(entry.start.into()) <= range.start);
        for pair in self.index[after.saturating_sub(1)..].windows(2) {
            let [entry, next] = pair else { continue };
            let start = self.base.saturating_add(entry.start.into());
            if start >= range.end {
                break;
            }
            if entry.at().is_some() {
                let end = self.base.saturating_add((next.start - entry.gap()).into());
                each(start..end);
            }
        }
    }

    /// True when a function that is described starts at `address` (SVMA).
    pub fn begins_at(&self, address: u64) -> bool {
        let relative = address.checked_sub(self.base).map(u32::try_from);
        let Some(Ok(relative)) = relative else {
            return false;
        };
        let found = self
            .index
            .binary_search_by_key(&relative, |entry| entry.start);
        found.is_ok_and(|at| self.index[at].at().is_some())
    }
}

/// Entries of a block, on average: as many as a line of the CPU's cache has.
const ENTRIES_PER_BLOCK: usize = 8;

/// Where in the index to search, by blocks of code of equal size, each a power of two.
#[derive(Debug)]
struct Blocks {
    /// Base-2 logarithm of the size of a block.
    shift: u32,
    /// Number of entries that start before each block.
    before: Box<[u32]>,
}

impl Blocks {
    fn of(index: &[PackedEntry]) -> Blocks {
        let last = index.last().map_or(0, |entry| entry.start);
        let blocks_max = (index.len() / ENTRIES_PER_BLOCK).max(1) as u32;
        // As many blocks as that at most, but for the one that the last entry starts.
        let shift = u32::BITS - (last / blocks_max).leading_zeros();
        let blocks = last.checked_shr(shift).unwrap_or(0) + 1;
        let mut at = 0;
        let before = (0..blocks).map(|block| {
            let start = u64::from(block) << shift;
            let starts_before = |entry: &&PackedEntry| u64::from(entry.start) < start;
            at += index[at..].iter().take_while(starts_before).count();
            at as u32
        });
        Blocks {
            shift,
            before: before.collect(),
        }
    }

    /// The entries of which the first that starts behind `relative` is one, or the one after them.
    fn range(&self, relative: u32, entries: usize) -> Range<usize> {
        let block = relative.checked_shr(self.shift).unwrap_or(0) as usize;
        let before = |block: usize| self.before.get(block).map_or(entries, |&at| at as usize);
        before(block)..before(block + 1)
    }
}
