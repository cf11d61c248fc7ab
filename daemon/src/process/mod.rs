//! The process table: who runs, under which name, in which address space.
//!
//! It follows the record stream (fork, exec, comm, mmap, exit) in order of time, so a process that
//! lived between two drains is known as well as any other. [`scan`] reads /proc once at start, for
//! what is older than the daemon. Called by the sampler thread only; opens no files.

mod file_table;
pub mod looker;
pub mod maps;
pub mod scan;
pub mod scout;
pub mod space;

use crate::ids::{Avma, Comm, FileId, FileOffset, Pid, ProcessId, Tid};
use crate::jit::notice::{DumpSeen, Whose};
use crate::jit::reader::DUMPS_MAX;
use crate::perf::record::{MapFile, Mmap};
use crate::symbolize::files::{FileIdentity, FileSeen, RELATIVES};
use crate::symbolize::open;
use crate::time::Mono;
use crate::unwind::generated::{Generated, GeneratedRules};
use hashbrown::{HashMap, HashSet};
use profile::Unnamed;
use scan::ScannedProcess;
use space::{AddressSpace, Backing, Mapping};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

pub use file_table::FILES_MAX;
use file_table::FileTable;

/// Processes known at once. Linux allows 4 million pids; hosts have thousands. Beyond the bound new
/// ones are counted as unknown.
const PROCESSES_MAX: usize = 262_144;

/// Threads known by a name of their own. Beyond the bound a thread goes by its process's name.
const THREADS_MAX: usize = 1 << 20;

/// Time after which a full table looks for unused files again: it looks at every mapping of the host, some
/// milliseconds.
const FILES_RETRY: Duration = Duration::from_secs(10);

/// Files of one process that are announced before they have samples. Unit: files. Large desktop
/// programs map some hundred. Half of the queue of `fp-files`: a process that maps files by the
/// thousand leaves room for all others, and its own files are announced when they have samples.
const AHEAD_MAX: u32 = 512;

/// Mappings beyond which a process is looked over for new files once a second at most, not at each
/// sample after a change: it may change all the time.
const LOOKED_OVER_AT_ONCE_MAX: usize = 512;

/// See [`LOOKED_OVER_AT_ONCE_MAX`].
const LOOK_OVER_AGAIN: Duration = Duration::from_secs(1);

/// Jitdumps mapped by all processes that `fp-jit` was not told of yet, at the start of the daemon or in one
/// drain. Unit: files.
const DUMPS_UNTOLD_MAX: usize = 256;

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
    /// `files_added` of the space when all its files were announced.
    announced: u32,
    /// Files announced before they had samples; see `AHEAD_MAX`.
    ahead: u32,
    /// When a large space may be looked over for new files again.
    look_after: Mono,
    /// How to step over its generated code, where something is known of it.
    generated: Option<Arc<GeneratedRules>>,
    /// `fp-jit` was told of it.
    watched: bool,
    /// Jitdumps it mapped.
    dumps: u32,
}

impl Process {
    /// The executable mappings.
    pub fn space(&self) -> &AddressSpace {
        &self.space
    }

    /// True when `fp-jit` was told of it.
    pub fn is_watched(&self) -> bool {
        self.watched
    }

    /// True when all its threads have ended.
    pub fn has_ended(&self) -> bool {
        self.ended.is_some() && self.threads == 0
    }

    /// Whose generated code it is, for `fp-jit`.
    pub fn whose(&self) -> Whose {
        Whose {
            id: self.id,
            pid: self.pid,
            began: self.began,
        }
    }

    /// How to step over its generated code, where something is known of it.
    pub fn generated(&self) -> Option<&GeneratedRules> {
        self.generated.as_deref()
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
    /// Files refused at the bound, all others being in use.
    pub files_refused: u64,
    /// Processes with more files than are announced before they have samples.
    pub ahead_refused: u64,
    /// Processes set right from /proc after records were lost.
    pub repaired: u64,
    /// Jitdumps that nobody is told of: too many of one process, or at once.
    pub dumps_untold: u64,
}

/// True for the path of a file by whose mapping a runtime tells that it writes a jitdump.
pub(crate) fn is_dump_marker(path: &[u8]) -> bool {
    let name = open::base_name(path);
    let digits = name
        .strip_prefix(b"jit-")
        .and_then(|name| name.strip_suffix(b".dump"));
    path.starts_with(b"/")
        && digits.is_some_and(|digits| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit))
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
    /// Jitdumps mapped that `fp-jit` was not told of yet.
    dumps: Vec<DumpSeen>,
    next_id: u32,
    /// When unused files may be looked for again.
    files_retry: Mono,
    /// Time of the newest mapping.
    clock: Mono,
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
            dumps: Vec::new(),
            next_id: 0,
            files_retry: Mono(0),
            clock: Mono(0),
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
            let backing = self.backing(mapping.identity, mapping.private, &mapping.path);
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
        for mapping in &scanned.mappings {
            if let Some(identity) = mapping.identity {
                let range = (Avma(mapping.start), Avma(mapping.end));
                self.note_dump(scanned.pid, range, &mapping.path, identity);
            }
        }
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
            announced: 0,
            ahead: 0,
            look_after: Mono(0),
            generated: None,
            watched: false,
            dumps: 0,
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
        let (kernel, space, announced, ahead, generated) = match self.processes.get(&parent) {
            Some(parent) => {
                let (space, generated) = (Rc::clone(&parent.space), parent.generated.clone());
                (
                    parent.kernel,
                    space,
                    parent.announced,
                    parent.ahead,
                    generated,
                )
            }
            None => (false, Rc::default(), 0, 0, None),
        };
        self.create(pid, parent, comm, kernel, time, space);
        // What was announced of the parent need not be looked over again, and a process does not get
        // round the bound by forking.
        if let Some(child) = self.processes.get_mut(&pid) {
            (child.announced, child.ahead) = (announced, ahead);
            child.generated = generated;
        }
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
        self.clock = self.clock.max(time);
        let backing = self.backing(identity, mmap.private, mmap.path);
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
        if let Some(identity) = identity {
            let range = (Avma(mapping.start), Avma(mapping.end));
            self.note_dump(mmap.pid, range, mmap.path, identity);
        }
    }

    /// Remembers a mapping that is the marker of a jitdump until `fp-jit` is told.
    fn note_dump(&mut self, pid: Pid, range: (Avma, Avma), path: &[u8], identity: FileIdentity) {
        if !is_dump_marker(path) {
            return;
        }
        let Some(process) = self.processes.get_mut(&pid) else {
            return;
        };
        process.dumps = process.dumps.saturating_add(1);
        if process.dumps > DUMPS_MAX as u32 || self.dumps.len() >= DUMPS_UNTOLD_MAX {
            self.counts.dumps_untold += 1;
            return;
        }
        process.watched = true;
        self.dumps.push(DumpSeen {
            whose: process.whose(),
            range,
            path: path.into(),
            identity,
        });
    }

    /// Tells of the jitdumps mapped since the last call. `send` gives back what finds no room now.
    pub fn tell_of_dumps(&mut self, mut send: impl FnMut(DumpSeen) -> Option<DumpSeen>) {
        while let Some(seen) = self.dumps.pop() {
            if let Some(seen) = send(seen) {
                self.dumps.push(seen);
                return;
            }
        }
    }

    /// Notes that `fp-jit` was told of a process.
    pub fn watch(&mut self, pid: Pid) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.watched = true;
        }
    }

    /// What a mapping with this identity and path is. Paths are the kernel's words: a leading slash
    /// for files, brackets or `//anon` for memory.
    ///
    /// Files in memory (memfds, `/dev/shm`) hold generated code or programs. Loaders map programs for
    /// one process alone; runtimes that write code map it shared, or writing would not reach it.
    fn backing(&mut self, identity: Option<FileIdentity>, private: bool, path: &[u8]) -> Backing {
        if path == b"[vdso]" {
            return self.backing_file(FileIdentity::Vdso, path);
        }
        if path == b"[vsyscall]" || path == b"[uprobes]" {
            return Backing::Nothing(Unnamed::NoMapping);
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
            Some(identity @ FileIdentity::BuildId { .. }) => self.backing_file(identity, path),
            Some(identity) if is_program || !is_memory => self.backing_file(identity, path),
            _ => Backing::Jit,
        }
    }

    fn backing_file(&mut self, identity: FileIdentity, path: &[u8]) -> Backing {
        self.file(identity, path)
            .map_or(Backing::Nothing(Unnamed::Limit), Backing::File)
    }

    /// The id of a file; `None` when the table is full of files that are all in use.
    fn file(&mut self, identity: FileIdentity, path: &[u8]) -> Option<FileId> {
        if let Some(known) = self.files.known(&identity) {
            return Some(known);
        }
        if self.files.is_full() {
            if self.clock >= self.files_retry {
                self.files_retry = self.clock.plus(FILES_RETRY);
                self.forget_unused_files();
            }
            if self.files.is_full() {
                self.counts.files_refused += 1;
                return None;
            }
        }
        Some(self.files.id_of(identity, path))
    }

    fn forget_unused_files(&mut self) {
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

    /// Has the generated code of a process stepped over by these rules from now on.
    pub fn set_generated(&mut self, generated: Generated) {
        if let Some(process) = self.processes.get_mut(&generated.pid)
            && process.id == generated.process
        {
            process.generated = Some(generated.rules);
        }
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
        self.tell(pid, file, mapping, (now, true), send);
    }

    fn tell(
        &mut self,
        pid: Pid,
        file: FileId,
        mapping: &Mapping,
        when: (Mono, bool),
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
            .announce(file, mapping, pid, relatives, when, send);
    }

    /// Tells the store of the files that a process has mapped, when there are new ones: the callers
    /// of a sample are in other files than its leaf, and their unwind information takes a while. Of
    /// each process `AHEAD_MAX` at most; the others are announced when they have samples.
    pub fn announce_all(&mut self, pid: Pid, now: Mono, mut send: impl FnMut(FileSeen) -> bool) {
        let Some(process) = self.processes.get(&pid) else {
            return;
        };
        let added = process.space.files_added();
        if process.announced == added || now < process.look_after {
            return;
        }
        if process.ahead >= AHEAD_MAX {
            return;
        }
        let (space, mut all_sent, mut ahead) = (Rc::clone(&process.space), true, process.ahead);
        for mapping in space.iter() {
            let Backing::File(file) = mapping.backing else {
                continue;
            };
            self.tell(pid, file, mapping, (now, false), |seen| {
                let sent = send(seen);
                all_sent &= sent;
                ahead += u32::from(sent);
                sent
            });
            if !all_sent || ahead >= AHEAD_MAX {
                break;
            }
        }
        self.counts.ahead_refused += u64::from(ahead >= AHEAD_MAX);
        if let Some(process) = self.processes.get_mut(&pid) {
            process.ahead = ahead;
            if all_sent {
                process.announced = added;
            }
            if space.len() > LOOKED_OVER_AT_ONCE_MAX {
                process.look_after = now.plus(LOOK_OVER_AGAIN);
            }
        }
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
mod tests;
