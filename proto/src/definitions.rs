//! The frames of stacks that a collector asks for: extracted from an agent's dictionary, and
//! assembled from untrusted input.
//!
//! Most frames of a new stack are callers that the collector already has. A [`Definer`] remembers
//! which stacks are part of stored windows, and names the nearest of them by its content in place
//! of its frames. No trust is needed: the hash of a stack follows from that of its caller, so a
//! caller that the collector has, with its own frames, makes everything called from it known.

use crate::collector as sent;
use crate::convert::{
    AssembleError, ProfileAssembler, STACK_DEPTH_MAX, VARINT32, put_frames, put_strings,
};
use crate::wire;
use profile::{ContentId, Dictionary, FrameId, Remap, StackId};
use std::collections::{HashMap, HashSet};

/// Number of stacks after which an agent starts a new dictionary, if the collector announced `told`
/// (0: it announced nothing), with `rows` in its newest window.
pub const fn dictionary_stacks_max(told: u32, rows: usize) -> usize {
    let told = told as usize;
    if told == 0 {
        return usize::MAX;
    }
    let (wanted, most) = (rows.saturating_mul(4), told.saturating_mul(4));
    let wanted = if wanted < most { wanted } else { most };
    if wanted > told { wanted } else { told }
}

/// Tracks which stacks of one dictionary a stream's collector has, by its answers.
#[derive(Debug, Default)]
pub struct Definer {
    takes_known: bool,
    /// By stack: the collector has its frames, and so those of its callers.
    known: Vec<bool>,
    /// Stacks of windows without an answer that were not known when these were sent.
    waiting: Vec<(u64, Vec<StackId>)>,
}

impl Definer {
    /// A definer for a new dictionary. `takes_known` is what the Welcome says.
    pub fn new(takes_known: bool) -> Definer {
        Definer {
            takes_known,
            ..Definer::default()
        }
    }

    /// The same for another dictionary.
    pub fn start_dictionary(&mut self) {
        *self = Definer::new(self.takes_known);
    }

    /// Heap memory held, in bytes.
    pub fn heap_bytes(&self) -> usize {
        let waiting = self.waiting.iter();
        let waiting: usize = waiting.map(|(_, stacks)| stacks.capacity()).sum();
        self.known.capacity() + waiting * size_of::<StackId>()
    }

    /// Notes that a window with these stacks was sent.
    pub fn sent(&mut self, sequence: u64, stacks: impl Iterator<Item = StackId>) {
        if !self.takes_known {
            return;
        }
        let unknown: Vec<StackId> = stacks.filter(|&stack| !self.is_known(stack)).collect();
        self.waiting.retain(|(of, _)| *of != sequence);
        self.waiting.push((sequence, unknown));
    }

    /// Notes the answer to a window: when it was stored, all its stacks are known.
    pub fn answered(&mut self, dict: &Dictionary, sequence: u64, stored: bool) {
        let at = self.waiting.iter().position(|(of, _)| *of == sequence);
        let Some(at) = at else {
            return;
        };
        let (_, stacks) = self.waiting.swap_remove(at);
        if stored {
            self.note(dict, stacks.into_iter());
        }
    }

    fn is_known(&self, stack: StackId) -> bool {
        let known = self.known.get(stack.0 as usize);
        known.is_some_and(|known| *known)
    }

    fn note(&mut self, dict: &Dictionary, stacks: impl Iterator<Item = StackId>) {
        if self.known.len() < dict.stacks.len() {
            self.known.resize(dict.stacks.len(), false);
        }
        for stack in stacks {
            let mut at = stack;
            while !self.known[at.0 as usize]
                && let Some((caller, _)) = dict.stacks.node(at)
            {
                self.known[at.0 as usize] = true;
                at = caller;
            }
        }
    }

    /// Answers a question of the collector, in messages of about `target` encoded bytes. `asked`
    /// are the stacks that it names, and `content` says what stacks of `dict` are called.
    pub fn define(
        &mut self,
        dict: &Dictionary,
        content: impl Fn(StackId) -> ContentId,
        need: &sent::Need,
        asked: &[StackId],
        target: usize,
    ) -> Vec<sent::Definitions> {
        if need.all_callers {
            self.known.clear();
        } else if let Some((_, stacks)) = self.waiting.iter().find(|(of, _)| *of == need.sequence) {
            // It asks for all that it lacks of the window.
            let lacking: HashSet<StackId> = asked.iter().copied().collect();
            let others = stacks.iter().copied();
            let others: Vec<_> = others.filter(|stack| !lacking.contains(stack)).collect();
            self.note(dict, others.into_iter());
        }
        let cut = Cut::new(dict, asked, |stack| self.is_known(stack));
        let mut messages = Vec::new();
        for known in cut.known.chunks((target / 16).max(1)) {
            messages.push(sent::Definitions {
                known_stacks: known.iter().flat_map(|&stack| content(stack).0).collect(),
                ..sent::Definitions::default()
            });
        }
        cut.tables(target, &mut messages);
        let last = messages.len() - 1;
        for (at, message) in messages.iter_mut().enumerate() {
            message.sequence = need.sequence;
            message.more = at < last;
        }
        messages
    }
}

/// A part of a dictionary's stacks: all that some are made of, down to those that are known.
struct Cut {
    known: Vec<StackId>,
    /// Caller's number and frame, callers first.
    nodes: Vec<(u32, FrameId)>,
    /// Strings and frames, no stacks.
    dict: Dictionary,
}

impl Cut {
    fn new(dict: &Dictionary, asked: &[StackId], is_known: impl Fn(StackId) -> bool) -> Cut {
        /// Where a stack is: its place among those that are known, or among the others.
        #[derive(Clone, Copy)]
        enum Place {
            Known(u32),
            Node(u32),
        }
        let mut places: HashMap<StackId, Place> = HashMap::new();
        let (mut known, mut nodes, mut path) = (Vec::new(), Vec::new(), Vec::new());
        let (mut own, mut remap) = (Dictionary::default(), Remap::default());
        for &stack in asked {
            let mut at = stack;
            while !places.contains_key(&at)
                && let Some((caller, frame)) = dict.stacks.node(at)
            {
                if is_known(at) {
                    places.insert(at, Place::Known(known.len() as u32));
                    known.push(at);
                    break;
                }
                path.push((at, caller, frame));
                at = caller;
            }
            for (at, caller, frame) in path.drain(..).rev() {
                places.insert(at, Place::Node(nodes.len() as u32));
                nodes.push((caller, remap.frame(dict, &mut own, frame)));
            }
        }
        let number = |stack: StackId| match places.get(&stack) {
            None => 0,
            Some(Place::Known(at)) => at + 1,
            Some(Place::Node(at)) => known.len() as u32 + at + 1,
        };
        let numbered = nodes.iter();
        let nodes = numbered.map(|&(caller, frame)| (number(caller), frame));
        Cut {
            nodes: nodes.collect(),
            known,
            dict: own,
        }
    }

    /// Adds the tables; one message at least.
    fn tables(&self, target: usize, messages: &mut Vec<sent::Definitions>) {
        let (mut strings, mut frames, mut node) = (0, 0, 0);
        loop {
            let (mut chunk, mut bytes) = (wire::ProfileChunk::default(), 0);
            put_strings(&self.dict, &mut strings, target, &mut bytes, &mut chunk);
            put_frames(&self.dict, &mut frames, target, &mut bytes, &mut chunk);
            while node < self.nodes.len() && bytes < target {
                let (caller, frame) = self.nodes[node];
                chunk.stack_parents.push(caller);
                chunk.stack_frames.push(frame.0);
                bytes += 2 * VARINT32;
                node += 1;
            }
            // As tables of a profile come.
            if messages.iter().all(|message| message.tables.is_none()) {
                chunk.info = Some(wire::Info::default());
            }
            chunk.last = node == self.nodes.len()
                && strings >= self.dict.strings.len()
                && frames >= self.dict.frames.len();
            let last = chunk.last;
            messages.push(sent::Definitions {
                tables: Some(chunk),
                ..sent::Definitions::default()
            });
            if last {
                return;
            }
        }
    }
}

/// Received strings, frames and stacks, checked.
#[derive(Default)]
pub struct DefinedTables {
    /// Strings and frames, no stacks.
    pub dict: Dictionary,
    /// Contents of stacks that are said to be known: the first is of number 1.
    pub known: Vec<ContentId>,
    /// By each of them, the most frames that a stack has beyond it.
    pub reach: Vec<u16>,
    /// The stacks after them: number of the caller, which is smaller, and frame. Stacks may be
    /// there more than once.
    pub nodes: Vec<(u32, FrameId)>,
}

impl DefinedTables {
    /// Contents by number: of the empty stack, of those that are said to be known, of the others.
    /// They follow from frames and from what is said to be known, and from nothing else that was
    /// sent.
    pub fn content_ids(&self) -> Vec<ContentId> {
        let frames = self.dict.frame_content_ids();
        let mut ids = Vec::with_capacity(1 + self.known.len() + self.nodes.len());
        ids.push(ContentId::default());
        ids.extend(&self.known);
        for &(caller, frame) in &self.nodes {
            ids.push(ids[caller as usize].child(frames[frame.0 as usize]));
        }
        ids
    }
}

/// Puts strings, frames and stacks together that a stranger sends without samples.
///
/// As strict as [`ProfileAssembler`]. Facts and the end mark of chunks say nothing here and are not
/// looked at: whoever sends says by other means what belongs together.
pub struct TableAssembler {
    frames: ProfileAssembler,
    takes_known: bool,
    tables: DefinedTables,
    /// By stack after those that are known: the known one it comes from, or 0, and the frames
    /// beyond it.
    depths: Vec<(u32, u16)>,
    failed: bool,
}

impl TableAssembler {
    /// An assembler for at most `limit` encoded bytes, in which stacks may be named that are known,
    /// or not.
    pub fn new(limit: usize, takes_known: bool) -> TableAssembler {
        TableAssembler {
            frames: ProfileAssembler::with_limit(limit),
            takes_known,
            tables: DefinedTables::default(),
            depths: Vec::new(),
            failed: false,
        }
    }

    /// Takes more rows.
    ///
    /// # Errors
    /// When the message is damaged, too much, or has more than tables; the assembler is then spent.
    pub fn push(&mut self, message: &sent::Definitions) -> Result<(), AssembleError> {
        if self.failed {
            return Err(AssembleError::AfterEnd);
        }
        let taken = self.take(message);
        self.failed = taken.is_err();
        taken
    }

    fn take(&mut self, message: &sent::Definitions) -> Result<(), AssembleError> {
        self.frames.weigh(message)?;
        self.take_known(&message.known_stacks)?;
        let Some(chunk) = &message.tables else {
            return Ok(());
        };
        let columns = [
            chunk.sample_label_sets.len(),
            chunk.sample_stacks.len(),
            chunk.sample_ends.len(),
            chunk.sample_counts.len(),
            chunk.sample_weights.len(),
        ];
        if columns.iter().any(|&length| length > 0) {
            return Err(AssembleError::NotATable { found: "samples" });
        }
        if !chunk.label_sets.is_empty() {
            let found = "label sets";
            return Err(AssembleError::NotATable { found });
        }
        self.frames.take_frames(chunk)?;
        self.take_stacks(chunk)
    }

    fn take_known(&mut self, hashes: &[u8]) -> Result<(), AssembleError> {
        let (hashes, torn) = hashes.as_chunks::<16>();
        if !torn.is_empty() {
            return Err(AssembleError::Columns {
                table: "known stacks",
            });
        }
        if !hashes.is_empty() && (!self.takes_known || !self.tables.nodes.is_empty()) {
            let found = "known stacks";
            return Err(AssembleError::NotATable { found });
        }
        let known = hashes.iter().map(|&hash| ContentId(hash));
        self.tables.known.extend(known);
        self.tables.reach.resize(self.tables.known.len(), 0);
        Ok(())
    }

    fn take_stacks(&mut self, chunk: &wire::ProfileChunk) -> Result<(), AssembleError> {
        if chunk.stack_parents.len() != chunk.stack_frames.len() {
            return Err(AssembleError::Columns { table: "stacks" });
        }
        let known = self.tables.known.len();
        for (&caller, &frame) in chunk.stack_parents.iter().zip(&chunk.stack_frames) {
            let frame = self.frames.sent_frame(frame)?;
            let (from, depth) = match (caller as usize).checked_sub(known + 1) {
                None => (caller, 0),
                Some(at) => *self.depths.get(at).ok_or(AssembleError::Id {
                    table: "stacks",
                    id: caller,
                })?,
            };
            if depth >= STACK_DEPTH_MAX {
                return Err(AssembleError::TooDeep);
            }
            if let Some(from) = (from as usize).checked_sub(1) {
                let reach = &mut self.tables.reach[from];
                *reach = (*reach).max(depth + 1);
            }
            self.depths.push((from, depth + 1));
            self.tables.nodes.push((caller, frame));
        }
        Ok(())
    }

    /// Encoded bytes taken so far.
    pub fn bytes(&self) -> usize {
        self.frames.bytes()
    }

    /// What came so far.
    ///
    /// # Errors
    /// When a message was refused.
    pub fn finish(self) -> Result<DefinedTables, AssembleError> {
        if self.failed {
            return Err(AssembleError::Incomplete);
        }
        Ok(DefinedTables {
            dict: self.frames.into_dictionary(),
            ..self.tables
        })
    }
}

#[cfg(test)]
mod tests {
    use super::dictionary_stacks_max;

    #[test]
    fn a_dictionary_holds_several_windows_however_large_they_are() {
        assert_eq!(dictionary_stacks_max(0, 5), usize::MAX);
        assert_eq!(dictionary_stacks_max(1000, 0), 1000);
        assert_eq!(dictionary_stacks_max(1000, 250), 1000);
        assert_eq!(dictionary_stacks_max(1000, 700), 2800);
        assert_eq!(dictionary_stacks_max(1000, usize::MAX), 4000);
    }
}
