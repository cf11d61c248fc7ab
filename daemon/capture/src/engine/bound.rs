//! The cgroup that the events of a set are bound to: its directory and its id.

use super::EngineError;
use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The one cgroup that a set is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bound {
    pub(super) directory: PathBuf,
    /// Its device and inode, because a path may be reused.
    pub(super) identity: (u64, u64),
}

pub(super) fn open_cgroup(path: &Path) -> Result<(File, Bound), EngineError> {
    let open = || {
        let mut options = File::options();
        options.read(true).custom_flags(libc::O_DIRECTORY);
        let directory = options.open(path)?;
        let meta = directory.metadata()?;
        let bound = Bound {
            directory: path.to_path_buf(),
            identity: (meta.dev(), meta.ino()),
        };
        Ok((directory, bound))
    };
    open().map_err(|source| gone(path, source))
}

/// Device and inode of a directory.
pub(super) fn identity(directory: &Path) -> io::Result<(u64, u64)> {
    let meta = directory.metadata()?;
    Ok((meta.dev(), meta.ino()))
}

pub(super) fn gone(directory: &Path, source: io::Error) -> EngineError {
    EngineError::Cgroup {
        path: directory.display().to_string(),
        source,
    }
}
