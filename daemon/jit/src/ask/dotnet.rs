//! Has .NET write a perf map while it is needed, with two commands of its diagnostics port.
//!
//! The port is a socket `dotnet-diagnostic-<pid>-<key>-socket` in the process's directory for
//! temporary files (`TMPDIR`, or `/tmp`); `<pid>` is the pid as the process sees it, `<key>` its
//! start time. A connection is for one command: a head of 20 bytes (`DOTNET_IPC_V1`, length,
//! command set, command) and a payload, little-endian; the answer has the same form. .NET 8 and
//! later have `EnablePerfMap`, which lists everything compiled so far and then adds each method as
//! it is compiled, and `DisablePerfMap`.
//!
//! As for JVMs, everything is done with the process's own rights (`tmp_dir.rs`) on a thread of its
//! own. The port needs no signal, and a connected socket is known to belong to the process, because
//! another process's socket would have another inode. A perf map that the process's own user
//! enabled is left alone.

use super::tmp_dir::{self, Identity, Mark, ProcessTmpDir};
use crate::runtime::{self, Runtime};
use crate::target::{self, Target};
use host::time::MonotonicTime;
use std::fs::File;
use std::io::{self, Read};
use std::time::{Duration, Instant};

/// Longest time for one command. Enabling writes the names of all methods, some 10,000, before it
/// answers.
const COMMAND_MAX: Duration = Duration::from_secs(5);

/// Sockets of a process's number that are tried: those of earlier processes are left behind.
const SOCKETS_MAX: usize = 8;

/// Most requests to a process to disable its map.
const ENDINGS_MAX: u32 = 10;

/// Names of a temporary directory looked at. One with more hides its sockets.
const NAMES_MAX: usize = 65_536;

/// Environment read for `TMPDIR`. Unit: bytes.
const ENVIRONMENT_BYTES_MAX: u64 = 256 << 10;

/// Start of every message, with its NUL.
const MAGIC: &[u8; 14] = b"DOTNET_IPC_V1\0";

/// Length of a message's head. Unit: bytes.
const HEAD_BYTES: usize = 20;

/// Command set of commands to the process.
const SET_PROCESS: u8 = 0x04;

/// Command set of answers.
const SET_SERVER: u8 = 0xff;

const ENABLE_PERF_MAP: u8 = 0x05;
const DISABLE_PERF_MAP: u8 = 0x06;

/// What to write: only the perf map.
const PERF_MAP: u32 = 3;

/// `DS_IPC_E_UNKNOWN_COMMAND`: .NET 7 and earlier.
const UNKNOWN_COMMAND: u32 = 0x8013_1385;

/// Why enabling or disabling the perf map of a .NET process failed.
#[derive(Debug, thiserror::Error)]
pub enum DotNetError {
    /// The process ended, or another has its pid.
    #[error("the process has ended")]
    Gone,
    /// It is something else.
    #[error("the process is not a .NET process")]
    NotDotNet,
    /// Its own user enabled it.
    #[error("the process already writes a map, by its own settings")]
    OwnMap,
    /// The daemon may not act as the process's user.
    #[error(
        "failed to act as user `{uid}` of the process: the daemon needs CAP_SETUID and CAP_SETGID"
    )]
    Rights {
        /// That user.
        uid: u32,
        /// The refusal.
        #[source]
        source: io::Error,
    },
    /// Its temporary directory is not usable.
    #[error("failed to use the process's temporary directory")]
    ProcessTmpDir(#[source] io::Error),
    /// Something else lies where it will write.
    #[error("`/tmp/{name}` in the process's root is not the process's own file")]
    Planted {
        /// The name.
        name: String,
    },
    /// There is no port, or nobody listens.
    #[error(
        "the process has no diagnostics port (DOTNET_EnableDiagnostics=0, or another directory)"
    )]
    NoPort,
    /// It cannot be talked to.
    #[error("failed to talk to the diagnostics port")]
    Talk(#[source] io::Error),
    /// It answered no.
    #[error("the runtime refused: {}", refusal(*.code))]
    Refused {
        /// Its number.
        code: u32,
    },
    /// It said yes, and nothing is where maps are looked for.
    #[error("the runtime reports that it writes a map, but there is none in /tmp")]
    NoMap,
}

fn refusal(code: u32) -> String {
    match code {
        UNKNOWN_COMMAND => "it does not know the command: .NET 8 or later is needed".to_owned(),
        code => format!("error {code:#010x}"),
    }
}

impl DotNetError {
    /// True when asking again cannot help.
    pub fn is_final(&self) -> bool {
        matches!(
            self,
            DotNetError::Gone
                | DotNetError::NotDotNet
                | DotNetError::OwnMap
                | DotNetError::Refused {
                    code: UNKNOWN_COMMAND
                }
        )
    }
}

/// A process that writes a map because it was asked to.
#[derive(Debug)]
pub struct Writing {
    /// Where its port is.
    port: ProcessTmpDir,
    socket: String,
    socket_mark: Mark,
    /// `/tmp`, where its map is.
    place: ProcessTmpDir,
    map: String,
    map_mark: Mark,
    owner: Identity,
    pid: u32,
    /// Failed requests to disable it.
    failures: u32,
}

/// A process that goes on writing, or a map that stays.
#[derive(Debug)]
pub struct NotEnded {
    /// What to try again; `None` if it was tried often enough.
    pub again: Option<Box<Writing>>,
    /// Why.
    pub error: DotNetError,
}

/// Enables the map of a process, on a thread of its own that ends afterwards. May wait forever
/// where a file system does.
///
/// # Errors
/// See [`DotNetError`].
pub fn enable(pid: u32, started_by: MonotonicTime) -> Result<Writing, DotNetError> {
    let target = Target::look(pid, started_by).ok_or(DotNetError::Gone)?;
    let facts = runtime::look_at(pid, &target);
    if facts.runtime != Runtime::DotNet {
        return Err(DotNetError::NotDotNet);
    }
    if facts.settings.writes {
        return Err(DotNetError::OwnMap);
    }
    let gid = target::effective_gid(pid).ok_or(DotNetError::Gone)?;
    let owner = Identity {
        uid: target.uids[1],
        gid,
    };
    let temporary = temporary_dir(pid);
    // What was read was the same process's.
    Target::look(pid, started_by).ok_or(DotNetError::Gone)?;
    let impersonated = owner.impersonate();
    impersonated.map_err(|source| DotNetError::Rights {
        uid: owner.uid,
        source,
    })?;
    enable_as(pid, &target, owner, &temporary)
}

/// The same, once the calling thread has the process's rights.
fn enable_as(
    pid: u32,
    target: &Target,
    owner: Identity,
    temporary: &[u8],
) -> Result<Writing, DotNetError> {
    let port = ProcessTmpDir::open(&target.root, temporary).map_err(DotNetError::ProcessTmpDir)?;
    let place = ProcessTmpDir::open(&target.root, b"tmp").map_err(DotNetError::ProcessTmpDir)?;
    let map = format!("perf-{}.map", target.inner_pid);
    let before = place.look(&map).map_err(DotNetError::ProcessTmpDir)?;
    if before.is_some_and(|seen| !seen.plain || seen.uid != owner.uid) {
        return Err(DotNetError::Planted { name: map });
    }
    let deadline = Instant::now() + COMMAND_MAX;
    let prefix = format!("dotnet-diagnostic-{}-", target.inner_pid);
    let wanted = |name: &str| name.starts_with(&prefix) && name.ends_with("-socket");
    let sockets = port.list(NAMES_MAX, SOCKETS_MAX, wanted);
    for socket in sockets.map_err(DotNetError::ProcessTmpDir)? {
        let Ok(Some(seen)) = port.look(&socket) else {
            continue;
        };
        // Left behind, or a stranger's: another may be the process's.
        let Ok(stream) = port.connect(&socket, (owner.uid, pid), deadline) else {
            continue;
        };
        command(&stream, ENABLE_PERF_MAP, &PERF_MAP.to_le_bytes(), deadline)?;
        let after = place.look(&map).map_err(DotNetError::ProcessTmpDir)?;
        let after = after.filter(|seen| seen.plain && seen.uid == owner.uid);
        return Ok(Writing {
            map_mark: after.ok_or(DotNetError::NoMap)?.mark,
            port,
            socket,
            socket_mark: seen.mark,
            place,
            map,
            owner,
            pid,
            failures: 0,
        });
    }
    Err(DotNetError::NoPort)
}

impl Writing {
    /// Disables the map of a process if the process still exists, and removes the map, on a thread
    /// of its own that ends afterwards. May wait forever.
    ///
    /// # Errors
    /// When it goes on, or the map stays: with what to try again, if that may help.
    pub fn end(mut self) -> Result<(), NotEnded> {
        let impersonated = self.owner.impersonate();
        let impersonated = impersonated.map_err(|source| DotNetError::Rights {
            uid: self.owner.uid,
            source,
        });
        let ended = impersonated.and_then(|()| self.end_as());
        self.failures += 1;
        ended.map_err(|error| NotEnded {
            again: (self.failures < ENDINGS_MAX).then(|| Box::new(self)),
            error,
        })
    }

    /// The same, once the calling thread has the process's rights.
    fn end_as(&self) -> Result<(), DotNetError> {
        let stopped = self.stop();
        // The map of a process that ended is nobody's. One that goes on keeps its file.
        if stopped.is_ok() {
            let seen = self
                .place
                .look(&self.map)
                .map_err(DotNetError::ProcessTmpDir)?;
            if seen.is_some_and(|seen| seen.plain && seen.mark.is_same_file(self.map_mark)) {
                self.place
                    .remove(&self.map)
                    .map_err(DotNetError::ProcessTmpDir)?;
            }
        }
        stopped
    }

    fn stop(&self) -> Result<(), DotNetError> {
        let seen = self
            .port
            .look(&self.socket)
            .map_err(DotNetError::ProcessTmpDir)?;
        if seen.is_none_or(|seen| !seen.mark.is_same_file(self.socket_mark)) {
            return Ok(());
        }
        let deadline = Instant::now() + COMMAND_MAX;
        match self
            .port
            .connect(&self.socket, (self.owner.uid, self.pid), deadline)
        {
            Ok(stream) => command(&stream, DISABLE_PERF_MAP, &[], deadline),
            // It ended and left its socket.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
            Err(error) => Err(DotNetError::Talk(error)),
        }
    }
}

/// Sends one command and reads its answer.
fn command(
    stream: &std::os::unix::net::UnixStream,
    id: u8,
    payload: &[u8],
    deadline: Instant,
) -> Result<(), DotNetError> {
    let message = message(SET_PROCESS, id, payload);
    tmp_dir::send(stream, &message, deadline).map_err(DotNetError::Talk)?;
    // An answer to these is a head and one number.
    let most = HEAD_BYTES + 4;
    let enough = |bytes: &[u8]| length(bytes).is_some_and(|length| bytes.len() >= length.min(most));
    let answer = tmp_dir::receive(stream, most, deadline, enough).map_err(DotNetError::Talk)?;
    match parse_answer(&answer) {
        Some(0) => Ok(()),
        Some(code) => Err(DotNetError::Refused { code }),
        None => Err(DotNetError::Talk(io::ErrorKind::InvalidData.into())),
    }
}

fn message(set: u8, id: u8, payload: &[u8]) -> Vec<u8> {
    let mut message = MAGIC.to_vec();
    message.extend(((HEAD_BYTES + payload.len()) as u16).to_le_bytes());
    message.extend([set, id, 0, 0]);
    message.extend_from_slice(payload);
    message
}

/// The length that a message says it has.
fn length(message: &[u8]) -> Option<usize> {
    let bytes = message.get(MAGIC.len()..MAGIC.len() + 2)?;
    Some(usize::from(u16::from_le_bytes(bytes.try_into().ok()?)))
}

/// The number in an answer: 0 when it is yes.
fn parse_answer(answer: &[u8]) -> Option<u32> {
    if answer.len() < HEAD_BYTES || !answer.starts_with(MAGIC) || answer[16] != SET_SERVER {
        return None;
    }
    let number = answer.get(HEAD_BYTES..HEAD_BYTES + 4);
    let number = number.and_then(|bytes| bytes.try_into().ok());
    let number = number.map_or(0, u32::from_le_bytes);
    match (answer[17], number) {
        (0x00, number) => Some(number),
        // An error without a number is one all the same.
        (0xff, number) => Some(number.max(1)),
        _ => None,
    }
}

/// Where a process has its temporary files, without the slash at its start.
fn temporary_dir(pid: u32) -> Vec<u8> {
    let mut environment = Vec::new();
    if let Ok(file) = File::open(format!("/proc/{pid}/environ")) {
        // Part of it is better than nothing.
        let _ = file
            .take(ENVIRONMENT_BYTES_MAX)
            .read_to_end(&mut environment);
    }
    let mut words = environment.split(|&byte| byte == 0);
    let found = words.find_map(|word| word.strip_prefix(b"TMPDIR=/"));
    let found = found.map(|path| path.strip_suffix(b"/").unwrap_or(path));
    match found {
        Some(path) if !path.is_empty() => path.to_vec(),
        _ => b"tmp".to_vec(),
    }
}

#[cfg(test)]
#[path = "dotnet_tests.rs"]
pub(super) mod tests;
