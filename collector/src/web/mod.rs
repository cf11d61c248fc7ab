//! The HTTP listener: the page, QueryService, CaptureService, PinService, AnnotationService,
//! AlertService, IncidentService and ViewService over gRPC-Web, Pyroscope's API, downloads,
//! annotations and alerts as JSON, `/metrics` and `/healthz`.
//!
//! HTTP/1.1: on loopback without logins, elsewhere with TLS and logins (`door.rs`). No answer goes
//! to pages of other sites (`guard.rs`). The number of connections is bounded, and the oldest is
//! closed when there are too many.

mod alerts;
mod annotations;
mod api;
mod capture_file;
mod compress;
mod door;
mod download;
mod guard;
mod incident_file;
mod login;
mod others;
mod otlp;
mod page;
mod pin_file;
mod serve;
mod sign_in;
mod tls;

use door::Asking;
pub use door::{Door, Proxy};
pub use guard::Names;
pub(crate) use guard::without_port;
pub use serve::serve;
pub use tls::Certificates;

use crate::access::{self, Caller, DENIED, Person, Who};
use crate::alerts::{Alerts, limits::REQUEST_BYTES_MAX as ALERT_BYTES_MAX};
use crate::annotations::{Annotations, limits::REQUEST_BYTES_MAX as ANNOTATION_BYTES_MAX};
use crate::control::Control;
use crate::identity::Guarded;
use crate::incidents::{Incidents, limits::REQUEST_BYTES_MAX as INCIDENT_BYTES_MAX};
use crate::measure::Measures;
use crate::metrics::Metrics;
use crate::oidc;
use crate::percent;
use crate::pins::Pins;
use crate::pyroscope::{self, Pyroscope};
use crate::query::{ANSWER_TIMEOUT, Queries, REQUEST_BYTES_MAX, ResponseSlot, STALL_TIMEOUT};
use crate::senders::{self, Senders};
use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Query, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{self, MethodRouter};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::http::Extensions;
use hyper::{HeaderMap, Method, StatusCode, Uri};
use proto::collector::alert_service_server::{self, AlertServiceServer};
use proto::collector::annotation_service_server::{self, AnnotationServiceServer};
use proto::collector::capture_service_server::{self, CaptureServiceServer};
use proto::collector::incident_service_server::{self, IncidentServiceServer};
use proto::collector::pin_service_server::{self, PinServiceServer};
use proto::collector::query_service_server::{QueryServiceServer, SERVICE_NAME};
use proto::collector::view_service_server::{self, ViewServiceServer};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::TcpConnectInfo;
use tonic::{Code, Status};
use tonic_web::GrpcWebLayer;
use tower::Layer;

/// What whoever has not logged in sees in a frame of another page.
const NO_LOGIN_HERE: &str = "not logged in: open Fleetprof in a window of its own and log in; in a \
    frame your browser sends the session only to pages of the same site\n";

/// Longest query of an address. Unit: bytes. A selector may be as long as this.
const QUERY_BYTES_MAX: usize = 32 << 10;

/// How a listener lets others in.
#[derive(Clone)]
pub struct Entrance {
    /// What it is called.
    pub names: Names,
    /// Access control; `None`: everybody is trusted.
    pub door: Option<Arc<Door>>,
    /// How it speaks TLS; none: it does not.
    pub tls: Option<Arc<Certificates>>,
    /// Sites that may show a panel of the page in a frame, separated by spaces; empty: none.
    pub ancestors: Arc<str>,
}

impl Entrance {
    /// On loopback, where whoever comes is believed.
    pub fn open() -> Entrance {
        Entrance {
            names: Names::loopback(),
            door: None,
            tls: None,
            ancestors: "".into(),
        }
    }
}

/// Where a connection comes from.
#[derive(Clone, Copy)]
struct Peer(SocketAddr);

#[derive(Clone)]
struct Site {
    entrance: Entrance,
    queries: Queries,
    control: Control,
    pins: Pins,
    annotations: Annotations,
    alerts: Alerts,
    measures: Measures,
    incidents: Incidents,
    pyroscope: Option<Pyroscope>,
    senders: Option<Senders>,
    page: Arc<str>,
    metrics: Arc<Metrics>,
    shutdown: watch::Receiver<bool>,
}

/// What answers the page.
#[derive(Clone)]
pub struct Answers {
    /// Questions about what is stored.
    pub queries: Queries,
    /// Captures over the fleet.
    pub control: Control,
    /// Pins of agents.
    pub pins: Pins,
    /// What happened to the fleet.
    pub annotations: Annotations,
    /// Alerts.
    pub alerts: Alerts,
    /// What is measured for `/metrics`.
    pub measures: Measures,
    /// Incidents.
    pub incidents: Incidents,
    /// Pyroscope's API, where it is on.
    pub pyroscope: Option<Pyroscope>,
    /// Profiles of others than agents, where they are let in.
    pub senders: Option<Senders>,
    /// Address of the page, for links in files.
    pub page: Arc<str>,
}

/// Everything that is answered, to whom the extensions of a request name; served by [`serve`].
pub fn router(
    entrance: Entrance,
    answers: Answers,
    metrics: Arc<Metrics>,
    shutdown: watch::Receiver<bool>,
) -> Router {
    let site = Site {
        entrance,
        queries: answers.queries,
        control: answers.control,
        pins: answers.pins,
        annotations: answers.annotations,
        alerts: answers.alerts,
        measures: answers.measures,
        incidents: answers.incidents,
        pyroscope: answers.pyroscope,
        senders: answers.senders,
        page: answers.page,
        metrics,
        shutdown,
    };
    let questions =
        QueryServiceServer::new(site.queries.clone()).max_decoding_message_size(REQUEST_BYTES_MAX);
    let captures = CaptureServiceServer::new(site.control.clone())
        .max_decoding_message_size(REQUEST_BYTES_MAX);
    let pins =
        PinServiceServer::new(site.pins.clone()).max_decoding_message_size(REQUEST_BYTES_MAX);
    let annotated = AnnotationServiceServer::new(site.annotations.clone())
        .max_decoding_message_size(ANNOTATION_BYTES_MAX);
    let alarmed =
        AlertServiceServer::new(site.alerts.clone()).max_decoding_message_size(ALERT_BYTES_MAX);
    let troubled = IncidentServiceServer::new(site.incidents.clone())
        .max_decoding_message_size(INCIDENT_BYTES_MAX);
    let viewed = ViewServiceServer::new(site.incidents.clone())
        .max_decoding_message_size(INCIDENT_BYTES_MAX);
    let called = |name: &str| format!("/{name}/{{method}}");
    let add = |router: Router<Site>, (_, path, way)| router.route(path, way);
    routes()
        .into_iter()
        .fold(Router::new(), add)
        .route_service(
            &called(pin_service_server::SERVICE_NAME),
            GrpcWebLayer::new().layer(pins),
        )
        .route_service(
            &called(annotation_service_server::SERVICE_NAME),
            GrpcWebLayer::new().layer(annotated),
        )
        .route_service(
            &called(alert_service_server::SERVICE_NAME),
            GrpcWebLayer::new().layer(alarmed),
        )
        .route_service(
            &called(incident_service_server::SERVICE_NAME),
            GrpcWebLayer::new().layer(troubled),
        )
        .route_service(
            &called(view_service_server::SERVICE_NAME),
            GrpcWebLayer::new().layer(viewed),
        )
        .route_service(
            &called(capture_service_server::SERVICE_NAME),
            GrpcWebLayer::new().layer(captures),
        )
        .route_service(&called(SERVICE_NAME), GrpcWebLayer::new().layer(questions))
        .route(&called(others::QUERIER), routing::any(others::querier))
        .route(&called(others::PUSHER), routing::any(others::pusher))
        .route(&called(others::SETTINGS), routing::any(others::settings))
        .fallback(page_file)
        .layer(from_fn_with_state(site.clone(), guarded))
        .with_state(site)
}

/// What is answered that is no call and no file of the page. A router does not tell what it has, so
/// that a test holds this list to the table of who may what.
fn routes() -> [(Method, &'static str, MethodRouter<Site>); 24] {
    let get = |path: &'static str, way| (Method::GET, path, way);
    let post = |path: &'static str, way| (Method::POST, path, way);
    let log_in = routing::post(login::log_in).layer(DefaultBodyLimit::max(login::BODY_BYTES_MAX));
    let annotate =
        routing::post(annotations::add).layer(DefaultBodyLimit::max(ANNOTATION_BYTES_MAX));
    [
        get(login::PATH, routing::get(login::page)),
        get("/login.js", routing::get(login::script)),
        get("/login.css", routing::get(login::style)),
        get("/api/session", routing::get(login::session)),
        get("/api/login", routing::get(login::ways)),
        post("/api/login", log_in),
        get(sign_in::PATH, routing::get(sign_in::begin)),
        get(oidc::CALLBACK, routing::get(sign_in::finish)),
        post("/api/logout", routing::post(login::log_out)),
        get(annotations::PATH, routing::get(annotations::list)),
        post(annotations::PATH, annotate),
        get(alerts::PATH, routing::get(alerts::list)),
        get("/metrics", routing::get(metrics_text)),
        get("/healthz", routing::get(health)),
        get("/api/profile.{ending}", routing::get(file)),
        get("/api/capture.{ending}", routing::get(file)),
        get("/api/pin.{ending}", routing::get(file)),
        get("/api/evidence.{ending}", routing::get(file)),
        get("/api/incident.{ending}", routing::get(file)),
        get(pyroscope::RENDER_PATH, routing::get(others::render)),
        get(pyroscope::RENDER_DIFF_PATH, routing::get(others::render)),
        post(senders::INGEST_PATH, routing::post(others::ingest)),
        post(senders::INGEST_PATH_LONG, routing::post(others::ingest)),
        post(senders::otlp::PATH, routing::post(otlp::export)),
    ]
}

/// Rejects what the guard rejects, and adds security headers to the rest.
async fn guarded(State(site): State<Site>, request: Request, next: Next) -> Response {
    site.metrics.http_requests.inc();
    let (method, uri, headers) = (request.method(), request.uri(), request.headers());
    let ancestors = site.entrance.ancestors.clone();
    let is_framed = !ancestors.is_empty() && guard::is_panel(method, uri);
    let refusal = guard::refusal(method, uri, headers, &site.entrance.names);
    let mut response = match (refusal, site.entrance.door.clone()) {
        (Some(reason), _) => {
            site.metrics.http_refused.inc();
            plain(StatusCode::FORBIDDEN, reason).map(Body::from)
        }
        (None, None) => {
            let mut request = request;
            Caller::believe(request.extensions_mut());
            next.run(request).await
        }
        (None, Some(door)) => asked(&site, &door, request, next).await,
    };
    if is_framed {
        guard::frame(response.headers_mut(), &ancestors);
    }
    guard::secure(response.headers_mut(), is_framed);
    response
}

/// Lets a request in at a door, or says why not.
async fn asked(site: &Site, door: &Door, mut request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    let peer = request.extensions().get::<Peer>().map(|peer| peer.0);
    let kind = request.headers().get(CONTENT_TYPE).cloned();
    let turned_away = |path: &str, status| turned_away(path, kind.clone(), status);
    let asking = match door.who(request.headers_mut(), peer) {
        Ok(asking) => asking,
        Err(status) => return turned_away(&path, status),
    };
    let who = match &asking {
        Some(asking) => Who::Person(asking.caller.role),
        None => Who::Stranger,
    };
    if let Some(status) = access::web_refusal((request.method(), &path), page::has_file(&path), who)
    {
        let is_link = request.method() == Method::GET && page::is_page(&path);
        if asking.is_none() && guard::is_panel(request.method(), request.uri()) {
            // The login cannot be framed, and a browser sends no session of it to other sites.
            return plain(StatusCode::UNAUTHORIZED, NO_LOGIN_HERE).map(Body::from);
        }
        if asking.is_none() && is_link {
            return Redirect::to(login::PATH).into_response();
        }
        match &asking {
            Some(asking) if status.code() == Code::PermissionDenied => {
                deny(door, &asking.caller, peer, &path, &status);
            }
            _ => {
                site.metrics.calls_denied.inc();
            }
        }
        return turned_away(&path, status);
    }
    let Some(asking) = asking else {
        return next.run(request).await;
    };
    let caller = asking.caller.clone();
    let response = answered(door, asking, peer, request, next).await;
    // What a scope leaves out is found by whoever answers.
    let headers = response.headers();
    let status = response.extensions().get::<Status>().cloned();
    if let Some(status) = status.or_else(|| Status::from_header_map(headers))
        && status.code() == Code::PermissionDenied
    {
        deny(door, &caller, peer, &path, &status);
    }
    response
}

/// Puts a refusal on record.
fn deny(door: &Door, caller: &Caller, peer: Option<SocketAddr>, path: &str, status: &Status) {
    let peer = peer.map(|peer| peer.to_string()).unwrap_or_default();
    let event = caller.event(peer, DENIED);
    door.people.deny(event, path, status.message());
}

/// Answers somebody known, who has a place for that.
async fn answered(
    door: &Door,
    asking: Asking,
    peer: Option<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path().to_owned();
    let kind = request.headers().get(CONTENT_TYPE).cloned();
    if door.audit_reads
        && let Some(call) = read_of(request.method(), &path)
    {
        let peer = peer.map(|peer| peer.to_string()).unwrap_or_default();
        let event = asking.caller.event(peer, "read").with("call", call);
        door.people.audit().note(event);
    }
    let extensions = request.extensions_mut();
    // Where calls of gRPC look for it.
    extensions.insert(TcpConnectInfo {
        local_addr: None,
        remote_addr: peer,
    });
    extensions.insert::<Arc<Caller>>(asking.caller.clone());
    let person = asking.person.clone();
    extensions.insert(asking);
    let Some(person) = person else {
        return next.run(request).await;
    };
    extensions.insert::<Arc<Person>>(person.clone());
    let place = Guarded::<Body>::place(&person, door.people.metrics(), door.people.now());
    match place {
        Ok(guard) => next.run(request).await.map(|body| Body::new(guard(body))),
        Err(status) => turned_away(&path, kind, status),
    }
}

/// Which stored data a request reads; `None`: nothing that is recorded in the audit log.
fn read_of(method: &Method, path: &str) -> Option<String> {
    // As the router reads it: `%63` is a `c`.
    let plain = percent::unescaped(path)?;
    let mut reads = access::READS.iter().chain(&READ_FILES);
    let lists = [annotations::PATH, alerts::PATH];
    let is_read = lists.contains(&plain.as_str()) && method == Method::GET
        || reads.any(|start| plain.starts_with(start));
    is_read.then(|| plain.rsplit('/').next().unwrap_or_default().to_owned())
}

/// How paths of files start, which are reads, too.
const READ_FILES: [&str; 6] = [
    "/api/profile.",
    "/api/capture.",
    "/api/pin.",
    "/api/evidence.",
    "/api/incident.",
    pyroscope::RENDER_PATH,
];

/// The status of HTTP that stands for one of gRPC.
fn http_status(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        Code::InvalidArgument | Code::OutOfRange => StatusCode::BAD_REQUEST,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::FailedPrecondition => StatusCode::PRECONDITION_FAILED,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable | Code::Cancelled => StatusCode::SERVICE_UNAVAILABLE,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::Unknown | Code::Internal | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// A refusal, in the words of whoever asked: gRPC-Web has its own, and so has Connect. `kind` is
/// the type of the request's content.
fn turned_away(path: &str, kind: Option<HeaderValue>, status: Status) -> Response {
    if access::is_pyroscope_call(path) {
        let headers = kind.map(|kind| (CONTENT_TYPE, kind)).into_iter().collect();
        return pyroscope::refused(&headers, &status).map(Body::from);
    }
    if path.starts_with("/fleetprof.") {
        let mut response: Response = status.into_http();
        let kind = HeaderValue::from_static("application/grpc-web+proto");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        return response;
    }
    refused(&status).map(Body::from)
}

/// A refusal in plain words. Whoever sends it knows the status.
fn refused(status: &Status) -> hyper::Response<Bytes> {
    let text = format!("{}\n", status.message());
    let mut response = plain(http_status(status.code()), text);
    response.extensions_mut().insert(status.clone());
    response
}

async fn metrics_text(
    State(site): State<Site>,
    extensions: Extensions,
    headers: HeaderMap,
) -> Response {
    let caller = Caller::of(&extensions);
    if let Err(status) = caller.and_then(|caller| caller.sees_all("read the metrics")) {
        return refused(&status).map(Body::from);
    }
    let format = metrics::asked_format(&headers);
    let Some(text) = site
        .queries
        .metrics_text(site.measures.families(), format)
        .await
    else {
        return failed("failed to read the metrics").map(Body::from);
    };
    let kind = HeaderValue::from_static(format.content_type());
    let mut head = HeaderMap::new();
    head.insert(CONTENT_TYPE, kind);
    let pieces = vec![Bytes::from(text)];
    let (head, pieces) = packed(&headers, head, pieces).await;
    (head, pieces.concat()).into_response()
}

/// An answer, compressed where that is asked for.
async fn packed(
    asked: &HeaderMap,
    mut head: HeaderMap,
    pieces: Vec<Bytes>,
) -> (HeaderMap, Vec<Bytes>) {
    if !compress::is_asked(asked) {
        return (head, pieces);
    }
    let own = (head.clone(), pieces.clone());
    let packing = move || {
        let pieces = compress::compress(&mut head, pieces);
        (head, pieces)
    };
    tokio::task::spawn_blocking(packing).await.unwrap_or(own)
}

/// Whether the collector does its work: it takes what agents push, and notices hosts in trouble. A
/// restart fixes no store that does not take it (a full disk), so this is for readiness and alerts,
/// not for liveness.
async fn health(State(site): State<Site>) -> Response {
    let sick = if *site.shutdown.borrow() {
        "shutting down\n"
    } else if site.metrics.push_failing.get() != 0 {
        "the store rejects the windows of agents: see the log\n"
    } else if site.metrics.survey_ended.get() != 0 {
        "the check for hosts in trouble has stopped: restart the collector\n"
    } else {
        return plain(StatusCode::OK, "ok\n").map(Body::from);
    };
    plain(StatusCode::SERVICE_UNAVAILABLE, sick).map(Body::from)
}

async fn file(
    State(site): State<Site>,
    extensions: Extensions,
    uri: Uri,
    headers: HeaderMap,
    Query(pairs): Query<Vec<(String, String)>>,
) -> Response {
    if uri
        .query()
        .is_some_and(|query| query.len() > QUERY_BYTES_MAX)
    {
        let text = "the address is too long\n";
        return plain(StatusCode::URI_TOO_LONG, text).map(Body::from);
    }
    let caller = match Caller::of(&extensions) {
        Ok(caller) => caller,
        Err(status) => return turned_away("", None, status),
    };
    let name = uri.path().rsplit('/').next().unwrap_or_default().to_owned();
    let made = match name.split('.').next() {
        Some("capture") => {
            capture_file::make(&site.queries, &site.control, caller, &name, pairs).await
        }
        Some("evidence") => {
            let of = (&site.queries, &site.incidents);
            incident_file::evidence(of, caller, &name, pairs).await
        }
        Some("incident") => {
            let of = (&site.queries, &site.incidents);
            incident_file::incident(of, caller, (&name, &site.page), pairs).await
        }
        Some("pin") => pin_file::make((&site.queries, &site.pins), caller, &name, pairs).await,
        _ => download::make(&site.queries, &caller, &name, pairs).await,
    };
    match made {
        Ok(download::File {
            head,
            pieces,
            place,
        }) => {
            let (mut parts, ()) = head.into_parts();
            let (headers, pieces) = packed(&headers, parts.headers, pieces).await;
            parts.headers = headers;
            Response::from_parts(parts, send(pieces, place, site.queries))
        }
        Err(status) => download::refusal(&status).map(Body::from),
    }
}

/// Sends a file piece by piece, so that one that is not read gives its place back.
fn send(content: Vec<Bytes>, mut place: ResponseSlot, queries: Queries) -> Body {
    let (tx, pieces) = mpsc::channel::<io::Result<Bytes>>(1);
    tokio::spawn(async move {
        // One that reads a little now and then would hold its place for hours.
        let whole = tokio::time::Instant::now() + ANSWER_TIMEOUT;
        for piece in content {
            let left = whole.saturating_duration_since(tokio::time::Instant::now());
            let bytes = piece.len();
            match tx.send_timeout(Ok(piece), STALL_TIMEOUT.min(left)).await {
                Ok(()) => place.release(bytes),
                Err(mpsc::error::SendTimeoutError::Closed(_)) => break,
                Err(mpsc::error::SendTimeoutError::Timeout(_)) => {
                    queries.count_stalled();
                    break;
                }
            }
        }
    });
    Body::from_stream(ReceiverStream::new(pieces))
}

async fn page_file(method: Method, uri: Uri, headers: HeaderMap) -> Response {
    if access::is_pyroscope_call(uri.path()) {
        return others::unanswered(&headers);
    }
    page::respond(&method, uri.path(), &headers).map(Body::from)
}

fn failed(text: &'static str) -> hyper::Response<Bytes> {
    plain(StatusCode::INTERNAL_SERVER_ERROR, text)
}

/// An answer of plain text.
fn plain(status: StatusCode, text: impl Into<Bytes>) -> hyper::Response<Bytes> {
    let mut response = hyper::Response::new(text.into());
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Role;

    #[test]
    fn every_route_has_a_row_in_the_table_and_every_row_a_route() {
        let text = |method: &Method, path: &str| format!("{method} {path}");
        let rows: Vec<_> = access::web_rows().map(|(m, path)| text(m, path)).collect();
        let routes = routes();
        let routes = routes.iter();
        let routes: Vec<_> = routes
            .map(|(method, path, _)| text(method, &path.replace("{ending}", "")))
            .collect();
        for (some, others) in [(&rows, &routes), (&routes, &rows)] {
            for one in some {
                let count = others.iter().filter(|other| *other == one).count();
                assert_eq!(count, 1, "{one}: decide who may before it is there");
            }
        }
    }

    #[test]
    fn what_is_no_file_of_the_page_is_nobodys() {
        let may = |path: &str, role| {
            let who = Who::Person(role);
            access::web_refusal((&Method::GET, path), page::has_file(path), who).is_none()
        };
        let files = page::files().map(|name| format!("/{name}"));
        for path in files.chain(["/".to_owned(), "/index.html".to_owned()]) {
            assert!(
                may(&path, Role::Viewer) && !may(&path, Role::Metrics),
                "{path}"
            );
            assert!(!may(&format!("{path}x"), Role::Admin), "{path}x");
        }
    }

    #[test]
    fn a_reading_is_on_record_however_its_path_is_spelled() {
        let get = |path| read_of(&Method::GET, path);
        assert_eq!(get("/api/capture.svg").as_deref(), Some("capture.svg"));
        assert_eq!(get("/api/%63apture.svg").as_deref(), Some("capture.svg"));
        let profile = "/fleetprof.collector.v1.CaptureService/Profile";
        assert_eq!(read_of(&Method::POST, profile).as_deref(), Some("Profile"));
    }

    #[test]
    fn what_reads_nothing_stored_is_not_on_record() {
        let capture = "/fleetprof.collector.v1.CaptureService/Capture";
        assert_eq!(read_of(&Method::POST, capture), None);
        assert_eq!(read_of(&Method::GET, "/index.html"), None);
    }

    #[test]
    fn deploys_are_read_with_get_and_told_with_post() {
        assert!(read_of(&Method::GET, annotations::PATH).is_some());
        assert!(read_of(&Method::GET, alerts::PATH).is_some());
        assert_eq!(read_of(&Method::POST, annotations::PATH), None);
    }
}
