//! The collector's own numbers, with a sentence each. What the store counts is added by the store.

use crate::store::StoreStatus;
use metrics::{CALL_SECONDS, Family, counted};
use proto::agent;

counted! {
    /// Every number.
    pub struct Metrics;
    /// Streams of agents that are open.
    Gauge fleetprof_collector_streams = streams;
    /// 1 while the store does not take what agents push.
    Gauge fleetprof_collector_push_failing = push_failing;
    /// 1 when the thread that looks for hosts in trouble panicked: no host is found blind.
    Gauge fleetprof_collector_survey_ended = survey_ended;
    /// Hosts from which no usable samples come now.
    Gauge fleetprof_collector_hosts_blind = hosts_blind;
    /// Hosts with warnings or errors, blind ones among them.
    Gauge fleetprof_collector_hosts_warned = hosts_warned;
    /// Agent streams that completed the handshake.
    Counter fleetprof_collector_streams_opened_total = streams_opened;
    /// Streams of agents that were ended from here, by cause.
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
    /// Windows that agents were answered about, by outcome.
    Counter fleetprof_collector_windows_total{outcome} =
        "stored" windows_stored,
        "repeated" windows_repeated,
        "refused" windows_refused;
    /// Times that frames of stacks were asked of an agent.
    Counter fleetprof_collector_needs_total = windows_needed;
    /// Times, counted above too, that all callers were asked for: one that an agent took for known
    /// is not known here.
    Counter fleetprof_collector_needs_all_callers_total = callers_needed;
    /// Rows (label set, stack, end, count) of windows that were stored.
    Counter fleetprof_collector_rows_total = rows_stored;
    /// Labels of agents that were changed or left out because a bound was reached, by cause.
    Counter fleetprof_collector_labels_dropped_total{cause} =
        "value_cut" labels_cut,
        "name_or_number" labels_dropped,
        "own_host" label_hosts;
    /// Gaps that agents told of and that make no sense.
    Counter fleetprof_collector_gaps_dropped_total = gaps_malformed;
    /// Calls of the store with windows; one takes all that wait.
    Counter fleetprof_collector_pushes_total = pushes;
    /// Time in these calls.
    CounterNs fleetprof_collector_push_seconds_total = push_ns;
    /// Time of a call of the store with windows, until they are durable.
    Histogram fleetprof_collector_push_duration_seconds = push_time [CALL_SECONDS];
    /// Time from the last part of a window to its acknowledgement; with frames that had to be asked
    /// for.
    Histogram fleetprof_collector_window_duration_seconds = window_time [CALL_SECONDS];
    /// Calls of the store that took nothing.
    Counter fleetprof_collector_pushes_failed_total = pushes_failed;
    /// Windows that wait for the store.
    Gauge fleetprof_collector_queue_windows = queue_windows;
    /// Memory held for streams and their windows.
    Gauge fleetprof_collector_ingest_bytes = ingest_bytes;
    /// Hosts of which nothing is remembered, because there are too many.
    Counter fleetprof_collector_hosts_dropped_total = hosts_dropped;
    /// Times that the reasons of a host in trouble were not kept, because all together take too
    /// much.
    Counter fleetprof_collector_health_dropped_total = health_dropped;
    /// Times that facts of a host could not be stored; they are tried again.
    Counter fleetprof_collector_hosts_failed_total = hosts_failed;
    /// Rounds of the store's upkeep that left something undone.
    Counter fleetprof_collector_maintain_failed_total = maintain_failed;
    /// Queries that run now.
    Gauge fleetprof_collector_queries_running = queries_running;
    /// Queries by how they ended.
    Counter fleetprof_collector_queries_total{outcome} =
        "ok" queries_ok,
        "invalid" queries_invalid,
        "limit" queries_limited,
        "deadline" queries_late,
        "cancelled" queries_cancelled,
        "failed" queries_failed;
    /// Time that queries ran in the store.
    CounterNs fleetprof_collector_query_seconds_total = query_ns;
    /// Time of queries from their arrival, waiting for a place included, by what they ask for.
    Histogram fleetprof_collector_query_duration_seconds{kind} =
        "profile" ask_profile [CALL_SECONDS],
        "diff" ask_diff [CALL_SECONDS],
        "overview" ask_overview [CALL_SECONDS],
        "series" ask_series [CALL_SECONDS],
        "top" ask_top [CALL_SECONDS],
        "labels" ask_labels [CALL_SECONDS],
        "hosts" ask_hosts [CALL_SECONDS],
        "cgroups" ask_cgroups [CALL_SECONDS],
        "pin" ask_pin [CALL_SECONDS],
        "connected_hosts" ask_connected_hosts [CALL_SECONDS],
        "status" ask_status [CALL_SECONDS];
    /// Answers given up because the client did not read them.
    Counter fleetprof_collector_answers_stalled_total = answers_stalled;
    /// Answers refused because others that are being read hold the places or the memory.
    Counter fleetprof_collector_answers_refused_total = answers_refused;
    /// Memory held for answers that are being read.
    Gauge fleetprof_collector_answer_bytes = answer_bytes;
    /// Control streams of agents that are open: captures reach these agents.
    Gauge fleetprof_collector_control_streams = control_streams;
    /// Control streams that another stream of the same host took the place of.
    Counter fleetprof_collector_control_streams_superseded_total = control_superseded;
    /// Control streams ended because the agent broke the protocol.
    Counter fleetprof_collector_control_stream_faults_total = control_faults;
    /// Reports of agents that came after the wait for them had ended.
    Counter fleetprof_collector_reports_late_total = control_late;
    /// Profiles of captures that could not be put together.
    Counter fleetprof_collector_captures_malformed_total = control_malformed;
    /// Memory held for results of captures.
    Gauge fleetprof_collector_capture_bytes = control_bytes;
    /// Profiles of hosts that found no room in the memory of results.
    Counter fleetprof_collector_captures_too_large_total = control_refused;
    /// Times of samples left out of results because they found no room.
    Counter fleetprof_collector_capture_times_shed_total = control_times_shed;
    /// Captures over the fleet that run now.
    Gauge fleetprof_collector_fanouts_running = fanouts_running;
    /// Captures over the fleet refused because too many ran.
    Counter fleetprof_collector_fanouts_refused_total = fanouts_refused;
    /// Captures over the fleet by how they ended.
    Counter fleetprof_collector_fanouts_total{outcome} =
        "done" fanouts_done,
        "cancelled" fanouts_cancelled,
        "client_left" fanouts_left,
        "failed" fanouts_failed;
    /// Hosts that were asked to capture, by what came of it.
    Counter fleetprof_collector_fanout_hosts_total{outcome} =
        "answered" fanout_answered,
        "failed" fanout_failed,
        "lost" fanout_lost;
    /// Captures over the fleet that are kept.
    Gauge fleetprof_collector_captures = captures_here;
    /// What they take on disk.
    Gauge fleetprof_collector_captures_bytes = captures_bytes;
    /// Captures over the fleet that were to be kept, by outcome.
    Counter fleetprof_collector_captures_total{outcome} =
        "kept" captures_kept,
        "too_large" captures_kept_refused,
        "failed" captures_kept_failed;
    /// Kept captures that are gone, by cause.
    Counter fleetprof_collector_captures_dropped_total{cause} =
        "damaged" captures_damaged,
        "age" captures_aged,
        "count_max" captures_over_count,
        "disk_mib" captures_over_disk,
        "deleted" captures_deleted;
    /// Pins of agents that are kept.
    Gauge fleetprof_collector_pins = pins;
    /// What they take on disk.
    Gauge fleetprof_collector_pins_bytes = pins_bytes;
    /// Pins that agents uploaded, by outcome.
    Counter fleetprof_collector_pins_total{outcome} =
        "kept" pins_kept,
        "repeated" pins_repeated,
        "refused" pins_refused,
        "daily_limit" pins_limited,
        "failed" pins_failed;
    /// Pins of agents that are gone, by cause.
    Counter fleetprof_collector_pins_dropped_total{cause} =
        "damaged" pins_damaged,
        "age" pins_aged,
        "host_mib" pins_over_host,
        "disk_mib" pins_over_disk;
    /// Annotations that are kept.
    Gauge fleetprof_collector_annotations = annotations;
    /// Annotations that were added, by who told: people and pipelines, or the collector itself.
    Counter fleetprof_collector_annotations_added_total{source} =
        "told" annotations_told,
        "found" annotations_found;
    /// Annotations that are gone, by cause.
    Counter fleetprof_collector_annotations_dropped_total{cause} =
        "age" annotations_aged,
        "count" annotations_over;
    /// Deploys that were found and not told, by cause: too many in an hour, or no room to remember.
    Counter fleetprof_collector_deploys_untold_total{cause} =
        "hourly_limit" deploys_limited,
        "no_room" deploys_dropped;
    /// Times that what was found could not be written; it is tried again.
    Counter fleetprof_collector_annotations_failed_total = annotations_failed;
    /// 1 while the database of symbols cannot be opened: what agents could not name has no names.
    Gauge fleetprof_collector_symbols_unavailable = symbols_unavailable;
    /// Files with symbols that were uploaded, by outcome.
    Counter fleetprof_collector_symbol_uploads_total{outcome} =
        "kept" symbol_uploads,
        "refused" symbol_uploads_refused;
    /// Builds whose symbols were removed to make room for others.
    Counter fleetprof_collector_symbol_builds_removed_total = symbol_builds_removed;
    /// Builds that debuginfod servers were asked for, by outcome.
    Counter fleetprof_collector_debuginfod_total{outcome} =
        "fetched" debuginfod_fetched,
        "absent" debuginfod_absent,
        "refused" debuginfod_refused,
        "unavailable" debuginfod_failed;
    /// Lines of the audit log that are on the disk.
    Counter fleetprof_collector_audit_lines_total = audit_lines;
    /// Lines of the audit log that the disk did not take.
    Counter fleetprof_collector_audit_failures_total = audit_failed;
    /// Lines of the audit log that found no room in its queue; what they tell of was done.
    Counter fleetprof_collector_audit_dropped_total = audit_dropped;
    /// Captures and changes of the fleet refused because the audit log did not take them.
    Counter fleetprof_collector_audit_refused_total = audit_refused;
    /// 1 while the disk does not take the audit log.
    Gauge fleetprof_collector_audit_failing = audit_failing;
    /// Logins that failed, and calls of people with a token that is not good.
    Counter fleetprof_collector_logins_failed_total = logins_failed;
    /// Logins with a provider of identities that were not finished and made room for others.
    Counter fleetprof_collector_logins_evicted_total = logins_evicted;
    /// Times that a provider of identities did not answer as it should.
    Counter fleetprof_collector_identity_provider_failed_total = identity_provider_failed;
    /// Calls refused because the caller's role does not allow them.
    Counter fleetprof_collector_calls_denied_total = calls_denied;
    /// Calls refused because their person or host has too many under way.
    Counter fleetprof_collector_calls_limited_total = calls_limited;
    /// Calls of people that were ended because their token was.
    Counter fleetprof_collector_calls_ended_total = calls_ended;
    /// Connections of people that are open, over gRPC with TLS.
    Gauge fleetprof_collector_people_connections = people_connections;
    /// Version of Landlock's rules in force for every thread; 0: none.
    Gauge fleetprof_collector_sandbox_landlock_abi = sandbox_landlock_abi;
    /// 1 while TCP ports that are not the collector's are refused to it, by what for.
    Gauge fleetprof_collector_sandbox_ports{to} =
        "listen" sandbox_listens,
        "connect" sandbox_connects;
    /// 1 while system calls that the collector has no use for are refused.
    Gauge fleetprof_collector_sandbox_seccomp = sandbox_seccomp;
    /// Requests over HTTP, those refused included.
    Counter fleetprof_collector_http_requests_total = http_requests;
    /// Requests over HTTP for another host's name or from another site's page.
    Counter fleetprof_collector_http_refused_total = http_refused;
    /// Connections that are open, by listener.
    Gauge fleetprof_collector_connections{listener} =
        "grpc" connections_grpc,
        "http" connections_http;
    /// Connections over HTTP closed to make room for others.
    Counter fleetprof_collector_connections_evicted_total = connections_evicted;
    /// Connections over gRPC closed because no call came for long.
    Counter fleetprof_collector_connections_silent_total = connections_silent;
    /// Connections of other hosts refused before their first call: no handshake, or a certificate
    /// of no member.
    Counter fleetprof_collector_connections_refused_total = connections_refused;
    /// Connections of hosts whose certificate is good and that were not let in all the same, by
    /// cause.
    Counter fleetprof_collector_hosts_refused_total{cause} =
        "no_name" outside_unnamed,
        "removed" outside_removed,
        "name_taken" outside_taken,
        "failed" outside_failed;
    /// Connections told that they want the other port, by listener.
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

    /// The numbers as Status tells them, the store's among them.
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
            name.starts_with("fleetprof_collector_") || name.starts_with("fleetprof_store_")
        };
        assert!(all.len() > 80 && all.iter().all(own));
    }
}
