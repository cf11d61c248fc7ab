//! The fleet's cgroups as one tree, rolled up as the agent does it for one host.

use crate::store::{LabelSet, LabelTotals, SAMPLE_LABELS};
use profile::{
    Coverage, Dictionary, LabelSetId, Ledger, LedgerBuilder, Profile, SampleKey, Selector,
    StackEnd, StackId, Throttling, Value,
};
use std::collections::HashMap;

/// True if the kernel's accounting is comparable to what `selector` selects.
pub(super) fn is_accountable(selector: &Selector) -> bool {
    let mut matchers = selector.matchers().iter();
    matchers.all(|matcher| !SAMPLE_LABELS.contains(&matcher.label()))
}

/// Totals by label set of what frame filters left of a profile. Nothing is expected of a part.
pub(crate) fn totals(profile: &Profile) -> Vec<LabelTotals> {
    let mut sums: HashMap<LabelSetId, (Value, Value)> = HashMap::new();
    for (key, &value) in &profile.samples {
        let (taken, lost) = sums.entry(key.labels).or_default();
        match key.end {
            StackEnd::Lost => *lost += value,
            _ => *taken += value,
        }
    }
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    let row = |(labels, (taken, lost))| LabelTotals {
        labels: LabelSet::new(profile.dict.labels(labels).map(owned)),
        taken,
        lost,
        expected_ns: 0,
        estimated_ns: 0,
        throttling: Throttling::default(),
    };
    sums.into_iter().map(row).collect()
}

/// Totals by the labels of cgroups as rows by path, parents included, and what they cover.
pub(super) fn ledger(totals: &[LabelTotals], accountable: bool) -> Ledger {
    let all = Selector::default();
    let mut dict = Dictionary::default();
    let mut builder = LedgerBuilder::new(&all);
    let sum = totals.iter().fold(Value::default(), |mut sum, row| {
        sum += row.taken;
        sum += row.lost;
        sum
    });
    for row in totals {
        let labels = dict.intern_labels(row.labels.iter());
        for (value, end) in [(row.taken, StackEnd::Complete), (row.lost, StackEnd::Lost)] {
            if value != Value::default() {
                let stack = StackId::EMPTY;
                builder.add(&dict, SampleKey { labels, stack, end }, value);
            }
        }
        if accountable {
            builder.add_alone(&dict, labels, (row.expected_ns, row.estimated_ns), sum);
            builder.add_throttling(&dict, labels, row.throttling);
        }
    }
    builder.finish()
}

/// The coverage of a ledger with window counts from the store.
pub(super) fn coverage(ledger: &Ledger, windows: u64, windows_unmeasured: u64) -> Coverage {
    Coverage {
        windows,
        windows_unmeasured,
        ..ledger.coverage()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profile::key;

    fn row(cgroup: &str, taken: u64, lost: u64, expected_ns: i64) -> LabelTotals {
        let value = |count: u64| Value {
            count,
            weight: count * 10,
        };
        LabelTotals {
            labels: LabelSet::new([(key::CGROUP.to_owned(), cgroup.to_owned())]),
            taken: value(taken),
            lost: value(lost),
            expected_ns,
            estimated_ns: 0,
            throttling: Throttling::default(),
        }
    }

    #[test]
    fn parents_have_what_is_below_them() {
        let totals = [
            row("/", 1, 0, 20),
            row("/a/b", 4, 1, 50),
            row("/a/c", 3, 0, 30),
        ];
        let ledger = ledger(&totals, true);
        let found: Vec<_> = ledger
            .rows
            .iter()
            .map(|row| {
                (
                    row.path.as_str(),
                    row.own.taken,
                    row.total.taken,
                    row.total.lost,
                    row.expected.ns,
                )
            })
            .collect();
        let expected = [
            ("/", 1, 8, 1, 100),
            ("/a", 0, 7, 1, 80),
            ("/a/b", 4, 4, 1, 50),
            ("/a/c", 3, 3, 0, 30),
        ];
        assert_eq!(found, expected);
        assert_eq!(coverage(&ledger, 5, 1).taken_ns, 80);
    }

    #[test]
    fn a_limit_is_of_its_own_cgroup_and_of_none_above() {
        let throttling = Throttling {
            ns: 90,
            used_ns: 10,
            limit_millicores: 200,
        };
        let held = LabelTotals {
            throttling,
            ..row("/a/b", 1, 0, 10)
        };
        let ledger = ledger(&[held, row("/a", 1, 0, 10)], true);
        let found: Vec<_> = ledger.rows.iter().map(|row| row.throttling).collect();
        assert_eq!(
            found,
            [Throttling::default(), Throttling::default(), throttling]
        );
        assert_eq!(throttling.share(), Some(0.9));
    }

    #[test]
    fn nothing_is_expected_of_a_part_of_the_samples() {
        assert!(is_accountable(
            &"host=\"a\",unit=~\"x.*\"".parse().expect("valid")
        ));
        assert!(!is_accountable(&"comm=\"a\"".parse().expect("valid")));
        assert_eq!(ledger(&[row("/a", 1, 0, 50)], false).rows[0].expected.ns, 0);
    }
}
