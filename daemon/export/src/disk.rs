//! The spool's files: segments of records, their acknowledgements, the lock.
//!
//! A segment is a header (magic, version, host, boot, checksum) and records; a record is 52 bytes
//! with lengths, four numbers and two checksums, and a zstd frame of what [`record`](super::record)
//! says. The header of a record has a checksum of its own, so that a damaged payload does not hide
//! how many windows are gone with it. Acknowledgements stand in a file beside, eight bytes each:
//! lost ones cost a repeat. Nothing is ever changed in place; a segment is appended to by the run
//! that made it.
//!
//! All files are reached through the open directory, so its path may not be exchanged under them.

use super::gaps_file::GapsFile;
use super::identity::Identity;
use super::record::WindowHeader;
use host::private_dir::{DirError, PrivateDir, options};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::UNIX_EPOCH;

/// Begin of every segment; the last byte is the version.
const MAGIC: &[u8; 8] = b"FPSPOOL\x01";

/// Begin of every record.
const RECORD_MAGIC: u32 = 0x4652_5043;

/// Length of a record's header. Unit: bytes.
pub const RECORD_HEAD: usize = 52;

/// Largest payload of a record, packed or not. Unit: bytes. A window of the largest host is a
/// hundredth of it; what claims to be larger is damaged.
pub const RECORD_BYTES_MAX: usize = 64 << 20;

/// Most segments set aside because they could not be read; beyond it the oldest go.
const SET_ASIDE_MAX: usize = 4;

/// Most records looked for in one segment.
const RECORDS_MAX: usize = 100_000;

/// The spool's directory, locked.
#[derive(Debug)]
pub struct Dir {
    dir: PrivateDir,
    gaps: Mutex<GapsFile>,
}

impl Dir {
    /// Opens it, makes it where it is missing.
    ///
    /// # Errors
    /// [`DirError`].
    pub fn open(path: &Path) -> Result<Dir, DirError> {
        let dir = PrivateDir::open(path, "spool directory")?;
        Ok(Dir {
            gaps: Mutex::new(GapsFile::new(dir.base())),
            dir,
        })
    }

    /// Numbers of all segments, oldest first.
    pub fn segments(&self) -> io::Result<Vec<u64>> {
        self.numbered(".seg")
    }

    fn numbered(&self, suffix: &str) -> io::Result<Vec<u64>> {
        let mut ids = Vec::new();
        for entry in std::fs::read_dir(self.dir.base())? {
            let name = entry?.file_name();
            let id = name.to_str().and_then(|name| name.strip_suffix(suffix));
            ids.extend(id.and_then(|id| u64::from_str_radix(id, 16).ok()));
        }
        ids.sort_unstable();
        Ok(ids)
    }

    /// When a segment was last written to, as far as the disk tells. Unit: nanoseconds since 1970.
    pub fn modified_unix_ns(&self, id: u64) -> Option<i64> {
        let meta = std::fs::symlink_metadata(self.segment_path(id)).ok()?;
        let since = meta.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
        i64::try_from(since.as_nanos()).ok()
    }

    /// Sets a segment that cannot be read aside, so that the next start does not count it again. A
    /// few stay, for people.
    ///
    /// # Errors
    /// When it stays where it is.
    pub fn set_aside(&self, id: u64) -> io::Result<()> {
        let path = |id: u64| self.dir.base().join(format!("{id:016x}.bad"));
        std::fs::rename(self.segment_path(id), path(id))?;
        let aside = self.numbered(".bad")?;
        let excess = aside.len().saturating_sub(SET_ASIDE_MAX);
        for &id in &aside[..excess] {
            std::fs::remove_file(path(id))?;
        }
        Ok(())
    }

    fn segment_path(&self, id: u64) -> PathBuf {
        self.dir.base().join(format!("{id:016x}.seg"))
    }

    fn ack_path(&self, id: u64) -> PathBuf {
        self.dir.base().join(format!("{id:016x}.ack"))
    }

    /// Makes a segment.
    pub fn create(&self, id: u64, identity: &Identity) -> io::Result<SegmentFile> {
        let path = self.segment_path(id);
        // Notes of an older segment with this number would make new records look acknowledged.
        match std::fs::remove_file(self.ack_path(id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)?;
        let head = head(identity);
        let written = file
            .write_all_at(&head, 0)
            .and_then(|()| file.sync_data())
            .and_then(|()| self.dir.sync());
        if let Err(error) = written {
            // Nothing is in it; what cannot be removed is passed over at the next start.
            let _ = std::fs::remove_file(&path);
            return Err(error);
        }
        Ok(SegmentFile {
            file,
            len: head.len() as u64,
        })
    }

    /// Opens a segment that this run made to append to it again, behind `len` whole bytes.
    pub fn reopen(&self, id: u64, len: u64) -> io::Result<SegmentFile> {
        let file = options()
            .read(true)
            .write(true)
            .open(self.segment_path(id))?;
        file.set_len(len)?;
        Ok(SegmentFile { file, len })
    }

    /// Opens a segment to read from.
    pub fn reader(&self, id: u64) -> io::Result<File> {
        options().read(true).open(self.segment_path(id))
    }

    /// Removes a segment and its acknowledgements. One that is gone is removed.
    pub fn remove(&self, id: u64) {
        // The notes first: without them what is left is sent again, which is harmless; left alone
        // they would speak of a later segment with this number.
        for path in [self.ack_path(id), self.segment_path(id)] {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(segment = id, %error, "failed to remove a spool file");
                }
                _ => {}
            }
        }
    }

    /// Notes that a record was acknowledged. Not synced: a lost note costs a repeat. Of segments
    /// that are in memory only, or removed by now, there is nothing to note.
    pub fn ack(&self, id: u64, record: u32) -> io::Result<()> {
        if !self.segment_path(id).exists() {
            return Ok(());
        }
        let mut note = [0; 8];
        note[..4].copy_from_slice(&record.to_le_bytes());
        note[4..].copy_from_slice(&(!record).to_le_bytes());
        let path = self.ack_path(id);
        let mut file = options().create(true).append(true).open(path)?;
        file.write_all(&note)
    }

    fn acks(&self, id: u64) -> Vec<u32> {
        let mut bytes = Vec::new();
        let Ok(file) = options().read(true).open(self.ack_path(id)) else {
            return Vec::new();
        };
        // What cannot be read is sent again.
        let _ = file.take(RECORDS_MAX as u64 * 8).read_to_end(&mut bytes);
        let (notes, _) = bytes.as_chunks::<8>();
        let note = |note: &[u8; 8]| {
            let (record, check) = (u32_at(note, 0), u32_at(note, 4));
            (record == !check).then_some(record)
        };
        notes.iter().filter_map(note).collect()
    }

    /// The file of gaps. Whoever holds it writes what is true at that time: no text overtakes
    /// another.
    pub fn gaps(&self) -> MutexGuard<'_, GapsFile> {
        super::lock(&self.gaps)
    }

    /// Looks through a segment: headers only, and the last payload.
    ///
    /// What ends early or makes no sense at the end of the newest segment was being written when
    /// the daemon or the machine died. Elsewhere it is damage. It is cut off, and damage told once.
    pub fn scan(&self, id: u64, newest: bool) -> io::Result<Scanned> {
        let file = options()
            .read(true)
            .write(true)
            .open(self.segment_path(id))?;
        let len = file.metadata()?.len();
        let Some((identity, begin)) = read_head(&file)? else {
            return Ok(Scanned {
                damaged: len > 0 && !newest,
                ..Scanned::default()
            });
        };
        let mut scanned = Scanned {
            identity: Some(identity),
            ..Scanned::default()
        };
        let mut at = begin;
        while at < len && scanned.records.len() < RECORDS_MAX {
            let found = read_record_head(&file, at)?;
            let Some(head) = found.filter(|head| at + head.whole() <= len) else {
                scanned.damaged = true;
                break;
            };
            scanned.records.push(FoundRecord {
                offset: at,
                len: head.whole() as u32,
                about: head.about,
                acked: false,
            });
            at += head.whole();
        }
        // Of records that were made durable together several may be torn.
        while newest
            && let Some(last) = scanned.records.last()
            && read_record(&file, last.offset, last.len).is_err()
        {
            at = last.offset;
            scanned.records.pop();
            scanned.damaged = true;
        }
        if scanned.damaged {
            // What a crash tore ends the file; what is damaged has whole records behind it.
            let torn = newest && !records_follow(&file, at, len)?;
            // Either way: the next start is not to find and count it again.
            file.set_len(at)?;
            scanned.damaged = !torn;
        }
        for record in self.acks(id) {
            if let Some(found) = scanned.records.get_mut(record as usize) {
                found.acked = true;
            }
        }
        Ok(scanned)
    }
}

/// What is in a segment.
#[derive(Debug, Default)]
pub struct Scanned {
    /// Whose windows; none when not even that can be read.
    pub identity: Option<Identity>,
    /// Its records in order.
    pub records: Vec<FoundRecord>,
    /// Something after the last of them cannot be read.
    pub damaged: bool,
}

/// A record in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundRecord {
    /// Where it begins.
    pub offset: u64,
    /// Its length, header included.
    pub len: u32,
    /// What its header says.
    pub about: WindowHeader,
    /// The collector has it.
    pub acked: bool,
}

/// A segment that is being written.
#[derive(Debug)]
pub struct SegmentFile {
    file: File,
    len: u64,
}

impl SegmentFile {
    /// Appends a record and makes it durable; returns where it begins.
    ///
    /// # Errors
    /// When the disk does not take it; what was there before is still whole.
    pub fn append(&mut self, record: &[u8]) -> io::Result<u64> {
        let at = self.len;
        let written = self
            .file
            .write_all_at(record, at)
            .and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            // Whatever stays is cut off or passed over at the next start.
            let _ = self.file.set_len(at);
            return Err(error);
        }
        self.len += record.len() as u64;
        Ok(at)
    }

    /// Appends records one after the other and makes them durable at once. Returns where those
    /// begin that are, and why the next one is not.
    pub fn append_all(&mut self, records: &[Arc<[u8]>]) -> (Vec<u64>, Option<io::Error>) {
        let begin = self.len;
        let (mut offsets, mut failed) = (Vec::new(), None);
        for record in records {
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
            self.len = begin;
            let _ = self.file.set_len(begin);
            return (Vec::new(), Some(error));
        }
        (offsets, failed)
    }

    /// Its length. Unit: bytes.
    pub fn bytes(&self) -> u64 {
        self.len
    }
}

fn head(identity: &Identity) -> Vec<u8> {
    let mut head = MAGIC.to_vec();
    head.extend((identity.host_id.len() as u16).to_le_bytes());
    head.extend_from_slice(identity.host_id.as_bytes());
    head.extend(identity.boot_id);
    head.extend(crc32fast::hash(&head).to_le_bytes());
    head
}

/// The identity and where records begin; none when the header makes no sense.
fn read_head(file: &File) -> io::Result<Option<(Identity, u64)>> {
    let mut bytes = [0; 512];
    let got = read_up_to(file, &mut bytes, 0)?;
    let bytes = &bytes[..got];
    let parse = || {
        let rest = bytes.strip_prefix(MAGIC)?;
        let (len, rest) = rest.split_first_chunk::<2>()?;
        let (host, rest) = rest.split_at_checked(u16::from_le_bytes(*len).into())?;
        let (boot_id, rest) = rest.split_first_chunk::<16>()?;
        let (check, rest) = rest.split_first_chunk::<4>()?;
        let end = bytes.len() - rest.len();
        let sum = crc32fast::hash(&bytes[..end - 4]);
        let identity = Identity {
            host_id: std::str::from_utf8(host).ok()?.to_owned(),
            boot_id: *boot_id,
        };
        (sum == u32::from_le_bytes(*check)).then_some((identity, end as u64))
    };
    Ok(parse())
}

struct RecordHead {
    payload: u32,
    raw: u32,
    payload_sum: u32,
    about: WindowHeader,
}

impl RecordHead {
    fn whole(&self) -> u64 {
        u64::from(self.payload) + RECORD_HEAD as u64
    }
}

fn parse_record_head(bytes: &[u8; RECORD_HEAD]) -> Option<RecordHead> {
    let word = |at| u32_at(bytes, at);
    let long = |at| u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32;
    let sum = crc32fast::hash(&bytes[..RECORD_HEAD - 4]);
    let head = RecordHead {
        payload: word(4),
        raw: word(8),
        payload_sum: word(12),
        about: WindowHeader {
            sequence: long(16),
            start_unix_ns: long(24) as i64,
            end_unix_ns: long(32) as i64,
            samples: long(40),
        },
    };
    let sizes = head.payload.max(head.raw) as usize <= RECORD_BYTES_MAX;
    (word(0) == RECORD_MAGIC && word(48) == sum && sizes).then_some(head)
}

/// True when a whole head of a record begins somewhere behind `at`.
fn records_follow(file: &File, at: u64, len: u64) -> io::Result<bool> {
    const STEP: usize = 64 << 10;
    let mut bytes = vec![0; STEP + RECORD_HEAD];
    let mut from = at + 1;
    while from < len {
        let got = read_up_to(file, &mut bytes, from)?;
        let found = bytes[..got]
            .windows(RECORD_HEAD)
            .filter(|head| head.starts_with(&RECORD_MAGIC.to_le_bytes()))
            .any(|head| head.first_chunk().and_then(parse_record_head).is_some());
        if found {
            return Ok(true);
        }
        from += STEP as u64;
    }
    Ok(false)
}

fn read_record_head(file: &File, at: u64) -> io::Result<Option<RecordHead>> {
    let mut bytes = [0; RECORD_HEAD];
    let got = read_up_to(file, &mut bytes, at)?;
    Ok((got == RECORD_HEAD)
        .then(|| parse_record_head(&bytes))
        .flatten())
}

/// A record as it is written: header and packed payload.
///
/// # Errors
/// When the payload is over its bound or cannot be packed.
pub fn pack(
    compressor: &mut zstd::bulk::Compressor<'_>,
    payload: &[u8],
    about: &WindowHeader,
) -> io::Result<Vec<u8>> {
    if payload.len() > RECORD_BYTES_MAX {
        return Err(io::Error::other(
            "the window is larger than a record may be",
        ));
    }
    let packed = compressor.compress(payload)?;
    let mut record = Vec::with_capacity(RECORD_HEAD + packed.len());
    record.extend(RECORD_MAGIC.to_le_bytes());
    record.extend((packed.len() as u32).to_le_bytes());
    record.extend((payload.len() as u32).to_le_bytes());
    record.extend(crc32fast::hash(&packed).to_le_bytes());
    record.extend(about.sequence.to_le_bytes());
    record.extend(about.start_unix_ns.to_le_bytes());
    record.extend(about.end_unix_ns.to_le_bytes());
    record.extend(about.samples.to_le_bytes());
    record.extend(crc32fast::hash(&record).to_le_bytes());
    record.extend(packed);
    Ok(record)
}

/// The payload of a record.
///
/// # Errors
/// `InvalidData` when it is damaged.
pub fn unpack(record: &[u8]) -> io::Result<Vec<u8>> {
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, "the record is damaged");
    let (head, packed) = record
        .split_first_chunk::<RECORD_HEAD>()
        .ok_or_else(damaged)?;
    let head = parse_record_head(head).ok_or_else(damaged)?;
    if packed.len() != head.payload as usize || crc32fast::hash(packed) != head.payload_sum {
        return Err(damaged());
    }
    let payload = zstd::bulk::decompress(packed, head.raw as usize).map_err(|_| damaged())?;
    match payload.len() == head.raw as usize {
        true => Ok(payload),
        false => Err(damaged()),
    }
}

/// Reads and unpacks a record of a segment.
///
/// # Errors
/// `InvalidData` when it is damaged, others when the disk does not answer.
pub fn read_record(file: &File, offset: u64, len: u32) -> io::Result<Vec<u8>> {
    let mut record = vec![0; len as usize];
    if read_up_to(file, &mut record, offset)? != record.len() {
        let error = io::Error::new(io::ErrorKind::InvalidData, "the segment ends early");
        return Err(error);
    }
    unpack(&record)
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

/// The number at `at`, which lies within.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}
