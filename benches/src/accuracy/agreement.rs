//! How far two profiles of the same seconds agree, beside how far two samplers of one truth would.

use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Functions compared at the top.
pub const TOP: usize = 20;
/// Draws from which the agreement by chance is the mean.
const DRAWS: usize = 20;

/// A stack, leaf first, and how often it was seen.
#[derive(Clone, Debug)]
pub struct Stack<'a> {
    /// Names of functions.
    pub frames: Vec<&'a str>,
    /// Samples.
    pub count: u64,
}

/// How far two profiles agree.
#[derive(Debug, Serialize)]
pub struct Agreement {
    /// Share of samples whose pair of leaf and caller the other has as often: what the two
    /// distributions have in common.
    pub pairs: f64,
    /// The same for two samplers, of as many samples, of what both together saw. Rare pairs meet
    /// more often there than in truth, so this is the most that can be asked for.
    pub pairs_by_chance: f64,
    /// Functions among the [`TOP`] leaves of both.
    pub top_common: usize,
    /// The same by samples with the function anywhere in the stack.
    pub top_total_common: usize,
    /// The top leaves of both together.
    pub top: Vec<Function>,
}

/// A function's share of all samples, as leaf.
#[derive(Debug, Serialize)]
pub struct Function {
    /// Its name.
    pub function: String,
    /// In the daemon's profile.
    pub daemon: f64,
    /// In perf's.
    pub perf: f64,
    /// Standard error of the difference of two independent counts.
    pub error: f64,
}

type Counts<K> = HashMap<K, u64>;

/// Compares two profiles.
pub fn of(ours: &[Stack<'_>], theirs: &[Stack<'_>]) -> Agreement {
    let pairs = (pairs(ours), pairs(theirs));
    let leaves = (leaves(ours), leaves(theirs));
    let totals = (totals(ours), totals(theirs));
    let common = |ours: &Counts<&str>, theirs: &Counts<&str>| {
        let theirs = top(theirs);
        top(ours).intersection(&theirs).count()
    };
    Agreement {
        pairs: overlap(&pairs.0, &pairs.1),
        pairs_by_chance: by_chance(&pairs.0, &pairs.1),
        top_common: common(&leaves.0, &leaves.1),
        top_total_common: common(&totals.0, &totals.1),
        top: functions(&leaves.0, &leaves.1),
    }
}

fn pairs<'a>(stacks: &[Stack<'a>]) -> Counts<(&'a str, &'a str)> {
    let mut counts = Counts::new();
    for stack in stacks {
        let at = |depth: usize| stack.frames.get(depth).copied().unwrap_or("");
        *counts.entry((at(0), at(1))).or_default() += stack.count;
    }
    counts
}

fn leaves<'a>(stacks: &[Stack<'a>]) -> Counts<&'a str> {
    let mut counts = Counts::new();
    for stack in stacks {
        *counts
            .entry(stack.frames.first().copied().unwrap_or(""))
            .or_default() += stack.count;
    }
    counts
}

/// Samples with the function anywhere, once for each sample.
fn totals<'a>(stacks: &[Stack<'a>]) -> Counts<&'a str> {
    let mut counts = Counts::new();
    for stack in stacks {
        for function in stack.frames.iter().copied().collect::<BTreeSet<_>>() {
            *counts.entry(function).or_default() += stack.count;
        }
    }
    counts
}

fn sum<K>(counts: &Counts<K>) -> f64 {
    counts.values().sum::<u64>().max(1) as f64
}

/// What two distributions have in common: 1 when they are the same, 0 when they share nothing.
fn overlap<K: std::hash::Hash + Eq>(a: &Counts<K>, b: &Counts<K>) -> f64 {
    let (all_a, all_b) = (sum(a), sum(b));
    a.iter()
        .filter_map(|(key, &count)| {
            let other = *b.get(key)?;
            Some((count as f64 / all_a).min(other as f64 / all_b))
        })
        .sum()
}

/// Mean overlap of two draws from what both together hold, of the sizes of the two.
fn by_chance<K: std::hash::Hash + Eq + Ord + Copy>(a: &Counts<K>, b: &Counts<K>) -> f64 {
    let mut pool = BTreeMap::<K, u64>::new();
    for (&key, &count) in a.iter().chain(b) {
        *pool.entry(key).or_default() += count;
    }
    let mut until = 0;
    let steps: Vec<u64> = pool
        .values()
        .map(|&count| {
            until += count;
            until
        })
        .collect();
    if until == 0 {
        return 1.0;
    }
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut draw = |samples: u64| {
        let mut counts = Counts::<usize>::new();
        for _ in 0..samples {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let at = steps.partition_point(|&step| step <= random % until);
            *counts.entry(at).or_default() += 1;
        }
        counts
    };
    let (samples_a, samples_b) = (a.values().sum(), b.values().sum());
    let overlaps: f64 = (0..DRAWS)
        .map(|_| overlap(&draw(samples_a), &draw(samples_b)))
        .sum();
    overlaps / DRAWS as f64
}

fn top<'a>(counts: &Counts<&'a str>) -> BTreeSet<&'a str> {
    let mut order: Vec<_> = counts
        .iter()
        .map(|(&name, &count)| (Reverse(count), name))
        .collect();
    order.sort_unstable();
    order.into_iter().take(TOP).map(|(_, name)| name).collect()
}

fn functions(ours: &Counts<&str>, theirs: &Counts<&str>) -> Vec<Function> {
    let (all_ours, all_theirs) = (sum(ours), sum(theirs));
    let mut rows: Vec<Function> = top(ours)
        .union(&top(theirs))
        .map(|&name| {
            let of = |counts: &Counts<&str>| counts.get(name).copied().unwrap_or(0) as f64;
            let (here, there) = (of(ours), of(theirs));
            let both = (here + there) / (all_ours + all_theirs);
            Function {
                function: name.to_owned(),
                daemon: here / all_ours,
                perf: there / all_theirs,
                error: (both * (1.0 - both) * (1.0 / all_ours + 1.0 / all_theirs)).sqrt(),
            }
        })
        .collect();
    rows.sort_by(|a, b| (b.daemon + b.perf).total_cmp(&(a.daemon + a.perf)));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack<'a>(frames: &[&'a str], count: u64) -> Stack<'a> {
        Stack {
            frames: frames.to_vec(),
            count,
        }
    }

    #[test]
    fn the_same_profile_agrees_with_itself() {
        let stacks = [stack(&["a", "main"], 300), stack(&["b", "main"], 100)];
        let agreement = of(&stacks, &stacks);
        assert!((agreement.pairs - 1.0).abs() < 1e-9);
        assert_eq!((agreement.top_common, agreement.top_total_common), (2, 3));
        assert!(agreement.pairs_by_chance > 0.9 && agreement.pairs_by_chance < 1.0);
    }

    #[test]
    fn another_caller_is_another_pair() {
        let ours = [stack(&["a", "main"], 50), stack(&["a", "other"], 50)];
        let theirs = [stack(&["a", "main"], 10)];
        assert!((of(&ours, &theirs).pairs - 0.5).abs() < 1e-9);
        assert_eq!(of(&ours, &theirs).top[0].daemon, 1.0);
    }

    #[test]
    fn profiles_of_different_functions_share_nothing() {
        let agreement = of(&[stack(&["a"], 9)], &[stack(&["b"], 9)]);
        assert_eq!((agreement.pairs, agreement.top_common), (0.0, 0));
    }
}
