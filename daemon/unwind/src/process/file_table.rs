//! The files behind executable mappings: one id for each distinct file, and which threads must be
//! informed of it.

use crate::process::space::Mapping;
use hashbrown::{HashMap, HashSet};
use host::ids::{Avma, FileId, Pid};
use host::time::MonotonicTime;
use std::hash::{DefaultHasher, Hasher};
use std::time::Duration;
use symbolize::files::{FileIdentity, FileSeen, RELATIVES, UNUSED_MAX};
use symbolize::open::without_deleted;

/// Files known at once. A host that replaces images all day meets a few thousand distinct ones;
/// beyond the bound the files that no live process maps are forgotten.
pub const FILES_MAX: usize = 32_768;

/// Bytes of the paths of all files known: 512 a file. Paths have some 60; a stranger's have up
/// to 4096. Beyond it the table is full, as by number.
pub(super) const PATH_BYTES_MAX: usize = 16 << 20;

/// When a file that is still being sampled is announced again: the first process may have been gone
/// before it could be opened. The store ignores what it already has.
const ANNOUNCE_AGAIN: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(600)];

/// A file in no sample for this long is announced again with the next: the store may have closed
/// it, after [`UNUSED_MAX`].
const UNSAMPLED_MAX: Duration = Duration::from_secs(UNUSED_MAX.as_secs() / 3 * 2);

struct Entry {
    identity: FileIdentity,
    path: Box<[u8]>,
    /// Who has it mapped, and since when, as far as that is asked for: see [`is_reusable`].
    holders: Vec<(Pid, MonotonicTime)>,
    announced: u8,
    announce_after: MonotonicTime,
    /// The last time that it was in a sample, or was announced without one.
    sampled: MonotonicTime,
}

/// True for a file of a file system without a device and without generations of inodes, as overlays
/// are: inode numbers come again where files were removed, and the device number of an overlay that
/// was unmounted is given to the next. ext4 made from a directory has files without generation,
/// too, but gives one to each new file.
fn is_reusable(identity: &FileIdentity) -> bool {
    matches!(
        identity,
        FileIdentity::Inode {
            major: 0,
            generation: 0,
            ..
        }
    )
}

/// What files are known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileKey {
    identity: FileIdentity,
    /// Of the path by which two files of one identity are told apart; 0 where there are none.
    path_hash: u64,
}

impl FileKey {
    /// The key of a file that is mapped from `path`. An overlay of several file systems shows inode
    /// numbers of each under one device, as volumes of btrfs do.
    pub fn of(identity: FileIdentity, path: &[u8]) -> FileKey {
        let path_hash = match identity {
            FileIdentity::Inode { major: 0, .. } | FileIdentity::Inode { generation: 0, .. } => {
                let mut hasher = DefaultHasher::new();
                hasher.write(without_deleted(path));
                hasher.finish()
            }
            _ => 0,
        };
        FileKey {
            identity,
            path_hash,
        }
    }
}

/// Ids of files by identity.
#[derive(Default)]
pub struct FileTable {
    ids: HashMap<FileKey, FileId>,
    entries: HashMap<FileId, Entry>,
    next: u32,
    /// Bytes of the paths.
    path_bytes: usize,
    /// Files forgotten at the bound.
    pub forgotten: u64,
    /// Files announced for the first time.
    pub met: u64,
}

impl FileTable {
    /// The id of a file that is known.
    pub fn known(&self, key: FileKey) -> Option<FileId> {
        self.ids.get(&key).copied()
    }

    /// The data that identifies a file.
    pub fn identity(&self, file: FileId) -> Option<&FileIdentity> {
        self.entries.get(&file).map(|entry| &entry.identity)
    }

    /// The id of a file that `by` maps now: a new one, also where another was known by its key.
    pub fn add(&mut self, key: FileKey, path: &[u8], by: (Pid, MonotonicTime)) -> FileId {
        // Ids run out after years of containers that start programs all the time.
        while self.entries.contains_key(&FileId(self.next)) {
            self.next = self.next.wrapping_add(1);
        }
        let id = FileId(self.next);
        self.next = self.next.wrapping_add(1);
        let path: Box<[u8]> = without_deleted(path).into();
        self.path_bytes += path.len();
        let FileKey { identity, .. } = key;
        let holders = match is_reusable(&identity) {
            true => vec![by],
            false => Vec::new(),
        };
        let entry = Entry {
            identity,
            path,
            holders,
            announced: 0,
            announce_after: MonotonicTime(0),
            sampled: MonotonicTime(0),
        };
        self.ids.insert(key, id);
        self.entries.insert(id, entry);
        id
    }

    /// Who has a file mapped whose identity may soon be another's.
    pub fn holders(&mut self, file: FileId) -> Option<&mut Vec<(Pid, MonotonicTime)>> {
        let entry = self.entries.get_mut(&file)?;
        is_reusable(&entry.identity).then_some(&mut entry.holders)
    }

    /// True when files should be forgotten before more are added.
    pub fn is_full(&self) -> bool {
        self.entries.len() >= FILES_MAX || self.path_bytes >= PATH_BYTES_MAX
    }

    /// True when what is left is for processes with few files: one that maps without end would take
    /// the room of whatever starts next.
    pub fn is_crowded(&self) -> bool {
        self.entries.len() >= FILES_MAX / 8 * 7 || self.path_bytes >= PATH_BYTES_MAX / 8 * 7
    }

    /// Bytes of all paths.
    #[cfg(test)]
    pub fn path_bytes(&self) -> usize {
        self.path_bytes
    }

    /// True when a fourth of its room is free.
    pub fn has_room(&self) -> bool {
        self.entries.len() <= FILES_MAX / 4 * 3 && self.path_bytes <= PATH_BYTES_MAX / 4 * 3
    }

    /// Forgets the files that `used` does not name.
    pub fn retain(&mut self, used: impl Fn(FileId) -> bool) {
        let before = self.entries.len();
        let path_bytes = &mut self.path_bytes;
        self.entries.retain(|&id, entry| {
            let kept = used(id);
            *path_bytes -= if kept { 0 } else { entry.path.len() };
            kept
        });
        self.ids.retain(|_, &mut id| used(id));
        self.forgotten += (before - self.entries.len()) as u64;
    }

    /// Files known whose identity may soon be another's.
    pub fn reusable(&self) -> usize {
        let entries = self.entries.values();
        entries.filter(|entry| is_reusable(&entry.identity)).count()
    }

    /// Forgets those of them that `used` does not name.
    pub fn forget_reusable(&mut self, used: impl Fn(FileId) -> bool) {
        let entries = self.entries.iter();
        let gone = entries.filter(|(id, entry)| is_reusable(&entry.identity) && !used(**id));
        let gone: HashSet<FileId> = gone.map(|(&id, _)| id).collect();
        self.retain(|id| !gone.contains(&id));
    }

    /// Reports a file that has samples, or will have, to the store, unless it was reported lately.
    /// `send` returns false if the queue is full: the next sample tries again.
    pub fn announce(
        &mut self,
        id: FileId,
        mapping: &Mapping,
        pid: Pid,
        relatives: impl FnOnce() -> [Pid; RELATIVES],
        (now, has_sample): (MonotonicTime, bool),
        send: impl FnOnce(FileSeen) -> bool,
    ) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        let unused = has_sample && now.since(entry.sampled) >= UNSAMPLED_MAX;
        if now < entry.announce_after && !unused {
            if has_sample {
                entry.sampled = now;
            }
            return;
        }
        let seen = FileSeen {
            id,
            identity: entry.identity,
            path: entry.path.clone(),
            pid,
            range: (Avma(mapping.start), Avma(mapping.end)),
            relatives: relatives(),
        };
        if send(seen) {
            self.met += u64::from(entry.announced == 0);
            entry.sampled = now;
            let wait = ANNOUNCE_AGAIN.get(entry.announced as usize);
            entry.announce_after = wait.map_or(MonotonicTime(u64::MAX), |&wait| now.plus(wait));
            entry.announced = entry.announced.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::space::Backing;

    fn at(seconds: u64) -> MonotonicTime {
        MonotonicTime(seconds * 1_000_000_000)
    }

    fn add(table: &mut FileTable, identity: FileIdentity, path: &[u8]) -> FileId {
        table.add(FileKey::of(identity, path), path, (Pid(7), at(1)))
    }

    /// At these seconds, with or without a sample: is the file announced?
    fn check(times: &[(u64, bool, bool)]) {
        let mut table = FileTable::default();
        let identity = FileIdentity::Inode {
            major: 8,
            minor: 1,
            inode: 5,
            generation: 0,
        };
        let id = add(&mut table, identity, b"/bin/x");
        let mapping = Mapping {
            start: 0x1000,
            end: 0x2000,
            file_offset: 0,
            backing: Backing::File(id),
        };
        for &(second, has_sample, expected) in times {
            let mut told = false;
            let when = (at(second), has_sample);
            table.announce(
                id,
                &mapping,
                Pid(7),
                || [Pid(0); RELATIVES],
                when,
                |_| {
                    told = true;
                    true
                },
            );
            assert_eq!(told, expected, "at {second} s");
        }
    }

    #[test]
    fn of_files_of_no_process_those_are_forgotten_whose_identity_comes_again() {
        let mut table = FileTable::default();
        let inode = |major, inode, generation| FileIdentity::Inode {
            major,
            minor: 39,
            inode,
            generation,
        };
        let of_disk = add(&mut table, inode(254, 1, 9), b"/bin/disk");
        let in_memory = add(&mut table, inode(0, 1, 7), b"/dev/shm/x");
        assert_eq!(table.reusable(), 0);
        let ended = add(&mut table, inode(0, 2, 0), b"/bin/ended");
        let runs = add(&mut table, inode(0, 3, 0), b"/bin/runs");
        assert_eq!(table.reusable(), 2);
        table.forget_reusable(|id| id == runs);
        let left = [of_disk, in_memory, ended, runs].map(|id| table.identity(id).is_some());
        assert_eq!(left, [true, true, false, true]);
        assert_ne!(add(&mut table, inode(0, 2, 0), b"/bin/other"), ended);
    }

    #[test]
    fn files_of_several_layers_with_one_inode_number_are_told_apart_by_path() {
        let mut table = FileTable::default();
        let inode = |major, generation| FileIdentity::Inode {
            major,
            minor: 44,
            inode: 2,
            generation,
        };
        for (major, generation, is_one) in [(0, 0, false), (7, 0, false), (254, 9, true)] {
            let identity = inode(major, generation);
            let one = add(&mut table, identity, b"/bin/a");
            let known = |path: &[u8]| table.known(FileKey::of(identity, path)) == Some(one);
            assert_eq!(known(b"/bin/b"), is_one, "{identity:?}");
            assert!(known(b"/bin/a (deleted)"));
        }
    }

    #[test]
    fn a_file_in_use_is_announced_three_times() {
        check(&[(1, true, true), (5, true, false), (12, true, true)]);
        let often: Vec<_> = (1..60)
            .map(|n| (n * 30, true, [1, 2, 22].contains(&n)))
            .collect();
        check(&often);
    }

    #[test]
    fn a_file_sampled_again_after_a_while_is_announced_again() {
        check(&[
            (1, true, true),
            (12, true, true),
            (13, true, false),
            (12 + UNUSED_MAX.as_secs(), true, true),
            (13 + UNUSED_MAX.as_secs(), true, false),
        ]);
    }

    #[test]
    fn mapping_a_file_is_no_use_of_it() {
        let last = UNUSED_MAX.as_secs();
        check(&[
            (1, true, true),
            (12, true, true),
            (last - 2, false, false),
            (last, true, true),
        ]);
    }
}
