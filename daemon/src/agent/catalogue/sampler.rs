//! Metrics of the sampler thread and of the process table.

use metrics::{Family, gather};
use perf::cpu_ring::CpuCounts;
use sampler::{Facts, SamplerHandle};

/// Reads them.
pub(super) fn families(sampler: &SamplerHandle, facts: &Facts) -> impl Iterator<Item = Family> {
    gather(SAMPLER, sampler).chain(gather(FACTS, facts))
}

metrics::rows! { SAMPLER: SamplerHandle;
    /// Created cgroups whose paths found no room; the daemon names them from the cgroup tree if
    /// they still exist.
    Counter fleetprof_cgroups_refused_total = |s| &s.cgroups_refused;
    /// Commands dropped because the queue of the sampler thread was full.
    Counter fleetprof_sampler_commands_refused_total = |s| &s.commands_refused;
    /// Samples folded, not counting the idle loop.
    Counter fleetprof_samples_total = |s| &s.samples;
    /// Times the sampler thread woke up.
    Counter fleetprof_sampler_wakeups_total = |s| &s.wakeups;
    /// Times a window was extended because the symbolizer was not ready.
    Counter fleetprof_batches_deferred_total = |s| &s.deferred_batches;
    /// Executables that found the queue for opening files full; they are announced again.
    Counter fleetprof_files_deferred_total = |s| &s.deferred.files;
    /// Processes with generated code that found the queue of fp-jit full; they are announced again.
    Counter fleetprof_code_notices_deferred_total = |s| &s.deferred.notices;
    /// Records that arrived after newer records had been processed.
    Counter fleetprof_records_late_total = |s| &s.late_records;
    /// Records skipped because they were damaged.
    Counter fleetprof_records_malformed_total = |s| &s.malformed_records;
    /// Times a ring buffer was full and stuck for seconds, and was flushed.
    Counter fleetprof_rings_flushed_total = |s| &s.rings_flushed;
    /// Times the sampler closed ring buffers itself because the thread for that was stuck.
    Counter fleetprof_rings_closed_by_sampler_total = |s| &s.rings_closed;
    /// Lost records that found no room in a stuck ring buffer.
    Counter fleetprof_records_lost_stalled_total = |s| &s.lost_stalled;
    /// Records of processes, mappings and names that found no room in their ring buffers.
    Counter fleetprof_side_band_records_lost_total = |s| &s.lost_side_band;
    /// Kernel modules and BPF programs that were loaded or unloaded.
    Counter fleetprof_kernel_code_changes_total = |s| &s.kernel_code_changes;
}

metrics::rows! { FACTS: Facts;
    /// Samples read, by CPU.
    Counter fleetprof_cpu_samples_total{cpu} = |f| by_cpu(f, |cpu| cpu.samples);
    /// Records that found no room in the ring buffer, by CPU.
    Counter fleetprof_cpu_lost_total{cpu} = |f| by_cpu(f, |cpu| cpu.lost);
    /// Estimated samples lost, or not taken while throttled, by CPU.
    Counter fleetprof_cpu_missed_samples_total{cpu} = |f| by_cpu(f, |cpu| cpu.missed);
    /// Times the kernel throttled the event, by CPU.
    Counter fleetprof_cpu_throttled_total{cpu} = |f| by_cpu(f, |cpu| cpu.throttled);
    /// Processes known.
    Gauge fleetprof_processes = |f| f.processes_known as u64;
    /// Entries that the process table refused or had to guess, by cause.
    Counter fleetprof_process_table_refused_total{cause} = |f| [
        ("process_unannounced", f.processes.unannounced),
        ("process_bound", f.processes.refused),
        ("mapping_bound", f.processes.mappings_refused),
        ("file_bound", f.processes.files_forgotten),
        ("file_refused", f.processes.files_refused),
        ("file_ahead_bound", f.processes.ahead_refused),
        ("process_repaired", f.processes.repaired),
        ("process_end_unseen", f.processes.ends_unseen),
        ("process_end_uncertain", f.processes.ends_uncertain),
        ("thread_end_unseen", f.processes.thread_ends_unseen),
        ("thread_bound", f.processes.threads_refused),
        ("mappings_forgotten", f.processes.spaces_forgotten),
        ("scan_outrun", f.processes.scans_outrun),
        ("jitdump_bound", f.processes.dumps_untold),
    ];
}

fn by_cpu(facts: &Facts, pick: fn(&CpuCounts) -> u64) -> impl Iterator<Item = (String, u64)> {
    let cpus = facts.cpus.iter();
    cpus.map(move |(cpu, counts)| (cpu.0.to_string(), pick(counts)))
}
