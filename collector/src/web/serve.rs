//! Accepts connections of the page's listener and speaks HTTP/1 on each, with TLS where that is
//! configured.

use super::{Answers, Certificates, Entrance, Peer, router};
use crate::ingest::stopped;
use crate::listen::AcceptTrouble;
use crate::metrics::Metrics;
use crate::wrong_port;
use axum::{Extension, Router};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio_rustls::TlsAcceptor;
use tonic::Code;

/// Most connections at a time. A browser has six; of more than this the oldest makes room.
const CONNECTIONS_MAX: usize = 256;

/// Time for a handshake of TLS.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// What whoever speaks in clear to the port of TLS hears.
const IN_CLEAR: &str = "this port is for browsers and takes TLS only: open it with https://; hosts \
    and agent-ctl use `listen.tls`";

/// How long a client may take to send the head of a request, or to keep a connection idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Most of a request's head. Unit: bytes.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Serves until `shutdown` is true, and then until every request in progress has its answer. gRPC
/// clients that connect here are informed that gRPC is at `grpc`.
pub async fn serve(
    (listener, entrance): (TcpListener, Entrance),
    answers: Answers,
    grpc: SocketAddr,
    metrics: Arc<Metrics>,
    shutdown: watch::Receiver<bool>,
) {
    let tls = entrance.tls.clone();
    let router = router(entrance, answers, metrics.clone(), shutdown.clone());
    let mut connections = JoinSet::new();
    let mut oldest_first: VecDeque<AbortHandle> = VecDeque::new();
    let mut trouble = AcceptTrouble::default();
    let mut stop = shutdown.clone();
    loop {
        tokio::select! {
            () = stopped(&mut stop) => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, address)) => {
                    trouble.over();
                    oldest_first.retain(|connection| !connection.is_finished());
                    if oldest_first.len() >= CONNECTIONS_MAX
                        && let Some(oldest) = oldest_first.pop_front()
                    {
                        metrics.connections_evicted.inc();
                        oldest.abort();
                    }
                    let open = Open::new(metrics.clone());
                    let router = router.clone().layer(Extension(Peer(address)));
                    let (tls, shutdown) = (tls.clone(), shutdown.clone());
                    let served = async move {
                        match tls {
                            Some(tls) => encrypted(stream, &tls, router, shutdown, open).await,
                            None => connection(stream, router, grpc, shutdown, open).await,
                        }
                    };
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
        is_http2 = wrong_port::starts_as_http2(&stream, HEAD_TIMEOUT) => match is_http2 {
            Some(false) => {}
            Some(true) => {
                open.0.wrong_port_http.inc();
                return wrong_port::answer(stream, wrong_port::gone_wrong(grpc)).await;
            }
            None => return,
        },
        () = stopped(&mut shutdown) => return,
    }
    speak(stream, router, shutdown).await;
}

/// The same with TLS before anything else.
async fn encrypted(
    stream: TcpStream,
    certificates: &Arc<Certificates>,
    router: Router,
    shutdown: watch::Receiver<bool>,
    open: Open,
) {
    let _ = stream.set_nodelay(true);
    let config = match certificates.config_now().await {
        Ok(config) => config,
        Err(why) => {
            // Nobody can connect: that is not for the log of those who debug.
            tracing::error!("failed to serve the page with TLS: {why}");
            return;
        }
    };
    let handshake = async {
        let stream = wrong_port::unless_clear(stream, Code::FailedPrecondition, IN_CLEAR).await?;
        TlsAcceptor::from(config).accept(stream).await
    };
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
        Ok(Ok(stream)) => speak(stream, router, shutdown).await,
        _ => {
            open.0.connections_refused.inc();
        }
    }
}

async fn speak(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    router: Router,
    mut shutdown: watch::Receiver<bool>,
) {
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
