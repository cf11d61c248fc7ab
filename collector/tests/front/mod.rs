//! Starts and ends the server that stands for ClickHouse.
#![expect(clippy::unwrap_used, reason = "all of it is tests")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use tempfile::TempDir;

/// The version that `chdb.sh` installs.
const CHDB_VERSION: &str = "4.4.0";

/// A server in a process of its own, which ends with it.
pub struct Front {
    process: Child,
    port: u16,
    directory: PathBuf,
    more: Vec<String>,
}

impl Front {
    /// Starts a server on the data in `directory`; at a port it had before, or any.
    pub fn start(directory: &Path, port: u16) -> Result<Front, String> {
        Front::start_and(directory, port, true, &[])
    }

    /// The same with a configuration or TLS: `config=FILE`, `tls=CERT_AND_KEY,CA`.
    pub fn start_with(directory: &Path, port: u16, more: &[String]) -> Result<Front, String> {
        Front::start_and(directory, port, true, more)
    }

    fn start_and(
        directory: &Path,
        port: u16,
        keep: bool,
        more: &[String],
    ) -> Result<Front, String> {
        let python = python()?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clickhouse_front.py");
        let mut process = Command::new(python)
            .arg(script)
            .arg(directory)
            .arg(port.to_string())
            .arg(if keep { "keep" } else { "remove" })
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let mut line = String::new();
        let stdout = process.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let mut words = line.split_whitespace();
        let port = words.nth(1).and_then(|port| port.parse().ok());
        let Some(port) = port else {
            drop(process.kill());
            return Err(format!("the server did not start: {line:?}"));
        };
        println!(
            "engine: ClickHouse {} (chdb {CHDB_VERSION})",
            words.nth(1).unwrap_or("?")
        );
        Ok(Front {
            process,
            port,
            directory: directory.to_owned(),
            more: more.to_vec(),
        })
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Does a statement in a database, beside any store; returns what the server answers.
    pub fn statement(&self, database: &str, sql: &str) -> String {
        self.post(&format!("/?front=unseen&database={database}"), sql)
    }

    /// Has the server refuse the statements in a database that match a regular expression, with
    /// `text`, in place of what it was told before. A statement is matched with its settings in
    /// front of it.
    pub fn refuse(&self, database: &str, statements: &[&str], text: &str) {
        let lines = statements.iter();
        let lines = lines.map(|regex| format!("error\t{regex}\t{text}\n"));
        self.rules(database, &lines.collect::<String>());
    }

    /// Gives a setting a value for all of a database, in place of what the server was told before.
    pub fn set(&self, database: &str, name: &str, value: &str) {
        self.rules(database, &format!("setting\t{name}\t{value}\n"));
    }

    /// Has the server wait before it does the statements in a database that match, in place of what
    /// it was told before.
    pub fn slow(&self, database: &str, regex: &str, seconds: f64) {
        self.rules(database, &format!("slow\t{regex}\t{seconds}\n"));
    }

    /// Has the server ignore the statements of peers in a database that match, in place of what it
    /// was told before.
    pub fn skip(&self, database: &str, regex: &str) {
        self.rules(database, &format!("skip\t{regex}\t\n"));
    }

    /// Has the server do as it would.
    pub fn forget_rules(&self, database: &str) {
        self.rules(database, "");
    }

    fn rules(&self, database: &str, lines: &str) {
        self.post(&format!("/front/rules?database={database}"), lines);
    }

    /// What stores asked of a database, oldest first.
    pub fn asked(&self, database: &str) -> Vec<LoggedQuery> {
        let log = self.post(&format!("/front/log?database={database}"), "");
        log.lines().map(LoggedQuery::of_line).collect()
    }

    fn post(&self, address: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let length = body.len();
        write!(
            stream,
            "POST {address} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, answered) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{body}: {answered}");
        answered.to_owned()
    }

    /// Ends the process at once, as a crash would; the data stays.
    pub fn kill(mut self) -> Killed {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        Killed {
            port: self.port,
            directory: self.directory.clone(),
            more: std::mem::take(&mut self.more),
        }
    }
}

/// Servers of their own engines, each a shard of the cluster `fleet`. What stands for a Keeper is
/// said in `clickhouse_front.py`.
pub struct Cluster {
    /// By number of the shard, from 1.
    pub shards: Vec<Front>,
    _configs: TempDir,
}

impl Cluster {
    /// Starts so many, in a directory of their own that goes with the processes.
    pub fn start(count: usize) -> Result<Cluster, String> {
        let configs = TempDir::new().unwrap();
        let members: String = (1..=count)
            .map(|number| {
                format!(
                    "<shard><internal_replication>true</internal_replication><replica>\
                     <host>127.0.0.{number}</host><port>9</port></replica></shard>"
                )
            })
            .collect();
        let mut shards = Vec::new();
        for number in 1..=count {
            let config = configs.path().join(format!("{number}.xml"));
            let text = format!(
                "<clickhouse><remote_servers><fleet>{members}</fleet></remote_servers><macros>\
                 <shard>{number}</shard><replica>a</replica></macros></clickhouse>"
            );
            std::fs::write(&config, text).unwrap();
            let more = [format!("config={}", config.display())];
            let directory = directory().keep();
            shards.push(Front::start_and(&directory, 0, false, &more)?);
        }
        let cluster = Cluster {
            shards,
            _configs: configs,
        };
        cluster.introduce();
        Ok(cluster)
    }

    /// Tells each shard where the others are.
    pub fn introduce(&self) {
        for shard in &self.shards {
            let others = self.shards.iter().filter(|other| other.port != shard.port);
            let urls: Vec<String> = others.map(Front::url).collect();
            shard.post("/front/peers", &urls.join("\n"));
        }
    }

    /// Addresses of all.
    pub fn urls(&self) -> Vec<String> {
        self.shards.iter().map(Front::url).collect()
    }

    /// Kills a shard and starts it again, with `meanwhile` in between.
    pub fn restart(&mut self, at: usize, meanwhile: impl FnOnce()) {
        let killed = self.shards.remove(at).kill();
        meanwhile();
        self.shards.insert(at, killed.start_again());
        self.introduce();
    }
}

/// A statement of a store.
#[derive(Debug)]
pub struct LoggedQuery {
    /// When it came. Unit: milliseconds of a clock of the server's.
    pub start_ms: u64,
    /// When it was done; 0 where it failed.
    pub end_ms: u64,
    /// Rows of tables that the engine read for it.
    pub rows_read: u64,
    /// Rows of an insert as they were sent. Unit: bytes.
    pub sent_bytes: u64,
    /// The same unpacked. Unit: bytes.
    pub unpacked_bytes: u64,
    /// What was sent with it.
    pub settings: String,
    /// The statement, in one line.
    pub sql: String,
}

impl LoggedQuery {
    fn of_line(line: &str) -> LoggedQuery {
        let fields: Vec<&str> = line.split('\t').collect();
        let number = |at: usize| fields[at].parse().unwrap();
        LoggedQuery {
            start_ms: number(0),
            end_ms: number(1),
            rows_read: number(2),
            sent_bytes: number(3),
            unpacked_bytes: number(4),
            settings: fields[5].to_owned(),
            sql: fields[6].to_owned(),
        }
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Where a server was.
pub struct Killed {
    port: u16,
    directory: PathBuf,
    more: Vec<String>,
}

impl Killed {
    /// Starts it again on its data and at its port.
    pub fn start_again(self) -> Front {
        Front::start_with(&self.directory, self.port, &self.more).unwrap()
    }
}

/// Two shards for all tests that do not kill them.
pub fn shared_cluster() -> Result<&'static Cluster, String> {
    static CLUSTER: OnceLock<Result<Cluster, String>> = OnceLock::new();
    let cluster = CLUSTER.get_or_init(|| Cluster::start(2));
    cluster.as_ref().map_err(Clone::clone)
}

/// The server of all tests that do not kill it.
pub fn shared() -> Result<&'static Front, String> {
    static FRONT: OnceLock<Result<Front, String>> = OnceLock::new();
    // Nothing static is ever dropped: the server removes its data when this process ends.
    let front = FRONT.get_or_init(|| {
        python()?;
        Front::start_and(&directory().keep(), 0, false, &[])
    });
    front.as_ref().map_err(Clone::clone)
}

/// A new directory for data that no restart has to find. In memory where there is room: the work of
/// hundreds of databases with small tables is mostly creating and removing files.
fn directory() -> TempDir {
    const ROOM_MIN: u64 = 2 << 30;
    let memory = Path::new("/dev/shm");
    let room = || {
        let of = rustix::fs::statvfs(memory).ok()?;
        Some(of.f_bavail * of.f_frsize)
    };
    if room().is_some_and(|room| room >= ROOM_MIN)
        && let Ok(directory) = TempDir::new_in(memory)
    {
        return directory;
    }
    TempDir::new().unwrap()
}

/// A Python that has the engine.
fn python() -> Result<PathBuf, String> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = cache.or_else(home).unwrap_or_default();
    let path = cache.join(format!("fleetprof/chdb-{CHDB_VERSION}/bin/python"));
    if path.exists() {
        Ok(path)
    } else {
        Err("chdb is not installed; collector/tests/chdb.sh installs it".to_owned())
    }
}
