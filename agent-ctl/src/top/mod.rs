//! `agent-ctl top`: shows functions, cgroups and processes live, or one table if there is no
//! terminal.
//!
//! The agent streams a small profile each second; the last few are kept and merged, so the view
//! covers a sliding range. `model.rs` turns profiles into rows; a collector is asked for the rows
//! of a view once per window (`fleet.rs`). `app.rs` holds what the user chose, `view.rs` draws,
//! `live.rs` runs everything.

mod app;
mod fleet;
mod live;
mod model;
mod view;

use crate::collector::{Collector, Samples};
use crate::form::Form;
use crate::peer::{Connection, Kind, Peer};
use crate::select::{self, Frames, Labels, fleet_option};
use crate::source::{Answer, Source};
use crate::summary::{self, ProfileFacts};
use crate::terminal::{Out, Table};
use crate::{exit, loss, nothing, units};
use anyhow::Result;
use model::{Row, Rows, View};
use proto::agent::StreamProfilesRequest;
use serde::Serialize;
use std::time::Duration;

/// Watches functions, cgroups and processes live.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Keys: Tab or 1 2 3 view, / filter, s sort by self or total, p pause, arrows and Page keys scroll, \
q quit. With --json, or if standard output is not a terminal, top prints one table. With a \
collector, top asks again every 10 seconds, the fourth view shows hosts, and processes with the \
same name are one row. Exit code 6: there are no samples, most were lost, or the collector misses \
part of the data.

Examples:
  agent-ctl top
  agent-ctl top --range 30s --unit nginx
  agent-ctl top --once --view cgroups --json
  agent-ctl --collector c1 top --view hosts
  agent-ctl --collector c1 top --once --range 1h --service checkout")]
pub struct Args {
    /// How far the view goes back from now [default: 10s; 1m with --collector]
    #[arg(
        long,
        visible_alias = "since",
        value_name = "DURATION",
        value_parser = crate::when::age,
        allow_hyphen_values = true
    )]
    range: Option<Duration>,
    /// View to start with
    #[arg(long, value_enum, default_value_t = View::Functions)]
    view: View,
    /// Column to sort by
    #[arg(long, value_enum, default_value_t = Sort::Own)]
    sort: Sort,
    /// Print one table and exit
    #[arg(long)]
    once: bool,
    /// Maximum number of rows in the printed table
    #[arg(
        long,
        value_name = "ROWS",
        default_value_t = 30,
        value_parser = crate::number::any::<usize>()
    )]
    limit: usize,
    #[command(flatten)]
    form: Form,
    #[command(flatten)]
    labels: Labels,
    #[command(flatten)]
    frames: Frames,
}

/// Column that rows are sorted by, largest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Sort {
    /// Time in the function or cgroup itself
    #[value(name = "self")]
    Own,
    /// Time with callees, or with the cgroups below
    Total,
}

impl Sort {
    /// Largest first, then by name.
    fn order(self, left: &Row, right: &Row) -> std::cmp::Ordering {
        let size = |row: &Row| match self {
            Sort::Own => (row.own, row.total),
            Sort::Total => (row.total, row.own),
        };
        size(right)
            .cmp(&size(left))
            .then_with(|| (&left.name, &left.detail).cmp(&(&right.name, &right.detail)))
    }
}

/// Longest range of a view that is live, of an agent or a fleet: what is kept of an agent's stream
/// grows with it, and so does what a collector adds up for each window. One table may be of any
/// time.
const RANGE_MAX: Duration = Duration::from_secs(600);

/// Shortest range of a view: a second's profile of the stream.
const RANGE_MIN: Duration = Duration::from_secs(1);

/// Time between profiles of the stream. Unit: milliseconds.
const INTERVAL_MS: u32 = 1000;

/// Range of the view when the command line does not give one. The windows of a fleet come ten to
/// twenty seconds late, so a range of ten would often be empty.
const RANGE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(60));

/// Rows of a view of a fleet on a terminal. More than anybody scrolls through.
const LIVE_ROWS: u32 = 1000;

/// Most rows a collector gives.
const ROWS_MAX: u32 = 10_000;

/// Runs the command.
pub async fn run(out: &Out, connection: &Connection, args: Args) -> Result<u8> {
    let peer = connection.peer()?;
    let once = args.once || args.form.is_json() || !out.is_terminal();
    let range = range(&args, peer.kind, once)?;
    let samples = Samples {
        matchers: args.labels.matchers()?,
        filters: args.frames.filters()?,
        ..Samples::default()
    };
    select::check(&samples.matchers, &peer)?;
    match (peer.kind, once) {
        (Kind::Collector, once) => {
            let most = if once { args.limit } else { LIVE_ROWS as usize };
            let question = fleet::Question {
                range,
                samples,
                limit: u32::try_from(most).unwrap_or(ROWS_MAX).clamp(1, ROWS_MAX),
            };
            if once {
                return fleet_once(out, connection, &peer, &question, &args).await;
            }
            let app = app::App::of_fleet(args.view, args.sort, peer.target.to_string());
            live::run_fleet(connection, &peer, question, app, out.colour()).await
        }
        (Kind::Agent, _) if args.view == View::Hosts => Err(fleet_option(
            "--view hosts",
            "an agent knows only its own host",
        )),
        (Kind::Agent, true) => agent_once(out, connection, &peer, range, samples, &args).await,
        (Kind::Agent, false) => {
            let request = StreamProfilesRequest {
                matchers: samples.matchers,
                frame_filters: samples.filters,
                group_by: model::GROUP_BY.map(str::to_owned).to_vec(),
                interval_ms: INTERVAL_MS,
            };
            let app = app::App::new(args.view, args.sort, range);
            live::run(connection, &peer, request, app, out.colour()).await
        }
    }
}

/// The range asked for, or the one that suits who is asked.
fn range(args: &Args, kind: Kind, once: bool) -> Result<Duration> {
    let default = match kind {
        Kind::Agent => RANGE.0,
        Kind::Collector => RANGE.1,
    };
    let range = args.range.unwrap_or(default);
    let bounds = match once {
        true if range < RANGE_MIN => "it must be at least 1 s".to_owned(),
        false if range > RANGE_MAX || range < RANGE_MIN => format!(
            "a live view covers 1 s to {}\n--once prints a table of any time",
            units::duration(RANGE_MAX)
        ),
        _ => return Ok(range),
    };
    let message = format!("failed to use --range: {bounds}");
    Err(exit::fail(exit::USAGE, message))
}

async fn agent_once(
    out: &Out,
    connection: &Connection,
    peer: &Peer,
    range: Duration,
    samples: Samples,
    args: &Args,
) -> Result<u8> {
    let mut source = Source::connect(connection, peer).await?;
    let clock = source.clock().await?;
    let question = crate::source::Question {
        range: crate::when::Range {
            start_ns: clock.ago_ns(range),
            end_ns: 0,
        },
        samples,
        group_by: model::GROUP_BY.map(str::to_owned).to_vec(),
        fresh: true,
        max_nodes: 0,
        times: false,
    };
    let asked = question.range;
    let Answer { profile, .. } = source.profile(question.clone()).await?;
    let rows = Rows::of(&profile);
    let end_ns = summary::end_ns(&profile.info);
    let missing = loss::of_profile(&profile).or_else(|| loss::of_time(asked, end_ns, &clock));
    if args.form.is_json() {
        let covered = ProfileFacts::of(&profile);
        out.write_json(&Json::of(covered, &rows, 0, args))?;
    } else if profile.samples.is_empty() {
        let why = nothing::why_or_time(&mut source, &question, &clock).await?;
        note!("agent-ctl: {why}");
    } else {
        out.write(&plain(&rows, args.view.detail(), args, out))?;
        note!("{}", summary::line(&profile, &clock));
    }
    if let Some(why) = &missing {
        loss::note(why);
    }
    Ok(if profile.samples.is_empty() || missing.is_some() {
        exit::PARTIAL
    } else {
        exit::OK
    })
}

async fn fleet_once(
    out: &Out,
    connection: &Connection,
    peer: &Peer,
    question: &fleet::Question,
    args: &Args,
) -> Result<u8> {
    let mut collector = Collector::connect(connection, peer).await?;
    let clock = collector.clock().await?;
    let table = fleet::ask(&mut collector, question, args.view, args.sort).await?;
    let made_of = table.fleet;
    let rows = Rows::only(args.view, table.rows, made_of.total_weight());
    if args.form.is_json() {
        let covered = ProfileFacts::of_fleet(&made_of);
        out.write_json(&Json::of(covered, &rows, table.left_out, args))?;
    } else if made_of.total_weight() == 0 {
        let range = crate::when::Range {
            start_ns: clock.ago_ns(question.range),
            end_ns: 0,
        };
        let asked = crate::source::Question::of_labels(range, question.samples.clone());
        let mut source = Source::Collector(collector);
        let why = nothing::why_or_time(&mut source, &asked, &clock).await?;
        note!("agent-ctl: {why}");
        made_of.note();
    } else {
        out.write(&plain(&rows, args.view.fleet_detail(), args, out))?;
        if table.left_out > 0 {
            note!("{} rows more", units::count(table.left_out));
        }
        note!("{}", summary::fleet_line(&made_of, &clock));
        made_of.note();
    }
    if let Some(why) = made_of.loss() {
        loss::note(&why);
    }
    Ok(crate::fleet::code(
        made_of.total_weight() == 0,
        Some(&made_of),
    ))
}

fn plain(rows: &Rows, detail: &str, args: &Args, out: &Out) -> String {
    let mut table = Table::new(&[">SELF", ">TOTAL", args.view.heading(), detail]);
    for row in rows
        .sorted(args.view, args.sort)
        .into_iter()
        .take(args.limit)
    {
        table.row([
            units::percent(row.own, rows.total),
            units::percent(row.total, rows.total),
            match row.name.as_str() {
                "" => "(none)".to_owned(),
                name => name.to_owned(),
            },
            row.detail.clone(),
        ]);
    }
    table.sparing(&[detail]).show(out)
}

#[derive(Serialize)]
struct Json<'a> {
    #[serde(flatten)]
    covered: ProfileFacts,
    view: &'static str,
    /// Rows beyond --limit.
    rows_left_out: u64,
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
    /// `left_out` are rows that never came here.
    fn of(covered: ProfileFacts, rows: &'a Rows, left_out: u64, args: &Args) -> Json<'a> {
        let row = |row: &'a Row| JsonRow {
            name: &row.name,
            detail: &row.detail,
            self_weight: row.own,
            total_weight: row.total,
            self_share: units::share(row.own, rows.total),
            total_share: units::share(row.total, rows.total),
        };
        let all = rows.sorted(args.view, args.sort);
        let beyond = all.len().saturating_sub(args.limit) as u64;
        Json {
            covered,
            view: args.view.word(),
            rows_left_out: left_out.saturating_add(beyond),
            rows: all.into_iter().take(args.limit).map(row).collect(),
        }
    }
}
