//! The thread that keeps the store in order, and tells it about hosts.

use crate::ingest::Hosts;
use crate::metrics::Metrics;
use crate::store::Store;
use crate::time::Clock;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

/// How often it looks.
const INTERVAL: Duration = Duration::from_secs(2);

/// Troubles remembered as told. Each is a sentence; a store that makes up more than this many at a time
/// is told of again.
const TOLD_MAX: usize = 256;

/// The running thread; stopped and joined when told to, or when dropped.
pub struct Upkeep {
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Upkeep {
    /// Starts it. The receiver is done when the thread ends, on its own or not.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(
        store: Arc<dyn Store>,
        hosts: Arc<Hosts>,
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> io::Result<(Upkeep, oneshot::Receiver<()>)> {
        let (stop, stopped) = sync_channel(1);
        let (alive, ended) = oneshot::channel();
        let run = move || {
            // Dropped however the thread ends, which is what the receiver waits for.
            let _alive: oneshot::Sender<()> = alive;
            let mut troubles = Troubles::default();
            while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                troubles.tell(round(&*store, &hosts, &clock, &metrics));
            }
        };
        let thread = std::thread::Builder::new()
            .name("fp-upkeep".to_owned())
            .spawn(run)?;
        let upkeep = Upkeep {
            stop: Some(stop),
            thread: Some(thread),
        };
        Ok((upkeep, ended))
    }

    /// Ends the thread, after the round it may be in.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic was told when it happened.
            let _ = thread.join();
        }
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        self.end();
    }
}

/// One round; what is wrong, in sentences.
fn round(store: &dyn Store, hosts: &Hosts, clock: &Clock, metrics: &Metrics) -> BTreeSet<String> {
    let mut troubles: BTreeSet<String> = store.degraded().into_iter().collect();
    if let Err(error) = hosts.flush(store) {
        troubles.insert(format!("what hosts said is not stored for now: {error}"));
    }
    if let Err(error) = store.maintain(clock.now_unix_ns()) {
        metrics.maintain_failed.inc();
        troubles.insert(format!(
            "the upkeep of the store left something undone: {error}"
        ));
    }
    troubles
}

/// Logs each trouble when it comes and when it goes.
#[derive(Default)]
struct Troubles {
    told: BTreeSet<String>,
}

impl Troubles {
    fn tell(&mut self, found: BTreeSet<String>) {
        for trouble in found.difference(&self.told) {
            tracing::warn!("{trouble}");
        }
        for trouble in self.told.difference(&found) {
            tracing::info!("over: {trouble}");
        }
        self.told = found.into_iter().take(TOLD_MAX).collect();
    }
}
