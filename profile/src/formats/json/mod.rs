//! JSON for scripts. One object; the schema below is stable: keys are added, never changed.
//!
//! ```text
//! {
//!   "schema": "fleetprof.profile/1",
//!   "info": {
//!     "start_unix_ns": 0, "duration_ns": 0,       time covered
//!     "event": "cpu-clock", "unit": "nanoseconds", what was sampled; unit of every "weight"
//!     "period": 0                                 weight of one sample, 0 when it varies
//!   },
//!   "quality": { "taken": 0, "idle": 0, "lost": 0, "throttled": 0, "folded": 0, "truncated": 0,
//!                "depth_limit": 0, "unnamed": 0, "malformed": 0, "lost_samples": 0, "reduced": 0,
//!                "lost_late": 0 },
//!                                               samples, by cause; "depth_limit" is a part of
//!                                               "truncated", "lost_late" of "lost"
//!   "coverage": { "expected_ns": 0, "estimated_ns": 0, "expected_samples": 0, "taken_ns": 0,
//!                 "windows": 0, "windows_unmeasured": 0 },
//!                                               the kernel's accounting of the same time
//!   "waits": { "complete": 0, "complete_ns": 0, "estimated": 0, "estimated_ns": 0, "ongoing": 0,
//!              "ongoing_ns": 0, "dropped": 0, "dropped_ns": 0, "alike": 0, "alike_ns": 0,
//!              "cut": 0, "cut_ns": 0, "alike_checked": 0, "alike_wrong": 0 },
//!                                               only in profiles of off-cpu
//!   "waits_cause": "",                            why ends of waits were not seen
//!   "total": { "count": 0, "weight": 0 },
//!   "frames": [
//!     { "function": "main", "kind": "native",     native kernel jit interpreted inlined synthetic
//!       "module": "app", "file": "main.c", "line": 7,                   absent when not known
//!       "unnamed": "no_symbols" }                 why there is no symbol; absent when there is one
//!   ],
//!   "samples": [
//!     { "count": 1, "weight": 10101010,
//!       "labels": { "comm": "app" },
//!       "end": "complete",                        how the stack ended at its root
//!       "frames": [0, 3, 5] }                     indices in "frames", root first
//!   ],
//!   "timestamps": {                                  when samples were taken; absent when not kept
//!     "start_unix_ns": 0, "duration_ns": 0,       time covered, perhaps less than the profile's
//!     "dropped": 0,                               samples in that time that lost their moment
//!     "after_ns": [5, 7],                         since the previous moment, first since start
//!     "sample": [0, 0],                           index in "samples"
//!     "weight": [10101010, 10101010] }
//! }
//! ```
//!
//! Frames and samples have one line each; samples are ordered by weight, largest first. Text is as
//! it was sampled, escaped as JSON requires, including everything that terminals and browsers might
//! act on, so printing the file is safe. Numbers may exceed 2⁵³: use a parser that keeps 64 bits
//! where that matters.

mod read;

pub use read::{JsonError, STACK_FRAMES_MAX, read};

use super::FormatError;
use crate::coverage::Coverage;
use crate::frame::{FrameId, FrameRef};
use crate::outcome::UnnamedReason;
use crate::profile::Profile;
use crate::sample::{Quality, SampleKey, Value, Waits};
use crate::text::is_hostile;
use hashbrown::HashMap;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Value of the key `schema`.
pub const SCHEMA: &str = "fleetprof.profile/1";

#[derive(Serialize)]
struct InfoJson<'a> {
    start_unix_ns: i64,
    duration_ns: u64,
    event: &'a str,
    unit: &'a str,
    period: u64,
}

#[derive(Serialize)]
struct ValueJson {
    count: u64,
    weight: u64,
}

impl From<Value> for ValueJson {
    fn from(value: Value) -> Self {
        ValueJson {
            count: value.count,
            weight: value.weight,
        }
    }
}

#[derive(Serialize, PartialEq, Eq, PartialOrd, Ord)]
struct FrameJson<'a> {
    function: &'a str,
    kind: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    system_name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    module: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    file: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unnamed: Option<&'static str>,
}

#[derive(Serialize)]
struct SampleJson<'a> {
    #[serde(flatten)]
    value: ValueJson,
    labels: BTreeMap<&'a str, &'a str>,
    end: &'static str,
    frames: Vec<usize>,
}

/// Timestamps as columns.
#[derive(Serialize, Deserialize, Default)]
struct TimestampsJson {
    start_unix_ns: i64,
    duration_ns: u64,
    dropped: u64,
    after_ns: Vec<u64>,
    sample: Vec<usize>,
    weight: Vec<u64>,
}

impl TimestampsJson {
    /// The timestamps of the profile; `places` has the index of each sample. A moment without a
    /// sample in the profile counts as dropped.
    fn of(profile: &Profile, places: &HashMap<SampleKey, usize>) -> TimestampsJson {
        let timestamps = &profile.timestamps;
        let mut columns = TimestampsJson {
            start_unix_ns: timestamps.start_unix_ns,
            duration_ns: timestamps.duration_ns,
            dropped: timestamps.dropped,
            ..TimestampsJson::default()
        };
        let mut before = 0;
        for timestamp in &timestamps.list {
            let Some(&place) = places.get(&timestamp.key) else {
                columns.dropped = columns.dropped.saturating_add(1);
                continue;
            };
            columns
                .after_ns
                .push(timestamp.at_ns.saturating_sub(before));
            columns.sample.push(place);
            columns.weight.push(timestamp.weight);
            before = timestamp.at_ns.max(before);
        }
        columns
    }
}

/// Writes the profile, with its timestamps where it has some.
///
/// # Errors
/// When `out` fails.
pub fn write(profile: &Profile, out: &mut impl Write) -> Result<(), FormatError> {
    let info = &profile.info;
    let info_json = InfoJson {
        start_unix_ns: info.start_unix_ns,
        duration_ns: info.duration_ns,
        event: &info.event,
        unit: &info.unit,
        period: info.period,
    };
    let (frames, ranks) = used_frames(profile);
    let mut samples: Vec<(SampleJson<'_>, SampleKey)> = profile
        .samples
        .iter()
        .map(|(key, &value)| {
            let mut frames: Vec<usize> = profile
                .dict
                .stacks
                .leaf_first(key.stack)
                .map(|frame| ranks[frame.0 as usize])
                .collect();
            frames.reverse();
            let sample = SampleJson {
                value: value.into(),
                labels: profile.dict.labels(key.labels).collect(),
                end: key.end.word(),
                frames,
            };
            (sample, *key)
        })
        .collect();
    samples.sort_unstable_by(|(left, _), (right, _)| {
        (right.value.weight, right.value.count)
            .cmp(&(left.value.weight, left.value.count))
            .then_with(|| left.frames.cmp(&right.frames))
            .then_with(|| left.labels.cmp(&right.labels))
            .then_with(|| left.end.cmp(right.end))
    });

    write!(out, "{{\"schema\":\"{SCHEMA}\",\n\"info\":")?;
    write_safe(out, &info_json)?;
    out.write_all(b",\n\"quality\":")?;
    write_safe::<Quality>(out, &info.quality)?;
    out.write_all(b",\n\"coverage\":")?;
    write_safe::<Coverage>(out, &info.coverage)?;
    if info.waits != Waits::default() {
        out.write_all(b",\n\"waits\":")?;
        write_safe::<Waits>(out, &info.waits)?;
        out.write_all(b",\n\"waits_cause\":")?;
        write_safe(out, &info.waits_cause)?;
    }
    out.write_all(b",\n\"total\":")?;
    write_safe(out, &ValueJson::from(profile.total()))?;
    out.write_all(b",\n\"frames\":")?;
    write_lines(out, &frames)?;
    out.write_all(b",\n\"samples\":")?;
    write_lines(out, samples.iter().map(|(sample, _)| sample))?;
    if !profile.timestamps.is_absent() {
        let places = samples.iter().enumerate();
        let places = places.map(|(place, &(_, key))| (key, place)).collect();
        out.write_all(b",\n\"timestamps\":")?;
        write_safe(out, &TimestampsJson::of(profile, &places))?;
    }
    out.write_all(b"}\n")?;
    Ok(())
}

/// The frames that samples have, in order of text, and the place of each frame of the dictionary.
fn used_frames(profile: &Profile) -> (Vec<FrameJson<'_>>, Vec<usize>) {
    let mut used = vec![false; profile.dict.frames.len()];
    for key in profile.samples.keys() {
        for frame in profile.dict.stacks.leaf_first(key.stack) {
            used[frame.0 as usize] = true;
        }
    }
    let mut frames: Vec<(FrameJson<'_>, usize)> = (0..used.len())
        .filter(|&id| used[id])
        .map(|id| (describe(profile.dict.frame(FrameId(id as u32))), id))
        .collect();
    frames.sort_unstable();
    let mut ranks = vec![0; used.len()];
    for (rank, (_, id)) in frames.iter().enumerate() {
        ranks[*id] = rank;
    }
    (frames.into_iter().map(|(frame, _)| frame).collect(), ranks)
}

fn describe(frame: FrameRef<'_>) -> FrameJson<'_> {
    FrameJson {
        function: frame.function,
        kind: frame.kind.word(),
        system_name: frame.system_name,
        module: frame.module,
        file: frame.file,
        line: (frame.line != 0).then_some(frame.line),
        start_line: (frame.start_line != 0).then_some(frame.start_line),
        unnamed: (frame.unnamed != UnnamedReason::No).then(|| frame.unnamed.word()),
    }
}

fn write_lines<'a, T: Serialize + 'a>(
    out: &mut impl Write,
    items: impl IntoIterator<Item = &'a T>,
) -> Result<(), FormatError> {
    out.write_all(b"[")?;
    for (at, item) in items.into_iter().enumerate() {
        out.write_all(if at == 0 { b"\n" } else { b",\n" })?;
        write_safe(out, item)?;
    }
    out.write_all(b"]")?;
    Ok(())
}

fn write_safe<T: Serialize>(out: &mut impl Write, value: &T) -> Result<(), FormatError> {
    let mut serializer = serde_json::Serializer::with_formatter(&mut *out, SafeText);
    value.serialize(&mut serializer)?;
    Ok(())
}

/// Compact JSON with strings that also escape what terminals, browsers and readers might act on:
/// control and bidirectional characters, and `<`, `>`, `&`, which makes it safe inside HTML.
pub(in crate::formats) struct SafeText;

impl serde_json::ser::Formatter for SafeText {
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        out: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut plain = 0;
        for (at, found) in fragment.char_indices() {
            if is_hostile(found) || matches!(found, '<' | '>' | '&') {
                out.write_all(&fragment.as_bytes()[plain..at])?;
                for unit in found.encode_utf16(&mut [0; 2]) {
                    write!(out, "\\u{unit:04x}")?;
                }
                plain = at + found.len_utf8();
            }
        }
        out.write_all(&fragment.as_bytes()[plain..])
    }
}
