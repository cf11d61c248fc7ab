//! What the kernel says of waiting for CPUs: for how long CPU limits held cgroups back, and the
//! pressure of the host.
//!
//! Sources: `throttled_usec` of `cpu.stat` and `cpu.max` (cgroup-v2.rst); `throttled_time` of the
//! v1 `cpu` hierarchy's `cpu.stat` with `cpu.cfs_quota_us` and `cpu.cfs_period_us`
//! (scheduler/sched-bwc.rst); `/proc/pressure` (accounting/psi.rst). The kernel counts the time of
//! each CPU on which a limit held tasks back, so two CPUs make two seconds of one. It counts for
//! the cgroup that has the limit, not for those above or below it.
//!
//! Each counter is interpolated between two readings as CPU time is.

use super::super::hierarchy::{Hierarchy, Mode, mount_of};
use super::{ClosedWindow, FILE_BYTES_MAX, Point, UNSEEN_PART, field, value_at};
use host::time::MonotonicTime;
use profile::Pressure;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A counter of the kernel that only grows, by window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counter {
    /// At the end of the last window, or the first reading.
    anchor: Point,
    /// The newest reading.
    last: Point,
}

impl Counter {
    pub(super) fn new(point: Point) -> Counter {
        Counter {
            anchor: point,
            last: point,
        }
    }

    /// By how much it grew in a window; `new` is a reading after it. `None` if the first reading is
    /// much later than the window's start.
    pub(super) fn within(&mut self, span: ClosedWindow, new: Option<Point>) -> Option<u64> {
        let points = [self.anchor, self.last, new.unwrap_or(self.last)];
        let unseen = points[0].0.since(span.start);
        let whole = span.end.since(span.start);
        let known = unseen * UNSEEN_PART <= whole;
        let (from, to) = (value_at(&points, span.start), value_at(&points, span.end));
        // The part that was seen stands for all of the window.
        let grown = u128::from(to.saturating_sub(from)) * whole.as_nanos();
        let grown = grown / (whole - unseen.min(whole)).as_nanos().max(1);
        self.anchor = (span.end.max(points[0].0), to);
        if let Some(new) = new {
            self.last = new;
        }
        known.then_some(grown.min(u64::MAX.into()) as u64)
    }

    /// All that it grew by since the last reading, it grew by after this time.
    pub(super) fn resume(&mut self, at: MonotonicTime) {
        self.last.0 = at;
        self.anchor = self.last;
    }

    /// True when a reading after the end of the window is there already.
    fn is_past(&self, span: ClosedWindow) -> bool {
        self.last.0 >= span.end
    }
}

/// Where limits are.
#[derive(Debug)]
pub(super) enum Limits {
    /// In the hierarchy of the samples; without a limit there is no counter.
    Own,
    /// In a v1 hierarchy of their own, where a cgroup mostly has the same path. One that has not
    /// may be limited under another name: nothing is known of it.
    V1(PathBuf),
    /// Nowhere that can be seen.
    Unknown,
}

impl Limits {
    pub(super) fn discover(hierarchy: &Hierarchy, proc_root: &Path) -> Limits {
        match (hierarchy.mode, mount_of(proc_root, "cpu")) {
            (Mode::None, _) => Limits::Unknown,
            (_, Some(mount)) => Limits::V1(mount),
            (Mode::Cgroup2 | Mode::Hybrid, None) => Limits::Own,
            (Mode::V1, None) => Limits::Unknown,
        }
    }

    /// For how long a cgroup was throttled so far. `stat` is the text of its `cpu.stat` in the
    /// hierarchy of the samples. Unit: nanoseconds.
    pub(super) fn throttled(&self, path: &str, stat: &str) -> Option<u64> {
        if path == "/" {
            // The root has no limit.
            return Some(0);
        }
        match self {
            // Without the counter the cgroup has no CPU controller, so nothing can limit it.
            Limits::Own => match field(stat, "throttled_usec") {
                Some(us) => us.checked_mul(1000),
                None => Some(0),
            },
            Limits::V1(mount) => {
                let file = mount.join(path.strip_prefix('/')?).join("cpu.stat");
                field(&text_of(&file)?, "throttled_time")
            }
            Limits::Unknown => None,
        }
    }

    /// The limit of a cgroup; 0 if it has none, or it cannot be read. `directory` is that of the
    /// cgroup in the hierarchy of the samples. Unit: thousandths of a core.
    pub(super) fn of(&self, path: &str, directory: Option<&Path>) -> u64 {
        let quota_and_period = || -> Option<(u64, u64)> {
            match self {
                Limits::Own => {
                    let text = text_of(&directory?.join("cpu.max"))?;
                    let (quota, period) = text.trim().split_once(' ')?;
                    Some((quota.parse().ok()?, period.parse().ok()?))
                }
                Limits::V1(mount) => {
                    let directory = mount.join(path.strip_prefix('/')?);
                    // -1 stands for no limit.
                    let number = |name| text_of(&directory.join(name))?.trim().parse().ok();
                    Some((number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?))
                }
                Limits::Unknown => None,
            }
        };
        let limit = quota_and_period().and_then(|(quota, period)| {
            let millicores = u128::from(quota) * 1000;
            u64::try_from(millicores.checked_div(period.into())?).ok()
        });
        limit.unwrap_or(0)
    }
}

/// The pressure of the host by window.
#[derive(Debug, Default)]
pub(super) struct HostPressure {
    /// Of CPU, memory and I/O; none where the kernel does not account pressure.
    counters: Option<[Counter; 3]>,
}

/// What is read of each resource: its file, and which line of it.
const RESOURCES: [(&str, &str); 3] = [("cpu", "some"), ("memory", "full"), ("io", "full")];

impl HostPressure {
    /// Takes the first reading.
    pub(super) fn start(&mut self, proc_root: &Path) {
        self.counters = totals(proc_root).map(|points| points.map(Counter::new));
    }

    /// What of a window tasks waited. Blocks on three small reads.
    pub(super) fn within(&mut self, span: ClosedWindow, proc_root: &Path) -> Option<Pressure> {
        let late = |counters: &[Counter; 3]| counters[0].is_past(span);
        let new = match self.counters.as_ref().is_some_and(late) {
            true => None,
            false => {
                let Some(new) = totals(proc_root) else {
                    self.counters = None;
                    return None;
                };
                Some(new)
            }
        };
        let Some(counters) = &mut self.counters else {
            self.counters = new.map(|points| points.map(Counter::new));
            return None;
        };
        let whole = span.end.since(span.start).as_nanos() as u64;
        let mut grown = [None; 3];
        for (at, counter) in counters.iter_mut().enumerate() {
            // Readings are a moment apart; nobody waited for longer than the window.
            let of = counter.within(span, new.map(|points| points[at]));
            grown[at] = of.map(|ns| ns.min(whole));
        }
        let [cpu_ns, memory_ns, io_ns] = grown;
        Some(Pressure {
            cpu_ns: cpu_ns?,
            memory_ns: memory_ns?,
            io_ns: io_ns?,
        })
    }
}

/// For how long tasks waited so far, by resource.
fn totals(proc_root: &Path) -> Option<[Point; 3]> {
    let mut found = [(MonotonicTime(0), 0); 3];
    for (at, (resource, kind)) in RESOURCES.into_iter().enumerate() {
        let text = text_of(&proc_root.join("pressure").join(resource))?;
        let mut lines = text.lines();
        let line = lines.find_map(|line| line.strip_prefix(kind)?.strip_prefix(' '))?;
        let mut words = line.split(' ');
        let us: u64 = words.find_map(|word| word.strip_prefix("total=")?.parse().ok())?;
        found[at] = (MonotonicTime::now(), us.checked_mul(1000)?);
    }
    Some(found)
}

pub(super) fn text_of(file: &Path) -> Option<String> {
    let mut text = String::new();
    let mut file = File::open(file).ok()?.take(FILE_BYTES_MAX);
    file.read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::super::Blind;
    use super::*;
    use std::fs;

    const S: u64 = 1_000_000_000;

    fn span(from: u64, to: u64) -> ClosedWindow {
        ClosedWindow {
            start: MonotonicTime(from * S),
            end: MonotonicTime(to * S),
            blind: Blind::default(),
        }
    }

    #[test]
    fn a_late_reading_gives_each_window_its_own_part() {
        let mut counter = Counter::new((MonotonicTime(0), 0));
        let reading = (MonotonicTime(40 * S), 4 * S);
        assert_eq!(counter.within(span(0, 10), Some(reading)), Some(S));
        assert!(counter.is_past(span(10, 20)));
        assert_eq!(counter.within(span(10, 20), None), Some(S));
    }

    #[test]
    fn what_grew_while_nothing_ran_is_of_the_window_that_runs_again() {
        let mut counter = Counter::new((MonotonicTime(0), 0));
        counter.resume(MonotonicTime(100 * S));
        let reading = (MonotonicTime(110 * S), S);
        assert_eq!(counter.within(span(100, 110), Some(reading)), Some(S));
    }

    #[test]
    fn a_window_before_the_first_reading_is_unknown() {
        let mut counter = Counter::new((MonotonicTime(3 * S), 0));
        let reading = (MonotonicTime(10 * S), S);
        assert_eq!(counter.within(span(0, 10), Some(reading)), None);
    }

    /// What is read of a cgroup's `cpu.stat` in cgroup2.
    fn own(path: &str, stat: &str) -> Option<u64> {
        Limits::Own.throttled(path, stat)
    }

    #[test]
    fn a_cgroup_without_a_limit_is_not_throttled() {
        let stat = "usage_usec 9\nnr_throttled 3\nthrottled_usec 1800\nnr_bursts 0\n";
        assert_eq!(own("/a", stat), Some(1_800_000));
        assert_eq!(own("/a", "usage_usec 9\nuser_usec 9\n"), Some(0));
        assert_eq!(own("/", ""), Some(0));
    }

    #[test]
    fn a_v1_limit_is_read_at_the_same_path_and_unknown_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("a")).unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join("a").join(name), text);
        write("cpu.stat", "nr_periods 4\nthrottled_time 77\n").unwrap();
        write("cpu.cfs_quota_us", "20000\n").unwrap();
        write("cpu.cfs_period_us", "100000\n").unwrap();
        let limits = Limits::V1(dir.path().to_path_buf());
        assert_eq!(limits.throttled("/a", "throttled_usec 5\n"), Some(77));
        assert_eq!(limits.of("/a", None), 200);
        write("cpu.cfs_quota_us", "-1\n").unwrap();
        assert_eq!(limits.of("/a", None), 0);
        assert_eq!(limits.throttled("/b", "throttled_usec 5\n"), None);
    }

    #[test]
    fn a_limit_is_in_thousandths_of_a_core() {
        let dir = tempfile::tempdir().unwrap();
        for (text, expected) in [
            ("20000 100000\n", 200),
            ("250000 100000\n", 2500),
            ("max 100000\n", 0),
            ("5 0\n", 0),
            ("", 0),
        ] {
            fs::write(dir.path().join("cpu.max"), text).unwrap();
            assert_eq!(Limits::Own.of("/a", Some(dir.path())), expected, "{text}");
        }
    }

    /// Pressure files that say these totals. Unit: microseconds.
    fn write_pressure(root: &Path, some: u64, full: u64) {
        let dir = root.join("pressure");
        fs::create_dir_all(&dir).unwrap();
        let line =
            |kind, total| format!("{kind} avg10=1.00 avg60=0.00 avg300=0.00 total={total}\n");
        let text = line("some", some) + &line("full", full);
        for resource in ["cpu", "memory", "io"] {
            fs::write(dir.join(resource), &text).unwrap();
        }
    }

    #[test]
    fn pressure_is_some_of_cpu_and_full_of_the_others() {
        let dir = tempfile::tempdir().unwrap();
        write_pressure(dir.path(), 0, 0);
        let mut pressure = HostPressure::default();
        pressure.start(dir.path());
        let start = MonotonicTime::now();
        write_pressure(dir.path(), 4_000_000, 1_000_000);
        // Half of the time between the readings.
        let counters = pressure.counters.as_mut().unwrap();
        for counter in counters.iter_mut() {
            *counter = Counter::new((MonotonicTime(start.0 - 20 * S), 0));
        }
        let span = ClosedWindow {
            start: MonotonicTime(start.0 - 20 * S),
            end: MonotonicTime(start.0 - 10 * S),
            blind: Blind::default(),
        };
        let found = pressure.within(span, dir.path()).unwrap();
        let ms = [found.cpu_ns, found.memory_ns, found.io_ns].map(|ns| ns / 1_000_000);
        assert!(ms[0].abs_diff(2000) < 20, "{ms:?}");
        assert!(ms[1].abs_diff(500) < 5 && ms[2].abs_diff(500) < 5, "{ms:?}");
    }

    #[test]
    fn without_psi_pressure_is_unknown_and_comes_when_it_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let mut pressure = HostPressure::default();
        pressure.start(dir.path());
        let now = MonotonicTime::now();
        let of = |from: u64, to: u64| ClosedWindow {
            start: MonotonicTime(now.0 - from * S),
            end: MonotonicTime(now.0 - to * S),
            blind: Blind::default(),
        };
        assert_eq!(pressure.within(of(20, 10), dir.path()), None);
        write_pressure(dir.path(), 5, 5);
        assert_eq!(pressure.within(of(10, 0), dir.path()), None);
        assert!(pressure.counters.is_some());
    }
}
