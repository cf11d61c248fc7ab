//! How to reach the servers, and how long to keep what is in them: options, and what is wrong with
//! them.

use super::layout::Layout;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Most bytes of a password file that are read.
const PASSWORD_LEN_MAX: u64 = 4096;

/// How to reach the database and how long to keep what is in it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Servers: `http://host:8123` or `https://host:8443`. The first one that works is used; with a
    /// cluster, the first one of each shard.
    pub urls: Vec<String>,
    /// Cluster over which the tables are replicated and sharded; `None`: every server has the one
    /// database.
    pub cluster: Option<String>,
    /// Name of the database: letters, digits and `_`. It is created when it is not there.
    pub database: String,
    /// User; `None`: the server's default.
    pub user: Option<String>,
    /// File with the user's password; white space at its end is not part of it.
    pub password_file: Option<PathBuf>,
    /// Authorities that sign the servers' certificates, in addition to those of the system.
    pub ca_file: Option<PathBuf>,
    /// Certificate of the collector, with those that signed it, and its key.
    pub cert: Option<(PathBuf, PathBuf)>,
    /// Replicas that have an insert when it is acknowledged; 0: the one that it is sent to.
    pub insert_quorum: u32,
    /// Storage policy of the tables by day; `None`: the server's default.
    pub storage_policy: Option<String>,
    /// Age at which their parts move to the volume `cold` of that policy.
    pub cold_after: Option<Duration>,
    /// How long sums over services are kept in hours, with windows and hosts.
    pub retention: Duration,
    /// How long samples are kept as they came; windows older than it are refused.
    pub raw: Duration,
    /// How long sums over services are kept in minutes.
    pub minutes: Duration,
    /// How long lines over time and totals are kept, by label set and without stacks.
    pub label_sets: Duration,
    /// How far in the future windows may start.
    pub future: Duration,
    /// Longest wait for one insert or look-up, after which the server is away.
    pub write_timeout: Duration,
}

impl Default for Options {
    /// The server on this machine, 30 days of samples and a year of services, 10 minutes, 30
    /// seconds.
    fn default() -> Self {
        Options {
            urls: vec!["http://127.0.0.1:8123".to_owned()],
            cluster: None,
            database: "fleetprof".to_owned(),
            user: None,
            password_file: None,
            ca_file: None,
            cert: None,
            insert_quorum: 0,
            storage_policy: None,
            cold_after: None,
            retention: Duration::from_secs(365 * 86_400),
            raw: Duration::from_secs(30 * 86_400),
            minutes: Duration::from_secs(30 * 86_400),
            label_sets: Duration::from_secs(90 * 86_400),
            future: Duration::from_secs(600),
            write_timeout: Duration::from_secs(30),
        }
    }
}

/// Why the store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// An option makes no sense.
    #[error("failed to use option `{option}`: {reason}")]
    Option {
        /// Its name.
        option: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A password, certificate or key could not be read.
    #[error("failed to read `{}`: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The store's own threads could not be started.
    #[error("failed to start the threads of the ClickHouse client: {0}")]
    Threads(std::io::Error),
    /// The server is not there, or does not let us in.
    #[error(
        "failed to reach ClickHouse at `{url}`: {reason}\n\
         try: clickhouse-client --query 'SELECT 1' with the same user, or curl {url}/ping"
    )]
    Away {
        /// Its address.
        url: String,
        /// What happened.
        reason: String,
    },
    /// The tables could not be made or are not ours.
    #[error("failed to prepare database `{database}`: {reason}")]
    Schema {
        /// Its name.
        database: String,
        /// What happened.
        reason: String,
    },
}

/// True for a name that stands in statements as it is.
fn is_plain(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    (1..=64).contains(&name.len())
        && name.chars().all(plain)
        && !name.starts_with(|c: char| c.is_ascii_digit())
}

impl Options {
    /// Where the tables are.
    pub fn layout(&self) -> Layout<'_> {
        self.cluster
            .as_deref()
            .map_or(Layout::Single, Layout::Cluster)
    }

    /// Checks what is put into statements and addresses.
    pub(super) fn check(&self) -> Result<(), OpenError> {
        let wrong = |option, reason: &str| {
            Err(OpenError::Option {
                option,
                reason: reason.to_owned(),
            })
        };
        let a_name = "it must be 1 to 64 letters, digits and `_`, and not start with a digit";
        if !is_plain(&self.database) {
            return wrong("clickhouse.database", a_name);
        }
        if self.cluster.as_deref().is_some_and(|name| !is_plain(name)) {
            return wrong("clickhouse.cluster", a_name);
        }
        let policy = self.storage_policy.as_deref();
        if policy.is_some_and(|name| !is_plain(name)) {
            return wrong("clickhouse.storage_policy", a_name);
        }
        if self.cold_after.is_some() && policy.is_none() {
            return wrong(
                "clickhouse.cold_after_days",
                "it needs `clickhouse.storage_policy`, with a volume `cold`",
            );
        }
        if self.urls.is_empty() {
            return wrong("clickhouse.urls", "it names no server");
        }
        for url in &self.urls {
            if !url.starts_with("http://") && !url.starts_with("https://") {
                return wrong(
                    "clickhouse.urls",
                    "each must start with `http://` or `https://`",
                );
            }
            if url.contains(['?', '#', '@']) {
                return wrong(
                    "clickhouse.urls",
                    "each must have only scheme, host, port and path",
                );
            }
        }
        Ok(())
    }

    /// The user's password.
    pub(super) fn password(&self) -> Result<Option<String>, OpenError> {
        use std::io::Read;
        let Some(path) = &self.password_file else {
            return Ok(None);
        };
        let mut text = String::new();
        std::fs::File::open(path)
            .and_then(|file| file.take(PASSWORD_LEN_MAX).read_to_string(&mut text))
            .map_err(|why| unreadable(path, &why))?;
        Ok(Some(text.trim_end().to_owned()))
    }
}

/// A file that cannot be used.
pub(super) fn unreadable(path: &Path, why: &dyn std::fmt::Display) -> OpenError {
    OpenError::File {
        path: path.to_owned(),
        reason: why.to_string(),
    }
}
