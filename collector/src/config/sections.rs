//! The sections of the configuration as types, with their defaults.
//!
//! Meaning, unit and range of each field stand in [`KEYS`](super::KEYS).

use super::{Alerting, Archive, Auth, Config, Export, Log, external};
use profile::fleet::COLLECTOR_PORT;
use serde::{Serialize, Serializer};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Which engine stores windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// Files in `data_dir`.
    Embedded,
    /// A ClickHouse server.
    #[serde(rename = "clickhouse")]
    ClickHouse,
}

/// Whether the collector gives up what it does not need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sandbox {
    /// As far as the kernel has it.
    Auto,
    /// No sandbox.
    Off,
}

/// Section `listen`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Listen {
    /// For agents and commands.
    pub grpc: SocketAddr,
    /// For browsers and scrapers.
    pub http: SocketAddr,
    /// For agents of other hosts, with TLS.
    pub tls: Option<SocketAddr>,
    /// For browsers of other machines, with TLS.
    pub https: Option<SocketAddr>,
    /// Public name for `tls`, if it is not the machine's own name.
    pub advertise: Option<String>,
}

impl Listen {
    /// The address for others to connect to, `HOST:PORT`: that of `advertise`, or else `tls`, the
    /// listening address.
    pub fn advertised(&self, tls: SocketAddr) -> String {
        match &self.advertise {
            Some(name) if has_port(name) => name.clone(),
            Some(name) => format!("{name}:{}", tls.port()),
            None => tls.to_string(),
        }
    }
}

/// Whether a name or an address has a port behind it. IPv6 stands in brackets.
fn has_port(name: &str) -> bool {
    name.rsplit_once(':')
        .is_some_and(|(_, port)| !port.contains(']'))
}

/// Section `web`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Web {
    /// URL of the page for browsers.
    pub external_url: Option<String>,
    /// Whether `listen.http` asks who it is.
    pub login: Login,
    /// Sites that may show a panel in a frame.
    pub embed_ancestors: Option<String>,
    /// Section `web.tls`.
    pub tls: WebTls,
    /// Section `web.proxy`.
    pub proxy: WebProxy,
    /// Whether Pyroscope's API is answered.
    pub pyroscope: bool,
}

impl Web {
    /// Sites that may show a panel in a frame; an error has what is none.
    ///
    /// # Errors
    /// What is no site.
    pub fn ancestors(&self) -> Result<Vec<&str>, String> {
        let sites = self.embed_ancestors.iter().flat_map(|all| all.split(','));
        let checked = sites.map(|site| external(site).map(|_| site).ok_or_else(|| site.to_owned()));
        checked.collect()
    }
}

/// Where the page asks for a login.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Login {
    /// On `listen.https`.
    Auto,
    /// On `listen.http` too.
    Always,
}

/// Section `web.tls`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WebTls {
    /// The chain. PEM.
    pub cert_file: Option<PathBuf>,
    /// Its key. PEM.
    pub key_file: Option<PathBuf>,
}

/// Section `web.proxy`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WebProxy {
    /// Where it connects from.
    pub from: Option<String>,
    /// Header with the user's name.
    pub user_header: Option<String>,
    /// Header with the user's role.
    pub role_header: Option<String>,
    /// Has their scope.
    pub scope_header: Option<String>,
    /// Their role where it has none.
    pub role: String,
}

impl WebProxy {
    /// The addresses; an error has what is none.
    ///
    /// # Errors
    /// What is no address.
    pub fn addresses(&self) -> Result<Vec<IpAddr>, String> {
        let texts = self.from.iter().flat_map(|from| from.split(','));
        let parsed = texts.map(|text| {
            let address: Result<IpAddr, _> = text.parse();
            address.map_err(|_| text.to_owned())
        });
        parsed.collect()
    }
}

/// A day: what keys of certificates are in.
pub(super) const DAY: Duration = Duration::from_secs(86_400);

/// Section `identity`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Identity {
    /// How long the certificate of a host lasts. The key is in days.
    #[serde(rename = "host_days", serialize_with = "in_days")]
    pub host_lasts: Duration,
    /// Section `identity.outside`.
    pub outside: Outside,
}

fn in_days<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(time.as_secs() / DAY.as_secs())
}

/// Section `identity.outside`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Outside {
    /// Authorities that also sign certificates of hosts. PEM.
    pub ca_files: Vec<PathBuf>,
    /// Which names in them are hosts.
    pub hosts: Option<String>,
    /// Certificate for clients that ask for another name. PEM.
    pub cert_file: Option<PathBuf>,
    /// Its key. PEM.
    pub key_file: Option<PathBuf>,
}

/// Section `audit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct AuditLog {
    /// All of it on disk, MiB.
    pub disk_mib: u32,
    /// Whether reads are on record.
    pub queries: bool,
}

impl AuditLog {
    /// All of it on disk. Unit: bytes.
    pub fn disk_bytes(&self) -> u64 {
        u64::from(self.disk_mib) << 20
    }
}

/// Section `retention`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Retention {
    /// As windows came, days.
    pub raw_days: u32,
    /// In minutes, days.
    pub minute_days: u32,
    /// In ten minutes, days.
    pub ten_minutes_days: u32,
    /// By service in hours, days.
    pub service_hours_days: u32,
    /// Everything together, GiB.
    pub disk_gib: u32,
}

/// Section `ingest`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ingest {
    /// Streams of agents at a time.
    pub streams_max: u32,
    /// Memory for all of them, MiB.
    pub memory_mib: u32,
}

/// Section `query`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Query {
    /// Queries at a time.
    pub concurrent: u32,
    /// Time for one, seconds.
    pub timeout_s: u32,
    /// Memory for one, MiB.
    pub memory_mib: u32,
    /// Most stacks of a profile.
    pub nodes_max: u32,
}

/// Section `control`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Control {
    /// Where other collectors on the same store reach this one.
    pub advertise: Option<SocketAddr>,
}

/// Section `pins`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Pins {
    /// Age up to which they are kept, days.
    pub retention_days: u32,
    /// All of them on disk, MiB.
    pub disk_mib: u32,
    /// Limit per host. Unit: MiB.
    pub host_mib: u32,
}

/// Section `captures`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Captures {
    /// Age up to which they are kept, days.
    pub retention_days: u32,
    /// All of them on disk, MiB.
    pub disk_mib: u32,
    /// Most captures.
    pub count_max: u32,
}

/// Section `annotations`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Annotations {
    /// Age up to which they are kept, days.
    pub retention_days: u32,
    /// Whether deploys are found.
    pub find_deploys: bool,
}

/// Section `incidents`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Incidents {
    /// All evidence on disk, MiB.
    pub disk_mib: u32,
    /// Evidence of one incident, MiB.
    pub incident_mib: u32,
    /// Most incidents.
    pub count_max: u32,
    /// Whether pins open one.
    pub open_for_pins: bool,
}

/// Section `symbols`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Symbols {
    /// All symbol tables on disk, MiB.
    pub disk_mib: u32,
    /// Servers that are asked for debug files.
    pub debuginfod: Vec<String>,
}

/// Section `senders`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Senders {
    /// Whether profiles of others than agents are taken.
    pub enabled: bool,
    /// Days for which they are kept.
    pub retention_days: u32,
    /// All of them on disk, GiB.
    pub disk_gib: u32,
    /// One request, unpacked, MiB.
    pub request_mib: u32,
    /// What one sender may send in a minute, unpacked, MiB.
    pub sender_mib_per_minute: u32,
    /// Series of one sender in an hour.
    pub sender_series_max: u32,
}

impl Senders {
    /// All of them on disk. Unit: bytes.
    pub fn disk_bytes(&self) -> u64 {
        u64::from(self.disk_gib) << 30
    }
}

/// Section `clickhouse`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClickHouse {
    /// HTTP interfaces of servers, in the order in which they are tried.
    pub urls: Vec<String>,
    /// Cluster over which the tables are spread.
    pub cluster: Option<String>,
    /// The database.
    pub database: String,
    /// The user.
    pub user: String,
    /// File with the user's password.
    pub password_file: Option<PathBuf>,
    /// File with authorities that sign the servers' certificates.
    pub ca_file: Option<PathBuf>,
    /// File with the collector's certificate.
    pub cert_file: Option<PathBuf>,
    /// File with its key.
    pub key_file: Option<PathBuf>,
    /// Replicas that have an insert when it is acknowledged.
    pub insert_quorum: u32,
    /// Storage policy of the tables.
    pub storage_policy: Option<String>,
    /// Age at which data moves to the volume `cold`, days; 0: never.
    pub cold_after_days: u32,
}

/// Section `shutdown`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shutdown {
    /// Time to drain after SIGTERM, seconds.
    pub grace_s: u32,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            data_dir: PathBuf::from("/var/lib/fleetprof/collector"),
            store: Engine::Embedded,
            sandbox: Sandbox::Auto,
            service_labels: ["service", "unit", "container", "comm"]
                .map(str::to_owned)
                .to_vec(),
            listen: Listen {
                grpc: ([127, 0, 0, 1], COLLECTOR_PORT).into(),
                http: ([127, 0, 0, 1], 7610).into(),
                tls: None,
                https: None,
                advertise: None,
            },
            web: Web {
                external_url: None,
                login: Login::Auto,
                embed_ancestors: None,
                tls: WebTls::default(),
                proxy: WebProxy {
                    from: None,
                    user_header: None,
                    role_header: None,
                    scope_header: None,
                    role: "viewer".to_owned(),
                },
                pyroscope: true,
            },
            auth: Auth::default(),
            identity: Identity {
                host_lasts: 30 * DAY,
                outside: Outside::default(),
            },
            audit: AuditLog {
                disk_mib: 256,
                queries: false,
            },
            retention: Retention {
                raw_days: 2,
                minute_days: 14,
                ten_minutes_days: 90,
                service_hours_days: 365,
                disk_gib: 32,
            },
            ingest: Ingest {
                streams_max: 4096,
                memory_mib: 1024,
            },
            query: Query {
                concurrent: 4,
                timeout_s: 30,
                memory_mib: 512,
                nodes_max: 200_000,
            },
            control: Control { advertise: None },
            pins: Pins {
                retention_days: 365,
                disk_mib: 4096,
                host_mib: 128,
            },
            captures: Captures {
                retention_days: 365,
                disk_mib: 4096,
                count_max: 1000,
            },
            annotations: Annotations {
                retention_days: 365,
                find_deploys: true,
            },
            alerting: Alerting {
                interval_s: 30,
                wait_s: 10,
                retention_days: 90,
            },
            alerts: Vec::new(),
            receivers: Vec::new(),
            measures: Vec::new(),
            incidents: Incidents {
                disk_mib: 4096,
                incident_mib: 512,
                count_max: 1000,
                open_for_pins: false,
            },
            symbols: Symbols {
                disk_mib: 2048,
                debuginfod: Vec::new(),
            },
            senders: Senders {
                enabled: false,
                retention_days: 7,
                disk_gib: 5,
                request_mib: 64,
                sender_mib_per_minute: 600,
                sender_series_max: 5000,
            },
            export: Export::default(),
            archive: Archive::default(),
            clickhouse: ClickHouse {
                urls: vec!["http://127.0.0.1:8123".to_owned()],
                cluster: None,
                database: "fleetprof".to_owned(),
                user: "default".to_owned(),
                password_file: None,
                ca_file: None,
                cert_file: None,
                key_file: None,
                insert_quorum: 0,
                storage_policy: None,
                cold_after_days: 0,
            },
            log: Log::default(),
            shutdown: Shutdown { grace_s: 10 },
        }
    }
}

const MIB: usize = 1 << 20;

impl Ingest {
    /// Memory for streams. Unit: bytes.
    pub fn memory_bytes(&self) -> usize {
        self.memory_mib as usize * MIB
    }
}

impl Query {
    /// Memory for one query. Unit: bytes.
    pub fn memory_bytes(&self) -> usize {
        self.memory_mib as usize * MIB
    }

    /// Time for one query.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_s.into())
    }
}

impl Retention {
    /// The ages in their order, each with its key.
    pub fn ages(&self) -> [(&'static str, u32); 4] {
        [
            ("retention.raw_days", self.raw_days),
            ("retention.minute_days", self.minute_days),
            ("retention.ten_minutes_days", self.ten_minutes_days),
            ("retention.service_hours_days", self.service_hours_days),
        ]
    }

    /// Bound of everything on disk. Unit: bytes.
    pub fn disk_bytes(&self) -> u64 {
        u64::from(self.disk_gib) << 30
    }
}

impl Pins {
    /// All of them on disk. Unit: bytes.
    pub fn disk_bytes(&self) -> u64 {
        u64::from(self.disk_mib) << 20
    }

    /// Limit per host. Unit: bytes.
    pub fn host_bytes(&self) -> u64 {
        u64::from(self.host_mib) << 20
    }

    /// Age up to which they are kept. Unit: nanoseconds.
    pub fn retention_ns(&self) -> i64 {
        i64::from(self.retention_days) * 86_400_000_000_000
    }
}

impl Captures {
    /// All of them on disk. Unit: bytes.
    pub fn disk_bytes(&self) -> u64 {
        u64::from(self.disk_mib) << 20
    }

    /// Age up to which they are kept. Unit: nanoseconds.
    pub fn retention_ns(&self) -> i64 {
        i64::from(self.retention_days) * 86_400_000_000_000
    }
}

impl Annotations {
    /// Age up to which they are kept. Unit: nanoseconds.
    pub fn retention_ns(&self) -> i64 {
        i64::from(self.retention_days) * 86_400_000_000_000
    }
}

impl Incidents {
    /// All evidence, and that of one incident. Unit: bytes.
    pub fn bytes(&self) -> (u64, u64) {
        (
            u64::from(self.disk_mib) << 20,
            u64::from(self.incident_mib) << 20,
        )
    }
}

impl Symbols {
    /// All symbol tables on disk. Unit: bytes.
    pub fn disk_bytes(&self) -> u64 {
        u64::from(self.disk_mib) << 20
    }
}

impl Shutdown {
    /// Time to drain after SIGTERM.
    pub fn grace(&self) -> Duration {
        Duration::from_secs(self.grace_s.into())
    }
}
