//! `benches zoo`: runs ordinary programs of the distribution in many languages, a few seconds each,
//! two at a time. It reports how many of their stacks are complete and how many leaves named, from
//! their first sample on, next to `perf record --call-graph dwarf` and `perf record -g` on the same
//! seconds.

mod programs;

use crate::machine::Machine;
use crate::report::{self, Table, count, percent};
use crate::shares::{self, Shares};
use crate::watched::Watched;
use anyhow::{Context, bail};
use programs::{INPUTS, PROGRAMS, Program};
use rustix::process::Signal;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testkit::process::{Proc, program as find, run as run_to_end};
use testkit::require::is_root;
use testkit::{Cgroup, clock};

/// Programs that run at once.
const AT_ONCE: usize = 2;
/// Longest that preparing one may take.
const PREPARE_LIMIT: Duration = Duration::from_secs(300);
/// Longest that perf may take to end, and to print. What it printed by then counts.
const RECORD_LIMIT: Duration = Duration::from_secs(60);
const SCRIPT_SECONDS: u64 = 60;
/// Reasons shown of each row.
const REASONS: usize = 3;

/// What `benches zoo` takes.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  benches zoo                        all programs that are installed, about 20 minutes
  benches zoo --no-perf              only the daemon, about 5 minutes
  benches zoo --only rustc --only 'go build'
  benches zoo --packages             packages to install: apt-get install $(benches zoo --packages)
  benches zoo --markdown             the table of docs/measurements")]
pub struct Args {
    /// Seconds to run each program
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(3..=60))]
    seconds: u64,
    /// Run only this program, by its name in the table; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Run without perf, whose output takes most of the time
    #[arg(long)]
    no_perf: bool,
    /// Print the Debian packages of the programs and exit
    #[arg(long)]
    packages: bool,
    /// Override a key of the daemon's configuration; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Print a Markdown table
    #[arg(long)]
    markdown: bool,
    /// Write the report as JSON to this file; `-` prints it instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Everything measured.
#[derive(Debug, Serialize)]
struct Report {
    machine: Machine,
    settings: Vec<String>,
    seconds: u64,
    /// What did not run, and why.
    missing: Vec<String>,
    rows: Vec<Row>,
}

/// One program.
#[derive(Clone, Debug, Default, Serialize)]
struct Row {
    name: String,
    language: String,
    daemon: Shares,
    perf_dwarf: Option<Shares>,
    perf_frame_pointers: Option<Shares>,
}

/// Runs the bench and prints its report.
///
/// # Errors
/// When not root, or when the daemon fails.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if args.packages {
        let mut packages: Vec<&str> = PROGRAMS.iter().map(|program| program.package).collect();
        packages.sort_unstable();
        packages.dedup();
        println!("{}", packages.join(" "));
        return Ok(());
    }
    let named = |name: &String| PROGRAMS.iter().any(|program| program.name == name);
    if let Some(unknown) = args.only.iter().find(|name| !named(name)) {
        bail!("failed to find program `{unknown}`: use a name from the table");
    }
    if !is_root() {
        bail!("failed to sample every CPU: run this as root");
    }
    if !args.no_perf {
        find("perf").context("failed to find the program `perf`: install it, or use --no-perf")?;
    }
    let _live = testkit::Live::take();
    let report = measure(args)?;
    report::put(&report, args.json.as_deref(), |report| {
        text(report, args.markdown)
    })
}

fn measure(args: &Args) -> anyhow::Result<Report> {
    let dir = tempfile::tempdir()?;
    let shell = |script: &str| {
        let mut command = Command::new("bash");
        command.current_dir(dir.path()).args(["-c", script]);
        command
    };
    run_to_end(&mut shell(INPUTS), PREPARE_LIMIT).ok();
    let mut missing = Vec::new();
    let chosen = |program: &&Program| {
        args.only.is_empty() || args.only.iter().any(|name| name == program.name)
    };
    let mut there: Vec<&Program> = Vec::new();
    for program in PROGRAMS.iter().filter(chosen) {
        if find(program.needs).is_none() {
            let Program { name, package, .. } = program;
            missing.push(format!("{name}: not installed (package `{package}`)"));
            continue;
        }
        let prepared = run_to_end(&mut shell(program.prepare), PREPARE_LIMIT);
        match prepared.code {
            Some(0) => there.push(program),
            _ => missing.push(format!("{}: {}", program.name, prepared.stderr.trim())),
        }
    }
    let daemon = Watched::start("stack-copy", &args.set);
    let mut rows = Vec::new();
    let mut cgroups = Vec::new();
    let begin = clock::unix_ns();
    for turn in there.chunks(AT_ONCE) {
        let names: Vec<&str> = turn.iter().map(|program| program.name).collect();
        eprintln!("{}", names.join(", "));
        let run = |program: &&Program| Running::start(program, dir.path(), !args.no_perf);
        let running: Vec<Running> = turn.iter().map(run).collect();
        std::thread::sleep(Duration::from_secs(args.seconds));
        for running in &running {
            std::fs::write(running.cgroup.dir().join("cgroup.kill"), "1")?;
        }
        for (program, mut running) in turn.iter().zip(running) {
            let [dwarf, frame_pointers] = running.stop_perf();
            rows.push(Row {
                name: program.name.to_owned(),
                language: program.language.to_owned(),
                daemon: Shares::default(),
                perf_dwarf: dwarf,
                perf_frame_pointers: frame_pointers,
            });
            cgroups.push(running.cgroup);
        }
    }
    let all = daemon.client().since(begin);
    for (row, cgroup) in rows.iter_mut().zip(&cgroups) {
        for sample in &all.in_cgroup(cgroup.path()).samples {
            row.daemon.add_ours(sample);
        }
    }
    rows.push(Row::sum(&rows));
    Ok(Report {
        machine: Machine::here(),
        settings: args.set.clone(),
        seconds: args.seconds,
        missing,
        rows,
    })
}

/// A program at work.
struct Running {
    cgroup: Cgroup,
    /// Ends it when dropped.
    _loops: Proc,
    perf: Vec<(Proc, PathBuf)>,
}

/// The two ways of perf.
const PERF: [(&str, &[&str]); 2] = [
    ("dwarf", &["--call-graph", "dwarf,16384"]),
    ("frame-pointers", &["-g"]),
];

impl Running {
    fn start(program: &Program, dir: &Path, with_perf: bool) -> Running {
        let cgroup = Cgroup::new("fleetprof-bench-zoo");
        let mut perf = Vec::new();
        for (name, way) in PERF.iter().filter(|_| with_perf) {
            let data = dir.join(format!("{name}-{}.data", cgroup.path().replace('/', "")));
            let mut command = Command::new("perf");
            command.args(["record", "-q", "-F", "99", "-a", "-e", "cpu-clock"]);
            command.args(["-G", cgroup.path().trim_start_matches('/')]);
            command.args(*way).arg("-o").arg(&data);
            perf.push((Proc::spawn(&mut command, dir, name), data));
        }
        if with_perf {
            std::thread::sleep(crate::peers::SETTLE);
        }
        let forever = format!("while :; do {}; done >/dev/null 2>&1", program.run);
        let mut command = cgroup.command("bash");
        command.current_dir(dir).args(["-c", &forever]);
        Running {
            _loops: Proc::spawn(&mut command, dir, "zoo"),
            cgroup,
            perf,
        }
    }

    /// What perf saw, each way.
    fn stop_perf(&mut self) -> [Option<Shares>; 2] {
        for (perf, _) in &mut self.perf {
            perf.signal(Signal::INT);
        }
        let mut shares = self.perf.drain(..).map(|(mut perf, data)| {
            perf.wait(RECORD_LIMIT)?;
            let shares = of_perf(&data);
            // Copies of stacks are large.
            let _ = std::fs::remove_file(data);
            Some(shares)
        });
        [shares.next().flatten(), shares.next().flatten()]
    }
}

/// What perf recorded; what it does not print in a minute does not count.
fn of_perf(data: &Path) -> Shares {
    let mut script = Command::new("timeout");
    script.args([&SCRIPT_SECONDS.to_string(), "perf"]);
    script
        .args(testkit::perf::SCRIPT)
        .args(["--no-inline", "-i"]);
    let limit = Duration::from_secs(SCRIPT_SECONDS * 2);
    let printed = run_to_end(script.arg(data), limit);
    let mut shares = Shares::default();
    for sample in testkit::perf::parse(&printed.text()) {
        shares.add_theirs(&sample);
    }
    if shares.samples == 0 {
        eprintln!("perf printed no sample: {}", printed.stderr.trim());
    }
    shares
}

impl Row {
    /// All rows together.
    fn sum(rows: &[Row]) -> Row {
        let mut sum = Row {
            name: "all".to_owned(),
            ..Row::default()
        };
        for row in rows {
            sum.daemon.extend(&row.daemon);
            let peers = [
                (&mut sum.perf_dwarf, &row.perf_dwarf),
                (&mut sum.perf_frame_pointers, &row.perf_frame_pointers),
            ];
            for (sum, row) in peers {
                if let Some(row) = row {
                    sum.get_or_insert_default().extend(row);
                }
            }
        }
        sum
    }
}

fn text(report: &Report, markdown: bool) -> String {
    let mut text = report::machine(&report.machine);
    text += &format!(
        "\n{} s of each program, from its first sample on, two at a time\n\n",
        report.seconds
    );
    for missing in &report.missing {
        text += &format!("not there: {missing}\n");
    }
    let table = table(&report.rows);
    text += &match markdown {
        true => table.markdown(),
        false => table.text(),
    };
    text
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        "program",
        "language",
        "samples",
        "complete",
        "by its names",
        "perf, dwarf",
        "perf -g",
        "leaves named",
        "perf",
        "frames named",
        "missing, by reason",
    ]);
    for row in rows {
        let of = |shares: &Option<Shares>, part: fn(&Shares) -> u64| {
            percent(shares.as_ref().and_then(|it| it.of_samples(part(it))))
        };
        let ours = &row.daemon;
        table.row([
            row.name.clone(),
            row.language.clone(),
            count(Some(ours.samples)),
            percent(ours.whole()),
            percent(ours.of_samples(ours.complete_by_names)),
            of(&row.perf_dwarf, |it| it.complete_by_names),
            of(&row.perf_frame_pointers, |it| it.complete_by_names),
            percent(ours.of_samples(ours.leaves_named)),
            of(&row.perf_dwarf, |it| it.leaves_named),
            percent(ours.named()),
            shares::cell(&ours.leaf_reasons(REASONS)),
        ]);
    }
    table
}
