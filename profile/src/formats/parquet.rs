//! Parquet: samples as a table, for notebooks and databases.
//!
//! A row is the samples of one stack with one set of labels, in one stretch of time. Its columns:
//!
//! | Column | Type | |
//! |---|---|---|
//! | `start_time`, `end_time` | timestamp, UTC | the stretch, as it is covered |
//! | each label | text or null | under its name; after `label.` where that is taken |
//! | `stack` | list of text | functions, root first |
//! | `stack_kind`, `stack_module`, `stack_file`, `stack_line` | lists | null where not known |
//! | `weight`, `weight_unit` | number, text | what the samples stand for, such as CPU time |
//! | `samples` | number | how many there are |
//! | `outcome` | text | `complete`, or [why not](crate::StackEnd::word) |
//!
//! The metadata has `fleetprof.event`, `fleetprof.unit`, `fleetprof.period` and
//! `fleetprof.quality`. Texts are dictionaries, pages are in gzip.
//!
//! Rows are written in groups of at most [`ROWS_MAX`] rows and [`FRAMES_MAX`] frames. A [`Writer`]
//! holds one column of one group: the ids of its frames (12 MiB at most), its encoded pages (4 MiB)
//! and the texts that occur in it. So a file may have any number of stretches of time.

use super::{Format, FormatError, Options, no_frames, quality_line};
use crate::frame::{FrameId, FrameRef};
use crate::labels::LabelSetId;
use crate::profile::{Info, Profile};
use crate::sample::{SampleKey, Value};
use ::parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use ::parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::KeyValue;
use ::parquet::file::properties::{EnabledStatistics, WriterProperties};
use ::parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use ::parquet::schema::parser::parse_message_type;
use ::parquet::schema::types::{Type, TypePtr};
use hashbrown::HashMap;
use std::collections::BTreeSet;
use std::io::Write;
use std::sync::Arc;

/// Most rows of a group. Readers read groups in parallel, and skip those of other times.
pub const ROWS_MAX: usize = 1 << 17;

/// Most frames of the stacks of a group, unless one stack alone has more. With 32 a stack it is a
/// group of 32,768 rows.
pub const FRAMES_MAX: usize = 1 << 20;

/// Most labels: each is a column, and costs its part of every group.
pub const LABELS_MAX: usize = 256;

/// Largest dictionary of a column of a group. Beyond it texts are written in full: a larger file,
/// and no other content. Unit: bytes.
const DICTIONARY_BYTES_MAX: usize = 16 << 20;

/// Cells handed to a column at a time.
const CELLS: usize = 8192;

/// Columns before those of labels.
const BEFORE: &str = "message profile {
    required int64 start_time (TIMESTAMP(MICROS, true));
    required int64 end_time (TIMESTAMP(MICROS, true));
}";

/// Columns after those of labels.
const AFTER: &str = "message profile {
    required group stack (LIST) { repeated group list { required binary element (STRING); } }
    required group stack_kind (LIST) { repeated group list { required binary element (STRING); } }
    required group stack_module (LIST) { repeated group list { optional binary element (STRING); } }
    required group stack_file (LIST) { repeated group list { optional binary element (STRING); } }
    required group stack_line (LIST) { repeated group list { optional int32 element; } }
    required int64 weight;
    required binary weight_unit (STRING);
    required int64 samples;
    required binary outcome (STRING);
}";

/// Writes the profile as one stretch of time. A column for each label that a sample has, and for
/// those of [`Options::root_labels`].
///
/// # Errors
/// As [`Writer::new`] and [`Writer::add`].
pub fn write(
    profile: &Profile,
    options: &Options,
    out: &mut (impl Write + Send),
) -> Result<(), FormatError> {
    let sets: BTreeSet<_> = profile.samples.keys().map(|key| key.labels).collect();
    let of_samples = sets
        .into_iter()
        .flat_map(|set| profile.dict.labels(set).map(|(name, _)| name));
    let asked = options.root_labels.iter().map(String::as_str);
    let labels: BTreeSet<&str> = asked
        .filter(|&name| name != "*")
        .chain(of_samples)
        .collect();
    let mut writer = Writer::new(out, labels.into_iter().map(str::to_owned).collect())?;
    writer.add(profile)?;
    writer.finish()?;
    Ok(())
}

/// Writes profiles of stretches of time to one file.
pub struct Writer<W: Write + Send> {
    file: SerializedFileWriter<W>,
    labels: Vec<String>,
    info: Info,
    total: Value,
}

impl<W: Write + Send> Writer<W> {
    /// Starts a file with a column for each of these labels; others are left out.
    ///
    /// # Errors
    /// When `out` fails or there are more than [`LABELS_MAX`].
    pub fn new(out: W, mut labels: Vec<String>) -> Result<Writer<W>, FormatError> {
        labels.sort_unstable();
        labels.dedup();
        if labels.len() > LABELS_MAX {
            return Err(FormatError::TooManyLabels {
                labels: labels.len(),
            });
        }
        let properties = WriterProperties::builder()
            .set_created_by("fleetprof".to_owned())
            .set_compression(Compression::GZIP(Default::default()))
            .set_dictionary_page_size_limit(DICTIONARY_BYTES_MAX)
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .build();
        let schema = schema(&labels).map_err(failed)?;
        let file = SerializedFileWriter::new(out, schema, Arc::new(properties)).map_err(failed)?;
        Ok(Writer {
            file,
            labels,
            info: Info::default(),
            total: Value::default(),
        })
    }

    /// Adds the samples of a stretch of time.
    ///
    /// # Errors
    /// When `out` fails, the unit is another than before, or the values of all together are beyond
    /// 2⁶³ − 1: readers add them up as signed numbers.
    pub fn add(&mut self, profile: &Profile) -> Result<(), FormatError> {
        self.info.merge(&profile.info)?;
        self.total += profile.total();
        if i64::try_from(self.total.weight.max(self.total.count)).is_err() {
            return Err(FormatError::TotalTooLarge {
                format: Format::Parquet,
            });
        }
        let samples = profile.sorted();
        let mut rest = samples.as_slice();
        while !rest.is_empty() {
            let (elements, rows) = elements(profile, rest);
            let (now, later) = rest.split_at(rows);
            rest = later;
            let mut group = Group {
                out: self.file.next_row_group().map_err(failed)?,
                profile,
                samples: now,
                elements,
            };
            group.write(&self.labels).map_err(failed)?;
            group.out.close().map_err(failed)?;
        }
        Ok(())
    }

    /// Ends the file; returns what is known of all that was added.
    ///
    /// # Errors
    /// When `out` fails.
    pub fn finish(mut self) -> Result<Info, FormatError> {
        let info = &self.info;
        for (key, value) in [
            ("fleetprof.event", info.event.clone()),
            ("fleetprof.unit", info.unit.clone()),
            ("fleetprof.period", info.period.to_string()),
            ("fleetprof.quality", quality_line(info)),
        ] {
            let pair = KeyValue::new(key.to_owned(), value);
            self.file.append_key_value_metadata(pair);
        }
        self.file.close().map_err(failed)?;
        Ok(self.info)
    }
}

fn failed(error: ParquetError) -> FormatError {
    match error {
        ParquetError::External(inner) => match inner.downcast::<std::io::Error>() {
            Ok(io) => FormatError::Io(*io),
            Err(inner) => FormatError::Parquet(ParquetError::External(inner)),
        },
        error => FormatError::Parquet(error),
    }
}

/// The names of the columns of labels.
fn columns(labels: &[String], own: &[TypePtr]) -> Vec<String> {
    let mut taken: BTreeSet<String> = own.iter().map(|field| field.name().to_owned()).collect();
    let free = |label: &String| {
        let mut name = label.clone();
        while !taken.insert(name.clone()) {
            name.insert_str(0, "label.");
        }
        name
    };
    labels.iter().map(free).collect()
}

fn schema(labels: &[String]) -> Result<TypePtr, ParquetError> {
    let mut fields = parse_message_type(BEFORE)?.get_fields().to_vec();
    let after = parse_message_type(AFTER)?;
    let own = [&fields[..], after.get_fields()].concat();
    for name in columns(labels, &own) {
        let text = Type::primitive_type_builder(&name, Physical::BYTE_ARRAY)
            .with_logical_type(Some(LogicalType::String))
            .with_repetition(Repetition::OPTIONAL);
        fields.push(Arc::new(text.build()?));
    }
    fields.extend_from_slice(after.get_fields());
    let all = Type::group_type_builder("profile").with_fields(fields);
    Ok(Arc::new(all.build()?))
}

/// An element of a list of frames.
struct Element {
    /// `None`: the stack has no frames.
    frame: Option<FrameId>,
    /// True for the root, which starts a list.
    first: bool,
}

/// The frames of the first samples, as many as a group has room for, root first, and how many
/// samples that is.
fn elements(profile: &Profile, samples: &[(SampleKey, Value)]) -> (Vec<Element>, usize) {
    let mut all = Vec::new();
    let mut stack = Vec::new();
    for (rows, (key, _)) in samples.iter().enumerate() {
        profile.dict.stacks.root_first(key.stack, &mut stack);
        let full = rows == ROWS_MAX || all.len() + stack.len() > FRAMES_MAX;
        if full && rows > 0 {
            return (all, rows);
        }
        let callees = stack.iter().skip(1);
        all.push(Element {
            frame: stack.first().copied(),
            first: true,
        });
        all.extend(callees.map(|&frame| Element {
            frame: Some(frame),
            first: false,
        }));
    }
    (all, samples.len())
}

/// A group of rows.
struct Group<'p, 'w, W: Write + Send> {
    out: SerializedRowGroupWriter<'w, W>,
    profile: &'p Profile,
    samples: &'p [(SampleKey, Value)],
    elements: Vec<Element>,
}

/// A value of a column: `None` where it is null.
struct Cell<T> {
    value: Option<T>,
    /// False for all but the first element of a list.
    first: bool,
}

impl<'p, W: Write + Send> Group<'p, '_, W> {
    /// Writes every column, in the order of the schema.
    fn write(&mut self, labels: &[String]) -> Result<(), ParquetError> {
        let profile = self.profile;
        let info = &profile.info;
        let end = info.start_unix_ns.saturating_add(signed(info.duration_ns));
        // Readers of Parquet's older types have no finer one.
        self.same::<Int64Type>(info.start_unix_ns.div_euclid(1000))?;
        self.same::<Int64Type>(end.div_euclid(1000))?;
        for label in labels {
            let mut of_sets: HashMap<LabelSetId, Option<ByteArray>> = HashMap::new();
            self.flat::<ByteArrayType>(|(key, _)| {
                let value = || profile.dict.label(key.labels, label).map(ByteArray::from);
                of_sets.entry(key.labels).or_insert_with(value).clone()
            })?;
        }
        self.texts(|frame| frame.function)?;
        self.texts(|frame| frame.kind.word())?;
        self.texts(|frame| frame.module)?;
        self.texts(|frame| frame.file)?;
        self.list::<Int32Type>(|frame| i32::try_from(frame.line).ok().filter(|&line| line > 0))?;
        self.flat::<Int64Type>(|(_, value)| Some(signed(value.weight)))?;
        self.same::<ByteArrayType>(info.unit.as_str().into())?;
        self.flat::<Int64Type>(|(_, value)| Some(signed(value.count)))?;
        self.flat::<ByteArrayType>(|(key, _)| Some(key.end.word().into()))
    }

    /// The same in every row.
    fn same<T: DataType>(&mut self, value: T::T) -> Result<(), ParquetError> {
        self.flat::<T>(|_| Some(value.clone()))
    }

    /// A value a row.
    fn flat<T: DataType>(
        &mut self,
        mut value: impl FnMut(&(SampleKey, Value)) -> Option<T::T>,
    ) -> Result<(), ParquetError> {
        let cells = self.samples.iter().map(|sample| Cell {
            value: value(sample),
            first: true,
        });
        column::<T>(&mut self.out, cells)
    }

    /// A value a frame.
    fn list<T: DataType>(
        &mut self,
        mut value: impl FnMut(FrameRef<'p>) -> Option<T::T>,
    ) -> Result<(), ParquetError> {
        let dict = &self.profile.dict;
        let cells = self.elements.iter().map(|element| Cell {
            value: value(match element.frame {
                Some(id) => dict.frame(id),
                None => no_frames(),
            }),
            first: element.first,
        });
        column::<T>(&mut self.out, cells)
    }

    /// A text a frame, where it is not empty. Each is copied once.
    fn texts(&mut self, text: impl Fn(FrameRef<'p>) -> &'p str) -> Result<(), ParquetError> {
        let mut copies: HashMap<&str, ByteArray> = HashMap::new();
        self.list::<ByteArrayType>(|frame| match text(frame) {
            "" => None,
            text => Some(copies.entry(text).or_insert_with(|| text.into()).clone()),
        })
    }
}

/// Writes the next column of a group.
fn column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, impl Write + Send>,
    cells: impl Iterator<Item = Cell<T::T>>,
) -> Result<(), ParquetError> {
    let missing = || ParquetError::General("the schema has no more columns".to_owned());
    let mut column = group.next_column()?.ok_or_else(missing)?;
    let writer = column.typed::<T>();
    // How deep a value lies, by the schema: one level for a list, one for what may be null.
    let known = writer.get_descriptor().max_def_level();
    let (mut values, mut definitions, mut repetitions) = (Vec::new(), Vec::new(), Vec::new());
    for cell in cells {
        // A batch ends where a row does.
        if definitions.len() >= CELLS && cell.first {
            writer.write_batch(&values, Some(&definitions), Some(&repetitions))?;
            values.clear();
            definitions.clear();
            repetitions.clear();
        }
        definitions.push(known - i16::from(cell.value.is_none()));
        repetitions.push(i16::from(!cell.first));
        values.extend(cell.value);
    }
    writer.write_batch(&values, Some(&definitions), Some(&repetitions))?;
    column.close()
}

/// Sums fit, so what they are of does.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
