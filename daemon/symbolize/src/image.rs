//! The content of a file, wherever it is: on a local file system, on one that may stop answering,
//! or in memory.
//!
//! Helpers read files of the second kind. Each read has a bound, and so have all reads of one file
//! together, so that a server that answers just in time delays nobody for long.

use super::budget::Owner;
use super::elf::ReadAt;
use super::mounts;
use host::blocking_pool::BlockingPool;
use host::sync::lock;
use host::time::MonotonicTime;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

/// The content of a file: open, or in memory.
#[derive(Clone, Debug)]
pub enum Image {
    /// An open file and what it looked like when it was found to be the right one.
    File(Arc<File>, Stamp),
    /// Likewise, on a file system that may stop answering.
    Remote(Arc<Remote>),
    /// A copy in memory.
    Memory(Arc<[u8]>),
}

/// Shows whether a file was written to since. Size in bytes, modification time in seconds and
/// nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(u64, i64, i64);

impl Stamp {
    /// The file's stamp now.
    ///
    /// # Errors
    /// When the file system does not answer.
    pub fn of(file: &File) -> io::Result<Stamp> {
        let facts = file.metadata()?;
        Ok(Stamp(facts.len(), facts.mtime(), facts.mtime_nsec()))
    }
}

impl Image {
    /// An open file as it is now. May wait forever.
    ///
    /// # Errors
    /// When the file system does not answer.
    pub fn open(file: File) -> io::Result<Image> {
        let stamp = Stamp::of(&file)?;
        if mounts::is_remote(&file) {
            return Ok(Image::Remote(Arc::new(Remote {
                file: Some(Arc::new(file)),
                stamp,
                late: AtomicBool::new(false),
                waits: Mutex::default(),
            })));
        }
        Ok(Image::File(Arc::new(file), stamp))
    }

    /// False when the file was written to since it was opened: what it says now is about other
    /// code than what ran.
    pub fn unchanged(&self) -> bool {
        match self {
            Image::File(file, stamp) => Stamp::of(file).is_ok_and(|now| now == *stamp),
            Image::Remote(remote) => {
                let now = remote.ask(Stamp::of);
                now.is_ok_and(|now| now == remote.stamp)
            }
            Image::Memory(_) => true,
        }
    }

    /// The owner of the file, who is charged for the time of reading it. A file system that may not
    /// answer is an owner of its own.
    pub(super) fn owner(&self, host_devices: &[u64]) -> Owner {
        let facts = match self {
            Image::File(file, _) => file.metadata(),
            Image::Remote(remote) => remote.ask(File::metadata),
            Image::Memory(_) => return Owner::Host,
        };
        let facts = facts.map_or((u32::MAX, 0), |facts| (facts.uid(), facts.dev()));
        Owner::of(facts.0, facts.1, host_devices)
    }
}

impl ReadAt for Image {
    fn read_exact_at(&self, to: &mut [u8], offset: u64) -> io::Result<()> {
        match self {
            Image::File(file, _) => ReadAt::read_exact_at(&**file, to, offset),
            Image::Remote(remote) => {
                let len = to.len();
                let bytes = remote.ask(move |file| {
                    let mut bytes = vec![0; len];
                    ReadAt::read_exact_at(file, &mut bytes, offset)?;
                    Ok(bytes)
                })?;
                to.copy_from_slice(&bytes);
                Ok(())
            }
            Image::Memory(bytes) => bytes.read_exact_at(to, offset),
        }
    }

    fn read_some_at(&self, to: &mut [u8], offset: u64) -> io::Result<usize> {
        match self {
            Image::File(file, _) => file.read_some_at(to, offset),
            Image::Remote(remote) => {
                let len = to.len();
                let bytes = remote.ask(move |file| {
                    let mut bytes = vec![0; len];
                    let got = file.read_some_at(&mut bytes, offset)?;
                    bytes.truncate(got);
                    Ok(bytes)
                })?;
                to[..bytes.len()].copy_from_slice(&bytes);
                Ok(bytes.len())
            }
            Image::Memory(bytes) => bytes.read_some_at(to, offset),
        }
    }
}

/// Longest wait for one reading of a file on a file system that may stop answering. Over a network
/// a reading takes milliseconds; one that took this long is not tried again.
const READ_WAIT: Duration = Duration::from_secs(2);

/// Longest sum of waits for the reads of one file. A file system may answer each read just in time,
/// and a large symbol table takes a thousand reads: the symbolizer would wait for half an hour.
/// Beyond it the file is abandoned. If it is too small, so are large files on a network with
/// answers that take more than ten milliseconds.
const WAITS_MAX: Duration = Duration::from_secs(20);

/// Fraction of the passing time that is subtracted from the sum, so that a file in use for days is
/// not abandoned because of many short waits.
const WAITS_FORGOTTEN: u32 = 60;

/// Waits for the answers of one file.
#[derive(Debug, Default)]
struct Waits {
    sum: Duration,
    /// When the last one ended.
    until: MonotonicTime,
}

impl Waits {
    /// Adds one that ended at `now`; false when they are too long together.
    fn add(&mut self, took: Duration, now: MonotonicTime) -> bool {
        let forgotten = now.since(self.until) / WAITS_FORGOTTEN;
        self.sum = self.sum.saturating_sub(forgotten).saturating_add(took);
        self.until = now;
        self.sum <= WAITS_MAX
    }
}

/// Reads files on such file systems, for all stages. Busy helpers may be at work for another
/// thread: that only makes the bound on late ones stricter.
static READERS: LazyLock<BlockingPool> = LazyLock::new(|| BlockingPool::new("read"));

/// An open file on a file system that may stop answering: read by helpers, and given up for good
/// when one of them is late.
#[derive(Debug)]
pub struct Remote {
    /// Closed by a helper: closing asks the file system too. `None` only while this is dropped.
    file: Option<Arc<File>>,
    stamp: Stamp,
    late: AtomicBool,
    waits: Mutex<Waits>,
}

impl Remote {
    fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&File) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let Some(file) = self
            .file
            .clone()
            .filter(|_| !self.late.load(Ordering::Relaxed))
        else {
            return Err(io::ErrorKind::TimedOut.into());
        };
        let started = MonotonicTime::now();
        let answer = READERS.run(READ_WAIT, move || question(&file));
        let now = MonotonicTime::now();
        let mut waits = lock(&self.waits);
        if !waits.add(now.since(started), now) {
            self.late.store(true, Ordering::Relaxed);
        }
        drop(waits);
        answer.unwrap_or_else(|| {
            self.late.store(true, Ordering::Relaxed);
            Err(io::ErrorKind::TimedOut.into())
        })
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // Work that no helper takes is dropped here, and with it only the wrapper: a descriptor
        // that stays open is better than a thread that waits for its close.
        let file = ManuallyDrop::new(self.file.take());
        let _ = READERS.spawn(move || drop(ManuallyDrop::into_inner(file)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers that take so long, one after the other: how many until the file is given up.
    fn answers(took: Duration, apart: Duration) -> Option<u32> {
        let (mut waits, mut now) = (Waits::default(), MonotonicTime(1));
        (1..100_000).find(|_| {
            now = now.plus(apart).plus(took);
            !waits.add(took, now)
        })
    }

    #[test]
    fn a_file_whose_answers_come_just_in_time_is_given_up_after_seconds() {
        let (none, just) = (Duration::ZERO, READ_WAIT - Duration::from_millis(1));
        assert_eq!(answers(just, none), Some(11));
        let quick = answers(Duration::from_millis(5), none).expect("in the end");
        assert!((4_000..4_200).contains(&quick), "{quick}");
    }

    #[test]
    fn a_file_that_is_asked_now_and_then_is_not_given_up() {
        let second = Duration::from_secs(1);
        assert_eq!(answers(second / 10, 10 * second), None);
    }
}
