//! Users without any right run programs whose files cost their reader as much as they can: the
//! daemon stays small, and misses no sample of what others run.
//!
//! Each program is started again and again from a fresh copy of its file, by a user of its own,
//! next to an honest one. `FLEETPROF_HOSTILE_S=60` gives each kind a minute; with
//! `FLEETPROF_BIN_DIR` of a release build the table that the test prints is what the project
//! reports.

use profile::{StackEnd, UnnamedReason};
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::time::{Duration, Instant};
use testkit::hostile_elf::Hostile;
use testkit::workload::{Workload, c};
use testkit::{Cgroup, Daemon, Need, live};

const NEEDS: &[Need] = &[
    Need::Root,
    Need::StaticC,
    Need::Cgroup2,
    Need::Program("setpriv"),
];

/// Gives each kind so many seconds.
const SECONDS: &str = "FLEETPROF_HOSTILE_S";
const SECONDS_DEFAULT: u64 = 3;

/// How long one copy runs: some samples each.
const COPY_RUNS: Duration = Duration::from_millis(300);

/// Most memory that the daemon takes above what it took before a kind. Unit: KiB. 64 MiB for the
/// file; the rest is for what it records meanwhile, which is small, and for what the allocator does
/// not give back.
const GROWTH_KIB_MAX: u64 = 80 << 10;

/// Users who own nothing else.
const FIRST_USER: u32 = 61_000;

/// A number of `/proc/PID/status`. Unit: KiB.
fn status_kib(pid: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find(|line| line.starts_with(field));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.and_then(|word| word.parse().ok()).expect("a number")
}

/// CPU time of a process so far. Unit: seconds.
fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let behind = stat.rsplit(") ").next().expect("a command in brackets");
    let ticks = behind.split(' ').skip(11).take(2);
    let ticks: u64 = ticks.filter_map(|word| word.parse::<u64>().ok()).sum();
    ticks as f64 / 100.0
}

/// Runs fresh copies of a kind, one after the other, for a time. How many.
fn run_copies(hostile: Hostile, user: u32, dir: &Path, time: Duration) -> u32 {
    let cgroup = Cgroup::new(format!("hostile-{hostile:?}"));
    let begin = Instant::now();
    let mut copies = 0;
    while begin.elapsed() < time {
        let path = dir.join(format!("{hostile:?}-{copies}"));
        hostile
            .write(&path)
            .unwrap_or_else(|e| panic!("{hostile:?}: {e}"));
        chown(&path, Some(user), Some(user)).expect("changes the owner");
        let mut command = cgroup.command("setpriv");
        let ids = [format!("--reuid={user}"), format!("--regid={user}")];
        command.args(ids).arg("--clear-groups").arg(&path);
        let run = Workload::spawn(&mut command).settled(&path);
        std::thread::sleep(COPY_RUNS);
        drop(run);
        std::fs::remove_file(&path).expect("removes the copy");
        copies += 1;
    }
    copies
}

#[test]
#[ignore = "takes long: make test-slow"]
fn hostile_files_cost_little_and_others_keep_their_samples_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let seconds = std::env::var(SECONDS)
        .ok()
        .and_then(|text| text.parse().ok());
    let time = Duration::from_secs(seconds.unwrap_or(SECONDS_DEFAULT));
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("readable by all");
    let honest = Cgroup::new("honest");
    let daemon = Daemon::with().set("windows.length_s=1").start().sampling();
    let mut run = c("split.c").start_in(&honest, &[]);
    // What every daemon reads and holds comes first.
    std::thread::sleep(Duration::from_secs(3));
    let pid = daemon.pid();
    let taken = || {
        // A connection that makes no call is closed.
        let view = daemon.client().everything();
        let own = view.in_cgroup(honest.path());
        let lost = view.only(|sample| sample.end == StackEnd::Lost).count();
        let weight: u64 = own.samples.iter().map(|sample| sample.weight).sum();
        (own.count(), weight, lost)
    };
    let mut table = String::from(
        "kind                    copies  peak MiB  CPU s   in s  lost  honest samples    Hz  of cpu.stat\n",
    );
    let mut wrong = Vec::new();
    for (number, &hostile) in Hostile::ALL.iter().enumerate() {
        // It ends by itself after some minutes.
        drop(run);
        run = c("split.c").start_in(&honest, &[]);
        // An answer may take seconds on a busy machine: its samples are of a moment between two
        // readings of the account.
        let cpu_ns = || honest.cpu_ns().expect("an account");
        let asked_at = cpu_ns();
        let (count_before, weight_before, lost_before) = taken();
        let answered_at = cpu_ns();
        std::fs::write(format!("/proc/{pid}/clear_refs"), "5").expect("resets the peak");
        let (kib, cpu, begin) = (status_kib(pid, "VmRSS:"), cpu_seconds(pid), Instant::now());
        let copies = run_copies(hostile, FIRST_USER + number as u32, dir.path(), time);
        let growth = status_kib(pid, "VmHWM:").saturating_sub(kib);
        let (cpu, wall) = (cpu_seconds(pid) - cpu, begin.elapsed().as_secs_f64());
        let least = cpu_ns() - answered_at;
        let (count, weight, lost) = taken();
        let most = cpu_ns() - asked_at;
        let (count, lost) = (count - count_before, lost - lost_before);
        let sampled = (weight - weight_before) as f64;
        let share = sampled / most as f64;
        let peak = growth as f64 / 1024.0;
        table += &format!(
            "{:<24}{copies:>6}{peak:>10.1}{cpu:>7.2}{wall:>7.1}{lost:>6}{count:>16}{:>6.0}{:>12.1} %\n",
            format!("{hostile:?}"),
            count as f64 * 1e9 / sampled,
            100.0 * share
        );
        if growth > GROWTH_KIB_MAX {
            wrong.push(format!("{hostile:?}: {growth} KiB"));
        }
        if count == 0 || sampled < 0.9 * least as f64 || share > 1.1 || lost > 0 {
            wrong.push(format!(
                "{hostile:?}: {count} samples of {least} to {most} ns, {lost} lost"
            ));
        }
    }
    eprintln!("{table}");
    let client = daemon.client();
    let view = client.everything().in_cgroup(honest.path());
    let named = view.only(|sample| sample.leaf().starts_with("spend"));
    let share = named.count() as f64 / view.count() as f64;
    eprintln!("named: {:.1} % of {}", 100.0 * share, view.count());
    assert!(wrong.is_empty(), "{}\n{table}", wrong.join("\n"));
    assert!(share > 0.9, "{share}: {}", view.dump());
    let status = client.status().expect("a status");
    // What files cost is no reason to sample everybody less. A debug build is over its budget
    // anyway.
    let lowered = status.counters.iter();
    let lowered = lowered.filter(|it| it.labels.contains("cpu_lowered"));
    let lowered: u64 = lowered.map(|it| it.value).sum();
    eprintln!("sampling was lowered {lowered} times");
    assert!(seconds.is_none() || lowered == 0, "{lowered}");
    let reason = UnnamedReason::OverBudget.word();
    let mut unnamed = status.unnamed_leaves.iter();
    assert!(
        unnamed.any(|row| row.word == reason && row.samples > 0),
        "{:?}",
        status.unnamed_leaves
    );
    let mut degradations = status.degradations.iter();
    assert!(
        degradations.any(|one| one.id == "files_over_budget"),
        "{:?}",
        status.degradations
    );
    daemon.stop();
}
