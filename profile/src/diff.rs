//! Compares two profiles: what changed per stack and per function, and how certain that is.
//!
//! Shares, not sums, say whether a function got worse: the two profiles may cover different times
//! and loads. A share is measured by counting samples, so it has a statistical error. With `k` of
//! `n` samples before and after (`k₁`, `n₁`, `k₂`, `n₂`):
//!
//! ```text
//! share      = weight of the function ÷ weight of the profile
//! delta      = share after − share before
//! p̃          = (k + 1) ÷ (n + 2)
//! std_error  = √( p̃₁(1 − p̃₁) ÷ (n₁ + 2)  +  p̃₂(1 − p̃₂) ÷ (n₂ + 2) )
//! ```
//!
//! It is the binomial standard error of a difference with one hit and one miss added on each side
//! (Agresti and Caffo 2000), which stays correct where `k` is 0 or small: a function that is
//! missing on one side does not get an error of zero. It assumes that samples are independent;
//! those of one thread within a few milliseconds are not quite, so the true error is somewhat
//! larger. About five in a hundred functions differ by more than 1.96 errors by chance alone.

use crate::dictionary::Remap;
use crate::frame::FrameKind;
use crate::functions::{Shape, sum_functions};
use crate::merge::{GroupBy, MergeError};
use crate::profile::{Info, Profile};
use crate::sample::{SampleKey, Value};
use crate::top::{Costs, TopSort};
use crate::{Dictionary, LabelSetId};
use hashbrown::HashMap;

/// How many standard errors a share must move to be called significant: 95 % of chance stays below.
const SIGNIFICANT_ERRORS: f64 = 1.96;

/// Half the width of the 95 % interval of a change with this standard error.
pub fn error_95(std_error: f64) -> f64 {
    SIGNIFICANT_ERRORS * std_error
}

/// Values of one key before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Change {
    /// In the first profile.
    pub before: Value,
    /// In the second profile.
    pub after: Value,
}

/// One stack (under one label set) in both profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleChange {
    /// Ids in [`Diff::dict`].
    pub key: SampleKey,
    /// The two values.
    pub change: Change,
}

/// One function in both profiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionChange {
    /// Name, as it is in the profiles: escape it where it is shown.
    pub function: String,
    /// Its module.
    pub module: String,
    /// What kind of code it is.
    pub kind: FrameKind,
    /// Samples with the function as leaf.
    pub own: Change,
    /// Samples with the function anywhere; recursion counts once.
    pub total: Change,
}

impl FunctionChange {
    /// True when only the second profile has it.
    pub fn is_new(&self) -> bool {
        self.total.before == Value::default()
    }

    /// True when only the first profile has it.
    pub fn is_vanished(&self) -> bool {
        self.total.after == Value::default()
    }
}

/// A share of the total, before and after; see the formulas above.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShareChange {
    /// 0 to 1.
    pub before: f64,
    /// 0 to 1.
    pub after: f64,
    /// `after − before`.
    pub delta: f64,
    /// Standard error of `delta`.
    pub std_error: f64,
}

impl ShareChange {
    /// True when the change is larger than its 95 % error.
    pub fn is_significant(&self) -> bool {
        self.delta.abs() > error_95(self.std_error)
    }
}

/// Two profiles side by side.
#[derive(Clone)]
pub struct Diff {
    /// What the ids of `samples` mean.
    pub dict: Dictionary,
    /// Facts about the first profile.
    pub before: Info,
    /// Facts about the second profile.
    pub after: Info,
    /// Sums over all samples.
    pub totals: Change,
    /// Every stack of either profile, in key order.
    pub samples: Vec<SampleChange>,
    /// Every function of either profile; the largest change of own share first, then by name.
    pub functions: Vec<FunctionChange>,
}

impl Diff {
    /// Compares two profiles. Stacks meet only under equal labels, so `group` should keep none that
    /// always differ between the two, such as `pid`.
    ///
    /// # Errors
    /// When the units differ.
    pub fn new(before: &Profile, after: &Profile, group: &GroupBy) -> Result<Diff, MergeError> {
        before.info.clone().merge(&after.info)?;
        let mut dict = Dictionary::default();
        let mut changes: HashMap<SampleKey, Change> = HashMap::new();
        for (profile, is_before) in [(before, true), (after, false)] {
            let mut remap = Remap::default();
            let mut projected: Vec<Option<LabelSetId>> = vec![None; profile.dict.label_sets.len()];
            for (key, value) in profile.sorted() {
                let labels = *projected[key.labels.0 as usize]
                    .get_or_insert_with(|| group.project(&profile.dict, &mut dict, key.labels));
                let stack = remap.stack(&profile.dict, &mut dict, key.stack);
                let change = changes
                    .entry(SampleKey {
                        labels,
                        stack,
                        end: key.end,
                    })
                    .or_default();
                *(if is_before {
                    &mut change.before
                } else {
                    &mut change.after
                }) += value;
            }
        }
        let mut samples: Vec<SampleChange> = changes
            .into_iter()
            .map(|(key, change)| SampleChange { key, change })
            .collect();
        samples.sort_unstable_by_key(|sample| sample.key);

        let totals = Change {
            before: before.total(),
            after: after.total(),
        };
        let mut functions = function_changes(&dict, &samples);
        sort(&mut functions, totals);
        Ok(Diff {
            dict,
            before: before.info.clone(),
            after: after.info.clone(),
            totals,
            samples,
            functions,
        })
    }

    /// The share that a change is of both profiles.
    pub fn share(&self, change: Change) -> ShareChange {
        share(change, self.totals)
    }

    /// A value of the first profile, scaled so that both profiles have the same total. Rounds to
    /// the nearest integer; unchanged if either profile is empty.
    pub fn normalised(&self, before: Value) -> Value {
        let scale = |value: u64, from: u64, to: u64| {
            if from == 0 || to == 0 {
                return value;
            }
            let scaled =
                (u128::from(value) * u128::from(to) + u128::from(from) / 2) / u128::from(from);
            u64::try_from(scaled).unwrap_or(u64::MAX)
        };
        Value {
            count: scale(
                before.count,
                self.totals.before.count,
                self.totals.after.count,
            ),
            weight: scale(
                before.weight,
                self.totals.before.weight,
                self.totals.after.weight,
            ),
        }
    }
}

/// What functions cost before and after, without their stacks.
///
/// For profiles that are too large to be held as a [`Diff`] holds them: a profile that was cut to
/// fit charges what was cut off to callers, and a diff of two would show that as a change.
#[derive(Clone, Debug)]
pub struct CostDiff {
    /// Sums over all samples.
    pub totals: Change,
    /// As [`Diff::functions`].
    pub functions: Vec<FunctionChange>,
}

impl CostDiff {
    /// Compares two tables of functions. That their units agree is for the caller to see.
    pub fn new(before: Costs, after: Costs) -> CostDiff {
        let totals = Change {
            before: before.total(),
            after: after.total(),
        };
        let mut rows: HashMap<(String, String), (FrameKind, Change, Change)> = HashMap::new();
        for (costs, is_before) in [(before, true), (after, false)] {
            for row in costs.into_top(TopSort::Own, usize::MAX).rows {
                let new = || (row.kind, Change::default(), Change::default());
                let costs = rows.entry((row.name, row.module)).or_insert_with(new);
                let (kind, own, total) = costs;
                *kind = (*kind).min(row.kind);
                if is_before {
                    (own.before, total.before) = (row.own, row.total);
                } else {
                    (own.after, total.after) = (row.own, row.total);
                }
            }
        }
        let rows = rows.into_iter();
        let rows = rows.map(|((function, module), (kind, own, total))| FunctionChange {
            function,
            module,
            kind,
            own,
            total,
        });
        let mut functions: Vec<FunctionChange> = rows.collect();
        sort(&mut functions, totals);
        CostDiff { totals, functions }
    }

    /// The share that a change is of both sides.
    pub fn share(&self, change: Change) -> ShareChange {
        share(change, self.totals)
    }

    /// Memory held, in bytes; an estimate.
    pub fn heap_bytes(&self) -> usize {
        let rows = self.functions.iter();
        let texts = rows.map(|row| row.function.len() + row.module.len());
        self.functions.capacity() * size_of::<FunctionChange>() + texts.sum::<usize>()
    }
}

/// The largest change of own share first, then by name.
fn sort(functions: &mut [FunctionChange], totals: Change) {
    let moved = |row: &FunctionChange| share(row.own, totals).delta.abs();
    functions.sort_by(|left, right| {
        moved(right)
            .total_cmp(&moved(left))
            .then_with(|| (&left.function, &left.module).cmp(&(&right.function, &right.module)))
    });
}

fn function_changes(dict: &Dictionary, samples: &[SampleChange]) -> Vec<FunctionChange> {
    let stacks = samples.iter().map(|sample| {
        (
            sample.key.stack,
            [sample.change.before, sample.change.after],
        )
    });
    let change = |[before, after]: [Value; 2]| Change { before, after };
    sum_functions(&Shape::of(dict), stacks)
        .into_iter()
        .map(|cost| FunctionChange {
            function: dict.text(cost.function).to_owned(),
            module: dict.strings.get(cost.module).to_owned(),
            kind: cost.kind,
            own: change(cost.own),
            total: change(cost.total),
        })
        .collect()
}

fn share(part: Change, whole: Change) -> ShareChange {
    let ratio = |part: u64, whole: u64| {
        if whole == 0 {
            0.0
        } else {
            part as f64 / whole as f64
        }
    };
    let before = ratio(part.before.weight, whole.before.weight);
    let after = ratio(part.after.weight, whole.after.weight);
    let variance = |hits: u64, samples: u64| {
        // Counts may have saturated apart: never more hits than samples.
        let hits = hits.min(samples);
        let p = (hits as f64 + 1.0) / (samples as f64 + 2.0);
        p * (1.0 - p) / (samples as f64 + 2.0)
    };
    let std_error = (variance(part.before.count, whole.before.count)
        + variance(part.after.count, whole.after.count))
    .sqrt();
    ShareChange {
        before,
        after,
        delta: after - before,
        std_error,
    }
}
