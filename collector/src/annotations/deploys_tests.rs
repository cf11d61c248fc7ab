//! Tests what is detected as a deployment, and what is not.

use super::*;
use crate::annotations::book::Book;
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
        deploys.agent(host, "0.1.0", NOW);
    }
    deploys.agent("new", "0.2.0", NOW);
    assert_eq!(told(&mut deploys), [""; 0], "hosts that come are no deploy");
    deploys.agent("a", "0.2.0", NOW);
    deploys.agent("b", "0.2.0", NOW + MINUTE);
    deploys.agent("b", "0.2.0", NOW + MINUTE);
    let (notes, _) = deploys.take();
    let also = notes
        .iter()
        .filter(|note| matches!(note, Note::Also { .. }));
    assert_eq!(also.count(), 1, "the second host is counted: {notes:?}");
    deploys.agent("a", "0.1.0", NOW + 2 * MINUTE);
    assert_eq!(told(&mut deploys), ["fleetprofd 0.1.0 (was 0.2.0)"]);
    deploys.agent("a", "0.2.0", NOW + COUNTING_NS + MINUTE);
    assert_eq!(told(&mut deploys), ["fleetprofd 0.2.0 (was 0.1.0)"]);
}

#[test]
fn a_start_announces_nothing_that_was_there_before() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut deploys = settled();
    deploys.agent("a", "0.1.0", NOW);
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
        deploys.agent("a", "0.1.0", NOW + MINUTE);
    }
    assert_eq!(deploys.take().0, [], "neither a deploy nor a host more");
    look(
        &mut deploys,
        &image("c", NOW - MINUTE, "r.io:5000/api:v42"),
        NOW + MINUTE,
    );
    deploys.agent("a", "0.2.0", NOW + MINUTE);
    let (found, _) = keep(&mut deploys, NOW + MINUTE);
    assert_eq!(found[0].text, "fleetprofd 0.2.0 (was 0.1.0)");
    let book = Book::open(dir.path()).expect("it opens");
    let api = book.find(1).expect("read").expect("it is there");
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
            deploys.agent(&format!("{round} {host}"), "1", NOW);
        }
        let (notes, _) = deploys.take();
        deploys.agent(&format!("{round} beside"), "1", NOW);
        deploys.put_back(notes);
        assert!(deploys.pending() <= WAITING_MAX, "{}", deploys.pending());
    }
}

#[test]
fn agents_that_were_not_seen_for_longest_make_room() {
    let mut deploys = Deploys::default();
    for host in 0..HOSTS_MAX {
        deploys.agent(&host.to_string(), "1", NOW + host as i64);
        deploys.take();
        deploys.written();
    }
    deploys.agent("0", "1", NOW + HOSTS_MAX as i64);
    deploys.agent("new", "1", NOW + HOSTS_MAX as i64);
    assert_eq!(deploys.agents.len(), HOSTS_MAX);
    let known = |host: &str| deploys.agents.contains_key(&hash(&[host]));
    assert!(known("0") && known("new") && !known("1"));
}
