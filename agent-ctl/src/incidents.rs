//! `agent-ctl incidents`: lists, opens, acknowledges and closes incidents of a fleet, and keeps
//! notes and evidence in them.

use crate::baseline;
use crate::collector::Collector;
use crate::connection::{self, Route, Transport};
use crate::events::pair;
use crate::exit;
use crate::form::Form;
use crate::peer::Connection;
use crate::select::When;
use crate::terminal::{Out, Table, clean, clean_lines};
use crate::units;
use crate::when::{Clock, rfc3339};
use anyhow::Result;
use profile::{MatchOp, Selector};
use proto::agent::TimeRange;
use proto::collector::add_incident_entry_request::Evidence;
use proto::collector::incident_service_client::IncidentServiceClient;
use proto::collector::{
    AddIncidentEntryRequest, DeleteIncidentRequest, GetIncidentRequest, Incident, IncidentDiff,
    IncidentEntry, IncidentEntryKind, IncidentState, ListIncidentsRequest, OpenIncidentRequest,
    Selection, SetIncidentStateRequest,
};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

/// Largest message taken. Unit: bytes. A list is cut at 3 MiB, a timeline has 300 entries.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Most labels of an incident.
const LABELS_MAX: usize = 16;

/// Lists incidents of a fleet, or changes one.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Only a collector keeps incidents: use --collector or FLEETPROF_COLLECTOR. Evidence is copied, so it \
stays when the data it came from expires. Changes need the role operator, delete the role admin.

Examples:
  agent-ctl incidents --open
  agent-ctl incidents show 17
  agent-ctl incidents show 17 --markdown > post-mortem.md
  agent-ctl incidents open 'checkout slow' --label unit=api.service
  agent-ctl incidents keep 17 --selector 'unit=\"api.service\"' --since 30m
  agent-ctl incidents keep --new 'checkout slow' --since 30m --baseline yesterday
  agent-ctl incidents ack 17"
)]
pub struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    /// Show only incidents that are not closed
    #[arg(long)]
    open: bool,
    /// Maximum number of incidents; the newest are shown
    #[arg(long, value_name = "NUMBER", default_value_t = 200, value_parser = crate::number::within::<u32>(1, 1000))]
    limit: u32,
    #[command(flatten)]
    form: Form,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Open an incident
    #[command(after_help = "\
Examples:
  agent-ctl incidents open 'checkout slow' --label unit=api.service --label namespace=shop")]
    Open {
        /// What is wrong, at most 200 bytes
        #[arg(value_name = "TITLE")]
        title: String,
        /// Label of the samples that it concerns; may be repeated
        #[arg(long = "label", value_name = "NAME=VALUE", value_parser = pair)]
        labels: Vec<(String, String)>,
        #[command(flatten)]
        form: Form,
    },
    /// Show an incident with its timeline
    #[command(after_help = "\
Examples:
  agent-ctl incidents show 17
  agent-ctl incidents show 17 --markdown > post-mortem.md")]
    Show {
        /// Number of the incident
        #[arg(value_name = "NUMBER", value_parser = crate::number::any::<u64>())]
        id: u64,
        /// Print Markdown
        #[arg(long, conflicts_with = "json")]
        markdown: bool,
        #[command(flatten)]
        form: Form,
    },
    /// Add a note
    #[command(after_help = "\
Examples:
  agent-ctl incidents note 17 'rolling back v42'")]
    Note {
        /// Number of the incident
        #[arg(value_name = "NUMBER", value_parser = crate::number::any::<u64>())]
        id: u64,
        /// At most 4000 bytes
        #[arg(value_name = "TEXT")]
        text: String,
    },
    /// Keep evidence: a profile of a selection, a comparison, a pin, or a capture
    #[command(after_help = "\
Examples:
  agent-ctl incidents keep 17 --selector 'unit=\"api.service\"' --since 30m
  agent-ctl incidents keep 17 --since 30m --baseline yesterday
  agent-ctl incidents keep --new 'checkout slow' --selector 'unit=\"api.service\"' --since 30m
  agent-ctl incidents keep 17 --pin 12 --text 'throttled just before'
  agent-ctl incidents keep 17 --capture 7")]
    Keep(Box<Keep>),
    /// Acknowledge an incident: you take care of it
    Ack(Change),
    /// Close an incident
    Close(Change),
    /// Reopen an incident
    Reopen(Change),
    /// Delete incidents with all of their evidence
    Delete {
        /// Numbers of incidents
        #[arg(required = true, value_name = "NUMBER", value_parser = crate::number::any::<u64>())]
        ids: Vec<u64>,
    },
}

#[derive(Debug, clap::Args)]
struct Keep {
    /// Number of the incident
    #[arg(value_name = "NUMBER", required_unless_present = "new", value_parser = crate::number::any::<u64>())]
    id: Option<u64>,
    /// Open an incident with this title, and keep it there
    #[arg(long, value_name = "TITLE", conflicts_with = "id")]
    new: Option<String>,
    /// Keep the profile of these samples; empty: of the complete fleet
    #[arg(
        long,
        value_name = "SELECTOR",
        default_value = "",
        hide_default_value = true
    )]
    selector: String,
    /// Keep a comparison with this range too: `previous` (the same length right before),
    /// `yesterday`, `last-week` or FROM..TO
    #[arg(long, value_name = "BASELINE", allow_hyphen_values = true, conflicts_with_all = ["pin", "capture"])]
    baseline: Option<String>,
    /// Keep a pin, by its number at the collector
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["selector", "capture"], value_parser = crate::number::any::<u64>())]
    pin: Option<u64>,
    /// Keep a fleet capture, by its number
    #[arg(long, value_name = "NUMBER", conflicts_with = "selector", value_parser = crate::number::any::<u64>())]
    capture: Option<u64>,
    /// A sentence about it
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    text: String,
    #[command(flatten)]
    when: When,
}

#[derive(Debug, clap::Args)]
struct Change {
    /// Number of the incident
    #[arg(value_name = "NUMBER", value_parser = crate::number::any::<u64>())]
    id: u64,
    /// Why, for the timeline
    #[arg(value_name = "TEXT", default_value = "", hide_default_value = true)]
    text: String,
}

type Service = IncidentServiceClient<Transport>;

/// Runs the command.
pub async fn run(out: &Out, connection: &Connection, args: Args) -> Result<u8> {
    let peer = connection.collector_only("incidents")?;
    let clock = Collector::connect(connection, &peer).await?.clock().await?;
    let (transport, route) = connection::open(connection, &peer).await?;
    let service = IncidentServiceClient::new(transport);
    let mut service = service.max_decoding_message_size(MESSAGE_BYTES_MAX);
    let at = (&route, &clock);
    match args.action {
        None => list(out, &mut service, at, &args).await,
        Some(Action::Show { id, markdown, form }) => {
            show(out, &mut service, at, (id, markdown, form.is_json())).await
        }
        Some(Action::Open {
            title,
            labels,
            form,
        }) => {
            let labels = labels.into_iter().collect();
            let call = service.open(OpenIncidentRequest { title, labels });
            let answer = route.answer("open the incident", call).await?;
            let incident = answer.incident.unwrap_or_default();
            match form.is_json() {
                true => out.write_json(&Shown::of(&incident))?,
                false => out.write(&format!("incident {} opened\n", incident.id))?,
            }
            Ok(exit::OK)
        }
        Some(Action::Note { id, text }) => {
            let call = service.add_entry(AddIncidentEntryRequest {
                incident: id,
                text,
                ..AddIncidentEntryRequest::default()
            });
            route.answer("add the note", call).await?;
            note!("noted in incident {id}");
            Ok(exit::OK)
        }
        Some(Action::Keep(keep)) => keep_evidence(&mut service, at, *keep).await,
        Some(Action::Ack(change)) => {
            set(&mut service, &route, change, IncidentState::Acknowledged).await
        }
        Some(Action::Close(change)) => {
            set(&mut service, &route, change, IncidentState::Closed).await
        }
        Some(Action::Reopen(change)) => {
            set(&mut service, &route, change, IncidentState::Open).await
        }
        Some(Action::Delete { ids }) => {
            for id in ids {
                let call = service.delete(DeleteIncidentRequest { id });
                route.answer("delete the incident", call).await?;
                note!("incident {id} deleted");
            }
            Ok(exit::OK)
        }
    }
}

async fn keep_evidence(
    service: &mut Service,
    (route, clock): (&Route, &Clock),
    keep: Keep,
) -> Result<u8> {
    let evidence = match (keep.pin, keep.capture) {
        (Some(pin), _) => Evidence::Pin(pin),
        (None, Some(capture)) => Evidence::Capture(capture),
        (None, None) => {
            let range = keep.when.range(clock)?;
            let of = |range: TimeRange| Selection {
                selector: keep.selector.clone(),
                range: Some(range),
                ..Selection::default()
            };
            match &keep.baseline {
                None => Evidence::View(of(range.into())),
                Some(text) => Evidence::Diff(IncidentDiff {
                    before: Some(of(baseline::of(text, range, clock)?)),
                    after: Some(of(range.into())),
                }),
            }
        }
    };
    let id = match (keep.id, keep.new) {
        (Some(id), _) => id,
        (None, title) => {
            let call = service.open(OpenIncidentRequest {
                title: title.unwrap_or_default(),
                labels: labels_of(&keep.selector),
            });
            let answer = route.answer("open the incident", call).await?;
            let id = answer.incident.unwrap_or_default().id;
            note!("incident {id} opened");
            id
        }
    };
    let call = service.add_entry(AddIncidentEntryRequest {
        incident: id,
        text: keep.text,
        evidence: Some(evidence),
        ..AddIncidentEntryRequest::default()
    });
    let answer = route.answer("keep the evidence", call).await?;
    let evidence = answer.entry.and_then(|entry| entry.evidence);
    let evidence = evidence.unwrap_or_default();
    let (samples, bytes) = (units::count(evidence.samples), units::bytes(evidence.bytes));
    note!("kept in incident {id}: {samples} samples, {bytes}");
    Ok(exit::OK)
}

/// What an incident about a selection is about for certain: what its selector equals.
fn labels_of(selector: &str) -> HashMap<String, String> {
    let selector: Selector = selector.parse().unwrap_or_default();
    let equal = selector.matchers().iter();
    let equal = equal.filter(|of| of.op() == MatchOp::Equal && !of.value().is_empty());
    let equal = equal.map(|of| (of.label().to_owned(), of.value().to_owned()));
    equal.take(LABELS_MAX).collect()
}

async fn set(
    service: &mut Service,
    route: &Route,
    change: Change,
    state: IncidentState,
) -> Result<u8> {
    let id = change.id;
    let call = service.set_state(SetIncidentStateRequest {
        id,
        state: state as i32,
        text: change.text,
    });
    let answer = route.answer("change the incident", call).await?;
    let incident = answer.incident.unwrap_or_default();
    note!("incident {id} is {}", word(incident.state()));
    Ok(exit::OK)
}

async fn list(
    out: &Out,
    service: &mut Service,
    (route, clock): (&Route, &Clock),
    args: &Args,
) -> Result<u8> {
    let call = service.list(ListIncidentsRequest {
        open: args.open,
        limit: args.limit,
    });
    let answer = route.answer("list incidents", call).await?;
    if answer.left_out > 0 {
        let count = units::count(answer.left_out);
        note!("agent-ctl: {count} older incidents are not listed: raise --limit");
    }
    if args.form.is_json() {
        let incidents = answer.incidents.iter().map(Shown::of).collect();
        out.write_json(&All {
            incidents,
            left_out: answer.left_out,
        })?;
        return Ok(exit::OK);
    }
    if answer.incidents.is_empty() {
        note!("agent-ctl: no incidents");
        return Ok(exit::OK);
    }
    let mut table = Table::new(&[">NUMBER", "STATE", "OPENED", "BY", "TITLE", "HOSTS"]);
    for incident in &answer.incidents {
        table.row([
            incident.id.to_string(),
            word(incident.state()).to_owned(),
            clock.show(incident.opened_unix_ns),
            clean(by(incident)).into_owned(),
            clean(&incident.title).into_owned(),
            clean(&incident.hosts.join(" ")).into_owned(),
        ]);
    }
    out.write(&table.sparing(&["HOSTS", "BY"]).show(out))?;
    Ok(exit::OK)
}

/// Who opened it: a person, or what made the collector do so.
fn by(incident: &Incident) -> &str {
    match incident.source.as_str() {
        "" => &incident.opened_by,
        source => source,
    }
}

async fn show(
    out: &Out,
    service: &mut Service,
    (route, clock): (&Route, &Clock),
    (id, markdown, is_json): (u64, bool, bool),
) -> Result<u8> {
    let call = service.get(GetIncidentRequest { id, markdown });
    let answer = route.answer("show the incident", call).await?;
    let incident = answer.incident.unwrap_or_default();
    if markdown {
        out.write(&clean_lines(&answer.markdown))?;
        return Ok(exit::OK);
    }
    if is_json {
        out.write_json(&One {
            incident: Shown::of(&incident),
            entries: answer.entries.iter().map(ShownEntry::of).collect(),
        })?;
        return Ok(exit::OK);
    }
    let mut text = format!(
        "incident {id}: {} ({})\n",
        clean(&incident.title),
        word(incident.state())
    );
    for (name, value) in facts(&incident, clock) {
        text += &format!("{name:<13} {}\n", clean(&value));
    }
    text += "\n";
    for entry in &answer.entries {
        text += &format!(
            "{}  {:<10}  {}\n",
            clock.show(entry.at_unix_ns),
            kind(entry.kind()),
            clean(&entry.by)
        );
        for line in entry.text.lines() {
            text += &format!("  {}\n", clean(line));
        }
        if let Some(evidence) = &entry.evidence {
            let samples = units::count(evidence.samples);
            let range = evidence.range.unwrap_or_default();
            let range = clock.show_range(range.start_unix_ns, range.end_unix_ns);
            let title = match evidence.title.as_str() {
                "" => "the complete fleet",
                title => title,
            };
            text += &format!(
                "  evidence {}: {}, {range}, {samples} samples\n",
                evidence.id,
                clean(title)
            );
        }
    }
    out.write(&text)?;
    Ok(exit::OK)
}

fn facts(incident: &Incident, clock: &Clock) -> Vec<(&'static str, String)> {
    let at = |unix_ns: i64, by: &str| match unix_ns {
        0 => String::new(),
        unix_ns => format!("{} by {by}", clock.show(unix_ns)),
    };
    let labels: BTreeMap<&String, &String> = incident.labels.iter().collect();
    let labels = labels
        .into_iter()
        .map(|(name, value)| format!("{name}={value}"));
    let all = [
        ("opened", at(incident.opened_unix_ns, by(incident))),
        (
            "acknowledged",
            at(incident.acknowledged_unix_ns, &incident.acknowledged_by),
        ),
        ("closed", at(incident.closed_unix_ns, &incident.closed_by)),
        ("about", labels.collect::<Vec<_>>().join(" ")),
        ("hosts", incident.hosts.join(" ")),
    ];
    all.into_iter()
        .filter(|(_, value)| !value.is_empty())
        .collect()
}

fn word(state: IncidentState) -> &'static str {
    match state {
        IncidentState::Open => "open",
        IncidentState::Acknowledged => "acknowledged",
        IncidentState::Closed => "closed",
        IncidentState::Unspecified => "unknown",
    }
}

fn kind(kind: IncidentEntryKind) -> &'static str {
    match kind {
        IncidentEntryKind::Note => "note",
        IncidentEntryKind::State => "state",
        IncidentEntryKind::Alert => "alert",
        IncidentEntryKind::View => "view",
        IncidentEntryKind::Diff => "comparison",
        IncidentEntryKind::Pin => "pin",
        IncidentEntryKind::Capture => "capture",
        IncidentEntryKind::Unspecified => "entry",
    }
}

#[derive(Serialize)]
struct All<'a> {
    incidents: Vec<Shown<'a>>,
    left_out: u64,
}

#[derive(Serialize)]
struct One<'a> {
    incident: Shown<'a>,
    entries: Vec<ShownEntry<'a>>,
}

#[derive(Serialize)]
struct Shown<'a> {
    id: u64,
    title: &'a str,
    state: &'static str,
    opened: String,
    opened_by: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    acknowledged: Option<String>,
    #[serde(skip_serializing_if = "str::is_empty")]
    acknowledged_by: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    closed: Option<String>,
    #[serde(skip_serializing_if = "str::is_empty")]
    closed_by: &'a str,
    source: &'a str,
    labels: BTreeMap<&'a str, &'a str>,
    hosts: &'a [String],
    entries: u64,
}

#[derive(Serialize)]
struct ShownEntry<'a> {
    id: u64,
    time: String,
    kind: &'static str,
    by: &'a str,
    text: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    evidence: Option<u64>,
}

impl Shown<'_> {
    fn of(of: &Incident) -> Shown<'_> {
        let time = |unix_ns: i64| (unix_ns != 0).then(|| rfc3339(unix_ns));
        let labels = of.labels.iter();
        Shown {
            id: of.id,
            title: &of.title,
            state: word(of.state()),
            opened: rfc3339(of.opened_unix_ns),
            opened_by: &of.opened_by,
            acknowledged: time(of.acknowledged_unix_ns),
            acknowledged_by: &of.acknowledged_by,
            closed: time(of.closed_unix_ns),
            closed_by: &of.closed_by,
            source: &of.source,
            labels: labels.map(|(n, v)| (n.as_str(), v.as_str())).collect(),
            hosts: &of.hosts,
            entries: of.entries,
        }
    }
}

impl ShownEntry<'_> {
    fn of(of: &IncidentEntry) -> ShownEntry<'_> {
        ShownEntry {
            id: of.id,
            time: rfc3339(of.at_unix_ns),
            kind: kind(of.kind()),
            by: &of.by,
            text: &of.text,
            evidence: of.evidence.as_ref().map(|evidence| evidence.id),
        }
    }
}
