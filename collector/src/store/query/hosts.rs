//! Hosts, and their activity in a range.

use super::{QueryBudget, WindowSource};
use crate::store::{HostRange, HostRecord, Limits, Scope, StoreError, TimeRange};
use profile::Selector;

/// See [`StoreQueries::hosts`](crate::store::StoreQueries::hosts).
pub(super) fn hosts(
    source: &impl WindowSource,
    range: TimeRange,
    limits: &Limits,
) -> Result<Vec<(HostRecord, HostRange)>, StoreError> {
    let mut budget = QueryBudget::new(limits);
    budget.check()?;
    let all = Scope {
        range: source.covered(range),
        selector: Selector::default(),
    };
    let fleet = source.activity(&all, &mut budget)?;
    let mut did = fleet.by_host(all.range, &mut budget)?;
    let records = source.host_records(&mut budget)?.into_iter();
    let found = records.map(|record| {
        let of_host = did.remove(&record.key);
        (record, of_host.unwrap_or_default())
    });
    Ok(found.collect())
}
