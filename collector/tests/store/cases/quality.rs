//! What an answer says of itself: hosts, gaps, measured windows, losses.

use crate::store::draft::{Draft, store_all};
use crate::store::{Engine, Fresh, Place, SECOND, ample, at, query, range, whole_hour};
use collector::store::{Gap, HostKey, QueryResult, Store, TimeRange};
use profile::{Profile, Quality};

fn window(host: &str, sequence: u64, start_s: i64) -> Draft {
    Draft::new(host, sequence, start_s).row("unit=u", "f", 1)
}

fn first_ten_minutes(store: &dyn Store, selector: &str) -> QueryResult<Profile> {
    let query = query(selector, &[]);
    store.profile(range(0, 600), &query, &ample()).unwrap()
}

fn key(host: &str) -> HostKey {
    HostKey {
        host_id: format!("id-of-{host}"),
        boot_id: [1; 16],
    }
}

fn gap(range: TimeRange, windows: u64, samples: u64, cause: &str) -> Gap {
    Gap {
        range,
        windows,
        samples,
        cause: cause.to_owned(),
    }
}

pub fn a_gap_is_what_the_agent_gave_up(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    let dropped = gap(range(120, 240), 12, 3456, "spool_bytes");
    let after = window("a", 20, 240).with(|window| window.dropped_before = Some(dropped.clone()));
    let rest = window("a", 21, 250).lasting(350);
    store_all(&*store, &[window("a", 1, 0).lasting(120), after, rest]);
    let quality = first_ten_minutes(&*store, "").quality;
    assert_eq!(quality.gaps, [(key("a"), dropped)]);
    assert_eq!(
        (quality.gaps_total, quality.gap_ns_total),
        (1, 120 * SECOND as u64)
    );
    assert_eq!((quality.hosts, quality.hosts_alive), (1, 1));
}

pub fn a_gap_is_where_windows_are_absent(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    let mut drafts: Vec<_> = (0..6).map(|at| window("a", at, at as i64 * 10)).collect();
    drafts.extend((9..30).map(|at| window("a", at, at as i64 * 10)));
    drafts.extend((50..60).map(|at| window("a", at, at as i64 * 10)));
    store_all(&*store, &drafts);
    let quality = first_ten_minutes(&*store, "").quality;
    let expected = [
        (key("a"), gap(range(300, 500), 0, 0, "absent")),
        (key("a"), gap(range(60, 90), 0, 0, "absent")),
    ];
    assert_eq!(quality.gaps, expected, "longest first");
    assert_eq!(
        (quality.gaps_total, quality.gap_ns_total),
        (2, 230 * SECOND as u64)
    );
}

pub fn a_reboot_is_no_gap(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    let before = window("a", 1, 0).lasting(60);
    let after = window("a", 1, 300).boot(2).lasting(300);
    store_all(&*store, &[before, after]);
    let quality = first_ten_minutes(&*store, "").quality;
    assert_eq!(quality.gaps, []);
    assert_eq!((quality.gap_ns_total, quality.hosts), (0, 1));
}

pub fn hosts_alive_are_those_before_and_after(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    let drafts = [
        window("in", 1, 0).lasting(600),
        window("around", 1, -600).lasting(600),
        window("around", 2, 600).lasting(600),
        window("before", 1, -600).lasting(600),
        window("after", 1, 600).lasting(600),
    ];
    store_all(&*store, &drafts);
    let quality = first_ten_minutes(&*store, "").quality;
    assert_eq!((quality.hosts, quality.hosts_alive), (1, 2));
    assert_eq!(
        quality.gaps,
        [(key("around"), gap(range(0, 600), 0, 0, "absent"))]
    );
}

pub fn a_host_is_alive_under_the_labels_that_it_has(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    let of = |team: &str, sequence, start| {
        let labels = format!("team={team}");
        Draft::new("moved", sequence, start)
            .lasting(600)
            .row(&labels, "f", 1)
    };
    store_all(&*store, &[of("old", 1, -600), of("new", 2, 600)]);
    for (selector, alive) in [("", 1), ("host=moved", 1), ("team=old", 0), ("team=new", 0)] {
        let quality = first_ten_minutes(&*store, selector).quality;
        assert_eq!(
            (quality.hosts, quality.hosts_alive),
            (0, alive),
            "{selector}"
        );
    }
}

pub fn gaps_are_of_the_selected_hosts(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    let mut drafts = Vec::new();
    for host in ["a", "b"] {
        drafts.push(window(host, 1, 0).lasting(60));
        drafts.push(window(host, 2, 120).lasting(480));
    }
    store_all(&*store, &drafts);
    for (selector, hosts) in [
        ("", 2),
        ("host=a", 1),
        ("host=~\"[bc]\"", 1),
        ("host=none", 0),
    ] {
        let quality = first_ten_minutes(&*store, selector).quality;
        assert_eq!(quality.gaps_total, hosts, "{selector}");
        assert_eq!(quality.hosts_alive, hosts, "{selector}");
        assert_eq!(quality.hosts, hosts, "{selector}");
        assert_eq!(quality.windows, 2 * hosts, "{selector}");
    }
}

pub fn unmeasured_windows_are_counted(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    let drafts = [
        window("a", 1, 0).account("/", 5, 0),
        window("a", 2, 10),
        window("b", 1, 0),
    ];
    store_all(&*store, &drafts);
    let quality = whole_hour(&*store).quality;
    assert_eq!((quality.windows, quality.windows_unmeasured), (3, 2));
    assert_eq!((quality.hosts, quality.hosts_alive), (2, 2));
}

pub fn sampling_quality_is_added_up(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    let of = |sequence, host, factor: u64| {
        let start = sequence as i64 * 10;
        window(host, sequence, start)
            .lost("unit=u", factor)
            .with(|window| {
                window.quality = Quality {
                    idle: factor,
                    lost: 10 * factor,
                    throttled: 100 * factor,
                    malformed: 1000 * factor,
                    reduced: 10_000 * factor,
                    lost_late: 100_000 * factor,
                    // The store must ignore this: it counts from the rows, by label set.
                    taken: 77,
                    ..Quality::default()
                }
            })
    };
    store_all(&*store, &[of(1, "a", 1), of(2, "a", 2), of(1, "b", 5)]);
    let sampling = whole_hour(&*store).quality.sampling;
    let expected = Quality {
        taken: 3,
        lost_samples: 8,
        idle: 8,
        lost: 80,
        throttled: 800,
        malformed: 8000,
        reduced: 80_000,
        lost_late: 800_000,
        ..Quality::default()
    };
    assert_eq!(sampling, expected);
    assert_eq!(whole_hour(&*store).quality.covered.start_unix_ns, at(0));
}
