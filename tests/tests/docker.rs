//! Programs in containers of a real Docker engine: names of their functions, and who the container
//! is, while it runs, when it is gone, and when the engine is.
#![expect(clippy::unwrap_used, reason = "a test fails by panic")]

use profile::key;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use testkit::docker::{NEEDS, Root};
use testkit::process::{program, run, wait_for};
use testkit::recording::Shared;
use testkit::workload::{bare_c, source};
use testkit::{Daemon, Docker, View, skip};

/// Longest wait for what must be in a profile in the end.
const PATIENCE: Duration = Duration::from_secs(180);
/// How often the JVM is told to write its map, as long as its code is short of names: what it
/// compiles after one is only in the next.
const MAP_EVERY: Duration = Duration::from_secs(15);
/// Samples of a container that are enough to judge it by.
const ENOUGH: u64 = 40;
/// Arguments of programs: enough samples come of a part of a CPU, and the rest is left to who names
/// them.
const SHARE: &[&str] = &["-p", "30"];
/// Label that comes first of all, however many there are.
const EVIL: &str = "aa.evil";
const EVIL_VALUE: &str = "\u{1b}[2J\u{1b}]0;owned\u{7};<script>\n\"'&\u{202e}";

/// Flags of a program that has no symbols but those it exports, and no frame pointers.
const STRIPPED: &[&str] = &["-s", "-rdynamic"];

struct Recording {
    /// The view while all ran.
    running: View,
    /// The view when one was removed and the engine had gone and come back.
    whole: View,
    /// The view of a daemon that may only read files.
    by_files: View,
    /// The view of a container that was gone before the window that it ran in ended.
    brief: View,
    /// Ids by name.
    ids: BTreeMap<&'static str, String>,
    node: bool,
    java: bool,
    /// Samples of the first container in [`Recording::whole`] from after the engine had gone.
    without_engine: u64,
    outputs: Vec<String>,
}

static RECORDING: Shared<Result<Recording, String>> = Shared::new();

fn recording() -> Option<&'static Recording> {
    match RECORDING.get_beside(NEEDS, record)? {
        Ok(recording) => Some(recording),
        Err(reason) => {
            skip(reason);
            None
        }
    }
}

/// The samples of a container.
fn of(view: &View, name: &str) -> View {
    view.only(|sample| sample.label(key::CONTAINER_NAME) == name)
}

/// The samples of a container, with or without its name: what is met first may be recorded before
/// the engine answers.
fn of_container(view: &View, id: &str) -> View {
    view.only(|sample| sample.label(key::CONTAINER) == id)
}

/// The samples that have a frame with this in its name.
fn named(view: &View, part: &str) -> u64 {
    let has = view.only(|sample| sample.frames.iter().any(|f| f.function.contains(part)));
    has.count()
}

/// The samples of Node that have one of its script's functions: V8 compiles the others into
/// `serve`, when it sees fit.
fn javascript(view: &View) -> u64 {
    let own = ["spend", "serve"];
    let has = |function: &str| own.iter().any(|part| function.contains(part));
    let samples = view.only(|sample| sample.frames.iter().any(|frame| has(&frame.function)));
    samples.count()
}

/// Waits until a profile of everything is as it should be.
fn until(daemon: &Daemon, what: &str, mut holds: impl FnMut(&View) -> bool) -> View {
    let mut last = View::default();
    let found = wait_for(PATIENCE, || {
        last = daemon.client().everything();
        holds(&last).then_some(())
    });
    assert!(
        found.is_some(),
        "{what}: {}\nlog: {}",
        last.dump(),
        daemon.log()
    );
    last
}

fn c_image(docker: &Docker) {
    let plain = bare_c("split.c", STRIPPED).build();
    let nested = bare_c("split.c", STRIPPED).prefixed("nested_").build();
    let root = Root::new()
        .program(&plain, "/app/web")
        .program(&nested, "/app/nested")
        .program(&program("unshare").unwrap(), "/bin/unshare");
    let changes = [
        "LABEL team=blue",
        "LABEL org.example/tier=front",
        "ENTRYPOINT [\"/app/web\"]",
    ];
    docker.import("fleet/web:1.4", root.path(), &changes);
}

fn node_image(docker: &Docker) -> bool {
    let Some(node) = program("node") else {
        return false;
    };
    let root = Root::new()
        .program(&node, "/bin/node")
        .file(&source("service.js"), "/app/service.js");
    let entry = "ENTRYPOINT [\"/bin/node\", \"--perf-basic-prof\", \"/app/service.js\"]";
    docker.import("fleet/node:20", root.path(), &[entry]);
    true
}

/// A Java runtime of the modules that are needed, and a class.
fn java_image(docker: &Docker) -> bool {
    let tools = ["jlink", "javac", "java"].map(program);
    let [Some(jlink), Some(javac), Some(java)] = tools else {
        return false;
    };
    let dir = tempfile::tempdir().unwrap();
    let (runtime, classes) = (dir.path().join("runtime"), dir.path().join("classes"));
    // The tools beside `java`, should `PATH` have those of another version.
    let java = std::fs::canonicalize(java).unwrap();
    let own = |name: &str, found: &Path| match java.with_file_name(name) {
        tool if tool.is_file() => tool,
        _ => found.to_path_buf(),
    };
    let linked = run(
        Command::new(own("jlink", &jlink))
            .args(["--add-modules", "java.base,jdk.jcmd,jdk.attach", "--output"])
            .arg(&runtime)
            .args(["--strip-java-debug-attributes", "--no-man-pages"]),
        PATIENCE,
    );
    let compiled = run(
        Command::new(own("javac", &javac))
            .arg("-d")
            .arg(&classes)
            .arg(source("Service.java")),
        PATIENCE,
    );
    if linked.code != Some(0) || compiled.code != Some(0) {
        return false;
    }
    let library = runtime.join("lib/server/libjvm.so");
    let root = Root::new()
        .file(&runtime, "/java")
        .program(&runtime.join("bin/java"), "/java/bin/java")
        .program(&library, "/java/lib/server/libjvm.so")
        .file(&classes, "/app");
    // Without inlining, or the code compiled last has one name, and that of no method the tests ask
    // for.
    let entry = "ENTRYPOINT [\"/java/bin/java\", \"-XX:+PreserveFramePointer\", \
                 \"-XX:CompileCommand=quiet\", \
                 \"-XX:CompileCommand=dontinline,Service.spend*\", \
                 \"-cp\", \"/app\", \"Service\"]";
    docker.import("fleet/java:17", root.path(), &[entry]);
    true
}

fn hostile_container(docker: &Docker) -> String {
    let mut labels = serde_json::Map::new();
    labels.insert(EVIL.to_owned(), json!(EVIL_VALUE));
    labels.insert("aa.huge".to_owned(), json!("h".repeat(1 << 20)));
    for number in 0..100_000 {
        labels.insert(format!("label-{number}"), json!("x"));
    }
    let description = json!({"Image": "fleet/web:1.4", "Cmd": SHARE, "Labels": labels,
        "HostConfig": {"NetworkMode": "none"}});
    docker.create("evil-1", &description)
}

fn record() -> Result<Recording, String> {
    let mut docker = Docker::start()?;
    c_image(&docker);
    let (node, java) = (node_image(&docker), java_image(&docker));
    let chosen = format!("containers.labels=team,org.example/tier,role,{EVIL},aa.huge");
    let daemon = |sources: String| {
        Daemon::with()
            .set("windows.length_s=1")
            .set(&sources)
            .set(&chosen)
            .start()
            .sampling()
    };
    let by_socket = daemon(docker.setting());
    let files = daemon(docker.files_setting());
    let mut ids = BTreeMap::new();
    let role = "--label=role=front";
    ids.insert(
        "web-1",
        docker.run("web-1", &[role], "fleet/web:1.4", SHARE),
    );
    // The engine here has no range of users to give away: the program takes a namespace itself.
    let own_users = [
        "--security-opt=seccomp=unconfined",
        "--entrypoint=/bin/unshare",
    ];
    let words = [&["--user", "--map-root-user", "/app/nested"][..], SHARE].concat();
    let nested = docker.run("nested-1", &own_users, "fleet/web:1.4", &words);
    ids.insert("nested-1", nested);
    ids.insert("evil-1", hostile_container(&docker));
    if node {
        ids.insert("node-1", docker.run("node-1", &[], "fleet/node:20", &[]));
    }
    if java {
        ids.insert("java-1", docker.run("java-1", &[], "fleet/java:17", &[]));
    }
    let mut asked: Option<Instant> = None;
    let running = until(&by_socket, "not all containers are named", |view| {
        // Time to read a map before there is a newer one: this machine is busy.
        let again = asked.is_none_or(|asked| asked.elapsed() >= MAP_EVERY);
        if java && again && named(&of(view, "java-1"), "spend") < ENOUGH {
            let map = ["exec", "java-1", "/java/bin/jcmd", "1", "Compiler.perfmap"];
            let answer = docker.docker(&map);
            if answer.code != Some(0) {
                eprintln!("the JVM writes no map: {answer:?}");
            }
            asked = Some(Instant::now());
        }
        let enough = |(name, id): (&&str, &String)| {
            let own = of(view, name).count();
            own >= ENOUGH && own * 10 >= of_container(view, id).count() * 9
        };
        ids.iter().all(enough)
            && named(&of(view, "web-1"), "spend_") >= ENOUGH
            && named(&of(view, "nested-1"), "nested_spend_") >= ENOUGH
            && (!node || javascript(&of(view, "node-1")) >= ENOUGH)
            && (!java || named(&of(view, "java-1"), "spend") >= ENOUGH)
    });
    for (name, runs) in [("node-1", node), ("java-1", java), ("evil-1", true)] {
        if runs {
            docker.remove(name);
        }
    }
    let by_files = until(&files, "files tell nothing", |view| {
        of(view, "web-1").count() >= ENOUGH
    });
    files.stop();
    let brief = brief(&docker);
    docker.remove("nested-1");
    docker.stop_engine();
    let before = of(&by_socket.client().everything(), "web-1").count();
    let gone = until(&by_socket, "the end of the engine ends samples", |view| {
        of(view, "web-1").count() >= before + ENOUGH
    });
    let without_engine = of(&gone, "web-1").count() - before;
    docker.start_engine()?;
    let again = docker.run("again-1", &[], "fleet/web:1.4", SHARE);
    ids.insert("again-1", again);
    let whole = until(&by_socket, "the engine that is back is not asked", |view| {
        let own = of(view, "again-1").count();
        own >= ENOUGH && own * 10 >= of_container(view, &ids["again-1"]).count() * 9
    });
    let group = format!("container_name,image,container.label/{EVIL}");
    let outputs = [
        vec!["cgroups"],
        vec!["cgroups", "--json"],
        vec!["top", "--once"],
        vec![
            "profile",
            "--since",
            "5m",
            "--format",
            "folded",
            "--group-by",
            &group,
        ],
        vec![
            "profile",
            "--since",
            "5m",
            "--format",
            "svg",
            "--group-by",
            &group,
        ],
    ];
    let outputs = outputs.map(|args| by_socket.ctl(&args).text()).into();
    by_socket.stop();
    Ok(Recording {
        running,
        whole,
        by_files,
        brief,
        ids,
        node,
        java,
        without_engine,
        outputs,
    })
}

/// What a daemon with windows of the usual length tells of a container that removes itself.
fn brief(docker: &Docker) -> View {
    let daemon = Daemon::with()
        .set("windows.length_s=60")
        .set(&docker.setting())
        .start()
        .sampling();
    docker.run("brief-1", &["--rm"], "fleet/web:1.4", &["-t", "2"]);
    let gone = wait_for(PATIENCE, || {
        let left = docker.docker(&["ps", "--all", "--quiet", "--filter=name=brief-1"]);
        left.ok().text().trim().is_empty().then_some(())
    });
    assert!(gone.is_some(), "it does not end");
    // Nothing was named before: the window goes on.
    let view = daemon.client().everything();
    daemon.stop();
    view
}

/// All samples of a container have these labels.
fn check(view: &View, recording: &Recording, name: &str, image: &str, labels: &[(&str, &str)]) {
    let id = &recording.ids[name];
    let samples = of_container(view, id);
    assert!(samples.count() > 0, "{}", view.dump());
    let told = of(&samples, name);
    assert!(
        told.count() * 10 >= samples.count() * 9,
        "{} of {} samples have the name",
        told.count(),
        samples.count()
    );
    for sample in &told.samples {
        assert_eq!(sample.label(key::IMAGE), image);
        assert_eq!(sample.label(key::RUNTIME), "docker");
        for (key, value) in labels {
            assert_eq!(sample.label(key), *value, "{key} of {name}");
        }
    }
}

#[test]
fn samples_say_which_container_and_image_they_are_of_needs_root() {
    let Some(recording) = recording() else { return };
    let labels = [
        ("container.label/team", "blue"),
        ("container.label/org.example/tier", "front"),
    ];
    let web = [labels[0], labels[1], ("container.label/role", "front")];
    check(
        &recording.running,
        recording,
        "web-1",
        "fleet/web:1.4",
        &web,
    );
    check(
        &recording.running,
        recording,
        "nested-1",
        "fleet/web:1.4",
        &labels,
    );
    if recording.node {
        check(
            &recording.running,
            recording,
            "node-1",
            "fleet/node:20",
            &[],
        );
    }
    if recording.java {
        check(
            &recording.running,
            recording,
            "java-1",
            "fleet/java:17",
            &[],
        );
    }
}

/// Nearly all samples in the program itself have one of its functions.
fn check_functions(view: &View, name: &str, prefix: &str) {
    let own = of(view, name).only(|sample| {
        let leaf = sample.frames.first();
        leaf.is_some_and(|leaf| leaf.kind == profile::FrameKind::Native)
            && !sample.label(key::COMM).contains("runc")
            && sample.label(key::COMM) != "unshare"
    });
    let functions = own.only(|sample| {
        let mut frames = sample.frames.iter();
        frames.any(|frame| frame.function.starts_with(prefix))
    });
    assert!(own.count() >= ENOUGH, "{}", view.dump());
    assert!(
        functions.count() * 100 >= own.count() * 90,
        "{} of {}: {}",
        functions.count(),
        own.count(),
        own.dump()
    );
}

#[test]
fn a_stripped_program_in_a_container_is_named_by_what_it_exports_needs_root() {
    let Some(recording) = recording() else { return };
    check_functions(&recording.running, "web-1", "spend_");
}

#[test]
fn a_program_with_users_of_its_own_is_named_needs_root() {
    let Some(recording) = recording() else { return };
    check_functions(&recording.running, "nested-1", "nested_spend_");
}

#[test]
fn javascript_in_a_container_is_named_needs_root() {
    let Some(recording) = recording() else { return };
    if !recording.node {
        return skip("needs the program `node`");
    }
    let node = of(&recording.running, "node-1");
    assert!(javascript(&node) * 2 > node.count(), "{}", node.dump());
}

#[test]
fn java_in_a_container_is_named_needs_root() {
    let Some(recording) = recording() else { return };
    if !recording.java {
        return skip("needs a JDK with jlink and javac");
    }
    let java = of(&recording.running, "java-1");
    assert!(named(&java, "spend") >= ENOUGH, "{}", java.dump());
}

#[test]
fn a_container_that_was_removed_keeps_its_labels_needs_root() {
    let Some(recording) = recording() else { return };
    let (before, after) = (&recording.running, &recording.whole);
    let labels = [("container.label/team", "blue")];
    check(after, recording, "nested-1", "fleet/web:1.4", &labels);
    assert!(of(after, "nested-1").count() >= of(before, "nested-1").count());
}

#[test]
fn a_container_that_ends_before_its_window_has_a_name_needs_root() {
    let Some(recording) = recording() else { return };
    let brief = of(&recording.brief, "brief-1");
    assert!(brief.count() >= ENOUGH, "{}", recording.brief.dump());
    assert_eq!(brief.samples[0].label(key::IMAGE), "fleet/web:1.4");
}

#[test]
fn an_engine_that_stops_takes_no_label_away_needs_root() {
    let Some(recording) = recording() else { return };
    assert!(recording.without_engine >= ENOUGH);
    let labels = [("container.label/role", "front")];
    check(
        &recording.whole,
        recording,
        "web-1",
        "fleet/web:1.4",
        &labels,
    );
}

#[test]
fn an_engine_that_is_back_is_asked_again_needs_root() {
    let Some(recording) = recording() else { return };
    let labels = [("container.label/team", "blue")];
    check(
        &recording.whole,
        recording,
        "again-1",
        "fleet/web:1.4",
        &labels,
    );
}

#[test]
fn files_tell_what_the_socket_does_needs_root() {
    let Some(recording) = recording() else { return };
    let labels = [
        ("container.label/team", "blue"),
        ("container.label/role", "front"),
    ];
    check(
        &recording.by_files,
        recording,
        "web-1",
        "fleet/web:1.4",
        &labels,
    );
}

#[test]
fn labels_without_number_and_end_leave_name_and_image_needs_root() {
    let Some(recording) = recording() else { return };
    let evil = of(&recording.running, "evil-1");
    assert!(evil.count() >= ENOUGH);
    for sample in &evil.samples {
        assert_eq!(sample.label(key::IMAGE), "fleet/web:1.4");
        assert!(sample.labels.values().all(|value| value.len() < 4096));
        let value = sample.label("container.label/aa.evil");
        assert_eq!(
            value,
            "\u{fffd}[2J\u{fffd}]0;owned\u{fffd};<script>\u{fffd}\"'&\u{fffd}"
        );
    }
}

#[test]
fn no_output_has_control_characters_needs_root() {
    let Some(recording) = recording() else { return };
    for text in &recording.outputs {
        let bad: Vec<char> = text
            .chars()
            .filter(|&c| profile::text::is_hostile(c) && !matches!(c, '\n' | '\t'))
            .collect();
        assert!(bad.is_empty(), "{bad:?}");
        assert!(text.len() > 100, "{text}");
    }
    assert!(
        !recording.outputs[4].contains("<script>"),
        "markup in a picture"
    );
}
