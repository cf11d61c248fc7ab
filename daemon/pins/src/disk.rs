//! The files of pins: a directory of the daemon alone, a file of chunks for each pin, one for its
//! capture, and one that notes which collector has it.
//!
//! A file of a pin is a head (magic with version, what the pin is about, checksum) and chunks; a
//! chunk is a head of [`CHUNK_HEAD`] bytes with lengths, times and two checksums, and a zstd frame
//! of one window in the form of [`record`](export::record) with the times behind it, whose tables
//! go on from chunk to chunk until one begins anew. A file appears whole with its head, by a
//! rename, and is appended to then; what is cut by a crash ends at its last whole chunk. The
//! capture's file is the messages of a profile, in order, with a checksum each, and appears whole.
//!
//! All files are reached through the open directory, so its path may not be exchanged under them.

use super::{Brought, Chunk, Entry};
use export::disk::u32_at;
use host::private_dir::{DirError, PrivateDir, options};
use prost::Message;
use proto::agent as wire;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Begin of every file of a pin; the last byte is the version.
const MAGIC: &[u8; 8] = b"FPPIN\0\0\x01";

/// Begin of every file of a capture.
const CAPTURE_MAGIC: &[u8; 8] = b"FPPINC\0\x01";

/// Length of a chunk's head. Unit: bytes.
const CHUNK_HEAD: usize = 32;

/// Largest window in a chunk, unpacked. Unit: bytes. What claims to be larger is damaged.
const WINDOW_BYTES_MAX: usize = 32 << 20;

/// Set beside the length of a window before whose tables everything is forgotten.
const FRESH: u32 = 1 << 31;

/// Largest head of a file. Unit: bytes: a path of 4,096, and words.
const FACTS_BYTES_MAX: usize = 16 << 10;

/// Largest message of a capture's file. Unit: bytes. Twice what `proto` aims at with room to spare.
const MESSAGE_BYTES_MAX: usize = 8 << 20;

/// Longest note of what a collector said. Unit: bytes.
const NOTE_BYTES_MAX: u64 = 256;

/// Most chunks of one pin: an hour before and an hour after, by windows of a second.
const CHUNKS_MAX: usize = 8192;

/// How hard chunks are packed.
const LEVEL: i32 = 3;

/// The messages of a capture's profile, as they are kept.
#[derive(Debug, Default, PartialEq)]
pub struct Evidence {
    bytes: Vec<u8>,
}

impl Evidence {
    /// Takes the next message.
    pub fn push(&mut self, chunk: &proto::wire::ProfileChunk) {
        let message = chunk.encode_to_vec();
        self.bytes.extend((message.len() as u32).to_le_bytes());
        self.bytes.extend(crc32fast::hash(&message).to_le_bytes());
        self.bytes.extend(message);
    }

    /// Bytes so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The messages again.
    pub(super) fn messages(&self) -> io::Result<Vec<proto::wire::ProfileChunk>> {
        messages(&self.bytes)
    }
}

/// The directory.
#[derive(Debug)]
pub(super) struct Disk {
    dir: PrivateDir,
}

fn damaged(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl Disk {
    /// Opens the directory, makes it where it is missing, and locks it.
    pub fn open(path: &Path) -> Result<Disk, DirError> {
        let dir = PrivateDir::open(path, "directory of pins")?;
        Ok(Disk { dir })
    }

    fn pin_path(&self, id: u64) -> PathBuf {
        self.dir.base().join(format!("{id:016x}.pin"))
    }

    fn capture_path(&self, id: u64) -> PathBuf {
        self.dir.base().join(format!("{id:016x}.capture"))
    }

    fn brought_path(&self, id: u64) -> PathBuf {
        self.dir.base().join(format!("{id:016x}.brought"))
    }

    /// Notes which collector has a pin: a checksum, a byte that tells whether with its capture, and
    /// the collector's address.
    pub fn note(&self, id: u64, brought: &Brought) -> io::Result<()> {
        let flags = u8::from(brought.with_capture);
        let said = [&[flags], brought.to.as_bytes()].concat();
        let bytes = [&crc32fast::hash(&said).to_le_bytes(), &said[..]].concat();
        self.replace(&self.brought_path(id), &bytes)
    }

    /// What was noted; of a note that makes no sense nothing, so that the pin goes once more.
    fn brought(&self, id: u64) -> Option<Brought> {
        let file = options().read(true).open(self.brought_path(id)).ok()?;
        let mut bytes = Vec::new();
        file.take(NOTE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        let (sum, said) = bytes.split_first_chunk::<4>()?;
        let (&flags, to) = said.split_first()?;
        let sound = u32::from_le_bytes(*sum) == crc32fast::hash(said) && flags <= 1;
        let to = std::str::from_utf8(to).ok()?;
        sound.then(|| Brought {
            to: to.to_owned(),
            with_capture: flags == 1,
            refused: false,
        })
    }

    /// The newest pins there are, at most so many, and how many files could not be read to their
    /// end. What is beyond, and what was never whole, is removed.
    pub fn scan(&self, most: usize) -> (Vec<Entry>, u64) {
        let (mut ids, mut captures) = (Vec::new(), Vec::new());
        let entries = std::fs::read_dir(self.dir.base()).into_iter().flatten();
        for entry in entries.map_while(Result::ok) {
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let number = |end: &str| u64::from_str_radix(name.strip_suffix(end)?, 16).ok();
            ids.extend(number(".pin"));
            captures.extend(number(".capture"));
            captures.extend(number(".brought"));
            if name.ends_with(".tmp") {
                // Nobody reads it, and the next one replaces it.
                let _ = std::fs::remove_file(entry.path());
            }
        }
        ids.sort_unstable();
        for &id in &ids[..ids.len().saturating_sub(most)] {
            self.remove(id);
        }
        for id in captures {
            if !ids.contains(&id) {
                self.remove(id);
            }
        }
        let mut bad = 0;
        let mut found = Vec::new();
        for id in ids.into_iter().rev().take(most).rev() {
            match self.entry(id) {
                Ok((entry, whole)) => {
                    bad += u64::from(!whole);
                    found.push(entry);
                }
                Err(error) => {
                    bad += 1;
                    tracing::warn!(pin = id, %error, "failed to read a pin: it is removed");
                    self.remove(id);
                }
            }
        }
        (found, bad)
    }

    /// What a file says of its pin, and whether it is whole to its end.
    fn entry(&self, id: u64) -> io::Result<(Entry, bool)> {
        let mut file = options().read(true).open(self.pin_path(id))?;
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(damaged("it is no file"));
        }
        let (mut pin, mut at) = read_facts(&mut file)?;
        let mut range: Option<(i64, i64)> = None;
        let mut chunks = 0;
        while let Some((head, next)) = read_chunk_head(&file, at, meta.len())? {
            let (start, end) = range.unwrap_or((head.start, head.end));
            range = Some((start.min(head.start), end.max(head.end)));
            at = next;
            chunks += 1;
            if chunks >= CHUNKS_MAX {
                break;
            }
        }
        let whole = at == meta.len();
        if let Some((start_unix_ns, end_unix_ns)) = range {
            pin.range = Some(wire::TimeRange {
                start_unix_ns,
                end_unix_ns,
            });
        }
        let capture = std::fs::symlink_metadata(self.capture_path(id)).ok();
        let capture_bytes = capture.map_or(0, |meta| meta.len());
        let entry = Entry {
            pin: wire::Pin {
                id,
                // Numbers of captures begin anew with the daemon; what was captured is in the file.
                capture_id: 0,
                ..pin
            },
            file_bytes: at,
            capture_bytes,
            brought: self.brought(id),
            ..Entry::default()
        };
        Ok((entry, whole))
    }

    /// Makes the file of a pin with its first chunks.
    pub fn create(&self, pin: &wire::Pin, chunks: &[Chunk]) -> io::Result<u64> {
        let facts = pin.encode_to_vec();
        let mut bytes = MAGIC.to_vec();
        bytes.extend((facts.len() as u32).to_le_bytes());
        bytes.extend(crc32fast::hash(&facts).to_le_bytes());
        bytes.extend(facts);
        chunks.iter().for_each(|chunk| bytes.extend(&chunk[..]));
        self.replace(&self.pin_path(pin.id), &bytes)?;
        Ok(bytes.len() as u64)
    }

    /// Appends chunks behind the `len` bytes that are whole. On an error the file ends where it
    /// did.
    pub fn append(&self, id: u64, len: u64, chunks: &[Chunk]) -> io::Result<u64> {
        let file = options().write(true).open(self.pin_path(id))?;
        let bytes = chunks.concat();
        let written = file
            .write_all_at(&bytes, len)
            .and_then(|()| file.sync_data());
        if let Err(error) = written {
            // What is there beyond is overwritten by the next try, or passed over by the next
            // start.
            let _ = file.set_len(len);
            return Err(error);
        }
        Ok(len + bytes.len() as u64)
    }

    /// Makes the file of a pin's capture.
    pub fn keep_capture(&self, id: u64, evidence: &Evidence) -> io::Result<u64> {
        let mut bytes = CAPTURE_MAGIC.to_vec();
        bytes.extend(&evidence.bytes);
        self.replace(&self.capture_path(id), &bytes)?;
        Ok(bytes.len() as u64)
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        // Each file has its own: those of one pin are written by several threads.
        let mut whole = path.as_os_str().to_owned();
        whole.push(".tmp");
        let whole = PathBuf::from(whole);
        let written = (|| {
            let mut file = options()
                .write(true)
                .create(true)
                .truncate(true)
                .open(&whole)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            std::fs::rename(&whole, path)?;
            self.dir.sync()
        })();
        if written.is_err() {
            // A part of it takes room that others need.
            let _ = std::fs::remove_file(&whole);
        }
        written
    }

    /// Removes a pin's files. One that is gone is removed.
    pub fn remove(&self, id: u64) {
        for path in [
            self.brought_path(id),
            self.capture_path(id),
            self.pin_path(id),
        ] {
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(pin = id, %error, "failed to remove a pin's file");
                }
                _ => {}
            }
        }
    }

    /// The chunks of a pin's file, of which `len` bytes are whole.
    pub fn chunks(&self, id: u64, len: u64) -> io::Result<Vec<Chunk>> {
        let mut file = options().read(true).open(self.pin_path(id))?;
        let (_, mut at) = read_facts(&mut file)?;
        let mut chunks = Vec::new();
        while let Some((_, next)) = read_chunk_head(&file, at, len)? {
            let mut chunk = vec![0; (next - at) as usize];
            file.read_exact_at(&mut chunk, at)?;
            chunks.push(chunk.into());
            at = next;
            if chunks.len() >= CHUNKS_MAX {
                break;
            }
        }
        Ok(chunks)
    }

    /// The messages of a pin's capture, at most so many bytes of them.
    pub fn capture(&self, id: u64, most: u64) -> io::Result<Vec<proto::wire::ProfileChunk>> {
        let file = options().read(true).open(self.capture_path(id))?;
        let mut bytes = Vec::new();
        file.take(most).read_to_end(&mut bytes)?;
        let rest = bytes
            .strip_prefix(&CAPTURE_MAGIC[..])
            .ok_or_else(|| damaged("it is no capture"))?;
        messages(rest)
    }
}

fn messages(mut rest: &[u8]) -> io::Result<Vec<proto::wire::ProfileChunk>> {
    let mut messages = Vec::new();
    while !rest.is_empty() {
        let (head, after) = rest
            .split_at_checked(8)
            .ok_or_else(|| damaged("it ends early"))?;
        let (len, sum) = (u32_at(head, 0) as usize, u32_at(head, 4));
        let fits = len <= MESSAGE_BYTES_MAX;
        let (message, after) = after
            .split_at_checked(len)
            .filter(|(message, _)| fits && crc32fast::hash(message) == sum)
            .ok_or_else(|| damaged("a message is damaged"))?;
        let message = proto::wire::ProfileChunk::decode(message);
        messages.push(message.map_err(|_| damaged("a message is damaged"))?);
        rest = after;
    }
    Ok(messages)
}

struct ChunkHead {
    packed: u32,
    raw: usize,
    fresh: bool,
    start: i64,
    end: i64,
}

/// A window as a chunk; `fresh`: its tables need none of those before.
pub(super) fn pack(payload: &[u8], (start, end): (i64, i64), fresh: bool) -> io::Result<Chunk> {
    if payload.len() > WINDOW_BYTES_MAX {
        return Err(io::Error::other("the window is larger than a chunk may be"));
    }
    let packed = zstd::bulk::compress(payload, LEVEL)?;
    let mut chunk = Vec::with_capacity(CHUNK_HEAD + packed.len());
    chunk.extend((packed.len() as u32).to_le_bytes());
    let flag = if fresh { FRESH } else { 0 };
    chunk.extend((payload.len() as u32 | flag).to_le_bytes());
    chunk.extend(start.to_le_bytes());
    chunk.extend(end.to_le_bytes());
    chunk.extend(crc32fast::hash(&packed).to_le_bytes());
    chunk.extend(crc32fast::hash(&chunk).to_le_bytes());
    chunk.extend(packed);
    Ok(chunk.into())
}

/// The window of a chunk, and whether its tables begin anew.
pub(super) fn unpack(chunk: &[u8]) -> io::Result<(Vec<u8>, bool)> {
    let broken = || damaged("a window is damaged");
    let (head, packed) = chunk.split_first_chunk::<CHUNK_HEAD>().ok_or_else(broken)?;
    let known = parse_chunk_head(head).ok_or_else(broken)?;
    let (raw, sum) = (known.raw, u32_at(head, 24));
    if packed.len() != known.packed as usize || crc32fast::hash(packed) != sum {
        return Err(broken());
    }
    let payload = zstd::bulk::decompress(packed, raw).map_err(|_| broken())?;
    match payload.len() == raw {
        true => Ok((payload, known.fresh)),
        false => Err(broken()),
    }
}

fn parse_chunk_head(head: &[u8; CHUNK_HEAD]) -> Option<ChunkHead> {
    let word = u32_at(head, 4);
    let raw = (word & !FRESH) as usize;
    let sound = u32_at(head, 28) == crc32fast::hash(&head[..28]) && raw <= WINDOW_BYTES_MAX;
    let found = ChunkHead {
        packed: u32_at(head, 0),
        raw,
        fresh: word & FRESH != 0,
        start: i64_at(head, 8),
        end: i64_at(head, 16),
    };
    (sound && found.start <= found.end).then_some(found)
}

/// The head of the chunk at `at` of `len` bytes and where the next one begins; none where there is
/// no whole one.
fn read_chunk_head(file: &File, at: u64, len: u64) -> io::Result<Option<(ChunkHead, u64)>> {
    if len.saturating_sub(at) < CHUNK_HEAD as u64 {
        return Ok(None);
    }
    let mut head = [0; CHUNK_HEAD];
    file.read_exact_at(&mut head, at)?;
    let Some(head) = parse_chunk_head(&head) else {
        return Ok(None);
    };
    let next = at + CHUNK_HEAD as u64 + u64::from(head.packed);
    Ok((next <= len).then_some((head, next)))
}

/// What the pin is about, and where its chunks begin.
fn read_facts(file: &mut File) -> io::Result<(wire::Pin, u64)> {
    let mut head = [0; 16];
    file.read_exact(&mut head)?;
    let (len, sum) = (u32_at(&head, 8) as usize, u32_at(&head, 12));
    if &head[..8] != MAGIC || len > FACTS_BYTES_MAX {
        return Err(damaged("it is no pin"));
    }
    let mut facts = vec![0; len];
    file.read_exact(&mut facts)?;
    if crc32fast::hash(&facts) != sum {
        return Err(damaged("its head is damaged"));
    }
    let pin = wire::Pin::decode(&facts[..]).map_err(|_| damaged("its head is damaged"))?;
    Ok((pin, 16 + len as u64))
}

fn i64_at(bytes: &[u8], at: usize) -> i64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    i64::from_le_bytes(word)
}
