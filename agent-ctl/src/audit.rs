//! `agent-ctl audit`: shows what was done at a collector, and by whom.

use crate::collector::Collector;
use crate::connection;
use crate::form::Form;
use crate::peer::Connection;
use crate::terminal::{Out, Table, clean, clean_lines};
use crate::when::{Clock, age};
use crate::{exit, units};
use anyhow::{Context, Result};
use proto::collector::access_service_client::AccessServiceClient;
use proto::collector::{AuditRequest, VerifyAuditRequest};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::time::Duration;

/// Largest message taken. Unit: bytes.
const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// Longest detail of a line that is shown. Unit: bytes.
const DETAIL_BYTES_MAX: usize = 60;

/// Shows what was done at a collector, and by whom.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
The log has logins and failed logins, people and hosts that were added or removed, invitations, \
and captures: who, where, what, why, and the result. An action that must be on record is logged \
before it is carried out. Each line has the hash of the line before it. Reading the log needs the \
role admin.

Examples:
  agent-ctl audit
  agent-ctl audit --since 7d
  agent-ctl audit --since 1d --json | jq 'select(.action == \"capture\")'
  agent-ctl audit verify"
)]
pub struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    /// How far to go back, by the collector's clock
    #[arg(long, value_name = "AGE", default_value = "1d", value_parser = age)]
    since: Duration,
    /// Maximum number of lines; the newest are shown
    #[arg(long, value_name = "NUMBER", value_parser = crate::number::any::<u32>())]
    limit: Option<u32>,
    #[command(flatten)]
    form: Form,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Check that the log is complete and unchanged
    #[command(after_help = "\
Exit code 6: something is wrong. Keep the last number and hash somewhere else: somebody with the \
collector's disk can rewrite the complete log, but cannot make it end in the same hash.

Examples:
  agent-ctl audit verify
  agent-ctl audit verify --json | jq -r .last_hash")]
    Verify {
        #[command(flatten)]
        form: Form,
    },
}

/// Runs the command.
pub async fn run(out: &Out, connection: &Connection, args: Args) -> Result<u8> {
    let peer = connection.collector_only("the audit log")?;
    let (transport, route) = connection::open(connection, &peer).await?;
    let mut service =
        AccessServiceClient::new(transport).max_decoding_message_size(MESSAGE_BYTES_MAX);
    if let Some(Action::Verify { form }) = args.action {
        let call = service.verify_audit(VerifyAuditRequest {});
        let found = route.answer("verify the audit log", call).await?;
        let sound = found.problems.is_empty();
        if form.is_json() {
            out.write_json(&Verified {
                sound,
                lines: found.lines,
                first_seq: found.first_seq,
                last_seq: found.last_seq,
                last_hash: &found.last_hash,
                problems: &found.problems,
            })?;
        } else if sound {
            out.write(&format!(
                "{} lines, {} to {}, complete and unchanged; the hash of the last line is {}\n",
                units::count(found.lines),
                found.first_seq,
                found.last_seq,
                clean(&found.last_hash)
            ))?;
        } else {
            let problems = found.problems.iter();
            let problems: String = problems
                .map(|problem| format!("{}\n", clean(problem)))
                .collect();
            out.write(&problems)?;
            note!("the audit log was changed or is damaged");
        }
        return Ok(if sound { exit::OK } else { exit::PARTIAL });
    }
    // Lines have the collector's times, so its clock says how long ago they were.
    let clock = Collector::connect(connection, &peer).await?.clock().await?;
    let call = service.audit(AuditRequest {
        since_unix_ns: clock.ago_ns(args.since),
        limit: args.limit.unwrap_or(0),
    });
    let what = "read the audit log";
    let mut answers = route.answer(what, call).await?;
    let mut rows = Vec::new();
    while let Some(part) = route.part(what, answers.message()).await? {
        for line in part.lines {
            if args.form.is_json() {
                // As data again, so that nothing in it reaches a terminal as it is.
                let value: Value = serde_json::from_str(&line)
                    .context("failed to read a line of the audit log")?;
                out.write(&format!("{}\n", crate::terminal::json(&value, false)?))?;
            } else {
                let row: Line = serde_json::from_str(&line)
                    .context("failed to read a line of the audit log")?;
                rows.push(row);
            }
        }
    }
    if !args.form.is_json() {
        out.write(&show(out, &rows, &clock))?;
        let count = rows.len() as u64;
        let word = if count == 1 { "line" } else { "lines" };
        note!("{} {word}", units::count(count));
    }
    Ok(exit::OK)
}

/// A line of the log.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Line {
    seq: u64,
    time: String,
    who: String,
    peer: String,
    action: String,
    what: Map<String, Value>,
    outcome: String,
}

fn show(out: &Out, rows: &[Line], clock: &Clock) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["NUMBER", "TIME", "WHO", "FROM", "ACTION", "OUTCOME", "WHAT"]);
    for row in rows {
        let time = match clock.parse(&row.time) {
            Ok(unix_ns) => clock.show(unix_ns),
            Err(_) => row.time.clone(),
        };
        let details = row.what.iter().map(|(name, value)| {
            let text = match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let cut = text.floor_char_boundary(DETAIL_BYTES_MAX);
            let more = if cut < text.len() { "…" } else { "" };
            format!("{name}={}{more}", &text[..cut])
        });
        let details: Vec<String> = details.collect();
        table.row([
            row.seq.to_string(),
            clean(&time).into_owned(),
            clean(&row.who).into_owned(),
            clean(&row.peer).into_owned(),
            clean(&row.action).into_owned(),
            clean_lines(&row.outcome).replace('\n', " "),
            clean(&details.join(" ")).into_owned(),
        ]);
    }
    table.sparing(&["NUMBER", "FROM"]).show(out)
}

#[derive(Serialize)]
struct Verified<'a> {
    sound: bool,
    lines: u64,
    first_seq: u64,
    last_seq: u64,
    last_hash: &'a str,
    problems: &'a [String],
}
