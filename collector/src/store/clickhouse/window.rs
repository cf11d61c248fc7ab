//! What a window says by itself: whether it can be taken, its host's labels, what its cgroups have alone.

use super::keys::Place;
use super::{Options, SERVICE_LABELS};
use crate::store::{LabelSet, NewWindow};
use profile::{Value, key};
use std::collections::HashMap;

/// Longest window. Unit: nanoseconds.
const WINDOW_NS_MAX: i64 = 3600 * super::keys::NS_PER_S;
/// Longest host id. Unit: bytes.
const HOST_ID_LEN_MAX: usize = 128;
/// Most samples of one window, and most weight and accounted time. Sums are of 64 bits in the engine
/// and wrap there, so what could make them wrap within 2,000 windows is refused. An hour of 2,500
/// CPUs weighs as much.
const COUNT_MAX: u64 = 1 << 40;
pub(super) const WEIGHT_MAX: u64 = 1 << 53;
/// Why a window will never be taken.
pub(super) fn refusal(window: &NewWindow, options: &Options, now_unix_ns: i64) -> Option<String> {
    let (start, end) = (window.range.start_unix_ns, window.range.end_unix_ns);
    let ns = |of: std::time::Duration| i64::try_from(of.as_nanos()).unwrap_or(i64::MAX);
    let sets = window.label_sets.len() as u64;
    let host_id = &window.origin.host.host_id;
    let mut total = Value::default();
    for row in &window.rows {
        total += row.value;
    }
    let accounted = window
        .accounts
        .iter()
        .map(|account| account.ns.max(account.estimated_ns));
    let named = window.rows.iter().map(|row| row.labels);
    let named = named.chain(window.accounts.iter().map(|account| account.labels));
    if host_id.is_empty() || host_id.len() > HOST_ID_LEN_MAX {
        return Some(format!(
            "its host id has {} bytes, not 1 to {HOST_ID_LEN_MAX}",
            host_id.len()
        ));
    }
    if end <= start || end.saturating_sub(start) > WINDOW_NS_MAX {
        return Some("it ends before it starts or is longer than an hour".to_owned());
    }
    if start > now_unix_ns.saturating_add(ns(options.future)) {
        return Some(format!(
            "it begins more than {} s in the future: the host's clock is wrong",
            options.future.as_secs()
        ));
    }
    let oldest = now_unix_ns.saturating_sub(ns(options.raw.min(options.retention)));
    if start < oldest || Place::of(start).is_none() {
        return Some("it is older than what is kept".to_owned());
    }
    if named.into_iter().any(|labels| u64::from(labels) >= sets) {
        return Some("a row names a label set that is not there".to_owned());
    }
    if total.count > COUNT_MAX || total.weight > WEIGHT_MAX {
        return Some("it has more samples than any machine takes in an hour".to_owned());
    }
    if accounted.sum_saturating() > WEIGHT_MAX {
        return Some("it accounts for more time than any machine has in an hour".to_owned());
    }
    None
}

trait SumSaturating {
    fn sum_saturating(self) -> u64;
}

impl<I: Iterator<Item = u64>> SumSaturating for I {
    fn sum_saturating(self) -> u64 {
        self.fold(0, u64::saturating_add)
    }
}

/// Labels that say which host: shared by all label sets of the window, and of no cgroup or process.
pub(super) fn host_labels(window: &NewWindow) -> LabelSet {
    let of_samples = [key::COMM, key::THREAD, key::PID, key::CONTEXT];
    let sets = &window.label_sets;
    let shared = sets.first().into_iter().flat_map(LabelSet::iter);
    let shared = shared.filter(|&(name, value)| {
        !key::is_of_cgroup(name)
            && !of_samples.contains(&name)
            && sets.iter().all(|set| set.get(name) == value)
    });
    LabelSet::new(shared.map(|(name, value)| (name.to_owned(), value.to_owned())))
}

/// Of each account what its cgroup has alone: its subtree less the nearest accounted ones below it.
pub(super) fn alone(window: &NewWindow) -> Vec<(i64, i64)> {
    let path = |labels: u32| {
        let set = window.label_sets.get(labels as usize);
        set.map_or("", |labels| labels.get(key::CGROUP))
    };
    let mut by_path: HashMap<&str, usize> = HashMap::new();
    for (at, account) in window.accounts.iter().enumerate() {
        if account.ns > 0 {
            by_path.entry(path(account.labels)).or_insert(at);
        }
    }
    // Below WEIGHT_MAX each, so that sums of thousands fit.
    let mut alone: Vec<(i64, i64)> = window
        .accounts
        .iter()
        .map(|account| (account.ns as i64, account.estimated_ns as i64))
        .collect();
    for account in &window.accounts {
        let mut above = profile::ancestors(path(account.labels));
        if let Some(&above) = above.find_map(|path| by_path.get(path)) {
            alone[above].0 -= account.ns as i64;
            alone[above].1 -= account.estimated_ns as i64;
        }
    }
    alone
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
