//! Tests what is dropped by age, level by level, and what is kept longer.

use super::{NOW_NS, count, fresh_name, options, server, window};
use crate::front::Front;
use crate::store::draft::{Draft, definitions, store_all, windows};
use crate::store::model::Model;
use crate::store::text::samples;
use crate::store::{SECOND, ample, hour, query, range};
use collector::access::{Caller, Role, Scope};
use collector::query::ScopedStore;
use collector::store::clickhouse::{ClickHouseStore, Options};
use collector::store::{PushOutcome, StoreQueries, StoreStatus, WindowSink};
use std::sync::Arc;
use std::time::Duration;

#[test]
fn what_is_over_age_goes() {
    let Some(server) = server() else { return };
    let name = fresh_name();
    let store = ClickHouseStore::open(Options {
        retention: Duration::from_secs(86_400),
        ..options(&server.url(), &name)
    })
    .unwrap();
    store_all(&store, &[window(0), window(1)]);
    store.maintain(NOW_NS).unwrap();
    assert_eq!(count(&store), (2, 20));
    let later = NOW_NS + 2 * 86_400 * SECOND;
    let tomorrow = Draft::new("a", 9, 2 * 86_400).row("unit=db", "main;query", 1);
    let (of, stacks) = (
        windows(std::slice::from_ref(&tomorrow)),
        definitions(std::slice::from_ref(&tomorrow)),
    );
    assert_eq!(
        store.push(&of, &stacks, later).unwrap(),
        [PushOutcome::Stored]
    );
    store.maintain(later).unwrap();
    assert_eq!(count(&store), (0, 0));
    assert_eq!(
        store.kept().unwrap(),
        Some(range(2 * 86_400, 2 * 86_400 + 10))
    );
    let left = server.statement(&name, "SELECT count() FROM samples");
    assert_eq!(left.trim(), "1");
    let raw = server.statement(
        &name,
        "SELECT system_name FROM frames WHERE function = 'query'",
    );
    assert_eq!(raw.trim(), "JS:*query db.js");
    let old = windows(&[window(0)]);
    let taken = store.push(&old, &definitions(&[window(0)]), later).unwrap();
    assert!(matches!(taken[0], PushOutcome::Rejected(_)), "{taken:?}");
    store.maintain(later).unwrap();
}

/// A store whose levels are days.
pub(super) fn ageing(server: &Front, name: &str) -> ClickHouseStore {
    let days = |days: u64| Duration::from_secs(days * 86_400);
    ClickHouseStore::open(Options {
        raw: days(1),
        minutes: days(3),
        label_sets: days(5),
        retention: days(10),
        ..options(&server.url(), name)
    })
    .unwrap()
}

#[test]
fn where_samples_are_gone_services_answer_in_minutes_then_hours() {
    let Some(server) = server() else { return };
    let name = fresh_name();
    let (store, model) = (ageing(server, &name), Model::default());
    let drafts: Vec<Draft> = (0..300).step_by(7).map(window).collect();
    store_all(&store, &drafts);
    store_all(&model, &drafts);
    let rows = |table: &str| {
        let rows = server.statement(&name, &format!("SELECT count() FROM {table}"));
        rows.trim().parse::<u64>().unwrap()
    };
    let check = |asked: (i64, i64), covered: (i64, i64), step_s: i64| {
        let query = query("unit=web", &["unit"]);
        let answer = store
            .profile(range(asked.0, asked.1), &query, &ample())
            .unwrap();
        let covered = range(covered.0, covered.1);
        let expected = model.profile(covered, &query, &ample()).unwrap();
        assert_eq!(samples(&answer.data), samples(&expected.data), "{asked:?}");
        assert_eq!(answer.quality.covered, covered);
        assert_eq!(answer.quality.resolution.step_ns, (step_s * SECOND) as u64);
        assert_eq!(answer.quality.windows, expected.quality.windows);
    };
    store.maintain(NOW_NS + 2 * 86_400 * SECOND).unwrap();
    assert_eq!(rows("samples"), 0);
    assert!(rows("service_1m") > 0 && rows("totals") > 0);
    check((0, 3600), (0, 3600), 3600);
    check((65, 1255), (60, 1260), 60);
    store.maintain(NOW_NS + 4 * 86_400 * SECOND).unwrap();
    assert_eq!(rows("service_1m"), 0);
    assert!(rows("service_1h") > 0 && rows("totals") > 0);
    check((0, 3600), (0, 3600), 3600);
    check((65, 1255), (0, 3600), 3600);
    store.maintain(NOW_NS + 6 * 86_400 * SECOND).unwrap();
    assert_eq!((rows("totals"), rows("series")), (0, 0));
    check((65, 1255), (0, 3600), 3600);
    store.maintain(NOW_NS + 12 * 86_400 * SECOND).unwrap();
    assert_eq!((rows("service_1h"), rows("windows")), (0, 0));
    assert_eq!(store.kept().unwrap(), None);
}

#[test]
fn where_samples_are_gone_a_scope_that_services_do_not_know_shows_nothing_and_says_so() {
    let Some(server) = server() else { return };
    let name = fresh_name();
    let store = Arc::new(ageing(server, &name));
    let drafts: Vec<Draft> = (0..100).step_by(7).map(window).collect();
    store_all(&*store, &drafts);
    let seen = |scope: &str, now_unix_ns: i64| {
        let caller = Caller {
            name: "eve".to_owned(),
            role: Role::Viewer,
            scope: Some(Scope::parse(scope).unwrap()),
        };
        let eve = ScopedStore::new(store.clone(), &caller, now_unix_ns);
        let found = eve
            .profile(hour(), &query("", &["unit"]), &ample())
            .unwrap();
        (found.quality.total.count, found.quality.not_kept)
    };
    let of_host = format!("host={}", drafts[0].window.label_sets[0].get("host"));
    let (count, said) = seen(&of_host, NOW_NS);
    assert!(count > 0 && said.is_empty(), "{count} {said:?}");
    let later = NOW_NS + 2 * 86_400 * SECOND;
    store.maintain(later).unwrap();
    let (count, said) = seen(&of_host, later);
    assert_eq!((count, said.len()), (0, 1), "{said:?}");
    assert!(
        said[0].starts_with("data older than 2 days is not kept per `host`"),
        "{said:?}"
    );
    let (count, said) = seen("unit=web", later);
    assert!(count > 0 && said.is_empty(), "{count} {said:?}");
}

#[test]
fn a_day_whose_rollups_are_not_exact_keeps_its_samples() {
    let Some(server) = server() else { return };
    let name = fresh_name();
    let (store, model) = (ageing(server, &name), Model::default());
    let drafts: Vec<Draft> = (0..20).map(window).collect();
    store_all(&store, &drafts);
    store_all(&model, &drafts);
    // As after an insert that was repeated.
    server.statement(&name, "INSERT INTO service_1h SELECT * FROM service_1h");
    // And the user may not make tables, so that they cannot be made again.
    let no_right = "Code: 497. DB::Exception: fleetprof: Not enough privileges";
    server.refuse(&name, &["CREATE TABLE rebuilt"], no_right);
    let later = NOW_NS + 6 * 86_400 * SECOND;
    store.maintain(later).unwrap();
    let query = query("unit=web", &["unit"]);
    let answer = store.profile(hour(), &query, &ample()).unwrap();
    let expected = model.profile(hour(), &query, &ample()).unwrap();
    let left = server.statement(&name, "SELECT count() FROM samples");
    assert_eq!(left.trim(), "40");
    let metrics = store.metrics();
    let kept =
        metrics::counted(&metrics).find(|of| of.name == "clickhouse_days_of_samples_kept_longer");
    assert_eq!(kept.unwrap().value, 1);
    assert_eq!(samples(&answer.data), samples(&expected.data));
    assert_eq!(answer.quality.windows, expected.quality.windows);
}

#[test]
fn rollups_are_made_again_before_samples_go() {
    let Some(server) = server() else { return };
    let (name, model) = (fresh_name(), Model::default());
    let store = ageing(server, &name);
    let drafts: Vec<Draft> = (0..4).map(window).collect();
    store_all(&model, &drafts);
    store_all(&store, &drafts);
    // As if the collector had ended after the samples, and agents had come again in other company:
    // now rollups have every row twice, and one has an hour too little.
    server.statement(&name, "TRUNCATE TABLE windows");
    for some in drafts.chunks(3) {
        store_all(&store, some);
    }
    server.statement(&name, "TRUNCATE TABLE service_1m");
    let query = query("unit=web", &["unit"]);
    let before = store.profile(hour(), &query, &ample()).unwrap();
    assert!(
        !before.quality.resolution.by_service,
        "the rollups are wrong"
    );
    store.maintain(NOW_NS + 2 * 86_400 * SECOND).unwrap();
    let left = server.statement(&name, "SELECT count() FROM samples");
    assert_eq!(left.trim(), "0");
    for range in [hour(), range(0, 60), range(0, 40)] {
        let answer = store.profile(range, &query, &ample()).unwrap();
        assert!(answer.quality.resolution.by_service);
        let whole = model.profile(hour(), &query, &ample()).unwrap();
        assert_eq!(samples(&answer.data), samples(&whole.data));
    }
    let beside = format!(
        "SELECT count() FROM system.tables WHERE database = '{name}' AND name LIKE 'rebuilt%'"
    );
    assert_eq!(server.statement(&name, &beside).trim(), "0");
}
