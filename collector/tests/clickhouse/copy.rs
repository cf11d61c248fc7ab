//! Tests that what the embedded store has comes to ClickHouse as it was.

use super::{NOW_NS, fresh_name, host, open, server};
use crate::store::draft::{Draft, PERIOD, store_all};
use crate::store::model::Model;
use crate::store::text::samples;
use crate::store::{ample, hour, names, range, scope, whole_hour};
use collector::store::copy::{Copied, copy};
use collector::store::embedded::{self, EmbeddedStore};
use collector::store::{Gap, StoreError, StoreQueries, WindowSink};
use std::path::Path;
use tempfile::TempDir;

/// Windows of two hosts over three chunks of time, with all that a window can have.
fn drafts() -> Vec<Draft> {
    let of = |host: &str, number: u64| {
        Draft::new(host, number, number as i64 * 10)
            .row(
                "cgroup=/a,unit=web,comm=nginx",
                "main;serve",
                3 + number % 5,
            )
            .row(
                "cgroup=/a,unit=web,comm=nginx",
                &format!("main;n{}", number % 7),
                1,
            )
            .row("cgroup=/b,unit=db,comm=pg", "main;query", 2)
            .lost("cgroup=/b,unit=db", 1)
            .account("/a", 9 * PERIOD, 0)
            .throttled(2 * PERIOD, 200)
            .account("/b", 4 * PERIOD, PERIOD)
            .pressure(3, 2, 1)
    };
    let mut all: Vec<Draft> = (0..150).flat_map(|at| [of("a", at), of("b", at)]).collect();
    all.push(
        Draft::new("c", 7, 70)
            .row("unit=web", "main;serve", 1)
            .with(|window| {
                window.dropped_before = Some(Gap {
                    range: range(20, 70),
                    windows: 5,
                    samples: 50,
                    cause: "disk_full".to_owned(),
                });
            }),
    );
    // Without rows.
    all.push(Draft::new("c", 8, 80));
    all
}

/// The embedded store with these windows in its files.
fn embedded(directory: &Path, drafts: &[Draft]) -> EmbeddedStore {
    let open = || EmbeddedStore::open(directory, embedded::Options::default(), NOW_NS).unwrap();
    let store = open();
    store_all(&store, drafts);
    for name in ["a", "b", "c"] {
        store.put_hosts(&[host(name)]).unwrap();
    }
    store.close().unwrap();
    drop(store);
    open()
}

#[test]
fn what_was_copied_answers_as_before() {
    let Some(server) = server() else { return };
    let (directory, drafts) = (TempDir::new().unwrap(), drafts());
    let from = embedded(directory.path(), &drafts);
    let to = open(&server.url(), &fresh_name());
    let copied = copy(&from, &to, NOW_NS, |_, _| {}).unwrap();
    let expected = Copied {
        stored: drafts.len() as u64,
        hosts: 3,
        ..Copied::default()
    };
    assert_eq!(copied, expected);
    let model = Model::default();
    store_all(&model, &drafts);
    let (found, wanted) = (whole_hour(&to), whole_hour(&model));
    assert_eq!(samples(&found.data), samples(&wanted.data));
    assert_eq!(found.quality.windows, wanted.quality.windows);
    assert_eq!(found.quality.gaps, wanted.quality.gaps);
    let at = scope(hour(), "");
    for by in [&["unit"][..], &["host", "cgroup"]] {
        let of = |store: &dyn StoreQueries| store.totals(&at, &names(by), &ample()).unwrap().data;
        assert_eq!(of(&to), of(&from), "{by:?}");
        let of = |store: &dyn StoreQueries| {
            let series = store.accounted(&at, &names(by), 60_000_000_000, &ample());
            series.unwrap().data
        };
        assert_eq!(of(&to), of(&from), "{by:?}");
    }
    let hosts = |store: &dyn StoreQueries| store.hosts(hour(), &ample()).unwrap();
    assert_eq!(hosts(&to), hosts(&from));
}

#[test]
fn a_copy_that_ended_goes_on() {
    let Some(server) = server() else { return };
    let (directory, drafts) = (TempDir::new().unwrap(), drafts());
    let from = embedded(directory.path(), &drafts);
    let name = fresh_name();
    let to = open(&server.url(), &name);
    // It ends after the first ten minutes.
    let no = "Code: 62. DB::Exception: Syntax error";
    let ended = copy(&from, &to, NOW_NS, |_, _| {
        server.refuse(&name, &["INSERT INTO `?windows"], no);
    });
    assert!(matches!(ended, Err(StoreError::Engine { .. })), "{ended:?}");
    server.forget_rules(&name);
    let copied = copy(&from, &to, NOW_NS, |_, _| {}).unwrap();
    assert!(copied.there > 0 && copied.stored > 0, "{copied:?}");
    assert_eq!(copied.there + copied.stored, drafts.len() as u64);
    assert!(copied.lacking.is_empty());
    let model = Model::default();
    store_all(&model, &drafts);
    assert_eq!(
        samples(&whole_hour(&to).data),
        samples(&whole_hour(&model).data)
    );
}

#[test]
fn what_the_target_lacks_is_named() {
    let Some(server) = server() else { return };
    let directory = TempDir::new().unwrap();
    let from = embedded(directory.path(), &drafts());
    let name = fresh_name();
    let to = open(&server.url(), &name);
    // Somebody removes what was just copied.
    let mut first = None;
    let copied = copy(&from, &to, NOW_NS, |range, _| {
        if first.is_none() {
            server.statement(&name, "TRUNCATE TABLE totals");
            first = Some(range.start_unix_ns);
        }
    });
    assert_eq!(copied.unwrap().lacking, Vec::from_iter(first));
}
