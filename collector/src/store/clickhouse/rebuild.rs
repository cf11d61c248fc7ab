//! Makes the rollups of a day again from its samples, in tables beside them, and puts them in place
//! at once: a partition is replaced as a whole.
//!
//! Done for a day of which no window is taken any more. Somebody who asks meanwhile has the old
//! rollups or the new ones, and checks either. Two collectors that do it at once make the same.

use super::fault::Fault;
use super::keys::Keys;
use super::select::sum;
use super::shard::Shard;
use super::statement::Statement;
use super::window::service_of;
use crate::store::LabelSet;

/// Label sets of one request. Unit: label sets of about 200 bytes.
const SETS_MAX: usize = 100_000;

/// A rollup: its table, the time of its rows, and its order, which is that of `schema.rs`.
struct Rollup {
    table: &'static str,
    time: &'static str,
    order: &'static str,
}

const ROLLUPS: [Rollup; 2] = [
    Rollup {
        table: "service_1m",
        time: "toStartOfMinute(chunk + slot * 10)",
        order: "PRIMARY KEY (toStartOfHour(time), service, stack) \
                ORDER BY (toStartOfHour(time), service, stack, end, time)",
    },
    Rollup {
        table: "service_1h",
        time: "toStartOfHour(chunk)",
        order: "ORDER BY (time, service, stack, end)",
    },
];

/// The service of a label set.
#[derive(clickhouse::Row, serde::Serialize, serde::Deserialize)]
struct ServiceOf {
    series: u64,
    service: u64,
}

/// Makes the rollups of a day since the epoch again.
pub(super) async fn rebuild(shard: &Shard, keys: &Keys, day: u16) -> Result<(), Fault> {
    let own = shard.own_name();
    let result = make(shard, keys, day, &own).await;
    // Also what is left of an attempt that failed.
    for name in ["services", ROLLUPS[0].table, ROLLUPS[1].table] {
        let table = format!("DROP TABLE IF EXISTS rebuilt_{name}_{own}");
        if let Err(fault) = shard.execute(&table).await {
            tracing::warn!("failed to remove what rollups were made in: {fault}");
        }
    }
    result
}

async fn make(shard: &Shard, keys: &Keys, day: u16, own: &str) -> Result<(), Fault> {
    #[derive(clickhouse::Row, serde::Deserialize)]
    struct Digits {
        digits: u32,
    }
    let services = format!("rebuilt_services_{own}");
    shard
        .execute(&format!(
            "CREATE TABLE {services} (series UInt64, service UInt64) ENGINE = MergeTree \
             ORDER BY series"
        ))
        .await?;
    services_of(shard, keys, day, &services).await?;
    let digits = format!("SELECT toYYYYMMDD(toDate({day})) AS digits");
    let digits = shard.one::<Digits>(&digits).await?.digits;
    for Rollup { table, time, order } in &ROLLUPS {
        let rebuilt = format!("rebuilt_{table}_{own}");
        // Where the policies of both differ, no partition is replaced.
        let policy = policy_of(shard, table).await?;
        shard
            .execute(&format!(
                "CREATE TABLE {rebuilt} AS {table} ENGINE = AggregatingMergeTree \
                 PARTITION BY toYYYYMMDD(time) {order} SETTINGS storage_policy = '{policy}'"
            ))
            .await?;
        // By the hour, which bounds the memory.
        for hour in 0..24 {
            let start = i64::from(day) * 86_400 + hour * 3600;
            let of_hour = format!(
                "chunk >= toDateTime({start}, 'UTC') AND chunk < toDateTime({}, 'UTC')",
                start + 3600
            );
            let insert = format!(
                "INSERT INTO {rebuilt} (time, service, stack, end, n, w, rows) \
                 SELECT {time} AS time, owner.service AS service, sample.stack AS stack, \
                 sample.end AS end, sum(sample.n) AS n, {w} AS w, count() AS rows \
                 FROM (SELECT * FROM samples FINAL WHERE {of_hour} AND (chunk, slot, origin) IN \
                   (SELECT chunk, slot, origin FROM windows WHERE {of_hour})) AS sample \
                 INNER JOIN {services} AS owner ON owner.series = sample.series \
                 GROUP BY time, service, stack, end",
                w = sum("sample.n * sample.period + sample.extra"),
            );
            shard.execute(&insert).await?;
        }
        let replace = format!("ALTER TABLE {table} REPLACE PARTITION {digits} FROM {rebuilt}");
        shard.execute(&replace).await?;
    }
    Ok(())
}

/// Writes which service each label set of the day belongs to.
async fn services_of(shard: &Shard, keys: &Keys, day: u16, table: &str) -> Result<(), Fault> {
    #[derive(clickhouse::Row, serde::Deserialize)]
    struct Set {
        series: u64,
        unit: String,
        labels: Vec<(String, String)>,
    }
    let mut after = 0;
    loop {
        let ask = Statement::of(format!(
            "SELECT series, any(unit) AS unit, any(labels) AS labels FROM \
             (SELECT series, toString(unit) AS unit, labels FROM series \
              WHERE day = toDate({day}) AND series > {after}) \
             GROUP BY series ORDER BY series LIMIT {SETS_MAX}"
        ));
        let sets = shard.all::<Set>(&ask).await?;
        let Some(last) = sets.last() else {
            return Ok(());
        };
        after = last.series;
        let rows: Vec<ServiceOf> = sets
            .into_iter()
            .map(|set| ServiceOf {
                series: set.series,
                service: keys.series(&service_of(&LabelSet::new(set.labels)), &set.unit),
            })
            .collect();
        shard.insert(table, &rows).await?;
    }
}

/// Storage policy of a table.
async fn policy_of(shard: &Shard, table: &str) -> Result<String, Fault> {
    #[derive(clickhouse::Row, serde::Deserialize)]
    struct Policy {
        policy: String,
    }
    let ask = format!(
        "SELECT storage_policy AS policy FROM system.tables \
         WHERE database = currentDatabase() AND name = '{table}'"
    );
    Ok(shard.one::<Policy>(&ask).await?.policy)
}
