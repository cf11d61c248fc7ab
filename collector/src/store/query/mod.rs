//! The query engine: builds answers from what a [`WindowSource`] reads and adds up. Everything that
//! is the same for all engines is here and nowhere else: grouping, time axes, the heaviest rows,
//! folding, gaps, quality, limits.
//!
//! A source sums where its data is. It returns sums by label set, or by label set and stack;
//! samples are never passed one by one.

mod accounted;
mod activity;
mod axis;
mod budget;
mod costs;
mod fold;
mod hosts;
mod profile;
mod quality;
mod series;
mod source;
mod sums;
mod totals;
mod units;

pub use activity::{ABSENT_NS_MIN, FleetActivity, HostActivity};
pub use axis::Axis;
pub use budget::{QueryBudget, memory_exceeded};
pub(crate) use fold::prune;
pub(super) use series::add_line;
pub(crate) use series::heaviest;
pub use source::{BatchDict, EachBatch, LeafSums, SampleBatch, SamplesRead, WindowSource};
pub use sums::{AccountSums, LabelSum, LabelSums, SeriesSums};
pub(super) use totals::keep_heaviest;
pub use units::Units;

use super::{
    AccountedSeries, HostRange, HostRecord, LabelTotals, Limits, QueryResult, Scope, StoreError,
    StoreQueries, TimeRange, TimeSeries,
};
use ::profile::{CostBy, Costs, Profile, Query};

impl<S: WindowSource> StoreQueries for S {
    fn hosts(
        &self,
        range: TimeRange,
        limits: &Limits,
    ) -> Result<Vec<(HostRecord, HostRange)>, StoreError> {
        hosts::hosts(self, range, limits)
    }

    fn kept(&self) -> Result<Option<TimeRange>, StoreError> {
        WindowSource::kept(self)
    }

    fn not_kept(
        &self,
        range: TimeRange,
        labels: &[&str],
        stacks: bool,
        limits: &Limits,
    ) -> Result<Option<(String, i64)>, StoreError> {
        let mut budget = QueryBudget::new(limits);
        budget.check()?;
        WindowSource::not_kept(self, range, labels, stacks, &mut budget)
    }

    fn label_names(&self, scope: &Scope, limits: &Limits) -> Result<Vec<String>, StoreError> {
        let mut budget = QueryBudget::new(limits);
        budget.check()?;
        WindowSource::label_names(self, scope, &mut budget)
    }

    fn label_values(
        &self,
        scope: &Scope,
        name: &str,
        prefix: &str,
        limit: usize,
        limits: &Limits,
    ) -> Result<(Vec<String>, bool), StoreError> {
        let mut budget = QueryBudget::new(limits);
        budget.check()?;
        WindowSource::label_values(self, scope, name, prefix, limit, &mut budget)
    }

    fn series(
        &self,
        scope: &Scope,
        group_by: &[String],
        step_ns: u64,
        limits: &Limits,
    ) -> Result<QueryResult<TimeSeries>, StoreError> {
        series::series(self, scope, group_by, step_ns, limits)
    }

    fn accounted(
        &self,
        scope: &Scope,
        group_by: &[String],
        step_ns: u64,
        limits: &Limits,
    ) -> Result<QueryResult<AccountedSeries>, StoreError> {
        accounted::accounted(self, scope, group_by, step_ns, limits)
    }

    fn profile(
        &self,
        range: TimeRange,
        query: &Query,
        limits: &Limits,
    ) -> Result<QueryResult<Profile>, StoreError> {
        profile::profile(self, range, query, limits)
    }

    fn costs(
        &self,
        range: TimeRange,
        query: &Query,
        by: CostBy,
        limits: &Limits,
    ) -> Result<QueryResult<Costs>, StoreError> {
        costs::costs(self, range, query, by, limits)
    }

    fn totals(
        &self,
        scope: &Scope,
        group_by: &[String],
        limits: &Limits,
    ) -> Result<QueryResult<Vec<LabelTotals>>, StoreError> {
        totals::totals(self, scope, group_by, limits)
    }
}

#[cfg(test)]
mod tests;
