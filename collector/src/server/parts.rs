//! The parts of a collector, each made from what the configuration says of it.

use super::ServeError;
use crate::access::People;
use crate::alerts::{AlertOptions, Alerts, limits::RETRY};
use crate::annotations::{AnnotationOptions, Annotations};
use crate::audit::{Audit, Event};
use crate::config::outside::HostNames;
use crate::config::{Config, Rule};
use crate::control::{self, Control, ControlOptions};
use crate::export::{self, Export, ExportOptions};
use crate::identity::{Fleet, Outside};
use crate::incidents::{IncidentOptions, Incidents, Sources};
use crate::ingest::limits::Timeouts;
use crate::ingest::{self, Hosts, Ingest, IngestOptions, StorePanicked};
use crate::measure::Measures;
use crate::metrics::Metrics;
use crate::pins::{Bounds, Pins, limits::PINS_MAX};
use crate::query::{Facts, Queries, QueryOptions};
use crate::senders::{SenderOptions, Senders};
use crate::store::OpenStore;
use crate::symbols::{SymbolOptions, Symbols};
use crate::time::Clock;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Most rows of totals by label that a query holds. A fleet of 10,000 hosts with 100 cgroups each
/// has more cgroups than this only when it groups by host too.
const LINES_MAX: usize = 1_000_000;

pub(super) fn queries(
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
pub(super) fn pins(
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

/// Opens the annotations: files of the collector, whatever the store is.
pub(super) fn annotations(
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

/// Alerts: their state is in files of the collector, whatever the store is.
pub(super) fn alerts(
    config: &Config,
    (queries, page): (&Queries, String),
    clock: &Clock,
    metrics: &Arc<Metrics>,
    ending: &watch::Receiver<bool>,
) -> Alerts {
    let names: Vec<&str> = config
        .receivers
        .iter()
        .map(|one| one.name.as_str())
        .collect();
    // They were checked when the configuration was read.
    let rules = config.alerts.iter();
    let rules = rules.filter_map(|rule| Rule::parse(rule, &names).ok());
    let options = AlertOptions {
        dir: config.data_dir.join("alerts"),
        rules: rules.collect(),
        receivers: config.receivers.clone(),
        interval: Duration::from_secs(config.alerting.interval_s.into()),
        wait: Duration::from_secs(config.alerting.wait_s.into()),
        retry: RETRY,
        age_ns: i64::from(config.alerting.retention_days) * 86_400_000_000_000,
        page,
    };
    Alerts::new(
        options,
        queries.clone(),
        clock.clone(),
        metrics.clone(),
        ending.clone(),
    )
}

/// What is measured for `/metrics`.
pub(super) fn measures(
    config: &Config,
    queries: &Queries,
    clock: &Clock,
    metrics: &Arc<Metrics>,
    ending: &watch::Receiver<bool>,
) -> Measures {
    // They were checked when the configuration was read.
    let measures = config.measures.iter();
    let measures = measures.filter_map(|entry| Some((entry.name.clone(), entry.parse().ok()?)));
    let interval = Duration::from_secs(config.alerting.interval_s.into());
    Measures::new(
        (measures.collect(), interval),
        queries.clone(),
        clock.clone(),
        metrics.clone(),
        ending.clone(),
    )
}

/// Sends profiles to others, where a receiver is configured.
pub(super) fn export(
    config: &Config,
    queries: &Queries,
    clock: &Clock,
    metrics: &Arc<Metrics>,
    ending: &watch::Receiver<bool>,
) -> Option<Export> {
    let of = &config.export.otlp;
    let options = ExportOptions {
        dir: config.data_dir.join("export"),
        // They were checked when the configuration was read.
        target: of.target()?,
        selector: of.selector().ok()?,
        service_labels: config.service_labels.clone(),
        interval_ns: i64::from(of.interval_s) * 1_000_000_000,
        backlog_ns: i64::from(of.backlog_hours) * 3_600_000_000_000,
        retry: export::limits::RETRY,
    };
    Some(Export::open(
        options,
        queries.clone(),
        clock.clone(),
        metrics.clone(),
        ending.clone(),
    ))
}

/// Incidents: files of the collector, whatever the store is.
pub(super) fn incidents(
    config: &Config,
    (sources, page): (Sources, String),
    (clock, audit): (&Clock, &Audit),
    metrics: &Arc<Metrics>,
    ending: &watch::Receiver<bool>,
) -> Incidents {
    let options = IncidentOptions {
        dir: config.data_dir.join("incidents"),
        bytes: config.incidents.bytes(),
        count: config.incidents.count_max as usize,
        open_for_pins: config.incidents.open_for_pins,
        page,
    };
    Incidents::new(
        options,
        sources,
        (clock.clone(), audit.clone()),
        metrics.clone(),
        ending.clone(),
    )
}

/// Symbols of what agents cannot name: files of the collector, whatever the store is.
pub(super) fn symbols(
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
    opened.map_err(no_thread("fp-debuginfod"))
}

/// Opens the hosts of the fleet: files of the collector, whatever the store is.
pub(super) fn fleet(config: &Config, clock: Clock) -> Result<Arc<Fleet>, ServeError> {
    let dir = config.data_dir.join("identity");
    let mut fleet = Fleet::open(&dir, config.identity.host_lasts, clock)?;
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

/// Opens the users who may connect from elsewhere: files of the collector, whatever the store is.
pub(super) fn people(
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

/// The log of what was done, opened with the start of the program.
pub(super) fn audit(
    config: &Config,
    clock: Clock,
    metrics: &Arc<Metrics>,
) -> Result<Audit, ServeError> {
    let dir = config.data_dir.join("audit");
    let audit = Audit::start(&dir, config.audit.disk_bytes(), clock, metrics.clone());
    let audit = audit.map_err(no_thread("fp-audit"))?;
    let start = Event::by("collector", String::new(), "start");
    audit.note(start.with("version", env!("CARGO_PKG_VERSION")));
    Ok(audit)
}

/// Captures over the fleet.
pub(super) fn control(
    config: &Config,
    (queries, fleet): (&Queries, Option<Arc<Fleet>>),
    (clock, audit): (Clock, Audit),
    metrics: &Arc<Metrics>,
    ending: &watch::Receiver<bool>,
) -> Control {
    let options = ControlOptions {
        streams: config.ingest.streams_max as usize,
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
    };
    Control::new(
        queries.clone(),
        options,
        fleet,
        (clock, audit),
        metrics.clone(),
        ending.clone(),
    )
}

/// Takes the windows of agents. With it comes the task that ends when they are not stored any more.
pub(super) fn ingest(
    config: &Config,
    store: &OpenStore,
    (hosts, clock): (&Arc<Hosts>, Clock),
    metrics: &Arc<Metrics>,
    ending: &watch::Receiver<bool>,
) -> Result<(Ingest, JoinHandle<Result<(), StorePanicked>>), ServeError> {
    let options = IngestOptions {
        streams: config.ingest.streams_max as usize,
        memory_bytes: config.ingest.memory_bytes(),
        timeouts: Timeouts::default(),
    };
    let started = Ingest::start(
        store.sink.clone(),
        hosts.clone(),
        options,
        clock,
        metrics.clone(),
        ending.clone(),
    );
    started.map_err(no_thread(ingest::THREAD))
}

/// Takes profiles of others than agents, where there is a store for them.
pub(super) fn senders(
    config: &Config,
    store: &OpenStore,
    clock: Clock,
    metrics: &Arc<Metrics>,
) -> Option<Senders> {
    let of = config.senders;
    let options = SenderOptions {
        request_bytes: (of.request_mib as usize) << 20,
        bytes_per_minute: u64::from(of.sender_mib_per_minute) << 20,
        series: of.sender_series_max as usize,
    };
    let store = store.senders.as_ref()?;
    Some(Senders::new(
        store.sink.clone(),
        options,
        clock,
        metrics.clone(),
    ))
}

/// The error of a thread that could not be started.
pub(super) fn no_thread(thread: &'static str) -> impl FnOnce(io::Error) -> ServeError {
    move |source| ServeError::Thread { thread, source }
}
