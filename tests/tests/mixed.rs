//! Node with `--perf-basic-prof`, a Rust release build, a stripped C program and the kernel in one
//! profile, in every format, with the flame graphs opened in a browser.
#![expect(clippy::unwrap_used, reason = "a test fails by panic")]

use profile::{FrameKind, UnnamedReason, key};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use testkit::recording::Shared;
use testkit::workload::{c, rust, source, stripped_c};
use testkit::{Cgroup, Daemon, Need, View, Workload, binaries, browser, met, skip};

/// How long the programs run together. Unit: seconds. About 2,000 samples for each on two CPUs.
const RUN_S: u64 = 8;
/// Often, so that few seconds are enough.
const RATE: &str = "sampling.rate_hz=499";
const NEEDS: &[Need] = &[
    Need::Root,
    Need::StaticC,
    Need::Cgroup2,
    Need::Program("node"),
    Need::Program("rustc"),
];
/// Name of the stripped program.
const STRIPPED: &str = "bare-metal";
/// Formats and the file that each is saved in.
const FORMATS: [(&str, &str); 6] = [
    ("folded", "mixed.folded"),
    ("json", "mixed.json"),
    ("pprof", "mixed.pb.gz"),
    ("speedscope", "mixed.speedscope.json"),
    ("svg", "mixed.svg"),
    ("html", "mixed.html"),
];

struct Recording {
    view: View,
    dir: PathBuf,
}

static RECORDING: Shared<Recording> = Shared::new();

fn recording() -> Option<&'static Recording> {
    RECORDING.get_beside(NEEDS, || {
        let cgroup = Cgroup::new("mixed");
        let daemon = Daemon::with().set(RATE).start().sampling();
        let node = Workload::spawn(
            cgroup
                .command("node")
                .arg("--perf-basic-prof")
                .arg(source("timeline.js")),
        );
        let rust = rust("orchard.rs").start_in(&cgroup, &[]);
        let bare = stripped_c("split.c", STRIPPED).start_in(&cgroup, &[]);
        let kernel = c("kernel.c").start_in(&cgroup, &[]);
        std::thread::sleep(Duration::from_secs(RUN_S));
        // Asked while the programs run: a perf map is read when a window closes.
        let view = daemon.client().everything().in_cgroup(cgroup.path());
        // The six answers have the CPUs: the programs have nothing more to show.
        drop((node, rust, bare, kernel));
        let dir = binaries::shared_dir("mixed");
        for (format, file) in FORMATS {
            let path = dir.join(file).display().to_string();
            let args = ["profile", "--since", "1m", "--cgroup", cgroup.path()];
            let output = ["--format", format, "-o", &path];
            daemon.ctl(&[args.as_slice(), &output].concat()).ok();
        }
        daemon.stop();
        Recording { view, dir }
    })
}

/// Checks that a text of a format names what runs.
fn check_names(text: &str) {
    for name in [
        "renderTimeline",
        "parseLedger",
        "squeeze",
        &format!("[{STRIPPED}]"),
        "read",
    ] {
        assert!(
            text.contains(name),
            "`{name}` is not in {} bytes of text",
            text.len()
        );
    }
}

fn read(recording: &Recording, file: &str) -> String {
    std::fs::read_to_string(recording.dir.join(file)).unwrap()
}

#[test]
fn javascript_functions_are_named_as_generated_code_needs_root() {
    let Some(recording) = recording() else { return };
    let frames = recording.view.frames();
    for function in ["renderTimeline", "parseLedger"] {
        let found = frames.iter().any(|frame| {
            frame.kind == FrameKind::Jit
                && frame.unnamed == UnnamedReason::No
                && frame.function.contains(function)
        });
        assert!(found, "`{function}`: {}", recording.view.dump());
    }
}

#[test]
fn javascript_time_is_named_needs_root() {
    let Some(recording) = recording() else { return };
    let generated = recording.view.only(|sample| {
        sample
            .frames
            .first()
            .is_some_and(|leaf| leaf.kind == FrameKind::Jit)
    });
    let named = generated.only(|sample| sample.frames[0].unnamed == UnnamedReason::No);
    assert!(generated.count() > 100, "{}", recording.view.dump());
    assert!(
        named.count() * 10 >= generated.count() * 9,
        "{}",
        generated.dump()
    );
}

#[test]
fn rust_names_are_demangled_needs_root() {
    let Some(recording) = recording() else { return };
    let view = recording
        .view
        .only(|sample| sample.label(key::COMM) == "orchard");
    let frames = view.frames();
    let found = frames.iter().any(|frame| {
        frame.function.contains("orchard::press::Press") && frame.function.contains("squeeze")
    });
    assert!(found, "{}", view.dump());
    let mangled = |name: &str| name.starts_with("_ZN") || name.starts_with("_R");
    assert!(
        !frames.iter().any(|frame| mangled(&frame.function)),
        "{frames:?}"
    );
}

#[test]
fn a_stripped_program_shows_its_module_and_the_reason_needs_root() {
    let Some(recording) = recording() else { return };
    let view = recording
        .view
        .only(|sample| sample.label(key::COMM) == STRIPPED);
    let leaf_is_module = view.only(|sample| {
        sample.frames.first().is_some_and(|leaf| {
            leaf.function == format!("[{STRIPPED}]")
                && leaf.module == STRIPPED
                && leaf.unnamed == UnnamedReason::NoSymbols
        })
    });
    assert!(
        view.count() > 100 && leaf_is_module.count() * 10 >= view.count() * 9,
        "{}",
        view.dump()
    );
}

#[test]
fn kernel_frames_stand_above_user_frames_needs_root() {
    let Some(recording) = recording() else { return };
    let both = recording.view.only(|sample| {
        let kinds: Vec<FrameKind> = sample.frames.iter().map(|frame| frame.kind).collect();
        kinds.first() == Some(&FrameKind::Kernel) && kinds.contains(&FrameKind::Native)
    });
    assert!(both.count() > 100, "{}", recording.view.dump());
    // Leaf first: once user code has started, no kernel frame follows.
    for sample in &both.samples {
        let user = sample
            .frames
            .iter()
            .position(|frame| frame.kind != FrameKind::Kernel);
        let after = &sample.frames[user.unwrap_or(0)..];
        assert!(
            after.iter().all(|frame| frame.kind != FrameKind::Kernel),
            "{sample:?}"
        );
    }
}

#[test]
fn folded_lines_name_everything_needs_root() {
    let Some(recording) = recording() else { return };
    let text = read(recording, "mixed.folded");
    check_names(&text);
    let mut total = 0;
    for line in text.lines() {
        let (stack, count) = line.rsplit_once(' ').expect("a stack and a count");
        assert!(
            !stack.is_empty() && !stack.starts_with(';') && !stack.contains(";;"),
            "{line:?}"
        );
        total += count.parse::<u64>().expect("a whole count");
    }
    // The file was asked for a moment after the view.
    assert!(
        total >= recording.view.count(),
        "{total} of {}",
        recording.view.count()
    );
}

#[test]
fn json_formats_can_be_read_needs_root() {
    let Some(recording) = recording() else { return };
    for file in ["mixed.json", "mixed.speedscope.json"] {
        let text = read(recording, file);
        check_names(&text);
        serde_json::from_str::<Value>(&text).unwrap_or_else(|e| panic!("{file}: {e}"));
    }
    let speedscope: Value =
        serde_json::from_str(&read(recording, "mixed.speedscope.json")).unwrap();
    let frames = speedscope["shared"]["frames"]
        .as_array()
        .expect("frames")
        .len() as u64;
    let profile = &speedscope["profiles"][0];
    assert_eq!(profile["type"], "sampled");
    let samples = profile["samples"].as_array().expect("samples");
    assert_eq!(
        samples.len(),
        profile["weights"].as_array().expect("weights").len()
    );
    let ids = samples
        .iter()
        .flat_map(|stack| stack.as_array().expect("a stack"));
    assert!(
        ids.map(|id| id.as_u64().expect("an id"))
            .all(|id| id < frames)
    );
}

#[test]
fn pprof_is_read_by_its_own_tool_needs_root() {
    let Some(recording) = recording() else { return };
    if !met(&[Need::Program("go")]) {
        return;
    }
    let file = recording.dir.join("mixed.pb.gz");
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new("go");
    // All nodes: what else runs on the machine may leave the workloads a small share.
    command
        .args(["tool", "pprof", "-top", "-cum"])
        .args(["-nodecount=1000000", "-nodefraction=0"])
        .arg(file);
    command
        .env("HOME", home.path())
        .env("PPROF_TMPDIR", home.path());
    let top = testkit::process::run(&mut command, Duration::from_secs(60))
        .ok()
        .text();
    check_names(&top);
}

/// Opens a flame graph and checks what is in the page and that something was drawn.
fn check_page(file: &str) {
    let Some(recording) = recording() else { return };
    if browser::chromium().is_none() {
        skip("needs chromium");
        return;
    }
    let page = recording.dir.join(file);
    check_names(&browser::dom(&page));
    let shot = browser::screenshot(&page, &recording.dir.join(format!("{file}.png")));
    // Where something else on the machine has deep stacks, most of the picture is above the others.
    assert!(shot.colours > 20 && shot.drawn > 0.005, "{shot:?}");
}

#[test]
fn the_svg_is_drawn_by_a_browser_needs_root() {
    check_page("mixed.svg");
}

#[test]
fn the_html_is_drawn_by_a_browser_needs_root() {
    check_page("mixed.html");
}
