//! Metrics of the thread that samples, and of the table of processes.

use metrics::{Family, gather};
use perf::cpu_ring::CpuCounts;
use sampler::{Facts, SamplerHandle};

/// Reads them.
pub(super) fn families(sampler: &SamplerHandle, facts: &Facts) -> impl Iterator<Item = Family> {
    gather(SAMPLER, sampler).chain(gather(FACTS, facts))
}

metrics::rows! { SAMPLER: SamplerHandle;
    /// Cgroups made whose paths found no room; they are named from the tree, if they are still
    /// there.
    Counter fleetprof_cgroups_refused_total = |s| &s.cgroups_refused;
    /// Commands to the sampler thread that found its queue full.
    Counter fleetprof_sampler_commands_refused_total = |s| &s.commands_refused;
    /// Samples folded, the idle loop's left out.
    Counter fleetprof_samples_total = |s| &s.samples;
    /// Times the sampler thread woke up.
    Counter fleetprof_sampler_wakeups_total = |s| &s.wakeups;
    /// Times a window went on because the symbolizer was not ready for it.
    Counter fleetprof_batches_deferred_total = |s| &s.deferred_batches;
    /// Executables that found the opening queue full, to be announced again.
    Counter fleetprof_files_deferred_total = |s| &s.deferred.files;
    /// Processes with generated code that found the queue of fp-jit full, to be told of again.
    Counter fleetprof_code_notices_deferred_total = |s| &s.deferred.notices;
    /// Records that came after younger ones had been used.
    Counter fleetprof_records_late_total = |s| &s.late_records;
    /// Records skipped because their bytes made no sense.
    Counter fleetprof_records_malformed_total = |s| &s.malformed_records;
    /// Times a ring buffer was full, did not move for seconds, and was flushed.
    Counter fleetprof_rings_flushed_total = |s| &s.rings_flushed;
    /// Times the sampler closed ring buffers itself because the thread that does it stood still.
    Counter fleetprof_rings_closed_by_sampler_total = |s| &s.rings_closed;
    /// Records that found no room in a ring buffer that did not move, out of those lost.
    Counter fleetprof_records_lost_stalled_total = |s| &s.lost_stalled;
    /// Records of processes, mappings and names that found no room in the ring buffers of their
    /// own.
    Counter fleetprof_side_band_records_lost_total = |s| &s.lost_side_band;
    /// Kernel modules and BPF programs that came or went.
    Counter fleetprof_kernel_code_changes_total = |s| &s.kernel_code_changes;
}

metrics::rows! { FACTS: Facts;
    /// Samples read, by CPU.
    Counter fleetprof_cpu_samples_total{cpu} = |f| by_cpu(f, |cpu| cpu.samples);
    /// Records that found no room in the ring buffer, by CPU.
    Counter fleetprof_cpu_lost_total{cpu} = |f| by_cpu(f, |cpu| cpu.lost);
    /// Samples estimated to have been lost or not taken while throttled, by CPU.
    Counter fleetprof_cpu_missed_samples_total{cpu} = |f| by_cpu(f, |cpu| cpu.missed);
    /// Times the kernel throttled the event, by CPU.
    Counter fleetprof_cpu_throttled_total{cpu} = |f| by_cpu(f, |cpu| cpu.throttled);
    /// Processes known.
    Gauge fleetprof_processes = |f| f.processes_known as u64;
    /// What the process table refused or had to guess, by cause.
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
