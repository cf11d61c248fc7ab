//! Stacks of waiting threads: each distinct one is stored once, for as long as a wait needs it.
//!
//! Many threads wait at the same place, so stacks are shared and counted. Buffers are kept by size
//! class and reused: nothing is allocated unless a stack is longer than those before. Called by the
//! sampler thread.

use hashbrown::{DefaultHashBuilder, HashTable};
use host::frame::RawFrame;
use std::hash::BuildHasher;

/// Frames of the smallest buffer; each class has twice those of the one before.
const SMALLEST: usize = 8;

/// Size classes of buffers: up to 1,024 frames. The deepest walk has 512 user frames plus 127 of a
/// chain.
const CLASSES: usize = 8;

/// A stack in [`Stacks`]. Must be given back with [`Stacks::release`].
#[derive(Debug, PartialEq, Eq)]
pub struct StackRef(u32);

#[derive(Default)]
struct Slot {
    frames: Vec<RawFrame>,
    users: u32,
}

/// The stacks.
pub struct Stacks {
    slots: Vec<Slot>,
    /// Slots without users, by class of their buffers; those of the last have none.
    free: [Vec<u32>; CLASSES + 1],
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// Frames for which there are buffers, in use or free.
    held: usize,
    held_max: usize,
}

/// The class with room for this many frames; `None`: there is none.
fn class_of(frames: usize) -> Option<usize> {
    (0..CLASSES).find(|&class| SMALLEST << class >= frames)
}

impl Stacks {
    /// Buffers for `frames_max` frames at most.
    pub fn new(frames_max: usize) -> Stacks {
        Stacks {
            slots: Vec::new(),
            free: Default::default(),
            index: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            held: 0,
            held_max: frames_max,
        }
    }

    /// Keeps a stack. `None`: there is no room.
    pub fn keep(&mut self, frames: &[RawFrame]) -> Option<StackRef> {
        let hash = self.hasher.hash_one(frames);
        let slots = &self.slots;
        let same = |&at: &u32| slots[at as usize].frames == frames;
        if let Some(&at) = self.index.find(hash, same) {
            self.slots[at as usize].users += 1;
            return Some(StackRef(at));
        }
        let at = self.slot(class_of(frames.len())?)?;
        let slot = &mut self.slots[at as usize];
        slot.users = 1;
        slot.frames.extend_from_slice(frames);
        let (slots, hasher) = (&self.slots, &self.hasher);
        self.index.insert_unique(hash, at, |&at| {
            hasher.hash_one(&slots[at as usize].frames[..])
        });
        Some(StackRef(at))
    }

    /// A slot with an empty buffer of the class.
    fn slot(&mut self, class: usize) -> Option<u32> {
        if let Some(at) = self.free[class].pop() {
            return Some(at);
        }
        let room = SMALLEST << class;
        while self.held + room > self.held_max {
            // Free buffers of other sizes make room, the largest first.
            let from = (0..CLASSES)
                .rev()
                .find(|&from| !self.free[from].is_empty())?;
            let at = self.free[from].pop()?;
            self.slots[at as usize].frames = Vec::new();
            self.held -= SMALLEST << from;
            self.free[CLASSES].push(at);
        }
        let at = self.free[CLASSES].pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        });
        self.slots[at as usize].frames = Vec::with_capacity(room);
        self.held += room;
        Some(at)
    }

    /// The frames, leaf first.
    pub fn frames(&self, stack: &StackRef) -> &[RawFrame] {
        &self.slots[stack.0 as usize].frames
    }

    /// Releases a stack.
    pub fn release(&mut self, stack: StackRef) {
        let at = stack.0;
        let slot = &mut self.slots[at as usize];
        slot.users -= 1;
        if slot.users > 0 {
            return;
        }
        let hash = self.hasher.hash_one(&slot.frames[..]);
        if let Ok(entry) = self.index.find_entry(hash, |&other| other == at) {
            entry.remove();
        }
        let class = class_of(slot.frames.len()).unwrap_or(CLASSES);
        slot.frames.clear();
        self.free[class].push(at);
    }

    /// Memory held. Unit: bytes.
    pub fn bytes(&self) -> usize {
        self.held * size_of::<RawFrame>()
            + self.slots.capacity() * size_of::<Slot>()
            + self.index.allocation_size()
    }

    /// Stacks in use.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.index.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frames(first: u64, len: usize) -> Vec<RawFrame> {
        (0..len as u64)
            .map(|n| RawFrame::Kernel(first + n))
            .collect()
    }

    #[test]
    fn equal_stacks_are_kept_once_until_nobody_needs_them() {
        let mut stacks = Stacks::new(64);
        let one = stacks.keep(&frames(1, 3)).unwrap();
        let other = stacks.keep(&frames(1, 3)).unwrap();
        assert_eq!((stacks.len(), &one), (1, &other));
        stacks.release(one);
        assert_eq!(stacks.frames(&other), frames(1, 3));
        stacks.release(other);
        assert_eq!(stacks.len(), 0);
    }

    #[test]
    fn free_buffers_of_one_size_make_room_for_another() {
        let mut stacks = Stacks::new(64);
        let kept: Vec<_> = (0..8)
            .map(|n| stacks.keep(&frames(n * 9, 8)).unwrap())
            .collect();
        assert!(stacks.keep(&frames(500, 33)).is_none());
        kept.into_iter().for_each(|stack| stacks.release(stack));
        let large = stacks.keep(&frames(500, 33)).unwrap();
        assert_eq!(stacks.frames(&large), frames(500, 33));
        assert!(stacks.keep(&frames(600, 1)).is_none());
    }

    #[test]
    fn a_stack_too_deep_for_any_buffer_is_refused() {
        let mut stacks = Stacks::new(1 << 20);
        assert!(stacks.keep(&frames(0, SMALLEST << (CLASSES - 1))).is_some());
        assert!(
            stacks
                .keep(&frames(0, (SMALLEST << (CLASSES - 1)) + 1))
                .is_none()
        );
    }

    proptest! {
        #[test]
        fn what_is_kept_is_what_is_read_back(
            ops in proptest::collection::vec((any::<bool>(), 0usize..20, 0usize..60), 0..300)
        ) {
            let mut stacks = Stacks::new(1024);
            let mut kept: Vec<(StackRef, Vec<RawFrame>)> = Vec::new();
            for (keep, which, len) in ops {
                if keep {
                    let frames = frames(which as u64, len);
                    match stacks.keep(&frames) {
                        Some(stack) => kept.push((stack, frames)),
                        None => {
                            prop_assert!(stacks.held + 64 > stacks.held_max);
                        }
                    }
                } else if !kept.is_empty() {
                    let (stack, _) = kept.swap_remove(which % kept.len());
                    stacks.release(stack);
                }
                prop_assert!(stacks.held <= stacks.held_max);
                for (stack, frames) in &kept {
                    prop_assert_eq!(stacks.frames(stack), &frames[..]);
                }
            }
        }
    }
}
