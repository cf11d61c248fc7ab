//! Questions to a collector that remembers an hour of 50 hosts, and of twice as many.

use super::agent::Agent;
use super::floor;
use super::generate::{Drawn, Fleet, WINDOW_S};
use super::{DESIGN, SEED, SERVICES, Used, past, size_of, start};
use crate::machine::Machine;
use crate::report::{self, Table, count, mib, number};
use anyhow::Context;
use proto::agent::{LabelMatcher, MatchOp, TimeRange};
use proto::collector::query_service_client::QueryServiceClient;
use proto::collector::{
    HostsRequest, LabelNamesRequest, OverviewRequest, ProfileRequest, Selection, SeriesRequest,
    TopRequest,
};
use std::rc::Rc;
use std::time::Instant;
use testkit::fleet::Collector;
use tokio::task::LocalSet;
use tonic::transport::{Channel, Endpoint};

/// Hosts that push at the same time.
const STREAMS: usize = 8;
/// Times that each question is asked; the median counts, the first is told apart.
const REPEATS: usize = 5;
/// Name of the collector's thread that works without being asked.
const UPKEEP: &str = "fp-upkeep";
/// Largest answer taken. Unit: bytes.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// What is asked for.
#[derive(clap::Args)]
pub struct Args {
    /// Number of hosts in the first round; the second has twice as many
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=500))]
    hosts: u64,
    /// Minutes of the past to fill with data
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(2..=2880))]
    minutes: u64,
    /// Print Markdown tables
    #[arg(long)]
    markdown: bool,
}

/// Runs the bench and prints its table.
///
/// # Errors
/// When the collector cannot be started, goes away, refuses a window or cannot answer.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let hosts = args.hosts as usize;
    let fleet = Rc::new(Fleet::new(SEED, hosts * 2, SERVICES));
    let dir = tempfile::tempdir()?;
    let collector = start(dir.path(), hosts);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let windows = args.minutes * 60 / WINDOW_S;
    let range = past(windows);
    let mut rounds = Vec::new();
    let mut ingest = Table::new(&[
        "hosts",
        "rows taken",
        "rows/s",
        "CPU-s per 1M rows",
        "of the floor",
        "of the design's",
        "bytes a row on the wire",
    ]);
    let mut all_rows = 0;
    let mut floors = Vec::new();
    for round in 0..2 {
        let which = round * hosts..(round + 1) * hosts;
        let begin = (Instant::now(), Used::of(collector.pid())?.cpu_s);
        let local = LocalSet::new();
        let (rows, bytes) = local.block_on(
            &runtime,
            fill(
                fleet.clone(),
                &collector,
                which,
                range.start_unix_ns,
                windows,
            ),
        )?;
        let cpu_s = Used::of(collector.pid())?.cpu_s - begin.1;
        let wall_s = begin.0.elapsed().as_secs_f64();
        let per_million = cpu_s * 1e6 / rows as f64;
        all_rows += rows;
        eprintln!("{} rows taken in {wall_s:.0} s", count(Some(rows)));
        let pushed = round * hosts..(round + 1) * hosts;
        rounds.push(runtime.block_on(ask(&fleet, &collector, range))?);
        let floor = floor::measure(&fleet, pushed, windows)?;
        ingest.row([
            format!("{} to {}", round * hosts + 1, (round + 1) * hosts),
            count(Some(rows)),
            count(Some((rows as f64 / wall_s) as u64)),
            number(Some(per_million), 3),
            number(Some(per_million / floor.take_s), 1),
            number(Some(per_million / DESIGN.1), 1),
            number(Some(bytes as f64 / rows as f64), 2),
        ]);
        floors.push(floor);
    }
    print!("{}", report::machine(&Machine::here()));
    println!(
        "load     {hosts} hosts × {} min, and twice as many",
        args.minutes
    );
    let mut table = Table::new(&[
        "question",
        "CPU ms",
        "of the aim",
        "of the floor",
        "wall ms",
        "first CPU ms",
        "growth at 2×",
    ]);
    for (first, second) in rounds[0].iter().zip(&rounds[1]) {
        table.row([
            first.name.to_owned(),
            number(Some(first.cpu_ms), 0),
            number(Some(first.cpu_ms / first.aim_ms), 2),
            number(
                first.reads_all.then(|| first.cpu_ms / floors[0].merge_ms),
                1,
            ),
            number(Some(first.wall_ms), 0),
            number(Some(first.first_cpu_ms), 0),
            number(Some(second.cpu_ms / first.cpu_ms.max(1.0)), 2),
        ]);
    }
    let peak = Used::of(collector.pid())?.rss_peak_bytes;
    // Ended, so that what was in memory is in its files.
    let status = collector.stop();
    anyhow::ensure!(status.success(), "the collector ended with {status}");
    let disk = size_of(&dir.path().join("data"))?;
    for table in [&ingest, &table] {
        print!(
            "{}",
            if args.markdown {
                table.markdown()
            } else {
                table.text()
            }
        );
    }
    println!(
        "floor    {:.3} and {:.3} CPU-s per 1M rows taken; {:.0} ms to unpack the totals of the first \
         round, {:.0} ms to add them up as well",
        floors[0].take_s, floors[1].take_s, floors[0].unpack_ms, floors[0].merge_ms
    );
    println!(
        "on disk {} bytes a row, {} of the design's; peak RSS {} MiB",
        number(Some(disk as f64 / all_rows as f64), 2),
        number(Some(disk as f64 / all_rows as f64 / DESIGN.0), 2),
        number(Some(mib(peak)), 0)
    );
    Ok(())
}

/// Pushes every window of these hosts as fast as they are taken; returns the rows, and the bytes
/// that were sent.
///
/// # Errors
/// When the collector refuses a window or goes away.
pub async fn fill(
    fleet: Rc<Fleet>,
    collector: &Collector,
    hosts: std::ops::Range<usize>,
    start_unix_ns: i64,
    windows: u64,
) -> anyhow::Result<(u64, u64)> {
    let address = collector.options().grpc();
    let mut tasks = tokio::task::JoinSet::new();
    for stream in 0..STREAMS {
        let mine: Vec<usize> = hosts.clone().skip(stream).step_by(STREAMS).collect();
        let (fleet, address) = (fleet.clone(), address.clone());
        tasks.spawn_local(async move {
            let mut agents = Vec::new();
            for host in mine {
                agents.push(Agent::connect(&address, &fleet, host).await?);
            }
            let (mut rows, mut bytes, mut drawn) = (0, 0, Drawn::default());
            // As it came: all hosts a window, then the next.
            for window in 0..windows {
                let at = start_unix_ns + (window * WINDOW_S * 1_000_000_000) as i64;
                for agent in &mut agents {
                    let acked = agent.push(&fleet, window + 1, at, &mut drawn).await?;
                    rows += acked.rows as u64;
                    bytes += acked.bytes as u64;
                }
            }
            anyhow::Ok((rows, bytes))
        });
    }
    let (mut rows, mut bytes) = (0, 0);
    while let Some(ended) = tasks.join_next().await {
        let of_stream = ended??;
        rows += of_stream.0;
        bytes += of_stream.1;
    }
    Ok((rows, bytes))
}

struct Answered {
    name: &'static str,
    aim_ms: f64,
    cpu_ms: f64,
    first_cpu_ms: f64,
    wall_ms: f64,
    /// It has to look at every row of the fleet.
    reads_all: bool,
}

enum Question {
    Profile,
    Series(&'static str),
    Top,
    /// The second half of the range against the first.
    Overview {
        functions: bool,
    },
}

async fn connect(collector: &Collector) -> anyhow::Result<QueryServiceClient<Channel>> {
    let address = format!("http://{}", collector.options().grpc());
    let channel = Endpoint::from_shared(address)?.connect().await?;
    Ok(QueryServiceClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX))
}

fn one(label: &str, value: &str) -> Vec<LabelMatcher> {
    vec![LabelMatcher {
        label: label.to_owned(),
        op: MatchOp::Equal.into(),
        value: value.to_owned(),
    }]
}

async fn ask(
    fleet: &Fleet,
    collector: &Collector,
    range: TimeRange,
) -> anyhow::Result<Vec<Answered>> {
    let mut client = connect(collector).await?;
    let container = fleet.hosts[0]
        .containers
        .last()
        .map_or("", |container| container.id.as_str());
    let service = fleet.services[0].name.as_str();
    let questions = [
        (
            "one container",
            50.0,
            one("container", container),
            Question::Profile,
        ),
        (
            "one service",
            150.0,
            one("service", service),
            Question::Profile,
        ),
        ("all hosts", 1000.0, Vec::new(), Question::Profile),
        (
            "series by cgroup",
            100.0,
            Vec::new(),
            Question::Series("cgroup"),
        ),
        ("top 50", 300.0, Vec::new(), Question::Top),
        (
            "overview, half against half",
            500.0,
            Vec::new(),
            Question::Overview { functions: false },
        ),
        (
            "the same with functions",
            500.0,
            Vec::new(),
            Question::Overview { functions: true },
        ),
    ];
    let mut answered = Vec::new();
    for (name, aim_ms, matchers, question) in questions {
        let matchers_are_none = matchers.is_empty();
        let selection = Selection {
            range: Some(range),
            matchers,
            ..Selection::default()
        };
        let mut taken = Vec::new();
        for _ in 0..REPEATS {
            let (begin, cpu_ms) = (Instant::now(), asked_ms(collector)?);
            once(&mut client, &question, selection.clone())
                .await
                .with_context(|| format!("failed to ask for {name}"))?;
            let wall_ms = begin.elapsed().as_secs_f64() * 1e3;
            let cpu_ms = asked_ms(collector)? - cpu_ms;
            taken.push((cpu_ms, wall_ms));
        }
        let first_cpu_ms = taken[0].0;
        taken.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (cpu_ms, wall_ms) = taken[REPEATS / 2];
        answered.push(Answered {
            name,
            aim_ms,
            cpu_ms,
            first_cpu_ms,
            wall_ms,
            reads_all: matchers_are_none && matches!(question, Question::Profile | Question::Top),
        });
    }
    Ok(answered)
}

/// CPU time so far of all threads but the one that flushes and compacts what was pushed before.
/// Unit: milliseconds.
///
/// # Errors
/// When it has ended.
pub fn asked_ms(collector: &Collector) -> anyhow::Result<f64> {
    let usage = crate::cost::Usage::of(collector.pid())?;
    let threads = usage.cpu_ns_by_thread.iter();
    let asked = threads.filter(|(name, _)| *name != UPKEEP);
    Ok(asked.map(|(_, ns)| *ns as f64).sum::<f64>() / 1e6)
}

async fn once(
    client: &mut QueryServiceClient<Channel>,
    question: &Question,
    selection: Selection,
) -> anyhow::Result<()> {
    match question {
        Question::Profile => {
            let request = ProfileRequest {
                selection: Some(selection),
                ..ProfileRequest::default()
            };
            let mut answer = client.profile(request).await?.into_inner();
            while answer.message().await?.is_some() {}
        }
        Question::Series(label) => {
            let request = SeriesRequest {
                selection: Some(selection),
                group_by: vec![(*label).to_owned()],
                step_ns: 60_000_000_000,
                limit: 0,
                accounted: false,
            };
            client.series(request).await?;
        }
        Question::Top => {
            let request = TopRequest {
                selection: Some(selection),
                by: "function".to_owned(),
                sort_by_total: true,
                limit: 50,
            };
            client.top(request).await?;
        }
        Question::Overview { functions } => {
            let mut now = selection;
            let range = now.range.unwrap_or_default();
            let middle = range.start_unix_ns / 2 + range.end_unix_ns / 2;
            let half = |start_unix_ns, end_unix_ns| TimeRange {
                start_unix_ns,
                end_unix_ns,
            };
            now.range = Some(half(middle, range.end_unix_ns));
            let request = OverviewRequest {
                selection: Some(now),
                baseline: Some(half(range.start_unix_ns, middle)),
                service_label: "service".to_owned(),
                limit: 50,
                without_functions: !functions,
                ..OverviewRequest::default()
            };
            client.overview(request).await?;
        }
    }
    Ok(())
}

/// What the collector's page asks when somebody opens it.
pub struct Questions {
    client: QueryServiceClient<Channel>,
    range: TimeRange,
}

impl Questions {
    /// Connects to a collector, to ask for this range.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn connect(collector: &Collector, range: TimeRange) -> anyhow::Result<Questions> {
        let client = connect(collector).await?;
        Ok(Questions { client, range })
    }

    /// The overview, with functions and without, its chart and the hosts: four calls.
    ///
    /// # Errors
    /// When one of them is not answered.
    pub async fn page_overview(&mut self) -> anyhow::Result<()> {
        let range = Some(self.range);
        for functions in [false, true] {
            let overview = Question::Overview { functions };
            let selection = self.all(Vec::new());
            once(&mut self.client, &overview, selection).await?;
        }
        self.chart(self.all(Vec::new())).await?;
        self.client.hosts(HostsRequest { range }).await?;
        Ok(())
    }

    /// The profile of a service, its chart and the names of labels: three calls.
    ///
    /// # Errors
    /// When one of them is not answered.
    pub async fn page_profile(&mut self, service: &str) -> anyhow::Result<()> {
        let selection = self.all(one("service", service));
        self.chart(selection.clone()).await?;
        let names = LabelNamesRequest {
            selection: Some(self.all(Vec::new())),
        };
        self.client.label_names(names).await?;
        once(&mut self.client, &Question::Profile, selection).await
    }

    fn all(&self, matchers: Vec<LabelMatcher>) -> Selection {
        Selection {
            range: Some(self.range),
            matchers,
            ..Selection::default()
        }
    }

    async fn chart(&mut self, selection: Selection) -> anyhow::Result<()> {
        let request = SeriesRequest {
            selection: Some(selection),
            accounted: true,
            ..SeriesRequest::default()
        };
        self.client.series(request).await?;
        Ok(())
    }
}
