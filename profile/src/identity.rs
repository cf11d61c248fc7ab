//! 128-bit content ids: they identify a stack where dense ids mean nothing.

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
        let mut both = [0; 32];
        let (own, called) = both.split_at_mut(16);
        own.copy_from_slice(&self.0);
        called.copy_from_slice(&frame.0);
        cut(blake3::hash(&both))
    }

    /// The identity of one frame.
    pub fn of_frame(frame: FrameRef<'_>) -> ContentId {
        let mut bytes = Vec::new();
        ContentId::put_frame(frame, &mut bytes);
        cut(blake3::hash(&bytes))
    }

    /// Writes the bytes for a frame's content id in one piece, so that one call hashes them.
    fn put_frame(frame: FrameRef<'_>, bytes: &mut Vec<u8>) {
        let FrameRef {
            kind,
            unnamed,
            function,
            system_name,
            module,
            file,
            line,
            start_line,
        } = frame;
        bytes.clear();
        bytes.extend_from_slice(&[kind as u8, unnamed as u8]);
        bytes.extend_from_slice(&line.to_le_bytes());
        let mut put = |text: &str| {
            bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
            bytes.extend_from_slice(text.as_bytes());
        };
        [function, module, file].into_iter().for_each(&mut put);
        // Ids of frames without one, or without a first line, are those of before there were any:
        // they are stored.
        let system_name = match system_name == function {
            true => "",
            false => system_name,
        };
        if !system_name.is_empty() || start_line != 0 {
            put(system_name);
        }
        if start_line != 0 {
            bytes.extend_from_slice(&start_line.to_le_bytes());
        }
    }
}

/// The content identities of a dictionary that grows: only what is new is hashed.
#[derive(Clone, Default)]
pub struct ContentIds {
    frames: Vec<ContentId>,
    stacks: Vec<ContentId>,
}

impl ContentIds {
    /// Adds what `dict` got since the last call; it must be the same dictionary every time.
    pub fn update(&mut self, dict: &Dictionary) {
        self.update_frames(dict);
        if self.stacks.is_empty() {
            self.stacks.push(ContentId::default());
        }
        for id in self.stacks.len()..dict.stacks.len() {
            let Some((parent, frame)) = dict.stacks.node(crate::StackId(id as u32)) else {
                continue;
            };
            let parent = self.stacks[parent.0 as usize];
            self.stacks
                .push(parent.child(self.frames[frame.0 as usize]));
        }
    }

    fn update_frames(&mut self, dict: &Dictionary) {
        let mut bytes = Vec::new();
        for id in self.frames.len()..dict.frames.len() {
            ContentId::put_frame(dict.frame(FrameId(id as u32)), &mut bytes);
            self.frames.push(cut(blake3::hash(&bytes)));
        }
    }

    /// The identity of a stack; that of the empty one for ids that were not taken in.
    pub fn stack(&self, id: crate::StackId) -> ContentId {
        self.stacks.get(id.0 as usize).copied().unwrap_or_default()
    }

    /// Heap memory held, in bytes.
    pub fn heap_bytes(&self) -> usize {
        (self.frames.capacity() + self.stacks.capacity()) * size_of::<ContentId>()
    }
}

impl Dictionary {
    /// The content identity of every frame, indexed by [`FrameId`].
    pub fn frame_content_ids(&self) -> Vec<ContentId> {
        let mut ids = ContentIds::default();
        ids.update_frames(self);
        ids.frames
    }

    /// The content identity of every stack, indexed by `StackId`.
    pub fn content_ids(&self) -> Vec<ContentId> {
        let mut ids = ContentIds::default();
        ids.update(self);
        ids.stacks
    }
}

fn cut(hash: blake3::Hash) -> ContentId {
    let mut id = ContentId::default();
    id.0.copy_from_slice(&hash.as_bytes()[..16]);
    id
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FrameKind, StackId, UnnamedReason};

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
                unnamed: UnnamedReason::NoSymbols,
                ..base
            }],
            vec![FrameRef { line: 1, ..base }],
            vec![FrameRef {
                start_line: 1,
                ..base
            }],
            vec![FrameRef {
                start_line: 1,
                system_name: "_main",
                ..base
            }],
            vec![FrameRef {
                file: "main.c",
                ..base
            }],
            vec![FrameRef {
                system_name: "_main",
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
    fn a_system_name_that_is_the_function_is_none() {
        let base = frame("main");
        let same = FrameRef {
            system_name: "main",
            ..base
        };
        assert_eq!(ContentId::of_frame(same), ContentId::of_frame(base));
        assert_eq!(id(&[same]), id(&[base]));
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
