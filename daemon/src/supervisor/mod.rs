//! Starts the stages in order, watches over them, and ends them.
//!
//! Every stage is a thread named after it. A thread that ends when it should not, by error or by
//! panic, ends the process with that error: a daemon that samples and does not answer, or answers
//! and does not sample, helps nobody. The main thread waits for signals, reports to systemd, and
//! checks the heartbeats.

mod ends;

use crate::agent::{
    self, Agent, Budget, ConfigSource, NAMER_LATE, SAMPLER_STUCK, SetLogLevel, lock, with_causes,
};
use crate::aggregate::batch::RawBatch;
use crate::aggregate::namer::Namer;
use crate::aggregate::recorder::{ClosedSink, Recorder};
use crate::bounds::CacheBounds;
use crate::capture::recorders::Recorders;
use crate::cgroup::CgroupTable;
use crate::cgroup::containers::{self, Asker, Containers, Source};
use crate::config::{self, Loaded};
use crate::cpus::{CpuWatch, Notice};
use crate::export::{self, Exporter};
use crate::grpc::{self, ServeOptions};
use crate::heartbeat::{Heartbeat, Pace};
use crate::jit::{self, CodeBook, Watcher};
use crate::metrics;
use crate::notify::Notifier;
use crate::perf::environment::Environment;
use crate::perf::plan::Limits;
use crate::pins::Pins;
use crate::pins::bring::Bringer;
use crate::process::looker::{self, Looker};
use crate::process::scout::{Handover, Modules, Scout};
use crate::sampler::{self, Queues, Sampler, Start};
use crate::symbolize::debug_files;
use crate::symbolize::files::FileStore;
use crate::symbolize::{KernelSymbols, SymbolCounters, SymbolOptions, Symbolizer};
use crate::sys::{KernelEvents, Poller, SignalFd, WakeFd, keep_memory_private};
use crate::sys::{keep_heap_small, raise_descriptor_limit};
use crate::time::{Mono, WallAnchor};
use crate::unwind::{Unwinder, generated};
use ends::{Ends, StageError};
pub use ends::{Exit, RunError};
use sd_notify::NotifyState;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// Batches between sampler and namer. With two the namer may take a whole window to name one while
/// the sampler fills the next; beyond that windows get longer.
const BATCHES: usize = 2;

/// Files announced and not yet opened. A start of a large host announces some thousands within a
/// second; what finds no room is announced again.
const FILES_QUEUED_MAX: usize = 1024;

/// Modules read and not yet taken by the sampler, which takes all of them once a second.
const MODULES_QUEUED_MAX: usize = 1024;

/// How often heartbeats and the clock are checked when systemd does not ask for more.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// How often what the service manager had no room for is sent again.
const UNSENT_INTERVAL: Duration = Duration::from_secs(1);

/// Windows that end further than this from a multiple of their length in wall time are aligned again:
/// the clocks drift by some milliseconds a minute where nobody corrects one of them.
const UNALIGNED_MAX: Duration = Duration::from_millis(100);

/// A change of the wall clock worth a line in the log.
const CLOCK_MOVES_MIN: Duration = Duration::from_secs(1);

/// How often the list of CPUs is looked at where the kernel does not say when it changes.
const CPUS_INTERVAL: Duration = Duration::from_secs(2);

/// Longest wait for the first sample. The CPU clock ticks on idle CPUs too, so at 1 Hz one is due.
const FIRST_SAMPLE_MAX: Duration = Duration::from_secs(3);

/// A namer that has worked on one batch for this long is stuck on a file system.
const NAMER_STUCK: Duration = Duration::from_secs(300);

/// Part of the shutdown's grace in which captures end with what they have. Most take a part of a second; who
/// does not read what was captured is not waited for longer.
const CAPTURES_GRACE_SHARE: f64 = 0.3;

/// Part of it in which what came of captures may reach the collector.
const ORDERS_GRACE_SHARE: f64 = 0.7;

/// Part of the shutdown's grace that clients get to finish what they asked.
const SERVING_GRACE_SHARE: f64 = 0.6;

/// Part of the shutdown's grace in which the last windows may reach the collector. What does not is in
/// the spool.
const PUSHING_GRACE_SHARE: f64 = 0.8;

/// Threads for what takes long: the queries that may run at once, and status, reload, scrapes and the begin
/// of captures beside them.
const BLOCKING_THREADS: usize = grpc::QUERIES_MAX + 3;

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
    let end = stages.watch(&signals);
    stages.stop(end)
}

/// Who asks runtimes for containers, where the configuration wants it.
fn containers_asked(
    config: &config::Config,
    counts: &Arc<containers::Counts>,
) -> Option<(Containers, Asker)> {
    let wanted = &config.containers;
    let chosen = wanted.labels.iter().map(|name| name.as_str().into());
    let sources = Source::of_config(&wanted.sources);
    wanted
        .metadata
        .then(|| Containers::new(sources, &chosen.collect(), Arc::clone(counts)))
}

/// What runs.
struct Stages {
    agent: Arc<Agent>,
    ends: Ends,
    /// Sampling and naming, which drain; then the rest.
    draining: Vec<JoinHandle<()>>,
    /// What talks to the collector: it ends by itself, in its part of the grace.
    pushing: Vec<JoinHandle<()>>,
    stop_serving: watch::Sender<bool>,
    serving: JoinHandle<()>,
    manager: Notifier,
}

impl Stages {
    fn start(
        loaded: Loaded,
        source: ConfigSource,
        set_log_level: SetLogLevel,
    ) -> Result<Stages, RunError> {
        let config = loaded.config.clone();
        let setup = RunError::Setup;
        let clock = Arc::new(WallAnchor::new());
        let (rings, facts) = agent::open_sampling(&config, Limits::NONE)?;
        tracing::info!(
            event = facts.event.name(),
            rate_hz = facts.plan.rate_hz,
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
        let mut cgroups = CgroupTable::discover();
        let container_counts = Arc::new(containers::Counts::default());
        let asker = containers_asked(&config, &container_counts).map(|(containers, asker)| {
            cgroups.set_containers(containers);
            asker
        });
        let finder = Scout::default();
        let processes = finder.scan();
        let counters = Arc::new(SymbolCounters::default());
        let debug_files = debug_files::Wanted {
            dirs: config.symbols.debug_dirs.clone(),
            lines: config.symbols.lines || config.symbols.inlined_frames,
        };
        let store = FileStore::new(None, Arc::clone(&counters)).with_debug_files(debug_files);
        let store = Arc::new(store);
        let shared = Arc::new(sampler::Shared::new().map_err(setup)?);
        if let Some(announcer) = cgroups.containers().announcer() {
            // Nobody else sets it.
            let _ = shared.containers.set(announcer);
        }
        let environment = Environment::read();
        let budget = Budget::new(&config, &environment, &facts.plan);
        let bounds = budget.memory.bounds();
        let mut recorder = Recorder::new(agent::recorder_options(&config, bounds));
        recorder.set_event(facts.event.name(), facts.event.unit());
        let exporting = exporter(&config, &environment, &clock).map(|(exporter, sink, queue)| {
            recorder.set_sink(sink);
            (Arc::new(exporter), queue)
        });
        let export = exporting.as_ref().map(|(exporter, _)| Arc::clone(exporter));
        let pins = Pins::new(
            config.recorder.pins_dir.clone(),
            config.recorder.pins_bytes(),
            Arc::clone(&clock),
        );
        let pins = Arc::new(pins);
        let bringer = export.as_ref().map(|exporter| {
            let bringer = Bringer::new(Arc::clone(&pins), Arc::clone(exporter));
            Arc::new(bringer)
        });
        let agent = Arc::new(Agent {
            sampler: Arc::clone(&shared),
            recorder: RwLock::new(recorder),
            started_unix_ns: clock.to_unix_ns(Mono::now()),
            clock,
            config: Mutex::new(loaded),
            source,
            sampling: Mutex::new(facts.clone()),
            cpus: Mutex::new(CpuWatch::new(Mono::now(), rings.cpu_ids())),
            arrivals: Mutex::default(),
            budget: Mutex::new(budget),
            losses: Mutex::default(),
            bounds: Arc::new(CacheBounds::new(bounds)),
            symbols: Arc::clone(&counters),
            containers: container_counts,
            hierarchy: cgroups.hierarchy().clone(),
            environment,
            kernel_symbols: !kernel.hidden(),
            namer: Heartbeat::default(),
            namer_pace: Pace::default(),
            files: Arc::default(),
            export,
            set_log_level,
            runtimes: Arc::default(),
            watchers: Arc::default(),
            captures: OnceLock::new(),
            control: OnceLock::new(),
            triggers: Arc::default(),
            pins,
            bringer: bringer.clone(),
            registry: OnceLock::new(),
        });
        let recorders = Arc::<Recorders>::default();
        agent.take_captures(cgroups.containers().clone(), Arc::clone(&recorders));
        let control = agent.take_orders();
        agent.keep_times(&config);
        let ends = Ends {
            wake: Arc::new(WakeFd::new().map_err(setup)?),
            list: Arc::default(),
        };

        let (batches, from_sampler) = sync_channel(BATCHES + sampler::CAPTURE_BATCHES);
        let (recycle, recycled) = sync_channel(BATCHES + sampler::CAPTURE_BATCHES);
        for _ in 0..BATCHES {
            // The queue has room for all of them.
            let _ = recycle.try_send(RawBatch::default());
        }
        let (scout, requests) = sync_channel(FILES_QUEUED_MAX);
        let (scans, scanned) = sync_channel(1);
        let (loaded, modules) = sync_channel(MODULES_QUEUED_MAX);
        let handover = Arc::new(Handover::default());
        let copies = facts.plan.stack_bytes > 0;
        handover.wanted.store(copies, Ordering::Relaxed);
        let for_sampler = Modules {
            loaded,
            handover: Arc::clone(&handover),
            debug_dirs: config.symbols.debug_dirs.clone(),
        };
        let mut draining = Vec::new();
        let (opened, heartbeat) = (Arc::clone(&store), Arc::clone(&agent.files));
        draining.push(
            ends.spawn("fp-files", move || {
                finder.run(&requests, &opened, &scans, &for_sampler, &heartbeat);
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
        let watched = jit::Options {
            perf_maps: config.jit.perf_maps,
            jitdumps: config.jit.jitdumps,
            max_bytes: config.jit.perf_map_max_bytes(),
        };
        let (code, notices) = sync_channel(jit::notice::NOTICES_MAX);
        let (rules, generated) = sync_channel(generated::QUEUED_MAX);
        let code_counters = Arc::clone(&counters);
        let ask = config.jit.ask_options();
        let asks = ask.hotspot_attach || ask.dotnet_enable;
        let code_asker = jit::ask::Asker::new(ask)
            .counting(Arc::clone(&counters))
            .reporting_to(Arc::clone(&agent.runtimes));
        let watching = ends
            .spawn("fp-jit", move || {
                Watcher::new(watched, code_asker, code_counters, rules).run(&notices);
                Ok(())
            })
            .map_err(setup)?;
        // It may wait for helpers. All that it leaves behind is what runtimes wrote because they were asked.
        if asks {
            draining.push(watching);
        }
        let book = CodeBook::new(code.clone());
        draining.push(
            ends.spawn("fp-namer", move || {
                let _lowered = named.namer_pace.take_thread();
                let files = Arc::clone(&store);
                let mut symbolizer = Symbolizer::new(symbols, files, counters);
                symbolizer.set_kernel_symbols(kernel);
                symbolizer.follow(Arc::clone(&named.bounds));
                let namer = Namer::new(symbolizer, store, book, cgroups)
                    .counting_runtimes(Arc::clone(&named.runtimes))
                    .capturing(recorders);
                namer.run(&from_sampler, &recycle, &named.recorder, |busy| {
                    if busy {
                        return named.namer.begin();
                    }
                    let now = Mono::now();
                    let took = named.namer.begun().map(|begun| now.since(begun));
                    named.namer_pace.done(took.unwrap_or_default(), now);
                    named.namer.end();
                });
                let recorder = named.recorder.write();
                let mut recorder = recorder.unwrap_or_else(PoisonError::into_inner);
                recorder.drop_sink();
                let samples = recorder.totals_of_quality().taken;
                let windows = recorder.stats().totals.windows_closed;
                tracing::info!(samples, windows, "closed the last window");
                Ok(())
            })
            .map_err(setup)?,
        );
        if let Some(asker) = asker {
            draining.push(
                ends.spawn("fp-containers", move || {
                    asker.run();
                    Ok(())
                })
                .map_err(setup)?,
            );
        }
        let mut pushing = Vec::new();
        if let Some((exporter, queue)) = exporting {
            let pusher = Arc::clone(&exporter);
            draining.push(
                ends.spawn("fp-spool", move || {
                    exporter.run_spool(&queue);
                    Ok(())
                })
                .map_err(setup)?,
            );
            pushing.push(
                ends.spawn("fp-push", move || Ok(pusher.run_push()?))
                    .map_err(setup)?,
            );
        }
        if let Some(control) = control {
            pushing.push(
                ends.spawn("fp-control", move || Ok(control.run()?))
                    .map_err(setup)?,
            );
        }
        if let Some(bringer) = bringer {
            pushing.push(
                ends.spawn("fp-pins", move || Ok(bringer.run()?))
                    .map_err(setup)?,
            );
        }
        let looks = match config.unwind.look {
            true => {
                let (ask, asked) = sync_channel(looker::QUEUED_MAX);
                let (answer, answers) = sync_channel(looker::QUEUED_MAX);
                draining.push(
                    ends.spawn("fp-look", move || {
                        Looker::default().run(&asked, &answer);
                        Ok(())
                    })
                    .map_err(setup)?,
                );
                Some((ask, answers))
            }
            false => None,
        };
        let window = config.windows.length();
        let mut unwinder = Unwinder::new(facts.depths, Arc::clone(&agent.bounds));
        unwinder.looks.on = looks.is_some();
        let start = Start {
            unwinder,
            period: facts.period(),
            rings,
            processes,
            idle,
            window,
            first_window_end: agent.clock.next_multiple(window),
        };
        let queues = Queues {
            batches,
            recycled,
            scout,
            scanned,
            modules: (modules, handover),
            generated,
            code,
            looks,
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
        ends.prepare_triggers(&agent);
        agent.configure_triggers(&config).map_err(setup)?;
        let stages = Stages {
            agent,
            ends,
            draining,
            pushing,
            stop_serving,
            serving,
            manager: Notifier::from_env(),
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
    fn watch(&mut self, signals: &SignalFd) -> Option<RunError> {
        const SIGNAL: u64 = 0;
        const END: u64 = 1;
        const KERNEL: u64 = 2;
        let watchdog = sd_notify::watchdog_enabled();
        let events = KernelEvents::new()
            .inspect_err(|error| tracing::info!(%error, "CPUs that come and go are looked for"))
            .ok();
        let interval = match &events {
            Some(_) => CHECK_INTERVAL,
            None => CPUS_INTERVAL,
        };
        let interval = watchdog.map_or(interval, |limit| (limit / 3).min(interval));
        let poller = match Poller::new().and_then(|poller| {
            poller.add(signals.as_raw_fd(), SIGNAL)?;
            poller.add(self.ends.wake.as_raw_fd(), END)?;
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
        let mut unaligned = 0;
        loop {
            let interval = match self.manager.has_unsent() {
                true => interval.min(UNSENT_INTERVAL),
                false => interval,
            };
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
            let mut notices = Vec::new();
            if let Some(events) = &events {
                events.each(|event| notices.extend(Notice::parse(event)));
            }
            self.agent.watch_cpus(&notices);
            // After a pause of the whole process (SIGSTOP, a frozen cgroup, a paused VM) this thread
            // may be the first to run: only heartbeats that a whole interval has not moved count.
            let beats = self.heartbeats();
            if beats == last_beats
                && let Some(error) = self.stuck()
            {
                return Some(error);
            }
            last_beats = beats;
            self.hurry_namer();
            self.manager.send();
            let moved = self.agent.clock.refresh();
            if moved.stepped.unsigned_abs() > CLOCK_MOVES_MIN.as_nanos() as u64 {
                let seconds = moved.stepped / 1_000_000_000;
                tracing::warn!(seconds, "the wall clock was stepped");
            }
            unaligned += moved.stepped + moved.slept;
            if unaligned.unsigned_abs() > UNALIGNED_MAX.as_nanos() as u64 {
                let length = lock(&self.agent.config).config.windows.length();
                self.agent.align_windows(length);
                unaligned = 0;
            }
            self.agent.keep_budget(Mono::now());
            self.agent.note_losses(Mono::now());
            if watchdog.is_some() {
                self.manager.tell(&NotifyState::Watchdog);
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
        (sampler, agent.namer.begun().unwrap_or_default().0)
    }

    /// Gives a late namer its turn, before what samples show is older than what is asked for.
    fn hurry_namer(&self) {
        let (agent, now) = (&self.agent, Mono::now());
        let late = agent.namer.busy_longer_than(NAMER_LATE, now);
        if let (Some(late), false) = (late, agent.namer_pace.is_raised()) {
            tracing::debug!(
                seconds = late.as_secs(),
                "the namer is late: its priority is raised"
            );
            agent.namer_pace.hurry(now);
        }
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
        let busy = self.agent.namer.busy_longer_than(NAMER_STUCK, now)?;
        Some(RunError::Stuck {
            thread: "fp-namer",
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

    /// Has captures end with what they have, and waits until that is with those who asked, and evidence on disk.
    fn end_captures(&self, deadline: Mono) {
        let Some(captures) = self.agent.captures.get() else {
            return;
        };
        captures.stop();
        let answered = captures.wait_until_answered(deadline);
        while self.agent.triggers.capturing_now() > 0 && Mono::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let unkept = self.agent.triggers.capturing_now();
        if !answered || unkept > 0 {
            let running = captures.running();
            tracing::warn!(
                running,
                unkept,
                "stopping before all captures are answered and kept"
            );
        }
    }

    /// Drains and ends the stages in the order data flows, within the grace.
    fn stop(mut self, cause: Option<RunError>) -> Result<(), RunError> {
        self.manager.tell(&NotifyState::Stopping);
        let grace = lock(&self.agent.config).config.shutdown.grace();
        let begin = Mono::now();
        let deadline = begin.plus(grace);
        let by = |share| begin.plus(grace.mul_f64(share));
        // While there is everything that an answer needs: sampler, namer, and the ways out.
        self.end_captures(by(CAPTURES_GRACE_SHARE));
        if let Some(control) = self.agent.control.get() {
            control.stop(by(ORDERS_GRACE_SHARE));
        }
        if let Some(bringer) = &self.agent.bringer {
            bringer.stop();
        }
        self.agent.sampler.stop();
        // What is left to name has the grace and no more.
        self.agent.namer_pace.hurry(Mono::now());
        if let Some(exporter) = &self.agent.export {
            exporter.stop(by(PUSHING_GRACE_SHARE));
        }
        // Both end side by side: receivers may all be gone.
        let _ = self.stop_serving.send(true);
        let drained = wait_for(&self.draining, deadline)
            & wait_for(&self.pushing, deadline)
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

/// The way to the collector, where the configuration names one.
fn exporter(
    config: &config::Config,
    environment: &Environment,
    clock: &Arc<WallAnchor>,
) -> Option<(Exporter, Box<dyn ClosedSink>, export::Queue)> {
    let collector = &config.collector;
    let options = export::Options {
        address: collector.address?,
        dir: collector.spool.dir.clone(),
        settings: export::Settings::of(collector),
        identity: export::Identity::of_this_host(collector.host_id.as_deref(), &environment.host),
        host: export::HostInfo::of(environment),
    };
    Some(Exporter::new(options, Arc::clone(clock)))
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
