//! Replaying the write-ahead log at the start: what is put in memory again, and what is passed
//! over.
//!
//! A record of a window names the ids of one generation. Where the file of that generation is
//! there, what it has not is replayed over it. Where the file was destroyed, a new one takes its
//! place and all that the log has of it is replayed, with the log's own copy of the dictionary.
//! Where the partition was removed, for its age or for the disk budget, its records are passed
//! over: a note says so.

use super::EmbeddedStore;
use super::codec::{Corrupt, Reader};
use super::dict::Dict;
use super::dictlog::{self, DictLog, Ids};
use super::file::{FileError, quarantine_file};
use super::hosts::{decode_health, decode_host};
use super::log_writer::Writer;
use super::memtable::Prepared;
use super::options::OpenError;
use super::partition::Partition;
use super::wal::{Recovered, Wal};
use crate::sync::{lock, read, write};
use hashbrown::HashMap;
use std::sync::Arc;

/// First byte of the record of a window.
pub const RECORD_WINDOW: u8 = 3;

/// First byte of the record of a host.
pub const RECORD_HOST: u8 = 2;

/// The record of a window.
pub struct WindowRecord<'b> {
    /// Of which partition and generation its ids are.
    pub ids: Ids,
    /// What it adds to the dictionary.
    pub entries: &'b [u8],
    /// The window.
    pub window: Prepared,
}

impl<'b> WindowRecord<'b> {
    /// Reads what follows the kind of the record.
    pub fn decode(input: &mut Reader<'b>) -> Result<WindowRecord<'b>, Corrupt> {
        let start = input.decode_signed()?;
        let mut generation = [0; 8];
        generation.copy_from_slice(input.decode_exact(8)?);
        Ok(WindowRecord {
            ids: (start, u64::from_le_bytes(generation)),
            entries: input.decode_bytes()?,
            window: Prepared::decode(input)?,
        })
    }
}

/// What is known while the log is read.
struct Replay<'s> {
    store: &'s EmbeddedStore,
    now_unix_ns: i64,
    /// Dictionaries of generations without a file, as far as the log has them.
    orphans: HashMap<Ids, Dict>,
    /// Why a record could not be used: the first one.
    unusable: Option<String>,
    /// Records that could not be used.
    count: u64,
}

impl EmbeddedStore {
    /// Puts in memory what the log has that no file has.
    pub(super) fn replay(&self, now_unix_ns: i64) -> Result<(), OpenError> {
        let mut replay = Replay {
            store: self,
            now_unix_ns,
            orphans: HashMap::new(),
            unusable: None,
            count: 0,
        };
        let (mut wal, recovered) = Wal::open(&self.catalog.log_folder(), |record, payload| {
            match replay.record(record, payload) {
                Ok(()) => true,
                Err(text) => {
                    replay.count += 1;
                    replay.unusable.get_or_insert(text);
                    false
                }
            }
        })?;
        self.say_replayed(&recovered, &replay);
        let numbers = lock(&self.catalog.hosts).saved_record.saturating_add(1);
        let files = read(&self.catalog.partitions);
        let in_files = files.values().filter_map(|partition| {
            lock(&partition.records)
                .values()
                .max()
                .map(|&record| record.saturating_add(1))
        });
        let floor = in_files.max().unwrap_or(1).max(numbers);
        drop(files);
        wal.skip_to(floor);
        let next = wal.next();
        lock(&self.log.removed)
            .values_mut()
            .for_each(|at| *at = next);
        *lock(&self.log.writer) = Writer::new(next);
        *lock(&self.log.wal) = wal;
        self.find_lost_files(now_unix_ns);
        Ok(())
    }

    fn say_replayed(&self, recovered: &Recovered, replay: &Replay<'_>) {
        let counters = &self.catalog.counters;
        let add = |counter: &metrics::Counter, more| {
            counter.inc_by(more);
        };
        add(&counters.records_replayed, recovered.records);
        add(&counters.log_torn_bytes, recovered.torn_bytes);
        add(&counters.records_lost, recovered.records_lost);
        add(&counters.records_unusable, replay.count);
        let mut said = Vec::new();
        if replay.count > 0 {
            let first = replay.unusable.as_deref().unwrap_or_default();
            said.push(format!("{} records were of no use: {first}", replay.count));
        }
        if recovered.records_lost > 0 {
            said.push(format!("{} records are missing", recovered.records_lost));
        }
        if recovered.segments_unusable > 0 {
            let segments = recovered.segments_unusable;
            said.push(format!("{segments} segments are kept as `wal/*.unusable`"));
        }
        said.extend(recovered.not_kept.clone());
        if !said.is_empty() {
            let said = said.join("; ");
            let text = format!("the write-ahead log was not replayed completely: {said}");
            self.catalog.report_issue("replay", Some(text));
        }
    }

    /// Says which partitions there were, by their dictionaries, without that anything is left of
    /// them.
    fn find_lost_files(&self, now_unix_ns: i64) {
        let folder = self.catalog.log_folder();
        let horizon = now_unix_ns.saturating_sub_unsigned(self.catalog.options.retention_ns);
        for (ids, removed) in dictlog::list(&folder).unwrap_or_default() {
            let (start, generation) = ids;
            let known = read(&self.catalog.partitions).get(&start).cloned();
            if removed || known.is_some_and(|known| known.generation == generation) {
                continue;
            }
            let aside = |damaged: &(super::TimeRange, String)| damaged.0.start_unix_ns == start;
            let end = start.saturating_add(self.catalog.options.partition_len());
            let is_said = lock(&self.catalog.damaged).iter().any(aside);
            if is_said || end <= horizon {
                dictlog::remove(&folder, ids);
                continue;
            }
            let path = self.catalog.partition_path(start);
            self.catalog.note_unreadable(
                (start, end),
                &path,
                "is gone, with what was flushed into it",
            );
        }
    }
}

impl Replay<'_> {
    fn record(&mut self, record: u64, payload: &[u8]) -> Result<(), String> {
        let text = |damage: Corrupt| damage.to_string();
        let mut input = Reader::new(payload);
        match input.decode_exact(1).map_err(text)?[0] {
            RECORD_HOST => {
                let mut host = decode_host(&mut input).map_err(text)?;
                decode_health(&mut input, &mut host).map_err(text)?;
                let mut book = lock(&self.store.catalog.hosts);
                if record > book.saved_record {
                    book.set(record, host);
                }
                Ok(())
            }
            RECORD_WINDOW => self.window(record, WindowRecord::decode(&mut input).map_err(text)?),
            other => Err(format!("a record of kind {other} is not known")),
        }
    }

    fn window(&mut self, record: u64, of: WindowRecord<'_>) -> Result<(), String> {
        let store = self.store;
        if lock(&store.log.removed).contains_key(&of.ids) {
            let passed = &store.catalog.counters.records_removed;
            passed.inc();
            return Ok(());
        }
        let Some(partition) = self.partition(&of)? else {
            return Ok(());
        };
        // Read before a record is passed over: where the file turns out to be damaged, the
        // dictionary is in the log from the first record on.
        let dict = match partition.dict(true) {
            Err(FileError::Damaged(text)) => {
                return self.window_of_damaged(record, &partition, of, &text);
            }
            dict => dict.map_err(|error| error.to_string())?,
        };
        let flushed = lock(&partition.records).get(&of.window.chunk).copied();
        if flushed.is_some_and(|flushed| record <= flushed) {
            return Ok(());
        }
        let mut dict = write(&dict);
        dict.apply_logged(&mut Reader::new(of.entries))
            .map_err(|damage| damage.to_string())?;
        let (host, labels) = super::host_state::named(&dict, &of.window.meta)
            .ok_or("a host or its labels are not there")?;
        drop(dict);
        write(&store.catalog.host_index).add_window(&host, &labels, &of.window.meta);
        partition.apply(record, self.now_unix_ns, &host, &labels, of.window);
        store.catalog.use_partition(&partition);
        // What a destroyed file had can be more than memory holds.
        store.maintenance.flush_while_replaying();
        Ok(())
    }

    /// The partition of a record; `None` when its time is over.
    fn partition(&mut self, of: &WindowRecord<'_>) -> Result<Option<Arc<Partition>>, String> {
        let store = self.store;
        let (start, generation) = of.ids;
        let retention = store.catalog.options.retention_ns;
        match read(&store.catalog.partitions).get(&start) {
            Some(partition) if partition.generation == generation => {
                return Ok(Some(Arc::clone(partition)));
            }
            Some(_) => return Err("another file has taken the place of its own".to_owned()),
            None if start < self.now_unix_ns.saturating_sub_unsigned(retention) => return Ok(None),
            None => {}
        }
        // Its file was destroyed.
        let labels = &store.catalog.options.service_labels;
        let log = store.catalog.log_folder();
        let mut dict = self.orphans.remove(&of.ids).unwrap_or_else(|| {
            let mut dict = Dict::new(labels, true);
            // What cannot be loaded is missed by the record.
            let _ = DictLog::open(&log, of.ids).load(&mut dict);
            dict
        });
        if let Err(damage) = dict.apply_logged(&mut Reader::new(of.entries)) {
            self.orphans.insert(of.ids, dict);
            return Err(format!("its dictionary is gone: {damage}"));
        }
        let path = store.catalog.partition_path(start);
        let end = start.saturating_add(store.catalog.options.partition_len());
        let made = quarantine_file(&path)
            .map_err(FileError::from)
            .and_then(|()| {
                let known = Some((generation, dict));
                Partition::create(path.clone(), &log, (start, end), labels, known)
            });
        let made = Arc::new(made.map_err(|error| error.to_string())?);
        write(&store.catalog.partitions).insert(start, Arc::clone(&made));
        let aside = |damaged: &(super::TimeRange, String)| damaged.0.start_unix_ns == start;
        if !lock(&store.catalog.damaged).iter().any(aside) {
            let text = "was gone; what the log had of it is in a new file";
            store.catalog.note_unreadable((start, end), &path, text);
        }
        Ok(Some(made))
    }

    /// Sets a file aside that turns out to be damaged, and goes on with a new one.
    fn window_of_damaged(
        &mut self,
        record: u64,
        partition: &Partition,
        of: WindowRecord<'_>,
        text: &str,
    ) -> Result<(), String> {
        partition.close_files();
        quarantine_file(&partition.path).map_err(|error| error.to_string())?;
        self.store.catalog.mark_damaged(partition, text);
        write(&self.store.catalog.partitions).remove(&partition.start);
        self.store.catalog.index_hosts_again();
        self.window(record, of)
    }
}
