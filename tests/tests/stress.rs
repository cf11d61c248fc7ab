//! Masses of things: forks, cgroups, mappings, threads, a very large file. The daemon's memory
//! stays under its bounds, what it misses it says, and a known program beside keeps its share.
//!
//! Small by default; with `FLEETPROF_STRESS=full` at the sizes that are promised, a minute each.
//! The cost of the daemon is printed, never judged: it is a debug build on a machine of unknown
//! speed.

use profile::{UnnamedReason, key};
use std::process::Command;
use std::time::{Duration, Instant};
use testkit::process::wait_for;
use testkit::sysctl::Sysctl;
use testkit::workload::{Workload, c};
use testkit::{Cgroup, Daemon, Need, View, live, skip};

const NEEDS: &[Need] = &[Need::Root, Need::StaticC, Need::Cgroup2];

/// Most memory of the daemon. Unit: bytes. The defaults of its budgets (recorder 64 MiB, unwinding
/// 32, symbols 24, perf maps 64), rings of 4 MiB for each of a few CPUs, and what it has without
/// them.
const RSS_MAX: u64 = 288 << 20;

fn full() -> bool {
    std::env::var_os("FLEETPROF_STRESS").is_some_and(|value| value == "full")
}

/// The size promised, or the small one.
fn size<T>(small: T, promised: T) -> T {
    if full() { promised } else { small }
}

fn length() -> Duration {
    Duration::from_secs(size(6, 55))
}

/// A daemon, and beside what stresses it a program whose share is known.
struct Rig {
    daemon: Daemon,
    cgroup: Cgroup,
    split: Workload,
    begin: Instant,
}

impl Rig {
    fn start(name: &str, settings: &[&str]) -> Rig {
        let cgroup = Cgroup::new(format!("beside-{name}"));
        let options = settings
            .iter()
            .fold(Daemon::with(), |options, set| options.set(set));
        let daemon = options.start().sampling();
        let split = c("split.c").start_in(&cgroup, &[]);
        let begin = Instant::now();
        Rig {
            daemon,
            cgroup,
            split,
            begin,
        }
    }

    /// Ends the known program and checks what must hold after every stress; returns everything.
    fn finish(self, name: &str) -> View {
        let spent = self.split.finish("split");
        let all = self.daemon.client().everything();
        let known = all.in_cgroup(self.cgroup.path());
        let status = self.daemon.client().status().expect("a status");
        let (cost, quality) = (
            status.own_cost.expect("costs"),
            status.quality.expect("quality"),
        );
        let seconds = self.begin.elapsed().as_secs_f64();
        eprintln!(
            "{name}: {seconds:.0} s; daemon {:.2} % of a CPU, {} MiB; {} samples taken, {} lost, \
             {} folded; by thread {:?}",
            cost.cpu_ns as f64 / seconds / 1e7,
            cost.rss_bytes >> 20,
            quality.taken,
            quality.lost_samples,
            quality.folded,
            cost.cpu_ns_by_thread,
        );
        assert!(cost.rss_bytes <= RSS_MAX, "{} bytes", cost.rss_bytes);
        let expected = spent.iter().sum::<u64>() as f64 * 1e-9 * 99.0;
        // What was lost is said, for the whole machine, and beside chance that is all that may be
        // missing.
        let (count, chance) = (known.count() as f64, 4.0 * expected.sqrt());
        let missing = expected - count;
        let most = 0.1 * expected + chance;
        assert!(
            missing < most + quality.lost_samples as f64,
            "{count} of {expected:.0}"
        );
        assert!(-missing < most, "{count} of {expected:.0}");
        let share = known.count_with("spend_seventy") as f64 / count;
        assert!(
            (share - 0.7).abs() < 0.05 + 2.0 / count.sqrt(),
            "{share:.3} of {count}"
        );
        self.daemon.stop();
        all
    }
}

#[test]
#[ignore = "takes long: make test-slow"]
fn two_thousand_forks_a_second_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let rate = size(500, 2000).to_string();
    let rig = Rig::start("forks", &[]);
    let cgroup = Cgroup::new("forks");
    let forks = c("forks.c").start_in(&cgroup, &[&rate]);
    std::thread::sleep(length());
    let made = forks.finish("forks");
    eprintln!("{} forks", made[0]);
    assert!(made[0] > 100, "{made:?}");
    rig.finish("forks");
}

#[test]
#[ignore = "takes long: make test-slow"]
fn a_thousand_cgroups_made_and_removed_a_second_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let rig = Rig::start("cgroups", &[]);
    let parent = Cgroup::new("many");
    let rate = size(300.0, 1000.0);
    let begin = Instant::now();
    let mut made = 0u32;
    while begin.elapsed() < length() {
        if f64::from(made) > begin.elapsed().as_secs_f64() * rate {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        drop(parent.child(format!("short-{made}")));
        made += 1;
    }
    eprintln!("{made} cgroups");
    assert!(made > 100);
    rig.finish("cgroups");
}

#[test]
#[ignore = "takes long: make test-slow"]
fn a_process_with_a_hundred_thousand_mappings_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let count = size(20_000u32, 100_000);
    let Some(_setting) = Sysctl::set("vm/max_map_count", 150_000) else {
        return skip("vm.max_map_count cannot be changed");
    };
    let rig = Rig::start("mappings", &[]);
    let cgroup = Cgroup::new("mappings");
    let program = c("mappings.c");
    let file = program.build();
    let args = [file.to_str().unwrap(), &count.to_string()];
    let mappings = program.start_in(&cgroup, &args);
    std::thread::sleep(length());
    assert_eq!(mappings.finish("mappings"), [u64::from(count)]);
    let view = rig.finish("mappings").in_cgroup(cgroup.path());
    // The program itself was mapped first: it is not what the bound forgets.
    let busy = view.count_with("spend_among_mappings");
    assert!(busy > 20, "{}", view.dump());
    let unknown = view.only(|sample| {
        sample
            .frames
            .first()
            .is_some_and(|leaf| leaf.unnamed == UnnamedReason::NoMapping)
    });
    assert!(unknown.count() * 10 <= view.count(), "{}", view.dump());
}

#[test]
#[ignore = "takes long: make test-slow"]
fn more_files_in_use_than_can_be_known_are_told_and_counted_needs_root() {
    const PROCESSES: usize = 6;
    const FILES_EACH: u64 = 7_500;
    let Some(_live) = live(NEEDS) else { return };
    let rig = Rig::start("files", &[]);
    let (cgroup, late) = (Cgroup::new("files"), Cgroup::new("late"));
    let dir = tempfile::tempdir().unwrap();
    let args = [dir.path().to_str().unwrap(), &FILES_EACH.to_string()];
    let many: Vec<Workload> = (0..PROCESSES)
        .map(|_| c("files.c").start_in(&cgroup, &args))
        .collect();
    let client = rig.daemon.client();
    let told = wait_for(Duration::from_secs(60), || {
        let degradations = client.status().ok()?.degradations;
        degradations
            .into_iter()
            .find(|found| found.id == "files_refused")
    });
    let told = told.expect("files were refused and nobody says so");
    assert!(told.message.contains("[other]"), "{}", told.message);
    // What comes now has names: who maps most gave way. They come once the files of the same user
    // that were met before it are read, for which a user has a bounded share of a CPU.
    let newcomer = c("split.c").prefixed("late_").start_in(&late, &[]);
    let named = || {
        let view = client.everything().in_cgroup(late.path());
        let named = ["late_spend_seventy", "late_spend_twenty"].map(|name| view.count_with(name));
        named.iter().sum::<u64>()
    };
    let has_names = wait_for(Duration::from_secs(90), || (named() >= 20).then_some(()));
    let dump = || client.everything().in_cgroup(late.path()).dump();
    assert!(has_names.is_some(), "{}", dump());
    let spent = newcomer.finish("split");
    let mapped = many.into_iter().map(|process| process.finish("files")[0]);
    let mapped: u64 = mapped.sum();
    assert!(mapped > 32_768 / 8 * 7, "{mapped}: there was room for all");
    for command in ["status", "doctor"] {
        let shown = rig.daemon.ctl(&[command]);
        assert!(shown.text().contains("files_refused"), "{}", shown.text());
    }
    let all = rig.finish("files");
    let busy = all.in_cgroup(cgroup.path());
    assert!(busy.count_with("spend_among_files") > 20, "{}", busy.dump());
    let view = all.in_cgroup(late.path());
    let expected = spent.iter().sum::<u64>() as f64 * 1e-9 * 99.0;
    assert!(view.count() as f64 > expected / 2.0, "{}", view.dump());
}

#[test]
fn a_daemon_started_beside_a_process_of_many_mappings_reads_them_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let count = size("20000", "60000");
    let cgroup = Cgroup::new("mapped-before");
    let program = c("mappings.c");
    let file = program.build();
    let _mappings = program.start_in(&cgroup, &[file.to_str().unwrap(), count]);
    let rig = Rig::start("mappings before", &[]);
    std::thread::sleep(Duration::from_secs(4));
    let view = rig.finish("mappings before").in_cgroup(cgroup.path());
    assert!(
        view.count_with("spend_among_mappings") > 20,
        "{}",
        view.dump()
    );
}

#[test]
#[ignore = "takes long: make test-slow"]
fn a_binary_of_half_a_gigabyte_needs_root() {
    let needs = [NEEDS, &[Need::Program("objcopy")]].concat();
    let Some(_live) = live(&needs) else { return };
    let dir = tempfile::tempdir().unwrap();
    let (large, program) = (dir.path().join("large"), dir.path().join("half-a-gigabyte"));
    let bytes = size(64u64, 500) << 20;
    std::fs::File::create(&large)
        .unwrap()
        .set_len(bytes)
        .unwrap();
    let mut add = Command::new("objcopy");
    add.arg("--add-section")
        .arg(format!(".debug_info={}", large.display()));
    let own = c("split.c").prefixed("large_").build();
    testkit::workload::run_to_end(add.arg(own).arg(&program)).ok();
    assert!(program.metadata().unwrap().len() > bytes);
    let rig = Rig::start(
        "large binary",
        &["symbols.lines=true", "symbols.inlined_frames=true"],
    );
    let cgroup = Cgroup::new("large");
    let workload = Workload::spawn(&mut cgroup.command(&program)).settled(&program);
    std::thread::sleep(Duration::from_secs(6));
    drop(workload);
    let view = rig.finish("large binary").in_cgroup(cgroup.path());
    let named = view.count_with("large_spend_seventy");
    assert!(
        named * 2 > view.count() && view.count() > 20,
        "{}",
        view.dump()
    );
}

#[test]
#[ignore = "takes long: make test-slow"]
fn ten_thousand_threads_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let count = size(1000u32, 10_000);
    let rig = Rig::start("threads", &[]);
    let cgroup = Cgroup::new("threads");
    let many = c("many.c").start_in(&cgroup, &[&count.to_string()]);
    std::thread::sleep(length());
    let started = many.finish("many");
    assert_eq!(started, [u64::from(count)]);
    let view = rig.finish("threads").in_cgroup(cgroup.path());
    let threads = view
        .only(|sample| sample.has("thread_work"))
        .label_values(key::THREAD);
    assert!(threads.len() > 20, "{threads:?}");
    assert!(
        threads.iter().all(|name| name.starts_with("many")),
        "{threads:?}"
    );
}
