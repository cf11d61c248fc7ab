//! The HTTP listener: the page, QueryService and CaptureService over gRPC-Web, downloads,
//! `/metrics` and `/healthz`.
//!
//! HTTP/1.1 on loopback only. No answer goes to pages of other sites (`guard.rs`); connections are
//! bounded, and the oldest makes room when there are too many.

mod download;
mod guard;
mod page;
mod wrong_port;

use crate::access::Caller;
use crate::control::Control;
use crate::ingest::stopped;
use crate::listen::AcceptTrouble;
use crate::metrics::Metrics;
use crate::query::{ANSWER_TIMEOUT, Queries, REQUEST_BYTES_MAX, ResponseSlot, STALL_TIMEOUT};
use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::http::Extensions;
use hyper::{HeaderMap, Method, StatusCode, Uri};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use proto::collector::capture_service_server::{self, CaptureServiceServer};
use proto::collector::query_service_server::{QueryServiceServer, SERVICE_NAME};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio_stream::wrappers::ReceiverStream;
use tonic_web::GrpcWebLayer;
use tower::Layer;

/// Most connections at a time. A browser has six; of more than this the oldest makes room.
const CONNECTIONS_MAX: usize = 256;

/// How long a client may take to send the head of a request, or to keep a connection idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Most of a request's head. Unit: bytes.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Longest query of an address. Unit: bytes. A selector may be as long as this.
const QUERY_BYTES_MAX: usize = 32 << 10;

#[derive(Clone)]
struct Site {
    queries: Queries,
    control: Control,
    metrics: Arc<Metrics>,
    shutdown: watch::Receiver<bool>,
}

/// Serves until `shutdown` is true, and then until every request under way has its answer. Clients
/// of gRPC that come here are told that it is at `grpc`.
pub async fn serve(
    listener: TcpListener,
    queries: Queries,
    control: Control,
    grpc: SocketAddr,
    metrics: Arc<Metrics>,
    shutdown: watch::Receiver<bool>,
) {
    let router = router(queries, control, metrics.clone(), shutdown.clone());
    let mut connections = JoinSet::new();
    let mut oldest_first: VecDeque<AbortHandle> = VecDeque::new();
    let mut trouble = AcceptTrouble::default();
    let mut stop = shutdown.clone();
    loop {
        tokio::select! {
            () = stopped(&mut stop) => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    trouble.over();
                    oldest_first.retain(|connection| !connection.is_finished());
                    if oldest_first.len() >= CONNECTIONS_MAX
                        && let Some(oldest) = oldest_first.pop_front()
                    {
                        metrics.connections_evicted.inc();
                        oldest.abort();
                    }
                    let open = Open::new(metrics.clone());
                    let served = connection(stream, router.clone(), grpc, shutdown.clone(), open);
                    oldest_first.push_back(connections.spawn(served));
                }
                Err(error) => trouble.failed(&error).await,
            },
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Counts a connection for as long as it is there.
struct Open(Arc<Metrics>);

impl Open {
    fn new(metrics: Arc<Metrics>) -> Open {
        metrics.connections_http.inc();
        Open(metrics)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.connections_http.dec();
    }
}

async fn connection(
    stream: TcpStream,
    router: Router,
    grpc: SocketAddr,
    mut shutdown: watch::Receiver<bool>,
    open: Open,
) {
    // Answers are small or in large pieces: waiting for more only delays them.
    let _ = stream.set_nodelay(true);
    tokio::select! {
        is_http2 = wrong_port::is_http2(&stream) => match is_http2 {
            Some(false) => {}
            Some(true) => {
                open.0.wrong_port_http.inc();
                return wrong_port::answer(stream, grpc).await;
            }
            None => return,
        },
        () = stopped(&mut shutdown) => return,
    }
    let serving = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(serving);
    // What goes wrong with one connection is the client's affair.
    tokio::select! {
        _ = &mut serving => return,
        () = stopped(&mut shutdown) => serving.as_mut().graceful_shutdown(),
    }
    let _ = serving.await;
}

/// Everything that is answered, to whom the extensions of a request name; served by [`serve`].
pub fn router(
    queries: Queries,
    control: Control,
    metrics: Arc<Metrics>,
    shutdown: watch::Receiver<bool>,
) -> Router {
    let site = Site {
        queries,
        control,
        metrics,
        shutdown,
    };
    let questions =
        QueryServiceServer::new(site.queries.clone()).max_decoding_message_size(REQUEST_BYTES_MAX);
    let captures = CaptureServiceServer::new(site.control.clone())
        .max_decoding_message_size(REQUEST_BYTES_MAX);
    Router::new()
        .route_service(
            &format!("/{}/{{method}}", capture_service_server::SERVICE_NAME),
            GrpcWebLayer::new().layer(captures),
        )
        .route_service(
            &format!("/{SERVICE_NAME}/{{method}}"),
            GrpcWebLayer::new().layer(questions),
        )
        .route("/metrics", get(metrics_text))
        .route("/healthz", get(health))
        .route("/api/{file}", get(file))
        .fallback(page_file)
        .layer(from_fn_with_state(site.clone(), guarded))
        .with_state(site)
}

/// Refuses what the guard refuses, and tells browsers what they may do with the rest.
async fn guarded(State(site): State<Site>, request: Request, next: Next) -> Response {
    site.metrics.http_requests.inc();
    let (method, uri, headers) = (request.method(), request.uri(), request.headers());
    let mut response = match guard::refusal(method, uri, headers) {
        Some(reason) => {
            site.metrics.http_refused.inc();
            plain(StatusCode::FORBIDDEN, reason).map(Body::from)
        }
        None => next.run(request).await,
    };
    guard::secure(response.headers_mut());
    response
}

async fn metrics_text(
    State(site): State<Site>,
    extensions: Extensions,
    headers: HeaderMap,
) -> Response {
    if let Err(status) = Caller::of(&extensions).sees_all("read the metrics") {
        let text = format!("{}\n", status.message());
        return plain(StatusCode::FORBIDDEN, text).map(Body::from);
    }
    let format = metrics::asked_format(&headers);
    let Some(text) = site.queries.metrics_text(format).await else {
        return failed("failed to read the metrics").map(Body::from);
    };
    let kind = HeaderValue::from_static(format.content_type());
    ([(CONTENT_TYPE, kind)], text).into_response()
}

/// Whether the collector does its work: it takes what agents push, and notices hosts in trouble. A
/// restart fixes no store that does not take it (a full disk), so this is for readiness and alerts,
/// not for liveness.
async fn health(State(site): State<Site>) -> Response {
    let sick = if *site.shutdown.borrow() {
        "shutting down\n"
    } else if site.metrics.push_failing.get() != 0 {
        "the store does not take what agents push: the log says why\n"
    } else if site.metrics.survey_ended.get() != 0 {
        "no thread looks for hosts in trouble: a restart of the collector fixes it\n"
    } else {
        return plain(StatusCode::OK, "ok\n").map(Body::from);
    };
    plain(StatusCode::SERVICE_UNAVAILABLE, sick).map(Body::from)
}

async fn file(
    State(site): State<Site>,
    Path(name): Path<String>,
    extensions: Extensions,
    uri: Uri,
    Query(pairs): Query<Vec<(String, String)>>,
) -> Response {
    if uri
        .query()
        .is_some_and(|query| query.len() > QUERY_BYTES_MAX)
    {
        let text = "the address is too long\n";
        return plain(StatusCode::URI_TOO_LONG, text).map(Body::from);
    }
    match download::make(&site.queries, &Caller::of(&extensions), &name, pairs).await {
        Ok(download::File {
            head,
            pieces,
            place,
        }) => head.map(|()| send(pieces, place, site.queries)),
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
