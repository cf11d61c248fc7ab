//! The interface for writing: windows, and facts about their hosts.

use super::{BatchPolicy, Cancel, Defined, HostRecord, NewWindow, PushOutcome, StoreError};
use profile::Dictionary;
use std::sync::Arc;

/// Stores windows of hosts durably, each counted once.
pub trait WindowSink: Send + Sync + 'static {
    /// Stores windows, each completely or not at all. Durable when it returns `Stored`: a crash
    /// right after it loses nothing. Answers are in the order of `windows`.
    ///
    /// `definitions` has frames for stacks that rows may name by [`ContentId`](profile::ContentId);
    /// stacks that are in neither it nor the store make the answer [`PushOutcome::NeedStacks`], and
    /// the caller comes again with them. `now_unix_ns` judges what is too old or from the future.
    ///
    /// # Errors
    /// When nothing of the call was taken.
    fn push(
        &self,
        windows: &[NewWindow],
        definitions: &Dictionary,
        now_unix_ns: i64,
    ) -> Result<Vec<PushOutcome>, StoreError>;

    /// How windows are to come together into one call of [`WindowSink::push`].
    fn batch_policy(&self) -> BatchPolicy {
        BatchPolicy::default()
    }

    /// As [`WindowSink::push`], with frames that have known content ids, because they arrived with
    /// several windows: an engine that needs the ids does not compute them again.
    ///
    /// # Errors
    /// When nothing of the call was taken.
    fn push_defined(
        &self,
        windows: &[NewWindow],
        definitions: &[Arc<Defined>],
        now_unix_ns: i64,
    ) -> Result<Vec<PushOutcome>, StoreError> {
        self.push(windows, &Defined::dictionary(definitions), now_unix_ns)
    }

    /// True when [`WindowSink::push_defined`] takes definitions in which callers are named by their
    /// content alone. Where they are not known after all, the answer is
    /// [`PushOutcome::NeedCallers`].
    fn knows_callers(&self) -> bool {
        false
    }

    /// Remembers what is known of hosts, replacing what was: in one write, so many of them should
    /// come together.
    ///
    /// # Errors
    /// When it could not be made durable.
    fn put_hosts(&self, hosts: &[HostRecord]) -> Result<(), StoreError>;

    /// Flushes, rolls up, downsamples or removes what is over its age or over the disk budget. To
    /// be called every few seconds; takes milliseconds when there is nothing to do. What takes long
    /// is done in slices of less than a second.
    ///
    /// # Errors
    /// When something stayed undone; the next call tries again.
    fn maintain(&self, now_unix_ns: i64) -> Result<(), StoreError>;

    /// Copies what is complete to where it is kept longer. To be called every few seconds, on a
    /// thread of its own: a call may take minutes, and waits for a network. Returns whether more is
    /// to be done at once. `cancel` ends it early.
    ///
    /// # Errors
    /// When something could not be copied; a later call tries again.
    fn archive(&self, _now_unix_ns: i64, _cancel: &Cancel) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// Writes what is in memory and closes. The store takes nothing afterwards.
    ///
    /// # Errors
    /// When something could not be written; it is in the write-ahead log then.
    fn close(&self) -> Result<(), StoreError>;
}
