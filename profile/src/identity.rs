//! 128-bit content identity: what a stack is called where dense ids mean nothing.

use crate::dictionary::Dictionary;
use crate::frame::FrameRef;

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

impl Dictionary {
    /// The content identity of every stack, indexed by `StackId`.
    pub fn content_ids(&self) -> Vec<ContentId> {
        let frames: Vec<ContentId> = self
            .frames
            .iter()
            .enumerate()
            .map(|(id, _)| self.frame_content_id(id as u32))
            .collect();
        let mut ids = vec![ContentId::default(); self.stacks.len()];
        for (stack, parent, frame) in self.stacks.iter() {
            let mut hasher = blake3::Hasher::new();
            hasher.update(&ids[parent.0 as usize].0);
            hasher.update(&frames[frame.0 as usize].0);
            ids[stack.0 as usize] = cut(hasher);
        }
        ids
    }

    fn frame_content_id(&self, id: u32) -> ContentId {
        let FrameRef {
            kind,
            unnamed,
            function,
            module,
            file,
            line,
        } = self.frame(crate::FrameId(id));
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

fn cut(hasher: blake3::Hasher) -> ContentId {
    let mut id = ContentId::default();
    id.0.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    id
}
