//! The machine that numbers were taken on: without it they say nothing.

use serde::Serialize;
use std::process::Command;
use std::time::Duration;

/// Facts about the machine.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Online CPUs.
    pub cpus: usize,
    /// Model of the first CPU.
    pub model: String,
    /// Memory. Unit: GiB.
    pub memory_gib: u64,
    /// Kernel release.
    pub kernel: String,
    /// When, UTC.
    pub date: String,
    /// Version of perf.
    pub perf: String,
    /// `release` or `debug`: numbers of a debug build say nothing about a release.
    pub build: &'static str,
}

impl Machine {
    /// Reads the facts.
    pub fn here() -> Machine {
        let said = |program: &str, args: &[&str]| {
            let there = testkit::process::program(program)?;
            let mut command = Command::new(there);
            let out = testkit::process::run(command.args(args), Duration::from_secs(10));
            Some(out.text().trim().to_owned())
        };
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = info
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let memory_kib = memory
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:"))
            .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        Machine {
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            model: model.unwrap_or("unknown").to_owned(),
            memory_gib: memory_kib.unwrap_or(0).div_ceil(1 << 20),
            kernel: kernel.trim().to_owned(),
            date: said("date", &["-u", "+%Y-%m-%dT%H:%M:%SZ"]).unwrap_or_default(),
            perf: said("perf", &["--version"]).unwrap_or_default(),
            build: if cfg!(debug_assertions) {
                "debug"
            } else {
                "release"
            },
        }
    }
}
