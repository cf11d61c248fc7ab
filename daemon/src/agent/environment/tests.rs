//! Tests which setting leads to which degradation.

use super::*;
use agent_config::Config;
use host::facts::Capabilities;
use host::ids::CpuId;
use std::path::PathBuf;

/// A machine where everything is well.
fn well() -> Environment {
    Environment {
        perf_event_paranoid: Some(2),
        perf_event_max_stack: Some(127),
        perf_event_mlock_kb: Some(516),
        perf_event_max_sample_rate: Some(100_000),
        perf_cpu_time_max_percent: Some(25),
        kptr_restrict: Some(1),
        kernel_symbols: true,
        cpus_online: vec![CpuId(0), CpuId(1)],
        capabilities: Capabilities(CAPABILITIES.iter().fold(0, |set, c| set | 1 << c.bit)),
        memlock_bytes: Some(0),
        memory_bytes: Some(8 << 30),
        initial_pid_namespace: Some(true),
        initial_user_namespace: Some(true),
        ..Environment::default()
    }
}

fn whole() -> Hierarchy {
    let mount = Some(PathBuf::from("/sys/fs/cgroup"));
    Hierarchy {
        mode: Mode::Cgroup2,
        mount,
        prefix: Vec::new(),
        whole: true,
        v1: false,
    }
}

/// Compares with `id severity remedy`, one a line; remedies cut after 48 characters.
fn check(change: impl FnOnce(&mut Environment, &mut Sampling, &mut Hierarchy), expected: &[&str]) {
    let (mut environment, mut sampling, mut cgroups) =
        (well(), Config::default().sampling, whole());
    change(&mut environment, &mut sampling, &mut cgroups);
    let found: Vec<String> = degradations(&environment, &sampling, &cgroups)
        .iter()
        .map(|d| {
            format!(
                "{} {:?} {}",
                d.id,
                d.severity,
                d.remedy.chars().take(48).collect::<String>()
            )
        })
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn a_machine_where_all_is_well_has_no_degradations() {
    check(|_, _, _| {}, &[]);
}

#[test]
fn what_the_settings_lead_to() {
    let setcap = "setcap cap_perfmon,cap_syslog,cap_sys_ptrace,cap";
    let full: u64 = well().capabilities.0;
    check(
        |e, _, _| e.capabilities.0 = full & !(1 << 38),
        &[&format!("perf_event_paranoid Error {setcap}")],
    );
    check(
        |e, _, _| {
            e.capabilities.0 = full & !(1 << 38);
            e.perf_event_paranoid = Some(0);
        },
        &[],
    );
    check(
        |e, _, _| e.capabilities.0 = full & !(1 << 38) | 1 << 21,
        &[],
    );
    check(
        |e, _, _| e.perf_event_paranoid = None,
        &["perf_events Error "],
    );
    check(
        |e, _, _| e.perf_event_max_sample_rate = Some(50),
        &["perf_event_max_sample_rate Error sysctl -w kernel.perf_event_max_sample_rate=99"],
    );
    check(
        |e, _, _| e.perf_event_max_stack = Some(60),
        &["perf_event_max_stack Warning sysctl -w kernel.perf_event_max_stack=127"],
    );
    check(
        |e, _, _| (e.kernel_symbols, e.kptr_restrict) = (false, Some(2)),
        &["kptr_restrict Warning sysctl -w kernel.kptr_restrict=1"],
    );
    check(
        |e, _, _| {
            e.kernel_symbols = false;
            e.capabilities.0 = full & !(1 << 34);
        },
        &[&format!("kptr_restrict Warning {setcap}")],
    );
    check(
        |e, _, _| e.capabilities.0 = full & !(1 << 19),
        &[&format!("capabilities Warning {setcap}")],
    );
    check(
        |e, _, _| e.initial_pid_namespace = Some(false),
        &["pid_namespace Warning run the container with the host's pid namespace "],
    );
    check(
        |_, _, c| (c.mode, c.mount, c.whole) = (Mode::None, None, false),
        &["cgroups Warning mount -t cgroup2 none /sys/fs/cgroup"],
    );
    check(
        |_, _, c| c.whole = false,
        &["cgroups Warning mount the host's /sys/fs/cgroup into the contain"],
    );
}

#[test]
fn ring_memory_is_bounded_without_the_capability() {
    let full: u64 = well().capabilities.0;
    check(
        |e, s, _| {
            e.capabilities.0 = full & !(1 << 14);
            s.ring_kib = 1024;
        },
        &["mlock_kb Warning sysctl -w kernel.perf_event_mlock_kb=1028"],
    );
    // 256 KiB and a page for each CPU fit in 516 KiB.
    check(|e, _, _| e.capabilities.0 = full & !(1 << 14), &[]);
    // The process's own limit is added to what is free.
    check(
        |e, s, _| {
            e.capabilities.0 = full & !(1 << 14);
            e.memlock_bytes = Some(8 << 20);
            s.ring_kib = 1024;
        },
        &[],
    );
    assert_eq!(well().ring_bytes_max(), None);
}

#[test]
fn capabilities_of_a_user_namespace_do_not_count() {
    check(
        |e, _, _| e.initial_user_namespace = Some(false),
        &[
            "perf_event_paranoid Error run the daemon in the host's user namespace",
            "capabilities Warning run the daemon in the host's user namespace",
        ],
    );
}
