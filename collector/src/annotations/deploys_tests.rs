//! Tests what is detected as a deployment, and what is not.

use super::*;
use crate::access::Scope;
use crate::annotations::book::{Book, Seen};
use crate::annotations::limits::{KEPT_HOSTS_MAX, ROLLOUT_GAP_NS};
use crate::store::{HostKey, Origin, TimeRange};
use profile::Quality;

const NOW: i64 = 1_800_000_000_000_000_000;
const MINUTE: i64 = 60_000_000_000;

fn window(host: &str, start: i64, sets: &[&[(&str, &str)]]) -> NewWindow {
    let own = |text: &str| text.to_owned();
    let sets = sets.iter();
    NewWindow {
        origin: Origin {
            host: HostKey {
                host_id: own(host),
                boot_id: [0; 16],
            },
            sequence: 1,
        },
        range: TimeRange {
            start_unix_ns: start,
            end_unix_ns: start + 10_000_000_000,
        },
        event: String::new(),
        unit: String::new(),
        period: 0,
        quality: Quality::default(),
        label_sets: sets
            .map(|set| LabelSet::new(set.iter().map(|(name, value)| (own(name), own(value)))))
            .collect(),
        rows: Vec::new(),
        accounts: Vec::new(),
        pressure: None,
        dropped_before: None,
        stream: None,
    }
}

fn facts(host: &str, agent_version: &str) -> HostFacts {
    HostFacts {
        hostname: host.to_owned(),
        agent_version: agent_version.to_owned(),
        ..HostFacts::default()
    }
}

fn agent(deploys: &mut Deploys, host: &str, version: &str, now: i64) {
    deploys.agent(host, &facts(host, version), now);
}

/// What a host reports of a unit: build ids of modules since when.
fn reports(deploys: &mut Deploys, host: &str, unit: &str, builds: &[(&str, &str, i64)], now: i64) {
    let builds = builds.iter();
    let programs: Vec<Program> = builds
        .map(|&(module, build_id, since_unix_ns)| Program {
            labels: vec![("unit".to_owned(), unit.to_owned())],
            module: module.to_owned(),
            build_id: build_id.to_owned(),
            since_unix_ns,
        })
        .collect();
    deploys.programs(host, &facts(host, ""), &programs, now);
}

/// The same with one image in a namespace.
fn look(deploys: &mut Deploys, window: &NewWindow, now: i64) {
    deploys.look(&sights(window, now), now);
}

fn image(host: &str, start: i64, image: &str) -> NewWindow {
    window(host, start, &[&[("namespace", "shop"), ("image", image)]])
}

/// What is told since it was asked last: texts.
fn told(deploys: &mut Deploys) -> Vec<String> {
    let (notes, _) = deploys.take();
    let texts = notes.into_iter().filter_map(|note| match note {
        Note::Deploy { text, .. } => Some(text),
        _ => None,
    });
    texts.collect()
}

const OLD: &str = "0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a";
const NEW: &str = "0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b";

/// A service that has been there for an hour.
fn settled() -> Deploys {
    let mut deploys = Deploys::default();
    look(
        &mut deploys,
        &image("a", NOW - 60 * MINUTE, "r.io:5000/api:v41"),
        NOW - 60 * MINUTE,
    );
    assert_eq!(
        told(&mut deploys),
        [""; 0],
        "what is there first is no deploy"
    );
    deploys
}

#[test]
fn a_new_image_of_a_service_is_told_once_over_its_hosts() {
    let mut deploys = settled();
    look(
        &mut deploys,
        &image("a", NOW - MINUTE, "r.io:5000/api:v42"),
        NOW,
    );
    look(&mut deploys, &image("a", NOW, "r.io:5000/api:v42"), NOW);
    look(&mut deploys, &image("b", NOW, "r.io:5000/api:v42"), NOW);
    look(&mut deploys, &image("b", NOW, "r.io:5000/api:v41"), NOW);
    let (notes, untold) = deploys.take();
    assert_eq!(untold, Untold::default());
    let [
        Note::Deploy {
            text,
            labels,
            start,
            ..
        },
        Note::Also { .. },
    ] = &notes[..]
    else {
        panic!("{notes:?}");
    };
    assert_eq!(text, "r.io:5000/api: image v42 (was v41)");
    assert_eq!(*start, NOW - MINUTE, "the time of the window");
    let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    let expected = [("namespace", "shop"), ("image", "r.io:5000/api:v42")].map(own);
    assert_eq!(labels[..], expected);
}

#[test]
fn other_repositories_and_namespaces_are_other_services() {
    let mut deploys = settled();
    look(&mut deploys, &image("a", NOW, "r.io:5000/web:v42"), NOW);
    let elsewhere = window(
        "a",
        NOW,
        &[&[("namespace", "lab"), ("image", "r.io:5000/api:v42")]],
    );
    look(&mut deploys, &elsewhere, NOW);
    assert_eq!(told(&mut deploys), [""; 0]);
}

#[test]
fn what_a_service_runs_in_its_first_minutes_is_no_deploy() {
    let mut deploys = Deploys::default();
    look(&mut deploys, &image("a", NOW, "api:1"), NOW);
    look(&mut deploys, &image("b", NOW, "api:2"), NOW + 9 * MINUTE);
    look(&mut deploys, &image("c", NOW, "api:2"), NOW + 30 * MINUTE);
    assert_eq!(told(&mut deploys), [""; 0]);
    look(&mut deploys, &image("c", NOW, "api:3"), NOW + 30 * MINUTE);
    assert_eq!(told(&mut deploys), ["api: image 3 (was 2)"]);
}

#[test]
fn versions_are_labels_of_hosts_containers_and_pods() {
    for name in [
        "version",
        "container.label/version",
        "container.label/org.opencontainers.image.version",
        "pod.label/app.kubernetes.io/version",
    ] {
        assert!(is_version(name), "{name}");
    }
    for name in [
        "pod.label/apiversion",
        "image",
        "kversion",
        "pod.label/versions",
    ] {
        assert!(!is_version(name), "{name}");
    }
    let mut deploys = Deploys::default();
    let set = |version| [("unit", "api.service"), ("pod.label/version", version)];
    look(
        &mut deploys,
        &window("a", NOW, &[&set("1")]),
        NOW - 60 * MINUTE,
    );
    look(
        &mut deploys,
        &window("a", NOW, &[&set("2"), &set("2")]),
        NOW,
    );
    assert_eq!(told(&mut deploys), ["api.service: version 2 (was 1)"]);
    // A host's label is on all that runs there: that is one deploy.
    let all = |version| {
        let sets = [
            [("unit", "a.service"), ("version", version)],
            [("unit", "b.service"), ("version", version)],
        ];
        window("a", NOW, &[&sets[0], &sets[1]])
    };
    look(&mut deploys, &all("7"), NOW);
    look(&mut deploys, &all("8"), NOW + 60 * MINUTE);
    assert_eq!(told(&mut deploys), ["hosts: version 8 (was 7)"]);
}

#[test]
fn an_image_and_a_version_that_change_together_are_one_deploy() {
    let mut deploys = Deploys::default();
    let set = |tag| [("image", tag), ("container.label/version", tag)];
    look(
        &mut deploys,
        &window("a", NOW, &[&set("api:1")]),
        NOW - 60 * MINUTE,
    );
    look(&mut deploys, &window("a", NOW, &[&set("api:2")]), NOW);
    assert_eq!(told(&mut deploys).len(), 1);
}

#[test]
fn agents_that_change_are_told_once_a_version_and_again_when_they_are_taken_back() {
    let mut deploys = Deploys::default();
    for host in ["a", "b", "c"] {
        agent(&mut deploys, host, "0.1.0", NOW);
    }
    agent(&mut deploys, "new", "0.2.0", NOW);
    assert_eq!(told(&mut deploys), [""; 0], "hosts that come are no deploy");
    agent(&mut deploys, "a", "0.2.0", NOW);
    agent(&mut deploys, "b", "0.2.0", NOW + MINUTE);
    agent(&mut deploys, "b", "0.2.0", NOW + MINUTE);
    let (notes, _) = deploys.take();
    let also = notes
        .iter()
        .filter(|note| matches!(note, Note::Also { .. }));
    assert_eq!(also.count(), 1, "the second host is counted: {notes:?}");
    agent(&mut deploys, "a", "0.1.0", NOW + 2 * MINUTE);
    assert_eq!(told(&mut deploys), ["fleetprofd 0.1.0 (was 0.2.0)"]);
    agent(&mut deploys, "a", "0.2.0", NOW + COUNTING_NS + MINUTE);
    assert_eq!(told(&mut deploys), ["fleetprofd 0.2.0 (was 0.1.0)"]);
}

#[test]
fn a_start_announces_nothing_that_was_there_before() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut deploys = settled();
    agent(&mut deploys, "a", "0.1.0", NOW);
    look(&mut deploys, &image("a", NOW, "r.io:5000/api:v42"), NOW);
    look(&mut deploys, &image("b", NOW, "r.io:5000/api:v42"), NOW);
    let keep = |deploys: &mut Deploys, now: i64| {
        let book = Book::open(dir.path()).expect("it opens");
        let told = book.write(&deploys.take().0, now).expect("written");
        (told, Deploys::new(book.known(now).expect("read")))
    };
    // What was settled was taken by the test: it is told again to the book.
    let mut first = Deploys::default();
    look(
        &mut first,
        &image("a", NOW, "r.io:5000/api:v41"),
        NOW - 60 * MINUTE,
    );
    keep(&mut first, NOW);
    let (found, mut deploys) = keep(&mut deploys, NOW);
    assert_eq!(found.len(), 1);
    for host in ["a", "b"] {
        for tag in ["v41", "v42"] {
            look(
                &mut deploys,
                &image(host, NOW, &format!("r.io:5000/api:{tag}")),
                NOW + MINUTE,
            );
        }
        agent(&mut deploys, "a", "0.1.0", NOW + MINUTE);
    }
    assert_eq!(deploys.take().0, [], "neither a deploy nor a host more");
    look(
        &mut deploys,
        &image("c", NOW - MINUTE, "r.io:5000/api:v42"),
        NOW + MINUTE,
    );
    agent(&mut deploys, "a", "0.2.0", NOW + MINUTE);
    let (found, _) = keep(&mut deploys, NOW + MINUTE);
    assert_eq!(found[0].text, "fleetprofd 0.2.0 (was 0.1.0)");
    let book = Book::open(dir.path()).expect("it opens");
    let api = book.find(1, None).expect("read").expect("it is there");
    let api = api.annotation;
    assert_eq!((api.hosts, api.start_unix_ns), (3, NOW - MINUTE));
}

#[test]
fn what_is_found_is_bounded_in_an_hour_in_values_and_in_what_waits() {
    let mut deploys = Deploys::default();
    let service = |at: usize, tag: i64| image("a", NOW, &format!("s{at}:{tag}"));
    for at in 0..DEPLOYS_PER_HOUR_MAX + 10 {
        look(&mut deploys, &service(at, 1), NOW - 60 * MINUTE);
    }
    for at in 0..DEPLOYS_PER_HOUR_MAX + 10 {
        look(&mut deploys, &service(at, 2), NOW);
    }
    let (notes, untold) = deploys.take();
    let count = notes
        .iter()
        .filter(|note| matches!(note, Note::Deploy { .. }));
    assert_eq!((count.count(), untold.limited), (DEPLOYS_PER_HOUR_MAX, 10));
    for tag in 0..200 {
        look(&mut deploys, &service(0, 1000 + tag), NOW + MINUTE);
    }
    let most = deploys.services.values().map(|of| of.values.len()).max();
    assert_eq!(most, Some(VALUES_MAX));
    deploys.take();
    for at in 0..2 * WAITING_MAX {
        look(&mut deploys, &service(1000 + at, 1), NOW);
    }
    let (notes, untold) = deploys.take();
    assert!(notes.len() <= WAITING_MAX && untold.dropped > 0);
    // What found no room is taken up later.
    look(&mut deploys, &service(1000 + 2 * WAITING_MAX - 1, 1), NOW);
    assert_eq!(deploys.take().0.len(), 1);
}

#[test]
fn services_that_were_not_seen_for_longest_make_room() {
    let mut deploys = Deploys::default();
    for at in 0..SERVICES_MAX + 5 {
        look(
            &mut deploys,
            &image("a", NOW, &format!("s{at}:1")),
            NOW + at as i64,
        );
        deploys.take();
    }
    assert_eq!(deploys.services.len(), SERVICES_MAX);
    look(&mut deploys, &image("a", NOW, "s0:2"), NOW + 60 * MINUTE);
    assert_eq!(told(&mut deploys), [""; 0], "it is new again");
}

#[test]
fn images_are_told_by_their_repositories() {
    for (image, repository, said) in [
        ("nginx", "nginx", "nginx"),
        ("nginx:1.27", "nginx", "1.27"),
        ("r.io:5000/a/b:v1", "r.io:5000/a/b", "v1"),
        ("r.io:5000/a/b", "r.io:5000/a/b", "r.io:5000/a/b"),
        ("a@sha256:00ff", "a", "sha256:00ff"),
        ("a:1@sha256:00ff", "a", "1@sha256:00ff"),
        ("sha256:00ff", "", "sha256:00ff"),
    ] {
        assert_eq!(super::repository(image), repository, "{image}");
        assert_eq!(short("image", image), said, "{image}");
    }
}

#[test]
fn hosts_of_a_version_that_another_replaced_are_not_counted_for_ever() {
    let mut deploys = settled();
    look(&mut deploys, &image("a", NOW, "r.io:5000/api:v42"), NOW);
    look(&mut deploys, &image("b", NOW, "r.io:5000/api:v42"), NOW);
    assert_eq!(deploys.counted, 2);
    let later = NOW + COUNTING_NS;
    look(&mut deploys, &image("a", later, "r.io:5000/api:v43"), later);
    deploys.expire(later);
    assert_eq!(deploys.counted, 1, "the newest alone");
}

#[test]
fn what_waits_is_bounded_while_nothing_can_be_written() {
    let mut deploys = Deploys::default();
    for round in 0..3 {
        for host in 0..WAITING_MAX {
            agent(&mut deploys, &format!("{round} {host}"), "1", NOW);
        }
        let (notes, _) = deploys.take();
        agent(&mut deploys, &format!("{round} beside"), "1", NOW);
        deploys.put_back(notes);
        assert!(deploys.pending() <= WAITING_MAX, "{}", deploys.pending());
    }
}

#[test]
fn agents_that_were_not_seen_for_longest_make_room() {
    let mut deploys = Deploys::default();
    for host in 0..HOSTS_MAX {
        agent(&mut deploys, &host.to_string(), "1", NOW + host as i64);
        deploys.take();
        deploys.written();
    }
    agent(&mut deploys, "0", "1", NOW + HOSTS_MAX as i64);
    agent(&mut deploys, "new", "1", NOW + HOSTS_MAX as i64);
    assert_eq!(deploys.agents.len(), HOSTS_MAX);
    let known = |host: &str| deploys.agents.contains_key(&hash(&[host]));
    assert!(known("0") && known("new") && !known("1"));
}

#[test]
fn a_new_build_of_a_program_is_told_once_over_its_hosts_since_it_ran() {
    let mut deploys = Deploys::default();
    let hour_ago = NOW - 60 * MINUTE;
    for host in ["a", "b"] {
        reports(
            &mut deploys,
            host,
            "api.service",
            &[("api", OLD, hour_ago)],
            NOW,
        );
    }
    assert_eq!(
        told(&mut deploys),
        [""; 0],
        "what is there first is no deploy"
    );
    let since = NOW - 5 * MINUTE;
    let both = [("api", OLD, hour_ago), ("api", NEW, since)];
    reports(&mut deploys, "a", "api.service", &both, NOW);
    reports(&mut deploys, "a", "api.service", &both, NOW);
    reports(&mut deploys, "b", "api.service", &both, NOW);
    let (notes, _) = deploys.take();
    let [
        Note::Deploy {
            text,
            labels,
            start,
            on,
            ..
        },
        Note::Also { .. },
    ] = &notes[..]
    else {
        panic!("{notes:?}");
    };
    assert_eq!(
        text,
        "api.service: build 0b0b0b0b0b0b of api (was 0a0a0a0a0a0a)"
    );
    assert_eq!((*start, on.labels["host"].as_str()), (since, "a"));
    let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    let expected = [
        ("unit", "api.service"),
        ("module", "api"),
        ("build_id", NEW),
    ]
    .map(own);
    assert_eq!(labels[..], expected);
}

#[test]
fn programs_that_a_service_never_ran_and_their_first_builds_are_no_deploy() {
    let mut deploys = Deploys::default();
    let at = |minutes: i64| NOW + minutes * MINUTE;
    reports(
        &mut deploys,
        "a",
        "cron.service",
        &[("sort", OLD, NOW)],
        NOW,
    );
    reports(
        &mut deploys,
        "a",
        "cron.service",
        &[("perl", NEW, at(60))],
        at(60),
    );
    // Another host, of another distribution, that came within minutes.
    reports(
        &mut deploys,
        "b",
        "cron.service",
        &[("perl", OLD, at(61))],
        at(61),
    );
    assert_eq!(told(&mut deploys), [""; 0]);
}

#[test]
fn a_program_and_its_libraries_are_one_deploy_and_so_are_their_versioned_names() {
    let mut deploys = Deploys::default();
    let builds = |id, lib, at| [("api", id, at), (lib, id, at), ("libmore.so", id, at)];
    let first = builds(OLD, "libapi.so.1.2", NOW - 60 * MINUTE);
    reports(&mut deploys, "a", "api.service", &first, NOW);
    let second = builds(NEW, "libapi.so.1.3", NOW);
    reports(&mut deploys, "a", "api.service", &second, NOW);
    assert_eq!(
        told(&mut deploys),
        ["api.service: build 0b0b0b0b0b0b of api (was 0a0a0a0a0a0a)"]
    );
    // A library alone is one as well.
    let third = [("libapi.so.1.4", "0c0c0c0c0c0c0c0c", NOW + 60 * MINUTE)];
    reports(&mut deploys, "a", "api.service", &third, NOW + 60 * MINUTE);
    let text = "api.service: build 0c0c0c0c0c0c of libapi.so (was 0b0b0b0b0b0b)";
    assert_eq!(told(&mut deploys), [text]);
}

#[test]
fn the_build_of_a_new_image_is_no_second_deploy() {
    let mut deploys = settled();
    let report = |deploys: &mut Deploys, tag: &str, build_id: &str, since| {
        let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let program = Program {
            labels: vec![label("image", tag), label("namespace", "shop")],
            module: "api".to_owned(),
            build_id: build_id.to_owned(),
            since_unix_ns: since,
        };
        deploys.programs("a", &facts("a", ""), &[program], NOW);
    };
    report(&mut deploys, "r.io:5000/api:v41", OLD, NOW - 60 * MINUTE);
    look(&mut deploys, &image("a", NOW, "r.io:5000/api:v42"), NOW);
    report(&mut deploys, "r.io:5000/api:v42", NEW, NOW);
    assert_eq!(told(&mut deploys), ["r.io:5000/api: image v42 (was v41)"]);
}

#[test]
fn windows_that_waited_are_judged_by_their_own_time() {
    let mut deploys = Deploys::default();
    for (minute, tag) in [(0, "api:1"), (5, "api:2"), (30, "api:3")] {
        look(
            &mut deploys,
            &image("a", NOW - (60 - minute) * MINUTE, tag),
            NOW,
        );
    }
    assert_eq!(told(&mut deploys), ["api: image 3 (was 2)"]);
}

/// A book with what was found.
fn book_of(deploys: &mut Deploys, now: i64) -> (tempfile::TempDir, Book) {
    let dir = tempfile::tempdir().expect("a directory");
    let book = Book::open(dir.path()).expect("it opens");
    book.write(&deploys.take().0, now).expect("written");
    deploys.written();
    (dir, book)
}

#[test]
fn a_rolling_deploy_of_an_hour_is_one_that_grows() {
    let mut deploys = Deploys::default();
    let host = |at: i64| format!("web-{at:02}");
    for at in 0..50 {
        reports(
            &mut deploys,
            &host(at),
            "api.service",
            &[("api", OLD, NOW - 60 * MINUTE)],
            NOW,
        );
    }
    let (_dir, book) = book_of(&mut deploys, NOW);
    for at in 0..50 {
        let now = NOW + at * 72_000_000_000;
        reports(
            &mut deploys,
            &host(at),
            "api.service",
            &[("api", NEW, now)],
            now,
        );
        // Those that were not reached yet go on, and report each minute.
        for other in at + 1..50 {
            reports(
                &mut deploys,
                &host(other),
                "api.service",
                &[("api", OLD, NOW)],
                now,
            );
        }
        book.write(&deploys.take().0, now).expect("written");
        deploys.written();
    }
    // One that was off comes hours later: it has it, and the rollout was over.
    let late = NOW + 59 * MINUTE + ROLLOUT_GAP_NS + MINUTE;
    reports(
        &mut deploys,
        "late",
        "api.service",
        &[("api", NEW, late)],
        late,
    );
    book.write(&deploys.take().0, late).expect("written");
    let mut all = Vec::new();
    book.each(None, None, |one| all.push(one)).expect("read");
    let [deploy] = &all[..] else {
        panic!("{all:?}");
    };
    assert_eq!(deploy.hosts, 51);
    assert_eq!(deploy.start_unix_ns, NOW);
    assert_eq!(deploy.end_unix_ns, NOW + 49 * 72_000_000_000);
    assert_eq!(deploy.host_names.len(), 50, "a bound");
}

/// What a scope sees of the first deploy: hosts and their names.
fn seen(book: &Book, scope: &str) -> Option<(u64, Vec<String>, bool)> {
    let scope = Scope::parse(scope).expect("a scope");
    let mut listed = Vec::new();
    let all = book.each(None, Some(&scope), |one| listed.push(one));
    all.expect("read");
    let found = book.find(1, Some(&scope)).expect("read");
    assert_eq!(found.is_some(), !listed.is_empty());
    let Seen {
        annotation,
        is_part,
    } = found?;
    assert_eq!(annotation, listed[0]);
    Some((annotation.hosts, annotation.host_names, is_part))
}

#[test]
fn scopes_of_hosts_see_deploys_of_their_hosts_and_only_these_hosts() {
    let mut deploys = settled();
    for (host, region) in [("a", "north"), ("b", "north"), ("c", "south")] {
        let mut of_host = image(host, NOW, "r.io:5000/api:v42");
        let set = &of_host.label_sets[0];
        let more = [("host", host), ("region", region)];
        let pairs = set.iter().chain(more);
        let own = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
        of_host.label_sets = vec![LabelSet::new(own)];
        look(&mut deploys, &of_host, NOW);
    }
    let (_dir, book) = book_of(&mut deploys, NOW);
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    assert_eq!(
        seen(&book, "region=north"),
        Some((2, names(&["a", "b"]), true))
    );
    assert_eq!(seen(&book, "host=c"), Some((1, names(&["c"]), true)));
    assert_eq!(
        seen(&book, "namespace=shop,region=south"),
        Some((1, names(&["c"]), true))
    );
    // All of it is in the scope of the service.
    let all = Some((3, names(&["a", "b", "c"]), false));
    assert_eq!(seen(&book, "namespace=shop"), all);
    for none in [
        "region=west",
        "host=d",
        "namespace=lab,region=north",
        "unit=x",
    ] {
        assert_eq!(seen(&book, none), None, "{none}");
    }
    // Later too: hosts are not counted any more, and stay those of the deploy.
    book.prune(NOW + 2 * COUNTING_NS, i64::MAX).expect("pruned");
    assert_eq!(seen(&book, "host=c"), Some((1, names(&["c"]), true)));
}

#[test]
fn hosts_of_deploys_are_bounded_and_the_newest_deploys_keep_theirs() {
    let dir = tempfile::tempdir().expect("a directory");
    let book = Book::open(dir.path()).expect("it opens");
    let on = |host: i64| SeenOn {
        host,
        labels: Arc::new([("host".to_owned(), format!("h{host}"))].into()),
    };
    let mut notes = Vec::new();
    for value in 0..3 {
        notes.push(Note::Deploy {
            service: 1,
            value,
            said: String::new(),
            on: on(0),
            start: NOW + value,
            text: "a deploy".to_owned(),
            labels: Vec::new(),
        });
        notes.extend((1..KEPT_HOSTS_MAX / 2).map(|host| Note::Also {
            service: 1,
            value,
            on: on(host),
            start: NOW + value,
        }));
    }
    book.write(&notes, NOW).expect("written");
    book.prune(NOW, i64::MAX).expect("pruned");
    let scope = Scope::parse("host=h7").expect("a scope");
    let mut times = Vec::new();
    book.each(None, Some(&scope), |one| {
        times.push(one.start_unix_ns - NOW)
    })
    .expect("read");
    assert_eq!(times, [2, 1], "the oldest has lost its hosts");
    let mut all = 0;
    book.each(None, None, |one| all += one.hosts).expect("read");
    assert_eq!(all as i64, 3 * KEPT_HOSTS_MAX / 2, "and is still there");
}

#[test]
fn a_database_of_the_first_version_goes_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("annotations.sqlite");
    let old = rusqlite::Connection::open(path).expect("it opens");
    let tables = "CREATE TABLE counted (annotation INTEGER NOT NULL, host INTEGER NOT NULL, \
                  PRIMARY KEY (annotation, host)) STRICT, WITHOUT ROWID; \
                  INSERT INTO counted VALUES (1, 7); PRAGMA user_version = 1;";
    old.execute_batch(tables).expect("made");
    drop(old);
    let mut deploys = settled();
    look(&mut deploys, &image("a", NOW, "r.io:5000/api:v42"), NOW);
    let book = Book::open(dir.path()).expect("it opens");
    book.write(&deploys.take().0, NOW).expect("written");
    drop(book);
    let book = Book::open(dir.path()).expect("it opens again");
    assert!(book.find(1, None).expect("read").is_some());
}

#[test]
fn a_full_disk_keeps_what_was_found_until_there_is_room_needs_root() {
    let Some(disk) = testkit::SmallDisk::mount("256k") else {
        return;
    };
    let book = Book::open(disk.path()).expect("it opens");
    let mut deploys = Deploys::default();
    let mut failed = 0;
    // As `Annotations::flush` does it, for an hour of deploys with long names.
    for round in 0..2_000 {
        let now = NOW + round * MINUTE;
        let unit = format!("{}{round}.service", "long".repeat(40));
        reports(
            &mut deploys,
            "a",
            &unit,
            &[("api", OLD, now - 60 * MINUTE)],
            now,
        );
        reports(&mut deploys, "a", &unit, &[("api", NEW, now)], now);
        let (notes, _) = deploys.take();
        match book.write(&notes, now) {
            Ok(_) => deploys.written(),
            Err(_) => {
                deploys.put_back(notes);
                failed += 1;
            }
        }
        if failed == 10 {
            break;
        }
    }
    assert_eq!(failed, 10, "the disk was never full");
    assert_eq!(
        deploys.pending(),
        20,
        "what was found waits, and nothing else"
    );
    disk.grow("4m");
    let (notes, _) = deploys.take();
    let found = book.write(&notes, NOW).expect("there is room");
    assert_eq!(found.len(), 10);
}
