//! Connects the stages and starts them: each stage before those that send to it, the sampler and
//! the server last.
//!
//! [`Parts`] are opened before any thread runs. Then each function here starts a stage and returns
//! the ends of the queues that lead to it.

use super::ends::{Ends, RunError};
use super::serve::{listen_at, serve};
use super::{Notifier, Stages, confined, uplink};
use crate::agent::{
    self, Agent, Budget, BudgetInForce, ConfigSource, Fleet, Sampling, SamplingFacts, SetLogLevel,
    Settings, StageCounters, StageHealth, StartFacts,
};
use crate::grpc;
use agent_config::{Config, Loaded};
use aggregate::batch::RawBatch;
use aggregate::batch_symbolizer::BatchSymbolizer;
use aggregate::recorder::Recorder;
use aggregate::recorders::Recorders;
use cgroup::CgroupTable;
use cgroup::containers::{self, ContainerMetadataProvider, Containers, Source};
use host::bounds::CacheBounds;
use host::cpus::CpuWatch;
use host::facts::Environment;
use host::sys::Priority;
use host::time::{MonotonicTime, WallAnchor};
use identity::HostName;
use jit::ask::AskOptions;
use jit::notice::Notice;
use jit::{self, JitSymbolLookup, Watcher};
use perf::plan::Limits;
use perf::rings::Rings;
use pins::Pins;
use sampler::workers::file_loader::{FileLoader, Handover, Modules, Request, Scanned};
use sampler::workers::stack_reader::{self, StackReader};
use sampler::{self, Queues, Sampler, SamplerStart};
use sandbox::Sandbox;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use symbolize::debug_files;
use symbolize::fetched::FetchedFiles;
use symbolize::files::FileStore;
use symbolize::{KernelSymbols, SymbolCounters, SymbolOptions, Symbolizer};
use tokio::sync::{oneshot, watch};
use unwind::info::generated;
use unwind::info::generated::Generated;
use unwind::process::scan::Scan;
use unwind::walk::{UnwindUpdate, Unwinder, look};

/// Batches between sampler and symbolizer. With two, the symbolizer may take a complete window to
/// name one while the sampler fills the next; beyond that windows get longer.
const BATCHES: usize = 2;

/// Files announced and not yet opened. A start of a large host announces some thousands within a
/// second; what finds no room is announced again.
const FILES_QUEUED_MAX: usize = 1024;

/// Modules read and not yet taken by the sampler, which takes all of them once a second.
const MODULES_QUEUED_MAX: usize = 1024;

/// Parts that the stages work with.
struct Parts {
    rings: Rings,
    facts: SamplingFacts,
    kernel: KernelSymbols,
    cgroups: CgroupTable,
    container_counts: Arc<containers::ProviderCounts>,
    asker: Option<ContainerMetadataProvider>,
    file_loader: FileLoader,
    /// Found after the rings were opened.
    processes: Scan,
    counters: Arc<SymbolCounters>,
    store: Arc<FileStore>,
    shared: Arc<sampler::SamplerHandle>,
}

impl Parts {
    fn open(config: &Config) -> Result<Parts, RunError> {
        let (rings, facts) = agent::open_sampling(config, Limits::NONE)?;
        tracing::info!(
            event = facts.event.name(),
            rate_hz = facts.plan.rate_hz,
            cpus = facts.cpus_sampled,
            "sampling"
        );
        if let Some(reason) = &facts.fallback {
            tracing::warn!(reason, "sampling `{}` instead", facts.event.name());
        }
        let mut cgroups = CgroupTable::discover();
        let container_counts = Arc::new(containers::ProviderCounts::default());
        let asker = containers_asked(config, &container_counts).map(|(containers, asker)| {
            cgroups.set_containers(containers);
            asker
        });
        let file_loader = FileLoader::default();
        let processes = file_loader.scan();
        let counters = Arc::new(SymbolCounters::default());
        let debug_files = debug_files::DebugFileOptions {
            dirs: config.symbols.debug_dirs.clone(),
            lines: config.symbols.lines || config.symbols.inlined_frames,
        };
        let store = FileStore::new(None, Arc::clone(&counters)).with_debug_files(debug_files);
        let shared = Arc::new(sampler::SamplerHandle::new().map_err(RunError::Setup)?);
        if let Some(announcer) = cgroups.containers().announcer() {
            // Nobody else sets it.
            let _ = shared.containers.set(announcer);
        }
        Ok(Parts {
            rings,
            facts,
            kernel: KernelSymbols::read().unwrap_or_else(|_| KernelSymbols::none()),
            cgroups,
            container_counts,
            asker,
            file_loader,
            processes,
            counters,
            store: Arc::new(store),
            shared,
        })
    }

    /// Creates the state shared by all stages.
    fn agent(
        &self,
        loaded: Loaded,
        source: ConfigSource,
        set_log_level: SetLogLevel,
    ) -> Arc<Agent> {
        let config = loaded.config.clone();
        let (facts, clock) = (&self.facts, Arc::new(WallAnchor::new()));
        let mut environment = Environment::read();
        if let Some(name) = &config.collector.host_name {
            environment.host.clone_from(name);
        }
        let budget = Budget::new(&config, &environment, &facts.plan);
        let bounds = budget.memory.bounds();
        let mut recorder = Recorder::new(agent::recorder_options(&config, bounds));
        recorder.set_event(facts.event.name(), facts.event.unit());
        let identity = uplink::identity(&config, &environment);
        let name = HostName {
            host_id: identity.host_id,
            hostname: environment.host.clone(),
        };
        let pins = Arc::new(Pins::new(
            config.recorder.pins_dir.clone(),
            config.recorder.pins_bytes(),
            Arc::clone(&clock),
        ));
        let agent = Agent {
            start: StartFacts {
                started_unix_ns: clock.to_unix_ns(MonotonicTime::now()),
                started: MonotonicTime::now(),
                hierarchy: self.cgroups.hierarchy().clone(),
                environment,
                kernel_symbols: !self.kernel.hidden(),
            },
            settings: Settings {
                active: Mutex::new(loaded),
                source,
                set_log_level,
            },
            sampling: Sampling {
                sampler: Arc::clone(&self.shared),
                facts: Mutex::new(facts.clone()),
                cpus: Mutex::new(CpuWatch::new(MonotonicTime::now(), self.rings.cpu_ids())),
                arrivals: Mutex::default(),
            },
            recorder: RwLock::new(recorder),
            clock,
            budget: BudgetInForce {
                state: Mutex::new(budget),
                bounds: Arc::new(CacheBounds::new(bounds)),
            },
            health: StageHealth::default(),
            counters: StageCounters {
                symbols: Arc::clone(&self.counters),
                containers: Arc::clone(&self.container_counts),
                runtimes: Arc::default(),
                programs: Arc::default(),
            },
            uplink: OnceLock::new(),
            fleet: Arc::new(Fleet::open(&config, name)),
            captures: OnceLock::new(),
            triggers: Arc::default(),
            pins,
            sandbox: Arc::new(Sandbox::new(config.sandbox == agent_config::Sandbox::Auto)),
            watchers: Arc::default(),
        };
        Arc::new(agent)
    }
}

impl Stages {
    /// Starts all of them, and waits until clients are answered.
    pub(super) fn start(
        loaded: Loaded,
        source: ConfigSource,
        set_log_level: SetLogLevel,
    ) -> Result<Stages, RunError> {
        let config = loaded.config.clone();
        grpc::check_free(&listen_at(&config.server))?;
        let parts = Parts::open(&config)?;
        let agent = parts.agent(loaded, source, set_log_level);
        let recorders = Arc::<Recorders>::default();
        agent.take_captures(parts.cgroups.containers().clone(), Arc::clone(&recorders));
        agent.keep_times(&config);
        let ends = Ends::new().map_err(RunError::Setup)?;
        start_pipeline(&ends, &agent, &config, parts, recorders).map_err(RunError::Setup)?;
        if let Some(target) = agent.fleet.target(&config) {
            uplink::start(&ends, &agent, target).map_err(RunError::Setup)?;
        }

        let (stop_serving, stopped) = watch::channel(false);
        let (ready, is_ready) = oneshot::channel();
        let served = Arc::clone(&agent);
        ends.spawn_awaited("fp-grpc", move || serve(served, ready, stopped))
            .map_err(RunError::Setup)?;
        uplink::prepare(&ends, &agent);
        ends.prepare_triggers(&agent);
        agent.configure_triggers(&config).map_err(RunError::Setup)?;
        let stages = Stages {
            agent,
            ends,
            stop_serving,
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
}

/// Starts what leads from the kernel's samples to the recorder.
fn start_pipeline(
    ends: &Ends,
    agent: &Arc<Agent>,
    config: &Config,
    parts: Parts,
    recorders: Arc<Recorders>,
) -> io::Result<()> {
    let Parts {
        rings,
        facts,
        kernel,
        cgroups,
        asker,
        file_loader,
        processes,
        store,
        shared,
        ..
    } = parts;
    let idle = match kernel.hidden() {
        true => Vec::new(),
        false => kernel.idle_ranges(),
    };
    let copies = facts.plan.stack_bytes > 0;
    let files = start_files(ends, agent, config, file_loader, &store, copies)?;
    let (code, generated) = start_jit(ends, agent, config)?;
    let fetched = start_debuginfod(ends, agent, config)?;
    let mut debug_dirs = config.symbols.debug_dirs.clone();
    debug_dirs.extend(
        fetched
            .is_some()
            .then(|| config.symbols.debuginfod_dir.clone()),
    );
    let naming = SymbolizeStage {
        fetched,
        symbols: SymbolOptions {
            lines: config.symbols.lines,
            inlined_frames: config.symbols.inlined_frames,
            go_lines: config.symbols.go_lines,
            debug_dirs,
            cache_bytes: config.symbols.cache_bytes(),
        },
        kernel,
        store,
        cgroups,
        book: JitSymbolLookup::new(code.clone()),
        recorders,
        lines_bytes: config.captures.lines_bytes(),
    };
    let (batches, recycled) = start_symbolizer(ends, agent, naming)?;
    if let Some(asker) = asker {
        ends.spawn_awaited("fp-containers", move || {
            asker.run();
            Ok(())
        })?;
    }
    let looks = match config.unwind.look {
        true => Some(start_looker(ends)?),
        false => None,
    };
    let mut unwinder = Unwinder::new(facts.depths, Arc::clone(&agent.budget.bounds));
    unwinder.looks.on = looks.is_some();
    unwinder.holes.on = looks.is_some();
    unwinder.known_callers.on = config.unwind.known_callers && looks.is_some();
    unwinder.scan(config.unwind.scan);
    let window = config.windows.length();
    let start = SamplerStart {
        unwinder,
        period: facts.period(),
        rings,
        processes: processes.processes,
        idle,
        window,
        first_window_end: agent.clock.next_multiple(window),
    };
    let queues = Queues {
        batches,
        recycled,
        file_loader: files.wanted,
        scanned: files.scanned,
        modules: files.modules,
        generated,
        code,
        looks,
    };
    ends.spawn_awaited("fp-sampler", move || {
        if !Priority::prefer_this_thread(sampler::NICE) {
            tracing::info!(
                nice = sampler::NICE,
                "the sampler has ordinary priority: if all CPUs are busy, it may be late and lose \
                 samples; grant CAP_SYS_NICE, or set LimitNICE={} in its unit",
                sampler::NICE
            );
        }
        Ok(Sampler::new(start, queues, shared)?.run()?)
    })
}

/// The sampler's ends of the queues of `fp-files`.
struct Files {
    wanted: SyncSender<Request>,
    scanned: Receiver<Scanned>,
    modules: (Receiver<UnwindUpdate>, Arc<Handover>),
}

/// `copies`: stacks are copied, so unwind tables are wanted.
fn start_files(
    ends: &Ends,
    agent: &Agent,
    config: &Config,
    file_loader: FileLoader,
    store: &Arc<FileStore>,
    copies: bool,
) -> io::Result<Files> {
    let (wanted, requests) = sync_channel(FILES_QUEUED_MAX);
    let (scans, scanned) = sync_channel(1);
    let (loaded, modules) = sync_channel(MODULES_QUEUED_MAX);
    let handover = Arc::new(Handover::default());
    handover.wanted.store(copies, Ordering::Relaxed);
    let for_sampler = Modules {
        loaded,
        handover: Arc::clone(&handover),
        debug_dirs: config.symbols.debug_dirs.clone(),
        derive: config.unwind.derive,
    };
    let (store, heartbeat) = (Arc::clone(store), Arc::clone(&agent.health.files));
    ends.spawn_awaited("fp-files", move || {
        file_loader.run(&requests, &store, &scans, &for_sampler, &heartbeat);
        Ok(())
    })?;
    Ok(Files {
        wanted,
        scanned,
        modules: (modules, handover),
    })
}

/// Starts what asks debuginfod servers, where there are any. Without a place to keep files nobody
/// is asked.
fn start_debuginfod(
    ends: &Ends,
    agent: &Agent,
    config: &Config,
) -> io::Result<Option<Arc<FetchedFiles>>> {
    let symbols = &config.symbols;
    if symbols.debuginfod.is_empty() {
        return Ok(None);
    }
    let bytes_max = u64::from(symbols.debuginfod_mib) << 20;
    let counters = Arc::clone(&agent.counters.symbols);
    let opened = FetchedFiles::open(&symbols.debuginfod_dir, bytes_max, counters);
    let files = match opened {
        Ok(files) => Arc::new(files),
        Err(error) => {
            let dir = symbols.debuginfod_dir.display();
            tracing::error!("debuginfod is off: failed to use `{dir}`: {error}");
            return Ok(None);
        }
    };
    let (fetching, urls) = (Arc::clone(&files), symbols.debuginfod.clone());
    let (sandbox, reach) = (Arc::clone(&agent.sandbox), confined::debuginfod(symbols));
    // It goes on until the process ends: what it has fetched is on disk by then.
    ends.spawn("fp-debuginfod", move || {
        sandbox.confine("fp-debuginfod", &reach);
        fetching.run(&urls)
    })?;
    Ok(Some(files))
}

/// Starts the thread that follows generated code. Returns where to report its processes, and where
/// its rules come from.
fn start_jit(
    ends: &Ends,
    agent: &Agent,
    config: &Config,
) -> io::Result<(SyncSender<Notice>, Receiver<Generated>)> {
    let options = jit::Options {
        perf_maps: config.jit.perf_maps,
        jitdumps: config.jit.jitdumps,
        hotspot: config.jit.hotspot,
        max_bytes: config.jit.perf_map_max_bytes(),
    };
    let (code, notices) = sync_channel(jit::notice::NOTICES_MAX);
    let (rules, generated) = sync_channel(generated::QUEUED_MAX);
    let counters = Arc::clone(&agent.counters.symbols);
    let ask = AskOptions::from(&config.jit);
    let asks = ask.hotspot_attach || ask.dotnet_enable;
    let asker = jit::ask::RuntimeAttacher::new(ask)
        .counting(Arc::clone(&counters))
        .reporting_to(Arc::clone(&agent.counters.runtimes));
    let body = move || {
        Watcher::new(options, asker, counters, rules).run(&notices);
        Ok(())
    };
    // It may wait for helpers. All that it leaves behind is what runtimes wrote because they were
    // asked.
    match asks {
        true => ends.spawn_awaited("fp-jit", body)?,
        false => ends.spawn("fp-jit", body)?,
    }
    Ok((code, generated))
}

/// Parts that the symbolizer works with.
struct SymbolizeStage {
    fetched: Option<Arc<FetchedFiles>>,
    symbols: SymbolOptions,
    kernel: KernelSymbols,
    store: Arc<FileStore>,
    cgroups: CgroupTable,
    book: JitSymbolLookup,
    recorders: Arc<Recorders>,
    /// Memory of what lines of captures are read from.
    lines_bytes: usize,
}

/// Starts the symbolizer. Returns where batches go, and where they come back.
fn start_symbolizer(
    ends: &Ends,
    agent: &Arc<Agent>,
    naming: SymbolizeStage,
) -> io::Result<(SyncSender<RawBatch>, Receiver<RawBatch>)> {
    let (batches, from_sampler) = sync_channel(BATCHES + sampler::CAPTURE_BATCHES);
    let (recycle, recycled) = sync_channel(BATCHES + sampler::CAPTURE_BATCHES);
    for _ in 0..BATCHES {
        // The queue has room for all of them.
        let _ = recycle.try_send(RawBatch::default());
    }
    let agent = Arc::clone(agent);
    ends.spawn_awaited("fp-symbolize", move || {
        naming.run(&agent, &from_sampler, &recycle);
        Ok(())
    })?;
    Ok((batches, recycled))
}

impl SymbolizeStage {
    /// The body of `fp-symbolize`.
    fn run(self, agent: &Agent, batches: &Receiver<RawBatch>, recycle: &SyncSender<RawBatch>) {
        let _lowered = agent.health.symbolizer_pace.take_thread();
        let counters = Arc::clone(&agent.counters.symbols);
        let symbolizer = Symbolizer::new(self.symbols, Arc::clone(&self.store), counters);
        let mut symbolizer = symbolizer.fetching(self.fetched);
        symbolizer.set_kernel_symbols(self.kernel);
        symbolizer.follow(Arc::clone(&agent.budget.bounds));
        let symbolizer = BatchSymbolizer::new(symbolizer, self.store, self.book, self.cgroups)
            .counting_runtimes(Arc::clone(&agent.counters.runtimes))
            .reporting_programs(Arc::clone(&agent.counters.programs))
            .capturing(self.recorders)
            .with_lines_in(self.lines_bytes);
        symbolizer.run(batches, recycle, &agent.recorder, |busy| {
            if busy {
                return agent.health.symbolizer.start();
            }
            let now = MonotonicTime::now();
            let took = agent
                .health
                .symbolizer
                .started()
                .map(|started| now.since(started));
            agent
                .health
                .symbolizer_pace
                .done(took.unwrap_or_default(), now);
            agent.health.symbolizer.end();
        });
        let recorder = agent.recorder.write();
        let mut recorder = recorder.unwrap_or_else(PoisonError::into_inner);
        recorder.drop_sink();
        let samples = recorder.totals_of_quality().taken;
        let windows = recorder.stats().totals.windows_closed;
        tracing::info!(samples, windows, "closed the last window");
    }
}

type Looks = (
    SyncSender<stack_reader::Request>,
    Receiver<look::StackReadAnswer>,
);

/// Starts what looks into the memory of threads.
fn start_looker(ends: &Ends) -> io::Result<Looks> {
    let (ask, asked) = sync_channel(stack_reader::QUEUED_MAX);
    let (answer, answers) = sync_channel(stack_reader::QUEUED_MAX);
    ends.spawn_awaited("fp-look", move || {
        StackReader::default().run(&asked, &answer);
        Ok(())
    })?;
    Ok((ask, answers))
}

/// Creates the thread that asks container runtimes, if configured.
fn containers_asked(
    config: &Config,
    counts: &Arc<containers::ProviderCounts>,
) -> Option<(Containers, ContainerMetadataProvider)> {
    let wanted = &config.containers;
    let chosen = wanted.labels.iter().map(|name| name.as_str().into());
    let sources = Source::of_config(&wanted.sources);
    wanted
        .metadata
        .then(|| Containers::new(sources, &chosen.collect(), Arc::clone(counts)))
}
