//! `benches scans`: how right the callers are that are scanned for, of generated code of whose
//! frame nothing is known, on code whose callers are known.
//!
//! PHP's compiler runs its code in the frame of a function that has tables: the daemon compares by
//! itself, one frame in 16. A program of LuaJIT has been written so that its callers are known.

use crate::machine::Machine;
use crate::report::{self, Table, count, percent};
use crate::watched::Watched;
use anyhow::{Context, bail};
use profile::{FrameKind, StackEnd};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testkit::process::{program as find, run as run_to_end};
use testkit::require::is_root;
use testkit::{Cgroup, ViewSample, clock};

const PHP: &str = include_str!("work.php");
const LUAJIT: &str = include_str!("luajit.c");

/// Name, argument, and the innermost callers of compiled code: of the second one `lua_call` and its
/// way into the virtual machine leave no frame.
const LUAJIT_ROWS: [(&str, &str, &[&str]); 2] = [
    ("LuaJIT, one caller", "flat", &["lua_pcall", "run"]),
    ("LuaJIT, nested", "nested", &["inner"]),
];

/// Longest time for anything beyond the seconds asked for.
const SPARE: Duration = Duration::from_secs(60);

/// See the file.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  benches scans                 about a minute; as root
  benches scans --seconds 300   more results
This needs php8.2-cli for the PHP rows, and gcc and libluajit-5.1-dev for LuaJIT.")]
pub struct Args {
    /// Seconds of each row
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(2..=3600))]
    seconds: u64,
    /// Write the report as JSON to this file; `-` prints it instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Serialize)]
struct Report {
    machine: Machine,
    rows: Vec<Row>,
    /// What did not run, and why.
    missing: Vec<String>,
}

#[derive(Default, Serialize)]
struct Row {
    name: &'static str,
    /// Callers found and compared.
    compared: u64,
    wrong: u64,
    /// Stacks where none was found; `None` where that is not known.
    none: Option<u64>,
}

/// Runs and prints.
///
/// # Errors
/// When not root, or when nothing can run.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if !is_root() {
        bail!("failed to sample every CPU: run this as root");
    }
    let _live = testkit::Live::take();
    let dir = tempfile::tempdir()?;
    let daemon = Watched::start("stack-copy", &[]);
    let (mut rows, mut missing) = (Vec::new(), Vec::new());
    for (name, compiler) in [("PHP, traces", "tracing"), ("PHP, functions", "function")] {
        match php(dir.path(), compiler, args.seconds) {
            Ok(command) => rows.push(compared_by_the_daemon(name, &daemon, command, args)),
            Err(error) => missing.push(format!("{name}: {error:#}")),
        }
    }
    match luajit(dir.path()) {
        Ok(program) => {
            for (name, how, callers) in LUAJIT_ROWS {
                let row = compared_here(name, &daemon, (&program, how), callers, args);
                rows.push(row);
            }
        }
        Err(error) => missing.push(format!("LuaJIT: {error:#}")),
    }
    if rows.is_empty() {
        bail!("nothing can run: {}", missing.join("; "));
    }
    let machine = Machine::here();
    let report = Report {
        machine,
        rows,
        missing,
    };
    report::put(&report, args.json.as_deref(), text)
}

fn php(dir: &Path, compiler: &str, seconds: u64) -> anyhow::Result<Command> {
    let program = find("php8.2").context("failed to find the program `php8.2`: install it")?;
    let script = dir.join("work.php");
    std::fs::write(&script, PHP)?;
    let mut command = Command::new(program);
    // 0x20: a perf map, by which its code is recognized. Younger files than two seconds would not
    // be compiled.
    command
        .args(["-d", "opcache.enable_cli=1", "-d", "opcache.jit_debug=0x20"])
        .args(["-d", "opcache.file_update_protection=0"])
        .args(["-d", "opcache.jit_buffer_size=64M", "-d"])
        .arg(format!("opcache.jit={compiler}"))
        .arg(script)
        .arg(seconds.to_string())
        .current_dir(dir);
    Ok(command)
}

fn luajit(dir: &Path) -> anyhow::Result<PathBuf> {
    find("gcc").context("failed to find the program `gcc`: install it")?;
    let (source, program) = (dir.join("luajit.c"), dir.join("luajit-known"));
    std::fs::write(&source, LUAJIT)?;
    let mut build = Command::new("gcc");
    build
        .args(["-O2", "-I/usr/include/luajit-2.1", "-o"])
        .arg(&program)
        .arg(source)
        .arg("-lluajit-5.1");
    let built = run_to_end(&mut build, SPARE);
    let error = built.stderr.lines().next().unwrap_or_default();
    anyhow::ensure!(built.code == Some(0), "needs libluajit-5.1-dev: {error}");
    Ok(program)
}

fn limit(args: &Args) -> Duration {
    Duration::from_secs(args.seconds) + SPARE
}

fn compared_by_the_daemon(
    name: &'static str,
    daemon: &Watched,
    mut command: Command,
    args: &Args,
) -> Row {
    let counters = || {
        let client = daemon.client();
        ["checked", "wrong"].map(|it| client.counter(&format!("fleetprof_unwind_scans_{it}_total")))
    };
    let before = counters();
    run_to_end(&mut command, limit(args)).ok();
    let after = counters();
    Row {
        name,
        compared: after[0] - before[0],
        wrong: after[1] - before[1],
        none: None,
    }
}

fn compared_here(
    name: &'static str,
    daemon: &Watched,
    (program, how): (&Path, &str),
    callers: &[&str],
    args: &Args,
) -> Row {
    let cgroup = Cgroup::new("fleetprof-bench-scans");
    let begin = clock::unix_ns();
    let mut command = cgroup.command(program);
    command.arg(args.seconds.to_string()).arg(how);
    run_to_end(&mut command, limit(args)).ok();
    let mut row = Row {
        name,
        none: Some(0),
        ..Row::default()
    };
    for sample in &daemon
        .client()
        .since(begin)
        .in_cgroup(cgroup.path())
        .samples
    {
        match (sample.end, caller(sample)) {
            (_, None) => {}
            (StackEnd::Scanned, Some(found)) => {
                row.compared += sample.count;
                let right = found.starts_with(callers);
                row.wrong += if right { 0 } else { sample.count };
            }
            _ => row.none = row.none.map(|none| none + sample.count),
        }
    }
    row
}

/// The functions from the caller of generated code on; `None` without generated code.
fn caller(sample: &ViewSample) -> Option<[&str; 2]> {
    let mut frames = sample.frames.iter();
    frames.find(|frame| frame.kind == FrameKind::Jit)?;
    let mut next = || frames.next().map_or("", |frame| &*frame.function);
    Some([next(), next()])
}

fn text(report: &Report) -> String {
    let mut table = Table::new(&["code", "compared", "wrong", "right", "none found"]);
    for row in &report.rows {
        let right = (row.compared > 0).then(|| 1.0 - row.wrong as f64 / row.compared as f64);
        table.row([
            row.name.to_owned(),
            count(Some(row.compared)),
            count(Some(row.wrong)),
            percent(right),
            count(row.none),
        ]);
    }
    let mut text = report::machine(&report.machine) + "\n" + &table.text();
    for missing in &report.missing {
        text += &format!("\nleft out: {missing}");
    }
    text
}
