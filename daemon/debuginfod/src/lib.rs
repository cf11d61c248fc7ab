//! Fetches separate debug files from debuginfod servers: by build id, one file at a time, within
//! bounds.
//!
//! Nobody waits for it: a thread fetches, and the next lookup finds the result. A server that is
//! down, slow or wrong is left alone for a while, longer each time. Downloads go to a file of the
//! caller and are untrusted: the reader must check that the file is of the requested build.
#![forbid(unsafe_code)]

mod fetch_queue;

pub use fetch_queue::{FetchOutcome, FetchQueue};

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};
use ureq::Agent;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// Time for a connection. When it is too small, far servers seem to be away.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// Time until an answer starts. Servers unpack the package that has the file first, which takes
/// them up to a minute.
const ANSWER_MAX: Duration = Duration::from_secs(90);

/// Time for a complete file. 1 GiB in this time is 1.7 MiB/s.
const FILE_MAX: Duration = Duration::from_secs(600);

/// Most redirections of one request.
const REDIRECTS_MAX: u32 = 3;

/// How long a server that failed is left alone; doubles with each failure in a row, up to
/// [`REST_MAX`].
const REST: Duration = Duration::from_secs(30);

/// See [`REST`].
const REST_MAX: Duration = Duration::from_secs(3600);

/// Shortest time between two requests: strangers may run as many programs as they like.
const PACE: Duration = Duration::from_millis(200);

/// Free space that a file leaves on its file system: whatever else is on it goes on. Unit: bytes.
pub const FREE_BYTES_MIN: u64 = 1 << 30;

/// Bytes moved at a time.
const PIECE_BYTES: usize = 128 << 10;

/// Bytes between looks at how much room is left.
const LOOK_BYTES: u64 = 64 << 20;

/// Why one server did not answer as it should.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("{0}")]
    Http(#[from] ureq::Error),
    #[error("the server sent {got} of {announced} bytes")]
    CutShort { got: u64, announced: u64 },
    #[error("failed to read the file: {0}")]
    Read(io::Error),
    #[error("failed to write the file: {0}")]
    Write(io::Error),
    #[error("the daemon or collector is shutting down")]
    Stopped,
}

/// One server's answer about a build.
enum Answer {
    /// A file, of so many bytes, which was written.
    File(u64),
    /// It has no file.
    Absent,
    /// The file is larger than allowed.
    TooLarge,
}

struct Server {
    url: String,
    failures: u32,
    /// Asked again after this.
    rests_until: Option<Instant>,
}

/// True when the file system of a path has room for more. One that cannot be asked says so when it
/// is written to.
pub fn has_room(path: &Path) -> bool {
    rustix::fs::statvfs(path)
        .is_ok_and(|about| about.f_bavail.saturating_mul(about.f_frsize) >= FREE_BYTES_MIN)
}

/// The servers, in the order in which they are asked.
pub struct Servers {
    agent: Agent,
    all: Vec<Server>,
    bytes_max: u64,
}

impl Servers {
    /// Servers by their URLs; files of more than `bytes_max` are not taken. TLS trusts what the
    /// host trusts.
    pub fn new(urls: &[String], bytes_max: u64) -> Servers {
        let server = |url: &String| Server {
            url: url.trim_end_matches('/').to_owned(),
            failures: 0,
            rests_until: None,
        };
        let all = urls.iter().map(server).collect();
        let mut tls = TlsConfig::builder();
        if urls.iter().any(|url| url.starts_with("https://")) {
            // Certificates that cannot be read are as good as not there: the server is not trusted
            // then.
            let trusted = rustls_native_certs::load_native_certs().certs;
            let trusted = trusted
                .iter()
                .map(|one| Certificate::from_der(one).to_owned());
            tls = tls.root_certs(RootCerts::Specific(std::sync::Arc::new(trusted.collect())));
        }
        let agent = Agent::config_builder()
            .timeout_connect(Some(CONNECT_MAX))
            .timeout_recv_response(Some(ANSWER_MAX))
            .timeout_global(Some(FILE_MAX))
            .max_redirects(REDIRECTS_MAX)
            .http_status_as_error(false)
            .user_agent("fleetprof")
            .tls_config(tls.build())
            .build()
            .new_agent();
        Servers {
            agent,
            all,
            bytes_max,
        }
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// How long until one of them may be asked: all that failed are left alone for a while.
    pub fn rest(&self) -> Duration {
        let now = Instant::now();
        let rests = self.all.iter().map(|server| {
            let until = server.rests_until;
            until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
        });
        rests.min().unwrap_or_default()
    }

    /// Fetches the debug file of a build into `to`, which is created or emptied, from the first
    /// server with an acceptable file: `take` gets the file's size and returns why the file is
    /// unusable. A server without the file, or with an unusable one, does not prevent asking the
    /// next one. `stopped` is checked now and then. Blocks.
    pub fn fetch(
        &mut self,
        build_id: &str,
        to: &Path,
        take: &mut dyn FnMut(u64) -> Result<(), String>,
        stopped: &dyn Fn() -> bool,
    ) -> FetchOutcome {
        if !profile::is_build_id(build_id) {
            return FetchOutcome::Absent;
        }
        std::thread::sleep(PACE);
        let (mut refused, mut unavailable) = (false, false);
        for server in &mut self.all {
            if server
                .rests_until
                .is_some_and(|until| Instant::now() < until)
            {
                unavailable = true;
                continue;
            }
            let asked = server.ask(&self.agent, build_id, to, self.bytes_max, stopped);
            let why = match asked {
                Ok(Answer::Absent) => {
                    server.answered();
                    continue;
                }
                Ok(Answer::File(bytes)) => take(bytes).err(),
                Ok(Answer::TooLarge) => Some("the file is too large".to_owned()),
                Err(FetchError::Stopped) => return FetchOutcome::Unavailable,
                // Other servers would not help.
                Err(error @ FetchError::Write(_)) => {
                    tracing::warn!(server = server.url, "failed to keep a debug file: {error}");
                    return FetchOutcome::Unavailable;
                }
                Err(error) => {
                    server.failed(&error);
                    unavailable = true;
                    continue;
                }
            };
            server.answered();
            let Some(why) = why else {
                return FetchOutcome::Kept;
            };
            tracing::warn!(
                server = server.url,
                build_id,
                "debug file of a debuginfod server refused: {why}"
            );
            refused = true;
        }
        match (refused, unavailable) {
            (true, _) => FetchOutcome::Refused,
            (false, true) => FetchOutcome::Unavailable,
            (false, false) => FetchOutcome::Absent,
        }
    }
}

impl Server {
    fn ask(
        &self,
        agent: &Agent,
        build_id: &str,
        to: &Path,
        bytes_max: u64,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Answer, FetchError> {
        let url = format!("{}/buildid/{build_id}/debuginfo", self.url);
        let mut answer = agent.get(&url).call()?;
        match answer.status().as_u16() {
            200 => {}
            404 => return Ok(Answer::Absent),
            status => return Err(ureq::Error::StatusCode(status).into()),
        }
        let announced = answer.body().content_length();
        if announced.is_some_and(|bytes| bytes > bytes_max) {
            return Ok(Answer::TooLarge);
        }
        let mut file = File::create(to).map_err(FetchError::Write)?;
        let body = answer.body_mut().with_config().limit(u64::MAX);
        let mut body = body.reader();
        let (mut piece, mut bytes) = (vec![0; PIECE_BYTES], 0u64);
        loop {
            if stopped() {
                return Err(FetchError::Stopped);
            }
            if bytes.is_multiple_of(LOOK_BYTES) && !has_room(to.parent().unwrap_or(to)) {
                return Err(FetchError::Write(io::ErrorKind::StorageFull.into()));
            }
            let most = (LOOK_BYTES - bytes % LOOK_BYTES).min(PIECE_BYTES as u64) as usize;
            let len = body.read(&mut piece[..most]).map_err(FetchError::Read)?;
            if len == 0 {
                break;
            }
            bytes += len as u64;
            if bytes > bytes_max {
                return Ok(Answer::TooLarge);
            }
            file.write_all(&piece[..len]).map_err(FetchError::Write)?;
        }
        match announced.filter(|&announced| announced != bytes) {
            Some(announced) => Err(FetchError::CutShort {
                got: bytes,
                announced,
            }),
            None => Ok(Answer::File(bytes)),
        }
    }

    fn answered(&mut self) {
        (self.failures, self.rests_until) = (0, None);
    }

    fn failed(&mut self, error: &FetchError) {
        let rest = (REST * 2u32.saturating_pow(self.failures.min(16))).min(REST_MAX);
        self.failures = self.failures.saturating_add(1);
        self.rests_until = Some(Instant::now() + rest);
        tracing::warn!(
            server = self.url,
            rests_s = rest.as_secs(),
            "debuginfod server failed: {error}"
        );
    }
}

#[cfg(test)]
mod tests;
