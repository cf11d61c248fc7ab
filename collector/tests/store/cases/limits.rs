//! Limits of queries: nodes, memory, time, and a client that has gone.

use crate::store::draft::{Draft, PERIOD, frame, store_all};
use crate::store::text::{assert_adds_up, short};
use crate::store::{
    Engine, Fresh, Place, ample, given_up, hour, names, query, range, scope, whole_hour,
};
use collector::store::{Limits, StoreError};
use profile::{CostBy, StackEnd, TopSort, Value};
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

/// More time than 64 bits of nanoseconds hold, as a thousand hosts have it in two weeks. Sums that
/// start again from 0 look like any other.
pub fn sums_beyond_the_largest_number_end_at_it(_: &dyn Engine, place: Box<dyn Place>) {
    const WEIGHT: u64 = 1 << 53;
    let store = Fresh::of(place);
    let value = Value {
        count: 1,
        weight: WEIGHT,
    };
    // 2^53 of each of 2100 hosts, in four hours: what the rollup of an hour sums up fits.
    let drafts: Vec<Draft> = (0..2100i64)
        .map(|host| {
            let draft = Draft::new(&format!("h{host}"), 1, host % 4 * 3600 - 7200);
            let labels = draft.labels("service=s,unit=u");
            draft.sample(&labels, &[frame("f")], StackEnd::Complete, value)
        })
        .collect();
    for some in drafts.chunks(525) {
        store_all(&*store, some);
    }
    let all = range(-7200, 7200);
    for query in [query("", &[]), query("unit=u", &["unit"])] {
        let answer = store.profile(all, &query, &ample()).unwrap();
        assert!(answer.quality.total.is_capped());
        assert_eq!(answer.data.total().weight, u64::MAX);
        assert_eq!(answer.quality.total.count, 2100);
        let costs = store.costs(all, &query, CostBy::Function, &ample());
        let costs = costs.unwrap().data;
        assert!(costs.total().is_capped());
        assert_eq!(costs.into_top(TopSort::Own, 1).rows[0].own.weight, u64::MAX);
    }
    let scope = scope(all, "");
    let totals = store.totals(&scope, &names(&["unit"]), &ample()).unwrap();
    assert!(totals.quality.total.is_capped());
    assert_eq!(totals.data[0].taken.weight, u64::MAX);
    assert_eq!(totals.data[0].expected_ns, i64::MAX);
    let step_ns = 4 * 3_600_000_000_000;
    let series = store.series(&scope, &[], step_ns, &ample()).unwrap();
    let most = series.data.lines[0].weights.iter().max();
    assert_eq!(most, Some(&u64::MAX));
    let steps = series.data.steps.iter().map(|step| step.weight);
    assert_eq!(steps.max(), Some(u64::MAX));
    // What fits is exact.
    let hour = store.profile(range(0, 3600), &query("", &[]), &ample());
    assert_eq!(hour.unwrap().quality.total.weight, 525 * WEIGHT);
    let hosts = store.hosts(all, &ample()).unwrap();
    assert!(hosts.iter().all(|(_, did)| did.taken.weight == WEIGHT));
}
