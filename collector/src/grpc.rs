//! The two gRPC listeners. The one for this machine serves agents (IngestService, ControlService
//! and PinUploadService for pins) and people (QueryService, CaptureService, PinService,
//! AnnotationService, AlertService, IncidentService, ViewService, SymbolService, FleetService,
//! AccessService and Pyroscope's), with health and reflection. The one for other machines serves
//! the same without reflection, plus EnrollmentService, behind the gate (`identity/gate.rs`).

use crate::access::{self, AccessAdmin, Caller, People};
use crate::alerts::{Alerts, limits::REQUEST_BYTES_MAX as ALERT_BYTES_MAX};
use crate::annotations::{Annotations, limits::REQUEST_BYTES_MAX as ANNOTATION_BYTES_MAX};
use crate::control::{Control, limits::MESSAGE_BYTES_MAX as REPORT_BYTES_MAX};
use crate::identity::{self, Enrollment, Fleet, FleetAdmin, Gatekeeper, MemberPeer};
use crate::incidents::{Incidents, limits::REQUEST_BYTES_MAX as INCIDENT_BYTES_MAX};
use crate::ingest::limits::MESSAGE_BYTES_MAX;
use crate::ingest::{Ingest, stopped};
use crate::listen;
use crate::metrics::Metrics;
use crate::pins::{Pins, limits::MESSAGE_BYTES_MAX as PIN_BYTES_MAX};
use crate::pyroscope::{self, Pyroscope};
use crate::query::{Queries, REQUEST_BYTES_MAX};
use crate::senders::Senders;
use crate::symbols::{Symbols, UPLOAD_BYTES_MAX};
use proto::calls::{CountCalls, Patience};
use proto::collector::access_service_server::AccessServiceServer;
use proto::collector::alert_service_server::AlertServiceServer;
use proto::collector::annotation_service_server::AnnotationServiceServer;
use proto::collector::capture_service_server::CaptureServiceServer;
use proto::collector::control_service_server::ControlServiceServer;
use proto::collector::enrollment_service_server::EnrollmentServiceServer;
use proto::collector::fleet_service_server::FleetServiceServer;
use proto::collector::incident_service_server::IncidentServiceServer;
use proto::collector::ingest_service_server::IngestServiceServer;
use proto::collector::pin_service_server::PinServiceServer;
use proto::collector::pin_upload_service_server::PinUploadServiceServer;
use proto::collector::query_service_server::QueryServiceServer;
use proto::collector::symbol_service_server::SymbolServiceServer;
use proto::collector::view_service_server::ViewServiceServer;
use proto::{CONNECTION_WINDOW_BYTES, STREAM_WINDOW_BYTES};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tonic::codec::CompressionEncoding::Zstd;
use tonic::codegen::http::Request;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic_health::pb::health_server::HealthServer;
use tower::util::MapRequestLayer;

/// Connections besides those of agents: commands, probes, agents that reconnect while their old
/// connection lingers.
const SPARE_CONNECTIONS: usize = 512;

/// Connections of an agent: one for all that it does. After trouble its streams may be on several
/// until they end: one of windows, one of captures, one of a pin.
const AGENT_CONNECTIONS: usize = 3;

/// Requests at a time on one connection. An agent needs [`proto::STREAMS_PER_AGENT`].
const REQUESTS_PER_CONNECTION_MAX: u32 = 16;

/// Idle connections are pinged this often, so that peers that vanished give their place back.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// Largest header list of a request. Unit: bytes.
const HEADER_BYTES_MAX: u32 = 16 << 10;

/// Why serving ended.
#[derive(Debug, thiserror::Error)]
pub enum GrpcError {
    /// The reflection service refused the descriptors.
    #[error("failed to build the reflection service")]
    Reflection(#[source] tonic_reflection::server::Error),
    /// The transport failed.
    #[error("failed to serve gRPC")]
    Transport(#[source] tonic::transport::Error),
}

/// Services for agents, and for people about what agents uploaded.
#[derive(Clone)]
pub struct AgentServices {
    /// Agents that push.
    pub ingest: Ingest,
    /// Control streams of agents, and captures.
    pub control: Control,
    /// Pins that agents upload, and questions about them.
    pub pins: Pins,
}

/// The services.
#[derive(Clone)]
pub struct Services {
    /// Services for agents.
    pub agents: AgentServices,
    /// Questions about what is stored.
    pub queries: Queries,
    /// What happened to the fleet.
    pub annotations: Annotations,
    /// Alerts.
    pub alerts: Alerts,
    /// Incidents.
    pub incidents: Incidents,
    /// Pyroscope's API, where it is on.
    pub pyroscope: Option<Pyroscope>,
    /// Profiles of others than agents, where they are let in.
    pub senders: Option<Senders>,
    /// Symbols that people upload.
    pub symbols: Symbols,
    /// Members of the fleet, where other hosts can connect.
    pub fleet: Option<FleetAdmin>,
    /// People, and what was done.
    pub access: AccessAdmin,
}

type Agents = IngestServiceServer<Ingest>;
type ControlServer = ControlServiceServer<Control>;
type Evidence = PinUploadServiceServer<Pins>;
type Enrolling = EnrollmentServiceServer<Enrollment>;
type Questions = QueryServiceServer<Queries>;
type Captures = CaptureServiceServer<Control>;
type Pinned = PinServiceServer<Pins>;
type Annotated = AnnotationServiceServer<Annotations>;
type Alarmed = AlertServiceServer<Alerts>;
type Troubled = IncidentServiceServer<Incidents>;
type Viewed = ViewServiceServer<Incidents>;
type Named = SymbolServiceServer<Symbols>;
type Members = FleetServiceServer<FleetAdmin>;
type Access = AccessServiceServer<AccessAdmin>;

impl AgentServices {
    /// As servers.
    fn servers(self) -> (Agents, ControlServer, Evidence) {
        // What agents are answered is some bytes a window: to compress them costs more than the
        // window's way through the transport.
        let agents = Agents::new(self.ingest)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .accept_compressed(Zstd);
        let control = ControlServer::new(self.control)
            .max_decoding_message_size(REPORT_BYTES_MAX)
            .accept_compressed(Zstd)
            .send_compressed(Zstd);
        let evidence = Evidence::new(self.pins)
            .max_decoding_message_size(PIN_BYTES_MAX)
            .accept_compressed(Zstd)
            .send_compressed(Zstd);
        (agents, control, evidence)
    }
}

impl Services {
    /// As one service.
    fn routes(self) -> Routes {
        let Services {
            agents,
            queries,
            annotations,
            alerts,
            incidents,
            pyroscope,
            senders,
            symbols,
            fleet,
            access,
        } = self;
        let (control, pins) = (agents.control.clone(), agents.pins.clone());
        let (agents, streams, evidence) = agents.servers();
        let questions = Questions::new(queries)
            .max_decoding_message_size(REQUEST_BYTES_MAX)
            .accept_compressed(Zstd)
            .send_compressed(Zstd);
        let captures = Captures::new(control)
            .max_decoding_message_size(REQUEST_BYTES_MAX)
            .accept_compressed(Zstd)
            .send_compressed(Zstd);
        let pinned = Pinned::new(pins)
            .max_decoding_message_size(REQUEST_BYTES_MAX)
            .accept_compressed(Zstd)
            .send_compressed(Zstd);
        let annotated = Annotated::new(annotations)
            .max_decoding_message_size(ANNOTATION_BYTES_MAX)
            .accept_compressed(Zstd)
            .send_compressed(Zstd);
        let alarmed = Alarmed::new(alerts)
            .max_decoding_message_size(ALERT_BYTES_MAX)
            .accept_compressed(Zstd)
            .send_compressed(Zstd);
        let viewed = Viewed::new(incidents.clone())
            .max_decoding_message_size(INCIDENT_BYTES_MAX)
            .accept_compressed(Zstd)
            .send_compressed(Zstd);
        let troubled = Troubled::new(incidents)
            .max_decoding_message_size(INCIDENT_BYTES_MAX)
            .accept_compressed(Zstd)
            .send_compressed(Zstd);
        let named = Named::new(symbols)
            .max_decoding_message_size(UPLOAD_BYTES_MAX)
            .accept_compressed(Zstd)
            .send_compressed(Zstd);
        let access = Access::new(access)
            .max_decoding_message_size(access::REQUEST_BYTES_MAX)
            .accept_compressed(Zstd)
            .send_compressed(Zstd);
        let mut routes = Routes::new(agents)
            .add_service(questions)
            .add_service(streams)
            .add_service(captures)
            .add_service(evidence)
            .add_service(pinned)
            .add_service(annotated)
            .add_service(alarmed)
            .add_service(troubled)
            .add_service(viewed)
            .add_service(named)
            .add_service(access);
        if let Some(pyroscope) = pyroscope {
            let (querier, settings) = pyroscope.servers();
            routes = routes.add_service(querier).add_service(settings);
        }
        if let Some(senders) = senders {
            routes = routes
                .add_service(senders.placed(senders.clone().pusher()))
                .add_service(senders.placed(senders.clone().parca()))
                .add_service(senders.placed(senders.clone().profiles()));
        }
        if let Some(fleet) = fleet {
            let members = Members::new(fleet);
            routes =
                routes.add_service(members.max_decoding_message_size(identity::REQUEST_BYTES_MAX));
        }
        routes
    }
}

/// Serves until `shutdown` is true, and then until every call has ended. Browsers that connect here
/// are informed that the page is at `page`. A connection without a call is closed after `patience`.
///
/// # Errors
/// When the transport fails.
pub async fn serve(
    listener: TcpListener,
    services: Services,
    (streams_max, patience): (usize, Patience),
    page: SocketAddr,
    metrics: Arc<Metrics>,
    shutdown: watch::Receiver<bool>,
) -> Result<(), GrpcError> {
    let health_service = health(&shutdown).await;
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(pyroscope::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let v1 = reflection().build_v1().map_err(GrpcError::Reflection)?;
    let v1alpha = reflection()
        .build_v1alpha()
        .map_err(GrpcError::Reflection)?;
    let mut stop = shutdown;
    let connections = streams_max * AGENT_CONNECTIONS + SPARE_CONNECTIONS;
    let incoming = listen::accept(listener, connections, patience, page, metrics);
    builder()
        .layer(CountCalls::<listen::Peer>::new())
        // Whoever reaches this listener is believed, and no other says so.
        .layer(MapRequestLayer::new(believed::<tonic::body::Body>))
        .add_routes(services.routes())
        .add_service(health_service)
        .add_service(v1)
        .add_service(v1alpha)
        .serve_with_incoming_shutdown(incoming, async move {
            stopped(&mut stop).await;
        })
        .await
        .map_err(GrpcError::Transport)
}

fn believed<B>(mut request: Request<B>) -> Request<B> {
    Caller::believe(request.extensions_mut());
    request
}

/// Whether the collector serves, for whoever asks.
async fn health(
    shutdown: &watch::Receiver<bool>,
) -> HealthServer<impl tonic_health::pb::health_server::Health> {
    let (health, service) = tonic_health::server::health_reporter();
    health.set_serving::<Agents>().await;
    health.set_serving::<Questions>().await;
    health.set_serving::<ControlServer>().await;
    health.set_serving::<Captures>().await;
    health.set_serving::<Evidence>().await;
    health.set_serving::<Pinned>().await;
    health.set_serving::<Annotated>().await;
    health.set_serving::<Named>().await;
    let mut ending = shutdown.clone();
    tokio::spawn(async move {
        stopped(&mut ending).await;
        health.set_not_serving::<Agents>().await;
        health.set_not_serving::<Questions>().await;
        health.set_not_serving::<ControlServer>().await;
        health.set_not_serving::<Captures>().await;
        health.set_not_serving::<Evidence>().await;
        health.set_not_serving::<Pinned>().await;
        health.set_not_serving::<Annotated>().await;
        health.set_not_serving::<Named>().await;
    });
    service
}

/// Access control on the port for other machines.
pub struct Gatehouse {
    /// Hosts.
    pub fleet: Arc<Fleet>,
    /// People.
    pub people: Arc<People>,
    /// Whether reads of people are on record.
    pub audit_reads: bool,
}

/// Serves other machines until `shutdown` is true, and then until every call has ended: hosts of
/// the fleet what they call, people with a token what their role lets them. Who is neither may
/// enroll, and is answered nothing else.
///
/// # Errors
/// When the transport fails.
pub async fn serve_members(
    listener: TcpListener,
    services: Services,
    (streams_max, patience): (usize, Patience),
    gatehouse: Gatehouse,
    metrics: Arc<Metrics>,
    shutdown: watch::Receiver<bool>,
) -> Result<(), GrpcError> {
    let Gatehouse {
        fleet,
        people,
        audit_reads,
    } = gatehouse;
    let enrollment = Enrollment::new(fleet.clone(), people.clone());
    let enrolling =
        Enrolling::new(enrollment).max_decoding_message_size(identity::REQUEST_BYTES_MAX);
    let health_service = health(&shutdown).await;
    let mut stop = shutdown;
    let connections = streams_max * AGENT_CONNECTIONS + SPARE_CONNECTIONS;
    let fleet = (fleet, people.audit().clone());
    let incoming = identity::accept(listener, connections, patience, fleet, metrics);
    builder()
        .layer(CountCalls::<MemberPeer>::new())
        .layer(Gatekeeper::new(people, audit_reads))
        .add_routes(services.routes())
        .add_service(health_service)
        .add_service(enrolling)
        .serve_with_incoming_shutdown(incoming, async move {
            stopped(&mut stop).await;
        })
        .await
        .map_err(GrpcError::Transport)
}

/// How connections are served: the one place that builds the servers' transport.
fn builder() -> Server {
    Server::builder()
        .max_concurrent_streams(REQUESTS_PER_CONNECTION_MAX)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .http2_max_header_list_size(HEADER_BYTES_MAX)
}
