//! Databases of earlier and of later versions of the schema.

use super::{NOW_NS, fresh_name, host, open, options, server};
use crate::store::draft::{Draft, PERIOD, store_all};
use crate::store::model::Model;
use crate::store::text::samples;
use crate::store::{SECOND, ample, hour, names, range, scope, whole_hour};
use collector::store::clickhouse::{ClickHouseStore, OpenError};
use collector::store::{HostFacts, HostRecord, StoreQueries, WindowSink};

#[test]
fn a_database_from_before_system_names_is_brought_up_to_date() {
    let Some(server) = server() else { return };
    let (name, model) = (fresh_name(), Model::default());
    let old = Draft::new("a", 0, 0).row("unit=web", "serve;read", 1);
    let new = Draft::new("a", 1, 10).row("unit=web", "serve;query", 1);
    store_all(&open(&server.url(), &name), std::slice::from_ref(&old));
    server.statement(&name, "ALTER TABLE frames DROP COLUMN system_name");
    server.statement(&name, "TRUNCATE TABLE schema_version");
    server.statement(&name, "INSERT INTO schema_version (version) VALUES (1)");
    let store = open(&server.url(), &name);
    store_all(&store, std::slice::from_ref(&new));
    store_all(&model, &[old, new]);
    let (found, expected) = (whole_hour(&store).data, whole_hour(&model).data);
    assert_eq!(samples(&found), samples(&expected));
    let raw = |profile: &profile::Profile| profile.dict.strings.find("JS:*query db.js").is_some();
    assert!(raw(&found));
}

#[test]
fn windows_from_before_lost_weights_are_told_what_was_lost() {
    let Some(server) = server() else { return };
    let name = fresh_name();
    let store = open(&server.url(), &name);
    store.put_hosts(&[host("a")]).unwrap();
    let drafts = [
        Draft::new("a", 1, 0)
            .row("cgroup=/,unit=web", "serve", 3)
            .row("cgroup=/,unit=db", "query", 1)
            .lost("cgroup=/,unit=web", 5)
            .lost("cgroup=/,unit=db", 7)
            .account("/", 16 * PERIOD, 0),
        Draft::new("a", 2, 10)
            .row("cgroup=/,unit=web", "serve", 2)
            .account("/", 2 * PERIOD, 0),
    ];
    store_all(&store, &drafts);
    let of_host = |store: &ClickHouseStore| store.hosts(hour(), &ample()).unwrap()[0].1.clone();
    let known = of_host(&store);
    assert_eq!((known.taken.count, known.lost.count), (6, 12));
    // As a collector of version 3 leaves them.
    let to_version_4 = || {
        let forget = "ALTER TABLE windows UPDATE lost_n = 0, lost_w = 0 WHERE 1 \
                      SETTINGS mutations_sync = 1";
        server.statement(&name, forget);
        server.statement(&name, "TRUNCATE TABLE schema_version");
        server.statement(&name, "INSERT INTO schema_version (version) VALUES (4)");
    };
    to_version_4();
    assert_eq!(of_host(&store).lost.count, 0, "nobody has told them yet");
    assert_eq!(of_host(&open(&server.url(), &name)), known);
    // Where nobody knows, what was lost is not covered either.
    to_version_4();
    server.statement(&name, "TRUNCATE TABLE totals");
    let told = of_host(&open(&server.url(), &name));
    assert_eq!(told.windows_unmeasured, 2);
    assert_eq!(told.coverage().share(), None);
}

#[test]
fn days_from_before_they_knew_their_last_end_are_told_it() {
    let Some(server) = server() else { return };
    let name = fresh_name();
    let store = open(&server.url(), &name);
    // As collectors of version 6 leave it.
    for statement in [
        "ALTER TABLE windows_to_host_days MODIFY QUERY
         SELECT toDate(chunk) AS day, host, host_id, boot,
            sipHash64(mapKeys(windows.labels), mapValues(windows.labels)) AS labels_id,
            anyLast(windows.labels) AS labels, min(start_ns) AS first_ns, max(start_ns) AS last_ns
         FROM windows GROUP BY day, host, host_id, boot, labels_id",
        "ALTER TABLE host_days DROP COLUMN end_ns",
        "TRUNCATE TABLE schema_version",
        "INSERT INTO schema_version (version) VALUES (6)",
    ] {
        server.statement(&name, statement);
    }
    store_all(
        &store,
        &[
            Draft::new("a", 1, -70_000).row("unit=web", "serve", 1),
            Draft::new("a", 2, 0).row("unit=web", "serve", 1),
            Draft::new("b", 1, 10).row("unit=web", "serve", 1),
        ],
    );
    let kept = || open(&server.url(), &name).kept().unwrap();
    assert_eq!(kept(), Some(range(-70_000, 20)));
    // A second collector that comes at the same time does it again.
    server.statement(&name, "TRUNCATE TABLE schema_version");
    server.statement(&name, "INSERT INTO schema_version (version) VALUES (6)");
    assert_eq!(kept(), Some(range(-70_000, 20)));
    // What is stored from now on is told as it comes.
    let later = Draft::new("a", 3, 20).row("unit=web", "serve", 1);
    store_all(&store, std::slice::from_ref(&later));
    assert_eq!(store.kept().unwrap(), Some(range(-70_000, 30)));
}

#[test]
fn windows_from_before_throttling_say_nothing_of_it() {
    let Some(server) = server() else { return };
    let name = fresh_name();
    let draft = |number: u64| {
        Draft::new("a", number, number as i64 * 10)
            .row("cgroup=/a", "f", 1)
            .account("/a", 5 * PERIOD, 0)
            .throttled(9 * PERIOD, 200)
            .pressure(3, 2, 1)
    };
    let waiting = || {
        let (by, step_ns) = (names(&["host"]), 600 * SECOND as u64);
        let store = open(&server.url(), &name);
        let answer = store.accounted(&scope(hour(), ""), &by, step_ns, &ample());
        let data = answer.unwrap().data;
        let held: u64 = data.throttled.iter().map(|of| of.sum.ns).sum();
        assert_eq!(data.lines.len(), 1);
        (data.throttling_known, held, data.pressure.len())
    };
    let store = open(&server.url(), &name);
    store_all(&store, &[draft(1)]);
    assert_eq!(waiting(), (true, 9 * PERIOD, 1));
    // As collectors of version 7 leave it.
    for column in ["throttled_ns", "throttle_used_ns", "limit_millicores"] {
        server.statement(&name, &format!("ALTER TABLE totals DROP COLUMN {column}"));
    }
    for column in ["known", "cpu", "memory", "io"] {
        let statement = format!("ALTER TABLE windows DROP COLUMN pressure_{column}_ns");
        server.statement(&name, &statement);
    }
    server.statement(&name, "TRUNCATE TABLE schema_version");
    server.statement(&name, "INSERT INTO schema_version (version) VALUES (7)");
    assert_eq!(waiting(), (false, 0, 0));
    // What is stored from now on says it.
    store_all(&store, &[draft(2)]);
    assert_eq!(waiting(), (true, 9 * PERIOD, 1));
}

/// While a fleet's collectors are upgraded one by one, old and new share a database.
#[test]
fn columns_of_other_versions_do_not_hide_hosts() {
    let Some(server) = server() else { return };
    let name = fresh_name();
    let store = open(&server.url(), &name);
    let record = HostRecord {
        facts: HostFacts {
            health: vec![1, 2],
            ..HostFacts::default()
        },
        ..host("a")
    };
    let health = || -> Vec<Vec<u8>> {
        let found = store.hosts(hour(), &ample()).unwrap();
        found.into_iter().map(|(of, _)| of.facts.health).collect()
    };
    store.put_hosts(std::slice::from_ref(&record)).unwrap();
    // Version 3 reads all columns into what it knows: this is their number.
    let columns = format!("system.columns WHERE database = '{name}' AND table = 'hosts'");
    let unchanged = format!("SELECT throwIf(count() != 17) FROM {columns}");
    server.statement(&name, &unchanged);
    server.statement(&name, "ALTER TABLE hosts ADD COLUMN later UInt8 DEFAULT 0");
    store.put_hosts(std::slice::from_ref(&record)).unwrap();
    assert_eq!(health(), [[1, 2]]);
    // Its client inserts windows only where the columns that it does not know have a default.
    let columns = format!("system.columns WHERE database = '{name}' AND table = 'windows'");
    let added = "name IN ('lost_n', 'lost_w') AND default_kind = 'DEFAULT'";
    let defaults = format!("SELECT throwIf(count() != 2) FROM {columns} AND {added}");
    server.statement(&name, &defaults);
    // A collector of version 3 has heard of the host since: what was said before is not of now.
    let seen = NOW_NS + 1;
    let by_old = format!("INSERT INTO hosts SELECT * REPLACE ({seen} AS last_seen_ns) FROM hosts");
    server.statement(&name, &by_old);
    assert_eq!(health(), [[0; 0]]);
}

#[test]
fn a_database_of_a_later_version_is_left_alone() {
    let Some(server) = server() else { return };
    let name = fresh_name();
    drop(open(&server.url(), &name));
    server.statement(&name, "INSERT INTO schema_version (version) VALUES (99)");
    let error = ClickHouseStore::open(options(&server.url(), &name))
        .err()
        .unwrap();
    assert!(matches!(error, OpenError::Schema { .. }), "{error}");
    assert!(
        error.to_string().contains("schema version is 99"),
        "{error}"
    );
}
