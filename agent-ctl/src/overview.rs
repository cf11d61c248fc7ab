//! `agent-ctl overview`: shows what changed in a fleet, where, since when, and how certain that is.

mod firing;
mod waiting;

use crate::alerts::Shown;
use crate::baseline;
use crate::collector::{Collector, Samples};
use crate::fleet;
use crate::form::Form;
use crate::nothing;
use crate::peer::Connection;
use crate::select::{Labels, When};
use crate::source::{Question, Source};
use crate::terminal::{Out, Table, Tone, clean};
use crate::units;
use crate::when::{Clock, rfc3339};
use anyhow::Result;
use firing::Firing;
use profile::error_95;
use proto::collector::{
    Change, Outlier, OverviewFunction, OverviewRequest, OverviewResponse, OverviewRow,
};
use serde::Serialize;
use std::time::Duration;

/// Shows what changed on a fleet against a time before.
#[derive(Debug, clap::Args)]
#[command(
    mut_arg("since", |arg| arg.help("From this long ago, or this time, until now [default: 1h]")),
    after_help = "\
Only a collector knows a fleet: use --collector or FLEETPROF_COLLECTOR. CPU is in cores, as the \
kernel accounts it, so lost samples do not matter; with --comm, --pid or --thread it comes from \
samples. Only significant changes are listed: at most one in a hundred is chance. A change is the \
difference from SINCE on, and ± is its 95 % error. A change on a few hosts is found even if the \
sum over all hosts hides it. OUTLIERS are hosts that use more or less CPU for a service than \
its other hosts. THROTTLED are cgroups whose own CPU limit withheld 5 % or more of the CPU \
time that they wanted. PRESSURE is time in which tasks of a host waited: some task for a CPU \
(listed from 50 % on), or all of them for memory (5 %) or I/O (20 %). \
Alerts that fire are those of the complete fleet; `agent-ctl alerts` lists them.
Exit code 6: data of the range is missing.

Examples:
  agent-ctl --collector c1 overview
  agent-ctl --collector c1 overview --baseline yesterday
  agent-ctl --collector c1 overview --since 15m --by container --host web-1
  agent-ctl --collector c1 overview --from 14:00 --to 15:00 --baseline 10:00..11:00
  agent-ctl --collector c1 overview --json | jq -r '.services[] | select(.change.significant).name'"
)]
pub struct Args {
    #[command(flatten)]
    when: When,
    /// Range to compare with: `previous` (the same length right before), `yesterday`, `last-week`
    /// or FROM..TO
    #[arg(
        long,
        value_name = "BASELINE",
        default_value = "previous",
        allow_hyphen_values = true,
        help_heading = "Time"
    )]
    baseline: String,
    /// Label whose values are services
    #[arg(long, value_name = "LABEL", default_value = "unit")]
    by: String,
    #[command(flatten)]
    labels: Labels,
    /// Show all rows, not only those that changed
    #[arg(long, help_heading = "Output")]
    all: bool,
    /// Maximum number of rows in each table
    #[arg(
        long,
        value_name = "ROWS",
        default_value_t = 20,
        value_parser = crate::number::within::<u32>(1, 200),
        help_heading = "Output"
    )]
    limit: u32,
    /// Do not compare functions; comparing them takes most of the time
    #[arg(long, help_heading = "Output")]
    no_functions: bool,
    #[command(flatten)]
    form: Form,
}

/// The range when none is asked for.
const DEFAULT_SINCE: Duration = Duration::from_secs(3600);

/// Hosts of a change that are named.
const HOSTS_NAMED: usize = 3;

/// Runs the command.
pub async fn run(out: &Out, connection: &Connection, mut args: Args) -> Result<u8> {
    let peer = connection.collector_only("overview")?;
    let mut collector = Collector::connect(connection, &peer).await?;
    let clock = collector.clock().await?;
    args.when.or_since(DEFAULT_SINCE);
    let range = args.when.range(&clock)?;
    let samples = Samples {
        matchers: args.labels.matchers()?,
        filters: Vec::new(),
        ..Samples::default()
    };
    let (answer, fleet) = collector
        .overview(OverviewRequest {
            selection: Some(samples.selection(range)),
            baseline: baseline::named(&args.baseline, range, &clock)?,
            service_label: args.by.clone(),
            limit: args.limit,
            without_functions: args.no_functions,
            ..OverviewRequest::default()
        })
        .await?;
    let code = fleet::code(answer.services.is_empty(), Some(&fleet));
    let firing = Firing::ask(connection, &peer).await;
    if args.form.is_json() {
        out.write_json(&Json::of(&answer, &firing))?;
        return Ok(code);
    }
    if let Some(line) = firing.line(&clock) {
        out.write(&format!("{}\n", out.tone(Tone::Bad, &line)))?;
    }
    if answer.services.is_empty() {
        let mut source = Source::Collector(collector);
        let question = Question::of_labels(range, samples);
        let why = nothing::why_or_time(&mut source, &question, &clock).await?;
        note!("agent-ctl: {why}");
        fleet.note();
        return Ok(code);
    }
    let view = View {
        answer: &answer,
        clock: &clock,
        args: &args,
    };
    out.write(&view.show(out))?;
    fleet.note();
    for service in &answer.functions_missing {
        let service = name(service);
        note!("comparing functions of {service} took too much time or memory: use a shorter range");
    }
    Ok(code)
}

/// What is shown of an answer.
struct View<'a> {
    answer: &'a OverviewResponse,
    clock: &'a Clock,
    args: &'a Args,
}

impl View<'_> {
    fn show(&self, out: &Out) -> String {
        let mut text = String::new();
        for (tone, line) in self.verdict() {
            text.push_str(&out.tone(tone, &line));
            text.push('\n');
        }
        let answer = self.answer;
        let label = self.args.by.to_uppercase();
        self.add_rows(
            &mut text,
            out,
            &label,
            &answer.services,
            answer.services_left_out,
        );
        self.add_functions(&mut text, out);
        self.add_rows(&mut text, out, "HOST", &answer.hosts, answer.hosts_left_out);
        self.add_outliers(&mut text, out);
        waiting::add(&mut text, out, answer, self.clock, self.args.all);
        text
    }

    /// What is to be known first.
    fn verdict(&self) -> Vec<(Tone, String)> {
        let answer = self.answer;
        let mut lines = Vec::new();
        let fleet = answer.fleet.clone().unwrap_or_default();
        let against = answer.baseline.as_ref().and_then(|of| of.covered);
        let against = against.unwrap_or_default();
        let against = self
            .clock
            .show_range(against.start_unix_ns, against.end_unix_ns);
        let has_baseline = answer.baseline.as_ref().is_some_and(|of| of.hosts > 0);
        let cores = format!(
            "{:.2} cores on {} {}",
            fleet.cores,
            units::count(fleet.hosts.into()),
            if fleet.hosts == 1 { "host" } else { "hosts" }
        );
        if !has_baseline {
            lines.push((
                Tone::Warn,
                format!("{cores}; no data from {against} to compare with"),
            ));
            return lines;
        }
        let before = fleet.baseline_cores;
        let percent = relative(fleet.cores, before);
        lines.push((
            Tone::Strong,
            format!(
                "{cores}, {:+.2}{percent} against {against}",
                fleet.cores - before
            ),
        ));
        let changed: Vec<&OverviewRow> = significant(&answer.services).collect();
        if changed.is_empty() && significant(&answer.hosts).next().is_none() {
            let what = "nothing changed by more than chance, or by at least 0.02 cores and 3 %";
            lines.push((Tone::Good, what.to_owned()));
        }
        for row in changed.into_iter().take(3) {
            lines.push((Tone::Warn, self.sentence(row)));
        }
        lines
    }

    /// `api.service +1.25 ± 0.08 cores (+62 %) since 14:22:00 UTC on 1 of 3 hosts: web-1`.
    fn sentence(&self, row: &OverviewRow) -> String {
        let change = row.change.unwrap_or_default();
        let mut text = format!("{} {} cores", name(&row.name), amount(&change));
        if change.appeared {
            text.push_str(", new");
        } else if change.vanished {
            text.push_str(", gone");
        } else if row.hosts_changed == 0 || row.hosts_changed == row.hosts {
            text.push_str(&percent_of(change.cores, row.baseline_cores));
        }
        text.push_str(&match change.since_unix_ns {
            0 => " since before the range".to_owned(),
            since => format!(" since {}", self.clock.show_time(since)),
        });
        if change.until_unix_ns != 0 {
            let until = self.clock.show_time(change.until_unix_ns);
            text.push_str(&format!(" until {until}"));
        }
        if row.hosts_changed > 1 && row.hosts_changed == row.hosts {
            text.push_str(&format!(" on all {} hosts", row.hosts));
        } else if row.hosts_changed > 0 && row.hosts > 1 {
            let named = row.changed_hosts.iter().take(HOSTS_NAMED);
            let mut named: Vec<String> = named.map(|host| clean(host).into_owned()).collect();
            if row.hosts_changed as usize > named.len() {
                named.push("…".to_owned());
            }
            text.push_str(&format!(
                " on {} of {} hosts: {}",
                row.hosts_changed,
                row.hosts,
                named.join(", ")
            ));
        }
        text
    }

    fn add_rows(
        &self,
        text: &mut String,
        out: &Out,
        heading: &str,
        rows: &[OverviewRow],
        left_out: u64,
    ) {
        let shown = |row: &&OverviewRow| self.args.all || is_significant(row);
        let mut table = Table::new(&[
            heading, ">CORES", ">BEFORE", ">CHANGE", ">±", "SINCE", "HOSTS",
        ]);
        let mut any = false;
        for row in rows.iter().filter(shown) {
            any = true;
            let change = row.change.filter(|_| is_significant(row));
            let dash = || "-".to_owned();
            table.row([
                name(&row.name),
                format!("{:.2}", row.cores),
                format!("{:.2}", row.baseline_cores),
                change.map_or_else(dash, |change| match (change.appeared, change.vanished) {
                    (true, _) => format!("{:+.2} new", change.cores),
                    (_, true) => format!("{:+.2} gone", change.cores),
                    _ => format!("{:+.2}", change.cores),
                }),
                change.map_or_else(dash, |change| format!("{:.2}", error_95(change.error))),
                change.map_or_else(dash, |change| match change.since_unix_ns {
                    0 => "before".to_owned(),
                    since => self.clock.show_time(since),
                }),
                match (row.hosts_changed, row.hosts) {
                    (_, 0) => dash(),
                    (0, hosts) => hosts.to_string(),
                    (changed, hosts) => format!("{changed} of {hosts}"),
                },
            ]);
        }
        if !any {
            return;
        }
        text.push('\n');
        let table = table.sparing(&["HOSTS", "±", "BEFORE", "SINCE"]);
        text.push_str(&table.show(out));
        if left_out > 0 && self.args.all {
            text.push_str(&format!("{} more\n", units::count(left_out)));
        }
    }

    fn add_functions(&self, text: &mut String, out: &Out) {
        let functions = &self.answer.functions;
        if functions.is_empty() {
            return;
        }
        let mut table = Table::new(&[
            ">CORES", ">BEFORE", ">CHANGE", ">±", "FUNCTION", "MODULE", "OF",
        ]);
        for row in functions {
            table.row([
                format!("{:.2}", row.cores),
                format!("{:.2}", row.baseline_cores),
                format!("{:+.2}", row.cores - row.baseline_cores),
                format!("{:.2}", error_95(row.error)),
                row.name.clone(),
                row.module.clone(),
                name(&row.service),
            ]);
        }
        text.push('\n');
        text.push_str(&table.sparing(&["MODULE", "±", "BEFORE", "OF"]).show(out));
    }

    fn add_outliers(&self, text: &mut String, out: &Out) {
        let shown = |row: &&Outlier| self.args.all || !row.in_baseline;
        let rows: Vec<&Outlier> = self.answer.outliers.iter().filter(shown).collect();
        if rows.is_empty() {
            return;
        }
        let mut table = Table::new(&["OUTLIER", "OF", ">CORES", ">MEDIAN", ">HOSTS", "BEFORE"]);
        for row in rows {
            table.row([
                row.host.clone(),
                name(&row.service),
                format!("{:.2}", row.cores),
                format!("{:.2}", row.median_cores),
                row.hosts.to_string(),
                if row.in_baseline { "the same" } else { "-" }.to_owned(),
            ]);
        }
        text.push('\n');
        text.push_str(&table.sparing(&["HOSTS", "BEFORE"]).show(out));
    }
}

/// A name, or what stands for samples without the label.
fn name(name: &str) -> String {
    match name {
        "" => "(none)".to_owned(),
        name => clean(name).into_owned(),
    }
}

fn is_significant(row: &OverviewRow) -> bool {
    row.change.is_some_and(|change| change.significant)
}

fn significant(rows: &[OverviewRow]) -> impl Iterator<Item = &OverviewRow> {
    rows.iter().filter(|row| is_significant(row))
}

/// `+1.25 ± 0.08`.
fn amount(change: &Change) -> String {
    format!("{:+.2} ± {:.2}", change.cores, error_95(change.error))
}

/// ` (+62 %)` of what was; nothing of nothing.
fn percent_of(change: f64, before: f64) -> String {
    match before > 0.0 {
        true => format!(" ({:+.0} %)", change / before * 100.0),
        false => String::new(),
    }
}

fn relative(after: f64, before: f64) -> String {
    let change = after - before;
    match before > 0.0 && (change / before).abs() >= 0.005 {
        true => format!(" ({:+.0} %)", change / before * 100.0),
        false => String::new(),
    }
}

/// The answer for scripts.
#[derive(Serialize)]
struct Json<'a> {
    start: String,
    baseline_start: String,
    step_s: f64,
    accounted: bool,
    hosts: u64,
    hosts_alive: u64,
    gap_s: f64,
    fleet: Option<JsonRow<'a>>,
    services: Vec<JsonRow<'a>>,
    services_left_out: u64,
    host_rows: Vec<JsonRow<'a>>,
    host_rows_left_out: u64,
    functions: Vec<JsonFunction<'a>>,
    functions_missing: &'a [String],
    outliers: Vec<JsonOutlier<'a>>,
    #[serde(flatten)]
    waiting: waiting::Json<'a>,
    alerts_firing: Option<Vec<Shown<'a>>>,
}

#[derive(Serialize)]
struct JsonRow<'a> {
    name: &'a str,
    cores: f64,
    baseline_cores: f64,
    change: Option<JsonChange>,
    /// By step; null: no data.
    steps: Vec<Option<f32>>,
    baseline_steps: Vec<Option<f32>>,
    hosts: u32,
    changed_hosts: &'a [String],
    hosts_changed: u32,
}

#[derive(Serialize)]
struct JsonChange {
    cores: f64,
    error_95: f64,
    significant: bool,
    since: Option<String>,
    until: Option<String>,
    appeared: bool,
    vanished: bool,
}

#[derive(Serialize)]
struct JsonFunction<'a> {
    service: &'a str,
    name: &'a str,
    module: &'a str,
    cores: f64,
    baseline_cores: f64,
    error_95: f64,
    significant: bool,
    appeared: bool,
    vanished: bool,
}

#[derive(Serialize)]
struct JsonOutlier<'a> {
    host: &'a str,
    service: &'a str,
    cores: f64,
    median_cores: f64,
    deviations: f64,
    hosts: u32,
    in_baseline: bool,
}

impl<'a> Json<'a> {
    fn of(answer: &'a OverviewResponse, firing: &'a Firing) -> Json<'a> {
        let now = answer.now.clone().unwrap_or_default();
        Json {
            start: rfc3339(answer.start_unix_ns),
            baseline_start: rfc3339(answer.baseline_start_unix_ns),
            step_s: answer.step_ns as f64 / 1e9,
            accounted: answer.accounted,
            hosts: now.hosts,
            hosts_alive: now.hosts_alive,
            gap_s: now.gap_ns_total as f64 / 1e9,
            fleet: answer.fleet.as_ref().map(JsonRow::of),
            services: answer.services.iter().map(JsonRow::of).collect(),
            services_left_out: answer.services_left_out,
            host_rows: answer.hosts.iter().map(JsonRow::of).collect(),
            host_rows_left_out: answer.hosts_left_out,
            functions: answer.functions.iter().map(JsonFunction::of).collect(),
            functions_missing: &answer.functions_missing,
            outliers: answer.outliers.iter().map(JsonOutlier::of).collect(),
            waiting: waiting::Json::of(answer),
            alerts_firing: firing.json(),
        }
    }
}

impl<'a> JsonRow<'a> {
    fn of(row: &'a OverviewRow) -> JsonRow<'a> {
        let known = |steps: &[f32]| steps.iter().map(|of| (*of >= 0.0).then_some(*of)).collect();
        let time = |unix_ns: i64| (unix_ns != 0).then(|| rfc3339(unix_ns));
        JsonRow {
            name: &row.name,
            cores: row.cores,
            baseline_cores: row.baseline_cores,
            change: row.change.map(|change| JsonChange {
                cores: change.cores,
                error_95: error_95(change.error),
                significant: change.significant,
                since: time(change.since_unix_ns),
                until: time(change.until_unix_ns),
                appeared: change.appeared,
                vanished: change.vanished,
            }),
            steps: known(&row.steps),
            baseline_steps: known(&row.baseline_steps),
            hosts: row.hosts,
            changed_hosts: &row.changed_hosts,
            hosts_changed: row.hosts_changed,
        }
    }
}

impl<'a> JsonFunction<'a> {
    fn of(row: &'a OverviewFunction) -> JsonFunction<'a> {
        JsonFunction {
            service: &row.service,
            name: &row.name,
            module: &row.module,
            cores: row.cores,
            baseline_cores: row.baseline_cores,
            error_95: error_95(row.error),
            significant: row.significant,
            appeared: row.appeared,
            vanished: row.vanished,
        }
    }
}

impl<'a> JsonOutlier<'a> {
    fn of(row: &'a Outlier) -> JsonOutlier<'a> {
        JsonOutlier {
            host: &row.host,
            service: &row.service,
            cores: row.cores,
            median_cores: row.median_cores,
            deviations: row.deviations,
            hosts: row.hosts,
            in_baseline: row.in_baseline,
        }
    }
}
