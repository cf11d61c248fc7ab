//! Locks a process out of what it does not need: system calls for the complete process (seccomp),
//! files and ports for threads, or for all of them (Landlock).
//!
//! A thread passes its restrictions on to the threads that it starts, and to nothing else. A
//! confined thread can no longer read other processes: in a Landlock domain the kernel denies
//! `/proc/PID/root`, `mem`, `exe` and `map_files`, whatever the rules say. So threads that sample,
//! read files of other processes or start captures must neither be confined nor be started by a
//! confined thread: the `Starter` of `starter.rs` starts threads for it.
//!
//! Threads share memory. So this limits what faulty code can be made to do, not what injected code
//! can do.

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, LandlockStatus, NetPort, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

mod seccomp;
pub mod starter;
mod sys;

pub use seccomp::Calls;

/// The newest rules that are known here. The kernel enforces those of them that it has.
const NEWEST: ABI = ABI::V7;

/// Version of the rules since which they are also of TCP ports (Linux 6.7).
const PORTS_SINCE: u32 = ABI::V4 as u32;

/// Files of `/etc` that finding the address of a name reads.
const NAMING_FILES: [&str; 7] = [
    "resolv.conf",
    "hosts",
    "host.conf",
    "nsswitch.conf",
    "gai.conf",
    "services",
    "ld.so.cache",
];

/// Directories that it reads, with all below: libraries, and where a name server's address may be.
const NAMING: [&str; 7] = [
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/run/systemd/resolve",
    "/run/resolvconf",
    "/run/NetworkManager",
];

/// Where the authorities are that the host trusts.
const TRUST: [&str; 6] = [
    "/etc/ssl/certs",
    "/etc/ssl/cert.pem",
    "/etc/pki",
    "/etc/ca-certificates",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
];

/// Variables of the environment that name other ones.
const TRUST_NAMED: [&str; 2] = ["SSL_CERT_FILE", "SSL_CERT_DIR"];

/// The port of name servers, for answers that are too long for a datagram.
const NAMING_PORT: u16 = 53;

/// Ports of URLs that say none, and of where servers send their clients on to.
const HTTP_PORTS: [u16; 2] = [80, 443];

/// Variables of the environment that name a proxy, each also in small letters.
const PROXIES: [&str; 3] = ["ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY"];

/// Remedy if the kernel supports less than the full sandbox.
pub const REMEDY: &str = "use a kernel since 5.19 with Landlock (lsm=…,landlock) and seccomp; in a \
    container, allow landlock_* and seccomp in the engine's profile. Or set `sandbox: off` to hide \
    this warning";

/// What a confined thread can still access.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Files, or directories with all below them, that it may read.
    pub reads: Vec<PathBuf>,
    /// Directories that it may change, with all below them. One that is missing is made.
    pub writes: Vec<PathBuf>,
    /// Ports that it may connect to over TCP.
    pub ports: BTreeSet<u16>,
    /// It may connect to every other one, too.
    pub any_port: bool,
    /// Ports that it may listen on over TCP; 0 is one that the kernel chooses.
    pub listens: BTreeSet<u16>,
    /// It may connect to unix sockets that have no path and are of others.
    pub abstract_sockets: bool,
}

impl Reach {
    /// Also what it takes to find the address of a name, and to know the authorities that the host
    /// trusts.
    pub fn naming(mut self) -> Reach {
        self.reads.extend(resolving(Path::new("/etc")));
        self.reads.extend(NAMING.iter().map(PathBuf::from));
        self.reads.extend(TRUST.iter().map(PathBuf::from));
        let named = TRUST_NAMED.iter().filter_map(std::env::var_os);
        self.reads.extend(named.map(PathBuf::from));
        self.ports.insert(NAMING_PORT);
        self
    }

    /// Also reading this file, and another one once it has taken its place.
    pub fn renewed(mut self, file: &Path) -> Reach {
        self.reads
            .push(directory(file).unwrap_or_else(|| file.to_owned()));
        if let Ok(real) = std::fs::canonicalize(file) {
            self.reads.push(directory(&real).unwrap_or(real));
        }
        self
    }

    /// Also the ports of these, and those that HTTP has where nobody says another.
    pub fn urls(mut self, urls: &[String]) -> Reach {
        let named = urls.iter().filter_map(|url| port_of(url));
        self.ports.extend(named.chain(HTTP_PORTS));
        self
    }
}

/// The directory of a file; `None` where that is one of the system's, as `/etc` is.
pub fn directory(file: &Path) -> Option<PathBuf> {
    // Also one that is named from where the program was started.
    let file = std::path::absolute(file).ok()?;
    let own = file.parent()?;
    let own = std::fs::canonicalize(own).unwrap_or_else(|_| own.to_owned());
    let names = own
        .components()
        .filter(|part| matches!(part, Component::Normal(_)));
    (names.count() > 1).then_some(own)
}

/// Proxies that the environment names.
pub fn proxies() -> Vec<String> {
    let names = PROXIES.iter();
    let names = names.flat_map(|name| [(*name).to_owned(), name.to_lowercase()]);
    names.filter_map(|name| std::env::var(name).ok()).collect()
}

/// The port that a URL names.
fn port_of(url: &str) -> Option<u16> {
    let (_, rest) = url.split_once("://")?;
    let host = rest.split('/').next()?;
    let (_, port) = host.rsplit_once(':')?;
    port.parse().ok()
}

/// Files of `etc` that say how names are found. `resolv.conf` is mostly a link, or mounted by a
/// container engine. Where it is a file that lies there, whoever configures the network may put
/// another in its place at any time: then all of `etc` may be read, or no name would be found.
fn resolving(etc: &Path) -> Vec<PathBuf> {
    use std::os::unix::fs::MetadataExt;
    let conf = etc.join("resolv.conf");
    let (dir, meta) = (std::fs::metadata(etc), std::fs::symlink_metadata(&conf));
    if let (Ok(dir), Ok(meta)) = (&dir, &meta)
        && meta.is_file()
        && meta.dev() == dir.dev()
    {
        return vec![etc.to_owned()];
    }
    let mut found: Vec<_> = NAMING_FILES.iter().map(|name| etc.join(name)).collect();
    let real = std::fs::canonicalize(&conf).ok();
    let beside = real.as_deref().and_then(Path::parent);
    let own = beside.filter(|dir| *dir != etc && dir.components().count() > 2);
    found.extend(own.map(Path::to_owned));
    found
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
    /// TCP ports that are not theirs are refused to them: to listen on, and to connect to.
    pub listens: bool,
    /// See there.
    pub connects: bool,
    /// System calls are refused.
    pub seccomp: bool,
    /// Why not.
    pub seccomp_error: String,
}

impl Report {
    /// Logs the result.
    pub fn tell(&self) {
        if !self.on {
            tracing::info!("the sandbox is off (`sandbox`)");
            return;
        }
        for (what, reason) in [
            ("Landlock", &self.landlock_error),
            ("seccomp", &self.seccomp_error),
        ] {
            if !reason.is_empty() {
                tracing::info!(reason, "without {what}");
            }
        }
        tracing::info!(
            seccomp = self.seccomp,
            landlock_abi = self.landlock_abi,
            confined = self.confined.join(" "),
            listens = self.listens,
            connects = self.connects,
            "sandbox"
        );
    }

    /// Why what should be in force is not; `None` when all of it is.
    pub fn missing(&self) -> Option<String> {
        let mut reasons = vec![self.landlock_error.as_str(), self.seccomp_error.as_str()];
        reasons.retain(|reason| !reason.is_empty());
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

/// Applies the sandbox if configured, and records the result.
#[derive(Debug)]
pub struct Sandbox {
    report: Mutex<Report>,
}

impl Sandbox {
    /// Creates it before anything is restricted.
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
                report.listens = abi >= PORTS_SINCE;
                report.connects = abi >= PORTS_SINCE && !reach.any_port;
                report.confined.push(thread);
            }
            Err(error) => report.landlock_error = error,
        }
    }

    /// Makes the kernel permanently deny unneeded system calls to all threads of the process.
    pub fn refuse_calls(&self, calls: Calls) {
        if !lock(&self.report).on {
            return;
        }
        let refused = seccomp::install(calls);
        let mut report = lock(&self.report);
        report.seccomp = refused.is_ok();
        report.seccomp_error = refused
            .err()
            .map_or(String::new(), |error| error.to_string());
    }
}

/// Locks a mutex, whether or not a holder has panicked: its value is always set completely.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a thread is not confined, as text, because it is only reported.
fn restrict(reach: &Reach) -> Result<u32, String> {
    let told = |error: RulesetError| format!("failed to confine a thread: {error}");
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let write = AccessFs::from_all(NEWEST) & !AccessFs::Execute & !AccessFs::IoctlDev;
    let ports: BitFlags<AccessNet> = match reach.any_port {
        true => AccessNet::BindTcp.into(),
        false => AccessNet::from_all(NEWEST),
    };
    let scope: BitFlags<Scope> = match reach.abstract_sockets {
        true => Scope::Signal.into(),
        false => Scope::from_all(NEWEST),
    };
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))
        .and_then(|rules| rules.handle_access(ports))
        .and_then(|rules| rules.scope(scope))
        .and_then(Ruleset::create)
        .map_err(told)?;
    for path in &reach.reads {
        // What is not there is not read either.
        let Ok(place) = PathFd::new(path) else {
            continue;
        };
        if path.starts_with("/proc") {
            // The kernel forgets directories there that nobody holds, and knows a rule of one no
            // more when it has made it again.
            let held = place.as_fd().try_clone_to_owned();
            std::mem::forget(held.map_err(|error| format!("failed to confine a thread: {error}"))?);
        }
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
    for &port in &reach.listens {
        let rule = NetPort::new(port, AccessNet::BindTcp);
        rules = rules.add_rule(rule).map_err(told)?;
    }
    for &port in reach.ports.iter().filter(|_| !reach.any_port) {
        let rule = NetPort::new(port, AccessNet::ConnectTcp);
        rules = rules.add_rule(rule).map_err(told)?;
    }
    let status = rules.restrict_self().map_err(told)?;
    let unavailable =
        "the kernel has no Landlock (Linux 5.19), or Landlock is not enabled (lsm=…,landlock)";
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
        sandbox.refuse_calls(Calls::Server);
        assert_eq!(sandbox.report(), Report::default());
        assert!(std::fs::read("/etc/passwd").is_ok());
    }

    #[test]
    fn a_confined_thread_listens_on_its_ports_alone() {
        let free = || {
            let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
            listener.local_addr().expect("one").port()
        };
        let (own, other) = (free(), free());
        let reach = Reach {
            listens: [own].into(),
            ..Reach::default()
        };
        let found = confined(reach, move || {
            let listens = |port| denied(TcpListener::bind(("127.0.0.1", port)));
            (listens(own), listens(other), listens(0))
        });
        assert!(found.is_none_or(|found| found == (false, true, true)));
        let any = Reach {
            listens: [0].into(),
            ..Reach::default()
        };
        let found = confined(any, || denied(TcpListener::bind(("127.0.0.1", 0))));
        assert!(found.is_none_or(|denied| !denied));
    }

    #[test]
    fn a_process_that_is_confined_reads_of_itself_and_of_no_other() {
        let reach = Reach {
            reads: vec![PathBuf::from("/proc/self")],
            ..Reach::default()
        };
        let found = confined(reach, || {
            (
                std::fs::read("/proc/self/status").is_ok(),
                std::fs::read("/proc/thread-self/stat").is_ok(),
                denied(std::fs::read("/proc/1/status")),
            )
        });
        assert!(found.is_none_or(|found| found == (true, true, true)));
    }

    #[test]
    fn of_etc_is_read_what_finds_names_unless_it_may_be_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        let etc = dir.path().join("etc");
        let run = dir.path().join("run/resolver");
        std::fs::create_dir(&etc).expect("made");
        std::fs::create_dir_all(&run).expect("made");
        let conf = etc.join("resolv.conf");
        std::fs::write(run.join("stub.conf"), "").expect("written");
        std::os::unix::fs::symlink(run.join("stub.conf"), &conf).expect("linked");
        let linked = resolving(&etc);
        assert!(linked.contains(&conf) && !linked.contains(&etc));
        assert!(linked.contains(&std::fs::canonicalize(&run).expect("there")));
        std::fs::remove_file(&conf).expect("removed");
        std::fs::write(&conf, "").expect("written");
        assert_eq!(resolving(&etc), [etc]);
    }

    #[test]
    fn a_link_to_a_file_is_followed_and_no_directory_of_the_system_is_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let (live, archive) = (dir.path().join("live"), dir.path().join("archive"));
        std::fs::create_dir(&live).expect("made");
        std::fs::create_dir(&archive).expect("made");
        std::fs::write(archive.join("page1.pem"), "").expect("written");
        std::os::unix::fs::symlink("../archive/page1.pem", live.join("page.pem")).expect("linked");
        let real = std::fs::canonicalize(dir.path()).expect("it is there");
        let reach = Reach::default().renewed(&live.join("page.pem"));
        assert_eq!(reach.reads, [real.join("live"), real.join("archive")]);
        let page = Path::new("/etc/page.pem");
        assert_eq!(Reach::default().renewed(page).reads, [page]);
    }

    #[test]
    fn ports_of_urls_are_reached() {
        let urls = [
            "https://debug.example/x:1/".to_owned(),
            "http://[::1]:8002".to_owned(),
            "http://me:secret@proxy.example:3128/".to_owned(),
        ];
        let reach = Reach::default().urls(&urls);
        assert_eq!(reach.ports, [80, 443, 3128, 8002].into());
    }
}
