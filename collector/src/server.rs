//! The complete collector: what is started, in which order it ends, and what ends it.
//!
//! Threads: a few of the runtime's (`fp-collector`), which never block; its blocking ones, for
//! queries; `fp-store`, which stores windows; `fp-upkeep`, which keeps the store in order;
//! `fp-survey`, which looks for hosts in trouble; and `fp-debuginfod`, which fetches symbols where
//! servers are configured. `fp-audit` writes what was done.

use crate::access::{AccessAdmin, AccessError};
use crate::audit::Event;
use crate::config::Config;
use crate::grpc::{self, GrpcError};
use crate::identity::{FleetAdmin, IdentityError};
use crate::incidents::Sources;
use crate::ingest::{Hosts, Ingest, StorePanicked, Watch, stopped};
use crate::listen::ListenError;
use crate::metrics::Metrics;
use crate::pyroscope::Pyroscope;
use crate::store::{OpenStore, StoreError};
use crate::time::Clock;
use crate::upkeep::Upkeep;
use crate::web;
use proto::calls::Patience;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle, JoinSet};

mod listeners;
mod pages;
mod parts;

pub use listeners::Addresses;

use listeners::Listeners;

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
        /// Name of the part.
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
    /// The list of users cannot be read.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The certificate of the page cannot be used.
    #[error("failed to start the web server: {0}")]
    Page(String),
    /// Data in memory could not be written to the store's files.
    #[error("failed to close the store: acknowledged windows are safe in its log")]
    Close(#[source] StoreError),
}

/// Checks texts of the configuration with a syntax of their own.
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

/// The same in a process that has given up what the report says; the status shows it.
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
    let (listeners, addresses) = Listeners::bind(config).await?;
    let asks = pages::asks(config);
    let fleet = match addresses.tls.is_some() || addresses.https.is_some() || asks {
        true => Some(parts::fleet(config, clock.clone())?),
        false => None,
    };
    let (shutdown, ending) = watch::channel(false);
    let metrics = Arc::new(Metrics::default());
    metrics.sandboxed(&given_up);
    let hosts = Arc::new(Hosts::new(clock.clone(), metrics.clone()));
    let upkeep = Upkeep::start(store.clone(), hosts.clone(), clock.clone(), metrics.clone());
    let (upkeep, mut upkeep_ended) = upkeep.map_err(parts::no_thread("fp-upkeep"))?;
    let streams = config.ingest.streams_max as usize;
    let known = (&hosts, clock.clone());
    let (ingest, mut pushing) = parts::ingest(config, &store, known, &metrics, &ending)?;
    let started = (clock.clone(), given_up);
    let queries = parts::queries(config, &store, &hosts, started, &metrics);
    let audit = parts::audit(config, clock.clone(), &metrics)?;
    hosts.audited_by(audit.clone());
    let people = match &fleet {
        Some(fleet) => Some(parts::people(config, fleet, &clock, &audit, &metrics)?),
        None => None,
    };
    let recorded = (clock.clone(), audit.clone());
    let asked = (&queries, fleet.clone());
    let control = parts::control(config, asked, recorded, &metrics, &ending);
    let symbols = parts::symbols(config, clock.clone(), &metrics, &ending)?;
    symbols.audited_by(audit.clone());
    store.naming.name_by(Arc::new(symbols.clone()));
    if let Some(senders) = &store.senders {
        senders.naming.name_by(Arc::new(symbols.clone()));
    }
    let annotations = parts::annotations(config, (&clock, &audit), &metrics, &ending);
    annotations.ready().await;
    let export = parts::export(config, &queries, &clock, &metrics, &ending);
    let mut watches: Vec<Arc<dyn Watch>> = vec![Arc::new(annotations.clone())];
    if let Some(export) = &export {
        watches.push(Arc::new(export.clone()));
    }
    ingest.watched_by(watches);
    let page = pages::address(config, &addresses);
    let asked_by = (&queries, page.url.clone());
    let alerts = parts::alerts(config, asked_by, &clock, &metrics, &ending);
    let measures = parts::measures(config, &queries, &clock, &metrics, &ending);
    let pins = parts::pins(config, &queries, clock.clone(), &metrics, &ending);
    let sources = Sources {
        queries: queries.clone(),
        pins: pins.clone(),
        control: control.clone(),
        alerts: alerts.clone(),
    };
    let by = (&clock, &audit);
    let sources = (sources, page.url.clone());
    let incidents = parts::incidents(config, sources, by, &metrics, &ending);
    let page_url: Arc<str> = page.url.as_str().into();
    let mut housekeeping = JoinSet::new();
    housekeeping.spawn(annotations.clone().keep());
    housekeeping.spawn(alerts.clone().keep());
    housekeeping.spawn(measures.clone().keep());
    housekeeping.spawn(incidents.clone().keep());
    if let Some(export) = &export {
        housekeeping.spawn(export.clone().keep());
    }
    let mut notifying = tokio::spawn(alerts.clone().deliver());
    housekeeping.spawn(pins.clone().keep_bounds());
    housekeeping.spawn(control.clone().keep_bounds());
    housekeeping.spawn(control.clone().announce());
    if let Some(people) = &people {
        housekeeping.spawn(people.clone().keep());
    }
    let agents = grpc::AgentServices {
        ingest: ingest.clone(),
        control: control.clone(),
        pins: pins.clone(),
    };
    let admin = fleet.clone().zip(addresses.tls);
    let access = match (&people, &fleet) {
        (Some(people), Some(fleet)) => {
            let id = fleet.authority.fleet_id();
            let told = addresses.tls.map(|tls| config.listen.advertised(tls));
            AccessAdmin::new(people.clone(), id, told, page)
        }
        _ => AccessAdmin::local(audit.clone(), page),
    };
    let entrances = pages::entrances(config, &addresses, people.as_ref(), fleet.as_ref())?;
    let pyroscope = config.web.pyroscope;
    let pyroscope = pyroscope.then(|| Pyroscope::new(queries.clone(), &config.service_labels));
    let senders = parts::senders(config, &store, clock.clone(), &metrics);
    let services = grpc::Services {
        senders: senders.clone(),
        agents,
        queries: queries.clone(),
        pyroscope: pyroscope.clone(),
        annotations: annotations.clone(),
        alerts: alerts.clone(),
        incidents: incidents.clone(),
        symbols: symbols.clone(),
        fleet: admin.map(|(fleet, listen)| {
            FleetAdmin::new(fleet, config.listen.advertised(listen), audit.clone())
        }),
        access,
    };
    let members = match (listeners.tls, fleet, people.clone()) {
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
        listeners.grpc,
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
    let pages = [Some(listeners.http), listeners.https];
    let pages = pages.into_iter().flatten().zip(entrances);
    let answers = web::Answers {
        queries: queries.clone(),
        control: control.clone(),
        pins: pins.clone(),
        annotations: annotations.clone(),
        alerts: alerts.clone(),
        measures: measures.clone(),
        incidents: incidents.clone(),
        pyroscope,
        senders,
        page: page_url,
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
        let serving = (&mut grpc, &mut http);
        drain(&ingest, serving, &mut notifying, config.shutdown.grace()).await;
    }
    housekeeping.abort_all();
    notifying.abort();
    grpc.abort();
    http.abort();
    upkeep.stop();
    let closing = move || {
        let closed = close(&store, &hosts);
        symbols.close();
        annotations.close();
        if let Some(export) = export {
            export.close();
        }
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

fn pushing_failure(ended: Result<Result<(), StorePanicked>, JoinError>) -> ServeError {
    match ended {
        Ok(Err(error)) => error.into(),
        _ => ServeError::Part { part: "pushing" },
    }
}

/// Lets what is under way come to its end, for so long.
async fn drain(
    ingest: &Ingest,
    (grpc, http): (&mut JoinHandle<Result<(), GrpcError>>, &mut JoinHandle<()>),
    notifying: &mut JoinHandle<()>,
    grace: Duration,
) {
    let all = async {
        ingest.drained().await;
        // How they end does not matter any more.
        let _ = grpc.await;
        let _ = http.await;
        // What is being sent is not sent again.
        let _ = notifying.await;
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
    let of_senders = store.senders.as_ref().map(|senders| senders.sink.close());
    store.sink.close()?;
    of_senders.unwrap_or(Ok(()))
}
