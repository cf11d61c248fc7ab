//! Converts [`Profile`]s to wire chunks and back.
//!
//! Out: [`Chunks`] cuts a profile into messages of about [`CHUNK_BYTES_TARGET`]. In:
//! [`ProfileAssembler`] combines chunks again. It treats every chunk as untrusted: ids, columns,
//! order, depth and total size are checked before anything is stored, and everything goes through
//! the interning of [`Dictionary`], so duplicate table rows do no harm.

use crate::wire;
use profile::{
    Coverage, Dictionary, Frame, FrameId, FrameKind, Info, LabelSetId, Profile, SampleKey,
    StackEnd, StackId, StrId, Timestamp, Timestamps, UnnamedReason, Value, Waits,
};
use prost::Message;
use std::borrow::Borrow;

/// Size a chunk is filled up to. Unit: encoded bytes.
///
/// Far under the 4 MiB at which gRPC clients refuse a message by default, and small enough that a
/// slow reader holds little. Much smaller chunks cost a message header and a wake-up each.
pub const CHUNK_BYTES_TARGET: usize = 256 << 10;

/// Longest string sent. Unit: bytes; longer ones are cut at a character boundary.
///
/// The longest demangled symbols seen in practice are a few KiB. With this bound a chunk never
/// exceeds its target by more than this.
pub const STRING_BYTES_MAX: usize = 64 << 10;

/// Largest profile an assembler takes by default. Unit: encoded bytes over all chunks.
///
/// Twice the default budget of the flight recorder, so every honest answer fits. Smaller values
/// refuse long ranges of busy hosts.
pub const PROFILE_BYTES_MAX: usize = 128 << 20;

/// Deepest stack an assembler takes. Unit: frames.
///
/// Well above what `perf_event_max_stack` is ever set to, with inlined frames on top; it keeps
/// the cost of walking hostile stacks within bounds.
pub const STACK_DEPTH_MAX: u16 = 4096;

/// The chunks of a profile, in order.
///
/// Takes a `Profile`, a reference or an `Arc`; never empty: the last chunk says that it is the
/// last.
pub struct Chunks<P> {
    profile: P,
    samples: Vec<(SampleKey, Value)>,
    target: usize,
    strings: usize,
    frames: usize,
    stacks: usize,
    label_sets: usize,
    sample: usize,
    timestamp: usize,
    first: bool,
    done: bool,
}

impl<P: Borrow<Profile>> Chunks<P> {
    /// Cuts `profile` into chunks of about [`CHUNK_BYTES_TARGET`].
    pub fn new(profile: P) -> Chunks<P> {
        Chunks::with_target(profile, CHUNK_BYTES_TARGET)
    }

    /// Cuts `profile` into chunks of about `target` encoded bytes.
    pub fn with_target(profile: P, target: usize) -> Chunks<P> {
        let samples = profile.borrow().sorted();
        Chunks {
            profile,
            samples,
            target,
            strings: 0,
            frames: 0,
            stacks: 1,
            label_sets: 1,
            sample: 0,
            timestamp: 0,
            first: true,
            done: false,
        }
    }
}

/// Most bytes a 32-bit varint takes.
pub(crate) const VARINT32: usize = 5;
/// Most bytes of one packed sample row: three 32-bit and two 64-bit columns.
const SAMPLE_BYTES: usize = 3 * VARINT32 + 2 * 10;
/// Most bytes of one packed moment: three 32-bit and two 64-bit columns.
const TIMESTAMP_BYTES: usize = SAMPLE_BYTES;
/// Most bytes of one frame: eight fields with their tags, the message's tag and length.
const FRAME_BYTES: usize = 8 * (VARINT32 + 1) + 2;

impl<P: Borrow<Profile>> Iterator for Chunks<P> {
    type Item = wire::ProfileChunk;

    fn next(&mut self) -> Option<wire::ProfileChunk> {
        if self.done {
            return None;
        }
        let profile = self.profile.borrow();
        let dict = &profile.dict;
        let mut chunk = wire::ProfileChunk::default();
        let mut bytes = 0;
        if std::mem::take(&mut self.first) {
            let mut info = wire::Info::from(&profile.info);
            info.times = (!profile.timestamps.is_absent()).then(|| (&profile.timestamps).into());
            chunk.info = Some(info);
        }
        // Table by table: what a row refers to stands in a table before it, or earlier in its own.
        put_strings(dict, &mut self.strings, self.target, &mut bytes, &mut chunk);
        put_frames(dict, &mut self.frames, self.target, &mut bytes, &mut chunk);
        while self.stacks < dict.stacks.len() && bytes < self.target {
            if let Some((parent, frame)) = dict.stacks.node(StackId(self.stacks as u32)) {
                chunk.stack_parents.push(parent.0);
                chunk.stack_frames.push(frame.0);
            }
            bytes += 2 * VARINT32;
            self.stacks += 1;
        }
        while self.label_sets < dict.label_sets.len() && bytes < self.target {
            let set = dict.label_sets.get(LabelSetId(self.label_sets as u32));
            let key_values: Vec<u32> = set.iter().flat_map(|&(k, v)| [k.0, v.0]).collect();
            bytes += key_values.len() * VARINT32 + 2 * (VARINT32 + 1);
            chunk.label_sets.push(wire::LabelSet { key_values });
            self.label_sets += 1;
        }
        while self.sample < self.samples.len() && bytes < self.target {
            let (key, value) = self.samples[self.sample];
            chunk.sample_label_sets.push(key.labels.0);
            chunk.sample_stacks.push(key.stack.0);
            chunk.sample_ends.push(key.end as u32);
            chunk.sample_counts.push(value.count);
            chunk.sample_weights.push(value.weight);
            bytes += SAMPLE_BYTES;
            self.sample += 1;
        }
        let timestamps = &profile.timestamps.list;
        while self.timestamp < timestamps.len() && bytes < self.target {
            let before = self
                .timestamp
                .checked_sub(1)
                .map_or(0, |at| timestamps[at].at_ns);
            let timestamp = timestamps[self.timestamp];
            chunk
                .timestamp_deltas_ns
                .push(timestamp.at_ns.saturating_sub(before));
            chunk.timestamp_label_sets.push(timestamp.key.labels.0);
            chunk.timestamp_stacks.push(timestamp.key.stack.0);
            chunk.timestamp_ends.push(timestamp.key.end as u32);
            chunk.timestamp_weights.push(timestamp.weight);
            bytes += TIMESTAMP_BYTES;
            self.timestamp += 1;
        }
        // Samples come late, but a profile without any still has tables to finish.
        self.done = self.strings >= dict.strings.len()
            && self.frames >= dict.frames.len()
            && self.stacks >= dict.stacks.len()
            && self.label_sets >= dict.label_sets.len()
            && self.sample >= self.samples.len()
            && self.timestamp >= timestamps.len();
        chunk.last = self.done;
        Some(chunk)
    }
}

/// Adds strings from number `next` on, until the chunk has `target` bytes.
pub(crate) fn put_strings(
    dict: &Dictionary,
    next: &mut usize,
    target: usize,
    bytes: &mut usize,
    chunk: &mut wire::ProfileChunk,
) {
    while *next < dict.strings.len() && *bytes < target {
        let text = cut(dict.strings.get(StrId(*next as u32)));
        *bytes += text.len() + VARINT32 + 1;
        chunk.strings.push(text.to_owned());
        *next += 1;
    }
}

/// As [`put_strings`], of frames.
pub(crate) fn put_frames(
    dict: &Dictionary,
    next: &mut usize,
    target: usize,
    bytes: &mut usize,
    chunk: &mut wire::ProfileChunk,
) {
    while *next < dict.frames.len() && *bytes < target {
        let frame = dict.frames.get(FrameId(*next as u32));
        chunk.frames.push(frame_to_wire(frame));
        *bytes += FRAME_BYTES;
        *next += 1;
    }
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(STRING_BYTES_MAX)]
}

fn frame_to_wire(frame: Frame) -> wire::Frame {
    wire::Frame {
        kind: frame.kind as u32,
        unnamed: frame.unnamed as u32,
        function: frame.function.0,
        system_name: frame.system_name.0,
        module: frame.module.0,
        file: frame.file.0,
        line: frame.line,
        start_line: frame.start_line,
    }
}

/// Why chunks do not make a profile. After any of these the assembler takes nothing more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssembleError {
    /// The first chunk has no `info`.
    #[error("failed to assemble profile: the first chunk has no info")]
    NoInfo,
    /// A chunk after the first has `info`: two profiles were mixed.
    #[error("failed to assemble profile: a later chunk has info")]
    LateInfo,
    /// A chunk came after the last one, or after a failure.
    #[error("failed to assemble profile: a chunk follows the last one")]
    AfterEnd,
    /// The stream ended before a chunk that says `last`.
    #[error("failed to assemble profile: the last chunk is missing")]
    Incomplete,
    /// All chunks together are larger than allowed.
    #[error("failed to assemble profile: it is larger than {limit} bytes")]
    TooLarge {
        /// The bound that was reached.
        limit: usize,
    },
    /// String 0 is not the empty string.
    #[error("failed to assemble profile: string 0 is not empty")]
    FirstString,
    /// Columns that belong together differ in length.
    #[error("failed to assemble profile: columns of `{table}` differ in length")]
    Columns {
        /// Name of the table.
        table: &'static str,
    },
    /// An id or number that is not in its table.
    #[error("failed to assemble profile: `{table}` has no row `{id}`")]
    Id {
        /// Name of the table.
        table: &'static str,
        /// The id asked for.
        id: u32,
    },
    /// A stack has more frames than [`STACK_DEPTH_MAX`].
    #[error("failed to assemble profile: a stack is deeper than {STACK_DEPTH_MAX} frames")]
    TooDeep,
    /// A message of definitions contains more than strings, frames and stacks.
    #[error(
        "failed to assemble definitions: expected only strings, frames and stacks, found `{found}`"
    )]
    NotATable {
        /// What else it contains.
        found: &'static str,
    },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Start,
    Open,
    Complete,
    Failed,
}

/// Puts a profile together from chunks of a stranger.
pub struct ProfileAssembler {
    profile: Profile,
    state: State,
    bytes: usize,
    limit: usize,
    strings: Vec<StrId>,
    frames: Vec<FrameId>,
    /// Stack and depth by wire id; row 0 is the empty stack.
    stacks: Vec<(StackId, u16)>,
    label_sets: Vec<LabelSetId>,
}

impl Default for ProfileAssembler {
    fn default() -> Self {
        ProfileAssembler::new()
    }
}

impl ProfileAssembler {
    /// An assembler for one profile of at most [`PROFILE_BYTES_MAX`].
    pub fn new() -> ProfileAssembler {
        ProfileAssembler::with_limit(PROFILE_BYTES_MAX)
    }

    /// An assembler for one profile of at most `limit` encoded bytes.
    pub fn with_limit(limit: usize) -> ProfileAssembler {
        ProfileAssembler {
            profile: Profile::default(),
            state: State::Start,
            bytes: 0,
            limit,
            strings: Vec::new(),
            frames: Vec::new(),
            stacks: vec![(StackId::EMPTY, 0)],
            label_sets: vec![LabelSetId::default()],
        }
    }

    /// Heap memory held, in bytes: of the profile as far as it has come, and of the ids that later
    /// chunks may use.
    pub fn heap_bytes(&self) -> usize {
        self.profile.heap_bytes()
            + self.strings.capacity() * size_of::<StrId>()
            + self.frames.capacity() * size_of::<FrameId>()
            + self.stacks.capacity() * size_of::<(StackId, u16)>()
            + self.label_sets.capacity() * size_of::<LabelSetId>()
    }

    /// Encoded bytes taken so far.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// True once the last chunk was taken.
    pub fn is_complete(&self) -> bool {
        self.state == State::Complete
    }

    /// Takes the next chunk.
    ///
    /// # Errors
    /// When the chunk is damaged, too much, or out of order; the assembler is then spent.
    pub fn push(&mut self, chunk: wire::ProfileChunk) -> Result<(), AssembleError> {
        let last = chunk.last;
        let taken = self.take(chunk);
        self.state = match (&taken, last) {
            (Err(_), _) => State::Failed,
            (Ok(()), true) => State::Complete,
            (Ok(()), false) => State::Open,
        };
        taken
    }

    /// The profile.
    ///
    /// # Errors
    /// When the last chunk did not come, or an earlier one was refused.
    pub fn finish(self) -> Result<Profile, AssembleError> {
        if self.state == State::Complete {
            Ok(self.profile)
        } else {
            Err(AssembleError::Incomplete)
        }
    }

    fn take(&mut self, chunk: wire::ProfileChunk) -> Result<(), AssembleError> {
        self.weigh(&chunk)?;
        match (self.state, &chunk.info) {
            (State::Start, Some(info)) => {
                self.profile.info = info.clone().into();
                self.profile.timestamps = info.times.unwrap_or_default().into();
            }
            (State::Start, None) => return Err(AssembleError::NoInfo),
            (State::Open, None) => {}
            (State::Open, Some(_)) => return Err(AssembleError::LateInfo),
            (State::Complete | State::Failed, _) => return Err(AssembleError::AfterEnd),
        }
        self.take_tables(&chunk)?;
        for set in &chunk.label_sets {
            let id = self.label_set(set)?;
            self.label_sets.push(id);
        }
        self.take_samples(&chunk)?;
        self.take_timestamps(&chunk)
    }

    pub(crate) fn weigh(&mut self, chunk: &impl Message) -> Result<(), AssembleError> {
        self.bytes = self.bytes.saturating_add(chunk.encoded_len());
        if self.bytes > self.limit {
            return Err(AssembleError::TooLarge { limit: self.limit });
        }
        Ok(())
    }

    fn take_tables(&mut self, chunk: &wire::ProfileChunk) -> Result<(), AssembleError> {
        self.take_frames(chunk)?;
        self.take_stacks(chunk)
    }

    /// Takes strings and frames.
    pub(crate) fn take_frames(&mut self, chunk: &wire::ProfileChunk) -> Result<(), AssembleError> {
        for text in &chunk.strings {
            if self.strings.is_empty() && !text.is_empty() {
                return Err(AssembleError::FirstString);
            }
            self.strings.push(self.profile.dict.strings.intern(text));
        }
        for frame in &chunk.frames {
            let frame = self.frame(frame)?;
            self.frames.push(self.profile.dict.frames.intern(frame));
        }
        Ok(())
    }

    /// The frame for a number of the sender.
    pub(crate) fn sent_frame(&self, id: u32) -> Result<FrameId, AssembleError> {
        row(&self.frames, "frames", id)
    }

    /// Converts it to the dictionary; there are no samples.
    pub(crate) fn into_dictionary(self) -> Dictionary {
        self.profile.dict
    }

    fn frame(&mut self, frame: &wire::Frame) -> Result<Frame, AssembleError> {
        let mut function = row(&self.strings, "strings", frame.function)?;
        if function == StrId::EMPTY {
            function = self.profile.dict.strings.intern("[unknown]");
        }
        let mut system_name = row(&self.strings, "strings", frame.system_name)?;
        if system_name == function {
            system_name = StrId::EMPTY;
        }
        Ok(Frame {
            kind: number(FrameKind::from_u8, "frame kinds", frame.kind)?,
            unnamed: number(UnnamedReason::from_u8, "unnamed reasons", frame.unnamed)?,
            function,
            system_name,
            module: row(&self.strings, "strings", frame.module)?,
            file: row(&self.strings, "strings", frame.file)?,
            line: frame.line,
            start_line: frame.start_line,
        })
    }

    fn take_stacks(&mut self, chunk: &wire::ProfileChunk) -> Result<(), AssembleError> {
        if chunk.stack_parents.len() != chunk.stack_frames.len() {
            return Err(AssembleError::Columns { table: "stacks" });
        }
        for (&parent, &frame) in chunk.stack_parents.iter().zip(&chunk.stack_frames) {
            // Only rows that are already there count, so a parent is always before its child.
            let (parent, depth) = row(&self.stacks, "stacks", parent)?;
            let frame = row(&self.frames, "frames", frame)?;
            if depth >= STACK_DEPTH_MAX {
                return Err(AssembleError::TooDeep);
            }
            self.stacks
                .push((self.profile.dict.stacks.child(parent, frame), depth + 1));
        }
        Ok(())
    }

    fn label_set(&mut self, set: &wire::LabelSet) -> Result<LabelSetId, AssembleError> {
        let (pairs, rest) = set.key_values.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(AssembleError::Columns {
                table: "label sets",
            });
        }
        let mut moved = Vec::with_capacity(pairs.len());
        for &[key, value] in pairs {
            let pair = (
                row(&self.strings, "strings", key)?,
                row(&self.strings, "strings", value)?,
            );
            // An empty value is an absent label everywhere.
            if pair.1 != StrId::EMPTY {
                moved.push(pair);
            }
        }
        Ok(self.profile.dict.label_sets.intern(&mut moved))
    }

    fn take_samples(&mut self, chunk: &wire::ProfileChunk) -> Result<(), AssembleError> {
        let rows = chunk.sample_stacks.len();
        let lengths = [
            chunk.sample_label_sets.len(),
            chunk.sample_ends.len(),
            chunk.sample_counts.len(),
            chunk.sample_weights.len(),
        ];
        if lengths.iter().any(|&length| length != rows) {
            return Err(AssembleError::Columns { table: "samples" });
        }
        for at in 0..rows {
            let key = SampleKey {
                labels: row(&self.label_sets, "label sets", chunk.sample_label_sets[at])?,
                stack: row(&self.stacks, "stacks", chunk.sample_stacks[at])?.0,
                end: number(StackEnd::from_u8, "stack ends", chunk.sample_ends[at])?,
            };
            let value = Value {
                count: chunk.sample_counts[at],
                weight: chunk.sample_weights[at],
            };
            self.profile.add(key, value);
        }
        Ok(())
    }
}

impl ProfileAssembler {
    fn take_timestamps(&mut self, chunk: &wire::ProfileChunk) -> Result<(), AssembleError> {
        let rows = chunk.timestamp_deltas_ns.len();
        let lengths = [
            chunk.timestamp_label_sets.len(),
            chunk.timestamp_stacks.len(),
            chunk.timestamp_ends.len(),
            chunk.timestamp_weights.len(),
        ];
        if lengths.iter().any(|&length| length != rows) {
            return Err(AssembleError::Columns {
                table: "timestamps",
            });
        }
        let list = &mut self.profile.timestamps.list;
        let mut at_ns = list.last().map_or(0, |timestamp| timestamp.at_ns);
        list.reserve(rows);
        for at in 0..rows {
            at_ns = at_ns.saturating_add(chunk.timestamp_deltas_ns[at]);
            list.push(Timestamp {
                at_ns,
                key: SampleKey {
                    labels: row(
                        &self.label_sets,
                        "label sets",
                        chunk.timestamp_label_sets[at],
                    )?,
                    stack: row(&self.stacks, "stacks", chunk.timestamp_stacks[at])?.0,
                    end: number(StackEnd::from_u8, "stack ends", chunk.timestamp_ends[at])?,
                },
                weight: chunk.timestamp_weights[at],
            });
        }
        Ok(())
    }
}

impl From<&Timestamps> for wire::Times {
    fn from(timestamps: &Timestamps) -> wire::Times {
        wire::Times {
            start_unix_ns: timestamps.start_unix_ns,
            duration_ns: timestamps.duration_ns,
            dropped: timestamps.dropped,
        }
    }
}

impl From<wire::Times> for Timestamps {
    fn from(times: wire::Times) -> Timestamps {
        Timestamps {
            start_unix_ns: times.start_unix_ns,
            duration_ns: times.duration_ns,
            dropped: times.dropped,
            list: Vec::new(),
        }
    }
}

pub(crate) fn row<T: Copy>(rows: &[T], table: &'static str, id: u32) -> Result<T, AssembleError> {
    rows.get(id as usize)
        .copied()
        .ok_or(AssembleError::Id { table, id })
}

fn number<T>(from: fn(u8) -> Option<T>, table: &'static str, id: u32) -> Result<T, AssembleError> {
    u8::try_from(id)
        .ok()
        .and_then(from)
        .ok_or(AssembleError::Id { table, id })
}

impl From<&Info> for wire::Info {
    fn from(info: &Info) -> Self {
        wire::Info {
            start_unix_ns: info.start_unix_ns,
            duration_ns: info.duration_ns,
            event: info.event.clone(),
            unit: info.unit.clone(),
            period: info.period,
            quality: Some(info.quality.into()),
            coverage: (info.coverage != Coverage::default()).then(|| info.coverage.into()),
            // It comes from the timestamps, which are next to the info.
            times: None,
            waits: (info.waits != Waits::default()).then(|| info.waits.into()),
            waits_cause: info.waits_cause.clone(),
        }
    }
}

impl From<wire::Info> for Info {
    fn from(info: wire::Info) -> Self {
        Info {
            start_unix_ns: info.start_unix_ns,
            duration_ns: info.duration_ns,
            event: info.event,
            unit: info.unit,
            period: info.period,
            quality: info.quality.unwrap_or_default().into(),
            coverage: info.coverage.unwrap_or_default().into(),
            waits: info.waits.unwrap_or_default().into(),
            waits_cause: info.waits_cause,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_frame_takes_as_many_bytes_as_are_reserved_for_one() {
        // Every field is named, so that one that is added is counted as well.
        let largest = wire::Frame {
            kind: u32::MAX,
            unnamed: u32::MAX,
            function: u32::MAX,
            module: u32::MAX,
            file: u32::MAX,
            line: u32::MAX,
            system_name: u32::MAX,
            start_line: u32::MAX,
        };
        let chunk = wire::ProfileChunk {
            frames: vec![largest],
            ..wire::ProfileChunk::default()
        };
        assert_eq!(chunk.encoded_len(), FRAME_BYTES);
    }
}
