//! `agent-ctl capture -- COMMAND`: runs a command in a cgroup of its own, so that a capture of that
//! cgroup has the command and everything it starts, and ends with it.
//!
//! The command is started by a copy of this program that waits in the cgroup until the capture
//! records, and then becomes the command: nothing of it is missed. It runs as whoever called. Under
//! sudo that is the user who called sudo, unless `--as-root` says otherwise.

use crate::exit::{self, fail};
use crate::peer::{Peer, Target, is_loopback};
use crate::signals::Signals;
use crate::terminal::clean;
use anyhow::{Context, Result};
use proto::agent::Environment;
use rustix::process::{Gid, Pid, Signal, Uid, kill_process};
use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;
use tokio::sync::oneshot;

/// First argument of the copy that becomes the command. No subcommand has this name.
const STARTER: &str = "--start-command";

/// Longest that the copy takes to say that it waits.
const START: Duration = Duration::from_secs(10);

/// Longest capture that an agent takes, and so the longest of a command.
pub const LONGEST: Duration = Duration::from_secs(3600);

/// Exit codes of a command that cannot be run or is not there, as shells have them.
const NOT_RUNNABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Refuses a peer that does not sample this machine.
///
/// # Errors
/// For a collector, and for an agent elsewhere.
pub fn check(peer: &Peer) -> Result<()> {
    let refuse = |why: &str| {
        Err(fail(
            exit::USAGE,
            format!(
                "failed to capture a command: {why}\nuse the agent of this machine (--agent \
                 unix:PATH), or leave the command out and select what runs there"
            ),
        ))
    };
    match &peer.target {
        _ if peer.is_collector() => {
            refuse("it would run on this machine, and a collector captures on the hosts of a fleet")
        }
        Target::Tcp(address) if !is_loopback(address) => {
            refuse("it would run on this machine, and the agent is on another")
        }
        _ => Ok(()),
    }
}

/// A cgroup that is removed when it is dropped, if nothing runs in it any more.
struct OwnCgroup(PathBuf);

impl Drop for OwnCgroup {
    fn drop(&mut self) {
        // What the command left behind keeps it.
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// A command that waits to be started, or runs.
pub struct Running {
    /// Path of its cgroup, as the agent labels samples.
    pub cgroup: String,
    go: Option<UnixStream>,
    pid: Option<Pid>,
    ended: Option<oneshot::Receiver<std::io::Result<ExitStatus>>>,
    /// How it ended.
    status: Option<ExitStatus>,
    own: OwnCgroup,
}

impl Running {
    /// Starts the copy that waits, in a cgroup below that of this process.
    ///
    /// # Errors
    /// When no cgroup can be made, or the copy does not start.
    pub fn prepare(
        words: &[OsString],
        environment: &Environment,
        as_root: bool,
    ) -> Result<Running> {
        let user = match as_root {
            true => None,
            false => caller()?,
        };
        let (own, cgroup) = make_cgroup(environment)?;
        let dir = tempfile::tempdir().context("failed to make a directory")?;
        let path = dir.path().join("start");
        let listener = UnixListener::bind(&path).context("failed to listen")?;
        listener.set_nonblocking(true).context("failed to listen")?;
        let program = std::env::current_exe().context("failed to find this program")?;
        let mut starter = Command::new(program);
        starter.arg(STARTER).arg(&path);
        match &user {
            Some(user) => {
                let groups: Vec<String> = user.groups.iter().map(u32::to_string).collect();
                let ids = format!("{}:{}:{}", user.uid, user.gid, groups.join(","));
                starter.arg(ids);
                starter.env("USER", &user.name).env("LOGNAME", &user.name);
                if let Some(home) = &user.home {
                    starter.env("HOME", home);
                }
            }
            None => {
                starter.arg("-");
            }
        }
        starter.args(words);
        let mut child = starter.spawn().context("failed to start the command")?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let moved = std::fs::write(own.0.join("cgroup.procs"), child.id().to_string());
        let (tell, ended) = oneshot::channel();
        std::thread::Builder::new()
            .name("command".to_owned())
            .spawn(move || {
                let _ = tell.send(child.wait());
            })
            .context("failed to start a thread")?;
        let mut running = Running {
            cgroup,
            go: None,
            pid,
            ended: Some(ended),
            status: None,
            own,
        };
        moved.with_context(|| {
            format!("failed to move the command to `{}`", shown(&running.own.0))
        })?;
        running.go = Some(accept(&listener)?);
        Ok(running)
    }

    /// Has the command start.
    ///
    /// # Errors
    /// When the copy that waits is gone.
    pub fn go(&mut self) -> Result<()> {
        match self.go.take() {
            Some(mut stream) => stream
                .write_all(b"1")
                .context("failed to start the command"),
            None => Ok(()),
        }
    }

    /// Waits for its end. Cancel-safe.
    ///
    /// # Errors
    /// When nobody can say how it ended.
    pub async fn end(&mut self) -> Result<()> {
        if let Some(ended) = &mut self.ended {
            let status = ended.await;
            self.ended = None;
            let status = status.context("failed to wait for the command")?;
            self.status = Some(status.context("failed to wait for the command")?);
        }
        Ok(())
    }

    /// Waits for its end, whatever else was to happen; signals are handed on.
    ///
    /// # Errors
    /// When nobody can say how it ended.
    pub async fn finish(&mut self, signals: &mut Signals) -> Result<()> {
        // Where it never started, this ends the copy that waits.
        self.go = None;
        while !self.has_ended() {
            let signal = tokio::select! {
                ended = self.end() => return ended,
                signal = signals.next() => signal,
            };
            self.hand_on(signal);
        }
        Ok(())
    }

    /// True once it has ended.
    pub fn has_ended(&self) -> bool {
        self.ended.is_none()
    }

    /// Hands on a signal that only this process got: a terminal sends Ctrl-C to both.
    pub fn hand_on(&self, signal: Signal) {
        let told_by_terminal = signal == Signal::INT && std::io::stdin().is_terminal();
        if let (Some(pid), false, false) = (self.pid, told_by_terminal, self.has_ended()) {
            let _ = kill_process(pid, signal);
        }
    }

    /// The exit code of the command, as a shell has it.
    pub fn code(&self) -> u8 {
        let Some(status) = self.status else {
            return exit::FAILURE;
        };
        match (status.code(), status.signal()) {
            (Some(code), _) => u8::try_from(code).unwrap_or(exit::FAILURE),
            (None, Some(signal)) => u8::try_from(128 + signal).unwrap_or(exit::FAILURE),
            (None, None) => exit::FAILURE,
        }
    }

    /// Says what the command left behind.
    pub fn note_rest(&self) {
        let procs = std::fs::read_to_string(self.own.0.join("cgroup.procs"));
        let left = procs.map_or(0, |procs| procs.lines().count());
        if left > 0 && self.has_ended() {
            note!(
                "agent-ctl: the command left {left} {} in `{}`, which stays",
                match left {
                    1 => "process",
                    _ => "processes",
                },
                clean(&self.cgroup)
            );
        }
    }
}

fn accept(listener: &UnixListener) -> Result<UnixStream> {
    let started = std::time::Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(error)
                if error.kind() == std::io::ErrorKind::WouldBlock && started.elapsed() < START =>
            {
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(error) => return Err(error).context("failed to start the command"),
        }
    }
}

fn shown(path: &Path) -> String {
    clean(&path.to_string_lossy()).into_owned()
}

/// Makes a cgroup below that of this process, where the agent looks for cgroups.
fn make_cgroup(environment: &Environment) -> Result<(OwnCgroup, String)> {
    let root = Path::new(&environment.cgroup_root);
    let text = std::fs::read_to_string("/proc/self/cgroup");
    let text = text.context("failed to read `/proc/self/cgroup`")?;
    let own = own_cgroup(&text, environment.cgroup_mode == "v1");
    let own = own.filter(|_| !environment.cgroup_root.is_empty());
    let own = own.ok_or_else(|| {
        fail(
            exit::FAILURE,
            "failed to capture a command: the agent sees no cgroups on this machine\nstart the \
             command, and use agent-ctl capture --pid",
        )
    })?;
    let path = format!(
        "{}/fleetprof-capture-{}",
        own.trim_end_matches('/'),
        std::process::id()
    );
    let dir = root.join(path.trim_start_matches('/'));
    match std::fs::create_dir(&dir) {
        Ok(()) => Ok((OwnCgroup(dir), path)),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Err(fail(
            exit::PERMISSION,
            format!(
                "failed to make a cgroup for the command: `{}` does not belong to you\nrun \
                 `systemd-run --user --scope agent-ctl capture …`, or use sudo: the command then \
                 still runs as you",
                clean(own)
            ),
        )),
        Err(error) => {
            Err(error).with_context(|| format!("failed to make cgroup `{}`", shown(&dir)))
        }
    }
}

/// The cgroup of this process in the hierarchy that the agent samples by.
fn own_cgroup(text: &str, v1: bool) -> Option<&str> {
    text.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let is_it = match v1 {
            true => controllers.split(',').any(|name| name == "perf_event"),
            false => controllers.is_empty(),
        };
        is_it.then_some(path)
    })
}

/// Whoever called sudo.
#[derive(Debug, PartialEq, Eq)]
struct User {
    name: String,
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    home: Option<String>,
}

/// The user as whom the command runs; `None`: as this process does.
///
/// # Errors
/// When sudo says who called it, and that cannot be read.
fn caller() -> Result<Option<User>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let number = |name| std::env::var(name).ok()?.parse::<u32>().ok();
    let (Some(uid), Some(gid)) = (number("SUDO_UID"), number("SUDO_GID")) else {
        return Ok(None);
    };
    if uid == 0 {
        return Ok(None);
    }
    // Asked of the system, for groups may be in a directory of the network.
    let asked = Command::new("id")
        .arg("-G")
        .arg("--")
        .arg(uid.to_string())
        .output();
    let groups = asked.ok().filter(|output| output.status.success());
    let groups = groups.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let groups = groups.and_then(|text| {
        let groups: Result<Vec<u32>, _> = text.split_whitespace().map(str::parse).collect();
        groups.ok()
    });
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    Ok(Some(User {
        name: std::env::var("SUDO_USER").unwrap_or_else(|_| uid.to_string()),
        uid,
        gid,
        groups: groups.unwrap_or_else(|| vec![gid]),
        home: home(&passwd, uid).map(str::to_owned),
    }))
}

/// The home of a user.
fn home(passwd: &str, uid: u32) -> Option<&str> {
    let uid = uid.to_string();
    passwd.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        (fields.get(2) == Some(&uid.as_str())).then(|| fields.get(5).copied())?
    })
}

/// Becomes the command, where this process is the copy that waits for it: gives the exit code when
/// that fails. `None` when it is not that copy.
pub fn start(mut words: impl Iterator<Item = OsString>) -> Option<u8> {
    words.next()?;
    if words.next()? != STARTER {
        return None;
    }
    let (Some(path), Some(ids), Some(program)) = (words.next(), words.next(), words.next()) else {
        return Some(exit::USAGE);
    };
    let mut stream = UnixStream::connect(path).ok();
    let waited = stream
        .as_mut()
        .map(|stream| stream.read_exact(&mut [0]).is_ok());
    // Whoever was to record is gone: nothing runs.
    if waited != Some(true) {
        return Some(exit::FAILURE);
    }
    if let Err(error) = become_user(&ids) {
        note!("agent-ctl: failed to become the user who called sudo: {error}");
        return Some(NOT_RUNNABLE);
    }
    let error = Command::new(&program).args(words).exec();
    let program = program.to_string_lossy();
    note!("agent-ctl: failed to run `{}`: {error}", clean(&program));
    Some(match error.kind() {
        std::io::ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_RUNNABLE,
    })
}

/// Becomes the user of `UID:GID:GROUP,…`; `-`: stays who it is. This process has one thread.
fn become_user(ids: &OsStr) -> std::io::Result<()> {
    let invalid = || std::io::Error::from(std::io::ErrorKind::InvalidInput);
    let ids = ids.to_str().ok_or_else(invalid)?;
    if ids == "-" {
        return Ok(());
    }
    let mut parts = ids.split(':');
    let mut next = || parts.next().ok_or_else(invalid);
    let (uid, gid, groups) = (next()?, next()?, next()?);
    let number = |text: &str| text.parse::<u32>().map_err(|_| invalid());
    let uid = Uid::from_raw(number(uid)?);
    let gid = Gid::from_raw(number(gid)?);
    let groups: std::io::Result<Vec<Gid>> = groups
        .split(',')
        .map(|group| Ok(Gid::from_raw(number(group)?)))
        .collect();
    rustix::thread::set_thread_groups(&groups?)?;
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cgroup_is_that_of_the_hierarchy_that_is_sampled() {
        let text = "4:memory:/a\n3:cpu,perf_event:/b:c\n0::/user.slice/x\n";
        assert_eq!(own_cgroup(text, false), Some("/user.slice/x"));
        assert_eq!(own_cgroup(text, true), Some("/b:c"));
        assert_eq!(own_cgroup("4:memory:/a\n", false), None);
    }

    #[test]
    fn a_home_is_found_by_the_number_of_its_user() {
        let passwd = "root:x:0:0:root:/:/bin/sh\nada:x:1000:1000:Ada:/srv/ada:/bin/sh\nodd\n";
        assert_eq!(home(passwd, 1000), Some("/srv/ada"));
        assert_eq!(home(passwd, 7), None);
    }

    #[test]
    fn only_the_copy_that_waits_becomes_a_command() {
        let words = |text: &str| {
            let words: Vec<OsString> = text.split(' ').map(OsString::from).collect();
            start(words.into_iter())
        };
        assert_eq!(words("agent-ctl status"), None);
        assert_eq!(words("agent-ctl"), None);
        assert_eq!(
            words("agent-ctl --start-command /nowhere"),
            Some(exit::USAGE)
        );
        // Nobody listens there: the command is not run.
        let out = "agent-ctl --start-command /nowhere/start - touch /tmp/must-not-exist";
        assert_eq!(words(out), Some(exit::FAILURE));
        assert!(!Path::new("/tmp/must-not-exist").exists());
    }
}
