//! What is sampled: opens the rings that the configuration and the kernel allow, and follows CPUs
//! that come and go.

use agent_config::{Config, SamplingEvent};
use host::cpus::{self, Arrivals, Change, CpuNotice, CpuWatch, SILENT};
use host::facts::Environment;
use host::ids::CpuId;
use host::sync::lock;
use host::time::MonotonicTime;
use perf::cpu_ring::CpuRings;
use perf::error::RingsError;
use perf::event::{EventKind, EventSpec, Features, OpenError};
use perf::plan::{Limits, Machine, Plan};
use perf::rings::Rings;
use profile::text::with_causes;
use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use unwind::walk::Depths;

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
pub(super) fn sampling_plan(config: &Config, environment: &Environment, limits: Limits) -> Plan {
    let machine = Machine::of(environment);
    Plan::new(&config.sampling, &config.unwind, &machine, limits)
}

/// Opens the rings that the configuration asks for. Hardware cycles that this machine does not
/// have, or that it accepts and never delivers, as some VMs do, are replaced by the CPU clock.
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
    let spec = |kind, stack_bytes| EventSpec {
        kind,
        rate_hz: plan.rate_hz,
        max_stack_depth: depth_max,
        watermark_bytes: plan.watermark_bytes,
        stack_bytes,
        side_band_bytes: plan.side_band_bytes,
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

/// The sampler, and what it samples.
pub struct Sampling {
    /// Its counters and commands.
    pub sampler: Arc<sampler::SamplerHandle>,
    /// How sampling was set up.
    pub facts: Mutex<SamplingFacts>,
    /// Which CPUs run and are sampled.
    pub cpus: Mutex<CpuWatch>,
    /// Whether CPUs have worked since the newest sample.
    pub arrivals: Mutex<Arrivals>,
}

impl Sampling {
    /// Looks which CPUs run, and has those sampled that came, by what the kernel said of them. To
    /// be called with the configuration's lock held: the rings of a reload are of another kind.
    pub(super) fn watch_cpus(&self, online: &[CpuId], notices: &[CpuNotice]) {
        let silent = self.silent_cpus();
        let changes = lock(&self.cpus).look(MonotonicTime::now(), online, notices, &silent);
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
                        lock(&self.cpus).sampled(cpu, MonotonicTime::now());
                        tracing::info!(cpu = cpu.0, "sampling the CPU");
                    }
                    Err(error) => {
                        let reason = with_causes(&error);
                        tracing::warn!(cpu = cpu.0, reason, "the CPU is online but not sampled");
                    }
                },
            }
        }
        let mut facts = lock(&self.facts);
        (facts.cpus_online, facts.cpus_sampled) = lock(&self.cpus).numbers();
    }

    fn open_rings(&self, cpu: CpuId) -> Result<CpuRings, RingsError> {
        let (spec, features, ring_bytes) = {
            let facts = lock(&self.facts);
            (facts.spec, facts.features, facts.plan.ring_bytes)
        };
        let (rings, took) = CpuRings::open(cpu, &spec, ring_bytes, features)?;
        if took != features {
            return Err(RingsError::Features { cpu: cpu.0 });
        }
        Ok(rings)
    }

    /// Returns busy CPUs with an event that died silently, with the time of the last sample.
    /// Silence is a sign only for the clock's event; other events may just not occur.
    fn silent_cpus(&self) -> Vec<(CpuId, MonotonicTime)> {
        if lock(&self.facts).event != EventKind::CpuClock {
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
    pub(super) fn samples_due(&self) -> bool {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let busy = cpus::busy_ticks(&stat);
        let busy = (!busy.is_empty()).then(|| busy.values().sum());
        let newest = MonotonicTime(self.sampler.newest_sample.load(Ordering::Relaxed));
        let rate_hz = lock(&self.facts).plan.rate_hz;
        !lock(&self.arrivals).still(newest, busy, rate_hz)
    }

    /// Switches the sampler to newly opened rings. `reduced`: the daemon's budget allows less than
    /// configured. Call it with the configuration's lock held.
    pub(super) fn sample_with(&self, rings: Rings, facts: SamplingFacts, reduced: bool) {
        self.sampler.command(sampler::Command::Replace {
            rings: Box::new(rings),
            depths: facts.depths,
            period: facts.period(),
            reduced,
        });
        *lock(&self.facts) = facts;
    }
}
