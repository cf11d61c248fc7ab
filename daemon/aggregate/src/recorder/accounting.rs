//! The kernel's accounts beside a query: the coverage that goes with its profile.

use super::{Part, Recorder};
use profile::{Coverage, LedgerBuilder, Profile, Query, StackEnd, Value};

/// The unit in which weights can be held against the kernel's accounting.
pub(super) const TIME: &str = "nanoseconds";

/// Sums the kernel's accounts that belong to a query.
pub(super) struct Accounting<'q>(Option<LedgerBuilder<'q>>);

impl<'q> Accounting<'q> {
    /// Nothing is to be accounted for.
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

/// Adds the accounts of a window, or what was taken in their place.
pub(super) fn account(builder: &mut LedgerBuilder<'_>, recorder: &Recorder, part: &Part) {
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
