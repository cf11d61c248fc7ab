//! Captures over the fleet, against a fake collector.

use super::{Running, empty, json, refused, sound};
use crate::{command, run};
use testkit::fake::collector::Behaviour;

#[test]
fn a_capture_says_how_many_of_how_many_answered() {
    let running = sound();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("api.folded");
    let ended = running.ask(&[
        "capture",
        "--select",
        "unit=api.service,zone=~`a|b`",
        "--max-hosts",
        "20",
        "--duration",
        "10s",
        "--event",
        "page-faults",
        "--group-by",
        "host",
        "-o",
        file.to_str().unwrap(),
    ]);
    let shown = ended.all().replace(dir.path().to_str().unwrap(), "DIR");
    insta::assert_snapshot!(shown);
    let asked = "[unit=api.service zone=~a|b] page-faults for 10 s, at most 20 hosts, 15 s of patience, \
                 by [host]";
    assert_eq!(running.calls("capture"), [asked]);
    let folded = std::fs::read_to_string(file).unwrap();
    assert!(folded.contains("web-1;"), "{folded}");
}

#[test]
fn a_capture_of_which_all_hosts_answer_is_a_success() {
    let running = Running::start(Behaviour {
        healthy: true,
        ..Behaviour::default()
    });
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("api.json");
    let args = [
        "capture",
        "--before",
        "5m",
        "--json",
        "-o",
        file.to_str().unwrap(),
    ];
    let told = json(&running.ask(&args));
    assert_eq!(told["past"]["samples"], told["profile"]["samples"]);
    let ended = running.ask(&["capture", "--quiet", "--before", "5m"]);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{}", ended.all());
    assert!(!ended.out.is_empty());
}

#[test]
fn a_capture_for_scripts_has_every_host() {
    let running = sound();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("api.pb.gz");
    let args = ["capture", "--json", "-o", file.to_str().unwrap()];
    let ended = running.ask(&args);
    assert_eq!(ended.code, 6, "{}", ended.all());
    let json = json(&ended);
    assert_eq!(json["answered"], 3);
    assert_eq!((&json["failed"], &json["lost"]), (&1.into(), &1.into()));
    assert_eq!(json["absent_hosts"][0], "away");
    assert_eq!(json["hosts"].as_array().unwrap().len(), 5);
    assert_eq!(json["hosts"][3]["state"], "failed");
    assert!(json["profile"]["samples"].as_u64().unwrap() > 0);
    assert!(json.get("past").is_none());
    assert!(file.exists());
}

#[test]
fn a_capture_that_nobody_answers_is_a_failure() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("api.svg");
    let ended = empty().ask(&["capture", "-o", file.to_str().unwrap()]);
    refused(&ended, 1, "none of 3 hosts answered");
    assert!(
        ended.err.contains("captures are switched off"),
        "{}",
        ended.err
    );
    assert!(!file.exists());
}

#[test]
fn a_collector_that_goes_away_in_the_middle_of_a_capture_is_told() {
    let running = Running::start(Behaviour {
        empty_parts: true,
        ..Behaviour::default()
    });
    refused(
        &running.ask(&["capture"]),
        5,
        "closed the connection before the result",
    );
}

#[test]
fn what_a_fleet_alone_understands_is_refused_for_an_agent() {
    for option in [
        ["--select", "zone=a"],
        ["--max-hosts", "3"],
        ["--patience", "1s"],
    ] {
        let mut args = vec!["capture"];
        args.extend(option);
        let ended = run(command("unix:/x", &args));
        refused(&ended, 2, option[0]);
    }
    let running = sound();
    refused(
        &running.ask(&["capture", "--select", "zone="]),
        2,
        "failed to parse",
    );
    assert!(running.calls("capture").is_empty());
}

#[test]
fn captures_over_the_fleet_are_listed_and_ended() {
    let running = sound();
    insta::assert_snapshot!(running.ask(&["captures"]).all());
    let listed = json(&running.ask(&["captures", "--json"]));
    assert_eq!(
        (&listed[0]["id"], &listed[0]["state"]),
        (&8.into(), &"running".into())
    );
    assert_eq!(listed[1]["ended_by"], "the client left");
    assert_eq!(running.ask(&["captures", "cancel", "7"]).code, 0);
    refused(
        &running.ask(&["captures", "cancel", "9"]),
        2,
        "none with id 9 runs",
    );
    assert_eq!(running.calls("cancel"), ["7", "9"]);
}

#[test]
fn a_bundle_of_a_fleet_says_what_was_captured_of_whom() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.bundle.html");
    let args = [
        "capture",
        "--select",
        "zone=a",
        "--event",
        "page-faults",
        "--duration",
        "7s",
        "-o",
        file.to_str().unwrap(),
    ];
    sound().ask(&args);
    let page = std::fs::read_to_string(file).unwrap();
    for fact in [
        "<dt>samples</dt><dd>zone=\"a\"</dd>",
        "<dt>event</dt><dd>page-faults</dd>",
        "<dt>asked for</dt><dd>7 s</dd>",
        "<dt>ran</dt><dd>12 s</dd>",
        "<dt>hosts</dt><dd>3 of 5 hosts answered: 1 failed, 1 lost, 1 not connected</dd>",
        "<dt>db-3</dt><dd>lost: the connection of the host ended</dd>",
    ] {
        assert_eq!(page.matches(fact).count(), 1, "{fact}");
    }
}

#[test]
fn a_kept_capture_is_written_with_the_time_before_in_any_format() {
    let running = sound();
    let dir = tempfile::tempdir().unwrap();
    for (end, start) in [("html", "<!doctype html>"), ("folded", ""), ("json", "{")] {
        let file = dir.path().join(format!("api.{end}"));
        let ended = running.ask(&["captures", "get", "5", "-o", file.to_str().unwrap()]);
        // Two of the five hosts did not answer.
        assert_eq!(ended.code, 6, "{}", ended.all());
        assert!(ended.err.contains("3 of 5 hosts answered"), "{}", ended.err);
        let text = std::fs::read_to_string(file).unwrap();
        assert!(text.to_lowercase().starts_with(start), "{end}");
    }
    assert_eq!(
        running.calls("profile")[..2],
        ["5 own by [*]", "5 past by [*]"]
    );
    let ended = running.ask(&["captures", "get", "5", "--group-by", "host"]);
    assert!(ended.out.contains("web-1;"), "{}", ended.out);
}

#[test]
fn a_capture_that_is_not_kept_says_why() {
    let running = sound();
    for (id, why) in [
        ("8", "it still runs"),
        ("7", "has no profile of it"),
        ("9", "there is no capture with this number"),
    ] {
        let ended = running.ask(&["captures", "get", id]);
        assert_eq!(ended.code, 2, "{}", ended.all());
        assert!(ended.err.contains(why), "{}", ended.err);
    }
    assert_eq!(running.calls("profile"), Vec::<String>::new());
}

#[test]
fn a_kept_capture_is_removed() {
    let running = sound();
    assert_eq!(running.ask(&["captures", "delete", "5"]).code, 0);
    let ended = running.ask(&["captures", "delete", "7"]);
    assert!(
        ended.err.contains("no capture with ID 7 is kept"),
        "{}",
        ended.err
    );
    assert_eq!(running.calls("delete"), ["5", "7"]);
}

#[test]
fn a_detached_capture_prints_its_number_and_goes_on() {
    let running = sound();
    let ended = running.ask(&["capture", "--select", "unit=api.service", "--detach"]);
    assert_eq!(
        (ended.code, ended.out.as_str()),
        (0, "7\n"),
        "{}",
        ended.all()
    );
    assert!(
        ended.err.contains("`agent-ctl captures get 7 -o FILE`"),
        "{}",
        ended.err
    );
}

#[test]
fn a_kept_capture_is_compared() {
    let running = sound();
    let args = ["diff", "--before", "capture:5", "--after", "-5m.."];
    let ended = running.ask(&args);
    assert!(ended.out.contains("SELF BEFORE"), "{}", ended.all());
}
