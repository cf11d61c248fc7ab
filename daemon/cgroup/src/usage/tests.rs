//! Tests meters on directories that imitate a hierarchy, with a clock that the tests move.

use super::*;
use hashbrown::HashSet;
use std::fs;

const S: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

/// A window in which nothing was lost.
fn window(start: MonotonicTime, end: MonotonicTime) -> ClosedWindow {
    ClosedWindow {
        start,
        end,
        blind: Blind::default(),
    }
}

/// The same between these seconds.
fn span(from: u64, to: u64) -> ClosedWindow {
    window(MonotonicTime(from * S), MonotonicTime(to * S))
}

struct Fake {
    dir: tempfile::TempDir,
    meters: Meters,
    /// The kernel's clock and the one windows are on: readings are made at the real time.
    start: MonotonicTime,
}

impl Fake {
    fn new() -> Fake {
        let dir = tempfile::tempdir().unwrap();
        let hierarchy = Hierarchy {
            mode: Mode::Cgroup2,
            mount: Some(dir.path().to_path_buf()),
            prefix: Vec::new(),
            whole: true,
            v1: false,
        };
        let meters = Meters::new(hierarchy, dir.path());
        let fake = Fake {
            dir,
            meters,
            start: MonotonicTime::now(),
        };
        fake.used("/", 0);
        fake
    }

    /// Has the cgroup, which is made when it is not there, say that it used this much. Unit: ms.
    fn used(&self, path: &str, ms: u64) {
        let dir = self.dir.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(&dir).unwrap();
        let us = ms * 1000;
        let text = format!("usage_usec {us}\nuser_usec {us}\nsystem_usec 0\n");
        fs::write(dir.join("cpu.stat"), text).unwrap();
    }

    /// Moves what was read back in time, as if the reading had been made `seconds` after the start.
    fn read_at(&mut self, path: &str, seconds: u64) {
        let at = MonotonicTime(self.start.0 + seconds * S);
        self.meters.meters.get_mut(path).unwrap().last.0 = at;
    }

    /// Closes the window between these seconds; accounts in milliseconds, `None` where estimated.
    fn close(&mut self, from: u64, to: u64, taken: &[(&str, u64)]) -> Vec<(String, Option<u64>)> {
        let at = |seconds: u64| MonotonicTime(self.start.0 + seconds * S);
        let taken = taken
            .iter()
            .map(|&(path, count)| {
                let weight = count * 10 * MS;
                (path.into(), Value { count, weight })
            })
            .collect();
        let accounts = self.meters.close(window(at(from), at(to)), &taken);
        accounts
            .into_iter()
            .map(|account| {
                let measured = account.estimated_ns == 0;
                (
                    account.path.into_string(),
                    measured.then_some(account.ns / MS),
                )
            })
            .collect()
    }
}

fn of(accounts: &[(String, Option<u64>)], path: &str) -> Option<u64> {
    let found = accounts.iter().find(|(found, _)| found == path);
    found
        .unwrap_or_else(|| panic!("{path} is not in {accounts:?}"))
        .1
}

#[test]
fn a_reading_after_the_end_is_laid_straight() {
    let points = [
        (MonotonicTime(0), 100),
        (MonotonicTime(10), 200),
        (MonotonicTime(30), 600),
    ];
    for (at, expected) in [
        (0, 100),
        (5, 150),
        (10, 200),
        (20, 400),
        (30, 600),
        (99, 600),
    ] {
        assert_eq!(value_at(&points, MonotonicTime(at)), expected, "at {at}");
    }
}

#[test]
fn a_late_reading_gives_each_window_its_own_time() {
    // Read at 0 and, after the daemon had been stopped, at 40: 4 s of CPU in between.
    let mut meter = Meter::new(1, (MonotonicTime(0), 0));
    let reading = (MonotonicTime(40 * S), 4 * S);
    let first = meter.within(span(0, 10), 0, Some(reading));
    let second = meter.within(span(10, 20), 0, None);
    assert_eq!((first, second), (Some(S), Some(S)));
}

#[test]
fn what_was_used_while_nothing_was_sampled_lies_where_samples_are_missing() {
    // One of two CPUs is busy from 8 s on; the daemon stands still from 8.5 s to 18.5 s.
    let mut meter = Meter::new(1, (MonotonicTime(0), 0));
    let reading = (MonotonicTime(18 * S + S / 2), 10 * S + S / 2);
    let mut first = span(0, 10);
    first.blind = Blind {
        within: 3 * S,
        after: 17 * S,
    };
    let used = meter.within(first, S / 2, Some(reading));
    assert_eq!(used, Some(S / 2 + S + S / 2));
    let mut second = span(10, 20);
    second.blind.within = 17 * S;
    let reading = (MonotonicTime(20 * S), 12 * S);
    assert_eq!(meter.within(second, S + S / 2, Some(reading)), Some(10 * S));
}

#[test]
fn a_small_loss_after_a_window_does_not_explain_a_late_reading() {
    let mut meter = Meter::new(1, (MonotonicTime(0), 0));
    let mut first = span(0, 10);
    first.blind.after = S;
    let reading = (MonotonicTime(20 * S), 4 * S);
    assert_eq!(meter.within(first, 0, Some(reading)), Some(2 * S));
}

#[test]
fn windows_add_up_to_what_was_used() {
    let mut meter = Meter::new(1, (MonotonicTime(0), 0));
    let readings = [(12, 5), (21, 9), (37, 23), (44, 24)];
    let mut sum = 0;
    for (window, (at, used)) in readings.into_iter().enumerate() {
        let from = window as u64 * 10;
        let reading = (MonotonicTime(at * S), used * S);
        sum += meter
            .within(span(from, from + 10), 0, Some(reading))
            .unwrap();
    }
    let at_end = 23 * S + S * 3 / 7;
    assert!(sum.abs_diff(at_end) < 10, "{sum} of {at_end}");
}

#[test]
fn a_first_reading_a_moment_late_stands_for_the_whole_window() {
    let mut meter = Meter::new(1, (MonotonicTime(S), 0));
    let reading = (MonotonicTime(10 * S), 9 * S);
    let used = meter.within(span(0, 10), 0, Some(reading));
    assert_eq!(used, Some(10 * S));
    let mut late = Meter::new(1, (MonotonicTime(3 * S), 0));
    assert_eq!(late.within(span(0, 10), 0, Some(reading)), None);
}

#[test]
fn parents_are_accounted_with_their_children() {
    let mut fake = Fake::new();
    for path in ["/a", "/a/b", "/c"] {
        fake.used(path, 0);
    }
    fake.meters.start(["/a", "/a/b", "/c"].into_iter());
    for (path, ms) in [("/", 9000), ("/a", 4000), ("/a/b", 3000), ("/c", 2000)] {
        fake.used(path, ms);
    }
    // The window lies so that all readings are after its end.
    fake.start = MonotonicTime(MonotonicTime::now().0 - 20 * S);
    for path in ["/", "/a", "/a/b"] {
        fake.meters.meters.get_mut(path).unwrap().anchor.0 = fake.start;
        fake.read_at(path, 0);
    }
    let accounts = fake.close(0, 10, &[("/a/b", 9)]);
    let paths: Vec<&str> = accounts.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(paths, ["/", "/a", "/a/b"]);
    // Half of the time between the readings is in the window.
    for (path, expected) in [("/", 4500), ("/a", 2000), ("/a/b", 1500)] {
        let found = of(&accounts, path).unwrap();
        assert!(found.abs_diff(expected) < expected / 20, "{path}: {found}");
    }
}

#[test]
fn a_cgroup_met_first_is_estimated_and_then_measured() {
    let mut fake = Fake::new();
    fake.meters.start(std::iter::empty());
    fake.used("/new", 5000);
    fake.start = MonotonicTime(MonotonicTime::now().0 - 10 * S);
    assert_eq!(of(&fake.close(0, 10, &[("/new", 9)]), "/new"), None);
    fake.used("/new", 6000);
    fake.start = MonotonicTime::now();
    let read = fake.meters.meters["/new"].last.0;
    fake.start = MonotonicTime(read.0.min(fake.start.0));
    let taken = BTreeMap::from([(
        "/new".into(),
        Value {
            count: 1,
            weight: 10,
        },
    )]);
    let accounts = fake
        .meters
        .close(window(fake.start, MonotonicTime::now()), &taken);
    let account = accounts
        .iter()
        .find(|account| &*account.path == "/new")
        .unwrap();
    assert_eq!(account.estimated_ns, 0, "{account:?}");
}

#[test]
fn a_cgroup_created_since_started_at_zero() {
    let mut fake = Fake::new();
    fake.meters.start(std::iter::empty());
    fake.meters.note_created(b"/born");
    fake.used("/born", 700);
    let (start, now) = (fake.start, MonotonicTime::now());
    let taken = BTreeMap::from([(
        "/born".into(),
        Value {
            count: 1,
            weight: 10,
        },
    )]);
    let accounts = fake.meters.close(window(start, now), &taken);
    let born = accounts
        .iter()
        .find(|account| &*account.path == "/born")
        .unwrap();
    // The reading is a moment after the window: nearly all of it is within.
    assert!(born.estimated_ns == 0 && born.ns <= 700 * MS, "{born:?}");
}

#[test]
fn a_removed_cgroup_is_estimated_and_no_error() {
    let mut fake = Fake::new();
    fake.used("/gone", 100);
    fake.meters.start(["/gone"].into_iter());
    fs::remove_dir_all(fake.dir.path().join("gone")).unwrap();
    fake.start = MonotonicTime(MonotonicTime::now().0 - 10 * S);
    let accounts = fake.close(0, 10, &[("/gone", 9)]);
    assert_eq!(of(&accounts, "/gone"), None);
    assert!(!fake.meters.meters.contains_key("/gone"));
}

#[test]
fn a_cgroup_removed_and_made_again_in_a_window_is_estimated() {
    let mut fake = Fake::new();
    fake.used("/job", 100);
    fake.meters.start(["/job"].into_iter());
    // Kept, so that its inode is not used again.
    let job = fake.dir.path().join("job");
    fs::rename(&job, fake.dir.path().join("removed")).unwrap();
    // The first used 1.3 s until it was removed, the second 0.5 s since.
    fake.used("/job", 500);
    fake.start = MonotonicTime(MonotonicTime::now().0 - 10 * S);
    assert_eq!(of(&fake.close(0, 10, &[("/job", 180)]), "/job"), None);
    // Whatever it uses from here on has a reading before and after.
    assert_eq!(fake.meters.meters["/job"].anchor.1, 500 * MS);
}

#[test]
fn a_cgroup_made_twice_in_a_window_is_estimated() {
    let mut fake = Fake::new();
    fake.meters.start(std::iter::empty());
    for _ in 0..2 {
        fake.meters.note_created(b"/job");
    }
    fake.used("/job", 500);
    fake.start = MonotonicTime(MonotonicTime::now().0 - 10 * S);
    assert_eq!(of(&fake.close(0, 10, &[("/job", 180)]), "/job"), None);
}

#[test]
fn a_cgroup_read_after_one_window_and_gone_in_the_next_is_measured_in_the_first() {
    let mut fake = Fake::new();
    fake.used("/job", 0);
    fake.meters.start(["/job"].into_iter());
    fake.used("/job", 900);
    // A window of 10 s from the first reading on, which lies in the past.
    fake.start = MonotonicTime(MonotonicTime::now().0 - 10 * S);
    let job = fake.meters.meters.get_mut("/job").unwrap();
    (job.anchor.0, job.last.0) = (fake.start, fake.start);
    let first = of(&fake.close(0, 10, &[("/job", 90)]), "/job").unwrap();
    assert!(first.abs_diff(900) < 45, "{first}");
    fs::remove_dir_all(fake.dir.path().join("job")).unwrap();
    assert_eq!(of(&fake.close(10, 20, &[("/job", 120)]), "/job"), None);
}

#[test]
fn readings_are_bounded_and_take_turns() {
    let mut fake = Fake::new();
    fake.meters.reads_max = 3;
    let paths: Vec<String> = (0..6).map(|number| format!("/{number}")).collect();
    for path in &paths {
        fake.used(path, 10);
    }
    let taken: Vec<(&str, u64)> = paths.iter().map(|path| (path.as_str(), 1)).collect();
    let mut read = HashSet::new();
    for _ in 0..3 {
        let before = fake.meters.stats().reads;
        fake.start = MonotonicTime(MonotonicTime::now().0 - 10 * S);
        fake.close(0, 10, &taken);
        let reads = fake.meters.stats().reads - before;
        assert!(reads <= 3, "{reads} readings");
        read.extend(fake.meters.meters.keys().cloned());
    }
    assert!(fake.meters.stats().over_bound > 0);
    assert_eq!(read.len(), 7, "{read:?}");
}

#[test]
fn a_path_that_climbs_is_not_read() {
    let mut fake = Fake::new();
    fake.used("/a", 1);
    assert!(fake.meters.source.read("/a").is_some());
    assert_eq!(fake.meters.source.read("/b/../a"), None);
}

#[test]
fn the_host_is_read_where_its_root_is_not_seen() {
    let dir = tempfile::tempdir().unwrap();
    let stat = "cpu  100 20 30 4000 50 6 7 800 90 10\ncpu0 1 2 3\n";
    fs::write(dir.path().join("stat"), stat).unwrap();
    let hierarchy = Hierarchy {
        mode: Mode::None,
        mount: None,
        prefix: Vec::new(),
        whole: false,
        v1: false,
    };
    let mut meters = Meters::new(hierarchy, dir.path());
    let ticks = 100 + 20 + 30 + 6 + 7;
    assert_eq!(meters.source.host(), Some(ticks * NS_PER_TICK));
}

#[test]
fn the_kernels_own_files_are_read() {
    let hierarchy = Hierarchy::discover(Path::new("/proc"));
    let mut meters = Meters::new(hierarchy, Path::new("/proc"));
    let (_, used) = meters.source.read("/").unwrap().point;
    assert!(used > 0);
}

#[test]
fn throttling_is_in_the_file_that_is_read_anyway() {
    let mut fake = Fake::new();
    let stat = |ms: u64, throttled_ms: u64| {
        let dir = fake.dir.path().join("held");
        fs::create_dir_all(&dir).unwrap();
        let (us, throttled_us) = (ms * 1000, throttled_ms * 1000);
        let text = format!("usage_usec {us}\nnr_throttled 9\nthrottled_usec {throttled_us}\n");
        fs::write(dir.join("cpu.stat"), text).unwrap();
        fs::write(dir.join("cpu.max"), "20000 100000\n").unwrap();
    };
    stat(0, 0);
    fake.used("/free", 0);
    fake.meters.start(["/held", "/free"].into_iter());
    let opened = fake.meters.source.opened;
    stat(2000, 18_000);
    fake.used("/free", 2000);
    let start = MonotonicTime(MonotonicTime::now().0 - 10 * S);
    for meter in fake.meters.meters.values_mut() {
        let throttled = Counter::new((start, 0));
        (meter.anchor, meter.last, meter.throttled) = ((start, 0), (start, 0), Some(throttled));
    }
    let value = Value {
        count: 1,
        weight: MS,
    };
    let taken = BTreeMap::from([("/held".into(), value), ("/free".into(), value)]);
    let end = MonotonicTime(start.0 + 10 * S);
    let accounts = fake.meters.close(window(start, end), &taken);
    let of = |path: &str| {
        let mut accounts = accounts.iter();
        accounts.find(|account| &*account.path == path).unwrap()
    };
    let held = of("/held");
    let throttled_ms = held.throttled_ns.unwrap() / MS;
    assert!(throttled_ms.abs_diff(18_000) < 200, "{throttled_ms}");
    assert_eq!(held.limit_millicores, 200);
    assert_eq!(
        (of("/free").throttled_ns, of("/free").limit_millicores),
        (Some(0), 0)
    );
    // Three cgroups, the root among them, and a file each: as without throttling.
    assert_eq!(fake.meters.source.opened - opened, 3);
}

#[test]
fn a_cgroup_that_is_estimated_has_no_throttling() {
    let mut fake = Fake::new();
    fake.meters.start(std::iter::empty());
    fake.used("/new", 5000);
    fake.start = MonotonicTime(MonotonicTime::now().0 - 10 * S);
    let taken = BTreeMap::from([(
        "/new".into(),
        Value {
            count: 1,
            weight: MS,
        },
    )]);
    let end = MonotonicTime(fake.start.0 + 10 * S);
    let accounts = fake.meters.close(window(fake.start, end), &taken);
    let new = accounts.iter().find(|account| &*account.path == "/new");
    assert_eq!(new.unwrap().throttled_ns, None);
}

/// Two busy loops in a cgroup.
fn busy(cgroup: &testkit::Cgroup) -> Vec<testkit::Workload> {
    let start =
        |_| testkit::Workload::spawn(cgroup.command("sh").args(["-c", "while :; do :; done"]));
    (0..2).map(start).collect()
}

#[test]
fn a_limit_of_the_real_kernel_withholds_what_is_above_it_needs_root() {
    if !testkit::met(&[testkit::Need::Root, testkit::Need::Cgroup2]) {
        return;
    }
    let (held, free) = (testkit::Cgroup::new("held"), testkit::Cgroup::new("free"));
    // A fifth of a core for two busy threads.
    let limit = match testkit::cgroup::CpuLimit::new(&held, 200) {
        Ok(limit) => limit,
        Err(why) => return testkit::skip(why),
    };
    let (in_held, in_free) = (busy(&held), busy(&free));
    in_held.iter().for_each(|busy| limit.add(busy.pid()));
    std::thread::sleep(Duration::from_secs(1));
    let hierarchy = Hierarchy::discover(Path::new("/proc"));
    let mut meters = Meters::new(hierarchy, Path::new("/proc"));
    let paths = [held.path(), free.path()];
    meters.start(paths.into_iter());
    let (start, throttled) = (MonotonicTime::now(), limit.throttled_ns());
    std::thread::sleep(Duration::from_secs(4));
    let (end, throttled) = (MonotonicTime::now(), limit.throttled_ns() - throttled);
    let one = Value {
        count: 1,
        weight: MS,
    };
    let taken = paths.iter().map(|path| ((*path).into(), one)).collect();
    let accounts = meters.close(window(start, end), &taken);
    let of = |path: &str| {
        let mut accounts = accounts.iter();
        accounts.find(|account| &*account.path == path).unwrap()
    };
    let found = of(held.path());
    let found_ns = found.throttled_ns.expect("known");
    let off = found_ns.abs_diff(throttled) as f64 / throttled as f64;
    // As the kernel says. On an idle machine it is nine tenths; where others need the CPUs as well,
    // much of the time is spent waiting for them.
    let share = found_ns as f64 / (found_ns + found.ns) as f64;
    let text = format!("{found_ns} ns of {throttled} ns, {share:.3}: {found:?}");
    assert!(off < 0.05, "{text}");
    assert!(share > 0.2, "{text}");
    assert_eq!(found.limit_millicores, 200);
    eprintln!("{text}");
    // The neighbour has no limit: it is not throttled, or nothing is known of it.
    let of_free = of(free.path());
    assert!(of_free.throttled_ns.unwrap_or(0) == 0, "{of_free:?}");
    let pressure = meters.pressure(window(start, end));
    assert_eq!(pressure.is_some(), Path::new("/proc/pressure/cpu").exists());
    eprintln!("{pressure:?}");
    drop((in_held, in_free));
}
