//! What any user may do in masses (cgroups, processes, threads, names, mappings) costs the daemon
//! bounded memory, and a program next to it keeps its samples.
#![expect(clippy::unwrap_used, reason = "a test fails by panic")]

use rustix::process::Signal;
use std::time::Duration;
use testkit::workload::{Workload, c};
use testkit::{Cgroup, Daemon, Need, live};

const NEEDS: &[Need] = &[Need::Root, Need::StaticC, Need::Cgroup2];
/// How long a storm lasts. Unit: seconds; `FLEETPROF_STORM_S` says otherwise.
const STORM_S: u64 = 6;
/// Samples a second of each CPU, by default.
const RATE_HZ: u64 = 99;
/// What the daemon may take above what it took before. Unit: bytes. Its bounded tables (paths,
/// mappings, threads, ends) have some 50 MiB together, and windows under a storm hold more rows.
const MORE_MAX: u64 = 96 << 20;

/// A field of `/proc/PID/status`. Unit: bytes.
fn memory(pid: u32, field: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find(|line| line.starts_with(field)).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}

/// CPU time of the threads a process has. Unit: seconds.
fn cpu_s(pid: u32) -> f64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of_task = |task: std::fs::DirEntry| -> Option<f64> {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse().ok()
    };
    tasks.flatten().filter_map(of_task).sum::<f64>() / 1e9
}

/// Most samples missed in a storm, in percent.
const MISSED_PERCENT_MAX: u64 = 1;

/// Runs a storm, and while it lasts a program whose split is known, whose samples are taken.
fn weather(kind: &str) {
    let Some(_live) = live(NEEDS) else { return };
    let seconds = std::env::var("FLEETPROF_STORM_S");
    let seconds = seconds.map_or(STORM_S, |text| text.parse().unwrap());
    let (calm, stormy) = (Cgroup::new("calm"), Cgroup::new("stormy"));
    let daemon = Daemon::with().set("windows.length_s=1").start().sampling();
    let program = c("storm.c").build();
    std::thread::sleep(Duration::from_secs(2));
    let before = memory(daemon.pid(), "VmRSS");
    let busy = cpu_s(daemon.pid());
    let dir = stormy.dir().to_str().unwrap().to_owned();
    let mut storm = stormy.command(&program);
    let storm = Workload::spawn(storm.args([kind, &dir]));
    std::thread::sleep(Duration::from_secs(1));
    // Within the storm from its first instruction to its last: samples of a calm time would hide
    // what the storm pushes out.
    let victim = c("split.c").start_in(&calm, &[]);
    std::thread::sleep(Duration::from_secs(seconds));
    drop(victim);
    let spent = calm.cpu_ns().unwrap();
    let peak = memory(daemon.pid(), "VmHWM");
    let busy = cpu_s(daemon.pid()) - busy;
    let client = daemon.client();
    drop(storm);
    for left in std::fs::read_dir(stormy.dir()).unwrap().flatten() {
        // Files of the cgroup itself are no directories.
        let _ = std::fs::remove_dir(left.path());
    }
    // The window that is open now has closed.
    std::thread::sleep(Duration::from_secs(3));
    let view = client.everything().in_cgroup(calm.path());
    // Losses are charged to cgroups too: they are no samples.
    let found = view.count() - view.count_with("[lost]");
    let expected = spent as f64 / 1e9 * RATE_HZ as f64;
    let missed = client.counter("fleetprof_cpu_missed_samples_total");
    let cpus = std::thread::available_parallelism().unwrap().get() as u64;
    let all = seconds * RATE_HZ * cpus;
    eprintln!(
        "{kind}: {seconds} s; memory {} MiB, peak {} MiB, after {} MiB; CPU {busy:.2} s; the \
         program next to it {found} samples of {expected:.0}; records lost {} and {} of the side band, samples missed {missed} of {all}; \
         refused {:?}",
        before >> 20,
        peak >> 20,
        memory(daemon.pid(), "VmRSS") >> 20,
        client.counter("fleetprof_cpu_lost_total"),
        client.counter("fleetprof_side_band_records_lost_total"),
        [
            "fleetprof_process_table_refused_total",
            "fleetprof_cgroups_refused_total",
            "fleetprof_cgroup_names_evicted_total",
            "fleetprof_cgroup_names_unknown_total"
        ]
        .map(|name| client.counter(name)),
    );
    assert!(
        peak <= before + MORE_MAX,
        "{} MiB more",
        (peak - before) >> 20
    );
    assert!(
        missed * 100 <= all * MISSED_PERCENT_MAX,
        "{missed} samples of {all} missed"
    );
    // What was missed is missed of all. Which of two programs a tick meets is chance: three
    // standard deviations; and a tick missed is rarely an idle one.
    let left = expected * (1.0 - 2.0 * missed as f64 / all as f64);
    assert!(
        found as f64 + 3.0 * expected.sqrt() >= left,
        "{found} samples of {expected:.0} of the program next to the storm"
    );
    assert!(view.count_with("spend_seventy") > 0);
    daemon.stop();
}

#[test]
#[ignore = "takes long: make test-slow"]
fn a_storm_of_cgroups_needs_root() {
    weather("cgroups");
}

#[test]
#[ignore = "takes long: make test-slow"]
fn a_storm_of_processes_needs_root() {
    weather("forks");
}

#[test]
#[ignore = "takes long: make test-slow"]
fn a_storm_of_threads_needs_root() {
    weather("threads");
}

#[test]
#[ignore = "takes long: make test-slow"]
fn a_storm_of_names_needs_root() {
    weather("names");
}

#[test]
#[ignore = "takes long: make test-slow"]
fn a_storm_of_mappings_needs_root() {
    weather("maps");
}

#[test]
#[ignore = "takes long: make test-slow"]
fn a_program_that_started_in_a_storm_has_names_though_nothing_is_told_after_it_needs_root() {
    const NEWCOMERS: usize = 8;
    let needs = [NEEDS, &[Need::Program("taskset")]].concat();
    let Some(_live) = live(&needs) else { return };
    let daemon = Daemon::with()
        .set("sampling.ring_kib=64")
        .start()
        .sampling();
    let stormy = Cgroup::new("stormy");
    let program = c("storm.c").build();
    let cpus = std::thread::available_parallelism().unwrap().get();
    let mut storms: Vec<Workload> = (0..cpus)
        .map(|cpu| {
            let mut pinned = stormy.command("taskset");
            pinned.args(["-c", &cpu.to_string()]).arg(&program);
            Workload::spawn(pinned.arg("maps"))
        })
        .collect();
    std::thread::sleep(Duration::from_secs(2));
    let split = c("split.c");
    let newcomers: Vec<(Cgroup, Workload)> = (0..NEWCOMERS)
        .map(|number| {
            let cgroup = Cgroup::new(format!("newcomer-{number}"));
            let workload = split.start_in(&cgroup, &[]);
            (cgroup, workload)
        })
        .collect();
    // A signal that leaves no record, as an end would.
    for storm in &mut storms {
        storm.proc().signal(Signal::STOP);
    }
    std::thread::sleep(Duration::from_secs(8));
    let client = daemon.client();
    let lost = client.counter("fleetprof_side_band_records_lost_total");
    let view = client.everything();
    for (cgroup, _) in &newcomers {
        let view = view.in_cgroup(cgroup.path());
        let named = view.count_with("run_part");
        assert!(
            named * 2 > view.count(),
            "{lost} records lost; {named} of {}: {}",
            view.count(),
            view.dump()
        );
    }
    drop(storms);
}
