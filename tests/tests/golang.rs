//! Programs in Go have complete stacks and names, however they were linked and stripped, and so has
//! Go's own compiler, which distributions strip.

use profile::{FrameKind, StackEnd, UnnamedReason};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use testkit::golang::{self, Build};
use testkit::process::{install, wait_for};
use testkit::recording::{Shared, record, wait_until_read};
use testkit::{Cgroup, Daemon, Need, View, Workload, skip};

const NEEDS: &[Need] = &[Need::Root, Need::Cgroup2];
/// Longest wait until all stacks of the programs are walked.
const LEAD_MAX: Duration = Duration::from_secs(60);
/// Samples of each program that are looked at.
const ENOUGH: u64 = 250;
/// Often, so that few seconds are enough.
const RATE: &str = "sampling.rate_hz=499";
/// Longest recording of as many.
const RUN: Duration = Duration::from_secs(24);
/// The compiler's name in the recording.
const COMPILER: &str = "compile";

type Views = BTreeMap<String, Result<View, String>>;

static RECORDING: Shared<Views> = Shared::new();

/// A program whose header says that it has no sections.
fn without_sections(program: &Path, to: &Path) {
    let mut image = std::fs::read(program).expect("failed to read a program");
    // e_shoff; e_shnum and e_shstrndx.
    image[0x28..0x30].fill(0);
    image[0x3c..0x40].fill(0);
    let written = to.with_extension("written");
    std::fs::write(&written, image).expect("failed to write a program");
    install(&written, to);
}

/// Builds the standard library again and again.
fn compiling(cgroup: &Cgroup, dir: &Path) -> Result<Workload, String> {
    let go = golang::tool()?;
    let mut command = cgroup.command_that_yields("sh");
    let script = r#"while true; do "$0" build -a -p 2 go/types net/http; done"#;
    command
        .args(["-c", script])
        .arg(go)
        .env("GOCACHE", dir.join("go-build"))
        .env("GO111MODULE", "off")
        .env("GOTOOLCHAIN", "local")
        .env_remove("GOROOT");
    Ok(Workload::spawn(&mut command))
}

/// Samples at the innermost of the recursion.
fn nested(view: &View) -> View {
    view.only(|sample| sample.leaf() == "main.(*Ledger).Settle" && sample.has("main.nested"))
}

/// Calls of the recursion: 24 and the first.
const NESTED: usize = 25;

/// Those with so many calls of the recursion: one that was cut would have fewer.
fn with_calls(view: &View, calls: usize) -> View {
    view.only(|sample| {
        let frames = sample.frames.iter();
        let nested = frames.filter(|frame| frame.function == "main.nested");
        nested.count() == calls
    })
}

/// Those with all of it.
fn whole(view: &View) -> View {
    with_calls(view, NESTED)
}

fn recording() -> Option<&'static Views> {
    RECORDING.get_beside(NEEDS, || {
        let dir = tempfile::tempdir().expect("failed to make a directory");
        let daemon = Daemon::with().set("unwind.cache_mib=512");
        let daemon = daemon.set("shutdown.grace_s=20").set(RATE).start();
        let daemon = daemon.sampling();
        let (mut running, mut views) = (Vec::new(), Views::new());
        let mut programs: Vec<(String, Result<_, String>)> = Vec::new();
        for how in Build::ALL {
            programs.push((format!("{how:?}").to_lowercase(), golang::build(how)));
        }
        let bare = dir.path().join("orders-bare");
        let stripped = golang::build(Build::Stripped);
        let no_sections = stripped.map(|program| {
            without_sections(&program, &bare);
            bare
        });
        programs.push(("no-sections".to_owned(), no_sections));
        for (name, program) in programs {
            match program {
                Ok(program) => {
                    let cgroup = Cgroup::new(format!("go-{name}"));
                    let mut command = cgroup.command_that_yields(&program);
                    let workload = Workload::spawn(command.env("GOMAXPROCS", "1"));
                    running.push((name, workload.settled(&program), cgroup));
                }
                Err(why) => drop(views.insert(name, Err(why))),
            }
        }
        let cgroup = Cgroup::new("go-compile");
        match compiling(&cgroup, dir.path()) {
            Ok(workload) => running.push((COMPILER.to_owned(), workload, cgroup)),
            Err(why) => drop(views.insert(COMPILER.to_owned(), Err(why))),
        }
        wait_until_read(&daemon);
        // Until then a chain of frame pointers stands in, which lacks the leaf's caller.
        let walked = wait_for(LEAD_MAX, || {
            let begin = testkit::clock::unix_ns();
            std::thread::sleep(Duration::from_secs(3));
            let view = daemon.client().since(begin);
            let is_walked = |cgroup: &Cgroup| {
                let nested = nested(&view.in_cgroup(cgroup.path()));
                nested.count() > 0 && whole(&nested).count() == nested.count()
            };
            let mut programs = running.iter().filter(|(name, ..)| name != COMPILER);
            programs
                .all(|(_, _, cgroup)| is_walked(cgroup))
                .then_some(())
        });
        if walked.is_none() {
            eprintln!("programs still wait for unwind information");
        }
        let cgroups: Vec<&Cgroup> = running.iter().map(|(_, _, cgroup)| cgroup).collect();
        let view = record(&daemon, &cgroups, ENOUGH, RUN);
        for (name, workload, cgroup) in running {
            drop(workload);
            let own = view.in_cgroup(cgroup.path());
            let own = match &*name {
                COMPILER => own.only(|sample| sample.label("comm") == COMPILER),
                _ => own,
            };
            views.insert(name, Ok(own));
        }
        daemon.stop();
        views
    })
}

/// What was seen of a program; skipped where it could not be built.
fn view<'v>(views: &'v Views, name: &str) -> Option<&'v View> {
    match views.get(name)? {
        Ok(view) => Some(view),
        Err(why) => {
            skip(why);
            None
        }
    }
}

/// Nineteen of twenty samples are complete, and as many have a name for where the CPU was.
fn check(view: &View, name: &str) {
    assert!(view.count() >= 40, "{name}: {}", view.dump());
    let cut =
        view.only(|sample| !sample.end.is_complete() && sample.end != StackEnd::ModuleLoading);
    let (of, lost) = (view.count(), cut.count());
    println!("{name}: {lost} of {of} are cut");
    assert!(
        lost * 20 <= of,
        "{name}: {lost} of {of} are cut {}",
        cut.dump()
    );
    let nameless = view.only(|sample| sample.frames[0].unnamed != UnnamedReason::No);
    let lost = nameless.count();
    assert!(
        lost * 20 <= of,
        "{name}: {lost} of {of} without a name {}",
        nameless.dump()
    );
}

#[test]
fn stacks_are_complete_however_a_program_was_linked_needs_root() {
    let Some(views) = recording() else { return };
    for name in [
        "whole",
        "stripped",
        "pie",
        "external",
        "externalpie",
        "no-sections",
    ] {
        if let Some(view) = view(views, name) {
            check(view, name);
        }
    }
}

#[test]
fn go_s_own_compiler_is_complete_needs_root() {
    let Some(views) = recording() else { return };
    if let Some(view) = view(views, COMPILER) {
        check(view, COMPILER);
    }
}

#[test]
fn callers_are_in_their_place_up_to_where_the_goroutine_starts_needs_root() {
    let Some(views) = recording() else { return };
    for name in ["stripped", "pie", "no-sections"] {
        let Some(view) = view(views, name) else {
            continue;
        };
        let busy = view.only(|sample| sample.leaf() == "main.(*Ledger).Settle");
        assert!(busy.count() >= 20, "{name}: {}", view.dump());
        let right = busy.only(|sample| {
            let mut names = sample.frames.iter().map(|frame| frame.function.as_str());
            let callers = ["main.serve", "runtime.goexit"];
            let in_order = callers
                .iter()
                .all(|caller| names.any(|name| name == *caller));
            let user = |kind: FrameKind| kind == FrameKind::Native;
            in_order && sample.frames.iter().all(|frame| user(frame.kind))
        });
        let (of, found) = (busy.count(), right.count());
        assert!(
            found * 20 >= of * 19,
            "{name}: {found} of {of} {}",
            busy.dump()
        );
        let nested = nested(&busy);
        // Where a daemon is too busy to walk a stack, the chain of frame pointers stands in, which
        // lacks the leaf's caller and nothing else.
        let stands_in = with_calls(&nested, NESTED - 1).count();
        let (of, found) = (nested.count(), whole(&nested).count());
        assert!(
            found * 2 > of && (found + stands_in) * 20 >= of * 19,
            "{name}: {found} and {stands_in} of {of} {}",
            nested.dump()
        );
    }
}
