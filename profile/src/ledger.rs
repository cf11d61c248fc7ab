//! The loss ledger: what was taken and lost in each cgroup, compared with what should have been
//! taken by the kernel's own accounting.
//!
//! Rows of samples say what was taken and lost; [`Account`]s say how much CPU time the kernel
//! accounted to a cgroup and everything below it. The ledger combines both in one tree of paths.
//! The kernel's value for a cgroup alone is its subtree's value minus those of the nearest
//! accounted cgroups below it, so sums over any selection of cgroups are exact wherever a subtree
//! is complete.

use crate::coverage::{Coverage, share};
use crate::dictionary::Dictionary;
use crate::filter::Selector;
use crate::labels::{LabelSetId, key};
use crate::outcome::StackEnd;
use crate::quality::count_quality;
use crate::sample::{Quality, SampleKey, Value};
use hashbrown::HashMap;
use std::collections::BTreeMap;

/// CPU time of a cgroup and all below it in one window, as the kernel counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Account {
    /// The labels of the cgroup, those that [`key::is_of_cgroup`] knows.
    pub labels: LabelSetId,
    /// CPU time. Unit: nanoseconds.
    pub ns: u64,
    /// The part of `ns` that was not measured but taken from the samples themselves. Unit:
    /// nanoseconds.
    pub estimated_ns: u64,
    /// For how long its own CPU limit held the cgroup back, added up over CPUs; `None` if that is
    /// not known. Unit: nanoseconds.
    pub throttled_ns: Option<u64>,
    /// The limit that did; 0 if it did not, or is not known. Unit: thousandths of a core.
    pub limit_millicores: u64,
}

/// How the CPU limits of cgroups held them back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize)]
pub struct Throttling {
    /// Time for which a CPU was withheld because the limit was used up, added up over CPUs. Only
    /// the limit of the cgroup itself counts, not those of cgroups above or below it. Unit:
    /// nanoseconds.
    pub ns: u64,
    /// CPU time of the cgroups with all below them, in windows for which throttling is known. Unit:
    /// nanoseconds.
    pub used_ns: u64,
    /// The largest limit that held one back; 0 if it is not known. Unit: thousandths of a core.
    pub limit_millicores: u64,
}

impl Throttling {
    /// The throttling of an account; nothing if it is not known.
    pub fn of(ns: u64, throttled_ns: Option<u64>, limit_millicores: u64) -> Throttling {
        throttled_ns.map_or(Throttling::default(), |throttled| Throttling {
            ns: throttled,
            used_ns: ns,
            limit_millicores,
        })
    }

    /// The part that was withheld of the CPU time that the cgroup wanted; `None` if it is not known
    /// or nothing was wanted.
    pub fn share(&self) -> Option<f64> {
        let wanted = u128::from(self.ns) + u128::from(self.used_ns);
        (wanted > 0).then(|| self.ns as f64 / wanted as f64)
    }

    /// The limit in cores; `None` if it is not known.
    pub fn limit_cores(&self) -> Option<f64> {
        (self.limit_millicores > 0).then(|| self.limit_millicores as f64 / 1000.0)
    }
}

impl std::ops::AddAssign for Throttling {
    fn add_assign(&mut self, other: Throttling) {
        self.ns = self.ns.saturating_add(other.ns);
        self.used_ns = self.used_ns.saturating_add(other.used_ns);
        self.limit_millicores = self.limit_millicores.max(other.limit_millicores);
    }
}

/// For how long tasks of a host waited for a resource, by the kernel's pressure stall information
/// (accounting/psi.rst). Unit: nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize)]
pub struct Pressure {
    /// At least one task that could run had no CPU (`some` of `/proc/pressure/cpu`).
    pub cpu_ns: u64,
    /// No task could run because all waited for memory (`full`).
    pub memory_ns: u64,
    /// No task could run because all waited for I/O (`full`).
    pub io_ns: u64,
}

/// How many samples should have been taken, according to the kernel's accounting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize)]
pub struct Expected {
    /// CPU time; 0 when the kernel said nothing. Unit: nanoseconds.
    pub ns: u64,
    /// The part of it that was not measured but taken from the samples themselves, which therefore
    /// proves nothing. Unit: nanoseconds.
    pub estimated_ns: u64,
    /// The same time in samples at the rate of its windows.
    pub samples: u64,
}

/// True when more was lost than taken, in samples or any other unit: what is left misleads, because
/// nothing says that losses fall on all functions alike.
///
/// This is what makes a host blind, an answer partial and a command end with the code for it.
pub fn is_mostly_lost(taken: u64, lost: u64) -> bool {
    lost > taken
}

/// Samples by what became of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize)]
pub struct Tally {
    /// Samples taken.
    pub taken: u64,
    /// Their weight, in the unit of the profile.
    pub taken_weight: u64,
    /// Samples lost, an estimate.
    pub lost: u64,
    /// Their weight.
    pub lost_weight: u64,
    /// Samples taken with a stack that is known to be cut, for whatever cause.
    pub truncated: u64,
    /// Truncated samples that were cut by the depth limit.
    pub depth_limit: u64,
    /// Samples taken without a symbol at the leaf.
    pub unnamed: u64,
    /// Samples taken that were folded under `[other]`.
    pub folded: u64,
}

impl Tally {
    fn of(dict: &Dictionary, sample: SampleKey, value: Value) -> Tally {
        let mut quality = Quality::default();
        count_quality(&mut quality, dict, sample, value.count);
        let lost = sample.end == StackEnd::Lost;
        Tally {
            taken: quality.taken,
            taken_weight: if lost { 0 } else { value.weight },
            lost: quality.lost_samples,
            lost_weight: if lost { value.weight } else { 0 },
            truncated: quality.truncated,
            depth_limit: quality.depth_limit,
            unnamed: quality.unnamed,
            folded: quality.folded,
        }
    }
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        let add = |sum: &mut u64, more| *sum = sum.saturating_add(more);
        add(&mut self.taken, other.taken);
        add(&mut self.taken_weight, other.taken_weight);
        add(&mut self.lost, other.lost);
        add(&mut self.lost_weight, other.lost_weight);
        add(&mut self.truncated, other.truncated);
        add(&mut self.depth_limit, other.depth_limit);
        add(&mut self.unnamed, other.unnamed);
        add(&mut self.folded, other.folded);
    }
}

/// One cgroup of the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct LedgerRow {
    /// Path; empty for samples of which the cgroup is not known.
    pub path: String,
    /// The other labels of the cgroup, by [`key::OF_CGROUP`] without the path.
    pub labels: [String; key::OF_CGROUP.len() - 1],
    /// Samples in it alone.
    pub own: Tally,
    /// Samples in it and all below it.
    pub total: Tally,
    /// What should be in `total`.
    pub expected: Expected,
    /// How the cgroup's own CPU limit held it back.
    pub throttling: Throttling,
}

impl LedgerRow {
    /// Samples expected that were neither taken nor counted as lost. Below zero as often as above
    /// when nothing is missing: sampling has an error.
    pub fn missed(&self) -> i64 {
        missed(&self.expected, &self.total)
    }

    /// See [`Coverage::share`]; `None` when nothing was measured.
    pub fn share(&self) -> Option<f64> {
        let Expected {
            ns, estimated_ns, ..
        } = self.expected;
        share(self.total.taken_weight, ns, estimated_ns)
    }
}

fn missed(expected: &Expected, tally: &Tally) -> i64 {
    if expected.ns == 0 {
        return 0;
    }
    let known = i128::from(tally.taken) + i128::from(tally.lost);
    let missed = i128::from(expected.samples) - known;
    missed.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

/// The ledger of a time. Invariant: `host` is the sum of `own` over all rows.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Ledger {
    /// By path, parents of cgroups with samples included.
    pub rows: Vec<LedgerRow>,
    /// All of them together.
    pub host: Tally,
    /// What should be in `host`.
    pub expected: Expected,
    /// Windows that were added up.
    pub windows: u64,
    /// Windows without any accounting.
    pub windows_unmeasured: u64,
}

impl Ledger {
    /// See [`LedgerRow::missed`].
    pub fn missed(&self) -> i64 {
        missed(&self.expected, &self.host)
    }

    /// The sums as they go with a profile of the same selection.
    pub fn coverage(&self) -> Coverage {
        Coverage {
            expected_ns: self.expected.ns,
            estimated_ns: self.expected.estimated_ns,
            expected_samples: self.expected.samples,
            taken_ns: self.host.taken_weight,
            windows: self.windows,
            windows_unmeasured: self.windows_unmeasured,
        }
    }
}

/// Sums of one cgroup's accounts. Samples in thousandths, so that small windows add up.
#[derive(Clone, Copy, Default)]
struct Sums {
    ns: i128,
    estimated_ns: i128,
    thousandths: i128,
}

impl Sums {
    fn add(&mut self, other: Sums) {
        self.ns += other.ns;
        self.estimated_ns += other.estimated_ns;
        self.thousandths += other.thousandths;
    }

    fn subtract(&mut self, other: Sums) {
        self.ns -= other.ns;
        self.estimated_ns -= other.estimated_ns;
        self.thousandths -= other.thousandths;
    }

    /// A cgroup alone may come out below zero by rounding or by readings a moment apart.
    fn expected(self) -> Expected {
        let clip = |sum: i128| sum.clamp(0, u64::MAX.into()) as u64;
        Expected {
            ns: clip(self.ns),
            estimated_ns: clip(self.estimated_ns.min(self.ns)),
            samples: clip((self.thousandths + 500).div_euclid(1000)),
        }
    }
}

#[derive(Default)]
struct Node {
    labels: [String; key::OF_CGROUP.len() - 1],
    selected: bool,
    own: Tally,
    /// Accounts of the subtree.
    accounts: Sums,
    /// What is expected of the cgroup alone without the accounts: for samples of windows without
    /// accounts, because they were taken.
    alone: Sums,
    throttling: Throttling,
}

const UNSEEN: u32 = u32::MAX;

/// Adds up samples and accounts of one dictionary.
pub struct LedgerBuilder<'s> {
    selector: &'s Selector,
    /// By label set: its node, and whether the selector takes it.
    seen: Vec<(u32, bool)>,
    by_path: HashMap<String, u32>,
    nodes: Vec<Node>,
    windows: u64,
    windows_unmeasured: u64,
}

impl<'s> LedgerBuilder<'s> {
    /// A ledger of the cgroups that `selector` takes.
    pub fn new(selector: &'s Selector) -> LedgerBuilder<'s> {
        LedgerBuilder {
            selector,
            seen: Vec::new(),
            by_path: HashMap::new(),
            nodes: Vec::new(),
            windows: 0,
            windows_unmeasured: 0,
        }
    }

    /// True if the kernel's accounting is comparable to what `selector` selects: if it uses only
    /// labels of cgroups.
    pub fn is_accountable(selector: &Selector) -> bool {
        let mut matchers = selector.matchers().iter();
        matchers.all(|matcher| key::is_of_cgroup(matcher.label()))
    }

    /// Counts a window, measured when it has accounts.
    pub fn add_window(&mut self, measured: bool) {
        self.windows += 1;
        self.windows_unmeasured += u64::from(!measured);
    }

    /// Adds samples of a window that has accounts.
    ///
    /// # Panics
    /// When the ids are not of `dict`, which must be the same at every call.
    pub fn add(&mut self, dict: &Dictionary, sample: SampleKey, value: Value) {
        let (node, selected) = self.node(dict, sample.labels);
        if selected {
            self.nodes[node as usize].own += Tally::of(dict, sample, value);
        }
    }

    /// Adds time of samples of a window without accounts, so that it neither lowers nor raises the
    /// share that is covered. The samples themselves are added by [`LedgerBuilder::add`].
    ///
    /// # Panics
    /// See [`LedgerBuilder::add`].
    pub fn add_unmeasured(&mut self, dict: &Dictionary, sample: SampleKey, value: Value) {
        if sample.end == StackEnd::Lost {
            return;
        }
        let (node, selected) = self.node(dict, sample.labels);
        if selected {
            self.nodes[node as usize].alone.add(Sums {
                ns: value.weight.into(),
                estimated_ns: value.weight.into(),
                thousandths: i128::from(value.count) * 1000,
            });
        }
    }

    /// Adds an account of a window in which `count` samples weighed `weight`.
    ///
    /// # Panics
    /// See [`LedgerBuilder::add`].
    pub fn add_account(&mut self, dict: &Dictionary, account: Account, per: Value) {
        let (node, _) = self.node(dict, account.labels);
        let ns = i128::from(account.ns);
        self.nodes[node as usize].accounts.add(Sums {
            ns,
            estimated_ns: account.estimated_ns.into(),
            thousandths: ns * 1000 * i128::from(per.count) / i128::from(per.weight.max(1)),
        });
        let Account {
            ns,
            throttled_ns,
            limit_millicores,
            ..
        } = account;
        let throttling = Throttling::of(ns, throttled_ns, limit_millicores);
        self.nodes[node as usize].throttling += throttling;
    }

    /// Adds how the CPU limit of a cgroup held it back, where accounts are not added.
    ///
    /// # Panics
    /// See [`LedgerBuilder::add`].
    pub fn add_throttling(
        &mut self,
        dict: &Dictionary,
        labels: LabelSetId,
        throttling: Throttling,
    ) {
        let (node, selected) = self.node(dict, labels);
        if selected {
            self.nodes[node as usize].throttling += throttling;
        }
    }

    /// Adds what is expected of a cgroup alone, without those below it, and the part of it that was
    /// not measured, where `per.count` samples weighed `per.weight`. Unit: nanoseconds.
    ///
    /// # Panics
    /// See [`LedgerBuilder::add`].
    pub fn add_alone(
        &mut self,
        dict: &Dictionary,
        labels: LabelSetId,
        (ns, estimated_ns): (i64, i64),
        per: Value,
    ) {
        let (node, selected) = self.node(dict, labels);
        if selected {
            self.nodes[node as usize].alone.add(Sums {
                ns: ns.into(),
                estimated_ns: estimated_ns.into(),
                thousandths: i128::from(ns) * 1000 * i128::from(per.count)
                    / i128::from(per.weight.max(1)),
            });
        }
    }

    fn node(&mut self, dict: &Dictionary, labels: LabelSetId) -> (u32, bool) {
        let at = labels.0 as usize;
        if self.seen.len() <= at {
            let len = (at + 1).next_power_of_two();
            self.seen.resize(len, (UNSEEN, false));
        }
        if self.seen[at].0 != UNSEEN {
            return self.seen[at];
        }
        let selected = self.selector.matches(dict, labels);
        let path = dict.label(labels, key::CGROUP).unwrap_or("");
        let next = self.nodes.len() as u32;
        let node = *self.by_path.entry_ref(path).or_insert(next);
        if node == next {
            self.nodes.push(Node::default());
        }
        let found = &mut self.nodes[node as usize];
        found.selected |= selected;
        for (text, name) in found.labels.iter_mut().zip(&key::OF_CGROUP[1..]) {
            if text.is_empty() {
                dict.label(labels, name).unwrap_or("").clone_into(text);
            }
        }
        self.seen[at] = (node, selected);
        (node, selected)
    }

    /// The ledger.
    pub fn finish(mut self) -> Ledger {
        // What a cgroup has alone: its subtree less the accounted subtrees right below it.
        let mut alone: Vec<Sums> = self.nodes.iter().map(|node| node.accounts).collect();
        for (path, &at) in &self.by_path {
            let accounts = self.nodes[at as usize].accounts;
            let above = ancestors(path).find_map(|path| {
                let &above = self.by_path.get(path)?;
                (self.nodes[above as usize].accounts.ns > 0).then_some(above)
            });
            if let Some(above) = above {
                alone[above as usize].subtract(accounts);
            }
        }
        let mut ledger = Ledger {
            windows: self.windows,
            windows_unmeasured: self.windows_unmeasured,
            ..Ledger::default()
        };
        let mut tree: BTreeMap<String, (LedgerRow, Sums)> = BTreeMap::new();
        let mut host = Sums::default();
        for (path, at) in std::mem::take(&mut self.by_path) {
            let node = std::mem::take(&mut self.nodes[at as usize]);
            if !node.selected {
                continue;
            }
            let mut sums = alone[at as usize];
            sums.add(node.alone);
            host.add(sums);
            ledger.host += node.own;
            for path in ancestors(&path) {
                let (above, above_sums) = tree.entry(path.to_owned()).or_default();
                above.total += node.own;
                above_sums.add(sums);
            }
            let (row, row_sums) = tree.entry(path).or_default();
            row.labels = node.labels;
            row.own = node.own;
            row.throttling = node.throttling;
            row.total += node.own;
            row_sums.add(sums);
        }
        ledger.expected = host.expected();
        ledger.rows = tree
            .into_iter()
            .map(|(path, (row, sums))| LedgerRow {
                path,
                expected: sums.expected(),
                ..row
            })
            .collect();
        ledger
    }
}

/// Every path of a cgroup above `path`, nearest first, up to `/`.
pub fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    let mut rest = path;
    std::iter::from_fn(move || {
        let slash = rest.rfind('/')?;
        if rest == "/" {
            return None;
        }
        rest = if slash == 0 { "/" } else { &rest[..slash] };
        Some(rest)
    })
}
