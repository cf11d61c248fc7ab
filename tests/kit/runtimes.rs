//! Language runtimes of the machine, each with a program of `tests/workloads` and set up as its
//! manual says for profilers.
//!
//! They are looked for on `PATH` and, Python, among the versions of pyenv; wasmtime, DuckDB and
//! .NET where scripts of `tests/` put them; so is a provider of identities for `node`. What is
//! missing is a reason for a skip. Files that runtimes leave in `/tmp` go with [`Running`].

use crate::cgroup::Cgroup;
use crate::process::{program, run};
use crate::workload::{Workload, source};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Longest that a compiler or `jcmd` may take.
const LIMIT: Duration = Duration::from_secs(60);
/// The version that `tests/wasmtime.sh` installs.
const WASMTIME_VERSION: &str = "50.0.1";
/// The version that `tests/duckdb.sh` installs.
const DUCKDB_VERSION: &str = "2.0.1";
/// The version that `tests/dotnet.sh` installs.
const DOTNET_VERSION: &str = "2.0.5";
/// The version that `tests/oidc.sh` installs.
const OIDC_PROVIDER_VERSION: &str = "9.13.3";

/// A runtime with a program.
#[derive(Debug)]
pub struct Runtime {
    /// `node`, `java`, …
    pub name: &'static str,
    /// The interpreter.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// What was compiled for it, and its current directory.
    dir: tempfile::TempDir,
}

/// Why there is none.
pub type Missing = String;

/// Node with a perf map; with `interpreted_frames`, interpreted functions have code of their own.
///
/// # Errors
/// When it is not installed.
pub fn node(interpreted_frames: bool) -> Result<Runtime, Missing> {
    let mut runtime = Runtime::new("node", find("node")?)?;
    runtime.push(&["--perf-basic-prof"]);
    if interpreted_frames {
        runtime.push(&["--interpreted-frames-native-stack"]);
    }
    runtime.args.push(source("orders.js").into());
    Ok(runtime)
}

/// A JVM with frame pointers; it writes its map when [`Running::write_map`] asks it to.
///
/// # Errors
/// When it, its compiler or `jcmd` is not installed.
pub fn java() -> Result<Runtime, Missing> {
    let (compiler, _) = (find("javac")?, find("jcmd")?);
    let mut runtime = Runtime::new("java", find("java")?)?;
    runtime.compile(
        Command::new(compiler)
            .arg("-d")
            .arg(runtime.dir.path())
            .arg(source("Orders.java")),
    )?;
    // Inlined, the methods would not be there.
    runtime.push(&[
        "-XX:+PreserveFramePointer",
        "-XX:CompileCommand=quiet",
        "-XX:CompileCommand=dontinline,com.example.Orders::settle",
        "-cp",
    ]);
    runtime.args.push(runtime.dir.path().into());
    runtime.push(&["com.example.Orders"]);
    Ok(runtime)
}

/// `CPython 3.MINOR -X perf`.
///
/// # Errors
/// When it is not installed.
pub fn python(minor: u32) -> Result<Runtime, Missing> {
    let interpreter = cpython(minor).ok_or_else(|| format!("needs Python 3.{minor}"))?;
    let mut runtime = Runtime::new("python", interpreter)?;
    runtime.push(&["-X", "perf"]);
    runtime.args.push(source("orders.py").into());
    Ok(runtime)
}

/// PHP with the function compiler of opcache and a perf map.
///
/// # Errors
/// When it, or opcache, is not installed.
pub fn php() -> Result<Runtime, Missing> {
    let interpreter = find("php8.2").or_else(|_| find("php"))?;
    let modules = run(Command::new(&interpreter).arg("-m"), LIMIT).text();
    if !modules.contains("Zend OPcache") {
        return Err("needs opcache in PHP".to_owned());
    }
    let mut runtime = Runtime::new("php", interpreter)?;
    for setting in [
        "opcache.enable=1",
        "opcache.enable_cli=1",
        "opcache.jit=function",
        "opcache.jit_buffer_size=64M",
        // The bit for a perf map.
        "opcache.jit_debug=0x10",
    ] {
        runtime.push(&["-d", setting]);
    }
    runtime.args.push(source("orders.php").into());
    Ok(runtime)
}

/// PHP whose code is compiled before a worker is forked that runs it, as PHP-FPM does.
///
/// # Errors
/// When it, opcache or its functions for processes are not installed.
pub fn php_worker() -> Result<Runtime, Missing> {
    let mut runtime = php()?;
    let modules = run(Command::new(&runtime.program).arg("-m"), LIMIT).text();
    if !modules.contains("pcntl") {
        return Err("needs pcntl in PHP".to_owned());
    }
    runtime.name = "php-worker";
    runtime.push(&["worker"]);
    Ok(runtime)
}

/// Erlang/OTP with a perf map, which comes with frame pointers.
///
/// # Errors
/// When it or its compiler is not installed.
pub fn erlang() -> Result<Runtime, Missing> {
    erlang_program("orders", "serve", &["+JPperf", "true"])
}

/// Erlang/OTP without a switch, busy in function `main` of a module.
///
/// # Errors
/// When it or its compiler is not installed.
pub fn plain_erlang(module: &str) -> Result<Runtime, Missing> {
    erlang_program(module, "main", &[])
}

fn erlang_program(module: &str, function: &str, switches: &[&str]) -> Result<Runtime, Missing> {
    let compiler = find("erlc")?;
    let mut runtime = Runtime::new("erlang", find("erl")?)?;
    runtime.compile(
        Command::new(compiler)
            .arg("-o")
            .arg(runtime.dir.path())
            .arg(source(&format!("{module}.erl"))),
    )?;
    runtime.push(&["-noshell"]);
    runtime.push(switches);
    runtime.push(&["-pa"]);
    runtime.args.push(runtime.dir.path().into());
    runtime.push(&["-s", module, function]);
    Ok(runtime)
}

/// wasmtime with `profiler`: `perfmap` or `jitdump`.
///
/// # Errors
/// When it is not installed.
pub fn wasmtime(profiler: &str) -> Result<Runtime, Missing> {
    let interpreter = installed(&format!("wasmtime-{WASMTIME_VERSION}/bin/python"))
        .ok_or("needs wasmtime; tests/wasmtime.sh installs it")?;
    let mut runtime = Runtime::new("wasmtime", interpreter)?;
    runtime.args.push(source("orders_wasm.py").into());
    runtime.push(&[profiler]);
    Ok(runtime)
}

/// A program in .NET 10 that runs as long as its input is open, with its arguments.
///
/// # Errors
/// When it is not installed.
pub fn dotnet() -> Result<Command, Missing> {
    let program = installed(&format!("dotnet-{DOTNET_VERSION}/package/dist/azmcp"))
        .ok_or("needs .NET; tests/dotnet.sh installs it")?;
    let mut command = Command::new(program);
    command.args(["server", "start"]);
    // It is not to tell anybody that it is tested with.
    command.env("AZURE_MCP_COLLECT_TELEMETRY", "false");
    Ok(command)
}

/// node with a script that has a provider of OpenID Connect; its first argument is where that is.
///
/// # Errors
/// When one of them is not installed.
pub fn oidc_provider(script: &Path) -> Result<Command, Missing> {
    let home = format!("oidc-provider-{OIDC_PROVIDER_VERSION}");
    let known = installed(&format!("{home}/node_modules/oidc-provider/package.json"));
    let known = known.ok_or("needs oidc-provider; tests/oidc.sh installs it")?;
    let mut command = Command::new(find("node")?);
    command.arg(script).args(known.ancestors().nth(3));
    Ok(command)
}

/// A Python that has DuckDB.
///
/// # Errors
/// When it is not installed.
pub fn duckdb() -> Result<PathBuf, Missing> {
    installed(&format!("duckdb-{DUCKDB_VERSION}/bin/python"))
        .ok_or_else(|| "needs duckdb; tests/duckdb.sh installs it".to_owned())
}

/// A file that a script of `tests/` put into the cache directory.
fn installed(path: &str) -> Option<PathBuf> {
    let home = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let cache = home("XDG_CACHE_HOME").or_else(|| Some(home("HOME")?.join(".cache")))?;
    let file = cache.join("fleetprof").join(path);
    file.is_file().then_some(file)
}

/// A CPython of this minor version: on `PATH`, or the newest of pyenv's.
pub fn cpython(minor: u32) -> Option<PathBuf> {
    let name = format!("python3.{minor}");
    let runs = |path: &PathBuf| {
        let found = Command::new(path).arg("--version").output();
        found.is_ok_and(|out| out.status.success())
    };
    // pyenv's own stand-ins are on `PATH` for versions that are not chosen.
    if let Some(found) = program(&name).filter(runs) {
        return Some(found);
    }
    let versions = PathBuf::from(std::env::var_os("HOME")?).join(".pyenv/versions");
    let mut found: Vec<(u32, PathBuf)> = std::fs::read_dir(versions)
        .ok()?
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().into_string().ok()?;
            let patch = version.strip_prefix(&format!("3.{minor}."))?.parse().ok()?;
            Some((patch, entry.path().join("bin").join(&name)))
        })
        .filter(|(_, path)| path.is_file())
        .collect();
    found.sort();
    found.pop().map(|(_, path)| path)
}

fn find(name: &str) -> Result<PathBuf, Missing> {
    program(name).ok_or_else(|| format!("needs the program `{name}`"))
}

impl Runtime {
    /// A program that needs nothing else.
    ///
    /// # Errors
    /// When no directory can be made for it.
    pub fn of(name: &'static str, program: PathBuf) -> Result<Runtime, Missing> {
        Runtime::new(name, program)
    }

    /// A directory that is there as long as it is: its current one.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn new(name: &'static str, program: PathBuf) -> Result<Runtime, Missing> {
        Ok(Runtime {
            name,
            program,
            args: Vec::new(),
            dir: tempfile::tempdir().map_err(|error| format!("no directory: {error}"))?,
        })
    }

    fn push(&mut self, args: &[&str]) {
        self.args.extend(args.iter().map(OsString::from));
    }

    fn compile(&self, command: &mut Command) -> Result<(), Missing> {
        let out = run(command, LIMIT);
        match out.code == Some(0) {
            true => Ok(()),
            false => Err(format!("{}: {}", self.name, out.stderr)),
        }
    }

    /// Starts it in a cgroup of its own below `parent`.
    pub fn start_in(self, parent: &Cgroup) -> Running {
        let cgroup = parent.child(self.name);
        let mut command = cgroup.command(&self.program);
        command.args(&self.args).current_dir(self.dir.path());
        self.running(cgroup, &mut command)
    }

    /// Starts it as [`Runtime::start_in`] does, with pid and mount namespaces and a `/tmp` of its
    /// own.
    pub fn start_alone_in(self, parent: &Cgroup) -> Running {
        // What was compiled for it is below the `/tmp` that it does not see.
        let script = r#"dir="$1" && shift && mkdir -p /mnt && mount --bind "$dir" /mnt &&
            mount -t tmpfs own /tmp && mkdir -p "$dir" && mount --bind /mnt "$dir" &&
            cd "$dir" && exec "$@""#;
        let cgroup = parent.child(format!("{}-alone", self.name));
        let mut command = cgroup.command("unshare");
        command
            .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(["sh", "-c", script, "sh"])
            .arg(self.dir.path())
            .arg(&self.program)
            .args(&self.args);
        self.running(cgroup, &mut command)
    }

    fn running(self, cgroup: Cgroup, command: &mut Command) -> Running {
        Running {
            name: self.name,
            workload: Some(Workload::spawn(command)),
            cgroup,
            _runtime: self,
        }
    }
}

/// A runtime at work; ended with what it wrote to `/tmp` when dropped.
pub struct Running {
    /// See [`Runtime::name`].
    pub name: &'static str,
    /// Where it runs, alone.
    pub cgroup: Cgroup,
    workload: Option<Workload>,
    _runtime: Runtime,
}

impl Running {
    /// Its processes.
    pub fn pids(&self) -> Vec<u32> {
        let text = std::fs::read_to_string(self.cgroup.dir().join("cgroup.procs"));
        let text = text.unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Has a runtime that does not do so by itself write its map.
    pub fn write_map(&self) {
        let is_java = |pid: &u32| {
            let comm = std::fs::read_to_string(format!("/proc/{pid}/comm"));
            comm.is_ok_and(|comm| comm.trim() == "java")
        };
        for pid in self.pids().iter().filter(|pid| is_java(pid)) {
            // A JVM that has just started refuses: it is asked again with the next look.
            let mut jcmd = Command::new("jcmd");
            run(jcmd.args([&pid.to_string(), "Compiler.perfmap"]), LIMIT);
        }
    }

    /// What it said of errors, and whether it runs.
    pub fn state(&mut self) -> String {
        let Some(workload) = &mut self.workload else {
            return String::new();
        };
        let exited = workload.proc().exited();
        format!("{}: {exited:?} {}", self.name, workload.proc().stderr())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let pids = self.pids();
        drop(self.workload.take());
        for pid in pids {
            for left in [
                format!("perf-{pid}.map"),
                format!("jit-{pid}.dump"),
                format!(".java_pid{pid}"),
            ] {
                // Most write one of them at most.
                let _ = std::fs::remove_file(Path::new("/tmp").join(left));
            }
        }
    }
}
