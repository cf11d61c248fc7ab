//! Reads the numbers for triggers: small files of cgroupfs and /proc, at most `FILE_BYTES_MAX` of
//! each.
//!
//! Sources: cgroup-v2.rst (`cpu.stat`, `*.pressure`), cgroup-v1 `cpu.stat` and `cpuacct.usage`,
//! accounting/psi.rst, proc_stat(5), proc_loadavg(5).

use super::find::{self, MatchedCgroup};
use agent_config::triggers::condition::{Pressure, Quantity};
use cgroup::{Hierarchy, Mode, hierarchy};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Longest file read. `cpu.stat` of today's kernels has 600 bytes; of `/proc/stat` the first line
/// counts.
const FILE_BYTES_MAX: u64 = 4096;

/// Unit of `/proc/stat`, fixed for programs since Linux 2.6.
const TICKS_PER_SECOND: f64 = 100.0;

/// A number as it was read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// Grows all the time: its rate a second counts.
    Counter(f64),
    /// Counts as it is.
    Gauge(f64),
}

/// Why there is no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Missing {
    /// The cgroup is gone.
    Gone,
    /// The kernel does not account pressure.
    Pressure,
    /// Cgroup v1 has no pressure of cgroups.
    PressureV1,
    /// The controller that limits CPU time is not on for the cgroup.
    CpuController,
    /// No hierarchy is mounted where the daemon could see it.
    Hierarchy,
    /// The file is there, but cannot be read or has another form.
    Unreadable,
}

impl Missing {
    /// Describes the problem.
    pub fn message(self) -> &'static str {
        match self {
            Missing::Gone => "the cgroup is gone",
            Missing::Pressure => "the kernel does not account pressure (PSI) for the target",
            Missing::PressureV1 => "only cgroup2 accounts pressure of cgroups",
            Missing::CpuController => "the cgroup has no CPU controller, so it is never throttled",
            Missing::Hierarchy => "the daemon sees no mounted cgroup hierarchy",
            Missing::Unreadable => "the file with this number cannot be read",
        }
    }

    /// The remedy; empty if there is none.
    pub fn remedy(self) -> &'static str {
        match self {
            Missing::Pressure => {
                "boot with psi=1, on a kernel with CONFIG_PSI; for a cgroup, write 1 to cgroup.pressure"
            }
            Missing::PressureV1 => "boot with systemd.unified_cgroup_hierarchy=1",
            Missing::CpuController => {
                "set CPUQuota= of the unit, or write +cpu to cgroup.subtree_control of its parent"
            }
            Missing::Hierarchy => "mount -t cgroup2 none /sys/fs/cgroup",
            Missing::Gone | Missing::Unreadable => "",
        }
    }
}

/// Where the numbers are.
#[derive(Debug)]
pub struct Sources {
    hierarchy: Hierarchy,
    proc_root: PathBuf,
    /// Mounts of the v1 controllers, where there are such.
    cpu_v1: Option<PathBuf>,
    cpuacct_v1: Option<PathBuf>,
    text: String,
}

impl Sources {
    /// Finds the sources on this machine.
    pub fn new(hierarchy: Hierarchy, proc_root: &Path) -> Sources {
        Sources {
            hierarchy,
            proc_root: proc_root.to_path_buf(),
            cpu_v1: hierarchy::mount_of(proc_root, "cpu"),
            cpuacct_v1: hierarchy::mount_of(proc_root, "cpuacct"),
            text: String::new(),
        }
    }

    /// The hierarchy.
    pub fn hierarchy(&self) -> &Hierarchy {
        &self.hierarchy
    }

    /// The inode of a cgroup's directory, while it is there.
    pub fn inode(&self, path: &str) -> Option<u64> {
        let directory = self.hierarchy.directory(path.as_bytes())?;
        Some(std::fs::metadata(directory).ok()?.ino())
    }

    /// A number of the host (no place) or of a cgroup.
    ///
    /// # Errors
    /// Why there is none.
    pub fn read(
        &mut self,
        place: Option<&MatchedCgroup>,
        quantity: Quantity,
    ) -> Result<Number, Missing> {
        match (place, quantity) {
            (None, Quantity::CpuShare | Quantity::Cpus) => {
                let file = self.proc_root.join("stat");
                let ticks = self.text(&file).ok().and_then(busy_ticks);
                let seconds = ticks.map(|ticks| ticks / TICKS_PER_SECOND);
                seconds.map(Number::Counter).ok_or(Missing::Unreadable)
            }
            (None, Quantity::RunQueue) => {
                let file = self.proc_root.join("loadavg");
                let running = self.text(&file).ok().and_then(running_tasks);
                running.map(Number::Gauge).ok_or(Missing::Unreadable)
            }
            (None, Quantity::Pressure(pressure)) => {
                let file = self.proc_root.join("pressure").join(pressure.resource);
                self.pressure(&file, pressure)
            }
            (None, Quantity::NrThrottled) | (Some(_), Quantity::RunQueue) => {
                // Refused where rules are read.
                Err(Missing::Unreadable)
            }
            (Some(place), quantity) => {
                let found = self.of_cgroup(place, quantity);
                // Gone while it was read is gone, whatever else was missing.
                match found {
                    Err(_) if self.inode(&place.path) != Some(place.inode) => Err(Missing::Gone),
                    found => found,
                }
            }
        }
    }

    fn of_cgroup(&mut self, place: &MatchedCgroup, quantity: Quantity) -> Result<Number, Missing> {
        let path = place.path.as_str();
        if self.hierarchy.mode == Mode::None {
            return Err(Missing::Hierarchy);
        }
        let directory = self
            .hierarchy
            .directory(path.as_bytes())
            .ok_or(Missing::Gone)?;
        let v1 = self.hierarchy.mode == Mode::V1;
        match quantity {
            Quantity::CpuShare | Quantity::Cpus if v1 => {
                let mount = self.cpuacct_v1.as_deref().ok_or(Missing::Hierarchy)?;
                let file = find::below(mount, path).ok_or(Missing::Gone)?;
                let text = self.text(&file.join("cpuacct.usage")).ok();
                let ns = text.and_then(|text| text.trim().parse::<u64>().ok());
                let seconds = ns.map(|ns| ns as f64 / 1e9);
                seconds.map(Number::Counter).ok_or(Missing::Unreadable)
            }
            Quantity::CpuShare | Quantity::Cpus => {
                let text = self.text(&directory.join("cpu.stat")).ok();
                let used = text.and_then(|text| field(text, "usage_usec"));
                let seconds = used.map(|us| us as f64 / 1e6);
                seconds.map(Number::Counter).ok_or(Missing::Unreadable)
            }
            Quantity::NrThrottled => self.throttled(path, &directory, v1),
            Quantity::Pressure(_) if v1 => Err(Missing::PressureV1),
            Quantity::Pressure(pressure) => {
                let name = format!("{}.pressure", pressure.resource);
                self.pressure(&directory.join(name), pressure)
            }
            Quantity::RunQueue => Err(Missing::Unreadable),
        }
    }

    /// The CPU controller may be on another hierarchy than `perf_event`.
    fn throttled(&mut self, path: &str, directory: &Path, v1: bool) -> Result<Number, Missing> {
        let beside = self
            .cpu_v1
            .as_deref()
            .and_then(|mount| find::below(mount, path));
        let own = (!v1).then(|| directory.to_path_buf());
        for directory in own.into_iter().chain(beside) {
            let text = self.text(&directory.join("cpu.stat")).ok();
            if let Some(times) = text.and_then(|text| field(text, "nr_throttled")) {
                return Ok(Number::Counter(times as f64));
            }
        }
        Err(Missing::CpuController)
    }

    fn pressure(&mut self, file: &Path, pressure: Pressure) -> Result<Number, Missing> {
        match self.text(file) {
            Ok(text) => average(text, pressure)
                .map(Number::Gauge)
                .ok_or(Missing::Pressure),
            // A kernel started without psi has the files and refuses to open them.
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    || error.raw_os_error() == Some(libc::EOPNOTSUPP) =>
            {
                Err(Missing::Pressure)
            }
            Err(_) => Err(Missing::Unreadable),
        }
    }

    fn text(&mut self, file: &Path) -> io::Result<&str> {
        self.text.clear();
        let file = File::options()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(file)?;
        file.take(FILE_BYTES_MAX).read_to_string(&mut self.text)?;
        Ok(&self.text)
    }
}

fn field(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

/// Time that all CPUs worked: user, nice, system, irq and softirq of the first line. Steal is no
/// time of ours.
fn busy_ticks(text: &str) -> Option<f64> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let numbers = line.split_ascii_whitespace();
    let ticks: Vec<u64> = numbers.map_while(|number| number.parse().ok()).collect();
    if ticks.len() < 4 {
        return None;
    }
    let used = [0, 1, 2, 5, 6].iter().filter_map(|&at| ticks.get(at));
    Some(used.fold(0.0, |sum, &ticks| sum + ticks as f64))
}

/// Tasks that run or wait for a CPU: `0.20 0.18 0.12 3/523 11206`. The one that reads is one of
/// them.
fn running_tasks(text: &str) -> Option<f64> {
    let word = text.split_ascii_whitespace().nth(3)?;
    let running: u64 = word.split_once('/')?.0.parse().ok()?;
    Some(running.saturating_sub(1) as f64)
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`.
fn average(text: &str, pressure: Pressure) -> Option<f64> {
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix(pressure.kind)?.strip_prefix(' '))?;
    let mut words = line.split_ascii_whitespace();
    let value = words.find_map(|word| word.strip_prefix(pressure.average)?.strip_prefix('='))?;
    value.parse::<f64>().ok().filter(|value| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_config::triggers::condition::Condition;

    struct Machine {
        dir: tempfile::TempDir,
    }

    impl Machine {
        fn new() -> Machine {
            Machine {
                dir: tempfile::tempdir().unwrap(),
            }
        }

        fn file(&self, path: &str, text: &str) {
            let path = self.dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }

        fn sources(&self, mode: Mode) -> Sources {
            let hierarchy = Hierarchy {
                mode,
                mount: (mode != Mode::None).then(|| self.dir.path().join("cgroup")),
                prefix: Vec::new(),
                whole: true,
                v1: mode == Mode::V1,
            };
            Sources::new(hierarchy, &self.dir.path().join("proc"))
        }

        fn read(&self, mode: Mode, path: Option<&str>, quantity: &str) -> Result<Number, Missing> {
            let mut sources = self.sources(mode);
            let quantity = Condition::parse(&format!("{quantity} > 1"))
                .unwrap()
                .quantity;
            let place = path.map(|path| MatchedCgroup {
                path: path.to_owned(),
                inode: sources.inode(path).unwrap_or(0),
            });
            sources.read(place.as_ref(), quantity)
        }
    }

    const PSI: &str = "some avg10=1.50 avg60=2.00 avg300=0.25 total=12\n\
                       full avg10=0.00 avg60=0.10 avg300=0.00 total=3\n";

    #[test]
    fn numbers_of_a_cgroup() {
        let machine = Machine::new();
        machine.file(
            "cgroup/a/cpu.stat",
            "usage_usec 2500000\nnr_periods 9\nnr_throttled 7\n",
        );
        machine.file("cgroup/a/cpu.pressure", PSI);
        let read = |quantity| machine.read(Mode::Cgroup2, Some("/a"), quantity);
        assert_eq!(read("cpus"), Ok(Number::Counter(2.5)));
        assert_eq!(read("nr_throttled"), Ok(Number::Counter(7.0)));
        assert_eq!(read("psi.cpu.some.avg60"), Ok(Number::Gauge(2.0)));
        assert_eq!(read("psi.cpu.full.avg60"), Ok(Number::Gauge(0.1)));
        assert_eq!(read("psi.io.some.avg10"), Err(Missing::Pressure));
    }

    #[test]
    fn numbers_of_the_host() {
        let machine = Machine::new();
        machine.file("proc/stat", "cpu  100 20 30 999 5 7 3 50 0 0\ncpu0 1 2\n");
        machine.file("proc/loadavg", "0.20 0.18 0.12 4/523 11206\n");
        machine.file("proc/pressure/memory", PSI);
        let read = |quantity| machine.read(Mode::Cgroup2, None, quantity);
        assert_eq!(read("cpu_share"), Ok(Number::Counter(1.6)));
        assert_eq!(read("run_queue"), Ok(Number::Gauge(3.0)));
        assert_eq!(read("psi.memory.some.avg10"), Ok(Number::Gauge(1.5)));
        assert_eq!(read("psi.cpu.some.avg10"), Err(Missing::Pressure));
    }

    #[test]
    fn cgroup_v1_has_its_numbers_elsewhere() {
        let machine = Machine::new();
        let mount = |name: &str| machine.dir.path().join(name).display().to_string();
        machine.file(
            "proc/self/mountinfo",
            &format!(
                "31 23 0:28 / {} rw - cgroup cgroup rw,cpu\n32 23 0:29 / {} rw - cgroup cgroup rw,cpuacct\n",
                mount("cpu"),
                mount("acct")
            ),
        );
        machine.file("cgroup/a/tasks", "");
        machine.file(
            "cpu/a/cpu.stat",
            "nr_periods 4\nnr_throttled 3\nthrottled_time 1\n",
        );
        machine.file("acct/a/cpuacct.usage", "1500000000\n");
        let read = |quantity| machine.read(Mode::V1, Some("/a"), quantity);
        assert_eq!(read("nr_throttled"), Ok(Number::Counter(3.0)));
        assert_eq!(read("cpu_share"), Ok(Number::Counter(1.5)));
        assert_eq!(read("psi.cpu.some.avg10"), Err(Missing::PressureV1));
    }

    #[test]
    fn a_controller_that_is_off_and_a_cgroup_that_is_gone_are_told_apart() {
        let machine = Machine::new();
        machine.file("cgroup/a/cpu.stat", "usage_usec 1\n");
        let read = |path, mode| machine.read(mode, Some(path), "nr_throttled");
        assert_eq!(read("/a", Mode::Cgroup2), Err(Missing::CpuController));
        assert_eq!(read("/gone", Mode::Cgroup2), Err(Missing::Gone));
        assert_eq!(read("/a/../../x", Mode::Cgroup2), Err(Missing::Gone));
    }

    #[test]
    fn what_makes_no_sense_is_no_number() {
        let machine = Machine::new();
        for text in ["", "cpu", "cpu  1 2", "intr 4 5 6 7", "cpu  a b c d"] {
            machine.file("proc/stat", text);
            let read = machine.read(Mode::Cgroup2, None, "cpus");
            assert_eq!(read, Err(Missing::Unreadable), "{text}");
        }
        for text in ["", "some", "some avg10=", "some avg10=inf", "full avg10=1"] {
            machine.file("proc/pressure/cpu", text);
            let read = machine.read(Mode::Cgroup2, None, "psi.cpu.some.avg10");
            assert_eq!(read, Err(Missing::Pressure), "{text}");
        }
    }
}
