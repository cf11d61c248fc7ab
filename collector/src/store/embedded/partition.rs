//! One partition while the store is open: its file, its dictionary, and what is not in the file yet.
//!
//! Locks are taken in this order: `mem`, then `hosts`, then the dictionary; each for a short time. A
//! reader sees file and memory as of one instant, because a flush commits and forgets what it wrote
//! under the write lock of `mem`.

mod coarser;

use super::codec::{Damage, Opener, Reader, Sealer, put, put_bytes, put_signed};
use super::dict::{Dict, Marks};
use super::encode::{Tables, encode_chunk};
use super::file::{FileError, Flush, PartitionFile};
use super::level::{HOUR_NS, HOURS_FROM, Level};
use super::memtable::{ChunkRows, GroupRows, Prepared};
use super::meta::{Seen, WindowMeta};
use super::options::CHUNK_NS;
use crate::store::{HostKey, LabelSet};
use hashbrown::HashMap;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Most connections for reading that a partition keeps between queries.
const READERS_KEPT: usize = 2;

/// Takes a lock. A thread that panicked with it left data that is still whole: everything is changed
/// in one step after what can fail.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// See [`lock`].
pub fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// See [`lock`].
pub fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// What a partition has of one boot of one host.
#[derive(Clone, Debug)]
pub struct HostState {
    /// Labels of the host as a whole, of its last window.
    pub labels: LabelSet,
    /// Begin of the first window.
    pub first_start: i64,
    /// Begin of the last one.
    pub last_start: i64,
    /// Latest end of a window.
    pub last_end: i64,
    /// Numbers of windows.
    pub seen: Seen,
    /// Changed since the last flush.
    dirty: bool,
}

/// Windows in memory by chunk.
#[derive(Default)]
pub struct Mem {
    /// What grows.
    pub active: BTreeMap<u16, ChunkRows>,
    /// What a flush is writing.
    pub frozen: Option<Arc<BTreeMap<u16, ChunkRows>>>,
}

impl Mem {
    /// Every chunk with its number.
    pub fn chunks(&self) -> impl Iterator<Item = (u16, &ChunkRows)> {
        let frozen = self.frozen.iter().flat_map(|frozen| frozen.iter());
        self.active
            .iter()
            .chain(frozen)
            .map(|(&chunk, rows)| (chunk, rows))
    }

    /// Memory held, in bytes.
    pub fn bytes(&self) -> usize {
        self.chunks().map(|(_, rows)| rows.bytes).sum()
    }
}

/// See the module.
pub struct Partition {
    /// First instant, since the Unix epoch. Unit: nanoseconds.
    pub start: i64,
    /// First instant after it.
    pub end: i64,
    /// Its file.
    pub path: PathBuf,
    /// How fine its data is.
    pub level: Level,
    /// What its services are told by.
    pub service_labels: Vec<String>,
    /// Windows that are not in the file.
    pub mem: RwLock<Mem>,
    /// What is known of hosts.
    pub hosts: RwLock<HashMap<HostKey, HostState>>,
    /// What of the dictionary is in the log or the file. Changed by the thread that pushes.
    pub logged: Mutex<Marks>,
    /// Set when the file cannot be read.
    pub damaged: AtomicBool,
    /// When it was used last, by a count of uses.
    pub used: AtomicU64,
    dict: Mutex<Option<Arc<RwLock<Dict>>>>,
    /// What of the dictionary is in the file.
    flushed: Mutex<Marks>,
    writer: Mutex<Option<PartitionFile>>,
    readers: Mutex<Vec<PartitionFile>>,
    /// Last record of the log in the file, by chunk.
    pub records: Mutex<BTreeMap<u16, u64>>,
}

impl Partition {
    /// A partition whose file is new.
    pub fn create(
        path: PathBuf,
        (start, end): (i64, i64),
        service_labels: &[String],
    ) -> Result<Partition, FileError> {
        let file = PartitionFile::create(&path, service_labels)?;
        let dict = Dict::new(service_labels, true);
        let partition = Partition {
            dict: Mutex::new(Some(Arc::new(RwLock::new(dict)))),
            writer: Mutex::new(Some(file)),
            ..Partition::empty(path, (start, end), service_labels)
        };
        Ok(partition)
    }

    fn empty(path: PathBuf, (start, end): (i64, i64), service_labels: &[String]) -> Partition {
        Partition {
            start,
            end,
            level: Level::of(&path),
            path,
            service_labels: service_labels.to_vec(),
            mem: RwLock::default(),
            hosts: RwLock::default(),
            logged: Mutex::new(Dict::empty_marks()),
            damaged: AtomicBool::new(false),
            used: AtomicU64::new(0),
            dict: Mutex::new(None),
            flushed: Mutex::new(Dict::empty_marks()),
            writer: Mutex::new(None),
            readers: Mutex::default(),
            records: Mutex::default(),
        }
    }

    /// A partition whose file is there.
    pub fn open(path: PathBuf, range: (i64, i64)) -> Result<Partition, FileError> {
        let file = PartitionFile::open_to_read(&path)?;
        let opened = file.read_opened()?;
        let partition = Partition::empty(path, range, &opened.service_labels);
        let mut hosts = HashMap::new();
        let mut opener = Opener::new()?;
        for (_, body) in &opened.hosts {
            let (key, state) = take_host(&mut opener, body)?;
            hosts.insert(key, state);
        }
        *write(&partition.hosts) = hosts;
        *lock(&partition.records) = opened.records.into_iter().collect();
        Ok(partition)
    }

    /// The chunk of an instant in the partition, and how far into it.
    pub fn chunk_of(&self, at: i64) -> (u16, u64) {
        let into = at.saturating_sub(self.start).max(0) as u64;
        ((into / CHUNK_NS) as u16, into % CHUNK_NS)
    }

    /// Begin of a chunk, or of an hour, since the Unix epoch. Unit: nanoseconds.
    pub fn chunk_start(&self, chunk: u16) -> i64 {
        if chunk >= HOURS_FROM {
            return self.start + i64::from(chunk - HOURS_FROM) * HOUR_NS as i64;
        }
        self.start + i64::from(chunk) * CHUNK_NS as i64
    }

    /// The dictionary, read from the file when it is not in memory.
    pub fn dict(&self, with_contents: bool) -> Result<Arc<RwLock<Dict>>, FileError> {
        let mut slot = lock(&self.dict);
        if let Some(dict) = &*slot
            && (!with_contents || read(dict).with_contents())
        {
            return Ok(Arc::clone(dict));
        }
        let mut dict = Dict::new(&self.service_labels, with_contents);
        let mut opener = Opener::new()?;
        let (mut entries, mut contents) = (Vec::new(), Vec::new());
        let file = self.reader()?;
        file.each_dict(with_contents, |sealed, sealed_contents| {
            opener.open(&mut Reader::new(sealed), &mut entries)?;
            contents.clear();
            if with_contents {
                opener.open(&mut Reader::new(sealed_contents), &mut contents)?;
            }
            dict.apply_delta(&mut Reader::new(&entries), &mut Reader::new(&contents))?;
            Ok(())
        })?;
        self.give_back(file);
        *lock(&self.flushed) = dict.marks();
        *lock(&self.logged) = dict.marks();
        let dict = Arc::new(RwLock::new(dict));
        *slot = Some(Arc::clone(&dict));
        Ok(dict)
    }

    /// The dictionary when it is in memory.
    pub fn dict_in_memory(&self) -> Option<Arc<RwLock<Dict>>> {
        lock(&self.dict).clone()
    }

    /// Forgets the dictionary and closes files, unless something is not in the file yet.
    pub fn evict(&self) -> bool {
        let mem = write(&self.mem);
        if mem.frozen.is_some() || !mem.active.is_empty() {
            return false;
        }
        let mut slot = lock(&self.dict);
        let all_flushed = slot
            .as_ref()
            .is_none_or(|dict| read(dict).marks() == *lock(&self.flushed));
        if !all_flushed {
            return false;
        }
        *slot = None;
        lock(&self.readers).clear();
        *lock(&self.writer) = None;
        true
    }

    /// A connection for reading.
    pub fn reader(&self) -> Result<PartitionFile, FileError> {
        let kept = lock(&self.readers).pop();
        match kept {
            Some(file) => Ok(file),
            None => PartitionFile::open_to_read(&self.path),
        }
    }

    /// Gives a connection back.
    pub fn give_back(&self, file: PartitionFile) {
        let mut readers = lock(&self.readers);
        if readers.len() < READERS_KEPT && !file.is_alone() {
            readers.push(file);
        }
    }

    /// Closes every connection that is not in use.
    pub fn close_files(&self) {
        lock(&self.readers).clear();
        *lock(&self.writer) = None;
    }

    /// Takes a window whose record is durable; returns by how much memory grew.
    pub fn apply(
        &self,
        record: u64,
        now_unix_ns: i64,
        host: &HostKey,
        labels: &LabelSet,
        window: Prepared,
    ) -> usize {
        let mut mem = write(&self.mem);
        self.note_host(host, labels, &window.meta);
        let chunk = mem.active.entry(window.chunk).or_default();
        chunk.add(record, now_unix_ns, window)
    }

    fn note_host(&self, host: &HostKey, labels: &LabelSet, window: &WindowMeta) {
        let range = window.range;
        let mut hosts = write(&self.hosts);
        let state = hosts.entry_ref(host).or_insert_with(|| HostState {
            labels: labels.clone(),
            first_start: i64::MAX,
            last_start: i64::MIN,
            last_end: i64::MIN,
            seen: Seen::default(),
            dirty: true,
        });
        state.seen.insert(window.sequence);
        state.first_start = state.first_start.min(range.start_unix_ns);
        if range.start_unix_ns >= state.last_start {
            state.last_start = range.start_unix_ns;
            state.labels.clone_from(labels);
        }
        state.last_end = state.last_end.max(range.end_unix_ns);
        state.dirty = true;
    }

    /// Lets the next record have all that the file has not: the records that had it failed.
    pub fn forget_logged(&self) {
        *lock(&self.logged) = *lock(&self.flushed);
    }

    /// First record of the log that is needed after a crash; `None` when there is none.
    pub fn first_record(&self) -> Option<u64> {
        let mem = read(&self.mem);
        mem.chunks().map(|(_, rows)| rows.first_record).min()
    }

    /// Writes chunks that `which` takes, and what an earlier flush could not. Returns how many rows
    /// were written.
    pub fn flush(&self, which: impl Fn(u16, &ChunkRows) -> bool) -> Result<u64, FileError> {
        let frozen = {
            let mut mem = write(&self.mem);
            match &mem.frozen {
                Some(frozen) => Arc::clone(frozen),
                None => {
                    let taken: BTreeMap<u16, ChunkRows> = mem
                        .active
                        .extract_if(.., |&chunk, rows| which(chunk, rows))
                        .collect();
                    if taken.is_empty() {
                        return Ok(0);
                    }
                    let frozen = Arc::new(taken);
                    mem.frozen = Some(Arc::clone(&frozen));
                    frozen
                }
            }
        };
        let written = self.write_frozen(&frozen);
        if written.is_err() {
            // What was taken for written is written next time.
            write(&self.hosts)
                .values_mut()
                .for_each(|state| state.dirty = true);
        }
        written
    }

    fn write_frozen(&self, frozen: &BTreeMap<u16, ChunkRows>) -> Result<u64, FileError> {
        let dict = self.dict(true)?;
        let (flush, marks) = self.encode(&dict, frozen)?;
        let mut slot = lock(&self.writer);
        let file = match &mut *slot {
            Some(file) => file,
            None => slot.insert(PartitionFile::open(&self.path)?),
        };
        file.write(&flush)?;
        let mut mem = write(&self.mem);
        file.commit()?;
        mem.frozen = None;
        *lock(&self.flushed) = marks;
        let mut records = lock(&self.records);
        let mut rows = 0;
        for (chunk, record, encoded) in &flush.chunks {
            records.insert(*chunk, *record);
            rows += encoded.entries;
        }
        drop((records, mem));
        // Readers of an older state keep it from moving everything; the next flush goes on.
        file.checkpoint(false)?;
        Ok(rows)
    }

    fn encode(
        &self,
        dict: &RwLock<Dict>,
        frozen: &BTreeMap<u16, ChunkRows>,
    ) -> Result<(Flush, Marks), FileError> {
        let tables = Tables::of(&read(dict));
        let mut chunks = Vec::new();
        for (&chunk, rows) in frozen {
            let encoded =
                encode_chunk(&tables, rows).map_err(|error| FileError::Other(error.to_string()))?;
            chunks.push((chunk, rows.last_record, encoded));
        }
        let mut sealer = Sealer::new()?;
        let dict = read(dict);
        let (from, marks) = (*lock(&self.flushed), dict.marks());
        let entries = if from == marks {
            None
        } else {
            let (mut entries, mut contents) = (Vec::new(), Vec::new());
            dict.put_delta(from, marks, &mut entries, &mut contents);
            let (mut sealed, mut sealed_contents) = (Vec::new(), Vec::new());
            sealer.seal(&mut sealed, &entries)?;
            sealer.seal(&mut sealed_contents, &contents)?;
            Some((sealed, sealed_contents))
        };
        let mut hosts = Vec::new();
        for (key, state) in write(&self.hosts).iter_mut() {
            if let Some(id) = dict.find_host(key)
                && std::mem::take(&mut state.dirty)
            {
                hosts.push((id, put_host(&mut sealer, key, state)?));
            }
        }
        let flush = Flush {
            dict: entries,
            chunks,
            hosts,
        };
        Ok((flush, marks))
    }

    /// File and memory as of now: chunks in `[from, to]`, of them the groups that `wanted` takes.
    ///
    /// What is wanted is chosen while nothing can be added, so that the dictionary the choice is made
    /// from has all that is seen: of a window all rows are known, or none is there.
    pub fn view<C>(
        &self,
        (from, to): (u16, u16),
        with_windows: bool,
        choose: impl FnOnce() -> C,
        wanted: impl Fn(&C, u32) -> bool,
    ) -> Result<(View, C), FileError> {
        let file = self.reader()?;
        let mem = read(&self.mem);
        file.begin()?;
        let choice = choose();
        let mut chunks = Vec::new();
        for (chunk, rows) in mem.chunks() {
            if !(from..=to).contains(&chunk) {
                continue;
            }
            let mut groups: Vec<(u32, GroupRows)> = Vec::new();
            for (&group, rows) in &rows.groups {
                if wanted(&choice, group) {
                    groups.push((group, rows.clone()));
                }
            }
            groups.sort_unstable_by_key(|(group, _)| *group);
            let windows = if with_windows {
                rows.windows.clone()
            } else {
                Vec::new()
            };
            chunks.push(MemChunk {
                chunk,
                groups,
                windows,
            });
        }
        drop(mem);
        Ok((View { file, chunks }, choice))
    }

    /// A partition with a new file that has what memory has of this one: nothing is in its file yet,
    /// and the next flush writes the dictionary as a whole. `None` when memory has nothing.
    pub fn renewed(&self) -> Result<Option<Partition>, FileError> {
        let mut mem = write(&self.mem);
        let dict = lock(&self.dict).clone();
        let dict = dict.filter(|dict| read(dict).with_contents());
        let Some(dict) = dict.filter(|_| mem.chunks().next().is_some()) else {
            return Ok(None);
        };
        let range = (self.start, self.end);
        let file = PartitionFile::create(&self.path, &self.service_labels)?;
        let mut hosts = read(&self.hosts).clone();
        hosts.values_mut().for_each(|state| state.dirty = true);
        let renewed = Partition {
            mem: RwLock::new(std::mem::take(&mut *mem)),
            hosts: RwLock::new(hosts),
            dict: Mutex::new(Some(dict)),
            writer: Mutex::new(Some(file)),
            ..Partition::empty(self.path.clone(), range, &self.service_labels)
        };
        Ok(Some(renewed))
    }

    /// Marks the file as unusable; says whether it was not before.
    pub fn set_damaged(&self) -> bool {
        !self.damaged.swap(true, Ordering::AcqRel)
    }
}

/// A copy of what memory has of one chunk.
pub struct MemChunk {
    /// Which.
    pub chunk: u16,
    /// Groups that were wanted.
    pub groups: Vec<(u32, GroupRows)>,
    /// Windows, when they were wanted.
    pub windows: Vec<WindowMeta>,
}

/// A partition as of one instant.
pub struct View {
    /// What is in the file.
    pub file: PartitionFile,
    /// What is in memory.
    pub chunks: Vec<MemChunk>,
}

impl View {
    /// Memory of the copies, in bytes.
    pub fn heap_bytes(&self) -> usize {
        let groups = self.chunks.iter().flat_map(|chunk| &chunk.groups);
        groups.map(|(_, rows)| rows.bytes()).sum()
    }

    /// Gives the connection back to its partition.
    pub fn close(self, partition: &Partition) {
        self.file.end();
        partition.give_back(self.file);
    }
}

fn put_host(sealer: &mut Sealer, key: &HostKey, state: &HostState) -> std::io::Result<Vec<u8>> {
    let mut raw = Vec::new();
    put_bytes(&mut raw, key.host_id.as_bytes());
    raw.extend_from_slice(&key.boot_id);
    put_labels(&mut raw, &state.labels);
    for at in [state.first_start, state.last_start, state.last_end] {
        put_signed(&mut raw, at);
    }
    state.seen.put(&mut raw);
    let mut out = Vec::new();
    sealer.seal(&mut out, &raw)?;
    Ok(out)
}

fn take_host(opener: &mut Opener, body: &[u8]) -> Result<(HostKey, HostState), Damage> {
    let mut raw = Vec::new();
    opener.open(&mut Reader::new(body), &mut raw)?;
    let mut input = Reader::new(&raw);
    let key = HostKey {
        host_id: input.take_str()?.to_owned(),
        boot_id: input.take_16()?,
    };
    let state = HostState {
        labels: take_labels(&mut input)?,
        first_start: input.take_signed()?,
        last_start: input.take_signed()?,
        last_end: input.take_signed()?,
        seen: Seen::take(&mut input)?,
        dirty: false,
    };
    Ok((key, state))
}

/// Appends labels as text.
pub fn put_labels(out: &mut Vec<u8>, labels: &LabelSet) {
    put(out, labels.iter().len() as u64);
    for (name, value) in labels.iter() {
        put_bytes(out, name.as_bytes());
        put_bytes(out, value.as_bytes());
    }
}

/// Reads what [`put_labels`] wrote.
pub fn take_labels(input: &mut Reader<'_>) -> Result<LabelSet, Damage> {
    let mut pairs = Vec::new();
    for _ in 0..input.take_count()? {
        pairs.push((input.take_str()?.to_owned(), input.take_str()?.to_owned()));
    }
    Ok(LabelSet::new(pairs))
}
