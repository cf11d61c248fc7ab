//! Chooses the server: the agent of one host, or the collector of a fleet.

use crate::exit::{self, fail};
use crate::logins::{Login, Logins};
use anyhow::Result;
use clap::ArgMatches;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use profile::fleet::COLLECTOR_PORT;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Where the agent listens by default.
pub const DEFAULT_TARGET: &str = "unix:/run/fleetprof/agent.sock";

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

/// Reads the address of a collector; the port may be left out.
fn collector(text: &str) -> Result<Target, String> {
    let expected = "expected `HOST:PORT` or `HOST`";
    if text.starts_with("unix:") || text.starts_with('/') {
        return Err(format!("{expected}: a collector needs a TCP address"));
    }
    if text.contains("://") {
        return Err(format!("{expected}, without `http://`"));
    }
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    let address = match bare.parse::<Ipv6Addr>() {
        Ok(ip) => format!("[{ip}]:{COLLECTOR_PORT}"),
        Err(_) if text.contains(':') => text.to_owned(),
        Err(_) => format!("{text}:{COLLECTOR_PORT}"),
    };
    address.parse().map_err(|_| expected.to_owned())
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The agent of one host.
    Agent,
    /// The collector of a fleet.
    Collector,
}

/// With `#` it has its article.
impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match (self, f.alternate()) {
            (Kind::Agent, false) => "agent",
            (Kind::Agent, true) => "an agent",
            (Kind::Collector, false) => "collector",
            (Kind::Collector, true) => "a collector",
        })
    }
}

/// Who is asked, and where that is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// What it is.
    pub kind: Kind,
    /// Where it listens.
    pub target: Target,
    /// As whom it is asked, where somebody logged in to it. Two logins may be of one address.
    pub login: Option<Login>,
}

impl Peer {
    /// True when it is a collector.
    pub fn is_collector(&self) -> bool {
        self.kind == Kind::Collector
    }
}

/// Where the address of an agent or a collector comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum AddressSource {
    /// It is the default, or there is none.
    #[default]
    Nowhere,
    Environment,
    CommandLine,
}

impl AddressSource {
    fn of(matches: &ArgMatches, option: &str) -> AddressSource {
        match matches.value_source(option) {
            Some(ValueSource::CommandLine) => AddressSource::CommandLine,
            Some(ValueSource::EnvVariable) => AddressSource::Environment,
            _ => AddressSource::Nowhere,
        }
    }
}

/// How to reach the agent or the collector.
#[derive(Clone, Debug, clap::Args)]
pub struct Connection {
    /// Agent to use: a unix socket or a TCP address
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
    /// Collector to use instead, for the complete fleet: the name of a login, or an address
    /// [default port: 7600]. An option on the command line wins over FLEETPROF_AGENT and
    /// FLEETPROF_COLLECTOR
    #[arg(
        long,
        global = true,
        value_name = "NAME|HOST:PORT",
        env = "FLEETPROF_COLLECTOR",
        hide_env_values = true,
        value_parser = collector,
        help_heading = "Connection"
    )]
    collector: Option<Target>,
    /// How long to wait for an answer
    #[arg(
        long,
        global = true,
        value_name = "DURATION",
        default_value = "30s",
        value_parser = crate::when::duration,
        help_heading = "Connection"
    )]
    pub timeout: Duration,
    /// PEM file with the authority that signed the certificate of the agent or collector; enables
    /// TLS
    #[arg(long, global = true, value_name = "FILE", help_heading = "Connection")]
    pub tls_ca: Option<PathBuf>,
    /// PEM file with a client certificate, if the server requires one
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
    /// File with the token for the agent or collector; with a collector it enables TLS
    #[arg(long, global = true, value_name = "FILE", help_heading = "Connection")]
    pub token_file: Option<PathBuf>,
    #[arg(skip)]
    agent_said: AddressSource,
    #[arg(skip)]
    collector_said: AddressSource,
}

impl Connection {
    /// Notes where the addresses come from.
    ///
    /// # Errors
    /// When the command line has both.
    pub fn note(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.agent_said = AddressSource::of(matches, "agent");
        self.collector_said = AddressSource::of(matches, "collector");
        match (self.agent_said, self.collector_said) {
            (AddressSource::CommandLine, AddressSource::CommandLine) => Err(clap::Error::raw(
                ErrorKind::ArgumentConflict,
                "--agent cannot be used with --collector\n",
            )),
            _ => Ok(()),
        }
    }

    /// The agent, for a command that no collector answers; `instead` says what to use of a fleet. A
    /// collector that only the environment names is not meant here.
    ///
    /// # Errors
    /// When the command line names a collector.
    pub fn agent_only(&self, command: &str, instead: &str) -> Result<Peer> {
        if self.collector_said == AddressSource::CommandLine {
            let message = format!(
                "failed to run {command} with a collector: only an agent supports it\n{instead}"
            );
            return Err(fail(exit::USAGE, message));
        }
        Ok(self.the_agent())
    }

    /// The collector, for a command that no agent answers.
    ///
    /// # Errors
    /// When none is named, or the command line names an agent.
    pub fn collector_only(&self, command: &str) -> Result<Peer> {
        if self.agent_said != AddressSource::CommandLine {
            if let Some(target) = &self.collector {
                return resolved(target);
            }
            if let Some(login) = Logins::read()?.default_login() {
                return of_login(login);
            }
        }
        Err(fail(
            exit::USAGE,
            format!(
                "failed to get {command}: only a collector can answer\nlog in (`agent-ctl login`), \
                 give --collector HOST:PORT, or set FLEETPROF_COLLECTOR"
            ),
        ))
    }

    /// The collector of this machine, for a command that sets it up.
    ///
    /// # Errors
    /// When the command line names an agent, or a collector elsewhere.
    pub fn local_collector(&self, command: &str) -> Result<Peer> {
        let target = match &self.collector {
            Some(target) => target.clone(),
            None => Target::Tcp(format!("127.0.0.1:{COLLECTOR_PORT}")),
        };
        let is_here = matches!(&target, Target::Tcp(address) if is_loopback(address));
        if self.agent_said == AddressSource::CommandLine || !is_here {
            return Err(fail(
                exit::USAGE,
                format!("failed to use {command}: it is for the collector of this machine"),
            ));
        }
        Ok(Peer {
            kind: Kind::Collector,
            target,
            login: None,
        })
    }

    /// The agent or the collector, for a command that both answer.
    ///
    /// # Errors
    /// When the environment names both and the command line none.
    pub fn peer(&self) -> Result<Peer> {
        let kind = choose(self.agent_said, self.collector_said)?;
        if let (Some(target), Kind::Collector) = (&self.collector, kind) {
            return resolved(target);
        }
        // A laptop has no agent: who logged in means the collector.
        let nobody = self.agent_said == AddressSource::Nowhere;
        if nobody
            && is_absent(&self.agent)
            && let Some(login) = Logins::read()?.default_login()
        {
            return of_login(login);
        }
        Ok(self.the_agent())
    }

    fn the_agent(&self) -> Peer {
        Peer {
            kind: Kind::Agent,
            target: self.agent.clone(),
            login: None,
        }
    }
}

/// The collector of a name or an address.
fn resolved(target: &Target) -> Result<Peer> {
    if let Target::Tcp(address) = target
        && let Some(login) = Logins::read()?.named(address)
    {
        return of_login(login);
    }
    Ok(Peer {
        kind: Kind::Collector,
        target: target.clone(),
        login: None,
    })
}

fn of_login(login: &Login) -> Result<Peer> {
    let target = login.address.parse().map_err(|why| {
        let address = &login.address;
        fail(
            exit::CONFIG,
            format!("failed to use address `{address}` of a login: {why}\nlog in again"),
        )
    })?;
    Ok(Peer {
        kind: Kind::Collector,
        target,
        login: Some(login.clone()),
    })
}

/// True for an address of this machine alone.
pub fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || host
            .parse::<std::net::IpAddr>()
            .is_ok_and(|ip| ip.is_loopback())
}

/// True for a socket that is not there.
fn is_absent(target: &Target) -> bool {
    match target {
        Target::Unix(path) => std::fs::symlink_metadata(path)
            .is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound),
        Target::Tcp(_) => false,
    }
}

/// Chooses between agent and collector by where their addresses come from.
fn choose(agent: AddressSource, collector: AddressSource) -> Result<Kind> {
    match (agent, collector) {
        (_, AddressSource::CommandLine) => Ok(Kind::Collector),
        (AddressSource::CommandLine, _) | (_, AddressSource::Nowhere) => Ok(Kind::Agent),
        (AddressSource::Nowhere, AddressSource::Environment) => Ok(Kind::Collector),
        (AddressSource::Environment, AddressSource::Environment) => Err(fail(
            exit::USAGE,
            "failed to choose between agent and collector: FLEETPROF_AGENT and FLEETPROF_COLLECTOR \
             are both set\ngive --agent or --collector",
        )),
    }
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
    fn the_port_of_a_collector_may_be_left_out() {
        for (text, expected) in [
            ("c1", "c1:7600"),
            ("c1:9", "c1:9"),
            ("10.0.0.1", "10.0.0.1:7600"),
            ("::1", "[::1]:7600"),
            ("[::1]", "[::1]:7600"),
            ("[::1]:9", "[::1]:9"),
        ] {
            assert_eq!(collector(text), Ok(Target::Tcp(expected.into())), "{text}");
        }
        for text in [
            "",
            "unix:/a.sock",
            "/a.sock",
            "http://c1:7600",
            "c1:",
            "c1:0",
            "a b",
            "c1/x",
        ] {
            assert!(collector(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_command_line_wins_over_the_environment() {
        use AddressSource::{CommandLine, Environment, Nowhere};
        for (agent, collector, expected) in [
            (Nowhere, Nowhere, Some(Kind::Agent)),
            (Environment, Nowhere, Some(Kind::Agent)),
            (CommandLine, Environment, Some(Kind::Agent)),
            (Nowhere, Environment, Some(Kind::Collector)),
            (Environment, CommandLine, Some(Kind::Collector)),
            (Environment, Environment, None),
        ] {
            let found = choose(agent, collector).ok();
            assert_eq!(found, expected, "{agent:?} {collector:?}");
        }
    }
}
