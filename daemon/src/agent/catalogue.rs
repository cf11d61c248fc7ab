//! The catalogue of the daemon's own metrics: every counter of every stage with its sentence.

mod captures;
mod containers;
mod control;
mod triggers;
mod unwinding;

use super::coverage::Cause;
use super::{Agent, Budget};
use aggregate::recorder::{Outcomes, RecorderStats};
use cgroup::usage::UsageStats;
use export::{Cause as DropCause, ExportCounts};
use host::sync::lock;
use metrics::{Kind, Registry, register_own_cost};
use profile::{Quality, StackEnd, Unnamed};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, Weak};

/// Registers everything. Readers hold no reference that would keep the agent alive.
pub(super) fn registry(agent: &Arc<Agent>) -> Arc<Registry> {
    let registry = Registry::new();
    register_own_cost(&registry);
    sampler(&registry, agent);
    unwinding::register(&registry, agent);
    looks(&registry, agent);
    recorder(&registry, agent);
    outcomes(&registry, agent);
    budget(&registry, agent);
    usage(&registry, agent);
    refused_clients(&registry);
    captures::register(&registry, agent);
    containers::register(&registry, agent);
    triggers::register(&registry, agent);
    coverage(&registry, agent);
    if agent.uplink.get().is_some() {
        uplink(&registry, agent);
    }
    for (name, help, _) in agent.counters.symbols.all() {
        let full = symbol_metric_name(name);
        let weak = Arc::downgrade(agent);
        registry.read_one(full, help, Kind::Counter, move || {
            let Some(agent) = weak.upgrade() else {
                return 0;
            };
            agent
                .counters
                .symbols
                .all()
                .find(|(found, ..)| *found == name)
                .map_or(0, |(.., value)| value)
        });
    }
    Arc::new(registry)
}

/// Registers what there is to count of the way to the collector: at the start, or when the host
/// joins a fleet.
pub(super) fn uplink(registry: &Registry, agent: &Arc<Agent>) {
    export(registry, agent);
    control::register(registry, agent);
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
    type Pick = fn(&sampler::SamplerHandle) -> &AtomicU64;
    let counters: [(&str, &str, Pick); 14] = [
        (
            "fleetprof_cgroups_refused_total",
            "Cgroups made whose paths found no room; they are named from the tree, if they are still there.",
            |s| &s.cgroups_refused,
        ),
        (
            "fleetprof_sampler_commands_refused_total",
            "Commands to the sampler thread that found its queue full.",
            |s| &s.commands_refused,
        ),
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
            "Times a window went on because the symbolizer was not ready for it.",
            |s| &s.deferred_batches,
        ),
        (
            "fleetprof_files_deferred_total",
            "Executables that found the opening queue full, to be announced again.",
            |s| &s.deferred.files,
        ),
        (
            "fleetprof_code_notices_deferred_total",
            "Processes with generated code that found the queue of fp-jit full, to be told of again.",
            |s| &s.deferred.notices,
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
            "fleetprof_rings_flushed_total",
            "Times a ring buffer was full, did not move for seconds, and was flushed.",
            |s| &s.rings_flushed,
        ),
        (
            "fleetprof_rings_closed_by_sampler_total",
            "Times the sampler closed ring buffers itself because the thread that does it stood still.",
            |s| &s.rings_closed,
        ),
        (
            "fleetprof_records_lost_stalled_total",
            "Records that found no room in a ring buffer that did not move, out of those lost.",
            |s| &s.lost_stalled,
        ),
        (
            "fleetprof_side_band_records_lost_total",
            "Records of processes, mappings and names that found no room in the ring buffers of their own.",
            |s| &s.lost_side_band,
        ),
        (
            "fleetprof_kernel_code_changes_total",
            "Kernel modules and BPF programs that came or went.",
            |s| &s.kernel_code_changes,
        ),
    ];
    for (name, help, pick) in counters {
        one(registry, agent, name, help, Kind::Counter, move |agent| {
            pick(&agent.sampling.sampler).load(Ordering::Relaxed)
        });
    }
    for (name, help, pick) in [
        (
            "fleetprof_cpu_samples_total",
            "Samples read, by CPU.",
            (|counts| counts.samples) as fn(&perf::cpu_ring::CpuCounts) -> u64,
        ),
        (
            "fleetprof_cpu_lost_total",
            "Records that found no room in the ring buffer, by CPU.",
            |counts| counts.lost,
        ),
        (
            "fleetprof_cpu_missed_samples_total",
            "Samples estimated to have been lost or not taken while throttled, by CPU.",
            |counts| counts.missed,
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
            let facts = lock(&agent.sampling.sampler.facts);
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
        |agent| lock(&agent.sampling.sampler.facts).processes_known as u64,
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
            let counts = lock(&agent.sampling.sampler.facts).processes;
            [
                ("process_unannounced", counts.unannounced),
                ("process_bound", counts.refused),
                ("mapping_bound", counts.mappings_refused),
                ("file_bound", counts.files_forgotten),
                ("file_refused", counts.files_refused),
                ("file_ahead_bound", counts.ahead_refused),
                ("process_repaired", counts.repaired),
                ("process_end_unseen", counts.ends_unseen),
                ("process_end_uncertain", counts.ends_uncertain),
                ("thread_end_unseen", counts.thread_ends_unseen),
                ("thread_bound", counts.threads_refused),
                ("mappings_forgotten", counts.spaces_forgotten),
                ("scan_outrun", counts.scans_outrun),
                ("jitdump_bound", counts.dumps_untold),
            ]
            .map(|(cause, value)| (vec![("cause", cause.to_owned())], value))
            .into()
        },
    );
}

fn outcomes(registry: &Registry, agent: &Arc<Agent>) {
    type Rows = fn(&Outcomes) -> Vec<(&'static str, u64)>;
    let tables: [(&str, &str, &str, Rows); 2] = [
        (
            "fleetprof_stack_ends_total",
            "Samples by how their stack ended; agent-ctl doctor explains each.",
            "end",
            |outcomes| {
                let ends = StackEnd::ALL.iter();
                ends.map(|&end| (end.word(), outcomes.ended(end))).collect()
            },
        ),
        (
            "fleetprof_unnamed_leaves_total",
            "Samples whose leaf frame has no symbol, by reason; agent-ctl doctor explains each.",
            "reason",
            |outcomes| {
                let reasons = Unnamed::ALL.iter().filter(|&&reason| reason != Unnamed::No);
                reasons
                    .map(|&reason| (reason.word(), outcomes.unnamed(reason)))
                    .collect()
            },
        ),
    ];
    for (name, help, label, rows) in tables {
        let weak = Arc::downgrade(agent);
        registry.read(name, help, Kind::Counter, move || {
            let Some(agent) = weak.upgrade() else {
                return Vec::new();
            };
            let recorder = agent.recorder.read();
            let outcomes = recorder.unwrap_or_else(PoisonError::into_inner).outcomes();
            let reading = |(word, value): (&str, u64)| (vec![(label, word.to_owned())], value);
            rows(&outcomes).into_iter().map(reading).collect()
        });
    }
}

fn looks(registry: &Registry, agent: &Arc<Agent>) {
    use unwind::walk::deep_stacks::LookCounts;
    use unwind::walk::look::Failure;
    type Pick = fn(&LookCounts) -> u64;
    let metrics: [(&str, &str, Kind, Pick); 8] = [
        (
            "fleetprof_looks_asked_total",
            "Looks at the memory of threads asked for, to complete stacks that the copy cuts.",
            Kind::Counter,
            |c| c.asked,
        ),
        (
            "fleetprof_looks_taken_total",
            "Looks that brought the callers of a cut frame.",
            Kind::Counter,
            |c| c.taken,
        ),
        (
            "fleetprof_looks_refused_total",
            "Looks put off or dropped because of a bound on their number, rate or memory.",
            Kind::Counter,
            |c| c.refused,
        ),
        (
            "fleetprof_looks_outlived_total",
            "Looks dropped because the call they were of had returned.",
            Kind::Counter,
            |c| c.outlived,
        ),
        (
            "fleetprof_looks_dropped_total",
            "Looks dropped because their thread or program ended, or no sample needed them.",
            Kind::Counter,
            |c| c.dropped,
        ),
        (
            "fleetprof_looks_held",
            "Looks held now, each with one debug register of its thread.",
            Kind::Gauge,
            |c| c.held,
        ),
        (
            "fleetprof_look_bytes",
            "Memory of the looks held now.",
            Kind::Gauge,
            |c| c.bytes,
        ),
        (
            "fleetprof_look_samples_completed_total",
            "Samples whose stack was completed by a look.",
            Kind::Counter,
            |c| c.completed,
        ),
    ];
    for (name, help, kind, pick) in metrics {
        one(registry, agent, name, help, kind, move |agent| {
            pick(&lock(&agent.sampling.sampler.facts).unwinding.looks)
        });
    }
    let weak = Arc::downgrade(agent);
    registry.read(
        "fleetprof_looks_failed_total",
        "Looks that could not be had, by cause.",
        Kind::Counter,
        move || {
            let Some(agent) = weak.upgrade() else {
                return Vec::new();
            };
            let failed = lock(&agent.sampling.sampler.facts).unwinding.looks.failed;
            let causes = Failure::ALL.iter().zip(failed);
            causes
                .map(|(cause, count)| (vec![("cause", cause.word().to_owned())], count))
                .collect()
        },
    );
}

fn recorder(registry: &Registry, agent: &Arc<Agent>) {
    let weak = Arc::downgrade(agent);
    registry.read(
        "fleetprof_samples_missed_total",
        "Samples that are missing or incomplete in profiles, by cause. Why stacks are truncated: \
         fleetprof_stack_ends_total.",
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
                depth_limit: _,
                unnamed,
                malformed,
                lost_samples,
                reduced,
                lost_late,
            } = quality;
            [
                ("idle", idle),
                ("lost", lost.saturating_sub(lost_late)),
                ("lost_late", lost_late),
                ("throttled", throttled),
                ("folded", folded),
                ("truncated", truncated),
                ("unnamed", unnamed),
                ("malformed", malformed),
                ("lost_samples", lost_samples),
                ("reduced", reduced),
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
                ("sample_time", totals.times_dropped),
            ]
            .map(|(cause, value)| (vec![("cause", cause.to_owned())], value))
            .into()
        },
    );
    type Pick = fn(&RecorderStats) -> u64;
    let gauges: [(&str, &str, Pick); 4] = [
        (
            "fleetprof_recorder_times_bytes",
            "Memory of the times of single samples, apart from the flight recorder's.",
            |s| s.times_bytes as u64,
        ),
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

fn coverage(registry: &Registry, agent: &Arc<Agent>) {
    let weak = Arc::downgrade(agent);
    registry.read(
        "fleetprof_coverage_recent_ppm",
        "Part of the CPU time accounted by the kernel in the last minute that was sampled; absent when \
         nothing was measured. Unit: millionths.",
        Kind::Gauge,
        move || {
            let Some(agent) = weak.upgrade() else {
                return Vec::new();
            };
            let (ledger, _) = aggregate::recorder::read(&agent.recorder).recent_ledger();
            let share = ledger.coverage().share();
            let ppm = share.map(|share| (share * 1e6).round() as u64);
            ppm.map(|ppm| (Vec::new(), ppm)).into_iter().collect()
        },
    );
    let weak = Arc::downgrade(agent);
    registry.read(
        "fleetprof_coverage_low",
        "1 when so much of the last minute is missing that profiles of it mislead, by its largest cause.",
        Kind::Gauge,
        move || {
            let Some(agent) = weak.upgrade() else {
                return Vec::new();
            };
            let recent = aggregate::recorder::read(&agent.recorder).recent_ledger();
            let low = agent.coverage_low(&recent).map(|low| low.cause);
            let reading = |cause: Cause| {
                let labels = vec![("cause", cause.word().to_owned())];
                (labels, u64::from(low == Some(cause)))
            };
            Cause::ALL.map(reading).into()
        },
    );
}

fn budget(registry: &Registry, agent: &Arc<Agent>) {
    type Pick = fn(&Budget) -> u64;
    let gauges: [(&str, &str, Pick); 7] = [
        (
            "fleetprof_budget_cpu_ppm",
            "CPU time the daemon may take, answering clients and files of users and containers aside. Unit: millionths of one CPU.",
            |b| b.cpu.budget_ppm(),
        ),
        (
            "fleetprof_budget_cpu_used_ppm",
            "CPU time it took over the last minute. Unit: millionths of one CPU.",
            |b| b.cpu.used_ppm().unwrap_or(0),
        ),
        (
            "fleetprof_budget_cpu_serving_ppm",
            "CPU time it took to answer clients over the last minute. Unit: millionths of one CPU.",
            |b| b.serving_ppm(),
        ),
        (
            "fleetprof_budget_cpu_level",
            "Steps by which sampling is lowered to keep the CPU budget.",
            |b| b.cpu.level() as u64,
        ),
        (
            "fleetprof_budget_memory_bytes",
            "Memory the daemon may take, ring buffers aside.",
            |b| b.memory.budget() as u64,
        ),
        (
            "fleetprof_budget_memory_used_bytes",
            "Memory it took when it was last read.",
            |b| b.memory.used().unwrap_or(0) as u64,
        ),
        (
            "fleetprof_budget_memory_level",
            "Steps by which caches and recorder are lowered to keep the memory budget.",
            |b| b.memory.level() as u64,
        ),
    ];
    for (name, help, pick) in gauges {
        one(registry, agent, name, help, Kind::Gauge, move |agent| {
            pick(&lock(&agent.budget.state))
        });
    }
    let weak = Arc::downgrade(agent);
    registry.read(
        "fleetprof_budget_cpu_ns_total",
        "CPU time the daemon used, by what for; its CPU budget governs its own work alone.",
        Kind::Counter,
        move || {
            let Some(agent) = weak.upgrade() else {
                return Vec::new();
            };
            let used = lock(&agent.budget.state).cpu_ns();
            used.map(|(part, value)| (vec![("part", part.to_owned())], value))
                .into()
        },
    );
    let weak = Arc::downgrade(agent);
    registry.read(
        "fleetprof_budget_steps_total",
        "What was done to keep the budgets and to copy as much of stacks as they need, by kind.",
        Kind::Counter,
        move || {
            let Some(agent) = weak.upgrade() else {
                return Vec::new();
            };
            let counts = lock(&agent.budget.state).counts;
            [
                ("cpu_lowered", counts.cpu_lowered),
                ("cpu_raised", counts.cpu_raised),
                ("cpu_refused", counts.cpu_refused),
                ("copies_lowered", counts.copies_lowered),
                ("copies_raised", counts.copies_raised),
                ("copies_refused", counts.copies_refused),
                ("memory_lowered", counts.memory_lowered),
                ("memory_raised", counts.memory_raised),
                ("memory_trimmed", counts.memory_trimmed),
            ]
            .map(|(step, value)| (vec![("step", step.to_owned())], value))
            .into()
        },
    );
}

/// What became of those who asked over gRPC, and were not answered.
fn refused_clients(registry: &Registry) {
    registry.read(
        "fleetprof_grpc_refused_total",
        "Connections closed and answers refused, by cause.",
        Kind::Counter,
        || {
            use crate::grpc::{ANSWERS_REFUSED, CONNECTIONS};
            [
                ("connection_silent", &CONNECTIONS.silent),
                ("connection_made_room", &CONNECTIONS.made_room),
                ("answers_held", &ANSWERS_REFUSED),
            ]
            .map(|(cause, count)| {
                let count = count.load(Ordering::Relaxed);
                (vec![("cause", cause.to_owned())], count)
            })
            .into()
        },
    );
}

fn usage(registry: &Registry, agent: &Arc<Agent>) {
    type Pick = fn(&UsageStats) -> u64;
    let counters: [(&str, &str, Pick); 5] = [
        (
            "fleetprof_cgroup_names_evicted_total",
            "Names of cgroups dropped because there were too many, or took too much memory.",
            |usage| usage.names.evicted,
        ),
        (
            "fleetprof_cgroup_names_unknown_total",
            "Cgroups with samples that no source could name.",
            |usage| usage.names.unknown,
        ),
        (
            "fleetprof_host_cpu_ns_total",
            "CPU time of the host in closed windows, as the kernel accounts it.",
            |usage| usage.host_ns,
        ),
        (
            "fleetprof_cgroup_readings_total",
            "Readings of the kernel's CPU accounting of a cgroup.",
            |usage| usage.reads,
        ),
        (
            "fleetprof_cgroup_meters_evicted_total",
            "Cgroups whose last reading was dropped because there were too many.",
            |usage| usage.evicted,
        ),
    ];
    for (name, help, pick) in counters {
        one(registry, agent, name, help, Kind::Counter, move |agent| {
            pick(&aggregate::recorder::read(&agent.recorder).usage())
        });
    }
    let weak = Arc::downgrade(agent);
    registry.read(
        "fleetprof_cgroup_unmeasured_total",
        "Cgroups that had samples in a window and no reading for it, by cause.",
        Kind::Counter,
        move || {
            let Some(agent) = weak.upgrade() else {
                return Vec::new();
            };
            let usage = aggregate::recorder::read(&agent.recorder).usage();
            [
                ("bound", usage.over_bound),
                ("unknown", usage.unmeasured.saturating_sub(usage.over_bound)),
            ]
            .map(|(cause, value)| (vec![("cause", cause.to_owned())], value))
            .into()
        },
    );
}

fn export(registry: &Registry, agent: &Arc<Agent>) {
    type Pick = fn(&ExportCounts) -> u64;
    let counts = |agent: &Agent| {
        let exporter = agent.uplink.get().map(|uplink| &uplink.exporter);
        exporter
            .map(|exporter| exporter.counts())
            .unwrap_or_default()
    };
    let rows: [(&str, &str, Kind, Pick); 9] = [
        (
            "fleetprof_export_windows_total",
            "Windows that closed and are to reach the collector.",
            Kind::Counter,
            |c| c.taken_windows,
        ),
        (
            "fleetprof_export_acked_windows_total",
            "Windows the collector has acknowledged.",
            Kind::Counter,
            |c| c.acked_windows,
        ),
        (
            "fleetprof_export_acked_samples_total",
            "Samples in windows the collector has acknowledged.",
            Kind::Counter,
            |c| c.acked_samples,
        ),
        (
            "fleetprof_export_repeated_windows_total",
            "Windows the collector had already when they were sent again.",
            Kind::Counter,
            |c| c.repeated_windows,
        ),
        (
            "fleetprof_export_connections_total",
            "Times a stream to the collector started.",
            Kind::Counter,
            |c| c.connections,
        ),
        (
            "fleetprof_export_definitions_total",
            "Messages with frames of stacks the collector did not know.",
            Kind::Counter,
            |c| c.definitions,
        ),
        (
            "fleetprof_export_connected",
            "1 while there is a stream to the collector.",
            Kind::Gauge,
            |c| c.connected,
        ),
        (
            "fleetprof_export_waiting_windows",
            "Windows in the spool that the collector has not acknowledged.",
            Kind::Gauge,
            |c| c.waiting_windows,
        ),
        (
            "fleetprof_export_waiting_bytes",
            "Their bytes.",
            Kind::Gauge,
            |c| c.waiting_bytes,
        ),
    ];
    for (name, help, kind, pick) in rows {
        one(registry, agent, name, help, kind, move |agent| {
            pick(&counts(agent))
        });
    }
    for (name, help, samples) in [
        (
            "fleetprof_export_dropped_windows_total",
            "Windows given up on their way to the collector since the boot, by cause.",
            false,
        ),
        (
            "fleetprof_export_dropped_samples_total",
            "Samples in windows given up on their way to the collector since the boot, by cause.",
            true,
        ),
    ] {
        let weak = Arc::downgrade(agent);
        registry.read(name, help, Kind::Counter, move || {
            let Some(agent) = weak.upgrade() else {
                return Vec::new();
            };
            let dropped = counts(&agent).dropped;
            let causes = DropCause::ALL.iter().zip(dropped);
            causes
                .map(|(cause, (windows, in_them))| {
                    let value = if samples { in_them } else { windows };
                    (vec![("cause", cause.word().to_owned())], value)
                })
                .collect()
        });
    }
}
