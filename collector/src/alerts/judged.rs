//! What is known of a rule's groups, with what they are compared with.

use super::limits::GROUPS_MAX;
use crate::config::alert_rule::{Baseline, Bound, Rule, Side};
use crate::measure::{Reading, Readings, judged_at, means, readings};
use crate::query::Failed;
use crate::store::{Limits, StoreQueries, TimeRange};
use std::collections::{BTreeMap, BTreeSet};

/// Steps in which a baseline is read that is of an hour ago. Unit: nanoseconds.
const HOUR_STEP_NS: i64 = 60_000_000_000;

/// Steps of baselines of days ago: the store has sums of ten minutes. Unit: nanoseconds.
const OLD_STEP_NS: i64 = 600_000_000_000;

const HOUR_NS: i64 = 3_600_000_000_000;

/// What a round knows of a rule.
#[derive(Debug)]
pub struct Measured {
    /// By value of the rule's label; without one the only group is the empty text.
    pub groups: BTreeMap<String, Reading>,
    /// Groups beyond the bound: nothing is said of them, not even that they are idle.
    pub cut: BTreeSet<String>,
    /// What can be said of a group that was not found.
    pub absent: Reading,
    /// What its groups are compared with; none: its rule has no baseline.
    pub baselines: Option<Baselines>,
}

impl Measured {
    /// What is known of a group.
    pub fn reading(&self, rule: &Rule, group: &str) -> Reading {
        // A group of another label, or of none: the rule was changed, or hosts are back.
        let is_of_another = rule.measure.by.is_some() == group.is_empty();
        let found = self.groups.get(group).cloned();
        let mut reading = found.unwrap_or_else(|| match is_of_another {
            _ if self.cut.contains(group) => Reading::unknown("the rule has too many groups"),
            false => self.absent.clone(),
            true => Reading {
                is_idle: true,
                ..Reading::known(0.0)
            },
        });
        reading.baseline = match &self.baselines {
            Some(Some(all)) => Some(all.get(group).copied().unwrap_or(0.0)),
            _ => None,
        };
        reading
    }
}

/// The baseline of each group; of a group that is not there, nothing ran. `None`: nothing is known.
pub type Baselines = Option<BTreeMap<String, f64>>;

/// The time that a rule's baseline is of, for values of `judged`.
fn baseline_range(rule: &Rule, judged: TimeRange) -> TimeRange {
    let (start, end) = (judged.start_unix_ns, judged.end_unix_ns);
    match rule.baseline {
        Baseline::Hour => TimeRange {
            start_unix_ns: start - HOUR_NS,
            end_unix_ns: start,
        },
        Baseline::Ago(ns) => {
            let middle = start + (end - start) / 2 - ns;
            TimeRange {
                start_unix_ns: middle - HOUR_NS / 2,
                end_unix_ns: middle + HOUR_NS / 2,
            }
        }
    }
}

/// Reads the baselines of a rule; `None` where it has none.
pub fn baselines(
    store: &dyn StoreQueries,
    rule: &Rule,
    now: i64,
    limits: &Limits,
) -> Result<Option<Baselines>, Failed> {
    if matches!(rule.bound, Bound::Number(_)) {
        return Ok(None);
    }
    let range = baseline_range(rule, judged_at(&rule.measure, now));
    let step = match rule.baseline {
        Baseline::Hour => HOUR_STEP_NS,
        Baseline::Ago(_) => OLD_STEP_NS,
    };
    means(store, &rule.measure, (range, step), limits).map(Some)
}

/// Reads the values of a rule as of `now`.
pub fn measure(
    store: &dyn StoreQueries,
    rule: &Rule,
    baselines: Option<&Baselines>,
    now: i64,
    limits: &Limits,
) -> Result<Measured, Failed> {
    let Readings { mut groups, absent } = readings(store, &rule.measure, now, limits)?;
    let cut = keep_foremost(&mut groups, rule.side);
    Ok(Measured {
        groups,
        cut,
        absent,
        baselines: baselines.cloned(),
    })
}

/// Keeps the groups that come first to fire, and returns the others.
fn keep_foremost(groups: &mut BTreeMap<String, Reading>, side: Side) -> BTreeSet<String> {
    let over = groups.len().saturating_sub(GROUPS_MAX);
    let mut cut = BTreeSet::new();
    if over > 0 {
        let mut order: Vec<(f64, String)> = groups
            .iter()
            .map(|(group, reading)| (reading.low, group.clone()))
            .collect();
        order.sort_by(|a, b| a.0.total_cmp(&b.0));
        if side == Side::Below {
            order.reverse();
        }
        for (_, group) in order.into_iter().take(over) {
            groups.remove(&group);
            cut.insert(group);
        }
    }
    cut
}
