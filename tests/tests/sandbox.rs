//! The sandbox of the real daemon: what is in force, on which threads, and that nothing is missed.
#![expect(clippy::unwrap_used, reason = "a test fails by panic")]

use profile::key;
use proto::agent::{CaptureRequest, LabelMatcher, MatchOp};
use std::time::Duration;
use testkit::fake::ingest::{Behaviour, IngestCollector};
use testkit::process::wait_for;
use testkit::workload::c;
use testkit::{Cgroup, Daemon, Need, beside, live};

/// How long something that has to come may take on a loaded machine.
const LIMIT: Duration = Duration::from_secs(90);

/// Name, mode of seccomp, and whether new privileges are given up, of each thread.
fn threads(pid: u32) -> Vec<(String, u32, u32)> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .flatten();
    let read = |path: std::path::PathBuf| {
        let status = std::fs::read_to_string(path.join("status")).ok()?;
        let of = |word: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(word));
            line.map(|value| value.trim().to_owned())
        };
        let number = |word| of(word).and_then(|value| value.parse().ok());
        Some((of("Name:")?, number("Seccomp:")?, number("NoNewPrivs:")?))
    };
    tasks.filter_map(|task| read(task.path())).collect()
}

#[test]
fn every_thread_is_refused_calls_and_captures_still_find_their_target_needs_root() {
    let Some(_live) = live(&[Need::Root, Need::StaticC]) else {
        return;
    };
    let cgroup = Cgroup::new("sandbox");
    let program = c("split.c").named("sandboxed").prefixed("boxed_");
    let workload = program.start_in(&cgroup, &[]);
    let dir = tempfile::tempdir().unwrap();
    let collector = IngestCollector::with(Behaviour {
        hears: true,
        ..Behaviour::default()
    });
    let daemon = Daemon::with()
        .set("windows.length_s=1")
        .set(&format!("collector.address={}", collector.address()))
        .set(&format!(
            "collector.spool.dir={}",
            dir.path().join("spool").display()
        ))
        .set(&format!(
            "recorder.pins_dir={}",
            dir.path().join("pins").display()
        ))
        .set(&format!(
            "collector.identity_dir={}",
            dir.path().join("identity").display()
        ))
        .start()
        .sampling();
    let sandbox = daemon.client().status().unwrap().sandbox.unwrap();
    assert!(sandbox.on && sandbox.seccomp, "{sandbox:?}");
    let shown = daemon.ctl(&["status"]);
    assert!(shown.text().contains("seccomp on"), "{}", shown.text());
    if sandbox.landlock_abi > 0 {
        assert_eq!(sandbox.confined, ["fp-uplink"]);
    }
    let all = threads(daemon.pid());
    assert!(all.len() > 8, "{all:?}");
    for (name, seccomp, no_new_privs) in all {
        assert_eq!((seccomp, no_new_privs), (2, 1), "{name}");
    }
    // Windows still go through the spool of the confined thread.
    let acked = wait_for(LIMIT, || (daemon.export().acked_windows >= 3).then_some(()));
    acked.expect("windows arrive");
    // A capture of a process, which is looked up; and one of waits.
    for (event, label, value) in [
        ("cpu-clock", key::PID, workload.pid().to_string()),
        ("off-cpu", key::CGROUP, cgroup.path().to_owned()),
    ] {
        let before = collector.memory().heard.captures.len();
        collector.order(CaptureRequest {
            event: event.to_owned(),
            duration_ns: 2_000_000_000,
            matchers: vec![LabelMatcher {
                label: label.to_owned(),
                op: MatchOp::Equal as i32,
                value,
            }],
            group_by: vec!["*".to_owned()],
            ..CaptureRequest::default()
        });
        let over = wait_for(LIMIT, || {
            collector.memory().heard.captures.get(before).cloned()
        });
        let captured = over
            .expect("it ends")
            .unwrap_or_else(|why| panic!("{event}: {why}"));
        if event == "cpu-clock" {
            assert!(captured.total().count > 20);
            let found = captured.samples.keys().any(|key| {
                let mut frames = captured.dict.stacks.leaf_first(key.stack);
                frames.any(|frame| captured.dict.frame(frame).function == "boxed_spend_seventy")
            });
            assert!(found, "its functions have names");
        }
    }
    // Programs that come later are read as well.
    let later = c("split.c").named("later").prefixed("later_");
    let _later = later.start_in(&cgroup, &[]);
    let named = wait_for(LIMIT, || {
        let view = daemon.client().everything();
        (view.count_with("later_spend_seventy") > 0).then_some(())
    });
    named.expect("a program that started later has names");
    daemon.stop();
}

#[test]
fn off_is_off_needs_root() {
    let Some(_live) = beside(&[Need::Root]) else {
        return;
    };
    let daemon = Daemon::with().set("sandbox=off").start();
    let sandbox = daemon.client().status().unwrap().sandbox.unwrap();
    assert!(!sandbox.on && !sandbox.seccomp && sandbox.confined.is_empty());
    let all = threads(daemon.pid());
    assert!(all.iter().all(|(_, seccomp, _)| *seccomp == 0), "{all:?}");
    daemon.stop();
}
