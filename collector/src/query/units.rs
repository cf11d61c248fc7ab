//! The unit of each host's weights: CPU time, or cycles if a host counts those; and one unit for
//! everything that is compared or added up.
//!
//! The store has units by series, not by host. If all hosts send CPU time, as in nearly all fleets,
//! the unit they sent last is the answer; otherwise the store is asked whether the range has one
//! unit.

use super::Failed;
use crate::ingest::Hosts;
use crate::store::{
    DataQuality, HostKey, HostRange, HostRecord, Limits, Scope, StoreError, StoreQueries, TimeRange,
};
use profile::unit::{self, WEIGHT_MAX};
use profile::{Costs, Coverage, MergeError, Selector};
use std::collections::{BTreeSet, HashMap};

/// Units of hosts that did something.
pub struct Units {
    /// The unit of all hosts, when the store knows it.
    all: Option<String>,
    each: HashMap<HostKey, String>,
}

impl Units {
    /// The unit of a host; empty: not known.
    pub fn of(&self, key: &HostKey) -> String {
        let each = || self.each.get(key).cloned().unwrap_or_default();
        self.all.clone().unwrap_or_else(each)
    }

    /// How much of a host's CPU time was sampled; `None` if its weights are not known to be time.
    pub fn coverage(&self, key: &HostKey, did: &HostRange) -> Option<Coverage> {
        let is_time = did.total().weight == 0 || unit::is_time(&self.of(key));
        is_time.then(|| did.coverage())
    }

    /// The unit that all have; empty when they differ, or one is not known.
    pub fn common(&self) -> String {
        if let Some(all) = &self.all {
            return all.clone();
        }
        let mut units = self.each.values();
        let first = units.next().cloned().unwrap_or_default();
        match units.all(|unit| *unit == first) {
            true => first,
            false => String::new(),
        }
    }

    /// Weighs all hosts in the coarser unit of theirs when what they add up to needs it. Returns
    /// whether a host's own weight was too large to be known.
    pub fn fit(&mut self, found: &mut [(HostRecord, HostRange)]) -> bool {
        let sum = |of: &dyn Fn(&HostRange) -> u64| -> u128 {
            let each = found.iter().map(|(_, did)| of(did));
            each.map(u128::from).sum()
        };
        let weight = sum(&|did| did.total().weight);
        let most = weight.max(sum(&|did| did.expected_ns));
        let is_capped = found.iter().any(|(_, did)| did.total().is_capped());
        let common = self.common();
        let Some(coarser) = unit::coarser(&common).filter(|_| most > WEIGHT_MAX.into()) else {
            return is_capped || weight > u64::MAX.into();
        };
        for (_, did) in found {
            did.taken = did.taken.rescaled();
            did.lost = did.lost.rescaled();
            if unit::is_time(coarser) {
                did.expected_ns = unit::rescaled(did.expected_ns);
                did.estimated_ns = unit::rescaled(did.estimated_ns);
            }
        }
        self.all = Some(coarser.to_owned());
        is_capped
    }
}

/// Finds the units of hosts in a range.
///
/// # Errors
/// When the store fails, or the query is given up.
pub fn of_hosts(
    store: &dyn StoreQueries,
    range: TimeRange,
    found: &[(HostRecord, HostRange)],
    hosts: &Hosts,
    limits: &Limits,
) -> Result<Units, Failed> {
    let active = found.iter().filter(|(_, did)| did.total().weight > 0);
    let each: HashMap<HostKey, String> = active
        .map(|(record, _)| (record.key.clone(), hosts.unit(&record.key)))
        .collect();
    if each.values().all(|unit| unit == unit::TIME) {
        return Ok(Units { all: None, each });
    }
    let scope = Scope {
        range,
        selector: Selector::default(),
    };
    let all = match store.totals(&scope, &[], limits) {
        // The store gives each host's weights in the unit that its agent sends.
        Ok(answer) => Some(unit::base(&answer.quality.unit).0.to_owned()),
        Err(StoreError::Units(_)) => None,
        Err(error) => return Err(error.into()),
    };
    Ok(Units { all, each })
}

/// The units of the weights in a range, each the finer one.
///
/// # Errors
/// As [`of_hosts`].
pub fn in_range(
    store: &dyn StoreQueries,
    range: TimeRange,
    hosts: &Hosts,
    limits: &Limits,
) -> Result<BTreeSet<String>, Failed> {
    let scope = Scope {
        range,
        selector: Selector::default(),
    };
    let unit = match store.totals(&scope, &[], limits) {
        Ok(answer) if answer.quality.total == profile::Value::default() => {
            return Ok(BTreeSet::new());
        }
        Ok(answer) => answer.quality.unit,
        Err(StoreError::Units(_)) => String::new(),
        Err(error) => return Err(error.into()),
    };
    if !unit.is_empty() {
        return Ok(BTreeSet::from([unit::base(&unit).0.to_owned()]));
    }
    // Several, which no sum has in common: as the agents say.
    let found = store.hosts(range, limits)?;
    let active = found.iter().filter(|(_, did)| did.total().weight > 0);
    let units = active.map(|(record, _)| hosts.unit(&record.key));
    Ok(units.filter(|unit| !unit.is_empty()).collect())
}

/// Gives both sides one unit, the coarser of both where they have one in common, and refuses to
/// compare weights of different kinds. A side without samples has none.
///
/// # Errors
/// When their units have nothing in common.
pub fn equalize(
    before: &mut (Costs, DataQuality),
    after: &mut (Costs, DataQuality),
) -> Result<(), StoreError> {
    let (left, right) = (before.1.unit.clone(), after.1.unit.clone());
    if left.is_empty() || right.is_empty() || left == right {
        return Ok(());
    }
    let (finer, unit) = match (unit::coarser(&left), unit::coarser(&right)) {
        (Some(coarser), _) if coarser == right => (before, coarser),
        (_, Some(coarser)) if coarser == left => (after, coarser),
        _ => return Err(MergeError::UnitMismatch { left, right }.into()),
    };
    let (costs, quality) = finer;
    costs.rescale();
    unit.clone_into(&mut quality.unit);
    quality.total = quality.total.rescaled();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::HostFacts;
    use profile::Value;

    fn found(weights: &[u64]) -> Vec<(HostRecord, HostRange)> {
        let hosts = weights.iter().enumerate().map(|(at, &weight)| {
            let key = HostKey {
                host_id: format!("h{at}"),
                boot_id: [0; 16],
            };
            let record = HostRecord {
                key,
                facts: HostFacts::default(),
                first_seen_unix_ns: 0,
                last_seen_unix_ns: 0,
                clock_ahead_ns: 0,
            };
            let did = HostRange {
                taken: Value { count: 1, weight },
                expected_ns: weight,
                ..HostRange::default()
            };
            (record, did)
        });
        hosts.collect()
    }

    /// The unit of all, weights and what is expected by host, and whether one is not known.
    fn fitted(unit: &str, weights: &[u64]) -> (String, Vec<(u64, u64)>, bool) {
        let mut found = found(weights);
        let each = found
            .iter()
            .map(|(record, _)| (record.key.clone(), unit.to_owned()));
        let mut units = Units {
            all: None,
            each: each.collect(),
        };
        let is_capped = units.fit(&mut found);
        let both = |(_, did): &(HostRecord, HostRange)| (did.taken.weight, did.expected_ns);
        (units.common(), found.iter().map(both).collect(), is_capped)
    }

    #[test]
    fn hosts_that_fit_together_stay_in_their_unit() {
        let (unit, rows, is_capped) = fitted("nanoseconds", &[5, WEIGHT_MAX - 5]);
        assert_eq!((unit.as_str(), is_capped), ("nanoseconds", false));
        assert_eq!(rows[0], (5, 5));
    }

    #[test]
    fn hosts_that_do_not_are_all_told_in_the_coarser_one() {
        let (unit, rows, is_capped) = fitted("nanoseconds", &[1500, WEIGHT_MAX]);
        assert_eq!((unit.as_str(), is_capped), ("microseconds", false));
        let most = 9_223_372_036_854_776;
        assert_eq!(rows, [(2, 2), (most, most)]);
        let (unit, rows, _) = fitted("cycles", &[1500, WEIGHT_MAX]);
        assert_eq!((unit.as_str(), rows[0]), ("kilocycles", (2, 1500)));
    }

    #[test]
    fn a_host_whose_own_weight_is_not_known_is_told() {
        assert!(fitted("nanoseconds", &[5, u64::MAX]).2);
        assert!(fitted("page-faults", &[u64::MAX / 2, u64::MAX / 2, 9]).2);
    }
    fn side(unit: &str, weight: u64) -> (Costs, DataQuality) {
        let mut costs = Costs::new(profile::CostBy::Function);
        let value = Value { count: 1, weight };
        costs.add_lost(value);
        let quality = DataQuality {
            covered: TimeRange {
                start_unix_ns: 0,
                end_unix_ns: 1,
            },
            resolution: crate::store::Resolution {
                step_ns: 1,
                by_service: false,
            },
            hosts: 0,
            hosts_alive: 0,
            windows: 0,
            windows_unmeasured: 0,
            gaps: Vec::new(),
            gaps_total: 0,
            gap_ns_total: 0,
            sampling: profile::Quality::default(),
            total: value,
            unit: unit.to_owned(),
            pruned_weight: 0,
            named_later: Default::default(),
            damaged: Vec::new(),
            not_kept: Vec::new(),
        };
        (costs, quality)
    }

    /// Units and weights of both sides, or why they cannot be compared.
    fn equal(before: (&str, u64), after: (&str, u64)) -> Result<[(String, u64); 2], String> {
        let (mut before, mut after) = (side(before.0, before.1), side(after.0, after.1));
        equalize(&mut before, &mut after).map_err(|error| error.to_string())?;
        Ok([before, after].map(|(costs, quality)| {
            assert_eq!(costs.total(), quality.total);
            (quality.unit, quality.total.weight)
        }))
    }

    #[test]
    fn sides_of_a_comparison_get_the_coarser_of_their_units() {
        let of = |unit: &str, weight| (unit.to_owned(), weight);
        let coarse = [of("microseconds", 8), of("microseconds", 5)];
        let found = equal(("nanoseconds", 7600), ("microseconds", 5));
        assert_eq!(found, Ok(coarse.clone()));
        let found = equal(("microseconds", 8), ("nanoseconds", 5100));
        assert_eq!(found, Ok(coarse));
        let found = equal(("nanoseconds", 5100), ("", 0));
        assert_eq!(found, Ok([of("nanoseconds", 5100), of("", 0)]));
        let refused = equal(("microseconds", 5), ("kilocycles", 5)).expect_err("no one unit");
        assert!(refused.contains("microseconds") && refused.contains("kilocycles"));
    }
}
