//! What the daemon gives up once it runs, and who can tell: system calls for the whole process
//! (seccomp), files and ports for threads that talk to the network (Landlock).
//!
//! A thread hands its restrictions on to the threads that it starts, and to nobody else. One that
//! is confined can look at no other process any more: the kernel refuses `/proc/PID/root`, `mem`,
//! `exe` and `map_files` to whoever is in a domain of Landlock, whatever its rules say. So threads
//! that sample, read files of others or start captures must neither be confined nor be started by
//! one that is: the `Starter` of `starter.rs` starts threads for it.
//!
//! Threads share memory. This bounds what code can be brought to do that is wrong, not what code
//! does that somebody put there.

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, LandlockStatus, NetPort, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

mod seccomp;
pub mod starter;
mod sys;

/// The newest rules that are known here. Of those the kernel's are in force.
const NEWEST: ABI = ABI::V7;

/// Files that finding the address of a name reads; directories with all below.
const NAMING: [&str; 8] = [
    "/etc",
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/run/systemd/resolve",
    "/run/resolvconf",
    "/run/NetworkManager",
];

/// The port of name servers, for answers that are too long for a datagram.
const NAMING_PORT: u16 = 53;

/// What a confined thread may still reach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Files, or directories with all below them, that it may read.
    pub reads: Vec<PathBuf>,
    /// Directories that it may change, with all below them. One that is missing is made.
    pub writes: Vec<PathBuf>,
    /// Ports that it may connect to over TCP.
    pub ports: BTreeSet<u16>,
}

impl Reach {
    /// Also what it takes to find the address of a name.
    pub fn naming(mut self) -> Reach {
        self.reads.extend(NAMING.iter().map(PathBuf::from));
        self.ports.insert(NAMING_PORT);
        self
    }
}

/// What is in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// False: the configuration wants nothing of it.
    pub on: bool,
    /// Version of Landlock's rules in force; 0: none.
    pub landlock_abi: u32,
    /// Threads that are confined, by name.
    pub confined: Vec<&'static str>,
    /// Why a thread that should be confined is not.
    pub landlock_error: String,
    /// System calls are refused.
    pub seccomp: bool,
    /// Why not.
    pub seccomp_error: String,
}

impl Report {
    /// Why what should be in force is not; `None` when all of it is.
    pub fn missing(&self) -> Option<String> {
        let mut reasons = vec![self.landlock_error.as_str(), self.seccomp_error.as_str()];
        reasons.retain(|reason| !reason.is_empty());
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

/// Gives up what is not needed, where the configuration wants it, and keeps the account.
#[derive(Debug)]
pub struct Sandbox {
    report: Mutex<Report>,
}

impl Sandbox {
    /// One in which nothing is given up yet.
    pub fn new(on: bool) -> Sandbox {
        Sandbox {
            report: Mutex::new(Report {
                on,
                ..Report::default()
            }),
        }
    }

    /// What is in force.
    pub fn report(&self) -> Report {
        lock(&self.report).clone()
    }

    /// Confines the thread that calls, and those that it will start. To be called before anything
    /// else runs there. Where the kernel has no Landlock the thread goes on as it is.
    pub fn confine(&self, thread: &'static str, reach: &Reach) {
        if !lock(&self.report).on {
            return;
        }
        let confined = restrict(reach);
        let mut report = lock(&self.report);
        match confined {
            Ok(abi) => {
                report.landlock_abi = abi;
                report.confined.push(thread);
            }
            Err(error) => report.landlock_error = error,
        }
    }

    /// Has the kernel refuse system calls that the process has no use for, to all of its threads,
    /// for good. `mounts`: it may have to make a file system of its own.
    pub fn refuse_calls(&self, mounts: bool) {
        if !lock(&self.report).on {
            return;
        }
        let refused = seccomp::install(mounts);
        let mut report = lock(&self.report);
        report.seccomp = refused.is_ok();
        report.seccomp_error = refused
            .err()
            .map_or(String::new(), |error| error.to_string());
    }
}

/// Locks a mutex, whether or not a holder has panicked: what it holds is set as a whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a thread is not confined, as text: it is told and nothing more.
fn restrict(reach: &Reach) -> Result<u32, String> {
    let told = |error: RulesetError| format!("failed to confine a thread: {error}");
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let write = AccessFs::from_all(NEWEST) & !AccessFs::Execute & !AccessFs::IoctlDev;
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(NEWEST)))
        .and_then(|rules| rules.scope(Scope::from_all(NEWEST)))
        .and_then(Ruleset::create)
        .map_err(told)?;
    for path in &reach.reads {
        // What is not there is not read either.
        let Ok(place) = PathFd::new(path) else {
            continue;
        };
        let access = match path.is_dir() {
            true => read,
            false => AccessFs::ReadFile.into(),
        };
        rules = rules
            .add_rule(PathBeneath::new(place, access))
            .map_err(told)?;
    }
    for path in &reach.writes {
        let place = PathFd::new(there(path));
        let place = place.map_err(|error| format!("failed to confine a thread: {error}"))?;
        rules = rules
            .add_rule(PathBeneath::new(place, write))
            .map_err(told)?;
    }
    for &port in &reach.ports {
        let rule = NetPort::new(port, AccessNet::ConnectTcp);
        rules = rules.add_rule(rule).map_err(told)?;
    }
    let status = rules.restrict_self().map_err(told)?;
    let unavailable = "the kernel has no Landlock, or it is not switched on (lsm=…,landlock)";
    match (status.ruleset, status.landlock) {
        (RulesetStatus::NotEnforced, _) => Err(unavailable.to_owned()),
        (_, LandlockStatus::Available { effective_abi, .. }) => Ok(effective_abi as u32),
        _ => Err(unavailable.to_owned()),
    }
}

/// A directory, made where it can be; else what is above it, where it may come to be.
fn there(path: &Path) -> &Path {
    use std::os::unix::fs::DirBuilderExt;
    let mut builder = std::fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(path);
    match made {
        Ok(()) => path,
        Err(_) => path.parent().unwrap_or(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;
    use std::net::{TcpListener, TcpStream};

    /// Runs on a thread that is confined to these, where the kernel can; else reports a skip.
    fn confined<T: Send + 'static>(
        reach: Reach,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let sandbox = Sandbox::new(true);
        let thread = std::thread::spawn(move || {
            sandbox.confine("test", &reach);
            let report = sandbox.report();
            (report.landlock_abi > 0)
                .then(work)
                .ok_or(report.landlock_error)
        });
        let done = thread.join().expect("no panic");
        done.inspect_err(|why| testkit::skip(format_args!("{why}")))
            .ok()
    }

    fn denied<T>(result: std::io::Result<T>) -> bool {
        result.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
    }

    #[test]
    fn a_confined_thread_has_its_own_files_and_no_others() {
        let dir = tempfile::tempdir().expect("a directory");
        let (own, other) = (dir.path().join("own/below"), dir.path().join("other"));
        std::fs::write(&other, "secret").expect("written");
        let reach = Reach {
            writes: vec![own.clone()],
            ..Reach::default()
        };
        let found = confined(reach, move || {
            std::fs::write(own.join("file"), "text").expect("its own");
            std::fs::rename(own.join("file"), own.join("again")).expect("its own");
            std::fs::remove_file(own.join("again")).expect("its own");
            let others = [
                std::fs::read(&other),
                std::fs::read("/proc/1/root/etc/shadow"),
                std::fs::read("/etc/passwd"),
            ];
            let started = std::process::Command::new("/bin/true").status();
            (others.map(denied), denied(started))
        });
        if let Some(found) = found {
            assert_eq!(found, ([true; 3], true));
        }
    }

    #[test]
    fn a_confined_thread_connects_to_its_ports_alone() {
        let open = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let closed = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let (open, closed) = (
            open.local_addr().expect("one"),
            closed.local_addr().expect("one"),
        );
        let reach = Reach {
            ports: [open.port()].into(),
            ..Reach::default()
        };
        let found = confined(reach, move || {
            // Whether anybody accepts is no matter.
            (
                denied(TcpStream::connect(open)),
                denied(TcpStream::connect(closed)),
            )
        });
        if let Some((own, other)) = found {
            assert!(!own);
            assert!(other, "port {}", closed.port());
        }
    }

    #[test]
    fn threads_of_others_stay_as_they_were() {
        let (ask, asked) = std::sync::mpsc::sync_channel::<()>(1);
        let before = std::thread::spawn(move || {
            let _ = asked.recv();
            std::fs::read("/etc/passwd").is_ok()
        });
        let _ = confined(Reach::default(), || ());
        let _ = ask.send(());
        assert!(before.join().expect("no panic"));
        assert!(std::fs::read("/etc/passwd").is_ok());
    }

    #[test]
    fn off_gives_nothing_up() {
        let sandbox = Sandbox::new(false);
        sandbox.confine("test", &Reach::default());
        sandbox.refuse_calls(false);
        assert_eq!(sandbox.report(), Report::default());
        assert!(std::fs::read("/etc/passwd").is_ok());
    }
}
