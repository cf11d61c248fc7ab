//! The interface for queries of stored windows.

use super::{
    AccountedSeries, HostRange, HostRecord, LabelTotals, Limits, QueryResult, Scope, StoreError,
    TimeRange, TimeSeries,
};
use profile::{CostBy, Costs, Profile, Query};

/// Answers questions about windows, by label set, stack and time.
pub trait StoreQueries: Send + Sync + 'static {
    /// Every host seen within the retention, by id, with what it did in `range`.
    ///
    /// # Errors
    /// See [`StoreError`]; as with all queries.
    fn hosts(
        &self,
        range: TimeRange,
        limits: &Limits,
    ) -> Result<Vec<(HostRecord, HostRange)>, StoreError>;

    /// Time that can be asked for; `None` while the store is empty.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn kept(&self) -> Result<Option<TimeRange>, StoreError>;

    /// The first of `labels` that is not kept for all of the range, and the end of the part for
    /// which it is not: for its age only sums without it are there. `stacks`: of answers with
    /// stacks, which may be kept for a shorter time. `None`: all are kept.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn not_kept(
        &self,
        _range: TimeRange,
        _labels: &[&str],
        _stacks: bool,
        _limits: &Limits,
    ) -> Result<Option<(String, i64)>, StoreError> {
        Ok(None)
    }

    /// Names of labels in the range, ordered.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn label_names(&self, scope: &Scope, limits: &Limits) -> Result<Vec<String>, StoreError>;

    /// Values of a label that start with `prefix`, ordered, at most `limit`, and whether there are
    /// more.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn label_values(
        &self,
        scope: &Scope,
        name: &str,
        prefix: &str,
        limit: usize,
        limits: &Limits,
    ) -> Result<(Vec<String>, bool), StoreError>;

    /// Weight over time: a line for each combination of the values of `group_by`, in steps of
    /// `step_ns` (rounded up to complete windows of 10 s, or complete steps of the coarsest data in
    /// the range), which start at multiples of it since the epoch. It is read from the coarsest
    /// rollup that is exact.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn series(
        &self,
        scope: &Scope,
        group_by: &[String],
        step_ns: u64,
        limits: &Limits,
    ) -> Result<QueryResult<TimeSeries>, StoreError>;

    /// CPU time over time as the kernel accounts it, by labels of cgroups and hosts: as
    /// [`StoreQueries::series`], but known where samples were lost, too. A cgroup has what it ran
    /// without those below it; a window without accounts has what was sampled in it. Samples have
    /// labels that accounts lack ([`SAMPLE_LABELS`](super::SAMPLE_LABELS)): nobody may ask by them.
    /// Readings of a cgroup and of one below it are a moment apart, so a line that is less than
    /// nothing in a step is nothing there.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn accounted(
        &self,
        scope: &Scope,
        group_by: &[String],
        step_ns: u64,
        limits: &Limits,
    ) -> Result<QueryResult<AccountedSeries>, StoreError>;

    /// One merged profile of what `query` selects in `range`, grouped by the labels it keeps,
    /// through its frame filters. From the coarsest rollup that is exact for the range and the
    /// labels.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn profile(
        &self,
        range: TimeRange,
        query: &Query,
        limits: &Limits,
    ) -> Result<QueryResult<Profile>, StoreError>;

    /// Returns what functions or modules cost in what `query` selects; labels are not kept apart.
    /// It covers the same samples as the answer of [`StoreQueries::profile`]. An engine need not
    /// build that profile, and must not prune: what is cut off would be charged to callers.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn costs(
        &self,
        range: TimeRange,
        query: &Query,
        by: CostBy,
        limits: &Limits,
    ) -> Result<QueryResult<Costs>, StoreError> {
        let unpruned = Limits {
            nodes: usize::MAX,
            ..limits.clone()
        };
        let QueryResult { data, quality } = self.profile(range, query, &unpruned)?;
        Ok(QueryResult {
            data: Costs::of(&data, by),
            quality,
        })
    }

    /// What is taken, lost and expected by label set: totals in `range` without stacks, for trees
    /// of cgroups and coverage. Label sets keep `group_by` of their labels.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn totals(
        &self,
        scope: &Scope,
        group_by: &[String],
        limits: &Limits,
    ) -> Result<QueryResult<Vec<LabelTotals>>, StoreError>;
}
