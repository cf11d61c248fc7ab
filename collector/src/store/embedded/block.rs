//! Columns of samples: packed rows of one window, and blocks of many windows.
//!
//! A block holds the samples of one bundle of series in one chunk of time. It has two sections:
//!
//! - totals: for each series its stacks, ascending, and their sums over the block. Reading a
//!   complete chunk needs nothing else, so a block is its own coarsest rollup;
//! - times: when the windows started, and for each stack in which of them it was and how often.
//!   What the last of them has follows from the total and is not written.
//!
//! A weight is written as its difference from count × period; nothing is written if that is zero
//! throughout. All arithmetic on columns wraps; sums that saturated are marked and written in full.

mod packed;
mod rows;

pub use packed::{Columns, Run, each_row, each_run, encode_rows};

use super::codec::{
    Corrupt, Reader, SectionReader, SectionWriter, encode_signed, encode_u64, len_of,
};
use super::order::order_by;
use profile::Value;

/// Most starts of windows that one block distinguishes. Further windows go into the last one: only
/// their chunk is then known.
pub const SLOTS_MAX: usize = 1 << 16;

/// Samples of one series with one stack in one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Series, or service.
    pub series: u32,
    /// Stack and how it ended.
    pub leaf: u32,
    /// What was counted.
    pub value: Value,
}

/// What a weight has beyond count × period.
fn beyond(value: Value, period: u64) -> i64 {
    value.weight.wrapping_sub(value.count.wrapping_mul(period)) as i64
}

fn weight(count: u64, beyond: i64, period: u64) -> u64 {
    count.wrapping_mul(period).wrapping_add(beyond as u64)
}

fn step(before: u32, by: u32) -> Result<u32, Corrupt> {
    before.checked_add(by).ok_or(Corrupt("an id is too large"))
}

/// What one series adds up to in one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Sum {
    /// Samples taken.
    pub taken: Value,
    /// Samples lost, an estimate.
    pub lost: Value,
}

impl std::ops::AddAssign for Sum {
    fn add_assign(&mut self, other: Sum) {
        self.taken += other.taken;
        self.lost += other.lost;
    }
}

impl Sum {
    /// Taken and lost together.
    pub fn all(self) -> Value {
        let mut all = self.taken;
        all += self.lost;
        all
    }
}

/// Appends a sum.
pub fn encode_sum(out: &mut Vec<u8>, sum: Sum, period: u64) {
    encode_u64(out, sum.taken.count);
    encode_signed(out, beyond(sum.taken, period));
    encode_u64(out, sum.lost.count);
    encode_signed(out, beyond(sum.lost, period));
}

/// Reads what [`encode_sum`] wrote.
pub fn decode_sum(input: &mut Reader<'_>, period: u64) -> Result<Sum, Corrupt> {
    let mut value = || -> Result<Value, Corrupt> {
        let count = input.decode_u64()?;
        let weight = weight(count, input.decode_signed()?, period);
        Ok(Value { count, weight })
    };
    Ok(Sum {
        taken: value()?,
        lost: value()?,
    })
}

/// A row on its way into a block.
#[derive(Clone, Copy, Debug)]
pub struct Timed {
    /// The series and what it counted.
    pub entry: Entry,
    /// Index of the window's start.
    pub slot: u16,
}

/// Orders rows for a block and adds up equal ones; `spare` is room.
pub fn sort_rows(rows: &mut Vec<Timed>, spare: &mut Vec<Timed>) {
    let key = |row: &Timed| {
        let low = u64::from(row.entry.leaf) << 16 | u64::from(row.slot);
        (row.entry.series, low)
    };
    let (mut first, mut last, mut slots) = (u32::MAX, 0, 0);
    for row in rows.iter() {
        first = first.min(row.entry.series);
        last = last.max(row.entry.series);
        slots |= row.slot;
    }
    // Series of a bundle are few and came together: all of it is one number, unless they are
    // spread.
    if last.saturating_sub(first) < 1 << 16 {
        let slot_bits = u16::BITS - slots.leading_zeros();
        // Windows mostly came in order.
        let ordered = if rows.is_sorted_by_key(|row| row.slot) {
            slot_bits
        } else {
            0
        };
        order_by(rows, spare, ordered, |row| {
            let series = u64::from(row.entry.series - first) << 32;
            (series | u64::from(row.entry.leaf)) << slot_bits | u64::from(row.slot)
        });
    } else {
        rows.sort_unstable_by_key(key);
    }
    rows.dedup_by(|later, first| {
        let same = key(later) == key(first);
        if same {
            first.entry.value += later.entry.value;
        }
        same
    });
}

/// Writes a block of rows that [`sort_rows`] ordered. `starts` has the start of each slot after the
/// start of the chunk, ascending. Unit: nanoseconds.
pub fn encode_block(
    out: &mut Vec<u8>,
    sealer: &mut SectionWriter,
    rows: &[Timed],
    starts: &[u64],
    period: u64,
) -> std::io::Result<()> {
    let same = |left: &Timed, right: &Timed| {
        (left.entry.series, left.entry.leaf) == (right.entry.series, right.entry.leaf)
    };
    let (mut totals, mut saturated, mut plain) = (Vec::new(), false, true);
    // The columns of times: in how many windows each stack was, in which, and how often.
    let (mut lens, mut steps) = (Vec::new(), Vec::new());
    let mut counts = Vec::with_capacity(rows.len());
    for run in rows.chunk_by(same) {
        let mut total = Entry {
            value: Value::default(),
            ..run[0].entry
        };
        encode_u64(&mut lens, run.len() as u64);
        let mut before = 0;
        for row in run {
            encode_u64(&mut steps, (row.slot - before).into());
            before = row.slot;
            encode_u64(&mut counts, row.entry.value.count);
            plain &= beyond(row.entry.value, period) == 0;
            total.value += row.entry.value;
        }
        plain &= beyond(total.value, period) == 0;
        // The last of them follows from the total, unless that says less.
        counts.truncate(counts.len() - len_of(run[run.len() - 1].entry.value.count));
        saturated |= total.value.count == u64::MAX || total.value.weight == u64::MAX;
        totals.push(total);
    }
    let mut raw = vec![u8::from(!plain) | u8::from(saturated) << 1];
    encode_totals(&mut raw, &totals, plain, period);
    sealer.seal(out, &raw)?;

    raw.clear();
    encode_starts(&mut raw, starts);
    raw.append(&mut lens);
    raw.append(&mut steps);
    let written = |run: usize| if saturated { run } else { run - 1 };
    if saturated {
        rows.iter()
            .for_each(|row| encode_u64(&mut raw, row.entry.value.count));
    } else {
        raw.append(&mut counts);
    }
    if !plain {
        for run in rows.chunk_by(same) {
            for row in &run[..written(run.len())] {
                encode_signed(&mut raw, beyond(row.entry.value, period));
            }
        }
    }
    sealer.seal(out, &raw)
}

fn encode_totals(raw: &mut Vec<u8>, totals: &[Entry], plain: bool, period: u64) {
    let runs = || totals.chunk_by(|left, right| left.series == right.series);
    encode_u64(raw, runs().count() as u64);
    let mut before = 0;
    for run in runs() {
        encode_u64(raw, (run[0].series - before).into());
        before = run[0].series;
        encode_u64(raw, run.len() as u64);
    }
    for run in runs() {
        let mut before = 0;
        for total in run {
            encode_u64(raw, (total.leaf - before).into());
            before = total.leaf;
        }
    }
    for total in totals {
        encode_u64(raw, total.value.count);
    }
    if !plain {
        for total in totals {
            encode_signed(raw, beyond(total.value, period));
        }
    }
}

/// Writes ascending starts of windows: most are as far from each other as those before.
pub fn encode_starts(raw: &mut Vec<u8>, starts: &[u64]) {
    encode_u64(raw, starts.len() as u64);
    let (mut before, mut distance) = (0u64, 0i64);
    for &start in starts {
        let now = start.wrapping_sub(before) as i64;
        encode_signed(raw, now.wrapping_sub(distance));
        (before, distance) = (start, now);
    }
}

/// Reads what [`encode_starts`] wrote.
pub fn decode_starts(input: &mut Reader<'_>, starts: &mut Vec<u64>) -> Result<(), Corrupt> {
    starts.clear();
    let (mut before, mut distance) = (0u64, 0i64);
    for _ in 0..input.decode_count()? {
        distance = distance.wrapping_add(input.decode_signed()?);
        before = before.wrapping_add(distance as u64);
        starts.push(before);
    }
    Ok(())
}

/// A block being read; its tables are used again for the next one.
#[derive(Default)]
pub struct Block {
    /// Series, each with the end of its part of the columns.
    pub series: Vec<(u32, usize)>,
    /// Column of stacks.
    pub leaves: Vec<u32>,
    /// Column of what they add up to.
    pub values: Vec<Value>,
    /// Column of whether they are in the part that was read at all: a row may count nothing.
    pub present: Vec<bool>,
    /// Every weight is count × period.
    pub plain: bool,
    raw: Vec<u8>,
    starts: Vec<u64>,
    lens: Vec<u32>,
    slots: Vec<u16>,
}

impl Block {
    /// Reads a block: what lies in `[from, to)` after the start of the chunk, or all of it.
    pub fn read(
        &mut self,
        opener: &mut SectionReader,
        body: &[u8],
        period: u64,
        part: Option<(u64, u64)>,
    ) -> Result<(), Corrupt> {
        let mut body = Reader::new(body);
        let mut raw = std::mem::take(&mut self.raw);
        opener.open(&mut body, &mut raw)?;
        let flags = self.read_totals(&raw, period)?;
        if let Some((from, to)) = part {
            opener.open(&mut body, &mut raw)?;
            self.read_times(&raw, flags, period, from, to)?;
        }
        self.raw = raw;
        Ok(())
    }

    fn read_totals(&mut self, raw: &[u8], period: u64) -> Result<u8, Corrupt> {
        let mut input = Reader::new(raw);
        let flags = input.decode_exact(1)?[0];
        self.plain = flags & 1 == 0;
        self.series.clear();
        self.leaves.clear();
        self.values.clear();
        self.present.clear();
        let (mut series, mut end) = (0u32, 0usize);
        for _ in 0..input.decode_count()? {
            series = step(series, input.decode_u32()?)?;
            end = end.saturating_add(input.decode_u64()? as usize);
            self.series.push((series, end));
        }
        if end > input.rest().len() {
            return Err(Corrupt("a count is beyond the end"));
        }
        let mut start = 0;
        for &(_, end) in &self.series {
            let mut leaf = 0u32;
            for _ in start..end {
                leaf = step(leaf, input.decode_u32()?)?;
                self.leaves.push(leaf);
            }
            start = end;
        }
        for _ in 0..end {
            let count = input.decode_u64()?;
            let weight = count.wrapping_mul(period);
            self.values.push(Value { count, weight });
        }
        if flags & 1 != 0 {
            for value in &mut self.values {
                value.weight = weight(value.count, input.decode_signed()?, period);
            }
        }
        self.present.resize(end, true);
        Ok(flags)
    }

    /// Reads in which windows each stack was; returns how many that are in all.
    fn read_slots(&mut self, input: &mut Reader<'_>) -> Result<usize, Corrupt> {
        self.lens.clear();
        let mut all = 0usize;
        for _ in 0..self.leaves.len() {
            let len = input.decode_u32()?;
            if len == 0 {
                return Err(Corrupt("a stack is in no window"));
            }
            all = all.saturating_add(len as usize);
            self.lens.push(len);
        }
        if all > input.rest().len() {
            return Err(Corrupt("a count is beyond the end"));
        }
        self.slots.clear();
        self.slots.reserve(all);
        let mut last = 0;
        if let Some(mut steps) = input.decode_short(all) {
            for &len in &self.lens {
                let (own, rest) = steps.split_at(len as usize);
                steps = rest;
                let mut slot = 0u16;
                self.slots.extend(own.iter().map(|&step| {
                    slot = slot.saturating_add(step.into());
                    slot
                }));
                last = last.max(slot);
            }
        } else {
            for &len in &self.lens {
                let mut slot = 0u16;
                for _ in 0..len {
                    slot = slot.saturating_add(input.decode_u16()?);
                    self.slots.push(slot);
                }
                last = last.max(slot);
            }
        }
        if all > 0 && usize::from(last) >= self.starts.len() {
            return Err(Corrupt("a window is not there"));
        }
        Ok(all)
    }

    fn read_times(
        &mut self,
        raw: &[u8],
        flags: u8,
        period: u64,
        from: u64,
        to: u64,
    ) -> Result<(), Corrupt> {
        let mut input = Reader::new(raw);
        decode_starts(&mut input, &mut self.starts)?;
        // They are ascending, so what is chosen is one span of them.
        let first = self.starts.partition_point(|&start| start < from);
        let end = self.starts.partition_point(|&start| start < to);
        let all = self.read_slots(&mut input)?;
        let (plain, saturated) = (flags & 1 == 0, flags & 2 != 0);
        let (mut slots, chosen) = (&self.slots[..], first..end);
        let is_chosen = |slot: &u16| chosen.contains(&usize::from(*slot));
        let columns = self.values.iter_mut().zip(&mut self.present);
        if plain && !saturated {
            for (&len, (value, present)) in self.lens.iter().zip(columns) {
                let (own, rest) = slots.split_at(len as usize);
                slots = rest;
                (*value, *present) = sum_of_chosen(&mut input, own, value.count, is_chosen)?
                    .map_or((Value::default(), false), |count| {
                        let weight = count.wrapping_mul(period);
                        (Value { count, weight }, true)
                    });
            }
            return Ok(());
        }
        // Counts first, weights after: two passes over the same shape.
        let mut weights = input.clone();
        if !plain {
            let written = if saturated {
                all
            } else {
                all - self.lens.len()
            };
            for _ in 0..written {
                weights.decode_u64()?;
            }
        }
        for (&len, (value, present)) in self.lens.iter().zip(columns) {
            let (own, rest) = slots.split_at(len as usize);
            slots = rest;
            let (mut left, mut sum) = (*value, Value::default());
            *present = false;
            for (nth, slot) in own.iter().enumerate() {
                let one = if nth + 1 == own.len() && !saturated {
                    left
                } else {
                    let count = input.decode_u64()?;
                    let beyond = if plain { 0 } else { weights.decode_signed()? };
                    let weight = weight(count, beyond, period);
                    Value { count, weight }
                };
                left.count = left.count.wrapping_sub(one.count);
                left.weight = left.weight.wrapping_sub(one.weight);
                if is_chosen(slot) {
                    *present = true;
                    sum += one;
                }
            }
            *value = sum;
        }
        Ok(())
    }
}

/// Reads the counts of a stack in its windows, of which the last follows from `total` and is not
/// written; the sum of those in chosen windows, when one is.
#[inline]
fn sum_of_chosen(
    input: &mut Reader<'_>,
    slots: &[u16],
    total: u64,
    is_chosen: impl Fn(&u16) -> bool,
) -> Result<Option<u64>, Corrupt> {
    let Some((last, before)) = slots.split_last() else {
        return Ok(None);
    };
    let (mut left, mut sum, mut any) = (total, 0u64, is_chosen(last));
    let mut add = |slot: &u16, count: u64| {
        left = left.wrapping_sub(count);
        any |= is_chosen(slot);
        sum = sum.wrapping_add(if is_chosen(slot) { count } else { 0 });
    };
    if let Some(counts) = input.decode_short(before.len()) {
        for (slot, &count) in before.iter().zip(counts) {
            add(slot, count.into());
        }
    } else {
        for slot in before {
            add(slot, input.decode_u64()?);
        }
    }
    if is_chosen(last) {
        sum = sum.wrapping_add(left);
    }
    Ok(any.then_some(sum))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PERIOD: u64 = 10_101_010;

    fn rows() -> impl Strategy<Value = Vec<Timed>> {
        let value = prop_oneof![
            8 => (1u64..9).prop_map(|count| Value { count, weight: count * PERIOD }),
            1 => (0u64..9, 0u64..99).prop_map(|(count, weight)| Value { count, weight }),
            1 => Just(Value { count: u64::MAX, weight: u64::MAX }),
        ];
        prop::collection::vec(
            (0u32..4, 0u32..6, 0u16..5, value).prop_map(|(series, leaf, slot, value)| Timed {
                entry: Entry {
                    series,
                    leaf,
                    value,
                },
                slot,
            }),
            0..60,
        )
    }

    proptest! {
        #[test]
        fn any_part_of_a_block_is_what_its_rows_add_up_to(mut rows in rows(), from in 0u64..50, len in 0u64..50, whole in any::<bool>()) {
            sort_rows(&mut rows, &mut Vec::new());
            let starts: Vec<u64> = (0..5).map(|slot| slot * 10 + 1).collect();
            let mut body = Vec::new();
            encode_block(&mut body, &mut SectionWriter::new().unwrap(), &rows, &starts, PERIOD).unwrap();
            let mut block = Block::default();
            let part = (!whole).then_some((from, from + len));
            block.read(&mut SectionReader::new().unwrap(), &body, PERIOD, part).unwrap();
            let mut found = std::collections::BTreeMap::new();
            let mut start = 0;
            for &(series, end) in &block.series {
                for at in start..end {
                    if block.present[at] {
                        found.insert((series, block.leaves[at]), block.values[at]);
                    }
                }
                start = end;
            }
            let mut expected = std::collections::BTreeMap::new();
            for row in &rows {
                let start = starts[usize::from(row.slot)];
                if whole || (from..from + len).contains(&start) {
                    *expected.entry((row.entry.series, row.entry.leaf)).or_insert_with(Value::default) += row.entry.value;
                }
            }
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn every_row_comes_back_with_its_time(mut rows in rows()) {
            sort_rows(&mut rows, &mut Vec::new());
            let starts: Vec<u64> = (0..5).map(|slot| slot * 10 + 1).collect();
            let mut body = Vec::new();
            encode_block(&mut body, &mut SectionWriter::new().unwrap(), &rows, &starts, PERIOD).unwrap();
            let mut back = Vec::new();
            Block::default()
                .each_moment(&mut SectionReader::new().unwrap(), &body, PERIOD, |start, entry| back.push((start, entry)))
                .unwrap();
            let rows: Vec<(u64, Entry)> = rows
                .iter()
                .map(|row| (starts[usize::from(row.slot)], row.entry))
                .collect();
            prop_assert_eq!(back, rows);
        }

        #[test]
        fn packed_rows_come_back(mut rows in rows()) {
            rows.iter_mut().for_each(|row| row.slot = 0);
            sort_rows(&mut rows, &mut Vec::new());
            let rows: Vec<Entry> = rows.into_iter().map(|row| row.entry).collect();
            let mut bytes = Vec::new();
            encode_rows(&mut bytes, &rows, PERIOD);
            let mut back = Vec::new();
            each_row(&bytes, PERIOD, |row| back.push(row)).unwrap();
            prop_assert_eq!(back, rows);
        }

        #[test]
        fn any_columns_are_read_or_refused(raw in prop::collection::vec(0u8..20, 1..80)) {
            let mut body = Vec::new();
            let mut sealer = SectionWriter::new().unwrap();
            let (totals, times) = raw.split_at(raw.len() / 2);
            sealer.seal(&mut body, totals).unwrap();
            sealer.seal(&mut body, times).unwrap();
            let _ = Block::default().read(&mut SectionReader::new().unwrap(), &body, 1, Some((0, 9)));
            let _ = Block::default().each_moment(&mut SectionReader::new().unwrap(), &body, 1, |_, _| {});
        }
    }
}
