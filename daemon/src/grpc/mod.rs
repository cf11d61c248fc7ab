//! AgentService over gRPC: on a unix socket, or over TCP when configured; with health and
//! reflection.
//!
//! [`serve`] runs on one current-thread runtime. What takes long (queries, status, reload) runs on
//! blocking threads, at most [`QUERIES_MAX`] queries at a time; what a client costs is bounded by
//! the constants below. All that the service knows of the daemon is behind [`Host`].
//!
//! Access: over the unix socket, any process that its mode and group allow. Over TCP, clients with
//! the bearer token or a certificate signed by the configured CA; beyond the loopback interface
//! only with TLS.

mod answer;
mod auth;
mod calls;
mod capture;
mod cgroups;
mod fleet;
mod held;
mod ledger;
mod listen;
mod live;
mod pins;
mod service;
#[cfg(test)]
mod tests;

use ::capture::Capturing;
use ::pins::Pins;
use aggregate::recorder::Recorder;
pub use held::ANSWERS_REFUSED;
use host::time::WallAnchor;
use listen::Bound;
pub use listen::{CONNECTIONS, ConnectionCounts};
use proto::agent;
use proto::agent::agent_service_server::AgentServiceServer;
use proto::credential::Credential;
pub use service::TIMES;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, RwLock};
use std::time::Duration;
use tokio::sync::watch;
use tonic::Status;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::server::Connected;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

/// Queries run at a time. Each may hold a copy of what the recorder holds. More wait, until
/// [`REQUEST_TIMEOUT`]. What a query answers leaves its place, and is held until it is read within
/// [`HELD_BYTES_MAX`].
pub const QUERIES_MAX: usize = 4;

/// Streamed answers open at a time over all clients, live ones included. Each holds at most two
/// chunks besides its profile. More are refused with RESOURCE_EXHAUSTED.
pub const STREAMS_MAX: usize = 16;

/// Answers that wait to be read hold this much together. Unit: bytes; the profile of an hour of a
/// large host takes some 20 MiB. One that is larger is held alone. More are refused for a moment.
pub const HELD_BYTES_MAX: usize = 64 << 20;

/// Time a client may take to read a complete answer. A client that reads a chunk now and then would
/// hold memory forever.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(300);

/// Captures that are sent at a time, those included that wait for their start: as many as
/// `captures.max` can allow. Apart from [`STREAMS_MAX`], so that captures that take an hour leave
/// room for questions.
pub const CAPTURES_MAX: usize = 64;

/// Connections at a time. Beyond it the one that has been without a call longest makes room; where
/// all have one, more wait in the listen backlog.
pub const CONNECTIONS_MAX: usize = 64;

/// Requests at a time on one connection.
pub const REQUESTS_PER_CONNECTION_MAX: usize = 16;

/// Largest request. Unit: bytes. The most matchers and filters that are taken, each with the
/// longest pattern, are half of this.
pub const REQUEST_BYTES_MAX: usize = 1024 * 1024;

/// Time a request may take until its answer starts.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Time a client may leave an answer unread before its connection is closed.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Time from connecting to the first bytes of HTTP/2, and for a TLS handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);

/// Idle connections are pinged this often, so that peers that vanished give their place back.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// Largest header list of a request. Unit: bytes.
const HEADER_BYTES_MAX: u32 = 16 * 1024;

/// How often the host is asked for its health.
const HEALTH_INTERVAL: Duration = Duration::from_secs(5);

/// Time to wait for the host's fresh data, somewhat above the two seconds it promises.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(2500);

/// A future of a [`Host`].
pub type HostFuture<T = ()> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Configuration in force.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ActiveConfig {
    /// As YAML, defaults filled in.
    pub yaml: String,
    /// File it came from; empty when there is none.
    pub path: String,
}

/// What a reload changed.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ReloadOutcome {
    /// Keys with a new value that is in force.
    pub changed: Vec<String>,
    /// Keys with a new value in the file that needs a restart.
    pub needs_restart: Vec<String>,
}

/// The daemon as the service sees it.
pub trait Host: Send + Sync + 'static {
    /// The status: what the daemon does, costs and misses. May read files, so it is called on a
    /// blocking thread.
    fn status(&self) -> agent::GetStatusResponse;

    /// Asks the sampler for what it has; done when that is in the recorder, or after two seconds.
    fn flush(&self) -> HostFuture;

    /// A client wants parts of windows this often until the guard is dropped. The shortest interval
    /// of all guards counts; without any, windows come complete.
    fn watch(&self, interval: Duration) -> Box<dyn Send>;

    /// The configuration in force.
    fn config(&self) -> ActiveConfig;

    /// Reads the configuration again. Called on a blocking thread.
    ///
    /// # Errors
    /// With the reason, when the file is invalid; the active configuration stays.
    fn reload(&self) -> Result<ReloadOutcome, String>;

    /// Captures; `None` while the daemon starts.
    fn captures(&self) -> Option<Arc<dyn Capturing>>;

    /// The flight recorder. Only ever locked for reading here, and not across an await.
    fn recorder(&self) -> &RwLock<Recorder>;

    /// The anchor of wall time.
    fn clock(&self) -> &WallAnchor;

    /// Whether the daemon does its work, as `/healthz` says. Never waits.
    ///
    /// # Errors
    /// With the reason.
    fn health(&self) -> Result<(), String> {
        Ok(())
    }

    /// Joins the fleet of a collector. The status is for whoever asked.
    fn join_fleet(
        &self,
        _collector: String,
        _credential: Credential,
    ) -> HostFuture<Result<agent::FleetMembership, Status>> {
        Box::pin(async { Err(Status::unimplemented("this daemon cannot join a fleet")) })
    }

    /// Leaves it.
    fn leave_fleet(&self) -> HostFuture<Result<(), Status>> {
        Box::pin(async { Err(Status::not_found("this host is not a member of a fleet")) })
    }

    /// Minutes kept beyond the retention; none where none are kept.
    fn pins(&self) -> Option<&Pins> {
        None
    }
}

/// Certificates for TLS, PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate chain.
    pub cert_file: PathBuf,
    /// Its private key.
    pub key_file: PathBuf,
    /// Clients must show a certificate signed by one of these.
    pub client_ca_file: Option<PathBuf>,
}

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A unix socket.
    Unix {
        /// Its path. A missing directory is made, its parent must be there.
        path: PathBuf,
        /// Permission bits.
        mode: u32,
        /// Group, by name in /etc/group or by number.
        group: Option<String>,
    },
    /// TCP. Needs a token or a client CA, and TLS unless the address is a loopback address.
    Tcp {
        /// Address and port.
        address: SocketAddr,
        /// Certificates.
        tls: Option<TlsFiles>,
        /// File that holds the bearer token; white space around it is left out.
        token_file: Option<PathBuf>,
    },
}

/// How to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServeOptions {
    /// Where to listen.
    pub listen: Listen,
    /// Time that requests under way have after shutdown started.
    pub grace: Duration,
    /// See [`STALL_TIMEOUT`].
    pub stall_timeout: Duration,
}

impl ServeOptions {
    /// The default limits.
    pub fn new(listen: Listen) -> ServeOptions {
        ServeOptions {
            listen,
            grace: Duration::from_secs(5),
            stall_timeout: STALL_TIMEOUT,
        }
    }
}

/// Why serving did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Another daemon answers on the socket.
    #[error("failed to listen on `{path}`: another process is listening there")]
    InUse {
        /// Path of the socket.
        path: PathBuf,
    },
    /// Something at the path is not a socket.
    #[error("failed to listen on `{path}`: the path exists and is not a socket")]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// An operation on the socket's file failed.
    #[error("failed to {operation} `{path}`")]
    Socket {
        /// The operation that failed.
        operation: &'static str,
        /// The path.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// No such group.
    #[error("failed to find group `{group}` of the socket")]
    Group {
        /// As configured.
        group: String,
    },
    /// The address cannot be bound.
    #[error("failed to listen on `{address}`")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why it failed.
        source: std::io::Error,
    },
    /// TCP without what protects it.
    #[error("failed to listen on `{address}`: {missing}")]
    Unprotected {
        /// The address.
        address: SocketAddr,
        /// What is missing.
        missing: &'static str,
    },
    /// A token or certificate cannot be used.
    #[error("failed to read {what} from `{path}`")]
    Secret {
        /// What it is.
        what: &'static str,
        /// Its file.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The reflection service refused the descriptors.
    #[error("failed to build the reflection service")]
    Reflection(#[source] tonic_reflection::server::Error),
    /// The transport failed.
    #[error("failed to serve gRPC")]
    Transport(#[source] tonic::transport::Error),
}

/// Says whether another daemon answers where `listen` says, before events are opened for nothing.
///
/// # Errors
/// [`ServeError::InUse`], and [`ServeError::Bind`] where the address is taken.
pub fn check_free(listen: &Listen) -> Result<(), ServeError> {
    match *listen {
        Listen::Unix { ref path, .. } => listen::check_free(path),
        Listen::Tcp { address, .. } => match std::net::TcpListener::bind(address) {
            Ok(_) => Ok(()),
            Err(source) => Err(ServeError::Bind { address, source }),
        },
    }
}

/// Listens and answers until `shutdown` is true (or its sender is gone), then lets requests under
/// way finish within the grace. `ready` is called once connections are taken.
///
/// # Errors
/// When listening is not possible, and when the transport fails.
pub async fn serve(
    options: ServeOptions,
    host: Arc<dyn Host>,
    shutdown: watch::Receiver<bool>,
    ready: impl FnOnce(),
) -> Result<(), ServeError> {
    match &options.listen {
        Listen::Unix { path, mode, group } => {
            let bound = listen::unix(path, *mode, group.as_deref())?;
            ready();
            run(&options, host, shutdown, bound, None, auth::Gate::open()).await
        }
        Listen::Tcp {
            address,
            tls,
            token_file,
        } => {
            let gate = match token_file {
                Some(path) => auth::Gate::token(path)?,
                None => auth::Gate::open(),
            };
            let client_ca = tls.as_ref().is_some_and(|tls| tls.client_ca_file.is_some());
            let missing = match () {
                () if token_file.is_none() && !client_ca => "a token file or a client CA is needed",
                () if tls.is_none() && !address.ip().is_loopback() => "TLS is needed",
                () => "",
            };
            if !missing.is_empty() {
                return Err(ServeError::Unprotected {
                    address: *address,
                    missing,
                });
            }
            let tls = tls.as_ref().map(tls_config).transpose()?;
            let bound = listen::tcp(*address).await?;
            ready();
            run(&options, host, shutdown, bound, tls, gate).await
        }
    }
}

fn tls_config(files: &TlsFiles) -> Result<ServerTlsConfig, ServeError> {
    let read = |what: &'static str, path: &PathBuf| {
        std::fs::read(path).map_err(|source| ServeError::Secret {
            what,
            path: path.clone(),
            source,
        })
    };
    let certificate = read("certificate", &files.cert_file)?;
    let key = read("private key", &files.key_file)?;
    let mut config = ServerTlsConfig::new()
        .identity(Identity::from_pem(certificate, key))
        .timeout(HANDSHAKE_TIMEOUT);
    if let Some(path) = &files.client_ca_file {
        config = config.client_ca_root(Certificate::from_pem(read("client CA", path)?));
    }
    Ok(config)
}

async fn run<S>(
    options: &ServeOptions,
    host: Arc<dyn Host>,
    mut shutdown: watch::Receiver<bool>,
    bound: Bound<S>,
    tls: Option<ServerTlsConfig>,
    gate: auth::Gate,
) -> Result<(), ServeError>
where
    listen::Conn<S>:
        Connected + tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    type Agent = AgentServiceServer<service::Service>;
    let service = service::Service::new(Arc::clone(&host), shutdown.clone(), options.stall_timeout);
    let agent = AgentServiceServer::new(service).max_decoding_message_size(REQUEST_BYTES_MAX);
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<Agent>().await;
    let daemon_health = keep_health(host, health.clone());
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let v1 = reflection().build_v1().map_err(ServeError::Reflection)?;
    let v1alpha = reflection()
        .build_v1alpha()
        .map_err(ServeError::Reflection)?;
    let mut server = Server::builder()
        .concurrency_limit_per_connection(REQUESTS_PER_CONNECTION_MAX)
        .max_concurrent_streams(REQUESTS_PER_CONNECTION_MAX as u32)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .http2_max_header_list_size(HEADER_BYTES_MAX)
        .timeout(REQUEST_TIMEOUT)
        .layer(proto::calls::CountCalls::<listen::Peer>::new());
    if let Some(tls) = tls {
        server = server.tls_config(tls).map_err(ServeError::Transport)?;
    }
    let Bound { incoming, _file } = bound;
    let mut stop = shutdown.clone();
    let serving = server
        // Health is open to everyone who can connect: probes carry no token and learn nothing.
        .add_service(health_service)
        .add_service(InterceptedService::new(agent, gate.clone()))
        .add_service(InterceptedService::new(v1, gate.clone()))
        .add_service(InterceptedService::new(v1alpha, gate))
        .serve_with_incoming_shutdown(incoming, async move {
            // An error means that the sender is gone: whoever could stop us has ended.
            let _ = stop.wait_for(|&stop| stop).await;
        });
    let grace = async {
        let _ = shutdown.wait_for(|&stop| stop).await;
        health.set_not_serving::<Agent>().await;
        tokio::time::sleep(options.grace).await;
    };
    tokio::select! {
        ended = serving => ended.map_err(ServeError::Transport),
        () = daemon_health => Ok(()),
        () = grace => {
            tracing::warn!(grace_s = options.grace.as_secs_f64(), "clients cut off: grace is over");
            Ok(())
        }
    }
}

/// Keeps the health of the complete daemon (the empty name) at what the host says; the health of
/// the service says whether it answers, which a blind daemon still does. Never completes.
async fn keep_health(host: Arc<dyn Host>, health: HealthReporter) {
    let mut told = None;
    loop {
        let status = match host.health() {
            Ok(()) => ServingStatus::Serving,
            Err(_) => ServingStatus::NotServing,
        };
        if told != Some(status) {
            health.set_service_status("", status).await;
            told = Some(status);
        }
        tokio::time::sleep(HEALTH_INTERVAL).await;
    }
}
