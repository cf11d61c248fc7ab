//! The connection to one agent: where it is, how to reach it, what its errors mean.
//!
//! Every unary call and every wait for the next part of a query has the deadline of `--timeout`;
//! live streams have none once they run. Text in errors of the agent is cleaned here.

use crate::exit::{self, fail};
use crate::terminal::clean;
use crate::when::Clock;
use anyhow::{Context, Result};
use profile::Profile;
use proto::ProfileAssembler;
use proto::agent::agent_service_client::AgentServiceClient;
use proto::agent::{
    GetConfigRequest, GetConfigResponse, GetLedgerRequest, GetLedgerResponse, GetStatusRequest,
    GetStatusResponse, ListCgroupsRequest, ListCgroupsResponse, QueryProfileRequest,
    ReloadConfigRequest, ReloadConfigResponse, StreamProfilesRequest, StreamProfilesResponse,
};
use std::error::Error;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status, Streaming};

/// Where the agent listens by default.
pub const DEFAULT_TARGET: &str = "unix:/run/fleetprof/agent.sock";

/// Largest token or certificate file read. Unit: bytes. Anything larger is another kind of file.
const SECRET_FILE_BYTES_MAX: u64 = 1 << 20;

/// Time between signs of life asked of the agent, and how long to wait for one: a stream from a
/// machine that is gone ends after twice this, not never.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Where an agent listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A unix socket.
    Unix(PathBuf),
    /// `HOST:PORT`.
    Tcp(String),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Target, String> {
        if let Some(path) = text
            .strip_prefix("unix://")
            .or_else(|| text.strip_prefix("unix:"))
        {
            return if path.is_empty() {
                Err("the socket has no path: expected `unix:/path/to/socket`".into())
            } else {
                Ok(Target::Unix(path.into()))
            };
        }
        if text.starts_with('/') {
            return Ok(Target::Unix(text.into()));
        }
        let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        let port = port.and_then(|(_, port)| port.parse::<u16>().ok());
        if port.is_none_or(|port| port == 0) || text.contains(['/', '@', ' ', '?', '#']) {
            return Err("expected `unix:PATH` or `HOST:PORT`".into());
        }
        Ok(Target::Tcp(text.to_owned()))
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::Unix(path) => write!(f, "unix:{}", path.display()),
            Target::Tcp(address) => f.write_str(address),
        }
    }
}

/// How to reach the agent.
#[derive(Clone, Debug, clap::Args)]
pub struct Connection {
    /// Agent to ask: a unix socket or a TCP address
    #[arg(
        long,
        global = true,
        value_name = "unix:PATH|HOST:PORT",
        env = "FLEETPROF_AGENT",
        hide_env_values = true,
        default_value = DEFAULT_TARGET,
        help_heading = "Connection"
    )]
    pub agent: Target,
    /// Longest wait for an answer
    #[arg(
        long,
        global = true,
        value_name = "DURATION",
        default_value = "30s",
        value_parser = crate::when::duration,
        help_heading = "Connection"
    )]
    pub timeout: Duration,
    /// PEM file with the authority that signed the agent's certificate; turns TLS on
    #[arg(long, global = true, value_name = "FILE", help_heading = "Connection")]
    pub tls_ca: Option<PathBuf>,
    /// PEM file with a client certificate, for agents that ask for one
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        requires = "tls_key",
        help_heading = "Connection"
    )]
    pub tls_cert: Option<PathBuf>,
    /// PEM file with the key of the client certificate
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        requires = "tls_cert",
        help_heading = "Connection"
    )]
    pub tls_key: Option<PathBuf>,
    /// File with the bearer token the agent expects
    #[arg(long, global = true, value_name = "FILE", help_heading = "Connection")]
    pub token_file: Option<PathBuf>,
}

/// Adds the bearer token to every call.
#[derive(Clone)]
struct Token(Option<MetadataValue<Ascii>>);

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

/// An open connection.
#[derive(Clone)]
pub struct Client {
    service: AgentServiceClient<InterceptedService<Channel, Token>>,
    target: Target,
    timeout: Duration,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// With code 5 when nobody listens, 4 when the socket may not be opened, 2 when the options do
    /// not go together.
    pub async fn connect(connection: &Connection) -> Result<Client> {
        let endpoint = endpoint(connection)?;
        let token = Token(
            connection
                .token_file
                .as_deref()
                .map(read_token)
                .transpose()?,
        );
        let target = connection.agent.clone();
        let connecting = tokio::time::timeout(connection.timeout, endpoint.connect());
        let channel = match connecting.await {
            Ok(Ok(channel)) => channel,
            Ok(Err(error)) => return Err(connect_error(&target, &error)),
            Err(_) => return Err(unreachable(&target, "no answer in time")),
        };
        let service = AgentServiceClient::with_interceptor(channel, token);
        Ok(Client {
            service,
            target,
            timeout: connection.timeout,
        })
    }

    /// The clock that relative times count from: the agent's own when it is another machine.
    pub async fn clock(&mut self) -> Result<Clock> {
        match self.target {
            Target::Unix(_) => Ok(Clock::local()),
            Target::Tcp(_) => Ok(Clock::at(self.status().await?.now_unix_ns)),
        }
    }

    /// True when the agent may be on another machine.
    pub fn is_remote(&self) -> bool {
        matches!(self.target, Target::Tcp(_))
    }

    /// `GetStatus`.
    pub async fn status(&mut self) -> Result<GetStatusResponse> {
        let call = self.service.get_status(GetStatusRequest {});
        answer(self.timeout, "get status", &self.target, call).await
    }

    /// `ListCgroups`.
    pub async fn cgroups(&mut self, request: ListCgroupsRequest) -> Result<ListCgroupsResponse> {
        let call = self.service.list_cgroups(request);
        answer(self.timeout, "list cgroups", &self.target, call).await
    }

    /// `GetLedger`.
    pub async fn ledger(&mut self, request: GetLedgerRequest) -> Result<GetLedgerResponse> {
        let call = self.service.get_ledger(request);
        answer(self.timeout, "get ledger", &self.target, call).await
    }

    /// `GetConfig`.
    pub async fn config(&mut self) -> Result<GetConfigResponse> {
        let call = self.service.get_config(GetConfigRequest {});
        answer(self.timeout, "get configuration", &self.target, call).await
    }

    /// `ReloadConfig`.
    pub async fn reload(&mut self) -> Result<ReloadConfigResponse> {
        let call = self.service.reload_config(ReloadConfigRequest {});
        answer(self.timeout, "reload configuration", &self.target, call).await
    }

    /// `QueryProfile`, put together.
    pub async fn query(&mut self, request: QueryProfileRequest) -> Result<Profile> {
        const WHAT: &str = "query profile";
        let call = self.service.query_profile(request);
        let mut stream = answer(self.timeout, WHAT, &self.target, call).await?;
        let mut assembler = ProfileAssembler::new();
        loop {
            let part = within(self.timeout, WHAT, stream.message()).await?;
            let Some(response) = part.map_err(|status| rpc_error(WHAT, &self.target, &status))?
            else {
                break;
            };
            assembler.push(response.chunk.unwrap_or_default())?;
        }
        Ok(assembler.finish()?)
    }

    /// `StreamProfiles`.
    pub async fn stream(&mut self, request: StreamProfilesRequest) -> Result<ProfileStream> {
        const WHAT: &str = "stream profiles";
        let call = self.service.stream_profiles(request);
        let stream = answer(self.timeout, WHAT, &self.target, call).await?;
        Ok(ProfileStream {
            stream,
            target: self.target.clone(),
        })
    }
}

/// Profiles as they come.
pub struct ProfileStream {
    stream: Streaming<StreamProfilesResponse>,
    target: Target,
}

impl ProfileStream {
    /// The next profile and how many were missed before it; `None` when the agent ends the stream.
    ///
    /// Waits as long as it takes. Not cancel-safe between the chunks of one profile.
    pub async fn next(&mut self) -> Result<Option<(Profile, u32)>> {
        let mut assembler = ProfileAssembler::new();
        let mut missed = 0u32;
        while !assembler.is_complete() {
            let message = self.stream.message().await;
            match message.map_err(|status| rpc_error("stream profiles", &self.target, &status))? {
                Some(response) => {
                    missed = missed.saturating_add(response.missed);
                    assembler.push(response.chunk.unwrap_or_default())?;
                }
                None => return Ok(None),
            }
        }
        Ok(Some((assembler.finish()?, missed)))
    }
}

async fn answer<T>(
    timeout: Duration,
    what: &str,
    target: &Target,
    call: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T> {
    match within(timeout, what, call).await? {
        Ok(response) => Ok(response.into_inner()),
        Err(status) => Err(rpc_error(what, target, &status)),
    }
}

async fn within<T>(timeout: Duration, what: &str, call: impl Future<Output = T>) -> Result<T> {
    tokio::time::timeout(timeout, call).await.map_err(|_| {
        let limit = crate::units::duration(timeout);
        fail(
            exit::UNREACHABLE,
            format!("failed to {what}: no answer within {limit} (--timeout)"),
        )
    })
}

fn endpoint(connection: &Connection) -> Result<Endpoint> {
    let tls = connection.tls_ca.is_some() || connection.tls_cert.is_some();
    let endpoint = match &connection.agent {
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
                    "failed to use token: it would cross the network in clear text\n\
                     give --tls-ca with the authority of the agent's certificate",
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

fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || host
            .parse::<std::net::IpAddr>()
            .is_ok_and(|ip| ip.is_loopback())
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

fn read_token(path: &Path) -> Result<MetadataValue<Ascii>> {
    let text = read_secret(path)?;
    let unfit = || {
        fail(
            exit::USAGE,
            format!("failed to use token of `{}`", path.display()),
        )
    };
    if text.trim().is_empty() {
        return Err(unfit());
    }
    let mut token: MetadataValue<Ascii> = format!("Bearer {}", text.trim())
        .parse()
        .map_err(|_| unfit())?;
    token.set_sensitive(true);
    Ok(token)
}

fn unreachable(target: &Target, why: &str) -> anyhow::Error {
    let mut message = format!("failed to reach agent at `{target}`: {why}");
    if let Target::Unix(_) = target {
        message.push_str(
            "\nstart it (`systemctl start fleetprofd`) or say with --agent where it listens; \
             `agent-ctl doctor` tells more",
        );
    }
    fail(exit::UNREACHABLE, message)
}

/// What an error of connecting means for somebody who does not know sockets.
fn meaning(target: &Target, error: &std::io::Error) -> Option<&'static str> {
    match (target, error.kind()) {
        (Target::Unix(_), ErrorKind::NotFound) => {
            Some("there is no such socket: the agent does not run, or listens elsewhere")
        }
        (Target::Unix(_), ErrorKind::ConnectionRefused) => {
            Some("nobody listens on this socket: the agent that made it has ended")
        }
        _ => None,
    }
}

fn connect_error(target: &Target, error: &tonic::transport::Error) -> anyhow::Error {
    let mut cause: Option<&dyn Error> = Some(error);
    let mut last = error.to_string();
    while let Some(error) = cause {
        last = error.to_string();
        let io = error.downcast_ref::<std::io::Error>();
        if io.is_some_and(|io| io.kind() == ErrorKind::PermissionDenied) {
            return fail(
                exit::PERMISSION,
                format!(
                    "failed to open agent socket `{target}`: permission denied\n\
                     run as root, or join the group of the socket (server.socket_group)"
                ),
            );
        }
        if let Some(why) = io.and_then(|io| meaning(target, io)) {
            return unreachable(target, why);
        }
        cause = error.source();
    }
    unreachable(target, &clean(&last))
}

/// What a refused call means for the person who made it.
fn rpc_error(what: &str, target: &Target, status: &Status) -> anyhow::Error {
    let message = clean(status.message());
    let code = match status.code() {
        Code::Unavailable | Code::DeadlineExceeded => exit::UNREACHABLE,
        Code::PermissionDenied | Code::Unauthenticated => exit::PERMISSION,
        Code::InvalidArgument | Code::OutOfRange => exit::USAGE,
        Code::FailedPrecondition => exit::CONFIG,
        _ => exit::FAILURE,
    };
    let hint = match status.code() {
        Code::Unauthenticated => "\ngive the agent's token with --token-file",
        Code::Unimplemented => "\nis it an agent of this version? `agent-ctl status` shows it",
        _ => "",
    };
    let why = match status.code() {
        Code::Unavailable if target_gone(status) => "the agent went away".into(),
        _ if message.is_empty() => format!("{:?}", status.code()).into(),
        _ => message,
    };
    fail(code, format!("failed to {what} at `{target}`: {why}{hint}"))
}

/// The connection broke, as opposed to an agent that says that it is unavailable.
fn target_gone(status: &Status) -> bool {
    status.source().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_told_apart() {
        let unix = |path: &str| Ok(Target::Unix(path.into()));
        assert_eq!("unix:/a b.sock".parse(), unix("/a b.sock"));
        assert_eq!("unix:///a.sock".parse(), unix("/a.sock"));
        assert_eq!("unix:a.sock".parse(), unix("a.sock"));
        assert_eq!("/a.sock".parse(), unix("/a.sock"));
        for address in ["host:4000", "10.0.0.1:1", "[::1]:4000"] {
            assert_eq!(address.parse(), Ok(Target::Tcp(address.into())));
        }
        for text in [
            "",
            "host",
            ":1",
            "host:0",
            "host:99999",
            "a/b:1",
            "unix:",
            "x@y:1",
        ] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }

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
