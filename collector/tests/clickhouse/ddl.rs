//! Tests the two sets of tables: that the real engine makes them, and what rights that takes.

use super::{NOW_NS, fresh_name, host, open, options, server, window};
use crate::front::Front;
use crate::store::draft::{Draft, store_all};
use crate::store::model::Model;
use crate::store::text::samples;
use crate::store::{SECOND, ample, hour, whole_hour};
use collector::store::clickhouse::{
    ClickHouseStore, Layout, Options, Role, SCHEMA_VERSION, Severity, check, grants,
    schema_between, schema_statements,
};
use collector::store::{StoreQueries, WindowSink};
use collector::time::Clock;
use std::path::Path;
use tempfile::TempDir;

fn of_cluster(database: &str) -> Options {
    Options {
        cluster: Some("fleet".to_owned()),
        ..options("http://any", database)
    }
}

/// A configuration of the engine with these elements.
fn config(directory: &Path, elements: &str) -> String {
    let file = directory.join("engine.xml");
    std::fs::write(&file, format!("<clickhouse>{elements}</clickhouse>")).unwrap();
    format!("config={}", file.display())
}

/// An engine with these elements in its configuration.
fn configured(directory: &TempDir, elements: &str) -> Result<Front, String> {
    let config = config(directory.path(), elements);
    Front::start_with(directory.path(), 0, &[config])
}

const SHARD: &str = "<remote_servers><fleet><shard><replica><host>127.0.0.1</host><port>9</port>\
                     </replica></shard></fleet></remote_servers>\
                     <macros><shard>1</shard><replica>a</replica></macros>";

/// Statements are text that the engine's parser reads and writes back.
#[test]
fn the_engine_reads_every_statement_of_a_cluster() {
    let Some(server) = server() else { return };
    for statement in schema_statements(&of_cluster("fleetprof"), 0) {
        let quoted = statement.replace('\\', "\\\\").replace('\'', "\\'");
        let read = server.statement("default", &format!("SELECT formatQuery('{quoted}')"));
        let is_for_all = !statement.starts_with("INSERT");
        assert_eq!(read.contains("ON CLUSTER fleet"), is_for_all, "{statement}");
        let keeps = statement.contains("MergeTree");
        assert_eq!(read.contains("ENGINE = Replicated"), keeps, "{statement}");
    }
}

/// With a Keeper in its own process, which tables can be made with and not written: ClickHouse has
/// it for its tests. ON CLUSTER alone needs a server, and is left out.
#[test]
fn the_engine_makes_replicated_and_distributed_tables() {
    let directory = TempDir::new().unwrap();
    let keeper = "<zookeeper><implementation>testkeeper</implementation></zookeeper>";
    let front = match configured(&directory, &format!("{SHARD}{keeper}")) {
        Ok(front) => front,
        Err(why) => return testkit::skip(format_args!("{why}")),
    };
    let mut tables = 0;
    for statement in schema_statements(&of_cluster("r"), 0) {
        // Rows need a Keeper that runs.
        if statement.starts_with("INSERT") || statement.starts_with("ALTER") {
            continue;
        }
        let alone = statement.replace(" ON CLUSTER 'fleet'", "");
        let database = if tables == 0 { "default" } else { "r" };
        front.statement(database, &alone);
        tables += 1;
    }
    let engines = "SELECT engine, count() FROM system.tables WHERE database = 'r' GROUP BY engine \
                   ORDER BY engine";
    assert_eq!(
        front.statement("r", engines),
        "Distributed\t14\nMaterializedView\t4\nNull\t2\nReplicatedAggregatingMergeTree\t3\n\
         ReplicatedReplacingMergeTree\t12\n"
    );
}

#[test]
fn statements_that_are_printed_make_what_a_collector_makes() {
    let Some(server) = server() else { return };
    let (own, printed) = (fresh_name(), fresh_name());
    drop(open(&server.url(), &own));
    for (number, statement) in schema_statements(&options("http://any", &printed), 0)
        .iter()
        .enumerate()
    {
        server.statement(if number == 0 { "default" } else { &printed }, statement);
    }
    let tables = |name: &str| {
        let ask = format!(
            "SELECT name, replaceAll(create_table_query, '{name}.', '') FROM system.tables \
             WHERE database = '{name}' AND name != 'identity' ORDER BY name"
        );
        server.statement(name, &ask)
    };
    assert_eq!(tables(&printed), tables(&own));
    store_all(&open(&server.url(), &printed), &[window(0)]);
}

/// The user of the engine, with these rights and what the front itself needs to hand rows over.
fn user(directory: &Path, grants: &[String]) -> String {
    let file = directory.join("users.xml");
    let front = [
        "GRANT READ ON FILE TO default",
        "GRANT CREATE TEMPORARY TABLE ON *.* TO default",
        "GRANT SHOW DATABASES ON default.* TO default",
    ];
    let grants = grants.iter().map(String::as_str).chain(front);
    let grants: String = grants
        .map(|grant| {
            format!(
                "<query>{}</query>",
                grant.replace('`', "").replace(" TO default", "")
            )
        })
        .collect();
    let users = format!(
        "<clickhouse><profiles><default/></profiles><quotas><default/></quotas><users><default>\
         <password></password><networks><ip>::/0</ip></networks><profile>default</profile>\
         <quota>default</quota><grants>{grants}</grants></default></users></clickhouse>"
    );
    std::fs::write(&file, users).unwrap();
    let path = file.display();
    format!("<user_directories><users_xml><path>{path}</path></users_xml></user_directories>")
}

/// All that a collector does with its database, two days later too.
fn use_all(store: &ClickHouseStore) {
    let yesterday = Draft::new("a", 1_000, -70_000).row("unit=web", "main;serve", 1);
    store_all(store, &[yesterday, window(0), window(1)]);
    store.put_hosts(&[host("a")]).unwrap();
    assert_eq!(store.hosts(hour(), &ample()).unwrap().len(), 1);
    assert_eq!(whole_hour(store).quality.windows, 2);
    store.maintain(NOW_NS + 2 * 86_400 * SECOND).unwrap();
}

fn ageing(front: &Front, database: &str) -> Options {
    Options {
        raw: std::time::Duration::from_secs(86_400),
        ..options(&front.url(), database)
    }
}

#[test]
fn the_rights_that_are_printed_are_enough() {
    let directory = TempDir::new().unwrap();
    let all = match Front::start(directory.path(), 0) {
        Ok(front) => front,
        Err(why) => return testkit::skip(format_args!("{why}")),
    };
    for statement in schema_statements(&options("http://any", "used"), 0) {
        let database = if statement.starts_with("CREATE DATABASE") {
            "default"
        } else {
            "used"
        };
        all.statement(database, &statement);
    }
    drop(all.kill());
    // Without a right to change a table.
    let of = |role, database: &str| {
        let grants = grants(role, Layout::Single, database, "default");
        let front = configured(&directory, &user(directory.path(), &grants)).unwrap();
        let store = ClickHouseStore::open(ageing(&front, database)).unwrap();
        use_all(&store);
        let found = check(&ageing(&front, database), &Clock::system()).unwrap();
        let wrong: Vec<_> = found
            .iter()
            // How full the disk is depends on whose machine this is.
            .filter(|one| one.severity != Severity::Ok && one.check != "disks")
            .collect();
        assert!(wrong.is_empty(), "{wrong:?}");
        drop(front.kill());
    };
    of(Role::Use, "used");
    // With those to make all of it.
    of(Role::Own, "owned");
    // With less, what is lacking is said.
    let few = ["GRANT SELECT ON used.*".to_owned()];
    let front = configured(&directory, &user(directory.path(), &few)).unwrap();
    let found = check(&ageing(&front, "used"), &Clock::system()).unwrap();
    let lacking = found
        .iter()
        .find(|one| one.severity == Severity::Error)
        .unwrap();
    assert_eq!(lacking.check, "grants");
    assert!(lacking.text.contains("INSERT ON used.*"), "{lacking:?}");
    assert!(lacking.fix.contains("store grants"), "{lacking:?}");
}

#[test]
fn old_days_move_to_the_cold_volume() {
    let directory = TempDir::new().unwrap();
    let disk = directory.path().join("cold");
    let policy = format!(
        "<storage_configuration><disks><cold><type>local</type><path>{}/</path></cold></disks>\
         <policies><tiered><volumes><default><disk>default</disk></default>\
         <cold><disk>cold</disk></cold></volumes></tiered></policies></storage_configuration>",
        disk.display()
    );
    let front = match configured(&directory, &policy) {
        Ok(front) => front,
        Err(why) => return testkit::skip(format_args!("{why}")),
    };
    // A database that was made without a policy gets it.
    store_all(&open(&front.url(), "tiers"), &[window(0)]);
    let disks = |table: &str| {
        let ask = format!(
            "SELECT DISTINCT disk_name FROM system.parts WHERE active AND table = '{table}' \
             AND database = 'tiers'"
        );
        front.statement("tiers", &format!("OPTIMIZE TABLE {table} FINAL"));
        front.statement("tiers", &ask).trim().to_owned()
    };
    assert_eq!(disks("samples"), "default");
    // The rows are of January 2026, which is more than a day ago.
    let tiered = Options {
        storage_policy: Some("tiered".to_owned()),
        cold_after: Some(std::time::Duration::from_secs(86_400)),
        ..options(&front.url(), "tiers")
    };
    let store = ClickHouseStore::open(tiered.clone()).unwrap();
    for table in [
        "samples",
        "totals",
        "service_1m",
        "service_1h",
        "windows",
        "stacks",
    ] {
        assert_eq!(disks(table), "cold", "{table}");
    }
    store_all(&store, &[window(1)]);
    let (found, model) = (whole_hour(&store).data, Model::default());
    store_all(&model, &[window(0), window(1)]);
    assert_eq!(samples(&found), samples(&whole_hour(&model).data));
    // What is so already is not changed again.
    let changes = || super::asked(&front, "tiers", "ALTER TABLE").len();
    let before = changes();
    drop(ClickHouseStore::open(tiered.clone()).unwrap());
    assert_eq!(changes(), before);
    let warm = Options {
        cold_after: None,
        ..tiered
    };
    drop(ClickHouseStore::open(warm).unwrap());
    let left = "SELECT count() FROM system.tables WHERE database = 'tiers' AND engine_full LIKE \
                '%VOLUME%'";
    assert_eq!(front.statement("tiers", left).trim(), "0");
}

/// Every version that ever was, with rows as its collectors left them.
#[test]
fn a_database_of_every_version_is_brought_up_to_date() {
    let Some(server) = server() else { return };
    let donor = fresh_name();
    let drafts = [
        Draft::new("a", 0, 0)
            .row("unit=web", "main;serve", 4)
            .lost("unit=web", 2),
        Draft::new("b", 0, 10).row("unit=db", "main;accept", 3),
    ];
    store_all(&open(&server.url(), &donor), &drafts);
    let identity = format!(
        "SELECT comment FROM system.tables WHERE database = '{donor}' AND name = 'identity'"
    );
    let key = server.statement("default", &identity).trim().to_owned();
    for version in 1..SCHEMA_VERSION {
        let name = fresh_name();
        for (number, statement) in schema_between(&options("http://any", &name), 0, version)
            .iter()
            .enumerate()
        {
            // Ids are of the key.
            let statement = match statement.split_once("COMMENT '") {
                Some((head, _)) => format!("{head}COMMENT '{key}'"),
                None => statement.clone(),
            };
            server.statement(if number == 0 { "default" } else { &name }, &statement);
        }
        let copied = [
            "windows",
            "gaps",
            "series",
            "services",
            "frames",
            "stacks",
            "totals",
            "samples",
            "service_1m",
            "service_1h",
        ];
        let copy = |table: &str| {
            let columns = format!(
                "SELECT arrayStringConcat(groupArray(name), ', ') FROM system.columns \
                 WHERE database = '{name}' AND table = '{table}'"
            );
            let columns = server.statement("default", &columns);
            let columns = columns.trim();
            let copy =
                format!("INSERT INTO {table} ({columns}) SELECT {columns} FROM {donor}.{table}");
            server.statement(&name, &copy);
        };
        copied.iter().for_each(|table| copy(table));
        let store = open(&server.url(), &name);
        for of in ["a", "b"] {
            store.put_hosts(&[host(of)]).unwrap();
        }
        let hosts = store.hosts(hour(), &ample()).unwrap();
        let lost: u64 = hosts.iter().map(|(_, did)| did.lost.count).sum();
        assert_eq!(lost, 2, "version {version}");
        let later = Draft::new("a", 2, 20)
            .row("unit=web", "main;serve", 5)
            .lost("unit=web", 2);
        store_all(&store, std::slice::from_ref(&later));
        let model = Model::default();
        store_all(&model, &[drafts[0].clone(), drafts[1].clone(), later]);
        let (found, expected) = (whole_hour(&store), whole_hour(&model));
        assert_eq!(
            samples(&found.data),
            samples(&expected.data),
            "version {version}"
        );
        assert_eq!(
            found.quality.windows, expected.quality.windows,
            "version {version}"
        );
    }
}
