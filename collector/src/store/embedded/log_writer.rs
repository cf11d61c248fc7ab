//! The way of a push into the log and into memory; one write and one sync for all who wait.

use super::catalog::Catalog;
use super::defined::Definitions;
use super::dictlog::{self, Ids};
use super::hosts::{encode_health, encode_host};
use super::level::Level;
use super::partition::Partition;
use super::prepare::{Ready, encode_record, prepare, rejection};
use super::replay::{RECORD_HOST, RECORD_WINDOW};
use super::wal::{Batch, RECORD_BYTES_MAX, Wal};
use crate::store::{Defined, HostRecord, NewWindow, Origin, PushOutcome, StoreError};
use crate::sync::{lock, read, write};
use hashbrown::HashMap;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// A batch is written when it has so many bytes, even while more windows of a push come. Unit:
/// bytes.
const BATCH_BYTES: usize = 32 << 20;

/// What became of a batch.
type Outcome = Arc<OnceLock<Result<(), String>>>;

/// What is put in memory once its record is durable.
enum Pending {
    Window {
        record: u64,
        now_unix_ns: i64,
        partition: Arc<Partition>,
        origin: Origin,
        ready: Ready,
    },
    Host {
        record: u64,
        host: HostRecord,
    },
}

/// Records on their way into the log.
pub struct Writer {
    batch: Batch,
    pending: Vec<Pending>,
    outcome: Outcome,
    /// Number of the next record.
    next: u64,
    /// First record of the batch that a thread is writing.
    pub writing: Option<u64>,
    /// Windows of batches that are not durable yet.
    in_flight: HashMap<Origin, Outcome>,
}

impl Writer {
    /// A writer that goes on with this number.
    pub fn new(next: u64) -> Writer {
        Writer {
            batch: Batch::default(),
            pending: Vec::new(),
            outcome: Outcome::default(),
            next,
            writing: None,
            in_flight: HashMap::new(),
        }
    }

    fn add(&mut self, payload: &[u8]) -> u64 {
        let record = self.next;
        self.batch.add(record, payload);
        self.next += 1;
        record
    }
}

/// The way in: gives windows the ids of their partition, writes them to the log, and puts them in
/// memory.
pub struct LogWriter {
    catalog: Arc<Catalog>,
    /// What is on its way into the log.
    pub writer: Mutex<Writer>,
    /// A batch was written, or failed.
    written: Condvar,
    /// The log.
    pub wal: Mutex<Wal>,
    /// Partitions that were removed while the log had records of them, with the number of the first
    /// record after those.
    pub removed: Mutex<BTreeMap<Ids, u64>>,
}

impl LogWriter {
    /// A writer to a log that is still to be replayed; of `removed` partitions records are passed
    /// over.
    pub fn new(catalog: Arc<Catalog>, removed: impl Iterator<Item = Ids>) -> LogWriter {
        let wal = Wal::closed(&catalog.log_folder());
        LogWriter {
            catalog,
            writer: Mutex::new(Writer::new(1)),
            written: Condvar::new(),
            wal: Mutex::new(wal),
            removed: Mutex::new(removed.map(|ids| (ids, u64::MAX)).collect()),
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
        let mut waits: Vec<Outcome> = Vec::new();
        let mut writer = lock(&self.writer);
        for window in windows {
            if let Some(reason) = rejection(&self.catalog, window, now_unix_ns) {
                answers.push(PushOutcome::Rejected(reason));
                continue;
            }
            if let Some(outcome) = writer.in_flight.get(&window.origin) {
                waits.push(Arc::clone(outcome));
                answers.push(PushOutcome::Duplicate);
                continue;
            }
            let logged = self.log_window(&mut writer, window, &mut definitions, now_unix_ns);
            let taken = match logged {
                Ok(taken) => taken,
                Err(error) => {
                    // The windows before it stay: when they are pushed again, they are repeats.
                    let outcome = Arc::clone(&writer.outcome);
                    drop(self.wait_for_commit(writer, &outcome));
                    return Err(error);
                }
            };
            if taken == PushOutcome::Stored {
                waits.push(Arc::clone(&writer.outcome));
            }
            answers.push(taken);
            if writer.batch.len() > BATCH_BYTES {
                let outcome = Arc::clone(&writer.outcome);
                writer = self.wait_for_commit(writer, &outcome);
            }
        }
        for outcome in waits {
            writer = self.wait_for_commit(writer, &outcome);
            if let Some(Err(text)) = outcome.get() {
                return Err(StoreError::Unavailable(text.clone()));
            }
        }
        drop(writer);
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
            };
            counter.inc();
        }
    }

    /// Adds a window's record to the batch, when it is to be taken.
    fn log_window(
        &self,
        writer: &mut Writer,
        window: &NewWindow,
        definitions: &mut Definitions<'_>,
        now_unix_ns: i64,
    ) -> Result<PushOutcome, StoreError> {
        let partition = self.partition_for(window.range.start_unix_ns)?;
        if self.is_stored(&window.origin) {
            return Ok(PushOutcome::Duplicate);
        }
        if partition.level == Level::ServiceHours {
            // By the clock of another call its time was over.
            return Ok(PushOutcome::Rejected(
                "it is older than what is kept".to_owned(),
            ));
        }
        let ready = match prepare(&self.catalog, &partition, window, definitions)? {
            Ok(ready) => ready,
            Err(taken) => return Ok(taken),
        };
        let mut payload = vec![RECORD_WINDOW];
        let dict = partition.dict(true).map_err(|error| {
            self.catalog
                .file_error("read a dictionary", &partition, error)
        })?;
        let logged = *lock(&partition.logged);
        encode_record(&partition, &read(&dict), &ready.window, &mut payload);
        if payload.len() > RECORD_BYTES_MAX && partition.keep_dict().is_ok() {
            // The window may be small and a dictionary large that the log had no copy of: now it
            // has.
            payload.truncate(1);
            encode_record(&partition, &read(&dict), &ready.window, &mut payload);
        }
        if payload.len() > RECORD_BYTES_MAX {
            *lock(&partition.logged) = logged;
            return Ok(PushOutcome::Rejected(
                "it is too large for one record".to_owned(),
            ));
        }
        let record = writer.add(&payload);
        let outcome = Arc::clone(&writer.outcome);
        writer.in_flight.insert(window.origin.clone(), outcome);
        writer.pending.push(Pending::Window {
            record,
            now_unix_ns,
            partition,
            origin: window.origin.clone(),
            ready,
        });
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
        let log = self.catalog.log_folder();
        let made = Partition::create(path.clone(), &log, (start, end), labels, None);
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
        let mut writer = lock(&self.writer);
        for host in hosts {
            let mut payload = vec![RECORD_HOST];
            encode_host(&mut payload, host);
            encode_health(&mut payload, host);
            let record = writer.add(&payload);
            writer.pending.push(Pending::Host {
                record,
                host: host.clone(),
            });
        }
        let outcome = Arc::clone(&writer.outcome);
        drop(self.wait_for_commit(writer, &outcome));
        match outcome.get() {
            Some(Err(text)) => Err(StoreError::Unavailable(text.clone())),
            _ => Ok(()),
        }
    }

    /// Waits until a batch is durable or has failed; writes it when nobody else does.
    fn wait_for_commit<'w>(
        &'w self,
        mut writer: MutexGuard<'w, Writer>,
        outcome: &Outcome,
    ) -> MutexGuard<'w, Writer> {
        while outcome.get().is_none() {
            if writer.writing.is_some() {
                let waiting = self.written.wait(writer);
                writer = waiting.unwrap_or_else(PoisonError::into_inner);
            } else {
                writer = self.write_batch(writer);
            }
        }
        writer
    }

    /// The writer when nothing is on its way: every window that was logged is in memory.
    pub fn quiesce(&self) -> MutexGuard<'_, Writer> {
        let mut writer = lock(&self.writer);
        while writer.writing.is_some() || !writer.batch.is_empty() {
            let outcome = Arc::clone(&writer.outcome);
            writer = self.wait_for_commit(writer, &outcome);
        }
        writer
    }

    fn write_batch<'w>(&'w self, mut writer: MutexGuard<'w, Writer>) -> MutexGuard<'w, Writer> {
        let batch = std::mem::take(&mut writer.batch);
        let pending = std::mem::take(&mut writer.pending);
        let outcome = std::mem::take(&mut writer.outcome);
        writer.writing = Some(writer.next - batch.records());
        drop(writer);
        let written = if batch.is_empty() {
            Ok(())
        } else {
            let begin = Instant::now();
            let written = lock(&self.wal).write(&batch);
            let took = begin.elapsed().as_secs_f64();
            self.catalog.counters.log_write_time.observe(took);
            written
        };
        self.catalog.counters.log_batches.inc();
        let mut writer = lock(&self.writer);
        match written {
            Ok(()) => {
                let bytes = batch.len() as u64;
                self.catalog.counters.log_bytes.inc_by(bytes);
                // A host's few bytes still fit on a disk that has no room for a window.
                let windows = |one: &Pending| matches!(one, Pending::Window { .. });
                if pending.iter().any(windows) {
                    self.catalog.report_issue("log", None);
                }
                for pending in pending {
                    self.apply(&mut writer, pending);
                }
                let _ = outcome.set(Ok(()));
            }
            Err(error) => {
                self.catalog.counters.log_failures.inc();
                let text = error.to_string();
                self.catalog.report_issue(
                    "log",
                    Some(format!(
                        "{text}; agents keep their windows until there is room"
                    )),
                );
                self.fail(&mut writer, pending, &outcome, &text);
            }
        }
        writer.writing = None;
        self.written.notify_all();
        writer
    }

    fn apply(&self, writer: &mut Writer, pending: Pending) {
        match pending {
            Pending::Window {
                record,
                now_unix_ns,
                partition,
                origin,
                ready,
            } => {
                let Ready {
                    window,
                    host_labels,
                } = ready;
                let mut index = write(&self.catalog.host_index);
                index.add_window(&origin.host, &host_labels, &window.meta);
                drop(index);
                partition.apply(record, now_unix_ns, &origin.host, &host_labels, window);
                writer.in_flight.remove(&origin);
            }
            Pending::Host { record, host } => lock(&self.catalog.hosts).set(record, host),
        }
    }

    /// Gives up a batch that could not be written, and the one that was filled meanwhile: its
    /// records follow those, and may use entries of dictionaries that only those had.
    fn fail(&self, writer: &mut Writer, pending: Vec<Pending>, outcome: &Outcome, text: &str) {
        let filled = std::mem::take(&mut writer.pending);
        let next_outcome = std::mem::take(&mut writer.outcome);
        writer.batch = Batch::default();
        writer.next = lock(&self.wal).next();
        for pending in pending.into_iter().chain(filled) {
            if let Pending::Window {
                partition, origin, ..
            } = pending
            {
                partition.forget_logged();
                writer.in_flight.remove(&origin);
            }
        }
        for outcome in [outcome, &next_outcome] {
            let _ = outcome.set(Err(text.to_owned()));
        }
    }

    /// Makes sure that what the log has of a finer partition is passed over, when its ids are not
    /// those of the coarser one in its place.
    pub fn note_replaced(&self, finer: &Partition, coarser: &Partition) -> std::io::Result<()> {
        if finer.generation == coarser.generation {
            return Ok(());
        }
        self.skip_records(finer.ids())
    }

    /// Makes sure that what the log has of these ids is passed over from now on: in this process in
    /// any case, after a crash when the note could be written.
    pub fn skip_records(&self, ids: dictlog::Ids) -> std::io::Result<()> {
        let noted = dictlog::write_tombstone(&self.catalog.log_folder(), ids);
        let next = lock(&self.wal).next();
        lock(&self.removed).insert(ids, next);
        noted
    }
}
