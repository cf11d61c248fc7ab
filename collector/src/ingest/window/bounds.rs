//! Bounds an agent's words, times and sums: what is kept, and what is rejected.

use super::Fault;
use crate::ingest::Program;
use crate::ingest::limits::{
    CPUS_MAX, DEGRADATION_BYTES_MAX, DEGRADATIONS_MAX, FACT_BYTES_MAX, HOST_LABELS_MAX,
    LABEL_NAME_BYTES_MAX, LABEL_VALUE_BYTES_MAX, LABELS_PER_SET_MAX, PROGRAM_LABELS_MAX,
    PROGRAMS_MAX,
};
use crate::metrics::Metrics;
use crate::store::{HostFacts, LabelSet, Row, TimeRange, WINDOW_NS_MAX, is_host_label};
use profile::key;
use prost::Message as _;
use proto::collector as wire;

/// Refuses more CPU time than any host has: one such window would hide all others of the fleet.
pub(super) fn plausible(facts: &wire::WindowFacts, rows: &[Row]) -> Result<(), String> {
    let weight: u128 = rows.iter().map(|row| u128::from(row.value.weight)).sum();
    let most = u128::from(facts.duration_ns) * CPUS_MAX;
    let is_over = |unit_ns: u64| weight.saturating_mul(unit_ns.into()) > most;
    if profile::unit::time_unit_ns(&facts.unit).is_some_and(is_over) {
        return Err(format!(
            "it claims that more than {CPUS_MAX} CPUs were busy"
        ));
    }
    Ok(())
}

/// The time of a window, when it can be one.
pub(super) fn range(facts: &wire::WindowFacts) -> Result<TimeRange, String> {
    let start_unix_ns = facts.start_unix_ns;
    if start_unix_ns <= 0 {
        return Err("it starts before 1970".to_owned());
    }
    if facts.duration_ns == 0 || facts.duration_ns > WINDOW_NS_MAX {
        let ns = facts.duration_ns;
        return Err(format!(
            "it is {ns} ns long, but at most an hour is allowed"
        ));
    }
    if facts.unit.is_empty() || facts.event.is_empty() {
        return Err("it has no event or no unit".to_owned());
    }
    let end = i64::try_from(facts.duration_ns)
        .ok()
        .and_then(|duration| start_unix_ns.checked_add(duration));
    let end_unix_ns = end.ok_or("its end time is too large")?;
    Ok(TimeRange {
        start_unix_ns,
        end_unix_ns,
    })
}

/// A label set of an agent, within bounds and without its own `host`.
pub(super) fn own_labels(names_values: &[String], metrics: &Metrics) -> Result<LabelSet, Fault> {
    let (pairs, odd) = names_values.as_chunks::<2>();
    if !odd.is_empty() {
        return Err(Fault::OddLabels);
    }
    let pairs = pairs.iter().map(|[name, value]| (name, value));
    let mut pairs = bounded(pairs, LABELS_PER_SET_MAX, metrics);
    let all = pairs.len();
    pairs.retain(|(name, _)| name != key::HOST);
    metrics.label_hosts.inc_by((all - pairs.len()) as u64);
    Ok(LabelSet::new(pairs))
}

/// At most `limit` labels within the bounds of names and values.
fn bounded<'a>(
    pairs: impl Iterator<Item = (&'a String, &'a String)>,
    limit: usize,
    metrics: &Metrics,
) -> Vec<(String, String)> {
    let mut kept: Vec<(String, String)> = Vec::new();
    let (mut cut, mut dropped) = (0, 0);
    for (name, value) in pairs {
        if name.is_empty() || name.len() > LABEL_NAME_BYTES_MAX {
            dropped += 1;
            continue;
        }
        cut += u64::from(value.len() > LABEL_VALUE_BYTES_MAX);
        kept.push((name.clone(), text(value, LABEL_VALUE_BYTES_MAX)));
    }
    if kept.len() > limit {
        kept.sort();
        dropped += (kept.len() - limit) as u64;
        kept.truncate(limit);
    }
    metrics.labels_cut.inc_by(cut);
    metrics.labels_dropped.inc_by(dropped);
    kept
}

/// Facts of a host as they are kept.
pub fn host_facts(facts: wire::HostFacts, metrics: &Metrics) -> HostFacts {
    let spool = facts.spool.unwrap_or_default();
    // In order, so that of too many labels the same ones go each time.
    let mut labels: Vec<_> = facts.labels.iter().collect();
    labels.sort();
    let mut labels = bounded(labels.into_iter(), HOST_LABELS_MAX, metrics);
    // Labels of what runs on a host do not belong to the complete host: a scope by one would select
    // everything.
    labels.retain(|(name, value)| name != key::HOST && is_host_label(name) && !value.is_empty());
    HostFacts {
        hostname: text(&facts.hostname, FACT_BYTES_MAX),
        kernel: text(&facts.kernel, FACT_BYTES_MAX),
        arch: text(&facts.arch, FACT_BYTES_MAX),
        cpus_online: facts.cpus_online,
        memory_bytes: facts.memory_bytes,
        agent_version: text(&facts.agent_version, FACT_BYTES_MAX),
        labels: labels.into_iter().collect(),
        spool_windows: spool.windows,
        spool_bytes: spool.bytes,
        spool_bytes_max: spool.bytes_max,
        spool_oldest_unix_ns: spool.oldest_unix_ns,
        dropped_windows: spool.dropped_windows,
        health: facts.health.map_or_else(Vec::new, encoded_health),
    }
}

/// The programs that a host reports, within bounds. What names no service or no build is left out.
pub fn programs(facts: &mut wire::HostFacts, metrics: &Metrics) -> Vec<Program> {
    let told = std::mem::take(&mut facts.programs).into_iter();
    let program = |told: wire::Program| {
        let mut labels: Vec<_> = told.labels.iter().collect();
        labels.sort();
        let mut labels = bounded(labels.into_iter(), PROGRAM_LABELS_MAX, metrics);
        labels.retain(|(name, value)| key::is_of_cgroup(name) && !value.is_empty());
        let is_one = !labels.is_empty()
            && !told.module.is_empty()
            && profile::is_build_id(&told.build_id)
            && told.since_unix_ns > 0;
        is_one.then(|| Program {
            labels,
            module: text(&told.module, FACT_BYTES_MAX),
            build_id: told.build_id,
            since_unix_ns: told.since_unix_ns,
        })
    };
    let beyond = told.len().saturating_sub(PROGRAMS_MAX);
    metrics.programs_dropped.inc_by(beyond as u64);
    told.take(PROGRAMS_MAX).filter_map(program).collect()
}

/// An agent's report on its own health, within bounds, most severe first.
fn encoded_health(mut health: wire::HostHealth) -> Vec<u8> {
    let list = &mut health.degradations;
    list.sort_by_key(|degradation| std::cmp::Reverse(degradation.severity));
    list.truncate(DEGRADATIONS_MAX);
    for degradation in list {
        degradation.id = text(&degradation.id, FACT_BYTES_MAX);
        degradation.message = text(&degradation.message, DEGRADATION_BYTES_MAX);
        degradation.remedy = text(&degradation.remedy, DEGRADATION_BYTES_MAX);
    }
    // Inside of the facts: a host that is well is not empty bytes then.
    let facts = wire::HostFacts {
        health: Some(health),
        ..wire::HostFacts::default()
    };
    facts.encode_to_vec()
}

pub(super) fn text(text: &str, bytes_max: usize) -> String {
    text[..text.floor_char_boundary(bytes_max)].to_owned()
}
