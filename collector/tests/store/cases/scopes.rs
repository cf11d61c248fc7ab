//! Answers to somebody with a scope: those of the selector with the scope in it, and nothing of
//! others beside them.

use crate::store::cases::random::{Question, draft, pushes, questions, rounds};
use crate::store::draft::{Draft, definitions, store_all, windows};
use crate::store::model::without_reports;
use crate::store::text::{lines, samples, short, totals};
use crate::store::{
    Engine, Fresh, NOW_NS, Place, SECOND, ample, at, bare, hour, names, query, range, scope,
};
use collector::access::{Caller, Role, Scope};
use collector::query::ScopedStore;
use collector::store::{
    HostFacts, HostKey, HostRecord, SAMPLE_LABELS, Store, StoreQueries, TimeRange,
};
use profile::{CostBy, FrameFilter, FrameFilterOp, GroupBy, Query, TopSort, key};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Scopes of random questions: of hosts, of what runs on them, and of both.
const SCOPES: &[&str] = &[
    "host=h1",
    "host=~\"h[12]\"",
    "unit=web",
    "cgroup^=/s/web",
    "host=h0,unit=~\"w.*\"",
    "namespace=nobody",
];

fn seen(store: &Fresh, text: &str) -> ScopedStore {
    let caller = Caller {
        name: "eve".to_owned(),
        role: Role::Viewer,
        scope: Some(Scope::parse(text).unwrap()),
    };
    let store: Arc<dyn Store> = store.shared();
    ScopedStore::new(store, &caller, NOW_NS)
}

fn and(text: &str, scope: &str) -> String {
    match text {
        "" => scope.to_owned(),
        text => format!("{text},{scope}"),
    }
}

fn record(host: &str, boot: u8) -> HostRecord {
    HostRecord {
        key: HostKey {
            host_id: format!("id-of-{host}"),
            boot_id: [boot; 16],
        },
        facts: HostFacts {
            hostname: host.to_owned(),
            ..HostFacts::default()
        },
        first_seen_unix_ns: at(0),
        last_seen_unix_ns: at(i64::from(boot)),
        clock_ahead_ns: 0,
    }
}

/// Names of the hosts that a scope has samples of in a range.
fn hosts_of(store: &Fresh, range: TimeRange, text: &str) -> BTreeSet<String> {
    let found = store.label_values(&scope(range, text), key::HOST, "", 100, &ample());
    found.unwrap().0.into_iter().collect()
}

fn ask(store: &Fresh, question: &Question, of: &str) {
    let (text, by) = question.texts();
    let both = and(text, of);
    let asked = question.range();
    let told = || format!("{question:?} within {of}");
    let eve = || seen(store, of);

    let answer = eve().profile(asked, &query(text, by), &ample()).unwrap();
    let expected = store.profile(asked, &query(&both, by), &ample()).unwrap();
    assert_eq!(samples(&answer.data), samples(&expected.data), "{}", told());
    assert_eq!(answer.quality.covered, expected.quality.covered);
    assert_eq!(answer.quality.total, expected.quality.total);
    assert_eq!(answer.quality.resolution, expected.quality.resolution);
    // Gaps are of hosts in the scope.
    let own: BTreeSet<String> = hosts_of(store, asked, of)
        .into_iter()
        .chain(
            ["h0", "h1", "h2"]
                .map(str::to_owned)
                .into_iter()
                .filter(|name| {
                    let scope = Scope::parse(of).unwrap();
                    scope.takes_host(name, &Default::default())
                }),
        )
        .map(|name| format!("id-of-{name}"))
        .collect();
    for (host, _) in &answer.quality.gaps {
        assert!(own.contains(&host.host_id), "{host:?}: {}", told());
    }
    assert!(answer.quality.hosts <= own.len() as u64, "{}", told());
    assert!(answer.quality.windows <= expected.quality.windows);
    for by_cost in [CostBy::Function, CostBy::Module] {
        let answer = eve().costs(asked, &query(text, by), by_cost, &ample());
        let expected = store.costs(asked, &query(&both, by), by_cost, &ample());
        let rows = |of: profile::Costs| of.into_top(TopSort::Total, usize::MAX);
        let (answer, expected) = (answer.unwrap().data, expected.unwrap().data);
        assert_eq!(rows(answer), rows(expected), "{}", told());
    }

    let (by, step_ns) = (names(by), question.step_s * SECOND as u64);
    let (own, both) = (scope(asked, text), scope(asked, &both));
    let answer = eve().series(&own, &by, step_ns, &ample()).unwrap();
    let expected = store.series(&both, &by, step_ns, &ample()).unwrap();
    assert_eq!(lines(&answer.data), lines(&expected.data), "{}", told());
    let bare = eve().series(&own, &by, step_ns, &bare()).unwrap();
    assert_eq!(bare, without_reports(answer.clone()), "{}", told());
    if !SAMPLE_LABELS.iter().any(|label| text.contains(label)) {
        let answer = eve().accounted(&own, &by, step_ns, &ample()).unwrap().data;
        let expected = store.accounted(&both, &by, step_ns, &ample()).unwrap().data;
        assert_eq!(answer.throttled, expected.throttled, "{}", told());
        // What a complete host waits for is for those alone who may see complete hosts.
        let scope = Scope::parse(of).unwrap();
        let mut hosts = answer.pressure.keys();
        let own = hosts.all(|host| scope.takes_host(host, &Default::default()));
        assert!(own, "{}", told());
    }
    for (step, expected) in answer.data.steps.iter().zip(&expected.data.steps) {
        assert!(step.hosts <= expected.hosts, "{}", told());
        assert!(step.covered_ns <= expected.covered_ns, "{}", told());
    }
    let answer = eve().totals(&own, &by, &ample()).unwrap();
    let expected = store.totals(&both, &by, &ample()).unwrap();
    assert_eq!(totals(&answer.data), totals(&expected.data), "{}", told());
    let answer = eve().label_names(&own, &ample()).unwrap();
    assert_eq!(answer, store.label_names(&both, &ample()).unwrap());
    for name in ["unit", "cgroup", "host", "comm"] {
        let answer = eve().label_values(&own, name, "", 100, &ample()).unwrap();
        let expected = store.label_values(&both, name, "", 100, &ample()).unwrap();
        assert_eq!(answer, expected, "{name}: {}", told());
    }
    // Hosts: no other than those, and of parts no more than the parts.
    let caller = Scope::parse(of).unwrap();
    let names = hosts_of(store, asked, of);
    for (record, _) in eve().hosts(asked, &ample()).unwrap() {
        let name = &record.facts.hostname;
        let whole = caller.takes_host(name, &Default::default());
        assert!(whole || names.contains(name), "{name}: {}", told());
    }
    let part: u64 = eve()
        .hosts(asked, &ample())
        .unwrap()
        .iter()
        .map(|(_, did)| did.total().weight)
        .sum();
    let expected = store.totals(&scope(asked, of), &[], &ample()).unwrap();
    assert_eq!(part, expected.quality.total.weight, "{}", told());
}

pub fn answers_within_a_scope_are_those_of_its_selector(engine: &dyn Engine, _: Box<dyn Place>) {
    let strategy = (pushes(), questions(), 0..SCOPES.len());
    rounds(2, &strategy, |(pushes, questions, first)| {
        let store = Fresh::of(engine.place().expect("it was there a moment ago"));
        let hosts = ["h0", "h1", "h2"].map(|host| [1, 2].map(|boot| record(host, boot)));
        store.put_hosts(hosts.as_flattened()).unwrap();
        for push in pushes {
            let drafts: Vec<_> = push.windows.iter().map(draft).collect();
            let taken = store.push(&windows(&drafts), &definitions(&drafts), NOW_NS);
            taken.unwrap();
        }
        for (at, question) in questions.iter().enumerate() {
            ask(&store, question, SCOPES[(first + at) % SCOPES.len()]);
        }
    });
}

/// `own` has samples of `unit=web`, and of others; `other` of others alone. Both are away for a
/// while.
fn two_hosts(place: Box<dyn Place>) -> Fresh {
    let store = Fresh::of(place);
    let window = |host: &str, number, start_s| {
        let draft = Draft::new(host, number, start_s)
            .row("unit=db,cgroup=/s/db", "main;kanarie", 4)
            .with(|window| {
                window.quality.idle = 7;
                window.quality.lost = 5;
            });
        match host {
            "own" => draft.row("unit=web,cgroup=/s/web", "main;work", 2),
            _ => draft,
        }
    };
    let mut drafts = Vec::new();
    for host in ["own", "other"] {
        drafts.push(window(host, 1, 0).lasting(60));
        drafts.push(window(host, 2, 120).lasting(60));
    }
    store_all(&*store, &drafts);
    let records = [record("own", 1), record("other", 1)];
    store.put_hosts(&records).unwrap();
    store
}

pub fn quality_tells_of_hosts_in_the_scope_alone(_: &dyn Engine, place: Box<dyn Place>) {
    let store = two_hosts(place);
    for (text, idle, weight) in [("host=own", 14, 6), ("unit=web", 0, 0)] {
        let eve = seen(&store, text);
        let found = eve.profile(hour(), &query("", &[]), &ample()).unwrap();
        let quality = found.quality;
        assert_eq!((quality.hosts, quality.hosts_alive), (1, 1), "{text}");
        assert_eq!(quality.windows, 2, "{text}");
        assert_eq!((quality.gaps.len(), quality.gaps_total), (1, 1), "{text}");
        assert_eq!(quality.gaps[0].0.host_id, "id-of-own");
        assert_eq!(quality.gap_ns_total, 60 * SECOND as u64);
        assert_eq!(quality.sampling.idle, idle, "{text}");
        assert_eq!(found.data.info.quality.idle, idle, "{text}");
        let of_all = scope(range(0, 60), "");
        let step = 60 * SECOND as u64;
        let found = eve.series(&of_all, &[], step, &ample()).unwrap();
        let step = found.data.steps[0];
        assert_eq!((step.hosts, step.covered_ns), (1, 60 * SECOND as u64));
        let period = crate::store::draft::PERIOD;
        assert_eq!(
            (step.weight, step.lost_weight),
            (weight * period, 0),
            "{text}"
        );
    }
    let nobody = seen(&store, "unit=none");
    let found = nobody.profile(hour(), &query("", &[]), &ample()).unwrap();
    assert_eq!((found.quality.hosts, found.quality.windows), (0, 0));
    assert_eq!(found.quality.gaps, []);
}

pub fn hosts_are_those_in_the_scope_with_what_is_in_it(_: &dyn Engine, place: Box<dyn Place>) {
    let store = two_hosts(place);
    for (text, count) in [("host=own", 12), ("unit=web", 4)] {
        let found = seen(&store, text).hosts(hour(), &ample()).unwrap();
        let [(record, did)] = &found[..] else {
            panic!("{text}: {found:?}");
        };
        assert_eq!(record.facts.hostname, "own", "{text}");
        assert_eq!((did.total().count, did.windows), (count, 2), "{text}");
        assert_eq!(did.sampling.taken, count, "{text}");
    }
    // One that is in the scope as a whole is told of when nothing came of it.
    let quiet = seen(&store, "host=other");
    let found = quiet.hosts(range(3000, 3600), &ample()).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].1.total().count, 0);
    let none = seen(&store, "unit=none").hosts(hour(), &ample()).unwrap();
    assert_eq!(none, []);
}

pub fn who_ended_a_wait_is_cut_off(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    let draft = Draft::new("a", 1, 0)
        .row("unit=web", "main;poll;[woken by kanarie];kanarie;entry", 3)
        .row("unit=web", "main;run", 1)
        .row("unit=db", "main;[woken by web];run", 9)
        .with(|window| window.event = profile::OFF_CPU.to_owned());
    store_all(&*store, &[draft]);
    let whole = seen(&store, "host=a");
    let found = whole.profile(hour(), &query("unit=web", &[]), &ample());
    let text = short(&found.unwrap().data);
    assert!(text[0].contains("kanarie"), "the waker ran there: {text:?}");

    let part = seen(&store, "unit=web");
    let found = part.profile(hour(), &query("", &[]), &ample()).unwrap();
    let expected = ["{} main;poll complete 3", "{} main;run complete 1"];
    assert_eq!(short(&found.data), expected);
    for by in [CostBy::Function, CostBy::Module] {
        let found = part.costs(hour(), &query("", &[]), by, &ample()).unwrap();
        let rows = found.data.into_top(TopSort::Total, usize::MAX).rows;
        let text = format!("{rows:?}");
        assert!(
            !text.contains("kanarie") && !text.contains("woken"),
            "{text}"
        );
    }
    // Filters find nothing of it, whatever they do with what they find.
    for (op, regex, expected) in [
        (FrameFilterOp::Keep, "kanarie", 0),
        (FrameFilterOp::Drop, "kanarie|entry", 4),
        (FrameFilterOp::Focus, "entry", 0),
        (FrameFilterOp::Keep, "poll", 3),
    ] {
        let filter = FrameFilter::new(op, regex).unwrap();
        let by = GroupBy::from_keys(&[] as &[&str]);
        let query = Query::new(Default::default(), vec![filter], by).unwrap();
        let found = part.profile(hour(), &query, &ample()).unwrap();
        assert_eq!(found.data.total().count, expected, "{op:?} {regex}");
        assert_eq!(found.quality.total.count, expected, "{op:?} {regex}");
        let costs = part.costs(hour(), &query, CostBy::Function, &ample());
        assert_eq!(
            costs.unwrap().data.total().count,
            expected,
            "{op:?} {regex}"
        );
    }
}

pub fn a_scope_leaves_room_for_fewer_matchers(_: &dyn Engine, place: Box<dyn Place>) {
    let store = two_hosts(place);
    let most: Vec<_> = (0..profile::FILTERS_MAX)
        .map(|at| format!("l{at}!=a"))
        .collect();
    let refused = seen(&store, "host=own").profile(hour(), &query(&most.join(","), &[]), &ample());
    let refused = refused.err().unwrap().to_string();
    assert!(refused.contains("your login's scope"), "{refused}");
}
