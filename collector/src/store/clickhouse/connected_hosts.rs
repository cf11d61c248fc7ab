//! Records which host is connected to which collector: each collector writes it every few seconds,
//! and it is read when hosts are selected.
//!
//! The newest row of a host counts. Rows are small, written for all hosts of a collector in one
//! insert, and gone after a day.

use super::client::Client;
use super::fault::Fault;
use super::shard::Shard;
use super::statement::Statement;
use crate::store::{ConnectedHost, Limits};

#[derive(clickhouse::Row, serde::Serialize)]
struct NewRow {
    collector: String,
    host_id: String,
    hostname: String,
    labels: Vec<(String, String)>,
    seen_ns: i64,
}

#[derive(clickhouse::Row, serde::Deserialize)]
struct Found {
    host_id: String,
    hostname: String,
    labels: Vec<(String, String)>,
    collector: String,
    last_ns: i64,
}

/// Announces connected hosts.
pub(super) async fn put(shard: &Shard, hosts: &[&ConnectedHost]) -> Result<(), Fault> {
    let rows = hosts.iter().map(|host| NewRow {
        collector: host.collector.clone(),
        host_id: host.host_id.clone(),
        hostname: host.hostname.clone(),
        labels: host
            .labels
            .iter()
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect(),
        seen_ns: host.seen_unix_ns,
    });
    shard.insert("attendance", &rows.collect::<Vec<_>>()).await
}

/// Hosts that were connected since then, each once, with their latest collector.
pub(super) async fn find(
    client: &Client,
    since_unix_ns: i64,
    limits: &Limits,
) -> Result<Vec<ConnectedHost>, Fault> {
    let most = limits.lines;
    // The values come from one row, not from several: a host that moved has the labels it has now.
    let statement = Statement::of(format!(
        "SELECT host_id, newest.1 AS hostname, newest.2 AS labels, newest.3 AS collector, last_ns
        FROM (
            SELECT host_id, max(seen_ns) AS last_ns,
                argMax((hostname, labels, collector), seen_ns) AS newest
            FROM attendance WHERE seen_ns >= {since_unix_ns}
            GROUP BY host_id ORDER BY host_id LIMIT {most}
        )"
    ));
    let mut all = Vec::new();
    let take = |row: Found| {
        all.push(ConnectedHost {
            host_id: row.host_id,
            hostname: row.hostname,
            labels: row.labels.into_iter().collect(),
            collector: row.collector,
            seen_unix_ns: row.last_ns,
        });
        Ok(())
    };
    client.each(&statement, limits, take).await?;
    all.sort_unstable_by(|left, right| left.host_id.cmp(&right.host_id));
    all.truncate(limits.lines);
    Ok(all)
}
