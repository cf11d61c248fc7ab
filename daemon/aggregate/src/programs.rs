//! Which builds of which programs the services of this host run: what a collector finds deploys by.
//!
//! The symbolizer counts samples by cgroup and file while it records. When a window closes, the
//! programs of each service, and libraries that are its own, are those files with a build id that
//! are in at least `SHARE_MIN` of its stacks. A file counts once it is in two windows: commands
//! that a service runs once are no programs of it. Libraries of the distribution are left out, or a
//! new C library would be a deploy of every service. Interpreters are programs; what they run has
//! no build id.
//!
//! Bounds: `PROGRAMS_MAX` are kept, those that were seen last; `FILES_MAX` are counted in a
//! window.

use super::batch::RawBatch;
use hashbrown::HashMap;
use host::frame::RawFrame;
use host::ids::{CgroupId, FileId};
use host::sync::lock;
use host::time::MonotonicTime;
use profile::{build_id_text, key};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use symbolize::files::FileStore;

/// Most programs of a host that are kept and reported.
pub const PROGRAMS_MAX: usize = 128;

/// Most programs and libraries of one cgroup of a service: those in most stacks.
const OF_SERVICE_MAX: usize = 4;

/// Smallest share of a cgroup's samples whose stacks a file has to be in.
const SHARE_MIN: f64 = 0.05;

/// Fewest samples of a cgroup in a window that say what its service runs. With the default 99
/// samples a second of a busy CPU it is a fiftieth of one.
const SAMPLES_MIN: u64 = 20;

/// Windows that a file has to be in.
const WINDOWS_MIN: u32 = 2;

/// A program without samples for this long is not reported any more.
const UNUSED_MAX: Duration = Duration::from_secs(3600);

/// Most pairs of cgroup and file counted in a window. A stack with a further one is counted in
/// [`ProgramTable::uncounted`].
const FILES_MAX: usize = 16_384;

/// Longest name of a file. Unit: bytes.
const MODULE_BYTES_MAX: usize = 128;

/// Directories of libraries that the distribution installs.
const DISTRIBUTION: [&str; 4] = ["/lib", "/usr/lib", "/usr/local/lib/python", "/nix/store/"];

/// The agent itself: its version is reported anyway.
const OWN_MODULE: &str = "fleetprofd";

/// A program that a service runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// What says which service it is: see [`service_labels`].
    pub labels: BTreeMap<String, String>,
    /// Base name of the file.
    pub module: String,
    /// Its build id, in hexadecimal.
    pub build_id: String,
    /// Start of the first window with samples of it.
    pub since: MonotonicTime,
}

#[derive(Debug)]
struct Entry {
    program: Program,
    /// End of the last window with samples of it.
    last: MonotonicTime,
    windows: u32,
}

/// What is known, for whoever reports it.
#[derive(Debug, Default)]
pub struct ProgramTable {
    programs: Mutex<Vec<Program>>,
    /// Stacks with a file that was not counted, as a window had more than 16,384.
    pub uncounted: AtomicU64,
    /// Programs dropped for others, as a host runs more than [`PROGRAMS_MAX`].
    pub evicted: AtomicU64,
}

impl ProgramTable {
    /// Every program, in one order.
    pub fn list(&self) -> Vec<Program> {
        lock(&self.programs).clone()
    }
}

/// Counts for a [`ProgramTable`]. Used by the symbolizer's thread.
#[derive(Default)]
pub struct Programs {
    table: std::sync::Arc<ProgramTable>,
    /// Samples by cgroup and file in the window so far, and all of each cgroup.
    files: HashMap<(CgroupId, FileId), u64>,
    cgroups: HashMap<CgroupId, u64>,
    /// By service, module and build id.
    entries: BTreeMap<(BTreeMap<String, String>, String, String), Entry>,
    /// Start of the window so far.
    since: Option<MonotonicTime>,
    /// Files of one stack, kept for the next.
    of_stack: Vec<FileId>,
}

impl Programs {
    /// Reports into this table.
    pub fn new(table: std::sync::Arc<ProgramTable>) -> Programs {
        Programs {
            table,
            ..Programs::default()
        }
    }

    /// Counts a batch. When it closes a window, `labels` says which service a cgroup is.
    pub fn note(
        &mut self,
        batch: &RawBatch,
        store: &FileStore,
        labels: impl FnMut(CgroupId) -> Option<BTreeMap<String, String>>,
    ) {
        self.count(batch);
        if batch.closes {
            let from = self.since.take().unwrap_or(batch.start);
            self.close((from, batch.end), |id| program_file(store, id), labels);
        }
    }

    fn count(&mut self, batch: &RawBatch) {
        self.since.get_or_insert(batch.start);
        for sample in &batch.samples {
            let stack = batch.stacks[sample.stack as usize];
            let own = batch.own_frames_at(stack);
            let frames = &batch.frames[stack.first as usize..(stack.first + stack.len) as usize];
            self.of_stack.clear();
            for frame in &frames[own..] {
                // Frames of a file mostly follow each other.
                if let RawFrame::File(file, _) = frame
                    && self.of_stack.last() != Some(file)
                    && !self.of_stack.contains(file)
                {
                    self.of_stack.push(*file);
                }
            }
            let count = sample.value.count;
            *self.cgroups.entry(sample.cgroup).or_default() += count;
            for file in &self.of_stack {
                let key = (sample.cgroup, *file);
                if self.files.len() < FILES_MAX || self.files.contains_key(&key) {
                    *self.files.entry(key).or_default() += count;
                } else {
                    self.table.uncounted.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    fn close(
        &mut self,
        (from, until): (MonotonicTime, MonotonicTime),
        file: impl Fn(FileId) -> Option<(String, String)>,
        mut labels: impl FnMut(CgroupId) -> Option<BTreeMap<String, String>>,
    ) {
        let mut by_cgroup: BTreeMap<CgroupId, Vec<(u64, FileId)>> = BTreeMap::new();
        for ((cgroup, file), count) in self.files.drain() {
            let all = self.cgroups.get(&cgroup).copied().unwrap_or(0);
            if all >= SAMPLES_MIN && count as f64 >= SHARE_MIN * all as f64 {
                by_cgroup.entry(cgroup).or_default().push((count, file));
            }
        }
        self.cgroups.clear();
        for (cgroup, files) in by_cgroup {
            let Some(labels) = labels(cgroup) else {
                continue;
            };
            let named = files.into_iter();
            let named = named.filter_map(|(count, id)| Some((count, file(id)?)));
            let mut named: Vec<(u64, (String, String))> = named.collect();
            // Programs first, then what is in most stacks.
            named.sort_by_key(|(count, (module, _))| {
                (module.contains(".so"), std::cmp::Reverse(*count))
            });
            for (_, (module, build_id)) in named.into_iter().take(OF_SERVICE_MAX) {
                let key = (labels.clone(), module.clone(), build_id.clone());
                let entry = self.entries.entry(key).or_insert_with(|| Entry {
                    program: Program {
                        labels: labels.clone(),
                        module,
                        build_id,
                        since: from,
                    },
                    last: until,
                    windows: 0,
                });
                // Several cgroups of a service in one window are one window of it.
                if entry.windows == 0 || entry.last != until {
                    entry.windows = entry.windows.saturating_add(1);
                }
                entry.last = until;
            }
        }
        self.entries
            .retain(|_, entry| until.since(entry.last) < UNUSED_MAX);
        while self.entries.len() > PROGRAMS_MAX {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.last);
            let Some(key) = oldest.map(|(key, _)| key.clone()) else {
                break;
            };
            self.entries.remove(&key);
            self.table.evicted.fetch_add(1, Ordering::Relaxed);
        }
        let known = self.entries.values();
        let known = known.filter(|entry| entry.windows >= WINDOWS_MIN);
        *lock(&self.table.programs) = known.map(|entry| entry.program.clone()).collect();
    }
}

/// Base name and build id of a file that may be a service's own.
fn program_file(store: &FileStore, id: FileId) -> Option<(String, String)> {
    let found = store.get(id);
    let path = symbolize::open::without_deleted(&found.path);
    let module = own_module(std::str::from_utf8(path).ok()?)?;
    let build_id = build_id_text(&found.build_id);
    profile::is_build_id(&build_id).then(|| (module.to_owned(), build_id))
}

/// The base name of a file unless the distribution installed it as a library.
fn own_module(path: &str) -> Option<&str> {
    let module = path.rsplit('/').next()?;
    let is_library = module.contains(".so") && module.rsplit(".so").next().is_some_and(is_version);
    let is_installed = DISTRIBUTION.iter().any(|dir| path.starts_with(dir));
    let fits = !module.is_empty() && module.len() <= MODULE_BYTES_MAX;
    (fits && module != OWN_MODULE && !(is_library && is_installed)).then_some(module)
}

/// What follows `.so`: nothing, or `.1.2.3`.
fn is_version(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte == b'.' || byte.is_ascii_digit())
}

/// The labels that say which service a cgroup is, of all that it has: the image of its container,
/// or its unit. Names of containers differ after each start. `None`: a session of a user, or no
/// service at all.
pub fn service_labels<'l>(
    labels: impl Iterator<Item = (&'l str, &'l str)>,
) -> Option<BTreeMap<String, String>> {
    let all: BTreeMap<&str, &str> = labels.collect();
    let names: &[&str] = match all.contains_key(key::CONTAINER) {
        true => &[key::IMAGE, key::NAMESPACE],
        false => &[key::UNIT],
    };
    let found = names.iter().filter_map(|name| {
        let value = all.get(name)?;
        Some(((*name).to_owned(), (*value).to_owned()))
    });
    let found: BTreeMap<String, String> = found.collect();
    // Whoever is logged in builds and runs what he likes.
    let is_user = |unit: &String| !unit.ends_with(".service") || unit.starts_with("user@");
    let is_named = found.contains_key(key::IMAGE) || found.contains_key(key::UNIT);
    let is_service = is_named && !found.get(key::UNIT).is_some_and(is_user);
    is_service.then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn api() -> BTreeMap<String, String> {
        [(key::UNIT.to_owned(), "api.service".to_owned())].into()
    }

    /// A window with so many samples of files in cgroup 1; files are named by their number.
    fn window(programs: &mut Programs, number: u64, files: &[(u32, u64)]) {
        let all: u64 = files.iter().map(|(_, count)| count).sum();
        programs.cgroups.insert(CgroupId(1), all);
        for &(file, count) in files {
            programs.files.insert((CgroupId(1), FileId(file)), count);
        }
        let at = |number: u64| MonotonicTime(number * 10 * SECOND);
        programs.close(
            (at(number), at(number + 1)),
            |file| Some((format!("api{}", file.0 / 10), format!("{:08x}", file.0))),
            |_| Some(api()),
        );
    }

    fn builds(programs: &Programs) -> Vec<(String, u64)> {
        let list = programs.table.list().into_iter();
        list.map(|of| (of.build_id, of.since.0 / SECOND)).collect()
    }

    #[test]
    fn a_build_is_known_from_its_second_window_on_since_the_first() {
        let mut programs = Programs::default();
        window(&mut programs, 1, &[(11, 100)]);
        assert_eq!(builds(&programs), []);
        window(&mut programs, 2, &[(11, 100)]);
        assert_eq!(builds(&programs), [("0000000b".to_owned(), 10)]);
        window(&mut programs, 3, &[(12, 100)]);
        window(&mut programs, 4, &[(12, 100)]);
        let both = [("0000000b".to_owned(), 10), ("0000000c".to_owned(), 30)];
        assert_eq!(builds(&programs), both);
    }

    #[test]
    fn two_cgroups_of_a_service_are_in_one_window_once() {
        let mut programs = Programs::default();
        programs.cgroups.insert(CgroupId(2), 100);
        programs.files.insert((CgroupId(2), FileId(11)), 100);
        window(&mut programs, 1, &[(11, 100)]);
        assert_eq!(builds(&programs), []);
    }

    #[test]
    fn what_is_rare_or_runs_once_is_no_program_of_a_service() {
        let mut programs = Programs::default();
        window(&mut programs, 1, &[(11, 960), (21, 40)]);
        window(&mut programs, 2, &[(11, 960), (21, 40), (31, 100)]);
        window(&mut programs, 3, &[(11, 19)]);
        assert_eq!(builds(&programs), [("0000000b".to_owned(), 10)]);
    }

    #[test]
    fn what_is_not_used_any_more_goes_and_the_oldest_make_room() {
        let mut programs = Programs::default();
        for at in 1..=2 {
            window(&mut programs, at, &[(11, 100)]);
        }
        let hour = UNUSED_MAX.as_secs() / 10;
        window(&mut programs, hour + 2, &[(21, 100)]);
        assert_eq!(builds(&programs), []);
        for at in 0..2 * PROGRAMS_MAX as u64 {
            window(&mut programs, 2 * hour + at, &[(1000 + at as u32, 100)]);
        }
        assert_eq!(programs.entries.len(), PROGRAMS_MAX);
        let evicted = programs.table.evicted.load(Ordering::Relaxed);
        assert_eq!(evicted, PROGRAMS_MAX as u64);
    }

    #[test]
    fn libraries_of_the_distribution_are_no_ones_own() {
        for (path, own) in [
            ("/usr/bin/api", Some("api")),
            ("/opt/api-1.2/bin/api", Some("api")),
            ("/opt/api/lib/libapi.so.1.2", Some("libapi.so.1.2")),
            ("/usr/lib/x86_64-linux-gnu/libc.so.6", None),
            ("/lib64/ld-linux-x86-64.so.2", None),
            ("/usr/lib/postgresql/15/bin/postgres", Some("postgres")),
            ("/usr/lib/jvm/lib/server/libjvm.so", None),
            ("/usr/bin/my.sorter", Some("my.sorter")),
            ("/usr/bin/fleetprofd", None),
            ("/", None),
        ] {
            assert_eq!(own_module(path), own, "{path}");
        }
    }

    #[test]
    fn a_service_is_a_container_by_its_name_or_a_unit_that_is_no_login() {
        let check = |pairs: &[(&str, &str)]| {
            let labels = service_labels(pairs.iter().copied());
            labels.map(|labels| labels.into_values().collect::<Vec<_>>().join(" "))
        };
        assert_eq!(
            check(&[("unit", "api.service")]).as_deref(),
            Some("api.service")
        );
        let container = [
            ("container", "0123"),
            ("unit", "docker-0123.scope"),
            ("image", "api:v1"),
            ("namespace", "shop"),
        ];
        assert_eq!(check(&container).as_deref(), Some("api:v1 shop"));
        for unit in ["session-3.scope", "user@1000.service", "init.scope"] {
            assert_eq!(check(&[("unit", unit)]), None, "{unit}");
        }
        assert_eq!(check(&[("container", "0123"), ("unit", "a.service")]), None);
    }
}
