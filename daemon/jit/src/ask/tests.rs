//! Tests asking real JVMs, and processes that only look like one.
//!
//! The tests need a JDK, and most of them root. Without them they report a skip on stderr.

use super::*;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use tempfile::TempDir;

/// Longest wait for a state, on a machine that does much else.
const LIMIT: Duration = Duration::from_secs(120);

/// What every JVM is started with: methods keep their own code, and it starts quickly.
const FLAGS: &[&str] = &[
    "-XX:CompileCommand=quiet",
    "-XX:CompileCommand=dontinline,Hot.*",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
];

fn has_java() -> bool {
    let java = Command::new("javac")
        .arg("-version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let found = java.is_ok_and(|status| status.success());
    if !found {
        testkit::skip("needs a JDK");
    }
    found
}

fn has_java_and_root() -> bool {
    let root = rustix::process::geteuid().as_raw() == 0;
    if !root {
        testkit::skip("needs root");
    }
    root && has_java()
}

/// The directory of the compiled program, which everybody may read.
fn classes() -> &'static Path {
    static DIR: OnceLock<TempDir> = OnceLock::new();
    let dir = DIR.get_or_init(|| {
        let dir = TempDir::new().expect("temporary directory");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/workloads/Hot.java");
        let mut javac = Command::new("javac");
        let built = javac.arg("-d").arg(dir.path()).arg(source).status();
        assert!(built.expect("javac runs").success());
        open_up(dir.path());
        dir
    });
    dir.path()
}

fn open_up(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("opens up");
}

/// A process that burns CPU until it is dropped.
struct Burner {
    child: Child,
    /// Its end would be the process's.
    input: Option<ChildStdin>,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    pid: u32,
    /// Its `/tmp` as this process sees it.
    tmp: PathBuf,
    inner_pid: u32,
}

impl Burner {
    /// Starts a command that prints a line when it is ready, itself or its only child being the
    /// process.
    fn start(command: &mut Command, inner: Option<&Path>) -> Burner {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut lines = BufReader::new(child.stdout.take().expect("is piped")).lines();
        let first = lines.next().expect("a line").expect("text");
        assert_eq!(first, "ready");
        let pid = match inner {
            Some(_) => fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id()))
                .expect("reads")
                .trim()
                .parse()
                .expect("one child"),
            None => child.id(),
        };
        Burner {
            input: child.stdin.take(),
            child,
            lines,
            pid,
            tmp: inner.unwrap_or(Path::new("/tmp")).to_path_buf(),
            inner_pid: if inner.is_some() { 1 } else { pid },
        }
    }

    fn jvm(flags: &[&str]) -> Burner {
        let mut command = Command::new("java");
        command.args(FLAGS).args(flags).arg("-cp").arg(classes());
        Burner::start(command.arg("Hot"), None)
    }

    /// A JVM that is pid 1 and sees `tmp` as its `/tmp`, started through `words`.
    fn contained(words: &[&str], tmp: &Path) -> Burner {
        fs::copy(classes().join("Hot.class"), tmp.join("Hot.class")).expect("copies");
        let script = format!(
            "mount --bind {} /tmp && mount -t proc proc /proc && exec java {} -cp /tmp Hot",
            tmp.display(),
            FLAGS.join(" ")
        );
        let unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child"];
        let mut all = [words, &unshare].concat();
        if !words.is_empty() {
            all.extend(["--user", "--map-root-user"]);
        }
        let mut command = Command::new(all[0]);
        command.args(&all[1..]).args(["sh", "-c", &script]);
        Burner::start(&mut command, Some(tmp))
    }

    fn asked(&self) -> AttachTarget {
        AttachTarget {
            id: ProcessId(self.pid),
            pid: Pid(self.pid),
            started_by: MonotonicTime::now(),
        }
    }

    fn map_path(&self) -> PathBuf {
        self.tmp.join(format!("perf-{}.map", self.inner_pid))
    }

    fn map(&self) -> String {
        fs::read_to_string(self.map_path()).expect("there is a map")
    }

    fn trigger(&self) -> PathBuf {
        self.tmp.join(format!(".attach_pid{}", self.inner_pid))
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid as i32).expect("a pid");
        rustix::process::kill_process(pid, signal).expect("is there");
    }

    fn lives(&mut self) -> bool {
        self.child.try_wait().expect("waits").is_none()
    }
}

impl Drop for Burner {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(self.map_path());
        let _ = fs::remove_file(self.tmp.join(format!(".java_pid{}", self.inner_pid)));
    }
}

struct Rig {
    attacher: RuntimeAttacher,
    counters: Arc<SymbolCounters>,
    now: MonotonicTime,
}

impl Rig {
    fn new() -> Rig {
        let counters = Arc::new(SymbolCounters::default());
        let options = AskOptions {
            hotspot_attach: true,
            ..AskOptions::default()
        };
        Rig {
            attacher: RuntimeAttacher::new(options).counting(Arc::clone(&counters)),
            counters,
            now: MonotonicTime::now(),
        }
    }

    fn note(&mut self, burner: &Burner) {
        self.attacher.note(burner.asked(), 1, self.now);
    }

    /// Lets a minute pass: nobody has to wait for it.
    fn a_minute_later(&mut self) {
        self.now = self.now.plus(Duration::from_secs(61));
    }

    /// Ticks until nothing is asked any more; what has written maps.
    fn settle(&mut self) -> Vec<ProcessId> {
        let end = Instant::now() + LIMIT;
        let mut written = self.attacher.tick(self.now);
        while self.attacher.jvms.values().any(|jvm| jvm.asking.is_some()) {
            assert!(Instant::now() < end, "still under way");
            std::thread::sleep(Duration::from_millis(2));
            written.extend(self.attacher.tick(self.now));
        }
        written
    }

    /// Notes a process and settles; true when it has written its map.
    fn ask(&mut self, burner: &Burner) -> bool {
        self.note(burner);
        self.settle().contains(&ProcessId(burner.pid))
    }

    fn is_closed(&self, burner: &Burner) -> bool {
        self.attacher.jvms[&ProcessId(burner.pid)].closed
    }
}

fn check_named(rig: &mut Rig, burner: &Burner) {
    assert!(rig.ask(burner), "it writes a map");
    assert!(burner.map().contains("Hot.early"), "{}", burner.map());
    assert!(!burner.trigger().exists(), "the trigger is gone");
}

#[test]
fn a_jvm_writes_its_map_and_it_is_removed() {
    if !has_java() {
        return;
    }
    let mut rig = Rig::new();
    let jvm = Burner::jvm(&[]);
    check_named(&mut rig, &jvm);
    let counters = Arc::clone(&rig.counters);
    drop(rig);
    assert!(!jvm.map_path().exists(), "nobody needs it any more");
    let removed = counters
        .attach_maps_removed
        .load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(removed, 1);
}

#[test]
fn the_map_of_a_jvm_that_ended_is_removed() {
    if !has_java() {
        return;
    }
    let mut rig = Rig::new();
    let mut jvm = Burner::jvm(&[]);
    check_named(&mut rig, &jvm);
    jvm.child.kill().expect("ends");
    jvm.child.wait().expect("ends");
    assert!(jvm.map_path().exists(), "for those who still read it");
    rig.attacher.forget(ProcessId(jvm.pid));
    drop(rig);
    assert!(!jvm.map_path().exists());
}

#[test]
fn nobody_is_asked_when_it_is_switched_off() {
    if !has_java() {
        return;
    }
    let jvm = Burner::jvm(&[]);
    let mut rig = Rig::new();
    rig.attacher = RuntimeAttacher::new(AskOptions::default());
    assert!(!rig.ask(&jvm));
    assert!(rig.attacher.jvms.is_empty() && !jvm.map_path().exists());
}

#[test]
fn a_map_is_renewed_when_unknown_code_appears_and_not_too_often() {
    if !has_java() {
        return;
    }
    let mut rig = Rig::new();
    let mut jvm = Burner::jvm(&[]);
    check_named(&mut rig, &jvm);
    assert!(!jvm.map().contains("Hot.late"));
    let mut input = jvm.input.as_ref().expect("is piped");
    input.write_all(b"x").expect("is read");
    let line = jvm.lines.next().expect("a line").expect("text");
    assert_eq!(line, "late");
    assert!(!rig.ask(&jvm), "not within a minute");
    rig.a_minute_later();
    assert_eq!(rig.settle(), [ProcessId(jvm.pid)], "as noted before");
    assert!(jvm.map().contains("Hot.late"));
    rig.a_minute_later();
    assert!(rig.settle().is_empty(), "everything has a name");
    drop(rig);
    assert!(!jvm.map_path().exists(), "the second map went too");
}

#[test]
fn a_list_that_got_old_is_written_anew_while_there_are_samples() {
    if !has_java() {
        return;
    }
    let mut rig = Rig::new();
    let jvm = Burner::jvm(&[]);
    check_named(&mut rig, &jvm);
    for _ in 0..LISTS_OLD {
        assert!(rig.settle().is_empty(), "everything has a name");
        rig.a_minute_later();
    }
    assert!(rig.settle().is_empty(), "no samples: nobody reads it");
    rig.attacher.note(jvm.asked(), 0, rig.now);
    assert_eq!(rig.settle(), [ProcessId(jvm.pid)]);
}

#[test]
fn two_jvms_are_asked_each() {
    if !has_java() {
        return;
    }
    let mut rig = Rig::new();
    let (one, two) = (Burner::jvm(&[]), Burner::jvm(&[]));
    rig.note(&one);
    rig.note(&two);
    let mut written = rig.settle();
    written.sort_unstable();
    let mut all = [ProcessId(one.pid), ProcessId(two.pid)];
    all.sort_unstable();
    assert_eq!(written, all);
    assert!(one.map().contains("Hot.early") && two.map().contains("Hot.early"));
    rig.attacher.forget(ProcessId(one.pid));
    let end = Instant::now() + LIMIT;
    while one.map_path().exists() && Instant::now() < end {
        rig.attacher.tick(rig.now);
        std::thread::yield_now();
    }
    assert!(!one.map_path().exists() && two.map_path().exists());
}

#[test]
fn a_jvm_in_namespaces_of_its_own_needs_root() {
    if !has_java_and_root() {
        return;
    }
    let dir = TempDir::new().expect("temporary directory");
    let jvm = Burner::contained(&[], dir.path());
    let mut rig = Rig::new();
    check_named(&mut rig, &jvm);
    drop(rig);
    assert!(!jvm.map_path().exists());
}

#[test]
fn a_jvm_of_another_user_needs_root() {
    if !has_java_and_root() {
        return;
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    command.arg("java").args(FLAGS).arg("-cp").arg(classes());
    let jvm = Burner::start(command.arg("Hot"), None);
    let mut rig = Rig::new();
    check_named(&mut rig, &jvm);
    let owner = fs::metadata(jvm.map_path()).expect("is there").uid();
    assert_eq!(owner, 65534);
    drop(rig);
    assert!(!jvm.map_path().exists());
}

#[test]
fn a_jvm_in_a_user_namespace_needs_root() {
    if !has_java_and_root() {
        return;
    }
    let dir = TempDir::new().expect("temporary directory");
    open_up(dir.path());
    std::os::unix::fs::chown(dir.path(), Some(65534), Some(65534)).expect("gives away");
    let words = [
        "setpriv",
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
    ];
    let jvm = Burner::contained(&words, dir.path());
    let mut rig = Rig::new();
    check_named(&mut rig, &jvm);
    drop(rig);
    assert!(!jvm.map_path().exists());
}

#[test]
fn a_jvm_that_does_not_let_itself_be_attached_to_is_left_alone() {
    if !has_java() {
        return;
    }
    let mut rig = Rig::new();
    for hidden in [false, true] {
        let dir = TempDir::new().expect("temporary directory");
        let file = dir.path().join("options");
        fs::write(&file, "-XX:+DisableAttachMechanism\n").expect("writes");
        let from_file = format!("@{}", file.display());
        let flag = match hidden {
            // The JVM itself reports options that are on no command line.
            true => from_file.as_str(),
            false => "-XX:+DisableAttachMechanism",
        };
        let mut jvm = Burner::jvm(&[flag]);
        assert!(!rig.ask(&jvm));
        assert!(rig.is_closed(&jvm) && jvm.lives());
        assert!(!jvm.trigger().exists() && !jvm.map_path().exists());
    }
}

#[test]
fn a_jvm_that_leaves_signals_alone_is_not_signalled() {
    if !has_java() {
        return;
    }
    let mut rig = Rig::new();
    let mut jvm = Burner::jvm(&["-Xrs"]);
    // It listens from the start; a cleaner of /tmp takes its socket away.
    let socket = jvm.tmp.join(format!(".java_pid{}", jvm.pid));
    assert!(rig.ask(&jvm), "through the socket that is there");
    fs::remove_file(socket).expect("removes");
    rig.a_minute_later();
    assert!(!rig.ask(&jvm));
    assert!(
        rig.is_closed(&jvm) && jvm.lives(),
        "the signal would end it"
    );
}

#[test]
fn the_signal_is_sent_once_in_a_life() {
    if !has_java() {
        return;
    }
    let mut rig = Rig::new();
    let mut jvm = Burner::jvm(&[]);
    check_named(&mut rig, &jvm);
    let socket = jvm.tmp.join(format!(".java_pid{}", jvm.pid));
    fs::remove_file(socket).expect("removes");
    rig.a_minute_later();
    assert!(!rig.ask(&jvm));
    assert!(rig.is_closed(&jvm) && jvm.lives());
}

#[test]
fn what_only_looks_like_a_jvm_lives() {
    let dir = TempDir::new().expect("temporary directory");
    let program = dir.path().join("libjvm.so");
    testkit::process::install("/bin/cat", &program);
    let mut cat = Command::new(&program)
        .stdin(Stdio::piped())
        .spawn()
        .expect("starts");
    let process = AttachTarget {
        id: ProcessId(1),
        pid: Pid(cat.id()),
        started_by: MonotonicTime::now(),
    };
    let mut rig = Rig::new();
    rig.attacher.note(process, 1, rig.now);
    assert!(rig.settle().is_empty());
    assert!(cat.try_wait().expect("waits").is_none(), "it lives");
    cat.kill().expect("ends");
    cat.wait().expect("ends");
}

#[test]
fn a_jvm_that_is_stopped_is_asked_later() {
    if !has_java() {
        return;
    }
    let mut rig = Rig::new();
    let jvm = Burner::jvm(&[]);
    jvm.signal(rustix::process::Signal::STOP);
    let stopped = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", jvm.pid)).expect("is there");
        stat.contains(") T ")
    };
    let end = Instant::now() + LIMIT;
    while !stopped() && Instant::now() < end {
        std::thread::yield_now();
    }
    assert!(!rig.ask(&jvm));
    assert!(!rig.is_closed(&jvm) && !jvm.trigger().exists());
    jvm.signal(rustix::process::Signal::CONT);
    assert!(!rig.ask(&jvm), "not at once");
    rig.a_minute_later();
    rig.a_minute_later();
    assert_eq!(rig.settle(), [ProcessId(jvm.pid)]);
}

#[test]
fn a_map_that_was_there_before_is_renewed_and_stays() {
    if !has_java() {
        return;
    }
    let mut rig = Rig::new();
    let jvm = Burner::jvm(&[]);
    fs::write(jvm.map_path(), "1000 10 mine\n").expect("writes");
    check_named(&mut rig, &jvm);
    drop(rig);
    assert!(jvm.map_path().exists(), "it was the user's");
}

#[test]
fn a_map_that_somebody_wrote_since_stays() {
    if !has_java() {
        return;
    }
    let mut rig = Rig::new();
    let jvm = Burner::jvm(&[]);
    check_named(&mut rig, &jvm);
    fs::write(jvm.map_path(), "1000 10 mine\n").expect("writes");
    drop(rig);
    assert!(jvm.map_path().exists());
}

#[test]
fn what_was_planted_at_the_map_or_the_socket_is_not_touched() {
    if !has_java() {
        return;
    }
    let dir = TempDir::new().expect("temporary directory");
    let precious = dir.path().join("precious");
    fs::write(&precious, "precious").expect("writes");
    let mut rig = Rig::new();
    let jvm = Burner::jvm(&[]);
    symlink(&precious, jvm.map_path()).expect("links");
    assert!(!rig.ask(&jvm));
    assert_eq!(fs::read(&precious).expect("reads"), b"precious");
    fs::remove_file(jvm.map_path()).expect("removes");
    let socket = jvm.tmp.join(format!(".java_pid{}", jvm.pid));
    fs::write(&socket, "").expect("writes");
    rig.a_minute_later();
    rig.a_minute_later();
    assert!(!rig.ask(&jvm));
    assert!(!rig.is_closed(&jvm) && !jvm.map_path().exists());
}

#[test]
fn processes_over_the_limit_are_counted_and_asking_is_bounded() {
    let mut rig = Rig::new();
    let none = |id| AttachTarget {
        id: ProcessId(id),
        pid: Pid(u32::MAX),
        started_by: MonotonicTime::now(),
    };
    for id in 0..PROCESSES_MAX as u32 + 3 {
        rig.attacher.note(none(id), 1, rig.now);
    }
    let over = rig
        .counters
        .attaches_over_limit
        .load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(over, 3);
    rig.attacher.tick(rig.now);
    let started = rig.attacher.jvms.values().filter(|jvm| jvm.unnamed == 0);
    assert_eq!(started.count(), STARTED_MAX);
    rig.settle();
    let started = rig.attacher.jvms.values().filter(|jvm| jvm.unnamed == 0);
    assert_eq!(
        started.count(),
        STARTED_MAX,
        "no more within the same second"
    );
}
