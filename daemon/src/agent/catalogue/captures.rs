//! Captures on demand, as metrics.

use super::{Agent, one};
use capture::Counts;
use metrics::{Kind, Registry};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Registers them.
pub(super) fn register(registry: &Registry, agent: &Arc<Agent>) {
    type Read = fn(&Agent) -> u64;
    let metrics: [(&str, &str, Kind, Read); 7] = [
        (
            "fleetprof_captures_running",
            "Captures that run now.",
            Kind::Gauge,
            |agent| agent.captures.get().map_or(0, |all| all.running()),
        ),
        (
            "fleetprof_captures_bytes",
            "Memory of the samples of captures that run.",
            Kind::Gauge,
            |agent| agent.captures_bytes() as u64,
        ),
        (
            "fleetprof_captures_followed_total",
            "Times a capture went on with a cgroup that was removed and made again.",
            Kind::Counter,
            |agent| count(agent, |counts| &counts.followed),
        ),
        (
            "fleetprof_captures_slowed_total",
            "Times a capture's event happened too often for its period and went on with a longer one.",
            Kind::Counter,
            |agent| count(agent, |counts| &counts.slowed),
        ),
        (
            "fleetprof_captures_excessive_total",
            "Captures of waits that ended because threads switched more often than captures.switches_max allows.",
            Kind::Counter,
            |agent| count(agent, |counts| &counts.excessive),
        ),
        (
            "fleetprof_captures_samples_total",
            "Samples that captures took which ended.",
            Kind::Counter,
            |agent| count(agent, |counts| &counts.samples),
        ),
        (
            "fleetprof_captures_cpu_seconds_total",
            "CPU time of the threads that sample and name that captures took; not governed.",
            Kind::CounterNs,
            |agent| agent.captures_cpu_ns(),
        ),
    ];
    for (name, help, kind, read) in metrics {
        one(registry, agent, name, help, kind, read);
    }
    type Pick = fn(&Counts) -> &AtomicU64;
    let by_outcome: [(&str, Pick); 5] = [
        ("complete", |counts| &counts.complete),
        ("cancelled", |counts| &counts.cancelled),
        ("failed", |counts| &counts.failed),
        ("refused_limit", |counts| &counts.refused_limit),
        ("refused_request", |counts| &counts.refused_request),
    ];
    let weak = Arc::downgrade(agent);
    registry.read(
        "fleetprof_captures_total",
        "Captures asked for, by what became of them; those that run are not in it.",
        Kind::Counter,
        move || {
            let Some(agent) = weak.upgrade() else {
                return Vec::new();
            };
            let outcomes = by_outcome.iter();
            outcomes
                .map(|&(word, pick)| (vec![("outcome", word.to_owned())], count(&agent, pick)))
                .collect()
        },
    );
}

fn count(agent: &Agent, pick: fn(&Counts) -> &AtomicU64) -> u64 {
    let captures = agent.captures.get();
    captures.map_or(0, |captures| pick(&captures.counts).load(Ordering::Relaxed))
}
