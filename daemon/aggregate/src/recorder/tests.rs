//! Tests the recorder against a naive model, and against input that tries to fill it.

use super::query::by_slices;
use super::*;
use profile::{GroupBy, Profile, Query, SampleKey, Selector, StackEnd, Value, key};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::RwLock;
use std::sync::atomic::AtomicBool;

pub(super) const SECOND: u64 = 1_000_000_000;
pub(super) const PERIOD: u64 = 10_101_010;
pub(super) static NEVER: AtomicBool = AtomicBool::new(false);

/// Samples by the text of labels and stack: what must survive every change of ids.
type Model = BTreeMap<(String, String, StackEnd), Value>;

pub(super) fn options(budget_bytes: usize) -> RecorderOptions {
    RecorderOptions {
        budget_bytes,
        ..RecorderOptions::default()
    }
}

pub(super) fn row(
    recorder: &mut Recorder,
    cgroup: &str,
    comm: &str,
    stack: &[&str],
    count: u64,
) -> Row {
    let dict = recorder.dict_mut();
    let labels = dict.intern_labels([(key::CGROUP, cgroup), (key::COMM, comm)]);
    let frames: Vec<_> = stack
        .iter()
        .map(|function| {
            dict.intern_frame(FrameRef {
                function,
                ..FrameRef::default()
            })
        })
        .collect();
    let stack = dict.stacks.intern(frames);
    (
        SampleKey {
            labels,
            stack,
            end: StackEnd::Complete,
        },
        Value {
            count,
            weight: count * PERIOD,
        },
    )
}

fn add(recorder: &mut Recorder, start_s: u64, length_s: u64, closes: bool, mut rows: Vec<Row>) {
    let taken = rows.iter().map(|row| row.1.count).sum();
    recorder.add(WindowPart {
        pressure: None,
        timestamps: &[],
        timestamps_refused: 0,
        timeless: 0,
        start: MonotonicTime(start_s * SECOND),
        end: MonotonicTime((start_s + length_s) * SECOND),
        closes,
        period: PERIOD,
        quality: Quality {
            taken,
            ..Quality::default()
        },
        rows: &mut rows,
        accounts: &[],
    });
}

fn text(dict: &Dictionary, key: SampleKey) -> (String, String, StackEnd) {
    let mut labels: Vec<String> = dict
        .labels(key.labels)
        .map(|(k, v)| format!("{k}={v}"))
        .collect();
    labels.sort();
    let mut path = Vec::new();
    dict.stacks.root_first(key.stack, &mut path);
    let stack: Vec<&str> = path
        .iter()
        .map(|&frame| dict.frame(frame).function)
        .collect();
    (labels.join(","), stack.join(";"), key.end)
}

fn scan(recorder: &Recorder, span: WindowRange) -> (Model, Covered) {
    let mut model = Model::new();
    let covered = recorder
        .scan(span, &NEVER, |dict, key, value| {
            *model.entry(text(dict, key)).or_default() += value;
        })
        .expect("not cancelled");
    (model, covered)
}

/// Numbers of the 10 s windows that a range of nanoseconds takes, by both ways of asking.
#[track_caller]
fn check_range(from: u64, to: u64, expected: &[u64]) {
    let mut recorder = Recorder::new(options(64 << 20));
    for number in 0..4 {
        let rows = vec![row(&mut recorder, "/a", &number.to_string(), &["main"], 1)];
        add(&mut recorder, number * 10, 10, true, rows);
    }
    let span = WindowRange::Time(MonotonicTime(from), MonotonicTime(to));
    let (found, _) = scan(&recorder, span);
    let numbers = expected
        .iter()
        .map(|number| format!("cgroup=/a,comm={number}"));
    let labels: Vec<String> = found.keys().map(|(labels, ..)| labels.clone()).collect();
    assert_eq!(labels, numbers.collect::<Vec<_>>());
    let query = Query::default();
    let range = (MonotonicTime(from), MonotonicTime(to));
    let sliced = by_slices(&RwLock::new(recorder), range, (&query).into(), &NEVER, 1);
    let sliced = sliced
        .expect("not cancelled")
        .expect("nothing changes meanwhile");
    assert_eq!(sliced.covered.windows, expected.len());
}

#[test]
fn a_range_between_ends_of_windows_takes_exactly_those_between() {
    check_range(10 * SECOND, 30 * SECOND, &[1, 2]);
    // As shown to the millisecond, or after a correction of the wall clock.
    check_range(10 * SECOND - 600_000, 30 * SECOND + 400_000, &[1, 2]);
    check_range(10 * SECOND + 1, 30 * SECOND - 1, &[1, 2]);
    check_range(10 * SECOND - 1_000_000, 30 * SECOND, &[0, 1, 2]);
}

#[test]
fn a_moment_takes_the_window_it_lies_in() {
    check_range(15 * SECOND, 15 * SECOND + 1, &[1]);
    check_range(10 * SECOND - 1, 10 * SECOND, &[0]);
}

const ALL: WindowRange = WindowRange::Time(MonotonicTime(0), MonotonicTime(u64::MAX));

fn total(model: &Model) -> u64 {
    model.values().map(|value| value.count).sum()
}

#[derive(Clone, Debug)]
struct TestWindow {
    /// (cgroup, function path, count), in parts.
    parts: Vec<Vec<(u8, Vec<u8>, u64)>>,
}

fn windows() -> impl Strategy<Value = Vec<TestWindow>> {
    let stack = prop::collection::vec(0..6u8, 1..6);
    let row = (0..4u8, stack, 1..9u64);
    let part = prop::collection::vec(row, 0..20);
    let window = prop::collection::vec(part, 1..4).prop_map(|parts| TestWindow { parts });
    prop::collection::vec(window, 1..30)
}

/// Adds the windows one after the other, 12 s each, and returns what each holds.
fn fill(recorder: &mut Recorder, windows: &[TestWindow]) -> Vec<(u64, u64, Model)> {
    let mut models = Vec::new();
    for (window, at) in windows.iter().zip(0u64..) {
        let parts = window.parts.len() as u64;
        let mut model = Model::new();
        for (part, nth) in window.parts.iter().zip(0u64..) {
            let mut rows = Vec::new();
            for (cgroup, path, count) in part {
                let names: Vec<String> = path.iter().map(|f| format!("function_{f}")).collect();
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let row = row(recorder, &format!("/{cgroup}"), "test", &names, *count);
                *model.entry(text(recorder.dict(), row.0)).or_default() += row.1;
                rows.push(row);
            }
            add(
                recorder,
                at * 12 + nth * 12 / parts,
                12 / parts,
                nth + 1 == parts,
                rows,
            );
        }
        models.push((at * 12, at * 12 + 12, model));
    }
    models
}

fn sum<'a>(models: impl Iterator<Item = &'a Model>) -> Model {
    let mut sum = Model::new();
    for (key, &value) in models.flatten() {
        *sum.entry(key.clone()).or_default() += value;
    }
    sum
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_range_is_the_sum_of_its_windows(windows in windows(), from in 0..400u64, length in 1..400u64) {
        let mut recorder = Recorder::new(RecorderOptions::default());
        let models = fill(&mut recorder, &windows);
        let (from, to) = (from, from + length);
        let expected = sum(models.iter().filter(|(start, end, _)| *start < to && *end > from).map(|m| &m.2));
        let (found, covered) = scan(&recorder, WindowRange::Time(MonotonicTime(from * SECOND), MonotonicTime(to * SECOND)));
        prop_assert_eq!(total(&expected), covered.quality.taken);
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn a_query_by_slices_is_the_same_query(windows in windows(), rows_per_lock in 1..40usize) {
        let mut recorder = Recorder::new(RecorderOptions::default());
        fill(&mut recorder, &windows);
        let selector = "cgroup!=\"/0\"".parse().expect("a selector");
        let query = Query::new(selector, Vec::new(), GroupBy::All).expect("a query");
        let whole = recorder.query(ALL, &query, &NEVER).expect("not cancelled");
        let lock = RwLock::new(recorder);
        let range = (MonotonicTime(0), MonotonicTime(u64::MAX));
        let sliced = by_slices(&lock, range, (&query).into(), &NEVER, rows_per_lock).expect("not cancelled");
        let sliced = sliced.expect("nothing changed meanwhile");
        let text_of = |profile: &Profile| -> Model {
            profile.samples.iter().map(|(&key, &value)| (text(&profile.dict, key), value)).collect()
        };
        prop_assert_eq!(text_of(&sliced.profile), text_of(&whole.profile));
        prop_assert_eq!(sliced.covered, whole.covered);
        prop_assert_eq!(&sliced.profile.info, &whole.profile.info);
        let rows = windows.iter().flat_map(|w| w.parts.iter().flatten());
        let expected: u64 = rows.filter(|row| row.0 != 0).map(|row| row.2).sum();
        prop_assert_eq!(whole.profile.total().count, expected);
    }

    #[test]
    fn collecting_and_downsampling_keep_every_total(windows in windows()) {
        let mut recorder = Recorder::new(RecorderOptions::default());
        let models = fill(&mut recorder, &windows);
        let expected = sum(models.iter().map(|m| &m.2));
        let taken = scan(&recorder, ALL).1.quality;
        recorder.dict_mut().intern_labels([("left", "over")]);
        recorder.collect(None);
        prop_assert_eq!(recorder.epoch(), 1);
        prop_assert!(recorder.dict().strings.find("left").is_none());
        prop_assert_eq!(&scan(&recorder, ALL).0, &expected);
        recorder.downsample_all();
        let (found, covered) = scan(&recorder, ALL);
        prop_assert_eq!(&found, &expected);
        prop_assert_eq!(covered.quality, taken);
        recorder.collect(None);
        prop_assert_eq!(&scan(&recorder, ALL).0, &expected);
    }

    #[test]
    fn cgroups_are_the_sum_of_their_samples(windows in windows()) {
        let mut recorder = Recorder::new(RecorderOptions::default());
        let models = fill(&mut recorder, &windows);
        let mut expected: BTreeMap<String, u64> = BTreeMap::new();
        for ((labels, ..), value) in models.iter().flat_map(|m| &m.2) {
            let path = labels.trim_start_matches("cgroup=").trim_end_matches(",comm=test");
            *expected.entry(path.to_owned()).or_default() += value.count;
        }
        let everything = (MonotonicTime(0), MonotonicTime(u64::MAX));
        let (found, _) = recorder.ledger(everything, &Selector::default(), &NEVER).expect("not cancelled");
        let found: BTreeMap<String, u64> = found
            .rows
            .into_iter()
            .filter(|row| row.own.taken > 0)
            .map(|row| (row.path, row.own.taken))
            .collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn parts_are_the_difference_of_what_was_seen(windows in windows(), after in 0..20u64) {
        let mut recorder = Recorder::new(RecorderOptions::default());
        fill(&mut recorder, &windows);
        let upto = recorder.subscribe().borrow().part;
        let mut parts: Vec<_> = windows.iter().flat_map(|window| &window.parts).collect();
        parts.drain(..(after as usize).min(parts.len()));
        let (found, covered) = scan(&recorder, WindowRange::Parts(after, upto));
        // A window that started before `after` is left out, unless it is the newest.
        let mut seen = 0;
        let mut cut = 0;
        for window in &windows[..windows.len() - 1] {
            let held = window.parts.len() as u64;
            if seen < after && seen + held > after {
                cut = seen + held - after;
            }
            seen += held;
        }
        prop_assert_eq!(covered.missed, cut);
        parts.drain(..cut as usize);
        prop_assert_eq!(total(&found), parts.iter().flat_map(|part| part.iter()).map(|row| row.2).sum::<u64>());
    }
}

impl Recorder {
    /// Downsamples everything that is old enough, whatever the budget says.
    fn downsample_all(&mut self) {
        self.downsample(Duration::from_secs(60), 0);
        self.downsample(Duration::from_secs(600), 0);
    }
}

#[test]
fn a_window_is_closed_by_its_last_part_or_by_its_length() {
    let mut recorder = Recorder::new(RecorderOptions::default());
    let progress = recorder.subscribe();
    add(&mut recorder, 0, 5, false, Vec::new());
    assert_eq!(
        *progress.borrow(),
        Progress {
            window: 0,
            part: 1,
            end: MonotonicTime(5 * SECOND)
        }
    );
    add(&mut recorder, 5, 5, true, Vec::new());
    assert_eq!(progress.borrow().window, 1);
    add(&mut recorder, 10, 25, false, Vec::new());
    assert_eq!(
        progress.borrow().window,
        2,
        "a window nobody closes is closed at twice its length"
    );
    assert_eq!(recorder.stats().windows, 2);
}

#[test]
fn the_open_window_is_part_of_a_range() {
    let mut recorder = Recorder::new(RecorderOptions::default());
    let rows = vec![row(&mut recorder, "/a", "x", &["main"], 3)];
    add(&mut recorder, 0, 1, false, rows);
    let (found, covered) = scan(&recorder, ALL);
    assert_eq!(total(&found), 3);
    assert_eq!(
        (covered.start, covered.end),
        (MonotonicTime(0), MonotonicTime(SECOND))
    );
}

#[test]
fn endless_parts_of_one_window_are_added_up() {
    let window = Duration::from_secs(100_000);
    let mut recorder = Recorder::new(RecorderOptions {
        window,
        ..RecorderOptions::default()
    });
    for at in 0..1000 {
        let rows = vec![row(&mut recorder, "/a", "x", &["main"], 1)];
        add(&mut recorder, at, 1, false, rows);
    }
    assert!(recorder.open.len() <= PARTS_MAX);
    assert_eq!(total(&scan(&recorder, ALL).0), 1000);
}

#[test]
fn windows_go_when_they_are_over_their_age() {
    let mut recorder = Recorder::new(RecorderOptions::default());
    for at in 0..400 {
        add(&mut recorder, at * 10, 10, true, Vec::new());
    }
    let stats = recorder.stats();
    assert_eq!(stats.windows, 360);
    assert_eq!(stats.totals.dropped_by_age, 40);
    assert_eq!(stats.oldest, Some(MonotonicTime(400 * SECOND)));
}

#[test]
fn under_pressure_the_oldest_are_downsampled_and_nothing_is_dropped() {
    let mut recorder = Recorder::new(options(BUDGET_MIN_BYTES));
    let mut added = 0;
    for at in 0..360 {
        // The same 300 stacks in every window: much smaller when merged.
        let rows: Vec<Row> = (0..300)
            .map(|n| {
                row(
                    &mut recorder,
                    "/a",
                    "x",
                    &["main", &format!("function_{n}")],
                    1,
                )
            })
            .collect();
        added += rows.len() as u64;
        add(&mut recorder, at * 10, 10, true, rows);
        assert!(recorder.stats().bytes <= BUDGET_MIN_BYTES);
    }
    let stats = recorder.stats();
    assert_eq!(stats.totals.dropped_by_budget, 0);
    assert_eq!(stats.totals.folded_samples, 0);
    assert!(stats.downsampled_windows > 0, "{stats:?}");
    let newest = recorder.windows.back().expect("windows");
    assert!(!newest.is_downsampled());
    let oldest = recorder.windows.front().expect("windows");
    assert!(oldest.is_downsampled());
    let (found, covered) = scan(&recorder, ALL);
    assert_eq!(total(&found), added);
    assert_eq!(
        (covered.start, covered.end),
        (MonotonicTime(0), MonotonicTime(3600 * SECOND))
    );
}

/// An endless source of new stacks, labels and names: 40 windows of up to `rows` rows.
fn adversary(budget: usize, rows: usize, asks_for_room: bool) -> Recorder {
    let mut recorder = Recorder::new(options(budget));
    let mut unique = 0u64;
    for at in 0..40 {
        let mut window = vec![row(&mut recorder, "/honest", "x", &["main", "work"], 1000)];
        let mut folded = 0;
        for _ in 0..rows {
            unique += 1;
            if asks_for_room && !recorder.has_room() {
                folded += 1;
                continue;
            }
            let name = format!("{unique:0128}");
            window.push(row(
                &mut recorder,
                &name,
                &name,
                &["main", &name, "deep", &name],
                1,
            ));
        }
        if folded > 0 {
            let (mut key, _) = row(&mut recorder, "/evil", "x", &["main"], 1);
            key.stack = recorder.other();
            window.push((
                key,
                Value {
                    count: folded,
                    weight: folded * PERIOD,
                },
            ));
        }
        let added: u64 = window.iter().map(|row| row.1.count).sum();
        add(&mut recorder, at * 10, 10, true, window);
        let stats = recorder.stats();
        assert!(stats.bytes <= budget, "{stats:?}");
        let number = recorder.subscribe().borrow().window;
        let (found, covered) = scan(&recorder, WindowRange::Window(number));
        assert_eq!(total(&found), added, "the newest window keeps its total");
        let honest = found.iter().find(|((_, stack, _), _)| stack == "main;work");
        assert_eq!(honest.expect("the heaviest stack is kept").1.count, 1000);
        let other: u64 = found
            .iter()
            .filter(|(k, _)| k.1 == "[other]")
            .map(|(_, v)| v.count)
            .sum();
        assert_eq!(other, folded + covered.quality.folded);
    }
    recorder
}

#[test]
fn endless_new_names_stay_within_the_budget() {
    let recorder = adversary(2 << 20, 400, false);
    assert!(recorder.stats().totals.dropped_by_budget > 0);
    assert!(
        recorder.stats().windows > 3,
        "no window pushes all others out"
    );
}

#[test]
fn one_window_over_the_budget_is_cut() {
    let recorder = adversary(BUDGET_MIN_BYTES, 4000, false);
    assert!(recorder.stats().totals.folded_samples > 0);
}

#[test]
fn a_symbolizer_that_asks_for_room_is_not_cut() {
    let recorder = adversary(2 << 20, 4000, true);
    assert!(
        recorder.stats().totals.folded_samples < 400,
        "{:?}",
        recorder.stats()
    );
}

#[test]
fn folded_rows_keep_their_cgroup() {
    let mut recorder = Recorder::new(options(BUDGET_MIN_BYTES));
    let rows = (0..3000)
        .map(|n| {
            row(
                &mut recorder,
                "/evil",
                &format!("{n:064}"),
                &["main", &format!("{n:064}")],
                1,
            )
        })
        .collect();
    add(&mut recorder, 0, 10, true, rows);
    let (found, covered) = scan(&recorder, ALL);
    let other = found.get(&("cgroup=/evil".into(), "[other]".into(), StackEnd::Complete));
    assert_eq!(other.expect("a folded row").count, covered.quality.folded);
    assert_eq!(total(&found), 3000);
}

#[test]
fn a_downsampled_window_is_missed_by_who_asks_for_its_number() {
    let mut recorder = Recorder::new(RecorderOptions::default());
    for at in 0..100 {
        add(&mut recorder, at * 10, 10, true, Vec::new());
    }
    recorder.downsample_all();
    assert_eq!(scan(&recorder, WindowRange::Window(1)).1.missed, 1);
    assert_eq!(scan(&recorder, WindowRange::Window(100)).1.missed, 0);
    assert_eq!(scan(&recorder, WindowRange::Window(101)).1.missed, 1);
}

#[test]
fn a_cancelled_scan_ends() {
    let mut recorder = Recorder::new(RecorderOptions::default());
    add(&mut recorder, 0, 10, true, Vec::new());
    let found = recorder.scan(ALL, &AtomicBool::new(true), |_, _, _| {});
    assert_eq!(found, Err(QueryError::Cancelled));
}

/// 64 busy CPUs for an hour and a quarter: prints sizes and times. Run it optimised:
/// `cargo test -p fleetprof-aggregate --config 'profile.dev.opt-level=2' -- --ignored --nocapture
/// large`
#[test]
#[ignore = "a measurement: takes minutes without optimisation"]
fn collection_of_a_large_machine() {
    let mut recorder = Recorder::new(RecorderOptions::default());
    let mut random = 1u64;
    let mut next = move |below: u64| {
        random = random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (random >> 33) % below
    };
    let (mut adds, mut slowest) = (Duration::ZERO, Duration::ZERO);
    for at in 0..450u64 {
        let mut rows = Vec::with_capacity(20_000);
        for _ in 0..20_000 {
            // 400 processes of 40 services, one in eight new each minute; stacks of 6 to 37 frames
            // over 3,000 functions; two rows in three are of the 400 hot stacks of their service,
            // the others of 4,000 cold ones, a tenth of which changes every ten minutes.
            let process = match next(400) {
                n if n < 50 => n + at / 6 * 50 + 1000,
                n => n,
            };
            let seed = if next(3) == 0 {
                next(4000) + at / 60 * 400
            } else {
                next(400)
            };
            let dict = recorder.dict_mut();
            let pid = process.to_string();
            let cgroup = format!("/system.slice/service-{}.service", process % 40);
            let labels = dict.intern_labels([
                (key::CGROUP, cgroup.as_str()),
                (key::COMM, "service"),
                (key::PID, pid.as_str()),
            ]);
            let mut stack = StackId::EMPTY;
            let mut function = process % 40;
            for depth in 0..6 + seed % 32 {
                let branch = if depth < 5 {
                    0
                } else {
                    seed >> (depth % 16) & 3
                };
                function = (function * 7 + branch * 31 + depth) % 3000;
                let name = format!("crate::module_{}::Type::function_{function}", function % 97);
                let frame = dict.intern_frame(FrameRef {
                    function: &name,
                    module: "service",
                    ..FrameRef::default()
                });
                stack = dict.stacks.child(stack, frame);
            }
            let end = if seed % 5 == 0 {
                StackEnd::BrokenChain
            } else {
                StackEnd::Complete
            };
            let count = 1 + next(5);
            rows.push((
                SampleKey { labels, stack, end },
                Value {
                    count,
                    weight: count * PERIOD,
                },
            ));
        }
        let started = MonotonicTime::now();
        add(&mut recorder, at * 10, 10, true, rows);
        let took = MonotonicTime::now().since(started);
        adds += took;
        slowest = slowest.max(took);
        if at % 90 == 89 {
            let stats = recorder.stats();
            println!(
                "{at}: {:.2} bytes a row, {} rows, windows {} KiB, dictionary {} KiB, {} stacks, {:?}",
                stats.window_bytes as f64 / stats.rows as f64,
                stats.rows,
                stats.window_bytes >> 10,
                stats.dict_bytes >> 10,
                recorder.dict().stacks.len(),
                stats.totals,
            );
        }
    }
    println!("add: {:?} on average, {slowest:?} at most", adds / 450);
    let started = MonotonicTime::now();
    recorder.collect(None);
    println!(
        "collection of everything: {:?}",
        MonotonicTime::now().since(started)
    );
    let started = MonotonicTime::now();
    let answer = recorder
        .query(ALL, &Query::default(), &NEVER)
        .expect("not cancelled");
    let profile = answer.profile;
    println!(
        "one profile of it all: {:?}, {} keys",
        MonotonicTime::now().since(started),
        profile.samples.len()
    );
}
