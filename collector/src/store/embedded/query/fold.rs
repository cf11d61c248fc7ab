//! Stacks too light for an answer are folded into their callers before the answer is built: it costs
//! what it shows, not what was read.

use ::profile::{StackId, Value};

/// Memory that [`fold`] takes for each stack of the dictionary. Unit: bytes.
pub const STACK_BYTES: usize = size_of::<Value>() + size_of::<bool>() + 3 * size_of::<u32>();

/// By stack: itself, or the nearest caller that is among the `nodes` heaviest. `None` when no more than
/// `nodes` stacks and callers have samples: all stay. `parents` has the caller of each stack, which has
/// a smaller id; the first is the empty stack, its own.
pub fn fold(
    parents: &[StackId],
    samples: impl Iterator<Item = (StackId, Value)>,
    nodes: usize,
) -> Option<Vec<StackId>> {
    let mut totals = vec![Value::default(); parents.len()];
    // A sample may count nothing and be there.
    let mut reached = vec![false; parents.len()];
    for (stack, value) in samples {
        totals[stack.0 as usize] += value;
        reached[stack.0 as usize] = true;
    }
    let mut order: Vec<u32> = Vec::new();
    for id in (1..parents.len()).rev() {
        if reached[id] {
            let (parent, value) = (parents[id].0 as usize, totals[id]);
            totals[parent] += value;
            reached[parent] = true;
            order.push(id as u32);
        }
    }
    if order.len() <= nodes {
        return None;
    }
    // A caller weighs at least what its callees do and has a smaller id: it is kept before them.
    let rank = |id: &u32| {
        let total = totals[*id as usize];
        (std::cmp::Reverse((total.weight, total.count)), *id)
    };
    if nodes > 0 {
        order.select_nth_unstable_by_key(nodes - 1, rank);
    }
    let mut kept = vec![false; parents.len()];
    for &id in order.iter().take(nodes) {
        kept[id as usize] = true;
    }
    let mut stays: Vec<StackId> = Vec::with_capacity(parents.len());
    stays.push(StackId::EMPTY);
    for id in 1..parents.len() {
        let own = StackId(id as u32);
        let caller = stays[parents[id].0 as usize];
        stays.push(if kept[id] { own } else { caller });
    }
    Some(stays)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(of: &[(u32, u64)]) -> impl Iterator<Item = (StackId, Value)> + use<> {
        let value = |weight| Value { count: 1, weight };
        let of: Vec<_> = of
            .iter()
            .map(|&(id, weight)| (StackId(id), value(weight)))
            .collect();
        of.into_iter()
    }

    fn ids(of: &[u32]) -> Vec<StackId> {
        of.iter().copied().map(StackId).collect()
    }

    #[test]
    fn the_lightest_go_to_the_nearest_caller_that_stays() {
        // 1 ← 2 ← 3, 1 ← 4, 5.
        let parents = ids(&[0, 0, 1, 2, 1, 0]);
        let found = fold(&parents, samples(&[(3, 1), (4, 7), (5, 5)]), 3);
        assert_eq!(found, Some(ids(&[0, 1, 1, 1, 4, 5])));
    }

    #[test]
    fn stacks_without_samples_take_no_place() {
        let parents = ids(&[0, 0, 1, 2, 1, 0]);
        assert_eq!(fold(&parents, samples(&[(4, 0), (5, 5)]), 3), None);
    }

    #[test]
    fn nothing_may_stay() {
        let parents = ids(&[0, 0, 1]);
        let found = fold(&parents, samples(&[(2, 1)]), 0);
        assert_eq!(found, Some(ids(&[0, 0, 0])));
    }
}
