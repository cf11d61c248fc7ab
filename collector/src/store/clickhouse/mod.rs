//! Stores windows in ClickHouse, over HTTP, for fleets that are too large for one machine.
//!
//! Collectors store nothing themselves, so any number of them may use one database. `schema.rs`
//! explains how a window counts once, however often and by whichever collector it is inserted. All
//! calls block the caller's thread on a small runtime of the store's own; none may be made from
//! asynchronous code.

mod check;
mod client;
mod connected_hosts;
mod fault;
mod grants;
mod hosts;
mod keys;
mod known;
mod layout;
mod options;
mod push;
mod rebuild;
mod retire;
mod rollup;
mod rows;
mod samples;
mod schema;
mod select;
mod shard;
mod state;
mod statement;
mod storage;
mod sums;
mod tls;
mod window;

pub use check::{Finding, Severity, check};
pub use grants::{Role, grants};
pub use layout::Layout;
pub use options::{OpenError, Options};

use super::names::{FrameNaming, NamedBy, Names};
use super::query::{
    AccountSums, Axis, EachBatch, FleetActivity, LabelSums, QueryBudget, SamplesRead, SeriesSums,
    WindowSource,
};
use super::{
    BatchPolicy, ConnectedHost, HostKey, HostRecord, Limits, NewWindow, NoticeBoard, PushOutcome,
    Scope, StoreError, StoreStatus, TimeRange, WindowSink,
};
use crate::sync::lock;
use client::Client;
use fault::Fault;
use futures_util::future::join_all;
use keys::{Keys, STEP_NS, Span};
use metrics::{Family, gather};
use profile::{Dictionary, GroupBy, Query};
use shard::Server;
use state::ShardState;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// Version of the schema that this collector makes and understands (`schema.rs`).
pub const SCHEMA_VERSION: u32 = 10;

/// Labels of the rollup by service: those of its questions that name no other are answered from it.
/// Part of the schema: rows of rollups have these and no others.
const SERVICE_LABELS: [&str; 2] = ["service", "unit"];

metrics::counted! {
    /// Counters since the store was opened.
    struct Counters;
    /// Windows written to the server.
    Counter windows_stored_total = windows;
    /// Rows of samples written to the server.
    Counter rows_stored_total = rows;
    /// Stacks written to the server.
    Counter stacks_defined_total = stacks;
    /// Stacks whose id another stack had already.
    Counter stack_id_collisions_total = collisions;
    /// Reads that failed because the server was away.
    Counter clickhouse_reads_unavailable_total = reads_unavailable;
    /// Writes that failed because the server was away.
    Counter clickhouse_writes_unavailable_total = writes_unavailable;
    /// Partitions of tables that were dropped for their age.
    Counter clickhouse_partitions_dropped_total = partitions_dropped;
    /// Days of samples kept beyond their age because their rollups are not complete.
    Gauge clickhouse_days_of_samples_kept_longer = days_kept_longer;
}

/// Sums over shards.
#[derive(Default)]
struct KnownIds {
    ids: u64,
    forgotten: u64,
}

metrics::rows! { KNOWN: KnownIds;
    /// Ids of frames and stacks that ClickHouse is known to have.
    Gauge clickhouse_known_ids = |k| k.ids;
    /// Known ids that were dropped to make room.
    Counter clickhouse_known_ids_forgotten_total = |k| k.forgotten;
}

/// A store in a ClickHouse database.
pub struct ClickHouseStore {
    /// `None` once dropped.
    runtime: Option<Runtime>,
    client: Client,
    shards: Vec<ShardState>,
    keys: Keys,
    options: Options,
    version: String,
    counters: Counters,
    closed: AtomicBool,
    names: NamedBy,
}

/// 64 random hex digits, of which the first collector's become the database's key.
fn fresh_key() -> String {
    use std::hash::{BuildHasher, RandomState};
    let mut hasher = blake3::Hasher::new();
    for round in 0..8 {
        // Each is seeded by the system's random numbers.
        hasher.update(&RandomState::new().hash_one(round).to_le_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

impl ClickHouseStore {
    /// Opens the database, makes it where it is not there, and brings its tables up to date.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(options: Options) -> Result<ClickHouseStore, OpenError> {
        #[derive(::clickhouse::Row, serde::Deserialize)]
        struct Version {
            version: String,
        }
        let runtime = runtime()?;
        let fresh_key = fresh_key();
        let opened = runtime.block_on(async {
            let client = connect(&options, &fresh_key).await?;
            let opened = async {
                let keys = schema::migrate(&client, &options, &fresh_key).await?;
                storage::apply(&client, &options).await?;
                let mut versions = client
                    .one_of_each::<Version>("SELECT version() AS version")
                    .await?;
                let version = versions.pop().map(|of| of.version);
                Ok((keys, version.unwrap_or_default()))
            };
            let (keys, version) = opened.await.map_err(|fault| failed(&options, fault))?;
            Ok((client, keys, version))
        });
        let (client, keys, version) = opened?;
        Ok(ClickHouseStore {
            runtime: Some(runtime),
            shards: ShardState::all(&client),
            client,
            keys,
            options,
            version,
            counters: Counters::default(),
            closed: AtomicBool::new(false),
            names: NamedBy::default(),
        })
    }

    /// Waits for `work`.
    fn wait<T>(&self, work: impl Future<Output = T>) -> Result<T, StoreError> {
        let closed = || StoreError::Unavailable("the store is closed".to_owned());
        Ok(self.runtime.as_ref().ok_or_else(closed)?.block_on(work))
    }

    /// A query: what a busy server answers to it says nothing of whether it takes windows.
    fn read<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, StoreError> {
        let done = self.wait(work)?;
        if let Err(Fault::Away(_)) = &done {
            self.counters.reads_unavailable.inc();
        }
        done.map_err(|fault| fault.of(operation))
    }

    /// Writes anything but windows, on each shard that takes windows. Whether a server takes it
    /// says nothing of windows: it may be that the table of one has room and that of the other has
    /// not. One shard that is away does not keep the others from it.
    fn write(
        &self,
        operation: &'static str,
        work: impl AsyncFn(usize, &ShardState) -> Result<(), Fault>,
    ) -> Result<(), StoreError> {
        self.is_open()?;
        let (work, counters) = (&work, &self.counters);
        let all = self.shards.iter().enumerate().map(async |(at, shard)| {
            shard.may_write()?;
            let done = work(at, shard).await;
            if let Err(Fault::Away(_)) = &done {
                counters.writes_unavailable.inc();
            }
            done.map_err(|fault| fault.of(operation))
        });
        self.wait(join_all(all))?.into_iter().collect()
    }

    fn is_open(&self) -> Result<(), StoreError> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(StoreError::Unavailable("the store is closed".to_owned()));
        }
        Ok(())
    }

    /// Stores the windows of one shard.
    async fn push_to(
        &self,
        state: &ShardState,
        windows: &[&NewWindow],
        definitions: &push::Definitions<'_>,
        now_unix_ns: i64,
    ) -> Result<Vec<PushOutcome>, StoreError> {
        state.may_write()?;
        let push = push::Push {
            shard: &state.shard,
            keys: &self.keys,
            options: &self.options,
            known: &state.known,
            counters: &self.counters,
            unfinished: &state.unfinished,
        };
        let done = push.take(windows, definitions, now_unix_ns).await;
        match &done {
            Err(Fault::Away(reason)) => {
                self.counters.writes_unavailable.inc();
                state.went_away(reason);
            }
            // Whatever it answered: it is there.
            Ok(_) | Err(_) => state.is_back(),
        }
        done.map_err(|fault| fault.of("store windows"))
    }

    /// The shard that has the windows of a host.
    fn shard_of(&self, host: &HostKey) -> usize {
        client::shard_of(self.keys.host(host), self.shards.len())
    }

    /// Those of `all` that belong to one shard.
    fn of_shard<'a, T>(&self, all: &'a [T], at: usize, host: impl Fn(&T) -> HostKey) -> Vec<&'a T> {
        let all = all.iter();
        all.filter(|one| self.shard_of(&host(one)) == at).collect()
    }
}

fn runtime() -> Result<Runtime, OpenError> {
    Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("fp-clickhouse")
        .enable_all()
        .build()
        .map_err(OpenError::Threads)
}

/// The servers of `options`, checked and found. `fresh_key` is random.
async fn connect(options: &Options, fresh_key: &str) -> Result<Client, OpenError> {
    let query_name = format!("fleetprof-{}", &fresh_key[..16]);
    let client = Client::connect(servers_of(options)?, options, &query_name).await;
    client.map_err(|fault| failed(options, fault))
}

/// The servers of `options`, which are checked; nothing is asked yet.
fn servers_of(options: &Options) -> Result<Vec<Arc<Server>>, OpenError> {
    options.check()?;
    let password = options.password()?;
    let http = tls::client(options)?;
    let server = |url| Arc::new(Server::new(&http, url, options, password.as_deref()));
    Ok(options.urls.iter().map(|url| server(url)).collect())
}

/// Statements that make the tables, or bring them from the version `from` up to date, for somebody
/// who may change tables. The key of a database that is made is random.
pub fn schema_statements(options: &Options, from: u32) -> Vec<String> {
    schema_between(options, from, SCHEMA_VERSION)
}

/// The same up to a version.
pub fn schema_between(options: &Options, from: u32, to: u32) -> Vec<String> {
    let versions = (from, to.min(SCHEMA_VERSION));
    schema::statements(options.layout(), &options.database, &fresh_key(), versions)
}

fn failed(options: &Options, fault: Fault) -> OpenError {
    match fault {
        Fault::Away(reason) => OpenError::Away {
            url: options.urls.join(" and "),
            reason,
        },
        fault => OpenError::Schema {
            database: options.database.clone(),
            reason: fault.to_string(),
        },
    }
}

impl FrameNaming for ClickHouseStore {
    fn name_by(&self, names: Arc<dyn Names>) {
        self.names.set(names);
    }
}

impl WindowSink for ClickHouseStore {
    fn push(
        &self,
        windows: &[NewWindow],
        definitions: &Dictionary,
        now_unix_ns: i64,
    ) -> Result<Vec<PushOutcome>, StoreError> {
        self.is_open()?;
        let mut by_shard = vec![Vec::new(); self.shards.len()];
        for (at, window) in windows.iter().enumerate() {
            by_shard[self.shard_of(&window.origin.host)].push(at);
        }
        let definitions = &push::Definitions::of(definitions);
        let parts = self.shards.iter().zip(by_shard);
        let parts = parts.filter(|(_, at)| !at.is_empty());
        let parts = parts.map(async |(shard, at)| {
            let some: Vec<&NewWindow> = at.iter().map(|&at| &windows[at]).collect();
            let taken = self.push_to(shard, &some, definitions, now_unix_ns).await;
            (at, taken)
        });
        let parts = self.wait(join_all(parts))?;
        let is_taken = parts.iter().any(|(_, taken)| taken.is_ok());
        let mut outcomes = vec![None; windows.len()];
        for (of, taken) in parts {
            match taken {
                Ok(taken) => {
                    for (at, outcome) in of.into_iter().zip(taken) {
                        outcomes[at] = Some(outcome);
                    }
                }
                // A shard that is away keeps out the windows of its own hosts alone.
                Err(StoreError::Unavailable(reason)) if is_taken => {
                    for at in of {
                        outcomes[at] = Some(PushOutcome::Unavailable(reason.clone()));
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(outcomes.into_iter().flatten().collect())
    }

    /// The engine writes parts, which it merges: it asks for about one insert a second, of many
    /// rows.
    fn batch_policy(&self) -> BatchPolicy {
        BatchPolicy {
            linger: Duration::from_secs(1),
            windows: 1024,
        }
    }

    fn put_hosts(&self, hosts: &[HostRecord]) -> Result<(), StoreError> {
        self.write("remember hosts", async |at, shard: &ShardState| {
            let some = self.of_shard(hosts, at, |host| host.key.clone());
            hosts::put_hosts(&shard.shard, &some).await
        })
    }

    fn maintain(&self, now_unix_ns: i64) -> Result<(), StoreError> {
        let done = self.write("drop what is over age", async |_, shard: &ShardState| {
            let work = shard.retire((&self.keys, &self.options, &self.counters), now_unix_ns);
            work.await
        });
        let shards = self.shards.iter();
        let days = shards.map(|shard| shard.days_kept_longer.load(Ordering::Relaxed));
        self.counters.days_kept_longer.set(days.sum());
        done
    }

    fn close(&self) -> Result<(), StoreError> {
        self.closed.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl WindowSource for ClickHouseStore {
    type Dict = samples::Tables;

    fn kept(&self) -> Result<Option<TimeRange>, StoreError> {
        self.read("tell what is kept", hosts::kept(&self.client))
    }

    fn covered(&self, range: TimeRange) -> TimeRange {
        Span::of(range, STEP_NS).map_or(range, |span| span.covered)
    }

    fn step_ns(&self, _range: TimeRange) -> u64 {
        STEP_NS as u64
    }

    fn host_records(&self, budget: &mut QueryBudget<'_>) -> Result<Vec<HostRecord>, StoreError> {
        let work = hosts::host_records(&self.client, budget.limits);
        self.read("list hosts", work)
    }

    fn activity(
        &self,
        scope: &Scope,
        budget: &mut QueryBudget<'_>,
    ) -> Result<FleetActivity, StoreError> {
        let Some(span) = Span::of(scope.range, STEP_NS) else {
            return Ok(FleetActivity::default());
        };
        let work = hosts::activity(&self.client, span, &scope.selector, budget.limits);
        self.read("find what hosts did", work)
    }

    fn not_kept(
        &self,
        range: TimeRange,
        labels: &[&str],
        stacks: bool,
        budget: &mut QueryBudget<'_>,
    ) -> Result<Option<(String, i64)>, StoreError> {
        if !stacks {
            // Sums without stacks are kept with all labels.
            return Ok(None);
        }
        let work = rollup::not_kept(&self.client, range, labels, budget.limits);
        self.read("tell what is kept", work)
    }

    fn label_names(
        &self,
        scope: &Scope,
        budget: &mut QueryBudget<'_>,
    ) -> Result<Vec<String>, StoreError> {
        let work = sums::label_names(&self.client, scope, budget.limits);
        self.read("list labels", work)
    }

    fn label_values(
        &self,
        scope: &Scope,
        name: &str,
        prefix: &str,
        limit: usize,
        budget: &mut QueryBudget<'_>,
    ) -> Result<(Vec<String>, bool), StoreError> {
        let limits = budget.limits;
        let work = sums::label_values(&self.client, scope, name, prefix, limit, limits);
        self.read("list values", work)
    }

    fn series(
        &self,
        scope: &Scope,
        group_by: &GroupBy,
        axis: Axis,
        budget: &mut QueryBudget<'_>,
    ) -> Result<SeriesSums, StoreError> {
        let work = sums::series(&self.client, scope, group_by, axis, budget.limits);
        self.read("add up a series", work)
    }

    fn accounted(
        &self,
        scope: &Scope,
        group_by: &GroupBy,
        axis: Axis,
        budget: &mut QueryBudget<'_>,
    ) -> Result<AccountSums, StoreError> {
        let work = sums::accounted(&self.client, scope, group_by, axis, budget.limits);
        self.read("add up accounts", work)
    }

    fn totals(
        &self,
        scope: &Scope,
        group_by: &GroupBy,
        budget: &mut QueryBudget<'_>,
    ) -> Result<LabelSums, StoreError> {
        let work = sums::totals(&self.client, scope, group_by, budget.limits);
        self.read("add up totals", work)
    }

    fn samples(
        &self,
        range: TimeRange,
        query: &Query,
        budget: &mut QueryBudget<'_>,
        each: &mut EachBatch<'_, Self::Dict>,
    ) -> Result<SamplesRead, StoreError> {
        let work = samples::samples(&self.client, &self.names, range, query, budget.limits);
        let found = self.read("add up samples", work)?;
        if let Some(batch) = found.batch {
            each(batch, budget)?;
        }
        Ok(found.read)
    }
}

impl NoticeBoard for ClickHouseStore {
    fn announce_hosts(&self, hosts: &[ConnectedHost]) -> Result<(), StoreError> {
        // Which boot they are in is not known here, and all must be on one shard.
        let key = |host: &ConnectedHost| HostKey {
            host_id: host.host_id.clone(),
            boot_id: [0; 16],
        };
        self.write(
            "announce connected hosts",
            async |at, shard: &ShardState| {
                let some = self.of_shard(hosts, at, key);
                connected_hosts::put(&shard.shard, &some).await
            },
        )
    }

    fn connected_hosts(
        &self,
        since_unix_ns: i64,
        limits: &Limits,
    ) -> Result<Vec<ConnectedHost>, StoreError> {
        self.read(
            "read connected hosts",
            connected_hosts::find(&self.client, since_unix_ns, limits),
        )
    }

    fn is_shared(&self) -> bool {
        true
    }
}

impl StoreStatus for ClickHouseStore {
    fn engine(&self) -> (&'static str, String) {
        ("clickhouse", format!("ClickHouse {}", self.version))
    }

    fn metrics(&self) -> Vec<Family> {
        let mut all = self.counters.families();
        let mut known = KnownIds::default();
        for shard in &self.shards {
            let of = lock(&shard.known);
            known.ids += of.len() as u64;
            known.forgotten += of.forgotten;
        }
        all.extend(gather(KNOWN, &known));
        all
    }

    fn issues(&self) -> Vec<String> {
        self.shards.iter().filter_map(ShardState::issue).collect()
    }
}

impl Drop for ClickHouseStore {
    fn drop(&mut self) {
        // A statement that hangs must not hang the process.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
