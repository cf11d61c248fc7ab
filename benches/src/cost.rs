//! What a process has used so far, as the kernel tells it in /proc: not as the process says.

use anyhow::Context;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Totals since the process started, of the threads that it has now. What ended threads used is in
/// the account of its cgroup.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Usage {
    /// CPU time by thread name. Unit: nanoseconds.
    pub cpu_ns_by_thread: BTreeMap<String, u64>,
    /// Times a thread was put on a CPU again, by thread name: voluntary and involuntary switches.
    pub switches_by_thread: BTreeMap<String, u64>,
    /// Voluntary switches alone, by thread name: each is a wait, and so a wake-up, of the process's
    /// own making.
    pub waits_by_thread: BTreeMap<String, u64>,
    /// Resident memory. Unit: bytes.
    pub rss_bytes: u64,
    /// The part of `rss_bytes` that belongs to no file. Unit: bytes.
    pub rss_anon_bytes: u64,
    /// Most resident memory ever. Unit: bytes.
    pub rss_peak_bytes: u64,
    /// What it caused to be written to storage. Unit: bytes.
    pub written_bytes: u64,
}

impl Usage {
    /// Reads a process's usage.
    ///
    /// # Errors
    /// When it has ended.
    pub fn of(pid: u32) -> anyhow::Result<Usage> {
        let dir = Path::new("/proc").join(pid.to_string());
        let mut usage = Usage::default();
        let tasks = std::fs::read_dir(dir.join("task"));
        for task in tasks.with_context(|| format!("failed to read the threads of `{pid}`"))? {
            let task = task?.path();
            // A thread may end while it is looked at.
            let (Ok(comm), Ok(sched), Ok(status)) = (
                std::fs::read_to_string(task.join("comm")),
                std::fs::read_to_string(task.join("schedstat")),
                std::fs::read_to_string(task.join("status")),
            ) else {
                continue;
            };
            let name = comm.trim().to_owned();
            let on_cpu = sched
                .split(' ')
                .next()
                .and_then(|field| field.parse().ok())
                .unwrap_or(0);
            *usage.cpu_ns_by_thread.entry(name.clone()).or_default() += on_cpu;
            let voluntary = field(&status, "voluntary_ctxt_switches");
            *usage.waits_by_thread.entry(name.clone()).or_default() += voluntary;
            *usage.switches_by_thread.entry(name).or_default() +=
                voluntary + field(&status, "nonvoluntary_ctxt_switches");
        }
        let status = std::fs::read_to_string(dir.join("status"))?;
        usage.rss_bytes = field(&status, "VmRSS") * 1024;
        usage.rss_anon_bytes = field(&status, "RssAnon") * 1024;
        usage.rss_peak_bytes = field(&status, "VmHWM") * 1024;
        let io = std::fs::read_to_string(dir.join("io")).unwrap_or_default();
        usage.written_bytes = field(&io, "write_bytes");
        Ok(usage)
    }

    /// Waits of all threads.
    pub fn waits(&self) -> u64 {
        self.waits_by_thread.values().sum()
    }

    /// Waits since `before`. Threads that came or went between, such as those of a query, are left
    /// out: their count starts again at zero.
    pub fn waits_since(&self, before: &Usage) -> u64 {
        grown(&self.waits_by_thread, &before.waits_by_thread)
    }

    /// Switches since `before`, counted likewise.
    pub fn switches_since(&self, before: &Usage) -> u64 {
        grown(&self.switches_by_thread, &before.switches_by_thread)
    }
}

fn grown(after: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>) -> u64 {
    let by_thread = after
        .iter()
        .filter_map(|(name, now)| now.checked_sub(*before.get(name)?));
    by_thread.sum()
}

/// A number of /proc/PID/status; 0 when it is not there.
fn field(status: &str, name: &str) -> u64 {
    let value = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value
        .and_then(|text| text.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let status =
            "voluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t9\nVmRSS:\t 12 kB\n";
        assert_eq!(field(status, "voluntary_ctxt_switches"), 7);
        assert_eq!(field(status, "nonvoluntary_ctxt_switches"), 9);
        assert_eq!((field(status, "VmRSS"), field(status, "Vm")), (12, 0));
    }

    #[test]
    fn usage_of_this_process_is_read() {
        let usage = Usage::of(std::process::id()).unwrap();
        assert!(usage.rss_bytes > 0 && !usage.cpu_ns_by_thread.is_empty());
    }
}
