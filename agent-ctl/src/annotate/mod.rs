//! `agent-ctl annotate`: one function by source line, and by instruction.
//!
//! Past windows only have functions, so the command records for a while, with lines and
//! instructions, as `capture` does (`record.rs` talks to the agent or collector). The result is
//! summed up here (`tally.rs`). This command, never the agent, reads sources (`source.rs`) and code
//! (`code.rs`) on this machine.

mod code;
mod regular;
mod show;
mod source;
mod tally;

use crate::delivery::Rendering;
use crate::fleet_capture::Fleet;
use crate::form::Form;
use crate::look::{Look, MeasureBy};
use crate::peer::{Connection, Target};
use crate::record::{self, LINES_FOR, Recording, Sampling};
use crate::select::{Frames, Labels};
use crate::terminal::{Out, clean};
use anyhow::Result;
use code::Place;
use profile::{Info, Profile, Value, key};
use show::Listing;
use source::Sources;
use std::path::PathBuf;
use std::time::Duration;
use tally::Tally;

/// Shows which lines and instructions of a function take the time.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Percentages refer to the samples of the function. SELF counts the line or instruction itself, \
TOTAL adds what it calls. Line numbers come from debug information that the agent finds, source \
text from this machine. Instructions (x86-64 only) come from the file of a running process on this \
machine, or from --binary. Coverage and losses go to standard error.
Exit code 2: no sample has the function, or several functions match. Exit code 6: there are no \
samples, the recording ended early, or most samples were lost.

Examples:
  agent-ctl annotate handle_request --unit api
  agent-ctl annotate handle_request --pid 4711 --for 30s --instructions
  agent-ctl annotate '^db::.*::decode$' --source-map /build/api=$PWD
  agent-ctl --collector c1 annotate decode --unit api.service --binary target/release/api --json")]
pub struct Args {
    /// Function: its name, or a part or pattern that matches no other function
    #[arg(value_name = "FUNCTION")]
    function: String,
    /// How long to record [default: 10s]
    #[arg(
        long = "for",
        value_name = "DURATION",
        value_parser = crate::when::duration,
        help_heading = "Time"
    )]
    length: Option<Duration>,
    /// Samples a second on each CPU, 1 to 9999 [default: depends on the event]
    #[arg(
        short,
        long,
        value_name = "HZ",
        value_parser = crate::number::within::<u32>(1, 9_999),
        help_heading = "Time"
    )]
    rate: Option<u32>,
    #[command(flatten)]
    labels: Labels,
    #[command(flatten)]
    sources: Sources,
    /// Show instructions too [default: only if there are no source lines]
    #[arg(long, help_heading = "Source")]
    instructions: bool,
    /// Program or library to read instructions from [default: the file that the processes run]
    #[arg(long, value_name = "FILE", help_heading = "Source")]
    binary: Option<PathBuf>,
    #[command(flatten)]
    form: Form,
    /// Suppress progress and the coverage summary
    #[arg(short, long, help_heading = "Output")]
    quiet: bool,
}

/// Which function is shown, and how.
struct FunctionView {
    function: String,
    sources: Sources,
    instructions: bool,
    place: Place,
    json: bool,
    out: Out,
}

/// Labels that are kept: the process leads to its file.
pub const LABELS: [&str; 1] = [key::PID];

/// Runs the command.
pub async fn run(out: &Out, connection: &Connection, args: Args) -> Result<u8> {
    let peer = connection.peer()?;
    let local = !peer.is_collector() && matches!(peer.target, Target::Unix(_));
    let view = FunctionView {
        function: args.function,
        sources: args.sources,
        instructions: args.instructions,
        place: Place {
            named: args.binary,
            local,
        },
        json: args.form.is_json(),
        out: *out,
    };
    let recording = Recording {
        sampling: Sampling {
            rate: args.rate,
            ..Sampling::of_lines(args.length.unwrap_or(LINES_FOR))
        },
        command: None,
        fleet: Fleet::default(),
        labels: args.labels,
        frames: Frames::default(),
        group_by: LABELS.map(str::to_owned).to_vec(),
        rendering: Rendering::Instructions(Box::new(move |profile| view.write(profile))),
        json: false,
        output: PathBuf::from("-"),
        look: Look::default(),
        quiet: args.quiet,
    };
    record::record(out, connection, recording).await
}

impl FunctionView {
    /// What is shown of a profile. What is missing is said.
    ///
    /// # Errors
    /// When no function is meant, or it is not clear which.
    fn write(&self, profile: &Profile) -> Result<Vec<u8>> {
        let (unit, measure) = measure(&profile.info);
        let function = tally::find(profile, &self.function, &measure)?;
        let tally = Tally::of(profile, function, &measure);
        let listing = Listing::of(&tally, unit, &self.sources, &self.place, self.instructions);
        for note in listing.notes() {
            note!("agent-ctl: {}", clean(note));
        }
        let text = match self.json {
            true => listing.json()?,
            false => listing.text(&self.out),
        };
        Ok(text.into_bytes())
    }
}

/// What is counted, and how.
fn measure(info: &Info) -> (&'static str, impl Fn(Value) -> u64 + use<>) {
    let by = Look::default().measure(info);
    let unit = match by {
        MeasureBy::Count => "samples",
        MeasureBy::Weight => "weight",
    };
    let value = move |value: Value| match by {
        MeasureBy::Count => value.count,
        MeasureBy::Weight => value.weight,
    };
    (unit, value)
}
