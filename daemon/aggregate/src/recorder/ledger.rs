//! Answers about what was missed: the ledger by cgroup.

use super::accounting::{TIME, account};
use super::query::{Covered, QueryError, WindowRange};
use super::{MonotonicTime, Recorder};
use profile::{Ledger, LedgerBuilder, Selector, StackEnd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How far back [`Recorder::recent_ledger`] looks.
const RECENT: std::time::Duration = std::time::Duration::from_secs(60);

impl Recorder {
    /// The ledger of the cgroups that `selector` takes, over all windows that overlap the range.
    ///
    /// # Errors
    /// [`QueryError::Cancelled`] soon after `cancel` is set.
    pub fn ledger(
        &self,
        range: (MonotonicTime, MonotonicTime),
        selector: &Selector,
        cancel: &AtomicBool,
    ) -> Result<(Ledger, Covered), QueryError> {
        let mut builder = LedgerBuilder::new(selector);
        let accountable = self.unit == TIME && LedgerBuilder::is_accountable(selector);
        let mut covered = Covered::default();
        for part in self.select(WindowRange::Time(range.0, range.1), &mut covered.missed) {
            if cancel.load(Ordering::Relaxed) {
                return Err(QueryError::Cancelled);
            }
            covered.take(part);
            for (key, value) in part.block.iter() {
                builder.add(&self.dict, key, value);
            }
            if accountable {
                account(&mut builder, self, part);
            }
        }
        if covered.windows == 0 {
            (covered.start, covered.end) = (range.0, range.0);
        }
        Ok((builder.finish(), covered))
    }

    /// The ledger of the windows closed in the last minute, and what they cover.
    pub fn recent_ledger(&self) -> (Ledger, Covered) {
        let end = self.newest_end();
        let start = MonotonicTime(end.0.saturating_sub(RECENT.as_nanos() as u64));
        let never = AtomicBool::new(false);
        let found = self.ledger((start, end), &Selector::default(), &never);
        found.unwrap_or_default()
    }

    /// End of the newest window that closed; 0 when there is none.
    pub fn newest_end(&self) -> MonotonicTime {
        let newest = self.windows.back();
        newest.map_or(MonotonicTime(0), |window| window.whole.end)
    }

    /// Samples taken and lost in the newest windows that closed, as many as `span` needs, and the
    /// time of these: a window during which the daemon was stopped is long.
    pub fn newest_counts(&self, span: Duration) -> (u64, u64, (MonotonicTime, MonotonicTime)) {
        let end = self.newest_end();
        let start = MonotonicTime(end.0.saturating_sub(span.as_nanos() as u64));
        let (mut taken, mut lost, mut from) = (0u64, 0u64, end);
        for part in self.select(WindowRange::Time(start, end), &mut 0) {
            from = from.min(part.start);
            for (key, value) in part.block.iter() {
                let sum = match key.end {
                    StackEnd::Lost => &mut lost,
                    _ => &mut taken,
                };
                *sum = sum.saturating_add(value.count);
            }
        }
        (taken, lost, (from, end))
    }
}
