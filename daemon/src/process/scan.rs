//! One look at /proc for the processes that are older than the daemon.
//!
//! Everything newer comes from the record stream. A process whose entry vanishes or cannot be read
//! half-way is left out or kept without mappings: it is met again in samples. procfs opens each
//! process's directory once and reads relative to it, so a pid used again cannot mix two processes.

use crate::ids::{Comm, Pid, Tid};
use crate::symbolize::files::FileIdentity;
use hashbrown::HashMap;
use procfs::process::{MMPermissions, MMapPath, MemoryMap, Process};
use std::os::unix::ffi::OsStrExt;

/// Flag of kernel threads in /proc/PID/stat (`PF_KTHREAD`, include/linux/sched.h).
const PF_KTHREAD: u32 = 0x0020_0000;

/// Threads read per process. A process with more has the rest under its own name until they change
/// it.
const THREADS_PER_PROCESS_MAX: usize = 4096;

/// An executable mapping as /proc tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScannedMapping {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Offset in the file.
    pub file_offset: u64,
    /// The file; `None` for memory.
    pub identity: Option<FileIdentity>,
    /// Path or word, as in the record stream.
    pub path: Box<[u8]>,
}

/// A process as /proc tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScannedProcess {
    /// Its pid.
    pub pid: Pid,
    /// Its parent.
    pub parent: Pid,
    /// Name of the main thread.
    pub comm: Comm,
    /// True for threads of the kernel.
    pub kernel: bool,
    /// Executable mappings.
    pub mappings: Vec<ScannedMapping>,
    /// Names of the other threads.
    pub threads: Vec<(Tid, Comm)>,
}

/// Reads all processes. `build_id` turns a mapping's file into its build id where it has one, so
/// that the same file is known by the same identity as in the record stream.
///
/// Cost: about 50 µs a process; 4.4–5.2 ms measured for 92 processes.
pub fn all(mut build_id: impl FnMut(Pid, u64, u64) -> Option<FileIdentity>) -> Vec<ScannedProcess> {
    let Ok(processes) = procfs::process::all_processes() else {
        return Vec::new();
    };
    // Most mappings are of the same few libraries: each file is asked for once.
    let mut known = HashMap::new();
    let mut identify = |pid: Pid, map: &MemoryMap| {
        let (start, end) = map.address;
        *known.entry((map.dev, map.inode)).or_insert_with(|| {
            build_id(pid, start, end).unwrap_or(FileIdentity::Inode {
                major: map.dev.0 as u32,
                minor: map.dev.1 as u32,
                inode: map.inode,
                generation: 0,
            })
        })
    };
    processes
        .flatten()
        .filter_map(|process| one(&process, &mut identify))
        .collect()
}

fn one(
    process: &Process,
    identity_of: &mut impl FnMut(Pid, &MemoryMap) -> FileIdentity,
) -> Option<ScannedProcess> {
    let stat = process.stat().ok()?;
    let pid = Pid(stat.pid as u32);
    let kernel = stat.flags & PF_KTHREAD != 0;
    let mut mappings = Vec::new();
    let mut threads = Vec::new();
    if !kernel {
        if let Ok(maps) = process.maps() {
            let executable = maps
                .into_iter()
                .filter(|map| map.perms.contains(MMPermissions::EXECUTE));
            mappings.extend(executable.map(|map| {
                let (start, end) = map.address;
                let (identity, path) = identify(&map, pid, identity_of);
                ScannedMapping {
                    start,
                    end,
                    file_offset: map.offset,
                    identity,
                    path,
                }
            }));
        }
        if let Ok(tasks) = process.tasks() {
            let others = tasks.flatten().filter(|task| task.tid as u32 != pid.0);
            threads.extend(others.take(THREADS_PER_PROCESS_MAX).filter_map(|task| {
                let comm = Comm::from_bytes(task.stat().ok()?.comm.as_bytes());
                Some((Tid(task.tid as u32), comm))
            }));
        }
    }
    Some(ScannedProcess {
        pid,
        parent: Pid(stat.ppid as u32),
        comm: Comm::from_bytes(stat.comm.as_bytes()),
        kernel,
        mappings,
        threads,
    })
}

fn identify(
    map: &MemoryMap,
    pid: Pid,
    identity_of: &mut impl FnMut(Pid, &MemoryMap) -> FileIdentity,
) -> (Option<FileIdentity>, Box<[u8]>) {
    match &map.pathname {
        MMapPath::Path(path) => (
            Some(identity_of(pid, map)),
            path.as_os_str().as_bytes().into(),
        ),
        MMapPath::Vdso => (None, b"[vdso]"[..].into()),
        MMapPath::Vsyscall => (None, b"[vsyscall]"[..].into()),
        _ => (None, b"//anon"[..].into()),
    }
}
