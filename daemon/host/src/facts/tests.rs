//! Tests the parsers, and which setting leads to which degradation.

use super::*;

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
    assert_eq!(effective_id(status, "Uid"), Some(0));
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
    let unit =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/systemd/fleetprofd.service");
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
