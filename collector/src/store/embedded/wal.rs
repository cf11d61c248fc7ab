//! The write-ahead log: what was pushed and is not in a partition's file yet.
//!
//! A folder of segments named by their first record. A record is its length, a checksum, its number
//! and its payload. Records are numbered without a hole, so a tail that was torn by a crash ends the
//! log and nothing that follows by accident is believed. Callers put records in a batch; one of them
//! writes and syncs the batch for all. A batch that could not be written is cut off again and fails as a
//! whole: nothing of it was acknowledged.

use super::codec::Damage;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// Begin of every segment: what it is, and the version of its format.
const MAGIC: [u8; 8] = *b"fpwal\0\0\x01";

/// Length and checksum before each record. Unit: bytes.
const HEAD_LEN: usize = 8;

/// Largest record. Unit: bytes. A window with the definitions of a first push is a few MiB.
pub const RECORD_BYTES_MAX: usize = 256 << 20;

/// A segment beyond it is followed by a new one. Unit: bytes. Smaller means that space is given back
/// sooner; larger means fewer files.
const SEGMENT_BYTES: u64 = 16 << 20;

/// Why the log cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WalError {
    /// A file could not be read or written.
    #[error("failed to {operation} `{path}`: {error}")]
    Io {
        /// What was being done.
        operation: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system said.
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
    folder: PathBuf,
    segments: Vec<Segment>,
    /// The last segment while it can be written.
    file: Option<File>,
    /// Number of the next record to be written.
    next: u64,
}

/// What was found when the log was opened.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Records that were read.
    pub records: u64,
    /// Bytes after the last whole record, cut off.
    pub torn_bytes: u64,
    /// Segments that do not follow from those before.
    pub segments_unusable: u64,
}

impl Wal {
    /// Opens the log in `folder`, gives every record to `each`, and goes on after the last one.
    ///
    /// # Errors
    /// When files cannot be read or written. What is damaged is not an error: it ends the log.
    pub fn open(
        folder: &Path,
        mut each: impl FnMut(u64, &[u8]),
    ) -> Result<(Wal, Recovered), WalError> {
        std::fs::create_dir_all(folder).map_err(io_error("create", folder))?;
        let mut found = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(io_error("list", folder))? {
            let path = entry.map_err(io_error("list", folder))?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let number = name
                .and_then(|name| name.strip_suffix(".wal"))
                .and_then(|name| u64::from_str_radix(name, 16).ok());
            if let Some(first) = number {
                found.push((first, path));
            }
        }
        found.sort();
        let mut wal = Wal {
            folder: folder.to_owned(),
            segments: Vec::new(),
            file: None,
            next: found.first().map_or(1, |(first, _)| *first),
        };
        let mut recovered = Recovered::default();
        for (first, path) in found {
            let bytes = std::fs::read(&path).map_err(io_error("read", &path))?;
            if first != wal.next {
                // What it follows was lost. Kept aside for people; its windows were never acknowledged
                // unless somebody removed a file.
                recovered.segments_unusable += 1;
                let aside = path.with_extension("wal.unusable");
                std::fs::rename(&path, &aside).map_err(io_error("rename", &path))?;
                continue;
            }
            let good = wal.read(&bytes, &mut each, &mut recovered);
            recovered.torn_bytes += bytes.len() as u64 - good;
            if good == 0 {
                let aside = path.with_extension("wal.unusable");
                std::fs::rename(&path, &aside).map_err(io_error("rename", &path))?;
                continue;
            }
            if good < bytes.len() as u64 {
                let file = OpenOptions::new().write(true).open(&path);
                let file = file.map_err(io_error("open", &path))?;
                file.set_len(good)
                    .and_then(|()| file.sync_all())
                    .map_err(io_error("cut", &path))?;
            }
            wal.segments.push(Segment {
                path,
                first,
                bytes: good,
            });
        }
        Ok((wal, recovered))
    }

    /// Reads whole records; returns where they end.
    fn read(
        &mut self,
        bytes: &[u8],
        each: &mut impl FnMut(u64, &[u8]),
        recovered: &mut Recovered,
    ) -> u64 {
        let Some(mut rest) = bytes.strip_prefix(&MAGIC) else {
            return 0;
        };
        while let Ok((number, payload, after)) = split_record(rest) {
            if number != self.next {
                break;
            }
            each(number, payload);
            recovered.records += 1;
            self.next += 1;
            rest = after;
        }
        (bytes.len() - rest.len()) as u64
    }

    /// A log without a file, until [`Wal::open`] has given one.
    pub fn closed(folder: &Path) -> Wal {
        Wal {
            folder: folder.to_owned(),
            segments: Vec::new(),
            file: None,
            next: 1,
        }
    }

    /// Goes on at least at this number, which files say is not used yet: the log itself may have been
    /// removed by hand.
    ///
    /// # Errors
    /// When old segments stay.
    pub fn skip_to(&mut self, number: u64) -> Result<(), WalError> {
        if number <= self.next {
            return Ok(());
        }
        self.file = None;
        for segment in self.segments.drain(..) {
            let aside = segment.path.with_extension("wal.unusable");
            std::fs::rename(&segment.path, &aside).map_err(io_error("rename", &segment.path))?;
        }
        self.next = number;
        Ok(())
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
            self.begin_segment()?;
        }
        let (Some(file), Some(segment)) = (&self.file, self.segments.last_mut()) else {
            return Ok(());
        };
        let written = file
            .write_all_at(&batch.bytes, segment.bytes)
            .and_then(|()| file.sync_data());
        if let Err(error) = written {
            // What of it reached the disk is not known after a failed sync. It is cut off, so that it
            // cannot come back after a restart; where that fails too, nothing more is written here.
            let cut = file.set_len(segment.bytes).and_then(|()| file.sync_all());
            let path = segment.path.clone();
            if cut.is_err() {
                // The next write begins a segment, and cuts this one first.
                self.file = None;
            }
            return Err(io_error("write", &path)(error));
        }
        segment.bytes += batch.bytes.len() as u64;
        self.next += batch.records;
        Ok(())
    }

    fn begin_segment(&mut self) -> Result<(), WalError> {
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
        let path = self.folder.join(format!("{:016x}.wal", self.next));
        let temporary = path.with_extension("tmp");
        let created = File::create(&temporary).and_then(|mut file| {
            file.write_all(&MAGIC)?;
            file.sync_all()?;
            std::fs::rename(&temporary, &path)?;
            File::open(&self.folder)?.sync_all()?;
            Ok(file)
        });
        self.file = Some(created.map_err(io_error("create", &path))?);
        self.segments.push(Segment {
            path,
            first: self.next,
            bytes: MAGIC.len() as u64,
        });
        Ok(())
    }

    /// Removes segments of which every record comes before `needed`.
    ///
    /// # Errors
    /// When a file stays; it is tried again.
    pub fn cut(&mut self, needed: u64) -> Result<(), WalError> {
        let all = needed >= self.next;
        while let Some(segment) = self.segments.first() {
            let end = match self.segments.get(1) {
                Some(next) => next.first,
                None if all && self.next > segment.first => self.next,
                None => break,
            };
            if end > needed {
                break;
            }
            if self.segments.len() == 1 {
                // The next number must stay known: a new segment says it before the old one goes.
                self.begin_segment()?;
            }
            let path = self.segments[0].path.clone();
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(io_error("remove", &path)(error));
                }
                _ => drop(self.segments.remove(0)),
            }
        }
        Ok(())
    }
}

fn split_record(bytes: &[u8]) -> Result<(u64, &[u8], &[u8]), Damage> {
    let (head, rest) = bytes
        .split_at_checked(HEAD_LEN)
        .ok_or(Damage("a record has no head"))?;
    let number = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let (len, crc) = (number(head) as usize, number(&head[4..]));
    if !(8..=RECORD_BYTES_MAX + 8).contains(&len) {
        return Err(Damage("a record's length is impossible"));
    }
    let (record, rest) = rest
        .split_at_checked(len)
        .ok_or(Damage("a record is torn"))?;
    if crc32fast::hash(record) != crc {
        return Err(Damage("a record's checksum is wrong"));
    }
    let (at, payload) = record.split_at(8);
    let mut first = [0; 8];
    first.copy_from_slice(at);
    Ok((u64::from_le_bytes(first), payload, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(folder: &Path) -> (Wal, Recovered, Vec<Vec<u8>>) {
        let mut records = Vec::new();
        let (wal, recovered) =
            Wal::open(folder, |_, payload| records.push(payload.to_vec())).unwrap();
        (wal, recovered, records)
    }

    fn write(wal: &mut Wal, payloads: &[&[u8]]) {
        let mut batch = Batch::default();
        for (at, payload) in payloads.iter().enumerate() {
            batch.add(wal.next() + at as u64, payload);
        }
        wal.write(&batch).unwrap();
    }

    #[test]
    fn what_was_written_is_read_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let (mut wal, ..) = open(folder.path());
        write(&mut wal, &[b"one", b"two"]);
        write(&mut wal, &[b""]);
        drop(wal);
        let (mut wal, recovered, records) = open(folder.path());
        assert_eq!(records, [&b"one"[..], b"two", b""]);
        assert_eq!(recovered.torn_bytes, 0);
        write(&mut wal, &[b"four"]);
        assert_eq!(open(folder.path()).2.len(), 4);
    }

    #[test]
    fn a_tail_torn_anywhere_ends_the_log_and_it_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let (mut wal, ..) = open(folder.path());
        write(&mut wal, &[b"first"]);
        let whole = wal.segments[0].bytes;
        write(&mut wal, &[b"second"]);
        let (path, len) = (wal.segments[0].path.clone(), wal.segments[0].bytes);
        drop(wal);
        let bytes = std::fs::read(&path).unwrap();
        for end in whole..len {
            std::fs::write(&path, &bytes[..end as usize]).unwrap();
            let (mut wal, recovered, records) = open(folder.path());
            assert_eq!(records, [b"first"]);
            assert_eq!(recovered.torn_bytes, end - whole);
            write(&mut wal, &[b"again"]);
            assert_eq!(open(folder.path()).2, [&b"first"[..], b"again"]);
            for segment in &wal.segments[1..] {
                std::fs::remove_file(&segment.path).unwrap();
            }
        }
    }

    #[test]
    fn a_changed_byte_ends_the_log_there() {
        let folder = tempfile::tempdir().unwrap();
        let (mut wal, ..) = open(folder.path());
        write(&mut wal, &[b"first", b"second"]);
        let path = wal.segments[0].path.clone();
        let mut bytes = std::fs::read(&path).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(open(folder.path()).2, [b"first"]);
    }

    #[test]
    fn segments_go_when_nothing_in_them_is_needed() {
        let folder = tempfile::tempdir().unwrap();
        let (mut wal, ..) = open(folder.path());
        let large = vec![7; SEGMENT_BYTES as usize + 1];
        for _ in 0..3 {
            write(&mut wal, &[&large]);
        }
        wal.cut(2).unwrap();
        assert_eq!(wal.segments.len(), 2);
        wal.cut(4).unwrap();
        assert_eq!(wal.segments.len(), 1);
        write(&mut wal, &[b"after"]);
        drop(wal);
        let (wal, _, records) = open(folder.path());
        assert_eq!((records, wal.next()), (vec![b"after".to_vec()], 5));
    }

    #[test]
    fn numbers_go_on_after_everything_was_cut() {
        let folder = tempfile::tempdir().unwrap();
        let (mut wal, ..) = open(folder.path());
        write(&mut wal, &[b"one"]);
        wal.cut(2).unwrap();
        drop(wal);
        assert_eq!(open(folder.path()).0.next(), 2);
    }

    #[test]
    fn any_bytes_are_read_or_end_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("0000000000000001.wal");
        for bytes in [&b""[..], b"fpwal", b"garbage of some length"] {
            std::fs::write(&path, bytes).unwrap();
            let (_, recovered, records) = open(folder.path());
            assert!(records.is_empty());
            assert_eq!(recovered.torn_bytes, bytes.len() as u64);
        }
    }
}
