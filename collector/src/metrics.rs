//! The collector's own numbers, with a sentence each, as Prometheus text (exposition format 0.0.4)
//! and as the counters of Status. What the store counts is added under the names it gives.

use crate::store::StoreStatus;
use proto::agent;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// One number. Counting is one relaxed add.
#[derive(Debug, Default)]
pub struct Metric(AtomicU64);

impl Metric {
    /// Counts one.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Counts `n`. Wraps around after 2⁶⁴, as Prometheus expects of counters.
    pub fn add(&self, n: u64) {
        // Relaxed: nothing else is read by what this number says.
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Takes `n` away: for gauges.
    pub fn sub(&self, n: u64) {
        self.0.fetch_sub(n, Ordering::Relaxed);
    }

    /// Sets it: for gauges.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// A counter kept in nanoseconds and shown in seconds.
    CounterNs,
}

/// A row of the catalogue.
struct Row<'m> {
    name: &'static str,
    labels: &'static str,
    kind: Kind,
    help: &'static str,
    value: &'m Metric,
}

macro_rules! catalogue {
    ($($field:ident $kind:ident $name:literal $labels:literal $help:literal;)+) => {
        /// Every number; rows of one name stand together.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $(#[doc = concat!("`", $name, "{", $labels, "}`: ", $help)] pub $field: Metric,)+
        }

        impl Metrics {
            fn rows(&self) -> Vec<Row<'_>> {
                vec![$(Row {
                    name: $name,
                    labels: $labels,
                    kind: Kind::$kind,
                    help: $help,
                    value: &self.$field,
                },)+]
            }
        }
    };
}

catalogue! {
    streams Gauge "fleetprof_collector_streams" "" "Streams of agents that are open.";
    push_failing Gauge "fleetprof_collector_push_failing" "" "1 while the store does not take what agents push.";
    survey_ended Gauge "fleetprof_collector_survey_ended" "" "1 when the thread that looks for hosts in trouble panicked: no host is found blind.";
    hosts_blind Gauge "fleetprof_collector_hosts_blind" "" "Hosts from which no usable samples come now.";
    hosts_warned Gauge "fleetprof_collector_hosts_warned" "" "Hosts with warnings or errors, blind ones among them.";
    streams_begun Counter "fleetprof_collector_streams_begun_total" "" "Streams that said who they are.";
    cut_protocol Counter "fleetprof_collector_streams_cut_total" "cause=\"protocol\"" "Streams of agents that were ended from here, by cause.";
    cut_unavailable Counter "fleetprof_collector_streams_cut_total" "cause=\"store_unavailable\"" "Streams of agents that were ended from here, by cause.";
    cut_memory Counter "fleetprof_collector_streams_cut_total" "cause=\"memory\"" "Streams of agents that were ended from here, by cause.";
    cut_need Counter "fleetprof_collector_streams_cut_total" "cause=\"need_not_answered\"" "Streams of agents that were ended from here, by cause.";
    cut_part Counter "fleetprof_collector_streams_cut_total" "cause=\"window_not_finished\"" "Streams of agents that were ended from here, by cause.";
    cut_silent Counter "fleetprof_collector_streams_cut_total" "cause=\"no_hello\"" "Streams of agents that were ended from here, by cause.";
    cut_stalled Counter "fleetprof_collector_streams_cut_total" "cause=\"does_not_read\"" "Streams of agents that were ended from here, by cause.";
    cut_superseded Counter "fleetprof_collector_streams_cut_total" "cause=\"superseded\"" "Streams of agents that were ended from here, by cause.";
    cut_places Counter "fleetprof_collector_streams_cut_total" "cause=\"too_many\"" "Streams of agents that were ended from here, by cause.";
    windows_stored Counter "fleetprof_collector_windows_total" "outcome=\"stored\"" "Windows that agents were answered about, by outcome.";
    windows_repeated Counter "fleetprof_collector_windows_total" "outcome=\"repeated\"" "Windows that agents were answered about, by outcome.";
    windows_refused Counter "fleetprof_collector_windows_total" "outcome=\"refused\"" "Windows that agents were answered about, by outcome.";
    windows_needed Counter "fleetprof_collector_needs_total" "" "Times that frames of stacks were asked of an agent.";
    callers_needed Counter "fleetprof_collector_needs_all_callers_total" "" "Times, counted above too, that all callers were asked for: one that an agent took for known is not known here.";
    rows_stored Counter "fleetprof_collector_rows_total" "" "Rows (label set, stack, end, count) of windows that were stored.";
    labels_cut Counter "fleetprof_collector_labels_dropped_total" "cause=\"value_cut\"" "Labels of agents that were changed or left out because a bound was reached, by cause.";
    labels_dropped Counter "fleetprof_collector_labels_dropped_total" "cause=\"name_or_number\"" "Labels of agents that were changed or left out because a bound was reached, by cause.";
    label_hosts Counter "fleetprof_collector_labels_dropped_total" "cause=\"own_host\"" "Labels of agents that were changed or left out because a bound was reached, by cause.";
    gaps_malformed Counter "fleetprof_collector_gaps_dropped_total" "" "Gaps that agents told of and that make no sense.";
    pushes Counter "fleetprof_collector_pushes_total" "" "Calls of the store with windows; one takes all that wait.";
    push_ns CounterNs "fleetprof_collector_push_seconds_total" "" "Time in these calls.";
    pushes_failed Counter "fleetprof_collector_pushes_failed_total" "" "Calls of the store that took nothing.";
    queue_windows Gauge "fleetprof_collector_queue_windows" "" "Windows that wait for the store.";
    ingest_bytes Gauge "fleetprof_collector_ingest_bytes" "" "Memory held for streams and their windows.";
    hosts_dropped Counter "fleetprof_collector_hosts_dropped_total" "" "Hosts of which nothing is remembered, because there are too many.";
    health_dropped Counter "fleetprof_collector_health_dropped_total" "" "Times that the reasons of a host in trouble were not kept, because all together take too much.";
    hosts_failed Counter "fleetprof_collector_hosts_failed_total" "" "Times that facts of a host could not be stored; they are tried again.";
    maintain_failed Counter "fleetprof_collector_maintain_failed_total" "" "Rounds of the store's upkeep that left something undone.";
    queries_running Gauge "fleetprof_collector_queries_running" "" "Queries that run now.";
    queries_ok Counter "fleetprof_collector_queries_total" "outcome=\"ok\"" "Queries by how they ended.";
    queries_invalid Counter "fleetprof_collector_queries_total" "outcome=\"invalid\"" "Queries by how they ended.";
    queries_limited Counter "fleetprof_collector_queries_total" "outcome=\"limit\"" "Queries by how they ended.";
    queries_late Counter "fleetprof_collector_queries_total" "outcome=\"deadline\"" "Queries by how they ended.";
    queries_cancelled Counter "fleetprof_collector_queries_total" "outcome=\"cancelled\"" "Queries by how they ended.";
    queries_failed Counter "fleetprof_collector_queries_total" "outcome=\"failed\"" "Queries by how they ended.";
    query_ns CounterNs "fleetprof_collector_query_seconds_total" "" "Time that queries ran in the store.";
    answers_stalled Counter "fleetprof_collector_answers_stalled_total" "" "Answers given up because the client did not read them.";
    answers_refused Counter "fleetprof_collector_answers_refused_total" "" "Answers refused because others that are being read hold the places or the memory.";
    answer_bytes Gauge "fleetprof_collector_answer_bytes" "" "Memory held for answers that are being read.";
    control_streams Gauge "fleetprof_collector_attending" "" "Agents that attend: captures reach them.";
    control_superseded Counter "fleetprof_collector_attending_superseded_total" "" "Streams of attending agents that another of their host took the place of.";
    control_faults Counter "fleetprof_collector_attending_faults_total" "" "Streams of attending agents that broke the protocol.";
    control_late Counter "fleetprof_collector_reports_late_total" "" "Reports of agents that came after the wait for them had ended.";
    control_malformed Counter "fleetprof_collector_captures_malformed_total" "" "Profiles of captures that could not be put together.";
    control_bytes Gauge "fleetprof_collector_capture_bytes" "" "Memory held for results of captures.";
    control_refused Counter "fleetprof_collector_captures_too_large_total" "" "Profiles of hosts that found no room in the memory of results.";
    control_times_shed Counter "fleetprof_collector_capture_times_shed_total" "" "Times of samples left out of results because they found no room.";
    fanouts_running Gauge "fleetprof_collector_fanouts_running" "" "Captures over the fleet that run now.";
    fanouts_refused Counter "fleetprof_collector_fanouts_refused_total" "" "Captures over the fleet refused because too many ran.";
    fanouts_done Counter "fleetprof_collector_fanouts_total" "outcome=\"done\"" "Captures over the fleet by how they ended.";
    fanouts_cancelled Counter "fleetprof_collector_fanouts_total" "outcome=\"cancelled\"" "Captures over the fleet by how they ended.";
    fanouts_left Counter "fleetprof_collector_fanouts_total" "outcome=\"client_left\"" "Captures over the fleet by how they ended.";
    fanouts_failed Counter "fleetprof_collector_fanouts_total" "outcome=\"failed\"" "Captures over the fleet by how they ended.";
    fanout_answered Counter "fleetprof_collector_fanout_hosts_total" "outcome=\"answered\"" "Hosts that were asked to capture, by what came of it.";
    fanout_failed Counter "fleetprof_collector_fanout_hosts_total" "outcome=\"failed\"" "Hosts that were asked to capture, by what came of it.";
    fanout_lost Counter "fleetprof_collector_fanout_hosts_total" "outcome=\"lost\"" "Hosts that were asked to capture, by what came of it.";
    pins Gauge "fleetprof_collector_pins" "" "Pins of agents that are kept.";
    pins_bytes Gauge "fleetprof_collector_pins_bytes" "" "What they take on disk.";
    pins_kept Counter "fleetprof_collector_pins_total" "outcome=\"kept\"" "Pins that agents brought, by outcome.";
    pins_repeated Counter "fleetprof_collector_pins_total" "outcome=\"repeated\"" "Pins that agents brought, by outcome.";
    pins_refused Counter "fleetprof_collector_pins_total" "outcome=\"refused\"" "Pins that agents brought, by outcome.";
    pins_limited Counter "fleetprof_collector_pins_total" "outcome=\"daily_limit\"" "Pins that agents brought, by outcome.";
    pins_failed Counter "fleetprof_collector_pins_total" "outcome=\"failed\"" "Pins that agents brought, by outcome.";
    pins_damaged Counter "fleetprof_collector_pins_dropped_total" "cause=\"damaged\"" "Pins of agents that are gone, by cause.";
    pins_aged Counter "fleetprof_collector_pins_dropped_total" "cause=\"age\"" "Pins of agents that are gone, by cause.";
    pins_over_host Counter "fleetprof_collector_pins_dropped_total" "cause=\"host_mib\"" "Pins of agents that are gone, by cause.";
    pins_over_disk Counter "fleetprof_collector_pins_dropped_total" "cause=\"disk_mib\"" "Pins of agents that are gone, by cause.";
    symbols_unavailable Gauge "fleetprof_collector_symbols_unavailable" "" "1 while the database of symbols cannot be opened: what agents could not name has no names.";
    symbol_uploads Counter "fleetprof_collector_symbol_uploads_total" "outcome=\"kept\"" "Files with symbols that were uploaded, by outcome.";
    symbol_uploads_refused Counter "fleetprof_collector_symbol_uploads_total" "outcome=\"refused\"" "Files with symbols that were uploaded, by outcome.";
    symbol_builds_removed Counter "fleetprof_collector_symbol_builds_removed_total" "" "Builds whose symbols were removed to make room for others.";
    debuginfod_fetched Counter "fleetprof_collector_debuginfod_total" "outcome=\"fetched\"" "Builds that debuginfod servers were asked for, by outcome.";
    debuginfod_absent Counter "fleetprof_collector_debuginfod_total" "outcome=\"absent\"" "Builds that debuginfod servers were asked for, by outcome.";
    debuginfod_refused Counter "fleetprof_collector_debuginfod_total" "outcome=\"refused\"" "Builds that debuginfod servers were asked for, by outcome.";
    debuginfod_failed Counter "fleetprof_collector_debuginfod_total" "outcome=\"unavailable\"" "Builds that debuginfod servers were asked for, by outcome.";
    http_requests Counter "fleetprof_collector_http_requests_total" "" "Requests over HTTP, those refused included.";
    http_refused Counter "fleetprof_collector_http_refused_total" "" "Requests over HTTP for another host's name or from another site's page.";
    connections_grpc Gauge "fleetprof_collector_connections" "listener=\"grpc\"" "Connections that are open, by listener.";
    connections_http Gauge "fleetprof_collector_connections" "listener=\"http\"" "Connections that are open, by listener.";
    connections_evicted Counter "fleetprof_collector_connections_evicted_total" "" "Connections over HTTP closed to make room for others.";
    connections_silent Counter "fleetprof_collector_connections_silent_total" "" "Connections over gRPC closed because no call came for long.";
    connections_refused Counter "fleetprof_collector_connections_refused_total" "" "Connections of other hosts refused before their first call: no handshake, or a certificate of no member.";
    misplaced_grpc Counter "fleetprof_collector_connections_misplaced_total" "listener=\"grpc\"" "Connections told that they want the other port, by listener.";
    misplaced_http Counter "fleetprof_collector_connections_misplaced_total" "listener=\"http\"" "Connections told that they want the other port, by listener.";
}

/// Numbers of the stores, with a sentence each.
const STORE_HELP: &[(&str, &str)] = &[
    ("bytes", "What the store takes on disk."),
    ("bytes_max", "What it may take on disk; 0: no bound."),
    (
        "chunks_compacted_total",
        "Chunks of ten minutes whose parts, one a flush, were put together.",
    ),
    (
        "coarsening_bytes",
        "Size of the coarser partition that is being written, next to the finer one.",
    ),
    ("dictionary_bytes", "Memory for dictionaries of partitions."),
    (
        "flush_failures_total",
        "Times that what is in memory could not be written to its partition.",
    ),
    (
        "hours_added_up_total",
        "Hours added up by service, once more when windows came late.",
    ),
    (
        "label_sets_folded_total",
        "Label sets that kept their host only, because there are too many.",
    ),
    (
        "level_bytes",
        "What partitions take on disk, by how fine they are.",
    ),
    (
        "log_batches_total",
        "Batches written to the write-ahead log, one fsync each.",
    ),
    ("log_bytes", "Size of the write-ahead log."),
    (
        "log_written_bytes_total",
        "Bytes written to the write-ahead log.",
    ),
    (
        "log_records_lost_total",
        "Records of the write-ahead log that were there and could not be read at the start.",
    ),
    (
        "set_aside_bytes",
        "Size of damaged partitions and unusable segments of the log that were set aside.",
    ),
    (
        "set_aside_removed_total",
        "Files that had been set aside, removed because the disk budget was used up.",
    ),
    (
        "log_failures_total",
        "Times that the write-ahead log could not be written; nothing was acknowledged.",
    ),
    (
        "log_records_replayed_total",
        "Records of the write-ahead log taken over after a start.",
    ),
    (
        "log_records_unusable_total",
        "Records of the write-ahead log that could not be taken over.",
    ),
    (
        "log_torn_bytes_total",
        "Bytes at the end of the write-ahead log that a crash had left torn.",
    ),
    (
        "memtable_bytes",
        "Memory for windows that are in the log and not yet in their partition.",
    ),
    ("partitions", "Partitions that answer."),
    (
        "partitions_damaged_total",
        "Partitions set aside because they are damaged.",
    ),
    (
        "partitions_coarsened_total",
        "Partitions made coarser for their age.",
    ),
    ("partitions_removed_total", "Partitions removed, by cause."),
    ("rows_flushed_total", "Rows written to partitions."),
    (
        "rows_folded_total",
        "Rows put under `[other]` because a dictionary is full.",
    ),
    (
        "partitions_opened_at_start",
        "Partitions read at the start, because they had changed since the manifest was written.",
    ),
    (
        "partitions_read_total",
        "Partitions that queries read, counted each time; it does not grow with how long data is kept.",
    ),
    ("series", "Label sets known, over the partitions in memory."),
    ("stacks", "Stacks known, over the partitions in memory."),
    (
        "tidy_failures_total",
        "Times that compacting or making coarser failed; the finer data stayed.",
    ),
    (
        "tidy_pending",
        "1 while something is to be compacted or made coarser and waits for its turn.",
    ),
    ("windows_total", "Windows pushed, by what became of them."),
];

/// The sentence of a number of the store.
fn store_help(name: &str) -> Option<&'static str> {
    let own = name.strip_prefix("fleetprof_store_")?;
    let known = STORE_HELP.iter().find(|(name, _)| *name == own);
    known.map(|(_, help)| *help)
}

impl Metrics {
    /// Everything as Prometheus text: the collector's own numbers, then the store's.
    pub fn render(&self, store: &dyn StoreStatus) -> String {
        let mut out = String::new();
        let mut last = "";
        for row in self.rows() {
            if row.name != last {
                let word = match row.kind {
                    Kind::Gauge => "gauge",
                    Kind::Counter | Kind::CounterNs => "counter",
                };
                // Writing to a String cannot fail.
                let _ = writeln!(out, "# HELP {0} {1}\n# TYPE {0} {word}", row.name, row.help);
                last = row.name;
            }
            out.push_str(row.name);
            if !row.labels.is_empty() {
                let _ = write!(out, "{{{}}}", row.labels);
            }
            let value = row.value.get();
            let _ = match row.kind {
                Kind::Counter | Kind::Gauge => writeln!(out, " {value}"),
                Kind::CounterNs => {
                    let (whole, rest) = (value / 1_000_000_000, value % 1_000_000_000);
                    writeln!(out, " {whole}.{rest:09}")
                }
            };
        }
        render_store(&mut out, store.counters());
        out
    }

    /// The counters as Status tells them, the store's among them.
    pub fn counters(&self, store: &dyn StoreStatus) -> Vec<agent::Counter> {
        let own = self.rows().into_iter().map(|row| agent::Counter {
            name: row.name.to_owned(),
            labels: row.labels.to_owned(),
            value: row.value.get(),
        });
        let stores = store.counters().into_iter().map(|(name, value)| {
            let (name, labels) = split(&name);
            agent::Counter {
                name: name.to_owned(),
                labels: labels.to_owned(),
                value,
            }
        });
        own.chain(stores).collect()
    }
}

/// Name and labels of `name{labels}`.
fn split(name: &str) -> (&str, &str) {
    match name.split_once('{') {
        Some((name, labels)) => (name, labels.strip_suffix('}').unwrap_or(labels)),
        None => (name, ""),
    }
}

fn render_store(out: &mut String, mut counters: Vec<(String, u64)>) {
    // Rows of one family must stand together.
    counters.sort();
    let mut last = String::new();
    for (full, value) in counters {
        let (name, _) = split(&full);
        if name != last {
            let word = if name.ends_with("_total") {
                "counter"
            } else {
                "gauge"
            };
            let help = store_help(name).unwrap_or("Kept by the engine of the store.");
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {word}");
            name.clone_into(&mut last);
        }
        let _ = writeln!(out, "{full} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn names_and_sentences_are_as_prometheus_wants_them() {
        let metrics = Metrics::default();
        let mut families: BTreeMap<&str, &str> = BTreeMap::new();
        let mut last = "";
        for row in metrics.rows() {
            assert!(row.help.ends_with('.'), "{}", row.name);
            assert!(row.name.starts_with("fleetprof_collector_"), "{}", row.name);
            let counts = row.name.ends_with("_total");
            assert_eq!(counts, row.kind != Kind::Gauge, "{}", row.name);
            let seconds = row.name.ends_with("_seconds_total");
            assert_eq!(seconds, row.kind == Kind::CounterNs, "{}", row.name);
            let known = families.insert(row.name, row.help);
            assert!(known.is_none_or(|help| help == row.help), "{}", row.name);
            assert!(known.is_none() || last == row.name, "{} is torn", row.name);
            last = row.name;
        }
    }

    #[test]
    fn every_number_of_the_embedded_store_has_a_sentence() {
        let dir = tempfile::tempdir().expect("a directory");
        let options = crate::store::embedded::Options::default();
        let store = crate::store::embedded::EmbeddedStore::open(dir.path(), options, 1);
        let counters = store.expect("opens").counters();
        for (name, _) in &counters {
            let (name, _) = split(name);
            let help = store_help(name);
            assert!(help.is_some_and(|help| help.ends_with('.')), "{name}");
        }
    }

    #[test]
    fn numbers_of_the_store_stand_by_family() {
        let mut out = String::new();
        let rows = [("b{x=\"2\"}", 2), ("a_total", 1), ("b{x=\"1\"}", 3)];
        render_store(&mut out, rows.map(|(n, v)| (n.to_owned(), v)).to_vec());
        let values: Vec<&str> = out.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(values, ["a_total 1", "b{x=\"1\"} 3", "b{x=\"2\"} 2"]);
        assert_eq!(out.matches("# TYPE b gauge").count(), 1);
    }
}
