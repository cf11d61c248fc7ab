//! The idle task: its loop is no CPU time and is dropped, what interrupts do on top of it is kept.

use profile::key;
use std::fs;
use std::time::Duration;
use testkit::process::wait_for;
use testkit::workload::{Workload, c};
use testkit::{Cgroup, Daemon, Need, View, cannot, live, skip};

const NEEDS: &[Need] = &[
    Need::Root,
    Need::StaticC,
    Need::Cgroup2,
    Need::SecondCpu,
    Need::Program("taskset"),
];

/// Longest that is waited for an idle CPU.
const LIMIT: Duration = Duration::from_secs(30);
/// Idle samples after which some work of interrupts must be among what was kept.
const IDLE_ENOUGH: u64 = 500;
/// Which CPUs take over what arrives at the loopback interface.
const STEERING: &str = "/sys/class/net/lo/queues/rx-0/rps_cpus";

/// Datagrams are delivered on the second CPU; put back when dropped.
struct Steered(String);

impl Steered {
    fn to_second_cpu() -> Option<Steered> {
        let before = fs::read_to_string(STEERING).ok()?;
        fs::write(STEERING, "2").ok()?;
        Some(Steered(before))
    }
}

impl Drop for Steered {
    fn drop(&mut self) {
        let _ = fs::write(STEERING, self.0.trim());
    }
}

#[test]
#[ignore = "takes long: make test-slow"]
fn soft_interrupts_on_an_idle_cpu_are_kept_and_its_loop_is_dropped_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let program = c("loopback.c").build();
    let cgroup = Cgroup::new("flood");
    let daemon = Daemon::start().sampling();
    let Some(steered) = Steered::to_second_cpu() else {
        return skip("packets cannot be steered between CPUs");
    };
    let mut flood = cgroup.command("taskset");
    let flood = Workload::spawn(flood.args(["-c", "0"]).arg(&program)).settled(&program);
    let client = daemon.client();
    let dropped = |view: &View| view.info.quality.as_ref().map_or(0, |quality| quality.idle);
    let idle_task = |view: &View| view.only(|sample| sample.label(key::PID) == "0");
    // Others may have work for the second CPU: what is idle is waited for.
    let found = wait_for(LIMIT, || {
        let view = client.everything();
        let done = idle_task(&view).count_with("net_rx_action") > 0 && dropped(&view) > 0;
        (done || dropped(&view) > IDLE_ENOUGH).then_some(view)
    });
    assert!(flood.finish("datagrams")[0] > 0);
    drop(steered);
    let Some(view) = found else {
        return cannot("no CPU is idle");
    };
    let idle = idle_task(&view);
    eprintln!("{} dropped, {}", dropped(&view), idle.dump());
    let delivered = idle.with("net_rx_action");
    if delivered.count() == 0 {
        // The second CPU had other work whenever packets came: then no idle CPU delivered any.
        return cannot("no packet met an idle CPU");
    }
    for sample in &delivered.samples {
        assert_eq!(
            sample.label(key::CONTEXT),
            "softirq",
            "{}",
            delivered.dump()
        );
    }
    // What the idle task does beside its loop and interrupts is little, and stays.
    let leaves = idle.by_leaf();
    for halted in [
        "default_idle",
        "pv_native_safe_halt",
        "native_safe_halt",
        "mwait_idle",
    ] {
        assert_eq!(leaves.get(halted), None, "{}", idle.dump());
    }
    daemon.stop();
}
