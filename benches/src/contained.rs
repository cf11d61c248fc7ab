//! A command line in a cgroup of its own, and what it and everything it starts use.
//!
//! CPU time is the cgroup's account, so that children which ended are in it. Memory is the largest
//! process: its own high-water mark, looked at while it lives.

use crate::cost::Usage;
use rustix::process::Signal;
use std::path::Path;
use std::time::{Duration, Instant};
use testkit::Cgroup;
use testkit::process::Proc;

/// How often memory is looked at. Unit: milliseconds. A process that lives shorter is not seen.
const LOOK_MS: u64 = 100;

/// What was used up to a moment.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    /// The moment.
    pub at: Instant,
    /// CPU time of everything that ever ran in the cgroup. Unit: nanoseconds.
    pub cpu_ns: u64,
    /// Waits of the threads that are there now.
    pub waits: u64,
}

/// A running command line.
pub struct Contained {
    cgroup: Cgroup,
    proc: Proc,
    rss_peak_bytes: u64,
}

/// What a command line left when it had ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// CPU time in all. Unit: nanoseconds.
    pub cpu_ns: u64,
    /// Most resident memory of its largest process. Unit: bytes.
    pub rss_peak_bytes: u64,
    /// True when it ended by itself with 0.
    pub success: bool,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Ended {
    /// Why it failed, in its own words: the last line that says something.
    pub fn reason(&self) -> String {
        let said = format!("{}\n{}", self.stdout, self.stderr);
        let mut lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
        let last = lines.next_back().unwrap_or("it says nothing");
        last.chars().take(200).collect()
    }
}

impl Contained {
    /// Starts a line of `sh` with arguments `$1`, `$2` …; start it with `exec` where it is one
    /// command, so that signals reach it. Output goes to files in `dir`.
    pub fn start(dir: &Path, name: &str, line: &str, args: &[&str]) -> Contained {
        let cgroup = Cgroup::new("fleetprof-bench-peer");
        let mut command = cgroup.command("sh");
        command.args(["-c", line, "sh"]).args(args);
        let proc = Proc::spawn(&mut command, dir, name);
        Contained {
            cgroup,
            proc,
            rss_peak_bytes: 0,
        }
    }

    /// What was used so far.
    ///
    /// # Errors
    /// When the cgroup keeps no account.
    pub fn mark(&mut self) -> anyhow::Result<Mark> {
        let waits = self.processes().map(|usage| usage.waits()).sum();
        Ok(Mark {
            at: Instant::now(),
            cpu_ns: self.cgroup.cpu_ns()?,
            waits,
        })
    }

    /// Watches it for `length`; false when it ended before.
    pub fn watch(&mut self, length: Duration) -> bool {
        let end = Instant::now() + length;
        loop {
            let peak = self.processes().map(|usage| usage.rss_peak_bytes).max();
            self.rss_peak_bytes = self.rss_peak_bytes.max(peak.unwrap_or(0));
            if self.proc.exited().is_some() {
                return false;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            std::thread::sleep(left.min(Duration::from_millis(LOOK_MS)));
        }
    }

    /// Asks it to end, as Ctrl-C does.
    pub fn interrupt(&mut self) {
        self.proc.signal(Signal::INT);
    }

    /// Waits for its end, at most `limit`; then it is killed, and has not succeeded.
    ///
    /// # Errors
    /// When the cgroup keeps no account.
    pub fn finish(mut self, limit: Duration) -> anyhow::Result<Ended> {
        let ended = !self.watch(limit);
        let success = ended && self.proc.exited().is_some_and(|status| status.success());
        Ok(Ended {
            cpu_ns: self.cgroup.cpu_ns()?,
            rss_peak_bytes: self.rss_peak_bytes,
            success,
            stdout: self.proc.stdout(),
            stderr: self.proc.stderr(),
        })
    }

    fn processes(&self) -> impl Iterator<Item = Usage> + use<> {
        let listed = std::fs::read_to_string(self.cgroup.dir().join("cgroup.procs"));
        let pids: Vec<u32> = listed
            .unwrap_or_default()
            .lines()
            .filter_map(|line| line.parse().ok())
            .collect();
        // One that has just ended is no longer there to be asked.
        pids.into_iter().filter_map(|pid| Usage::of(pid).ok())
    }
}

/// Bytes of the files in a directory.
pub fn bytes_in(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.metadata().ok())
        .filter(std::fs::Metadata::is_file)
        .map(|meta| meta.len())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_the_last_line_that_says_something() {
        let ended = Ended {
            cpu_ns: 0,
            rss_peak_bytes: 0,
            success: false,
            stdout: "Recording\n".to_owned(),
            stderr: "warning: x\nFailure: no counters\n\n".to_owned(),
        };
        assert_eq!(ended.reason(), "Failure: no counters");
    }
}
