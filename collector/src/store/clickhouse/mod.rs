//! Stores windows in ClickHouse, over HTTP, for fleets that are too large for one machine.
//!
//! Collectors store nothing themselves, so any number of them may use one database. `schema.rs`
//! explains how a window counts once, however often and by whichever collector it is inserted. All
//! calls block the caller's thread on a small runtime of the store's own; none may be made from
//! asynchronous code.

mod client;
mod connected_hosts;
mod hosts;
mod keys;
mod known;
mod push;
mod retire;
mod rollup;
mod rows;
mod samples;
mod schema;
mod select;
mod sums;
mod window;

use super::names::{FrameNaming, NamedBy, Names};
use super::query::{
    AccountSums, Axis, EachBatch, FleetActivity, LabelSums, QueryBudget, SamplesRead, SeriesSums,
    WindowSource,
};
use super::{
    BatchPolicy, ConnectedHost, HostRecord, Limits, NewWindow, NoticeBoard, PushOutcome, Scope,
    StoreError, StoreStatus, TimeRange, WindowSink,
};
use crate::sync::lock;
use client::{Client, Fault};
use keys::{Keys, STEP_NS, Span};
use known::Known;
use metrics::{Counter, Family, gather};
use profile::{Dictionary, GroupBy, Query};
use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};

/// Version of the schema that this collector makes and understands (`schema.rs`).
const SCHEMA_VERSION: u32 = 8;

/// Labels of the rollup by service: those of its questions that name no other are answered from it.
/// Part of the schema: rows of rollups have these and no others.
const SERVICE_LABELS: [&str; 2] = ["service", "unit"];
/// First and longest time for which nothing is pushed after the server was away.
const BACK_OFF_MIN: Duration = Duration::from_millis(100);
const BACK_OFF_MAX: Duration = Duration::from_secs(10);
/// Most bytes of a password file that are read.
const PASSWORD_LEN_MAX: u64 = 4096;

/// How to reach the database and how long to keep what is in it.
#[derive(Clone, Debug)]
pub struct Options {
    /// `http://host:8123` or `https://host:8443`; certificates are checked against the system's.
    pub url: String,
    /// Name of the database: letters, digits and `_`. It is created when it is not there.
    pub database: String,
    /// User; `None`: the server's default.
    pub user: Option<String>,
    /// File with the user's password; white space at its end is not part of it.
    pub password_file: Option<PathBuf>,
    /// How long sums over services are kept in hours, with windows and hosts.
    pub retention: Duration,
    /// How long samples are kept as they came; windows older than it are refused.
    pub raw: Duration,
    /// How long sums over services are kept in minutes.
    pub minutes: Duration,
    /// How long lines over time and totals are kept, by label set and without stacks.
    pub label_sets: Duration,
    /// How far in the future windows may start.
    pub future: Duration,
    /// Longest wait for one insert or look-up, after which the server is away.
    pub write_timeout: Duration,
}

impl Default for Options {
    /// The server on this machine, 30 days of samples and a year of services, 10 minutes, 30
    /// seconds.
    fn default() -> Self {
        Options {
            url: "http://127.0.0.1:8123".to_owned(),
            database: "fleetprof".to_owned(),
            user: None,
            password_file: None,
            retention: Duration::from_secs(365 * 86_400),
            raw: Duration::from_secs(30 * 86_400),
            minutes: Duration::from_secs(30 * 86_400),
            label_sets: Duration::from_secs(90 * 86_400),
            future: Duration::from_secs(600),
            write_timeout: Duration::from_secs(30),
        }
    }
}

/// Why the store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// An option makes no sense.
    #[error("failed to use option `{option}`: {reason}")]
    Option {
        /// Its name.
        option: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The password could not be read.
    #[error("failed to read password file `{}`: {source}", path.display())]
    Password {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The store's own threads could not be started.
    #[error("failed to start the threads of the ClickHouse client: {0}")]
    Threads(std::io::Error),
    /// The server is not there, or does not let us in.
    #[error(
        "failed to reach ClickHouse at `{url}`: {reason}\n\
         try: clickhouse-client --query 'SELECT 1' with the same user, or curl {url}/ping"
    )]
    Away {
        /// Its address.
        url: String,
        /// What happened.
        reason: String,
    },
    /// The tables could not be made or are not ours.
    #[error("failed to prepare database `{database}`: {reason}")]
    Schema {
        /// Its name.
        database: String,
        /// What happened.
        reason: String,
    },
}

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

metrics::rows! { KNOWN: known::Known;
    /// Ids of frames and stacks that ClickHouse is known to have.
    Gauge clickhouse_known_ids = |k| k.len() as u64;
    /// Known ids that were dropped to make room.
    Counter clickhouse_known_ids_forgotten_total = |k| k.forgotten;
}

/// The server does not take anything now.
struct Outage {
    until: Instant,
    wait: Duration,
    reason: String,
}

/// A store in a ClickHouse database.
pub struct ClickHouseStore {
    /// `None` once dropped.
    runtime: Option<Runtime>,
    client: Client,
    keys: Keys,
    options: Options,
    version: String,
    known: Mutex<Known>,
    counters: Counters,
    outage: Mutex<Option<Outage>>,
    /// Rows that the server perhaps took some of.
    unfinished: Mutex<Option<push::Batch>>,
    /// Days over the age of samples with rollups that were checked.
    looked: Mutex<BTreeMap<u16, retire::Looked>>,
    /// Days of tables that could not be dropped.
    undropped: Mutex<BTreeMap<(&'static str, u16), retire::Undropped>>,
    closed: AtomicBool,
    names: NamedBy,
}

fn check(options: &Options) -> Result<(), OpenError> {
    let wrong = |option, reason: &str| {
        Err(OpenError::Option {
            option,
            reason: reason.to_owned(),
        })
    };
    let name = &options.database;
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
        return wrong(
            "clickhouse.database",
            "it must be 1 to 64 letters, digits and `_`",
        );
    }
    if name.starts_with(|c: char| c.is_ascii_digit()) {
        return wrong("clickhouse.database", "it must not start with a digit");
    }
    if !options.url.starts_with("http://") && !options.url.starts_with("https://") {
        return wrong(
            "clickhouse.url",
            "it must start with `http://` or `https://`",
        );
    }
    if options.url.contains(['?', '#', '@']) {
        return wrong(
            "clickhouse.url",
            "it must have only scheme, host, port and path",
        );
    }
    Ok(())
}

fn password(options: &Options) -> Result<Option<String>, OpenError> {
    use std::io::Read;
    let Some(path) = &options.password_file else {
        return Ok(None);
    };
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(PASSWORD_LEN_MAX).read_to_string(&mut text))
        .map_err(|source| OpenError::Password {
            path: path.clone(),
            source,
        })?;
    Ok(Some(text.trim_end().to_owned()))
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
        check(&options)?;
        let password = password(&options)?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("fp-clickhouse")
            .enable_all()
            .build()
            .map_err(OpenError::Threads)?;
        let fresh_key = fresh_key();
        let name = format!("fleetprof-{}", &fresh_key[..16]);
        let client = Client::new(&options, password.as_deref(), name);
        let opened = runtime.block_on(async {
            let keys = schema::migrate(&client, &fresh_key).await?;
            let version: Version = client.one("SELECT version() AS version").await?;
            Ok((keys, version.version))
        });
        let (keys, version) = opened.map_err(|fault| match fault {
            Fault::Away(reason) => OpenError::Away {
                url: options.url.clone(),
                reason,
            },
            fault => OpenError::Schema {
                database: options.database.clone(),
                reason: fault.to_string(),
            },
        })?;
        Ok(ClickHouseStore {
            runtime: Some(runtime),
            client,
            keys,
            options,
            version,
            known: Mutex::default(),
            counters: Counters::default(),
            outage: Mutex::default(),
            unfinished: Mutex::default(),
            looked: Mutex::default(),
            undropped: Mutex::default(),
            closed: AtomicBool::new(false),
            names: NamedBy::default(),
        })
    }

    /// Waits for `work`, and counts in `unavailable` when the server is away.
    fn run<T>(
        &self,
        unavailable: &Counter,
        work: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let Some(runtime) = &self.runtime else {
            return Err(Fault::Away("the store is closed".to_owned()));
        };
        let done = runtime.block_on(work);
        if let Err(Fault::Away(_)) = &done {
            unavailable.inc();
        }
        done
    }

    /// A query: what a busy server answers to it says nothing of whether it takes windows.
    fn read<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, StoreError> {
        let done = self.run(&self.counters.reads_unavailable, work);
        done.map_err(|fault| fault.of(operation))
    }

    /// Writes anything but windows. Whether the server takes it says nothing of windows either: it
    /// may be that the table of one has room and that of the other has not.
    fn write<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, StoreError> {
        self.may_write()?;
        let done = self.run(&self.counters.writes_unavailable, work);
        done.map_err(|fault| fault.of(operation))
    }

    /// The server took windows.
    fn is_back(&self) {
        *lock(&self.outage) = None;
    }

    /// The server did not take windows.
    fn went_away(&self, reason: &str) {
        let mut outage = lock(&self.outage);
        let wait = outage.as_ref().map_or(BACK_OFF_MIN, |last| last.wait * 2);
        let wait = wait.min(BACK_OFF_MAX);
        *outage = Some(Outage {
            until: Instant::now() + wait,
            wait,
            reason: reason.to_owned(),
        });
    }

    /// Writes do not hammer a server that is away: they fail at once until it is time to try again.
    fn may_write(&self) -> Result<(), StoreError> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(StoreError::Unavailable("the store is closed".to_owned()));
        }
        match &*lock(&self.outage) {
            Some(outage) if Instant::now() < outage.until => {
                let reason = format!("ClickHouse: {}", outage.reason);
                Err(StoreError::Unavailable(reason))
            }
            _ => Ok(()),
        }
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
        self.may_write()?;
        let push = push::Push {
            client: &self.client,
            keys: &self.keys,
            options: &self.options,
            known: &self.known,
            counters: &self.counters,
            unfinished: &self.unfinished,
        };
        let work = push.take(windows, definitions, now_unix_ns);
        let done = self.run(&self.counters.writes_unavailable, work);
        match &done {
            Err(Fault::Away(reason)) => self.went_away(reason),
            // Whatever it answered: it is there.
            Ok(_) | Err(_) => self.is_back(),
        }
        done.map_err(|fault| fault.of("store windows"))
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
        self.write("remember hosts", hosts::put_hosts(&self.client, hosts))
    }

    fn maintain(&self, now_unix_ns: i64) -> Result<(), StoreError> {
        self.write("drop what is over age", self.retire(now_unix_ns))
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
        self.write(
            "announce connected hosts",
            connected_hosts::put(&self.client, hosts),
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
        all.extend(gather(KNOWN, &lock(&self.known)));
        all
    }

    fn issues(&self) -> Vec<String> {
        let outage = lock(&self.outage);
        let sentence = outage.as_ref().map(|outage| {
            format!(
                "ClickHouse at {} rejects data: {}. Agents keep their windows until ClickHouse \
                 works again.",
                self.options.url, outage.reason
            )
        });
        sentence.into_iter().collect()
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
