//! Bad days: the daemon and the CLI where the machine, its settings or their neighbours are against
//! them. Each says what is wrong and goes on with the rest, or ends at once with the exit code for
//! it.
//!
//! Elsewhere: a second daemon on the socket, a socket left behind, refused reloads, clients that
//! stand still at the end (operations.rs); hostile names in every format (hostile.rs, here in the
//! terminal); perf maps of every bad kind, one by one (daemon/jit/src/tests.rs, here with a daemon
//! and a process that runs them); containers and files that change (containers.rs); masses of
//! things (stress.rs).
#![expect(clippy::unwrap_used, reason = "a test fails by panic")]

use profile::{FrameKind, StackEnd, UnnamedReason, key};
use proto::agent::{GetStatusResponse, StreamProfilesRequest};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testkit::ctl::{CONFIG, command, ctl};
use testkit::process::{Output, install, run, wait_for};
use testkit::sysctl::Sysctl;
use testkit::terminal::Terminal;
use testkit::workload::{Workload, c, source};
use testkit::{Cgroup, Daemon, Need, View, beside, live, skip};

const LIMIT: Duration = Duration::from_secs(20);
/// Exit code of the daemon: not permitted to sample.
const PERMISSION: i32 = 4;
/// A user that nobody is.
const NOBODY: &str = "54321";
const LIVE: &[Need] = &[Need::Root, Need::StaticC, Need::Cgroup2];

/// Runs the daemon's program to its end.
fn fleetprofd(args: &[&str]) -> Output {
    let mut command = Command::new(testkit::binaries::fleetprofd());
    run(command.args(args), LIMIT)
}

#[test]
fn a_configuration_that_cannot_be_read_ends_the_start_and_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    fs::create_dir(at("directory")).unwrap();
    fs::write(at("bytes"), b"log:\n  level: \xff\n").unwrap();
    fs::write(at("huge"), "# padding\n".repeat(1 << 18)).unwrap();
    let fifo = Command::new("mkfifo").arg(at("pipe")).status().unwrap();
    assert!(fifo.success());
    for name in ["missing", "directory", "bytes", "huge", "pipe"] {
        let out = fleetprofd(&["--config", &at(name)]);
        assert_eq!(out.code, Some(CONFIG), "{name}: {out:?}");
        assert!(out.stderr.contains(&at(name)), "{name}: {}", out.stderr);
    }
}

#[test]
fn a_configuration_that_others_can_write_is_refused_needs_root() {
    if !testkit::met(&[Need::Root]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("agent.yaml");
    fs::write(&file, "log:\n  level: info\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    let out = fleetprofd(&["--config", file.to_str().unwrap()]);
    assert_eq!(out.code, Some(CONFIG), "{out:?}");
    assert!(out.stderr.contains("chmod"), "no remedy: {}", out.stderr);
}

#[test]
fn an_error_that_cannot_be_printed_keeps_its_exit_code() {
    let mut shell = Command::new("sh");
    shell.args([
        "-c",
        r#"exec "$0" --config /nowhere/agent.yaml 2>/dev/full"#,
    ]);
    let out = run(shell.arg(testkit::binaries::fleetprofd()), LIMIT);
    assert_eq!(out.code, Some(CONFIG), "{out:?}");
}

/// A copy of the daemon and a directory that every user may reach.
fn for_everybody() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir_in("/tmp").unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let program = dir.path().join("fleetprofd");
    install(testkit::binaries::fleetprofd(), &program);
    (dir, program)
}

#[test]
fn without_the_right_to_sample_it_ends_and_tells_what_to_do_needs_root() {
    let needs = [Need::Root, Need::Program("setpriv")];
    let Some(_live) = live(&needs) else { return };
    let paranoid = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap();
    if paranoid.trim().parse::<i32>().unwrap() < 1 {
        return skip("everybody may sample here: kernel.perf_event_paranoid is below 1");
    }
    let (dir, program) = for_everybody();
    let user = [
        "setpriv",
        "--reuid",
        NOBODY,
        "--regid",
        NOBODY,
        "--clear-groups",
        "--bounding-set",
        "-all",
    ];
    let daemon = Daemon::with().dir(dir.path()).program(&program);
    let mut daemon = daemon.through(&user).launch();
    let status = daemon.wait(LIMIT).expect("it ends by itself");
    let log = daemon.log();
    assert_eq!(status.code(), Some(PERMISSION), "{log}");
    for word in ["perf_event_paranoid", "CAP_PERFMON"] {
        assert!(log.contains(word), "no `{word}` in: {log}");
    }
}

fn degradation(status: &GetStatusResponse, id: &str) -> Option<String> {
    let found = status.degradations.iter().find(|found| found.id == id);
    found.map(|found| format!("{} {}", found.message, found.remedy))
}

#[test]
fn without_memory_to_lock_it_samples_with_smaller_rings_needs_root() {
    let needs = [
        Need::Root,
        Need::Program("setpriv"),
        Need::Program("prlimit"),
    ];
    let Some(_live) = live(&needs) else { return };
    // A user of its own, since the kernel counts locked memory by user; no CAP_IPC_LOCK.
    let rights = "+perfmon,+sys_ptrace,+dac_override,+dac_read_search,+syslog,+checkpoint_restore";
    let (dir, program) = for_everybody();
    let user = [
        "prlimit",
        "--memlock=65536",
        "setpriv",
        "--reuid",
        NOBODY,
        "--regid",
        NOBODY,
        "--clear-groups",
        "--inh-caps",
        rights,
        "--ambient-caps",
        rights,
    ];
    let daemon = Daemon::with().dir(dir.path()).program(&program);
    let daemon = daemon.through(&user).start().sampling();
    let status = daemon.client().status().expect("a status");
    let sampling = status.sampling.expect("the sampling's state");
    assert!(sampling.ring_bytes_per_cpu <= 512 << 10, "{sampling:?}");
    daemon.stop();
}

#[test]
#[ignore = "takes long: make test-slow"]
fn hidden_kernel_addresses_cost_kernel_names_alone_needs_root() {
    let Some(_live) = live(LIVE) else { return };
    let Some(setting) = Sysctl::set("kernel/kptr_restrict", 2) else {
        return skip("kernel.kptr_restrict cannot be changed");
    };
    // The kernel's table is read at the start.
    let daemon = Daemon::start();
    drop(setting);
    let cgroup = Cgroup::new("hidden");
    let _split = c("split.c").start_in(&cgroup, &[]);
    let _kernel = c("kernel.c").start_in(&cgroup, &[]);
    std::thread::sleep(Duration::from_secs(3));
    let view = daemon.client().everything().in_cgroup(cgroup.path());
    assert!(view.count_with("spend_seventy") > 0, "{}", view.dump());
    let kernel = view.frames();
    let mut kernel = kernel
        .iter()
        .filter(|frame| frame.kind == FrameKind::Kernel);
    assert!(kernel.clone().count() > 0, "{}", view.dump());
    assert!(
        kernel.all(|frame| frame.unnamed == UnnamedReason::KernelHidden),
        "{}",
        view.dump()
    );
    let status = daemon.client().status().expect("a status");
    let told = degradation(&status, "kptr_restrict").expect("it is told");
    assert!(told.contains("sysctl"), "{told}");
}

#[test]
fn a_lowered_stack_limit_cuts_stacks_and_says_so_needs_root() {
    let Some(_live) = live(LIVE) else { return };
    let Some(_setting) = Sysctl::set("kernel/perf_event_max_stack", 20) else {
        return skip("kernel.perf_event_max_stack cannot be changed: another profiler runs");
    };
    let cgroup = Cgroup::new("shallow");
    let daemon = Daemon::with().set("unwind.mode=frame-pointer");
    let daemon = daemon.start().sampling();
    let _deep = c("deep.c").start_in(&cgroup, &["60"]);
    std::thread::sleep(Duration::from_secs(2));
    let view = daemon.client().everything().in_cgroup(cgroup.path());
    let deep = view.with("descend");
    assert!(deep.count() > 20, "{}", view.dump());
    for sample in &deep.samples {
        assert!(sample.frames.len() <= 20, "{}", deep.dump());
        assert_eq!(sample.end, StackEnd::DepthLimit, "{}", deep.dump());
    }
    let status = daemon.client().status().expect("a status");
    let told = degradation(&status, "perf_event_max_stack").expect("it is told");
    assert!(told.contains("20"), "{told}");
    assert!(status.quality.is_some_and(|quality| quality.truncated > 0));
    // The setting can be put back only when nobody samples any more.
    daemon.stop();
}

/// Moves something into place as a process's perf map, in one step; removed when dropped.
struct MapOf(PathBuf);

impl MapOf {
    fn put(process: &Workload, dir: &Path, make: impl FnOnce(&Path)) -> MapOf {
        let map = PathBuf::from(format!("/tmp/perf-{}.map", process.pid()));
        let made = dir.join(process.pid().to_string());
        make(&made);
        fs::rename(&made, &map).unwrap();
        MapOf(map)
    }
}

impl Drop for MapOf {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

const MAP: &str = "10000000 1000 honest_code\n";

#[test]
fn perf_maps_that_are_traps_are_refused_and_honest_ones_beside_them_read_needs_root() {
    let Some(_live) = beside(LIVE) else { return };
    let cgroup = Cgroup::new("traps");
    // On the file system of /tmp, where things are renamed to.
    let dir = tempfile::tempdir_in("/tmp").unwrap();
    let secret = dir.path().join("secret");
    fs::write(&secret, MAP).unwrap();
    let daemon = Daemon::with().set("windows.length_s=1").start().sampling();
    let jit = || c("jit.c").start_in(&cgroup, &[]);
    type Make<'a> = &'a dyn Fn(&Path);
    let kinds: [(&str, Make<'_>); 6] = [
        ("honest", &|at| fs::write(at, MAP).unwrap()),
        ("pipe", &|at| {
            assert!(Command::new("mkfifo").arg(at).status().unwrap().success())
        }),
        ("link to a secret", &|at| symlink(&secret, at).unwrap()),
        ("second name", &|at| {
            fs::write(at, MAP).unwrap();
            fs::hard_link(at, at.with_extension("other")).unwrap();
        }),
        ("of another owner", &|at| {
            fs::write(at, MAP).unwrap();
            std::os::unix::fs::chown(at, Some(54321), None).unwrap();
        }),
        ("10 GB long", &|at| {
            fs::write(at, MAP).unwrap();
            fs::File::options()
                .write(true)
                .open(at)
                .unwrap()
                .set_len(10 << 30)
                .unwrap();
        }),
    ];
    let running = kinds.map(|(name, make)| {
        let process = jit();
        let map = MapOf::put(&process, dir.path(), |at| make(at));
        (name, process, map)
    });
    std::thread::sleep(Duration::from_secs(6));
    let view = daemon.client().everything().in_cgroup(cgroup.path());
    for (name, process, _) in &running {
        let pid = process.pid().to_string();
        let own = view.only(|sample| sample.label(key::PID) == pid);
        let leaves = own.only(|sample| {
            sample
                .frames
                .first()
                .is_some_and(|leaf| leaf.kind == FrameKind::Jit)
        });
        assert!(leaves.count() > 5, "{name}: {}", own.dump());
        for sample in &leaves.samples {
            let expected = match *name {
                "honest" => ("honest_code", UnnamedReason::No),
                _ => ("[jit]", UnnamedReason::JitMapRefused),
            };
            let leaf = &sample.frames[0];
            assert_eq!((leaf.function.as_str(), leaf.unnamed), expected, "{name}");
        }
    }
    daemon.stop();
}

#[test]
#[ignore = "takes long: make test-slow"]
fn hostile_names_reach_the_terminal_as_text_needs_root() {
    let needs = [LIVE, &[Need::Program("tmux")]].concat();
    let Some(_live) = beside(&needs) else { return };
    let cgroup = Cgroup::new("evil;\x1b[2J\x1b]2;owned\x07<b>");
    let daemon = Daemon::with().set("windows.length_s=1").start().sampling();
    let _first = c("split.c").start_in(&cgroup, &["-c", "\x1b[2J\x1b]2;own\x07"]);
    let _second = c("split.c").start_in(&cgroup, &["-c", "a\nb;<i>\u{9b}31m"]);
    for (keys, shown) in [
        (None, "spend_seventy"),
        (Some("2"), r"evil;\x1b[2J\x1b]2;owned\x07<b>"),
        (Some("3"), r"\x1b[2J\x1b]2;own\x07"),
        (Some("3"), r"a\nb;<i>\u{9b}31m"),
    ] {
        let terminal = Terminal::open(&command(["--agent", &daemon.address(), "top"]));
        assert!(terminal.shows("spend_seventy"));
        if let Some(keys) = keys {
            terminal.tmux(&["send-keys", keys]);
        }
        assert!(terminal.shows(shown), "{keys:?}");
        let title = terminal.tmux(&["display-message", "-p", "#{pane_title}"]);
        assert!(!title.contains("own"), "{title:?}");
    }
}

/// The library that moves the wall clock of one process.
fn stepped_clock(dir: &Path) -> PathBuf {
    let library = dir.join("stepped_clock.so");
    let mut compile = Command::new("gcc");
    compile
        .args(["-O2", "-shared", "-fPIC", "-o"])
        .arg(&library);
    run(compile.arg(source("stepped_clock.c")), LIMIT).ok();
    library
}

#[test]
#[ignore = "takes long: make test-slow"]
fn a_clock_stepped_back_an_hour_loses_no_samples_and_is_told_needs_root() {
    let Some(_live) = live(LIVE) else { return };
    let dir = tempfile::tempdir().unwrap();
    let (library, seconds) = (stepped_clock(dir.path()), dir.path().join("seconds"));
    let preload = format!("LD_PRELOAD={}", library.display());
    let named = format!("STEPPED_CLOCK={}", seconds.display());
    // The daemon looks at the clock every ten seconds.
    let daemon = Daemon::with()
        .set("windows.length_s=1")
        .through(&["env", &preload, &named]);
    let daemon = daemon.start().sampling();
    let cgroup = Cgroup::new("stepped");
    let split = c("split.c").start_in(&cgroup, &[]);
    std::thread::sleep(Duration::from_secs(3));
    fs::write(&seconds, "-3600").unwrap();
    let told = wait_for(LIMIT, || daemon.log().contains("stepped").then_some(()));
    assert!(told.is_some(), "{}", daemon.log());
    std::thread::sleep(Duration::from_secs(3));
    let hour_ns = 3_600_000_000_000;
    let request = proto::agent::QueryProfileRequest {
        group_by: vec!["*".to_owned()],
        fresh: true,
        ..Default::default()
    };
    let before_step = testkit::clock::unix_ns() - hour_ns - 1_500_000_000;
    let view = daemon.client().query_until(&request, before_step);
    let spent: u64 = split.finish("split").iter().sum();
    let view = view.in_cgroup(cgroup.path());
    // What ran after the question is missing; nothing of the six seconds before is.
    let expected = spent as f64 * 1e-9 * 99.0;
    assert!(
        view.count() as f64 > expected * 0.7,
        "{} of {expected}",
        view.count()
    );
    let status = daemon.client().status().expect("a status");
    let behind = testkit::clock::unix_ns() - status.now_unix_ns;
    assert!((behind - hour_ns).abs() < 60_000_000_000, "{behind}");
    let windows = daemon.client().stream(StreamProfilesRequest::default(), 2);
    for window in windows.expect("windows go on") {
        assert!(
            window.info.duration_ns < 60_000_000_000,
            "{:?}",
            window.info
        );
    }
    daemon.stop();
}

#[test]
fn a_full_disk_under_the_log_does_not_stop_the_daemon_needs_root() {
    let Some(_live) = beside(&[Need::Root]) else {
        return;
    };
    let full = ["sh", "-c", r#"exec "$0" "$@" >/dev/full 2>/dev/full"#];
    let mut daemon = Daemon::with()
        .set("log.level=trace")
        .through(&full)
        .start()
        .sampling();
    daemon.signal(Signal::HUP);
    daemon.client().status().expect("it answers");
    daemon.stop();
}

/// A tmpfs of a few pages; unmounted when dropped.
struct TinyDisk(tempfile::TempDir);

impl TinyDisk {
    fn mount() -> TinyDisk {
        let dir = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", "size=16k", "tiny"])
            .arg(dir.path());
        run(&mut mount, LIMIT).ok();
        TinyDisk(dir)
    }
}

impl Drop for TinyDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
#[ignore = "takes long: make test-slow"]
fn a_full_disk_under_an_answer_leaves_the_old_file_and_no_part_of_a_new_one_needs_root() {
    let Some(_live) = beside(LIVE) else { return };
    let cgroup = Cgroup::new("full");
    let daemon = Daemon::start().sampling();
    let _split = c("split.c").start_in(&cgroup, &[]);
    let something = || (daemon.ctl(&["profile", "--since", "1m"]).code == Some(0)).then_some(());
    assert!(wait_for(LIMIT, something).is_some(), "{}", daemon.log());
    let disk = TinyDisk::mount();
    let file = disk.0.path().join("old.html");
    fs::write(&file, "old").unwrap();
    let out = daemon.ctl(&["profile", "--since", "1m", "-o", file.to_str().unwrap()]);
    assert_eq!(out.code, Some(1), "{out:?}");
    assert!(out.stderr.contains("old.html"), "{}", out.stderr);
    assert_eq!(fs::read_to_string(&file).unwrap(), "old");
    assert_eq!(fs::read_dir(disk.0.path()).unwrap().count(), 1);
}

#[test]
#[ignore = "takes long: make test-slow"]
fn a_client_that_never_reads_its_stream_holds_up_nobody_needs_root() {
    let Some(_live) = beside(LIVE) else { return };
    let cgroup = Cgroup::new("unread");
    let daemon = Daemon::with().set("windows.length_s=1").start().sampling();
    let _split = c("split.c").start_in(&cgroup, &[]);
    let deaf: Vec<_> = (0..8)
        .map(|_| {
            // Its runtime runs only during calls: what comes after the first answer stays unread.
            let client = daemon.client();
            let first = client.stream(StreamProfilesRequest::default(), 1);
            (first.expect("a window"), client)
        })
        .collect();
    let reader = daemon.client();
    let windows = reader
        .stream(StreamProfilesRequest::default(), 4)
        .expect("four windows");
    assert!(
        windows
            .iter()
            .all(|view: &View| view.count_with("spend_seventy") > 0)
    );
    reader.status().expect("a status");
    drop(deaf);
    daemon.stop();
}

/// CPU time of a process. Unit: seconds.
fn cpu_s(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    ticks as f64 / 100.0
}

#[test]
fn without_descriptors_it_goes_on_sampling_and_answers_when_there_are_some_needs_root() {
    use std::os::unix::net::UnixStream;
    let needs = [LIVE, &[Need::Program("prlimit")]].concat();
    let Some(_live) = live(&needs) else { return };
    let cgroup = Cgroup::new("descriptors");
    let daemon = Daemon::with()
        .through(&["prlimit", "--nofile=64"])
        .start()
        .sampling();
    let split = c("split.c").start_in(&cgroup, &[]);
    // More connections than it has descriptors: the rest wait in the socket's queue.
    let held: Vec<_> = (0..100)
        .map_while(|_| UnixStream::connect(daemon.socket()).ok())
        .collect();
    assert!(held.len() > 64, "{}", held.len());
    // At first it reads what runs here: seconds, where that is a compiler.
    let calm = wait_for(LIMIT, || {
        let before = cpu_s(daemon.pid());
        std::thread::sleep(Duration::from_secs(2));
        (cpu_s(daemon.pid()) - before < 0.5).then_some(())
    });
    assert!(calm.is_some(), "it spins: {}", daemon.log());
    drop(held);
    let answered = wait_for(LIMIT, || daemon.client().status().ok()).is_some();
    assert!(answered, "{}", daemon.log());
    let expected = split.finish("split").iter().sum::<u64>() as f64 * 1e-9 * 99.0;
    let view = daemon.client().everything().in_cgroup(cgroup.path());
    assert!(
        view.count() as f64 > expected * 0.8,
        "{} of {expected}",
        view.count()
    );
    daemon.stop();
}

#[test]
fn the_cli_says_what_it_cannot_write() {
    let out = ctl(["man", "--dir", "/proc/nowhere"]);
    assert_eq!(out.code, Some(1), "{out:?}");
    assert!(out.stderr.contains("/proc/nowhere"), "{}", out.stderr);
}
