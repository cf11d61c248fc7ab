//! How certain a change of a share is, from how much the share varies within each side.
//!
//! The binomial error of [`profile::CostDiff`] assumes independent samples. Those of a fleet are
//! not: load comes and goes, a job runs in one minute and not in the next, so with millions of
//! samples every row would look certain. Here each side's range is cut into parts of equal length,
//! and the variance of a share is that of a ratio over these parts (cluster sampling, linearized):
//!
//! ```text
//! share    = Σ wᵢ ÷ Σ Wᵢ                                     over the n parts with samples
//! variance = n ÷ (n − 1) × Σ (wᵢ − share × Wᵢ)² ÷ (Σ Wᵢ)²
//! ```
//!
//! It is never taken below the binomial one. A permanent difference between hosts is the same on
//! both sides and adds no error, as long as both have the same hosts. If most are others, as with
//! two versions or a canary and the rest, each side is cut into groups of hosts as well, and the
//! larger of both variances counts. One host alone has no spread: it is taken to be as far from its
//! peers as those of the other side are from each other.
//!
//! A row is significant if its two-sided p-value, from Student's t with Welch's degrees of freedom,
//! passes the procedure of Benjamini and Hochberg over all rows: of the marked rows, at most one in
//! twenty is chance.

use super::chance::{discoveries, two_sided};
use crate::store::{Limits, QueryResult, Scope, StoreError, StoreQueries, TimeRange};
use profile::{
    CostBy, CostDiff, FunctionChange, LabelMatcher, Query, Selector, TopSort, key, unit,
};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Instant;

/// Parts a range is cut into, at most. More have less time each, in which neighbours are alike;
/// fewer leave so few degrees of freedom that only large changes are significant.
const PARTS_MAX: u64 = 10;

/// Parts from this length on are cut at multiples of it, so that rollups answer. Unit: nanoseconds.
const MINUTE_NS: u64 = 60_000_000_000;

/// Groups that the hosts of a side are cut into, at most: see [`PARTS_MAX`].
const HOST_GROUPS_MAX: usize = 10;

/// Most hosts of a side that are told apart. Their names make up the patterns of the groups.
pub(super) const HOSTS_MAX: usize = 2000;

/// Rows marked by chance, of all that are marked.
const FALSE_DISCOVERIES: f64 = 0.05;

/// Costs of functions, or modules, in each part of a side.
pub(super) struct Parts {
    /// By part: all that was sampled.
    whole: Vec<f64>,
    /// By module and function: each part's own weight.
    own: HashMap<(String, String), Vec<f64>>,
}

/// How far a side spreads.
#[derive(Default)]
pub(super) struct Spread {
    /// Over the parts of its time.
    pub time: Option<Parts>,
    /// Over groups of its hosts, where they are others than those of the other side.
    pub hosts: Option<Parts>,
    /// How many hosts these are.
    pub hosts_count: usize,
}

/// What is asked for in parts.
pub(super) struct Asked<'a> {
    /// Who answers.
    pub store: &'a dyn StoreQueries,
    /// Functions or modules.
    pub by: CostBy,
    /// All of it may take half of the time that is left.
    pub limits: &'a Limits,
}

/// A change and how sure it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Certainty {
    /// Standard error of the change of the share.
    pub std_error: f64,
    /// See the module.
    pub is_significant: bool,
}

/// Memory of a function in addition to its names and costs: two strings, a vector and its place in
/// the map. Unit: bytes.
const FUNCTION_BYTES: usize = 128;

/// Cuts `range` into at most [`PARTS_MAX`] parts, each of complete steps of the data; at minutes,
/// except for what is before the first and after the last full one.
fn cut(range: TimeRange, step_ns: u64) -> Vec<TimeRange> {
    let length = range.end_unix_ns.abs_diff(range.start_unix_ns);
    let step = match step_ns.max(super::request::WINDOW_NS) {
        step if length / PARTS_MAX >= MINUTE_NS => step.next_multiple_of(MINUTE_NS),
        step => step,
    };
    let part = length.div_ceil(PARTS_MAX).max(1).next_multiple_of(step);
    let mut parts = Vec::new();
    let mut from = range.start_unix_ns;
    let mut to = from;
    if step >= MINUTE_NS {
        let step = i64::try_from(step).unwrap_or(i64::MAX);
        to = to.saturating_add((step - to.rem_euclid(step)) % step);
    }
    while from < range.end_unix_ns {
        to = to.saturating_add_unsigned(part);
        parts.push(TimeRange {
            start_unix_ns: from,
            end_unix_ns: to.min(range.end_unix_ns),
        });
        from = to;
    }
    parts
}

/// Names of the hosts that have what a query selects, in order; `None`: there are too many to tell
/// apart, or no time is left for them.
pub(super) fn hosts_of(
    asked: &Asked<'_>,
    range: TimeRange,
    query: &Query,
) -> Result<Option<Vec<String>>, StoreError> {
    let scope = Scope {
        range,
        selector: query.selector().clone(),
    };
    let (store, limits) = (asked.store, asked.limits);
    match store.label_values(&scope, key::HOST, "", HOSTS_MAX, limits) {
        Ok((names, more)) => Ok((!more).then_some(names)),
        Err(StoreError::Cancelled) if limits.cancel.is_cancelled() => Err(StoreError::Cancelled),
        Err(StoreError::Cancelled | StoreError::TooLarge(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The query, of each group of these hosts; none where there is nothing to tell apart.
fn of_hosts(query: &Query, hosts: &[String]) -> Vec<Query> {
    let groups = hosts.len().min(HOST_GROUPS_MAX);
    let group = |at: usize| -> Option<Query> {
        let names = hosts.iter().skip(at).step_by(groups).map(String::as_str);
        let mut matchers = query.selector().matchers().to_vec();
        matchers.push(LabelMatcher::one_of(key::HOST, names).ok()?);
        let filters = query.frame_filters().to_vec();
        Query::new(
            Selector::new(matchers).ok()?,
            filters,
            query.group_by().clone(),
        )
        .ok()
    };
    let made: Option<Vec<Query>> = (0..groups).map(group).collect();
    made.unwrap_or_default()
}

impl Parts {
    /// Asks what a side cost in each part of `range`, of which the data has steps of `step_ns`.
    pub fn of_time(
        asked: &Asked<'_>,
        (range, step_ns): (TimeRange, u64),
        query: &Query,
        bytes_left: &mut usize,
    ) -> Result<Option<Parts>, StoreError> {
        let parts = cut(range, step_ns);
        let parts: Vec<_> = parts.into_iter().map(|part| (part, query)).collect();
        Parts::read(asked, &parts, bytes_left)
    }

    /// Asks what a side cost on each group of its hosts.
    pub fn of_hosts(
        asked: &Asked<'_>,
        range: TimeRange,
        (query, hosts): (&Query, &[String]),
        bytes_left: &mut usize,
    ) -> Result<Option<Parts>, StoreError> {
        let groups = of_hosts(query, hosts);
        let parts: Vec<_> = groups.iter().map(|group| (range, group)).collect();
        Parts::read(asked, &parts, bytes_left)
    }

    /// `None` when it took too long or too much: the answer has the error of sampling then. What it
    /// keeps is taken from `bytes_left`.
    fn read(
        asked: &Asked<'_>,
        parts: &[(TimeRange, &Query)],
        bytes_left: &mut usize,
    ) -> Result<Option<Parts>, StoreError> {
        let now = Instant::now();
        let deadline = asked.limits.deadline;
        let mut limits = Limits {
            deadline: now + deadline.saturating_duration_since(now) / 2,
            ..asked.limits.clone()
        };
        let mut found = Parts {
            whole: vec![0.0; parts.len()],
            own: HashMap::new(),
        };
        let of_parts = parts.len() * size_of::<f64>();
        for (at, (range, query)) in parts.iter().enumerate() {
            limits.memory_bytes = *bytes_left;
            let answer = asked.store.costs(*range, query, asked.by, &limits);
            let QueryResult { data, quality } = match answer {
                Ok(answer) => answer,
                Err(StoreError::Cancelled) if limits.cancel.is_cancelled() => {
                    return Err(StoreError::Cancelled);
                }
                Err(StoreError::Cancelled | StoreError::TooLarge(_)) => return Ok(None),
                Err(error) => return Err(error),
            };
            let costs = data.without_lost();
            // A heavy part may be in a coarser unit than its neighbours.
            let (_, by) = unit::base(&quality.unit);
            found.whole[at] = costs.total().weight as f64 * by as f64;
            for row in costs.into_top(TopSort::Own, usize::MAX).rows {
                let own = row.own.weight as f64 * by as f64;
                if own > 0.0 {
                    let bytes = row.module.len() + row.name.len() + of_parts + FUNCTION_BYTES;
                    let of = match found.own.entry((row.module, row.name)) {
                        Entry::Occupied(of) => of.into_mut(),
                        Entry::Vacant(of) => {
                            let Some(rest) = bytes_left.checked_sub(bytes) else {
                                return Ok(None);
                            };
                            *bytes_left = rest;
                            of.insert(vec![0.0; parts.len()])
                        }
                    };
                    of[at] = own;
                }
            }
        }
        Ok(Some(found))
    }

    /// Parts with samples.
    pub fn len(&self) -> usize {
        self.whole.iter().filter(|whole| **whole > 0.0).count()
    }

    /// Variance of a function's share, and its degrees of freedom; `None` where two parts are not
    /// there.
    fn variance(&self, row: &FunctionChange) -> Option<(f64, f64)> {
        let parts = self.len() as f64;
        let sum: f64 = self.whole.iter().sum();
        if parts < 2.0 || sum <= 0.0 {
            return None;
        }
        let key = (row.module.clone(), row.function.clone());
        let none = Vec::new();
        let own = self.own.get(&key).unwrap_or(&none);
        let share = own.iter().sum::<f64>() / sum;
        let squares = self.whole.iter().enumerate().map(|(at, whole)| {
            let own = own.get(at).copied().unwrap_or(0.0);
            (own - share * whole).powi(2)
        });
        let variance = parts / (parts - 1.0) * squares.sum::<f64>() / sum.powi(2);
        Some((variance, parts - 1.0))
    }
}

/// Variance of a change, and its degrees of freedom, over the parts of both sides' time: that of
/// one side alone says nothing of the change.
fn over_time(row: &FunctionChange, sides: [&Spread; 2]) -> Option<(f64, f64)> {
    let of = sides.map(|side| side.time.as_ref().and_then(|parts| parts.variance(row)));
    let [Some(before), Some(after)] = of else {
        return None;
    };
    Some((before.0 + after.0, welch([before, after])))
}

/// As [`over_time`], over the hosts of both sides, where these are others.
fn over_hosts(row: &FunctionChange, sides: [&Spread; 2]) -> Option<(f64, f64)> {
    let count = sides.map(|side| side.hosts_count.max(1) as f64);
    let of = sides.map(|side| side.hosts.as_ref().and_then(|parts| parts.variance(row)));
    // What hosts of one side differ by is taken for a side that has one.
    let alone =
        |(variance, freedom): (f64, f64), of: f64, one: f64| (variance * (1.0 + of / one), freedom);
    match of {
        [Some(before), Some(after)] => Some((before.0 + after.0, welch([before, after]))),
        [Some(before), None] => Some(alone(before, count[0], count[1])),
        [None, Some(after)] => Some(alone(after, count[1], count[0])),
        [None, None] => None,
    }
}

/// Judges every row of a diff, in its order.
pub(super) fn judge(diff: &CostDiff, sides: [&Spread; 2]) -> Vec<Certainty> {
    let mut verdicts = Vec::with_capacity(diff.functions.len());
    let mut chances = Vec::with_capacity(diff.functions.len());
    for row in &diff.functions {
        let share = diff.share(row.own);
        let binomial = (share.std_error.powi(2), f64::INFINITY);
        let spreads = [over_time(row, sides), over_hosts(row, sides)];
        let larger = |most: (f64, f64), of: (f64, f64)| if of.0 > most.0 { of } else { most };
        let (variance, freedom) = spreads.into_iter().flatten().fold(binomial, larger);
        let std_error = variance.sqrt();
        verdicts.push(Certainty {
            std_error,
            is_significant: false,
        });
        let t = match std_error > 0.0 {
            true => share.delta / std_error,
            false => 0.0,
        };
        chances.push(two_sided(t, freedom));
    }
    let found = discoveries(&chances, FALSE_DISCOVERIES);
    for (verdict, is_one) in verdicts.iter_mut().zip(found) {
        verdict.is_significant = is_one;
    }
    verdicts
}

/// Degrees of freedom of a sum of variances (Welch and Satterthwaite).
fn welch(sides: [(f64, f64); 2]) -> f64 {
    let (mut sum, mut parts) = (0.0, 0.0);
    for (variance, freedom) in sides {
        sum += variance;
        parts += variance.powi(2) / freedom;
    }
    if parts > 0.0 {
        sum.powi(2) / parts
    } else {
        1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profile::{Costs, FrameRef, LabelSetId, Profile, SampleKey, StackEnd, StackId, Value};

    #[test]
    fn a_range_is_cut_into_whole_steps() {
        let range = |from: i64, to: i64| TimeRange {
            start_unix_ns: from * 1_000_000_000,
            end_unix_ns: to * 1_000_000_000,
        };
        let lengths = |range: TimeRange, step_s: u64| -> Vec<i64> {
            let parts = cut(range, step_s * 1_000_000_000);
            let seconds =
                |part: &TimeRange| (part.end_unix_ns - part.start_unix_ns) / 1_000_000_000;
            parts.iter().map(seconds).collect()
        };
        assert_eq!(lengths(range(0, 35), 10), [10, 10, 10, 5]);
        assert_eq!(lengths(range(0, 3600), 10), [360; 10]);
        assert_eq!(lengths(range(0, 700), 10), [120, 120, 120, 120, 120, 100]);
        assert_eq!(lengths(range(0, 3600), 3600), [3600]);
        assert_eq!(lengths(range(7, 7), 10), [0; 0]);
        // At full minutes, wherever the range starts, so that rollups answer.
        let parts = cut(range(7, 3607), 10_000_000_000);
        let ends = parts.iter().map(|part| part.end_unix_ns / 1_000_000_000);
        let ends: Vec<i64> = ends.collect();
        assert_eq!(
            ends,
            [420, 780, 1140, 1500, 1860, 2220, 2580, 2940, 3300, 3607]
        );
        assert_eq!(lengths(range(-50, 3550), 10)[..2], [410, 360]);
    }

    fn profile(rows: &[(&str, u64)]) -> Profile {
        let mut profile = Profile::default();
        for (function, count) in rows {
            let frame = profile.dict.intern_frame(FrameRef {
                function,
                ..FrameRef::default()
            });
            let stack = profile.dict.stacks.child(StackId::EMPTY, frame);
            let key = SampleKey {
                labels: LabelSetId::default(),
                stack,
                end: StackEnd::Complete,
            };
            let value = Value {
                count: *count,
                weight: *count,
            };
            profile.samples.insert(key, value);
        }
        profile
    }

    fn parts(rows: &[(&str, &[u64])]) -> Parts {
        let len = rows[0].1.len();
        let whole = (0..len).map(|at| rows.iter().map(|(_, own)| own[at] as f64).sum());
        let own = rows.iter().map(|(name, own)| {
            let own = own.iter().map(|own| *own as f64).collect();
            ((String::new(), (*name).to_owned()), own)
        });
        Parts {
            whole: whole.collect(),
            own: own.collect(),
        }
    }

    fn sums<'r>(rows: &[(&'r str, &[u64])]) -> Vec<(&'r str, u64)> {
        let sum = |(name, own): &(&'r str, &[u64])| (*name, own.iter().sum());
        rows.iter().map(sum).collect()
    }

    /// Whether each of `rows` moved for sure, by the spread and by sampling alone.
    fn judged(before: &[(&str, &[u64])], after: &[(&str, &[u64])]) -> Vec<(String, bool, bool)> {
        let (was, is) = (profile(&sums(before)), profile(&sums(after)));
        let costs = |profile| Costs::of(profile, CostBy::Function);
        let diff = CostDiff::new(costs(&was), costs(&is));
        let of_time = |side| Spread {
            time: Some(parts(side)),
            ..Spread::default()
        };
        let spread = judge(&diff, [&of_time(before), &of_time(after)]);
        let sampling = judge(&diff, [&Spread::default(), &Spread::default()]);
        let rows = diff.functions.iter().zip(spread.iter().zip(&sampling));
        let row = |(row, (spread, sampling)): (&FunctionChange, (&Certainty, &Certainty))| {
            assert!(spread.std_error >= sampling.std_error);
            (
                row.function.clone(),
                spread.is_significant,
                sampling.is_significant,
            )
        };
        let mut found: Vec<_> = rows.map(row).collect();
        found.sort();
        found
    }

    #[test]
    fn a_share_that_comes_and_goes_within_a_side_is_no_change() {
        // `job` runs now and then on both sides; `leak` went from 2 % to 6 % and stays there.
        let before: &[(&str, &[u64])] = &[
            ("job", &[9000, 100, 100, 8000, 100]),
            ("leak", &[2000, 2100, 1900, 2000, 2050]),
            ("rest", &[90_000, 97_800, 98_000, 90_000, 97_850]),
        ];
        let after: &[(&str, &[u64])] = &[
            ("job", &[100, 9500, 9000, 100, 8000]),
            ("leak", &[6000, 6100, 5900, 6000, 6050]),
            ("rest", &[93_900, 84_400, 85_100, 93_900, 85_950]),
        ];
        let found = judged(before, after);
        let named = |name: &str, spread, sampling| (name.to_owned(), spread, sampling);
        assert_eq!(found[0], named("job", false, true));
        assert_eq!(found[1], named("leak", true, true));
    }

    /// Whether `read` moved for sure between these hosts and those, by their spread.
    fn moved_on(before: &[(&str, &[u64])], after: &[(&str, &[u64])]) -> bool {
        let (was, is) = (profile(&sums(before)), profile(&sums(after)));
        let costs = |profile| Costs::of(profile, CostBy::Function);
        let diff = CostDiff::new(costs(&was), costs(&is));
        let of_hosts = |side: &[(&str, &[u64])]| Spread {
            time: None,
            hosts: Some(parts(side)),
            hosts_count: side[0].1.len(),
        };
        let verdicts = judge(&diff, [&of_hosts(before), &of_hosts(after)]);
        let mut rows = diff.functions.iter().zip(&verdicts);
        let (_, verdict) = rows.find(|(row, _)| row.function == "read").expect("a row");
        verdict.is_significant
    }

    #[test]
    fn hosts_that_always_differ_are_no_change() {
        // Shares of 10 to 30 %, whoever is on which side.
        let before: &[(&str, &[u64])] = &[
            ("read", &[10_000, 30_000, 12_000, 28_000]),
            ("rest", &[90_000, 70_000, 88_000, 72_000]),
        ];
        let after: &[(&str, &[u64])] = &[
            ("read", &[29_000, 11_000, 30_000, 26_000]),
            ("rest", &[71_000, 89_000, 70_000, 74_000]),
        ];
        assert!(!moved_on(before, after));
        // All of these hosts are beyond all of those.
        let moved: &[(&str, &[u64])] = &[
            ("read", &[60_000, 66_000, 62_000, 64_000]),
            ("rest", &[40_000, 34_000, 38_000, 36_000]),
        ];
        assert!(moved_on(before, moved));
    }

    #[test]
    fn one_host_is_judged_by_how_its_peers_differ() {
        let peers: &[(&str, &[u64])] = &[
            ("read", &[10_000, 30_000, 12_000, 28_000, 20_000]),
            ("rest", &[90_000, 70_000, 88_000, 72_000, 80_000]),
        ];
        let usual: &[(&str, &[u64])] = &[("read", &[35_000]), ("rest", &[65_000])];
        assert!(!moved_on(peers, usual));
        let canary: &[(&str, &[u64])] = &[("read", &[80_000]), ("rest", &[20_000])];
        assert!(moved_on(peers, canary));
    }

    #[test]
    fn every_host_is_in_one_group() {
        let hosts: Vec<String> = (0..23).map(|at| format!("web-{at}")).collect();
        let groups = of_hosts(&Query::default(), &hosts);
        assert_eq!(groups.len(), HOST_GROUPS_MAX);
        for host in &hosts {
            let takes = |query: &&Query| query.selector().matchers()[0].matches(host);
            assert_eq!(groups.iter().filter(takes).count(), 1, "{host}");
        }
        assert_eq!(of_hosts(&Query::default(), &[]).len(), 0);
    }

    fn named<'s>(names: &'s [String], side: &'s [Vec<u64>]) -> Vec<(&'s str, &'s [u64])> {
        let rows = names.iter().zip(side);
        rows.map(|(name, own)| (name.as_str(), own.as_slice()))
            .collect()
    }

    #[test]
    fn what_differs_in_nothing_but_chance_is_marked_seldom() {
        // 400 functions of one share each, drawn twice from the same urn: none has changed.
        let mut state = 7u64;
        let mut next = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % 21
        };
        let names: Vec<String> = (0..400).map(|at| format!("f{at}")).collect();
        let mut side = || -> Vec<Vec<u64>> {
            let own = |_: &String| (0..10).map(|_| 90 + next()).collect();
            names.iter().map(own).collect()
        };
        let (was, is) = (side(), side());
        let (was, is) = (named(&names, &was), named(&names, &is));
        let marked = judged(&was, &is).iter().filter(|row| row.1).count();
        assert_eq!(marked, 0);
    }
}
