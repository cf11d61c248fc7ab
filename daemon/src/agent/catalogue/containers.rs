//! Metrics of queries to container runtimes.

use cgroup::containers::{Cause, ProviderCounts};
use metrics::{Family, gather};

/// Reads them.
pub(super) fn families(counts: &ProviderCounts) -> impl Iterator<Item = Family> {
    gather(CONTAINERS, counts)
}

metrics::rows! { CONTAINERS: ProviderCounts;
    /// Containers for which the daemon asked a runtime for name, image and pod.
    Counter fleetprof_containers_asked_total = |c| &c.asked;
    /// Containers that a runtime knew.
    Counter fleetprof_containers_found_total = |c| &c.found;
    /// Containers that no runtime knew; the daemon asks again later.
    Counter fleetprof_containers_unknown_total = |c| &c.unknown;
    /// Containers whose first samples were recorded before their runtime answered.
    Counter fleetprof_containers_late_total = |c| &c.late;
    /// Times the daemon did not ask for a container because there were too many new ones.
    Counter fleetprof_containers_deferred_total = |c| &c.deferred;
    /// Containers dropped from the cache because there were too many.
    Counter fleetprof_containers_evicted_total = |c| &c.evicted;
    /// Labels of containers dropped because they were too large.
    Counter fleetprof_containers_labels_cut_total = |c| &c.labels_cut;
    /// Containers with a known name or image.
    Gauge fleetprof_containers_known = |c| &c.known;
    /// Calls to container runtimes that failed, by cause.
    Counter fleetprof_containers_failed_total{cause} = |c|
        Cause::ALL.iter().map(|cause| cause.word()).zip(&c.failed);
}
