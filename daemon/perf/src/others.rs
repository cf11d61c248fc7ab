//! Detects other readers of mapping records who would be harmed by our events.
//!
//! The kernel writes one mapping record for all events, starting with the youngest event, and marks
//! it as having a build id for the first event that asked for one. It never removes the mark
//! (`perf_event_mmap_output`, kernel/events/core.c, 6.18), so older events that did not ask get
//! records that claim a build id where device and inode are. perf 6.1 believes it, takes the device
//! number for a length and dies: `stack smashing detected`.
//!
//! Not covered: a perf that starts while events are being opened, and a CPU that comes online while
//! a perf is recording.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Beginnings of the names of programs that read mappings. Not every program with perf events:
/// agents that sample by BPF hold some too, run always, and read no mappings.
const READERS: [&[u8]; 3] = [b"perf", b"samply", b"simpleperf"];

/// Link target of an event's descriptor in /proc.
const EVENT: &[u8] = b"anon_inode:[perf_event]";

/// True while a program records mappings by events that are older than any opened from now on.
/// Reads the name of each process, and of few of them the descriptors: some 2 µs a process.
pub fn read_mappings() -> bool {
    let Ok(processes) = fs::read_dir("/proc") else {
        return false;
    };
    let own = std::process::id().to_string();
    processes.flatten().any(|process| {
        let name = process.file_name();
        let is_process = name.as_bytes().iter().all(u8::is_ascii_digit);
        is_process && name.as_bytes() != own.as_bytes() && reads_mappings(&process.path())
    })
}

fn reads_mappings(process: &Path) -> bool {
    let name = fs::read(process.join("comm")).unwrap_or_default();
    if !READERS.iter().any(|reader| name.starts_with(reader)) {
        return false;
    }
    let Ok(descriptors) = fs::read_dir(process.join("fd")) else {
        // Without the right to look it counts as one.
        return true;
    };
    descriptors.flatten().any(|descriptor| {
        let target = fs::read_link(descriptor.path());
        target.is_ok_and(|target| target.as_os_str().as_bytes() == EVENT)
    })
}
