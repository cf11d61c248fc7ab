//! The files of pins: one for each, in a directory of the collector alone.
//!
//! A file is a head (magic with version, sizes of the parts, what the pin is about, checksum) and
//! the messages of its profiles, each with its part, lengths and checksum and packed by zstd. It is
//! written beside and appears whole, by a rename. What is in a file is an agent's, so it is read as
//! an attacker's though its checksums are right.
//!
//! Blocks on the disk. The index is locked for moments, never across a read or write of a file:
//! threads that must not block look into it. Whoever changes which pins there are is alone in that
//! by a lock of its own.

use super::format::{HEAD, MESSAGE_HEAD, damaged, encode_head, message_sum, read_head, words};
use super::limits::{LIST_BYTES_MAX, MESSAGE_BYTES_MAX, PART_BYTES_MAX};
use super::shares::{Shares, Why};
use crate::sync::lock;
use profile::Profile;
use prost::Message;
use proto::collector::HostPin;
use proto::wire::ProfileChunk;
use proto::{AssembleError, ProfileAssembler};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, TryLockError};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Tag and length of a pin in a list. Unit: bytes.
const LIST_ROW: usize = 8;

/// How hard messages are packed.
const LEVEL: i32 = 6;

/// Which profile of a pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfileKind {
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
    /// It does not fit.
    #[error("pin `{id}` takes more than {mib} MiB (`query.memory_mib`)")]
    Memory {
        /// The pin.
        id: u64,
        /// The bound.
        mib: usize,
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
    #[error(
        "it takes at least {bytes} bytes, and pins of one host {most} at most (`pins.host_mib`)"
    )]
    TooLarge {
        /// What came of it.
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

impl Kept {
    /// By when it fired: agents upload their newest first, so numbers of this collector say nothing
    /// of age.
    fn order(&self) -> (i64, u64) {
        let fired = self.pin.pin.as_ref().map_or(0, |pin| pin.fired_unix_ns);
        (fired, self.pin.id)
    }
}

/// See the module.
pub struct Files {
    dir: PathBuf,
    handle: File,
    _lock: File,
    index: Mutex<Index>,
    /// Locked before the index by those who add and remove pins: a number that one has chosen
    /// nobody else removes or takes. A number that left the index never comes back, so its file is
    /// removed without this lock.
    changing: Mutex<()>,
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
    facts: Vec<u8>,
    /// Packed, of both parts.
    sizes: [u64; 2],
    finished: bool,
}

impl Files {
    /// Opens the directory, makes it where it is missing, and looks at all files. Those that are no
    /// pins are removed.
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
            changing: Mutex::default(),
            bounds,
            uploads: AtomicU64::new(0),
            damaged: 0,
        };
        files.damaged = files.scan().map_err(failed)?;
        Ok(files)
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        lock(&self.index)
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        lock(&self.changing)
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

    /// Those that are wanted, the last that fired first, as many as an answer has room for; how
    /// many more there are.
    pub fn list(&self, limit: usize, wanted: impl Fn(&HostPin) -> bool) -> (Vec<HostPin>, u64) {
        let index = self.index();
        let all = index.pins.values().filter(|kept| wanted(&kept.pin));
        let mut all: Vec<&Kept> = all.collect();
        all.sort_unstable_by_key(|kept| Reverse(kept.order()));
        let mut room = LIST_BYTES_MAX;
        let fits = |kept: &&&Kept| {
            let rest = room.checked_sub(kept.pin.encoded_len() + LIST_ROW);
            room = rest.unwrap_or(0);
            rest.is_some()
        };
        let listed = all.iter().take(limit).take_while(fits);
        let listed: Vec<HostPin> = listed.map(|kept| kept.pin.clone()).collect();
        let left_out = (all.len() - listed.len()) as u64;
        (listed, left_out)
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

    /// The number of the same pin, or the next, which is used up then.
    fn number(&self, pin: &HostPin) -> u64 {
        let mut index = self.index();
        let mut all = index.pins.iter();
        let same = all.find(|(_, kept)| is_same(&kept.pin, pin));
        let same = same.map(|(&id, _)| id);
        same.unwrap_or_else(|| {
            index.next += 1;
            index.next
        })
    }

    /// Starts to write a pin.
    ///
    /// # Errors
    /// When the disk takes nothing.
    pub fn start(&self, head: HostPin) -> io::Result<Upload<'_>> {
        let number = self.uploads.fetch_add(1, Ordering::Relaxed);
        let path = self.dir.join(format!("{number}.tmp"));
        let file = options()
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)?;
        let facts = head.encode_to_vec();
        let mut upload = Upload {
            files: self,
            path,
            file: BufWriter::new(file),
            head,
            facts,
            sizes: [0, 0],
            finished: false,
        };
        // Sizes and checksum are known at the end.
        upload.file.write_all(&[0; HEAD])?;
        upload.file.write_all(&upload.facts)?;
        Ok(upload)
    }

    /// One profile of a pin, of so many bytes in memory at most. Given up when `gone` says so.
    ///
    /// # Errors
    /// When there is none, it cannot be read, or does not fit.
    pub fn read(
        &self,
        id: u64,
        part: ProfileKind,
        memory_bytes: usize,
        gone: impl Fn() -> bool,
    ) -> Result<Profile, ReadError> {
        if !self.index().pins.contains_key(&id) {
            return Err(ReadError::Unknown(id));
        }
        let read = |source| ReadError::Read { id, source };
        let broken = |what| read(damaged(what));
        let mut file = BufReader::new(File::open(self.path(id)).map_err(read)?);
        // Of this file, whatever the index says by now: it may have been replaced.
        let (_, sizes, _) = read_head(&mut file).map_err(read)?;
        if sizes[part as usize - 1] == 0 {
            return Err(ReadError::Unknown(id));
        }
        let mut left = sizes[0].saturating_add(sizes[1]);
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
            if assembler.heap_bytes() > memory_bytes {
                let mib = memory_bytes >> 20;
                return Err(ReadError::Memory { id, mib });
            }
        }
        let assemble = |source| ReadError::Assemble { id, source };
        assembler.finish().map_err(assemble)
    }

    /// Removes what is over its age, over the share of its host and over what all may take: of
    /// hosts the one with the most loses its oldest.
    pub fn prune(&self, now_unix_ns: i64) -> Removed {
        let aged = now_unix_ns.saturating_sub(self.bounds.age_ns);
        let mut gone = Vec::new();
        let mut removed = Removed::default();
        {
            // Nothing is added or replaced between the look and the removal.
            let _alone = self.changing();
            let mut shares = Shares::default();
            for (id, kept) in &self.index().pins {
                match kept.pin.received_unix_ns < aged {
                    true => gone.push(*id),
                    false => shares.add(&kept.pin.host_id, kept.order(), kept.bytes),
                }
            }
            removed.age = gone.len() as u64;
            shares.sort();
            while let Some((id, why)) = shares.dispensable(self.bounds) {
                gone.push(id);
                match why {
                    Why::Host => removed.host += 1,
                    Why::Disk => removed.disk += 1,
                }
            }
            if gone.is_empty() {
                return removed;
            }
            let mut index = self.index();
            for id in &gone {
                index.pins.remove(id);
            }
        }
        // Nobody takes a number that is not in the index: these files are of no one else.
        for id in gone {
            if let Err(error) = std::fs::remove_file(self.path(id)) {
                tracing::warn!(pin = id, %error, "failed to remove a pin's file");
            }
        }
        removed
    }
}

impl Upload<'_> {
    /// What it takes by now.
    fn bytes(&self) -> Result<u64, KeepError> {
        let bytes = (HEAD + self.facts.len()) as u64 + self.sizes[0] + self.sizes[1];
        let most = self.files.bounds.host_bytes.min(self.files.bounds.bytes);
        match bytes > most {
            true => Err(KeepError::TooLarge { bytes, most }),
            false => Ok(bytes),
        }
    }

    /// Writes a message of a profile; the bytes it takes.
    ///
    /// # Errors
    /// When the disk does not take it, or a host may not have so much.
    pub fn push(&mut self, part: ProfileKind, chunk: &ProfileChunk) -> Result<u64, KeepError> {
        let bytes = chunk.encode_to_vec();
        let packed = zstd::bulk::compress(&bytes, LEVEL)?;
        let (len, raw) = (packed.len() as u32, bytes.len() as u32);
        let sum = message_sum([len, raw, part as u32], &packed);
        let bytes = (MESSAGE_HEAD + packed.len()) as u64;
        self.sizes[part as usize - 1] += bytes;
        self.bytes()?;
        for word in [len, raw, part as u32, sum] {
            self.file.write_all(&word.to_le_bytes())?;
        }
        self.file.write_all(&packed)?;
        Ok(bytes)
    }

    /// Makes the pin durable, in the place of the same if it is here; its number.
    ///
    /// # Errors
    /// When it is not.
    pub fn finish(mut self) -> Result<u64, KeepError> {
        let bytes = self.bytes()?;
        self.file.flush()?;
        let file = self.file.get_ref();
        file.write_all_at(&encode_head(self.sizes, &self.facts), 0)?;
        file.sync_all()?;
        let alone = self.files.changing();
        let id = self.files.number(&self.head);
        std::fs::rename(&self.path, self.files.path(id))?;
        self.finished = true;
        let kept = kept(id, std::mem::take(&mut self.head), self.sizes, bytes);
        self.files.index().pins.insert(id, kept);
        drop(alone);
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

/// Numbers of agents may start again, but not at the same nanosecond.
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

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
