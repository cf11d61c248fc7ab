//! A fleet in front of one collector: how fast it takes windows and how fast it answers.
//!
//! Collector and load share the machine; agents are simulated and talk to loopback only. What is
//! measured is the collector's own process, as the kernel accounts it.

mod agent;
mod generate;
mod queries;
mod text;

use crate::machine::Machine;
use crate::report::{self, Table, count, mib, number};
use agent::{Acked, Agent};
use anyhow::{Context, ensure};
use fixtures::fleet::{Collector, Options};
use generate::{Drawn, Fleet, WINDOW_S};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::task::LocalSet;

pub use queries::Args as QueriesArgs;
pub use queries::run as queries;

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
    /// Hosts, each with a connection and a window every 10 s
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=HOSTS_MAX))]
    hosts: u64,
    /// Seconds to measure, after every host is connected
    #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u64).range(20..=SECONDS_MAX))]
    seconds: u64,
    /// Tables for a README
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
    let (acked, used, wall, late) =
        local.block_on(&runtime, steady(fleet.clone(), &collector, limit))?;
    let peak = Used::of(collector.pid())?.rss_peak_bytes;
    // Ended, so that what was in memory is in its files.
    let status = collector.stop();
    ensure!(status.success(), "the collector ended with {status}");
    let disk = size_of(&dir.path().join("data"))?;
    let rows: u64 = acked.iter().map(|acked| acked.rows as u64).sum();
    let all_rows = rows + late.rows;
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
    line("peak RSS, MiB", number(Some(mib(peak)), 0), dash(), dash());
    for (name, share) in [("median", 0.5), ("99th", 0.99), ("worst", 1.0)] {
        line(
            &format!("ack after, {name}, ms"),
            number(Some(quantile(&acked, share) * 1e3), 1),
            dash(),
            dash(),
        );
    }
    print!("{}", report::machine(&Machine::here()));
    println!(
        "load     {hosts} simulated hosts for {} s: {} windows, {} rows, {} samples",
        wall.as_secs(),
        count(Some(acked.len() as u64)),
        count(Some(rows)),
        count(Some(acked.iter().map(|acked| acked.samples).sum()))
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

fn start(dir: &Path, hosts: usize) -> Collector {
    eprintln!("starting a collector for {hosts} hosts");
    Options::new().start(dir)
}

/// What was pushed before the measurement began.
#[derive(Default)]
struct Before {
    rows: u64,
}

type Steady = (Vec<Acked>, f64, Duration, Before);

/// Every host pushes a window each 10 s, out of step with the others; what is acknowledged within
/// `limit` counts, once all have pushed their first.
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
    for host in 0..hosts {
        let (fleet, address, sender) = (fleet.clone(), address.clone(), sender.clone());
        tasks.spawn_local(async move {
            // The first round is twice as long: every stack is new then.
            let mut due = begin + period.mul_f64(2.0 * host as f64 / hosts as f64);
            tokio::time::sleep_until(due).await;
            let mut agent = Agent::connect(&address, &fleet, host).await?;
            let mut drawn = Drawn::default();
            for window in 1.. {
                let start = fixtures::clock::unix_ns() - (WINDOW_S * 1_000_000_000) as i64;
                let acked = agent.push(&fleet, window, start, &mut drawn).await?;
                if sender.send((window, acked)).await.is_err() {
                    break;
                }
                due += period;
                tokio::time::sleep_until(due).await;
            }
            anyhow::Ok(())
        });
    }
    drop(sender);
    let (mut acked, mut before, mut first) = (Vec::new(), Before::default(), 0);
    let mut measured: Option<(Instant, f64)> = None;
    loop {
        tokio::select! {
            Some(ended) = tasks.join_next() => ended?.context("a simulated host gave up")?,
            Some((window, ack)) = acks.recv() => {
                first += usize::from(window == 1);
                match measured {
                    Some((since, cpu_s)) if since.elapsed() >= limit => {
                        let used = Used::of(collector.pid())?.cpu_s - cpu_s;
                        return Ok((acked, used, since.elapsed(), before));
                    }
                    Some(_) => acked.push(ack),
                    None => before.rows += ack.rows as u64,
                }
                if measured.is_none() && first == hosts {
                    eprintln!("all hosts are connected after {} s", begin.elapsed().as_secs());
                    measured = Some((Instant::now(), Used::of(collector.pid())?.cpu_s));
                }
            }
        }
    }
}

fn quantile(acked: &[Acked], share: f64) -> f64 {
    let mut all: Vec<Duration> = acked.iter().map(|acked| acked.after).collect();
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
