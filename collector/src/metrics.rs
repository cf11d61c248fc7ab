//! The collector's own metrics, with a description each. The store adds its own.

use crate::store::StoreStatus;
use metrics::{CALL_SECONDS, Family, counted};
use proto::agent;

counted! {
    /// Every number.
    pub struct Metrics;
    /// Open streams of agents.
    Gauge fleetprof_collector_streams = streams;
    /// 1 while the store rejects the windows of agents.
    Gauge fleetprof_collector_push_failing = push_failing;
    /// 1 if the check for hosts in trouble has stopped because its thread panicked.
    Gauge fleetprof_collector_survey_ended = survey_ended;
    /// 1 if nothing is uploaded to the archive any more because the thread for it panicked.
    Gauge fleetprof_collector_upload_ended = upload_ended;
    /// Hosts that send no usable samples now.
    Gauge fleetprof_collector_hosts_blind = hosts_blind;
    /// Hosts with warnings or errors, including those without usable samples.
    Gauge fleetprof_collector_hosts_warned = hosts_warned;
    /// Agent streams that completed the handshake.
    Counter fleetprof_collector_streams_opened_total = streams_opened;
    /// Streams of agents that the collector ended, by cause.
    Counter fleetprof_collector_streams_cut_total{cause} =
        "protocol" cut_protocol,
        "store_unavailable" cut_unavailable,
        "memory" cut_memory,
        "need_not_answered" cut_need,
        "window_not_finished" cut_part,
        "no_hello" cut_silent,
        "does_not_read" cut_stalled,
        "superseded" cut_superseded,
        "too_many" cut_places;
    /// Windows answered, by outcome.
    Counter fleetprof_collector_windows_total{outcome} =
        "stored" windows_stored,
        "repeated" windows_repeated,
        "refused" windows_refused;
    /// Times the collector asked an agent for frames of stacks.
    Counter fleetprof_collector_needs_total = windows_needed;
    /// Times the collector asked an agent for all callers, because it did not know one that the
    /// agent had sent before; also counted in the number of times it asked for frames.
    Counter fleetprof_collector_needs_all_callers_total = callers_needed;
    /// Rows (label set, stack, end, count) of windows that were stored.
    Counter fleetprof_collector_rows_total = rows_stored;
    /// Labels of agents that were changed or dropped because of a limit, by cause.
    Counter fleetprof_collector_labels_dropped_total{cause} =
        "value_cut" labels_cut,
        "name_or_number" labels_dropped,
        "own_host" label_hosts;
    /// Programs of agents dropped because a host reported too many.
    Counter fleetprof_collector_programs_dropped_total = programs_dropped;
    /// Invalid gaps reported by agents.
    Counter fleetprof_collector_gaps_dropped_total = gaps_malformed;
    /// Calls that store windows; each stores all waiting windows.
    Counter fleetprof_collector_pushes_total = pushes;
    /// Time in calls that store windows.
    CounterNs fleetprof_collector_push_seconds_total = push_ns;
    /// Time of a call that stores windows, until they are durable.
    Histogram fleetprof_collector_push_duration_seconds = push_time [CALL_SECONDS];
    /// Time from the last part of a window to its acknowledgement, including requests for frames.
    Histogram fleetprof_collector_window_duration_seconds = window_time [CALL_SECONDS];
    /// Calls that failed to store windows.
    Counter fleetprof_collector_pushes_failed_total = pushes_failed;
    /// Windows waiting for the store.
    Gauge fleetprof_collector_queue_windows = queue_windows;
    /// Memory held for streams and their windows.
    Gauge fleetprof_collector_ingest_bytes = ingest_bytes;
    /// Hosts without remembered state, because there are too many.
    Counter fleetprof_collector_hosts_dropped_total = hosts_dropped;
    /// Times the reasons of a host in trouble were dropped, because all reasons together take too
    /// much memory.
    Counter fleetprof_collector_health_dropped_total = health_dropped;
    /// Failed writes of host facts; the collector retries.
    Counter fleetprof_collector_hosts_failed_total = hosts_failed;
    /// Maintenance runs of the store that were incomplete.
    Counter fleetprof_collector_maintain_failed_total = maintain_failed;
    /// Queries running now.
    Gauge fleetprof_collector_queries_running = queries_running;
    /// Queries by outcome.
    Counter fleetprof_collector_queries_total{outcome} =
        "ok" queries_ok,
        "invalid" queries_invalid,
        "limit" queries_limited,
        "deadline" queries_late,
        "cancelled" queries_cancelled,
        "failed" queries_failed;
    /// Time of queries in the store.
    CounterNs fleetprof_collector_query_seconds_total = query_ns;
    /// Time of queries from their arrival, including waiting, by type of query.
    Histogram fleetprof_collector_query_duration_seconds{kind} =
        "profile" ask_profile [CALL_SECONDS],
        "diff" ask_diff [CALL_SECONDS],
        "overview" ask_overview [CALL_SECONDS],
        "alert" ask_alert [CALL_SECONDS],
        "export" ask_export [CALL_SECONDS],
        "series" ask_series [CALL_SECONDS],
        "top" ask_top [CALL_SECONDS],
        "labels" ask_labels [CALL_SECONDS],
        "hosts" ask_hosts [CALL_SECONDS],
        "cgroups" ask_cgroups [CALL_SECONDS],
        "pin" ask_pin [CALL_SECONDS],
        "connected_hosts" ask_connected_hosts [CALL_SECONDS],
        "status" ask_status [CALL_SECONDS];
    /// Answers dropped because the client did not read them.
    Counter fleetprof_collector_answers_stalled_total = answers_stalled;
    /// Answers refused because other answers use all places or all memory.
    Counter fleetprof_collector_answers_refused_total = answers_refused;
    /// Memory for answers being sent.
    Gauge fleetprof_collector_answer_bytes = answer_bytes;
    /// Open control streams of agents; captures reach these agents.
    Gauge fleetprof_collector_control_streams = control_streams;
    /// Control streams replaced by another stream of the same host.
    Counter fleetprof_collector_control_streams_superseded_total = control_superseded;
    /// Control streams ended because the agent broke the protocol.
    Counter fleetprof_collector_control_stream_faults_total = control_faults;
    /// Reports of agents that arrived after the wait for them had ended.
    Counter fleetprof_collector_reports_late_total = control_late;
    /// Profiles of captures that could not be assembled.
    Counter fleetprof_collector_captures_malformed_total = control_malformed;
    /// Memory for results of captures.
    Gauge fleetprof_collector_capture_bytes = control_bytes;
    /// Profiles of hosts dropped because the memory for results was full.
    Counter fleetprof_collector_captures_too_large_total = control_refused;
    /// Samples whose time was left out of a result for lack of room.
    Counter fleetprof_collector_capture_times_shed_total = control_times_shed;
    /// Fleet captures running now.
    Gauge fleetprof_collector_fanouts_running = fanouts_running;
    /// Fleet captures refused because too many were running.
    Counter fleetprof_collector_fanouts_refused_total = fanouts_refused;
    /// Fleet captures by outcome.
    Counter fleetprof_collector_fanouts_total{outcome} =
        "done" fanouts_done,
        "cancelled" fanouts_cancelled,
        "client_left" fanouts_left,
        "failed" fanouts_failed;
    /// Hosts asked to capture, by outcome.
    Counter fleetprof_collector_fanout_hosts_total{outcome} =
        "answered" fanout_answered,
        "failed" fanout_failed,
        "lost" fanout_lost;
    /// Fleet captures on disk.
    Gauge fleetprof_collector_captures = captures_here;
    /// Disk space of kept fleet captures.
    Gauge fleetprof_collector_captures_bytes = captures_bytes;
    /// Attempts to keep a fleet capture, by outcome.
    Counter fleetprof_collector_captures_total{outcome} =
        "kept" captures_kept,
        "too_large" captures_kept_refused,
        "failed" captures_kept_failed;
    /// Kept captures that were removed, by cause.
    Counter fleetprof_collector_captures_dropped_total{cause} =
        "damaged" captures_damaged,
        "age" captures_aged,
        "count_max" captures_over_count,
        "disk_mib" captures_over_disk,
        "deleted" captures_deleted;
    /// Pins of agents on disk.
    Gauge fleetprof_collector_pins = pins;
    /// Disk space of pins of agents.
    Gauge fleetprof_collector_pins_bytes = pins_bytes;
    /// Uploads of pins by agents, by outcome.
    Counter fleetprof_collector_pins_total{outcome} =
        "kept" pins_kept,
        "repeated" pins_repeated,
        "refused" pins_refused,
        "daily_limit" pins_limited,
        "failed" pins_failed;
    /// Pins of agents that were removed, by cause.
    Counter fleetprof_collector_pins_dropped_total{cause} =
        "damaged" pins_damaged,
        "age" pins_aged,
        "host_mib" pins_over_host,
        "disk_mib" pins_over_disk;
    /// Annotations in the database.
    Gauge fleetprof_collector_annotations = annotations;
    /// Annotations added, by source: people and pipelines, or the collector itself.
    Counter fleetprof_collector_annotations_added_total{source} =
        "told" annotations_told,
        "found" annotations_found;
    /// Annotations that were removed, by cause.
    Counter fleetprof_collector_annotations_dropped_total{cause} =
        "age" annotations_aged,
        "count" annotations_over;
    /// Deploys found but not added, by cause: too many in an hour, or no memory.
    Counter fleetprof_collector_deploys_untold_total{cause} =
        "hourly_limit" deploys_limited,
        "no_room" deploys_dropped;
    /// Failed writes of found deploys; the collector retries.
    Counter fleetprof_collector_annotations_failed_total = annotations_failed;
    /// Alerts by state.
    Gauge fleetprof_collector_alerts{state} =
        "pending" alerts_pending,
        "firing" alerts_firing,
        "no_data" alerts_dark;
    /// Evaluations of rules for alerts, by outcome.
    Counter fleetprof_collector_alert_evaluations_total{outcome} =
        "ok" alert_evaluations,
        "failed" alert_evaluations_failed;
    /// Measurements for metrics from profiles, by outcome.
    Counter fleetprof_collector_measurements_total{outcome} =
        "ok" measurements,
        "failed" measurements_failed;
    /// Time of a round in which all rules for alerts are evaluated.
    Histogram fleetprof_collector_alert_round_duration_seconds = alert_round [CALL_SECONDS];
    /// Groups of rules that are not judged because there are too many.
    Gauge fleetprof_collector_alert_groups_left_out = alert_groups_left_out;
    /// Failed reads and writes of the state of alerts; changes wait until one works.
    Counter fleetprof_collector_alert_state_failed_total = alert_state_failed;
    /// Notifications that wait for their receiver.
    Gauge fleetprof_collector_alert_notifications_waiting = notifications_waiting;
    /// Notifications by outcome: accepted by the receiver; refused by it again and again; given up
    /// because it was away for a day; dropped because too many waited; for a receiver that is no
    /// longer configured.
    Counter fleetprof_collector_alert_notifications_total{outcome} =
        "sent" notifications_sent,
        "refused" notifications_refused,
        "given_up" notifications_given_up,
        "dropped" notifications_dropped,
        "no_receiver" notifications_orphaned;
    /// Failed attempts to send a notification; the collector retries.
    Counter fleetprof_collector_alert_attempts_failed_total = attempts_failed;
    /// Incidents in the database.
    Gauge fleetprof_collector_incidents = incidents;
    /// Disk space of the evidence of incidents.
    Gauge fleetprof_collector_incidents_bytes = incident_bytes;
    /// Incidents opened, by people, alerts and pins.
    Counter fleetprof_collector_incidents_opened_total = incidents_opened;
    /// Pieces of evidence kept for incidents.
    Counter fleetprof_collector_incident_evidence_total = incident_evidence;
    /// Failed reads and writes of incidents.
    Counter fleetprof_collector_incidents_failed_total = incidents_failed;
    /// Profiles of other senders that were stored, by protocol.
    Counter fleetprof_collector_sent_profiles_total{protocol} =
        "push" sent_push,
        "ingest" sent_ingest,
        "otlp" sent_otlp,
        "write_raw" sent_write_raw;
    /// Requests of OTLP by the release of their layout. `either`: read as 1.10, and possible as
    /// 1.9; `1.7`: that or earlier, and refused.
    Counter fleetprof_collector_sent_otlp_requests_total{layout} =
        "1.10" sent_otlp_new,
        "1.9" sent_otlp_1_9,
        "1.8" sent_otlp_1_8,
        "either" sent_otlp_either,
        "1.7" sent_otlp_old;
    /// Profiles of other senders that were stored already: sent again.
    Counter fleetprof_collector_sent_repeated_total = sent_repeated;
    /// Requests of other senders that were refused, by cause.
    Counter fleetprof_collector_sent_refused_total{cause} =
        "malformed" sent_malformed,
        "too_large" sent_too_large,
        "rate" sent_rate,
        "series" sent_series,
        "rejected" sent_rejected,
        "busy" sent_busy,
        "unavailable" sent_unavailable;
    /// Labels of other senders that were dropped: their name is reserved or cannot be used, or
    /// there were too many.
    Counter fleetprof_collector_sent_labels_dropped_total = sent_labels_dropped;
    /// 1 while the receiver of exported profiles cannot be reached or refuses them, or the store
    /// does not answer.
    Gauge fleetprof_collector_otlp_export_failing = export_failing;
    /// Slices of hosts, of ten seconds each, that are stored and not exported yet.
    Gauge fleetprof_collector_otlp_export_waiting_slices = export_waiting;
    /// Slices of hosts that are done with, by outcome: sent; without a selected sample; refused by
    /// the receiver; too large for a request; older than export.otlp.backlog_hours, or too many; no
    /// longer stored at full resolution; of more hosts than are remembered.
    Counter fleetprof_collector_otlp_export_slices_total{outcome} =
        "sent" export_sent,
        "empty" export_empty,
        "refused" export_refused,
        "too_large" export_too_large,
        "too_old" export_too_old,
        "coarse" export_coarse,
        "no_room" export_no_room;
    /// Requests with exported profiles, by outcome. Failed ones are repeated.
    Counter fleetprof_collector_otlp_export_requests_total{outcome} =
        "ok" export_requests,
        "failed" export_requests_failed,
        "refused" export_requests_refused;
    /// Exported profiles by outcome: taken; rejected from a request that was taken; in a request
    /// that was refused.
    Counter fleetprof_collector_otlp_export_profiles_total{outcome} =
        "sent" export_profiles,
        "rejected" export_profiles_rejected,
        "refused" export_profiles_refused;
    /// Bytes of requests with exported profiles before they are packed, repeats included.
    Counter fleetprof_collector_otlp_export_bytes_total = export_bytes;
    /// Failed writes of what was exported; after a crash it is sent again.
    Counter fleetprof_collector_otlp_export_state_failed_total = export_state_failed;
    /// 1 while the symbol database cannot be opened, so functions without a name from their agent
    /// stay unnamed.
    Gauge fleetprof_collector_symbols_unavailable = symbols_unavailable;
    /// Uploads of files with symbols, by outcome.
    Counter fleetprof_collector_symbol_uploads_total{outcome} =
        "kept" symbol_uploads,
        "refused" symbol_uploads_refused;
    /// Builds whose symbols were removed to make room.
    Counter fleetprof_collector_symbol_builds_removed_total = symbol_builds_removed;
    /// Builds requested from debuginfod servers, by outcome.
    Counter fleetprof_collector_debuginfod_total{outcome} =
        "fetched" debuginfod_fetched,
        "absent" debuginfod_absent,
        "refused" debuginfod_refused,
        "unavailable" debuginfod_failed;
    /// Lines of the audit log written to disk.
    Counter fleetprof_collector_audit_lines_total = audit_lines;
    /// Lines of the audit log lost because a write failed.
    Counter fleetprof_collector_audit_failures_total = audit_failed;
    /// Lines of the audit log lost because its queue was full; their actions were carried out.
    Counter fleetprof_collector_audit_dropped_total = audit_dropped;
    /// Captures and changes of the fleet refused because the audit log could not record them.
    Counter fleetprof_collector_audit_refused_total = audit_refused;
    /// Times the audit log was found changed by somebody else: a file that was replaced, or lines
    /// that are missing. The audit log says what.
    Counter fleetprof_collector_audit_damaged_total = audit_damaged;
    /// 1 while the audit log cannot be written.
    Gauge fleetprof_collector_audit_failing = audit_failing;
    /// Failed logins, and calls with an invalid token.
    Counter fleetprof_collector_logins_failed_total = logins_failed;
    /// Unfinished logins with an identity provider that were dropped to make room.
    Counter fleetprof_collector_logins_evicted_total = logins_evicted;
    /// Failed or invalid answers of an identity provider.
    Counter fleetprof_collector_identity_provider_failed_total = identity_provider_failed;
    /// Calls refused because the caller's role or scope does not allow them.
    Counter fleetprof_collector_calls_denied_total = calls_denied;
    /// Calls refused because their person or host has too many running calls.
    Counter fleetprof_collector_calls_limited_total = calls_limited;
    /// Running calls ended because their token expired or was removed.
    Counter fleetprof_collector_calls_ended_total = calls_ended;
    /// Open connections of people, over gRPC with TLS.
    Gauge fleetprof_collector_people_connections = people_connections;
    /// Version of the Landlock rules that are active for every thread; 0 if there are none.
    Gauge fleetprof_collector_sandbox_landlock_abi = sandbox_landlock_abi;
    /// 1 while the collector is limited to its own TCP ports, by use.
    Gauge fleetprof_collector_sandbox_ports{to} =
        "listen" sandbox_listens,
        "connect" sandbox_connects;
    /// 1 while system calls that the collector does not need are refused.
    Gauge fleetprof_collector_sandbox_seccomp = sandbox_seccomp;
    /// HTTP requests, including refused ones.
    Counter fleetprof_collector_http_requests_total = http_requests;
    /// HTTP requests refused because of another host name, or because they came from another site's
    /// page.
    Counter fleetprof_collector_http_refused_total = http_refused;
    /// Open connections, by listener.
    Gauge fleetprof_collector_connections{listener} =
        "grpc" connections_grpc,
        "http" connections_http;
    /// HTTP connections closed to make room.
    Counter fleetprof_collector_connections_evicted_total = connections_evicted;
    /// gRPC connections closed because they were idle for too long.
    Counter fleetprof_collector_connections_silent_total = connections_silent;
    /// Connections of other hosts refused before their first call, because of no handshake or a
    /// certificate of a non-member.
    Counter fleetprof_collector_connections_refused_total = connections_refused;
    /// Connections of hosts refused despite a valid certificate, by cause.
    Counter fleetprof_collector_hosts_refused_total{cause} =
        "no_name" outside_unnamed,
        "removed" outside_removed,
        "name_taken" outside_taken,
        "failed" outside_failed;
    /// Connections to the wrong port, by listener.
    Counter fleetprof_collector_connections_wrong_port_total{listener} =
        "grpc" wrong_port_grpc,
        "http" wrong_port_http;
}

impl Metrics {
    /// Notes what the process has given up.
    pub fn sandboxed(&self, report: &sandbox::Report) {
        self.sandbox_landlock_abi.set(report.landlock_abi.into());
        self.sandbox_listens.set(report.listens.into());
        self.sandbox_connects.set(report.connects.into());
        self.sandbox_seccomp.set(report.seccomp.into());
    }

    /// Reads everything: the collector's own numbers, then the store's.
    pub fn all(&self, store: &dyn StoreStatus) -> Vec<Family> {
        let mut all = self.families();
        all.extend(store.metrics());
        all
    }

    /// The numbers as Status has them, including the store's.
    pub fn counters(&self, store: &dyn StoreStatus) -> Vec<agent::Counter> {
        let all = self.all(store);
        metrics::counted(&all)
            .map(|counted| agent::Counter {
                name: counted.name,
                labels: counted.labels,
                value: counted.value,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_sentences_are_as_prometheus_wants_them() {
        let dir = tempfile::tempdir().expect("a directory");
        let options = crate::store::embedded::Options::default();
        let store = crate::store::embedded::EmbeddedStore::open(dir.path(), options, 1);
        let all = Metrics::default().all(&store.expect("opens"));
        assert_eq!(metrics::problems(&all), Vec::<String>::new());
        let own = |family: &Family| {
            let name = &family.name;
            let own = ["collector", "store", "archive"];
            own.iter()
                .any(|of| name.starts_with(&format!("fleetprof_{of}_")))
        };
        assert!(all.len() > 80 && all.iter().all(own));
    }
}
