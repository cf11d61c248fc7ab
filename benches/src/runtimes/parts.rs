//! What runs: each runtime twice, once as it is and once with namespaces of its own.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use testkit::process::{program, run};
use testkit::runtimes::{self, Missing, Running, Runtime};
use testkit::workload::source;
use testkit::{Cgroup, workload};

/// Longest a compiler may take.
const COMPILE_LIMIT: Duration = Duration::from_secs(60);

type Make = fn() -> Result<Runtime, Missing>;

/// The programs that run, and why others do not.
pub struct Parts {
    pub running: Vec<Running>,
    pub missing: Vec<String>,
}

/// Starts all that this machine can run, in cgroups below `parent`.
pub fn start(parent: &Cgroup) -> Parts {
    let mut parts = Parts {
        running: Vec::new(),
        missing: Vec::new(),
    };
    let all: [(&str, Make); 7] = [
        ("node", || runtimes::node(true)),
        ("java", runtimes::java),
        ("php", runtimes::php),
        ("erlang", runtimes::erlang),
        ("python", || runtimes::python(12)),
        ("c", c),
        ("rust", rust),
    ];
    for (name, make) in all {
        match (make(), make()) {
            (Ok(one), Ok(other)) => {
                parts.running.push(one.start_in(parent));
                parts.running.push(other.start_alone_in(parent));
            }
            (Err(why), _) | (_, Err(why)) => parts.missing.push(format!("{name}: {why}")),
        }
    }
    parts
}

/// C as distributions build it: without frame pointers.
fn c() -> Result<Runtime, Missing> {
    program("gcc").ok_or("needs gcc")?;
    let recipe = workload::bare_c("split.c", &[]).named("split-bare");
    Runtime::of("c", recipe.build())
}

/// Rust as `cargo build --release` builds it.
fn rust() -> Result<Runtime, Missing> {
    let compiler = program("rustc").ok_or("needs rustc")?;
    let mut runtime = Runtime::of("rust", PathBuf::new())?;
    runtime.program = runtime.dir().join("orchard");
    let mut command = Command::new(compiler);
    command.args(["--edition", "2024", "-O", "-o"]);
    command.arg(&runtime.program).arg(source("orchard.rs"));
    run(&mut command, COMPILE_LIMIT).ok();
    Ok(runtime)
}
