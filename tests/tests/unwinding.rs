//! Programs without frame pointers have complete stacks, with every caller in its place.
//!
//! One recording serves all: each kind of frame that hides its caller, in a cgroup of its own, and
//! programs of the distribution. The copy is not enlarged and threads are not looked at: `looks.rs`
//! has both. Stacks of the first seconds are left out, until all is read: a machine under test has
//! much to read.

use profile::StackEnd;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use testkit::process::install;
use testkit::recording::{Shared, record, wait_until_read};
use testkit::workload::{Recipe, Workload, bare_c};
use testkit::{Cgroup, Daemon, Need, View};

/// Samples of each program that are looked at: some kinds of frame are in a part of them.
const ENOUGH: u64 = 150;
/// Often, so that few seconds are enough.
const RATE: &str = "sampling.rate_hz=499";
/// Longest recording of as many.
const RUN: Duration = Duration::from_secs(24);
const NEEDS: &[Need] = &[Need::Root, Need::StaticC, Need::Cgroup2];

/// Name of the cgroup, flags of the build, argument of the program.
const PROGRAMS: &[(&str, &[&str], &str)] = &[
    ("deep", &[], "deep"),
    ("thread", &[], "thread"),
    ("signal", &[], "signal"),
    ("tiny", &[], "tiny"),
    ("plt", &["-fno-builtin", "-Wl,-z,lazy"], "plt"),
    ("plt-now", &["-fno-builtin", "-Wl,-z,now"], "plt"),
    ("vfork", &[], "vfork"),
    ("coroutine", &[], "coroutine"),
    ("realign", &["-mstackrealign"], "realign"),
    ("callers", &[], "callers"),
    ("no-pie", &["-no-pie"], "deep"),
    ("static", &["-static"], "deep"),
    ("gold", &["-fuse-ld=gold"], "deep"),
    (
        "debug-frame",
        &["-g", "-fno-asynchronous-unwind-tables"],
        "deep",
    ),
    (
        "no-tables",
        &["-fno-asynchronous-unwind-tables", "-DNO_TABLES"],
        "deep",
    ),
    (
        "no-tables-tiny",
        &["-fno-asynchronous-unwind-tables", "-DNO_TABLES"],
        "tiny",
    ),
    (
        "no-tables-static",
        &["-fno-asynchronous-unwind-tables", "-DNO_TABLES", "-static"],
        "deep",
    ),
];

/// Programs of the distribution and what keeps them busy.
const DISTRIBUTED: &[(&str, &[&str])] = &[
    ("openssl", &["speed", "-seconds", "100", "sha256"]),
    (
        "perl",
        &[
            "-e",
            "my %h; while (1) { $h{$_ % 997} .= sprintf('%x', $_) for 1..5000; %h = () }",
        ],
    ),
    (
        "python3",
        &["-c", "while True: sorted(str(i) for i in range(2000))"],
    ),
];

/// What was seen of each program.
type Views = BTreeMap<&'static str, View>;

static RECORDING: Shared<Views> = Shared::new();

fn recipe(name: &str, flags: &[&str]) -> Recipe {
    bare_c("frames.c", flags).named(&format!("frames-{name}"))
}

/// A program at work; ended before its cgroup is.
struct Running {
    name: &'static str,
    _workload: Workload,
    cgroup: Cgroup,
}

/// A program whose header says that it has no sections, as some packers leave it.
fn without_sections(program: &Path) -> Vec<u8> {
    let mut image = std::fs::read(program).expect("failed to read a program");
    // e_shoff; e_shnum and e_shstrndx.
    image[0x28..0x30].fill(0);
    image[0x3c..0x40].fill(0);
    image
}

fn recording() -> Option<&'static Views> {
    RECORDING.get(NEEDS, || {
        let mut running = Vec::new();
        let mut run = |name, cgroup, workload| {
            running.push(Running {
                name,
                _workload: workload,
                cgroup,
            });
        };
        let group = |name| Cgroup::new(format!("unwinding-{name}"));
        // What else runs on the machine, a compiler say, must not crowd out the tables of these.
        let daemon = Daemon::with()
            .set("unwind.cache_mib=512")
            .set("unwind.look=false")
            .set("unwind.stack_kib_max=16")
            .set(RATE)
            .start();
        let daemon = daemon.sampling();
        for &(name, flags, kind) in PROGRAMS {
            let cgroup = group(name);
            let program = recipe(name, flags).build();
            let workload = Workload::spawn(cgroup.command_that_yields(&program).arg(kind));
            run(name, cgroup, workload.settled(&program));
        }
        let deleted = group("deleted");
        let dir = tempfile::tempdir().expect("failed to make a directory");
        let copy = dir.path().join("frames-deleted");
        install(recipe("deep", &[]).build(), &copy);
        let workload =
            Workload::spawn(deleted.command_that_yields(&copy).arg("deep")).settled(&copy);
        std::fs::remove_file(&copy).expect("failed to delete a program");
        run("deleted", deleted, workload);
        let (written, bare) = (
            dir.path().join("bare"),
            dir.path().join("frames-no-sections"),
        );
        std::fs::write(&written, without_sections(&recipe("deep", &[]).build()))
            .expect("failed to write a program");
        install(&written, &bare);
        let cgroup = group("no-sections");
        let workload =
            Workload::spawn(cgroup.command_that_yields(&bare).arg("deep")).settled(&bare);
        run("no-sections", cgroup, workload);
        let cgroup = group("memfd");
        let program = recipe("memfd", &["-Wl,--build-id=none"]).build();
        let workload = Workload::spawn(cgroup.command_that_yields(program).arg("memfd"));
        run("memfd", cgroup, workload);
        for &(program, args) in DISTRIBUTED {
            if let Some(path) = testkit::process::program(program) {
                let cgroup = group(program);
                let workload = Workload::spawn(cgroup.command_that_yields(path).args(args));
                run(program, cgroup, workload);
            }
        }
        wait_until_read(&daemon);
        let cgroups: Vec<&Cgroup> = running.iter().map(|one| &one.cgroup).collect();
        let view = record(&daemon, &cgroups, ENOUGH, RUN);
        daemon.stop();
        let views = running
            .iter()
            .map(|one| (one.name, view.in_cgroup(one.cgroup.path())));
        views.collect()
    })
}

/// Nineteen of twenty samples of a program are complete, once its unwind tables are read: a debug
/// build takes some tenths of a second for those of a large program.
fn check_complete(views: &Views, name: &str) {
    let view = &views[name];
    assert!(view.count() >= 20, "{name}: {}", view.dump());
    let is_loading = |end| end == StackEnd::ModuleLoading;
    let loading = view.only(|sample| is_loading(sample.end));
    assert!(
        loading.count() * 10 <= view.count(),
        "{name}: of {} wait for tables {}",
        view.count(),
        loading.dump()
    );
    let cut = view.only(|sample| !sample.end.is_complete() && !is_loading(sample.end));
    assert!(
        cut.count() * 20 <= view.count(),
        "{name}: of {} are cut {}",
        view.count(),
        cut.dump()
    );
}

/// Nineteen of twenty samples with `leaf` have these callers above it, in this order; those apart
/// that wait for tables, which [`check_complete`] counts.
fn check_order(views: &Views, name: &str, leaf: &str, callers: &[&str]) {
    let busy = views[name].with(leaf);
    let busy = busy.only(|sample| sample.end != StackEnd::ModuleLoading);
    assert!(busy.count() >= 20, "{name}: {}", views[name].dump());
    let right = busy.only(|sample| {
        let mut names = sample.frames.iter().map(|frame| frame.function.as_str());
        names.any(|found| found == leaf)
            && callers
                .iter()
                .all(|caller| names.any(|found| found == *caller))
    });
    assert!(
        right.count() * 20 >= busy.count() * 19,
        "{name}: {} right of {}",
        right.count(),
        busy.only(|sample| !right.samples.iter().any(|r| r.frames == sample.frames))
            .dump()
    );
}

#[test]
fn every_kind_of_frame_is_complete_needs_root() {
    let Some(views) = recording() else { return };
    // One program is deeper than the copy on purpose: it has a test of its own.
    for (name, ..) in PROGRAMS.iter().filter(|(name, ..)| *name != "callers") {
        check_complete(views, name);
    }
    for name in ["deleted", "memfd", "no-sections"] {
        check_complete(views, name);
    }
}

#[test]
fn programs_of_the_distribution_are_complete_needs_root() {
    let Some(views) = recording() else { return };
    for (program, _) in DISTRIBUTED {
        if testkit::process::program(program).is_none() {
            testkit::skip(format!("`{program}` is not here"));
            continue;
        }
        check_complete(views, program);
    }
}

#[test]
fn deep_recursion_is_whole_however_it_was_linked_needs_root() {
    let Some(views) = recording() else { return };
    for name in [
        "deep",
        "no-pie",
        "static",
        "gold",
        "debug-frame",
        "no-tables",
        "no-tables-static",
        "deleted",
        "memfd",
    ] {
        let callers = ["deep_inner", "deep_outer", "run_deep", "main"];
        check_order(views, name, "spin_leaf", &callers);
        // All forty-one of them: a recursion that was cut would have fewer.
        let busy = views[name].with("spin_leaf");
        let busy = busy.only(|sample| sample.end != StackEnd::ModuleLoading);
        let whole = busy.only(|sample| {
            let inner = sample
                .frames
                .iter()
                .filter(|frame| frame.function == "deep_inner");
            inner.count() == 41
        });
        assert!(
            whole.count() * 20 >= busy.count() * 19,
            "{name}: {}",
            busy.dump()
        );
    }
}

#[test]
fn threads_reach_their_start_needs_root() {
    let Some(views) = recording() else { return };
    check_order(
        views,
        "thread",
        "spin_leaf",
        &["deep_inner", "run_deep", "thread_main"],
    );
}

#[test]
fn below_a_signal_handler_is_what_it_interrupted_needs_root() {
    let Some(views) = recording() else { return };
    let callers = [
        "handler_work",
        "on_tick",
        "interrupted_work",
        "run_signal",
        "main",
    ];
    check_order(views, "signal", "spin_leaf", &callers);
}

#[test]
fn a_leaf_in_its_prologue_or_epilogue_has_its_caller_needs_root() {
    let Some(views) = recording() else { return };
    for name in ["tiny", "no-tables-tiny"] {
        let callers = ["tiny_caller", "run_tiny", "main"];
        check_order(views, name, "tiny_leaf", &callers);
    }
}

#[test]
fn calls_through_a_linkage_table_have_their_caller_needs_root() {
    let Some(views) = recording() else { return };
    for name in ["plt", "plt-now"] {
        check_order(views, name, "plt_caller", &["run_plt", "main"]);
        let called = views[name].only(|sample| !sample.has("plt_caller"));
        let all = views[name].count();
        assert!(called.count() * 20 <= all, "{name}: {}", called.dump());
    }
}

#[test]
fn a_child_on_its_parents_stack_is_whole_needs_root() {
    let Some(views) = recording() else { return };
    check_order(
        views,
        "vfork",
        "spin_leaf",
        &["child_work", "run_vfork", "main"],
    );
}

#[test]
fn a_coroutine_reaches_its_own_start_needs_root() {
    let Some(views) = recording() else { return };
    check_order(
        views,
        "coroutine",
        "spin_leaf",
        &["coroutine_work", "coroutine_main"],
    );
}

#[test]
fn a_cut_stack_never_gets_the_caller_of_an_earlier_sample_needs_root() {
    let Some(views) = recording() else { return };
    let view = &views["callers"];
    // What could be taken for the callers of the deep ones was seen.
    let shallow = view.only(|sample| {
        sample.has("shallow_of_a") && sample.has("via_a") && sample.end == StackEnd::Complete
    });
    assert!(shallow.count() >= 5, "{}", view.dump());
    let deep = view.only(|sample| sample.has("deep_of_b"));
    let wrong = deep.only(|sample| sample.has("via_a"));
    assert_eq!(wrong.count(), 0, "{}", wrong.dump());
    let cut = deep.only(|sample| sample.end == StackEnd::CopyTooSmall && !sample.has("via_b"));
    assert!(cut.count() >= 5, "{}", view.dump());
}

#[test]
fn a_realigned_stack_leads_to_its_caller_needs_root() {
    let Some(views) = recording() else { return };
    check_order(
        views,
        "realign",
        "spin_leaf",
        &["realigned", "run_realign", "main"],
    );
}
