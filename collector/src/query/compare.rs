//! Compares two selections by function or module, and says how certain each change is.

use super::spread::{self, Asked, Certainty, Parts, Spread};
use super::{Failed, units};
use crate::store::{DataQuality, Limits, QueryResult, StoreQueries, TimeRange};
use profile::{CostBy, CostDiff, Costs, Query, Value};

/// Comparison of two selections.
pub(super) struct Compared {
    /// By function or module.
    pub diff: CostDiff,
    /// The verdict on each row of `diff`.
    pub verdicts: Vec<Certainty>,
    /// Data quality of each side, and what is behind its spread.
    pub before: (DataQuality, Behind),
    /// See `before`.
    pub after: (DataQuality, Behind),
    /// True when most hosts of one side are not those of the other.
    pub hosts_differ: bool,
}

/// What is behind a side's spread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Behind {
    /// Parts of its time.
    pub parts: usize,
    /// Groups of its hosts.
    pub host_parts: usize,
}

impl Behind {
    fn of(spread: &Spread) -> Behind {
        let len = |parts: &Option<Parts>| parts.as_ref().map_or(0, Parts::len);
        Behind {
            parts: len(&spread.time),
            host_parts: len(&spread.hosts),
        }
    }
}

/// Compares what two queries select in two ranges.
pub(super) fn compare(
    store: &dyn StoreQueries,
    ranges: [TimeRange; 2],
    queries: &[Query; 2],
    by: CostBy,
    limits: &Limits,
) -> Result<Compared, Failed> {
    // It always asks for costs, never for profiles: what is cut off to make a profile fit is
    // charged to callers, and looks like a change.
    let ask = |side: usize, limits: &Limits| -> Result<(Costs, DataQuality), Failed> {
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
    let asked = Asked { store, by, limits };
    let mut spreads = [Spread::default(), Spread::default()];
    let qualities = [&before, &after];
    let totals = [diff.totals.before, diff.totals.after];
    let both = totals.iter().all(|total| *total != Value::default());
    for side in 0..2 {
        let quality = qualities[side];
        let of = (quality.covered, quality.resolution.step_ns);
        if totals[side] != Value::default() {
            spreads[side].time = Parts::of_time(&asked, of, &queries[side], &mut bytes_left)?;
        }
    }
    let hosts = match both {
        true => other_hosts(&asked, qualities, queries)?,
        false => None,
    };
    let hosts_differ = hosts.is_some();
    for (side, hosts) in hosts.into_iter().flatten().enumerate() {
        spreads[side].hosts_count = match hosts.len() {
            0 => spread::HOSTS_MAX,
            known => known,
        };
        let of = (&queries[side], hosts.as_slice());
        let range = qualities[side].covered;
        spreads[side].hosts = Parts::of_hosts(&asked, range, of, &mut bytes_left)?;
    }
    let [was, is] = &spreads;
    let verdicts = spread::judge(&diff, [was, is]);
    let behind = [Behind::of(was), Behind::of(is)];
    Ok(Compared {
        diff,
        verdicts,
        before: (before, behind[0]),
        after: (after, behind[1]),
        hosts_differ,
    })
}

/// The hosts of both sides, if fewer than half of those of the larger side are on both: those that
/// came and went change little otherwise. None of a side with too many to tell apart.
fn other_hosts(
    asked: &Asked<'_>,
    qualities: [&DataQuality; 2],
    queries: &[Query; 2],
) -> Result<Option<[Vec<String>; 2]>, Failed> {
    let of = |side: usize| {
        let range = qualities[side].covered;
        spread::hosts_of(asked, range, &queries[side])
    };
    // Too many to tell apart are others for certain only if the other side has less than half.
    let is_few = |hosts: &Vec<String>| hosts.len() * 2 < spread::HOSTS_MAX;
    let [before, after] = match [of(0)?, of(1)?] {
        [Some(before), Some(after)] => [before, after],
        [Some(few), None] if is_few(&few) => [few, Vec::new()],
        [None, Some(few)] if is_few(&few) => [Vec::new(), few],
        _ => return Ok(None),
    };
    // Both are in order.
    let common = after
        .iter()
        .filter(|host| before.binary_search(host).is_ok());
    match common.count() * 2 >= before.len().max(after.len()) {
        true => Ok(None),
        false => Ok(Some([before, after])),
    }
}
