//! Listens on TCP: bounds the number of connections, and closes those that are silent or use the
//! wrong protocol.

use crate::metrics::Metrics;
use crate::wrong_port::{FIRST_BYTES, answer_http1, is_http1};
use proto::calls::{Caller, Calls, IdleTimer, Patience};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::http::Extensions;
use tonic::transport::server::{Connected, TcpConnectInfo};

/// Bytes of the HTTP/2 connection preface; until these have come a connection is a stranger's.
const PREFACE_BYTES: usize = 24;

/// Time from connecting to these.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause after a failed accept, most likely for lack of file descriptors.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Why there is no listening.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address is taken, or not of this machine.
    #[error("failed to listen on `{address}`")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// Others could reach it.
    #[error(
        "failed to listen on `{address}`: this port has no authentication, so only loopback is \
        allowed"
    )]
    NotLoopback {
        /// The address.
        address: SocketAddr,
    },
}

/// Listens on `address`, which must be loopback.
///
/// # Errors
/// When it is not, or is taken.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, ListenError> {
    if !address.ip().is_loopback() {
        return Err(ListenError::NotLoopback { address });
    }
    bind_any(address).await
}

/// Listens on `address`, whoever can reach it: for what asks who is there.
///
/// # Errors
/// When it is taken, or not of this machine.
pub async fn bind_any(address: SocketAddr) -> Result<TcpListener, ListenError> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|source| ListenError::Bind { address, source })
}

/// Connections of `listener`, at most `places` at a time; more wait in its backlog. A browser is
/// informed that the page is at `page`. Ends when the stream is dropped.
pub fn accept(
    listener: TcpListener,
    places: usize,
    patience: Patience,
    page: SocketAddr,
    metrics: Arc<Metrics>,
) -> ReceiverStream<io::Result<Conn>> {
    let (tx, rx) = mpsc::channel(1);
    let places = Arc::new(Semaphore::new(places));
    tokio::spawn(async move {
        let mut trouble = AcceptTrouble::default();
        loop {
            let Ok(place) = places.clone().acquire_owned().await else {
                return;
            };
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                // The server stopped accepting.
                () = tx.closed() => return,
            };
            match accepted.and_then(|(stream, _)| stream.set_nodelay(true).map(|()| stream)) {
                Ok(stream) => {
                    trouble.over();
                    let conn = Conn::new(stream, place, patience, page, metrics.clone());
                    if tx.send(Ok(conn)).await.is_err() {
                        return;
                    }
                }
                Err(error) => trouble.failed(&error).await,
            }
        }
    });
    ReceiverStream::new(rx)
}

/// Host name of this machine.
pub(crate) fn hostname() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}

/// Failures to accept since the last success: descriptors stay short for as long as somebody holds
/// them, and that is one event for the log.
#[derive(Default)]
pub struct AcceptTrouble {
    failed: u64,
}

impl AcceptTrouble {
    /// A connection came.
    pub fn over(&mut self) {
        let failed = std::mem::take(&mut self.failed);
        if failed > 0 {
            tracing::info!(failed, "accepting connections again");
        }
    }

    /// Handles a failed accept: waits a moment, because trying again at once would spin.
    pub async fn failed(&mut self, error: &io::Error) {
        if self.failed == 0 {
            tracing::warn!(%error, "failed to accept a connection");
        }
        self.failed += 1;
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

/// A connection that holds its place and must say something soon.
pub struct Conn {
    stream: TcpStream,
    /// Ends a connection that sends no preface; `None` once it has come.
    silence: Option<Pin<Box<tokio::time::Sleep>>>,
    read: usize,
    calls: Arc<Calls>,
    idle: IdleTimer,
    preface: Preface,
    page: SocketAddr,
    metrics: Arc<Metrics>,
    _place: OwnedSemaphorePermit,
}

/// The first bytes of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Preface {
    /// Creates it without data.
    Open,
    /// Not HTTP/1.
    Other,
    /// HTTP/1: it has had its answer.
    Http1,
}

impl Conn {
    fn new(
        stream: TcpStream,
        place: OwnedSemaphorePermit,
        patience: Patience,
        page: SocketAddr,
        metrics: Arc<Metrics>,
    ) -> Conn {
        metrics.connections_grpc.inc();
        let calls = Calls::new(patience);
        Conn {
            stream,
            silence: Some(Box::pin(tokio::time::sleep(PREFACE_TIMEOUT))),
            read: 0,
            idle: IdleTimer::new(Arc::clone(&calls)),
            calls,
            preface: Preface::Open,
            page,
            metrics,
            _place: place,
        }
    }

    /// Waits for the first bytes; false when they are of HTTP/1. Nothing is written before: the
    /// server would greet in HTTP/2, which no browser understands.
    fn poll_preface(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if self.preface == Preface::Open {
            if let Some(silence) = &mut self.silence
                && silence.as_mut().poll(cx).is_ready()
            {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            let mut first = [0; FIRST_BYTES];
            let mut first = ReadBuf::new(&mut first);
            ready!(self.stream.poll_peek(cx, &mut first))?;
            let is_http1 = is_http1(first.filled());
            self.preface = if is_http1 {
                Preface::Http1
            } else {
                Preface::Other
            };
            if is_http1 {
                self.metrics.wrong_port_grpc.inc();
                self.answer_http1();
            }
        }
        Poll::Ready(Ok(self.preface == Preface::Other))
    }

    /// Says where the page is.
    fn answer_http1(&self) {
        let text = format!(
            "this is the port for agents and agent-ctl (gRPC); the page is at http://{}/\n",
            self.page
        );
        answer_http1(&self.stream, &text);
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        self.metrics.connections_grpc.dec();
    }
}

/// The other end of the connection.
#[derive(Clone)]
pub struct Peer {
    tcp: TcpConnectInfo,
    calls: Arc<Calls>,
}

impl Caller for Peer {
    fn calls(&self) -> &Arc<Calls> {
        &self.calls
    }

    /// Its address is found where that of plain TCP is.
    fn note(&self, extensions: &mut Extensions) {
        extensions.insert(self.tcp.clone());
    }
}

impl Connected for Conn {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        Peer {
            tcp: self.stream.connect_info(),
            calls: Arc::clone(&self.calls),
        }
    }
}

impl AsyncRead for Conn {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let conn = self.get_mut();
        if !ready!(conn.poll_preface(cx))? {
            // The end, for the server.
            return Poll::Ready(Ok(()));
        }
        if let Some(silence) = &mut conn.silence
            && silence.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        if conn.idle.poll(cx).is_ready() {
            conn.metrics.connections_silent.inc();
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let before = buf.filled().len();
        let polled = Pin::new(&mut conn.stream).poll_read(cx, buf);
        if conn.silence.is_some() {
            conn.read += buf.filled().len() - before;
            if conn.read >= PREFACE_BYTES {
                conn.silence = None;
            }
        }
        polled
    }
}

impl AsyncWrite for Conn {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if !ready!(self.poll_preface(cx))? {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if !ready!(self.poll_preface(cx))? {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
