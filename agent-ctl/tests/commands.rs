//! Every command against a fake agent: what it prints, what it writes, how it ends.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod annotate;
mod capture;
mod completions;
mod doctor;
mod fleet;
mod labels;
mod meant;
mod pins;
mod profile;
mod report;

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use testkit::fake::agent::{Behaviour, FakeAgent};
use testkit::process::install;
use tonic::Code;

/// What a command did.
struct Ended {
    code: i32,
    out: String,
    err: String,
}

impl Ended {
    /// All of it, for snapshots.
    fn all(&self) -> String {
        format!(
            "exit code {}\n--- stdout\n{}--- stderr\n{}",
            self.code, self.out, self.err
        )
    }
}

fn command(agent: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_agent-ctl"));
    command
        .args(args)
        .env("FLEETPROF_AGENT", agent)
        .env_remove("FLEETPROF_COLLECTOR")
        .env("TZ", "UTC")
        .env_remove("COLUMNS");
    command.stdin(Stdio::null());
    command
}

fn run(mut command: Command) -> Ended {
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let ended = Ended {
        code: output.status.code().unwrap(),
        out: text(output.stdout),
        err: text(output.stderr),
    };
    let hostile = ['\x1b', '\x07', '\u{202e}'];
    assert!(
        !ended.out.contains(hostile) && !ended.err.contains(hostile),
        "{}",
        ended.all()
    );
    ended
}

fn agent(running: &FakeAgent) -> String {
    format!("unix:{}", running.socket().display())
}

fn ask(running: &FakeAgent, args: &[&str]) -> Ended {
    run(command(&agent(running), args))
}

fn sound() -> FakeAgent {
    FakeAgent::start(Behaviour::default())
}

fn empty() -> FakeAgent {
    FakeAgent::start(Behaviour {
        empty: true,
        ..Behaviour::default()
    })
}

#[test]
fn help_of_every_command() {
    let subcommands = [
        "status", "doctor", "hosts", "cgroups", "top", "profile", "heatmap", "import", "diff",
        "tail", "config", "capture", "annotate", "captures", "labels", "series",
    ];
    insta::assert_snapshot!("help", run(command("unix:/x", &["--help"])).out);
    for name in subcommands.into_iter().chain(["completions", "man"]) {
        insta::assert_snapshot!(
            format!("help_{name}"),
            run(command("unix:/x", &[name, "--help"])).out
        );
    }
    for name in ["check", "show", "reload"] {
        let ended = run(command("unix:/x", &["config", name, "--help"]));
        insta::assert_snapshot!(format!("help_config_{name}"), ended.out);
    }
    for words in [["pins", "--help", ""], ["pins", "show", "--help"]] {
        let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        let ended = run(command("unix:/x", &words));
        assert!(
            ended.out.contains("agent-ctl pins show 12"),
            "{}",
            ended.out
        );
    }
}

#[test]
fn status_for_people() {
    insta::assert_snapshot!(ask(&sound(), &["status", "--cpus", "--counters"]).all());
}

#[test]
fn status_tells_what_waits_for_the_collector() {
    let running = FakeAgent::start(Behaviour {
        noted: true,
        ..Behaviour::default()
    });
    let ended = ask(&running, &["status"]);
    let lines: Vec<&str> = ended
        .out
        .lines()
        .skip_while(|line| !line.starts_with("collector"))
        .take(3)
        .collect();
    insta::assert_snapshot!("status_collector", lines.join("\n"));
    let ended = ask(&running, &["status", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(json["export"]["waiting_windows"], 4);
    assert_eq!(json["export"]["connected"], false);
    assert_eq!(json["export"]["dropped"][0]["cause"], "spool_bytes");
    let ended = ask(&sound(), &["status", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    assert!(json["export"].is_null());
}

#[test]
fn status_without_samples_is_partial() {
    let running = FakeAgent::start(Behaviour {
        empty: true,
        degraded: true,
        ..Behaviour::default()
    });
    insta::assert_snapshot!(ask(&running, &["status"]).all());
}

#[test]
fn status_for_scripts() {
    let ended = ask(&sound(), &["status", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(json["sampling"]["rate_hz"], 99);
    assert_eq!(json["host"], "fake\x1b]0;x\x07host", "JSON keeps the value");
    assert_eq!(json["own_cost"]["cpu_share"], 0.003);
    assert_eq!(json["started"], "2026-11-21T11:59:00Z");
}

#[test]
fn cgroups_as_a_tree() {
    insta::assert_snapshot!(ask(&sound(), &["cgroups", "--since", "5m"]).all());
}

#[test]
fn cgroups_as_a_list() {
    let ended = ask(
        &sound(),
        &["cgroups", "--flat", "--sort", "self", "--limit", "2"],
    );
    insta::assert_snapshot!(ended.all());
}

#[test]
fn cgroups_for_scripts() {
    let json = ask(&sound(), &["cgroups", "--json"]).out;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["cgroups"][4]["path"], "/user.slice/a\u{202e}b\n");
    assert_eq!(json["cgroups"][4]["total_share"], 0.1);
    let coverage = json["cgroups"][0]["coverage"].as_f64().unwrap();
    assert!((coverage - 0.99).abs() < 1e-6, "{coverage}");
}

#[test]
fn the_ledger_goes_with_the_cgroups_for_scripts() {
    let json = ask(&sound(), &["cgroups", "--json"]).out;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let row = &json["ledger"]["rows"][0];
    assert_eq!(row["path"], "/user.slice/a\u{202e}b\n");
    assert_eq!(
        (&row["own"]["lost"], &row["missed"]),
        (&10.into(), &10.into())
    );
    assert_eq!(json["ledger"]["host"]["taken"], 990);
    assert_eq!(json["ledger"]["windows"], 30);
}

#[test]
fn an_empty_range_is_partial() {
    let running = empty();
    for args in [
        &["cgroups"] as &[&str],
        &["cgroups", "--json"],
        &["profile"],
        &["top", "--once"],
        &["diff", "--before", "..-1h"],
    ] {
        let ended = ask(&running, args);
        assert_eq!(ended.code, 6, "{args:?}: {}", ended.all());
    }
    let file = running.dir().join("cpu.svg");
    assert_eq!(
        ask(&running, &["profile", "-o", file.to_str().unwrap()]).code,
        6
    );
    assert!(!file.exists());
}

#[test]
fn what_cannot_be_meant_is_a_usage_error() {
    for args in [
        &["cgroups", "--depth", "0"] as &[&str],
        &["profile", "--since", "99999999d"],
        &["profile", "--group-by", "nope"],
        &["profile", "-o", "cpu.xyz"],
        &["profile", "--selector", "comm~x"],
        &["profile", "--keep", "("],
        &["profile", "--since", "5 parsecs"],
        &["profile", "--from", "1m", "--to", "2m"],
        &["profile", "--from", "soon"],
        &["diff"],
        &["diff", "--before", "1m..5m"],
        &["top", "--once", "--range", "10ms"],
        &["--agent", "nonsense", "status"],
        &[
            "--agent",
            "10.0.0.1:1",
            "--token-file",
            "/dev/null",
            "status",
        ],
        &["--tls-ca", "/dev/null", "status"],
        &["no-such-command"],
    ] {
        let ended = ask(&sound(), args);
        assert_eq!(ended.code, 2, "{args:?}: {}", ended.all());
        assert_eq!(ended.out, "", "{args:?}");
    }
}

#[test]
fn a_diff_shows_what_moved() {
    insta::assert_snapshot!(ask(&sound(), &["diff", "--before", "..now"]).all());
}

#[test]
fn a_diff_for_scripts() {
    let ended = ask(
        &sound(),
        &["diff", "--before", "..now", "--significant", "--json"],
    );
    let json: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    let row = &json["functions"][0];
    assert_eq!(row["function"], "[libevil.so]");
    assert_eq!(row["self"]["before_count"], 100);
    assert_eq!(row["self"]["after_count"], 1000);
    assert_eq!(row["self"]["significant"], true);
}

#[test]
fn a_diff_takes_files_without_an_agent() {
    let running = sound();
    let (old, new) = (
        running.dir().join("old.pb.gz"),
        running.dir().join("new.folded"),
    );
    let (old, new) = (old.to_str().unwrap(), new.to_str().unwrap());
    assert_eq!(
        ask(
            &running,
            &["profile", "--to", "now", "--group-by", "*", "-o", old]
        )
        .code,
        0
    );
    assert_eq!(ask(&running, &["profile", "-o", new]).code, 0);
    let json = running.dir().join("old.json");
    let json = json.to_str().unwrap();
    assert_eq!(
        ask(
            &running,
            &["profile", "--to", "now", "--group-by", "*", "-o", json]
        )
        .code,
        0
    );
    let args = [
        "diff", "--before", json, "--after", old, "--format", "folded",
    ];
    let ended = run(command("unix:/nobody", &args));
    assert_eq!(ended.code, 0, "{}", ended.all());
    assert!(
        ended.out.contains("tcp_sendmsg 200 200\n"),
        "{}",
        ended.all()
    );
    let args = [
        "diff",
        "--before",
        old,
        "--after",
        old,
        "--after-selector",
        "unit=nginx.service",
    ];
    let ended = run(command("unix:/nobody", &args));
    assert!(ended.out.contains("vanished"), "{}", ended.all());
    let ended = run(command(
        "unix:/nobody",
        &["diff", "--before", "/proc/self/status", "--after", old],
    ));
    assert_eq!(ended.code, 2, "{}", ended.all());
}

#[test]
fn tail_prints_a_line_a_window() {
    insta::assert_snapshot!(ask(&sound(), &["tail", "-n", "2"]).all());
    let lines = ask(&sound(), &["tail", "-n", "2", "--format", "json"]).out;
    let missed: Vec<u64> = lines
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|line| line["missed_windows"].as_u64().unwrap())
        .collect();
    assert_eq!(missed, [0, 2]);
}

#[test]
fn tail_says_that_the_agent_went() {
    let running = FakeAgent::start(Behaviour {
        stream_ends_after: Some(1),
        ..Behaviour::default()
    });
    let ended = ask(&running, &["tail"]);
    assert_eq!(
        (ended.code, ended.out.lines().count()),
        (5, 1),
        "{}",
        ended.all()
    );
}

#[test]
fn top_prints_a_table_where_no_terminal_is() {
    let ended = ask(&sound(), &["top"]);
    insta::assert_snapshot!(ended.all());
}

#[test]
fn every_answer_is_there_as_json_by_both_names() {
    let running = sound();
    let commands: [&[&str]; 6] = [
        &["status"],
        &["cgroups"],
        &["top"],
        &["tail", "-n", "1"],
        &["profile", "--to", "now"],
        &["diff", "--before", "..now"],
    ];
    for command in commands {
        let with = |more: &[&str]| ask(&running, &[command, more].concat());
        let (long, short) = (with(&["--format", "json"]), with(&["--json"]));
        assert_eq!(long.out, short.out, "{command:?}");
        let first = long.out.trim_start();
        assert!(first.starts_with('{'), "{command:?}: {}", long.all());
        let both = with(&["--json", "--format", "json"]);
        assert_eq!(both.code, 2, "{command:?}: {}", both.all());
    }
    // Its proof is another each time.
    for form in [&["--json"][..], &["--format", "json"]] {
        let ended = ask(
            &running,
            &[&["doctor", "--burn", "50ms"][..], form].concat(),
        );
        assert!(ended.out.starts_with('{'), "{}", ended.all());
    }
    for command in [&["status"][..], &["diff", "--before", "..now"]] {
        let text = ask(&running, &[command, &["--format", "text"]].concat());
        assert_eq!(text.out, ask(&running, command).out, "{command:?}");
    }
}

#[test]
fn top_for_scripts() {
    let ended = ask(
        &sound(),
        &["top", "--view", "cgroups", "--sort", "total", "--json"],
    );
    let json: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(json["rows"][0]["name"], "/");
    assert_eq!(json["rows"][0]["total_share"], 1.0);
    assert_eq!(json["view"], "cgroups");
}

#[test]
fn config_is_shown_and_reloaded() {
    let running = sound();
    let shown = "# /etc/fleetprof/agent.yaml\nsampling:\n  rate_hz: 99\n";
    assert_eq!(ask(&running, &["config", "show"]).out, shown);
    let ended = ask(&running, &["config", "reload"]);
    let expected = "in force: log.level\nneeds a restart: sampling.event\n";
    assert_eq!((ended.code, ended.out.as_str()), (6, expected));
    let invalid = FakeAgent::start(Behaviour {
        invalid_config: true,
        ..Behaviour::default()
    });
    let ended = ask(&invalid, &["config", "reload"]);
    assert_eq!(ended.code, 3, "{}", ended.all());
    assert!(
        ended.err.contains("unknown key `sampling.rte_hz`"),
        "{}",
        ended.err
    );
}

#[test]
fn config_check_passes_the_daemon_on() {
    // A stand-in for the daemon next to a copy of the command.
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path().join("agent-ctl");
    install(env!("CARGO_BIN_EXE_agent-ctl"), &here);
    let (script, daemon) = (dir.path().join("script"), dir.path().join("fleetprofd"));
    std::fs::write(&script, "#!/bin/sh\necho \"stand-in: $1 $2\" >&2\nexit 3\n").unwrap();
    install(&script, &daemon);
    let mut command = Command::new(&here);
    command.args(["config", "check", "a b.yaml"]);
    let ended = run(command);
    assert_eq!(
        (ended.code, ended.err.as_str()),
        (3, "stand-in: --check-config a b.yaml\n")
    );
    std::fs::rename(&daemon, dir.path().join("fleetprof-collector")).unwrap();
    for args in [
        &["config", "check", "collector.yaml"] as &[&str],
        &["config", "check", "--of", "collector", "new.yaml"],
    ] {
        let mut command = Command::new(&here);
        command.args(args);
        let ended = run(command);
        let file = args.last().unwrap();
        let expected = format!("stand-in: --check-config {file}\n");
        assert_eq!((ended.code, ended.err), (3, expected));
    }
}

#[test]
fn refusals_have_their_codes() {
    for (refusal, expected) in [
        (Code::PermissionDenied, 4),
        (Code::Unauthenticated, 4),
        (Code::Unavailable, 5),
        (Code::InvalidArgument, 2),
        (Code::NotFound, 2),
        (Code::FailedPrecondition, 2),
        (Code::Internal, 1),
    ] {
        let running = FakeAgent::start(Behaviour {
            refuse: Some(refusal),
            ..Behaviour::default()
        });
        for args in [
            &["status"] as &[&str],
            &["profile"],
            &["tail"],
            &["config", "show"],
        ] {
            let ended = ask(&running, args);
            assert_eq!(
                ended.code,
                expected,
                "{refusal:?} {args:?}: {}",
                ended.all()
            );
            assert!(
                ended.err.contains("the fake refuses\\x1b[2J"),
                "{}",
                ended.all()
            );
        }
    }
}

#[test]
fn nobody_there_is_unreachable() {
    let ended = run(command("unix:/nonexistent/agent.sock", &["status"]));
    insta::assert_snapshot!(ended.all());
}

#[test]
fn an_agent_that_left_its_socket_behind_is_said_to_have_ended() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("left.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let ended = run(command(&format!("unix:{}", socket.display()), &["status"]));
    assert_eq!(ended.code, 5, "{}", ended.all());
    assert!(ended.err.contains("nothing listens"), "{}", ended.err);
}

#[test]
fn an_agent_that_never_answers_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("mute.sock");
    let _mute = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let agent = format!("unix:{}", socket.display());
    let ended = run(command(&agent, &["status", "--timeout", "100ms"]));
    assert_eq!(ended.code, 5, "{}", ended.all());
}

#[test]
fn nobody_reading_is_no_error() {
    let running = sound();
    let mut child = command(&agent(&running), &["tail"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    reader.read_line(&mut String::new()).unwrap();
    drop(reader);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let mut err = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut err)
        .unwrap();
    assert_eq!(err, "");
}

#[test]
fn an_interrupt_ends_a_stream_at_once() {
    let hour = std::time::Duration::from_secs(3600);
    let running = FakeAgent::start(Behaviour {
        stream_interval: hour,
        ..Behaviour::default()
    });
    let mut child = command(&agent(&running), &["tail"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    reader.read_line(&mut String::new()).unwrap();
    let pid = child.id().to_string();
    let killed = Command::new("sh")
        .args(["-c", &format!("kill -INT {pid}")])
        .status()
        .unwrap();
    assert!(killed.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn completions_and_manual_pages_are_written() {
    for shell in ["bash", "zsh", "fish"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_agent-ctl"));
        let output = command.args(["completions", shell]).output().unwrap();
        assert!(output.status.success());
        assert!(
            String::from_utf8(output.stdout)
                .unwrap()
                .contains("cgroups"),
            "{shell}"
        );
    }
    let dir = tempfile::tempdir().unwrap();
    let ended = run(command(
        "unix:/x",
        &["man", "--dir", dir.path().join("man1").to_str().unwrap()],
    ));
    assert_eq!(ended.code, 0, "{}", ended.all());
    for page in [
        "agent-ctl.1",
        "agent-ctl-profile.1",
        "agent-ctl-hosts.1",
        "agent-ctl-config-check.1",
    ] {
        assert!(dir.path().join("man1").join(page).is_file(), "{page}");
    }
}
