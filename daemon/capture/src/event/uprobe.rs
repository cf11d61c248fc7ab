//! Finds where to set a uprobe: the file of a program, and the offset of a function in it.
//!
//! The caller can name any path, so the file system may never answer, and the file may be replaced
//! after it was examined. Helpers examine it, and the examined file stays open until the event is
//! closed.

use super::{EventError, FILE_WAIT};
use host::blocking_pool::{BlockingPool, NoResult, REMOTE_LATE_MAX};
use perf::probe::{Source, Uprobe};
use std::fs::File;
use std::io;
use std::path::Path;
use symbolize::functions::{self, FunctionLocation};
use symbolize::mounts;
use symbolize::open::{self, Links, Root};

/// File with the kernel's number for events of kind uprobe.
pub(super) const KIND: &str = "/sys/bus/event_source/devices/uprobe/type";

/// Why a name that is there is no function.
const INDIRECT: &str = ": its symbol is a resolver (STT_GNU_IFUNC), which picks one of several \
    functions when the program is loaded\n  name that function, such as \
    `__memmove_avx_unaligned_erms` for `memcpy`";

/// A function of a program as a source of samples. Waits for one of `files`.
pub(super) fn source(
    binary: &Path,
    function: &str,
    files: &BlockingPool,
) -> Result<Source, EventError> {
    let kind = std::fs::read_to_string(KIND).map_err(EventError::NoUprobes)?;
    let kind = kind.trim().parse().map_err(io::Error::other);
    let kind = kind.map_err(EventError::NoUprobes)?;
    let path = binary.display().to_string();
    let (own, called) = (binary.to_path_buf(), function.to_owned());
    if files.late() >= REMOTE_LATE_MAX && is_remote(binary) {
        return Err(EventError::Busy { path });
    }
    // Its file system may be anybody's, who need not answer.
    let looked = files.ask(FILE_WAIT, move || look(&own, &called));
    let looked = looked.map_err(|error| match error {
        NoResult::Busy => EventError::Busy { path: path.clone() },
        NoResult::Late => EventError::Late { path: path.clone() },
    });
    let hint = match looked?? {
        Looked::At(uprobe) => {
            return Ok(Source {
                kind,
                config: 0,
                uprobe: Some(uprobe),
            });
        }
        Looked::Nowhere(hint) => hint,
    };
    Err(EventError::NoFunction {
        path,
        function: function.chars().take(256).collect(),
        hint,
    })
}

/// True if a path is on a file system that depends on another process or machine, according to the
/// tables of mounts, which always answer.
fn is_remote(path: &Path) -> bool {
    let bytes = path.as_os_str().as_encoded_bytes();
    let (pid, below) = in_process(bytes).unwrap_or((std::process::id(), bytes));
    mounts::is_remote_path(pid, below)
}

/// Result of looking for a function in a program.
enum Looked {
    /// Where it starts.
    At(Uprobe),
    /// It cannot be probed, for this reason.
    Nowhere(&'static str),
}

/// Looks for a function in a program. May never come back.
fn look(binary: &Path, function: &str) -> Result<Looked, EventError> {
    let path = || binary.display().to_string();
    let failed = |source| EventError::Open {
        path: path(),
        source,
    };
    let file = open_program(binary).map_err(failed)?;
    Ok(match functions::place_of(&file, function.as_bytes()) {
        Ok(FunctionLocation::At(offset)) => {
            let is_remote = mounts::is_remote(&file);
            let uprobe = Uprobe::new(file, offset);
            let mut uprobe = uprobe.map_err(|error| failed(error.into()))?;
            uprobe.is_remote = is_remote;
            Looked::At(uprobe)
        }
        Ok(FunctionLocation::NotThere) => Looked::Nowhere(""),
        Ok(FunctionLocation::Stripped) => Looked::Nowhere(
            ": the file is stripped of function \
            names",
        ),
        Ok(FunctionLocation::Indirect) => Looked::Nowhere(INDIRECT),
        Err(source) => {
            return Err(EventError::Image {
                path: path(),
                source,
            });
        }
    })
}

/// Opens a regular file by its path on the host, or by `/proc/PID/root/…` in the root of a process,
/// out of which no link leads.
fn open_program(path: &Path) -> Result<File, open::OpenError> {
    let bytes = path.as_os_str().as_encoded_bytes();
    let (root, below) = match in_process(bytes) {
        Some((pid, below)) => (Root::of_process(pid)?, below),
        None => (Root::of_dir(Path::new("/"))?, bytes),
    };
    root.open(below, Links::Inside)
}

/// Splits a path in another process's root into the pid and the path there.
fn in_process(path: &[u8]) -> Option<(u32, &[u8])> {
    let rest = path.strip_prefix(b"/proc/")?;
    let digits = rest.iter().position(|&byte| byte == b'/')?;
    let pid = std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
    let below = rest[digits..].strip_prefix(b"/root")?;
    below.starts_with(b"/").then_some((pid, below))
}

#[cfg(test)]
mod tests {
    use super::super::Event;
    use super::*;

    #[test]
    fn a_path_in_the_root_of_a_process_is_looked_for_there() {
        let found = in_process(b"/proc/17/root/usr/bin/x");
        assert_eq!(found, Some((17, &b"/usr/bin/x"[..])));
        for path in [
            "/proc/self/root/x",
            "/proc/17/rooted/x",
            "/proc/17/exe",
            "/a/proc/1/root/x",
        ] {
            assert_eq!(in_process(path.as_bytes()), None, "{path}");
        }
    }

    #[test]
    fn a_file_swapped_after_the_look_is_still_the_one_looked_at() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, other) = (dir.path().join("program"), dir.path().join("other"));
        let own = std::env::current_exe().expect("a path");
        std::fs::copy(&own, &path).expect("copied");
        std::fs::write(&other, "#!/bin/sh\n").expect("written");
        let Ok(Looked::At(uprobe)) = look(&path, "main") else {
            panic!("a program has a main function");
        };
        std::fs::rename(&other, &path).expect("swapped");
        let place = functions::place_of(uprobe.file(), b"main").expect("sound");
        assert_eq!(place, FunctionLocation::At(uprobe.offset()));
    }

    #[test]
    fn where_all_helpers_are_at_work_nothing_is_said_of_the_file_system() {
        if !Path::new(KIND).exists() {
            return testkit::skip("the kernel has no uprobes");
        }
        let files = BlockingPool::new("test");
        let mut held = Vec::new();
        while !files.is_exhausted() {
            let (hold, wait) = std::sync::mpsc::sync_channel::<()>(1);
            let waits = files.spawn(move || wait.recv().is_ok());
            held.push((hold, waits.expect("there are more")));
        }
        let own = std::env::current_exe().expect("a path");
        let refused = source(&own, "main", &files).expect_err("none is free");
        assert!(matches!(refused, EventError::Busy { .. }), "{refused}");
        drop(held);
    }

    #[test]
    fn a_uprobe_wants_a_program_that_has_the_function() {
        let told = |binary: &str, function: &str| {
            let event = Event::parse(&format!("uprobe:{binary}:{function}")).expect("sound");
            let ask = |_| {
                event
                    .source(&BlockingPool::new("test"))
                    .expect_err("refused")
            };
            // On a busy machine the search may time out.
            let in_time = |refused: &EventError| !matches!(refused, EventError::Late { .. });
            let refused = (0..20).map(ask).find(in_time);
            refused.expect("an answer in time").to_string()
        };
        if !Path::new(KIND).exists() {
            return testkit::skip("the kernel has no uprobes");
        }
        let own = std::env::current_exe()
            .expect("a path")
            .display()
            .to_string();
        for (binary, function, expected) in [
            (
                &*own,
                "no_such_function",
                "failed to find function `no_such_function`",
            ),
            ("/dev/zero", "main", "failed to set a uprobe"),
            ("/nowhere", "main", "failed to set a uprobe"),
            ("/etc/passwd", "main", "failed to look for functions"),
        ] {
            let told = told(binary, function);
            assert!(told.starts_with(expected), "{binary}: {told}");
        }
    }
}
