//! Processes that live as in containers: files that only they can see, that are gone when they are,
//! that have no path at all, or that are cut short while they run.
//!
//! Elsewhere: another file at the same path on the host, deleted programs (lifetimes.rs); perf maps
//! under the pid and root of a namespace (daemon/jit/src/tests.rs).
#![expect(clippy::unwrap_used, reason = "a test fails by panic")]

use profile::key;
use std::path::Path;
use std::time::Duration;
use testkit::process::install;
use testkit::recording::Shared;
use testkit::workload::{Recipe, Workload, c};
use testkit::{Cgroup, Daemon, Need, View, live, skip};

/// How long the programs run together. Unit: seconds.
const RUN_S: u64 = 6;
const NEEDS: &[Need] = &[
    Need::Root,
    Need::StaticC,
    Need::Cgroup2,
    Need::Program("unshare"),
];

/// A program, copied to a file system that only its own mount namespace has, in user and pid
/// namespaces of its own.
fn contained(program: &Recipe, cgroup: &Cgroup, args: &str) -> Workload {
    let script = format!(
        r#"mount -t tmpfs inner /mnt && mkdir /mnt/app && cp "$0" /mnt/app/program &&
           exec /mnt/app/program {args}"#
    );
    let mut command = cgroup.command("unshare");
    let own = [
        "--user",
        "--map-root-user",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
    ];
    command
        .args(own)
        .args(["sh", "-c", &script])
        .arg(program.build());
    Workload::spawn(&mut command)
}

/// A program on an overlay of two directories, as images of containers are.
fn overlaid(program: &Recipe, cgroup: &Cgroup, dir: &Path) -> Workload {
    for part in ["lower", "upper", "work", "merged"] {
        std::fs::create_dir(dir.join(part)).unwrap();
    }
    install(program.build(), dir.join("lower/program"));
    let script = r#"cd "$0" &&
        mount -t overlay over -o lowerdir=lower,upperdir=upper,workdir=work merged &&
        exec merged/program"#;
    let mut command = cgroup.command("unshare");
    command.args(["--mount", "sh", "-c", script]).arg(dir);
    Workload::spawn(&mut command)
}

struct Recording {
    hidden: View,
    gone: View,
    nameless: View,
    overlaid: Option<View>,
}

static RECORDING: Shared<Recording> = Shared::new();

fn recording() -> Option<&'static Recording> {
    RECORDING.get_beside(NEEDS, || {
        let names = ["hidden", "gone", "nameless", "overlaid"];
        let cgroups = names.map(|name| Cgroup::new(format!("contained-{name}")));
        let [hidden_in, gone_in, nameless_in, overlaid_in] = &cgroups;
        let dir = tempfile::tempdir_in("/tmp").unwrap();
        let split = c("split.c");
        let program = |prefix: &str| split.clone().named("program").prefixed(prefix);
        // Nothing is asked for before the end: names must have been secured in time.
        let daemon = Daemon::start().sampling();
        let mut hidden = contained(&program("hidden_"), hidden_in, "");
        let mut gone = contained(&program("gone_"), gone_in, "-t 0.6");
        let source = program("nameless_").build();
        let mut command = nameless_in.command(c("memfd.c").build());
        let mut nameless = Workload::spawn(command.arg(&source));
        let mut overlaid = overlaid(&program("overlaid_"), overlaid_in, dir.path());
        std::thread::sleep(Duration::from_secs(RUN_S));
        for workload in [&mut hidden, &mut nameless] {
            let error = workload.proc().stderr();
            assert!(workload.proc().exited().is_none(), "{error}");
        }
        let ended = gone.proc().wait(Duration::from_secs(20));
        assert!(
            ended.is_some_and(|status| status.success()),
            "{}",
            gone.proc().stderr()
        );
        let works = overlaid.proc().exited().is_none();
        // Naming gets what CPU time the programs leave it: none of it is needed any more.
        drop((hidden, nameless, overlaid));
        let all = daemon.client().everything();
        daemon.stop();
        let of = |cgroup: &Cgroup| all.in_cgroup(cgroup.path());
        Recording {
            hidden: of(hidden_in),
            gone: of(gone_in),
            nameless: of(nameless_in),
            overlaid: works.then(|| of(overlaid_in)),
        }
    })
}

/// Nearly all samples of the program itself are named by its own functions.
fn check(view: &View, prefix: &str) {
    let own = view.only(|sample| {
        let leaf = sample.frames.first();
        leaf.is_some_and(|leaf| leaf.kind == profile::FrameKind::Native)
            && !["sh", "unshare", "cp", "mount", "mkdir"].contains(&sample.label(key::COMM))
    });
    let named = own.only(|sample| sample.frames.iter().any(|f| f.function.starts_with(prefix)));
    assert!(own.count() > 20, "{}", view.dump());
    assert!(named.count() * 100 >= own.count() * 90, "{}", own.dump());
}

#[test]
fn a_program_that_only_its_container_can_see_is_named_needs_root() {
    let Some(recording) = recording() else { return };
    check(&recording.hidden, "hidden_");
}

#[test]
fn a_program_whose_file_system_is_gone_keeps_its_names_needs_root() {
    let Some(recording) = recording() else { return };
    check(&recording.gone, "gone_");
}

#[test]
fn a_program_without_a_path_is_named_needs_root() {
    let Some(recording) = recording() else { return };
    check(&recording.nameless, "nameless_");
}

#[test]
fn a_program_on_an_overlay_is_named_needs_root() {
    let Some(recording) = recording() else { return };
    let Some(view) = &recording.overlaid else {
        return skip("overlays cannot be mounted here");
    };
    check(view, "overlaid_");
}

/// An overlay's inodes have no generations, by which a new file in the place of another is told
/// from it elsewhere.
#[test]
fn programs_built_and_run_in_the_same_place_keep_their_own_names_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let cgroup = Cgroup::new("contained-rebuilt");
    let dir = tempfile::tempdir_in("/tmp").unwrap();
    let programs = ["first_", "second_"].map(|prefix| c("split.c").prefixed(prefix).build());
    let script = r#"cd "$0" && mkdir lower upper work merged &&
        mount -t overlay over -o lowerdir=lower,upperdir=upper,workdir=work merged || exit 9
        for turn in 1 2 3; do
            for program in "$@"; do
                cp "$program" merged/a.out && merged/a.out -t 0.4 && rm merged/a.out || exit 1
            done
        done"#;
    let daemon = Daemon::start().sampling();
    let mut command = cgroup.command("unshare");
    command
        .args(["--mount", "sh", "-c", script])
        .arg(dir.path());
    let ran = command.args(&programs).output().unwrap();
    if ran.status.code() == Some(9) {
        return skip("overlays cannot be mounted here");
    }
    assert!(ran.status.success(), "{ran:?}");
    let view = daemon.client().everything().in_cgroup(cgroup.path());
    daemon.stop();
    let own = view.only(|sample| sample.label(key::COMM) == "a.out");
    let of = |prefix: &str| {
        own.only(|sample| sample.frames.iter().any(|f| f.function.starts_with(prefix)))
            .count()
    };
    let (all, first, second) = (own.count(), of("first_"), of("second_"));
    eprintln!("{all} samples: {first} and {second}");
    assert!(all > 150, "{}", view.dump());
    assert!(first.min(second) * 100 >= all * 40, "{}", own.dump());
}

#[test]
fn libraries_cut_short_while_they_run_do_the_daemon_no_harm_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let cgroup = Cgroup::new("cut");
    let dir = tempfile::tempdir_in("/tmp").unwrap();
    let daemon = Daemon::with().set("windows.length_s=1").start().sampling();
    let library = c("split.c").named("split.so").library().build();
    let loader = c("loader.c").dynamic();
    // Cut at different times of the daemon's work on the file: at once, and windows later.
    let runs: Vec<(Workload, std::path::PathBuf)> = (0..6)
        .map(|number| {
            let copy = dir.path().join(format!("library-{number}.so"));
            std::fs::copy(&library, &copy).unwrap();
            let run = loader.start_in(&cgroup, &[copy.to_str().unwrap()]);
            (run, copy)
        })
        .collect();
    for (_, copy) in &runs {
        std::thread::sleep(Duration::from_millis(500));
        let file = std::fs::File::options().write(true).open(copy).unwrap();
        file.set_len(64).unwrap();
    }
    let view = daemon.client().everything().in_cgroup(cgroup.path());
    assert!(view.count() > 20, "{}", view.dump());
    daemon.client().status().expect("it lives");
    daemon.stop();
}
