//! The archive: a bucket that has sealed partitions as immutable objects, and what of it is on the
//! local disk.
//!
//! ```text
//! DIR/archive/id         who this collector is to the bucket
//! DIR/archive/manifest   the manifest as it was read or written last
//! DIR/archive/heads/     the head of each object: its index and its hosts
//! DIR/archive/cache/     pieces that queries fetched
//! ```
//!
//! This folder speaks with the bucket and reads objects. What is uploaded, and when the local copy
//! goes, is decided above it, in `archiver`.

mod bucket;
mod cache;
mod http;
mod manifest;
mod object;
mod reader;

pub use bucket::{BucketError, BucketOptions};
pub use cache::{CacheCounters, FetchError, Patience};
pub use manifest::{Entry, HostsObject, Manifest, OBJECTS, Owner, epoch_of, object_name};
pub use object::{Extent, Head, Index, Packed, Sink, pack, read_any};
pub use reader::ObjectReader;

use super::file::FileError;
use crate::durable::replace;
use crate::sync::lock;
use bucket::{Bucket, Condition, Parts};
use bytes::Bytes;
use cache::{Cache, Ticket};
use data_encoding::HEXLOWER;
use manifest::MANIFEST;
use object::Piece;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Objects of which heads are fetched at a time, when a collector starts again from the bucket.
const HEADS_AT_A_TIME: usize = 8;

/// Most objects that are listed at a time.
const LISTED_MAX: usize = 100_000;

/// Name of the object that shows whether the server heeds conditions.
const PROBE: &str = "condition-check";

/// How an archive behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveOptions {
    /// Where it is.
    pub bucket: BucketOptions,
    /// Local partitions older than it are removed, once they are archived. Unit: nanoseconds.
    pub local_ns: u64,
    /// Objects older than it are removed. Unit: nanoseconds.
    pub retention_ns: u64,
    /// Most space on disk for what queries fetch. Unit: bytes.
    pub cache_bytes: u64,
    /// Size of the parts of an upload. Unit: bytes; S3 wants at least 5 MiB.
    pub part_bytes: usize,
    /// Size of the pieces that queries fetch. Unit: bytes. Smaller ones make more requests; larger
    /// ones let a query of one container fetch more of the others.
    pub piece_bytes: usize,
}

/// Why the archive cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The options are of no use.
    #[error("{0}")]
    Options(String),
    /// A file of `DIR/archive`.
    #[error("failed to {operation} `{path}`: {error}")]
    Io {
        /// The operation that failed.
        operation: &'static str,
        /// With what.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The bucket did not do what was asked.
    #[error("failed to {operation} the archive `{archive}`: {error}")]
    Bucket {
        /// The operation that failed.
        operation: &'static str,
        /// Its address.
        archive: String,
        /// Why.
        error: BucketError,
    },
    /// The manifest is something else.
    #[error(
        "failed to read the manifest of the archive `{archive}`: {reason}; bring back an earlier \
         version of that object, or set another prefix"
    )]
    Manifest {
        /// Its address.
        archive: String,
        /// What is wrong.
        reason: String,
    },
    /// Another collector writes to it.
    #[error(
        "the archive `{archive}` belongs to the collector of `{host}` ({id}), which wrote to it \
         last at {written_unix_s} (seconds since 1970); if that one is gone for good, run \
         `fleetprof-collector archive take-over` with this configuration and start again, else set \
         another prefix"
    )]
    Owned {
        /// Its address.
        archive: String,
        /// Name of the other machine.
        host: String,
        /// The other collector.
        id: String,
        /// When it wrote.
        written_unix_s: i64,
    },
    /// There is no manifest, but something else.
    #[error(
        "the archive `{0}` has objects and no manifest: bring back the object `manifest.json`, or \
         set another prefix"
    )]
    NoManifest(String),
    /// The server lets anybody overwrite anything.
    #[error(
        "the server of the archive `{0}` ignores `If-None-Match` and `If-Match`, so two collectors \
         could destroy each other's manifest: use a server that supports conditional writes"
    )]
    NoConditions(String),
}

/// What the store knows of the bucket.
struct State {
    manifest: Manifest,
    /// Of the manifest in the bucket, once this run has written it.
    tag: Option<String>,
    /// Numbers of objects that were given away.
    objects: u64,
    /// Why this collector may not write any more.
    fenced: Option<String>,
    /// The disk has not taken the copy of the manifest.
    unsaved: bool,
    /// A manifest of which no answer says whether the bucket has it.
    unsure: Option<Manifest>,
}

/// See the module.
pub struct Archive {
    dir: PathBuf,
    /// How it behaves.
    pub options: ArchiveOptions,
    bucket: Arc<Bucket>,
    cache: Arc<Cache>,
    owner: Owner,
    session: String,
    state: Mutex<State>,
}

fn io_error(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ArchiveError {
    let path = path.to_owned();
    move |error| ArchiveError::Io {
        operation,
        path,
        error,
    }
}

fn random_id() -> Result<String, ArchiveError> {
    use ring::rand::SecureRandom as _;
    let mut id = [0; 16];
    let drawn = ring::rand::SystemRandom::new().fill(&mut id);
    drawn.map_err(|_| ArchiveError::Options("the system gives no random numbers".to_owned()))?;
    Ok(HEXLOWER.encode(&id))
}

impl Archive {
    /// Opens the archive of a store in `dir`. A directory that has seen the archive before needs no
    /// answer of the bucket.
    ///
    /// # Errors
    /// When the bucket is another collector's, or cannot be read the first time.
    pub fn open(
        dir: &Path,
        options: ArchiveOptions,
        partition_s: i64,
    ) -> Result<Archive, ArchiveError> {
        let archive = Archive::prepare(dir, options, partition_s)?;
        let path = archive.manifest_path();
        let known = match std::fs::read(&path) {
            Ok(bytes) => Some(archive.decode(&bytes)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(io_error("read", &path)(error)),
        };
        let found = archive.read_manifest();
        let mut state = lock(&archive.state);
        match (known, found) {
            (None, Ok(None)) => archive.check_empty()?,
            (None, Ok(Some((manifest, _)))) if manifest.owner.id == archive.owner.id => {
                archive.save(&manifest)?;
                state.manifest = manifest;
            }
            (None, Ok(Some((manifest, _)))) => return Err(archive.owned(&manifest)),
            (None, Err(error)) => return Err(error),
            (Some(known), Ok(None)) => {
                state.manifest = known;
                state.fenced = Some(ArchiveError::NoManifest(archive.shown()).to_string());
            }
            (Some(_), Ok(Some((manifest, _)))) if manifest.owner.id == archive.owner.id => {
                archive.save(&manifest)?;
                state.manifest = manifest;
            }
            (Some(known), Ok(Some((manifest, _)))) => {
                state.fenced = Some(archive.owned(&manifest).to_string());
                state.manifest = known;
            }
            (Some(known), Err(error)) => {
                tracing::warn!("{error}; what is known of it is used until it answers");
                state.manifest = known;
            }
        }
        if state.manifest.partition_s != partition_s {
            let found = state.manifest.partition_s;
            return Err(ArchiveError::Manifest {
                archive: archive.shown(),
                reason: format!("its partitions are {found} s long, not {partition_s}"),
            });
        }
        drop(state);
        archive.load_heads()?;
        Ok(archive)
    }

    /// Makes the collector of `dir` the one that writes to the archive; returns which one it was.
    ///
    /// # Errors
    /// When the bucket does not let it.
    pub fn take_over(dir: &Path, options: ArchiveOptions) -> Result<Option<Owner>, ArchiveError> {
        let archive = Archive::prepare(dir, options, 0)?;
        let Some((mut manifest, tag)) = archive.read_manifest()? else {
            return Ok(None);
        };
        let before = std::mem::replace(&mut manifest.owner, archive.owner.clone());
        manifest.version += 1;
        let bytes = Bytes::from(manifest.encode());
        let written = archive.bucket.put(MANIFEST, bytes, &Condition::Is(&tag));
        written.map_err(|error| archive.failed("take over", error))?;
        Ok(Some(before))
    }

    fn prepare(
        dir: &Path,
        options: ArchiveOptions,
        partition_s: i64,
    ) -> Result<Archive, ArchiveError> {
        let dir = dir.join("archive");
        let heads = dir.join("heads");
        std::fs::create_dir_all(&heads).map_err(io_error("create", &heads))?;
        let path = dir.join("id");
        let id = match std::fs::read_to_string(&path) {
            Ok(id) => id.trim().to_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let id = random_id()?;
                replace(&path, id.as_bytes(), 0o600).map_err(io_error("write", &path))?;
                id
            }
            Err(error) => return Err(io_error("read", &path)(error)),
        };
        let bucket = Arc::new(Bucket::new(&options.bucket).map_err(ArchiveError::Options)?);
        let cached = dir.join("cache");
        let cache = Cache::open(cached.clone(), options.cache_bytes, Arc::clone(&bucket));
        let uname = rustix::system::uname();
        Ok(Archive {
            cache: Arc::new(cache.map_err(io_error("open", &cached))?),
            dir,
            options,
            bucket,
            owner: Owner {
                id,
                host: config::shown(&uname.nodename().to_string_lossy()),
            },
            session: random_id()?,
            state: Mutex::new(State {
                manifest: Manifest::new(partition_s),
                tag: None,
                objects: 0,
                fenced: None,
                unsaved: false,
                unsure: None,
            }),
        })
    }

    /// Its address.
    pub fn shown(&self) -> String {
        self.bucket.shown().to_owned()
    }

    /// What the cache did.
    pub fn cache_counters(&self) -> &CacheCounters {
        &self.cache.counters
    }

    /// The manifest as this collector knows it.
    pub fn manifest(&self) -> Manifest {
        lock(&self.state).manifest.clone()
    }

    /// What the manifest has of some data.
    pub fn find(&self, start_s: i64, lineage: u64) -> Option<Entry> {
        lock(&self.state).manifest.find(start_s, lineage).cloned()
    }

    /// Why this collector may not write to it.
    pub fn fenced(&self) -> Option<String> {
        lock(&self.state).fenced.clone()
    }

    fn failed(&self, operation: &'static str, error: BucketError) -> ArchiveError {
        ArchiveError::Bucket {
            operation,
            archive: self.shown(),
            error,
        }
    }

    fn owned(&self, manifest: &Manifest) -> ArchiveError {
        ArchiveError::Owned {
            archive: self.shown(),
            host: config::shown(&manifest.owner.host),
            id: config::shown(&manifest.owner.id),
            written_unix_s: manifest.written_unix_s,
        }
    }

    fn decode(&self, bytes: &[u8]) -> Result<Manifest, ArchiveError> {
        Manifest::decode(bytes).map_err(|reason| ArchiveError::Manifest {
            archive: self.shown(),
            reason,
        })
    }

    fn read_manifest(&self) -> Result<Option<(Manifest, String)>, ArchiveError> {
        match self.bucket.get(MANIFEST) {
            Ok((bytes, tag)) => Ok(Some((self.decode(&bytes)?, tag))),
            // A bucket that does not exist fails with the first write, and says so.
            Err(BucketError::Missing(_)) => Ok(None),
            Err(error) => Err(self.failed("read the manifest of", error)),
        }
    }

    /// Fails when there are objects: whoever wrote them must not be forgotten.
    fn check_empty(&self) -> Result<(), ArchiveError> {
        let found = self.bucket.list(OBJECTS, 1);
        let found = found.map_err(|error| self.failed("list", error))?;
        match found.is_empty() {
            true => Ok(()),
            false => Err(ArchiveError::NoManifest(self.shown())),
        }
    }

    fn manifest_path(&self) -> PathBuf {
        self.dir.join("manifest")
    }

    fn save(&self, manifest: &Manifest) -> Result<(), ArchiveError> {
        let path = self.manifest_path();
        replace(&path, &manifest.encode(), 0o600).map_err(io_error("write", &path))
    }

    fn head_path(&self, name: &str) -> PathBuf {
        let name = name.rsplit('/').next().unwrap_or_default();
        self.dir.join("heads").join(name)
    }

    /// Keeps the head of an object. One that the disk does not take is fetched when it is needed.
    pub fn keep_head(&self, name: &str, head: &[u8]) {
        let path = self.head_path(name);
        if let Err(error) = replace(&path, head, 0o600) {
            tracing::warn!("{}", io_error("write", &path)(error));
        }
    }

    /// The head of an object: from the disk, or from the bucket.
    fn head(&self, entry: &Entry) -> Result<Head, FetchError> {
        let corrupt = || FetchError::Corrupt(entry.name.clone());
        let extent = entry.extent().ok_or_else(corrupt)?;
        let kept = std::fs::read(self.head_path(&entry.name)).ok();
        let kept = kept.and_then(|bytes| Head::decode(&bytes, &extent).ok());
        if let Some(head) = kept {
            return Ok(head);
        }
        let range = extent.head_offset..extent.bytes;
        let bytes = self.bucket.get_range(&entry.name, range)?;
        let head = Head::decode(&bytes, &extent).map_err(|_| corrupt())?;
        self.keep_head(&entry.name, &bytes);
        Ok(head)
    }

    /// Fetches heads that are not on the disk. One that the bucket does not have is fetched by who
    /// needs it.
    fn load_heads(&self) -> Result<(), ArchiveError> {
        let manifest = self.manifest();
        let missing = manifest.partitions.iter();
        let missing = missing.filter(|entry| !self.head_path(&entry.name).exists());
        let missing: Vec<&Entry> = missing.collect();
        let next = Mutex::new(missing.into_iter());
        let failure: Mutex<Option<FetchError>> = Mutex::default();
        std::thread::scope(|scope| {
            for _ in 0..HEADS_AT_A_TIME {
                scope.spawn(|| {
                    while let Some(entry) = { lock(&next).next() } {
                        if let Err(error) = self.head(entry) {
                            tracing::warn!("failed to read the head of `{}`: {error}", entry.name);
                            lock(&failure).get_or_insert(error);
                            return;
                        }
                    }
                });
            }
        });
        let failure = failure.into_inner().unwrap_or_default();
        match failure {
            Some(FetchError::Bucket(
                error @ (BucketError::Unavailable(_) | BucketError::Denied(_)),
            )) => Err(self.failed("read the hosts of", error)),
            _ => Ok(()),
        }
    }

    /// The table of hosts that the manifest names.
    ///
    /// # Errors
    /// When it cannot be read, or is something else.
    pub fn hosts(&self) -> Result<Option<Bytes>, ArchiveError> {
        let Some(hosts) = self.manifest().hosts else {
            return Ok(None);
        };
        let (bytes, _) = self
            .bucket
            .get(&hosts.name)
            .map_err(|error| self.failed("read the table of hosts of", error))?;
        if blake3::hash(&bytes).to_hex().as_str() != hosts.hash {
            return Err(ArchiveError::Manifest {
                archive: self.shown(),
                reason: format!("`{}` has other bytes than were written", hosts.name),
            });
        }
        Ok(Some(bytes))
    }

    /// Becomes the run that writes. Returns whether it finds more than its copy of the manifest
    /// had.
    ///
    /// # Errors
    /// When the bucket does not answer; another collector is [`Archive::fenced`].
    pub fn claim(&self, now_unix_s: i64) -> Result<bool, ArchiveError> {
        self.save_again();
        self.settle_unsure()?;
        if lock(&self.state).tag.is_some() {
            return Ok(false);
        }
        self.check_conditions()?;
        let found = self.read_manifest()?;
        let known = self.manifest();
        let (mut manifest, tag) = match found {
            None if known.version > 0 => {
                self.fence(ArchiveError::NoManifest(self.shown()).to_string());
                return Ok(false);
            }
            None => (known.clone(), None),
            Some((manifest, _)) if manifest.owner.id != self.owner.id => {
                self.fence(self.owned(&manifest).to_string());
                return Ok(false);
            }
            // Somebody else wrote it; what the last run wrote without a copy is its own.
            Some((manifest, _)) if manifest.session != known.session => {
                self.fence(format!(
                    "the archive `{}` is newer than what this directory knows of it: if the \
                     directory was brought back from a backup, restart the collector",
                    self.shown()
                ));
                return Ok(false);
            }
            Some((manifest, tag)) => (manifest, Some(tag)),
        };
        let is_newer = manifest.version != known.version;
        manifest.owner = self.owner.clone();
        manifest.session.clone_from(&self.session);
        manifest.epoch += 1;
        self.write(manifest, tag.as_deref(), now_unix_s)?;
        Ok(is_newer)
    }

    /// Fails when the server does not heed conditions.
    fn check_conditions(&self) -> Result<(), ArchiveError> {
        let put = |condition: &Condition<'_>| {
            let bytes = Bytes::from_static(b"written to see whether conditions are heeded\n");
            self.bucket.put(PROBE, bytes, condition)
        };
        match put(&Condition::IsNew) {
            Ok(_) | Err(BucketError::Conflict(_)) => {}
            Err(error) => return Err(self.failed("write to", error)),
        }
        for condition in [Condition::IsNew, Condition::Is("\"0\"")] {
            match put(&condition) {
                Err(BucketError::Conflict(_)) => {}
                Ok(_) => return Err(ArchiveError::NoConditions(self.shown())),
                Err(error) => return Err(self.failed("write to", error)),
            }
        }
        Ok(())
    }

    fn fence(&self, why: String) {
        lock(&self.state).fenced = Some(why);
    }

    /// Writes the manifest in the place of the one with `tag`, and keeps a copy. Says through
    /// [`Archive::fenced`] when somebody else was there.
    fn write(
        &self,
        mut manifest: Manifest,
        tag: Option<&str>,
        now_unix_s: i64,
    ) -> Result<(), ArchiveError> {
        manifest.version += 1;
        manifest.written_unix_s = now_unix_s;
        let bytes = Bytes::from(manifest.encode());
        let condition = tag.map_or(Condition::IsNew, Condition::Is);
        let tag = match self.bucket.put(MANIFEST, bytes.clone(), &condition) {
            Ok(tag) => tag,
            Err(BucketError::Conflict(_)) => {
                // It may be this very write, whose answer was lost.
                match self.bucket.get(MANIFEST) {
                    Ok((found, tag)) if found == bytes => tag,
                    Ok((found, _)) => {
                        let other = self.decode(&found)?;
                        self.fence(match other.owner.id == self.owner.id {
                            false => self.owned(&other).to_string(),
                            true => format!(
                                "another process writes to the archive `{}` as this collector: \
                                 stop it, or give it a `data_dir` of its own, then restart this \
                                 one",
                                self.shown()
                            ),
                        });
                        return Ok(());
                    }
                    Err(error) => {
                        lock(&self.state).unsure = Some(manifest);
                        return Err(self.failed("read the manifest of", error));
                    }
                }
            }
            Err(error) => {
                lock(&self.state).unsure = Some(manifest);
                return Err(self.failed("write the manifest of", error));
            }
        };
        self.accept(manifest, tag);
        Ok(())
    }

    /// Takes over a manifest that the bucket has.
    fn accept(&self, manifest: Manifest, tag: String) {
        let mut state = lock(&self.state);
        state.tag = Some(tag);
        state.manifest = manifest;
        state.unsaved = true;
        drop(state);
        self.save_again();
    }

    /// Finds out whether a write succeeded of which the answer was lost.
    fn settle_unsure(&self) -> Result<(), ArchiveError> {
        let Some(unsure) = lock(&self.state).unsure.clone() else {
            return Ok(());
        };
        if let Some((found, tag)) = self.read_manifest()?
            && found == unsure
        {
            self.accept(unsure, tag);
        }
        lock(&self.state).unsure = None;
        Ok(())
    }

    /// Writes the copy of the manifest if the disk has not taken it yet. Without it the next start
    /// needs an answer of the bucket.
    fn save_again(&self) {
        let mut state = lock(&self.state);
        if !state.unsaved {
            return;
        }
        match self.save(&state.manifest) {
            Ok(()) => state.unsaved = false,
            Err(error) => tracing::warn!("{error}"),
        }
    }

    /// Changes the manifest. Returns whether it was written: not by a collector that was fenced.
    ///
    /// # Errors
    /// When the bucket does not take it.
    pub fn commit(
        &self,
        now_unix_s: i64,
        change: impl FnOnce(&mut Manifest),
    ) -> Result<bool, ArchiveError> {
        self.settle_unsure()?;
        let (mut manifest, tag) = {
            let state = lock(&self.state);
            (state.manifest.clone(), state.tag.clone())
        };
        let (Some(tag), None) = (tag, self.fenced()) else {
            return Ok(false);
        };
        change(&mut manifest);
        self.write(manifest, Some(&tag), now_unix_s)?;
        Ok(self.fenced().is_none())
    }

    /// A name that no object had before.
    pub fn new_name(&self, what: &str) -> String {
        let mut state = lock(&self.state);
        state.objects += 1;
        object_name(state.manifest.epoch, state.objects, what)
    }

    /// Starts an object of about so many bytes.
    pub fn upload(&self, name: &str, bytes: u64) -> Upload<'_> {
        // S3 takes 10,000 parts.
        let least = usize::try_from(bytes / 9_000).unwrap_or(usize::MAX);
        Upload(
            self.bucket
                .put_parts(name, self.options.part_bytes.max(least)),
        )
    }

    /// Writes a small object.
    pub fn put(&self, name: &str, bytes: Bytes) -> Result<(), ArchiveError> {
        match self.bucket.put(name, bytes, &Condition::IsNew) {
            Ok(_) | Err(BucketError::Conflict(_)) => Ok(()),
            Err(error) => Err(self.failed("write to", error)),
        }
    }

    /// Reads an object completely and compares it with its hashes. Holds a piece in memory.
    ///
    /// # Errors
    /// When it is not what was written.
    pub fn verify(&self, name: &str, extent: &Extent) -> Result<(), ArchiveError> {
        let corrupt = || ArchiveError::Bucket {
            operation: "verify an object of",
            archive: self.shown(),
            error: BucketError::Unavailable(format!("`{name}` has other bytes than were written")),
        };
        let read = |range| {
            let read = self.bucket.get_range(name, range);
            read.map_err(|error| self.failed("verify an object of", error))
        };
        let head = read(extent.head_offset..extent.bytes)?;
        let head = Head::decode(&head, extent).map_err(|_| corrupt())?;
        for piece in &head.index.pieces {
            if !piece.is(&read(piece.range())?) {
                return Err(corrupt());
            }
        }
        Ok(())
    }

    /// Removes an object that the manifest does not name, with what is kept of it.
    pub fn remove(&self, name: &str) -> Result<(), ArchiveError> {
        self.forget(name);
        let removed = self.bucket.delete(name);
        removed.map_err(|error| self.failed("remove an object of", error))
    }

    /// Removes what is kept of an object.
    pub fn forget(&self, name: &str) {
        let _ = std::fs::remove_file(self.head_path(name));
        self.cache.forget(name);
    }

    /// Objects that nobody will ever name: those of this collector's epoch and before that the
    /// manifest does not name.
    pub fn orphans(&self) -> Result<Vec<String>, ArchiveError> {
        let found = self.bucket.list(OBJECTS, LISTED_MAX);
        let mut found = found.map_err(|error| self.failed("list", error))?;
        let manifest = self.manifest();
        let named: std::collections::HashSet<&str> = manifest.names().collect();
        found.retain(|name| {
            let is_ours = epoch_of(name).is_some_and(|epoch| epoch <= manifest.epoch);
            is_ours && !named.contains(name.as_str())
        });
        Ok(found)
    }
}

/// An object on its way into the bucket.
pub struct Upload<'a>(Parts<'a>);

impl Upload<'_> {
    /// Makes it visible.
    ///
    /// # Errors
    /// When the bucket does not take it.
    pub fn end(self) -> Result<(), UploadError> {
        Ok(self.0.end()?)
    }
}

impl Sink for Upload<'_> {
    type Error = UploadError;

    fn append(&mut self, bytes: &[u8]) -> Result<(), UploadError> {
        Ok(self.0.append(bytes)?)
    }
}

/// Why a partition is not in the bucket.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    /// Its file.
    #[error(transparent)]
    File(#[from] FileError),
    /// The bucket.
    #[error(transparent)]
    Bucket(#[from] BucketError),
}

/// An object of a partition, for those who read it.
pub struct ArchivedObject {
    archive: Arc<Archive>,
    /// What the manifest says of it.
    pub entry: Entry,
    index: Mutex<Option<Arc<Index>>>,
}

impl ArchivedObject {
    /// Of an entry of the manifest.
    pub fn new(archive: &Arc<Archive>, entry: Entry) -> ArchivedObject {
        ArchivedObject {
            archive: Arc::clone(archive),
            entry,
            index: Mutex::default(),
        }
    }

    /// Its index; stays in memory until [`ArchivedObject::evict`].
    pub fn index(&self) -> Result<Arc<Index>, FileError> {
        let mut index = lock(&self.index);
        if let Some(index) = &*index {
            return Ok(Arc::clone(index));
        }
        let head = self.archive.head(&self.entry);
        let head = head.map_err(|error| self.failed(&error))?;
        Ok(Arc::clone(index.insert(Arc::new(head.index))))
    }

    /// Reads its hosts.
    pub fn each_host(
        &self,
        host: impl FnMut(&[u8]) -> Result<(), FileError>,
    ) -> Result<(), FileError> {
        let head = self.archive.head(&self.entry);
        head.map_err(|error| self.failed(&error))?.each_host(host)
    }

    /// Memory of the index. Unit: bytes.
    pub fn heap_bytes(&self) -> usize {
        let index = lock(&self.index);
        index.as_ref().map_or(0, |index| index.heap_bytes())
    }

    /// Forgets the index.
    pub fn evict(&self) {
        *lock(&self.index) = None;
    }

    fn ask(&self, piece: Piece) -> Ticket {
        self.archive.cache.ask(&self.entry.name, piece)
    }

    fn failed(&self, error: &FetchError) -> FileError {
        match error {
            FetchError::Cancelled => FileError::Cancelled,
            error => FileError::Archive(format!(
                "failed to read from the archive `{}`: {error}",
                self.archive.shown()
            )),
        }
    }
}

/// Most time to read something of an object when nobody waits for it.
pub const UNHURRIED: Duration = Duration::from_secs(60);
