//! How often the overview finds a change, how soon, and how often it says that there is one where
//! there is none: simulated hosts push three hours for each trial, and the collector is asked as
//! the page asks it.
//!
//! Load is made up: of each service on each host it is a level times waves that fade within a
//! minute, times bursts of a minute, times traffic that drifts over minutes, on all hosts of a
//! service alike and on each by itself, times the day's slow swing; one service runs a job every
//! ten minutes. Hosts number and time their windows as agents do. What real loads do beyond that is
//! not in it.
//!
//! With `--day` it measures instead what an overview of a day costs the collector.

use crate::cost::Usage;
use crate::fleet::Random;
use crate::machine::Machine;
use crate::report::{self, Table, number};
use anyhow::ensure;
use proto::agent::TimeRange;
use proto::collector::push_response;
use proto::collector::query_service_client::QueryServiceClient;
use proto::collector::{
    Ack, Hello, HostFacts, Outcome, OverviewRequest, OverviewResponse, Selection, WindowFacts,
    WindowPart,
};
use std::time::Instant;
use testkit::fake::push::PushStream;
use testkit::fake::window::{hash, labels};
use testkit::fleet::{Collector, Options};
use testkit::numbering;
use tokio::task::{JoinSet, LocalSet};
use tonic::transport::{Channel, Endpoint};

/// Hosts, and on how many of them the service changes.
const HOSTS: usize = 12;
const CHANGED: usize = 4;

/// Services and their cores on each host.
const SERVICES: [(&str, f64); 5] = [
    ("api.service", 1.0),
    ("db.service", 2.5),
    ("cache.service", 0.3),
    ("batch.service", 0.05),
    ("agent.service", 0.02),
];

/// The service that runs a job, and the one that changes.
const JOB: usize = 3;
const SLOWER: usize = 0;

/// Length of a window. Unit: seconds.
const WINDOW_S: u64 = 10;
/// Windows of a trial: each hour that is looked at has a complete one before it.
const WINDOWS: u64 = 1080;
/// The window of a trial in which the change begins: forty minutes before its end.
const BEGINS: u64 = 840;
/// Minutes after the change at which the overview is asked for.
const ASKED_AFTER: [u64; 6] = [2, 3, 5, 10, 20, 40];
/// Changes of the service on the hosts that change. Unit: percent.
const CHANGES: [u32; 5] = [0, 5, 10, 20, 40];
/// Windows that a host sends before it waits.
const TOGETHER: u32 = 40;
/// How traffic drifts: what a window keeps of the deviation of the one before, so that it fades
/// within eight minutes, and its standard deviation, over all hosts of a service and of one host.
const DRIFT_KEPT: f64 = 0.979;
const DRIFT: (f64, f64) = (0.03, 0.03);
/// Hosts of `--day`, their units, and times that the overview is asked for.
const DAY_HOSTS: usize = 50;
const DAY_UNITS: usize = 60;
const DAY_REPEATS: usize = 5;
/// Windows of a day.
const DAY_WINDOWS: u64 = 86_400 / WINDOW_S;
const SEED: u64 = 1;
const SECOND: i64 = 1_000_000_000;

/// What is asked for.
#[derive(clap::Args)]
pub struct Args {
    /// Number of trials for each change
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=50))]
    trials: u64,
    /// Measure instead what an overview of 24 hours of 50 hosts costs
    #[arg(long)]
    day: bool,
    /// Print Markdown tables
    #[arg(long)]
    markdown: bool,
}

/// Runs the bench and prints its table.
///
/// # Errors
/// When the collector cannot be started, refuses a window or cannot answer.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if args.day {
        return day(args.markdown);
    }
    let begun = Instant::now();
    let dir = tempfile::tempdir()?;
    let collector = Options::new().start(dir.path());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let trials: Vec<(u64, u32)> = (0..args.trials)
        .flat_map(|trial| CHANGES.map(|change| (trial, change)))
        .collect();
    // One after the other in the past, an hour apart, so that none is the baseline of another.
    let length = (WINDOWS * WINDOW_S) as i64 * SECOND + 3600 * SECOND;
    let end = testkit::clock::unix_ns() / length * length;
    let first = end - trials.len() as i64 * length;
    let local = LocalSet::new();
    local.block_on(&runtime, fill(&collector, &trials, (first, length)))?;
    let filled = begun.elapsed();
    let mut found: Vec<(u32, Verdict)> = Vec::new();
    runtime.block_on(async {
        let mut client = client(&collector).await?;
        for (at, (_, change)) in trials.iter().enumerate() {
            let start = first + at as i64 * length;
            found.push((*change, verdict(&mut client, start, *change).await?));
        }
        anyhow::Ok(())
    })?;
    let status = collector.stop();
    ensure!(status.success(), "the collector ended with {status}");
    print!("{}", report::machine(&Machine::here()));
    println!(
        "load     {HOSTS} simulated hosts with {} services; one changes on {CHANGED} of them; {} \
         trials of each change",
        SERVICES.len(),
        args.trials
    );
    let mut headings = vec![
        "change on a third".to_owned(),
        "of the service".to_owned(),
        "wrong".to_owned(),
    ];
    headings.extend(ASKED_AFTER.map(|minutes| format!("found after {minutes} min")));
    headings.push("hosts named right".to_owned());
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    let mut table = Table::new(&headings);
    for change in CHANGES {
        let of = || found.iter().filter(|(of, _)| *of == change);
        let total = of().count();
        let share = |count: usize| format!("{count} of {total}");
        let mut row = vec![
            format!("{change} %"),
            format!(
                "{} %",
                number(Some(f64::from(change) * CHANGED as f64 / HOSTS as f64), 1)
            ),
            share(of().filter(|(_, verdict)| verdict.wrong).count()),
        ];
        for at in 0..ASKED_AFTER.len() {
            row.push(match change {
                0 => "–".to_owned(),
                _ => share(of().filter(|(_, verdict)| verdict.found[at]).count()),
            });
        }
        let named = of().filter(|(_, verdict)| verdict.hosts_right).count();
        row.push(if change == 0 {
            "–".to_owned()
        } else {
            share(named)
        });
        table.row(row);
    }
    print!(
        "{}",
        match args.markdown {
            true => table.markdown(),
            false => table.text(),
        }
    );
    println!(
        "time     {:.1} s a trial, of which {:.1} s push its three hours",
        begun.elapsed().as_secs_f64() / trials.len() as f64,
        filled.as_secs_f64() / trials.len() as f64
    );
    println!(
        "wrong: a trial in which the overview, at any of these times, marks something that did not change"
    );
    Ok(())
}

/// What the overview said of a trial.
#[derive(Default)]
struct Verdict {
    /// By time of asking.
    found: [bool; ASKED_AFTER.len()],
    /// In the end it names the hosts that changed, and no other.
    hosts_right: bool,
    /// It marked something that did not change.
    wrong: bool,
}

async fn client(collector: &Collector) -> anyhow::Result<QueryServiceClient<Channel>> {
    let address = format!("http://{}", collector.options().grpc());
    let channel = Endpoint::from_shared(address)?.connect().await?;
    Ok(QueryServiceClient::new(channel))
}

/// Asks as the page does on each of the minutes after the change: the last hour against the one
/// before it.
async fn verdict(
    client: &mut QueryServiceClient<Channel>,
    start: i64,
    change: u32,
) -> anyhow::Result<Verdict> {
    // Where nothing changed every mark is wrong.
    let slower = if change == 0 { 0 } else { CHANGED };
    let begins = start + (BEGINS * WINDOW_S) as i64 * SECOND;
    let mut verdict = Verdict::default();
    for (at, minutes) in ASKED_AFTER.into_iter().enumerate() {
        let end = begins + (minutes * 60) as i64 * SECOND;
        let hour = 3600 * SECOND;
        let range = |start_unix_ns, end_unix_ns| {
            Some(TimeRange {
                start_unix_ns,
                end_unix_ns,
            })
        };
        let request = OverviewRequest {
            selection: Some(Selection {
                range: range(end - hour, end),
                ..Selection::default()
            }),
            baseline: range(end - 2 * hour, end - hour),
            limit: 200,
            without_functions: true,
            ..OverviewRequest::default()
        };
        let answer = client.overview(request).await?.into_inner();
        let changed = marked(&answer);
        verdict.found[at] = changed.contains(&SERVICES[SLOWER].0.to_owned());
        verdict.wrong |= changed.iter().any(|name| {
            let is_host = (0..slower).any(|host| *name == host_name(host));
            !(is_host || slower > 0 && *name == SERVICES[SLOWER].0)
        });
        let mut services = answer.services.iter();
        if let Some(row) = services.find(|row| row.name == SERVICES[SLOWER].0) {
            let mut named = row.changed_hosts.clone();
            named.sort();
            let expected: Vec<String> = (0..slower).map(host_name).collect();
            verdict.hosts_right = named == expected;
            verdict.wrong |= named.iter().any(|name| !expected.contains(name));
        }
    }
    Ok(verdict)
}

/// Names of services and hosts that are marked as changed or as outliers.
fn marked(answer: &OverviewResponse) -> Vec<String> {
    let rows = answer.services.iter().chain(&answer.hosts);
    let rows = rows.filter(|row| row.change.is_some_and(|change| change.significant));
    let outliers = answer
        .outliers
        .iter()
        .filter(|outlier| !outlier.in_baseline);
    rows.map(|row| row.name.clone())
        .chain(outliers.map(|outlier| outlier.host.clone()))
        .collect()
}

fn host_name(host: usize) -> String {
    format!("web-{host:02}")
}

/// Pushes all trials.
async fn fill(
    collector: &Collector,
    trials: &[(u64, u32)],
    (first, length): (i64, i64),
) -> anyhow::Result<()> {
    let address = collector.options().grpc();
    let mut tasks = JoinSet::new();
    for host in 0..HOSTS {
        let (address, trials) = (address.clone(), trials.to_vec());
        tasks.spawn_local(async move {
            let mut stream = connect(&address, host).await?;
            let mut is_first = true;
            let mut waiting = 0;
            for (at, (trial, change)) in trials.iter().enumerate() {
                let start = first + at as i64 * length;
                let mut load = Load::new(host, *trial, *change);
                for window in 0..WINDOWS {
                    let offset = (window * WINDOW_S) as i64 * SECOND;
                    let cores = load.next(window, start + offset);
                    let part = part(host, (start + offset, first), is_first, cores);
                    if std::mem::take(&mut is_first) {
                        is_stored(&stream.store_part(part, &["main;serve"]).await)?;
                        continue;
                    }
                    stream.part(part).await;
                    waiting += 1;
                    // Several are made durable together.
                    if waiting == TOGETHER || window + 1 == WINDOWS {
                        while waiting > 0 {
                            acknowledged(&mut stream).await?;
                            waiting -= 1;
                        }
                    }
                }
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

fn is_stored(ack: &Ack) -> anyhow::Result<()> {
    ensure!(
        ack.outcome() == Outcome::Stored,
        "a window was not stored: {ack:?}"
    );
    Ok(())
}

async fn acknowledged(stream: &mut PushStream) -> anyhow::Result<()> {
    match stream.next().await? {
        push_response::Body::Ack(ack) => is_stored(&ack),
        other => anyhow::bail!("neither stored nor refused, but {other:?}"),
    }
}

async fn connect(address: &str, host: usize) -> anyhow::Result<PushStream> {
    let channel = Endpoint::from_shared(format!("http://{address}"))?
        .connect()
        .await?;
    let mut stream = PushStream::connect(channel).await?;
    stream
        .hello(Hello {
            host_id: format!("simulated-{host:05}"),
            boot_id: vec![host as u8; 16],
            facts: Some(HostFacts {
                hostname: host_name(host),
                cpus_online: 8,
                agent_version: "simulated".to_owned(),
                ..HostFacts::default()
            }),
            now_unix_ns: testkit::clock::unix_ns(),
        })
        .await;
    Ok(stream)
}

/// A window of one host: of each service a sample and what the kernel accounts.
fn part(
    host: usize,
    (start_unix_ns, first): (i64, i64),
    is_first: bool,
    cores: [f64; SERVICES.len()],
) -> WindowPart {
    let named: Vec<(&str, f64)> = SERVICES.iter().map(|(name, _)| *name).zip(cores).collect();
    part_of(host, (start_unix_ns, first), is_first, &named)
}

/// The same of any units with their cores.
fn part_of(
    host: usize,
    (start_unix_ns, first): (i64, i64),
    is_first: bool,
    units: &[(&str, f64)],
) -> WindowPart {
    let sets = units.iter().map(|(name, _)| {
        let cgroup = format!("/system.slice/{name}");
        labels(&[("cgroup", cgroup.as_str()), ("unit", name)])
    });
    let ns = units.iter();
    let ns = ns.map(|(_, cores)| (cores * (WINDOW_S as i64 * SECOND) as f64) as u64);
    let ns: Vec<u64> = ns.collect();
    let ids = 1..=units.len() as u32;
    WindowPart {
        sequence: numbering::sequence(host as u64, start_unix_ns - first),
        last: true,
        new_dictionary: is_first,
        label_sets: if is_first { sets.collect() } else { Vec::new() },
        stack_hashes: match is_first {
            true => hash("main;serve").0.to_vec(),
            false => Vec::new(),
        },
        sample_label_sets: ids.clone().collect(),
        sample_stacks: vec![1; units.len()],
        sample_counts: ns.iter().map(|ns| ns / 10_101_010 + 1).collect(),
        facts: Some(WindowFacts {
            start_unix_ns,
            duration_ns: WINDOW_S * SECOND as u64,
            event: "cpu-clock".to_owned(),
            unit: "nanoseconds".to_owned(),
            period: 10_101_010,
            account_label_sets: ids.collect(),
            account_estimated_ns: vec![0; units.len()],
            account_ns: ns,
            ..WindowFacts::default()
        }),
        ..WindowPart::default()
    }
}

/// The next of a line that wanders around nothing.
fn drift(line: &mut f64, random: &mut Random, deviation: f64) {
    let step = deviation * (1.0 - DRIFT_KEPT * DRIFT_KEPT).sqrt();
    *line = DRIFT_KEPT * *line + step * random.normal();
}

/// The load of a host in a trial.
struct Load {
    random: Random,
    host: usize,
    /// Factor on the load of the service that changes, from the change on.
    more: f64,
    waves: [f64; SERVICES.len()],
    bursts: [u64; SERVICES.len()],
    /// How far traffic has drifted on this host alone.
    own_drift: [f64; SERVICES.len()],
    /// The same of all hosts: drawn by each host from the same numbers.
    drift: [f64; SERVICES.len()],
    shared: Random,
}

impl Load {
    fn new(host: usize, trial: u64, change: u32) -> Load {
        let more = if host < CHANGED {
            f64::from(change)
        } else {
            0.0
        };
        Load {
            random: Random::new(SEED ^ (trial << 32) ^ ((host as u64) << 8) ^ u64::from(change)),
            host,
            more: 1.0 + more / 100.0,
            waves: [0.0; SERVICES.len()],
            bursts: [0; SERVICES.len()],
            own_drift: [0.0; SERVICES.len()],
            drift: [0.0; SERVICES.len()],
            shared: Random::new(SEED ^ (trial << 32) ^ 0xff00 ^ u64::from(change)),
        }
    }

    /// Cores of each service in a window.
    fn next(&mut self, window: u64, at: i64) -> [f64; SERVICES.len()] {
        let day = (at as f64 / 86_400e9 * std::f64::consts::TAU).sin();
        let mut cores = [0.0; SERVICES.len()];
        for (service, (_, level)) in SERVICES.into_iter().enumerate() {
            // Fades within a minute, and is about a tenth.
            self.waves[service] = 0.6 * self.waves[service] + 0.08 * self.random.normal();
            if self.bursts[service] > 0 {
                self.bursts[service] -= 1;
            } else if self.random.unit() < 1.0 / 360.0 {
                self.bursts[service] = 6;
            }
            let burst = if self.bursts[service] > 0 { 1.3 } else { 1.0 };
            drift(&mut self.own_drift[service], &mut self.random, DRIFT.1);
            drift(&mut self.drift[service], &mut self.shared, DRIFT.0);
            let of_host = 0.8 + 0.4 * ((self.host * 7 + service * 3) % 12) as f64 / 12.0;
            let mut now = level * of_host * (1.0 + self.waves[service]).max(0.0) * burst;
            now *= 1.0 + 0.02 * day;
            now *= (1.0 + self.own_drift[service] + self.drift[service]).max(0.1);
            if service == JOB && window % 60 < 3 {
                now += 0.8;
            }
            if service == SLOWER && window >= BEGINS {
                now *= self.more;
            }
            cores[service] = now;
        }
        cores
    }
}

/// Two days of hosts, and what an overview of the last one against the one before costs.
fn day(markdown: bool) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let collector = Options::new().start(dir.path());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let window_ns = WINDOW_S as i64 * SECOND;
    let end = testkit::clock::unix_ns() / window_ns * window_ns;
    let middle = end - DAY_WINDOWS as i64 * window_ns;
    let first = middle - DAY_WINDOWS as i64 * window_ns;
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let mut tasks = JoinSet::new();
        for host in 0..DAY_HOSTS {
            let address = collector.options().grpc();
            tasks.spawn_local(fill_days(address, host, first));
        }
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        anyhow::Ok(())
    })?;
    let mut table = Table::new(&["an overview of", "CPU ms", "first CPU ms", "wall ms"]);
    let day = (first, middle, end);
    let hour = 3600 * SECOND;
    for (name, (was, from, to), functions) in [
        ("24 h against the day before", day, false),
        ("the same with functions", day, true),
        (
            "the last hour against the one before",
            (end - 2 * hour, end - hour, end),
            false,
        ),
    ] {
        let mut taken = Vec::new();
        runtime.block_on(async {
            let mut client = client(&collector).await?;
            for _ in 0..DAY_REPEATS {
                let (begun, before) = (Instant::now(), asked_ms(&collector)?);
                let range = |start_unix_ns, end_unix_ns| {
                    Some(TimeRange {
                        start_unix_ns,
                        end_unix_ns,
                    })
                };
                let request = OverviewRequest {
                    selection: Some(Selection {
                        range: range(from, to),
                        ..Selection::default()
                    }),
                    baseline: range(was, from),
                    without_functions: !functions,
                    ..OverviewRequest::default()
                };
                let answer = client.overview(request).await?.into_inner();
                let hosts = answer.fleet.map_or(0, |fleet| fleet.hosts);
                ensure!(hosts == DAY_HOSTS as u32, "an overview of {hosts} hosts");
                taken.push((asked_ms(&collector)? - before, begun.elapsed()));
            }
            anyhow::Ok(())
        })?;
        let first_ms = taken[0].0;
        taken.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (cpu_ms, wall) = taken[DAY_REPEATS / 2];
        table.row([
            name.to_owned(),
            number(Some(cpu_ms), 0),
            number(Some(first_ms), 0),
            number(Some(wall.as_secs_f64() * 1e3), 0),
        ]);
    }
    let status = collector.stop();
    ensure!(status.success(), "the collector ended with {status}");
    print!("{}", report::machine(&Machine::here()));
    println!("load     {DAY_HOSTS} simulated hosts of {DAY_UNITS} units, two days of windows");
    print!(
        "{}",
        match markdown {
            true => table.markdown(),
            false => table.text(),
        }
    );
    Ok(())
}

/// Pushes two days of a host.
async fn fill_days(address: String, host: usize, first: i64) -> anyhow::Result<()> {
    let mut stream = connect(&address, host).await?;
    let mut random = Random::new(SEED ^ host as u64);
    let names: Vec<String> = (0..DAY_UNITS)
        .map(|at| format!("unit-{at}.service"))
        .collect();
    let mut waiting = 0;
    for window in 0..2 * DAY_WINDOWS {
        let start = first + (window * WINDOW_S) as i64 * SECOND;
        let mut cores = |at: usize| (1.0 + 0.1 * random.normal()).max(0.0) * 2.0 / (1 + at) as f64;
        let units = names.iter().enumerate();
        let units: Vec<(&str, f64)> = units.map(|(at, name)| (name.as_str(), cores(at))).collect();
        let part = part_of(host, (start, first), window == 0, &units);
        if window == 0 {
            is_stored(&stream.store_part(part, &["main;serve"]).await)?;
            continue;
        }
        stream.part(part).await;
        waiting += 1;
        if waiting == TOGETHER || window + 1 == 2 * DAY_WINDOWS {
            while waiting > 0 {
                acknowledged(&mut stream).await?;
                waiting -= 1;
            }
        }
    }
    Ok(())
}

/// CPU time so far of all threads but the one that flushes and compacts. Unit: milliseconds.
fn asked_ms(collector: &Collector) -> anyhow::Result<f64> {
    let usage = Usage::of(collector.pid())?;
    let threads = usage.cpu_ns_by_thread.iter();
    let asked = threads.filter(|(name, _)| *name != "fp-upkeep");
    Ok(asked.map(|(_, ns)| *ns as f64).sum::<f64>() / 1e6)
}
