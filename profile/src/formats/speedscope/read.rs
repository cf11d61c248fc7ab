//! Reads the JSON of speedscope, from any writer: sampled and evented profiles.
//!
//! Frames have a name, a file and a line, but no kind. If the unit is a time, each sample and each
//! interval between two events has a time, counted from the profile's own zero; except in files of
//! ours, where equal stacks are grouped. An interval between events becomes one sample with its
//! length as weight. Several profiles are read together if their units are equal, each with its
//! name as the label [`LABEL`].

use super::EXPORTER;
use crate::formats::{Import, Known};
use crate::frame::{FrameId, FrameKind, FrameRef};
use crate::labels::LabelSetId;
use crate::outcome::{StackEnd, UnnamedReason};
use crate::profile::Profile;
use crate::sample::{SampleKey, Value};
use crate::stack::StackId;
use crate::timestamps::{Timestamp, Timestamps};
use serde::Deserialize;

/// Label that distinguishes the profiles of one file.
pub const LABEL: &str = "profile";

/// Most frames of one stack.
pub const STACK_FRAMES_MAX: usize = 8_192;

/// Most profiles that an error names.
pub const PROFILES_NAMED: usize = 10;

/// Most frames of all stacks together: a number is two bytes of a file, and a node of a stack many
/// more.
const TOTAL_FRAMES_MAX: usize = 64 << 20;

/// Why JSON is no profile of speedscope.
#[derive(Debug, thiserror::Error)]
pub enum SpeedscopeError {
    /// It is no JSON, or lacks a key.
    #[error("failed to parse speedscope JSON")]
    Parse(#[from] serde_json::Error),
    /// Its list of profiles is empty.
    #[error("failed to read speedscope JSON: its list `profiles` is empty")]
    NoProfile,
    /// It has no profile with this number.
    #[error("failed to read speedscope JSON: there is no profile `{asked}`: {names}")]
    Which {
        /// 1-based.
        asked: usize,
        /// Names of the profiles that it has.
        names: String,
    },
    /// Profiles that do not add up.
    #[error(
        "failed to read speedscope JSON: its profiles have different units\nchoose one with --profile N: {names}"
    )]
    Units {
        /// Names of the profiles that it has.
        names: String,
    },
    /// A unit that the format does not have.
    #[error("failed to read speedscope JSON: there is no unit `{unit}`")]
    Unit {
        /// As it stands.
        unit: String,
    },
    /// Stack by stack: an index, a number, a length or a depth that cannot be.
    #[error("failed to read speedscope JSON: profile {profile}, {place} {at}: {what}")]
    Entry {
        /// 1-based.
        profile: usize,
        /// `sample` or `event`.
        place: &'static str,
        /// 0-based.
        at: usize,
        /// What is wrong with it.
        what: &'static str,
    },
}

#[derive(Deserialize)]
struct File {
    shared: Shared,
    profiles: Vec<Entry>,
    #[serde(default)]
    exporter: String,
}

#[derive(Deserialize)]
struct Shared {
    frames: Vec<Frame>,
}

#[derive(Deserialize)]
struct Frame {
    #[serde(default)]
    name: String,
    #[serde(default)]
    file: Option<String>,
    #[serde(default)]
    line: Option<f64>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Entry {
    Sampled(Sampled),
    Evented(Evented),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sampled {
    #[serde(default)]
    name: String,
    unit: String,
    #[serde(default)]
    start_value: f64,
    samples: Vec<Vec<usize>>,
    weights: Vec<f64>,
    /// In files of ours: the samples of each weight.
    #[serde(default)]
    #[serde(rename = "fleetprofCounts")]
    counts: Vec<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Evented {
    #[serde(default)]
    name: String,
    unit: String,
    #[serde(default)]
    start_value: f64,
    events: Vec<Event>,
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: EventKind,
    frame: usize,
    at: f64,
}

#[derive(Deserialize, PartialEq)]
enum EventKind {
    #[serde(rename = "O")]
    Open,
    #[serde(rename = "C")]
    Close,
}

impl Entry {
    fn name(&self) -> &str {
        match self {
            Entry::Sampled(sampled) => &sampled.name,
            Entry::Evented(evented) => &evented.name,
        }
    }

    fn unit(&self) -> &str {
        match self {
            Entry::Sampled(sampled) => &sampled.unit,
            Entry::Evented(evented) => &evented.unit,
        }
    }
}

/// Reads one profile of a file, 1-based, or all of them together.
///
/// # Errors
/// When it is no such file, or the profiles do not go together.
pub fn read(bytes: &[u8], which: Option<usize>) -> Result<Import, SpeedscopeError> {
    let file: File = serde_json::from_slice(bytes)?;
    let names = || names(&file.profiles);
    let chosen = match which {
        None => &file.profiles[..],
        Some(asked) => {
            let chosen = asked
                .checked_sub(1)
                .and_then(|at| file.profiles.get(at..=at));
            chosen.ok_or_else(|| SpeedscopeError::Which {
                asked,
                names: names(),
            })?
        }
    };
    let first = chosen.first().ok_or(SpeedscopeError::NoProfile)?;
    if chosen.iter().any(|other| other.unit() != first.unit()) {
        return Err(SpeedscopeError::Units { names: names() });
    }
    let scale = match first.unit() {
        // Ours are in microseconds where nanoseconds do not hold them.
        "microseconds" if file.exporter == EXPORTER => Scale {
            unit: "microseconds",
            by: 1.0,
        },
        unit => Scale::of(unit)?,
    };
    let mut reader = Reader::new(&file.shared.frames, scale, file.exporter != EXPORTER);
    let offset = which.unwrap_or(1);
    for (at, entry) in chosen.iter().enumerate() {
        let label = (file.profiles.len() > 1).then(|| match entry.name() {
            "" => format!("{}", at + offset),
            name => name.to_owned(),
        });
        reader.number = at + offset;
        reader.labels = match &label {
            Some(name) => reader.profile.dict.intern_labels([(LABEL, name.as_str())]),
            None => LabelSetId::default(),
        };
        match entry {
            Entry::Sampled(sampled) => reader.sampled(sampled)?,
            Entry::Evented(evented) => reader.evented(evented)?,
        }
    }
    Ok(reader.finish(chosen.len()))
}

/// True for the name that a frame of ours has in place of a symbol: that of its module in brackets.
/// What stands in brackets for something else than code has a name of its own, or says it in words.
fn is_made_up(name: &str) -> bool {
    let name = ["_[k]", "_[j]", "_[i]"]
        .iter()
        .find_map(|mark| name.strip_suffix(mark))
        .unwrap_or(name);
    let is_mark = [
        crate::LOST_FRAME,
        crate::OTHER_FRAME,
        "[truncated]",
        "[unknown]",
    ]
    .contains(&name);
    name.starts_with('[') && name.ends_with(']') && !name.contains(' ') && !is_mark
}

fn names(profiles: &[Entry]) -> String {
    let named = profiles.iter().enumerate().take(PROFILES_NAMED);
    let mut names: Vec<String> = named
        .map(|(at, entry)| {
            let name: String = entry.name().chars().take(60).collect();
            format!("{} is `{name}`, in {}", at + 1, entry.unit())
        })
        .collect();
    if profiles.len() > PROFILES_NAMED {
        names.push(format!("there are {}", profiles.len()));
    }
    match names.is_empty() {
        true => "there is none".to_owned(),
        false => names.join("; "),
    }
}

/// What a unit of the file is in ours.
#[derive(Clone, Copy)]
struct Scale {
    unit: &'static str,
    by: f64,
}

impl Scale {
    fn of(unit: &str) -> Result<Scale, SpeedscopeError> {
        let (unit, by) = match unit {
            "nanoseconds" => ("nanoseconds", 1.0),
            "microseconds" => ("nanoseconds", 1e3),
            "milliseconds" => ("nanoseconds", 1e6),
            "seconds" => ("nanoseconds", 1e9),
            "bytes" => ("bytes", 1.0),
            "none" => ("", 1.0),
            other => {
                let unit = other.chars().take(60).collect();
                return Err(SpeedscopeError::Unit { unit });
            }
        };
        Ok(Scale { unit, by })
    }

    fn is_time(self) -> bool {
        self.unit == "nanoseconds"
    }
}

struct Reader {
    profile: Profile,
    frames: Vec<FrameId>,
    scale: Scale,
    /// Whether samples stand in the order in which they were taken.
    in_order: bool,
    number: usize,
    labels: LabelSetId,
    frames_left: usize,
    timestamps: Vec<Timestamp>,
    end_ns: u64,
    unclosed: u64,
    rounded: u64,
}

impl Reader {
    fn new(frames: &[Frame], scale: Scale, in_order: bool) -> Reader {
        let mut profile = Profile::default();
        let intern = |frame: &Frame| {
            let file = frame.file.as_deref().unwrap_or("");
            let line = frame.line.unwrap_or(0.0);
            let synthetic = [crate::LOST_FRAME, crate::OTHER_FRAME, "[truncated]"];
            profile.dict.intern_frame(FrameRef {
                kind: match synthetic.contains(&frame.name.as_str()) {
                    true => FrameKind::Synthetic,
                    false => FrameKind::Native,
                },
                function: match frame.name.as_str() {
                    "" => "[unknown]",
                    name => name,
                },
                unnamed: match !in_order && is_made_up(&frame.name) {
                    true => UnnamedReason::NoSymbols,
                    false => UnnamedReason::No,
                },
                file,
                // What is no line becomes 0: none.
                line: line as u32,
                ..FrameRef::default()
            })
        };
        let frames = frames.iter().map(intern).collect();
        profile.info.unit = scale.unit.to_owned();
        Reader {
            profile,
            frames,
            scale,
            in_order,
            number: 0,
            labels: LabelSetId::default(),
            frames_left: TOTAL_FRAMES_MAX,
            timestamps: Vec::new(),
            end_ns: 0,
            unclosed: 0,
            rounded: 0,
        }
    }

    fn refuse<T>(
        &self,
        place: &'static str,
        at: usize,
        what: &'static str,
    ) -> Result<T, SpeedscopeError> {
        let profile = self.number;
        Err(SpeedscopeError::Entry {
            profile,
            place,
            at,
            what,
        })
    }

    fn sampled(&mut self, sampled: &Sampled) -> Result<(), SpeedscopeError> {
        if sampled.samples.len() != sampled.weights.len() {
            let at = sampled.samples.len().min(sampled.weights.len());
            return self.refuse("sample", at, "it has more or fewer weights than samples");
        }
        let mut start = 0.0;
        for (at, (stack, &weight)) in sampled.samples.iter().zip(&sampled.weights).enumerate() {
            if !weight.is_finite() || weight < 0.0 {
                return self.refuse("sample", at, "its weight is not a valid length");
            }
            if stack.len() > STACK_FRAMES_MAX.min(self.frames_left) {
                return self.refuse("sample", at, "it has too many frames");
            }
            self.frames_left -= stack.len();
            let mut id = StackId::EMPTY;
            for &index in stack {
                let Some(&frame) = self.frames.get(index) else {
                    return self.refuse("sample", at, "it has a frame that does not exist");
                };
                id = self.profile.dict.stacks.child(id, frame);
            }
            let end = start + weight;
            let count = match self.in_order {
                true => 1,
                false => sampled.counts.get(at).copied().unwrap_or(1),
            };
            self.add(id, count, sampled.start_value, start, end);
            start = end;
        }
        Ok(())
    }

    fn evented(&mut self, evented: &Evented) -> Result<(), SpeedscopeError> {
        let mut open: Vec<(usize, StackId)> = Vec::new();
        let mut before = evented.start_value;
        for (at, event) in evented.events.iter().enumerate() {
            if !event.at.is_finite() || event.at < before {
                return self.refuse("event", at, "it is earlier than the entry before it");
            }
            let stack = open.last().map_or(StackId::EMPTY, |&(_, stack)| stack);
            if event.at > before && !open.is_empty() {
                let start = evented.start_value;
                self.add(stack, 1, start, before - start, event.at - start);
            }
            before = event.at;
            let Some(&frame) = self.frames.get(event.frame) else {
                return self.refuse("event", at, "its frame does not exist");
            };
            if event.kind == EventKind::Open {
                if open.len() == STACK_FRAMES_MAX {
                    return self.refuse("event", at, "the stack has too many frames");
                }
                let stack = self.profile.dict.stacks.child(stack, frame);
                open.push((event.frame, stack));
            } else if open.pop().map(|(opened, _)| opened) != Some(event.frame) {
                return self.refuse(
                    "event",
                    at,
                    "it closes a frame that is not the innermost one",
                );
            }
        }
        self.unclosed += open.len() as u64;
        Ok(())
    }

    /// Adds what a stack took between two times, in the file's unit, since the profile's start.
    fn add(&mut self, stack: StackId, count: u64, start: f64, from: f64, to: f64) {
        let ns = |value: f64| (value * self.scale.by).round() as u64;
        // The sum of what is rounded is the rounded sum.
        let (from_ns, to_ns) = (ns(from), ns(to));
        let weight = to_ns - from_ns.min(to_ns);
        self.rounded += u64::from(weight == 0 && to > from);
        let key = SampleKey {
            labels: self.labels,
            stack,
            end: self.end_of(stack),
        };
        self.profile.add(key, Value { count, weight });
        if self.scale.is_time() && self.in_order {
            // A start that is no time, or before zero, counts as zero.
            let at_ns = ns(start).saturating_add(from_ns);
            self.end_ns = self.end_ns.max(ns(start).saturating_add(to_ns));
            self.timestamps.push(Timestamp { at_ns, key, weight });
        }
    }

    fn end_of(&self, stack: StackId) -> StackEnd {
        let root = self.profile.dict.stacks.leaf_first(stack).next();
        let root = root.map(|frame| self.profile.dict.frame(frame));
        let lost = |frame: FrameRef<'_>| {
            frame.kind == FrameKind::Synthetic && frame.function == crate::LOST_FRAME
        };
        match root.is_some_and(lost) {
            true => StackEnd::Lost,
            false => StackEnd::Complete,
        }
    }

    fn finish(mut self, profiles: usize) -> Import {
        let mut notes = Vec::new();
        if profiles > 1 {
            notes.push(format!(
                "{profiles} profiles were merged; the label `{LABEL}` has their names"
            ));
        }
        if self.unclosed > 0 {
            let count = self.unclosed;
            notes.push(format!(
                "{count} frames were never closed: their time after the last event is not known"
            ));
        }
        if self.rounded > 0 {
            let count = self.rounded;
            notes.push(format!(
                "{count} samples weigh less than half a unit and count as 0"
            ));
        }
        if !self.timestamps.is_empty() {
            self.timestamps.sort_by_key(|timestamp| timestamp.at_ns);
            let first = self.timestamps[0].at_ns;
            for timestamp in &mut self.timestamps {
                timestamp.at_ns -= first;
            }
            let start_unix_ns = i64::try_from(first).unwrap_or(i64::MAX);
            let duration_ns = self.end_ns.saturating_sub(first).max(1);
            self.profile.info.start_unix_ns = start_unix_ns;
            self.profile.info.duration_ns = duration_ns;
            self.profile.timestamps = Timestamps {
                start_unix_ns,
                duration_ns,
                dropped: 0,
                list: self.timestamps,
            };
            notes.push("times count from the profile's own start, not from a date".to_owned());
        }
        let known = match self.in_order {
            true => Known::SAMPLES,
            // Their own frames say it.
            false => Known {
                lost: false,
                ..Known::ALL
            },
        };
        Import::new(self.profile, notes)
            .count_truncated()
            .knowing(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(profiles: &str) -> String {
        format!(
            r#"{{"$schema":"https://www.speedscope.app/file-format-schema.json",
            "shared":{{"frames":[{{"name":"main","file":"a.c","line":3}},{{"name":"f"}},{{"name":""}}]}},
            "profiles":[{profiles}]}}"#
        )
    }

    const SAMPLED: &str = r#"{"type":"sampled","name":"s","unit":"milliseconds","startValue":10,"endValue":14,
        "samples":[[0,1],[0],[]],"weights":[1.5,2.5,0]}"#;
    const EVENTED: &str = r#"{"type":"evented","name":"e","unit":"milliseconds","startValue":0,"endValue":9,
        "events":[{"type":"O","frame":0,"at":1},{"type":"O","frame":1,"at":2},{"type":"C","frame":1,"at":5},
        {"type":"C","frame":0,"at":9}]}"#;

    fn shown(import: &Import) -> Vec<String> {
        let profile = &import.profile;
        let name = |key: &SampleKey| {
            let mut frames: Vec<_> = profile.dict.stacks.leaf_first(key.stack).collect();
            frames.reverse();
            let names: Vec<_> = frames
                .iter()
                .map(|&frame| profile.dict.frame(frame).function)
                .collect();
            let label = profile.dict.label(key.labels, LABEL).unwrap_or("");
            format!("{label}:{}", names.join(";"))
        };
        let list = profile.timestamps.list.iter();
        list.map(|at| format!("{} {} {}", at.at_ns, name(&at.key), at.weight))
            .collect()
    }

    #[test]
    fn samples_follow_each_other() {
        let import = read(file(SAMPLED).as_bytes(), None).unwrap();
        assert_eq!(
            shown(&import),
            ["0 :main;f 1500000", "1500000 :main 2500000", "4000000 : 0"]
        );
        let info = &import.profile.info;
        assert_eq!(
            (info.start_unix_ns, info.duration_ns, info.unit.as_str()),
            (10_000_000, 4_000_000, "nanoseconds")
        );
    }

    #[test]
    fn events_become_the_time_between_them() {
        let import = read(file(EVENTED).as_bytes(), None).unwrap();
        assert_eq!(
            shown(&import),
            [
                "0 :main 1000000",
                "1000000 :main;f 3000000",
                "4000000 :main 4000000"
            ]
        );
        assert_eq!(import.profile.total().weight, 8_000_000);
    }

    #[test]
    fn several_profiles_are_told_apart_or_one_is_taken() {
        let both = file(&format!("{SAMPLED},{EVENTED}"));
        let import = read(both.as_bytes(), None).unwrap();
        assert_eq!(import.profile.total().weight, 12_000_000);
        assert!(shown(&import).contains(&"0 e:main 1000000".to_owned()));
        assert!(import.notes[0].starts_with("2 profiles"));
        let one = read(both.as_bytes(), Some(2)).unwrap();
        assert_eq!(one.profile.total().weight, 8_000_000);
        for wrong in [0, 3] {
            let error = read(both.as_bytes(), Some(wrong)).map(|_| ()).unwrap_err();
            assert!(
                error
                    .to_string()
                    .contains("1 is `s`, in milliseconds; 2 is `e`"),
                "{error}"
            );
        }
        let mixed = file(&format!(
            "{SAMPLED},{}",
            EVENTED.replace("milliseconds", "bytes")
        ));
        let error = read(mixed.as_bytes(), None)
            .map(|_| ())
            .unwrap_err()
            .to_string();
        assert!(error.contains("--profile N"), "{error}");
    }

    #[test]
    fn damage_is_named_with_its_place() {
        for (from, to, expected) in [
            ("[0,1]", "[0,7]", "profile 1, sample 0: it has a frame"),
            (
                "[1.5,2.5,0]",
                "[1.5,2.5]",
                "sample 2: it has more or fewer weights",
            ),
            ("[1.5,2.5,0]", "[1.5,-1,0]", "sample 1: its weight"),
            ("milliseconds", "fortnights", "no unit `fortnights`"),
            ("sampled", "tabulated", "failed to parse"),
        ] {
            let damaged = file(SAMPLED).replace(from, to);
            let error = read(damaged.as_bytes(), None).map(|_| ()).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
        for (from, to, expected) in [
            (r#""at":5"#, r#""at":1"#, "event 2: it is earlier"),
            (r#""C","frame":1"#, r#""C","frame":0"#, "event 2: it closes"),
            (r#""O","frame":1"#, r#""O","frame":9"#, "event 1: its frame"),
        ] {
            let damaged = file(EVENTED).replace(from, to);
            let error = read(damaged.as_bytes(), None).map(|_| ()).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
        let none = read(file("").as_bytes(), None).map(|_| ()).unwrap_err();
        assert!(matches!(none, SpeedscopeError::NoProfile));
    }

    #[test]
    fn our_own_files_say_nothing_of_times() {
        let text = file(SAMPLED).replacen('{', "{\"exporter\":\"fleetprof\",", 1);
        let import = read(text.as_bytes(), None).unwrap();
        assert!(import.profile.timestamps.is_absent());
        assert_eq!(import.profile.total().weight, 4_000_000);
    }
}
