//! As data gets older it is downsampled; over whole steps answers stay what they were.

use crate::store::draft::{Draft, definitions, store_all, windows};
use crate::store::model::Model;
use crate::store::text::{assert_adds_up, samples};
use crate::store::{Engine, Fresh, NOW_NS, Place, SECOND, ample, query, range, scope};
use collector::store::{PushOutcome, Store, StoreQueries as _, ThrottledCgroup};

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;

/// Windows of two hosts from two hours before the tests' time on, to ten minutes before now: three
/// hours and fifty minutes.
fn drafts() -> Vec<Draft> {
    let mut drafts = Vec::new();
    for window in 0..92u64 {
        for host in ["a", "b"] {
            let start_s = window as i64 * 150 - 2 * HOUR;
            let draft = Draft::new(host, window, start_s)
                .row("unit=web,comm=nginx", "main;serve;do_read", 1 + window % 5)
                .row("unit=web,comm=php", &format!("main;run{}", window % 7), 2)
                .row("unit=db,comm=pg", "main;query", 3)
                .row("comm=init", "init", 1)
                .lost("unit=db", window % 2);
            drafts.push(draft);
        }
    }
    drafts
}

fn both(place: Box<dyn Place>) -> (Fresh, Model) {
    let (store, model) = (Fresh::of(place), Model::default());
    for some in drafts().chunks(40) {
        store_all(&*store, some);
        store_all(&model, some);
    }
    (store, model)
}

/// Lets the store do all that is due by then.
fn grow_older(store: &dyn Store, seconds: i64) {
    for _ in 0..20 {
        store.maintain(NOW_NS + seconds * SECOND).unwrap();
    }
}

pub fn answers_over_whole_hours_stay_as_data_gets_older(_: &dyn Engine, place: Box<dyn Place>) {
    let (store, model) = both(place);
    for age in [0, 5 * HOUR, 3 * DAY, 20 * DAY, 40 * DAY, 100 * DAY] {
        grow_older(&*store, age);
        for (from, to, selector, by) in [
            (-2 * HOUR, 2 * HOUR, "", &["unit"][..]),
            (-2 * HOUR, 2 * HOUR, "unit=web", &[]),
            (-HOUR, HOUR, "unit!=web", &["unit"]),
            (0, HOUR, "", &[]),
        ] {
            let (range, query) = (range(from, to), query(selector, by));
            let answer = store.profile(range, &query, &ample()).unwrap();
            let expected = model.profile(range, &query, &ample()).unwrap();
            let told = format!("{age} s older, {from} to {to}, {selector} {by:?}");
            assert_eq!(samples(&answer.data), samples(&expected.data), "{told}");
            assert_eq!(answer.quality.total, expected.quality.total, "{told}");
            assert_eq!(answer.quality.windows, expected.quality.windows, "{told}");
            assert_eq!(answer.quality.hosts, 2, "{told}");
            assert_eq!(answer.quality.gaps, expected.quality.gaps, "{told}");
            assert_adds_up(&answer);
        }
        // What an agent brings again counts no second time.
        let again = &drafts()[..6];
        let taken = store.push(&windows(again), &definitions(again), NOW_NS);
        let none =
            |of: &PushOutcome| matches!(of, PushOutcome::Duplicate | PushOutcome::Rejected(_));
        assert!(taken.unwrap().iter().all(none), "{age} s older");
    }
}

pub fn edges_of_a_range_are_read_fine(_: &dyn Engine, place: Box<dyn Place>) {
    let (store, model) = both(place);
    for age in [0, 5 * HOUR] {
        grow_older(&*store, age);
        for (from, to) in [
            (-2 * HOUR + 420, HOUR + 22 * 60),
            (-HOUR + 60, HOUR),
            (-HOUR, HOUR + 60),
            (-HOUR - 70, HOUR + 70),
            (60, 120),
        ] {
            let (range, query) = (range(from, to), query("", &["unit"]));
            let answer = store.profile(range, &query, &ample()).unwrap();
            let expected = model.profile(range, &query, &ample()).unwrap();
            let told = format!("{age} s older, {from} to {to}");
            assert_eq!(samples(&answer.data), samples(&expected.data), "{told}");
            assert_eq!(answer.quality.covered, range, "{told}");
        }
    }
}

/// As [`drafts`], with a cgroup that is held back more from hour to hour, and pressure.
fn waiting() -> Vec<Draft> {
    let all = drafts().into_iter().enumerate();
    all.map(|(at, draft)| {
        let at = at as u64;
        draft
            .account("/", 900 + at, 0)
            .throttled(0, 0)
            .account("/web", 500 + at, 0)
            .throttled(1000 + at, 200)
            .account("/db", 300, 0)
            .pressure(10 * at, at, 1)
    })
    .collect()
}

pub fn waiting_stays_as_data_gets_older(_: &dyn Engine, place: Box<dyn Place>) {
    let (store, model) = (Fresh::of(place), Model::default());
    for some in waiting().chunks(40) {
        store_all(&*store, some);
        store_all(&model, some);
    }
    let by = vec!["host".to_owned(), "cgroup".to_owned()];
    let step_ns = HOUR as u64 * SECOND as u64;
    for age in [0, 5 * HOUR, 3 * DAY, 20 * DAY] {
        grow_older(&*store, age);
        let scope = scope(range(-2 * HOUR, 2 * HOUR), "");
        let answer = store.accounted(&scope, &by, step_ns, &ample()).unwrap();
        let expected = model.accounted(&scope, &by, step_ns, &ample()).unwrap();
        let told = format!("{age} s older");
        if answer.quality.resolution.by_service {
            // Cgroups are no longer told apart.
            continue;
        }
        assert!(answer.data.throttling_known, "{told}");
        assert!(!expected.data.throttled.is_empty());
        let (found, wanted) = (answer.data, expected.data);
        assert_eq!(found.pressure, wanted.pressure, "{told}");
        let sorted = |mut of: Vec<ThrottledCgroup>| {
            of.sort_by(|a, b| a.labels.cmp(&b.labels));
            of
        };
        assert_eq!(sorted(found.throttled), sorted(wanted.throttled), "{told}");
    }
}
