//! Metrics of uploads to the collector and of captures that it requests. There are none while the
//! host has no collector.

use super::Agent;
use control::ControlCounts;
use export::{Cause, ExportCounts};
use metrics::{Family, gather};

/// Reads them.
pub(super) fn families(agent: &Agent) -> Vec<Family> {
    let Some(uplink) = agent.uplink.get() else {
        return Vec::new();
    };
    let control = uplink
        .control
        .get()
        .map(|control| control.counts().families());
    gather(EXPORT, &uplink.exporter.counts())
        .chain(uplink.exporter.times().families())
        .chain(control.unwrap_or_else(|| ControlCounts::default().families()))
        .collect()
}

metrics::rows! { EXPORT: ExportCounts;
    /// Closed windows to send to the collector.
    Counter fleetprof_export_windows_total = |c| c.taken_windows;
    /// Samples in closed windows whose stacks `withhold` keeps on this host.
    Counter fleetprof_export_withheld_samples_total = |c| c.withheld_samples;
    /// Windows the collector has acknowledged.
    Counter fleetprof_export_acked_windows_total = |c| c.acked_windows;
    /// Samples in windows the collector has acknowledged.
    Counter fleetprof_export_acked_samples_total = |c| c.acked_samples;
    /// Windows sent again that the collector already had.
    Counter fleetprof_export_repeated_windows_total = |c| c.repeated_windows;
    /// Times a stream to the collector started.
    Counter fleetprof_export_connections_total = |c| c.connections;
    /// Messages with frames of stacks that the collector did not know.
    Counter fleetprof_export_definitions_total = |c| c.definitions;
    /// 1 while there is a stream to the collector.
    Gauge fleetprof_export_connected = |c| c.connected;
    /// Windows in the spool that the collector has not acknowledged.
    Gauge fleetprof_export_waiting_windows = |c| c.waiting_windows;
    /// Disk space of these windows in the spool.
    Gauge fleetprof_export_waiting_bytes = |c| c.waiting_bytes;
    /// Windows dropped on their way to the collector since boot, by cause.
    Counter fleetprof_export_dropped_windows_total{cause} = |c|
        Cause::ALL.iter().map(|cause| cause.word()).zip(c.dropped.map(|(windows, _)| windows));
    /// Samples in windows dropped on their way to the collector since boot, by cause.
    Counter fleetprof_export_dropped_samples_total{cause} = |c|
        Cause::ALL.iter().map(|cause| cause.word()).zip(c.dropped.map(|(_, samples)| samples));
}
