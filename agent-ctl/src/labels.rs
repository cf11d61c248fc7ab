//! `agent-ctl labels`: lists the labels of samples in a time range, or the values of one with the
//! CPU time of each.

use crate::collector::{Collector, Samples};
use crate::fleet::{self, Fleet};
use crate::form::Form;
use crate::nothing;
use crate::peer::Connection;
use crate::report::cores;
use crate::select::{self, Labels, When};
use crate::source::{Answer, Question, Source};
use crate::terminal::{Out, Table};
use crate::{group_by, units};
use anyhow::Result;
use profile::unit::time_unit_ns;
use profile::{Profile, TopBy, TopSort};
use proto::collector::TopRequest;
use serde::Serialize;

/// Lists the labels of samples, or the values of one.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
CORES is the mean number of CPUs in use over the range, from samples. Labels and values are what \
--unit, --container, --selector and --group-by take.
Exit code 6: there are no samples in the range, or data of it is missing.

Examples:
  agent-ctl labels
  agent-ctl labels unit
  agent-ctl labels comm --unit api --since 1h
  agent-ctl --collector c1 labels host --service checkout
  agent-ctl labels unit --json | jq -r '.values[].value'")]
pub struct Args {
    /// Label whose values are listed [default: list the labels]
    #[arg(value_name = "LABEL")]
    label: Option<String>,
    #[command(flatten)]
    when: When,
    #[command(flatten)]
    labels: Labels,
    /// Maximum number of values
    #[arg(
        long,
        value_name = "ROWS",
        default_value_t = 50,
        value_parser = crate::number::within::<u32>(1, 10_000),
        help_heading = "Output"
    )]
    limit: u32,
    #[command(flatten)]
    form: Form,
}

/// Values shown next to a label.
const EXAMPLES: u32 = 3;

/// Cells of an example.
const EXAMPLE_CELLS: usize = 40;

/// Most labels of a fleet that are asked for: each is a question.
const LABELS_MAX: usize = 64;

/// The values of one label.
#[derive(Debug, Default, Serialize)]
struct Values {
    label: String,
    /// Number of different values.
    count: u64,
    /// The heaviest of them.
    values: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    /// Empty: samples without the label.
    value: String,
    cores: f64,
    /// Of all selected samples, from 0 to 1.
    share: f64,
}

#[derive(Serialize)]
struct Json<'a> {
    labels: &'a [Values],
}

/// Runs the command.
pub async fn run(out: &Out, connection: &Connection, args: Args) -> Result<u8> {
    let peer = connection.peer()?;
    let samples = Samples {
        matchers: args.labels.matchers()?,
        filters: Vec::new(),
        ..Samples::default()
    };
    select::check(&samples.matchers, &peer)?;
    let mut source = Source::connect(connection, &peer).await?;
    let clock = source.clock().await?;
    let range = args.when.range(&clock)?;
    let question = Question::of_labels(range, samples);
    let limit = match args.label {
        Some(_) => args.limit,
        None => EXAMPLES,
    };
    let (found, fleet) = match &mut source {
        Source::Agent(_) => of_agent(&mut source, &question, args.label.as_deref(), limit).await?,
        Source::Collector(collector) => {
            of_fleet(collector, &question, args.label.as_deref(), limit).await?
        }
    };
    let is_empty = found.iter().all(|label| label.values.is_empty());
    let code = fleet::code(is_empty, fleet.as_ref());
    match (args.form.is_json(), args.label.is_some()) {
        (true, true) => out.write_json(&found.first())?,
        (true, false) => out.write_json(&Json { labels: &found })?,
        (false, _) if is_empty => {
            let why = nothing::why_or_time(&mut source, &question, &clock).await?;
            note!("agent-ctl: {why}");
        }
        (false, true) => out.write(&values(&found[0]).show(out))?,
        (false, false) => out.write(&names(&found).show(out))?,
    }
    if let (Some(label), false) = (
        found.first().filter(|_| args.label.is_some()),
        args.form.is_json(),
    ) {
        // Samples without the label are a row, and no value.
        let named = label.values.iter().filter(|row| !row.value.is_empty());
        let more = label.count.saturating_sub(named.count() as u64);
        if more > 0 {
            note!("{} more values: --limit shows more", units::count(more));
        }
    }
    if let (Some(fleet), false) = (&fleet, args.form.is_json()) {
        fleet.note();
    }
    Ok(code)
}

fn values(label: &Values) -> Table {
    let heading = label.label.to_uppercase();
    let mut table = Table::new(&[">CORES", ">%", &heading]);
    for row in &label.values {
        let value = match row.value.as_str() {
            "" => "(none)",
            value => value,
        };
        table.row([
            cores(row.cores),
            format!("{:.1}", row.share * 100.0),
            value.to_owned(),
        ]);
    }
    table
}

fn names(labels: &[Values]) -> Table {
    let mut table = Table::new(&["LABEL", ">VALUES", "MOST CPU"]);
    for label in labels {
        let values = label.values.iter().filter(|row| !row.value.is_empty());
        let values: Vec<String> = values
            .map(|row| {
                let value = crate::terminal::clean(&row.value).into_owned();
                crate::terminal::fit(&value, EXAMPLE_CELLS).into_owned()
            })
            .collect();
        table.row([
            label.label.clone(),
            units::count(label.count),
            values.join(", "),
        ]);
    }
    table
}

async fn of_agent(
    source: &mut Source,
    question: &Question,
    label: Option<&str>,
    limit: u32,
) -> Result<(Vec<Values>, Option<Fleet>)> {
    if let Some(label) = label {
        group_by::known_to_agent(&[label.to_owned()])?;
    }
    let mut asked = question.clone();
    asked.samples = Samples::by_labels(question.samples.matchers.clone());
    asked.group_by = vec![label.unwrap_or("*").to_owned()];
    let Answer { profile, fleet } = source.profile(asked).await?;
    let names = match label {
        Some(label) => vec![label.to_owned()],
        None => group_by::root_labels(&["*".to_owned()], &profile),
    };
    let found = names.iter().map(|label| of_profile(&profile, label, limit));
    Ok((found.collect(), fleet))
}

fn of_profile(profile: &Profile, label: &str, limit: u32) -> Values {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let by = TopBy::Label(label.to_owned());
    let top = profile.top(&by, TopSort::Own, usize::MAX);
    let named = top.rows.iter().filter(|row| !row.name.is_empty()).count();
    let rows = top.rows.iter().take(limit);
    let rate = Rate::of(
        &profile.info.unit,
        profile.info.duration_ns,
        top.total.weight,
    );
    Values {
        label: label.to_owned(),
        count: named as u64,
        values: rows
            .map(|row| rate.row(&row.name, row.own.weight))
            .collect(),
    }
}

/// What weights are of.
struct Rate {
    unit_ns: f64,
    covered_ns: f64,
    all: u64,
}

impl Rate {
    fn of(unit: &str, covered_ns: u64, all: u64) -> Rate {
        Rate {
            unit_ns: time_unit_ns(unit).map_or(0.0, |ns| ns as f64),
            covered_ns: covered_ns as f64,
            all,
        }
    }

    fn row(&self, value: &str, weight: u64) -> Row {
        let cores = weight as f64 * self.unit_ns / self.covered_ns;
        Row {
            value: value.to_owned(),
            cores: if cores.is_finite() { cores } else { 0.0 },
            share: units::share(weight, self.all),
        }
    }
}

async fn of_fleet(
    collector: &mut Collector,
    question: &Question,
    label: Option<&str>,
    limit: u32,
) -> Result<(Vec<Values>, Option<Fleet>)> {
    let mut names = collector.label_names(question.range, "").await?;
    if let Some(label) = label {
        group_by::known(&[label.to_owned()], &names)?;
        names = vec![label.to_owned()];
    }
    let names = group_by::ordered(names);
    if let Some(more) = names.len().checked_sub(LABELS_MAX).filter(|more| *more > 0) {
        let more = units::count(more as u64);
        note!("agent-ctl: {more} more labels are not listed: `agent-ctl labels LABEL` shows one");
    }
    let (mut found, mut last) = (Vec::new(), None);
    for label in names.into_iter().take(LABELS_MAX) {
        let request = TopRequest {
            selection: Some(question.samples.selection(question.range)),
            by: label.clone(),
            sort_by_total: false,
            limit,
        };
        let (rows, left_out, fleet) = collector.top(request).await?;
        let rate = Rate::of(fleet.unit(), fleet.covered_ns(), fleet.total_weight());
        let named = rows.iter().filter(|row| !row.name.is_empty()).count() as u64;
        let rows = rows.iter().filter(|row| row.self_weight > 0);
        found.push(Values {
            label,
            count: named + left_out,
            values: rows
                .map(|row| rate.row(&row.name, row.self_weight))
                .collect(),
        });
        last = Some(fleet);
    }
    Ok((found, last))
}
