//! Opens a connection and explains its errors, with the same rules for agents and collectors: TLS,
//! token, deadlines.
//!
//! `--timeout` is the deadline of every unary call and of every wait for the next part of a query;
//! live streams have none once they run. Text in errors from the other side is cleaned here.

use crate::exit::{self, fail};
use crate::logins::Login;
use crate::peer::{Connection, Kind, Peer, Target, is_loopback};
use crate::terminal::{clean, clean_lines};
use anyhow::{Context, Result};
use profile::fleet::COLLECTOR_TLS_PORT;
use proto::agent::GetStatusRequest;
use proto::agent::agent_service_client::AgentServiceClient;
use proto::collector::StatusRequest;
use proto::collector::query_service_client::QueryServiceClient;
use proto::credential::Credential;
use proto::pin::Pinned;
use proto::{COLLECTOR_NAME, TlsProblem};
use std::error::Error;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};

/// Largest token or certificate file read. Unit: bytes. Anything larger is another kind of file.
const SECRET_FILE_BYTES_MAX: u64 = 1 << 20;

/// Time between signs of life asked of the other side, and how long to wait for one: a stream from
/// a machine that is gone ends after twice this, not never.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Metadata of a refusal that does not last: seconds until it is worth trying again.
const RETRY_AFTER: &str = "retry-after";

/// Adds the bearer token to every call.
#[derive(Clone)]
pub struct Token(Option<MetadataValue<Ascii>>);

impl Interceptor for Token {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request
                .metadata_mut()
                .insert("authorization", token.clone());
        }
        Ok(request)
    }
}

/// What calls go over.
pub type Transport = InterceptedService<Channel, Token>;

/// Where calls go to and how long they may take.
#[derive(Clone)]
pub struct Route {
    /// Who is asked.
    pub peer: Peer,
    timeout: Duration,
    transport: Transport,
}

/// Connects.
///
/// # Errors
/// With code 5 when nobody listens, 4 when the socket may not be opened, 2 when the options do not
/// go together.
pub async fn open(connection: &Connection, peer: &Peer) -> Result<(Transport, Route)> {
    let has_own = connection.token_file.is_some()
        || connection.tls_ca.is_some()
        || connection.tls_cert.is_some();
    let login = peer.login.as_ref().filter(|_| !has_own);
    open_as(connection, peer, login).await
}

/// The same, as who has this login.
///
/// # Errors
/// See [`open`].
pub async fn open_as(
    connection: &Connection,
    peer: &Peer,
    login: Option<&Login>,
) -> Result<(Transport, Route)> {
    let token = match (login, &connection.token_file) {
        (Some(login), _) => Some(login.token.clone()),
        (None, Some(file)) => Some(read_token(file)?),
        (None, None) => None,
    };
    // The token of a collector says whom to show it to.
    let pin = token
        .as_ref()
        .filter(|_| peer.is_collector() && connection.tls_ca.is_none())
        .and_then(|token| Credential::parse_token(token).ok());
    let endpoint = endpoint(connection, peer, pin.as_ref())?;
    let token = token.map(|token| bearer(&token)).transpose()?;
    let token = Token(token);
    let connecting = tokio::time::timeout(connection.timeout, endpoint.connect());
    let channel = match connecting.await {
        Ok(Ok(channel)) => channel,
        Ok(Err(error)) => return Err(connect_error(peer, &error)),
        Err(_) => return Err(unreachable(peer, "no answer in time")),
    };
    let transport = InterceptedService::new(channel, token);
    let route = Route {
        peer: peer.clone(),
        timeout: connection.timeout,
        transport: transport.clone(),
    };
    Ok((transport, route))
}

impl Route {
    /// Waits for the answer of a call; `what` says in errors what was to be done.
    ///
    /// # Errors
    /// When it does not come in time, or is a refusal.
    pub async fn answer<T>(
        &self,
        what: &str,
        call: impl Future<Output = Result<tonic::Response<T>, Status>>,
    ) -> Result<T> {
        match self.within(what, call).await? {
            Ok(response) => Ok(response.into_inner()),
            Err(status) if status.code() == Code::Unimplemented => {
                let mistaken = self.mistaken(what).await;
                Err(mistaken.unwrap_or_else(|| self.refused(what, &status)))
            }
            Err(status) => Err(self.refused(what, &status)),
        }
    }

    /// The error where an agent is taken for a collector or the other way round: whoever knows none
    /// of the calls of the one is asked as the other.
    async fn mistaken(&self, what: &str) -> Option<anyhow::Error> {
        let Peer { kind, target, .. } = &self.peer;
        let (is_other, other) = match kind {
            Kind::Agent => {
                let mut service = QueryServiceClient::new(self.transport.clone());
                let call = service.status(StatusRequest {});
                let answer = tokio::time::timeout(self.timeout, call).await;
                (answer.is_ok_and(|answer| answer.is_ok()), Kind::Collector)
            }
            Kind::Collector => {
                let mut service = AgentServiceClient::new(self.transport.clone());
                let call = service.get_status(GetStatusRequest {});
                let answer = tokio::time::timeout(self.timeout, call).await;
                (answer.is_ok_and(|answer| answer.is_ok()), Kind::Agent)
            }
        };
        let message =
            format!("failed to {what} at `{target}`: this is {other:#}\nuse --{other} {target}");
        is_other.then(|| fail(exit::USAGE, message))
    }

    /// Waits for the next message of a stream; `None` when it ends.
    ///
    /// # Errors
    /// As [`Route::answer`].
    pub async fn part<T>(
        &self,
        what: &str,
        call: impl Future<Output = Result<Option<T>, Status>>,
    ) -> Result<Option<T>> {
        let part = self.within(what, call).await?;
        part.map_err(|status| self.refused(what, &status))
    }

    /// Waits for a call no longer than the time limit.
    ///
    /// # Errors
    /// When it takes longer.
    pub async fn within<T>(&self, what: &str, call: impl Future<Output = T>) -> Result<T> {
        tokio::time::timeout(self.timeout, call).await.map_err(|_| {
            let limit = crate::units::duration(self.timeout);
            fail(
                exit::UNREACHABLE,
                format!("failed to {what}: no answer within {limit} (--timeout)"),
            )
        })
    }

    /// Explains a rejected call to the user.
    pub fn refused(&self, what: &str, status: &Status) -> anyhow::Error {
        let Peer { kind, target, .. } = &self.peer;
        // A second line says what to do.
        let message = clean_lines(status.message());
        let fleet = *kind == Kind::Collector;
        let code = match status.code() {
            // A collector that says so is there: the question was too large, or its answer.
            Code::DeadlineExceeded | Code::OutOfRange if fleet => exit::FAILURE,
            Code::Unavailable | Code::DeadlineExceeded => exit::UNREACHABLE,
            Code::Unknown | Code::Internal if is_gone(status) => exit::UNREACHABLE,
            Code::PermissionDenied | Code::Unauthenticated => exit::PERMISSION,
            // What was asked for is not known there, or not possible.
            Code::InvalidArgument
            | Code::OutOfRange
            | Code::NotFound
            | Code::FailedPrecondition => exit::USAGE,
            _ => exit::FAILURE,
        };
        let busy = status.metadata().get(RETRY_AFTER);
        let busy = busy.and_then(|seconds| seconds.to_str().ok()?.parse::<u32>().ok());
        let hint = match status.code() {
            // The question is none of its troubles.
            Code::ResourceExhausted if let Some(seconds) = busy => {
                format!("try again in {seconds} s")
            }
            Code::Unauthenticated if fleet => {
                "log in with `agent-ctl login COLLECTOR -`, or use --token-file; an administrator \
                 makes the token with `agent-ctl users add`"
                    .to_owned()
            }
            Code::Unauthenticated => format!("give the {kind}'s token with --token-file"),
            Code::Unimplemented => format!(
                "check the address and version: the server there is not a {kind}, or has another \
                 version than this agent-ctl ({})",
                env!("CARGO_PKG_VERSION")
            ),
            Code::ResourceExhausted | Code::DeadlineExceeded | Code::OutOfRange if fleet => {
                "if the query is too large, narrow it: a shorter time (--since), fewer hosts \
                 (--host), or fewer samples (--unit, --selector)"
                    .to_owned()
            }
            _ => String::new(),
        };
        let why = match status.code() {
            Code::Unavailable | Code::Unknown | Code::Internal if is_gone(status) => {
                format!("the {kind} closed the connection")
            }
            _ if message.is_empty() => format!("{:?}", status.code()),
            _ => message,
        };
        let mut message = format!("failed to {what} at `{target}`: {why}");
        if !hint.is_empty() {
            message = format!("{message}\n{}{hint}", exit::REMEDY);
        }
        // What the other side says below its first line need not be a remedy.
        exit::error(code, message)
    }
}

fn endpoint(connection: &Connection, peer: &Peer, pin: Option<&Credential>) -> Result<Endpoint> {
    let tls = connection.tls_ca.is_some() || connection.tls_cert.is_some() || pin.is_some();
    let endpoint = match &peer.target {
        Target::Unix(path) => {
            if tls {
                return Err(fail(
                    exit::USAGE,
                    "failed to use TLS: the agent is a unix socket",
                ));
            }
            let path = path.to_str().ok_or_else(|| {
                fail(
                    exit::USAGE,
                    "failed to use socket path: it is not valid UTF-8",
                )
            })?;
            Endpoint::from_shared(format!("unix:{path}"))?
        }
        Target::Tcp(address) => {
            if connection.token_file.is_some() && !tls && !is_loopback(address) {
                return Err(fail(
                    exit::USAGE,
                    format!(
                        "failed to use the token: it would cross the network in clear text\n\
                         give --tls-ca with the authority of the {}'s certificate",
                        peer.kind
                    ),
                ));
            }
            let scheme = if tls { "https" } else { "http" };
            Endpoint::from_shared(format!("{scheme}://{address}"))
                .map_err(|_| fail(exit::USAGE, format!("failed to use address `{address}`")))?
        }
    };
    let endpoint = endpoint
        .connect_timeout(connection.timeout)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE);
    if !tls {
        return Ok(endpoint);
    }
    let mut config = ClientTlsConfig::new();
    if let Some(pin) = pin {
        let verifier = Arc::new(Pinned::new(pin.authority));
        return endpoint
            .tls_config_with_verifier(config.domain_name(COLLECTOR_NAME), verifier)
            .context("failed to use TLS");
    }
    if let Some(path) = &connection.tls_ca {
        config = config.ca_certificate(Certificate::from_pem(read_secret(path)?));
    }
    if let (Some(certificate), Some(key)) = (&connection.tls_cert, &connection.tls_key) {
        let identity = Identity::from_pem(read_secret(certificate)?, read_secret(key)?);
        config = config.identity(identity);
    }
    endpoint
        .tls_config(config)
        .context("failed to use TLS files")
}

fn read_secret(path: &Path) -> Result<String> {
    use std::io::Read;
    let failed = || format!("failed to read `{}`", path.display());
    let file = std::fs::File::open(path).with_context(failed)?;
    let mut text = String::new();
    file.take(SECRET_FILE_BYTES_MAX)
        .read_to_string(&mut text)
        .with_context(failed)?;
    Ok(text)
}

fn read_token(path: &Path) -> Result<String> {
    let text = read_secret(path)?;
    let token = text.trim();
    if token.is_empty() || bearer(token).is_err() {
        return Err(fail(
            exit::USAGE,
            format!("failed to use token of `{}`", path.display()),
        ));
    }
    Ok(token.to_owned())
}

fn bearer(token: &str) -> Result<MetadataValue<Ascii>> {
    let value = format!("Bearer {token}").parse();
    let mut value: MetadataValue<Ascii> = value.map_err(|_| {
        fail(
            exit::USAGE,
            "failed to use the token: it has invalid characters",
        )
    })?;
    value.set_sensitive(true);
    Ok(value)
}

fn unreachable(peer: &Peer, why: &str) -> anyhow::Error {
    let Peer { kind, target, .. } = peer;
    let mut message = format!("failed to reach {kind} at `{target}`: {why}");
    match (kind, target) {
        (Kind::Agent, Target::Unix(_)) => message.push_str(
            "\nstart it (`systemctl start fleetprofd`) or give its address with --agent; \
             `agent-ctl doctor` tells more",
        ),
        (Kind::Collector, _) => message.push_str(
            "\nstart it (`systemctl start fleetprof-collector`) or give its address with \
             --collector",
        ),
        (Kind::Agent, Target::Tcp(_)) => {}
    }
    fail(exit::UNREACHABLE, message)
}

/// Explains a connection error to a user who does not know sockets.
fn meaning(target: &Target, error: &std::io::Error) -> Option<&'static str> {
    match (target, error.kind()) {
        (Target::Unix(_), ErrorKind::NotFound) => {
            Some("the socket does not exist: the agent is not running, or listens elsewhere")
        }
        (Target::Unix(_), ErrorKind::ConnectionRefused) => {
            Some("nothing listens on the socket: the agent has ended")
        }
        _ => None,
    }
}

fn connect_error(peer: &Peer, error: &tonic::transport::Error) -> anyhow::Error {
    let target = &peer.target;
    let mut cause: Option<&dyn Error> = Some(error);
    let mut last = error.to_string();
    while let Some(error) = cause {
        last = error.to_string();
        let io = error.downcast_ref::<std::io::Error>();
        let denied = io.is_some_and(|io| io.kind() == ErrorKind::PermissionDenied);
        if denied && matches!(target, Target::Unix(_)) {
            return fail(
                exit::PERMISSION,
                format!(
                    "failed to open agent socket `{target}`: permission denied\n\
                     run as root, or join the group of the socket (server.socket_group)"
                ),
            );
        }
        if let Some(why) = io.and_then(|io| meaning(target, io)) {
            return unreachable(peer, why);
        }
        cause = error.source();
    }
    let what = match TlsProblem::of(error) {
        Some(TlsProblem::OtherAuthority) if peer.is_collector() => {
            return unreachable(
                peer,
                "the server there is not the collector that the token is for",
            );
        }
        Some(TlsProblem::NoTls) => "what listens there does not speak TLS",
        Some(TlsProblem::NoHttp2) => "that is a port for browsers",
        _ => return unreachable(peer, &clean(&last)),
    };
    let remedy = match peer.is_collector() {
        true => format!(
            "\nuse the port of the collector's `listen.tls`, which is {COLLECTOR_TLS_PORT} by default"
        ),
        false => String::new(),
    };
    let kind = peer.kind;
    fail(
        exit::UNREACHABLE,
        format!("failed to reach {kind} at `{target}`: {what}{remedy}"),
    )
}

/// The connection broke, as opposed to somebody who says that they are unavailable.
fn is_gone(status: &Status) -> bool {
    status.source().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_is_loopback() {
        for (address, expected) in [
            ("127.0.0.1:1", true),
            ("[::1]:1", true),
            ("localhost:1", true),
            ("10.0.0.1:1", false),
            ("localhost.example:1", false),
        ] {
            assert_eq!(is_loopback(address), expected, "{address}");
        }
    }
}
