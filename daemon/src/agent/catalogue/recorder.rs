//! Metrics of the flight recorder: what it holds, what it misses, and the kernel's CPU accounting.

use crate::agent::Agent;
use crate::agent::coverage::Cause;
use aggregate::recorder::{Covered, CpuTimes, Outcomes, RecorderStats, read};
use cgroup::usage::UsageStats;
use metrics::{Family, LabelSet, Value, gather};
use profile::{Ledger, Quality, StackEnd, UnnamedReason};

/// Reads them.
pub(super) fn families(agent: &Agent) -> Vec<Family> {
    let (stats, quality, outcomes, usage, times, recent) = {
        let recorder = read(&agent.recorder);
        (
            recorder.stats(),
            recorder.totals_of_quality(),
            recorder.outcomes(),
            recorder.usage(),
            recorder.cpu_times().clone(),
            recorder.recent_ledger(),
        )
    };
    let low = agent.coverage_low(&recent).map(|low| low.cause);
    gather(STATS, &stats)
        .chain(gather(QUALITY, &quality))
        .chain(gather(OUTCOMES, &outcomes))
        .chain(gather(USAGE, &usage))
        .chain(gather(TIMES, &times))
        .chain(gather(COVERAGE, &(recent, low)))
        .collect()
}

metrics::rows! { STATS: RecorderStats;
    /// Memory for the times of single samples, not counting the flight recorder.
    Gauge fleetprof_recorder_times_bytes = |s| s.times_bytes as u64;
    /// Memory used by the flight recorder.
    Gauge fleetprof_recorder_bytes = |s| s.bytes as u64;
    /// Memory budget of the flight recorder.
    Gauge fleetprof_recorder_budget_bytes = |s| s.budget_bytes as u64;
    /// Windows in the flight recorder.
    Gauge fleetprof_recorder_windows = |s| s.windows as u64;
    /// What the flight recorder dropped or downsampled, by cause. Unit: windows, or samples.
    Counter fleetprof_recorder_dropped_total{cause} = |s| [
        ("window_age", s.totals.dropped_by_age),
        ("window_budget", s.totals.dropped_by_budget),
        ("window_downsampled", s.totals.downsampled),
        ("sample_folded", s.totals.folded_samples),
        ("sample_time", s.totals.times_dropped),
    ];
}

metrics::rows! { QUALITY: Quality;
    /// Samples that are missing or incomplete in profiles, by cause. See fleetprof_stack_ends_total
    /// for why stacks are truncated.
    Counter fleetprof_samples_missed_total{cause} = |quality| missed(quality);
}

fn missed(quality: &Quality) -> [(&'static str, u64); 10] {
    // By name: what is added to it is decided on here.
    let &Quality {
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
}

metrics::rows! { OUTCOMES: Outcomes;
    /// Samples by how their stack ended; agent-ctl doctor explains each value.
    Counter fleetprof_stack_ends_total{end} = |outcomes|
        StackEnd::ALL.iter().map(|&end| (end.word(), outcomes.ended(end)));
    /// Samples whose leaf frame has no symbol, by reason; agent-ctl doctor explains each value.
    Counter fleetprof_unnamed_leaves_total{reason} = |outcomes| {
        let reasons = UnnamedReason::ALL.iter().filter(|&&reason| reason != UnnamedReason::No);
        reasons.map(|&reason| (reason.word(), outcomes.unnamed(reason)))
    };
}

metrics::rows! { USAGE: UsageStats;
    /// Names of cgroups dropped because there were too many, or they took too much memory.
    Counter fleetprof_cgroup_names_evicted_total = |usage| usage.names.evicted;
    /// Cgroups with samples but without a name from any source.
    Counter fleetprof_cgroup_names_unknown_total = |usage| usage.names.unknown;
    /// CPU time of the host in closed windows, as the kernel accounts it.
    CounterNs fleetprof_host_cpu_seconds_total = |usage| usage.host_ns;
    /// Reads of the kernel's CPU accounting of a cgroup.
    Counter fleetprof_cgroup_readings_total = |usage| usage.reads;
    /// Cgroups whose last read was dropped because there were too many.
    Counter fleetprof_cgroup_meters_evicted_total = |usage| usage.evicted;
    /// Cgroups with samples in a window but without CPU accounting for it, by cause.
    Counter fleetprof_cgroup_unmeasured_total{cause} = |usage| [
        ("bound", usage.over_bound),
        ("unknown", usage.unmeasured.saturating_sub(usage.over_bound)),
    ];
}

metrics::rows! { TIMES: CpuTimes;
    /// CPU time as the kernel accounts it, by systemd unit and container; see metrics.cpu_by.
    CounterNs fleetprof_unit_cpu_seconds_total{..} = |times| times.iter().map(cpu_time).collect();
    /// CPU time of units and containers without a series of their own, because there are too many.
    CounterNs fleetprof_unit_cpu_rest_seconds_total = |times| times.rest_ns();
}

fn cpu_time((unit, container, ns): (&str, &str, u64)) -> (LabelSet, Value) {
    let labels = vec![
        ("unit".into(), unit.to_owned().into()),
        ("container".into(), container.to_owned().into()),
    ];
    (labels, ns.into())
}

metrics::rows! { COVERAGE: ((Ledger, Covered), Option<Cause>);
    /// Part of the CPU time in the kernel's accounting of the last minute that was sampled; absent
    /// if nothing was measured. Unit: millionths.
    Gauge fleetprof_coverage_recent_ppm{..} = |((ledger, _), _)| {
        let share = ledger.coverage().share();
        let ppm = share.map(|share| (share * 1e6).round() as u64);
        ppm.map(|ppm| (Vec::new(), ppm.into())).into_iter().collect()
    };
    /// 1 if so much of the last minute is missing that its profiles mislead, by the largest cause.
    Gauge fleetprof_coverage_low{cause} = |&(_, low)|
        Cause::ALL.map(|cause| (cause.word(), u64::from(low == Some(cause))));
}
