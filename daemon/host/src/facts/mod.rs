//! Facts about the host that the daemon runs on: kernel settings, CPUs, memory, and the daemon's
//! own rights.
//!
//! Reads a dozen small files of /proc and /sys once, on request. The parsers are pure.
//! `agent/environment.rs` says what the facts mean for profiles. Rules: perf_event_open(2),
//! sysctl/kernel.rst, capabilities(7), kernel/events/core.c (`perf_mmap`), kernel/ksyms_common.c
//! (`kallsyms_show_value`).

use crate::ids::CpuId;
use crate::proc::{effective_id, status_field};
use std::io::Read;
use std::path::Path;

/// A capability by its number (linux/capability.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// Its number.
    pub bit: u32,
    /// Its name in lower case, as setcap takes it.
    pub name: &'static str,
}

/// Allows reading files of other users, whatever their permissions.
pub const CAP_DAC_READ_SEARCH: Capability = Capability {
    bit: 2,
    name: "cap_dac_read_search",
};
/// Allows locking memory beyond the limit, for large rings.
pub const CAP_IPC_LOCK: Capability = Capability {
    bit: 14,
    name: "cap_ipc_lock",
};
/// Allows looking into processes of other users.
pub const CAP_SYS_PTRACE: Capability = Capability {
    bit: 19,
    name: "cap_sys_ptrace",
};
/// Allows everything that `CAP_PERFMON` and `CAP_CHECKPOINT_RESTORE` do, and much more.
pub const CAP_SYS_ADMIN: Capability = Capability {
    bit: 21,
    name: "cap_sys_admin",
};
/// Allows seeing kernel addresses.
pub const CAP_SYSLOG: Capability = Capability {
    bit: 34,
    name: "cap_syslog",
};
/// Allows sampling all CPUs and the kernel (Linux 5.8 and later).
pub const CAP_PERFMON: Capability = Capability {
    bit: 38,
    name: "cap_perfmon",
};
/// Allows following the links in `/proc/PID/map_files` (Linux 5.9 and later).
pub const CAP_CHECKPOINT_RESTORE: Capability = Capability {
    bit: 40,
    name: "cap_checkpoint_restore",
};

/// Every capability the daemon has a use for, and no other.
pub const CAPABILITIES: [Capability; 6] = [
    CAP_PERFMON,
    CAP_SYSLOG,
    CAP_SYS_PTRACE,
    CAP_DAC_READ_SEARCH,
    CAP_CHECKPOINT_RESTORE,
    CAP_IPC_LOCK,
];

/// A set of capabilities, as `CapEff` in `/proc/PID/status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// True when `capability` is in the set.
    pub fn has(self, capability: Capability) -> bool {
        self.0 >> capability.bit & 1 == 1
    }

    /// May sample all CPUs, whatever `perf_event_paranoid` says.
    pub fn perfmon(self) -> bool {
        self.has(CAP_PERFMON) || self.has(CAP_SYS_ADMIN)
    }
}

/// Settings and rights. `None`: the file was not there or not readable.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Environment {
    /// Name of the machine.
    pub host: String,
    /// Kernel release.
    pub kernel: String,
    /// `kernel.perf_event_paranoid`: who may sample what without CAP_PERFMON.
    pub perf_event_paranoid: Option<i32>,
    /// `kernel.perf_event_max_stack`: most frames of a stack.
    pub perf_event_max_stack: Option<u32>,
    /// `kernel.perf_event_mlock_kb`: ring memory for each CPU that is free of RLIMIT_MEMLOCK.
    pub perf_event_mlock_kb: Option<u32>,
    /// `kernel.perf_event_max_sample_rate`: highest rate; the kernel lowers it under load.
    pub perf_event_max_sample_rate: Option<u32>,
    /// `kernel.perf_cpu_time_max_percent`: CPU time that sampling may take before the kernel lowers
    /// the rate; 0 and 100: no bound.
    pub perf_cpu_time_max_percent: Option<u32>,
    /// `kernel.kptr_restrict`: who may see kernel addresses.
    pub kptr_restrict: Option<i32>,
    /// True when `/proc/kallsyms` shows addresses to the daemon, which is what counts.
    pub kernel_symbols: bool,
    /// CPUs that run now.
    pub cpus_online: Vec<CpuId>,
    /// The daemon's capabilities. They count only in the initial user namespace.
    pub capabilities: Capabilities,
    /// RLIMIT_MEMLOCK, soft. Unit: bytes; `u64::MAX` when there is no limit.
    pub memlock_bytes: Option<u64>,
    /// Memory of the machine. Unit: bytes.
    pub memory_bytes: Option<u64>,
    /// True in the host's pid namespace.
    pub initial_pid_namespace: Option<bool>,
    /// True in the host's user namespace.
    pub initial_user_namespace: Option<bool>,
}

/// Inode of the initial pid namespace (`PROC_PID_INIT_INO`, linux/proc_ns.h).
const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;
/// Inode of the initial user namespace (`PROC_USER_INIT_INO`).
const INITIAL_USER_NAMESPACE: u64 = 0xEFFF_FFFD;

/// Text of `/proc/kallsyms` looked at. Unit: bytes. The first symbols are per-CPU offsets, some of
/// them 0 even for root; thousands of lines are not.
const KALLSYMS_LOOKED_AT: u64 = 256 * 1024;

/// Highest CPU number believed. The kernel's own limit is 8,192 (NR_CPUS on x86-64).
const CPU_MAX: u32 = 65_535;

impl Environment {
    /// Reads the running system.
    pub fn read() -> Environment {
        Environment::read_from(Path::new("/"))
    }

    fn read_from(root: &Path) -> Environment {
        let text = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
        let sysctl = |name: &str| text(&format!("proc/sys/kernel/{name}"));
        let status = text("proc/self/status");
        let namespace = |name: &str| {
            let link = std::fs::read_link(root.join("proc/self/ns").join(name)).ok()?;
            parse_namespace(link.to_str()?)
        };
        Environment {
            host: sysctl("hostname").trim().to_owned(),
            kernel: sysctl("osrelease").trim().to_owned(),
            perf_event_paranoid: sysctl("perf_event_paranoid").trim().parse().ok(),
            perf_event_max_stack: sysctl("perf_event_max_stack").trim().parse().ok(),
            perf_event_mlock_kb: sysctl("perf_event_mlock_kb").trim().parse().ok(),
            perf_event_max_sample_rate: sysctl("perf_event_max_sample_rate").trim().parse().ok(),
            perf_cpu_time_max_percent: sysctl("perf_cpu_time_max_percent").trim().parse().ok(),
            kptr_restrict: sysctl("kptr_restrict").trim().parse().ok(),
            kernel_symbols: read_kallsyms(root).is_some_and(|text| shows_addresses(&text)),
            cpus_online: parse_cpu_list(&text("sys/devices/system/cpu/online")).unwrap_or_default(),
            capabilities: parse_capabilities(&status).unwrap_or_default(),
            memlock_bytes: parse_memlock(&text("proc/self/limits")),
            memory_bytes: parse_memory(&text("proc/meminfo")),
            initial_pid_namespace: namespace("pid").map(|inode| inode == INITIAL_PID_NAMESPACE),
            initial_user_namespace: namespace("user").map(|inode| inode == INITIAL_USER_NAMESPACE),
        }
    }

    /// Rights that the kernel honours: those of a user namespace do not count for perf events.
    pub fn effective(&self) -> Capabilities {
        match self.initial_user_namespace {
            Some(false) => Capabilities::default(),
            _ => self.capabilities,
        }
    }

    /// Ring memory the kernel grants. Unit: bytes over all CPUs; `None`: as much as there is.
    pub fn ring_bytes_max(&self) -> Option<u64> {
        let free = self.effective().has(CAP_IPC_LOCK) || self.perf_event_paranoid == Some(-1);
        let cpus = self.cpus_online.len() as u64;
        let locked = u64::from(self.perf_event_mlock_kb?) * 1024 * cpus;
        (!free).then(|| locked.saturating_add(self.memlock_bytes.unwrap_or(0)))
    }
}

/// Effective user id; root if it is unknown, so that checks err on the strict side.
pub fn effective_uid() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    effective_id(&status, "Uid").unwrap_or(0)
}

fn parse_capabilities(status: &str) -> Option<Capabilities> {
    u64::from_str_radix(status_field(status, "CapEff")?, 16)
        .ok()
        .map(Capabilities)
}

/// Bytes of `MemTotal` in `/proc/meminfo`, which counts in KiB.
fn parse_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Reads `Max locked memory  SOFT  HARD  bytes` of `/proc/self/limits`.
fn parse_memlock(limits: &str) -> Option<u64> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max locked memory"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        bytes => bytes.parse().ok(),
    }
}

/// Reads `pid:[4026531836]`.
fn parse_namespace(link: &str) -> Option<u64> {
    link.split_once(":[")?.1.strip_suffix(']')?.parse().ok()
}

/// Highest rate that the kernel takes now; it lowers it when samples take long.
pub fn max_sample_rate() -> Option<u32> {
    let text = std::fs::read_to_string("/proc/sys/kernel/perf_event_max_sample_rate");
    text.ok()?.trim().parse().ok()
}

/// The CPUs that are online now. `None` if sysfs does not say.
pub fn cpus_online() -> Option<Vec<CpuId>> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").ok()?;
    parse_cpu_list(&text).filter(|cpus| !cpus.is_empty())
}

/// Reads a list of CPUs as sysfs writes it: `0-3,5`. None when it is not one.
pub fn parse_cpu_list(text: &str) -> Option<Vec<CpuId>> {
    let mut cpus = Vec::new();
    let text = text.trim();
    for range in text.split(',').filter(|_| !text.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        let grows = cpus.last().is_none_or(|CpuId(before)| *before < first);
        if first > last || last > CPU_MAX || !grows {
            return None;
        }
        cpus.extend((first..=last).map(CpuId));
    }
    Some(cpus)
}

fn read_kallsyms(root: &Path) -> Option<String> {
    let file = std::fs::File::open(root.join("proc/kallsyms")).ok()?;
    let mut text = Vec::new();
    file.take(KALLSYMS_LOOKED_AT).read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// True when any symbol has an address: all are 0 for those who may not see them.
fn shows_addresses(kallsyms: &str) -> bool {
    kallsyms
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .any(|address| address.len() >= 8 && address.bytes().any(|b| b != b'0'))
}

#[cfg(test)]
mod tests;
