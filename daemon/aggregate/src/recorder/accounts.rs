//! The kernel's accounting of a window, packed for storage.
//!
//! A row is varints: the delta of the label set, the time in microseconds, the estimated part of
//! it, and one more than the time for which it was throttled, or 0 if that is not known. If it was
//! throttled, its limit follows. Rows are ordered by label set, and each label set occurs once.

use super::varint;
use profile::{Account, LabelSetId};
use std::collections::BTreeMap;

/// Most accounts of one window. More are dropped, the smallest first: their time then counts to the
/// nearest cgroup above, so that sums stay right.
pub(super) const ROWS_MAX: usize = 16_384;

/// Largest size of a row: of one that was throttled.
pub(super) const ROW_BYTES: usize = 20;

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
        let mut sums: BTreeMap<u32, Account> = BTreeMap::new();
        for account in accounts {
            let sum = sums.entry(account.labels.0).or_default();
            sum.ns = sum.ns.saturating_add(account.ns);
            sum.estimated_ns = sum.estimated_ns.saturating_add(account.estimated_ns);
            // What is known of a part of the time is shown rather than nothing.
            if let Some(ns) = account.throttled_ns {
                let known = sum.throttled_ns.get_or_insert(0);
                *known = known.saturating_add(ns);
            }
            sum.limit_millicores = sum.limit_millicores.max(account.limit_millicores);
        }
        let most = most.min(ROWS_MAX);
        if sums.len() > most {
            let mut order: Vec<(u64, u32)> =
                sums.iter().map(|(&labels, sum)| (sum.ns, labels)).collect();
            order.sort_unstable();
            for (_, labels) in &order[..order.len() - most] {
                sums.remove(labels);
            }
        }
        let mut bytes = Vec::with_capacity(sums.len() * 8);
        let mut last = 0;
        for (&labels, sum) in &sums {
            let us = |ns: u64| ns.saturating_add(500) / 1000;
            varint::put(&mut bytes, u64::from(labels - last));
            varint::put(&mut bytes, us(sum.ns));
            varint::put(&mut bytes, us(sum.estimated_ns));
            let throttled_us = sum.throttled_ns.map(us);
            varint::put(&mut bytes, throttled_us.map_or(0, |us| us + 1));
            if throttled_us > Some(0) {
                varint::put(&mut bytes, sum.limit_millicores);
            }
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
            let mut account = Account {
                labels: LabelSetId(labels),
                ns: varint::take(&mut rest)?.saturating_mul(1000),
                estimated_ns: varint::take(&mut rest)?.saturating_mul(1000),
                ..Account::default()
            };
            let throttled_us = varint::take(&mut rest)?.checked_sub(1);
            account.throttled_ns = throttled_us.map(|us| us.saturating_mul(1000));
            if throttled_us > Some(0) {
                account.limit_millicores = varint::take(&mut rest)?;
            }
            Some(account)
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
            rows in prop::collection::vec(
                (any::<u32>(), 0..1u64 << 50, 0..1u64 << 40, prop::option::of(0..1u64 << 40)),
                0..50,
            ),
        ) {
            let accounts = rows.iter().map(|&(labels, us, estimated, throttled)| Account {
                labels: LabelSetId(labels % 40),
                ns: us * 1000,
                estimated_ns: estimated * 1000,
                throttled_ns: throttled.map(|us| us * 1000),
                limit_millicores: throttled.map_or(0, |us| us.min(200)),
            });
            let mut sums: BTreeMap<u32, Account> = BTreeMap::new();
            for row in accounts.clone() {
                let sum = sums.entry(row.labels.0).or_default();
                *sum = Account {
                    labels: row.labels,
                    ns: sum.ns + row.ns,
                    estimated_ns: sum.estimated_ns + row.estimated_ns,
                    throttled_ns: match (sum.throttled_ns, row.throttled_ns) {
                        (Some(sum), Some(row)) => Some(sum + row),
                        (sum, row) => sum.or(row),
                    },
                    limit_millicores: sum.limit_millicores.max(row.limit_millicores),
                };
            }
            let packed = Accounts::seal(accounts, ROWS_MAX);
            let expected: Vec<Account> = sums.into_values().collect();
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
            ..Account::default()
        };
        let packed = Accounts::seal([account(1, 5000), account(2, 9000), account(3, 7000)], 2);
        let kept: Vec<u32> = packed.iter().map(|account| account.labels.0).collect();
        assert_eq!(kept, [2, 3]);
    }
}
