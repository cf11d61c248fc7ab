//! A collector on free ports with a store in memory, and agents that talk to it.

use crate::memory::Memory;
use collector::access::{AccessAdmin, PageAddress, People};
use collector::alerts::{AlertOptions, Alerts, limits::RETRY};
use collector::annotations::{AnnotationOptions, Annotations};
use collector::audit::Audit;
use collector::config::{Config, MeasureEntry};
use collector::control::limits::Timeouts as ControlTimeouts;
use collector::control::{Control, ControlOptions};
use collector::export::{Export, ExportOptions};
use collector::identity::Fleet;
use collector::incidents::{IncidentOptions, Incidents, Sources};
use collector::ingest::limits::Timeouts;
use collector::ingest::{Hosts, Ingest, IngestOptions, Pushing, Watch};
use collector::measure::Measures;
use collector::metrics::Metrics;
use collector::pins::{Bounds, Pins};
use collector::pyroscope::Pyroscope;
use collector::query::{Facts, Queries, QueryOptions};
use collector::senders::{SenderOptions, Senders};
use collector::store::OpenStore;
use collector::store::embedded::{self, EmbeddedStore};
use collector::symbols::{SymbolOptions, Symbols};
use collector::time::Clock;
use collector::{grpc, listen, web};
use proto::calls::Patience;
use proto::collector::Hello;
use proto::collector::query_service_client::QueryServiceClient;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use testkit::fake::control::{ConnectedAgent, Does, connect};
pub use testkit::fake::push::{LIMIT, PushStream, channel, hello};
pub use testkit::fake::window::{
    NOW, SECOND, facts, hash, labels, sequence, start, starting, tables, window,
};
pub use testkit::wait::until;
use tokio::sync::watch;
use tonic::codec::CompressionEncoding::Zstd;
use tonic::transport::Channel;

/// What a test may change.
pub struct Options {
    /// Options of ingest.
    pub ingest: IngestOptions,
    /// Options of queries.
    pub query: QueryOptions,
    /// Options of captures over the fleet; without a directory they are kept in one that goes with
    /// the rig.
    pub control: ControlOptions,
    /// Where pins are kept; none: in a directory that goes with the rig.
    pub pins_dir: Option<PathBuf>,
    /// Where annotations are kept; none: as pins.
    pub annotations_dir: Option<PathBuf>,
    /// Alerts; without a directory their state is kept as pins are.
    pub alerts: AlertOptions,
    /// What is measured for `/metrics`.
    pub measures: Vec<MeasureEntry>,
    /// Incidents; as alerts.
    pub incidents: IncidentOptions,
    /// For how long connections may be without a call.
    pub patience: Patience,
    /// Bounds of pins.
    pub pins: Bounds,
    /// Where the fleet's authority is, and how long certificates last; none: no port for hosts.
    pub fleet: Option<(PathBuf, Duration)>,
    /// Limits of other senders; none: they are not let in.
    pub senders: Option<SenderOptions>,
    /// Where profiles are exported to; none: nowhere.
    pub export: Option<ExportOptions>,
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
                captures_dir: PathBuf::new(),
                captures: Bounds {
                    bytes: 64 << 20,
                    owner_bytes: u64::MAX,
                    count: 1000,
                    age_ns: 1000 * SECOND,
                },
            },
            patience: Patience::default(),
            pins_dir: None,
            annotations_dir: None,
            alerts: AlertOptions {
                dir: PathBuf::new(),
                rules: Vec::new(),
                receivers: Vec::new(),
                interval: Duration::from_secs(30),
                wait: Duration::ZERO,
                retry: RETRY,
                age_ns: 1_000_000 * SECOND,
                page: "http://p.example".to_owned(),
            },
            measures: Vec::new(),
            incidents: IncidentOptions {
                dir: PathBuf::new(),
                bytes: (64 << 20, 32 << 20),
                count: 1000,
                open_for_pins: false,
                page: "http://p.example".to_owned(),
            },
            fleet: None,
            senders: None,
            export: None,
            pins: Bounds {
                bytes: 64 << 20,
                owner_bytes: 64 << 20,
                count: 10_000,
                age_ns: 1000 * SECOND,
            },
        }
    }
}

/// A running collector.
pub struct Rig {
    /// Its store.
    pub store: Arc<Memory>,
    /// The same, as the program has it.
    pub open: OpenStore,
    /// Its hosts.
    pub hosts: Arc<Hosts>,
    /// Its numbers.
    pub metrics: Arc<Metrics>,
    /// Its gRPC address.
    pub grpc: SocketAddr,
    /// Its HTTP address.
    pub http: SocketAddr,
    /// Where other hosts connect, and who they are.
    pub fleet: Option<(SocketAddr, Arc<Fleet>)>,
    /// Its time.
    pub clock: Arc<AtomicI64>,
    /// Ends it.
    pub stop: watch::Sender<bool>,
    /// Captures.
    pub control: Control,
    /// Questions.
    pub queries: Queries,
    /// Pyroscope's API.
    pub pyroscope: Pyroscope,
    /// Takes profiles of others, where they are let in.
    pub senders: Option<Senders>,
    /// Exports, round by round.
    pub export: Option<Export>,
    /// Pins.
    pub pins: Pins,
    /// What happened to the fleet.
    pub annotations: Annotations,
    /// The task that sends notifications.
    pub delivering: tokio::task::JoinHandle<()>,
    /// Incidents, which tests look for causes of.
    pub incidents: Incidents,
    /// Alerts, which tests evaluate round by round.
    pub alerts: Alerts,
    pub measures: Measures,
    /// Symbols.
    pub symbols: Symbols,
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
        let own = tempfile::tempdir().expect("a directory");
        let mut open = OpenStore::of(store.clone());
        if options.senders.is_some() {
            let dir = own.path().join("senders");
            let engine = EmbeddedStore::open(&dir, embedded::Options::default(), NOW);
            open = open.with_senders(OpenStore::of(Arc::new(engine.expect("a store"))));
        }
        let senders = open.senders.as_ref().zip(options.senders);
        let senders = senders.map(|(store, options)| {
            Senders::new(store.sink.clone(), options, clock.clone(), metrics.clone())
        });
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
            sandbox: sandbox::Report::default(),
        };
        let queries = Queries::new(
            &open,
            hosts.clone(),
            options.query,
            facts,
            clock.clone(),
            metrics.clone(),
        );
        let mut control = options.control;
        if control.captures_dir.as_os_str().is_empty() {
            control.captures_dir = own.path().join("captures");
        }
        let control = Control::new(
            queries.clone(),
            control,
            None,
            (clock.clone(), Audit::off()),
            metrics.clone(),
            ending.clone(),
        );
        let dir = options.pins_dir.unwrap_or_else(|| own.path().to_owned());
        let pins = Pins::new(
            (dir, options.pins),
            queries.clone(),
            clock.clone(),
            metrics.clone(),
            ending.clone(),
        );
        let dir = options.annotations_dir;
        let annotations = Annotations::new(
            AnnotationOptions {
                dir: dir.unwrap_or_else(|| own.path().join("annotations")),
                age_ns: 1_000_000 * SECOND,
                find_deploys: true,
            },
            clock.clone(),
            Audit::off(),
            metrics.clone(),
            ending.clone(),
        );
        let export = options.export.map(|options| {
            let asked = (queries.clone(), clock.clone());
            Export::open(options, asked.0, asked.1, metrics.clone(), ending.clone())
        });
        let mut watches: Vec<Arc<dyn Watch>> = vec![Arc::new(annotations.clone())];
        if let Some(export) = &export {
            watches.push(Arc::new(export.clone()));
        }
        ingest.watched_by(watches);
        tokio::spawn(annotations.clone().keep());
        let mut alerts = options.alerts;
        if alerts.dir.as_os_str().is_empty() {
            alerts.dir = own.path().join("alerts");
        }
        let asked = (queries.clone(), clock.clone());
        let alerts = Alerts::new(alerts, asked.0, asked.1, metrics.clone(), ending.clone());
        let delivering = tokio::spawn(alerts.clone().deliver());
        let entries = options.measures.iter();
        let entries = entries.map(|one| (one.name.clone(), one.parse().expect("a measure")));
        let measures = Measures::new(
            (entries.collect(), Duration::from_secs(30)),
            queries.clone(),
            clock.clone(),
            metrics.clone(),
            ending.clone(),
        );
        let mut incidents = options.incidents;
        if incidents.dir.as_os_str().is_empty() {
            incidents.dir = own.path().join("incidents");
        }
        let sources = Sources {
            queries: queries.clone(),
            pins: pins.clone(),
            control: control.clone(),
            alerts: alerts.clone(),
        };
        let recorded = (clock.clone(), Audit::off());
        let incidents = Incidents::new(
            incidents,
            sources,
            recorded,
            metrics.clone(),
            ending.clone(),
        );
        let symbols = SymbolOptions {
            dir: own.path().join("symbols"),
            disk_bytes: 1 << 30,
            debuginfod: Vec::new(),
        };
        let symbols = Symbols::open(&symbols, clock, metrics.clone(), ending.clone());
        let symbols = symbols.expect("a thread");
        let any: SocketAddr = ([127, 0, 0, 1], 0).into();
        let on_grpc = listen::bind(any).await.expect("a port");
        let on_http = listen::bind(any).await.expect("a port");
        let address =
            |listener: &tokio::net::TcpListener| listener.local_addr().expect("an address");
        let (grpc, http) = (address(&on_grpc), address(&on_http));
        let agents = grpc::AgentServices {
            ingest: ingest.clone(),
            control: control.clone(),
            pins: pins.clone(),
        };
        let labels = Config::default().service_labels;
        let pyroscope = Pyroscope::new(queries.clone(), &labels);
        let services = grpc::Services {
            agents,
            queries: queries.clone(),
            pyroscope: Some(pyroscope.clone()),
            senders: senders.clone(),
            annotations: annotations.clone(),
            alerts: alerts.clone(),
            incidents: incidents.clone(),
            symbols: symbols.clone(),
            fleet: None,
            access: AccessAdmin::local(
                Audit::off(),
                PageAddress {
                    url: format!("http://{http}"),
                    asks: false,
                },
            ),
        };
        let mut fleet = None;
        if let Some((dir, lasts)) = options.fleet {
            // Certificates are checked by the machine's clock.
            let opened = Fleet::open(&dir, lasts, Clock::system()).expect("an identity");
            let opened = Arc::new(opened);
            let people = People::open(
                &dir.join("people.sqlite"),
                opened.authority.key_hash(),
                Clock::system(),
                Audit::off(),
                metrics.clone(),
            );
            let on_tls = listen::bind_any(any).await.expect("a port");
            fleet = Some((address(&on_tls), opened.clone()));
            tokio::spawn(grpc::serve_members(
                on_tls,
                services.clone(),
                (streams, options.patience),
                grpc::Gatehouse {
                    fleet: opened,
                    people: Arc::new(people.expect("a registry")),
                    audit_reads: false,
                },
                metrics.clone(),
                ending.clone(),
            ));
        }
        tokio::spawn(grpc::serve(
            on_grpc,
            services,
            (streams, options.patience),
            http,
            metrics.clone(),
            ending.clone(),
        ));
        let serving = web::serve(
            (on_http, web::Entrance::open()),
            web::Answers {
                queries: queries.clone(),
                control: control.clone(),
                pins: pins.clone(),
                annotations: annotations.clone(),
                alerts: alerts.clone(),
                measures: measures.clone(),
                incidents: incidents.clone(),
                pyroscope: Some(pyroscope.clone()),
                senders: senders.clone(),
                page: "http://p.example".into(),
            },
            grpc,
            metrics.clone(),
            ending,
        );
        tokio::spawn(serving);
        Rig {
            store,
            open,
            hosts,
            metrics,
            grpc,
            http,
            fleet,
            clock: now,
            stop,
            control,
            queries,
            pyroscope,
            senders,
            export,
            pins,
            annotations,
            alerts,
            measures,
            delivering,
            incidents,
            symbols,
            ingest,
            pushing,
            _own: own,
        }
    }

    /// Where symbols are kept.
    pub fn symbols_dir(&self) -> std::path::PathBuf {
        self._own.path().join("symbols")
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
    pub async fn agent(&self, host: &str) -> PushStream {
        let mut agent = PushStream::connect(self.channel().await)
            .await
            .expect("a stream");
        agent.hello(hello(host, 1)).await;
        agent
    }

    /// A host that is connected, with samples of a moment ago.
    pub async fn host(&self, host: &str, does: Does) -> ConnectedAgent {
        self.sampled(host).await;
        self.connect(hello(host, 1), does).await
    }

    /// Samples of a host from a moment ago.
    pub async fn sampled(&self, host: &str) {
        let mut agent = self.agent(host).await;
        // Its window lies a minute back.
        agent.store(354, &["main;read"]).await;
    }

    /// An agent that says this of itself.
    pub async fn connect(&self, hello: Hello, does: Does) -> ConnectedAgent {
        let agent = connect(self.grpc, hello, does, || NOW).await;
        agent.expect("a welcome")
    }
}
