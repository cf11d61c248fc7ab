//! Implements what captures need of the daemon: events and sampler, the flight recorder, targets,
//! and their cost.

use super::Agent;
use super::sampling::sampling_plan;
use agent_config::{self, Config};
use aggregate::recorder::{self, RecorderQuery, WindowRange, read};
use aggregate::recorders::Recorders;
use capture::CaptureTable;
use capture::backend::{self, CaptureBackend, Followed, OverloadPolicy, Slowed, Started};
use capture::engine::{self, Engine, EngineError, Fault, OffCpuCapture};
use capture::event::Event;
use capture::offcpu;
use capture::request::{CaptureSpec, OFF_CPU, Unwind};
use capture::target::{self, Scope, Sight};
use cgroup::containers::Containers;
use control::{Control, Policy};
use host::ids::CaptureId;
use host::sync::lock;
use host::time::MonotonicTime;
use metrics::thread_cpu_ns;
use perf::plan::{Limits, Machine};
use perf::probe::Every;
use perf::rings::HORIZON;
use profile::text::with_causes;
use profile::{Profile, Selector, Withholding};
use sampler::Command;
use sampler::filter::Filter;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;
use tonic::Status;

/// Longest wait for the flight recorder's last second, as of `Host::flush`.
const FLUSH_MAX: Duration = Duration::from_secs(2);

/// Samples a second on each CPU of an event that may happen a million times a second, where nobody
/// asked for more: a hundredth of a CPU. Less, and a capture of seconds is no flame graph.
const DENSE_HZ_MAX: u32 = 4 * capture::event::RATE_HZ;

/// Cost of a wait with a stack copy of 16 KiB, as a multiple of one with
/// [`NEAR_BYTES`](capture::offcpu::NEAR_BYTES): `captures.switches_max` is divided by it.
const COPY_ALL_COST: u32 = 3;

/// Threads that take and name samples.
const THREADS: [&str; 2] = ["fp-sampler", "fp-symbolize"];

/// The agent for captures. Holds no reference that would keep it alive.
struct AgentWorld {
    agent: Weak<Agent>,
    /// `fp-containers` ends when nobody has this any more.
    containers: Mutex<Containers>,
    engine: Engine,
    /// Folders in /proc of [`THREADS`], once they run.
    threads: OnceLock<Vec<PathBuf>>,
}

impl Agent {
    /// Starts accepting captures, into `recorders`. Call it once.
    pub fn take_captures(self: &Arc<Self>, containers: Containers, recorders: Arc<Recorders>) {
        let captures = self.captures.get_or_init(|| {
            let machine = Machine::of(&self.start.environment);
            let world = AgentWorld {
                agent: Arc::downgrade(self),
                engine: Engine::new(Arc::clone(&self.sampling.sampler), machine),
                containers: Mutex::new(containers),
                threads: OnceLock::new(),
            };
            CaptureTable::new(Arc::new(world), recorders)
        });
        self.triggers.set_capturing(Arc::new(Arc::clone(captures)));
    }

    /// Makes the sampler record when each sample was taken, if the configuration has memory for it.
    pub fn keep_times(&self, config: &Config) {
        let keep = config.recorder.times_mib > 0;
        self.sampling.sampler.command(Command::KeepTimes(keep));
    }

    /// Starts accepting commands of the collector; `None` without a collector. Call it once. The
    /// result is what its thread runs.
    pub fn take_commands(&self) -> Option<Arc<Control>> {
        let uplink = self.uplink.get()?;
        let exporter = Arc::clone(&uplink.exporter);
        let captures = Arc::clone(self.captures.get()?);
        let policy = Policy::of(&lock(&self.settings.active).config.captures);
        let control = uplink
            .control
            .get_or_init(|| Arc::new(Control::new(exporter, Arc::new(captures), policy)));
        Some(Arc::clone(control))
    }

    /// CPU time that captures took of the threads that sample and name: asked for, so not governed.
    /// Unit: nanoseconds.
    pub(super) fn captures_cpu_ns(&self) -> u64 {
        self.captures.get().map_or(0, |captures| captures.cpu_ns())
    }

    /// Memory of the samples of captures. Unit: bytes.
    pub(super) fn captures_bytes(&self) -> usize {
        let bytes = self.captures.get().map_or(0, |captures| captures.bytes());
        bytes as usize
    }
}

impl AgentWorld {
    fn agent(&self) -> Result<Arc<Agent>, Status> {
        let agent = self.agent.upgrade();
        agent.ok_or_else(|| Status::unavailable("the daemon is shutting down"))
    }

    /// Starts a capture of event `off-cpu`, which is several events.
    fn start_waits(
        &self,
        agent: &Agent,
        id: CaptureId,
        wanted: &CaptureSpec,
        scope: &Scope,
    ) -> Result<Started, Status> {
        if !wanted.filter.is_empty() {
            let error = EngineError::NoFilter {
                event: OFF_CPU.to_owned(),
            };
            return Err(refused(&error));
        }
        if wanted.rate_hz > 0 || wanted.period > 0 {
            return Err(Status::invalid_argument(format!(
                "failed to capture `{OFF_CPU}` by rate or period: it records every wait\nuse \
                 --min-wait to skip short waits"
            )));
        }
        let copy_all = wanted.unwind == Unwind::StackCopy;
        let max_stack_depth = lock(&agent.sampling.facts).spec.max_stack_depth;
        let options = offcpu::Options {
            copy_all,
            max_stack_depth,
            stack_bytes: stack_bytes(agent, wanted),
            min_wait: wanted.min_wait,
        };
        let wanted = OffCpuCapture {
            id,
            options,
            filter: filter(scope, true),
            keep_times: wanted.times,
        };
        let switches_max = lock(&agent.settings.active).config.captures.switches_max;
        let started = self.engine.start_off_cpu(wanted);
        let started = started.map_err(|error| refused(&error))?;
        Ok(Started {
            event: OFF_CPU.to_owned(),
            unit: "nanoseconds".to_owned(),
            rate_hz: 0,
            period: 1,
            stack_bytes: started.stack_bytes,
            excess: match switches_max {
                0 => OverloadPolicy::Bounded,
                most if copy_all => {
                    let most = u64::from(most / COPY_ALL_COST);
                    OverloadPolicy::Ends(most.max(1).saturating_mul(started.cpus as u64))
                }
                most => OverloadPolicy::Ends(u64::from(most).saturating_mul(started.cpus as u64)),
            },
            notices: started.notices,
        })
    }
}

/// The sampler's pre-filter for a scope. It has cgroups only if the kernel does not filter by them.
fn filter(scope: &Scope, cgroups: bool) -> Filter {
    let filter = Filter::default()
        .pids(scope.pids.iter().copied())
        .names(scope.names.iter().map(|name| name.as_bytes()));
    match scope.cgroups.as_ref().filter(|_| cgroups) {
        Some(cgroups) => {
            let below = cgroups.below.iter().map(|path| &path[..]);
            filter.cgroups(cgroups.ids.iter().copied(), below)
        }
        None => filter,
    }
}

impl CaptureBackend for AgentWorld {
    fn limits(&self) -> agent_config::Captures {
        let agent = self.agent.upgrade();
        agent.map_or_else(agent_config::Captures::default, |agent| {
            lock(&agent.settings.active).config.captures.clone()
        })
    }

    fn unix_ns(&self, at: MonotonicTime) -> i64 {
        let agent = self.agent.upgrade();
        agent.map_or(0, |agent| agent.clock.to_unix_ns(at))
    }

    fn resolve(&self, selector: &Selector, withhold: &Withholding) -> Result<Scope, Status> {
        let (agent, containers) = (self.agent()?, lock(&self.containers).clone());
        let sight = Sight {
            hierarchy: &agent.start.hierarchy,
            containers: &containers,
            withhold,
        };
        target::resolve(selector, sight)
    }

    fn start(&self, id: CaptureId, wanted: &CaptureSpec, scope: &Scope) -> Result<Started, Status> {
        let agent = self.agent()?;
        if wanted.event == OFF_CPU {
            return self.start_waits(&agent, id, wanted, scope);
        }
        let event = Event::parse(&wanted.event).map_err(|error| refused(&error.into()))?;
        let (name, unit) = (event.name(), event.unit().to_owned());
        let is_dense = event.is_dense();
        let depth = lock(&agent.sampling.facts).spec.max_stack_depth;
        let subtree = scope.cgroups.as_ref().and_then(|it| it.subtree.clone());
        let rate_max = lock(&agent.settings.active).config.captures.rate_max_hz;
        let default = match event.default_every() {
            Every::Rate(rate) => Every::Rate(rate.min(rate_max)),
            each => each,
        };
        // If the target is one subtree, the kernel knows best what is in it.
        let filter = filter(scope, subtree.is_none());
        let started = self.engine.start(engine::EventCapture {
            id,
            event,
            every: every(wanted, default),
            kernel_filter: wanted.filter.clone(),
            stack_bytes: stack_bytes(&agent, wanted),
            max_stack_depth: depth,
            cgroup: subtree,
            filter,
            keep_times: wanted.times,
        });
        let started = started.map_err(|error| refused(&error))?;
        let (rate_hz, period, excess) = match started.every {
            Every::Rate(rate) => (rate, 0, OverloadPolicy::Bounded),
            Every::Period(period) => {
                // Who asks for each gets each, as far as the limits go.
                let each = wanted.period > 0 || !is_dense;
                let most = if each {
                    rate_max
                } else {
                    rate_max.min(DENSE_HZ_MAX)
                };
                let most = u64::from(most).saturating_mul(started.cpus as u64);
                (0, period, OverloadPolicy::Slows(most))
            }
        };
        Ok(Started {
            event: name,
            unit,
            rate_hz,
            period,
            stack_bytes: started.stack_bytes,
            excess,
            notices: started.notices,
        })
    }

    fn follow(&self, id: CaptureId) -> Result<Followed, Status> {
        let followed = self.engine.follow(id);
        followed.map_err(|error| refused(&error))
    }

    fn seen(&self, id: CaptureId) -> u64 {
        self.engine.seen(id)
    }

    fn slow_down(&self, id: CaptureId, times: u64) -> Result<Option<Slowed>, Status> {
        let slowed = self.engine.slow_down(id, times);
        let slowed = slowed.map_err(|error| refused(&error))?;
        Ok(slowed.map(|started| Slowed {
            period: started.period,
            notices: started.notices,
        }))
    }

    fn end(&self, id: CaptureId) {
        self.engine.end(id);
    }

    fn past(&self, wanted: &backend::PastQuery, cancel: &AtomicBool) -> Option<Profile> {
        let agent = self.agent.upgrade()?;
        let until = wanted.until;
        agent.sampling.sampler.flush();
        // The part that answers ends a horizon before it was drained.
        let fresh = MonotonicTime(until.0.saturating_sub(HORIZON.as_nanos() as u64));
        let mut progress = read(&agent.recorder).subscribe();
        let clock = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .ok()?;
        let drained = progress.wait_for(|progress| progress.end >= fresh);
        // Late or gone: the answer holds what there is.
        let _ = clock.block_on(async { tokio::time::timeout(FLUSH_MAX, drained).await });
        if cancel.load(Ordering::Relaxed) {
            return None;
        }
        let span = WindowRange::Time(wanted.from, until);
        let asked = RecorderQuery {
            query: &wanted.query,
            times: wanted.times,
            withhold: &wanted.withhold,
        };
        let mut answer = recorder::query(&agent.recorder, span, asked, cancel).ok()?;
        // If there is no window, the profile starts at the time that was asked for.
        answer.date(answer.covered.start, |at| agent.clock.to_unix_ns(at));
        Some(answer.profile)
    }

    fn stop(&self) {
        *lock(&self.containers) = Containers::none();
    }

    fn cpu_ns(&self) -> u64 {
        let threads = self.threads.get_or_init(|| {
            let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten();
            let tasks = tasks.flatten().map(|task| task.path());
            tasks
                .filter(|task| {
                    let comm = std::fs::read_to_string(task.join("comm")).unwrap_or_default();
                    THREADS.contains(&comm.trim_end())
                })
                .collect()
        });
        let times = threads.iter().filter_map(|task| thread_cpu_ns(task));
        times.sum()
    }

    fn samples(&self) -> u64 {
        let agent = self.agent.upgrade();
        agent.map_or(0, |agent| {
            agent.sampling.sampler.samples.load(Ordering::Relaxed)
        })
    }
}

fn every(wanted: &CaptureSpec, default: Every) -> Every {
    match (wanted.rate_hz, wanted.period) {
        (0, 0) => default,
        (0, period) => Every::Period(period),
        (rate, _) => Every::Rate(rate),
    }
}

/// Bytes of each stack to copy. What the budget took away from the continuous profile it did not
/// take from captures.
fn stack_bytes(agent: &Agent, wanted: &CaptureSpec) -> u32 {
    let config = lock(&agent.settings.active).config.clone();
    let planned = sampling_plan(&config, &agent.start.environment, Limits::NONE).stack_bytes;
    let planned = planned.max(lock(&agent.sampling.facts).plan.stack_bytes);
    match (wanted.unwind, wanted.stack_bytes) {
        (Unwind::FramePointer, _) => 0,
        (_, bytes) if bytes > 0 => bytes,
        (Unwind::StackCopy, _) if planned == 0 => config.unwind.stack_kib << 10,
        _ => planned,
    }
}

/// Why a capture cannot start, for who asked.
fn refused(error: &EngineError) -> Status {
    let message = with_causes(error);
    match error.fault() {
        Fault::Request => Status::invalid_argument(message),
        Fault::Machine => Status::failed_precondition(message),
        Fault::Gone => Status::not_found(message),
        Fault::Moment => Status::resource_exhausted(message),
    }
}
