//! Programs that know where their CPU time went, in two cgroups, sampled by the daemon and by perf
//! from before their start until after their end: nothing is cut at an edge.

use crate::contained::Contained;
use crate::peers::{RATE_HZ, SETTLE};
use crate::watched::Watched;
use anyhow::ensure;
use serde::Serialize;
use std::time::Duration;
use testkit::perf::PerfSample;
use testkit::workload::c;
use testkit::{Cgroup, View};

/// Functions of the workload, in the order it tells their time.
const FUNCTIONS: [&str; 3] = ["spend_seventy", "spend_twenty", "spend_ten"];
/// Word before the names of the second program.
const PREFIX: &str = "b_";
/// Longest that perf may take to end, and to print.
const PERF_LIMIT: Duration = Duration::from_secs(120);

/// Measured shares beside true ones.
#[derive(Debug, Serialize)]
pub struct Split {
    /// How long the programs ran.
    pub seconds: f64,
    /// Shares of functions within a cgroup, and of the cgroups.
    pub shares: Vec<Share>,
    /// Each cgroup's CPU time.
    pub totals: Vec<Total>,
}

/// A true share and what was seen of it.
#[derive(Debug, Serialize)]
pub struct Share {
    /// What the share is of: a function, a cgroup, …
    pub name: String,
    /// By the program's own account, or by cpu.stat.
    pub truth: f64,
    /// In the daemon's profile.
    pub daemon: Seen,
    /// In perf's.
    pub perf: Seen,
}

/// A share counted in samples.
#[derive(Debug, Serialize)]
pub struct Seen {
    /// The share.
    pub share: f64,
    /// Samples it is a share of.
    pub samples: u64,
    /// Standard error by the binomial distribution around the true share.
    pub error: f64,
}

/// A cgroup's CPU time by three accounts. Unit: seconds.
#[derive(Debug, Serialize)]
pub struct Total {
    /// The cgroup.
    pub name: String,
    /// By the kernel's.
    pub cpu_stat_s: f64,
    /// The weight of the daemon's samples.
    pub daemon_s: f64,
    /// perf's samples by their period.
    pub perf_s: f64,
    /// The daemon's samples.
    pub samples: u64,
}

/// `counts[at]` as a share of all, around `truth`.
fn seen(counts: &[u64], at: usize, truth: f64) -> Seen {
    let samples: u64 = counts.iter().sum();
    let n = samples.max(1) as f64;
    Seen {
        share: counts[at] as f64 / n,
        samples,
        error: (truth * (1.0 - truth) / n).sqrt(),
    }
}

/// The rows of parts whose true amounts are known.
fn shares(names: &[String], truth: &[u64], daemon: &[u64], perf: &[u64]) -> Vec<Share> {
    let whole: u64 = truth.iter().sum();
    let row = |(at, name): (usize, &String)| {
        let truth = truth[at] as f64 / whole.max(1) as f64;
        Share {
            name: name.clone(),
            truth,
            daemon: seen(daemon, at, truth),
            perf: seen(perf, at, truth),
        }
    };
    names.iter().enumerate().map(row).collect()
}

/// One run of the programs: what they and the kernel say, and what was sampled of each cgroup.
struct Recording {
    seconds: f64,
    /// CPU time of each function of each cgroup, by the programs' own clocks. Unit: nanoseconds.
    spent: [Vec<u64>; 2],
    /// CPU time of each cgroup. Unit: nanoseconds.
    cpu_stat: [u64; 2],
    daemon: [View; 2],
    perf: [Vec<PerfSample>; 2],
}

fn record(length: Duration, settings: &[String]) -> anyhow::Result<Recording> {
    let daemon = Watched::start("frame-pointer", settings);
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("perf.data").display().to_string();
    let line = format!(r#"exec perf record -q -F {RATE_HZ} -a -g -e cpu-clock -o "$1""#);
    let mut perf = Contained::start(dir.path(), "record", &line, &[&data]);
    ensure!(perf.watch(SETTLE), "perf does not record");

    // Three programs on what may be two CPUs: the scheduler decides the shares, cpu.stat tells
    // them.
    let cgroups = ["fleetprof-bench-a", "fleetprof-bench-b"].map(Cgroup::new);
    let begin = std::time::Instant::now();
    let programs = [
        c("split.c").start_in(&cgroups[0], &[]),
        c("split.c").start_in(&cgroups[0], &[]),
        c("split.c").prefixed(PREFIX).start_in(&cgroups[1], &[]),
    ];
    let pids = programs.each_ref().map(testkit::Workload::pid);
    std::thread::sleep(length);
    let [first, second, third] = programs.map(|program| program.finish("split"));
    let seconds = begin.elapsed().as_secs_f64();
    let cpu_stat = [cgroups[0].cpu_ns()?, cgroups[1].cpu_ns()?];
    let ours = daemon.client().everything();
    perf.interrupt();
    perf.finish(PERF_LIMIT)?;
    let line = format!(
        r#"exec perf {} --no-inline -i "$1""#,
        testkit::perf::SCRIPT.join(" ")
    );
    let printed = Contained::start(dir.path(), "print", &line, &[&data]).finish(PERF_LIMIT)?;
    let theirs = testkit::perf::parse(&printed.stdout);
    ensure!(
        !theirs.is_empty(),
        "perf recorded nothing: {}",
        printed.reason()
    );
    let of_pids = |pids: &[u32]| -> Vec<PerfSample> {
        let has = |sample: &&PerfSample| pids.contains(&sample.pid);
        theirs.iter().filter(has).cloned().collect()
    };
    Ok(Recording {
        seconds,
        spent: [
            first.iter().zip(&second).map(|(a, b)| a + b).collect(),
            third,
        ],
        cpu_stat,
        daemon: cgroups
            .each_ref()
            .map(|cgroup| ours.in_cgroup(cgroup.path())),
        perf: [of_pids(&pids[..2]), of_pids(&pids[2..])],
    })
}

/// Measures for `length`.
///
/// # Errors
/// When perf or the daemon fails.
pub fn measure(length: Duration, settings: &[String]) -> anyhow::Result<Split> {
    let recording = record(length, settings)?;
    let mut rows = Vec::new();
    for (at, prefix) in ["", PREFIX].into_iter().enumerate() {
        let names = FUNCTIONS.map(|name| format!("{prefix}{name}"));
        let (daemon, perf) = (&recording.daemon[at], &recording.perf[at]);
        let daemon = names.each_ref().map(|name| daemon.count_with(name));
        let perf = names.each_ref().map(|name| with_frame(perf, name));
        rows.extend(shares(&names, &recording.spent[at], &daemon, &perf));
    }
    let daemon = recording.daemon.each_ref().map(View::count);
    let perf = recording
        .perf
        .each_ref()
        .map(|samples| samples.len() as u64);
    let names = ["cgroup a", "cgroup b"].map(str::to_owned);
    rows.extend(shares(&names, &recording.cpu_stat, &daemon, &perf));

    let total = |(at, name): (usize, String)| {
        let samples = recording.daemon[at].samples.iter();
        let weight: u64 = samples.map(|sample| sample.weight).sum();
        Total {
            name,
            cpu_stat_s: recording.cpu_stat[at] as f64 * 1e-9,
            daemon_s: weight as f64 * 1e-9,
            perf_s: perf[at] as f64 / RATE_HZ as f64,
            samples: daemon[at],
        }
    };
    Ok(Split {
        seconds: recording.seconds,
        totals: names.into_iter().enumerate().map(total).collect(),
        shares: rows,
    })
}

fn with_frame(samples: &[PerfSample], function: &str) -> u64 {
    let has = |sample: &&PerfSample| sample.frames.iter().any(|(name, _)| name == function);
    samples.iter().filter(has).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_comes_with_the_error_of_its_count() {
        let names = ["a", "b"].map(str::to_owned);
        let rows = shares(&names, &[300, 100], &[60, 40], &[0, 0]);
        assert_eq!((rows[0].truth, rows[0].daemon.share), (0.75, 0.6));
        assert!((rows[0].daemon.error - (0.75f64 * 0.25 / 100.0).sqrt()).abs() < 1e-12);
        assert_eq!((rows[1].perf.share, rows[1].perf.samples), (0.0, 0));
    }
}
