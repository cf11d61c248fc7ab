//! A collector on free ports with a store in memory, and an agent to talk to it.

#[path = "../support/numbering.rs"]
mod numbering;

use crate::memory::Memory;
use collector::config::Config;
use collector::control::limits::Timeouts as ControlTimeouts;
use collector::control::{Control, ControlOptions};
use collector::ingest::limits::Timeouts;
use collector::ingest::{Hosts, Ingest, IngestOptions, Pushing};
use collector::metrics::Metrics;
use collector::pins::{Bounds, Pins};
use collector::query::{Facts, Queries, QueryOptions};
use collector::store::Exact;
use collector::time::Clock;
use collector::{grpc, listen, web};
use profile::{ContentId, Dictionary, FrameRef};
use proto::calls::Patience;
use proto::collector as wire;
use proto::collector::ingest_service_client::IngestServiceClient;
use proto::collector::query_service_client::QueryServiceClient;
use proto::collector::{push_request, push_response};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::codec::CompressionEncoding::Zstd;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

/// Longest that anything here may take. Only a failing test waits for it.
pub const LIMIT: Duration = Duration::from_secs(30);

/// What the collector's clock says. Unit: nanoseconds.
pub const NOW: i64 = 1_700_000_000_000_000_000;

/// Unit: nanoseconds.
pub const SECOND: i64 = 1_000_000_000;

/// What a test may change.
pub struct Options {
    /// Of ingest.
    pub ingest: IngestOptions,
    /// Of queries.
    pub query: QueryOptions,
    /// Of captures over the fleet.
    pub control: ControlOptions,
    /// Where pins are kept; none: in a directory that goes with the rig.
    pub pins_dir: Option<PathBuf>,
    /// For how long connections may be without a call.
    pub patience: Patience,
    /// Of pins.
    pub pins: Bounds,
}

impl Default for Options {
    fn default() -> Options {
        let config = Config::default();
        Options {
            ingest: IngestOptions {
                streams: 1024,
                memory_bytes: 256 << 20,
                timeouts: Timeouts {
                    hello: LIMIT,
                    parts: LIMIT,
                    need: LIMIT,
                    stall: LIMIT,
                    memory: LIMIT,
                },
            },
            query: QueryOptions {
                concurrent: 2,
                timeout: LIMIT,
                memory_bytes: config.query.memory_bytes(),
                nodes: 200_000,
                lines: 100_000,
            },
            control: ControlOptions {
                streams: 1024,
                memory_bytes: 256 << 20,
                timeouts: ControlTimeouts {
                    hello: LIMIT,
                    ping: LIMIT,
                    report: LIMIT,
                },
                advertise: None,
            },
            patience: Patience::default(),
            pins_dir: None,
            pins: Bounds {
                bytes: 64 << 20,
                host_bytes: 64 << 20,
                age_ns: 1000 * SECOND,
            },
        }
    }
}

/// A running collector.
pub struct Rig {
    /// Its store.
    pub store: Arc<Memory>,
    /// Its hosts.
    pub hosts: Arc<Hosts>,
    /// Its numbers.
    pub metrics: Arc<Metrics>,
    /// Its gRPC address.
    pub grpc: SocketAddr,
    /// Its HTTP address.
    pub http: SocketAddr,
    /// Its time.
    pub clock: Arc<AtomicI64>,
    /// Ends it.
    pub stop: watch::Sender<bool>,
    /// Captures.
    pub control: Control,
    /// All streams.
    pub ingest: Ingest,
    /// The task that calls the store.
    pub pushing: Pushing,
    _own: tempfile::TempDir,
}

impl Rig {
    /// With defaults.
    pub async fn start() -> Rig {
        Rig::with(Options::default()).await
    }

    /// With these options.
    pub async fn with(options: Options) -> Rig {
        Rig::on(Arc::default(), options).await
    }

    /// One more on this store.
    pub async fn on(store: Arc<Memory>, options: Options) -> Rig {
        let now = Arc::new(AtomicI64::new(NOW));
        let told = now.clone();
        let clock = Clock::new(move || told.load(Ordering::Relaxed));
        let metrics = Arc::new(Metrics::default());
        let hosts = Arc::new(Hosts::new(clock.clone(), metrics.clone()));
        let (stop, ending) = watch::channel(false);
        let streams = options.ingest.streams;
        let (ingest, pushing) = Ingest::start(
            store.clone(),
            hosts.clone(),
            options.ingest,
            clock.clone(),
            metrics.clone(),
            ending.clone(),
        )
        .expect("a thread");
        let facts = Facts {
            started_unix_ns: NOW,
            store_bytes_max: 7,
        };
        // As the program has it.
        let queries = Queries::new(
            Arc::new(Exact::new(store.clone())),
            hosts.clone(),
            options.query,
            facts,
            clock.clone(),
            metrics.clone(),
        );
        let control = Control::new(
            queries.clone(),
            options.control,
            clock.clone(),
            metrics.clone(),
            ending.clone(),
        );
        let own = tempfile::tempdir().expect("a directory");
        let dir = options.pins_dir.unwrap_or_else(|| own.path().to_owned());
        let pins = Pins::new(
            (dir, options.pins),
            queries.clone(),
            clock,
            metrics.clone(),
            ending.clone(),
        );
        let any: SocketAddr = ([127, 0, 0, 1], 0).into();
        let on_grpc = listen::bind(any).await.expect("a port");
        let on_http = listen::bind(any).await.expect("a port");
        let address =
            |listener: &tokio::net::TcpListener| listener.local_addr().expect("an address");
        let (grpc, http) = (address(&on_grpc), address(&on_http));
        tokio::spawn(grpc::serve(
            on_grpc,
            grpc::Services {
                ingest: ingest.clone(),
                queries: queries.clone(),
                control: control.clone(),
                pins,
            },
            (streams, options.patience),
            http,
            metrics.clone(),
            ending.clone(),
        ));
        let serving = web::serve(
            on_http,
            queries,
            control.clone(),
            grpc,
            metrics.clone(),
            ending,
        );
        tokio::spawn(serving);
        Rig {
            store,
            hosts,
            metrics,
            grpc,
            http,
            clock: now,
            stop,
            control,
            ingest,
            pushing,
            _own: own,
        }
    }

    /// A connection.
    pub async fn channel(&self) -> Channel {
        channel(self.grpc).await
    }

    /// A client of QueryService.
    pub async fn queries(&self) -> QueryServiceClient<Channel> {
        QueryServiceClient::new(self.channel().await).accept_compressed(Zstd)
    }

    /// An agent whose Hello was answered.
    pub async fn agent(&self, host: &str) -> Agent {
        let mut agent = Agent::connect(self.channel().await)
            .await
            .expect("a stream");
        agent.hello(hello(host, 1)).await;
        agent
    }
}

/// A connection to `address`.
pub async fn channel(address: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    endpoint.connect().await.expect("a connection")
}

/// A Hello of `host` in boot `boot`.
pub fn hello(host: &str, boot: u8) -> wire::Hello {
    wire::Hello {
        host_id: format!("id-{host}"),
        boot_id: vec![boot; 16],
        facts: Some(wire::HostFacts {
            hostname: host.to_owned(),
            kernel: "6.1".to_owned(),
            labels: [("region".to_owned(), "north".to_owned())].into(),
            ..wire::HostFacts::default()
        }),
        now_unix_ns: NOW,
    }
}

/// An agent's end of a stream.
pub struct Agent {
    /// To the collector.
    pub requests: mpsc::Sender<wire::PushRequest>,
    /// From the collector.
    pub responses: Streaming<wire::PushResponse>,
}

impl Agent {
    /// Opens a stream and says nothing.
    pub async fn connect(channel: Channel) -> Result<Agent, Status> {
        let (requests, queue) = mpsc::channel(64);
        let mut client = IngestServiceClient::new(channel)
            .send_compressed(Zstd)
            .accept_compressed(Zstd);
        let responses = client.push(ReceiverStream::new(queue)).await?.into_inner();
        Ok(Agent {
            requests,
            responses,
        })
    }

    /// Says who it is and takes the Welcome.
    pub async fn hello(&mut self, hello: wire::Hello) -> wire::Welcome {
        self.send(push_request::Body::Hello(hello)).await;
        match self.next().await {
            Ok(push_response::Body::Welcome(welcome)) => welcome,
            other => panic!("no Welcome but {other:?}"),
        }
    }

    /// Sends a message; a stream that has ended is told by the next answer.
    pub async fn send(&self, body: push_request::Body) {
        let _ = self
            .requests
            .send(wire::PushRequest { body: Some(body) })
            .await;
    }

    /// Sends a part of a window.
    pub async fn part(&self, part: wire::WindowPart) {
        self.send(push_request::Body::Part(part)).await;
    }

    /// The next answer, or how the stream ended.
    pub async fn next(&mut self) -> Result<push_response::Body, Status> {
        let next = tokio::time::timeout(LIMIT, self.responses.message()).await;
        match next.expect("an answer in time")? {
            Some(response) => Ok(response.body.expect("a body")),
            None => Err(Status::ok("the stream ended")),
        }
    }

    /// The next answer, which is an Ack.
    pub async fn ack(&mut self) -> wire::Ack {
        match self.next().await {
            Ok(push_response::Body::Ack(ack)) => ack,
            other => panic!("no Ack but {other:?}"),
        }
    }

    /// The next answer, which is a Need.
    pub async fn need(&mut self) -> wire::Need {
        match self.next().await {
            Ok(push_response::Body::Need(need)) => need,
            other => panic!("no Need but {other:?}"),
        }
    }

    /// The next answer, which ends the stream.
    pub async fn end(&mut self) -> Status {
        self.next().await.expect_err("the stream ends")
    }

    /// Answers the Need of this sequence with these stacks.
    pub async fn define(&self, sequence: u64, stacks: &[&str]) {
        self.send(push_request::Body::Definitions(wire::Definitions {
            tables: Some(tables(stacks)),
            sequence,
            more: false,
            ..wire::Definitions::default()
        }))
        .await;
    }

    /// Sends [`window`] `number` of `stacks`, defines what is asked for, and takes the Ack.
    pub async fn store(&mut self, number: u64, stacks: &[&str]) -> wire::Ack {
        self.store_part(window(number, stacks), stacks).await
    }

    /// The same with a part that is there already.
    pub async fn store_part(&mut self, part: wire::WindowPart, stacks: &[&str]) -> wire::Ack {
        self.part(part).await;
        loop {
            match self.next().await {
                Ok(push_response::Body::Ack(ack)) => return ack,
                Ok(push_response::Body::Need(need)) => self.define(need.sequence, stacks).await,
                other => panic!("neither Ack nor Need but {other:?}"),
            }
        }
    }
}

/// Stacks as a dictionary: `a;b` is `a` calling `b`.
pub fn dictionary(stacks: &[&str]) -> Dictionary {
    let mut dict = Dictionary::default();
    for stack in stacks {
        let frames: Vec<_> = stack
            .split(';')
            .map(|function| {
                dict.intern_frame(FrameRef {
                    function,
                    module: "app",
                    ..FrameRef::default()
                })
            })
            .collect();
        dict.stacks.intern(frames);
    }
    dict
}

/// The hash of a stack.
pub fn hash(stack: &str) -> ContentId {
    *dictionary(&[stack]).content_ids().last().expect("a stack")
}

/// Stacks as an answer to a Need.
pub fn tables(stacks: &[&str]) -> proto::wire::ProfileChunk {
    let profile = profile::Profile {
        dict: dictionary(stacks),
        ..profile::Profile::default()
    };
    let mut chunks = proto::Chunks::with_target(profile, usize::MAX);
    let mut chunk = chunks.next().expect("a chunk");
    chunk.info = None;
    chunk
}

/// Start of window `number` of an hour that ends at [`NOW`]. Unit: nanoseconds.
pub fn begin(number: u64) -> i64 {
    NOW - 3600 * SECOND + number as i64 * 10 * SECOND
}

/// The sequence of window `number`.
pub fn sequence(number: u64) -> u64 {
    sequence_at(begin(number))
}

/// The sequence of a window that starts then.
fn sequence_at(start_unix_ns: i64) -> u64 {
    numbering::sequence(0, start_unix_ns - NOW)
}

/// The same window at another time.
pub fn starting(start_unix_ns: i64, mut part: wire::WindowPart) -> wire::WindowPart {
    part.sequence = sequence_at(start_unix_ns);
    part.facts.as_mut().expect("facts").start_unix_ns = start_unix_ns;
    part
}

/// Window `number`, complete and with a dictionary of its own: one sample of each stack, in unit
/// `web.service`.
pub fn window(number: u64, stacks: &[&str]) -> wire::WindowPart {
    let ids = 1..=stacks.len() as u32;
    wire::WindowPart {
        sequence: sequence(number),
        last: true,
        new_dictionary: true,
        label_sets: vec![labels(&[
            ("cgroup", "/system.slice/web.service"),
            ("unit", "web.service"),
            ("host", "a lie"),
        ])],
        stack_hashes: stacks.iter().flat_map(|stack| hash(stack).0).collect(),
        sample_label_sets: vec![1; stacks.len()],
        sample_stacks: ids.collect(),
        sample_counts: vec![1; stacks.len()],
        facts: Some(facts(number)),
        ..wire::WindowPart::default()
    }
}

/// A label set.
pub fn labels(pairs: &[(&str, &str)]) -> wire::Labels {
    let pairs = pairs.iter().flat_map(|&(name, value)| [name, value]);
    wire::Labels {
        names_values: pairs.map(str::to_owned).collect(),
    }
}

/// Facts of window `number`, of ten seconds.
pub fn facts(number: u64) -> wire::WindowFacts {
    wire::WindowFacts {
        start_unix_ns: begin(number),
        duration_ns: 10 * SECOND as u64,
        event: "cpu-clock".to_owned(),
        unit: "nanoseconds".to_owned(),
        period: 10,
        account_label_sets: vec![1],
        account_ns: vec![40],
        account_estimated_ns: vec![0],
        ..wire::WindowFacts::default()
    }
}

/// Waits until `what` holds; tests that fail wait for [`LIMIT`].
pub async fn until(what: &str, holds: impl Fn() -> bool) {
    let begin = std::time::Instant::now();
    while !holds() {
        assert!(begin.elapsed() < LIMIT, "it never came to it: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
