//! Tests sums that do not fit 64 bits of nanoseconds, compared with sums in 128 bits.

use crate::store::draft::{Draft, frame, store_all};
use crate::store::{Engine, Fresh, Place, ample, given_up, names, query, range, scope, selector};
use collector::store::{Exact, Limits, QueryResult, Store, StoreError, StoreQueries, TimeRange};
use profile::unit::WEIGHT_MAX;
use profile::{
    CostBy, FrameFilter, FrameFilterOp, GroupBy, Profile, Query, StackEnd, TopSort, Value,
};
use std::collections::BTreeMap;
use std::time::Instant;

/// Hours that have windows, up to [`range`]'s 0. In each the engines' sums fit.
const HOURS: i64 = 6;
const HOSTS: u64 = 60;
/// Windows of a host in an hour: some of the heaviest that engines take.
const WINDOWS: u64 = 8;

/// A sample of the fleet, and when it was.
struct Row {
    hour: i64,
    host: u64,
    unit: &'static str,
    stack: &'static str,
    end: StackEnd,
    value: Value,
}

/// All samples of some hosts, of weights that are no whole microseconds.
fn rows() -> Vec<Row> {
    let mut state = 7u64;
    let mut next = move |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) % below
    };
    let mut rows = Vec::new();
    for at in 0..HOURS as u64 * HOSTS * WINDOWS {
        let lost = next(10) == 0;
        rows.push(Row {
            hour: (at / (HOSTS * WINDOWS)) as i64 - HOURS,
            host: at / WINDOWS % HOSTS,
            unit: ["x", "y", "z"][next(3) as usize],
            stack: match lost {
                true => "[lost]",
                false => ["main;a", "main;a;b", "main;c"][next(3) as usize],
            },
            end: match lost {
                true => StackEnd::Lost,
                false => StackEnd::Complete,
            },
            value: Value {
                count: 1 + next(9),
                weight: (1 << 53) - 1 - next(1 << 40),
            },
        });
    }
    rows
}

/// The rows, each in a window of its own.
fn fill(store: &dyn Store, rows: &[Row], unit: &str) {
    let drafts: Vec<Draft> = rows
        .iter()
        .enumerate()
        .map(|(at, row)| {
            let within = at as i64 % WINDOWS as i64 * 440;
            let start_s = row.hour * 3600 + within;
            let draft = Draft::new(&format!("h{}", row.host), at as u64 + 1, start_s);
            let labels = draft.labels(&format!("service=s,unit={}", row.unit));
            let frames: Vec<_> = row.stack.split(';').map(frame).collect();
            draft
                .sample(&labels, &frames, row.end, row.value)
                .account("/", row.value.weight, 0)
                .with(|window| unit.clone_into(&mut window.unit))
        })
        .collect();
    for some in drafts.chunks(500) {
        store_all(store, some);
    }
}

/// Sums of 128 bits.
fn sums<K: Ord>(rows: &[Row], key: impl Fn(&Row) -> K) -> BTreeMap<K, u128> {
    let mut sums = BTreeMap::new();
    for row in rows {
        *sums.entry(key(row)).or_default() += u128::from(row.value.weight);
    }
    sums
}

/// A weight in microseconds is that of so many nanoseconds, rounded once in each hour.
#[track_caller]
fn assert_about(microseconds: u64, nanoseconds: u128) {
    let off = (u128::from(microseconds) * 1000).abs_diff(nanoseconds);
    let most = HOURS as u128 * 500;
    assert!(off <= most, "{microseconds} µs and {nanoseconds} ns");
}

/// Every kind of answer, of the sums that the rows have.
fn assert_right(store: &dyn StoreQueries, rows: &[Row], whole: TimeRange) {
    let total: u128 = rows.iter().map(|row| u128::from(row.value.weight)).sum();
    let counted: u64 = rows.iter().map(|row| row.value.count).sum();
    for limits in [
        ample(),
        Limits {
            nodes: 1,
            ..ample()
        },
    ] {
        let answer = store
            .profile(whole, &query("", &["unit"]), &limits)
            .unwrap();
        let quality = &answer.quality;
        assert_eq!(
            (quality.unit.as_str(), quality.hosts),
            ("microseconds", HOSTS)
        );
        assert_eq!(quality.windows, rows.len() as u64);
        assert_eq!(answer.data.info.unit, "microseconds");
        assert_eq!(answer.data.info.period, 10_101);
        assert_eq!(answer.data.info.quality.lost_samples, lost(rows));
        assert!(!quality.total.is_capped());
        assert_eq!(answer.data.total(), quality.total);
        assert_eq!(quality.total.count, counted);
        assert_adds_up(quality.total.weight, total);
        let unpruned = limits.nodes > 1;
        assert_eq!(quality.pruned_weight == 0, unpruned);
        let expected = sums(rows, |row| (row.unit.to_owned(), row.stack.to_owned()));
        if unpruned {
            let found = by_stack(&answer);
            assert!(found.keys().eq(expected.keys()));
            for (key, weight) in found {
                assert_about(weight, expected[&key]);
            }
        }
    }
    let costs = store.costs(whole, &query("", &[]), CostBy::Function, &ample());
    let QueryResult { data, quality } = costs.unwrap();
    assert_eq!(
        (data.total(), quality.unit.as_str()),
        (quality.total, "microseconds")
    );
    let leaves = sums(rows, |row| row.stack.rsplit(';').next().unwrap_or_default());
    for row in data.into_top(TopSort::Own, 10).rows {
        let expected = leaves.get(row.name.as_str()).copied().unwrap_or(0);
        assert_about(row.own.weight, expected);
        if row.name == "main" {
            assert_adds_up(row.total.weight, total - leaves["[lost]"]);
        }
    }
}

/// The same of answers without stacks.
fn assert_right_over_time(store: &dyn StoreQueries, rows: &[Row], whole: TimeRange) {
    let total: u128 = rows.iter().map(|row| u128::from(row.value.weight)).sum();
    let scope = scope(whole, "");
    let totals = store.totals(&scope, &names(&["unit"]), &ample()).unwrap();
    assert_eq!(totals.quality.unit, "microseconds");
    let units = sums(rows, |row| row.unit);
    let mut accounted = 0;
    for row in &totals.data {
        let expected = units.get(row.labels.get("unit")).copied().unwrap_or(0);
        let both = row.taken.weight + row.lost.weight;
        assert!((u128::from(both) * 1000).abs_diff(expected) <= HOURS as u128 * 1000);
        accounted += i128::from(row.expected_ns);
    }
    let off = (accounted * 1000).unsigned_abs().abs_diff(total);
    assert!(off <= 4000 * HOURS as u128, "{accounted}: {off}");
    let most = totals.quality.total.weight;
    assert_adds_up(most, total);
    let one = Limits {
        lines: 1,
        ..ample()
    };
    let heaviest = store.totals(&scope, &names(&["unit"]), &one).unwrap();
    assert_eq!(heaviest.data[..], totals.data[..1]);
    assert_eq!(heaviest.quality.total.weight, most);
    // A step of an hour fits by itself, one of four does not.
    for hours in [1, 4] {
        let step_ns = hours as u64 * 3_600_000_000_000;
        let series = store.series(&scope, &names(&["unit"]), step_ns, &ample());
        let QueryResult { data, quality } = series.unwrap();
        assert_eq!(quality.unit, "microseconds");
        assert_adds_up(quality.total.weight, total);
        // The range starts at 04:00, as one of its steps does.
        let step = |row: &Row| (row.hour + HOURS).div_euclid(hours);
        let expected = sums(rows, |row| (row.unit.to_owned(), step(row)));
        for line in &data.lines {
            let unit = line.labels.get("unit").to_owned();
            for (at, weight) in line.weights.iter().enumerate() {
                assert_about(*weight, expected[&(unit.clone(), at as i64)]);
            }
        }
        let steps = sums(rows, step);
        for (at, found) in data.steps.iter().enumerate() {
            assert_adds_up(found.weight, steps[&(at as i64)]);
            assert_eq!(found.hosts, HOSTS);
        }
        let rest = store
            .series(&scope, &names(&["unit"]), step_ns, &one)
            .unwrap();
        assert_eq!(rest.data.lines[..], data.lines[..1]);
        assert_eq!(rest.data.rest_lines, 2);
        let left_out = data.lines[1].weights.iter().zip(&data.lines[2].weights);
        let left_out: Vec<u64> = left_out.map(|(one, other)| one + other).collect();
        assert_eq!(rest.data.rest, left_out);
        assert_eq!(rest.data.steps, data.steps);
    }
}

/// As [`assert_about`], of what several rows add up to.
#[track_caller]
fn assert_adds_up(microseconds: u64, nanoseconds: u128) {
    let off = (u128::from(microseconds) * 1000).abs_diff(nanoseconds);
    assert!(
        off <= HOURS as u128 * 500 * 12,
        "{microseconds} µs and {nanoseconds} ns"
    );
}

fn lost(rows: &[Row]) -> u64 {
    let lost = rows.iter().filter(|row| row.end == StackEnd::Lost);
    lost.map(|row| row.value.count).sum()
}

/// Weights by unit and stack.
fn by_stack(answer: &QueryResult<Profile>) -> BTreeMap<(String, String), u64> {
    let Profile { dict, samples, .. } = &answer.data;
    let mut found = BTreeMap::new();
    for (key, value) in samples {
        let mut path = Vec::new();
        dict.stacks.root_first(key.stack, &mut path);
        let path: Vec<&str> = path.iter().map(|&id| dict.frame(id).function).collect();
        let unit = dict.label(key.labels, "unit").unwrap_or_default();
        *found.entry((unit.to_owned(), path.join(";"))).or_default() += value.weight;
    }
    found
}

pub fn sums_beyond_64_bits_are_told_in_microseconds(_: &dyn Engine, place: Box<dyn Place>) {
    let engine = Fresh::of(place);
    let rows = rows();
    fill(&*engine, &rows, "nanoseconds");
    let whole = range(-HOURS * 3600, 0);
    // Otherwise nothing is shown here.
    let capped = engine.profile(whole, &query("", &[]), &ample()).unwrap();
    assert!(capped.quality.total.is_capped());
    let store = Exact::new(engine.shared());
    assert_right(&store, &rows, whole);
    assert_right_over_time(&store, &rows, whole);
    // Samples with a frame that is dropped take their weight along.
    let filter = FrameFilter::new(FrameFilterOp::Drop, "^b$").unwrap();
    let without = Query::new(selector(""), vec![filter], GroupBy::from_keys::<&str>(&[])).unwrap();
    let found = store.profile(whole, &without, &ample()).unwrap();
    let total: u128 = sums(&rows, |row| row.stack).values().sum();
    let dropped = sums(&rows, |row| row.stack)["main;a;b"];
    assert_adds_up(found.quality.total.weight, total - dropped);
    // Hosts and gaps are those of the whole.
    let [bare, exact] = [&*engine as &dyn StoreQueries, &store].map(|store| {
        let totals = store.totals(&scope(whole, ""), &[], &ample()).unwrap();
        let of = totals.quality;
        (
            of.hosts,
            of.hosts_alive,
            of.windows,
            of.gaps_total,
            of.gap_ns_total,
            of.gaps,
        )
    });
    assert_eq!(bare, exact);
    assert_limited(&store, whole);
    assert_halves_are_the_whole(&store, whole);
}

/// The limits of a query hold for all of its parts.
fn assert_limited(store: &dyn StoreQueries, whole: TimeRange) {
    let late = Limits {
        deadline: Instant::now(),
        ..ample()
    };
    assert!(given_up(&store.profile(whole, &query("", &[]), &late)));
    let small = Limits {
        memory_bytes: 2000,
        ..ample()
    };
    let answer = store.profile(whole, &query("", &[]), &small);
    assert!(matches!(answer, Err(StoreError::TooLarge(_))));
}

/// An hour is told in nanoseconds, and any two parts of the range add up to all of it.
fn assert_halves_are_the_whole(store: &dyn StoreQueries, whole: TimeRange) {
    let microseconds = |range: TimeRange| {
        let found = store.profile(range, &query("", &[]), &ample()).unwrap();
        let Value { weight, .. } = found.quality.total;
        match found.quality.unit.as_str() {
            "nanoseconds" => {
                assert!(weight <= WEIGHT_MAX);
                weight as f64 / 1000.0
            }
            "microseconds" => weight as f64,
            unit => panic!("{unit}"),
        }
    };
    let all = microseconds(whole);
    for hours in 1..HOURS {
        let at = -hours * 3600;
        let parts = [range(-HOURS * 3600, at), range(at, 0)].map(microseconds);
        let off = (parts[0] + parts[1] - all).abs();
        // Numbers of this size are whole to four.
        assert!(off < 100.0, "{hours} h: {off} µs");
    }
}

pub fn cycles_beyond_64_bits_are_told_in_thousands(_: &dyn Engine, place: Box<dyn Place>) {
    let engine = Fresh::of(place);
    let rows = rows();
    fill(&*engine, &rows, "cycles");
    let store = Exact::new(engine.shared());
    let found = store.profile(range(-HOURS * 3600, 0), &query("", &[]), &ample());
    let found = found.unwrap();
    assert_eq!(found.quality.unit, "kilocycles");
    let total: u128 = rows.iter().map(|row| u128::from(row.value.weight)).sum();
    assert_adds_up(found.quality.total.weight, total);
}
