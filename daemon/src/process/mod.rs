//! The process table: who runs, under which name, in which address space.
//!
//! It follows the record stream (fork, exec, comm, mmap, exit) in order of time, so a process that
//! lived between two drains is known as well as any other. [`scan`] reads /proc once at start, for
//! what is older than the daemon. Called by the sampler thread only; opens no files.

mod file_table;
pub mod scan;
pub mod scout;
pub mod space;

use crate::ids::{Avma, Comm, FileId, FileOffset, Pid, ProcessId, Tid};
use crate::perf::record::{MapFile, Mmap};
use crate::symbolize::files::{FileIdentity, FileSeen, RELATIVES};
use crate::time::Mono;
use hashbrown::{HashMap, HashSet};
use profile::Unnamed;
use scan::ScannedProcess;
use space::{AddressSpace, Backing, Mapping};
use std::rc::Rc;

use file_table::FileTable;

/// Processes known at once. Linux allows 4 million pids; hosts have thousands. Beyond the bound new
/// ones are counted as unknown.
const PROCESSES_MAX: usize = 262_144;

/// Threads known by a name of their own. Beyond the bound a thread goes by its process's name.
const THREADS_MAX: usize = 1 << 20;

/// Build ids are 20 bytes at most (SHA-1); longer ones are cut by the kernel.
const BUILD_ID_BYTES: usize = 20;

/// A process of one lifetime and one executable.
pub struct Process {
    /// Changes with each lifetime and each exec.
    pub id: ProcessId,
    /// Its pid.
    pub pid: Pid,
    /// Its creator, while it is remembered.
    pub parent: Pid,
    /// Name of the main thread.
    pub comm: Comm,
    /// True for threads of the kernel.
    pub kernel: bool,
    /// Begin of this lifetime or exec generation; zero when older than the daemon.
    pub began: Mono,
    /// When its main thread ended.
    pub ended: Option<Mono>,
    /// Threads beside the main one: a process whose main thread ended lives on while there are any.
    threads: u32,
    /// Executable mappings, shared with a forked child until one of both changes.
    space: Rc<AddressSpace>,
}

impl Process {
    /// The executable mappings.
    pub fn space(&self) -> &AddressSpace {
        &self.space
    }
}

/// What the table had to refuse or guess, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessCounts {
    /// Processes met in a sample that no record had told of.
    pub unannounced: u64,
    /// Processes refused at the bound.
    pub refused: u64,
    /// Mappings refused at the bound of one process.
    pub mappings_refused: u64,
    /// Files forgotten at the bound.
    pub files_forgotten: u64,
    /// Processes set right from /proc after records were lost.
    pub repaired: u64,
}

/// True when /proc shows the program that is known: every file it has mapped is where it was told of.
fn agrees(known: &Process, scanned: &ScannedProcess) -> bool {
    let mut files = scanned
        .mappings
        .iter()
        .filter(|mapping| mapping.identity.is_some());
    known.kernel == scanned.kernel
        && files.all(|mapping| {
            known.space.find(Avma(mapping.start)).is_some_and(|found| {
                matches!(found.backing, Backing::File(_))
                    && found.offset_of(Avma(mapping.start)) == FileOffset(mapping.file_offset)
            })
        })
}

/// All processes.
pub struct ProcessTable {
    processes: HashMap<Pid, Process>,
    /// Names of threads other than main ones.
    threads: HashMap<Tid, (Pid, Comm)>,
    files: FileTable,
    /// Pids whose main thread ended, swept at the end of a batch.
    ended: Vec<Pid>,
    next_id: u32,
    counts: ProcessCounts,
}

impl Default for ProcessTable {
    fn default() -> Self {
        Self::new()
    }
}

impl ProcessTable {
    /// An empty table, knowing only the idle task.
    pub fn new() -> ProcessTable {
        let mut table = ProcessTable {
            processes: HashMap::new(),
            threads: HashMap::new(),
            files: FileTable::default(),
            ended: Vec::new(),
            next_id: 0,
            counts: ProcessCounts::default(),
        };
        table.create(
            Pid(0),
            Pid(0),
            Comm::from_bytes(b"swapper"),
            true,
            Mono(0),
            Rc::default(),
        );
        table
    }

    /// Takes in a process that was found in /proc. What the record stream told of it stays.
    pub fn adopt(&mut self, scanned: &ScannedProcess) {
        if !self.processes.contains_key(&scanned.pid) {
            self.take_in(scanned, Mono(0));
        }
    }

    /// Sets right what lost records left wrong, by a reading of /proc that began at `asked`: processes
    /// that are gone end, and those that are new or run another program than was known are new.
    pub fn repair(&mut self, scanned: &[ScannedProcess], asked: Mono) {
        let found: HashSet<Pid> = scanned.iter().map(|process| process.pid).collect();
        for process in self.processes.values_mut() {
            let older = process.began < asked && process.pid != Pid(0);
            if older && process.ended.is_none() && !found.contains(&process.pid) {
                process.ended = Some(asked);
                process.threads = 0;
                self.ended.push(process.pid);
            }
        }
        for process in scanned {
            if let Some(known) = self.processes.get_mut(&process.pid) {
                if known.began >= asked {
                    continue;
                }
                if agrees(known, process) {
                    known.comm = process.comm;
                    continue;
                }
            }
            self.counts.repaired += 1;
            self.processes.remove(&process.pid);
            self.take_in(process, asked);
        }
    }

    fn take_in(&mut self, scanned: &ScannedProcess, began: Mono) {
        let mut space = AddressSpace::default();
        for mapping in &scanned.mappings {
            let backing = self.backing(mapping.identity, &mapping.path);
            space.insert(Mapping {
                start: mapping.start,
                end: mapping.end,
                file_offset: mapping.file_offset,
                backing,
            });
        }
        self.create(
            scanned.pid,
            scanned.parent,
            scanned.comm,
            scanned.kernel,
            began,
            Rc::new(space),
        );
        for &(tid, comm) in &scanned.threads {
            self.name_thread(scanned.pid, tid, comm);
        }
    }

    fn create(
        &mut self,
        pid: Pid,
        parent: Pid,
        comm: Comm,
        kernel: bool,
        began: Mono,
        space: Rc<AddressSpace>,
    ) {
        if self.processes.len() >= PROCESSES_MAX && !self.processes.contains_key(&pid) {
            self.counts.refused += 1;
            return;
        }
        let id = self.next_id();
        let process = Process {
            id,
            pid,
            parent,
            comm,
            kernel,
            began,
            ended: None,
            threads: 0,
            space,
        };
        self.processes.insert(pid, process);
    }

    fn next_id(&mut self) -> ProcessId {
        self.next_id = self.next_id.wrapping_add(1);
        ProcessId(self.next_id)
    }

    fn name_thread(&mut self, pid: Pid, tid: Tid, comm: Comm) {
        if let Some(known) = self.threads.get_mut(&tid)
            && known.0 == pid
        {
            known.1 = comm;
        } else if self.threads.len() < THREADS_MAX {
            self.threads.insert(tid, (pid, comm));
            if let Some(process) = self.processes.get_mut(&pid) {
                process.threads += 1;
            }
        }
    }

    fn forget_thread(&mut self, tid: Tid) {
        if let Some((pid, _)) = self.threads.remove(&tid)
            && let Some(process) = self.processes.get_mut(&pid)
        {
            process.threads = process.threads.saturating_sub(1);
        }
    }

    /// A new thread or process.
    pub fn fork(&mut self, pid: Pid, tid: Tid, parent: Pid, parent_tid: Tid, time: Mono) {
        let comm = self.thread_comm(parent, parent_tid);
        if pid == parent {
            self.name_thread(pid, tid, comm);
            return;
        }
        self.forget_thread(tid);
        let (kernel, space) = match self.processes.get(&parent) {
            Some(parent) => (parent.kernel, Rc::clone(&parent.space)),
            None => (false, Rc::default()),
        };
        self.create(pid, parent, comm, kernel, time, space);
    }

    /// A task has a new name; at exec everything else is new too.
    pub fn comm(&mut self, pid: Pid, tid: Tid, comm: Comm, exec: bool, time: Mono) {
        if exec {
            let parent = self
                .processes
                .get(&pid)
                .map_or(Pid(0), |process| process.parent);
            self.forget_thread(tid);
            self.create(pid, parent, comm, false, time, Rc::default());
        } else if pid.0 != tid.0 {
            self.name_thread(pid, tid, comm);
        } else if let Some(process) = self.processes.get_mut(&pid) {
            process.comm = comm;
        }
    }

    /// A thread has ended. A process is kept until its last samples have been read.
    pub fn exit(&mut self, pid: Pid, tid: Tid, time: Mono) {
        self.forget_thread(tid);
        if pid.0 == tid.0
            && let Some(process) = self.processes.get_mut(&pid)
        {
            process.ended = Some(time);
            self.ended.push(pid);
        }
    }

    /// A process has a new executable mapping.
    pub fn mmap(&mut self, mmap: &Mmap<'_>, time: Mono) {
        let identity = match mmap.file {
            MapFile::BuildId(id) if !id.is_empty() && id.len() <= BUILD_ID_BYTES => {
                let mut bytes = [0; BUILD_ID_BYTES];
                bytes[..id.len()].copy_from_slice(id);
                Some(FileIdentity::BuildId {
                    bytes,
                    len: id.len() as u8,
                })
            }
            MapFile::BuildId(_) | MapFile::Inode { inode: 0, .. } => None,
            MapFile::Inode {
                major,
                minor,
                inode,
                generation,
            } => Some(FileIdentity::Inode {
                major,
                minor,
                inode,
                generation,
            }),
        };
        let backing = self.backing(identity, mmap.path);
        if !self.processes.contains_key(&mmap.pid) {
            self.counts.unannounced += 1;
            self.create(
                mmap.pid,
                Pid(0),
                Comm::default(),
                false,
                time,
                Rc::default(),
            );
        }
        let Some(process) = self.processes.get_mut(&mmap.pid) else {
            return;
        };
        let mapping = Mapping {
            start: mmap.start,
            end: mmap.start.saturating_add(mmap.len),
            file_offset: mmap.file_offset,
            backing,
        };
        if !Rc::make_mut(&mut process.space).insert(mapping) {
            self.counts.mappings_refused += 1;
        }
    }

    /// What a mapping with this identity and path is. Paths are the kernel's words: a leading slash
    /// for files, brackets or `//anon` for memory. Shared memory and memfds without a build id hold
    /// generated code.
    fn backing(&mut self, identity: Option<FileIdentity>, path: &[u8]) -> Backing {
        if path == b"[vdso]" {
            return Backing::File(self.file(FileIdentity::Vdso, path));
        }
        if path == b"[vsyscall]" || path == b"[uprobes]" {
            return Backing::Nothing(Unnamed::NoMapping);
        }
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
                Backing::File(self.file(identity, path))
            }
            Some(identity) if !is_memory => Backing::File(self.file(identity, path)),
            _ => Backing::Jit,
        }
    }

    fn file(&mut self, identity: FileIdentity, path: &[u8]) -> FileId {
        if self.files.is_full() {
            let spaces = self
                .processes
                .values()
                .flat_map(|process| process.space.iter());
            let used: HashSet<FileId> = spaces
                .filter_map(|mapping| match mapping.backing {
                    Backing::File(file) => Some(file),
                    _ => None,
                })
                .collect();
            self.files.retain(|id| used.contains(&id));
            self.counts.files_forgotten = self.files.forgotten;
        }
        self.files.id_of(identity, path)
    }

    /// Makes up a process that has a sample but that no record told of, so that its time is counted.
    pub fn meet(&mut self, pid: Pid, time: Mono) {
        if !self.processes.contains_key(&pid) {
            self.counts.unannounced += 1;
            self.create(pid, Pid(0), Comm::default(), false, time, Rc::default());
        }
    }

    /// A process by pid.
    pub fn get(&self, pid: Pid) -> Option<&Process> {
        self.processes.get(&pid)
    }

    /// Name of a thread.
    pub fn thread_comm(&self, pid: Pid, tid: Tid) -> Comm {
        if pid.0 != tid.0
            && let Some(&(_, comm)) = self.threads.get(&tid)
        {
            return comm;
        }
        self.processes
            .get(&pid)
            .map_or(Comm::default(), |process| process.comm)
    }

    /// Tells the store of a file with samples; see `FileTable::announce`.
    pub fn announce(
        &mut self,
        pid: Pid,
        file: FileId,
        mapping: &Mapping,
        now: Mono,
        send: impl FnOnce(FileSeen) -> bool,
    ) {
        let processes = &self.processes;
        let relatives = || {
            let mut at = pid;
            [(); RELATIVES].map(|()| {
                at = processes.get(&at).map_or(Pid(0), |process| process.parent);
                at
            })
        };
        self.files
            .announce(file, mapping, pid, relatives, now, send);
    }

    /// Forgets the processes that ended before `before`: their main thread and all others.
    pub fn sweep(&mut self, before: Mono) {
        let processes = &mut self.processes;
        self.ended.retain(|pid| match processes.get(pid) {
            Some(process) => match process.ended {
                Some(ended) if ended < before && process.threads == 0 => {
                    processes.remove(pid);
                    false
                }
                Some(_) => true,
                None => false,
            },
            None => false,
        });
    }

    /// Number of processes known.
    pub fn len(&self) -> usize {
        self.processes.len()
    }

    /// True when none is known.
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    /// What was refused or guessed.
    pub fn counts(&self) -> ProcessCounts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_map(pid: u32, start: u64, inode: u64) -> Mmap<'static> {
        Mmap {
            pid: Pid(pid),
            start,
            len: 0x1000,
            file_offset: 0,
            file: MapFile::Inode {
                major: 8,
                minor: 1,
                inode,
                generation: 0,
            },
            path: b"/usr/bin/thing",
        }
    }

    fn fork(table: &mut ProcessTable, parent: u32, pid: u32, time: u64) {
        table.fork(Pid(pid), Tid(pid), Pid(parent), Tid(parent), Mono(time));
    }

    #[test]
    fn a_forked_child_keeps_its_parents_mappings_when_the_parent_changes_its_own() {
        let mut table = ProcessTable::new();
        fork(&mut table, 1, 10, 1);
        table.mmap(&file_map(10, 0x1000, 5), Mono(2));
        fork(&mut table, 10, 11, 3);
        table.mmap(&file_map(10, 0x1000, 6), Mono(4));
        let backing = |pid: u32| {
            table.get(Pid(pid)).and_then(|process| {
                process
                    .space()
                    .find(Avma(0x1800))
                    .map(|mapping| mapping.backing)
            })
        };
        assert!(backing(10).is_some());
        assert_ne!(backing(10), backing(11));
    }

    #[test]
    fn exec_is_a_new_process_with_an_empty_address_space() {
        let mut table = ProcessTable::new();
        fork(&mut table, 1, 10, 1);
        table.mmap(&file_map(10, 0x1000, 5), Mono(2));
        let before = table.get(Pid(10)).map(|process| process.id);
        table.comm(Pid(10), Tid(10), Comm::from_bytes(b"new"), true, Mono(3));
        let process = table.get(Pid(10)).expect("still there");
        assert_ne!(Some(process.id), before);
        assert_eq!(process.comm, Comm::from_bytes(b"new"));
        assert!(process.space().find(Avma(0x1800)).is_none());
    }

    #[test]
    fn a_pid_used_again_before_the_sweep_is_a_new_process() {
        let mut table = ProcessTable::new();
        fork(&mut table, 1, 10, 1);
        let first = table.get(Pid(10)).map(|process| process.id);
        table.exit(Pid(10), Tid(10), Mono(2));
        fork(&mut table, 1, 10, 3);
        table.sweep(Mono(100));
        let second = table.get(Pid(10)).map(|process| process.id);
        assert!(second.is_some());
        assert_ne!(first, second);
    }

    #[test]
    fn an_ended_process_stays_until_its_last_samples_are_read() {
        let mut table = ProcessTable::new();
        fork(&mut table, 1, 10, 1);
        table.exit(Pid(10), Tid(10), Mono(50));
        table.sweep(Mono(50));
        assert!(table.get(Pid(10)).is_some());
        table.sweep(Mono(51));
        assert!(table.get(Pid(10)).is_none());
    }

    #[test]
    fn the_end_of_a_thread_does_not_end_its_process() {
        let mut table = ProcessTable::new();
        fork(&mut table, 1, 10, 1);
        table.fork(Pid(10), Tid(12), Pid(10), Tid(10), Mono(2));
        table.comm(
            Pid(10),
            Tid(12),
            Comm::from_bytes(b"worker"),
            false,
            Mono(3),
        );
        assert_eq!(
            table.thread_comm(Pid(10), Tid(12)),
            Comm::from_bytes(b"worker")
        );
        table.exit(Pid(10), Tid(12), Mono(4));
        table.sweep(Mono(100));
        assert!(table.get(Pid(10)).is_some());
    }

    #[test]
    fn a_process_whose_main_thread_ended_lives_on_with_its_other_threads() {
        let mut table = ProcessTable::new();
        fork(&mut table, 1, 10, 1);
        table.fork(Pid(10), Tid(12), Pid(10), Tid(10), Mono(2));
        table.exit(Pid(10), Tid(10), Mono(3));
        table.sweep(Mono(100));
        assert!(table.get(Pid(10)).is_some());
        table.exit(Pid(10), Tid(12), Mono(101));
        table.sweep(Mono(200));
        assert!(table.get(Pid(10)).is_none());
    }

    fn scanned(pid: u32, start: u64, inode: u64) -> ScannedProcess {
        let mapping = scan::ScannedMapping {
            start,
            end: start + 0x1000,
            file_offset: 0,
            identity: Some(FileIdentity::Inode {
                major: 8,
                minor: 1,
                inode,
                generation: 0,
            }),
            path: b"/usr/bin/thing"[..].into(),
        };
        ScannedProcess {
            pid: Pid(pid),
            parent: Pid(1),
            comm: Comm::from_bytes(b"thing"),
            kernel: false,
            mappings: vec![mapping],
            threads: Vec::new(),
        }
    }

    #[test]
    fn a_process_whose_records_were_lost_is_learnt_from_proc() {
        let mut table = ProcessTable::new();
        table.meet(Pid(10), Mono(5));
        table.repair(&[scanned(10, 0x1000, 5)], Mono(9));
        let process = table.get(Pid(10)).expect("there");
        assert_eq!(process.comm, Comm::from_bytes(b"thing"));
        assert!(process.space().find(Avma(0x1800)).is_some());
    }

    #[test]
    fn a_repair_leaves_alone_what_it_finds_right_and_what_is_newer() {
        let mut table = ProcessTable::new();
        fork(&mut table, 1, 10, 1);
        table.mmap(&file_map(10, 0x1000, 5), Mono(2));
        fork(&mut table, 1, 11, 20);
        let ids = |table: &ProcessTable| [10, 11].map(|pid| table.get(Pid(pid)).map(|p| p.id));
        let before = ids(&table);
        table.repair(&[scanned(10, 0x1000, 5)], Mono(9));
        table.sweep(Mono(100));
        assert_eq!(ids(&table), before);
        assert_eq!(table.counts().repaired, 0);
    }

    #[test]
    fn a_repair_ends_what_is_gone() {
        let mut table = ProcessTable::new();
        fork(&mut table, 1, 10, 1);
        table.repair(&[], Mono(9));
        table.sweep(Mono(100));
        assert!(table.get(Pid(10)).is_none());
    }

    #[test]
    fn anonymous_executable_memory_is_generated_code() {
        let mut table = ProcessTable::new();
        fork(&mut table, 1, 10, 1);
        let anonymous = MapFile::Inode {
            major: 0,
            minor: 0,
            inode: 0,
            generation: 0,
        };
        table.mmap(
            &Mmap {
                file: anonymous,
                path: b"//anon",
                ..file_map(10, 0x5000, 0)
            },
            Mono(2),
        );
        let process = table.get(Pid(10)).expect("there");
        let backing = process
            .space()
            .find(Avma(0x5800))
            .map(|mapping| mapping.backing);
        assert_eq!(backing, Some(Backing::Jit));
    }
}
