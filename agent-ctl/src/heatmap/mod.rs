//! `agent-ctl heatmap`: shows when samples were taken, with a column per second and a row per part
//! of it; and gets the profile of a range picked there.

mod pick;
mod text;

use crate::collector::Samples;
use crate::exit::{self, fail};
use crate::facts;
use crate::import::not_of_file;
use crate::look::Look;
use crate::loss;
use crate::nothing;
use crate::output::{OutputFile, by_name, choose, deliver};
use crate::peer::Connection;
use crate::render::{self, Format};
use crate::select::{self, Frames, Labels, When};
use crate::source::{Answer, Question, Source};
use crate::summary;
use crate::terminal::Out;
use crate::when::Clock;
use anyhow::Result;
use profile::formats::{Fact, heatmap, html};
use profile::heatmap::{Grid, HeatMap};
use profile::{GroupBy, Profile, key};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Forms of a heat map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MapFormat {
    Text,
    Svg,
    Html,
    Json,
}

impl MapFormat {
    /// The format that a file name asks for.
    fn of_path(path: &Path) -> Option<MapFormat> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "txt" => Some(MapFormat::Text),
            "svg" => Some(MapFormat::Svg),
            "html" | "htm" => Some(MapFormat::Html),
            "json" => Some(MapFormat::Json),
            _ => None,
        }
    }
}

/// Draws when samples were taken.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A column is a second, a row a part of that second. Bursts of some milliseconds, which a flame \
graph of minutes hides, show as spots. In the HTML, drag over a spot to see the flame graph of \
that time; --pick writes the profile in any format of `agent-ctl profile`. A range is FROM..TO \
(either end is optional); each end is a time (`14:03:05.2`), an offset from the start (`+12.5s`) \
or a cell (`COLUMN,ROW` from 0, as in the JSON). An agent keeps sample times for the last minutes. \
Files with sample times are JSON of agent-ctl, perf.data, perf script text and speedscope.
Exit code 6: there are no samples with times, or most samples were lost.

Examples:
  agent-ctl heatmap --since 5m
  agent-ctl heatmap --since 2m --unit nginx -o nginx.html
  agent-ctl heatmap --since 2m --pick 14:03:05.22..14:03:05.6 -o burst.svg
  agent-ctl heatmap capture.json --pick +12s..+12.3s --format folded
  agent-ctl heatmap perf.data -o perf.html")]
pub struct Args {
    /// File to read instead of an agent, `-` for standard input
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    when: When,
    #[command(flatten)]
    labels: Labels,
    #[command(flatten)]
    frames: Frames,
    /// Write the profile of this time range instead of the map
    #[arg(
        long,
        value_name = "RANGE",
        allow_hyphen_values = true,
        help_heading = "Time"
    )]
    pick: Option<String>,
    /// Number of rows in a column [default: 50, or 20 as text]
    #[arg(
        long,
        value_name = "ROWS",
        value_parser = crate::number::any::<u32>(),
        help_heading = "Output"
    )]
    rows: Option<u32>,
    /// Time that a column covers [default: 1s, more for long ranges]
    #[arg(long, value_name = "DURATION", value_parser = crate::when::duration, help_heading = "Output")]
    column: Option<Duration>,
    /// Format: text, svg, html or json; with --pick any format of `agent-ctl profile` [default:
    /// derived from the file name, or text, or folded with --pick]
    #[arg(long, value_name = "FORMAT", help_heading = "Output")]
    format: Option<String>,
    /// Use only ASCII characters
    #[arg(long, help_heading = "Output")]
    ascii: bool,
    #[command(flatten)]
    to: OutputFile,
    #[command(flatten)]
    look: Look,
    /// Suppress the coverage summary
    #[arg(short, long, help_heading = "Output")]
    quiet: bool,
}

/// What is to be written.
#[derive(Clone, Copy)]
enum What {
    Map(MapFormat),
    Picked(Format),
}

/// Runs the command.
pub async fn run(out: &Out, connection: &Connection, mut args: Args) -> Result<u8> {
    let what = what(out, &mut args)?;
    let samples = Samples {
        matchers: args.labels.matchers()?,
        filters: args.frames.filters()?,
        ..Samples::default()
    };
    let (profile, facts, clock) = match &args.file {
        Some(file) => {
            if args.when.since.is_some() || args.when.from.is_some() || args.when.to.is_some() {
                return Err(not_of_file("--since, --from and --to"));
            }
            let query = render::query(&samples.matchers, &samples.filters, group(&what))?;
            let path = file.clone();
            let read =
                move || -> Result<Profile> { Ok(render::read(&path)?.profile.query(&query)) };
            let profile = tokio::task::spawn_blocking(read).await??;
            let mut facts = facts::of_selection(&args.labels, &args.frames, &samples.matchers);
            facts.push(facts::fact("Query", "file", file.to_string_lossy()));
            (profile, facts, Clock::local())
        }
        None => match ask(connection, &args, samples, &what).await? {
            Some(found) => found,
            None => return Ok(exit::PARTIAL),
        },
    };
    if profile.timestamps.is_absent() {
        return Err(no_times(&args));
    }
    if profile.timestamps.list.is_empty() {
        note!("agent-ctl: no samples with times in the range: nothing written");
        return Ok(exit::PARTIAL);
    }
    let grid = Grid {
        column_ns: args.column.map_or(0, |column| {
            u64::try_from(column.as_nanos()).unwrap_or(u64::MAX)
        }),
        rows: args.rows.unwrap_or(match what {
            What::Map(MapFormat::Text) => text::ROWS,
            _ => Grid::default().rows,
        }),
    };
    let map = HeatMap::new(&profile.timestamps, grid)
        .map_err(|error| fail(exit::USAGE, error.to_string()))?;
    let columns = out.columns();
    let colour = out.colour();
    let work = move || write(args, what, profile, &map, &clock, facts, columns, colour);
    tokio::task::spawn_blocking(work).await?
}

#[expect(
    clippy::too_many_arguments,
    reason = "what a thread of its own takes along"
)]
fn write(
    args: Args,
    what: What,
    profile: Profile,
    map: &HeatMap,
    clock: &Clock,
    facts: Vec<Fact>,
    columns: Option<usize>,
    colour: bool,
) -> Result<u8> {
    let mut bytes = Vec::new();
    let options = render::options(&args.look, &profile.info, Vec::new(), Vec::new());
    let mut summary = heatmap::summary(&profile, map, options.measure);
    match what {
        What::Map(MapFormat::Text) => {
            let look = text::Look::of(args.ascii, columns, colour);
            bytes = text::draw(map, &look, options.measure, &profile.info.unit, clock).into_bytes();
        }
        What::Map(MapFormat::Svg) => heatmap::write_svg(&profile, map, &options, &mut bytes)?,
        What::Map(MapFormat::Json) => heatmap::write_json(&profile, map, &mut bytes)?,
        What::Map(MapFormat::Html) => {
            let options =
                render::options(&args.look, &profile.info, root_labels(&profile), Vec::new());
            html::write_heat_map(&profile, map, &options, &mut bytes)?;
        }
        What::Picked(format) => {
            let text = args.pick.as_deref().unwrap_or_default();
            let range = pick::range(text, map, &profile.timestamps, clock)
                .map_err(|error| fail(exit::USAGE, error.to_string()))?;
            let part = profile.between(range.start, range.end);
            if part.samples.is_empty() {
                note!("agent-ctl: no samples in the range picked: nothing written");
                return Ok(exit::PARTIAL);
            }
            let mut facts = facts;
            facts.push(facts::fact("Query", "picked", text));
            let extra = render::Extra {
                root_labels: match has_labels(format) {
                    true => Vec::new(),
                    false => root_labels(&part),
                },
                fleet: None,
                facts,
            };
            bytes = render::write_with(&part, format, &args.look, extra)?;
            summary = summary::line(&part, clock);
        }
    }
    deliver(&args.to.path, &bytes)?;
    if !args.quiet {
        note!("{}", crate::terminal::clean(&summary));
    }
    Ok(match loss::of_profile(&profile) {
        Some(why) => {
            loss::note(&why);
            exit::PARTIAL
        }
        None => exit::OK,
    })
}

/// Asks an agent for the samples with their times; `None`, and said why, where there are none.
async fn ask(
    connection: &Connection,
    args: &Args,
    samples: Samples,
    what: &What,
) -> Result<Option<(Profile, Vec<Fact>, Clock)>> {
    let peer = connection.agent_only(
        "heatmap",
        "a collector keeps no sample times; give a file, or use --agent",
    )?;
    select::check(&samples.matchers, &peer)?;
    let mut source = Source::connect(connection, &peer).await?;
    let clock = source.clock().await?;
    let group_by = match what {
        What::Picked(format) if has_labels(*format) => vec!["*".to_owned()],
        _ => vec![key::COMM.to_owned()],
    };
    let question = Question {
        range: args.when.range(&clock)?,
        samples,
        group_by,
        fresh: true,
        max_nodes: 0,
        times: true,
    };
    let mut facts = Vec::new();
    if let What::Picked(Format::Bundle) = what {
        facts = facts::of_question(&args.look, &question, &args.labels, &args.frames, &peer);
        facts.extend(facts::of_source(&mut source).await?);
    }
    let Answer { profile, .. } = source.profile(question.clone()).await?;
    if profile.samples.is_empty() {
        let why = nothing::why_or_time(&mut source, &question, &clock).await?;
        note!("agent-ctl: {why}: nothing written");
        return Ok(None);
    }
    Ok(Some((profile, facts, clock)))
}

/// True for formats that have labels of their own, and so all of them.
fn has_labels(format: Format) -> bool {
    matches!(
        format,
        Format::Top
            | Format::Pprof
            | Format::Json
            | Format::Firefox
            | Format::PerfScript
            | Format::Parquet
    )
}

fn group(what: &What) -> GroupBy {
    match what {
        What::Picked(format) if has_labels(*format) => GroupBy::All,
        _ => GroupBy::Keys(vec![key::COMM.to_owned()]),
    }
}

/// Processes stand below the root where samples say theirs.
fn root_labels(profile: &Profile) -> Vec<String> {
    let mut keys = profile.samples.keys();
    let named = keys.any(|sample| profile.dict.label(sample.labels, key::COMM).is_some());
    named.then(|| key::COMM.to_owned()).into_iter().collect()
}

fn no_times(args: &Args) -> anyhow::Error {
    let why = match args.file {
        Some(_) => {
            "failed to draw a heat map: the file has no sample times\nuse JSON of `agent-ctl \
             profile --times`, perf script text or speedscope"
        }
        None => {
            "failed to draw a heat map: the agent has no sample times for that range\nit keeps the \
             last minutes only: choose a shorter or later range"
        }
    };
    fail(exit::USAGE, why)
}

/// What to write, by `--pick`, `--format` and the name of the file.
fn what(out: &Out, args: &mut Args) -> Result<What> {
    use clap::ValueEnum as _;
    let refuse = |name: &str, all: &str| {
        fail(
            exit::USAGE,
            format!(
                "failed to write `{}`: expected {all}",
                crate::terminal::clean(name)
            ),
        )
    };
    if args.pick.is_some() {
        let format = match &args.format {
            Some(name) => Some(Format::from_str(name, true).map_err(|_| {
                let all = Format::value_variants().iter();
                let all: Vec<_> = all
                    .filter_map(|format| format.to_possible_value())
                    .collect();
                let all: Vec<_> = all.iter().map(|value| value.get_name()).collect();
                refuse(name, &all.join(", "))
            })?),
            None => None,
        };
        return Ok(What::Picked(choose(
            out,
            format,
            &args.to.path,
            &mut args.look,
        )?));
    }
    let Some(name) = &args.format else {
        let found = by_name(&args.to.path, MapFormat::of_path, ".txt .svg .html .json")?;
        return Ok(What::Map(found.unwrap_or(MapFormat::Text)));
    };
    Ok(What::Map(match name.as_str() {
        "text" => MapFormat::Text,
        "svg" => MapFormat::Svg,
        "html" | "htm" => MapFormat::Html,
        "json" => MapFormat::Json,
        other => {
            let hint = "text, svg, html or json; other formats need --pick";
            return Err(refuse(other, hint));
        }
    }))
}
