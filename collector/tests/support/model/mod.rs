//! The simplest store that is right: a list of windows in memory, merged again for each answer.

mod beside;

use beside::prune;
use collector::store::{
    AccountedSeries, DataQuality, FrameNaming, HostKey, HostRange, HostRecord, LabelSet,
    LabelTotals, Limits, Names, NewWindow, NoticeBoard, PushOutcome, QueryResult, Row, Scope, Step,
    StoreError, StoreQueries, StoreStatus, TimeRange, TimeSeries, WindowSink, selects,
};
use profile::{
    ContentId, Dictionary, FrameId, GroupBy, Info, MergeError, Profile, Quality, Query,
    QueryRunner, Remap, SampleKey, Selector, StackEnd, StackId, Throttling, Value, key,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

/// Unit: nanoseconds.
const SECOND: i64 = 1_000_000_000;
/// Step of the windows' times in answers. Unit: nanoseconds.
const STEP_NS: i64 = 10 * SECOND;
/// Windows start at most so long after now. Unit: nanoseconds.
pub const FUTURE_NS: i64 = 600 * SECOND;
/// Windows start at most so long before now. Unit: nanoseconds.
pub const RETENTION_NS: i64 = 30 * 86_400 * SECOND;
/// Shorter absence is jitter. Unit: nanoseconds.
const ABSENT_MIN_NS: i64 = SECOND;
/// Taken for each sample of an answer. Unit: bytes.
const SAMPLE_BYTES: usize = 64;

/// The store. A clone has the same data.
#[derive(Clone, Default)]
pub struct Model(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    windows: Vec<Kept>,
    dict: Dictionary,
    known: HashMap<ContentId, StackId>,
    hosts: BTreeMap<HostKey, HostRecord>,
    names: Option<Arc<dyn Names>>,
}

impl State {
    /// The dictionary with all names that are known now.
    fn named(&self) -> Dictionary {
        let mut dict = self.dict.clone();
        let Some(known) = &self.names else {
            return dict;
        };
        let mut wanted = BTreeSet::new();
        for id in (0..dict.frames.len() as u32).map(FrameId) {
            let Some(place) = self.dict.frame(id).place() else {
                continue;
            };
            match known.names(place.build_id, &[place.address]) {
                Some((source, names)) => dict.later.set(id, names[0].as_deref(), source),
                None => drop(wanted.insert(place.build_id.to_owned())),
            }
        }
        known.want(wanted.into_iter().collect());
        dict
    }
}

struct Kept {
    window: NewWindow,
    rows: Vec<(SampleKey, Value)>,
}

impl Kept {
    fn is_in(&self, range: TimeRange) -> bool {
        let start = self.window.range.start_unix_ns;
        range.start_unix_ns <= start && start < range.end_unix_ns
    }

    fn info(&self) -> Info {
        Info {
            start_unix_ns: self.window.range.start_unix_ns,
            duration_ns: (self.window.range.end_unix_ns - self.window.range.start_unix_ns) as u64,
            event: self.window.event.clone(),
            unit: self.window.unit.clone(),
            period: self.window.period,
            quality: self.window.quality,
            ..Info::default()
        }
    }

    /// Labels that say which host: those that all label sets share and that agents give to hosts.
    fn host_labels(&self) -> LabelSet {
        let of_samples = [key::COMM, key::THREAD, key::PID, key::CONTEXT];
        let sets = &self.window.label_sets;
        let shared = sets.first().into_iter().flat_map(LabelSet::iter);
        LabelSet::new(
            shared
                .filter(|(name, value)| {
                    sets.iter().all(|set| set.get(name) == *value)
                        && !key::is_of_cgroup(name)
                        && !of_samples.contains(name)
                })
                .map(|(name, value)| (name.to_owned(), value.to_owned())),
        )
    }

    fn host_is_selected(&self, selector: &Selector, limits: &Limits) -> bool {
        let labels = self.host_labels();
        limits.tells_of(&labels)
            && selector.matchers().iter().all(|matcher| {
                let value = labels.get(matcher.label());
                value.is_empty() || matcher.matches(value)
            })
    }

    /// Returns what each account's cgroup has alone: less the nearest accounted ones below it.
    fn alone(&self) -> Vec<(i128, i128)> {
        let accounts = &self.window.accounts;
        let path =
            |at: usize| self.window.label_sets[accounts[at].labels as usize].get(key::CGROUP);
        let mut alone: Vec<_> = accounts
            .iter()
            .map(|account| (i128::from(account.ns), i128::from(account.estimated_ns)))
            .collect();
        for below in 0..accounts.len() {
            let above = profile::ancestors(path(below)).find_map(|ancestor| {
                (0..accounts.len()).find(|&at| path(at) == ancestor && accounts[at].ns > 0)
            });
            if let Some(above) = above {
                alone[above].0 -= i128::from(accounts[below].ns);
                alone[above].1 -= i128::from(accounts[below].estimated_ns);
            }
        }
        alone
    }

    /// What is expected, and the part that was not measured, by label set: the kernel's account of
    /// each cgroup alone; without accounts, what was taken.
    fn expected(&self) -> Vec<(&LabelSet, (i128, i128))> {
        let sets = |labels: u32| &self.window.label_sets[labels as usize];
        if self.window.accounts.is_empty() {
            let rows = self.window.rows.iter();
            let taken = rows.filter(|row| row.end != StackEnd::Lost);
            let both = |row: &Row| (row.value.weight.into(), row.value.weight.into());
            return taken.map(|row| (sets(row.labels), both(row))).collect();
        }
        let accounts = self.window.accounts.iter();
        accounts
            .map(|account| sets(account.labels))
            .zip(self.alone())
            .collect()
    }

    /// How their own limits held cgroups back.
    fn throttling(&self) -> impl Iterator<Item = (&LabelSet, Throttling)> {
        let accounts = self.window.accounts.iter();
        accounts.map(move |of| (&self.window.label_sets[of.labels as usize], of.throttling()))
    }
}

fn unit_of<'a>(units: impl IntoIterator<Item = &'a str>) -> Result<String, StoreError> {
    let units: BTreeSet<&str> = units.into_iter().collect();
    let mut units = units.into_iter();
    let first = units.next().unwrap_or_default().to_owned();
    match units.next() {
        None => Ok(first),
        Some(right) => Err(MergeError::UnitMismatch {
            left: first,
            right: right.to_owned(),
        }
        .into()),
    }
}

fn look(limits: &Limits) -> Result<(), StoreError> {
    if limits.cancel.is_cancelled() || Instant::now() >= limits.deadline {
        return Err(StoreError::Cancelled);
    }
    Ok(())
}

fn fits(samples: usize, limits: &Limits) -> Result<(), StoreError> {
    if samples.saturating_mul(SAMPLE_BYTES) > limits.memory_bytes {
        let text = "the answer passes the memory limit; narrow the range or the selection";
        return Err(StoreError::TooLarge(text.to_owned()));
    }
    Ok(())
}

impl State {
    fn in_range(&self, range: TimeRange) -> impl Iterator<Item = &Kept> {
        self.windows.iter().filter(move |kept| kept.is_in(range))
    }

    /// Selected rows of a range.
    fn rows(&self, scope: &Scope) -> Vec<(&Kept, &LabelSet, SampleKey, Value)> {
        let mut rows = Vec::new();
        for kept in self.in_range(scope.range) {
            for (row, &(key, value)) in kept.window.rows.iter().zip(&kept.rows) {
                let labels = &kept.window.label_sets[row.labels as usize];
                if selects(&scope.selector, labels) {
                    rows.push((kept, labels, key, value));
                }
            }
        }
        rows
    }

    /// Selected label sets of a range, of rows and accounts.
    fn label_sets(&self, scope: &Scope) -> BTreeSet<&LabelSet> {
        self.in_range(scope.range)
            .flat_map(|kept| &kept.window.label_sets)
            .filter(|labels| selects(&scope.selector, labels))
            .collect()
    }

    fn judge(&self, window: &NewWindow, now_unix_ns: i64) -> Option<PushOutcome> {
        let (start, end) = (window.range.start_unix_ns, window.range.end_unix_ns);
        let sets = window.label_sets.len() as u64;
        let unknown_set = window.rows.iter().any(|row| u64::from(row.labels) >= sets)
            || window
                .accounts
                .iter()
                .any(|of| u64::from(of.labels) >= sets);
        let refused = if start > now_unix_ns.saturating_add(FUTURE_NS) {
            "it is from the future"
        } else if start < now_unix_ns.saturating_sub(RETENTION_NS) {
            "it is older than the retention"
        } else if end <= start || end.saturating_sub(start) > 3600 * SECOND {
            "its time makes no sense"
        } else if window.origin.host.host_id.is_empty()
            || window.origin.host.host_id.len() > profile::fleet::HOST_ID_BYTES_MAX
        {
            "its host id is empty or too long"
        } else if unknown_set {
            "a row names a label set that does not exist"
        } else if self
            .windows
            .iter()
            .any(|kept| kept.window.origin == window.origin)
        {
            return Some(PushOutcome::Duplicate);
        } else {
            return None;
        };
        Some(PushOutcome::Rejected(refused.to_owned()))
    }

    fn take(&mut self, window: &NewWindow, definitions: &Definitions<'_>) -> PushOutcome {
        // What is only defined beside a window that lacks anything counts as lacking too.
        let mut missing: Vec<ContentId> = Vec::new();
        for row in &window.rows {
            let known = row.stack == ContentId::default() || self.known.contains_key(&row.stack);
            if !known && !missing.contains(&row.stack) {
                missing.push(row.stack);
            }
        }
        if missing.iter().any(|id| !definitions.by_id.contains_key(id)) {
            return PushOutcome::NeedStacks(missing);
        }
        let label_sets: Vec<_> = window
            .label_sets
            .iter()
            .map(|labels| self.dict.intern_labels(labels.iter()))
            .collect();
        let mut rows = Vec::new();
        let mut remap = Remap::default();
        for row in &window.rows {
            let stack = match definitions.by_id.get(&row.stack) {
                Some(&given) => remap.stack(definitions.dict, &mut self.dict, given),
                None => self.known.get(&row.stack).copied().unwrap_or_default(),
            };
            self.known.insert(row.stack, stack);
            let labels = label_sets[row.labels as usize];
            let end = row.end;
            rows.push((SampleKey { labels, stack, end }, row.value));
        }
        self.windows.push(Kept {
            window: window.clone(),
            rows,
        });
        PushOutcome::Stored
    }
}

/// Definitions of a push, by id.
struct Definitions<'d> {
    dict: &'d Dictionary,
    by_id: HashMap<ContentId, StackId>,
}

impl<'d> Definitions<'d> {
    fn of(dict: &'d Dictionary) -> Definitions<'d> {
        let ids = dict.content_ids().into_iter().enumerate();
        let by_id = ids.map(|(at, id)| (id, StackId(at as u32))).collect();
        Definitions { dict, by_id }
    }
}

impl Model {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no test panics with the lock")
    }
}

/// A series as it is without what hosts report.
pub fn without_reports(mut series: QueryResult<TimeSeries>) -> QueryResult<TimeSeries> {
    for step in &mut series.data.steps {
        *step = Step {
            hosts: step.hosts,
            ..Step::default()
        };
    }
    let quality = &mut series.quality;
    (quality.hosts, quality.hosts_alive) = (0, 0);
    (quality.windows, quality.windows_unmeasured) = (0, 0);
    (quality.gaps_total, quality.gap_ns_total) = (0, 0);
    quality.gaps.clear();
    quality.sampling = Quality::default();
    series
}

fn keep(labels: &LabelSet, group_by: &[String]) -> LabelSet {
    let group_by = GroupBy::from_keys(group_by);
    let kept = labels.iter().filter(|(name, _)| group_by.keeps(name));
    LabelSet::new(kept.map(|(name, value)| (name.to_owned(), value.to_owned())))
}

fn sum(values: impl IntoIterator<Item = Value>) -> Value {
    values.into_iter().fold(Value::default(), |mut sum, value| {
        sum += value;
        sum
    })
}

impl FrameNaming for Model {
    fn name_by(&self, names: Arc<dyn Names>) {
        self.state().names = Some(names);
    }
}

impl WindowSink for Model {
    fn push(
        &self,
        windows: &[NewWindow],
        definitions: &Dictionary,
        now_unix_ns: i64,
    ) -> Result<Vec<PushOutcome>, StoreError> {
        let mut state = self.state();
        let definitions = Definitions::of(definitions);
        let mut answers = Vec::new();
        for window in windows {
            let judged = state.judge(window, now_unix_ns);
            answers.push(judged.unwrap_or_else(|| state.take(window, &definitions)));
        }
        Ok(answers)
    }

    fn put_hosts(&self, hosts: &[HostRecord]) -> Result<(), StoreError> {
        let hosts = hosts.iter().map(|host| (host.key.clone(), host.clone()));
        self.state().hosts.extend(hosts);
        Ok(())
    }

    fn maintain(&self, _now_unix_ns: i64) -> Result<(), StoreError> {
        Ok(())
    }

    fn close(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

impl StoreQueries for Model {
    fn hosts(
        &self,
        range: TimeRange,
        limits: &Limits,
    ) -> Result<Vec<(HostRecord, HostRange)>, StoreError> {
        look(limits)?;
        let state = self.state();
        let gaps = state.gaps(range, &Selector::default(), limits);
        let mut answers = Vec::new();
        for (key, record) in &state.hosts {
            let mut of = HostRange::default();
            for kept in state
                .in_range(range)
                .filter(|kept| kept.window.origin.host == *key)
            {
                of.windows += 1;
                let is_lost = |row: &&(SampleKey, Value)| row.0.end == StackEnd::Lost;
                let rows = || kept.rows.iter();
                of.taken += sum(rows().filter(|row| !is_lost(row)).map(|row| row.1));
                of.lost += sum(rows().filter(is_lost).map(|row| row.1));
                of.windows_unmeasured += u64::from(kept.window.accounts.is_empty());
                // What of the agent's own counts is not counted over samples.
                of.sampling += Quality {
                    taken: 0,
                    folded: 0,
                    truncated: 0,
                    depth_limit: 0,
                    unnamed: 0,
                    lost_samples: 0,
                    ..kept.window.quality
                };
                let (ns, estimated) = kept
                    .expected()
                    .into_iter()
                    .fold((0, 0), |sum, (_, of)| (sum.0 + of.0, sum.1 + of.1));
                of.expected_ns += u64::try_from(ns).unwrap_or(0);
                of.estimated_ns += u64::try_from(estimated).unwrap_or(0);
            }
            of.sampling.taken = of.taken.count;
            of.sampling.lost_samples = of.lost.count;
            let own = gaps.iter().filter(|(host, _)| host == key);
            of.gap_ns = own
                .map(|(_, gap)| (gap.range.end_unix_ns - gap.range.start_unix_ns) as u64)
                .sum();
            answers.push((record.clone(), of));
        }
        Ok(answers)
    }

    fn kept(&self) -> Result<Option<TimeRange>, StoreError> {
        let state = self.state();
        let ranges = || state.windows.iter().map(|kept| kept.window.range);
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
        look(limits)?;
        let state = self.state();
        let sets = state.label_sets(scope);
        let names = sets.iter().flat_map(|labels| labels.iter());
        let names: BTreeSet<_> = names.map(|(name, _)| name.to_owned()).collect();
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
        look(limits)?;
        let state = self.state();
        let sets = state.label_sets(scope);
        let values: BTreeSet<_> = sets
            .iter()
            .map(|labels| labels.get(name))
            .filter(|value| !value.is_empty() && value.starts_with(prefix))
            .collect();
        let more = values.len() > limit;
        let values = values.into_iter().take(limit);
        Ok((values.map(str::to_owned).collect(), more))
    }

    fn series(
        &self,
        scope: &Scope,
        group_by: &[String],
        step_ns: u64,
        limits: &Limits,
    ) -> Result<QueryResult<TimeSeries>, StoreError> {
        look(limits)?;
        let state = self.state();
        let rows = state.rows(scope);
        fits(rows.len(), limits)?;
        let unit = unit_of(rows.iter().map(|row| row.0.window.unit.as_str()))?;
        let total = sum(rows.iter().map(|row| row.3));
        let points = rows
            .iter()
            .map(|(kept, labels, _, value)| (*kept, *labels, i128::from(value.weight)));
        let data = state.lines(scope, group_by, step_ns, (false, points), limits);
        let quality = state.quality(scope, total, unit, limits);
        let found = QueryResult { data, quality };
        Ok(match limits.reports {
            true => found,
            false => without_reports(found),
        })
    }

    fn accounted(
        &self,
        scope: &Scope,
        group_by: &[String],
        step_ns: u64,
        limits: &Limits,
    ) -> Result<QueryResult<AccountedSeries>, StoreError> {
        look(limits)?;
        let state = self.state();
        let of_window = |kept| {
            let expected = Kept::expected(kept).into_iter();
            expected.map(move |(labels, (ns, _))| (kept, labels, ns))
        };
        let points = state
            .in_range(scope.range)
            .flat_map(of_window)
            .filter(|(_, labels, _)| selects(&scope.selector, labels));
        let TimeSeries {
            start_unix_ns,
            step_ns,
            lines,
            rest,
            rest_lines,
            ..
        } = state.lines(scope, group_by, step_ns, (true, points), limits);
        let weights = lines.iter().map(|line| &line.weights).chain([&rest]);
        let weight = weights.flatten().sum();
        let unit = profile::unit::TIME.to_owned();
        let axis = (start_unix_ns, step_ns);
        Ok(QueryResult {
            data: AccountedSeries {
                start_unix_ns,
                step_ns,
                lines,
                rest,
                rest_lines,
                hosts: state.covered_by_host(scope, axis, limits),
                pressure: state.pressure_by_host(scope, axis, limits),
                throttled_left_out: 0,
                throttling_known: state.throttling_known(scope),
                throttled: state.throttled(scope, axis),
            },
            quality: state.quality(scope, Value { count: 0, weight }, unit, limits),
        })
    }

    fn profile(
        &self,
        range: TimeRange,
        query: &Query,
        limits: &Limits,
    ) -> Result<QueryResult<Profile>, StoreError> {
        look(limits)?;
        let state = self.state();
        let scope = Scope {
            range,
            selector: query.selector().clone(),
        };
        let rows = state.rows(&scope);
        fits(rows.len(), limits)?;
        let mut info = Info::default();
        let mut runner = QueryRunner::new(query);
        let dict = state.named();
        for &(kept, _, key, value) in &rows {
            info.merge(&kept.info())?;
            runner.add(&dict, key, value);
        }
        let named_later = runner.named_later();
        let before = state.quality(&scope, Value::default(), info.unit.clone(), limits);
        info.quality = before.sampling;
        let mut answer = runner.finish(info);
        let total = answer.total();
        let quality = DataQuality {
            total,
            sampling: answer.info.quality,
            pruned_weight: prune(&mut answer, limits.nodes),
            named_later,
            ..before
        };
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
        look(limits)?;
        let state = self.state();
        let rows = state.rows(scope);
        fits(rows.len(), limits)?;
        let mut sums: BTreeMap<LabelSet, (Value, Value, i128, i128, Throttling)> = BTreeMap::new();
        for (_, labels, key, value) in &rows {
            let of = sums.entry(keep(labels, group_by)).or_default();
            if key.end == StackEnd::Lost {
                of.1 += *value;
            } else {
                of.0 += *value;
            }
        }
        for kept in state.in_range(scope.range) {
            for (labels, (ns, estimated)) in kept.expected() {
                if selects(&scope.selector, labels) {
                    let of = sums.entry(keep(labels, group_by)).or_default();
                    of.2 += ns;
                    of.3 += estimated;
                }
            }
            for (labels, throttling) in kept.throttling() {
                if selects(&scope.selector, labels) {
                    sums.entry(keep(labels, group_by)).or_default().4 += throttling;
                }
            }
        }
        let clip = |ns: i128| ns.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
        let data = sums
            .into_iter()
            .map(
                |(labels, (taken, lost, ns, estimated, throttling))| LabelTotals {
                    labels,
                    taken,
                    lost,
                    expected_ns: clip(ns),
                    estimated_ns: clip(estimated),
                    throttling,
                },
            );
        let mut data: Vec<_> = data.collect();
        data.sort_by_key(|row| std::cmp::Reverse(row.taken.weight.saturating_add(row.lost.weight)));
        data.truncate(limits.lines);
        let unit = unit_of(rows.iter().map(|row| row.0.window.unit.as_str()))?;
        let total = sum(rows.iter().map(|row| row.3));
        Ok(QueryResult {
            data,
            quality: state.quality(scope, total, unit, limits),
        })
    }
}

impl NoticeBoard for Model {}

impl StoreStatus for Model {
    fn engine(&self) -> (&'static str, String) {
        ("model", "in memory".to_owned())
    }

    fn metrics(&self) -> Vec<metrics::Family> {
        Vec::new()
    }

    fn issues(&self) -> Vec<String> {
        Vec::new()
    }
}
