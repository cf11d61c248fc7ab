//! Flame graphs as levels of bars: how Pyroscope's API sends them.
//!
//! Level 0 has the root alone. A bar of one profile is four numbers: the distance from the end of
//! the bar before it in its level, its total, its own value, and the index of its name. A bar of
//! two profiles is seven: distance, total and own value of the left, then of the right, then the
//! name. The first child of a bar starts where the bar's own value ends. Children are ordered by
//! name, and what was folded away stands last.

use super::tree::{Tree, TreeBuilder};
use super::{Options, called, root_frames};
use crate::diff::Diff;
use crate::profile::Profile;
use crate::sample::SampleKey;

/// Name of the root. Readers take it from the first name.
const ROOT: &str = "total";

/// Name of what was folded away.
const OTHER: &str = "other";

/// A flame graph.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Levels {
    /// What bars are called; the root is the first.
    pub names: Vec<String>,
    /// The bars of each level, from the root.
    pub levels: Vec<Vec<i64>>,
    /// Value of everything, on both sides together.
    pub total: i64,
    /// Largest own value of a bar.
    pub max_self: i64,
}

/// The flame graph of a profile. Bars smaller than the `max_nodes` largest are folded. Those as
/// large as the last of them stay, because single samples are all alike. Takes
/// [`Options::measure`], `lines`, `root_labels`, `mark_cut`.
///
/// `None`: the total is beyond 2⁶³ − 1.
pub fn levels(profile: &Profile, options: &Options, max_nodes: usize) -> Option<Levels> {
    let mut builder = TreeBuilder::new(&profile.dict);
    for (key, value) in profile.sorted() {
        let roots = root_frames(&profile.dict, options, key.labels, key.end);
        let value = options.measure.of(value);
        builder.add(key, [value], roots.map(|root| root.text()), |frame| {
            called(frame, options).into_owned()
        });
    }
    bars(builder.finish(), max_nodes)
}

/// The flame graph of two profiles, the left one before, and the total of each side.
///
/// `None`: the total is beyond 2⁶³ − 1.
pub fn diff_levels(diff: &Diff, options: &Options, max_nodes: usize) -> Option<(Levels, [i64; 2])> {
    let mut builder = TreeBuilder::new(&diff.dict);
    let mut totals = [0u64; 2];
    for sample in &diff.samples {
        let (key, change) = (sample.key, sample.change);
        let values = [change.before, change.after].map(|value| options.measure.of(value));
        for (total, value) in totals.iter_mut().zip(values) {
            *total = total.saturating_add(value);
        }
        let roots = root_frames(&diff.dict, options, key.labels, key.end);
        builder.add(key, values, roots.map(|root| root.text()), |frame| {
            called(frame, options).into_owned()
        });
    }
    let totals = [signed(totals[0])?, signed(totals[1])?];
    Some((bars(builder.finish(), max_nodes)?, totals))
}

/// The samples whose stacks start, from the root, with frames of these names.
pub fn below(profile: &Profile, call_site: &[String], options: &Options) -> Profile {
    let mut path = Vec::new();
    let mut is_below = |key: &SampleKey| {
        profile.dict.stacks.root_first(key.stack, &mut path);
        let roots = root_frames(&profile.dict, options, key.labels, key.end);
        let roots = roots.map(|root| root.text().into());
        let frames = path
            .iter()
            .map(|&id| called(profile.dict.frame(id), options));
        let mut names = roots.chain(frames);
        call_site
            .iter()
            .all(|name| names.next().as_deref() == Some(name))
    };
    let mut kept = profile.clone();
    kept.samples.retain(|key, _| is_below(key));
    kept
}

fn signed(value: u64) -> Option<i64> {
    i64::try_from(value).ok()
}

/// The larger side: what is large before or after stays.
fn largest<const N: usize>(total: &[u64; N]) -> u64 {
    total.iter().copied().max().unwrap_or(0)
}

fn bars<const N: usize>(mut tree: Tree<String, N>, max_nodes: usize) -> Option<Levels> {
    let is_pruned = tree.prune_below(max_nodes, OTHER.to_owned(), largest) > 0;
    let other = is_pruned.then(|| (tree.names.len() - 1) as u32);
    ROOT.clone_into(&mut tree.names[0]);
    let sum = |values: [u64; N]| {
        values
            .iter()
            .try_fold(0u64, |sum, &one| sum.checked_add(one))
    };
    let total = signed(sum(tree.nodes[0].total)?)?;

    // Where each node starts, and where its next child does.
    let mut starts = vec![[0u64; N]; tree.nodes.len()];
    let mut next: Vec<[u64; N]> = tree.nodes.iter().map(|node| node.own).collect();
    let mut place = |at: usize| {
        let node = tree.nodes[at];
        let parent = node.parent as usize;
        for side in 0..N {
            starts[at][side] = next[parent][side];
            next[at][side] += next[parent][side];
            next[parent][side] += node.total[side];
        }
    };
    let is_other = |at: &usize| Some(tree.nodes[*at].name) == other;
    (1..tree.nodes.len())
        .filter(|at| !is_other(at))
        .for_each(&mut place);
    (1..tree.nodes.len()).filter(is_other).for_each(&mut place);

    let deepest = tree.nodes.iter().map(|node| node.depth).max().unwrap_or(0);
    let mut by_level: Vec<Vec<usize>> = vec![Vec::new(); deepest as usize + 1];
    for (at, node) in tree.nodes.iter().enumerate() {
        by_level[node.depth as usize].push(at);
    }
    let (mut levels, mut max_self) = (Vec::with_capacity(by_level.len()), 0);
    for mut level in by_level {
        level.sort_by_key(|&at| (starts[at], is_other(&at)));
        let mut bars = Vec::with_capacity(level.len() * (3 * N + 1));
        let mut ends = [0u64; N];
        for at in level {
            let node = tree.nodes[at];
            for side in 0..N {
                let (start, total) = (starts[at][side], node.total[side]);
                bars.extend([start - ends[side], total, node.own[side]].map(|n| n as i64));
                ends[side] = start + total;
            }
            bars.push(i64::from(node.name));
            max_self = max_self.max(signed(sum(node.own)?)?);
        }
        levels.push(bars);
    }
    Some(Levels {
        names: tree.names,
        levels,
        total,
        max_self,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::Measure;
    use crate::frame::FrameRef;
    use crate::merge::GroupBy;
    use crate::outcome::StackEnd;
    use crate::sample::Value;
    use std::collections::BTreeMap;

    fn profile(stacks: &[(&str, u64)]) -> Profile {
        let mut profile = Profile::default();
        for (stack, weight) in stacks {
            let frames: Vec<_> = stack
                .split(';')
                .map(|function| {
                    profile.dict.intern_frame(FrameRef {
                        function,
                        ..FrameRef::default()
                    })
                })
                .collect();
            let key = SampleKey {
                labels: Default::default(),
                stack: profile.dict.stacks.intern(frames),
                end: StackEnd::Complete,
            };
            let value = Value {
                count: 1,
                weight: *weight,
            };
            profile.add(key, value);
        }
        profile
    }

    fn weights() -> Options {
        Options {
            measure: Measure::Weight,
            ..Options::default()
        }
    }

    /// Folded stacks of a flame graph with `N` sides, read as its readers do: a bar is a child of
    /// the bar above that it lies in.
    fn unfolded<const N: usize>(found: &Levels) -> BTreeMap<String, [i64; N]> {
        let mut stacks = BTreeMap::new();
        let mut above: Vec<([(i64, i64); N], String)> = Vec::new();
        for (depth, level) in found.levels.iter().enumerate() {
            let mut ends = [0; N];
            let mut bars = Vec::new();
            for bar in level.chunks_exact(3 * N + 1) {
                let name = &found.names[bar[3 * N] as usize];
                let mut own = [0; N];
                let mut spans = [(0, 0); N];
                for side in 0..N {
                    let [distance, total, value] = bar[3 * side..3 * side + 3] else {
                        unreachable!()
                    };
                    let start = ends[side] + distance;
                    ends[side] = start + total;
                    spans[side] = (start, ends[side]);
                    own[side] = value;
                }
                let lies_in = |outer: &[(i64, i64); N]| {
                    let sides = outer.iter().zip(&spans);
                    sides.into_iter().all(|(o, i)| o.0 <= i.0 && i.1 <= o.1)
                };
                let path = match depth {
                    0 => String::new(),
                    _ => {
                        let parent = above.iter().rfind(|(outer, _)| lies_in(outer));
                        let (_, path) = parent.expect("a parent");
                        match path.as_str() {
                            "" => name.clone(),
                            path => format!("{path};{name}"),
                        }
                    }
                };
                if own != [0; N] {
                    assert!(stacks.insert(path.clone(), own).is_none(), "{path} twice");
                }
                bars.push((spans, path));
            }
            above = bars;
        }
        stacks
    }

    fn folded(stacks: &[(&str, i64)]) -> BTreeMap<String, [i64; 1]> {
        let stacks = stacks.iter();
        stacks
            .map(|(stack, own)| (stack.to_string(), [*own]))
            .collect()
    }

    const STACKS: [(&str, u64); 5] = [
        ("main;parse;read", 10),
        ("main;parse", 5),
        ("main;write", 7),
        ("idle", 3),
        ("main;parse;alloc", 2),
    ];

    #[test]
    fn bars_are_where_readers_look_for_them() {
        let found = levels(&profile(&STACKS), &weights(), 100).unwrap();
        assert_eq!(
            found.names,
            ["total", "alloc", "idle", "main", "parse", "read", "write"]
        );
        assert_eq!(
            found.levels,
            [
                vec![0, 27, 0, 0],
                vec![0, 3, 3, 2, 0, 24, 0, 3],
                vec![3, 17, 5, 4, 0, 7, 7, 6],
                vec![8, 2, 2, 1, 0, 10, 10, 5],
            ]
        );
        assert_eq!((found.total, found.max_self), (27, 10));
    }

    #[test]
    fn what_is_read_back_is_what_there_was() {
        let found = levels(&profile(&STACKS), &weights(), 100).unwrap();
        let stacks = STACKS.map(|(stack, weight)| (stack, weight as i64));
        assert_eq!(unfolded::<1>(&found), folded(&stacks));
    }

    #[test]
    fn the_smallest_are_folded_and_stand_last() {
        let found = levels(&profile(&STACKS), &weights(), 4).unwrap();
        assert_eq!(
            unfolded::<1>(&found),
            folded(&[
                ("main;parse;read", 10),
                ("main;parse", 5),
                ("main;parse;other", 2),
                ("main;write", 7),
                ("other", 3),
            ])
        );
        let names: Vec<_> = found.levels[1]
            .chunks(4)
            .map(|bar| bar[3] as usize)
            .collect();
        assert_eq!(names.map_names(&found), ["main", "other"]);
    }

    trait Named {
        fn map_names(self, found: &Levels) -> Vec<&str>;
    }

    impl Named for Vec<usize> {
        fn map_names(self, found: &Levels) -> Vec<&str> {
            self.into_iter()
                .map(|at| found.names[at].as_str())
                .collect()
        }
    }

    #[test]
    fn a_profile_without_samples_is_a_root_without_value() {
        let found = levels(&Profile::default(), &weights(), 100).unwrap();
        assert_eq!(
            (found.names, found.levels),
            (vec!["total".to_owned()], vec![vec![0; 4]])
        );
    }

    #[test]
    fn both_sides_of_a_diff_have_one_shape() {
        let (left, right) = (profile(&STACKS), profile(&[("main;parse", 8), ("new", 4)]));
        let diff = Diff::new(&left, &right, &GroupBy::All).unwrap();
        let (found, totals) = diff_levels(&diff, &weights(), 100).unwrap();
        assert_eq!((totals, found.total), ([27, 12], 39));
        let stacks = unfolded::<2>(&found);
        assert_eq!(stacks["main;parse"], [5, 8]);
        assert_eq!(stacks["new"], [0, 4]);
        assert_eq!(stacks["main;write"], [7, 0]);
    }

    #[test]
    fn a_bar_of_a_diff_stays_if_it_is_large_on_one_side() {
        let (left, right) = (profile(&[("a", 100), ("b", 1)]), profile(&[("c", 90)]));
        let diff = Diff::new(&left, &right, &GroupBy::All).unwrap();
        let (found, _) = diff_levels(&diff, &weights(), 2).unwrap();
        let stacks = unfolded::<2>(&found);
        assert_eq!((stacks["c"], stacks["other"]), ([0, 90], [1, 0]));
    }

    #[test]
    fn a_total_beyond_signed_numbers_is_refused() {
        let half = u64::MAX / 2;
        assert!(levels(&profile(&[("a", half), ("b", half)]), &weights(), 10).is_none());
    }

    #[test]
    fn a_call_site_keeps_what_starts_with_it() {
        let site = ["main", "parse"].map(str::to_owned);
        let kept = below(&profile(&STACKS), &site, &weights());
        let found = levels(&kept, &weights(), 100).unwrap();
        let expected = [
            ("main;parse;read", 10),
            ("main;parse", 5),
            ("main;parse;alloc", 2),
        ];
        assert_eq!(unfolded::<1>(&found), folded(&expected));
    }
}
