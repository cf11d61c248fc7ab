//! Generated code by the time of each sample, with the real daemon: code written over, processes
//! that are gone with their namespace, and maps made to hurt.
//!
//! Elsewhere: every bad kind of file one by one (daemon/jit/src/tests.rs, bad_days.rs), a file
//! system that never answers (stuck.rs), real runtimes (mixed.rs).
#![expect(clippy::unwrap_used, reason = "a test fails by panic")]

use profile::{FrameKind, StackEnd, UnnamedReason, key};
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use testkit::process::wait_for;
use testkit::workload::{Workload, bare_c, c};
use testkit::{Cgroup, Daemon, Need, View, ViewSample, live, runtimes, skip};

const NEEDS: &[Need] = &[Need::Root, Need::StaticC, Need::Cgroup2];
/// Several windows, and what a loaded machine adds.
const LIMIT: Duration = Duration::from_secs(60);
/// Resident memory that no map may drive the daemon to. Unit: KiB. The default limit for generated
/// code is 64 MiB.
const RESIDENT_MAX_KIB: u64 = 400 << 10;

fn is_generated(sample: &ViewSample) -> bool {
    let leaf = sample.frames.first();
    leaf.is_some_and(|leaf| leaf.kind == FrameKind::Jit)
}

#[test]
fn samples_before_and_after_code_is_written_over_have_their_own_names_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let cgroup = Cgroup::new("rewriter");
    let daemon = Daemon::with().set("windows.length_s=5").start().sampling();
    let _process = c("rewriter.c").start_in(&cgroup, &["3"]);
    let client = daemon.client();
    let seen = || {
        client
            .everything()
            .in_cgroup(cgroup.path())
            .only(is_generated)
    };
    let found = wait_for(LIMIT, || {
        let view = seen();
        let generations = ["generation_1", "generation_2", "generation_3"];
        let all = generations.iter().all(|name| view.count_with(name) > 0);
        all.then_some(view)
    });
    let Some(view) = found else {
        panic!("{}", seen().dump());
    };
    for sample in &view.samples {
        let leaf = &sample.frames[0];
        match leaf.unnamed {
            UnnamedReason::No => {
                let number = leaf.function.strip_prefix("generation_");
                let number: u32 = number.expect("its name").parse().unwrap();
                let other = ["odd_generation", "even_generation"][number as usize % 2];
                assert!(!sample.has(other), "not of its time: {sample:?}");
            }
            reason => assert_eq!(reason, UnnamedReason::JitReused, "{}", view.dump()),
        }
    }
    // At most one second in three lies between two readings, and what load adds to it.
    let named = view.only(|sample| sample.frames[0].unnamed == UnnamedReason::No);
    assert!(named.count() * 3 > view.count(), "{}", view.dump());
    daemon.stop();
}

#[test]
fn a_process_that_is_gone_with_its_namespace_has_names_needs_root() {
    let needs = [NEEDS, &[Need::Program("unshare")]].concat();
    let Some(_live) = live(&needs) else { return };
    let cgroup = Cgroup::new("gone-generated");
    // Nothing is asked for before the end: names must have been secured in time.
    let daemon = Daemon::start().sampling();
    let script = "mount -t tmpfs inner /tmp && exec /proc/self/fd/4 2 4";
    let script = format!("exec 4<\"$0\" && {script}");
    let mut command = cgroup.command("unshare");
    command
        .args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c"])
        .arg(script)
        .arg(c("rewriter.c").build());
    let mut process = Workload::spawn(&mut command);
    let ended = process.proc().wait(LIMIT);
    let error = process.proc().stderr();
    assert!(ended.is_some_and(|status| status.success()), "{error}");
    let view = daemon.client().everything().in_cgroup(cgroup.path());
    let view = view.only(is_generated);
    assert!(view.count() > 5, "{}", view.dump());
    assert!(view.count_with("generation_0") > 0, "{}", view.dump());
    for sample in &view.samples {
        let reason = sample.frames[0].unnamed;
        let known = [UnnamedReason::No, UnnamedReason::JitReused].contains(&reason);
        assert!(known, "{}", view.dump());
    }
    daemon.stop();
}

/// The functions of a stack, leaf first, without the kernel's.
fn own_frames(sample: &ViewSample) -> Vec<&str> {
    let frames = sample.frames.iter();
    let own = frames.filter(|it| it.kind != FrameKind::Kernel);
    own.map(|it| &*it.function).collect()
}

/// Whoever is told to have called generated code entered it: nobody in `litter`, whose return
/// addresses are all over its frame.
fn check_callers(view: &View) {
    for sample in &view.samples {
        let frames = own_frames(sample);
        let [_, entered, "run", "main", ..] = frames[..] else {
            panic!("{}", view.dump());
        };
        assert!(entered.starts_with("enter_by_"), "{}", view.dump());
    }
}

#[test]
fn the_caller_of_code_without_a_frame_is_who_entered_it_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let cgroup = Cgroup::new("frameless");
    let daemon = Daemon::with().set("windows.length_s=1").start().sampling();
    let _process = bare_c("frameless.c", &[]).start_in(&cgroup, &[]);
    let client = daemon.client();
    let scanned = || {
        let seen = client.everything().in_cgroup(cgroup.path());
        seen.only(|sample| sample.end == StackEnd::Scanned)
    };
    let found = wait_for(LIMIT, || {
        let view = scanned();
        let ways = ["enter_by_pointer", "enter_by_jump"];
        let both = ways.iter().all(|way| view.count_with(way) >= 50);
        both.then_some(view)
    });
    let Some(view) = found else {
        panic!("{}", client.everything().in_cgroup(cgroup.path()).dump());
    };
    check_callers(&view);
    let counters = client.counter("fleetprof_unwind_scans_found_total");
    assert!(counters >= view.count(), "{counters}");
    daemon.stop();
}

#[test]
fn what_is_not_known_of_a_caller_ends_the_stack_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let daemon = Daemon::with().set("windows.length_s=1").start().sampling();
    // The code changes the register that the caller is found by, or earlier calls may have led to
    // it.
    for flag in ["-fno-omit-frame-pointer", "-DBY_TABLE"] {
        let cgroup = Cgroup::new("frameless-unknown");
        let program = bare_c("frameless.c", &[flag]).named(&format!("frameless{flag}"));
        let _process = program.start_in(&cgroup, &[]);
        let client = daemon.client();
        let seen = || client.everything().in_cgroup(cgroup.path());
        let found = wait_for(LIMIT, || {
            let view = seen().only(is_generated);
            (view.count() >= 150).then_some(view)
        });
        let Some(view) = found else {
            panic!("{}", seen().dump());
        };
        check_callers(&view.only(|sample| sample.end.is_complete()));
    }
    daemon.stop();
}

#[test]
fn the_caller_of_code_in_a_lent_frame_is_the_lenders_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let cgroup = Cgroup::new("lent");
    let daemon = Daemon::with().set("windows.length_s=1").start().sampling();
    let _process = bare_c("lent.c", &["-no-pie"]).start_in(&cgroup, &[]);
    let client = daemon.client();
    let seen = || client.everything().in_cgroup(cgroup.path());
    let found = wait_for(LIMIT, || {
        let view = seen().only(|sample| sample.end == StackEnd::LentFrame);
        let both = ["continued", "called"].map(|name| view.count_with(name));
        both.iter().all(|&count| count >= 50).then_some(view)
    });
    let Some(view) = found else {
        panic!("{}", seen().dump());
    };
    for sample in &view.samples {
        let frames = own_frames(sample);
        assert!(
            matches!(
                frames[..],
                ["continued", "scheduled", "main", ..]
                    | ["called", "continued", "scheduled", "main", ..]
            ),
            "{}",
            view.dump()
        );
    }
    assert!(client.counter("fleetprof_unwind_lent_steps_total") >= view.count());
    daemon.stop();
}

#[test]
fn an_erlang_process_has_all_its_callers_without_a_switch_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let runtime = match runtimes::plain_erlang("depth") {
        Ok(runtime) => runtime,
        Err(why) => return skip(&why),
    };
    let cgroup = Cgroup::new("erlang-depth");
    let daemon = Daemon::with().set("windows.length_s=1").start().sampling();
    let running = runtime.start_in(&cgroup);
    let client = daemon.client();
    let generated = || {
        let seen = client.everything().in_cgroup(running.cgroup.path());
        seen.only(|sample| is_generated(sample) && sample.frames.len() > 50)
    };
    wait_for(LIMIT, || (generated().count() >= 200).then_some(()));
    let view = generated();
    let of_depth = |depth: usize| view.only(|sample| sample.frames.len() == depth).count();
    let depths: BTreeSet<usize> = view.samples.iter().map(|one| one.frames.len()).collect();
    let (count, depth) = depths
        .iter()
        .map(|&depth| (of_depth(depth), depth))
        .max()
        .unwrap();
    // Its hundred calls, and those that lead to its first function.
    assert!((102..110).contains(&depth), "{depth}: {}", view.dump());
    // Where it is about to give up the CPU its last call may be one more or less.
    assert!(
        count * 100 >= view.count() * 98,
        "{depths:?}: {}",
        view.dump()
    );
    let whole = view.only(|sample| sample.end == StackEnd::Complete);
    assert!(whole.count() * 100 >= view.count() * 98, "{}", view.dump());
    assert!(client.counter("fleetprof_unwind_beam_stacks_total") >= whole.count());
    daemon.stop();
}

/// Something done again and again to the map of a process, until it is dropped.
struct Trap {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    process: Workload,
    map: PathBuf,
}

impl Trap {
    fn set(cgroup: &Cgroup, mut again: impl FnMut(&Path) + Send + 'static) -> Trap {
        let process = c("jit.c").start_in(cgroup, &[]);
        let map = PathBuf::from(format!("/tmp/perf-{}.map", process.pid()));
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, at) = (Arc::clone(&stop), map.clone());
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                again(&at);
            }
        });
        Trap {
            stop,
            thread: Some(thread),
            process,
            map,
        }
    }
}

impl Drop for Trap {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
        let _ = fs::remove_file(&self.map);
    }
}

const HONEST: &str = "10000000 1000 honest_code\n";
const SECRET: &str = "10000000 1000 secret_code\n";

/// Resident memory of a process. Unit: KiB.
fn resident_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    line.unwrap()
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}

/// A map that takes the turns of an honest file, a link to a secret one, a device and a second
/// name.
fn swapped(cgroup: &Cgroup, dir: &Path) -> Trap {
    let (secret, made) = (dir.join("secret"), dir.join("made"));
    fs::write(&secret, SECRET).unwrap();
    let zero = dir.join("zero");
    let status = Command::new("mknod")
        .arg(&zero)
        .args(["c", "1", "5"])
        .status();
    assert!(status.unwrap().success());
    let mut turn = 0;
    Trap::set(cgroup, move |map| {
        turn += 1;
        let _ = match turn % 4 {
            0 => symlink(&secret, &made),
            1 => fs::write(&made, HONEST),
            2 => symlink(&zero, &made),
            _ => fs::hard_link(&secret, &made),
        };
        let _ = fs::rename(&made, map);
    })
}

/// A map that grows without end, by lines that all lie elsewhere.
fn endless(cgroup: &Cgroup) -> Trap {
    let (mut file, mut next) = (None, 0x7000_0000_0000u64);
    Trap::set(cgroup, move |map| {
        let file = file.get_or_insert_with(|| {
            fs::write(map, HONEST).unwrap();
            fs::File::options().append(true).open(map).unwrap()
        });
        // Past any limit it goes on, but not past what the disk of a test may take.
        if file.metadata().unwrap().len() > 256 << 20 {
            return std::thread::yield_now();
        }
        let mut lines = String::new();
        for _ in 0..50_000 {
            next += 16;
            lines.push_str(&format!("{next:x} 10 \x1b[2J{next}\n"));
        }
        file.write_all(lines.as_bytes()).unwrap();
    })
}

#[test]
fn maps_that_are_swapped_or_grow_for_ever_harm_only_their_own_process_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let cgroup = Cgroup::new("traps-generated");
    // On the file system of /tmp, where things are renamed to.
    let dir = tempfile::tempdir_in("/tmp").unwrap();
    let daemon = Daemon::with().set("windows.length_s=1").start().sampling();
    let traps = [swapped(&cgroup, dir.path()), endless(&cgroup)];
    let honest = Trap::set(&cgroup, |map| {
        if !map.exists() {
            fs::write(map, HONEST).unwrap();
        }
        std::thread::park_timeout(Duration::from_millis(50));
    });
    let client = daemon.client();
    let of = |view: &View, trap: &Trap| {
        let pid = trap.process.pid().to_string();
        view.only(|sample| sample.label(key::PID) == pid && is_generated(sample))
    };
    let mut most_kib = 0;
    let mut view = client.everything().in_cgroup(cgroup.path());
    let found = wait_for(LIMIT, || {
        most_kib = most_kib.max(resident_kib(daemon.pid()));
        view = client.everything().in_cgroup(cgroup.path());
        let large = fs::metadata(&traps[1].map).is_ok_and(|facts| facts.len() > 200 << 20);
        let sampled = traps.iter().all(|trap| of(&view, trap).count() > 20);
        let named = of(&view, &honest).count_with("honest_code") > 20;
        (large && sampled && named).then_some(())
    });
    assert!(found.is_some(), "{}\n{}", view.dump(), daemon.log());
    assert!(most_kib < RESIDENT_MAX_KIB, "{most_kib} KiB resident");
    assert_eq!(
        view.count_with("secret_code"),
        0,
        "read outside: {}",
        view.dump()
    );
    let text = view.dump();
    assert!(!text.contains('\x1b'), "{text:?}");
    daemon.stop();
}
