//! A profile of OTLP as one of pprof, which has a reader for hostile input already.
//!
//! Only what its samples refer to is copied: many small profiles of a request share large tables.

use super::super::Refusal;
use super::layout::{Fields, Layout, Read};
use super::tables::{Tables, index_of};
use crate::otlp::messages::{self, Profile};
use crate::otlp::{FRAME_TYPE, kind_of as kind};
use profile::FrameKind;
use profile::formats::pprof::messages::{
    Function, Label, Line, Location, Mapping, Profile as Pprof, Sample, ValueType,
};
use profile::formats::pprof::{STACK_END_LABEL, STACK_FRAMES_MAX, TypeName};
use std::collections::HashMap;
use std::fmt::Write;

/// Most locations of all stacks of a request, 8 bytes each: a stack takes some bytes where a sample
/// refers to it again.
pub const LOCATIONS_MAX: usize = 8 << 20;

/// Longest name of a file in what stands for a place, of which there is one for each address. Unit:
/// bytes, the most of Linux.
const FILE_NAME_BYTES_MAX: usize = 255;

/// The profile, and what its weights are. `locations_left` is what remains of [`LOCATIONS_MAX`].
///
/// # Errors
/// When something refers to nothing, counts something negative, or is over a bound.
pub fn pprof(
    profile: &Profile,
    layout: Layout,
    tables: &Tables,
    locations_left: &mut usize,
) -> Result<Pprof, Refusal> {
    let named = |of: Option<messages::ValueType>| {
        let of = of.unwrap_or_default();
        Ok::<_, Refusal>(TypeName {
            name: tables.string(index_of(of.type_strindex))?.to_owned(),
            unit: tables.string(index_of(of.unit_strindex))?.to_owned(),
        })
    };
    let of = named(profile.sample_type)?;
    let period_type = named(profile.period_type)?;
    let mut made = Made::new(tables);
    // Samples of CPU time are counts: each is a period long.
    let is_time = (of.name.as_str(), of.unit.as_str()) == ("samples", "count")
        && (period_type.name.as_str(), period_type.unit.as_str()) == ("cpu", "nanoseconds")
        && profile.period > 0;
    made.message
        .sample_type
        .push(made_type(&mut made.strings, &of));
    if is_time {
        let time = made_type(&mut made.strings, &period_type);
        made.message.sample_type.push(time);
    }
    made.message.period_type = Some(made_type(&mut made.strings, &period_type));
    made.message.period = profile.period;
    made.message.time_nanos = profile.time_unix_nano.try_into().unwrap_or(i64::MAX);
    made.message.duration_nanos = profile.duration_nano.try_into().unwrap_or(i64::MAX);
    let mut fields = Fields::default();
    for (number, bytes) in profile.samples.iter().enumerate() {
        let wrong = |what: &dyn std::fmt::Display| {
            Refusal::malformed(format!("failed to read sample {number}: {what}"))
        };
        fields.read(bytes).map_err(|error| wrong(&error))?;
        let read = fields.sample(layout);
        let read = read.ok_or_else(|| wrong(&"a value is negative or too large"))?;
        let locations = made.stack(read.stack)?;
        if locations.len() > STACK_FRAMES_MAX || locations.len() > *locations_left {
            return Err(Refusal::too_large(format!(
                "failed to read sample {number}: its stack has more than {STACK_FRAMES_MAX} \
                 locations, or all of the request have more than {LOCATIONS_MAX}"
            )));
        }
        *locations_left -= locations.len();
        let mut values = vec![read.value];
        if is_time {
            values.push(read.value.saturating_mul(profile.period));
        }
        let label = made.labels(&read)?;
        made.message.sample.push(Sample {
            location_id: locations,
            value: values,
            label,
        });
    }
    Ok(made.finish())
}

fn made_type(strings: &mut Strings, of: &TypeName) -> ValueType {
    ValueType {
        r#type: strings.index(&of.name),
        unit: strings.index(&of.unit),
    }
}

/// Strings of the profile that is made.
struct Strings {
    all: Vec<String>,
    index: HashMap<String, i64>,
}

impl Strings {
    fn index(&mut self, text: &str) -> i64 {
        if let Some(&known) = self.index.get(text) {
            return known;
        }
        let new = self.all.len() as i64;
        self.all.push(text.to_owned());
        self.index.insert(text.to_owned(), new);
        new
    }
}

struct Made<'t> {
    tables: &'t Tables,
    message: Pprof,
    strings: Strings,
    /// Strings of the tables that are in the profile: their texts are long, and compared once.
    known: HashMap<u64, i64>,
    functions: HashMap<u64, u64>,
    locations: HashMap<u64, u64>,
    /// By the index of their own and the kind of their frames: a mapping of pprof has one.
    mappings: HashMap<(u64, FrameKind), u64>,
    /// Those of places without symbols.
    unnamed: Vec<u64>,
    stacks: HashMap<u64, Vec<u64>>,
    labels: HashMap<u64, Option<(i64, i64)>>,
    kinds: HashMap<u64, Option<FrameKind>>,
}

impl<'t> Made<'t> {
    fn new(tables: &'t Tables) -> Made<'t> {
        Made {
            tables,
            message: Pprof::default(),
            strings: Strings {
                all: vec![String::new()],
                index: [(String::new(), 0)].into(),
            },
            known: HashMap::new(),
            functions: HashMap::new(),
            locations: HashMap::new(),
            mappings: HashMap::new(),
            unnamed: Vec::new(),
            stacks: HashMap::new(),
            labels: HashMap::new(),
            kinds: HashMap::new(),
        }
    }

    fn string(&mut self, index: i32) -> Result<i64, Refusal> {
        let index = index_of(index);
        if let Some(&known) = self.known.get(&index) {
            return Ok(known);
        }
        let new = self.strings.index(self.tables.string(index)?);
        self.known.insert(index, new);
        Ok(new)
    }

    /// Ids of the locations of a stack, leaf first.
    fn stack(&mut self, index: u64) -> Result<Vec<u64>, Refusal> {
        if let Some(known) = self.stacks.get(&index) {
            return Ok(known.clone());
        }
        // An empty table is one without stacks: each sample is of none.
        let stack = match index {
            0 => self.tables.stack(0).unwrap_or_default(),
            index => self.tables.stack(index)?,
        };
        if stack.location_indices.len() > STACK_FRAMES_MAX {
            return Err(Refusal::too_large(format!(
                "failed to read stack {index}: it has more than {STACK_FRAMES_MAX} locations"
            )));
        }
        let locations = stack.location_indices.into_iter();
        let ids = locations.map(|location| self.location(index_of(location)));
        let ids: Vec<u64> = ids.collect::<Result<_, _>>()?;
        self.stacks.insert(index, ids.clone());
        Ok(ids)
    }

    fn location(&mut self, index: u64) -> Result<u64, Refusal> {
        if let Some(&known) = self.locations.get(&index) {
            return Ok(known);
        }
        let found = self.tables.location(index)?;
        let mut of = FrameKind::Native;
        for &attribute in &found.attribute_indices {
            of = self.kind(index_of(attribute))?.unwrap_or(of);
        }
        let mapping = index_of(found.mapping_index);
        let mapping_id = self.mapping(mapping, of)?;
        let lines = found.lines.iter();
        let lines = lines.map(|line| {
            let function_id = self.function(index_of(line.function_index))?;
            Ok(Line {
                function_id,
                line: line.line,
            })
        });
        let mut lines: Vec<Line> = lines.collect::<Result<_, Refusal>>()?;
        if lines.is_empty() {
            lines.push(Line {
                function_id: self.place(mapping, found.address)?,
                line: 0,
            });
        }
        let id = self.message.location.len() as u64 + 1;
        self.message.location.push(Location {
            id,
            mapping_id,
            address: found.address,
            line: lines,
        });
        self.locations.insert(index, id);
        Ok(id)
    }

    /// The kind of frame that an attribute says, if it does. Attributes may be long, and many
    /// locations may refer to one.
    fn kind(&mut self, attribute: u64) -> Result<Option<FrameKind>, Refusal> {
        if let Some(&known) = self.kinds.get(&attribute) {
            return Ok(known);
        }
        let found = self.tables.attribute(attribute)?;
        let is_kind = self.tables.string(index_of(found.key_strindex))? == FRAME_TYPE;
        let value = found.value.unwrap_or_default();
        let word = self.tables.text(&value).filter(|_| is_kind);
        let of = word.map(|word| kind(&word));
        self.kinds.insert(attribute, of);
        Ok(of)
    }

    fn file(&mut self, mapping: u64) -> Result<i64, Refusal> {
        match mapping {
            0 => Ok(0),
            mapping => {
                let found = self.tables.mapping(mapping)?;
                self.string(found.filename_strindex)
            }
        }
    }

    fn mapping(&mut self, index: u64, of: FrameKind) -> Result<u64, Refusal> {
        if let Some(&known) = self.mappings.get(&(index, of)) {
            return Ok(known);
        }
        let filename = self.file(index)?;
        let id = self.message.mapping.len() as u64 + 1;
        self.message.mapping.push(Mapping {
            id,
            filename,
            ..Mapping::default()
        });
        self.mappings.insert((index, of), id);
        Ok(id)
    }

    fn function(&mut self, index: u64) -> Result<u64, Refusal> {
        if let Some(&known) = self.functions.get(&index) {
            return Ok(known);
        }
        let found = self.tables.function(index)?;
        let function = Function {
            name: self.string(found.name_strindex)?,
            system_name: self.string(found.system_name_strindex)?,
            filename: self.string(found.filename_strindex)?,
            start_line: found.start_line,
            ..Function::default()
        };
        let id = self.add(function);
        self.functions.insert(index, id);
        Ok(id)
    }

    /// What stands for a place without a symbol: its file and address.
    fn place(&mut self, mapping: u64, address: u64) -> Result<u64, Refusal> {
        let file = self.file(mapping)?;
        let file = usize::try_from(file).ok();
        let file = file.and_then(|at| self.strings.all.get(at));
        let file = file.and_then(|file| file.rsplit('/').next());
        let name = match file.unwrap_or("") {
            "" => format!("[unknown]+{address:#x}"),
            file => {
                let file = &file[..file.floor_char_boundary(FILE_NAME_BYTES_MAX)];
                format!("{file}+{address:#x}")
            }
        };
        let name = self.strings.index(&name);
        let id = self.add(Function {
            name,
            ..Function::default()
        });
        self.unnamed.push(id);
        Ok(id)
    }

    fn add(&mut self, function: Function) -> u64 {
        let id = self.message.function.len() as u64 + 1;
        self.message.function.push(Function { id, ..function });
        id
    }

    fn labels(&mut self, sample: &Read) -> Result<Vec<Label>, Refusal> {
        let mut all = Vec::with_capacity(sample.attributes.len());
        for &index in &sample.attributes {
            let pair = match self.labels.get(&index) {
                Some(&known) => known,
                None => {
                    let pair = self.label(index)?;
                    self.labels.insert(index, pair);
                    pair
                }
            };
            all.extend(pair.map(|(key, str)| Label { key, str, num: 0 }));
        }
        Ok(all)
    }

    fn label(&mut self, index: u64) -> Result<Option<(i64, i64)>, Refusal> {
        let found = self.tables.attribute(index)?;
        let key = self.tables.string(index_of(found.key_strindex))?;
        if key == STACK_END_LABEL {
            return Ok(None);
        }
        let key = self.string(found.key_strindex)?;
        let value = found.value.unwrap_or_default();
        let text = self.tables.text(&value);
        Ok(text.map(|text| (key, self.strings.index(&text))))
    }

    /// Says in comments what pprof has no fields for, in the words of its reader.
    fn finish(mut self) -> Pprof {
        let mut kinds = String::from("fleetprof mappings:");
        for (&(_, of), id) in &self.mappings {
            let file = self.message.mapping.get(*id as usize - 1);
            let without_file = file.is_some_and(|mapping| mapping.filename == 0);
            let star = if without_file { "*" } else { "" };
            // Writing to a string does not fail.
            let _ = write!(kinds, " {id}={}{star}", of.word());
        }
        let mut unnamed = String::from("fleetprof unnamed:");
        for id in &self.unnamed {
            let _ = write!(unnamed, " {id}=no_symbols");
        }
        for comment in [kinds, unnamed] {
            let index = self.strings.index(&comment);
            self.message.comment.push(index);
        }
        self.message.string_table = self.strings.all;
        self.message
    }
}
