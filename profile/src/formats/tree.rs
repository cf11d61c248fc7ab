//! The merged call tree for folded stacks, flame graphs and pages.
//!
//! Frames become keys with what a format distinguishes (text, or function with module and kind);
//! equal keys under the same parent are one node. There is no recursion, because stacks may be
//! deep.

use crate::dictionary::Dictionary;
use crate::frame::{FrameId, FrameRef};
use crate::sample::SampleKey;
use crate::stack::StackId;
use hashbrown::HashMap;
use std::hash::Hash;

/// A node; node 0 is the root, which has no frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node<const N: usize> {
    /// Index of the parent, smaller than the node's own; 0 for the root itself.
    pub parent: u32,
    /// Index in [`Tree::names`].
    pub name: u32,
    /// Distance from the root.
    pub depth: u32,
    /// Values of samples that end here.
    pub own: [u64; N],
    /// Values of samples that end here or below.
    pub total: [u64; N],
}

/// Nodes in depth-first order, children by name: the same samples give the same tree.
#[derive(Clone)]
pub(super) struct Tree<K, const N: usize> {
    /// What frames are called, in sorted order; entry 0 is the root's.
    pub names: Vec<K>,
    pub nodes: Vec<Node<N>>,
    /// Index in `nodes` of what [`TreeBuilder::add`] gave.
    places: Vec<u32>,
}

/// Where a sample was put, before its tree is sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Added(u32);

/// Builds a [`Tree`] from samples of one dictionary.
pub(super) struct TreeBuilder<'d, K, const N: usize> {
    dict: &'d Dictionary,
    names: Vec<K>,
    name_ids: HashMap<K, u32>,
    frame_names: Vec<Option<u32>>,
    /// (parent, name, own), in order of arrival; parents come first.
    nodes: Vec<(u32, u32, [u64; N])>,
    children: HashMap<(u32, u32), u32>,
    /// Node of a stack below the node of its root frames.
    stacks: HashMap<(u32, StackId), u32>,
    path: Vec<StackId>,
}

impl<'d, K: Eq + Hash + Ord + Clone + Default, const N: usize> TreeBuilder<'d, K, N> {
    pub fn new(dict: &'d Dictionary) -> Self {
        TreeBuilder {
            dict,
            names: vec![K::default()],
            name_ids: HashMap::new(),
            frame_names: vec![None; dict.frames.len()],
            nodes: vec![(0, 0, [0; N])],
            children: HashMap::new(),
            stacks: HashMap::new(),
            path: Vec::new(),
        }
    }

    /// Adds a sample under `roots`, outermost first; `name` turns a frame into what it is called.
    pub fn add(
        &mut self,
        key: SampleKey,
        values: [u64; N],
        roots: impl IntoIterator<Item = K>,
        name: impl Fn(FrameRef<'_>) -> K,
    ) -> Added {
        let mut base = 0;
        for root in roots {
            let root = self.name_id(root);
            base = self.child(base, root);
        }
        let node = if key.stack == StackId::EMPTY {
            let unknown = self.name_id(name(super::no_frames()));
            self.child(base, unknown)
        } else {
            self.stack_node(base, key.stack, name)
        };
        let own = &mut self.nodes[node as usize].2;
        for (sum, value) in own.iter_mut().zip(values) {
            *sum = sum.saturating_add(value);
        }
        Added(node)
    }

    fn stack_node(&mut self, base: u32, stack: StackId, name: impl Fn(FrameRef<'_>) -> K) -> u32 {
        let mut path = std::mem::take(&mut self.path);
        let mut at = stack;
        let mut node = loop {
            if at == StackId::EMPTY {
                break base;
            }
            if let Some(&known) = self.stacks.get(&(base, at)) {
                break known;
            }
            path.push(at);
            at = self
                .dict
                .stacks
                .node(at)
                .map_or(StackId::EMPTY, |(parent, _)| parent);
        };
        for stack in path.drain(..).rev() {
            if let Some((_, frame)) = self.dict.stacks.node(stack) {
                let name = self.frame_name(frame, &name);
                node = self.child(node, name);
                self.stacks.insert((base, stack), node);
            }
        }
        self.path = path;
        node
    }

    fn frame_name(&mut self, frame: FrameId, name: impl Fn(FrameRef<'_>) -> K) -> u32 {
        if let Some(known) = self.frame_names[frame.0 as usize] {
            return known;
        }
        let id = self.name_id(name(self.dict.frame(frame)));
        self.frame_names[frame.0 as usize] = Some(id);
        id
    }

    fn name_id(&mut self, name: K) -> u32 {
        *self.name_ids.entry(name).or_insert_with_key(|name| {
            self.names.push(name.clone());
            (self.names.len() - 1) as u32
        })
    }

    fn child(&mut self, parent: u32, name: u32) -> u32 {
        *self.children.entry((parent, name)).or_insert_with(|| {
            self.nodes.push((parent, name, [0; N]));
            (self.nodes.len() - 1) as u32
        })
    }

    /// Sorts and sums.
    pub fn finish(self) -> Tree<K, N> {
        // Names by rank; the root's stays first.
        let mut order: Vec<u32> = (1..self.names.len() as u32).collect();
        order.sort_unstable_by(|&a, &b| self.names[a as usize].cmp(&self.names[b as usize]));
        let mut rank = vec![0u32; self.names.len()];
        let mut names = vec![self.names[0].clone()];
        for (at, &id) in order.iter().enumerate() {
            rank[id as usize] = at as u32 + 1;
            names.push(self.names[id as usize].clone());
        }

        let mut totals: Vec<[u64; N]> = self.nodes.iter().map(|&(_, _, own)| own).collect();
        for at in (1..self.nodes.len()).rev() {
            let (parent, below) = (self.nodes[at].0 as usize, totals[at]);
            for (sum, value) in totals[parent].iter_mut().zip(below) {
                *sum = sum.saturating_add(value);
            }
        }

        // Children of each node, last name first, because a stack gives back the last one pushed.
        let mut by_parent: Vec<u32> = (1..self.nodes.len() as u32).collect();
        by_parent.sort_unstable_by_key(|&node| {
            let (parent, name, _) = self.nodes[node as usize];
            (parent, std::cmp::Reverse(rank[name as usize]))
        });
        let mut first_child = vec![0usize; self.nodes.len() + 1];
        for &node in &by_parent {
            first_child[self.nodes[node as usize].0 as usize + 1] += 1;
        }
        for at in 1..first_child.len() {
            first_child[at] += first_child[at - 1];
        }

        let mut nodes = Vec::with_capacity(self.nodes.len());
        let mut places = vec![0u32; self.nodes.len()];
        let mut open = vec![(0u32, 0u32, 0u32)];
        while let Some((node, parent, depth)) = open.pop() {
            let at = nodes.len() as u32;
            places[node as usize] = at;
            let (_, name, own) = self.nodes[node as usize];
            let total = totals[node as usize];
            nodes.push(Node {
                parent,
                name: rank[name as usize],
                depth,
                own,
                total,
            });
            let children = first_child[node as usize]..first_child[node as usize + 1];
            open.extend(
                by_parent[children]
                    .iter()
                    .map(|&child| (child, at, depth + 1)),
            );
        }
        Tree {
            names,
            nodes,
            places,
        }
    }
}

impl<K, const N: usize> Tree<K, N> {
    /// The node in which a sample stands now.
    pub fn place(&self, added: Added) -> u32 {
        self.places[added.0 as usize]
    }

    /// Calls `each` with the names from the root's child down to a node and the node, for every
    /// node that samples end in.
    pub fn for_each_stack<E>(
        &self,
        mut each: impl FnMut(&[&K], &Node<N>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut path: Vec<&K> = Vec::new();
        for node in &self.nodes[1..] {
            path.truncate(node.depth as usize - 1);
            path.push(&self.names[node.name as usize]);
            if node.own != [0; N] {
                each(&path, node)?;
            }
        }
        Ok(())
    }

    /// Leaves at most `max` nodes below the root: the smallest subtrees by the first value go. Each
    /// parent that lost some gets their sum as one more child, named `other`. Returns how many
    /// went.
    pub fn prune(&mut self, max: usize, other: K) -> usize {
        let mut sizes = self.sizes(|total| total[0]);
        if sizes.len() <= max {
            return 0;
        }
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        // Everything as small as the first that must go goes: equal sizes are treated alike, so a
        // node never outlives its parent.
        let too_small = sizes[max];
        self.fold(other, |total| total[0] <= too_small)
    }

    /// As [`Tree::prune`], but everything as large as the last of `max` nodes stays, however many
    /// they are. No node may have more of `size` than its parent.
    pub fn prune_below(&mut self, max: usize, other: K, size: impl Fn(&[u64; N]) -> u64) -> usize {
        let mut sizes = self.sizes(&size);
        if sizes.len() <= max {
            return 0;
        }
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let least = sizes[max.saturating_sub(1)];
        self.fold(other, |total| size(total) < least)
    }

    fn sizes(&self, size: impl Fn(&[u64; N]) -> u64) -> Vec<u64> {
        self.nodes[1..]
            .iter()
            .map(|node| size(&node.total))
            .collect()
    }

    /// Folds what `is_small`, and with a node all below it, into `other`.
    fn fold(&mut self, other: K, is_small: impl Fn(&[u64; N]) -> bool) -> usize {
        self.names.push(other);
        let other = (self.names.len() - 1) as u32;

        let mut goes = vec![false; self.nodes.len()];
        let mut lost: Vec<Option<[u64; N]>> = vec![None; self.nodes.len()];
        let mut gone = 0;
        for (at, node) in self.nodes.iter().enumerate().skip(1) {
            if is_small(&node.total) {
                gone += 1;
                let parent = node.parent as usize;
                // Only the topmost of a subtree counts: its total holds the rest.
                if !goes[parent] {
                    let lost = lost[parent].get_or_insert([0; N]);
                    for (sum, value) in lost.iter_mut().zip(node.total) {
                        *sum = sum.saturating_add(value);
                    }
                }
                goes[at] = true;
            }
        }
        let mut nodes: Vec<Node<N>> = Vec::with_capacity(self.nodes.len() - gone);
        let mut moved = vec![0u32; self.nodes.len()];
        for (at, &node) in self.nodes.iter().enumerate() {
            if goes[at] {
                // Where its caller stands, or next to it: the sum follows the node at once.
                let above = node.parent as usize;
                moved[at] = moved[above] + u32::from(!goes[above]);
                continue;
            }
            moved[at] = nodes.len() as u32;
            nodes.push(Node {
                parent: if at == 0 {
                    0
                } else {
                    moved[node.parent as usize]
                },
                ..node
            });
            if let Some(lost) = lost[at] {
                let (parent, depth) = (moved[at], node.depth + 1);
                nodes.push(Node {
                    parent,
                    name: other,
                    depth,
                    own: lost,
                    total: lost,
                });
            }
        }
        for place in &mut self.places {
            *place = moved[*place as usize];
        }
        self.nodes = nodes;
        self.drop_unused_names();
        gone
    }

    /// Leaves the names that nodes have, in the order they had.
    fn drop_unused_names(&mut self) {
        let mut is_used = vec![false; self.names.len()];
        is_used[0] = true;
        for node in &self.nodes {
            is_used[node.name as usize] = true;
        }
        let mut moved = vec![0u32; self.names.len()];
        let mut next = 0;
        for (name, &used) in is_used.iter().enumerate() {
            moved[name] = next;
            next += u32::from(used);
        }
        let mut used = is_used.into_iter();
        self.names.retain(|_| used.next().unwrap_or(false));
        for node in &mut self.nodes {
            node.name = moved[node.name as usize];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Profile, StackEnd, Value};

    fn tree(stacks: &[(&str, u64)]) -> Tree<String, 1> {
        let mut profile = Profile::default();
        for (stack, count) in stacks {
            let frames: Vec<_> = stack
                .split(';')
                .map(|function| {
                    profile.dict.intern_frame(FrameRef {
                        function,
                        ..FrameRef::default()
                    })
                })
                .collect();
            let stack = profile.dict.stacks.intern(frames);
            let key = SampleKey {
                labels: Default::default(),
                stack,
                end: StackEnd::Complete,
            };
            profile.add(
                key,
                Value {
                    count: *count,
                    weight: 0,
                },
            );
        }
        let mut builder = TreeBuilder::new(&profile.dict);
        for (key, value) in profile.sorted() {
            builder.add(key, [value.count], [], |frame| frame.function.to_owned());
        }
        builder.finish()
    }

    fn lines(tree: &Tree<String, 1>) -> Vec<String> {
        let mut lines = Vec::new();
        let done: Result<(), ()> = tree.for_each_stack(|path, node| {
            let path: Vec<_> = path.iter().map(|name| name.as_str()).collect();
            lines.push(format!("{} {}", path.join(";"), node.own[0]));
            Ok(())
        });
        done.unwrap();
        lines
    }

    #[test]
    fn stacks_come_in_order_of_frames_not_of_text() {
        let tree = tree(&[("a;x", 1), ("a b", 2), ("a", 3)]);
        assert_eq!(lines(&tree), ["a 3", "a;x 1", "a b 2"]);
        assert_eq!(tree.nodes[0].total, [6]);
    }

    #[test]
    fn parents_come_first() {
        let tree = tree(&[("a;b;c", 1), ("a;b;d", 2), ("z", 4)]);
        for (at, node) in tree.nodes.iter().enumerate().skip(1) {
            assert!((node.parent as usize) < at);
            assert_eq!(tree.nodes[node.parent as usize].depth + 1, node.depth);
        }
    }

    #[test]
    fn pruning_keeps_the_total() {
        let mut tree = tree(&[
            ("a;b;c", 10),
            ("a;b;d", 1),
            ("a;e;f", 1),
            ("g", 20),
            ("h", 1),
        ]);
        let gone = tree.prune(4, "[other]".to_owned());
        assert_eq!(gone, 4);
        assert_eq!(
            lines(&tree),
            [
                "[other] 1",
                "a;[other] 1",
                "a;b;[other] 1",
                "a;b;c 10",
                "g 20"
            ]
        );
    }

    #[test]
    fn a_sample_is_found_where_pruning_left_it() {
        let mut profile = Profile::default();
        let mut builder_of = |stack: &str, count| {
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
            (key, count)
        };
        let samples = [
            ("a;b;c", 10),
            ("a;b;d", 1),
            ("a;e;f", 1),
            ("g", 20),
            ("h", 0),
        ]
        .map(|(stack, count)| builder_of(stack, count));
        let mut builder = TreeBuilder::new(&profile.dict);
        let added = samples
            .map(|(key, count)| builder.add(key, [count], [], |frame| frame.function.to_owned()));
        let mut tree = builder.finish();
        let path = |tree: &Tree<String, 1>, added| {
            let mut names = Vec::new();
            let mut node = tree.place(added) as usize;
            while node != 0 {
                names.insert(0, tree.names[tree.nodes[node].name as usize].clone());
                node = tree.nodes[node].parent as usize;
            }
            names.join(";")
        };
        let before = added.map(|added| path(&tree, added));
        assert_eq!(before, ["a;b;c", "a;b;d", "a;e;f", "g", "h"]);
        tree.prune(4, "[other]".to_owned());
        let after = added.map(|added| path(&tree, added));
        assert_eq!(after, ["a;b;c", "a;b;[other]", "a;[other]", "g", "[other]"]);
    }

    #[test]
    fn pruning_to_nothing_leaves_the_total() {
        let mut tree = tree(&[("a", 1), ("b", 1)]);
        tree.prune(0, "[other]".to_owned());
        assert_eq!(lines(&tree), ["[other] 2"]);
    }
}
