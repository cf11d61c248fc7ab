//! Profile types of other senders: what is said of them, and what is refused.

use super::{json, refused, sound};
use crate::{command, run};

const HEAP: &str = "memory:inuse_space:bytes:space:bytes";

/// Sum of the numbers at the ends of folded stacks.
fn folded_sum(text: &str) -> u64 {
    let numbers = text.lines().filter_map(|line| line.rsplit(' ').next());
    numbers
        .filter_map(|number| number.parse::<u64>().ok())
        .sum()
}

#[test]
fn a_summary_has_series_where_agents_have_hosts() {
    let ended = sound().ask(&["profile", "--type", HEAP]);
    assert!(
        ended.err.contains("senders 3 series, steps of 10 s"),
        "{}",
        ended.err
    );
    assert!(!ended.err.contains("hosts"), "{}", ended.err);
    let ended = sound().ask(&["diff", "--type", HEAP, "--before", "-1h..-30m"]);
    assert!(
        ended.err.contains("before: senders 3 series"),
        "{}",
        ended.err
    );
    assert!(!ended.err.contains("4 hosts"), "{}", ended.err);
}

#[test]
fn a_summary_of_captures_has_the_hosts_that_captured() {
    let waits = "captured:off_cpu:nanoseconds:off_cpu:nanoseconds";
    for args in [
        &["profile", "--type", waits][..],
        &["diff", "--type", waits, "--before", "-1h..-30m"],
    ] {
        let ended = sound().ask(args);
        assert!(ended.err.contains(" hosts, steps of 10 s"), "{}", ended.err);
        assert!(!ended.err.contains("senders"), "{}", ended.err);
    }
}

#[test]
fn a_type_of_a_file_a_pin_or_a_capture_is_refused() {
    let running = sound();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.folded");
    std::fs::write(&path, "main;work 5\n").unwrap();
    let path = path.to_str().unwrap();
    for side in [path, "pin:3", "pin-captured:3", "capture:1"] {
        for args in [["--before", side], ["--after", side]] {
            let both = match args[0] {
                "--before" => [&["diff", "--type", HEAP][..], &args].concat(),
                _ => [
                    &["diff", "--type", HEAP, "--before", "-1h..-30m"][..],
                    &args,
                ]
                .concat(),
            };
            refused(&running.ask(&both), 2, "failed to use --type with");
        }
    }
    assert_eq!(running.calls("profile").len(), 0);
}

#[test]
fn graphs_are_of_what_was_sent_and_not_of_how_often() {
    let running = sound();
    let weight = json(&running.ask(&["profile", "--type", HEAP, "--json"]));
    let samples = weight["samples"].as_array().unwrap().iter();
    let weight: u64 = samples.map(|one| one["weight"].as_u64().unwrap()).sum();
    assert!(weight > 1_000_000);
    let folded = running.ask(&["profile", "--type", HEAP, "--format", "folded"]);
    assert_eq!(folded_sum(&folded.out), weight);
    let args = [
        "diff",
        "--type",
        HEAP,
        "--before",
        "-1h..-30m",
        "--format",
        "folded",
    ];
    assert_eq!(folded_sum(&running.ask(&args).out), weight);
    // Without a type they are samples, as ever.
    let args = ["diff", "--before", "-1h..-30m", "--format", "folded"];
    assert!(folded_sum(&running.ask(&args).out) < weight / 1000);
}

#[test]
fn a_series_has_the_unit_of_its_type() {
    let running = sound();
    let args = [
        "series", "--type", HEAP, "--by", "host", "--since", "4m", "--step", "1m",
    ];
    let ended = running.ask(&args);
    let heading = ended.out.lines().next().unwrap();
    assert!(
        heading.contains("BYTES/S") && !heading.contains("CORES"),
        "{}",
        ended.all()
    );
    // 4e9 bytes in a second.
    assert!(ended.out.contains("3.7 GiB"), "{}", ended.out);
    assert!(
        ended.err.contains("bytes/s from profiles of other senders"),
        "{}",
        ended.err
    );
    assert_eq!(
        running.calls("series"),
        [format!("[{HEAP}] by [\"host\"] accounted true")]
    );
    let answer = json(&running.ask(&[&args[..], &["--json"]].concat()));
    assert_eq!(
        (&answer["unit"], &answer["source"]),
        (&"bytes/s".into(), &"senders".into())
    );
    assert!(answer["lines"][0].get("cores").is_none(), "{answer}");
    assert!(answer["lines"][0]["rates"][2].is_null(), "{answer}");
    let csv = running.ask(&[&args[..], &["--format", "csv"]].concat());
    assert!(csv.out.starts_with("start,host,bytes/s\n"), "{}", csv.out);
    let wall = running.ask(&[
        "series",
        "--type",
        "wall:wall:nanoseconds::",
        "--since",
        "4m",
    ]);
    assert!(wall.err.contains("s/s from profiles"), "{}", wall.err);
}

#[test]
fn an_agent_has_no_types() {
    let ended = run(command("unix:/nobody", &["series", "--type", HEAP]));
    refused(&ended, 2, "failed to use --type");
}

#[test]
fn a_sender_with_a_scope_is_refused_before_anybody_is_asked() {
    let args = [
        "users", "add", "sdk", "--role", "sender", "--scope", "team=a",
    ];
    refused(&sound().ask(&args), 2, "with a scope it may not send");
}
