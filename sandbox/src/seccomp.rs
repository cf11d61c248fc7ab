//! A filter of system calls: calls that a daemon never makes fail with EPERM.
//!
//! It lists what is denied, not what is allowed: libraries and kernels change which calls they use,
//! and a daemon that is killed for that helps nobody. The result depends only on the number of the
//! call, so that kernels since 5.11 look it up in a bitmap and do not run the filter for allowed
//! calls.

use crate::sys;
use libc::{c_long, sock_filter};
use std::io;

/// Denied calls: starting programs, reading and changing other processes other than through
/// `/proc`, changing mounts, namespaces, the kernel itself and its keys, the clock, other ways
/// around this filter.
const REFUSED: &[c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_mount_setattr,
    libc::SYS_fspick,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_bpf,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_vhangup,
    libc::SYS_userfaultfd,
    libc::SYS_open_by_handle_at,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_personality,
];

/// Also refused on x86-64.
#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[c_long] = &[
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_uselib,
];

/// Also refused.
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[c_long] = &[];

/// Refused to a program that looks at no other process: to sample, to read the memory of others,
/// to become somebody else, to make devices.
const LOOKS: &[c_long] = &[
    libc::SYS_perf_event_open,
    libc::SYS_process_vm_readv,
    libc::SYS_process_madvise,
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_capset,
    libc::SYS_mknodat,
    libc::SYS_fanotify_init,
    libc::SYS_name_to_handle_at,
    libc::SYS_syslog,
];

/// Rarely needed calls that a program keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// It samples, and looks at other processes. `mounts`: it may have to make a file system of its
    /// own.
    Profiler {
        /// See there.
        mounts: bool,
    },
    /// It answers on sockets and keeps files.
    Server,
}

/// Calls that create a mount without a path, for tracefs if the host has none mounted.
const MOUNTS: &[c_long] = &[libc::SYS_fsopen, libc::SYS_fsconfig, libc::SYS_fsmount];

/// How the kernel names this architecture: `AUDIT_ARCH_…` of linux/audit.h.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
/// How the kernel names this architecture: `AUDIT_ARCH_…` of linux/audit.h.
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// Numbers from here on are of x32, which has calls of its own.
const X32: u32 = 0x4000_0000;

/// Where a filter finds the number and the architecture of a call: `struct seccomp_data`.
const NUMBER_AT: u32 = std::mem::offset_of!(libc::seccomp_data, nr) as u32;
const ARCHITECTURE_AT: u32 = std::mem::offset_of!(libc::seccomp_data, arch) as u32;

/// Denies the calls to the complete process.
///
/// # Errors
/// When the kernel has no filters, or a thread has others.
pub fn install(calls: Calls) -> io::Result<()> {
    sys::install_filter(&program(&refused(calls)))
}

fn refused(calls: Calls) -> Vec<c_long> {
    let mut refused: Vec<c_long> = [REFUSED, REFUSED_HERE].concat();
    if calls == Calls::Server {
        refused.extend_from_slice(LOOKS);
    }
    if calls != (Calls::Profiler { mounts: true }) {
        refused.extend_from_slice(MOUNTS);
    }
    refused
}

fn statement(code: u32, k: u32) -> sock_filter {
    let code = code as u16;
    sock_filter {
        code,
        jt: 0,
        jf: 0,
        k,
    }
}

/// Goes on `yes` or `no` instructions later, by a comparison with `k`.
fn jump(compare: u32, k: u32, yes: u8, no: u8) -> sock_filter {
    let code = (libc::BPF_JMP | compare | libc::BPF_K) as u16;
    sock_filter {
        code,
        jt: yes,
        jf: no,
        k,
    }
}

fn program(refused: &[c_long]) -> Vec<sock_filter> {
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let answer = |what| statement(libc::BPF_RET | libc::BPF_K, what);
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    // On another architecture the numbers mean other calls, so all calls are refused.
    let mut program = vec![
        statement(load, ARCHITECTURE_AT),
        jump(libc::BPF_JEQ, ARCHITECTURE, 1, 0),
        answer(refuse),
        statement(load, NUMBER_AT),
        jump(libc::BPF_JGE, X32, 0, 1),
        answer(refuse),
    ];
    for &number in refused {
        program.push(jump(libc::BPF_JEQ, number as u32, 0, 1));
        program.push(answer(refuse));
    }
    program.push(answer(libc::SECCOMP_RET_ALLOW));
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The filter's result for a call, evaluated as the kernel does.
    fn says(program: &[sock_filter], architecture: u32, number: u32) -> u32 {
        let (mut at, mut value) = (0, 0);
        loop {
            let step = program[at];
            let code = u32::from(step.code);
            at += 1;
            match code & 7 {
                libc::BPF_LD if step.k == NUMBER_AT => value = number,
                libc::BPF_LD => value = architecture,
                libc::BPF_JMP => {
                    let holds = match code & 0xf0 {
                        libc::BPF_JEQ => value == step.k,
                        _ => value >= step.k,
                    };
                    at += usize::from(if holds { step.jt } else { step.jf });
                }
                _ => return step.k,
            }
        }
    }

    #[test]
    fn what_is_refused_is_refused_and_all_else_is_allowed() {
        let program = program(REFUSED);
        let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
        for number in 0..600 {
            let expected = match REFUSED.contains(&c_long::from(number)) {
                true => refuse,
                false => libc::SECCOMP_RET_ALLOW,
            };
            assert_eq!(
                says(&program, ARCHITECTURE, number as u32),
                expected,
                "{number}"
            );
        }
        assert_eq!(says(&program, ARCHITECTURE, X32 + 1), refuse);
        assert_eq!(says(&program, 0x4000_0003, 1), refuse, "32 bits");
    }

    #[test]
    fn what_the_daemon_lives_on_is_not_in_the_list() {
        for number in [
            libc::SYS_perf_event_open,
            libc::SYS_clone3,
            libc::SYS_connect,
            libc::SYS_openat2,
            libc::SYS_setresuid,
            libc::SYS_prctl,
            libc::SYS_seccomp,
            libc::SYS_landlock_restrict_self,
        ] {
            assert!(!REFUSED.contains(&number) && !REFUSED_HERE.contains(&number));
        }
    }

    #[test]
    fn a_server_samples_nothing_and_serves() {
        let refused = refused(Calls::Server);
        for number in [
            libc::SYS_perf_event_open,
            libc::SYS_ptrace,
            libc::SYS_execve,
            libc::SYS_bpf,
            libc::SYS_keyctl,
            libc::SYS_finit_module,
            libc::SYS_userfaultfd,
            libc::SYS_fsopen,
            libc::SYS_setresuid,
        ] {
            assert!(refused.contains(&number), "{number}");
        }
        for number in [
            libc::SYS_accept4,
            libc::SYS_connect,
            libc::SYS_clone3,
            libc::SYS_fchown,
            libc::SYS_renameat2,
            libc::SYS_prlimit64,
        ] {
            assert!(!refused.contains(&number), "{number}");
        }
        // The jumps of the filter reach their end.
        let program = program(&refused);
        assert_eq!(
            says(&program, ARCHITECTURE, libc::SYS_read as u32),
            libc::SECCOMP_RET_ALLOW
        );
    }

    /// The child of the test below: what is refused is so for good, and to all threads.
    #[test]
    #[ignore = "changes its process: run by a test in one of its own"]
    fn in_a_process_of_its_own() {
        let (ask, asked) = std::sync::mpsc::sync_channel::<()>(1);
        let starts = || std::process::Command::new("/bin/true").status();
        let before = std::thread::spawn(move || {
            let _ = asked.recv();
            starts()
        });
        assert!(starts().is_ok());
        install(Calls::Profiler { mounts: false }).expect("the kernel has filters");
        let _ = ask.send(());
        for started in [starts(), before.join().expect("no panic")] {
            let error = started.expect_err("execve is refused");
            assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        }
        assert!(std::fs::read("/proc/self/status").is_ok());
        assert!(std::thread::spawn(|| ()).join().is_ok());
        install(Calls::Server).expect("once more, for those that come later");
    }

    #[test]
    fn the_kernel_refuses_what_the_list_has() {
        let own = std::env::current_exe().expect("this program");
        let name = "seccomp::tests::in_a_process_of_its_own";
        let child = std::process::Command::new(own)
            .args(["--exact", name, "--ignored", "--nocapture"])
            .output()
            .expect("it starts");
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(
            child.status.success() && said.contains("1 passed"),
            "{said}"
        );
    }
}
