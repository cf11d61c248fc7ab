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
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Default for StackTrie {
    fn default() -> Self {
        StackTrie {
            nodes: vec![(StackId::EMPTY, FrameId(u32::MAX))],
            index: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
        }
    }
}

impl StackTrie {
    /// Returns the stack that is `parent` with `frame` called on top, adding it when it is new.
    pub fn child(&mut self, parent: StackId, frame: FrameId) -> StackId {
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
        StackId(id)
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

    /// Caller's stack and leaf frame by id. The empty stack is its own caller, and its frame is none.
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
