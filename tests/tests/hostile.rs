//! Names that others choose (cgroups, tasks, files) reach no terminal, page or script as more than
//! text.
#![expect(clippy::unwrap_used, reason = "a test fails by panic")]

use profile::key;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;
use testkit::recording::Shared;
use testkit::workload::{c, stripped_c};
use testkit::{Cgroup, Daemon, Need, browser, skip};

/// How long the programs run together. Unit: seconds.
const RUN_S: u64 = 5;
const NEEDS: &[Need] = &[Need::Root, Need::StaticC, Need::Cgroup2];
/// In a directory name; the kernel itself refuses newlines there.
const CGROUP: &str = "evil;\x1b[2J\x1b]0;owned\x07<script>cgroup\r\u{9b}31m\"'&";
/// Names of tasks, at most 15 bytes.
const COMM_MARKUP: &str = "<script>comm;\n\"";
const COMM_ESCAPE: &str = "\x1b[31m\x1b]0;x\x07\t\x7f\\";
const COMM_END: &str = "</script>--><b>";
/// Base name of a stripped program: becomes the name of its frames. A file name has no `/`.
const FILE: &str = "mod;ule\n\x1b[31m 7\n<script>file--><b>";
/// What may not stand in any page as it is.
const MARKUP: [&str; 5] = [
    "<script>cgroup",
    "<script>comm",
    "</script>--",
    "<script>file",
    "--><b>",
];

struct Recording {
    outputs: BTreeMap<&'static str, String>,
    view: testkit::View,
    cgroup: String,
    dir: std::path::PathBuf,
}

static RECORDING: Shared<Recording> = Shared::new();

fn recording() -> Option<&'static Recording> {
    RECORDING.get_beside(NEEDS, || {
        let cgroup = Cgroup::new(CGROUP);
        let daemon = Daemon::with().set("windows.length_s=1").start().sampling();
        let runs = [
            c("split.c").start_in(&cgroup, &["-c", COMM_MARKUP]),
            c("split.c").start_in(&cgroup, &["-c", COMM_ESCAPE]),
            c("kernel.c").start_in(&cgroup, &["-c", COMM_END]),
            stripped_c("split.c", FILE).start_in(&cgroup, &[]),
        ];
        std::thread::sleep(Duration::from_secs(RUN_S));
        let view = daemon.client().everything().in_cgroup(cgroup.path());
        // What comes now has the CPUs: the programs have nothing more to show.
        drop(runs);
        let dir = testkit::binaries::shared_dir("hostile");
        let mut outputs = BTreeMap::new();
        for format in ["folded", "json", "speedscope", "svg", "html"] {
            let file = dir.join(format!("hostile.{format}"));
            let by = ["--group-by", "cgroup,comm,thread"];
            let args = ["profile", "--since", "1m", "--format", format, "-o"];
            let done = daemon.ctl(&[args.as_slice(), &[file.to_str().unwrap()], &by].concat());
            // 6: it says that samples are missing, as they may be on a busy machine.
            assert!(matches!(done.code, Some(0 | 6)), "{done:?}");
            outputs.insert(format, std::fs::read_to_string(&file).expect("text"));
        }
        for (name, args) in [
            ("cgroups", ["cgroups"].as_slice()),
            ("cgroups --json", &["cgroups", "--json"]),
            ("top", &["top"]),
            ("status", &["status"]),
            ("tail", &["tail", "-n", "1"]),
            ("tail --json", &["tail", "-n", "1", "--json"]),
        ] {
            outputs.insert(name, daemon.ctl(args).text());
        }
        outputs.insert("log", daemon.log());
        daemon.stop();
        Recording {
            outputs,
            view,
            cgroup: cgroup.path().to_owned(),
            dir,
        }
    })
}

#[test]
fn names_arrive_whole_on_the_wire_needs_root() {
    let Some(recording) = recording() else { return };
    let comms = recording.view.label_values(key::COMM);
    for comm in [COMM_MARKUP, COMM_ESCAPE, COMM_END] {
        assert!(comms.contains(comm), "{comm:?} is not in {comms:?}");
    }
    let modules = recording.view.frames();
    assert!(
        modules.iter().any(|frame| frame.module == FILE),
        "{}",
        recording.view.dump()
    );
}

#[test]
fn no_output_has_control_characters_needs_root() {
    let Some(recording) = recording() else { return };
    for (name, text) in &recording.outputs {
        let bad: Vec<char> = text
            .chars()
            .filter(|&c| c.is_control() && !matches!(c, '\n' | '\t'))
            .collect();
        assert!(bad.is_empty(), "{name}: {bad:?}");
    }
}

#[test]
fn every_folded_line_is_a_stack_and_a_count_needs_root() {
    let Some(recording) = recording() else { return };
    let text = &recording.outputs["folded"];
    let mut total = 0;
    for line in text.lines() {
        let (stack, count) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line:?}"));
        assert!(!stack.is_empty(), "{line:?}");
        total += count
            .parse::<u64>()
            .unwrap_or_else(|e| panic!("{e}: {line:?}"));
    }
    assert!(total >= recording.view.count());
}

#[test]
fn a_semicolon_in_a_name_makes_no_frame_needs_root() {
    let Some(recording) = recording() else { return };
    // "ule…" would be a frame of its own if the `;` in the file's name were one.
    let cut = FILE.split(';').nth(1).unwrap().split('\n').next().unwrap();
    for line in recording.outputs["folded"].lines() {
        let mut frames = line.split(';');
        assert!(!frames.any(|frame| frame.starts_with(cut)), "{line:?}");
    }
}

#[test]
fn json_has_the_names_as_they_are_needs_root() {
    let Some(recording) = recording() else { return };
    for name in ["json", "speedscope", "cgroups --json"] {
        let value: Value = serde_json::from_str(&recording.outputs[name])
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        if name == "cgroups --json" {
            let paths = value["cgroups"].as_array().expect("a list").iter();
            assert!(
                paths
                    .map(|c| &c["path"])
                    .any(|path| *path == recording.cgroup),
                "{value}"
            );
        }
    }
}

#[test]
fn no_page_has_the_markup_of_a_name_needs_root() {
    let Some(recording) = recording() else { return };
    for format in ["svg", "html"] {
        for markup in MARKUP {
            let text = &recording.outputs[format];
            let at = text
                .find(markup)
                .map(|at| &text[at..(at + 60).min(text.len())]);
            assert!(at.is_none(), "{format}: {at:?}");
        }
    }
}

#[test]
fn a_browser_shows_hostile_names_as_text_needs_root() {
    let Some(recording) = recording() else { return };
    if browser::chromium().is_none() {
        return skip("needs chromium");
    }
    for format in ["svg", "html"] {
        let page = recording.dir.join(format!("hostile.{format}"));
        let dom = browser::dom(&page);
        assert!(
            dom.contains("spend_seventy"),
            "{format}: {} bytes",
            dom.len()
        );
        assert!(!dom.contains("<script>comm"), "{format}");
    }
}
