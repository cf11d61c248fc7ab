//! The sandbox of the real collector: what is in force on its threads, that what it needs goes on,
//! and that what lies elsewhere is out of its reach.

use crate::login::{certificate, shown};
use crate::program::{Program, push_at, total};
use crate::rig::{LIMIT, SECOND, channel};
use proto::agent;
use proto::collector::query_service_client::QueryServiceClient;
use proto::collector::{Outcome, StatusRequest};
use rustix::process::Signal;
use std::path::Path;
use testkit::process::wait_for;

const HOUR: i64 = 3600 * SECOND;

/// Name, mode of seccomp, and whether new privileges are given up, of each thread.
fn threads(pid: u32) -> Vec<(String, u32, u32)> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let read = |path: std::path::PathBuf| {
        let status = std::fs::read_to_string(path.join("status")).ok()?;
        let of = |word: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(word));
            line.map(|value| value.trim().to_owned())
        };
        let number = |word| of(word).and_then(|value| value.parse().ok());
        Some((of("Name:")?, number("Seccomp:")?, number("NoNewPrivs:")?))
    };
    tasks
        .flatten()
        .filter_map(|task| read(task.path()))
        .collect()
}

async fn given_up(program: &Program) -> agent::Sandbox {
    let mut client = QueryServiceClient::new(channel(program.grpc).await);
    let status = client.status(StatusRequest::default()).await;
    let status = status.expect("an answer").into_inner();
    let told = status
        .degradations
        .iter()
        .any(|found| found.id == "sandbox_partial");
    let sandbox = status.sandbox.expect("it says");
    let missing = !sandbox.landlock_error.is_empty() || !sandbox.seccomp_error.is_empty();
    assert_eq!(told, missing, "{sandbox:?}");
    sandbox
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_thread_is_confined_and_status_says_so() {
    let dir = tempfile::tempdir().expect("a directory");
    let program = Program::start(dir.path());
    let sandbox = given_up(&program).await;
    assert!(sandbox.on && sandbox.seccomp, "{sandbox:?}");
    if sandbox.landlock_abi > 0 {
        assert_eq!(sandbox.confined, ["all"]);
        let ports = sandbox.landlock_abi >= 4;
        assert_eq!(sandbox.listens_confined, ports);
        assert_eq!(sandbox.connects_confined, ports);
    }
    let all = threads(program.pid());
    assert!(all.len() > 4, "{all:?}");
    for (name, seccomp, no_new_privs) in all {
        assert_eq!((seccomp, no_new_privs), (2, 1), "{name}");
    }
    assert!(program.end(Signal::TERM).success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn off_gives_nothing_up() {
    let dir = tempfile::tempdir().expect("a directory");
    let program = Program::start_with(dir.path(), &["--set", "sandbox=off"]);
    let sandbox = given_up(&program).await;
    assert_eq!(sandbox, agent::Sandbox::default());
    let all = threads(program.pid());
    assert!(all.iter().all(|(_, seccomp, _)| *seccomp == 0), "{all:?}");
    assert!(program.end(Signal::TERM).success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_of_many_hours_go_into_their_partitions_and_are_read_after_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let copy = tempfile::tempdir().expect("a directory");
    let program = Program::start(dir.path());
    let times = [-30, -24, -18, -12, -6, 0].map(|hours| hours * HOUR);
    let stored = push_at(&program, times.into_iter()).await;
    assert_eq!(stored, [Outcome::Stored as i32; 6]);
    assert!(program.end(Signal::TERM).success());
    // A copy of a store that is down is a backup.
    let copied = std::process::Command::new("cp")
        .arg("-a")
        .arg(dir.path().join("."))
        .arg(copy.path())
        .status();
    assert!(copied.expect("it runs").success());
    for place in [dir.path(), copy.path()] {
        let program = Program::start(place);
        assert_eq!(total(&program).await, 12);
        let again = push_at(&program, [HOUR / 6, -6 * HOUR + HOUR / 6].into_iter()).await;
        assert_eq!(again, [Outcome::Stored as i32; 2]);
        assert_eq!(total(&program).await, 16);
        assert!(program.end(Signal::TERM).success());
    }
}

/// Puts both files of a certificate in the place of others, as who renews them does.
fn replace(from: &Path, to: &Path) {
    for name in ["page.key", "page.pem"] {
        std::fs::rename(from.join(name), to.join(name)).expect("renamed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_read_again_in_their_directory_and_nothing_elsewhere() {
    let [data, files, fresh, elsewhere] = [(); 4].map(|()| tempfile::tempdir().expect("one"));
    let first = certificate(files.path());
    let (cert, key) = (files.path().join("page.pem"), files.path().join("page.key"));
    let program = Program::start_with(
        data.path(),
        &[
            "--listen-https",
            "127.0.0.1:0",
            "--set",
            &format!("web.tls.cert_file={}", cert.display()),
            "--set",
            &format!("web.tls.key_file={}", key.display()),
        ],
    );
    let at = program.https.expect("it listens");
    assert_eq!(shown(at).await, first);
    let second = certificate(fresh.path());
    replace(fresh.path(), files.path());
    assert_eq!(shown(at).await, second);
    // A link to a good one that lies where the configuration names nothing.
    let third = certificate(elsewhere.path());
    std::fs::copy(elsewhere.path().join("page.key"), &key).expect("copied");
    std::fs::remove_file(&cert).expect("removed");
    std::os::unix::fs::symlink(elsewhere.path().join("page.pem"), &cert).expect("linked");
    let now = shown(at).await;
    match given_up(&program).await.landlock_abi {
        0 => testkit::skip("the kernel has no Landlock"),
        _ => {
            assert_ne!(now, third);
            assert_eq!(now, second);
            let said = wait_for(LIMIT, || {
                let log = program.log();
                log.contains("Permission denied").then_some(())
            });
            said.expect("the log says why");
        }
    }
    assert!(program.end(Signal::TERM).success());
}
