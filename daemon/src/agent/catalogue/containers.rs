//! What asking container runtimes came to, as metrics.

use super::{Agent, one};
use cgroup::containers::{Cause, ProviderCounts};
use metrics::{Kind, Registry};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Registers them.
pub(super) fn register(registry: &Registry, agent: &Arc<Agent>) {
    type Pick = fn(&ProviderCounts) -> &AtomicU64;
    let metrics: [(&str, &str, Kind, Pick); 8] = [
        (
            "fleetprof_containers_asked_total",
            "Containers whose runtime was asked for name, image and pod.",
            Kind::Counter,
            |c| &c.asked,
        ),
        (
            "fleetprof_containers_found_total",
            "Of them, those that a runtime knew.",
            Kind::Counter,
            |c| &c.found,
        ),
        (
            "fleetprof_containers_unknown_total",
            "Of them, those that no runtime could tell of; asked for again later.",
            Kind::Counter,
            |c| &c.unknown,
        ),
        (
            "fleetprof_containers_late_total",
            "Containers whose first samples were recorded before their runtime answered.",
            Kind::Counter,
            |c| &c.late,
        ),
        (
            "fleetprof_containers_deferred_total",
            "Times a container was not asked for because there were too many new ones.",
            Kind::Counter,
            |c| &c.deferred,
        ),
        (
            "fleetprof_containers_evicted_total",
            "Containers forgotten because too many were known.",
            Kind::Counter,
            |c| &c.evicted,
        ),
        (
            "fleetprof_containers_labels_cut_total",
            "Labels of containers left out because there were too many bytes of them.",
            Kind::Counter,
            |c| &c.labels_cut,
        ),
        (
            "fleetprof_containers_known",
            "Containers whose name or image is known now.",
            Kind::Gauge,
            |c| &c.known,
        ),
    ];
    for (name, help, kind, pick) in metrics {
        one(registry, agent, name, help, kind, move |agent| {
            pick(&agent.counters.containers).load(Ordering::Relaxed)
        });
    }
    let weak = Arc::downgrade(agent);
    registry.read(
        "fleetprof_containers_failed_total",
        "Calls to container runtimes that failed, by cause.",
        Kind::Counter,
        move || {
            let Some(agent) = weak.upgrade() else {
                return Vec::new();
            };
            let failed = Cause::ALL.iter().zip(&agent.counters.containers.failed);
            failed
                .map(|(cause, count)| {
                    let value = count.load(Ordering::Relaxed);
                    (vec![("cause", cause.word().to_owned())], value)
                })
                .collect()
        },
    );
}
