//! A directory of the daemon alone: made where it is missing, looked at, locked, and reached
//! through its handle.
//!
//! The spool and the pins are kept in one each. All files are reached through the open directory,
//! so its path may not be exchanged under them. Blocks on the disk.

use crate::facts::effective_uid;
use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Why a directory cannot be used; whoever opens it says which it is.
#[derive(Debug)]
pub enum Trouble {
    /// It cannot be made or opened.
    Open(io::Error),
    /// Others could read or write what is in it.
    Refused(String),
    /// Another daemon has it.
    Locked,
}

impl From<io::Error> for Trouble {
    fn from(source: io::Error) -> Trouble {
        Trouble::Open(source)
    }
}

/// The directory, locked until this is dropped.
#[derive(Debug)]
pub struct PrivateDir {
    base: PathBuf,
    handle: File,
    _lock: File,
}

impl PrivateDir {
    /// Opens it, makes it where it is missing.
    ///
    /// # Errors
    /// [`Trouble`].
    pub fn open(path: &Path) -> Result<PrivateDir, Trouble> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let handle = File::options()
            .read(true)
            .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(path)
            .map_err(|source| match source.raw_os_error() {
                Some(libc::ELOOP | libc::ENOTDIR) => {
                    Trouble::Refused("it is a symbolic link or no directory".to_owned())
                }
                _ => Trouble::Open(source),
            })?;
        let meta = handle.metadata()?;
        let (uid, mode) = (meta.uid(), meta.mode() & 0o7777);
        if uid != effective_uid() {
            let why = format!("user {uid} owns it, not the daemon's");
            return Err(Trouble::Refused(why));
        }
        if mode & 0o022 != 0 {
            let why = format!("others may write to it (mode {mode:04o})");
            return Err(Trouble::Refused(why));
        }
        if mode != 0o700 {
            handle.set_permissions(Permissions::from_mode(0o700))?;
        }
        let base = PathBuf::from(format!("/proc/self/fd/{}", handle.as_raw_fd()));
        let lock = options()
            .create(true)
            .append(true)
            .open(base.join("lock"))?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => Trouble::Locked,
            TryLockError::Error(source) => Trouble::Open(source),
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
