//! Writes a push to the log and to memory: one write and one sync for all windows of a push that
//! belong to one partition.
//!
//! One thread pushes, and windows that wait are grouped before they come here (`ingest/batch.rs`).
//! Other threads, for example in tests, take turns.

use super::catalog::Catalog;
use super::defined::Definitions;
use super::dict_version::DictVersion;
use super::file::FileError;
use super::hosts::{encode_health, encode_host};
use super::level::Level;
use super::log_record::{RECORD_HOST, RECORD_WINDOW};
use super::partition::Partition;
use super::partition_log;
use super::prepare::{Ready, encode_record, prepare, rejection};
use super::wal::{Batch, RECORD_BYTES_MAX, Wal};
use crate::store::{Defined, HostRecord, NewWindow, Origin, PushOutcome, StoreError};
use crate::sync::{lock, read, write};
use hashbrown::HashSet;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// A batch is written when it has so many bytes, even while more windows of a push come. Unit:
/// bytes.
const BATCH_BYTES: usize = 32 << 20;

/// The file of hosts is written when their log has so many bytes. Unit: bytes. Smaller writes the
/// file, which is of all hosts, more often; larger takes a start longer.
const HOSTS_LOG_BYTES: u64 = 4 << 20;

/// Windows on their way into the logs of their partitions.
#[derive(Default)]
struct PushBatch {
    /// By the time at which each partition starts.
    partitions: BTreeMap<i64, PartitionBatch>,
    origins: HashSet<Origin>,
    bytes: usize,
}

/// Windows on their way into the log of one partition.
struct PartitionBatch {
    partition: Arc<Partition>,
    records: Batch,
    /// Put in memory once their records are durable.
    windows: Vec<(u64, Origin, Ready)>,
    /// Number of its first record.
    first: u64,
    /// What of the dictionary the log had before.
    logged: DictVersion,
}

impl PartitionBatch {
    fn new(partition: Arc<Partition>) -> PartitionBatch {
        let first = lock(&partition.log.wal).next();
        let logged = *lock(&partition.log.logged);
        PartitionBatch {
            partition,
            records: Batch::default(),
            windows: Vec::new(),
            first,
            logged,
        }
    }

    fn add(&mut self, payload: &[u8], origin: &Origin, ready: Ready) {
        let record = self.first + self.records.records();
        self.records.add(record, payload);
        self.windows.push((record, origin.clone(), ready));
    }
}

/// The way in: gives windows the ids of their partition, writes them to its log, and puts them in
/// memory.
pub struct LogWriter {
    catalog: Arc<Catalog>,
    /// Held by whoever pushes, and by whoever needs that nothing is on its way: every window that
    /// was logged is in memory then. Taken before any other lock of the way in.
    pub pushing: Mutex<()>,
    /// The log of hosts.
    pub hosts: Mutex<Wal>,
}

impl LogWriter {
    /// A writer to logs that are still to be replayed.
    pub fn new(catalog: Arc<Catalog>) -> LogWriter {
        let hosts = Wal::closed(catalog.hosts_log());
        LogWriter {
            catalog,
            pushing: Mutex::default(),
            hosts: Mutex::new(hosts),
        }
    }

    /// See [`WindowSink::push`](crate::store::WindowSink::push).
    pub fn push_windows(
        &self,
        windows: &[NewWindow],
        definitions: &[Arc<Defined>],
        now_unix_ns: i64,
    ) -> Result<Vec<PushOutcome>, StoreError> {
        let mut definitions = Definitions::new(definitions);
        let mut answers = Vec::with_capacity(windows.len());
        let _pushing = lock(&self.pushing);
        let mut batch = PushBatch::default();
        for window in windows {
            if let Some(reason) = rejection(&self.catalog, window, now_unix_ns) {
                answers.push(PushOutcome::Rejected(reason));
                continue;
            }
            match self.log_window(&mut batch, window, &mut definitions) {
                Ok(outcome) => answers.push(outcome),
                Err(error) => {
                    // The windows before it stay: when they are pushed again, they are repeats.
                    let _ = self.commit(batch, now_unix_ns);
                    return Err(error);
                }
            }
            if batch.bytes > BATCH_BYTES {
                self.commit(std::mem::take(&mut batch), now_unix_ns)?;
            }
        }
        self.commit(batch, now_unix_ns)?;
        self.count(&answers);
        Ok(answers)
    }

    fn count(&self, answers: &[PushOutcome]) {
        for taken in answers {
            let counter = match taken {
                PushOutcome::Stored => &self.catalog.counters.windows_stored,
                PushOutcome::Duplicate => &self.catalog.counters.windows_repeated,
                PushOutcome::NeedStacks(_) | PushOutcome::NeedCallers(_) => {
                    &self.catalog.counters.windows_missing
                }
                PushOutcome::Rejected(_) => &self.catalog.counters.windows_refused,
                // A call is taken by the log or fails.
                PushOutcome::Unavailable(_) => continue,
            };
            counter.inc();
        }
    }

    /// Adds a window's record to the batch, when it is to be taken.
    fn log_window(
        &self,
        batch: &mut PushBatch,
        window: &NewWindow,
        definitions: &mut Definitions<'_>,
    ) -> Result<PushOutcome, StoreError> {
        if batch.origins.contains(&window.origin) {
            return Ok(PushOutcome::Duplicate);
        }
        let partition = self.partition_for(window.range.start_unix_ns)?;
        if self.is_stored(&window.origin) {
            return Ok(PushOutcome::Duplicate);
        }
        if partition.level == Level::ServiceHours {
            // By the clock of another call its time was over.
            return Ok(PushOutcome::Rejected(
                "it is older than the retention".to_owned(),
            ));
        }
        let ready = match prepare(&self.catalog, &partition, window, definitions)? {
            Ok(ready) => ready,
            Err(taken) => return Ok(taken),
        };
        let dict = partition.dict(true).map_err(|error| {
            self.catalog
                .file_error("read a dictionary", &partition, error)
        })?;
        let of_partition = batch
            .partitions
            .entry(partition.start)
            .or_insert_with(|| PartitionBatch::new(Arc::clone(&partition)));
        let mut payload = vec![RECORD_WINDOW];
        let logged = *lock(&partition.log.logged);
        encode_record(&partition, &read(&dict), &ready.window, &mut payload);
        if payload.len() > RECORD_BYTES_MAX && partition.log.keep_dict(&dict).is_ok() {
            // The window may be small and a dictionary large that the log had no copy of: now it
            // has.
            payload.truncate(1);
            encode_record(&partition, &read(&dict), &ready.window, &mut payload);
        }
        if payload.len() > RECORD_BYTES_MAX {
            *lock(&partition.log.logged) = logged;
            return Ok(PushOutcome::Rejected(
                "it is too large for one record".to_owned(),
            ));
        }
        of_partition.add(&payload, &window.origin, ready);
        batch.bytes += payload.len();
        batch.origins.insert(window.origin.clone());
        Ok(PushOutcome::Stored)
    }

    /// True when any partition has the window: a repeat may say another time.
    fn is_stored(&self, Origin { host, sequence }: &Origin) -> bool {
        read(&self.catalog.host_index).has(host, *sequence)
    }

    /// The partition of an instant, made when it is not there.
    fn partition_for(&self, at: i64) -> Result<Arc<Partition>, StoreError> {
        let start = self.catalog.partition_start(at);
        if let Some(partition) = read(&self.catalog.partitions).get(&start)
            && !partition.damaged.load(Ordering::Acquire)
        {
            self.catalog.use_partition(partition);
            return Ok(Arc::clone(partition));
        }
        let mut partitions = write(&self.catalog.partitions);
        if let Some(damaged) = partitions.get(&start) {
            // Upkeep will set it aside within seconds; what comes waits at the agents until then.
            let path = damaged.path.display();
            // Not `Unavailable`: windows of other times have nothing to do with it.
            return Err(StoreError::Engine {
                operation: "store a window",
                message: format!("`{path}` is being set aside"),
            });
        }
        let end = start.saturating_add(self.catalog.options.partition_len());
        let path = self.catalog.partition_path(start);
        let labels = &self.catalog.options.service_labels;
        let log = self.catalog.partition_log(start);
        // What a removal left of one of the same time, or of its log, must go first.
        let made = self
            .catalog
            .end_removal(start)
            .and_then(|()| partition_log::remove_folder(&log))
            .map_err(FileError::from)
            .and_then(|()| Partition::create(path.clone(), log, (start, end), labels, None));
        let made = made.map_err(|error| {
            StoreError::Unavailable(format!("failed to create `{}`: {error}", path.display()))
        })?;
        let made = Arc::new(made);
        self.catalog.use_partition(&made);
        partitions.insert(start, Arc::clone(&made));
        Ok(made)
    }

    /// See [`WindowSink::put_hosts`](crate::store::WindowSink::put_hosts).
    pub fn push_hosts(&self, hosts: &[HostRecord]) -> Result<(), StoreError> {
        if hosts.is_empty() {
            return Ok(());
        }
        let mut log = lock(&self.hosts);
        let (first, mut batch) = (log.next(), Batch::default());
        for (record, host) in (first..).zip(hosts) {
            let mut payload = vec![RECORD_HOST];
            encode_host(&mut payload, host);
            encode_health(&mut payload, host);
            batch.add(record, &payload);
        }
        if let Err(text) = self.write_batch(&mut log, &batch) {
            self.report_failure(&text);
            return Err(StoreError::Unavailable(text));
        }
        // While the log is held, so that the file has all that the log gives up.
        let mut table = lock(&self.catalog.hosts);
        for (record, host) in (first..).zip(hosts) {
            table.set(record, host.clone());
        }
        Ok(())
    }

    /// Writes the file of hosts, and cuts from their log what is in it; unless `always` when the
    /// log is large.
    pub fn save_hosts(&self, always: bool) -> Result<(), String> {
        let mut log = lock(&self.hosts);
        if !always && log.bytes() <= HOSTS_LOG_BYTES {
            return Ok(());
        }
        let path = self.catalog.hosts_path();
        let mut table = lock(&self.catalog.hosts);
        table
            .save(&path)
            .map_err(|error| format!("failed to write `{}`: {error}", path.display()))?;
        let needed = log.next();
        log.cut(needed).map_err(|error| error.to_string())
    }

    /// Writes the records of a batch and puts its windows in memory, partition by partition. Where
    /// one fails, its windows fail, and those of the others stay: when they are pushed again, they
    /// are repeats.
    fn commit(&self, batch: PushBatch, now_unix_ns: i64) -> Result<(), StoreError> {
        if batch.partitions.is_empty() {
            return Ok(());
        }
        let mut failed = None;
        for of_partition in batch.partitions.into_values() {
            let PartitionBatch {
                partition,
                records,
                windows,
                logged,
                ..
            } = of_partition;
            if records.is_empty() {
                continue;
            }
            let written = self.write_batch(&mut lock(&partition.log.wal), &records);
            if let Err(text) = written {
                // What only these records had of the dictionary comes with the next one.
                *lock(&partition.log.logged) = logged;
                failed.get_or_insert(text);
                continue;
            }
            for (record, origin, ready) in windows {
                self.apply(&partition, record, now_unix_ns, &origin, ready);
            }
        }
        let Some(text) = failed else {
            self.catalog.report_issue("log", None);
            return Ok(());
        };
        self.report_failure(&text);
        Err(StoreError::Unavailable(text))
    }

    fn write_batch(&self, log: &mut Wal, batch: &Batch) -> Result<(), String> {
        let started = Instant::now();
        let written = log.write(batch);
        let counters = &self.catalog.counters;
        counters
            .log_write_time
            .observe(started.elapsed().as_secs_f64());
        counters.log_batches.inc();
        if let Err(error) = written {
            counters.log_failures.inc();
            return Err(error.to_string());
        }
        let bytes = batch.len() as u64;
        counters.log_bytes.inc_by(bytes);
        Ok(())
    }

    fn report_failure(&self, text: &str) {
        let text = format!("{text}; agents keep their windows until the disk works again");
        self.catalog.report_issue("log", Some(text));
    }

    fn apply(
        &self,
        partition: &Partition,
        record: u64,
        now_unix_ns: i64,
        origin: &Origin,
        ready: Ready,
    ) {
        let Ready {
            window,
            host_labels,
        } = ready;
        write(&self.catalog.host_index).add_window(&origin.host, &host_labels, &window.meta);
        partition.apply(record, now_unix_ns, &origin.host, &host_labels, window);
    }
}
