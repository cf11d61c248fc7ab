//! Pieces of objects on the local disk: what queries read again is not fetched again. The pieces
//! used longest ago go first. Queries that want the same piece at the same time share one request,
//! which ends when the last of them has gone.
//!
//! A file that is not what the object's index says is fetched again, so nothing here has to be
//! durable.

use super::bucket::{Bucket, BucketError};
use super::object::Piece;
use crate::store::{Cancel, Limits};
use crate::sync::lock;
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use tokio::task::AbortHandle;

/// How often who waits for a request looks whether its client has gone.
const LOOK: Duration = Duration::from_millis(20);

/// For how long somebody waits.
#[derive(Clone, Debug)]
pub struct Patience {
    cancel: Cancel,
    deadline: Instant,
}

impl Patience {
    /// That of a query.
    pub fn of(limits: &Limits) -> Patience {
        Patience {
            cancel: limits.cancel.clone(),
            deadline: limits.deadline,
        }
    }

    /// So long.
    pub fn lasting(time: Duration) -> Patience {
        Patience {
            cancel: Cancel::default(),
            deadline: Instant::now() + time,
        }
    }

    fn is_over(&self) -> bool {
        self.cancel.is_cancelled() || Instant::now() >= self.deadline
    }
}

/// Why a piece is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// The bucket does not give it.
    #[error(transparent)]
    Bucket(#[from] BucketError),
    /// The bucket gives other bytes than were written.
    #[error("`{0}` has other bytes than were written")]
    Corrupt(String),
    /// Whoever wanted it has gone, or its time is over.
    #[error("the caller gave up")]
    Cancelled,
}

metrics::counted! {
    /// What the cache did.
    pub struct CacheCounters;
    /// Pieces of archived partitions that queries read, by where they came from.
    Counter fleetprof_archive_reads_total{from} =
        "cache" hits,
        "bucket" misses;
    /// Requests to the bucket that a query shared with another.
    Counter fleetprof_archive_reads_shared_total = shared;
    /// Bytes that queries fetched from the bucket.
    Counter fleetprof_archive_read_bytes_total = fetched_bytes;
    /// Requests of queries that the bucket did not answer.
    Counter fleetprof_archive_read_failures_total = failures;
    /// Pieces with other bytes than were written, by where they came from.
    Counter fleetprof_archive_corrupt_total{from} =
        "cache" corrupt_files,
        "bucket" corrupt_objects;
    /// Pieces removed from the cache to make room.
    Counter fleetprof_archive_cache_evicted_total = evicted;
    /// Pieces that could not be written to the cache; they are fetched again when they are wanted
    /// again.
    Counter fleetprof_archive_cache_write_failures_total = write_failures;
    /// Size of the local cache of pieces of the archive.
    Gauge fleetprof_archive_cache_bytes = bytes;
}

/// Name of an object and offset of a piece.
type Key = (String, u64);

#[derive(Default)]
struct Kept {
    /// Size and last use of each piece.
    pieces: HashMap<Key, (u64, u64)>,
    /// By last use.
    by_use: BTreeMap<u64, Key>,
    uses: u64,
    bytes: u64,
}

impl Kept {
    fn touch(&mut self, key: &Key) -> bool {
        let Some((_, used)) = self.pieces.get_mut(key) else {
            return false;
        };
        self.by_use.remove(used);
        self.uses += 1;
        *used = self.uses;
        self.by_use.insert(self.uses, key.clone());
        true
    }

    fn insert(&mut self, key: Key, bytes: u64) {
        self.remove(&key);
        self.uses += 1;
        self.by_use.insert(self.uses, key.clone());
        self.pieces.insert(key, (bytes, self.uses));
        self.bytes += bytes;
    }

    fn remove(&mut self, key: &Key) {
        if let Some((bytes, used)) = self.pieces.remove(key) {
            self.by_use.remove(&used);
            self.bytes -= bytes;
        }
    }
}

/// See the module.
pub struct Cache {
    dir: PathBuf,
    bytes_max: u64,
    bucket: Arc<Bucket>,
    kept: Mutex<Kept>,
    requests: Mutex<HashMap<Key, Arc<Request>>>,
    /// What it did.
    pub counters: CacheCounters,
}

/// A request that one or more wait for.
#[derive(Default)]
struct Request {
    state: Mutex<RequestState>,
    ended: Condvar,
}

#[derive(Default)]
struct RequestState {
    waiting: usize,
    /// To end it early.
    abort: Option<AbortHandle>,
    result: Option<Result<Bytes, FetchError>>,
}

/// A piece that was asked for.
pub struct Ticket {
    key: Key,
    piece: Piece,
    cache: Arc<Cache>,
    source: Source,
}

enum Source {
    File,
    Request(Arc<Request>),
}

impl Cache {
    /// A cache in a directory, with what is there. What does not fit any more is removed.
    ///
    /// # Errors
    /// When the directory cannot be made or listed.
    pub fn open(dir: PathBuf, bytes_max: u64, bucket: Arc<Bucket>) -> std::io::Result<Cache> {
        std::fs::create_dir_all(&dir)?;
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let metadata = entry.metadata()?;
            match name.to_str().and_then(parse_name) {
                Some(key) => found.push((metadata.modified().ok(), key, metadata.len())),
                // Of a write that a crash ended.
                None => std::fs::remove_file(entry.path())?,
            }
        }
        found.sort();
        let cache = Cache {
            dir,
            bytes_max,
            bucket,
            kept: Mutex::default(),
            requests: Mutex::default(),
            counters: CacheCounters::default(),
        };
        let mut kept = lock(&cache.kept);
        for (_, key, bytes) in found {
            kept.insert(key, bytes);
        }
        cache.make_room(&mut kept, 0);
        drop(kept);
        Ok(cache)
    }

    fn path(&self, (object, offset): &Key) -> PathBuf {
        let object = object.rsplit('/').next().unwrap_or_default();
        self.dir.join(format!("{object}.{offset}"))
    }

    /// Asks for a piece of an object; nothing waits yet.
    pub fn ask(self: &Arc<Cache>, object: &str, piece: Piece) -> Ticket {
        let key = (object.to_owned(), piece.offset);
        let source = self.source(&key, piece);
        Ticket {
            key,
            piece,
            cache: Arc::clone(self),
            source,
        }
    }

    /// The file of a piece, or the request for it, which is joined or started.
    fn source(self: &Arc<Cache>, key: &Key, piece: Piece) -> Source {
        let mut requests = lock(&self.requests);
        // With the table locked: a request that is not in it any more has left a file.
        if lock(&self.kept).touch(key) {
            return Source::File;
        }
        if let Some(request) = requests.get(key) {
            let mut state = lock(&request.state);
            if state.waiting > 0 {
                state.waiting += 1;
                self.counters.shared.inc();
                return Source::Request(Arc::clone(request));
            }
        }
        self.counters.misses.inc();
        let request = Arc::new(Request::default());
        let mut state = lock(&request.state);
        state.waiting = 1;
        let (cache, of, answered) = (Arc::clone(self), key.clone(), Arc::clone(&request));
        state.abort = Some(self.bucket.fetch(&key.0, piece.range(), move |found| {
            let found = cache.received(&of, piece, found);
            // Out of the table first: who comes now finds the file.
            let mut requests = lock(&cache.requests);
            if requests
                .get(&of)
                .is_some_and(|own| Arc::ptr_eq(own, &answered))
            {
                requests.remove(&of);
            }
            drop(requests);
            lock(&answered.state).result = Some(found);
            answered.ended.notify_all();
        }));
        drop(state);
        requests.insert(key.clone(), Arc::clone(&request));
        Source::Request(request)
    }

    /// Checks what came, and keeps it.
    fn received(
        &self,
        key: &Key,
        piece: Piece,
        found: Result<Bytes, BucketError>,
    ) -> Result<Bytes, FetchError> {
        let bytes = found.inspect_err(|_| {
            self.counters.failures.inc();
        })?;
        self.counters.fetched_bytes.inc_by(bytes.len() as u64);
        if !piece.is(&bytes) {
            self.counters.corrupt_objects.inc();
            return Err(FetchError::Corrupt(key.0.clone()));
        }
        if let Err(error) = self.keep(key, &bytes) {
            self.counters.write_failures.inc();
            tracing::debug!("failed to write to the cache of the archive: {error}");
        }
        Ok(bytes)
    }

    fn keep(&self, key: &Key, bytes: &[u8]) -> std::io::Result<()> {
        let path = self.path(key);
        let len = bytes.len() as u64;
        if len > self.bytes_max {
            return Ok(());
        }
        self.make_room(&mut lock(&self.kept), len);
        let fresh = path.with_extension(format!("{}.new", key.1));
        let written = std::fs::write(&fresh, bytes).and_then(|()| std::fs::rename(&fresh, &path));
        if written.is_err() {
            let _ = std::fs::remove_file(&fresh);
            return written;
        }
        let mut kept = lock(&self.kept);
        kept.insert(key.clone(), len);
        self.make_room(&mut kept, 0);
        Ok(())
    }

    /// Removes the pieces used longest ago until `more` bytes fit.
    fn make_room(&self, kept: &mut Kept, more: u64) {
        while kept.bytes.saturating_add(more) > self.bytes_max {
            let Some((_, key)) = kept.by_use.pop_first() else {
                break;
            };
            kept.remove(&key);
            self.counters.evicted.inc();
            let _ = std::fs::remove_file(self.path(&key));
        }
        self.counters.bytes.set(kept.bytes);
    }

    /// Removes the pieces of an object that is no more.
    pub fn forget(&self, object: &str) {
        let mut kept = lock(&self.kept);
        let of_object = kept.pieces.keys().filter(|(own, _)| own == object);
        let of_object: Vec<Key> = of_object.cloned().collect();
        for key in of_object {
            kept.remove(&key);
            let _ = std::fs::remove_file(self.path(&key));
        }
        self.counters.bytes.set(kept.bytes);
    }

    /// Reads a file that the cache has; `None` if it is not what was written.
    fn read(&self, key: &Key, piece: &Piece) -> Option<Bytes> {
        let bytes = std::fs::read(self.path(key)).ok()?;
        piece.is(&bytes).then(|| Bytes::from(bytes))
    }
}

impl Ticket {
    /// The bytes, once they are here.
    ///
    /// # Errors
    /// When the bucket does not give them, or nobody waits any more.
    pub fn wait(mut self, patience: &Patience) -> Result<Bytes, FetchError> {
        if matches!(self.source, Source::File) {
            if let Some(bytes) = self.cache.read(&self.key, &self.piece) {
                self.cache.counters.hits.inc();
                return Ok(bytes);
            }
            // Evicted since, or damaged.
            if self.cache.path(&self.key).exists() {
                self.cache.counters.corrupt_files.inc();
            }
            lock(&self.cache.kept).remove(&self.key);
            self.source = self.cache.source(&self.key, self.piece);
        }
        let Source::Request(request) = &self.source else {
            return Err(FetchError::Cancelled);
        };
        let mut state = lock(&request.state);
        loop {
            if let Some(result) = &state.result {
                return result.clone();
            }
            if patience.is_over() {
                return Err(FetchError::Cancelled);
            }
            let waited = request.ended.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let Source::Request(request) = &self.source else {
            return;
        };
        // The table first, as where requests are joined.
        let mut requests = lock(&self.cache.requests);
        let mut state = lock(&request.state);
        state.waiting -= 1;
        if state.waiting > 0 || state.result.is_some() {
            return;
        }
        if let Some(abort) = state.abort.take() {
            abort.abort();
        }
        let own = requests.get(&self.key);
        if own.is_some_and(|own| Arc::ptr_eq(own, request)) {
            requests.remove(&self.key);
        }
    }
}

/// The piece of a file in the cache, by its name.
fn parse_name(name: &str) -> Option<Key> {
    let (object, offset) = name.split_once('.')?;
    let object = Path::new(super::manifest::OBJECTS).join(object);
    Some((object.to_str()?.to_owned(), offset.parse().ok()?))
}
