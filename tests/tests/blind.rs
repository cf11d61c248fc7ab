//! Blindness: a sampler that is held for half a minute, while CPUs are busy, is said by everything
//! that speaks of the daemon, and so is that it is over.

use serde_json::Value;
use std::time::{Duration, Instant};
use testkit::ctl::ctl;
use testkit::fleet::Options;
use testkit::http::{ask, free_address};
use testkit::process::{Output, wait_for};
use testkit::workload::{Workload, c};
use testkit::{Cgroup, Daemon, Need, live};

const NEEDS: &[Need] = &[Need::Root, Need::StaticC, Need::Cgroup2];

/// How long the sampler is held.
const HELD: Duration = Duration::from_secs(30);
/// Length of windows.
const WINDOW: Duration = Duration::from_secs(5);
/// Time within which blindness is said: the sampler is missed after 5 s, and looked at every 5 s.
const SAID: Duration = Duration::from_secs(25);
/// Time within which its end is said: windows that are well, and their way to the collector.
const OVER: Duration = Duration::from_secs(60);
/// Partial.
const PARTIAL: Option<i32> = Some(6);

fn health(address: &str) -> String {
    ask(address, "/healthz", Duration::from_secs(5)).unwrap_or_default()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {} {}", output.stderr, output.text()))
}

/// Says how long after `begin` something was so.
fn after(begin: Instant, what: &str) {
    eprintln!("{:5.1} s: {what}", begin.elapsed().as_secs_f64());
}

/// Lines of the log with this text.
fn lines(daemon: &Daemon, text: &str) -> usize {
    daemon
        .log()
        .lines()
        .filter(|line| line.contains(text))
        .count()
}

#[test]
#[ignore = "takes long: make test-slow"]
fn a_sampler_that_is_held_is_said_everywhere_and_so_is_its_end_needs_root() {
    let Some(_live) = live(NEEDS) else {
        return;
    };
    let dir = tempfile::tempdir().expect("a directory");
    let cgroup = Cgroup::new("blind");
    let options = Options::new();
    let collector = options.start(dir.path());
    let metrics = free_address();
    let daemon = Daemon::with()
        .set(&format!("windows.length_s={}", WINDOW.as_secs()))
        .set("collector.host_id=held")
        .set(&format!("collector.address={}", options.grpc()))
        .set(&format!(
            "collector.spool.dir={}",
            dir.path().join("spool").display()
        ))
        .metrics(&metrics)
        .start()
        .sampling();
    let _busy = c("split.c").start_in(&cgroup, &[]);
    let to_fleet = |args: &[&str]| {
        let grpc = options.grpc();
        ctl(["--collector", grpc.as_str()].iter().chain(args))
    };
    let host = || json(&to_fleet(&["hosts", "--json"]))["hosts"][0].clone();
    let ready = wait_for(OVER, || {
        (host()["windows"].as_u64() >= Some(2) && health(&metrics).contains(" 200 ")).then_some(())
    });
    assert!(ready.is_some(), "no windows come: {}", daemon.log());
    assert_eq!(host()["blind"], false);
    assert_eq!(daemon.ctl(&["status"]).code, Some(0), "{}", daemon.log());

    let mut holder = Workload::spawn(
        std::process::Command::new(c("hold.c").build()).arg(daemon.pid().to_string()),
    );
    let held = wait_for(SAID, || {
        (holder.proc().stdout() == "held\n").then(Instant::now)
    });
    let begin = held.unwrap_or_else(|| panic!("not held: {}", holder.proc().stderr()));

    let sick = wait_for(SAID, || {
        let answer = health(&metrics);
        answer.contains(" 503 ").then_some(answer)
    });
    let sick = sick.expect("/healthz says that it is blind");
    after(begin, "/healthz is 503");
    assert!(sick.contains("the sampler has not moved for"), "{sick}");
    let said = wait_for(SAID, || {
        (lines(&daemon, "no usable samples") > 0).then_some(())
    });
    assert!(said.is_some(), "{}", daemon.log());
    after(begin, "the log has its line");
    let blind = wait_for(SAID, || (host()["blind"] == true).then(host));
    let blind = blind.expect("the collector knows");
    after(begin, "hosts says blind");
    let why = &blind["degradations"][0];
    assert!(
        ["sampler_stuck", "no_samples"].contains(&why["id"].as_str().unwrap_or_default()),
        "{blind:#}"
    );
    assert!(why["since"].is_string(), "{why:#}");
    let hosts = to_fleet(&["hosts"]);
    assert_eq!(hosts.code, PARTIAL, "{}", hosts.stderr);
    assert!(
        hosts.stderr.contains("1 without samples"),
        "{}",
        hosts.stderr
    );
    let status = wait_for(SAID, || {
        let status = to_fleet(&["status"]);
        status
            .text()
            .contains("1 host without samples")
            .then_some(status)
    });
    let status = status.expect("the collector's status has a line");
    after(begin, "the collector's status has its line");
    assert_eq!(status.code, PARTIAL);

    let status = daemon.ctl(&["status"]);
    assert_eq!(status.code, PARTIAL);
    assert!(status.text().contains("sampler_stuck"), "{}", status.text());
    // A time in which nothing was sampled.
    let wanted = Duration::from_secs(22);
    std::thread::sleep(wanted.saturating_sub(begin.elapsed()));
    for args in [
        &[
            "profile",
            "--since",
            "15s",
            "--format",
            "folded",
            "-o",
            "/dev/null",
        ][..],
        &["top", "--once", "--range", "15s"],
        &["cgroups", "--since", "15s"],
    ] {
        let output = daemon.ctl(args);
        assert_eq!(output.code, PARTIAL, "{args:?}: {}", output.stderr);
        let says = ["no samples", "missing", "were lost"];
        assert!(
            says.iter().any(|text| output.stderr.contains(text)),
            "{args:?}: {}",
            output.stderr
        );
    }
    after(begin, "commands have ended with 6");
    std::thread::sleep(HELD.saturating_sub(begin.elapsed()));
    assert_eq!(lines(&daemon, "no usable samples"), 1, "{}", daemon.log());

    drop(holder);
    let freed = Instant::now();
    after(begin, "the sampler goes on");
    let well = wait_for(OVER, || health(&metrics).contains(" 200 ").then_some(()));
    assert!(well.is_some(), "{}: {}", health(&metrics), daemon.log());
    after(freed, "after that /healthz is 200");
    let told = wait_for(SAID, || {
        (lines(&daemon, "usable samples again") == 1).then_some(())
    });
    assert!(told.is_some(), "{}", daemon.log());
    assert_eq!(lines(&daemon, "no usable samples"), 1, "{}", daemon.log());
    let sees = wait_for(OVER, || (host()["blind"] == false).then_some(()));
    assert!(sees.is_some(), "{}", host());
    after(freed, "after that hosts does not say blind");
    let status = wait_for(OVER, || {
        let status = to_fleet(&["status"]);
        (!status.text().contains("without samples")).then_some(())
    });
    assert!(
        status.is_some(),
        "the collector's status still has its line"
    );
    after(freed, "after that the collector's status is without");

    // What was lost has arrived, and is counted the same way by all.
    let coverage = |args: &[&str]| json(&to_fleet(args))["fleet"]["coverage_share"].as_f64();
    let range = format!("{}s", begin.elapsed().as_secs() + 10);
    let same = wait_for(OVER, || {
        let by_hosts = coverage(&["hosts", "--since", &range, "--json"])?;
        let by_cgroups = coverage(&["cgroups", "--since", &range, "--json"])?;
        let of_row = host()["coverage_share"].as_f64()?;
        eprintln!("coverage: {by_hosts} of hosts, {by_cgroups} of cgroups, {of_row} of its row");
        ((by_hosts - by_cgroups).abs() < 0.01).then_some(by_hosts)
    });
    let share = same.expect("hosts and cgroups agree");
    assert!(share < 0.8, "half a minute was lost: {share}");
    drop(daemon);
    drop(collector);
}
