//! QueryService: answers queries, on any store.
//!
//! A call checks its request, waits for one of a few places, and runs on a blocking thread with a
//! deadline and a flag that is set when its client disconnects. Streamed answers are held in memory
//! until they are read, in places of their own (`held.rs`). The same calls serve gRPC, gRPC-Web and
//! downloads.

mod answer;
mod cgroups;
mod chance;
mod compare;
mod filtered;
mod held;
mod overview;
mod request;
mod scoped;
mod service;
mod spread;
mod status;
mod steps;
mod units;

pub(crate) use cgroups::totals as totals_of;
pub(crate) use filtered::{series as filtered_series, step as filtered_step};
pub(crate) use held::{RETRY_AFTER, ResponseSlot, busy, profile_bytes};
pub use request::Selected;
pub(crate) use request::{
    POINTS_MAX, STEPS_S, WINDOW_NS, check, invalid, resolve, step, whole_steps,
};
pub use scoped::ScopedStore;
pub(crate) use scoped::of_samples;
pub(crate) use service::ROWS_MAX;
pub(crate) use steps::Steps;

use crate::access::Caller;
use crate::ingest::Hosts;
use crate::metrics::Metrics;
use crate::store::{
    self, Cancel, ConnectedHost, Limits, NoticeBoard, OfType, OpenStore, QueryResult, Scope,
    StoreError, StoreQueries, StoreStatus, TimeRange, is_captured,
};
use crate::time::Clock;
use metrics::{Family, Format, Histogram, encode};
use profile::{Profile, Query, key};
use proto::{agent, collector as wire};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tonic::Status;

/// Time a client may leave a part of its answer unread.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Time a client may take for a complete answer. 128 MiB in this time is 0.4 MiB/s.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(300);

/// Largest request. Unit: bytes. The most matchers and filters, each with the longest pattern, are
/// half of this.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;

/// Limits for queries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryOptions {
    /// Queries that run at a time; more wait, until their time is over.
    pub concurrent: usize,
    /// Time for one, waiting included.
    pub timeout: Duration,
    /// Memory for one. Unit: bytes.
    pub memory_bytes: usize,
    /// Most stacks (trie nodes) of a profile.
    pub nodes: usize,
    /// Most rows of totals by label.
    pub lines: usize,
}

/// Facts about the process for the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// When it started.
    pub started_unix_ns: i64,
    /// Bound of the store on disk; 0: none. Unit: bytes.
    pub store_bytes_max: u64,
    /// What it has given up.
    pub sandbox: sandbox::Report,
}

/// What captures over the fleet recorded, as profile types.
pub trait CapturedTypes: Send + Sync + 'static {
    /// True when nothing is there to be asked for, whoever asks. Does not block.
    fn is_empty(&self) -> bool;

    /// What `caller` may see of a profile type, or of all of them, for lists: each label set has
    /// its type as [`store::PROFILE_TYPE`] then.
    fn seen_by(&self, caller: &Caller, of: Option<&str>) -> Arc<dyn StoreQueries>;
}

/// Answers queries; clones share everything.
#[derive(Clone)]
pub struct Queries(Arc<Inner>, Of);

/// What is asked.
#[derive(Clone)]
enum Of {
    /// The CPU profiles of agents.
    Agents,
    /// One profile type of other senders.
    Type(Arc<dyn StoreQueries>),
    /// All that other senders sent, for lists of their profile types and labels alone.
    Senders,
    /// One profile type of captures; without an id all of them, as of senders.
    Captured(Arc<dyn CapturedTypes>, Option<Arc<str>>),
}

struct Inner {
    store: scoped::Guarded,
    senders: Option<Arc<dyn StoreQueries>>,
    captured: OnceLock<Arc<dyn CapturedTypes>>,
    board: Arc<dyn NoticeBoard>,
    status: Arc<dyn StoreStatus>,
    hosts: Arc<Hosts>,
    options: QueryOptions,
    facts: Facts,
    clock: Clock,
    metrics: Arc<Metrics>,
    places: Arc<Semaphore>,
    answers: held::Answers,
    /// Alerts: never behind queries of people, nor these behind them.
    evaluations: Arc<Semaphore>,
    /// Exports: as these.
    exports: Arc<Semaphore>,
    /// What is wrong outside of the store.
    warnings: OnceLock<status::Warnings>,
    /// Status, the range of what is kept and metrics: never behind queries.
    calls: Arc<Semaphore>,
}

/// What a query asks for.
#[derive(Clone, Copy)]
pub(crate) enum Ask {
    Profile,
    Diff,
    Overview,
    Alert,
    Export,
    Series,
    Top,
    Labels,
    Hosts,
    Cgroups,
    Pin,
    ConnectedHosts,
    Status,
}

impl Ask {
    /// The times of its like.
    fn time(self, metrics: &Metrics) -> &Histogram {
        match self {
            Ask::Profile => &metrics.ask_profile,
            Ask::Diff => &metrics.ask_diff,
            Ask::Overview => &metrics.ask_overview,
            Ask::Alert => &metrics.ask_alert,
            Ask::Export => &metrics.ask_export,
            Ask::Series => &metrics.ask_series,
            Ask::Top => &metrics.ask_top,
            Ask::Labels => &metrics.ask_labels,
            Ask::Hosts => &metrics.ask_hosts,
            Ask::Cgroups => &metrics.ask_cgroups,
            Ask::Pin => &metrics.ask_pin,
            Ask::ConnectedHosts => &metrics.ask_connected_hosts,
            Ask::Status => &metrics.ask_status,
        }
    }
}

/// Cancels a query when its caller is dropped.
struct CancelOnDrop {
    cancel: Cancel,
    metrics: Arc<Metrics>,
    done: bool,
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.cancel.cancel();
        if !self.done {
            self.metrics.queries_cancelled.inc();
        }
    }
}

impl Queries {
    /// Queries of `store`.
    pub fn new(
        store: &OpenStore,
        hosts: Arc<Hosts>,
        options: QueryOptions,
        facts: Facts,
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> Queries {
        let concurrent = options.concurrent;
        let answers = held::Answers::new(options.memory_bytes, metrics.clone());
        let inner = Inner {
            store: scoped::Guarded::new(store.queries.clone()),
            senders: store.senders.as_ref().map(|of| of.queries.clone()),
            captured: OnceLock::new(),
            board: store.board.clone(),
            status: store.status.clone(),
            hosts,
            options,
            facts,
            clock,
            metrics,
            places: Arc::new(Semaphore::new(concurrent)),
            answers,
            evaluations: Arc::new(Semaphore::new(1)),
            exports: Arc::new(Semaphore::new(1)),
            warnings: OnceLock::new(),
            calls: Arc::new(Semaphore::new(1)),
        };
        Queries(Arc::new(inner), Of::Agents)
    }

    /// The queries that answer a selection: those of its profile type. Whoever calls
    /// [`Selected::new`] in place of this answers for agents alone, and a selection of another type
    /// is refused there.
    ///
    /// # Errors
    /// INVALID_ARGUMENT when the selection is wrong or other senders are not let in.
    pub(crate) fn select(
        &self,
        selection: Option<wire::Selection>,
    ) -> Result<(Queries, Selected), Status> {
        let mut selection = selection.unwrap_or_default();
        let id = std::mem::take(&mut selection.profile_type);
        let queries = match id.as_str() {
            "" => self.clone(),
            id => self.of_type(id)?,
        };
        Ok((queries, Selected::new(Some(selection))?))
    }

    /// Whose profile types are those of captures, from now on.
    pub(crate) fn captured_by(&self, types: impl CapturedTypes) {
        let _ = self.0.captured.set(Arc::new(types));
    }

    /// The queries of a profile type of other senders, or of captures.
    ///
    /// # Errors
    /// INVALID_ARGUMENT when nothing can be of it: captures are not kept, or senders not let in.
    pub(crate) fn of_type(&self, id: &str) -> Result<Queries, Status> {
        if is_captured(id) {
            let captured = self.0.captured.get().cloned();
            let captured = captured
                .ok_or_else(|| invalid("failed to use the profile type: no captures are kept"))?;
            let of = Of::Captured(captured, Some(id.into()));
            return Ok(Queries(self.0.clone(), of));
        }
        let senders = self.0.senders.clone().ok_or_else(|| {
            invalid(
                "failed to use the profile type: this collector takes no profiles of other senders \
                 (`senders.enabled`)",
            )
        })?;
        let of = OfType::new(senders, id).map_err(invalid)?;
        Ok(Queries(self.0.clone(), Of::Type(Arc::new(of))))
    }

    /// The queries of all that other senders sent, for lists of labels: sums would add up values of
    /// different types.
    pub(crate) fn of_senders(&self) -> Queries {
        Queries(self.0.clone(), Of::Senders)
    }

    /// True where other senders are let in.
    pub(crate) fn has_senders(&self) -> bool {
        self.0.senders.is_some()
    }

    /// The queries of all that captures recorded, for lists of labels as [`Queries::of_senders`];
    /// none where nothing is kept.
    pub(crate) fn of_captures(&self) -> Option<Queries> {
        let captured = self.0.captured.get()?;
        let all = || Queries(self.0.clone(), Of::Captured(captured.clone(), None));
        (!captured.is_empty()).then(all)
    }

    /// True when it answers for the CPU profiles of agents.
    pub(crate) fn is_of_agents(&self) -> bool {
        matches!(self.1, Of::Agents)
    }

    /// Ids of the profile types of other senders and of captures with samples that `caller` may
    /// see, ordered.
    ///
    /// # Errors
    /// As every query.
    pub(crate) async fn profile_types(
        &self,
        caller: &Caller,
        range: Option<agent::TimeRange>,
    ) -> Result<Vec<String>, Status> {
        let senders = self.has_senders().then(|| self.of_senders());
        let now = self.now_unix_ns();
        let mut ids = BTreeSet::new();
        for all in senders.into_iter().chain(self.of_captures()) {
            let found = all.run(caller, Ask::Labels, 0, ROWS_MAX, move |store, limits| {
                let range = resolve(range, now, || store.kept())?;
                Ok(store::profile_types(store, range, limits)?)
            });
            ids.extend(found.await?);
        }
        Ok(ids.into_iter().collect())
    }

    /// The store that is asked, as `caller` may see it. A scope is added to what is asked of a
    /// store; a capture is shown or not as a whole, because it may lack the labels of a scope that
    /// all of it is in.
    fn seen_by(&self, caller: &Caller) -> Arc<dyn StoreQueries> {
        let now = self.0.clock.now_unix_ns();
        let scoped = |store: &Arc<dyn StoreQueries>| ScopedStore::new(store.clone(), caller, now);
        match (&self.1, &self.0.senders) {
            (Of::Type(of), _) => Arc::new(scoped(of)),
            (Of::Senders, Some(senders)) => Arc::new(scoped(senders)),
            (Of::Captured(all, of), _) => all.seen_by(caller, of.as_deref()),
            (Of::Agents | Of::Senders, _) => Arc::new(self.0.store.seen_by(caller, now)),
        }
    }

    /// Runs `work` on a blocking thread within the limits, on what of the store `caller` may see;
    /// `nodes` and `lines` are those of its answer.
    ///
    /// # Errors
    /// Those of `work`, and when there is no place or no time for it.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        caller: &Caller,
        ask: Ask,
        nodes: usize,
        lines: usize,
        work: impl FnOnce(&dyn StoreQueries, &Limits) -> Result<T, Failed> + Send + 'static,
    ) -> Result<T, Status> {
        let places = &self.0.places;
        self.run_in(places, caller, ask, (nodes, lines), work).await
    }

    async fn run_in<T: Send + 'static>(
        &self,
        places: &Arc<Semaphore>,
        caller: &Caller,
        ask: Ask,
        (nodes, lines): (usize, usize),
        work: impl FnOnce(&dyn StoreQueries, &Limits) -> Result<T, Failed> + Send + 'static,
    ) -> Result<T, Status> {
        let inner = &self.0;
        let arrived = Instant::now();
        let deadline = arrived + inner.options.timeout;
        let mut guard = CancelOnDrop {
            cancel: Cancel::default(),
            metrics: inner.metrics.clone(),
            done: false,
        };
        let limits = Limits {
            hosts: None,
            waiting: true,
            reports: true,
            cancel: guard.cancel.clone(),
            deadline,
            memory_bytes: inner.options.memory_bytes,
            nodes,
            lines,
        };
        let place = tokio::time::timeout_at(deadline.into(), places.clone().acquire_owned()).await;
        let Ok(Ok(place)) = place else {
            guard.done = true;
            inner.metrics.queries_limited.inc();
            let running = inner.options.concurrent;
            return Err(held::busy(format!(
                "{running} queries run already (`query.concurrent`), and none ended in time"
            )));
        };
        let store = self.seen_by(caller);
        let metrics = inner.metrics.clone();
        let working = tokio::task::spawn_blocking(move || {
            // Given back when the work has ended, whoever waits for it.
            let _place = place;
            let started = Instant::now();
            metrics.queries_running.inc();
            let _running = Running(metrics.clone());
            let result = work(&*store, &limits);
            metrics.query_ns.inc_by(started.elapsed().as_nanos() as u64);
            result
        });
        let result = working.await;
        guard.done = true;
        let time = ask.time(&inner.metrics);
        time.observe(arrived.elapsed().as_secs_f64());
        let result = result.unwrap_or_else(|_| {
            tracing::error!("a query panicked");
            Err(Failed::Status(Status::internal(
                "the query failed in the collector",
            )))
        });
        let late = Instant::now() >= deadline;
        let result = result.map_err(|failed| failed.status(late, inner.options.timeout));
        inner.count(result.as_ref().err());
        result
    }

    /// What `make` makes of the merged profile of a selection. It runs in the query's place and
    /// within its limits, and takes a place of its own for what is left of it.
    ///
    /// # Errors
    /// As every query, and those of `make`.
    pub(crate) async fn profile<T: Send + 'static>(
        &self,
        caller: &Caller,
        selected: &Selected,
        query: Query,
        max_nodes: u32,
        make: impl FnOnce(QueryResult<Profile>, &Limits) -> Result<T, Failed> + Send + 'static,
    ) -> Result<T, Status> {
        let nodes = match max_nodes {
            0 => self.0.options.nodes,
            asked => (asked as usize).min(self.0.options.nodes),
        };
        let (range, now) = (selected.range(), self.0.clock.now_unix_ns());
        self.run(
            caller,
            Ask::Profile,
            nodes,
            self.0.options.lines,
            move |store, limits| {
                let range = request::resolve(range, now, || store.kept())?;
                make(store.profile(range, &query, limits)?, limits)
            },
        )
        .await
    }

    /// What `make` makes of the profiles of a selection in steps of `step_ns`. It runs in the place
    /// of one query; reading a step takes half of its memory at most, and `make` the other half.
    ///
    /// # Errors
    /// As every query, those of `make`, and INVALID_ARGUMENT when there are too many steps.
    pub(crate) async fn profiles<T: Send + 'static>(
        &self,
        caller: &Caller,
        selected: &Selected,
        query: Query,
        step_ns: u64,
        make: impl FnOnce(Steps<'_>, &Limits) -> Result<T, Failed> + Send + 'static,
    ) -> Result<T, Status> {
        let (nodes, lines) = (self.0.options.nodes, self.0.options.lines);
        let (range, now) = (selected.range(), self.0.clock.now_unix_ns());
        let work = move |store: &dyn StoreQueries, limits: &Limits| {
            let half = Limits {
                memory_bytes: limits.memory_bytes / 2,
                ..limits.clone()
            };
            let range = request::resolve(range, now, || store.kept())?;
            let step_ns = steps::step(range, step_ns)?;
            let steps = Steps::new(store, range, &query, step_ns, &half)?;
            make(steps, &half)
        };
        self.run(caller, Ask::Profile, nodes, lines, work).await
    }

    /// What `make` makes of what is not in the store, in a query's place and within its limits.
    ///
    /// # Errors
    /// As every query, and those of `make`.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        make: impl FnOnce(&Limits) -> Result<T, Failed> + Send + 'static,
    ) -> Result<T, Status> {
        let (nodes, lines) = (self.0.options.nodes, self.0.options.lines);
        // It is not in the store: whoever makes it sees to scopes.
        let caller = Caller::local();
        self.run(&caller, Ask::Pin, nodes, lines, move |_, limits| {
            make(limits)
        })
        .await
    }

    /// Runs the questions of an alert or a measure, which are nobody's: on all that is stored, in a
    /// place of their own, for `most` at longest and with a quarter of a query's memory.
    ///
    /// # Errors
    /// As every query.
    pub(crate) async fn evaluate<T: Send + 'static>(
        &self,
        most: Duration,
        (nodes, lines): (usize, usize),
        make: impl FnOnce(&dyn StoreQueries, &Limits) -> Result<T, Failed> + Send + 'static,
    ) -> Result<T, Status> {
        let place = &self.0.evaluations;
        self.unasked(place, Ask::Alert, most, (nodes, lines), make)
            .await
    }

    /// The same for what is exported, in another place.
    ///
    /// # Errors
    /// As every query.
    pub(crate) async fn export<T: Send + 'static>(
        &self,
        most: Duration,
        bounds: (usize, usize),
        make: impl FnOnce(&dyn StoreQueries, &Limits) -> Result<T, Failed> + Send + 'static,
    ) -> Result<T, Status> {
        let place = &self.0.exports;
        self.unasked(place, Ask::Export, most, bounds, make).await
    }

    async fn unasked<T: Send + 'static>(
        &self,
        place: &Arc<Semaphore>,
        ask: Ask,
        most: Duration,
        bounds: (usize, usize),
        make: impl FnOnce(&dyn StoreQueries, &Limits) -> Result<T, Failed> + Send + 'static,
    ) -> Result<T, Status> {
        self.run_in(
            place,
            &Caller::local(),
            ask,
            bounds,
            move |store, limits| {
                let limits = Limits {
                    deadline: limits.deadline.min(Instant::now() + most),
                    memory_bytes: limits.memory_bytes / 4,
                    ..limits.clone()
                };
                make(store, &limits)
            },
        )
        .await
    }

    /// Names of the hosts with samples in a scope, ordered, and whether there are more than `most`.
    ///
    /// # Errors
    /// As every query.
    pub(crate) async fn host_names(
        &self,
        caller: &Caller,
        scope: Scope,
        most: usize,
    ) -> Result<(Vec<String>, bool), Status> {
        self.run(caller, Ask::Labels, 0, most, move |store, limits| {
            Ok(store.label_values(&scope, key::HOST, "", most, limits)?)
        })
        .await
    }

    /// Hosts connected to any collector of the store, at most `most`.
    ///
    /// # Errors
    /// As every query.
    pub(crate) async fn connected_hosts(
        &self,
        since_unix_ns: i64,
        most: usize,
    ) -> Result<Vec<ConnectedHost>, Status> {
        let board = self.0.board.clone();
        self.run_in(
            &self.0.calls,
            &Caller::local(),
            Ask::ConnectedHosts,
            (0, most),
            move |_, limits| Ok(board.connected_hosts(since_unix_ns, limits)?),
        )
        .await
    }

    /// Announces on the store which hosts are connected here.
    ///
    /// # Errors
    /// As every query.
    pub(crate) async fn announce_hosts(&self, hosts: Vec<ConnectedHost>) -> Result<(), Status> {
        let board = self.0.board.clone();
        let announce = move |_: &dyn StoreQueries, _: &Limits| Ok(board.announce_hosts(&hosts)?);
        let calls = &self.0.calls;
        self.run_in(
            calls,
            &Caller::local(),
            Ask::ConnectedHosts,
            (0, 0),
            announce,
        )
        .await
    }

    /// The time, to which ranges without an end go.
    pub(crate) fn now_unix_ns(&self) -> i64 {
        self.0.clock.now_unix_ns()
    }

    /// Most stacks of a profile.
    pub(crate) fn nodes(&self) -> usize {
        self.0.options.nodes
    }

    /// Most rows of totals.
    pub(crate) fn lines(&self) -> usize {
        self.0.options.lines
    }

    /// The units in which hosts were weighed in a range, each the finer one.
    ///
    /// # Errors
    /// As every query.
    pub(crate) fn units(
        &self,
        store: &dyn StoreQueries,
        range: TimeRange,
        limits: &Limits,
    ) -> Result<BTreeSet<String>, Failed> {
        units::in_range(store, range, &self.0.hosts, limits)
    }

    /// The newest labels of all hosts that are known, by host id.
    pub(crate) fn labels_of_hosts(&self) -> HashMap<String, BTreeMap<String, String>> {
        self.0.hosts.labels()
    }

    /// The collector's metrics as text, and those that were measured. One at a time: the store may
    /// look at its files.
    pub async fn metrics_text(&self, measured: Vec<Family>, format: Format) -> Option<String> {
        let call = self.0.calls.clone().acquire_owned().await.ok()?;
        let inner = self.0.clone();
        let rendering = tokio::task::spawn_blocking(move || {
            // Given back when it has ended, whoever waits for it.
            let _call = call;
            let mut all = inner.metrics.all(&*inner.status);
            all.extend(measured);
            encode(all, format)
        });
        rendering.await.ok()
    }

    /// Counts an answer that was given up because its client did not read it.
    pub fn count_stalled(&self) {
        self.0.metrics.answers_stalled.inc();
    }
}

struct Running(Arc<Metrics>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.queries_running.dec();
    }
}

impl Inner {
    fn count(&self, error: Option<&Status>) {
        use tonic::Code;
        let metrics = &self.metrics;
        let counter = match error.map(Status::code) {
            None => &metrics.queries_ok,
            Some(Code::InvalidArgument) => &metrics.queries_invalid,
            Some(Code::ResourceExhausted) => &metrics.queries_limited,
            Some(Code::DeadlineExceeded) => &metrics.queries_late,
            Some(Code::Cancelled) => &metrics.queries_cancelled,
            Some(_) => &metrics.queries_failed,
        };
        counter.inc();
    }
}

/// Why work for an answer failed.
pub(crate) enum Failed {
    /// In the store.
    Store(StoreError),
    /// As this says.
    Status(Status),
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Failed {
        Failed::Store(error)
    }
}

impl From<Status> for Failed {
    fn from(status: Status) -> Failed {
        Failed::Status(status)
    }
}

impl Failed {
    fn status(self, late: bool, timeout: Duration) -> Status {
        let error = match self {
            Failed::Status(status) => return status,
            Failed::Store(error) => error,
        };
        let text = error.to_string();
        match error {
            StoreError::Unavailable(_) => Status::unavailable(text),
            StoreError::TooLarge(_) => Status::resource_exhausted(text),
            StoreError::Cancelled if late => Status::deadline_exceeded(format!(
                "the query took more than {} s (`query.timeout_s`): use a shorter range or fewer \
                 hosts",
                timeout.as_secs()
            )),
            StoreError::Cancelled => Status::cancelled(text),
            StoreError::Units(_) => {
                Status::invalid_argument(format!("{text}: select hosts that sample the same event"))
            }
            StoreError::Engine { .. } => {
                tracing::error!("query failed: {text}");
                Status::internal(text)
            }
        }
    }
}

/// The range of a request that has no selection.
fn resolved(
    store: &dyn StoreQueries,
    range: Option<agent::TimeRange>,
    now: i64,
) -> Result<TimeRange, StoreError> {
    request::resolve(range, now, || store.kept())
}
