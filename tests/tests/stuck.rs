//! A file system that never answers holds up neither the start, nor naming, nor the end.

use profile::{UnnamedReason, key};
use rustix::process::Signal;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use testkit::process::wait_for;
use testkit::workload::{Workload, c};
use testkit::{Daemon, Need, live, skip};

const NEEDS: &[Need] = &[Need::Root, Need::StaticC, Need::Program("unshare")];
/// Several windows, and what a loaded machine adds.
const NAMED_LIMIT: Duration = Duration::from_secs(60);
/// The daemon's grace and what a loaded machine adds.
const GRACE: Duration = Duration::from_secs(25);

/// A process with samples in generated code, whose `/tmp` is a FUSE file system that it serves
/// itself and never answers for: it does not even take the questions, unless it is started with a
/// word. Its own program is opened before, for that may be below `/tmp`; so may the directories
/// that cargo has the loader look into, and it would wait for itself there.
fn hanging(words: &str) -> Workload {
    let options = "fd=3,rootmode=40000,user_id=0,group_id=0,allow_other";
    let script = format!(
        "exec 3<>/dev/fuse 4<\"$0\" && mount -i -t fuse -o {options} none /tmp && \
         exec /proc/self/fd/4 {words}"
    );
    let program = c("generated.c").build();
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]).arg(program);
    command.env_remove("LD_LIBRARY_PATH").current_dir("/");
    Workload::spawn(&mut command)
}

#[test]
fn a_file_system_that_never_answers_holds_up_nothing_needs_root() {
    let Some(_live) = live(NEEDS) else {
        return;
    };
    if !Path::new("/dev/fuse").exists() {
        return skip("needs /dev/fuse");
    }
    // Dropped after the servers that it waits for.
    let mut daemon;
    let before = hanging("");
    daemon = Daemon::with()
        .set("windows.length_s=1")
        .set("shutdown.grace_s=20")
        .start()
        .sampling();
    let after: Vec<Workload> = (0..3).map(|_| hanging("")).collect();
    let honest = c("split.c").start(&["-p", "30"]);
    let client = daemon.client();
    let found = wait_for(NAMED_LIMIT, || {
        waited_in_vain(&daemon)?;
        let samples = client.everything();
        let pids = samples.label_values(key::PID);
        let of = |pid: u32| pids.contains(&pid.to_string());
        let all = after.iter().chain([&before, &honest]);
        all.map(Workload::pid).all(of).then_some(())
    });
    assert!(found.is_some(), "log:\n{}", daemon.log());
    daemon.signal(Signal::TERM);
    let status = daemon.wait(GRACE).expect("it ends within its grace");
    assert!(status.success(), "{status}: {}", daemon.log());
}

/// True once samples were not named because their map did not come in time.
fn waited_in_vain(daemon: &Daemon) -> Option<()> {
    let status = daemon.client().status().ok()?;
    let late = UnnamedReason::JitMapLate.word();
    let mut reasons = status.unnamed_leaves.iter();
    reasons.find(|row| row.word == late && row.samples > 0)?;
    Some(())
}

#[test]
fn a_question_taken_and_not_answered_does_not_keep_the_successor_out_needs_root() {
    let Some(_live) = live(NEEDS) else {
        return;
    };
    if !Path::new("/dev/fuse").exists() {
        return skip("needs /dev/fuse");
    }
    // Dropped after the server that it waits for.
    let mut first;
    let server = hanging("takes");
    let dir = tempfile::tempdir().unwrap();
    let with = || {
        Daemon::with()
            .dir(dir.path())
            .set("windows.length_s=1")
            .set("shutdown.grace_s=20")
    };
    first = with().start().sampling();
    let found = wait_for(NAMED_LIMIT, || waited_in_vain(&first));
    assert!(found.is_some(), "log:\n{}", first.log());
    first.signal(Signal::TERM);
    // Nothing ends a thread whose question was taken: the main thread ends, the process does not.
    let ended = wait_for(GRACE, || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", first.pid())).ok()?;
        stat.rsplit(')').next()?.starts_with(" Z").then_some(())
    });
    assert!(ended.is_some(), "log:\n{}", first.log());
    let successor = with().start().sampling();
    drop(server);
    let status = first.wait(GRACE).expect("the server is gone");
    assert!(status.success(), "{status}: {}", first.log());
    successor.stop();
}
