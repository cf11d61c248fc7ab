//! Finds the perf map of an ancestor that describes generated code shared with a process.
//!
//! A server that compiles before it forks, or into memory shared with its workers (PHP-FPM), has
//! one map for all of them, under its own pid: the workers append to the file that it opened. The
//! map counts for a process without one of its own if both map the same memory at the same
//! addresses, and only for that memory. Memory that the process does not share may contain other
//! code since the fork.
//!
//! Reads `/proc` and untrusted files, so it is for helpers only.

use super::tail::{self, Left, Tail};
use super::target::{self, Target};
use host::proc::status_field;
use host::time::MonotonicTime;
use std::ops::Range;
use unwind::process::maps::{self, Map};

/// Ancestors looked at, the nearest first. Between a worker and who compiled for it stands at most
/// a supervisor or two.
const ANCESTORS_MAX: usize = 4;

/// A map that an ancestor of the process has.
pub struct InheritedPerfMap {
    /// The file.
    pub tail: Tail,
    /// The memory that both share, by address: only there does the map count.
    pub within: Vec<Range<u64>>,
}

/// Looks among the ancestors of a process that has no map of its own. `left` is as for
/// [`tail::open_map`], of the ancestors.
pub fn find(pid: u32, left: &mut Option<Left>) -> Option<InheritedPerfMap> {
    let own = shared(pid);
    if own.is_empty() {
        return None;
    }
    let mut ancestor = pid;
    for _ in 0..ANCESTORS_MAX {
        ancestor = parent(ancestor).filter(|&pid| pid > 1)?;
        let target = Target::look(ancestor, MonotonicTime::now())?;
        let theirs = shared(ancestor);
        let both = own.iter().filter(|map| theirs.contains(map));
        let within: Vec<_> = both.map(|map| map.start..map.end).collect();
        // What lies further up shares no more than this one does.
        if within.is_empty() {
            return None;
        }
        if let Ok(tail) = tail::open_map(&target, left) {
            return Some(InheritedPerfMap { tail, within });
        }
    }
    None
}

/// Executable memory that others may have too: the kernel gives such memory an inode, which only
/// those have who got it by a fork or were given its descriptor.
fn shared(pid: u32) -> Vec<Map> {
    let mut found = target::maps_of(pid).map_or_else(|_| Vec::new(), maps::executable);
    found.retain(|map| !map.private && map.inode != 0);
    found
}

fn parent(pid: u32) -> Option<u32> {
    status_field(&target::status_of(pid)?, "PPid")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    /// Has memory of its own and memory that it shares, writes a map of both, forks, and waits.
    const SERVER: &str = r#"
import ctypes, mmap, os, sys
RX = mmap.PROT_READ | mmap.PROT_EXEC
maps = [mmap.mmap(-1, 4096, flags=kind | mmap.MAP_ANONYMOUS, prot=RX)
        for kind in (mmap.MAP_SHARED, mmap.MAP_PRIVATE)]
libc = ctypes.CDLL(None)
def fork_with(kind):
    with open("/proc/self/maps") as lines:
        return next(int(line.split("-")[0], 16) for line in lines if kind in line.split()[1])
shared = fork_with("r-xs")
with open(f"/tmp/perf-{os.getpid()}.map", "w") as out:
    out.write(f"{shared:x} 100 shared_code\n10000000 100 other_code\n")
child = os.fork()
if child == 0:
    sys.stdin.read()
    os._exit(0)
print(os.getpid(), child, shared, flush=True)
sys.stdin.read()
os.waitpid(child, 0)
"#;

    struct Server {
        child: Child,
        pid: u32,
        worker: u32,
        shared: u64,
    }

    impl Server {
        fn start() -> Option<Server> {
            let started = Command::new("python3")
                .args(["-c", SERVER])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn();
            let Ok(mut child) = started else {
                testkit::skip("needs python3");
                return None;
            };
            let mut line = String::new();
            let out = child.stdout.as_mut().expect("is piped");
            BufReader::new(out).read_line(&mut line).expect("a line");
            let mut words = line.split_whitespace();
            let mut word = || words.next().expect("a number");
            Some(Server {
                pid: word().parse().expect("a pid"),
                worker: word().parse().expect("a pid"),
                shared: word().parse().expect("an address"),
                child,
            })
        }
    }

    impl Drop for Server {
        fn drop(&mut self) {
            drop(self.child.stdin.take());
            let _ = self.child.wait();
            let _ = fs::remove_file(format!("/tmp/perf-{}.map", self.pid));
        }
    }

    #[test]
    fn a_worker_has_the_map_of_its_server_for_what_they_share() {
        let Some(server) = Server::start() else {
            return;
        };
        let inherited = find(server.worker, &mut None).expect("the server has one");
        let within = &inherited.within;
        assert!(within.iter().any(|range| range.contains(&server.shared)));
        assert!(!within.iter().any(|range| range.contains(&0x1000_0000)));
        assert!(
            find(server.pid, &mut None).is_none(),
            "this test shares none"
        );
    }

    #[test]
    fn who_shares_nothing_has_no_map_of_others() {
        let mut cat = Command::new("cat")
            .stdin(Stdio::piped())
            .spawn()
            .expect("starts");
        assert!(find(cat.id(), &mut None).is_none());
        let _ = cat.kill();
        let _ = cat.wait();
    }
}
