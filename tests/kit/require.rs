//! What a test needs of the machine, and the lock that lets one live test run at a time.

use crate::process::program;
use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// With this variable set to `1`, a skip fails the test: for machines that must have everything.
pub const SKIP_FAILS: &str = "FLEETPROF_SKIP_FAILS";

/// The file that takes the second CPU offline and back.
pub const SECOND_CPU: &str = "/sys/devices/system/cpu/cpu1/online";

/// Something a test cannot do without.
#[derive(Clone, Copy, Debug)]
pub enum Need {
    /// Effective uid 0.
    Root,
    /// A program of this name on `PATH`.
    Program(&'static str),
    /// A C compiler that can link statically.
    StaticC,
    /// cgroup2 mounted and owning `perf_event`, with directories that can be made in it.
    Cgroup2,
    /// A second CPU that can be taken offline.
    SecondCpu,
}

impl Need {
    /// Why the need is not met; `None` when it is.
    pub fn missing(self) -> Option<String> {
        match self {
            Need::Root => (!is_root()).then(|| "needs root".to_owned()),
            Need::Program(name) => program(name)
                .is_none()
                .then(|| format!("needs the program `{name}`")),
            Need::StaticC => program("gcc")
                .is_none()
                .then(|| "needs gcc and the static C library".to_owned()),
            Need::SecondCpu => (!Path::new(SECOND_CPU).exists())
                .then(|| "needs a second CPU that can be taken offline".to_owned()),
            Need::Cgroup2 => crate::cgroup::root()
                .err()
                .map(|e| format!("needs cgroup2: {e}")),
        }
    }
}

/// True with effective uid 0.
pub fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|meta| meta.uid() == 0)
}

/// Reports that a test did not run and why. Goes past the capture of the test runner, so that a
/// skip is never taken for a pass.
///
/// # Panics
/// When [`SKIP_FAILS`] is set.
pub fn skip(reason: impl Display) {
    let name = std::thread::current().name().unwrap_or("test").to_owned();
    let _ = writeln!(std::io::stderr(), "skip: {reason} ({name})");
    let fails = std::env::var_os(SKIP_FAILS).is_some_and(|value| value == "1");
    assert!(!fails, "skipped where {SKIP_FAILS} forbids it: {reason}");
}

/// Reports that a test did not run for lack of what this machine cannot have, whatever is
/// installed: another architecture, systemd as the first process, an idle CPU while others use all.
/// It fails nothing.
pub fn cannot(reason: impl Display) {
    let name = std::thread::current().name().unwrap_or("test").to_owned();
    let _ = writeln!(std::io::stderr(), "cannot: {reason} ({name})");
}

/// True when every need is met; reports the skip otherwise.
pub fn met(needs: &[Need]) -> bool {
    match needs.iter().find_map(|need| need.missing()) {
        Some(reason) => {
            skip(reason);
            false
        }
        None => true,
    }
}

/// The right to have the machine's CPUs: one holder at a time, over all test programs. For tests
/// that measure shares of CPU time or change settings of the kernel.
pub struct Live {
    _lock: File,
}

impl Live {
    /// Waits for the right.
    ///
    /// # Panics
    /// When the lock file cannot be made.
    pub fn take() -> Live {
        let _turn = turn();
        let lock = lock_file("fleetprof-live-tests");
        lock.lock().expect("failed to lock the live tests' file");
        Live { _lock: lock }
    }
}

/// The right to run daemons beside others that have it too, but beside no [`Live`] test. For tests
/// that mostly wait, and whose outcome does not depend on who else has the CPUs.
pub struct Beside {
    _lock: File,
}

impl Beside {
    /// Waits for the right.
    ///
    /// # Panics
    /// When the lock file cannot be made.
    pub fn take() -> Beside {
        let _turn = turn();
        let lock = lock_file("fleetprof-live-tests");
        lock.lock_shared()
            .expect("failed to lock the live tests' file");
        Beside { _lock: lock }
    }
}

/// Held while waiting for a right: without it a [`Live`] test waits until no [`Beside`] test is
/// left.
fn turn() -> File {
    // Built before anything is measured.
    crate::binaries::fleetprofd();
    let turn = lock_file("fleetprof-live-tests-turn");
    turn.lock().expect("failed to lock the live tests' turn");
    turn
}

fn lock_file(name: &str) -> File {
    let path = if Path::new("/run/lock").is_dir() {
        "/run/lock"
    } else {
        "/tmp"
    };
    let path = Path::new(path).join(name);
    let lock = File::options().create(true).append(true).open(&path);
    lock.unwrap_or_else(|e| panic!("failed to open `{}`: {e}", path.display()))
}

/// The right to run a live test; reports a skip and returns nothing where a need is not met.
pub fn live(needs: &[Need]) -> Option<Live> {
    met(needs).then(Live::take)
}

/// The right to run a live test that only waits; reports a skip and returns nothing where a need is
/// not met.
///
/// # Panics
/// When the lock file cannot be made.
pub fn beside(needs: &[Need]) -> Option<Beside> {
    met(needs).then(Beside::take)
}
