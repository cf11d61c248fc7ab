//! Reads pprof, from any writer. The bytes are untrusted: their unpacked size is bounded.

use super::messages::{Location, Profile as Message, Sample, ValueType};
use super::{COMMENT_PREFIX, STACK_END_LABEL, WITHOUT_FILE};
use crate::frame::{Frame, FrameId, FrameKind, FrameRef};
use crate::outcome::{StackEnd, UnnamedReason};
use crate::profile::{Info, Profile};
use crate::sample::{Quality, SampleKey, Value};
use crate::stack::StackId;
use crate::strings::StrId;
use flate2::read::MultiGzDecoder;
use hashbrown::{HashMap, HashSet};
use prost::Message as _;
use std::io::Read;

/// Most bytes a file may unpack to, unless the caller says otherwise. The messages take up to about
/// forty times that in memory when a file is made to hurt, two to three times when it is honest.
pub const DECODE_BYTES_MAX: u64 = 64 << 20;

/// Most frames of one stack. Deeper ones are refused: inlining lets a small file say large ones.
pub const STACK_FRAMES_MAX: usize = 8192;

/// Most frames of all stacks together, for the same reason.
pub const TOTAL_FRAMES_MAX: usize = 64 << 20;

/// Most types of the values of a sample. Go's heap has four, more than any other known writer's.
pub const TYPES_MAX: usize = 16;

/// Why bytes are not a profile.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The compression is damaged.
    #[error("failed to unpack pprof")]
    Unpack(#[source] std::io::Error),
    /// It unpacks to more than the limit.
    #[error("failed to unpack pprof: more than {limit} bytes")]
    TooLarge {
        /// The limit in bytes.
        limit: u64,
    },
    /// Not protocol buffers of this schema.
    #[error("failed to decode pprof")]
    Decode(#[source] prost::DecodeError),
    /// An id or index points nowhere.
    #[error("failed to decode pprof: there is no {what} `{id}`")]
    Missing {
        /// What it should point to.
        what: &'static str,
        /// The id or index.
        id: i128,
    },
    /// Values that do not belong to the sample types, or negative ones, as in a difference of two
    /// profiles.
    #[error("failed to decode pprof: sample {sample} has {what}")]
    Sample {
        /// 0-based number of the sample.
        sample: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// No type, or more than [`TYPES_MAX`].
    #[error("failed to decode pprof: it has {types} sample types; 1 to {TYPES_MAX} are allowed")]
    Types {
        /// How many.
        types: usize,
    },
    /// Over [`STACK_FRAMES_MAX`] or [`TOTAL_FRAMES_MAX`].
    #[error("failed to decode pprof: sample {sample} has too many frames")]
    TooManyFrames {
        /// 0-based number of the sample.
        sample: usize,
    },
}

/// Decodes a pprof file, packed or not, of at most `limit` bytes unpacked.
///
/// In a foreign profile, the value type with unit `count` (or the type `samples`) is the count, and
/// the default type, or else the last, is the weight; if there is only one, it is both.
///
/// # Errors
/// When the bytes are damaged, inconsistent, or over a limit.
pub fn decode(bytes: &[u8], limit: u64) -> Result<Profile, DecodeError> {
    let message = message(bytes, limit)?;
    let mut reader = Reader::new(&message)?;
    let (count_at, weight_at) = reader.read_types()?;
    let count = |sample: &Sample, number| at(sample, number, count_at);
    let mut profile = reader.read(weight_at, count, false)?;
    if profile.info.quality == Quality::default() {
        profile.info.quality.taken = profile.total().count;
    }
    Ok(profile)
}

/// What the values of a profile are: a name and a unit, such as `alloc_space` and `bytes`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TypeName {
    /// What is counted.
    pub name: String,
    /// Its unit.
    pub unit: String,
}

/// The samples of one of the types of a file.
pub struct Typed {
    /// What its weights are.
    pub sample_type: TypeName,
    /// What a sample was taken for each [`Info::period`] of; empty where the file does not say.
    pub period_type: TypeName,
    /// Its samples, without those of weight 0.
    pub profile: Profile,
}

/// A pprof file whose types are read one by one: each has a profile of its own, which may take much
/// memory.
pub struct Types(Message);

impl Types {
    /// Decodes a file, packed or not, of at most `limit` bytes unpacked.
    ///
    /// # Errors
    /// When the bytes are damaged or over the limit, or there are too many types.
    pub fn decode(bytes: &[u8], limit: u64) -> Result<Types, DecodeError> {
        Types::new(message(bytes, limit)?)
    }

    /// The types of a file that is decoded already.
    ///
    /// # Errors
    /// When it has none, or more than [`TYPES_MAX`].
    pub fn new(message: Message) -> Result<Types, DecodeError> {
        let types = message.sample_type.len();
        match types {
            1..=TYPES_MAX => Ok(Types(message)),
            _ => Err(DecodeError::Types { types }),
        }
    }

    /// How many there are, at least 1.
    pub fn count(&self) -> usize {
        self.0.sample_type.len()
    }

    /// The samples of the type with this place.
    ///
    /// The count of a sample is the value of the nearest type before its own with the unit `count`,
    /// as writers order them (`alloc_objects`, `alloc_space`), or else its weight in periods, at
    /// least 1.
    ///
    /// # Errors
    /// When the file is inconsistent or over a limit, or has no type there.
    pub fn read(&self, place: usize) -> Result<Typed, DecodeError> {
        let message = &self.0;
        let mut reader = Reader::new(message)?;
        let named = |of: &ValueType| {
            Ok::<_, DecodeError>(TypeName {
                name: reader.string(of.r#type)?.to_owned(),
                unit: reader.string(of.unit)?.to_owned(),
            })
        };
        let before = message.sample_type.iter().take(place + 1).map(named);
        let mut names = before.collect::<Result<Vec<_>, _>>()?;
        let count_at = names.iter().rposition(|of| of.unit == "count");
        let sample_type = match names.pop() {
            Some(own) if names.len() == place => own,
            _ => {
                return Err(DecodeError::Missing {
                    what: "sample type",
                    id: place as i128,
                });
            }
        };
        let period_type = message.period_type.as_ref().map(named).transpose()?;
        let period_type = period_type.unwrap_or_default();
        let period = match period_type == sample_type {
            true => message.period.try_into().unwrap_or(0),
            false => 0,
        };
        reader.profile.info = Info {
            start_unix_ns: message.time_nanos,
            duration_ns: message.duration_nanos.try_into().unwrap_or(0),
            unit: sample_type.unit.clone(),
            event: sample_type.name.clone(),
            period,
            ..Info::default()
        };
        let count = |sample: &Sample, number| match count_at {
            Some(count_at) => at(sample, number, count_at),
            None => {
                let weight = at(sample, number, place)?;
                let taken = weight.checked_div(period).unwrap_or(1);
                Ok(taken.max(u64::from(weight > 0)))
            }
        };
        Ok(Typed {
            profile: reader.read(place, count, true)?,
            sample_type,
            period_type,
        })
    }
}

/// A value of a sample.
fn at(sample: &Sample, number: usize, place: usize) -> Result<u64, DecodeError> {
    let wrong = |what| DecodeError::Sample {
        sample: number,
        what,
    };
    let value = sample.value.get(place);
    let value = value.ok_or_else(|| wrong("another number of values than there are types"))?;
    u64::try_from(*value).map_err(|_| wrong("a negative value"))
}

fn message(bytes: &[u8], limit: u64) -> Result<Message, DecodeError> {
    let message = if bytes.starts_with(&[0x1f, 0x8b]) {
        let mut unpacked = Vec::new();
        let mut reader = MultiGzDecoder::new(bytes).take(limit.saturating_add(1));
        reader
            .read_to_end(&mut unpacked)
            .map_err(DecodeError::Unpack)?;
        check_size(unpacked.len(), limit)?;
        Message::decode(unpacked.as_slice())
    } else {
        check_size(bytes.len(), limit)?;
        Message::decode(bytes)
    };
    message.map_err(DecodeError::Decode)
}

fn check_size(len: usize, limit: u64) -> Result<(), DecodeError> {
    if len as u64 > limit {
        Err(DecodeError::TooLarge { limit })
    } else {
        Ok(())
    }
}

struct Reader<'m> {
    message: &'m Message,
    profile: Profile,
    /// Mappings according to our own comments: their kind, and whether their file name is made up.
    kinds: HashMap<u64, (FrameKind, bool)>,
    mappings: HashMap<u64, Module>,
    /// Functions without a symbol according to our own comments.
    reasons: HashMap<u64, UnnamedReason>,
    /// Name, system name and file by function id, as indices of the message's strings, and the
    /// first line.
    functions: HashMap<u64, ([i64; 3], u32)>,
    /// Ids of the message's strings in the profile, as they are asked for. A string may be nearly
    /// as long as the file and a reference to it takes two bytes, so each is looked up by its text
    /// once.
    strings: Vec<Option<StrId>>,
    /// Frames by location id, root first.
    locations: HashMap<u64, Vec<FrameId>>,
    /// The frame of locations without a line by file and kind of their mapping, of which it is
    /// made: mappings of a few bytes each may all name the same long file.
    unnamed: HashMap<(Option<i64>, FrameKind), FrameId>,
}

/// What a location has from its mapping.
struct Module {
    /// Its file as an index of the message's strings; `None` where it has none.
    file: Option<i64>,
    kind: FrameKind,
}

impl<'m> Reader<'m> {
    fn new(message: &'m Message) -> Result<Reader<'m>, DecodeError> {
        let mut reader = Reader {
            message,
            profile: Profile::default(),
            kinds: HashMap::new(),
            mappings: HashMap::new(),
            reasons: HashMap::new(),
            functions: HashMap::new(),
            strings: vec![None; message.string_table.len()],
            locations: HashMap::new(),
            unnamed: HashMap::new(),
        };
        // Locations may be of no mapping.
        let none = Module {
            file: None,
            kind: FrameKind::Native,
        };
        reader.mappings.insert(0, none);
        reader.read_comments()?;
        for mapping in &message.mapping {
            let file = reader.string(mapping.filename)?;
            let known = reader.kinds.get(&mapping.id).copied();
            let (kind, without_file) = known.unwrap_or_else(|| (guess_kind(file), false));
            let module = Module {
                file: (!without_file).then_some(mapping.filename),
                kind,
            };
            reader.mappings.insert(mapping.id, module);
        }
        for function in &message.function {
            let names = [function.name, function.system_name, function.filename];
            for index in names {
                reader.string(index)?;
            }
            let start_line = function.start_line.try_into().unwrap_or(0);
            reader.functions.insert(function.id, (names, start_line));
        }
        for location in &message.location {
            let frames = reader.frames(location)?;
            reader.locations.insert(location.id, frames);
        }
        Ok(reader)
    }

    /// Adds all samples, with the value at `weight_at` as their weight.
    fn read(
        mut self,
        weight_at: usize,
        count: impl Fn(&Sample, usize) -> Result<u64, DecodeError>,
        skip_empty: bool,
    ) -> Result<Profile, DecodeError> {
        let mut frames_left = TOTAL_FRAMES_MAX;
        for (number, sample) in self.message.sample.iter().enumerate() {
            let value = Value {
                count: count(sample, number)?,
                weight: at(sample, number, weight_at)?,
            };
            if skip_empty && value.weight == 0 {
                continue;
            }
            let stack = self.stack(number, sample, &mut frames_left)?;
            let (labels, end) = self.labels(sample)?;
            self.profile.add(SampleKey { labels, stack, end }, value);
        }
        Ok(self.profile)
    }

    fn string(&self, index: i64) -> Result<&'m str, DecodeError> {
        let missing = DecodeError::Missing {
            what: "string",
            id: index.into(),
        };
        let table = &self.message.string_table;
        match usize::try_from(index).ok().and_then(|at| table.get(at)) {
            Some(text) => Ok(text),
            // A writer without any text may leave the table away.
            None if index == 0 => Ok(""),
            None => Err(missing),
        }
    }

    /// The id of one of the message's strings in the profile.
    fn intern(&mut self, index: i64) -> Result<StrId, DecodeError> {
        let text = self.string(index)?;
        let slot = usize::try_from(index).ok();
        let Some(slot) = slot.and_then(|at| self.strings.get_mut(at)) else {
            return Ok(StrId::EMPTY);
        };
        Ok(*slot.get_or_insert_with(|| self.profile.dict.strings.intern(text)))
    }

    fn read_comments(&mut self) -> Result<(), DecodeError> {
        let mut read = HashSet::new();
        for &comment in &self.message.comment {
            // Reading it again would say the same.
            if !read.insert(comment) {
                continue;
            }
            let Some(text) = self.string(comment)?.strip_prefix(COMMENT_PREFIX) else {
                continue;
            };
            if let Some(event) = text.strip_prefix("event: ") {
                self.profile.info.event = event.to_owned();
            } else if let Some(pairs) = text.strip_prefix("quality: ") {
                self.profile.info.quality = read_quality(pairs);
            } else if let Some(pairs) = text.strip_prefix("mappings: ") {
                self.read_kinds(pairs);
            } else if let Some(pairs) = text.strip_prefix("unnamed: ") {
                self.read_reasons(pairs);
            }
        }
        Ok(())
    }

    fn read_kinds(&mut self, pairs: &str) {
        for (id, kind) in pairs.split(' ').filter_map(|pair| pair.split_once('=')) {
            let (word, without_file) = kind
                .strip_suffix(WITHOUT_FILE)
                .map_or((kind, false), |word| (word, true));
            let kind = FrameKind::ALL.into_iter().find(|kind| kind.word() == word);
            if let (Ok(id), Some(kind)) = (id.parse(), kind) {
                self.kinds.insert(id, (kind, without_file));
            }
        }
    }

    fn read_reasons(&mut self, pairs: &str) {
        for (id, word) in pairs.split(' ').filter_map(|pair| pair.split_once('=')) {
            let reason = UnnamedReason::ALL
                .iter()
                .find(|reason| reason.word() == word);
            if let (Ok(id), Some(&reason)) = (id.parse(), reason) {
                self.reasons.insert(id, reason);
            }
        }
    }

    /// Fills in what the profile is of; returns where count and weight stand among the values.
    fn read_types(&mut self) -> Result<(usize, usize), DecodeError> {
        let names = |of: &ValueType| Ok((self.string(of.r#type)?, self.string(of.unit)?));
        let types: Vec<(&str, &str)> = self
            .message
            .sample_type
            .iter()
            .map(names)
            .collect::<Result<_, DecodeError>>()?;
        let Some(last) = types.len().checked_sub(1) else {
            return Err(DecodeError::Missing {
                what: "sample type",
                id: 0,
            });
        };
        let default = self.string(self.message.default_sample_type)?;
        let count_at = types
            .iter()
            .position(|&(name, unit)| name == "samples" || unit == "count")
            .unwrap_or(last);
        // Each string is compared once, as it is in `strings`.
        let mut compared = HashSet::new();
        let mut is_default = |of: &ValueType, name: &str| {
            !default.is_empty() && compared.insert(of.r#type) && name == default
        };
        let weight_at = types
            .iter()
            .zip(&self.message.sample_type)
            .position(|(&(name, _), of)| is_default(of, name))
            .unwrap_or(last);
        let (name, unit) = types[weight_at];
        self.profile.info = Info {
            start_unix_ns: self.message.time_nanos,
            duration_ns: self.message.duration_nanos.try_into().unwrap_or(0),
            unit: if (name, unit) == ("weight", "count") {
                String::new()
            } else {
                unit.to_owned()
            },
            period: self.message.period.try_into().unwrap_or(0),
            ..std::mem::take(&mut self.profile.info)
        };
        Ok((count_at, weight_at))
    }

    /// The frames of a location, root first.
    fn frames(&mut self, location: &Location) -> Result<Vec<FrameId>, DecodeError> {
        let id = location.mapping_id;
        let missing = DecodeError::Missing {
            what: "mapping",
            id: id.into(),
        };
        let Module { file: module, kind } = *self.mappings.get(&id).ok_or(missing)?;
        if location.line.is_empty() {
            return Ok(vec![self.unnamed(module, kind)?]);
        }
        let last = location.line.len() - 1;
        let mut frames = Vec::with_capacity(location.line.len());
        for (at, line) in location.line.iter().enumerate().rev() {
            let id = line.function_id;
            let missing = DecodeError::Missing {
                what: "function",
                id: id.into(),
            };
            let &(names, start_line) = self.functions.get(&id).ok_or(missing)?;
            let [name, system_name, file] = names;
            // Some writers fill in one of the two.
            let function = match (self.string(name)?, self.string(system_name)?) {
                ("", "") => self.profile.dict.strings.intern("[unknown]"),
                ("", _) => self.intern(system_name)?,
                _ => self.intern(name)?,
            };
            let system_name = match self.intern(system_name)? {
                same if same == function => StrId::EMPTY,
                other => other,
            };
            let frame = Frame {
                kind: if at == last { kind } else { FrameKind::Inlined },
                unnamed: self.reasons.get(&id).copied().unwrap_or_default(),
                function,
                system_name,
                module: module.map_or(Ok(StrId::EMPTY), |module| self.intern(module))?,
                file: self.intern(file)?,
                line: line.line.try_into().unwrap_or(0),
                start_line,
            };
            frames.push(self.profile.dict.frames.intern(frame));
        }
        Ok(frames)
    }

    /// The frame of locations that have no line, as it stands for all of a file and kind.
    fn unnamed(&mut self, file: Option<i64>, kind: FrameKind) -> Result<FrameId, DecodeError> {
        if let Some(&frame) = self.unnamed.get(&(file, kind)) {
            return Ok(frame);
        }
        let module = file.map_or(Ok(""), |file| self.string(file))?;
        let function = match module {
            "" => "[unknown]".to_owned(),
            module if module.starts_with('[') => module.to_owned(),
            module => format!("[{}]", module.rsplit('/').next().unwrap_or(module)),
        };
        let frame = self.profile.dict.intern_frame(FrameRef {
            kind,
            unnamed: UnnamedReason::NoSymbols,
            function: &function,
            module,
            ..FrameRef::default()
        });
        self.unnamed.insert((file, kind), frame);
        Ok(frame)
    }

    fn stack(
        &mut self,
        number: usize,
        sample: &Sample,
        frames_left: &mut usize,
    ) -> Result<StackId, DecodeError> {
        let mut stack = StackId::EMPTY;
        let mut depth = 0;
        for id in sample.location_id.iter().rev() {
            let frames = self.locations.get(id);
            let missing = DecodeError::Missing {
                what: "location",
                id: (*id).into(),
            };
            let frames = frames.ok_or(missing)?;
            depth += frames.len();
            if depth > STACK_FRAMES_MAX.min(*frames_left) {
                return Err(DecodeError::TooManyFrames { sample: number });
            }
            for &frame in frames {
                stack = self.profile.dict.stacks.child(stack, frame);
            }
        }
        *frames_left -= depth;
        Ok(stack)
    }

    fn labels(&mut self, sample: &Sample) -> Result<(crate::LabelSetId, StackEnd), DecodeError> {
        let mut end = StackEnd::Complete;
        let mut pairs = Vec::with_capacity(sample.label.len());
        for label in &sample.label {
            let (key, text) = (self.string(label.key)?, self.string(label.str)?);
            if key == STACK_END_LABEL {
                let known = StackEnd::ALL.iter().find(|end| end.word() == text);
                end = known.copied().unwrap_or(StackEnd::Unresolved);
            } else if !text.is_empty() {
                pairs.push((self.intern(label.key)?, self.intern(label.str)?));
            } else if label.num != 0 {
                let key = self.intern(label.key)?;
                let number = self.profile.dict.strings.intern(&label.num.to_string());
                pairs.push((key, number));
            }
        }
        Ok((self.profile.dict.label_sets.intern(&mut pairs), end))
    }
}

/// What a mapping without a comment of ours holds.
fn guess_kind(file: &str) -> FrameKind {
    match file {
        "[kernel]" | "[kernel.kallsyms]" | "[guest.kernel.kallsyms]" => FrameKind::Kernel,
        "[jit]" => FrameKind::Jit,
        _ => FrameKind::Native,
    }
}

fn read_quality(pairs: &str) -> Quality {
    let mut quality = Quality::default();
    for (name, count) in pairs.split(' ').filter_map(|pair| pair.split_once('=')) {
        let Some(field) = quality.field_mut(name) else {
            continue;
        };
        *field = count.parse().unwrap_or(0);
    }
    quality
}

#[cfg(test)]
mod tests {
    use super::super::messages::{Function, Label, Line, Mapping};
    use super::*;

    /// Without that this does not end in minutes.
    #[test]
    fn a_long_string_is_looked_up_once_however_often_it_is_referred_to() {
        const TIMES: u64 = 50_000;
        let long = "x".repeat(1 << 20);
        let text = [
            "".to_owned(),
            long.clone(),
            format!("{COMMENT_PREFIX}event: {long}"),
        ];
        let location = |id: u64| Location {
            id,
            // Each of a mapping of its own, all of the same file.
            mapping_id: id,
            line: match id % 2 {
                0 => Vec::new(),
                _ => vec![Line {
                    function_id: 1,
                    line: id as i64,
                }],
            },
            ..Location::default()
        };
        let mapping = |id: u64| Mapping {
            id,
            filename: 1,
            ..Mapping::default()
        };
        let label = Label {
            key: 1,
            str: 1,
            num: 0,
        };
        let sample = |id: u64| Sample {
            location_id: vec![id],
            value: vec![1],
            label: vec![label],
        };
        let message = Message {
            sample_type: vec![ValueType { r#type: 1, unit: 1 }],
            sample: (1..=TIMES).map(sample).collect(),
            mapping: (1..=TIMES).map(mapping).collect(),
            location: (1..=TIMES).map(location).collect(),
            function: vec![Function {
                id: 1,
                name: 1,
                system_name: 1,
                filename: 1,
                start_line: 1,
            }],
            string_table: text.to_vec(),
            comment: vec![2; TIMES as usize],
            ..Message::default()
        };
        let count = |sample: &Sample, number| at(sample, number, 0);
        let reader = Reader::new(&message).unwrap();
        let profile = reader.read(0, count, false).unwrap();
        assert_eq!(profile.info.event, long);
        // One for all locations without a line.
        assert_eq!(profile.dict.frames.len() as u64, TIMES / 2 + 1);
        assert_eq!(profile.total().count, TIMES);
    }
}
