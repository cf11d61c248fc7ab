//! Starts and ends the server that stands for ClickHouse.
#![expect(clippy::unwrap_used, reason = "all of it is tests")]

use std::io::{BufRead, BufReader};
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
}

impl Front {
    /// Starts a server on the data in `directory`; at a port it had before, or any.
    pub fn start(directory: &Path, port: u16) -> Result<Front, String> {
        let python = python()?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clickhouse_front.py");
        let mut process = Command::new(python)
            .arg(script)
            .arg(directory)
            .arg(port.to_string())
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
        })
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Ends the process at once, as a crash would; the data stays.
    pub fn kill(mut self) -> Killed {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        Killed {
            port: self.port,
            directory: self.directory.clone(),
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
}

impl Killed {
    /// Starts it again on its data and at its port.
    pub fn start_again(self) -> Front {
        Front::start(&self.directory, self.port).unwrap()
    }
}

/// The server of all tests that do not kill it.
pub fn shared() -> Result<&'static Front, String> {
    static FRONT: OnceLock<Result<(Front, TempDir), String>> = OnceLock::new();
    let front = FRONT.get_or_init(|| {
        let directory = TempDir::new().unwrap();
        Ok((Front::start(directory.path(), 0)?, directory))
    });
    front.as_ref().map(|(front, _)| front).map_err(Clone::clone)
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
