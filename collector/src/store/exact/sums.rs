//! Adds up answers from parts of their range, each kind by its own rules.

use crate::store::query::{add_line, heaviest, keep_heaviest, prune};
use crate::store::{LabelSet, LabelTotals, Limits, Series, TimeSeries};
use profile::unit::{WEIGHT_MAX, rescaled};
use profile::{Costs, Info, Profile, Remap};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Memory for a label set in a table, in addition to its line. Unit: bytes.
const LABELS_BYTES: usize = 300;

/// Data of an answer with weights that add up over time.
pub(super) trait Weighed: Sized {
    /// The parts that were added up, and what is not a sum of them, which comes from the first
    /// answer.
    type Sum: From<Self>;

    /// True when a sum in it may stand at the largest number, though the total does not.
    fn is_capped(&self) -> bool {
        false
    }

    /// True when a sum in it passes what every reader takes, though the total does not.
    fn is_beyond(&self) -> bool {
        false
    }

    /// Weighs in the coarser unit. `is_time`: weights are time, as what the kernel accounts.
    fn rescale(&mut self, is_time: bool);

    /// What its rows weigh together; `None` when it may not have all of them.
    fn weight(&self) -> Option<u64> {
        None
    }

    /// Adds a part in the coarser unit.
    fn add(sum: &mut Self::Sum, part: Self, limits: &Limits);

    /// Memory of a sum. Unit: bytes.
    fn heap_bytes(sum: &Self::Sum) -> usize;

    /// The answer within its limits, what all of it weighs, and what of that limits folded.
    fn finish(sum: Self::Sum, limits: &Limits) -> (Self, u64, u64);
}

/// Samples of parts with the facts of the first answer.
pub(super) struct OfProfile {
    whole: Info,
    sum: Profile,
    folded: u64,
}

impl From<Profile> for OfProfile {
    fn from(whole: Profile) -> OfProfile {
        OfProfile {
            whole: whole.info,
            sum: Profile::default(),
            folded: 0,
        }
    }
}

impl OfProfile {
    fn prune(&mut self, nodes: usize) {
        prune(&mut self.sum, nodes, |_, value| {
            self.folded = self.folded.saturating_add(value.weight);
        });
    }
}

impl Weighed for Profile {
    type Sum = OfProfile;

    fn rescale(&mut self, _: bool) {
        Profile::rescale(self);
    }

    fn weight(&self) -> Option<u64> {
        Some(self.total().weight)
    }

    fn add(of: &mut OfProfile, part: Profile, limits: &Limits) {
        let mut remap = Remap::default();
        for (key, value) in part.sorted() {
            of.sum.add_from(&part.dict, &mut remap, key, value);
        }
        // Stacks that are heavy in a part may be light in the sum: they stay for a while.
        if of.sum.dict.stacks.len() > limits.nodes.saturating_mul(4) {
            of.prune(limits.nodes.saturating_mul(2));
        }
    }

    fn heap_bytes(of: &OfProfile) -> usize {
        of.sum.heap_bytes()
    }

    fn finish(mut of: OfProfile, limits: &Limits) -> (Profile, u64, u64) {
        of.prune(limits.nodes);
        // Takes unit and period along.
        let mut facts = Profile {
            info: of.whole,
            ..Profile::default()
        };
        facts.rescale();
        of.sum.info = facts.info;
        let weight = of.sum.total().weight;
        (of.sum, weight, of.folded)
    }
}

/// Costs of parts.
pub(super) struct OfCosts(Costs);

impl From<Costs> for OfCosts {
    fn from(whole: Costs) -> OfCosts {
        OfCosts(Costs::new(whole.by()))
    }
}

impl Weighed for Costs {
    type Sum = OfCosts;

    fn rescale(&mut self, _: bool) {
        Costs::rescale(self);
    }

    fn weight(&self) -> Option<u64> {
        Some(self.total().weight)
    }

    fn add(of: &mut OfCosts, part: Costs, _: &Limits) {
        of.0.merge(&part);
    }

    fn heap_bytes(of: &OfCosts) -> usize {
        of.0.heap_bytes()
    }

    fn finish(of: OfCosts, _: &Limits) -> (Costs, u64, u64) {
        let weight = of.0.total().weight;
        (of.0, weight, 0)
    }
}

/// Totals of parts by label set.
#[derive(Default)]
pub(super) struct OfTotals(HashMap<LabelSet, LabelTotals>);

impl From<Vec<LabelTotals>> for OfTotals {
    fn from(_: Vec<LabelTotals>) -> OfTotals {
        OfTotals::default()
    }
}

/// Both numbers of what the kernel accounts.
fn accounted(row: &LabelTotals) -> [i64; 2] {
    [row.expected_ns, row.estimated_ns]
}

impl Weighed for Vec<LabelTotals> {
    type Sum = OfTotals;

    fn is_capped(&self) -> bool {
        // Engines end a little apart below zero.
        let is_end = |ns: i64| ns == i64::MAX || ns <= i64::MIN + 1;
        self.iter()
            .any(|row| accounted(row).into_iter().any(is_end))
    }

    fn is_beyond(&self) -> bool {
        // What is expected is added up over the rows, too.
        let sum = |at: usize| -> i128 {
            let all = self.iter().map(|row| accounted(row)[at]);
            all.map(|ns| i128::from(ns.max(0))).sum()
        };
        sum(0).max(sum(1)) > WEIGHT_MAX.into()
    }

    fn rescale(&mut self, is_time: bool) {
        for row in self {
            row.taken = row.taken.rescaled();
            row.lost = row.lost.rescaled();
            if is_time {
                row.expected_ns = rescaled_signed(row.expected_ns);
                row.estimated_ns = rescaled_signed(row.estimated_ns);
                row.throttling.ns = rescaled(row.throttling.ns);
                row.throttling.used_ns = rescaled(row.throttling.used_ns);
            }
        }
    }

    fn add(of: &mut OfTotals, part: Vec<LabelTotals>, _: &Limits) {
        for row in part {
            match of.0.entry(row.labels.clone()) {
                Entry::Vacant(new) => {
                    new.insert(row);
                }
                Entry::Occupied(mut sum) => {
                    let sum = sum.get_mut();
                    sum.taken += row.taken;
                    sum.lost += row.lost;
                    sum.expected_ns = sum.expected_ns.saturating_add(row.expected_ns);
                    sum.estimated_ns = sum.estimated_ns.saturating_add(row.estimated_ns);
                    sum.throttling += row.throttling;
                }
            }
        }
    }

    fn heap_bytes(of: &OfTotals) -> usize {
        of.0.len() * LABELS_BYTES
    }

    fn finish(of: OfTotals, limits: &Limits) -> (Vec<LabelTotals>, u64, u64) {
        let mut rows: Vec<LabelTotals> = of.0.into_values().collect();
        let all = sum(rows.iter().map(LabelTotals::weight));
        keep_heaviest(&mut rows, limits.lines);
        (rows, all, 0)
    }
}

/// The same in the coarser unit, rounded to the nearest; the largest number stays.
fn rescaled_signed(ns: i64) -> i64 {
    if ns == i64::MAX {
        return ns;
    }
    let size = i64::try_from(rescaled(ns.unsigned_abs())).unwrap_or(i64::MAX);
    size * ns.signum()
}

/// Lines of parts over the time axis of the complete range.
pub(super) struct OfLines {
    /// The axis, and the windows behind each step.
    whole: TimeSeries,
    lines: HashMap<LabelSet, Vec<u64>>,
}

impl OfLines {
    /// Length of the steps.
    pub fn step_ns(&self) -> u64 {
        self.whole.step_ns
    }
}

impl From<TimeSeries> for OfLines {
    fn from(mut whole: TimeSeries) -> OfLines {
        for step in &mut whole.steps {
            (step.weight, step.lost_weight) = (0, 0);
        }
        whole.lines.clear();
        whole.rest.clear();
        whole.rest_lines = 0;
        let lines = HashMap::new();
        OfLines { whole, lines }
    }
}

impl Weighed for TimeSeries {
    type Sum = OfLines;

    fn is_capped(&self) -> bool {
        // Steps have all that their hosts weigh, whatever is selected of them.
        self.steps.iter().any(|step| step.weight == u64::MAX)
    }

    fn is_beyond(&self) -> bool {
        self.steps.iter().any(|step| step.weight > WEIGHT_MAX)
    }

    fn rescale(&mut self, _: bool) {
        let lines = self.lines.iter_mut().map(|line| &mut line.weights);
        for weight in lines.chain([&mut self.rest]).flatten() {
            *weight = rescaled(*weight);
        }
        for step in &mut self.steps {
            step.weight = rescaled(step.weight);
            step.lost_weight = rescaled(step.lost_weight);
        }
    }

    fn weight(&self) -> Option<u64> {
        let lines = self.lines.iter().map(|line| &line.weights);
        Some(sum(lines.chain([&self.rest]).flatten().copied()))
    }

    fn add(of: &mut OfLines, part: TimeSeries, _: &Limits) {
        let (start, step_ns) = (of.whole.start_unix_ns, of.whole.step_ns);
        // A part that starts within a step has that step as its first.
        let first = part.start_unix_ns.saturating_sub(start) / (step_ns as i64).max(1);
        let first = usize::try_from(first).unwrap_or(0);
        let count = of.whole.steps.len();
        for Series { labels, weights } in part.lines {
            let line = of.lines.entry(labels).or_insert_with(|| vec![0; count]);
            add_line(line.get_mut(first..).unwrap_or_default(), &weights);
        }
        for (sum, step) in of.whole.steps.iter_mut().skip(first).zip(part.steps) {
            sum.weight = sum.weight.saturating_add(step.weight);
            sum.lost_weight = sum.lost_weight.saturating_add(step.lost_weight);
        }
    }

    fn heap_bytes(of: &OfLines) -> usize {
        of.lines.len() * (of.whole.steps.len() * size_of::<u64>() + LABELS_BYTES)
    }

    fn finish(of: OfLines, limits: &Limits) -> (TimeSeries, u64, u64) {
        let OfLines { mut whole, lines } = of;
        let found = heaviest(lines, whole.steps.len(), limits.lines);
        (whole.lines, whole.rest) = (found.lines, found.rest);
        whole.rest_lines = found.rest_lines;
        let all = found.weight;
        (whole, all, 0)
    }
}

fn sum(weights: impl Iterator<Item = u64>) -> u64 {
    weights.fold(0, u64::saturating_add)
}
