//! Measures what entries of a dictionary cost, which of them are in use, and how much a window
//! added.

use profile::{Dictionary, SampleKey, StackId, StrId};

/// Estimated cost of a trie node: 8 bytes, and 5 in a hash table at 2/3 of its capacity. Unit:
/// bytes.
const NODE_BYTES: usize = 16;
/// Estimated cost of a frame without its text: 24 bytes and its place in the hash table.
const FRAME_BYTES: usize = 32;
/// Estimated cost of a string in addition to its text. Unit: bytes.
const STRING_BYTES: usize = 12;
/// Estimated cost of a label set in addition to its pairs. Unit: bytes.
const LABEL_SET_BYTES: usize = 12;
/// Cost of a pair of a label set.
const PAIR_BYTES: usize = 8;

/// Number of entries in each table.
#[derive(Clone, Copy, Debug, Default)]
struct TableSizes {
    strings: usize,
    frames: usize,
    stacks: usize,
    label_sets: usize,
}

impl TableSizes {
    fn of(dict: &Dictionary) -> TableSizes {
        TableSizes {
            strings: dict.strings.len(),
            frames: dict.frames.len(),
            stacks: dict.stacks.len(),
            label_sets: dict.label_sets.len(),
        }
    }
}

/// Meters how much the open window added to the dictionary.
///
/// Counts entries, not allocated memory: a table that doubles its capacity is not the fault of the
/// window in which it happens to do so.
#[derive(Debug)]
pub(super) struct Growth {
    /// Kept by the parts before.
    settled: usize,
    mark: TableSizes,
    /// Text and pairs of entries up to `counted`, which have no fixed size.
    counted: TableSizes,
    variable: usize,
}

impl Growth {
    pub(super) fn new(dict: &Dictionary) -> Growth {
        let now = TableSizes::of(dict);
        Growth {
            settled: 0,
            mark: now,
            counted: now,
            variable: 0,
        }
    }

    /// A new window starts.
    pub(super) fn restart(&mut self, dict: &Dictionary) {
        *self = Growth::new(dict);
    }

    /// A part was taken that uses `bytes` of what is new; ids may have changed.
    pub(super) fn settle(&mut self, dict: &Dictionary, bytes: usize) {
        *self = Growth {
            settled: self.settled + bytes,
            ..Growth::new(dict)
        };
    }

    /// Bytes taken by the parts before.
    pub(super) fn settled(&self) -> usize {
        self.settled
    }

    /// Bytes brought in since the window started.
    pub(super) fn used(&mut self, dict: &Dictionary) -> usize {
        let now = TableSizes::of(dict);
        for id in self.counted.strings..now.strings {
            self.variable += dict.strings.get(StrId(id as u32)).len();
        }
        for id in self.counted.label_sets..now.label_sets {
            self.variable += dict.label_sets.get(profile::LabelSetId(id as u32)).len() * PAIR_BYTES;
        }
        self.counted = now;
        self.settled
            + self.variable
            + (now.strings - self.mark.strings) * STRING_BYTES
            + (now.frames - self.mark.frames) * FRAME_BYTES
            + (now.stacks - self.mark.stacks) * NODE_BYTES
            + (now.label_sets - self.mark.label_sets) * LABEL_SET_BYTES
    }

    /// Marks that count what came in since the last part only.
    pub(super) fn marks(&self, dict: &Dictionary) -> Marks {
        Marks::above(dict, self.mark)
    }
}

/// Which entries of a dictionary are in use.
pub(super) struct Marks {
    strings: Bits,
    frames: Bits,
    stacks: Bits,
    label_sets: Bits,
}

impl Marks {
    /// Creates it with nothing in use.
    pub(super) fn none(dict: &Dictionary) -> Marks {
        Marks::above(dict, TableSizes::default())
    }

    /// Everything below `floor` counts as in use already.
    fn above(dict: &Dictionary, floor: TableSizes) -> Marks {
        let now = TableSizes::of(dict);
        Marks {
            strings: Bits::new(floor.strings, now.strings),
            frames: Bits::new(floor.frames, now.frames),
            stacks: Bits::new(floor.stacks.max(1), now.stacks),
            label_sets: Bits::new(floor.label_sets.max(1), now.label_sets),
        }
    }

    /// Marks what `key` uses; returns the estimated bytes of what was not marked before.
    pub(super) fn mark(&mut self, dict: &Dictionary, key: SampleKey) -> usize {
        let mut bytes = 0;
        let mut at = key.stack;
        while at != StackId::EMPTY && self.stacks.set(at.0) {
            bytes += NODE_BYTES;
            let Some((parent, frame)) = dict.stacks.node(at) else {
                break;
            };
            if self.frames.set(frame.0) {
                let frame = dict.frames.get(frame);
                bytes += FRAME_BYTES;
                bytes += self.mark_string(dict, frame.function);
                bytes += self.mark_string(dict, frame.system_name);
                bytes += self.mark_string(dict, frame.module);
                bytes += self.mark_string(dict, frame.file);
            }
            at = parent;
        }
        if self.label_sets.set(key.labels.0) {
            bytes += LABEL_SET_BYTES;
            for &(name, value) in dict.label_sets.get(key.labels) {
                bytes += PAIR_BYTES + self.mark_string(dict, name) + self.mark_string(dict, value);
            }
        }
        bytes
    }

    /// The largest result that [`Marks::mark`] could return.
    pub(super) fn cost(&self, dict: &Dictionary, key: SampleKey) -> usize {
        let mut bytes = 0;
        let mut at = key.stack;
        while at != StackId::EMPTY && !self.stacks.has(at.0) {
            bytes += NODE_BYTES;
            let Some((parent, frame)) = dict.stacks.node(at) else {
                break;
            };
            if !self.frames.has(frame.0) {
                let frame = dict.frames.get(frame);
                bytes += FRAME_BYTES;
                bytes += self.cost_string(dict, frame.function);
                bytes += self.cost_string(dict, frame.system_name);
                bytes += self.cost_string(dict, frame.module);
                bytes += self.cost_string(dict, frame.file);
            }
            at = parent;
        }
        if !self.label_sets.has(key.labels.0) {
            bytes += LABEL_SET_BYTES;
            for &(name, value) in dict.label_sets.get(key.labels) {
                bytes += PAIR_BYTES + self.cost_string(dict, name) + self.cost_string(dict, value);
            }
        }
        bytes
    }

    /// The marked stacks in id order.
    pub(super) fn stacks(&self) -> impl Iterator<Item = StackId> + '_ {
        self.stacks.iter().map(StackId)
    }

    /// The marked label sets in id order.
    pub(super) fn label_sets(&self) -> impl Iterator<Item = profile::LabelSetId> + '_ {
        self.label_sets.iter().map(profile::LabelSetId)
    }

    fn mark_string(&mut self, dict: &Dictionary, id: StrId) -> usize {
        if self.strings.set(id.0) {
            STRING_BYTES + dict.strings.get(id).len()
        } else {
            0
        }
    }

    fn cost_string(&self, dict: &Dictionary, id: StrId) -> usize {
        if self.strings.has(id.0) {
            0
        } else {
            STRING_BYTES + dict.strings.get(id).len()
        }
    }
}

/// A set of ids from `floor` on.
struct Bits {
    floor: usize,
    words: Vec<u64>,
}

impl Bits {
    fn new(floor: usize, len: usize) -> Bits {
        Bits {
            floor,
            words: vec![0; len.saturating_sub(floor).div_ceil(64)],
        }
    }

    /// Adds `id`; true when it was not in the set.
    fn set(&mut self, id: u32) -> bool {
        let Some(at) = (id as usize).checked_sub(self.floor) else {
            return false;
        };
        let Some(word) = self.words.get_mut(at / 64) else {
            return false;
        };
        let bit = 1 << (at % 64);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    fn has(&self, id: u32) -> bool {
        let Some(at) = (id as usize).checked_sub(self.floor) else {
            return true;
        };
        self.words
            .get(at / 64)
            .is_none_or(|word| word & (1 << (at % 64)) != 0)
    }

    fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().enumerate().flat_map(move |(at, &word)| {
            let base = self.floor + at * 64;
            let mut rest = word;
            std::iter::from_fn(move || {
                if rest == 0 {
                    return None;
                }
                let bit = rest.trailing_zeros();
                rest &= rest - 1;
                Some(base as u32 + bit)
            })
        })
    }
}
