//! Every query of the trait against what the model or the eye says.

use crate::store::draft::{Draft, PERIOD, definitions, push, store_all, windows};
use crate::store::model::Model;
use crate::store::text::{assert_adds_up, lines, samples, short, totals};
use crate::store::{
    Engine, Fresh, NOW_NS, Place, SECOND, ample, at, hour, names, query, range, scope, whole_hour,
};
use collector::store::{
    HostFacts, HostKey, HostRecord, LabelSet, LabelTotals, Series, StoreError, StoreQueries as _,
    ThrottledCgroup, TimeRange,
};
use profile::{Coverage, FrameFilter, FrameFilterOp, GroupBy, Query, StackEnd, Value};

/// Two hosts with services, cgroups and losses, over half an hour.
fn fleet() -> Vec<Draft> {
    let mut drafts = Vec::new();
    for (host, weight) in [("a", 1), ("b", 2)] {
        for window in 0..12u64 {
            let draft = Draft::new(host, window, window as i64 * 150)
                .row(
                    "unit=web,comm=nginx,cgroup=/s/web",
                    "main;serve;do_read",
                    weight + window,
                )
                .row("unit=web,comm=php,cgroup=/s/web", "main;run", weight)
                .row(
                    "unit=db,comm=pg,cgroup=/s/db",
                    "main;query;do_read",
                    2 * weight,
                )
                .row("unit=db,comm=pg,cgroup=/s/db", "", 1)
                .row("comm=init,cgroup=/", "init", 1)
                .ended(
                    "unit=web,comm=nginx,cgroup=/s/web",
                    "serve",
                    StackEnd::BrokenChain,
                    1,
                )
                .lost("cgroup=/s/web,unit=web", window % 3)
                .account("/", 100 * PERIOD, 0)
                .account("/s/web", 60 * PERIOD, 10 * PERIOD)
                .throttled(90 * PERIOD, 200)
                .account("/s/db", 20 * PERIOD, 0)
                .pressure(PERIOD * window, PERIOD, weight);
            drafts.push(draft);
        }
    }
    drafts
}

/// The fleet in the store and in a model.
fn both(place: Box<dyn Place>) -> (Fresh, Model) {
    let (store, model) = (Fresh::of(place), Model::default());
    store_all(&*store, &fleet());
    store_all(&model, &fleet());
    (store, model)
}

pub fn every_matcher_selects_as_it_says(_: &dyn Engine, place: Box<dyn Place>) {
    let (store, model) = both(place);
    for text in [
        "",
        "unit=web",
        "unit!=web",
        "unit=\"\"",
        "unit!=\"\"",
        "unit=~\"w.*|d.\"",
        "unit=~\"w\"",
        "unit!~\"w.*\"",
        "unit=~\".*\"",
        "unit!~\".+\"",
        "cgroup^=/s",
        "cgroup^=/",
        "cgroup^=/s/we",
        "cgroup^=/s/web",
        "host=a,comm!=nginx",
        "host=~\"[ab]\",unit=db",
        "nolabel=\"\"",
        "nolabel=x",
        "comm=nobody",
    ] {
        let query = query(text, &["*"]);
        let answer = store.profile(hour(), &query, &ample()).unwrap();
        let expected = model.profile(hour(), &query, &ample()).unwrap();
        assert_eq!(samples(&answer.data), samples(&expected.data), "{text}");
        assert_eq!(answer.quality.total, expected.quality.total, "{text}");
    }
}

pub fn every_grouping_keeps_its_labels(_: &dyn Engine, place: Box<dyn Place>) {
    let (store, model) = both(place);
    for group_by in [
        &[][..],
        &["unit"],
        &["unit", "host"],
        &["comm", "unit", "cgroup", "host"],
        &["nolabel"],
        &["*"],
    ] {
        let of_query = query("", group_by);
        let answer = store.profile(hour(), &of_query, &ample()).unwrap();
        let expected = model.profile(hour(), &of_query, &ample()).unwrap();
        assert_eq!(
            samples(&answer.data),
            samples(&expected.data),
            "{group_by:?}"
        );
        assert_adds_up(&answer);
        let (scope, group_by) = (scope(hour(), ""), names(group_by));
        let answer = store.series(&scope, &group_by, 600 * SECOND as u64, &ample());
        let expected = model.series(&scope, &group_by, 600 * SECOND as u64, &ample());
        assert_eq!(lines(&answer.unwrap().data), lines(&expected.unwrap().data));
    }
}

pub fn frame_filters_apply_in_order(_: &dyn Engine, place: Box<dyn Place>) {
    let (store, model) = both(place);
    let filter = |op, pattern| FrameFilter::new(op, pattern).unwrap();
    let sets = [
        vec![filter(FrameFilterOp::Keep, "^serve$")],
        vec![filter(FrameFilterOp::Drop, "read")],
        vec![filter(FrameFilterOp::Keep, r"^JS:\*")],
        vec![filter(FrameFilterOp::Focus, "serve|query")],
        vec![
            filter(FrameFilterOp::Collapse, "serve|do_"),
            filter(FrameFilterOp::Drop, "do_"),
        ],
        vec![filter(FrameFilterOp::Keep, "no such function")],
    ];
    for filters in sets {
        let query = Query::new(
            "unit!=x".parse().unwrap(),
            filters,
            GroupBy::from_keys(&["unit"]),
        );
        let query = query.unwrap();
        let answer = store.profile(hour(), &query, &ample()).unwrap();
        let expected = model.profile(hour(), &query, &ample()).unwrap();
        assert_eq!(samples(&answer.data), samples(&expected.data));
        assert_eq!(answer.quality.total, expected.quality.total);
        assert_eq!(answer.quality.sampling, expected.quality.sampling);
    }
}

pub fn stack_ends_stay_apart(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    let mut draft = Draft::new("a", 1, 0)
        .row("unit=u", "main;[other]", 5)
        .row("unit=u", "?x", 2);
    for &end in StackEnd::ALL {
        let stack = if end == StackEnd::Lost {
            "[lost]"
        } else {
            "main"
        };
        draft = draft.ended("unit=u", stack, end, 1 << (end as u64 + 3));
    }
    store_all(&*store, &[draft]);
    let answer = whole_hour(&*store);
    assert_eq!(answer.data.samples.len(), StackEnd::ALL.len() + 2);
    for (key, value) in &answer.data.samples {
        if value.count >= 8 {
            assert_eq!(value.count, 1 << (key.end as u64 + 3), "{:?}", key.end);
        }
    }
    let sampling = answer.quality.sampling;
    let counts = |of: fn(StackEnd) -> bool| -> u64 {
        let ends = StackEnd::ALL.iter().filter(|&&end| of(end));
        ends.map(|&end| 1 << (end as u64 + 3)).sum()
    };
    assert_eq!(sampling.lost_samples, counts(|end| end == StackEnd::Lost));
    assert_eq!(sampling.taken, 7 + counts(|end| end != StackEnd::Lost));
    assert_eq!(sampling.truncated, counts(StackEnd::is_truncated));
    assert_eq!(
        sampling.depth_limit,
        counts(|end| end == StackEnd::DepthLimit)
    );
    assert_eq!((sampling.folded, sampling.unnamed), (5, 2));
}

pub fn ranges_are_half_open(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    let drafts: Vec<_> = (0..6)
        .map(|at| Draft::new("a", at, at as i64 * 600).row("unit=u", "f", 1 << at))
        .collect();
    store_all(&*store, &drafts);
    for (from, to, expected) in [
        (0, 600, 0b1),
        (600, 1800, 0b110),
        (0, 3600, 0b111_111),
        (3600, 7200, 0),
        (-600, 0, 0),
        (3000, 90_000, 0b100_000),
    ] {
        let answer = store
            .profile(range(from, to), &Query::default(), &ample())
            .unwrap();
        assert_eq!(answer.quality.total.count, expected, "{from}..{to}");
        assert_eq!(answer.quality.covered, range(from, to));
        assert_eq!(answer.data.total().count, expected);
    }
}

pub fn ranges_that_make_no_sense_are_empty(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    store_all(&*store, &[Draft::new("a", 1, 0).row("unit=u", "f", 1)]);
    let ends = [(i64::MAX, i64::MIN), (at(10), at(0)), (at(0), at(0))];
    for (start_unix_ns, end_unix_ns) in ends {
        let range = TimeRange {
            start_unix_ns,
            end_unix_ns,
        };
        let answer = store.profile(range, &Query::default(), &ample()).unwrap();
        assert_eq!(answer.quality.total, Value::default());
        assert_eq!(
            store.label_names(&scope(range, ""), &ample()).unwrap(),
            [""; 0]
        );
    }
    let all = TimeRange {
        start_unix_ns: i64::MIN,
        end_unix_ns: i64::MAX,
    };
    let answer = store.profile(all, &Query::default(), &ample()).unwrap();
    assert_eq!(answer.quality.total.count, 1);
}

pub fn steps_start_at_multiples(_: &dyn Engine, place: Box<dyn Place>) {
    let (store, model) = both(place);
    for (from, to, step_s) in [
        (0, 1800, 150),
        (0, 1800, 600),
        (0, 3600, 3600),
        (600, 1200, 60),
        (60, 1260, 120),
        (0, 1800, 420),
    ] {
        let (scope, by) = (scope(range(from, to), "unit=~\".+\""), names(&["unit"]));
        let step_ns = step_s * SECOND as u64;
        let answer = store.series(&scope, &by, step_ns, &ample()).unwrap();
        let covered = answer.quality.covered;
        assert!(covered.start_unix_ns <= at(from) && covered.end_unix_ns >= at(to));
        let of_model = crate::store::scope(covered, "unit=~\".+\"");
        let expected = model.series(&of_model, &by, step_ns, &ample()).unwrap();
        assert_eq!(
            answer.data.start_unix_ns, expected.data.start_unix_ns,
            "{step_s}"
        );
        assert_eq!(answer.data.start_unix_ns.rem_euclid(step_ns as i64), 0);
        assert_eq!(answer.data.step_ns, step_ns);
        assert_eq!(
            lines(&answer.data),
            lines(&expected.data),
            "{from}..{to} by {step_s}"
        );
        assert_eq!(answer.quality.total, expected.quality.total);
        let by = names(&["cgroup", "host"]);
        let scope = crate::store::scope(range(from, to), "cgroup=~\"/|/s/.*\"");
        let of_model = crate::store::scope(covered, "cgroup=~\"/|/s/.*\"");
        let accounted = store.accounted(&scope, &by, step_ns, &ample()).unwrap();
        let expected = model.accounted(&of_model, &by, step_ns, &ample()).unwrap();
        assert!(!expected.data.lines.is_empty());
        let ordered = |mut lines: Vec<Series>| {
            lines.sort_by(|a, b| a.labels.cmp(&b.labels));
            lines
        };
        assert_eq!(
            ordered(accounted.data.lines),
            ordered(expected.data.lines),
            "accounts {from}..{to} by {step_s}"
        );
        assert_eq!(accounted.data.hosts, expected.data.hosts);
        assert!(!expected.data.throttled.is_empty());
        let by_labels = |mut cgroups: Vec<ThrottledCgroup>| {
            cgroups.sort_by(|a, b| a.labels.cmp(&b.labels));
            cgroups
        };
        assert_eq!(
            by_labels(accounted.data.throttled),
            by_labels(expected.data.throttled)
        );
        assert!(accounted.data.throttling_known);
        assert_eq!(accounted.data.pressure, expected.data.pressure);
        assert_eq!(accounted.quality.total, expected.quality.total);
        assert_eq!(accounted.quality.unit, "nanoseconds");
    }
}

pub fn lines_beyond_the_limit_are_added_up(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    let mut drafts = Vec::new();
    for window in 0..3u64 {
        let mut draft = Draft::new("a", window, window as i64 * 600);
        for unit in 0..8u64 {
            draft = draft.row(&format!("unit=u{unit}"), "f", (unit + 1) * 10 + window);
        }
        drafts.push(draft);
    }
    store_all(&*store, &drafts);
    let limits = collector::store::Limits {
        lines: 3,
        ..ample()
    };
    let (scope, by) = (scope(range(0, 1800), ""), names(&["unit"]));
    let answer = store
        .series(&scope, &by, 600 * SECOND as u64, &limits)
        .unwrap();
    let units: Vec<_> = answer
        .data
        .lines
        .iter()
        .map(|line| line.labels.get("unit"))
        .collect();
    assert_eq!(units, ["u7", "u6", "u5"]);
    assert_eq!(answer.data.rest_lines, 5);
    let rest: Vec<u64> = (0..3).map(|window| (150 + 5 * window) * PERIOD).collect();
    assert_eq!(answer.data.rest, rest);
    let lines = answer.data.lines.iter().flat_map(|line| &line.weights);
    let sum: u64 = lines.chain(&answer.data.rest).sum();
    assert_eq!(answer.quality.total.weight, sum);

    let answer = store.totals(&scope, &by, &limits).unwrap();
    let units: Vec<_> = answer
        .data
        .iter()
        .map(|row| row.labels.get("unit"))
        .collect();
    assert_eq!(units, ["u7", "u6", "u5"]);
    assert_eq!(answer.quality.total.weight, sum);
}

pub fn totals_have_taken_lost_and_expected(_: &dyn Engine, place: Box<dyn Place>) {
    let (store, model) = both(place);
    for (text, by) in [
        ("", &["cgroup"][..]),
        ("", &["cgroup", "host"]),
        ("host=a", &["cgroup", "unit"]),
        ("cgroup^=/s", &["cgroup"]),
        ("", &["*"]),
    ] {
        let (scope, by) = (scope(range(0, 1800), text), names(by));
        let answer = store.totals(&scope, &by, &ample()).unwrap();
        let expected = model.totals(&scope, &by, &ample()).unwrap();
        assert_eq!(
            totals(&answer.data),
            totals(&expected.data),
            "{text} by {by:?}"
        );
        assert_eq!(answer.quality.total, expected.quality.total);
    }
    let answer = store
        .totals(&scope(range(0, 150), ""), &names(&["cgroup"]), &ample())
        .unwrap();
    let of = |path: &str| {
        let mut rows = answer.data.iter();
        rows.find(|row| row.labels.get("cgroup") == path)
            .unwrap()
            .clone()
    };
    let periods = |count: i64| count * PERIOD as i64;
    assert_eq!(of("/").expected_ns, periods(2 * (100 - 60 - 20)));
    assert_eq!(of("/s/web").expected_ns, periods(120));
    assert_eq!(of("/s/web").estimated_ns, periods(20));
    assert_eq!(of("/s/web").taken.count, 3 + 5);
}

pub fn totals_and_stacks_add_up_to_the_same(_: &dyn Engine, place: Box<dyn Place>) {
    let (store, _) = both(place);
    for text in ["", "unit=web", "host=b,comm=pg", "unit=none"] {
        let profile = store.profile(hour(), &query(text, &[]), &ample()).unwrap();
        let scope = scope(hour(), text);
        let totals = store.totals(&scope, &names(&["comm"]), &ample()).unwrap();
        let series = store
            .series(&scope, &[], 60 * SECOND as u64, &ample())
            .unwrap();
        let mut sum = Value::default();
        for row in &totals.data {
            sum += row.taken;
            sum += row.lost;
        }
        assert_eq!(sum, profile.quality.total, "{text}");
        assert_eq!(totals.quality.total, profile.quality.total, "{text}");
        assert_eq!(series.quality.total, profile.quality.total, "{text}");
        let weights = series.data.lines.iter().flat_map(|line| &line.weights);
        assert_eq!(weights.sum::<u64>(), sum.weight, "{text}");
        assert_adds_up(&profile);
    }
}

pub fn labels_are_those_of_the_selection(_: &dyn Engine, place: Box<dyn Place>) {
    let (store, _) = both(place);
    let late = Draft::new("c", 1, 5400).row("late=yes", "f", 1);
    store_all(&*store, &[late]);
    let of = |range, text| store.label_names(&scope(range, text), &ample()).unwrap();
    assert_eq!(of(hour(), ""), ["cgroup", "comm", "host", "unit"]);
    assert_eq!(of(hour(), "comm=init"), ["cgroup", "comm", "host"]);
    assert_eq!(of(range(3600, 7200), ""), ["host", "late"]);
    assert_eq!(of(range(0, 7200), "late=yes"), ["host", "late"]);
    assert_eq!(of(range(1800, 3600), ""), [""; 0]);
}

pub fn values_are_found_by_prefix(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    let mut draft = Draft::new("a", 1, 0);
    for unit in [
        "web-1", "web-2", "web-3", "Web", "db", "we", "ä", "%", "w_b", "w%",
    ] {
        draft = draft.row(&format!("unit={unit}"), "f", 1);
    }
    store_all(&*store, &[draft]);
    let of = |text, prefix, limit| {
        let scope = scope(hour(), text);
        store
            .label_values(&scope, "unit", prefix, limit, &ample())
            .unwrap()
    };
    assert_eq!(
        of("", "web-", 9),
        (names(&["web-1", "web-2", "web-3"]), false)
    );
    assert_eq!(
        of("", "web-", 3),
        (names(&["web-1", "web-2", "web-3"]), false)
    );
    assert_eq!(of("", "web-", 2), (names(&["web-1", "web-2"]), true));
    assert_eq!(of("", "W", 9), (names(&["Web"]), false));
    assert_eq!(of("", "%", 9), (names(&["%"]), false));
    assert_eq!(of("", "w_", 9), (names(&["w_b"]), false));
    assert_eq!(of("", "ä", 9), (names(&["ä"]), false));
    assert_eq!(
        of("unit=~\"web-[12]\"", "", 9),
        (names(&["web-1", "web-2"]), false)
    );
    let all = [
        "%", "Web", "db", "w%", "w_b", "we", "web-1", "web-2", "web-3", "ä",
    ];
    assert_eq!(of("", "", 99), (names(&all), false));
    let none = store.label_values(&scope(hour(), ""), "nolabel", "", 9, &ample());
    assert_eq!(none.unwrap(), (Vec::new(), false));
}

fn record(host: &str, boot: u8, seen_s: i64) -> HostRecord {
    HostRecord {
        key: HostKey {
            host_id: format!("id-of-{host}"),
            boot_id: [boot; 16],
        },
        facts: HostFacts {
            hostname: host.to_owned(),
            kernel: "6.1.0".to_owned(),
            arch: "x86_64".to_owned(),
            cpus_online: 64,
            memory_bytes: 1 << 38,
            agent_version: "0.1.0".to_owned(),
            labels: [("region".to_owned(), "eu'\"\\".to_owned())].into(),
            spool_windows: 3,
            spool_bytes: 4,
            spool_bytes_max: 5,
            spool_oldest_unix_ns: at(1),
            dropped_windows: 6,
            health: vec![0, 255, 7],
        },
        first_seen_unix_ns: at(0),
        last_seen_unix_ns: at(seen_s),
        clock_ahead_ns: -5,
    }
}

pub fn hosts_are_remembered(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    store.put_hosts(&[record("a", 1, 60)]).unwrap();
    store.put_hosts(&[record("a", 2, 70)]).unwrap();
    store.put_hosts(&[record("b", 1, 60)]).unwrap();
    let mut newer = record("b", 1, 90);
    newer.facts.kernel = "6.2.0".to_owned();
    newer.facts.labels.clear();
    store.put_hosts(std::slice::from_ref(&newer)).unwrap();
    let drafts = [
        Draft::new("a", 1, 0)
            .row("unit=u", "f", 3)
            .lost("unit=u", 2)
            .account("/", 100, 10)
            .account("/a", 60, 5),
        Draft::new("a", 2, 10).row("unit=u", "f", 1),
        Draft::new("a", 3, 60).row("unit=u", "f", 1),
        Draft::new("a", 4, 4000).row("unit=u", "f", 1),
    ];
    store_all(&*store, &drafts);
    let store = store.reopened();
    let hosts = store.hosts(range(0, 600), &ample()).unwrap();
    let records: Vec<_> = hosts.iter().map(|(record, _)| record.clone()).collect();
    assert_eq!(records, [record("a", 1, 60), record("a", 2, 70), newer]);
    let of_a = &hosts[0].1;
    assert_eq!(of_a.windows, 3);
    assert_eq!((of_a.taken.count, of_a.lost.count), (5, 2));
    let sampling = of_a.sampling;
    assert_eq!((sampling.taken, sampling.lost_samples), (5, 2));
    assert_eq!(of_a.windows_unmeasured, 2);
    let of_unmeasured = 2 * PERIOD;
    assert_eq!(
        (of_a.expected_ns, of_a.estimated_ns),
        (100 + of_unmeasured, 10 + of_unmeasured)
    );
    assert_eq!(of_a.gap_ns, (40 + 530) * SECOND as u64);
    assert_eq!((hosts[1].1.windows, hosts[2].1.windows), (0, 0));
}

pub fn hosts_and_totals_agree_on_what_was_covered(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    let drafts = [
        Draft::new("a", 1, 0)
            .row("cgroup=/a", "f", 3)
            .lost("cgroup=/a", 9)
            .account("/", 1_000, 10)
            .account("/a", 600, 5),
        Draft::new("a", 2, 10)
            .row("cgroup=/a", "f", 2)
            .account("/", 500, 0),
        Draft::new("b", 1, 0)
            .lost("cgroup=/b", 4)
            .account("/", 800, 0),
    ];
    for host in ["a", "b"] {
        store.put_hosts(&[record(host, 1, 60)]).unwrap();
    }
    store_all(&*store, &drafts);
    let store = store.reopened();
    let hosts = store.hosts(hour(), &ample()).unwrap();
    for (host, lost) in [("a", 9), ("b", 4)] {
        let scope = scope(hour(), &format!("host={host}"));
        let totals = store.totals(&scope, &[], &ample()).unwrap();
        let mut expected = Coverage::default();
        for row in &totals.data {
            expected.taken_ns += row.taken.weight;
            expected.expected_ns += row.expected_ns as u64;
            expected.estimated_ns += row.estimated_ns as u64;
        }
        let id = format!("id-of-{host}");
        let of_host = hosts.iter().find(|(record, _)| record.key.host_id == id);
        let (_, did) = of_host.unwrap();
        let coverage = did.coverage();
        assert_eq!(coverage.taken_ns, expected.taken_ns, "{host}");
        assert_eq!(coverage.expected_ns, expected.expected_ns, "{host}");
        assert_eq!(coverage.estimated_ns, expected.estimated_ns, "{host}");
        assert_eq!(coverage.share(), expected.share(), "{host}");
        assert_eq!(did.lost.count, lost, "{host}");
        assert!(did.total().weight > coverage.taken_ns, "{host}");
    }
}

pub fn windows_without_accounts_neither_raise_nor_lower_coverage(
    _: &dyn Engine,
    place: Box<dyn Place>,
) {
    let store = Fresh::of(place);
    // An agent has no accounts in its first windows. Half of what it could measure was taken.
    let drafts = [
        Draft::new("a", 1, 0)
            .row("cgroup=/a,unit=u", "f", 90)
            .row("cgroup=/,unit=v", "f", 10)
            .lost("cgroup=/a,unit=u", 30),
        Draft::new("a", 2, 10)
            .row("cgroup=/a,unit=u", "f", 10)
            .account("/", 20 * PERIOD, 0)
            .account("/a", 18 * PERIOD, 0),
    ];
    store.put_hosts(&[record("a", 1, 60)]).unwrap();
    store_all(&*store, &drafts);
    let store = store.reopened();
    let hosts = store.hosts(hour(), &ample()).unwrap();
    let coverage = hosts[0].1.coverage();
    assert_eq!(coverage.share(), Some(0.5), "{coverage:?}");
    assert_eq!((coverage.windows, coverage.windows_unmeasured), (2, 1));
    for by in [&[][..], &["cgroup"], &["*"]] {
        let totals = store.totals(&scope(hour(), ""), &names(by), &ample());
        let rows = totals.unwrap().data;
        let sum = |of: fn(&LabelTotals) -> i64| rows.iter().map(of).sum::<i64>() as u64;
        let of_totals = (sum(|row| row.expected_ns), sum(|row| row.estimated_ns));
        let of_host = (coverage.expected_ns, coverage.estimated_ns);
        assert_eq!(of_totals, of_host, "{by:?}");
    }
}

pub fn kept_is_from_the_first_window_to_the_last(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    assert_eq!(store.kept().unwrap(), None);
    store_all(&*store, &[Draft::new("a", 2, 600).row("unit=u", "f", 1)]);
    assert_eq!(store.kept().unwrap(), Some(range(600, 610)));
    store_all(&*store, &[Draft::new("b", 1, -600).lasting(20)]);
    assert_eq!(store.kept().unwrap(), Some(range(-600, 610)));
}

pub fn units_do_not_mix(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    let cycles = Draft::new("b", 1, 0).row("unit=u", "f", 1).with(|window| {
        window.unit = "cycles".to_owned();
        window.event = "cycles".to_owned();
    });
    store_all(
        &*store,
        &[Draft::new("a", 1, 0).row("unit=u", "f", 1), cycles],
    );
    let whole = store.profile(hour(), &query("", &[]), &ample());
    assert!(
        matches!(whole, Err(StoreError::Units(_))),
        "{:?}",
        whole.map(|of| of.quality)
    );
    for (host, unit) in [("a", "nanoseconds"), ("b", "cycles")] {
        let of_host = query(&format!("host={host}"), &[]);
        let answer = store.profile(hour(), &of_host, &ample()).unwrap();
        assert_eq!(answer.quality.unit, unit);
        assert_eq!(answer.data.info.unit, unit);
        assert_eq!(answer.quality.total.count, 1);
    }
}

pub fn an_empty_store_answers_with_nothing(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    let all = scope(hour(), "unit=web");
    let answer = whole_hour(&*store);
    assert_eq!(short(&answer.data), [""; 0]);
    assert_eq!((answer.quality.hosts, answer.quality.hosts_alive), (0, 0));
    assert_eq!(store.label_names(&all, &ample()).unwrap(), [""; 0]);
    let values = store.label_values(&all, "unit", "", 10, &ample()).unwrap();
    assert_eq!(values, (Vec::new(), false));
    let series = store
        .series(&all, &names(&["unit"]), 60 * SECOND as u64, &ample())
        .unwrap();
    assert_eq!(lines(&series.data), [].into());
    let rows = store.totals(&all, &names(&["unit"]), &ample()).unwrap();
    assert_eq!(totals(&rows.data), [].into());
    assert!(store.hosts(hour(), &ample()).unwrap().is_empty());
    assert!(store.issues().is_empty(), "{:?}", store.issues());
    store.maintain(NOW_NS).unwrap();
    // Nothing above may have left something behind that is in the way now.
    let draft = Draft::new("a", 1, 0).row("unit=web", "f", 1);
    let (window, stacks) = (
        windows(std::slice::from_ref(&draft)),
        definitions(std::slice::from_ref(&draft)),
    );
    store.push(&window, &stacks, NOW_NS).unwrap();
    assert_eq!(
        push(&*store, &[draft]),
        [collector::store::PushOutcome::Duplicate]
    );
    let by_unit = store.totals(&all, &names(&["unit"]), &ample()).unwrap();
    let web = LabelSet::new([("unit".to_owned(), "web".to_owned())]);
    assert_eq!(by_unit.data[0].labels, web);
}
