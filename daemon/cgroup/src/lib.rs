//! Maps cgroup ids to paths, and paths to slice, unit, container and pod.
//!
//! Samples have the id of the cgroup in the hierarchy that owns `perf_event`. The id is the inode
//! number of its directory and is not reused within a boot, so it is the key: a reused path is a
//! new cgroup. Names come from a walk of the mounted tree at start, from `PERF_RECORD_CGROUP` as
//! cgroups are created, from another walk when an id is unknown, and finally from
//! `/proc/PID/cgroup`. Names of removed cgroups are kept, because their samples are.
//!
//! Owned by the symbolizer thread: everything here may block on small reads of cgroupfs and /proc.
#![forbid(unsafe_code)]

pub mod containers;
pub mod hierarchy;
pub mod labels;
pub mod usage;
mod walk;

pub use hierarchy::{Hierarchy, Mode};
pub use labels::Labels;

use containers::{Containers, Metadata};
use hashbrown::HashMap;
use hierarchy::ROOT_INODE;
use host::ids::{CgroupId, Pid};
use host::time::MonotonicTime;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Most cgroups kept, living and removed. Unit: entries of about 400 bytes. Beyond it the removed
/// ones that nobody asked for longest go first, then living ones, which a walk can find again.
pub const CGROUPS_MAX: usize = 16_384;

/// Most that they take together. Unit: bytes; 1 KiB each. Reached sooner than [`CGROUPS_MAX`] only
/// where somebody gives cgroups names of hundreds of bytes.
pub const CGROUPS_BYTES_MAX: usize = 16 << 20;

/// Least time between two walks that unknown ids start. A walk of 500 cgroups takes a few
/// milliseconds; a fork bomb of cgroups shall not make it a habit.
pub const WALK_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// Most walks that an unknown id may start. Ids of cgroups that were removed before the daemon saw
/// them stay unknown forever.
const TRIES_MAX: u8 = 3;

/// How long the path of a process is cached if samples have no ids. Long enough to read it once a
/// window, short enough that a reused pid is noticed soon.
const PID_PATH_TTL: Duration = Duration::from_secs(5);

/// Most processes with cached paths if samples have no ids.
const PID_PATHS_MAX: usize = 8192;

/// Most memory for these. Unit: bytes; 512 each.
const PID_PATHS_BYTES_MAX: usize = 4 << 20;

/// Longest path kept. Unit: bytes of its text. Those of containers in pods have 250. What is longer
/// is cut and gets the cgroup's id, so that different ones stay different; what the kernel accounts
/// for it is not read. Windows, ledgers and answers hold paths by the thousand.
pub const PATH_BYTES_MAX: usize = 1024;

/// A cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    /// Its id; 0 if samples have no ids and the path comes from `/proc/PID/cgroup`.
    pub id: CgroupId,
    /// Path from the root of the hierarchy, `/` for the root itself. Bytes that are not UTF-8 stand
    /// as `\xNN`; other strange characters are kept and escaped at the edges. An id without a name
    /// has `[unknown cgroup ID]`, which no path can be.
    pub path: Box<str>,
    /// Labels from the path.
    pub labels: Labels,
}

impl Cgroup {
    /// The one with this id and this path from the root of the hierarchy.
    pub fn new(id: CgroupId, path: &[u8]) -> Cgroup {
        let path = text(id, path);
        Cgroup {
            id,
            labels: Labels::of_path(&path),
            path: path.into(),
        }
    }

    fn unknown(id: CgroupId) -> Cgroup {
        let path = format!("[unknown cgroup {}]", id.0).into();
        Cgroup {
            id,
            path,
            labels: Labels::default(),
        }
    }

    /// Its memory. Unit: bytes.
    fn heap_bytes(&self) -> usize {
        let texts = self.pairs().map(|(_, value)| value.len());
        size_of::<Entry>() + texts.sum::<usize>()
    }

    /// The value of a label: its own, or else the one that its container's runtime reported.
    pub fn value<'v>(&'v self, told: &'v Metadata, label: &str) -> Option<&'v str> {
        let own = self.pairs().find(|(name, _)| *name == label);
        let found = own.or_else(|| told.pairs().find(|(name, _)| *name == label));
        found.map(|(_, value)| value)
    }

    /// All labels of the cgroup with their keys, the path among them.
    pub fn pairs(&self) -> impl Iterator<Item = (&'static str, &str)> {
        std::iter::once((profile::key::CGROUP, &*self.path)).chain(self.labels.pairs())
    }
}

/// Lists every cgroup that exists now, with its path as bytes, within the bounds of a walk. Reads
/// cgroupfs; empty if it is not visible.
pub fn living(hierarchy: &Hierarchy) -> Vec<(Cgroup, Vec<u8>)> {
    let Some(mount) = &hierarchy.mount else {
        return Vec::new();
    };
    let found = walk::walk(mount, CGROUPS_MAX).directories.into_iter();
    found
        .map(|(id, below)| {
            let path = hierarchy.path_of(&below);
            (Cgroup::new(CgroupId(id), &path), path)
        })
        .collect()
}

/// The path as text: bytes that are not UTF-8 become `\xNN`, so that different paths stay so.
fn text(id: CgroupId, path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len().min(PATH_BYTES_MAX));
    for chunk in path[..path.len().min(PATH_BYTES_MAX + 1)].utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    if text.len() > PATH_BYTES_MAX {
        let rest = format!("…[cgroup {}]", id.0);
        text.truncate(text.floor_char_boundary(PATH_BYTES_MAX - rest.len()));
        text.push_str(&rest);
    }
    text
}

/// Counters of the table, shown as metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CgroupStats {
    /// Cgroups in the table now, removed ones included.
    pub known: u64,
    /// Their memory. Unit: bytes.
    pub bytes: u64,
    /// Entries of the table for removed cgroups and ids without a name.
    pub gone: u64,
    /// Entries dropped because the table was full.
    pub evicted: u64,
    /// Walks of the tree.
    pub walks: u64,
    /// Walks that met a bound (entries or depth) and left cgroups out.
    pub walks_cut: u64,
    /// Ids that no source could name.
    pub unknown: u64,
    /// Names taken from `/proc/PID/cgroup`.
    pub by_pid: u64,
}

#[derive(Debug)]
struct Entry {
    cgroup: Cgroup,
    /// Value of [`CgroupTable::clock`] when it was last asked for.
    used: u64,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its directory existed at the last walk, or was announced since. With the number of the walk.
    Living(u64),
    /// Its directory was not there at the last walk.
    Removed,
    /// Without a name; walks made for it.
    Unknown(u8),
}

/// Names of cgroups.
#[derive(Debug)]
pub struct CgroupTable {
    hierarchy: Hierarchy,
    proc_root: PathBuf,
    entries: HashMap<u64, Entry>,
    /// For samples without ids: cgroups by process, and when each was read.
    by_pid: HashMap<u32, (Cgroup, MonotonicTime)>,
    /// What `entries` and `by_pid` take. Unit: bytes.
    bytes: [usize; 2],
    clock: u64,
    last_walk: Option<MonotonicTime>,
    capacity: usize,
    stats: CgroupStats,
    containers: Containers,
}

impl CgroupTable {
    /// Finds the hierarchy that owns `perf_event` and walks it.
    pub fn discover() -> CgroupTable {
        let proc_root = Path::new("/proc");
        CgroupTable::open(Hierarchy::discover(proc_root), proc_root, CGROUPS_MAX)
    }

    fn open(hierarchy: Hierarchy, proc_root: &Path, capacity: usize) -> CgroupTable {
        let mut table = CgroupTable {
            hierarchy,
            proc_root: proc_root.to_path_buf(),
            entries: HashMap::new(),
            by_pid: HashMap::new(),
            bytes: [0; 2],
            clock: 0,
            last_walk: None,
            capacity,
            stats: CgroupStats::default(),
            containers: Containers::none(),
        };
        table.walk(MonotonicTime::now());
        table
    }

    /// Sets where metadata of containers is looked up.
    pub fn set_containers(&mut self, containers: Containers) {
        self.containers = containers;
    }

    /// What is known of containers.
    pub fn containers(&self) -> &Containers {
        &self.containers
    }

    /// Registers the containers among these cgroups, with a process of each, and waits briefly for
    /// metadata of new ones. See [`Containers::meet`].
    pub fn meet(&mut self, seen: impl IntoIterator<Item = (CgroupId, Pid)>) {
        let mut met: Vec<(Box<str>, Option<&'static str>)> = Vec::new();
        for (id, pid) in seen {
            let labels = &self.get(id, Some(pid)).labels;
            if let Some(container) = &labels.container {
                met.push((container.clone(), labels.runtime));
            }
        }
        met.sort_unstable();
        met.dedup();
        let met = met.iter().map(|(id, runtime)| (&**id, *runtime));
        self.containers.meet(met);
    }

    /// The hierarchy the names come from.
    pub fn hierarchy(&self) -> &Hierarchy {
        &self.hierarchy
    }

    /// Counters of the table.
    pub fn stats(&self) -> CgroupStats {
        let gone = self
            .entries
            .values()
            .filter(|entry| !entry.is_living())
            .count() as u64;
        CgroupStats {
            known: self.entries.len() as u64,
            bytes: self.bytes.iter().sum::<usize>() as u64,
            gone,
            ..self.stats
        }
    }

    /// Stores the name of a new cgroup from `PERF_RECORD_CGROUP`: its path from the root of the
    /// hierarchy, whatever namespace the daemon is in.
    pub fn note_created(&mut self, id: CgroupId, path: &[u8]) {
        // `//enomem` and `//toolong` stand where the kernel could not write the path.
        if path.starts_with(b"/") && !path.starts_with(b"//") {
            self.insert(id, path);
        }
    }

    /// The cgroup of an id, by its last known name. `hint` is a process seen in it; it helps if the
    /// tree is not visible, or samples have no ids (id 0, or [`Mode::None`]).
    ///
    /// May walk the tree or read `/proc/PID/cgroup`, neither more than the bounds above allow.
    pub fn get(&mut self, id: CgroupId, hint: Option<Pid>) -> &Cgroup {
        self.get_at(id, hint, MonotonicTime::now())
    }

    fn get_at(&mut self, id: CgroupId, hint: Option<Pid>, now: MonotonicTime) -> &Cgroup {
        let silent = id.0 == 0 || (self.hierarchy.mode == Mode::None && id.0 == ROOT_INODE);
        if let Some(pid) = hint.filter(|_| silent) {
            return self.get_by_pid(pid, now);
        }
        self.clock += 1;
        let settled = self
            .entries
            .get(&id.0)
            .is_some_and(|entry| match entry.state {
                State::Unknown(tries) => tries >= TRIES_MAX,
                State::Living(_) | State::Removed => true,
            });
        if !settled {
            self.resolve(id, hint, now);
        }
        let (clock, bytes) = (self.clock, &mut self.bytes[0]);
        let entry = self.entries.entry(id.0).or_insert_with(|| {
            let cgroup = Cgroup::unknown(id);
            *bytes += cgroup.heap_bytes();
            Entry {
                cgroup,
                used: clock,
                state: State::Unknown(TRIES_MAX),
            }
        });
        entry.used = clock;
        &entry.cgroup
    }

    /// Looks for the name of an id that has none.
    fn resolve(&mut self, id: CgroupId, hint: Option<Pid>, now: MonotonicTime) {
        if id.0 == ROOT_INODE {
            return self.insert(id, b"/");
        }
        let due = self
            .last_walk
            .is_none_or(|last| now.since(last) >= WALK_INTERVAL_MIN);
        if due {
            self.walk(now);
        }
        let named = |table: &Self| {
            table
                .entries
                .get(&id.0)
                .is_some_and(|entry| !matches!(entry.state, State::Unknown(_)))
        };
        if named(self) {
            return;
        }
        if let Some(path) = hint.and_then(|pid| self.proven_path(pid, id)) {
            self.stats.by_pid += 1;
            return self.insert(id, &path);
        }
        self.make_room();
        let (clock, bytes) = (self.clock, &mut self.bytes[0]);
        let mut is_new = false;
        let entry = self.entries.entry(id.0).or_insert_with(|| {
            is_new = true;
            let cgroup = Cgroup::unknown(id);
            *bytes += cgroup.heap_bytes();
            Entry {
                cgroup,
                used: clock,
                state: State::Unknown(0),
            }
        });
        if let State::Unknown(tries) = &mut entry.state
            && (due || id.0 == 0)
        {
            *tries = tries.saturating_add(1);
        }
        self.stats.unknown += u64::from(is_new);
    }

    /// The path of a process, when nothing says that it is of another cgroup than `id`: the process
    /// may have moved, or its pid may be another's by now.
    fn proven_path(&self, pid: Pid, id: CgroupId) -> Option<Vec<u8>> {
        let path = self.path_of_pid(pid)?;
        let meta = self.hierarchy.directory(&path).map(std::fs::metadata);
        match meta {
            Some(Ok(meta)) => (meta.ino() == id.0).then_some(path),
            // What cannot be seen cannot be compared; where all can be seen it is gone.
            _ => (!self.hierarchy.whole).then_some(path),
        }
    }

    /// Path of a process in the hierarchy, from `/proc/PID/cgroup`: where it is now, which need not
    /// be where it was sampled. None when it is gone or its file has no such line.
    pub fn path_of_pid(&self, pid: Pid) -> Option<Vec<u8>> {
        let file = self.proc_root.join(pid.0.to_string()).join("cgroup");
        self.hierarchy.path_in(&std::fs::read(file).ok()?)
    }

    fn get_by_pid(&mut self, pid: Pid, now: MonotonicTime) -> &Cgroup {
        let fresh = self
            .by_pid
            .get(&pid.0)
            .is_some_and(|(_, read)| now.since(*read) < PID_PATH_TTL);
        if !fresh {
            let path = self.path_of_pid(pid);
            let is_full = |table: &Self| {
                table.by_pid.len() >= PID_PATHS_MAX || table.bytes[1] >= PID_PATHS_BYTES_MAX
            };
            if is_full(self) {
                let bytes = &mut self.bytes[1];
                self.by_pid.retain(|_, (cgroup, read)| {
                    let kept = now.since(*read) < PID_PATH_TTL;
                    *bytes -= if kept { 0 } else { cgroup.heap_bytes() };
                    kept
                });
            }
            if is_full(self) {
                self.stats.evicted += self.by_pid.len() as u64;
                self.by_pid.clear();
                self.bytes[1] = 0;
            }
            // A process that is gone stays where it was last seen.
            if let Some(path) = path {
                self.stats.by_pid += 1;
                let cgroup = Cgroup::new(CgroupId(0), &path);
                self.bytes[1] += cgroup.heap_bytes();
                if let Some((old, _)) = self.by_pid.insert(pid.0, (cgroup, now)) {
                    self.bytes[1] -= old.heap_bytes();
                }
            } else if let Some((_, read)) = self.by_pid.get_mut(&pid.0) {
                *read = now;
            } else {
                self.stats.unknown += 1;
            }
        }
        let bytes = &mut self.bytes[1];
        let unknown = || {
            let cgroup = Cgroup::unknown(CgroupId(0));
            *bytes += cgroup.heap_bytes();
            (cgroup, now)
        };
        &self.by_pid.entry(pid.0).or_insert_with(unknown).0
    }

    /// Every cgroup in the table that has a name, removed ones included, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Cgroup> {
        let named = |entry: &&Entry| !matches!(entry.state, State::Unknown(_));
        self.entries
            .values()
            .filter(named)
            .map(|entry| &entry.cgroup)
    }

    /// Reads the tree: learns what is new and marks what is gone.
    fn walk(&mut self, now: MonotonicTime) {
        self.last_walk = Some(now);
        let Some(mount) = self.hierarchy.mount.clone() else {
            return;
        };
        self.stats.walks += 1;
        let number = self.stats.walks;
        let found = walk::walk(&mount, self.capacity);
        self.stats.walks_cut += u64::from(found.cut);
        for (id, below) in &found.directories {
            let path = self.hierarchy.path_of(below);
            self.insert(CgroupId(*id), &path);
        }
        // A walk that was cut proves nothing about what it has not met, and one of a part of the
        // tree nothing about the rest.
        if !found.cut && self.hierarchy.whole {
            for entry in self.entries.values_mut() {
                if matches!(entry.state, State::Living(seen) if seen < number) {
                    entry.state = State::Removed;
                }
            }
        }
    }

    /// Adds a name, or confirms it.
    fn insert(&mut self, id: CgroupId, path: &[u8]) {
        let state = State::Living(self.stats.walks);
        match self.entries.get_mut(&id.0) {
            Some(entry) => {
                // Only v1 directories can be renamed; and an id that was unknown gets its name.
                if entry.cgroup.path.as_bytes() != path {
                    self.bytes[0] -= entry.cgroup.heap_bytes();
                    entry.cgroup = Cgroup::new(id, path);
                    self.bytes[0] += entry.cgroup.heap_bytes();
                }
                entry.state = state;
            }
            None => {
                self.make_room();
                // Nobody asked for it yet: a flood of new ones drives out its own before others.
                let entry = Entry {
                    cgroup: Cgroup::new(id, path),
                    used: 0,
                    state,
                };
                self.bytes[0] += entry.cgroup.heap_bytes();
                self.entries.insert(id.0, entry);
            }
        }
    }

    /// Drops an eighth of the entries when the table is full, so that the search for the oldest is
    /// made rarely.
    fn make_room(&mut self) {
        if self.entries.len() < self.capacity && self.bytes[0] < CGROUPS_BYTES_MAX {
            return;
        }
        let mut order: Vec<(bool, u64, u64)> = self
            .entries
            .iter()
            .filter(|(id, _)| **id != ROOT_INODE)
            .map(|(id, entry)| (entry.is_living(), entry.used, *id))
            .collect();
        order.sort_unstable();
        for (_, _, id) in order.iter().take((order.len() / 8).max(1)) {
            if let Some(entry) = self.entries.remove(id) {
                self.bytes[0] -= entry.cgroup.heap_bytes();
                self.stats.evicted += 1;
            }
        }
    }
}

impl Entry {
    fn is_living(&self) -> bool {
        matches!(self.state, State::Living(_))
    }
}

#[cfg(test)]
mod tests;
