//! `benches overhead`: a load, the daemon on it in both of its modes, then peers on it beside the
//! daemons, and one report.
//!
//! A peer is compared with the daemons over the same seconds: both sample the same machine at once,
//! and the account of each is its own cgroup's.

use crate::load::Load;
use crate::machine::Machine;
use crate::peers::{self, Measured, PEERS, SETTLE, Stage, per_10k};
use crate::programs::{self, Program};
use crate::report::{self, Table, count, mib, number, percent};
use crate::tracing;
use crate::watched::{self, Mark, Watched, complete, taken};
use anyhow::{Context, bail};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use testkit::Client;
use testkit::require::is_root;

/// Length of each steady part by default.
const DEFAULT_SECONDS: u64 = 60;
/// The same with `--quick`: enough for some thousand samples on two CPUs.
const QUICK_SECONDS: u64 = 15;
/// Longest that peers record: their cost beyond the start is linear.
const PEER_LIMIT: Duration = Duration::from_secs(60);
/// Longest that system calls and allocations are counted, each.
const COUNT_LIMIT: Duration = Duration::from_secs(20);
/// Fewer samples than this give no count for each.
const SAMPLES_MIN: f64 = 100.0;

/// Aims of the project, shown beside what was measured: with frame pointers and with stack copies.
const AIM_CPU_S_PER_10K: [f64; 2] = [0.03, 0.1];
const AIM_RSS_MIB: [f64; 2] = [50.0, 60.0];
const AIM_WAKEUPS_PER_S: f64 = 2.0;

/// What `benches overhead` takes.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  benches overhead --quick                      a first look, about four minutes
  benches overhead --peer perf --peer bpftrace  only these peers
  benches overhead --seconds 600                memory after ten minutes
  benches overhead --markdown                   the tables of docs/measurements
  benches overhead --set unwind.stack_kib=32    with another setting of the daemon")]
pub struct Args {
    /// Seconds of each steady part; peers record for at most a minute
    #[arg(long, default_value_t = DEFAULT_SECONDS, conflicts_with = "quick")]
    seconds: u64,
    /// Run each part for 15 seconds
    #[arg(long)]
    quick: bool,
    /// Measure only this peer, or `none` for only the daemon; may be repeated
    #[arg(long, value_name = "NAME", value_parser = peer_names())]
    peer: Vec<String>,
    /// Override a key of the daemon's configuration; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Print the tables as Markdown
    #[arg(long)]
    markdown: bool,
    /// Write the report as JSON to this file; `-` prints it instead of the tables
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn peer_names() -> Vec<&'static str> {
    PEERS.iter().map(|peer| peer.name).chain(["none"]).collect()
}

/// Everything measured.
#[derive(Debug, Serialize)]
struct Report {
    machine: Machine,
    command: String,
    load: Vec<&'static str>,
    settings: Vec<String>,
    daemons: Vec<DaemonCost>,
    peers: Vec<PeerRow>,
    /// What could not be measured here, and why.
    skipped: BTreeMap<&'static str, String>,
}

/// A peer and how the daemons compare.
#[derive(Debug, Serialize)]
struct PeerRow {
    name: &'static str,
    note: String,
    seconds: f64,
    samples: Option<u64>,
    lost: Option<u64>,
    cpu_s: f64,
    cpu_s_per_10k: Option<f64>,
    steady_cpu_s_per_10k: Option<f64>,
    wakeups_per_s: f64,
    rss_peak_mib: f64,
    written_bytes: u64,
    complete: Option<f64>,
    /// Daemon over peer by the daemon's mode, both over the same seconds.
    ratios: BTreeMap<&'static str, Ratio>,
}

/// A daemon's CPU time for a sample over that of a peer.
#[derive(Debug, Serialize)]
struct Ratio {
    /// Start and end included, on both sides.
    with_start: Option<f64>,
    /// In the steady part.
    steady: Option<f64>,
}

/// What the daemon cost in one of its modes.
#[derive(Debug, Default, Serialize)]
struct DaemonCost {
    mode: &'static str,
    /// Length of the steady part. Unit: seconds.
    seconds: f64,
    samples: u64,
    lost: u64,
    /// CPU time with the start: scan of /proc, kernel symbols, first names. Unit: seconds.
    cpu_s: f64,
    cpu_s_per_10k: f64,
    steady_cpu_s_per_10k: f64,
    steady_cpu_s_per_10k_by_thread: BTreeMap<String, f64>,
    /// Share of one CPU in the steady part.
    cpu_percent: f64,
    /// Waits that ended, all threads; and all switches, with those forced on it by the load.
    wakeups_per_s: f64,
    switches_per_s: f64,
    /// Wake-ups of the sampler alone, by the daemon's own counter.
    sampler_wakeups_per_s: f64,
    rss_mib: f64,
    rss_anon_mib: f64,
    rss_peak_mib: f64,
    written_bytes: u64,
    /// Share of complete stacks by the rule for all profilers, and by the daemon's own word.
    complete: Option<f64>,
    complete_by_its_word: Option<f64>,
    programs: Vec<Program>,
    syscalls_per_sample: Counted,
    allocations_per_sample: Counted,
}

/// A count for each sample, or why there is none.
#[derive(Debug, Default, Serialize)]
struct Counted {
    total: Option<f64>,
    by_thread: BTreeMap<String, f64>,
    missing: Option<String>,
}

/// Runs the bench and prints its report.
///
/// # Errors
/// When not root, when a compiler is missing, or when the bench itself fails.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let report = measure(args)?;
    report::put(
        &report,
        args.json.as_deref(),
        match args.markdown {
            true => markdown,
            false => text,
        },
    )
}

fn measure(args: &Args) -> anyhow::Result<Report> {
    if !is_root() {
        bail!("failed to sample every CPU: run this as root");
    }
    testkit::process::program("gcc").context("failed to find the program `gcc`: install it")?;
    if cfg!(debug_assertions) {
        eprintln!("note: a debug build: its numbers say nothing about a release");
    }
    let seconds = if args.quick {
        QUICK_SECONDS
    } else {
        args.seconds.max(5)
    };
    let length = Duration::from_secs(seconds);
    let _live = testkit::Live::take();
    let load = Load::start()?;
    std::thread::sleep(SETTLE);

    // Both stay, to be compared with each peer over its seconds.
    let (mut daemons, mut starts, mut costs) = (Vec::new(), Vec::new(), Vec::new());
    for mode in ["frame-pointer", "stack-copy"] {
        eprintln!("fleetprofd, unwind.mode={mode}: {seconds} s");
        let daemon = Watched::start(mode, &args.set);
        std::thread::sleep(SETTLE);
        let (start, cost) = daemon_cost(&daemon, length)?;
        daemons.push(daemon);
        starts.push(start);
        costs.push(cost);
    }
    let machine = Machine::here();
    let stage = Stage {
        length: length.min(PEER_LIMIT),
        daemons: &daemons,
        cpus: machine.cpus,
    };
    let (mut rows, mut skipped) = (Vec::new(), BTreeMap::new());
    for peer in PEERS {
        if !args.peer.is_empty() && !args.peer.iter().any(|name| name == peer.name) {
            continue;
        }
        eprintln!("{}: {} s", peer.name, stage.length.as_secs());
        match peer.run(&stage)? {
            Ok(measured) => rows.extend(measured.into_iter().map(|peer| compare(peer, &starts))),
            Err(reason) => {
                skipped.insert(peer.name, reason);
            }
        }
    }
    // Counting slows what it counts, so it comes last.
    for (daemon, cost) in daemons.iter().zip(&mut costs) {
        eprintln!("system calls and allocations, unwind.mode={}", daemon.mode);
        let (client, pid) = (daemon.client(), daemon.pid());
        let length = (length / 2).min(COUNT_LIMIT);
        cost.syscalls_per_sample = counted(&client, || tracing::syscalls(pid, length))?;
        cost.allocations_per_sample = counted(&client, || tracing::allocations(pid, length))?;
    }
    Ok(Report {
        machine,
        command: command_line(),
        load: load.names().to_vec(),
        settings: args.set.clone(),
        daemons: costs,
        peers: rows,
        skipped,
    })
}

/// How this was called, without the path.
fn command_line() -> String {
    let args: Vec<String> = std::env::args().skip(1).collect();
    format!("benches {}", args.join(" "))
}

/// The cost of a peer and of the daemons beside it.
fn compare(peer: Measured, starts: &[Mark]) -> PeerRow {
    let mut ratios = BTreeMap::new();
    for (beside, start) in peer.beside.iter().zip(starts) {
        let over = |ours: f64, theirs: Option<f64>| theirs.map(|theirs| ours / theirs);
        let steady = per_10k(beside.cpu_ns as f64 * 1e-9, beside.samples as f64);
        ratios.insert(
            beside.mode,
            Ratio {
                with_start: over(peers::with_start(beside, start), peer.cpu_s_per_10k),
                steady: over(steady, peer.steady_cpu_s_per_10k),
            },
        );
    }
    PeerRow {
        name: peer.name,
        note: peer.note,
        seconds: peer.seconds,
        samples: peer.samples,
        lost: peer.lost,
        cpu_s: peer.cpu_s,
        cpu_s_per_10k: peer.cpu_s_per_10k,
        steady_cpu_s_per_10k: peer.steady_cpu_s_per_10k,
        wakeups_per_s: peer.wakeups_per_s,
        rss_peak_mib: mib(peer.rss_peak_bytes),
        written_bytes: peer.written_bytes,
        complete: peer.complete,
        ratios,
    }
}

/// Watches a daemon for `length`: the moment at which that started, and what it cost.
fn daemon_cost(daemon: &Watched, length: Duration) -> anyhow::Result<(Mark, DaemonCost)> {
    let before = daemon.mark()?;
    std::thread::sleep(length);
    let after = daemon.end()?;
    let seconds = (after.at - before.at).as_secs_f64();
    let profile = daemon.profile(seconds)?;
    let by_its_word: u64 = profile
        .samples
        .iter()
        .filter(|sample| sample.end.is_complete())
        .map(|sample| sample.count)
        .sum();

    let samples = after.taken.samples - before.taken.samples;
    let cost = |ns: u64, samples: u64| per_10k(ns as f64 * 1e-9, samples as f64);
    let by_thread = after.usage.cpu_ns_by_thread.iter().map(|(name, &ns)| {
        let known = before.usage.cpu_ns_by_thread.get(name).copied();
        (
            name.clone(),
            cost(ns.saturating_sub(known.unwrap_or(0)), samples),
        )
    });
    let cpu_ns = after.cpu_ns - before.cpu_ns;
    let wakeups = after.taken.wakeups - before.taken.wakeups;
    let measured = DaemonCost {
        mode: daemon.mode,
        seconds,
        samples,
        lost: after.taken.lost - before.taken.lost,
        cpu_s: after.cpu_ns as f64 * 1e-9,
        cpu_s_per_10k: cost(after.cpu_ns, after.taken.samples),
        steady_cpu_s_per_10k: cost(cpu_ns, samples),
        steady_cpu_s_per_10k_by_thread: by_thread.collect(),
        cpu_percent: cpu_ns as f64 * 1e-7 / seconds,
        wakeups_per_s: after.usage.waits_since(&before.usage) as f64 / seconds,
        switches_per_s: after.usage.switches_since(&before.usage) as f64 / seconds,
        sampler_wakeups_per_s: wakeups as f64 / seconds,
        rss_mib: mib(after.usage.rss_bytes),
        rss_anon_mib: mib(after.usage.rss_anon_bytes),
        rss_peak_mib: mib(after.usage.rss_peak_bytes),
        written_bytes: after.usage.written_bytes,
        complete: complete(&profile).share(),
        complete_by_its_word: Some(by_its_word as f64 / profile.count().max(1) as f64),
        programs: programs::of(&profile),
        ..DaemonCost::default()
    };
    Ok((before, measured))
}

/// Runs a count and divides it by the samples taken meanwhile.
fn counted(
    client: &Client,
    count: impl FnOnce() -> Result<tracing::Counts, String>,
) -> anyhow::Result<Counted> {
    let missing = |reason| Counted {
        missing: Some(reason),
        ..Counted::default()
    };
    let before = taken(client)?.samples;
    let counts = match count() {
        Ok(counts) => counts,
        Err(reason) => return Ok(missing(reason)),
    };
    let samples = (watched::taken(client)?.samples - before) as f64;
    if samples < SAMPLES_MIN {
        return Ok(missing(format!("only {samples} samples meanwhile")));
    }
    let total: u64 = counts.values().sum();
    let by_thread = counts
        .into_iter()
        .map(|(name, count)| (name, count as f64 / samples));
    Ok(Counted {
        total: Some(total as f64 / samples),
        by_thread: by_thread.collect(),
        missing: None,
    })
}

/// All profilers, the daemon first.
fn profilers(report: &Report) -> Table {
    let mut table = Table::new(&[
        "profiler",
        "samples",
        "lost",
        "CPU-s",
        "CPU-s per 10k samples, with start",
        "steady",
        "wake-ups/s",
        "RSS peak, MiB",
        "written, MiB",
        "complete stacks",
    ]);
    for daemon in &report.daemons {
        table.row([
            format!("fleetprofd, {}", daemon.mode),
            count(Some(daemon.samples)),
            count(Some(daemon.lost)),
            number(Some(daemon.cpu_s), 2),
            number(Some(daemon.cpu_s_per_10k), 3),
            number(Some(daemon.steady_cpu_s_per_10k), 3),
            number(Some(daemon.wakeups_per_s), 1),
            number(Some(daemon.rss_peak_mib), 1),
            number(Some(mib(daemon.written_bytes)), 1),
            percent(daemon.complete),
        ]);
    }
    for peer in &report.peers {
        table.row([
            peer.name.to_owned(),
            count(peer.samples),
            count(peer.lost),
            number(Some(peer.cpu_s), 2),
            number(peer.cpu_s_per_10k, 3),
            number(peer.steady_cpu_s_per_10k, 3),
            number(Some(peer.wakeups_per_s), 1),
            number(Some(peer.rss_peak_mib), 1),
            number(Some(mib(peer.written_bytes)), 1),
            percent(peer.complete),
        ]);
    }
    table
}

/// The daemon over each peer.
fn ratios(report: &Report) -> Table {
    let mut headings = vec!["CPU of fleetprofd over that of, same seconds".to_owned()];
    for daemon in &report.daemons {
        headings.push(format!("{}, with start", daemon.mode));
        headings.push(format!("{}, steady", daemon.mode));
    }
    let mut table = Table::default();
    table.row(headings);
    for peer in &report.peers {
        let mut row = vec![peer.name.to_owned()];
        for daemon in &report.daemons {
            let ratio = peer.ratios.get(daemon.mode);
            row.push(number(ratio.and_then(|ratio| ratio.with_start), 3));
            row.push(number(ratio.and_then(|ratio| ratio.steady), 3));
        }
        table.row(row);
    }
    table
}

/// What is asked of the daemon, beside what was measured.
fn aims(report: &Report) -> Table {
    let mut table = Table::new(&["fleetprofd", "measured", "limit", "ratio"]);
    for (mode, daemon) in report.daemons.iter().enumerate() {
        let mut row = |what: &str, unit: &str, value: f64, aim: f64, digits: usize| {
            table.row([
                format!("{}: {what}", daemon.mode),
                format!("{value:.digits$} {unit}"),
                format!("{aim} {unit}"),
                format!("{:.2}", value / aim),
            ]);
        };
        let (cost, rss) = (daemon.steady_cpu_s_per_10k, daemon.rss_mib);
        row(
            "CPU, steady",
            "CPU-s per 10k samples",
            cost,
            AIM_CPU_S_PER_10K[mode],
            3,
        );
        row(
            "wake-ups, all threads",
            "/s",
            daemon.wakeups_per_s,
            AIM_WAKEUPS_PER_S,
            1,
        );
        row("resident memory", "MiB", rss, AIM_RSS_MIB[mode], 1);
    }
    table
}

/// Where the daemon spends its time: by thread, and in system calls and allocations.
fn details(report: &Report) -> Table {
    let mut table = Table::new(&["fleetprofd, for each mode"]);
    table.extend_last(report.daemons.iter().map(|daemon| daemon.mode.to_owned()));
    let mut row = |name: &str, value: &dyn Fn(&DaemonCost) -> String| {
        let cells = report.daemons.iter().map(value);
        table.row(std::iter::once(name.to_owned()).chain(cells));
    };
    let threads: std::collections::BTreeSet<&String> = report
        .daemons
        .iter()
        .flat_map(|daemon| daemon.steady_cpu_s_per_10k_by_thread.keys())
        .collect();
    for thread in threads {
        row(&format!("{thread}, CPU-s per 10k samples"), &|daemon| {
            number(
                daemon.steady_cpu_s_per_10k_by_thread.get(thread).copied(),
                4,
            )
        });
    }
    row("CPU, % of one", &|daemon| {
        number(Some(daemon.cpu_percent), 3)
    });
    row("wake-ups of the sampler, /s", &|daemon| {
        number(Some(daemon.sampler_wakeups_per_s), 2)
    });
    row("switches, forced ones too, /s", &|daemon| {
        number(Some(daemon.switches_per_s), 1)
    });
    row("RSS, MiB", &|daemon| number(Some(daemon.rss_mib), 1));
    row("RSS of no file, MiB", &|daemon| {
        number(Some(daemon.rss_anon_mib), 1)
    });
    row("complete stacks by its own word", &|daemon| {
        percent(daemon.complete_by_its_word)
    });
    row("system calls for each sample", &|daemon| {
        number(daemon.syscalls_per_sample.total, 3)
    });
    row("allocations for each sample", &|daemon| {
        number(daemon.allocations_per_sample.total, 3)
    });
    row("  of them in the sampler", &|daemon| {
        let by_thread = &daemon.allocations_per_sample.by_thread;
        number(by_thread.get("fp-sampler").copied(), 3)
    });
    table
}

/// Notes of the peers, and why some are missing.
fn notes(report: &Report, bullet: &str) -> String {
    let mut text = String::new();
    for peer in &report.peers {
        let (name, note) = (peer.name, &peer.note);
        text += &format!("{bullet}{name} ({:.0} s): {note}\n", peer.seconds);
    }
    for (name, reason) in &report.skipped {
        text += &format!("{bullet}skipped: {name}: {reason}\n");
    }
    for daemon in &report.daemons {
        for counted in [&daemon.syscalls_per_sample, &daemon.allocations_per_sample] {
            if let Some(reason) = &counted.missing {
                text += &format!("{bullet}not counted, {}: {reason}\n", daemon.mode);
            }
        }
    }
    text
}

fn text(report: &Report) -> String {
    let mut text = report::machine(&report.machine);
    text += &format!("command  {}\n", report.command);
    text += &format!("load     {}\n", report.load.join(", "));
    for setting in &report.settings {
        text += &format!("set      {setting}\n");
    }
    let programs = report
        .daemons
        .iter()
        .map(|daemon| programs::table(daemon.mode, &daemon.programs));
    let tables = [
        profilers(report),
        ratios(report),
        aims(report),
        details(report),
    ];
    for table in tables.into_iter().chain(programs) {
        text.push('\n');
        text += &table.text();
    }
    text.push('\n');
    text + &notes(report, "  ")
}

fn markdown(report: &Report) -> String {
    let machine = &report.machine;
    let date = machine.date.split('T').next().unwrap_or_default();
    // What a builder of kernels appends to the version says nothing to others.
    let kernel = machine.kernel.split('-').next().unwrap_or_default();
    let seconds = report.daemons.first().map_or(0.0, |daemon| daemon.seconds);
    let mut text = format!(
        "Measured with `{}` on {date}: {} × {}, {} GiB, Linux {}, {}; {seconds:.0} s a row. Load: {}.\n",
        report.command,
        machine.cpus,
        machine.model,
        machine.memory_gib,
        kernel,
        machine.perf,
        report.load.join(", "),
    );
    let programs = report.daemons.last();
    let programs = programs.map(|daemon| programs::table(daemon.mode, &daemon.programs));
    let tables = [aims(report), profilers(report), ratios(report)];
    for table in tables.into_iter().chain(programs) {
        text.push('\n');
        text += &table.markdown();
    }
    text.push('\n');
    text + &notes(report, "- ")
}
