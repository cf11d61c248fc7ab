//! The answers of a store, and their limits.

use super::{Gap, HostKey, LabelSet, TimeRange};
use profile::{Coverage, NamedLater, Pressure, Quality, Selector, Throttling, Value, key};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Informs a query that nobody waits for it any more.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Gives the query up.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// True when it was given up.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Limits of one query. An engine checks `cancel` and `deadline` at least every few milliseconds of
/// work.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Set when the client has gone.
    pub cancel: Cancel,
    /// When the time is over.
    pub deadline: Instant,
    /// Most memory for what a query holds. Unit: bytes. Passing it is
    /// [`super::StoreError::TooLarge`].
    pub memory_bytes: usize,
    /// Most stacks (trie nodes) of an answer; the lightest beyond are folded into their parents,
    /// and their weight is reported as pruned.
    pub nodes: usize,
    /// Most lines of series and rows of totals.
    pub lines: usize,
    /// Names of the hosts that the asker may hear of: quality, units and steps are of these alone,
    /// whatever the selector says of others. `None`: all.
    pub hosts: Option<Arc<HashSet<String>>>,
    /// Accounted series also say which cgroups were held back. Charts and alerts do without.
    pub waiting: bool,
    /// Series also say what complete hosts report: the time and weights of their steps, gaps, and
    /// what was missed. Without it a step only has its [`Step::hosts`], and the quality is that of
    /// no host. Most of a series of one service is read for it. Grafana's graphs, which show
    /// nothing of it, do without.
    pub reports: bool,
}

impl Limits {
    /// True when the asker may hear of a host with these labels.
    pub fn tells_of(&self, labels: &LabelSet) -> bool {
        self.tells_of_name(labels.get(key::HOST))
    }

    /// True when the asker may hear of the host of this name.
    pub fn tells_of_name(&self, host: &str) -> bool {
        let hosts = self.hosts.as_ref();
        hosts.is_none_or(|hosts| hosts.contains(host))
    }
}

/// Which samples, without regard to frames.
#[derive(Clone, Debug)]
pub struct Scope {
    /// The range of time.
    pub range: TimeRange,
    /// Selects the samples.
    pub selector: Selector,
}

/// The data an answer was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// Length of its steps. Unit: nanoseconds.
    pub step_ns: u64,
    /// It was added up over the hosts of services.
    pub by_service: bool,
}

/// What an answer is made of and what it misses.
///
/// Hosts are selected by the labels that all label sets of a window share (`host` and configured
/// ones): a matcher of a label that a host does not have says nothing of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataQuality {
    /// The time the answer covers: the range widened to complete steps of `resolution`.
    pub covered: TimeRange,
    /// What was read.
    pub resolution: Resolution,
    /// Hosts with windows in the answer.
    pub hosts: u64,
    /// Hosts that were alive in the range: with a window in it, or before and after it.
    pub hosts_alive: u64,
    /// Windows of hosts in the covered time.
    pub windows: u64,
    /// Windows of them without the kernel's accounting.
    pub windows_unmeasured: u64,
    /// Gaps of the selected hosts, longest first, at most [`GAPS_MAX`].
    pub gaps: Vec<(HostKey, Gap)>,
    /// All of them, and their time.
    pub gaps_total: u64,
    /// Unit: nanoseconds.
    pub gap_ns_total: u64,
    /// What the complete hosts report: idle, lost records, throttled. `taken`, `lost_samples`,
    /// `truncated`, `depth_limit`, `unnamed` and `folded` are those of the selection if the answer
    /// has stacks.
    pub sampling: Quality,
    /// Total of the answer, before limits.
    pub total: Value,
    /// Unit of weights. Engines have that of agents; sums that do not fit are in its coarser one:
    /// see [`profile::unit`].
    pub unit: String,
    /// Weight of what limits folded into parents.
    pub pruned_weight: u64,
    /// The answer's samples with a leaf that the agent could not name and the collector did, by the
    /// source of the name. Only answers with functions have it.
    pub named_later: NamedLater,
    /// Partitions that would have answered: set aside, or not given by the archive.
    pub damaged: Vec<String>,
    /// What of the range is left out because labels that must be known are not kept for it, in
    /// sentences for people.
    pub not_kept: Vec<String>,
}

/// Most gaps that an answer lists.
pub const GAPS_MAX: usize = 100;

/// An answer with its quality.
#[derive(Clone, Debug, PartialEq)]
pub struct QueryResult<T> {
    /// What was asked for.
    pub data: T,
    /// What it is made of.
    pub quality: DataQuality,
}

/// One series: weights of one combination of labels over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// Values of the labels it was grouped by.
    pub labels: LabelSet,
    /// By step.
    pub weights: Vec<u64>,
}

/// What one step of a series is made of: the windows of the selected hosts, whatever the selector
/// takes of their samples. Hosts are selected as for [`DataQuality`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Step {
    /// Total length of the windows that start in the step, over all hosts. 0 although `hosts` is
    /// not: a longer window that started earlier covers the step and has its samples. Unit:
    /// nanoseconds.
    pub covered_ns: u64,
    /// Hosts with a window that covers some of the step; 0: there is no data, which is not 0 cores.
    pub hosts: u64,
    /// All that these windows weigh, lost samples included.
    pub weight: u64,
    /// What of it was lost. A lost sample is known by its host, rarely by its cgroup, never by its
    /// thread: a selection of those may miss any part of it.
    pub lost_weight: u64,
}

/// Series over one time axis, the heaviest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeSeries {
    /// Start of the first step.
    pub start_unix_ns: i64,
    /// Length of a step. Unit: nanoseconds.
    pub step_ns: u64,
    /// At most [`Limits::lines`]; `rest` has what was beyond.
    pub lines: Vec<Series>,
    /// Sum of the lines left out, by step; empty when none was.
    pub rest: Vec<u64>,
    /// Lines left out.
    pub rest_lines: u64,
    /// What each step is made of.
    pub steps: Vec<Step>,
}

impl TimeSeries {
    /// The range of a step.
    pub fn step(&self, at: usize) -> TimeRange {
        let step = i64::try_from(self.step_ns).unwrap_or(i64::MAX);
        let from = i64::try_from(at).unwrap_or(i64::MAX).saturating_mul(step);
        let start_unix_ns = self.start_unix_ns.saturating_add(from);
        TimeRange {
            start_unix_ns,
            end_unix_ns: start_unix_ns.saturating_add(step),
        }
    }
}

/// CPU time over one time axis as the kernel accounts it. Unit: nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountedSeries {
    /// Start of the first step.
    pub start_unix_ns: i64,
    /// Length of a step. Unit: nanoseconds.
    pub step_ns: u64,
    /// At most [`Limits::lines`], the heaviest first; `rest` has what was beyond.
    pub lines: Vec<Series>,
    /// Sum of the lines left out, by step; empty when none was.
    pub rest: Vec<u64>,
    /// Lines left out.
    pub rest_lines: u64,
    /// By name of each selected host with windows: the time of the windows that start in each step.
    /// Time of a line over it is a rate, also where some of the host's windows are missing.
    pub hosts: BTreeMap<String, Vec<u64>>,
    /// By name of each of these hosts that says for how long its tasks waited: that by step.
    pub pressure: BTreeMap<String, Vec<PressureSum>>,
    /// Selected cgroups that their own CPU limits held back, the longest first; at most
    /// [`THROTTLED_MAX`].
    pub throttled: Vec<ThrottledCgroup>,
    /// Those left out.
    pub throttled_left_out: u64,
    /// True if it is known of some selected cgroup whether it was held back.
    pub throttling_known: bool,
}

/// Most cgroups of an answer that were held back: what people look at, and a bound on memory.
pub const THROTTLED_MAX: usize = 200;

/// A cgroup that its own CPU limit held back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThrottledCgroup {
    /// All its labels, with those of the host.
    pub labels: LabelSet,
    /// All of it.
    pub sum: Throttling,
    /// For how long it was held back in each step. Unit: nanoseconds.
    pub steps: Vec<u64>,
}

/// For how long tasks of hosts waited. Unit: nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PressureSum {
    /// Time for which it is known.
    pub covered_ns: u64,
    /// See [`Pressure::cpu_ns`].
    pub cpu_ns: u64,
    /// See [`Pressure::memory_ns`].
    pub memory_ns: u64,
    /// See [`Pressure::io_ns`].
    pub io_ns: u64,
}

impl PressureSum {
    /// The pressure of a window that is so long.
    pub fn of(pressure: Option<Pressure>, covered_ns: u64) -> PressureSum {
        pressure.map_or(PressureSum::default(), |pressure| PressureSum {
            covered_ns,
            cpu_ns: pressure.cpu_ns,
            memory_ns: pressure.memory_ns,
            io_ns: pressure.io_ns,
        })
    }
}

impl std::ops::AddAssign for PressureSum {
    fn add_assign(&mut self, other: PressureSum) {
        let add = |sum: &mut u64, more| *sum = sum.saturating_add(more);
        add(&mut self.covered_ns, other.covered_ns);
        add(&mut self.cpu_ns, other.cpu_ns);
        add(&mut self.memory_ns, other.memory_ns);
        add(&mut self.io_ns, other.io_ns);
    }
}

/// Totals of one label set, without stacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelTotals {
    /// The labels that were kept.
    pub labels: LabelSet,
    /// Taken.
    pub taken: Value,
    /// Lost, an estimate.
    pub lost: Value,
    /// What should have been taken: what the kernel accounts for these cgroups alone, without those
    /// below them, and what was taken in windows without accounts. Readings a moment apart can take
    /// it below zero; sums over a host are exact. Unit: nanoseconds, or microseconds where weights
    /// are.
    pub expected_ns: i64,
    /// The part of it that was not measured. Unit: as `expected_ns`.
    pub estimated_ns: i64,
    /// How the CPU limits of these cgroups held them back. What they used includes the cgroups
    /// below them, so it is more than they used together where one of them is below another. Unit:
    /// as `expected_ns`.
    pub throttling: Throttling,
}

impl LabelTotals {
    /// Weight of taken and lost samples together.
    pub fn weight(&self) -> u64 {
        self.taken.weight.saturating_add(self.lost.weight)
    }
}

/// Activity of a host in a range.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct HostRange {
    /// Windows.
    pub windows: u64,
    /// The windows without any accounting.
    pub windows_unmeasured: u64,
    /// Samples taken in them.
    pub taken: Value,
    /// Samples lost in them, an estimate.
    pub lost: Value,
    /// What was missed while sampling; of stacks and names nothing is known here.
    pub sampling: Quality,
    /// The kernel's accounting of the complete host, and what was taken in windows without any.
    /// Unit: nanoseconds.
    pub expected_ns: u64,
    /// The part of it that was not measured. Unit: nanoseconds.
    pub estimated_ns: u64,
    /// Time without windows while it was alive. Unit: nanoseconds.
    pub gap_ns: u64,
}

impl std::ops::AddAssign for HostRange {
    fn add_assign(&mut self, other: HostRange) {
        let add = |sum: &mut u64, more| *sum = sum.saturating_add(more);
        add(&mut self.windows, other.windows);
        add(&mut self.windows_unmeasured, other.windows_unmeasured);
        self.taken += other.taken;
        self.lost += other.lost;
        self.sampling += other.sampling;
        add(&mut self.expected_ns, other.expected_ns);
        add(&mut self.estimated_ns, other.estimated_ns);
        add(&mut self.gap_ns, other.gap_ns);
    }
}

impl HostRange {
    /// Samples taken and lost together.
    pub fn total(&self) -> Value {
        let mut total = self.taken;
        total += self.lost;
        total
    }

    /// The kernel's accounting next to what was taken.
    pub fn coverage(&self) -> Coverage {
        Coverage {
            expected_ns: self.expected_ns,
            estimated_ns: self.estimated_ns,
            expected_samples: 0,
            taken_ns: self.taken.weight,
            windows: self.windows,
            windows_unmeasured: self.windows_unmeasured,
        }
    }
}
