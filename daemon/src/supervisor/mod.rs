//! Starts the stages in order, watches over them, and ends them.
//!
//! Every stage is a thread named after it. If a thread ends unexpectedly, by error or by panic, the
//! process ends with that error: a daemon that samples and does not answer, or answers and does not
//! sample, helps nobody. The main thread waits for signals, reports to systemd, and checks the
//! heartbeats.

mod confined;
mod ends;
mod serve;
mod start;
mod stop;
mod uplink;

use crate::agent::{Agent, ConfigSource, SAMPLER_STUCK, SYMBOLIZER_LATE, SetLogLevel};
use crate::notify::Notifier;
use agent_config::Loaded;
use ends::Ends;
pub use ends::{Exit, RunError};
use host::cpus::CpuNotice;
use host::sync::lock;
use host::sys::{KernelEvents, Poller, SignalFd, keep_memory_private};
use host::sys::{keep_heap_small, raise_descriptor_limit};
use host::time::MonotonicTime;
use profile::text::with_causes;
use sd_notify::NotifyState;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;

/// How often heartbeats, the clock and what is degraded are checked when systemd does not ask for
/// more. A look costs a part of a millisecond; a daemon that is blind is known so much later.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// How often what the service manager had no room for is sent again.
const UNSENT_INTERVAL: Duration = Duration::from_secs(1);

/// Windows that end further than this from a multiple of their length in wall time are aligned
/// again: the clocks drift by some milliseconds a minute where nobody corrects one of them.
const UNALIGNED_MAX: Duration = Duration::from_millis(100);

/// A change of the wall clock worth a line in the log.
const CLOCK_MOVES_MIN: Duration = Duration::from_secs(1);

/// How often the list of CPUs is looked at where the kernel does not say when it changes.
const CPUS_INTERVAL: Duration = Duration::from_secs(2);

/// Longest wait for the first sample. The CPU clock ticks on idle CPUs too, so at 1 Hz one is due.
const FIRST_SAMPLE_MAX: Duration = Duration::from_secs(3);

/// A symbolizer that has worked on one batch for this long is stuck on a file system.
const SYMBOLIZER_STUCK: Duration = Duration::from_secs(300);

/// Runs the daemon until SIGTERM or SIGINT, or until it cannot go on.
///
/// # Errors
/// [`RunError`]; its [`RunError::exit`] is the process's exit code.
pub fn run(
    loaded: Loaded,
    source: ConfigSource,
    set_log_level: SetLogLevel,
) -> Result<(), RunError> {
    let signals =
        SignalFd::new(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP]).map_err(RunError::Setup)?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    if let Err(error) = keep_memory_private() {
        tracing::warn!(%error, "a core dump of the daemon would hold memory of other processes");
    }
    keep_heap_small();
    raise_descriptor_limit();
    let mut stages = Stages::start(loaded, source, set_log_level)?;
    confined::settle(&stages.agent.sandbox);
    let end = stages.watch(&signals);
    stages.stop(end)
}

/// Running stages.
struct Stages {
    agent: Arc<Agent>,
    ends: Ends,
    /// True: the server takes no more connections.
    stop_serving: watch::Sender<bool>,
    manager: Notifier,
}

impl Stages {
    /// Waits for the end: `None` when it was asked for.
    fn watch(&mut self, signals: &SignalFd) -> Option<RunError> {
        const SIGNAL: u64 = 0;
        const END: u64 = 1;
        const KERNEL: u64 = 2;
        const DEEP: u64 = 3;
        let watchdog = sd_notify::watchdog_enabled();
        let events = KernelEvents::new()
            .inspect_err(|error| {
                tracing::info!(%error, "failed to get CPU hotplug events: the \
                daemon polls for CPUs instead")
            })
            .ok();
        let interval = match &events {
            Some(_) => CHECK_INTERVAL,
            None => CPUS_INTERVAL,
        };
        let interval = watchdog.map_or(interval, |limit| (limit / 3).min(interval));
        let poller = match Poller::new().and_then(|poller| {
            poller.add(signals.as_raw_fd(), SIGNAL)?;
            poller.add(self.ends.wake.as_raw_fd(), END)?;
            poller.add(self.agent.sampling.sampler.deep.as_raw_fd(), DEEP)?;
            if let Some(events) = &events {
                poller.add(events.as_raw_fd(), KERNEL)?;
            }
            Ok(poller)
        }) {
            Ok(poller) => poller,
            Err(error) => return Some(RunError::Setup(error)),
        };
        self.wait_for_samples();
        self.manager.tell(&NotifyState::Ready);
        tracing::info!("ready");
        let mut last_beats = (0, 0);
        let mut next_check = MonotonicTime::now().plus(interval);
        let mut unaligned = 0;
        loop {
            let interval = match self.manager.has_unsent() {
                true => interval.min(UNSENT_INTERVAL),
                false => interval,
            };
            let mut woken = Vec::new();
            let until = next_check.since(MonotonicTime::now()).min(interval);
            if let Err(error) = poller.wait(Some(until), |token| woken.push(token)) {
                return Some(RunError::Setup(error));
            }
            if woken.contains(&DEEP) {
                self.agent.sampling.sampler.deep.clear();
                self.agent.keep_copies(MonotonicTime::now());
            }
            // Heartbeats are checked only after a full interval.
            if woken == [DEEP] && MonotonicTime::now() < next_check {
                continue;
            }
            next_check = MonotonicTime::now().plus(interval);
            while let Some(signal) = signals.next() {
                match signal {
                    libc::SIGHUP => self.reload(),
                    _ => {
                        tracing::info!(signal, "stopping");
                        return None;
                    }
                }
            }
            if let Some(error) = self.ends.unexpected() {
                return Some(error);
            }
            let mut notices = Vec::new();
            if let Some(events) = &events {
                events.each(|event| notices.extend(CpuNotice::parse(event)));
            }
            self.agent.watch_cpus(&notices);
            // After a pause of the complete process (SIGSTOP, a frozen cgroup, a paused VM) this
            // thread may be the first to run: only heartbeats that did not move for a full interval
            // count.
            let beats = self.heartbeats();
            if beats == last_beats
                && let Some(error) = self.stuck()
            {
                return Some(error);
            }
            last_beats = beats;
            self.hurry_symbolizer();
            self.manager.send();
            let moved = self.agent.clock.refresh();
            if moved.stepped.unsigned_abs() > CLOCK_MOVES_MIN.as_nanos() as u64 {
                let seconds = moved.stepped / 1_000_000_000;
                tracing::warn!(seconds, "the wall clock was stepped");
            }
            unaligned += moved.stepped + moved.slept;
            if unaligned.unsigned_abs() > UNALIGNED_MAX.as_nanos() as u64 {
                let length = lock(&self.agent.settings.active).config.windows.length();
                self.agent.align_windows(length);
                unaligned = 0;
            }
            self.agent.keep_budget(MonotonicTime::now());
            self.agent.note_losses(MonotonicTime::now());
            self.agent.look_around(MonotonicTime::now());
            if watchdog.is_some() {
                self.manager.tell(&NotifyState::Watchdog);
            }
        }
    }

    /// Proves that samples arrive before the daemon calls itself ready. Without any it goes on and
    /// says so: `status` and `doctor` name what is wrong.
    fn wait_for_samples(&self) {
        let started = MonotonicTime::now();
        while MonotonicTime::now().since(started) < FIRST_SAMPLE_MAX {
            if self
                .agent
                .sampling
                .sampler
                .newest_sample
                .load(Ordering::Relaxed)
                != 0
            {
                return;
            }
            self.agent.sampling.sampler.flush();
            std::thread::sleep(Duration::from_millis(20));
        }
        tracing::error!("no sample has arrived; run `agent-ctl doctor`");
    }

    fn heartbeats(&self) -> (u64, u64) {
        let agent = &self.agent;
        let sampler = agent.sampling.sampler.heartbeat.load(Ordering::Relaxed);
        (
            sampler,
            agent.health.symbolizer.started().unwrap_or_default().0,
        )
    }

    /// Lets a late symbolizer run before an answer is made, so that the samples are recent enough.
    fn hurry_symbolizer(&self) {
        let (agent, now) = (&self.agent, MonotonicTime::now());
        let late = agent
            .health
            .symbolizer
            .busy_longer_than(SYMBOLIZER_LATE, now);
        if let (Some(late), false) = (late, agent.health.symbolizer_pace.is_raised()) {
            tracing::debug!(
                seconds = late.as_secs(),
                "the symbolizer is late: its priority is raised"
            );
            agent.health.symbolizer_pace.hurry(now);
        }
    }

    fn stuck(&self) -> Option<RunError> {
        let now = MonotonicTime::now();
        let sampler = MonotonicTime(
            self.agent
                .sampling
                .sampler
                .heartbeat
                .load(Ordering::Relaxed),
        );
        if now.since(sampler) > SAMPLER_STUCK {
            let seconds = now.since(sampler).as_secs();
            return Some(RunError::Stuck {
                thread: "fp-sampler",
                seconds,
            });
        }
        let busy = self
            .agent
            .health
            .symbolizer
            .busy_longer_than(SYMBOLIZER_STUCK, now)?;
        Some(RunError::Stuck {
            thread: "fp-symbolize",
            seconds: busy.as_secs(),
        })
    }

    fn reload(&mut self) {
        self.manager.tell(&NotifyState::Reloading);
        match self.agent.reload() {
            Ok(done) => tracing::info!(
                changed = done.changed.join(" "),
                needs_restart = done.needs_restart.join(" "),
                "configuration reloaded"
            ),
            Err(error) => {
                let reason = with_causes(&error);
                tracing::error!(reason, "configuration refused; the active one stays");
            }
        }
        self.manager.tell(&NotifyState::Ready);
    }
}
