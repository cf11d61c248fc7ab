//! Metrics of captures on demand.

use super::Agent;
use capture::CaptureCounts;
use metrics::{Family, gather};
use std::sync::atomic::{AtomicU64, Ordering};

/// Reads them.
pub(super) fn families(agent: &Agent) -> impl Iterator<Item = Family> {
    gather(CAPTURES, agent)
}

metrics::rows! { CAPTURES: Agent;
    /// Captures running now.
    Gauge fleetprof_captures_running = |agent| agent.captures.get().map_or(0, |all| all.running());
    /// Memory for samples of running captures.
    Gauge fleetprof_captures_bytes = |agent| agent.captures_bytes() as u64;
    /// Times a capture followed a cgroup that was removed and created again.
    Counter fleetprof_captures_followed_total = |agent| count(agent, |counts| &counts.followed);
    /// Times a capture raised its period because its event happened too often.
    Counter fleetprof_captures_slowed_total = |agent| count(agent, |counts| &counts.slowed);
    /// Off-CPU captures that ended early because threads switched more often than
    /// captures.switches_max allows.
    Counter fleetprof_captures_excessive_total = |agent| count(agent, |counts| &counts.excessive);
    /// Samples taken by captures that have ended.
    Counter fleetprof_captures_samples_total = |agent| count(agent, |counts| &counts.samples);
    /// CPU time that captures used in the sampling and naming threads; no budget covers it.
    CounterNs fleetprof_captures_cpu_seconds_total = |agent| agent.captures_cpu_ns();
    /// Captures by outcome, without those still running.
    Counter fleetprof_captures_total{outcome} = |agent| [
        ("complete", count(agent, |counts| &counts.complete)),
        ("cancelled", count(agent, |counts| &counts.cancelled)),
        ("failed", count(agent, |counts| &counts.failed)),
        ("refused_limit", count(agent, |counts| &counts.refused_limit)),
        ("refused_request", count(agent, |counts| &counts.refused_request)),
    ];
}

fn count(agent: &Agent, pick: fn(&CaptureCounts) -> &AtomicU64) -> u64 {
    let captures = agent.captures.get();
    captures.map_or(0, |captures| pick(&captures.counts).load(Ordering::Relaxed))
}
