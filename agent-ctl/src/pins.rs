//! `agent-ctl pins`: lists the minutes that triggers pinned, and gets their profiles, from one
//! agent or from all pins stored by a collector.

use crate::client::Client;
use crate::collector::{Collector, Samples};
use crate::connection::{self, Route, Transport};
use crate::exit::{self, fail};
use crate::form::Form;
use crate::group_by;
use crate::output::Output;
use crate::peer::{Connection, Kind, Peer};
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
use std::collections::BTreeSet;
use std::str::FromStr;
use std::time::Duration;

/// Lists the minutes that triggers pinned, or shows the profile of one.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
When a trigger in the agent's configuration fires, it pins the recorder's minutes around that \
moment. Pins outlive the retention, restarts and reboots. Agents upload them to their collector, \
where they outlive the host. The name of a pin is HOST/NUMBER; at its agent the number is enough.

Examples:
  agent-ctl pins
  agent-ctl pins --collector c1 --host web-1 --trigger api-throttled
  agent-ctl pins --json | jq '.pins[] | select(.trigger == \"api-throttled\")'
  agent-ctl pins show 12 -o incident.html
  agent-ctl --collector c1 pins show web-1/12 -o incident.html"
)]
pub struct Args {
    #[command(subcommand)]
    command: Option<PinsCommand>,
    /// Show only pins of this host, by name or id (with --collector)
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// Show only pins of this trigger
    #[arg(long, value_name = "NAME")]
    trigger: Option<String>,
    #[command(flatten)]
    form: Form,
}

#[derive(Debug, clap::Subcommand)]
enum PinsCommand {
    /// Save or print the profile of a pin
    #[command(after_help = "\
Exit code 6: the pin has no samples, or none match; nothing is written.

Examples:
  agent-ctl pins show 12 -o incident.html
  agent-ctl pins show 12 --unit api.service --format folded
  agent-ctl pins show 12 --captured -o off-cpu.svg
  agent-ctl --collector c1 pins show web-1/12 -o incident.html")]
    Show(Box<Show>),
}

#[derive(Debug, clap::Args)]
struct Show {
    /// Name of the pin in the list: HOST/NUMBER, or only the number
    #[arg(value_name = "PIN")]
    pin: Name,
    /// Show the trigger's capture instead of the recorder's minutes
    #[arg(long)]
    captured: bool,
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
    #[command(flatten)]
    output: Output,
    /// Suppress the coverage summary
    #[arg(short, long, help_heading = "Output")]
    quiet: bool,
}

/// Runs the command.
pub async fn run(out: &Out, connection: &Connection, args: Args) -> Result<u8> {
    let peer = connection.peer()?;
    if args.host.is_some() && !peer.is_collector() {
        let message = "failed to list pins of another host: an agent has only its own\ngive \
            --collector HOST:PORT, or leave --host out";
        return Err(fail(exit::USAGE, message.to_owned()));
    }
    let (mut source, clock) = PinSource::connect(connection, &peer).await?;
    match args.command {
        Some(PinsCommand::Show(args)) => show(out, &mut source, &clock, &peer, *args).await,
        None => list(out, &mut source, &clock, &args).await,
    }
}

/// Name of a pin, which is the same at its agent and at every collector.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Name {
    /// Name or id; `None`: whoever is asked has one such pin.
    host: Option<String>,
    /// Its number on the host.
    number: u64,
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Name, String> {
        let (host, number) = match text.rsplit_once('/') {
            Some((host, number)) if !host.is_empty() => (Some(host.to_owned()), number),
            _ => (None, text),
        };
        let number = number.parse().ok().filter(|&number| number > 0);
        let number = number.ok_or("expected HOST/NUMBER, as in `agent-ctl pins`")?;
        Ok(Name { host, number })
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.host {
            Some(host) => write!(f, "{host}/{}", self.number),
            None => write!(f, "{}", self.number),
        }
    }
}

/// Where pins are kept.
enum PinSource {
    /// With the name of its host.
    Agent(Client, String),
    Collector(PinServiceClient<Transport>, Route),
}

/// A pin of an agent or a collector.
struct StoredPin {
    /// Its number there.
    id: u64,
    /// Name of its host.
    hostname: String,
    /// Id of the host, of a collector's.
    host_id: Option<String>,
    pin: Pin,
}

impl StoredPin {
    /// What it is called everywhere.
    fn name(&self) -> Name {
        let host = match (self.hostname.as_str(), &self.host_id) {
            ("", Some(id)) => id,
            (name, _) => name,
        };
        Name {
            host: Some(host.to_owned()).filter(|host| !host.is_empty()),
            number: self.pin.id,
        }
    }

    fn is_called(&self, name: &Name) -> bool {
        let known = |host: &String| *host == self.hostname || Some(host) == self.host_id.as_ref();
        name.number == self.pin.id && name.host.as_ref().is_none_or(known)
    }
}

/// Largest message taken. Unit: bytes. A list is cut at 3 MiB.
const MESSAGE_BYTES_MAX: usize = 8 << 20;

impl PinSource {
    async fn connect(connection: &Connection, peer: &Peer) -> Result<(PinSource, Clock)> {
        if !peer.is_collector() {
            let mut client = Client::connect(connection, peer).await?;
            let status = client.status().await?;
            let clock = Clock::at(status.now_unix_ns);
            return Ok((PinSource::Agent(client, status.host), clock));
        }
        let clock = Collector::connect(connection, peer).await?.clock().await?;
        let (transport, route) = connection::open(connection, peer).await?;
        let service = PinServiceClient::new(transport).max_decoding_message_size(MESSAGE_BYTES_MAX);
        Ok((PinSource::Collector(service, route), clock))
    }

    /// Newest first, and how many more there are.
    async fn pins(&mut self, host: &str, trigger: &str) -> Result<(Vec<StoredPin>, u64)> {
        match self {
            PinSource::Agent(client, hostname) => {
                let mut pins = client.pins().await?;
                pins.retain(|pin| trigger.is_empty() || pin.trigger == trigger);
                let own = |pin: Pin| StoredPin {
                    id: pin.id,
                    hostname: hostname.clone(),
                    host_id: None,
                    pin,
                };
                Ok((pins.into_iter().map(own).collect(), 0))
            }
            PinSource::Collector(service, route) => {
                let request = ListHostPinsRequest {
                    host: host.to_owned(),
                    trigger: trigger.to_owned(),
                    limit: u32::MAX,
                    ..ListHostPinsRequest::default()
                };
                let answer = route.answer("list pins", service.list(request)).await?;
                let of_host = |found: proto::collector::HostPin| StoredPin {
                    id: found.id,
                    hostname: found.hostname,
                    host_id: Some(found.host_id),
                    pin: found.pin.unwrap_or_default(),
                };
                let pins = answer.pins.into_iter().map(of_host).collect();
                Ok((pins, answer.left_out))
            }
        }
    }

    async fn profile(
        &mut self,
        stored: &StoredPin,
        request: QueryProfileRequest,
    ) -> Result<Profile> {
        const WHAT: &str = "show the pin";
        let (service, route) = match self {
            PinSource::Agent(client, _) => return client.query(request).await,
            PinSource::Collector(service, route) => (service, route),
        };
        let call = service.profile(PinProfileRequest {
            id: stored.id,
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

async fn list(out: &Out, source: &mut PinSource, clock: &Clock, args: &Args) -> Result<u8> {
    let (host, trigger) = (args.host.as_deref(), args.trigger.as_deref());
    let asked = source.pins(host.unwrap_or(""), trigger.unwrap_or(""));
    let (pins, left_out) = asked.await?;
    if left_out > 0 {
        note!(
            "agent-ctl: {} older pins are not listed: narrow with --host or --trigger",
            units::count(left_out)
        );
    }
    if args.form.is_json() {
        let pins = pins.iter().map(Json::of).collect();
        out.write_json(&All { pins, left_out })?;
        return Ok(exit::OK);
    }
    if pins.is_empty() {
        note!("agent-ctl: no pins: no trigger has fired, or none is configured");
        return Ok(exit::OK);
    }
    out.write(&table(&pins, clock).show(out))?;
    Ok(exit::OK)
}

fn table(pins: &[StoredPin], clock: &Clock) -> Table {
    let mut table = Table::new(&[
        "PIN", "FIRED", "TRIGGER", ">SPAN", ">SIZE", "CAPTURE", "CGROUP", "WHY",
    ]);
    for stored in pins {
        let pin = &stored.pin;
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
            stored.name().to_string(),
            clock.show(pin.fired_unix_ns),
            clean(&pin.trigger).into_owned(),
            length,
            units::bytes(pin.bytes),
            capture,
            cgroup.into_owned(),
            clean(&pin.cause).into_owned(),
        ]);
    }
    table.sparing(&["CAPTURE", "SIZE", "SPAN", "CGROUP", "FIRED"])
}

fn length(pin: &Pin) -> Duration {
    let range = pin.range.unwrap_or_default();
    let length = range.end_unix_ns.saturating_sub(range.start_unix_ns);
    Duration::from_nanos(u64::try_from(length).unwrap_or(0))
}

/// The pin of this name. The one that fired last, where a host has counted from 1 again.
async fn find(source: &mut PinSource, name: &Name) -> Result<StoredPin> {
    let host = match source {
        PinSource::Agent(..) => "",
        PinSource::Collector(..) => name.host.as_deref().unwrap_or(""),
    };
    let (pins, left_out) = source.pins(host, "").await?;
    let mut found: Vec<StoredPin> = pins.into_iter().filter(|pin| pin.is_called(name)).collect();
    // Two hosts may share a name: only their ids distinguish them.
    let ids: BTreeSet<_> = found.iter().map(|pin| pin.host_id.clone()).collect();
    let names: BTreeSet<_> = found.iter().map(|pin| pin.name().to_string()).collect();
    let hosts: Vec<String> = match names.len() == ids.len() {
        true => names.into_iter().collect(),
        false => ids
            .iter()
            .flatten()
            .map(|id| format!("{id}/{}", name.number))
            .collect(),
    };
    let hint = match left_out {
        0 => "`agent-ctl pins` lists them",
        _ => "the list of pins is incomplete: give HOST/NUMBER",
    };
    let why = match hosts.as_slice() {
        [] => format!("there is no pin with this name\n{hint}"),
        [_] => return Ok(found.swap_remove(0)),
        several => format!(
            "several hosts have one\nchoose one of: {}",
            several.join(", ")
        ),
    };
    let message = format!("failed to show pin `{name}`: {why}");
    Err(fail(exit::USAGE, message))
}

/// The profile of a pin, without labels.
///
/// # Errors
/// When there is no such pin, or it has no capture and that is asked for.
pub async fn read(
    connection: &Connection,
    peer: &Peer,
    name: &str,
    samples: Samples,
    captured: bool,
) -> Result<Profile> {
    let name: Name = name.parse().map_err(|why: String| {
        let message = format!("failed to use pin `{}`: {why}", clean(name));
        fail(exit::USAGE, message)
    })?;
    let (mut source, _) = PinSource::connect(connection, peer).await?;
    let stored = find(&mut source, &name).await?;
    if captured && stored.pin.capture_bytes == 0 {
        let message = format!("failed to show the capture of pin `{name}`: it has none");
        return Err(fail(exit::USAGE, message));
    }
    let request = QueryProfileRequest {
        range: Some(stored.pin.range.unwrap_or_default()),
        matchers: samples.matchers,
        frame_filters: samples.filters,
        pin_capture: if captured { stored.id } else { 0 },
        ..QueryProfileRequest::default()
    };
    source.profile(&stored, request).await
}

/// The names of all pins, newest first, and of the triggers that pinned them.
///
/// # Errors
/// When nobody answers.
pub async fn names(connection: &Connection, peer: &Peer) -> Result<Vec<(String, String)>> {
    let (mut source, _) = PinSource::connect(connection, peer).await?;
    let (pins, _) = source.pins("", "").await?;
    let name = |stored: &StoredPin| (stored.name().to_string(), stored.pin.trigger.clone());
    Ok(pins.iter().map(name).collect())
}

async fn show(
    out: &Out,
    source: &mut PinSource,
    clock: &Clock,
    peer: &Peer,
    mut args: Show,
) -> Result<u8> {
    let format = args.output.format(out)?;
    let stored = find(source, &args.pin).await?;
    let pin = &stored.pin;
    if args.captured && pin.capture_bytes == 0 {
        let message = format!(
            "failed to show the capture of pin `{}`: it has none\nleave --captured out to get the \
             recorder's minutes",
            args.pin
        );
        return Err(fail(exit::USAGE, message));
    }
    // A pin is of one host, whoever keeps it.
    let one = Peer {
        kind: Kind::Agent,
        ..peer.clone()
    };
    let group_by = group_by::labels(&args.group_by, format, &one);
    let request = QueryProfileRequest {
        range: Some(pin.range.unwrap_or_default()),
        matchers: args.labels.matchers()?,
        frame_filters: args.frames.filters()?,
        group_by: group_by.clone(),
        times: format.needs_times(),
        pin_capture: if args.captured { stored.id } else { 0 },
        ..QueryProfileRequest::default()
    };
    let profile = source.profile(&stored, request).await?;
    if profile.samples.is_empty() {
        note!("agent-ctl: no samples in the pin: nothing written");
        return Ok(exit::PARTIAL);
    }
    let summary = summary::line(&profile, clock);
    let coverage = summary::coverage(&profile.info.coverage, &profile.info.unit);
    let mut facts = vec![
        facts::fact("Pin", "trigger", &pin.trigger),
        facts::fact("Pin", "cause", &pin.cause),
        facts::fact("Pin", "cgroup", &pin.cgroup),
        facts::fact("Pin", "fired", rfc3339(pin.fired_unix_ns)),
    ];
    facts.insert(0, facts::fact("Pin", "name", stored.name().to_string()));
    if let Some(id) = &stored.host_id {
        facts.insert(1, facts::fact("Pin", "host", &stored.hostname));
        facts.insert(2, facts::fact("Pin", "host id", id));
    }
    let extra = render::Extra {
        root_labels: group_by::root_labels(&group_by, &profile),
        fleet: None,
        facts,
    };
    let look = args.output.look.clone();
    let bytes = render::write_on_thread(profile, format, look, extra).await?;
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
    /// What it is called at its agent and at every collector: `HOST/NUMBER`.
    pin: String,
    /// Its number where it was asked for.
    id: u64,
    /// Only a collector's pin has it.
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
    /// True when an agent's collector has it too.
    #[serde(skip_serializing_if = "Option::is_none")]
    at_collector: Option<bool>,
}

impl<'a> Json<'a> {
    fn of(stored: &'a StoredPin) -> Json<'a> {
        let (pin, host_id) = (&stored.pin, stored.host_id.as_deref());
        let range = pin.range.unwrap_or_default();
        Json {
            pin: stored.name().to_string(),
            id: stored.id,
            host: Some(stored.hostname.as_str()).filter(|_| host_id.is_some()),
            host_id,
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
            at_collector: host_id.is_none().then_some(pin.at_collector),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(hostname: &str, host_id: Option<&str>, number: u64) -> StoredPin {
        StoredPin {
            id: number + 40,
            hostname: hostname.to_owned(),
            host_id: host_id.map(str::to_owned),
            pin: Pin {
                id: number,
                ..Pin::default()
            },
        }
    }

    #[test]
    fn a_pin_has_one_name_wherever_it_is_asked_for() {
        let (of_agent, of_collector) = (stored("web-1", None, 4), stored("web-1", Some("id-1"), 4));
        assert_eq!(of_agent.name(), of_collector.name());
        assert_eq!(of_agent.name().to_string(), "web-1/4");
        for (text, expected) in [
            ("4", true),
            ("web-1/4", true),
            ("id-1/4", true),
            ("web-2/4", false),
            ("44", false),
        ] {
            let name: Name = text.parse().unwrap();
            assert_eq!(of_collector.is_called(&name), expected, "{text}");
        }
        for text in ["", "0", "web-1", "web-1/", "web-1/x", "-1"] {
            assert!(text.parse::<Name>().is_err(), "{text}");
        }
    }
}
