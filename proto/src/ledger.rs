//! Carries ledgers to wire form and back.

use crate::agent;
use profile::LedgerRow;

impl From<LedgerRow> for agent::LedgerRow {
    fn from(row: LedgerRow) -> Self {
        let missed = row.missed();
        let [slice, unit, container, runtime, pod_uid] = row.labels;
        agent::LedgerRow {
            path: row.path,
            slice,
            unit,
            container,
            runtime,
            pod_uid,
            own: Some(row.own.into()),
            total: Some(row.total.into()),
            expected: (row.expected.ns > 0).then(|| row.expected.into()),
            missed,
        }
    }
}

impl From<agent::LedgerRow> for LedgerRow {
    fn from(row: agent::LedgerRow) -> Self {
        LedgerRow {
            path: row.path,
            labels: [row.slice, row.unit, row.container, row.runtime, row.pod_uid],
            own: row.own.unwrap_or_default().into(),
            total: row.total.unwrap_or_default().into(),
            expected: row.expected.unwrap_or_default().into(),
        }
    }
}
