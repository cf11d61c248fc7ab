//! `agent-ctl top`: functions, cgroups and processes live; a table once where no terminal is.
//!
//! The agent streams a small profile a second; the last few are kept and merged, so the view covers
//! a range that slides. `model.rs` turns profiles into rows, `app.rs` holds what the person at the
//! terminal chose, `view.rs` draws, `live.rs` runs it all.

mod app;
mod live;
mod model;
mod view;

use crate::client::{Client, Connection};
use crate::select::{Frames, Labels};
use crate::summary::{self, Covered};
use crate::terminal::{Out, Table, json};
use crate::{exit, units};
use anyhow::Result;
use model::{Row, Rows, View};
use proto::agent::{QueryProfileRequest, StreamProfilesRequest};
use serde::Serialize;
use std::time::Duration;

/// Watches functions, cgroups and processes live.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Keys: Tab or 1 2 3 view, / filter, s sort by self or total, p pause, arrows and Page keys scroll,
q quit. Where standard output is no terminal, one table is printed. Exit code 6: no samples.

Examples:
  agent-ctl top
  agent-ctl top --range 30s --unit nginx
  agent-ctl top --once --view cgroups --json")]
pub struct Args {
    /// How much of the past the view covers, up to now
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = crate::when::duration)]
    range: Duration,
    /// View to begin with
    #[arg(long, value_enum, default_value_t = View::Functions)]
    view: View,
    /// Column to sort by
    #[arg(long, value_enum, default_value_t = Sort::Own)]
    sort: Sort,
    /// Print one table and end
    #[arg(long)]
    once: bool,
    /// Rows of the one table
    #[arg(long, value_name = "ROWS", default_value_t = 30)]
    limit: usize,
    /// Print one table as JSON and end
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    labels: Labels,
    #[command(flatten)]
    frames: Frames,
}

/// Column that rows are sorted by, largest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Sort {
    /// The function alone; the cgroup alone
    #[value(name = "self")]
    Own,
    /// With callees; with cgroups below
    Total,
}

/// Longest range of the view: what is kept of the stream grows with it.
const RANGE_MAX: Duration = Duration::from_secs(600);

/// Time between profiles of the stream. Unit: milliseconds.
const INTERVAL_MS: u32 = 1000;

/// Runs the command.
pub async fn run(out: &Out, connection: &Connection, args: Args) -> Result<u8> {
    if args.range > RANGE_MAX || args.range < Duration::from_secs(1) {
        let most = units::duration(RANGE_MAX);
        let message = format!("failed to use --range: it must be between 1 s and {most}");
        return Err(exit::fail(exit::USAGE, message));
    }
    let matchers = args.labels.matchers()?;
    let frame_filters = args.frames.filters()?;
    let group_by = model::GROUP_BY.map(str::to_owned).to_vec();
    if args.once || args.json || !out.is_terminal() {
        let mut client = Client::connect(connection).await?;
        let clock = client.clock().await?;
        let range = crate::when::Range {
            start_ns: clock.ago_ns(args.range),
            end_ns: 0,
        };
        let request = QueryProfileRequest {
            range: Some(range.into()),
            matchers,
            frame_filters,
            group_by,
            fresh: true,
        };
        let profile = client.query(request).await?;
        let rows = Rows::of(&profile);
        if args.json {
            out.write(&(json(&Json::of(&profile, &rows, &args), true)? + "\n"))?;
        } else {
            out.write(&plain(&rows, &args, out))?;
            note!("{}", summary::line(&profile, &clock));
        }
        return Ok(if profile.samples.is_empty() {
            exit::PARTIAL
        } else {
            exit::OK
        });
    }
    let request = StreamProfilesRequest {
        matchers,
        frame_filters,
        group_by,
        interval_ms: INTERVAL_MS,
    };
    let app = app::App::new(args.view, args.sort, args.range);
    live::run(connection, request, app, out.colour()).await
}

fn plain(rows: &Rows, args: &Args, out: &Out) -> String {
    let mut table = Table::new(&[">SELF", ">TOTAL", args.view.heading(), args.view.detail()]);
    for row in rows
        .sorted(args.view, args.sort)
        .into_iter()
        .take(args.limit)
    {
        table.row([
            units::percent(row.own, rows.total),
            units::percent(row.total, rows.total),
            row.name.clone(),
            row.detail.clone(),
        ]);
    }
    table.show(out)
}

#[derive(Serialize)]
struct Json<'a> {
    #[serde(flatten)]
    covered: Covered,
    view: &'static str,
    rows: Vec<JsonRow<'a>>,
}

#[derive(Serialize)]
struct JsonRow<'a> {
    name: &'a str,
    detail: &'a str,
    self_weight: u64,
    total_weight: u64,
    self_share: f64,
    total_share: f64,
}

impl<'a> Json<'a> {
    fn of(profile: &profile::Profile, rows: &'a Rows, args: &Args) -> Json<'a> {
        let row = |row: &'a Row| JsonRow {
            name: &row.name,
            detail: &row.detail,
            self_weight: row.own,
            total_weight: row.total,
            self_share: units::share(row.own, rows.total),
            total_share: units::share(row.total, rows.total),
        };
        Json {
            covered: Covered::of(profile),
            view: args.view.word(),
            rows: rows
                .sorted(args.view, args.sort)
                .into_iter()
                .take(args.limit)
                .map(row)
                .collect(),
        }
    }
}
