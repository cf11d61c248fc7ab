//! Sends statements to one shard over HTTP, by whichever of its servers works: parameters, limits,
//! cancellation.
//!
//! The servers of a shard have the same rows, or lead to the same server. What a server is away for
//! is tried with the next one: reading changes nothing, and every insert may be repeated.

use super::fault::{Fault, fault_of_query, fault_of_write};
use super::options::Options;
use super::statement::{Param, Statement};
use crate::store::Limits;
use ::clickhouse::error::Error;
use ::clickhouse::query::Query;
use ::clickhouse::{Compression, RowOwned, RowRead, RowWrite};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// How often a waiting query looks whether its client is still there.
const CANCEL_LOOK: Duration = Duration::from_millis(5);
/// Time for telling the engine that a query is not waited for any more.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// Least memory a query may use in the engine, however little its answer may take. Unit: bytes.
/// Below it the engine cannot read a block of each column.
const ENGINE_MEMORY_MIN: usize = 64 << 20;
/// Longest wait for the servers of a cluster to make a change. One that is off does not keep the
/// others waiting for longer, and makes the change when it is back. Unit: seconds.
const CLUSTER_WAIT_S: u32 = 15;

/// One server of a shard.
pub(super) struct Server {
    /// Its address.
    pub url: String,
    /// In the database.
    inside: ::clickhouse::Client,
    /// The same for rows of windows, which are packed on their way: they are most of what is sent.
    inserting: ::clickhouse::Client,
    /// In no database.
    outside: ::clickhouse::Client,
}

impl Server {
    /// The server at `url`, by `http`; it is asked nothing yet.
    pub fn new(
        http: &::clickhouse::Client,
        url: &str,
        options: &Options,
        password: Option<&str>,
    ) -> Server {
        let mut outside = http
            .clone()
            .with_url(url)
            .with_compression(Compression::None)
            .with_product_info("fleetprof-collector", env!("CARGO_PKG_VERSION"))
            // Several views are fed by one insert; it fails when one of them does.
            .with_setting("materialized_views_ignore_errors", "0")
            .with_setting("async_insert", "0");
        if options.cluster.is_some() {
            outside = outside
                .with_setting("distributed_ddl_output_mode", "null_status_on_timeout")
                .with_setting("distributed_ddl_task_timeout", CLUSTER_WAIT_S.to_string());
        }
        if options.insert_quorum > 0 {
            outside = outside.with_setting("insert_quorum", options.insert_quorum.to_string());
        }
        if let Some(user) = &options.user {
            outside = outside.with_user(user);
        }
        if let Some(password) = password {
            outside = outside.with_password(password);
        }
        let inside = outside.clone().with_database(&options.database);
        Server {
            url: url.to_owned(),
            inserting: inside.clone().with_compression(Compression::Lz4),
            inside,
            outside,
        }
    }

    fn query(&self, statement: &Statement) -> Query {
        let mut query = self.inside.query_raw(&statement.sql);
        for (at, param) in statement.params.iter().enumerate() {
            let name = format!("p{at}");
            query = match param {
                Param::Text(text) => query.param(&name, text),
                Param::Texts(texts) => query.param(&name, texts),
                Param::Numbers(numbers) => query.param(&name, numbers),
                Param::Pairs(pairs) => query.param(&name, pairs),
            };
        }
        query
    }

    /// The rows of a statement outside of the database, within `limit`.
    pub async fn outside<T: RowOwned + RowRead>(
        &self,
        sql: &str,
        limit: Duration,
    ) -> Result<Vec<T>, Fault> {
        in_time(limit, self.outside.query_raw(sql).fetch_all::<T>()).await
    }
}

async fn in_time<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Fault> {
    match timeout(limit, work).await {
        Ok(done) => done.map_err(|error| fault_of_write(&error)),
        Err(_) => Err(Fault::Away(format!(
            "no answer within {} s",
            limit.as_secs()
        ))),
    }
}

/// One shard: the complete database where there are no others.
pub(super) struct Shard {
    /// Its name, in sentences about one of several; empty where there is one.
    pub name: String,
    servers: Vec<Arc<Server>>,
    /// The server that is used: the last one that worked.
    current: AtomicUsize,
    database: String,
    write_timeout: Duration,
    /// Prefix of query ids, random, and how many there were.
    query_name: String,
    queries: AtomicU64,
}

impl Shard {
    /// The shard of these servers.
    pub fn new(
        name: String,
        servers: Vec<Arc<Server>>,
        options: &Options,
        query_name: String,
    ) -> Shard {
        Shard {
            name,
            servers,
            current: AtomicUsize::new(0),
            database: options.database.clone(),
            write_timeout: options.write_timeout,
            query_name,
            queries: AtomicU64::new(0),
        }
    }

    /// Name of the database: letters, digits and `_`.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// Part of names of tables that no other collector has: letters, digits and `_`.
    pub fn own_name(&self) -> String {
        self.query_name.replace('-', "_")
    }

    /// Its servers, in the order in which they are tried.
    pub fn servers(&self) -> &[Arc<Server>] {
        &self.servers
    }

    /// Does `work` with one server after another until one is not away.
    async fn by_any<T>(&self, work: impl AsyncFn(&Server) -> Result<T, Fault>) -> Result<T, Fault> {
        let first = self.current.load(Ordering::Relaxed);
        let mut last = Fault::Away("the shard has no server".to_owned());
        for number in 0..self.servers.len() {
            let at = (first + number) % self.servers.len();
            match work(&self.servers[at]).await {
                Err(fault @ Fault::Away(_)) => last = fault,
                done => {
                    self.current.store(at, Ordering::Relaxed);
                    return done.map_err(|fault| self.named(fault));
                }
            }
        }
        Err(self.named(last))
    }

    /// An error of one of several shards has its name.
    fn named(&self, fault: Fault) -> Fault {
        if self.name.is_empty() {
            return fault;
        }
        fault.with(|text| format!("shard `{}`: {text}", self.name))
    }

    /// Does a statement outside of the database.
    pub async fn outside(&self, sql: &str) -> Result<(), Fault> {
        let limit = self.write_timeout;
        self.by_any(async |server| in_time(limit, server.outside.query_raw(sql).execute()).await)
            .await
    }

    /// Does a statement.
    pub async fn execute(&self, sql: &str) -> Result<(), Fault> {
        self.run(&Statement::of(sql)).await
    }

    /// Does a statement with values.
    pub async fn run(&self, statement: &Statement) -> Result<(), Fault> {
        let limit = self.write_timeout;
        self.by_any(async |server| in_time(limit, server.query(statement).execute()).await)
            .await
    }

    /// Drops a partition of any size. By default the server rejects dropping those above 50 GB, to
    /// protect people from mistakes; days over age are no mistake.
    pub async fn drop_partition(&self, table: &str, partition: &str) -> Result<(), Fault> {
        let sql = &format!("ALTER TABLE {table} DROP PARTITION {partition}");
        let limit = self.write_timeout;
        let of_any_size = self
            .by_any(async |server| {
                let query = server.inside.query_raw(sql);
                let query = query.with_setting("max_partition_size_to_drop", "0");
                in_time(limit, query.execute()).await
            })
            .await;
        match of_any_size {
            // Its own bound holds then.
            Err(fault) if fault.is_of_setting() => self.execute(sql).await,
            done => done,
        }
    }

    /// The only row of an answer.
    pub async fn one<T: RowOwned + RowRead>(&self, sql: &str) -> Result<T, Fault> {
        let (statement, limit) = (Statement::of(sql), self.write_timeout);
        self.by_any(async |server| in_time(limit, server.query(&statement).fetch_one::<T>()).await)
            .await
    }

    /// All rows of an answer of which the size is known to be small.
    pub async fn all<T: RowOwned + RowRead>(&self, statement: &Statement) -> Result<Vec<T>, Fault> {
        let limit = self.write_timeout;
        self.by_any(async |server| in_time(limit, server.query(statement).fetch_all::<T>()).await)
            .await
    }

    /// All rows of an answer outside of the database, of which the size is known to be small.
    pub async fn all_outside<T: RowOwned + RowRead>(&self, sql: &str) -> Result<Vec<T>, Fault> {
        let limit = self.write_timeout;
        self.by_any(async |server| server.outside::<T>(sql, limit).await)
            .await
    }

    /// Inserts rows; when it returns they are there.
    pub async fn insert<T: RowOwned + RowWrite>(
        &self,
        table: &str,
        rows: &[T],
    ) -> Result<(), Fault> {
        self.insert_with(table, rows, &[]).await
    }

    /// Inserts rows that must not be there twice, also in what views make of them: an insert under
    /// a token that was there lately adds nothing.
    pub async fn insert_once<T: RowOwned + RowWrite>(
        &self,
        table: &str,
        rows: &[T],
        token: &str,
    ) -> Result<(), Fault> {
        let settings = [
            ("insert_deduplication_token", token),
            ("deduplicate_blocks_in_dependent_materialized_views", "1"),
        ];
        self.insert_with(table, rows, &settings).await
    }

    async fn insert_with<T: RowOwned + RowWrite>(
        &self,
        table: &str,
        rows: &[T],
        settings: &[(&str, &str)],
    ) -> Result<(), Fault> {
        if rows.is_empty() {
            return Ok(());
        }
        let limit = self.write_timeout;
        self.by_any(async |server| {
            in_time(limit, async {
                let mut insert = server.inserting.insert::<T>(table).await?;
                for &(name, value) in settings {
                    insert = insert.with_setting(name, value);
                }
                for row in rows {
                    insert.write(row).await?;
                }
                insert.end().await
            })
            .await
        })
        .await
    }

    /// Hands the rows of a query to `take` as they come, until `limits` say stop. A server that
    /// goes away is replaced by the next one as long as it has sent no row.
    pub async fn each<T: RowOwned + RowRead>(
        &self,
        statement: &Statement,
        limits: &Limits,
        take: &mut impl FnMut(T) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let first = self.current.load(Ordering::Relaxed);
        let mut number = 0;
        loop {
            let at = (first + number) % self.servers.len();
            let mut taken = false;
            let mut counted = |row| {
                taken = true;
                take(row)
            };
            let done = self
                .each_of(&self.servers[at], statement, limits, &mut counted)
                .await;
            number += 1;
            match done {
                Err(Fault::Away(_)) if !taken && number < self.servers.len() => {}
                done => {
                    if !matches!(done, Err(Fault::Away(_))) {
                        self.current.store(at, Ordering::Relaxed);
                    }
                    return done.map_err(|fault| self.named(fault));
                }
            }
        }
    }

    async fn each_of<T: RowOwned + RowRead>(
        &self,
        server: &Arc<Server>,
        statement: &Statement,
        limits: &Limits,
        take: &mut impl FnMut(T) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let now = Instant::now();
        if limits.cancel.is_cancelled() || now >= limits.deadline {
            return Err(Fault::GivenUp);
        }
        let left_s = limits.deadline.duration_since(now).as_secs() + 1;
        let number = self.queries.fetch_add(1, Ordering::Relaxed);
        let memory = limits.memory_bytes.max(ENGINE_MEMORY_MIN);
        let mut running = Running {
            server: server.clone(),
            id: format!("{}-{number}", self.query_name),
            is_over: false,
        };
        let query = server
            .query(statement)
            .with_setting("query_id", &running.id)
            .with_setting("max_execution_time", left_s.to_string())
            .with_setting("max_memory_usage", memory.to_string())
            // For users who may not kill: the connection of a query that is given up is closed.
            .with_setting("cancel_http_readonly_queries_on_client_close", "1");
        let work = async {
            let mut rows = query.fetch::<T>().map_err(|error| fault_of_query(&error))?;
            while let Some(row) = rows.next().await.map_err(|error| fault_of_query(&error))? {
                take(row)?;
            }
            Ok(())
        };
        let given_up = async {
            while !limits.cancel.is_cancelled() && Instant::now() < limits.deadline {
                tokio::time::sleep(CANCEL_LOOK).await;
            }
        };
        let done = tokio::select! {
            done = work => done,
            () = given_up => Err(Fault::GivenUp),
        };
        running.is_over = done.is_ok();
        done
    }
}

/// A query that the engine ends when nobody waits for it any more: its client went, a limit was
/// passed, or another shard failed.
struct Running {
    server: Arc<Server>,
    id: String,
    is_over: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        if self.is_over {
            return;
        }
        let (client, id) = (self.server.outside.clone(), std::mem::take(&mut self.id));
        runtime.spawn(async move {
            let mut kill = Statement::of("");
            let name = kill.param(Param::Text(id.clone()));
            let query = client
                .query_raw(&format!("KILL QUERY WHERE query_id = {name} ASYNC"))
                .param("p0", id);
            // The query may be over, or the user may not be allowed to: it ends by its time limit.
            drop(timeout(KILL_TIMEOUT, query.execute()).await);
        });
    }
}
