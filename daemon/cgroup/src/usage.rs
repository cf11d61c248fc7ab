//! CPU time of cgroups in each window as counted by the kernel. The samples of a window are
//! compared with it.
//!
//! Sources: `usage_usec` of `cpu.stat` (cgroup-v2.rst), which every cgroup2 directory has even
//! without the controller; `cpuacct.usage` if `perf_event` is on v1; for the root, the usage of all
//! of the host: user and system time from its `cpu.stat` (steal is not CPU time of this host) or
//! from `/proc/stat`. All of them count a cgroup with everything below it.
//!
//! A window can be read only after it has ended, sometimes long after, when the daemon was stopped.
//! So usage is interpolated linearly between two readings, and a window gets the part within it. If
//! the reading is late because nothing could be sampled, more is known: sampled time stays where it
//! was sampled, and the rest was used while samples were lost ([`Blind`]). If a cgroup had no
//! samples since its last reading, all of its usage since then belongs to the window that has
//! samples again.
//!
//! The same readings say for how long CPU limits held cgroups back; that and the pressure of the
//! host are in `waiting`.
//!
//! Used only by the symbolizer's thread. [`Meters::close`] blocks on at most [`READS_MAX`]
//! readings of cgroupfs, for at most [`TIME_MAX`]: a file each, two where the limits are in a v1
//! hierarchy, and the limit of those that were throttled.

mod waiting;

use super::Hierarchy;
use super::hierarchy::Mode;
use super::{CgroupStats, PATH_BYTES_MAX};
use hashbrown::HashMap;
use host::time::MonotonicTime;
use profile::{Pressure, Value, ancestors};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;
use waiting::{Counter, HostPressure, Limits};

/// Most cgroups read for one window; of more, those read longest ago go first and the others are
/// unmeasured in it. A reading takes about 10 µs.
pub const READS_MAX: usize = 4096;

/// Longest time spent on readings for one window; what is left then is unmeasured.
pub const TIME_MAX: Duration = Duration::from_millis(100);

/// Most cgroups of which a reading is kept. Unit: entries of about 200 bytes.
pub const METERS_MAX: usize = 8192;

/// Cgroups without samples that are read with each window, so that one that wakes has a reading
/// that is not old.
const IDLE_READS: usize = 32;

/// A reading older than this says nothing of a window in which a cgroup woke.
const READING_AGE_MAX: Duration = Duration::from_secs(120);

/// Most names of new cgroups kept for two windows; one that is forgotten is unmeasured at first.
const BORN_MAX: usize = 4096;

/// A window is measured when at most one in so many parts of it was before the first reading.
const UNSEEN_PART: u32 = 5;

/// Longest file read. `cpu.stat` of today's kernels has 600 bytes; of `/proc/stat` only the first
/// line counts.
const FILE_BYTES_MAX: u64 = 4096;

/// A reading this long after the end of its window may be late because of a loss.
const LATE: Duration = Duration::from_secs(1);

/// Unit of `/proc/stat`. The kernel has kept it fixed for programs since 2.6.
const NS_PER_TICK: u64 = 10_000_000;

/// CPU time of one cgroup and all below it in one window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathAccount {
    /// Path in its hierarchy.
    pub path: Box<str>,
    /// CPU time. Unit: nanoseconds.
    pub ns: u64,
    /// The part of it that was not measured, but taken from the samples.
    pub estimated_ns: u64,
    /// For how long its own CPU limit held it back, added up over CPUs; `None` if that is not
    /// known.
    pub throttled_ns: Option<u64>,
    /// The limit that did. 0: it did not, or its size is not known. Unit: thousandths of a core.
    pub limit_millicores: u64,
}

/// CPU time of which no samples are there, that of idle CPUs included. Unit: nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Blind {
    /// In the window that is closed.
    pub within: u64,
    /// After it, as far as is known.
    pub after: u64,
}

impl Blind {
    /// The part of `ns` used in the window, of what was used without being sampled there or after.
    fn share(self, ns: u64) -> u64 {
        let all = u128::from(self.within) + u128::from(self.after);
        let part = u128::from(ns) * u128::from(self.within);
        part.checked_div(all).unwrap_or(0) as u64
    }
}

/// A window that is closed.
#[derive(Clone, Copy, Debug)]
pub struct ClosedWindow {
    /// Its start.
    pub start: MonotonicTime,
    /// Its end.
    pub end: MonotonicTime,
    /// What was lost in it and after.
    pub blind: Blind,
}

/// Counters of the meters, shown as metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct UsageStats {
    /// Readings.
    pub reads: u64,
    /// Cgroups that had samples in a window and no reading.
    pub unmeasured: u64,
    /// Unmeasured cgroups that were left out because of a bound on readings.
    pub over_bound: u64,
    /// Cgroups with a last reading that was dropped because there were too many.
    pub evicted: u64,
    /// CPU time of the complete host in the measured windows. Unit: nanoseconds.
    pub host_ns: u64,
    /// The names of the cgroups, as their table last had them.
    pub names: CgroupStats,
}

/// A point: CPU time used up to a moment.
type Point = (MonotonicTime, u64);

#[derive(Debug)]
struct Meter {
    /// Inode of the directory: a path used again is a new cgroup.
    inode: u64,
    /// At the end of the last window it was measured in, or the first reading.
    anchor: Point,
    /// The newest reading.
    last: Point,
    /// Number of the last window it had samples in.
    active: u64,
    /// It had samples in a window for which it was not read.
    skipped: bool,
    /// For how long it was throttled; `None` if that is not known.
    throttled: Option<Counter>,
}

/// What a cgroup used in a window.
#[derive(Clone, Copy, Debug)]
struct Used {
    ns: u64,
    throttled_ns: Option<u64>,
}

/// What was read of a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reading {
    /// Inode of the directory.
    inode: u64,
    /// CPU time so far.
    point: Point,
    /// For how long it was throttled so far; `None` if that is not known. Unit: nanoseconds.
    throttled_ns: Option<u64>,
}

impl Reading {
    /// The reading that the cgroup would have given when it was created.
    fn at_zero(self, created: MonotonicTime) -> Reading {
        Reading {
            point: (created, 0),
            throttled_ns: self.throttled_ns.map(|_| 0),
            ..self
        }
    }
}

/// Where the figures are.
#[derive(Debug)]
struct Source {
    hierarchy: Hierarchy,
    /// Mount of the v1 `cpuacct` hierarchy, in [`Mode::V1`].
    cpuacct: Option<PathBuf>,
    limits: Limits,
    proc_root: PathBuf,
    text: String,
    /// Files opened.
    #[cfg(test)]
    opened: u64,
}

/// Readings of all cgroups that matter.
#[derive(Debug)]
pub struct Meters {
    source: Source,
    meters: HashMap<Box<str>, Meter>,
    /// How often each path was created in this window, and in the one before.
    born: [HashMap<Box<str>, u32>; 2],
    /// Number of the window that is closed next.
    window: u64,
    reads_max: usize,
    stats: UsageStats,
    pressure: HostPressure,
}

impl Meters {
    /// Meters for the cgroups of `hierarchy`.
    pub fn new(hierarchy: Hierarchy, proc_root: &Path) -> Meters {
        let cpuacct = match hierarchy.mode {
            Mode::V1 => super::hierarchy::mount_of(proc_root, "cpuacct"),
            Mode::Cgroup2 | Mode::Hybrid | Mode::None => None,
        };
        Meters {
            source: Source {
                limits: Limits::discover(&hierarchy, proc_root),
                hierarchy,
                cpuacct,
                proc_root: proc_root.to_path_buf(),
                text: String::new(),
                #[cfg(test)]
                opened: 0,
            },
            meters: HashMap::new(),
            born: [HashMap::new(), HashMap::new()],
            window: 1,
            reads_max: READS_MAX,
            stats: UsageStats::default(),
            pressure: HostPressure::default(),
        }
    }

    /// Reads these cgroups and the root once, so that the first window is measured.
    pub fn start<'a>(&mut self, paths: impl Iterator<Item = &'a str>) {
        self.pressure.start(&self.source.proc_root);
        let started = MonotonicTime::now();
        for path in std::iter::once("/").chain(paths).take(self.reads_max) {
            if MonotonicTime::now().since(started) > TIME_MAX || self.meters.len() >= METERS_MAX {
                break;
            }
            if !self.meters.contains_key(path)
                && let Some(reading) = self.source.read(path)
            {
                self.stats.reads += 1;
                self.meters.insert(path.into(), Meter::of(reading));
            }
        }
    }

    /// Notes that a cgroup was created: what it used before its first reading it used since.
    pub fn note_created(&mut self, path: &[u8]) {
        let Ok(path) = std::str::from_utf8(path) else {
            return;
        };
        if path.len() > PATH_BYTES_MAX {
            return;
        }
        let born = &mut self.born[0];
        let full = born.len() >= BORN_MAX;
        match born.get_mut(path) {
            Some(times) => *times = times.saturating_add(1),
            None if full => {}
            None => drop(born.insert(path.into(), 1)),
        }
    }

    /// Counters of the meters.
    pub fn stats(&self) -> UsageStats {
        self.stats
    }

    /// The accounts of a window in which `taken` was sampled by cgroup: of those, of those of the
    /// window before, and of all above them. Ordered by path.
    pub fn close(
        &mut self,
        span: ClosedWindow,
        taken: &BTreeMap<Box<str>, Value>,
    ) -> Vec<PathAccount> {
        let started = MonotonicTime::now();
        let number = self.window;
        self.window += 1;
        // With all below it: what is expected when nothing can be read.
        let mut subtrees: BTreeMap<Box<str>, u64> = BTreeMap::from([("/".into(), 0)]);
        for (path, value) in taken.iter().filter(|(path, _)| path.starts_with('/')) {
            for path in std::iter::once(&**path).chain(ancestors(path)) {
                let sum = subtrees.entry(path.into()).or_default();
                *sum = sum.saturating_add(value.weight);
            }
        }
        let just_before = |meter: &Meter| meter.active + 1 == number && number > 1;
        for (path, _) in self.meters.iter().filter(|(_, meter)| just_before(meter)) {
            if !subtrees.contains_key(path) {
                subtrees.insert(path.clone(), 0);
            }
        }
        let mut order: Vec<(Box<str>, u64)> = subtrees.into_iter().collect();
        if order.len() > self.reads_max {
            order.sort_by_key(|(path, _)| self.meters.get(path).map(|meter| meter.last.0));
        }
        let mut accounts = Vec::with_capacity(order.len());
        let mut reads = 0;
        for (path, weight) in order {
            let may_read = reads < self.reads_max && MonotonicTime::now().since(started) < TIME_MAX;
            let before = self.stats.reads;
            let measured = self.measure(&path, span, number, weight, may_read);
            let used = measured.map(|used| used.ns);
            let throttled_ns = measured.and_then(|used| used.throttled_ns);
            let limit_millicores = match throttled_ns {
                None | Some(0) => 0,
                Some(_) => self.source.limit(&path),
            };
            reads += (self.stats.reads - before) as usize;
            if measured.is_none() && weight > 0 {
                self.stats.unmeasured += 1;
                self.stats.over_bound += u64::from(!may_read);
            }
            if &*path == "/" {
                self.stats.host_ns += used.unwrap_or(0);
            }
            if measured.is_some() || weight > 0 {
                accounts.push(PathAccount {
                    path,
                    ns: used.unwrap_or(weight),
                    estimated_ns: if used.is_some() { 0 } else { weight },
                    throttled_ns,
                    limit_millicores,
                });
            }
        }
        accounts.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        self.refresh(number, started);
        self.born.swap(0, 1);
        self.born[0].clear();
        accounts
    }

    /// For how long tasks of the host waited in a window; `None` if the kernel does not say. Blocks
    /// on three small reads of procfs.
    pub fn pressure(&mut self, span: ClosedWindow) -> Option<Pressure> {
        self.pressure.within(span, &self.source.proc_root)
    }

    /// CPU time of a cgroup in a window in which `taken` was sampled; `None` if it is unknown.
    fn measure(
        &mut self,
        path: &str,
        span: ClosedWindow,
        number: u64,
        taken: u64,
        may_read: bool,
    ) -> Option<Used> {
        let (start, has_samples) = (span.start, taken > 0);
        let known = self.meters.get_mut(path);
        if let Some(meter) = known {
            let was_active = meter.active + 1 >= number || meter.skipped;
            if has_samples {
                meter.active = number;
            }
            if meter.last.0 >= span.end {
                // The daemon was late: a reading after this window's end is there already.
                return meter.used(span, taken, None);
            }
            if !may_read {
                meter.skipped |= has_samples;
                return None;
            }
            let reading = self.source.read(path);
            self.stats.reads += 1;
            let Some(reading) = reading.filter(|reading| {
                // Less than before: it is another cgroup whatever its inode says.
                reading.inode != meter.inode || reading.point.1 >= meter.last.1
            }) else {
                self.meters.remove(path);
                return None;
            };
            if reading.inode != meter.inode {
                // Removed and made again since. What the first one used after its last reading went
                // with it, and its samples are of the same path: nothing to hold them against.
                meter.restart(reading);
                return None;
            } else if !was_active && meter.last.0 < start {
                if start.since(meter.last.0) > READING_AGE_MAX {
                    meter.restart(reading);
                    return None;
                }
                meter.anchor = (start, meter.last.1);
                meter.last = meter.anchor;
                if let Some(counter) = &mut meter.throttled {
                    counter.resume(start);
                }
            }
            meter.skipped = false;
            return meter.used(span, taken, Some(reading));
        }
        if !may_read || self.meters.len() >= METERS_MAX && !self.make_room(number) {
            return None;
        }
        let reading = self.source.read(path)?;
        self.stats.reads += 1;
        // Made twice, it was removed in between, with what it had used until then.
        let times = self.born.iter().filter_map(|born| born.get(path));
        let born = times.sum::<u32>() == 1;
        let mut meter = Meter::of(match born {
            true => reading.at_zero(start),
            false => reading,
        });
        meter.active = number;
        let found = born
            .then(|| meter.used(span, taken, Some(reading)))
            .flatten();
        self.meters.insert(path.into(), meter);
        found
    }

    /// Drops the meters of cgroups that had no samples for longest; false when all have some now.
    fn make_room(&mut self, number: u64) -> bool {
        let mut order: Vec<(u64, Box<str>)> = self
            .meters
            .iter()
            .filter(|(path, meter)| &***path != "/" && meter.active + 1 < number)
            .map(|(path, meter)| (meter.active, path.clone()))
            .collect();
        order.sort_unstable();
        let dropped = order.len().min(METERS_MAX / 8);
        for (_, path) in order.drain(..dropped) {
            self.meters.remove(&path);
        }
        self.stats.evicted += dropped as u64;
        dropped > 0
    }

    /// Reads a few of the cgroups without samples again, those read longest ago.
    fn refresh(&mut self, number: u64, started: MonotonicTime) {
        let mut idle: Vec<(MonotonicTime, Box<str>)> = self
            .meters
            .iter()
            .filter(|(_, meter)| meter.active + 1 < number)
            .map(|(path, meter)| (meter.last.0, path.clone()))
            .collect();
        idle.sort_unstable();
        for (_, path) in idle.into_iter().take(IDLE_READS) {
            if MonotonicTime::now().since(started) > TIME_MAX {
                break;
            }
            self.stats.reads += 1;
            match self.source.read(&path) {
                Some(reading) => {
                    if let Some(meter) = self.meters.get_mut(&path) {
                        meter.restart(reading);
                    }
                }
                None => {
                    self.meters.remove(&path);
                }
            }
        }
    }
}

impl Meter {
    fn new(inode: u64, point: Point) -> Meter {
        Meter {
            inode,
            anchor: point,
            last: point,
            active: 0,
            skipped: false,
            throttled: None,
        }
    }

    fn of(reading: Reading) -> Meter {
        let Reading {
            inode,
            point,
            throttled_ns,
        } = reading;
        Meter {
            throttled: throttled_ns.map(|ns| Counter::new((point.0, ns))),
            ..Meter::new(inode, point)
        }
    }

    /// Counts from a reading on.
    fn restart(&mut self, reading: Reading) {
        *self = Meter {
            active: self.active,
            ..Meter::of(reading)
        };
    }

    /// CPU time and throttling in a window, as [`Meter::within`].
    fn used(&mut self, span: ClosedWindow, taken: u64, new: Option<Reading>) -> Option<Used> {
        let ns = self.within(span, taken, new.map(|reading| reading.point));
        let throttled_ns = match (&mut self.throttled, new) {
            (Some(counter), None) => counter.within(span, None),
            (Some(counter), Some(reading)) => match reading.throttled_ns {
                Some(ns) => counter.within(span, Some((reading.point.0, ns))),
                None => {
                    self.throttled = None;
                    None
                }
            },
            (none, reading) => {
                // What was not known is known from here on.
                let of = |reading: Reading| Some((reading.point.0, reading.throttled_ns?));
                *none = reading.and_then(of).map(Counter::new);
                None
            }
        };
        Some(Used {
            ns: ns?,
            throttled_ns,
        })
    }

    /// CPU time used in a window in which `taken` was sampled; `new` is a reading after it. `None`
    /// if the first reading is much later than its start.
    fn within(&mut self, span: ClosedWindow, taken: u64, new: Option<Point>) -> Option<u64> {
        let ClosedWindow { start, end, blind } = span;
        let points = [self.anchor, self.last, new.unwrap_or(self.last)];
        let unseen = points[0].0.since(start);
        let whole = end.since(start);
        // The first window starts a moment before the first readings: what is seen stands for all.
        let known = unseen * UNSEEN_PART <= whole;
        let from = value_at(&points, start);
        let late = points[2].0.since(end);
        let to = if late > LATE && u128::from(blind.after) * 2 > late.as_nanos() {
            let all = points[2].1.saturating_sub(from);
            let sampled = taken.min(all);
            from + sampled + blind.share(all - sampled)
        } else {
            value_at(&points, end)
        };
        let used = u128::from(to.saturating_sub(from)) * whole.as_nanos();
        let used = used / (whole - unseen.min(whole)).as_nanos().max(1);
        self.anchor = (end.max(points[0].0), to);
        if let Some(new) = new {
            self.last = new;
        }
        known.then_some(used.min(u64::MAX.into()) as u64)
    }
}

/// The value at a moment on straight lines between points in order of time.
fn value_at(points: &[Point; 3], at: MonotonicTime) -> u64 {
    for pair in points.windows(2) {
        let [(from, low), (to, high)] = [pair[0], pair[1]];
        if at < from {
            return low;
        }
        if at <= to && to > from {
            let part = u128::from(at.0 - from.0) * u128::from(high.saturating_sub(low));
            return low + (part / u128::from(to.0 - from.0)) as u64;
        }
    }
    points[2].1
}

impl Source {
    /// Reads a cgroup.
    fn read(&mut self, path: &str) -> Option<Reading> {
        if path == "/" {
            let now = MonotonicTime::now();
            return Some(Reading {
                inode: super::hierarchy::ROOT_INODE,
                point: (now, self.host()?),
                throttled_ns: self.limits.throttled(path, ""),
            });
        }
        let (directory, file) = match (&self.cpuacct, self.hierarchy.mode) {
            (Some(mount), Mode::V1) => (mount.join(path.strip_prefix('/')?), "cpuacct.usage"),
            (_, Mode::Cgroup2 | Mode::Hybrid) => {
                (self.hierarchy.directory(path.as_bytes())?, "cpu.stat")
            }
            _ => return None,
        };
        // Names come from the kernel, which has none of these; a path that has some is no path.
        if directory
            .components()
            .any(|part| matches!(part, Component::ParentDir | Component::CurDir))
        {
            return None;
        }
        let inode = std::fs::metadata(&directory).ok()?.ino();
        let now = MonotonicTime::now();
        self.read_text(&directory.join(file))?;
        let text = self.text.as_str();
        let ns = match file {
            "cpu.stat" => field(text, "usage_usec")?.checked_mul(1000)?,
            _ => text.trim().parse().ok()?,
        };
        Some(Reading {
            inode,
            point: (now, ns),
            throttled_ns: self.limits.throttled(path, text),
        })
    }

    /// The CPU limit of a cgroup; 0 if it is not known. Unit: thousandths of a core.
    fn limit(&self, path: &str) -> u64 {
        let directory = self.hierarchy.directory(path.as_bytes());
        self.limits.of(path, directory.as_deref())
    }

    /// CPU time of the complete host, without steal and idle.
    fn host(&mut self) -> Option<u64> {
        if self.hierarchy.whole
            && matches!(self.hierarchy.mode, Mode::Cgroup2 | Mode::Hybrid)
            && let Some(root) = self
                .hierarchy
                .mount
                .as_ref()
                .map(|mount| mount.join("cpu.stat"))
            && let Some(text) = self.text(&root)
            && let (Some(user), Some(system)) =
                (field(text, "user_usec"), field(text, "system_usec"))
        {
            return user.checked_add(system)?.checked_mul(1000);
        }
        let file = self.proc_root.join("stat");
        let text = self.text(&file)?;
        let line = text.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> = line
            .split_ascii_whitespace()
            .map_while(|field| field.parse().ok())
            .collect();
        // user, nice, system, then after idle and iowait: irq, softirq. Guests are in user.
        let used = [0, 1, 2, 5, 6]
            .iter()
            .filter_map(|&at| ticks.get(at))
            .sum::<u64>();
        used.checked_mul(NS_PER_TICK)
    }

    fn text(&mut self, file: &Path) -> Option<&str> {
        self.read_text(file)?;
        Some(&self.text)
    }

    fn read_text(&mut self, file: &Path) -> Option<()> {
        #[cfg(test)]
        {
            self.opened += 1;
        }
        self.text.clear();
        let mut file = File::open(file).ok()?.take(FILE_BYTES_MAX);
        file.read_to_string(&mut self.text).ok()?;
        Some(())
    }
}

/// CPU time of a cgroup2 directory and all below it since it was created; `None` if it has no
/// counter. Blocks on a small read.
pub fn used_in(directory: &Path) -> Option<Duration> {
    let text = waiting::text_of(&directory.join("cpu.stat"))?;
    field(&text, "usage_usec").map(Duration::from_micros)
}

fn field(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

#[cfg(test)]
mod tests;
