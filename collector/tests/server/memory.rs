//! The model of a store, with faults that tests switch on, and what it was given.

use crate::model::Model;
use collector::store::{
    AccountedSeries, BatchPolicy, ConnectedHost, Defined, FrameNaming, HostKey, HostRange,
    HostRecord, LabelTotals, Limits, NewWindow, NoticeBoard, PushOutcome, QueryResult, Scope,
    StoreError, StoreQueries, StoreStatus, TimeRange, TimeSeries, WindowSink,
};
use profile::{ContentId, Dictionary, Profile, Query, Remap, SampleKey, StackId};
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

#[derive(Default)]
struct State {
    windows: Vec<NewWindow>,
    dict: Dictionary,
    stacks: HashSet<ContentId>,
    hosts: BTreeMap<HostKey, HostRecord>,
    /// Windows of each push that took some.
    batches: Vec<usize>,
    fault: Option<Fault>,
    held: bool,
    folds: bool,
    policy: BatchPolicy,
    cancelled: u64,
    /// Memory that each profile was allowed.
    allowed: Vec<usize>,
    closed: bool,
    connected: BTreeMap<String, ConnectedHost>,
}

/// What a push fails with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The disk is full.
    Unavailable,
    /// The engine chokes on the windows of this host.
    Engine(&'static str),
    /// It says that stacks are missing which no window has.
    AsksForStrangers,
    /// It says that it knows callers by their content, and knows none.
    ForgetsCallers,
    /// It panics.
    Panic,
}

/// The store.
#[derive(Default)]
pub struct Memory {
    model: Model,
    state: Mutex<State>,
    changed: Condvar,
}

impl Memory {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics with the lock")
    }

    /// What pushes fail with from now on.
    pub fn set_fault(&self, fault: Option<Fault>) {
        self.lock().fault = fault;
    }

    /// How windows are to come, from the next collector on.
    pub fn set_batch_policy(&self, policy: BatchPolicy) {
        self.lock().policy = policy;
    }

    /// Profiles of too many stacks are cut to callers from now on, as engines do, instead of
    /// refused.
    pub fn fold(&self) {
        self.lock().folds = true;
    }

    /// Holds pushes and queries until released.
    pub fn hold(&self, held: bool) {
        self.lock().held = held;
        self.changed.notify_all();
    }

    /// The windows, by origin.
    pub fn windows(&self) -> Vec<NewWindow> {
        let mut windows = self.lock().windows.clone();
        windows.sort_by(|a, b| a.origin.cmp(&b.origin));
        windows
    }

    /// Sum of all counts.
    pub fn samples(&self) -> u64 {
        let windows = self.windows();
        let rows = windows.iter().flat_map(|window| &window.rows);
        rows.map(|row| row.value.count).sum()
    }

    /// Windows of each push that took some.
    pub fn batches(&self) -> Vec<usize> {
        self.lock().batches.clone()
    }

    /// All stacks.
    pub fn dictionary(&self) -> Dictionary {
        self.lock().dict.clone()
    }

    /// Stacks that have frames.
    pub fn stacks(&self) -> usize {
        self.lock().stacks.len()
    }

    /// What was said of hosts.
    pub fn host_records(&self) -> Vec<HostRecord> {
        self.lock().hosts.values().cloned().collect()
    }

    /// Queries that were given up.
    pub fn cancelled(&self) -> u64 {
        self.lock().cancelled
    }

    /// Memory that each profile since the last time was allowed, in order.
    pub fn allowed(&self) -> Vec<usize> {
        std::mem::take(&mut self.lock().allowed)
    }

    /// True once it was closed.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Waits while held, as long as the query may run.
    fn wait(&self, limits: &Limits) -> Result<MutexGuard<'_, State>, StoreError> {
        let mut state = self.lock();
        while state.held {
            if limits.cancel.is_cancelled() || Instant::now() >= limits.deadline {
                state.cancelled += 1;
                return Err(StoreError::Cancelled);
            }
            let waited = self.changed.wait_timeout(state, Duration::from_millis(5));
            state = waited.expect("no test panics with the lock").0;
        }
        Ok(state)
    }
}

impl FrameNaming for Memory {}

impl WindowSink for Memory {
    fn push(
        &self,
        windows: &[NewWindow],
        definitions: &Dictionary,
        now_unix_ns: i64,
    ) -> Result<Vec<PushOutcome>, StoreError> {
        let mut state = self.lock();
        while state.held {
            state = self.changed.wait(state).expect("no test panics");
        }
        match state.fault {
            Some(Fault::Unavailable) => {
                return Err(StoreError::Unavailable("the disk is full".to_owned()));
            }
            Some(Fault::Engine(host))
                if windows.iter().any(|one| one.origin.host.host_id == host) =>
            {
                return Err(StoreError::Engine {
                    operation: "store windows",
                    message: "it chokes".to_owned(),
                });
            }
            Some(Fault::AsksForStrangers) => {
                let missing = vec![ContentId([9; 16])];
                return Ok(windows
                    .iter()
                    .map(|_| PushOutcome::NeedStacks(missing.clone()))
                    .collect());
            }
            Some(Fault::Panic) => {
                drop(state);
                panic!("a store that panics, as the test wants it");
            }
            _ => {}
        }
        let mut remap = Remap::default();
        for (at, id) in definitions.content_ids().into_iter().enumerate() {
            remap.stack(definitions, &mut state.dict, StackId(at as u32));
            state.stacks.insert(id);
        }
        let taken = self.model.push(windows, definitions, now_unix_ns)?;
        let stored = windows.iter().zip(&taken);
        let stored = stored.filter(|(_, taken)| **taken == PushOutcome::Stored);
        let stored: Vec<NewWindow> = stored.map(|(window, _)| window.clone()).collect();
        if !stored.is_empty() {
            state.batches.push(stored.len());
        }
        state.windows.extend(stored);
        Ok(taken)
    }

    fn push_defined(
        &self,
        windows: &[NewWindow],
        definitions: &[Arc<Defined>],
        now_unix_ns: i64,
    ) -> Result<Vec<PushOutcome>, StoreError> {
        if definitions.iter().all(|of| of.known().next().is_none()) {
            return self.push(windows, &Defined::dictionary(definitions), now_unix_ns);
        }
        let stacks = |window: &NewWindow| window.rows.iter().map(|row| row.stack).collect();
        let missing = |window| PushOutcome::NeedCallers(stacks(window));
        Ok(windows.iter().map(missing).collect())
    }

    fn knows_callers(&self) -> bool {
        self.lock().fault == Some(Fault::ForgetsCallers)
    }

    fn batch_policy(&self) -> BatchPolicy {
        self.lock().policy
    }

    fn put_hosts(&self, hosts: &[HostRecord]) -> Result<(), StoreError> {
        let mut state = self.lock();
        if state.fault == Some(Fault::Unavailable) {
            return Err(StoreError::Unavailable("the disk is full".to_owned()));
        }
        let records = hosts.iter().map(|host| (host.key.clone(), host.clone()));
        state.hosts.extend(records);
        self.model.put_hosts(hosts)
    }

    fn maintain(&self, _now_unix_ns: i64) -> Result<(), StoreError> {
        Ok(())
    }

    fn close(&self) -> Result<(), StoreError> {
        self.lock().closed = true;
        Ok(())
    }
}

impl StoreQueries for Memory {
    fn hosts(
        &self,
        range: TimeRange,
        limits: &Limits,
    ) -> Result<Vec<(HostRecord, HostRange)>, StoreError> {
        drop(self.wait(limits)?);
        self.model.hosts(range, limits)
    }

    fn kept(&self) -> Result<Option<TimeRange>, StoreError> {
        self.model.kept()
    }

    fn label_names(&self, scope: &Scope, limits: &Limits) -> Result<Vec<String>, StoreError> {
        drop(self.wait(limits)?);
        self.model.label_names(scope, limits)
    }

    fn label_values(
        &self,
        scope: &Scope,
        name: &str,
        prefix: &str,
        limit: usize,
        limits: &Limits,
    ) -> Result<(Vec<String>, bool), StoreError> {
        drop(self.wait(limits)?);
        self.model.label_values(scope, name, prefix, limit, limits)
    }

    fn series(
        &self,
        scope: &Scope,
        group_by: &[String],
        step_ns: u64,
        limits: &Limits,
    ) -> Result<QueryResult<TimeSeries>, StoreError> {
        drop(self.wait(limits)?);
        self.model.series(scope, group_by, step_ns, limits)
    }

    fn accounted(
        &self,
        scope: &Scope,
        group_by: &[String],
        step_ns: u64,
        limits: &Limits,
    ) -> Result<QueryResult<AccountedSeries>, StoreError> {
        drop(self.wait(limits)?);
        self.model.accounted(scope, group_by, step_ns, limits)
    }

    fn profile(
        &self,
        range: TimeRange,
        query: &Query,
        limits: &Limits,
    ) -> Result<QueryResult<Profile>, StoreError> {
        let mut state = self.wait(limits)?;
        state.allowed.push(limits.memory_bytes);
        let all = Limits {
            nodes: usize::MAX,
            ..limits.clone()
        };
        let mut answer = self.model.profile(range, query, &all)?;
        if answer.data.dict.stacks.len() > limits.nodes {
            if !state.folds {
                let text = format!("more than {} stacks", limits.nodes);
                return Err(StoreError::TooLarge(text));
            }
            answer.data = without_leaves(&answer.data);
        }
        Ok(answer)
    }

    fn totals(
        &self,
        scope: &Scope,
        group_by: &[String],
        limits: &Limits,
    ) -> Result<QueryResult<Vec<LabelTotals>>, StoreError> {
        drop(self.wait(limits)?);
        self.model.totals(scope, group_by, limits)
    }
}

impl NoticeBoard for Memory {
    fn announce_hosts(&self, hosts: &[ConnectedHost]) -> Result<(), StoreError> {
        let mut state = self.lock();
        for host in hosts {
            state.connected.insert(host.host_id.clone(), host.clone());
        }
        Ok(())
    }

    fn connected_hosts(
        &self,
        since: i64,
        _limits: &Limits,
    ) -> Result<Vec<ConnectedHost>, StoreError> {
        let state = self.lock();
        let all = state.connected.values();
        Ok(all
            .filter(|host| host.seen_unix_ns >= since)
            .cloned()
            .collect())
    }
}

impl StoreStatus for Memory {
    fn engine(&self) -> (&'static str, String) {
        ("memory", "1".to_owned())
    }

    fn metrics(&self) -> Vec<metrics::Family> {
        metrics::gather(SIZES, self).collect()
    }

    fn issues(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Each sample under the caller of its leaf.
fn without_leaves(profile: &Profile) -> Profile {
    let mut cut = Profile {
        dict: profile.dict.clone(),
        info: profile.info.clone(),
        ..Profile::default()
    };
    for (key, value) in profile.sorted() {
        let caller = profile.dict.stacks.node(key.stack);
        let stack = caller.map_or(key.stack, |(caller, _)| caller);
        cut.add(SampleKey { stack, ..key }, value);
    }
    cut
}

metrics::rows! { SIZES: Memory;
    /// Windows held.
    Gauge fleetprof_store_windows = |of| of.lock().windows.len() as u64;
    /// As large as a store says it is.
    Gauge fleetprof_store_bytes = |_| 4096_u64;
}
