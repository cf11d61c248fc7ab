//! Counts of system calls and allocations of a running process, by thread, with `perf stat`.
//!
//! System calls are counted at the tracepoint `raw_syscalls:sys_enter`; allocations by uprobes on
//! the C library's functions. Neither changes the program. Both slow what they count, so they run
//! apart from every other measurement.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use testkit::process::run;

/// Functions of the C library that allocate. Counted as calls; `realloc` counts though it may only
/// grow what is there.
const ALLOCATORS: [&str; 5] = [
    "malloc",
    "calloc",
    "realloc",
    "posix_memalign",
    "aligned_alloc",
];
/// Group of our probes, so that ours alone are removed.
const GROUP: &str = "fleetprof_bench";
/// What tools may take beyond the time they count for.
const SLACK: Duration = Duration::from_secs(30);

/// Counts by thread name.
pub type Counts = BTreeMap<String, u64>;

/// System calls of a process over `length`.
///
/// # Errors
/// With the reason when the tracepoint cannot be used.
pub fn syscalls(pid: u32, length: Duration) -> Result<Counts, String> {
    count(pid, &["raw_syscalls:sys_enter".to_owned()], length)
}

/// Calls of allocating functions of a process over `length`.
///
/// # Errors
/// With the reason when the functions cannot be probed.
pub fn allocations(pid: u32, length: Duration) -> Result<Counts, String> {
    let library = mapped_library(pid).ok_or("the process maps no C library")?;
    let probes = Probes::add(&library)?;
    count(pid, &probes.events, length)
}

/// The C library that a process uses.
fn mapped_library(pid: u32) -> Option<PathBuf> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let path = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .find(|path| {
            path.rsplit('/')
                .next()
                .is_some_and(|name| name.starts_with("libc.so"))
        })?;
    Some(PathBuf::from(path))
}

/// Uprobes, removed when dropped.
struct Probes {
    events: Vec<String>,
}

impl Probes {
    fn add(library: &std::path::Path) -> Result<Probes, String> {
        let mut probes = Probes { events: Vec::new() };
        for function in ALLOCATORS {
            let event = format!("{GROUP}:{function}");
            let mut command = Command::new("perf");
            command.args(["probe", "-q", "-f", "-x"]).arg(library);
            command.arg("--add").arg(format!("{event}={function}"));
            let out = run(&mut command, SLACK);
            if out.code == Some(0) {
                probes.events.push(event);
            } else if function == "malloc" {
                return Err(format!("failed to probe malloc: {}", out.stderr.trim()));
            }
        }
        Ok(probes)
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        for event in &self.events {
            run(
                Command::new("perf").args(["probe", "-q", "--del", event]),
                SLACK,
            );
        }
    }
}

fn count(pid: u32, events: &[String], length: Duration) -> Result<Counts, String> {
    let mut command = Command::new("perf");
    command.args(["stat", "-x", ",", "--per-thread", "-e", &events.join(",")]);
    command.args([
        "-p",
        &pid.to_string(),
        "--",
        "sleep",
        &length.as_secs().to_string(),
    ]);
    let out = run(&mut command, length + SLACK);
    if out.code != Some(0) {
        return Err(format!("perf stat failed: {}", out.stderr.trim()));
    }
    Ok(parse(&out.stderr))
}

/// Reads `perf stat -x , --per-thread`: `comm-tid,count,unit,event,…`.
fn parse(text: &str) -> Counts {
    let mut counts = Counts::new();
    for line in text.lines() {
        let mut fields = line.split(',');
        let (Some(thread), Some(value)) = (fields.next(), fields.next()) else {
            continue;
        };
        let Some((name, tid)) = thread.rsplit_once('-') else {
            continue;
        };
        // `<not counted>`: nothing happened.
        let value = value.parse::<u64>().unwrap_or(0);
        if tid.parse::<u32>().is_ok() {
            *counts.entry(name.trim().to_owned()).or_default() += value;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_summed_by_thread_name() {
        let text = "\
             fp-sampler-171,12,,raw_syscalls:sys_enter,100,100.00,,\n\
             fp-sampler-172,3,,raw_syscalls:sys_enter,100,100.00,,\n\
             fleetprofd-170,<not counted>,,raw_syscalls:sys_enter,0,100.00,,\n";
        let counts: Vec<_> = parse(text).into_iter().collect();
        assert_eq!(
            counts,
            [("fleetprofd".to_owned(), 0), ("fp-sampler".to_owned(), 15)]
        );
    }
}
