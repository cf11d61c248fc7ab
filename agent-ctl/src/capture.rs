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
use crate::output::{choose, is_stdout, with_lines};
use crate::peer::Connection;
use crate::record::{self, Recording, Sampling, Words};
use crate::render::Format;
use crate::sampleable;
use crate::select::{Frames, Labels};
use crate::terminal::Out;
use anyhow::Result;
use clap::ValueHint;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Captures on one host, or on many of a fleet.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Coverage, losses and cost go to standard error. Ctrl-C ends the capture and keeps what was sampled \
so far. Exit code 6: the capture ended early, most samples were lost, or there are no samples and \
nothing is written. With a fleet also: the profile misses some of the selected hosts.

A COMMAND runs in a cgroup of its own on this machine, as you: under sudo as whoever called sudo. \
The capture starts before it and ends with it. The exit code is the command's (128 and the signal \
if one ended it, 126 or 127 if it cannot be run); the codes of the capture count if it ends with 0.

Examples:
  agent-ctl capture --unit api --duration 10s --rate 997 -o api.html
  agent-ctl capture --pid 4711 --event page-faults --period 1 -o faults.svg
  agent-ctl capture --cgroup /system.slice/db.service --before 5m --reason INC-12 -o db.pb.gz
  agent-ctl capture --event tracepoint:syscalls:sys_enter_openat --duration 5s
  agent-ctl capture --rate 997 -o build.html -- make -j4
  agent-ctl capture --list-events 'sched:*'
  agent-ctl capture --unit api --lines --duration 10s -o api.svg
  agent-ctl capture --unit api --lines -d 60s --format pprof -o default.pgo  # for go build -pgo
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
    /// Format [default: by the file name; else top on a terminal, folded elsewhere]
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
    /// List the events that can be captured on this machine whose names match GLOB, and exit;
    /// `*` stands for any characters
    #[arg(
        long,
        value_name = "GLOB",
        num_args = 0..=1,
        default_missing_value = "*",
        conflicts_with = "command",
        help_heading = "Capture"
    )]
    list_events: Option<String>,
    /// Run the command as root where sudo made this command root [default: as whoever called sudo]
    #[arg(long, requires = "command", help_heading = "Command")]
    as_root: bool,
    /// Command to run and capture, with everything it starts, until it ends
    #[arg(last = true, value_name = "COMMAND", value_hint = ValueHint::CommandWithArguments, help_heading = "Command")]
    command: Vec<OsString>,
}

/// Runs the command.
pub async fn run(out: &Out, connection: &Connection, mut args: Args) -> Result<u8> {
    if let Some(glob) = &args.list_events {
        return sampleable::list(out, connection, glob);
    }
    let output = args.output.unwrap_or_else(|| PathBuf::from("-"));
    if args.json && is_stdout(&output) {
        return Err(fail(
            exit::USAGE,
            "failed to use --json: standard output cannot take the profile too\ngive a file with -o",
        ));
    }
    let command = (!args.command.is_empty()).then_some(Words {
        words: args.command,
        as_root: args.as_root,
    });
    if command.is_some() {
        refuse_with_command(out, &output, &args.sampling)?;
    }
    let format = with_lines(args.format, args.sampling.lines, &output, &args.look);
    let recording = Recording {
        command,
        rendering: Rendering::Profile(choose(out, format, &output, &mut args.look)?),
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

/// Refuses what does not go with a command.
fn refuse_with_command(out: &Out, output: &Path, sampling: &Sampling) -> Result<()> {
    let why = match (is_stdout(output) && !out.is_terminal(), sampling.before) {
        (true, _) => {
            "failed to capture a command: standard output is for what it prints\ngive a file with -o"
        }
        (_, Some(_)) => {
            "failed to use --before with a command: before it starts there is nothing of it\nleave \
             --before out"
        }
        _ => return Ok(()),
    };
    Err(fail(exit::USAGE, why))
}
