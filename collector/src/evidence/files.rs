//! The files of one kind of evidence: one file each, in a directory used only by the collector.
//!
//! A file is a head (magic with version, sizes of the parts, its facts, checksum) and the messages
//! of its profiles, each with its part, lengths and checksum and packed by zstd. It is written
//! under another name and appears complete, by a rename. Its content comes from an agent, so it is
//! read as untrusted even though its checksums are right.
//!
//! Blocks on the disk. The index is locked only briefly, never while a file is read or written,
//! because threads that must not block read it. A separate lock ensures that only one thread at a
//! time adds or removes files.

use super::Facts;
use super::bounds::Bounds;
use super::format::{HEAD, MESSAGE_HEAD, damaged, encode_head, message_sum, read_head, words};
use super::shares::{Shares, Why};
use crate::sync::lock;
use profile::Profile;
use prost::Message;
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

/// Largest message of a profile in a file. Unit: bytes, unpacked. Chunks are 256 KiB and, where a
/// string is long, a little more.
pub const MESSAGE_BYTES_MAX: usize = 2 << 20;

/// Largest list. Unit: bytes; gRPC's default for messages is 4 MiB.
const LIST_BYTES_MAX: usize = 3 << 20;

/// Damaged files that are set aside; of more the newest stay.
const ASIDE_MAX: usize = 4;

/// Suffix of the name of a file that was set aside.
const ASIDE: &str = ".damaged";

/// Tag and length of a row in a list. Unit: bytes.
const LIST_ROW: usize = 8;

/// How hard messages are packed.
const LEVEL: i32 = 6;

/// Which profile of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfileKind {
    /// The recorder's minutes.
    Minutes = 1,
    /// The capture.
    Captured = 2,
}

/// Files that were removed, by why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Over their age.
    pub age: u64,
    /// Over the share of their owner.
    pub owner: u64,
    /// Over what all may take.
    pub disk: u64,
    /// Over how many there may be.
    pub count: u64,
}

/// Why the directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It cannot be made or opened.
    #[error("failed to open directory of {what}s `{}`", path.display())]
    Open {
        /// Name of the files' content in messages.
        what: &'static str,
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another collector has it.
    #[error("failed to lock directory of {what}s `{}`: another collector uses it\nstop that \
        collector, or set another data_dir", path.display())]
    Locked {
        /// Name of the files' content in messages.
        what: &'static str,
        /// The directory.
        path: PathBuf,
    },
}

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// There is none, or not this part of it.
    #[error("failed to find {what} `{id}`: it does not exist, or has no such profile")]
    Unknown {
        /// Name of the files' content in messages.
        what: &'static str,
        /// Its number.
        id: u64,
    },
    /// Its file.
    #[error("failed to read {what} `{id}`: {source}")]
    Read {
        /// Name of the files' content in messages.
        what: &'static str,
        /// Its number.
        id: u64,
        /// Why.
        source: io::Error,
    },
    /// Its profile.
    #[error("failed to read {what} `{id}`: {source}")]
    Assemble {
        /// Name of the files' content in messages.
        what: &'static str,
        /// Its number.
        id: u64,
        /// Why.
        source: AssembleError,
    },
    /// It does not fit.
    #[error("failed to read {what} `{id}`: it takes more than {mib} MiB\nraise `query.memory_mib`")]
    Memory {
        /// Name of the files' content in messages.
        what: &'static str,
        /// Its number.
        id: u64,
        /// The bound.
        mib: usize,
    },
    /// Nobody waits for it any more.
    #[error("the query was cancelled")]
    Cancelled,
}

/// Why a file was not taken.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The disk did not take it.
    #[error("failed to write the file")]
    Write(#[from] io::Error),
    /// More than one owner may have.
    #[error("the file takes at least {bytes} bytes, more than the limit of {most} (`{key}`)")]
    TooLarge {
        /// What came of it.
        bytes: u64,
        /// The bound.
        most: u64,
        /// Its key.
        key: &'static str,
    },
}

struct Index<F> {
    files: BTreeMap<u64, Kept<F>>,
    /// The number of the last.
    last: u64,
}

struct Kept<F> {
    about: F,
    bytes: u64,
}

impl<F: Facts> Kept<F> {
    /// By when it was: numbers of this collector may say nothing of age.
    fn order(&self) -> (i64, u64) {
        (self.about.was_unix_ns(), self.about.id())
    }
}

/// See the module.
pub struct Files<F> {
    dir: PathBuf,
    handle: File,
    _lock: File,
    index: Mutex<Index<F>>,
    /// Locked before the index by those who add and remove pins: a number that one has chosen
    /// nobody else removes or takes. A number that left the index never comes back, so its file is
    /// removed without this lock.
    changing: Mutex<()>,
    bounds: Bounds,
    writes: AtomicU64,
    /// Files that could not be read when they were found.
    pub damaged: u64,
}

/// A file on its way; removed when it is dropped before it is finished.
pub struct Upload<'f, F: Facts> {
    files: &'f Files<F>,
    path: PathBuf,
    file: BufWriter<File>,
    about: F,
    facts: Vec<u8>,
    /// Packed, of both parts.
    sizes: [u64; 2],
    finished: bool,
}

impl<F: Facts> Files<F> {
    /// Opens the directory, makes it where it is missing, and looks at all files. Those that are
    /// damaged are removed or set aside.
    ///
    /// # Errors
    /// When it cannot be used.
    pub fn open(dir: &Path, bounds: Bounds) -> Result<Files<F>, OpenError> {
        let failed = |source| OpenError::Open {
            what: F::WHAT,
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
            TryLockError::WouldBlock => OpenError::Locked {
                what: F::WHAT,
                path: dir.to_owned(),
            },
            TryLockError::Error(source) => failed(source),
        })?;
        let mut files = Files {
            dir: dir.to_owned(),
            handle,
            _lock: lock,
            index: Mutex::new(Index {
                files: BTreeMap::new(),
                last: 0,
            }),
            changing: Mutex::default(),
            bounds,
            writes: AtomicU64::new(0),
            damaged: 0,
        };
        files.damaged = files.scan().map_err(failed)?;
        Ok(files)
    }

    fn index(&self) -> MutexGuard<'_, Index<F>> {
        lock(&self.index)
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        lock(&self.changing)
    }

    fn path(&self, id: u64) -> PathBuf {
        self.dir.join(format!("{id:016x}.{}", F::SUFFIX))
    }

    fn scan(&self) -> io::Result<u64> {
        let mut index = self.index();
        let (mut bad, mut aside) = (0, Vec::new());
        for entry in std::fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if name.ends_with(".tmp") {
                // Nobody was informed that it is stored.
                let _ = std::fs::remove_file(entry.path());
                continue;
            }
            let whole = name.strip_suffix(ASIDE);
            let number = whole.unwrap_or(name).strip_suffix(F::SUFFIX);
            let number = number.and_then(|name| name.strip_suffix('.'));
            let number = number.and_then(|digits| u64::from_str_radix(digits, 16).ok());
            let Some(id) = number else { continue };
            // Even of what cannot be read the number is used up.
            index.last = index.last.max(id);
            if whole.is_some() {
                aside.push((id, entry.path()));
                continue;
            }
            match read_kept(&entry.path(), id) {
                Ok(kept) => {
                    index.files.insert(id, kept);
                }
                Err(error) => {
                    bad += 1;
                    let damaged = error.kind() == io::ErrorKind::InvalidData;
                    let path = entry.path();
                    tracing::warn!(file = %path.display(), %error, "failed to read a {}", F::WHAT);
                    if damaged && F::SETS_ASIDE {
                        let mut name = path.clone().into_os_string();
                        name.push(ASIDE);
                        let beside = PathBuf::from(name);
                        if std::fs::rename(&path, &beside).is_ok() {
                            aside.push((id, beside));
                        }
                    } else if damaged {
                        let _ = std::fs::remove_file(path);
                    }
                }
            }
        }
        aside.sort_unstable();
        // What was renamed may be met again.
        aside.dedup();
        for (_, path) in aside.iter().rev().skip(ASIDE_MAX) {
            let _ = std::fs::remove_file(path);
        }
        Ok(bad)
    }

    /// Limits of the files.
    pub fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// The number of the last file that was here when it was opened, or that was put here since.
    pub fn last(&self) -> u64 {
        self.index().last
    }

    /// Matching files, latest first, as many as fit an answer; and how many more there are.
    pub fn list(&self, limit: usize, wanted: impl Fn(&F) -> bool) -> (Vec<F>, u64) {
        let index = self.index();
        let all = index.files.values().filter(|kept| wanted(&kept.about));
        let mut all: Vec<&Kept<F>> = all.collect();
        all.sort_unstable_by_key(|kept| Reverse(kept.order()));
        let mut room = LIST_BYTES_MAX;
        let fits = |kept: &&&Kept<F>| {
            let rest = room.checked_sub(kept.about.encoded_len() + LIST_ROW);
            room = rest.unwrap_or(0);
            rest.is_some()
        };
        let listed = all.iter().take(limit).take_while(fits);
        let listed: Vec<F> = listed.map(|kept| kept.about.clone()).collect();
        let left_out = (all.len() - listed.len()) as u64;
        (listed, left_out)
    }

    /// What `of` makes of each file, in the order of their numbers. Others wait meanwhile, so it
    /// has to be quick.
    pub fn pick<T>(&self, of: impl FnMut(&F) -> Option<T>) -> Vec<T> {
        let index = self.index();
        let all = index.files.values().map(|kept| &kept.about);
        all.filter_map(of).collect()
    }

    /// Number of files, and their bytes.
    pub fn size(&self) -> (u64, u64) {
        let index = self.index();
        let bytes = index.files.values().map(|kept| kept.bytes).sum();
        (index.files.len() as u64, bytes)
    }

    /// The one of a number, as it is listed.
    pub fn get(&self, id: u64) -> Option<F> {
        let index = self.index();
        index.files.get(&id).map(|kept| kept.about.clone())
    }

    /// The same, if it is here.
    pub fn find(&self, about: &F) -> Option<F> {
        let index = self.index();
        let found = index.files.values().find(|kept| kept.about.is_same(about));
        found.map(|kept| kept.about.clone())
    }

    /// The number that it has, that of the same, or the next, which is used up then.
    fn number(&self, about: &F) -> u64 {
        let mut index = self.index();
        if about.id() != 0 {
            index.last = index.last.max(about.id());
            return about.id();
        }
        let mut all = index.files.iter();
        let same = all.find(|(_, kept)| kept.about.is_same(about));
        let same = same.map(|(&id, _)| id);
        same.unwrap_or_else(|| {
            index.last += 1;
            index.last
        })
    }

    /// Starts to write one.
    ///
    /// # Errors
    /// When the disk takes nothing.
    pub fn start(&self, about: F) -> io::Result<Upload<'_, F>> {
        let number = self.writes.fetch_add(1, Ordering::Relaxed);
        let path = self.dir.join(format!("{number}.tmp"));
        let file = options()
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)?;
        let facts = about.encode_to_vec();
        if facts.len() > F::HEAD_BYTES_MAX {
            return Err(io::Error::other(format!(
                "the description of the {} takes {} bytes, more than the limit of {}",
                F::WHAT,
                facts.len(),
                F::HEAD_BYTES_MAX
            )));
        }
        let mut upload = Upload {
            files: self,
            path,
            file: BufWriter::new(file),
            about,
            facts,
            sizes: [0, 0],
            finished: false,
        };
        // Sizes and checksum are known at the end.
        upload.file.write_all(&[0; HEAD])?;
        upload.file.write_all(&upload.facts)?;
        Ok(upload)
    }

    /// All that a file is about, which may be more than what is listed of it.
    ///
    /// # Errors
    /// When there is none, or it cannot be read.
    pub fn about(&self, id: u64) -> Result<F, ReadError> {
        let kept = self.index().files.contains_key(&id);
        if !kept {
            return Err(ReadError::unknown::<F>(id));
        }
        let what = F::WHAT;
        let read = |source| ReadError::Read { what, id, source };
        let (about, _, _) = File::open(self.path(id))
            .and_then(|mut file| read_head::<F>(&mut file))
            .map_err(read)?;
        Ok(about)
    }

    /// One profile of a file, of so many bytes in memory at most. Given up when `gone` says so.
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
        if !self.index().files.contains_key(&id) {
            return Err(ReadError::unknown::<F>(id));
        }
        let what = F::WHAT;
        let read = |source| ReadError::Read { what, id, source };
        let broken = |what| read(damaged(what));
        let mut file = BufReader::new(File::open(self.path(id)).map_err(read)?);
        // The head of this file counts, whatever the index says by now: the file may have been
        // replaced.
        let (_, sizes, _) = read_head::<F>(&mut file).map_err(read)?;
        if sizes[part as usize - 1] == 0 {
            return Err(ReadError::unknown::<F>(id));
        }
        let mut left = sizes[0].saturating_add(sizes[1]);
        let mut assembler = ProfileAssembler::with_limit(F::PART_BYTES_MAX);
        while left > 0 && !assembler.is_complete() {
            if gone() {
                return Err(ReadError::Cancelled);
            }
            let mut head = [0; MESSAGE_HEAD];
            file.read_exact(&mut head).map_err(read)?;
            let [packed_len, raw, of, sum] = words(&head);
            left = left
                .checked_sub(MESSAGE_HEAD as u64 + u64::from(packed_len))
                .ok_or_else(|| broken("a message exceeds the file"))?;
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
            let assemble = |source| ReadError::Assemble { what, id, source };
            assembler.push(chunk).map_err(assemble)?;
            if assembler.heap_bytes() > memory_bytes {
                let mib = memory_bytes >> 20;
                return Err(ReadError::Memory { what, id, mib });
            }
        }
        let assemble = |source| ReadError::Assemble { what, id, source };
        assembler.finish().map_err(assemble)
    }

    /// Removes one for good; false when there is none of this number.
    ///
    /// # Errors
    /// When its file stays: it is here again after the next start.
    pub fn remove(&self, id: u64) -> io::Result<bool> {
        {
            let _alone = self.changing();
            if self.index().files.remove(&id).is_none() {
                return Ok(false);
            }
        }
        std::fs::remove_file(self.path(id))?;
        self.handle.sync_all()?;
        Ok(true)
    }

    /// Removes what is over its age, over the share of its owner and over what all may take: of
    /// owners the one with the most loses its oldest.
    pub fn prune(&self, now_unix_ns: i64) -> Removed {
        let aged = now_unix_ns.saturating_sub(self.bounds.age_ns);
        let mut gone = Vec::new();
        let mut removed = Removed::default();
        {
            // Nothing is added or replaced between the look and the removal.
            let _alone = self.changing();
            let mut shares = Shares::default();
            for (id, kept) in &self.index().files {
                match kept.about.came_unix_ns() < aged {
                    true => gone.push(*id),
                    false => shares.add(kept.about.owner(), kept.order(), kept.bytes),
                }
            }
            removed.age = gone.len() as u64;
            shares.sort();
            while let Some((id, why)) = shares.dispensable(self.bounds) {
                gone.push(id);
                match why {
                    Why::Owner => removed.owner += 1,
                    Why::Disk => removed.disk += 1,
                    Why::Count => removed.count += 1,
                }
            }
            if gone.is_empty() {
                return removed;
            }
            let mut index = self.index();
            for id in &gone {
                index.files.remove(id);
            }
        }
        // Nobody takes a number that is not in the index: these files are of no one else.
        for id in gone {
            if let Err(error) = std::fs::remove_file(self.path(id)) {
                tracing::warn!(id, %error, "failed to remove the file of a {}", F::WHAT);
            }
        }
        removed
    }
}

impl<F: Facts> Upload<'_, F> {
    /// Its current size.
    fn bytes(&self) -> Result<u64, KeepError> {
        let bytes = (HEAD + self.facts.len()) as u64 + self.sizes[0] + self.sizes[1];
        let most = self.files.bounds.owner_bytes.min(self.files.bounds.bytes);
        match bytes > most {
            true => Err(KeepError::TooLarge {
                bytes,
                most,
                key: F::ROOM_KEY,
            }),
            false => Ok(bytes),
        }
    }

    /// Writes a message of a profile; the bytes it takes.
    ///
    /// # Errors
    /// When the disk does not take it, or there may not be so much.
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

    /// Makes it durable, in the place of the same if it is here; its number.
    ///
    /// # Errors
    /// When it is not.
    pub fn finish(mut self) -> Result<u64, KeepError> {
        let bytes = self.bytes()?;
        self.file.flush()?;
        let file = self.file.get_ref();
        file.write_all_at(&encode_head(F::MAGIC, self.sizes, &self.facts), 0)?;
        file.sync_all()?;
        let alone = self.files.changing();
        let id = self.files.number(&self.about);
        std::fs::rename(&self.path, self.files.path(id))?;
        self.finished = true;
        let about = std::mem::take(&mut self.about);
        let about = about.listed(id, self.sizes, bytes);
        let kept = Kept { about, bytes };
        self.files.index().files.insert(id, kept);
        drop(alone);
        self.files.handle.sync_all()?;
        Ok(id)
    }
}

impl<F: Facts> Drop for Upload<'_, F> {
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

impl ReadError {
    /// There is none.
    pub fn unknown<F: Facts>(id: u64) -> ReadError {
        ReadError::Unknown { what: F::WHAT, id }
    }
}

fn read_kept<F: Facts>(path: &Path, id: u64) -> io::Result<Kept<F>> {
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    let (about, sizes, facts) = read_head::<F>(&mut file)?;
    let parts = sizes[0].checked_add(sizes[1]);
    let expected = parts.and_then(|parts| parts.checked_add((HEAD + facts) as u64));
    if expected != Some(len) {
        return Err(damaged("it has another length than it declares"));
    }
    let about = about.listed(id, sizes, len);
    Ok(Kept { about, bytes: len })
}
