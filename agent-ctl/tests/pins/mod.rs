//! Tests what `agent-ctl pins` lists and shows.

use super::*;

#[test]
fn pins_as_a_table() {
    let ended = ask(&sound(), &["pins"]);
    assert_eq!(ended.code, 0, "{}", ended.all());
    let rows: Vec<&str> = ended.out.lines().collect();
    assert_eq!(rows.len(), 3, "{}", ended.out);
    assert!(rows[0].contains("FIRED"), "{}", rows[0]);
    // Newest first; a name from outside is escaped.
    assert!(
        rows[1].contains("pressure") && rows[1].contains("it was 51.2"),
        "{}",
        rows[1]
    );
    assert!(!ended.out.contains('\u{202e}'), "{}", ended.out);
    assert!(
        rows[2].contains("api-throttled") && rows[2].contains("host"),
        "{}",
        rows[2]
    );
    let ended = ask(&empty(), &["pins"]);
    assert_eq!((ended.code, ended.out.as_str()), (0, ""));
    assert!(ended.err.contains("no pins"), "{}", ended.err);
}

#[test]
fn pins_for_scripts() {
    let ended = ask(&sound(), &["pins", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    let (first, second) = (&json["pins"][0], &json["pins"][1]);
    assert_eq!(first["cgroup"], "/user.slice/a\u{202e}b\n");
    assert_eq!(first["open"], true);
    assert_eq!(second["cgroup"], serde_json::Value::Null);
    assert_eq!(second["fired"], "2026-11-20T14:00:00Z");
    assert_eq!(second["capture_bytes"], 1_200_000);
}

#[test]
fn a_pin_is_shown_as_a_profile_is() {
    let ended = ask(&sound(), &["pins", "show", "3", "--unit", "nginx"]);
    assert_eq!(ended.code, 0, "{}", ended.all());
    assert!(
        ended.out.contains("nginx;main;ngx_worker_process_cycle"),
        "{}",
        ended.out
    );
    assert!(
        ended
            .err
            .starts_with("api-throttled: nr_throttled > 5/s: it was 9.8\n"),
        "{}",
        ended.err
    );
    let check = |args: &[&str], expected: &str| {
        let ended = ask(&sound(), args);
        assert_eq!((ended.code, ended.out.as_str()), (2, ""));
        assert!(ended.err.contains(expected), "{}", ended.err);
    };
    check(&["pins", "show", "4"], "there is no pin with this name");
    check(
        &["pins", "show", "other/3"],
        "there is no pin with this name",
    );
    check(
        &["pins", "show", "x"],
        "expected HOST/NUMBER, as in `agent-ctl pins`",
    );
    check(&["pins", "show", "12", "--captured"], "it has none");
}

#[test]
fn two_pins_are_compared() {
    let running = sound();
    let ended = ask(
        &running,
        &["diff", "--before", "pin:3", "--after", "pin:12"],
    );
    assert!(matches!(ended.code, 0 | 6), "{}", ended.all());
    assert!(ended.out.contains("SELF BEFORE"), "{}", ended.all());
    for (side, expected) in [
        ("pin:4", "there is no pin with this name"),
        ("pin:x", "expected HOST/NUMBER"),
        ("pin-captured:12", "it has none"),
        ("capture:7", "an agent keeps none"),
        ("capture:x", "expected a whole number"),
    ] {
        let ended = ask(&running, &["diff", "--before", side, "--after", "pin:3"]);
        assert_eq!(
            (ended.code, ended.out.as_str()),
            (2, ""),
            "{side}: {}",
            ended.all()
        );
        assert!(ended.err.contains(expected), "{side}: {}", ended.err);
    }
}
