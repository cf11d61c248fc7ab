//! Settings of the kernel, changed for the length of a test and put back when dropped. For tests
//! that hold [`crate::Live`]: a setting belongs to everybody on the machine.

use std::path::PathBuf;

/// A changed setting.
#[derive(Debug)]
pub struct Sysctl {
    file: PathBuf,
    before: String,
}

impl Sysctl {
    /// Changes `kernel/name` to `value`; nothing when the kernel refuses.
    pub fn set(name: &str, value: impl ToString) -> Option<Sysctl> {
        let file = PathBuf::from("/proc/sys").join(name);
        let before = std::fs::read_to_string(&file).ok()?;
        std::fs::write(&file, value.to_string()).ok()?;
        Some(Sysctl { file, before })
    }
}

impl Drop for Sysctl {
    fn drop(&mut self) {
        if let Err(error) = std::fs::write(&self.file, &self.before) {
            eprintln!(
                "failed to put {} back to {}: {error}",
                self.file.display(),
                self.before
            );
        }
    }
}
