//! One partition while the store is open: its file, its dictionary, and the windows not in the file
//! yet.
//!
//! Locks are taken in this order: `mem`, then the dictionary, then `hosts`, with which no other is
//! taken; each for a short time. Only a push writes to dictionaries, one push at a time, so it may
//! read another partition's while it writes to one. The disk is waited for with the dictionary's
//! slot, while it is loaded, and with `mem` for as long as SQLite takes to fix what a reader sees.
//! A reader sees file and memory as of one instant: flushes are numbered, the file says how many
//! are in it, and what a flush is writing stays in memory until it is committed, to be passed over
//! by readers whose view of the file has it.

mod downsampled;

use super::archive::{ArchivedObject, ObjectReader, Patience, UNHURRIED};
use super::chunk::{CHUNK_NS, HOUR_NS, HOURS_FROM};
use super::chunk_slice::ChunkSlice;
use super::codec::{Reader, SectionReader, SectionWriter};
use super::dict::Dict;
use super::dict_version::DictVersion;
use super::encode::{Tables, encode_chunk};
use super::file::{self, FileError, Flush, PartitionFile};
use super::host_index::HostIndex;
use super::host_state::{HostState, decode_host, encode_host, named};
use super::level::Level;
use super::manifest_entry::Entry;
use super::memtable::{ChunkRows, GroupRows, Prepared};
use super::meta::{Summary, WindowMeta};
use super::partition_log::{PartitionLog, new_generation};
use super::read_file::ReadFile;
use crate::store::{HostKey, LabelSet, Limits};
use crate::sync::{lock, read, write};
use hashbrown::HashMap;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock, RwLockReadGuard};

/// Memory of a host with its labels and numbers, about. Unit: bytes.
const HOST_STATE_BYTES: usize = 500;

/// Most connections for reading that a partition keeps between queries.
const READERS_KEPT: usize = 2;

/// Windows in memory by chunk.
#[derive(Default)]
pub struct Mem {
    /// Chunks that are growing.
    pub active: BTreeMap<u16, ChunkRows>,
    /// Chunks that a flush is writing.
    pub frozen: Option<Arc<Frozen>>,
}

/// Data that one flush writes to the file.
pub struct Frozen {
    /// Number of the flush.
    number: u64,
    chunks: BTreeMap<u16, ChunkRows>,
    /// How much of the dictionary it takes along: the same when it is tried again, because what
    /// seemed to fail may be in the file.
    version: OnceLock<DictVersion>,
}

impl Mem {
    /// Every chunk with its number.
    pub fn chunks(&self) -> impl Iterator<Item = (u16, &ChunkRows)> {
        self.beyond(0)
    }

    /// Every chunk that a file with so many flushes has not.
    fn beyond(&self, flushes: u64) -> impl Iterator<Item = (u16, &ChunkRows)> {
        let frozen = self.frozen.iter();
        let frozen = frozen.filter(move |frozen| frozen.number > flushes);
        self.active
            .iter()
            .chain(frozen.flat_map(|frozen| frozen.chunks.iter()))
            .map(|(&chunk, rows)| (chunk, rows))
    }

    /// Memory held, in bytes.
    pub fn bytes(&self) -> usize {
        self.chunks().map(|(_, rows)| rows.bytes).sum()
    }
}

/// Hosts of a partition.
#[derive(Default)]
pub struct Hosts {
    /// State by boot of a host, without what only the file has.
    pub states: HashMap<HostKey, HostState>,
    /// Whether the hosts of the file are included.
    with_stored: bool,
}

/// See the module.
pub struct Partition {
    /// First instant, since the Unix epoch. Unit: nanoseconds.
    pub start: i64,
    /// First instant after it.
    pub end: i64,
    /// Its file.
    pub path: PathBuf,
    /// Which set of ids it has. See [`partition_log`](super::partition_log).
    pub generation: u64,
    /// Which data it has, whatever its level and its ids are.
    pub lineage: u64,
    /// The object that it is read from, if it has no file. Nothing is written to it then, and it
    /// has no log.
    pub object: Option<Arc<ArchivedObject>>,
    /// Its write-ahead log; that of the partition that it took the place of, when the ids are the
    /// same.
    pub log: Arc<PartitionLog>,
    /// How fine its data is.
    pub level: Level,
    /// Labels that identify its services.
    pub service_labels: Vec<String>,
    /// Windows that are not in the file.
    pub mem: RwLock<Mem>,
    /// What is known of hosts.
    pub hosts: RwLock<Hosts>,
    /// Set when the file cannot be read.
    pub damaged: AtomicBool,
    /// When it was used last, by a count of uses.
    pub used: AtomicU64,
    dict: Mutex<Option<Arc<RwLock<Dict>>>>,
    /// What of the dictionary is in the file.
    flushed: Mutex<DictVersion>,
    /// How many flushes are in the file.
    flushes: AtomicU64,
    writer: Mutex<Option<PartitionFile>>,
    readers: Mutex<Vec<PartitionFile>>,
    /// Size on disk as it was last looked at; 0: not since somebody had a file open. Unit: bytes.
    bytes: AtomicU64,
    /// Last record of the log in the file, by chunk.
    pub records: Mutex<BTreeMap<u16, u64>>,
}

impl Partition {
    /// A partition with a new file, with new ids or, if a file was destroyed, that file's ids.
    /// `log` is the folder of its log; nothing of another generation may be in it.
    pub fn create(
        path: PathBuf,
        log: PathBuf,
        range: (i64, i64),
        service_labels: &[String],
        known: Option<u64>,
    ) -> Result<Partition, FileError> {
        let generation = known.unwrap_or_else(new_generation);
        let log = Arc::new(PartitionLog::new(log, generation, 0));
        let mut dict = Dict::new(service_labels, true);
        log.load_copy(&mut dict);
        let lineage = new_generation();
        let file = PartitionFile::create(&path, service_labels, generation, lineage)?;
        Ok(Partition {
            lineage,
            dict: Mutex::new(Some(Arc::new(RwLock::new(dict)))),
            writer: Mutex::new(Some(file)),
            ..Partition::empty(path, log, range, service_labels, generation)
        })
    }

    fn empty(
        path: PathBuf,
        log: Arc<PartitionLog>,
        (start, end): (i64, i64),
        service_labels: &[String],
        generation: u64,
    ) -> Partition {
        Partition {
            start,
            end,
            level: Level::of(&path),
            path,
            generation,
            lineage: generation,
            object: None,
            log,
            service_labels: service_labels.to_vec(),
            mem: RwLock::default(),
            hosts: RwLock::default(),
            damaged: AtomicBool::new(false),
            used: AtomicU64::new(0),
            dict: Mutex::new(None),
            flushed: Mutex::new(DictVersion::EMPTY),
            flushes: AtomicU64::new(0),
            writer: Mutex::new(None),
            readers: Mutex::default(),
            bytes: AtomicU64::new(0),
            records: Mutex::default(),
        }
    }

    /// A partition with an existing file.
    pub fn open(path: PathBuf, log: PathBuf, range: (i64, i64)) -> Result<Partition, FileError> {
        let file = PartitionFile::open_to_read(&path)?;
        let opened = file.read_opened()?;
        let (labels, generation) = (&opened.service_labels, opened.generation);
        let last = opened.records.iter().map(|&(_, record)| record).max();
        let log = Arc::new(PartitionLog::new(log, generation, last.unwrap_or(0)));
        let partition = Partition {
            lineage: opened.lineage,
            ..Partition::empty(path, log, range, labels, generation)
        };
        partition.flushes.store(opened.flushes, Ordering::Relaxed);
        *lock(&partition.records) = opened.records.into_iter().collect();
        partition.give_back(ReadFile::Local(file));
        Ok(partition)
    }

    /// A partition with a file as described by the manifest; the file is opened when it is needed.
    pub fn unchanged(path: PathBuf, log: PathBuf, start: i64, entry: Entry) -> Partition {
        let (range, generation) = ((start, entry.end), entry.generation);
        let last = entry.records.values().copied().max().unwrap_or(0);
        let log = Arc::new(PartitionLog::new(log, generation, last));
        let partition = Partition {
            lineage: entry.lineage,
            ..Partition::empty(path, log, range, &entry.service_labels, generation)
        };
        partition.flushes.store(entry.flushes, Ordering::Relaxed);
        *lock(&partition.records) = entry.records;
        partition
    }

    /// A partition that is read from an object of this level. `path` is the name that its file had.
    pub fn archived(
        path: PathBuf,
        log: PathBuf,
        range: (i64, i64),
        level: Level,
        service_labels: &[String],
        object: ArchivedObject,
    ) -> Partition {
        let lineage = object.entry.lineage();
        // Never opened: its ids are of no log.
        let log = Arc::new(PartitionLog::new(log, 0, 0));
        let flushes = AtomicU64::new(object.entry.flushes);
        Partition {
            lineage,
            level,
            flushes,
            object: Some(Arc::new(object)),
            ..Partition::empty(path, log, range, service_labels, 0)
        }
    }

    /// How many flushes are in the file.
    pub fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Relaxed)
    }

    /// What the file has of hosts.
    fn stored_hosts(&self) -> Result<Vec<(HostKey, HostState)>, FileError> {
        let (mut hosts, mut opener) = (Vec::new(), SectionReader::new()?);
        let mut host = |body: &[u8]| {
            hosts.push(decode_host(&mut opener, body)?);
            Ok(())
        };
        if let Some(object) = &self.object {
            object.each_host(host)?;
            return Ok(hosts);
        }
        let file = self.reader()?;
        file.each_host(&mut host)?;
        self.give_back(ReadFile::Local(file));
        Ok(hosts)
    }

    /// Every host; those of the file stay in memory until the partition is evicted.
    pub fn all_hosts(&self) -> Result<RwLockReadGuard<'_, Hosts>, FileError> {
        loop {
            let hosts = read(&self.hosts);
            if hosts.with_stored {
                return Ok(hosts);
            }
            drop(hosts);
            self.load_hosts()?;
        }
    }

    fn load_hosts(&self) -> Result<(), FileError> {
        let stored = self.stored_hosts()?;
        let mut hosts = write(&self.hosts);
        // A flush, which loads them as well, may have changed the file since.
        if std::mem::replace(&mut hosts.with_stored, true) {
            return Ok(());
        }
        for (key, state) in stored {
            match hosts.states.get_mut(&key) {
                Some(newer) => newer.merge(state),
                None => drop(hosts.states.insert(key, state)),
            }
        }
        Ok(())
    }

    /// Adds every host to an index; what was not in memory is not kept there.
    pub fn index_hosts(&self, index: &mut HostIndex) -> Result<(), FileError> {
        let hosts = read(&self.hosts);
        for (key, state) in &hosts.states {
            index.add_state(key, state);
        }
        if hosts.with_stored {
            return Ok(());
        }
        drop(hosts);
        for (key, state) in self.stored_hosts()? {
            index.add_state(&key, &state);
        }
        Ok(())
    }

    /// The chunk of an instant in the partition, and how far into it.
    pub fn chunk_of(&self, at: i64) -> (u16, u64) {
        let into = at.saturating_sub(self.start).max(0) as u64;
        ((into / CHUNK_NS) as u16, into % CHUNK_NS)
    }

    /// Start of a chunk, or of an hour, since the Unix epoch. Unit: nanoseconds.
    pub fn chunk_start(&self, chunk: u16) -> i64 {
        if chunk >= HOURS_FROM {
            return self.start + i64::from(chunk - HOURS_FROM) * HOUR_NS as i64;
        }
        self.start + i64::from(chunk) * CHUNK_NS as i64
    }

    /// The dictionary, read from the file when it is not in memory.
    pub fn dict(&self, with_contents: bool) -> Result<Arc<RwLock<Dict>>, FileError> {
        self.dict_within(with_contents, &Patience::lasting(UNHURRIED))
    }

    /// The dictionary without contents, for a query.
    pub fn dict_for(&self, limits: &Limits) -> Result<Arc<RwLock<Dict>>, FileError> {
        self.dict_within(false, &Patience::of(limits))
    }

    fn dict_within(
        &self,
        with_contents: bool,
        patience: &Patience,
    ) -> Result<Arc<RwLock<Dict>>, FileError> {
        let mut slot = lock(&self.dict);
        if let Some(dict) = &*slot
            && (!with_contents || read(dict).with_contents())
        {
            return Ok(Arc::clone(dict));
        }
        if self.object.is_some() {
            // No lock is held while a network is waited for. Who loads it at the same time shares
            // the requests.
            drop(slot);
            let dict = self.read_dict(with_contents, patience)?;
            slot = lock(&self.dict);
            return Ok(Arc::clone(slot.get_or_insert(dict)));
        }
        let dict = self.read_dict(with_contents, patience)?;
        *slot = Some(Arc::clone(&dict));
        Ok(dict)
    }

    fn read_dict(
        &self,
        with_contents: bool,
        patience: &Patience,
    ) -> Result<Arc<RwLock<Dict>>, FileError> {
        let mut dict = Dict::new(&self.service_labels, with_contents);
        let mut opener = SectionReader::new()?;
        let (mut entries, mut contents) = (Vec::new(), Vec::new());
        let file = self.open_for(patience)?;
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
        *lock(&self.flushed) = dict.version();
        if self.object.is_none() {
            self.log.load_copy(&mut dict);
        }
        Ok(Arc::new(RwLock::new(dict)))
    }

    /// The dictionary when it is in memory.
    pub fn dict_in_memory(&self) -> Option<Arc<RwLock<Dict>>> {
        lock(&self.dict).clone()
    }

    /// Memory of the dictionary and of hosts, when they are there. Unit: bytes.
    pub fn dict_bytes(&self) -> Option<usize> {
        let dict = self.dict_in_memory()?;
        let hosts = read(&self.hosts).states.len() * HOST_STATE_BYTES;
        let index = self.object.as_ref().map_or(0, |object| object.heap_bytes());
        Some(read(&dict).heap_bytes() + hosts + index)
    }

    /// Removes segments of the log of which every record comes before `needed`; what only those had
    /// of the dictionary is written once more before they go.
    pub fn cut_log(&self, needed: u64) -> std::io::Result<()> {
        if !lock(&self.log.wal).can_cut(needed) {
            return Ok(());
        }
        // Without it nothing waits for the file. What was not kept comes with its next record.
        if let Some(dict) = self.dict_in_memory() {
            self.log.keep_dict(&dict)?;
        }
        let cut = lock(&self.log.wal).cut(needed);
        cut.map_err(std::io::Error::other)
    }

    /// Forgets the dictionary and hosts, and closes files, unless something is not in the file yet.
    pub fn evict(&self) -> bool {
        let mem = write(&self.mem);
        if mem.frozen.is_some() || !mem.active.is_empty() {
            return false;
        }
        let mut slot = lock(&self.dict);
        // What is read again is what either of both has.
        let is_durable = slot.as_ref().is_none_or(|dict| {
            let version = read(dict).version();
            version == *lock(&self.flushed) || self.log.copy_version().includes(version)
        });
        if !is_durable {
            return false;
        }
        *slot = None;
        *write(&self.hosts) = Hosts::default();
        if let Some(object) = &self.object {
            object.evict();
        }
        self.close_files();
        true
    }

    /// Size on disk including SQLite's additional files. Unit: bytes. Closed files are checked only
    /// once: there is one for each six hours of a year.
    pub fn bytes(&self) -> u64 {
        if self.object.is_some() {
            return 0;
        }
        let known = self.bytes.load(Ordering::Relaxed);
        if known > 0 {
            return known;
        }
        // A flush that has the writer takes seconds; the size is another one when it is done.
        let writer = self.writer.try_lock();
        let written_to = writer.map_or(true, |writer| writer.is_some());
        let is_open = written_to || !lock(&self.readers).is_empty();
        let bytes = file::bytes(&self.path);
        if !is_open {
            self.bytes.store(bytes, Ordering::Relaxed);
        }
        bytes
    }

    /// Lets the size be looked at again: somebody has the file open, or wrote to it.
    pub fn forget_bytes(&self) {
        self.bytes.store(0, Ordering::Relaxed);
    }

    /// Closes connections for reading that are not in use.
    pub fn close_readers(&self) {
        lock(&self.readers).clear();
        self.forget_bytes();
    }

    /// A connection for reading.
    pub fn reader(&self) -> Result<PartitionFile, FileError> {
        let kept = lock(&self.readers).pop();
        self.forget_bytes();
        match kept {
            Some(file) => Ok(file),
            None => PartitionFile::open_to_read(&self.path),
        }
    }

    /// What somebody with so much patience reads from.
    fn open_for(&self, patience: &Patience) -> Result<ReadFile, FileError> {
        match &self.object {
            Some(object) => Ok(ReadFile::Archived(ObjectReader::open(object, patience)?)),
            None => Ok(ReadFile::Local(self.reader()?)),
        }
    }

    /// Returns a connection.
    pub fn give_back(&self, file: ReadFile) {
        let ReadFile::Local(file) = file else {
            return;
        };
        let mut readers = lock(&self.readers);
        if readers.len() < READERS_KEPT && !file.is_alone() {
            readers.push(file);
        } else {
            drop(file);
        }
        self.forget_bytes();
    }

    /// Closes every connection that is not in use.
    pub fn close_files(&self) {
        *lock(&self.writer) = None;
        self.close_readers();
    }

    /// Adds a window with a durable record; returns by how much memory grew.
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
        let mut hosts = write(&self.hosts);
        hosts
            .states
            .entry_ref(host)
            .or_default()
            .note(labels, window);
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
                    let number = self.flushes.load(Ordering::Relaxed) + 1;
                    let frozen = Arc::new(Frozen {
                        number,
                        chunks: taken,
                        version: OnceLock::new(),
                    });
                    mem.frozen = Some(Arc::clone(&frozen));
                    frozen
                }
            }
        };
        let written = self.write_frozen(&frozen);
        if written.is_err() {
            self.write_hosts_again();
        }
        written
    }

    /// Lets the next flush write every host: what was taken for written may not be.
    fn write_hosts_again(&self) {
        let mut hosts = write(&self.hosts);
        hosts
            .states
            .values_mut()
            .for_each(|state| state.dirty = true);
    }

    /// Writes what is frozen. While it is written and synced, queries read it from memory and
    /// pushes add to what is active; `mem` is locked for as long as it takes to forget it.
    fn write_frozen(&self, frozen: &Frozen) -> Result<u64, FileError> {
        let dict = self.dict(true)?;
        drop(self.all_hosts()?);
        let (flush, version) = self.encode(&dict, frozen)?;
        let mut slot = lock(&self.writer);
        let file = match &mut *slot {
            Some(file) => file,
            None => slot.insert(PartitionFile::open(&self.path)?),
        };
        self.forget_bytes();
        let is_new = file.write(&flush)?;
        file.commit()?;
        let mut rows = 0;
        let mut records = lock(&self.records);
        for (chunk, record, encoded) in &flush.chunks {
            records.insert(*chunk, *record);
            rows += encoded.entries;
        }
        drop(records);
        if !is_new {
            self.write_hosts_again();
        }
        *lock(&self.flushed) = version;
        self.flushes.store(frozen.number, Ordering::Relaxed);
        write(&self.mem).frozen = None;
        // Readers of an older state keep it from moving everything; the next flush goes on.
        file.checkpoint(false)?;
        Ok(rows)
    }

    fn encode(
        &self,
        dict: &RwLock<Dict>,
        frozen: &Frozen,
    ) -> Result<(Flush, DictVersion), FileError> {
        let tables = Tables::of(&read(dict));
        let mut chunks = Vec::new();
        for (&chunk, rows) in &frozen.chunks {
            let encoded =
                encode_chunk(&tables, rows).map_err(|error| FileError::Other(error.to_string()))?;
            chunks.push((chunk, rows.last_record, encoded));
        }
        let mut sealer = SectionWriter::new()?;
        let dict = read(dict);
        let from = *lock(&self.flushed);
        let version = *frozen.version.get_or_init(|| dict.version());
        let entries = if from == version {
            None
        } else {
            let (mut entries, mut contents) = (Vec::new(), Vec::new());
            dict.encode_delta(from, version, &mut entries, &mut contents);
            let (mut sealed, mut sealed_contents) = (Vec::new(), Vec::new());
            sealer.seal(&mut sealed, &entries)?;
            sealer.seal(&mut sealed_contents, &contents)?;
            Some((sealed, sealed_contents))
        };
        let mut hosts = Vec::new();
        for (key, state) in &mut write(&self.hosts).states {
            if let Some(id) = dict.find_host(key)
                && std::mem::take(&mut state.dirty)
            {
                hosts.push((id, encode_host(&mut sealer, key, state)?));
            }
        }
        let flush = Flush {
            number: frozen.number,
            dict: entries,
            chunks,
            hosts,
        };
        Ok((flush, version))
    }

    /// File and memory as of now: chunks in `[from, to]`, of them the groups that `wanted` takes.
    ///
    /// What is wanted is chosen while nothing can be added, so that the dictionary the choice is
    /// made from has all that is seen: of a window all rows are known, or none is there.
    pub fn view<C>(
        &self,
        limits: &Limits,
        (from, to): (u16, u16),
        facts: impl Fn(u16) -> Facts,
        choose: impl FnOnce() -> C,
        wanted: impl Fn(&C, u32) -> bool,
    ) -> Result<(View, C), FileError> {
        let file = self.open_for(&Patience::of(limits))?;
        let mem = read(&self.mem);
        let flushes = file.begin()?;
        let choice = choose();
        let mut chunks = Vec::new();
        for (chunk, rows) in mem.beyond(flushes) {
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
            let facts = facts(chunk);
            chunks.push(MemChunk {
                chunk,
                groups,
                summary: (facts != Facts::None).then(|| Arc::clone(&rows.summary)),
                windows: match facts {
                    Facts::Windows => rows.windows.clone(),
                    Facts::None | Facts::Summary => Vec::new(),
                },
            });
        }
        drop(mem);
        Ok((View { file, chunks }, choice))
    }

    /// A partition with a new file that gets what memory has of this one: the same ids, nothing in
    /// its file yet, and the next flush writes the complete dictionary. `None` if memory has
    /// nothing.
    pub fn recreated(&self) -> Result<Option<Partition>, FileError> {
        let mut mem = write(&self.mem);
        let dict = lock(&self.dict).clone();
        let dict = dict.filter(|dict| read(dict).with_contents());
        let Some(dict) = dict.filter(|_| mem.chunks().next().is_some()) else {
            return Ok(None);
        };
        let range = (self.start, self.end);
        // What the archive has of the destroyed file is read again, and never replaced.
        let lineage = new_generation();
        let labels = &self.service_labels;
        let file = PartitionFile::create(&self.path, labels, self.generation, lineage)?;
        if let Some(frozen) = &mut mem.frozen {
            let chunks = Arc::get_mut(frozen).map(|frozen| &mut frozen.chunks);
            let chunks = chunks.ok_or(FileError::Other("a flush is writing".to_owned()))?;
            let frozen = Frozen {
                number: 1,
                chunks: std::mem::take(chunks),
                version: OnceLock::new(),
            };
            mem.frozen = Some(Arc::new(frozen));
        }
        let recreated = Partition {
            lineage,
            mem: RwLock::new(std::mem::take(&mut *mem)),
            writer: Mutex::new(Some(file)),
            ..Partition::empty(
                self.path.clone(),
                Arc::clone(&self.log),
                range,
                &self.service_labels,
                self.generation,
            )
        };
        // Windows that were in the file only are not known any more: they may come again.
        for (_, rows) in read(&recreated.mem).chunks() {
            for window in &rows.windows {
                if let Some((host, labels)) = named(&read(&dict), window) {
                    recreated.note_host(&host, &labels, window);
                }
            }
        }
        *lock(&recreated.dict) = Some(dict);
        Ok(Some(recreated))
    }

    /// Marks the file as unusable; says whether it was not before.
    pub fn set_damaged(&self) -> bool {
        !self.damaged.swap(true, Ordering::AcqRel)
    }
}

/// What a reader needs of the windows of a chunk, besides their samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Facts {
    /// No facts.
    None,
    /// Their sum.
    Summary,
    /// That, and each by itself.
    Windows,
}

impl Facts {
    /// What is needed for sums over slices of chunks: windows only where a chunk is divided.
    pub fn of(slices: &[ChunkSlice]) -> impl Fn(u16) -> Facts {
        |chunk| {
            let mut slices = slices.iter();
            match slices.any(|slice| slice.chunk == chunk && slice.part.is_some()) {
                true => Facts::Windows,
                false => Facts::Summary,
            }
        }
    }
}

/// A copy of what memory has of one chunk.
pub struct MemChunk {
    /// Number of the chunk.
    pub chunk: u16,
    /// Groups that were wanted.
    pub groups: Vec<(u32, GroupRows)>,
    /// Summary of its windows, if the reader asked for it.
    pub summary: Option<Arc<Summary>>,
    /// Its windows, if the reader asked for them.
    pub windows: Vec<Arc<WindowMeta>>,
}

/// A partition as of one instant.
pub struct View {
    /// What is in the file.
    pub file: ReadFile,
    /// Data in memory.
    pub chunks: Vec<MemChunk>,
}

impl View {
    /// Memory that it comes to hold alone, in bytes, when windows are added to all that it shares
    /// with the partition. What it shares for good is counted there.
    pub fn heap_bytes(&self) -> usize {
        let chunks = self.chunks.iter();
        let of_chunk = |chunk: &MemChunk| {
            let groups = chunk.groups.iter().map(|(_, rows)| rows.bytes());
            groups.sum::<usize>() + chunk.windows.capacity() * size_of::<Arc<WindowMeta>>()
        };
        chunks.map(of_chunk).sum()
    }

    /// Gives the connection back to its partition.
    pub fn close(self, partition: &Partition) {
        self.file.end();
        partition.give_back(self.file);
    }
}

#[cfg(test)]
#[path = "partition_tests.rs"]
mod tests;
