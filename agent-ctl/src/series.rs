//! `agent-ctl series`: shows CPU over time, by any label, or what other senders measured. CPU is in
//! cores: the mean number of CPUs in use in each step.
//!
//! Where labels are of cgroups or hosts it comes from the kernel's accounting, which is exact even
//! where samples were lost; by process or thread it comes from samples. A step without data has no
//! number, which is not 0.

mod agent;
mod show;

use crate::collector::{Collector, Samples, is_of_senders};
use crate::exit::{self, fail};
use crate::fleet::{self, Fleet};
use crate::group_by;
use crate::nothing;
use crate::output::{OutputFile, by_name, deliver};
use crate::peer::Connection;
use crate::select::{self, Labels, When};
use crate::source::{Question, Source};
use crate::terminal::{Out, clean};
use crate::units;
use crate::when::Range;
use anyhow::Result;
use profile::unit::{TIME, time_unit_ns};
use proto::collector::{SeriesRequest, SeriesResponse};
use std::path::Path;
use std::time::Duration;

/// Shows CPU over time.
#[derive(Debug, clap::Args)]
#[command(
    mut_arg("since", |arg| arg.help("From this long ago, or this time, until now [default: 1h]")),
    after_help = "\
CPU is in cores: the mean number of CPUs in use in each step. By cgroup, unit, container or host \
it comes from the kernel's accounting, which is exact even where samples were lost; by comm, \
thread or pid it comes from samples. A step without data is left empty, and is not 0.
Exit code 6: there is no data in the range, or data of it is missing.

Examples:
  agent-ctl series --by unit --since 30m
  agent-ctl series --by comm --unit api --step 10s --since 5m --format table
  agent-ctl --collector c1 series --by host --service checkout --since 6h
  agent-ctl --collector c1 series --by unit --step 1m -o cpu.csv
  agent-ctl --collector c1 series --type memory:inuse_space:bytes:space:bytes --by service_name
  agent-ctl series --by unit --json | jq '.lines[] | {unit: .labels.unit, cores: .mean}'"
)]
pub struct Args {
    #[command(flatten)]
    when: When,
    /// Labels to group by [default: none, the sum of all]
    #[arg(long, value_name = "LABEL,…", value_delimiter = ',')]
    by: Vec<String>,
    /// Length of a step, rounded up to complete windows [default: the range in at most 60 steps]
    #[arg(long, value_name = "DURATION", value_parser = crate::when::duration)]
    step: Option<Duration>,
    #[command(flatten)]
    labels: Labels,
    /// Count samples even where the kernel's accounting is known
    #[arg(long)]
    samples: bool,
    /// Profile type of other senders or of captures in place of CPU time, by its id; `agent-ctl
    /// profile --type list` lists them (with --collector)
    #[arg(long = "type", value_name = "ID")]
    profile_type: Option<String>,
    /// Maximum number of lines; the lightest beyond it are added up
    #[arg(
        long,
        value_name = "LINES",
        default_value_t = 20,
        value_parser = crate::number::within::<u32>(1, 1_000),
        help_heading = "Output"
    )]
    limit: u32,
    /// Output format [default: by the file name, or text]
    #[arg(long, value_enum, help_heading = "Output")]
    format: Option<Format>,
    /// The same as --format json
    #[arg(long, conflicts_with = "format", help_heading = "Output")]
    json: bool,
    /// Use only ASCII characters
    #[arg(long, help_heading = "Output")]
    ascii: bool,
    #[command(flatten)]
    to: OutputFile,
}

/// Forms of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// A line each, with mean, extremes and a small chart
    Text,
    /// A row for each step, a column for each line
    Table,
    /// A row for each step of each line
    Csv,
    /// JSON for scripts
    Json,
}

impl Format {
    fn of_path(path: &Path) -> Option<Format> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "txt" => Some(Format::Table),
            "csv" => Some(Format::Csv),
            "json" => Some(Format::Json),
            _ => None,
        }
    }
}

/// The range when none is asked for.
const DEFAULT_SINCE: Duration = Duration::from_secs(3600);

/// Steps of a range when their length is not asked for: what a terminal has room for.
const STEPS: u64 = 60;

/// Lengths of steps that are chosen. Unit: seconds.
const STEPS_S: [u64; 14] = [
    10, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400,
];

/// Part of a step's samples above which it is said that they were lost.
const LOST_SHARE: f64 = 0.05;

/// CPU over time.
#[derive(Debug, Default)]
pub struct Series {
    /// Start of the first step. Unit: nanoseconds since the Unix epoch.
    pub start_ns: i64,
    /// Length of a step. Unit: nanoseconds.
    pub step_ns: u64,
    /// Names of the labels.
    pub labels: Vec<String>,
    /// Heaviest first; what is beyond the limit last.
    pub lines: Vec<Line>,
    /// Lines that are added up in the last one.
    pub rest_lines: u64,
    /// From the kernel's accounting.
    pub accounted: bool,
    /// By step: part of the samples that was lost.
    pub lost: Vec<f64>,
    /// What the numbers are.
    pub unit: Rate,
    /// Of a profile type of other senders.
    pub of_senders: bool,
}

/// The unit of numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Rate {
    /// CPUs in use.
    #[default]
    Cores,
    /// Seconds within a second, of time that is no CPU time.
    Time,
    /// So many of this unit in a second.
    PerSecond(String),
}

impl Rate {
    /// The rate of a profile type; empty: of CPU of agents.
    fn of(profile_type: &str) -> Rate {
        let mut parts = profile_type.split(':').skip(1);
        match (parts.next(), parts.next()) {
            (None, _) | (Some("cpu"), Some(TIME)) => Rate::Cores,
            (_, Some(TIME)) => Rate::Time,
            (_, unit) => Rate::PerSecond(unit.unwrap_or_default().to_owned()),
        }
    }

    /// Its name: `cores`, `s/s`, `bytes/s`.
    pub fn name(&self) -> String {
        match self {
            Rate::Cores => "cores".to_owned(),
            Rate::Time => "s/s".to_owned(),
            Rate::PerSecond(unit) => format!("{}/s", clean(unit)),
        }
    }

    /// A number for people.
    pub fn show(&self, value: f64) -> String {
        match self {
            Rate::PerSecond(unit) if unit == "bytes" => units::bytes(value.round() as u64),
            _ => crate::report::cores(value),
        }
    }
}

/// One line.
#[derive(Debug, Default, PartialEq)]
pub struct Line {
    /// Values of the labels, in their order; empty: without the label.
    pub values: Vec<String>,
    /// What is beyond the limit, added up.
    pub rest: bool,
    /// Rate by step, mostly in cores; `None`: no data.
    pub cores: Vec<Option<f64>>,
}

impl Line {
    /// Mean over the steps with data.
    pub fn mean(&self) -> f64 {
        let known = self.cores.iter().flatten().count();
        match known {
            0 => 0.0,
            known => self.cores.iter().flatten().sum::<f64>() / known as f64,
        }
    }
}

/// Runs the command.
pub async fn run(out: &Out, connection: &Connection, mut args: Args) -> Result<u8> {
    let format = match args.json.then_some(Format::Json).or(args.format) {
        Some(format) => format,
        None => by_name(&args.to.path, Format::of_path, ".txt .csv .json")?.unwrap_or(Format::Text),
    };
    let peer = connection.peer()?;
    let samples = Samples {
        matchers: args.labels.matchers()?,
        filters: Vec::new(),
        profile_type: select::profile_type(args.profile_type.as_deref(), &peer)?,
    };
    select::check(&samples.matchers, &peer)?;
    args.when.or_since(DEFAULT_SINCE);
    if !peer.is_collector() {
        group_by::known_to_agent(&args.by)?;
    }
    let mut source = Source::connect(connection, &peer).await?;
    let clock = source.clock().await?;
    let range = args.when.range(&clock)?;
    let question = Question {
        range,
        samples,
        group_by: args.by.clone(),
        fresh: true,
        max_nodes: 0,
        times: false,
    };
    // What is kept of agents says nothing of what others sent.
    let kept = match &question.samples.profile_type {
        of if of.is_empty() => source.kept().await?,
        _ => None,
    };
    let (series, fleet) = match &mut source {
        Source::Collector(collector) => {
            let found = of_fleet(collector, &question, &args, kept, clock.now_ns()).await?;
            (found.0, Some(found.1))
        }
        Source::Agent(client) => {
            let steps = steps(range, kept, clock.now_ns(), args.step);
            let found = agent::ask(client, &question, steps, args.samples).await?;
            (limited(found, args.limit as usize), None)
        }
    };
    let series = without_arriving(series, clock.now_ns());
    let is_empty = series
        .lines
        .iter()
        .all(|line| line.cores.iter().all(Option::is_none));
    let code = fleet::code(is_empty, fleet.as_ref());
    if is_empty && format != Format::Json {
        let why = nothing::why_or_time(&mut source, &question, &clock).await?;
        note!("agent-ctl: {why}: nothing written");
        return Ok(code);
    }
    let text = match format {
        Format::Text => show::text(&series, out, args.ascii),
        Format::Table => show::table(&series, out, &clock),
        Format::Csv => show::csv(&series),
        Format::Json => show::json(&series)?,
    };
    deliver(&args.to.path, text.as_bytes())?;
    if format != Format::Json {
        note_facts(&series, &clock);
        if let Some(fleet) = &fleet {
            fleet.note();
        }
    }
    Ok(code)
}

/// Windows take so long to close and arrive. Unit: nanoseconds.
const ARRIVING_NS: i64 = 30_000_000_000;

/// The series without its newest steps, where no window of them has closed yet.
fn without_arriving(mut series: Series, now_ns: i64) -> Series {
    let steps = series.lines.iter().map(|line| line.cores.len()).max();
    for at in (0..steps.unwrap_or(0)).rev() {
        let after = (series.step_ns * at as u64) as i64;
        let end_ns = series.start_ns.saturating_add(after);
        let end_ns = end_ns.saturating_add_unsigned(series.step_ns);
        let known = |line: &Line| line.cores.get(at).copied().flatten().is_some();
        let is_empty = !series.lines.iter().any(known);
        if !is_empty || end_ns < now_ns.saturating_sub(ARRIVING_NS) || at == 0 {
            break;
        }
        for line in &mut series.lines {
            line.cores.truncate(at);
        }
        series.lost.truncate(at);
    }
    series
}

/// Says what the numbers are of, and where they are less than they seem.
fn note_facts(series: &Series, clock: &crate::when::Clock) {
    let steps = series.lines.first().map_or(0, |line| line.cores.len());
    let length = i64::try_from(series.step_ns.saturating_mul(steps as u64)).unwrap_or(i64::MAX);
    note!(
        "{} from {}, {steps} steps of {} ({})",
        series.unit.name(),
        match (series.accounted, series.of_senders) {
            (true, _) => "the kernel's accounting",
            (false, true) => "profiles of other senders",
            (false, false) => "samples",
        },
        units::duration(Duration::from_nanos(series.step_ns)),
        clock.show_range(series.start_ns, series.start_ns.saturating_add(length)),
    );
    let lost = series.lost.iter().filter(|&&share| share > LOST_SHARE);
    match (lost.count(), series.accounted) {
        (0, _) => {}
        (steps, true) => note!("samples were lost in {steps} steps; the accounting has all of it"),
        (steps, false) => note!("samples were lost in {steps} steps: these numbers are too low"),
    }
}

/// Start of the first step, their length and their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    /// Unit: nanoseconds since the Unix epoch.
    pub start_ns: i64,
    /// Unit: nanoseconds.
    pub step_ns: u64,
    /// How many.
    pub count: u64,
}

/// The steps of a range: complete ones, by the clock, of what is kept of it.
fn steps(range: Range, kept: Option<(i64, i64)>, now_ns: i64, step: Option<Duration>) -> Steps {
    let (oldest_ns, _) = kept.unwrap_or((range.start_ns, now_ns));
    let start_ns = range.start_ns.max(oldest_ns);
    let end_ns = match range.end_ns {
        0 => now_ns,
        end_ns => end_ns.min(now_ns),
    };
    let length_ns = end_ns.saturating_sub(start_ns).max(1).unsigned_abs();
    let chosen_s = STEPS_S
        .into_iter()
        .find(|s| length_ns / (s * 1_000_000_000) < STEPS);
    let step_ns = match step {
        Some(step) => u64::try_from(step.as_nanos()).unwrap_or(u64::MAX),
        None => chosen_s.unwrap_or(86_400) * 1_000_000_000,
    };
    let step_ns = step_ns.clamp(1, i64::MAX as u64);
    let first_ns = start_ns - start_ns.rem_euclid(step_ns as i64);
    let count = end_ns
        .saturating_sub(first_ns)
        .max(0)
        .unsigned_abs()
        .div_ceil(step_ns);
    Steps {
        start_ns: first_ns,
        step_ns,
        count,
    }
}

/// The heaviest lines; the others are added up.
fn limited(mut series: Series, limit: usize) -> Series {
    let lines = &mut series.lines;
    lines.sort_by(|left, right| {
        let by_mean = right.mean().total_cmp(&left.mean());
        by_mean.then_with(|| left.values.cmp(&right.values))
    });
    if lines.len() <= limit {
        return series;
    }
    let rest = lines.split_off(limit);
    let mut sum = Line {
        values: Vec::new(),
        rest: true,
        cores: vec![None; rest[0].cores.len()],
    };
    for line in &rest {
        for (sum, cores) in sum.cores.iter_mut().zip(&line.cores) {
            if let Some(cores) = cores {
                *sum = Some(sum.unwrap_or(0.0) + cores);
            }
        }
    }
    series.rest_lines = rest.len() as u64;
    lines.push(sum);
    series
}

async fn of_fleet(
    collector: &mut Collector,
    question: &Question,
    args: &Args,
    kept: Option<(i64, i64)>,
    now_ns: i64,
) -> Result<(Series, Fleet)> {
    if args.by.iter().any(|label| label != profile::key::HOST) {
        let of = &question.samples.profile_type;
        group_by::known(&args.by, &collector.label_names(question.range, of).await?)?;
    }
    let chosen = steps(question.range, kept, now_ns, args.step);
    let request = SeriesRequest {
        selection: Some(question.samples.selection(question.range)),
        group_by: args.by.clone(),
        step_ns: chosen.step_ns,
        limit: args.limit,
        accounted: !args.samples,
    };
    let (answer, fleet) = collector.series(request).await?;
    let of = &question.samples.profile_type;
    let is_time = answer.accounted || time_unit_ns(fleet.unit()).is_some();
    if of.is_empty() && !is_time && fleet.total_weight() > 0 {
        return Err(fail(
            exit::USAGE,
            format!(
                "failed to show cores: the hosts sample {}, which is no time\nuse labels of \
                 cgroups or hosts, which have the kernel's accounting",
                crate::terminal::clean(fleet.unit())
            ),
        ));
    }
    let series = Series {
        unit: Rate::of(of),
        of_senders: is_of_senders(of),
        ..of_answer(&answer, fleet.unit(), &args.by)
    };
    Ok((series, fleet))
}

/// Rates of an answer. What arrived of a step is what its weights are of, as `SeriesStep` says.
fn of_answer(answer: &SeriesResponse, unit: &str, by: &[String]) -> Series {
    let unit_ns = match answer.accounted {
        true => 1.0,
        false => match time_unit_ns(unit) {
            Some(ns) => ns as f64,
            // A rate is of a second.
            None => profile::unit::base(unit).1 as f64 * 1e9,
        },
    };
    let count = answer.lines.iter().map(|line| line.weights.len()).max();
    let count = count.unwrap_or(answer.steps.len());
    // Time that the weights of a step are of; 0: a longer window before has them; `None`: no data.
    let mut covered: Vec<Option<u64>> = Vec::with_capacity(count);
    for at in 0..count {
        let step = answer.steps.get(at).copied().unwrap_or_default();
        let mean_ns = step.covered_ns.checked_div(step.hosts);
        // Where some hosts sent nothing, the lines of the others are as they were.
        let is_edge = at + 1 == count || at == 0 || step.hosts == 1;
        covered.push(match (mean_ns, is_edge) {
            (Some(ns), false) if ns > 0 => Some(ns.max(answer.step_ns)),
            (ns, _) => ns,
        });
    }
    let lost = (0..count).map(|at| {
        let step = answer.steps.get(at).copied().unwrap_or_default();
        units::share(step.lost_weight, step.weight)
    });
    let lost: Vec<f64> = lost.collect();
    let lines = answer.lines.iter().map(|line| {
        let mut cores: Vec<Option<f64>> = Vec::with_capacity(count);
        for at in 0..count {
            let weight = line.weights.get(at).copied().unwrap_or(0);
            cores.push(match covered[at] {
                None => None,
                Some(0) => cores.last().copied().flatten(),
                // Where all was lost, 0 would say that it stopped.
                _ if weight == 0 && !answer.accounted && lost[at] > 0.5 => None,
                Some(ns) => Some(weight as f64 * unit_ns / ns as f64),
            });
        }
        Line {
            values: match line.rest {
                true => Vec::new(),
                false => by
                    .iter()
                    .map(|label| line.labels.get(label).cloned().unwrap_or_default())
                    .collect(),
            },
            rest: line.rest,
            cores,
        }
    });
    Series {
        start_ns: answer.start_unix_ns,
        step_ns: answer.step_ns,
        labels: by.to_vec(),
        lines: lines.collect(),
        rest_lines: answer.rest_lines,
        accounted: answer.accounted,
        lost,
        ..Series::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::collector::{SeriesLine, SeriesStep};

    const S: u64 = 1_000_000_000;

    #[test]
    fn rates_are_named_by_what_a_type_counts() {
        for (of, name, shown) in [
            ("", "cores", "1.500"),
            ("sent_cpu:cpu:nanoseconds:cpu:nanoseconds", "cores", "1.500"),
            ("wall:wall:nanoseconds::", "s/s", "1.500"),
            ("memory:inuse_space:bytes:space:bytes", "bytes/s", "2 B"),
            ("process:goroutines:count::", "count/s", "1.500"),
        ] {
            let rate = Rate::of(of);
            assert_eq!(
                (rate.name().as_str(), rate.show(1.5).as_str()),
                (name, shown)
            );
        }
    }

    #[test]
    fn steps_are_whole_and_few() {
        let now = 10_000 * S as i64;
        let range = |start: u64| Range {
            start_ns: (start * S) as i64,
            end_ns: 0,
        };
        let kept = Some((0, now));
        let found = steps(range(6385), kept, now, None);
        assert_eq!((found.step_ns, found.count), (120 * S, 31));
        assert_eq!(found.start_ns % (120 * S as i64), 0);
        let found = steps(range(9700), kept, now, None);
        assert_eq!((found.step_ns, found.count), (10 * S, 30));
        // What is not kept has no steps.
        let found = steps(range(0), Some((9_940 * S as i64, now)), now, None);
        assert_eq!((found.step_ns, found.count), (10 * S, 6));
        let asked = steps(range(9_940), kept, now, Some(Duration::from_secs(30)));
        assert_eq!((asked.start_ns, asked.count), (9_930 * S as i64, 3));
    }

    #[test]
    fn rates_are_of_what_arrived_and_no_data_is_not_zero() {
        let step = |covered_s: u64, hosts| SeriesStep {
            covered_ns: covered_s * S,
            hosts,
            weight: 100,
            lost_weight: 0,
        };
        let answer = SeriesResponse {
            step_ns: 10 * S,
            lines: vec![SeriesLine {
                labels: [("unit".to_owned(), "a".to_owned())].into(),
                weights: vec![5 * S, 0, 20 * S, 20 * S],
                ..SeriesLine::default()
            }],
            // Half a window at the start, none, a host of two without data, the newest.
            steps: vec![step(10, 2), step(0, 0), step(10, 2), step(20, 2)],
            accounted: true,
            ..SeriesResponse::default()
        };
        let series = of_answer(&answer, "cycles", &["unit".to_owned()]);
        assert_eq!(
            series.lines[0].cores,
            [Some(1.0), None, Some(2.0), Some(2.0)]
        );
        assert_eq!(series.lines[0].values, ["a"]);
    }

    #[test]
    fn steps_that_are_on_their_way_are_left_out_and_old_gaps_are_not() {
        let series = |cores: &[Option<f64>]| Series {
            step_ns: 10 * S,
            lines: vec![Line {
                cores: cores.to_vec(),
                ..Line::default()
            }],
            lost: vec![0.0; cores.len()],
            ..Series::default()
        };
        let now_ns = 40 * S as i64;
        let found = without_arriving(series(&[Some(1.0), None, Some(1.0), None]), now_ns);
        assert_eq!(found.lines[0].cores, [Some(1.0), None, Some(1.0)]);
        assert_eq!(found.lost.len(), 3);
        let found = without_arriving(series(&[Some(1.0), None]), now_ns + 60 * S as i64);
        assert_eq!(found.lines[0].cores, [Some(1.0), None]);
    }

    #[test]
    fn lines_beyond_the_limit_are_added_up() {
        let line = |name: &str, cores: &[Option<f64>]| Line {
            values: vec![name.to_owned()],
            rest: false,
            cores: cores.to_vec(),
        };
        let series = Series {
            lines: vec![
                line("c", &[Some(0.5), None]),
                line("a", &[Some(2.0), Some(2.0)]),
                line("b", &[Some(0.25), None]),
            ],
            ..Series::default()
        };
        let series = limited(series, 1);
        assert_eq!(series.lines[0].values, ["a"]);
        assert_eq!(series.lines[1].cores, [Some(0.75), None]);
        assert_eq!((series.lines.len(), series.rest_lines), (2, 2));
    }
}
