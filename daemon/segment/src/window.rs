//! The encoding of a window as bytes, used by the spool and the pins.
//!
//! It has two parts. *Tables* define strings, frames, stacks and label sets that no earlier window
//! of the same generation defined, in the order of their ids; several of them may follow each
//! other. The *body* has facts, samples and accounts, with ids from all tables of the generation so
//! far, followed by what the kernel says of waiting for CPUs, and by the times of the samples, each
//! if it is known. So a window is small, and a
//! generation is self-contained.
//!
//! Numbers are LEB128 varints. Decoding treats the bytes as untrusted: every id, count and number
//! is checked against the data, and no memory is reserved because a count says so.

mod timestamps;
mod waiting;

use aggregate::batch::RawTimestamp;
use aggregate::recorder::{Row, varint};
use host::time::MonotonicTime;
use profile::{
    Account, Dictionary, Frame, FrameId, FrameKind, LabelSetId, Pressure, Quality, SampleKey,
    StackEnd, StackId, StrId, UnnamedReason, Value,
};

/// Why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to decode a window: {0}")]
pub struct DecodeError(pub(super) &'static str);

/// Facts of one window besides its samples.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Facts {
    /// Its start on the boot-time clock; as `WindowPart.sequence` in the protocol.
    pub sequence: u64,
    /// Start in wall time.
    pub start_unix_ns: i64,
    /// Length.
    pub duration_ns: u64,
    /// The event that was sampled.
    pub event: String,
    /// Unit of weights.
    pub unit: String,
    /// Weight of one sample at the configured rate; 0 when it varies.
    pub period: u64,
    /// What was taken and missed.
    pub quality: Quality,
    /// For how long tasks of the host waited; `None` if that is not known.
    pub pressure: Option<Pressure>,
}

impl Facts {
    /// End in wall time.
    pub fn end_unix_ns(&self) -> i64 {
        let duration = i64::try_from(self.duration_ns).unwrap_or(i64::MAX);
        self.start_unix_ns.saturating_add(duration)
    }

    /// Start, on a monotonic clock that is wall time.
    pub fn start(&self) -> MonotonicTime {
        MonotonicTime(u64::try_from(self.start_unix_ns).unwrap_or(0))
    }

    /// The window in four numbers.
    pub fn header(&self) -> WindowHeader {
        WindowHeader {
            sequence: self.sequence,
            start_unix_ns: self.start_unix_ns,
            end_unix_ns: self.end_unix_ns(),
            samples: self.quality.taken,
        }
    }
}

/// A window in four numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct WindowHeader {
    /// Its sequence.
    pub sequence: u64,
    /// Start in wall time.
    pub start_unix_ns: i64,
    /// End in wall time.
    pub end_unix_ns: i64,
    /// Samples that were taken.
    pub samples: u64,
}

/// A window with ids of its generation's tables.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Window {
    /// Facts.
    pub facts: Facts,
    /// Samples in key order.
    pub rows: Vec<Row>,
    /// The kernel's accounting.
    pub accounts: Vec<Account>,
    /// When the samples were taken, where that is known.
    pub times: Option<Times>,
}

/// When the samples of a window were taken.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Times {
    /// Oldest first; on the clock of [`Facts::start`].
    pub timestamps: Vec<RawTimestamp>,
    /// Samples whose time did not fit.
    pub refused: u64,
}

/// Sizes of the tables of a dictionary: how far they have been encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodedLengths {
    strings: usize,
    frames: usize,
    stacks: usize,
    label_sets: usize,
}

impl Default for EncodedLengths {
    /// The tables of an empty dictionary: its entries 0 need no definition, frames have none.
    fn default() -> Self {
        EncodedLengths {
            strings: 1,
            frames: 0,
            stacks: 1,
            label_sets: 1,
        }
    }
}

/// Appends what `dict` got since `from`; `from` becomes what it has.
pub fn encode_tables(out: &mut Vec<u8>, dict: &Dictionary, from: &mut EncodedLengths) {
    let now = EncodedLengths {
        strings: dict.strings.len(),
        frames: dict.frames.len(),
        stacks: dict.stacks.len(),
        label_sets: dict.label_sets.len(),
    };
    if now == *from {
        return;
    }
    put(out, (now.strings - from.strings) as u64);
    for id in from.strings..now.strings {
        put_text(out, dict.strings.get(StrId(id as u32)));
    }
    put(out, (now.frames - from.frames) as u64);
    for id in from.frames..now.frames {
        let frame = dict.frames.get(FrameId(id as u32));
        let named_twice = frame.system_name != StrId::EMPTY;
        let mut flags = if named_twice { HAS_SYSTEM_NAME } else { 0 };
        if frame.start_line != 0 {
            flags |= HAS_START_LINE;
        }
        out.extend([frame.kind as u8 | flags, frame.unnamed as u8]);
        for id in [frame.function.0, frame.module.0, frame.file.0, frame.line] {
            put(out, id.into());
        }
        if named_twice {
            put(out, frame.system_name.0.into());
        }
        if frame.start_line != 0 {
            put(out, frame.start_line.into());
        }
    }
    put(out, (now.stacks - from.stacks) as u64);
    for id in from.stacks..now.stacks {
        if let Some((parent, frame)) = dict.stacks.node(StackId(id as u32)) {
            put(out, parent.0.into());
            put(out, frame.0.into());
        }
    }
    put(out, (now.label_sets - from.label_sets) as u64);
    for id in from.label_sets..now.label_sets {
        let set = dict.label_sets.get(LabelSetId(id as u32));
        put(out, set.len() as u64);
        for &(name, value) in set {
            put(out, name.0.into());
            put(out, value.0.into());
        }
    }
    *from = now;
}

/// Appends the body. Rows in key order are smallest.
pub fn encode_body(out: &mut Vec<u8>, window: &Window) {
    let facts = &window.facts;
    put(out, facts.sequence);
    put(out, facts.start_unix_ns as u64);
    put(out, facts.duration_ns);
    put_text(out, &facts.event);
    put_text(out, &facts.unit);
    put(out, facts.period);
    for number in facts.quality.numbers() {
        put(out, number);
    }
    put(out, window.rows.len() as u64);
    let mut last = SampleKey {
        labels: LabelSetId(0),
        stack: StackId(0),
        end: StackEnd::Complete,
    };
    for &(key, value) in &window.rows {
        let labels = key.labels.0.wrapping_sub(last.labels.0);
        let base = if labels == 0 { last.stack.0 } else { 0 };
        let explicit = value.weight != value.count.wrapping_mul(facts.period);
        put(out, labels.into());
        put(out, key.stack.0.wrapping_sub(base).into());
        out.push((key.end as u8) << 1 | u8::from(explicit));
        put(out, value.count);
        if explicit {
            put(out, value.weight);
        }
        last = key;
    }
    put(out, window.accounts.len() as u64);
    for account in &window.accounts {
        put(out, account.labels.0.into());
        put(out, account.ns);
        put(out, account.estimated_ns);
    }
    waiting::encode(out, facts.pressure, &window.accounts);
    if let Some(times) = &window.times {
        timestamps::encode(out, facts, times);
    }
}

/// The complete payload of a record.
pub fn join(tables: &[u8], body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(tables.len() + body.len() + 10);
    put(&mut out, tables.len() as u64);
    out.extend_from_slice(tables);
    out.extend_from_slice(body);
    out
}

/// The tables of one generation as far as they were read.
#[derive(Default)]
pub struct Tables {
    /// The dictionary of the ids in use.
    pub dict: Dictionary,
    /// Ids of `dict` by ids of the record: the same, unless an entry was there twice.
    strings: Vec<StrId>,
    frames: Vec<FrameId>,
    stacks: Vec<StackId>,
    label_sets: Vec<LabelSetId>,
}

impl Tables {
    /// Adds the tables of the next record of the generation.
    ///
    /// # Errors
    /// When the bytes make no sense; the tables are then spent.
    pub fn take(&mut self, payload: &[u8]) -> Result<(), DecodeError> {
        let (mut rest, _) = split(payload)?;
        while !rest.is_empty() {
            self.take_run(&mut rest)?;
        }
        Ok(())
    }

    fn take_run(&mut self, rest: &mut &[u8]) -> Result<(), DecodeError> {
        if self.strings.is_empty() {
            self.strings.push(StrId::EMPTY);
            self.stacks.push(StackId::EMPTY);
            self.label_sets.push(LabelSetId(0));
        }
        for _ in 0..get(rest)? {
            let text = get_text(rest)?;
            self.strings.push(self.dict.strings.intern(text));
        }
        for _ in 0..get(rest)? {
            let kind = get_byte(rest)?;
            let named_twice = kind & HAS_SYSTEM_NAME != 0;
            let has_start_line = kind & HAS_START_LINE != 0;
            let kind = FrameKind::from_u8(kind & !(HAS_SYSTEM_NAME | HAS_START_LINE));
            let kind = kind.ok_or(DecodeError("frame kind"))?;
            let unnamed = UnnamedReason::from_u8(get_byte(rest)?).ok_or(DecodeError("unnamed"))?;
            let mut frame = Frame {
                kind,
                unnamed,
                system_name: StrId::EMPTY,
                function: pick(&self.strings, get(rest)?)?,
                module: pick(&self.strings, get(rest)?)?,
                file: pick(&self.strings, get(rest)?)?,
                line: get32(rest)?,
                start_line: 0,
            };
            if named_twice {
                frame.system_name = pick(&self.strings, get(rest)?)?;
            }
            if has_start_line {
                frame.start_line = get32(rest)?;
            }
            self.frames.push(self.dict.frames.intern(frame));
        }
        for _ in 0..get(rest)? {
            let parent = pick(&self.stacks, get(rest)?)?;
            let frame = pick(&self.frames, get(rest)?)?;
            self.stacks.push(self.dict.stacks.child(parent, frame));
        }
        for _ in 0..get(rest)? {
            let mut set = Vec::new();
            for _ in 0..get(rest)? {
                let name = pick(&self.strings, get(rest)?)?;
                set.push((name, pick(&self.strings, get(rest)?)?));
            }
            self.label_sets.push(self.dict.label_sets.intern(&mut set));
        }
        Ok(())
    }

    /// Decodes the window of a record after its tables were added.
    ///
    /// # Errors
    /// When the bytes make no sense.
    pub fn window(&self, payload: &[u8]) -> Result<Window, DecodeError> {
        let (_, mut rest) = split(payload)?;
        let rest = &mut rest;
        let mut facts = Facts {
            sequence: get(rest)?,
            start_unix_ns: get(rest)? as i64,
            duration_ns: get(rest)?,
            event: get_text(rest)?.to_owned(),
            unit: get_text(rest)?.to_owned(),
            period: get(rest)?,
            quality: Quality::default(),
            pressure: None,
        };
        let mut numbers = [0; QUALITY_NUMBERS];
        for number in &mut numbers {
            *number = get(rest)?;
        }
        facts.quality = Quality::of_numbers(numbers);
        let mut rows = Vec::new();
        let (mut labels, mut stack) = (0u32, 0u32);
        for _ in 0..get(rest)? {
            let delta = get32(rest)?;
            let base = if delta == 0 { stack } else { 0 };
            labels = labels.wrapping_add(delta);
            stack = base.wrapping_add(get32(rest)?);
            let flags = get_byte(rest)?;
            let count = get(rest)?;
            let weight = match flags & 1 {
                0 => count.wrapping_mul(facts.period),
                _ => get(rest)?,
            };
            let key = SampleKey {
                labels: pick(&self.label_sets, labels.into())?,
                stack: pick(&self.stacks, stack.into())?,
                end: StackEnd::from_u8(flags >> 1).ok_or(DecodeError("stack end"))?,
            };
            rows.push((key, Value { count, weight }));
        }
        let mut accounts = Vec::new();
        for _ in 0..get(rest)? {
            accounts.push(Account {
                labels: pick(&self.label_sets, get(rest)?)?,
                ns: get(rest)?,
                estimated_ns: get(rest)?,
                ..Account::default()
            });
        }
        facts.pressure = waiting::decode(rest, &mut accounts)?;
        let times = match rest.is_empty() {
            true => None,
            false => Some(timestamps::decode(rest, &facts, rows.len())?),
        };
        Ok(Window {
            facts,
            rows,
            accounts,
            times,
        })
    }
}

fn split(payload: &[u8]) -> Result<(&[u8], &[u8]), DecodeError> {
    let mut rest = payload;
    let len = get(&mut rest)?;
    let len = usize::try_from(len).map_err(|_| DecodeError("length of tables"))?;
    rest.split_at_checked(len)
        .ok_or(DecodeError("length of tables"))
}

/// Numbers of a [`Quality`] in a record, by place. Another field changes what records of earlier
/// daemons mean: the versions of the segments of spool and pins have to be raised with this number.
const QUALITY_NUMBERS: usize = 12;
const _: () = assert!(Quality::FIELDS.len() == QUALITY_NUMBERS);

/// Set in the byte of a frame's kind when a system name follows its line. Most frames have none.
const HAS_SYSTEM_NAME: u8 = 0x80;

/// Set there when the first line of its function comes last.
const HAS_START_LINE: u8 = 0x40;

pub(super) fn put(out: &mut Vec<u8>, value: u64) {
    varint::put(out, value);
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

fn get_byte(rest: &mut &[u8]) -> Result<u8, DecodeError> {
    let (&byte, after) = rest.split_first().ok_or(DecodeError("it ends early"))?;
    *rest = after;
    Ok(byte)
}

pub(super) fn get(rest: &mut &[u8]) -> Result<u64, DecodeError> {
    varint::take(rest).ok_or(DecodeError("a number is damaged"))
}

fn get32(rest: &mut &[u8]) -> Result<u32, DecodeError> {
    u32::try_from(get(rest)?).map_err(|_| DecodeError("a number is too large"))
}

fn get_text<'a>(rest: &mut &'a [u8]) -> Result<&'a str, DecodeError> {
    let len = usize::try_from(get(rest)?).map_err(|_| DecodeError("length of a text"))?;
    let (text, after) = rest
        .split_at_checked(len)
        .ok_or(DecodeError("length of a text"))?;
    *rest = after;
    std::str::from_utf8(text).map_err(|_| DecodeError("a text is not UTF-8"))
}

fn pick<T: Copy>(table: &[T], id: u64) -> Result<T, DecodeError> {
    let found = usize::try_from(id).ok().and_then(|id| table.get(id));
    found.copied().ok_or(DecodeError("an id has no entry"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use profile::FrameRef;

    fn tables_of(system_name: &str, start_line: u32) -> Vec<u8> {
        let mut dict = Dictionary::default();
        dict.intern_frame(FrameRef {
            kind: FrameKind::Jit,
            function: "f",
            system_name,
            line: 7,
            start_line,
            ..FrameRef::default()
        });
        let mut out = Vec::new();
        encode_tables(&mut out, &dict, &mut EncodedLengths::default());
        out
    }

    #[test]
    fn frames_without_a_system_name_or_first_line_take_no_byte_for_it() {
        assert_eq!(tables_of("", 0), [1, 1, b'f', 1, 2, 0, 1, 0, 0, 7, 0, 0]);
    }

    #[test]
    fn a_system_name_and_a_first_line_come_back() {
        let bytes = tables_of("*f", 300);
        let mut tables = Tables::default();
        tables.take(&join(&bytes, &[])).unwrap();
        let frame = tables.dict.frame(FrameId(0));
        assert_eq!((frame.kind, frame.line), (FrameKind::Jit, 7));
        assert_eq!(frame.start_line, 300);
        assert_eq!((frame.function, frame.system_name), ("f", "*f"));
    }

    #[test]
    fn where_no_times_are_known_there_is_nothing() {
        let body = |times| {
            let window = Window {
                times,
                ..Window::default()
            };
            let mut body = Vec::new();
            encode_body(&mut body, &window);
            let payload = join(&[], &body);
            let mut tables = Tables::default();
            tables.take(&payload).unwrap();
            assert_eq!(tables.window(&payload).unwrap(), window);
            body.len()
        };
        assert_eq!(body(Some(Times::default())), body(None) + 2);
    }
}
