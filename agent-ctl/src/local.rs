//! What this machine allows a profiler to do, read without an agent: sysctls, cgroup mounts, /proc.

use crate::degradation::Finding;
use proto::agent::Severity;
use std::path::Path;

/// What was read. `None`: the file is not there or cannot be read.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Local {
    /// `kernel.perf_event_paranoid`.
    pub paranoid: Option<i64>,
    /// `kernel.perf_event_max_stack`. Unit: frames.
    pub max_stack: Option<i64>,
    /// `kernel.perf_event_mlock_kb`. Unit: KiB a CPU and user.
    pub mlock_kb: Option<i64>,
    /// `kernel.kptr_restrict`.
    pub kptr_restrict: Option<i64>,
    /// Where the hierarchy that owns `perf_event` is mounted.
    pub cgroup_root: Option<String>,
    /// `hidepid=` of /proc, when it is not 0.
    pub hidepid: Option<String>,
    /// True when this process is root's.
    pub root: bool,
}

impl Local {
    /// Reads below `root`, which is `/` but in tests.
    pub fn read(root: &Path) -> Local {
        let text = |path: &str| std::fs::read_to_string(root.join(path)).ok();
        let number = |name: &str| {
            text(&format!("proc/sys/kernel/{name}"))?
                .trim()
                .parse()
                .ok()
        };
        let mounts = text("proc/self/mountinfo").unwrap_or_default();
        let mut local = Local {
            paranoid: number("perf_event_paranoid"),
            max_stack: number("perf_event_max_stack"),
            mlock_kb: number("perf_event_mlock_kb"),
            kptr_restrict: number("kptr_restrict"),
            root: text("proc/self/status").is_some_and(|status| {
                let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
                uids.and_then(|uids| uids.split_whitespace().nth(1)) == Some("0")
            }),
            ..Local::default()
        };
        for line in mounts.lines() {
            local.mount(line);
        }
        local
    }

    /// One line of mountinfo (proc_pid_mountinfo(5)): `… root mount-point options … - type source
    /// super-options`.
    fn mount(&mut self, line: &str) {
        let Some((before, after)) = line.split_once(" - ") else {
            return;
        };
        let mut before = before.split(' ').skip(4);
        let (Some(point), options) = (before.next(), before.next().unwrap_or("")) else {
            return;
        };
        let mut after = after.split(' ');
        let (kind, super_options) = (after.next().unwrap_or(""), after.nth(1).unwrap_or(""));
        let has = |name: &str| super_options.split(',').any(|option| option == name);
        match kind {
            // v1 with perf_event wins: a controller is in one hierarchy only.
            "cgroup" if has("perf_event") => {
                self.cgroup_root = Some(point.to_owned());
            }
            "cgroup2" if self.cgroup_root.is_none() => {
                self.cgroup_root = Some(point.to_owned());
            }
            "proc" if point == "/proc" => {
                let mut all = options.split(',').chain(super_options.split(','));
                let hidden = all.find_map(|option| option.strip_prefix("hidepid="));
                self.hidepid = hidden
                    .filter(|&mode| mode != "0" && mode != "off")
                    .map(str::to_owned);
            }
            _ => {}
        }
    }
}

/// What would be degraded, the worst first.
pub fn findings(local: &Local) -> Vec<Finding> {
    let mut all = of_sysctls(local);
    all.extend(of_mounts(local));
    all.sort_by_key(|found| std::cmp::Reverse(found.severity));
    all
}

fn finding(id: &str, severity: Severity, message: String, remedy: &str) -> Finding {
    Finding {
        id: id.to_owned(),
        message,
        remedy: remedy.to_owned(),
        severity,
    }
}

fn of_sysctls(local: &Local) -> Vec<Finding> {
    let mut all = Vec::new();
    let mut add = |id, severity, message, remedy| {
        all.push(finding(id, severity, message, remedy));
    };
    match local.paranoid {
        None => add(
            "perf_event",
            Severity::Error,
            "the kernel has no perf events, or /proc/sys is hidden: nothing can be sampled".into(),
            "",
        ),
        Some(level @ 1..) => add(
            "perf_event_paranoid",
            Severity::Info,
            format!(
                "kernel.perf_event_paranoid is {level}: only root or CAP_PERFMON may sample all \
                 CPUs; the daemon's unit has it"
            ),
            "",
        ),
        Some(_) => {}
    }
    match local.kptr_restrict {
        Some(2..) => add(
            "kptr_restrict",
            Severity::Warning,
            "kernel.kptr_restrict is 2: kernel frames will have no names".into(),
            "sysctl -w kernel.kptr_restrict=1",
        ),
        Some(1) if !local.root => add(
            "kptr_restrict",
            Severity::Info,
            "kernel.kptr_restrict is 1: kernel names need CAP_SYSLOG; the daemon's unit has it"
                .into(),
            "",
        ),
        _ => {}
    }
    if let Some(frames) = local.max_stack.filter(|&frames| frames < 127) {
        add(
            "perf_event_max_stack",
            Severity::Warning,
            format!("kernel.perf_event_max_stack is {frames}: deeper stacks lose their root"),
            "sysctl -w kernel.perf_event_max_stack=127",
        );
    }
    if let Some(kib) = local.mlock_kb.filter(|&kib| kib < 260) {
        add(
            "mlock_kb",
            Severity::Warning,
            format!(
                "kernel.perf_event_mlock_kb is {kib}: a ring of 256 KiB and its page need 260 \
                 without CAP_IPC_LOCK"
            ),
            "sysctl -w kernel.perf_event_mlock_kb=516",
        );
    }
    all
}

fn of_mounts(local: &Local) -> Vec<Finding> {
    let mut all = Vec::new();
    let mut add = |id, severity, message, remedy| {
        all.push(finding(id, severity, message, remedy));
    };
    if local.cgroup_root.is_none() {
        add(
            "cgroups",
            Severity::Warning,
            "no mounted cgroup hierarchy owns perf_event: samples will have no cgroup".into(),
            "mount -t cgroup2 none /sys/fs/cgroup",
        );
    }
    if let Some(mode) = &local.hidepid {
        add(
            "hidepid",
            Severity::Warning,
            format!(
                "/proc is mounted with hidepid={mode}: a daemon without CAP_SYS_PTRACE cannot see \
                 processes of others"
            ),
            "mount -o remount,hidepid=0 /proc",
        );
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(local: &Local) -> Vec<String> {
        findings(local).into_iter().map(|found| found.id).collect()
    }

    fn sound() -> Local {
        Local {
            paranoid: Some(-1),
            max_stack: Some(127),
            mlock_kb: Some(516),
            kptr_restrict: Some(0),
            cgroup_root: Some("/sys/fs/cgroup".into()),
            hidepid: None,
            root: true,
        }
    }

    #[test]
    fn a_sound_machine_has_nothing_to_fix() {
        assert_eq!(ids(&sound()), [""; 0]);
    }

    #[test]
    fn each_obstacle_is_named() {
        let bad = Local {
            paranoid: None,
            max_stack: Some(64),
            mlock_kb: Some(64),
            kptr_restrict: Some(2),
            cgroup_root: None,
            hidepid: Some("invisible".into()),
            ..sound()
        };
        let expected = [
            "perf_event",
            "kptr_restrict",
            "perf_event_max_stack",
            "mlock_kb",
            "cgroups",
            "hidepid",
        ];
        assert_eq!(ids(&bad), expected);
    }

    #[test]
    fn a_machine_is_read_from_proc() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/sys/kernel/perf_event_paranoid", "2\n");
        write("proc/sys/kernel/kptr_restrict", "1\n");
        write("proc/self/status", "Name:\tx\nUid:\t1000\t0\t0\t0\n");
        write(
            "proc/self/mountinfo",
            "22 1 0:5 / /proc rw,nosuid shared:1 - proc proc rw,hidepid=2\n\
             30 1 0:6 / /sys/fs/cgroup/unified rw - cgroup2 none rw\n\
             31 1 0:7 / /sys/fs/cgroup/perf_event rw - cgroup none rw,perf_event\n\
             broken line\n",
        );
        let expected = Local {
            paranoid: Some(2),
            max_stack: None,
            mlock_kb: None,
            kptr_restrict: Some(1),
            cgroup_root: Some("/sys/fs/cgroup/perf_event".into()),
            hidepid: Some("2".into()),
            root: true,
        };
        assert_eq!(Local::read(dir.path()), expected);
    }
}
