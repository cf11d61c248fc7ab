//! The collector as a whole: what is started, in which order it ends, and what ends it.
//!
//! Threads: a few of the runtime's (`fp-collector`), which never block; its blocking ones, for
//! queries; `fp-store`, which stores windows; `fp-upkeep`, which keeps the store in order;
//! `fp-survey`, which looks for hosts in trouble; and `fp-debuginfod`, which fetches symbols where
//! servers are configured. `fp-audit` writes what was done.

use crate::access::{AccessAdmin, AccessError, People};
use crate::annotations::{AnnotationOptions, Annotations};
use crate::audit::{Audit, Event};
use crate::config::Config;
use crate::config::outside::HostNames;
use crate::control::{self, Control, ControlOptions};
use crate::grpc::{self, GrpcError};
use crate::identity::{Fleet, FleetAdmin, IdentityError, Outside};
use crate::ingest::limits::Timeouts;
use crate::ingest::{self, Hosts, Ingest, IngestOptions, StorePanicked, stopped};
use crate::listen::{self, ListenError};
use crate::metrics::Metrics;
use crate::pins::{Bounds, Pins, limits::PINS_MAX};
use crate::query::{Facts, Queries, QueryOptions};
use crate::store::{OpenStore, StoreError};
use crate::symbols::{SymbolOptions, Symbols};
use crate::time::Clock;
use crate::upkeep::Upkeep;
use crate::web;
use proto::calls::Patience;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle, JoinSet};

mod pages;

/// Most rows of totals by label that a query holds. A fleet of 10,000 hosts with 100 cgroups each
/// has more cgroups than this only when it groups by host too.
const LINES_MAX: usize = 1_000_000;

/// Why the collector ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// An address cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The transport of gRPC failed.
    #[error(transparent)]
    Grpc(#[from] GrpcError),
    /// A call of the store panicked.
    #[error(transparent)]
    Store(#[from] StorePanicked),
    /// A part ended on its own.
    #[error("`{part}` ended unexpectedly")]
    Part {
        /// Which.
        part: &'static str,
    },
    /// A thread could not be started.
    #[error("failed to start thread `{thread}`")]
    Thread {
        /// Its name.
        thread: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// The fleet's authority or its members cannot be had.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Those who may ask cannot be read.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The certificate of the page cannot be used.
    #[error("failed to start the web server: {0}")]
    Page(String),
    /// What was in memory is not in the store's files.
    #[error("failed to close the store: acknowledged windows are safe in its log")]
    Close(#[source] StoreError),
}

/// Where a collector listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// For agents and commands.
    pub grpc: SocketAddr,
    /// For browsers and scrapers.
    pub http: SocketAddr,
    /// For agents of other hosts.
    pub tls: Option<SocketAddr>,
    /// For browsers of other machines.
    pub https: Option<SocketAddr>,
}

/// Checks what a configuration says in texts of its own, beside its keys.
///
/// # Errors
/// Which key is wrong, and why.
pub fn check(config: &Config) -> Result<(), String> {
    pages::oidc(config).map(|_| ())
}

/// Serves from `store` until `stop` is true, then drains and closes the store. `ready` is called
/// when both addresses are listened on.
///
/// # Errors
/// When it cannot start, when a part of it fails, and when the store does not close.
pub async fn serve(
    config: &Config,
    store: OpenStore,
    clock: Clock,
    stop: watch::Receiver<bool>,
    ready: impl FnOnce(Addresses),
) -> Result<(), ServeError> {
    let kept = sandbox::Report::default();
    serve_confined(config, store, clock, (stop, kept), ready).await
}

/// The same in a process that has given up what the report says, which status tells.
///
/// # Errors
/// As there.
pub async fn serve_confined(
    config: &Config,
    store: OpenStore,
    clock: Clock,
    (mut stop, given_up): (watch::Receiver<bool>, sandbox::Report),
    ready: impl FnOnce(Addresses),
) -> Result<(), ServeError> {
    let grpc = listen::bind(config.listen.grpc).await?;
    let http = listen::bind(config.listen.http).await?;
    let tls = match config.listen.tls {
        Some(address) => Some(listen::bind_any(address).await?),
        None => None,
    };
    let https = match config.listen.https {
        Some(address) => Some(listen::bind_any(address).await?),
        None => None,
    };
    let bound = |listener: &tokio::net::TcpListener, address| {
        listener.local_addr().map_err(|source| {
            let error = ListenError::Bind { address, source };
            ServeError::Listen(error)
        })
    };
    let addresses = Addresses {
        grpc: bound(&grpc, config.listen.grpc)?,
        http: bound(&http, config.listen.http)?,
        tls: match (&tls, config.listen.tls) {
            (Some(listener), Some(address)) => Some(bound(listener, address)?),
            _ => None,
        },
        https: match (&https, config.listen.https) {
            (Some(listener), Some(address)) => Some(bound(listener, address)?),
            _ => None,
        },
    };
    let asks = pages::asks(config);
    let fleet = match tls.is_some() || https.is_some() || asks {
        true => Some(fleet(config, clock.clone())?),
        false => None,
    };
    let (shutdown, ending) = watch::channel(false);
    let metrics = Arc::new(Metrics::default());
    metrics.sandboxed(&given_up);
    let hosts = Arc::new(Hosts::new(clock.clone(), metrics.clone()));
    let upkeep = Upkeep::start(store.clone(), hosts.clone(), clock.clone(), metrics.clone());
    let (upkeep, mut upkeep_ended) = upkeep.map_err(|source| ServeError::Thread {
        thread: "fp-upkeep",
        source,
    })?;
    let streams = config.ingest.streams_max as usize;
    let ingest = Ingest::start(
        store.sink.clone(),
        hosts.clone(),
        IngestOptions {
            streams,
            memory_bytes: config.ingest.memory_bytes(),
            timeouts: Timeouts::default(),
        },
        clock.clone(),
        metrics.clone(),
        ending.clone(),
    );
    let (ingest, mut pushing) = ingest.map_err(|source| ServeError::Thread {
        thread: ingest::THREAD,
        source,
    })?;
    let started = (clock.clone(), given_up);
    let queries = queries(config, &store, &hosts, started, &metrics);
    let audit = Audit::start(
        &config.data_dir.join("audit"),
        config.audit.disk_bytes(),
        clock.clone(),
        metrics.clone(),
    );
    let audit = audit.map_err(|source| ServeError::Thread {
        thread: "fp-audit",
        source,
    })?;
    hosts.audited_by(audit.clone());
    audit.note(
        Event::by("collector", String::new(), "start").with("version", env!("CARGO_PKG_VERSION")),
    );
    let people = match &fleet {
        Some(fleet) => Some(people(config, fleet, &clock, &audit, &metrics)?),
        None => None,
    };
    let control = Control::new(
        queries.clone(),
        ControlOptions {
            streams,
            memory_bytes: config.query.memory_bytes(),
            timeouts: control::limits::Timeouts::default(),
            advertise: config.control.advertise.map(|address| address.to_string()),
            captures_dir: config.data_dir.join("captures"),
            captures: Bounds {
                bytes: config.captures.disk_bytes(),
                owner_bytes: u64::MAX,
                count: config.captures.count_max as usize,
                age_ns: config.captures.retention_ns(),
            },
        },
        (clock.clone(), audit.clone()),
        metrics.clone(),
        ending.clone(),
    );
    let symbols = symbols(config, clock.clone(), &metrics, &ending)?;
    symbols.audited_by(audit.clone());
    store.naming.name_by(Arc::new(symbols.clone()));
    let annotations = annotations(config, (&clock, &audit), &metrics, &ending);
    annotations.ready().await;
    ingest.watched_by(Arc::new(annotations.clone()));
    let annotating = tokio::spawn(annotations.clone().keep());
    let pins = pins(config, &queries, clock, &metrics, &ending);
    let bounding = tokio::spawn(pins.clone().keep_bounds());
    let pruning = tokio::spawn(control.clone().keep_bounds());
    let announcing = tokio::spawn(control.clone().announce());
    let agents = grpc::AgentServices {
        ingest: ingest.clone(),
        control: control.clone(),
        pins: pins.clone(),
    };
    let admin = fleet.clone().zip(addresses.tls);
    let page = pages::address(config, &addresses);
    let access = match (&people, &fleet) {
        (Some(people), Some(fleet)) => {
            let id = fleet.authority.fleet_id();
            let told = addresses.tls.map(|tls| config.listen.advertised(tls));
            AccessAdmin::new(people.clone(), id, told, page)
        }
        _ => AccessAdmin::local(audit.clone(), page),
    };
    let entrances = pages::entrances(config, &addresses, people.as_ref(), fleet.as_ref())?;
    let services = grpc::Services {
        agents,
        queries: queries.clone(),
        annotations: annotations.clone(),
        symbols: symbols.clone(),
        fleet: admin.map(|(fleet, listen)| {
            FleetAdmin::new(fleet, config.listen.advertised(listen), audit.clone())
        }),
        access,
    };
    let keeping = people.clone().map(|people| tokio::spawn(people.keep()));
    let members = match (tls, fleet, people.clone()) {
        (Some(listener), Some(fleet), Some(people)) => Some(grpc::serve_members(
            listener,
            services.clone(),
            (streams, Patience::default()),
            grpc::Gatehouse {
                fleet,
                people,
                audit_reads: config.audit.queries,
            },
            metrics.clone(),
            ending.clone(),
        )),
        _ => None,
    };
    let local = grpc::serve(
        grpc,
        services,
        (streams, Patience::default()),
        addresses.http,
        metrics.clone(),
        ending.clone(),
    );
    let mut grpc = tokio::spawn(async move {
        match members {
            Some(members) => tokio::try_join!(local, members).map(|_| ()),
            None => local.await,
        }
    });
    let pages = [Some(http), https].into_iter().flatten().zip(entrances);
    let answers = web::Answers {
        queries: queries.clone(),
        control: control.clone(),
        pins: pins.clone(),
        annotations: annotations.clone(),
    };
    let mut serving = JoinSet::new();
    for page in pages {
        serving.spawn(web::serve(
            page,
            answers.clone(),
            addresses.grpc,
            metrics.clone(),
            ending.clone(),
        ));
    }
    let mut http = tokio::spawn(pages::all(serving));
    ready(addresses);
    let failure = tokio::select! {
        () = stopped(&mut stop) => None,
        ended = &mut pushing => Some(pushing_failure(ended)),
        ended = &mut grpc => Some(match ended {
            Ok(Err(error)) => error.into(),
            _ => ServeError::Part { part: "gRPC" },
        }),
        _ = &mut http => Some(ServeError::Part { part: "HTTP" }),
        _ = &mut upkeep_ended => Some(ServeError::Part { part: "fp-upkeep" }),
    };
    // Receivers are alive: the tasks hold them.
    let _ = shutdown.send(true);
    if failure.is_none() {
        drain(&ingest, &mut grpc, &mut http, config.shutdown.grace()).await;
    }
    announcing.abort();
    bounding.abort();
    pruning.abort();
    annotating.abort();
    if let Some(keeping) = keeping {
        keeping.abort();
    }
    grpc.abort();
    http.abort();
    upkeep.stop();
    let closing = move || {
        let closed = close(&store, &hosts);
        symbols.close();
        annotations.close();
        if let Some(people) = people {
            people.sum_all();
            if let Err(error) = people.keep_used() {
                tracing::debug!(%error, "failed to store when tokens were last used");
            }
        }
        audit.note(Event::by("collector", String::new(), "stop"));
        audit.close();
        closed
    };
    let closed = tokio::task::spawn_blocking(closing).await;
    match (failure, closed) {
        (Some(failure), _) => Err(failure),
        (None, Ok(Ok(()))) => Ok(()),
        (None, Ok(Err(error))) => Err(ServeError::Close(error)),
        (None, Err(_)) => Err(StorePanicked.into()),
    }
}

fn queries(
    config: &Config,
    store: &OpenStore,
    hosts: &Arc<Hosts>,
    (clock, sandbox): (Clock, sandbox::Report),
    metrics: &Arc<Metrics>,
) -> Queries {
    let options = QueryOptions {
        concurrent: config.query.concurrent as usize,
        timeout: config.query.timeout(),
        memory_bytes: config.query.memory_bytes(),
        nodes: config.query.nodes_max as usize,
        lines: LINES_MAX,
    };
    let facts = Facts {
        started_unix_ns: clock.now_unix_ns(),
        store_bytes_max: config.retention.disk_bytes(),
        sandbox,
    };
    Queries::new(store, hosts.clone(), options, facts, clock, metrics.clone())
}

/// Pins of agents: files of the collector, whatever the store is.
fn pins(
    config: &Config,
    queries: &Queries,
    clock: Clock,
    metrics: &Arc<Metrics>,
    ending: &watch::Receiver<bool>,
) -> Pins {
    let bounds = Bounds {
        bytes: config.pins.disk_bytes(),
        owner_bytes: config.pins.host_bytes(),
        count: PINS_MAX,
        age_ns: config.pins.retention_ns(),
    };
    Pins::new(
        (config.data_dir.join("pins"), bounds),
        queries.clone(),
        clock,
        metrics.clone(),
        ending.clone(),
    )
}

/// What happened to the fleet: files of the collector, whatever the store is.
fn annotations(
    config: &Config,
    (clock, audit): (&Clock, &Audit),
    metrics: &Arc<Metrics>,
    ending: &watch::Receiver<bool>,
) -> Annotations {
    let options = AnnotationOptions {
        dir: config.data_dir.join("annotations"),
        age_ns: config.annotations.retention_ns(),
        find_deploys: config.annotations.find_deploys,
    };
    Annotations::new(
        options,
        clock.clone(),
        audit.clone(),
        metrics.clone(),
        ending.clone(),
    )
}

/// Symbols of what agents cannot name: files of the collector, whatever the store is.
fn symbols(
    config: &Config,
    clock: Clock,
    metrics: &Arc<Metrics>,
    ending: &watch::Receiver<bool>,
) -> Result<Symbols, ServeError> {
    let options = SymbolOptions {
        dir: config.data_dir.join("symbols"),
        disk_bytes: config.symbols.disk_bytes(),
        debuginfod: config.symbols.debuginfod.clone(),
    };
    let opened = Symbols::open(&options, clock, metrics.clone(), ending.clone());
    opened.map_err(|source| ServeError::Thread {
        thread: "fp-debuginfod",
        source,
    })
}

/// Who the hosts of the fleet are: files of the collector, whatever the store is.
fn fleet(config: &Config, clock: Clock) -> Result<Arc<Fleet>, ServeError> {
    let dir = config.data_dir.join("identity");
    let mut fleet = Fleet::open(&dir, config.identity.host_lasts(), clock)?;
    let outside = &config.identity.outside;
    // It was checked when the configuration was read.
    if let Some(Ok(names)) = outside.hosts.as_deref().map(HostNames::parse) {
        let shown = outside.cert_file.clone().zip(outside.key_file.clone());
        let outside = Outside::open(names, outside.ca_files.clone(), shown)?;
        fleet = fleet.with_outside(outside)?;
    }
    tracing::info!(
        fleet = fleet.authority.fleet_id(),
        members = fleet.registry.members().len(),
        "listening for hosts with certificates"
    );
    Ok(Arc::new(fleet))
}

/// Who the people are that may ask from elsewhere: files of the collector, whatever the store is.
fn people(
    config: &Config,
    fleet: &Fleet,
    clock: &Clock,
    audit: &Audit,
    metrics: &Arc<Metrics>,
) -> Result<Arc<People>, ServeError> {
    let path = config.data_dir.join("identity").join("people.sqlite");
    let people = People::open(
        &path,
        fleet.authority.key_hash(),
        clock.clone(),
        audit.clone(),
        metrics.clone(),
    )?;
    Ok(Arc::new(people))
}

fn pushing_failure(ended: Result<Result<(), StorePanicked>, JoinError>) -> ServeError {
    match ended {
        Ok(Err(error)) => error.into(),
        _ => ServeError::Part { part: "pushing" },
    }
}

/// Lets what is under way come to its end, for so long.
async fn drain(
    ingest: &Ingest,
    grpc: &mut JoinHandle<Result<(), GrpcError>>,
    http: &mut JoinHandle<()>,
    grace: Duration,
) {
    let all = async {
        ingest.drained().await;
        // How they end does not matter any more.
        let _ = grpc.await;
        let _ = http.await;
    };
    if tokio::time::timeout(grace, all).await.is_err() {
        tracing::warn!(
            grace_s = grace.as_secs_f64(),
            "clients cut off: grace is over"
        );
    }
}

fn close(store: &OpenStore, hosts: &Hosts) -> Result<(), StoreError> {
    if let Err(error) = hosts.flush(store) {
        tracing::warn!("failed to store the last reports of hosts: {error}");
    }
    store.sink.close()
}
