//! A directory used only by the daemon: created if missing, checked, locked, and accessed through
//! its handle.
//!
//! The spool and the pins have one each. All files are accessed through the open directory, so
//! nobody can replace its path in between. Blocks on the disk.

use crate::facts::effective_uid;
use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Why a directory cannot be used. `what` names it: "spool directory".
#[derive(Debug, thiserror::Error)]
pub enum DirError {
    /// It cannot be made or opened.
    #[error("failed to open {what} `{}`", path.display())]
    Open {
        /// Its purpose.
        what: &'static str,
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others could read or write what is in it.
    #[error("failed to use {what} `{}`: {why}", path.display())]
    Refused {
        /// Its purpose.
        what: &'static str,
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Another daemon has it.
    #[error("failed to lock {what} `{}`: another daemon uses it", path.display())]
    Locked {
        /// Its purpose.
        what: &'static str,
        /// The directory.
        path: PathBuf,
    },
}

/// The directory, locked until this is dropped.
#[derive(Debug)]
pub struct PrivateDir {
    base: PathBuf,
    handle: File,
    _lock: File,
}

impl PrivateDir {
    /// Opens it, makes it where it is missing. `what` is its name in errors.
    ///
    /// # Errors
    /// [`DirError`].
    pub fn open(path: &Path, what: &'static str) -> Result<PrivateDir, DirError> {
        let open = |source| DirError::Open {
            what,
            path: path.to_path_buf(),
            source,
        };
        let refused = |why| DirError::Refused {
            what,
            path: path.to_path_buf(),
            why,
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(open)?;
        let handle = File::options()
            .read(true)
            .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(path)
            .map_err(|source| match source.raw_os_error() {
                Some(libc::ELOOP | libc::ENOTDIR) => {
                    refused("it is a symbolic link, or not a directory".to_owned())
                }
                _ => open(source),
            })?;
        let meta = handle.metadata().map_err(open)?;
        let (uid, mode) = (meta.uid(), meta.mode() & 0o7777);
        if uid != effective_uid() {
            return Err(refused(format!(
                "its owner is user {uid}, not the daemon's user"
            )));
        }
        if mode & 0o022 != 0 {
            return Err(refused(format!(
                "other users may write to it (mode {mode:04o})"
            )));
        }
        if mode != 0o700 {
            let private = handle.set_permissions(Permissions::from_mode(0o700));
            private.map_err(open)?;
        }
        let base = PathBuf::from(format!("/proc/self/fd/{}", handle.as_raw_fd()));
        let lock = options()
            .create(true)
            .append(true)
            .open(base.join("lock"))
            .map_err(open)?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => DirError::Locked {
                what,
                path: path.to_path_buf(),
            },
            TryLockError::Error(source) => open(source),
        })?;
        Ok(PrivateDir {
            base,
            handle,
            _lock: lock,
        })
    }

    /// The path by which its files are reached.
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// Makes durable which files are in it.
    ///
    /// # Errors
    /// When the disk does not take it.
    pub fn sync(&self) -> io::Result<()> {
        self.handle.sync_all()
    }
}

/// How all its files are opened: never through a link, never waiting for a FIFO.
pub fn options() -> OpenOptions {
    let mut options = File::options();
    options
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK);
    options
}
