//! What a capture of waits costs those who switch: two threads that wake each other over pipes on
//! one CPU, alone, beside `perf record -e sched:sched_switch -g`, which tells no wakers, the same
//! with `sched:sched_waking`, and beside captures of event `off-cpu`.
//!
//! The continuous profile runs all the time, so what is measured is the capture alone. CPU time is
//! that of the threads as the scheduler accounts it: what the tracepoints cost is in the time of
//! the threads that switch, and others on the machine are not.

use ::offcpu::WaitCounts;
use aggregate::batch::RawBatch;
use anyhow::{Context, ensure};
use capture::engine::Engine;
use capture::engine::OffCpuCapture;
use capture::offcpu::Options;
use host::bounds::{Bounds, CacheBounds};
use host::facts::Environment;
use host::heartbeat::Heartbeat;
use host::ids::CaptureId;
use host::time::MonotonicTime;
use perf::event::{EventKind, EventSpec};
use perf::plan::Machine;
use perf::rings::Rings;
use rustix::process::Signal;
use rustix::thread::{CpuSet, sched_setaffinity};
use sampler::filter::Filter;
use sampler::workers::file_loader::{FileLoader, Handover, Modules};
use sampler::{CAPTURE_BATCHES, Queues, Sampler, SamplerHandle, SamplerStart};
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::process::Command;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use symbolize::counters::SymbolCounters;
use symbolize::files::{FileStore, generation_of_mapping};
use testkit::process::Proc;
use unwind::process::scan;
use unwind::walk::{Depths, Unwinder};

/// Arguments of the bench.
#[derive(clap::Args)]
pub struct Args {
    /// Context switches a second
    #[arg(long, default_value_t = 100_000)]
    rate: u32,
    /// Seconds of each part
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Number of rounds; each round runs all parts
    #[arg(long, default_value_t = 5)]
    rounds: u32,
}

/// How often the threads stop to keep to the rate.
const BEATS_PER_SECOND: u32 = 100;

/// What watches the threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    Nothing,
    Perf,
    PerfWakers,
    FramePointers,
    StackCopies,
}

const PARTS: [Beside; 5] = [
    Beside::Nothing,
    Beside::Perf,
    Beside::PerfWakers,
    Beside::FramePointers,
    Beside::StackCopies,
];

impl Beside {
    fn text(self) -> &'static str {
        match self {
            Beside::Nothing => "nothing",
            Beside::Perf => "perf record -e sched:sched_switch -g",
            Beside::PerfWakers => "perf record, and -e sched:sched_waking",
            Beside::FramePointers => "off-cpu, frame pointers",
            Beside::StackCopies => "off-cpu, some stacks copied",
        }
    }
}

/// What one part showed.
#[derive(Clone, Copy, Debug, Default)]
struct Shown {
    /// Switches a second that were reached.
    rate: f64,
    /// CPU time of the threads for a switch. Unit: nanoseconds.
    load: f64,
    /// CPU time of who watches, for a switch of the threads.
    tool: f64,
    waits: WaitCounts,
    lost: u64,
}

/// Runs the bench and prints.
///
/// # Errors
/// When the scheduler cannot be traced here.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let rig = Rig::start()?;
    let mut all: Vec<(Beside, Shown)> = Vec::new();
    for round in 0..args.rounds {
        for beside in PARTS {
            let shown = rig.part(args, beside, u64::from(round) * 16)?;
            all.push((beside, shown));
        }
    }
    rig.end()?;
    print(args, &all);
    Ok(())
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

fn print(args: &Args, all: &[(Beside, Shown)]) {
    let of = |beside: Beside, value: fn(&Shown) -> f64| {
        median(
            all.iter()
                .filter(|it| it.0 == beside)
                .map(|it| value(&it.1)),
        )
    };
    let alone = of(Beside::Nothing, |it| it.load);
    let idle = of(Beside::Nothing, |it| it.tool);
    let perf = of(Beside::Perf, |it| it.load) - alone + of(Beside::Perf, |it| it.tool) - idle;
    println!(
        "medians of {} rounds of {} s; of a switch, in nanoseconds of CPU time\n",
        args.rounds, args.seconds
    );
    println!(
        "{:<38} {:>10} {:>8} {:>8} {:>8} {:>7} {:>9}",
        "beside", "reached/s", "switch", "added", "tool", "x perf", "of a CPU"
    );
    for beside in PARTS {
        let (load, tool) = (of(beside, |it| it.load), of(beside, |it| it.tool) - idle);
        let cost = load - alone + tool;
        println!(
            "{:<38} {:>10.0} {:>8.0} {:>8.0} {:>8.0} {:>7.2} {:>8.1}%",
            beside.text(),
            of(beside, |it| it.rate),
            load,
            load - alone,
            tool,
            cost / perf,
            cost * f64::from(args.rate) / 1e7
        );
    }
    for beside in [Beside::FramePointers, Beside::StackCopies] {
        let shown = all.iter().filter(|it| it.0 == beside).map(|it| it.1);
        let (mut waits, mut lost) = (WaitCounts::default(), 0);
        for part in shown {
            waits.add(&part.waits);
            lost += part.lost;
        }
        println!(
            "\n{}: {} waits, {} unknown, {} wakers unseen, {lost} records lost",
            beside.text(),
            waits.waits,
            waits.unknown,
            waits.wakers_unseen
        );
    }
}

/// CPU time of a thread so far, by its folder in /proc. Unit: nanoseconds.
fn cpu_ns(task: &str) -> anyhow::Result<u64> {
    let path = format!("/proc/{task}/schedstat");
    let text =
        std::fs::read_to_string(&path).with_context(|| format!("failed to read `{path}`"))?;
    let first = text.split_whitespace().next();
    first
        .and_then(|ns| ns.parse().ok())
        .context("no time in it")
}

/// The folder of this thread in /proc.
fn this_thread() -> anyhow::Result<String> {
    let link = std::fs::read_link("/proc/thread-self")?;
    Ok(link.to_string_lossy().into_owned())
}

/// Answers every byte, and says what CPU time that took.
fn answer(mut from: PipeReader, mut to: PipeWriter) -> anyhow::Result<u64> {
    pin()?;
    let before = cpu_ns("thread-self")?;
    let mut byte = [0];
    while from.read(&mut byte)? == 1 {
        to.write_all(&byte)?;
    }
    Ok(cpu_ns("thread-self")? - before)
}

/// Both threads on one CPU, the last: each byte is a switch.
fn pin() -> anyhow::Result<()> {
    let cpus = std::thread::available_parallelism()?.get();
    let mut set = CpuSet::new();
    set.set(cpus - 1);
    sched_setaffinity(None, &set)?;
    Ok(())
}

/// Switches at the rate for so long. Returns switches and the CPU time of both threads.
fn switches(rate: u32, length: Duration) -> anyhow::Result<(u64, u64)> {
    let (asked, mut ask) = std::io::pipe()?;
    let (mut answered, answers) = std::io::pipe()?;
    let other = std::thread::Builder::new().name("switch-answer".into());
    let other = other.spawn(move || answer(asked, answers))?;
    let asker = std::thread::Builder::new().name("switch-ask".into());
    let asker = asker.spawn(move || -> anyhow::Result<(u64, u64)> {
        pin()?;
        let before = cpu_ns("thread-self")?;
        let (begin, mut count) = (Instant::now(), 0u64);
        let mut beat = 0u32;
        while begin.elapsed() < length {
            // There and back are two switches.
            for _ in 0..rate / BEATS_PER_SECOND / 2 {
                ask.write_all(&[1])?;
                answered.read_exact(&mut [0])?;
                count += 2;
            }
            beat += 1;
            let due = Duration::from_secs(1) * beat / BEATS_PER_SECOND;
            std::thread::sleep(due.saturating_sub(begin.elapsed()));
        }
        Ok((count, cpu_ns("thread-self")? - before))
    })?;
    let (count, mine) = asker.join().ok().context("a thread fell")??;
    let its = other.join().ok().context("a thread fell")??;
    Ok((count, mine + its))
}

/// The sampler with the continuous profile, on a thread of its own, and what becomes of its
/// batches.
struct Rig {
    shared: Arc<SamplerHandle>,
    engine: Engine,
    sampler: std::thread::JoinHandle<anyhow::Result<()>>,
    /// The sampler's folder in /proc.
    task: String,
    closed: Receiver<()>,
    seen: Arc<Mutex<(WaitCounts, u64)>>,
}

/// Takes batches in as the symbolizer does, without naming.
fn consume(
    batches: &Receiver<RawBatch>,
    recycle: &SyncSender<RawBatch>,
    seen: &Mutex<(WaitCounts, u64)>,
    closed: &SyncSender<()>,
) {
    while let Ok(mut batch) = batches.recv() {
        if batch.capture.is_some() {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.0.add(&batch.waits);
            seen.1 += batch.quality.lost;
            if batch.closes {
                let _ = closed.try_send(());
            }
        }
        batch.clear();
        let _ = recycle.try_send(batch);
    }
}

impl Rig {
    fn start() -> anyhow::Result<Rig> {
        let environment = Environment::read();
        let spec = EventSpec {
            kind: EventKind::CpuClock,
            rate_hz: 99,
            max_stack_depth: 127,
            watermark_bytes: 128 << 10,
            stack_bytes: 0,
            side_band_bytes: 0,
        };
        let rings = Rings::open(&environment.cpus_online, &spec, 256 << 10)?;
        let window = Duration::from_secs(10);
        let bounds = Bounds {
            symbols: 0,
            unwind: 64 << 20,
            recorder: 0,
        };
        let depths = Depths {
            chain: 127,
            walk: 512,
        };
        let start = SamplerStart {
            rings,
            unwinder: Unwinder::new(depths, Arc::new(CacheBounds::new(bounds))),
            period: 1_000_000_000 / 99,
            processes: scan::all(|(pid, start, end), _| generation_of_mapping(pid, start, end))
                .processes,
            idle: vec![(1, 2)],
            window,
            first_window_end: MonotonicTime::now().plus(window),
        };
        let (queues, batches, recycle) = queues()?;
        let shared = Arc::new(SamplerHandle::new()?);
        let engine = Engine::new(Arc::clone(&shared), Machine::of(&environment));
        let (seen, (close, closed)) = (Arc::default(), sync_channel(1));
        let its = Arc::clone(&seen);
        std::thread::spawn(move || consume(&batches, &recycle, &its, &close));
        let (tell, told) = sync_channel(1);
        let of_sampler = Arc::clone(&shared);
        let sampler = std::thread::Builder::new().name("fp-sampler".into());
        let sampler = sampler.spawn(move || -> anyhow::Result<()> {
            let sampler = Sampler::new(start, queues, of_sampler)?;
            tell.send(this_thread()?)?;
            Ok(sampler.run()?)
        })?;
        let task = told.recv().context("the sampler did not start")?;
        Ok(Rig {
            shared,
            engine,
            sampler,
            task,
            closed,
            seen,
        })
    }

    fn end(self) -> anyhow::Result<()> {
        self.shared.stop();
        self.sampler.join().ok().context("the sampler fell")?
    }

    fn part(&self, args: &Args, beside: Beside, number: u64) -> anyhow::Result<Shown> {
        let length = Duration::from_secs(args.seconds);
        let dir = tempfile::tempdir()?;
        let id = CaptureId(1 + number + beside as u64);
        let perf = match beside {
            Beside::Perf => Some(perf(dir.path(), "sched:sched_switch")),
            Beside::PerfWakers => Some(perf(dir.path(), "sched:sched_switch,sched:sched_waking")),
            _ => None,
        };
        if matches!(beside, Beside::FramePointers | Beside::StackCopies) {
            let copies = beside == Beside::StackCopies;
            let wanted = OffCpuCapture {
                id,
                options: Options {
                    copy_all: false,
                    max_stack_depth: 127,
                    stack_bytes: if copies { 16 << 10 } else { 0 },
                    min_wait: Duration::ZERO,
                },
                filter: Filter::default(),
                keep_times: true,
            };
            self.engine.start_off_cpu(wanted)?;
        }
        let task = match &perf {
            Some(perf) => {
                // It opens its events within that time.
                std::thread::sleep(Duration::from_secs(1));
                perf.pid().to_string()
            }
            None => self.task.clone(),
        };
        let before = cpu_ns(&task)?;
        let begin = Instant::now();
        let (count, load_ns) = switches(args.rate, length)?;
        let rate = count as f64 / begin.elapsed().as_secs_f64();
        if self.engine.end(id) {
            let closed = self.closed.recv_timeout(Duration::from_secs(20));
            ensure!(closed.is_ok(), "the capture did not end");
        }
        let tool_ns = cpu_ns(&task)? - before;
        if let Some(mut perf) = perf {
            perf.signal(Signal::INT);
            perf.wait(Duration::from_secs(60));
        }
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (waits, lost) = std::mem::take(&mut *seen);
        Ok(Shown {
            rate,
            load: load_ns as f64 / count as f64,
            tool: tool_ns as f64 / count as f64,
            waits,
            lost,
        })
    }
}

/// The peer, of the whole host. It finds tracepoints where tracefs is mounted, for itself alone.
fn perf(dir: &std::path::Path, events: &str) -> Proc {
    let script = "test -d /sys/kernel/tracing/events || mount -t tracefs tracefs /sys/kernel/tracing; \
                  exec perf record -q -a -g -e \"$1\" -o \"$0\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]);
    command.arg(dir.join("perf.data")).arg(events);
    Proc::spawn(&mut command, dir, "perf-record")
}

/// The sampler's queues with the readers of files behind them, and the ends that batches go
/// through.
fn queues() -> anyhow::Result<(Queues, Receiver<RawBatch>, SyncSender<RawBatch>)> {
    let (batches, handed_over) = sync_channel(2 + CAPTURE_BATCHES);
    let (recycle, recycled) = sync_channel(2 + CAPTURE_BATCHES);
    recycle.send(RawBatch::default())?;
    recycle.send(RawBatch::default())?;
    let (file_loader, requests) = sync_channel(1024);
    let (scans, scanned) = sync_channel(1);
    let (loaded, modules) = sync_channel(64);
    let (_, generated) = sync_channel(1);
    let (code, _) = sync_channel(16);
    let handover = Arc::<Handover>::default();
    let for_scout = Modules {
        loaded,
        handover: Arc::clone(&handover),
        debug_dirs: Vec::new(),
        derive: true,
    };
    std::thread::spawn(move || {
        let store = Arc::new(FileStore::new(None, Arc::new(SymbolCounters::default())));
        let heartbeat = Heartbeat::default();
        FileLoader::default().run(&requests, &store, &scans, &for_scout, &heartbeat);
    });
    let queues = Queues {
        batches,
        recycled,
        file_loader,
        scanned,
        modules: (modules, handover),
        generated,
        code,
        looks: None,
    };
    Ok((queues, handed_over, recycle))
}
