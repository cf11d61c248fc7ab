//! Serves `/metrics` and `/healthz` over HTTP/1.1, on loopback only.
//!
//! There is no authentication, so only addresses that other machines cannot reach are accepted.
//! Runs on the daemon's tokio thread; connections are few, short and bounded in number and time.
//! Answers are made on a blocking thread, because they wait for locks and read /proc: those of
//! `/metrics` one at a time, while `/healthz` does not wait for them.

use super::{Family, Format, encode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};

/// Most connections at a time. A scraper or two, a probe, a person: more is a fault elsewhere, or
/// somebody who wants to shut others out, so the oldest one makes room: an answer takes less than a
/// millisecond.
const CONNECTIONS_MAX: usize = 16;

/// How long a client may take to send the head of a request, or to keep a connection idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a connection may last. Scrapers open another.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);

/// Pause after an accept that failed (no descriptors left): trying again at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Reads every number.
pub type Families = Arc<dyn Fn() -> Vec<Family> + Send + Sync>;

/// Says whether the daemon does its work; the reason when it does not.
pub type Health = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Why the endpoint does not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Others could reach it.
    #[error(
        "failed to serve metrics on `{0}`: there is no authentication, so only loopback is \
        allowed"
    )]
    NotLoopback(SocketAddr),
    /// The socket is broken.
    #[error("failed to read the address of the metrics socket")]
    Address(#[source] std::io::Error),
}

/// Serves until `shutdown` is done. Open connections are dropped then: an answer takes less than a
/// millisecond, and a scrape that is lost comes again.
///
/// # Errors
/// When the listener is not on loopback.
pub async fn serve(
    listener: TcpListener,
    families: Families,
    health: Health,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let address = listener.local_addr().map_err(ServeError::Address)?;
    if !address.ip().is_loopback() {
        return Err(ServeError::NotLoopback(address));
    }
    let mut connections = JoinSet::new();
    let turn = Arc::new(Semaphore::new(1));
    let mut oldest_first: VecDeque<AbortHandle> = VecDeque::new();
    tokio::pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => return Ok(()),
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    oldest_first.retain(|connection| !connection.is_finished());
                    if oldest_first.len() >= CONNECTIONS_MAX
                        && let Some(oldest) = oldest_first.pop_front()
                    {
                        oldest.abort();
                    }
                    let served = connection(stream, families.clone(), health.clone(), turn.clone());
                    oldest_first.push_back(connections.spawn(served));
                }
                Err(error) => {
                    tracing::debug!(error = &error as &dyn std::error::Error, "failed to accept");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
}

async fn connection(stream: TcpStream, families: Families, health: Health, turn: Arc<Semaphore>) {
    let service = service_fn(|request: Request<Incoming>| {
        let (families, health, turn) = (families.clone(), health.clone(), turn.clone());
        async move {
            let turn = match request.uri().path() {
                "/healthz" => None,
                // Nobody closes it.
                _ => turn.acquire_owned().await.ok(),
            };
            let respond = move || {
                let response = respond(&request, &families, &health);
                drop(turn);
                response
            };
            let failed = |_| {
                let mut response = Response::new(Full::default());
                *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
                response
            };
            let responding = tokio::task::spawn_blocking(respond).await;
            Ok::<_, Infallible>(responding.unwrap_or_else(failed))
        }
    });
    let serving = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(16 * 1024)
        .serve_connection(TokioIo::new(stream), service);
    // What goes wrong with one connection is the client's affair.
    let _ = tokio::time::timeout(CONNECTION_TIMEOUT, serving).await;
}

fn respond<B>(request: &Request<B>, families: &Families, health: &Health) -> Response<Full<Bytes>> {
    let mut kind = "text/plain; charset=utf-8";
    let (status, body) = match request.uri().path() {
        "/metrics" | "/healthz" if ![Method::GET, Method::HEAD].contains(request.method()) => (
            StatusCode::METHOD_NOT_ALLOWED,
            "only GET and HEAD\n".to_owned(),
        ),
        "/metrics" => {
            let format = asked_format(request.headers());
            kind = format.content_type();
            (StatusCode::OK, encode(families(), format))
        }
        "/healthz" => match health() {
            Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
            Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason + "\n"),
        },
        _ => (
            StatusCode::NOT_FOUND,
            "not found: use /metrics or /healthz\n".to_owned(),
        ),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}

/// The form of text that a request for metrics wants.
pub fn asked_format(headers: &HeaderMap) -> Format {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok());
    Format::accepted(accept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, one};
    use std::sync::atomic::{AtomicBool, Ordering};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::oneshot;

    fn read(value: impl Fn() -> u64 + Send + Sync + 'static) -> Families {
        Arc::new(move || {
            vec![Family {
                name: "fp_a_total".into(),
                help: "Things.",
                kind: Kind::Counter,
                readings: one(value()),
            }]
        })
    }

    /// Sends `request` to a server of its own; returns status line and body.
    async fn ask(request: &str, sick: bool) -> (String, String) {
        ask_beside(0, request, sick).await
    }

    /// The same while others are connected and say nothing.
    async fn ask_beside(others: usize, request: &str, sick: bool) -> (String, String) {
        let families = read(|| 7);
        let well = Arc::new(AtomicBool::new(!sick));
        let health: Health = Arc::new(move || match well.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err("no sample for 30 s".to_owned()),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let server = tokio::spawn(serve(listener, families, health, async {
            let _ = stopped.await;
        }));
        let mut idle = Vec::new();
        for _ in 0..others {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // A server that refuses a request half read resets the connection after its answer.
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8(answer).unwrap();
        stop.send(()).unwrap();
        server.await.unwrap().unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        (
            head.lines().next().unwrap_or_default().to_owned(),
            body.to_owned(),
        )
    }

    fn get(path: &str) -> String {
        format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    }

    #[tokio::test]
    async fn metrics_are_served() {
        let (status, body) = ask(&get("/metrics"), false).await;
        assert_eq!(status, "HTTP/1.1 200 OK");
        assert!(body.ends_with("fp_a_total 7\n"), "{body}");
        let asked =
            get("/metrics").replace("Host:", "Accept: application/openmetrics-text\r\nHost:");
        let (_, body) = ask(&asked, false).await;
        assert!(body.ends_with("fp_a_total 7\n# EOF\n"), "{body}");
    }

    #[tokio::test]
    async fn connections_that_say_nothing_shut_nobody_out() {
        let request = get("/healthz");
        let answer = ask_beside(10 * CONNECTIONS_MAX, &request, false);
        // Before any of them is over its own time.
        let (status, _) = tokio::time::timeout(HEAD_TIMEOUT - Duration::from_secs(1), answer)
            .await
            .unwrap();
        assert_eq!(status, "HTTP/1.1 200 OK");
    }

    #[tokio::test]
    async fn health_is_told_with_its_reason() {
        let (status, body) = ask(&get("/healthz"), false).await;
        assert_eq!(
            (status.as_str(), body.as_str()),
            ("HTTP/1.1 200 OK", "ok\n")
        );
        let (status, body) = ask(&get("/healthz"), true).await;
        assert_eq!(status, "HTTP/1.1 503 Service Unavailable");
        assert_eq!(body, "no sample for 30 s\n");
    }

    #[tokio::test]
    async fn health_is_told_while_metrics_take_long() {
        let (go_on, waits) = std::sync::mpsc::sync_channel::<()>(1);
        let (started, starts) = std::sync::mpsc::sync_channel::<()>(1);
        let ends = std::sync::Mutex::new((started, waits));
        let families = read(move || {
            let (started, waits) = &*ends.lock().unwrap();
            let _ = started.send(());
            let _ = waits.recv();
            0
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let health: Health = Arc::new(|| Ok(()));
        let server = tokio::spawn(serve(listener, families, health, std::future::pending()));
        let mut slow = TcpStream::connect(address).await.unwrap();
        slow.write_all(get("/metrics").as_bytes()).await.unwrap();
        let started = tokio::task::spawn_blocking(move || starts.recv());
        started.await.unwrap().unwrap();
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(get("/healthz").as_bytes()).await.unwrap();
        let mut answer = String::new();
        let answered = stream.read_to_string(&mut answer);
        let answered = tokio::time::timeout(Duration::from_secs(30), answered).await;
        drop(go_on);
        server.abort();
        answered.expect("in time").unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    }

    #[tokio::test]
    async fn other_paths_methods_and_nonsense_are_refused() {
        assert_eq!(ask(&get("/"), false).await.0, "HTTP/1.1 404 Not Found");
        let post = get("/metrics").replace("GET", "POST");
        assert_eq!(ask(&post, false).await.0, "HTTP/1.1 405 Method Not Allowed");
        assert_eq!(
            ask("nonsense\r\n\r\n", false).await.0,
            "HTTP/1.1 400 Bad Request"
        );
        let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(20_000));
        assert!(!ask(&long, false).await.0.contains("200"));
    }

    #[tokio::test]
    async fn addresses_that_others_reach_are_refused() {
        let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
        let health: Health = Arc::new(|| Ok(()));
        let refused = serve(listener, read(|| 0), health, std::future::pending());
        assert!(matches!(refused.await, Err(ServeError::NotLoopback(_))));
    }
}
