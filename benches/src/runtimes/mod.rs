//! `benches runtimes`: language runtimes, C and Rust all at once, half of them in namespaces of
//! their own, and how much of each the daemon sees whole and by name, beside `perf record -g` on
//! the same seconds.

mod parts;

use crate::machine::Machine;
use crate::peers::SETTLE;
use crate::report::{self, Table, count, number, percent};
use crate::shares::{self, Shares};
use crate::watched::Watched;
use anyhow::{Context, bail};
use proto::agent::{QueryProfileRequest, TimeRange};
use serde::Serialize;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use testkit::perf::PerfRecord;
use testkit::require::is_root;
use testkit::runtimes::Running;
use testkit::{Cgroup, clock};

/// Length by default.
const DEFAULT_SECONDS: u64 = 120;
/// Workloads end on their own after 600 s.
const SECONDS_MAX: u64 = 300;
/// Before samples count: compilers of runtimes are at work, and maps are written.
const WARM_UP: Duration = Duration::from_secs(15);
/// How often a JVM is asked for its map, as an operator would: it writes none by itself.
const MAP_EVERY: Duration = Duration::from_secs(10);
/// Longest that perf may take to print: two minutes of samples are a few seconds of work.
const SCRIPT_LIMIT: Duration = Duration::from_secs(180);
/// Reasons shown of each row.
const REASONS: usize = 3;

/// What `benches runtimes` takes.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  benches runtimes                     two minutes
  benches runtimes --seconds 20        a first look
  benches runtimes --markdown          the table of docs/measurements
  benches runtimes --json report.json  for scripts")]
pub struct Args {
    /// Seconds to measure, after a warm-up of 15 s
    #[arg(long, default_value_t = DEFAULT_SECONDS)]
    seconds: u64,
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
    seconds: f64,
    /// What did not run, and why.
    missing: Vec<String>,
    rows: Vec<Row>,
}

/// One runtime, in both profiles.
#[derive(Clone, Debug, Default, Serialize)]
struct Row {
    /// Its name, and `alone` in namespaces of its own.
    name: String,
    /// As the daemon saw it.
    daemon: Shares,
    /// As perf saw it.
    perf: Shares,
}

impl Row {
    /// All rows together.
    fn sum(name: &str, rows: &[Row]) -> Row {
        let mut sum = Row {
            name: name.to_owned(),
            ..Row::default()
        };
        for row in rows {
            sum.daemon.extend(&row.daemon);
            sum.perf.extend(&row.perf);
        }
        sum
    }
}

/// Runs the bench and prints its report.
///
/// # Errors
/// When not root, when perf is missing, or when the daemon fails.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if !is_root() {
        bail!("failed to sample every CPU: run this as root");
    }
    testkit::process::program("perf").context("failed to find the program `perf`: install it")?;
    let seconds = args.seconds.clamp(5, SECONDS_MAX);
    let _live = testkit::Live::take();
    let report = measure(Duration::from_secs(seconds), &args.set)?;
    report::put(&report, args.json.as_deref(), |report| {
        text(report, args.markdown)
    })
}

fn measure(length: Duration, settings: &[String]) -> anyhow::Result<Report> {
    // Before the programs: what they map is then seen as it is mapped.
    let daemon = Watched::start("stack-copy", settings);
    let cgroup = Cgroup::new("fleetprof-bench-runtimes");
    let parts::Parts { running, missing } = parts::start(&cgroup);
    eprintln!("{} programs, warming up", running.len());
    busy(&running, WARM_UP);
    let dir = tempfile::tempdir()?;
    let perf = PerfRecord::start(dir.path());
    std::thread::sleep(SETTLE);
    eprintln!("{} s", length.as_secs());
    let begin = clock::unix_ns();
    busy(&running, length);
    let end = clock::unix_ns();
    let offset = clock::wall_minus_mono();
    let request = QueryProfileRequest {
        range: Some(TimeRange {
            start_unix_ns: begin,
            end_unix_ns: end,
        }),
        group_by: vec!["*".to_owned()],
        ..QueryProfileRequest::default()
    };
    let ours = daemon.client().query_until(&request, end);
    // perf reads maps as it prints, and those in namespaces only while their processes are there.
    let pids: Vec<Vec<u32>> = running.iter().map(Running::pids).collect();
    let mut theirs = perf.stop_of(&pids.concat(), SCRIPT_LIMIT);
    let covered = ours.info.start_unix_ns..ours.info.start_unix_ns + ours.info.duration_ns as i64;
    theirs.retain(|sample| covered.contains(&(sample.mono_ns as i64 + offset)));

    let mut rows: Vec<Row> = Vec::new();
    for (part, pids) in running.iter().zip(&pids) {
        let path = part.cgroup.path();
        let mut daemon = Shares::default();
        for sample in &ours.in_cgroup(path).samples {
            daemon.add_ours(sample);
        }
        let mut perf = Shares::default();
        for sample in theirs.iter().filter(|sample| pids.contains(&sample.pid)) {
            perf.add_theirs(sample);
        }
        let name = path.rsplit('/').next().unwrap_or(path).replace('-', ", ");
        rows.push(Row { name, daemon, perf });
    }
    rows.sort_by(|left, right| left.name.cmp(&right.name));
    rows.push(Row::sum("all", &rows));
    Ok(Report {
        machine: Machine::here(),
        settings: settings.to_vec(),
        seconds: ours.info.duration_ns as f64 * 1e-9,
        missing,
        rows,
    })
}

/// Lets the programs run, with maps written now and then.
fn busy(running: &[Running], length: Duration) {
    let end = Instant::now() + length;
    loop {
        running.iter().for_each(Running::write_map);
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(MAP_EVERY));
    }
}

fn text(report: &Report, markdown: bool) -> String {
    let mut text = report::machine(&report.machine);
    text += &format!(
        "\ncomplete stacks and named frames over {:.0} s, next to `perf record -F 99 -g -a` and `perf script`\n\n",
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
        "runtime",
        "samples",
        "complete",
        "perf",
        "ratio",
        "frames named",
        "perf",
        "ratio",
        "missing, by reason",
    ]);
    for Row { name, daemon, perf } in rows {
        let ratio = |ours: Option<f64>, theirs: Option<f64>| {
            let ratio = ours.zip(theirs.filter(|&share| share > 0.0));
            number(ratio.map(|(ours, theirs)| ours / theirs), 2)
        };
        table.row([
            name.clone(),
            count(Some(daemon.samples)),
            percent(daemon.whole()),
            percent(perf.whole()),
            ratio(daemon.whole(), perf.whole()),
            percent(daemon.named()),
            percent(perf.named()),
            ratio(daemon.named(), perf.named()),
            shares::cell(&daemon.reasons(REASONS)),
        ]);
    }
    table
}
