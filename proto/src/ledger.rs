//! Converts ledgers to wire form and back.

use crate::agent;
use profile::{LedgerRow, Throttling};

impl From<LedgerRow> for agent::LedgerRow {
    fn from(row: LedgerRow) -> Self {
        let missed = row.missed();
        let [
            slice,
            unit,
            container,
            runtime,
            pod_uid,
            container_name,
            image,
            pod,
            namespace,
        ] = row.labels;
        agent::LedgerRow {
            path: row.path,
            slice,
            unit,
            container,
            runtime,
            pod_uid,
            container_name,
            image,
            pod,
            namespace,
            own: Some(row.own.into()),
            total: Some(row.total.into()),
            expected: (row.expected.ns > 0).then(|| row.expected.into()),
            missed,
        }
    }
}

impl From<LedgerRow> for agent::Cgroup {
    /// What was lost is part of every sum.
    fn from(row: LedgerRow) -> Self {
        let [
            slice,
            unit,
            container,
            runtime,
            pod_uid,
            container_name,
            image,
            pod,
            namespace,
        ] = row.labels;
        agent::Cgroup {
            path: row.path,
            slice,
            unit,
            container,
            runtime,
            pod_uid,
            container_name,
            image,
            pod,
            namespace,
            self_count: row.own.taken.saturating_add(row.own.lost),
            self_weight: row.own.taken_weight.saturating_add(row.own.lost_weight),
            total_count: row.total.taken.saturating_add(row.total.lost),
            total_weight: row.total.taken_weight.saturating_add(row.total.lost_weight),
            total_lost_count: row.total.lost,
            total_lost_weight: row.total.lost_weight,
            expected_ns: row.expected.ns,
            estimated_ns: row.expected.estimated_ns,
            throttling: row.throttling.share().map(|_| row.throttling.into()),
        }
    }
}

/// Returns the tree of cgroups with CPU time as a flat list: every cgroup with samples and all its
/// parents, ordered by path, with totals over what is below. It has at most `limit` entries; the
/// second value is how many more there are.
///
/// If there are too many, those with the least CPU time are left out. A parent never has less than
/// its children, so the tree stays complete. Samples with an unknown cgroup are an entry with an
/// empty path.
pub fn cgroups(rows: Vec<LedgerRow>, limit: usize) -> (Vec<agent::Cgroup>, usize) {
    let mut list: Vec<agent::Cgroup> = rows
        .into_iter()
        .filter(|row| row.total.taken > 0 || row.total.lost > 0)
        .map(Into::into)
        .collect();
    let left_out = list.len().saturating_sub(limit);
    if left_out > 0 {
        // Stable: of equal totals the parent, which has the smaller path, stays before the child.
        list.sort_by_key(|cgroup| std::cmp::Reverse((cgroup.total_weight, cgroup.total_count)));
        list.truncate(limit);
        list.sort_by(|a, b| a.path.cmp(&b.path));
    }
    (list, left_out)
}

impl From<agent::LedgerRow> for LedgerRow {
    fn from(row: agent::LedgerRow) -> Self {
        LedgerRow {
            path: row.path,
            labels: [
                row.slice,
                row.unit,
                row.container,
                row.runtime,
                row.pod_uid,
                row.container_name,
                row.image,
                row.pod,
                row.namespace,
            ],
            own: row.own.unwrap_or_default().into(),
            total: row.total.unwrap_or_default().into(),
            expected: row.expected.unwrap_or_default().into(),
            throttling: Throttling::default(),
        }
    }
}

impl From<Throttling> for agent::Throttling {
    fn from(of: Throttling) -> Self {
        agent::Throttling {
            throttled_ns: of.ns,
            used_ns: of.used_ns,
            limit_millicores: of.limit_millicores,
        }
    }
}

impl From<agent::Throttling> for Throttling {
    fn from(of: agent::Throttling) -> Self {
        Throttling {
            ns: of.throttled_ns,
            used_ns: of.used_ns,
            limit_millicores: of.limit_millicores,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profile::key;

    #[test]
    fn labels_stand_under_their_own_names() {
        let names = &key::OF_CGROUP[1..];
        let labels = std::array::from_fn(|at| names[at].to_owned());
        let row = LedgerRow {
            labels,
            ..LedgerRow::default()
        };
        let ledger = agent::LedgerRow::from(row.clone());
        let cgroup = agent::Cgroup::from(row.clone());
        for text in [format!("{ledger:?}"), format!("{cgroup:?}")] {
            for name in names {
                assert!(text.contains(&format!(" {name}: \"{name}\"")), "{text}");
            }
        }
        assert_eq!(LedgerRow::from(ledger).labels, row.labels);
    }
}
