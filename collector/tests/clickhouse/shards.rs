//! Tests a database of several shards, each a real engine of its own. Collectors speak to every
//! shard themselves, so what is tested is how it works; what stands for a Keeper, which one process
//! does not have, is said in `clickhouse_front.py`.

use super::{NOW_NS, assert_by_service, fresh_name, options};
use crate::front::{Cluster, Front, shared_cluster};
use crate::store::draft::{Draft, definitions, push, store_all, windows};
use crate::store::model::Model;
use crate::store::text::samples;
use crate::store::{ample, hour, query, whole_hour};
use collector::store::clickhouse::{ClickHouseStore, OpenError, Options};
use collector::store::{PushOutcome, Store, StoreError, StoreQueries, StoreStatus, WindowSink};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Hosts of a test, enough for both shards to have some.
const HOSTS: u64 = 12;

pub fn of_cluster(urls: Vec<String>, database: &str) -> Options {
    Options {
        urls,
        cluster: Some("fleet".to_owned()),
        ..options("http://any", database)
    }
}

fn open(cluster: &Cluster, database: &str) -> ClickHouseStore {
    ClickHouseStore::open(of_cluster(cluster.urls(), database)).unwrap()
}

/// A window of each host.
fn round(number: u64) -> Vec<Draft> {
    let of = |host| {
        Draft::new(&format!("h{host}"), number, number as i64 * 10)
            .row("unit=web", "main;serve", 7)
            .row("unit=db", "main;query", 3)
    };
    (0..HOSTS).map(of).collect()
}

fn number(shard: &Front, database: &str, sql: &str) -> u64 {
    shard.statement(database, sql).trim().parse().unwrap()
}

/// Pushes all until all are stored, as agents do.
fn push_all(store: &dyn Store, drafts: &[Draft]) {
    let give_up = Instant::now() + Duration::from_secs(120);
    let mut left: Vec<Draft> = drafts.to_vec();
    while !left.is_empty() {
        assert!(Instant::now() < give_up, "the shards never took all");
        match store.push(&windows(&left), &definitions(&left), NOW_NS) {
            Ok(taken) => {
                let mut taken = taken.into_iter();
                left.retain(|_| {
                    let outcome = taken.next().unwrap();
                    let again = matches!(outcome, PushOutcome::Unavailable(_));
                    let fine = matches!(outcome, PushOutcome::Stored | PushOutcome::Duplicate);
                    assert!(again || fine, "{outcome:?}");
                    again
                });
            }
            Err(StoreError::Unavailable(_)) => {}
            Err(error) => panic!("{error}"),
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// All answers are those of the model, and those from rollups are those from samples.
fn assert_all(store: &ClickHouseStore, drafts: &[Draft]) {
    let model = Model::default();
    store_all(&model, drafts);
    let (found, expected) = (whole_hour(store), whole_hour(&model));
    assert_eq!(samples(&found.data), samples(&expected.data));
    assert_eq!(found.quality.windows, drafts.len() as u64);
    assert_by_service(store, drafts.len() as u64 * 10);
    let by_service = query("", &["unit"]);
    let rollup = store.profile(hour(), &by_service, &ample()).unwrap();
    let raw = model.profile(hour(), &by_service, &ample()).unwrap();
    assert_eq!(samples(&rollup.data), samples(&raw.data));
}

#[test]
fn each_shard_has_the_complete_windows_of_its_hosts() {
    let cluster = match shared_cluster() {
        Ok(cluster) => cluster,
        Err(why) => return testkit::skip(format_args!("{why}")),
    };
    let name = fresh_name();
    let store = open(cluster, &name);
    store_all(&store, &round(0));
    store_all(&store, &round(1));
    let mut hosts = 0;
    for shard in &cluster.shards {
        let own = number(shard, &name, "SELECT uniqExact(host) FROM windows");
        assert!(own > 0, "every shard has hosts");
        hosts += own;
        let rows = |table: &str| number(shard, &name, &format!("SELECT count() FROM {table}"));
        assert_eq!(rows("windows"), own * 2);
        // With what names them.
        assert_eq!(rows("samples"), own * 4);
        let unnamed = "SELECT count() FROM samples WHERE series NOT IN (SELECT series FROM series) \
                       OR stack NOT IN (SELECT stack FROM stacks)";
        assert_eq!(number(shard, &name, unnamed), 0);
        let orphans = "SELECT count() FROM samples WHERE (chunk, slot, origin) NOT IN \
                       (SELECT chunk, slot, origin FROM windows)";
        assert_eq!(number(shard, &name, orphans), 0);
    }
    assert_eq!(hosts, HOSTS);
    let all = [round(0), round(1)].concat();
    assert_all(&store, &all);
}

#[test]
fn a_push_is_one_insert_for_each_shard_and_table() {
    let cluster = match shared_cluster() {
        Ok(cluster) => cluster,
        Err(why) => return testkit::skip(format_args!("{why}")),
    };
    let name = fresh_name();
    let store = open(cluster, &name);
    store_all(&store, &round(0));
    for shard in &cluster.shards {
        let inserts = super::inserted(shard, &name);
        let of = |table: &str| inserts.iter().filter(|(of, _)| of == table).count();
        assert_eq!((of("feed"), of("windows"), of("totals")), (1, 1, 1));
    }
}

#[test]
fn a_shard_that_is_away_keeps_out_its_own_hosts_alone() {
    let mut cluster = match Cluster::start(2) {
        Ok(cluster) => cluster,
        Err(why) => return testkit::skip(format_args!("{why}")),
    };
    let name = fresh_name();
    let store = open(&cluster, &name);
    store_all(&store, &round(0));
    let own = number(&cluster.shards[1], &name, "SELECT count() FROM windows");
    let next = round(1);
    cluster.restart(1, || {
        let taken = store
            .push(&windows(&next), &definitions(&next), NOW_NS)
            .unwrap();
        let away = |of: &&PushOutcome| matches!(of, PushOutcome::Unavailable(_));
        assert_eq!(taken.iter().filter(away).count() as u64, own);
        let stored = taken
            .iter()
            .filter(|of| **of == PushOutcome::Stored)
            .count();
        assert_eq!(stored as u64, HOSTS - own);
        assert_eq!(store.issues().len(), 1);
        // An answer without it would look like one of a smaller fleet.
        let answer = store.profile(hour(), &query("", &[]), &ample());
        let Err(StoreError::Unavailable(why)) = answer else {
            panic!("half an answer");
        };
        assert!(why.contains("shard `2`"), "{why}");
    });
    push_all(&store, &next);
    assert!(store.issues().is_empty());
    assert_eq!(
        push(&store, &next),
        vec![PushOutcome::Duplicate; HOSTS as usize]
    );
    assert_all(&store, &[round(0), next].concat());
}

#[test]
fn shards_killed_in_turn_have_each_window_once() {
    const ROUNDS: u64 = 24;
    let mut cluster = match Cluster::start(2) {
        Ok(cluster) => cluster,
        Err(why) => return testkit::skip(format_args!("{why}")),
    };
    let name = fresh_name();
    let store = open(&cluster, &name);
    let done = Mutex::new(0);
    thread::scope(|scope| {
        let pushing = scope.spawn(|| {
            for number in 0..ROUNDS {
                push_all(&store, &round(number));
                *done.lock().unwrap() = number + 1;
            }
        });
        for (kill_after, shard) in [(3, 0), (8, 1), (13, 0), (18, 1)] {
            while *done.lock().unwrap() < kill_after {
                assert!(!pushing.is_finished(), "pushing failed, see above");
                thread::sleep(Duration::from_millis(1));
            }
            cluster.restart(shard, || {});
        }
    });
    let all: Vec<Draft> = (0..ROUNDS).flat_map(round).collect();
    assert_all(&store, &all);
    assert_eq!(push(&store, &all), vec![PushOutcome::Duplicate; all.len()]);
    assert_all(&store, &all);
}

#[test]
fn what_a_slow_shard_takes_after_all_counts_once() {
    let cluster = match shared_cluster() {
        Ok(cluster) => cluster,
        Err(why) => return testkit::skip(format_args!("{why}")),
    };
    let name = fresh_name();
    let store = ClickHouseStore::open(Options {
        write_timeout: Duration::from_secs(2),
        ..of_cluster(cluster.urls(), &name)
    })
    .unwrap();
    store_all(&store, &round(0));
    // The samples are taken long after the collector stopped waiting for it.
    cluster.shards[1].slow(&name, "INSERT INTO `?feed", 3.0);
    let next = round(1);
    let taken = store
        .push(&windows(&next), &definitions(&next), NOW_NS)
        .unwrap();
    assert!(
        taken
            .iter()
            .any(|of| matches!(of, PushOutcome::Unavailable(_)))
    );
    assert!(taken.contains(&PushOutcome::Stored));
    let rows = || number(&cluster.shards[1], &name, "SELECT count() FROM samples");
    let give_up = Instant::now() + Duration::from_secs(60);
    let before = number(&cluster.shards[1], &name, "SELECT count() FROM windows");
    while rows() == before * 2 {
        assert!(Instant::now() < give_up, "the slow insert never ends");
        thread::sleep(Duration::from_millis(20));
    }
    cluster.shards[1].forget_rules(&name);
    push_all(&store, &next);
    assert_all(&store, &[round(0), next].concat());
}

#[test]
fn a_shard_with_another_schema_takes_nothing_and_the_others_go_on() {
    let cluster = match shared_cluster() {
        Ok(cluster) => cluster,
        Err(why) => return testkit::skip(format_args!("{why}")),
    };
    let name = fresh_name();
    let store = open(cluster, &name);
    let wrong = &cluster.shards[1];
    wrong.statement(&name, "RENAME TABLE totals TO elsewhere");
    // As ingest does: of windows that come together, then of each alone.
    let first = round(0);
    let together = store.push(&windows(&first), &definitions(&first), NOW_NS);
    assert!(
        matches!(together, Err(StoreError::Engine { .. })),
        "{together:?}"
    );
    let alone = first.iter().map(|draft| {
        let one = std::slice::from_ref(draft);
        store.push(&windows(one), &definitions(one), NOW_NS)
    });
    let alone: Vec<_> = alone.collect();
    let stored = alone.iter().filter(|taken| taken.is_ok()).count() as u64;
    assert!(stored > 0 && stored < HOSTS, "{alone:?}");
    let in_first = "SELECT count() FROM (SELECT * FROM windows FINAL)";
    assert_eq!(number(&cluster.shards[0], &name, in_first), stored);
    wrong.statement(&name, "RENAME TABLE elsewhere TO totals");
    push_all(&store, &first);
    let found = whole_hour(&store).quality;
    assert_eq!((found.windows, found.total.count), (HOSTS, HOSTS * 10));
}

#[test]
fn a_shard_that_is_behind_in_migrations_is_brought_up_to_date() {
    let cluster = match shared_cluster() {
        Ok(cluster) => cluster,
        Err(why) => return testkit::skip(format_args!("{why}")),
    };
    let name = fresh_name();
    store_all(&open(cluster, &name), &round(0));
    let behind = &cluster.shards[1];
    for statement in [
        "ALTER TABLE totals DROP COLUMN throttled_ns",
        "ALTER TABLE windows DROP COLUMN pressure_io_ns",
        "TRUNCATE TABLE schema_version",
        "INSERT INTO schema_version (version) VALUES (7)",
    ] {
        behind.statement(&name, statement);
    }
    let store = open(cluster, &name);
    store_all(&store, &round(1));
    assert_all(&store, &[round(0), round(1)].concat());
    let version = "SELECT max(version) FROM schema_version";
    assert_eq!(number(behind, &name, version), 10);
}

#[test]
fn a_shard_that_does_not_change_its_tables_is_named() {
    let cluster = match shared_cluster() {
        Ok(cluster) => cluster,
        Err(why) => return testkit::skip(format_args!("{why}")),
    };
    let name = fresh_name();
    cluster.shards[1].skip(&name, "EXISTS hosts");
    let error = ClickHouseStore::open(of_cluster(cluster.urls(), &name))
        .err()
        .unwrap();
    let text = error.to_string();
    assert!(matches!(error, OpenError::Away { .. }), "{text}");
    assert!(
        text.contains("shard `2` has no table `hosts` yet"),
        "{text}"
    );
    // The server does it when it is back; whoever opens next finds that out.
    cluster.shards[1].forget_rules(&name);
    store_all(&open(cluster, &name), &round(0));
}

#[test]
fn a_shard_without_a_server_is_counted() {
    let cluster = match shared_cluster() {
        Ok(cluster) => cluster,
        Err(why) => return testkit::skip(format_args!("{why}")),
    };
    let of = |change: fn(&mut Options)| {
        let mut options = of_cluster(cluster.urls(), &fresh_name());
        change(&mut options);
        ClickHouseStore::open(options).err().unwrap().to_string()
    };
    let one = of(|options| options.urls.truncate(1));
    assert!(
        one.contains("has 2 shards, and clickhouse.urls has servers of 1 (1)"),
        "{one}"
    );
    let unknown = of(|options| options.cluster = Some("other".to_owned()));
    assert!(unknown.contains("knows no cluster `other`"), "{unknown}");
}

/// Passes on what comes to a port of its own, until it is cut.
struct Relay {
    url: String,
    is_cut: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    fn to(port: u16) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (is_cut, open) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::default()));
        let relay = Relay {
            url,
            is_cut: Arc::clone(&is_cut),
            open: Arc::clone(&open),
        };
        thread::spawn(move || {
            for from in listener.incoming() {
                if is_cut.load(Ordering::SeqCst) {
                    return;
                }
                let (from, to) = (
                    from.unwrap(),
                    TcpStream::connect(("127.0.0.1", port)).unwrap(),
                );
                for (mut read, mut write) in [
                    (from.try_clone().unwrap(), to.try_clone().unwrap()),
                    (to.try_clone().unwrap(), from.try_clone().unwrap()),
                ] {
                    thread::spawn(move || {
                        let mut bytes = [0; 1 << 16];
                        while let Ok(length @ 1..) = read.read(&mut bytes) {
                            if write.write_all(&bytes[..length]).is_err() {
                                break;
                            }
                        }
                        drop(write.shutdown(Shutdown::Both));
                    });
                }
                open.lock().unwrap().extend([from, to]);
            }
        });
        relay
    }

    /// Ends all connections; new ones end at once.
    fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
        for stream in self.open.lock().unwrap().drain(..) {
            drop(stream.shutdown(Shutdown::Both));
        }
    }
}

#[test]
fn the_next_server_of_a_shard_takes_over() {
    let Some(server) = super::server() else {
        return;
    };
    let name = fresh_name();
    let first = Relay::to(server.port());
    let store = ClickHouseStore::open(Options {
        urls: vec![first.url.clone(), server.url()],
        ..options("http://any", &name)
    })
    .unwrap();
    store_all(&store, &round(0));
    first.cut();
    // Questions and windows alike, without a failure in between.
    let answer = store.profile(hour(), &query("", &[]), &ample()).unwrap();
    assert_eq!(answer.quality.windows, HOSTS);
    store_all(&store, &round(1));
    assert_all(&store, &[round(0), round(1)].concat());
    assert!(store.issues().is_empty());
}
