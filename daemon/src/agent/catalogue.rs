//! The catalogue of the daemon's own metrics: every counter of every stage with its sentence.

use super::{Agent, lock};
use crate::aggregate::recorder::RecorderStats;
use crate::metrics::{Kind, Registry, register_own_cost};
use profile::Quality;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, Weak};

/// Registers everything. Readers hold no reference that would keep the agent alive.
pub(super) fn registry(agent: &Arc<Agent>) -> Arc<Registry> {
    let registry = Registry::new();
    register_own_cost(&registry);
    sampler(&registry, agent);
    recorder(&registry, agent);
    for (name, help, _) in agent.symbols.all() {
        let full = symbol_metric_name(name);
        let weak = Arc::downgrade(agent);
        registry.read_one(full, help, Kind::Counter, move || {
            let Some(agent) = weak.upgrade() else {
                return 0;
            };
            agent
                .symbols
                .all()
                .find(|(found, ..)| *found == name)
                .map_or(0, |(.., value)| value)
        });
    }
    Arc::new(registry)
}

/// `fleetprof_symbols_<name>_total`; leaked once for each of the fixed list of names.
fn symbol_metric_name(name: &str) -> &'static str {
    Box::leak(format!("fleetprof_symbols_{name}_total").into_boxed_str())
}

fn one(
    registry: &Registry,
    agent: &Arc<Agent>,
    name: &'static str,
    help: &'static str,
    kind: Kind,
    read: impl Fn(&Agent) -> u64 + Send + Sync + 'static,
) {
    let weak: Weak<Agent> = Arc::downgrade(agent);
    registry.read_one(name, help, kind, move || {
        weak.upgrade().map_or(0, |agent| read(&agent))
    });
}

fn sampler(registry: &Registry, agent: &Arc<Agent>) {
    type Pick = fn(&crate::sampler::Shared) -> &AtomicU64;
    let counters: [(&str, &str, Pick); 7] = [
        (
            "fleetprof_samples_total",
            "Samples folded, the idle loop's left out.",
            |s| &s.samples,
        ),
        (
            "fleetprof_sampler_wakeups_total",
            "Times the sampler thread woke up.",
            |s| &s.wakeups,
        ),
        (
            "fleetprof_batches_deferred_total",
            "Times a window went on because the namer was not ready for it.",
            |s| &s.deferred_batches,
        ),
        (
            "fleetprof_files_deferred_total",
            "Executables that found the opening queue full, to be announced again.",
            |s| &s.announcements_deferred,
        ),
        (
            "fleetprof_records_late_total",
            "Records that came after younger ones had been used.",
            |s| &s.late_records,
        ),
        (
            "fleetprof_records_malformed_total",
            "Records skipped because their bytes made no sense.",
            |s| &s.malformed_records,
        ),
        (
            "fleetprof_kernel_code_changes_total",
            "Kernel modules and BPF programs that came or went.",
            |s| &s.kernel_code_changes,
        ),
    ];
    for (name, help, pick) in counters {
        one(registry, agent, name, help, Kind::Counter, move |agent| {
            pick(&agent.sampler).load(Ordering::Relaxed)
        });
    }
    for (name, help, pick) in [
        (
            "fleetprof_cpu_samples_total",
            "Samples read, by CPU; starts again when sampling is set up anew.",
            (|counts| counts.samples) as fn(&crate::perf::rings::CpuCounts) -> u64,
        ),
        (
            "fleetprof_cpu_lost_total",
            "Records that found no room in the ring buffer, by CPU.",
            |counts| counts.lost,
        ),
        (
            "fleetprof_cpu_throttled_total",
            "Times the kernel throttled the event, by CPU.",
            |counts| counts.throttled,
        ),
    ] {
        let weak = Arc::downgrade(agent);
        registry.read(name, help, Kind::Counter, move || {
            let Some(agent) = weak.upgrade() else {
                return Vec::new();
            };
            let facts = lock(&agent.sampler.facts);
            let cpus = facts.cpus.iter();
            cpus.map(|(cpu, counts)| (vec![("cpu", cpu.0.to_string())], pick(counts)))
                .collect()
        });
    }
    one(
        registry,
        agent,
        "fleetprof_processes",
        "Processes known.",
        Kind::Gauge,
        |agent| lock(&agent.sampler.facts).processes_known as u64,
    );
    let weak = Arc::downgrade(agent);
    registry.read(
        "fleetprof_process_table_refused_total",
        "What the process table refused or had to guess, by cause.",
        Kind::Counter,
        move || {
            let Some(agent) = weak.upgrade() else {
                return Vec::new();
            };
            let counts = lock(&agent.sampler.facts).processes;
            [
                ("process_unannounced", counts.unannounced),
                ("process_bound", counts.refused),
                ("mapping_bound", counts.mappings_refused),
                ("file_bound", counts.files_forgotten),
                ("process_repaired", counts.repaired),
            ]
            .map(|(cause, value)| (vec![("cause", cause.to_owned())], value))
            .into()
        },
    );
}

fn recorder(registry: &Registry, agent: &Arc<Agent>) {
    let weak = Arc::downgrade(agent);
    registry.read(
        "fleetprof_samples_missed_total",
        "Samples that are missing or incomplete in profiles, by cause.",
        Kind::Counter,
        move || {
            let Some(agent) = weak.upgrade() else {
                return Vec::new();
            };
            let quality = agent
                .recorder
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .totals_of_quality();
            let Quality {
                taken: _,
                idle,
                lost,
                throttled,
                folded,
                truncated,
                incomplete,
                unnamed,
                malformed,
            } = quality;
            [
                ("idle", idle),
                ("lost", lost),
                ("throttled", throttled),
                ("folded", folded),
                ("truncated", truncated),
                ("incomplete", incomplete),
                ("unnamed", unnamed),
                ("malformed", malformed),
            ]
            .map(|(cause, value)| (vec![("cause", cause.to_owned())], value))
            .into()
        },
    );
    let weak = Arc::downgrade(agent);
    registry.read(
        "fleetprof_recorder_dropped_total",
        "What the flight recorder dropped or coarsened, by cause. Unit: windows, or samples.",
        Kind::Counter,
        move || {
            let Some(agent) = weak.upgrade() else {
                return Vec::new();
            };
            let recorder = agent
                .recorder
                .read()
                .unwrap_or_else(PoisonError::into_inner);
            let totals = recorder.stats().totals;
            [
                ("window_age", totals.dropped_by_age),
                ("window_budget", totals.dropped_by_budget),
                ("window_coarsened", totals.coarsened),
                ("sample_folded", totals.folded_samples),
            ]
            .map(|(cause, value)| (vec![("cause", cause.to_owned())], value))
            .into()
        },
    );
    type Pick = fn(&RecorderStats) -> u64;
    let gauges: [(&str, &str, Pick); 3] = [
        (
            "fleetprof_recorder_bytes",
            "Memory of the flight recorder.",
            |s| s.bytes as u64,
        ),
        ("fleetprof_recorder_budget_bytes", "Its budget.", |s| {
            s.budget_bytes as u64
        }),
        ("fleetprof_recorder_windows", "Windows kept.", |s| {
            s.windows as u64
        }),
    ];
    for (name, help, pick) in gauges {
        one(registry, agent, name, help, Kind::Gauge, move |agent| {
            pick(
                &agent
                    .recorder
                    .read()
                    .unwrap_or_else(PoisonError::into_inner)
                    .stats(),
            )
        });
    }
}
