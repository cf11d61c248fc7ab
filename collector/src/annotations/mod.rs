//! Events of the fleet: annotations that people and their pipelines add, and deployments that the
//! collector detects itself (`deploys.rs`).
//!
//! They are in a database of the collector (`book.rs`), independent of the store's engine, and
//! outlive the windows of their time. A caller with a scope sees those with labels in that scope.
//! All limits are in `limits.rs`.

mod book;
mod check;
mod deploys;
pub mod limits;
mod service;

use crate::audit::{Audit, Event};
use crate::database::DatabaseError;
use crate::ingest::{Program, Watch, stopped};
use crate::metrics::Metrics;
use crate::store::{HostFacts, HostKey, NewWindow};
use crate::sync::lock;
use crate::time::Clock;
use book::{Book, Pruned};
use deploys::Deploys;
use limits::{FLUSH_INTERVAL, PRUNE_ROUNDS};
use profile::text::with_causes;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::{OnceCell, watch};
use tokio::task::spawn_blocking;
use tokio::time::MissedTickBehavior;
use tonic::Status;

/// Kind of what changed the software of hosts.
pub const DEPLOY: &str = "deploy";

/// Kind of all else.
pub const NOTE: &str = "note";

/// Author of detected annotations.
pub const FOUND: &str = "collector";

/// How annotations are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnotationOptions {
    /// Its directory.
    pub dir: PathBuf,
    /// For how long after their time. Unit: nanoseconds.
    pub age_ns: i64,
    /// Whether deploys are found.
    pub find_deploys: bool,
}

/// Answers people, and finds deploys; clones share everything.
#[derive(Clone)]
pub struct Annotations(Arc<Inner>);

struct Inner {
    options: AnnotationOptions,
    /// Opened when it is first wanted, and tried again until it can be.
    opened: OnceCell<Opened>,
    /// Findings could not be written, and that was logged.
    is_failing: AtomicBool,
    clock: Clock,
    audit: Audit,
    metrics: Arc<Metrics>,
    shutdown: watch::Receiver<bool>,
}

struct Opened {
    book: Book,
    deploys: Mutex<Deploys>,
}

impl Annotations {
    /// Annotations in a directory. While it cannot be used nothing is detected, and callers get the
    /// reason as an error.
    pub fn new(
        options: AnnotationOptions,
        clock: Clock,
        audit: Audit,
        metrics: Arc<Metrics>,
        shutdown: watch::Receiver<bool>,
    ) -> Annotations {
        Annotations(Arc::new(Inner {
            options,
            opened: OnceCell::new(),
            is_failing: AtomicBool::new(false),
            clock,
            audit,
            metrics,
            shutdown,
        }))
    }

    /// Opens the database: data of agents that arrives earlier is not examined.
    /// [`Annotations::keep`] reports why it cannot be opened.
    pub async fn ready(&self) {
        let _ = self.0.open().await;
    }

    /// Writes what is found, and removes what is over its age, until the end.
    pub async fn keep(self) {
        let mut shutdown = self.0.shutdown.clone();
        let mut tick = tokio::time::interval(FLUSH_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut round, mut is_told) = (0, false);
        loop {
            tokio::select! {
                () = stopped(&mut shutdown) => return,
                _ = tick.tick() => {}
            }
            if let Err(status) = self.0.open().await {
                if !is_told {
                    tracing::warn!(
                        reason = status.message(),
                        "the collector keeps no annotations"
                    );
                }
                is_told = true;
                continue;
            }
            let inner = self.0.clone();
            let prunes = round % PRUNE_ROUNDS == 0;
            round += 1;
            let work = move || {
                inner.flush();
                if prunes {
                    inner.prune();
                }
            };
            // A panic was reported when it happened; the next round tries again.
            let _ = spawn_blocking(work).await;
        }
    }

    /// Writes what was found and is not written yet. Blocks.
    pub fn close(&self) {
        self.0.flush();
    }
}

impl Inner {
    /// The database, which is opened where it is not yet.
    async fn open(&self) -> Result<&Opened, Status> {
        let open = || async {
            let dir = self.options.dir.clone();
            let now = self.clock.now_unix_ns();
            let opening = spawn_blocking(move || {
                let book = Book::open(&dir)?;
                let deploys = Mutex::new(Deploys::new(book.known(now)?));
                let count = book.count()?;
                Ok::<_, DatabaseError>((Opened { book, deploys }, count))
            });
            let opened = opening.await;
            let opened =
                opened.map_err(|_| Status::internal("the annotations cannot be opened"))?;
            let (opened, count) = opened.map_err(|error| {
                let reason = with_causes(&error);
                Status::unavailable(format!(
                    "this collector keeps no annotations: {reason}\ncheck the directory \
                     `annotations` in the collector's data_dir"
                ))
            })?;
            self.metrics.annotations.set(count);
            Ok(opened)
        };
        self.opened.get_or_try_init(open).await
    }

    /// The detected deployments, if detection is on and they can be stored.
    fn deploys(&self) -> Option<MutexGuard<'_, Deploys>> {
        let opened = self.opened.get().filter(|_| self.options.find_deploys)?;
        Some(lock(&opened.deploys))
    }

    /// Writes what was found. Blocks.
    fn flush(&self) {
        let Some(opened) = self.opened.get() else {
            return;
        };
        let (notes, untold) = lock(&opened.deploys).take();
        self.metrics.deploys_limited.inc_by(untold.limited);
        self.metrics.deploys_dropped.inc_by(untold.dropped);
        if notes.is_empty() {
            return;
        }
        match opened.book.write(&notes, self.clock.now_unix_ns()) {
            Ok(told) => {
                lock(&opened.deploys).written();
                self.is_failing.store(false, Ordering::Relaxed);
                for annotation in &told {
                    self.metrics.annotations_found.inc();
                    tracing::info!(id = annotation.id, text = annotation.text, "deploy found");
                    let event = Event::by(FOUND, String::new(), "deploy-found");
                    let event = event.with("annotation", annotation.id);
                    self.audit
                        .note(event.with("text", annotation.text.as_str()));
                }
                if !told.is_empty() {
                    self.measure(&opened.book);
                }
            }
            Err(error) => {
                self.metrics.annotations_failed.inc();
                if !self.is_failing.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        error = with_causes(&error),
                        "failed to store the deploys that were found; the collector retries"
                    );
                }
                lock(&opened.deploys).put_back(notes);
            }
        }
    }

    /// Removes what is too old or too much. Blocks.
    fn prune(&self) {
        let Some(opened) = self.opened.get() else {
            return;
        };
        let now = self.clock.now_unix_ns();
        lock(&opened.deploys).expire(now);
        match opened.book.prune(now, self.options.age_ns) {
            Ok(Pruned { aged, over }) => {
                self.metrics.annotations_aged.inc_by(aged as u64);
                self.metrics.annotations_over.inc_by(over as u64);
            }
            Err(error) => {
                self.metrics.annotations_failed.inc();
                tracing::debug!(%error, "failed to remove old annotations; the collector retries");
            }
        }
        self.measure(&opened.book);
    }

    fn measure(&self, book: &Book) {
        if let Ok(count) = book.count() {
            self.metrics.annotations.set(count);
        }
    }
}

impl Watch for Annotations {
    fn host(&self, host: &HostKey, facts: &HostFacts, programs: &[Program]) {
        let now = self.0.clock.now_unix_ns();
        if let Some(mut deploys) = self.0.deploys() {
            deploys.agent(&host.host_id, facts, now);
            deploys.programs(&host.host_id, facts, programs, now);
        }
    }

    fn stored(&self, window: &NewWindow) {
        let now = self.0.clock.now_unix_ns();
        let sights = match self.0.options.find_deploys {
            true => deploys::sights(window, now),
            false => return,
        };
        if sights.is_empty() {
            return;
        }
        if let Some(mut deploys) = self.0.deploys() {
            deploys.look(&sights, now);
        }
    }
}
