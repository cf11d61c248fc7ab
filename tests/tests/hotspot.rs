//! JVMs that nobody prepared: their names and stacks; and where their structures are not read, what
//! is said of them, and their names once the daemon may attach.
//!
//! What the attach itself refuses, and in which namespaces it works, is tested beside it
//! (daemon/jit/src/ask/tests.rs). Here the way of a sample to its name is complete.
#![expect(clippy::unwrap_used, reason = "a test fails by panic")]

use proto::agent::RuntimeStatus;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use testkit::process::{install, run, wait_for};
use testkit::{Daemon, Need, live, workload};

const NEEDS: &[Need] = &[
    Need::Root,
    Need::Program("java"),
    Need::Program("javac"),
    Need::Program("unshare"),
    Need::Program("setpriv"),
];

/// Longest wait for a state, on a machine that does much else.
const LIMIT: Duration = Duration::from_secs(90);

/// Longest a compiler may take.
const COMPILE_LIMIT: Duration = Duration::from_secs(120);

/// Methods keep their own code, and the JVM starts quickly.
const FLAGS: &[&str] = &[
    "-XX:CompileCommand=quiet",
    "-XX:CompileCommand=dontinline,Hot.*",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
];

/// The directory of the compiled program, which everybody may read.
fn classes() -> &'static Path {
    static DIR: OnceLock<tempfile::TempDir> = OnceLock::new();
    let dir = DIR.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let mut javac = Command::new("javac");
        javac
            .arg("-d")
            .arg(dir.path())
            .arg(workload::source("Hot.java"));
        run(&mut javac, COMPILE_LIMIT).ok();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        dir
    });
    dir.path()
}

/// A JVM that burns one CPU until it is dropped.
struct Jvm {
    child: Child,
    /// Its end would be the JVM's.
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    pid: u32,
    map: PathBuf,
    socket: PathBuf,
}

impl Jvm {
    fn start(flags: &[&str]) -> Jvm {
        let mut command = Command::new("java");
        command.args(FLAGS).args(flags).arg("-cp").arg(classes());
        Jvm::spawn(command.arg("Hot"), None)
    }

    /// One of another user, pid 1 of namespaces of its own, with `tmp` as its `/tmp`.
    fn contained(tmp: &Path) -> Jvm {
        std::fs::copy(classes().join("Hot.class"), tmp.join("Hot.class")).unwrap();
        std::fs::set_permissions(tmp, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::os::unix::fs::chown(tmp, Some(65534), Some(65534)).unwrap();
        let script = format!(
            "mount --bind {} /tmp && mount -t proc proc /proc && exec java {} \
             -XX:+PreserveFramePointer -cp /tmp Hot",
            tmp.display(),
            FLAGS.join(" ")
        );
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        command.args(["unshare", "--user", "--map-root-user", "--mount", "--pid"]);
        command.args(["--fork", "--kill-child", "sh", "-c", &script]);
        Jvm::spawn(&mut command, Some(tmp))
    }

    fn spawn(command: &mut Command, tmp: Option<&Path>) -> Jvm {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        let pid = match tmp {
            Some(_) => std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id()))
                .unwrap()
                .trim()
                .parse()
                .unwrap(),
            None => child.id(),
        };
        let inner_pid = if tmp.is_some() { 1 } else { pid };
        let tmp = tmp.unwrap_or(Path::new("/tmp"));
        Jvm {
            input: child.stdin.take().unwrap(),
            child,
            lines,
            pid,
            map: tmp.join(format!("perf-{inner_pid}.map")),
            socket: tmp.join(format!(".java_pid{inner_pid}")),
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid.try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Has it run another method.
    fn go_on(&mut self) {
        self.input.write_all(b"x").unwrap();
        assert_eq!(self.lines.next().unwrap().unwrap(), "late");
    }
}

impl Drop for Jvm {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.map);
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn attaching() -> Daemon {
    Daemon::with()
        .set("windows.length_s=1")
        .set("jit.hotspot=false")
        .set("jit.hotspot_attach=true")
        .set("jit.hotspot_refresh_s=1")
        // A JVM that writes its map when the daemon is to end is waited for: longer where CPUs are
        // busy.
        .set("shutdown.grace_s=20")
        .start()
        .sampling()
}

/// One that does not look into JVMs.
fn unread() -> Daemon {
    let daemon = Daemon::with()
        .set("windows.length_s=1")
        .set("jit.hotspot=false");
    daemon.start().sampling()
}

/// What the status says of a process, once that is as wanted.
fn runtime(daemon: &Daemon, pid: u32, wanted: impl Fn(&RuntimeStatus) -> bool) -> RuntimeStatus {
    let mut last = None;
    let found = wait_for(LIMIT, || {
        let all = daemon.client().status().ok()?.runtimes;
        last = all.into_iter().find(|found| found.pid == pid);
        last.clone().filter(&wanted)
    });
    found.unwrap_or_else(|| panic!("last {last:#?}; log:\n{}", daemon.log()))
}

/// Waits until a method of the JVM has a name in the profile.
fn wait_for_name(daemon: &Daemon, jvm: &Jvm, method: &str) {
    let pid = jvm.pid.to_string();
    let named = wait_for(LIMIT, || {
        let all = daemon.client().everything();
        let own = all.only(|sample| sample.label(profile::key::PID) == pid);
        let of_method = |frame: &testkit::ViewFrame| {
            frame.module == "[jit]" && frame.function.contains(&format!("Hot.{method}"))
        };
        own.frames().iter().any(of_method).then_some(())
    });
    assert!(named.is_some(), "no `{method}`; log:\n{}", daemon.log());
}

/// Nearly all stacks of a JVM, since its first, are complete and have names down to its first
/// function.
fn check_read(daemon: &Daemon, jvm: &Jvm) {
    wait_for_name(daemon, jvm, "early");
    let found = runtime(daemon, jvm.pid, |found| {
        found.samples >= 200
            && found.samples_complete * 100 >= found.samples * 90
            && found.frames_named * 100 >= found.frames * 95
    });
    assert_eq!((&*found.runtime, &*found.source), ("hotspot", "structures"));
    assert!(found.advice.is_empty(), "{found:#?}");
    let pid = jvm.pid.to_string();
    let all = daemon.client().everything();
    let own = all.only(|sample| sample.label(profile::key::PID) == pid);
    let whole = ["Hot.main", "Hot.early"];
    let frames = own.frames();
    for function in whole {
        assert!(
            frames.iter().any(|frame| frame.function == function),
            "no {function}"
        );
    }
    assert!(
        !jvm.map.exists() && !jvm.socket.exists(),
        "it was left alone"
    );
}

#[test]
fn a_jvm_that_nobody_prepared_has_complete_stacks_and_names_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let daemon = Daemon::with().set("windows.length_s=1").start().sampling();
    let mut jvm = Jvm::start(&[]);
    check_read(&daemon, &jvm);
    jvm.go_on();
    wait_for_name(&daemon, &jvm, "late");
    daemon.stop();
}

#[test]
fn functions_that_a_jvm_interprets_have_frames_of_their_own_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let daemon = Daemon::with().set("windows.length_s=1").start().sampling();
    check_read(&daemon, &Jvm::start(&["-Xint"]));
    daemon.stop();
}

#[test]
fn a_jvm_in_a_container_has_names_without_a_file_of_its_own_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::with().set("windows.length_s=1").start().sampling();
    let jvm = Jvm::contained(dir.path());
    wait_for_name(&daemon, &jvm, "early");
    daemon.stop();
}

#[test]
fn a_jvm_without_names_is_told_of_with_what_to_do_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let daemon = unread();
    let jvm = Jvm::start(&[]);
    let found = runtime(&daemon, jvm.pid, |found| {
        found.samples >= 100 && !found.advice.is_empty()
    });
    assert_eq!((&*found.runtime, &*found.source), ("hotspot", "none"));
    assert_eq!((found.frames_named, &*found.reason), (0, "jit_no_map"));
    assert!(found.frames > 0 && found.asked.is_empty(), "{found:#?}");
    let remedies: Vec<&str> = found.advice.iter().map(|advice| &*advice.remedy).collect();
    assert!(
        remedies[0].contains("set jit.hotspot to true"),
        "{remedies:?}"
    );
    let told = daemon.ctl(&["doctor", "--burn", "100ms"]).text();
    for word in ["Java (HotSpot)", "jit.hotspot", "generated_code"] {
        assert!(told.contains(word), "no `{word}`:\n{told}");
    }
    daemon.stop();
    assert!(
        !jvm.map.exists() && !jvm.socket.exists(),
        "it was left alone"
    );
}

#[test]
#[ignore = "takes long: make test-slow"]
fn frame_pointers_are_advised_only_to_a_jvm_without_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let daemon = unread();
    let (without, with) = (Jvm::start(&[]), Jvm::start(&["-XX:+PreserveFramePointer"]));
    let enough = |found: &RuntimeStatus| found.samples >= 200 && !found.advice.is_empty();
    let advised = |found: &RuntimeStatus| {
        let mut remedies = found.advice.iter().map(|advice| &advice.remedy);
        remedies.any(|remedy| remedy.contains("-XX:+PreserveFramePointer"))
    };
    let with = runtime(&daemon, with.pid, enough);
    let without = runtime(&daemon, without.pid, enough);
    assert!(!advised(&with), "{with:#?}");
    // What the stacks say counts: one that is complete anyway needs no advice.
    let whole = without.samples_complete * 50 >= without.samples * 49;
    assert_eq!(advised(&without), !whole, "{without:#?}");
    assert!(
        with.samples_complete * 100 >= with.samples * 95,
        "{with:#?}"
    );
    daemon.stop();
}

#[test]
fn a_jvm_that_is_attached_to_has_names_and_nothing_is_left_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let daemon = attaching();
    let jvm = Jvm::start(&["-XX:+PreserveFramePointer"]);
    wait_for_name(&daemon, &jvm, "early");
    let found = runtime(&daemon, jvm.pid, |found| {
        found.frames_named * 10 >= found.frames * 9 && !found.asked.is_empty()
    });
    assert_eq!(found.source, "perf-map");
    assert!(found.asked.contains("wrote its map"), "{found:#?}");
    assert!(jvm.map.exists());
    daemon.stop();
    assert!(!jvm.map.exists(), "nobody needs it any more");
}

#[test]
#[ignore = "takes long: make test-slow"]
fn new_code_is_named_soon_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let daemon = attaching();
    let mut jvm = Jvm::start(&["-XX:+PreserveFramePointer"]);
    wait_for_name(&daemon, &jvm, "early");
    jvm.go_on();
    wait_for_name(&daemon, &jvm, "late");
    daemon.stop();
}

#[test]
#[ignore = "takes long: make test-slow"]
fn a_jvm_of_another_user_in_namespaces_of_its_own_has_names_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let dir = tempfile::tempdir().unwrap();
    let daemon = attaching();
    let jvm = Jvm::contained(dir.path());
    wait_for_name(&daemon, &jvm, "early");
    daemon.stop();
    assert!(!jvm.map.exists());
}

/// As the service does with `deploy/systemd/fleetprofd-attach.conf`: a user of its own.
#[test]
#[ignore = "takes long: make test-slow"]
fn a_daemon_that_is_not_root_attaches_with_two_capabilities_needs_root() {
    const OWN: &str = "54321";
    let Some(_live) = live(NEEDS) else { return };
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("fleetprofd");
    install(testkit::binaries::fleetprofd(), &program);
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let rights = "+perfmon,+sys_ptrace,+dac_override,+dac_read_search,+syslog,+checkpoint_restore,\
                  +ipc_lock,+setuid,+setgid";
    let user = ["setpriv", "--reuid", OWN, "--regid", OWN, "--clear-groups"];
    let more = [
        "--no-new-privs",
        "--inh-caps",
        rights,
        "--ambient-caps",
        rights,
    ];
    let daemon = Daemon::with()
        .dir(dir.path())
        .program(&program)
        .set("windows.length_s=1")
        .set("jit.hotspot=false")
        .set("jit.hotspot_attach=true")
        .through(&[user.as_slice(), &more].concat())
        .start()
        .sampling();
    let inside = tempfile::tempdir().unwrap();
    let (own, other) = (Jvm::start(&[]), Jvm::contained(inside.path()));
    for jvm in [&own, &other] {
        wait_for_name(&daemon, jvm, "early");
    }
    daemon.stop();
    assert!(!own.map.exists() && !other.map.exists());
}

#[test]
#[ignore = "takes long: make test-slow"]
fn a_jvm_that_hangs_delays_no_other_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let daemon = attaching();
    let hangs = Jvm::start(&[]);
    wait_for_name(&daemon, &hangs, "early");
    hangs.signal(Signal::STOP);
    let runs = Jvm::start(&["-XX:+PreserveFramePointer"]);
    wait_for_name(&daemon, &runs, "early");
    hangs.signal(Signal::CONT);
    daemon.stop();
}

#[test]
#[ignore = "takes long: make test-slow"]
fn a_jvm_that_wants_no_attach_is_left_alone_and_told_of_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let daemon = attaching();
    let mut jvm = Jvm::start(&["-XX:+DisableAttachMechanism"]);
    let found = runtime(&daemon, jvm.pid, |found| !found.asked.is_empty());
    assert!(found.asked.contains("DisableAttachMechanism"), "{found:#?}");
    let advised = runtime(&daemon, jvm.pid, |found| !found.advice.is_empty());
    let remedy = &advised.advice[0].remedy;
    assert!(remedy.contains("DisableAttachMechanism"), "{remedy}");
    assert!(jvm.child.try_wait().unwrap().is_none(), "it lives");
    daemon.stop();
    assert!(!jvm.map.exists() && !jvm.socket.exists());
}

/// A program with generated code that is no JVM but maps a file of the name of a JVM's library.
#[test]
#[ignore = "takes long: make test-slow"]
fn what_only_looks_like_a_jvm_is_not_signalled_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("libjvm.so");
    install(workload::c("generated.c").build(), &program);
    let daemon = attaching();
    let mut looks = workload::Workload::spawn(&mut Command::new(&program));
    let found = runtime(&daemon, looks.pid(), |found| {
        found.samples >= 100 && !found.runtime.is_empty()
    });
    assert_eq!((&*found.runtime, &*found.asked), ("unknown", ""));
    assert!(looks.proc().exited().is_none(), "it lives");
    daemon.stop();
}
