//! Stores the key and the certificate in a directory used only by the daemon.
//!
//! `host.key` is created once. `membership.json` has the collector's address, the host's name in
//! the fleet, and its certificate. It is replaced atomically, so a power cut leaves the old or the
//! new one.

use host::private_dir::{DirError, PrivateDir, options};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::Path;

const KEY_FILE: &str = "host.key";
const MEMBERSHIP_FILE: &str = "membership.json";

/// Largest of these files. Unit: bytes. A membership takes some 4 KiB.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Why the identity cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The directory cannot be used.
    #[error(transparent)]
    Dir(#[from] DirError),
    /// A file in it cannot be read or written.
    #[error("failed to {operation} `{file}` of the host's identity")]
    File {
        /// The operation that failed.
        operation: &'static str,
        /// Name of the file.
        file: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// A file in it is not what it should be.
    #[error("failed to read `{file}` of the host's identity: {why}")]
    Damaged {
        /// Name of the file.
        file: &'static str,
        /// Why.
        why: String,
    },
    /// No key could be made.
    #[error("failed to make a key")]
    Key(#[source] rcgen::Error),
}

/// A host's membership in its fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// Where the collector is: `HOST:PORT`.
    pub collector: String,
    /// The fleet's id.
    pub fleet_id: String,
    /// The host id that the certificate is for.
    pub host_id: String,
    /// The name by which the fleet knows the host.
    pub name: String,
    /// Labels that the fleet gave it.
    pub labels: BTreeMap<String, String>,
    /// The certificate. PEM.
    pub certificate: String,
    /// Certificates of the fleet's authorities. PEM.
    pub authorities: Vec<String>,
    /// When the certificate was had, by this host's clock. Unit: seconds since the Unix epoch.
    pub issued_unix_s: i64,
    /// When it ends. Unit: seconds since the Unix epoch.
    pub not_after_unix_s: i64,
    /// The name that the collector's certificate must have; empty: that of all fleets.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub server_name: String,
}

/// See the file. Blocks on the disk.
pub struct IdentityStore {
    dir: PrivateDir,
}

impl IdentityStore {
    /// Opens the directory, makes it where it is missing.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn open(path: &Path) -> Result<IdentityStore, StoreError> {
        let dir = PrivateDir::open(path, "directory of the host's identity")?;
        Ok(IdentityStore { dir })
    }

    /// The host's key, which is made now where there is none. PEM.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn key(&self) -> Result<String, StoreError> {
        if let Some(pem) = self.read(KEY_FILE)? {
            KeyPair::from_pem(&pem).map_err(|error| StoreError::Damaged {
                file: KEY_FILE,
                why: error.to_string(),
            })?;
            return Ok(pem);
        }
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(StoreError::Key)?;
        let pem = key.serialize_pem();
        self.write(KEY_FILE, pem.as_bytes())?;
        Ok(pem)
    }

    /// The host's membership; `None` before it has joined a fleet.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn membership(&self) -> Result<Option<Membership>, StoreError> {
        let Some(text) = self.read(MEMBERSHIP_FILE)? else {
            return Ok(None);
        };
        let membership = serde_json::from_str(&text).map_err(|error| StoreError::Damaged {
            file: MEMBERSHIP_FILE,
            why: error.to_string(),
        })?;
        Ok(Some(membership))
    }

    /// Keeps a membership in place of the one before.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn keep(&self, membership: &Membership) -> Result<(), StoreError> {
        let text = serde_json::to_vec_pretty(membership).map_err(|error| StoreError::File {
            operation: "write",
            file: MEMBERSHIP_FILE,
            source: error.into(),
        })?;
        self.write(MEMBERSHIP_FILE, &text)
    }

    /// Forgets the fleet; the key stays.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn forget(&self) -> Result<(), StoreError> {
        let removed = std::fs::remove_file(self.dir.base().join(MEMBERSHIP_FILE));
        match removed.and_then(|()| self.dir.sync()) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(StoreError::File {
                operation: "remove",
                file: MEMBERSHIP_FILE,
                source,
            }),
            _ => Ok(()),
        }
    }

    fn read(&self, file: &'static str) -> Result<Option<String>, StoreError> {
        let failed = |source| StoreError::File {
            operation: "read",
            file,
            source,
        };
        let opened = match options().read(true).open(self.dir.base().join(file)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(failed)?,
        };
        let mut text = String::new();
        let mut bounded = opened.take(FILE_BYTES_MAX + 1);
        bounded.read_to_string(&mut text).map_err(failed)?;
        if text.len() as u64 > FILE_BYTES_MAX {
            let why = "it is too large".to_owned();
            return Err(StoreError::Damaged { file, why });
        }
        Ok(Some(text))
    }

    fn write(&self, file: &'static str, bytes: &[u8]) -> Result<(), StoreError> {
        let fresh = self.dir.base().join(format!("{file}.new"));
        let write = || {
            let mut opened = options()
                .write(true)
                .create(true)
                .truncate(true)
                .open(&fresh)?;
            opened.write_all(bytes)?;
            opened.sync_all()?;
            std::fs::rename(&fresh, self.dir.base().join(file))?;
            self.dir.sync()
        };
        write().map_err(|source| StoreError::File {
            operation: "write",
            file,
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_key_is_made_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("identity");
        let store = IdentityStore::open(&path).expect("opens");
        let key = store.key().expect("a key");
        assert_eq!(store.key().expect("the same"), key);
        let mode = std::fs::metadata(path.join(KEY_FILE))
            .expect("there")
            .permissions();
        assert_eq!(mode.mode() & 0o777, 0o600);
    }

    #[test]
    fn a_membership_is_read_as_it_was_kept() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = IdentityStore::open(&dir.path().join("identity")).expect("opens");
        assert_eq!(store.membership().expect("reads"), None);
        let membership = Membership {
            collector: "c1:7601".to_owned(),
            labels: [("cluster".to_owned(), "eu".to_owned())].into(),
            not_after_unix_s: 5,
            ..Membership::default()
        };
        store.keep(&membership).expect("kept");
        assert_eq!(store.membership().expect("reads"), Some(membership));
        store.forget().expect("forgets");
        store.forget().expect("again");
        assert_eq!(store.membership().expect("reads"), None);
    }

    #[test]
    fn damaged_files_are_reported_and_left_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("identity");
        let store = IdentityStore::open(&path).expect("opens");
        for file in [KEY_FILE, MEMBERSHIP_FILE] {
            std::fs::write(path.join(file), "nonsense").expect("written");
        }
        assert!(matches!(store.key(), Err(StoreError::Damaged { .. })));
        assert!(matches!(
            store.membership(),
            Err(StoreError::Damaged { .. })
        ));
        let text = std::fs::read_to_string(path.join(KEY_FILE)).expect("there");
        assert_eq!(text, "nonsense");
    }
}
