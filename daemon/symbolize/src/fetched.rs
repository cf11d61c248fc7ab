//! Debug files from debuginfod servers: a thread fetches them and keeps them in a directory of the
//! daemon.
//!
//! The symbolizer reports which builds have no symbols and continues. From the next batch on,
//! fetched files are found by build id as in any other debug directory. The directory is bounded:
//! the least recently used file is removed first. A file is accepted only if it is of the requested
//! build and has symbols.

use super::counters::{SymbolCounters, bump};
use super::debug_files;
use super::elf::read_headers;
use debuginfod::{FetchOutcome, FetchQueue, Servers};
use hashbrown::HashSet;
use host::private_dir::{DirError, PrivateDir};
use host::sync::lock;
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, futimens};
use std::fs::{self, File};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// Largest file. Unit: bytes. Larger ones are not read by the symbolizer either.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// Subdirectory for files while they are downloaded.
const INCOMING: &str = "incoming";

/// Longest wait for something to do: servers rest no longer.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// Builds that are there.
#[derive(Default)]
struct State {
    wanted: FetchQueue,
    /// Build ids in hexadecimal.
    there: HashSet<String>,
}

/// See the module. Shared by the symbolizer, which asks, and the thread that fetches.
pub struct FetchedFiles {
    dir: PrivateDir,
    bytes_max: u64,
    state: Mutex<State>,
    /// Rings when a build is wanted.
    bell: Condvar,
    counters: Arc<SymbolCounters>,
}

/// Path of a build's file in a directory.
fn place(base: &Path, build_id: &str) -> Option<PathBuf> {
    Some(base.join(debug_files::place(build_id)?))
}

impl FetchedFiles {
    /// Opens a directory with its existing files; creates it if it is missing.
    ///
    /// # Errors
    /// When it cannot be made, others may write to it, or another daemon has it.
    pub fn open(
        path: &Path,
        bytes_max: u64,
        counters: Arc<SymbolCounters>,
    ) -> io::Result<FetchedFiles> {
        let dir = PrivateDir::open(path, "directory of fetched files");
        let dir = dir.map_err(|error| match error {
            DirError::Open { source, .. } => source,
            DirError::Refused { why, .. } => io::Error::other(why),
            DirError::Locked { .. } => io::Error::other("another daemon uses it"),
        })?;
        let files = FetchedFiles {
            dir,
            bytes_max,
            state: Mutex::default(),
            bell: Condvar::new(),
            counters,
        };
        let there = files.list().into_iter().map(|kept| kept.build_id);
        files.state().there = there.collect();
        Ok(files)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Queues a build to be fetched, unless that was done lately. True when its file is there.
    pub fn want(&self, build_id: &str) -> bool {
        let mut state = self.state();
        if state.there.contains(build_id) {
            return true;
        }
        state.wanted.add(vec![build_id.to_owned()]);
        self.bell.notify_one();
        false
    }

    /// True when the file of a build is there.
    pub fn has(&self, build_id: &str) -> bool {
        self.state().there.contains(build_id)
    }

    /// Notes that a file is used, which keeps it. By the time of access alone: whoever has it open
    /// knows by the other that nobody wrote to it.
    pub fn used(&self, build_id: &str) {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_NOW,
        };
        let times = Timestamps {
            last_access: now,
            last_modification: Timespec {
                tv_sec: 0,
                tv_nsec: UTIME_OMIT,
            },
        };
        let file = place(self.dir.base(), build_id).and_then(|path| File::open(path).ok());
        // One that cannot be touched goes a little earlier.
        let _ = file.map(|file| futimens(file, &times));
    }

    /// Fetches missing files in an endless loop. The body of `fp-debuginfod`.
    pub fn run(&self, urls: &[String]) -> ! {
        let mut servers = Servers::new(urls, FILE_BYTES_MAX.min(self.bytes_max));
        loop {
            let rest = servers.rest();
            let mut state = self.state();
            let (next, wait) = match rest {
                Duration::ZERO => (state.wanted.take(), WAIT_MAX),
                // Who is away says nothing of what it has.
                rest => (None, rest),
            };
            match next {
                Some(build_id) => {
                    drop(state);
                    self.fetch(&mut servers, &build_id);
                }
                None => {
                    let woken = self.bell.wait_timeout(state, wait);
                    drop(woken.unwrap_or_else(PoisonError::into_inner));
                }
            }
        }
    }

    fn fetch(&self, servers: &mut Servers, build_id: &str) {
        let incoming = self.dir.base().join(INCOMING);
        let mut take = |bytes| {
            let kept = self.keep(&incoming, build_id, bytes);
            kept.map_err(|why| why.to_string())
        };
        // Whatever a server makes the library do costs one build.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            servers.fetch(build_id, &incoming, &mut take, &|| false)
        }));
        let outcome = outcome.unwrap_or_else(|_| {
            tracing::warn!(build_id, "failed to read the answer of a debuginfod server");
            FetchOutcome::Refused
        });
        let counters = &self.counters;
        bump(match outcome {
            FetchOutcome::Kept => &counters.debuginfod_fetched,
            FetchOutcome::Absent => &counters.debuginfod_absent,
            FetchOutcome::Unavailable => &counters.debuginfod_failed,
            FetchOutcome::Refused => &counters.debuginfod_refused,
        });
        // What is not there need not be removed.
        let _ = fs::remove_file(&incoming);
        let mut state = self.state();
        state.wanted.done(build_id, outcome);
        if outcome == FetchOutcome::Kept {
            state.there.insert(build_id.to_owned());
        }
    }

    /// Keeps a downloaded file if it is the requested one.
    fn keep(&self, incoming: &Path, build_id: &str, bytes: u64) -> io::Result<()> {
        let headers = read_headers(&File::open(incoming)?).map_err(io::Error::other)?;
        let own = profile::build_id_text(&headers.build_id);
        if own != build_id {
            return Err(io::Error::other(format!("it has build id `{own}`")));
        }
        if headers.section(b".symtab").is_none() {
            return Err(io::Error::other("it has no symbol table"));
        }
        self.make_room(bytes)?;
        let path = place(self.dir.base(), build_id).ok_or(io::ErrorKind::InvalidInput)?;
        fs::create_dir_all(path.parent().unwrap_or(self.dir.base()))?;
        fs::rename(incoming, path)
    }

    /// Removes what was not used for longest until so much more fits.
    fn make_room(&self, bytes: u64) -> io::Result<()> {
        if bytes > self.bytes_max {
            let text = "it is larger than `symbols.debuginfod_mib`";
            return Err(io::Error::other(text));
        }
        let mut kept = self.list();
        kept.sort_by_key(|kept| std::cmp::Reverse(kept.used));
        let mut held: u64 = kept.iter().map(|kept| kept.bytes).sum();
        while held + bytes > self.bytes_max {
            let Some(oldest) = kept.pop() else { break };
            fs::remove_file(&oldest.path)?;
            self.state().there.remove(&oldest.build_id);
            bump(&self.counters.debuginfod_removed);
            held -= oldest.bytes;
        }
        Ok(())
    }

    fn list(&self) -> Vec<Kept> {
        let folders = fs::read_dir(self.dir.base().join(".build-id"));
        let folders = folders.into_iter().flatten().flatten();
        let files = folders.flat_map(|folder| {
            let first = folder.file_name().to_string_lossy().into_owned();
            let files = fs::read_dir(folder.path()).into_iter().flatten().flatten();
            files.filter_map(move |file| {
                let name = file.file_name().to_string_lossy().into_owned();
                let build_id = format!("{first}{}", name.strip_suffix(".debug")?);
                let about = file.metadata().ok()?;
                profile::is_build_id(&build_id).then_some(Kept {
                    build_id,
                    path: file.path(),
                    bytes: about.len(),
                    used: about.accessed().ok()?,
                })
            })
        });
        files.collect()
    }
}

/// A file of the directory.
struct Kept {
    build_id: String,
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::FileTimes;
    use std::sync::atomic::Ordering;

    fn open(dir: &Path, bytes_max: u64) -> (FetchedFiles, Arc<SymbolCounters>) {
        let counters = Arc::new(SymbolCounters::default());
        let files = FetchedFiles::open(&dir.join("kept"), bytes_max, counters.clone());
        (files.unwrap(), counters)
    }

    /// This test's program, with its build id and its length.
    fn own() -> (PathBuf, String, u64) {
        let path = std::env::current_exe().unwrap();
        let file = File::open(&path).unwrap();
        let id = read_headers(&file).unwrap().build_id;
        let id = profile::build_id_text(&id);
        (path, id, file.metadata().unwrap().len())
    }

    /// Brings a file as the thread does.
    fn bring(files: &FetchedFiles, from: &Path, build_id: &str) -> io::Result<()> {
        let incoming = files.dir.base().join(INCOMING);
        let bytes = fs::copy(from, &incoming)?;
        files.keep(&incoming, build_id, bytes)?;
        files.state().there.insert(build_id.to_owned());
        Ok(())
    }

    #[test]
    fn a_file_is_kept_where_debug_files_are_looked_for_and_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let (path, id, _) = own();
        {
            let (files, _) = open(dir.path(), 1 << 30);
            assert!(!files.want(&id));
            bring(&files, &path, &id).unwrap();
            assert!(files.want(&id));
        }
        let (files, _) = open(dir.path(), 1 << 30);
        assert!(files.want(&id));
        let (first, rest) = id.split_at(2);
        let kept = dir
            .path()
            .join(format!("kept/.build-id/{first}/{rest}.debug"));
        assert!(kept.is_file());
    }

    #[test]
    fn what_was_not_asked_for_or_has_no_symbols_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (files, _) = open(dir.path(), 1 << 30);
        let (path, id, _) = own();
        let other = "ab".repeat(20);
        assert!(bring(&files, &path, &other).is_err());
        let shell = Path::new("/bin/sh");
        let shells = read_headers(&File::open(shell).unwrap()).unwrap().build_id;
        let shells = profile::build_id_text(&shells);
        assert!(bring(&files, shell, &shells).is_err());
        assert!(bring(&files, Path::new("/etc/passwd"), &id).is_err());
        assert!(files.list().is_empty());
    }

    #[test]
    fn what_was_not_used_for_longest_goes_first() {
        let dir = tempfile::tempdir().unwrap();
        let (path, id, bytes) = own();
        let (files, counters) = open(dir.path(), bytes * 2 + 100);
        let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        for (name, age) in [("aa".repeat(20), 0), ("bb".repeat(20), 500)] {
            let path_of = place(files.dir.base(), &name).unwrap();
            fs::create_dir_all(path_of.parent().unwrap()).unwrap();
            fs::copy(&path, &path_of).unwrap();
            let used = old + Duration::from_secs(age);
            let times = FileTimes::new().set_accessed(used);
            let file = File::open(&path_of).unwrap();
            file.set_times(times).unwrap();
        }
        files.used(&"aa".repeat(20));
        bring(&files, &path, &id).unwrap();
        let mut left: Vec<String> = files.list().into_iter().map(|kept| kept.build_id).collect();
        left.sort();
        let mut expected = vec!["aa".repeat(20), id];
        expected.sort();
        assert_eq!(left, expected);
        assert_eq!(counters.debuginfod_removed.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_file_larger_than_all_may_be_is_refused_and_takes_nothing_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let (path, id, bytes) = own();
        let (files, _) = open(dir.path(), bytes - 1);
        let other = place(files.dir.base(), &"aa".repeat(20)).unwrap();
        fs::create_dir_all(other.parent().unwrap()).unwrap();
        fs::write(&other, "small").unwrap();
        assert!(bring(&files, &path, &id).is_err());
        assert!(other.is_file());
        assert_eq!(files.list().len(), 1);
    }
}
