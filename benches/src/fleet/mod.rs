//! A fleet in front of one collector: how fast it takes windows and how fast it answers.
//!
//! Collector and load share the machine; agents are simulated and talk to loopback only. What is
//! measured is the collector's own process, as the kernel accounts it.

mod agent;
mod drilldown;
mod floor;
mod generate;
mod http;
mod page;
mod queries;
mod rights;
mod senders;
mod text;

use crate::machine::Machine;
use crate::report::{self, Table, count, mib, number};
use agent::{Acked, Agent};
use anyhow::{Context, ensure};
use generate::{Drawn, Fleet, WINDOW_S};
use proto::agent::TimeRange;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};
use testkit::fleet::{Collector, Options};
use tokio::task::LocalSet;

pub use drilldown::Args as DrilldownArgs;
pub use drilldown::run as drilldown;
pub use generate::Random;
pub use queries::Args as QueriesArgs;
pub use queries::run as queries;
pub use rights::Args as RightsArgs;
pub use rights::run as rights;
pub use senders::Args as SendersArgs;
pub use senders::run as senders;

/// Most hosts: each has a connection, and file descriptors are bounded.
const HOSTS_MAX: u64 = 5000;
/// Longest run. Unit: seconds.
const SECONDS_MAX: u64 = 3600;
/// Services of the fleet.
const SERVICES: usize = 40;
const SEED: u64 = 1;
/// What the design was measured with (shared 2-CPU machine, 50 hosts × 1 h, SQLite blocks): bytes a
/// row on disk and CPU-seconds per million rows, wire and unpacking not included.
const DESIGN: (f64, f64) = (1.33, 0.18);

/// What is asked for.
#[derive(clap::Args)]
pub struct Args {
    /// Number of hosts, each with a connection and a window every 10 s
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=HOSTS_MAX))]
    hosts: u64,
    /// Seconds to measure, after every host is connected
    #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u64).range(20..=SECONDS_MAX))]
    seconds: u64,
    /// Print Markdown tables
    #[arg(long)]
    markdown: bool,
}

/// Runs the bench and prints its tables.
///
/// # Errors
/// When the collector cannot be started, goes away, or refuses a window.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let hosts = args.hosts as usize;
    eprintln!("making a fleet of {hosts} hosts");
    let fleet = Rc::new(Fleet::new(SEED, hosts, SERVICES));
    let dir = tempfile::tempdir()?;
    let collector = start(dir.path(), hosts);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let local = LocalSet::new();
    let limit = Duration::from_secs(args.seconds);
    let steady = local.block_on(&runtime, steady(fleet.clone(), &collector, limit))?;
    let Steady {
        acked,
        used_s: used,
        wall,
        rows_before,
        late,
        memory,
        connected,
    } = steady;
    let peak = Used::of(collector.pid())?.rss_peak_bytes;
    // Ended, so that what was in memory is in its files.
    let status = collector.stop();
    ensure!(status.success(), "the collector ended with {status}");
    let disk = size_of(&dir.path().join("data"))?;
    let rows: u64 = acked.iter().map(|acked| acked.rows as u64).sum();
    let all_rows = rows + rows_before;
    let windows = limit.as_secs().div_euclid(WINDOW_S).min(60);
    let floor = floor::measure(&fleet, 0..hosts.min(50), windows)?;
    let folded = text::folded(&fleet, &mut Drawn::default());
    let mut table = Table::new(&["", "collector", "folded text + zstd", "design's figure"]);
    let mut line = |what: &str, own: String, text: String, design: String| {
        table.row([what.to_owned(), own, text, design]);
    };
    let dash = || "–".to_owned();
    let per_million = |cpu_s: f64, rows: u64| cpu_s * 1e6 / rows as f64;
    line(
        "rows/s",
        count(Some((rows as f64 / wall.as_secs_f64()) as u64)),
        dash(),
        dash(),
    );
    line(
        "CPU-s per 1M rows, all of it",
        number(Some(per_million(used, rows)), 3),
        format!(
            "{} (fold + zstd alone)",
            number(Some(per_million(folded.cpu_s, folded.rows)), 3)
        ),
        number(Some(DESIGN.1), 2),
    );
    line(
        "bytes a row on the wire",
        number(
            Some(acked.iter().map(|a| a.bytes as f64).sum::<f64>() / rows as f64),
            2,
        ),
        number(Some(folded.bytes as f64 / folded.rows as f64), 2),
        dash(),
    );
    line(
        "bytes a row on disk, all windows",
        number(Some(disk as f64 / all_rows as f64), 2),
        number(Some(folded.bytes as f64 / folded.rows as f64), 2),
        number(Some(DESIGN.0), 2),
    );
    line(
        "of the floor, which is unpacking, ordering and packing the same rows",
        number(Some(per_million(used, rows) / floor.take_s), 1),
        dash(),
        dash(),
    );
    line("peak RSS, MiB", number(Some(mib(peak)), 0), dash(), dash());
    let after: Vec<Duration> = acked.iter().map(|acked| acked.after).collect();
    for (what, all) in [("ack after", after), ("load behind its time", late)] {
        for (name, share) in [("median", 0.5), ("99th", 0.99), ("worst", 1.0)] {
            line(
                &format!("{what}, {name}, ms"),
                number(Some(quantile(&all, share) * 1e3), 1),
                dash(),
                dash(),
            );
        }
    }
    print!("{}", report::machine(&Machine::here()));
    println!(
        "load     {hosts} simulated hosts for {} s: {} windows, {} rows, {} samples",
        wall.as_secs(),
        count(Some(acked.len() as u64)),
        count(Some(rows)),
        count(Some(acked.iter().map(|acked| acked.samples).sum()))
    );
    println!(
        "start    the first window of every host is acknowledged after {} s, {FIRST_TOGETHER} hosts at \
         a time",
        connected.as_secs()
    );
    let memory: Vec<String> = memory
        .iter()
        .map(|&rss| number(Some(mib(rss)), 0))
        .collect();
    println!(
        "memory   {} MiB RSS, at equal distances over the run",
        memory.join(", ")
    );
    print!(
        "{}",
        if args.markdown {
            table.markdown()
        } else {
            table.text()
        }
    );
    Ok(())
}

/// So many complete windows that end before now.
fn past(windows: u64) -> TimeRange {
    let window_ns = (WINDOW_S * 1_000_000_000) as i64;
    let end = testkit::clock::unix_ns() / window_ns * window_ns;
    TimeRange {
        start_unix_ns: end - windows as i64 * window_ns,
        end_unix_ns: end,
    }
}

fn start(dir: &Path, hosts: usize) -> Collector {
    eprintln!("starting a collector for {hosts} hosts");
    Options::new().start(dir)
}

/// Hosts that push their first window at the same time. It brings the frames of its stacks, which
/// the load, that has one thread, makes up and packs: with all of them at once hosts wait for that
/// thread.
const FIRST_TOGETHER: usize = 8;
/// Times that memory is looked at in a run, beside its start.
const LOOKS: u32 = 10;

/// What came of a run.
#[derive(Default)]
struct Steady {
    /// Windows that were handed over within the measurement.
    acked: Vec<Acked>,
    /// CPU time of the collector.
    used_s: f64,
    /// Length of the measurement.
    wall: Duration,
    /// What was pushed before the measurement started.
    rows_before: u64,
    /// How long after its time each window was handed over: the load has one thread, and when that
    /// gets no CPU, acknowledgements wait to be read as long.
    late: Vec<Duration>,
    /// Resident memory at equal distances. Unit: bytes.
    memory: Vec<u64>,
    /// Until every host had an acknowledgement.
    connected: Duration,
}

/// Every host pushes a window each 10 s, out of step with the others; what is handed over and
/// acknowledged within `limit` counts, a window after all have pushed their first.
async fn steady(
    fleet: Rc<Fleet>,
    collector: &Collector,
    limit: Duration,
) -> anyhow::Result<Steady> {
    let hosts = fleet.hosts.len();
    let address = collector.options().grpc();
    let period = Duration::from_secs(WINDOW_S);
    let (sender, mut acks) = tokio::sync::mpsc::channel(hosts);
    let mut tasks = tokio::task::JoinSet::new();
    let begin = tokio::time::Instant::now();
    let turns = Rc::new(tokio::sync::Semaphore::new(FIRST_TOGETHER));
    for host in 0..hosts {
        let (fleet, address, sender) = (fleet.clone(), address.clone(), sender.clone());
        let turns = turns.clone();
        tasks.spawn_local(async move {
            let mut drawn = Drawn::default();
            let start = || testkit::clock::unix_ns() - (WINDOW_S * 1_000_000_000) as i64;
            let turn = turns.acquire().await?;
            let mut agent = Agent::connect(&address, &fleet, host).await?;
            let acked = agent.push(&fleet, 1, start(), &mut drawn).await?;
            drop(turn);
            let mut due = begin + period.mul_f64(host as f64 / hosts as f64);
            let mut sent = sender.send((1, acked, Duration::ZERO)).await;
            for window in 2.. {
                if sent.is_err() {
                    break;
                }
                // What the load has no time for is left out: it would come as a burst.
                while due <= tokio::time::Instant::now() {
                    due += period;
                }
                tokio::time::sleep_until(due).await;
                let acked = agent.push(&fleet, window, start(), &mut drawn).await?;
                let late = acked.handed.saturating_duration_since(due.into_std());
                sent = sender.send((window, acked, late)).await;
            }
            anyhow::Ok(())
        });
    }
    drop(sender);
    let (mut run, mut first) = (Steady::default(), 0);
    let mut measured: Option<(Instant, f64)> = None;
    loop {
        tokio::select! {
            Some(ended) = tasks.join_next() => ended?.context("a simulated host gave up")?,
            Some((window, ack, late)) = acks.recv() => {
                first += usize::from(window == 1);
                if let Some((since, cpu_s)) = measured {
                    let passed = since.elapsed();
                    if passed >= limit * run.memory.len() as u32 / LOOKS {
                        run.memory.push(rss(collector)?);
                    }
                    if passed >= limit {
                        run.used_s = Used::of(collector.pid())?.cpu_s - cpu_s;
                        run.wall = passed;
                        return Ok(run);
                    }
                    // What was on its way when the measurement started waited beside first windows.
                    if ack.handed >= since {
                        run.acked.push(ack);
                        run.late.push(late);
                        continue;
                    }
                }
                run.rows_before += ack.rows as u64;
                if run.connected.is_zero() && first == hosts {
                    run.connected = begin.elapsed();
                    eprintln!("all hosts are connected after {} s", run.connected.as_secs());
                }
                let is_in_step = first == hosts && begin.elapsed() >= run.connected + period;
                if measured.is_none() && is_in_step {
                    measured = Some((Instant::now(), Used::of(collector.pid())?.cpu_s));
                }
            }
        }
    }
}

/// Resident memory now. Unit: bytes.
fn rss(collector: &Collector) -> anyhow::Result<u64> {
    Ok(crate::cost::Usage::of(collector.pid())?.rss_bytes)
}

fn quantile(all: &[Duration], share: f64) -> f64 {
    let mut all = all.to_vec();
    all.sort_unstable();
    let at = ((all.len() as f64 * share) as usize).min(all.len().saturating_sub(1));
    all.get(at).map_or(0.0, Duration::as_secs_f64)
}

/// What a process has used, threads that ended included.
struct Used {
    cpu_s: f64,
    rss_peak_bytes: u64,
}

impl Used {
    fn of(pid: u32) -> anyhow::Result<Used> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let (_, fields) = stat.rsplit_once(')').context("a process without a name")?;
        let ticks: u64 = fields
            .split_whitespace()
            .skip(11)
            .take(2)
            .map(|field| field.parse::<u64>().unwrap_or(0))
            .sum();
        let usage = crate::cost::Usage::of(pid)?;
        Ok(Used {
            cpu_s: ticks as f64 / rustix::param::clock_ticks_per_second() as f64,
            rss_peak_bytes: usage.rss_peak_bytes,
        })
    }
}

/// Bytes of all files below a directory.
fn size_of(dir: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        bytes += if meta.is_dir() {
            size_of(&entry.path())?
        } else {
            meta.len()
        };
    }
    Ok(bytes)
}
