//! Identifies the process behind a perf map: its pid in its own namespace, its owner, and its start
//! time.
//!
//! The pid may be reused while `/proc/PID` is read. So the start time is read before and after
//! everything else. If it differs, or is later than the sampled process can have started, the
//! process is gone.

use host::proc::{effective_id, start_ticks, status_field};
use host::time::{MonotonicTime, WallAnchor};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::sync::atomic::{AtomicI64, Ordering};
use symbolize::open::Root;

/// Clock ticks of `/proc/PID/stat`, a constant of the kernel's interface. Unit: ticks a second.
const TICKS_PER_SECOND: u64 = 100;

/// Text of `/proc/PID/maps` looked at. Unit: bytes. 65,530 mappings, which the kernel allows a
/// process by default (`vm.max_map_count`), take some 8 MiB.
const MAPS_BYTES_MAX: u64 = 16 << 20;

/// How much earlier than the process a file may seem. Unit: nanoseconds. Files carry the time of
/// the last timer tick, at most 10 ms old; start times and `/proc/uptime` are cut to 10 ms.
const CLOCK_SLACK_NS: i64 = 40_000_000;

/// The least that the wall clock was ahead of the monotonic one. Unit: nanoseconds. A clock that is
/// set forward, as soon after boot, leaves files with times of before: they must not seem older
/// than the processes that wrote them.
static LEAST_AHEAD: AtomicI64 = AtomicI64::new(i64::MAX);

/// Looks at the clocks, and says the least that the wall clock has been ahead so far.
pub fn least_ahead() -> i64 {
    let now = MonotonicTime::now();
    let ahead = WallAnchor::new().to_unix_ns(now) - now.0 as i64;
    LEAST_AHEAD.fetch_min(ahead, Ordering::Relaxed).min(ahead)
}

/// The text of a process's mappings, for [`maps`](unwind::process::maps).
///
/// # Errors
/// When the process is gone, or may not be looked at.
pub fn maps_of(pid: u32) -> io::Result<impl BufRead> {
    let maps = File::open(format!("/proc/{pid}/maps"))?;
    Ok(BufReader::new(maps.take(MAPS_BYTES_MAX)))
}

/// Facts about a process that are needed before its files are trusted.
#[derive(Debug)]
pub struct Target {
    /// Its root directory.
    pub root: Root,
    /// Its pid in the innermost pid namespace.
    pub inner_pid: u32,
    /// Its user ids (real, effective, saved, file system) as the daemon sees them.
    pub uids: [u32; 4],
    /// Root of its user namespace as the daemon sees it.
    pub root_uid: Option<u32>,
    /// When it started, nanoseconds since the Unix epoch, by the wall clock at its slowest.
    pub started_unix_ns: i64,
}

impl Target {
    /// Looks at a process; `None` when it is gone or another one has its pid.
    ///
    /// `started_by` is the latest time the sampled process can have started.
    pub fn look(pid: u32, started_by: MonotonicTime) -> Option<Target> {
        let ticks = start_ticks(&fs::read(format!("/proc/{pid}/stat")).ok()?)?;
        let uptime = uptime_ns(&fs::read_to_string("/proc/uptime").ok()?)?;
        let age_ns = uptime.saturating_sub(ticks * (1_000_000_000 / TICKS_PER_SECOND));
        let now = MonotonicTime::now();
        let started = MonotonicTime(now.0.saturating_sub(age_ns));
        if started.0 > started_by.0.saturating_add(CLOCK_SLACK_NS as u64) {
            return None;
        }
        let (inner_pid, uids) = parse_status(&status_of(pid)?)?;
        let uid_map = fs::read_to_string(format!("/proc/{pid}/uid_map")).unwrap_or_default();
        let root = Root::of_process(pid).ok()?;
        let again = start_ticks(&fs::read(format!("/proc/{pid}/stat")).ok()?)?;
        let started_unix_ns = least_ahead() + now.0 as i64 - age_ns as i64;
        let root_uid = root_uid(&uid_map);
        (again == ticks).then_some(Target {
            root,
            inner_pid,
            uids,
            root_uid,
            started_unix_ns,
        })
    }

    /// True when this process, or root of its user namespace, may own a file it wrote.
    pub fn may_own(&self, uid: u32) -> bool {
        self.uids.contains(&uid) || self.root_uid == Some(uid)
    }

    /// True when a file with this change time was last written before the process started.
    pub fn is_older(&self, changed_unix_ns: i64) -> bool {
        changed_unix_ns.saturating_add(CLOCK_SLACK_NS) < self.started_unix_ns
    }
}

/// Innermost pid and the four user ids from `/proc/PID/status`.
pub fn parse_status(status: &str) -> Option<(u32, [u32; 4])> {
    let last = |pids: &str| pids.split_ascii_whitespace().next_back()?.parse().ok();
    // Kernels built without pid namespaces have no NSpid.
    let inner = status_field(status, "NSpid").and_then(last);
    let inner = inner.or_else(|| status_field(status, "Pid").and_then(last));
    let ids = status_field(status, "Uid")?.split_ascii_whitespace();
    let mut ids = ids.map(|id| id.parse().ok());
    let uids = [ids.next()??, ids.next()??, ids.next()??, ids.next()??];
    Some((inner?, uids))
}

/// The effective group of a process.
pub fn effective_gid(pid: u32) -> Option<u32> {
    effective_id(&status_of(pid)?, "Gid")
}

/// The text of a process's `status`.
pub fn status_of(pid: u32) -> Option<String> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    Some(String::from_utf8_lossy(&status).into_owned())
}

/// The outside user id of a user namespace's root, from `/proc/PID/uid_map`: lines of first id
/// inside, first id outside, count.
pub fn root_uid(uid_map: &str) -> Option<u32> {
    uid_map.lines().find_map(|line| {
        let mut numbers = line
            .split_ascii_whitespace()
            .map(|number| number.parse::<u32>().ok());
        let (inside, outside, count) = (numbers.next()??, numbers.next()??, numbers.next()??);
        (inside == 0 && count > 0).then_some(outside)
    })
}

/// Time since boot, sleep included, from `/proc/uptime`: seconds with two decimals, the clock of
/// start times. Result in nanoseconds.
fn uptime_ns(uptime: &str) -> Option<u64> {
    let (seconds, hundredths) = uptime.split_ascii_whitespace().next()?.split_once('.')?;
    let hundredths = hundredths.parse::<u64>().ok()?;
    Some(
        seconds
            .parse::<u64>()
            .ok()?
            .checked_mul(100)?
            .checked_add(hundredths)?
            * 10_000_000,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uptime_is_read() {
        assert_eq!(uptime_ns("12.34 99.99\n"), Some(12_340_000_000));
        assert_eq!(uptime_ns("x"), None);
    }

    #[test]
    fn innermost_pid_and_owner_are_read() {
        let status = "Name:\tx\nPid:\t4242\nUid:\t1\t2\t3\t4\nNSpid:\t4242\t17\t1\n";
        assert_eq!(parse_status(status), Some((1, [1, 2, 3, 4])));
        assert_eq!(
            parse_status("Pid:\t7\nUid:\t0\t0\t0\t0\n"),
            Some((7, [0; 4]))
        );
        assert_eq!(parse_status("Uid:\tx\n"), None);
    }

    #[test]
    fn root_of_a_user_namespace_is_known_outside() {
        assert_eq!(root_uid("         0          0 4294967295\n"), Some(0));
        assert_eq!(root_uid("1000 5 1\n0 100000 65536\n"), Some(100000));
        assert_eq!(root_uid("1 100000 65536\n"), None);
        assert_eq!(root_uid("garbage"), None);
    }

    #[test]
    fn this_process_is_found_and_a_later_one_is_not() {
        let own = std::process::id();
        let target = Target::look(own, MonotonicTime::now()).expect("is alive");
        assert!(target.inner_pid > 0 && target.may_own(target.uids[1]));
        assert!(
            Target::look(own, MonotonicTime(0)).is_none(),
            "started after the time given"
        );
        assert!(target.is_older(target.started_unix_ns - 1_000_000_000));
        assert!(!target.is_older(target.started_unix_ns));
    }
}
