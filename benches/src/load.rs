//! The mixed load: programs without frame pointers as distributions build them, a few with, and a
//! compiler over and over. Nothing is pinned; every part is started again as it ends, and all end
//! when the load is dropped.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use testkit::process::{Proc, program, run};
use testkit::workload::{c, source};

/// How often a part is looked at. Unit: milliseconds. Rare enough to be no load itself.
const LOOK_MS: u64 = 20;
/// Longest a compiler may take.
const COMPILE_LIMIT: Duration = Duration::from_secs(60);
/// As distributions build programs: no frame pointers, dynamically linked.
const NO_FRAME_POINTERS: &[&str] = &["-O2", "-g0", "-fomit-frame-pointer", "-pthread"];

/// One part: a name and the command that runs it once.
struct Part {
    name: &'static str,
    program: PathBuf,
    args: Vec<String>,
}

/// A running load.
pub struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    names: Vec<&'static str>,
    _dir: tempfile::TempDir,
}

impl Load {
    /// Builds and starts every part that this machine can run.
    ///
    /// # Errors
    /// When a thread or a directory cannot be made.
    pub fn start() -> anyhow::Result<Load> {
        let dir = tempfile::tempdir()?;
        let stop = Arc::new(AtomicBool::new(false));
        let (mut threads, mut names) = (Vec::new(), Vec::new());
        for part in parts(dir.path()) {
            names.push(part.name);
            let stop = Arc::clone(&stop);
            let thread = std::thread::Builder::new().name("load".to_owned());
            threads.push(thread.spawn(move || keep_running(&part, &stop))?);
        }
        Ok(Load {
            stop,
            threads,
            names,
            _dir: dir,
        })
    }

    /// What runs.
    pub fn names(&self) -> &[&'static str] {
        &self.names
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Where a program of the distribution is: not a wrapper that somebody's `PATH` puts before it.
fn distributed(name: &str) -> Option<PathBuf> {
    let usual = Path::new("/usr/bin").join(name);
    usual.is_file().then_some(usual).or_else(|| program(name))
}

/// Builds `name` in `dir` with a compiler and its arguments; nothing when the compiler is missing.
///
/// # Panics
/// When the compiler fails.
fn build(dir: &Path, name: &str, compiler: &str, args: &[&str], from: &str) -> Option<PathBuf> {
    let path = dir.join(name);
    let mut command = Command::new(program(compiler)?);
    command.args(args).arg("-o").arg(&path).arg(source(from));
    run(&mut command, COMPILE_LIMIT).ok();
    Some(path)
}

fn parts(dir: &Path) -> Vec<Part> {
    let path = |file: PathBuf| file.display().to_string();
    let mut parts = Vec::new();
    let mut add = |name: &'static str, program: Option<PathBuf>, args: &[&str]| {
        if let Some(program) = program {
            let args = args.iter().map(|&arg| arg.to_owned()).collect();
            parts.push(Part {
                name,
                program,
                args,
            });
        }
    };
    let split = build(dir, "split-omit", "gcc", NO_FRAME_POINTERS, "split.c");
    add("split -O2 -fomit-frame-pointer", split, &[]);
    let threads = c("threads.c").build();
    add("threads with frame pointers", Some(threads), &[]);
    let release = ["--edition", "2024", "-O"];
    let orchard = build(dir, "orchard-release", "rustc", &release, "orchard.rs");
    add("a Rust release program", orchard, &[]);
    let unit = path(source("split.c"));
    let compile = ["-O1", "-c", "-o", "/dev/null", &unit];
    add("gcc -O1", distributed("gcc"), &compile);
    let (unit, out) = (path(source("orchard.rs")), path(dir.join("compiled")));
    let compile = ["--edition", "2024", "-O", "-o", &out, &unit];
    add("rustc -O", program("rustc"), &compile);
    let speed = ["speed", "-seconds", "2", "sha256"];
    add("openssl speed", distributed("openssl"), &speed);
    let sum = ["-c", "sum(i * i % 7 for i in range(20_000_000))"];
    add("python3", distributed("python3"), &sum);
    let walk = "my $x = 1; $x = ($x * 33 + $_) % 65537 for 1 .. 20_000_000";
    add("perl", distributed("perl"), &["-e", walk]);
    parts
}

fn keep_running(part: &Part, stop: &AtomicBool) {
    let dir = tempfile::tempdir().expect("failed to make a directory");
    while !stop.load(Ordering::Relaxed) {
        let mut proc = Proc::spawn(
            Command::new(&part.program).args(&part.args),
            dir.path(),
            "load",
        );
        while proc.exited().is_none() && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(LOOK_MS));
        }
    }
}
