//! The process table: which processes run, under which name, in which address space.
//!
//! It follows the record stream (fork, exec, comm, mmap, exit) in order of time, so a process that
//! lived only between two drains is known as well as any other. [`scan`] reads /proc once at start,
//! for processes older than the daemon. Called by the sampler thread only; opens no files.

mod backing;
mod file_table;
mod jitdump;
pub mod maps;
mod repair;
pub mod scan;
pub mod space;

use crate::info::generated::{Generated, GeneratedRules};
use hashbrown::{HashMap, HashSet};
use host::ids::{Avma, Comm, FileId, FileOffset, Pid, ProcessId, Tid};
use host::time::MonotonicTime;
use perf::record::{MapFile, Mmap};
use profile::UnnamedReason;
use scan::{Scan, ScannedMapping, ScannedProcess};
use space::{AddressSpace, Backing, Mapping, SpaceBytes};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use symbolize::files::{FileIdentity, FileSeen, RELATIVES};
use symbolize::open;

pub use file_table::FILES_MAX;
use file_table::{FileKey, FileTable};
pub use jitdump::{DUMPS_MAX, DumpSeen, ProcessInstance};

/// Processes known at once. Linux allows 4 million pids; hosts have thousands. Beyond the bound new
/// ones are counted as unknown.
const PROCESSES_MAX: usize = 262_144;

/// Threads known, over all processes: 64 MiB at most. Beyond the bound a thread goes by its
/// process's name, and the end of the process is learnt from /proc.
const THREADS_MAX: usize = 1 << 20;

/// What all address spaces may take. Unit: bytes, at 32 a mapping: 10,000 processes with 200
/// executable mappings, each a space of its own. At the bound a process with more than
/// `MAPPINGS_FAIR` that maps yet more loses what is known of its mappings, and its code has no
/// names.
pub const SPACE_BYTES_MAX: usize = 64 << 20;

/// As [`SPACE_BYTES_MAX`], for processes with few mappings: room for those that start while others
/// have taken the rest.
const SPACE_BYTES_ALL_MAX: usize = SPACE_BYTES_MAX / 2 * 3;

/// Mappings that a process may have in any case. Programs have some 20, large ones 150.
const MAPPINGS_FAIR: usize = 256;

/// Shares of the table of files that a process may keep when it is full: of who has more only the
/// files stay that were met first, its program and libraries; first of those with most.
const FILES_FAIR: [usize; 4] = [2048, 1024, 512, 256];

/// Ends seen while /proc is read. Unit: threads of 9 bytes. A scan takes a second where 10,000 end
/// in it. Beyond the bound nobody is taken from the scan, and another is asked for.
const EXITS_MAX: usize = 1 << 17;

/// How long a process is remembered after it reported its end. If others have the CPU, its last
/// instructions in the kernel may run much later, and a sample of them would look like an unknown
/// process, for which all of /proc is read.
const EXITING_MAX: Duration = Duration::from_secs(10);

/// Most of these: 4 MiB, and what a host has that ends 1,600 processes a second. Beyond it the
/// oldest are forgotten sooner; who still has a sample then is counted as unannounced.
const EXITING_PROCESSES_MAX: usize = 16_384;

/// Files of one process that are announced before they have samples. Unit: files. Large desktop
/// programs map some hundred. Half of the queue of `fp-files`: a process that maps files by the
/// thousand leaves room for all others, and its own files are announced when they have samples.
const AHEAD_MAX: u32 = 512;

/// Mappings beyond which a process is looked over for new files once a second at most, not at each
/// sample after a change: it may change all the time.
const LOOKED_OVER_AT_ONCE_MAX: usize = 512;

/// See [`LOOKED_OVER_AT_ONCE_MAX`].
const LOOK_OVER_AGAIN: Duration = Duration::from_secs(1);

/// Most mapped jitdumps of all processes that were not reported to `fp-jit` yet, at the start of
/// the daemon or in one drain. Unit: files.
const DUMPS_UNTOLD_MAX: usize = 256;

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
    /// Start of this lifetime or exec generation; zero when older than the daemon.
    pub started: MonotonicTime,
    /// When its main thread ended.
    pub ended: Option<MonotonicTime>,
    /// Threads besides the main one: a process with an ended main thread lives on while there are
    /// any.
    threads: HashMap<Tid, Thread>,
    /// It may have threads that are not in `threads`; the next reading of /proc will show them.
    uncounted: bool,
    /// When it got its name.
    named: MonotonicTime,
    /// When it last mapped something.
    mapped: MonotonicTime,
    /// Executable mappings, shared with a forked child until one of both changes.
    space: Rc<AddressSpace>,
    /// `files_added` of the space when all its files were announced.
    announced: u32,
    /// Files announced before they had samples; see `AHEAD_MAX`.
    ahead: u32,
    /// When a large space may be looked over for new files again.
    look_after: MonotonicTime,
    /// How to step over its generated code. `None` until it was looked for, or is given up.
    generated: Option<Arc<GeneratedRules>>,
    /// It was reported to `fp-jit`.
    watched: bool,
    /// Jitdumps it mapped.
    dumps: u32,
}

/// An address space, kept so that none other gets its address, and what is left of it if it is to
/// have fewer files.
type Shortened = (Rc<AddressSpace>, Option<Rc<AddressSpace>>);

/// A thread other than the main one.
#[derive(Clone, Copy, Debug)]
struct Thread {
    comm: Comm,
    /// When it started or got its name, whichever was last.
    since: MonotonicTime,
}

impl Process {
    /// The executable mappings.
    pub fn space(&self) -> &AddressSpace {
        &self.space
    }

    /// True if it was reported to `fp-jit`.
    pub fn is_watched(&self) -> bool {
        self.watched
    }

    /// True when all its threads have ended.
    pub fn has_ended(&self) -> bool {
        self.ended.is_some() && self.threads.is_empty() && !self.uncounted
    }

    /// The process instance to which generated code belongs, for `fp-jit`.
    pub fn whose(&self) -> ProcessInstance {
        ProcessInstance {
            id: self.id,
            pid: self.pid,
            started: self.started,
        }
    }

    /// How to step over its generated code. `None` until it was looked for, or is given up.
    pub fn generated(&self) -> Option<&GeneratedRules> {
        self.generated.as_deref()
    }
}

/// Counters of what the table rejected or guessed, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessCounts {
    /// Processes seen in a sample but not reported by any record.
    pub unannounced: u64,
    /// Processes refused at the bound.
    pub refused: u64,
    /// Mappings refused at the bound of one process, or of all.
    pub mappings_refused: u64,
    /// Times a process lost what was known of its mappings, at the bounds of all mappings and
    /// files.
    pub spaces_forgotten: u64,
    /// Threads that go by their process's name, at the bound.
    pub threads_refused: u64,
    /// Processes that ended unseen: their records were lost, and they were not in /proc any more.
    pub ends_unseen: u64,
    /// The same of threads.
    pub thread_ends_unseen: u64,
    /// Main threads that ended while it was not known what other threads there are: /proc is read
    /// again.
    pub ends_uncertain: u64,
    /// Readings of /proc from which nobody was taken: more threads ended meanwhile than are
    /// remembered.
    pub scans_outrun: u64,
    /// Files forgotten at the bound.
    pub files_forgotten: u64,
    /// Mappings of files that were rejected at the bound, or dropped in favour of others.
    pub files_refused: u64,
    /// Processes with more files than are announced before they have samples.
    pub ahead_refused: u64,
    /// Processes set right from /proc after records were lost.
    pub repaired: u64,
    /// Jitdumps that are not reported: too many of one process, or at once.
    pub dumps_untold: u64,
}

/// True for the path of a file whose mapping shows that a runtime writes a jitdump.
pub fn is_dump_marker(path: &[u8]) -> bool {
    let name = open::base_name(path);
    let digits = name
        .strip_prefix(b"jit-")
        .and_then(|name| name.strip_suffix(b".dump"));
    path.starts_with(b"/")
        && digits.is_some_and(|digits| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit))
}

/// True when a process has as much as every one may have in a full table of files.
fn has_many(space: &AddressSpace) -> bool {
    space.len() >= FILES_FAIR[FILES_FAIR.len() - 1]
}

/// Notes that the main thread of a process ended, unless that is known.
fn end_at(process: &mut Process, time: MonotonicTime, ended: &mut Vec<Pid>) -> bool {
    let is_news = process.ended.is_none();
    if is_news {
        process.ended = Some(time);
        ended.push(process.pid);
    }
    is_news
}

/// The pid of a sample whose task has ended and been waited for, and runs its last instructions in
/// the kernel: -1 (`perf_event_pid_type`, kernel/events/core.c). On a busy host that starts
/// programs all the time, one in some thousand samples has it.
pub const REAPED: Pid = Pid(u32::MAX);

/// All processes.
pub struct ProcessTable {
    processes: HashMap<Pid, Process>,
    /// Threads of all of them.
    threads: usize,
    files: FileTable,
    /// Pids with an ended main thread, swept at the end of a batch.
    ended: Vec<Pid>,
    /// Processes of which only the name is kept, and when they ended.
    exiting: VecDeque<(ProcessId, Pid, MonotonicTime)>,
    /// The address space of all of them.
    nothing: Rc<AddressSpace>,
    /// Threads that ended since /proc was asked for, while that is awaited.
    exits: Option<HashSet<(Pid, Tid)>>,
    /// Mapped jitdumps that were not reported to `fp-jit` yet.
    dumps: Vec<DumpSeen>,
    next_id: u32,
    /// Memory of all address spaces.
    space_bytes: SpaceBytes,
    /// When unused files may be looked for again.
    files_retry: MonotonicTime,
    /// When to look for those whose identity may be another's soon.
    reusable_retry: MonotonicTime,
    /// Time of the newest mapping.
    clock: MonotonicTime,
    counts: ProcessCounts,
}

impl Default for ProcessTable {
    fn default() -> Self {
        Self::new()
    }
}

impl ProcessTable {
    /// An empty table, knowing only the idle task and those that have no id any more.
    pub fn new() -> ProcessTable {
        let mut table = ProcessTable {
            processes: HashMap::new(),
            threads: 0,
            files: FileTable::default(),
            ended: Vec::new(),
            exiting: VecDeque::new(),
            nothing: Rc::default(),
            exits: None,
            dumps: Vec::new(),
            next_id: 0,
            space_bytes: SpaceBytes::default(),
            files_retry: MonotonicTime(0),
            reusable_retry: MonotonicTime(0),
            clock: MonotonicTime(0),
            counts: ProcessCounts::default(),
        };
        table.create(
            Pid(0),
            Pid(0),
            Comm::from_bytes(b"swapper"),
            true,
            MonotonicTime(0),
            Rc::default(),
        );
        table.create(
            REAPED,
            Pid(0),
            Comm::from_bytes(b"[exited]"),
            false,
            MonotonicTime(0),
            Rc::default(),
        );
        table
    }

    fn create(
        &mut self,
        pid: Pid,
        parent: Pid,
        comm: Comm,
        kernel: bool,
        started: MonotonicTime,
        space: Rc<AddressSpace>,
    ) {
        self.remove(pid);
        if self.processes.len() >= PROCESSES_MAX {
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
            started,
            ended: None,
            threads: HashMap::new(),
            uncounted: false,
            named: started,
            mapped: started,
            space,
            announced: 0,
            ahead: 0,
            look_after: MonotonicTime(0),
            generated: None,
            watched: false,
            dumps: 0,
        };
        self.processes.insert(pid, process);
    }

    /// Creates a process that no record reported: its threads are unknown.
    fn make_up(&mut self, pid: Pid, time: MonotonicTime) {
        self.counts.unannounced += 1;
        let space = Rc::new(AddressSpace::within(&self.space_bytes));
        self.create(pid, Pid(0), Comm::default(), false, time, space);
        if let Some(process) = self.processes.get_mut(&pid) {
            process.uncounted = true;
        }
    }

    fn remove(&mut self, pid: Pid) -> Option<Process> {
        let process = self.processes.remove(&pid)?;
        self.threads -= process.threads.len();
        Some(process)
    }

    fn next_id(&mut self) -> ProcessId {
        self.next_id = self.next_id.wrapping_add(1);
        ProcessId(self.next_id)
    }

    fn name_thread(&mut self, pid: Pid, tid: Tid, comm: Comm, since: MonotonicTime) {
        let Some(process) = self.processes.get_mut(&pid) else {
            return;
        };
        if let Some(known) = process.threads.get_mut(&tid) {
            *known = Thread { comm, since };
        } else if self.threads < THREADS_MAX {
            process.threads.insert(tid, Thread { comm, since });
            self.threads += 1;
        } else {
            process.uncounted = true;
            self.counts.threads_refused += 1;
        }
    }

    /// A new thread or process.
    pub fn fork(&mut self, pid: Pid, tid: Tid, parent: Pid, parent_tid: Tid, time: MonotonicTime) {
        if let Some(exits) = &mut self.exits {
            exits.remove(&(pid, tid));
        }
        let comm = self.thread_comm(parent, parent_tid);
        if pid == parent {
            self.meet(pid, time);
            self.name_thread(pid, tid, comm, time);
            return;
        }
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
            None => {
                let space = Rc::new(AddressSpace::within(&self.space_bytes));
                (false, space, 0, 0, None)
            }
        };
        self.create(pid, parent, comm, kernel, time, space);
        // What was announced of the parent need not be looked over again, and a process does not
        // get round the bound by forking.
        if let Some(child) = self.processes.get_mut(&pid) {
            (child.announced, child.ahead) = (announced, ahead);
            child.generated = generated;
        }
    }

    /// A task has a new name; at exec everything else is new too.
    pub fn comm(&mut self, pid: Pid, tid: Tid, comm: Comm, exec: bool, time: MonotonicTime) {
        if exec {
            let parent = self
                .processes
                .get(&pid)
                .map_or(Pid(0), |process| process.parent);
            // All other threads have ended, and the one that called exec goes by the process's id.
            let space = Rc::new(AddressSpace::within(&self.space_bytes));
            self.create(pid, parent, comm, false, time, space);
            return;
        }
        // Its start was lost; its name is newer than what /proc may show.
        self.meet(pid, time);
        if pid.0 != tid.0 {
            self.name_thread(pid, tid, comm, time);
        } else if let Some(process) = self.processes.get_mut(&pid) {
            process.comm = comm;
            process.named = time;
        }
    }

    /// A thread has ended. A process is kept until its last samples have been read.
    pub fn exit(&mut self, pid: Pid, tid: Tid, time: MonotonicTime) {
        if let Some(exits) = &mut self.exits
            && exits.len() < EXITS_MAX
        {
            exits.insert((pid, tid));
        }
        let Some(process) = self.processes.get_mut(&pid) else {
            return;
        };
        if process.threads.remove(&tid).is_some() {
            self.threads -= 1;
        }
        if pid.0 == tid.0 {
            end_at(process, time, &mut self.ended);
            self.counts.ends_uncertain += u64::from(process.uncounted);
        }
    }

    /// A process has a new executable mapping.
    pub fn mmap(&mut self, mmap: &Mmap<'_>, time: MonotonicTime) {
        let identity = match mmap.file {
            MapFile::BuildId(id) => FileIdentity::build_id(id),
            MapFile::Inode { inode: 0, .. } => None,
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
        let known = self.processes.get(&mmap.pid);
        let many = known.is_some_and(|process| has_many(&process.space));
        let by = (mmap.pid, time);
        let backing = self.backing(identity, mmap.private, mmap.path, by, many);
        if !self.processes.contains_key(&mmap.pid) {
            self.make_up(mmap.pid, time);
        }
        let Some(process) = self.processes.get(&mmap.pid) else {
            return;
        };
        let is_own = Rc::strong_count(&process.space) == 1;
        let has_no_room = self.has_no_room_for(&process.space, is_own);
        let Some(process) = self.processes.get_mut(&mmap.pid) else {
            return;
        };
        let mapping = Mapping {
            start: mmap.start,
            end: mmap.start.saturating_add(mmap.len),
            file_offset: mmap.file_offset,
            backing,
        };
        process.mapped = time;
        if has_no_room {
            process.space = Rc::new(process.space.refused());
            self.counts.spaces_forgotten += 1;
        } else if !Rc::make_mut(&mut process.space).insert(mapping) {
            self.counts.mappings_refused += 1;
        }
        if let Some(identity) = identity {
            let range = (Avma(mapping.start), Avma(mapping.end));
            self.note_dump(mmap.pid, range, mmap.path, identity);
        }
    }

    /// True when all address spaces take so much that this one must not grow. One that is shared is
    /// copied before it changes.
    fn has_no_room_for(&self, space: &AddressSpace, is_own: bool) -> bool {
        let more = if is_own {
            0
        } else {
            space.len() * size_of::<Mapping>()
        };
        let bytes = self.space_bytes.get() + more;
        bytes >= SPACE_BYTES_ALL_MAX || bytes >= SPACE_BYTES_MAX && space.len() >= MAPPINGS_FAIR
    }

    /// Remembers a mapping that is the marker of a jitdump until it is reported to `fp-jit`.
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

    /// Reports the jitdumps mapped since the last call. `send` returns what does not fit now.
    pub fn tell_of_dumps(&mut self, mut send: impl FnMut(DumpSeen) -> Option<DumpSeen>) {
        while let Some(seen) = self.dumps.pop() {
            if let Some(seen) = send(seen) {
                self.dumps.push(seen);
                return;
            }
        }
    }

    /// Records that a process was reported to `fp-jit`.
    pub fn watch(&mut self, pid: Pid) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.watched = true;
        }
    }

    /// Creates a process that has a sample but was not reported by any record, so that its time is
    /// counted.
    pub fn meet(&mut self, pid: Pid, time: MonotonicTime) {
        if !self.processes.contains_key(&pid) {
            self.make_up(pid, time);
        }
    }

    /// A process by pid.
    pub fn get(&self, pid: Pid) -> Option<&Process> {
        self.processes.get(&pid)
    }

    /// Uses these rules for the generated code of a process from now on.
    pub fn set_generated(&mut self, generated: Generated) {
        if let Some(process) = self.processes.get_mut(&generated.pid)
            && process.id == generated.process
        {
            process.generated = Some(generated.rules);
        }
    }

    /// Records that no rules for the generated code of a process will arrive soon.
    pub fn forgo_rules(&mut self, pid: Pid) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.generated.get_or_insert_default();
        }
    }

    /// Name of a thread.
    pub fn thread_comm(&self, pid: Pid, tid: Tid) -> Comm {
        self.processes.get(&pid).map_or(Comm::default(), |process| {
            let thread = process.threads.get(&tid);
            thread.map_or(process.comm, |thread| thread.comm)
        })
    }

    /// Reports a file with samples to the store; see `FileTable::announce`.
    pub fn announce(
        &mut self,
        pid: Pid,
        file: FileId,
        mapping: &Mapping,
        now: MonotonicTime,
        send: impl FnOnce(FileSeen) -> bool,
    ) {
        self.tell(pid, file, mapping, (now, true), send);
    }

    fn tell(
        &mut self,
        pid: Pid,
        file: FileId,
        mapping: &Mapping,
        when: (MonotonicTime, bool),
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

    /// Number of files that were reported to the store, each counted once.
    pub fn files_met(&self) -> u64 {
        self.files.met
    }

    /// Reports the files that a process has mapped to the store, if there are new ones: the callers
    /// of a sample are in other files than its leaf, and reading their unwind information takes a
    /// while. At most `AHEAD_MAX` for each process; the others are reported when they have samples.
    pub fn announce_all(
        &mut self,
        pid: Pid,
        now: MonotonicTime,
        mut send: impl FnMut(FileSeen) -> bool,
    ) {
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

    /// Lets go of the processes that ended before `before`, their main thread and all others: of
    /// their memory at once, of who they were ten seconds later.
    pub fn sweep(&mut self, before: MonotonicTime) {
        let ProcessTable {
            processes,
            ended,
            exiting,
            nothing,
            ..
        } = self;
        ended.retain(|&pid| {
            let Some(process) = processes.get_mut(&pid) else {
                return false;
            };
            match process.ended {
                Some(at) if at < before && process.has_ended() => {
                    process.space = Rc::clone(nothing);
                    process.generated = None;
                    exiting.push_back((process.id, pid, at));
                    false
                }
                ended => ended.is_some(),
            }
        });
        // A process with a main thread that ended long before its last thread is out of order, and
        // is swept later.
        while let Some(&(id, pid, at)) = exiting.front()
            && (before.since(at) > EXITING_MAX || exiting.len() > EXITING_PROCESSES_MAX)
        {
            exiting.pop_front();
            // Another may have its pid by now.
            if processes.get(&pid).is_some_and(|process| process.id == id) {
                processes.remove(&pid);
            }
        }
        self.forget_reusable_files(before);
    }

    /// Number of processes known.
    pub fn len(&self) -> usize {
        self.processes.len()
    }

    /// Threads known, other than main ones.
    pub fn threads_len(&self) -> usize {
        self.threads
    }

    /// Memory of all address spaces. Unit: bytes.
    pub fn space_bytes(&self) -> usize {
        self.space_bytes.get()
    }

    /// True when none is known.
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    /// Counters of what was rejected or guessed.
    pub fn counts(&self) -> ProcessCounts {
        self.counts
    }
}

#[cfg(test)]
mod tests;
