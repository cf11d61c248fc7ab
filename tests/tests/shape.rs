//! Workloads of known shape come out with that shape: shares, names, cgroups, threads, CPU time.
//!
//! One recording serves all: two programs that spend 70/20/10 % of their time in three functions,
//! in two cgroups, one of them older than the daemon; a program that lives in the kernel; one with
//! two named threads. Shares must lie within 4.5 standard deviations of the binomial distribution.

use profile::{FrameKind, key};
use proto::agent::ListCgroupsResponse;
use std::collections::BTreeSet;
use std::time::Duration;
use testkit::recording::Shared;
use testkit::stats::{SIGMAS, check_shares};
use testkit::workload::c;
use testkit::{Cgroup, Daemon, Need, View};

/// How long the programs run together. Unit: seconds. About 400 samples for each thread on two
/// CPUs.
const RUN_S: u64 = 10;
const NEEDS: &[Need] = &[Need::Root, Need::StaticC, Need::Cgroup2];
const PARTS: [&str; 3] = ["spend_seventy", "spend_twenty", "spend_ten"];
/// Where a C program starts. The chain may show frames beyond: the C library has no frame pointers.
const STARTS: [&str; 4] = [
    "_start",
    "__libc_start_main",
    "__libc_start_call_main",
    "__libc_start_main_impl",
];

/// One of the programs: where it ran and what it said of itself.
struct Ran {
    cgroup: String,
    pid: u32,
    said: Vec<u64>,
}

struct Recording {
    view: View,
    cgroups: ListCgroupsResponse,
    older: Ran,
    newer: Ran,
    kernel: Ran,
    threads: Ran,
}

static RECORDING: Shared<Recording> = Shared::new();

fn recording() -> Option<&'static Recording> {
    RECORDING.get(NEEDS, || {
        let [older, newer, kernel, threads] = ["older", "newer", "kernel", "threads"]
            .map(|name| Cgroup::new(format!("shape-{name}")));
        let split = c("split.c");
        let older_run = split.start_in(&older, &[]);
        let daemon = Daemon::start().sampling();
        let newer_run = split.start_in(&newer, &[]);
        let kernel_run = c("kernel.c").start_in(&kernel, &[]);
        let threads_run = c("threads.c").start_in(&threads, &[]);
        std::thread::sleep(Duration::from_secs(RUN_S));
        let [older, newer, kernel, threads] = [
            (&older, older_run, "split"),
            (&newer, newer_run, "split"),
            (&kernel, kernel_run, "times"),
            (&threads, threads_run, "threads"),
        ]
        .map(|(cgroup, run, word)| Ran {
            cgroup: cgroup.path().to_owned(),
            pid: run.pid(),
            said: run.finish(word),
        });
        let view = daemon.client().everything();
        let cgroups = daemon.client().cgroups().expect("a list of cgroups");
        daemon.stop();
        Recording {
            view,
            cgroups,
            older,
            newer,
            kernel,
            threads,
        }
    })
}

fn check_split(recording: &Recording, ran: &Ran) {
    let view = recording.view.in_cgroup(&ran.cgroup);
    let total: u64 = ran.said.iter().sum();
    let rows: Vec<(&str, u64, f64)> = PARTS
        .iter()
        .zip(&ran.said)
        .map(|(part, &ns)| (*part, view.count_with(part), ns as f64 / total as f64))
        .collect();
    let inside: u64 = rows.iter().map(|row| row.1).sum();
    // Between the parts the program reads its clock, and on a busy machine is preempted there, too.
    assert!(
        inside > 100 && inside * 100 >= view.count() * 94,
        "{}",
        view.dump()
    );
    check_shares(&ran.cgroup, &rows);
}

#[test]
fn a_split_older_than_the_daemon_has_its_shares_needs_root() {
    let Some(recording) = recording() else { return };
    check_split(recording, &recording.older);
}

#[test]
fn a_split_newer_than_the_daemon_has_its_shares_needs_root() {
    let Some(recording) = recording() else { return };
    check_split(recording, &recording.newer);
}

#[test]
fn stacks_reach_from_leaf_to_start_needs_root() {
    let Some(recording) = recording() else { return };
    for ran in [&recording.older, &recording.newer] {
        let view = recording.view.in_cgroup(&ran.cgroup);
        for part in PARTS {
            let busy = view.with(part);
            let whole = busy.only(|sample| {
                let names: Vec<&str> = sample.frames.iter().map(|f| f.function.as_str()).collect();
                let at = |name: &str| names.iter().position(|found| *found == name);
                let start = names.iter().position(|name| STARTS.contains(name));
                let order = [at(part), at("run_part"), at("main"), start];
                order.iter().all(Option::is_some) && order.is_sorted()
            });
            // The first and last instruction of a function have no frame yet or any more.
            assert!(
                whole.count() * 100 >= busy.count() * 98,
                "{part}: {}",
                busy.dump()
            );
        }
    }
}

#[test]
fn samples_are_in_the_cgroup_of_their_process_needs_root() {
    let Some(recording) = recording() else { return };
    for ran in [
        &recording.older,
        &recording.newer,
        &recording.kernel,
        &recording.threads,
    ] {
        let pid = ran.pid.to_string();
        let view = recording.view.in_cgroup(&ran.cgroup);
        assert_eq!(view.label_values(key::PID), BTreeSet::from([pid.clone()]));
        // Before it became itself the process was a test and a shell, outside for a moment.
        let outside = recording.view.only(|sample| {
            sample.label(key::PID) == pid
                && sample.label(key::CGROUP) != ran.cgroup
                && ["split", "kernel", "threads"].contains(&sample.label(key::COMM))
        });
        assert_eq!(outside.count(), 0, "{}", outside.dump());
    }
}

#[test]
fn a_kernel_heavy_program_shows_kernel_functions_above_its_own_needs_root() {
    let Some(recording) = recording() else { return };
    let [user_ns, system_ns] = recording.kernel.said[..] else {
        panic!("two numbers")
    };
    assert!(
        system_ns > user_ns * 9,
        "the workload is not kernel-heavy here"
    );
    let view = recording.view.in_cgroup(&recording.kernel.cgroup);
    let in_kernel = view.only(|sample| {
        sample
            .frames
            .first()
            .is_some_and(|leaf| leaf.kind == FrameKind::Kernel)
            && sample
                .frames
                .iter()
                .any(|frame| frame.kind == FrameKind::Kernel && frame.function.contains("read"))
    });
    assert!(
        in_kernel.count() * 10 >= view.count() * 9,
        "{}",
        view.dump()
    );
    let with_main = in_kernel.with("main");
    assert!(
        with_main.count() * 10 >= in_kernel.count() * 9,
        "{}",
        in_kernel.dump()
    );
    for frame in in_kernel
        .frames()
        .iter()
        .filter(|frame| frame.kind == FrameKind::Kernel)
    {
        assert!(!frame.module.is_empty(), "{frame:?}");
    }
}

#[test]
fn threads_are_told_apart_by_name_needs_root() {
    let Some(recording) = recording() else { return };
    let view = recording.view.in_cgroup(&recording.threads.cgroup);
    let total: u64 = recording.threads.said.iter().sum();
    let mut rows = Vec::new();
    for (at, (thread, function)) in [("left-hand", "left_work"), ("right-hand", "right_work")]
        .into_iter()
        .enumerate()
    {
        let own = view.with(function);
        assert_eq!(
            own.label_values(key::THREAD)
                .into_iter()
                .collect::<Vec<_>>(),
            [thread]
        );
        assert_eq!(
            own.label_values(key::COMM).into_iter().collect::<Vec<_>>(),
            ["threads"]
        );
        rows.push((
            thread,
            own.count(),
            recording.threads.said[at] as f64 / total as f64,
        ));
    }
    check_shares("threads", &rows);
}

#[test]
fn weights_add_up_to_cpu_time_needs_root() {
    let Some(recording) = recording() else { return };
    assert_eq!(recording.view.info.unit, "nanoseconds");
    let (mut weight, mut spent) = (0, 0);
    for ran in [&recording.newer, &recording.kernel, &recording.threads] {
        let view = recording.view.in_cgroup(&ran.cgroup);
        weight += view.samples.iter().map(|sample| sample.weight).sum::<u64>();
        spent += ran.said.iter().sum::<u64>();
    }
    let ratio = weight as f64 / spent as f64;
    // Whether a tick of the timer meets a program that shares its CPU is chance: the count spreads
    // by its root at most.
    let bound = SIGMAS / (spent as f64 / recording.view.info.period as f64).sqrt();
    let line = format!("{weight} ns sampled of {spent} ns spent: {ratio:.4} ± {bound:.4}");
    assert!((ratio - 1.0).abs() <= bound, "{line}");
    eprintln!("{line}");
}

#[test]
fn cgroups_are_listed_with_the_counts_of_their_samples_needs_root() {
    let Some(recording) = recording() else { return };
    for ran in [
        &recording.older,
        &recording.newer,
        &recording.kernel,
        &recording.threads,
    ] {
        let listed: Vec<_> = recording
            .cgroups
            .cgroups
            .iter()
            .filter(|cgroup| cgroup.path == ran.cgroup)
            .collect();
        let [listed] = listed[..] else {
            panic!("`{}` listed {} times", ran.cgroup, listed.len())
        };
        let count = recording.view.in_cgroup(&ran.cgroup).count();
        assert_eq!(
            (listed.self_count, listed.total_count),
            (count, count),
            "{}",
            ran.cgroup
        );
    }
    let root = recording
        .cgroups
        .cgroups
        .iter()
        .find(|cgroup| cgroup.path == "/");
    let root = root.expect("parents are listed");
    assert_eq!(root.total_weight, recording.cgroups.total_weight);
}

#[test]
fn nothing_is_lost_at_the_default_rate_needs_root() {
    let Some(recording) = recording() else { return };
    let quality = recording.view.info.quality.expect("the quality is told");
    assert_eq!(
        (quality.lost, quality.malformed, quality.folded),
        (0, 0, 0),
        "{quality:?}"
    );
    assert_eq!(quality.taken, recording.view.count(), "{quality:?}");
}
