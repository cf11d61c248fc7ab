//! Captures over a fleet: the real collector and agent-ctl with two hundred simulated agents, and
//! with the real daemon while the collector restarts.
#![expect(clippy::unwrap_used, reason = "a test fails by panic")]

use rustix::process::Signal;
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use testkit::ctl::{self, UNREACHABLE};
use testkit::fake::agents::Agents;
use testkit::fake::control::Does;
use testkit::fleet::Options;
use testkit::process::{Output, run, wait_for};
use testkit::workload::Workload;
use testkit::{Daemon, Need, beside};

/// Exit code: there is a profile, and not all hosts are in it.
const PARTIAL: i32 = 6;
/// Longest that a command may take on a machine that others use too.
const LIMIT: Duration = Duration::from_secs(120);
/// Longest wait for samples to reach the collector and for the agent to connect: a back-off of up
/// to a minute.
const ARRIVE: Duration = Duration::from_secs(150);

fn ask(collector: &str, args: &[&str]) -> Output {
    let mut all = vec!["--collector", collector];
    all.extend(args);
    run(&mut ctl::command(all), LIMIT)
}

fn json(output: &Output) -> Value {
    serde_json::from_str(&output.text()).unwrap_or_else(|_| panic!("{}", output.stderr))
}

#[test]
fn of_two_hundred_hosts_a_tenth_fails_and_a_tenth_is_slow() {
    let _live = beside(&[]);
    let dir = tempfile::tempdir().unwrap();
    let collector = Options::new().start(dir.path());
    let address = collector.options().grpc();
    let hosts = (0..200).map(|at| {
        let does = match at % 10 {
            3 => Does::Refuses,
            7 => Does::Hangs,
            _ => Does::Answers(100),
        };
        (format!("web-{at:03}"), does)
    });
    let _fleet = Agents::start(&address, hosts.collect());
    let file = dir.path().join("api.folded");
    let begin = Instant::now();
    let output = ask(
        &address,
        &[
            "capture",
            "--select",
            "unit=api.service",
            "--max-hosts",
            "200",
            "--duration",
            "1s",
            "--patience",
            "4s",
            "--group-by",
            "host",
            "--json",
            "-o",
            file.to_str().unwrap(),
        ],
    );
    println!(
        "200 hosts: {:?} from the command to its end\n{}",
        begin.elapsed(),
        output.stderr
    );
    assert_eq!(output.code, Some(PARTIAL), "{}", output.stderr);
    let told = json(&output);
    assert_eq!(told["asked"], 200);
    assert_eq!(told["answered"], 160, "{told}");
    assert_eq!((&told["failed"], &told["lost"]), (&20.into(), &20.into()));
    assert!(
        output
            .stderr
            .contains("160 of 200 hosts answered: 20 failed, 20 lost")
    );
    let folded = std::fs::read_to_string(&file).unwrap();
    assert_eq!(folded.lines().count(), 320, "two stacks of each host");
    for stack in ["main;read 50", "main;write 50"] {
        let hosts = folded.lines().filter(|line| line.ends_with(stack));
        assert_eq!(hosts.count(), 160, "{stack}");
    }

    let few = ask(
        &address,
        &[
            "capture",
            "--duration",
            "1s",
            "--max-hosts",
            "10",
            "--json",
            "-o",
            file.to_str().unwrap(),
        ],
    );
    let told = json(&few);
    assert_eq!(
        (&told["asked"], &told["left_out"]),
        (&10.into(), &190.into())
    );
    let none = ask(&address, &["capture", "--select", "unit=nobody"]);
    assert_eq!(none.code, Some(2), "{}", none.stderr);
    assert!(
        none.stderr.contains("no host has samples"),
        "{}",
        none.stderr
    );
    let listed = json(&ask(&address, &["captures", "--json"]));
    assert_eq!(
        listed.as_array().unwrap().len(),
        3,
        "those that found nobody too"
    );
    assert!(collector.stop().success());
}

/// A capture that the daemon answers, once its samples have come and it is connected.
fn answered(collector: &str, file: &Path) -> Value {
    let args = [
        "capture",
        "--duration",
        "1s",
        "--rate",
        "499",
        "--json",
        "-o",
        file.to_str().unwrap(),
    ];
    let mut last = None;
    let found = wait_for(ARRIVE, || {
        let output = ask(collector, &args);
        let done = output.code == Some(0);
        last = Some(output);
        done.then_some(())
    });
    let last = last.unwrap();
    assert!(found.is_some(), "{:?}: {}", last.code, last.stderr);
    json(&last)
}

/// A daemon of this machine that is connected there.
fn host(address: &str, dir: &Path) -> Daemon {
    let spool = dir.join("spool");
    Daemon::with()
        .set("windows.length_s=2")
        .set(&format!("collector.address={address}"))
        .set(&format!("collector.spool.dir={}", spool.display()))
        .start()
        .sampling()
}

#[test]
#[ignore = "takes long: make test-slow"]
fn a_daemon_captures_for_its_collector_and_again_after_a_restart_needs_root() {
    let Some(_live) = beside(&[Need::Root]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new();
    let collector = options.start(dir.path());
    let address = options.grpc();
    let _busy = Workload::spawn(Command::new("sh").args(["-c", "while :; do :; done"]));
    let daemon = host(&address, dir.path());
    let file = dir.path().join("host.folded");
    let told = answered(&address, &file);
    assert_eq!((&told["asked"], &told["answered"]), (&1.into(), &1.into()));
    assert!(told["profile"]["samples"].as_u64().unwrap() > 0, "{told}");
    assert!(!std::fs::read_to_string(&file).unwrap().is_empty());
    let listed = json(&daemon.ctl(&["captures", "--json"]));
    let peer = listed[0]["peer"].as_str().unwrap();
    assert!(
        peer.starts_with(&format!("collector {address} for ")),
        "{peer}"
    );

    // The collector goes away in the middle: the command says so, and the host does not go on for
    // nobody.
    let long = [
        "--collector",
        &*address,
        "capture",
        "--duration",
        "10min",
        "-o",
        file.to_str().unwrap(),
    ];
    let asking = std::thread::spawn({
        let mut command = ctl::command(long);
        move || run(&mut command, LIMIT)
    });
    let running = |count: usize| {
        let listed = json(&daemon.ctl(&["captures", "--json"]));
        let all = listed.as_array().unwrap().iter();
        all.filter(|one| one["state"] == "running").count() == count
    };
    let begun = wait_for(LIMIT, || running(1).then_some(()));
    assert!(begun.is_some(), "{}", daemon.log());
    collector.kill();
    let output = asking.join().unwrap();
    assert_eq!(output.code, Some(UNREACHABLE), "{}", output.stderr);
    let ended = wait_for(LIMIT, || running(0).then_some(()));
    assert!(ended.is_some(), "{}", daemon.log());
    let collector = options.start(dir.path());
    answered(&address, &file);

    // The daemon ends in the middle: its host is lost, which the command says.
    let asking = std::thread::spawn({
        let mut command = ctl::command(long);
        move || run(&mut command, LIMIT)
    });
    assert!(wait_for(LIMIT, || running(1).then_some(())).is_some());
    let mut daemon = daemon;
    daemon.signal(Signal::KILL);
    let output = asking.join().unwrap();
    assert_eq!(output.code, Some(1), "{}", output.stderr);
    assert!(output.stderr.contains("1 lost"), "{}", output.stderr);
    assert!(collector.stop().success());
}

#[test]
fn a_daemon_that_is_stopped_in_the_middle_answers_its_collector_with_what_there_is_needs_root() {
    let Some(_live) = beside(&[Need::Root]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new();
    let collector = options.start(dir.path());
    let address = options.grpc();
    let _busy = Workload::spawn(Command::new("sh").args(["-c", "while :; do :; done"]));
    let mut daemon = host(&address, dir.path());
    let file = dir.path().join("host.folded");
    answered(&address, &file);
    std::fs::remove_file(&file).unwrap();
    let asking = std::thread::spawn({
        let mut command = ctl::command([
            "--collector",
            &*address,
            "capture",
            "--duration",
            "10min",
            "--json",
            "-o",
            file.to_str().unwrap(),
        ]);
        move || run(&mut command, LIMIT)
    });
    let sampled = wait_for(LIMIT, || {
        let listed = json(&daemon.ctl(&["captures", "--json"]));
        let mut all = listed.as_array().unwrap().iter();
        let one = all.find(|one| one["state"] == "running")?;
        (one["samples"].as_u64()? > 0).then_some(())
    });
    assert!(sampled.is_some(), "{}", daemon.log());
    daemon.signal(Signal::TERM);
    let output = asking.join().unwrap();
    let told = json(&output);
    assert!(told["profile"]["samples"].as_u64().unwrap() > 0, "{told}");
    assert!(!std::fs::read_to_string(&file).unwrap().is_empty());
    assert!(daemon.wait(LIMIT).unwrap().success(), "{}", daemon.log());
    assert!(collector.stop().success());
}
