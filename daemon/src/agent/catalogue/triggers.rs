//! Metrics of triggers and pins.

use super::Agent;
use metrics::{Family, gather};
use pins::Pins;
use std::collections::BTreeMap;
use triggers::{Tally, Triggers};

/// Reads them.
pub(super) fn families(agent: &Agent) -> Vec<Family> {
    let triggers = &agent.triggers;
    gather(PINS, &*agent.pins)
        .chain(gather(TRIGGERS, &**triggers))
        .chain(gather(TALLIES, &triggers.tallies()))
        .collect()
}

metrics::rows! { PINS: Pins;
    /// Pins created.
    Counter fleetprof_pins_opened_total = |c| &c.counts.opened;
    /// Pins removed because recorder.pins_mib was used up; the trigger whose pins take most loses
    /// its oldest first.
    Counter fleetprof_pins_dropped_total = |c| &c.counts.dropped;
    /// Pins that ended early because their share or recorder.pins_mib was used up, or the disk
    /// failed for too long.
    Counter fleetprof_pins_cut_total = |c| &c.counts.cut;
    /// Pins that could not be read, or only in part.
    Counter fleetprof_pins_damaged_total = |c| &c.counts.damaged;
    /// Failed writes of pins; their data waits in memory.
    Counter fleetprof_pins_failed_writes_total = |c| &c.counts.failed_writes;
    /// Pins uploaded to the collector; a pin whose capture came later counts twice.
    Counter fleetprof_pins_uploaded_total = |c| &c.counts.uploaded;
    /// Pins that stay only on this host because the collector refused them, or they cannot be read.
    Counter fleetprof_pins_refused_total = |c| &c.counts.refused;
    /// Failed attempts to upload a pin to the collector; the daemon retries.
    Counter fleetprof_pins_upload_failures_total = |c| &c.counts.upload_failures;
    /// Disk space of all pins.
    Gauge fleetprof_pins_bytes = |c| c.bytes().0;
    /// Pins on disk.
    Gauge fleetprof_pins = |c| c.len() as u64;
}

metrics::rows! { TRIGGERS: Triggers;
    /// Times the targets of all triggers were checked.
    Counter fleetprof_trigger_looks_total = |t| &t.looks;
    /// Captures of triggers that could not be started or kept.
    Counter fleetprof_trigger_captures_failed_total = |t| &t.captures_failed;
}

// By name of the trigger, which the configuration gives.
metrics::rows! { TALLIES: BTreeMap<String, Tally>;
    /// Times a trigger fired.
    Counter fleetprof_trigger_fired_total{trigger} = |tallies|
        tallies.iter().map(|(name, tally)| (name.clone(), tally.fired));
    /// Times a trigger did not fire, or fired without a pin, by cause.
    Counter fleetprof_trigger_suppressed_total{..} = |tallies| {
        let causes = tallies.iter().flat_map(|(name, tally)| {
            let counts = [
                ("cooldown", tally.cooled),
                ("max_per_day", tally.limited),
                ("pins_open", tally.unpinned),
            ];
            counts.map(|(cause, count)| {
                let labels = vec![
                        ("trigger".into(), name.clone().into()),
                        ("cause".into(), cause.into()),
                    ];
                (labels, count.into())
            })
        });
        causes.collect()
    };
}
