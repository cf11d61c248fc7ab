//! The agent as seen by its servers: what it samples, what it stores, what it costs.
//!
//! It is one value shared by the supervisor, the gRPC server and the metrics. It holds the handles
//! of the stages and never does their work.

mod advice;
mod alarm;
pub mod budget;
mod captures;
mod catalogue;
mod coverage;
mod environment;
mod fleet;
mod health;
mod losses;
mod runtimes;
mod sampling;
mod serving;
mod settings;
mod stacks;
mod status;
mod uplink;

pub use alarm::Alarms;
pub use budget::Budget;
pub use fleet::Fleet;
pub use health::StageHealth;
pub use losses::RecentLosses;
pub use sampling::{Sampling, SamplingFacts, open_sampling};
pub use serving::Watchers;
pub use settings::{ConfigSource, ReloadError, Reloaded, SetLogLevel, Settings};
pub use uplink::Uplink;

use agent_config::triggers::Rule;
use agent_config::{Config, CpuMetrics};
use aggregate::programs::ProgramTable;
use aggregate::recorder::{CpuBy, Recorder, RecorderOptions};
use capture::CaptureTable;
use cgroup::hierarchy::Hierarchy;
use host::bounds::{Bounds, CacheBounds};
use host::cpus::CpuNotice;
use host::facts::{Environment, cpus_online};
use host::sync::lock;
use host::time::{MonotonicTime, WallAnchor};
use jit::runtimes::Runtimes;
use metrics::{Family, OwnCost};
use pins::Pins;
use sandbox::Sandbox;
use std::sync::{Arc, Mutex, OnceLock, RwLock};
use std::time::Duration;
use symbolize::SymbolCounters;
use triggers::Triggers;

/// A sampler that has not passed its loop for this long is stuck for good, and the daemon ends so
/// that a new one can start: the loop wakes every second. A debugger or a freezer that stops it for
/// half a minute is survived, and reported meanwhile; each restart costs the recorder's hour.
pub const SAMPLER_STUCK: Duration = Duration::from_secs(60);

/// A symbolizer late by this is given its turn: half a default window.
pub const SYMBOLIZER_LATE: Duration = Duration::from_secs(5);

/// The recorder's options from the configuration and the memory budget.
pub fn recorder_options(config: &Config, bounds: Bounds) -> RecorderOptions {
    RecorderOptions {
        retention: config.recorder.retention(),
        budget_bytes: bounds.recorder,
        window: config.windows.length(),
        times_bytes: config.recorder.times_bytes(),
        cpu_by: match config.metrics.cpu_by {
            CpuMetrics::None => None,
            CpuMetrics::Unit => Some(CpuBy::Unit),
            CpuMetrics::Container => Some(CpuBy::Container),
        },
        ..RecorderOptions::default()
    }
}

/// See the module.
pub struct Agent {
    /// Facts found at the start.
    pub start: StartFacts,
    /// The configuration in force.
    pub settings: Settings,
    /// The sampler, and what it samples.
    pub sampling: Sampling,
    /// The flight recorder.
    pub recorder: RwLock<Recorder>,
    /// The anchor of wall time.
    pub clock: Arc<WallAnchor>,
    /// The daemon's budget.
    pub budget: BudgetInForce,
    /// How its stages do.
    pub health: StageHealth,
    /// Counters of stages without a handle here.
    pub counters: StageCounters,
    /// The way to the collector; none without one.
    pub uplink: OnceLock<Uplink>,
    /// The host as a member of a fleet.
    pub fleet: Arc<Fleet>,
    /// Captures, once they can be taken.
    pub captures: OnceLock<Arc<CaptureTable>>,
    /// Conditions that pin the recorder's minutes.
    pub triggers: Arc<Triggers>,
    /// The minutes that were pinned.
    pub pins: Arc<Pins>,
    /// The state of the daemon's sandbox.
    pub sandbox: Arc<Sandbox>,
    /// Live clients.
    pub watchers: Arc<Mutex<Watchers>>,
}

/// What the daemon found when it started.
pub struct StartFacts {
    /// Wall time, nanoseconds since the Unix epoch.
    pub started_unix_ns: i64,
    /// The same moment by the monotonic clock, because the wall clock may be set later.
    pub started: MonotonicTime,
    /// The cgroup hierarchy in use.
    pub hierarchy: Hierarchy,
    /// The kernel's settings and the daemon's rights.
    pub environment: Environment,
    /// False when kptr_restrict hides kernel symbols.
    pub kernel_symbols: bool,
}

/// The daemon's budget, its usage, and the measures in force.
pub struct BudgetInForce {
    /// Usage, decisions and rejected changes.
    pub state: Mutex<Budget>,
    /// The bounds of the caches that follow from it.
    pub bounds: Arc<CacheBounds>,
}

/// Counters of stages, by those who own them.
pub struct StageCounters {
    /// The symbolizer's.
    pub symbols: Arc<SymbolCounters>,
    /// Counters of container lookups.
    pub containers: Arc<cgroup::containers::ProviderCounts>,
    /// The processes with generated code.
    pub runtimes: Arc<Runtimes>,
    /// Builds of programs that services run.
    pub programs: Arc<ProgramTable>,
}

impl Agent {
    /// The daemon's own metrics as they are now. Reads /proc and waits for locks.
    pub fn metrics(&self) -> Vec<Family> {
        catalogue::families(self, &OwnCost::read())
    }

    /// Looks which CPUs run, and has those sampled that came, by what the kernel said of them.
    pub fn watch_cpus(&self, notices: &[CpuNotice]) {
        let Some(online) = cpus_online() else {
            return;
        };
        // Notes what was busy when the newest sample came.
        self.sampling.samples_due();
        // No reload in between: its rings would be of another kind.
        let _no_reload = lock(&self.settings.active);
        self.sampling.watch_cpus(&online, notices);
    }

    /// Makes windows end at multiples of their length in wall time from the next one on.
    pub fn align_windows(&self, length: Duration) {
        self.sampling.sampler.command(sampler::Command::Windows {
            length,
            boundary: self.clock.next_multiple(length),
        });
    }

    /// Puts triggers in force.
    ///
    /// # Errors
    /// When their thread cannot be started.
    pub fn configure_triggers(&self, config: &Config) -> std::io::Result<()> {
        // The configuration was settled: its triggers can be read.
        let rules = Rule::all(&config.triggers).map_err(std::io::Error::other)?;
        self.triggers.configure(rules)
    }
}
