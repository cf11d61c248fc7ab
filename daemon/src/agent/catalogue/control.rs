//! Captures that the collector asks for, as metrics.

use super::{Agent, one};
use control::ControlCounts;
use metrics::{Kind, Metric, Registry};
use std::sync::Arc;

/// Registers them.
pub(super) fn register(registry: &Registry, agent: &Arc<Agent>) {
    type Pick = fn(&ControlCounts) -> &Metric;
    let metrics: [(&str, &str, Kind, Pick); 6] = [
        (
            "fleetprof_control_attending",
            "1 while the collector can ask for captures.",
            Kind::Gauge,
            |counts| &counts.attending,
        ),
        (
            "fleetprof_control_connections_total",
            "Times the collector welcomed the agent for captures.",
            Kind::Counter,
            |counts| &counts.connections,
        ),
        (
            "fleetprof_control_captures_total",
            "Captures started for the collector.",
            Kind::Counter,
            |counts| &counts.captures,
        ),
        (
            "fleetprof_control_refused_total",
            "Captures that the collector asked for and did not get.",
            Kind::Counter,
            |counts| &counts.refused,
        ),
        (
            "fleetprof_control_given_up_total",
            "Captures of the collector that ended because it dropped them or went away.",
            Kind::Counter,
            |counts| &counts.given_up,
        ),
        (
            "fleetprof_control_progress_skipped_total",
            "Reports of progress left out because the collector was slow.",
            Kind::Counter,
            |counts| &counts.skipped,
        ),
    ];
    for (name, help, kind, pick) in metrics {
        one(registry, agent, name, help, kind, move |agent| {
            let control = agent.uplink.get().and_then(|uplink| uplink.control.get());
            control.map_or(0, |control| pick(control.counts()).get())
        });
    }
}
