//! Switches on `listen.tls` in the configuration of this machine's collector, for `hosts invite
//! --listen`: the file is checked by the collector's own program before it takes its place.

use crate::config::{Daemon, installed};
use crate::exit::{self, fail};
use anyhow::{Context, Result, anyhow};
use std::fs::{Metadata, Permissions};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::NamedTempFile;

/// Where the unit of the collector reads its configuration.
pub const COLLECTOR_CONFIG: &str = "/etc/fleetprof/collector.yaml";

/// Mode of a configuration that was not there before.
const MODE: u32 = 0o644;

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
            Some((text, meta)) => write_beside(&self.path, text, Some(meta))
                .and_then(|file| Ok(file.persist(&self.path).map(|_| ())?)),
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
pub fn set(path: &Path, address: SocketAddr) -> Result<Option<Change>> {
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
    let fresh = write_beside(&path, with.as_bytes(), meta)?;
    check(fresh.path(), &path, address)?;
    let written = fresh.persist(&path);
    written.with_context(|| format!("failed to write `{shown}`"))?;
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

/// Writes a file that can take the place of the one at `path`, with the owner and the mode of the
/// one that was there. Unless it does, it is removed.
fn write_beside(path: &Path, text: &[u8], like: Option<&Metadata>) -> Result<NamedTempFile> {
    let write = || -> std::io::Result<NamedTempFile> {
        let mut fresh = NamedTempFile::new_in(path.parent().unwrap_or(Path::new("/")))?;
        let file = fresh.as_file_mut();
        let mode = match like {
            Some(meta) => {
                fchown(&*file, Some(meta.uid()), Some(meta.gid()))?;
                meta.mode() & 0o7777
            }
            None => MODE,
        };
        file.set_permissions(Permissions::from_mode(mode))?;
        file.write_all(text)?;
        file.sync_all()?;
        Ok(fresh)
    };
    write().with_context(|| format!("failed to write `{}`", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

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
