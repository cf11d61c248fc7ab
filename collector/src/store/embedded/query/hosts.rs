//! Hosts, and what they did in a range.

use super::super::EmbeddedStore;
use super::plan::covered;
use super::quality::activity;
use crate::store::query::QueryBudget;
use crate::store::{HostRange, HostRecord, Limits, StoreError, TimeRange};
use crate::sync::lock;
use ::profile::Selector;

/// See [`StoreQueries::hosts`](crate::store::StoreQueries::hosts).
pub fn hosts(
    store: &EmbeddedStore,
    range: TimeRange,
    limits: &Limits,
) -> Result<Vec<(HostRecord, HostRange)>, StoreError> {
    let mut budget = QueryBudget::new(limits);
    budget.check()?;
    let range = covered(store, range);
    let fleet = activity(store, range, &Selector::default(), &mut budget)?;
    let mut did = fleet.by_host(range, &mut budget)?;
    let book = lock(&store.hosts);
    let records = book.records.values();
    let found = records.map(|record| {
        let of_host = did.remove(&record.key);
        (record.clone(), of_host.unwrap_or_default())
    });
    Ok(found.collect())
}
