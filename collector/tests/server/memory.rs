//! A store in memory, with faults that tests switch on. It keeps everything and answers by looking at
//! all of it.

use collector::store::{
    Attending, BatchPolicy, DataQuality, Defined, FrameNaming, HostRange, HostRecord, LabelSet,
    LabelTotals, Limits, NewWindow, NoticeBoard, Origin, PushOutcome, QueryResult, Resolution,
    Scope, Series, Step, StoreError, StoreQueries, StoreStatus, TimeRange, TimeSeries, WindowSink,
    selects,
};
use profile::{
    ContentId, Dictionary, Info, LabelSetId, MergeError, Profile, Quality, Query, QueryRunner,
    Remap, SampleKey, StackEnd, StackId, Value,
};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Unit: nanoseconds.
const STEP_NS: u64 = 10_000_000_000;

#[derive(Default)]
struct State {
    windows: Vec<NewWindow>,
    origins: HashSet<Origin>,
    dict: Dictionary,
    known: HashMap<ContentId, StackId>,
    hosts: BTreeMap<collector::store::HostKey, HostRecord>,
    /// Windows of each push that took some.
    batches: Vec<usize>,
    trouble: Option<Trouble>,
    held: bool,
    folds: bool,
    policy: BatchPolicy,
    cancelled: u64,
    /// Memory that each profile was allowed.
    allowed: Vec<usize>,
    closed: bool,
    attending: BTreeMap<String, Attending>,
}

/// What a push fails with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
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
    state: Mutex<State>,
    changed: Condvar,
}

impl Memory {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics with the lock")
    }

    /// What pushes fail with from now on.
    pub fn set_trouble(&self, trouble: Option<Trouble>) {
        self.lock().trouble = trouble;
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
        self.lock().known.len()
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

fn meets(range: TimeRange, window: &NewWindow) -> bool {
    window.range.start_unix_ns < range.end_unix_ns && window.range.end_unix_ns > range.start_unix_ns
}

fn unit(windows: &[&NewWindow]) -> String {
    let mut units: Vec<&str> = windows.iter().map(|window| window.unit.as_str()).collect();
    units.dedup();
    match units[..] {
        [] => String::new(),
        [one] => one.to_owned(),
        _ => "mixed".to_owned(),
    }
}

fn quality(range: TimeRange, windows: &[&NewWindow], total: Value) -> DataQuality {
    let hosts: BTreeSet<_> = windows.iter().map(|window| &window.origin.host).collect();
    let mut sampling = Quality::default();
    for window in windows {
        sampling += window.quality;
    }
    let unmeasured = windows.iter().filter(|window| window.accounts.is_empty());
    DataQuality {
        covered: range,
        resolution: Resolution {
            step_ns: STEP_NS,
            by_service: false,
        },
        hosts: hosts.len() as u64,
        hosts_alive: hosts.len() as u64,
        windows: windows.len() as u64,
        windows_unmeasured: unmeasured.count() as u64,
        gaps: Vec::new(),
        gaps_total: 0,
        gap_ns_total: 0,
        sampling,
        total,
        unit: unit(windows),
        pruned_weight: 0,
        named_later: Default::default(),
        damaged: Vec::new(),
    }
}

fn project(labels: &LabelSet, group_by: &[String]) -> LabelSet {
    let kept = group_by.iter();
    LabelSet::new(kept.map(|name| (name.clone(), labels.get(name).to_owned())))
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
        match state.trouble {
            Some(Trouble::Unavailable) => {
                return Err(StoreError::Unavailable("the disk is full".to_owned()));
            }
            Some(Trouble::Engine(host))
                if windows.iter().any(|one| one.origin.host.host_id == host) =>
            {
                return Err(StoreError::Engine {
                    operation: "store windows",
                    message: "it chokes".to_owned(),
                });
            }
            Some(Trouble::AsksForStrangers) => {
                let missing = vec![ContentId([9; 16])];
                return Ok(windows
                    .iter()
                    .map(|_| PushOutcome::NeedStacks(missing.clone()))
                    .collect());
            }
            Some(Trouble::Panic) => {
                drop(state);
                panic!("a store that panics, as the test wants it");
            }
            _ => {}
        }
        let mut remap = Remap::default();
        for (at, id) in definitions.content_ids().into_iter().enumerate() {
            let State { dict, known, .. } = &mut *state;
            let stack = remap.stack(definitions, dict, StackId(at as u32));
            known.insert(id, stack);
        }
        state.known.insert(ContentId::default(), StackId::EMPTY);
        let mut taken = Vec::new();
        let mut stored = 0;
        for window in windows {
            let missing: BTreeSet<ContentId> = window
                .rows
                .iter()
                .map(|row| row.stack)
                .filter(|id| !state.known.contains_key(id))
                .collect();
            taken.push(if window.range.start_unix_ns > now_unix_ns {
                PushOutcome::Rejected("it is from the future".to_owned())
            } else if state.origins.contains(&window.origin) {
                PushOutcome::Duplicate
            } else if missing.is_empty() {
                state.origins.insert(window.origin.clone());
                state.windows.push(window.clone());
                stored += 1;
                PushOutcome::Stored
            } else {
                PushOutcome::NeedStacks(missing.into_iter().collect())
            });
        }
        if stored > 0 {
            state.batches.push(stored);
        }
        Ok(taken)
    }

    fn batch_policy(&self) -> BatchPolicy {
        self.lock().policy
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
        self.lock().trouble == Some(Trouble::ForgetsCallers)
    }

    fn put_hosts(&self, hosts: &[HostRecord]) -> Result<(), StoreError> {
        let mut state = self.lock();
        if state.trouble == Some(Trouble::Unavailable) {
            return Err(StoreError::Unavailable("the disk is full".to_owned()));
        }
        let hosts = hosts.iter().map(|host| (host.key.clone(), host.clone()));
        state.hosts.extend(hosts);
        Ok(())
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
        let state = self.wait(limits)?;
        let did = |record: &HostRecord| {
            let mut did = HostRange::default();
            for window in &state.windows {
                if window.origin.host == record.key && meets(range, window) {
                    did.windows += 1;
                    for row in &window.rows {
                        match row.end {
                            StackEnd::Lost => did.lost += row.value,
                            _ => did.taken += row.value,
                        }
                    }
                }
            }
            did
        };
        let hosts = state.hosts.values();
        Ok(hosts.map(|record| (record.clone(), did(record))).collect())
    }

    fn kept(&self) -> Result<Option<TimeRange>, StoreError> {
        let state = self.lock();
        let ranges = || state.windows.iter().map(|window| window.range);
        let start = ranges().map(|range| range.start_unix_ns).min();
        let end = ranges().map(|range| range.end_unix_ns).max();
        Ok(start
            .zip(end)
            .map(|(start_unix_ns, end_unix_ns)| TimeRange {
                start_unix_ns,
                end_unix_ns,
            }))
    }

    fn label_names(&self, scope: &Scope, limits: &Limits) -> Result<Vec<String>, StoreError> {
        let state = self.wait(limits)?;
        let windows = state.windows.iter().filter(|one| meets(scope.range, one));
        let sets = windows.flat_map(|window| &window.label_sets);
        let names: BTreeSet<String> = sets
            .filter(|set| selects(&scope.selector, set))
            .flat_map(|set| set.iter().map(|(name, _)| name.to_owned()))
            .collect();
        Ok(names.into_iter().collect())
    }

    fn label_values(
        &self,
        scope: &Scope,
        name: &str,
        prefix: &str,
        limit: usize,
        limits: &Limits,
    ) -> Result<(Vec<String>, bool), StoreError> {
        let state = self.wait(limits)?;
        let windows = state.windows.iter().filter(|one| meets(scope.range, one));
        let sets = windows.flat_map(|window| &window.label_sets);
        let values: BTreeSet<&str> = sets
            .filter(|set| selects(&scope.selector, set))
            .map(|set| set.get(name))
            .filter(|value| !value.is_empty() && value.starts_with(prefix))
            .collect();
        let more = values.len() > limit;
        Ok((
            values.into_iter().take(limit).map(str::to_owned).collect(),
            more,
        ))
    }

    fn series(
        &self,
        scope: &Scope,
        group_by: &[String],
        step_ns: u64,
        limits: &Limits,
    ) -> Result<QueryResult<TimeSeries>, StoreError> {
        let state = self.wait(limits)?;
        let windows: Vec<_> = state
            .windows
            .iter()
            .filter(|one| meets(scope.range, one))
            .collect();
        let start = scope.range.start_unix_ns.div_euclid(step_ns as i64) * step_ns as i64;
        let steps = (scope.range.end_unix_ns.abs_diff(start)).div_ceil(step_ns) as usize;
        let mut lines: BTreeMap<LabelSet, Vec<u64>> = BTreeMap::new();
        let mut total = Value::default();
        let mut made = vec![Step::default(); steps];
        for window in &windows {
            let at = window.range.start_unix_ns.max(start).abs_diff(start) / step_ns;
            let step = &mut made[at as usize];
            step.hosts += 1;
            for row in &window.rows {
                step.weight = step.weight.saturating_add(row.value.weight);
                if row.end == StackEnd::Lost {
                    step.lost_weight += row.value.weight;
                }
            }
            for row in &window.rows {
                let labels = &window.label_sets[row.labels as usize];
                if selects(&scope.selector, labels) {
                    let line = lines.entry(project(labels, group_by));
                    let line = line.or_insert_with(|| vec![0; steps]);
                    let sum = &mut line[at as usize];
                    *sum = sum.saturating_add(row.value.weight);
                    total += row.value;
                }
            }
        }
        let mut lines: Vec<Series> = lines
            .into_iter()
            .map(|(labels, weights)| Series { labels, weights })
            .collect();
        lines.sort_by_key(|line| std::cmp::Reverse(line.weights.iter().sum::<u64>()));
        let over = lines.split_off(limits.lines.min(lines.len()));
        let mut rest = if over.is_empty() {
            Vec::new()
        } else {
            vec![0; steps]
        };
        for line in &over {
            rest.iter_mut()
                .zip(&line.weights)
                .for_each(|(sum, weight)| *sum += weight);
        }
        Ok(QueryResult {
            data: TimeSeries {
                start_unix_ns: start,
                step_ns,
                lines,
                rest,
                rest_lines: over.len() as u64,
                steps: made,
            },
            quality: quality(scope.range, &windows, total),
        })
    }

    fn profile(
        &self,
        range: TimeRange,
        query: &Query,
        limits: &Limits,
    ) -> Result<QueryResult<Profile>, StoreError> {
        let mut state = self.wait(limits)?;
        state.allowed.push(limits.memory_bytes);
        let windows: Vec<_> = state
            .windows
            .iter()
            .filter(|one| meets(range, one))
            .collect();
        let mut all = Profile {
            dict: state.dict.clone(),
            ..Profile::default()
        };
        for window in &windows {
            let ids: Vec<LabelSetId> = window
                .label_sets
                .iter()
                .map(|set| all.dict.intern_labels(set.iter()))
                .collect();
            for row in &window.rows {
                let key = SampleKey {
                    labels: ids[row.labels as usize],
                    stack: state.known[&row.stack],
                    end: row.end,
                };
                all.add(key, row.value);
            }
        }
        let mut runner = QueryRunner::new(query);
        for (key, value) in all.sorted() {
            runner.add(&all.dict, key, value);
        }
        let answer = runner.finish(Info {
            start_unix_ns: range.start_unix_ns,
            duration_ns: range.end_unix_ns.abs_diff(range.start_unix_ns),
            event: "cpu-clock".to_owned(),
            unit: unit(&windows),
            period: 10,
            ..Info::default()
        });
        let quality = quality(range, &windows, answer.total());
        if answer.dict.stacks.len() > limits.nodes && state.folds {
            return Ok(QueryResult {
                data: without_leaves(&answer),
                quality,
            });
        }
        if answer.dict.stacks.len() > limits.nodes {
            return Err(StoreError::TooLarge(format!(
                "more than {} stacks",
                limits.nodes
            )));
        }
        Ok(QueryResult {
            data: answer,
            quality,
        })
    }

    fn totals(
        &self,
        scope: &Scope,
        group_by: &[String],
        limits: &Limits,
    ) -> Result<QueryResult<Vec<LabelTotals>>, StoreError> {
        let state = self.wait(limits)?;
        let windows: Vec<_> = state
            .windows
            .iter()
            .filter(|one| meets(scope.range, one))
            .collect();
        let mut rows: BTreeMap<LabelSet, LabelTotals> = BTreeMap::new();
        let mut total = Value::default();
        for window in &windows {
            let at = |labels: u32| {
                let labels = &window.label_sets[labels as usize];
                selects(&scope.selector, labels).then(|| project(labels, group_by))
            };
            let empty = |labels: &LabelSet| LabelTotals {
                labels: labels.clone(),
                taken: Value::default(),
                lost: Value::default(),
                expected_ns: 0,
                estimated_ns: 0,
            };
            for row in &window.rows {
                let Some(labels) = at(row.labels) else {
                    continue;
                };
                let sums = rows.entry(labels.clone()).or_insert_with(|| empty(&labels));
                match row.end {
                    StackEnd::Lost => sums.lost += row.value,
                    _ => sums.taken += row.value,
                }
                total += row.value;
            }
            for account in &window.accounts {
                let Some(labels) = at(account.labels) else {
                    continue;
                };
                let sums = rows.entry(labels.clone()).or_insert_with(|| empty(&labels));
                sums.expected_ns += account.ns as i64;
                sums.estimated_ns += account.estimated_ns as i64;
            }
        }
        let mut units = windows.iter().map(|window| window.unit.as_str());
        let left = units.next().unwrap_or_default();
        if let Some(right) = units.find(|&unit| unit != left) {
            let (left, right) = (left.to_owned(), right.to_owned());
            return Err(MergeError::UnitMismatch { left, right }.into());
        }
        Ok(QueryResult {
            data: rows.into_values().collect(),
            quality: quality(scope.range, &windows, total),
        })
    }
}

impl NoticeBoard for Memory {
    fn attend(&self, hosts: &[Attending]) -> Result<(), StoreError> {
        let mut state = self.lock();
        for host in hosts {
            state.attending.insert(host.host_id.clone(), host.clone());
        }
        Ok(())
    }

    fn attending(&self, since: i64, _limits: &Limits) -> Result<Vec<Attending>, StoreError> {
        let state = self.lock();
        let all = state.attending.values();
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

    fn counters(&self) -> Vec<(String, u64)> {
        let windows = self.lock().windows.len() as u64;
        vec![
            ("fleetprof_store_windows".to_owned(), windows),
            ("fleetprof_store_bytes".to_owned(), 4096),
        ]
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
