//! The body of the `fp-look` thread: reads the memory of threads for the sampler.
//!
//! Reading another process's memory may take forever: its pages may come from a userfaultfd or a
//! FUSE server, or its locks may be held. Helpers, `fp-blocking`, read it, one process at a time,
//! and the thread waits for them only for a limited time; a process on which a helper hung is not
//! read again. The memory is a stack and may hold secrets: it stays in one buffer that is excluded
//! from core dumps and cleared after each piece, and only addresses leave it
//! (`unwind/src/walk/look.rs`). Pages at which copies of stacks end are read only to make them
//! present (`unwind/src/walk/holes.rs`).

use hashbrown::HashSet;
use host::blocking_pool::BlockingPool;
use host::ids::{Pid, ProcessId};
use host::time::MonotonicTime;
use memmap2::{Advice, MmapMut};
use perf::watch::Watchpoint;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::Duration;
use unwind::process::maps;
use unwind::walk::deep_stacks::LOOKS_MAX;
use unwind::walk::holes::{HOLE_BYTES, Hole};
use unwind::walk::look::{
    Failure, Sieve, StackReadAnswer, StackReadRequest, StackSnapshot, Thread,
};

/// Requests that wait, and answers that wait. No more looks are under way at once; readings of
/// untouched pages wait in the same queue, behind them.
pub const QUEUED_MAX: usize = LOOKS_MAX;

/// Longest wait for one look. It takes less than a millisecond; with pages that come from a disk,
/// or on a machine without CPU to spare, some hundred.
const WAIT: Duration = Duration::from_secs(1);

/// How much of a stack is looked at, from the return address out. Unit: bytes. A look at more finds
/// whoever has frames of this size; it is cut as before.
const LOOK_BYTES: u64 = 256 << 10;

/// Bytes before the return address that are read too: the registers that the function saved. Six
/// registers of eight bytes, and room for what some functions store in between.
const BEFORE_BYTES: u64 = 128;

/// How much is read at a time. Unit: bytes; full pages.
const PIECE_BYTES: usize = 32 << 10;

/// A page of memory, or a part of one.
const PAGE_BYTES: usize = 4096;

/// Other stacks of a process in which a hole is read too. Each may cost the process a page for its
/// page table.
const STACKS_MAX: usize = 64;

/// Time from which on other stacks are left as they are.
const OTHERS_TIME: Duration = Duration::from_millis(50);

/// Longest list of mappings read. Unit: bytes. Some 10,000 mappings: reading it holds a lock that
/// the process needs to map memory.
const MAPS_BYTES_MAX: u64 = 1 << 20;

/// Processes remembered to have hung. When there are more, all are forgiven.
const HUNG_MAX: usize = 1024;

/// A request of the sampler.
#[derive(Debug)]
pub enum Request {
    /// Look at a stack.
    StackSnapshot(StackReadRequest),
    /// Read the pages from where a copy ended, so that they are there.
    Touch(Hole),
    /// Close a watch that is not needed any more, which takes locks.
    Close(Watchpoint),
}

/// Looks, each in its time.
pub struct StackReader {
    helpers: BlockingPool,
    hung: HashSet<ProcessId>,
    look: fn(StackReadRequest) -> Result<StackSnapshot, Failure>,
}

impl Default for StackReader {
    fn default() -> Self {
        StackReader {
            helpers: BlockingPool::new("peek"),
            hung: HashSet::new(),
            look,
        }
    }
}

impl StackReader {
    /// Serves the sampler until it hangs up.
    pub fn run(mut self, requests: &Receiver<Request>, answers: &SyncSender<StackReadAnswer>) {
        while let Ok(request) = requests.recv() {
            match request {
                Request::StackSnapshot(wanted) => {
                    let look = self.look(wanted);
                    // There is room for all that are waited for.
                    let _ = answers.try_send(StackReadAnswer { wanted, look });
                }
                // What comes of it is seen in the next samples.
                Request::Touch(hole) => drop(self.in_time(hole.thread.0, move || touch(hole))),
                Request::Close(watch) => drop(watch),
            }
        }
    }

    fn look(&mut self, wanted: StackReadRequest) -> Result<StackSnapshot, Failure> {
        let look = self.look;
        self.in_time(wanted.thread.0, move || look(wanted))
    }

    /// Has a helper work on the memory of a process, which may take forever.
    fn in_time<T: Send + 'static>(
        &mut self,
        process: ProcessId,
        work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        if self.hung.contains(&process) {
            return Err(Failure::Shunned);
        }
        let pending = self.helpers.spawn(work);
        match pending.ok_or(Failure::Shunned)?.wait(WAIT) {
            Ok(done) => done,
            Err(None) => Err(Failure::Unreadable),
            Err(Some(_)) => {
                if self.hung.len() == HUNG_MAX {
                    self.hung.clear();
                }
                self.hung.insert(process);
                Err(Failure::Late)
            }
        }
    }
}

/// One read. May block forever.
///
/// Everything is opened relative to the thread's own directory in /proc, which is that of no other
/// thread when its number is used again; the file of its memory is that of one program, and empty
/// after an exec. So the look is of the thread that was alive and watched when it ended, and a
/// thread or program that came too early or too late for that has no samples to be completed with
/// it.
fn look(wanted: StackReadRequest) -> Result<StackSnapshot, Failure> {
    let StackReadRequest { thread, pid, slot } = wanted;
    let dir = thread_dir(thread, pid).map_err(failure)?;
    let within = |name| File::open(format!("/proc/self/fd/{}/{name}", dir.as_raw_fd()));
    let memory = within("mem").map_err(failure)?;
    let maps = within("maps").map_err(failure)?;
    let (code, stack) = ranges(maps, slot)?;
    let watch = Watchpoint::arm(thread.1, slot).map_err(failure)?;
    let armed = MonotonicTime::now();
    let base = slot.saturating_sub(BEFORE_BYTES).max(stack.start);
    let end = stack.end.min(slot.saturating_add(LOOK_BYTES));
    let mut sieve = Sieve::new(base, stack.end, &code);
    read(&memory, base..end, &mut sieve)?;
    let words = sieve.words();
    // It still lives, so that its number was its own when the watch was armed.
    within("stat")
        .and_then(|mut stat| stat.read(&mut [0; 1]))
        .map_err(failure)?;
    if !watch.is_untouched() {
        return Err(Failure::Returned);
    }
    if words.get(slot).is_none() {
        return Err(Failure::Unreadable);
    }
    Ok(StackSnapshot {
        words,
        watch,
        armed,
    })
}

fn thread_dir(thread: Thread, pid: Pid) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECTORY)
        .open(format!("/proc/{}/task/{}", pid.0, thread.1.0))
}

/// Reads a byte of each page in a hole that was never touched, and in the same place of other
/// threads' stacks, which run the same code, as far as that takes no time. May block forever. Only
/// for private memory without a file behind it that was not swapped out, because elsewhere it might
/// bring in more than a page of zeros.
fn touch(hole: Hole) -> Result<(), Failure> {
    let dir = thread_dir(hole.thread, hole.pid).map_err(failure)?;
    let within = |name| File::open(format!("/proc/self/fd/{}/{name}", dir.as_raw_fd()));
    let maps = within("maps").map_err(failure)?.take(MAPS_BYTES_MAX);
    let maps = BufReader::with_capacity(16 << 10, maps);
    let stacks = maps::alike(maps, hole.start, STACKS_MAX);
    let own = stacks.first().ok_or(Failure::Unreadable)?;
    let into = hole.start - own.start;
    let memory = within("mem").map_err(failure)?;
    let pages = within("pagemap").map_err(failure)?;
    let started = MonotonicTime::now();
    let mut byte = [0];
    for stack in &stacks {
        let start = stack.start + into;
        let end = stack.end.min(start.saturating_add(HOLE_BYTES));
        for page in untouched(&pages, start..end).map_err(failure)? {
            if stack != own && MonotonicTime::now().since(started) > OTHERS_TIME {
                return Ok(());
            }
            let read = memory.read_at(&mut byte, page);
            byte = std::hint::black_box([0]);
            match read {
                Ok(_) => {}
                Err(error) if stack == own => return Err(failure(error)),
                Err(_) => break,
            }
        }
    }
    Ok(())
}

/// The pages of a range that are neither in memory nor swapped out (bits 63 and 62 of what
/// `/proc/PID/pagemap` has of a page, Documentation/admin-guide/mm/pagemap.rst).
fn untouched(pagemap: &File, range: Range<u64>) -> io::Result<impl Iterator<Item = u64>> {
    const ENTRY: usize = size_of::<u64>();
    let mut entries = [0; HOLE_BYTES as usize / PAGE_BYTES * ENTRY];
    let pages = (range.end.saturating_sub(range.start) as usize).div_ceil(PAGE_BYTES);
    let bytes = (pages * ENTRY).min(entries.len());
    let at = range.start / PAGE_BYTES as u64 * ENTRY as u64;
    pagemap.read_exact_at(&mut entries[..bytes], at)?;
    let first = range.start;
    let untouched = move |number: usize| {
        let entry = &entries[number * ENTRY..(number + 1) * ENTRY];
        let entry = entry
            .iter()
            .rev()
            .fold(0u64, |all, &byte| all << 8 | u64::from(byte));
        (entry >> 62 == 0).then_some(first + (number * PAGE_BYTES) as u64)
    };
    Ok((0..bytes / ENTRY).filter_map(untouched))
}

/// Reads a range of memory into `sieve`, up to where it cannot be read.
fn read(memory: &File, range: Range<u64>, sieve: &mut Sieve<'_>) -> Result<(), Failure> {
    let mut buffer = Buffer::new().map_err(failure)?;
    let mut at = range.start;
    while at < range.end {
        // Pieces end at page boundaries, so a page that cannot be read costs nothing before it.
        let piece = (range.end - at).min(PIECE_BYTES as u64 - at % 4096) as usize;
        let bytes = &mut buffer.0[..piece];
        let read = match memory.read_at(bytes, at) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if at == range.start => return Err(failure(error)),
            Err(_) => return Ok(()),
        };
        let whole = read / 8 * 8;
        let goes_on = sieve.add(at, &bytes[..whole]);
        buffer.clear();
        if !goes_on || whole == 0 {
            return Ok(());
        }
        at += whole as u64;
    }
    Ok(())
}

/// The only place for what is read: outside the heap, excluded from core dumps, cleared at the end.
struct Buffer(MmapMut);

impl Buffer {
    fn new() -> io::Result<Buffer> {
        let memory = MmapMut::map_anon(PIECE_BYTES)?;
        memory.advise(Advice::DontDump)?;
        Ok(Buffer(memory))
    }

    fn clear(&mut self) {
        self.0.fill(0);
        // The compiler cannot know that nobody looks.
        std::hint::black_box(&mut self.0[..]);
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.clear();
    }
}

/// The executable ranges of a process, in order, and the mapping that holds `slot`.
fn ranges(maps: File, slot: u64) -> Result<(Vec<Range<u64>>, Range<u64>), Failure> {
    let mut text = BufReader::with_capacity(16 << 10, maps.take(MAPS_BYTES_MAX));
    let mut code: Vec<Range<u64>> = Vec::new();
    let mut stack = None;
    maps::ranges(&mut text, |range, executable| {
        if executable {
            code.push(range.clone());
        }
        if range.contains(&slot) {
            stack = Some(range);
        }
    });
    if text.get_ref().limit() == 0 {
        return Err(Failure::Mappings);
    }
    Ok((code, stack.ok_or(Failure::Unreadable)?))
}

fn failure(error: io::Error) -> Failure {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => Failure::Denied,
        Some(libc::ENOSPC | libc::EBUSY) => Failure::Busy,
        Some(libc::ESRCH) => Failure::Gone,
        Some(libc::EOPNOTSUPP | libc::ENODEV | libc::ENOSYS) => Failure::Unsupported,
        // A file in /proc, or an event that the machine does not have: the former is common.
        Some(libc::ENOENT) => Failure::Gone,
        _ => Failure::Unreadable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::ids::Tid;
    use std::sync::mpsc::sync_channel;

    fn this_thread() -> (Pid, Tid) {
        let path = std::fs::read_link("/proc/thread-self").expect("a thread");
        let tid = path
            .file_name()
            .and_then(|name| name.to_str()?.parse().ok());
        (Pid(std::process::id()), Tid(tid.expect("a number")))
    }

    fn wanted(slot: u64) -> StackReadRequest {
        let (pid, tid) = this_thread();
        StackReadRequest {
            thread: (ProcessId(1), tid),
            pid,
            slot,
        }
    }

    /// A look by another thread, as `fp-blocking` does it.
    fn look_at(slot: u64) -> Result<StackSnapshot, Failure> {
        let wanted = wanted(slot);
        std::thread::spawn(move || look(wanted))
            .join()
            .expect("no panic")
    }

    #[repr(align(8))]
    struct Frame {
        before: [u64; 4],
        returns_to: u64,
        secret: [u64; 512],
        saved: u64,
    }

    #[test]
    fn addresses_on_the_stack_are_seen_and_secrets_are_not_needs_root() {
        let secret = u64::from_le_bytes(*b"hunter2!");
        let mut frame = Frame {
            before: [secret; 4],
            returns_to: this_thread as fn() -> (Pid, Tid) as usize as u64 + 5,
            secret: [secret; 512],
            saved: 0,
        };
        frame.saved = (&raw const frame.saved) as u64 + 64;
        let frame = std::hint::black_box(&frame);
        let slot = (&raw const frame.returns_to) as u64;
        let look = match look_at(slot) {
            Err(Failure::Denied | Failure::Unsupported) => {
                return testkit::skip("no look can be had");
            }
            look => look.expect("a look"),
        };
        assert_eq!(look.words.get(slot), Some(frame.returns_to));
        let saved = (&raw const frame.saved) as u64;
        assert_eq!(look.words.get(saved), Some(frame.saved));
        for word in frame.before.iter().chain(&frame.secret) {
            assert_eq!(*word, secret);
            assert_eq!(look.words.get((&raw const *word) as u64), None);
        }
        let sent = format!("{look:?}");
        assert!(!sent.contains(&secret.to_string()), "{sent}");
    }

    #[test]
    fn where_nothing_is_mapped_there_is_no_look() {
        assert!(matches!(look_at(8), Err(Failure::Unreadable)));
    }

    #[test]
    fn a_page_that_was_read_is_there_needs_root() {
        let memory = MmapMut::map_anon(HOLE_BYTES as usize).expect("memory");
        let start = memory.as_ptr() as u64;
        // Bit 63 of what /proc/self/pagemap has of a page.
        let present = || {
            let pagemap = File::open("/proc/self/pagemap").expect("a pagemap");
            let mut entry = [0; 8];
            let at = start / PAGE_BYTES as u64 * 8;
            pagemap.read_exact_at(&mut entry, at).expect("an entry");
            u64::from_le_bytes(entry) >> 63 == 1
        };
        assert!(!present());
        let (pid, tid) = this_thread();
        let thread = (ProcessId(1), tid);
        touch(Hole { thread, pid, start }).expect("readable");
        assert!(present());
    }

    #[test]
    fn a_thread_that_is_gone_is_not_looked_at() {
        let (pid, tid) = std::thread::spawn(this_thread).join().expect("no panic");
        let wanted = StackReadRequest {
            thread: (ProcessId(1), tid),
            pid,
            slot: 8,
        };
        assert!(matches!(look(wanted), Err(Failure::Gone)));
    }

    #[test]
    fn a_process_that_hangs_is_left_and_others_are_looked_at() {
        let mut reader = StackReader {
            look: |wanted| match wanted.thread.0 {
                ProcessId(1) => loop {
                    std::thread::park();
                },
                _ => Err(Failure::Gone),
            },
            ..StackReader::default()
        };
        let mut look = |process, tid| {
            let thread = (ProcessId(process), Tid(tid));
            reader.look(StackReadRequest {
                thread,
                ..wanted(8)
            })
        };
        assert!(matches!(look(1, 1), Err(Failure::Late)));
        assert!(matches!(look(1, 2), Err(Failure::Shunned)));
        assert!(matches!(look(2, 3), Err(Failure::Gone)));
        assert_eq!(reader.helpers.late(), 1);
    }

    #[test]
    fn every_question_is_answered() {
        let (ask, requests) = sync_channel(1);
        let (answers, answered) = sync_channel(1);
        ask.send(Request::StackSnapshot(wanted(8))).expect("room");
        drop(ask);
        StackReader::default().run(&requests, &answers);
        let answer = answered.recv().expect("an answer");
        assert_eq!(answer.wanted, wanted(8));
        assert!(answer.look.is_err());
    }
}
