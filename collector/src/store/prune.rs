//! Profiles with more stacks than an answer may have: the lightest are folded into their callers.

use profile::{Profile, Remap, StackId};

/// Folds the lightest stacks into their callers until at most `nodes` are left; returns the weight
/// that moved.
pub(super) fn prune(profile: &mut Profile, nodes: usize) -> u64 {
    let trie = &profile.dict.stacks;
    if trie.len() <= nodes.saturating_add(1) {
        return 0;
    }
    let mut totals = vec![0u64; trie.len()];
    for (key, value) in &profile.samples {
        let total = &mut totals[key.stack.0 as usize];
        *total = total.saturating_add(value.weight);
    }
    // Parents have smaller ids: one pass from the end adds every subtree up.
    let parents: Vec<StackId> = std::iter::once(StackId::EMPTY)
        .chain(trie.iter().map(|(_, parent, _)| parent))
        .collect();
    for at in (1..totals.len()).rev() {
        let parent = parents[at].0 as usize;
        totals[parent] = totals[parent].saturating_add(totals[at]);
    }
    // A parent is at least as heavy as its child and older, so what is kept is closed to the root.
    let mut order: Vec<u32> = (1..totals.len() as u32).collect();
    order.sort_unstable_by_key(|&id| (std::cmp::Reverse(totals[id as usize]), id));
    let mut kept = vec![false; totals.len()];
    kept[0] = true;
    for &id in order.iter().take(nodes) {
        kept[id as usize] = true;
    }
    let mut target: Vec<StackId> = Vec::with_capacity(totals.len());
    for (at, &is_kept) in kept.iter().enumerate() {
        let stack = StackId(at as u32);
        target.push(if is_kept {
            stack
        } else {
            target[parents[at].0 as usize]
        });
    }
    let mut pruned = Profile {
        info: profile.info.clone(),
        ..Profile::default()
    };
    let (mut moved, mut remap) = (0u64, Remap::default());
    for (mut key, value) in profile.sorted() {
        let stack = target[key.stack.0 as usize];
        if stack != key.stack {
            moved = moved.saturating_add(value.weight);
            key.stack = stack;
        }
        pruned.add_from(&profile.dict, &mut remap, key, value);
    }
    *profile = pruned;
    moved
}
