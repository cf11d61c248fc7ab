//! Tests that a server busy with one kind of work does not fail the others.

use super::{NOW_NS, asked, fresh_name, host, open, server, window};
use crate::store::draft::{definitions, push, store_all, windows};
use crate::store::{ample, hour};
use collector::store::clickhouse::ClickHouseStore;
use collector::store::{PushOutcome, StoreError, StoreQueries, StoreStatus, WindowSink};
use metrics::counted;
use profile::Query;
use std::thread;
use std::time::{Duration, Instant};

/// How a busy server answers, in each way that is not an answer to the statement itself.
const BUSY: [&str; 3] = [
    "Code: 202. DB::Exception: Too many simultaneous queries",
    "Code: 209. DB::Exception: Timeout exceeded while reading from socket",
    "Code: 241. DB::Exception: (total) memory limit exceeded",
];

/// Statements of questions: all that read and are not what a push looks up.
const QUESTIONS: &str = " (SELECT|WITH) (?!DISTINCT (host, sequence|day, stack))";

fn counter(store: &ClickHouseStore, name: &str) -> u64 {
    let metrics = store.metrics();
    let found = counted(&metrics).find(|of| of.name == name);
    found.unwrap_or_else(|| panic!("no counter {name}")).value
}

#[test]
fn questions_that_fail_do_not_stop_windows() {
    let Some(server) = server() else { return };
    let name = fresh_name();
    let store = open(&server.url(), &name);
    let mut number = 0;
    for busy in BUSY {
        server.refuse(&name, &[QUESTIONS], busy);
        for _ in 0..3 {
            let answer = store.profile(hour(), &Query::default(), &ample());
            assert!(answer.is_err(), "{busy}");
            assert!(store.kept().is_err(), "{busy}");
            assert!(store.hosts(hour(), &ample()).is_err(), "{busy}");
            // At once: nothing waits for the server to be well.
            assert_eq!(
                push(&store, &[window(number)]),
                [PushOutcome::Stored],
                "{busy}"
            );
            store.put_hosts(&[host("a")]).unwrap();
            assert!(store.issues().is_empty(), "{busy}");
            number += 1;
        }
    }
    assert!(counter(&store, "clickhouse_reads_unavailable_total") > 0);
    assert_eq!(counter(&store, "clickhouse_writes_unavailable_total"), 0);
}

#[test]
fn hosts_that_are_not_taken_do_not_stop_windows() {
    let Some(server) = server() else { return };
    let name = fresh_name();
    let store = open(&server.url(), &name);
    server.refuse(&name, &["INSERT INTO `?(host|attend)"], BUSY[0]);
    for number in 0..3 {
        let put = store.put_hosts(&[host("a")]);
        assert!(matches!(put, Err(StoreError::Unavailable(_))), "{put:?}");
        assert_eq!(push(&store, &[window(number)]), [PushOutcome::Stored]);
        assert!(store.issues().is_empty());
    }
    assert_eq!(counter(&store, "clickhouse_writes_unavailable_total"), 3);
    assert_eq!(counter(&store, "clickhouse_reads_unavailable_total"), 0);
}

#[test]
fn hosts_that_are_taken_do_not_end_an_outage_of_windows() {
    let Some(server) = server() else { return };
    let name = fresh_name();
    let store = open(&server.url(), &name);
    store_all(&store, &[window(0)]);
    server.refuse(&name, &["INSERT INTO `?totals"], BUSY[0]);
    let (new, stacks) = (windows(&[window(1)]), definitions(&[window(1)]));
    let tries = || asked(server, &name, "FROM windows WHERE toDate(chunk) IN").len();
    let (before, mut longest, mut hosts_taken) = (tries(), Duration::ZERO, 0);
    // Waits of 100, 200, 400 and 800 ms, each ended by a host that is taken.
    let mut failed = Instant::now();
    for _ in 0..5 {
        let asked_before = tries();
        while tries() == asked_before {
            // Before the push, which is asked for as soon as the wait is over.
            if store.put_hosts(&[host("a")]).is_ok() && tries() > before {
                hosts_taken += 1;
                assert_eq!(store.issues().len(), 1, "windows are not taken");
            }
            let taken = store.push(&new, &stacks, NOW_NS);
            let away = matches!(taken, Err(StoreError::Unavailable(_)));
            assert!(away, "{taken:?}");
            thread::sleep(Duration::from_millis(2));
        }
        longest = longest.max(failed.elapsed());
        failed = Instant::now();
    }
    assert!(hosts_taken >= 4, "{hosts_taken} hosts");
    assert!(longest >= Duration::from_millis(800), "{longest:?}");
    server.forget_rules(&name);
    super::push_until_taken(&store, &window(1));
    assert!(store.issues().is_empty());
}
