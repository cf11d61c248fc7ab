//! Opens files with untrusted paths: only regular files, and the file that was checked is the one
//! that is read.
//!
//! A path may name a device or a pipe, for which opening has effects or blocks, or it may change
//! between two checks. So the file is first opened as `O_PATH`, which has no effect, and then
//! opened for reading through that handle.

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, open, openat2};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The file that a path led to. It stays the same even if the path changes, and is not open for
/// reading.
#[derive(Debug)]
pub struct PathHandle(OwnedFd);

impl PathHandle {
    /// What a path leads to, links followed.
    ///
    /// # Errors
    /// When it leads nowhere.
    pub fn at(path: &Path) -> Result<PathHandle, Errno> {
        let handle = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        Ok(PathHandle(handle))
    }

    /// What a path leads to for a process with this root: no link leads out of it.
    ///
    /// # Errors
    /// When it leads nowhere.
    pub fn within(root: &Path, path: &Path) -> Result<PathHandle, Errno> {
        let root = PathHandle::at(root)?;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let confined = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let handle = openat2(&root.0, path, flags, Mode::empty(), confined)?;
        Ok(PathHandle(handle))
    }

    fn link(&self) -> String {
        format!("/proc/self/fd/{}", self.0.as_raw_fd())
    }

    /// Where it lies.
    ///
    /// # Errors
    /// When nothing tells.
    pub fn place(&self) -> std::io::Result<PathBuf> {
        std::fs::read_link(self.link())
    }

    /// Opens it for reading.
    ///
    /// # Errors
    /// When it is not a regular file, or may not be read.
    pub fn open(self) -> Result<File, String> {
        let facts = fstat(&self.0).map_err(|error| error.to_string())?;
        if FileType::from_raw_mode(facts.st_mode) != FileType::RegularFile {
            return Err("it is not a regular file".to_owned());
        }
        // A lease that somebody holds on it is not waited for.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = open(self.link(), flags, Mode::empty());
        opened.map(File::from).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use rustix::fs::CWD;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// Makes a pipe that nobody writes to.
    pub fn fifo(path: &Path) {
        rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::RUSR, 0).unwrap();
    }

    #[test]
    fn regular_files_are_opened_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (pipe, file) = (dir.path().join("pipe"), dir.path().join("file"));
        fifo(&pipe);
        fs::write(&file, "text").unwrap();
        for path in [&pipe, &PathBuf::from("/dev/null"), &dir.path().to_owned()] {
            let error = PathHandle::at(path).unwrap().open().unwrap_err();
            assert_eq!(error, "it is not a regular file", "{path:?}");
        }
        let link = dir.path().join("link");
        symlink(&file, &link).unwrap();
        let handle = PathHandle::at(&link).unwrap();
        assert_eq!(handle.place().unwrap(), fs::canonicalize(&file).unwrap());
        // What was judged is opened, whatever the path leads to by then.
        fs::remove_file(&link).unwrap();
        symlink(&pipe, &link).unwrap();
        assert!(handle.open().is_ok());
    }

    #[test]
    fn no_link_leads_out_of_a_root() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir(&root).unwrap();
        fs::write(dir.path().join("outside"), "secret").unwrap();
        fs::write(root.join("inside"), "text").unwrap();
        symlink("/inside", root.join("absolute")).unwrap();
        symlink("../outside", root.join("up")).unwrap();
        symlink(dir.path().join("outside"), root.join("out")).unwrap();
        symlink("/proc/self/root/inside", root.join("magic")).unwrap();
        let within = |path: &str| PathHandle::within(&root, Path::new(path)).map(PathHandle::open);
        assert!(matches!(within("/inside"), Ok(Ok(_))));
        assert!(matches!(within("/absolute"), Ok(Ok(_))));
        for path in ["/up", "/out", "/magic", "/../outside"] {
            assert!(within(path).is_err(), "{path}");
        }
    }
}
