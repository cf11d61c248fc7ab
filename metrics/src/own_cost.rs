//! The daemon's own cost: CPU time and wake-ups by thread, memory, open files.
//!
//! Reads about thirty small files of `/proc/self` on request.

use super::{Family, gather, rows};
use std::collections::BTreeMap;
use std::path::Path;

/// CPU time and wake-ups of the living threads of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ThreadCost {
    /// CPU time. Unit: nanoseconds.
    pub cpu_ns: u64,
    /// How often they waited and were woken (voluntary context switches).
    pub wakeups: u64,
}

/// Cost of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct OwnCost {
    /// CPU time since its start, threads that ended included. Unit: nanoseconds, in steps of 10 ms.
    pub cpu_ns: u64,
    /// Memory in use. Unit: bytes.
    pub rss_bytes: u64,
    /// The part of it that belongs to no file. Unit: bytes.
    pub rss_anon_bytes: u64,
    /// Open file descriptors.
    pub open_fds: u64,
    /// Living threads by name.
    pub threads: BTreeMap<String, ThreadCost>,
}

/// Nanoseconds of a tick in `/proc/PID/stat`: USER_HZ is 100 on every architecture that counts.
const TICK_NS: u64 = 10_000_000;

impl OwnCost {
    /// Reads it now. What cannot be read is 0.
    pub fn read() -> OwnCost {
        OwnCost::read_from(Path::new("/proc/self"))
    }

    fn read_from(process: &Path) -> OwnCost {
        let text = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        let status = text(&process.join("status"));
        let entries = |name: &str| std::fs::read_dir(process.join(name)).into_iter().flatten();
        let mut threads = BTreeMap::<String, ThreadCost>::new();
        for task in entries("task").flatten() {
            let task = task.path();
            let comm = text(&task.join("comm"));
            // A thread that ended meanwhile.
            if comm.is_empty() {
                continue;
            }
            let cost = threads
                .entry(comm.trim_end_matches('\n').to_owned())
                .or_default();
            cost.cpu_ns += thread_cpu_ns(&task).unwrap_or(0);
            let status = text(&task.join("status"));
            cost.wakeups += field(&status, "voluntary_ctxt_switches:").unwrap_or(0);
        }
        OwnCost {
            cpu_ns: parse_stat(&text(&process.join("stat"))).unwrap_or(0),
            rss_bytes: field(&status, "VmRSS:").unwrap_or(0) * 1024,
            rss_anon_bytes: field(&status, "RssAnon:").unwrap_or(0) * 1024,
            // The listing itself holds one descriptor open.
            open_fds: (entries("fd").count() as u64).saturating_sub(1),
            threads,
        }
    }

    /// Memory in use that is no file's, alone. Unit: bytes.
    pub fn rss_anon_bytes_now() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        field(&status, "RssAnon:").unwrap_or(0) * 1024
    }

    /// As families.
    pub fn families(&self) -> impl Iterator<Item = Family> {
        gather(ROWS, self)
    }

    fn by_thread(&self, pick: fn(&ThreadCost) -> u64) -> Vec<(String, u64)> {
        let threads = self.threads.iter();
        threads
            .map(|(name, cost)| (name.clone(), pick(cost)))
            .collect()
    }

    /// Wake-ups of all living threads.
    pub fn wakeups(&self) -> u64 {
        self.threads.values().map(|cost| cost.wakeups).sum()
    }
}

/// CPU time of a thread by its folder in `/proc`. Unit: nanoseconds. `None` if it is gone. Kernels
/// without schedstat have steps of 10 ms.
pub fn thread_cpu_ns(task: &Path) -> Option<u64> {
    let text = |name: &str| std::fs::read_to_string(task.join(name)).ok();
    let precise = text("schedstat").and_then(|text| parse_schedstat(&text));
    precise.or_else(|| parse_stat(&text("stat")?))
}

rows! { ROWS: OwnCost;
    /// CPU time of the daemon's living threads, by thread name.
    CounterNs fleetprof_thread_cpu_seconds_total{thread} = |own| own.by_thread(|of| of.cpu_ns);
    /// Wake-ups of the daemon's living threads, by thread name.
    Counter fleetprof_thread_wakeups_total{thread} = |own| own.by_thread(|of| of.wakeups);
    /// CPU time of all threads of the daemon since its start.
    CounterNs process_cpu_seconds_total = |own| own.cpu_ns;
    /// Resident memory of the daemon, including file pages.
    Gauge process_resident_memory_bytes = |own| own.rss_bytes;
    /// Resident memory of the daemon without file pages.
    Gauge fleetprof_resident_anonymous_bytes = |own| own.rss_anon_bytes;
    /// Open file descriptors of the daemon.
    Gauge process_open_fds = |own| own.open_fds;
}

/// Reads `Name:  VALUE …` of a status file.
fn field(status: &str, name: &str) -> Option<u64> {
    let rest = status.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Time on CPU of `/proc/PID/task/TID/schedstat`, nanoseconds.
fn parse_schedstat(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

/// utime + stime of `/proc/PID/stat` (fields 14 and 15), nanoseconds. The name in parentheses may
/// hold anything, parentheses too.
fn parse_stat(text: &str) -> Option<u64> {
    let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some((user + system) * TICK_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_whatever_the_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 50 6 7 8 20 0 1 0 99 0 0";
        assert_eq!(parse_stat(stat), Some(560_000_000));
        assert_eq!(parse_stat("7 (a"), None);
        assert_eq!(parse_schedstat("123456 7 8\n"), Some(123_456));
        assert_eq!(parse_schedstat(""), None);
    }

    #[test]
    fn threads_of_one_name_are_added_up() {
        let dir = tempfile::tempdir().unwrap();
        for (tid, comm, schedstat) in [
            ("1", "fp-a\n", "100 0 0"),
            ("2", "fp-a\n", "20 0 0"),
            ("3", "b\n", ""),
        ] {
            let task = dir.path().join("task").join(tid);
            std::fs::create_dir_all(&task).unwrap();
            std::fs::write(task.join("comm"), comm).unwrap();
            std::fs::write(task.join("schedstat"), schedstat).unwrap();
            std::fs::write(task.join("status"), "voluntary_ctxt_switches:\t4\n").unwrap();
        }
        let cost = OwnCost::read_from(dir.path());
        assert_eq!(
            cost.threads["fp-a"],
            ThreadCost {
                cpu_ns: 120,
                wakeups: 8
            }
        );
        assert_eq!(
            cost.threads["b"],
            ThreadCost {
                cpu_ns: 0,
                wakeups: 4
            }
        );
        assert_eq!(cost.wakeups(), 12);
    }

    #[test]
    fn the_running_process_has_memory_files_and_threads() {
        let cost = OwnCost::read();
        assert!(cost.rss_bytes > 1 << 20 && cost.rss_anon_bytes <= cost.rss_bytes);
        assert!(cost.open_fds >= 3);
        assert!(cost.threads.values().any(|thread| thread.cpu_ns > 0));
    }

    #[test]
    fn families_are_named_as_they_should() {
        let families: Vec<Family> = OwnCost::read().families().collect();
        assert_eq!(crate::problems(&families), Vec::<String>::new());
        let memory = |family: &&Family| family.name == "process_resident_memory_bytes";
        assert_eq!(families.iter().filter(memory).count(), 1);
    }
}
