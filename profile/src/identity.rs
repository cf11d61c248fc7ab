//! 128-bit content identity: what a stack is called where dense ids mean nothing.

use crate::dictionary::Dictionary;
use crate::frame::{FrameId, FrameRef};

/// Truncated BLAKE3 of a stack's frames, root to leaf. The empty stack is all zeros.
///
/// Collision-resistant because symbol names are chosen by strangers: nobody can craft a stack that
/// takes another's place in a shared store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ContentId(pub [u8; 16]);

impl std::fmt::Display for ContentId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl ContentId {
    /// The identity of this stack with a frame called on top, given by its own identity.
    pub fn child(self, frame: ContentId) -> ContentId {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.0);
        hasher.update(&frame.0);
        cut(hasher)
    }

    /// The identity of one frame.
    pub fn of_frame(frame: FrameRef<'_>) -> ContentId {
        let FrameRef {
            kind,
            unnamed,
            function,
            module,
            file,
            line,
        } = frame;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&[kind as u8, unnamed as u8]);
        hasher.update(&line.to_le_bytes());
        for text in [function, module, file] {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        cut(hasher)
    }
}

impl Dictionary {
    /// The content identity of every stack, indexed by `StackId`.
    pub fn content_ids(&self) -> Vec<ContentId> {
        let frames: Vec<ContentId> = (0..self.frames.len() as u32)
            .map(|id| ContentId::of_frame(self.frame(FrameId(id))))
            .collect();
        let mut ids = vec![ContentId::default(); self.stacks.len()];
        for (stack, parent, frame) in self.stacks.iter() {
            ids[stack.0 as usize] = ids[parent.0 as usize].child(frames[frame.0 as usize]);
        }
        ids
    }
}

fn cut(hasher: blake3::Hasher) -> ContentId {
    let mut id = ContentId::default();
    id.0.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    id
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FrameKind, StackId, Unnamed};

    fn frame(function: &str) -> FrameRef<'_> {
        FrameRef {
            function,
            module: "app",
            ..FrameRef::default()
        }
    }

    fn id(frames: &[FrameRef<'_>]) -> ContentId {
        let mut dict = Dictionary::default();
        let ids: Vec<_> = frames
            .iter()
            .map(|&frame| dict.intern_frame(frame))
            .collect();
        let stack = dict.stacks.intern(ids);
        dict.content_ids()[stack.0 as usize]
    }

    #[test]
    fn the_empty_stack_is_all_zeros() {
        assert_eq!(Dictionary::default().content_ids(), [ContentId::default()]);
    }

    #[test]
    fn ids_do_not_depend_on_the_order_of_arrival() {
        let (mut one, mut two) = (Dictionary::default(), Dictionary::default());
        let names = ["main", "work", "read"];
        let forward: Vec<_> = names
            .iter()
            .map(|name| one.intern_frame(frame(name)))
            .collect();
        let mut backward: Vec<_> = names
            .iter()
            .rev()
            .map(|name| two.intern_frame(frame(name)))
            .collect();
        backward.reverse();
        let in_one = one.stacks.intern(forward);
        two.stacks.child(StackId::EMPTY, backward[2]);
        let in_two = two.stacks.intern(backward);
        assert_ne!(in_one, in_two);
        assert_eq!(
            one.content_ids()[in_one.0 as usize],
            two.content_ids()[in_two.0 as usize]
        );
    }

    #[test]
    fn every_field_and_the_order_count() {
        let base = frame("main");
        let stacks = [
            vec![base],
            vec![base, base],
            vec![frame("work"), base],
            vec![base, frame("work")],
            vec![FrameRef {
                kind: FrameKind::Jit,
                ..base
            }],
            vec![FrameRef {
                unnamed: Unnamed::NoSymbols,
                ..base
            }],
            vec![FrameRef { line: 1, ..base }],
            vec![FrameRef {
                file: "main.c",
                ..base
            }],
            // The same bytes, cut elsewhere.
            vec![FrameRef {
                function: "maina",
                module: "pp",
                ..base
            }],
            vec![FrameRef {
                function: "mai",
                module: "napp",
                ..base
            }],
        ];
        let mut ids: Vec<_> = stacks.iter().map(|frames| id(frames)).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), stacks.len());
    }

    #[test]
    fn ids_are_stored_and_so_never_change() {
        let frames = [
            frame("main"),
            FrameRef {
                kind: FrameKind::Kernel,
                ..frame("do_idle")
            },
        ];
        insta::assert_snapshot!(id(&frames), @r"
5c899cf91b5d4b74df273651ee3a09cb
");
    }
}
