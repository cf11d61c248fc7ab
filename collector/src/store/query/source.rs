//! The interface of an engine to the query engine: what only it can read, added up as far as it
//! can.

use super::{AccountSums, Axis, FleetActivity, LabelSums, QueryBudget, SeriesSums};
use crate::store::{HostRecord, Resolution, Scope, StoreError, TimeRange};
use profile::{Dictionary, GroupBy, Info, LabelSetId, Query, StackEnd, StackId, Value};

/// Stored windows, for the query engine. An engine sums where its data is; it neither ranks, cuts
/// nor folds an answer, and knows nothing of gaps.
///
/// Each call looks at the deadline and at the caller every few milliseconds of work. It counts the
/// memory that it holds; that of ClickHouse bounds what each of its statements may bring.
pub trait WindowSource: Send + Sync + 'static {
    /// What names the stacks of samples.
    type Dict: BatchDict;

    /// Time that can be asked for; `None` while nothing is stored.
    ///
    /// # Errors
    /// See [`StoreError`]; as with all that is read.
    fn kept(&self) -> Result<Option<TimeRange>, StoreError>;

    /// A range widened to the resolution at its ends.
    fn covered(&self, range: TimeRange) -> TimeRange;

    /// Length of the shortest steps that all data of a range can distinguish. Unit: nanoseconds.
    fn step_ns(&self, range: TimeRange) -> u64;

    /// Every host heard of within the retention, by key.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn host_records(&self, budget: &mut QueryBudget<'_>) -> Result<Vec<HostRecord>, StoreError>;

    /// The activity of the hosts selected by the scope's selector, in and around its range. Hosts
    /// are selected by their own labels; matchers of other labels are ignored.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn activity(
        &self,
        scope: &Scope,
        budget: &mut QueryBudget<'_>,
    ) -> Result<FleetActivity, StoreError>;

    /// Names of data that cannot be read and would have answered.
    fn unreadable(&self, _range: TimeRange) -> Vec<String> {
        Vec::new()
    }

    /// See [`StoreQueries::not_kept`](crate::store::StoreQueries::not_kept).
    ///
    /// # Errors
    /// See [`StoreError`].
    fn not_kept(
        &self,
        _range: TimeRange,
        _labels: &[&str],
        _stacks: bool,
        _budget: &mut QueryBudget<'_>,
    ) -> Result<Option<(String, i64)>, StoreError> {
        Ok(None)
    }

    /// Names of labels in the scope, ordered.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn label_names(
        &self,
        scope: &Scope,
        budget: &mut QueryBudget<'_>,
    ) -> Result<Vec<String>, StoreError>;

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
        budget: &mut QueryBudget<'_>,
    ) -> Result<(Vec<String>, bool), StoreError>;

    /// Weights of a covered scope by kept labels and step. Without
    /// [`Limits::reports`](crate::store::Limits::reports) steps have their hosts alone.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn series(
        &self,
        scope: &Scope,
        group_by: &GroupBy,
        axis: Axis,
        budget: &mut QueryBudget<'_>,
    ) -> Result<SeriesSums, StoreError>;

    /// What the kernel accounts for each cgroup alone in a covered scope, by kept labels and step,
    /// and for how long the hosts that the selector takes sent windows.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn accounted(
        &self,
        scope: &Scope,
        group_by: &GroupBy,
        axis: Axis,
        budget: &mut QueryBudget<'_>,
    ) -> Result<AccountSums, StoreError>;

    /// What is taken, lost and expected in a covered scope, by kept labels.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn totals(
        &self,
        scope: &Scope,
        group_by: &GroupBy,
        budget: &mut QueryBudget<'_>,
    ) -> Result<LabelSums, StoreError>;

    /// Samples that `query` selects, summed by kept labels, stack and end; a batch for each
    /// dictionary, with frames that have all known names. Frame filters are not applied.
    ///
    /// # Errors
    /// See [`StoreError`]; and those of `each`.
    fn samples(
        &self,
        range: TimeRange,
        query: &Query,
        budget: &mut QueryBudget<'_>,
        each: &mut EachBatch<'_, Self::Dict>,
    ) -> Result<SamplesRead, StoreError>;
}

/// Takes a batch of samples.
pub type EachBatch<'e, D> =
    dyn FnMut(SampleBatch<D>, &mut QueryBudget<'_>) -> Result<(), StoreError> + 'e;

/// Which data samples were read from.
#[derive(Clone, Copy, Debug)]
pub struct SamplesRead {
    /// The range, widened to complete steps of the data.
    pub covered: TimeRange,
    /// The data.
    pub resolution: Resolution,
}

/// What names the samples of a batch: tables that others may be adding to.
pub trait BatchDict {
    /// Looks at strings, frames, stacks and label sets, and at the stack and end of each leaf.
    /// Whoever adds to them waits meanwhile, so looks are short.
    fn read<T>(&self, look: impl FnOnce(&Dictionary, &[(StackId, StackEnd)]) -> T) -> T;
}

/// Sums of samples: label sets that stand for kept labels, and values by (index of it, leaf),
/// ordered.
pub type LeafSums = (Vec<LabelSetId>, Vec<(u32, u32, Value)>);

/// Samples of one dictionary.
pub struct SampleBatch<D> {
    /// What their ids are of.
    pub dict: D,
    /// The sums; a (kept labels, leaf) may be in several lists.
    pub lists: Vec<LeafSums>,
    /// What is known of the kinds of samples in it.
    pub kinds: Vec<Info>,
    /// Others come before or after it.
    pub is_one_of_several: bool,
}
