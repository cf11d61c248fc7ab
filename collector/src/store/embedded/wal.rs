//! A log: records in the order they were written, in a folder of segments.
//!
//! A segment is named by its first record, and says which record it follows and which generation of
//! ids it uses. A record is its length, a checksum, its number and its payload. Records are
//! numbered in order, so the log ends at a record torn by a crash, and nothing after it is accepted
//! by accident. A batch of records is written and synced as one. A batch that could not be written
//! is cut off again and fails completely: nothing of it was acknowledged.
//!
//! Damage in the middle costs only the damaged records: reading continues with the next record, or
//! the next segment, and missing records are counted. A segment that could not be used completely
//! is kept next to the log's folder as `FOLDER-NUMBER.wal.unusable`, for people.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// Start of every segment: what it is, and the version of its format.
const MAGIC: [u8; 8] = *b"fpwal\0\0\x03";

/// What a segment starts with: magic, generation, and the number after the last record before it.
/// Unit: bytes.
const SEGMENT_HEAD_LEN: usize = MAGIC.len() + 16;

/// Length and checksum before each record. Unit: bytes.
const HEAD_LEN: usize = 8;

/// Most names that are tried for what is kept of one segment.
const KEPT_NAMES_MAX: u32 = 100;

/// Largest record. Unit: bytes. A window with the definitions of a first push is a few MiB.
pub const RECORD_BYTES_MAX: usize = 256 << 20;

/// A segment beyond it is followed by a new one. Unit: bytes. Smaller means that space is given
/// back sooner; larger means fewer files.
const SEGMENT_BYTES: u64 = 16 << 20;

/// Why the log cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WalError {
    /// A file could not be read or written.
    #[error("failed to {operation} `{path}`: {error}")]
    Io {
        /// The operation that failed.
        operation: &'static str,
        /// With which file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

fn io_error(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> WalError {
    let path = path.to_owned();
    move |error| WalError::Io {
        operation,
        path,
        error,
    }
}

/// Where a log is and what it belongs to.
#[derive(Clone, Debug)]
pub struct LogLocation {
    /// Folder of its segments, made with the first of them.
    pub folder: PathBuf,
    /// Suffix of segments' names; a folder may have several logs.
    pub ending: &'static str,
    /// Segments of another generation are not read.
    pub generation: u64,
}

impl LogLocation {
    /// Segments by the number of their first record.
    fn segments(&self) -> Result<Vec<(u64, PathBuf)>, WalError> {
        let folder = &self.folder;
        let entries = match std::fs::read_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(io_error("list", folder))?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let path = entry.map_err(io_error("list", folder))?.path();
            let is_segment = path.extension().is_some_and(|end| end == self.ending);
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            let first = stem.and_then(|stem| u64::from_str_radix(stem, 16).ok());
            if let Some(first) = first.filter(|_| is_segment) {
                found.push((first, path));
            }
        }
        found.sort();
        Ok(found)
    }

    /// True when there is a segment.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn has_segments(&self) -> Result<bool, WalError> {
        Ok(!self.segments()?.is_empty())
    }

    /// Size of segments as the file system has it; those that cannot be looked at have none. Unit:
    /// bytes.
    pub fn bytes(&self) -> u64 {
        let segments = self.segments().unwrap_or_default().into_iter();
        let sizes = segments.filter_map(|(_, path)| std::fs::metadata(path).ok());
        sizes.map(|metadata| metadata.len()).sum()
    }

    /// The generation of the first segment with a complete head, whatever this place says.
    ///
    /// # Errors
    /// When files cannot be read.
    pub fn find_generation(&self) -> Result<Option<u64>, WalError> {
        for (_, path) in self.segments()? {
            let mut head = [0; SEGMENT_HEAD_LEN];
            let file = File::open(&path).map_err(io_error("open", &path))?;
            if file.read_exact_at(&mut head, 0).is_ok()
                && let Some(head) = segment_head(&head)
            {
                return Ok(Some(head.generation));
            }
        }
        Ok(None)
    }
}

struct Segment {
    path: PathBuf,
    /// Number of its first record.
    first: u64,
    bytes: u64,
}

/// Records that wait to be written together.
#[derive(Default)]
pub struct Batch {
    bytes: Vec<u8>,
    records: u64,
}

impl Batch {
    /// True when nothing waits.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// How many records wait.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Size as it will be written.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Adds a record with this number, which is the one after the last.
    pub fn add(&mut self, number: u64, payload: &[u8]) {
        let at = self.bytes.len();
        self.bytes
            .extend_from_slice(&((payload.len() + 8) as u32).to_le_bytes());
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&number.to_le_bytes());
        self.bytes.extend_from_slice(payload);
        let crc = crc32fast::hash(&self.bytes[at + HEAD_LEN..]);
        self.bytes[at + 4..at + HEAD_LEN].copy_from_slice(&crc.to_le_bytes());
        self.records += 1;
    }
}

/// The log. Its owner sees to it that one thread at a time writes.
pub struct Wal {
    place: LogLocation,
    segments: Vec<Segment>,
    /// The last segment while it can be written.
    file: Option<File>,
    /// Number of the next record to be written.
    next: u64,
    /// Number after the last record that was written.
    follows: u64,
}

/// Findings when the log was opened.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Records that were read.
    pub records: u64,
    /// Bytes after the last complete record, cut off: a batch that a crash tore, never
    /// acknowledged.
    pub torn_bytes: u64,
    /// Records that were there and cannot be read.
    pub records_lost: u64,
    /// Segments of which not everything could be used.
    pub segments_unusable: u64,
    /// Why one of them could not be kept.
    pub not_kept: Option<String>,
}

impl Recovered {
    /// Adds what was found in another log.
    pub fn add(&mut self, other: Recovered) {
        self.records += other.records;
        self.torn_bytes += other.torn_bytes;
        self.records_lost += other.records_lost;
        self.segments_unusable += other.segments_unusable;
        self.not_kept = self.not_kept.take().or(other.not_kept);
    }
}

impl Wal {
    /// Opens the log at `place`, gives every record to `each`, which says whether it could use it,
    /// and goes on after the last one.
    ///
    /// # Errors
    /// When files cannot be read or written. What is damaged is not an error.
    pub fn open(
        place: LogLocation,
        mut each: impl FnMut(u64, &[u8]) -> bool,
    ) -> Result<(Wal, Recovered), WalError> {
        let found = place.segments()?;
        let mut wal = Wal::closed(place);
        wal.next = found.first().map_or(1, |(first, _)| *first);
        let mut recovered = Recovered::default();
        let last = found.len().saturating_sub(1);
        for (at, (first, path)) in found.into_iter().enumerate() {
            wal.recover(first, path, at == last, &mut each, &mut recovered)?;
        }
        wal.follows = wal.next;
        Ok((wal, recovered))
    }

    /// Reads one segment.
    fn recover(
        &mut self,
        first: u64,
        path: PathBuf,
        is_last: bool,
        each: &mut impl FnMut(u64, &[u8]) -> bool,
        recovered: &mut Recovered,
    ) -> Result<(), WalError> {
        let bytes = std::fs::read(&path).map_err(io_error("read", &path))?;
        let is_own =
            |head: &SegmentHead| head.generation == self.place.generation && first >= self.next;
        let Some(SegmentHead { follows, .. }) = segment_head(&bytes).filter(is_own) else {
            recovered.segments_unusable += 1;
            let aside = unusable_name(&path).unwrap_or_else(|| path.with_extension("unusable"));
            return std::fs::rename(&path, &aside).map_err(io_error("rename", &path));
        };
        if !self.segments.is_empty() {
            recovered.records_lost += follows.saturating_sub(self.next);
        }
        self.next = first;
        let read = self.read(&bytes, each, recovered);
        let tail = &bytes[read.end..];
        let torn = is_last && !tail.is_empty() && !holds_record(tail, self.next);
        let mut segment = Segment {
            path,
            first,
            bytes: bytes.len() as u64,
        };
        if torn {
            recovered.torn_bytes += tail.len() as u64;
            segment.bytes = read.end as u64;
            let file = OpenOptions::new().write(true).open(&segment.path);
            file.and_then(|file| {
                file.set_len(segment.bytes)?;
                file.sync_all()
            })
            .map_err(io_error("cut", &segment.path))?;
        }
        if !read.used || !(torn || tail.is_empty()) {
            recovered.segments_unusable += 1;
            if let Err(error) = keep_unusable(&segment.path) {
                let path = segment.path.display();
                recovered.not_kept = Some(format!("failed to keep `{path}`: {error}"));
            }
        }
        self.segments.push(segment);
        Ok(())
    }

    /// Reads records and skips those with a wrong checksum.
    fn read(
        &mut self,
        bytes: &[u8],
        each: &mut impl FnMut(u64, &[u8]) -> bool,
        recovered: &mut Recovered,
    ) -> ReadSegment {
        let mut done = ReadSegment {
            end: SEGMENT_HEAD_LEN.min(bytes.len()),
            used: true,
        };
        let mut rest = &bytes[done.end..];
        loop {
            match split_record(rest) {
                Ok(record) if record.number >= self.next => {
                    let lost = record.number - self.next;
                    recovered.records_lost += lost;
                    recovered.records += 1;
                    let used = each(record.number, record.payload);
                    done.used &= used && lost == 0;
                    self.next = record.number.saturating_add(1);
                    rest = record.after;
                    done.end = bytes.len() - rest.len();
                }
                Err(RecordFault::Checksum { after }) => rest = after,
                Ok(_) | Err(RecordFault::Torn) => return done,
            }
        }
    }

    /// A log without a segment yet.
    pub fn closed(place: LogLocation) -> Wal {
        Wal {
            place,
            segments: Vec::new(),
            file: None,
            next: 1,
            follows: 1,
        }
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.place.folder
    }

    /// Goes on at least at this number, which files say is not used yet: the log itself may have
    /// been removed by hand.
    pub fn skip_to(&mut self, number: u64) {
        if number > self.next {
            self.file = None;
            self.next = number;
        }
    }

    /// True when [`Wal::cut`] would remove something.
    pub fn can_cut(&self, needed: u64) -> bool {
        match &self.segments[..] {
            [] => false,
            [_] => needed >= self.next,
            [_, second, ..] => second.first <= needed,
        }
    }

    /// Number of the next record.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Size of all segments. Unit: bytes.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// Writes a batch and makes it durable.
    ///
    /// # Errors
    /// When it could not; nothing of the batch is in the log then.
    pub fn write(&mut self, batch: &Batch) -> Result<(), WalError> {
        let full = |segment: &Segment| segment.bytes > SEGMENT_BYTES;
        if self.file.is_none() || self.segments.last().is_none_or(full) {
            self.start_segment()?;
        }
        let (Some(file), Some(segment)) = (&self.file, self.segments.last_mut()) else {
            return Ok(());
        };
        let written = file
            .write_all_at(&batch.bytes, segment.bytes)
            .and_then(|()| file.sync_data());
        if let Err(error) = written {
            // What of it reached the disk is not known after a failed sync. It is cut off, so that
            // it cannot come back after a restart; where that fails too, nothing more is written
            // here.
            let cut = file.set_len(segment.bytes).and_then(|()| file.sync_all());
            let path = segment.path.clone();
            if cut.is_err() {
                // The next write starts a segment, and cuts this one first.
                self.file = None;
            }
            return Err(io_error("write", &path)(error));
        }
        segment.bytes += batch.bytes.len() as u64;
        self.next += batch.records;
        self.follows = self.next;
        Ok(())
    }

    fn create_folder(&self) -> io::Result<()> {
        let folder = &self.place.folder;
        std::fs::create_dir_all(folder)?;
        folder.parent().map_or(Ok(()), sync_folder)
    }

    fn start_segment(&mut self) -> Result<(), WalError> {
        self.file = None;
        // A tail that could not be cut when it was written must go before anything follows it.
        if let Some(last) = self.segments.last() {
            let file = OpenOptions::new().write(true).open(&last.path);
            file.and_then(|file| {
                file.set_len(last.bytes)?;
                file.sync_all()
            })
            .map_err(io_error("cut", &last.path))?;
            if last.first == self.next {
                let file = OpenOptions::new().write(true).open(&last.path);
                self.file = Some(file.map_err(io_error("open", &last.path))?);
                return Ok(());
            }
        }
        let LogLocation {
            folder,
            ending,
            generation,
        } = &self.place;
        if self.segments.is_empty() {
            self.create_folder().map_err(io_error("create", folder))?;
        }
        let path = folder.join(format!("{:016x}.{ending}", self.next));
        let temporary = path.with_extension("tmp");
        let created = File::create(&temporary).and_then(|mut file| {
            file.write_all(&MAGIC)?;
            file.write_all(&generation.to_le_bytes())?;
            file.write_all(&self.follows.to_le_bytes())?;
            file.sync_all()?;
            std::fs::rename(&temporary, &path)?;
            sync_folder(folder)?;
            Ok(file)
        });
        self.file = Some(created.map_err(io_error("create", &path))?);
        self.segments.push(Segment {
            path,
            first: self.next,
            bytes: SEGMENT_HEAD_LEN as u64,
        });
        Ok(())
    }

    /// Removes segments of which every record comes before `needed`: all of them when none is
    /// needed.
    ///
    /// # Errors
    /// When a file stays; it is tried again.
    pub fn cut(&mut self, needed: u64) -> Result<(), WalError> {
        while let Some(segment) = self.segments.first() {
            let end = match self.segments.get(1) {
                Some(next) => next.first,
                None => self.next,
            };
            if end > needed {
                break;
            }
            if self.segments.len() == 1 {
                self.file = None;
            }
            match std::fs::remove_file(&segment.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(io_error("remove", &segment.path)(error));
                }
                _ => drop(self.segments.remove(0)),
            }
        }
        Ok(())
    }
}

/// How far a segment could be read.
struct ReadSegment {
    /// End of the last complete record. Unit: bytes.
    end: usize,
    /// No record before it is missing, and all could be used.
    used: bool,
}

/// The head of a segment.
struct SegmentHead {
    generation: u64,
    /// Number after the last record before it.
    follows: u64,
}

/// Parses the head of a segment, if it is one.
fn segment_head(bytes: &[u8]) -> Option<SegmentHead> {
    let head = bytes.get(..SEGMENT_HEAD_LEN)?.strip_prefix(&MAGIC)?;
    let (generation, follows) = head.split_at(8);
    let number = |bytes: &[u8]| Some(u64::from_le_bytes(bytes.try_into().ok()?));
    Some(SegmentHead {
        generation: number(generation)?,
        follows: number(follows)?,
    })
}

/// Makes durable which files a folder has.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// A complete record.
struct Record<'b> {
    number: u64,
    payload: &'b [u8],
    after: &'b [u8],
}

/// Why there is no record.
enum RecordFault<'b> {
    /// Its bytes are not what was written; `after` them another may start.
    Checksum { after: &'b [u8] },
    /// It has no head, or no end.
    Torn,
}

fn split_record(bytes: &[u8]) -> Result<Record<'_>, RecordFault<'_>> {
    let (head, rest) = bytes.split_at_checked(HEAD_LEN).ok_or(RecordFault::Torn)?;
    let number = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let (len, crc) = (number(head) as usize, number(&head[4..]));
    if !(8..=RECORD_BYTES_MAX + 8).contains(&len) {
        return Err(RecordFault::Torn);
    }
    let (record, after) = rest.split_at_checked(len).ok_or(RecordFault::Torn)?;
    if crc32fast::hash(record) != crc {
        return Err(RecordFault::Checksum { after });
    }
    let (at, payload) = record.split_at(8);
    let mut first = [0; 8];
    first.copy_from_slice(at);
    Ok(Record {
        number: u64::from_le_bytes(first),
        payload,
        after,
    })
}

/// True when somewhere in what follows the last record there is one that was written later: then it
/// is no torn tail. It is not replayed: within a payload anything may look like a record.
fn holds_record(tail: &[u8], next: u64) -> bool {
    let bound = next.saturating_add(tail.len() as u64);
    (1..tail.len()).any(|at| {
        let rest = &tail[at..];
        let number = rest.get(HEAD_LEN..HEAD_LEN + 8);
        let number = number.and_then(|number| number.try_into().ok());
        // Checked first: a checksum over every offset would take forever.
        number.is_some_and(|number| (next..bound).contains(&u64::from_le_bytes(number)))
            && split_record(rest).is_ok()
    })
}

/// The first name for what is kept of a segment that is free, or has it already. It is outside of
/// the log's folder, which may go before people have looked.
fn unusable_name(path: &Path) -> Option<PathBuf> {
    let inode = |path: &Path| Some(std::fs::metadata(path).ok()?.ino());
    let folder = path.parent()?;
    let of_log = folder.file_name()?.to_str()?;
    let segment = path.file_name()?.to_str()?;
    (0..KEPT_NAMES_MAX)
        .map(|nth| match nth {
            0 => format!("{of_log}-{segment}.unusable"),
            nth => format!("{of_log}-{segment}.{nth}.unusable"),
        })
        .map(|name| folder.with_file_name(name))
        .find(|name| inode(name).is_none_or(|kept| Some(kept) == inode(path)))
}

/// Keeps a segment under another name for when the log gives it up.
fn keep_unusable(path: &Path) -> io::Result<()> {
    let name = unusable_name(path).ok_or(io::ErrorKind::AlreadyExists)?;
    if name.exists() {
        return Ok(());
    }
    match std::fs::hard_link(path, &name) {
        // Not every file system has links.
        Err(error) if error.kind() != io::ErrorKind::StorageFull => {
            std::fs::copy(path, &name).map(drop)
        }
        linked => linked,
    }
}

/// Reads the bytes of one segment as a start does; returns how many records it has.
pub fn read_any(bytes: &[u8]) -> u64 {
    let mut wal = Wal::closed(LogLocation {
        folder: PathBuf::new(),
        ending: "wal",
        generation: 0,
    });
    let mut recovered = Recovered::default();
    let mut before = 0;
    let read = wal.read(
        bytes,
        &mut |number, payload| {
            assert!(number > before && payload.len() <= bytes.len());
            before = number;
            true
        },
        &mut recovered,
    );
    assert!(read.end <= bytes.len());
    holds_record(&bytes[read.end..], wal.next);
    recovered.records
}

#[cfg(test)]
#[path = "wal_tests.rs"]
mod tests;
