//! Tests the table of hosts, from what collector and agents report.

use super::*;

const S: i64 = 1_000_000_000;
const NOW: i64 = 1_000_000 * S;

fn host(id: &str, name: &str, seen_s: i64, weight: u64) -> Host {
    Host {
        host_id: id.to_owned(),
        last_seen_unix_ns: NOW - seen_s * S,
        windows: 1,
        weight,
        unit: TIME.to_owned(),
        facts: Some(HostFacts {
            hostname: name.to_owned(),
            ..HostFacts::default()
        }),
        ..Host::default()
    }
}

fn known(hosts: Vec<Host>, sort: Sort) -> HostList {
    let fleet = Fleet::of(proto::collector::DataQuality {
        covered: Some(proto::agent::TimeRange {
            start_unix_ns: NOW - 10 * S,
            end_unix_ns: NOW,
        }),
        ..Default::default()
    });
    let args = Args {
        action: None,
        when: When::default(),
        sort,
        trouble: false,
        gone_after: Duration::from_secs(3600),
        limit: None,
        form: Form::default(),
    };
    HostList::of(hosts, fleet, &Clock::at(NOW), &args)
}

fn names(known: &HostList) -> Vec<&str> {
    let rows = known.rows.iter();
    rows.map(|row| row.facts.hostname.as_str()).collect()
}

#[test]
fn a_host_is_alive_then_silent_then_gone() {
    let hosts = vec![
        host("1", "a", 180, 0),
        host("2", "b", 181, 0),
        host("3", "c", 3601, 0),
        host("4", "d", -60, 0),
    ];
    let known = known(hosts, Sort::Name);
    let states: Vec<State> = known.rows.iter().map(|row| row.state).collect();
    let expected = [State::Alive, State::Silent, State::Gone, State::Alive];
    assert_eq!(states, expected);
    assert_eq!(known.troubled(), 1);
}

#[test]
fn an_agent_that_was_stopped_is_trouble_once_the_collector_warns() {
    let stopped = |id: &str, severity: Severity, warnings: &[&str]| Host {
        degradations: vec![proto::agent::Degradation {
            id: STOPPED.to_owned(),
            severity: severity.into(),
            ..Default::default()
        }],
        warnings: warnings.iter().map(|&text| text.to_owned()).collect(),
        ..host(id, id, 1000, 0)
    };
    let hosts = vec![
        stopped("1", Severity::Info, &[]),
        stopped("2", Severity::Warning, &["not back"]),
    ];
    let known = known(hosts, Sort::Name);
    let troubled: Vec<bool> = known.rows.iter().map(Row::is_troubled).collect();
    assert_eq!(troubled, [false, true]);
    assert_eq!(known.rows[1].state, State::Stopped);
}

#[test]
fn boots_of_a_host_are_one_row_of_the_newest() {
    let old = Host {
        warnings: vec!["x".into(), "y".into()],
        ..host("1", "old", 900, 5)
    };
    let new = Host {
        warnings: vec!["x".into()],
        ..host("1", "new", 1, 7)
    };
    for hosts in [vec![old.clone(), new.clone()], vec![new, old]] {
        let known = known(hosts, Sort::Name);
        assert_eq!(names(&known), ["new"]);
        let row = &known.rows[0];
        assert_eq!(
            (row.boots, row.host.weight, row.state),
            (2, 12, State::Alive)
        );
        assert_eq!(row.host.warnings, ["x", "y"]);
    }
}

#[test]
fn hosts_are_sorted_as_asked() {
    let hosts = vec![
        host("1", "b", 5, 1),
        host("2", "a", 9, 2),
        host("3", "c", 1, 3),
    ];
    assert_eq!(names(&known(hosts.clone(), Sort::Name)), ["a", "b", "c"]);
    assert_eq!(names(&known(hosts.clone(), Sort::Cpu)), ["c", "a", "b"]);
    assert_eq!(names(&known(hosts, Sort::Seen)), ["a", "b", "c"]);
}

#[test]
fn cycles_are_not_taken_for_time() {
    let with = |unit: &str, host: Host| Host {
        unit: unit.to_owned(),
        ..host
    };
    let ten_s = 10 * S as u64;
    let hosts = vec![
        host("1", "time", 1, 2 * ten_s),
        with(units::CYCLES, host("2", "cycles", 1, 7 * ten_s)),
        with("", host("3", "unknown", 1, 9000)),
        with("", host("4", "idle", 1, 0)),
    ];
    let known = known(hosts.clone(), Sort::Cpu);
    assert_eq!(names(&known), ["time", "cycles", "unknown", "idle"]);
    let used = known.rows.iter();
    let used: Vec<_> = used.map(|row| known.used_by(&row.host)).collect();
    assert_eq!(used, ["2.00", "7.00 Gc/s", "9,000", "0.00"]);
    let line = known.line();
    let all = "2.00 CPUs in use and 9,000 in an unknown unit and 7.00 Gc/s,";
    assert!(line.contains(all), "{line}");
}

#[test]
fn what_a_host_did_without_a_window_is_not_known() {
    let silent = |id: &str| Host {
        windows: 0,
        ..host(id, id, 1, 0)
    };
    let none = known(vec![silent("1"), silent("2")], Sort::Name);
    let row = &none.rows[0].host;
    assert_eq!((none.used_by(row).as_str(), none.cpus_of(row)), ("-", None));
    let line = none.line();
    assert!(line.contains("CPU use unknown"), "{line}");
    assert!(!line.contains("0.00"), "{line}");
    // A window without samples is an idle host.
    let idle = known(vec![silent("1"), host("2", "idle", 1, 0)], Sort::Name);
    let used: Vec<_> = idle
        .rows
        .iter()
        .map(|row| idle.used_by(&row.host))
        .collect();
    assert_eq!(used, ["-", "0.00"]);
    assert!(idle.line().contains("0.00 CPUs in use"), "{}", idle.line());
}

#[test]
fn boots_in_different_units_are_not_added_up_as_one() {
    let cycles = |weight| Host {
        unit: units::CYCLES.to_owned(),
        ..host("1", "a", 1, weight)
    };
    let unit = |one: Host, other: Host| {
        let known = known(vec![one, other], Sort::Name);
        known.rows[0].host.unit.clone()
    };
    assert_eq!(unit(host("1", "a", 9, 5), cycles(7)), "");
    assert_eq!(unit(host("1", "a", 9, 0), cycles(7)), units::CYCLES);
    assert_eq!(unit(host("1", "a", 9, 5), cycles(0)), TIME);
}

#[test]
fn a_clock_is_said_when_it_is_wrong() {
    for (ns, expected) in [
        (0, "ok"),
        (-999_999_999, "ok"),
        (90 * S, "+1 min 30 s"),
        (-2 * S, "-2 s"),
        (i64::MIN, "-106751 d 23 h"),
    ] {
        assert_eq!(ahead(ns), expected);
    }
}
