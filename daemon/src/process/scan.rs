//! One look at /proc for the processes that are older than the daemon.
//!
//! Everything newer comes from the record stream. A process whose entry vanishes or cannot be read
//! half-way is left out or kept without mappings: it is met again in samples. procfs opens each
//! process's directory once and reads relative to it, so a pid used again cannot mix two processes.

use super::maps::{self, Map};
use crate::ids::{Comm, Pid, Tid};
use crate::symbolize::files::FileIdentity;
use hashbrown::HashMap;
use procfs::process::Process;
use std::io::BufReader;

/// Flag of kernel threads in /proc/PID/stat (`PF_KTHREAD`, include/linux/sched.h).
const PF_KTHREAD: u32 = 0x0020_0000;

/// Threads read per process. A process with more has the rest under its own name until they change
/// it.
const THREADS_PER_PROCESS_MAX: usize = 4096;

/// Bytes of `maps` asked for at a time: the kernel gives whole lines of up to a page.
const READ_BYTES: usize = 16 << 10;

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
    /// See [`Map::private`].
    pub private: bool,
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

/// Reads all processes. `build_id` turns a mapping's file, by pid, range and path, into its build id
/// where it has one, so that the same file is known by the same identity as in the record stream.
///
/// Cost: about 50 µs a process; 4.4–5.2 ms measured for 92 processes.
pub fn all(
    mut build_id: impl FnMut((Pid, u64, u64), &[u8]) -> Option<FileIdentity>,
) -> Vec<ScannedProcess> {
    let Ok(processes) = procfs::process::all_processes() else {
        return Vec::new();
    };
    // Most mappings are of the same few libraries: each file is asked for once.
    let mut known = HashMap::new();
    let mut identify = |pid: Pid, map: &Map| {
        *known.entry((map.device, map.inode)).or_insert_with(|| {
            build_id((pid, map.start, map.end), &map.path).unwrap_or(FileIdentity::Inode {
                major: map.device.0,
                minor: map.device.1,
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
    identity_of: &mut impl FnMut(Pid, &Map) -> FileIdentity,
) -> Option<ScannedProcess> {
    let stat = process.stat().ok()?;
    let pid = Pid(stat.pid as u32);
    let kernel = stat.flags & PF_KTHREAD != 0;
    let mut mappings = Vec::new();
    let mut threads = Vec::new();
    if !kernel {
        // Relative to the process's directory, and not by the library's reader: that gives up the
        // whole file at the first path that is not UTF-8.
        if let Ok(text) = process.open_relative("maps") {
            let found = maps::executable(BufReader::with_capacity(READ_BYTES, text));
            mappings.extend(found.into_iter().map(|map| {
                let (identity, path) = identify(&map, pid, identity_of);
                ScannedMapping {
                    start: map.start,
                    end: map.end,
                    file_offset: map.file_offset,
                    identity,
                    private: map.private,
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
    map: &Map,
    pid: Pid,
    identity_of: &mut impl FnMut(Pid, &Map) -> FileIdentity,
) -> (Option<FileIdentity>, Box<[u8]>) {
    match &*map.path {
        path if map.is_file() => (Some(identity_of(pid, map)), path.into()),
        word @ (b"[vdso]" | b"[vsyscall]" | b"[uprobes]") => (None, word.into()),
        _ => (None, b"//anon"[..].into()),
    }
}
