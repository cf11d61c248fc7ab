//! Writes pprof.

use super::messages::{
    Function, Label, Line, Location, Mapping, Profile as Message, Sample, ValueType,
};
use super::{COMMENT_PREFIX, STACK_END_LABEL, WITHOUT_FILE, is_inlined_into};
use crate::formats::{Format, FormatError, no_frames, quality_line};
use crate::frame::{FrameKind, FrameRef};
use crate::outcome::{StackEnd, UnnamedReason};
use crate::profile::Profile;
use crate::sample::{Quality, SampleKey, Value};
use crate::unit::is_time;
use flate2::Compression;
use flate2::write::GzEncoder;
use hashbrown::HashMap;
use prost::Message as _;
use std::collections::BTreeMap;
use std::io::Write;

/// Writes the profile.
///
/// # Errors
/// When `out` fails, or the values together are beyond 2⁶³ − 1: the format has signed numbers, and
/// readers add them up as such.
pub fn write(profile: &Profile, out: &mut impl Write) -> Result<(), FormatError> {
    let bytes = checked(profile)?.encode_to_vec();
    let mut gzip = GzEncoder::new(out, Compression::default());
    gzip.write_all(&bytes)?;
    gzip.finish()?;
    Ok(())
}

/// The profile as a message with weights alone, not compressed: for readers that look at the first
/// value of a sample, whichever it is.
///
/// # Errors
/// When the values together are beyond 2⁶³ − 1.
pub fn weights(profile: &Profile) -> Result<Message, FormatError> {
    let mut message = checked(profile)?;
    message.sample_type.remove(0);
    for sample in &mut message.sample {
        sample.value.remove(0);
    }
    Ok(message)
}

/// The message, if its readers can add up its values.
fn checked(profile: &Profile) -> Result<Message, FormatError> {
    let total = profile.total();
    if i64::try_from(total.weight.max(total.count)).is_err() {
        return Err(FormatError::TotalTooLarge {
            format: Format::Pprof,
        });
    }
    Ok(build(profile))
}

#[derive(Default)]
struct Builder<'p> {
    message: Message,
    strings: HashMap<String, i64>,
    mappings: HashMap<(&'p str, FrameKind), u64>,
    /// By name, system name and file, why there is no symbol, and the first line.
    functions: HashMap<([&'p str; 3], UnnamedReason, u32), u64>,
    /// By mapping and lines.
    locations: HashMap<(u64, Vec<(u64, i64)>), u64>,
}

fn build(profile: &Profile) -> Message {
    let mut builder = Builder::default();
    builder.string("");
    let info = &profile.info;
    let count = ValueType {
        r#type: builder.string("samples"),
        unit: builder.string("count"),
    };
    let weight = match info.unit.as_str() {
        unit if is_time(unit) && info.is_waiting() => ("off_cpu", unit),
        unit if info.is_cpu_time() => ("cpu", unit),
        unit if is_time(unit) => (info.event.as_str(), unit),
        "" => ("weight", "count"),
        // The default type is found by its name, which must not be that of the count.
        "samples" => ("weight", "samples"),
        unit => (unit, unit),
    };
    let weight = ValueType {
        r#type: builder.string(weight.0),
        unit: builder.string(weight.1),
    };
    builder.message.sample_type = vec![count, weight];
    builder.message.default_sample_type = weight.r#type;
    builder.message.period_type = Some(weight);
    builder.message.period = signed(info.period);
    builder.message.time_nanos = info.start_unix_ns;
    builder.message.duration_nanos = signed(info.duration_ns);

    let samples = profile.sorted();
    if let Some(module) = main_module(profile, &samples) {
        builder.mapping(module, FrameKind::Native);
    }
    for (key, value) in samples {
        let mut frames: Vec<FrameRef<'_>> = profile
            .dict
            .stacks
            .leaf_first(key.stack)
            .map(|id| profile.dict.frame(id))
            .collect();
        if frames.is_empty() {
            frames.push(no_frames());
        }
        let mut location_id = Vec::with_capacity(frames.len());
        for group in frames.chunk_by(is_inlined_into) {
            location_id.push(builder.location(group));
        }
        let mut label = Vec::new();
        for (key, value) in profile.dict.labels(key.labels) {
            if key != STACK_END_LABEL {
                label.push(builder.label(key, value));
            }
        }
        if key.end != StackEnd::Complete {
            label.push(builder.label(STACK_END_LABEL, key.end.word()));
        }
        let value = vec![signed(value.count), signed(value.weight)];
        builder.message.sample.push(Sample {
            location_id,
            value,
            label,
        });
    }

    builder.comment(&quality_line(info));
    if !info.event.is_empty() {
        builder.comment(&format!("{COMMENT_PREFIX}event: {}", info.event));
    }
    builder.comment(&format!(
        "{COMMENT_PREFIX}quality: {}",
        quality_text(&info.quality)
    ));
    builder.comment_mappings();
    builder.comment_unnamed();
    builder.comment_first_lines();
    builder.message
}

/// The program that most samples are of. Readers take the first mapping for the main binary, and
/// name the profile after it.
fn main_module<'p>(profile: &'p Profile, samples: &[(SampleKey, Value)]) -> Option<&'p str> {
    let mut counts: BTreeMap<&'p str, u64> = BTreeMap::new();
    for (key, value) in samples {
        let frames = profile.dict.stacks.leaf_first(key.stack);
        let frames = frames.map(|id| profile.dict.frame(id));
        // Not what it was linked with, or the kernel lends.
        let is_program = |frame: &FrameRef<'_>| {
            let module = frame.module;
            frame.kind == FrameKind::Native
                && !module.is_empty()
                && !module.starts_with('[')
                && !module.contains(".so")
        };
        if let Some(outermost) = frames.filter(is_program).last() {
            let count = counts.entry(outermost.module).or_default();
            *count = count.saturating_add(value.count);
        }
    }
    // The first by name of those with as many.
    let most = counts.into_iter().rev().max_by_key(|&(_, count)| count);
    most.map(|(module, _)| module)
}

fn quality_text(quality: &Quality) -> String {
    let fields = Quality::FIELDS.iter().zip(quality.numbers());
    let pairs: Vec<String> = fields
        .map(|(name, count)| format!("{name}={count}"))
        .collect();
    pairs.join(" ")
}

impl<'p> Builder<'p> {
    fn string(&mut self, text: &str) -> i64 {
        if let Some(&known) = self.strings.get(text) {
            return known;
        }
        let id = self.message.string_table.len() as i64;
        self.message.string_table.push(text.to_owned());
        self.strings.insert(text.to_owned(), id);
        id
    }

    fn label(&mut self, key: &str, value: &str) -> Label {
        Label {
            key: self.string(key),
            str: self.string(value),
            num: 0,
        }
    }

    fn comment(&mut self, text: &str) {
        let comment = self.string(text);
        self.message.comment.push(comment);
    }

    /// The location of frames, leaf first, of which all but the last are inlined into the last.
    fn location(&mut self, group: &[FrameRef<'p>]) -> u64 {
        let Some(caller) = group.last() else { return 0 };
        let mapping_id = self.mapping(caller.module, caller.kind);
        let lines: Vec<(u64, i64)> = group
            .iter()
            .map(|frame| (self.function(frame), i64::from(frame.line)))
            .collect();
        if let Some(at) = (mapping_id as usize).checked_sub(1) {
            let mapping = &mut self.message.mapping[at];
            mapping.has_filenames |= group.iter().any(|frame| !frame.file.is_empty());
            mapping.has_line_numbers |= group.iter().any(|frame| frame.line != 0);
            mapping.has_inline_frames |= group.len() > 1;
        }
        let id = self.locations.len() as u64 + 1;
        *self
            .locations
            .entry((mapping_id, lines))
            .or_insert_with_key(|(mapping_id, lines)| {
                let line = lines
                    .iter()
                    .map(|&(function_id, line)| Line { function_id, line })
                    .collect();
                let mapping_id = *mapping_id;
                self.message.location.push(Location {
                    id,
                    mapping_id,
                    address: 0,
                    line,
                });
                id
            })
    }

    fn mapping(&mut self, module: &'p str, kind: FrameKind) -> u64 {
        if module.is_empty() && kind == FrameKind::Native {
            return 0;
        }
        if let Some(&known) = self.mappings.get(&(module, kind)) {
            return known;
        }
        let filename = if module.is_empty() {
            self.string(&format!("[{}]", kind.word()))
        } else {
            self.string(module)
        };
        let id = self.message.mapping.len() as u64 + 1;
        self.message.mapping.push(Mapping {
            id,
            filename,
            has_functions: true,
            ..Mapping::default()
        });
        self.mappings.insert((module, kind), id);
        id
    }

    fn function(&mut self, frame: &FrameRef<'p>) -> u64 {
        // Empty if it equals the name. If both fields are equal, `go tool pprof` tries to make the
        // name readable and cuts what is in `<>` and `()` out of it: `<Vec<T> as Clone>::clone`
        // would become `::clone`.
        let texts = [frame.function, frame.system_name, frame.file];
        let known = (texts, frame.unnamed, frame.start_line);
        if let Some(&known) = self.functions.get(&known) {
            return known;
        }
        let id = self.message.function.len() as u64 + 1;
        let [name, system_name, filename] = texts.map(|text| self.string(text));
        let function = Function {
            id,
            name,
            system_name,
            filename,
            start_line: frame.start_line.into(),
        };
        self.message.function.push(function);
        self.functions.insert(known, id);
        id
    }

    fn comment_unnamed(&mut self) {
        let functions = self.functions.iter();
        let mut unnamed: Vec<_> = functions
            .map(|(&(_, unnamed, _), &id)| (id, unnamed))
            .filter(|&(_, unnamed)| unnamed != UnnamedReason::No)
            .collect();
        unnamed.sort_unstable();
        let pairs: Vec<String> = unnamed
            .into_iter()
            .map(|(id, unnamed)| format!("{id}={}", unnamed.word()))
            .collect();
        if !pairs.is_empty() {
            self.comment(&format!("{COMMENT_PREFIX}unnamed: {}", pairs.join(" ")));
        }
    }

    /// Says how many functions have a first line, where not all have one.
    fn comment_first_lines(&mut self) {
        let functions = self.message.function.len();
        let starts = self.message.function.iter();
        let known = starts.filter(|function| function.start_line != 0).count();
        if known < functions {
            self.comment(&format!(
                "{COMMENT_PREFIX}first_lines: known of {known} of {functions} functions"
            ));
        }
    }

    fn comment_mappings(&mut self) {
        let mut mappings: Vec<_> = self
            .mappings
            .iter()
            .map(|(&(module, kind), &id)| (id, module, kind))
            .collect();
        mappings.sort_unstable_by_key(|&(id, ..)| id);
        let kinds: Vec<String> = mappings
            .into_iter()
            .filter(|&(_, _, kind)| kind != FrameKind::Native)
            .map(|(id, module, kind)| {
                let star = if module.is_empty() { WITHOUT_FILE } else { "" };
                format!("{id}={}{star}", kind.word())
            })
            .collect();
        if !kinds.is_empty() {
            self.comment(&format!("{COMMENT_PREFIX}mappings: {}", kinds.join(" ")));
        }
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
