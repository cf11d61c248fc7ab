//! `agent-ctl events`: lists and adds events of a fleet: deployments that its collector detected,
//! and notes of people and pipelines.

use crate::collector::Collector;
use crate::connection::{self, Route, Transport};
use crate::form::Form;
use crate::peer::{Connection, Peer};
use crate::terminal::{Out, Table, clean};
use crate::when::{Clock, age, rfc3339};
use crate::{exit, units};
use anyhow::Result;
use proto::agent::TimeRange;
use proto::collector::annotation_service_client::AnnotationServiceClient;
use proto::collector::{
    AddAnnotationRequest, Annotation, DeleteAnnotationRequest, ListAnnotationsRequest,
};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Largest message taken. Unit: bytes. A list is cut at 3 MiB.
const MESSAGE_BYTES_MAX: usize = 8 << 20;

/// Lists deploys and notes of a fleet, adds one, or takes one back.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Only a collector keeps events: use --collector or FLEETPROF_COLLECTOR. Its page marks them on \
every chart. The collector finds deploys where agents, images or versions change; add others from \
your pipeline.

Examples:
  agent-ctl events --since 7d
  agent-ctl events add 'api v42' --deploy --label unit=api.service --url https://ci.example.net/run/7
  agent-ctl events --json | jq -r '.events[] | select(.kind == \"deploy\").text'
  agent-ctl events delete 12"
)]
pub struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    /// How far to go back, by the collector's clock
    #[arg(long, value_name = "AGE", default_value = "1d", value_parser = age)]
    since: Duration,
    /// Show only deploys, or only notes
    #[arg(long, value_enum)]
    kind: Option<Kind>,
    /// Maximum number of events; the newest are shown
    #[arg(long, value_name = "NUMBER", default_value_t = 1000, value_parser = crate::number::within::<u32>(1, 10_000))]
    limit: u32,
    #[command(flatten)]
    form: Form,
}

/// What an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    /// A change of software on hosts
    Deploy,
    /// Anything else
    Note,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::Deploy => "deploy",
            Kind::Note => "note",
        }
    }
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Add an event
    #[command(after_help = "\
This needs the role operator. The same text with the same --at is stored once, so a pipeline may \
retry.

In CI, after a deploy:
  agent-ctl --collector c1 events add \"api $VERSION\" --deploy --at \"$DEPLOYED_AT\" --label unit=api.service \\
    --url \"$RUN_URL\"

Examples:
  agent-ctl events add 'failover of db-1' --at 14:03
  agent-ctl events add 'load test' --at 1h --until 20m --label namespace=shop")]
    Add(Box<Add>),
    /// Delete events by their numbers in the list
    Delete {
        /// Numbers of events
        #[arg(
            required = true,
            value_name = "NUMBER",
            value_parser = crate::number::any::<u64>()
        )]
        ids: Vec<u64>,
    },
}

#[derive(Debug, clap::Args)]
struct Add {
    /// What happened, at most 1000 bytes
    #[arg(value_name = "TEXT")]
    text: String,
    /// Mark it as a deploy
    #[arg(long)]
    deploy: bool,
    /// Start: 5m (ago), 14:03 or 2026-11-27T14:03:00Z [default: now]
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// End, same formats [default: a single moment]
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Label of the samples that the event concerns; may be repeated
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = pair)]
    labels: Vec<(String, String)>,
    /// Link to more information, http:// or https://
    #[arg(
        long,
        value_name = "URL",
        default_value = "",
        hide_default_value = true
    )]
    url: String,
    #[command(flatten)]
    form: Form,
}

/// Reads NAME=VALUE.
pub fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => Err("expected NAME=VALUE, as in unit=api.service".to_owned()),
    }
}

/// Runs the command.
pub async fn run(out: &Out, connection: &Connection, args: Args) -> Result<u8> {
    let peer = connection.collector_only("events")?;
    let clock = Collector::connect(connection, &peer).await?.clock().await?;
    let (transport, route) = connection::open(connection, &peer).await?;
    let service = AnnotationServiceClient::new(transport);
    let mut service = service.max_decoding_message_size(MESSAGE_BYTES_MAX);
    match args.action {
        Some(Action::Add(new)) => add(out, &mut service, (&route, &clock), *new).await,
        Some(Action::Delete { ids }) => delete(&mut service, &route, &ids).await,
        None => list(out, &mut service, (&route, &clock), &args).await,
    }
}

/// How far back events are completed.
const COMPLETED: Duration = Duration::from_secs(30 * 86_400);

/// The numbers of events, newest first.
///
/// # Errors
/// When the collector does not answer.
pub async fn numbers(connection: &Connection, peer: &Peer) -> Result<Vec<String>> {
    let clock = Collector::connect(connection, peer).await?.clock().await?;
    let (transport, route) = connection::open(connection, peer).await?;
    let service = AnnotationServiceClient::new(transport);
    let mut service = service.max_decoding_message_size(MESSAGE_BYTES_MAX);
    let call = service.list(ListAnnotationsRequest {
        range: Some(TimeRange {
            start_unix_ns: clock.ago_ns(COMPLETED),
            end_unix_ns: 0,
        }),
        kind: String::new(),
        limit: 200,
    });
    let answer = route.answer("list events", call).await?;
    let events = answer.annotations.iter();
    Ok(events.map(|event| event.id.to_string()).collect())
}

async fn add(
    out: &Out,
    service: &mut AnnotationServiceClient<Transport>,
    (route, clock): (&Route, &Clock),
    new: Add,
) -> Result<u8> {
    let time = |text: &Option<String>| text.as_deref().map(|text| clock.parse(text)).transpose();
    let kind = if new.deploy { Kind::Deploy } else { Kind::Note };
    let annotation = Annotation {
        start_unix_ns: time(&new.at)?.unwrap_or(0),
        end_unix_ns: time(&new.until)?.unwrap_or(0),
        text: new.text,
        labels: new.labels.into_iter().collect(),
        url: new.url,
        kind: kind.word().to_owned(),
        ..Annotation::default()
    };
    let call = service.add(AddAnnotationRequest {
        annotation: Some(annotation),
    });
    let answer = route.answer("add the event", call).await?;
    let kept = answer.annotation.unwrap_or_default();
    if new.form.is_json() {
        out.write_json(&Event::of(&kept))?;
        return Ok(exit::OK);
    }
    let note = if answer.repeated {
        ", noted before"
    } else {
        ""
    };
    let time = clock.show(kept.start_unix_ns);
    out.write(&format!("event {} at {time}{note}\n", kept.id))?;
    Ok(exit::OK)
}

async fn delete(
    service: &mut AnnotationServiceClient<Transport>,
    route: &Route,
    ids: &[u64],
) -> Result<u8> {
    for &id in ids {
        let call = service.delete(DeleteAnnotationRequest { id });
        route.answer("delete the event", call).await?;
        note!("event {id} deleted");
    }
    Ok(exit::OK)
}

async fn list(
    out: &Out,
    service: &mut AnnotationServiceClient<Transport>,
    (route, clock): (&Route, &Clock),
    args: &Args,
) -> Result<u8> {
    let call = service.list(ListAnnotationsRequest {
        range: Some(TimeRange {
            start_unix_ns: clock.ago_ns(args.since),
            end_unix_ns: 0,
        }),
        kind: args.kind.map_or("", Kind::word).to_owned(),
        limit: args.limit,
    });
    let answer = route.answer("list events", call).await?;
    let left_out = answer.left_out;
    if left_out > 0 {
        let count = units::count(left_out);
        note!("agent-ctl: {count} older events are not listed: narrow with --since or --kind");
    }
    if args.form.is_json() {
        let events = answer.annotations.iter().map(Event::of).collect();
        out.write_json(&All { events, left_out })?;
        return Ok(exit::OK);
    }
    if answer.annotations.is_empty() {
        note!("agent-ctl: no events in this time");
        return Ok(exit::OK);
    }
    out.write(&table(&answer.annotations, clock).show(out))?;
    Ok(exit::OK)
}

fn table(events: &[Annotation], clock: &Clock) -> Table {
    let mut table = Table::new(&[">NUMBER", "TIME", "KIND", "BY", ">HOSTS", "LABELS", "WHAT"]);
    for event in events {
        let labels: BTreeMap<&String, &String> = event.labels.iter().collect();
        let labels = labels
            .into_iter()
            .map(|(name, value)| format!("{name}={value}"));
        let labels = labels.collect::<Vec<_>>().join(" ");
        let hosts = match event.hosts {
            0 => "-".to_owned(),
            hosts => units::count(hosts),
        };
        table.row([
            event.id.to_string(),
            clock.show(event.start_unix_ns),
            clean(&event.kind).into_owned(),
            clean(&event.by).into_owned(),
            hosts,
            clean(&labels).into_owned(),
            clean(&event.text).into_owned(),
        ]);
    }
    table.sparing(&["HOSTS", "BY", "LABELS"])
}

#[derive(Serialize)]
struct All<'a> {
    events: Vec<Event<'a>>,
    left_out: u64,
}

#[derive(Serialize)]
struct Event<'a> {
    id: u64,
    time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<String>,
    kind: &'a str,
    text: &'a str,
    labels: BTreeMap<&'a str, &'a str>,
    url: &'a str,
    by: &'a str,
    hosts: u64,
}

impl Event<'_> {
    fn of(event: &Annotation) -> Event<'_> {
        let labels = event.labels.iter();
        Event {
            id: event.id,
            time: rfc3339(event.start_unix_ns),
            end: (event.end_unix_ns != 0).then(|| rfc3339(event.end_unix_ns)),
            kind: &event.kind,
            text: &event.text,
            labels: labels.map(|(n, v)| (n.as_str(), v.as_str())).collect(),
            url: &event.url,
            by: &event.by,
            hosts: event.hosts,
        }
    }
}
