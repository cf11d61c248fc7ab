//! Pins of agents: the minutes around what triggers saw, and the captures made then. They are
//! stored as long as the collector's configuration says, whatever happens to the host and to the
//! windows in the store.
//!
//! A pin is a profile of its own, as its agent had it: nothing of it comes from the store, so it
//! includes windows that were lost on the way, and it has the times of its samples. Agents upload
//! each pin once it has closed, and again if its capture finished later (`service.rs`); `evidence`
//! stores them on the collector's own disk, independent of the store's engine. All limits are in
//! `limits.rs`.

mod admission;
mod files;
pub mod limits;
mod service;
mod sight;
mod take;

pub use crate::evidence::Bounds;

use crate::evidence::{Files, Removed};
use crate::ingest::stopped;
use crate::metrics::Metrics;
use crate::query::Queries;
use crate::time::Clock;
use admission::Admission;
use limits::{PRUNE_INTERVAL, UPLOADS_MAX};
use profile::text::with_causes;
use proto::collector::HostPin;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use tokio::sync::{OnceCell, Semaphore, watch};
use tokio::task::spawn_blocking;
use tokio::time::MissedTickBehavior;
use tonic::Status;

/// Answers agents and people; clones share everything.
#[derive(Clone)]
pub struct Pins(Arc<Inner>);

struct Inner {
    dir: (PathBuf, Bounds),
    /// Opened when they are first wanted, and tried again until they can be.
    files: OnceCell<Files<HostPin>>,
    queries: Queries,
    /// Cached decisions on what callers with scopes may see of pins.
    sights: Mutex<sight::Remembered>,
    places: Arc<Semaphore>,
    admission: Arc<Admission>,
    clock: Clock,
    metrics: Arc<Metrics>,
    shutdown: watch::Receiver<bool>,
}

impl Pins {
    /// Pins of a directory, within bounds. While it cannot be used agents keep theirs and must
    /// retry.
    pub fn new(
        dir: (PathBuf, Bounds),
        queries: Queries,
        clock: Clock,
        metrics: Arc<Metrics>,
        shutdown: watch::Receiver<bool>,
    ) -> Pins {
        Pins(Arc::new(Inner {
            dir,
            files: OnceCell::new(),
            queries,
            sights: Mutex::default(),
            places: Arc::new(Semaphore::new(UPLOADS_MAX)),
            admission: Arc::new(Admission::new(clock.clone(), metrics.clone())),
            clock,
            metrics,
            shutdown,
        }))
    }

    /// Removes what is over its age, now and then, until the end.
    pub async fn keep_bounds(self) {
        let mut shutdown = self.0.shutdown.clone();
        let mut tick = tokio::time::interval(PRUNE_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stopped(&mut shutdown) => return,
                _ = tick.tick() => {}
            }
            if let Err(status) = self.0.open().await {
                tracing::warn!(
                    reason = status.message(),
                    "the collector keeps no pins of agents"
                );
                continue;
            }
            let pins = self.clone();
            // A panic was reported when it happened; the next round tries again.
            let _ = spawn_blocking(move || pins.0.prune()).await;
        }
    }
}

impl Inner {
    /// The files, which are opened where they are not yet.
    async fn open(&self) -> Result<&Files<HostPin>, Status> {
        let open = || async {
            let (dir, bounds) = self.dir.clone();
            // Some thousand heads at most are read.
            let opened = spawn_blocking(move || Files::open(&dir, bounds)).await;
            let opened = opened.map_err(|_| Status::internal("the pins cannot be opened"))?;
            let files = opened.map_err(|error| {
                let reason = with_causes(&error);
                Status::unavailable(format!("this collector keeps no pins: {reason}"))
            })?;
            self.metrics.pins_damaged.inc_by(files.damaged);
            self.measure(&files);
            Ok(files)
        };
        self.files.get_or_try_init(open).await
    }

    /// The files, for those that block: after [`Inner::open`].
    fn files(&self) -> Result<&Files<HostPin>, Status> {
        let opened = self.files.get();
        opened.ok_or_else(|| Status::unavailable("the pins are not open yet"))
    }

    fn prune(&self) {
        let Ok(files) = self.files() else {
            return;
        };
        let Removed {
            age,
            owner: host,
            disk,
            count,
        } = files.prune(self.clock.now_unix_ns());
        let disk = disk + count;
        self.metrics.pins_aged.inc_by(age);
        self.metrics.pins_over_host.inc_by(host);
        self.metrics.pins_over_disk.inc_by(disk);
        if host + disk > 0 {
            tracing::info!(
                host,
                disk,
                "removed pins of agents: the disk budget is used up"
            );
        }
        self.measure(files);
    }

    fn measure(&self, files: &Files<HostPin>) {
        let (pins, bytes) = files.size();
        self.metrics.pins.set(pins);
        self.metrics.pins_bytes.set(bytes);
    }
}
