//! `agent-ctl pins`: the minutes that triggers pinned, and their profiles.

use crate::client::Client;
use crate::exit::{self, fail};
use crate::form::Form;
use crate::output::Output;
use crate::peer::{Connection, Peer};
use crate::profile_cmd::group_by;
use crate::render;
use crate::select::{Frames, Labels};
use crate::terminal::{Out, Table, clean};
use crate::when::{Clock, rfc3339};
use crate::{facts, summary, units};
use anyhow::Result;
use proto::agent::{Pin, QueryProfileRequest, TimeRange};
use serde::Serialize;
use std::time::Duration;

/// Lists the minutes that triggers pinned, or shows the profile of one.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
A trigger of the agent's configuration pins the recorder's minutes around the moment it fires; they
outlive the retention, restarts and reboots.

Examples:
  agent-ctl pins
  agent-ctl pins --json | jq '.pins[] | select(.trigger == \"api-throttled\")'
  agent-ctl pins show 12 -o incident.html"
)]
pub struct Args {
    #[command(subcommand)]
    command: Option<PinsCommand>,
    #[command(flatten)]
    form: Form,
}

#[derive(Debug, clap::Subcommand)]
enum PinsCommand {
    /// Save or print the profile of a pin
    #[command(after_help = "\
Exit code 6: there are no samples in the pin, or none that are selected, and nothing is written.

Examples:
  agent-ctl pins show 12 -o incident.html
  agent-ctl pins show 12 --unit api.service --format folded
  agent-ctl pins show 12 --captured -o off-cpu.svg")]
    Show(Box<Show>),
}

#[derive(Debug, clap::Args)]
struct Show {
    /// Its number in the list
    #[arg(value_name = "PIN", value_parser = clap::value_parser!(u64).range(1..))]
    id: u64,
    /// What the trigger's capture found instead of the recorder's minutes
    #[arg(long)]
    captured: bool,
    #[command(flatten)]
    labels: Labels,
    #[command(flatten)]
    frames: Frames,
    /// Labels to tell samples apart by, as `agent-ctl profile --group-by` has them
    #[arg(
        long,
        value_name = "LABEL,…",
        value_delimiter = ',',
        help_heading = "Output"
    )]
    group_by: Vec<String>,
    #[command(flatten)]
    output: Output,
    /// Do not say what the profile covers and misses
    #[arg(short, long, help_heading = "Output")]
    quiet: bool,
}

/// Runs the command.
pub async fn run(out: &Out, connection: &Connection, args: Args) -> Result<u8> {
    let instead = "a collector does not list pins: ask the agent of the host with --agent";
    let agent = connection.agent_only("pins", instead)?;
    let mut client = Client::connect(connection, &agent).await?;
    let clock = client.clock().await?;
    match args.command {
        Some(PinsCommand::Show(args)) => show(out, &mut client, &clock, &agent, *args).await,
        None => list(out, &mut client, &clock, args.form).await,
    }
}

async fn list(out: &Out, client: &mut Client, clock: &Clock, form: Form) -> Result<u8> {
    let pins = client.pins().await?;
    if form.is_json() {
        let pins = pins.iter().map(Json::of).collect();
        out.write_json(&All { pins })?;
        return Ok(exit::OK);
    }
    if pins.is_empty() {
        note!("agent-ctl: no minutes are pinned: no trigger has fired, or there is none");
        return Ok(exit::OK);
    }
    out.write(&table(&pins, clock).show(out))?;
    Ok(exit::OK)
}

fn table(pins: &[Pin], clock: &Clock) -> Table {
    let headings = [
        ">PIN", "FIRED", "TRIGGER", ">MINUTES", ">SIZE", "CAPTURE", "CGROUP", "WHY",
    ];
    let mut table = Table::new(&headings);
    for pin in pins {
        let cgroup = match pin.cgroup.as_str() {
            "" => "host".into(),
            path => clean(path),
        };
        let length = units::duration(length(pin));
        let length = match pin.open {
            true => format!("{length}…"),
            false => length,
        };
        let capture = match (pin.capture_id, pin.capture_bytes) {
            (0, 0) => "-".to_owned(),
            (_, 0) => "none kept".to_owned(),
            (_, bytes) => units::bytes(bytes),
        };
        table.row([
            pin.id.to_string(),
            clock.show(pin.fired_unix_ns),
            clean(&pin.trigger).into_owned(),
            length,
            units::bytes(pin.bytes),
            capture,
            cgroup.into_owned(),
            clean(&pin.cause).into_owned(),
        ]);
    }
    table
}

fn length(pin: &Pin) -> Duration {
    let range = pin.range.unwrap_or_default();
    let length = range.end_unix_ns.saturating_sub(range.start_unix_ns);
    Duration::from_nanos(u64::try_from(length).unwrap_or(0))
}

async fn show(
    out: &Out,
    client: &mut Client,
    clock: &Clock,
    agent: &Peer,
    args: Show,
) -> Result<u8> {
    let format = args.output.format(out)?;
    let pins = client.pins().await?;
    let Some(pin) = pins.iter().find(|pin| pin.id == args.id) else {
        let message = format!(
            "failed to show pin `{}`: there is none of this number\n`agent-ctl pins` lists them",
            args.id
        );
        return Err(fail(exit::FAILURE, message));
    };
    if args.captured && pin.capture_bytes == 0 {
        let message = format!(
            "failed to show what was captured with pin `{}`: nothing is kept of a capture\n\
             leave --captured out for the recorder's minutes",
            args.id
        );
        return Err(fail(exit::FAILURE, message));
    }
    let range: TimeRange = pin.range.unwrap_or_default();
    let group_by = group_by(&args.group_by, format, agent);
    let request = QueryProfileRequest {
        range: Some(range),
        matchers: args.labels.matchers()?,
        frame_filters: args.frames.filters()?,
        group_by: group_by.clone(),
        times: format.needs_times(),
        pin_capture: if args.captured { args.id } else { 0 },
        ..QueryProfileRequest::default()
    };
    let profile = client.query(request).await?;
    if profile.samples.is_empty() {
        note!("agent-ctl: no samples in the pin: nothing written");
        return Ok(exit::PARTIAL);
    }
    let summary = summary::line(&profile, clock);
    let coverage = summary::coverage(&profile.info.coverage);
    let mut labels = group_by;
    labels.retain(|label| label != "*");
    let look = args.output.look.clone();
    let facts = vec![
        facts::fact("Pin", "trigger", &pin.trigger),
        facts::fact("Pin", "cause", &pin.cause),
        facts::fact("Pin", "cgroup", &pin.cgroup),
        facts::fact("Pin", "fired", rfc3339(pin.fired_unix_ns)),
    ];
    // On a thread of its own, so that Ctrl-C is heard while a large flame graph is laid out.
    let written = move || {
        let extra = render::Extra {
            root_labels: labels,
            fleet: None,
            facts,
        };
        render::write_with(&profile, format, &look, extra)
    };
    let bytes = tokio::task::spawn_blocking(written).await??;
    args.output.deliver(&bytes)?;
    if !args.quiet {
        note!("{}: {}", clean(&pin.trigger), clean(&pin.cause));
        note!("{summary}");
        if let Some(coverage) = coverage {
            note!("coverage {coverage}");
        }
    }
    Ok(exit::OK)
}

#[derive(Serialize)]
struct All<'a> {
    pins: Vec<Json<'a>>,
}

#[derive(Serialize)]
struct Json<'a> {
    id: u64,
    trigger: &'a str,
    cause: &'a str,
    /// Absent: the host.
    cgroup: Option<&'a str>,
    fired: String,
    from: String,
    to: String,
    bytes: u64,
    /// Windows are still added to it.
    open: bool,
    capture_id: Option<u64>,
    capture_bytes: u64,
}

impl<'a> Json<'a> {
    fn of(pin: &'a Pin) -> Json<'a> {
        let range = pin.range.unwrap_or_default();
        Json {
            id: pin.id,
            trigger: &pin.trigger,
            cause: &pin.cause,
            cgroup: Some(pin.cgroup.as_str()).filter(|path| !path.is_empty()),
            fired: rfc3339(pin.fired_unix_ns),
            from: rfc3339(range.start_unix_ns),
            to: rfc3339(range.end_unix_ns),
            bytes: pin.bytes,
            open: pin.open,
            capture_id: Some(pin.capture_id).filter(|id| *id != 0),
            capture_bytes: pin.capture_bytes,
        }
    }
}
