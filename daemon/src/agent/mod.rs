//! The agent as its servers see it: what it samples, what it remembers, what it costs.
//!
//! One value shared by the supervisor, the gRPC server and the metrics; it holds the handles of the
//! stages, never their work.

mod catalogue;
mod host;
mod status;

use crate::aggregate::recorder::{Recorder, RecorderOptions};
use crate::cgroup::hierarchy::Hierarchy;
use crate::config::{Config, ConfigError, Loaded, SamplingEvent};
use crate::metrics::Registry;
use crate::perf::environment::Environment;
use crate::perf::event::{EventKind, EventSpec, Feature, OpenError};
use crate::perf::rings::{Rings, RingsError};
use crate::sampler;
use crate::symbolize::SymbolCounters;
use crate::time::{Mono, WallAnchor};
use crate::unwind::Unwinder;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;

pub use host::Watchers;

/// A sampler that has not passed its loop for this long is stuck: it wakes every second.
pub const SAMPLER_STUCK: Duration = Duration::from_secs(30);

/// A namer that works this long on one batch waits for a file system: naming takes milliseconds, and
/// seconds for the first batch of a large host.
const NAMER_SLOW: Duration = Duration::from_secs(20);

/// Where the configuration comes from; read again at a reload.
#[derive(Clone, Debug)]
pub struct ConfigSource {
    /// `--config`.
    pub path: Option<PathBuf>,
    /// `--set` and what other flags stand for.
    pub sets: Vec<String>,
}

impl ConfigSource {
    /// Reads file, environment and flags.
    ///
    /// # Errors
    /// See [`Config::load`].
    pub fn load(&self) -> Result<Loaded, ConfigError> {
        Config::load(self.path.as_deref(), std::env::vars_os(), &self.sets)
    }
}

/// How sampling was set up in the end.
#[derive(Clone, Debug)]
pub struct SamplingFacts {
    /// The event that runs.
    pub event: EventKind,
    /// The event that was asked for.
    pub requested: EventKind,
    /// Why another event runs than was asked for.
    pub fallback: Option<String>,
    /// Samples a second on each CPU.
    pub rate_hz: u32,
    /// Bytes of each ring.
    pub ring_bytes: usize,
    /// Frames at which a callchain is cut: the lower of the configuration and the sysctl.
    pub depth_max: u16,
    /// CPUs online when the rings were opened.
    pub cpus_online: usize,
    /// CPUs with a ring.
    pub cpus_sampled: usize,
    /// Features the kernel refused.
    pub missing: &'static [Feature],
}

impl SamplingFacts {
    /// Weight of one sample in the event's unit; 0 when it varies.
    pub fn period(&self) -> u64 {
        match self.event {
            EventKind::CpuClock => 1_000_000_000 / u64::from(self.rate_hz.max(1)),
            EventKind::Cycles => 0,
        }
    }

    /// The unwinder that goes with it.
    pub fn unwinder(&self) -> Unwinder {
        Unwinder {
            depth_max: usize::from(self.depth_max),
        }
    }
}

/// Opens the rings that the configuration asks for. Hardware cycles that this machine does not have,
/// or that it accepts and never delivers, as some VMs do, are replaced by the CPU clock.
///
/// # Errors
/// When not even the CPU clock can be had.
pub fn open_sampling(config: &Config) -> Result<(Rings, SamplingFacts), RingsError> {
    let requested = match config.sampling.event {
        SamplingEvent::CpuClock => EventKind::CpuClock,
        SamplingEvent::Cycles => EventKind::Cycles,
    };
    let environment = Environment::read();
    let cpus = environment.cpus_online;
    let sysctl = environment
        .perf_event_max_stack
        .map_or(u16::MAX, |max| max.min(65535) as u16);
    let depth_max = config.sampling.max_stack_depth.min(sysctl);
    let ring_bytes = config.sampling.ring_bytes();
    let open = |kind| {
        let spec = EventSpec {
            kind,
            rate_hz: config.sampling.rate_hz,
            max_stack_depth: depth_max,
            // Half of the ring: the rest lasts seconds at 99 Hz while the sampler wakes up, and under
            // an ordinary load the tick comes first.
            watermark_bytes: ring_bytes / 2,
        };
        Rings::open(&cpus, &spec, ring_bytes)
    };
    let mut fallback = None;
    let (rings, event) = match open(requested) {
        Ok(rings) if requested == EventKind::Cycles && !rings.deliver_samples() => {
            let reason = "the machine accepts the event `cycles` but delivers no samples";
            fallback = Some(reason.to_owned());
            (open(EventKind::CpuClock)?, EventKind::CpuClock)
        }
        Ok(rings) => (rings, requested),
        Err(RingsError::Open(error @ OpenError::Unsupported { .. }))
            if requested != EventKind::CpuClock =>
        {
            fallback = Some(error.to_string());
            (open(EventKind::CpuClock)?, EventKind::CpuClock)
        }
        Err(error) => return Err(error),
    };
    let facts = SamplingFacts {
        event,
        requested,
        fallback,
        rate_hz: config.sampling.rate_hz,
        ring_bytes,
        depth_max,
        cpus_online: cpus.len(),
        cpus_sampled: rings.cpus(),
        missing: rings.features().missing(),
    };
    Ok((rings, facts))
}

/// The recorder's options from the configuration.
pub fn recorder_options(config: &Config) -> RecorderOptions {
    RecorderOptions {
        retention: config.recorder.retention(),
        budget_bytes: config.recorder.budget_bytes(),
        window: config.windows.length(),
    }
}

/// Sets the least important level that is logged; given by `main`, which owns the subscriber.
pub type SetLogLevel = Box<dyn Fn(&Config) + Send + Sync>;

/// See the module.
pub struct Agent {
    /// The sampler's counters and commands.
    pub sampler: Arc<sampler::Shared>,
    /// The flight recorder.
    pub recorder: RwLock<Recorder>,
    /// The anchor of wall time.
    pub clock: WallAnchor,
    /// Wall time of the start, nanoseconds since the Unix epoch.
    pub started_unix_ns: i64,
    /// The active configuration.
    pub config: Mutex<Loaded>,
    /// Where it came from.
    pub source: ConfigSource,
    /// How sampling was set up.
    pub sampling: Mutex<SamplingFacts>,
    /// The symbolizer's counters.
    pub symbols: Arc<SymbolCounters>,
    /// The cgroup hierarchy in use.
    pub hierarchy: Hierarchy,
    /// The kernel's settings and the daemon's rights, as they were at the start.
    pub environment: Environment,
    /// False when kptr_restrict hides kernel symbols.
    pub kernel_symbols: bool,
    /// Monotonic time at which the namer began its batch; 0 while it waits for one.
    pub namer_busy_since: AtomicU64,
    /// Applies `log.level`.
    pub set_log_level: SetLogLevel,
    /// Live clients.
    pub watchers: Arc<Mutex<Watchers>>,
    /// The daemon's own metrics, once they are registered.
    pub registry: OnceLock<Arc<Registry>>,
}

/// What a reload did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// Keys in force with a new value.
    pub changed: Vec<&'static str>,
    /// Keys with a new value that take a restart.
    pub needs_restart: Vec<&'static str>,
}

/// Why a reload was refused. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Sampling as it asks for.
    #[error("failed to sample as the new configuration asks")]
    Sampling(#[source] RingsError),
}

/// The error and what caused it, each once.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// Locks a mutex whose value stays sound when a holder panics: plain data, replaced whole.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Agent {
    /// Registers the metrics; once.
    pub fn register_metrics(self: &Arc<Self>) -> Arc<Registry> {
        Arc::clone(self.registry.get_or_init(|| catalogue::registry(self)))
    }

    /// How long the namer has worked on one batch, when that is suspiciously long.
    pub fn namer_slow(&self) -> Option<Duration> {
        let since = Mono(self.namer_busy_since.load(Ordering::Relaxed));
        let age = Mono::now().since(since);
        (since != Mono(0) && age > NAMER_SLOW).then_some(age)
    }

    /// Says whether the daemon does its work.
    ///
    /// # Errors
    /// The reason, when the sampler does not move.
    pub fn health(&self) -> Result<(), String> {
        let heartbeat = Mono(self.sampler.heartbeat.load(Ordering::Relaxed));
        let age = Mono::now().since(heartbeat);
        if age > SAMPLER_STUCK {
            return Err(format!("the sampler has not moved for {} s", age.as_secs()));
        }
        if let Some(age) = self.namer_slow() {
            return Err(format!(
                "the namer has worked on one window for {} s",
                age.as_secs()
            ));
        }
        Ok(())
    }

    /// Reads the configuration again and puts in force what can be: all of it, or nothing.
    ///
    /// # Errors
    /// [`ReloadError`]; the active configuration stays.
    pub fn reload(&self) -> Result<Reloaded, ReloadError> {
        let new = self.source.load()?;
        let mut active = lock(&self.config);
        let diff = active.config.diff(&new.config);
        let touches = |section: &str| diff.changed.iter().any(|key| key.starts_with(section));
        if touches("sampling.") {
            let (rings, facts) = open_sampling(&new.config).map_err(ReloadError::Sampling)?;
            let mut recorder = self
                .recorder
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            recorder.set_event(facts.event.name(), facts.event.unit());
            drop(recorder);
            self.sampler.command(sampler::Command::Replace {
                rings: Box::new(rings),
                unwinder: facts.unwinder(),
                period: facts.period(),
            });
            *lock(&self.sampling) = facts;
        }
        if touches("windows.") {
            self.sampler
                .command(sampler::Command::WindowLength(new.config.windows.length()));
        }
        if touches("windows.") || touches("recorder.") {
            let mut recorder = self
                .recorder
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            recorder.set_options(recorder_options(&new.config));
            recorder.maintain();
        }
        if touches("log.") {
            (self.set_log_level)(&new.config);
        }
        // Only what is in force now: what takes a restart stays as it is.
        active.config.adopt(&new.config);
        active.file = new.file;
        Ok(Reloaded {
            changed: diff.changed,
            needs_restart: diff.needs_restart,
        })
    }
}
