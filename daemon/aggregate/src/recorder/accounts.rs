//! The kernel's accounting of a window, packed for storage.
//!
//! A row is three varints: the delta of the label set, the time in microseconds, and the estimated
//! part of it. Rows are ordered by label set, and each label set occurs once.

use super::varint;
use profile::{Account, LabelSetId};
use std::collections::BTreeMap;

/// Most accounts of one window. More are dropped, the smallest first: their time then counts to the
/// nearest cgroup above, so that sums stay right.
pub(super) const ROWS_MAX: usize = 16_384;

/// Largest size of a row.
pub(super) const ROW_BYTES: usize = 12;

/// Encoded accounts; empty when nothing was measured.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    bytes: Box<[u8]>,
    rows: u32,
}

impl Accounts {
    /// Encodes accounts in any order; those of the same labels are added up. At most `most` are
    /// kept.
    pub(super) fn seal(accounts: impl IntoIterator<Item = Account>, most: usize) -> Accounts {
        let mut sums: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for account in accounts {
            let sum = sums.entry(account.labels.0).or_default();
            sum.0 = sum.0.saturating_add(account.ns);
            sum.1 = sum.1.saturating_add(account.estimated_ns);
        }
        let most = most.min(ROWS_MAX);
        if sums.len() > most {
            let mut order: Vec<(u64, u32)> =
                sums.iter().map(|(&labels, sum)| (sum.0, labels)).collect();
            order.sort_unstable();
            for (_, labels) in &order[..order.len() - most] {
                sums.remove(labels);
            }
        }
        let mut bytes = Vec::with_capacity(sums.len() * 8);
        let mut last = 0;
        for (&labels, &(ns, estimated_ns)) in &sums {
            varint::put(&mut bytes, u64::from(labels - last));
            varint::put(&mut bytes, (ns + 500) / 1000);
            varint::put(&mut bytes, (estimated_ns + 500) / 1000);
            last = labels;
        }
        Accounts {
            bytes: bytes.into_boxed_slice(),
            rows: sums.len() as u32,
        }
    }

    /// The accounts in order of label sets.
    pub(super) fn iter(&self) -> impl Iterator<Item = Account> {
        let mut rest = &self.bytes[..];
        let mut labels = 0u32;
        std::iter::from_fn(move || {
            let delta = varint::take(&mut rest)?;
            labels = labels.wrapping_add(delta as u32);
            Some(Account {
                labels: LabelSetId(labels),
                ns: varint::take(&mut rest)?.saturating_mul(1000),
                estimated_ns: varint::take(&mut rest)?.saturating_mul(1000),
            })
        })
    }

    /// Number of accounts.
    pub(super) fn rows(&self) -> usize {
        self.rows as usize
    }

    /// Heap memory held, in bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn decodes_to_sums_in_microseconds(
            rows in prop::collection::vec((any::<u32>(), 0..1u64 << 50, 0..1u64 << 40), 0..50),
        ) {
            let account = |&(labels, us, estimated): &(u32, u64, u64)| Account {
                labels: LabelSetId(labels % 40),
                ns: us * 1000,
                estimated_ns: estimated * 1000,
            };
            let mut sums: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
            for row in &rows {
                let sum = sums.entry(row.0 % 40).or_default();
                *sum = (sum.0 + row.1, sum.1 + row.2);
            }
            let packed = Accounts::seal(rows.iter().map(account), ROWS_MAX);
            let expected: Vec<Account> =
                sums.into_iter().map(|(labels, sum)| account(&(labels, sum.0, sum.1))).collect();
            prop_assert_eq!(packed.rows(), expected.len());
            prop_assert_eq!(packed.iter().collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn the_smallest_go_first() {
        let account = |labels, ns| Account {
            labels: LabelSetId(labels),
            ns,
            estimated_ns: 0,
        };
        let packed = Accounts::seal([account(1, 5000), account(2, 9000), account(3, 7000)], 2);
        let kept: Vec<u32> = packed.iter().map(|account| account.labels.0).collect();
        assert_eq!(kept, [2, 3]);
    }
}
