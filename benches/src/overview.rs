//! How often the overview finds a change, how soon, and how often it says that there is one where
//! there is none: simulated hosts push two hours for each trial, and the collector is asked as the
//! page asks it.
//!
//! Load is made up: of each service on each host it is a level times waves that fade within a
//! minute, times bursts of a minute, times the day's slow swing; one service runs a job every ten
//! minutes. Hosts number and time their windows as agents do. What real loads do beyond that is not
//! in it.

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
/// Windows of a trial: an hour, and an hour that is compared with it.
const WINDOWS: u64 = 720;
/// The window of a trial in which the change begins: twenty minutes into the second hour.
const BEGINS: u64 = 480;
/// Minutes after the change at which the overview is asked for.
const ASKED_AFTER: [u64; 6] = [2, 3, 5, 10, 20, 40];
/// Changes of the service on the hosts that change. Unit: percent.
const CHANGES: [u32; 5] = [0, 5, 10, 20, 40];
/// Windows that a host sends before it waits.
const TOGETHER: u32 = 40;
const SEED: u64 = 1;
const SECOND: i64 = 1_000_000_000;

/// What is asked for.
#[derive(clap::Args)]
pub struct Args {
    /// Number of trials for each change
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=50))]
    trials: u64,
    /// Print Markdown tables
    #[arg(long)]
    markdown: bool,
}

/// Runs the bench and prints its table.
///
/// # Errors
/// When the collector cannot be started, refuses a window or cannot answer.
pub fn run(args: &Args) -> anyhow::Result<()> {
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
    let mut found: Vec<(u32, Verdict)> = Vec::new();
    runtime.block_on(async {
        let mut client = client(&collector).await?;
        for (at, (_, change)) in trials.iter().enumerate() {
            let start = first + at as i64 * length;
            found.push((*change, verdict(&mut client, start).await?));
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
async fn verdict(client: &mut QueryServiceClient<Channel>, start: i64) -> anyhow::Result<Verdict> {
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
            baseline: range((end - 2 * hour).max(start), end - hour),
            limit: 200,
            without_functions: true,
            ..OverviewRequest::default()
        };
        let answer = client.overview(request).await?.into_inner();
        let changed = marked(&answer);
        verdict.found[at] = changed.contains(&SERVICES[SLOWER].0.to_owned());
        verdict.wrong |= changed.iter().any(|name| {
            let is_host = (0..CHANGED).any(|host| *name == host_name(host));
            *name != SERVICES[SLOWER].0 && !is_host
        });
        let mut services = answer.services.iter();
        if let Some(row) = services.find(|row| row.name == SERVICES[SLOWER].0) {
            let mut named = row.changed_hosts.clone();
            named.sort();
            let expected: Vec<String> = (0..CHANGED).map(host_name).collect();
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
    let sets = SERVICES.map(|(name, _)| {
        let cgroup = format!("/system.slice/{name}");
        labels(&[("cgroup", cgroup.as_str()), ("unit", name)])
    });
    let ns = cores.map(|cores| (cores * (WINDOW_S as i64 * SECOND) as f64) as u64);
    let ids = 1..=SERVICES.len() as u32;
    WindowPart {
        sequence: numbering::sequence(host as u64, start_unix_ns - first),
        last: true,
        new_dictionary: is_first,
        label_sets: if is_first { sets.to_vec() } else { Vec::new() },
        stack_hashes: match is_first {
            true => hash("main;serve").0.to_vec(),
            false => Vec::new(),
        },
        sample_label_sets: ids.clone().collect(),
        sample_stacks: vec![1; SERVICES.len()],
        sample_counts: ns.map(|ns| ns / 10_101_010 + 1).to_vec(),
        facts: Some(WindowFacts {
            start_unix_ns,
            duration_ns: WINDOW_S * SECOND as u64,
            event: "cpu-clock".to_owned(),
            unit: "nanoseconds".to_owned(),
            period: 10_101_010,
            account_label_sets: ids.collect(),
            account_ns: ns.to_vec(),
            account_estimated_ns: vec![0; SERVICES.len()],
            ..WindowFacts::default()
        }),
        ..WindowPart::default()
    }
}

/// The load of a host in a trial.
struct Load {
    random: Random,
    host: usize,
    /// Factor on the load of the service that changes, from the change on.
    more: f64,
    waves: [f64; SERVICES.len()],
    bursts: [u64; SERVICES.len()],
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
            let of_host = 0.8 + 0.4 * ((self.host * 7 + service * 3) % 12) as f64 / 12.0;
            let mut now = level * of_host * (1.0 + self.waves[service]).max(0.0) * burst;
            now *= 1.0 + 0.02 * day;
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
