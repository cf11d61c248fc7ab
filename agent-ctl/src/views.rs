//! `agent-ctl views`: lists, saves and deletes views of a collector's page, and snapshots.

use crate::baseline;
use crate::collector::Collector;
use crate::connection::{self, Route, Transport};
use crate::exit;
use crate::form::Form;
use crate::peer::Connection;
use crate::select::When;
use crate::terminal::{Out, Table, clean};
use crate::units;
use crate::when::{Clock, rfc3339};
use anyhow::Result;
use proto::agent::TimeRange;
use proto::collector::save_view_request::Snapshot;
use proto::collector::view_service_client::ViewServiceClient;
use proto::collector::{
    DeleteViewRequest, IncidentDiff, ListViewsRequest, SaveViewRequest, SavedView, Selection,
};
use serde::Serialize;

/// Largest message taken. Unit: bytes. A list is cut at 3 MiB.
const MESSAGE_BYTES_MAX: usize = 8 << 20;

/// Lists saved views of the page, or changes them.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
A view is an address of the collector's page with a name. A snapshot keeps its profiles too, so it \
shows the same when the data they were copied from expires. Only a collector keeps views: use \
--collector or FLEETPROF_COLLECTOR. Saving needs the role operator. Operators delete their own \
views, admins all.

Examples:
  agent-ctl views
  agent-ctl views save 'api by host' '#view=profile&query=unit%3D%22api.service%22&by=host'
  agent-ctl views snapshot 'api at noon' --selector 'unit=\"api.service\"' --from 12:00 --to 12:30
  agent-ctl views delete 3"
)]
pub struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    form: Form,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Save an address of the page
    #[command(after_help = "\
Examples:
  agent-ctl views save 'api by host' '#view=profile&query=unit%3D%22api.service%22&by=host'")]
    Save {
        /// At most 200 bytes
        #[arg(value_name = "NAME")]
        name: String,
        /// Address of the page; what stands before its `#` is left out
        #[arg(value_name = "ADDRESS")]
        address: String,
    },
    /// Keep a profile or a comparison, under a link of its own
    #[command(after_help = "\
Examples:
  agent-ctl views snapshot 'api at noon' --selector 'unit=\"api.service\"' --from 12:00 --to 12:30
  agent-ctl views snapshot 'since the deploy' --since 30m --baseline yesterday")]
    Snapshot(Box<Keep>),
    /// Delete views, and the profiles of snapshots
    Delete {
        /// Numbers of views
        #[arg(required = true, value_name = "NUMBER", value_parser = crate::number::any::<u64>())]
        ids: Vec<u64>,
    },
}

#[derive(Debug, clap::Args)]
struct Keep {
    /// At most 200 bytes
    #[arg(value_name = "NAME")]
    name: String,
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
    #[arg(long, value_name = "BASELINE", allow_hyphen_values = true)]
    baseline: Option<String>,
    #[command(flatten)]
    when: When,
}

type Service = ViewServiceClient<Transport>;

/// Runs the command.
pub async fn run(out: &Out, connection: &Connection, args: Args) -> Result<u8> {
    let peer = connection.collector_only("views")?;
    let clock = Collector::connect(connection, &peer).await?.clock().await?;
    let (transport, route) = connection::open(connection, &peer).await?;
    let service = ViewServiceClient::new(transport);
    let mut service = service.max_decoding_message_size(MESSAGE_BYTES_MAX);
    match args.action {
        None => return list(out, &mut service, (&route, &clock), args.form.is_json()).await,
        Some(Action::Save { name, address }) => {
            let address = match address.find('#') {
                Some(at) => address[at..].to_owned(),
                None => address,
            };
            let asked = SaveViewRequest {
                name,
                address,
                snapshot: None,
            };
            let answer = route.answer("save the view", service.save(asked)).await?;
            let view = answer.view.unwrap_or_default();
            note!("view {} saved", view.id);
        }
        Some(Action::Snapshot(keep)) => {
            let answer = route
                .answer("save the snapshot", service.save(snapshot(*keep, &clock)?))
                .await?;
            let view = answer.view.unwrap_or_default();
            let kept = view.snapshot.unwrap_or_default();
            let (samples, bytes) = (units::count(kept.samples), units::bytes(kept.bytes));
            note!("view {} saved: {samples} samples, {bytes}", view.id);
            out.write(&format!("#view=views&saved={}\n", view.id))?;
        }
        Some(Action::Delete { ids }) => {
            for id in ids {
                let call = service.delete(DeleteViewRequest { id });
                route.answer("delete the view", call).await?;
                note!("view {id} deleted");
            }
        }
    }
    Ok(exit::OK)
}

/// A snapshot, with the address of the page that shows what is stored of it.
fn snapshot(keep: Keep, clock: &Clock) -> Result<SaveViewRequest> {
    let range = keep.when.range(clock)?;
    let of = |range: TimeRange| Selection {
        selector: keep.selector.clone(),
        range: Some(range),
        ..Selection::default()
    };
    let baseline = keep.baseline.as_ref();
    let baseline = baseline.map(|text| baseline::of(text, range, clock));
    let baseline = baseline.transpose()?;
    let end_ns = match range.end_ns {
        0 => clock.now_ns(),
        end => end,
    };
    let mut pairs = vec![
        (
            "view",
            if baseline.is_some() {
                "compare"
            } else {
                "profile"
            }
            .to_owned(),
        ),
        ("from", rfc3339(range.start_ns)),
        ("to", rfc3339(end_ns)),
        ("query", keep.selector.clone()),
    ];
    if let Some(was) = &baseline {
        pairs.push(("bfrom", rfc3339(was.start_unix_ns)));
        pairs.push(("bto", rfc3339(was.end_unix_ns)));
    }
    let after = of(TimeRange {
        start_unix_ns: range.start_ns,
        end_unix_ns: end_ns,
    });
    let kept = match baseline {
        None => Snapshot::View(after),
        Some(was) => Snapshot::Diff(IncidentDiff {
            before: Some(of(was)),
            after: Some(after),
        }),
    };
    let pairs = pairs.into_iter().filter(|(_, value)| !value.is_empty());
    let pairs = pairs.map(|(name, value)| format!("{name}={}", escaped(&value)));
    Ok(SaveViewRequest {
        name: keep.name,
        address: format!("#{}", pairs.collect::<Vec<_>>().join("&")),
        snapshot: Some(kept),
    })
}

/// A value of an address: what is no letter or digit is escaped.
fn escaped(value: &str) -> String {
    let mut text = String::new();
    for byte in value.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b':' => {
                text.push(char::from(byte));
            }
            byte => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

async fn list(
    out: &Out,
    service: &mut Service,
    (route, clock): (&Route, &Clock),
    is_json: bool,
) -> Result<u8> {
    let answer = route
        .answer("list views", service.list(ListViewsRequest {}))
        .await?;
    if answer.left_out > 0 {
        let count = units::count(answer.left_out);
        note!("agent-ctl: {count} older views are not listed: they do not fit the answer");
    }
    if is_json {
        let views = answer.views.iter().map(Shown::of).collect();
        out.write_json(&All {
            views,
            left_out: answer.left_out,
        })?;
        return Ok(exit::OK);
    }
    if answer.views.is_empty() {
        note!("agent-ctl: no saved views");
        return Ok(exit::OK);
    }
    let mut table = Table::new(&[">NUMBER", "SAVED", "BY", "NAME", "KEEPS", "ADDRESS"]);
    for view in &answer.views {
        let keeps = view.snapshot.as_ref().map(|kept| units::bytes(kept.bytes));
        table.row([
            view.id.to_string(),
            clock.show(view.saved_unix_ns),
            clean(&view.by).into_owned(),
            clean(&view.name).into_owned(),
            keeps.unwrap_or_else(|| "-".to_owned()),
            clean(&view.address).into_owned(),
        ]);
    }
    out.write(&table.sparing(&["ADDRESS", "BY"]).show(out))?;
    Ok(exit::OK)
}

#[derive(Serialize)]
struct All<'a> {
    views: Vec<Shown<'a>>,
    left_out: u64,
}

#[derive(Serialize)]
struct Shown<'a> {
    id: u64,
    name: &'a str,
    address: &'a str,
    by: &'a str,
    saved: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    evidence: Option<u64>,
}

impl Shown<'_> {
    fn of(of: &SavedView) -> Shown<'_> {
        Shown {
            id: of.id,
            name: &of.name,
            address: &of.address,
            by: &of.by,
            saved: rfc3339(of.saved_unix_ns),
            evidence: of.snapshot.as_ref().map(|kept| kept.id),
        }
    }
}
