//! The program itself: command line, exit codes, signals, and data that outlives it.

use crate::rig::{LIMIT, PushStream, SECOND, channel, hello, starting, window};
use proto::agent::TimeRange;
use proto::collector::query_service_client::QueryServiceClient;
use proto::collector::{self as wire, Outcome};
use rustix::process::Signal;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, ExitStatus, Output};
use std::sync::LazyLock;
use testkit::clock::unix_ns;
use testkit::process::{Proc, wait_for};

/// A configuration that says nothing, in place of one of this machine.
const EMPTY: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/collector-empty.yaml");

fn command() -> Command {
    std::fs::write(EMPTY, "").expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_fleetprof-collector"));
    // No variable of whoever runs the tests.
    command.env_clear().args(["--config", EMPTY]);
    command
}

fn run(args: &[&str]) -> Output {
    command().args(args).output().expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The program with its data in a directory; killed when dropped.
pub struct Program {
    proc: Proc,
    /// Its gRPC address.
    pub grpc: SocketAddr,
    /// Its page's.
    pub http: SocketAddr,
    /// Its page's for other machines.
    pub https: Option<SocketAddr>,
    _log: tempfile::TempDir,
}

/// Arguments for any free ports.
const ANY_PORTS: [&str; 4] = [
    "--listen-grpc",
    "127.0.0.1:0",
    "--listen-http",
    "127.0.0.1:0",
];

/// Waits for the first line of a process's log that has `what`.
fn logged(proc: &mut Proc, what: &str) -> String {
    let line = wait_for(LIMIT, || {
        let gone = proc.exited().is_some();
        let log = proc.stderr();
        let found = log.lines().find(|line| line.contains(what));
        assert!(found.is_some() || !gone, "it ended without `{what}`: {log}");
        found.map(str::to_owned)
    });
    line.expect(what)
}

impl Program {
    /// Starts it and waits until it listens.
    pub fn start(dir: &Path) -> Program {
        Program::start_with(dir, &[])
    }

    /// The same with more arguments.
    pub fn start_with(dir: &Path, args: &[&str]) -> Program {
        let log = tempfile::tempdir().expect("a directory");
        let mut command = command();
        command.arg("--data-dir").arg(dir).args(ANY_PORTS);
        command.args(args);
        let mut proc = Proc::spawn(&mut command, log.path(), "collector");
        let line = logged(&mut proc, " grpc=");
        let address = |before: &str| {
            let rest = line.split_once(before).expect(before).1;
            let end = rest.find(|c: char| !c.is_ascii_digit() && !".:".contains(c));
            let address = rest[..end.unwrap_or(rest.len())].parse();
            address.expect("an address")
        };
        Program {
            grpc: address(" grpc="),
            http: address("http://"),
            https: line.contains("https://").then(|| address("https://")),
            proc,
            _log: log,
        }
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.proc.pid()
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        self.proc.stderr()
    }

    /// Ends it.
    pub fn end(mut self, signal: Signal) -> ExitStatus {
        self.proc.signal(signal);
        self.proc.wait(LIMIT).expect("it ends")
    }
}

/// Pushes windows `numbers` since the tests started, each of two samples, and says what became of
/// them.
async fn push(program: &Program, numbers: std::ops::Range<i64>) -> Vec<i32> {
    push_at(program, numbers.map(|number| number * 10 * SECOND)).await
}

/// The same at these times since then. Unit: nanoseconds.
pub async fn push_at(program: &Program, times: impl Iterator<Item = i64>) -> Vec<i32> {
    static STARTED: LazyLock<i64> = LazyLock::new(|| unix_ns() - 600 * SECOND);
    let mut agent = PushStream::connect(channel(program.grpc).await)
        .await
        .expect("a stream");
    agent.hello(hello("a", 1)).await;
    let mut outcomes = Vec::new();
    for time in times {
        let part = starting(*STARTED + time, window(0, &["main;read", "main;write"]));
        let ack = agent.store_part(part, &["main;read", "main;write"]).await;
        outcomes.push(ack.outcome);
    }
    outcomes
}

/// Samples that it has.
pub async fn total(program: &Program) -> u64 {
    let mut client = QueryServiceClient::new(channel(program.grpc).await);
    let request = wire::TopRequest {
        selection: Some(wire::Selection {
            range: Some(TimeRange::default()),
            ..wire::Selection::default()
        }),
        by: "function".to_owned(),
        ..wire::TopRequest::default()
    };
    let answer = client.top(request).await.expect("an answer").into_inner();
    answer.quality.expect("quality").total_count
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_outlive_an_end_and_a_crash_and_count_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let stored = Outcome::Stored as i32;
    let program = Program::start(dir.path());
    assert_eq!(push(&program, 0..3).await, [stored; 3]);
    assert_eq!(total(&program).await, 6);
    assert!(program.end(Signal::TERM).success());

    let program = Program::start(dir.path());
    assert_eq!(total(&program).await, 6);
    assert_eq!(push(&program, 3..5).await, [stored; 2]);
    program.end(Signal::KILL);

    let program = Program::start(dir.path());
    assert_eq!(total(&program).await, 10);
    let mut client = QueryServiceClient::new(channel(program.grpc).await);
    let hosts = client.hosts(wire::HostsRequest::default()).await;
    let hosts = hosts.expect("an answer").into_inner().hosts;
    assert_eq!((hosts.len(), hosts[0].windows), (1, 5));
    assert!(program.end(Signal::INT).success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_collector_does_not_take_the_directory() {
    let dir = tempfile::tempdir().expect("a directory");
    let _first = Program::start(dir.path());
    let path = dir.path().to_str().expect("text");
    let second = command()
        .args(["--data-dir", path])
        .args(ANY_PORTS)
        .output()
        .expect("it runs");
    assert_eq!(second.status.code(), Some(5), "{}", text(&second.stderr));
    assert!(text(&second.stderr).contains("another process has this store open"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hang_up_reads_the_configuration_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut program = Program::start(dir.path());
    program.proc.signal(Signal::HUP);
    let line = logged(&mut program.proc, "configuration reloaded");
    assert!(line.contains("INFO"), "{line}");
    assert!(program.end(Signal::TERM).success());
}

#[test]
fn a_configuration_is_checked_without_starting() {
    let valid = run(&["--check", "--set", "query.timeout_s=5"]);
    assert!(valid.status.success(), "{}", text(&valid.stderr));
    assert_eq!(text(&valid.stdout), format!("{EMPTY}: valid\n"));
    let wrong = run(&["--check", "--set", "query.timeout=5"]);
    assert_eq!(wrong.status.code(), Some(3));
    assert_eq!(
        text(&wrong.stderr),
        "error: unknown key `query.timeout` in `--set`; did you mean `query.timeout_s`?\n"
    );
    let open = run(&["--listen-grpc", "0.0.0.0:7600"]);
    assert_eq!(open.status.code(), Some(3));
    assert!(
        text(&open.stderr).contains("loopback"),
        "{}",
        text(&open.stderr)
    );
}

#[test]
fn a_command_line_that_is_wrong_is_told() {
    assert_eq!(run(&["--listen-http", "nowhere"]).status.code(), Some(2));
    assert_eq!(run(&["serve"]).status.code(), Some(2));
    let help = run(&["--help"]);
    assert!(help.status.success());
    for part in ["--data-dir", "Examples:", "Exit codes:"] {
        assert!(text(&help.stdout).contains(part), "{part}");
    }
}

#[test]
fn a_directory_that_cannot_be_used_is_told() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let path = file.path().to_str().expect("text");
    let ended = run(&["--data-dir", path]);
    assert_eq!(ended.status.code(), Some(1), "{}", text(&ended.stderr));
    assert!(
        text(&ended.stderr).contains(path),
        "{}",
        text(&ended.stderr)
    );
}
