//! Tests what there is to select by, and CPU over time.

use super::{ask, empty, sound};

#[test]
fn labels_have_their_heaviest_values() {
    let ended = ask(&sound(), &["labels"]);
    assert_eq!(ended.code, 0, "{}", ended.all());
    let unit = ended.out.lines().find(|line| line.starts_with("unit "));
    assert!(unit.unwrap().contains("nginx.service"), "{}", ended.out);
    let json = ask(&sound(), &["labels", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    let labels = json["labels"].as_array().unwrap();
    assert!(
        labels.iter().any(|label| label["label"] == "comm"),
        "{json}"
    );
}

#[test]
fn values_of_a_label_have_their_cores() {
    let ended = ask(&sound(), &["labels", "comm"]);
    assert_eq!(ended.code, 0, "{}", ended.all());
    assert!(ended.out.starts_with("CORES"), "{}", ended.out);
    let row = ended.out.lines().find(|line| line.ends_with("  nginx"));
    let cores: f64 = row
        .unwrap()
        .split_whitespace()
        .next()
        .unwrap()
        .parse()
        .unwrap();
    assert!(cores > 0.0, "{}", ended.out);
    let ended = ask(&sound(), &["labels", "contaner"]);
    assert_eq!((ended.code, ended.out.as_str()), (2, ""), "{}", ended.all());
    assert!(
        ended.err.contains("the nearest is `container`"),
        "{}",
        ended.err
    );
}

#[test]
fn no_samples_are_said_to_be_none() {
    for args in [
        &["labels"] as &[&str],
        &["labels", "unit"],
        &["top", "--once"],
        &["cgroups"],
    ] {
        let ended = ask(&empty(), args);
        assert_eq!(
            (ended.code, ended.out.as_str()),
            (6, ""),
            "{args:?}: {}",
            ended.all()
        );
        assert!(
            ended.err.contains("no samples in the range"),
            "{args:?}: {}",
            ended.err
        );
    }
}

#[test]
fn a_time_before_what_is_kept_says_since_when_there_is_something() {
    let args = ["profile", "--from", "2020-01-01", "--to", "2020-01-02"];
    let ended = ask(&empty(), &args);
    assert_eq!((ended.code, ended.out.as_str()), (6, ""), "{}", ended.all());
    assert!(
        ended.err.contains("the oldest kept are of 20"),
        "{}",
        ended.err
    );
}

#[test]
fn what_excluded_every_sample_is_said_by_top_and_heatmap_too() {
    let running = sound();
    for command in [
        &["top", "--once"] as &[&str],
        &["heatmap"],
        &["labels", "comm"],
    ] {
        let args = [command, &["--unit", "ngin"]].concat();
        let ended = ask(&running, &args);
        assert_eq!(
            (ended.code, ended.out.as_str()),
            (6, ""),
            "{args:?}: {}",
            ended.all()
        );
        let nearest = "the nearest is `nginx.service`";
        assert!(ended.err.contains(nearest), "{args:?}: {}", ended.err);
    }
}

#[test]
fn an_agent_has_cpu_over_time_by_any_label() {
    let running = sound();
    let args = ["series", "--by", "comm", "--since", "1m", "--step", "20s"];
    let ended = ask(&running, &args);
    assert_eq!(ended.code, 0, "{}", ended.all());
    assert!(
        ended.out.contains("nginx") && ended.out.contains('█'),
        "{}",
        ended.out
    );
    assert!(ended.err.contains("cores from samples"), "{}", ended.err);
    let csv = ask(&running, &[&args[..], &["--format", "csv"]].concat());
    assert!(csv.out.starts_with("start,comm,cores\n2"), "{}", csv.out);
    let many = ["series", "--since", "1h", "--step", "1s"];
    let ended = ask(&running, &many);
    assert_eq!((ended.code, ended.out.as_str()), (2, ""), "{}", ended.all());
    assert!(
        ended.err.contains("at most 400 are allowed"),
        "{}",
        ended.err
    );
}
