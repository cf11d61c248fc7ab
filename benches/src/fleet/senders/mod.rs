//! What profiles of other senders cost a collector, next to the same samples from agents.
//!
//! Each protocol has a collector of its own, with its defaults but for the limit of what one sender
//! may send in a minute: here all of them are one. They are sent the same windows in turns, the
//! order turned round each time. CPU time is that of the collector's process from a turn to its
//! next one, so that what it writes later is in it. At the end all of them must have the same sum
//! of CPU time, and the same functions of a service.

mod otlp;
mod sdk;

use super::agent::Agent;
use super::generate::{Drawn, Fleet, PERIOD_NS, WINDOW_S};
use super::http::Connection;
use super::{SEED, SERVICES, Used, past, size_of};
use crate::cost::Usage;
use crate::machine::Machine;
use crate::report::{self, Table, count, median, mib, number};
use anyhow::{Context, ensure};
use otlp::{Batch, REPORTS, Report, reports};
use prost::Message;
use proto::PieceCodec;
use proto::agent::TimeRange;
use sdk::{Process, gzip};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;
use tempfile::TempDir;
use testkit::fleet::{Collector, Options};
use tokio::task::{JoinSet, LocalSet};
use tonic::client::Grpc;
use tonic::codec::CompressionEncoding::Gzip;
use tonic::transport::{Channel, Endpoint};

/// Hosts, or the processes of hosts, that send at the same time. A collector reads eight requests
/// of senders at a time and refuses others, so this is less.
const STREAMS: usize = 4;

/// Turns of each protocol that count, after one that brings the names of nearly all stacks.
const TURNS: u64 = 5;

/// Hosts whose reports a collector of OpenTelemetry sends as one. Its batches are filled up to
/// 8,192 samples by default, and a report has nearly as many.
const BATCHED_HOSTS: usize = 2;

/// The transport packs requests of OTLP over gRPC. One in so many is packed a second time, to see
/// how small it gets.
const MEASURED: u64 = 8;

/// How long a collector may still write after the last turn, and how much CPU time within
/// [`SETTLE_STEP`] shows that it does. Unit of the latter: seconds.
const SETTLE_LIMIT: Duration = Duration::from_secs(60);
const SETTLE_STEP: Duration = Duration::from_secs(3);
const SETTLED_S: f64 = 0.03;

const EXPORT: &str = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export";
const WRITE_RAW: &str = "/parca.profilestore.v1alpha1.ProfileStoreService/WriteRaw";
const AGENTS_CPU: &str = "process_cpu:cpu:nanoseconds:cpu:nanoseconds";
const SENT_CPU: &str = "sent_cpu:cpu:nanoseconds:cpu:nanoseconds";
const SENT_WALL: &str = "wall:wall:nanoseconds:wall:nanoseconds";

/// What is asked for.
#[derive(clap::Args)]
pub struct Args {
    /// Number of hosts
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(8..=200))]
    hosts: u64,
    /// Minutes of the past to fill with data, in turns
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u64).range(1..=120))]
    minutes: u64,
    /// Print Markdown tables
    #[arg(long)]
    markdown: bool,
}

/// Who sends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sender {
    Agent,
    Profiler,
    Batches,
    BatchesOverHttp,
    Python,
    Node,
    Scraper,
}

/// A protocol.
struct Protocol {
    sender: Sender,
    name: &'static str,
    /// Profile types in what is sent of a process: each is stored on its own.
    types: usize,
    /// The one whose sums are compared.
    id: &'static str,
}

static PROTOCOLS: [Protocol; 7] = [
    Protocol {
        sender: Sender::Agent,
        name: "agents (push, zstd)",
        types: 1,
        id: AGENTS_CPU,
    },
    Protocol {
        sender: Sender::Profiler,
        name: "OTLP over gRPC, a host and 5 s",
        types: 1,
        id: SENT_CPU,
    },
    Protocol {
        sender: Sender::Batches,
        name: "OTLP over gRPC, two hosts batched",
        types: 1,
        id: SENT_CPU,
    },
    Protocol {
        sender: Sender::BatchesOverHttp,
        name: "OTLP over HTTP, two hosts batched",
        types: 1,
        id: SENT_CPU,
    },
    Protocol {
        sender: Sender::Python,
        name: "push.v1, Python's file",
        types: 1,
        id: SENT_CPU,
    },
    Protocol {
        sender: Sender::Node,
        name: "/ingest, Node's file",
        types: 3,
        id: SENT_WALL,
    },
    Protocol {
        sender: Sender::Scraper,
        name: "WriteRaw, Go's files of a host",
        types: 2,
        id: SENT_CPU,
    },
];

/// A protocol with its collector.
struct Side {
    protocol: &'static Protocol,
    collector: Collector,
    dir: TempDir,
    streams: Vec<Stream>,
    /// CPU time of the collector at the start of each turn, and at the end. Unit: seconds.
    marks: Vec<f64>,
    turns: Vec<Sent>,
}

impl Side {
    fn start(protocol: &'static Protocol) -> anyhow::Result<Side> {
        let dir = tempfile::tempdir()?;
        let collector = Options::new()
            .set("senders.enabled=true")
            .set("senders.sender_mib_per_minute=1048576")
            .start(dir.path());
        Ok(Side {
            protocol,
            collector,
            dir,
            streams: Vec::new(),
            marks: Vec::new(),
            turns: Vec::new(),
        })
    }

    fn cpu_s(&self) -> anyhow::Result<f64> {
        Ok(Used::of(self.collector.pid())?.cpu_s)
    }

    /// CPU time for a million samples, by turn. Unit: seconds.
    fn per_million(&self) -> Vec<f64> {
        let spans = self.marks.windows(2).map(|pair| pair[1] - pair[0]);
        let turns = spans.zip(&self.turns).skip(1);
        turns
            .map(|(cpu_s, sent)| cpu_s * 1e6 / sent.samples as f64)
            .collect()
    }

    fn all(&self) -> Sent {
        let mut all = Sent::default();
        for turn in &self.turns {
            all.add(*turn);
        }
        all
    }
}

/// What was sent and stored.
#[derive(Clone, Copy, Default)]
struct Sent {
    requests: u64,
    samples: u64,
    /// Bodies, as they are sent: packed.
    bytes: u64,
}

impl Sent {
    fn add(&mut self, more: Sent) {
        self.requests += more.requests;
        self.samples += more.samples;
        self.bytes += more.bytes;
    }
}

/// What a protocol came to.
struct Figures {
    per_million: Vec<f64>,
    whole_s: f64,
    all: Sent,
    rss_bytes: u64,
    rss_peak_bytes: u64,
    disk_bytes: u64,
}

/// Runs the bench and prints its tables.
///
/// # Errors
/// When a collector cannot be started, goes away, refuses a request, or has another sum than what
/// it was sent.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let fleet = Rc::new(Fleet::new(SEED, args.hosts as usize, SERVICES));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let sides = PROTOCOLS.iter().map(Side::start);
    let mut sides = sides.collect::<anyhow::Result<Vec<Side>>>()?;
    let each = (args.minutes * 60 / WINDOW_S).div_euclid(TURNS + 1);
    let TimeRange {
        start_unix_ns: start,
        end_unix_ns: end,
    } = past(each * (TURNS + 1));
    // One run of the runtime: what holds connections answers the collectors' pings between turns.
    let filling = turns(&mut sides, &fleet, start, each);
    LocalSet::new().block_on(&runtime, filling)?;
    settle(&mut sides)?;
    let mut functions = None;
    let mut figures = Vec::new();
    for side in sides {
        let range = (start / 1_000_000, end / 1_000_000);
        let before = side.cpu_s()?;
        let asking = checked(&side, &fleet, range);
        let found = LocalSet::new().block_on(&runtime, asking)?;
        let name = side.protocol.name;
        ensure!(
            *functions.get_or_insert_with(|| found.clone()) == found,
            "the functions that came as {name} are others than those of agents"
        );
        let asked_s = side.cpu_s()? - before;
        figures.push((side.protocol, finish(side, asked_s)?));
    }
    print!("{}", report::machine(&Machine::here()));
    println!(
        "load     {} simulated hosts, as fast as they are taken, {STREAMS} at a time: {} samples to \
         each collector, in {TURNS} turns of {} s after a first one",
        args.hosts,
        count(Some(figures[0].1.all.samples)),
        each * WINDOW_S
    );
    for table in tables(&figures) {
        print!(
            "{}",
            match args.markdown {
                true => table.markdown(),
                false => table.text(),
            }
        );
    }
    Ok(())
}

/// Sends so many windows from `start` on to each in turns, and a first turn before them.
async fn turns(
    sides: &mut [Side],
    fleet: &Rc<Fleet>,
    start_unix_ns: i64,
    each: u64,
) -> anyhow::Result<()> {
    for side in sides.iter_mut() {
        side.streams = streams(side, fleet).await?;
    }
    for turn in 0..=TURNS {
        for number in 0..sides.len() {
            // Who is first is last the next time.
            let at = (number + turn as usize) % sides.len();
            let side = &mut sides[at];
            side.marks.push(side.cpu_s()?);
            let windows = turn * each..(turn + 1) * each;
            let sent = fill(side, fleet.clone(), start_unix_ns, windows)
                .await
                .with_context(|| format!("failed to send as {}", side.protocol.name))?;
            side.turns.push(sent);
            eprintln!("turn {turn}, {}", side.protocol.name);
        }
    }
    Ok(())
}

fn tables(figures: &[(&Protocol, Figures)]) -> [Table; 2] {
    let mut costs = Table::new(&[
        "CPU-s per 1M samples",
        "median",
        "turns",
        "of agents'",
        "turns",
        "first to last",
        "types",
    ]);
    let mut sizes = Table::new(&[
        "",
        "requests",
        "bytes a sample on the wire",
        "bytes a sample on disk",
        "RSS at the end, MiB",
        "peak RSS, MiB",
    ]);
    let agents = &figures[0].1.per_million;
    for (protocol, own) in figures {
        let samples = own.all.samples as f64;
        let ratios: Vec<f64> = own
            .per_million
            .iter()
            .zip(agents)
            .map(|(own, agents)| own / agents)
            .collect();
        costs.row([
            protocol.name.to_owned(),
            number(Some(median(&own.per_million)), 3),
            spread(&own.per_million, 3),
            number(Some(median(&ratios)), 1),
            spread(&ratios, 1),
            number(Some(own.whole_s * 1e6 / samples), 3),
            protocol.types.to_string(),
        ]);
        sizes.row([
            protocol.name.to_owned(),
            count(Some(own.all.requests)),
            number(Some(own.all.bytes as f64 / samples), 2),
            number(Some(own.disk_bytes as f64 / samples), 2),
            number(Some(mib(own.rss_bytes)), 0),
            number(Some(mib(own.rss_peak_bytes)), 0),
        ]);
    }
    [costs, sizes]
}

fn spread(all: &[f64], digits: usize) -> String {
    let least = all.iter().copied().reduce(f64::min);
    let most = all.iter().copied().reduce(f64::max);
    format!("{} to {}", number(least, digits), number(most, digits))
}

/// Waits until no collector works any more, and marks where each is then.
fn settle(sides: &mut [Side]) -> anyhow::Result<()> {
    let all = |sides: &[Side]| sides.iter().map(Side::cpu_s).collect::<Result<Vec<_>, _>>();
    let begin = std::time::Instant::now();
    let mut before = all(sides)?;
    loop {
        std::thread::sleep(SETTLE_STEP);
        let now = all(sides)?;
        let mut grown = now.iter().zip(&before).map(|(now, before)| now - before);
        let is_settled = grown.all(|grown| grown < SETTLED_S);
        if is_settled || begin.elapsed() > SETTLE_LIMIT {
            for (side, cpu_s) in sides.iter_mut().zip(now) {
                side.marks.push(cpu_s);
            }
            ensure!(is_settled, "a collector still works after {SETTLE_LIMIT:?}");
            return Ok(());
        }
        before = now;
    }
}

/// Compares the sum of a collector with what it was sent; returns the functions of a service.
async fn checked(
    side: &Side,
    fleet: &Fleet,
    (start, end): (i64, i64),
) -> anyhow::Result<Vec<String>> {
    let mut page = Connection::open(&side.collector.options().http()).await?;
    let mut asked = async |selector: String| {
        let body = json!({
            "profileTypeID": side.protocol.id,
            "labelSelector": selector,
            // Node's profiles are a window late.
            "start": start,
            "end": end + 1000 * WINDOW_S as i64,
            "maxNodes": 1 << 20,
        });
        let path = "/querier.v1.QuerierService/SelectMergeStacktraces";
        let headers = [("Content-Type", "application/json")];
        let answer = page.post(path, &headers, body.to_string().into()).await?;
        anyhow::Ok(serde_json::from_slice::<Value>(&answer)?)
    };
    let all = asked("{}".to_owned()).await?;
    let total = all["flamegraph"]["total"].as_str();
    let total: u64 = total.context("no total")?.parse()?;
    let samples = side.all().samples;
    ensure!(
        total == samples * PERIOD_NS,
        "the collector of {} has {total} ns of {samples} samples",
        side.protocol.name
    );
    let service = &fleet.services[0].name;
    let of_one = asked(format!("{{service_name=\"{service}\"}}")).await?;
    let names = of_one["flamegraph"]["names"].as_array();
    let names = names.context("no names")?.iter();
    let mut names: Vec<String> = names
        .filter_map(|name| Some(name.as_str()?.to_owned()))
        .collect();
    names.sort_unstable();
    ensure!(names.len() > 100, "{} functions of {service}", names.len());
    Ok(names)
}

/// Ends a collector, so that what was in memory is in its files. `asked_s` is CPU time that is none
/// of taking.
fn finish(side: Side, asked_s: f64) -> anyhow::Result<Figures> {
    let (per_million, all) = (side.per_million(), side.all());
    let usage = Usage::of(side.collector.pid())?;
    let before = children_cpu_s()?;
    let status = side.collector.stop();
    ensure!(status.success(), "a collector ended with {status}");
    Ok(Figures {
        per_million,
        whole_s: children_cpu_s()? - before - asked_s,
        all,
        rss_bytes: usage.rss_bytes,
        rss_peak_bytes: usage.rss_peak_bytes,
        disk_bytes: size_of(&side.dir.path().join("data"))?,
    })
}

/// CPU time of all children that have ended. Unit: seconds.
fn children_cpu_s() -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(')').context("a process without a name")?;
    let ticks = fields.split_whitespace().skip(13).take(2);
    let ticks: u64 = ticks.map(|field| field.parse().unwrap_or(0)).sum();
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// What sends for some of the hosts, one after another.
struct Stream {
    sender: Sender,
    hosts: Vec<usize>,
    /// One for each host.
    agents: Vec<Agent>,
    /// One for each host, or for all where they are batched.
    channels: HashMap<usize, Grpc<Channel>>,
    /// For batches over HTTP.
    connection: Option<Connection>,
    grpc: String,
    http: String,
    drawn: Drawn,
    /// Requests that the transport packed, and how small it makes them.
    reports: u64,
    packed: f64,
}

async fn streams(side: &Side, fleet: &Fleet) -> anyhow::Result<Vec<Stream>> {
    let options = side.collector.options();
    let mut streams = Vec::new();
    for number in 0..STREAMS {
        let hosts: Vec<usize> = (number..fleet.hosts.len()).step_by(STREAMS).collect();
        let mut stream = Stream {
            sender: side.protocol.sender,
            agents: Vec::new(),
            channels: HashMap::new(),
            connection: None,
            grpc: options.grpc(),
            http: options.http(),
            drawn: Drawn::default(),
            reports: 0,
            packed: 1.0,
            hosts,
        };
        if stream.sender == Sender::Agent {
            for &host in &stream.hosts {
                let agent = Agent::connect(&stream.grpc, fleet, host).await?;
                stream.agents.push(agent);
            }
        }
        streams.push(stream);
    }
    Ok(streams)
}

async fn fill(
    side: &mut Side,
    fleet: Rc<Fleet>,
    start_unix_ns: i64,
    windows: std::ops::Range<u64>,
) -> anyhow::Result<Sent> {
    let mut tasks = JoinSet::new();
    for mut stream in std::mem::take(&mut side.streams) {
        let (fleet, windows) = (fleet.clone(), windows.clone());
        tasks.spawn_local(async move {
            let mut sent = Sent::default();
            stream.channels.clear();
            stream.connection = None;
            for window in windows {
                let at = start_unix_ns + (window * WINDOW_S * 1_000_000_000) as i64;
                sent.add(stream.send(&fleet, window + 1, at).await?);
            }
            anyhow::Ok((stream, sent))
        });
    }
    let mut all = Sent::default();
    while let Some(ended) = tasks.join_next().await {
        let (stream, sent) = ended??;
        side.streams.push(stream);
        all.add(sent);
    }
    Ok(all)
}

impl Stream {
    /// The channel with this number, which is opened by its first call of a turn: the collector
    /// closes what has no call for ten seconds, and what is idle for longer than senders are.
    async fn channel(&mut self, at: usize) -> anyhow::Result<Grpc<Channel>> {
        if let Some(open) = self.channels.get(&at) {
            return Ok(open.clone());
        }
        let endpoint = Endpoint::from_shared(format!("http://{}", self.grpc))?;
        let open = Grpc::new(endpoint.connect().await?);
        self.channels.insert(at, open.clone());
        Ok(open)
    }

    /// Sends a window of each host, and waits until it is stored.
    async fn send(&mut self, fleet: &Fleet, window: u64, at: i64) -> anyhow::Result<Sent> {
        match self.sender {
            Sender::Agent => self.pushed(fleet, window, at).await,
            Sender::Profiler => self.reported(fleet, window, at, 1).await,
            Sender::Batches | Sender::BatchesOverHttp => {
                self.reported(fleet, window, at, BATCHED_HOSTS).await
            }
            Sender::Python | Sender::Node => self.uploaded(fleet, window, at).await,
            Sender::Scraper => self.written(fleet, window, at).await,
        }
    }

    async fn pushed(&mut self, fleet: &Fleet, window: u64, at: i64) -> anyhow::Result<Sent> {
        let mut sent = Sent::default();
        for agent in &mut self.agents {
            let acked = agent.push(fleet, window, at, &mut self.drawn).await?;
            sent.add(Sent {
                requests: 1,
                samples: acked.samples,
                bytes: acked.bytes as u64,
            });
        }
        Ok(sent)
    }

    /// Reports of the eBPF profiler, of so many hosts in a request.
    async fn reported(
        &mut self,
        fleet: &Fleet,
        window: u64,
        at: i64,
        together: usize,
    ) -> anyhow::Result<Sent> {
        let mut sent = Sent::default();
        for (number, hosts) in self.hosts.clone().chunks(together).enumerate() {
            let mut by_time: [Vec<Report>; REPORTS] = std::array::from_fn(|_| Vec::new());
            for &host in hosts {
                fleet.draw(host, window, &mut self.drawn);
                sent.samples += samples(&self.drawn);
                for (of_time, report) in
                    by_time
                        .iter_mut()
                        .zip(reports(host, window, at, &self.drawn))
                {
                    of_time.push(report);
                }
            }
            for all in by_time {
                let mut batch = Batch::new(fleet);
                all.into_iter().for_each(|report| batch.add(report));
                let request = batch.finish();
                sent.requests += 1;
                if self.sender == Sender::BatchesOverHttp {
                    let packed = gzip(&request.encode_to_vec())?;
                    sent.bytes += packed.len() as u64;
                    let headers = [
                        ("Content-Type", "application/x-protobuf"),
                        ("Content-Encoding", "gzip"),
                    ];
                    let path = "/v1development/profiles";
                    if self.connection.is_none() {
                        self.connection = Some(Connection::open(&self.http).await?);
                    }
                    let connection = self.connection.as_mut().context("no connection")?;
                    let answer = connection.post(path, &headers, packed).await?;
                    ensure!(answer.is_empty(), "the collector has a word to say of OTLP");
                    continue;
                }
                let plain = request.encode_to_vec();
                if self.reports.is_multiple_of(MEASURED) {
                    self.packed = gzip(&plain)?.len() as f64 / plain.len() as f64;
                }
                self.reports += 1;
                sent.bytes += (plain.len() as f64 * self.packed) as u64;
                let at = if together == 1 { number } else { 0 };
                let channel = self.channel(at).await?.send_compressed(Gzip);
                unary(channel, EXPORT, request).await?;
            }
        }
        Ok(sent)
    }

    /// A request of each process, on a connection of its own: SDKs keep none for ten seconds.
    async fn uploaded(&mut self, fleet: &Fleet, window: u64, at: i64) -> anyhow::Result<Sent> {
        let mut sent = Sent::default();
        for &host in &self.hosts {
            fleet.draw(host, window, &mut self.drawn);
            sent.samples += samples(&self.drawn);
            for (of, rows) in processes(fleet, host, at, &self.drawn) {
                let (path, body, headers) = match self.sender {
                    Sender::Node => {
                        let (path, body) = sdk::node(of, rows)?;
                        let headers = vec![("Content-Type", "application/octet-stream")];
                        (path, body, headers)
                    }
                    _ => {
                        let path = "/push.v1.PusherService/Push".to_owned();
                        let headers = vec![
                            ("Content-Type", "application/proto"),
                            ("Content-Encoding", "gzip"),
                        ];
                        (path, sdk::python(of, rows)?, headers)
                    }
                };
                sent.requests += 1;
                sent.bytes += body.len() as u64;
                let mut connection = Connection::open(&self.http).await?;
                connection.post(&path, &headers, body).await?;
            }
        }
        Ok(sent)
    }

    /// Files of all processes of a host in one request.
    async fn written(&mut self, fleet: &Fleet, window: u64, at: i64) -> anyhow::Result<Sent> {
        let mut sent = Sent::default();
        for (at_host, host) in self.hosts.clone().into_iter().enumerate() {
            fleet.draw(host, window, &mut self.drawn);
            let request = sdk::written(processes(fleet, host, at, &self.drawn))?;
            sent.add(Sent {
                requests: 1,
                samples: samples(&self.drawn),
                bytes: request.encoded_len() as u64,
            });
            unary(self.channel(at_host).await?, WRITE_RAW, request).await?;
        }
        Ok(sent)
    }
}

fn samples(drawn: &Drawn) -> u64 {
    drawn.rows.iter().map(|row| u64::from(row.2)).sum()
}

/// The processes of a host that have samples in a window.
fn processes<'f>(
    fleet: &'f Fleet,
    host: usize,
    start_unix_ns: i64,
    drawn: &'f Drawn,
) -> impl Iterator<Item = (Process<'f>, sdk::Rows<'f>)> {
    let each = drawn.rows.chunk_by(|left, right| left.0 == right.0);
    each.map(move |rows| {
        let of = Process {
            fleet,
            host,
            container: rows[0].0 as usize,
            start_unix_ns,
        };
        (of, rows)
    })
}

/// Calls, and wants an empty answer: a sentence in it would say that something was not understood.
async fn unary<M: Message + 'static>(
    mut channel: Grpc<Channel>,
    path: &'static str,
    message: M,
) -> anyhow::Result<()> {
    channel.ready().await?;
    let codec = PieceCodec::<M, Empty>::default();
    let path = tonic::codegen::http::uri::PathAndQuery::from_static(path);
    let answer = channel.unary(tonic::Request::new(message), path, codec);
    let answer = answer.await?.into_inner();
    ensure!(answer.word.is_none(), "the answer has a word to say");
    Ok(())
}

/// An answer that may have one part.
#[derive(Clone, PartialEq, prost::Message)]
struct Empty {
    #[prost(bytes = "vec", optional, tag = "1")]
    word: Option<Vec<u8>>,
}
