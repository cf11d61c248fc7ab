//! Incidents: what went wrong, who takes care of it, and the evidence, kept until somebody deletes
//! it.
//!
//! `book.rs` has incidents and their timelines, in a database of the collector. Evidence is copied
//! (`keep.rs`) into files of its own (`evidence.rs`), so it outlives what it was copied from.
//! Alerts and pins open incidents where the configuration says so (`unasked.rs`). `report.rs`
//! writes an incident as Markdown and as a page that needs no collector. Views of the page that
//! people save (`views.rs`) are in the same database, and snapshots in the same files.

mod book;
mod check;
mod evidence;
mod keep;
pub mod limits;
mod report;
mod service;
mod shelf;
mod unasked;
mod views;

pub use report::{Picture, html, markdown};

use crate::alerts::Alerts;
use crate::audit::Audit;
use crate::control::Control;
use crate::evidence::{Bounds, Files};
use crate::metrics::Metrics;
use crate::pins::Pins;
use crate::query::Queries;
use crate::time::Clock;
use book::Book;
use profile::text::with_causes;
use proto::collector::IncidentEvidence;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::{OnceCell, Semaphore, watch};
use tokio::task::spawn_blocking;
use tonic::{Request, Status};

/// Stands for an incident where evidence is of a snapshot.
const NO_INCIDENT: u64 = 0;

/// Why work with the database and the files failed.
#[derive(Debug, thiserror::Error)]
enum WorkError {
    /// The database.
    #[error("failed to use the database of incidents")]
    Database(#[from] rusqlite::Error),
    /// A file stays.
    #[error("failed to delete the file of evidence `{id}`")]
    Delete {
        /// Number of the evidence.
        id: u64,
        /// Why.
        source: io::Error,
    },
}

/// How incidents are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IncidentOptions {
    /// Their directory.
    pub dir: PathBuf,
    /// Most bytes of all evidence, and of that of one incident.
    pub bytes: (u64, u64),
    /// Most incidents.
    pub count: usize,
    /// Whether pins open one.
    pub open_for_pins: bool,
    /// Address of the page.
    pub page: String,
}

/// What incidents take their evidence from.
#[derive(Clone)]
pub struct Sources {
    /// What is stored.
    pub queries: Queries,
    /// Pins of agents.
    pub pins: Pins,
    /// Captures that are kept.
    pub control: Control,
    /// Alerts.
    pub alerts: Alerts,
}

/// Keeps incidents; clones share everything.
#[derive(Clone)]
pub struct Incidents(Arc<Inner>);

struct Inner {
    options: IncidentOptions,
    /// Opened when they are first wanted, and tried again until they can be.
    opened: OnceCell<Arc<Opened>>,
    sources: Sources,
    /// Evidence is copied one at a time.
    copying: Semaphore,
    clock: Clock,
    audit: Audit,
    metrics: Arc<Metrics>,
    shutdown: watch::Receiver<bool>,
}

struct Opened {
    book: Book,
    files: Files<IncidentEvidence>,
}

impl Incidents {
    /// Incidents in a directory. While it cannot be used callers get the reason as an error.
    pub fn new(
        options: IncidentOptions,
        sources: Sources,
        (clock, audit): (Clock, Audit),
        metrics: Arc<Metrics>,
        shutdown: watch::Receiver<bool>,
    ) -> Incidents {
        Incidents(Arc::new(Inner {
            options,
            opened: OnceCell::new(),
            sources,
            copying: Semaphore::new(1),
            clock,
            audit,
            metrics,
            shutdown,
        }))
    }
}

impl Inner {
    /// The database and the files, which are opened where they are not yet.
    async fn open(&self) -> Result<&Arc<Opened>, Status> {
        let open = || async {
            let dir = self.options.dir.clone();
            let (bytes, owner_bytes) = self.options.bytes;
            let bounds = Bounds {
                bytes,
                owner_bytes,
                count: usize::MAX,
                age_ns: i64::MAX,
            };
            let failed = |reason: String| {
                Status::unavailable(format!(
                    "this collector keeps no incidents: {reason}\ncheck the directory `incidents` \
                     in the collector's data_dir"
                ))
            };
            let metrics = self.metrics.clone();
            let opening = spawn_blocking(move || {
                let book = Book::open(&dir).map_err(|error| with_causes(&error))?;
                let files = Files::open(&dir.join("evidence"), bounds);
                let files = files.map_err(|error| with_causes(&error))?;
                let opened = Opened { book, files };
                if let Err(error) = views::remove_lost_snapshots(&opened) {
                    tracing::warn!(%error, "failed to look for snapshots without a view");
                }
                if let Ok(sizes) = opened.sizes() {
                    sizes.tell(&metrics);
                }
                Ok::<_, String>(opened)
            });
            let opened = opening.await;
            let opened = opened.map_err(|_| failed("the collector failed".to_owned()))?;
            let opened = opened.map_err(failed)?;
            Ok(Arc::new(opened))
        };
        self.opened.get_or_try_init(open).await
    }

    /// Work with the database.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Opened) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Status> {
        self.changing(move |opened| Ok(work(opened)?)).await
    }

    /// Work with the database and the files.
    async fn changing<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Opened) -> Result<T, WorkError> + Send + 'static,
    ) -> Result<T, Status> {
        let opened = self.open().await?.clone();
        let done = spawn_blocking(move || work(&opened)).await;
        let done = done.map_err(|_| Status::internal("the call failed in the collector"))?;
        done.map_err(|error| {
            self.metrics.incidents_failed.inc();
            Status::unavailable(format!(
                "{}\ncheck the disk of the collector's data_dir",
                with_causes(&error)
            ))
        })
    }

    /// Puts sizes into the metrics.
    async fn measure(&self) {
        if let Ok(sizes) = self.blocking(Opened::sizes).await {
            sizes.tell(&self.metrics);
        }
    }
}

/// Where a request comes from, for the audit log.
fn peer<T>(request: &Request<T>) -> String {
    let peer = request.remote_addr().map(|peer| peer.to_string());
    peer.unwrap_or_default()
}

/// How much there is.
struct Sizes {
    incidents: u64,
    evidence_bytes: u64,
}

impl Sizes {
    fn tell(&self, metrics: &Metrics) {
        metrics.incidents.set(self.incidents);
        metrics.incident_bytes.set(self.evidence_bytes);
    }
}

impl Opened {
    /// Removes the file of a piece of evidence.
    fn remove_file(&self, id: u64) -> Result<(), WorkError> {
        let removed = self.files.remove(id);
        removed.map_err(|source| {
            tracing::warn!(id, error = %source, "failed to delete evidence");
            WorkError::Delete { id, source }
        })?;
        Ok(())
    }

    fn sizes(&self) -> rusqlite::Result<Sizes> {
        let (_, evidence_bytes) = self.files.size();
        Ok(Sizes {
            incidents: self.book.count()? as u64,
            evidence_bytes,
        })
    }
}
