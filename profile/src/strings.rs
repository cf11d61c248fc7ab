//! Interned strings: one arena, dense ids, equal text has one id.

use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;

/// A string of one [`StringTable`]. Id 0 is the empty string in every table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct StrId(pub u32);

impl StrId {
    /// The empty string.
    pub const EMPTY: StrId = StrId(0);
}

/// Strings stored once, back to back, found by hash.
///
/// The hash is seeded per process: names come from strangers, who must not be able to choose
/// colliding ones.
#[derive(Clone)]
pub struct StringTable {
    text: String,
    /// End offset of each string in `text`; it starts where the one before ends.
    ends: Vec<u32>,
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Default for StringTable {
    fn default() -> Self {
        StringTable {
            text: String::new(),
            ends: vec![0],
            index: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
        }
    }
}

impl StringTable {
    /// Returns the id of `text`, adding it when it is new.
    ///
    /// When the arena is full (4 GiB of text) the empty string is returned instead.
    pub fn intern(&mut self, text: &str) -> StrId {
        // Most frames have no file and no second name.
        if text.is_empty() {
            return StrId::EMPTY;
        }
        let hash = self.hasher.hash_one(text);
        if let Some(&id) = self
            .index
            .find(hash, |&id| slice(&self.text, &self.ends, id) == text)
        {
            return StrId(id);
        }
        let Ok(end) = u32::try_from(self.text.len() + text.len()) else {
            return StrId::EMPTY;
        };
        let id = self.ends.len() as u32;
        self.text.push_str(text);
        self.ends.push(end);
        let (all, ends, hasher) = (&self.text, &self.ends, &self.hasher);
        self.index
            .insert_unique(hash, id, |&id| hasher.hash_one(slice(all, ends, id)));
        StrId(id)
    }

    /// Makes room for so many more strings.
    pub fn reserve(&mut self, strings: usize) {
        self.ends.reserve(strings);
        let (all, ends, hasher) = (&self.text, &self.ends, &self.hasher);
        self.index
            .reserve(strings, |&id| hasher.hash_one(slice(all, ends, id)));
    }

    /// Returns the id of `text` when it is known.
    pub fn find(&self, text: &str) -> Option<StrId> {
        if text.is_empty() {
            return Some(StrId::EMPTY);
        }
        let hash = self.hasher.hash_one(text);
        self.index
            .find(hash, |&id| slice(&self.text, &self.ends, id) == text)
            .map(|&id| StrId(id))
    }

    /// Returns the text behind `id`; an id of another table gives the empty string or other text.
    pub fn get(&self, id: StrId) -> &str {
        if (id.0 as usize) < self.ends.len() {
            slice(&self.text, &self.ends, id.0)
        } else {
            ""
        }
    }

    /// Number of strings, the empty one included.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// True when only the empty string is there.
    pub fn is_empty(&self) -> bool {
        self.ends.len() <= 1
    }

    /// Every string in id order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.ends.len() as u32).map(|id| slice(&self.text, &self.ends, id))
    }

    /// Length of all strings together. Unit: bytes.
    pub fn text_bytes(&self) -> usize {
        self.text.len()
    }

    /// Heap memory held, in bytes.
    pub fn heap_bytes(&self) -> usize {
        self.text.capacity() + self.ends.capacity() * 4 + self.index.allocation_size()
    }
}

fn slice<'a>(text: &'a str, ends: &[u32], id: u32) -> &'a str {
    let id = id as usize;
    let start = if id == 0 { 0 } else { ends[id - 1] as usize };
    &text[start..ends[id] as usize]
}
