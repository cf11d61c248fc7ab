//! Commands that read and write files of other tools, and heat maps of them and of an agent.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::Write;
use std::process::{Command, Stdio};
use testkit::fake::agent::{Behaviour, FakeAgent};

/// What a command did: exit code, standard output, standard error.
struct Ended(i32, String, String);

fn run(agent: &str, args: &[&str], input: &[u8]) -> Ended {
    let mut child = Command::new(env!("CARGO_BIN_EXE_agent-ctl"))
        .args(args)
        .env("FLEETPROF_AGENT", agent)
        .env_remove("FLEETPROF_COLLECTOR")
        .env("TZ", "UTC")
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that refuses its arguments does not read.
    let _ = child.stdin.take().unwrap().write_all(input);
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let ended = Ended(
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    );
    let hostile = ['\x1b', '\x07', '\u{202e}'];
    assert!(!ended.1.contains(hostile) && !ended.2.contains(hostile));
    ended
}

fn alone(args: &[&str], input: &[u8]) -> Ended {
    run("unix:/nobody", args, input)
}

const PERF: &str = "\
web 7/7 [000] 5.100000: 10101010 cpu-clock:ppp:
\tffffffff81 sys_read+0x1 ([kernel.kallsyms])
\t7f02 main (/usr/bin/web)

web 7/7 [000] 5.110000: 10101010 cpu-clock:ppp:
\t7f03 wo\x1b[31mrk (/usr/bin/web)
\t7f02 main (/usr/bin/web)

nonsense
db 9/9 [001] 7.100000: 10101010 cpu-clock:ppp:
\t7f03 query (/usr/bin/db)

";

#[test]
fn text_of_perf_becomes_any_format() {
    let Ended(code, out, err) = alone(&["import", "-"], PERF.as_bytes());
    assert_eq!(code, 0, "{err}");
    let expected = "db;query 1\nweb;main;sys_read 1\nweb;main;wo\\x1b[31mrk 1\n";
    assert_eq!(out, expected);
    assert!(err.contains("-: perf script text\n"), "{err}");
    assert!(
        err.contains(
            "1 lines that are neither events nor frames were skipped, the first is line 9"
        ),
        "{err}"
    );
    assert!(err.contains("3 samples, 0.03 s CPU"), "{err}");
}

#[test]
fn a_profile_goes_through_every_format_that_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (json, pprof, perf, again) = (at("a.json"), at("b.pb.gz"), at("c.perf.txt"), at("d.json"));
    let import = |from: &str, to: &str| {
        let Ended(code, _, err) = alone(&["import", from, "-o", to], PERF.as_bytes());
        assert_eq!(code, 0, "{err}");
    };
    import("-", &json);
    import(&json, &perf);
    import(&perf, &again);
    import(&json, &pprof);
    let map = |file: &str| alone(&["heatmap", file, "--format", "json"], b"");
    let (Ended(_, first, err), Ended(_, second, _)) = (map(&json), map(&again));
    assert_eq!(first, second);
    assert!(
        first.contains(r#""cells":[[0,5,2,20202020],[2,5,1,10101010]]"#),
        "{first}"
    );
    assert!(err.contains("3 samples with their times"), "{err}");
    let Ended(code, _, err) = map(&pprof);
    assert_eq!(code, 2);
    assert!(err.contains("the file has no sample times"), "{err}");
    let Ended(code, out, err) = alone(
        &[
            "diff", "--before", &pprof, "--after", &perf, "--format", "folded",
        ],
        b"",
    );
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("main;sys_read 1 1\n"), "{out}");
}

#[test]
fn a_heat_map_is_drawn_and_a_range_of_it_becomes_a_profile() {
    let Ended(code, out, err) = alone(&["heatmap", "-", "--ascii"], PERF.as_bytes());
    assert_eq!(code, 0, "{err}");
    insta::assert_snapshot!("heatmap_text", out);
    let Ended(code, out, err) = alone(&["heatmap", "-", "--pick", "+0s..+1s"], PERF.as_bytes());
    assert_eq!(code, 0, "{err}");
    assert_eq!(out, "web;main;sys_read 1\nweb;main;wo\\x1b[31mrk 1\n");
    let Ended(_, out, _) = alone(&["heatmap", "-", "--pick", "2,0..2,49"], PERF.as_bytes());
    assert_eq!(out, "db;query 1\n");
    let Ended(code, _, err) = alone(&["heatmap", "-", "--pick", "+1s..+1.5s"], PERF.as_bytes());
    assert_eq!(
        (code, err.contains("no samples in the range picked")),
        (6, true),
        "{err}"
    );
}

#[test]
fn what_a_heat_map_cannot_be_asked_is_refused() {
    for (args, expected) in [
        (&["--since", "5m"][..], "use --pick"),
        (&["--format", "pprof"], "need --pick"),
        (&["--pick", "+1s"], "failed to read range"),
        (&["--pick", "+1h..+2h"], "outside the range of the map"),
        (
            &["--pick", "..", "--format", "text"],
            "expected top, folded",
        ),
        (&["--rows", "0"], "with 0 rows"),
        (
            &["--column", "1ms", "--rows", "1000"],
            "at most 14400 columns",
        ),
    ] {
        let all: Vec<&str> = ["heatmap", "-"].iter().chain(args).copied().collect();
        let long = "a 1 1.0: 5 cycles:\n\na 1 60.0: 5 cycles:\n\n";
        let Ended(code, _, err) = alone(&all, long.as_bytes());
        assert_eq!(code, 2, "{args:?}: {err}");
        assert!(err.contains(expected), "{args:?}: {err}");
    }
}

#[test]
fn a_file_is_not_said_to_know_what_it_does_not() {
    let summary = |args: &[&str], text: &str| {
        let Ended(code, _, err) = alone(args, text.as_bytes());
        assert_eq!(code, 0, "{err}");
        err.lines().last().unwrap().to_owned()
    };
    assert_eq!(
        summary(&["import", "-"], "main;f 3\nmain;g 1\n"),
        "4 in total, no times; - lost, truncated -, unnamed -"
    );
    assert_eq!(
        summary(&["import", "-"], PERF),
        "3 samples, 0.03 s CPU, over 2 s (5.100 s to 7.100 s); - lost, truncated -, unnamed 0.0 %"
    );
    let Ended(_, _, err) = alone(&["import", "-"], PERF.as_bytes());
    assert!(err.contains("times count from boot"), "{err}");
}

/// What `profile` says of the fake's samples, and what `import` says of a file of them.
fn told_of(name: &str) -> (String, String) {
    let fake = FakeAgent::start(Behaviour::default());
    let (dir, agent) = (fake.dir(), format!("unix:{}", fake.socket().display()));
    let path = dir.join(name);
    let path = path.to_str().unwrap();
    let Ended(code, _, written) = run(&agent, &["profile", "--since", "5m", "-o", path], b"");
    assert_eq!(code, 0, "{written}");
    let Ended(code, _, read) = alone(&["import", path, "--format", "folded"], b"");
    assert_eq!(code, 0, "{read}");
    let written = written.lines().next().unwrap();
    let (_, written) = written.split_once(": ").unwrap();
    (written.to_owned(), read.lines().last().unwrap().to_owned())
}

#[test]
fn our_own_files_are_read_back_with_all_that_was_said_of_them() {
    for name in ["a.json", "a.pb.gz", "a.html", "a.bundle.html"] {
        let (written, read) = told_of(name);
        assert_eq!(written, read, "{name}");
    }
    let (written, read) = told_of("a.speedscope.json");
    let samples = |line: &str| line.split(',').take(2).collect::<String>();
    assert_eq!(samples(&written), samples(&read));
    let unnamed = |line: &str| line.split("unnamed ").nth(1).unwrap()[..5].to_owned();
    assert_eq!(unnamed(&written), unnamed(&read));
}

#[test]
fn stacks_without_modules_are_compared_by_the_names_of_functions() {
    let fake = FakeAgent::start(Behaviour::default());
    let (dir, agent) = (fake.dir(), format!("unix:{}", fake.socket().display()));
    let at = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let (pprof, folded) = (at("a.pb.gz"), at("a.folded"));
    for path in [&pprof, &folded] {
        let args = ["profile", "--group-by", "none", "-o", path];
        let Ended(code, _, err) = run(&agent, &args, b"");
        assert_eq!(code, 0, "{err}");
    }
    let args = ["diff", "--before", &pprof, "--after", &folded, "--json"];
    let Ended(code, out, err) = alone(&args, b"");
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("compared by name only"), "{err}");
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    let functions = json["functions"].as_array().unwrap();
    assert!(!functions.is_empty());
    for function in functions {
        // The folded file has a frame more over stacks that are cut.
        let is_mark = function["function"] == "[truncated]";
        assert!(is_mark || function["is_new"] == false, "{function}");
        assert_eq!(function["is_vanished"], false, "{function}");
    }
}

#[test]
fn a_recording_of_perf_is_read_as_other_files_are() {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../fuzz/corpus/perf_data/cgroups"
    );
    let Ended(code, out, err) = alone(&["import", file, "--group-by", "cgroup"], b"");
    assert_eq!(code, 0, "{err}");
    assert!(out.starts_with("/;"), "{out}");
    assert!(err.contains(": recording of perf\n"), "{err}");
    let args = ["diff", "--before", file, "--after", file, "--json"];
    let Ended(code, out, err) = alone(&args, b"");
    assert_eq!(code, 0, "{err}");
    let diff: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert!(!diff["functions"].as_array().unwrap().is_empty(), "{out}");
    let Ended(code, out, err) = alone(&["heatmap", file], b"");
    assert_eq!((code, out.is_empty()), (0, false), "{err}");
}

#[test]
fn files_that_are_no_profile_are_refused_with_a_hint() {
    let firefox = r#"{"meta":{"version":1},"libs":[],"threads":[]}"#;
    for (text, expected) in [
        (
            firefox,
            "the file is a profile of the Firefox Profiler, which cannot be read",
        ),
        ("{\"a\":1}", "not from fleetprof or speedscope"),
        ("<!DOCTYPE html><p>", "there is no profile in it"),
        ("a;b 1 2\n", "remove one column"),
        ("PERFILE2", "the header is damaged"),
        ("hello\n", "the format is unknown: expected pprof"),
        ("", "empty"),
    ] {
        let Ended(code, out, err) = alone(&["import", "-"], text.as_bytes());
        assert_eq!((code, out.as_str()), (2, ""), "{err}");
        assert!(err.contains(expected), "{err}");
    }
}

#[test]
fn one_profile_of_several_is_taken() {
    let file = r#"{"$schema":"https://www.speedscope.app/file-format-schema.json",
        "shared":{"frames":[{"name":"f"},{"name":"g"}]},"profiles":[
        {"type":"sampled","name":"one","unit":"none","startValue":0,"endValue":2,"samples":[[0]],"weights":[2]},
        {"type":"sampled","name":"two","unit":"bytes","startValue":0,"endValue":2,"samples":[[0,1]],"weights":[3]}]}"#;
    let Ended(code, _, err) = alone(&["import", "-"], file.as_bytes());
    assert_eq!(code, 2);
    assert!(
        err.contains("choose one with --profile N: 1 is `one`, in none; 2 is `two`, in bytes"),
        "{err}"
    );
    let args = [
        "import",
        "-",
        "--profile",
        "2",
        "--measure",
        "weight",
        "--group-by",
        "none",
    ];
    let Ended(code, out, err) = alone(&args, file.as_bytes());
    assert_eq!((code, out.as_str()), (0, "f;g 3\n"), "{err}");
}

#[test]
fn an_agent_tells_times_and_a_bundle_all_that_is_known() {
    let fake = FakeAgent::start(Behaviour::default());
    let (dir, agent) = (fake.dir(), format!("unix:{}", fake.socket().display()));
    let Ended(code, out, err) = run(
        &agent,
        &["heatmap", "--since", "5m", "--format", "json"],
        b"",
    );
    assert_eq!(code, 0, "{err}");
    assert!(
        out.starts_with(r#"{"schema":"fleetprof.heatmap/1""#),
        "{out}"
    );
    assert!(err.contains("3 more whose time was not kept"), "{err}");
    let bundle = dir.join("x.bundle.html");
    let args = [
        "profile",
        "--since",
        "5m",
        "--selector",
        "comm!=\"<script>\"",
        "-o",
        bundle.to_str().unwrap(),
    ];
    let Ended(code, _, err) = run(&agent, &args, b"");
    assert_eq!(code, 0, "{err}");
    let page = std::fs::read_to_string(bundle).unwrap();
    for text in [
        "<h2>Query</h2>",
        "comm!=\"&lt;script&gt;\"",
        "<h2>Host</h2>",
        "<dt>kernel</dt>",
        "<dt>made by</dt><dd>agent-ctl ",
        "\"times\":{",
    ] {
        assert!(page.contains(text), "{text}");
    }
    assert_eq!(page.matches("<script").count(), 2);
}
