//! `agent-ctl pins` with a collector.

use super::{damaged, empty, json, refused, sound};
use crate::{command, run};

#[test]
fn pins_of_a_collector_say_whose_they_are() {
    let running = sound();
    let ended = running.ask(&["pins", "--host", "web-1"]);
    assert_eq!(ended.code, 0, "{}", ended.all());
    let rows: Vec<&str> = ended.out.lines().collect();
    assert_eq!(rows.len(), 3, "{}", ended.out);
    assert!(rows[0].contains("HOST"), "{}", rows[0]);
    let first = rows[1].trim_start();
    assert!(
        first.starts_with("40 ") && first.contains("web-1"),
        "{first}"
    );
    // Names from outside are escaped.
    assert!(!ended.out.contains(['\u{202e}', '\x1b']), "{}", ended.out);
    assert_eq!(running.asked("pins"), ["host=[web-1] trigger=[]"]);
    let listed = json(&running.ask(&["pins", "--json"]));
    assert_eq!(listed["pins"][0]["host"], "web-1");
    assert_eq!(listed["pins"][1]["host_id"], "id-1");
    assert_eq!(listed["pins"][0].get("at_collector"), None);
    let ended = empty().ask(&["pins"]);
    assert_eq!((ended.code, ended.out.as_str()), (0, ""));
}

#[test]
fn a_list_that_is_cut_says_so() {
    let ended = damaged().ask(&["pins"]);
    assert!(
        ended.err.contains("2 older pins are not listed"),
        "{}",
        ended.err
    );
    let listed = json(&damaged().ask(&["pins", "--json"]));
    assert_eq!(listed["left_out"], 2);
}

#[test]
fn a_pin_of_a_collector_is_shown_as_an_agents_is() {
    let running = sound();
    let ended = running.ask(&["pins", "show", "41", "--captured", "--unit", "nginx"]);
    assert_eq!(ended.code, 0, "{}", ended.all());
    assert!(
        ended.out.contains("nginx;main;ngx_worker_process_cycle"),
        "{}",
        ended.out
    );
    // By its number: a list may be cut.
    assert_eq!(running.asked("pins"), ["id=41"]);
    assert_eq!(running.asked("pin"), ["41 captured=true times=false"]);
    let ended = running.ask(&["pins", "show", "3"]);
    refused(&ended, 1, "there is none of this number");
}

#[test]
fn an_agent_has_no_pins_of_other_hosts() {
    let ended = run(command("unix:/x", &["pins", "--host", "web-1"]));
    refused(&ended, 2, "an agent has its own alone");
}
