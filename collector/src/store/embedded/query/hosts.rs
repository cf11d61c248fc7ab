//! Hosts, and what they did in a range.

use super::super::EmbeddedStore;
use super::Guard;
use super::plan::covered;
use super::quality::Fleet;
use crate::store::{HostRange, HostRecord, Limits, StoreError, TimeRange};
use crate::sync::lock;
use ::profile::{Quality, Selector};

/// See [`StoreQueries::hosts`](crate::store::StoreQueries::hosts).
pub fn hosts(
    store: &EmbeddedStore,
    range: TimeRange,
    limits: &Limits,
) -> Result<Vec<(HostRecord, HostRange)>, StoreError> {
    store.check_open()?;
    let mut guard = Guard::new(limits);
    guard.check()?;
    let range = covered(store, range);
    let mut fleet = Fleet::read(store, range, &Selector::default(), &mut guard)?;
    let did = fleet.by_host(range);
    let book = lock(&store.hosts);
    let records = book.records.values();
    Ok(records
        .map(|record| {
            let of = did.get(&record.key).map(|(sum, gap_ns)| HostRange {
                windows: sum.windows,
                windows_unmeasured: sum.unmeasured,
                taken: sum.sum.taken,
                lost: sum.sum.lost,
                sampling: Quality {
                    idle: sum.quality.idle,
                    lost: sum.quality.lost,
                    throttled: sum.quality.throttled,
                    malformed: sum.quality.malformed,
                    reduced: sum.quality.reduced,
                    lost_late: sum.quality.lost_late,
                    taken: sum.sum.taken.count,
                    lost_samples: sum.sum.lost.count,
                    ..Quality::default()
                },
                expected_ns: sum.expected_ns,
                estimated_ns: sum.estimated_ns,
                gap_ns: *gap_ns,
            });
            (record.clone(), of.unwrap_or_default())
        })
        .collect())
}
