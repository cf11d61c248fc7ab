//! Compares two selections by function, and says how certain each change is.

use super::spread::{self, Certainty, Parts};
use super::{Failed, units};
use crate::store::{DataQuality, Limits, QueryResult, StoreQueries, TimeRange};
use profile::{CostBy, CostDiff, Costs, Query, Value};

/// Comparison of two selections.
pub(super) struct Compared {
    /// By function.
    pub diff: CostDiff,
    /// The verdict on each function of `diff`.
    pub verdicts: Vec<Certainty>,
    /// Data quality of each side, and the number of parts behind its spread.
    pub before: (DataQuality, usize),
    /// See `before`.
    pub after: (DataQuality, usize),
}

/// One side of a diff.
struct Side {
    parts: Option<Parts>,
    quality: DataQuality,
}

impl Side {
    /// A side with a spread that is not known yet.
    fn new(quality: DataQuality) -> Side {
        let parts = None;
        Side { parts, quality }
    }

    /// What the answer says about it: its quality, and the number of parts behind its spread.
    fn told(self) -> (DataQuality, usize) {
        let parts = self.parts.as_ref().map_or(0, Parts::len);
        (self.quality, parts)
    }
}

/// Compares what two queries select in two ranges.
pub(super) fn compare(
    store: &dyn StoreQueries,
    ranges: [TimeRange; 2],
    queries: &[Query; 2],
    limits: &Limits,
) -> Result<Compared, Failed> {
    // It always asks for costs, never for profiles: what is cut off to make a profile fit is
    // charged to callers, and looks like a change.
    let ask = |side: usize, limits: &Limits| -> Result<(Costs, DataQuality), Failed> {
        let by = CostBy::Function;
        let QueryResult { data, quality } =
            store.costs(ranges[side], &queries[side], by, limits)?;
        // Nobody knows what was lost: shares are of what was sampled.
        Ok((data.without_lost(), quality))
    };
    // Both sides are the answer. How far they spread takes what time and memory is left.
    let mut before = ask(0, limits)?;
    let mut rest = limits.clone();
    rest.memory_bytes = rest.memory_bytes.saturating_sub(before.0.heap_bytes());
    let mut after = ask(1, &rest)?;
    units::equalize(&mut before, &mut after)?;
    let ((costs, before), (costs_after, after)) = (before, after);
    let diff = CostDiff::new(costs, costs_after);
    let mut bytes_left = limits.memory_bytes.saturating_sub(diff.heap_bytes());
    let (mut before, mut after) = (Side::new(before), Side::new(after));
    let totals = [diff.totals.before, diff.totals.after];
    let asked = [&mut before, &mut after].into_iter().zip(queries);
    for ((side, query), total) in asked.zip(totals) {
        let of = (side.quality.covered, side.quality.resolution.step_ns);
        if total != Value::default() {
            side.parts = Parts::read(store, of, query, limits, &mut bytes_left)?;
        }
    }
    let verdicts = spread::judge(&diff, before.parts.as_ref(), after.parts.as_ref());
    Ok(Compared {
        diff,
        verdicts,
        before: before.told(),
        after: after.told(),
    })
}
