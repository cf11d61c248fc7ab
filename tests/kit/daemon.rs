//! The real daemon: started on a socket and a run directory of its own, ready when it says so,
//! killed when dropped.

use crate::cgroup::Cgroup;
use crate::client::Client;
use crate::process::{Output, Proc, wait_for};
use proto::agent::Export;
use regex::Regex;
use rustix::process::Signal;
use std::ffi::OsStr;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

/// Longest time from start to readiness, on a loaded machine.
const READY_LIMIT: Duration = Duration::from_secs(20);
/// The grace that daemons are given: a loaded machine is slow to name what the last window has.
/// Unit: seconds.
const GRACE_S: u32 = 60;
/// Longest time from SIGTERM to the end: the grace, and what a loaded machine adds.
const END_LIMIT: Duration = Duration::from_secs(75);
/// How long one wait for a notification blocks before the daemon's life is looked at again.
const NOTIFY_STEP: Duration = Duration::from_millis(100);

/// What a daemon is started with.
#[derive(Default)]
pub struct Options {
    config: Option<String>,
    settings: Vec<String>,
    metrics: Option<String>,
    watchdog: Option<Duration>,
    dir: Option<PathBuf>,
    join: Option<PathBuf>,
    through: Vec<String>,
    program: Option<PathBuf>,
}

impl Options {
    /// A configuration file with this text. Without it there is none.
    pub fn config(mut self, yaml: &str) -> Options {
        self.config = Some(yaml.to_owned());
        self
    }

    /// `--set KEY=VALUE`.
    pub fn set(mut self, setting: &str) -> Options {
        self.settings.push(setting.to_owned());
        self
    }

    /// Serves metrics on this address; otherwise they are off.
    pub fn metrics(mut self, address: &str) -> Options {
        self.metrics = Some(address.to_owned());
        self
    }

    /// Asks for watchdog messages, as systemd does with `WatchdogSec=`.
    pub fn watchdog(mut self, period: Duration) -> Options {
        self.watchdog = Some(period);
        self
    }

    /// Uses this run directory, which outlives the daemon.
    pub fn dir(mut self, dir: &Path) -> Options {
        self.dir = Some(dir.to_path_buf());
        self
    }

    /// Runs in this cgroup, from before its first instruction on.
    pub fn cgroup(mut self, cgroup: &Cgroup) -> Options {
        self.join = Some(cgroup.dir().to_path_buf());
        self
    }

    /// Starts it by these words, to which the program and its arguments are appended; what they
    /// start must become the daemon: `prlimit --nofile=64`, `env LD_PRELOAD=…`.
    pub fn through(mut self, words: &[&str]) -> Options {
        self.through
            .extend(words.iter().map(|&word| word.to_owned()));
        self
    }

    /// Uses this copy of the program: for users who may not reach the build's.
    pub fn program(mut self, program: &Path) -> Options {
        self.program = Some(program.to_path_buf());
        self
    }

    /// Starts the daemon and waits until it is ready.
    ///
    /// # Panics
    /// When it ends or is not ready in time, with its log.
    pub fn start(self) -> Daemon {
        let mut daemon = self.launch();
        let ready = daemon.notified("READY=1", READY_LIMIT);
        assert!(ready, "the daemon is not ready; its log:\n{}", daemon.log());
        daemon
    }

    /// Starts the daemon without waiting.
    ///
    /// # Panics
    /// When its program cannot be started.
    pub fn launch(self) -> Daemon {
        let own = tempfile::tempdir().expect("failed to make a directory");
        let dir = self.dir.clone().unwrap_or_else(|| own.path().to_path_buf());
        // The notification socket is always in the daemon's own directory: it is bound once.
        let notify_path = own.path().join("notify");
        let notify = UnixDatagram::bind(&notify_path).expect("failed to bind a socket");
        notify
            .set_read_timeout(Some(NOTIFY_STEP))
            .expect("failed to set a time limit");

        let socket = dir.join("agent.sock");
        let program = self
            .program
            .clone()
            .unwrap_or_else(crate::binaries::fleetprofd);
        let mut words = self
            .through
            .iter()
            .map(OsStr::new)
            .chain([program.as_os_str()]);
        let first = words.next().expect("at least the program");
        let mut command = match &self.join {
            Some(cgroup) => crate::cgroup::command_in(cgroup, first),
            None => Command::new(first),
        };
        command.args(words);
        command
            .arg("--listen")
            .arg(format!("unix:{}", socket.display()));
        let config = dir.join("agent.yaml");
        if let Some(yaml) = &self.config {
            std::fs::write(&config, yaml).expect("failed to write a configuration");
            command.arg("--config").arg(&config);
        }
        let metrics = self.metrics.as_deref().unwrap_or("null");
        command
            .arg("--set")
            .arg(format!("metrics.listen={metrics}"))
            .arg("--set")
            .arg(format!("shutdown.grace_s={GRACE_S}"));
        for setting in &self.settings {
            command.arg("--set").arg(setting);
        }
        command.env("NOTIFY_SOCKET", &notify_path);
        command
            .env_remove("WATCHDOG_USEC")
            .env_remove("WATCHDOG_PID");
        if let Some(period) = self.watchdog {
            command.env("WATCHDOG_USEC", period.as_micros().to_string());
        }
        let proc = Proc::spawn(&mut command, own.path(), "fleetprofd");
        Daemon {
            proc,
            socket,
            config,
            notify,
            heard: String::new(),
            _own: own,
        }
    }
}

/// A running daemon.
pub struct Daemon {
    proc: Proc,
    socket: PathBuf,
    config: PathBuf,
    notify: UnixDatagram,
    heard: String,
    _own: tempfile::TempDir,
}

impl Daemon {
    /// A daemon with defaults, ready.
    pub fn start() -> Daemon {
        Options::default().start()
    }

    /// Options to start one with.
    pub fn with() -> Options {
        Options::default()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.proc.pid()
    }

    /// Its socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its configuration file, whether or not it has one.
    pub fn config_path(&self) -> &Path {
        &self.config
    }

    /// Its address for `agent-ctl --agent`.
    pub fn address(&self) -> String {
        format!("unix:{}", self.socket.display())
    }

    /// A connection to it.
    ///
    /// # Panics
    /// When it does not answer, with its log.
    pub fn client(&self) -> Client {
        Client::connect(&self.socket)
            .unwrap_or_else(|e| panic!("the daemon does not answer: {e:#}; log:\n{}", self.log()))
    }

    /// Runs `agent-ctl --agent ADDRESS ARGS…`.
    pub fn ctl<S: AsRef<OsStr>>(&self, args: &[S]) -> Output {
        let address = self.address();
        let to = [OsStr::new("--agent"), OsStr::new(&address)];
        crate::ctl::ctl(to.into_iter().chain(args.iter().map(AsRef::as_ref)))
    }

    /// True when a notification with this line has come, or comes within `limit`.
    pub fn notified(&mut self, line: &str, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        let mut buffer = [0; 4096];
        loop {
            if let Ok(length) = self.notify.recv(&mut buffer) {
                self.heard += &String::from_utf8_lossy(&buffer[..length]);
                self.heard.push('\n');
            }
            if self.heard.lines().any(|heard| heard == line) {
                return true;
            }
            if Instant::now() >= end || self.proc.exited().is_some() {
                return false;
            }
        }
    }

    /// Forgets the notifications heard so far.
    pub fn forget_notifications(&mut self) {
        self.heard.clear();
    }

    /// Waits until samples have arrived.
    ///
    /// # Panics
    /// When none does in time.
    pub fn sampling(self) -> Daemon {
        let client = self.client();
        let arrives = wait_for(READY_LIMIT, || {
            client.status().ok()?.sampling?.samples_arrive.then_some(())
        });
        assert!(arrives.is_some(), "no samples arrive; log:\n{}", self.log());
        self
    }

    /// Sends a signal.
    pub fn signal(&mut self, signal: Signal) {
        self.proc.signal(signal);
    }

    /// How it ended, within `limit`.
    pub fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        self.proc.wait(limit)
    }

    /// Ends it with SIGTERM.
    ///
    /// # Panics
    /// When it does not end in time or not with 0, with its log.
    pub fn stop(mut self) {
        let status = self.proc.terminate(END_LIMIT);
        assert!(
            status.success(),
            "the daemon ended with {status}; log:\n{}",
            self.log()
        );
    }

    /// Ends it with SIGTERM, within its grace; the samples of all windows that it closed.
    ///
    /// # Panics
    /// When it does not end within `grace` or not with 0, or does not log what it closed.
    pub fn stop_and_count(mut self, grace: Duration) -> u64 {
        self.signal(Signal::TERM);
        let status = self.wait(grace).expect("it ends within its grace");
        let log = self.log();
        assert!(status.success(), "{status}: {log}");
        let colour = Regex::new("\x1b\\[[0-9]*m").expect("a pattern");
        let samples = Regex::new(r"closed the last window.*samples=(\d+)").expect("a pattern");
        let plain = colour.replace_all(&log, "");
        let found = samples.captures(&plain).and_then(|of| of[1].parse().ok());
        found.unwrap_or_else(|| panic!("it says what it closed: {log}"))
    }

    /// What it says of its way to the collector.
    ///
    /// # Panics
    /// When it does not answer, or has no collector.
    pub fn export(&self) -> Export {
        let status = self.client().status().expect("a status");
        status.export.expect("it exports")
    }

    /// What it logged so far, both streams.
    pub fn log(&self) -> String {
        self.proc.stdout() + &self.proc.stderr()
    }

    /// What it printed to standard output so far.
    pub fn printed(&self) -> String {
        self.proc.stdout()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("log of the daemon:\n{}", self.log());
        }
    }
}
