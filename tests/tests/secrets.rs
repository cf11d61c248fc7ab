//! What others can see of the daemon's memory, which holds stacks of the whole machine.

use rustix::process::Signal;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;
use testkit::{Daemon, Need, beside, skip};

const END: Duration = Duration::from_secs(20);

#[test]
fn a_daemon_that_crashes_leaves_no_core_dump_needs_root() {
    let Some(_live) = beside(&[Need::Root]) else {
        return;
    };
    // Proves that a process that may dump core does so here. Its dump goes with the directory.
    let dir = tempfile::tempdir().unwrap();
    let mut other = Command::new("sh");
    other.args(["-c", "ulimit -c unlimited; kill -ABRT $$"]);
    let crashed = other.current_dir(dir.path()).status().unwrap();
    if !crashed.core_dumped() {
        skip("needs core dumps as such");
        return;
    }
    let mut daemon = Daemon::start().sampling();
    daemon.signal(Signal::ABORT);
    let ended = daemon.wait(END).expect("it crashes");
    assert_eq!(ended.signal(), Some(Signal::ABORT.as_raw()));
    assert!(!ended.core_dumped(), "{ended}");
}

#[test]
fn the_right_to_dump_core_is_given_up_needs_root() {
    let Some(_live) = beside(&[Need::Root]) else {
        return;
    };
    let daemon = Daemon::start();
    let limits = fs::read_to_string(format!("/proc/{}/limits", daemon.pid())).unwrap();
    let core = limits
        .lines()
        .find(|line| line.starts_with("Max core file size"));
    let words: Vec<_> = core.unwrap().split_whitespace().collect();
    assert_eq!(words[4..6], ["0", "0"]);
}

#[test]
fn rings_are_left_out_of_dumps_of_any_kind_needs_root() {
    let Some(_live) = beside(&[Need::Root]) else {
        return;
    };
    let daemon = Daemon::start().sampling();
    let smaps = fs::read_to_string(format!("/proc/{}/smaps", daemon.pid())).unwrap();
    let mut rings = 0;
    let mut inside = false;
    for line in smaps.lines() {
        if !line.split(' ').next().unwrap_or_default().ends_with(':') {
            inside = line.contains("[perf_event]");
        } else if inside && line.starts_with("Rss:") {
            eprintln!("ring: {line}");
        } else if let (true, Some(flags)) = (inside, line.strip_prefix("VmFlags:")) {
            assert!(flags.split(' ').any(|flag| flag == "dd"), "{flags}");
            rings += 1;
        }
    }
    assert!(rings > 0, "no ring is mapped");
}
