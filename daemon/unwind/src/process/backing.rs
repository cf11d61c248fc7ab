//! Which file a mapping is of, and when one file is another: where inodes have no generation, the
//! same device and inode number may be a new file's.

use super::*;

/// Time after which a full table looks for unused files again: it looks at every mapping of the
/// host, some milliseconds.
pub(super) const FILES_RETRY: Duration = Duration::from_secs(10);

/// Files whose identity may be another's later that are known at once: in containers that start
/// programs all the time every start is one. Beyond it those of no process are forgotten.
const REUSABLE_MAX: usize = 4096;

/// How often their number is looked at.
const REUSABLE_RETRY: Duration = Duration::from_secs(60);

/// Processes that are remembered with a file whose identity may be another's later.
const HOLDERS_MAX: usize = 4;

/// A process maps all parts of a file within this time. Beyond it a second mapping may be of
/// another file in the place of the first.
const MAPPED_TOGETHER_MAX: Duration = Duration::from_secs(1);

impl ProcessTable {
    /// What a mapping with this identity and path is. Paths are the kernel's words: a leading slash
    /// for files, brackets or `//anon` for memory.
    ///
    /// Files in memory (memfds, `/dev/shm`) hold generated code or programs. Loaders map programs
    /// for one process alone; runtimes that write code map it shared, or writing would not reach
    /// it.
    ///
    /// `many`: the process has so many mappings that the last room in the table of files is not for
    /// it.
    ///
    /// `by`: who maps it, and when.
    pub(super) fn backing(
        &mut self,
        identity: Option<FileIdentity>,
        private: bool,
        path: &[u8],
        by: (Pid, MonotonicTime),
        many: bool,
    ) -> Backing {
        if path == b"[vdso]" {
            return self.backing_file(FileIdentity::Vdso, path, by, false);
        }
        if path == b"[vsyscall]" || path == b"[uprobes]" {
            return Backing::Nothing(UnnamedReason::NoMapping);
        }
        let in_memory = [&b"/memfd:"[..], b"/dev/shm/"];
        let is_program = private && in_memory.iter().any(|place| path.starts_with(place));
        let is_memory = !path.starts_with(b"/")
            || [
                &b"//"[..],
                b"/memfd:",
                b"/dev/",
                b"/SYSV",
                b"/anon_hugepage",
            ]
            .iter()
            .any(|memory| path.starts_with(memory));
        match identity {
            Some(identity @ FileIdentity::BuildId { .. }) => {
                self.backing_file(identity, path, by, many)
            }
            Some(identity) if is_program || !is_memory => {
                self.backing_file(identity, path, by, many)
            }
            _ => Backing::Jit,
        }
    }

    fn backing_file(
        &mut self,
        identity: FileIdentity,
        path: &[u8],
        by: (Pid, MonotonicTime),
        many: bool,
    ) -> Backing {
        self.file(identity, path, by, many)
            .map_or(Backing::Nothing(UnnamedReason::Limit), Backing::File)
    }

    /// The id of a file; `None` when the table is full of files that are all in use, for a process
    /// with `many` when it is nearly so.
    fn file(
        &mut self,
        identity: FileIdentity,
        path: &[u8],
        by: (Pid, MonotonicTime),
        many: bool,
    ) -> Option<FileId> {
        let key = FileKey::of(identity, path);
        if let Some(known) = self.files.known(key)
            && self.is_still(known, by)
        {
            return Some(known);
        }
        let is_full = |files: &FileTable| files.is_full() || many && files.is_crowded();
        if is_full(&self.files) {
            if self.clock >= self.files_retry {
                self.files_retry = self.clock.plus(FILES_RETRY);
                self.forget_files();
            }
            if is_full(&self.files) {
                self.counts.files_refused += 1;
                return None;
            }
        }
        Some(self.files.add(key, path, by))
    }

    /// False when a file may have been removed and its identity given to another, which `by` maps
    /// now. A file is not removed while a process has it mapped.
    fn is_still(&mut self, file: FileId, by: (Pid, MonotonicTime)) -> bool {
        let Some(holders) = self.files.holders(file) else {
            return true;
        };
        holders.retain(|&(pid, since)| match pid == by.0 {
            // It may have closed the file: that leaves no record.
            true => by.1.since(since) <= MAPPED_TOGETHER_MAX,
            false => {
                let process = self.processes.get(&pid);
                process.is_some_and(|it| it.ended.is_none() && it.started <= since)
            }
        });
        if holders.is_empty() {
            return false;
        }
        if holders.len() < HOLDERS_MAX && holders.iter().all(|&(pid, _)| pid != by.0) {
            holders.push(by);
        }
        true
    }

    /// Makes room in the table of files: those of no process go, then those of the processes that
    /// have most.
    fn forget_files(&mut self) {
        self.forget_unused_files();
        for fair in FILES_FAIR {
            if self.files.has_room() {
                return;
            }
            // What processes share they share after it too.
            let mut seen: HashMap<*const AddressSpace, Shortened> = HashMap::new();
            for process in self.processes.values_mut() {
                if process.space.len() <= fair {
                    continue;
                }
                let space = &process.space;
                let shortened = seen.entry(Rc::as_ptr(space)).or_insert_with(|| {
                    let shorter = space.with_first_files(fair);
                    self.counts.files_refused +=
                        shorter.as_ref().map_or(0, |(_, given_up)| *given_up);
                    let shorter = shorter.map(|(shorter, _)| Rc::new(shorter));
                    (Rc::clone(space), shorter)
                });
                if let (_, Some(shorter)) = shortened {
                    process.space = Rc::clone(shorter);
                }
            }
            drop(seen);
            self.forget_unused_files();
        }
    }

    fn forget_unused_files(&mut self) {
        let used = self.used_files();
        self.files.retain(|id| used.contains(&id));
        self.counts.files_forgotten = self.files.forgotten;
    }

    /// Files that a process has mapped.
    fn used_files(&self) -> HashSet<FileId> {
        let mut used = HashSet::new();
        // What processes share is looked at once.
        let mut seen: HashSet<*const AddressSpace> = HashSet::new();
        for process in self.processes.values() {
            if seen.insert(Rc::as_ptr(&process.space)) {
                let mapped = process.space.iter();
                used.extend(mapped.filter_map(|mapping| mapping.backing.file()));
            }
        }
        used
    }

    /// Forgets files of no process, now and then, if their identity may soon be another file's.
    pub(super) fn forget_reusable_files(&mut self, now: MonotonicTime) {
        if now < self.reusable_retry {
            return;
        }
        self.reusable_retry = now.plus(REUSABLE_RETRY);
        if self.files.reusable() > REUSABLE_MAX {
            let used = self.used_files();
            self.files.forget_reusable(|id| used.contains(&id));
            self.counts.files_forgotten = self.files.forgotten;
        }
    }
}
