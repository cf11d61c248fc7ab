//! The collectors to which the user has logged in: their address and the token for each, in
//! `fleetprof/logins.json` in the user's configuration directory.
//!
//! A token contains the hash of the key of the fleet's authority, so the right collector is
//! recognized without anything else. The file must be readable only by its owner; otherwise it is
//! rejected, as `ssh` does.

use crate::exit::{self, fail};
use anyhow::{Context, Result};
use profile::fleet::COLLECTOR_PORT;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Largest file. Unit: bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Access that others than the owner have.
const OTHERS: u32 = 0o077;

/// See the file.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Logins {
    /// Which is asked when none is named.
    #[serde(default)]
    pub default: Option<String>,
    /// By name.
    #[serde(default)]
    pub collectors: BTreeMap<String, Login>,
}

/// A collector.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Login {
    /// `HOST:PORT`.
    pub address: String,
    /// The string of a token.
    pub token: String,
}

impl Logins {
    /// The user's logins; none if there is no file.
    ///
    /// # Errors
    /// When the file cannot be read, or others can read it.
    pub fn read() -> Result<Logins> {
        match path() {
            Some(path) => Logins::read_from(&path),
            None => Ok(Logins::default()),
        }
    }

    fn read_from(path: &Path) -> Result<Logins> {
        let failed = || format!("failed to read `{}`", path.display());
        let file = match std::fs::File::open(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Logins::default());
            }
            opened => opened.with_context(failed)?,
        };
        let mode = file.metadata().with_context(failed)?.mode();
        if mode & OTHERS != 0 {
            let shown = path.display();
            return Err(fail(
                exit::PERMISSION,
                format!(
                    "failed to use `{shown}`: it holds tokens, and other users can read it\nchmod \
                     600 {shown}"
                ),
            ));
        }
        let mut text = String::new();
        file.take(FILE_BYTES_MAX)
            .read_to_string(&mut text)
            .with_context(failed)?;
        serde_json::from_str(&text).map_err(|error| {
            let shown = path.display();
            fail(
                exit::CONFIG,
                format!("failed to read `{shown}`: {error}\nremove it and log in again"),
            )
        })
    }

    /// Puts them in the place of those that were.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn write(&self) -> Result<()> {
        let path = path()
            .context("failed to find the user's configuration: set XDG_CONFIG_HOME or HOME")?;
        self.write_to(&path)
    }

    fn write_to(&self, path: &Path) -> Result<()> {
        let failed = || format!("failed to write `{}`", path.display());
        let dir = path.parent().unwrap_or(Path::new("."));
        let mut builder = DirBuilder::new();
        builder
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .with_context(failed)?;
        // Only its owner can read it, and it is written atomically.
        let mut file = tempfile::NamedTempFile::new_in(dir).with_context(failed)?;
        let mut text = serde_json::to_vec_pretty(self).with_context(failed)?;
        text.push(b'\n');
        file.write_all(&text).with_context(failed)?;
        file.as_file().sync_all().with_context(failed)?;
        file.persist(path).with_context(failed)?;
        Ok(())
    }

    /// The collector that is asked when none is named.
    pub fn default_login(&self) -> Option<&Login> {
        let name = self.default.as_ref()?;
        self.collectors.get(name)
    }

    /// The collector with this address; its host may be the name of a login.
    pub fn named(&self, address: &str) -> Option<&Login> {
        let of_name = |login: &String| address == format!("{login}:{COLLECTOR_PORT}");
        let named = self.collectors.iter().find(|(name, _)| of_name(name));
        let named = named.map(|(_, login)| login);
        named.or_else(|| {
            let mut logins = self.collectors.values();
            logins.find(|login| login.address == address)
        })
    }
}

/// Where they are.
fn path() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let config = match set("XDG_CONFIG_HOME") {
        Some(dir) => PathBuf::from(dir),
        None => PathBuf::from(set("HOME")?).join(".config"),
    };
    Some(config.join("fleetprof").join("logins.json"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn logins() -> Logins {
        let login = Login {
            address: "c1.example.net:7601".to_owned(),
            token: "fpu1_x".to_owned(),
        };
        Logins {
            default: Some("prod".to_owned()),
            collectors: [("prod".to_owned(), login)].into(),
        }
    }

    #[test]
    fn what_was_written_is_read_and_is_its_owners_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a").join("logins.json");
        assert!(
            Logins::read_from(&path)
                .expect("none")
                .collectors
                .is_empty()
        );
        logins().write_to(&path).expect("written");
        let mode = std::fs::metadata(&path).expect("it is there").mode();
        assert_eq!(mode & 0o777, 0o600);
        let read = Logins::read_from(&path).expect("read");
        assert_eq!(read.default_login(), logins().default_login());
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).expect("set");
        let refused = Logins::read_from(&path).expect_err("others can read it");
        assert!(refused.to_string().contains("chmod 600"), "{refused}");
    }

    #[test]
    fn a_collector_goes_by_its_name_and_by_its_address() {
        let logins = logins();
        let found = |text: &str| logins.named(text).is_some();
        assert!(found("prod:7600"));
        assert!(found("c1.example.net:7601"));
        for other in ["prod:7601", "c1.example.net:7600", "other:7600"] {
            assert!(!found(other), "{other}");
        }
    }
}
