//! `agent-ctl` as a user calls it: help, exit codes, and what it says of a real daemon.
#![expect(clippy::unwrap_used, reason = "a test fails by panic")]

use serde_json::Value;
use std::process::Command;
use std::time::Duration;
use testkit::ctl::{CONFIG, UNREACHABLE, USAGE, command, ctl};
use testkit::process::{Proc, run, wait_for};
use testkit::recording::Shared;
use testkit::terminal::Terminal;
use testkit::workload::c;
use testkit::{Cgroup, Daemon, Need, live, met};

const SUBCOMMANDS: [&str; 10] = [
    "status",
    "doctor",
    "cgroups",
    "top",
    "profile",
    "diff",
    "tail",
    "config",
    "completions",
    "man",
];

#[test]
fn every_subcommand_has_help() {
    let all = ctl(["--help"]).ok().text();
    for name in SUBCOMMANDS {
        assert!(
            all.contains(&format!("  {name} ")),
            "`{name}` is not in:\n{all}"
        );
        let help = ctl([name, "--help"]).ok().text();
        assert!(help.contains("Usage:") && help.contains(name), "{help}");
    }
}

#[test]
fn config_commands_have_help() {
    for name in ["check", "show", "reload"] {
        let help = ctl(["config", name, "--help"]).ok().text();
        assert!(help.contains("Usage:"), "{help}");
    }
}

#[test]
fn help_documents_the_exit_codes() {
    let help = ctl(["--help"]).ok().text();
    let after = help
        .split("Exit codes:")
        .nth(1)
        .expect("a table of exit codes");
    for code in [USAGE, CONFIG, UNREACHABLE] {
        assert!(after.contains(&format!("\n  {code}  ")), "{code}: {after}");
    }
}

#[test]
fn an_unknown_subcommand_is_a_usage_error() {
    let out = ctl(["statsu"]);
    assert_eq!(out.code, Some(USAGE), "{out:?}");
    assert!(
        out.stderr.contains("status"),
        "the nearest name is not offered: {}",
        out.stderr
    );
}

#[test]
fn a_daemon_that_is_not_there_is_unreachable() {
    let dir = tempfile::tempdir().unwrap();
    let address = format!("unix:{}/none.sock", dir.path().display());
    for subcommand in ["status", "doctor", "cgroups", "profile", "tail"] {
        let out = ctl(["--agent", &address, subcommand]);
        assert_eq!(out.code, Some(UNREACHABLE), "{subcommand}: {out:?}");
        // The doctor's findings are its result.
        let said = out.text() + &out.stderr;
        assert!(said.contains("none.sock"), "{subcommand}: {said}");
    }
}

#[test]
fn the_agents_address_is_taken_from_the_environment() {
    let mut status = command(["status"]);
    status.env("FLEETPROF_AGENT", "unix:/nowhere/from-env.sock");
    let out = run(&mut status, Duration::from_secs(30));
    assert_eq!(out.code, Some(UNREACHABLE), "{out:?}");
    assert!(out.stderr.contains("from-env.sock"), "{}", out.stderr);
}

#[test]
fn a_message_that_cannot_be_printed_keeps_its_exit_code() {
    let program = testkit::binaries::agent_ctl();
    for nowhere in ["2>/dev/full", "2>&-"] {
        let script = format!(r#"exec "$0" --agent unix:/nowhere/agent.sock status {nowhere}"#);
        let mut shell = Command::new("sh");
        let out = run(
            shell.args(["-c", &script]).arg(&program),
            Duration::from_secs(30),
        );
        assert_eq!(out.code, Some(UNREACHABLE), "{nowhere}: {out:?}");
    }
}

fn check_config(yaml: &str) -> testkit::process::Output {
    // The check runs the daemon's program beside agent-ctl.
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("agent.yaml");
    std::fs::write(&file, yaml).unwrap();
    ctl(["config", "check", file.to_str().unwrap()])
}

#[test]
fn a_valid_configuration_passes_the_check() {
    check_config("sampling:\n  rate_hz: 49\n").ok();
}

#[test]
fn an_unknown_key_fails_the_check_with_the_nearest_name() {
    let out = check_config("sampling:\n  rate_hertz: 49\n");
    assert_eq!(out.code, Some(CONFIG), "{out:?}");
    assert!(
        out.stderr.contains("rate_hertz") && out.stderr.contains("rate_hz"),
        "{}",
        out.stderr
    );
}

#[test]
fn a_value_out_of_range_fails_the_check_with_the_range() {
    let out = check_config("sampling:\n  rate_hz: 100000\n");
    assert_eq!(out.code, Some(CONFIG), "{out:?}");
    assert!(out.stderr.contains("9999"), "{}", out.stderr);
}

#[test]
fn the_configuration_in_the_repository_passes_the_check() {
    let file = testkit::repository::root().join("config/agent.yaml");
    ctl(["config", "check", file.to_str().unwrap()]).ok();
}

/// That a script completes is a test of `agent-ctl`, in a bash.
fn is_read_by(shell: &'static str) {
    if !met(&[Need::Program(shell)]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("completions");
    let script = ctl(["completions", shell]).ok().text();
    std::fs::write(&file, script).unwrap();
    let output = Command::new(shell).arg("-n").arg(&file).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{errors}");
}

#[test]
fn bash_reads_the_completions() {
    is_read_by("bash");
}

#[test]
fn zsh_reads_the_completions() {
    is_read_by("zsh");
}

#[test]
fn fish_reads_the_completions() {
    is_read_by("fish");
}

#[test]
fn manual_pages_are_written_for_every_subcommand() {
    let dir = tempfile::tempdir().unwrap();
    ctl(["man", "--dir", dir.path().to_str().unwrap()]).ok();
    for name in SUBCOMMANDS {
        let page = std::fs::read_to_string(dir.path().join(format!("agent-ctl-{name}.1")));
        assert!(page.unwrap().contains(".TH"), "{name}");
    }
}

/// What the commands say of a daemon that has sampled a known program for some seconds.
struct Outputs {
    status: testkit::process::Output,
    doctor: testkit::process::Output,
    doctor_json: testkit::process::Output,
    cgroups: testkit::process::Output,
    cgroups_text: testkit::process::Output,
    top: testkit::process::Output,
    tail: testkit::process::Output,
    /// The output for the time of the windows that `tail` showed.
    tailed: testkit::process::Output,
    config: testkit::process::Output,
    folded: testkit::process::Output,
    by_comm: testkit::process::Output,
    nothing: testkit::process::Output,
    diff: testkit::process::Output,
    cgroup: String,
}

static SAID: Shared<Outputs> = Shared::new();

fn said() -> Option<&'static Outputs> {
    SAID.get(&[Need::Root, Need::StaticC, Need::Cgroup2], || {
        let cgroup = Cgroup::new("cli");
        let _split = c("split.c").start_in(&cgroup, &[]);
        let daemon = Daemon::with().set("windows.length_s=1").start().sampling();
        std::thread::sleep(Duration::from_secs(6));
        let path = cgroup.path();
        let profile = [
            "profile", "--since", "1m", "--cgroup", path, "--format", "folded",
        ];
        let nothing = ["profile", "--comm", "no-such-program", "--format", "folded"];
        let diff = [
            "diff", "--before", "-6s..-4s", "--after", "-2s..", "--cgroup", path,
        ];
        let tail = daemon.ctl(&["tail", "-n", "2", "--json"]);
        let edges = edges(&tail.text());
        let tailed = [
            "profile", "--from", &edges[0], "--to", &edges[1], "--format", "json",
        ];
        Outputs {
            tailed: daemon.ctl(&tailed),
            tail,
            status: daemon.ctl(&["status", "--json"]),
            doctor: daemon.ctl(&["doctor"]),
            doctor_json: daemon.ctl(&["doctor", "--json"]),
            cgroups: daemon.ctl(&["cgroups", "--json"]),
            cgroups_text: daemon.ctl(&["cgroups"]),
            top: daemon.ctl(&["top"]),
            config: daemon.ctl(&["config", "show"]),
            folded: daemon.ctl(&profile),
            by_comm: daemon.ctl(&[profile.as_slice(), &["--group-by", "comm"]].concat()),
            nothing: daemon.ctl(&nothing),
            diff: daemon.ctl(&diff),
            cgroup: path.to_owned(),
        }
    })
}

/// Start of the first window and end of the last of what `tail` printed.
fn edges(tail: &str) -> [String; 2] {
    let line = |line: &str| -> Value { serde_json::from_str(line).unwrap() };
    let (first, last) = (tail.lines().next(), tail.lines().next_back());
    let time = |found: Option<&str>, name| {
        let found = line(found.expect("windows"));
        found[name].as_str().expect("a time").to_owned()
    };
    [time(first, "start"), time(last, "end")]
}

fn json(out: &testkit::process::Output) -> Value {
    serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"))
}

#[test]
fn status_tells_that_samples_arrive_needs_root() {
    let Some(said) = said() else { return };
    assert_eq!(said.status.code, Some(0), "{:?}", said.status);
    let status = json(&said.status);
    assert_eq!(status["sampling"]["samples_arrive"], true, "{status}");
    assert_eq!(status["sampling"]["rate_hz"], 99, "{status}");
    assert!(
        status["own_cost"]["rss_bytes"]
            .as_u64()
            .is_some_and(|bytes| bytes > 0),
        "{status}"
    );
}

#[test]
fn doctor_proves_that_samples_arrive_needs_root() {
    let Some(said) = said() else { return };
    // 6: samples arrive, something is degraded, as on most machines.
    assert!(matches!(said.doctor.code, Some(0 | 6)), "{:?}", said.doctor);
    assert!(
        said.doctor.text().contains("sample"),
        "{}",
        said.doctor.text()
    );
    assert_eq!(said.doctor_json.code, said.doctor.code);
    json(&said.doctor_json);
}

#[test]
fn cgroups_lists_the_busy_one_needs_root() {
    let Some(said) = said() else { return };
    let listed = json(&said.cgroups);
    let paths = listed["cgroups"].as_array().expect("a list").iter();
    assert!(
        paths
            .map(|cgroup| &cgroup["path"])
            .any(|path| *path == said.cgroup),
        "{listed}"
    );
    let name = said.cgroup.trim_start_matches('/');
    assert!(
        said.cgroups_text.text().contains(name),
        "{}",
        said.cgroups_text.text()
    );
}

#[test]
fn top_without_a_terminal_is_plain_text_and_ends_needs_root() {
    let Some(said) = said() else { return };
    assert_eq!(said.top.code, Some(0), "{:?}", said.top);
    let text = said.top.text();
    assert!(text.contains("spend_seventy"), "{text}");
    assert!(!text.contains('\x1b'), "{text:?}");
}

#[test]
fn tail_prints_an_object_a_window_needs_root() {
    let Some(said) = said() else { return };
    assert_eq!(said.tail.code, Some(0), "{:?}", said.tail);
    let text = said.tail.text();
    assert_eq!(text.lines().count(), 2, "{text}");
    for line in text.lines() {
        serde_json::from_str::<Value>(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    }
}

#[test]
fn a_range_between_ends_of_windows_answers_those_windows_needs_root() {
    let Some(said) = said() else { return };
    let info = &json(&said.tailed)["info"];
    let [from, to] = edges(&said.tail.text()).map(|time| {
        let time: jiff::Timestamp = time.parse().expect("a time");
        time.as_nanosecond() as i64
    });
    let start = info["start_unix_ns"].as_i64().expect("a start");
    let length = info["duration_ns"].as_i64().expect("a length");
    // Times are printed to the millisecond. Windows start at whole seconds, but the first starts
    // when the daemon starts.
    let rounding_ns = 1_000_000;
    assert!((start - from).abs() <= rounding_ns, "from {from}: {info}");
    assert!(
        (start + length - to).abs() <= rounding_ns,
        "to {to}: {info}"
    );
    assert_eq!(to % 1_000_000_000, 0, "{to}");
}

#[test]
fn a_label_that_nobody_gives_is_refused_with_the_nearest() {
    let out = ctl(["profile", "--group-by", "nope"]);
    assert_eq!(out.code, Some(USAGE), "{out:?}");
    assert!(out.stderr.contains("the nearest is `"), "{}", out.stderr);
}

#[test]
fn a_full_disk_is_said() {
    let mut shell = Command::new("sh");
    let script = r#"exec "$0" --help >/dev/full"#;
    let program = testkit::binaries::agent_ctl();
    let out = run(
        shell.args(["-c", script]).arg(program),
        Duration::from_secs(30),
    );
    assert_eq!(out.code, Some(1), "{out:?}");
    assert!(out.stderr.contains("No space left"), "{}", out.stderr);
}

#[test]
fn config_show_prints_what_a_check_takes_needs_root() {
    let Some(said) = said() else { return };
    check_config(&said.config.text()).ok();
}

#[test]
fn a_folded_profile_of_a_cgroup_has_only_its_stacks_needs_root() {
    let Some(said) = said() else { return };
    let text = said.folded.text();
    let busy = text.lines().filter(|line| line.contains("spend_")).count();
    assert_eq!(said.folded.code, Some(0), "{:?}", said.folded);
    assert!(
        busy > 0 && text.lines().all(|line| !line.contains("do_idle")),
        "{text}"
    );
}

#[test]
fn labels_to_group_by_become_root_frames_needs_root() {
    let Some(said) = said() else { return };
    let text = said.by_comm.text();
    let grouped = text.lines().filter(|line| line.contains("spend_"));
    assert!(grouped.clone().count() > 0, "{text}");
    for line in grouped {
        assert!(
            line.split(';').next().unwrap_or_default().contains("split"),
            "{line}"
        );
    }
}

#[test]
fn a_profile_without_samples_is_a_partial_result_needs_root() {
    let Some(said) = said() else { return };
    assert_eq!(said.nothing.code, Some(6), "{:?}", said.nothing);
    assert!(said.nothing.stdout.is_empty(), "{:?}", said.nothing);
}

#[test]
fn a_diff_compares_two_times_needs_root() {
    let Some(said) = said() else { return };
    assert_eq!(said.diff.code, Some(0), "{:?}", said.diff);
    assert!(
        said.diff.text().contains("spend_seventy"),
        "{}",
        said.diff.text()
    );
}

#[test]
fn top_follows_the_load_in_a_terminal_needs_root() {
    let needs = [
        Need::Root,
        Need::StaticC,
        Need::Cgroup2,
        Need::Program("tmux"),
    ];
    let Some(_live) = live(&needs) else { return };
    let cgroup = Cgroup::new("top");
    let daemon = Daemon::with().set("windows.length_s=1").start().sampling();
    let split = c("split.c").start_in(&cgroup, &[]);
    let terminal = Terminal::open(&command(["--agent", &daemon.address(), "top"]));
    assert!(terminal.shows("spend_seventy"));
    split.finish("split");
    let _kernel = c("kernel.c").start_in(&cgroup, &[]);
    assert!(terminal.shows("read_zero"));
    terminal.tmux(&["send-keys", "q"]);
    let gone = wait_for(Duration::from_secs(5), || {
        terminal
            .tmux(&["list-sessions"])
            .trim()
            .is_empty()
            .then_some(())
    });
    assert!(gone.is_some(), "q does not end it");
}

#[test]
fn a_reader_that_goes_away_ends_the_command_quietly() {
    let dir = tempfile::tempdir().unwrap();
    let mut pipe = Command::new("sh");
    pipe.args([
        "-c",
        r#""$0" man | head -n 1; "$0" completions zsh | head -n 1"#,
    ]);
    let mut proc = Proc::spawn(pipe.arg(testkit::binaries::agent_ctl()), dir.path(), "pipe");
    assert!(proc.wait(Duration::from_secs(30)).is_some());
    assert!(!proc.stderr().contains("panicked"), "{}", proc.stderr());
}

/// Two shells that count, one started by the other, and an exit code that says so.
const COUNTS: &str = "\
sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done' & \
i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; wait; exit 7";

#[test]
fn a_command_is_captured_with_all_it_starts_and_its_code_is_passed_on_needs_root() {
    let Some(_live) = live(&[Need::Root, Need::Cgroup2]) else {
        return;
    };
    let daemon = Daemon::start().sampling();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("command.json");
    let output = file.to_str().unwrap();
    let args = [
        "capture", "--rate", "997", "-o", output, "--", "sh", "-c", COUNTS,
    ];
    let out = daemon.ctl(&args);
    assert_eq!(out.code, Some(7), "{out:?}");
    let profile: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let text = profile.to_string();
    // Nothing but the command is in it, and it has a cgroup of its own, which is gone.
    assert!(text.contains("/fleetprof-capture-"), "{text:.500}");
    let samples = out.stderr.split(" samples").next().unwrap_or("");
    let samples = samples.rsplit(' ').next().unwrap_or("").replace(',', "");
    let samples: u64 = samples.parse().unwrap_or_else(|_| panic!("{out:?}"));
    assert!(samples > 100, "{out:?}");
    let left = std::fs::read_dir("/sys/fs/cgroup")
        .unwrap()
        .flatten()
        .any(|entry| {
            entry
                .file_name()
                .to_string_lossy()
                .starts_with("fleetprof-capture-")
        });
    assert!(!left);
    // A command that is not there is no profile, and says so as a shell does.
    let out = daemon.ctl(&["capture", "-o", output, "--", "/nowhere/nothing"]);
    assert_eq!(out.code, Some(127), "{out:?}");
}

#[test]
fn under_sudo_a_command_runs_as_whoever_called_it_needs_root() {
    let Some(_live) = live(&[Need::Root, Need::Cgroup2]) else {
        return;
    };
    let daemon = Daemon::start().sampling();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("command.json");
    let output = file.to_str().unwrap();
    for (as_root, expected) in [(false, "65534 65534"), (true, "0 0")] {
        let mut args = vec!["capture", "-q", "-o", output];
        args.extend(as_root.then_some("--as-root"));
        args.extend(["--", "sh", "-c", "echo $(id -u) $(id -g)"]);
        let mut command = command(args);
        command
            .env("FLEETPROF_AGENT", daemon.address())
            .env("SUDO_UID", "65534")
            .env("SUDO_GID", "65534")
            .env("SUDO_USER", "nobody");
        let out = run(&mut command, Duration::from_secs(30));
        assert_eq!(out.text().trim(), expected, "{out:?}");
    }
}
