//! What Grafana's Profiles Drilldown asks a collector that has an hour of 50 hosts, and what the
//! collector's own page asks for the same.
//!
//! Three views, as somebody opens them: all services, the labels of one, its flame graph. Calls of
//! the browser are JSON, those of the data source protocol buffers. Each is asked on its own first,
//! for its CPU time and latency; then all of a view as a browser asks, six at a time. Services are
//! a panel each, as after scrolling through all of them: Drilldown asks for those in sight.
//!
//! Source: github.com/grafana/explore-profiles v1.4.0, `src/pages/ProfilesExplorerView`; how long
//! steps are, and what the data source asks: github.com/grafana/grafana-pyroscope-datasource.

use super::generate::{Fleet, WINDOW_S};
use super::http::Connection;
use super::queries::{Questions, asked_ms, fill};
use super::{SEED, SERVICES, past, start};
use crate::machine::Machine;
use crate::report::{self, Table, count, median, number};
use anyhow::{Context, ensure};
use prost::Message;
use proto::agent::TimeRange;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};
use testkit::fleet::Collector;
use tokio::task::{JoinSet, LocalSet};

const CPU: &str = "process_cpu:cpu:nanoseconds:cpu:nanoseconds";

/// Times that everything is asked; medians count, the first is told apart.
const REPEATS: usize = 5;

/// Connections of a browser.
const CONNECTIONS: usize = 6;

/// Step of a graph. The data source's least. Unit: seconds.
const STEP_S: f64 = 15.0;

/// Lines of a panel of a label.
const LINES: i64 = 10;

/// What questions of our own may take, which `benches queries` measures: a series by a label, and
/// the stacks of a service. Unit: milliseconds of CPU time.
const SERIES_AIM_MS: f64 = 100.0;
const STACKS_AIM_MS: f64 = 150.0;

/// Graphs without data are smaller. Unit: bytes.
const EMPTY_BYTES: usize = 100;

/// What is asked for.
#[derive(clap::Args)]
pub struct Args {
    /// Number of hosts
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=500))]
    hosts: u64,
    /// Minutes of the past to fill with data
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(2..=1440))]
    minutes: u64,
    /// Print Markdown tables
    #[arg(long)]
    markdown: bool,
}

/// A call.
#[derive(Clone)]
struct Call {
    /// How it is called in the table.
    name: &'static str,
    path: &'static str,
    kind: &'static str,
    body: Vec<u8>,
    aim_ms: Option<f64>,
}

/// Calls that are asked together, as soon as those before them are answered.
struct View {
    name: &'static str,
    calls: Vec<Vec<Call>>,
}

/// Runs the bench and prints its tables.
///
/// # Errors
/// When the collector cannot be started, goes away, refuses a window or cannot answer.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let hosts = args.hosts as usize;
    let fleet = Rc::new(Fleet::new(SEED, hosts, SERVICES));
    let dir = tempfile::tempdir()?;
    let collector = start(dir.path(), hosts);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let windows = args.minutes * 60 / WINDOW_S;
    let range = past(windows);
    let filling = fill(
        fleet.clone(),
        &collector,
        0..hosts,
        range.start_unix_ns,
        windows,
    );
    let (rows, _) = LocalSet::new().block_on(&runtime, filling)?;
    eprintln!("{} rows taken", count(Some(rows)));
    let service = &fleet.services[0].name;
    let asking = LocalSet::new();
    let (drilldown, own) = asking.block_on(&runtime, async {
        let views = views(&collector, range, service).await?;
        let drilldown = Asked::all(&collector, &views).await?;
        let own = own_page(&collector, range, service).await?;
        anyhow::Ok((drilldown, own))
    })?;
    print!("{}", report::machine(&Machine::here()));
    println!(
        "load     {hosts} hosts × {} min, {} rows; the service is on {} of them",
        args.minutes,
        count(Some(rows)),
        hosts_of(&fleet, 0)
    );
    for table in [calls_table(&drilldown), views_table(&drilldown, &own)] {
        print!(
            "{}",
            match args.markdown {
                true => table.markdown(),
                false => table.text(),
            }
        );
    }
    let status = collector.stop();
    ensure!(status.success(), "the collector ended with {status}");
    Ok(())
}

fn hosts_of(fleet: &Fleet, service: usize) -> usize {
    let hosts = fleet.hosts.iter();
    hosts
        .filter(|host| host.containers.iter().any(|of| of.service == service))
        .count()
}

/// What came of asking.
#[derive(Default)]
struct Asked {
    /// By the name of the call.
    calls: BTreeMap<&'static str, Answered>,
    views: Vec<Opened>,
}

/// How calls of a name were answered.
#[derive(Default)]
struct Answered {
    calls: usize,
    aim_ms: Option<f64>,
    cpu_ms: Vec<f64>,
    wall_ms: Vec<f64>,
    first_cpu_ms: f64,
}

/// A view that was opened.
struct Opened {
    name: &'static str,
    calls: usize,
    aim_ms: f64,
    bytes: usize,
    /// Each repeat. Unit: milliseconds.
    cpu_ms: Vec<f64>,
    wall_ms: Vec<f64>,
}

impl Asked {
    async fn all(collector: &Collector, views: &[View]) -> anyhow::Result<Asked> {
        let mut asked = Asked::default();
        let address = collector.options().http();
        let mut connection = Connection::open(&address).await?;
        for repeat in 0..REPEATS {
            for call in views.iter().flat_map(|view| view.calls.iter().flatten()) {
                let (begin, before) = (Instant::now(), asked_ms(collector)?);
                call.ask(&mut connection).await?;
                let wall_ms = begin.elapsed().as_secs_f64() * 1e3;
                let cpu_ms = asked_ms(collector)? - before;
                let answered = asked.calls.entry(call.name).or_default();
                if repeat == 0 {
                    answered.calls += 1;
                    answered.aim_ms = call.aim_ms;
                    answered.first_cpu_ms += cpu_ms;
                }
                answered.cpu_ms.push(cpu_ms);
                answered.wall_ms.push(wall_ms);
            }
        }
        for view in views {
            let all = || view.calls.iter().flatten();
            let mut opened = Opened {
                name: view.name,
                calls: all().count(),
                aim_ms: all().filter_map(|call| call.aim_ms).sum(),
                bytes: 0,
                cpu_ms: Vec::new(),
                wall_ms: Vec::new(),
            };
            for _ in 0..REPEATS {
                let (begin, before) = (Instant::now(), asked_ms(collector)?);
                let mut connections = Vec::new();
                for _ in 0..CONNECTIONS {
                    connections.push(Connection::open(&address).await?);
                }
                opened.bytes = 0;
                for together in &view.calls {
                    opened.bytes += ask_together(&mut connections, together).await?;
                }
                opened.wall_ms.push(begin.elapsed().as_secs_f64() * 1e3);
                opened.cpu_ms.push(asked_ms(collector)? - before);
            }
            asked.views.push(opened);
        }
        Ok(asked)
    }
}

/// Asks as a browser does: each of its connections takes the next call that nobody asks yet.
async fn ask_together(connections: &mut Vec<Connection>, calls: &[Call]) -> anyhow::Result<usize> {
    let waiting: Rc<std::cell::RefCell<Vec<Call>>> = Rc::new(std::cell::RefCell::new(
        calls.iter().rev().cloned().collect(),
    ));
    let mut tasks = JoinSet::new();
    for mut connection in connections.drain(..) {
        let waiting = waiting.clone();
        tasks.spawn_local(async move {
            let mut bytes = 0;
            loop {
                let next = waiting.borrow_mut().pop();
                let Some(call) = next else {
                    return anyhow::Ok((connection, bytes));
                };
                bytes += call.ask(&mut connection).await?;
            }
        });
    }
    let mut bytes = 0;
    while let Some(ended) = tasks.join_next().await {
        let (connection, read) = ended??;
        connections.push(connection);
        bytes += read;
    }
    Ok(bytes)
}

impl Call {
    fn json(name: &'static str, path: &'static str, body: &Value) -> Call {
        Call {
            name,
            path,
            kind: "application/json",
            body: body.to_string().into_bytes(),
            aim_ms: None,
        }
    }

    fn proto(name: &'static str, path: &'static str, body: &impl Message) -> Call {
        Call {
            name,
            path,
            kind: "application/proto",
            body: body.encode_to_vec(),
            aim_ms: None,
        }
    }

    fn aims(mut self, aim_ms: f64) -> Call {
        self.aim_ms = Some(aim_ms);
        self
    }

    /// Asks, and returns the bytes of the answer. A graph without data is an error: it would be
    /// answered soonest.
    async fn ask(&self, connection: &mut Connection) -> anyhow::Result<usize> {
        let headers = [("Content-Type", self.kind)];
        let answer = connection.post(self.path, &headers, self.body.clone());
        let answer = answer.await?;
        ensure!(
            self.aim_ms.is_none() || answer.len() > EMPTY_BYTES,
            "{} found nothing",
            self.name
        );
        Ok(answer.len())
    }
}

#[derive(Clone, PartialEq, Message)]
struct SelectSeries {
    #[prost(string, tag = "1")]
    profile_type_id: String,
    #[prost(string, tag = "2")]
    label_selector: String,
    #[prost(int64, tag = "3")]
    start: i64,
    #[prost(int64, tag = "4")]
    end: i64,
    #[prost(string, repeated, tag = "5")]
    group_by: Vec<String>,
    #[prost(double, tag = "6")]
    step: f64,
    #[prost(int64, optional, tag = "9")]
    limit: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct SelectMergeStacktraces {
    #[prost(string, tag = "1")]
    profile_type_id: String,
    #[prost(string, tag = "2")]
    label_selector: String,
    #[prost(int64, tag = "3")]
    start: i64,
    #[prost(int64, tag = "4")]
    end: i64,
    #[prost(int64, optional, tag = "5")]
    max_nodes: Option<i64>,
}

/// A list of names, as JSON.
async fn names(collector: &Collector, call: &Call) -> anyhow::Result<Vec<String>> {
    let mut connection = Connection::open(&collector.options().http()).await?;
    let headers = [("Content-Type", call.kind)];
    let answer = connection.post(call.path, &headers, call.body.clone());
    let answer: Value = serde_json::from_slice(&answer.await?)?;
    let names = answer["names"].as_array().context("no names")?;
    let names = names
        .iter()
        .filter_map(|name| Some(name.as_str()?.to_owned()));
    Ok(names.collect())
}

async fn views(
    collector: &Collector,
    range: TimeRange,
    service: &str,
) -> anyhow::Result<Vec<View>> {
    let (start, end) = (
        range.start_unix_ns / 1_000_000,
        range.end_unix_ns / 1_000_000,
    );
    let graph = |service: &str, by: Option<&str>| {
        let request = SelectSeries {
            profile_type_id: CPU.to_owned(),
            label_selector: format!("{{service_name=\"{service}\",}}"),
            start,
            end,
            group_by: by.iter().map(|&name| name.to_owned()).collect(),
            step: STEP_S,
            limit: by.map(|_| LINES),
        };
        let name = match by {
            None => "SelectSeries of a service",
            Some(_) => "SelectSeries of a service by a label",
        };
        Call::proto(name, "/querier.v1.QuerierService/SelectSeries", &request).aims(SERIES_AIM_MS)
    };
    let matcher = format!("{{__profile_type__=\"{CPU}\",service_name=\"{service}\",}}");
    let of_labels = |name: &str, matchers: &[&str]| json!({"name": name, "matchers": matchers, "start": start, "end": end});
    let label_names = Call::json(
        "LabelNames",
        "/querier.v1.QuerierService/LabelNames",
        &json!({"matchers": [matcher], "start": start, "end": end}),
    );
    let values_path = "/querier.v1.QuerierService/LabelValues";
    let all = of_labels(
        "service_name",
        &[format!("{{__profile_type__=\"{CPU}\"}}").as_str()],
    );
    let services = names(collector, &Call::json("", values_path, &all)).await?;
    let mut labels = names(collector, &label_names).await?;
    labels.retain(|name| !name.starts_with("__"));
    let values = labels.iter().map(|name| {
        Call::json(
            "LabelValues",
            values_path,
            &of_labels(name, &[matcher.as_str()]),
        )
    });
    let series = json!({
        "start": start, "end": end, "matchers": [],
        "labelNames": ["service_name", "__profile_type__"],
    });
    let stacks = SelectMergeStacktraces {
        profile_type_id: CPU.to_owned(),
        label_selector: format!("{{service_name=\"{service}\",}}"),
        start,
        end,
        max_nodes: Some(16_384),
    };
    let stacks = Call::proto(
        "SelectMergeStacktraces of a service",
        "/querier.v1.QuerierService/SelectMergeStacktraces",
        &stacks,
    );
    let settings = Call::json("Settings", "/settings.v1.SettingsService/Get", &json!({}));
    let stats = Call::json(
        "GetProfileStats",
        "/querier.v1.QuerierService/GetProfileStats",
        &json!({}),
    );
    let series = Call::json("Series", "/querier.v1.QuerierService/Series", &series);
    let types = ProfileTypes { start, end };
    let types = Call::proto(
        "ProfileTypes",
        "/querier.v1.QuerierService/ProfileTypes",
        &types,
    );
    Ok(vec![
        View {
            name: "all services",
            calls: vec![
                vec![stats],
                // The data source's editor asks for the types, Drilldown reads them in the series.
                vec![series, types],
                services.iter().map(|name| graph(name, None)).collect(),
            ],
        },
        View {
            name: "labels of a service",
            calls: vec![
                vec![graph(service, None), label_names.clone()],
                values.collect(),
                labels
                    .iter()
                    .map(|name| graph(service, Some(name)))
                    .collect(),
            ],
        },
        View {
            name: "flame graph of a service",
            calls: vec![vec![
                settings,
                label_names,
                graph(service, None),
                stacks.aims(STACKS_AIM_MS),
            ]],
        },
    ])
}

#[derive(Clone, PartialEq, Message)]
struct ProfileTypes {
    #[prost(int64, tag = "1")]
    start: i64,
    #[prost(int64, tag = "2")]
    end: i64,
}

/// What the collector's page asks: its overview, with the second half of the range against the
/// first, and the profile of a service. Each as often as everything else.
async fn own_page(
    collector: &Collector,
    range: TimeRange,
    service: &str,
) -> anyhow::Result<Vec<Opened>> {
    let mut questions = Questions::connect(collector, range).await?;
    let mut opened = Vec::new();
    for (name, is_overview, calls) in [
        ("the page: overview", true, 4),
        ("the page: profile of a service", false, 3),
    ] {
        let (mut cpu_ms, mut wall_ms) = (Vec::new(), Vec::new());
        for _ in 0..REPEATS {
            let (begin, before) = (Instant::now(), asked_ms(collector)?);
            match is_overview {
                true => questions.page_overview().await?,
                false => questions.page_profile(service).await?,
            }
            wall_ms.push(begin.elapsed().as_secs_f64() * 1e3);
            cpu_ms.push(asked_ms(collector)? - before);
            // What a question leaves to do is none of the next one's.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        opened.push(Opened {
            name,
            calls,
            aim_ms: 0.0,
            bytes: 0,
            cpu_ms,
            wall_ms,
        });
    }
    Ok(opened)
}

fn worst(all: &[f64]) -> f64 {
    all.iter().copied().fold(0.0, f64::max)
}

fn calls_table(asked: &Asked) -> Table {
    let mut table = Table::new(&[
        "call, one at a time",
        "calls",
        "CPU ms each",
        "of the aim",
        "first CPU ms",
        "wall ms",
        "worst wall ms",
    ]);
    for (name, of) in &asked.calls {
        let cpu_ms = median(&of.cpu_ms);
        table.row([
            (*name).to_owned(),
            of.calls.to_string(),
            number(Some(cpu_ms), 1),
            number(of.aim_ms.map(|aim_ms| cpu_ms / aim_ms), 2),
            number(Some(of.first_cpu_ms / of.calls as f64), 1),
            number(Some(median(&of.wall_ms)), 1),
            number(Some(worst(&of.wall_ms)), 1),
        ]);
    }
    table
}

fn views_table(asked: &Asked, own: &[Opened]) -> Table {
    let mut table = Table::new(&[
        "view, as a browser asks",
        "calls",
        "CPU-s",
        "CPU-s, least to most",
        "of the aims",
        "of the page's",
        "wall s",
        "KiB",
    ]);
    let sum = |views: &[Opened], of: fn(&Opened) -> f64| views.iter().map(of).sum::<f64>();
    let cpu = |view: &Opened| median(&view.cpu_ms);
    let page_ms = sum(own, cpu);
    for view in asked.views.iter().chain(own) {
        let least = view.cpu_ms.iter().copied().reduce(f64::min);
        table.row([
            view.name.to_owned(),
            view.calls.to_string(),
            number(Some(cpu(view) / 1e3), 3),
            format!(
                "{} to {}",
                number(least.map(|ms| ms / 1e3), 3),
                number(Some(worst(&view.cpu_ms) / 1e3), 3)
            ),
            number((view.aim_ms > 0.0).then(|| cpu(view) / view.aim_ms), 2),
            number(Some(cpu(view) / page_ms), 2),
            number(Some(median(&view.wall_ms) / 1e3), 2),
            match view.bytes {
                0 => "–".to_owned(),
                bytes => (bytes >> 10).to_string(),
            },
        ]);
    }
    for (name, views) in [
        ("all of Drilldown", &asked.views[..]),
        ("all of the page", own),
    ] {
        let aims_ms = sum(views, |view| view.aim_ms);
        let cpu_ms = sum(views, cpu);
        table.row([
            name.to_owned(),
            views
                .iter()
                .map(|view| view.calls)
                .sum::<usize>()
                .to_string(),
            number(Some(cpu_ms / 1e3), 3),
            String::new(),
            number((aims_ms > 0.0).then(|| cpu_ms / aims_ms), 2),
            number(Some(cpu_ms / page_ms), 2),
            number(Some(sum(views, |view| median(&view.wall_ms)) / 1e3), 2),
            String::new(),
        ]);
    }
    table
}
