//! The port for other hosts: TLS first, then the member's connection, for as long as the host is a
//! member.
//!
//! A handshake has a few seconds. If too many are in progress, the oldest is dropped, so that peers
//! that never finish keep nobody out. Members, people and strangers have separate places: a
//! connection without a certificate or token has half a minute to enroll or log in. A connection
//! becomes a person's with the first call that has a valid token. It ends when its member is
//! removed, when its certificate expires, and when no calls are made on it.

use super::outside::{Named, Outside};
use super::registry::Refused;
use super::{Claimed, Fleet, Member};
use crate::audit::{Audit, Event};
use crate::listen::AcceptTrouble;
use crate::metrics::Metrics;
use crate::sync::lock;
use crate::wrong_port::unless_clear;
use profile::text::with_causes;
use proto::calls::{Caller, Calls, IdleTimer, Patience};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio::time::{Instant, Sleep, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::http::Extensions;
use tonic::transport::server::{Connected, TcpConnectInfo};
use tonic::{Code, Status};

/// Time for a handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// What whoever speaks in clear hears: a browser, an agent with `collector.address`, `agent-ctl`
/// without a login.
const IN_CLEAR: &str = "this port is for hosts and people who prove who they are, and takes TLS \
    only: hosts join (`agent-ctl join`), people log in (`agent-ctl login`), browsers use \
    `listen.https`";

/// Handshakes at a time: each may hold a key exchange.
const HANDSHAKES: usize = 512;

/// Connections of hosts that are no members: those that enroll, and nobody's for long.
const STRANGERS: usize = 64;
const STRANGER_LASTS: Duration = Duration::from_secs(30);

/// Connections of people.
const PEOPLE: usize = 512;

/// Connections of one member: one, and those that linger after it came back.
const CONNECTIONS_PER_MEMBER: usize = 8;

/// Longest sleep that is asked for: further away than any certificate lasts.
const FAR: Duration = Duration::from_secs(400 * 86_400);

/// Connections of `listener` after a successful handshake, at most `places` at a time. Ends when
/// the stream is dropped.
pub fn accept(
    listener: TcpListener,
    places: usize,
    patience: Patience,
    (fleet, audit): (Arc<Fleet>, Audit),
    metrics: Arc<Metrics>,
) -> ReceiverStream<io::Result<TlsConn>> {
    let (tx, rx) = mpsc::channel(16);
    let places = Places {
        members: Arc::new(Semaphore::new(places)),
        strangers: Arc::new(Semaphore::new(STRANGERS)),
        people: Arc::new(Semaphore::new(PEOPLE)),
    };
    tokio::spawn(async move {
        let mut trouble = AcceptTrouble::default();
        let mut handshakes: VecDeque<AbortHandle> = VecDeque::new();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                // The server stopped accepting.
                () = tx.closed() => return,
            };
            let (stream, address) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    trouble.failed(&error).await;
                    continue;
                }
            };
            trouble.over();
            handshakes.retain(|handshake| !handshake.is_finished());
            if handshakes.len() >= HANDSHAKES
                && let Some(oldest) = handshakes.pop_front()
            {
                oldest.abort();
                metrics.connections_refused.inc();
            }
            let (fleet, metrics, tx) = (fleet.clone(), metrics.clone(), tx.clone());
            let (places, audit) = (places.clone(), audit.clone());
            let handshake = tokio::spawn(async move {
                let fleet = (&fleet, &audit);
                let shaken = shake(stream, &places, patience, fleet, metrics.clone());
                match timeout(HANDSHAKE, shaken).await {
                    Ok(Ok(conn)) => {
                        let _ = tx.send(Ok(conn)).await;
                    }
                    Ok(Err(error)) => refuse(&metrics, address, &error.to_string()),
                    Err(_) => refuse(&metrics, address, "no handshake in time"),
                }
            });
            handshakes.push_back(handshake.abort_handle());
        }
    });
    ReceiverStream::new(rx)
}

/// Room for connections.
#[derive(Clone)]
struct Places {
    members: Arc<Semaphore>,
    strangers: Arc<Semaphore>,
    people: Arc<Semaphore>,
}

fn refuse(metrics: &Metrics, address: SocketAddr, why: &str) {
    metrics.connections_refused.inc();
    tracing::debug!(%address, why, "connection of another host refused");
}

async fn shake(
    stream: TcpStream,
    places: &Places,
    patience: Patience,
    (fleet, audit): (&Arc<Fleet>, &Audit),
    metrics: Arc<Metrics>,
) -> io::Result<TlsConn> {
    stream.set_nodelay(true)?;
    let tcp = stream.connect_info();
    let config = fleet.tls_now().await.map_err(|error| {
        // Nobody can connect: that is not for the log of those who debug.
        tracing::error!("{}", with_causes(&error));
        io::Error::other(error)
    })?;
    let stream = unless_clear(stream, Code::Unauthenticated, IN_CLEAR).await?;
    let stream = TlsAcceptor::from(config).accept(stream).await?;
    let (_, session) = stream.get_ref();
    let claim = match session.peer_certificates() {
        // It may enroll.
        None => None,
        Some(chain) => Some(fleet.claim(chain).map_err(|why| {
            metrics.outside_unnamed.inc();
            tell(fleet, &tcp, &why, audit);
            io::Error::other(why)
        })?),
    };
    let has_certificate = claim.is_some();
    let (member, ends_unix_s) = match claim {
        None => (None, 0),
        Some(Claimed::Own(claim)) => (
            fleet.registry.member(&claim.host_id, &claim.key),
            claim.not_after_unix_s,
        ),
        Some(Claimed::Outside(named, ends)) => {
            let member = match fleet.registry.named(&named) {
                Some(known) => Some(known),
                None => admit(fleet, named, &tcp, audit).await.map_err(|refused| {
                    match refused {
                        Refused::Store(_) => metrics.outside_failed.inc(),
                        _ => metrics.outside_taken.inc(),
                    };
                    let why = with_causes(&refused);
                    tell(fleet, &tcp, &why, audit);
                    io::Error::other(why)
                })?,
            };
            if member.is_none() {
                metrics.outside_removed.inc();
                tell(fleet, &tcp, "the host was removed from the fleet", audit);
            }
            (member, ends)
        }
    };
    let mut lasts = STRANGER_LASTS;
    let mut ended: Option<Ended> = None;
    // A removed host may still enroll with an invitation, or get an error that says why not.
    if let Some(member) = &member {
        if member.connections() >= CONNECTIONS_PER_MEMBER {
            return Err(io::Error::other("the host has too many connections"));
        }
        member.see(fleet.now());
        let left = ends_unix_s.saturating_sub(fleet.now());
        lasts = Duration::from_secs(left.max(0) as u64).min(FAR);
        let mut removed = member.ended();
        ended = Some(Box::pin(async move {
            let _ = removed.wait_for(|&ended| ended).await;
        }));
    }
    let room = match &member {
        Some(_) => &places.members,
        None => &places.strangers,
    };
    let place = room.clone().try_acquire_owned();
    let place = place.map_err(|_| io::Error::other("there are too many connections"))?;
    metrics.connections_grpc.inc();
    let calls = Calls::new(patience);
    let standing = Arc::new(Standing {
        people: places.people.clone(),
        place: Mutex::new(Some(place)),
        is_person: AtomicBool::new(false),
        metrics: metrics.clone(),
    });
    Ok(TlsConn {
        fleet: Arc::clone(fleet),
        stream,
        peer: MemberPeer {
            tcp,
            calls: Arc::clone(&calls),
            was_member: member.is_none() && has_certificate,
            member,
            standing: standing.clone(),
        },
        idle: IdleTimer::new(calls),
        expires: Box::pin(sleep_until(Instant::now() + lasts)),
        ended,
        metrics,
        standing,
    })
}

/// Admits a new host that another authority names, and records it.
async fn admit(
    fleet: &Arc<Fleet>,
    named: Named,
    tcp: &TcpConnectInfo,
    audit: &Audit,
) -> Result<Option<Arc<Member>>, Refused> {
    let own = fleet.clone();
    let admitting = tokio::task::spawn_blocking(move || own.registry.admit(&named, own.now()));
    let admitted = admitting.await;
    let admitted =
        admitted.map_err(|_| Refused::Invalid("failed to add the host".to_owned()))??;
    if let Some(member) = &admitted {
        let address = tcp.remote_addr().map(|address| address.to_string());
        let event = Event::by(&member.name, address.unwrap_or_default(), "join");
        audit.note(event.with("host_id", member.host_id.as_str()));
        tracing::info!(
            host = member.name,
            host_id = member.host_id,
            "a host connected with a certificate from another authority"
        );
    }
    Ok(admitted)
}

/// Logs why a host with a good certificate is not let in, and puts it on record, now and then.
fn tell(fleet: &Fleet, tcp: &TcpConnectInfo, why: &str, audit: &Audit) {
    if fleet.outside.as_ref().is_some_and(Outside::tells) {
        let address = tcp.remote_addr().map(|address| address.to_string());
        let event = Event::by("", address.unwrap_or_default(), "join");
        audit.note(event.ended(&format!("failed: {why}")));
        tracing::warn!(
            address = ?tcp.remote_addr(),
            why,
            "refused a host with a valid certificate; further refusals in the next minute are only \
             counted"
        );
    }
}

type Ended = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A connection of a member, or of a host that wants to be one.
pub struct TlsConn {
    fleet: Arc<Fleet>,
    stream: TlsStream<TcpStream>,
    peer: MemberPeer,
    idle: IdleTimer,
    /// When the certificate ends.
    expires: Pin<Box<Sleep>>,
    /// Done when the member is removed.
    ended: Option<Ended>,
    metrics: Arc<Metrics>,
    standing: Arc<Standing>,
}

/// The owner of a connection, apart from certificates.
struct Standing {
    people: Arc<Semaphore>,
    place: Mutex<Option<OwnedSemaphorePermit>>,
    is_person: AtomicBool,
    metrics: Arc<Metrics>,
}

impl Drop for Standing {
    fn drop(&mut self) {
        if self.is_person.load(Ordering::Relaxed) {
            self.metrics.people_connections.dec();
        }
    }
}

impl TlsConn {
    /// Ready when the connection is to end.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if let Some(ended) = &mut self.ended
            && ended.as_mut().poll(cx).is_ready()
        {
            self.ended = None;
            let why = "the host is no longer a member of the fleet";
            return Poll::Ready(io::Error::new(io::ErrorKind::ConnectionAborted, why));
        }
        // A person's may stay as long as there are calls.
        let is_person = self.standing.is_person.load(Ordering::Relaxed);
        if !is_person && self.expires.as_mut().poll(cx).is_ready() {
            let why = "the certificate has expired";
            return Poll::Ready(io::Error::new(io::ErrorKind::ConnectionAborted, why));
        }
        ready!(self.idle.poll(cx));
        self.metrics.connections_silent.inc();
        Poll::Ready(io::ErrorKind::TimedOut.into())
    }
}

impl Drop for TlsConn {
    fn drop(&mut self) {
        if let Some(member) = &self.peer.member {
            member.see(self.fleet.now());
        }
        self.metrics.connections_grpc.dec();
    }
}

/// The other end of the connection.
#[derive(Clone)]
pub struct MemberPeer {
    tcp: TcpConnectInfo,
    calls: Arc<Calls>,
    /// The member; none before it has enrolled.
    pub member: Option<Arc<Member>>,
    /// It showed a certificate of this fleet: a host that is no member any more.
    pub was_member: bool,
    standing: Arc<Standing>,
}

impl MemberPeer {
    /// Where it is.
    pub fn address(&self) -> Option<SocketAddr> {
        self.tcp.remote_addr()
    }

    /// Somebody showed a good token on it: a stranger's connection becomes a person's.
    ///
    /// # Errors
    /// UNAVAILABLE when people have too many.
    pub fn promote(&self) -> Result<(), Status> {
        let standing = &self.standing;
        if self.member.is_some() || standing.is_person.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut held = lock(&standing.place);
        if standing.is_person.load(Ordering::Relaxed) {
            return Ok(());
        }
        let Ok(place) = standing.people.clone().try_acquire_owned() else {
            return Err(Status::unavailable(format!(
                "people already have {PEOPLE} connections, which is the limit"
            )));
        };
        *held = Some(place);
        standing.is_person.store(true, Ordering::Relaxed);
        standing.metrics.people_connections.inc();
        Ok(())
    }
}

impl Caller for MemberPeer {
    fn calls(&self) -> &Arc<Calls> {
        &self.calls
    }

    /// Its address is found where that of plain TCP is.
    fn note(&self, extensions: &mut Extensions) {
        extensions.insert(self.tcp.clone());
    }
}

impl Connected for TlsConn {
    type ConnectInfo = MemberPeer;

    fn connect_info(&self) -> MemberPeer {
        self.peer.clone()
    }
}

impl AsyncRead for TlsConn {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let conn = self.get_mut();
        if let Poll::Ready(error) = conn.poll_end(cx) {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut conn.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for TlsConn {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        // A peer that reads nothing is not read from either.
        if let Poll::Ready(error) = self.poll_end(cx) {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Poll::Ready(error) = self.poll_end(cx) {
            return Poll::Ready(Err(error));
        }
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
        if let Poll::Ready(error) = self.poll_end(cx) {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
