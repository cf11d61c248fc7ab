//! Tests `fleetprof-collector store`: what it finds, prints and ends with.

use super::{fresh_name, open, server};
use crate::front::shared_cluster;
use crate::shards::of_cluster;
use crate::store::draft::store_all;
use collector::store::clickhouse::{ClickHouseStore, Finding, Options, Severity, check};
use collector::time::Clock;
use std::process::{Command, Output};

/// What is not as it should be, as `check: text`.
fn wrong(options: &Options) -> Vec<String> {
    let found = check(options, &Clock::system()).unwrap();
    let wrong = found.iter().filter(|one| one.severity != Severity::Ok);
    let text = |one: &Finding| {
        assert!(!one.fix.is_empty(), "{one:?}");
        format!("{}: {}: {}", one.check, one.of, one.text)
    };
    wrong.map(text).collect()
}

#[test]
fn what_is_wrong_with_a_cluster_is_found() {
    let cluster = match shared_cluster() {
        Ok(cluster) => cluster,
        Err(why) => return testkit::skip(format_args!("{why}")),
    };
    let name = fresh_name();
    let options = of_cluster(cluster.urls(), &name);
    assert_eq!(wrong(&options), ["schema: : the database is not made yet"]);
    drop(ClickHouseStore::open(options.clone()).unwrap());
    assert_eq!(wrong(&options), [""; 0]);
    let second = &cluster.shards[1];
    for statement in [
        "DROP TABLE gaps",
        "ALTER TABLE totals DROP COLUMN lost_w",
        "TRUNCATE TABLE schema_version",
        "INSERT INTO schema_version (version) VALUES (8)",
    ] {
        second.statement(&name, statement);
    }
    assert_eq!(
        wrong(&options),
        [
            "schema: shard 2: the schema has version 8 of 10",
            "tables: shard 2: it lacks table `gaps`, column `lost_w` of table `totals`",
        ]
    );
    second.statement(&name, "INSERT INTO schema_version (version) VALUES (99)");
    second.statement(&name, "ALTER TABLE identity MODIFY COMMENT 'other'");
    let found = wrong(&options);
    assert!(
        found[0].starts_with("key: : shards have different keys"),
        "{found:?}"
    );
    // A server that nobody started, of a shard that has no other.
    let away = Options {
        urls: vec![cluster.shards[0].url(), "http://127.0.0.1:9".to_owned()],
        ..options
    };
    let found = wrong(&away);
    assert!(
        found[0].starts_with("reach: http://127.0.0.1:9: "),
        "{found:?}"
    );
    assert!(found[1].starts_with("shards: "), "{found:?}");
}

#[test]
fn newer_databases_are_used_as_far_as_they_say() {
    let Some(server) = server() else { return };
    let name = fresh_name();
    store_all(&open(&server.url(), &name), &[super::window(0)]);
    let newer = |readable_by: u32| {
        let insert =
            format!("INSERT INTO schema_version (version, readable_by) VALUES (99, {readable_by})");
        server.statement(&name, "TRUNCATE TABLE schema_version");
        server.statement(&name, &insert);
        ClickHouseStore::open(super::options(&server.url(), &name))
    };
    let store = newer(10).unwrap();
    store_all(&store, &[super::window(1)]);
    assert_eq!(super::count(&store), (2, 20));
    let refused = newer(11).err().unwrap().to_string();
    assert!(refused.contains("schema version is 99"), "{refused}");
}

fn run(database: &str, url: &str, arguments: &[&str]) -> Output {
    run_with(database, url, "senders.enabled=false", arguments)
}

fn run_with(database: &str, url: &str, more: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fleetprof-collector"));
    command.env_clear().arg("store");
    for set in [
        "store=clickhouse".to_owned(),
        format!("clickhouse.urls={url}"),
        format!("clickhouse.database={database}"),
        more.to_owned(),
    ] {
        command.args(["--set", &set]);
    }
    command.args(arguments);
    command.output().unwrap()
}

#[test]
fn the_command_ends_with_whether_something_is_wrong() {
    let Some(server) = server() else { return };
    let (name, url) = (fresh_name(), server.url());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let unmade = run(&name, &url, &["check"]);
    assert_eq!(unmade.status.code(), Some(1), "{}", text(&unmade.stderr));
    let out = text(&unmade.stdout);
    assert!(
        out.contains("error   schema: the database is not made yet\n        fix: start"),
        "{out}"
    );
    drop(open(&url, &name));
    let fine = run(&name, &url, &["check", "--json"]);
    assert_eq!(fine.status.code(), Some(0), "{}", text(&fine.stdout));
    let found: serde_json::Value = serde_json::from_slice(&fine.stdout).unwrap();
    assert_eq!(found["ok"], true);
    assert_eq!(found["findings"][0]["check"], "version");
    let grants = run(&name, &url, &["grants"]);
    let expected = format!(
        "GRANT SELECT, INSERT, ALTER DELETE ON {name}.* TO `default`;\n\n\
         GRANT SELECT ON system.parts TO `default`;\n\n"
    );
    assert_eq!(text(&grants.stdout), expected);
    let schema = text(&run(&name, &url, &["schema", "--from", "8"]).stdout);
    assert!(
        schema.starts_with("ALTER TABLE schema_version ADD COLUMN"),
        "{schema}"
    );
    let with_senders = |action: &str| run_with(&name, &url, "senders.enabled=true", &[action]);
    let both = with_senders("check");
    let out = text(&both.stdout);
    let expected = format!("error   schema ({name}_senders): the database is not made yet");
    assert!(out.contains(&expected), "{both:?}");
    let both = with_senders("grants");
    let expected = format!("GRANT SELECT, INSERT, ALTER DELETE ON {name}_senders.* TO `default`");
    assert!(text(&both.stdout).contains(&expected), "{both:?}");
    let embedded = run(&name, &url, &["check", "--set", "store=embedded"]);
    assert_eq!(embedded.status.code(), Some(3));
}
