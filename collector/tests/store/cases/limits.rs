//! Limits of queries: nodes, memory, time, and a client that has gone.

use crate::store::draft::{Draft, PERIOD, store_all};
use crate::store::text::{assert_adds_up, short};
use crate::store::{Engine, Fresh, Place, ample, given_up, hour, names, query, scope, whole_hour};
use collector::store::{Limits, StoreError};
use std::time::{Duration, Instant};

/// A window with 200 stacks below two roots.
fn many() -> Draft {
    (0..100u64).fold(Draft::new("a", 1, 0), |draft, at| {
        let (left, right) = (format!("left;l{at}"), format!("right;r{at}"));
        draft
            .row("unit=u", &left, 1000 + at)
            .row("unit=u", &right, 1)
    })
}

pub fn too_many_stacks_are_folded_into_their_callers(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    store_all(&*store, &[many()]);
    let whole = whole_hour(&*store).quality;
    assert_eq!(whole.pruned_weight, 0);
    let limits = Limits {
        nodes: 4,
        ..ample()
    };
    let answer = store.profile(hour(), &query("", &[]), &limits).unwrap();
    // `left`, `l99`, `l98` and `l97` are the heaviest; of `right` not even the root is among them.
    assert_eq!(
        short(&answer.data),
        [
            "{}  complete 100",
            "{} left complete 101656",
            "{} left;l97 complete 1097",
            "{} left;l98 complete 1098",
            "{} left;l99 complete 1099",
        ]
    );
    assert_eq!(answer.quality.total, whole.total);
    assert_adds_up(&answer);
    assert_eq!(answer.quality.pruned_weight, (100 + 101_656) * PERIOD);
    assert!(answer.data.dict.stacks.len() <= 4 + 1);
}

pub fn a_cancelled_query_gives_up(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    store_all(&*store, &[many()]);
    let limits = ample();
    limits.cancel.cancel();
    let (scope, by) = (scope(hour(), ""), names(&["unit"]));
    assert!(given_up(&store.profile(hour(), &query("", &[]), &limits)));
    assert!(given_up(&store.series(
        &scope,
        &by,
        60_000_000_000,
        &limits
    )));
    assert!(given_up(&store.totals(&scope, &by, &limits)));
    assert!(given_up(&store.label_names(&scope, &limits)));
    assert!(given_up(
        &store.label_values(&scope, "unit", "", 9, &limits)
    ));
    assert!(given_up(&store.hosts(hour(), &limits)));
    // The store is as good as before.
    assert_eq!(whole_hour(&*store).quality.windows, 1);
}

pub fn a_query_past_its_deadline_gives_up(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    store_all(&*store, &[many()]);
    let past = Instant::now().checked_sub(Duration::from_millis(1));
    let limits = Limits {
        deadline: past.unwrap(),
        ..ample()
    };
    assert!(given_up(&store.profile(hour(), &query("", &[]), &limits)));
    assert!(given_up(&store.series(
        &scope(hour(), ""),
        &[],
        60_000_000_000,
        &limits
    )));
    assert_eq!(whole_hour(&*store).quality.windows, 1);
}

pub fn a_query_over_its_memory_is_too_large(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    store_all(&*store, &[many()]);
    let limits = Limits {
        memory_bytes: 1000,
        ..ample()
    };
    let answer = store.profile(hour(), &query("", &[]), &limits);
    let Err(StoreError::TooLarge(text)) = answer else {
        panic!("{:?}", answer.map(|of| of.quality));
    };
    assert!(!text.is_empty());
    assert_eq!(whole_hour(&*store).quality.windows, 1);
}
