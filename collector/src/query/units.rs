//! In which unit the weights of each host are: CPU time, or cycles of hosts that count those.
//!
//! The store keeps units by series, not by host. Where all hosts send CPU time, as nearly all fleets do,
//! what they sent last is the answer; otherwise the store is asked whether the range has one unit.

use super::Failed;
use crate::ingest::Hosts;
use crate::store::{HostKey, HostRange, HostRecord, Limits, Scope, Store, StoreError, TimeRange};
use profile::{Coverage, Selector};
use std::collections::HashMap;

/// What nearly all hosts send.
const CPU_TIME: &str = "nanoseconds";

/// Units of hosts that did something.
pub struct Units {
    /// Of all of them, where the store says so.
    all: Option<String>,
    each: HashMap<HostKey, String>,
}

impl Units {
    /// The unit of a host; empty: not known.
    pub fn of(&self, key: &HostKey) -> String {
        let each = || self.each.get(key).cloned().unwrap_or_default();
        self.all.clone().unwrap_or_else(each)
    }

    /// What of the CPU time of a host was sampled; `None` where its weights are not known to be
    /// time.
    pub fn coverage(&self, key: &HostKey, did: &HostRange) -> Option<Coverage> {
        let is_time = did.total().weight == 0 || self.of(key) == CPU_TIME;
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
}

/// Finds the units of hosts in a range.
///
/// # Errors
/// When the store fails, or the query is given up.
pub fn of_hosts(
    store: &dyn Store,
    range: TimeRange,
    found: &[(HostRecord, HostRange)],
    hosts: &Hosts,
    limits: &Limits,
) -> Result<Units, Failed> {
    let active = found.iter().filter(|(_, did)| did.total().weight > 0);
    let each: HashMap<HostKey, String> = active
        .map(|(record, _)| (record.key.clone(), hosts.unit(&record.key)))
        .collect();
    if each.values().all(|unit| unit == CPU_TIME) {
        return Ok(Units { all: None, each });
    }
    let scope = Scope {
        range,
        selector: Selector::default(),
    };
    let all = match store.totals(&scope, &[], limits) {
        Ok(answer) => Some(answer.quality.unit),
        Err(StoreError::Units(_)) => None,
        Err(error) => return Err(error.into()),
    };
    Ok(Units { all, each })
}
