//! The thread that maintains the store and informs it about hosts (`fp-upkeep`); one that looks for
//! hosts in trouble (`fp-survey`), and one that has sealed data copied to the archive
//! (`fp-upload`). None waits for another.
//!
//! If `fp-upkeep` ends on its own, the collector ends. If `fp-survey` panics, agents are still
//! served: the log and a metric report it, and `/healthz` is 503 until a restart.

use crate::ingest::Hosts;
use crate::metrics::Metrics;
use crate::store::{Cancel, OpenStore, WindowSink};
use crate::time::Clock;
use metrics::Gauge;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How often it looks.
const INTERVAL: Duration = Duration::from_secs(2);

/// Time for an upload to end when the collector stops.
const UPLOAD_END: Duration = Duration::from_secs(2);

/// How often it is looked whether it has.
const LOOK: Duration = Duration::from_millis(10);

/// Most troubles remembered as reported. Each is a sentence; a store with more than this many at a
/// time is reported again.
const TOLD_MAX: usize = 256;

/// The running threads; stopped and joined on request, or when dropped.
pub struct Upkeep {
    stop: Vec<SyncSender<()>>,
    threads: Vec<JoinHandle<()>>,
    /// Ends an upload.
    cancel: Cancel,
    upload: Option<JoinHandle<()>>,
}

impl Upkeep {
    /// Starts them. The receiver is done when the store's thread ends, on its own or not.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn start(
        store: OpenStore,
        hosts: Arc<Hosts>,
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> io::Result<(Upkeep, oneshot::Receiver<()>)> {
        let (stop, stopped) = sync_channel(1);
        let (alive, ended) = oneshot::channel();
        let (stop_looking, no_more) = sync_channel::<()>(1);
        let looked = Arc::clone(&hosts);
        let surveyed = metrics.clone();
        let look = move || survey(&no_more, INTERVAL, &surveyed, || looked.look());
        let (stop_uploading, no_uploads) = sync_channel::<()>(1);
        let cancel = Cancel::default();
        let upload = {
            let (sink, clock, cancel) = (store.sink.clone(), clock.clone(), cancel.clone());
            let metrics = metrics.clone();
            move || {
                let _ended = Ended(&metrics.upload_ended);
                upload(&no_uploads, sink.as_ref(), &clock, &cancel);
            }
        };
        let run = move || {
            // Dropped however the thread ends, which is what the receiver waits for.
            let _alive: oneshot::Sender<()> = alive;
            let mut issues = Issues::default();
            while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let mut found = round(&store, &hosts, &clock, &metrics);
                found.extend(survey_issue(&metrics));
                found.extend(upload_issue(&metrics));
                issues.tell(found);
            }
        };
        let start = |name: &str| std::thread::Builder::new().name(name.to_owned());
        // Those that are started before another fails end when their senders are dropped.
        let threads = vec![
            start("fp-survey").spawn(look)?,
            start("fp-upkeep").spawn(run)?,
        ];
        let upkeep = Upkeep {
            stop: vec![stop_looking, stop, stop_uploading],
            threads,
            cancel,
            upload: Some(start("fp-upload").spawn(upload)?),
        };
        Ok((upkeep, ended))
    }

    /// Ends the threads, after the round it may be in.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop.clear();
        self.cancel.cancel();
        for thread in self.threads.drain(..) {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
        let Some(upload) = self.upload.take() else {
            return;
        };
        // It may wait for a server that does not answer. Nothing is lost if it goes on until the
        // process ends: an object counts once the manifest names it.
        let until = Instant::now() + UPLOAD_END;
        while !upload.is_finished() && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
    }
}

/// Has sealed data copied, until stopped. What fails is an issue of the store.
fn upload(stopped: &Receiver<()>, sink: &dyn WindowSink, clock: &Clock, cancel: &Cancel) {
    let mut pause = INTERVAL;
    while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let more = sink.archive(clock.now_unix_ns(), cancel);
        pause = match more {
            Ok(true) => Duration::ZERO,
            Ok(false) | Err(_) => INTERVAL,
        };
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        self.end();
    }
}

/// Looks every `interval` until stopped, or until a look panics.
fn survey(no_more: &Receiver<()>, interval: Duration, metrics: &Metrics, mut look: impl FnMut()) {
    let _ended = Ended(&metrics.survey_ended);
    while no_more.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
        look();
    }
}

/// Makes it known when a thread ends by a panic.
struct Ended<'a>(&'a Gauge);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.set(1);
        }
    }
}

fn survey_issue(metrics: &Metrics) -> Option<String> {
    let ended = metrics.survey_ended.get() != 0;
    ended.then(|| {
        "the check for hosts in trouble has stopped: thread `fp-survey` panicked\n  restart the \
         collector"
            .to_owned()
    })
}

fn upload_issue(metrics: &Metrics) -> Option<String> {
    let ended = metrics.upload_ended.get() != 0;
    ended.then(|| {
        "nothing is uploaded to the archive any more: thread `fp-upload` panicked\n  restart the \
         collector"
            .to_owned()
    })
}

/// One round; what is wrong, in sentences.
fn round(store: &OpenStore, hosts: &Hosts, clock: &Clock, metrics: &Metrics) -> BTreeSet<String> {
    let mut issues: BTreeSet<String> = store.status.issues().into_iter().collect();
    if let Err(error) = hosts.flush(store) {
        issues.insert(format!("failed to store the reports of hosts: {error}"));
    }
    if let Err(error) = store.sink.maintain(clock.now_unix_ns()) {
        metrics.maintain_failed.inc();
        issues.insert(format!(
            "the maintenance of the store is incomplete: {error}"
        ));
    }
    if let Some(senders) = &store.senders
        && let Err(error) = senders.sink.maintain(clock.now_unix_ns())
    {
        metrics.maintain_failed.inc();
        issues.insert(format!(
            "the maintenance of the store of other senders is incomplete: {error}"
        ));
    }
    issues
}

/// Logs each trouble when it comes and when it goes.
#[derive(Default)]
struct Issues {
    told: BTreeSet<String>,
}

impl Issues {
    fn tell(&mut self, found: BTreeSet<String>) {
        for issue in found.difference(&self.told) {
            tracing::warn!("{issue}");
        }
        for issue in self.told.difference(&found) {
            tracing::info!("resolved: {issue}");
        }
        self.told = found.into_iter().take(TOLD_MAX).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is logged for a survey that panics, or that is stopped.
    fn surveyed(panics: bool) -> Option<String> {
        let metrics = Arc::new(Metrics::default());
        let (stop, no_more) = sync_channel::<()>(1);
        let (looked, looks) = sync_channel(1);
        let of_thread = metrics.clone();
        let thread = std::thread::spawn(move || {
            survey(&no_more, Duration::ZERO, &of_thread, || {
                let _ = looked.try_send(());
                assert!(!panics, "as the test asks");
            });
        });
        looks.recv().expect("it looks");
        drop(stop);
        assert_eq!(thread.join().is_err(), panics);
        survey_issue(&metrics)
    }

    #[test]
    fn a_survey_that_panics_is_a_trouble_and_one_that_is_stopped_is_none() {
        let issue = surveyed(true).expect("an issue");
        assert!(issue.contains("fp-survey"), "{issue}");
        assert_eq!(surveyed(false), None);
    }
}
