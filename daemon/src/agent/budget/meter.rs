//! Measures the daemon's CPU time by thread: its own work, answering clients, and uploading to the
//! collector.
//!
//! It is read from `/proc/self/task` every ten seconds, with two small reads per thread. The
//! process's total cannot separate work from answers, because threads of queries come and go with
//! their time, while those that sample and name stay.

use std::collections::HashMap;
use std::path::Path;

/// Threads that work because a client asked.
const SERVING: [&str; 3] = ["fp-grpc", "fp-query", "fp-capture"];

/// Threads that send to the collector. Sampling less does not make a pin that is there any smaller,
/// and uploads are paced by the collector: they take no stack copies from the host. What the
/// collector asks for over the same thread is some messages a capture.
const UPLOADING: [&str; 1] = [export::uplink::THREAD];

/// CPU time since the start of the meter. Unit: nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CpuUse {
    /// By threads that sample, name and record, and by those that watch over them.
    pub own_ns: u64,
    /// By threads that answer clients. What a thread used between the last reading and its end is
    /// missing.
    pub serving_ns: u64,
    /// By threads that send to the collector.
    pub uploading_ns: u64,
}

/// Subtracts parts from a sum that only grows, so that the rest only grows too: the cost of
/// captures is an estimate, which may fall.
#[derive(Debug, Default)]
pub struct Apart {
    rest: u64,
}

impl Apart {
    /// The rest of `own_ns` without `apart_ns`.
    pub fn less(&mut self, own_ns: u64, apart_ns: u64) -> u64 {
        self.rest = self.rest.max(own_ns.saturating_sub(apart_ns));
        self.rest
    }
}

/// Adds up the CPU time of threads.
#[derive(Debug, Default)]
pub struct Meter {
    /// By thread id, as it was last read.
    threads: HashMap<u32, u64>,
    used: CpuUse,
}

impl Meter {
    /// Reads all threads and returns the sums.
    pub fn read(&mut self) -> CpuUse {
        self.read_from(Path::new("/proc/self/task"))
    }

    fn read_from(&mut self, tasks: &Path) -> CpuUse {
        let mut threads = HashMap::with_capacity(self.threads.len());
        let Ok(entries) = std::fs::read_dir(tasks) else {
            return self.used;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(tid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            // A thread that ended meanwhile has neither.
            let Ok(comm) = std::fs::read_to_string(entry.path().join("comm")) else {
                continue;
            };
            let Some(now) = metrics::thread_cpu_ns(&entry.path()) else {
                continue;
            };
            let before = self.threads.get(&tid).copied();
            // Less than before: another thread with an id used again.
            let more = now.checked_sub(before.unwrap_or(0)).unwrap_or(now);
            let comm = comm.trim_end_matches('\n');
            let sum = if SERVING.contains(&comm) {
                &mut self.used.serving_ns
            } else if UPLOADING.contains(&comm) {
                &mut self.used.uploading_ns
            } else {
                &mut self.used.own_ns
            };
            *sum = sum.saturating_add(more);
            threads.insert(tid, now);
        }
        self.threads = threads;
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(tasks: &Path, tid: u32, comm: &str, cpu_ns: u64) {
        let dir = tasks.join(tid.to_string());
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("comm"), format!("{comm}\n")).unwrap();
        std::fs::write(dir.join("schedstat"), format!("{cpu_ns} 0 0\n")).unwrap();
    }

    #[test]
    fn answers_and_uploads_are_counted_apart() {
        let dir = tempfile::tempdir().unwrap();
        thread(dir.path(), 1, "fp-sampler", 100);
        thread(dir.path(), 2, "fp-query", 40);
        thread(dir.path(), 3, "fp-uplink", 7_000);
        thread(dir.path(), 4, "fp-uplink", 500);
        thread(dir.path(), 5, "fp-spool", 3);
        let mut meter = Meter::default();
        let used = meter.read_from(dir.path());
        assert_eq!((used.own_ns, used.serving_ns), (103, 40));
        assert_eq!(used.uploading_ns, 7_500);
    }

    #[test]
    fn what_captures_took_is_apart_and_the_rest_never_falls() {
        let mut apart = Apart::default();
        let rest = [(100, 0), (300, 150), (310, 200), (400, 200)];
        let rest = rest.map(|(own, captures)| apart.less(own, captures));
        assert_eq!(rest, [100, 150, 150, 200]);
    }

    #[test]
    fn time_of_threads_that_ended_stays_and_ids_may_be_used_again() {
        let dir = tempfile::tempdir().unwrap();
        thread(dir.path(), 1, "fp-blocking", 100);
        let mut meter = Meter::default();
        meter.read_from(dir.path());
        thread(dir.path(), 1, "fp-blocking", 30);
        assert_eq!(meter.read_from(dir.path()).own_ns, 130);
        std::fs::remove_dir_all(dir.path().join("1")).unwrap();
        assert_eq!(meter.read_from(dir.path()).own_ns, 130);
    }
}
