//! Stacks with a frame larger than the copy are completed by a larger copy, or by a look at the
//! thread's memory, never with callers that are not theirs, and whoever makes the look hang holds
//! up nobody.

use profile::{StackEnd, key};
use std::collections::BTreeMap;
use std::time::Duration;
use testkit::process::wait_for;
use testkit::recording::{Shared, wait_until_read};
use testkit::workload::{Recipe, bare_c};
use testkit::{Cgroup, Client, Daemon, Need, View, live};

const NEEDS: &[Need] = &[Need::Root, Need::StaticC, Need::Cgroup2];
/// Longest wait for the first looks at threads, after unwind information is read.
const LEAD_MAX: Duration = Duration::from_secs(30);
/// Samples of each program that are looked at: ten seconds of four programs on two CPUs, which is
/// three of the longest turns.
const ENOUGH: u64 = 500;
/// Longest recording of as many.
const RUN: Duration = Duration::from_secs(24);
/// A look is tried within some seconds of the first samples.
const LOOK_LIMIT: Duration = Duration::from_secs(60);

/// Name of the cgroup and arguments of the program. Turns of 3 s are long enough to be looked at,
/// those of 100 ms and 5 ms end while or before they are.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("long", &["long"]),
    ("turns-3000", &["turns", "3000"]),
    ("turns-100", &["turns", "100"]),
    ("turns-5", &["turns", "5"]),
];

type Views = BTreeMap<&'static str, View>;

fn program() -> Recipe {
    bare_c("bigframe.c", &[])
}

/// What a daemon that looks at threads, or does not, sees of programs.
fn record(looks: bool, programs: &[(&'static str, &[&str])]) -> Views {
    // What else runs on the machine, a compiler say, must not crowd out the tables of these.
    let room = "unwind.cache_mib=512";
    let setting = format!("unwind.look={looks}");
    let daemon = Daemon::with().set(&setting).set(room).start().sampling();
    let mut running = Vec::new();
    for &(name, args) in programs {
        let cgroup = Cgroup::new(format!("looks-{name}"));
        let workload = program().start_in(&cgroup, args);
        running.push((name, workload, cgroup));
    }
    wait_until_read(&daemon);
    if looks {
        let (_, _, first) = &running[0];
        wait_until_looked(&daemon, first);
    }
    let cgroups: Vec<&Cgroup> = running.iter().map(|(_, _, cgroup)| cgroup).collect();
    let view = testkit::recording::record(&daemon, &cgroups, ENOUGH, RUN);
    daemon.stop();
    let views = running
        .iter()
        .map(|(name, _, cgroup)| (*name, view.in_cgroup(cgroup.path())));
    views.collect()
}

/// Waits until looks complete the stacks of a program that stays in its calls.
fn wait_until_looked(daemon: &Daemon, cgroup: &Cgroup) {
    let looked = wait_for(LEAD_MAX, || {
        let begin = testkit::clock::unix_ns();
        std::thread::sleep(Duration::from_secs(2));
        let busy = deep(&daemon.client().since(begin).in_cgroup(cgroup.path()));
        let whole = busy.only(|sample| sample.end.is_complete());
        (whole.count() > 0 && whole.count() == busy.count()).then_some(())
    });
    if looked.is_none() {
        eprintln!("looks do not complete all stacks after {LEAD_MAX:?}");
    }
}

static RECORDING: Shared<Views> = Shared::new();

fn recording() -> Option<&'static Views> {
    RECORDING.get(NEEDS, || record(true, PROGRAMS))
}

/// Samples below the frame that is larger than the copy, taken when the program's own tables were
/// read: others on a busy machine may be read before it.
fn deep(view: &View) -> View {
    view.only(|sample| {
        sample.end != StackEnd::ModuleLoading
            && (sample.has("spin_one") || sample.has("spin_other"))
    })
}

#[test]
#[ignore = "takes long: make test-slow"]
fn below_a_frame_larger_than_the_copy_stacks_are_whole_needs_root() {
    let Some(views) = recording() else { return };
    let busy = deep(&views["long"]);
    assert!(busy.count() >= 100, "{}", views["long"].dump());
    let callers = ["spin_one", "big_frame", "caller_one", "run_long", "main"];
    let right = busy.only(|sample| {
        let mut names = sample.frames.iter().map(|frame| frame.function.as_str());
        sample.end.is_complete()
            && callers
                .iter()
                .all(|caller| names.any(|found| found == *caller))
    });
    assert!(
        right.count() * 20 >= busy.count() * 19,
        "{} of {}",
        right.count(),
        busy.dump()
    );
}

#[test]
#[ignore = "takes long: make test-slow"]
fn no_stack_gets_the_caller_of_another_call_needs_root() {
    let Some(views) = recording() else { return };
    let mut completed = BTreeMap::new();
    for (&name, view) in views {
        let busy = deep(view);
        assert!(busy.count() >= 100, "{name}: {}", view.dump());
        let wrong = busy.only(|sample| {
            sample.has("spin_one") && sample.has("caller_other")
                || sample.has("spin_other") && sample.has("caller_one")
        });
        assert_eq!(wrong.count(), 0, "{name}: {}", wrong.dump());
        let whole = busy.only(|sample| sample.end.is_complete());
        completed.insert(name, whole.count());
    }
    eprintln!("completed: {completed:?}");
    assert!(completed["turns-3000"] > 0, "none was tried: {completed:?}");
}

#[test]
#[ignore = "takes long: make test-slow"]
fn without_looks_such_stacks_end_where_the_copy_ends_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let views = record(false, &PROGRAMS[..1]);
    let busy = deep(&views["long"]);
    assert!(busy.count() >= 100, "{}", views["long"].dump());
    let cut = busy.only(|sample| {
        !sample.end.is_complete() && sample.has("big_frame") && !sample.has("caller_one")
    });
    assert!(
        cut.count() * 20 >= busy.count() * 19,
        "{} of {}",
        cut.count(),
        busy.dump()
    );
}

#[test]
#[ignore = "takes long: make test-slow"]
fn pages_that_nobody_brings_hold_up_nobody_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let hostile = program().start(&["held"]);
    let daemon = Daemon::with().set("windows.length_s=1").start().sampling();
    let client = daemon.client();
    let looked = || {
        let ends = [
            "fleetprof_looks_taken_total",
            "fleetprof_looks_failed_total",
        ];
        (ends.map(|name| client.counter(name)).iter().sum::<u64>() > 0).then_some(())
    };
    let found = wait_for(LOOK_LIMIT, looked);
    assert!(found.is_some(), "log:\n{}", daemon.log());
    let honest = program().start(&["long"]);
    let completed = || (client.counter("fleetprof_look_samples_completed_total") > 0).then_some(());
    let found = wait_for(LOOK_LIMIT, completed);
    assert!(found.is_some(), "log:\n{}", daemon.log());
    // Sampled like any other, and not with callers that were not seen.
    let pid = hostile.pid().to_string();
    let held = client.everything();
    let held = held.only(|sample| sample.label(key::PID) == pid);
    assert!(held.count() > 0, "{}", held.dump());
    let whole = held.only(|sample| sample.end.is_complete() && sample.has("spin_one"));
    assert_eq!(whole.count(), 0, "{}", whole.dump());
    drop((hostile, honest));
    daemon.stop();
}

/// Runs programs, one after another, until a stack is completed with the callers of others.
fn wait_until_callers_are_known(client: &Client, cgroup: &Cgroup) {
    let known = wait_for(Duration::from_secs(90), || {
        let mut one = program().start_in(cgroup, &["thread", "2000"]);
        one.proc().wait(LOOK_LIMIT);
        (client.counter("fleetprof_unwind_known_callers_used_total") > 0).then_some(())
    });
    assert!(known.is_some(), "{}", client.everything().dump());
}

#[test]
fn callers_beyond_the_copy_are_those_of_other_processes_until_they_are_not_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let daemon = Daemon::with().set("windows.length_s=1").start().sampling();
    let client = daemon.client();
    let cgroup = Cgroup::new("looks-known");
    wait_until_callers_are_known(&client, &cgroup);
    let begin = testkit::clock::unix_ns();
    let mut one = program().start_in(&cgroup, &["thread", "2000"]);
    one.proc().wait(LOOK_LIMIT);
    let busy = deep(&client.since(begin).in_cgroup(cgroup.path()));
    assert!(busy.count() >= 50, "{}", busy.dump());
    let right = busy.only(|sample| {
        sample.end.is_complete() && sample.has("caller_one") && sample.has("thread_main")
    });
    // From its first sample on.
    assert!(right.count() * 20 >= busy.count() * 19, "{}", busy.dump());
    let known = right.only(|sample| sample.end == StackEnd::KnownCallers);
    assert!(known.count() > 0, "{}", busy.dump());

    // Another caller at the same depth, for too short a time to be read whenever it runs.
    let _turns = program().start_in(&cgroup, &["thread", "120000", "100"]);
    let wrong = || client.counter("fleetprof_unwind_known_callers_wrong_total");
    let found = wait_for(LOOK_LIMIT, || (wrong() > 0).then_some(()));
    assert!(
        found.is_some(),
        "{}",
        client.everything().in_cgroup(cgroup.path()).dump()
    );
    std::thread::sleep(Duration::from_secs(3));
    let begin = testkit::clock::unix_ns();
    std::thread::sleep(Duration::from_secs(3));
    let busy = deep(&client.since(begin).in_cgroup(cgroup.path()));
    assert!(busy.count() >= 50, "{}", busy.dump());
    let known = busy.only(|sample| sample.end == StackEnd::KnownCallers);
    assert_eq!(known.count(), 0, "{}", busy.dump());
    daemon.stop();
}

#[test]
fn where_many_stacks_are_deeper_than_the_copy_more_is_copied_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let cgroup = Cgroup::new("looks-deeper");
    let program = bare_c("bigframe.c", &["-DFRAME_BYTES=24576"]).named("deeper");
    let _running = program.start_in(&cgroup, &["long"]);
    // An answer starts with a window, which is to be one with the larger copy.
    let daemon = Daemon::with()
        .set("unwind.look=false")
        .set("windows.length_s=1")
        .start()
        .sampling();
    let client = daemon.client();
    let copied = || {
        client
            .status()
            .expect("a status")
            .sampling
            .map(|it| it.stack_bytes)
    };
    let raised = wait_for(LOOK_LIMIT, || (copied() == Some(56 << 10)).then_some(()));
    assert!(raised.is_some(), "{:?}, log:\n{}", copied(), daemon.log());
    wait_until_read(&daemon);
    std::thread::sleep(Duration::from_secs(2));
    let begin = testkit::clock::unix_ns();
    std::thread::sleep(Duration::from_secs(4));
    let busy = deep(&client.since(begin).in_cgroup(cgroup.path()));
    assert!(busy.count() >= 50, "{}", busy.dump());
    let whole = busy.only(|sample| sample.end.is_complete() && sample.has("caller_one"));
    assert!(
        whole.count() * 20 >= busy.count() * 19,
        "{} of {}",
        whole.count(),
        busy.dump()
    );
}

#[test]
fn a_page_that_nobody_has_touched_ends_a_stack_for_a_moment_only_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let cgroup = Cgroup::new("hole");
    let daemon = Daemon::with().set("windows.length_s=1").start().sampling();
    let _process = bare_c("hole.c", &[]).start_in(&cgroup, &[]);
    let client = daemon.client();
    let seen = || {
        let all = client.everything().in_cgroup(cgroup.path());
        all.only(|sample| sample.has("below"))
    };
    let found = wait_for(Duration::from_secs(60), || {
        let view = seen();
        let complete = view.only(|sample| sample.end == StackEnd::Complete);
        (complete.count() >= 200).then_some((view, complete))
    });
    let Some((view, complete)) = found else {
        panic!("{}", seen().dump());
    };
    for sample in &complete.samples {
        assert!(
            sample.has("with_hole") && sample.has("in_thread"),
            "{}",
            complete.dump()
        );
    }
    // Those of the first drains.
    let cut = view.only(|sample| sample.end == StackEnd::UnreadableMemory);
    assert!(cut.count() > 0, "it has no hole: {}", view.dump());
    assert!(client.counter("fleetprof_unwind_holes_total") > 0);
    daemon.stop();
}
