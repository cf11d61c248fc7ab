//! The real collector as a process, on free loopback ports, with its data in a directory that
//! outlives restarts.

use crate::process::{Proc, wait_for};
use rustix::process::Signal;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;

/// Longest that a collector may take to be ready, replay of its log included.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// Longest that it may take to end after SIGTERM.
const END_LIMIT: Duration = Duration::from_secs(30);

/// How to start a collector.
#[derive(Clone, Debug)]
pub struct Options {
    grpc: u16,
    http: u16,
    /// For hosts that join; none while it is not asked for.
    tls: Option<u16>,
    settings: Vec<String>,
}

/// A port that nobody listens on just now.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("failed to bind a port");
    listener.local_addr().expect("an address").port()
}

impl Options {
    /// Free ports, defaults for everything else.
    #[expect(clippy::new_without_default, reason = "two are never equal")]
    pub fn new() -> Options {
        Options {
            grpc: free_port(),
            http: free_port(),
            tls: None,
            settings: Vec::new(),
        }
    }

    /// Adds `--set SETTING`.
    pub fn set(mut self, setting: &str) -> Options {
        self.settings.push(setting.to_owned());
        self
    }

    /// Adds a port for hosts of other machines, which join.
    pub fn with_tls(mut self) -> Options {
        self.tls = Some(free_port());
        self
    }

    /// `HOST:PORT` for hosts that join, the same at every start.
    ///
    /// # Panics
    /// When there is none.
    pub fn tls(&self) -> String {
        format!("127.0.0.1:{}", self.tls.expect("a port for TLS"))
    }

    /// `HOST:PORT` for agents and commands, the same at every start.
    pub fn grpc(&self) -> String {
        format!("127.0.0.1:{}", self.grpc)
    }

    /// `HOST:PORT` of the UI, the same at every start.
    pub fn http(&self) -> String {
        format!("127.0.0.1:{}", self.http)
    }

    /// Starts a collector with its data in `DIR/data` and waits until it is healthy.
    ///
    /// # Panics
    /// When it ends or is not healthy in time, with its log.
    pub fn start(&self, dir: &Path) -> Collector {
        let mut command = Command::new(crate::binaries::collector());
        command.arg("--data-dir").arg(dir.join("data")).args([
            "--listen-grpc",
            &self.grpc(),
            "--listen-http",
            &self.http(),
        ]);
        if self.tls.is_some() {
            command.args(["--listen-tls", &self.tls()]);
        }
        for setting in &self.settings {
            command.args(["--set", setting]);
        }
        let mut collector = Collector {
            proc: Proc::spawn(&mut command, dir, "collector"),
            options: self.clone(),
        };
        let ready = wait_for(READY_LIMIT, || {
            let gone = collector.proc.exited().is_some();
            (gone || collector.get("/healthz").starts_with("HTTP/1.1 200")).then_some(!gone)
        });
        assert_eq!(ready, Some(true), "{}", collector.log());
        collector
    }
}

/// A running collector; killed when dropped.
#[derive(Debug)]
pub struct Collector {
    proc: Proc,
    options: Options,
}

impl Collector {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.proc.pid()
    }

    /// How it was started.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// What it answers over HTTP, head included; empty when it does not.
    pub fn get(&self, path: &str) -> String {
        crate::http::ask(&self.options.http(), path, END_LIMIT).unwrap_or_default()
    }

    /// Sends a signal.
    pub fn signal(&mut self, signal: Signal) {
        self.proc.signal(signal);
    }

    /// Ends it as a service manager does.
    ///
    /// # Panics
    /// When it does not end in time.
    pub fn stop(mut self) -> ExitStatus {
        self.proc.terminate(END_LIMIT)
    }

    /// Ends it at once, as a crash does.
    ///
    /// # Panics
    /// When the kernel does not.
    pub fn kill(mut self) {
        self.proc.signal(Signal::KILL);
        self.proc.wait(END_LIMIT).expect("SIGKILL ends a process");
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        self.proc.stderr()
    }
}
