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
    // As its agent calls it: a ticket that names it means one incident.
    assert!(rows[1].starts_with("web-1/12 "), "{}", rows[1]);
    // Names from outside are escaped.
    assert!(!ended.out.contains(['\u{202e}', '\x1b']), "{}", ended.out);
    assert_eq!(running.calls("pins"), ["host=[web-1] trigger=[]"]);
    let listed = json(&running.ask(&["pins", "--json"]));
    assert_eq!(listed["pins"][0]["pin"], "web-1/12");
    assert_eq!(listed["pins"][0]["id"], 40);
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
    // The number is enough where one host has it, and the id of the host is a name too.
    for name in ["3", "id-1/3"] {
        let ended = running.ask(&["pins", "show", name, "--captured", "--unit", "nginx"]);
        assert_eq!(ended.code, 0, "{}", ended.all());
        assert!(
            ended.out.contains("nginx;main;ngx_worker_process_cycle"),
            "{}",
            ended.out
        );
    }
    // Its list may be cut: that of one host is shorter.
    let asked = ["host=[] trigger=[]", "host=[id-1] trigger=[]"];
    assert_eq!(running.calls("pins"), asked);
    let asked = ["41 captured=true times=false"; 2];
    assert_eq!(running.calls("pin"), asked);
    // The collector's own numbers are nobody's names.
    let ended = running.ask(&["pins", "show", "41"]);
    refused(&ended, 2, "there is no pin with this name");
}

#[test]
fn an_agent_has_no_pins_of_other_hosts() {
    let ended = run(command("unix:/x", &["pins", "--host", "web-1"]));
    refused(&ended, 2, "an agent has only its own");
}
