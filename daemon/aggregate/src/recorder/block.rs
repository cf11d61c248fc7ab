//! Sample rows packed for storage: sorted by key, delta and varint encoded, read in one pass.
//!
//! A row is one varint `stack delta << 2 | extra << 1 | new labels`, then, where the flags say so,
//! the label set's delta and a byte `end << 1 | explicit weight`, then the count and, when it is
//! not count × period, the weight. With new labels the stack counts from zero again. A row of a
//! busy window takes 2 to 4 bytes instead of the 32 it takes in memory.

use super::varint;
use profile::{LabelSetId, SampleKey, StackEnd, StackId, Value};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A key and its value.
pub type Row = (SampleKey, Value);

const NEW_LABELS: u64 = 1;
const EXTRA: u64 = 2;

/// Encoded rows. Keys are strictly ascending.
#[derive(Debug, Default)]
pub(super) struct Block {
    bytes: Box<[u8]>,
    rows: u32,
    /// Weights equal to count × this are left out.
    period: u64,
}

impl Block {
    /// Encodes rows in ascending key order; neighbours of equal key are added up.
    pub(super) fn encode(sorted: impl IntoIterator<Item = Row>, period: u64) -> Block {
        let mut writer = Writer {
            bytes: Vec::new(),
            rows: 0,
            period,
            labels: 0,
            stack: 0,
        };
        let mut rows = sorted.into_iter();
        if let Some(mut held) = rows.next() {
            for row in rows {
                debug_assert!(row.0 >= held.0);
                if row.0 == held.0 {
                    held.1 += row.1;
                } else {
                    writer.put(held);
                    held = row;
                }
            }
            writer.put(held);
        }
        Block {
            bytes: writer.bytes.into_boxed_slice(),
            rows: writer.rows,
            period,
        }
    }

    /// Sorts `rows` by key and encodes them.
    pub(super) fn seal(rows: &mut [Row], period: u64) -> Block {
        rows.sort_unstable_by_key(|row| row.0);
        Block::encode(rows.iter().copied(), period)
    }

    /// Adds up blocks of one dictionary.
    pub(super) fn merge<'a>(blocks: impl Iterator<Item = &'a Block>, period: u64) -> Block {
        let mut sources: Vec<Rows<'a>> = blocks.map(Block::iter).collect();
        let mut heads: BinaryHeap<Reverse<(SampleKey, usize)>> = BinaryHeap::new();
        let mut values = vec![Value::default(); sources.len()];
        for (at, source) in sources.iter_mut().enumerate() {
            if let Some((key, value)) = source.next() {
                values[at] = value;
                heads.push(Reverse((key, at)));
            }
        }
        let merged = std::iter::from_fn(|| {
            let mut head = heads.peek_mut()?;
            let Reverse((key, at)) = *head;
            let value = values[at];
            match sources[at].next() {
                Some((next, value)) => {
                    values[at] = value;
                    *head = Reverse((next, at));
                }
                None => {
                    std::collections::binary_heap::PeekMut::pop(head);
                }
            }
            Some((key, value))
        });
        Block::encode(merged, period)
    }

    /// The rows in key order.
    pub(super) fn iter(&self) -> Rows<'_> {
        Rows {
            rest: &self.bytes,
            period: self.period,
            labels: 0,
            stack: 0,
        }
    }

    /// The key of each row, by its place.
    pub(super) fn keys(&self) -> Vec<SampleKey> {
        self.iter().map(|(key, _)| key).collect()
    }

    /// Number of rows.
    pub(super) fn rows(&self) -> usize {
        self.rows as usize
    }

    /// The period weights are encoded against.
    pub(super) fn period(&self) -> u64 {
        self.period
    }

    /// Heap memory held, in bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        self.bytes.len()
    }
}

struct Writer {
    bytes: Vec<u8>,
    rows: u32,
    period: u64,
    labels: u32,
    stack: u32,
}

impl Writer {
    fn put(&mut self, (key, value): Row) {
        let new_labels = key.labels.0 != self.labels;
        let base = if new_labels { 0 } else { self.stack };
        let explicit = value.weight != value.count.wrapping_mul(self.period);
        let extra = explicit || key.end != StackEnd::Complete;
        let mut head = u64::from(key.stack.0.wrapping_sub(base)) << 2;
        head |= if new_labels { NEW_LABELS } else { 0 } | if extra { EXTRA } else { 0 };
        varint::put(&mut self.bytes, head);
        if new_labels {
            varint::put(
                &mut self.bytes,
                u64::from(key.labels.0.wrapping_sub(self.labels)),
            );
        }
        if extra {
            self.bytes.push((key.end as u8) << 1 | u8::from(explicit));
        }
        varint::put(&mut self.bytes, value.count);
        if explicit {
            varint::put(&mut self.bytes, value.weight);
        }
        (self.labels, self.stack) = (key.labels.0, key.stack.0);
        self.rows = self.rows.saturating_add(1);
    }
}

/// Decodes a block, in key order.
pub(super) struct Rows<'a> {
    rest: &'a [u8],
    period: u64,
    labels: u32,
    stack: u32,
}

impl Iterator for Rows<'_> {
    type Item = Row;

    fn next(&mut self) -> Option<Row> {
        let head = varint::take(&mut self.rest)?;
        if head & NEW_LABELS != 0 {
            self.labels = self
                .labels
                .wrapping_add(varint::take(&mut self.rest)? as u32);
            self.stack = 0;
        }
        self.stack = self.stack.wrapping_add((head >> 2) as u32);
        let extra = if head & EXTRA != 0 {
            varint::take(&mut self.rest)? as u8
        } else {
            0
        };
        let count = varint::take(&mut self.rest)?;
        let weight = if extra & 1 != 0 {
            varint::take(&mut self.rest)?
        } else {
            count.wrapping_mul(self.period)
        };
        let key = SampleKey {
            labels: LabelSetId(self.labels),
            stack: StackId(self.stack),
            end: StackEnd::from_u8(extra >> 1)?,
        };
        Some((key, Value { count, weight }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn row() -> impl Strategy<Value = Row> {
        let period = 10_101_010u64;
        let id = prop_oneof![0..20u32, any::<u32>()];
        let value = prop_oneof![
            (1..200u64).prop_map(move |count| Value {
                count,
                weight: count * period
            }),
            (any::<u64>(), any::<u64>()).prop_map(|(count, weight)| Value { count, weight }),
        ];
        (id.clone(), id, 0..StackEnd::ALL.len(), value).prop_map(|(labels, stack, end, value)| {
            let (labels, stack) = (LabelSetId(labels), StackId(stack));
            (
                SampleKey {
                    labels,
                    stack,
                    end: StackEnd::ALL[end],
                },
                value,
            )
        })
    }

    fn model<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Vec<Row> {
        let mut map = BTreeMap::new();
        for &(key, value) in rows {
            *map.entry(key).or_insert_with(Value::default) += value;
        }
        map.into_iter().collect()
    }

    proptest! {
        #[test]
        fn decodes_to_what_was_sealed(rows in prop::collection::vec(row(), 0..200)) {
            let expected = model(&rows);
            let block = Block::seal(&mut rows.clone(), 10_101_010);
            prop_assert_eq!(block.rows(), expected.len());
            prop_assert_eq!(block.iter().collect::<Vec<_>>(), expected);
        }

        #[test]
        fn merges_to_the_sum(parts in prop::collection::vec(prop::collection::vec(row(), 0..50), 0..6)) {
            let expected = model(parts.iter().flatten());
            let blocks: Vec<Block> =
                parts.iter().zip(1..).map(|(rows, period)| Block::seal(&mut rows.clone(), period)).collect();
            let merged = Block::merge(blocks.iter(), 10_101_010);
            prop_assert_eq!(merged.iter().collect::<Vec<_>>(), expected);
        }
    }
}
