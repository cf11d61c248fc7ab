//! Reads the values of a measure from the store: what is known of each group, and what is missing.
//!
//! Cores come from the kernel's accounts where the labels allow it, so they are whole where samples
//! were lost. A host that sent windows a moment ago and does not now is missing: what it does is
//! not known, which is not nothing.

use super::Reading;
use super::limits::{CELLS_MAX, COVERED_MIN, DELAY_NS, MISSED_NS, SAMPLES_MIN, UNSAMPLED_MAX};
use crate::config::Measure;
use crate::config::measures::Quantity;
use crate::query::{Failed, totals_of};
use crate::store::{
    DataQuality, LabelTotals, Limits, QueryResult, SAMPLE_LABELS, Scope, StoreQueries, TimeRange,
};
use profile::{FrameFilter, GroupBy, LabelMatcher, Query, Selector, key, unit};
use std::collections::{BTreeMap, BTreeSet};
use tonic::Status;

/// Steps of short ranges, and of longer ones. Unit: nanoseconds.
const STEP_NS: i64 = 10_000_000_000;
const LONG_STEP_NS: i64 = 60_000_000_000;

/// Longest time that is read in short steps. Unit: nanoseconds.
const SHORT_NS: i64 = 1800 * 1_000_000_000;

/// Part of a past range for which there must be windows.
const MEAN_COVERED_MIN: f64 = 0.1;

/// Most hosts that a text names.
const NAMES_MAX: usize = 3;

/// Steps in which a measure reads the newest time.
fn step_of(measure: &Measure) -> i64 {
    match measure.over_ns + MISSED_NS > SHORT_NS {
        true => LONG_STEP_NS,
        false => STEP_NS,
    }
}

/// The time that a measure is of at `now`: complete steps.
pub(crate) fn judged_at(measure: &Measure, now: i64) -> TimeRange {
    let step = step_of(measure);
    let end = now.saturating_sub(DELAY_NS);
    let end = end - end.rem_euclid(step);
    let steps = (measure.over_ns + step - 1) / step;
    TimeRange {
        start_unix_ns: end - steps * step,
        end_unix_ns: end,
    }
}

/// What is known of a measure now.
#[derive(Debug)]
pub(crate) struct Readings {
    /// By value of the measure's label; without one the only group is the empty text.
    pub groups: BTreeMap<String, Reading>,
    /// What can be said of a group that was not found.
    pub absent: Reading,
}

/// Reads the values of a measure as of `now`.
///
/// # Errors
/// As every query, and when there are too many groups.
pub(crate) fn readings(
    store: &dyn StoreQueries,
    measure: &Measure,
    now: i64,
    limits: &Limits,
) -> Result<Readings, Failed> {
    let (judged, step) = (judged_at(measure, now), step_of(measure));
    let looked_at = TimeRange {
        start_unix_ns: judged.start_unix_ns - MISSED_NS,
        ..judged
    };
    let presence = Presence::read(store, measure, looked_at, step, limits)?.judged_in(judged);
    let mut groups = match presence.hosts.is_empty() {
        true => BTreeMap::new(),
        false => match &measure.quantity {
            Quantity::Cores => cores(store, measure, (looked_at, step), &presence, limits)?
                .into_iter()
                .map(|(group, cell)| (group, cell.reading()))
                .collect(),
            Quantity::Share { filter, .. } => {
                let shares = shares(store, measure, filter, judged, limits)?;
                let mut readings: BTreeMap<String, Reading> = shares
                    .into_iter()
                    .map(|(group, share)| (group, share.reading(&presence)))
                    .collect();
                if measure.by.as_deref() == Some(key::HOST) {
                    for host in &presence.silent {
                        let unknown = Reading::unknown("the host sends nothing");
                        readings.insert(host.clone(), unknown);
                    }
                }
                readings
            }
        },
    };
    let absent = presence.absent(measure);
    if measure.by.is_none() && groups.is_empty() {
        groups.insert(String::new(), absent.clone());
    }
    if measure.by.is_some() && presence.hosts.is_empty() {
        // Nobody sends anything: there is no group that could say so.
        groups.insert(String::new(), absent.clone());
    }
    Ok(Readings { groups, absent })
}

/// Means over a past range, read in steps of `step`; `None` where too little of it is known.
///
/// # Errors
/// As every query, and when there are too many groups.
pub(crate) fn means(
    store: &dyn StoreQueries,
    measure: &Measure,
    (range, step): (TimeRange, i64),
    limits: &Limits,
) -> Result<Option<BTreeMap<String, f64>>, Failed> {
    let mut presence = Presence::read(store, measure, range, step, limits)?;
    if presence.share_covered() < MEAN_COVERED_MIN {
        return Ok(None);
    }
    // A host counts with its mean over the time that there is of it.
    let least = (presence.length_ns as f64 * MEAN_COVERED_MIN) as u64;
    let hosts = &presence.hosts;
    presence
        .silent
        .retain(|host| hosts.get(host).is_none_or(|&ns| ns < least.max(1)));
    Ok(Some(match &measure.quantity {
        Quantity::Cores => {
            let cores = cores(store, measure, (range, step), &presence, limits)?;
            cores
                .into_iter()
                .map(|(group, cell)| (group, cell.low))
                .collect()
        }
        Quantity::Share { filter, .. } => {
            let shares = shares(store, measure, filter, range, limits)?;
            let shares = shares.into_iter();
            let judged = shares.filter(|(_, share)| share.samples >= SAMPLES_MIN);
            judged.map(|(group, share)| (group, share.low)).collect()
        }
    }))
}

/// Which hosts sent windows, and which of them are missing.
struct Presence {
    /// Time of windows by host, of the judged part.
    hosts: BTreeMap<String, u64>,
    /// Time of windows by step, of each host.
    steps: BTreeMap<String, Vec<u64>>,
    start: i64,
    step_ns: i64,
    /// Length of the judged part. Unit: nanoseconds.
    length_ns: u64,
    /// Hosts without enough windows in it.
    silent: BTreeSet<String>,
}

impl Presence {
    fn read(
        store: &dyn StoreQueries,
        measure: &Measure,
        range: TimeRange,
        step: i64,
        limits: &Limits,
    ) -> Result<Presence, Failed> {
        let scope = Scope {
            range: whole(range, step),
            selector: accountable(&measure.selector)?,
        };
        let limits = &Limits {
            waiting: false,
            ..limits.clone()
        };
        let QueryResult { data, .. } = store.accounted(&scope, &[], step as u64, limits)?;
        let mut presence = Presence {
            hosts: BTreeMap::new(),
            steps: data.hosts,
            start: data.start_unix_ns,
            step_ns: i64::try_from(data.step_ns).unwrap_or(i64::MAX).max(1),
            length_ns: 0,
            silent: BTreeSet::new(),
        };
        presence
            .steps
            .retain(|_, line| line.iter().any(|&ns| ns > 0));
        Ok(presence.judged_in(scope.range))
    }

    /// The same, judged in a part of its time.
    fn judged_in(mut self, range: TimeRange) -> Presence {
        self.length_ns = range.end_unix_ns.abs_diff(range.start_unix_ns);
        let (start, step_ns) = (self.start, self.step_ns);
        let covered = |line: &Vec<u64>| sum_in(line, (start, step_ns), range);
        self.hosts = self
            .steps
            .iter()
            .map(|(host, line)| (host.clone(), covered(line)))
            .collect();
        let least = (self.length_ns as f64 * COVERED_MIN) as u64;
        let silent = self.hosts.iter().filter(|(_, ns)| **ns < least.max(1));
        self.silent = silent.map(|(host, _)| host.clone()).collect();
        self
    }

    /// Part of the time of all hosts for which there are windows.
    fn share_covered(&self) -> f64 {
        let sum: u64 = self.hosts.values().sum();
        let all = self.length_ns as f64 * self.hosts.len() as f64;
        if all > 0.0 { sum as f64 / all } else { 0.0 }
    }

    fn missing(&self, silent: &BTreeSet<String>) -> String {
        let of = match self.hosts.len() {
            1 => "the host".to_owned(),
            all => format!("{} of {all} hosts", silent.len()),
        };
        let names: Vec<&str> = silent.iter().take(NAMES_MAX).map(String::as_str).collect();
        let more = if silent.len() > NAMES_MAX {
            ", …"
        } else {
            ""
        };
        let sends = if silent.len() == 1 { "sends" } else { "send" };
        format!("{of} {sends} nothing: {}{more}", names.join(", "))
    }

    /// What can be said of a group of which nothing was found.
    fn absent(&self, measure: &Measure) -> Reading {
        if self.hosts.is_empty() {
            return Reading::unknown("no host sends anything");
        }
        if measure.by.as_deref() == Some(key::HOST) {
            return Reading::unknown("the host sends nothing");
        }
        if !self.silent.is_empty() {
            return Reading::unknown(&self.missing(&self.silent));
        }
        match measure.quantity {
            Quantity::Cores => Reading::known(0.0),
            // There is nothing to have a share of.
            Quantity::Share { .. } => Reading {
                is_idle: true,
                ..Reading::known(0.0)
            },
        }
    }
}

/// Cores of a group.
#[derive(Default)]
struct Cell {
    low: f64,
    /// By how much it may be more.
    more: f64,
    missing: String,
}

impl Cell {
    fn reading(self) -> Reading {
        Reading {
            low: self.low,
            high: self.low + self.more,
            missing: self.missing,
            ..Reading::known(0.0)
        }
    }
}

/// Cores of each group in the judged part of `presence`.
fn cores(
    store: &dyn StoreQueries,
    measure: &Measure,
    (range, step): (TimeRange, i64),
    presence: &Presence,
    limits: &Limits,
) -> Result<BTreeMap<String, Cell>, Failed> {
    let by = labels_by(measure);
    let scope = Scope {
        range: whole(range, step),
        selector: measure.selector.clone(),
    };
    let limits = &Limits {
        lines: CELLS_MAX,
        waiting: false,
        ..limits.clone()
    };
    let is_of_samples = |label: &str| SAMPLE_LABELS.contains(&label);
    let of_samples = measure.by.as_deref().is_some_and(is_of_samples)
        || measure
            .selector
            .matchers()
            .iter()
            .any(|m| is_of_samples(m.label()));
    let (lines, axis, unit_ns, lost, rest) = if of_samples {
        let QueryResult { data, quality } = store.series(&scope, &by, step as u64, limits)?;
        let unit_ns = time_unit(&quality)?;
        let lost: Vec<u64> = data.steps.iter().map(|step| step.lost_weight).collect();
        let axis = (data.start_unix_ns, data.step_ns as i64);
        (data.lines, axis, unit_ns, lost, data.rest_lines)
    } else {
        let QueryResult { data, quality } = store.accounted(&scope, &by, step as u64, limits)?;
        let is_measured = quality.windows_unmeasured == 0;
        let lost = match is_measured {
            true => Vec::new(),
            // Accounts of these windows are sums of samples.
            false => lost_of(store, &scope, step, limits)?,
        };
        let axis = (data.start_unix_ns, data.step_ns as i64);
        (data.lines, axis, 1, lost, data.rest_lines)
    };
    if rest > 0 {
        return Err(Status::resource_exhausted(format!(
            "more than {CELLS_MAX} values on hosts: narrow `selector`"
        ))
        .into());
    }
    let judged = TimeRange {
        start_unix_ns: scope.range.end_unix_ns - presence.length_ns as i64,
        end_unix_ns: scope.range.end_unix_ns,
    };
    let mut cells: BTreeMap<String, Cell> = BTreeMap::new();
    let mut missed: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in &lines {
        let host = line.labels.get(key::HOST);
        let group = group_of(measure, |label| line.labels.get(label));
        if line.weights.iter().all(|&weight| weight == 0) {
            continue;
        }
        let cell = cells.entry(group.clone()).or_default();
        if presence.silent.contains(host) {
            missed.entry(group).or_default().insert(host.to_owned());
            continue;
        }
        let ns = sum_in(&line.weights, axis, judged).saturating_mul(unit_ns);
        let covered = presence.hosts.get(host).copied().unwrap_or(0);
        if covered > 0 {
            cell.low += ns as f64 / covered as f64;
        }
    }
    let lost = sum_in(&lost, axis, judged).saturating_mul(unit_ns) as f64;
    let lost = lost / presence.length_ns.max(1) as f64;
    if measure.by.is_none() && lost > 0.0 {
        // What was lost may have been of it, also where nothing else was.
        cells.entry(String::new()).or_default();
    }
    for (group, cell) in &mut cells {
        if lost > UNSAMPLED_MAX * cell.low.max(f64::MIN_POSITIVE) {
            cell.more = lost;
            cell.missing = "too many samples were lost".to_owned();
        }
        if let Some(silent) = missed.get(group) {
            cell.more = f64::INFINITY;
            cell.missing = presence.missing(silent);
        }
    }
    Ok(cells)
}

/// What all hosts lost, by step. Unit: as accounts.
fn lost_of(
    store: &dyn StoreQueries,
    scope: &Scope,
    step: i64,
    limits: &Limits,
) -> Result<Vec<u64>, Failed> {
    let QueryResult { data, quality } = store.series(scope, &[], step as u64, limits)?;
    let unit_ns = time_unit(&quality)?;
    let lost = data.steps.iter();
    Ok(lost
        .map(|step| step.lost_weight.saturating_mul(unit_ns))
        .collect())
}

/// The share of a group.
#[derive(Default)]
struct Share {
    low: f64,
    high: f64,
    samples: u64,
    missing: String,
}

impl Share {
    fn reading(self, presence: &Presence) -> Reading {
        let covered = presence.share_covered();
        if covered < COVERED_MIN {
            return Reading::unknown(&presence.missing(&presence.silent));
        }
        Reading {
            low: self.low,
            high: self.high,
            is_idle: self.samples < SAMPLES_MIN && self.missing.is_empty(),
            missing: self.missing,
            baseline: None,
        }
    }
}

/// Percent of the samples of each group that have the function.
fn shares(
    store: &dyn StoreQueries,
    measure: &Measure,
    filter: &FrameFilter,
    range: TimeRange,
    limits: &Limits,
) -> Result<BTreeMap<String, Share>, Failed> {
    let by: Vec<String> = measure.by.iter().cloned().collect();
    let scope = Scope {
        range,
        selector: measure.selector.clone(),
    };
    let QueryResult { data: all, quality } = store.totals(&scope, &by, limits)?;
    if all.len() > CELLS_MAX {
        return Err(Status::resource_exhausted(format!(
            "more than {CELLS_MAX} values of the label: narrow `selector`"
        ))
        .into());
    }
    let is_of_samples = |label: &str| SAMPLE_LABELS.contains(&label);
    let is_accounted = !by.iter().any(|label| is_of_samples(label))
        && !measure
            .selector
            .matchers()
            .iter()
            .any(|m| is_of_samples(m.label()));
    let query = Query::new(
        measure.selector.clone(),
        vec![filter.clone()],
        GroupBy::from_keys(&by),
    );
    let query = query.map_err(|error| Failed::from(invalid(&error)))?;
    let with = store.profile(quality.covered, &query, limits)?;
    let mut having: BTreeMap<String, u64> = BTreeMap::new();
    for row in totals_of(&with.data) {
        let sum = having.entry(group_of(measure, |label| row.labels.get(label)));
        *sum.or_default() += row.taken.weight;
    }
    let mut sums: BTreeMap<String, (u64, u64, u64, i64)> = BTreeMap::new();
    for row in all {
        let LabelTotals {
            labels,
            taken,
            lost,
            expected_ns,
            ..
        } = row;
        let sum = sums
            .entry(group_of(measure, |label| labels.get(label)))
            .or_default();
        sum.0 += taken.count;
        sum.1 = sum.1.saturating_add(taken.weight);
        sum.2 = sum.2.saturating_add(lost.weight);
        sum.3 = sum.3.saturating_add(expected_ns);
    }
    // Where weights are in microseconds, so is what was expected: see `LabelTotals`.
    let in_units = unit::time_unit_ns(&quality.unit).is_some();
    let shares = sums
        .into_iter()
        .map(|(group, (samples, taken, lost, expected))| {
            let expected = match is_accounted && in_units {
                true => u64::try_from(expected).unwrap_or(0),
                false => 0,
            };
            let whole = taken.saturating_add(lost).max(expected);
            let unsampled = whole - taken;
            let of = having.get(&group).copied().unwrap_or(0).min(taken);
            let percent = |of: u64, whole: u64| 100.0 * of as f64 / whole.max(1) as f64;
            let is_lossy = unsampled as f64 > UNSAMPLED_MAX * whole as f64;
            let share = match is_lossy {
                false => Share {
                    low: percent(of, taken),
                    high: percent(of, taken),
                    samples,
                    missing: String::new(),
                },
                true => Share {
                    low: percent(of, whole),
                    high: percent(of + unsampled, whole),
                    samples,
                    missing: format!(
                        "{:.0} % of the CPU time has no samples",
                        percent(unsampled, whole)
                    ),
                },
            };
            (group, share)
        });
    Ok(shares
        .filter(|(_, share)| share.samples > 0 || !share.missing.is_empty())
        .collect())
}

fn labels_by(measure: &Measure) -> Vec<String> {
    let mut by: Vec<String> = measure.by.iter().cloned().collect();
    if measure.by.as_deref() != Some(key::HOST) {
        by.push(key::HOST.to_owned());
    }
    by
}

/// The group of a line; what lacks the label is of the empty one.
fn group_of<'a>(measure: &Measure, value: impl Fn(&str) -> &'a str) -> String {
    let by = measure.by.as_deref();
    by.map_or_else(String::new, |label| value(label).to_owned())
}

/// The part of a selector that accounts have labels for: it selects the same hosts.
fn accountable(selector: &Selector) -> Result<Selector, Failed> {
    let matchers = selector.matchers().iter();
    let kept = matchers.filter(|m| !SAMPLE_LABELS.contains(&m.label()));
    let kept: Vec<LabelMatcher> = kept.cloned().collect();
    Selector::new(kept).map_err(|error| Failed::from(invalid(&error)))
}

fn time_unit(quality: &DataQuality) -> Result<u64, Failed> {
    let unit = unit::time_unit_ns(&quality.unit).or(quality.unit.is_empty().then_some(1));
    unit.ok_or_else(|| {
        let text = format!(
            "the selected samples have weights in {}, not CPU time",
            quality.unit
        );
        Status::invalid_argument(text).into()
    })
}

fn invalid(error: &dyn std::fmt::Display) -> Status {
    Status::invalid_argument(error.to_string())
}

fn whole(range: TimeRange, step: i64) -> TimeRange {
    TimeRange {
        start_unix_ns: range.start_unix_ns - range.start_unix_ns.rem_euclid(step),
        end_unix_ns: match range.end_unix_ns.rem_euclid(step) {
            0 => range.end_unix_ns,
            into => range.end_unix_ns + step - into,
        },
    }
}

/// The sum of the steps that start in a range.
fn sum_in(line: &[u64], (start, step_ns): (i64, i64), range: TimeRange) -> u64 {
    let is_in = |at: usize| {
        let time = start.saturating_add(step_ns.saturating_mul(at as i64));
        (range.start_unix_ns..range.end_unix_ns).contains(&time)
    };
    let steps = line.iter().enumerate().filter(|(at, _)| is_in(*at));
    steps.fold(0, |sum: u64, (_, ns)| sum.saturating_add(*ns))
}
