//! The file of a segment: a header and records, appended to by the run that made it.
//!
//! The header has the kind's magic and version, the length of the facts (4 bytes), the facts in
//! their owner's format, and a checksum of all of it (4 bytes). Nothing is ever changed in place.
//! Reading treats the bytes as untrusted, and uses memory for one record at a time.

use super::record::{HEAD_BYTES, RecordHead, has_head, unpack};
use super::window::WindowHeader;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Most records of one file: more than an hour before and an hour after by windows of a second. A
/// file that has more was not written by this daemon.
pub const RECORDS_MAX: usize = 8192;

/// Largest facts of a header. Unit: bytes: a path of 4,096, and words.
pub const FACTS_BYTES_MAX: usize = 16 << 10;

/// Kind of a file: its first bytes and the end of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// First bytes of the file.
    pub magic: [u8; 7],
    /// The byte behind them. A file of another version is never read: see [`ReadError::Version`].
    pub version: u8,
    /// End of the file's name, without its dot.
    pub extension: &'static str,
}

/// Why a file is no segment that can be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Another version of this program wrote it.
    #[error("the file has format version {found}, and this program reads only version {known}")]
    Version {
        /// The version found.
        found: u8,
        /// The version that can be read.
        known: u8,
    },
    /// It is something else, or damaged.
    #[error("the file's header is damaged")]
    Header,
    /// The disk does not answer.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<ReadError> for io::Error {
    fn from(error: ReadError) -> io::Error {
        match error {
            ReadError::Io(error) => error,
            other => io::Error::new(io::ErrorKind::InvalidData, other),
        }
    }
}

/// The header of a file.
pub(super) fn header(kind: &Kind, facts: &[u8]) -> Vec<u8> {
    let mut header = kind.magic.to_vec();
    header.push(kind.version);
    header.extend((facts.len() as u32).to_le_bytes());
    header.extend(facts);
    header.extend(crc32fast::hash(&header).to_le_bytes());
    header
}

/// The facts of a file, and where its records start.
fn read_header(file: &File, kind: &Kind) -> Result<(Vec<u8>, u64), ReadError> {
    let mut start = [0; 12];
    if read_up_to(file, &mut start, 0)? < start.len() || !start.starts_with(&kind.magic) {
        return Err(ReadError::Header);
    }
    let found = start[7];
    if found != kind.version {
        let known = kind.version;
        return Err(ReadError::Version { found, known });
    }
    let len = u32::from_le_bytes([start[8], start[9], start[10], start[11]]) as usize;
    if len > FACTS_BYTES_MAX {
        return Err(ReadError::Header);
    }
    let mut rest = vec![0; len + 4];
    if read_up_to(file, &mut rest, start.len() as u64)? < rest.len() {
        return Err(ReadError::Header);
    }
    let facts = rest[..len].to_vec();
    let whole = header(kind, &facts);
    match whole.ends_with(&rest[len..]) {
        true => Ok((facts, whole.len() as u64)),
        false => Err(ReadError::Header),
    }
}

/// A segment that is being written.
#[derive(Debug)]
pub struct SegmentFile {
    file: File,
    len: u64,
}

impl SegmentFile {
    /// A file of `len` bytes, which are complete.
    pub(super) fn new(file: File, len: u64) -> SegmentFile {
        SegmentFile { file, len }
    }

    /// Appends a record and makes it durable; returns where it starts.
    ///
    /// # Errors
    /// When the disk does not take it; the file ends where it did.
    pub fn append(&mut self, record: &[u8]) -> io::Result<u64> {
        let start = self.len;
        let (_, failed) = self.append_all(&[record]);
        failed.map_or(Ok(start), Err)
    }

    /// Appends records one after the other and makes them durable at once. Returns where those
    /// start that are, and why the next one is not.
    pub fn append_all(&mut self, records: &[impl AsRef<[u8]>]) -> (Vec<u64>, Option<io::Error>) {
        let start = self.len;
        let (mut offsets, mut failed) = (Vec::new(), None);
        for record in records.iter().map(AsRef::as_ref) {
            if let Err(error) = self.file.write_all_at(record, self.len) {
                failed = Some(error);
                // Whatever stays is cut off or passed over at the next start.
                let _ = self.file.set_len(self.len);
                break;
            }
            offsets.push(self.len);
            self.len += record.len() as u64;
        }
        if let Err(error) = self.file.sync_data() {
            self.len = start;
            let _ = self.file.set_len(start);
            return (Vec::new(), Some(error));
        }
        (offsets, failed)
    }

    /// Its length. Unit: bytes.
    pub fn bytes(&self) -> u64 {
        self.len
    }
}

/// A record in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundRecord {
    /// Where it starts.
    pub offset: u64,
    /// Its length, head included.
    pub len: u32,
    /// Data from its head.
    pub header: WindowHeader,
}

impl FoundRecord {
    /// Where it ends.
    pub fn end(&self) -> u64 {
        self.offset + u64::from(self.len)
    }
}

/// How a file ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// With a complete record.
    Complete,
    /// In the middle of a record: it was being written when the daemon or the machine died.
    Torn,
    /// Behind the damage are more records.
    Damaged,
}

/// Contents of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// The owner's data in the header.
    pub facts: Vec<u8>,
    /// Its records in order.
    pub records: Vec<FoundRecord>,
    /// Length of the file up to the end of the last of them.
    pub bytes: u64,
    /// What follows the records.
    pub tail: Tail,
}

/// Looks through a file: headers only, and the last payloads where `check_tail` says that it may
/// have been written to until a crash. What is behind the last complete record is cut off, so that
/// the next start does not find it again.
///
/// # Errors
/// [`ReadError`].
pub fn scan(file: &File, kind: &Kind, check_tail: bool) -> Result<Scanned, ReadError> {
    let len = file.metadata()?.len();
    let (facts, mut at) = read_header(file, kind)?;
    let mut records: Vec<FoundRecord> = Vec::new();
    while records.len() < RECORDS_MAX
        && let Some(head) = read_head(file, at, len)?
    {
        records.push(FoundRecord {
            offset: at,
            len: head.record_bytes() as u32,
            header: head.header,
        });
        at += head.record_bytes();
    }
    // If records were made durable together, several may be torn.
    while check_tail
        && let Some(last) = records.last()
        && let Err(error) = read_record(file, last.offset, last.len)
    {
        if error.kind() != io::ErrorKind::InvalidData {
            return Err(error.into());
        }
        at = last.offset;
        records.pop();
    }
    let tail = match at == len {
        true => Tail::Complete,
        false if records_follow(file, at, len)? => Tail::Damaged,
        false => Tail::Torn,
    };
    if tail != Tail::Complete {
        file.set_len(at)?;
    }
    Ok(Scanned {
        facts,
        records,
        bytes: at,
        tail,
    })
}

/// Reads and unpacks a record of a segment.
///
/// # Errors
/// `InvalidData` when it is damaged, others when the disk does not answer.
pub fn read_record(file: &File, offset: u64, len: u32) -> io::Result<Vec<u8>> {
    Ok(read_whole(file, offset, len)?.1)
}

fn read_whole(file: &File, offset: u64, len: u32) -> io::Result<(RecordHead, Vec<u8>)> {
    let mut record = vec![0; len as usize];
    if read_up_to(file, &mut record, offset)? != record.len() {
        let error = io::Error::new(io::ErrorKind::InvalidData, "the file ends early");
        return Err(error);
    }
    unpack(&record)
}

/// The records of a file one after the other, up to a length that was found complete.
pub struct Records {
    file: File,
    at: u64,
    len: u64,
    left: usize,
}

impl Records {
    /// Reads the records in the first `len` bytes of a file.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn of(file: File, kind: &Kind, len: u64) -> Result<Records, ReadError> {
        let (_, at) = read_header(&file, kind)?;
        let left = RECORDS_MAX;
        Ok(Records {
            file,
            at,
            len,
            left,
        })
    }

    fn read(&mut self) -> io::Result<(RecordHead, Vec<u8>)> {
        let head = read_head(&self.file, self.at, self.len)?;
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "a record is damaged");
        let bytes = head.ok_or_else(damaged)?.record_bytes();
        let record = read_whole(&self.file, self.at, bytes as u32)?;
        self.at += bytes;
        self.left -= 1;
        Ok(record)
    }
}

impl Iterator for Records {
    type Item = io::Result<(RecordHead, Vec<u8>)>;

    /// The next head and payload; nothing follows an error.
    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.len || self.left == 0 {
            return None;
        }
        let record = self.read();
        if record.is_err() {
            self.left = 0;
        }
        Some(record)
    }
}

/// The head at `at` of `len` bytes; none where no complete record starts.
fn read_head(file: &File, at: u64, len: u64) -> io::Result<Option<RecordHead>> {
    let mut bytes = [0; HEAD_BYTES];
    if read_up_to(file, &mut bytes, at)? < HEAD_BYTES {
        return Ok(None);
    }
    let head = RecordHead::parse(&bytes);
    Ok(head.filter(|head| at + head.record_bytes() <= len))
}

/// True when a complete head of a record starts somewhere behind `at`.
fn records_follow(file: &File, at: u64, len: u64) -> io::Result<bool> {
    const STEP: usize = 64 << 10;
    let mut bytes = vec![0; STEP + HEAD_BYTES];
    let mut from = at + 1;
    while from < len {
        let got = read_up_to(file, &mut bytes, from)?;
        if has_head(&bytes[..got]) {
            return Ok(true);
        }
        from += STEP as u64;
    }
    Ok(false)
}

fn read_up_to(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    let mut got = 0;
    while got < bytes.len() {
        match file.read_at(&mut bytes[got..], at + got as u64) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}
