//! Replays the write-ahead logs at the start: which windows are put in memory again.
//!
//! A record of a window refers to ids of its partition. If the partition's file exists, the windows
//! that it lacks are replayed over it. If the file was destroyed, a new one takes its place and
//! everything in the log is replayed, with the log's own copy of the dictionary.

use super::EmbeddedStore;
use super::codec::{Corrupt, Reader};
use super::file::{FileError, quarantine_file};
use super::host_index::HostIndex;
use super::hosts::{decode_health, decode_host};
use super::log_record::{RECORD_HOST, RECORD_WINDOW, WindowRecord};
use super::options::OpenError;
use super::partition::Partition;
use super::partition_log::{self, windows_place};
use super::wal::{Recovered, Wal};
use crate::sync::{lock, read, write};
use std::path::Path;
use std::sync::Arc;

/// What is known while logs are read.
struct Replay<'s> {
    store: &'s EmbeddedStore,
    now_unix_ns: i64,
    /// Findings in all logs.
    recovered: Recovered,
    /// Why a record could not be used: the first one.
    unusable: Option<String>,
    /// Records that could not be used.
    count: u64,
}

impl EmbeddedStore {
    /// Puts in memory what logs have that no file has.
    pub(super) fn replay(&self, now_unix_ns: i64) -> Result<(), OpenError> {
        let mut replay = Replay {
            store: self,
            now_unix_ns,
            recovered: Recovered::default(),
            unusable: None,
            count: 0,
        };
        replay.hosts()?;
        let logs = self.catalog.log_folder();
        let partitions = partition_log::list(&logs).map_err(|error| OpenError::Io {
            operation: "list",
            path: logs.clone(),
            error,
        })?;
        for (start, _) in partitions {
            replay.partition(start, &partition_log::folder(&logs, start))?;
        }
        replay.report();
        Ok(())
    }
}

impl Replay<'_> {
    fn report(&self) {
        let (recovered, catalog) = (&self.recovered, &self.store.catalog);
        let counters = &catalog.counters;
        let add = |counter: &metrics::Counter, more| {
            counter.inc_by(more);
        };
        add(&counters.records_replayed, recovered.records);
        add(&counters.log_torn_bytes, recovered.torn_bytes);
        add(&counters.records_lost, recovered.records_lost);
        add(&counters.records_unusable, self.count);
        let mut said = Vec::new();
        if self.count > 0 {
            let first = self.unusable.as_deref().unwrap_or_default();
            said.push(format!("{} records were unusable: {first}", self.count));
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
            catalog.report_issue("replay", Some(text));
        }
    }

    /// Counts what became of a record; says whether it could be used.
    fn is_used(&mut self, done: Result<(), String>) -> bool {
        let Err(text) = done else {
            return true;
        };
        self.count += 1;
        self.unusable.get_or_insert(text);
        false
    }

    fn hosts(&mut self) -> Result<(), OpenError> {
        let catalog = &self.store.catalog;
        let (mut wal, recovered) = Wal::open(catalog.hosts_log(), |record, payload| {
            let done = self.host(record, payload);
            self.is_used(done.map_err(|damage| damage.to_string()))
        })?;
        self.recovered.add(recovered);
        wal.skip_to(lock(&catalog.hosts).saved_record.saturating_add(1));
        *lock(&self.store.log.hosts) = wal;
        Ok(())
    }

    fn host(&self, record: u64, payload: &[u8]) -> Result<(), Corrupt> {
        let mut input = Reader::new(payload);
        if input.decode_exact(1)? != [RECORD_HOST] {
            return Err(Corrupt("it is no record of a host"));
        }
        let mut host = decode_host(&mut input)?;
        decode_health(&mut input, &mut host)?;
        let mut table = lock(&self.store.catalog.hosts);
        if record > table.saved_record {
            table.set(record, host);
        }
        Ok(())
    }

    /// Replays the log of a partition.
    fn partition(&mut self, start: i64, folder: &Path) -> Result<(), OpenError> {
        let known = read(&self.store.catalog.partitions).get(&start).cloned();
        let Some(partition) = known else {
            return self.without_file(start, folder);
        };
        if !partition.log.place().has_segments()? {
            return Ok(());
        }
        // Before a record is passed over: where the file turns out to be damaged, the dictionary is
        // in the log from the first record on.
        match partition.dict(true) {
            Ok(_) => self.windows(&partition, &HostIndex::default()),
            Err(FileError::Damaged(text)) => {
                let catalog = &self.store.catalog;
                partition.close_files();
                quarantine_file(&partition.path).map_err(|error| self.failed(start, &error))?;
                catalog.mark_damaged(&partition, &text);
                let mut partitions = write(&catalog.partitions);
                partitions.remove(&start);
                catalog.show_archived(&partitions);
                drop(partitions);
                catalog.index_hosts_again();
                self.without_file(start, folder)
            }
            Err(error) => Err(self.failed(start, &error)),
        }
    }

    fn failed(&self, start: i64, error: &dyn std::fmt::Display) -> OpenError {
        let path = self.store.catalog.partition_path(start);
        OpenError::Replay(format!("`{}`: {error}", path.display()))
    }

    /// Replays the log of a partition with a destroyed file into a new one.
    fn without_file(&mut self, start: i64, folder: &Path) -> Result<(), OpenError> {
        let catalog = &self.store.catalog;
        let options = &catalog.options;
        let end = start.saturating_add(options.partition_len());
        let horizon = self
            .now_unix_ns
            .saturating_sub_unsigned(options.retention_ns);
        let aside = |damaged: &(super::TimeRange, String)| damaged.0.start_unix_ns == start;
        let is_said = lock(&catalog.damaged).iter().any(aside);
        let has_segments = windows_place(folder, 0).has_segments()?;
        if end <= horizon || (is_said && !has_segments) {
            return partition_log::remove_folder(folder)
                .map_err(|error| self.failed(start, &error));
        }
        let path = catalog.partition_path(start);
        if !has_segments {
            let text = "is gone, with what was flushed into it";
            catalog.note_unreadable((start, end), &path, text);
            return Ok(());
        }
        // Without a head that can be read there is nothing to replay, and any generation will do.
        let generation = windows_place(folder, 0).find_generation()?.unwrap_or(0);
        let labels = &options.service_labels;
        let log = folder.to_owned();
        let made = quarantine_file(&path)
            .map_err(FileError::from)
            .and_then(|()| {
                Partition::create(path.clone(), log, (start, end), labels, Some(generation))
            });
        let made = Arc::new(made.map_err(|error| self.failed(start, &error))?);
        write(&catalog.partitions).insert(start, Arc::clone(&made));
        if !is_said {
            let text = "was gone; what the log had of it is in a new file";
            catalog.note_unreadable((start, end), &path, text);
        }
        // The archive may have what the destroyed file had, and the log has some of it once more.
        let mut archived = HostIndex::default();
        for of in catalog.readable(|of| of.start == start && of.object.is_some()) {
            let indexed = of.index_hosts(&mut archived);
            indexed.map_err(|error| self.failed(start, &error))?;
        }
        self.windows(&made, &archived)
    }

    /// Replays the windows of a partition that has a file, but for those that are archived.
    fn windows(&mut self, partition: &Partition, archived: &HostIndex) -> Result<(), OpenError> {
        let (mut wal, recovered) = Wal::open(partition.log.place(), |record, payload| {
            let done = self.window(partition, archived, record, payload);
            self.is_used(done)
        })?;
        self.recovered.add(recovered);
        // The log itself may have been removed by hand.
        let flushed = partition.flushed_records().into_values().max();
        wal.skip_to(flushed.unwrap_or(0).saturating_add(1));
        *lock(&partition.log.wal) = wal;
        Ok(())
    }

    fn window(
        &self,
        partition: &Partition,
        archived: &HostIndex,
        record: u64,
        payload: &[u8],
    ) -> Result<(), String> {
        let text = |damage: Corrupt| damage.to_string();
        let catalog = &self.store.catalog;
        let mut input = Reader::new(payload);
        if input.decode_exact(1).map_err(text)? != [RECORD_WINDOW] {
            return Err("it is no record of a window".to_owned());
        }
        let WindowRecord { entries, window } = WindowRecord::decode(&mut input).map_err(text)?;
        let flushed = lock(&partition.records).get(&window.chunk).copied();
        if flushed.is_some_and(|flushed| record <= flushed) {
            return Ok(());
        }
        let dict = partition.dict(true).map_err(|error| error.to_string())?;
        let mut dict = write(&dict);
        dict.apply_logged(&mut Reader::new(entries)).map_err(text)?;
        let (host, labels) = super::host_state::named(&dict, &window.meta)
            .ok_or("a host or its labels are not there")?;
        drop(dict);
        if archived.has(&host, window.meta.sequence) {
            return Ok(());
        }
        write(&catalog.host_index).add_window(&host, &labels, &window.meta);
        partition.apply(record, self.now_unix_ns, &host, &labels, window);
        catalog.use_partition(partition);
        // What a destroyed file had can be more than memory holds.
        self.store.maintenance.flush_while_replaying();
        Ok(())
    }
}
