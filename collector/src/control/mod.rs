//! Captures over the fleet: agents keep a control stream open, and one request of a person becomes
//! a command to each of them.
//!
//! ```text
//! agents ──Control──▶ stream ──▶ agent_registry     (who is there, and their commands)
//!                       │            ▲
//!                    reports      commands
//!                       ▼            │
//!                 host_capture ─▶ fanout ──▶ merge  (blocking, one host after the other)
//!                 (a task a host)   │
//! people ──Capture──▶ service ──▶ select            (hosts with samples ∩ connected hosts)
//! ```
//!
//! The result of a capture is stored in a file (`kept.rs`), which its link opens for everyone who
//! may see it (`replay.rs`), and which is a part of the answers for its profile type
//! (`captured.rs`). Hosts need no open port. All limits are in `limits.rs`; the results of
//! all fan-outs together may use as much memory as one query (`memory.rs`).

mod agent_registry;
mod cancel;
mod captured;
mod fanout;
mod history;
mod host_capture;
mod kept;
pub mod limits;
mod merge;
mod peer;
mod replay;
mod select;
mod service;
mod stream;

use crate::audit::Audit;
use crate::evidence::{Bounds, Files};
use crate::identity::Fleet;
use crate::ingest::stopped;
use crate::memory::MemoryPool;
use crate::metrics::Metrics;
use crate::query::Queries;
use crate::store::ConnectedHost;
use crate::time::Clock;
use agent_registry::AgentRegistry;
use captured::Captured;
use history::Fanouts;
use kept::KeptCaptures;
pub(crate) use kept::is_for_parts;
use limits::{ANNOUNCE_INTERVAL, PRUNE_INTERVAL, SELECT_RANGE_NS, Timeouts};
use profile::text::with_causes;
use proto::collector::KeptCapture;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::{Semaphore, watch};
use tokio::time::MissedTickBehavior;

/// Unit: nanoseconds.
const SECOND_NS: i64 = 1_000_000_000;

/// Limits of control streams and captures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlOptions {
    /// Most connected agents. Further ones must retry later.
    pub streams: usize,
    /// Memory for results. Unit: bytes.
    pub memory_bytes: usize,
    /// For how long agents are waited for.
    pub timeouts: Timeouts,
    /// Address at which other collectors on the same store reach this one; `None`: its agents are
    /// not announced to them.
    pub advertise: Option<String>,
    /// Where captures are kept.
    pub captures_dir: PathBuf,
    /// Their limits there.
    pub captures: Bounds,
}

/// Answers agents and people; clones share everything.
#[derive(Clone)]
pub struct Control(Arc<Inner>);

struct Inner {
    registry: Arc<AgentRegistry>,
    /// Who the hosts are that prove it; none where no other machine is listened to.
    fleet: Option<Arc<Fleet>>,
    fanouts: Arc<Fanouts>,
    kept: Arc<KeptCaptures>,
    memory: Arc<MemoryPool>,
    queries: Queries,
    options: ControlOptions,
    places: Arc<Semaphore>,
    clock: Clock,
    audit: Audit,
    metrics: Arc<Metrics>,
    shutdown: watch::Receiver<bool>,
}

impl Control {
    /// No agent is connected yet. Streams and fan-outs end when `shutdown` becomes true. Captures
    /// are on record in `audit`.
    pub fn new(
        queries: Queries,
        options: ControlOptions,
        fleet: Option<Arc<Fleet>>,
        (clock, audit): (Clock, Audit),
        metrics: Arc<Metrics>,
        shutdown: watch::Receiver<bool>,
    ) -> Control {
        let dir = (options.captures_dir.clone(), options.captures);
        let kept = Arc::new(KeptCaptures::new(dir, clock.clone(), metrics.clone()));
        queries.captured_by(Captured::new(kept.clone()));
        Control(Arc::new(Inner {
            kept,
            registry: Arc::new(AgentRegistry::new(metrics.clone())),
            fleet,
            fanouts: Arc::new(Fanouts::new(metrics.clone())),
            memory: MemoryPool::new(options.memory_bytes, metrics.clone(), |m| &m.control_bytes),
            queries,
            places: Arc::new(Semaphore::new(options.streams)),
            options,
            clock,
            audit,
            metrics,
            shutdown,
        }))
    }

    /// Names of hosts that were removed so lately that there are samples of them to choose by.
    async fn removed_hosts(&self) -> BTreeSet<String> {
        let Some(fleet) = self.0.fleet.clone() else {
            return BTreeSet::new();
        };
        let since = fleet.now() - SELECT_RANGE_NS / SECOND_NS;
        let reading = tokio::task::spawn_blocking(move || fleet.registry.removed_since(since));
        match reading.await {
            Ok(Ok(names)) => names,
            Ok(Err(error)) => {
                tracing::warn!("{}", with_causes(&error));
                BTreeSet::new()
            }
            Err(_) => BTreeSet::new(),
        }
    }

    /// Removes kept captures that are over their age, now and then, until the end.
    pub async fn keep_bounds(self) {
        let mut shutdown = self.0.shutdown.clone();
        let mut tick = tokio::time::interval(PRUNE_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stopped(&mut shutdown) => return,
                _ = tick.tick() => {}
            }
            if let Err(status) = self.open_kept().await {
                tracing::warn!(reason = status.message(), "the collector keeps no captures");
                continue;
            }
            let kept = self.0.kept.clone();
            // A panic was reported when it happened; the next round tries again.
            let _ = tokio::task::spawn_blocking(move || kept.prune()).await;
        }
    }

    /// The files of kept captures. Once they are open, numbers go on after those that were given
    /// before a restart; until then, nobody knows which those are.
    async fn open_kept(&self) -> Result<&Files<KeptCapture>, tonic::Status> {
        let fanouts = &self.0.fanouts;
        self.0.kept.open(|last| fanouts.go_on_from(last)).await
    }

    /// Announces the connected agents to the other collectors on the store, until the end. Returns
    /// at once if there is nobody to inform.
    pub async fn announce(self) {
        let Some(collector) = self.0.options.advertise.clone() else {
            return;
        };
        let mut shutdown = self.0.shutdown.clone();
        let mut tick = tokio::time::interval(ANNOUNCE_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut failed = false;
        loop {
            tokio::select! {
                () = stopped(&mut shutdown) => return,
                _ = tick.tick() => {}
            }
            // A failure is logged when it starts, not each time.
            match self.announce_once(&collector).await {
                Ok(()) => failed = false,
                Err(status) if !failed => {
                    failed = true;
                    tracing::warn!(
                        "other collectors do not know which agents are connected here: {}",
                        status.message()
                    );
                }
                Err(_) => {}
            }
        }
    }

    /// Announces them once.
    ///
    /// # Errors
    /// When the store does not take it.
    pub async fn announce_once(&self, collector: &str) -> Result<(), tonic::Status> {
        let seen_unix_ns = self.0.clock.now_unix_ns();
        let all = self.0.registry.all();
        let hosts = all.iter().map(|agent| {
            let (facts, host_id) = (agent.facts(), &agent.key.host_id);
            ConnectedHost {
                host_id: host_id.clone(),
                hostname: facts.name(host_id).to_owned(),
                labels: facts.labels,
                collector: collector.to_owned(),
                seen_unix_ns,
            }
        });
        self.0.queries.announce_hosts(hosts.collect()).await
    }
}
