//! The parsers, and which setting leads to which degradation.

use super::*;
use crate::config::Config;
use std::path::PathBuf;

#[test]
fn cpu_lists() {
    let check = |text: &str, expected: &[u32]| {
        let cpus = parse_cpu_list(text).map(|cpus| cpus.iter().map(|cpu| cpu.0).collect());
        assert_eq!(cpus, Some(expected.to_vec()), "{text:?}");
    };
    check("0\n", &[0]);
    check("0-3\n", &[0, 1, 2, 3]);
    check("0-1,4,6-7", &[0, 1, 4, 6, 7]);
    check("\n", &[]);
    for text in ["3-1", "0-", "a", "0,0", "1,0", "0-4294967295", "-1", "0,,1"] {
        assert_eq!(parse_cpu_list(text), None, "{text:?}");
    }
}

#[test]
fn status_fields() {
    let status = "Name:\ta\nUid:\t1000\t0\t0\t0\nCapPrm:\t0\nCapEff:\t0000004000004000\n";
    assert_eq!(parse_effective_uid(status), Some(0));
    let capabilities = parse_capabilities(status).unwrap();
    assert!(capabilities.has(CAP_PERFMON) && capabilities.has(CAP_IPC_LOCK));
    assert!(!capabilities.has(CAP_SYSLOG) && !capabilities.has(CAP_SYS_ADMIN));
    assert_eq!(parse_capabilities("CapEff:\tzz\n"), None);
}

#[test]
fn locked_memory() {
    let line = |soft| format!("Max processes 1 1 processes\nMax locked memory {soft}  9  bytes\n");
    assert_eq!(parse_memlock(&line("8388608")), Some(8_388_608));
    assert_eq!(parse_memlock(&line("unlimited")), Some(u64::MAX));
    assert_eq!(parse_memlock(""), None);
}

#[test]
fn memory() {
    assert_eq!(
        parse_memory("MemTotal:       24689532 kB\nMemFree: 1 kB\n"),
        Some(24_689_532 << 10)
    );
    assert_eq!(parse_memory("MemTotal: many kB\n"), None);
}

#[test]
fn namespaces() {
    assert_eq!(
        parse_namespace("pid:[4026531836]"),
        Some(INITIAL_PID_NAMESPACE)
    );
    assert_eq!(parse_namespace("pid:4026531836"), None);
}

#[test]
fn hidden_kernel_symbols_are_told_from_shown_ones() {
    let hidden = "0000000000000000 A fixed_percpu_data\n0000000000000000 T _stext\n";
    assert!(!shows_addresses(hidden));
    assert!(!shows_addresses(""));
    assert!(shows_addresses(
        "0000000000000000 A x\nffffffff81000000 T _stext\n"
    ));
}

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
    let found: Vec<String> = environment
        .degradations(&sampling, &cgroups)
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

#[test]
fn a_system_without_proc_and_sys_is_read_as_unknown() {
    let empty = tempfile::tempdir().unwrap();
    assert_eq!(Environment::read_from(empty.path()), Environment::default());
}

#[test]
fn the_running_system_is_read() {
    let environment = Environment::read();
    assert!(!environment.kernel.is_empty() && !environment.host.is_empty());
    assert!(!environment.cpus_online.is_empty());
    assert!(environment.memlock_bytes.is_some() && environment.initial_pid_namespace.is_some());
}

#[test]
fn the_service_file_names_the_capabilities_the_daemon_uses() {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/systemd/fleetprofd.service");
    let unit = std::fs::read_to_string(unit).unwrap();
    let names: Vec<String> = CAPABILITIES.iter().map(|c| c.name.to_uppercase()).collect();
    for setting in ["AmbientCapabilities=", "CapabilityBoundingSet="] {
        let line = unit
            .lines()
            .find_map(|line| line.strip_prefix(setting))
            .unwrap();
        assert_eq!(line.split(' ').collect::<Vec<_>>(), names, "{setting}");
    }
}
