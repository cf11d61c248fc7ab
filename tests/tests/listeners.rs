//! Other listeners on the same CPUs, and BPF programs that come and go, blind no CPU: `perf
//! record`, a second daemon and ten starts of `bpftrace` run together on CPUs that are busy all the
//! time.
//!
//! The kernel then writes records longer than they are, with remains of older records at their end.

use profile::Coverage;
use proto::agent::{QueryProfileRequest, TimeRange};
use serde_json::Value;
use std::process::Command;
use std::time::Duration;
use testkit::perf::PerfRecord;
use testkit::process::Proc;
use testkit::workload::c;
use testkit::{Cgroup, Daemon, Need, clock, live};

const NEEDS: &[Need] = &[
    Need::Root,
    Need::StaticC,
    Need::Cgroup2,
    Need::Program("perf"),
    Need::Program("bpftrace"),
    Need::Program("taskset"),
];

/// How long all of them run together; `FLEETPROF_LISTENERS_S` says otherwise, in seconds.
const RUN: Duration = Duration::from_secs(20);
/// Starts of `bpftrace` in that time.
const STARTS: u32 = 10;
/// Longest time without a sample of a program that keeps a CPU busy. A second is the promise; a
/// hypervisor takes a CPU away for nearly as long (0.94 s seen), and nobody can sample that time:
/// the other half is for it. A ring that waits for a record without a sound time leaves its CPU
/// without samples for minutes.
const BLIND_MAX_NS: i64 = 2_000_000_000;
/// Least coverage of the short run, where a second that a hypervisor takes weighs a twentieth, and
/// of a longer one.
const COVERAGE_MIN: f64 = 0.95;
const COVERAGE_MIN_LONG: f64 = 0.99;

/// Longest time between two samples of a cgroup from `begin` to `end`, and when it starts.
fn longest_gap(daemon: &Daemon, cgroup: &Cgroup, (begin, end): (i64, i64)) -> (i64, i64) {
    let seconds = (clock::unix_ns() - begin) / 1_000_000_000 + 10;
    let since = format!("{seconds}s");
    let arguments = ["heatmap", "--since", &since, "--cgroup", cgroup.path()];
    let more = ["--rows", "50", "--format", "json", "--quiet"];
    let map = daemon.ctl(&[&arguments[..], &more].concat()).ok().text();
    let map: Value = serde_json::from_str(&map).expect("a map");
    let number = |value: &Value| value.as_i64().expect("a number");
    assert_eq!(number(&map["dropped"]), 0, "each sample has its time");
    let (start, column) = (number(&map["start_unix_ns"]), number(&map["column_ns"]));
    let cell = column / number(&map["rows"]);
    let cells = map["cells"].as_array().expect("cells").iter();
    let times = cells.map(|at| start + number(&at[0]) * column + number(&at[1]) * cell);
    let mut times: Vec<i64> = times.filter(|time| (begin..end).contains(time)).collect();
    times.extend([begin, end]);
    times.sort_unstable();
    let gaps = times.windows(2).map(|pair| (pair[1] - pair[0], pair[0]));
    gaps.max().expect("a gap")
}

#[test]
#[ignore = "takes long: make test-slow"]
fn no_cpu_goes_blind_while_others_listen_and_bpf_programs_come_and_go_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let run = std::env::var("FLEETPROF_LISTENERS_S").map_or(RUN, |text| {
        Duration::from_secs(text.parse().expect("seconds"))
    });
    let patient = run > RUN;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let keep_busy = |cpu: usize, cgroup: &Cgroup| {
        let split = c("split.c").start_in(cgroup, &[]);
        let pid = split.pid().to_string();
        let pinned = Command::new("taskset")
            .args(["-pc", &cpu.to_string(), &pid])
            .output();
        assert!(pinned.is_ok_and(|done| done.status.success()), "CPU {cpu}");
        split
    };
    let cgroups: Vec<_> = (0..cpus)
        .map(|cpu| Cgroup::new(format!("cpu{cpu}")))
        .collect();
    let start_all = || -> Vec<_> {
        let of_cpus = cgroups.iter().enumerate();
        of_cpus
            .map(|(cpu, cgroup)| keep_busy(cpu, cgroup))
            .collect()
    };
    let mut busy = start_all();
    let daemon = Daemon::start().sampling();
    let second = Daemon::start().sampling();
    let dir = tempfile::tempdir().expect("failed to make a directory");
    let perf = PerfRecord::start(dir.path());
    let begin = clock::unix_ns();
    for number in 0..STARTS {
        let mut bpftrace = Command::new("bpftrace");
        // Tracepoints need a mount of tracefs, which not every machine has.
        bpftrace.args(["-e", "profile:hz:97 { @ = count(); }"]);
        let bpftrace = Proc::spawn(&mut bpftrace, dir.path(), &format!("bpf{number}"));
        std::thread::sleep(run / STARTS);
        // Killed: it does not hear of SIGTERM while it starts.
        drop(bpftrace);
        // Those before end by themselves after some minutes.
        busy = start_all();
    }
    let end = clock::unix_ns();
    drop(perf);
    let client = daemon.client();
    let range = TimeRange {
        start_unix_ns: begin,
        end_unix_ns: end,
    };
    let request = QueryProfileRequest {
        range: Some(range),
        ..QueryProfileRequest::default()
    };
    let view = client.query_until(&request, end);
    let coverage = Coverage::from(view.info.coverage.unwrap_or_default());
    let counters = [
        "fleetprof_kernel_code_changes_total",
        "fleetprof_records_malformed_total",
        "fleetprof_rings_flushed_total",
    ]
    .map(|name| client.counter(name));
    let mut worst = 0;
    for (cpu, cgroup) in cgroups.iter().enumerate() {
        let (gap, from) = longest_gap(&daemon, cgroup, (begin, end));
        let (gap_ms, from_ms) = (gap / 1_000_000, (from - begin) / 1_000_000);
        eprintln!("CPU {cpu}: at most {gap_ms} ms without a sample, from {from_ms} ms on");
        worst = worst.max(gap);
    }
    let share = coverage.share();
    eprintln!("coverage {share:?}; pieces of kernel code, damaged records, flushes: {counters:?}");
    assert!(worst < BLIND_MAX_NS, "a CPU was blind");
    assert!(counters[0] > 0, "no BPF program was seen to come");
    assert_eq!(counters[1..], [0, 0], "the records are sound, only longer");
    let least = if patient {
        COVERAGE_MIN_LONG
    } else {
        COVERAGE_MIN
    };
    assert!(share.is_some_and(|share| share >= least), "{coverage:?}");
    drop(busy);
    second.stop();
    daemon.stop();
}
