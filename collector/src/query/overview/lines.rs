//! Cores over time by service and host, for both sides of a comparison.

use crate::query::Failed;
use crate::query::cgroups::is_accountable;
use crate::store::{
    AccountedSeries, DataQuality, Limits, PressureSum, QueryResult, Scope, StoreQueries,
    ThrottledCgroup,
};
use profile::{key, unit};
use std::collections::{BTreeMap, BTreeSet};

/// Least time for which a host must have sent windows in a step to give a rate: about one window,
/// so the first of a new fleet counts. Unit: nanoseconds.
const COVERED_NS_MIN: u64 = 9_000_000_000;

/// From which lost part on a step of samples is not known: what is left looks like less CPU. As in
/// charts of the page.
const LOST_FROM: f64 = 0.1;

/// Most lines (a service on a host) of a side, the heaviest: the others are one, named so.
const CELLS_MAX: usize = 20_000;
const OTHER: &str = "[other]";

/// One side: cores by step of each service on each host.
pub struct Side {
    /// Start of the first step.
    pub start_unix_ns: i64,
    /// Length of a step. Unit: nanoseconds.
    pub step_ns: u64,
    /// By service and host. Not finite: nothing is known of the step.
    pub cells: BTreeMap<(String, String), Vec<f64>>,
    /// Steps of which no host sent anything; of samples, also those of which too many were lost.
    pub dark: Vec<bool>,
    /// Steps of which a host sent nothing, for hosts that were silent at times. What stands there
    /// is made up, so that sums do not dip: nobody is shown it as what the host did. Not known of
    /// samples.
    pub silent: BTreeMap<String, Vec<bool>>,
    /// What it is made of.
    pub quality: DataQuality,
    /// True when the numbers are the kernel's accounts, not samples.
    pub accounted: bool,
    /// What hosts and cgroups waited for; nothing is known of it next to samples.
    pub waiting: Waiting,
}

/// What hosts and cgroups waited for on one side, as the store says it.
#[derive(Default)]
pub struct Waiting {
    /// See [`AccountedSeries::throttled`].
    pub throttled: Vec<ThrottledCgroup>,
    /// See [`AccountedSeries::throttled_left_out`].
    pub throttled_left_out: u64,
    /// See [`AccountedSeries::throttling_known`].
    pub throttling_known: bool,
    /// See [`AccountedSeries::hosts`].
    pub hosts: BTreeMap<String, Vec<u64>>,
    /// See [`AccountedSeries::pressure`].
    pub pressure: BTreeMap<String, Vec<PressureSum>>,
}

impl Waiting {
    /// Takes it out of an answer of the store.
    pub fn take(data: &mut AccountedSeries) -> Waiting {
        Waiting {
            throttled: std::mem::take(&mut data.throttled),
            throttled_left_out: data.throttled_left_out,
            throttling_known: data.throttling_known,
            hosts: std::mem::take(&mut data.hosts),
            pressure: std::mem::take(&mut data.pressure),
        }
    }
}

impl Side {
    /// Reads a side.
    pub fn read(
        store: &dyn StoreQueries,
        scope: &Scope,
        label: &str,
        step_ns: u64,
        limits: &Limits,
    ) -> Result<Side, Failed> {
        let by = [label.to_owned(), key::HOST.to_owned()];
        let limits = Limits {
            lines: CELLS_MAX,
            ..limits.clone()
        };
        let is_of_samples = crate::store::SAMPLE_LABELS.contains(&label);
        if is_of_samples || !is_accountable(&scope.selector) {
            return Side::of_samples(store, scope, &by, step_ns, &limits);
        }
        let QueryResult { mut data, quality } = store.accounted(scope, &by, step_ns, &limits)?;
        let steps = data.hosts.values().map(Vec::len).max().unwrap_or(0);
        let covered = |host: &str, at: usize| {
            let line = data.hosts.get(host);
            line.and_then(|line| line.get(at)).copied().unwrap_or(0)
        };
        let mut side = Side {
            start_unix_ns: data.start_unix_ns,
            step_ns: data.step_ns,
            cells: BTreeMap::new(),
            dark: (0..steps)
                .map(|at| data.hosts.values().all(|line| line.get(at) == Some(&0)))
                .collect(),
            silent: data
                .hosts
                .iter()
                .filter(|(_, line)| line.contains(&0))
                .map(|(host, line)| (host.clone(), silent(line, data.step_ns)))
                .collect(),
            quality,
            accounted: true,
            waiting: Waiting::default(),
        };
        let rates = |line: &[u64], covered: &dyn Fn(usize) -> u64| -> Vec<f64> {
            let line = line.iter().enumerate();
            let rate = |(at, ns): (usize, &u64)| rate(*ns, covered(at), data.step_ns);
            line.map(rate).collect()
        };
        for line in &data.lines {
            let host = line.labels.get(key::HOST);
            let names = (line.labels.get(label).to_owned(), host.to_owned());
            let of_host = rates(&line.weights, &|at| covered(host, at));
            side.cells.insert(names, of_host);
        }
        if data.rest_lines > 0 {
            // The rest is of many hosts, so it is divided by how long they sent on average.
            let mean = |at: usize| {
                let sum: u64 = data.hosts.keys().map(|host| covered(host, at)).sum();
                sum / data.hosts.len().max(1) as u64
            };
            let other = (OTHER.to_owned(), OTHER.to_owned());
            side.cells.insert(other, rates(&data.rest, &mean));
        }
        side.waiting = Waiting::take(&mut data);
        side.fill();
        Ok(side)
    }

    /// As [`Side::read`], of samples: what of a step was not sent is known of all hosts together.
    fn of_samples(
        store: &dyn StoreQueries,
        scope: &Scope,
        by: &[String; 2],
        step_ns: u64,
        limits: &Limits,
    ) -> Result<Side, Failed> {
        let QueryResult { data, quality } = store.series(scope, by, step_ns, limits)?;
        let Some(unit_ns) =
            unit::time_unit_ns(&quality.unit).or(quality.unit.is_empty().then_some(1))
        else {
            return Err(crate::query::request::invalid(format!(
                "failed to make an overview: the selected samples have weights in {}, not CPU \
                 time: leave `comm`, `thread`, `pid` and `context` out of the selector",
                quality.unit
            ))
            .into());
        };
        let covered = |at: usize| {
            let step = data.steps.get(at).copied().unwrap_or_default();
            step.covered_ns.checked_div(step.hosts).unwrap_or(0)
        };
        let mut side = Side {
            start_unix_ns: data.start_unix_ns,
            step_ns: data.step_ns,
            cells: BTreeMap::new(),
            dark: data
                .steps
                .iter()
                .map(|step| {
                    let lost = step.lost_weight as f64 >= LOST_FROM * step.weight as f64;
                    step.hosts == 0 || (step.weight > 0 && lost)
                })
                .collect(),
            silent: BTreeMap::new(),
            quality,
            accounted: false,
            waiting: Waiting::default(),
        };
        let rates = |weights: &[u64]| -> Vec<f64> {
            let weights = weights.iter().enumerate();
            let rate = |(at, weight): (usize, &u64)| {
                rate(weight.saturating_mul(unit_ns), covered(at), data.step_ns)
            };
            weights.map(rate).collect()
        };
        for line in &data.lines {
            let name = |label: &str| line.labels.get(label).to_owned();
            let names = (name(&by[0]), name(&by[1]));
            side.cells.insert(names, rates(&line.weights));
        }
        if data.rest_lines > 0 {
            let other = (OTHER.to_owned(), OTHER.to_owned());
            side.cells.insert(other, rates(&data.rest));
        }
        side.fill();
        Ok(side)
    }

    /// Puts numbers where a host sent nothing: its mean where it was there before and after, so
    /// that a sum over hosts does not dip where one of them was silent; nothing where it had not
    /// come yet, or had gone.
    fn fill(&mut self) {
        let mut spans: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        for ((_, host), line) in &self.cells {
            let known = |rate: &f64| rate.is_finite();
            let ends = line
                .iter()
                .position(known)
                .zip(line.iter().rposition(known));
            if let Some((first, last)) = ends {
                let span = spans.entry(host.clone()).or_insert((first, last));
                *span = (span.0.min(first), span.1.max(last));
            }
        }
        for ((_, host), line) in &mut self.cells {
            let known = || line.iter().filter(|rate| rate.is_finite());
            let mean = known().sum::<f64>() / known().count().max(1) as f64;
            // What came last may be under way, and what was first may be of a step before.
            let (from, to) = match spans.get(host) {
                Some(&(from, to)) => (from.saturating_sub(1), to + 1),
                None => (1, 0),
            };
            for (at, rate) in line.iter_mut().enumerate() {
                if self.dark.get(at) == Some(&true) {
                    *rate = f64::NAN;
                } else if !rate.is_finite() {
                    *rate = if (from..=to).contains(&at) { mean } else { 0.0 };
                }
            }
        }
    }

    /// How many steps it has.
    pub fn len(&self) -> usize {
        self.dark.len()
    }

    /// Steps of which none of these hosts sent anything.
    pub fn silent_all<'h>(&self, hosts: impl Iterator<Item = &'h String>) -> Vec<bool> {
        let mut all: Option<Vec<bool>> = None;
        for host in hosts {
            let Some(silent) = self.silent.get(host) else {
                return Vec::new();
            };
            match &mut all {
                Some(all) => all
                    .iter_mut()
                    .zip(silent)
                    .for_each(|(all, one)| *all &= one),
                None => all = Some(silent.clone()),
            }
        }
        all.unwrap_or_default()
    }

    /// A line of nothing: what is not there, where hosts were.
    pub fn nothing(&self) -> Vec<f64> {
        let of = |dark: &bool| if *dark { f64::NAN } else { 0.0 };
        self.dark.iter().map(of).collect()
    }

    /// Start of a step.
    pub fn at(&self, step: usize) -> i64 {
        let ns = (self.step_ns as i64).saturating_mul(step as i64);
        self.start_unix_ns.saturating_add(ns)
    }

    /// The sum of all cells.
    pub fn whole(&self) -> Vec<f64> {
        let mut sum = self.nothing();
        for line in self.cells.values() {
            add(&mut sum, line);
        }
        sum
    }
}

fn add(sum: &mut [f64], line: &[f64]) {
    for (sum, rate) in sum.iter_mut().zip(line) {
        *sum += rate;
    }
}

/// Sums of cells by one part of their name.
pub fn by_name(
    side: &Side,
    of: impl Fn(&(String, String)) -> &String,
) -> BTreeMap<String, Vec<f64>> {
    let mut lines: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (names, line) in &side.cells {
        let sum = lines.entry(of(names).clone());
        add(sum.or_insert_with(|| side.nothing()), line);
    }
    lines
}

/// Hosts by service, of those with a cell on a side.
pub fn hosts_of(side: &Side) -> BTreeMap<String, BTreeSet<String>> {
    let mut hosts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for ((service, host), line) in &side.cells {
        if line.iter().any(|rate| *rate > 0.0) {
            hosts
                .entry(service.clone())
                .or_default()
                .insert(host.clone());
        }
    }
    hosts
}

/// Steps from this length on have the start of a window if anything was sent. Unit: nanoseconds.
const WINDOWS_NS: u64 = 60_000_000_000;

/// Steps of which a host sent nothing, by how long its windows are that start in each. In short
/// steps one alone may lie within a window that is a little longer.
fn silent(covered: &[u64], step_ns: u64) -> Vec<bool> {
    let none = |at: Option<usize>| at.and_then(|at| covered.get(at)) == Some(&0);
    let steps = 0..covered.len();
    let is_silent = |at: usize| {
        let beside = none(at.checked_sub(1)) || none(Some(at + 1));
        covered[at] == 0 && (beside || step_ns >= WINDOWS_NS)
    };
    steps.map(is_silent).collect()
}

/// Cores of a step; not finite where too little of it was sent.
fn rate(ns: u64, covered_ns: u64, step_ns: u64) -> f64 {
    match covered_ns >= COVERED_NS_MIN.min(step_ns / 2).max(1) {
        true => ns as f64 / covered_ns as f64,
        false => f64::NAN,
    }
}

/// The mean of the steps that are known; 0 where none is.
pub fn mean(line: &[f64]) -> f64 {
    let known = || line.iter().filter(|rate| rate.is_finite());
    known().sum::<f64>() / known().count().max(1) as f64
}
