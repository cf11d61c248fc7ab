//! `agent-ctl series`, `labels` and `doctor` with a collector.

use super::{Behaviour, Running, empty, json, refused, sound};

#[test]
fn a_fleet_has_cpu_over_time_with_what_is_missing() {
    let running = sound();
    let args = ["series", "--by", "host", "--since", "4m", "--step", "1m"];
    let ended = running.ask(&args);
    let told = ended
        .err
        .contains("cores from the kernel's accounting, 4 steps of 1 min");
    assert!(told, "{}", ended.err);
    assert!(
        ended.err.contains("samples were lost in 1 steps"),
        "{}",
        ended.err
    );
    let rows: Vec<&str> = ended.out.lines().collect();
    assert_eq!(rows.len(), 3, "{}", ended.out);
    assert!(
        rows[1].ends_with("web-1") && rows[1].contains("4.000"),
        "{}",
        ended.out
    );
    assert_eq!(running.calls("series"), ["[] by [\"host\"] accounted true"]);
    let answer = json(&running.ask(&[&args[..], &["--json"]].concat()));
    assert_eq!(answer["lines"][0]["labels"]["host"], "web-1");
    assert!(answer["lines"][0]["cores"][2].is_null(), "{answer}");
    assert_eq!(answer["source"], "kernel");
    let ended = running.ask(&["series", "--by", "hots"]);
    refused(&ended, 2, "the nearest is `host`");
}

#[test]
fn labels_of_a_fleet_are_those_of_all_hosts() {
    let running = sound();
    let ended = running.ask(&["labels", "host"]);
    assert!(ended.out.contains("web-2"), "{}", ended.all());
    let ended = empty().ask(&["labels"]);
    assert_eq!((ended.code, ended.out.as_str()), (6, ""), "{}", ended.all());
}

#[test]
fn the_doctor_of_a_fleet_names_causes_and_ends_with_6() {
    let ended = sound().ask(&["doctor"]);
    assert_eq!(ended.code, 6, "{}", ended.all());
    assert!(
        ended.out.contains("its clock is 90 s ahead"),
        "{}",
        ended.out
    );
    let causes = json(&sound().ask(&["doctor", "--json"]));
    let named = causes["causes"].as_array().unwrap();
    assert!(!named.is_empty(), "{causes}");
    let healthy = Running::start(Behaviour {
        healthy: true,
        ..Behaviour::default()
    });
    let ended = healthy.ask(&["doctor"]);
    assert_eq!(ended.code, 0, "{}", ended.all());
    assert!(
        ended.out.ends_with("nothing is degraded\n"),
        "{}",
        ended.out
    );
}

#[test]
fn nothing_that_matches_is_explained_by_a_collector_too() {
    let running = sound();
    for command in [
        &["top", "--once"] as &[&str],
        &["profile"],
        &["labels", "comm"],
    ] {
        let args = [command, &["--host", "web1"]].concat();
        let ended = running.ask(&args);
        assert_eq!(
            (ended.code, ended.out.as_str()),
            (6, ""),
            "{args:?}: {}",
            ended.all()
        );
        let nearest = "the nearest is `web-1`";
        assert!(ended.err.contains(nearest), "{args:?}: {}", ended.err);
    }
}

#[test]
fn a_command_is_not_captured_on_a_fleet() {
    let ended = sound().ask(&["capture", "-o", "/dev/null", "--", "true"]);
    refused(&ended, 2, "a collector captures on the hosts of a fleet");
}
