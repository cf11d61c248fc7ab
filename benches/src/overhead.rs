//! The overhead bench: a load, the daemon on it, then the peers on it, and one report.

use crate::cost::Usage;
use crate::load::Load;
use crate::machine::Machine;
use crate::peers::{self, Peer};
use crate::tracing;
use anyhow::{Context, bail};
use fixtures::require::is_root;
use fixtures::{Cgroup, Client, Daemon, binaries};
use proto::agent::{QueryProfileRequest, TimeRange};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// Time for the load to get going, and for the daemon to read what is there at its start.
const SETTLE: Duration = Duration::from_secs(3);
/// Longest that peers record: their cost beyond the start is linear.
const PEER_LIMIT: Duration = Duration::from_secs(120);
/// Longest that system calls and allocations are counted, each.
const COUNT_LIMIT: Duration = Duration::from_secs(20);
/// Fewer samples than this give no count for each.
const SAMPLES_MIN: f64 = 100.0;

/// Aims of the project for this mode, shown beside what was measured.
const AIM_CPU_S_PER_10K: f64 = 0.03;
const AIM_WAKEUPS_PER_S: f64 = 2.0;
const AIM_RSS_MIB: f64 = 50.0;

/// Everything measured.
#[derive(Debug, Serialize)]
pub struct Report {
    machine: Machine,
    load: Vec<&'static str>,
    settings: Vec<String>,
    daemon: DaemonCost,
    peers: Vec<PeerRow>,
}

/// A peer and how the daemon compares.
#[derive(Debug, Serialize)]
struct PeerRow {
    #[serde(flatten)]
    peer: Peer,
    cpu_s_per_10k: f64,
    /// The daemon's CPU time for a sample, start included, over the peer's.
    daemon_over_peer: f64,
}

/// What the daemon cost.
#[derive(Debug, Default, Serialize)]
struct DaemonCost {
    /// Length of the steady part. Unit: seconds.
    seconds: f64,
    samples: u64,
    lost: u64,
    /// In the steady part, and with its start (scan of /proc, kernel symbols, first names).
    cpu_s_per_10k: f64,
    cpu_s_per_10k_with_start: f64,
    cpu_s_per_10k_by_thread: BTreeMap<String, f64>,
    /// Share of one CPU.
    cpu_percent: f64,
    /// Waits that ended, all threads; and all switches, with those forced on it by the load.
    wakeups_per_s: f64,
    switches_per_s: f64,
    /// Of the sampler, by the daemon's own counter.
    own_wakeups_per_s: f64,
    rss_mib: f64,
    rss_anon_mib: f64,
    rss_peak_mib: f64,
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

/// Samples taken and lost so far, and the wake-ups of its sampler.
struct Taken {
    samples: u64,
    lost: u64,
    wakeups: u64,
}

/// Drains what is sampled and reads the counters. They count at the drain, of which there is one a
/// second at most; without one of its own a reading could be off by that much.
fn taken(client: &Client) -> anyhow::Result<Taken> {
    let now = fixtures::clock::unix_ns();
    let newest = QueryProfileRequest {
        range: Some(TimeRange {
            start_unix_ns: now,
            end_unix_ns: 0,
        }),
        fresh: true,
        ..QueryProfileRequest::default()
    };
    client
        .query(newest)
        .context("failed to ask for fresh samples")?;
    let status = client.status().context("failed to ask for the status")?;
    Ok(Taken {
        samples: status.cpus.iter().map(|cpu| cpu.samples).sum(),
        lost: status.cpus.iter().map(|cpu| cpu.lost).sum(),
        wakeups: status
            .counters
            .iter()
            .find(|counter| counter.name == "fleetprof_sampler_wakeups_total")
            .map_or(0, |counter| counter.value),
    })
}

/// Runs the bench.
///
/// # Errors
/// When not root, when perf is missing, or when a part fails.
pub fn run(length: Duration, settings: &[String]) -> anyhow::Result<Report> {
    if !is_root() {
        bail!("sampling every CPU takes root: run this as root");
    }
    for name in ["perf", "gcc", "bash"] {
        fixtures::require::program(name).with_context(|| format!("needs the program `{name}`"))?;
    }
    if cfg!(debug_assertions) {
        eprintln!("note: a debug build: its numbers say nothing about a release");
    }
    binaries::fleetprofd();
    let _live = fixtures::Live::take();
    let load = Load::start()?;
    let names = load.names().to_vec();
    std::thread::sleep(SETTLE);

    eprintln!("daemon: {} s", length.as_secs());
    let daemon = daemon_cost(length, settings)?;
    let peer_length = length.min(PEER_LIMIT);
    eprintln!("perf: {} s", peer_length.as_secs());
    let peers = peers::measure(peer_length)?.map(|peer| {
        let cpu_s_per_10k = peer.cpu_s_per_10k();
        let daemon_over_peer = daemon.cpu_s_per_10k_with_start / cpu_s_per_10k;
        PeerRow {
            peer,
            cpu_s_per_10k,
            daemon_over_peer,
        }
    });
    drop(load);
    let (machine, settings) = (Machine::here(), settings.to_vec());
    Ok(Report {
        machine,
        load: names,
        settings,
        daemon,
        peers: peers.into(),
    })
}

fn daemon_cost(length: Duration, settings: &[String]) -> anyhow::Result<DaemonCost> {
    let options = settings
        .iter()
        .fold(Daemon::with(), |options, setting| options.set(setting));
    let cgroup = Cgroup::new("fleetprof-bench");
    let daemon = options.cgroup(&cgroup).start().sampling();
    let (client, pid) = (daemon.client(), daemon.pid());
    std::thread::sleep(SETTLE);

    let taken_before = taken(&client)?;
    let (begin, before, cpu_before) = (Instant::now(), Usage::of(pid)?, cgroup.cpu_ns()?);
    std::thread::sleep(length);
    let (after, cpu_after) = (Usage::of(pid)?, cgroup.cpu_ns()?);
    let seconds = begin.elapsed().as_secs_f64();
    // A client of its own: the first one slept and answered no keep-alive.
    let client = daemon.client();
    let taken_after = taken(&client)?;

    let samples = taken_after.samples - taken_before.samples;
    let per_10k = |ns: u64, samples: u64| ns as f64 * 1e-9 / samples.max(1) as f64 * 10_000.0;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let by_thread = after.cpu_ns_by_thread.iter().map(|(name, &ns)| {
        let used = ns
            - before
                .cpu_ns_by_thread
                .get(name)
                .copied()
                .unwrap_or(0)
                .min(ns);
        (name.clone(), per_10k(used, samples))
    });
    let cpu_ns = cpu_after - cpu_before;
    let count_length = (length / 2).min(COUNT_LIMIT);
    Ok(DaemonCost {
        seconds,
        samples,
        lost: taken_after.lost - taken_before.lost,
        cpu_s_per_10k: per_10k(cpu_ns, samples),
        cpu_s_per_10k_with_start: per_10k(cpu_after, taken_after.samples),
        cpu_s_per_10k_by_thread: by_thread.collect(),
        cpu_percent: cpu_ns as f64 * 1e-7 / seconds,
        wakeups_per_s: after.waits_since(&before) as f64 / seconds,
        switches_per_s: after.switches_since(&before) as f64 / seconds,
        own_wakeups_per_s: (taken_after.wakeups - taken_before.wakeups) as f64 / seconds,
        rss_mib: mib(after.rss_bytes),
        rss_anon_mib: mib(after.rss_anon_bytes),
        rss_peak_mib: mib(after.rss_peak_bytes),
        syscalls_per_sample: counted(&client, || tracing::syscalls(pid, count_length))?,
        allocations_per_sample: counted(&client, || tracing::allocations(pid, count_length))?,
    })
}

/// Runs a count and divides it by the samples taken meanwhile.
fn counted(
    client: &Client,
    count: impl FnOnce() -> Result<tracing::Counts, String>,
) -> anyhow::Result<Counted> {
    let before = taken(client)?.samples;
    let counts = match count() {
        Ok(counts) => counts,
        Err(reason) => {
            return Ok(Counted {
                missing: Some(reason),
                ..Counted::default()
            });
        }
    };
    let samples = (taken(client)?.samples - before) as f64;
    if samples < SAMPLES_MIN {
        let missing = Some(format!("only {samples} samples meanwhile"));
        return Ok(Counted {
            missing,
            ..Counted::default()
        });
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

/// The report as a table.
pub fn table(report: &Report) -> String {
    let mut text = String::new();
    write_table(&mut text, report).expect("text takes everything");
    text
}

fn write_table(text: &mut String, report: &Report) -> std::fmt::Result {
    let Report {
        machine, daemon, ..
    } = report;
    writeln!(text, "machine  {} × {}", machine.cpus, machine.model)?;
    writeln!(
        text,
        "         Linux {}, {}, {}",
        machine.kernel, machine.perf, machine.date
    )?;
    writeln!(text, "load     {}", report.load.join(", "))?;
    for setting in &report.settings {
        writeln!(text, "set      {setting}")?;
    }
    writeln!(
        text,
        "\nfleetprofd, {} samples in {:.0} s",
        daemon.samples, daemon.seconds
    )?;
    let mut row = |name: &str, value: f64, unit: &str, aim: Option<f64>| {
        let aim = aim.map_or(String::new(), |aim| format!("   (aim: at most {aim})"));
        writeln!(text, "  {name:<28} {value:>10.4} {unit}{aim}")
    };
    row(
        "CPU, steady",
        daemon.cpu_s_per_10k,
        "CPU-s/10k samples",
        Some(AIM_CPU_S_PER_10K),
    )?;
    for (thread, cost) in &daemon.cpu_s_per_10k_by_thread {
        row(&format!("  {thread}"), *cost, "CPU-s/10k samples", None)?;
    }
    row(
        "CPU, with its start",
        daemon.cpu_s_per_10k_with_start,
        "CPU-s/10k samples",
        None,
    )?;
    row("CPU", daemon.cpu_percent, "% of one CPU", None)?;
    row(
        "wake-ups",
        daemon.wakeups_per_s,
        "/s",
        Some(AIM_WAKEUPS_PER_S),
    )?;
    row(
        "wake-ups of the sampler",
        daemon.own_wakeups_per_s,
        "/s",
        None,
    )?;
    row(
        "switches, forced included",
        daemon.switches_per_s,
        "/s",
        None,
    )?;
    row("RSS", daemon.rss_mib, "MiB", Some(AIM_RSS_MIB))?;
    row("RSS, of no file", daemon.rss_anon_mib, "MiB", None)?;
    row("RSS, peak", daemon.rss_peak_mib, "MiB", None)?;
    row("samples lost", daemon.lost as f64, "", None)?;
    for (name, counted) in [
        ("system calls", &daemon.syscalls_per_sample),
        ("allocations", &daemon.allocations_per_sample),
    ] {
        match (counted.total, &counted.missing) {
            (Some(total), _) => {
                row(name, total, "/sample", None)?;
                for (thread, count) in &counted.by_thread {
                    row(&format!("  {thread}"), *count, "/sample", None)?;
                }
            }
            (None, reason) => {
                let reason = reason.as_deref().unwrap_or("not counted");
                row(&format!("{name}: {reason}"), f64::NAN, "", None)?;
            }
        }
    }
    writeln!(
        text,
        "\n  {:<38} {:>8} {:>14} {:>14}",
        "peer", "samples", "CPU-s/10k", "daemon/peer"
    )?;
    for row in &report.peers {
        let Peer {
            name,
            samples,
            note,
            seconds,
            ..
        } = &row.peer;
        let (cost, ratio) = (row.cpu_s_per_10k, row.daemon_over_peer);
        writeln!(text, "  {name:<38} {samples:>8} {cost:>14.4} {ratio:>14.3}")?;
        writeln!(text, "    {seconds} s; {note}")?;
    }
    Ok(())
}
