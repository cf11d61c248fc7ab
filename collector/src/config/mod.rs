//! The collector's configuration: its keys, and the rules between keys. The crate `config` reads
//! and checks the files.

pub mod alert_rule;
pub mod alerts;
mod archive;
mod auth;
mod export;
mod keys;
pub mod measures;
pub mod outside;
mod sections;

pub use alert_rule::Rule;
pub use alerts::{AlertRule, Alerting, Receiver};
pub use archive::Archive;
pub use auth::{Auth, OidcAuth, OidcRule};
pub use config::log::{Log, LogFormat, LogLevel};
pub use config::{ConfigError, Configuration, Conflict, Diff, Key, Place, Value, sample_yaml};
pub use export::{Export, OtlpExport, OtlpProtocol, OtlpTarget};
pub use keys::KEYS;
pub use measures::{Measure, MeasureEntry};
pub use sections::{
    Annotations, AuditLog, Captures, ClickHouse, Control, Engine, Identity, Incidents, Ingest,
    Listen, Login, Outside, Pins, Query, Retention, Sandbox, Senders, Shutdown, Symbols, Web,
    WebProxy, WebTls,
};

use hyper::header::HeaderName;
use hyper::http::uri::Authority;
use outside::HostNames;
use serde::Serialize;
use std::path::PathBuf;

/// Everything the operator may decide. [`KEYS`] has the meaning, unit and range of each field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Config {
    /// Where the embedded store keeps its data.
    pub data_dir: PathBuf,
    /// Which engine stores windows.
    pub store: Engine,
    /// Whether the collector gives up what it does not need.
    pub sandbox: Sandbox,
    /// Labels that name a service, the first that is there.
    pub service_labels: Vec<String>,
    /// Where the collector listens.
    pub listen: Listen,
    /// The page for people of other machines.
    pub web: Web,
    /// Logins without a token.
    pub auth: Auth,
    /// The hosts of the fleet.
    pub identity: Identity,
    /// What was done, and by whom.
    pub audit: AuditLog,
    /// For how long windows are kept.
    pub retention: Retention,
    /// Limits for agents.
    pub ingest: Ingest,
    /// Limits for queries.
    pub query: Query,
    /// Captures over the fleet.
    pub control: Control,
    /// Pins that agents upload.
    pub pins: Pins,
    /// Captures over the fleet that are kept.
    pub captures: Captures,
    /// What happened to the fleet, and when.
    pub annotations: Annotations,
    /// How alerts are evaluated and sent.
    pub alerting: Alerting,
    /// Rules for alerts.
    pub alerts: Vec<AlertRule>,
    /// Who is notified.
    pub receivers: Vec<Receiver>,
    /// What is measured for `/metrics`.
    pub measures: Vec<MeasureEntry>,
    /// Incidents.
    pub incidents: Incidents,
    /// Symbol tables for what agents cannot name.
    pub symbols: Symbols,
    /// Profiles of others than agents.
    pub senders: Senders,
    /// Who gets the profiles of agents.
    pub export: Export,
    /// The bucket that keeps the partitions of the embedded store.
    pub archive: Archive,
    /// The ClickHouse to use with `store: clickhouse`.
    pub clickhouse: ClickHouse,
    /// The collector's own log.
    pub log: Log,
    /// The end of the collector.
    pub shutdown: Shutdown,
}

const HEAD: &str = "\
# Configuration of fleetprof-collector. Every key is here with its default: delete what you do not
# change. The collector needs no file; it reads /etc/fleetprof/collector.yaml when that exists, or
# --config FILE.
#
# Any key can also be given as an environment variable (FLEETPROF_COLLECTOR_QUERY_TIMEOUT_S=60) or
# as a flag (--set query.timeout_s=60). A flag wins over the environment, the environment over the
# file. `fleetprof-collector --check` checks everything; SIGHUP applies it, except for keys that say
# \"at the next start\".
";

impl config::log::HasLog for Config {
    fn log(&self) -> &Log {
        &self.log
    }

    fn log_mut(&mut self) -> &mut Log {
        &mut self.log
    }
}

/// A configuration of the collector and where it came from.
pub type Loaded = config::Loaded<Config>;

impl Configuration for Config {
    const DEFAULT_PATH: &'static str = "/etc/fleetprof/collector.yaml";
    const ENV_PREFIX: &'static str = "FLEETPROF_COLLECTOR_";
    const HEAD: &'static str = HEAD;
    const SECTIONS: &'static [(&'static str, &'static str)] = keys::SECTIONS;
    const KEYS: &'static [Key<Config>] = KEYS;

    fn settle(&mut self) -> Vec<Conflict> {
        let mut found = Vec::new();
        let mut conflict = |key, message: String| found.push(Conflict::new(key, message));
        for (key, address) in [
            ("listen.grpc", self.listen.grpc),
            ("listen.http", self.listen.http),
        ] {
            if !address.ip().is_loopback() {
                let message = format!(
                    "is {address}, which other machines can reach: this port has no \
                     authentication, so it must be on loopback. Use `listen.tls` for hosts and \
                     people on other machines, and `listen.https` for browsers"
                );
                conflict(key, message);
            }
        }
        if let Some(name) = &self.listen.advertise
            && !is_reachable(name)
        {
            let name = config::shown(name);
            let message = format!("is `{name}`: expected HOST or HOST:PORT, with IPv6 in brackets");
            conflict("listen.advertise", message);
        }
        if self.web.tls.cert_file.is_some() != self.web.tls.key_file.is_some() {
            let message = "is only half of the pair: set both `web.tls.cert_file` and `web.tls.key_file`, or \
                 none";
            conflict("web.tls.cert_file", message.to_owned());
        }
        let outside = &self.identity.outside;
        if outside.cert_file.is_some() != outside.key_file.is_some() {
            let message = "is only half of the pair: set both `identity.outside.cert_file` and \
                `identity.outside.key_file`, or none";
            conflict("identity.outside.cert_file", message.to_owned());
        }
        if outside.ca_files.is_empty() != outside.hosts.is_none() {
            let message = "is only half of the pair: set both `identity.outside.ca_files` (who \
                signs) and `identity.outside.hosts` (which names are hosts), or none";
            conflict("identity.outside.hosts", message.to_owned());
        }
        if outside.cert_file.is_some() && outside.hosts.is_none() {
            let message = "is set, but no other authority is configured: set \
                `identity.outside.ca_files` and `identity.outside.hosts` too";
            conflict("identity.outside.cert_file", message.to_owned());
        }
        if let Some(Err(why)) = outside.hosts.as_deref().map(HostNames::parse) {
            let text = outside.hosts.as_deref().unwrap_or_default();
            let message = format!("`{}` {why}", config::shown(text));
            conflict("identity.outside.hosts", message);
        }
        if let Some(url) = &self.web.external_url
            && external(url).is_none()
        {
            let url = config::shown(url);
            let message =
                format!("is `{url}`: expected https://NAME or https://NAME:PORT, without a path");
            conflict("web.external_url", message);
        }
        if let Err(site) = self.web.ancestors() {
            let site = config::shown(&site);
            let message = format!(
                "has `{site}`: expected https://NAME or https://NAME:PORT, without a path, \
                 separated by `,`"
            );
            conflict("web.embed_ancestors", message);
        }
        let proxy = &self.web.proxy;
        match proxy.addresses() {
            Err(text) => {
                let text = config::shown(&text);
                conflict(
                    "web.proxy.from",
                    format!("has `{text}`, which is not an IP address"),
                );
            }
            Ok(from) if from.is_empty() && proxy.user_header.is_some() => {
                let message = "is null, but `web.proxy.user_header` is set: name the addresses of \
                    the proxy, or anybody could send that header";
                conflict("web.proxy.from", message.to_owned());
            }
            Ok(_) => {}
        }
        for (key, header) in [
            ("web.proxy.user_header", &proxy.user_header),
            ("web.proxy.role_header", &proxy.role_header),
            ("web.proxy.scope_header", &proxy.scope_header),
        ] {
            let is_one = |text: &String| HeaderName::from_bytes(text.as_bytes()).is_ok();
            if let Some(text) = header
                && !is_one(text)
            {
                let text = config::shown(text);
                conflict(key, format!("is `{text}`, which is not a header name"));
            }
        }
        for (key, message) in self.settle_oidc() {
            conflict(key, message);
        }
        for (key, message) in self.settle_alerts() {
            conflict(key, message);
        }
        for (key, message) in self.export.otlp.settle() {
            conflict(key, message);
        }
        for message in self.settle_measures() {
            conflict("measures", message);
        }
        let port = self.listen.grpc.port();
        if self.listen.grpc == self.listen.http && port != 0 {
            let message = format!("is {}, the same as `listen.grpc`", self.listen.http);
            conflict("listen.http", message);
        }
        for pair in self.retention.ages().windows(2) {
            let ((finer, finer_days), (key, days)) = (pair[0], pair[1]);
            if days < finer_days {
                let message = format!(
                    "is {days}, less than `{finer}`, which is {finer_days}: data gets coarser as \
                     it gets older. Raise this key, or lower the other; equal values skip a level"
                );
                conflict(key, message);
            }
        }
        for (key, message) in self.archive.settle() {
            conflict(key, message);
        }
        if self.archive.url.is_some() && self.store != Engine::Embedded {
            let message = "is set, but `store` is `clickhouse`, which keeps nothing in it: cold \
                data of ClickHouse is its own matter (docs/operate/clickhouse.md)";
            conflict("archive.url", message.to_owned());
        }
        let clickhouse = &self.clickhouse;
        if clickhouse.urls.is_empty() && self.store == Engine::ClickHouse {
            conflict("clickhouse.urls", "is empty: name a server".to_owned());
        }
        if clickhouse.cert_file.is_some() != clickhouse.key_file.is_some() {
            let message = "is only half of the pair: set both `clickhouse.cert_file` and \
                `clickhouse.key_file`, or none";
            conflict("clickhouse.cert_file", message.to_owned());
        }
        if clickhouse.cold_after_days > 0 && clickhouse.storage_policy.is_none() {
            let message = format!(
                "is {}, but `clickhouse.storage_policy` is null: name a policy with a volume `cold`",
                clickhouse.cold_after_days
            );
            conflict("clickhouse.cold_after_days", message);
        }
        found
    }
}

impl Config {
    /// Problems of `auth.oidc` that concern several values.
    fn settle_oidc(&self) -> Vec<(&'static str, String)> {
        let own = &self.auth.oidc;
        let Some(issuer) = &own.issuer else {
            return Vec::new();
        };
        let mut found = Vec::new();
        let mut conflict = |key, message: &str| found.push((key, message.to_owned()));
        if let Err(why) = provider_url(issuer) {
            let text = format!("is `{}`, which {why}", config::shown(issuer));
            conflict("auth.oidc.issuer", &text);
        }
        if own.client_id.is_none() {
            let text =
                "is null, but `auth.oidc.issuer` is set: register the collector at the provider";
            conflict("auth.oidc.client_id", text);
        }
        if own.client_secret_file.is_none() {
            let text = "is null, but `auth.oidc.issuer` is set: the collector needs the secret to \
                prove that it is the client";
            conflict("auth.oidc.client_secret_file", text);
        }
        if own.rules.is_empty() {
            let text = "is empty, but `auth.oidc.issuer` is set: name the groups that may log in, and \
                 their roles";
            conflict("auth.oidc.rules", text);
        }
        if let Some(rule) = own
            .rules
            .iter()
            .find(|rule| rule.role == "admin" && !rule.scope.is_empty())
        {
            let text = format!(
                "has the role `admin` and a scope for the group `{}`: an admin can give others \
                 full access, so a scope limits nothing. Leave the scope out, or choose another \
                 role",
                config::shown(&rule.group)
            );
            conflict("auth.oidc.rules", &text);
        }
        match self.web.external_url.as_deref().and_then(external) {
            None => {
                let text = "is null, but `auth.oidc.issuer` is set: the provider sends browsers \
                    back to this address";
                conflict("web.external_url", text);
            }
            Some(("http", host)) if !is_loopback(host) => {
                let text = "starts with http://, but `auth.oidc.issuer` is set: browsers keep the \
                    login cookie only for https://";
                conflict("web.external_url", text);
            }
            Some(_) => {}
        }
        let asks = self.web.login == Login::Always || self.web.proxy.user_header.is_some();
        if self.listen.https.is_none() && !asks {
            let text = "is set, but the page needs no login: set `listen.https`, or `web.login: \
                always` if a proxy forwards to `listen.http`";
            conflict("auth.oidc.issuer", text);
        }
        found
    }
}

impl Config {
    /// Problems of `alerts` and `receivers`.
    fn settle_alerts(&self) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        let mut names: Vec<&str> = Vec::new();
        for receiver in &self.receivers {
            let name = config::shown(&receiver.name);
            let mut conflict = |text: &str| {
                found.push((
                    "receivers",
                    format!("has the receiver `{name}`, which {text}"),
                ));
            };
            if !alerts::is_plain_name(&receiver.name) || receiver.name == "none" {
                conflict("needs a name of letters, digits, `_`, `.` and `-`, other than `none`");
            }
            if names.contains(&receiver.name.as_str()) {
                conflict("stands there twice");
            }
            names.push(&receiver.name);
            match (&receiver.url, &receiver.url_file) {
                (Some(url), None) => {
                    if let Err(why) = alerts::receiver_url(&url.0) {
                        conflict(&format!("has a `url` that {why}"));
                    }
                }
                (None, Some(_)) => {}
                _ => conflict("needs either `url` or `url_file`"),
            }
        }
        let mut rules: Vec<&str> = Vec::new();
        for rule in &self.alerts {
            let name = config::shown(&rule.name);
            let mut conflict =
                |text: &str| found.push(("alerts", format!("has the alert `{name}`: {text}")));
            if rules.contains(&rule.name.as_str()) {
                conflict("it stands there twice");
            }
            rules.push(&rule.name);
            if let Err(why) = Rule::parse(rule, &names) {
                conflict(&why);
            }
        }
        found
    }

    /// Problems of `measures`.
    fn settle_measures(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut names: Vec<&str> = Vec::new();
        for measure in &self.measures {
            let name = config::shown(&measure.name);
            if names.contains(&measure.name.as_str()) {
                found.push(format!("has the measure `{name}`: it stands there twice"));
            }
            names.push(&measure.name);
            if let Err(why) = measure.parse() {
                found.push(format!("has the measure `{name}`: {why}"));
            }
        }
        found
    }
}

/// Checks an address of a provider: https, or http on this machine, where tests have theirs.
///
/// # Errors
/// What is wrong with it.
pub fn provider_url(text: &str) -> Result<hyper::Uri, &'static str> {
    let uri: hyper::Uri = text.parse().map_err(|_| "is not an address")?;
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err("is not a complete address: expected https://HOST/PATH");
    };
    if authority.as_str().contains('@') || text.contains('#') {
        return Err("has more than a host and a path");
    }
    match scheme {
        "https" => Ok(uri),
        "http" if is_loopback(authority.as_str()) => Ok(uri),
        _ => Err("does not start with https://"),
    }
}

/// Whether a host, with or without a port, is on this machine.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let address = name.parse::<std::net::IpAddr>();
    name == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// The scheme and the host of an address without a path.
pub fn external(url: &str) -> Option<(&str, &str)> {
    let (scheme, authority) = url.split_once("://")?;
    let known = |c: char| c.is_ascii_alphanumeric() || ".-:[]".contains(c);
    let sound = ["http", "https"].contains(&scheme)
        && !authority.is_empty()
        && authority.chars().all(known);
    sound.then_some((scheme, authority))
}

/// Whether a text is `HOST` or `HOST:PORT`, which is put into a line for a shell.
fn is_reachable(text: &str) -> bool {
    let Ok(authority) = text.parse::<Authority>() else {
        return false;
    };
    let known = |c: char| c.is_ascii_alphanumeric() || ".-:[]".contains(c);
    let port = text.strip_prefix(authority.host()).unwrap_or("?");
    let port = port.strip_prefix(':').map_or(port.is_empty(), |digits| {
        digits.parse::<u16>().is_ok_and(|port| port > 0)
    });
    !authority.host().is_empty() && text.chars().all(known) && !text.starts_with('-') && port
}

/// Effective user id; root if it is unknown, so that checks err on the strict side.
pub fn effective_uid() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let ids = lines.find_map(|line| line.strip_prefix("Uid:"));
    ids.and_then(|ids| ids.split_whitespace().nth(1))
        .and_then(|id| id.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests;
