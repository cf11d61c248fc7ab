//! Reads the JSON that this crate writes, schema `fleetprof.profile/1`, for later comparison and
//! drawing. The text is checked as untrusted: indices, words, depth, times.

use super::{SCHEMA, TimestampsJson};
use crate::{
    Coverage, FrameId, FrameKind, FrameRef, Info, Profile, Quality, SampleKey, StackEnd, StackId,
    Timestamp, Timestamps, UnnamedReason, Value, Waits,
};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Deepest stack taken. Unit: frames. No profiler keeps as many.
pub const STACK_FRAMES_MAX: usize = 4096;

/// Why a text is not such a profile.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// It is no JSON, or lacks a key.
    #[error("failed to parse JSON")]
    Parse(#[from] serde_json::Error),
    /// It is of another schema.
    #[error("failed to read JSON: its schema is `{0}`, expected `{SCHEMA}`")]
    Schema(String),
    /// A word that no table has.
    #[error("failed to read JSON: {table} has no `{word}`")]
    Word {
        /// Name of the table.
        table: &'static str,
        /// The word.
        word: String,
    },
    /// A sample names a frame that is not there.
    #[error("failed to read JSON: there is no frame `{0}`")]
    Frame(usize),
    /// A stack has more frames than are taken.
    #[error("failed to read JSON: a stack is deeper than {STACK_FRAMES_MAX} frames")]
    TooDeep,
    /// Columns of timestamps differ in length, name samples that are not there, or go beyond the
    /// time covered.
    #[error("failed to read JSON: moment `{0}` has no sample, or is outside the covered time")]
    Timestamp(usize),
}

#[derive(Deserialize)]
struct File {
    schema: String,
    info: FileInfo,
    #[serde(default)]
    quality: Quality,
    #[serde(default)]
    coverage: Coverage,
    #[serde(default)]
    waits: Waits,
    #[serde(default)]
    waits_cause: String,
    frames: Vec<FileFrame>,
    samples: Vec<FileSample>,
    timestamps: Option<TimestampsJson>,
}

#[derive(Deserialize)]
struct FileInfo {
    start_unix_ns: i64,
    duration_ns: u64,
    event: String,
    unit: String,
    period: u64,
}

#[derive(Deserialize)]
struct FileFrame {
    function: String,
    kind: String,
    #[serde(default)]
    system_name: String,
    #[serde(default)]
    module: String,
    #[serde(default)]
    file: String,
    #[serde(default)]
    line: u32,
    #[serde(default)]
    start_line: u32,
    unnamed: Option<String>,
}

#[derive(Deserialize)]
struct FileSample {
    count: u64,
    weight: u64,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    end: String,
    frames: Vec<usize>,
}

/// Reads a profile.
///
/// # Errors
/// When the text is not one.
pub fn read(text: &[u8]) -> Result<Profile, JsonError> {
    let file: File = serde_json::from_slice(text)?;
    if file.schema != SCHEMA {
        return Err(JsonError::Schema(file.schema));
    }
    let FileInfo {
        start_unix_ns,
        duration_ns,
        event,
        unit,
        period,
    } = file.info;
    let info = Info {
        start_unix_ns,
        duration_ns,
        event,
        unit,
        period,
        quality: file.quality,
        coverage: file.coverage,
        waits: file.waits,
        waits_cause: file.waits_cause,
    };
    let mut profile = Profile {
        info,
        ..Profile::default()
    };
    let mut frames: Vec<FrameId> = Vec::with_capacity(file.frames.len());
    for frame in &file.frames {
        let kind = word("frame kinds", &FrameKind::ALL, FrameKind::word, &frame.kind)?;
        let unnamed = match &frame.unnamed {
            Some(reason) => word(
                "unnamed reasons",
                UnnamedReason::ALL,
                UnnamedReason::word,
                reason,
            )?,
            None => UnnamedReason::No,
        };
        let function = match frame.function.as_str() {
            "" => "[unknown]",
            function => function,
        };
        frames.push(profile.dict.intern_frame(FrameRef {
            kind,
            unnamed,
            function,
            system_name: &frame.system_name,
            module: &frame.module,
            file: &frame.file,
            line: frame.line,
            start_line: frame.start_line,
        }));
    }
    let mut keys = Vec::with_capacity(file.samples.len());
    for sample in &file.samples {
        if sample.frames.len() > STACK_FRAMES_MAX {
            return Err(JsonError::TooDeep);
        }
        let labels = sample
            .labels
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()));
        let labels = profile.dict.intern_labels(labels);
        let mut stack = StackId::EMPTY;
        for &index in &sample.frames {
            let &frame = frames.get(index).ok_or(JsonError::Frame(index))?;
            stack = profile.dict.stacks.child(stack, frame);
        }
        let end = word("stack ends", StackEnd::ALL, StackEnd::word, &sample.end)?;
        let value = Value {
            count: sample.count,
            weight: sample.weight,
        };
        let key = SampleKey { labels, stack, end };
        keys.push(key);
        profile.add(key, value);
    }
    if let Some(columns) = file.timestamps {
        profile.timestamps = timestamps(&columns, &keys)?;
    }
    Ok(profile)
}

/// The timestamps in columns; their samples have these keys.
fn timestamps(columns: &TimestampsJson, keys: &[SampleKey]) -> Result<Timestamps, JsonError> {
    let count = columns.after_ns.len();
    if columns.sample.len() != count || columns.weight.len() != count {
        return Err(JsonError::Timestamp(columns.sample.len().min(count)));
    }
    let mut list = Vec::with_capacity(count);
    let mut at_ns = 0u64;
    for (place, &after) in columns.after_ns.iter().enumerate() {
        at_ns = at_ns
            .checked_add(after)
            .ok_or(JsonError::Timestamp(place))?;
        let key = keys.get(columns.sample[place]);
        let (Some(&key), true) = (key, at_ns <= columns.duration_ns) else {
            return Err(JsonError::Timestamp(place));
        };
        let weight = columns.weight[place];
        list.push(Timestamp { at_ns, key, weight });
    }
    Ok(Timestamps {
        start_unix_ns: columns.start_unix_ns,
        duration_ns: columns.duration_ns,
        dropped: columns.dropped,
        list,
    })
}

fn word<T: Copy>(
    table: &'static str,
    all: &[T],
    name: fn(T) -> &'static str,
    wanted: &str,
) -> Result<T, JsonError> {
    let found = all.iter().copied().find(|&row| name(row) == wanted);
    found.ok_or_else(|| JsonError::Word {
        table,
        word: wanted.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sound() -> Profile {
        let mut profile = Profile {
            info: Info {
                start_unix_ns: 7,
                duration_ns: 8,
                event: "cpu-clock".into(),
                unit: "nanoseconds".into(),
                period: 9,
                // Each field another number.
                quality: Quality::of_numbers(std::array::from_fn(|at| at as u64 + 3)),
                coverage: Coverage::of_numbers(std::array::from_fn(|at| at as u64 + 30)),
                waits: Waits::of_numbers(std::array::from_fn(|at| at as u64 + 50)),
                waits_cause: "CPU 1 \x1b[m".into(),
            },
            ..Profile::default()
        };
        let labels = profile.dict.intern_labels([("comm", "a\x1b\"b")]);
        let frame = profile.dict.intern_frame(FrameRef {
            kind: FrameKind::Jit,
            unnamed: UnnamedReason::JitNoMap,
            function: "[jit]",
            system_name: "JS:*x",
            module: "node",
            file: "x.js",
            line: 3,
            start_line: 2,
        });
        let stack = profile.dict.stacks.intern([frame, frame]);
        let key = SampleKey {
            labels,
            stack,
            end: StackEnd::BrokenChain,
        };
        profile.add(
            key,
            Value {
                count: 3,
                weight: u64::MAX,
            },
        );
        profile.timestamps = Timestamps {
            start_unix_ns: -4,
            duration_ns: 900,
            dropped: 2,
            list: [(0, 5), (7, 6), (7, 1), (900, u64::MAX)]
                .map(|(at_ns, weight)| Timestamp { at_ns, key, weight })
                .to_vec(),
        };
        profile
    }

    fn text() -> String {
        let mut bytes = Vec::new();
        super::super::write(&sound(), &mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn what_is_written_is_read_back() {
        let back = read(text().as_bytes()).unwrap();
        assert_eq!(back.info, sound().info);
        assert_eq!(back.timestamps, sound().timestamps);
        let mut again = Vec::new();
        super::super::write(&back, &mut again).unwrap();
        assert_eq!(String::from_utf8(again).unwrap(), text());
    }

    #[test]
    fn a_profile_without_times_says_nothing_of_them() {
        let mut profile = sound();
        profile.timestamps = Timestamps::default();
        let mut bytes = Vec::new();
        super::super::write(&profile, &mut bytes).unwrap();
        assert!(
            !String::from_utf8(bytes.clone())
                .unwrap()
                .contains("timestamps")
        );
        assert!(read(&bytes).unwrap().timestamps.is_absent());
    }

    #[test]
    fn damage_is_named() {
        for (from, to, expected) in [
            (
                "profile/1",
                "profile/2",
                "its schema is `fleetprof.profile/2`",
            ),
            ("broken_chain", "bored", "stack ends has no `bored`"),
            ("\"jit\"", "\"jot\"", "frame kinds has no `jot`"),
            ("jit_no_map", "no", "unnamed reasons has no `no`"),
            ("[0,0]", "[0,1]", "there is no frame `1`"),
            ("\"samples\"", "\"simples\"", "failed to parse JSON"),
            ("[0,7,0,893]", "[0,7,0]", "moment `3`"),
            ("[0,7,0,893]", "[0,7,0,894]", "moment `3`"),
            ("[0,7,0,893]", "[0,18446744073709551615,7,0]", "moment `1`"),
            ("[0,0,0,0]", "[0,0,1,0]", "moment `2`"),
        ] {
            let damaged = text().replace(from, to);
            assert_ne!(damaged, text(), "{from}");
            let error = read(damaged.as_bytes())
                .map(|_| ())
                .unwrap_err()
                .to_string();
            assert!(error.contains(expected), "{from}: {error}");
        }
    }
}
