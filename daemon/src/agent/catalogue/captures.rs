//! Captures on demand, as metrics.

use super::Agent;
use capture::CaptureCounts;
use metrics::{Family, gather};
use std::sync::atomic::{AtomicU64, Ordering};

/// Reads them.
pub(super) fn families(agent: &Agent) -> impl Iterator<Item = Family> {
    gather(CAPTURES, agent)
}

metrics::rows! { CAPTURES: Agent;
    /// Captures that run now.
    Gauge fleetprof_captures_running = |agent| agent.captures.get().map_or(0, |all| all.running());
    /// Memory of the samples of captures that run.
    Gauge fleetprof_captures_bytes = |agent| agent.captures_bytes() as u64;
    /// Times a capture went on with a cgroup that was removed and made again.
    Counter fleetprof_captures_followed_total = |agent| count(agent, |counts| &counts.followed);
    /// Times a capture's event happened too often for its period and went on with a longer one.
    Counter fleetprof_captures_slowed_total = |agent| count(agent, |counts| &counts.slowed);
    /// Captures of waits that ended because threads switched more often than captures.switches_max
    /// allows.
    Counter fleetprof_captures_excessive_total = |agent| count(agent, |counts| &counts.excessive);
    /// Samples that captures took which ended.
    Counter fleetprof_captures_samples_total = |agent| count(agent, |counts| &counts.samples);
    /// CPU time of the threads that sample and name that captures took; not governed.
    CounterNs fleetprof_captures_cpu_seconds_total = |agent| agent.captures_cpu_ns();
    /// Captures asked for, by what became of them; those that run are not in it.
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
