//! Stacks as a trie of (parent, frame): a caller chain shared by many stacks is stored once.

use crate::frame::FrameId;
use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;

/// A stack of one [`StackTrie`]: the node of its leaf frame. Id 0 is the empty stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct StackId(pub u32);

impl StackId {
    /// The stack without frames, parent of every root frame.
    pub const EMPTY: StackId = StackId(0);
}

/// The trie. A node's parent always has a smaller id, so one pass in id order sees parents first.
#[derive(Clone)]
pub struct StackTrie {
    nodes: Vec<(StackId, FrameId)>,
    /// Finds the first `indexed` nodes; those after them are added when one is looked for.
    index: HashTable<u32>,
    indexed: usize,
    hasher: DefaultHashBuilder,
}

impl Default for StackTrie {
    fn default() -> Self {
        StackTrie {
            nodes: vec![(StackId::EMPTY, FrameId(u32::MAX))],
            index: HashTable::new(),
            indexed: 1,
            hasher: DefaultHashBuilder::default(),
        }
    }
}

impl StackTrie {
    /// Returns the stack that is `parent` with `frame` called on top, adding it when it is new.
    pub fn child(&mut self, parent: StackId, frame: FrameId) -> StackId {
        if self.indexed < self.nodes.len() {
            self.index_rest();
        }
        let node = (parent, frame);
        let hash = self.hasher.hash_one(node);
        if let Some(&id) = self.index.find(hash, |&id| self.nodes[id as usize] == node) {
            return StackId(id);
        }
        debug_assert!((parent.0 as usize) < self.nodes.len());
        let id = self.nodes.len() as u32;
        self.nodes.push(node);
        let (nodes, hasher) = (&self.nodes, &self.hasher);
        self.index
            .insert_unique(hash, id, |&id| hasher.hash_one(nodes[id as usize]));
        self.indexed = self.nodes.len();
        StackId(id)
    }

    /// Adds the stack that is `parent` with `frame` called on top, of which the caller knows that
    /// it is new: it is not looked for, nor made ready to be found until something else is.
    pub(crate) fn new_child(&mut self, parent: StackId, frame: FrameId) -> StackId {
        debug_assert!((parent.0 as usize) < self.nodes.len());
        let id = self.nodes.len() as u32;
        self.nodes.push((parent, frame));
        StackId(id)
    }

    /// Makes every node ready to be found.
    fn index_rest(&mut self) {
        let (nodes, hasher) = (&self.nodes, &self.hasher);
        let hash = |id: &u32| hasher.hash_one(nodes[*id as usize]);
        self.index.reserve(nodes.len() - self.indexed, hash);
        for id in self.indexed as u32..nodes.len() as u32 {
            self.index.insert_unique(hash(&id), id, hash);
        }
        self.indexed = nodes.len();
    }

    /// Returns the stack of these frames, root first, adding what is new.
    pub fn intern(&mut self, root_first: impl IntoIterator<Item = FrameId>) -> StackId {
        root_first
            .into_iter()
            .fold(StackId::EMPTY, |stack, frame| self.child(stack, frame))
    }

    /// The caller's stack and the leaf frame; `None` for the empty stack.
    ///
    /// # Panics
    /// When `id` is not of this trie.
    pub fn node(&self, id: StackId) -> Option<(StackId, FrameId)> {
        if id == StackId::EMPTY {
            None
        } else {
            Some(self.nodes[id.0 as usize])
        }
    }

    /// The frames of a stack, leaf first.
    pub fn leaf_first(&self, id: StackId) -> impl Iterator<Item = FrameId> + '_ {
        let mut at = id;
        std::iter::from_fn(move || {
            let (parent, frame) = self.node(at)?;
            at = parent;
            Some(frame)
        })
    }

    /// The frames of a stack, root first, into `out` (cleared before).
    pub fn root_first(&self, id: StackId, out: &mut Vec<FrameId>) {
        out.clear();
        out.extend(self.leaf_first(id));
        out.reverse();
    }

    /// Caller's stack and leaf frame by id. The empty stack is its own caller, and its frame is
    /// none.
    pub(crate) fn nodes(&self) -> &[(StackId, FrameId)] {
        &self.nodes
    }

    /// Number of nodes, the empty stack included.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// True when only the empty stack is there.
    pub fn is_empty(&self) -> bool {
        self.nodes.len() <= 1
    }

    /// Every node but the empty stack in id order: its id, parent and frame.
    pub fn iter(&self) -> impl Iterator<Item = (StackId, StackId, FrameId)> + '_ {
        (1..self.nodes.len()).map(|id| (StackId(id as u32), self.nodes[id].0, self.nodes[id].1))
    }

    /// Heap memory held, in bytes.
    pub fn heap_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<(StackId, FrameId)>() + self.index.allocation_size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_that_were_known_to_be_new_are_found_later() {
        let mut trie = StackTrie::default();
        let main = trie.new_child(StackId::EMPTY, FrameId(3));
        let work = trie.new_child(main, FrameId(4));
        assert_eq!(trie.child(main, FrameId(4)), work);
        assert_eq!(trie.child(main, FrameId(5)), StackId(3));
        let read = trie.new_child(work, FrameId(5));
        assert_eq!(trie.intern([3, 4, 5].map(FrameId)), read);
        assert_eq!(trie.len(), 5);
    }
}
