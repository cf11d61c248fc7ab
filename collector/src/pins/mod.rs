//! Pins of agents: the minutes around what triggers saw, and what was captured then, kept for as long as the
//! collector's configuration says, whatever becomes of the host and of the windows in the store.
//!
//! A pin is a profile of its own, as its agent had it: nothing of it comes from the store, so windows that were lost on
//! the way are in it, and it keeps the times of its samples. Agents bring each pin once it has closed, and again when
//! its capture came later (`service.rs`); `files.rs` has them on the collector's own disk, with every engine of the
//! store. Every bound is in `limits.rs`.

mod admission;
mod files;
mod format;
pub mod limits;
mod service;
mod take;

pub use files::{Bounds, Files, OpenError};

use crate::ingest::stopped;
use crate::metrics::Metrics;
use crate::query::Queries;
use crate::time::Clock;
use admission::Admission;
use files::Removed;
use limits::{PRUNE_INTERVAL, UPLOADS_MAX};
use std::sync::Arc;
use tokio::sync::{Semaphore, watch};
use tokio::time::MissedTickBehavior;
use tonic::Status;

/// Answers agents and people; clones share everything.
#[derive(Clone)]
pub struct Pins(Arc<Inner>);

struct Inner {
    /// Or why there are none.
    files: Result<Files, String>,
    queries: Queries,
    places: Arc<Semaphore>,
    admission: Arc<Admission>,
    clock: Clock,
    metrics: Arc<Metrics>,
    shutdown: watch::Receiver<bool>,
}

impl Pins {
    /// Pins of a directory. Where it cannot be used agents keep theirs and are told to come again.
    pub fn new(
        files: Result<Files, String>,
        queries: Queries,
        clock: Clock,
        metrics: Arc<Metrics>,
        shutdown: watch::Receiver<bool>,
    ) -> Pins {
        let pins = Pins(Arc::new(Inner {
            files,
            queries,
            places: Arc::new(Semaphore::new(UPLOADS_MAX)),
            admission: Arc::new(Admission::new(clock.clone(), metrics.clone())),
            clock,
            metrics,
            shutdown,
        }));
        match &pins.0.files {
            Ok(files) => {
                pins.0.metrics.pins_damaged.add(files.damaged);
                pins.0.measure(files);
            }
            Err(reason) => tracing::warn!(reason, "pins of agents are not kept"),
        }
        pins
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
            let pins = self.clone();
            // A panic was told when it happened; the next round tries again.
            let _ = tokio::task::spawn_blocking(move || pins.0.prune()).await;
        }
    }
}

impl Inner {
    fn files(&self) -> Result<&Files, Status> {
        self.files
            .as_ref()
            .map_err(|reason| Status::unavailable(format!("pins are not kept here: {reason}")))
    }

    fn prune(&self) {
        let Ok(files) = &self.files else {
            return;
        };
        let Removed { age, host, disk } = files.prune(self.clock.now_unix_ns());
        self.metrics.pins_aged.add(age);
        self.metrics.pins_over_host.add(host);
        self.metrics.pins_over_disk.add(disk);
        if host + disk > 0 {
            tracing::info!(host, disk, "pins of agents removed: their room is used up");
        }
        self.measure(files);
    }

    fn measure(&self, files: &Files) {
        let (pins, bytes) = files.size();
        self.metrics.pins.set(pins);
        self.metrics.pins_bytes.set(bytes);
    }
}
