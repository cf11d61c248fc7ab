//! Tests that the sums of losses and accounts stay the same while the recorder merges, collects or
//! cuts.

use super::query::by_slices;
use super::tests::{NEVER, PERIOD, SECOND, options, row};
use super::*;
use profile::{
    Coverage, GroupBy, Ledger, LedgerBuilder, Query, SampleKey, Selector, StackEnd, Value, key,
};
use proptest::prelude::*;
use std::sync::RwLock;

const EVERYTHING: (MonotonicTime, MonotonicTime) = (MonotonicTime(0), MonotonicTime(u64::MAX));

/// A window: counts taken and lost, and samples accounted, by cgroup.
#[derive(Clone, Debug)]
struct Window {
    taken: Vec<(u8, u8, u64)>,
    lost: Vec<(u8, u64)>,
    accounts: Vec<(u8, u64)>,
}

fn windows() -> impl Strategy<Value = Vec<Window>> {
    let taken = prop::collection::vec((0..4u8, 0..9u8, 1..50u64), 0..12);
    let lost = prop::collection::vec((0..4u8, 1..50u64), 0..4);
    let accounts = prop::collection::vec((0..4u8, 0..500u64), 0..5);
    let window = (taken, lost, accounts).prop_map(|(taken, lost, accounts)| Window {
        taken,
        lost,
        accounts,
    });
    prop::collection::vec(window, 1..60)
}

fn path(number: u8) -> String {
    format!("/group/{number}")
}

fn add(recorder: &mut Recorder, number: u64, window: &Window) {
    let mut rows: Vec<Row> = Vec::new();
    for &(cgroup, function, count) in &window.taken {
        let function = format!("function_{function}");
        rows.push(row(recorder, &path(cgroup), "test", &[&function], count));
    }
    let stack = recorder.lost();
    for &(cgroup, count) in &window.lost {
        let labels = recorder
            .dict_mut()
            .intern_labels([(key::CGROUP, path(cgroup).as_str())]);
        let weight = count * PERIOD;
        let end = StackEnd::Lost;
        rows.push((SampleKey { labels, stack, end }, Value { count, weight }));
    }
    let all: u64 = window.accounts.iter().map(|account| account.1).sum();
    let dict = recorder.dict_mut();
    let mut account = |path: &str, samples: u64| Account {
        labels: dict.intern_labels([(key::CGROUP, path)]),
        ns: samples * PERIOD / 1000 * 1000,
        estimated_ns: 0,
        ..Account::default()
    };
    let mut accounts = vec![account("/", all)];
    for &(cgroup, samples) in &window.accounts {
        accounts.push(account(&path(cgroup), samples));
    }
    if window.accounts.is_empty() {
        accounts.clear();
    }
    recorder.add(WindowPart {
        pressure: None,
        timestamps: &[],
        timestamps_refused: 0,
        timeless: 0,
        start: MonotonicTime(number * 10 * SECOND),
        end: MonotonicTime((number + 1) * 10 * SECOND),
        closes: true,
        period: PERIOD,
        quality: Quality {
            taken: window.taken.iter().map(|row| row.2).sum(),
            lost_samples: window.lost.iter().map(|row| row.1).sum(),
            ..Quality::default()
        },
        rows: &mut rows,
        accounts: &accounts,
    });
}

fn fill(recorder: &mut Recorder, windows: &[Window]) {
    for (window, number) in windows.iter().zip(0..) {
        add(recorder, number, window);
    }
}

fn ledger(recorder: &Recorder) -> Ledger {
    let found = recorder.ledger(EVERYTHING, &Selector::default(), &NEVER);
    found.expect("not cancelled").0
}

fn query(selector: &str) -> Query {
    let selector: Selector = selector.parse().expect("a selector");
    Query::new(selector, Vec::new(), GroupBy::from_keys(&["cgroup"])).expect("a query")
}

fn coverage(recorder: &Recorder, selector: &str) -> Coverage {
    let answer = recorder.query(
        WindowRange::Time(EVERYTHING.0, EVERYTHING.1),
        &query(selector),
        &NEVER,
    );
    answer.expect("not cancelled").profile.info.coverage
}

proptest! {
    #[test]
    fn taken_and_lost_are_what_was_added(windows in windows()) {
        let mut recorder = Recorder::new(RecorderOptions::default());
        fill(&mut recorder, &windows);
        let found = ledger(&recorder);
        let taken: u64 = windows.iter().flat_map(|w| &w.taken).map(|row| row.2).sum();
        let lost: u64 = windows.iter().flat_map(|w| &w.lost).map(|row| row.1).sum();
        prop_assert_eq!((found.host.taken, found.host.lost), (taken, lost));
        let total = recorder.totals_of_quality();
        prop_assert_eq!((total.taken, total.lost_samples), (taken, lost));
    }

    #[test]
    fn downsampling_and_collecting_change_nothing(windows in windows()) {
        let mut recorder = Recorder::new(RecorderOptions::default());
        fill(&mut recorder, &windows);
        let before = ledger(&recorder);
        recorder.collect(None);
        prop_assert_eq!(&ledger(&recorder), &before);
        for step in [60, 600] {
            recorder.downsample(Duration::from_secs(step), 0);
        }
        let downsampled = ledger(&recorder);
        prop_assert_eq!(downsampled.host, before.host);
        prop_assert_eq!(downsampled.expected, before.expected);
    }

    #[test]
    fn a_tiny_budget_keeps_taken_and_lost_apart(windows in windows()) {
        let mut recorder = Recorder::new(options(BUDGET_MIN_BYTES));
        fill(&mut recorder, &windows);
        let before = ledger(&recorder);
        recorder.cut_all(1);
        let cut = ledger(&recorder);
        prop_assert_eq!((cut.host.taken, cut.host.lost), (before.host.taken, before.host.lost));
        prop_assert_eq!(cut.host.lost_weight, before.host.lost_weight);
    }

    #[test]
    fn a_profiles_coverage_is_that_of_the_ledger(windows in windows()) {
        let mut recorder = Recorder::new(RecorderOptions::default());
        fill(&mut recorder, &windows);
        for text in ["", "cgroup^=/group", "cgroup=/group/1"] {
            let selector: Selector = text.parse().expect("a selector");
            let found = recorder.ledger(EVERYTHING, &selector, &NEVER).expect("not cancelled").0;
            prop_assert_eq!(found.coverage(), coverage(&recorder, text));
        }
        let shared = RwLock::new(recorder);
        let sliced = by_slices(&shared, EVERYTHING, (&query("")).into(), &NEVER, 1).expect("not cancelled");
        let sliced = sliced.expect("nothing changed on the way").profile.info.coverage;
        prop_assert_eq!(sliced, coverage(&read(&shared), ""));
    }
}

fn one(taken: u64, lost: u64, accounted: u64) -> Recorder {
    let mut recorder = Recorder::new(RecorderOptions::default());
    let window = Window {
        taken: vec![(1, 1, taken)],
        lost: vec![(1, lost)],
        accounts: vec![(1, accounted)],
    };
    add(&mut recorder, 0, &window);
    recorder
}

#[test]
fn what_was_lost_is_in_a_profile_with_its_weight_and_not_in_what_was_taken() {
    let recorder = one(90, 10, 100);
    let span = WindowRange::Time(EVERYTHING.0, EVERYTHING.1);
    let answer = recorder
        .query(span, &query(""), &NEVER)
        .expect("not cancelled");
    let info = &answer.profile.info;
    assert_eq!(
        answer.profile.total(),
        Value {
            count: 100,
            weight: 100 * PERIOD
        }
    );
    assert_eq!((info.quality.taken, info.quality.lost_samples), (90, 10));
    assert_eq!(info.coverage.taken_ns, 90 * PERIOD);
}

#[test]
fn threads_and_functions_have_no_coverage() {
    let recorder = one(90, 10, 100);
    assert_eq!(coverage(&recorder, "comm=test"), Coverage::default());
    assert!(!LedgerBuilder::is_accountable(
        query("comm=test").selector()
    ));
}

#[test]
fn cycles_are_not_held_against_time() {
    let mut recorder = one(90, 10, 100);
    recorder.set_event("cycles", "cycles");
    assert_eq!(coverage(&recorder, ""), Coverage::default());
    assert_eq!(ledger(&recorder).expected.ns, 0);
}

#[test]
fn accounts_are_part_of_the_memory_that_is_bounded() {
    let mut recorder = Recorder::new(options(BUDGET_MIN_BYTES));
    for number in 0..400 {
        let dict = recorder.dict_mut();
        let accounts: Vec<Account> = (0..2000)
            .map(|cgroup| Account {
                labels: dict.intern_labels([(key::CGROUP, format!("/a/{cgroup}").as_str())]),
                ns: 1 << 30,
                estimated_ns: 0,
                ..Account::default()
            })
            .collect();
        recorder.add(WindowPart {
            pressure: None,
            timestamps: &[],
            timestamps_refused: 0,
            timeless: 0,
            start: MonotonicTime(number * 10 * SECOND),
            end: MonotonicTime((number + 1) * 10 * SECOND),
            closes: true,
            period: PERIOD,
            quality: Quality::default(),
            rows: &mut Vec::new(),
            accounts: &accounts,
        });
        let stats = recorder.stats();
        assert!(stats.bytes <= stats.budget_bytes, "{stats:?}");
    }
}
