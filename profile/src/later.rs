//! Names of frames that were found after the frames were created, and their source.

use crate::frame::FrameId;
use crate::strings::{StrId, StringTable};
use hashbrown::HashMap;

/// Most text of names that one dictionary gets later. Unit: bytes. Half a million functions; a name
/// that was replaced stays in it.
const LATER_BYTES_MAX: usize = 64 << 20;

/// Where a name came from that the agent did not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum NameSource {
    /// A file that somebody uploaded.
    Upload = 0,
    /// A debuginfod server.
    Debuginfod = 1,
}

impl NameSource {
    /// Every source, in numeric order.
    pub const ALL: [NameSource; 2] = [NameSource::Upload, NameSource::Debuginfod];

    /// Lower-case word for tables and JSON.
    pub fn word(self) -> &'static str {
        match self {
            NameSource::Upload => "upload",
            NameSource::Debuginfod => "debuginfod",
        }
    }
}

/// Samples with a leaf named by each source; see [`NameSource`].
pub type NamedLater = [u64; NameSource::ALL.len()];

/// Names of frames of one dictionary that were found after the frames had been made.
///
/// They change what is shown and filtered, never what a frame is: its id, its content and its place
/// stay, so what is stored stays true when a name is found to be wrong, or is forgotten. Their text
/// is not in the dictionary's strings, which are stored.
#[derive(Clone, Default)]
pub struct LaterNames {
    frames: HashMap<FrameId, (StrId, NameSource)>,
    /// Only grows: numbers given out stay valid.
    names: StringTable,
}

impl LaterNames {
    /// Calls a frame like this from now on, or no longer. Names beyond the bound are left out.
    pub fn set(&mut self, frame: FrameId, function: Option<&str>, source: NameSource) {
        let function = function.filter(|_| self.names.heap_bytes() < LATER_BYTES_MAX);
        match function.map(|function| self.names.intern(function)) {
            Some(name) => drop(self.frames.insert(frame, (name, source))),
            None => drop(self.frames.remove(&frame)),
        }
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// The function of a frame.
    pub fn function(&self, frame: FrameId) -> Option<&str> {
        let (name, _) = self.frames.get(&frame)?;
        Some(self.names.get(*name))
    }

    /// Where the name of a frame came from.
    pub fn source(&self, frame: FrameId) -> Option<NameSource> {
        self.frames.get(&frame).map(|(_, source)| *source)
    }

    /// The name of a frame as a number that no string of a dictionary has: for tables by number.
    pub(crate) fn number(&self, frame: FrameId) -> Option<StrId> {
        let (name, _) = self.frames.get(&frame)?;
        Some(StrId(u32::MAX - name.0))
    }

    /// The name behind such a number.
    pub(crate) fn name(&self, number: StrId) -> Option<&str> {
        let name = u32::MAX - number.0;
        ((name as usize) < self.names.len()).then(|| self.names.get(StrId(name)))
    }

    /// Heap memory held, in bytes.
    pub fn heap_bytes(&self) -> usize {
        self.frames.allocation_size() + self.names.heap_bytes()
    }
}
