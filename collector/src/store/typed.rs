//! The store of other senders as it answers for one profile type.
//!
//! Their windows are in a store of their own, which nothing reads but [`OfType`],
//! [`profile_types`], and Grafana's lists of labels. Every question of an [`OfType`] has the
//! matcher of its type, and those lists keep types apart, so no sum has two; what asks the store of
//! agents cannot reach a sender's samples at all.
//!
//! A sender is no host: it promises no windows, and no kernel accounts for what it measured. So
//! answers have neither hosts that are away nor gaps nor coverage.

use super::{
    AccountedSeries, DataQuality, HostRange, HostRecord, LabelTotals, Limits, QueryResult, Scope,
    StoreError, StoreQueries, TimeRange, TimeSeries,
};
use profile::{
    CostBy, Costs, FilterError, LabelMatcher, MatchOp, Profile, Quality, Query, Selector,
};
use std::sync::Arc;

/// Label with the id of the profile type, on every label set of the store of other senders. Nothing
/// that a sender says can set it: names that start with `__` are the collector's.
pub const PROFILE_TYPE: &str = "__profile_type__";

/// Most profile types that are listed. What has more is no set of types.
pub const PROFILE_TYPES_MAX: usize = 256;

/// First part of the ids of all types of captures over the fleet, and of no other.
pub const CAPTURED: &str = "captured";

/// True for the id of a type of captures.
pub fn is_captured(id: &str) -> bool {
    id.split_once(':').is_some_and(|(name, _)| name == CAPTURED)
}

/// Ids of the profile types with samples in a range, ordered; at most [`PROFILE_TYPES_MAX`].
///
/// # Errors
/// As every question.
pub fn profile_types(
    store: &dyn StoreQueries,
    range: TimeRange,
    limits: &Limits,
) -> Result<Vec<String>, StoreError> {
    let selector = Selector::default();
    let scope = Scope { range, selector };
    let found = store.label_values(&scope, PROFILE_TYPE, "", PROFILE_TYPES_MAX, limits)?;
    Ok(found.0)
}

/// One profile type of the store of other senders. See the module.
pub struct OfType {
    store: Arc<dyn StoreQueries>,
    of: LabelMatcher,
}

impl OfType {
    /// What `store` has of the profile type with this id.
    ///
    /// # Errors
    /// When the id is too long to be asked for.
    pub fn new(store: Arc<dyn StoreQueries>, id: &str) -> Result<OfType, FilterError> {
        let of = LabelMatcher::new(PROFILE_TYPE, MatchOp::Equal, id)?;
        Ok(OfType { store, of })
    }

    fn selector(&self, asked: &Selector) -> Result<Selector, StoreError> {
        let mut matchers = asked.matchers().to_vec();
        matchers.push(self.of.clone());
        Selector::new(matchers).map_err(too_large)
    }

    fn scope(&self, asked: &Scope) -> Result<Scope, StoreError> {
        Ok(Scope {
            range: asked.range,
            selector: self.selector(&asked.selector)?,
        })
    }

    fn query(&self, asked: &Query) -> Result<Query, StoreError> {
        let (filters, by) = (asked.frame_filters().to_vec(), asked.group_by().clone());
        Query::new(self.selector(asked.selector())?, filters, by).map_err(too_large)
    }
}

fn too_large(error: FilterError) -> StoreError {
    StoreError::TooLarge(format!("{error}, including that of the profile type"))
}

/// Leaves out what is said of hosts.
fn of_senders<T>(mut answer: QueryResult<T>) -> QueryResult<T> {
    let quality = &mut answer.quality;
    *quality = DataQuality {
        hosts_alive: quality.hosts,
        windows_unmeasured: 0,
        gaps: Vec::new(),
        gaps_total: 0,
        gap_ns_total: 0,
        sampling: Quality {
            taken: quality.sampling.taken,
            ..Quality::default()
        },
        ..quality.clone()
    };
    answer
}

impl StoreQueries for OfType {
    /// None: senders are no hosts.
    fn hosts(
        &self,
        _range: TimeRange,
        _limits: &Limits,
    ) -> Result<Vec<(HostRecord, HostRange)>, StoreError> {
        Ok(Vec::new())
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

    fn label_names(&self, scope: &Scope, limits: &Limits) -> Result<Vec<String>, StoreError> {
        let mut names = self.store.label_names(&self.scope(scope)?, limits)?;
        names.retain(|name| name != PROFILE_TYPE);
        Ok(names)
    }

    fn label_values(
        &self,
        scope: &Scope,
        name: &str,
        prefix: &str,
        limit: usize,
        limits: &Limits,
    ) -> Result<(Vec<String>, bool), StoreError> {
        let scope = self.scope(scope)?;
        self.store.label_values(&scope, name, prefix, limit, limits)
    }

    fn series(
        &self,
        scope: &Scope,
        group_by: &[String],
        step_ns: u64,
        limits: &Limits,
    ) -> Result<QueryResult<TimeSeries>, StoreError> {
        let found = self
            .store
            .series(&self.scope(scope)?, group_by, step_ns, limits)?;
        Ok(of_senders(found))
    }

    /// # Errors
    /// Always: no kernel accounts for what a sender measured.
    fn accounted(
        &self,
        _scope: &Scope,
        _group_by: &[String],
        _step_ns: u64,
        _limits: &Limits,
    ) -> Result<QueryResult<AccountedSeries>, StoreError> {
        let text =
            "the kernel's accounting is of the CPU time of hosts: ask without a profile type";
        Err(StoreError::TooLarge(text.to_owned()))
    }

    fn profile(
        &self,
        range: TimeRange,
        query: &Query,
        limits: &Limits,
    ) -> Result<QueryResult<Profile>, StoreError> {
        let mut found = self.store.profile(range, &self.query(query)?, limits)?;
        found.data.info.coverage = Default::default();
        Ok(of_senders(found))
    }

    fn costs(
        &self,
        range: TimeRange,
        query: &Query,
        by: CostBy,
        limits: &Limits,
    ) -> Result<QueryResult<Costs>, StoreError> {
        let found = self.store.costs(range, &self.query(query)?, by, limits)?;
        Ok(of_senders(found))
    }

    fn totals(
        &self,
        scope: &Scope,
        group_by: &[String],
        limits: &Limits,
    ) -> Result<QueryResult<Vec<LabelTotals>>, StoreError> {
        let found = self.store.totals(&self.scope(scope)?, group_by, limits)?;
        Ok(of_senders(found))
    }
}
