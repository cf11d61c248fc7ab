//! Asks runtimes to write the names of their generated code, where the configuration allows it.
//!
//! A runtime is asked only while its code has samples without names: each process rarely, all
//! together at a bounded rate, and less and less often if it fails. Each piece of work runs on a
//! thread of its own (`tmp_dir.rs` says why). There are few such threads, and one that hangs
//! occupies its place. Files that runtimes wrote on request are removed when nobody needs them:
//! when the process has ended or is no longer of interest, and when the daemon ends. After the
//! daemon was killed they stay; the next daemon takes such a map for the process's own.

pub mod dotnet;
mod dotnet_processes;
pub mod hotspot;
pub mod tmp_dir;

#[cfg(test)]
mod tests;

use crate::runtimes::{AskReport, Runtimes};
use agent_config::Jit;
use dotnet_processes::DotNetProcesses;
use hashbrown::HashMap;
use host::blocking_pool::{self, Pending};
use host::ids::{Pid, ProcessId};
use host::time::MonotonicTime;
use hotspot::{AttachRequest, Attempt, LeftOver};
use profile::text::with_causes;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};
use symbolize::SymbolCounters;
use symbolize::counters::bump;
use tmp_dir::Mark;

/// Name of the threads that ask.
const THREAD: &str = "fp-ask";

/// Most processes known. Those beyond it are not asked, and counted.
const PROCESSES_MAX: usize = 1024;

/// Most threads that ask at a time, those that hang included: each has at most ten seconds
/// otherwise.
const ASKING_MAX: usize = 4;

/// Most that start to ask within [`STARTED_OVER`]: on a host of many JVMs each pauses for its map.
const STARTED_MAX: usize = 4;

/// See [`STARTED_MAX`].
const STARTED_OVER: Duration = Duration::from_secs(1);

/// Longest pause between two tries of one process that fail.
const PAUSE_MAX: Duration = Duration::from_secs(3600);

/// A JVM with samples rewrites its list after this many refresh intervals even if all frames have
/// names, because a method may now be at an address that the last list assigns to another.
const LISTS_OLD: u32 = 10;

/// Most threads that remove files at a time.
const REMOVING_MAX: usize = 16;

/// Longest time at the end of the daemon for what was left over to be removed. The daemon's grace
/// is 5 s by default.
const CLOSING_MAX: Duration = Duration::from_secs(3);

/// How often it is looked at meanwhile.
const CLOSING_STEP: Duration = Duration::from_millis(5);

/// What may be requested from runtimes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskOptions {
    /// Attach to HotSpot and have it write its perf map.
    pub hotspot_attach: bool,
    /// Shortest time between two maps of one JVM.
    pub hotspot_refresh: Duration,
    /// Have .NET write a perf map while it is wanted.
    pub dotnet_enable: bool,
}

impl Default for AskOptions {
    fn default() -> Self {
        AskOptions {
            hotspot_attach: false,
            hotspot_refresh: Duration::from_secs(60),
            dotnet_enable: false,
        }
    }
}

impl From<&Jit> for AskOptions {
    fn from(section: &Jit) -> AskOptions {
        AskOptions {
            hotspot_attach: section.hotspot_attach,
            hotspot_refresh: Duration::from_secs(section.hotspot_refresh_s.into()),
            dotnet_enable: section.dotnet_enable,
        }
    }
}

/// A process with generated code that needs names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachTarget {
    /// Its id.
    pub id: ProcessId,
    /// Its pid.
    pub pid: Pid,
    /// The latest time it can have started (see `jit/src/target.rs`).
    pub started_by: MonotonicTime,
}

/// Asks, each runtime rarely. Owned by `fp-jit`; what may block is done by threads of its own.
#[derive(Debug)]
pub struct RuntimeAttacher {
    options: AskOptions,
    jvms: HashMap<ProcessId, Jvm>,
    started: Vec<MonotonicTime>,
    /// Threads that ask for processes that are forgotten: what they bring is removed.
    orphans: Vec<Pending<Attempt>>,
    left_over: Vec<LeftOver>,
    removing: Vec<Pending<io::Result<()>>>,
    dotnet_processes: DotNetProcesses,
    counters: Option<Arc<SymbolCounters>>,
    runtimes: Option<Arc<Runtimes>>,
}

/// State of one process as a JVM.
#[derive(Debug)]
struct Jvm {
    process: AttachTarget,
    /// Samples without a name since its last map.
    unnamed: u64,
    /// It has had samples since its last map.
    sampled: bool,
    due: MonotonicTime,
    /// From when on the map that it wrote is too old to be believed; `None` while it has written
    /// none.
    old: Option<MonotonicTime>,
    failures: u32,
    signalled: bool,
    /// True when asking again cannot help.
    closed: bool,
    asking: Option<Pending<Attempt>>,
    left_over: Option<LeftOver>,
}

impl RuntimeAttacher {
    /// Creates it before any process was asked.
    pub fn new(options: AskOptions) -> RuntimeAttacher {
        RuntimeAttacher {
            options,
            jvms: HashMap::new(),
            started: Vec::new(),
            orphans: Vec::new(),
            left_over: Vec::new(),
            removing: Vec::new(),
            dotnet_processes: DotNetProcesses::default(),
            counters: None,
            runtimes: None,
        }
    }

    /// Counts what it does.
    pub fn counting(mut self, counters: Arc<SymbolCounters>) -> RuntimeAttacher {
        self.counters = Some(counters);
        self
    }

    /// Sets where the result for each process is reported.
    pub fn reporting_to(mut self, runtimes: Arc<Runtimes>) -> RuntimeAttacher {
        self.runtimes = Some(runtimes);
        self
    }

    /// A process has samples in generated code, `unnamed` of them without a name since the last
    /// call.
    pub fn note(&mut self, process: AttachTarget, unnamed: u64, now: MonotonicTime) {
        if self.options.hotspot_attach {
            self.note_jvm(process, unnamed, now);
        }
        if self.options.dotnet_enable && !self.dotnet_processes.note(process, unnamed > 0, now) {
            self.count(|counters| &counters.attaches_over_limit);
        }
    }

    fn note_jvm(&mut self, process: AttachTarget, unnamed: u64, now: MonotonicTime) {
        if !self.jvms.contains_key(&process.id) {
            if unnamed == 0 {
                return;
            }
            if self.jvms.len() >= PROCESSES_MAX {
                self.count(|counters| &counters.attaches_over_limit);
                return;
            }
        }
        let jvm = self.jvms.entry(process.id).or_insert_with(|| Jvm {
            process,
            unnamed: 0,
            sampled: false,
            due: now,
            old: None,
            failures: 0,
            signalled: false,
            closed: false,
            asking: None,
            left_over: None,
        });
        jvm.unnamed = jvm.unnamed.saturating_add(unnamed);
        jvm.sampled = true;
    }

    /// Goes on with what is under way: once a second while `fp-jit` has anything to do. Returns the
    /// processes that have written a map since the last call: to be read at once.
    pub fn tick(&mut self, now: MonotonicTime) -> Vec<ProcessId> {
        let mut written = Vec::new();
        for id in self.jvms.keys().copied().collect::<Vec<_>>() {
            if self.take_attempt(id, now) {
                written.push(id);
            }
        }
        self.start_due(now);
        let (started, reports) = self.dotnet_processes.tick(now);
        written.extend(started);
        for (id, report) in reports {
            self.report(id, report);
        }
        self.reap();
        written
    }

    /// Handles the result of an attempt; true if there is a map.
    fn take_attempt(&mut self, id: ProcessId, now: MonotonicTime) -> bool {
        let Some(jvm) = self.jvms.get_mut(&id) else {
            return false;
        };
        let attempt = match jvm.asking.take().map(|asking| asking.wait(Duration::ZERO)) {
            Some(Ok(attempt)) => attempt,
            Some(Err(Some(asking))) => {
                jvm.asking = Some(asking);
                return false;
            }
            // A thread that panicked: what it did is not known.
            Some(Err(None)) => {
                jvm.closed = true;
                return false;
            }
            None => return false,
        };
        let refresh = self.options.hotspot_refresh;
        jvm.signalled = attempt.signalled;
        match attempt.outcome {
            Ok(left_over) => {
                jvm.left_over = left_over;
                jvm.failures = 0;
                jvm.due = now.plus(refresh);
                jvm.old = Some(now.plus(refresh.saturating_mul(LISTS_OLD)));
                self.report(id, AskReport::written());
                true
            }
            Err(error) => {
                jvm.failures = jvm.failures.saturating_add(1);
                jvm.closed = error.is_final();
                jvm.due = now.plus(pause(refresh, jvm.failures));
                if !matches!(error, hotspot::AttachError::NotHotSpot) {
                    let (pid, reason) = (jvm.process.pid.0, with_causes(&error));
                    if jvm.failures == 1 {
                        tracing::info!(pid, reason, "failed to get a perf map from a JVM");
                    }
                    self.report(id, AskReport::failed(reason));
                }
                false
            }
        }
    }

    /// Starts with those that are due, the longest due first.
    fn start_due(&mut self, now: MonotonicTime) {
        self.started
            .retain(|&started| now.since(started) < STARTED_OVER);
        let hanging = self.orphans.len();
        let asking = self.jvms.values().filter(|jvm| jvm.asking.is_some());
        let room = ASKING_MAX.saturating_sub(asking.count() + hanging);
        let room = room.min(STARTED_MAX.saturating_sub(self.started.len()));
        let is_due = |jvm: &&mut Jvm| {
            let wanted = jvm.unnamed > 0 || jvm.sampled && jvm.old.is_some_and(|old| old <= now);
            wanted && !jvm.closed && jvm.asking.is_none() && jvm.due <= now
        };
        let mut due: Vec<&mut Jvm> = self.jvms.values_mut().filter(is_due).collect();
        due.sort_by_key(|jvm| (jvm.due, jvm.process.id));
        for jvm in due.into_iter().take(room) {
            let mark: Option<Mark> = jvm.left_over.as_ref().map(LeftOver::mark);
            let wanted = AttachRequest {
                pid: jvm.process.pid.0,
                started_by: jvm.process.started_by,
                mark,
                signalled: jvm.signalled,
            };
            let Some(asking) = blocking_pool::alone(THREAD, move || hotspot::attach(wanted)) else {
                return;
            };
            jvm.asking = Some(asking);
            (jvm.unnamed, jvm.sampled) = (0, false);
            self.started.push(now);
        }
    }

    /// The process ended, or nobody wants its names any more. What it left is removed with the next
    /// tick.
    pub fn forget(&mut self, process: ProcessId) {
        if let Some(jvm) = self.jvms.remove(&process) {
            self.left_over.extend(jvm.left_over);
            self.orphans.extend(jvm.asking);
        }
        self.dotnet_processes.forget(process);
    }

    /// Starts removing leftovers of forgotten processes.
    fn reap(&mut self) {
        for _ in 0..self.dotnet_processes.reap() {
            self.count(|counters| &counters.attach_maps_removed);
        }
        let attempts = blocking_pool::take_done(&mut self.orphans);
        let maps = attempts.into_iter().filter_map(|one| one.outcome.ok());
        self.left_over.extend(maps.flatten());
        for removed in blocking_pool::take_done(&mut self.removing) {
            match removed {
                Ok(()) => self.count(|counters| &counters.attach_maps_removed),
                Err(error) => {
                    tracing::warn!(%error, "failed to remove a perf map that was written on demand");
                }
            }
        }
        while self.removing.len() < REMOVING_MAX
            && let Some(left_over) = self.left_over.pop()
        {
            match blocking_pool::alone(THREAD, move || left_over.remove()) {
                Some(removing) => self.removing.push(removing),
                None => {
                    tracing::warn!(
                        "failed to start a thread: a perf map that was written on demand stays"
                    );
                }
            }
        }
    }

    /// Ends all that was started, within a bounded time.
    fn close(&mut self) {
        let deadline = Instant::now() + CLOSING_MAX;
        let ids: Vec<ProcessId> = self.jvms.keys().copied().collect();
        ids.into_iter().for_each(|id| self.forget(id));
        self.dotnet_processes.forget_all();
        self.reap();
        while self.left() > 0 && Instant::now() < deadline {
            std::thread::sleep(CLOSING_STEP);
            self.reap();
        }
        let left = self.left();
        if left > 0 {
            tracing::warn!(
                left,
                "/tmp may still have perf maps that were written on demand"
            );
        }
    }

    /// Number of forgotten processes with work left.
    fn left(&self) -> usize {
        self.orphans.len()
            + self.left_over.len()
            + self.removing.len()
            + self.dotnet_processes.left()
    }

    fn count(&self, counter: impl Fn(&SymbolCounters) -> &AtomicU64) {
        if let Some(counters) = &self.counters {
            bump(counter(counters));
        }
    }

    fn report(&self, process: ProcessId, report: AskReport) {
        self.count(|counters| match report.failure {
            None => &counters.attaches_done,
            Some(_) => &counters.attaches_failed,
        });
        if let Some(runtimes) = &self.runtimes {
            runtimes.note_asked(process, report);
        }
    }
}

/// How long after so many tries that failed a process is asked again, where it usually is after
/// `usual`.
fn pause(usual: Duration, failures: u32) -> Duration {
    let pause = usual.saturating_mul(1 << failures.min(16));
    pause.min(PAUSE_MAX.max(usual))
}

impl Drop for RuntimeAttacher {
    fn drop(&mut self) {
        self.close();
    }
}
