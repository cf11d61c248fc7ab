//! The audit log: what was done at the collector, and by whom. It is append-only, and each line has
//! the hash of the previous one.
//!
//! Actions that must be recorded are on disk before they are done: [`Audit::record`] waits for
//! that, and its caller rejects the action if it fails. Actions that should be recorded, such as a
//! host's renewal, use [`Audit::note`] and are counted if lost. One thread (`fp-audit`) writes
//! waiting lines, and syncs once for all of them.
//!
//! The log proves that nobody without write access to the disk changed it. Somebody with access to
//! the disk can rewrite all of it; to detect that, note the number and hash of its last line
//! elsewhere.

mod chain;
mod verify;

pub use chain::{Chain, FILE_BYTES_MAX};
pub use verify::{Verdict, verify, verify_dir};

use crate::metrics::Metrics;
use crate::sync::lock;
use crate::time::Clock;
use serde_json::{Map, Value};
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;
use tonic::Status;

/// Lines that wait for the disk. At the bound what must be on record is refused, and what should
/// be is counted.
const QUEUE: usize = 1024;

/// Most lines that one sync covers.
const BATCH: usize = 256;

/// Longest text of a line's field. Unit: bytes.
const TEXT_BYTES_MAX: usize = 1024;

/// Most hosts that a line names.
pub const HOSTS_NAMED: usize = 100;

/// Longest wait for the disk at the end.
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// Something that was done, or was to be.
#[derive(Clone, Debug)]
pub struct Event {
    who: String,
    role: &'static str,
    peer: String,
    action: &'static str,
    what: Map<String, Value>,
    outcome: String,
}

/// The action is about to be done.
pub const BEGUN: &str = "started";

/// The action was done.
pub const DONE: &str = "done";

impl Event {
    /// Creates an event of somebody without a role: a host, the collector itself, or somebody who
    /// failed to log in.
    pub fn by(who: &str, peer: String, action: &'static str) -> Event {
        Event {
            who: cut(who),
            role: "",
            peer,
            action,
            what: Map::new(),
            outcome: DONE.to_owned(),
        }
    }

    /// Who did it.
    pub fn who(&self) -> &str {
        &self.who
    }

    /// Sets the role that somebody acted in.
    #[must_use]
    pub fn as_role(mut self, role: &'static str) -> Event {
        self.role = role;
        self
    }

    /// Adds a detail.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Event {
        let value = match value.into() {
            Value::String(text) => Value::String(cut(&text)),
            other => other,
        };
        self.what.insert(name.to_owned(), value);
        self
    }

    /// With what came of it.
    #[must_use]
    pub fn ended(mut self, outcome: &str) -> Event {
        self.outcome = cut(outcome);
        self
    }
}

fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_BYTES_MAX)].to_owned()
}

/// A line that waits for the disk.
struct Waiting {
    event: Option<Event>,
    /// The task that waits until it is on disk.
    done: Option<oneshot::Sender<Result<(), String>>>,
}

/// The log. Clones share it.
#[derive(Clone)]
pub struct Audit(Option<Arc<Inner>>);

struct Inner {
    queue: SyncSender<Waiting>,
    chain: Arc<Mutex<Chain>>,
    clock: Clock,
    metrics: Arc<Metrics>,
}

impl Audit {
    /// Creates a log that stores nothing, for tests of parts of a collector.
    pub fn off() -> Audit {
        Audit(None)
    }

    /// In this directory, of so many bytes at most. It is made when the first line is written: a
    /// full disk keeps nobody from reading.
    ///
    /// # Errors
    /// When its thread cannot be started.
    pub fn start(
        dir: &Path,
        bytes_max: u64,
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> io::Result<Audit> {
        let chain = Arc::new(Mutex::new(Chain::new(dir, bytes_max)));
        let (queue, waiting) = sync_channel(QUEUE);
        let (own, counts, time) = (chain.clone(), metrics.clone(), clock.clone());
        let thread = std::thread::Builder::new().name("fp-audit".to_owned());
        thread.spawn(move || write(&waiting, &own, &time, &counts))?;
        Ok(Audit(Some(Arc::new(Inner {
            queue,
            chain,
            clock,
            metrics,
        }))))
    }

    /// Puts on record what shuts somebody out, as far as that can be: it is done anyway.
    pub async fn try_record(&self, event: Event) {
        if let Err(status) = self.record(event).await {
            tracing::error!(
                why = status.message(),
                "an action is missing in the audit log"
            );
        }
    }

    /// Puts a line on the disk.
    ///
    /// # Errors
    /// UNAVAILABLE when it is not there: whatever it tells of must not be done.
    pub async fn record(&self, event: Event) -> Result<(), Status> {
        let Some(inner) = &self.0 else { return Ok(()) };
        let (done, written) = oneshot::channel();
        let sent = inner.queue.try_send(Waiting {
            event: Some(event),
            done: Some(done),
        });
        let why = match sent {
            Ok(()) => match written.await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(why)) => why,
                Err(_) => "its thread ended".to_owned(),
            },
            Err(_) => "too many lines wait for the disk".to_owned(),
        };
        inner.metrics.audit_refused.inc();
        Err(Status::unavailable(format!(
            "failed to write the audit log: {why}\nactions that must be on record are refused \
             until the collector's disk works again: make room in its data_dir"
        )))
    }

    /// Puts a line on the disk some time soon, if it takes it.
    pub fn note(&self, event: Event) {
        let Some(inner) = &self.0 else { return };
        let waiting = Waiting {
            event: Some(event),
            done: None,
        };
        if inner.queue.try_send(waiting).is_err() {
            inner.metrics.audit_dropped.inc();
        }
    }

    /// Waits until all that was noted is on the disk, within bounds. Blocks.
    pub fn close(&self) {
        let Some(inner) = &self.0 else { return };
        let (done, mut written) = oneshot::channel();
        let mut waiting = Waiting {
            event: None,
            done: Some(done),
        };
        let pause = Duration::from_millis(10);
        for _ in 0..CLOSE_MAX.as_millis() / pause.as_millis() {
            match inner.queue.try_send(waiting) {
                Ok(()) => break,
                Err(TrySendError::Disconnected(_)) => return,
                Err(TrySendError::Full(back)) => waiting = back,
            }
            std::thread::sleep(pause);
        }
        for _ in 0..CLOSE_MAX.as_millis() / pause.as_millis() {
            match written.try_recv() {
                Err(oneshot::error::TryRecvError::Empty) => std::thread::sleep(pause),
                _ => return,
            }
        }
    }

    /// Reads all of it, and says whether it is complete and unchanged. Blocks.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn verify(&self) -> io::Result<Verdict> {
        let Some(inner) = &self.0 else {
            return Ok(Verdict::default());
        };
        // Lines that come meanwhile are for the next time.
        let snapshot = lock(&inner.chain).snapshot(inner.clock.now_unix_ns())?;
        verify(&snapshot)
    }

    /// Hands lines from a time on to `take`, oldest first, the newest `limit` of them. Blocks.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn lines(
        &self,
        since_unix_ns: i64,
        limit: usize,
        take: &mut dyn FnMut(String) -> bool,
    ) -> io::Result<()> {
        let Some(inner) = &self.0 else { return Ok(()) };
        let snapshot = lock(&inner.chain).snapshot(inner.clock.now_unix_ns())?;
        chain::lines(&snapshot, since_unix_ns, limit, take)
    }
}

/// The thread: writes what waits until nobody can ask for it any more.
fn write(waiting: &Receiver<Waiting>, chain: &Mutex<Chain>, clock: &Clock, metrics: &Metrics) {
    while let Ok(first) = waiting.recv() {
        let mut batch = vec![first];
        batch.extend(waiting.try_iter().take(BATCH - 1));
        let events: Vec<_> = batch
            .iter()
            .filter_map(|waiting| waiting.event.as_ref())
            .collect();
        let written = match events.is_empty() {
            true => Ok(()),
            false => {
                let mut chain = lock(chain);
                let written = chain.append(&events, clock.now_unix_ns());
                let told = metrics.audit_damaged.get();
                metrics
                    .audit_damaged
                    .inc_by(chain.damages().saturating_sub(told));
                written
            }
        };
        let count = events.len() as u64;
        match &written {
            Ok(()) => {
                if metrics.audit_failing.get() != 0 {
                    metrics.audit_failing.set(0);
                    tracing::info!("the audit log works again");
                }
                metrics.audit_lines.inc_by(count);
            }
            Err(error) => {
                if metrics.audit_failing.get() == 0 {
                    metrics.audit_failing.set(1);
                    tracing::error!(
                        "failed to write the audit log: {error}; captures and changes of the fleet \
                         are refused until it works"
                    );
                }
                metrics.audit_failed.inc_by(count);
            }
        }
        let written = written.map_err(|error| error.to_string());
        for waiting in batch {
            if let Some(done) = waiting.done {
                // Who asked may be gone.
                let _ = done.send(written.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests;
