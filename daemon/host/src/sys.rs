//! The few system calls that neither the standard library nor a dependency wraps: epoll, eventfd,
//! signalfd, the kernel's events, limits, thread priority. Safe from outside; each `unsafe` says
//! why.

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
        self.control(fd, token, libc::EPOLLIN)
    }

    /// Adds a descriptor that is reported once each time it becomes readable or hangs up. Otherwise
    /// the ring of a CPU that went offline would wake the thread forever.
    pub fn add_edge(&self, fd: RawFd, token: u64) -> io::Result<()> {
        self.control(fd, token, libc::EPOLLIN | libc::EPOLLET)
    }

    fn control(&self, fd: RawFd, token: u64, events: libc::c_int) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: events as u32,
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
    /// time is rounded up to a millisecond, so that a deadline is never woken up for twice. A
    /// signal ends the wait early.
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

    /// Clears wake-ups, so that the next wait sleeps.
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

/// Longest event of the kernel's objects: `UEVENT_BUFFER_SIZE` and a path.
const KERNEL_EVENT_BYTES_MAX: usize = 8192;

/// The kernel's notifications about CPUs and memory that come and go.
pub struct KernelEvents(OwnedFd);

impl KernelEvents {
    /// Listens. Refused to some: in a user namespace, or by a seccomp filter.
    pub fn new() -> io::Result<KernelEvents> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no pointer is passed; the new descriptor is owned by nobody else.
        let fd =
            check(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_KOBJECT_UEVENT) })?;
        // SAFETY: `fd` was just created and is open.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        filter_online(&socket)?;
        // SAFETY: all-zero is a valid value of this plain struct.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        // The kernel's own group; the other is for what udev passes on.
        address.nl_groups = 1;
        let size = size_of_val(&address) as libc::socklen_t;
        // SAFETY: `address` is exactly the struct whose size is passed.
        check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) })?;
        Ok(KernelEvents(socket))
    }

    /// Hands out every event that has come. What somebody else than the kernel sent is left out.
    pub fn each(&self, mut event: impl FnMut(&[u8])) {
        let mut buffer = [0u8; KERNEL_EVENT_BYTES_MAX];
        loop {
            // SAFETY: all-zero is a valid value of this plain struct.
            let mut from: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
            let mut size = size_of_val(&from) as libc::socklen_t;
            // SAFETY: both buffers are writable for the sizes passed.
            let read = unsafe {
                libc::recvfrom(
                    self.0.as_raw_fd(),
                    buffer.as_mut_ptr().cast(),
                    buffer.len(),
                    0,
                    (&raw mut from).cast(),
                    &mut size,
                )
            };
            let Ok(read) = usize::try_from(read) else {
                // Nothing more, or some were dropped: the list of CPUs is looked at besides.
                return;
            };
            if from.nl_pid == 0 {
                event(&buffer[..read]);
            }
        }
    }
}

impl AsRawFd for KernelEvents {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Lets only `online@…` and `offline@…` through: hosts with many containers make thousands of other
/// events, and each would wake the daemon.
fn filter_online(socket: &OwnedFd) -> io::Result<()> {
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let equal = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let give = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut steps = [
        step(load, 0, 0, 0),
        step(equal, 1, 0, u32::from_be_bytes(*b"onli")),
        step(equal, 0, 1, u32::from_be_bytes(*b"offl")),
        step(give, 0, 0, u32::MAX),
        step(give, 0, 0, 0),
    ];
    let program = libc::sock_fprog {
        len: steps.len() as u16,
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: `program` points to as many steps as it says, and both live through the call, which
    // copies them.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of_val(&program) as libc::socklen_t,
        )
    })?;
    Ok(())
}

/// Prevents core dumps of this process, and reading its memory without CAP_SYS_PTRACE, because the
/// rings hold copies of stacks from the complete machine.
pub fn keep_memory_private() -> io::Result<()> {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: numbers, and a struct that lives through the call.
    unsafe {
        check(libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0))?;
        check(libc::setrlimit(libc::RLIMIT_CORE, &none))?;
    }
    Ok(())
}

/// Raises the number of descriptors the process may have to what it is entitled to: one for each
/// CPU and for each executable that runs. Best effort.
pub fn raise_descriptor_limit() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a struct that lives through both calls.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

/// How a thread shares CPU and disk with others. Set from any thread of the process.
#[derive(Clone, Copy, Debug)]
pub struct Priority {
    tid: libc::id_t,
}

impl Priority {
    /// The priority of the calling thread; `None` if it could not be raised again once lowered, as
    /// without CAP_SYS_NICE and RLIMIT_NICE. Such a thread keeps its priority: permanently lowered,
    /// it might never run on a busy machine.
    pub fn of_this_thread() -> Option<Priority> {
        let priority = Priority::calling();
        priority.set_nice(1).ok()?;
        priority.set_nice(0).ok()?;
        Some(priority)
    }

    fn calling() -> Priority {
        // SAFETY: no argument, and it cannot fail.
        let tid = unsafe { libc::syscall(libc::SYS_gettid) } as libc::id_t;
        Priority { tid }
    }

    /// The priority of no thread.
    #[cfg(test)]
    pub fn none() -> Priority {
        Priority {
            tid: libc::id_t::MAX,
        }
    }

    /// Lets other threads go first: this nice value, and the idle class for disk I/O.
    pub fn lower(self, nice: i32) {
        const IDLE: libc::c_int = 3 << 13;
        let _ = self.set_nice(nice);
        self.set_io(IDLE);
    }

    /// Sets this nice value for the calling thread, if the daemon may: as root, or with
    /// CAP_SYS_NICE or RLIMIT_NICE. Returns whether it was set.
    pub fn prefer_this_thread(nice: i32) -> bool {
        let priority = Priority::calling();
        priority.set_nice(nice).is_ok()
    }

    /// Back to what every thread has.
    pub fn raise(self) {
        let _ = self.set_nice(0);
        self.set_io(0);
    }

    fn set_nice(self, nice: i32) -> io::Result<()> {
        // SAFETY: numbers only; on Linux `setpriority(PRIO_PROCESS, tid)` concerns one thread.
        check(unsafe { libc::setpriority(libc::PRIO_PROCESS, self.tid, nice) })?;
        Ok(())
    }

    fn set_io(self, priority: libc::c_int) {
        const IOPRIO_WHO_PROCESS: libc::c_int = 1;
        // SAFETY: numbers only; with this kind of `who` it concerns one thread.
        unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, self.tid, priority) };
    }
}

/// Has the heap give large blocks back as soon as they are free. glibc raises the size of what it
/// takes from the machine block by block to that of the largest block freed, so that a section of
/// 30 MB read once leaves holes of that size: 50 MiB became 39 under a load of compilers.
pub fn keep_heap_small() {
    /// Larger ones are mapped. glibc's own first value.
    #[cfg(target_env = "gnu")]
    const LARGE_BLOCK_BYTES: libc::c_int = 128 << 10;
    #[cfg(target_env = "gnu")]
    // SAFETY: numbers only; called before there are other threads.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, LARGE_BLOCK_BYTES);
    }
}

/// Asks for pages as large as there are under these words, which are to be looked up at random:
/// each small page would need an entry of its own in the CPU's table of pages. A kernel may refuse.
pub fn want_large_pages(words: &[u64]) {
    let (start, bytes) = (words.as_ptr().cast_mut().cast(), size_of_val(words));
    // SAFETY: the range is that of `words`, which are borrowed; the advice changes no byte.
    unsafe { libc::madvise(start, bytes, libc::MADV_HUGEPAGE) };
}

/// Returns free heap memory to the machine; true if there was some. Holds the locks of the heap for
/// some milliseconds. Does nothing if the C library is not glibc.
pub fn trim_heap() -> bool {
    #[cfg(target_env = "gnu")]
    // SAFETY: a number only; malloc_trim may be called at any time from any thread.
    return unsafe { libc::malloc_trim(0) } == 1;
    #[cfg(not(target_env = "gnu"))]
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nice_of(tid: libc::id_t) -> i32 {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).expect("stat");
        let fields = stat.rsplit(')').next().expect("fields after the name");
        let nice = fields
            .split_ascii_whitespace()
            .nth(16)
            .expect("a nice value");
        nice.parse().expect("a number")
    }

    #[test]
    fn a_lowered_thread_is_raised_by_another_needs_root() {
        // The harness gives every test a thread of its own, which ends with it.
        let Some(priority) = Priority::of_this_thread() else {
            testkit::skip("this user may not raise priorities");
            return;
        };
        priority.lower(10);
        assert_eq!(nice_of(priority.tid), 10);
        let other = std::thread::spawn(move || priority.raise());
        other.join().expect("no panic");
        assert_eq!(nice_of(priority.tid), 0);
    }

    #[test]
    fn a_thread_that_is_preferred_is_the_only_one_needs_root() {
        let before = nice_of(std::process::id());
        if !Priority::prefer_this_thread(-10) {
            testkit::skip("this user may not raise priorities");
            return;
        }
        assert_eq!(nice_of(Priority::calling().tid), -10);
        assert_eq!(nice_of(std::process::id()), before);
    }
}
