//! Examines the servers and what is in them: what is wrong, and how to fix it. It changes nothing.

use super::client::Client;
use super::fault::Fault;
use super::grants::questions;
use super::options::{OpenError, Options};
use super::schema::{keys_of, missing, version_of};
use super::shard::Server;
use super::{SCHEMA_VERSION, fresh_key, runtime, servers_of};
use crate::time::Clock;
use serde::Serialize;
use std::sync::Arc;

/// Oldest version that the tests use; what earlier ones do is not known.
const VERSION_MIN: u32 = 26;
/// Difference of clocks from which it is reported: ages of rows and of windows differ by it. Unit:
/// nanoseconds.
const CLOCK_NS_MAX: i64 = 10_000_000_000;
/// Delay of a replica from which it is reported: what it is asked lacks the last minutes. Unit:
/// seconds.
const DELAY_S_MAX: u64 = 300;
/// Share of a disk that is to be free, as a divisor.
const FREE_SHARE: u64 = 10;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// As it should be.
    Ok,
    /// It works, and should be looked at.
    Warning,
    /// Windows or answers are missing, or will be.
    Error,
}

/// What one look found.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// What was looked at, in a word.
    pub check: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// The server or shard; empty for all of them.
    pub of: String,
    /// What is so.
    pub text: String,
    /// What to do; empty where nothing is wrong.
    pub fix: String,
}

/// What is being found.
struct Report(Vec<Finding>);

impl Report {
    fn add(&mut self, check: &'static str, severity: Severity, of: &str, text: String, fix: &str) {
        self.0.push(Finding {
            check,
            severity,
            of: of.to_owned(),
            text,
            fix: fix.to_owned(),
        });
    }

    fn ok(&mut self, check: &'static str, of: &str, text: impl Into<String>) {
        self.add(check, Severity::Ok, of, text.into(), "");
    }
}

/// Examines the servers of `options`.
///
/// # Errors
/// When the options make no sense, or a file cannot be read.
pub fn check(options: &Options, clock: &Clock) -> Result<Vec<Finding>, OpenError> {
    let fresh_key = fresh_key();
    let servers = servers_of(options)?;
    let mut report = Report(Vec::new());
    runtime()?.block_on(async {
        for server in &servers {
            examine_server(server, options, clock, &mut report).await;
        }
        match Client::connect(servers.clone(), options, &fresh_key[..16]).await {
            Ok(client) => examine_schema(&client, &mut report).await,
            Err(fault) => report.add(
                "shards",
                Severity::Error,
                "",
                fault.to_string(),
                "name servers of every shard in clickhouse.urls, and start one of each",
            ),
        }
    });
    Ok(report.0)
}

async fn examine_server(
    server: &Arc<Server>,
    options: &Options,
    clock: &Clock,
    report: &mut Report,
) {
    if let Err(fault) = examine_version(server, options, clock, report).await {
        report.add(
            "reach",
            Severity::Error,
            &server.url,
            fault.to_string(),
            "start the server, or correct clickhouse.urls, user, password and certificates; \
             curl URL/ping says whether it listens",
        );
        return;
    }
    let looks: [(&'static str, Result<(), Fault>); 5] = [
        ("grants", examine_grants(server, options, report).await),
        ("replicas", examine_replicas(server, options, report).await),
        ("parts", examine_parts(server, options, report).await),
        (
            "mutations",
            examine_mutations(server, options, report).await,
        ),
        ("disks", examine_disks(server, options, report).await),
    ];
    for (check, look) in looks {
        if let Err(fault) = look {
            report.add(
                check,
                Severity::Warning,
                &server.url,
                format!("failed to look: {fault}"),
                "allow the user to read the table of `system` that the error names",
            );
        }
    }
}

async fn examine_version(
    server: &Server,
    options: &Options,
    clock: &Clock,
    report: &mut Report,
) -> Result<(), Fault> {
    #[derive(::clickhouse::Row, serde::Deserialize)]
    struct Now {
        version: String,
        now_ns: i64,
    }
    let of = &server.url;
    let before = clock.now_unix_ns();
    let ask = "SELECT version() AS version, toUnixTimestamp64Nano(now64(9)) AS now_ns";
    let now: Vec<Now> = server.outside(ask, options.write_timeout).await?;
    let after = clock.now_unix_ns();
    let Some(now) = now.into_iter().next() else {
        return Err(Fault::Refused("it answers nothing".to_owned()));
    };
    let major = now.version.split('.').next();
    let major: u32 = major.and_then(|text| text.parse().ok()).unwrap_or(0);
    let version = format!("ClickHouse {}", now.version);
    if major < VERSION_MIN {
        let text = format!("{version} is older than the versions that are tested ({VERSION_MIN})");
        report.add("version", Severity::Warning, of, text, "upgrade the server");
    } else {
        report.ok("version", of, version);
    }
    // It was read at some time in between.
    let ahead_ns = now
        .now_ns
        .saturating_sub(after)
        .max(before.saturating_sub(now.now_ns));
    if ahead_ns > CLOCK_NS_MAX {
        let seconds = ahead_ns / 1_000_000_000;
        let text = format!("the clock differs by {seconds} s from that of this machine");
        report.add(
            "clock",
            Severity::Error,
            of,
            text,
            "set the clocks by NTP on all machines",
        );
    } else {
        report.ok("clock", of, "the clock is that of this machine");
    }
    Ok(())
}

async fn examine_grants(
    server: &Server,
    options: &Options,
    report: &mut Report,
) -> Result<(), Fault> {
    #[derive(::clickhouse::Row, serde::Deserialize)]
    struct Granted {
        result: u8,
    }
    let mut lacking = Vec::new();
    for (ask, right) in questions(options.layout(), &options.database) {
        let granted: Vec<Granted> = server.outside(&ask, options.write_timeout).await?;
        if granted.first().is_none_or(|granted| granted.result == 0) {
            lacking.push(right);
        }
    }
    if lacking.is_empty() {
        report.ok(
            "grants",
            &server.url,
            "the user has the rights to use the database",
        );
    } else {
        let text = format!("the user lacks {}", lacking.join(", "));
        let fix = "run what `fleetprof-collector store grants` prints";
        report.add("grants", Severity::Error, &server.url, text, fix);
    }
    Ok(())
}

async fn examine_replicas(
    server: &Server,
    options: &Options,
    report: &mut Report,
) -> Result<(), Fault> {
    #[derive(::clickhouse::Row, serde::Deserialize)]
    struct Replica {
        name: String,
        readonly: u8,
        delay_s: u64,
        queue: u32,
        active: u64,
        total: u64,
    }
    if options.cluster.is_none() {
        return Ok(());
    }
    let ask = format!(
        "SELECT table AS name, is_readonly AS readonly, absolute_delay AS delay_s, \
         toUInt32(queue_size) AS queue, toUInt64(active_replicas) AS active, \
         toUInt64(total_replicas) AS total FROM system.replicas WHERE database = '{}'",
        options.database
    );
    let replicas: Vec<Replica> = server.outside(&ask, options.write_timeout).await?;
    let (of, mut fine) = (&server.url, 0);
    for replica in &replicas {
        let Replica {
            name,
            queue,
            active,
            total,
            ..
        } = replica;
        if replica.readonly != 0 {
            let text = format!("table `{name}` is read-only: it has lost its Keeper");
            let fix = format!(
                "start the Keeper, then SYSTEM RESTART REPLICA {}.{name}, or SYSTEM RESTORE \
                 REPLICA where its metadata is lost",
                options.database
            );
            report.add("replicas", Severity::Error, of, text, &fix);
        } else if replica.delay_s > DELAY_S_MAX {
            let text = format!(
                "table `{name}` is {} s behind, with {queue} entries waiting",
                replica.delay_s
            );
            let fix = "look into system.replication_queue for the exception of its oldest entry";
            report.add("replicas", Severity::Warning, of, text, fix);
        } else if active < total {
            let text = format!("table `{name}` has {active} of {total} replicas");
            report.add(
                "replicas",
                Severity::Warning,
                of,
                text,
                "start the other servers",
            );
        } else {
            fine += 1;
        }
    }
    if fine == replicas.len() {
        report.ok("replicas", of, format!("{fine} replicated tables keep up"));
    }
    Ok(())
}

async fn examine_parts(
    server: &Server,
    options: &Options,
    report: &mut Report,
) -> Result<(), Fault> {
    #[derive(::clickhouse::Row, serde::Deserialize)]
    struct Parts {
        name: String,
        part: String,
        parts: u64,
        delay_from: u64,
    }
    let ask = format!(
        "SELECT table AS name, partition AS part, count() AS parts, \
         ifNull((SELECT any(toUInt64(value)) FROM system.merge_tree_settings \
         WHERE name = 'parts_to_delay_insert'), 0) AS delay_from \
         FROM system.parts WHERE active AND database = '{}' GROUP BY table, partition \
         ORDER BY parts DESC LIMIT 1",
        options.database
    );
    let most: Vec<Parts> = server.outside(&ask, options.write_timeout).await?;
    let of = &server.url;
    match most.first() {
        Some(most) if most.parts * 2 > most.delay_from => {
            let text = format!(
                "table `{}` has {} parts in partition {}; inserts are slowed from {} on",
                most.name, most.parts, most.part, most.delay_from
            );
            let fix = "merges do not keep up: give the server more CPU and disk, or add a shard; \
                system.merges says what runs";
            report.add("parts", Severity::Error, of, text, fix);
        }
        Some(most) => report.ok(
            "parts",
            of,
            format!("at most {} parts a partition", most.parts),
        ),
        None => report.ok("parts", of, "no data yet"),
    }
    Ok(())
}

async fn examine_mutations(
    server: &Server,
    options: &Options,
    report: &mut Report,
) -> Result<(), Fault> {
    #[derive(::clickhouse::Row, serde::Deserialize)]
    struct Mutation {
        name: String,
        id: String,
        reason: String,
    }
    let ask = format!(
        "SELECT table AS name, mutation_id AS id, latest_fail_reason AS reason \
         FROM system.mutations WHERE database = '{}' AND NOT is_done AND latest_fail_reason != '' \
         LIMIT 10",
        options.database
    );
    let failed: Vec<Mutation> = server.outside(&ask, options.write_timeout).await?;
    for Mutation { name, id, reason } in &failed {
        let text = format!("a change of table `{name}` fails again and again: {reason}");
        let fix = format!("remove the reason, or KILL MUTATION WHERE mutation_id = '{id}'");
        report.add("mutations", Severity::Error, &server.url, text, &fix);
    }
    if failed.is_empty() {
        report.ok("mutations", &server.url, "no change of a table fails");
    }
    Ok(())
}

async fn examine_disks(
    server: &Server,
    options: &Options,
    report: &mut Report,
) -> Result<(), Fault> {
    #[derive(::clickhouse::Row, serde::Deserialize)]
    struct Disk {
        name: String,
        free: u64,
        total: u64,
    }
    // Object storage has no end that it would know.
    let ask = "SELECT name, toUInt64(free_space) AS free, toUInt64(total_space) AS total \
               FROM system.disks WHERE type = 'Local' AND total_space > 0";
    let disks: Vec<Disk> = server.outside(ask, options.write_timeout).await?;
    for Disk { name, free, total } in &disks {
        let text = format!(
            "disk `{name}` has {} GiB of {} GiB free",
            free >> 30,
            total >> 30
        );
        if free < &(total / FREE_SHARE) {
            let fix = "shorten retention, move old data by clickhouse.storage_policy, or add disks";
            report.add("disks", Severity::Warning, &server.url, text, fix);
        } else {
            report.ok("disks", &server.url, text);
        }
    }
    Ok(())
}

/// Looks at what shards have.
async fn examine_schema(client: &Client, report: &mut Report) {
    match keys_of(client).await {
        Err(fault) => {
            let fix = "copy the comment of `identity` from a shard with windows, or from a backup";
            report.add("key", Severity::Error, "", fault.to_string(), fix);
        }
        Ok(keys) if keys.iter().all(Option::is_none) => {
            let fix = "start a collector, or run what `fleetprof-collector store schema` prints";
            let text = "the database is not made yet".to_owned();
            return report.add("schema", Severity::Error, "", text, fix);
        }
        Ok(_) => report.ok("key", "", "all shards have one key"),
    }
    for shard in client.shards() {
        let of = if shard.name.is_empty() {
            String::new()
        } else {
            format!("shard {}", shard.name)
        };
        match version_of(shard).await {
            Err(fault) => {
                let fix = "run a newer collector, or start this one to make what is missing";
                report.add("schema", Severity::Error, &of, fault.to_string(), fix);
                continue;
            }
            Ok(version) if version < SCHEMA_VERSION => {
                let text = format!("the schema has version {version} of {SCHEMA_VERSION}");
                let fix = format!(
                    "start a collector of this version, or run what `fleetprof-collector store \
                     schema --from {version}` prints"
                );
                report.add("schema", Severity::Error, &of, text, &fix);
            }
            Ok(version) => report.ok("schema", &of, format!("the schema has version {version}")),
        }
        match missing(shard).await {
            Err(fault) => report.add("tables", Severity::Error, &of, fault.to_string(), ""),
            Ok(missing) if missing.is_empty() => {
                report.ok("tables", &of, "all tables and columns are there");
            }
            Ok(missing) => {
                let text = format!("it lacks {}", missing.join(", "));
                let fix = "run what `fleetprof-collector store schema` prints: what is there stays \
                    as it is";
                report.add("tables", Severity::Error, &of, text, fix);
            }
        }
    }
}
