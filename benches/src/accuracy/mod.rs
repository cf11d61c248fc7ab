//! `benches accuracy`: profiles against what is known to be true, and against perf's on the same
//! seconds. It prints distances beside the error that chance alone gives; it decides nothing.

mod agreement;
mod split;
mod whole;

use crate::machine::Machine;
use crate::peers::RATE_HZ;
use crate::report::{self, Table, count, number, percent};
use agreement::Agreement;
use anyhow::{Context, bail};
use serde::Serialize;
use split::Split;
use std::path::PathBuf;
use std::time::Duration;
use testkit::require::is_root;
use whole::Whole;

/// Length of each part by default.
const DEFAULT_SECONDS: u64 = 60;
/// The same with `--quick`.
const QUICK_SECONDS: u64 = 15;
/// Workloads end on their own after 150 s.
const SECONDS_MAX: u64 = 120;
/// Most seconds with stack copies in perf: it takes longer to unwind them than to record.
const WHOLE_SECONDS_MAX: u64 = 30;
/// Rows shown of the functions and of the programs.
const ROWS: usize = 12;

/// What `benches accuracy` takes.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  benches accuracy --quick             a first look, about three minutes
  benches accuracy --seconds 120       smaller errors
  benches accuracy --part split        only known shares and cpu.stat
  benches accuracy --json report.json  for scripts")]
pub struct Args {
    /// Seconds of each part; at most 30 for stack copies
    #[arg(long, default_value_t = DEFAULT_SECONDS, conflicts_with = "quick")]
    seconds: u64,
    /// Run each part for 15 seconds
    #[arg(long)]
    quick: bool,
    /// Run only this part: `split` (known shares, cpu.stat) or `stacks` (compared with perf's stack
    /// copies)
    #[arg(long, value_parser = ["split", "stacks"])]
    part: Option<String>,
    /// Override a key of the daemon's configuration; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Write the report as JSON to this file; `-` prints it instead of the tables
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Everything measured.
#[derive(Debug, Serialize)]
struct Report {
    machine: Machine,
    settings: Vec<String>,
    split: Option<Split>,
    stacks: Option<Whole>,
}

/// Runs the bench and prints its report.
///
/// # Errors
/// When not root, when perf or a compiler is missing, or when the bench itself fails.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if !is_root() {
        bail!("failed to sample every CPU: run this as root");
    }
    for name in ["gcc", "perf"] {
        testkit::process::program(name).with_context(|| {
            format!(
                "failed to find the program \
            `{name}`: install it"
            )
        })?;
    }
    let seconds = if args.quick {
        QUICK_SECONDS
    } else {
        args.seconds.clamp(5, SECONDS_MAX)
    };
    let wants = |part: &str| args.part.as_deref().is_none_or(|only| only == part);
    let _live = testkit::Live::take();
    let mut report = Report {
        machine: Machine::here(),
        settings: args.set.clone(),
        split: None,
        stacks: None,
    };
    if wants("split") {
        eprintln!("known shares: {seconds} s");
        report.split = Some(split::measure(Duration::from_secs(seconds), &args.set)?);
    }
    if wants("stacks") {
        let seconds = seconds.min(WHOLE_SECONDS_MAX);
        eprintln!("stacks next to perf's: {seconds} s, then unwinding in perf");
        report.stacks = Some(whole::measure(Duration::from_secs(seconds), &args.set)?);
    }
    report::put(&report, args.json.as_deref(), text)
}

fn text(report: &Report) -> String {
    let mut text = report::machine(&report.machine);
    if let Some(split) = &report.split {
        text += &format!(
            "\nknown shares over {:.0} s at {RATE_HZ} Hz; truth: the programs' own CPU clocks, and cpu.stat\n",
            split.seconds
        );
        text += &shares(split).text();
        text.push('\n');
        text += &totals(split).text();
    }
    if let Some(whole) = &report.stacks {
        text += &format!(
            "\nstacks over {:.0} s next to `perf record --call-graph dwarf,16384`; load: {}\n",
            whole.seconds,
            whole.load.join(", ")
        );
        if !whole.unwound_all {
            text += "  perf was stopped while it unwound: compared is the time it came to\n";
        }
        text += &programs(whole).text();
        text.push('\n');
        text += &functions(&whole.agreement).text();
        text.push('\n');
        text += &agreed(&whole.agreement).text();
    }
    text
}

/// Shares of functions and cgroups: error in per cent of the whole and in standard errors.
fn shares(split: &Split) -> Table {
    let mut table = Table::new(&[
        "share of",
        "truth",
        "fleetprofd",
        "error",
        "in std errors",
        "perf",
        "error",
        "in std errors",
    ]);
    for row in &split.shares {
        let mut cells = vec![row.name.clone(), percent(Some(row.truth))];
        for seen in [&row.daemon, &row.perf] {
            cells.push(percent(Some(seen.share)));
            cells.push(format!("{:+.2} %", (seen.share - row.truth) * 100.0));
            cells.push(format!("{:+.1}", (seen.share - row.truth) / seen.error));
        }
        table.row(cells);
    }
    table
}

fn totals(split: &Split) -> Table {
    let mut table = Table::new(&[
        "CPU time in all",
        "cpu.stat, s",
        "fleetprofd, s",
        "ratio",
        "perf, s",
        "ratio",
        "1/sqrt(n)",
    ]);
    for row in &split.totals {
        table.row([
            row.name.clone(),
            number(Some(row.cpu_stat_s), 3),
            number(Some(row.daemon_s), 3),
            number(Some(row.daemon_s / row.cpu_stat_s), 4),
            number(Some(row.perf_s), 3),
            number(Some(row.perf_s / row.cpu_stat_s), 4),
            number(Some(1.0 / (row.samples.max(1) as f64).sqrt()), 4),
        ]);
    }
    table
}

fn programs(whole: &Whole) -> Table {
    let mut table = Table::new(&["complete stacks", "fleetprofd", "of", "perf", "of"]);
    for row in whole.programs.iter().take(ROWS) {
        table.row([
            row.name.clone(),
            percent(row.daemon.share()),
            count(Some(row.daemon.stacks)),
            percent(row.perf.share()),
            count(Some(row.perf.stacks)),
        ]);
    }
    table
}

fn functions(agreement: &Agreement) -> Table {
    let mut table = Table::new(&["function", "fleetprofd", "perf", "in std errors"]);
    for row in agreement.top.iter().take(ROWS) {
        table.row([
            row.function.clone(),
            percent(Some(row.daemon)),
            percent(Some(row.perf)),
            format!("{:+.1}", (row.daemon - row.perf) / row.error),
        ]);
    }
    table
}

fn agreed(agreement: &Agreement) -> Table {
    let mut table = Table::new(&["agreement", "measured", "by chance at most", "ratio"]);
    table.row([
        "pairs of leaf and caller".to_owned(),
        percent(Some(agreement.pairs)),
        percent(Some(agreement.pairs_by_chance)),
        number(Some(agreement.pairs / agreement.pairs_by_chance), 3),
    ]);
    for (name, common) in [
        ("top 20 functions by leaf", agreement.top_common),
        ("top 20 functions with callees", agreement.top_total_common),
    ] {
        table.row([
            name.to_owned(),
            format!("{common} of {}", agreement::TOP),
            format!("{}", agreement::TOP),
            number(Some(common as f64 / agreement::TOP as f64), 3),
        ]);
    }
    table
}
