//! What the daemon costs on a loaded machine, beside `perf` on the same load.
//!
//! Numbers inform; they never decide a pass. Everything started here ends with the command.
#![forbid(unsafe_code)]

mod cost;
mod load;
mod machine;
mod overhead;
mod peers;
mod tracing;

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

/// How long the daemon is watched by default: its memory is asked for after ten minutes.
const DEFAULT_SECONDS: u64 = 600;
/// How long with `--quick`: enough for some thousand samples on two CPUs.
const QUICK_SECONDS: u64 = 30;

#[derive(Parser)]
#[command(
    version,
    about = "Measures what fleetprofd costs, beside named peers on the same load"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// CPU, wake-ups, syscalls, allocations and memory of the daemon on a mixed load, beside perf
    Overhead(OverheadArgs),
    /// Folds the text of `perf script`, as one of the peers does; reads FILE
    #[command(hide = true)]
    Fold { file: PathBuf },
}

#[derive(clap::Args)]
struct OverheadArgs {
    /// Seconds that the daemon is watched
    #[arg(long, default_value_t = DEFAULT_SECONDS, conflicts_with = "quick")]
    seconds: u64,
    /// Half a minute: a first look
    #[arg(long)]
    quick: bool,
    /// Overrides a key of the daemon's configuration; may be given again
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Writes the report as JSON to this file too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Overhead(args) => {
            let seconds = if args.quick {
                QUICK_SECONDS
            } else {
                args.seconds
            };
            let report = overhead::run(Duration::from_secs(seconds.max(5)), &args.set)?;
            print!("{}", overhead::table(&report));
            let text = serde_json::to_string_pretty(&report)?;
            match args.json {
                Some(file) => std::fs::write(file, text)?,
                None => println!("\n{text}"),
            }
        }
        Command::Fold { file } => {
            let text = String::from_utf8_lossy(&std::fs::read(file)?).into_owned();
            for (stack, count) in fixtures::perf::fold(&fixtures::perf::parse(&text)) {
                println!("{stack} {count}");
            }
        }
    }
    Ok(())
}
