//! The daemon as captures see it: events and sampler, the flight recorder, targets, and what they cost.

use super::{Agent, lock};
use crate::aggregate::recorder::{self, Span, read};
use crate::capture::manager::Captures;
use crate::capture::recorders::Recorders;
use crate::capture::request::Wanted;
use crate::capture::target::{self, Scope};
use crate::capture::world::{Started, World};
use crate::cgroup::containers::Containers;
use crate::config;
use crate::ids::CaptureId;
use crate::metrics::thread_cpu_ns;
use crate::perf::rings::HORIZON;
use crate::time::Mono;
use profile::{Profile, Query, Selector};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tonic::Status;

/// Longest wait for the flight recorder's last second, as of `Host::flush`.
const FLUSH_MAX: Duration = Duration::from_secs(2);

/// How often the recorder is looked at meanwhile.
const FLUSH_POLL: Duration = Duration::from_millis(5);

/// Threads that take and name samples.
const THREADS: [&str; 2] = ["fp-sampler", "fp-namer"];

/// The agent for captures. Holds no reference that would keep it alive.
struct AgentWorld {
    agent: Weak<Agent>,
    containers: Containers,
    /// Folders in /proc of [`THREADS`], once they run.
    threads: OnceLock<Vec<PathBuf>>,
}

impl Agent {
    /// Takes captures from now on, into `recorders`; once.
    pub fn take_captures(self: &Arc<Self>, containers: Containers, recorders: Arc<Recorders>) {
        self.captures.get_or_init(|| {
            let world = AgentWorld {
                agent: Arc::downgrade(self),
                containers,
                threads: OnceLock::new(),
            };
            Captures::new(Box::new(world), recorders)
        });
    }

    /// CPU time that captures took of the threads that sample and name: asked for, so not governed. Unit:
    /// nanoseconds.
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
}

impl World for AgentWorld {
    fn limits(&self) -> config::Captures {
        let agent = self.agent.upgrade();
        agent.map_or_else(config::Captures::default, |agent| {
            lock(&agent.config).config.captures.clone()
        })
    }

    fn unix_ns(&self, at: Mono) -> i64 {
        let agent = self.agent.upgrade();
        agent.map_or(0, |agent| agent.clock.to_unix_ns(at))
    }

    fn resolve(&self, selector: &Selector) -> Result<Scope, Status> {
        target::resolve(selector, &self.agent()?.hierarchy, &self.containers)
    }

    fn begin(&self, id: CaptureId, wanted: &Wanted, scope: &Scope) -> Result<Started, Status> {
        let _ = (id, wanted, scope);
        Err(Status::unimplemented("captures"))
    }

    fn end(&self, id: CaptureId) {
        let _ = id;
    }

    fn past(&self, from: Mono, query: &Query, times: bool, cancel: &AtomicBool) -> Option<Profile> {
        let agent = self.agent.upgrade()?;
        let until = Mono::now();
        agent.sampler.flush();
        // The part that answers ends a horizon before it was drained.
        let fresh = Mono(until.0.saturating_sub(HORIZON.as_nanos() as u64));
        let late = until.plus(FLUSH_MAX);
        let progress = read(&agent.recorder).subscribe();
        // Late or gone: the answer holds what there is.
        while progress.borrow().end < fresh && Mono::now() < late {
            if cancel.load(Ordering::Relaxed) {
                return None;
            }
            std::thread::sleep(FLUSH_POLL);
        }
        let ask = match times {
            true => recorder::query_with_times,
            false => recorder::query,
        };
        let answer = ask(&agent.recorder, Span::Time(from, until), query, cancel).ok()?;
        let mut profile = answer.profile;
        let start = match answer.covered.windows {
            0 => from,
            _ => answer.covered.start,
        };
        profile.info.start_unix_ns = agent.clock.to_unix_ns(start);
        if let Some(since) = answer.times_from {
            profile.moments.start_unix_ns = agent.clock.to_unix_ns(since);
        }
        Some(profile)
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
        agent.map_or(0, |agent| agent.sampler.samples.load(Ordering::Relaxed))
    }
}
