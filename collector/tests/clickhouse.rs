//! Tests the ClickHouse store against the real engine, through a front end of its HTTP interface.
//!
//! The engine is PyPI's `chdb`, installed by `collector/tests/chdb.sh`. Without it, every test here
//! reports that and does nothing.
#![expect(clippy::unwrap_used, reason = "all of it is tests")]

#[path = "clickhouse/agents.rs"]
mod agents;
#[path = "clickhouse/ages.rs"]
mod ages;
#[path = "clickhouse/command.rs"]
mod command;
#[path = "clickhouse/confined.rs"]
mod confined;
#[path = "clickhouse/copy.rs"]
mod copy;
#[path = "clickhouse/cost.rs"]
mod cost;
#[path = "clickhouse/ddl.rs"]
mod ddl;
mod front;
#[path = "clickhouse/outage.rs"]
mod outage;
#[path = "clickhouse/retire.rs"]
mod retire;
#[path = "clickhouse/senders.rs"]
mod senders;
#[path = "clickhouse/shards.rs"]
mod shards;
mod store;
#[path = "clickhouse/tls.rs"]
mod tls;
#[path = "clickhouse/versions.rs"]
mod versions;

use collector::store::clickhouse::{ClickHouseStore, OpenError, Options};
use collector::store::{
    ConnectedHost, HostFacts, HostKey, HostRecord, Limits, NoticeBoard, PushOutcome, Store,
    StoreError, StoreQueries, StoreStatus, WindowSink,
};
use front::{Front, LoggedQuery, shared, shared_cluster};
use profile::Query;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use store::draft::{Draft, definitions, push, store_all, windows};
use store::model::Model;
use store::text::samples;
use store::{Engine, NOW_NS, Place, SECOND, ample, hour, query, range, whole_hour};
use tempfile::TempDir;

suite!(clickhouse, crate::ClickHouse);
suite!(slow sharded, crate::Sharded);

/// What is put together from shards: the rest of their answers is theirs, and takes minutes.
mod together {
    crate::suite_cases!(crate::Sharded;
        pushes: a_repeat_in_a_later_call_counts_once;
        queries: lines_beyond_the_limit_are_added_up;
        quality: gaps_are_of_the_selected_hosts;
        limits: too_many_stacks_are_folded_into_their_callers;
        random: answers_are_those_of_the_model;
        scopes: hosts_are_those_in_the_scope_with_what_is_in_it;
    );
}

/// Databases of one server, one for each place.
struct ClickHouse;

/// Databases of two shards.
struct Sharded;

struct Database {
    options: Options,
}

impl Engine for ClickHouse {
    fn place(&self) -> Result<Box<dyn Place>, String> {
        let options = options(&shared()?.url(), &fresh_name());
        Ok(Box::new(Database { options }))
    }
}

impl Engine for Sharded {
    fn place(&self) -> Result<Box<dyn Place>, String> {
        let options = shards::of_cluster(shared_cluster()?.urls(), &fresh_name());
        Ok(Box::new(Database { options }))
    }

    /// Each shard has its own.
    fn knows_stacks_of_all_hosts(&self) -> bool {
        false
    }
}

impl Place for Database {
    fn open(&self) -> Arc<dyn Store> {
        Arc::new(ClickHouseStore::open(self.options.clone()).unwrap())
    }
}

fn fresh_name() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    format!("t{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

fn options(url: &str, database: &str) -> Options {
    Options {
        urls: vec![url.to_owned()],
        database: database.to_owned(),
        write_timeout: Duration::from_secs(120),
        ..Options::default()
    }
}

/// The shared server, or a line that says what is missing.
fn server() -> Option<&'static Front> {
    shared()
        .map_err(|why| testkit::skip(format_args!("{why}")))
        .ok()
}

/// Statements of stores in a database that contain `part`, oldest first.
fn asked(server: &Front, database: &str, part: &str) -> Vec<LoggedQuery> {
    let mut all = server.asked(database);
    all.retain(|statement| statement.sql.contains(part));
    all
}

/// Inserts with rows beside the statement, and their tables; oldest first.
fn inserted(server: &Front, database: &str) -> Vec<(String, LoggedQuery)> {
    let with_rows = asked(server, database, "INSERT INTO ")
        .into_iter()
        .filter(|insert| insert.unpacked_bytes > 0);
    let table = |insert: &LoggedQuery| {
        let table = insert.sql.strip_prefix("INSERT INTO ").unwrap();
        let table = table.trim_start_matches('`');
        let end = table.find(|c: char| !c.is_alphanumeric() && c != '_');
        table[..end.unwrap()].to_owned()
    };
    with_rows.map(|insert| (table(&insert), insert)).collect()
}

fn open(url: &str, database: &str) -> ClickHouseStore {
    ClickHouseStore::open(options(url, database)).unwrap()
}

fn window(sequence: u64) -> Draft {
    Draft::new("a", sequence, sequence as i64 * 10)
        .row("unit=web,comm=nginx", "main;serve", 7)
        .row("unit=db,comm=pg", "main;query", 3)
}

fn count(store: &dyn Store) -> (u64, u64) {
    let quality = whole_hour(store).quality;
    (quality.windows, quality.total.count)
}

/// Pushes until the server takes it; agents do the same.
fn push_until_taken(store: &dyn Store, draft: &Draft) -> PushOutcome {
    let give_up = Instant::now() + Duration::from_secs(120);
    let (window, stacks) = (
        windows(std::slice::from_ref(draft)),
        definitions(std::slice::from_ref(draft)),
    );
    loop {
        match store.push(&window, &stacks, NOW_NS) {
            Ok(mut taken) => return taken.remove(0),
            Err(StoreError::Unavailable(_)) => {}
            Err(error) => panic!("{error}"),
        }
        assert!(Instant::now() < give_up, "the server never came back");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_server_that_is_away_takes_nothing_and_everything_later() {
    let directory = TempDir::new().unwrap();
    let front = match Front::start(directory.path(), 0) {
        Ok(front) => front,
        Err(why) => return testkit::skip(format_args!("{why}")),
    };
    let store = open(&front.url(), "away");
    store_all(&store, &[window(0)]);
    let killed = front.kill();
    for _ in 0..3 {
        let (window, stacks) = (windows(&[window(1)]), definitions(&[window(1)]));
        let taken = store.push(&window, &stacks, NOW_NS);
        assert!(
            matches!(taken, Err(StoreError::Unavailable(_))),
            "{taken:?}"
        );
    }
    let answer = store.profile(hour(), &Query::default(), &ample());
    assert!(matches!(answer, Err(StoreError::Unavailable(_))));
    assert_eq!(store.issues().len(), 1);

    let _front = killed.start_again();
    assert_eq!(push_until_taken(&store, &window(1)), PushOutcome::Stored);
    assert!(store.issues().is_empty());
    assert_eq!(
        push(&store, &[window(0), window(1)]),
        [PushOutcome::Duplicate, PushOutcome::Duplicate]
    );
    assert_eq!(count(&store), (2, 20));
}

#[test]
fn a_server_killed_again_and_again_has_each_window_once() {
    const WINDOWS: u64 = 60;
    let directory = TempDir::new().unwrap();
    let front = match Front::start(directory.path(), 0) {
        Ok(front) => front,
        Err(why) => return testkit::skip(format_args!("{why}")),
    };
    let store = open(&front.url(), "killed");
    let mut front = Some(front);
    let pushed = AtomicU64::new(0);
    thread::scope(|scope| {
        let pushing = scope.spawn(|| {
            for sequence in 0..WINDOWS {
                let taken = push_until_taken(&store, &window(sequence));
                assert!(
                    matches!(taken, PushOutcome::Stored | PushOutcome::Duplicate),
                    "{taken:?}"
                );
                pushed.store(sequence + 1, Ordering::Release);
            }
        });
        for kill_after in [5, 20, 40] {
            while pushed.load(Ordering::Acquire) < kill_after {
                assert!(!pushing.is_finished(), "pushing failed, see above");
                thread::sleep(Duration::from_millis(1));
            }
            front = front.take().map(|front| front.kill().start_again());
        }
    });
    assert_eq!(count(&store), (WINDOWS, WINDOWS * 10));
    let again: Vec<Draft> = (0..WINDOWS).map(window).collect();
    assert_eq!(
        push(&store, &again),
        vec![PushOutcome::Duplicate; WINDOWS as usize]
    );
    assert_eq!(count(&store), (WINDOWS, WINDOWS * 10));
}

#[test]
fn two_collectors_on_one_database_count_each_window_once() {
    let Some(server) = server() else { return };
    let name = fresh_name();
    // Opened at once: both make the tables, and both come to the same key.
    let stores = thread::scope(|scope| {
        let open = || scope.spawn(|| open(&server.url(), &name));
        [open(), open()].map(|store| store.join().unwrap())
    });
    thread::scope(|scope| {
        for store in &stores {
            scope.spawn(move || {
                for first in 0..6 {
                    let some: Vec<Draft> = (first * 5..first * 5 + 10).map(window).collect();
                    let taken = push(store, &some);
                    let fine = |of: &PushOutcome| {
                        matches!(of, PushOutcome::Stored | PushOutcome::Duplicate)
                    };
                    assert!(taken.iter().all(fine), "{taken:?}");
                }
            });
        }
    });
    for store in &stores {
        assert_eq!(count(store), (35, 350));
        let by_unit = store
            .profile(hour(), &query("unit=web", &["unit"]), &ample())
            .unwrap();
        assert_eq!(by_unit.quality.total.count, 35 * 7);
    }
    // A stack that one of them defined is known to the other.
    let later = windows(&[window(100)]);
    let taken = stores[1].push(&later, &Default::default(), NOW_NS).unwrap();
    assert_eq!(taken, [PushOutcome::Stored]);
}

#[test]
fn rows_whose_window_was_never_stored_do_not_count() {
    let Some(server) = server() else { return };
    let name = fresh_name();
    let store = open(&server.url(), &name);
    let drafts: Vec<Draft> = (0..4).map(window).collect();
    store_all(&store, &drafts);
    // As if the collector had ended after the samples and before the windows.
    server.statement(&name, "TRUNCATE TABLE windows");
    assert_eq!(count(&store), (0, 0));
    let by_unit = query("", &["unit"]);
    let answer = store.profile(hour(), &by_unit, &ample()).unwrap();
    assert_eq!(answer.quality.total.count, 0);
    // The agents come again, in another company, and now the rows are there twice.
    for some in drafts.chunks(3) {
        store_all(&store, some);
    }
    assert_eq!(count(&store), (4, 40));
    let answer = store.profile(hour(), &by_unit, &ample()).unwrap();
    assert_eq!(answer.quality.total.count, 40);
    assert!(
        !answer.quality.resolution.by_service,
        "the rollup has every row twice"
    );
    let totals = store
        .totals(&store::scope(hour(), ""), &[], &ample())
        .unwrap();
    assert_eq!(totals.data[0].taken.count, 40);
    // Merging on disk changes nothing.
    for table in ["samples", "totals", "windows"] {
        server.statement(&name, &format!("OPTIMIZE TABLE {table} FINAL"));
    }
    assert_eq!(count(&store), (4, 40));
}

#[test]
fn an_insert_that_comes_again_as_it_was_leaves_rollups_exact() {
    let Some(server) = server() else { return };
    let name = fresh_name();
    let store = open(&server.url(), &name);
    let drafts: Vec<Draft> = (0..4).map(window).collect();
    store_all(&store, &drafts);
    // As if the server had been killed after the samples and before the windows.
    server.statement(&name, "TRUNCATE TABLE windows");
    store_all(&store, &drafts);
    assert_eq!(count(&store), (4, 40));
    assert_by_service(&store, 40);
}

/// Sums over services answer, and are these.
fn assert_by_service(store: &dyn Store, count: u64) {
    let answer = store.profile(hour(), &query("", &["unit"]), &ample());
    let quality = answer.unwrap().quality;
    assert!(quality.resolution.by_service);
    assert_eq!(quality.total.count, count);
}

#[test]
fn what_was_started_when_the_server_went_away_is_finished_first() {
    let Some(server) = server() else { return };
    let name = fresh_name();
    let store = open(&server.url(), &name);
    store_all(&store, &[window(0)]);
    let windows_take = |setting: &str| {
        server.statement(&name, &format!("ALTER TABLE windows {setting}"));
    };
    // It takes the samples of two windows, and has no room for the windows.
    windows_take("MODIFY SETTING parts_to_throw_insert = 1, parts_to_delay_insert = 0");
    let both = [window(1), window(2)];
    let taken = store.push(&windows(&both), &definitions(&both), NOW_NS);
    assert!(
        matches!(taken, Err(StoreError::Unavailable(_))),
        "{taken:?}"
    );
    assert_eq!(count(&store), (1, 10));
    windows_take("RESET SETTING parts_to_throw_insert, parts_to_delay_insert");
    // Their agents come again, each when it likes and with what is new.
    assert_eq!(push_until_taken(&store, &window(2)), PushOutcome::Duplicate);
    assert_eq!(
        push(&store, &[window(3), window(1)]),
        [PushOutcome::Stored, PushOutcome::Duplicate]
    );
    assert_eq!(count(&store), (4, 40));
    assert_by_service(&store, 40);
}

#[test]
fn what_the_server_never_takes_does_not_keep_others_out() {
    let Some(server) = server() else { return };
    let name = fresh_name();
    let store = open(&server.url(), &name);
    store_all(&store, &[window(0)]);
    // No room, for good, and for some rows alone.
    let refused = "throwIf(n = 3, 'no room', toInt32(252))";
    server.statement(
        &name,
        &format!(
            "CREATE MATERIALIZED VIEW full ENGINE = Null AS SELECT {refused} AS no FROM totals \
             SETTINGS allow_custom_error_code_in_throwif = 1"
        ),
    );
    let one = [window(1)];
    let taken = store.push(&windows(&one), &definitions(&one), NOW_NS);
    assert!(
        matches!(taken, Err(StoreError::Unavailable(_))),
        "{taken:?}"
    );
    let other = Draft::new("b", 1, 0).row("unit=web", "main;serve", 7);
    assert_eq!(push_until_taken(&store, &other), PushOutcome::Stored);
    assert_eq!(count(&store), (2, 17));
}

#[test]
fn what_another_collector_stored_meanwhile_is_not_finished() {
    let Some(server) = server() else { return };
    let name = fresh_name();
    let (store, other) = (open(&server.url(), &name), open(&server.url(), &name));
    store_all(&store, &[window(0)]);
    server.statement(
        &name,
        "ALTER TABLE totals MODIFY SETTING parts_to_throw_insert = 1, parts_to_delay_insert = 0",
    );
    let both = [window(1), window(2)];
    let taken = store.push(&windows(&both), &definitions(&both), NOW_NS);
    assert!(
        matches!(taken, Err(StoreError::Unavailable(_))),
        "{taken:?}"
    );
    server.statement(
        &name,
        "ALTER TABLE totals RESET SETTING parts_to_throw_insert, parts_to_delay_insert",
    );
    store_all(&other, &[window(1)]);
    assert_eq!(push_until_taken(&store, &window(2)), PushOutcome::Stored);
    assert_eq!(count(&store), (3, 30));
    assert_by_service(&store, 30);
}

#[test]
fn hosts_of_which_half_was_written_are_all_there_when_they_come_again() {
    let Some(server) = server() else { return };
    let name = fresh_name();
    let store = open(&server.url(), &name);
    let hosts: Vec<HostRecord> = (0..5)
        .map(|number| HostRecord {
            facts: HostFacts {
                hostname: format!("host-{number}"),
                health: vec![number],
                ..HostFacts::default()
            },
            ..host(&number.to_string())
        })
        .collect();
    // Health is written, and then the server has no table for hosts.
    server.statement(&name, "RENAME TABLE hosts TO elsewhere");
    assert!(store.put_hosts(&hosts).is_err());
    server.statement(&name, "RENAME TABLE elsewhere TO hosts");
    assert!(store.hosts(hour(), &ample()).unwrap().is_empty());
    store.put_hosts(&hosts).unwrap();
    let found = store.hosts(hour(), &ample()).unwrap();
    let found: Vec<HostRecord> = found.into_iter().map(|(host, _)| host).collect();
    assert_eq!(found, hosts);
}

#[test]
fn rollups_answer_where_they_are_exact() {
    let Some(server) = server() else { return };
    let store = open(&server.url(), &fresh_name());
    let model = Model::default();
    let drafts: Vec<Draft> = (0..300).step_by(7).map(window).collect();
    store_all(&store, &drafts);
    store_all(&model, &drafts);
    for (from, to, selector, by, step_s) in [
        (0, 3600, "", &[][..], 3600),
        (0, 3600, "unit=web", &["unit"], 3600),
        (60, 1260, "unit=~\"w.*\"", &["unit"], 60),
        (0, 3600, "comm=nginx", &["unit"], 10),
        (0, 3600, "", &["host"], 10),
        (10, 3600, "", &["unit"], 10),
        (-60, 3660, "", &["unit"], 60),
    ] {
        let query = query(selector, by);
        let answer = store.profile(range(from, to), &query, &ample()).unwrap();
        let expected = model.profile(range(from, to), &query, &ample()).unwrap();
        assert_eq!(samples(&answer.data), samples(&expected.data));
        assert_eq!(
            answer.quality.resolution.step_ns,
            step_s * SECOND as u64,
            "{selector} {by:?}"
        );
        assert_eq!(answer.quality.resolution.by_service, step_s > 10);
        assert_eq!(answer.quality.sampling, expected.quality.sampling);
        assert_eq!(answer.quality.unit, "nanoseconds");
    }
}

/// A host as it is first heard of.
fn host(name: &str) -> HostRecord {
    HostRecord {
        key: HostKey {
            host_id: format!("id-of-{name}"),
            boot_id: [1; 16],
        },
        facts: HostFacts::default(),
        first_seen_unix_ns: 1,
        last_seen_unix_ns: NOW_NS,
        clock_ahead_ns: 0,
    }
}

#[test]
fn options_that_make_no_sense_are_said_by_name() {
    let wrong = |change: fn(&mut Options)| {
        let mut options = Options::default();
        change(&mut options);
        ClickHouseStore::open(options).err().unwrap().to_string()
    };
    let quoted = wrong(|options| options.database = "a`; DROP DATABASE b".to_owned());
    assert!(quoted.contains("clickhouse.database"), "{quoted}");
    let scheme = wrong(|options| options.urls = vec!["tcp://localhost:9000".to_owned()]);
    assert!(scheme.contains("clickhouse.urls"), "{scheme}");
    let file = wrong(|options| options.password_file = Some("/no/such/file".into()));
    assert!(file.contains("/no/such/file"), "{file}");
}

/// A server that answers the first request with `answer`, and what it was asked.
fn answering(answer: &'static str) -> (String, thread::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let heard = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = [0; 4096];
        let length = stream.read(&mut bytes).unwrap();
        stream.write_all(answer.as_bytes()).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    });
    (url, heard)
}

#[test]
fn credentials_are_sent_and_a_refusal_is_told() {
    let (url, heard) = answering(
        "HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: 55\r\n\r\n\
         Code: 516. DB::Exception: alice: Authentication failed.",
    );
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("password");
    std::fs::write(&file, "s3cret\n").unwrap();
    let error = ClickHouseStore::open(Options {
        user: Some("alice".to_owned()),
        password_file: Some(file),
        ..options(&url, "any")
    })
    .err()
    .unwrap();
    assert!(matches!(error, OpenError::Away { .. }), "{error}");
    assert!(
        error.to_string().contains("Authentication failed"),
        "{error}"
    );
    assert!(!error.to_string().contains("s3cret"));
    let heard = heard.join().unwrap().to_lowercase();
    assert!(
        heard.contains("alice") && heard.contains("s3cret"),
        "{heard}"
    );
    assert!(
        !heard.lines().next().unwrap().contains("s3cret"),
        "not in the address"
    );
}

#[test]
fn a_server_that_never_answers_is_away() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let error = ClickHouseStore::open(Options {
        write_timeout: Duration::from_millis(200),
        ..options(&url, "any")
    })
    .err()
    .unwrap();
    assert!(matches!(error, OpenError::Away { .. }), "{error}");
}

#[test]
fn a_query_that_waits_is_given_up_when_its_client_goes() {
    let Some(server) = server() else { return };
    let store = open(&server.url(), &fresh_name());
    store_all(&store, &[window(0)]);
    let limits = ample();
    thread::scope(|scope| {
        // The front does one statement at a time, so the query behind this one waits.
        scope.spawn(|| {
            server.statement(
                "default",
                "SELECT sleepEachRow(0.5) FROM numbers(4) SETTINGS max_block_size = 1",
            );
        });
        let of = Limits {
            cancel: limits.cancel.clone(),
            ..ample()
        };
        let asked = scope.spawn(move || {
            loop {
                let answer = store.profile(hour(), &Query::default(), &of);
                if answer.is_err() {
                    break answer;
                }
            }
        });
        limits.cancel.cancel();
        let answer = asked.join().unwrap();
        assert!(matches!(answer, Err(StoreError::Cancelled)));
    });
}

#[test]
fn collectors_tell_each_other_which_hosts_are_connected() {
    let Some(front) = server() else {
        return;
    };
    let database = fresh_name();
    let (one, other) = (open(&front.url(), &database), open(&front.url(), &database));
    // The rows are of today, because rows are removed after a day.
    let now = collector::time::Clock::system().now_unix_ns();
    let host = |name: &str, collector: &str, seen_s: i64| ConnectedHost {
        host_id: format!("id-{name}"),
        hostname: name.to_owned(),
        labels: [("zone".to_owned(), format!("zone of {collector}"))].into(),
        collector: collector.to_owned(),
        seen_unix_ns: now + seen_s * SECOND,
    };
    one.announce_hosts(&[]).unwrap();
    one.announce_hosts(&[
        host("a", "one", 0),
        host("b", "one", 0),
        host("old", "one", -61),
    ])
    .unwrap();
    // It came from the one to the other; the one has not heard of it since.
    other
        .announce_hosts(&[host("b", "other", 7), host("c", "other", 7)])
        .unwrap();
    let limits = ample();
    let since = now - 60 * SECOND;
    let found = one.connected_hosts(since, &limits).unwrap();
    let expected = [
        host("a", "one", 0),
        host("b", "other", 7),
        host("c", "other", 7),
    ];
    assert_eq!(found, expected);
    one.announce_hosts(&[host("a", "one", 20)]).unwrap();
    assert_eq!(
        other.connected_hosts(since, &limits).unwrap()[0],
        host("a", "one", 20)
    );
    let few = Limits { lines: 1, ..limits };
    assert_eq!(other.connected_hosts(since, &few).unwrap().len(), 1);
}
