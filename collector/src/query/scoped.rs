//! The store as seen by a caller: every query to it goes through here.
//!
//! [`Guarded`] holds the store and only gives out a [`ScopedStore`], which adds the caller's scope
//! to every query. The answer equals that for a caller without a scope who writes the scope into
//! the selector, with less information about complete hosts: gaps, counts and steps cover only
//! hosts that are in the scope or have samples in it; what was missed while sampling, and the
//! totals of hosts, cover only hosts that are entirely in it.

use crate::access::{Caller, Scope};
use crate::store::query::prune;
use crate::store::{
    AccountedSeries, HostRange, HostRecord, LabelTotals, Limits, QueryResult, Scope as Selection,
    StoreError, StoreQueries, TimeRange, TimeSeries,
};
use crate::sync::lock;
use profile::{CostBy, Costs, Profile, Quality, Query, Selector, Value, key, unit};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

/// Most ranges for which the visible hosts are cached: both sides of a diff, and parts of them.
const RANGES_MAX: usize = 4;

/// Most hosts with samples in a scope. More are not mentioned in the quality of answers.
const HOSTS_MAX: usize = 200_000;

/// A day. Unit: nanoseconds.
const DAY_NS: i64 = 86_400_000_000_000;

type Hosts = Arc<HashSet<String>>;

/// A store that only answers to callers.
pub(super) struct Guarded(Arc<dyn StoreQueries>);

impl Guarded {
    /// Puts a store behind scopes.
    pub fn new(store: Arc<dyn StoreQueries>) -> Guarded {
        Guarded(store)
    }

    /// The store as `caller` may see it.
    pub fn seen_by(&self, caller: &Caller, now_unix_ns: i64) -> ScopedStore {
        ScopedStore::new(self.0.clone(), caller, now_unix_ns)
    }
}

/// The part of a store that one caller may see, for one question. See the module.
pub struct ScopedStore {
    store: Arc<dyn StoreQueries>,
    scope: Option<Scope>,
    now_unix_ns: i64,
    told: Mutex<Vec<(TimeRange, Hosts)>>,
}

impl ScopedStore {
    /// The part of `store` that `caller` may see.
    pub fn new(store: Arc<dyn StoreQueries>, caller: &Caller, now_unix_ns: i64) -> ScopedStore {
        ScopedStore {
            store,
            scope: caller.scope.clone(),
            now_unix_ns,
            told: Mutex::default(),
        }
    }

    /// Names of the visible hosts in a range.
    fn told(&self, scope: &Scope, range: TimeRange, limits: &Limits) -> Result<Hosts, StoreError> {
        let within = |of: &TimeRange| {
            of.start_unix_ns <= range.start_unix_ns && range.end_unix_ns <= of.end_unix_ns
        };
        let known = lock(&self.told)
            .iter()
            .find(|(of, _)| within(of))
            .map(|(_, hosts)| hosts.clone());
        if let Some(known) = known {
            return Ok(known);
        }
        let selection = Selection {
            range,
            selector: scope.selector.clone(),
        };
        let names = self
            .store
            .label_values(&selection, key::HOST, "", HOSTS_MAX, limits)?;
        let mut hosts: HashSet<String> = names.0.into_iter().collect();
        if scope.is_of_hosts() {
            // Those in the scope that sent nothing: their gaps are what is asked for.
            let now = TimeRange {
                start_unix_ns: self.now_unix_ns,
                end_unix_ns: self.now_unix_ns,
            };
            for (record, _) in self.store.hosts(now, limits)? {
                let name = record.facts.name(&record.key.host_id);
                if scope.takes_host(name, &record.facts.labels) {
                    hosts.insert(name.to_owned());
                }
            }
        }
        let hosts = Arc::new(hosts);
        let mut told = lock(&self.told);
        told.truncate(RANGES_MAX - 1);
        told.insert(0, (range, hosts.clone()));
        Ok(hosts)
    }

    /// The limits of a question that is asked within `scope`.
    fn within(
        &self,
        scope: &Scope,
        range: TimeRange,
        limits: &Limits,
    ) -> Result<Limits, StoreError> {
        Ok(Limits {
            hosts: Some(self.told(scope, range, limits)?),
            ..limits.clone()
        })
    }

    /// Removes from an answer what concerns complete hosts, and says what is not stored.
    fn finish<T>(
        &self,
        scope: &Scope,
        answer: &mut QueryResult<T>,
        stacks: bool,
        limits: &Limits,
    ) -> Result<(), StoreError> {
        let quality = &mut answer.quality;
        if !scope.is_of_hosts() {
            quality.sampling = of_samples(quality.sampling);
        }
        let labels = scope.labels();
        let lost = self
            .store
            .not_kept(quality.covered, &labels, stacks, limits)?;
        if let Some((label, until)) = lost {
            let days = self.now_unix_ns.saturating_sub(until).max(0) / DAY_NS;
            quality.not_kept.push(format!(
                "data older than {days} days is not kept per `{label}` and is missing in the answer"
            ));
        }
        Ok(())
    }

    /// What `query` selects within `scope`, completely, without wakers.
    fn profile_within(
        &self,
        scope: &Scope,
        range: TimeRange,
        query: &Query,
        limits: &Limits,
    ) -> Result<QueryResult<Profile>, StoreError> {
        let selector = and(scope, query.selector())?;
        let (filters, by) = (query.frame_filters(), query.group_by());
        let make = |filters: &[_]| Query::new(selector.clone(), filters.to_vec(), by.clone());
        let filtered = make(filters).map_err(too_large)?;
        let limits = self.within(scope, range, limits)?;
        let mut found = self.store.profile(range, &filtered, &limits)?;
        if scope.is_of_hosts() {
            // Who ended a wait ran on the same host.
            return Ok(found);
        }
        let has_waits = found.data.info.is_waiting() || !is_event(&found.data.info.event);
        if !filters.is_empty() && has_waits {
            // A filter must not find what is not shown: what it keeps or drops would reveal it.
            let unpruned = Limits {
                nodes: usize::MAX,
                ..limits.clone()
            };
            let all = make(&[]).map_err(too_large)?;
            let whole = self.store.profile(range, &all, &unpruned)?;
            if let Some(bare) = whole.data.without_wakers() {
                let rest = Query::new(Selector::default(), filters.to_vec(), by.clone());
                found.data = bare.query(&rest.map_err(too_large)?);
                found.quality = whole.quality;
                found.quality.total = found.data.total();
                found.quality.sampling = found.data.info.quality;
                found.quality.pruned_weight = 0;
                prune(&mut found.data, limits.nodes, |_, value| {
                    let pruned = &mut found.quality.pruned_weight;
                    *pruned = pruned.saturating_add(value.weight);
                });
            }
        } else if let Some(bare) = found.data.without_wakers() {
            found.data = bare;
        }
        found.data.info.quality = of_samples(found.data.info.quality);
        Ok(found)
    }

    /// True when a table may have rows of who ended waits. Tables of modules do not name what they
    /// are of.
    fn may_have_wakers(
        &self,
        (range, query): (TimeRange, &Query),
        by: CostBy,
        costs: &Costs,
        limits: &Limits,
    ) -> Result<bool, StoreError> {
        if by == CostBy::Function {
            return Ok(costs.has_wakers());
        }
        let functions = self.store.costs(range, query, CostBy::Function, limits)?;
        Ok(functions.data.has_wakers())
    }

    /// The part in the scope of hosts that are partly in it, by name.
    fn parts(
        &self,
        scope: &Scope,
        range: TimeRange,
        names: &HashSet<String>,
        limits: &Limits,
    ) -> Result<HashMap<String, HostRange>, StoreError> {
        let by = [key::HOST.to_owned()];
        let ask = |selector: Selector| {
            self.store
                .totals(&Selection { range, selector }, &by, limits)
        };
        let answers = match ask(scope.selector.clone()) {
            Err(StoreError::Units(_)) => {
                // Hosts that sample different events: each by itself.
                let mut answers = Vec::new();
                for name in names {
                    let matcher =
                        profile::LabelMatcher::new(key::HOST, profile::MatchOp::Equal, &**name);
                    let one = matcher.and_then(|matcher| Selector::new(vec![matcher]));
                    let one = and(scope, &one.map_err(too_large)?)?;
                    match ask(one) {
                        Ok(answer) => answers.push(answer),
                        // One that changed what it samples: its weight has no meaning.
                        Err(StoreError::Units(_)) => {}
                        Err(error) => return Err(error),
                    }
                }
                answers
            }
            answer => vec![answer?],
        };
        let mut parts: HashMap<String, HostRange> = HashMap::new();
        for QueryResult { data, quality } in answers {
            let (_, times) = unit::base(&quality.unit);
            let fine = |value: Value| Value {
                weight: value.weight.saturating_mul(times),
                ..value
            };
            let ns = |ns: i64| u64::try_from(ns).unwrap_or(0).saturating_mul(times);
            for row in data {
                let of_host = parts.entry(row.labels.get(key::HOST).to_owned());
                *of_host.or_default() += HostRange {
                    taken: fine(row.taken),
                    lost: fine(row.lost),
                    expected_ns: ns(row.expected_ns),
                    estimated_ns: ns(row.estimated_ns),
                    ..HostRange::default()
                };
            }
        }
        Ok(parts)
    }
}

/// What was missed, as far as the samples of a selection show it.
pub(crate) fn of_samples(quality: Quality) -> Quality {
    Quality {
        idle: 0,
        lost: 0,
        throttled: 0,
        malformed: 0,
        reduced: 0,
        lost_late: 0,
        ..quality
    }
}

/// True for the name of one event, none of several.
fn is_event(event: &str) -> bool {
    !event.is_empty() && event != profile::MIXED_EVENTS
}

fn and(scope: &Scope, selector: &Selector) -> Result<Selector, StoreError> {
    scope.and(selector).map_err(too_large)
}

fn too_large(error: profile::FilterError) -> StoreError {
    StoreError::TooLarge(format!("{error}, including those of your login's scope"))
}

/// Hides an engine's error from the caller, because it may contain anybody's data, and logs it.
fn hidden(error: StoreError) -> StoreError {
    match error {
        StoreError::Engine { operation, message } => {
            tracing::error!("failed to {operation} within a scope: {message}");
            StoreError::Engine {
                operation,
                message: "see the collector's log".to_owned(),
            }
        }
        other => other,
    }
}

impl StoreQueries for ScopedStore {
    /// Hosts that are entirely in the scope, and those with samples in it, for which only these
    /// samples count.
    fn hosts(
        &self,
        range: TimeRange,
        limits: &Limits,
    ) -> Result<Vec<(HostRecord, HostRange)>, StoreError> {
        let Some(scope) = &self.scope else {
            return self.store.hosts(range, limits);
        };
        let ask = || {
            let told = self.told(scope, range, limits)?;
            let mut found = self.store.hosts(range, limits)?;
            found.retain(|(record, _)| told.contains(record.facts.name(&record.key.host_id)));
            let is_part = |record: &HostRecord| {
                !scope.takes_host(record.facts.name(&record.key.host_id), &record.facts.labels)
            };
            let parts = found.iter().filter(|(record, _)| is_part(record));
            let names: HashSet<String> = parts
                .map(|(record, _)| record.facts.name(&record.key.host_id).to_owned())
                .collect();
            if names.is_empty() {
                return Ok(found);
            }
            let limits = self.within(scope, range, limits)?;
            let mut parts = self.parts(scope, range, &names, &limits)?;
            // Sums are known by name: of several boots the one that was heard of last has them.
            let mut newest_first: Vec<_> = found.iter_mut().collect();
            newest_first.sort_by_key(|(record, _)| std::cmp::Reverse(record.last_seen_unix_ns));
            for (record, did) in newest_first {
                if !is_part(record) {
                    continue;
                }
                let part = match did.windows {
                    0 => None,
                    _ => parts.remove(record.facts.name(&record.key.host_id)),
                };
                let part = part.unwrap_or_default();
                *did = HostRange {
                    windows: did.windows,
                    windows_unmeasured: did.windows_unmeasured,
                    gap_ns: did.gap_ns,
                    sampling: Quality {
                        taken: part.taken.count,
                        lost_samples: part.lost.count,
                        ..Quality::default()
                    },
                    ..part
                };
            }
            Ok(found)
        };
        ask().map_err(hidden)
    }

    fn kept(&self) -> Result<Option<TimeRange>, StoreError> {
        self.store.kept()
    }

    fn not_kept(
        &self,
        range: TimeRange,
        labels: &[&str],
        stacks: bool,
        limits: &Limits,
    ) -> Result<Option<(String, i64)>, StoreError> {
        self.store.not_kept(range, labels, stacks, limits)
    }

    fn label_names(
        &self,
        selection: &Selection,
        limits: &Limits,
    ) -> Result<Vec<String>, StoreError> {
        let Some(scope) = &self.scope else {
            return self.store.label_names(selection, limits);
        };
        let selection = within(scope, selection)?;
        self.store.label_names(&selection, limits).map_err(hidden)
    }

    fn label_values(
        &self,
        selection: &Selection,
        name: &str,
        prefix: &str,
        limit: usize,
        limits: &Limits,
    ) -> Result<(Vec<String>, bool), StoreError> {
        let Some(scope) = &self.scope else {
            return self
                .store
                .label_values(selection, name, prefix, limit, limits);
        };
        let selection = within(scope, selection)?;
        self.store
            .label_values(&selection, name, prefix, limit, limits)
            .map_err(hidden)
    }

    fn series(
        &self,
        selection: &Selection,
        group_by: &[String],
        step_ns: u64,
        limits: &Limits,
    ) -> Result<QueryResult<TimeSeries>, StoreError> {
        let Some(scope) = &self.scope else {
            return self.store.series(selection, group_by, step_ns, limits);
        };
        let ask = || {
            let selection = within(scope, selection)?;
            let limits = self.within(scope, selection.range, limits)?;
            let mut found = self.store.series(&selection, group_by, step_ns, &limits)?;
            if !scope.is_of_hosts() {
                for step in &mut found.data.steps {
                    (step.weight, step.lost_weight) = (0, 0);
                }
            }
            self.finish(scope, &mut found, false, &limits)?;
            Ok(found)
        };
        ask().map_err(hidden)
    }

    fn accounted(
        &self,
        selection: &Selection,
        group_by: &[String],
        step_ns: u64,
        limits: &Limits,
    ) -> Result<QueryResult<AccountedSeries>, StoreError> {
        let Some(scope) = &self.scope else {
            return self.store.accounted(selection, group_by, step_ns, limits);
        };
        let ask = || {
            let selection = within(scope, selection)?;
            let limits = self.within(scope, selection.range, limits)?;
            let mut found = self
                .store
                .accounted(&selection, group_by, step_ns, &limits)?;
            if !scope.is_of_hosts() {
                // What a complete host waits for tells of others on it.
                found.data.pressure.clear();
            }
            self.finish(scope, &mut found, false, &limits)?;
            Ok(found)
        };
        ask().map_err(hidden)
    }

    fn profile(
        &self,
        range: TimeRange,
        query: &Query,
        limits: &Limits,
    ) -> Result<QueryResult<Profile>, StoreError> {
        let Some(scope) = &self.scope else {
            return self.store.profile(range, query, limits);
        };
        let ask = || {
            let mut found = self.profile_within(scope, range, query, limits)?;
            self.finish(scope, &mut found, true, limits)?;
            Ok(found)
        };
        ask().map_err(hidden)
    }

    fn costs(
        &self,
        range: TimeRange,
        query: &Query,
        by: CostBy,
        limits: &Limits,
    ) -> Result<QueryResult<Costs>, StoreError> {
        let Some(scope) = &self.scope else {
            return self.store.costs(range, query, by, limits);
        };
        let ask = || {
            let selector = and(scope, query.selector())?;
            let (filters, group_by) = (query.frame_filters(), query.group_by());
            let scoped = Query::new(selector, filters.to_vec(), group_by.clone());
            let scoped = scoped.map_err(too_large)?;
            let told = self.within(scope, range, limits)?;
            let of_hosts = scope.is_of_hosts();
            let mut found = match filters.is_empty() || of_hosts {
                true => Some(self.store.costs(range, &scoped, by, &told)?),
                // What filters find is not known from a table.
                false => None,
            };
            if let Some(costs) = found.as_ref().filter(|_| !of_hosts)
                && self.may_have_wakers((range, &scoped), by, &costs.data, &told)?
            {
                found = None;
            }
            let mut found = match found {
                Some(found) => found,
                None => {
                    let unpruned = Limits {
                        nodes: usize::MAX,
                        ..limits.clone()
                    };
                    let QueryResult { data, quality } =
                        self.profile_within(scope, range, query, &unpruned)?;
                    QueryResult {
                        data: Costs::of(&data, by),
                        quality,
                    }
                }
            };
            self.finish(scope, &mut found, true, limits)?;
            Ok(found)
        };
        ask().map_err(hidden)
    }

    fn totals(
        &self,
        selection: &Selection,
        group_by: &[String],
        limits: &Limits,
    ) -> Result<QueryResult<Vec<LabelTotals>>, StoreError> {
        let Some(scope) = &self.scope else {
            return self.store.totals(selection, group_by, limits);
        };
        let ask = || {
            let selection = within(scope, selection)?;
            let limits = self.within(scope, selection.range, limits)?;
            let mut found = self.store.totals(&selection, group_by, &limits)?;
            self.finish(scope, &mut found, false, &limits)?;
            Ok(found)
        };
        ask().map_err(hidden)
    }
}

fn within(scope: &Scope, selection: &Selection) -> Result<Selection, StoreError> {
    Ok(Selection {
        range: selection.range,
        selector: and(scope, &selection.selector)?,
    })
}
