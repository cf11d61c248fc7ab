//! Sends statements to all shards of the database at once. Each shard has complete windows, so it
//! answers alone, about the hosts that it has; who asks adds up what shards say.

use super::fault::Fault;
use super::options::Options;
use super::shard::{Server, Shard};
use super::statement::Statement;
use crate::store::Limits;
use ::clickhouse::{RowOwned, RowRead};
use futures_util::future::try_join_all;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The database: its shards, in the order by which hosts are assigned to them.
#[derive(Clone)]
pub(super) struct Client {
    shards: Vec<Arc<Shard>>,
}

impl Client {
    /// Finds out which servers have which shard. `query_name` is the prefix of query ids.
    pub async fn connect(
        servers: Vec<Arc<Server>>,
        options: &Options,
        query_name: &str,
    ) -> Result<Client, Fault> {
        let by_name = match &options.cluster {
            None => BTreeMap::from([(String::new(), servers)]),
            Some(cluster) => shards_of(servers, options, cluster).await?,
        };
        let is_one = by_name.len() == 1;
        let shards = by_name.into_iter().map(|(name, servers)| {
            let shown = if is_one { String::new() } else { name };
            Arc::new(Shard::new(shown, servers, options, query_name.to_owned()))
        });
        Ok(Client {
            shards: shards.collect(),
        })
    }

    /// The shards.
    pub fn shards(&self) -> &[Arc<Shard>] {
        &self.shards
    }

    /// The first shard; there is one at least.
    pub fn first(&self) -> &Arc<Shard> {
        &self.shards[0]
    }

    /// One shard alone.
    pub fn only(&self, shard: &Arc<Shard>) -> Client {
        Client {
            shards: vec![shard.clone()],
        }
    }

    /// Hands the rows of a query on each shard to `take` as they come, until `limits` say stop.
    pub async fn each<T: RowOwned + RowRead>(
        &self,
        statement: &Statement,
        limits: &Limits,
        mut take: impl FnMut(T) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        if let [only] = self.shards.as_slice() {
            return only.each(statement, limits, &mut take).await;
        }
        let take = RefCell::new(take);
        let answers = self.shards.iter().map(async |shard| {
            let mut take = |row| (take.borrow_mut())(row);
            shard.each(statement, limits, &mut take).await
        });
        try_join_all(answers).await.map(|_| ())
    }

    /// The row that each shard answers.
    pub async fn one_of_each<T: RowOwned + RowRead>(&self, sql: &str) -> Result<Vec<T>, Fault> {
        try_join_all(self.shards.iter().map(|shard| shard.one::<T>(sql))).await
    }
}

/// The shard of a host, of `count`: as that of the `Distributed` tables, whose sharding key is the
/// host.
pub(super) fn shard_of(host: u64, count: usize) -> usize {
    (host % count.max(1) as u64) as usize
}

/// Servers by the name of their shard, as they tell it. Those that cannot be asked now are left
/// out, as long as each shard has another.
async fn shards_of(
    servers: Vec<Arc<Server>>,
    options: &Options,
    cluster: &str,
) -> Result<BTreeMap<String, Vec<Arc<Server>>>, Fault> {
    #[derive(::clickhouse::Row, serde::Deserialize)]
    struct Place {
        shard: String,
        shards: u64,
    }
    let ask = format!(
        "SELECT ifNull((SELECT any(substitution) FROM system.macros WHERE macro = 'shard'), '') \
         AS shard, toUInt64(ifNull((SELECT uniqExact(shard_num) FROM system.clusters \
         WHERE cluster = '{cluster}'), 0)) AS shards"
    );
    let asked = servers.iter().map(async |server| {
        let place = server.outside::<Place>(&ask, options.write_timeout).await;
        (server.clone(), place)
    });
    let mut by_name: BTreeMap<String, Vec<Arc<Server>>> = BTreeMap::new();
    let (mut shards, mut away) = (0, None);
    for (server, place) in futures_util::future::join_all(asked).await {
        let url = &server.url;
        let place = match place {
            Ok(mut places) => places.pop(),
            Err(Fault::Away(why)) => {
                tracing::warn!(url, "failed to reach a ClickHouse server: {why}");
                away = Some(format!("{url}: {why}"));
                continue;
            }
            Err(fault) => return Err(fault.with(|text| format!("{url}: {text}"))),
        };
        let place = place.filter(|place| place.shards > 0).ok_or_else(|| {
            Fault::Refused(format!(
                "{url} knows no cluster `{cluster}`: name one of its `system.clusters` in \
                 clickhouse.cluster"
            ))
        })?;
        if place.shard.is_empty() {
            return Err(Fault::Refused(format!(
                "{url} has no macro `shard`: set `shard` and `replica` in the section `macros` of \
                 its configuration"
            )));
        }
        shards = place.shards;
        by_name.entry(place.shard).or_default().push(server);
    }
    if by_name.len() as u64 == shards && shards > 0 {
        return Ok(by_name);
    }
    Err(match away {
        Some(why) => Fault::Away(why),
        None => Fault::Refused(format!(
            "cluster `{cluster}` has {shards} shards, and clickhouse.urls has servers of {} ({}): \
             add a server of each",
            by_name.len(),
            by_name.into_keys().collect::<Vec<_>>().join(", ")
        )),
    })
}
