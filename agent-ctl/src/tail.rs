//! `agent-ctl tail`: prints a line for each window as it closes.

use crate::client::Client;
use crate::form::Form;
use crate::peer::Connection;
use crate::select::{self, Frames, Labels};
use crate::summary::{self, ProfileFacts};
use crate::terminal::{Out, Tone, clean, fit, json};
use crate::when::Clock;
use crate::{exit, units};
use anyhow::Result;
use profile::{Profile, TopBy, TopSort, key};
use proto::agent::StreamProfilesRequest;
use serde::Serialize;

/// Prints a line for each window as it closes.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Runs until you interrupt it. Exit code 5: the agent ended the stream.

Examples:
  agent-ctl tail
  agent-ctl tail --unit nginx --json | jq -r .top_function.name")]
pub struct Args {
    #[command(flatten)]
    labels: Labels,
    #[command(flatten)]
    frames: Frames,
    /// Stop after this many windows
    #[arg(
        short = 'n',
        long,
        value_name = "COUNT",
        value_parser = crate::number::any::<u64>()
    )]
    count: Option<u64>,
    #[command(flatten)]
    form: Form,
}

/// Cells of a function name in a line, so that a line stays one on most terminals.
const NAME_CELLS: usize = 40;

#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    covered: ProfileFacts,
    missed_windows: u32,
    top_cgroup: Option<Share<'a>>,
    top_function: Option<Share<'a>>,
}

#[derive(Serialize)]
struct Share<'a> {
    name: &'a str,
    weight: u64,
    share: f64,
}

/// Runs the command.
pub async fn run(out: &Out, connection: &Connection, args: Args) -> Result<u8> {
    let instead = "use `agent-ctl top --collector HOST:PORT` to follow a fleet";
    let agent = connection.agent_only("tail", instead)?;
    let matchers = args.labels.matchers()?;
    select::check(&matchers, &agent)?;
    let request = StreamProfilesRequest {
        matchers,
        frame_filters: args.frames.filters()?,
        group_by: vec![key::CGROUP.to_owned()],
        interval_ms: 0,
    };
    let mut stream = Client::connect(connection, &agent)
        .await?
        .stream(request)
        .await?;
    let clock = Clock::local();
    let mut left = args.count.unwrap_or(u64::MAX);
    while left > 0 {
        let Some((profile, missed)) = stream.next().await? else {
            return Err(exit::fail(
                exit::UNREACHABLE,
                "failed to follow the agent: it ended the stream",
            ));
        };
        out.write(&line(out, &clock, &profile, missed, args.form.is_json())?)?;
        left -= 1;
    }
    Ok(exit::OK)
}

fn line(out: &Out, clock: &Clock, profile: &Profile, missed: u32, as_json: bool) -> Result<String> {
    let cgroups = profile.top(&TopBy::Label(key::CGROUP.to_owned()), TopSort::Own, 1);
    let functions = profile.top(&TopBy::Function, TopSort::Own, 1);
    let total = functions.total;
    let (cgroup, function) = (cgroups.rows.first(), functions.rows.first());
    if as_json {
        let share = |row: &'_ profile::TopRow| units::share(row.own.weight, total.weight);
        let line = Line {
            covered: ProfileFacts::of(profile),
            missed_windows: missed,
            top_cgroup: cgroup.map(|row| Share {
                name: &row.name,
                weight: row.own.weight,
                share: share(row),
            }),
            top_function: function.map(|row| Share {
                name: &row.name,
                weight: row.own.weight,
                share: share(row),
            }),
        };
        return Ok(json(&line, false)? + "\n");
    }
    let named = |row: Option<&profile::TopRow>| match row {
        Some(row) => {
            let name = clean(&row.name);
            let share = units::percent(row.own.weight, total.weight);
            format!("{} {share}", fit(&name, NAME_CELLS))
        }
        None => "-".to_owned(),
    };
    let time = clock.show_time(summary::end_ns(&profile.info));
    let mut text = format!(
        "{}  {:>7} samples  {}  {}  {}",
        out.tone(Tone::Strong, &time),
        units::count(total.count),
        named(cgroup),
        named(function),
        out.tone(Tone::Dim, &summary::missing(&profile.info.quality)),
    );
    if missed > 0 {
        let missed = format!("  ({missed} windows missed)");
        text.push_str(&out.tone(Tone::Warn, &missed));
    }
    text.push('\n');
    Ok(text)
}
