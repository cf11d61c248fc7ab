//! Finds which functions of a changed service changed.

use super::Row;
use crate::query::Failed;
use crate::query::compare::compare;
use crate::query::request::invalid;
use crate::store::{Limits, StoreQueries, TimeRange};
use profile::{CostBy, GroupBy, LabelMatcher, MatchOp, Query, Selector, key, unit};
use proto::collector as wire;

/// Most time of each side that is looked at: the last of it. Unit: nanoseconds.
const LOOKED_AT_NS: i64 = 3_600_000_000_000;

/// Most functions of a service.
const FUNCTIONS_MAX: usize = 5;

/// Functions with a smaller change of cores are left out.
const CORES_MIN: f64 = 0.02;

/// Functions of a service with a significant change of their share of it, largest change first.
/// `since` and `until` of its change are times of `now`.
pub fn of_service(
    store: &dyn StoreQueries,
    row: &Row,
    (label, selector): (&str, &Selector),
    (baseline, now): (TimeRange, TimeRange),
    limits: &Limits,
) -> Result<Vec<wire::OverviewFunction>, Failed> {
    let mut matchers = selector.matchers().to_vec();
    matchers.push(LabelMatcher::new(label, MatchOp::Equal, &*row.name).map_err(invalid)?);
    // What changed on few hosts is lost among the others.
    if !row.changed_hosts.is_empty() && row.changed_hosts.len() * 2 <= row.hosts {
        let hosts = row.changed_hosts.iter().take(HOSTS_MAX);
        let hosts = LabelMatcher::one_of(key::HOST, hosts.map(String::as_str));
        matchers.push(hosts.map_err(invalid)?);
    }
    let selector = Selector::new(matchers).map_err(invalid)?;
    let query = Query::new(selector, Vec::new(), GroupBy::Keys(Vec::new())).map_err(invalid)?;
    let ranges = [last(baseline), last(now)];
    let compared = compare(
        store,
        ranges,
        &[query.clone(), query],
        CostBy::Function,
        limits,
    )?;
    let diff = &compared.diff;
    let seconds = |range: TimeRange| {
        let ns = range.end_unix_ns.saturating_sub(range.start_unix_ns);
        ns.max(1) as f64 / 1e9
    };
    let unit_s = unit::time_unit_ns(&compared.after.0.unit).unwrap_or(0) as f64 / 1e9;
    // Cores of what was compared: the sums over the time they are of.
    let whole = [
        diff.totals.before.weight as f64 * unit_s / seconds(ranges[0]),
        diff.totals.after.weight as f64 * unit_s / seconds(ranges[1]),
    ];
    let mut rows = Vec::new();
    for (function, verdict) in diff.functions.iter().zip(&compared.verdicts) {
        let share = |weight: u64, of: u64| weight as f64 / (of.max(1)) as f64;
        let before = share(function.own.before.weight, diff.totals.before.weight) * whole[0];
        let after = share(function.own.after.weight, diff.totals.after.weight) * whole[1];
        if !verdict.is_significant || (after - before).abs() < CORES_MIN {
            continue;
        }
        rows.push(wire::OverviewFunction {
            service: row.name.clone(),
            name: function.function.clone(),
            module: function.module.clone(),
            kind: u32::from(function.kind as u8),
            cores: after,
            baseline_cores: before,
            error: verdict.std_error * whole[0].max(whole[1]),
            significant: true,
            appeared: function.is_new(),
            vanished: function.is_vanished(),
        });
    }
    let size = |row: &wire::OverviewFunction| (row.cores - row.baseline_cores).abs();
    rows.sort_by(|a, b| size(b).total_cmp(&size(a)));
    rows.truncate(FUNCTIONS_MAX);
    Ok(rows)
}

/// Most hosts that a service's functions are asked of by name.
const HOSTS_MAX: usize = 20;

/// The end of a range.
fn last(range: TimeRange) -> TimeRange {
    let from = range.end_unix_ns.saturating_sub(LOOKED_AT_NS);
    TimeRange {
        start_unix_ns: range.start_unix_ns.max(from),
        ..range
    }
}
