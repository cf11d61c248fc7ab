//! The four tables that give dense ids their meaning, and the mapping from one dictionary to
//! another.

use crate::frame::{Frame, FrameId, FrameRef, FrameTable};
use crate::labels::{LabelSetId, LabelSetTable};
use crate::later::LaterNames;
use crate::outcome::UnnamedReason;
use crate::stack::{StackId, StackTrie};
use crate::strings::{StrId, StringTable};

/// Interned strings, frames, stacks and label sets.
#[derive(Clone, Default)]
pub struct Dictionary {
    /// All text.
    pub strings: StringTable,
    /// Frames, with text in `strings`.
    pub frames: FrameTable,
    /// Stacks of `frames`.
    pub stacks: StackTrie,
    /// Label sets, with text in `strings`.
    pub label_sets: LabelSetTable,
    /// Names that frames got later. Not part of what the dictionary is: they are neither stored nor
    /// sent.
    pub later: LaterNames,
}

impl Dictionary {
    /// Returns the id of a frame given as text, adding what is new.
    pub fn intern_frame(&mut self, frame: FrameRef<'_>) -> FrameId {
        let system_name = match frame.system_name == frame.function {
            true => "",
            false => frame.system_name,
        };
        let frame = Frame {
            kind: frame.kind,
            unnamed: frame.unnamed,
            function: self.strings.intern(frame.function),
            system_name: self.strings.intern(system_name),
            module: self.strings.intern(frame.module),
            file: self.strings.intern(frame.file),
            line: frame.line,
            start_line: frame.start_line,
        };
        self.frames.intern(frame)
    }

    /// A frame with its text.
    ///
    /// # Panics
    /// When `id` is not of this dictionary.
    pub fn frame(&self, id: FrameId) -> FrameRef<'_> {
        let frame = self.frames.get(id);
        FrameRef {
            kind: frame.kind,
            unnamed: frame.unnamed,
            function: self.strings.get(frame.function),
            system_name: self.strings.get(frame.system_name),
            module: self.strings.get(frame.module),
            file: self.strings.get(frame.file),
            line: frame.line,
            start_line: frame.start_line,
        }
    }

    /// A text of [`Shape`](crate::Shape): a string, or a name that a frame got later.
    pub(crate) fn text(&self, id: StrId) -> &str {
        let later = self.later.name(id);
        later.unwrap_or_else(|| self.strings.get(id))
    }

    /// Returns the id of a label set given as text; pairs with an empty value are left out.
    pub fn intern_labels<'a>(
        &mut self,
        pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> LabelSetId {
        let mut set: Vec<(StrId, StrId)> = pairs
            .into_iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(key, value)| (self.strings.intern(key), self.strings.intern(value)))
            .collect();
        self.label_sets.intern(&mut set)
    }

    /// The pairs of a label set as text.
    pub fn labels(&self, id: LabelSetId) -> impl Iterator<Item = (&str, &str)> {
        self.label_sets
            .get(id)
            .iter()
            .map(|&(key, value)| (self.strings.get(key), self.strings.get(value)))
    }

    /// The value of one label of a set.
    pub fn label(&self, id: LabelSetId, key: &str) -> Option<&str> {
        self.labels(id)
            .find(|&(found, _)| found == key)
            .map(|(_, value)| value)
    }

    /// Heap memory held, in bytes.
    pub fn heap_bytes(&self) -> usize {
        self.strings.heap_bytes()
            + self.frames.heap_bytes()
            + self.stacks.heap_bytes()
            + self.label_sets.heap_bytes()
            + self.later.heap_bytes()
    }
}

const UNSEEN: u32 = u32::MAX;

/// Carries ids of one dictionary to another, each looked up once.
///
/// Ids are filled in as they are asked for, so only what is used is copied. One `Remap` serves one
/// (source, target) pair for as long as both only grow.
#[derive(Default)]
pub struct Remap {
    strings: Vec<u32>,
    frames: Vec<u32>,
    stacks: Vec<u32>,
    label_sets: Vec<u32>,
    path: Vec<StackId>,
    /// See [`Remap::of_first`].
    is_first: bool,
    /// See [`Remap::shown`].
    shown: bool,
}

impl Remap {
    /// For a target that gets all its stacks through this mapping: a stack not seen here does not
    /// exist there, so it is not looked up.
    pub(crate) fn of_first() -> Remap {
        Remap {
            is_first: true,
            ..Remap::default()
        }
    }

    /// Carries frames as they are shown: with the names that they got later, for answers. Copies of
    /// what is stored keep frames as they are.
    pub(crate) fn shown(self) -> Remap {
        Remap {
            shown: true,
            ..self
        }
    }

    /// The string in `target`.
    pub fn string(&mut self, source: &Dictionary, target: &mut Dictionary, id: StrId) -> StrId {
        let slot = slot(&mut self.strings, id.0);
        if *slot == UNSEEN {
            *slot = target.strings.intern(source.strings.get(id)).0;
        }
        StrId(*slot)
    }

    /// The frame in `target`.
    pub fn frame(&mut self, source: &Dictionary, target: &mut Dictionary, id: FrameId) -> FrameId {
        if *slot(&mut self.frames, id.0) == UNSEEN {
            let frame = source.frames.get(id);
            let later = source.later.function(id).filter(|_| self.shown);
            let (unnamed, function, system_name) = match later {
                Some(name) => (UnnamedReason::No, target.strings.intern(name), StrId::EMPTY),
                None => (
                    frame.unnamed,
                    self.string(source, target, frame.function),
                    self.string(source, target, frame.system_name),
                ),
            };
            let moved = Frame {
                unnamed,
                function,
                system_name,
                module: self.string(source, target, frame.module),
                file: self.string(source, target, frame.file),
                ..frame
            };
            *slot(&mut self.frames, id.0) = target.frames.intern(moved).0;
        }
        FrameId(self.frames[id.0 as usize])
    }

    /// The stack in `target`.
    pub fn stack(&mut self, source: &Dictionary, target: &mut Dictionary, id: StackId) -> StackId {
        // Two frames may have got one name, and so two stacks may be one.
        self.is_first &= !self.shown || source.later.is_empty();
        let mut path = std::mem::take(&mut self.path);
        path.clear();
        let mut at = id;
        let mut moved = loop {
            if at == StackId::EMPTY {
                break StackId::EMPTY;
            }
            let seen = *slot(&mut self.stacks, at.0);
            if seen != UNSEEN {
                break StackId(seen);
            }
            path.push(at);
            at = source
                .stacks
                .node(at)
                .map_or(StackId::EMPTY, |(parent, _)| parent);
        };
        for &node in path.iter().rev() {
            if let Some((_, frame)) = source.stacks.node(node) {
                let frame = self.frame(source, target, frame);
                moved = match self.is_first {
                    true => target.stacks.new_child(moved, frame),
                    false => target.stacks.child(moved, frame),
                };
                *slot(&mut self.stacks, node.0) = moved.0;
            }
        }
        self.path = path;
        moved
    }

    /// The label set in `target`.
    pub fn label_set(
        &mut self,
        source: &Dictionary,
        target: &mut Dictionary,
        id: LabelSetId,
    ) -> LabelSetId {
        if *slot(&mut self.label_sets, id.0) == UNSEEN {
            let mut set = Vec::with_capacity(8);
            for &(key, value) in source.label_sets.get(id) {
                set.push((
                    self.string(source, target, key),
                    self.string(source, target, value),
                ));
            }
            *slot(&mut self.label_sets, id.0) = target.label_sets.intern(&mut set).0;
        }
        LabelSetId(self.label_sets[id.0 as usize])
    }
}

fn slot(table: &mut Vec<u32>, id: u32) -> &mut u32 {
    let id = id as usize;
    if table.len() <= id {
        table.resize((id + 1).next_power_of_two(), UNSEEN);
    }
    &mut table[id]
}
