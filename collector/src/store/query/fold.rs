//! Folds stacks that are too light for an answer into their callers. Where possible this is done
//! before the answer is built, so that it costs what it shows and not what was read.

use profile::{Profile, Remap, SampleKey, StackId, StackTrie, Value};

/// Memory that [`callers_kept`] takes for each stack of the dictionary. Unit: bytes.
pub(super) const STACK_BYTES: usize =
    size_of::<Value>() + 2 * size_of::<bool>() + 3 * size_of::<u32>();

/// Weights are classified by their highest bits: the position of the first, and those after it.
const BITS_AFTER: u32 = 5;

/// How many such kinds of weights there are.
const KINDS: usize = (u64::BITS as usize) << BITS_AFTER;

/// The kind of a weight: of a heavier one it is the same or more.
fn kind(weight: u64) -> usize {
    let highest = (weight | 1).ilog2();
    // The bits after the highest, which is shifted out.
    let after = weight
        .checked_shl(u64::BITS - highest)
        .map_or(0, |rest| rest >> (u64::BITS - BITS_AFTER));
    (highest as usize) << BITS_AFTER | after as usize
}

/// By stack: itself, or the nearest caller that is among the `nodes` heaviest. `None` when no more
/// than `nodes` stacks and callers have samples: all stay. `parents` has the caller of each stack,
/// which has a smaller id; the first is the empty stack, its own.
pub(super) fn callers_kept(
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
    let (mut all, mut of_kind) = (0, vec![0usize; KINDS]);
    for id in (1..parents.len()).rev() {
        if reached[id] {
            let (parent, value) = (parents[id].0 as usize, totals[id]);
            totals[parent] += value;
            reached[parent] = true;
            all += 1;
            of_kind[kind(value.weight)] += 1;
        }
    }
    if all <= nodes {
        return None;
    }
    // The heaviest kinds of which all are kept, and how many of the next.
    let (mut cut, mut left) = (KINDS, nodes);
    while cut > 0 && of_kind[cut - 1] <= left {
        cut -= 1;
        left -= of_kind[cut];
    }
    let mut kept = vec![false; parents.len()];
    let mut next: Vec<u32> = Vec::new();
    for id in (1..parents.len()).filter(|&id| reached[id]) {
        let kind = kind(totals[id].weight);
        kept[id] = kind >= cut;
        if kind + 1 == cut {
            next.push(id as u32);
        }
    }
    // A caller weighs at least what its callees do and has a smaller id: it is kept before them.
    let rank = |id: &u32| {
        let total = totals[*id as usize];
        (std::cmp::Reverse((total.weight, total.count)), *id)
    };
    if left > 0 {
        next.select_nth_unstable_by_key(left - 1, rank);
    }
    for &id in next.iter().take(left) {
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

/// The caller of each stack, by id.
pub(super) fn parents(stacks: &StackTrie) -> Vec<StackId> {
    let own = stacks.iter().map(|(_, parent, _)| parent);
    std::iter::once(StackId::EMPTY).chain(own).collect()
}

/// Folds the lightest stacks of a profile into their callers until at most `nodes` are left;
/// `moved` gets each sample that moves.
pub(crate) fn prune(profile: &mut Profile, nodes: usize, mut moved: impl FnMut(&SampleKey, Value)) {
    if profile.dict.stacks.len() <= nodes.saturating_add(1) {
        return;
    }
    let samples = profile.samples.iter();
    let samples = samples.map(|(key, &value)| (key.stack, value));
    let Some(stays) = callers_kept(&parents(&profile.dict.stacks), samples, nodes) else {
        return;
    };
    let mut pruned = Profile {
        info: profile.info.clone(),
        ..Profile::default()
    };
    let mut remap = Remap::default();
    for (mut key, value) in profile.sorted() {
        let stay = stays[key.stack.0 as usize];
        if stay != key.stack {
            moved(&key, value);
            key.stack = stay;
        }
        pruned.add_from(&profile.dict, &mut remap, key, value);
    }
    *profile = pruned;
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
    fn heavier_weights_are_of_higher_kinds() {
        let edges = (0..u64::BITS).flat_map(|bit| {
            let power = 1u64 << bit;
            [
                power - 1,
                power,
                power + power / 3,
                power | power >> BITS_AFTER,
            ]
        });
        let mut weights: Vec<u64> = edges.chain(0..300).chain([u64::MAX]).collect();
        weights.sort_unstable();
        assert!(weights.is_sorted_by_key(|&weight| kind(weight)));
        assert_eq!(kind(u64::MAX), KINDS - 1);
        assert!(kind(64) < kind(66));
    }

    #[test]
    fn as_many_stay_as_there_is_room_for() {
        // A root with a hundred callees, of which the first 21 have the same weight.
        let parents: Vec<u32> = [0, 0].into_iter().chain([1; 100]).collect();
        let of: Vec<(u32, u64)> = (2..102)
            .map(|id| (id, 500 + u64::from(id).max(22)))
            .collect();
        let by_weight: Vec<u32> = std::iter::once(1)
            .chain((23..102).rev())
            .chain(2..23)
            .collect();
        for nodes in 0..101 {
            let stays = callers_kept(&ids(&parents), samples(&of), nodes).unwrap();
            let kept: Vec<u32> = (1..102)
                .filter(|&id| stays[id as usize] == StackId(id))
                .collect();
            let mut expected = by_weight[..nodes].to_vec();
            expected.sort_unstable();
            assert_eq!(kept, expected);
        }
    }

    #[test]
    fn the_lightest_go_to_the_nearest_caller_that_stays() {
        // 1 ← 2 ← 3, 1 ← 4, 5.
        let parents = ids(&[0, 0, 1, 2, 1, 0]);
        let found = callers_kept(&parents, samples(&[(3, 1), (4, 7), (5, 5)]), 3);
        assert_eq!(found, Some(ids(&[0, 1, 1, 1, 4, 5])));
    }

    #[test]
    fn stacks_without_samples_take_no_place() {
        let parents = ids(&[0, 0, 1, 2, 1, 0]);
        assert_eq!(callers_kept(&parents, samples(&[(4, 0), (5, 5)]), 3), None);
    }

    #[test]
    fn nothing_may_stay() {
        let parents = ids(&[0, 0, 1]);
        let found = callers_kept(&parents, samples(&[(2, 1)]), 0);
        assert_eq!(found, Some(ids(&[0, 0, 0])));
    }
}
