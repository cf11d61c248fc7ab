//! Loss attribution: divides what a window lost among its cgroups.
//!
//! The clock of a CPU keeps ticking while no samples arrive, so the number of missing samples is
//! known, busy and idle together, but not which cgroup they belong to. The kernel's own accounting
//! helps: if a cgroup used more CPU time than its samples stand for, it gets the difference. Where
//! there is no accounting, or the loss is smaller than the sampling error, losses are divided in
//! proportion to the samples taken.

use super::batch::RawLoss;
use cgroup::usage::PathAccount;
use profile::{Value, ancestors};
use std::collections::BTreeMap;

/// What one cgroup lost, of samples of one weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Loss {
    /// Path of the cgroup; empty when not known.
    pub path: Box<str>,
    /// Samples and their weight.
    pub value: Value,
}

/// What is known of the window.
pub(super) struct Window<'a> {
    /// Samples by cgroup.
    pub taken: &'a BTreeMap<Box<str>, Value>,
    /// The same for the previous window, for a window in which nothing was taken.
    pub before: &'a BTreeMap<Box<str>, Value>,
    /// Samples of the idle loop.
    pub idle: u64,
    /// The kernel's accounting, by path.
    pub accounts: &'a [PathAccount],
    /// Weights are nanoseconds, so that the accounting can be held against them.
    pub is_time: bool,
}

/// Divides losses. The sum over cgroups is what was lost less what the idle loop would have had,
/// never more than was lost.
pub(super) fn attribute(losses: &[RawLoss], window: &Window<'_>) -> Vec<Loss> {
    let mut by_period: BTreeMap<u64, u64> = BTreeMap::new();
    for loss in losses {
        let sum = by_period.entry(loss.period).or_default();
        *sum = sum.saturating_add(loss.samples);
    }
    by_period.retain(|_, samples| *samples > 0);
    if by_period.is_empty() {
        return Vec::new();
    }
    let deficits = match window.is_time {
        true => deficits(window),
        false => BTreeMap::new(),
    };
    let gone: u128 = by_period
        .iter()
        .map(|(&period, &samples)| u128::from(period) * u128::from(samples))
        .sum();
    let busy = busy_weight(gone, window);
    let owed: u128 = deficits.values().map(|&ns| u128::from(ns)).sum();
    let shares: BTreeMap<&str, u64> = if owed > 0 { deficits } else { shares(window) };
    let paths: Vec<&str> = shares.keys().copied().collect();
    let weights: Vec<u64> = shares.values().copied().collect();
    let mut found = Vec::new();
    for (period, samples) in by_period {
        // Rounded to the nearest sample.
        let wanted = (u128::from(samples) * busy * 2 + gone) / (gone * 2).max(1);
        let wanted = (wanted as u64).min(samples);
        for (path, count) in paths.iter().zip(apportion(wanted, &weights)) {
            if count > 0 {
                found.push(Loss {
                    path: (*path).into(),
                    value: Value {
                        count,
                        weight: count.saturating_mul(period),
                    },
                });
            }
        }
    }
    found
}

/// The part of the lost weight that was not the idle loop's.
fn busy_weight(gone: u128, window: &Window<'_>) -> u128 {
    let taken = sum(window.taken);
    let host = window.accounts.iter().find(|account| &*account.path == "/");
    let host = host.filter(|host| window.is_time && host.estimated_ns == 0);
    if let Some(host) = host {
        let expected = u128::from(host.ns);
        let missing = expected.saturating_sub(u128::from(taken.weight));
        // In samples of the mean weight, twice the standard deviation of a count is 2·√count.
        let period = gone_period(taken, gone);
        let error = 2 * (expected / period).isqrt() * period;
        if gone > error {
            return missing.min(gone);
        }
    }
    let busy = match taken.count {
        0 if window.idle == 0 => sum(window.before).count,
        count => count,
    };
    let all = u128::from(busy) + u128::from(window.idle);
    if all == 0 {
        return gone;
    }
    gone * u128::from(busy) / all
}

/// Mean weight of the samples taken, or a guess that makes the error large.
fn gone_period(taken: Value, gone: u128) -> u128 {
    match taken.count {
        0 => gone.clamp(1, 10_000_000),
        count => (u128::from(taken.weight) / u128::from(count)).max(1),
    }
}

fn sum(values: &BTreeMap<Box<str>, Value>) -> Value {
    values.values().fold(Value::default(), |mut sum, &value| {
        sum += value;
        sum
    })
}

/// Missing time of each cgroup alone: accounted time beyond its samples' weight. Unit: nanoseconds.
fn deficits<'a>(window: &'a Window<'_>) -> BTreeMap<&'a str, u64> {
    let mut own: BTreeMap<&str, i128> = window
        .accounts
        .iter()
        .map(|account| (&*account.path, i128::from(account.ns)))
        .collect();
    for account in window.accounts {
        let above = ancestors(&account.path).find(|path| own.contains_key(path));
        if let Some(above) = above.and_then(|path| own.get_mut(path)) {
            *above -= i128::from(account.ns);
        }
    }
    for (path, value) in window.taken {
        if let Some(owed) = own.get_mut(&**path) {
            *owed -= i128::from(value.weight);
        }
    }
    own.into_iter()
        .filter(|&(_, owed)| owed > 0)
        .map(|(path, owed)| (path, owed.min(u64::MAX.into()) as u64))
        .collect()
}

/// Weight of each cgroup in this window, or in the previous one; a single unnamed cgroup if neither
/// has samples.
fn shares<'a>(window: &'a Window<'_>) -> BTreeMap<&'a str, u64> {
    let known = [window.taken, window.before];
    let known = known.iter().find(|values| sum(values).count > 0);
    match known {
        Some(values) => values
            .iter()
            .map(|(path, value)| (&**path, value.count))
            .collect(),
        None => BTreeMap::from([("", 1)]),
    }
}

/// Divides `total` in proportion to weights, exactly: integer parts first, then the rest by the
/// largest remainder, and among equal ones to the first. If all weights are zero, the first gets
/// everything.
pub(super) fn apportion(total: u64, weights: &[u64]) -> Vec<u64> {
    let sum: u128 = weights.iter().map(|&weight| u128::from(weight)).sum();
    let mut parts = vec![0; weights.len()];
    if sum == 0 {
        if let Some(first) = parts.first_mut() {
            *first = total;
        }
        return parts;
    }
    let mut rests: Vec<(std::cmp::Reverse<u128>, usize)> = Vec::with_capacity(weights.len());
    let mut left = total;
    for (at, &weight) in weights.iter().enumerate() {
        let product = u128::from(total) * u128::from(weight);
        parts[at] = (product / sum) as u64;
        left -= parts[at];
        rests.push((std::cmp::Reverse(product % sum), at));
    }
    rests.sort_unstable();
    // Less than one for each weight is left.
    for &(_, at) in rests.iter().take(left as usize) {
        parts[at] += 1;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::time::MonotonicTime;
    use proptest::prelude::*;

    const PERIOD: u64 = 10_000_000;

    fn lost(samples: u64) -> RawLoss {
        RawLoss {
            from: MonotonicTime(0),
            until: MonotonicTime(1),
            samples,
            period: PERIOD,
        }
    }

    fn taken(rows: &[(&str, u64)]) -> BTreeMap<Box<str>, Value> {
        rows.iter()
            .map(|&(path, count)| {
                let weight = count * PERIOD;
                (path.into(), Value { count, weight })
            })
            .collect()
    }

    fn accounts(rows: &[(&str, u64)]) -> Vec<PathAccount> {
        rows.iter()
            .map(|&(path, samples)| PathAccount {
                path: path.into(),
                ns: samples * PERIOD,
                estimated_ns: 0,
                throttled_ns: None,
                limit_millicores: 0,
            })
            .collect()
    }

    /// Losses by path of a window with these samples, accounts and idle samples.
    fn attributed(
        samples: u64,
        rows: &[(&str, u64)],
        kernel: &[(&str, u64)],
        idle: u64,
    ) -> Vec<(String, u64)> {
        let (taken, before) = (taken(rows), taken(&[("/before", 10)]));
        let window = Window {
            taken: &taken,
            before: &before,
            idle,
            accounts: &accounts(kernel),
            is_time: true,
        };
        attribute(&[lost(samples)], &window)
            .into_iter()
            .map(|loss| (loss.path.into_string(), loss.value.count))
            .collect()
    }

    #[test]
    fn the_kernels_accounting_says_whose_they_were() {
        let found = attributed(
            600,
            &[("/", 10), ("/a", 500), ("/a/b", 400)],
            &[("/", 1510), ("/a", 1500), ("/a/b", 900)],
            0,
        );
        assert_eq!(found, [("/a".to_owned(), 100), ("/a/b".to_owned(), 500)]);
    }

    #[test]
    fn what_the_idle_loop_lost_is_not_counted() {
        let found = attributed(600, &[("/a", 500)], &[("/", 700), ("/a", 700)], 500);
        assert_eq!(found, [("/a".to_owned(), 200)]);
    }

    #[test]
    fn without_accounting_losses_follow_what_was_taken() {
        let found = attributed(300, &[("/a", 200), ("/b", 100)], &[], 300);
        assert_eq!(found, [("/a".to_owned(), 100), ("/b".to_owned(), 50)]);
    }

    #[test]
    fn a_window_without_samples_goes_by_the_one_before() {
        assert_eq!(attributed(30, &[], &[], 0), [("/before".to_owned(), 30)]);
    }

    #[test]
    fn a_loss_below_the_error_of_sampling_goes_by_the_busy_share() {
        // The error is 2·√1000 = 62 samples, so 40 missing samples may be chance.
        let found = attributed(40, &[("/a", 1000)], &[("/", 1000), ("/a", 1000)], 1000);
        assert_eq!(found, [("/a".to_owned(), 20)]);
    }

    #[test]
    fn nothing_lost_is_nothing() {
        assert_eq!(attributed(0, &[("/a", 9)], &[("/", 99)], 0), []);
    }

    proptest! {
        #[test]
        fn parts_add_up_and_are_within_one_of_their_share(
            total in any::<u64>(),
            weights in prop::collection::vec(any::<u64>(), 1..40),
        ) {
            let parts = apportion(total, &weights);
            prop_assert_eq!(parts.iter().map(|&part| u128::from(part)).sum::<u128>(), total.into());
            let sum: u128 = weights.iter().map(|&weight| u128::from(weight)).sum();
            for (&part, &weight) in parts.iter().zip(&weights) {
                let product = u128::from(total) * u128::from(weight);
                let floor = product.checked_div(sum).unwrap_or(0) as u64;
                prop_assert!(sum == 0 || part == floor || part == floor + 1);
            }
        }

        #[test]
        fn never_more_is_handed_out_than_was_lost(
            losses in prop::collection::vec((0..100_000u64, 1..50_000_000u64), 0..6),
            rows in prop::collection::btree_map("/[ab](/[ab])?", 0..5000u64, 0..5),
            kernel in prop::collection::btree_map("/([ab](/[ab])?)?", 0..90_000u64, 0..5),
            idle in 0..9000u64,
            is_time in any::<bool>(),
        ) {
            let losses: Vec<RawLoss> = losses
                .iter()
                .map(|&(samples, period)| RawLoss { period, ..lost(samples) })
                .collect();
            let taken: BTreeMap<Box<str>, Value> = rows
                .into_iter()
                .map(|(path, count)| (path.into(), Value { count, weight: count * PERIOD }))
                .collect();
            let accounts: Vec<PathAccount> = kernel
                .into_iter()
                .map(|(path, samples)| PathAccount {
                    path: path.into(),
                    ns: samples * PERIOD,
                    estimated_ns: 0,
                    throttled_ns: None,
                    limit_millicores: 0,
                })
                .collect();
            let window = Window { taken: &taken, before: &BTreeMap::new(), idle, accounts: &accounts, is_time };
            let found = attribute(&losses, &window);
            for period in losses.iter().map(|loss| loss.period) {
                let of = |weight: u64, count: u64| weight == count * period;
                let given: u64 = found.iter().filter(|loss| of(loss.value.weight, loss.value.count)).map(|loss| loss.value.count).sum();
                let gone: u64 = losses.iter().filter(|loss| loss.period == period).map(|loss| loss.samples).sum();
                prop_assert!(given <= gone, "{given} of {gone}");
            }
            if idle == 0 && accounts.is_empty() {
                let gone: u64 = losses.iter().map(|loss| loss.samples).sum();
                prop_assert_eq!(found.iter().map(|loss| loss.value.count).sum::<u64>(), gone);
            }
        }
    }
}
