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
//! It is never taken below the binomial one. A row is significant if its two-sided p-value, from
//! Student's t with Welch's degrees of freedom, passes the procedure of Benjamini and Hochberg over
//! all rows: of the marked rows, at most one in twenty is chance. A permanent difference between
//! hosts is the same on both sides and adds no error; if the sides have different hosts, it is not
//! detected here.

use super::chance::{discoveries, two_sided};
use crate::store::{Limits, QueryResult, StoreError, StoreQueries, TimeRange};
use profile::unit;
use profile::{CostBy, CostDiff, FunctionChange, Query, TopSort};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Instant;

/// Parts a range is cut into, at most. More have less time each, in which neighbours are alike;
/// fewer leave so few degrees of freedom that only large changes are significant.
const PARTS_MAX: u64 = 10;

/// Parts from this length on are cut at multiples of it, so that rollups answer. Unit: nanoseconds.
const MINUTE_NS: u64 = 60_000_000_000;

/// Rows marked by chance, of all that are marked.
const FALSE_DISCOVERIES: f64 = 0.05;

/// Costs of functions in each part of a side.
pub(super) struct Parts {
    /// By part: all that was sampled.
    whole: Vec<f64>,
    /// By module and function: each part's own weight.
    own: HashMap<(String, String), Vec<f64>>,
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

impl Parts {
    /// Asks what functions cost in each part of `range`, of which the data has steps of `step_ns`.
    /// `None` when it took too long or too much: the answer has the error of sampling then. It may
    /// take half of the time that is left, and what it keeps is taken from `bytes_left`.
    pub fn read(
        store: &dyn StoreQueries,
        (range, step_ns): (TimeRange, u64),
        query: &Query,
        limits: &Limits,
        bytes_left: &mut usize,
    ) -> Result<Option<Parts>, StoreError> {
        let now = Instant::now();
        let mut limits = Limits {
            deadline: now + limits.deadline.saturating_duration_since(now) / 2,
            ..limits.clone()
        };
        let parts = cut(range, step_ns);
        let mut found = Parts {
            whole: vec![0.0; parts.len()],
            own: HashMap::new(),
        };
        let of_parts = parts.len() * size_of::<f64>();
        for (at, part) in parts.iter().enumerate() {
            limits.memory_bytes = *bytes_left;
            let QueryResult { data, quality } =
                match store.costs(*part, query, CostBy::Function, &limits) {
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

/// Judges every function of a diff, in its order.
pub(super) fn judge(
    diff: &CostDiff,
    before: Option<&Parts>,
    after: Option<&Parts>,
) -> Vec<Certainty> {
    let mut verdicts = Vec::with_capacity(diff.functions.len());
    let mut chances = Vec::with_capacity(diff.functions.len());
    for row in &diff.functions {
        let share = diff.share(row.own);
        // The binomial variance is of both sides together: half of it stands for each.
        let binomial = share.std_error.powi(2);
        let spread = [before, after].map(|side| side.and_then(|parts| parts.variance(row)));
        // That of one side alone says nothing of the change.
        let variance = match spread {
            [Some((before, _)), Some((after, _))] => before + after,
            _ => 0.0,
        };
        let (variance, freedom) = match variance > binomial {
            true => (variance, welch(&spread)),
            false => (binomial, f64::INFINITY),
        };
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
    for (verdict, is_one) in verdicts
        .iter_mut()
        .zip(discoveries(&chances, FALSE_DISCOVERIES))
    {
        verdict.is_significant = is_one;
    }
    verdicts
}

/// Degrees of freedom of a sum of variances (Welch and Satterthwaite).
fn welch(sides: &[Option<(f64, f64)>; 2]) -> f64 {
    let known = sides.iter().flatten();
    let (mut sum, mut parts) = (0.0, 0.0);
    for (variance, freedom) in known {
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
        let (before, after) = (parts(before), parts(after));
        let spread = judge(&diff, Some(&before), Some(&after));
        let sampling = judge(&diff, None, None);
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
