//! A cgroup that its CPU limit holds back, next to one without a limit, on the real kernel: from
//! the agent's windows through the collector to the overview and the tree of cgroups.

use serde_json::Value;
use std::time::Duration;
use testkit::cgroup::CpuLimit;
use testkit::ctl::ctl;
use testkit::fleet::Options;
use testkit::process::{Output, wait_for};
use testkit::workload::c;
use testkit::{Cgroup, Daemon, Need, live};

const NEEDS: &[Need] = &[Need::Root, Need::StaticC, Need::Cgroup2];

/// A fifth of a core for two busy threads. Unit: thousandths of a core.
const LIMIT: u64 = 200;
/// How long the programs run before anybody asks. Unit: seconds.
const RUN_S: u64 = 20;
/// Time within which a window comes to the collector.
const ARRIVED: Duration = Duration::from_secs(30);
/// Largest distance from the kernel's own share: readings are a moment apart.
const OFF_MAX: f64 = 0.05;

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {} {}", output.stderr, output.text()))
}

fn row<'v>(rows: &'v Value, key: &str, path: &str) -> Option<&'v Value> {
    rows.as_array()?.iter().find(|row| row[key] == path)
}

#[test]
fn a_cgroup_at_its_cpu_limit_is_named_and_its_neighbour_is_not_needs_root() {
    let Some(_live) = live(NEEDS) else {
        return;
    };
    let dir = tempfile::tempdir().expect("a directory");
    let (held, free) = (Cgroup::new("held"), Cgroup::new("free"));
    let limit = match CpuLimit::new(&held, LIMIT) {
        Ok(limit) => limit,
        Err(why) => return testkit::skip(&why),
    };
    let options = Options::new();
    let _collector = options.start(dir.path());
    let daemon = Daemon::with()
        .set("windows.length_s=2")
        .set("collector.host_id=held")
        .set(&format!("collector.address={}", options.grpc()))
        .set(&format!(
            "collector.spool.dir={}",
            dir.path().join("spool").display()
        ))
        .start()
        .sampling();
    let split = c("split.c");
    let busy = [split.start_in(&held, &[]), split.start_in(&held, &[])];
    busy.iter().for_each(|busy| limit.add(busy.pid()));
    let _neighbour = split.start_in(&free, &[]);
    let read = || {
        (
            limit.throttled_ns() as f64,
            held.cpu_ns().expect("an account") as f64,
        )
    };
    let before = read();
    std::thread::sleep(Duration::from_secs(RUN_S));
    let after = read();
    let (throttled, used) = (after.0 - before.0, after.1 - before.1);
    let expected = throttled / (throttled + used);
    assert!(expected > 0.2, "the limit holds nothing back: {expected}");

    // The agent's own answer.
    let own = json(&daemon.ctl(&["cgroups", "--since", "15s", "--json"]));
    let of_held = row(&own["cgroups"], "path", held.path()).expect("the cgroup");
    let share = of_held["throttled_share"].as_f64().expect("a share");
    let text = format!("cpu.stat: {expected:.3}, agent: {share:.3}");
    assert!((share - expected).abs() < OFF_MAX, "{text}");
    assert_eq!(of_held["cpu_limit_cores"], 0.2, "{of_held:#}");
    eprintln!("{text}");

    // The collector's, of all windows since.
    let to_fleet = |args: &[&str]| {
        let grpc = options.grpc();
        json(&ctl(["--collector", grpc.as_str()].iter().chain(args)))
    };
    let ask = || to_fleet(&["overview", "--since", "15s", "--by", "cgroup", "--json"]);
    let found = wait_for(ARRIVED, || {
        let answer = ask();
        row(&answer["throttled"], "cgroup", held.path())?;
        Some(answer)
    });
    let answer = found.unwrap_or_else(|| panic!("not named: {:#}", ask()));
    assert_eq!(answer["throttling_known"], true);
    let named = row(&answer["throttled"], "cgroup", held.path()).expect("it was there");
    let share = named["share"].as_f64().expect("a share");
    let text = format!("cpu.stat: {expected:.3}, overview: {share:.3}\n{named:#}");
    assert!((share - expected).abs() < OFF_MAX, "{text}");
    assert_eq!(named["limit_cores"], 0.2, "{named:#}");
    assert_eq!(row(&answer["throttled"], "cgroup", free.path()), None);
    eprintln!("{text}");

    let tree = to_fleet(&["cgroups", "--since", "15s", "--json"]);
    let of_held = row(&tree["cgroups"], "path", held.path()).expect("the cgroup");
    let share = of_held["throttled_share"].as_f64().expect("a share");
    assert!((share - expected).abs() < OFF_MAX, "{of_held:#}");

    if std::path::Path::new("/proc/pressure/cpu").exists() {
        assert_eq!(answer["pressure_hosts"], 1, "{answer:#}");
    }
    drop(busy);
    drop(held);
}
