//! `agent-ctl capture` and `captures` against a fake agent.

use crate::{FakeAgent, ask, empty, sound};
use testkit::fake::agent::Behaviour;

/// Samples of folded stacks.
fn samples(folded: &str) -> u64 {
    let counts = folded.lines().filter_map(|line| line.rsplit_once(' '));
    counts.map(|(_, count)| count.parse::<u64>().unwrap()).sum()
}

#[test]
fn a_capture_goes_to_standard_output_and_its_cost_to_standard_error() {
    let ended = ask(&sound(), &["capture", "--duration", "10s"]);
    assert_eq!(ended.code, 0, "{}", ended.all());
    assert_eq!(samples(&ended.out), 1000);
    let expected = "cost 50 ms of CPU time (0.5 % of a CPU) and 3.0 MiB in the agent; \
                1,000 of 4,000 samples matched";
    assert!(
        ended.err.lines().any(|line| line == expected),
        "{}",
        ended.err
    );
    assert!(
        ended.err.contains("the kernel throttled it\\x1b[2J"),
        "{}",
        ended.err
    );
}

#[test]
fn a_capture_that_ended_early_is_partial_and_written() {
    let running = FakeAgent::start(Behaviour {
        degraded: true,
        ..Behaviour::default()
    });
    let ended = ask(&running, &["capture", "--quiet"]);
    assert_eq!((ended.code, samples(&ended.out)), (6, 1000));
    let expected = "agent-ctl: ended after 10 s: the captured process ended";
    assert!(
        ended.err.lines().any(|line| line == expected),
        "{}",
        ended.err
    );
}

#[test]
fn a_capture_without_samples_writes_nothing() {
    let running = empty();
    let file = running.dir().join("x.svg");
    let ended = ask(&running, &["capture", "-o", file.to_str().unwrap()]);
    assert_eq!(ended.code, 6);
    assert!(!file.exists());
    assert!(
        ended.err.contains("no samples: nothing written"),
        "{}",
        ended.err
    );
}

#[test]
fn the_past_of_the_same_unit_is_added() {
    let ended = ask(&sound(), &["capture", "--before", "5m"]);
    assert_eq!(ended.code, 0, "{}", ended.all());
    // The fake's past has its last hundred samples twice.
    assert_eq!(samples(&ended.out), 1000 + 1100);
}

#[test]
fn the_past_of_another_unit_goes_beside_the_capture() {
    let running = sound();
    let file = running.dir().join("x.folded");
    let mut args = vec!["capture", "--event", "page-faults", "--before", "5m"];
    let printed = ask(&running, &args);
    assert_eq!(
        (printed.code, samples(&printed.out)),
        (6, 1000),
        "{}",
        printed.err
    );
    assert!(
        printed.err.contains("give a file with -o"),
        "{}",
        printed.err
    );
    args.extend(["-o", file.to_str().unwrap()]);
    let ended = ask(&running, &args);
    assert_eq!(ended.code, 0, "{}", ended.all());
    let read = |name: &str| std::fs::read_to_string(running.dir().join(name)).unwrap();
    assert_eq!(samples(&read("x.folded")), 1000);
    assert_eq!(samples(&read("x.past.folded")), 1100);
}

#[test]
fn what_the_agent_refuses_is_told_with_what_to_do() {
    let ended = ask(&sound(), &["capture", "--event", "cycles"]);
    assert_eq!(ended.code, 2, "{}", ended.all());
    assert!(ended.err.contains("\n  use cpu-clock"), "{}", ended.err);
    let ended = ask(&sound(), &["capture", "--rate", "10000"]);
    assert_eq!(ended.code, 2);
    let ended = ask(&sound(), &["capture", "--rate", "9", "--period", "9"]);
    assert_eq!(ended.code, 2);
}

#[test]
fn captures_are_listed_and_cancelled() {
    let listed = ask(&sound(), &["captures"]);
    assert_eq!(listed.code, 0, "{}", listed.all());
    for text in ["complete", "1,000", "uid=0", "INC-12", "host"] {
        assert!(listed.out.contains(text), "{}", listed.out);
    }
    let as_json = ask(&sound(), &["captures", "--json"]);
    let all: serde_json::Value = serde_json::from_str(&as_json.out).unwrap();
    assert_eq!(all[0]["id"], 7);
    assert_eq!(all[0]["state"], "complete");
    assert_eq!(ask(&sound(), &["captures", "cancel", "7"]).code, 0);
    let unknown = ask(&sound(), &["captures", "cancel", "8"]);
    assert_eq!(unknown.code, 2, "{}", unknown.all());
}

#[test]
fn a_command_needs_a_file_for_its_profile_and_no_past() {
    let running = sound();
    for (args, expected) in [
        (&["capture", "--", "true"] as &[&str], "give a file with -o"),
        (
            &["capture", "-o", "/dev/null", "--before", "1m", "--", "true"],
            "before it starts there is nothing of it",
        ),
        (
            &[
                "--agent",
                "10.0.0.1:1",
                "capture",
                "-o",
                "/dev/null",
                "--",
                "true",
            ],
            "the agent is on another",
        ),
    ] {
        let ended = ask(&running, args);
        assert_eq!((ended.code, ended.out.as_str()), (2, ""), "{}", ended.all());
        assert!(ended.err.contains(expected), "{}", ended.err);
    }
}

#[test]
fn events_to_sample_are_listed_by_a_glob() {
    let ended = ask(&sound(), &["capture", "--list-events", "page-*"]);
    assert!(ended.out.contains("page-faults"), "{}", ended.all());
    assert!(!ended.out.contains("cpu-clock"), "{}", ended.out);
    let ended = ask(&sound(), &["capture", "--list-events", "nosuch*"]);
    assert_eq!((ended.code, ended.out.as_str()), (2, ""), "{}", ended.all());
}
