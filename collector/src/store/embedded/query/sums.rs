//! Sums by kept labels and leaf, while a partition is read.
//!
//! Nearly all samples of a partition have one period, and weigh count × period: for those only the
//! counts are added up, in half the memory. Other samples go into additional tables, for which the
//! system allocates memory only when they are written to.

use super::super::block::Run;
use ::profile::Value;
use hashbrown::HashMap;

/// Sums that are kept in tables by id; more, by hash.
const DENSE_MAX: usize = 4 << 20;

/// Memory of the tables for each sum: a count, another value, a bit. Unit: bytes.
const DENSE_BYTES: usize = 2 * size_of::<u64>() + size_of::<u64>() + 1;

/// Sums by (kept labels, leaf).
pub enum Sums {
    Dense(Dense),
    Sparse(HashMap<(u32, u32), Value>),
}

/// Sums in tables: one row of leaves for each kept labels.
pub struct Dense {
    leaves: usize,
    /// The period of what is in `counts`.
    period: u64,
    /// Samples that weigh count × `period`.
    counts: Vec<u64>,
    /// All of `counts`.
    counted: u64,
    /// Other samples, when there are any.
    others: Option<(Vec<u64>, Vec<u64>)>,
    /// A bit a sum: a row that counts nothing was there.
    nothing: Vec<u64>,
}

impl Sums {
    /// Room for sums of so many kept labels and leaves, mostly of samples of this period.
    pub fn new(kept: usize, leaves: usize, period: u64) -> Sums {
        let size = kept.saturating_mul(leaves);
        if size > DENSE_MAX {
            return Sums::Sparse(HashMap::new());
        }
        Sums::Dense(Dense {
            leaves,
            period,
            counts: vec![0; size],
            counted: 0,
            others: None,
            nothing: vec![0; size.div_ceil(64)],
        })
    }

    /// Adds one row.
    #[inline]
    pub fn add(&mut self, kept: u32, leaf: u32, value: Value) {
        match self {
            Sums::Dense(dense) => dense.add(kept, leaf, value),
            Sums::Sparse(values) => *values.entry((kept, leaf)).or_default() += value,
        }
    }

    /// Adds rows of one series, which weigh count × `period`.
    pub fn add_counts(&mut self, kept: u32, leaves: &[u32], counts: &[u64], period: u64) {
        if let Sums::Dense(dense) = self
            && dense.add_counts(kept, (leaves, counts), period)
        {
            return;
        }
        for (&leaf, &count) in leaves.iter().zip(counts) {
            let weight = count.wrapping_mul(period);
            self.add(kept, leaf, Value { count, weight });
        }
    }

    /// Adds rows of one series in one window.
    pub fn add_run(&mut self, kept: u32, run: &Run<'_>, period: u64) {
        if run.weights.is_none() {
            return self.add_counts(kept, run.leaves, run.counts, period);
        }
        for entry in run.entries() {
            self.add(kept, entry.leaf, entry.value);
        }
    }

    /// Memory that it may take, in bytes.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Sums::Dense(dense) => dense.counts.len() * DENSE_BYTES,
            Sums::Sparse(values) => values.allocation_size(),
        }
    }

    /// Every sum of which a row was there, ordered.
    pub fn into_list(self) -> Vec<(u32, u32, Value)> {
        match self {
            Sums::Dense(dense) => dense.into_list(),
            Sums::Sparse(values) => {
                let all = values.into_iter();
                let mut all: Vec<_> = all
                    .map(|((kept, leaf), value)| (kept, leaf, value))
                    .collect();
                all.sort_unstable_by_key(|(kept, leaf, _)| (*kept, *leaf));
                all
            }
        }
    }
}

impl Dense {
    fn add(&mut self, kept: u32, leaf: u32, value: Value) {
        let at = kept as usize * self.leaves + leaf as usize;
        if leaf as usize >= self.leaves || at >= self.counts.len() {
            return;
        }
        if value == Value::default() {
            self.nothing[at / 64] |= 1 << (at % 64);
            return;
        }
        let size = self.counts.len();
        let (counts, weights) = self
            .others
            .get_or_insert_with(|| (vec![0; size], vec![0; size]));
        counts[at] = counts[at].saturating_add(value.count);
        weights[at] = weights[at].saturating_add(value.weight);
    }

    /// False, and nothing is added, when the rows are of another period, or so many samples that
    /// sums may not be exact.
    fn add_counts(&mut self, kept: u32, (leaves, counts): (&[u32], &[u64]), period: u64) -> bool {
        if period != self.period || counts.contains(&0) {
            return false;
        }
        let start = kept as usize * self.leaves;
        let Some(sums) = self.counts.get_mut(start..start + self.leaves) else {
            return false;
        };
        // Less than 2^32 numbers, each less than 2^32: their sum is exact.
        let all = counts.iter().fold(0, |all, &count| all | count);
        let sum: u64 = counts.iter().fold(0, |sum, &count| sum.wrapping_add(count));
        let counted = self.counted.checked_add(sum);
        let Some(counted) = counted
            .filter(|counted| all <= u32::MAX.into() && counted.checked_mul(period).is_some())
        else {
            return false;
        };
        self.counted = counted;
        for (&leaf, &count) in leaves.iter().zip(counts) {
            if let Some(sum) = sums.get_mut(leaf as usize) {
                *sum += count;
            }
        }
        true
    }

    fn into_list(self) -> Vec<(u32, u32, Value)> {
        let nothing = |at: usize| self.nothing[at / 64] & (1 << (at % 64)) != 0;
        let mut list = Vec::with_capacity(self.counts.iter().filter(|count| **count > 0).count());
        let rows = self.counts.chunks(self.leaves.max(1)).zip(0u32..);
        for (row, kept) in rows {
            let start = kept as usize * self.leaves;
            for (&count, leaf) in row.iter().zip(0u32..) {
                let at = start + leaf as usize;
                let mut value = Value {
                    count,
                    weight: count * self.period,
                };
                if let Some((counts, weights)) = &self.others {
                    value += Value {
                        count: counts[at],
                        weight: weights[at],
                    };
                }
                if value != Value::default() || nothing(at) {
                    list.push((kept, leaf, value));
                }
            }
        }
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const PERIOD: u64 = 10_101_010;

    fn counts() -> impl Strategy<Value = Vec<(u32, u32, u64)>> {
        let count = prop_oneof![
            9 => 0u64..9,
            1 => Just(u64::MAX),
            1 => Just(u64::MAX / PERIOD),
        ];
        prop::collection::vec((0u32..3, 0u32..70, count), 0..80)
    }

    proptest! {
        #[test]
        fn sums_are_those_of_the_rows(
            rows in counts(),
            others in counts(),
            period in prop_oneof![Just(0), Just(7), Just(PERIOD)],
        ) {
            let mut expected: BTreeMap<(u32, u32), Value> = BTreeMap::new();
            let mut sparse = Sums::Sparse(HashMap::new());
            let mut dense = Sums::new(3, 70, PERIOD);
            for (rows, period) in [(&rows, PERIOD), (&others, period)] {
                for row in rows.chunk_by(|left, right| left.0 == right.0) {
                    let leaves: Vec<u32> = row.iter().map(|row| row.1).collect();
                    let counts: Vec<u64> = row.iter().map(|row| row.2).collect();
                    for sums in [&mut sparse, &mut dense] {
                        sums.add_counts(row[0].0, &leaves, &counts, period);
                    }
                    for (&leaf, &count) in leaves.iter().zip(&counts) {
                        let weight = count.wrapping_mul(period);
                        *expected.entry((row[0].0, leaf)).or_default() += Value { count, weight };
                    }
                }
            }
            let expected: Vec<_> = expected
                .into_iter()
                .map(|((kept, leaf), value)| (kept, leaf, value))
                .collect();
            prop_assert_eq!(sparse.into_list(), expected.clone());
            prop_assert_eq!(dense.into_list(), expected);
        }

        #[test]
        fn rows_of_ids_that_are_not_there_add_nothing(kept in 0u32..4, leaf in 0u32..4) {
            let mut sums = Sums::new(2, 2, PERIOD);
            sums.add_counts(kept, &[leaf], &[3], PERIOD);
            sums.add(kept, leaf, Value { count: 1, weight: 5 });
            let is_there = kept < 2 && leaf < 2;
            prop_assert_eq!(sums.into_list().len(), usize::from(is_there));
        }
    }
}
