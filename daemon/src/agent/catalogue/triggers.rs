//! Triggers and pins, as metrics.

use super::{Agent, one};
use metrics::{Kind, Registry};
use pins::Counts;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use triggers::Tally;

/// Registers them.
pub(super) fn register(registry: &Registry, agent: &Arc<Agent>) {
    type Pick = fn(&Counts) -> &AtomicU64;
    let counters: [(&str, &str, Pick); 8] = [
        (
            "fleetprof_pins_opened_total",
            "Times that minutes of the recorder were pinned.",
            |c| &c.opened,
        ),
        (
            "fleetprof_pins_dropped_total",
            "Pins removed because recorder.pins_mib was used up, the oldest of the trigger that takes most first.",
            |c| &c.dropped,
        ),
        (
            "fleetprof_pins_cut_total",
            "Pins that ended before their time: over their share or recorder.pins_mib, or the disk took nothing for too long.",
            |c| &c.cut,
        ),
        (
            "fleetprof_pins_damaged_total",
            "Pins that could not be read, or not to their end.",
            |c| &c.damaged,
        ),
        (
            "fleetprof_pins_failed_writes_total",
            "Writes of pins that failed; what was to be written waits in memory.",
            |c| &c.failed_writes,
        ),
        (
            "fleetprof_pins_brought_total",
            "Pins that were brought to the collector; one whose capture came later twice.",
            |c| &c.brought,
        ),
        (
            "fleetprof_pins_refused_total",
            "Pins that stay on this host alone: the collector refused them, or they cannot be read.",
            |c| &c.refused,
        ),
        (
            "fleetprof_pins_bring_failures_total",
            "Tries to bring a pin to the collector that failed; they are repeated.",
            |c| &c.bring_failures,
        ),
    ];
    for (name, help, pick) in counters {
        one(registry, agent, name, help, Kind::Counter, move |agent| {
            pick(&agent.pins.counts).load(Ordering::Relaxed)
        });
    }
    one(
        registry,
        agent,
        "fleetprof_pins_bytes",
        "Bytes of all pins.",
        Kind::Gauge,
        |agent| agent.pins.bytes().0,
    );
    one(
        registry,
        agent,
        "fleetprof_pins",
        "Pins that are kept.",
        Kind::Gauge,
        |agent| agent.pins.len() as u64,
    );
    one(
        registry,
        agent,
        "fleetprof_trigger_looks_total",
        "Times the targets of all triggers were looked at.",
        Kind::Counter,
        |agent| agent.triggers.looks.load(Ordering::Relaxed),
    );
    one(
        registry,
        agent,
        "fleetprof_trigger_captures_failed_total",
        "Captures of triggers that could not be started or kept.",
        Kind::Counter,
        |agent| agent.triggers.captures_failed.load(Ordering::Relaxed),
    );
    tallies(registry, agent);
}

/// By name of the trigger, which the configuration gives.
fn tallies(registry: &Registry, agent: &Arc<Agent>) {
    let weak = Arc::downgrade(agent);
    registry.read(
        "fleetprof_trigger_fired_total",
        "Times that a trigger fired.",
        Kind::Counter,
        move || {
            let tallies = weak.upgrade().map(|agent| agent.triggers.tallies());
            let fired = |(name, tally): (String, Tally)| (vec![("trigger", name)], tally.fired);
            tallies.into_iter().flatten().map(fired).collect()
        },
    );
    let weak = Arc::downgrade(agent);
    registry.read(
        "fleetprof_trigger_suppressed_total",
        "Times that a trigger was kept from firing, or from pinning when it fired, by cause.",
        Kind::Counter,
        move || {
            let tallies = weak.upgrade().map(|agent| agent.triggers.tallies());
            let causes = |(name, tally): (String, Tally)| {
                let cause = move |(cause, count): (&str, u64)| {
                    let labels = vec![("trigger", name.clone()), ("cause", cause.to_owned())];
                    (labels, count)
                };
                let counts = [
                    ("cooldown", tally.cooled),
                    ("max_per_day", tally.limited),
                    ("pins_open", tally.unpinned),
                ];
                counts.map(cause)
            };
            tallies.into_iter().flatten().flat_map(causes).collect()
        },
    );
}
