//! The few system calls that neither the standard library nor a dependency wraps: epoll, eventfd,
//! signalfd, thread priority. Safe from outside; each `unsafe` says why.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// An epoll instance that waits for any of its descriptors to be readable.
pub struct Poller(OwnedFd);

impl Poller {
    /// Creates it.
    pub fn new() -> io::Result<Poller> {
        // SAFETY: no pointer is passed; the new descriptor is owned by nobody else.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: `fd` was just created and is open.
        Ok(Poller(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Adds a descriptor; `token` comes back when it is readable. It must be removed, or closed in
    /// every process that has it, before it is closed here.
    pub fn add(&self, fd: RawFd, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: token,
        };
        // SAFETY: `event` lives through the call; a bad `fd` is an error, not undefined.
        check(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) })?;
        Ok(())
    }

    /// Removes a descriptor.
    pub fn remove(&self, fd: RawFd) -> io::Result<()> {
        // SAFETY: the event pointer may be null for EPOLL_CTL_DEL since Linux 2.6.9.
        check(unsafe {
            libc::epoll_ctl(
                self.0.as_raw_fd(),
                libc::EPOLL_CTL_DEL,
                fd,
                std::ptr::null_mut(),
            )
        })?;
        Ok(())
    }

    /// Waits until a descriptor is readable or the time is over; calls `ready` with each token. The
    /// time is rounded up to a millisecond, so that a deadline is never woken up for twice. A signal
    /// ends the wait early.
    pub fn wait(&self, timeout: Option<Duration>, mut ready: impl FnMut(u64)) -> io::Result<()> {
        let timeout_ms = match timeout {
            None => -1,
            Some(time) => i32::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX),
        };
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        // SAFETY: `events` has room for the 64 entries announced.
        let result = unsafe {
            libc::epoll_wait(
                self.0.as_raw_fd(),
                events.as_mut_ptr(),
                events.len() as libc::c_int,
                timeout_ms,
            )
        };
        match check(result) {
            Ok(count) => {
                for event in &events[..count as usize] {
                    ready(event.u64);
                }
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// A counter that wakes a thread in [`Poller::wait`].
pub struct WakeFd(OwnedFd);

impl WakeFd {
    /// Creates it.
    pub fn new() -> io::Result<WakeFd> {
        // SAFETY: no pointer is passed; the new descriptor is owned by nobody else.
        let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        // SAFETY: `fd` was just created and is open.
        Ok(WakeFd(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Wakes the waiting thread. A counter that is already full wakes it just as well.
    pub fn wake(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight readable bytes are passed, as eventfd asks for.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Takes the wake-ups that have come, so that the next wait sleeps.
    pub fn clear(&self) {
        let mut count = [0u8; 8];
        // SAFETY: eight writable bytes are passed, as eventfd asks for.
        unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

impl AsRawFd for WakeFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Signals as a descriptor. The signals are blocked for the calling thread and those it starts
/// later, so create it before any thread.
pub struct SignalFd(OwnedFd);

impl SignalFd {
    /// Blocks `signals` and opens a descriptor that reads them.
    pub fn new(signals: &[libc::c_int]) -> io::Result<SignalFd> {
        // SAFETY: a zeroed sigset_t is a valid place for sigemptyset to fill; the set outlives the
        // calls; the new descriptor is owned by nobody else.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for &signal in signals {
                check(libc::sigaddset(&mut set, signal))?;
            }
            check(libc::sigprocmask(
                libc::SIG_BLOCK,
                &set,
                std::ptr::null_mut(),
            ))?;
            let fd = check(libc::signalfd(
                -1,
                &set,
                libc::SFD_CLOEXEC | libc::SFD_NONBLOCK,
            ))?;
            Ok(SignalFd(OwnedFd::from_raw_fd(fd)))
        }
    }

    /// The next signal that has come, if any.
    pub fn next(&self) -> Option<libc::c_int> {
        // SAFETY: all-zero is a valid value of this plain struct; the buffer passed is exactly it.
        let (read, info) = unsafe {
            let mut info: libc::signalfd_siginfo = std::mem::zeroed();
            let size = size_of::<libc::signalfd_siginfo>();
            (
                libc::read(self.0.as_raw_fd(), (&raw mut info).cast(), size),
                info,
            )
        };
        (read == size_of::<libc::signalfd_siginfo>() as isize).then_some(info.ssi_signo as i32)
    }
}

impl AsRawFd for SignalFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Lets other threads go first: nice value for the calling thread, and idle class for its disk I/O.
/// Best effort: without the right the thread stays as it is.
pub fn lower_priority(nice: i32) {
    const IOPRIO_WHO_PROCESS: libc::c_int = 1;
    const IOPRIO_CLASS_IDLE: libc::c_int = 3 << 13;
    // SAFETY: numbers only; on Linux `setpriority(PRIO_PROCESS, tid)` and ioprio_set with who 0
    // concern the calling thread alone.
    unsafe {
        let tid = libc::syscall(libc::SYS_gettid) as libc::id_t;
        libc::setpriority(libc::PRIO_PROCESS, tid, nice);
        libc::syscall(
            libc::SYS_ioprio_set,
            IOPRIO_WHO_PROCESS,
            0,
            IOPRIO_CLASS_IDLE,
        );
    }
}
