//! Recordings of the real `perf record`, read without perf: the same file through `perf script` has
//! the same samples, functions and stacks.
//!
//! perf is made to ask for build ids of mappings: where another session does and perf 6.1 does not,
//! the kernel tells perf that there are some, and perf aborts.

use perf_data::Options;
use profile::formats::Import;
use profile::{Profile, key};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;
use testkit::perf::{self, PerfSample, SCRIPT};
use testkit::process::{install, run};
use testkit::workload::{Recipe, bare_c, c};
use testkit::{Need, met};

/// Longest that a recording or its text may take.
const LIMIT: Duration = Duration::from_secs(120);
const NEEDS: &[Need] = &[Need::Root, Need::StaticC, Need::Program("perf")];
/// CPU time of the workloads. Unit: seconds.
const RUN_S: &str = "2";

/// A recording that is removed at the end.
struct Recording {
    dir: TempDir,
    file: PathBuf,
}

impl Recording {
    /// Records a program until it ends.
    fn of(program: &Path, options: &[&str]) -> Recording {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("perf.data");
        let mut command = Command::new("perf");
        command
            .args([
                "record",
                "-q",
                "--buildid-mmap",
                "--sample-cpu",
                "-e",
                "cpu-clock",
                "-F",
                "499",
            ])
            .args(options);
        command
            .arg("-o")
            .arg(&file)
            .arg("--")
            .arg(program)
            .args(["-t", RUN_S]);
        run(&mut command, LIMIT).ok();
        Recording { dir, file }
    }

    fn import(&self) -> Import {
        let bytes = std::fs::read(&self.file).expect("a recording");
        let options = Options {
            bytes_max: 1 << 30,
            event: None,
            local: true,
        };
        perf_data::read(&bytes, options).expect("a recording of perf")
    }

    /// The samples as perf prints them.
    fn script(&self) -> Vec<PerfSample> {
        let mut command = Command::new("perf");
        command.args(SCRIPT).arg("-i").arg(&self.file);
        perf::parse(&run(&mut command, LIMIT).text())
    }
}

/// Stacks from the leaf up to `main`, of user code, with their samples.
type Stacks = BTreeMap<Vec<String>, u64>;

fn ours(profile: &Profile) -> Stacks {
    let mut stacks = Stacks::new();
    for (sample, value) in &profile.samples {
        let frames = profile.dict.stacks.leaf_first(sample.stack);
        let names = frames.map(|frame| profile.dict.frame(frame).function.to_owned());
        *stacks.entry(up_to_main(names)).or_default() += value.count;
    }
    stacks
}

fn theirs(samples: &[PerfSample]) -> Stacks {
    let mut stacks = Stacks::new();
    for sample in samples {
        let names = sample.frames.iter().map(|(function, _)| function.clone());
        *stacks.entry(up_to_main(names)).or_default() += 1;
    }
    stacks
}

/// What follows main differs: perf shows whatever a chain leads to.
fn up_to_main(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut stack = Vec::new();
    for name in names {
        let is_main = name == "main";
        stack.push(name);
        if is_main {
            return stack;
        }
    }
    stack
}

/// Only the stacks that reach main: the kernel's functions have several names at one address.
fn of_main(stacks: &Stacks) -> Stacks {
    let own = |stack: &Vec<String>| {
        let leaf_is_ours = stack.first().is_some_and(|leaf| leaf.starts_with("spend_"));
        leaf_is_ours && stack.last().is_some_and(|root| root == "main")
    };
    let own = stacks.iter().filter(|(stack, _)| own(stack));
    own.map(|(stack, count)| (stack.clone(), *count)).collect()
}

fn samples(stacks: &Stacks) -> u64 {
    stacks.values().sum()
}

/// Imports what the program's recording has, and compares it with perf's text of the same file.
fn check(recording: &Recording) -> Import {
    let import = recording.import();
    let (ours, theirs) = (ours(&import.profile), theirs(&recording.script()));
    assert_eq!(samples(&ours), samples(&theirs), "{:?}", import.notes);
    let (our_main, their_main) = (of_main(&ours), of_main(&theirs));
    assert!(
        samples(&their_main) * 10 >= samples(&theirs) * 8,
        "{theirs:?}"
    );
    assert_eq!(our_main, their_main, "{:?}", import.notes);
    import
}

fn split() -> Recipe {
    c("split.c")
}

#[test]
fn callchains_are_those_that_perf_prints_needs_root() {
    if !met(NEEDS) {
        return;
    }
    let import = check(&Recording::of(&split().build(), &["-g"]));
    let labels = &import.profile.dict;
    let mut comms = import
        .profile
        .samples
        .keys()
        .map(|sample| labels.label(sample.labels, key::COMM));
    assert!(comms.any(|comm| comm == Some("split")));
}

#[test]
fn a_compressed_recording_is_the_same_needs_root() {
    if !met(NEEDS) {
        return;
    }
    check(&Recording::of(&split().build(), &["-g", "-z"]));
}

#[test]
fn copies_of_stacks_are_unwound_as_perf_does_needs_root() {
    if !met(NEEDS) {
        return;
    }
    // Nothing in it keeps a frame pointer.
    let program = bare_c("split.c", &[]).build();
    let import = check(&Recording::of(&program, &["--call-graph", "dwarf,4096"]));
    let quality = import.profile.info.quality;
    assert!(
        quality.truncated * 50 <= quality.taken,
        "{:?}",
        import.notes
    );
}

#[test]
fn a_pipe_has_the_same_functions_needs_root() {
    if !met(NEEDS) {
        return;
    }
    let recording = Recording::of(&split().build(), &["-g"]);
    let piped = recording.dir.path().join("pipe");
    let mut command = Command::new("perf");
    command.args([
        "record",
        "-q",
        "--buildid-mmap",
        "-e",
        "cpu-clock",
        "-F",
        "499",
        "-g",
        "-o",
        "-",
        "--",
    ]);
    command.arg(split().build()).args(["-t", RUN_S]);
    let out = command.output().expect("perf record");
    std::fs::write(&piped, &out.stdout).expect("a file");
    let piped = Recording {
        file: piped,
        ..recording
    };
    let stacks = of_main(&ours(&piped.import().profile));
    // A chain of frame pointers misses the caller of a function that has just started.
    let names: BTreeSet<&str> = stacks.keys().map(|stack| stack[0].as_str()).collect();
    let expected = ["spend_seventy", "spend_ten", "spend_twenty"];
    assert_eq!(names, BTreeSet::from(expected));
}

#[test]
fn a_file_that_was_replaced_gives_no_names_needs_root() {
    if !met(NEEDS) {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let program = dir.path().join("split");
    install(split().build(), &program);
    let recording = Recording::of(&program, &["-g"]);
    std::fs::remove_file(&program).expect("the program");
    install(c("kernel.c").build(), &program);
    let Import { profile, notes, .. } = recording.import();
    let mut names = ours(&profile).into_keys().flatten().collect::<Vec<_>>();
    names.retain(|name| name.starts_with("spend_") || name == "main");
    assert_eq!(names, [""; 0]);
    assert!(
        notes.iter().any(|note| note.contains("/split")),
        "{notes:?}"
    );
}
