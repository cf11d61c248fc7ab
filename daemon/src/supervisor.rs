//! Starts the stages in order, watches over them, and ends them.
//!
//! Every stage is a thread named after it. A thread that ends when it should not, by error or by
//! panic, ends the process with that error: a daemon that samples and does not answer, or answers
//! and does not sample, helps nobody. The main thread waits for signals, reports to systemd, and
//! checks the heartbeats.

use crate::agent::{self, Agent, ConfigSource, SAMPLER_STUCK, SetLogLevel, lock, with_causes};
use crate::aggregate::batch::RawBatch;
use crate::aggregate::namer::Namer;
use crate::aggregate::recorder::Recorder;
use crate::cgroup::CgroupTable;
use crate::config::{self, Loaded};
use crate::grpc::{self, ServeError, ServeOptions};
use crate::jit::{PerfMapOptions, PerfMaps};
use crate::metrics;
use crate::perf::environment::Environment;
use crate::perf::event::OpenError;
use crate::perf::rings::RingsError;
use crate::process::{scan, scout};
use crate::sampler::{self, Queues, Sampler, Start};
use crate::symbolize::files::{self, FileStore};
use crate::symbolize::{KernelSymbols, SymbolCounters, SymbolOptions, Symbolizer};
use crate::sys::{Poller, SignalFd, WakeFd, lower_priority};
use crate::time::{Mono, WallAnchor};
use std::any::Any;
use std::error::Error;
use std::io;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, OnceLock, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// Batches between sampler and namer. With two the namer may take a whole window to name one while
/// the sampler fills the next; beyond that windows get longer.
const BATCHES: usize = 2;

/// Files announced and not yet opened. A start of a large host announces some thousands within a
/// second; what finds no room is announced again.
const FILES_QUEUED_MAX: usize = 1024;

/// How often heartbeats and the clock are checked when systemd does not ask for more.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Longest wait for the first sample. The CPU clock ticks on idle CPUs too, so at 1 Hz one is due.
const FIRST_SAMPLE_MAX: Duration = Duration::from_secs(3);

/// A namer that has worked on one batch for this long is stuck on a file system.
const NAMER_STUCK: Duration = Duration::from_secs(300);

/// Part of the shutdown's grace that clients get to finish what they asked.
const SERVING_GRACE_SHARE: f64 = 0.6;

/// Threads for what takes long: the queries that may run at once, and status, reload and scrapes
/// beside them.
const BLOCKING_THREADS: usize = grpc::QUERIES_MAX + 2;

/// Exit codes of `fleetprofd`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Stopped as asked.
    Stopped = 0,
    /// Failed.
    Failed = 1,
    /// Bad command line; clap's own code.
    Usage = 2,
    /// Bad configuration.
    Config = 3,
    /// Not permitted to sample.
    Permission = 4,
    /// Another daemon answers on the socket.
    InUse = 5,
}

/// Why the daemon ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Signals, wake-ups or threads.
    #[error("failed to set up the process")]
    Setup(#[source] io::Error),
    /// Perf events.
    #[error(transparent)]
    Sampling(#[from] RingsError),
    /// The socket.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// A stage ended on its own.
    #[error("thread `{thread}` ended: {reason}")]
    Stage {
        /// Its name.
        thread: &'static str,
        /// Error or panic, with causes.
        reason: String,
    },
    /// A stage does not move.
    #[error("thread `{thread}` has not moved for {seconds} s")]
    Stuck {
        /// Its name.
        thread: &'static str,
        /// Age of its heartbeat.
        seconds: u64,
    },
    /// Data was still on its way when the grace was over.
    #[error("stopped before everything was drained: `shutdown.grace_s` of {seconds} s is over")]
    Grace {
        /// The grace.
        seconds: u64,
    },
}

impl RunError {
    /// The exit code that tells scripts what happened.
    pub fn exit(&self) -> Exit {
        match self {
            RunError::Sampling(RingsError::Open(OpenError::Permission { .. })) => Exit::Permission,
            RunError::Sampling(RingsError::Map { source, .. })
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                Exit::Permission
            }
            RunError::Serve(ServeError::InUse { .. }) => Exit::InUse,
            _ => Exit::Failed,
        }
    }
}

type StageError = Box<dyn Error + Send + Sync>;

/// Name of a thread and how it ended.
type StageEnd = (&'static str, Result<(), StageError>);

/// Ends of threads, as they happen.
#[derive(Clone)]
struct Ends {
    wake: Arc<WakeFd>,
    list: Arc<Mutex<Vec<StageEnd>>>,
}

impl Ends {
    fn spawn(
        &self,
        name: &'static str,
        body: impl FnOnce() -> Result<(), StageError> + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        let ends = self.clone();
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let end = match catch_unwind(AssertUnwindSafe(body)) {
                    Ok(end) => end,
                    Err(panic) => Err(format!("panic: {}", panic_text(&*panic)).into()),
                };
                lock(&ends.list).push((name, end));
                ends.wake.wake();
            })
    }

    /// The first end that was not asked for.
    fn unexpected(&self) -> Option<RunError> {
        let mut list = lock(&self.list);
        if list.is_empty() {
            return None;
        }
        let (thread, end) = list.remove(0);
        let stopped = || "it stopped without being asked".into();
        Some(stage_error(thread, end.err().unwrap_or_else(stopped)))
    }

    /// The first end by error.
    fn failure(&self) -> Option<RunError> {
        let mut list = lock(&self.list);
        let failed = list.iter().position(|(_, end)| end.is_err())?;
        let (thread, end) = list.remove(failed);
        end.err().map(|error| stage_error(thread, error))
    }
}

/// Errors of the socket keep their kind: it decides the exit code.
fn stage_error(thread: &'static str, error: StageError) -> RunError {
    match error.downcast::<ServeError>() {
        Ok(error) => RunError::Serve(*error),
        Err(error) => RunError::Stage {
            thread,
            reason: with_causes(&*error),
        },
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("unknown")
}

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
    let stages = Stages::start(loaded, source, set_log_level)?;
    let end = stages.watch(&signals);
    stages.stop(end)
}

/// What runs.
struct Stages {
    agent: Arc<Agent>,
    ends: Ends,
    /// Sampling and naming, which drain; then the rest.
    draining: Vec<JoinHandle<()>>,
    stop_serving: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

impl Stages {
    fn start(
        loaded: Loaded,
        source: ConfigSource,
        set_log_level: SetLogLevel,
    ) -> Result<Stages, RunError> {
        let config = loaded.config.clone();
        let setup = RunError::Setup;
        let clock = WallAnchor::new();
        let (rings, facts) = agent::open_sampling(&config)?;
        tracing::info!(
            event = facts.event.name(),
            rate_hz = facts.rate_hz,
            cpus = facts.cpus_sampled,
            "sampling"
        );
        if let Some(reason) = &facts.fallback {
            tracing::warn!(reason, "sampling `{}` instead", facts.event.name());
        }
        let kernel = KernelSymbols::read().unwrap_or_else(|_| KernelSymbols::none());
        let idle = if kernel.hidden() {
            Vec::new()
        } else {
            kernel.idle_ranges()
        };
        let cgroups = CgroupTable::discover();
        let processes = scan::all(files::identity_of_mapping);
        let counters = Arc::new(SymbolCounters::default());
        let store = Arc::new(FileStore::new(None, Arc::clone(&counters)));
        let shared = Arc::new(sampler::Shared::new().map_err(setup)?);
        let mut recorder = Recorder::new(agent::recorder_options(&config));
        recorder.set_event(facts.event.name(), facts.event.unit());
        let agent = Arc::new(Agent {
            sampler: Arc::clone(&shared),
            recorder: RwLock::new(recorder),
            started_unix_ns: clock.to_unix_ns(Mono::now()),
            clock,
            config: Mutex::new(loaded),
            source,
            sampling: Mutex::new(facts.clone()),
            symbols: Arc::clone(&counters),
            hierarchy: cgroups.hierarchy().clone(),
            environment: Environment::read(),
            kernel_symbols: !kernel.hidden(),
            namer_busy_since: AtomicU64::new(0),
            set_log_level,
            watchers: Arc::default(),
            registry: OnceLock::new(),
        });
        let ends = Ends {
            wake: Arc::new(WakeFd::new().map_err(setup)?),
            list: Arc::default(),
        };

        let (batches, from_sampler) = sync_channel(BATCHES);
        let (recycle, recycled) = sync_channel(BATCHES);
        for _ in 0..BATCHES {
            // The queue has room for all of them.
            let _ = recycle.try_send(RawBatch::default());
        }
        let (scout, requests) = sync_channel(FILES_QUEUED_MAX);
        let (scans, scanned) = sync_channel(1);
        let mut draining = Vec::new();
        let opened = Arc::clone(&store);
        draining.push(
            ends.spawn("fp-files", move || {
                scout::run(&requests, &opened, &scans);
                Ok(())
            })
            .map_err(setup)?,
        );
        let named = Arc::clone(&agent);
        let symbols = SymbolOptions {
            lines: config.symbols.lines,
            inlined_frames: config.symbols.inlined_frames,
            debug_dirs: config.symbols.debug_dirs.clone(),
            cache_bytes: config.symbols.cache_bytes(),
        };
        let perf_maps = PerfMapOptions {
            enabled: config.jit.perf_maps,
            max_bytes: config.jit.perf_map_max_bytes(),
        };
        draining.push(
            ends.spawn("fp-namer", move || {
                lower_priority(10);
                let files = Arc::clone(&store);
                let mut symbolizer = Symbolizer::new(symbols, files, Arc::clone(&counters));
                symbolizer.set_kernel_symbols(kernel);
                let perf_maps = PerfMaps::new(perf_maps, counters);
                let namer = Namer::new(symbolizer, store, perf_maps, cgroups);
                namer.run(&from_sampler, &recycle, &named.recorder, |busy| {
                    let since = if busy { Mono::now().0 } else { 0 };
                    named.namer_busy_since.store(since, Ordering::Relaxed);
                });
                Ok(())
            })
            .map_err(setup)?,
        );
        let window = config.windows.length();
        let start = Start {
            unwinder: facts.unwinder(),
            period: facts.period(),
            rings,
            processes,
            idle,
            window,
            first_window_end: aligned_end(&agent.clock, window),
        };
        let queues = Queues {
            batches,
            recycled,
            scout,
            scanned,
        };
        draining.push(
            ends.spawn("fp-sampler", move || {
                Ok(Sampler::new(start, queues, shared)?.run()?)
            })
            .map_err(setup)?,
        );
        let (stop_serving, stopped) = watch::channel(false);
        let (ready, is_ready) = oneshot::channel();
        let served = Arc::clone(&agent);
        agent.register_metrics();
        let serving = ends
            .spawn("fp-grpc", move || serve(served, ready, stopped))
            .map_err(setup)?;
        let stages = Stages {
            agent,
            ends,
            draining,
            stop_serving,
            serving,
        };
        if is_ready.blocking_recv().is_err() {
            let error = stages.ends.unexpected();
            stages.stop(error)?;
            return Err(RunError::Setup(io::Error::other(
                "the server ended at once",
            )));
        }
        Ok(stages)
    }

    /// Waits for the end: `None` when it was asked for.
    fn watch(&self, signals: &SignalFd) -> Option<RunError> {
        const SIGNAL: u64 = 0;
        const END: u64 = 1;
        let watchdog = sd_notify::watchdog_enabled();
        let interval = watchdog.map_or(CHECK_INTERVAL, |limit| (limit / 3).min(CHECK_INTERVAL));
        let poller = match Poller::new().and_then(|poller| {
            poller.add(signals.as_raw_fd(), SIGNAL)?;
            poller.add(self.ends.wake.as_raw_fd(), END)?;
            Ok(poller)
        }) {
            Ok(poller) => poller,
            Err(error) => return Some(RunError::Setup(error)),
        };
        self.wait_for_samples();
        notify(&[sd_notify::NotifyState::Ready]);
        tracing::info!("ready");
        let mut last_beats = (0, 0);
        loop {
            if let Err(error) = poller.wait(Some(interval), |_| {}) {
                return Some(RunError::Setup(error));
            }
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
            // After a pause of the whole process (SIGSTOP, a frozen cgroup, a paused VM) this thread
            // may be the first to run: only heartbeats that a whole interval has not moved count.
            let beats = self.heartbeats();
            if beats == last_beats
                && let Some(error) = self.stuck()
            {
                return Some(error);
            }
            last_beats = beats;
            let stepped = self.agent.clock.refresh();
            if stepped.unsigned_abs() > 1_000_000_000 {
                tracing::warn!(
                    seconds = stepped / 1_000_000_000,
                    "the wall clock was stepped"
                );
            }
            if watchdog.is_some() {
                notify(&[sd_notify::NotifyState::Watchdog]);
            }
        }
    }

    /// Proves that samples arrive before the daemon calls itself ready. Without any it goes on and
    /// says so: `status` and `doctor` name what is wrong.
    fn wait_for_samples(&self) {
        let begin = Mono::now();
        while Mono::now().since(begin) < FIRST_SAMPLE_MAX {
            if self.agent.sampler.newest_sample.load(Ordering::Relaxed) != 0 {
                return;
            }
            self.agent.sampler.flush();
            std::thread::sleep(Duration::from_millis(20));
        }
        tracing::error!("no sample has arrived; `agent-ctl doctor` tells more");
    }

    fn heartbeats(&self) -> (u64, u64) {
        let agent = &self.agent;
        let sampler = agent.sampler.heartbeat.load(Ordering::Relaxed);
        (sampler, agent.namer_busy_since.load(Ordering::Relaxed))
    }

    fn stuck(&self) -> Option<RunError> {
        let now = Mono::now();
        let sampler = Mono(self.agent.sampler.heartbeat.load(Ordering::Relaxed));
        if now.since(sampler) > SAMPLER_STUCK {
            let seconds = now.since(sampler).as_secs();
            return Some(RunError::Stuck {
                thread: "fp-sampler",
                seconds,
            });
        }
        let busy = Mono(self.agent.namer_busy_since.load(Ordering::Relaxed));
        if busy != Mono(0) && now.since(busy) > NAMER_STUCK {
            let seconds = now.since(busy).as_secs();
            return Some(RunError::Stuck {
                thread: "fp-namer",
                seconds,
            });
        }
        None
    }

    fn reload(&self) {
        notify(&[sd_notify::NotifyState::Reloading]);
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
        notify(&[sd_notify::NotifyState::Ready]);
    }

    /// Drains and ends the stages in the order data flows, within the grace.
    fn stop(self, cause: Option<RunError>) -> Result<(), RunError> {
        notify(&[sd_notify::NotifyState::Stopping]);
        let grace = lock(&self.agent.config).config.shutdown.grace();
        let deadline = Mono::now().plus(grace);
        self.agent.sampler.stop();
        // Both end side by side: receivers may all be gone.
        let _ = self.stop_serving.send(true);
        let drained = wait_for(&self.draining, deadline)
            & wait_for(std::slice::from_ref(&self.serving), deadline);
        // What ended after it was asked to may still have failed.
        match cause.or_else(|| self.ends.failure()) {
            Some(error) => Err(error),
            None if drained => Ok(()),
            None => Err(RunError::Grace {
                seconds: grace.as_secs(),
            }),
        }
    }
}

fn wait_for(threads: &[JoinHandle<()>], deadline: Mono) -> bool {
    while !threads.iter().all(JoinHandle::is_finished) {
        if Mono::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// The next multiple of a window's length in wall time, so that the windows of a fleet match.
fn aligned_end(clock: &WallAnchor, window: Duration) -> Mono {
    let now = Mono::now();
    let length = window.as_nanos() as i64;
    let into = clock.to_unix_ns(now).rem_euclid(length.max(1));
    now.plus(Duration::from_nanos((length - into) as u64))
}

fn notify(state: &[sd_notify::NotifyState<'_>]) {
    // Without systemd there is nobody to tell.
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "failed to notify the service manager");
    }
}

/// Where the configuration says to listen.
fn listen_at(server: &config::Server) -> grpc::Listen {
    match &server.listen {
        config::Listen::Unix(path) => grpc::Listen::Unix {
            path: path.clone(),
            mode: server.socket_mode.0,
            group: server.socket_group.clone(),
        },
        config::Listen::Tcp(address) => grpc::Listen::Tcp {
            address: *address,
            tls: server.tls.as_ref().map(|tls| grpc::TlsFiles {
                cert_file: tls.cert_file.clone(),
                key_file: tls.key_file.clone(),
                client_ca_file: tls.client_ca_file.clone(),
            }),
            token_file: server.token_file.clone(),
        },
    }
}

/// The body of `fp-grpc`.
fn serve(
    agent: Arc<Agent>,
    ready: oneshot::Sender<()>,
    stopped: watch::Receiver<bool>,
) -> Result<(), StageError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_name("fp-query")
        .build()?;
    let config = lock(&agent.config).config.clone();
    let options = ServeOptions {
        // Clients that do not go by themselves are cut off before the whole grace is over.
        grace: config.shutdown.grace().mul_f64(SERVING_GRACE_SHARE),
        ..ServeOptions::new(listen_at(&config.server))
    };
    runtime.block_on(async move {
        let metrics_server = match config.metrics.listen {
            Some(address) => serve_metrics(address, &agent, stopped.clone()).await,
            None => None,
        };
        let served = grpc::serve(options, agent, stopped, move || {
            // The receiver is waiting; it is gone only when the start was given up.
            let _ = ready.send(());
        })
        .await;
        if let Some(server) = metrics_server {
            server.abort();
        }
        served.map_err(StageError::from)
    })
}

/// Metrics are worth a warning, not the daemon: a taken port leaves it without them.
async fn serve_metrics(
    address: std::net::SocketAddr,
    agent: &Arc<Agent>,
    mut stopped: watch::Receiver<bool>,
) -> Option<tokio::task::JoinHandle<()>> {
    let listener = match tokio::net::TcpListener::bind(address).await {
        Ok(listener) => listener,
        Err(error) => {
            tracing::warn!(%address, %error, "no metrics: the address cannot be used");
            return None;
        }
    };
    let registry = agent.register_metrics();
    let watched = Arc::clone(agent);
    let health: metrics::Health = Arc::new(move || watched.health());
    Some(tokio::spawn(async move {
        let stop = async move {
            let _ = stopped.wait_for(|&stop| stop).await;
        };
        if let Err(error) = metrics::serve(listener, registry, health, stop).await {
            tracing::warn!(%error, "no metrics");
        }
    }))
}
