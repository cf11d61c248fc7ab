//! Where the parts of tables are: the storage policy, and the age at which they move to its volume
//! `cold`.

use super::client::Client;
use super::fault::Fault;
use super::options::Options;
use super::schema::BY_DAY;

/// Column with the time of a table's rows.
fn time_of(table: &str) -> &'static str {
    match table {
        "windows" | "samples" | "totals" => "chunk",
        "service_1m" | "service_1h" => "time",
        _ => "day",
    }
}

/// Changes what differs from the options. Without a policy in them, all stays as it is.
pub(super) async fn apply(client: &Client, options: &Options) -> Result<(), Fault> {
    #[derive(::clickhouse::Row, serde::Deserialize)]
    struct Table {
        name: String,
        storage_policy: String,
        engine_full: String,
    }
    let (Some(policy), first) = (&options.storage_policy, client.first()) else {
        return Ok(());
    };
    let ask = format!(
        "SELECT name, storage_policy, engine_full FROM system.tables WHERE database = '{}'",
        first.database()
    );
    let found = first.all_outside::<Table>(&ask).await?;
    let days = options.cold_after.map(|age| age.as_secs() / 86_400);
    for &(table, _) in BY_DAY {
        let Some(is) = found.iter().find(|of| of.name == table) else {
            continue;
        };
        let mut changes = Vec::new();
        if is.storage_policy != *policy {
            changes.push(format!("MODIFY SETTING storage_policy = '{policy}'"));
        }
        match days {
            Some(days) => {
                let (time, moves) = (time_of(table), format!("toIntervalDay({days}) TO VOLUME"));
                if !is.engine_full.contains(&moves) {
                    let ttl = format!("MODIFY TTL {time} + toIntervalDay({days}) TO VOLUME 'cold'");
                    changes.push(ttl);
                }
            }
            None if is.engine_full.contains(" TO VOLUME ") => {
                changes.push("REMOVE TTL".to_owned());
            }
            None => {}
        }
        for change in changes {
            let change = format!("ALTER TABLE {table} {change}");
            first.execute(&options.layout().statement(&change)).await?;
        }
    }
    Ok(())
}
