//! `agent-ctl captures`: lists the running and past captures of a host or a fleet, ends one, and
//! gets or deletes those that a collector stores.

use crate::capture_info::{Json, event, state_word, target};
use crate::client::Client;
use crate::exit::{self, fail};
use crate::fleet_capture::{get, list as fleet};
use crate::form::Form;
use crate::peer::Connection;
use crate::terminal::{Out, Table, clean, fit, hang, json};
use crate::units;
use crate::when::Clock;
use anyhow::Result;
use proto::agent::CaptureInfo;
use std::time::Duration;

/// Lists captures of a host, or of a fleet with --collector, newest first; ends one, or gets the
/// profile of one that the collector keeps.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  agent-ctl captures
  agent-ctl captures cancel 7
  agent-ctl --collector c1 captures get 7 -o api.html
  agent-ctl captures --json | jq '.[] | select(.state == \"running\") | .id'")]
pub struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    form: Form,
}

/// What to do with captures.
#[derive(Debug, clap::Subcommand)]
enum Action {
    /// End a capture; whoever started it gets the samples so far
    Cancel {
        /// Id of the capture
        #[arg(value_parser = crate::number::any::<u64>())]
        id: u64,
    },
    /// Save or print the profile of a capture that the collector keeps (with --collector)
    #[command(after_help = "\
The file includes the time before the capture; if that has another event, it goes to a second \
file. Exit code 6: the profile misses some of the hosts, there are no samples, or most samples \
were lost.

Examples:
  agent-ctl --collector c1 captures get 7 -o api.html
  agent-ctl --collector c1 captures get 7 --unit api.service --format folded")]
    Get(Box<get::Get>),
    /// Delete a capture that the collector keeps (with --collector)
    Delete {
        /// Number of the capture in the list
        #[arg(value_parser = crate::number::any::<u64>())]
        id: u64,
    },
}

/// Runs the command.
pub async fn run(out: &Out, connection: &Connection, args: Args) -> Result<u8> {
    let peer = connection.peer()?;
    if peer.is_collector() {
        match args.action {
            Some(Action::Cancel { id }) => fleet::cancel(connection, &peer, id).await?,
            Some(Action::Get(args)) => return get::get(out, connection, &peer, *args).await,
            Some(Action::Delete { id }) => get::delete(connection, &peer, id).await?,
            None => fleet::print(out, connection, &peer, args.form.is_json()).await?,
        }
        return Ok(exit::OK);
    }
    if matches!(args.action, Some(Action::Get(_) | Action::Delete { .. })) {
        let message = "failed to get a kept capture: an agent keeps no captures\ngive --collector \
            HOST:PORT";
        return Err(fail(exit::USAGE, message));
    }
    let mut client = Client::connect(connection, &peer).await?;
    if let Some(Action::Cancel { id }) = args.action {
        client.cancel_capture(id).await?;
        return Ok(exit::OK);
    }
    let captures = client.captures().await?;
    if args.form.is_json() {
        let all: Vec<Json<'_>> = captures.iter().map(Json::of).collect();
        out.write(&(json(&all, true)? + "\n"))?;
        return Ok(exit::OK);
    }
    let clock = client.clock().await?;
    out.write(&show(out, &captures, &clock))?;
    Ok(exit::OK)
}

/// Cells of texts from outside in a line.
const TARGET_CELLS: usize = 40;
const WHO_CELLS: usize = 32;
const EVENT_CELLS: usize = 16;

/// Columns by which what else is known of a capture is indented.
const DETAIL_INDENT: usize = 5;

fn show(out: &Out, captures: &[CaptureInfo], clock: &Clock) -> String {
    if captures.is_empty() {
        return "no captures since the agent started\n".to_owned();
    }
    let mut lines = table(captures, clock).lines(out).into_iter();
    let mut text = String::new();
    let mut line = |line: &str| {
        text.push_str(line);
        text.push('\n');
    };
    line(&lines.next().unwrap_or_default());
    for (capture, row) in captures.iter().zip(lines) {
        line(&row);
        let reason = capture.request.as_ref().map_or("", |of| &of.reason);
        let mut detail = |what: &str, said: &str| {
            if !said.is_empty() {
                let said = format!("{:DETAIL_INDENT$}{what}{}", "", clean(said));
                line(&hang(&said, out.columns(), DETAIL_INDENT));
            }
        };
        detail("reason: ", reason);
        if capture.error != state_word(capture.state()) {
            detail("", &capture.error);
        }
        for notice in &capture.notices {
            detail("", notice);
        }
    }
    text
}

fn table(captures: &[CaptureInfo], clock: &Clock) -> Table {
    let mut table = Table::new(&[
        ">ID",
        "STATE",
        "STARTED",
        ">DURATION",
        "EVENT",
        ">SAMPLES",
        "WHO",
        "TARGET",
    ]);
    for capture in captures {
        let request = capture.request.clone().unwrap_or_default();
        let samples = capture.progress.map_or(0, |progress| progress.samples);
        let who = match request.who.as_str() {
            "" => clean(&capture.peer).into_owned(),
            who => format!("{} ({})", clean(who), clean(&capture.peer)),
        };
        table.row([
            capture.id.to_string(),
            state_word(capture.state()).to_owned(),
            clock.show(capture.started_unix_ns),
            units::duration(Duration::from_nanos(capture.elapsed_ns)),
            fit(&clean(event(&request.event)), EVENT_CELLS).into_owned(),
            units::count(samples),
            fit(&who, WHO_CELLS).into_owned(),
            fit(&clean(&target(&request.matchers)), TARGET_CELLS).into_owned(),
        ]);
    }
    table.sparing(&["WHO", "DURATION", "STARTED", "EVENT", "SAMPLES"])
}
