//! The files of pins: one for each, in a directory of the collector alone.
//!
//! A file is a head (magic with version, sizes of the parts, what the pin is about, checksum) and the messages of its
//! profiles, each with its part, lengths and checksum and packed by zstd. It is written beside and appears whole, by a
//! rename. What is in a file is an agent's, so it is read as an attacker's though its checksums are right.
//!
//! Blocks on the disk. The index is locked for moments, never across a read or write of a file.

use super::limits::{HEAD_BYTES_MAX, MESSAGE_BYTES_MAX, PART_BYTES_MAX, PINS_MAX};
use profile::Profile;
use prost::Message;
use proto::collector::HostPin;
use proto::wire::ProfileChunk;
use proto::{AssembleError, ProfileAssembler};
use std::collections::{BTreeMap, HashMap};
use std::fs::{DirBuilder, File, TryLockError};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Begin of every file; the last byte is the version.
const MAGIC: &[u8; 8] = b"FPHPIN\0\x01";

/// Magic, bytes of both parts, length of what follows, checksum of all from the sizes on. Unit: bytes.
const HEAD: usize = 32;

/// Head of a message: packed length, unpacked, part, checksum of these and what follows. Unit: bytes.
const MESSAGE_HEAD: usize = 16;

/// How hard messages are packed.
const LEVEL: i32 = 6;

/// Which profile of a pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The recorder's minutes.
    Minutes = 1,
    /// What was captured.
    Captured = 2,
}

/// What the files may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// All of them. Unit: bytes.
    pub bytes: u64,
    /// Those of one host. Unit: bytes.
    pub host_bytes: u64,
    /// Age since they came. Unit: nanoseconds.
    pub age_ns: i64,
}

/// Pins that were removed, by why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Over their age.
    pub age: u64,
    /// Over the share of their host.
    pub host: u64,
    /// Over what all may take.
    pub disk: u64,
}

/// Why the directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It cannot be made or opened.
    #[error("failed to open directory of pins `{}`", path.display())]
    Open {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another collector has it.
    #[error("failed to lock directory of pins `{}`: another collector uses it", .0.display())]
    Locked(PathBuf),
}

/// Why a pin cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// There is none, or not this part of it.
    #[error("there is no pin `{0}`, or nothing was captured with it")]
    Unknown(u64),
    /// Its file.
    #[error("failed to read pin `{id}`: {source}")]
    Read {
        /// The pin.
        id: u64,
        /// Why.
        source: io::Error,
    },
    /// Its profile.
    #[error("failed to read pin `{id}`: {source}")]
    Assemble {
        /// The pin.
        id: u64,
        /// Why.
        source: AssembleError,
    },
    /// Nobody waits for it any more.
    #[error("the query was given up")]
    Cancelled,
}

/// Why a pin was not taken.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The disk did not take it.
    #[error("failed to write the pin")]
    Write(#[from] io::Error),
    /// More than one host may have.
    #[error("it takes {bytes} bytes, and pins of one host {most} at most (`pins.host_mib`)")]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The bound.
        most: u64,
    },
}

#[derive(Default)]
struct Index {
    pins: BTreeMap<u64, Kept>,
    /// The number of the next.
    next: u64,
}

#[derive(Clone)]
struct Kept {
    pin: HostPin,
    bytes: u64,
}

/// See the module.
pub struct Files {
    dir: PathBuf,
    handle: File,
    _lock: File,
    index: Mutex<Index>,
    bounds: Bounds,
    uploads: AtomicU64,
    /// Files that could not be read when they were found.
    pub damaged: u64,
}

/// A pin on its way into its file; removed when it is dropped before it is finished.
pub struct Upload<'f> {
    files: &'f Files,
    path: PathBuf,
    file: BufWriter<File>,
    head: HostPin,
    /// Packed, of both parts.
    sizes: [u64; 2],
    finished: bool,
}

fn damaged(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl Files {
    /// Opens the directory, makes it where it is missing, and looks at all files. Those that are no pins are removed.
    ///
    /// # Errors
    /// When it cannot be used.
    pub fn open(dir: &Path, bounds: Bounds) -> Result<Files, OpenError> {
        let failed = |source| OpenError::Open {
            path: dir.to_owned(),
            source,
        };
        let make = DirBuilder::new().recursive(true).mode(0o700).create(dir);
        make.map_err(failed)?;
        let handle = File::open(dir).map_err(failed)?;
        let lock = options()
            .append(true)
            .create(true)
            .open(dir.join("lock"))
            .map_err(failed)?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => OpenError::Locked(dir.to_owned()),
            TryLockError::Error(source) => failed(source),
        })?;
        let mut files = Files {
            dir: dir.to_owned(),
            handle,
            _lock: lock,
            index: Mutex::default(),
            bounds,
            uploads: AtomicU64::new(0),
            damaged: 0,
        };
        files.damaged = files.scan().map_err(failed)?;
        Ok(files)
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, id: u64) -> PathBuf {
        self.dir.join(format!("{id:016x}.pin"))
    }

    fn scan(&self) -> io::Result<u64> {
        let mut index = self.index();
        let mut bad = 0;
        for entry in std::fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if name.ends_with(".tmp") {
                // Nobody was told that it is kept.
                let _ = std::fs::remove_file(entry.path());
                continue;
            }
            let number = name.strip_suffix(".pin");
            let number = number.and_then(|digits| u64::from_str_radix(digits, 16).ok());
            let Some(id) = number else { continue };
            // Even of what cannot be read the number is used up.
            index.next = index.next.max(id);
            match read_kept(&entry.path(), id) {
                Ok(kept) => {
                    index.pins.insert(id, kept);
                }
                Err(error) => {
                    bad += 1;
                    tracing::warn!(pin = id, %error, "failed to read a pin");
                    if error.kind() == io::ErrorKind::InvalidData {
                        let _ = std::fs::remove_file(entry.path());
                    }
                }
            }
        }
        Ok(bad)
    }

    /// What the files may take.
    pub fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// What there is, newest first.
    pub fn list(&self) -> Vec<HostPin> {
        let index = self.index();
        index
            .pins
            .values()
            .rev()
            .map(|kept| kept.pin.clone())
            .collect()
    }

    /// Number of pins, and their bytes.
    pub fn size(&self) -> (u64, u64) {
        let index = self.index();
        let bytes = index.pins.values().map(|kept| kept.bytes).sum();
        (index.pins.len() as u64, bytes)
    }

    /// The same pin, if it is here.
    pub fn find(&self, pin: &HostPin) -> Option<HostPin> {
        let index = self.index();
        let found = index.pins.values().find(|kept| is_same(&kept.pin, pin));
        found.map(|kept| kept.pin.clone())
    }

    /// Begins to write a pin.
    ///
    /// # Errors
    /// When the disk takes nothing.
    pub fn begin(&self, head: HostPin) -> io::Result<Upload<'_>> {
        let number = self.uploads.fetch_add(1, Ordering::Relaxed);
        let path = self.dir.join(format!("{number}.tmp"));
        let file = options()
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)?;
        let mut upload = Upload {
            files: self,
            path,
            file: BufWriter::new(file),
            head,
            sizes: [0, 0],
            finished: false,
        };
        let facts = upload.head.encode_to_vec();
        // Sizes and checksum are known at the end.
        upload.file.write_all(&[0; HEAD])?;
        upload.file.write_all(&facts)?;
        Ok(upload)
    }

    /// One profile of a pin. Given up when `gone` says so.
    ///
    /// # Errors
    /// When there is none, or it cannot be read.
    pub fn read(&self, id: u64, part: Part, gone: impl Fn() -> bool) -> Result<Profile, ReadError> {
        let kept = self.index().pins.get(&id).cloned();
        let kept = kept.ok_or(ReadError::Unknown(id))?;
        let pin = kept.pin.pin.unwrap_or_default();
        if part == Part::Captured && pin.capture_bytes == 0 {
            return Err(ReadError::Unknown(id));
        }
        let read = |source| ReadError::Read { id, source };
        let broken = |what| read(damaged(what));
        let mut file = BufReader::new(File::open(self.path(id)).map_err(read)?);
        let (_, _, len) = read_head(&mut file).map_err(read)?;
        let mut left = kept.bytes.saturating_sub((HEAD + len) as u64);
        let mut assembler = ProfileAssembler::with_limit(PART_BYTES_MAX);
        while left > 0 && !assembler.is_complete() {
            if gone() {
                return Err(ReadError::Cancelled);
            }
            let mut head = [0; MESSAGE_HEAD];
            file.read_exact(&mut head).map_err(read)?;
            let [packed_len, raw, of, sum] = words(&head);
            left = left
                .checked_sub(MESSAGE_HEAD as u64 + u64::from(packed_len))
                .ok_or_else(|| broken("a message is longer than the file"))?;
            if of != part as u32 {
                file.seek_relative(packed_len.into()).map_err(read)?;
                continue;
            }
            let (packed_len, raw) = (packed_len as usize, raw as usize);
            if packed_len > 2 * MESSAGE_BYTES_MAX || raw > MESSAGE_BYTES_MAX {
                return Err(broken("a message is too long"));
            }
            let mut packed = vec![0; packed_len];
            file.read_exact(&mut packed).map_err(read)?;
            if message_sum([packed_len as u32, raw as u32, of], &packed) != sum {
                return Err(broken("a message is damaged"));
            }
            let bytes = zstd::bulk::decompress(&packed, raw).map_err(read)?;
            let chunk = ProfileChunk::decode(&bytes[..]);
            let chunk = chunk.map_err(|_| broken("a message is damaged"))?;
            let assemble = |source| ReadError::Assemble { id, source };
            assembler.push(chunk).map_err(assemble)?;
        }
        let assemble = |source| ReadError::Assemble { id, source };
        assembler.finish().map_err(assemble)
    }

    /// Removes what is over its age, over the share of its host and over what all may take: of hosts the one with
    /// the most loses its oldest.
    pub fn prune(&self, now_unix_ns: i64) -> Removed {
        let (mut removed, mut gone) = (Removed::default(), Vec::new());
        {
            let mut index = self.index();
            let aged = now_unix_ns.saturating_sub(self.bounds.age_ns);
            index.pins.retain(|&id, kept| {
                let stays = kept.pin.received_unix_ns >= aged;
                if !stays {
                    gone.push(id);
                }
                stays
            });
            removed.age = gone.len() as u64;
            while let Some((id, why)) = dispensable(&index.pins, self.bounds) {
                index.pins.remove(&id);
                gone.push(id);
                match why {
                    Why::Host => removed.host += 1,
                    Why::Disk => removed.disk += 1,
                }
            }
        }
        for id in gone {
            if let Err(error) = std::fs::remove_file(self.path(id)) {
                tracing::warn!(pin = id, %error, "failed to remove a pin's file");
            }
        }
        removed
    }
}

enum Why {
    Host,
    Disk,
}

fn dispensable(pins: &BTreeMap<u64, Kept>, bounds: Bounds) -> Option<(u64, Why)> {
    let mut hosts: HashMap<&str, (u64, u64)> = HashMap::new();
    let mut all = 0;
    for kept in pins.values() {
        let (bytes, count) = hosts.entry(&kept.pin.host_id).or_default();
        (*bytes, *count) = (*bytes + kept.bytes, *count + 1);
        all += kept.bytes;
    }
    let by_bytes = hosts.iter().max_by_key(|(_, (bytes, _))| *bytes);
    let by_count = hosts.iter().max_by_key(|(_, (_, count))| *count);
    let (host, why) = match (by_bytes, by_count) {
        (Some((host, (bytes, _))), _) if *bytes > bounds.host_bytes => (host, Why::Host),
        (Some((host, _)), _) if all > bounds.bytes => (host, Why::Disk),
        (_, Some((host, _))) if pins.len() > PINS_MAX => (host, Why::Disk),
        _ => return None,
    };
    let mut theirs = pins.iter().filter(|(_, kept)| kept.pin.host_id == **host);
    theirs.next().map(|(&id, _)| (id, why))
}

impl Upload<'_> {
    /// Writes a message of a profile; the bytes it takes.
    ///
    /// # Errors
    /// When the disk does not take it.
    pub fn push(&mut self, part: Part, chunk: &ProfileChunk) -> io::Result<u64> {
        let bytes = chunk.encode_to_vec();
        let packed = zstd::bulk::compress(&bytes, LEVEL)?;
        let (len, raw) = (packed.len() as u32, bytes.len() as u32);
        let sum = message_sum([len, raw, part as u32], &packed);
        for word in [len, raw, part as u32, sum] {
            self.file.write_all(&word.to_le_bytes())?;
        }
        self.file.write_all(&packed)?;
        let bytes = (MESSAGE_HEAD + packed.len()) as u64;
        self.sizes[part as usize - 1] += bytes;
        Ok(bytes)
    }

    /// Makes the pin durable, in the place of the same if it is here; its number.
    ///
    /// # Errors
    /// When it is not.
    pub fn finish(mut self) -> Result<u64, KeepError> {
        let facts = self.head.encode_to_vec();
        let bytes = (HEAD + facts.len()) as u64 + self.sizes[0] + self.sizes[1];
        let most = self.files.bounds.host_bytes.min(self.files.bounds.bytes);
        if bytes > most {
            return Err(KeepError::TooLarge { bytes, most });
        }
        self.file.flush()?;
        let file = self.file.get_ref();
        file.write_all_at(&encode_head(self.sizes, &facts), 0)?;
        file.sync_all()?;
        let mut index = self.files.index();
        let same = index
            .pins
            .iter()
            .find(|(_, kept)| is_same(&kept.pin, &self.head));
        let id = same.map_or(index.next + 1, |(&id, _)| id);
        std::fs::rename(&self.path, self.files.path(id))?;
        self.finished = true;
        index.next = index.next.max(id);
        let kept = kept(id, std::mem::take(&mut self.head), self.sizes, bytes);
        index.pins.insert(id, kept);
        drop(index);
        self.files.handle.sync_all()?;
        Ok(id)
    }
}

impl Drop for Upload<'_> {
    fn drop(&mut self) {
        if !self.finished {
            // What stays is removed at the next start.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// How all files are opened to be written.
fn options() -> std::fs::OpenOptions {
    let mut options = File::options();
    options.mode(0o600);
    options
}

/// Numbers of agents may begin anew, but not at the same nanosecond.
fn is_same(one: &HostPin, other: &HostPin) -> bool {
    let of = |pin: &HostPin| {
        let pin = pin.pin.as_ref();
        pin.map(|pin| (pin.id, pin.fired_unix_ns))
    };
    one.host_id == other.host_id && of(one) == of(other)
}

fn kept(id: u64, head: HostPin, [_, captured]: [u64; 2], bytes: u64) -> Kept {
    let mut pin = HostPin { id, ..head };
    let own = pin.pin.get_or_insert_default();
    (own.bytes, own.capture_bytes) = (bytes, captured);
    Kept { pin, bytes }
}

fn encode_head(sizes: [u64; 2], facts: &[u8]) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(MAGIC);
    head[8..16].copy_from_slice(&sizes[0].to_le_bytes());
    head[16..24].copy_from_slice(&sizes[1].to_le_bytes());
    head[24..28].copy_from_slice(&(facts.len() as u32).to_le_bytes());
    let sum = head_sum(&head, facts);
    head[28..].copy_from_slice(&sum.to_le_bytes());
    head
}

fn head_sum(head: &[u8; HEAD], facts: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&head[8..28]);
    sum.update(facts);
    sum.finalize()
}

/// What the pin is about, the sizes of its parts, and the length of what was read behind the fixed head.
fn read_head(file: &mut impl Read) -> io::Result<(HostPin, [u64; 2], usize)> {
    let mut head = [0; HEAD];
    let short = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => damaged("it ends early"),
        _ => error,
    };
    file.read_exact(&mut head).map_err(short)?;
    let [_, _, a, b, c, d, len, sum] = words::<8>(&head);
    if &head[..8] != MAGIC || len as usize > HEAD_BYTES_MAX {
        return Err(damaged("it is no pin"));
    }
    let mut facts = vec![0; len as usize];
    file.read_exact(&mut facts).map_err(short)?;
    if head_sum(&head, &facts) != sum {
        return Err(damaged("its head is damaged"));
    }
    let pin = HostPin::decode(&facts[..]).map_err(|_| damaged("its head is damaged"))?;
    let long = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
    Ok((pin, [long(a, b), long(c, d)], facts.len()))
}

fn message_sum(head: [u32; 3], packed: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    for word in head {
        sum.update(&word.to_le_bytes());
    }
    sum.update(packed);
    sum.finalize()
}

fn read_kept(path: &Path, id: u64) -> io::Result<Kept> {
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    let (head, sizes, facts) = read_head(&mut file)?;
    let parts = sizes[0].checked_add(sizes[1]);
    let expected = parts.and_then(|parts| parts.checked_add((HEAD + facts) as u64));
    if expected != Some(len) {
        return Err(damaged("its length is not what it says"));
    }
    Ok(kept(id, head, sizes, len))
}

fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    words
}

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
