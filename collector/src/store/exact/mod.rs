//! Sums of weights that do not overflow: a store on top of another one, with either engine.
//!
//! An engine adds weights in 64 bits and stops at the largest number, which in nanoseconds is 584
//! CPU-years: 1,000 hosts of 16 busy CPUs exceed it in two weeks. If an answer does, or exceeds
//! what signed readers can hold (292), it is given in the coarser unit of its weights
//! ([`profile::unit`]): microseconds hold 292,000 CPU-years, 1,000 such hosts for 18 years.
//!
//! A sum that stopped at the largest number says nothing about the real one. So the engine is
//! queried again, for parts of the range that are short enough for exact sums. Each weight of a
//! part is rounded to the coarser unit, and the parts are added up: a row is wrong by at most half
//! a microsecond per part. What is not a sum of weights (hosts, gaps, windows, steps covered) is
//! taken from the first answer, because a host in two parts is still one host. Under steady load
//! the range is read less than three times in total.
//!
//! The caller's limits apply to all parts together: there is one deadline, and a part may use the
//! memory that the sum has left. Parts end at full hours, which all rollups have, so that engines
//! neither widen them nor count anything twice. A sum that overflows within an hour, which needs
//! five million busy CPUs, stays at the largest number and the answer says so.

mod sums;

use super::{
    AccountedSeries, HostRange, HostRecord, LabelTotals, Limits, QueryResult, Scope, StoreError,
    StoreQueries, TimeRange, TimeSeries,
};
use profile::unit::{self, WEIGHT_MAX};
use profile::{CostBy, Costs, MergeError, Profile, Query, Value};
use std::sync::Arc;
use sums::Weighed;

/// Parts end at multiples of it: the coarsest step in which data is stored. Unit: nanoseconds.
/// Partitions start at multiples of it, too; with a length that is not a multiple of hours, hours
/// of services would be counted in two parts.
const GRAIN_NS: i64 = 3_600_000_000_000;

/// A part that weighs less is followed by one of twice its length.
const LIGHT: u64 = u64::MAX / 4;

/// Answers of a store, which hold any sum. See the module.
pub struct Exact(Arc<dyn StoreQueries>);

impl Exact {
    /// The answers of `store`, in a coarser unit where they need one.
    pub fn new(store: Arc<dyn StoreQueries>) -> Exact {
        Exact(store)
    }
}

/// Asks for a range and, when its weights do not fit, for parts of it in the coarser unit.
fn exact<T: Weighed>(
    range: TimeRange,
    limits: &Limits,
    ask: impl Fn(TimeRange, Option<&T::Sum>, &Limits) -> Result<QueryResult<T>, StoreError>,
) -> Result<QueryResult<T>, StoreError> {
    let mut whole = ask(range, None, limits)?;
    let Some(coarser) = unit::coarser(&whole.quality.unit) else {
        return Ok(whole);
    };
    let is_time = unit::is_time(coarser);
    if !is_capped(&whole) {
        if whole.quality.total.weight > WEIGHT_MAX || whole.data.is_beyond() {
            coarser.clone_into(&mut whole.quality.unit);
            whole.quality.pruned_weight = unit::rescaled(whole.quality.pruned_weight);
            whole.data.rescale(is_time);
            // Where it has all rows, the total is what they add up to.
            let weight = whole.data.weight();
            let total = &mut whole.quality.total;
            total.weight = weight.unwrap_or_else(|| unit::rescaled(total.weight));
        }
        return Ok(whole);
    }
    let QueryResult { data, mut quality } = whole;
    let mut sum = T::Sum::from(data);
    let (mut count, mut pruned_weight) = (0u64, 0u64);
    let covered = quality.covered;
    let mut at = covered.start_unix_ns;
    let mut length = length(covered) / 2;
    while at < covered.end_unix_ns {
        let part = TimeRange {
            start_unix_ns: at,
            end_unix_ns: end_of_part(at, length).min(covered.end_unix_ns),
        };
        let rest = Limits {
            memory_bytes: limits.memory_bytes.saturating_sub(T::heap_bytes(&sum)),
            nodes: limits.nodes.saturating_mul(2),
            lines: usize::MAX,
            ..limits.clone()
        };
        let mut found = ask(part, Some(&sum), &rest)?;
        if is_capped(&found) && self::length(part) > GRAIN_NS {
            length = self::length(part) / 2;
            continue;
        }
        one_unit(&quality.unit, &found.quality.unit)?;
        if found.quality.total.weight < LIGHT {
            length = length.saturating_mul(2);
        }
        count = count.saturating_add(found.quality.total.count);
        found.data.rescale(is_time);
        let pruned = unit::rescaled(found.quality.pruned_weight);
        pruned_weight = pruned_weight.saturating_add(pruned);
        T::add(&mut sum, found.data, limits);
        at = part.end_unix_ns;
    }
    coarser.clone_into(&mut quality.unit);
    let (data, weight, folded) = T::finish(sum, limits);
    // What a part folded may be folded once more in the sum: it is one weight.
    quality.pruned_weight = pruned_weight.saturating_add(folded).min(weight);
    quality.total = Value { count, weight };
    Ok(QueryResult { data, quality })
}

fn is_capped<T: Weighed>(answer: &QueryResult<T>) -> bool {
    answer.quality.total.is_capped() || answer.data.is_capped()
}

fn length(range: TimeRange) -> i64 {
    range.end_unix_ns.saturating_sub(range.start_unix_ns)
}

/// End of the part that starts at `at`: a full hour, after about `length`.
fn end_of_part(at: i64, length: i64) -> i64 {
    let hour_of = |at: i64| at.div_euclid(GRAIN_NS).saturating_mul(GRAIN_NS);
    let next = hour_of(at).saturating_add(GRAIN_NS);
    hour_of(at.saturating_add(length)).max(next)
}

fn within(scope: &Scope, range: TimeRange) -> Scope {
    Scope {
        range,
        selector: scope.selector.clone(),
    }
}

/// Rejects a part in another unit: such samples arrived since the first query.
fn one_unit(whole: &str, part: &str) -> Result<(), StoreError> {
    if part.is_empty() || part == whole {
        return Ok(());
    }
    let (left, right) = (whole.to_owned(), part.to_owned());
    Err(MergeError::UnitMismatch { left, right }.into())
}

impl StoreQueries for Exact {
    /// Each host stays in its unit: 584 CPUs that are busy for a year fit.
    fn hosts(
        &self,
        range: TimeRange,
        limits: &Limits,
    ) -> Result<Vec<(HostRecord, HostRange)>, StoreError> {
        self.0.hosts(range, limits)
    }

    fn kept(&self) -> Result<Option<TimeRange>, StoreError> {
        self.0.kept()
    }

    fn not_kept(
        &self,
        range: TimeRange,
        labels: &[&str],
        stacks: bool,
        limits: &Limits,
    ) -> Result<Option<(String, i64)>, StoreError> {
        self.0.not_kept(range, labels, stacks, limits)
    }

    fn label_names(&self, scope: &Scope, limits: &Limits) -> Result<Vec<String>, StoreError> {
        self.0.label_names(scope, limits)
    }

    fn label_values(
        &self,
        scope: &Scope,
        name: &str,
        prefix: &str,
        limit: usize,
        limits: &Limits,
    ) -> Result<(Vec<String>, bool), StoreError> {
        self.0.label_values(scope, name, prefix, limit, limits)
    }

    fn series(
        &self,
        scope: &Scope,
        group_by: &[String],
        step_ns: u64,
        limits: &Limits,
    ) -> Result<QueryResult<TimeSeries>, StoreError> {
        exact(
            scope.range,
            limits,
            |range, sum: Option<&sums::OfLines>, limits| {
                let scope = within(scope, range);
                // Parts have the steps of the complete range, whatever the coarsest data in each
                // is.
                let step_ns = sum.map_or(step_ns, sums::OfLines::step_ns);
                self.0.series(&scope, group_by, step_ns, limits)
            },
        )
    }

    /// Sums are by step: what five million CPUs run in an hour fits.
    fn accounted(
        &self,
        scope: &Scope,
        group_by: &[String],
        step_ns: u64,
        limits: &Limits,
    ) -> Result<QueryResult<AccountedSeries>, StoreError> {
        self.0.accounted(scope, group_by, step_ns, limits)
    }

    fn profile(
        &self,
        range: TimeRange,
        query: &Query,
        limits: &Limits,
    ) -> Result<QueryResult<Profile>, StoreError> {
        exact(range, limits, |range, _, limits| {
            self.0.profile(range, query, limits)
        })
    }

    fn costs(
        &self,
        range: TimeRange,
        query: &Query,
        by: CostBy,
        limits: &Limits,
    ) -> Result<QueryResult<Costs>, StoreError> {
        exact(range, limits, |range, _, limits| {
            self.0.costs(range, query, by, limits)
        })
    }

    fn totals(
        &self,
        scope: &Scope,
        group_by: &[String],
        limits: &Limits,
    ) -> Result<QueryResult<Vec<LabelTotals>>, StoreError> {
        exact(scope.range, limits, |range, _, limits| {
            let scope = within(scope, range);
            self.0.totals(&scope, group_by, limits)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Cancel, DataQuality, Resolution};
    use profile::Quality;
    use std::cell::RefCell;
    use std::time::{Duration, Instant};

    #[test]
    fn parts_end_at_whole_hours_and_always_get_on() {
        const HOUR: i64 = GRAIN_NS;
        assert_eq!(end_of_part(0, 10 * HOUR), 10 * HOUR);
        assert_eq!(end_of_part(7, 10 * HOUR), 10 * HOUR);
        assert_eq!(end_of_part(7, 5), HOUR);
        assert_eq!(end_of_part(HOUR, 5), 2 * HOUR);
        assert_eq!(end_of_part(-7, 5), 0);
        assert_eq!(end_of_part(-7 * HOUR - 7, 0), -7 * HOUR);
        assert!(end_of_part(i64::MAX - 1, i64::MAX) > i64::MAX - HOUR);
    }

    #[test]
    fn half_of_a_part_is_shorter_than_it() {
        const HOUR: i64 = GRAIN_NS;
        for (at, to) in [
            (7, HOUR + 8),
            (0, 2 * HOUR),
            (HOUR - 1, 2 * HOUR),
            (0, i64::MAX),
        ] {
            let half = end_of_part(at, (to - at) / 2);
            assert!(at < half && half < to, "{at}..{to}: {half}");
        }
    }
    /// Unit: hours.
    const YEAR: i64 = 365 * 24;

    fn hours(from: i64, to: i64) -> TimeRange {
        TimeRange {
            start_unix_ns: from * GRAIN_NS,
            end_unix_ns: to * GRAIN_NS,
        }
    }

    fn limits() -> Limits {
        Limits {
            hosts: None,
            waiting: true,
            reports: true,
            cancel: Cancel::default(),
            deadline: Instant::now() + Duration::from_secs(60),
            memory_bytes: 1 << 20,
            nodes: 100,
            lines: 100,
        }
    }

    /// An engine's answer that weighs so much, and has one window an hour.
    fn answer(range: TimeRange, weight: u128, unit: &str) -> QueryResult<Costs> {
        let total = Value {
            count: length(range).unsigned_abs() / GRAIN_NS as u64,
            weight: u64::try_from(weight).unwrap_or(u64::MAX),
        };
        let mut data = Costs::new(CostBy::Function);
        data.add_lost(total);
        let quality = DataQuality {
            covered: range,
            resolution: Resolution {
                step_ns: 1,
                by_service: false,
            },
            hosts: 1000,
            hosts_alive: 1000,
            windows: total.count,
            windows_unmeasured: 0,
            gaps: Vec::new(),
            gaps_total: 0,
            gap_ns_total: 0,
            sampling: Quality::default(),
            total,
            unit: unit.to_owned(),
            pruned_weight: 0,
            named_later: Default::default(),
            damaged: Vec::new(),
            not_kept: Vec::new(),
        };
        QueryResult { data, quality }
    }

    /// Asks about CPUs that are all busy; returns what was asked for, too.
    fn busy(cpus: u128, range: TimeRange) -> (QueryResult<Costs>, Vec<TimeRange>) {
        let asked = RefCell::new(Vec::new());
        let found = exact(range, &limits(), |range, _, _| {
            asked.borrow_mut().push(range);
            let ns = u128::from(length(range).unsigned_abs());
            Ok(answer(range, ns * cpus, "nanoseconds"))
        });
        (found.expect("an answer"), asked.into_inner())
    }

    #[test]
    fn a_thousand_hosts_of_sixteen_cpus_have_their_year() {
        let year = hours(0, YEAR);
        let (found, asked) = busy(16_000, year);
        assert_eq!(found.quality.unit, "microseconds");
        assert!(!found.quality.total.is_capped());
        let us = length(year).unsigned_abs() / 1000;
        assert_eq!(found.quality.total.weight, us * 16_000);
        assert_eq!(found.data.total(), found.quality.total);
        assert_eq!(found.quality.total.count, YEAR as u64);
        // The complete range once, what was too long for less than once, and what fits once.
        let read: i64 = asked.iter().map(|part| length(*part)).sum();
        assert!(read < 3 * length(year), "{}", read / GRAIN_NS);
        assert!(asked.len() < 60, "{asked:?}");
    }

    #[test]
    fn what_fits_is_asked_for_once_and_stays_as_it_is() {
        let (found, asked) = busy(16, hours(0, YEAR));
        assert_eq!(
            (found.quality.unit.as_str(), asked.len()),
            ("nanoseconds", 1)
        );
        // Above what is signed, but known.
        let (found, asked) = busy(400, hours(0, YEAR));
        assert_eq!(
            (found.quality.unit.as_str(), asked.len()),
            ("microseconds", 1)
        );
        assert_eq!(
            found.quality.total.weight,
            400 * YEAR as u64 * 3_600_000_000
        );
    }

    #[test]
    fn an_hour_that_overflows_by_itself_is_told() {
        let (found, asked) = busy(6_000_000, hours(0, 3));
        assert!(found.quality.total.is_capped() && found.data.total().is_capped());
        assert_eq!(asked.len(), 4, "{asked:?}");
        let (found, _) = busy(5_000_000, hours(0, 3));
        assert_eq!(found.quality.total.weight, 5_000_000 * 3 * 3_600_000_000);
    }

    #[test]
    fn a_range_without_end_is_halved_until_it_is_found() {
        let all = TimeRange {
            start_unix_ns: 0,
            end_unix_ns: i64::MAX,
        };
        let busy = hours(500_000, 500_000 + YEAR);
        let asked = RefCell::new(0);
        let found = exact(all, &limits(), |range, _, _| {
            *asked.borrow_mut() += 1;
            let from = range.start_unix_ns.max(busy.start_unix_ns);
            let to = range.end_unix_ns.min(busy.end_unix_ns);
            let ns = to.saturating_sub(from).max(0).unsigned_abs();
            Ok(answer(range, u128::from(ns) * 16_000, "nanoseconds"))
        });
        let weight = found.expect("an answer").quality.total.weight;
        assert_eq!(weight, YEAR as u64 * 3_600_000_000 * 16_000);
        assert!(asked.into_inner() < 150);
    }

    #[test]
    fn limits_of_parts_are_what_is_left() {
        let limits = Limits {
            memory_bytes: 10_000,
            ..limits()
        };
        let left = RefCell::new(Vec::new());
        let found = exact(hours(0, YEAR), &limits, |range, _, limits| {
            left.borrow_mut()
                .push((limits.memory_bytes, limits.deadline));
            let ns = u128::from(length(range).unsigned_abs());
            Ok(answer(range, ns * 16_000, "nanoseconds"))
        });
        assert!(found.is_ok());
        let left = left.into_inner();
        assert!(
            left.iter()
                .all(|(_, deadline)| *deadline == limits.deadline)
        );
        assert!(left.iter().all(|(bytes, _)| *bytes <= limits.memory_bytes));
    }

    #[test]
    fn samples_of_another_unit_that_came_meanwhile_are_not_added() {
        let whole = hours(0, YEAR);
        let found = exact(whole, &limits(), |range, _, _| {
            let unit = if range == whole {
                "nanoseconds"
            } else {
                "cycles"
            };
            let ns = u128::from(length(range).unsigned_abs());
            Ok(answer(range, ns * 16_000, unit))
        });
        assert!(matches!(found, Err(StoreError::Units(_))));
    }
}
