//! cgroups made for a test, in the hierarchy that `perf_event` belongs to.

use anyhow::Context;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Mount point of the hierarchy whose ids samples carry: the v1 hierarchy of `perf_event` where
/// there is one, else cgroup2.
///
/// # Errors
/// When neither is mounted, in words for a skip.
pub fn root() -> Result<PathBuf, String> {
    let mounts = fs::read_to_string("/proc/self/mounts")
        .map_err(|e| format!("no /proc/self/mounts: {e}"))?;
    let mut unified = None;
    for line in mounts.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [_, place, kind, options, ..] = fields[..] else {
            continue;
        };
        if kind == "cgroup" && options.split(',').any(|option| option == "perf_event") {
            return Ok(PathBuf::from(place));
        }
        if kind == "cgroup2" && unified.is_none() {
            unified = Some(PathBuf::from(place));
        }
    }
    unified.ok_or_else(|| "no hierarchy of perf_event is mounted".to_owned())
}

/// A cgroup of its own; processes in it are killed and it is removed when dropped.
pub struct Cgroup {
    dir: PathBuf,
    path: OsString,
}

impl Cgroup {
    /// Makes a cgroup directly under the root. Its name is `name`, this process and a number, so
    /// that tests side by side do not meet.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn new(name: impl AsRef<OsStr>) -> Cgroup {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mut full = name.as_ref().as_bytes().to_vec();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        full.extend_from_slice(format!("-{}-{number}", std::process::id()).as_bytes());
        Cgroup::at(Path::new(&OsString::from_vec(full)))
    }

    /// Makes a cgroup below this one.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn child(&self, name: impl AsRef<OsStr>) -> Cgroup {
        let below = Path::new(&self.path)
            .strip_prefix("/")
            .expect("a path starts with /");
        Cgroup::at(&below.join(name.as_ref()))
    }

    fn at(below_root: &Path) -> Cgroup {
        let dir = root().expect("no cgroup root").join(below_root);
        fs::create_dir(&dir).unwrap_or_else(|e| panic!("failed to make {dir:?}: {e}"));
        let mut path = OsString::from("/");
        path.push(below_root);
        Cgroup { dir, path }
    }

    /// Ends all that is in it, removes it, and makes another one at its path, as a restart of a
    /// unit does.
    ///
    /// # Panics
    /// When it cannot be removed or made.
    pub fn make_again(&self) {
        fs::write(self.dir.join("cgroup.kill"), "1").expect("all in it is killed");
        let removed =
            crate::process::wait_for(Duration::from_secs(20), || fs::remove_dir(&self.dir).ok());
        removed.unwrap_or_else(|| panic!("failed to remove {:?}", self.dir));
        let dir = &self.dir;
        fs::create_dir(dir).unwrap_or_else(|e| panic!("failed to make {dir:?}: {e}"));
    }

    /// Its path as samples name it: from the root of the hierarchy, starting with `/`.
    ///
    /// # Panics
    /// When it is not UTF-8.
    pub fn path(&self) -> &str {
        self.path.to_str().expect("a cgroup path that is not UTF-8")
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Moves a process in.
    ///
    /// # Panics
    /// When the kernel refuses.
    pub fn add(&self, pid: u32) {
        let file = self.dir.join("cgroup.procs");
        fs::write(&file, pid.to_string())
            .unwrap_or_else(|e| panic!("failed to write {file:?}: {e}"));
    }

    /// A command that moves itself in before it becomes `program`, so that nothing of it ever runs
    /// outside.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        command_in(&self.dir, program.as_ref())
    }

    /// The same, at the lowest priority: many programs that are there to be sampled leave the CPUs
    /// to the daemon, which has to read their files, and to other tests.
    pub fn command_that_yields(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = command_in(&self.dir, "nice");
        command.args(["-n", "19"]).arg(program.as_ref());
        command
    }

    /// CPU time of everything that ever ran in it. Unit: nanoseconds.
    ///
    /// # Errors
    /// When the hierarchy keeps no such account (cgroup v1).
    pub fn cpu_ns(&self) -> anyhow::Result<u64> {
        let text = fs::read_to_string(self.dir.join("cpu.stat")).context("no `cpu.stat`")?;
        let usage = text
            .lines()
            .find_map(|line| line.strip_prefix("usage_usec "));
        Ok(usage.context("no `usage_usec`")?.parse::<u64>()? * 1000)
    }
}

/// A CPU limit of a cgroup, in the hierarchy that has the CPU controller: that of the cgroup, or a
/// v1 hierarchy with a cgroup of the same path, as systemd and container runtimes make them.
/// Removed when dropped, which has to be after what runs in it has ended.
pub struct CpuLimit {
    dir: PathBuf,
    /// The directory is one of its own.
    v1: bool,
}

impl CpuLimit {
    /// Limits a cgroup to a part of a core, in thousandths, over periods of 100 ms.
    ///
    /// # Errors
    /// When the machine has no controller for it, in words for a skip.
    pub fn new(cgroup: &Cgroup, millicores: u64) -> Result<CpuLimit, String> {
        let mounts = fs::read_to_string("/proc/self/mounts")
            .map_err(|e| format!("no /proc/self/mounts: {e}"))?;
        let v1 = mounts.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let [_, place, "cgroup", options, ..] = fields[..] else {
                return None;
            };
            let mut options = options.split(',');
            options
                .any(|option| option == "cpu")
                .then(|| PathBuf::from(place))
        });
        let quota_us = millicores * 100;
        let write = |file: PathBuf, text: String| {
            fs::write(&file, text).map_err(|e| format!("failed to write {file:?}: {e}"))
        };
        let Some(v1) = v1 else {
            let above = cgroup.dir.parent().ok_or("a root has no limit")?;
            write(above.join("cgroup.subtree_control"), "+cpu".to_owned())?;
            write(cgroup.dir.join("cpu.max"), format!("{quota_us} 100000"))?;
            let dir = cgroup.dir.clone();
            return Ok(CpuLimit { dir, v1: false });
        };
        let dir = v1.join(cgroup.path().trim_start_matches('/'));
        fs::create_dir(&dir).map_err(|e| format!("failed to make {dir:?}: {e}"))?;
        let limit = CpuLimit { dir, v1: true };
        write(limit.dir.join("cpu.cfs_period_us"), "100000".to_owned())?;
        write(limit.dir.join("cpu.cfs_quota_us"), quota_us.to_string())?;
        Ok(limit)
    }

    /// Puts a process of the cgroup under its limit, where that is not so already.
    ///
    /// # Panics
    /// When the kernel refuses.
    pub fn add(&self, pid: u32) {
        if self.v1 {
            fs::write(self.dir.join("cgroup.procs"), pid.to_string()).expect("a process is moved");
        }
    }

    /// For how long it has held back what is under it, as the kernel counts it. Unit: nanoseconds.
    ///
    /// # Panics
    /// When the kernel does not say.
    pub fn throttled_ns(&self) -> u64 {
        let text = fs::read_to_string(self.dir.join("cpu.stat")).expect("a `cpu.stat`");
        let number = |name: &str| {
            let mut lines = text.lines();
            lines.find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
        };
        let v1 = number("throttled_time ");
        v1.or_else(|| Some(number("throttled_usec ")? * 1000))
            .expect("the time of throttling")
    }
}

impl Drop for CpuLimit {
    fn drop(&mut self) {
        if self.v1 {
            crate::process::wait_for(Duration::from_secs(5), || {
                (fs::remove_dir(&self.dir).is_ok() || !self.dir.exists()).then_some(())
            });
        }
    }
}

/// See [`Cgroup::command`].
pub(crate) fn command_in(dir: &Path, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", r#"echo $$ > "$0" && exec "$@""#]);
    command.arg(dir.join("cgroup.procs")).arg(program);
    command
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::write(self.dir.join("cgroup.kill"), "1");
        // A killed process leaves its cgroup a moment later.
        crate::process::wait_for(Duration::from_secs(5), || {
            (fs::remove_dir(&self.dir).is_ok() || !self.dir.exists()).then_some(())
        });
    }
}
