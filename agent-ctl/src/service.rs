//! The services of this machine, as systemd runs them, for the two commands that may be the first
//! ones after an installation: `join` starts the agent, `hosts invite --listen` the collector, and
//! has it listen for other machines. Root alone starts anything; where systemd does not know the
//! unit, nothing is done.

use crate::config::{Daemon, installed};
use crate::exit::{self, fail};
use anyhow::{Context, Result, anyhow};
use std::fs::{File, Metadata, Permissions};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The agent of this host.
pub const AGENT: Service = Service("fleetprofd.service");

/// The collector of this machine.
pub const COLLECTOR: Service = Service("fleetprof-collector.service");

/// A unit of systemd.
#[derive(Clone, Copy)]
pub struct Service(&'static str);

/// What systemd says of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// There is none, or no systemd.
    Unknown,
    /// It is installed and does not run.
    Stopped,
    /// It runs, or is about to.
    Running,
}

impl Service {
    /// Whether it is there and runs.
    pub fn state(self) -> State {
        let asked = systemctl(&["show", "--property=LoadState,ActiveState", self.0]);
        match asked {
            Ok(output) if output.status.success() => {
                state_of(&String::from_utf8_lossy(&output.stdout))
            }
            _ => State::Unknown,
        }
    }

    /// Starts it, now and at each boot, and waits until it is ready.
    ///
    /// # Errors
    /// With what systemd says.
    pub fn enable(self) -> Result<()> {
        self.run("start", &["enable", "--now", self.0])
    }

    /// Starts it again, and waits until it is ready.
    ///
    /// # Errors
    /// With what systemd says.
    pub fn restart(self) -> Result<()> {
        self.run("restart", &["restart", self.0])
    }

    fn run(self, what: &str, words: &[&str]) -> Result<()> {
        let output = systemctl(words).context("failed to run systemctl")?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let why = said.lines().next().unwrap_or("systemctl failed").trim();
        let unit = self.0;
        Err(fail(
            exit::FAILURE,
            format!("failed to {what} `{unit}`: {why}\nsee `journalctl -u {unit}`"),
        ))
    }
}

fn systemctl(words: &[&str]) -> std::io::Result<Output> {
    Command::new("systemctl")
        .arg("--no-ask-password")
        .args(words)
        .output()
}

fn state_of(shown: &str) -> State {
    let has = |line: &str| shown.lines().any(|shown| shown == line);
    if !has("LoadState=loaded") {
        State::Unknown
    } else if has("ActiveState=inactive") || has("ActiveState=failed") {
        State::Stopped
    } else {
        State::Running
    }
}

/// Whether this is root, who may start services.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Where the unit of the collector reads its configuration.
pub const COLLECTOR_CONFIG: &str = "/etc/fleetprof/collector.yaml";

/// A change of a configuration that can be taken back.
pub struct Change {
    path: PathBuf,
    /// What the file held before; none when there was none.
    before: Option<(Vec<u8>, Metadata)>,
}

impl Change {
    /// Puts the file back.
    pub fn undo(self) {
        let undone = match &self.before {
            Some((text, meta)) => write(&self.path, text, Some(meta)),
            None => std::fs::remove_file(&self.path).map_err(Into::into),
        };
        if let Err(error) = undone {
            note!("agent-ctl: failed to undo the change: {error:#}");
        }
    }
}

/// Writes `listen.tls` into a configuration of the collector; none where that has a section
/// `listen` already, which is somebody's decision.
///
/// # Errors
/// When it cannot be written, or is not valid then; it stays as it was.
pub fn set_listen_tls(path: &Path, address: SocketAddr) -> Result<Option<Change>> {
    // Through a link to where the file is.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let shown = path.display();
    let before = match std::fs::read(&path) {
        Ok(text) => Some((text, path.metadata()?)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(error).context(format!("failed to read `{shown}`")),
    };
    let text = before.as_ref().map_or(&[][..], |(text, _)| text);
    let text = std::str::from_utf8(text)
        .map_err(|_| anyhow!("failed to change `{shown}`: it is not UTF-8"))?;
    let Some(with) = with_listen_tls(text, address) else {
        return Ok(None);
    };
    let meta = before.as_ref().map(|(_, meta)| meta);
    let fresh = fresh(&path);
    let checked = write(&fresh, with.as_bytes(), meta).and_then(|()| check(&fresh, &path, address));
    if let Err(error) = checked {
        let _ = std::fs::remove_file(&fresh);
        return Err(error);
    }
    std::fs::rename(&fresh, &path).with_context(|| format!("failed to write `{shown}`"))?;
    Ok(Some(Change { path, before }))
}

/// The text with the key: in the place where it stands as a comment, or else at the end.
fn with_listen_tls(text: &str, address: SocketAddr) -> Option<String> {
    let is_listen = |line: &&str| {
        let key = line.trim_start_matches(['"', '\'']);
        key.strip_prefix("listen")
            .is_some_and(|rest| rest.starts_with([':', ' ', '"', '\'']))
    };
    if text.lines().any(|line| is_listen(&line)) {
        return None;
    }
    let lines: Vec<&str> = text.lines().collect();
    let section = lines.iter().position(|line| *line == "#listen:");
    let key = section.and_then(|at| {
        let within = lines[at + 1..].iter();
        let mut within = within.take_while(|line| line.starts_with([' ', '#']) && line.len() > 1);
        within
            .position(|line| *line == "#  tls: null")
            .map(|key| at + 1 + key)
    });
    let mut out = String::with_capacity(text.len() + 128);
    for (at, line) in lines.iter().enumerate() {
        match (Some(at) == section && key.is_some(), Some(at) == key) {
            (true, _) => out.push_str("listen:"),
            (_, true) => out.push_str(&format!("  tls: {address}")),
            _ => out.push_str(line),
        }
        out.push('\n');
    }
    if key.is_none() {
        out.push_str(&format!("\nlisten:\n  tls: {address}\n"));
    }
    Some(out)
}

/// Has the collector's own program look at a file.
fn check(file: &Path, path: &Path, address: SocketAddr) -> Result<()> {
    let program = installed(Daemon::Collector.program());
    let output = Command::new(&program)
        .arg("--check-config")
        .arg(file)
        .output()
        .with_context(|| format!("failed to run `{}`", program.display()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let why = said.lines().next().unwrap_or("it is not valid");
    let why = why.trim_start_matches("error: ");
    let name = path.display();
    Err(fail(
        exit::CONFIG,
        format!(
            "failed to change `{name}`: {why}\nset `listen.tls: {address}` there yourself, and \
             restart the collector"
        ),
    ))
}

/// Next to the file, so that it can take its place.
fn fresh(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    path.with_file_name(name)
}

/// Writes a file with the owner and the mode of another.
fn write(path: &Path, text: &[u8], like: Option<&Metadata>) -> Result<()> {
    let failed = || format!("failed to write `{}`", path.display());
    let write = || -> std::io::Result<()> {
        let mut file = File::create(path)?;
        if let Some(meta) = like {
            fchown(&file, Some(meta.uid()), Some(meta.gid()))?;
            file.set_permissions(Permissions::from_mode(meta.mode() & 0o7777))?;
        }
        file.write_all(text)?;
        file.sync_all()
    };
    write().with_context(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_systemd_says_of_a_unit() {
        for (shown, expected) in [
            ("LoadState=loaded\nActiveState=inactive\n", State::Stopped),
            ("LoadState=loaded\nActiveState=failed\n", State::Stopped),
            ("LoadState=loaded\nActiveState=active\n", State::Running),
            ("LoadState=loaded\nActiveState=activating\n", State::Running),
            (
                "LoadState=not-found\nActiveState=inactive\n",
                State::Unknown,
            ),
            ("LoadState=masked\nActiveState=inactive\n", State::Unknown),
            ("", State::Unknown),
        ] {
            assert_eq!(state_of(shown), expected, "{shown}");
        }
    }

    #[test]
    fn the_key_comes_where_its_comment_is_or_at_the_end() {
        let address: SocketAddr = "0.0.0.0:7601".parse().unwrap();
        let with = |text| with_listen_tls(text, address);
        let all = "\nlisten:\n  tls: 0.0.0.0:7601\n";
        assert_eq!(with("").as_deref(), Some(all));
        assert_eq!(with("a: 1").unwrap(), format!("a: 1\n{all}"));
        assert_eq!(
            with("#a: 1\n#listen:\n  # Where.\n#  grpc: x\n#  tls: null\n\n#tls: null\n").unwrap(),
            "#a: 1\nlisten:\n  # Where.\n#  grpc: x\n  tls: 0.0.0.0:7601\n\n#tls: null\n"
        );
        // That of another section is not meant.
        let other = "#listen:\n#  grpc: x\n\n#b:\n#  tls: null\n";
        assert_eq!(with(other).unwrap(), format!("{other}{all}"));
        for decided in [
            "listen:\n  tls: null\n",
            "listen: {}\n",
            "a: 1\n\"listen\": {}\n",
            "listen : {}\n",
        ] {
            assert_eq!(with(decided), None, "{decided}");
        }
        assert!(with("listener: 1\n").is_some());
    }
}
