//! `agent-ctl pins`: the minutes that triggers pinned, and their profiles, of one agent or of all that a collector keeps.

use crate::client::Client;
use crate::collector::Collector;
use crate::connection::{self, Route, Transport};
use crate::exit::{self, fail};
use crate::form::Form;
use crate::output::Output;
use crate::peer::{Connection, Kind, Peer};
use crate::profile_cmd::group_by;
use crate::render;
use crate::select::{Frames, Labels};
use crate::terminal::{Out, Table, clean};
use crate::when::{Clock, rfc3339};
use crate::{facts, summary, units};
use anyhow::Result;
use profile::Profile;
use proto::ProfileAssembler;
use proto::agent::{Pin, QueryProfileRequest};
use proto::collector::pin_service_client::PinServiceClient;
use proto::collector::{ListHostPinsRequest, PinProfileRequest};
use serde::Serialize;
use std::time::Duration;

/// Lists the minutes that triggers pinned, or shows the profile of one.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
A trigger of the agent's configuration pins the recorder's minutes around the moment it fires; they
outlive the retention, restarts and reboots. Agents bring them to their collector, where they outlive the
host; a collector numbers them anew.

Examples:
  agent-ctl pins
  agent-ctl pins --collector c1 --host web-1 --trigger api-throttled
  agent-ctl pins --json | jq '.pins[] | select(.trigger == \"api-throttled\")'
  agent-ctl pins show 12 -o incident.html"
)]
pub struct Args {
    #[command(subcommand)]
    command: Option<PinsCommand>,
    /// Pins of this host alone, by name or id; of a collector
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// Pins of this trigger alone
    #[arg(long, value_name = "NAME")]
    trigger: Option<String>,
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
  agent-ctl pins show 12 --captured -o off-cpu.svg
  agent-ctl --collector c1 pins show 3 -o incident.html")]
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
    let peer = connection.peer()?;
    if args.host.is_some() && !peer.is_collector() {
        let message = "failed to ask for pins of another host: an agent has its own alone\n\
                       give --collector HOST:PORT, or leave --host out";
        return Err(fail(exit::USAGE, message.to_owned()));
    }
    let (mut place, clock) = Place::connect(connection, &peer).await?;
    match args.command {
        Some(PinsCommand::Show(args)) => show(out, &mut place, &clock, &peer, *args).await,
        None => list(out, &mut place, &clock, &args).await,
    }
}

/// Where pins are kept.
enum Place {
    Agent(Client),
    Collector(PinServiceClient<Transport>, Route),
}

/// A pin of an agent or a collector.
struct Held {
    /// Its number there.
    id: u64,
    /// Name and id, of a collector's.
    host: Option<(String, String)>,
    pin: Pin,
}

/// Largest message taken. Unit: bytes. A list is cut at 3 MiB.
const MESSAGE_BYTES_MAX: usize = 8 << 20;

impl Place {
    async fn connect(connection: &Connection, peer: &Peer) -> Result<(Place, Clock)> {
        if !peer.is_collector() {
            let mut client = Client::connect(connection, peer).await?;
            let clock = client.clock().await?;
            return Ok((Place::Agent(client), clock));
        }
        let clock = Collector::connect(connection, peer).await?.clock().await?;
        let (transport, route) = connection::open(connection, peer).await?;
        let service = PinServiceClient::new(transport).max_decoding_message_size(MESSAGE_BYTES_MAX);
        Ok((Place::Collector(service, route), clock))
    }

    /// Newest first, and how many more there are. `id` 0: all numbers.
    async fn pins(&mut self, id: u64, host: &str, trigger: &str) -> Result<(Vec<Held>, u64)> {
        match self {
            Place::Agent(client) => {
                let mut pins = client.pins().await?;
                pins.retain(|pin| {
                    (id == 0 || pin.id == id) && (trigger.is_empty() || pin.trigger == trigger)
                });
                let own = |pin: Pin| Held {
                    id: pin.id,
                    host: None,
                    pin,
                };
                Ok((pins.into_iter().map(own).collect(), 0))
            }
            Place::Collector(service, route) => {
                let request = ListHostPinsRequest {
                    host: host.to_owned(),
                    trigger: trigger.to_owned(),
                    limit: u32::MAX,
                    id,
                };
                let answer = route.answer("list pins", service.list(request)).await?;
                let of_host = |found: proto::collector::HostPin| Held {
                    id: found.id,
                    host: Some((found.hostname, found.host_id)),
                    pin: found.pin.unwrap_or_default(),
                };
                let pins = answer.pins.into_iter().map(of_host).collect();
                Ok((pins, answer.left_out))
            }
        }
    }

    async fn profile(&mut self, held: &Held, request: QueryProfileRequest) -> Result<Profile> {
        const WHAT: &str = "show the pin";
        let (service, route) = match self {
            Place::Agent(client) => return client.query(request).await,
            Place::Collector(service, route) => (service, route),
        };
        let call = service.profile(PinProfileRequest {
            id: held.id,
            captured: request.pin_capture != 0,
            matchers: request.matchers,
            frame_filters: request.frame_filters,
            group_by: request.group_by,
            times: request.times,
        });
        let mut stream = route.answer(WHAT, call).await?;
        let mut assembler = ProfileAssembler::new();
        while let Some(response) = route.part(WHAT, stream.message()).await? {
            assembler.push(response.chunk.unwrap_or_default())?;
        }
        Ok(assembler.finish()?)
    }
}

async fn list(out: &Out, place: &mut Place, clock: &Clock, args: &Args) -> Result<u8> {
    let (host, trigger) = (args.host.as_deref(), args.trigger.as_deref());
    let asked = place.pins(0, host.unwrap_or(""), trigger.unwrap_or(""));
    let (pins, left_out) = asked.await?;
    if left_out > 0 {
        note!("agent-ctl: {left_out} older pins are not listed: narrow by --host or --trigger");
    }
    if args.form.is_json() {
        let pins = pins.iter().map(Json::of).collect();
        out.write_json(&All { pins, left_out })?;
        return Ok(exit::OK);
    }
    if pins.is_empty() {
        note!("agent-ctl: no minutes are pinned: no trigger has fired, or there is none");
        return Ok(exit::OK);
    }
    let with_hosts = matches!(place, Place::Collector(..));
    out.write(&table(&pins, clock, with_hosts).show(out))?;
    Ok(exit::OK)
}

fn table(pins: &[Held], clock: &Clock, with_hosts: bool) -> Table {
    let mut headings = vec![
        ">PIN", "FIRED", "TRIGGER", ">MINUTES", ">SIZE", "CAPTURE", "CGROUP", "WHY",
    ];
    if with_hosts {
        headings.insert(2, "HOST");
    }
    let mut table = Table::new(&headings);
    for held in pins {
        let pin = &held.pin;
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
        let mut row = vec![
            held.id.to_string(),
            clock.show(pin.fired_unix_ns),
            clean(&pin.trigger).into_owned(),
            length,
            units::bytes(pin.bytes),
            capture,
            cgroup.into_owned(),
            clean(&pin.cause).into_owned(),
        ];
        if let Some((name, id)) = &held.host {
            row.insert(
                2,
                clean(if name.is_empty() { id } else { name }).into_owned(),
            );
        }
        table.row(row);
    }
    table
}

fn length(pin: &Pin) -> Duration {
    let range = pin.range.unwrap_or_default();
    let length = range.end_unix_ns.saturating_sub(range.start_unix_ns);
    Duration::from_nanos(u64::try_from(length).unwrap_or(0))
}

async fn show(out: &Out, place: &mut Place, clock: &Clock, peer: &Peer, args: Show) -> Result<u8> {
    let format = args.output.format(out)?;
    // A list may be cut, so it is asked for by its number; a collector of an older version lists all.
    let (pins, _) = place.pins(args.id, "", "").await?;
    let Some(held) = pins.into_iter().find(|held| held.id == args.id) else {
        let message = format!(
            "failed to show pin `{}`: there is none of this number\n`agent-ctl pins` lists them",
            args.id
        );
        return Err(fail(exit::FAILURE, message));
    };
    let pin = &held.pin;
    if args.captured && pin.capture_bytes == 0 {
        let message = format!(
            "failed to show what was captured with pin `{}`: nothing is kept of a capture\n\
             leave --captured out for the recorder's minutes",
            args.id
        );
        return Err(fail(exit::FAILURE, message));
    }
    // A pin is of one host, whoever keeps it.
    let one = Peer {
        kind: Kind::Agent,
        ..peer.clone()
    };
    let group_by = group_by(&args.group_by, format, &one);
    let request = QueryProfileRequest {
        range: Some(pin.range.unwrap_or_default()),
        matchers: args.labels.matchers()?,
        frame_filters: args.frames.filters()?,
        group_by: group_by.clone(),
        times: format.needs_times(),
        pin_capture: if args.captured { args.id } else { 0 },
        ..QueryProfileRequest::default()
    };
    let profile = place.profile(&held, request).await?;
    if profile.samples.is_empty() {
        note!("agent-ctl: no samples in the pin: nothing written");
        return Ok(exit::PARTIAL);
    }
    let summary = summary::line(&profile, clock);
    let coverage = summary::coverage(&profile.info.coverage);
    let mut labels = group_by;
    labels.retain(|label| label != "*");
    let look = args.output.look.clone();
    let mut facts = vec![
        facts::fact("Pin", "trigger", &pin.trigger),
        facts::fact("Pin", "cause", &pin.cause),
        facts::fact("Pin", "cgroup", &pin.cgroup),
        facts::fact("Pin", "fired", rfc3339(pin.fired_unix_ns)),
    ];
    if let Some((name, id)) = &held.host {
        facts.insert(0, facts::fact("Pin", "host", name));
        facts.insert(1, facts::fact("Pin", "host id", id));
    }
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
    /// Older ones of a collector's that found no room in its answer.
    left_out: u64,
}

#[derive(Serialize)]
struct Json<'a> {
    id: u64,
    /// Of a collector's pin; absent of an agent's.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host_id: Option<&'a str>,
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
    /// Of an agent's: its collector has it too.
    #[serde(skip_serializing_if = "Option::is_none")]
    at_collector: Option<bool>,
}

impl<'a> Json<'a> {
    fn of(held: &'a Held) -> Json<'a> {
        let (pin, host) = (&held.pin, held.host.as_ref());
        let range = pin.range.unwrap_or_default();
        Json {
            id: held.id,
            host: host.map(|(name, _)| name.as_str()),
            host_id: host.map(|(_, id)| id.as_str()),
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
            at_collector: host.is_none().then_some(pin.at_collector),
        }
    }
}
