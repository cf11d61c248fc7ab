//! The connection to the collector, shared by windows, captures and pins. Only this module deals
//! with certificates.

use ::identity::{Changes, Dialer, HostMember};
use host::sync::lock;
use proto::{CONNECTION_WINDOW_BYTES, STREAM_WINDOW_BYTES};
use std::error::Error;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout};
use tonic::Status;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};

/// Longest wait for a connection.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// How often a quiet connection is asked whether it is still there; windows every ten seconds
/// usually answer that.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// Longest wait for the answer to that.
const KEEP_ALIVE_MAX: Duration = Duration::from_secs(20);

/// Bound of the first wait before another attempt; it doubles with each.
const BACKOFF_MIN: Duration = Duration::from_millis(500);

/// Bound of all waits.
pub const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// Where windows go.
#[derive(Clone)]
pub enum Target {
    /// To a collector that the configuration names, in clear: on loopback only.
    Configured(SocketAddr),
    /// To that of the fleet that the host has joined, with its certificate.
    Fleet(Arc<HostMember>),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Configured(address) => address.fmt(f),
            Target::Fleet(member) => f.write_str(member.address().as_deref().unwrap_or("none")),
        }
    }
}

/// The membership of a connection, and its collector's address; `None` for a collector from the
/// configuration.
type Destination = Option<(u64, String)>;

impl Target {
    fn destination(&self) -> Destination {
        let Target::Fleet(member) = self else {
            return None;
        };
        Some((member.joined(), member.address().unwrap_or_default()))
    }

    /// The fleet that the collector proved to belong to, by its certificate; `None` for a collector
    /// from the configuration, which proves nothing.
    pub fn fleet(&self) -> Option<String> {
        match self {
            Target::Configured(_) => None,
            Target::Fleet(member) => member.membership().map(|membership| membership.fleet_id),
        }
    }

    /// Notifies of each change of the membership.
    fn changes(&self) -> Option<Changes> {
        match self {
            Target::Configured(_) => None,
            Target::Fleet(member) => Some(member.changes()),
        }
    }

    /// How to connect to it now.
    fn endpoint(&self) -> Result<Endpoint, ConnectError> {
        let unreachable = |error| ConnectError::Unreachable(Arc::new(error));
        match self {
            Target::Configured(address) => {
                Endpoint::from_shared(format!("http://{address}")).map_err(unreachable)
            }
            Target::Fleet(member) => {
                let (address, tls): (String, ClientTlsConfig) =
                    member.collector().ok_or(ConnectError::Left)?;
                let endpoint = Endpoint::from_shared(format!("https://{address}"));
                endpoint
                    .and_then(|endpoint| endpoint.tls_config(tls))
                    .map_err(unreachable)
            }
        }
    }
}

/// Why there is no connection.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ConnectError {
    /// The host is a member of no fleet any more.
    #[error("this host has left its fleet")]
    Left,
    /// The connection is of a membership that is over.
    #[error("this host has joined again, or left its fleet")]
    Moved,
    /// The collector cannot be reached.
    #[error("failed to connect")]
    Unreachable(#[source] Arc<tonic::transport::Error>),
    /// There was no answer in time.
    #[error("failed to connect within {} s", CONNECT_MAX.as_secs())]
    Late,
}

/// The one connection to the collector: every service has its streams on it.
///
/// It is opened when a service needs it, by one service at a time, with one back-off for all. A
/// service that finds the connection broken drops it: the next stream uses a new one, and streams
/// of other services stay on the old one until they end.
pub struct Connection {
    target: Target,
    /// Connects where the thread of the services may not.
    dialer: Option<Dialer>,
    /// The newest.
    link: std::sync::Mutex<Option<Link>>,
    /// Held by whoever connects.
    attempts: tokio::sync::Mutex<Attempts>,
}

/// A connection, and which one it is.
#[derive(Clone)]
pub struct Link {
    /// Where streams are opened.
    pub channel: Channel,
    number: u64,
    destination: Destination,
}

/// Attempts to connect.
struct Attempts {
    /// Connections so far.
    connected: u64,
    /// Attempts that failed since the last one.
    failed: u32,
    /// The next one comes then.
    next_at: Instant,
    /// Where they led.
    destination: Destination,
    /// When the last one failed, and why.
    last_error: Option<(Instant, ConnectError)>,
}

impl Connection {
    /// Creates it unconnected.
    pub fn new(target: Target, dialer: Option<Dialer>) -> Connection {
        Connection {
            target,
            dialer,
            link: std::sync::Mutex::default(),
            attempts: tokio::sync::Mutex::new(Attempts {
                connected: 0,
                failed: 0,
                next_at: Instant::now(),
                destination: None,
                last_error: None,
            }),
        }
    }

    /// Where the collector is.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The connection. Where there is none, the next attempt decides, after its back-off: who fails
    /// may ask again at once.
    ///
    /// # Errors
    /// When that attempt fails.
    pub async fn link(&self) -> Result<Link, ConnectError> {
        let asked = Instant::now();
        let mut attempts = self.attempts.lock().await;
        let destination = self.target.destination();
        if let Some(link) = &*lock(&self.link)
            && link.destination == destination
        {
            return Ok(link.clone());
        }
        // Several may have waited for one attempt.
        if let Some((at, error)) = &attempts.last_error
            && *at >= asked
        {
            return Err(error.clone());
        }
        if attempts.destination != destination {
            // Another collector owes nothing for what the last one did.
            attempts.destination.clone_from(&destination);
            attempts.next_at = asked;
            attempts.failed = 0;
        }
        let mut changes = self.target.changes();
        let moved = async {
            match &mut changes {
                Some(changes) => drop(changes.changed().await),
                None => std::future::pending().await,
            }
        };
        if destination
            .as_ref()
            .is_some_and(|(_, collector)| collector.is_empty())
        {
            // Who asks has no back-off of its own.
            let _ = timeout(BACKOFF_MAX, moved).await;
            return Err(ConnectError::Left);
        }
        tokio::select! {
            () = sleep_until(attempts.next_at) => {}
            () = moved => return Err(ConnectError::Moved),
        }
        match channel(&self.target, self.dialer.as_ref()).await {
            Ok(channel) => {
                attempts.connected += 1;
                attempts.failed = 0;
                let number = attempts.connected;
                let link = Link {
                    channel,
                    number,
                    destination,
                };
                *lock(&self.link) = Some(link.clone());
                Ok(link)
            }
            Err(error) => {
                let now = Instant::now();
                attempts.failed = attempts.failed.saturating_add(1);
                attempts.next_at = now + backoff(attempts.failed);
                attempts.last_error = Some((now, error.clone()));
                Err(error)
            }
        }
    }

    /// Done when the host belongs elsewhere than this connection leads: it has joined a fleet
    /// since, or left. A new certificate changes nothing for those that are open.
    pub async fn moved(&self, link: &Link) {
        let Target::Fleet(member) = &self.target else {
            return std::future::pending().await;
        };
        let mut changes = member.changes();
        while self.target.destination() == link.destination {
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Done when the membership changes: the host joins, leaves, or has another certificate.
    pub async fn target_changed(&self) {
        match self.target.changes() {
            Some(mut changes) => drop(changes.changed().await),
            None => std::future::pending().await,
        }
    }

    /// Makes the next stream use another connection, unless that was already done.
    pub fn give_up(&self, link: &Link) {
        let mut newest = lock(&self.link);
        if newest
            .as_ref()
            .is_some_and(|newest| newest.number == link.number)
        {
            *newest = None;
        }
    }
}

/// True when a stream ended because of its connection, and not by a word of the collector: such a
/// status has no cause here.
pub fn is_of_connection(status: &Status) -> bool {
    status.source().is_some()
}

/// Makes the channel to the collector.
async fn channel(target: &Target, dialer: Option<&Dialer>) -> Result<Channel, ConnectError> {
    let unreachable = |error| ConnectError::Unreachable(Arc::new(error));
    let endpoint = target
        .endpoint()?
        .connect_timeout(CONNECT_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE_MAX);
    let connecting = async {
        match dialer {
            Some(dialer) => dialer.connect(&endpoint, &target.to_string()).await,
            None => endpoint.connect().await,
        }
    };
    // It resolves within its own bound; this one covers the handshake.
    match timeout(CONNECT_MAX + Duration::from_secs(1), connecting).await {
        Ok(connected) => connected.map_err(unreachable),
        Err(_) => Err(ConnectError::Late),
    }
}

/// Time until the next attempt: anything up to a bound that doubles, so that the agents of a fleet
/// do not come back together.
pub fn backoff(attempts: u32) -> Duration {
    let bound = BACKOFF_MIN
        .saturating_mul(1 << attempts.min(16))
        .min(BACKOFF_MAX);
    // Seeded by the system each time.
    let random = RandomState::new().hash_one(attempts) >> 11;
    bound.mul_f64(random as f64 / (1u64 << 53) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn services_share_a_connection_until_one_gives_it_up() {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let connection = Connection::new(Target::Configured(listener.local_addr().unwrap()), None);
        let first = connection.link().await.unwrap();
        assert_eq!(connection.link().await.unwrap().number, first.number);
        connection.give_up(&first);
        let second = connection.link().await.unwrap();
        assert_ne!(second.number, first.number);
        // Another service finds the same trouble later.
        connection.give_up(&first);
        assert_eq!(connection.link().await.unwrap().number, second.number);
    }

    #[tokio::test]
    async fn one_attempt_that_fails_is_told_to_all_who_wait_for_it() {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let connection = Connection::new(Target::Configured(listener.local_addr().unwrap()), None);
        drop(listener);
        let results = tokio::join!(connection.link(), connection.link(), connection.link());
        assert!(results.0.is_err() && results.1.is_err() && results.2.is_err());
        assert_eq!(connection.attempts.lock().await.failed, 1);
        // Who asks again waits for the next one.
        assert!(connection.link().await.is_err());
        assert_eq!(connection.attempts.lock().await.failed, 2);
    }

    #[test]
    fn waits_double_up_to_a_minute_and_differ() {
        for attempts in 0..40 {
            let bound = BACKOFF_MIN
                .saturating_mul(1 << attempts.min(16))
                .min(BACKOFF_MAX);
            let waits: Vec<Duration> = (0..20).map(|_| backoff(attempts)).collect();
            assert!(waits.iter().all(|wait| *wait <= bound));
            assert!(waits.iter().any(|wait| *wait != waits[0]));
        }
    }
}
