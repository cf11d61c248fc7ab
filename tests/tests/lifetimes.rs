//! Processes that end early, change their program, share a pid or hide their file: each sample is
//! named by the program that ran.
#![expect(clippy::unwrap_used, reason = "a test fails by panic")]

use profile::{StackEnd, UnnamedReason, key};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use testkit::process::install;
use testkit::recording::{Shared, wait_until_idle};
use testkit::workload::{Workload, bare_c, c};
use testkit::{Cgroup, Daemon, Need, View, live, skip};

/// How long the programs run together. Unit: seconds.
const RUN_S: u64 = 12;
/// Arguments of programs of which only the names are looked at: a part of a CPU is enough.
const SHARE: &[&str] = &["-p", "25"];
const NEEDS: &[Need] = &[
    Need::Root,
    Need::StaticC,
    Need::Cgroup2,
    Need::Program("unshare"),
];

struct Recording {
    brief: View,
    becomes: View,
    same_pid: Option<View>,
    inside: View,
    outside: View,
    deleted_before: View,
    deleted_after: View,
}

static RECORDING: Shared<Recording> = Shared::new();

/// Starts a copy of a program that can be deleted.
fn start_copy(dir: &Path, name: &str, cgroup: &Cgroup) -> (Workload, std::path::PathBuf) {
    let copy = dir.join(name);
    install(c("split.c").build(), &copy);
    let workload = Workload::spawn(cgroup.command(&copy).args(SHARE)).settled(&copy);
    (workload, copy)
}

fn recording() -> Option<&'static Recording> {
    RECORDING.get_beside(NEEDS, || {
        let names = [
            "brief", "becomes", "same", "inside", "outside", "before", "after",
        ];
        let cgroups = names.map(|name| Cgroup::new(format!("life-{name}")));
        let [
            brief_in,
            becomes_in,
            same_in,
            inside_in,
            outside_in,
            before_in,
            after_in,
        ] = &cgroups;
        let dir = tempfile::tempdir().unwrap();

        let (_before, file) = start_copy(dir.path(), "gone-before", before_in);
        std::fs::remove_file(file).unwrap();
        let daemon = Daemon::start().sampling();
        let (_after, file) = start_copy(dir.path(), "gone-after", after_in);
        std::fs::remove_file(file).unwrap();

        let brief = c("brief.c").build();
        let brief_path = brief.to_str().unwrap();
        let forker = c("forker.c").start_in(brief_in, &[brief_path, "20"]);
        let mut becomes = c("becomes.c").start_in(becomes_in, &["1", brief_path, "1000"]);
        let first = c("brief.c").named("firstling").prefixed("first_").build();
        let second = c("brief.c").named("secondling").prefixed("second_").build();
        let mut same = c("samepid.c").start_in(
            same_in,
            &[first.to_str().unwrap(), second.to_str().unwrap(), "700"],
        );

        // The same path, another file behind it in one mount namespace.
        let host = c("split.c").named("twin").prefixed("outer_").build();
        let hidden = c("split.c").named("twin").prefixed("inner_").build();
        let mut command = inside_in.command("unshare");
        command.args([
            "--mount",
            "sh",
            "-c",
            r#"mount --bind "$0" "$1" && exec "$@""#,
        ]);
        let mut inside = Workload::spawn(command.arg(&hidden).arg(&host).args(SHARE));
        let _outside = Workload::spawn(outside_in.command(&host).args(SHARE));

        std::thread::sleep(Duration::from_secs(RUN_S));
        assert!(
            inside.proc().exited().is_none(),
            "unshare: {}",
            inside.proc().stderr()
        );
        let ran = forker.finish("ran");
        assert!(ran[0] > 20, "only {ran:?} short processes ran");
        let done = becomes
            .proc()
            .wait(Duration::from_secs(60))
            .expect("it ends by itself");
        assert!(done.success(), "{done}");
        let done = same
            .proc()
            .wait(Duration::from_secs(60))
            .expect("it ends by itself");

        let all = daemon.client().everything();
        daemon.stop();
        let of = |cgroup: &Cgroup| all.in_cgroup(cgroup.path());
        Recording {
            brief: of(brief_in),
            becomes: of(becomes_in),
            same_pid: done.success().then(|| of(same_in)),
            inside: of(inside_in),
            outside: of(outside_in),
            deleted_before: of(before_in),
            deleted_after: of(after_in),
        }
    })
}

fn set<const N: usize>(values: [&str; N]) -> BTreeSet<String> {
    values.map(str::to_owned).into()
}

#[test]
fn short_processes_are_named_needs_root() {
    let Some(recording) = recording() else { return };
    let view = recording
        .brief
        .only(|sample| sample.label(key::COMM) == "brief");
    let named = view.only(|sample| {
        sample
            .frames
            .first()
            .is_some_and(|leaf| leaf.unnamed == UnnamedReason::No)
    });
    assert!(
        view.count() > 60,
        "too few samples: {}",
        recording.brief.dump()
    );
    assert!(named.count() * 100 >= view.count() * 95, "{}", view.dump());
    assert!(
        view.count_with("brief_work") * 10 >= view.count() * 8,
        "{}",
        view.dump()
    );
}

#[test]
fn short_processes_keep_their_own_pids_needs_root() {
    let Some(recording) = recording() else { return };
    let view = recording.brief.with("brief_work");
    // 20 ms hold two samples at 99 Hz.
    let pids = view.label_values(key::PID).len() as u64;
    assert!(
        pids * 3 >= view.count(),
        "{pids} pids for {} samples",
        view.count()
    );
}

#[test]
fn exec_changes_name_and_symbols_but_not_the_pid_needs_root() {
    let Some(recording) = recording() else { return };
    let view = &recording.becomes;
    let (before, after) = (view.with("before_exec"), view.with("brief_work"));
    assert!(before.count() > 50 && after.count() > 50, "{}", view.dump());
    assert_eq!(before.label_values(key::COMM), set(["becomes"]));
    assert_eq!(after.label_values(key::COMM), set(["brief"]));
    assert_eq!(before.label_values(key::PID), after.label_values(key::PID));
}

#[test]
fn a_pid_used_again_is_another_process_needs_root() {
    let Some(recording) = recording() else { return };
    let Some(view) = &recording.same_pid else {
        return skip("the kernel refuses to give a chosen pid");
    };
    let (first, second) = (
        view.with("first_brief_work"),
        view.with("second_brief_work"),
    );
    assert!(first.count() > 40 && second.count() > 40, "{}", view.dump());
    assert_eq!(first.label_values(key::COMM), set(["firstling"]));
    assert_eq!(second.label_values(key::COMM), set(["secondling"]));
    assert_eq!(first.label_values(key::PID), second.label_values(key::PID));
}

#[test]
fn a_file_is_read_as_its_process_sees_it_needs_root() {
    let Some(recording) = recording() else { return };
    for (view, own, other) in [
        (&recording.inside, "inner_", "outer_"),
        (&recording.outside, "outer_", "inner_"),
    ] {
        let has = |prefix: &str| {
            let starts = |function: &str| function.starts_with(prefix);
            view.only(|sample| sample.frames.iter().any(|f| starts(&f.function)))
                .count()
        };
        let twin = view
            .only(|sample| sample.label(key::COMM) == "twin")
            .count();
        assert!(twin > 50 && has(own) * 100 >= twin * 95, "{}", view.dump());
        assert_eq!(has(other), 0, "{}", view.dump());
    }
}

fn check_deleted(view: &View) {
    let busy = view.only(|sample| sample.leaf().starts_with("spend_"));
    assert!(
        view.count() > 50 && busy.count() * 100 >= view.count() * 90,
        "{}",
        view.dump()
    );
}

#[test]
fn a_file_deleted_before_the_daemon_started_is_read_needs_root() {
    let Some(recording) = recording() else { return };
    check_deleted(&recording.deleted_before);
}

#[test]
fn a_file_deleted_right_after_its_start_is_read_needs_root() {
    let Some(recording) = recording() else { return };
    check_deleted(&recording.deleted_after);
}

#[test]
fn a_pid_is_used_again_only_with_a_privilege() {
    // What the recording counts on: a program that asks for a pid in use is refused, not served.
    if !testkit::met(&[Need::StaticC]) {
        return;
    }
    let brief = c("brief.c").build();
    let mut command = Command::new(c("samepid.c").build());
    command.arg(&brief).arg(&brief).arg("1");
    let out = testkit::workload::run_to_end(&mut command);
    assert!(matches!(out.code, Some(0 | 3)), "{out:?}");
}

/// Their unwind information is read while the first samples wait for it: for a second at most, in
/// which a daemon built without optimization reads little beside others.
#[test]
fn stacks_of_programs_never_met_before_are_whole_from_the_first_sample_needs_root() {
    let Some(_live) = live(&[Need::Root, Need::StaticC, Need::Cgroup2]) else {
        return;
    };
    let cgroup = Cgroup::new("life-new");
    let new = (0..12).map(|number| {
        let named = bare_c("brief.c", &[]).named(&format!("new-{number}"));
        named.prefixed(&format!("new{number}_")).build()
    });
    let new: Vec<_> = new.collect();
    let daemon = Daemon::start().sampling();
    // What ran before is read first.
    wait_until_idle(&daemon);
    for program in new {
        let ended = cgroup.command(program).arg("300").status();
        assert!(ended.unwrap().success());
    }
    // The last samples have come once those after them have.
    std::thread::sleep(Duration::from_secs(2));
    let all = daemon.client().everything();
    let view = all.in_cgroup(cgroup.path());
    daemon.stop();
    assert!(view.count() >= 200, "{}", view.dump());
    // Two of the twelve may find the reader at work on a large file of somebody else. Without
    // waiting all of each would be cut.
    let waited = view.only(|sample| sample.end == StackEnd::ModuleLoading);
    assert!(waited.count() * 6 <= view.count(), "{}", waited.dump());
    let others = view.only(|sample| sample.end != StackEnd::ModuleLoading);
    let cut = others.only(|sample| !sample.end.is_complete());
    assert!(cut.count() * 20 <= others.count(), "{}", cut.dump());
}
