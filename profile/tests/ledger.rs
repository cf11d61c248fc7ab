//! Tests the ledger: taken and lost samples add up to the rows, and expected ones to the accounts,
//! whatever is merged and selected.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests: a panic is the failure"
)]

use profile::{
    Account, Dictionary, FrameRef, LOST_FRAME, Ledger, LedgerBuilder, OTHER_FRAME, SampleKey,
    Selector, StackEnd, StackId, Tally, Value, key,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

const PERIOD: u64 = 10_000_000;
const PATHS: [&str; 7] = ["", "/", "/a", "/a/b", "/a/b/c", "/ab", "/d/e"];

/// A window: samples by (path, comm, end, count) and accounts of subtrees by path, in samples.
#[derive(Clone, Debug)]
struct Window {
    samples: Vec<(usize, u8, usize, u64)>,
    accounts: BTreeMap<usize, u64>,
}

fn windows() -> impl Strategy<Value = Vec<Window>> {
    let sample = (0..PATHS.len(), 0..3u8, 0..StackEnd::ALL.len(), 1..500u64);
    let samples = prop::collection::vec(sample, 0..20);
    let accounts = prop::collection::btree_map(1..PATHS.len(), 0..5000u64, 0..7);
    let window = (samples, accounts).prop_map(|(samples, accounts)| Window { samples, accounts });
    prop::collection::vec(window, 0..6)
}

fn sample(dict: &mut Dictionary, path: &str, comm: u8, end: StackEnd) -> SampleKey {
    // What was lost is known by its cgroup alone.
    let comm = format!("comm-{comm}");
    let comm = (end != StackEnd::Lost).then_some((key::COMM, comm.as_str()));
    let pairs: Vec<(&str, &str)> = [(key::CGROUP, path)].into_iter().chain(comm).collect();
    let labels = dict.intern_labels(pairs);
    let function = if end == StackEnd::Lost {
        LOST_FRAME
    } else {
        "main"
    };
    let frame = dict.intern_frame(FrameRef {
        function,
        ..FrameRef::default()
    });
    let stack = dict.stacks.child(StackId::EMPTY, frame);
    SampleKey { labels, stack, end }
}

fn value(count: u64) -> Value {
    Value {
        count,
        weight: count * PERIOD,
    }
}

fn ledger(windows: &[Window], selector: &str) -> Ledger {
    let selector: Selector = selector.parse().unwrap();
    let mut dict = Dictionary::default();
    let mut builder = LedgerBuilder::new(&selector);
    for window in windows {
        builder.add_window(!window.accounts.is_empty());
        for &(path, comm, end, count) in &window.samples {
            let key = sample(&mut dict, PATHS[path], comm, StackEnd::ALL[end]);
            builder.add(&dict, key, value(count));
            if window.accounts.is_empty() {
                builder.add_unmeasured(&dict, key, value(count));
            }
        }
        for (&path, &samples) in &window.accounts {
            let account = Account {
                labels: dict.intern_labels([(key::CGROUP, PATHS[path])]),
                ns: samples * PERIOD,
                estimated_ns: 0,
                ..Account::default()
            };
            builder.add_account(&dict, account, value(1));
        }
    }
    builder.finish()
}

fn sum<'a>(tallies: impl Iterator<Item = &'a Tally>) -> Tally {
    tallies.fold(Tally::default(), |mut sum, &tally| {
        sum += tally;
        sum
    })
}

fn row<'l>(ledger: &'l Ledger, path: &str) -> &'l profile::LedgerRow {
    let found = ledger.rows.iter().find(|row| row.path == path);
    found.unwrap_or_else(|| panic!("no row `{path}` in {ledger:?}"))
}

proptest! {
    #[test]
    fn taken_and_lost_are_the_sum_of_the_samples(windows in windows()) {
        let ledger = ledger(&windows, "");
        let all = windows.iter().flat_map(|window| &window.samples);
        let (mut taken, mut lost) = (0, 0);
        for &(_, _, end, count) in all {
            match StackEnd::ALL[end] {
                StackEnd::Lost => lost += count,
                _ => taken += count,
            }
        }
        prop_assert_eq!((ledger.host.taken, ledger.host.lost), (taken, lost));
        prop_assert_eq!(ledger.host.taken_weight + ledger.host.lost_weight, (taken + lost) * PERIOD);
        prop_assert_eq!(sum(ledger.rows.iter().map(|row| &row.own)), ledger.host);
    }

    #[test]
    fn a_total_is_the_sum_of_what_is_below(windows in windows()) {
        let ledger = ledger(&windows, "");
        for found in &ledger.rows {
            let below = |path: &str| match found.path.as_str() {
                "" => path.is_empty(),
                "/" => path.starts_with('/'),
                above => path == above || path.starts_with(&format!("{above}/")),
            };
            let rows = ledger.rows.iter().filter(|row| below(&row.path));
            prop_assert_eq!(sum(rows.map(|row| &row.own)), found.total, "{}", found.path);
        }
    }

    #[test]
    fn a_subtree_expects_what_its_account_says(windows in windows(), root in 1..5000u64) {
        // Every window accounts for the root, as the daemon's do.
        let mut windows = windows;
        for window in &mut windows {
            window.accounts.insert(1, root);
        }
        let whole = ledger(&windows, "");
        prop_assert_eq!(whole.expected.samples, root * windows.len() as u64);
        prop_assert_eq!(whole.expected.ns, root * PERIOD * windows.len() as u64);
        prop_assert_eq!(ledger(&windows, "cgroup^=/").expected, whole.expected);
    }

    #[test]
    fn selections_that_part_the_cgroups_part_the_ledger(windows in windows()) {
        let whole = ledger(&windows, "");
        let parts = [ledger(&windows, "cgroup^=/a"), ledger(&windows, r#"cgroup!~"/a(/.*)?""#)];
        prop_assert_eq!(sum(parts.iter().map(|part| &part.host)), whole.host);
    }

    #[test]
    fn windows_add_up_in_any_order(windows in windows()) {
        let backwards: Vec<Window> = windows.iter().rev().cloned().collect();
        prop_assert_eq!(ledger(&windows, ""), ledger(&backwards, ""));
    }
}

fn window(samples: &[(&str, StackEnd, u64)], accounts: &[(&str, u64)]) -> Window {
    let at = |path: &str| PATHS.iter().position(|known| *known == path).unwrap();
    Window {
        samples: samples
            .iter()
            .map(|&(path, end, count)| (at(path), 0, end as usize, count))
            .collect(),
        accounts: accounts
            .iter()
            .map(|&(path, samples)| (at(path), samples))
            .collect(),
    }
}

#[test]
fn what_is_missing_is_what_was_expected_and_neither_taken_nor_lost() {
    let window = window(
        &[("/a", StackEnd::Complete, 90), ("/a", StackEnd::Lost, 7)],
        &[("/", 100), ("/a", 100)],
    );
    let ledger = ledger(&[window], "");
    let found = row(&ledger, "/a");
    assert_eq!((found.missed(), found.total.lost), (3, 7));
    assert_eq!(found.share(), Some(0.9));
}

#[test]
fn a_cgroup_alone_has_what_its_children_have_not() {
    let window = window(
        &[
            ("/a", StackEnd::Complete, 10),
            ("/a/b", StackEnd::Complete, 50),
        ],
        &[("/", 100), ("/a", 80), ("/a/b", 60)],
    );
    let alone = ledger(&[window], "cgroup=/a");
    assert_eq!((alone.expected.samples, alone.host.taken), (20, 10));
}

#[test]
fn a_window_without_accounts_changes_no_share() {
    let measured = window(
        &[("/a", StackEnd::Complete, 90)],
        &[("/", 100), ("/a", 100)],
    );
    let blind = window(&[("/a", StackEnd::Complete, 1000)], &[]);
    let ledger = ledger(&[measured, blind], "");
    assert_eq!(ledger.coverage().share(), Some(0.9));
    assert_eq!((ledger.windows, ledger.windows_unmeasured), (2, 1));
}

#[test]
fn samples_of_other_rates_are_expected_at_theirs() {
    let selector = Selector::default();
    let mut dict = Dictionary::default();
    let mut builder = LedgerBuilder::new(&selector);
    let labels = dict.intern_labels([(key::CGROUP, "/")]);
    for period in [PERIOD, 2 * PERIOD] {
        let account = Account {
            labels,
            ns: 100 * PERIOD,
            estimated_ns: 0,
            ..Account::default()
        };
        let one = Value {
            count: 1,
            weight: period,
        };
        builder.add_account(&dict, account, one);
    }
    assert_eq!(builder.finish().expected.samples, 150);
}

#[test]
fn only_labels_of_cgroups_can_be_held_against_the_kernel() {
    let accountable = |text: &str| LedgerBuilder::is_accountable(&text.parse().unwrap());
    assert!(accountable("") && accountable("unit=a.service,cgroup^=/x"));
    assert!(!accountable("unit=a.service,comm=java") && !accountable("context=softirq"));
}

#[test]
fn what_was_folded_is_told_apart() {
    let selector = Selector::default();
    let mut dict = Dictionary::default();
    let mut builder = LedgerBuilder::new(&selector);
    let frame = dict.intern_frame(FrameRef {
        kind: profile::FrameKind::Synthetic,
        function: OTHER_FRAME,
        ..FrameRef::default()
    });
    let key = SampleKey {
        labels: dict.intern_labels([(key::CGROUP, "/a")]),
        stack: dict.stacks.child(StackId::EMPTY, frame),
        end: StackEnd::Complete,
    };
    builder.add(&dict, key, value(5));
    let ledger = builder.finish();
    assert_eq!((ledger.host.taken, ledger.host.folded), (5, 5));
}
