//! What the daemon costs and how true its profiles are, compared with named peers on the same
//! seconds.
//!
//! One file or folder a bench: it has its arguments, measures, and prints. Numbers inform; they
//! never decide a pass. Everything started here ends with the command.
#![forbid(unsafe_code)]

mod accuracy;
mod contained;
mod cost;
mod derive;
mod fleet;
mod load;
mod machine;
mod micro;
mod offcpu;
mod overhead;
mod overview;
mod peers;
mod programs;
mod report;
mod rings;
mod runtimes;
mod scans;
mod shares;
mod stacks;
mod tracing;
mod unwind;
mod watched;
mod zoo;

use clap::{CommandFactory, Parser, Subcommand};
use inferno::collapse::Collapse;
use std::path::{Path, PathBuf};

#[derive(Parser)]
#[command(
    name = "benches",
    version,
    about = "Measure what fleetprofd costs and how accurate its profiles are, compared with other \
        profilers",
    after_help = "\
Examples:
  benches list                 all benches
  benches overhead --quick     cost compared with peers, about four minutes; as root
  benches overhead --markdown  the tables of docs/measurements
  benches accuracy --quick     how accurate its profiles are; as root
  benches runtimes             stacks of language runtimes, compared with perf
  benches zoo --no-perf        stacks of ordinary programs
  benches derive               how accurate derived unwind rows are
  benches scans                how accurate scanned callers are; as root
  benches micro                hot paths, about a minute
  benches fleet                1,000 simulated hosts push into one collector
  benches queries              how long a collector takes to answer
  benches drilldown            what a page of Grafana's Profiles Drilldown costs a collector
  benches senders              what OTLP and pprof cost a collector, next to agents
  benches overview             how often it finds a change, and how often it reports one in error
  benches rights               what TLS, certificates, tokens and scopes cost a collector
  make bench                   micro, accuracy, overhead, offcpu, fleet and queries"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The benches. A new one is a module with `Args` and `run`, and a line here and in [`main`].
#[derive(Subcommand)]
enum Command {
    /// Measure CPU time, wake-ups, memory and complete stacks of the daemon on a mixed load,
    /// compared with other profilers
    Overhead(overhead::Args),
    /// Compare shares with true ones, stacks with perf's, totals with cpu.stat
    Accuracy(accuracy::Args),
    /// Measure the unwinder on recorded samples of the running programs; needs root
    Unwind {
        /// Seconds to record
        #[arg(long, default_value_t = 10)]
        seconds: u64,
    },
    /// Measure how long the sampler thread works for a second of a large host, from rings in memory
    Rings {
        /// Number of CPUs, all busy
        #[arg(long, default_value_t = 512)]
        cpus: u32,
        /// Samples a second on each CPU
        #[arg(long, default_value_t = 99)]
        rate_hz: u32,
    },
    /// Measure what an off-CPU capture costs threads that switch 100,000 times a second, compared
    /// with perf; needs root
    Offcpu(offcpu::Args),
    /// Measure complete stacks and named frames of Node, Java, PHP, Erlang, Python, C and Rust,
    /// compared with perf
    Runtimes(runtimes::Args),
    /// Measure stacks of ordinary programs in twenty languages from their first sample, compared
    /// with perf; needs root
    Zoo(zoo::Args),
    /// Compare unwind rows derived from instructions with those that compilers wrote
    Derive(derive::Args),
    /// Compare scanned callers of generated code with known ones; needs root
    Scans(scans::Args),
    /// Measure one collector with simulated hosts: rows, CPU, bytes, memory, time to acknowledge
    Fleet(fleet::Args),
    /// Measure queries to a collector with an hour of 50 hosts, and of twice as many
    Queries(fleet::QueriesArgs),
    /// Measure the calls of Grafana's Profiles Drilldown to a collector with an hour of 50 hosts,
    /// compared with those of its own page
    Drilldown(fleet::DrilldownArgs),
    /// Compare profiles that come as OTLP and pprof with the same samples from agents
    Senders(fleet::SendersArgs),
    /// Measure how often and how soon the overview finds a change, and how often it is wrong
    Overview(overview::Args),
    /// Compare a fleet over plain loopback with the same fleet over TLS, certificates, tokens and a
    /// scope
    Rights(fleet::RightsArgs),
    /// Measure hot paths: nanoseconds and allocations for each record, sample, frame, row
    Micro(micro::Args),
    /// List the benches
    List,
    /// Fold the text of `perf script` in FILE, as one of the peers does
    #[command(hide = true)]
    Fold { file: PathBuf },
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Overhead(args) => overhead::run(&args),
        Command::Accuracy(args) => accuracy::run(&args),
        Command::Unwind { seconds } => unwind::run(std::time::Duration::from_secs(seconds.max(1))),
        Command::Rings { cpus, rate_hz } => {
            print!("{}", rings::run(cpus, rate_hz)?);
            Ok(())
        }
        Command::Offcpu(args) => offcpu::run(&args),
        Command::Runtimes(args) => runtimes::run(&args),
        Command::Zoo(args) => zoo::run(&args),
        Command::Derive(args) => derive::run(&args),
        Command::Scans(args) => scans::run(&args),
        Command::Fleet(args) => fleet::run(&args),
        Command::Queries(args) => fleet::queries(&args),
        Command::Drilldown(args) => fleet::drilldown(&args),
        Command::Senders(args) => fleet::senders(&args),
        Command::Overview(args) => overview::run(&args),
        Command::Rights(args) => fleet::rights(&args),
        Command::Micro(args) => micro::run(&args),
        Command::List => {
            list();
            Ok(())
        }
        Command::Fold { file } => fold(&file),
    }
}

fn list() {
    let command = Cli::command();
    let benches = command
        .get_subcommands()
        .filter(|bench| !bench.is_hide_set() && bench.get_name() != "list");
    for bench in benches {
        let about = bench.get_about().map(ToString::to_string);
        println!("{:<10} {}", bench.get_name(), about.unwrap_or_default());
    }
}

fn fold(file: &Path) -> anyhow::Result<()> {
    let mut folder = inferno::collapse::perf::Folder::default();
    folder.collapse_file_to_stdout(Some(file))?;
    Ok(())
}
