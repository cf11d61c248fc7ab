//! Derives from a window alone: whether it can be accepted, the usage of its cgroups alone, and its
//! labels as they are inserted.

use super::keys::TimeSlot;
use super::{Options, SERVICE_LABELS};
use crate::store::admission::{self, Below, TimeBounds, accounted_below};
use crate::store::{LabelSet, NewWindow, WindowAccount};
use profile::Value;

/// Most samples of one window, and most weight and accounted time. Sums are of 64 bits in the
/// engine and wrap there, so what could make them wrap within 2,000 windows is refused. An hour of
/// 2,500 CPUs weighs as much.
const COUNT_MAX: u64 = 1 << 40;
pub(super) const WEIGHT_MAX: u64 = 1 << 53;

/// Why a window will never be taken.
pub(super) fn rejection(window: &NewWindow, options: &Options, now_unix_ns: i64) -> Option<String> {
    let ns = |of: std::time::Duration| u64::try_from(of.as_nanos()).unwrap_or(u64::MAX);
    let bounds = TimeBounds {
        future_ns: ns(options.future),
        age_ns: ns(options.raw.min(options.retention)),
    };
    let reason = admission::rejection(window, bounds, now_unix_ns);
    if reason.is_some() {
        return reason;
    }
    let mut total = Value::default();
    for row in &window.rows {
        total += row.value;
    }
    let accounts = window.accounts.iter();
    let accounted = accounts.map(|account| {
        let throttled_ns = account.throttled_ns.unwrap_or(0);
        account.ns.max(account.estimated_ns).max(throttled_ns)
    });
    let reason = if TimeSlot::of(window.range.start_unix_ns).is_none() {
        "its time cannot be stored"
    } else if total.count > COUNT_MAX || total.weight > WEIGHT_MAX {
        "it has more samples than any machine can take in an hour"
    } else if accounted.fold(0, u64::saturating_add) > WEIGHT_MAX {
        "it has more CPU time than any machine has in an hour"
    } else {
        return None;
    };
    Some(reason.to_owned())
}

/// Returns what each account's cgroup has alone: its subtree less the nearest accounts below it.
pub(super) fn alone(window: &NewWindow) -> Vec<(i64, i64)> {
    let accounts = window.accounts.iter().zip(accounted_below(window));
    // Below WEIGHT_MAX each, so that sums of thousands fit.
    let less = |whole: u64, below: i128| (i128::from(whole) - below) as i64;
    let own = |(account, below): (&WindowAccount, Below)| {
        let ns = less(account.ns, below.ns);
        (ns, less(account.estimated_ns, below.estimated_ns))
    };
    accounts.map(own).collect()
}

/// Names and values as they are inserted.
pub(super) fn pairs_of(labels: &LabelSet) -> Vec<(String, String)> {
    let pairs = labels.iter();
    pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// The label set of the rollup by service.
pub(super) fn service_of(labels: &LabelSet) -> LabelSet {
    let kept = labels
        .iter()
        .filter(|(name, _)| SERVICE_LABELS.contains(name));
    LabelSet::new(kept.map(|(name, value)| (name.to_owned(), value.to_owned())))
}
