//! Derives [`Degradation`]s from the host's settings and the daemon's own rights: what they mean
//! for profiles. Pure.

use agent_config::Sampling;
use cgroup::{Hierarchy, Mode};
use host::facts::{
    CAP_CHECKPOINT_RESTORE, CAP_DAC_READ_SEARCH, CAP_SYS_ADMIN, CAP_SYS_PTRACE, CAP_SYSLOG,
    CAPABILITIES, Environment,
};
use host::health::{Degradation, Severity};
use std::path::Path;

/// The kernel's default of `perf_event_max_stack` (`PERF_MAX_STACK_DEPTH`,
/// uapi/linux/perf_event.h).
const DEFAULT_MAX_STACK: u16 = 127;

/// Degradations of a daemon that samples as `sampling` says, worst first.
pub fn degradations(
    environment: &Environment,
    sampling: &Sampling,
    cgroups: &Hierarchy,
) -> Vec<Degradation> {
    let mut list = Vec::new();
    check_events(environment, sampling, &mut list);
    check_names(environment, &mut list);
    check_cgroups(cgroups, &mut list);
    list.sort_by_key(|degradation| std::cmp::Reverse(degradation.severity));
    list
}

/// The command that gives the daemon what it needs, all at once: setcap replaces what was there.
fn grant(environment: &Environment) -> String {
    if environment.initial_user_namespace == Some(false) {
        return "run the daemon in the host's user namespace".to_owned();
    }
    let names: Vec<&str> = CAPABILITIES
        .iter()
        .map(|capability| capability.name)
        .collect();
    format!("setcap {}+ep \"$(command -v fleetprofd)\"", names.join(","))
}

/// Degradations that prevent samples, or cut their stacks.
fn check_events(environment: &Environment, sampling: &Sampling, list: &mut Vec<Degradation>) {
    let Some(paranoid) = environment.perf_event_paranoid else {
        return list.push(Degradation::new(
            "perf_events",
            Severity::Error,
            "the kernel has no perf events, or /proc/sys is hidden from the daemon",
            "",
        ));
    };
    let effective = environment.effective();
    if paranoid > 0 && !effective.perfmon() {
        let message = format!(
            "kernel.perf_event_paranoid is {paranoid} and the daemon lacks CAP_PERFMON{}: the \
             kernel refuses to sample all CPUs",
            match environment.initial_user_namespace {
                Some(false) => " (a user namespace does not count)",
                _ => "",
            }
        );
        let remedy = grant(environment);
        list.push(Degradation::new(
            "perf_event_paranoid",
            Severity::Error,
            message,
            remedy,
        ));
    }
    if let Some(rate) = environment
        .perf_event_max_sample_rate
        .filter(|max| *max < sampling.rate_hz)
    {
        let message = format!(
            "kernel.perf_event_max_sample_rate is {rate}, below sampling.rate_hz {}: the \
             kernel refuses the event. It lowers this limit itself when samples take long",
            sampling.rate_hz
        );
        let remedy = format!(
            "sysctl -w kernel.perf_event_max_sample_rate={}",
            sampling.rate_hz
        );
        list.push(Degradation::new(
            "perf_event_max_sample_rate",
            Severity::Error,
            message,
            remedy,
        ));
    }
    // Walks of stack copies know no such limit: what matters is that callchains are not cut short
    // of the kernel's own default.
    let depth = u32::from(sampling.max_stack_depth.min(DEFAULT_MAX_STACK));
    if let Some(max) = environment.perf_event_max_stack.filter(|max| *max < depth) {
        let message = format!(
            "kernel.perf_event_max_stack is {max}: the kernel's own callchains are cut at {max} \
             frames. It can be changed only while no profiler runs"
        );
        let remedy = format!("sysctl -w kernel.perf_event_max_stack={depth}");
        list.push(Degradation::new(
            "perf_event_max_stack",
            Severity::Warning,
            message,
            remedy,
        ));
    }
    // Each ring has a page of its own for the positions.
    let ring_bytes = u64::from(sampling.ring_kib) * 1024;
    let wanted = (ring_bytes + 4096) * environment.cpus_online.len() as u64;
    if let Some(max) = environment.ring_bytes_max().filter(|max| *max < wanted) {
        let (wanted, max) = (wanted.div_ceil(1024), max / 1024);
        let message = format!(
            "rings of sampling.ring_kib {} need {wanted} KiB of locked memory and the daemon, \
             which lacks CAP_IPC_LOCK, may lock {max} KiB: smaller rings lose samples sooner",
            sampling.ring_kib
        );
        let remedy = format!(
            "sysctl -w kernel.perf_event_mlock_kb={}",
            sampling.ring_kib.max(512) + 4
        );
        list.push(Degradation::new(
            "mlock_kb",
            Severity::Warning,
            message,
            remedy,
        ));
    }
}

/// Degradations that prevent names.
fn check_names(environment: &Environment, list: &mut Vec<Degradation>) {
    let effective = environment.effective();
    if !environment.kernel_symbols {
        let (message, remedy) = match environment.kptr_restrict {
            None => (
                "kernel.kptr_restrict cannot be read".to_owned(),
                String::new(),
            ),
            Some(2..) => (
                format!(
                    "kernel.kptr_restrict is {}",
                    environment.kptr_restrict.unwrap_or(2)
                ),
                "sysctl -w kernel.kptr_restrict=1".to_owned(),
            ),
            Some(value) if !effective.has(CAP_SYSLOG) => (
                format!("kernel.kptr_restrict is {value} and the daemon lacks CAP_SYSLOG"),
                grant(environment),
            ),
            Some(value) => (
                format!("/proc/kallsyms shows none (kernel.kptr_restrict is {value})"),
                String::new(),
            ),
        };
        let message =
            format!("kernel addresses are hidden, so kernel frames have no names: {message}");
        list.push(Degradation::new(
            "kptr_restrict",
            Severity::Warning,
            message,
            remedy,
        ));
    }
    if environment.initial_pid_namespace == Some(false) {
        list.push(Degradation::new(
            "pid_namespace",
            Severity::Warning,
            "the daemon is in a pid namespace of its own: samples of processes outside have no \
             pid, so their frames have no names",
            "run the container with the host's pid namespace (--pid=host, hostPID: true)",
        ));
    }
    let missing: Vec<&str> = [
        (CAP_SYS_PTRACE, effective.has(CAP_SYS_PTRACE)),
        (CAP_DAC_READ_SEARCH, effective.has(CAP_DAC_READ_SEARCH)),
        (
            CAP_CHECKPOINT_RESTORE,
            effective.has(CAP_CHECKPOINT_RESTORE) || effective.has(CAP_SYS_ADMIN),
        ),
    ]
    .into_iter()
    .filter(|(_, has)| !has)
    .map(|(capability, _)| capability.name)
    .collect();
    if !missing.is_empty() {
        let message = format!(
            "the daemon lacks {}: it may not read executables of other users and containers, or \
             deleted ones, so their frames have no names",
            missing.join(", ").to_uppercase()
        );
        list.push(Degradation::new(
            "capabilities",
            Severity::Warning,
            message,
            grant(environment),
        ));
    }
}

fn check_cgroups(cgroups: &Hierarchy, list: &mut Vec<Degradation>) {
    if cgroups.mode == Mode::None {
        list.push(Degradation::new(
            "cgroups",
            Severity::Warning,
            "the hierarchy of the perf_event controller is not mounted: cgroups come from \
             /proc/PID/cgroup, late and not at all for short-lived processes",
            "mount -t cgroup2 none /sys/fs/cgroup",
        ));
    } else if !cgroups.whole {
        let mount = cgroups
            .mount
            .as_deref()
            .unwrap_or(Path::new("/sys/fs/cgroup"));
        let message = format!(
            "only part of the cgroup tree is mounted at {}: cgroups outside get names only when \
             they are created again",
            mount.display()
        );
        let remedy = "mount the host's /sys/fs/cgroup into the container, read-only";
        list.push(Degradation::new(
            "cgroups",
            Severity::Warning,
            message,
            remedy,
        ));
    }
}

#[cfg(test)]
mod tests;
