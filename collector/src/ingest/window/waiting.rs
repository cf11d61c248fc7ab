//! What a window says of waiting for CPUs: how CPU limits held its cgroups back, and the pressure
//! of its host.

use super::fault::Fault;
use crate::store::TimeRange;
use profile::Pressure;
use proto::collector as wire;
use std::collections::{HashMap, HashSet};

/// How the accounts of a window were throttled, by their places.
pub(super) struct Throttled {
    known: bool,
    unknown: HashSet<u32>,
    times: HashMap<u32, (u64, u64)>,
}

impl Throttled {
    /// From the columns of a window with so many accounts.
    ///
    /// # Errors
    /// When the columns do not fit each other.
    pub(super) fn of(facts: &wire::WindowFacts, accounts: usize) -> Result<Throttled, Fault> {
        let places = &facts.throttled_accounts;
        let is_odd = facts.throttled_ns.len() != places.len()
            || facts.throttled_limits.len() != places.len()
            || places.len() > accounts
            || facts.throttling_unknown.len() > accounts
            || places.iter().any(|&place| place as usize >= accounts);
        if is_odd {
            return Err(Fault::Columns {
                table: "throttled accounts",
            });
        }
        let times = facts.throttled_ns.iter().zip(&facts.throttled_limits);
        let times = times.map(|(&ns, &limit)| (ns, limit));
        Ok(Throttled {
            known: facts.throttling_known,
            unknown: facts.throttling_unknown.iter().copied().collect(),
            times: places.iter().copied().zip(times).collect(),
        })
    }

    /// For how long an account was throttled, if that is known, and by which limit.
    pub(super) fn at(&self, place: usize) -> (Option<u64>, u64) {
        let place = place as u32;
        if !self.known || self.unknown.contains(&place) {
            return (None, 0);
        }
        let (ns, limit) = self.times.get(&place).copied().unwrap_or_default();
        (Some(ns), limit)
    }
}

/// The pressure of a window: no task waits for longer than it lasts.
pub(super) fn pressure(of: wire::Pressure, range: TimeRange) -> Pressure {
    let most = range.end_unix_ns.abs_diff(range.start_unix_ns);
    Pressure {
        cpu_ns: of.cpu_ns.min(most),
        memory_ns: of.memory_ns.min(most),
        io_ns: of.io_ns.min(most),
    }
}
