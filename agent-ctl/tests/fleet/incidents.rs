//! Tests what is kept in incidents of a fleet, and where.

use super::{refused, sound};

/// What the collector was asked to keep by `incidents keep` with these arguments.
fn kept(args: &[&str]) -> (Vec<String>, Vec<String>) {
    let running = sound();
    let ended = running.ask(&[&["incidents", "keep"], args].concat());
    assert_eq!(ended.code, 0, "{}", ended.all());
    let said = "kept in incident 17: 1,200 samples";
    assert!(ended.err.contains(said), "{}", ended.all());
    (running.calls("open_incident"), running.calls("add_entry"))
}

#[test]
fn a_selection_is_kept_with_its_range() {
    let (opened, added) = kept(&["17", "--selector", "unit=\"a\"", "--since", "30m"]);
    assert_eq!(opened, [""; 0]);
    assert_eq!(added, ["17 view `unit=\"a\"` 1800..0 ``"]);
}

#[test]
fn a_comparison_is_kept_with_both_ranges() {
    let of = |baseline| kept(&["17", "--since", "30m", "--baseline", baseline]).1;
    assert_eq!(of("previous"), ["17 diff `` 3600..1800 `` 1800..0 ``"]);
    assert_eq!(of("yesterday"), ["17 diff `` 88200..86400 `` 1800..0 ``"]);
    assert_eq!(of("-3h..-2h"), ["17 diff `` 10800..7200 `` 1800..0 ``"]);
}

#[test]
fn a_new_incident_is_about_what_the_selector_equals() {
    let selector = "unit=\"a\", host=~\"w.*\"";
    let (opened, added) = kept(&["--new", "slow", "--selector", selector, "--since", "30m"]);
    assert_eq!(opened, ["`slow` {\"unit\": \"a\"}"]);
    assert_eq!(added.len(), 1);
    assert!(added[0].starts_with("17 view"), "{added:?}");
}

#[test]
fn what_to_keep_and_where_has_to_be_said() {
    let running = sound();
    for (args, why) in [
        (&["--since", "30m"][..], "<NUMBER>"),
        (&["17", "--new", "slow"], "--new"),
        (
            &["17", "--pin", "4", "--baseline", "previous"],
            "--baseline",
        ),
        (&["17", "--baseline", "tomorrow"], "yesterday"),
    ] {
        refused(
            &running.ask(&[&["incidents", "keep"], args].concat()),
            2,
            why,
        );
    }
    assert_eq!(running.calls("add_entry"), [""; 0]);
}
