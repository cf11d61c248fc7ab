//! What a store of windows is. Two engines are behind [`Store`]: `embedded`, which needs nothing
//! installed, and `clickhouse`. Nothing outside their folders knows an engine.
//!
//! All calls block, on disk or network, and come from several threads at once. Times are wall time of
//! the collector's callers: a store has no clock of its own.

mod admission;
mod answer;
mod attending;
mod batching;
pub mod clickhouse;
pub mod embedded;
mod exact;
mod names;
pub mod open;
mod prune;
mod window;

pub use admission::{HOST_ID_BYTES_MAX, SAMPLE_LABELS, WINDOW_NS_MAX};
pub use answer::{
    Answer, Cancel, GAPS_MAX, Gap, HostRange, Labelled, Limits, Line, Lines, Rollup, Scope, Step,
    StoreQuality,
};
pub use attending::Attending;
pub use batching::BatchPolicy;
pub use exact::Exact;
pub use names::{Found, Names};
pub(crate) use window::reserve;
pub use window::{
    Defined, HostFacts, HostKey, HostRecord, LabelSet, Memo, NewWindow, Origin, Row, StackMemo,
    StreamStacks, Taken, TimeRange, WindowAccount,
};

use profile::{ContentId, CostBy, Costs, Dictionary, Profile, Query, Selector};
use std::sync::Arc;

/// Why a store could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It will work again later, without anything lost: the disk is full, the server is away. What
    /// was pushed was not taken.
    #[error("the store takes nothing for now: {0}")]
    Unavailable(String),
    /// The question was too large. The text says which limit, and what to narrow.
    #[error("{0}")]
    TooLarge(String),
    /// The caller gave up, or the time it allowed was over.
    #[error("the query was given up")]
    Cancelled,
    /// Weights of different units were asked for as one sum.
    #[error(transparent)]
    Units(#[from] profile::MergeError),
    /// Something is wrong with the store itself.
    #[error("failed to {operation}: {message}")]
    Engine {
        /// What was being done.
        operation: &'static str,
        /// What the engine said, its causes included.
        message: String,
    },
}

/// Windows of hosts by label set, stack and time; durable, each counted once.
pub trait Store: Send + Sync + 'static {
    /// Names from now on what agents could not, in answers with functions. The first call counts.
    fn name_by(&self, _names: Arc<dyn Names>) {}

    /// Name and version of the engine: `embedded`, `SQLite 3.51`.
    fn engine(&self) -> (&'static str, String);

    /// Takes windows, each whole or not at all. Durable when it returns `Stored`: a crash right after
    /// it loses nothing. Answers stand in the order of `windows`.
    ///
    /// `definitions` has frames for stacks that rows may name by [`ContentId`]; stacks that are in
    /// neither it nor the store make the answer [`Taken::Missing`], and the caller comes again with
    /// them. `now_unix_ns` judges what is too old or from the future.
    ///
    /// # Errors
    /// When nothing of the call was taken.
    fn push(
        &self,
        windows: &[NewWindow],
        definitions: &Dictionary,
        now_unix_ns: i64,
    ) -> Result<Vec<Taken>, StoreError>;

    /// How windows are to come together into one call of [`Store::push`].
    fn batch_policy(&self) -> BatchPolicy {
        BatchPolicy::default()
    }

    /// As [`Store::push`], of frames whose contents are known, as they came with several windows:
    /// an engine that needs contents does not compute them again.
    ///
    /// # Errors
    /// When nothing of the call was taken.
    fn push_defined(
        &self,
        windows: &[NewWindow],
        definitions: &[Arc<Defined>],
        now_unix_ns: i64,
    ) -> Result<Vec<Taken>, StoreError> {
        self.push(windows, &Defined::dictionary(definitions), now_unix_ns)
    }

    /// True when [`Store::push_defined`] takes definitions in which callers are named by their
    /// content alone. Where they are not known after all, the answer is [`Taken::MissingCallers`].
    fn knows_callers(&self) -> bool {
        false
    }

    /// Remembers what is known of hosts, replacing what was: in one write, so many of them should
    /// come together.
    ///
    /// # Errors
    /// When it could not be made durable.
    fn put_hosts(&self, hosts: &[HostRecord]) -> Result<(), StoreError>;

    /// Tells other collectors on this store which hosts attend at this one. An engine that nobody shares has
    /// nobody to tell.
    ///
    /// # Errors
    /// When they could not be told.
    fn attend(&self, _hosts: &[Attending]) -> Result<(), StoreError> {
        Ok(())
    }

    /// Hosts that any collector told to attend since then, each once, where it was last.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn attending(
        &self,
        _since_unix_ns: i64,
        _limits: &Limits,
    ) -> Result<Vec<Attending>, StoreError> {
        Ok(Vec::new())
    }

    /// True when other collectors may use the same store, and tell it of their hosts.
    fn is_shared(&self) -> bool {
        false
    }

    /// Every host heard of within the retention, by id; what it did in `range` beside it.
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

    /// Names of labels in the range, ordered.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn label_names(&self, scope: &Scope, limits: &Limits) -> Result<Vec<String>, StoreError>;

    /// Values of a label that begin with `prefix`, ordered, at most `limit`, and whether there are more.
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
    /// `step_ns` (rounded up to whole windows of 10 s, or whole steps of the coarsest data in the range),
    /// which begin at multiples of it since the epoch. From the coarsest rollup that is exact.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn series(
        &self,
        scope: &Scope,
        group_by: &[String],
        step_ns: u64,
        limits: &Limits,
    ) -> Result<Answer<Lines>, StoreError>;

    /// One merged profile of what `query` selects in `range`, grouped by the labels it keeps, through
    /// its frame filters. From the coarsest rollup that is exact for the range and the labels.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn profile(
        &self,
        range: TimeRange,
        query: &Query,
        limits: &Limits,
    ) -> Result<Answer<Profile>, StoreError>;

    /// What functions or modules cost in what `query` selects; labels are not kept apart. Of the
    /// same samples as [`Store::profile`]'s answer, but an engine need not build it, and must not
    /// prune: what is cut off would be charged to callers.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn costs(
        &self,
        range: TimeRange,
        query: &Query,
        by: CostBy,
        limits: &Limits,
    ) -> Result<Answer<Costs>, StoreError> {
        let unpruned = Limits {
            nodes: usize::MAX,
            ..limits.clone()
        };
        let Answer { data, quality } = self.profile(range, query, &unpruned)?;
        Ok(Answer {
            data: Costs::of(&data, by),
            quality,
        })
    }

    /// What is taken, lost and expected by label set: totals in `range` without stacks, for trees of
    /// cgroups and coverage. Label sets keep `group_by` of their labels.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn totals(
        &self,
        scope: &Scope,
        group_by: &[String],
        limits: &Limits,
    ) -> Result<Answer<Vec<Labelled>>, StoreError>;

    /// Flushes, rolls up, makes coarser or removes what is over its age or over the disk budget. To be
    /// called every few seconds; takes milliseconds when there is nothing to do. What takes long is
    /// done in slices of less than a second.
    ///
    /// # Errors
    /// When something stayed undone; the next call tries again.
    fn maintain(&self, now_unix_ns: i64) -> Result<(), StoreError>;

    /// Sizes and counters, by metric name with labels as in Prometheus' text: for metrics and status.
    fn counters(&self) -> Vec<(String, u64)>;

    /// What does not work as it should, in sentences for the operator: a partition set aside, a disk
    /// that is full.
    fn degraded(&self) -> Vec<String>;

    /// Writes what is in memory and closes. The store takes nothing afterwards.
    ///
    /// # Errors
    /// When something could not be written; it is in the write-ahead log then.
    fn close(&self) -> Result<(), StoreError>;
}

/// True when every sample of the label set is selected; for engines that filter label sets in code.
pub fn selects(selector: &Selector, labels: &LabelSet) -> bool {
    let mut matchers = selector.matchers().iter();
    matchers.all(|matcher| matcher.matches(labels.get(matcher.label())))
}

/// Stacks that rows name and neither `definitions` nor the store has.
pub type MissingStacks = Vec<ContentId>;
