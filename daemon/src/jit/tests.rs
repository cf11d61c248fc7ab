//! Perf maps of real processes, honest and hostile.
//!
//! Tests that need root or a tool report a skip on stderr where it is missing.

use super::*;
use crate::ids::{Comm, Pid};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A process that waits, with the place of its perf map. Both go away when it is dropped.
struct Runtime {
    child: Child,
    pid: u32,
    path: PathBuf,
}

impl Runtime {
    /// One that sees the same files and pids as this process.
    fn start() -> Runtime {
        let child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn();
        let child = child.expect("starts");
        let pid = child.id();
        Runtime {
            child,
            pid,
            path: format!("/tmp/perf-{pid}.map").into(),
        }
    }

    /// One that is pid 1 of its own pid namespace, with `tmp` as its `/tmp`.
    fn contained(tmp: &Path) -> Runtime {
        Runtime::within(&format!("mount --bind {} /tmp", tmp.display()), tmp)
    }

    /// One whose `/tmp` is a FUSE file system with a server, itself, that never answers.
    fn hanging(tmp: &Path) -> Runtime {
        let options = "fd=3,rootmode=40000,user_id=0,group_id=0,allow_other";
        let mount = format!("exec 3<>/dev/fuse && mount -i -t fuse -o {options} none /tmp");
        Runtime::within(&mount, tmp)
    }

    /// One that is pid 1 of its own pid namespace, after `setup` in its own mount namespace.
    fn within(setup: &str, tmp: &Path) -> Runtime {
        let script = format!("{setup} && echo && exec cat");
        let mut child = Command::new("unshare")
            .args([
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
                "sh",
                "-c",
                &script,
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut byte = [0];
        child
            .stdout
            .as_mut()
            .expect("is piped")
            .read_exact(&mut byte)
            .expect("gets ready");
        let children = format!("/proc/{0}/task/{0}/children", child.id());
        let pid = fs::read_to_string(children)
            .expect("reads")
            .trim()
            .parse()
            .expect("one child");
        Runtime {
            child,
            pid,
            path: tmp.join("perf-1.map"),
        }
    }

    fn write(&self, content: &str) {
        fs::write(&self.path, content).expect("writes the map");
    }

    fn append(&self, content: &str) {
        let file = fs::OpenOptions::new().append(true).open(&self.path);
        file.and_then(|mut file| file.write_all(content.as_bytes()))
            .expect("appends");
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.end();
        let _ = fs::remove_file(&self.path);
    }
}

struct Rig {
    maps: PerfMaps,
    counters: Arc<SymbolCounters>,
    dict: Dictionary,
}

impl Rig {
    fn new(max_bytes: u64) -> Rig {
        let counters = Arc::new(SymbolCounters::default());
        let options = PerfMapOptions {
            enabled: true,
            max_bytes,
        };
        let mut maps = PerfMaps::new(options, counters.clone());
        maps.patience.each = Duration::from_secs(60);
        Rig {
            maps,
            counters,
            dict: Dictionary::default(),
        }
    }

    /// The frame at an address, as `kind function (reason)`.
    fn name(&mut self, runtime: &Runtime, address: u64) -> String {
        self.name_of(ProcessId(runtime.pid), runtime.pid, Mono::now(), address)
    }

    fn name_of(&mut self, id: ProcessId, pid: u32, began: Mono, address: u64) -> String {
        let process = RawProcess {
            id,
            pid: Pid(pid),
            comm: Comm::default(),
            kernel: false,
            began,
            ended: false,
        };
        let mut out = Named::default();
        self.maps
            .name(&process, &[Avma(address)], &mut self.dict, &mut out);
        let frame = self.dict.frame(out.frames_of(0)[0]);
        assert_eq!(frame.module, "[jit]");
        match frame.unnamed {
            Unnamed::No => format!("{} {}", frame.kind.word(), frame.function),
            reason => format!(
                "{} {} ({})",
                frame.kind.word(),
                frame.function,
                reason.word()
            ),
        }
    }
}

fn rig() -> Rig {
    Rig::new(1 << 20)
}

fn is_root() -> bool {
    let root = fs::metadata("/proc/self").is_ok_and(|facts| facts.uid() == 0);
    if !root {
        eprintln!("skipped: needs root");
    }
    root
}

const REFUSED: &str = "jit [jit] (jit_map_refused)";

#[test]
fn listed_code_is_named_and_grows() {
    let runtime = Runtime::start();
    let mut rig = rig();
    assert_eq!(rig.name(&runtime, 0x1000), "jit [jit] (jit_no_map)");
    runtime.write("1000 10 JS:*hot app.js:1\n0x2000 0x10 JS:~cold app.js:9\n3000 1");
    assert_eq!(rig.name(&runtime, 0x1008), "jit hot");
    assert_eq!(rig.name(&runtime, 0x2008), "interpreted cold");
    assert_eq!(rig.name(&runtime, 0x3008), "jit [jit] (jit_not_in_map)");
    runtime.append("0 py::third:app.py\n1000 10 JS:*reused app.js:7\n");
    assert_eq!(
        rig.name(&runtime, 0x1008),
        "jit reused",
        "though it was listed before"
    );
    assert_eq!(rig.name(&runtime, 0x3008), "interpreted third");
    assert_eq!(rig.counters.perf_maps_read.load(Ordering::Relaxed), 1);
    assert_eq!(rig.counters.perf_maps_tailed.load(Ordering::Relaxed), 1);
    assert_eq!(
        rig.counters.perf_map_lines_skipped.load(Ordering::Relaxed),
        0
    );
}

#[test]
fn a_map_written_anew_replaces_the_old() {
    let runtime = Runtime::start();
    let mut rig = rig();
    runtime.write("1000 10 first\n2000 10 second\n");
    assert_eq!(rig.name(&runtime, 0x1000), "jit first");
    // Shorter, in place.
    runtime.write("1000 10 third\n");
    assert_eq!(rig.name(&runtime, 0x1000), "jit third");
    assert_eq!(rig.name(&runtime, 0x2000), "jit [jit] (jit_not_in_map)");
    // Longer, in place.
    runtime.write("4000 10 fourth\n5000 10 fifth\n");
    assert_eq!(rig.name(&runtime, 0x4000), "jit fourth");
    assert_eq!(rig.name(&runtime, 0x1000), "jit [jit] (jit_not_in_map)");
    // Another file at the path.
    fs::remove_file(&runtime.path).expect("removes");
    runtime.write("4000 10 sixth\n6000 10 seventh\n");
    assert_eq!(rig.name(&runtime, 0x6000), "jit seventh");
    assert_eq!(rig.name(&runtime, 0x4000), "jit sixth");
}

#[test]
fn a_process_that_ended_keeps_what_was_read() {
    let mut runtime = Runtime::start();
    let mut rig = rig();
    runtime.write("1000 10 first\n");
    assert_eq!(rig.name(&runtime, 0x1000), "jit first");
    runtime.append("2000 10 last words\n");
    runtime.end();
    assert_eq!(rig.name(&runtime, 0x2000), "jit last words");
    assert_eq!(rig.name(&runtime, 0x3000), "jit [jit] (jit_not_in_map)");
    rig.maps.retain(|_| false);
    assert!(rig.maps.is_empty());
    assert_eq!(rig.name(&runtime, 0x1000), "jit [jit] (jit_process_gone)");
}

#[test]
fn a_pid_used_again_is_another_process() {
    let runtime = Runtime::start();
    let mut rig = rig();
    runtime.write("1000 10 not mine\n");
    let long_before = Mono(1);
    let named = rig.name_of(ProcessId(1), runtime.pid, long_before, 0x1000);
    assert_eq!(named, "jit [jit] (jit_process_gone)");
}

#[test]
fn links_and_pipes_are_refused() {
    let dir = TempDir::new().expect("temporary directory");
    let real = dir.path().join("real");
    fs::write(&real, "1000 10 secret\n").expect("writes");
    let runtime = Runtime::start();
    let mut rig = rig();
    symlink(&real, &runtime.path).expect("links");
    assert_eq!(rig.name(&runtime, 0x1000), REFUSED);
    fs::remove_file(&runtime.path).expect("removes");
    let made = Command::new("mkfifo")
        .arg(&runtime.path)
        .status()
        .expect("mkfifo is there");
    assert!(made.success());
    assert_eq!(rig.name(&runtime, 0x1000), REFUSED);
    fs::remove_file(&runtime.path).expect("removes");
    runtime.write("1000 10 honest\n");
    let other_name = runtime.path.with_extension("other");
    fs::hard_link(&runtime.path, &other_name).expect("links");
    assert_eq!(rig.name(&runtime, 0x1000), REFUSED);
    fs::remove_file(&other_name).expect("removes");
    assert_eq!(rig.name(&runtime, 0x1000), "jit honest");
    assert_eq!(rig.counters.perf_maps_refused.load(Ordering::Relaxed), 3);
}

#[test]
fn a_map_of_another_user_is_refused_as_root() {
    if !is_root() {
        return;
    }
    let runtime = Runtime::start();
    let mut rig = rig();
    runtime.write("1000 10 planted\n");
    std::os::unix::fs::chown(&runtime.path, Some(54321), None).expect("changes the owner");
    assert_eq!(rig.name(&runtime, 0x1000), REFUSED);
}

#[test]
fn a_map_over_the_limit_is_refused() {
    let runtime = Runtime::start();
    let mut rig = Rig::new(64);
    runtime.write(&"1000 10 name\n".repeat(6));
    assert_eq!(rig.name(&runtime, 0x1000), REFUSED);
}

#[test]
fn a_map_that_grows_over_the_limit_keeps_its_begin() {
    let runtime = Runtime::start();
    let mut rig = Rig::new(4000);
    runtime.write("1000 10 early\n");
    assert_eq!(rig.name(&runtime, 0x1000), "jit early");
    runtime.append(&format!("{}2000 10 late\n", "3000 10 filler\n".repeat(400)));
    assert_eq!(rig.name(&runtime, 0x2000), REFUSED);
    assert_eq!(rig.name(&runtime, 0x1000), "jit early");
}

#[test]
fn the_pid_is_the_one_the_process_sees_as_root() {
    if !is_root() {
        return;
    }
    let dir = TempDir::new().expect("temporary directory");
    let runtime = Runtime::contained(dir.path());
    let mut rig = rig();
    runtime.write("1000 10 inside\n");
    assert_eq!(rig.name(&runtime, 0x1000), "jit inside");
}

#[test]
fn a_map_left_by_an_earlier_process_is_refused_as_root() {
    if !is_root() {
        return;
    }
    let dir = TempDir::new().expect("temporary directory");
    fs::write(dir.path().join("perf-1.map"), "1000 10 earlier\n").expect("writes");
    // The clocks compared are coarse: they must have moved on.
    let written = Instant::now();
    while written.elapsed() < Duration::from_millis(150) {
        std::thread::yield_now();
    }
    let runtime = Runtime::contained(dir.path());
    let mut rig = rig();
    assert_eq!(rig.name(&runtime, 0x1000), REFUSED);
    fs::remove_file(&runtime.path).expect("removes");
    runtime.write("1000 10 own\n");
    assert_eq!(rig.name(&runtime, 0x1000), "jit own");
}

#[test]
fn a_file_system_that_never_answers_holds_up_nobody_as_root() {
    if !is_root() || !Path::new("/dev/fuse").exists() {
        return;
    }
    let dir = TempDir::new().expect("temporary directory");
    let mut rig = rig();
    rig.maps.patience.each = Duration::from_millis(20);
    const LATE: &str = "jit [jit] (jit_map_late)";
    let mut hanging: Vec<Runtime> = (0..8).map(|_| Runtime::hanging(dir.path())).collect();
    for runtime in &hanging {
        assert_eq!(rig.name(runtime, 0x1000), LATE);
    }
    assert_eq!(
        rig.maps.helpers.late(),
        REMOTE_LATE_MAX,
        "the others were not tried"
    );
    rig.maps.patience.each = Duration::from_secs(60);
    let honest = Runtime::start();
    honest.write("1000 10 honest\n");
    assert_eq!(rig.name(&honest, 0x1000), "jit honest");
    assert_eq!(rig.name(&hanging[0], 0x1000), LATE, "without waiting again");
    assert_eq!(rig.counters.perf_maps_late.load(Ordering::Relaxed), 8);
    // The end of the server is an answer.
    hanging.iter_mut().for_each(Runtime::end);
    while rig.maps.helpers.late() > 0 {
        std::thread::yield_now();
    }
    assert_ne!(rig.name(&hanging[0], 0x1000), LATE);
}

#[test]
fn memory_stays_under_the_limit() {
    let mut rig = Rig::new(20_000);
    let runtimes: Vec<Runtime> = (0..4).map(|_| Runtime::start()).collect();
    for runtime in &runtimes {
        let lines: String = (0..200u64)
            .map(|n| format!("{:x} 10 function{n}\n", 0x1000 + n * 16))
            .collect();
        runtime.write(&lines);
        assert_eq!(rig.name(runtime, 0x1000), "jit function0");
        assert!(rig.maps.heap_bytes() <= 20_000);
    }
    assert!(rig.counters.perf_maps_evicted.load(Ordering::Relaxed) >= 2);
    assert_eq!(
        rig.name(&runtimes[0], 0x1010),
        "jit function1",
        "read again after its eviction"
    );
}

#[test]
fn nothing_is_read_when_switched_off() {
    let runtime = Runtime::start();
    runtime.write("1000 10 name\n");
    let counters = Arc::new(SymbolCounters::default());
    let options = PerfMapOptions {
        enabled: false,
        ..PerfMapOptions::default()
    };
    let maps = PerfMaps::new(options, counters.clone());
    let mut rig = Rig {
        maps,
        counters,
        dict: Dictionary::default(),
    };
    assert_eq!(rig.name(&runtime, 0x1000), "jit [jit] (jit_no_map)");
}
