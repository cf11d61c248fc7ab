//! Incidents: opened by people, alerts and pins; evidence that outlives what it was copied from.

use crate::alerts::{Play, options, rule};
use crate::pins::{all, keep};
use crate::rig::{NOW, Options, Rig, SECOND, until};
use crate::web::{ask_and_do_not_read, get, store_wide};
use crate::webhook::Webhook;
use profile::Profile;
use proto::ProfileAssembler;
use proto::agent::TimeRange;
use proto::collector::add_incident_entry_request::Evidence;
use proto::collector::incident_service_client::IncidentServiceClient;
use proto::collector::{self as wire, IncidentEntryKind as Kind, IncidentState};
use std::collections::HashMap;
use std::path::Path;
use tokio::task::JoinSet;
use tonic::transport::Channel;
use tonic::{Code, Status};

type Client = IncidentServiceClient<Channel>;

async fn client(rig: &Rig) -> Client {
    IncidentServiceClient::new(rig.channel().await)
}

async fn open(client: &mut Client, title: &str) -> u64 {
    let asked = wire::OpenIncidentRequest {
        title: title.to_owned(),
        labels: HashMap::from([("unit".to_owned(), "web.service".to_owned())]),
    };
    let opened = client.open(asked).await.expect("opened").into_inner();
    opened.incident.expect("an incident").id
}

fn note(incident: u64, text: &str) -> wire::AddIncidentEntryRequest {
    wire::AddIncidentEntryRequest {
        incident,
        text: text.to_owned(),
        ..wire::AddIncidentEntryRequest::default()
    }
}

pub fn selection(selector: &str) -> wire::Selection {
    wire::Selection {
        selector: selector.to_owned(),
        range: Some(TimeRange {
            start_unix_ns: NOW - 3600 * SECOND,
            end_unix_ns: NOW,
        }),
        ..wire::Selection::default()
    }
}

fn with(incident: u64, evidence: Evidence) -> wire::AddIncidentEntryRequest {
    wire::AddIncidentEntryRequest {
        evidence: Some(evidence),
        ..note(incident, "")
    }
}

async fn told(client: &mut Client, id: u64) -> (wire::Incident, Vec<wire::IncidentEntry>) {
    let got = client
        .get(wire::GetIncidentRequest {
            id,
            markdown: false,
        })
        .await;
    let got = got.expect("an incident").into_inner();
    (got.incident.expect("an incident"), got.entries)
}

/// What is kept, as the page reads it.
pub async fn profile(client: &mut Client, id: u64, baseline: bool) -> Result<Profile, Status> {
    let asked = wire::EvidenceProfileRequest { id, baseline };
    let mut parts = client.profile(asked).await?.into_inner();
    let mut assembler = ProfileAssembler::new();
    while let Some(part) = parts.message().await? {
        let chunk = part.chunk.expect("a part");
        assembler.push(chunk).expect("it fits");
    }
    Ok(assembler.finish().expect("complete"))
}

pub fn in_dir(dir: &Path) -> Options {
    let mut options = Options::default();
    options.incidents.dir = dir.to_owned();
    options
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn evidence_outlives_a_restart_and_the_data_it_was_copied_from() {
    let dir = tempfile::tempdir().expect("a directory");
    let rig = Rig::with(in_dir(dir.path())).await;
    rig.sampled("web-1").await;
    let mut asks = client(&rig).await;
    let id = open(&mut asks, "api slow").await;
    asks.add_entry(note(id, "rolling back"))
        .await
        .expect("a note");
    let view = Evidence::View(selection("unit=\"web.service\""));
    let kept = asks
        .add_entry(with(id, view))
        .await
        .expect("kept")
        .into_inner();
    let evidence = kept
        .entry
        .and_then(|entry| entry.evidence)
        .expect("evidence");
    assert_eq!((evidence.samples, evidence.has_baseline), (1, false));
    let diff = wire::IncidentDiff {
        before: Some(selection("")),
        after: Some(selection("")),
    };
    let both = asks.add_entry(with(id, Evidence::Diff(diff))).await;
    both.expect("a comparison");
    for (state, word) in [
        (IncidentState::Acknowledged, "acknowledged"),
        (IncidentState::Closed, "closed"),
    ] {
        let asked = wire::SetIncidentStateRequest {
            id,
            state: state as i32,
            text: "by hand".to_owned(),
        };
        let set = asks.set_state(asked).await.expect(word).into_inner();
        assert_eq!(set.incident.expect("an incident").state(), state);
    }
    let before = told(&mut asks, id).await;
    rig.stop.send(true).expect("it listens");
    drop(rig);
    // A new store: nothing of the samples is there any more.
    let rig = restarted(std::sync::Arc::default(), || in_dir(dir.path())).await;
    let mut asks = client(&rig).await;
    let after = told(&mut asks, id).await;
    assert_eq!(after, before);
    let kinds: Vec<Kind> = after.1.iter().map(wire::IncidentEntry::kind).collect();
    for kind in [Kind::State, Kind::Note, Kind::View, Kind::Diff] {
        assert!(kinds.contains(&kind), "{kinds:?}");
    }
    assert_eq!(after.0.hosts, ["web-1"]);
    let folded = get(&rig, &format!("/api/evidence.folded?id={}", evidence.id)).await;
    assert!(folded.text().contains("main;read"), "{}", folded.text());
    for side in after.1.iter().filter_map(|entry| entry.evidence.as_ref()) {
        for baseline in [false, true] {
            let read = profile(&mut asks, side.id, baseline).await;
            let read = read.map(|profile| profile.total().count);
            match !baseline || side.has_baseline {
                true => assert_eq!(read.expect("kept"), 1),
                false => assert_eq!(read.expect_err("one side").code(), Code::NotFound),
            }
        }
    }
    let text = get(&rig, &format!("/api/incident.md?id={id}")).await.text();
    assert!(
        text.contains("`api slow`") && text.contains("      rolling back"),
        "{text}"
    );
    let page = get(&rig, &format!("/api/incident.html?id={id}")).await;
    assert_eq!(page.status, 200);
    assert!(page.text().contains("data:image/svg+xml;base64,"));
    assert!(!page.text().contains("<script"));
    let gone = asks.delete(wire::DeleteIncidentRequest { id }).await;
    gone.expect("deleted");
    let folded = get(&rig, &format!("/api/evidence.folded?id={}", evidence.id)).await;
    assert_eq!(folded.status, 404, "its evidence went with it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bundle_takes_one_of_the_places_of_answers() {
    let mut options = Options::default();
    options.query.timeout = std::time::Duration::from_secs(3600);
    let rig = Rig::with(options).await;
    let mut agent = rig.agent("web-1").await;
    store_wide(&mut agent).await;
    let mut asks = client(&rig).await;
    let id = open(&mut asks, "api slow").await;
    let kept = asks
        .add_entry(with(id, Evidence::View(selection(""))))
        .await;
    kept.expect("kept");
    let paths = ["html", "md"].map(|ending| format!("/api/incident.{ending}?id={id}"));
    for path in &paths {
        assert_eq!(get(&rig, path).await.status, 200, "{path}");
    }
    let mut readers = JoinSet::new();
    for _ in 0..16 {
        readers.spawn(ask_and_do_not_read(rig.http));
    }
    let readers = readers.join_all().await;
    for path in &paths {
        let refused = get(&rig, path).await;
        assert_eq!(refused.status, 503, "{path}: {}", refused.text());
    }
    drop(readers);
    until("what they held is given back", || {
        rig.metrics.answer_bytes.get() == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_alert_opens_one_incident_with_the_profile_of_the_minutes_before() {
    let webhook = Webhook::start().await;
    let rules = [rule("cores > 4", |of| {
        (of.incident, of.keep_firing) = (true, 0);
    })];
    let mut play = Play::start(options(&rules, &webhook, None), &["a"]).await;
    play.rounds(5, |_| Some(5.0)).await;
    for _ in 0..3 {
        play.rig.incidents.look().await;
    }
    play.rounds(5, |_| Some(1.0)).await;
    play.rig.incidents.look().await;
    let mut asks = client(&play.rig).await;
    let listed = asks.list(wire::ListIncidentsRequest::default()).await;
    let listed = listed.expect("a list").into_inner().incidents;
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!(
        (listed[0].source.as_str(), listed[0].opened_by.as_str()),
        ("alert api-cpu", "collector")
    );
    let (incident, entries) = told(&mut asks, listed[0].id).await;
    let kinds: Vec<Kind> = entries.iter().map(wire::IncidentEntry::kind).collect();
    assert_eq!(
        kinds.iter().filter(|kind| **kind == Kind::Alert).count(),
        2,
        "{entries:?}"
    );
    assert_eq!(
        kinds.iter().filter(|kind| **kind == Kind::View).count(),
        1,
        "{entries:?}"
    );
    assert_eq!(incident.hosts, ["a"]);
    // It fires again while the incident is open: that is the same one.
    play.rounds(5, |_| Some(5.0)).await;
    play.rig.incidents.look().await;
    let listed = asks.list(wire::ListIncidentsRequest::default()).await;
    assert_eq!(listed.expect("a list").into_inner().incidents.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pin_opens_an_incident_where_that_is_wanted() {
    let mut options = Options::default();
    options.incidents.open_for_pins = true;
    let rig = Rig::with(options).await;
    keep(&rig, all("web-1", 4, None)).await.expect("a pin");
    for _ in 0..2 {
        rig.incidents.look().await;
    }
    let mut asks = client(&rig).await;
    let listed = asks.list(wire::ListIncidentsRequest::default()).await;
    let listed = listed.expect("a list").into_inner().incidents;
    assert_eq!(listed.len(), 1, "{listed:?}");
    let (_, entries) = told(&mut asks, listed[0].id).await;
    let evidence = entries.iter().find_map(|entry| entry.evidence.clone());
    assert_eq!(evidence.expect("its minutes").kind(), Kind::Pin);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_no_room_is_refused_and_nothing_is_removed_for_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut options = in_dir(dir.path());
    options.incidents.count = 1;
    let rig = Rig::with(options).await;
    rig.sampled("web-1").await;
    let mut asks = client(&rig).await;
    let id = open(&mut asks, "first").await;
    let second = asks.open(wire::OpenIncidentRequest {
        title: "second".to_owned(),
        ..wire::OpenIncidentRequest::default()
    });
    let status = second.await.expect_err("one is the most");
    assert_eq!(status.code(), Code::ResourceExhausted);
    let view = || Evidence::View(selection(""));
    asks.add_entry(with(id, view()))
        .await
        .expect("there is room");
    let before = told(&mut asks, id).await;
    let store = rig.store.clone();
    rig.stop.send(true).expect("it listens");
    drop(rig);
    // Room for one and a half.
    let mut options = in_dir(dir.path());
    options.incidents.bytes = (before.0.bytes * 3 / 2, 1 << 20);
    let rig = restarted(store, || Options {
        incidents: options.incidents.clone(),
        ..Options::default()
    });
    let rig = rig.await;
    let mut asks = client(&rig).await;
    let status = asks.add_entry(with(id, view())).await.expect_err("full");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert_eq!(
        told(&mut asks, id).await,
        before,
        "nothing was added or removed"
    );
}

/// A collector on the files of one that has ended: they are locked until the last of it has.
pub async fn restarted(
    store: std::sync::Arc<crate::memory::Memory>,
    options: impl Fn() -> Options,
) -> Rig {
    for _ in 0..200 {
        let rig = Rig::on(store.clone(), options()).await;
        let mut asks = client(&rig).await;
        let listed = asks.list(wire::ListIncidentsRequest::default()).await;
        if listed.is_ok() {
            return rig;
        }
        rig.stop.send(true).expect("it listens");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("the files stay locked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_is_refused_with_its_field() {
    let rig = Rig::start().await;
    let mut asks = client(&rig).await;
    let id = open(&mut asks, "first").await;
    for (what, asked) in [
        ("no text", note(id, " ")),
        ("a long text", note(id, &"x".repeat(4001))),
        ("control characters", note(id, "\u{1b}[2J")),
        (
            "a link elsewhere",
            wire::AddIncidentEntryRequest {
                address: "javascript:alert(1)".to_owned(),
                ..note(id, "x")
            },
        ),
    ] {
        let status = asks.add_entry(asked).await.expect_err(what);
        assert_eq!(status.code(), Code::InvalidArgument, "{what}: {status}");
    }
    let empty = asks
        .add_entry(with(id, Evidence::View(selection("unit=nobody"))))
        .await;
    assert_eq!(
        empty.expect_err("no samples").code(),
        Code::FailedPrecondition
    );
    for evidence in [Evidence::Pin(99), Evidence::Capture(99)] {
        let status = asks.add_entry(with(id, evidence)).await.expect_err("none");
        assert_eq!(status.code(), Code::NotFound, "{status}");
    }
    let status = asks.add_entry(note(99, "x")).await.expect_err("none");
    assert_eq!(status.code(), Code::NotFound);
    let (_, entries) = told(&mut asks, id).await;
    assert_eq!(entries.len(), 1, "nothing was added");
}
