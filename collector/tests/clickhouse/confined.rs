//! Tests the real collector with the server: in its sandbox it can connect, by name too, and store
//! there.

use super::{fresh_name, server};
use proto::collector::query_service_client::QueryServiceClient;
use proto::collector::{Outcome, StatusRequest};
use std::process::Command;
use std::time::Duration;
use testkit::clock::unix_ns;
use testkit::fake::push::{PushStream, channel, hello};
use testkit::fake::window::{starting, window};
use testkit::process::{Proc, wait_for};

const LIMIT: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_confined_collector_stores_in_its_server() {
    let Some(front) = server() else { return };
    let (dir, log) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let password = tempfile::tempdir().unwrap();
    let password = password.path().join("password");
    std::fs::write(&password, "").unwrap();
    let config = dir.path().join("collector.yaml");
    std::fs::write(&config, "").unwrap();
    let name = fresh_name();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fleetprof-collector"));
    command.env_clear().arg("--config").arg(&config);
    command.arg("--data-dir").arg(dir.path().join("data"));
    command.args([
        "--listen-grpc",
        "127.0.0.1:0",
        "--listen-http",
        "127.0.0.1:0",
    ]);
    for set in [
        "store=clickhouse".to_owned(),
        format!(
            "clickhouse.urls={}",
            front.url().replace("127.0.0.1", "localhost")
        ),
        format!("clickhouse.database={name}"),
        format!("clickhouse.password_file={}", password.display()),
    ] {
        command.args(["--set", &set]);
    }
    let mut proc = Proc::spawn(&mut command, log.path(), "collector");
    let at = wait_for(LIMIT, || {
        let gone = proc.exited();
        let log = proc.stderr();
        assert!(gone.is_none(), "{log}");
        let (_, rest) = log.split_once(" grpc=")?;
        let end = rest.find(|c: char| !c.is_ascii_digit() && !".:".contains(c))?;
        rest[..end].parse().ok()
    });
    let at: std::net::SocketAddr = at.expect("it listens");
    let mut agent = PushStream::connect(channel(at).await).await.unwrap();
    agent.hello(hello("a", 1)).await;
    let stacks = ["main;read"];
    let part = starting(unix_ns() - 60_000_000_000, window(0, &stacks));
    let ack = agent.store_part(part, &stacks).await;
    assert_eq!(ack.outcome, Outcome::Stored as i32, "{ack:?}");
    let mut client = QueryServiceClient::new(channel(at).await);
    let status = client.status(StatusRequest::default()).await.unwrap();
    let sandbox = status.into_inner().sandbox.unwrap();
    assert!(sandbox.on && sandbox.seccomp, "{sandbox:?}");
    // Other collectors of the database may be at any port.
    assert!(!sandbox.connects_confined);
    let stored = front.statement(&name, "SELECT count() FROM windows FINAL");
    assert_eq!(stored.trim(), "1");
    proc.terminate(LIMIT);
}
