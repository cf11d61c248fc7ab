//! The agent as its servers see it: what it samples, what it remembers, what it costs.
//!
//! One value shared by the supervisor, the gRPC server and the metrics; it holds the handles of the
//! stages, never their work.

mod alarm;
pub mod budget;
mod captures;
mod catalogue;
mod coverage;
mod environment;
mod losses;
mod runtimes;
mod serving;
mod stacks;
mod status;

use agent_config::triggers::Rule;
use agent_config::{Config, ConfigError, Configuration, Loaded, SamplingEvent};
use aggregate::recorder::{Covered, Recorder, RecorderOptions};
use capture::CaptureTable;
use cgroup::hierarchy::Hierarchy;
use control::Control;
use export::{self, Exporter};
use host::bounds::{Bounds, CacheBounds};
use host::cpus::{self, Arrivals, Change, CpuWatch, Notice, SILENT};
use host::facts::{Environment, cpus_online, effective_uid};
use host::heartbeat::{Heartbeat, Pace};
use host::ids::CpuId;
use host::sync::lock;
use host::time::{Mono, WallAnchor};
use jit::runtimes::Runtimes;
use metrics::Registry;
use perf::cpu_ring::CpuRings;
use perf::error::RingsError;
use perf::event::{EventKind, EventSpec, Features, OpenError};
use perf::others;
use perf::plan::{Limits, Machine, Plan};
use perf::rings::Rings;
use pins::Pins;
use pins::uploader::PinUploader;
use std::cell::Cell;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;
use symbolize::SymbolCounters;
use triggers::Triggers;
use unwind::walk::Depths;

pub use alarm::Alarms;
pub use budget::Budget;
pub use losses::RecentLosses;
use losses::Stalls;
use profile::Ledger;
use profile::text::with_causes;
pub use serving::Watchers;

/// A sampler that has not passed its loop for this long is stuck for good, and the daemon ends so
/// that a new one can start: it wakes every second. A debugger or a freezer that looks for half a
/// minute is survived, and told meanwhile; each restart costs the recorder's hour.
pub const SAMPLER_STUCK: Duration = Duration::from_secs(60);

/// A namer that works this long on one batch waits for a file system: naming takes milliseconds, and
/// seconds for the first batch of a large host.
const NAMER_SLOW: Duration = Duration::from_secs(20);

/// `fp-files` waits 2 s for a file that is opened, and reading all processes or one file's unwind
/// information takes tenths of a second: past this the disk itself does not answer.
const FILES_SLOW: Duration = Duration::from_secs(30);

/// A namer late by this is given its turn: half a default window.
pub const NAMER_LATE: Duration = Duration::from_secs(5);

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
    /// See [`Configuration::load`].
    pub fn load(&self) -> Result<Loaded, ConfigError> {
        let euid = effective_uid();
        Config::load(self.path.as_deref(), std::env::vars_os(), &self.sets, euid)
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
    /// Copy and rings.
    pub plan: Plan,
    /// Most frames of a stack; of a callchain, the sysctl's if that is lower.
    pub depths: Depths,
    /// CPUs that run.
    pub cpus_online: usize,
    /// CPUs with a ring.
    pub cpus_sampled: usize,
    /// What is opened on each CPU.
    pub spec: EventSpec,
    /// The features the kernel took.
    pub features: Features,
}

impl SamplingFacts {
    /// Weight of one sample in the event's unit; 0 when it varies.
    pub fn period(&self) -> u64 {
        match self.event {
            EventKind::CpuClock => 1_000_000_000 / u64::from(self.plan.rate_hz.max(1)),
            EventKind::Cycles => 0,
        }
    }
}

/// How sampling is set up on this machine.
fn sampling_plan(config: &Config, environment: &Environment, limits: Limits) -> Plan {
    let machine = Machine::of(environment);
    Plan::new(&config.sampling, &config.unwind, &machine, limits)
}

/// Opens the rings that the configuration asks for. Hardware cycles that this machine does not have,
/// or that it accepts and never delivers, as some VMs do, are replaced by the CPU clock.
///
/// # Errors
/// When not even the CPU clock can be had.
pub fn open_sampling(
    config: &Config,
    limits: Limits,
) -> Result<(Rings, SamplingFacts), RingsError> {
    let requested = match config.sampling.event {
        SamplingEvent::CpuClock => EventKind::CpuClock,
        SamplingEvent::Cycles => EventKind::Cycles,
    };
    let environment = Environment::read();
    let mut plan = sampling_plan(config, &environment, limits);
    let cpus = environment.cpus_online;
    let sysctl = environment
        .perf_event_max_stack
        .map_or(u16::MAX, |max| max.min(65535) as u16);
    let depth_max = config.sampling.max_stack_depth.min(sysctl);
    let build_ids = !others::read_mappings();
    let spec = |kind, stack_bytes| EventSpec {
        kind,
        rate_hz: plan.rate_hz,
        max_stack_depth: depth_max,
        watermark_bytes: plan.watermark_bytes,
        stack_bytes,
        side_band_bytes: plan.side_band_bytes,
        build_ids,
    };
    let copied = Cell::new(plan.stack_bytes);
    let open = |kind| {
        let with_copies = Rings::open(&cpus, &spec(kind, copied.get()), plan.ring_bytes);
        let Err(RingsError::Open(error)) = &with_copies else {
            return with_copies;
        };
        if copied.get() == 0 || matches!(error, OpenError::Permission { .. }) {
            return with_copies;
        }
        // A kernel that cannot copy user stacks says the same as one without the event at all.
        let without = Rings::open(&cpus, &spec(kind, 0), plan.ring_bytes)?;
        copied.set(0);
        Ok(without)
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
            // The first line: what follows is advice for a start that failed.
            let reason = error.to_string();
            fallback = reason.lines().next().map(str::to_owned);
            (open(EventKind::CpuClock)?, EventKind::CpuClock)
        }
        Err(error) => return Err(error),
    };
    let spec = spec(event, copied.get());
    if spec.stack_bytes < plan.stack_bytes {
        plan.stack_bytes = spec.stack_bytes;
        plan.reduced = Some("the kernel does not copy user stacks".to_owned());
    }
    let facts = SamplingFacts {
        spec,
        features: rings.features(),
        event,
        requested,
        fallback,
        plan,
        depths: Depths {
            chain: usize::from(depth_max),
            walk: usize::from(config.sampling.max_stack_depth),
        },
        cpus_online: cpus.len(),
        cpus_sampled: rings.cpus(),
    };
    Ok((rings, facts))
}

/// The recorder's options from the configuration and the memory budget.
pub fn recorder_options(config: &Config, bounds: Bounds) -> RecorderOptions {
    RecorderOptions {
        retention: config.recorder.retention(),
        budget_bytes: bounds.recorder,
        window: config.windows.length(),
        times_bytes: config.recorder.times_bytes(),
        ..RecorderOptions::default()
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
    pub clock: Arc<WallAnchor>,
    /// Wall time of the start, nanoseconds since the Unix epoch.
    pub started_unix_ns: i64,
    /// The start; the wall clock may be set since.
    pub started: Mono,
    /// The active configuration.
    pub config: Mutex<Loaded>,
    /// Where it came from.
    pub source: ConfigSource,
    /// How sampling was set up.
    pub sampling: Mutex<SamplingFacts>,
    /// Which CPUs run and are sampled.
    pub cpus: Mutex<CpuWatch>,
    /// Whether CPUs have worked since the newest sample.
    pub arrivals: Mutex<Arrivals>,
    /// What the daemon may cost, does cost, and does about it.
    pub budget: Mutex<Budget>,
    /// What the rings missed in the last minutes.
    pub losses: Mutex<RecentLosses>,
    /// Which degradations hold, since when, and what of them was said.
    pub alarms: Mutex<Alarms>,
    /// The ledger of the last minute, and the end of the newest window in it.
    pub recent: Mutex<Option<(Mono, (Ledger, Covered))>>,
    /// Bounds of the caches in force.
    pub bounds: Arc<CacheBounds>,
    /// The symbolizer's counters.
    pub symbols: Arc<SymbolCounters>,
    /// What asking runtimes for containers came to.
    pub containers: Arc<cgroup::containers::Counts>,
    /// The cgroup hierarchy in use.
    pub hierarchy: Hierarchy,
    /// The kernel's settings and the daemon's rights, as they were at the start.
    pub environment: Environment,
    /// False when kptr_restrict hides kernel symbols.
    pub kernel_symbols: bool,
    /// The namer's work on one batch.
    pub namer: Heartbeat,
    /// How soon the namer gets a CPU.
    pub namer_pace: Pace,
    /// The work of `fp-files` on one request.
    pub files: Arc<Heartbeat>,
    /// The way to the collector; none without one.
    pub export: Option<Arc<Exporter>>,
    /// Applies `log.level`.
    pub set_log_level: SetLogLevel,
    /// The processes with generated code.
    pub runtimes: Arc<Runtimes>,
    /// Live clients.
    pub watchers: Arc<Mutex<Watchers>>,
    /// Captures, once they can be taken.
    pub captures: OnceLock<Arc<CaptureTable>>,
    /// Captures that the collector asks for; none without one.
    pub control: OnceLock<Arc<Control>>,
    /// Conditions that pin the recorder's minutes.
    pub triggers: Arc<Triggers>,
    /// The minutes that were pinned.
    pub pins: Arc<Pins>,
    /// Their way to the collector; none without one.
    pub bringer: Option<Arc<PinUploader>>,
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

impl Agent {
    /// Registers the metrics; once.
    pub fn register_metrics(self: &Arc<Self>) -> Arc<Registry> {
        Arc::clone(self.registry.get_or_init(|| catalogue::registry(self)))
    }

    /// How long the namer has worked on one batch, when that is suspiciously long.
    pub fn namer_slow(&self) -> Option<Duration> {
        self.namer.busy_longer_than(NAMER_SLOW, Mono::now())
    }

    /// How long `fp-files` has worked on one request, when that is suspiciously long.
    pub fn files_slow(&self) -> Option<Duration> {
        self.files.busy_longer_than(FILES_SLOW, Mono::now())
    }

    /// Remembers what was missed so far, so that `status` can speak of the last minutes. Called every
    /// ten seconds or more often, by one thread.
    pub fn note_losses(&self, now: Mono) {
        let quality = aggregate::recorder::read(&self.recorder).totals_of_quality();
        let stalls = Stalls::of(&self.sampler);
        let mut losses = lock(&self.losses);
        if let Some(times) = losses.flushes(now, stalls) {
            let facts = lock(&self.sampler.facts);
            let cpus = facts.cpus.iter().filter(|(_, counts)| counts.flushed > 0);
            let cpus: Vec<String> = cpus.map(|(cpu, _)| cpu.0.to_string()).collect();
            let cpus = cpus.join(" ");
            tracing::warn!(
                times,
                cpus,
                "a ring buffer was full and did not move: it was flushed, its samples are lost"
            );
        }
        losses.note(now, (&quality, stalls), || {
            Duration::from_nanos(self.sampler.longest_delay.swap(0, Ordering::Relaxed))
        });
    }

    /// Looks which CPUs run, and has those sampled that came, by what the kernel said of them.
    pub fn watch_cpus(&self, notices: &[Notice]) {
        let Some(online) = cpus_online() else {
            return;
        };
        // Notes what was busy when the newest sample came.
        self.samples_due();
        // No reload in between: its rings would be of another kind.
        let _no_reload = lock(&self.config);
        let silent = self.silent_cpus();
        let changes = lock(&self.cpus).look(Mono::now(), &online, notices, &silent);
        for change in changes {
            match change {
                Change::Left(cpu) => {
                    tracing::info!(cpu = cpu.0, "the CPU is offline");
                    self.sampler.command(sampler::Command::RemoveCpu(cpu));
                }
                Change::Came { cpu, since, left } => match self.open_rings(cpu) {
                    Ok(rings) => {
                        let rings = Box::new(rings);
                        self.sampler
                            .command(sampler::Command::AddCpu { rings, since, left });
                        lock(&self.cpus).sampled(cpu, Mono::now());
                        tracing::info!(cpu = cpu.0, "sampling the CPU");
                    }
                    Err(error) => {
                        let reason = with_causes(&error);
                        tracing::warn!(cpu = cpu.0, reason, "the CPU runs and is not sampled");
                    }
                },
            }
        }
        let mut facts = lock(&self.sampling);
        (facts.cpus_online, facts.cpus_sampled) = lock(&self.cpus).numbers();
    }

    fn open_rings(&self, cpu: CpuId) -> Result<CpuRings, RingsError> {
        let (spec, features, ring_bytes) = {
            let facts = lock(&self.sampling);
            (facts.spec, facts.features, facts.plan.ring_bytes)
        };
        let (rings, took) = CpuRings::open(cpu, &spec, ring_bytes, features)?;
        if took != features {
            return Err(RingsError::Features { cpu: cpu.0 });
        }
        Ok(rings)
    }

    /// Busy CPUs whose event has died in silence, with the time of the last sample. Of other events
    /// than the clock silence says nothing.
    fn silent_cpus(&self) -> Vec<(CpuId, Mono)> {
        if lock(&self.sampling).event != EventKind::CpuClock {
            return Vec::new();
        }
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let busy = lock(&self.cpus).were_busy(cpus::busy_ticks(&stat));
        let facts = lock(&self.sampler.facts);
        let newest = facts.cpus.iter().map(|(cpu, counts)| (*cpu, counts.newest));
        newest
            .filter(|(cpu, newest)| busy.contains(cpu) && facts.horizon.since(*newest) > SILENT)
            .collect()
    }

    /// True when CPUs have worked for so long since the newest sample that there should be others.
    fn samples_due(&self) -> bool {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let busy = cpus::busy_ticks(&stat);
        let busy = (!busy.is_empty()).then(|| busy.values().sum());
        let newest = Mono(self.sampler.newest_sample.load(Ordering::Relaxed));
        let rate_hz = lock(&self.sampling).plan.rate_hz;
        !lock(&self.arrivals).still(newest, busy, rate_hz)
    }

    /// Has windows end at multiples of their length in wall time from the next one on.
    pub fn align_windows(&self, length: Duration) {
        self.sampler.command(sampler::Command::Windows {
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

    /// Has the sampler go over to rings that were opened. `reduced`: the daemon's budget allows
    /// less than is configured. To be called with the configuration's lock held.
    fn sample_with(&self, rings: Rings, facts: SamplingFacts, reduced: bool) {
        self.sampler.command(sampler::Command::Replace {
            rings: Box::new(rings),
            depths: facts.depths,
            period: facts.period(),
            reduced,
        });
        *lock(&self.sampling) = facts;
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
        if touches("sampling.") || touches("unwind.") {
            // What the budget has limited stays limited, as far as the new configuration allows.
            let full = sampling_plan(&new.config, &Environment::read(), Limits::NONE);
            let (level, limits) = {
                let budget = lock(&self.budget);
                budget.cpu.level_for(full.stack_bytes, full.rate_hz)
            };
            let (rings, facts) =
                open_sampling(&new.config, limits).map_err(ReloadError::Sampling)?;
            {
                let mut budget = lock(&self.budget);
                let cpu = &mut budget.cpu;
                cpu.set_full(full.stack_bytes, full.rate_hz, Mono::now());
                budget.copies = budget::copy_governor(&new.config, &full);
            }
            let mut recorder = self
                .recorder
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            recorder.set_event(facts.event.name(), facts.event.unit());
            drop(recorder);
            self.sample_with(rings, facts, level > 0);
        }
        if touches("windows.") {
            self.align_windows(new.config.windows.length());
        }
        if touches("windows.") || touches("recorder.") || touches("budget.") {
            self.configure_budget(&new.config);
        }
        if touches("recorder.") {
            self.keep_times(&new.config);
            self.pins.set_budget(new.config.recorder.pins_bytes());
        }
        if touches("triggers")
            && let Err(error) = self.configure_triggers(&new.config)
        {
            // The rest is in force by now. Their thread is tried again with the next change.
            tracing::error!(%error, "failed to start the thread of triggers");
        }
        if let (true, Some(exporter)) = (touches("collector."), &self.export) {
            exporter.configure(export::Settings::of(&new.config.collector));
        }
        if let (true, Some(control)) = (touches("captures."), self.control.get()) {
            control.allow(new.config.captures.remote);
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
