//! Follows a file to which a process keeps writing: which file it is, how far it has been read, and
//! when new content was written.
//!
//! Perf maps and jitdumps belong to the process, so they are untrusted. A file is opened inside the
//! process's root without following links; it must be regular, with one name, owned by the
//! process's user, and not older than the process. Any call may hang, so everything here is for
//! helpers only.

use super::code::When;
use super::target::Target;
use host::time::{MonotonicTime, WallAnchor};
use profile::UnnamedReason;
use std::fs::{File, Metadata};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Duration;
use symbolize::files;
use symbolize::open::{self, Links, OpenError};
use unwind::process::DumpSeen;

/// Bytes before the place where reading goes on that must be the same as before; if they are not,
/// the file was rewritten and is read from its start.
const JOINT_BYTES: usize = 64;

/// How often the path of a map is looked at again before it is believed.
const LOOKS_AGAIN: u32 = 3;

/// Bytes read at a time.
const READ_BYTES: usize = 64 << 10;

/// How much later than a file's time it may have been written: that time is the one of the last
/// tick of the kernel's timer, 10 ms at most.
const MTIME_SLACK: Duration = Duration::from_millis(20);

/// An open file and how far it was read.
#[derive(Debug)]
pub struct Tail {
    file: File,
    /// Device and inode.
    id: (u64, u64),
    read: u64,
    /// The last bytes read.
    joint: Vec<u8>,
    /// Content that was not read yet was written after this time.
    after: MonotonicTime,
    /// The latest time given for what was read.
    by: MonotonicTime,
    /// Time of the last change as last seen. Unit: nanoseconds since the Unix epoch.
    written_ns: i64,
    looked: FileState,
}

/// The state of a file when it was examined.
#[derive(Clone, Copy, Debug)]
pub struct FileState {
    /// Its size. Unit: bytes.
    pub size: u64,
    /// When what is new was written.
    pub when: When,
    /// It was rewritten: what follows is all of it.
    pub rewritten: bool,
    started: MonotonicTime,
}

/// A file that an earlier process left at the path: it does not describe this process, even if this
/// process continues to write to it.
#[derive(Debug)]
pub struct Left {
    id: (u64, u64),
    size: u64,
    joint: Vec<u8>,
}

impl Tail {
    fn over(file: File, facts: &Metadata) -> Tail {
        let nothing = MonotonicTime(0);
        Tail {
            file,
            id: (facts.dev(), facts.ino()),
            read: 0,
            joint: Vec::new(),
            after: nothing,
            by: nothing,
            written_ns: i64::MIN,
            looked: FileState {
                size: 0,
                when: When::at(nothing),
                rewritten: false,
                started: nothing,
            },
        }
    }

    /// True when both are the same file.
    pub fn is_same(&self, other: &Tail) -> bool {
        self.id == other.id
    }

    /// Sets that none of it existed before `other` was last read.
    pub fn follows(&mut self, other: &Tail) {
        (self.after, self.by) = (other.after, other.by);
    }

    /// True when it starts within what an earlier process left, and that ended within a line.
    pub fn is_within_a_line(&self) -> bool {
        self.read > 0 && self.joint.last() != Some(&b'\n')
    }

    /// How far it was read. Unit: bytes.
    pub fn read_to(&self) -> u64 {
        self.read
    }

    /// Its size at the last look. Unit: bytes.
    pub fn size(&self) -> u64 {
        self.looked.size
    }

    /// Looks how large it is and when it was written. `None` when it does not answer.
    pub fn look(&mut self) -> Option<FileState> {
        let started = MonotonicTime::now();
        let facts = self.file.metadata().ok()?;
        let (size, written_ns) = (facts.len(), nanoseconds(facts.mtime(), facts.mtime_nsec()));
        let changed = written_ns != self.written_ns || size > self.read;
        // One that is as long as what was read and was written since was written over.
        let seen_before = self.looked.started != MonotonicTime(0);
        let over = changed && seen_before && size == self.read;
        let rewritten = size < self.read || changed && self.read > 0 && (over || !self.joins());
        if rewritten {
            self.read = 0;
            self.joint.clear();
        }
        self.written_ns = written_ns;
        let written = WallAnchor::new().to_mono(written_ns).plus(MTIME_SLACK);
        let by = written
            .min(MonotonicTime::now())
            .max(self.by)
            .max(self.after);
        self.looked = FileState {
            size,
            when: When::between(self.after, by),
            rewritten,
            started,
        };
        self.by = by;
        Some(self.looked)
    }

    /// Hands on the bytes up to `until`, at most `budget` of them, which becomes less.
    pub fn read(&mut self, until: u64, budget: &mut u64, mut feed: impl FnMut(&[u8])) {
        let mut buffer = vec![0; READ_BYTES];
        while self.read < until && *budget > 0 {
            let want = (until - self.read).min(*budget).min(READ_BYTES as u64) as usize;
            let Ok(got @ 1..) = self.file.read_at(&mut buffer[..want], self.read) else {
                return;
            };
            feed(&buffer[..got]);
            self.read += got as u64;
            *budget -= got as u64;
            self.joint
                .extend_from_slice(&buffer[got.saturating_sub(JOINT_BYTES)..got]);
            let surplus = self.joint.len().saturating_sub(JOINT_BYTES);
            self.joint.drain(..surplus);
        }
        if self.read >= self.looked.size {
            // All that was there at the look: what comes was written after it.
            self.after = self.looked.started;
        }
    }

    /// True when the bytes before the place to read on from are those read last time.
    fn joins(&self) -> bool {
        joins(&self.file, self.read, &self.joint)
    }
}

fn joins(file: &File, at: u64, joint: &[u8]) -> bool {
    let mut now = vec![0; joint.len()];
    let at = at.saturating_sub(now.len() as u64);
    file.read_exact_at(&mut now, at).is_ok() && now == joint
}

fn nanoseconds(seconds: i64, nanoseconds: i64) -> i64 {
    let whole = seconds.saturating_mul(1_000_000_000);
    whole.saturating_add(nanoseconds)
}

/// Opens the perf map of a process. `left` remembers what an earlier process left there.
///
/// # Errors
/// Why there is none to read.
pub fn open_map(target: &Target, left: &mut Option<Left>) -> Result<Tail, UnnamedReason> {
    let path = format!("tmp/perf-{}.map", target.inner_pid);
    let opened = target.root.open(path.as_bytes(), Links::Refuse);
    let file = opened.map_err(|error| match error {
        OpenError::Gone => UnnamedReason::JitNoMap,
        _ => UnnamedReason::JitMapRefused,
    })?;
    // These are the facts of the file that was opened, whatever is at the path by now.
    let facts = file.metadata().map_err(|_| UnnamedReason::JitMapRefused)?;
    let plain = facts.is_file() && facts.nlink() == 1;
    if !plain || !target.may_own(facts.uid()) {
        return Err(UnnamedReason::JitMapRefused);
    }
    let mut tail = Tail::over(file, &facts);
    // A second name that went between opening and looking left one. Whoever swaps names all the
    // time would have to meet each of these looks too.
    for _ in 0..LOOKS_AGAIN {
        let again = target.root.open(path.as_bytes(), Links::Refuse).ok();
        let again = again.and_then(|file| file.metadata().ok());
        let same = |facts: Metadata| (facts.dev(), facts.ino()) == tail.id && facts.nlink() == 1;
        if !again.is_some_and(same) {
            return Err(UnnamedReason::JitMapRefused);
        }
    }
    if target.is_older(nanoseconds(facts.ctime(), facts.ctime_nsec())) {
        *left = Left::of(&tail, facts.len());
        return Err(UnnamedReason::JitMapRefused);
    }
    if let Some(left) = left.take_if(|left| left.is_start_of(&tail, facts.len())) {
        tail.read = left.size;
        tail.joint = left.joint;
    }
    Ok(tail)
}

impl Left {
    fn of(tail: &Tail, size: u64) -> Option<Left> {
        let mut joint = vec![0; size.min(JOINT_BYTES as u64) as usize];
        let at = size - joint.len() as u64;
        tail.file.read_exact_at(&mut joint, at).ok()?;
        Some(Left {
            id: tail.id,
            size,
            joint,
        })
    }

    fn is_start_of(&self, tail: &Tail, size: u64) -> bool {
        self.id == tail.id && self.size <= size && joins(&tail.file, self.size, &self.joint)
    }
}

/// Opens a jitdump that a process mapped as its marker: by its path, or, where another file is
/// there by now or none, by the mapping. `None` when it is not to be had, or not the process's own.
pub fn open_dump(target: Option<&Target>, seen: &DumpSeen) -> Option<Tail> {
    let target = target?;
    let path = open::without_deleted(&seen.path);
    let at_path = target.root.open(path, Links::Refuse).ok();
    let at_path = at_path.filter(|file| files::is_mapped(file, &seen.identity, false));
    let file = at_path.or_else(|| {
        let (start, end) = (seen.range.0.0, seen.range.1.0);
        let mapped = open::open_mapping(seen.whose.pid.0, start, end).ok()?;
        files::is_mapped(&mapped, &seen.identity, true).then_some(mapped)
    })?;
    let facts = file.metadata().ok()?;
    // One that was removed has no name any more.
    let plain = facts.is_file() && facts.nlink() <= 1;
    (plain && target.may_own(facts.uid())).then(|| Tail::over(file, &facts))
}
