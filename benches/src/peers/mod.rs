//! Other profilers, each found by what is installed and measured over the same seconds as the
//! daemons that run beside it. One that cannot run here is skipped with its reason.

mod bpf;
mod perf;
mod sysprof;

use crate::contained::{Contained, Ended};
use crate::watched::{self, Watched};
use std::path::Path;
use std::time::Duration;
use testkit::process::program;

/// Time that a profiler has for its start before the steady part starts.
pub const SETTLE: Duration = Duration::from_secs(3);
/// Longest that one may take to end after it was asked to: `perf` looks through its file.
const END_LIMIT: Duration = Duration::from_secs(120);
/// Samples a second on each CPU that every profiler here is asked for.
pub const RATE_HZ: u64 = 99;

/// A profiler that runs here and is measured.
pub struct Peer {
    /// For `--peer`.
    pub name: &'static str,
    /// The program that must be there.
    program: &'static str,
    /// The package of Debian that has it.
    package: &'static str,
    measure: fn(&Stage<'_>) -> anyhow::Result<Outcome>,
}

/// All of them, in the order they are measured.
pub const PEERS: &[Peer] = &[
    Peer {
        name: "perf",
        program: "perf",
        package: "linux-perf",
        measure: perf::frame_pointers,
    },
    Peer {
        name: "perf-dwarf",
        program: "perf",
        package: "linux-perf",
        measure: perf::stack_copies,
    },
    Peer {
        name: "bpftrace",
        program: "bpftrace",
        package: "bpftrace",
        measure: bpf::bpftrace,
    },
    Peer {
        name: "bcc",
        program: "profile-bpfcc",
        package: "bpfcc-tools",
        measure: bpf::bcc,
    },
    Peer {
        name: "sysprof",
        program: "sysprof-cli",
        package: "sysprof",
        measure: sysprof::measure,
    },
];

impl Peer {
    /// Measures it, or says why not.
    ///
    /// # Errors
    /// When the bench itself fails, not the peer.
    pub fn run(&self, stage: &Stage<'_>) -> anyhow::Result<Outcome> {
        if program(self.program).is_none() {
            let (program, package) = (self.program, self.package);
            return Ok(Err(format!(
                "`{program}` is not installed (package `{package}`)"
            )));
        }
        (self.measure)(stage)
    }
}

/// What a peer gave: a row or two, or a sentence why there is none.
pub type Outcome = Result<Vec<Measured>, String>;

/// What one way to a profile cost and gave.
#[derive(Clone, Debug)]
pub struct Measured {
    /// What runs.
    pub name: &'static str,
    /// What the comparison has to know.
    pub note: String,
    /// Length of the steady part. Unit: seconds.
    pub seconds: f64,
    /// Samples in all; none when they cannot be counted.
    pub samples: Option<u64>,
    /// Samples lost.
    pub lost: Option<u64>,
    /// CPU time of all steps. Unit: seconds.
    pub cpu_s: f64,
    /// The same for 10,000 samples, start and end included.
    pub cpu_s_per_10k: Option<f64>,
    /// CPU time of the steady part alone, for 10,000 samples of it.
    pub steady_cpu_s_per_10k: Option<f64>,
    /// Waits in the steady part, all threads. Unit: 1/s.
    pub wakeups_per_s: f64,
    /// Most resident memory of its largest process. Unit: bytes.
    pub rss_peak_bytes: u64,
    /// Bytes of the files that it left.
    pub written_bytes: u64,
    /// Share of complete stacks, idle samples left out.
    pub complete: Option<f64>,
    /// The daemons over the same seconds.
    pub beside: Vec<Beside>,
}

/// A daemon over the seconds of a peer.
#[derive(Clone, Debug)]
pub struct Beside {
    /// Its mode.
    pub mode: &'static str,
    /// Its samples.
    pub samples: u64,
    /// Its CPU time. Unit: nanoseconds.
    pub cpu_ns: u64,
}

/// Where peers are measured.
pub struct Stage<'a> {
    /// Length of the steady part.
    pub length: Duration,
    /// Daemons that run beside.
    pub daemons: &'a [Watched],
    /// Online CPUs.
    pub cpus: usize,
}

/// A recording that has ended.
pub struct Recorded {
    /// What the recording left.
    pub ended: Ended,
    /// Length of the steady part. Unit: seconds.
    pub seconds: f64,
    /// CPU time in it. Unit: nanoseconds.
    steady_cpu_ns: u64,
    wakeups_per_s: f64,
    beside: Vec<Beside>,
    cpus: usize,
}

impl Stage<'_> {
    /// Runs a profiler until it has recorded for `length`, then interrupts it. `Err` inside is the
    /// reason why the profiler does not run.
    ///
    /// # Errors
    /// When the bench itself fails.
    pub fn record(
        &self,
        dir: &Path,
        length: Duration,
        line: &str,
        args: &[&str],
    ) -> anyhow::Result<Result<Recorded, String>> {
        let mut run = Contained::start(dir, "record", line, args);
        if !run.watch(SETTLE) {
            return Ok(Err(run.finish(Duration::ZERO)?.reason()));
        }
        let daemons_before = self.daemons.iter().map(Watched::mark);
        let daemons_before = daemons_before.collect::<anyhow::Result<Vec<_>>>()?;
        let before = run.mark()?;
        if !run.watch(length) {
            return Ok(Err(run.finish(Duration::ZERO)?.reason()));
        }
        let after = run.mark()?;
        let mut beside = Vec::new();
        for (daemon, before) in self.daemons.iter().zip(&daemons_before) {
            let after = daemon.end()?;
            beside.push(Beside {
                mode: daemon.mode,
                samples: after.taken.samples - before.taken.samples,
                cpu_ns: after.cpu_ns - before.cpu_ns,
            });
        }
        run.interrupt();
        let ended = run.finish(END_LIMIT)?;
        let seconds = (after.at - before.at).as_secs_f64();
        Ok(Ok(Recorded {
            seconds,
            steady_cpu_ns: after.cpu_ns - before.cpu_ns,
            wakeups_per_s: after.waits.saturating_sub(before.waits) as f64 / seconds,
            ended,
            beside,
            cpus: self.cpus,
        }))
    }
}

impl Recorded {
    /// The row of the recording alone, for a peer that took this many samples in all.
    pub fn row(&self, name: &'static str, note: &str, samples: Option<u64>) -> Measured {
        let cpu_s = self.ended.cpu_ns as f64 * 1e-9;
        // Every profiler here samples each CPU at the same rate, idle or not: that many were taken.
        let steady_samples = self.seconds * (RATE_HZ * self.cpus as u64) as f64;
        Measured {
            name,
            note: note.to_owned(),
            seconds: self.seconds,
            samples,
            lost: None,
            cpu_s,
            cpu_s_per_10k: samples.map(|samples| per_10k(cpu_s, samples as f64)),
            steady_cpu_s_per_10k: samples
                .map(|_| per_10k(self.steady_cpu_ns as f64 * 1e-9, steady_samples)),
            wakeups_per_s: self.wakeups_per_s,
            rss_peak_bytes: self.ended.rss_peak_bytes,
            written_bytes: 0,
            complete: None,
            beside: self.beside.clone(),
        }
    }
}

/// CPU seconds for 10,000 samples.
pub fn per_10k(cpu_s: f64, samples: f64) -> f64 {
    cpu_s / samples.max(1.0) * 10_000.0
}

/// The cost of a daemon over the seconds of a peer, with a start before them.
pub fn with_start(beside: &Beside, start: &watched::Mark) -> f64 {
    let cpu_s = (beside.cpu_ns + start.cpu_ns) as f64 * 1e-9;
    per_10k(cpu_s, (beside.samples + start.taken.samples) as f64)
}
