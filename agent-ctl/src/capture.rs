//! `agent-ctl capture`: records a new profile, by any event and at any rate, on one host or through
//! a collector on many (`record.rs`).
//!
//! Progress is shown only on a terminal, in one line. Afterwards the cost and notices for the
//! reader are printed on standard error. Ctrl-C ends the capture and keeps what there is; a second
//! Ctrl-C abandons it.

use crate::delivery::Rendering;
use crate::exit::{self, fail};
use crate::fleet_capture::Fleet;
use crate::look::Look;
use crate::output::{choose, is_stdout};
use crate::peer::Connection;
use crate::record::{self, Recording, Sampling};
use crate::render::Format;
use crate::select::{Frames, Labels};
use crate::terminal::Out;
use anyhow::Result;
use std::path::PathBuf;

/// Captures on one host, or on many of a fleet.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Coverage, losses and cost go to standard error. Ctrl-C ends the capture and keeps what was sampled \
so far. Exit code 6: the capture ended early, most samples were lost, or there are no samples and \
nothing is written. With a fleet also: the profile misses some of the selected hosts.

Examples:
  agent-ctl capture --unit api --duration 10s --rate 997 -o api.html
  agent-ctl capture --pid 4711 --event page-faults --period 1 -o faults.svg
  agent-ctl capture --cgroup /system.slice/db.service --before 5m --reason INC-12 -o db.pb.gz
  agent-ctl capture --event tracepoint:syscalls:sys_enter_openat --duration 5s
  agent-ctl capture --unit api --lines --duration 10s -o api.svg
  agent-ctl --collector c1 capture --select 'unit=\"api.service\",zone=\"a\"' --max-hosts 20 -o api.html")]
pub struct Args {
    #[command(flatten)]
    sampling: Sampling,
    #[command(flatten)]
    fleet: Fleet,
    #[command(flatten)]
    labels: Labels,
    #[command(flatten)]
    frames: Frames,
    /// Labels to group samples by, as in `agent-ctl profile`
    #[arg(
        long,
        value_name = "LABEL,…",
        value_delimiter = ',',
        help_heading = "Output"
    )]
    group_by: Vec<String>,
    /// Format [default: by the file name, or folded]
    #[arg(long, value_enum, help_heading = "Output")]
    format: Option<Format>,
    /// Print capture metadata as JSON; the profile goes to the file of -o
    #[arg(long, help_heading = "Output", requires = "output")]
    json: bool,
    /// File to write, `-` for standard output [default: -]
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    output: Option<PathBuf>,
    #[command(flatten)]
    look: Look,
    /// Suppress progress and the coverage summary
    #[arg(short, long, help_heading = "Output")]
    quiet: bool,
}

/// Runs the command.
pub async fn run(out: &Out, connection: &Connection, args: Args) -> Result<u8> {
    let output = args.output.unwrap_or_else(|| PathBuf::from("-"));
    if args.json && is_stdout(&output) {
        return Err(fail(
            exit::USAGE,
            "failed to use --json: standard output cannot take the profile too\ngive a file with -o",
        ));
    }
    let recording = Recording {
        rendering: Rendering::Profile(choose(out, args.format, &output)?),
        sampling: args.sampling,
        fleet: args.fleet,
        labels: args.labels,
        frames: args.frames,
        group_by: args.group_by,
        json: args.json,
        output,
        look: args.look,
        quiet: args.quiet,
    };
    record::record(out, connection, recording).await
}
