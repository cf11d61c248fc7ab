//! Frames: one function (or what stands for it) at one place in a stack.

use crate::outcome::UnnamedReason;
use crate::place::Place;
use crate::strings::StrId;
use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;

/// Function of the synthetic frame that stands for stacks folded because a bound was reached.
pub const OTHER_FRAME: &str = "[other]";

/// Function of the synthetic frame that stands for samples that were lost; their stacks end with
/// [`StackEnd::Lost`](crate::StackEnd::Lost).
pub const LOST_FRAME: &str = "[lost]";

/// What kind of code a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(u8)]
pub enum FrameKind {
    /// Compiled user code from a file.
    #[default]
    Native = 0,
    /// Kernel code, modules and BPF programs included.
    Kernel = 1,
    /// Code a runtime generated.
    Jit = 2,
    /// A function an interpreter was running.
    Interpreted = 3,
    /// A function inlined into the next frame towards the root.
    Inlined = 4,
    /// Not code: `[lost]`, `[truncated]`, `[other]` and the like.
    Synthetic = 5,
}

impl FrameKind {
    /// Every kind, in numeric order.
    pub const ALL: [FrameKind; 6] = [
        FrameKind::Native,
        FrameKind::Kernel,
        FrameKind::Jit,
        FrameKind::Interpreted,
        FrameKind::Inlined,
        FrameKind::Synthetic,
    ];

    /// The kind with this number, as it stands on the wire.
    pub fn from_u8(value: u8) -> Option<FrameKind> {
        Self::ALL.get(value as usize).copied()
    }

    /// Lower-case word for tables and JSON.
    pub fn word(self) -> &'static str {
        match self {
            FrameKind::Native => "native",
            FrameKind::Kernel => "kernel",
            FrameKind::Jit => "jit",
            FrameKind::Interpreted => "interpreted",
            FrameKind::Inlined => "inlined",
            FrameKind::Synthetic => "synthetic",
        }
    }
}

/// A frame of one [`FrameTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameId(pub u32);

/// A frame with its text as ids of the same dictionary.
///
/// `function` is never empty: a frame without a symbol is called `[module]` or `[unknown]` and says
/// in `unnamed` why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Frame {
    /// What kind of code it is.
    pub kind: FrameKind,
    /// Why there is no symbol; [`UnnamedReason::No`] when there is one.
    pub unnamed: UnnamedReason,
    /// Function name for people: demangled, without what only a compiler or runtime needs.
    pub function: StrId,
    /// The function as the runtime or linker spells it; empty where that is `function`, or not
    /// kept.
    ///
    /// It is part of what a frame is: overloads of one Java method, and one JavaScript function as
    /// each tier of the compiler left it, are frames of their own that share a function. For a
    /// frame without a symbol it is the [`Place`] of its function, if that is known; for native
    /// code in a capture of instructions it is the place of the instruction.
    pub system_name: StrId,
    /// Base name or path of the file the code came from; empty when there is none.
    pub module: StrId,
    /// Source file; empty when not known.
    pub file: StrId,
    /// Source line, 1-based; 0 when not known.
    pub line: u32,
    /// First line of the function in `file`, 1-based; 0 when not known. Only where `line` lies in
    /// the same function: Go's compiler tells calls by their distance from it.
    pub start_line: u32,
}

/// A frame with its text spelled out: what [`Frame`] is before interning and after look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct FrameRef<'a> {
    /// See [`Frame::kind`].
    pub kind: FrameKind,
    /// See [`Frame::unnamed`].
    pub unnamed: UnnamedReason,
    /// See [`Frame::function`].
    pub function: &'a str,
    /// See [`Frame::system_name`]; the same as `function` is taken for none.
    pub system_name: &'a str,
    /// See [`Frame::module`].
    pub module: &'a str,
    /// See [`Frame::file`].
    pub file: &'a str,
    /// See [`Frame::line`].
    pub line: u32,
    /// See [`Frame::start_line`].
    pub start_line: u32,
}

impl<'a> FrameRef<'a> {
    /// Where the function lies, of a frame that has no symbol.
    pub fn place(&self) -> Option<Place<'a>> {
        match self.unnamed {
            UnnamedReason::No => None,
            _ => Place::parse(self.system_name),
        }
    }

    /// Where the instruction lies, of a frame of a capture of instructions. Frames that were
    /// inlined there have the same.
    pub fn instruction(&self) -> Option<Place<'a>> {
        match self.kind {
            FrameKind::Native | FrameKind::Inlined => Place::parse(self.system_name),
            _ => None,
        }
    }
}

/// Frames stored once.
#[derive(Clone, Default)]
pub struct FrameTable {
    frames: Vec<Frame>,
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl FrameTable {
    /// Returns the id of `frame`, adding it when it is new.
    pub fn intern(&mut self, frame: Frame) -> FrameId {
        let hash = self.hasher.hash_one(frame);
        if let Some(&id) = self
            .index
            .find(hash, |&id| self.frames[id as usize] == frame)
        {
            return FrameId(id);
        }
        let id = self.frames.len() as u32;
        self.frames.push(frame);
        let (frames, hasher) = (&self.frames, &self.hasher);
        self.index
            .insert_unique(hash, id, |&id| hasher.hash_one(frames[id as usize]));
        FrameId(id)
    }

    /// Returns the frame behind `id`.
    ///
    /// # Panics
    /// When `id` is not of this table.
    pub fn get(&self, id: FrameId) -> Frame {
        self.frames[id.0 as usize]
    }

    /// Number of frames.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Every frame in id order.
    pub(crate) fn as_slice(&self) -> &[Frame] {
        &self.frames
    }

    /// Every frame in id order.
    pub fn iter(&self) -> impl Iterator<Item = Frame> + '_ {
        self.frames.iter().copied()
    }

    /// Heap memory held, in bytes.
    pub fn heap_bytes(&self) -> usize {
        self.frames.capacity() * size_of::<Frame>() + self.index.allocation_size()
    }
}
