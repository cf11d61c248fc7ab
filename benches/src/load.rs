//! The mixed load: two programs with frame pointers, a compiler over and over, and what else is on
//! the machine. Every part is started again as it ends, and all end when the load is dropped.

use fixtures::process::Proc;
use fixtures::require::program;
use fixtures::workload::{c, source};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often a part is looked at. Unit: milliseconds. Rare enough to be no load itself.
const LOOK_MS: u64 = 20;

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
}

impl Load {
    /// Builds and starts every part that this machine can run.
    pub fn start() -> anyhow::Result<Load> {
        let stop = Arc::new(AtomicBool::new(false));
        let (mut threads, mut names) = (Vec::new(), Vec::new());
        for part in parts() {
            names.push(part.name);
            let stop = Arc::clone(&stop);
            let thread = std::thread::Builder::new().name("load".to_owned());
            threads.push(thread.spawn(move || keep_running(&part, &stop))?);
        }
        Ok(Load {
            stop,
            threads,
            names,
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

fn parts() -> Vec<Part> {
    let path = |file: PathBuf| file.display().to_string();
    let mut parts = vec![
        Part {
            name: "split (frame pointers)",
            program: c("split.c").build(),
            args: Vec::new(),
        },
        Part {
            name: "threads (frame pointers)",
            program: c("threads.c").build(),
            args: Vec::new(),
        },
    ];
    let mut add = |name: &'static str, command: &str, args: &[&str]| {
        if let Some(program) = program(command) {
            let args = args.iter().map(|&arg| arg.to_owned()).collect();
            parts.push(Part {
                name,
                program,
                args,
            });
        }
    };
    let unit = path(source("split.c"));
    add("gcc -O2", "gcc", &["-O2", "-c", "-o", "/dev/null", &unit]);
    add("openssl", "openssl", &["speed", "-seconds", "2", "sha256"]);
    add(
        "python3",
        "python3",
        &["-c", "sum(i * i % 7 for i in range(20_000_000))"],
    );
    add(
        "perl",
        "perl",
        &[
            "-e",
            "my $x = 1; $x = ($x * 33 + $_) % 65537 for 1 .. 20_000_000",
        ],
    );
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
