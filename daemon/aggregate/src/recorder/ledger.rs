//! Answers what was missed: the ledger by cgroup, and the coverage of a profile.

use super::Recorder;
use super::query::{Covered, QueryError, WindowRange};
use super::{MonotonicTime, Part};
use profile::{Coverage, Ledger, LedgerBuilder, Profile, Query, Selector, StackEnd, Value};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The unit in which weights can be held against the kernel's accounting.
const TIME: &str = "nanoseconds";

/// How far back [`Recorder::recent_ledger`] looks.
const RECENT: std::time::Duration = std::time::Duration::from_secs(60);

/// Sums the kernel's accounts that belong to a query.
pub(super) struct Accounting<'q>(Option<LedgerBuilder<'q>>);

impl<'q> Accounting<'q> {
    /// Creates it for a query without accounting.
    pub(super) fn none() -> Accounting<'q> {
        Accounting(None)
    }

    /// Only for queries about complete cgroups: a function or a thread has no account.
    pub(super) fn of_query(query: &'q Query) -> Accounting<'q> {
        let selector = query.selector();
        let whole = query.frame_filters().is_empty() && LedgerBuilder::is_accountable(selector);
        Accounting(whole.then(|| LedgerBuilder::new(selector)))
    }

    /// Adds the accounts of a window, or, where it has none, what was taken in their place.
    pub(super) fn take(&mut self, recorder: &Recorder, part: &Part) {
        if let Some(builder) = self.0.as_mut().filter(|_| recorder.unit == TIME) {
            account(builder, recorder, part);
        }
    }

    /// The coverage of the profile that the query gave.
    pub(super) fn coverage(self, profile: &Profile) -> Coverage {
        let Some(builder) = self.0.filter(|_| profile.info.unit == TIME) else {
            return Coverage::default();
        };
        let taken = profile.samples.iter();
        let taken = taken.filter(|(key, _)| key.end != StackEnd::Lost);
        Coverage {
            taken_ns: taken.fold(0, |sum, (_, value)| sum.saturating_add(value.weight)),
            ..builder.finish().coverage()
        }
    }
}

fn account(builder: &mut LedgerBuilder<'_>, recorder: &Recorder, part: &Part) {
    let measured = part.accounts.rows() > 0;
    builder.add_window(measured);
    if !measured {
        for (key, value) in part.block.iter() {
            builder.add_unmeasured(&recorder.dict, key, value);
        }
        return;
    }
    let per = part.mean_sample();
    for account in part.accounts.iter() {
        builder.add_account(&recorder.dict, account, per);
    }
}

impl Part {
    /// A number of samples and what they weigh: what turns time into samples.
    fn mean_sample(&self) -> Value {
        if self.period > 0 {
            return Value {
                count: 1,
                weight: self.period,
            };
        }
        let mut sum = Value::default();
        self.block.iter().for_each(|(_, value)| sum += value);
        sum
    }
}

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
