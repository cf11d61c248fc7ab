//! `agent-ctl fleet-capture` and `fleet-captures`: captures over the fleet as commands of their own.

use super::{Delivery, Fleet, list};
use crate::exit;
use crate::form::Form;
use crate::peer::Connection;
use crate::profile_cmd::{choose, group_by};
use crate::render::{Format, Look};
use crate::select::{Frames, Labels};
use crate::terminal::Out;
use anyhow::Result;
use proto::agent::CaptureRequest;
use std::path::PathBuf;
use std::time::Duration;

/// Captures on the hosts of a fleet.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
How far hosts are and what is missing goes to standard error. Exit code 6: there is a profile, and not all
hosts that were selected are in it.

Examples:
  agent-ctl --collector c1 fleet-capture --select 'unit=\"api.service\",zone=\"a\"' -o api.svg
  agent-ctl --collector c1 fleet-capture --select 'host=~\"db.*\"' --event page-faults --duration 30s -o db.html")]
pub struct Args {
    #[command(flatten)]
    fleet: Fleet,
    /// How long
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "10s",
        value_parser = crate::when::duration,
        help_heading = "Capture"
    )]
    duration: Duration,
    /// What is sampled: `cpu-clock`, `cycles`, `page-faults`, `off-cpu`, `tracepoint:CATEGORY:NAME`, …; left
    /// out: CPU time
    #[arg(
        long,
        value_name = "EVENT",
        default_value = "",
        hide_default_value = true,
        help_heading = "Capture"
    )]
    event: String,
    /// Samples a second on each CPU; left out: as the event is best sampled
    #[arg(
        long,
        value_name = "HZ",
        default_value_t = 0,
        hide_default_value = true,
        value_parser = clap::value_parser!(u32).range(0..=9999),
        help_heading = "Capture"
    )]
    rate: u32,
    /// Add what the flight recorders have of the time before
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = crate::when::duration,
        help_heading = "Capture"
    )]
    before: Option<Duration>,
    /// Why, for the list of captures
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true,
        help_heading = "Capture"
    )]
    reason: String,
    #[command(flatten)]
    labels: Labels,
    #[command(flatten)]
    frames: Frames,
    /// Labels to tell samples apart by, `*` for all, `none` for none
    #[arg(
        long,
        value_name = "LABEL,…",
        value_delimiter = ',',
        help_heading = "Output"
    )]
    group_by: Vec<String>,
    /// Format; left out, the file name says it, or else folded
    #[arg(long, value_enum, help_heading = "Output")]
    format: Option<Format>,
    /// Say what each host did as JSON on standard output; the profile goes to the file of -o
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// File to write, `-` for standard output
    #[arg(
        short,
        long,
        value_name = "FILE",
        default_value = "-",
        help_heading = "Output"
    )]
    output: PathBuf,
    #[command(flatten)]
    look: Look,
    /// Do not say how far hosts are and what is missing
    #[arg(short, long, help_heading = "Output")]
    quiet: bool,
}

/// Runs `fleet-capture`.
pub async fn run(out: &Out, connection: &Connection, args: Args) -> Result<u8> {
    let peer = connection.collector_only("captures of a fleet")?;
    let format = choose(out, args.format, &args.output)?;
    let group_by = group_by(&args.group_by, format, &peer);
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let request = CaptureRequest {
        matchers: args.labels.matchers()?,
        frame_filters: args.frames.filters()?,
        group_by: group_by.clone(),
        duration_ns: ns(args.duration),
        event: args.event,
        rate_hz: args.rate,
        before_ns: args.before.map_or(0, ns),
        who: std::env::var("USER").unwrap_or_default(),
        reason: args.reason,
        ..CaptureRequest::default()
    };
    let delivery = Delivery {
        format,
        output: args.output,
        look: args.look,
        root_labels: group_by,
        json: args.json,
        quiet: args.quiet,
    };
    super::capture(out, connection, &peer, &args.fleet, request, delivery).await
}

/// Lists captures over the fleet, or ends one.
#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// End the capture of this id with what there is
    #[arg(long, value_name = "ID")]
    cancel: Option<u64>,
    #[command(flatten)]
    form: Form,
}

/// Runs `fleet-captures`.
pub async fn run_list(out: &Out, connection: &Connection, args: ListArgs) -> Result<u8> {
    let peer = connection.collector_only("captures of a fleet")?;
    match args.cancel {
        Some(id) => list::cancel(connection, &peer, id).await?,
        None => list::print(out, connection, &peer, args.form.is_json()).await?,
    }
    Ok(exit::OK)
}
