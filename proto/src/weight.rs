//! The size of profiles: encoded, before they are cut into chunks, and as messages in memory.

use crate::convert::CHUNK_BYTES_TARGET;
use crate::wire;
use profile::Profile;

/// Most bytes a 64-bit varint takes.
const VARINT64: usize = 10;
/// Tag and length of one string.
const STRING_HEAD: usize = 1 + 4;
/// Most bytes of one frame without its ids of strings: tags of seven fields, kind, reason, line,
/// the message's own head.
const FRAME_REST: usize = 7 + 1 + 1 + 5 + 2;
/// Heads of one label set and of its ids.
const LABEL_SET_HEAD: usize = 2 * (1 + 5);
/// Heads of the columns of one chunk and its end mark.
const CHUNK_HEAD: usize = 13 * (2 + 5) + 2;
/// Facts and counters of the first chunk, without their texts.
const INFO_BYTES: usize = 768;

/// How many rows each table of a profile has: enough to say what it weighs at most, encoded,
/// whatever stands in them. Those of two profiles together are never fewer than those of the two
/// merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Rows {
    info_bytes: usize,
    text_bytes: usize,
    strings: usize,
    frames: usize,
    stacks: usize,
    label_sets: usize,
    label_pairs: usize,
    samples: usize,
    timestamps: usize,
}

impl Rows {
    /// Those of a profile.
    pub fn of(profile: &Profile) -> Rows {
        let (dict, info) = (&profile.dict, &profile.info);
        Rows {
            info_bytes: info.event.len() + info.unit.len() + info.waits_cause.len(),
            text_bytes: dict.strings.text_bytes(),
            strings: dict.strings.len(),
            frames: dict.frames.len(),
            stacks: dict.stacks.len(),
            label_sets: dict.label_sets.len(),
            label_pairs: dict.label_sets.pairs(),
            samples: profile.samples.len(),
            timestamps: profile.timestamps.list.len(),
        }
    }

    /// Those of both.
    #[must_use]
    pub fn and(self, other: Rows) -> Rows {
        Rows {
            info_bytes: self.info_bytes + other.info_bytes,
            text_bytes: self.text_bytes + other.text_bytes,
            strings: self.strings + other.strings,
            frames: self.frames + other.frames,
            stacks: self.stacks + other.stacks,
            label_sets: self.label_sets + other.label_sets,
            label_pairs: self.label_pairs + other.label_pairs,
            samples: self.samples + other.samples,
            timestamps: self.timestamps + other.timestamps,
        }
    }

    /// Those without when samples were taken.
    #[must_use]
    pub fn without_times(self) -> Rows {
        Rows {
            timestamps: 0,
            ..self
        }
    }

    /// Most bytes that all chunks of [`Chunks::new`](crate::Chunks::new) take together; about twice
    /// what they do take.
    pub fn encoded_bytes_max(self) -> usize {
        let [strings, frames, stacks, label_sets] =
            [self.strings, self.frames, self.stacks, self.label_sets].map(id_bytes);
        let key = label_sets + stacks + 1;
        let rows = self.text_bytes
            + self.strings * STRING_HEAD
            + self.frames * (4 * strings + FRAME_REST)
            + self.stacks * (stacks + frames)
            + self.label_sets * LABEL_SET_HEAD
            + self.label_pairs * 2 * strings
            + (self.samples + self.timestamps) * (key + 2 * VARINT64);
        // A chunk is filled by sizes that are at most five times these, of ids that take a byte.
        let chunks = 5 * rows / CHUNK_BYTES_TARGET + 2;
        self.info_bytes + INFO_BYTES + rows + chunks * CHUNK_HEAD
    }
}

/// Most bytes of an id in a table of so many rows.
fn id_bytes(rows: usize) -> usize {
    let bits = usize::BITS - rows.leading_zeros();
    (bits as usize).div_ceil(7).max(1)
}

/// Heap memory that a chunk holds as a message, in bytes: of small rows many times what it takes
/// encoded.
pub fn chunk_heap_bytes(chunk: &wire::ProfileChunk) -> usize {
    let texts = |strings: &Vec<String>| {
        let heap: usize = strings.iter().map(String::capacity).sum();
        heap + strings.capacity() * size_of::<String>()
    };
    let sets: usize = chunk
        .label_sets
        .iter()
        .map(|set| set.key_values.capacity() * size_of::<u32>())
        .sum();
    let narrow = [
        &chunk.stack_parents,
        &chunk.stack_frames,
        &chunk.sample_label_sets,
        &chunk.sample_stacks,
        &chunk.sample_ends,
        &chunk.timestamp_label_sets,
        &chunk.timestamp_stacks,
        &chunk.timestamp_ends,
    ];
    let wide = [
        &chunk.sample_counts,
        &chunk.sample_weights,
        &chunk.timestamp_deltas_ns,
        &chunk.timestamp_weights,
    ];
    let info = chunk.info.as_ref();
    texts(&chunk.strings)
        + sets
        + chunk.label_sets.capacity() * size_of::<wire::LabelSet>()
        + chunk.frames.capacity() * size_of::<wire::Frame>()
        + narrow
            .map(|column| column.capacity() * 4)
            .iter()
            .sum::<usize>()
        + wide
            .map(|column| column.capacity() * 8)
            .iter()
            .sum::<usize>()
        + info.map_or(0, |info| info.event.capacity() + info.unit.capacity())
}
