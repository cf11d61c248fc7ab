//! Source lines and instructions on the real kernel: captures have them, and the profile beside
//! them stays what it was.

use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use testkit::ctl::USAGE;
use testkit::process::{Output, install, run};
use testkit::workload::{Recipe, Workload, bare_c, source};
use testkit::{Daemon, Need, live};

const NEEDS: &[Need] = &[
    Need::Root,
    Need::StaticC,
    Need::Program("objcopy"),
    Need::Program("objdump"),
];
/// Longest that a tool may take.
const TOOL: Duration = Duration::from_secs(30);

/// A program whose hot loop is inlined, with debug information.
fn program() -> Recipe {
    bare_c("inlined.c", &["-g"])
}

/// The lines of its loop.
fn loop_lines() -> Vec<u64> {
    let text = std::fs::read_to_string(source("inlined.c")).expect("the source");
    let lines = text.lines().zip(1..);
    let own = lines.filter(|(line, _)| line.ends_with("// loop"));
    own.map(|(_, number)| number).collect()
}

fn tool(program: &str, args: &[&str]) -> String {
    run(Command::new(program).args(args), TOOL).ok().text()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are text")
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", output.text()))
}

/// Annotates a function of a process.
fn annotate(daemon: &Daemon, busy: &Workload, function: &str, more: &[&str]) -> Output {
    let pid = busy.pid().to_string();
    let common = ["annotate", function, "--pid", &pid, "--for", "2s", "--json"];
    daemon.ctl(&[&common[..], more].concat())
}

/// The part of a function's own samples that its loop has.
fn loop_share(annotated: &Value) -> f64 {
    let lines = annotated["lines"].as_array().expect("lines");
    let own = |line: &&Value| line["self"].as_u64().expect("a number");
    let of_loop = |line: &&Value| {
        let file = line["file"].as_str().expect("a path");
        let number = line["line"].as_u64().expect("a number");
        file.ends_with("inlined.c") && loop_lines().contains(&number)
    };
    let hot: u64 = lines.iter().filter(of_loop).map(|line| own(&line)).sum();
    hot as f64 / annotated["self"].as_u64().expect("a number").max(1) as f64
}

#[test]
fn lines_and_inlined_functions_are_recorded_and_the_profile_stays_as_it_was_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let daemon = Daemon::start().sampling();
    let busy = program().start(&[]);
    let pid = busy.pid().to_string();
    let args = [
        "profile",
        "--lines",
        "--for",
        "3s",
        "--group-by",
        "none",
        "--pid",
        &pid,
    ];
    let recorded = daemon.ctl(&args).ok();
    let mut by_leaf: BTreeMap<String, u64> = BTreeMap::new();
    for line in recorded.text().lines() {
        let (stack, count) = line.rsplit_once(' ').expect("a folded stack");
        // Interrupts come on top of it.
        let at = stack.split(';').find(|frame| frame.starts_with("hot "));
        if let Some(at) = at {
            assert!(stack.contains("outer inlined.c:"), "{stack}");
            *by_leaf.entry(at.to_owned()).or_default() += count.parse::<u64>().expect("a number");
        }
    }
    let expected = loop_lines().into_iter();
    let expected: Vec<String> = expected
        .map(|line| format!("hot inlined.c:{line}"))
        .collect();
    let hottest = by_leaf.iter().max_by_key(|(_, count)| **count);
    let (hottest, count) = hottest.expect("samples of the loop");
    assert!(expected.contains(hottest), "{by_leaf:?}");
    assert!(*count > 50, "{by_leaf:?}");
    let told = recorded
        .stderr
        .contains("samples in native code have a source line");
    assert!(told, "{}", recorded.stderr);
    // The same process at the same time, in the windows of the profile.
    let usual = [
        "profile", "--since", "1m", "--format", "json", "--pid", &pid,
    ];
    let usual = daemon.ctl(&usual).ok().text();
    assert!(usual.contains("\"outer\""), "{usual}");
    assert!(
        !usual.contains("inlined.c") && !usual.contains("\"hot\""),
        "{usual}"
    );
    daemon.stop();
}

#[test]
fn the_lines_and_instructions_of_a_function_are_those_that_run_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let daemon = Daemon::start().sampling();
    let recipe = program();
    let busy = recipe.start(&[]);
    let found = annotate(&daemon, &busy, "hot", &["--instructions"]).ok();
    let annotated = json(&found);
    assert!(loop_share(&annotated) >= 0.8, "{}", found.text());
    let text_of = annotated["lines"][0]["text"].as_str().unwrap_or_default();
    assert!(!text_of.is_empty(), "{}", found.text());
    let instructions = annotated["instructions"].as_array().expect("instructions");
    let hottest = instructions.iter().max_by_key(|at| at["self"].as_u64());
    let hottest = hottest.expect("an instruction with samples");
    let address = hottest["address"].as_str().expect("an address");
    let address = u64::from_str_radix(&address[2..], 16).expect("hexadecimal");
    let path = recipe.build();
    let (start, stop) = (
        format!("--start-address={address:#x}"),
        format!("--stop-address={:#x}", address + 16),
    );
    let listed = tool(
        "objdump",
        &["-d", "--no-show-raw-insn", &start, &stop, text(&path)],
    );
    let at = format!("{address:x}:");
    let line = listed
        .lines()
        .find_map(|line| line.trim_start().strip_prefix(&at));
    let mnemonic = |text: &str| {
        text.split_whitespace()
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let (theirs, ours) = (
        mnemonic(line.unwrap_or_else(|| panic!("{address:#x} is no instruction: {listed}"))),
        mnemonic(hottest["text"].as_str().expect("an instruction")),
    );
    // A suffix tells the size where nothing else does.
    assert!(
        theirs.starts_with(&ours) || ours.starts_with(&theirs),
        "{ours}: {listed}"
    );
    // What was inlined is the caller's too, by line and by instruction.
    let caller = json(&annotate(&daemon, &busy, "outer", &["--instructions"]).ok());
    assert_eq!(caller["lines"][0]["total"], caller["total"]);
    let own = |at: &Value| at["self"].as_u64();
    let there = caller["instructions"]
        .as_array()
        .expect("instructions")
        .iter();
    let sum: u64 = there.filter_map(own).sum();
    assert!(
        sum as f64 >= 0.8 * caller["total"].as_f64().expect("a number"),
        "{caller}"
    );
    daemon.stop();
}

#[test]
fn a_stripped_program_has_the_lines_of_its_debug_file_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let recipe = program().named("stripped");
    let whole = recipe.build();
    let notes = tool("readelf", &["-n", text(&whole)]);
    let id = notes
        .lines()
        .find_map(|line| line.trim().strip_prefix("Build ID: "));
    let (first, rest) = id.expect("a build id").split_at(2);
    let place = dir.path().join(".build-id").join(first);
    std::fs::create_dir_all(&place).expect("a directory");
    let debug = place.join(format!("{rest}.debug"));
    tool(
        "objcopy",
        &["--only-keep-debug", text(&whole), text(&debug)],
    );
    let stripped = dir.path().join("stripped");
    tool("objcopy", &["--strip-all", text(&whole), text(&stripped)]);
    let dirs = format!("symbols.debug_dirs={}", text(dir.path()));
    let daemon = Daemon::with().set(&dirs).start().sampling();
    let busy = Workload::spawn(&mut Command::new(&stripped));
    let found = annotate(&daemon, &busy, "hot", &["--instructions"]).ok();
    let annotated = json(&found);
    assert!(loop_share(&annotated) >= 0.8, "{}", found.text());
    let decoded = |at: &Value| at["text"].is_string();
    let instructions = annotated["instructions"].as_array().expect("instructions");
    assert!(instructions.iter().all(decoded), "{}", found.text());
    daemon.stop();
}

#[test]
fn files_that_are_gone_or_others_have_a_plain_reason_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let daemon = Daemon::start().sampling();
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("gone");
    install(program().build(), &path);
    let mut busy = Workload::spawn(&mut Command::new(&path)).settled(&path);
    std::fs::remove_file(&path).expect("removed");
    // What is deleted is still there for who runs it.
    let deleted = json(&annotate(&daemon, &busy, "hot", &["--instructions"]).ok());
    assert!(
        loop_share(&deleted) >= 0.8 && deleted["instructions"][0]["text"].is_string(),
        "{deleted}"
    );
    let foreign = ["--instructions", "--binary", "/bin/sh"];
    let foreign = json(&annotate(&daemon, &busy, "hot", &foreign).ok());
    let notes = foreign["notes"].to_string();
    assert!(
        notes.contains("it is not the build that was sampled"),
        "{notes}"
    );
    assert!(
        foreign["instructions"][0]["address"].is_string(),
        "{foreign}"
    );
    let unknown = annotate(&daemon, &busy, "hottest", &[]);
    assert_eq!(unknown.code, Some(USAGE), "{}", unknown.text());
    assert!(
        unknown.stderr.contains("the nearest are `hot`"),
        "{}",
        unknown.text()
    );
    // One that ends while it is sampled.
    let pid = busy.pid().to_string();
    let ended = std::thread::scope(|scope| {
        let annotated = scope.spawn(|| {
            let args = ["annotate", "hot", "--pid", &pid, "--for", "20s", "--json"];
            daemon.ctl(&[&args[..], &["--instructions"]].concat())
        });
        std::thread::sleep(Duration::from_secs(2));
        busy.proc().signal(Signal::KILL);
        busy.proc().wait(TOOL);
        annotated.join().expect("annotated")
    });
    let notes = json(&ended)["notes"].to_string();
    assert!(
        notes.contains("process ") && notes.contains("give a copy"),
        "{notes}"
    );
    daemon.stop();
}
