//! A small file system of its own, for tests of full disks.

use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A file system in memory, unmounted when it is dropped.
#[derive(Debug)]
pub struct SmallDisk(TempDir);

impl SmallDisk {
    /// Mounts one of a size such as `256k`; `None` where it cannot be mounted, which is a skip.
    #[must_use]
    pub fn mount(size: &str) -> Option<SmallDisk> {
        let folder = tempfile::tempdir().ok()?;
        let option = format!("size={size}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &option, "tmpfs"]);
        let mounted = mount.arg(folder.path()).stderr(Stdio::null()).status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(SmallDisk(folder));
        }
        crate::skip("needs the right to mount a file system");
        None
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Makes it larger.
    ///
    /// # Panics
    /// When the kernel refuses.
    pub fn grow(&self, size: &str) {
        let option = format!("remount,size={size}");
        let mut mount = Command::new("mount");
        let done = mount.args(["-o", &option]).arg(self.path()).status();
        let done = done.expect("failed to run mount");
        assert!(done.success(), "failed to grow a file system: {done}");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}
