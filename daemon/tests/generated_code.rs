//! Tests that stacks of real runtimes are walked through generated code: the unwinder on real
//! samples, with rules made from what the runtimes write.
//!
//! Node, and each Python interpreter of 3.12 or later that is found, is sampled twice in one run:
//! without rules, and with them.
#![expect(clippy::unwrap_used, reason = "a test fails by panic")]

mod support;

use aggregate::batch::RawBatch;
use host::ids::{CpuId, Pid};
use host::time::MonotonicTime;
use jit::code::{CodeMap, When};
use jit::dump::DumpReader;
use jit::map::parse_line;
use jit::rules::RulesBuilder;
use perf::event::{EventKind, EventSpec};
use perf::rings::Rings;
use profile::StackEnd;
use sampler::{SamplerHandle, SamplerStart};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};
use support::{Driven, unwinder};
use symbolize::files::generation_of_mapping;
use testkit::wire::has_bytes;
use unwind::info::generated::Generated;
use unwind::process::scan;
use unwind::walk::Unwinder;

const RATE_HZ: u32 = 199;
const WINDOW: Duration = Duration::from_millis(500);
/// Samples that a share is taken of.
const SAMPLES: u64 = 200;
/// Longest wait for anything; a debug build on a busy machine is slow.
const LIMIT: Duration = Duration::from_secs(60);

/// Three functions deep, for as long as it is let. CPython writes a jitdump two MiB at a time:
/// functions with long names fill them.
const PROGRAM: &str = "
import sys
def leaf(n):
    s = 0
    for i in range(n): s += i * i
    return s
def mid(n):
    return leaf(n) + 1
def outer(n):
    return sum(mid(n) for _ in range(10))
outer(1)
if sys._xoptions.get('perf_jit'):
    for i in range(2500):
        name = 'x' * 1000 + str(i)
        made = {}
        exec(f'def {name}(): pass', made)
        made[name]()
while True: outer(1000)
";

/// The same for Node. Functions are made for as long as it runs, as the last ones wait for more.
const SCRIPT: &str = "
function leaf(n) { let s = 0; for (let i = 0; i < n; i++) s += Math.sqrt(i) * i; return s }
function mid(n) { return leaf(n) + 1 }
function outer(n) { let t = 0; for (let i = 0; i < 20; i++) t += mid(n); return t }
for (let n = 0; ; n++) {
  outer(2000);
  if (n % 50 == 0) { const f = new Function('x', `return x + ${n}`); for (let i = 0; i < 2000; i++) f(i) }
}
";

/// A runtime at work; ended when dropped.
struct Runtime {
    child: Child,
    written: PathBuf,
}

impl Runtime {
    /// Starts it and waits until it has written `word` to `file`, which is made of its pid.
    fn start(command: &mut Command, word: &str, file: impl Fn(u32) -> PathBuf) -> Runtime {
        let child = command.stdout(Stdio::null()).spawn();
        let child = child.expect("failed to start a runtime");
        let written = file(child.id());
        let mut runtime = Runtime { child, written };
        let told = wait_for(|| {
            assert!(runtime.child.try_wait().unwrap().is_none(), "it ended");
            let content = std::fs::read(&runtime.written).unwrap_or_default();
            has_bytes(&content, word).then_some(())
        });
        told.expect("the runtime tells of its code");
        runtime
    }

    fn pid(&self) -> Pid {
        Pid(self.child.id())
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.written);
    }
}

fn wait_for<T>(mut found: impl FnMut() -> Option<T>) -> Option<T> {
    let begin = Instant::now();
    while begin.elapsed() < LIMIT {
        if let Some(found) = found() {
            return Some(found);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    None
}

/// The sampler on real rings.
struct Rig {
    driven: Driven,
    rules: SyncSender<Generated>,
}

impl Rig {
    /// `None` when sampling is not permitted.
    fn new(pid: Pid) -> Option<Rig> {
        let spec = EventSpec {
            kind: EventKind::CpuClock,
            rate_hz: RATE_HZ,
            max_stack_depth: 127,
            watermark_bytes: 1 << 20,
            stack_bytes: 16 << 10,
            side_band_bytes: 0,
        };
        let cpus = std::thread::available_parallelism().ok()?.get() as u32;
        let cpus: Vec<CpuId> = (0..cpus).map(CpuId).collect();
        let rings = Rings::open(&cpus, &spec, 8 << 20).ok()?;
        let mut processes =
            scan::all(|(pid, start, end), _| generation_of_mapping(pid, start, end)).processes;
        processes.retain(|process| process.pid == pid);
        let start = SamplerStart {
            rings,
            unwinder: by_rules(),
            period: 1_000_000_000 / u64::from(RATE_HZ),
            processes,
            idle: vec![(1, 2)],
            window: WINDOW,
            first_window_end: MonotonicTime::now().plus(WINDOW),
        };
        let (driven, rules) = Driven::new(start, Arc::new(SamplerHandle::new().unwrap()));
        Some(Rig { driven, rules })
    }

    /// The next batch.
    fn batch(&mut self) -> RawBatch {
        let batch = wait_for(|| {
            self.driven.sampler.pass(MonotonicTime::now()).unwrap();
            self.driven.batches.try_recv().ok()
        });
        batch.expect("windows close")
    }

    /// Ends of the process's stacks in user code, with their numbers, of at least [`SAMPLES`].
    fn ends(&mut self, pid: Pid) -> Vec<(StackEnd, u64)> {
        let mut ends: Vec<(StackEnd, u64)> = Vec::new();
        let begin = Instant::now();
        while ends.iter().map(|(_, count)| count).sum::<u64>() < SAMPLES {
            assert!(begin.elapsed() < LIMIT, "too few samples: {ends:?}");
            let batch = self.batch();
            for sample in &batch.samples {
                if batch.processes[sample.process as usize].pid == pid {
                    let end = batch.stacks[sample.stack as usize].end;
                    match ends.iter_mut().find(|known| known.0 == end) {
                        Some(known) => known.1 += sample.value.count,
                        None => ends.push((end, sample.value.count)),
                    }
                }
            }
            self.driven.recycle.send(batch).unwrap();
        }
        ends
    }

    /// Passes until all unwind information of files is there.
    fn settle(&mut self, pid: Pid) {
        let settled = wait_for(|| {
            let ends = self.ends(pid);
            let waits = |&(end, _): &(StackEnd, u64)| end == StackEnd::ModuleLoading;
            (!ends.iter().any(waits)).then_some(())
        });
        settled.expect("unwind information is read");
    }

    fn hand_over(&mut self, pid: Pid, rules: &mut RulesBuilder) {
        let process = wait_for(|| {
            let batch = self.batch();
            let found = batch.processes.iter().find(|process| process.pid == pid);
            let id = found.map(|process| process.id);
            self.driven.recycle.send(batch).unwrap();
            id
        });
        let generated = Generated {
            process: process.expect("it is sampled"),
            pid,
            rules: rules.take().expect("its code is known"),
        };
        eprintln!(
            "{} runs, {} bytes",
            generated.rules.len(),
            generated.rules.heap_bytes()
        );
        self.rules.send(generated).unwrap();
        // What was sampled before is folded without them.
        let begin = MonotonicTime::now();
        while self.batch_is_before(begin) {}
    }

    fn batch_is_before(&mut self, time: MonotonicTime) -> bool {
        let batch = self.batch();
        let before = batch.start < time;
        self.driven.recycle.send(batch).unwrap();
        before
    }
}

/// Share of stacks that are complete, in per mille.
fn complete(ends: &[(StackEnd, u64)]) -> u64 {
    let all: u64 = ends.iter().map(|(_, count)| count).sum();
    let whole = ends.iter().filter(|(end, _)| end.is_complete());
    whole.map(|(_, count)| count * 1000).sum::<u64>() / all
}

/// Interpreters of this Python: on the path, or installed side by side by pyenv.
fn interpreters(versions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let path = std::env::var_os("PATH").unwrap_or_default();
    for dir in std::env::split_paths(&path) {
        let named = versions
            .iter()
            .map(|version| dir.join(format!("python{version}")));
        // Where pyenv has a script for each name that it may have, it is not an interpreter.
        found.extend(named.filter(|path| path.is_file() && !dir.ends_with("shims")));
    }
    let home = std::env::var_os("HOME")
        .map(PathBuf::from)
        .unwrap_or_default();
    let installed = std::fs::read_dir(home.join(".pyenv/versions"));
    for entry in installed.into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if versions
            .iter()
            .any(|version| name.starts_with(&format!("{version}.")))
        {
            found.push(entry.path().join("bin/python3"));
        }
    }
    found
}

/// The code of a process by its perf map.
fn code_of_map(path: &Path) -> CodeMap {
    let mut code = CodeMap::new(8 << 20);
    for line in std::fs::read(path).unwrap().split(|&byte| byte == b'\n') {
        if let Some((start, end, name)) = parse_line(line) {
            let name = String::from_utf8_lossy(name);
            code.load(
                start..end,
                &name,
                Default::default(),
                When::at(MonotonicTime(1)),
            );
        }
    }
    code
}

/// An unwinder that passes generated code by rules alone: scans would find the same callers.
fn by_rules() -> Unwinder {
    let mut unwinder = unwinder(64 << 20);
    unwinder.scan(false);
    unwinder
}

/// Shares of complete stacks of a runtime, in per mille: without rules, and with those that `make`
/// makes.
fn shares(runtime: &Runtime, make: fn(&Runtime) -> RulesBuilder) -> Option<(u64, u64)> {
    let mut rig = Rig::new(runtime.pid())?;
    rig.settle(runtime.pid());
    let without = rig.ends(runtime.pid());
    let mut rules = make(runtime);
    rig.hand_over(runtime.pid(), &mut rules);
    // Stacks now continue beyond the generated code, into files without unwind information so far.
    rig.settle(runtime.pid());
    let with = rig.ends(runtime.pid());
    rig.driven.end();
    let shares = (complete(&without), complete(&with));
    eprintln!(
        "complete {} ‰ without rules ({without:?}), {} ‰ with ({with:?})",
        shares.0, shares.1
    );
    Some(shares)
}

fn check_python(
    interpreter: &Path,
    mode: &str,
    file: fn(u32) -> PathBuf,
    make: fn(&Runtime) -> RulesBuilder,
) {
    eprintln!("{} -X {mode}", interpreter.display());
    let mut command = Command::new(interpreter);
    command.args(["-X", mode, "-c", PROGRAM]);
    let runtime = Runtime::start(&mut command, "py::leaf:", file);
    match shares(&runtime, make) {
        None => testkit::skip("not permitted to sample"),
        Some((without, with)) => {
            assert!(without < 500, "there is nothing to prove");
            assert!(with >= 980);
        }
    }
}

/// The rules of what a runtime wrote to its jitdump.
fn rules_of_dump(runtime: &Runtime) -> RulesBuilder {
    let (mut code, mut rules) = (CodeMap::new(64 << 20), RulesBuilder::default());
    let content = std::fs::read(&runtime.written).unwrap();
    let read = When::at(MonotonicTime::now());
    let done = DumpReader::default().feed(&content, read, &mut code, &mut rules);
    assert_eq!(done, Ok(()));
    rules
}

#[test]
fn stacks_of_python_pass_trampolines_known_by_their_shape_needs_root() {
    let found = interpreters(&["3.12", "3.13", "3.14"]);
    if found.is_empty() {
        return testkit::skip("no Python of 3.12 or later");
    }
    for interpreter in found {
        let map = |pid| PathBuf::from(format!("/tmp/perf-{pid}.map"));
        check_python(&interpreter, "perf", map, |runtime| {
            let mut rules = RulesBuilder::default();
            rules.look_at(runtime.pid(), &code_of_map(&runtime.written));
            assert!(rules.take_counts().trampolines > 1000, "a whole arena");
            rules
        });
    }
}

#[test]
#[ignore = "takes long: make test-slow"]
fn stacks_of_python_pass_trampolines_that_a_jitdump_describes_needs_root() {
    let found = interpreters(&["3.13", "3.14"]);
    if found.is_empty() {
        return testkit::skip("no Python of 3.13 or later");
    }
    let dump = |pid| PathBuf::from(format!("/tmp/jit-{pid}.dump"));
    for interpreter in found {
        check_python(&interpreter, "perf_jit", dump, rules_of_dump);
    }
}

#[test]
fn stacks_of_node_pass_its_optimised_code_needs_root() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new("node");
    let options = ["--perf-prof", "--perf-prof-unwinding-info", "-e", SCRIPT];
    command.args(options).current_dir(dir.path());
    if Command::new("node").arg("--version").output().is_err() {
        return testkit::skip("needs the program `node`");
    }
    let dump = |pid| dir.path().join(format!("jit-{pid}.dump"));
    let runtime = Runtime::start(&mut command, "JS:*leaf", dump);
    match shares(&runtime, rules_of_dump) {
        None => testkit::skip("not permitted to sample"),
        // Its code has frame pointers: what is won is the first and last instructions of functions.
        Some((without, with)) => assert!(with >= 980 && with + 10 >= without),
    }
}

#[test]
#[ignore = "takes long: make test-slow"]
fn stacks_of_python_pass_trampolines_that_nothing_names_yet_needs_root() {
    let found = interpreters(&["3.13", "3.14"]);
    if found.is_empty() {
        return testkit::skip("no Python of 3.13 or later");
    }
    let dump = |pid| PathBuf::from(format!("/tmp/jit-{pid}.dump"));
    for interpreter in found {
        check_python(&interpreter, "perf_jit", dump, |runtime| {
            let mut rules = RulesBuilder::default();
            rules.look_at(runtime.pid(), &CodeMap::new(8 << 20));
            rules
        });
    }
}
