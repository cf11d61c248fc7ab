//! Tests perf maps of real processes, honest and hostile.
//!
//! Tests that need root or a tool report a skip on stderr where it is missing.

use super::ask::{AskOptions, RuntimeAttacher};
use super::lookup::{self, CodeMaps};
use super::notice::{Notice, SymbolRequest};
use super::options::Options;
use super::watch::{PROCESSES_MAX, ROOM_OF_MAPS, Watcher};
use host::blocking_pool::REMOTE_LATE_MAX;
use host::ids::{Avma, Pid, ProcessId};
use host::time::MonotonicTime;
use profile::{Dictionary, UnnamedReason};
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};
use symbolize::SymbolCounters;
use symbolize::files::FileIdentity;
use tempfile::TempDir;
use testkit::process::wait_for;
use unwind::process::{DumpSeen, ProcessInstance};

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

    /// A process with a `/tmp` on a FUSE file system, served by itself, that never answers.
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
            // It may lead below /tmp, where the server would wait for itself.
            .env_remove("LD_LIBRARY_PATH")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        testkit::process::wait_until_ready(&mut child);
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
    watcher: Watcher,
    counters: Arc<SymbolCounters>,
    dict: Dictionary,
}

impl Rig {
    fn new(max_bytes: u64) -> Rig {
        Rig::with(Options {
            max_bytes,
            ..Options::default()
        })
    }

    fn with(options: Options) -> Rig {
        let counters = Arc::new(SymbolCounters::default());
        let (rules, _) = sync_channel(1);
        let ask = AskOptions::default();
        let mut watcher = Watcher::new(options, RuntimeAttacher::new(ask), counters.clone(), rules);
        watcher.wait = Duration::from_secs(60);
        Rig {
            watcher,
            counters,
            dict: Dictionary::default(),
        }
    }

    fn whose(runtime: &Runtime) -> ProcessInstance {
        ProcessInstance {
            id: ProcessId(runtime.pid),
            pid: Pid(runtime.pid),
            started: MonotonicTime::now(),
        }
    }

    /// Sends what the sampler sends at the first sample.
    fn meet(&mut self, runtime: &Runtime) {
        let met = Notice::Met(Rig::whose(runtime));
        self.watcher.take(std::iter::once(met));
    }

    /// Sends what the sampler sends at the end.
    fn end(&mut self, runtime: &Runtime) {
        let ended = Notice::Ended(ProcessId(runtime.pid), MonotonicTime::now());
        self.watcher.take(std::iter::once(ended));
    }

    fn tick(&mut self) {
        self.watcher.tick(MonotonicTime::now());
    }

    /// The frame at an address, as `kind function (reason)`.
    fn name(&mut self, runtime: &Runtime, address: u64) -> String {
        self.name_of(Rig::whose(runtime), address)
    }

    fn name_of(&mut self, whose: ProcessInstance, address: u64) -> String {
        self.name_at(whose, address, MonotonicTime::now)
    }

    /// The frame of a sample taken at a time, named now.
    fn name_then(&mut self, runtime: &Runtime, address: u64, at: MonotonicTime) -> String {
        self.name_at(Rig::whose(runtime), address, || at)
    }

    fn name_at(
        &mut self,
        whose: ProcessInstance,
        address: u64,
        at: impl FnOnce() -> MonotonicTime,
    ) -> String {
        let wanted = SymbolRequest {
            whose,
            addresses: vec![address],
            ended: false,
        };
        let maps = CodeMaps::new(self.watcher.refresh(vec![wanted]));
        let frame = match maps.of(whose.id) {
            Ok(page) => page.frame_at(&mut self.dict, address, at()),
            Err(reason) => lookup::unnamed(&mut self.dict, reason),
        };
        let frame = self.dict.frame(frame);
        assert_eq!(frame.module, "[jit]");
        match frame.unnamed {
            UnnamedReason::No => format!("{} {}", frame.kind.word(), frame.function),
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
        testkit::skip("needs root");
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
    let another = ProcessInstance {
        id: ProcessId(1),
        ..Rig::whose(&runtime)
    };
    assert_eq!(rig.name_of(another, 0x1000), "jit [jit] (jit_process_gone)");
}

#[test]
fn a_pid_used_again_is_another_process() {
    let runtime = Runtime::start();
    let mut rig = rig();
    runtime.write("1000 10 not mine\n");
    let long_before = MonotonicTime(1);
    let earlier = ProcessInstance {
        started: long_before,
        ..Rig::whose(&runtime)
    };
    let named = rig.name_of(earlier, 0x1000);
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
fn a_map_that_grows_over_the_limit_keeps_its_start() {
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
    if !is_root() {
        return;
    }
    if !Path::new("/dev/fuse").exists() {
        return testkit::skip("needs FUSE");
    }
    let dir = TempDir::new().expect("temporary directory");
    let mut rig = rig();
    rig.watcher.wait = Duration::from_millis(20);
    const LATE: &str = "jit [jit] (jit_map_late)";
    let mut hanging: Vec<Runtime> = (0..8).map(|_| Runtime::hanging(dir.path())).collect();
    for runtime in &hanging {
        assert_eq!(rig.name(runtime, 0x1000), LATE);
    }
    assert_eq!(
        rig.watcher.helpers.late(),
        REMOTE_LATE_MAX,
        "the others were not tried"
    );
    rig.watcher.wait = Duration::from_secs(60);
    let honest = Runtime::start();
    honest.write("1000 10 honest\n");
    assert_eq!(rig.name(&honest, 0x1000), "jit honest");
    assert_eq!(rig.name(&hanging[0], 0x1000), LATE, "without waiting again");
    assert_eq!(rig.counters.perf_maps_late.load(Ordering::Relaxed), 8);
    // The end of the server is an answer.
    hanging.iter_mut().for_each(Runtime::end);
    let helpers = &rig.watcher.helpers;
    let answered = wait_for(Duration::from_secs(60), || {
        (helpers.late() == 0).then_some(())
    });
    answered.unwrap_or_else(|| panic!("{} helpers wait for servers that ended", helpers.late()));
    assert_ne!(rig.name(&hanging[0], 0x1000), LATE);
}

#[test]
fn memory_stays_under_the_limit() {
    let mut rig = Rig::new(100_000);
    let runtimes: Vec<Runtime> = (0..4).map(|_| Runtime::start()).collect();
    let (small, large) = (50, 900);
    for (runtime, lines) in runtimes.iter().zip([small, large, small, large]) {
        let lines: String = (0..lines)
            .map(|n| format!("{:x} 10 function{n}\n", 0x1000 + n * 16))
            .collect();
        runtime.write(&lines);
        rig.name(runtime, 0x1000);
        assert!(rig.watcher.heap_bytes() as u64 <= ROOM_OF_MAPS * 100_000);
    }
    assert!(rig.counters.perf_maps_evicted.load(Ordering::Relaxed) >= 1);
    for small in [&runtimes[0], &runtimes[2]] {
        assert_eq!(rig.name(small, 0x1000), "jit function0", "it took little");
    }
    let large = [&runtimes[1], &runtimes[3]].map(|runtime| rig.name(runtime, 0x1000));
    assert!(large.contains(&REFUSED.to_owned()), "{large:?}");
}

#[test]
fn nothing_is_read_when_switched_off() {
    let runtime = Runtime::start();
    runtime.write("1000 10 name\n");
    let mut rig = Rig::with(Options {
        perf_maps: false,
        ..Options::default()
    });
    assert_eq!(rig.name(&runtime, 0x1000), "jit [jit] (jit_no_map)");
}

#[test]
fn a_process_that_ended_before_its_samples_were_named_has_names() {
    let mut runtime = Runtime::start();
    let mut rig = rig();
    runtime.write("1000 10 early\n");
    rig.meet(&runtime);
    runtime.append("2000 10 last words\n");
    runtime.end();
    rig.end(&runtime);
    let before = MonotonicTime::now();
    // As a container's goes with it.
    fs::remove_file(&runtime.path).expect("removes");
    assert_eq!(rig.name_then(&runtime, 0x1000, before), "jit early");
    assert_eq!(rig.name_then(&runtime, 0x2000, before), "jit last words");
}

#[test]
fn a_map_written_as_the_process_ends_is_found_by_the_root_held() {
    let mut runtime = Runtime::start();
    let mut rig = rig();
    rig.meet(&runtime);
    runtime.write("1000 10 at the end\n");
    runtime.end();
    rig.end(&runtime);
    assert_eq!(rig.name(&runtime, 0x1000), "jit at the end");
}

#[test]
fn a_map_is_read_on_every_second_and_samples_keep_the_names_of_their_times() {
    let runtime = Runtime::start();
    let mut rig = rig();
    runtime.write("1000 10 first\n");
    rig.meet(&runtime);
    rig.tick();
    let first = MonotonicTime::now();
    // The clock of files is coarse: what is written next must be later by it.
    let later = first.plus(Duration::from_millis(60));
    while MonotonicTime::now() < later {
        std::thread::yield_now();
    }
    rig.tick();
    let between = MonotonicTime::now();
    runtime.append("1000 10 second\n");
    rig.tick();
    let second = MonotonicTime::now().plus(Duration::from_millis(60));
    assert_eq!(rig.name_then(&runtime, 0x1000, first), "jit first");
    assert_eq!(
        rig.name_then(&runtime, 0x1000, between),
        "jit [jit] (jit_reused)"
    );
    assert_eq!(rig.name_then(&runtime, 0x1000, second), "jit second");
}

#[test]
fn what_an_earlier_process_left_is_not_this_ones_when_this_one_writes_on_as_root() {
    if !is_root() {
        return;
    }
    let dir = TempDir::new().expect("temporary directory");
    fs::write(dir.path().join("perf-1.map"), "1000 10 earlier\n9000 1").expect("writes");
    // The clocks compared are coarse: they must have moved on.
    let written = Instant::now();
    while written.elapsed() < Duration::from_millis(150) {
        std::thread::yield_now();
    }
    let runtime = Runtime::contained(dir.path());
    let mut rig = rig();
    assert_eq!(rig.name(&runtime, 0x1000), REFUSED);
    runtime.append("0 garbled\n2000 10 own\n");
    assert_eq!(rig.name(&runtime, 0x2000), "jit own");
    assert_eq!(rig.name(&runtime, 0x1000), "jit [jit] (jit_not_in_map)");
    assert_eq!(rig.name(&runtime, 0x9000), "jit [jit] (jit_not_in_map)");
    // And rewritten it is all its own.
    runtime.write("1000 10 anew\n2000 10 own again\n3000 10 longer than before\n");
    assert_eq!(rig.name(&runtime, 0x1000), "jit anew");
}

#[test]
fn more_processes_than_the_bound_are_refused_while_the_others_are_active() {
    let mut rig = rig();
    for number in 0..PROCESSES_MAX as u32 + 10 {
        // A pid that nobody has.
        let whose = ProcessInstance {
            id: ProcessId(number),
            pid: Pid(u32::MAX - number),
            started: MonotonicTime::now(),
        };
        rig.watcher.take(std::iter::once(Notice::Met(whose)));
    }
    assert_eq!(rig.watcher.len(), PROCESSES_MAX);
    let refused = &rig.counters.code_processes_refused;
    assert_eq!(refused.load(Ordering::Relaxed), 10);
    let later = MonotonicTime::now().plus(Duration::from_secs(3600));
    rig.watcher.tick(later);
    assert!(rig.watcher.is_empty(), "nobody has samples any more");
}

/// The jitdump of a process as its mapping would be reported: the file that is at the path now.
fn dump_seen(runtime: &Runtime, path: &Path) -> DumpSeen {
    let facts = fs::metadata(path).expect("is there");
    let device = facts.dev();
    DumpSeen {
        whose: Rig::whose(runtime),
        range: (Avma(0x1000), Avma(0x2000)),
        path: path.as_os_str().as_bytes().into(),
        identity: FileIdentity::Inode {
            major: libc::major(device),
            minor: libc::minor(device),
            inode: facts.ino(),
            generation: 0,
        },
    }
}

#[test]
fn a_jitdump_is_read_if_it_is_the_file_that_was_mapped_and_has_one_name() {
    let dir = TempDir::new().expect("temporary directory");
    let runtime = Runtime::start();
    let mut rig = rig();
    let path = dir.path().join("jit-7.dump");
    let told = |rig: &mut Rig, seen: DumpSeen| {
        rig.watcher
            .take(std::iter::once(Notice::Dump(Box::new(seen))));
        let count = |counter: &AtomicU64| counter.swap(0, Ordering::Relaxed);
        (
            count(&rig.counters.jitdumps_read),
            count(&rig.counters.jitdumps_refused),
        )
    };
    fs::write(&path, "").expect("writes");
    let seen = dump_seen(&runtime, &path);
    // Another file is there by now, and the process maps none at those addresses.
    fs::write(dir.path().join("other"), "").expect("writes");
    fs::rename(dir.path().join("other"), &path).expect("renames");
    assert_eq!(told(&mut rig, seen), (0, 1));
    let again = dir.path().join("again");
    fs::hard_link(&path, &again).expect("links");
    assert_eq!(told(&mut rig, dump_seen(&runtime, &path)), (0, 1));
    fs::remove_file(&again).expect("removes");
    assert_eq!(told(&mut rig, dump_seen(&runtime, &path)), (1, 0));
    assert_eq!(told(&mut rig, dump_seen(&runtime, &path)), (0, 0), "known");
    // The most jitdumps accepted for one process have been reported.
    assert_eq!(told(&mut rig, dump_seen(&runtime, &path)), (0, 0));
    assert_eq!(rig.counters.jitdumps_untold.load(Ordering::Relaxed), 1);
}

#[test]
fn a_thousand_processes_share_the_memory_there_is() {
    const LIMIT: u64 = 2 << 20;
    let runtime = Runtime::start();
    let lines: String = (0..100)
        .map(|n| format!("{:x} 10 function{n}\n", 0x1000 + n * 16))
        .collect();
    runtime.write(&lines);
    let mut rig = Rig::new(LIMIT);
    for number in 0..1000 {
        let whose = ProcessInstance {
            id: ProcessId(number),
            ..Rig::whose(&runtime)
        };
        rig.watcher.take(std::iter::once(Notice::Met(whose)));
        assert!(rig.watcher.heap_bytes() as u64 <= ROOM_OF_MAPS * LIMIT);
    }
    let evicted = rig.counters.perf_maps_evicted.load(Ordering::Relaxed);
    assert!(rig.watcher.len() == 1000 && evicted > 0);
}

#[test]
fn a_process_that_writes_its_map_anew_for_ever_is_read_no_faster_than_allowed() {
    let runtime = Runtime::start();
    let mut rig = rig();
    let mut read = 0;
    let started = Instant::now();
    for number in 0..100 {
        let line = format!("1000 10 {number} {}\n", "x".repeat(1000));
        runtime.write(&line.repeat((1 << 20) / line.len()));
        rig.tick();
        rig.meet(&runtime);
        read = rig.counters.perf_maps_read.load(Ordering::Relaxed);
    }
    // 64 MiB at once and 4 MiB a second: maps of a megabyte, and the one that is started.
    let allowed = 64 + 4 * started.elapsed().as_secs() + 5;
    assert!(read <= allowed, "{read} maps read");
}

#[test]
fn a_process_that_changes_its_root_is_read_in_the_root_it_has_as_root() {
    if !is_root() {
        return;
    }
    let dir = TempDir::new().expect("temporary directory");
    let at = dir.path().display();
    let (root, inner) = (dir.path().join("root"), dir.path().join("inner"));
    for made in [&root, &inner] {
        fs::create_dir(made).expect("makes");
    }
    let setup = format!(
        "mount --rbind / {at}/root && mount --bind {at}/inner {at}/root/tmp && echo && read go && \
         exec chroot {at}/root cat"
    );
    let mut runtime = Runtime::within(&setup, &inner);
    let mut rig = rig();
    runtime.write("1000 10 within\n");
    // Not in the root it has now, whatever else it can reach.
    assert_eq!(rig.name(&runtime, 0x1000), "jit [jit] (jit_no_map)");
    let stdin = runtime.child.stdin.as_mut().expect("is piped");
    stdin.write_all(b"go\n").expect("writes");
    let link = format!("/proc/{}/root", runtime.pid);
    let asked = Instant::now();
    // In the middle of exec it cannot be read.
    while fs::read_link(&link).is_ok_and(|at| at == Path::new("/")) || fs::metadata(&link).is_err()
    {
        assert!(asked.elapsed() < Duration::from_secs(60), "it ended");
        std::thread::yield_now();
    }
    assert_eq!(rig.name(&runtime, 0x1000), "jit within");
    let secret = dir.path().join("secret");
    fs::write(&secret, "2000 10 secret\n").expect("writes");
    fs::remove_file(&runtime.path).expect("removes");
    symlink(&secret, &runtime.path).expect("links");
    assert_eq!(rig.name(&runtime, 0x2000), REFUSED);
}
