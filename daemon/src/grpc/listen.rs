//! Sockets: binds them without taking another daemon's place, and makes connections that can be
//! closed.

use super::{CONNECTIONS_MAX, HANDSHAKE_TIMEOUT, ServeError};
use host::sync::lock;
use proto::calls::{Caller, Calls, IdleTimer, Patience};
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

/// Bytes of the HTTP/2 connection preface; until these have come a connection is a stranger's.
const PREFACE_BYTES: usize = 24;

/// Pause after a failed accept, most likely for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// How often one who waits for a place has others looked at again: calls that were under way end.
const ROOM_INTERVAL: Duration = Duration::from_secs(1);

/// Counters of connections, over all sockets.
#[derive(Debug, Default)]
pub struct ConnectionCounts {
    /// Closed because others waited for their place.
    pub made_room: AtomicU64,
    /// Closed because nothing came in time: no preface, no first call, or no call for long.
    pub silent: AtomicU64,
}

/// See [`ConnectionCounts`]. One for the process, as its sockets are.
pub static CONNECTIONS: ConnectionCounts = ConnectionCounts {
    made_room: AtomicU64::new(0),
    silent: AtomicU64::new(0),
};

/// A listening socket.
pub(super) struct Bound<S> {
    /// Its connections.
    pub incoming: ReceiverStream<io::Result<Conn<S>>>,
    /// The socket's file.
    pub _file: Option<SocketFile>,
}

/// Listens on a unix socket.
///
/// A lock file next to it prevents two daemons from starting at the same time; an existing socket
/// is replaced only if connecting to it is refused, which proves that nobody listens. The new
/// socket gets its mode and group under another name, so that nobody can connect before.
pub(super) fn unix(
    path: &Path,
    mode: u32,
    group: Option<&str>,
) -> Result<Bound<UnixStream>, ServeError> {
    let failed = |operation: &'static str| {
        move |source| ServeError::Socket {
            operation,
            path: path.to_owned(),
            source,
        }
    };
    if let Some(directory) = path
        .parent()
        .filter(|dir| !dir.as_os_str().is_empty() && !dir.exists())
    {
        let made = std::fs::DirBuilder::new().mode(0o755).create(directory);
        made.map_err(failed("make the directory of"))?;
    }
    let lock = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(suffixed(path, ".lock"))
        .map_err(failed("open the lock file of"))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(std::fs::TryLockError::WouldBlock) => {
            return Err(ServeError::InUse {
                path: path.to_owned(),
            });
        }
        Err(std::fs::TryLockError::Error(source)) => return Err(failed("lock")(source)),
    }
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed("look at")(error)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(ServeError::NotASocket {
                path: path.to_owned(),
            });
        }
        Ok(_) => match std::os::unix::net::UnixStream::connect(path) {
            Ok(_) => {
                return Err(ServeError::InUse {
                    path: path.to_owned(),
                });
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                tracing::info!(path = %path.display(), "replacing a socket nobody listens on");
            }
            Err(error) => return Err(failed("find out who listens on")(error)),
        },
    }
    let gid = group.map(group_id).transpose()?;
    let fresh = suffixed(path, ".new");
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(failed("clear the way for")(error));
        }
        _ => {}
    }
    let listener = UnixListener::bind(&fresh).map_err(failed("listen on"))?;
    let mode = std::fs::Permissions::from_mode(mode & 0o777);
    std::fs::set_permissions(&fresh, mode).map_err(failed("set the mode of"))?;
    if let Some(gid) = gid {
        std::os::unix::fs::chown(&fresh, None, Some(gid)).map_err(failed("set the group of"))?;
    }
    std::fs::rename(&fresh, path).map_err(failed("put in place"))?;
    let found = std::fs::symlink_metadata(path).map_err(failed("look at"))?;
    let identity = (found.dev(), found.ino());
    let file = SocketFile {
        path: path.to_owned(),
        identity,
        _lock: lock,
    };
    let incoming = accept(listener);
    Ok(Bound {
        incoming,
        _file: Some(file),
    })
}

/// Says whether another process answers on a socket, before anything is set up to serve there.
///
/// # Errors
/// [`ServeError::InUse`] when one does. Any other problem is reported when listening starts.
pub(super) fn check_free(path: &Path) -> Result<(), ServeError> {
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Err(ServeError::InUse {
            path: path.to_owned(),
        }),
        Err(_) => Ok(()),
    }
}

/// Listens on a TCP address.
pub(super) async fn tcp(address: SocketAddr) -> Result<Bound<TcpStream>, ServeError> {
    let bound = TcpListener::bind(address).await;
    let listener = bound.map_err(|source| ServeError::Bind { address, source })?;
    let incoming = accept(listener);
    Ok(Bound {
        incoming,
        _file: None,
    })
}

fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// The id of a group in /etc/group, which is all that the daemon's own group needs; other databases
/// are not asked.
fn group_id(group: &str) -> Result<u32, ServeError> {
    if let Ok(id) = group.parse() {
        return Ok(id);
    }
    let table = std::fs::read_to_string("/etc/group").unwrap_or_default();
    table
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(':');
            Some((fields.next()?, fields.nth(1)?.parse().ok()?))
        })
        .find_map(|(name, id)| (name == group).then_some(id))
        .ok_or_else(|| ServeError::Group {
            group: group.to_owned(),
        })
}

/// The file of a unix socket; removed at the end, unless another has taken its place.
pub(super) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
    /// Held for as long as we listen.
    _lock: File,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let found = std::fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.identity) {
            // Nothing to be done when it fails: the next daemon replaces it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A listener, and how its peers are called.
trait Listener: Send + Sync + 'static {
    type Stream: Send + 'static;

    fn next(&self) -> impl Future<Output = io::Result<(Self::Stream, Origin)>> + Send;
}

/// Where a connection comes from.
struct Origin {
    /// Credentials or address, for the log.
    name: String,
    /// The user, where the kernel says who it is.
    uid: Option<u32>,
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn next(&self) -> io::Result<(UnixStream, Origin)> {
        let (stream, _) = self.accept().await?;
        let peer = stream.peer_cred()?;
        let pid = peer.pid().unwrap_or(0);
        let origin = Origin {
            name: format!("uid={} gid={} pid={pid}", peer.uid(), peer.gid()),
            uid: Some(peer.uid()),
        };
        Ok((stream, origin))
    }
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn next(&self) -> io::Result<(TcpStream, Origin)> {
        let (stream, peer) = self.accept().await?;
        stream.set_nodelay(true)?;
        let name = peer.to_string();
        Ok((stream, Origin { name, uid: None }))
    }
}

/// Accepts connections on a task of its own, no more at a time than there are places.
fn accept<L: Listener>(listener: L) -> ReceiverStream<io::Result<Conn<L::Stream>>> {
    let (tx, rx) = mpsc::channel(1);
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    tokio::spawn(async move {
        // Failures since the last success: descriptors stay short for as long as somebody holds
        // them, and that is one event for the log.
        let mut failed = 0u64;
        let mut peers: Vec<(Weak<()>, Peer)> = Vec::new();
        loop {
            let accepted = tokio::select! {
                accepted = listener.next() => accepted,
                // The server stopped accepting.
                () = tx.closed() => return,
            };
            match accepted {
                Ok((stream, origin)) => {
                    let failed = std::mem::take(&mut failed);
                    if failed > 0 {
                        tracing::info!(failed, "accepting connections again");
                    }
                    // One a call of agent-ctl: a script that asks each second would fill the log.
                    tracing::debug!(peer = origin.name, "client connected");
                    peers.retain(|(lives, _)| lives.strong_count() > 0);
                    let place = loop {
                        if places.available_permits() == 0 {
                            make_room(&peers);
                        }
                        tokio::select! {
                            place = places.clone().acquire_owned() => break place,
                            () = tx.closed() => return,
                            () = tokio::time::sleep(ROOM_INTERVAL) => {}
                        }
                    };
                    let Ok(place) = place else {
                        return;
                    };
                    let conn = Conn::new(stream, origin, place);
                    peers.push((Arc::downgrade(&conn.lives), conn.peer.clone()));
                    if tx.send(Ok(conn)).await.is_err() {
                        return;
                    }
                }
                Err(error) => {
                    if failed == 0 {
                        tracing::warn!(%error, "failed to accept a connection");
                    }
                    failed += 1;
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    });
    ReceiverStream::new(rx)
}

/// Closes the least valuable connection, if there is one without a call that is not being closed
/// already.
fn make_room(peers: &[(Weak<()>, Peer)]) {
    let idle = peers
        .iter()
        .filter(|(_, peer)| !peer.is_closed())
        .filter_map(|(_, peer)| Some((peer.calls.worth()?, peer)));
    if let Some((_, peer)) = idle.min_by_key(|&(worth, _)| worth) {
        CONNECTIONS.made_room.fetch_add(1, Ordering::Relaxed);
        peer.close();
    }
}

/// The other end of a connection; in the extensions of every request.
#[derive(Clone)]
pub(super) struct Peer {
    /// Credentials or address, for the log.
    pub name: Arc<str>,
    /// The user, where the kernel says who it is: on a unix socket.
    pub uid: Option<u32>,
    calls: Arc<Calls>,
    close: Arc<Mutex<Option<oneshot::Sender<()>>>>,
}

impl Peer {
    fn is_closed(&self) -> bool {
        lock(&self.close).is_none()
    }

    /// Closes the connection, at once and with all that is queued for it.
    pub(super) fn close(&self) {
        let close = lock(&self.close).take();
        if let Some(close) = close {
            // The receiver is gone when the connection is.
            let _ = close.send(());
        }
    }
}

impl Caller for Peer {
    fn calls(&self) -> &Arc<Calls> {
        &self.calls
    }
}

/// A connection that holds its place, ends when asked to, and must send something soon.
pub(super) struct Conn<S> {
    stream: S,
    peer: Peer,
    closed: oneshot::Receiver<()>,
    /// Ends a connection that sends no preface; `None` once it has come.
    silence: Option<Pin<Box<tokio::time::Sleep>>>,
    read: usize,
    idle: IdleTimer,
    /// Goes with the connection.
    lives: Arc<()>,
    _place: OwnedSemaphorePermit,
}

impl<S> Conn<S> {
    fn new(stream: S, origin: Origin, place: OwnedSemaphorePermit) -> Conn<S> {
        let (close, closed) = oneshot::channel();
        let calls = Calls::new(Patience::default());
        let peer = Peer {
            name: origin.name.into(),
            uid: origin.uid,
            calls: Arc::clone(&calls),
            close: Arc::new(Mutex::new(Some(close))),
        };
        let silence = Some(Box::pin(tokio::time::sleep(HANDSHAKE_TIMEOUT)));
        Conn {
            stream,
            peer,
            closed,
            silence,
            read: 0,
            idle: IdleTimer::new(calls),
            lives: Arc::new(()),
            _place: place,
        }
    }
}

impl<S> Connected for Conn<S> {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Conn<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let conn = self.get_mut();
        // Never resolves to an error: `peer` holds the sender until it is used.
        if !conn.closed.is_terminated() && Pin::new(&mut conn.closed).poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        if let Some(silence) = &mut conn.silence
            && silence.as_mut().poll(cx).is_ready()
        {
            CONNECTIONS.silent.fetch_add(1, Ordering::Relaxed);
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        if conn.idle.poll(cx).is_ready() {
            CONNECTIONS.silent.fetch_add(1, Ordering::Relaxed);
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

impl<S: AsyncWrite + Unpin> AsyncWrite for Conn<S> {
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
