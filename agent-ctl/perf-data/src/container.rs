//! The file around the records: header, events, features; records in order of time.
//!
//! Formats: `tools/perf/Documentation/perf.data-file-format.txt`, files and pipes, compressed or
//! not. The file is in memory already and bounded by the caller. What is kept of it besides is an
//! entry of 16 bytes for each record of at least 16, and what was compressed, within the same bound
//! as the file. Sections outside of the file are left out.

use crate::PerfDataError;
use crate::attr::Attr;
use crate::fields::{Fields, section};
use crate::record::kind;
use hashbrown::HashMap;
use zstd::stream::raw::{Decoder, InBuffer, Operation, OutBuffer};

/// First bytes of a file, and those of one from a machine with the other byte order.
const MAGIC: &[u8] = b"PERFILE2";
const MAGIC_SWAPPED: &[u8] = b"2ELIFREP";

/// Length of the header of a pipe, and of a file.
const PIPE_HEADER: u64 = 16;
const FILE_HEADER: usize = 104;

/// Length of a record's header.
const RECORD_HEADER: usize = 8;

/// Records of perf itself (`PERF_RECORD_*` from 64 on).
mod own {
    pub const ATTR: u32 = 64;
    pub const TRACING_DATA: u32 = 66;
    pub const BUILD_ID: u32 = 67;
    pub const AUXTRACE: u32 = 71;
    pub const FEATURE: u32 = 80;
    pub const COMPRESSED: u32 = 81;
    pub const COMPRESSED2: u32 = 83;
}

/// Features (`HEADER_*`), by bit.
mod feature {
    pub const BUILD_ID: u64 = 2;
    pub const HOSTNAME: u64 = 3;
    pub const OSRELEASE: u64 = 4;
    pub const ARCH: u64 = 6;
    pub const EVENT_DESC: u64 = 12;
    pub const CLOCK_DATA: u64 = 29;
    /// Bits there are room for.
    pub const MAX: u64 = 256;
}

/// The length of a build id follows it.
const MISC_BUILD_ID_SIZE: u16 = 1 << 15;

/// Room for what is unpacked next. Unit: bytes.
const UNPACKED_AT_ONCE: usize = 128 << 10;

/// What the file says of the machine.
#[derive(Debug, Default)]
pub struct Machine<'a> {
    /// Its name.
    pub host: &'a [u8],
    /// Release of its kernel.
    pub release: &'a [u8],
    /// Its architecture, as `uname -m` says.
    pub arch: &'a [u8],
    /// Wall time minus the time of records. Unit: nanoseconds.
    pub wall_offset: Option<i64>,
}

/// Where a record is: bytes of the file, or those that were unpacked.
#[derive(Clone, Copy, Debug)]
struct Entry {
    time: u64,
    /// With [`Entry::UNPACKED`].
    at: u64,
}

impl Entry {
    const UNPACKED: u64 = 1 << 63;
}

/// A record of the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Record<'c> {
    /// Its time; 0 when it has none.
    pub time: u64,
    /// Its type.
    pub kind: u32,
    /// Its other bits.
    pub misc: u16,
    /// Its fields.
    pub body: &'c [u8],
    /// The event that it is of.
    pub attr: usize,
}

/// See the head of this file.
#[derive(Default)]
pub struct Container<'a> {
    /// The events.
    pub attrs: Vec<Attr>,
    /// The machine.
    pub machine: Machine<'a>,
    /// Build ids by path; `None` where files of one path have several.
    pub build_ids: HashMap<&'a [u8], Option<&'a [u8]>>,
    /// What was left out or assumed.
    pub notes: Vec<String>,
    /// Records that were not taken because they are damaged.
    pub malformed: u64,
    file: &'a [u8],
    unpacked: Vec<u8>,
    ids: HashMap<u64, usize>,
    entries: Vec<Entry>,
    bytes_max: usize,
    decoder: Option<Decoder<'static>>,
    traces: u64,
}

/// True for the content of a file that `perf record` wrote.
pub fn is_perf_data(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC) || bytes.starts_with(MAGIC_SWAPPED)
}

impl<'a> Container<'a> {
    /// Reads everything but what is in the records. What is compressed may have `bytes_max` when it
    /// is unpacked.
    ///
    /// # Errors
    /// When the file is of another kind of machine, damaged from its start, or too large.
    pub fn read(file: &'a [u8], bytes_max: usize) -> Result<Container<'a>, PerfDataError> {
        let mut container = Container {
            file,
            bytes_max,
            ..Container::default()
        };
        if file.starts_with(MAGIC_SWAPPED) {
            return Err(PerfDataError::ByteOrder);
        }
        let mut fields = Fields(file);
        fields.take(MAGIC.len()).ok_or(PerfDataError::Header)?;
        let records = match fields.u64().ok_or(PerfDataError::Header)? {
            PIPE_HEADER => (PIPE_HEADER, file.len() as u64 - PIPE_HEADER),
            _ => container.header().ok_or(PerfDataError::Header)?,
        };
        container.index(records)?;
        container.entries.sort_by_key(|entry| entry.time);
        if container.attrs.is_empty() {
            return Err(PerfDataError::NoEvents);
        }
        if container.traces > 0 {
            let note = "traces of the processor (Intel PT and the like) were left out";
            container.notes.push(note.to_owned());
        }
        Ok(container)
    }

    /// The header of a file. Returns where the records are.
    fn header(&mut self) -> Option<(u64, u64)> {
        let file = self.file;
        let mut fields = Fields(file.get(..FILE_HEADER)?);
        fields.take(MAGIC.len() + 8)?;
        let attr_size = fields.u64()?;
        let (attrs_at, attrs_len) = (fields.u64()?, fields.u64()?);
        let (data_at, data_len) = (fields.u64()?, fields.u64()?);
        fields.take(16)?;
        let mut features = Vec::new();
        for word in 0..4 {
            let bits = fields.u64()?;
            features.extend(
                (0..64)
                    .filter(|bit| bits >> bit & 1 != 0)
                    .map(|bit| word * 64 + bit),
            );
        }
        // A section for the ids of each event stands behind it.
        let entry = usize::try_from(attr_size).ok().filter(|&size| size > 16)?;
        // Sections that overlap would be read again for each event.
        let mut room = file.len();
        for entry in section(file, attrs_at, attrs_len)?.chunks_exact(entry) {
            let (attr, ids) = entry.split_at(entry.len() - 16);
            let mut ids = Fields(ids);
            let ids = section(file, ids.u64()?, ids.u64()?)?;
            room = room.checked_sub(ids.len())?;
            self.attr(Attr::read(attr)?, ids);
        }
        let rest = (file.len() as u64).checked_sub(data_at)?;
        if data_len == 0 {
            let note = "perf did not finish the file: names of events and hosts are missing";
            self.notes.push(note.to_owned());
            return Some((data_at, rest));
        }
        if data_len > rest {
            let note = "the file is cut: what is there was read";
            self.notes.push(note.to_owned());
            return Some((data_at, rest));
        }
        let mut table = Fields(section(file, data_at + data_len, rest - data_len)?);
        for feature in features {
            let Some((at, len)) = table.u64().zip(table.u64()) else {
                break;
            };
            if let Some(bytes) = section(file, at, len) {
                self.feature(feature, bytes);
            }
        }
        Some((data_at, data_len))
    }

    fn attr(&mut self, attr: Attr, ids: &[u8]) {
        let mut ids = Fields(ids);
        while let Some(id) = ids.u64() {
            self.ids.insert(id, self.attrs.len());
        }
        self.attrs.push(attr);
    }

    fn feature(&mut self, feature: u64, bytes: &'a [u8]) {
        let text = || Fields(bytes).counted_text().unwrap_or_default();
        match feature {
            feature::HOSTNAME => self.machine.host = text(),
            feature::OSRELEASE => self.machine.release = text(),
            feature::ARCH => self.machine.arch = text(),
            feature::BUILD_ID => {
                let mut rest = bytes;
                while let Some((_, misc, body, after)) = next_record(rest) {
                    self.build_id(misc, body);
                    rest = after;
                }
            }
            feature::EVENT_DESC => drop(self.names(bytes)),
            feature::CLOCK_DATA => {
                let mut fields = Fields(bytes);
                let _version_and_clock = fields.u64();
                let times = fields.u64().zip(fields.u64());
                self.machine.wall_offset = times.and_then(|(wall, of_records)| {
                    i64::try_from(i128::from(wall) - i128::from(of_records)).ok()
                });
            }
            _ => {}
        }
    }

    /// Names of the events, in the same order.
    fn names(&mut self, bytes: &[u8]) -> Option<()> {
        let mut fields = Fields(bytes);
        let (count, size) = (fields.u32()?, fields.u32()?);
        for at in 0..count as usize {
            fields.take_u64(size.into())?;
            let ids = fields.u32()?;
            let name = fields.counted_text()?;
            fields.words(ids.into())?;
            let attr = self.attrs.get_mut(at)?;
            if !name.is_empty() {
                attr.name = String::from_utf8_lossy(name).into_owned();
            }
        }
        Some(())
    }

    /// The build id of a file: process, room for 24 bytes, path.
    fn build_id(&mut self, misc: u16, body: &'a [u8]) {
        let mut fields = Fields(body);
        let (Some(_), Some(id)) = (fields.u32(), fields.take(24)) else {
            return;
        };
        let len = match misc & MISC_BUILD_ID_SIZE {
            0 => 20,
            _ => usize::from(id[20]).min(20),
        };
        let id = &id[..len];
        let known = self.build_ids.entry(fields.text()).or_insert(Some(id));
        known.take_if(|known| *known != id);
    }

    /// Goes over all records.
    fn index(&mut self, (at, len): (u64, u64)) -> Result<(), PerfDataError> {
        let file = self.file;
        let bytes = section(file, at, len).ok_or(PerfDataError::Header)?;
        let mut rest = bytes;
        while let Some((kind, misc, body, after)) = next_record(rest) {
            let offset = at + (bytes.len() - rest.len()) as u64;
            rest = after;
            // What lies behind a record of these types, beyond its own size.
            let behind = match kind {
                own::TRACING_DATA => Fields(body)
                    .u32()
                    .map(|len| u64::from(len).next_multiple_of(8)),
                own::AUXTRACE => Fields(body).u64(),
                _ => Some(0),
            };
            self.traces += u64::from(kind == own::AUXTRACE);
            let behind = behind.and_then(|behind| usize::try_from(behind).ok());
            rest = behind
                .and_then(|behind| rest.get(behind..))
                .unwrap_or_default();
            match kind {
                own::ATTR => {
                    let len = body.get(4..).and_then(|size| Fields(size).u32());
                    let parts = body.split_at_checked(len.unwrap_or(0) as usize);
                    match parts.and_then(|(attr, ids)| Some((Attr::read(attr)?, ids))) {
                        Some((attr, ids)) => self.attr(attr, ids),
                        None => self.malformed += 1,
                    }
                }
                own::BUILD_ID => self.build_id(misc, body),
                own::FEATURE => {
                    let mut fields = Fields(body);
                    if let Some(feature) = fields.u64().filter(|&feature| feature < feature::MAX) {
                        self.feature(feature, fields.0);
                    }
                }
                own::COMPRESSED => self.unpack(body)?,
                own::COMPRESSED2 => {
                    let mut fields = Fields(body);
                    let packed = fields.u64().and_then(|len| fields.take_u64(len));
                    self.unpack(packed.unwrap_or_default())?;
                }
                _ => self.entry(kind, body, offset),
            }
        }
        if !rest.is_empty() {
            let note = "the file ends in the middle of a record, or is damaged there";
            self.notes.push(note.to_owned());
        }
        let unpacked = std::mem::take(&mut self.unpacked);
        let mut rest = &unpacked[..];
        while let Some((kind, _, body, after)) = next_record(rest) {
            let offset = (unpacked.len() - rest.len()) as u64;
            self.entry(kind, body, offset | Entry::UNPACKED);
            rest = after;
        }
        self.unpacked = unpacked;
        Ok(())
    }

    fn entry(&mut self, kind: u32, body: &[u8], at: u64) {
        if !kind::ALL.contains(&kind) {
            return;
        }
        let Some(attr) = self.attrs.get(self.attr_of(kind, body)) else {
            self.malformed += 1;
            return;
        };
        if body.len() < RECORD_HEADER {
            self.malformed += 1;
            return;
        }
        let time = attr.time(kind == kind::SAMPLE, body).unwrap_or(0);
        self.entries.push(Entry { time, at });
    }

    /// The event of a record: by its id, where there are several.
    fn attr_of(&self, kind: u32, body: &[u8]) -> usize {
        let first = self.attrs.first().filter(|_| self.attrs.len() > 1);
        let id = first.and_then(|first| first.id(kind == kind::SAMPLE, body));
        id.and_then(|id| self.ids.get(&id)).copied().unwrap_or(0)
    }

    /// Appends what is compressed in a record. All records are one stream.
    fn unpack(&mut self, packed: &[u8]) -> Result<(), PerfDataError> {
        let decoder = match &mut self.decoder {
            Some(decoder) => decoder,
            None => self
                .decoder
                .insert(Decoder::new().map_err(PerfDataError::Unpack)?),
        };
        let mut input = InBuffer::around(packed);
        loop {
            self.unpacked.reserve(UNPACKED_AT_ONCE);
            let before = (input.pos(), self.unpacked.len());
            let mut output = OutBuffer::around_pos(&mut self.unpacked, before.1);
            decoder
                .run(&mut input, &mut output)
                .map_err(PerfDataError::Unpack)?;
            if self.unpacked.len() > self.bytes_max {
                return Err(PerfDataError::TooLarge {
                    limit: self.bytes_max,
                });
            }
            let is_stuck = (input.pos(), self.unpacked.len()) == before;
            let is_full = self.unpacked.len() == self.unpacked.capacity();
            if is_stuck || !is_full && input.pos() == packed.len() {
                return Ok(());
            }
        }
    }

    /// The records of the kernel, in order of time; those without one first, as they stand.
    pub fn records(&self) -> impl Iterator<Item = Record<'_>> {
        self.entries.iter().filter_map(|entry| {
            let at = (entry.at & !Entry::UNPACKED) as usize;
            let bytes = match entry.at & Entry::UNPACKED {
                0 => self.file,
                _ => &self.unpacked,
            };
            let (kind, misc, body, _) = next_record(&bytes[at..])?;
            Some(Record {
                time: entry.time,
                kind,
                misc,
                body,
                attr: self.attr_of(kind, body),
            })
        })
    }
}

/// Type, other bits and body of the first record, and what lies behind it.
fn next_record(bytes: &[u8]) -> Option<(u32, u16, &[u8], &[u8])> {
    let mut fields = Fields(bytes);
    let (kind, misc, size) = (fields.u32()?, fields.u16()?, fields.u16()?);
    let body = fields.take(usize::from(size).checked_sub(RECORD_HEADER)?)?;
    Some((kind, misc, body, fields.0))
}
