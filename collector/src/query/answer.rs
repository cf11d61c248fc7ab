//! Converts answers of the store to messages, within the size that clients accept.

use super::compare::Behind;
use super::spread::Certainty;
use crate::ingest::{Hosts, Verdict};
use crate::store::{DataQuality, HostFacts, HostRange, HostRecord, Step, TimeRange};
use profile::{CostDiff, Coverage, FunctionChange, NameSource, NamedLater, TopRow, Value};
use proto::{agent, collector as wire};

/// Most text in one answer. Unit: bytes. By default, clients refuse a message of more than 4 MiB.
/// Rows that do not fit are counted as left out.
pub const TEXT_BYTES_MAX: usize = 3 << 20;

/// Kind of a row that is no frame.
const NO_FRAME: u32 = 255;

/// The data quality of an answer, as a message.
pub fn quality(
    quality: DataQuality,
    coverage: Option<Coverage>,
    hosts: &Hosts,
) -> wire::DataQuality {
    let coverage = coverage.unwrap_or(Coverage {
        windows: quality.windows,
        windows_unmeasured: quality.windows_unmeasured,
        ..Coverage::default()
    });
    let gaps = quality.gaps.into_iter().map(|(host, gap)| wire::HostGap {
        hostname: hosts.hostname(&host),
        host_id: host.host_id,
        start_unix_ns: gap.range.start_unix_ns,
        end_unix_ns: gap.range.end_unix_ns,
        cause: gap.cause,
    });
    wire::DataQuality {
        covered: Some(range(quality.covered)),
        resolution_ns: quality.resolution.step_ns,
        hosts: quality.hosts,
        hosts_alive: quality.hosts_alive,
        windows: quality.windows,
        gaps: gaps.collect(),
        gaps_total: quality.gaps_total,
        gap_ns_total: quality.gap_ns_total,
        sampling: Some(quality.sampling.into()),
        coverage: Some(coverage.into()),
        total_count: quality.total.count,
        total_weight: quality.total.weight,
        unit: quality.unit,
        pruned_weight: quality.pruned_weight,
        damaged: quality.damaged,
        not_kept: quality.not_kept,
        weights_capped: quality.total.is_capped(),
        named_later: named_later(quality.named_later),
    }
}

fn named_later(counts: NamedLater) -> Vec<wire::NamedLater> {
    let all = NameSource::ALL.into_iter().zip(counts);
    all.filter(|(_, count)| *count > 0)
        .map(|(source, count)| wire::NamedLater {
            source: source.word().to_owned(),
            count,
        })
        .collect()
}

/// The data quality of an answer made from indexes alone.
pub fn covered(covered: TimeRange) -> wire::DataQuality {
    wire::DataQuality {
        covered: Some(range(covered)),
        ..wire::DataQuality::default()
    }
}

/// A range as a message.
pub fn range(range: TimeRange) -> agent::TimeRange {
    agent::TimeRange {
        start_unix_ns: range.start_unix_ns,
        end_unix_ns: range.end_unix_ns,
    }
}

/// The rows that fit [`TEXT_BYTES_MAX`], and how many do not.
pub fn fitting<T>(rows: Vec<T>, bytes: impl Fn(&T) -> usize) -> (Vec<T>, usize) {
    let all = rows.len();
    let mut left = TEXT_BYTES_MAX;
    let kept: Vec<T> = rows
        .into_iter()
        .map_while(|row| {
            left = left.checked_sub(bytes(&row))?;
            Some(row)
        })
        .collect();
    let left_out = all - kept.len();
    (kept, left_out)
}

/// The data behind a step of a series.
pub fn step(step: Step) -> wire::SeriesStep {
    wire::SeriesStep {
        covered_ns: step.covered_ns,
        hosts: step.hosts,
        weight: step.weight,
        lost_weight: step.lost_weight,
    }
}

/// A row of a table of functions or modules.
pub fn top_row(row: TopRow) -> wire::TopRow {
    wire::TopRow {
        name: row.name,
        module: row.module,
        kind: row.kind as u32,
        self_count: row.own.count,
        self_weight: row.own.weight,
        total_count: row.total.count,
        total_weight: row.total.weight,
    }
}

/// A row of a table of a label's values.
pub fn label_row(name: String, value: Value) -> wire::TopRow {
    wire::TopRow {
        name,
        module: String::new(),
        kind: NO_FRAME,
        self_count: value.count,
        self_weight: value.weight,
        total_count: value.count,
        total_weight: value.weight,
    }
}

/// The samples on one side of a diff.
pub fn sampled(total: Value, behind: Behind) -> wire::Sampled {
    wire::Sampled {
        count: total.count,
        weight: total.weight,
        parts: behind.parts as u32,
        host_parts: behind.host_parts as u32,
    }
}

/// A function in two selections.
pub fn diff_row(diff: &CostDiff, row: &FunctionChange, certainty: &Certainty) -> wire::DiffRow {
    let share = diff.share(row.own);
    wire::DiffRow {
        name: row.function.clone(),
        module: row.module.clone(),
        kind: row.kind as u32,
        before_self_weight: row.own.before.weight,
        after_self_weight: row.own.after.weight,
        before_total_weight: row.total.before.weight,
        after_total_weight: row.total.after.weight,
        share_change: share.delta,
        share_error: certainty.std_error,
        significant: certainty.is_significant,
        appeared: row.is_new(),
        vanished: row.is_vanished(),
    }
}

/// A host, its weight in `unit`.
pub fn host(
    record: HostRecord,
    did: &HostRange,
    (unit, coverage): (String, Option<Coverage>),
    hosts: &Hosts,
    verdict: Verdict,
) -> wire::Host {
    let connected = hosts.is_connected(&record.key);
    let heard = hosts.last_seen_unix_ns(&record.key);
    let last_seen_unix_ns = record.last_seen_unix_ns.max(heard.unwrap_or(i64::MIN));
    let boot_id = record.key.boot_id.iter();
    wire::Host {
        host_id: record.key.host_id,
        boot_id: boot_id.map(|byte| format!("{byte:02x}")).collect(),
        facts: Some(facts(record.facts)),
        first_seen_unix_ns: record.first_seen_unix_ns,
        last_seen_unix_ns,
        connected,
        clock_ahead_ns: record.clock_ahead_ns,
        windows: did.windows,
        weight: did.total().weight,
        coverage: coverage.map(Into::into),
        gap_ns: did.gap_ns,
        warnings: verdict.warnings(),
        unit,
        blind: verdict.is_blind,
        degradations: verdict.degradations,
        lost_weight: did.lost.weight,
    }
}

fn facts(facts: HostFacts) -> wire::HostFacts {
    wire::HostFacts {
        hostname: facts.hostname,
        kernel: facts.kernel,
        arch: facts.arch,
        cpus_online: facts.cpus_online,
        memory_bytes: facts.memory_bytes,
        agent_version: facts.agent_version,
        labels: facts.labels.into_iter().collect(),
        spool: Some(wire::SpoolState {
            windows: facts.spool_windows,
            bytes: facts.spool_bytes,
            bytes_max: facts.spool_bytes_max,
            oldest_unix_ns: facts.spool_oldest_unix_ns,
            dropped_windows: facts.dropped_windows,
        }),
        // What holds of it now is in the host's degradations.
        health: None,
        // They are for detecting deployments alone.
        programs: Vec::new(),
    }
}
