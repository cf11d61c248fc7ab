//! The system call that nothing else wraps: filters of calls. Safe from outside; each `unsafe` says
//! why.

use std::io;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Has the kernel run `program` on every system call of every thread of the process, for good, and
/// of those that they start.
///
/// # Errors
/// When the kernel has no filters, or a thread has others than this one.
pub fn install_filter(program: &[libc::sock_filter]) -> io::Result<()> {
    let too_long = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(too_long)?,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: numbers alone are passed.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    // Without the second flag kernels before 5.16 switch a mitigation on that slows all of it down.
    let flags = libc::SECCOMP_FILTER_FLAG_TSYNC | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    // SAFETY: `filter` and the program that it points to live through the call, which copies and
    // checks them and changes neither.
    let thread = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const filter,
        )
    };
    match thread {
        0 => Ok(()),
        ..0 => Err(io::Error::last_os_error()),
        thread => Err(io::Error::other(format!(
            "thread {thread} already has a filter"
        ))),
    }
}
