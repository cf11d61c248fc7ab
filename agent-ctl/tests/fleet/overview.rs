//! Tests the printed overview of a fleet.

use super::{Running, damaged, empty, json, refused, sound};
use testkit::fake::collector::Behaviour;

#[test]
fn what_changed_for_people() {
    insta::assert_snapshot!(sound().ask(&["overview"]).all());
}

#[test]
fn every_row_where_it_is_asked_for() {
    insta::assert_snapshot!(sound().ask(&["overview", "--all"]).all());
}

#[test]
fn scripts_get_numbers_and_times() {
    let found = json(&sound().ask(&["overview", "--json"]));
    let row = &found["services"][0];
    assert_eq!(row["name"], "api.service");
    assert_eq!(row["change"]["significant"], true);
    assert_eq!(row["change"]["cores"], 1.25);
    assert!(row["change"]["since"].as_str().unwrap().ends_with('Z'));
    assert!(row["change"]["until"].is_null());
    assert_eq!(row["steps"].as_array().unwrap().len(), 60);
    assert_eq!(found["functions"][0]["service"], "api.service");
    assert_eq!(found["outliers"][0]["in_baseline"], false);
    let firing = found["alerts_firing"].as_array().unwrap();
    let rules: Vec<_> = firing.iter().map(|alert| &alert["rule"]).collect();
    assert_eq!(rules, ["api-cpu", "api-malloc"], "what waits does not fire");
}

#[test]
fn what_keeps_alerts_from_people_is_noted_next_to_the_overview() {
    let ended = damaged().ask(&["overview"]);
    assert!(
        ended.out.contains("2 alerts firing, worst: api-cpu"),
        "{}",
        ended.all()
    );
    let said = "receiver `oncall` does not accept notifications, 2 wait";
    assert!(ended.err.contains(said), "{}", ended.all());
}

#[test]
fn the_collector_is_asked_for_what_is_meant() {
    let running = sound();
    let asked = |args: &[&str]| {
        let mut all = vec!["overview"];
        all.extend(args);
        let ended = running.ask(&all);
        assert_eq!(ended.code, 0, "{}", ended.all());
        running.calls("overview").pop().unwrap()
    };
    let usual = asked(&[]);
    assert!(
        usual.contains("baseline=false label=unit limit=20 functions=true"),
        "{usual}"
    );
    for baseline in ["yesterday", "last-week", "-3h..-2h"] {
        let other = asked(&["--baseline", baseline, "--no-functions", "--by", "image"]);
        assert!(
            other.contains("baseline=true label=image limit=20 functions=false"),
            "{other}"
        );
    }
    assert!(asked(&["--unit", "api"]).contains("api.service"));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let running = sound();
    refused(
        &running.ask(&["overview", "--baseline", "tomorrow"]),
        2,
        "yesterday",
    );
    refused(
        &running.ask(&["overview", "--limit", "0"]),
        2,
        "from 1 to 200",
    );
}

#[test]
fn an_empty_fleet_is_said() {
    let ended = empty().ask(&["overview"]);
    assert_eq!(ended.out, "");
    assert!(
        ended
            .err
            .contains("no samples in the range: none are kept at all"),
        "{}",
        ended.all()
    );
}

#[test]
fn an_answer_without_its_quality_is_none() {
    let running = Running::start(Behaviour {
        without_quality: true,
        ..Behaviour::default()
    });
    refused(
        &running.ask(&["overview"]),
        1,
        "did not describe its answer",
    );
}
