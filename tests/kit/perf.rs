//! `perf record` and `perf script` of the distribution, as a second opinion on the same seconds.
//!
//! The folding of `perf script` text here is our own.

use crate::process::{Proc, run};
use regex::Regex;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Longest that recording may take to end, or a script to be printed.
const LIMIT: Duration = Duration::from_secs(60);

/// Arguments of `perf script` whose text [`parse`] reads.
pub const SCRIPT: [&str; 4] = [
    "script",
    "--ns",
    "-F",
    "comm,pid,tid,cpu,time,event,ip,sym,dso",
];

/// A sample as `perf script` prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerfSample {
    /// Name of the task.
    pub comm: String,
    /// Process id.
    pub pid: u32,
    /// Time on CLOCK_MONOTONIC. Unit: nanoseconds.
    pub mono_ns: u64,
    /// Address of the leaf; 0 without a frame.
    pub leaf_ip: u64,
    /// Function and file of each frame, leaf first.
    pub frames: Vec<(String, String)>,
}

impl PerfSample {
    /// The leaf's function; empty without one.
    pub fn leaf(&self) -> &str {
        self.frames.first().map_or("", |(function, _)| function)
    }

    /// True for the idle loop: a sample of nothing running.
    pub fn is_idle(&self) -> bool {
        let idle = |name: &str| {
            name.contains("idle") || name.ends_with("_halt") || name.starts_with("mwait")
        };
        self.pid == 0 && (self.frames.is_empty() || idle(self.leaf()))
    }
}

/// A running `perf record -F 99 -a -g`.
pub struct PerfRecord {
    proc: Proc,
    data: PathBuf,
}

impl PerfRecord {
    /// Starts recording all CPUs into `dir`, with the clock of the daemon.
    pub fn start(dir: &Path) -> PerfRecord {
        let data = dir.join("perf.data");
        let mut command = Command::new("perf");
        command.args([
            "record",
            "-F",
            "99",
            "-a",
            "-g",
            "-e",
            "cpu-clock",
            "-k",
            "CLOCK_MONOTONIC",
        ]);
        command.arg("-o").arg(&data);
        PerfRecord {
            proc: Proc::spawn(&mut command, dir, "perf-record"),
            data,
        }
    }

    /// True once it has written something.
    pub fn records(&self) -> bool {
        std::fs::metadata(&self.data).is_ok_and(|data| data.len() > 0)
    }

    /// Ends recording and returns the samples.
    ///
    /// # Panics
    /// When perf fails.
    pub fn stop(self) -> Vec<PerfSample> {
        self.stop_with(&[], LIMIT)
    }

    /// As [`PerfRecord::stop`], for the samples of these processes, within another time.
    ///
    /// # Panics
    /// When perf fails.
    pub fn stop_of(self, pids: &[u32], limit: Duration) -> Vec<PerfSample> {
        let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
        self.stop_with(&["--pid", &pids.join(",")], limit)
    }

    fn stop_with(mut self, only: &[&str], limit: Duration) -> Vec<PerfSample> {
        self.proc.signal(Signal::INT);
        let ended = self.proc.wait(LIMIT);
        assert!(
            ended.is_some(),
            "perf record does not end: {}",
            self.proc.stderr()
        );
        let mut script = Command::new("perf");
        script.args(SCRIPT).args(only).arg("-i").arg(&self.data);
        let out = run(&mut script, limit);
        let samples = parse(&out.text());
        assert!(
            !samples.is_empty(),
            "perf recorded nothing: {} {}",
            self.proc.stderr(),
            out.stderr
        );
        samples
    }
}

/// Reads the text of `perf` with the arguments [`SCRIPT`].
pub fn parse(text: &str) -> Vec<PerfSample> {
    let head =
        Regex::new(r"^(.*?)\s+(\d+)/(\d+)\s+\[\d+\]\s+(\d+)\.(\d{9}):\s+\S+").expect("valid");
    let frame = Regex::new(r"^\s+([0-9a-f]+) (.*) \((.*)\)$").expect("valid");
    let mut samples: Vec<PerfSample> = Vec::new();
    for line in text.lines() {
        if line.starts_with('\t') {
            let (Some(sample), Some(found)) = (samples.last_mut(), frame.captures(line)) else {
                continue;
            };
            if sample.frames.is_empty() {
                sample.leaf_ip = u64::from_str_radix(&found[1], 16).expect("digits");
            }
            sample
                .frames
                .push((found[2].to_owned(), found[3].to_owned()));
        } else if let Some(found) = head.captures(line) {
            let seconds: u64 = found[4].parse().expect("digits");
            let nanos: u64 = found[5].parse().expect("digits");
            samples.push(PerfSample {
                comm: found[1].trim_start().to_owned(),
                pid: found[2].parse().expect("digits"),
                mono_ns: seconds * 1_000_000_000 + nanos,
                leaf_ip: 0,
                frames: Vec::new(),
            });
        }
    }
    samples
}

/// Folds samples: `comm;root;…;leaf` to counts.
pub fn fold(samples: &[PerfSample]) -> BTreeMap<String, u64> {
    let mut folded = BTreeMap::new();
    for sample in samples {
        let mut line = sample.comm.replace(' ', "_");
        for (function, _) in sample.frames.iter().rev() {
            line.push(';');
            line += &function.replace(';', ":");
        }
        *folded.entry(line).or_default() += 1;
    }
    folded
}

/// Names of the kernel that stand for the same address, so that two tools that chose different ones
/// can be compared.
#[derive(Default)]
pub struct KernelAliases {
    first_of: BTreeMap<String, String>,
}

impl KernelAliases {
    /// Reads /proc/kallsyms.
    pub fn load() -> KernelAliases {
        let text = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
        let mut by_address = BTreeMap::<&str, Vec<&str>>::new();
        for line in text.lines() {
            let mut fields = line.split_whitespace();
            if let (Some(address), Some(_), Some(name)) =
                (fields.next(), fields.next(), fields.next())
            {
                by_address.entry(address).or_default().push(name);
            }
        }
        let mut first_of = BTreeMap::new();
        for names in by_address.values().filter(|names| names.len() > 1) {
            let first = names.iter().min().expect("two at least");
            for name in names {
                first_of.insert((*name).to_owned(), (*first).to_owned());
            }
        }
        KernelAliases { first_of }
    }

    /// The one name that stands for all at its address.
    pub fn one<'a>(&'a self, name: &'a str) -> &'a str {
        self.first_of.get(name).map_or(name, String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
a b 17/18 [001]    12.000000007:    1003009 cpu-clock: \n\
\t            1bd8 spend ten (deep) (/tmp/split)\n\
\t            17ba main (/tmp/split)\n\
\n\
swapper     0/0     [000]    12.000000009:    1003009 cpu-clock: \n\
\tffffffff81d35f77 pv_native_safe_halt ([kernel.kallsyms])\n\n";

    #[test]
    fn samples_are_read() {
        let samples = parse(TEXT);
        assert_eq!(samples.len(), 2);
        assert_eq!((samples[0].comm.as_str(), samples[0].pid), ("a b", 17));
        assert_eq!(samples[0].mono_ns, 12_000_000_007);
        assert_eq!(samples[0].leaf(), "spend ten (deep)");
        assert_eq!(samples[0].leaf_ip, 0x1bd8);
        assert!(samples[1].is_idle() && !samples[0].is_idle());
    }

    #[test]
    fn samples_are_folded_root_first() {
        let folded = fold(&parse(TEXT)[..1]);
        assert_eq!(
            folded.into_iter().collect::<Vec<_>>(),
            [("a_b;main;spend ten (deep)".into(), 1)]
        );
    }
}
