//! Every command against a fake collector: what it prints, what it asks, how it ends.

mod captures;
mod incidents;
mod overview;
mod pins;
mod series;
mod types;
mod views;

use crate::{Ended, command, run};
use serde_json::Value;
use std::process::Command;
use testkit::fake::collector::{Behaviour, FakeCollector, HOSTS};
use tonic::Code;

/// A fake collector that commands are run against.
struct Running(FakeCollector);

impl Running {
    fn start(behaviour: Behaviour) -> Running {
        Running(FakeCollector::start(behaviour))
    }

    /// Runs a command with `--collector`.
    fn ask(&self, args: &[&str]) -> Ended {
        let address = self.address();
        let mut all = vec!["--collector", address.as_str()];
        all.extend(args);
        let mut ended = run(command("unix:/nobody", &all));
        // The port is another in every run.
        ended.err = ended.err.replace(&address, "COLLECTOR");
        ended
    }

    fn address(&self) -> String {
        self.0.address().to_string()
    }

    /// The details of each call of this name.
    fn calls(&self, name: &str) -> Vec<String> {
        self.0.calls(name)
    }
}

fn sound() -> Running {
    Running::start(Behaviour::default())
}

fn damaged() -> Running {
    Running::start(Behaviour {
        damaged: true,
        ..Behaviour::default()
    })
}

fn empty() -> Running {
    Running::start(Behaviour {
        empty: true,
        ..Behaviour::default()
    })
}

fn json(ended: &Ended) -> Value {
    serde_json::from_str(&ended.out).unwrap()
}

#[track_caller]
fn refused(ended: &Ended, code: i32, expected: &str) {
    assert_eq!(
        (ended.code, ended.out.as_str()),
        (code, ""),
        "{}",
        ended.all()
    );
    assert!(ended.err.contains(expected), "{}", ended.all());
}

#[test]
fn hosts_for_people() {
    insta::assert_snapshot!(sound().ask(&["hosts"]).all());
}

#[test]
fn hosts_in_trouble_alone() {
    insta::assert_snapshot!(sound().ask(&["hosts", "--trouble", "--sort", "seen"]).all());
}

#[test]
fn healthy_hosts_are_no_trouble() {
    let running = Running::start(Behaviour {
        healthy: true,
        ..Behaviour::default()
    });
    for args in [&["hosts"] as &[&str], &["hosts", "--trouble"]] {
        let ended = running.ask(args);
        assert_eq!(ended.code, 0, "{}", ended.all());
        assert!(ended.err.starts_with("1 host, "), "{}", ended.all());
    }
}

#[test]
fn hosts_that_were_away_are_told_of_where_none_is_in_trouble_any_more() {
    let running = Running::start(Behaviour {
        healthy: true,
        gaps: true,
        ..Behaviour::default()
    });
    let ended = running.ask(&["hosts", "--trouble"]);
    assert_eq!((ended.code, ended.out.as_str()), (6, ""), "{}", ended.all());
    let said = "data is missing, 2 min 30 s in all";
    assert!(ended.err.contains(said), "{}", ended.all());
}

#[test]
fn hosts_for_scripts() {
    let ended = sound().ask(&["hosts", "--json"]);
    assert_eq!(ended.code, 6, "{}", ended.all());
    let json = json(&ended);
    assert_eq!((&json["silent"], &json["gone"]), (&1.into(), &1.into()));
    let hosts = json["hosts"].as_array().unwrap();
    assert_eq!(hosts.len(), 4, "boots of one host are one");
    let web = hosts.iter().find(|host| host["host"] == "web-1").unwrap();
    assert_eq!(web["boots"], 2);
    assert_eq!(web["cpus_used"], 3.0, "the weight of both boots");
    assert_eq!(web["labels"]["region"], "eu\x1b]0;x\x07", "JSON keeps it");
    let db = hosts
        .iter()
        .find(|host| host["host_id"] == "id-db")
        .unwrap();
    assert_eq!(db["spool"]["dropped_windows"], 3);
    assert_eq!(json["fleet"]["hosts"], 3);
}

#[test]
fn hosts_are_a_collectors() {
    let ended = run(command("unix:/nobody", &["hosts"]));
    refused(&ended, 2, "give --collector HOST:PORT");
    let ended = run(command("unix:/x", &["--agent", "unix:/nobody", "hosts"]));
    refused(&ended, 2, "give --collector HOST:PORT");
}

#[test]
fn status_for_people() {
    let ended = sound().ask(&["status", "--counters"]);
    insta::assert_snapshot!(ended.all());
    insta::assert_snapshot!(damaged().ask(&["status"]).all());
    let ended = empty().ask(&["status"]);
    assert!(ended.out.contains("nothing yet"), "{}", ended.all());
}

#[test]
fn status_for_scripts() {
    let json = json(&damaged().ask(&["status", "--json"]));
    assert_eq!(json["store"], "embedded");
    assert_eq!(json["kept"]["end"], "2026-11-21T14:00:00Z");
    assert_eq!(json["degradations"][0]["severity"], "warning");
    assert_eq!(json["counters"][0]["value"], 12);
}

#[test]
fn who_has_a_scope_is_told_no_zeros_of_the_fleet() {
    let scoped = Running::start(Behaviour {
        scoped: true,
        empty: true,
        ..Behaviour::default()
    });
    let ended = scoped.ask(&["status", "--counters"]);
    insta::assert_snapshot!(ended.all());
    let json = json(&scoped.ask(&["status", "--json"]));
    assert_eq!(json["scoped"], true);
    assert_eq!(json["streams"], Value::Null);
    assert_eq!(json["store_bytes"], Value::Null);
    let ended = scoped.ask(&["hosts"]);
    let told = "no host in the scope of your login";
    assert!(ended.err.contains(told), "{}", ended.all());
    let ended = empty().ask(&["hosts"]);
    assert!(ended.err.contains("no host has pushed"), "{}", ended.all());
}

#[test]
fn a_profile_of_hosts_goes_to_standard_output() {
    let running = sound();
    let args = [
        "profile",
        "--host",
        "web-1",
        "--host",
        "web-2",
        "--unit",
        "nginx",
        "--group-by",
        "host,comm",
        "--drop",
        "epoll",
    ];
    insta::assert_snapshot!(running.ask(&args).all());
    let expected = "[unit Equal nginx.service, host Regex web\\-1|web\\-2, Drop epoll] \
                    by [\"host\", \"comm\"] nodes 0";
    assert_eq!(running.calls("profile"), [expected]);
}

#[test]
fn a_table_has_every_step_that_has_data() {
    let running = sound();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hour.parquet");
    let path = path.to_str().unwrap();
    let args = [
        "profile", "--since", "1h", "--step", "1m", "--unit", "nginx",
    ];
    let ended = running.ask(&[&args[..], &["--group-by", "unit", "-o", path]].concat());
    assert_eq!(ended.code, 0, "{}", ended.all());
    assert!(ended.err.contains("3 steps of 1 min"), "{}", ended.err);
    // The third step of four has no host.
    let asked = "[unit Equal nginx.service] by [\"unit\"] nodes 0";
    assert_eq!(running.calls("profile"), [asked; 3]);
    let written = std::fs::read(path).unwrap();
    assert!(written.starts_with(b"PAR1") && written.ends_with(b"PAR1"));
}

#[test]
fn steps_beyond_reason_are_refused_before_they_are_asked_for() {
    let running = sound();
    let args = [
        "profile",
        "--since",
        "30d",
        "--step",
        "10s",
        "-o",
        "a.parquet",
    ];
    refused(&running.ask(&args), 2, "more than 1024 steps");
    assert_eq!(running.calls("profile"), [""; 0]);
}

#[test]
fn a_service_is_a_label() {
    let running = sound();
    let ended = running.ask(&["profile", "--service", "a", "--max-nodes", "9"]);
    assert_eq!(ended.code, 6, "{}", ended.all());
    let expected = "[service Equal a] by [\"comm\"] nodes 9";
    assert_eq!(running.calls("profile")[0], expected);
}

#[test]
fn a_profile_says_what_it_is_made_of_for_scripts_and_is_read_back() {
    let running = sound();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cpu.json");
    let path = path.to_str().unwrap();
    let ended = running.ask(&["profile", "-q", "-o", path]);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""));
    let text = std::fs::read_to_string(path).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["schema"], "fleetprof.profile/1");
    assert_eq!(json["fleet"]["hosts"], 3);
    assert_eq!(json["fleet"]["pruned_share"], 0.005);
    assert_eq!(json["samples"][0]["labels"]["unit"], Value::Null);
    let args = ["diff", "--before", path, "--after", "..now"];
    let ended = running.ask(&args);
    assert_eq!(ended.code, 0, "{}", ended.all());
}

#[test]
fn labels_of_a_fleet_are_asked_for() {
    let running = sound();
    let ended = running.ask(&["profile", "--group-by", "region,serivce"]);
    refused(&ended, 2, "failed to group by `serivce`");
    assert!(ended.err.contains("nearest is `service`"), "{}", ended.err);
    assert_eq!(running.calls("profile").len(), 0);
    let ended = running.ask(&["profile", "--group-by", "region"]);
    assert_eq!(ended.code, 0, "{}", ended.all());
}

#[test]
fn sums_larger_than_an_answer_can_say_are_said_to_be_cut() {
    let running = Running::start(Behaviour {
        capped: true,
        ..Behaviour::default()
    });
    for args in [
        &["profile"] as &[&str],
        &["top", "--once"],
        &["cgroups"],
        &["diff", "--before", "-1h..-30m"],
    ] {
        let ended = running.ask(args);
        assert_eq!(ended.code, 6, "{args:?}: {}", ended.all());
        assert!(ended.err.contains("exceed 2^64 - 1"), "{}", ended.all());
    }
    let json = json(&running.ask(&["top", "--json"]));
    assert_eq!(json["fleet"]["weights_capped"], true);
}

#[test]
fn damaged_partitions_make_every_answer_partial() {
    let running = damaged();
    for args in [
        &["profile"] as &[&str],
        &["top", "--once"],
        &["cgroups"],
        &["diff", "--before", "-1h..-30m"],
        &["hosts"],
        &["profile", "--format", "json"],
        &["top", "--json"],
        &["cgroups", "--json"],
    ] {
        let ended = running.ask(args);
        assert_eq!(ended.code, 6, "{args:?}: {}", ended.all());
        let said = ended.err.contains("2026-11-20\\x1b[2J, 2026-11-19");
        let json = ended.out.replace(' ', "");
        let said = said || json.contains("\"partial\":true");
        assert!(said, "{args:?}: {}", ended.all());
    }
}

#[test]
fn an_empty_range_is_partial() {
    let running = empty();
    for args in [
        &["profile"] as &[&str],
        &["top", "--once"],
        &["cgroups"],
        &["diff", "--before", "-1h..-30m"],
        &["hosts"],
    ] {
        let ended = running.ask(args);
        assert_eq!(ended.code, 6, "{args:?}: {}", ended.all());
    }
}

#[test]
fn cgroups_of_a_fleet_and_of_a_host() {
    let running = sound();
    insta::assert_snapshot!(running.ask(&["cgroups"]).all());
    let ended = running.ask(&["cgroups", "--host", "web-1", "--selector", "region=\"eu\""]);
    assert_eq!(ended.code, 6, "{}", ended.all());
    assert_eq!(
        running.calls("cgroups")[1],
        "[host Equal web-1, region Equal eu]"
    );
    let json = json(&running.ask(&["cgroups", "--json"]));
    assert_eq!(json["rows_left_out"], 7);
    assert_eq!(json["fleet"]["hosts_alive"], 4);
    assert_eq!(json["ledger"], Value::Null);
}

#[test]
fn top_prints_a_table_of_each_view() {
    let running = sound();
    let mut all = String::new();
    for view in ["functions", "cgroups", "processes", "hosts"] {
        all.push_str(&running.ask(&["top", "--view", view, "--limit", "3"]).all());
    }
    insta::assert_snapshot!(all);
    let by: Vec<String> = running.calls("top");
    assert_eq!(by, ["[] by function", "[] by comm", "[] by host"]);
}

#[test]
fn top_takes_frame_filters_in_every_view() {
    for (view, name) in [
        ("functions", "tcp_sendmsg"),
        ("cgroups", "/system.slice/nginx.service"),
        ("processes", "nginx"),
        ("hosts", "web-2"),
    ] {
        let args = ["top", "--json", "--keep", "tcp", "--view", view];
        let ended = sound().ask(&args);
        assert_eq!(ended.code, 0, "{}", ended.all());
        let json = json(&ended);
        let rows = json["rows"].as_array().unwrap();
        assert!(rows.iter().any(|row| row["name"] == name), "{}", ended.out);
        assert_eq!(json["samples"], 600, "{view}");
    }
}

#[test]
fn top_for_scripts() {
    let args = [
        "top", "--json", "--view", "hosts", "--limit", "1", "--sort", "total",
    ];
    let json = json(&sound().ask(&args));
    assert_eq!(json["rows"][0]["name"], HOSTS[2].0);
    assert_eq!(json["rows_left_out"], 2);
    assert_eq!(json["samples"], 3900);
    assert_eq!(json["fleet"]["resolution_ns"], 10_000_000_000u64);
}

#[test]
fn a_diff_of_two_selections_of_hosts() {
    let running = sound();
    let args = [
        "diff",
        "--before-selector",
        "host=\"web-1\"",
        "--after-selector",
        "host=~\"db.*\"",
    ];
    insta::assert_snapshot!(running.ask(&args).all());
    let asked = running.calls("diff");
    assert_eq!(asked, ["[host Equal web-1] [host Regex db.*]"]);
    let asked = running.calls("profile");
    assert_eq!(asked[0], "[host Equal web-1] by [] nodes 0");
    assert_eq!(asked[1], "[host Regex db.*] by [] nodes 0");
    let mut args = args.to_vec();
    args.push("--json");
    let json = json(&running.ask(&args));
    assert_eq!(json["before"]["samples"], 1000);
    assert_eq!(json["after"]["fleet"]["hosts"], 3);
    assert_eq!(json["functions"][0]["function"], "[libevil.so]");
}

#[test]
fn what_only_an_agent_answers_is_refused_with_what_to_use() {
    let running = sound();
    for (args, expected) in [
        (
            &["tail"] as &[&str],
            "`agent-ctl top --collector HOST:PORT`",
        ),
        (&["config", "show"], "`fleetprof-collector --help`"),
        (&["profile", "--closed"], "leave --closed out"),
        (
            &["profile", "--step", "1m", "-o", "a.svg"],
            "give --format parquet",
        ),
        (
            &[
                "profile",
                "--step",
                "1m",
                "--group-by",
                "*",
                "-o",
                "a.parquet",
            ],
            "name the labels",
        ),
        (&["status", "--cpus"], "`agent-ctl hosts`"),
        (&["top", "--once", "--range", "0s"], "--range"),
    ] {
        refused(&running.ask(args), 2, expected);
    }
    assert_eq!(running.0.all_calls(), [""; 0], "nothing was asked");
}

#[test]
fn what_only_a_collector_understands_is_refused_by_its_name() {
    for (args, expected) in [
        (&["profile", "--host", "a"] as &[&str], "select by `host`"),
        (&["profile", "--service", "a"], "select by `service`"),
        (
            &["profile", "--selector", "host!=\"a\""],
            "select by `host`",
        ),
        (&["profile", "--max-nodes", "9"], "use --max-nodes"),
        (
            &["profile", "--step", "1m", "-o", "a.parquet"],
            "use --step",
        ),
        (&["profile", "--group-by", "host"], "use --group-by host"),
        (&["cgroups", "--host", "a"], "select by `host`"),
        (&["cgroups", "--selector", "a=\"b\""], "use --selector"),
        (&["top", "--host", "a"], "select by `host`"),
        (&["top", "--view", "hosts"], "use --view hosts"),
        (
            &["diff", "--before", "..-1h", "--host", "a"],
            "select by `host`",
        ),
        (
            &["diff", "--before-selector", "host=\"a\""],
            "select by `host`",
        ),
        (&["tail", "--host", "a"], "select by `host`"),
    ] {
        let ended = run(command("unix:/nobody", args));
        refused(&ended, 2, &format!("failed to {expected}: "));
        assert!(ended.err.contains("--collector HOST:PORT"), "{}", ended.err);
    }
}

#[test]
fn files_of_a_fleet_are_compared_by_host_without_a_collector() {
    let running = sound();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fleet.pb.gz");
    let path = path.to_str().unwrap();
    let ended = running.ask(&["profile", "-o", path]);
    assert_eq!(ended.code, 0, "{}", ended.all());
    let args = [
        "diff",
        "--before",
        path,
        "--after",
        path,
        "--before-selector",
        "host=\"web-1\"",
        "--after-selector",
        "host=~\"db.*\"",
        "--json",
    ];
    let ended = run(command("unix:/nobody", &args));
    assert_eq!(ended.code, 0, "{}", ended.all());
    assert_eq!(json(&ended)["after"]["samples"], 1900);
}

/// A command with both addresses, or one, in the environment.
fn environment(agent: Option<&str>, collector: &str, args: &[&str]) -> Ended {
    let mut command: Command = command(agent.unwrap_or(""), args);
    if agent.is_none() {
        command.env_remove("FLEETPROF_AGENT");
    }
    run({
        command.env("FLEETPROF_COLLECTOR", collector);
        command
    })
}

#[test]
fn the_command_line_wins_over_the_environment() {
    let running = sound();
    let address = running.address();
    let here = address.as_str();
    let ended = environment(None, here, &["profile", "-q"]);
    assert_eq!(ended.code, 0, "{}", ended.all());
    let args = ["--collector", here, "profile", "-q"];
    let ended = environment(Some("unix:/nobody"), "127.0.0.1:1", &args);
    assert_eq!(ended.code, 0, "{}", ended.all());
    let ended = environment(None, here, &["profile", "--agent", "unix:/nobody"]);
    refused(&ended, 5, "failed to reach agent at `unix:/nobody`");
    let args = ["--agent", "unix:/nobody", "--collector", here, "profile"];
    refused(
        &environment(None, here, &args),
        2,
        "--agent cannot be used with --collector",
    );
    let args = ["profile", "--agent", "unix:/nobody", "--collector", here];
    refused(
        &environment(None, here, &args),
        2,
        "--agent cannot be used with --collector",
    );
}

#[test]
fn two_addresses_in_the_environment_are_told_apart_by_the_command() {
    let running = sound();
    let address = running.address();
    let here = address.as_str();
    let ended = environment(Some("unix:/nobody"), here, &["profile"]);
    refused(&ended, 2, "give --agent or --collector");
    let ended = environment(Some("unix:/nobody"), here, &["hosts"]);
    assert!(ended.out.contains("web-1"), "{}", ended.all());
    let ended = environment(Some("unix:/nobody"), here, &["tail"]);
    refused(&ended, 5, "failed to reach agent");
}

#[test]
fn an_address_that_is_none_is_a_usage_error() {
    for address in ["unix:/x", "http://c1:7600", "c1:0", ""] {
        let args = ["--collector", address, "hosts"];
        refused(&run(command("unix:/x", &args)), 2, "expected `HOST:PORT`");
    }
}

#[test]
fn a_token_stays_off_clear_text() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "s3cret\n").unwrap();
    let file = file.to_str().unwrap();
    let args = ["--collector", "10.0.0.1", "--token-file", file, "hosts"];
    let ended = run(command("unix:/x", &args));
    refused(
        &ended,
        2,
        "give --tls-ca with the authority of the collector's certificate",
    );
}

#[test]
fn a_token_goes_with_every_call() {
    let running = Running::start(Behaviour {
        token: Some("s3cret"),
        healthy: true,
        ..Behaviour::default()
    });
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "s3cret\n").unwrap();
    let file = file.to_str().unwrap();
    let ended = running.ask(&["hosts", "--token-file", file]);
    assert_eq!(ended.code, 0, "{}", ended.all());
    refused(&running.ask(&["hosts"]), 4, "agent-ctl login");
}

#[test]
fn an_interrupt_ends_a_question_at_once() {
    let running = Running::start(Behaviour {
        silent: true,
        ..Behaviour::default()
    });
    let args = ["--collector", &running.address(), "hosts"];
    let mut child = command("unix:/nobody", &args).spawn().unwrap();
    while running.calls("status").is_empty() {
        assert!(child.try_wait().unwrap().is_none(), "it ended unasked");
        std::thread::yield_now();
    }
    let kill = format!("kill -INT {}", child.id());
    let killed = Command::new("sh").args(["-c", &kill]).status().unwrap();
    assert!(killed.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn refusals_have_their_codes_and_say_what_to_do() {
    for (refusal, code, expected) in [
        (Code::ResourceExhausted, 1, "narrow it"),
        (Code::DeadlineExceeded, 1, "narrow it"),
        (
            Code::Unimplemented,
            1,
            "is not a collector, or has another version",
        ),
        (Code::Unauthenticated, 4, "agent-ctl login"),
        (Code::OutOfRange, 1, "narrow it"),
        (Code::InvalidArgument, 2, "the fake refuses\\x1b[2J"),
        (Code::Unavailable, 5, "the fake refuses\\x1b[2J"),
    ] {
        let running = Running::start(Behaviour {
            refuse: Some(refusal),
            ..Behaviour::default()
        });
        for args in [
            &["profile"] as &[&str],
            &["top", "--once"],
            &["cgroups"],
            &["hosts"],
            &["diff", "--before", "-1h..-30m"],
        ] {
            refused(&running.ask(args), code, expected);
        }
    }
}

#[test]
fn an_answer_that_does_not_say_what_it_is_made_of_is_none() {
    let without_quality = Running::start(Behaviour {
        without_quality: true,
        ..Behaviour::default()
    });
    for args in [
        &["profile"] as &[&str],
        &["top", "--once"],
        &["top", "--once", "--view", "cgroups"],
        &["cgroups"],
        &["hosts"],
    ] {
        refused(&without_quality.ask(args), 1, "did not describe its answer");
    }
    let quality_twice = Running::start(Behaviour {
        quality_twice: true,
        ..Behaviour::default()
    });
    refused(
        &quality_twice.ask(&["profile"]),
        1,
        "sent its data quality twice",
    );
}

#[test]
fn a_stream_of_nothing_is_given_up() {
    let running = Running::start(Behaviour {
        empty_parts: true,
        ..Behaviour::default()
    });
    refused(&running.ask(&["profile"]), 1, "the collector sent nothing");
}

#[test]
fn an_agent_that_is_taken_for_a_collector_is_told() {
    let running = Running::start(Behaviour {
        refuse: Some(Code::Unimplemented),
        refuse_status: true,
        ..Behaviour::default()
    });
    refused(&running.ask(&["status"]), 1, "is not a collector");
}

#[test]
fn a_collector_that_is_not_there_or_never_answers_is_unreachable() {
    let address = sound().address();
    let ended = run(command("unix:/x", &["--collector", &address, "hosts"]));
    refused(&ended, 5, "failed to reach collector at");
    let running = Running::start(Behaviour {
        silent: true,
        ..Behaviour::default()
    });
    let ended = running.ask(&["hosts", "--timeout", "200ms"]);
    refused(
        &ended,
        5,
        "failed to query the collector: no answer within 200 ms",
    );
}

#[test]
fn an_agent_taken_for_a_collector_is_told_apart_and_the_other_way_round() {
    let running = sound();
    let ended = run(command(&running.address(), &["status"]));
    refused(&ended, 2, "this is a collector");
    let hint = format!("use --collector {}", running.address());
    assert!(ended.err.contains(&hint), "{}", ended.err);
}

#[test]
fn a_live_view_and_a_table_have_the_same_bounds_of_agents_and_collectors() {
    let running = sound();
    let ended = running.ask(&["top", "--once", "--range", "3d"]);
    assert_eq!(ended.code, 0, "{}", ended.all());
    refused(
        &running.ask(&["top", "--once", "--range", "10ms"]),
        2,
        "at least 1 s",
    );
}
