//! Listening on TCP: no more connections at a time than there are places, and none that says nothing.

use crate::metrics::Metrics;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::{Connected, TcpConnectInfo};

/// Bytes of the HTTP/2 connection preface; until these have come a connection is a stranger's.
const PREFACE_BYTES: usize = 24;

/// Time from connecting to these.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause after a failed accept, most likely for want of file descriptors.
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
        "refused to listen on `{address}`: this version has neither TLS nor users, so loopback only"
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
    let bound = TcpListener::bind(address).await;
    bound.map_err(|source| ListenError::Bind { address, source })
}

/// Connections of `listener`, at most `places` at a time; more wait in its backlog. Ends when the
/// stream is dropped.
pub fn accept(
    listener: TcpListener,
    places: usize,
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
                    let conn = Conn::new(stream, place, metrics.clone());
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

    /// None came; waits a moment, because trying again at once would spin.
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
    metrics: Arc<Metrics>,
    _place: OwnedSemaphorePermit,
}

impl Conn {
    fn new(stream: TcpStream, place: OwnedSemaphorePermit, metrics: Arc<Metrics>) -> Conn {
        metrics.connections_grpc.inc();
        Conn {
            stream,
            silence: Some(Box::pin(tokio::time::sleep(PREFACE_TIMEOUT))),
            read: 0,
            metrics,
            _place: place,
        }
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        self.metrics.connections_grpc.sub(1);
    }
}

impl Connected for Conn {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Conn {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let conn = self.get_mut();
        if let Some(silence) = &mut conn.silence
            && silence.as_mut().poll(cx).is_ready()
        {
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
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
