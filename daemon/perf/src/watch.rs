//! A watch on one word of a thread's memory: it detects whether the thread has written to it since.
//!
//! The word is the return address of a frame. A new call writes it, so as long as it is not written
//! the same call is still running, and with it all outer frames. The watch is one of the CPU's
//! debug registers, set by the kernel whenever the thread runs (perf_event_open(2),
//! `PERF_TYPE_BREAKPOINT`). The first write costs the thread one exception and ends the watch, so a
//! frequently written word costs no more than one that is written once.

use host::ids::Tid;
use perf_event_open_sys::{self as perf, bindings as sys};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A watch that is on, or has seen its write.
#[derive(Debug)]
pub struct Watchpoint(OwnedFd);

impl Watchpoint {
    /// Watches the eight bytes at `address`, a multiple of eight, for what the thread writes there
    /// from now on, or the kernel for it: it makes the frames of signal handlers. Takes locks of
    /// the thread's process: may block.
    ///
    /// # Errors
    /// What the kernel says: EPERM and EACCES without CAP_PERFMON, ENOSPC when a debugger has all
    /// registers, ESRCH when the thread is gone, ENOENT or EOPNOTSUPP where the machine has none.
    pub fn arm(tid: Tid, address: u64) -> io::Result<Watchpoint> {
        let mut attributes = sys::perf_event_attr::default();
        attributes.type_ = sys::PERF_TYPE_BREAKPOINT;
        attributes.size = size_of::<sys::perf_event_attr>() as u32;
        attributes.bp_type = sys::HW_BREAKPOINT_W;
        attributes.__bindgen_anon_3.bp_addr = address;
        attributes.__bindgen_anon_4.bp_len = 8;
        attributes.__bindgen_anon_1.sample_period = 1;
        attributes.read_format =
            u64::from(sys::PERF_FORMAT_TOTAL_TIME_ENABLED | sys::PERF_FORMAT_TOTAL_TIME_RUNNING);
        attributes.set_disabled(1);
        attributes.set_exclude_hv(1);
        let tid = i32::try_from(tid.0).map_err(io::Error::other)?;
        let flags = sys::PERF_FLAG_FD_CLOEXEC.into();
        // SAFETY: `attributes` lives through the call and says its own size; all else are numbers.
        let fd = unsafe { perf::perf_event_open(&mut attributes, tid, -1, -1, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` was just created and is owned by nobody else.
        let watch = Watchpoint(unsafe { OwnedFd::from_raw_fd(fd) });
        // On until its first overflow, which is the first write.
        // SAFETY: a number only; the descriptor is a perf event's.
        match unsafe { perf::ioctls::REFRESH(watch.0.as_raw_fd(), 1) } {
            0 => Ok(watch),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// True when the thread has written nothing there since the watch was armed, and was watched
    /// all the time that it ran. Never blocks; some hundred nanoseconds, or microseconds while it
    /// runs.
    pub fn is_untouched(&self) -> bool {
        // Count of writes, time enabled, time running.
        let mut words = [0u64; 3];
        // SAFETY: `words` is writable for the size passed.
        let read = unsafe {
            libc::read(
                self.0.as_raw_fd(),
                words.as_mut_ptr().cast(),
                size_of_val(&words),
            )
        };
        read == size_of_val(&words) as isize && words[0] == 0 && words[1] == words[2]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc::sync_channel;

    /// Runs `body` with the tid of a thread that writes to `word` on request, and a function that
    /// requests it and waits until it is done.
    fn with_writer(body: impl FnOnce(Tid, &AtomicU64, &dyn Fn())) {
        static WORD: AtomicU64 = AtomicU64::new(0);
        let (tell, told) = sync_channel::<()>(1);
        let (tid_to, tid_of) = sync_channel(1);
        let (done_to, done_of) = sync_channel(1);
        let writer = std::thread::spawn(move || {
            let tid = std::fs::read_link("/proc/thread-self").expect("a thread");
            let tid = tid.file_name().and_then(|name| name.to_str()?.parse().ok());
            tid_to.send(Tid(tid.expect("a number"))).expect("wanted");
            while told.recv().is_ok() {
                WORD.fetch_add(1, Ordering::Relaxed);
                done_to.send(()).expect("wanted");
            }
        });
        let tid = tid_of.recv().expect("a tid");
        body(tid, &WORD, &|| {
            tell.send(()).expect("it waits");
            done_of.recv().expect("it writes");
        });
        drop(tell);
        writer.join().expect("no panic");
    }

    #[test]
    fn the_first_write_is_seen_and_writes_before_are_not_needs_root() {
        with_writer(|tid, word, write| {
            write();
            let watch = match Watchpoint::arm(tid, word.as_ptr() as u64) {
                Ok(watch) => watch,
                Err(error) => return testkit::skip(format_args!("no watch can be had: {error}")),
            };
            assert!(watch.is_untouched());
            write();
            assert!(!watch.is_untouched());
            write();
            assert!(!watch.is_untouched(), "it stays so");
        });
    }

    #[test]
    fn what_the_kernel_writes_for_the_thread_is_seen_needs_root() {
        let path = std::fs::read_link("/proc/thread-self").expect("a thread");
        let tid = path
            .file_name()
            .and_then(|name| name.to_str()?.parse().ok());
        let tid = Tid(tid.expect("a number"));
        let mut words = Box::new([0u64; 2]);
        let Ok(watch) = Watchpoint::arm(tid, words.as_ptr() as u64 + 8) else {
            return testkit::skip("no watch can be had");
        };
        let zeros = std::fs::File::open("/dev/zero").expect("zeros");
        // SAFETY: the words are writable for their size.
        let read = unsafe { libc::read(zeros.as_raw_fd(), words.as_mut_ptr().cast(), 8) };
        assert_eq!(read, 8);
        assert!(watch.is_untouched(), "the word before");
        // SAFETY: as above.
        let read = unsafe { libc::read(zeros.as_raw_fd(), words.as_mut_ptr().cast(), 16) };
        assert_eq!(read, 16);
        assert!(!watch.is_untouched());
    }

    #[test]
    fn what_lies_beside_the_word_is_not_watched_needs_root() {
        with_writer(|tid, word, write| {
            let Ok(watch) = Watchpoint::arm(tid, word.as_ptr() as u64 + 8) else {
                return testkit::skip("no watch can be had");
            };
            write();
            assert!(watch.is_untouched());
        });
    }
}
