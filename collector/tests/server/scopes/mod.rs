//! What somebody with a scope gets: every call and every download, looked through byte by byte for
//! names that are none of theirs.
//!
//! Whatever is out of the scope has `kanarie` in its name: hosts, labels, functions, files,
//! cgroups, triggers, reasons, notices, units of measure. What is in it has `eigen`.

mod asks;
mod stage;

use crate::rig::{LIMIT, until};
use asks::{
    Log, ask_access, ask_alerts, ask_annotations, ask_captures, ask_fleet, ask_http, ask_incidents,
    ask_pins, ask_queries, ask_symbols, ask_views, capture,
};
use prost::Message;
use proto::agent;
use proto::collector as wire;
use proto::collector::add_incident_entry_request::Evidence;
use proto::collector::capture_service_client::CaptureServiceClient;
use proto::collector::fleet_service_client::FleetServiceClient;
use proto::collector::incident_service_client::IncidentServiceClient;
use proto::collector::pin_service_client::PinServiceClient;
use proto::collector::query_service_client::QueryServiceClient;
use stage::{CANARY, OWN_INCIDENT, PART, SHARED, Stage, WHOLE, caller};
use std::collections::BTreeSet;
use tonic::transport::Channel;
use tonic::{Code, Streaming};

/// Every call of the descriptors that people may make of a collector.
fn calls_of_people() -> BTreeSet<String> {
    let set = prost_types::FileDescriptorSet::decode(proto::DESCRIPTORS).expect("descriptors");
    let of_agents = [
        "IngestService",
        "ControlService",
        "PinUploadService",
        "EnrollmentService",
    ];
    let mut calls = BTreeSet::new();
    for file in &set.file {
        if file.package() != "fleetprof.collector.v1" {
            continue;
        }
        for service in &file.service {
            if of_agents.contains(&service.name()) {
                continue;
            }
            for method in &service.method {
                calls.insert(format!("{}/{}", service.name(), method.name()));
            }
        }
    }
    calls
}

/// A capture of somebody without a scope, of others, that runs.
async fn capture_of_another(stage: &Stage) -> (u64, Streaming<wire::FleetCaptureResponse>) {
    let mut client = CaptureServiceClient::new(stage.rig.channel().await);
    let mut request = capture("");
    request.capture.as_mut().expect("some").reason = "kanarie-reason".to_owned();
    request.capture.as_mut().expect("some").who = "kanarie-who".to_owned();
    request.patience_ns = LIMIT.as_nanos() as u64;
    let mut parts = client.capture(request).await.expect("it runs").into_inner();
    let first = parts.message().await.expect("a message").expect("a plan");
    let Some(wire::fleet_capture_response::Body::Plan(plan)) = first.body else {
        panic!("{first:?}");
    };
    (plan.id, parts)
}

/// A capture of others that has ended and is kept, of all of every host.
async fn kept_of_another(stage: &Stage) -> u64 {
    let (id, mut parts) = capture_of_another(stage).await;
    let mut client = CaptureServiceClient::new(stage.rig.channel().await);
    // It runs until it is cancelled.
    until("it is asked", || !stage.agents[0].captures().is_empty()).await;
    let cancel = wire::CancelFleetCaptureRequest { id };
    client.cancel(cancel).await.expect("it runs");
    let mut kept = false;
    while let Some(part) = parts.message().await.expect("a message") {
        if let Some(wire::fleet_capture_response::Body::Result(info)) = part.body {
            kept = info.kept;
        }
    }
    assert!(kept, "there is something to hide");
    id
}

async fn everything(stage: &Stage, scope: &str) -> Log {
    let eve = caller("eve", scope);
    let log = Log::default();
    let channel = stage.as_caller(&eve).await;
    kept_of_another(stage).await;
    let (others, parts) = capture_of_another(stage).await;
    ask_queries(&log, &channel).await;
    ask_alerts(&log, &channel).await;
    ask_incidents(&log, &channel).await;
    ask_views(&log, &channel).await;
    ask_pins(&log, &channel).await;
    ask_annotations(&log, &channel).await;
    ask_captures(&log, &channel, others).await;
    ask_symbols(&log, &channel).await;
    ask_fleet(&log, &channel).await;
    ask_access(&log, &channel).await;
    ask_http(&log, stage, &eve).await;
    drop(parts);
    log
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_others_is_in_any_byte_of_any_answer() {
    // A part of a host that others use, too, and a host of its own.
    for (scope, others) in [(PART, true), (WHOLE, false)] {
        let stage = Stage::set(others).await;
        let log = everything(&stage, scope).await;
        log.check(scope);
        for call in [
            "QueryService/LabelValues",
            "QueryService/Series",
            "QueryService/Profile",
            "QueryService/Top",
            "QueryService/Diff",
            "QueryService/Cgroups",
            "QueryService/Hosts",
            "QueryService/ProfileTypes",
            "PinService/List",
            "PinService/Profile",
            "AnnotationService/List",
            "http /api/annotations",
            "AlertService/List",
            "http /api/alerts",
            "web AlertService/List",
            "IncidentService/List",
            "IncidentService/Get",
            "IncidentService/Profile",
            "http /api/incident.md",
            "http /api/incident.html",
            "http /api/evidence.json",
            "web IncidentService/List",
            "ViewService/Save",
            "ViewService/List",
            "web AnnotationService/List",
            "http /api/pin.json",
            "CaptureService/Capture",
            "CaptureService/List",
            "CaptureService/Profile",
            "http /api/capture.json",
            "http /api/profile.folded",
            "http /api/profile.pb.gz",
            "http /api/profile.parquet?from=0&group_by",
            "http /api/profile.parquet?from=0&step",
            "web QueryService/Top",
            "pyroscope ProfileTypes",
            "pyroscope LabelValues",
            "pyroscope Series",
            "pyroscope SelectSeries",
            "pyroscope SelectMergeStacktraces",
            "pyroscope SelectMergeProfile",
            "pyroscope Diff",
            "pyroscope render",
        ] {
            assert!(
                log.has_own(call),
                "{scope}: {call} shows what is in the scope"
            );
        }
        let asked = log.0.lock().expect("no panic").calls.clone();
        let missing: Vec<_> = calls_of_people().difference(&asked).cloned().collect();
        assert_eq!(
            missing,
            Vec::<String>::new(),
            "calls that nobody looked through"
        );
        // The other host was not asked to capture by anybody but the one who may.
        assert_eq!(stage.agents[1].captures().len(), 2, "{scope}");
    }
}

/// That the canaries would be found: the same without a scope.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn somebody_without_a_scope_sees_all() {
    let stage = Stage::set(true).await;
    let log = Log::default();
    let channel = stage.rig.channel().await;
    ask_queries(&log, &channel).await;
    ask_pins(&log, &channel).await;
    let inner = log.0.lock().expect("no panic");
    for call in &inner.calls {
        if matches!(&**call, "QueryService/Status") {
            continue;
        }
        let mut answers = inner
            .answers
            .iter()
            .filter(|(asked, _)| asked.starts_with(call));
        let found = answers.any(|(_, bytes)| String::from_utf8_lossy(bytes).contains(CANARY));
        assert!(found, "{call} has no canary");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_capture_is_held_to_the_scope_on_each_host() {
    let stage = Stage::set(true).await;
    let eve = stage
        .as_caller(&caller("eve", "host=~\"eigen.*\",namespace=eigen-ns"))
        .await;
    let mut client = CaptureServiceClient::new(eve);
    let mut request = capture("comm=x");
    let asked = request.capture.as_mut().expect("some");
    asked.event = profile::OFF_CPU.to_owned();
    asked.frame_filters = vec![agent::FrameFilter {
        op: agent::FrameFilterOp::Keep.into(),
        regex: "main".to_owned(),
    }];
    // Nothing of this comm is there.
    let refused = client
        .capture(request.clone())
        .await
        .expect_err("nobody has it");
    assert_eq!(refused.code(), Code::NotFound);
    request.selector = "comm=eigen-comm".to_owned();
    let mut parts = client.capture(request).await.expect("it runs").into_inner();
    parts.message().await.expect("a message").expect("a plan");
    until("it is asked", || stage.agents[0].captures().len() == 1).await;
    let sent = stage.agents[0].captures().remove(0);
    let matchers: Vec<_> = sent
        .matchers
        .iter()
        .map(|matcher| format!("{}={}", matcher.label, matcher.value))
        .collect();
    // Labels of the host were compared here.
    assert_eq!(matchers, ["namespace=eigen-ns", "comm=eigen-comm"]);
    assert!(
        sent.frame_filters.is_empty(),
        "filters are applied where wakers are cut off"
    );
    assert!(stage.agents[1].captures().is_empty());
}

/// Captures until it runs, and ends it; the number of what is kept of it.
async fn kept_capture(stage: &Stage, channel: &Channel, request: wire::FleetCaptureRequest) -> u64 {
    let mut client = CaptureServiceClient::new(channel.clone());
    let before = stage.agents[0].captures().len();
    let mut parts = client.capture(request).await.expect("it runs").into_inner();
    let first = parts.message().await.expect("a message").expect("a plan");
    let Some(wire::fleet_capture_response::Body::Plan(plan)) = first.body else {
        panic!("{first:?}");
    };
    until("it is asked", || stage.agents[0].captures().len() > before).await;
    let cancel = wire::CancelFleetCaptureRequest { id: plan.id };
    client.cancel(cancel).await.expect("it runs");
    while parts.message().await.expect("a message").is_some() {}
    plan.id
}

/// Adds a capture to the incident of the scope; the number of the evidence.
async fn added(channel: &Channel, capture: u64) -> u64 {
    let request = wire::AddIncidentEntryRequest {
        incident: OWN_INCIDENT,
        evidence: Some(Evidence::Capture(capture)),
        ..wire::AddIncidentEntryRequest::default()
    };
    let mut client = IncidentServiceClient::new(channel.clone());
    let answer = client.add_entry(request).await.expect("kept").into_inner();
    let entry = answer.entry.expect("an entry");
    entry.evidence.expect("evidence").id
}

/// Whether the profile of a piece of evidence comes, and whether the timeline tells of it.
async fn is_evident(channel: &Channel, id: u64) -> (bool, bool) {
    let mut client = IncidentServiceClient::new(channel.clone());
    let request = wire::EvidenceProfileRequest {
        id,
        baseline: false,
    };
    let profile = client.profile(request).await;
    let request = wire::GetIncidentRequest {
        id: OWN_INCIDENT,
        markdown: false,
    };
    let told = client
        .get(request)
        .await
        .expect("it is theirs")
        .into_inner();
    let mut evidence = told.entries.iter().filter_map(|of| of.evidence.as_ref());
    (profile.is_ok(), evidence.any(|of| of.id == id))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_capture_as_evidence_is_seen_by_those_who_see_the_capture() {
    let stage = Stage::set(true).await;
    let all = stage.rig.channel().await;
    let eve = stage.as_caller(&caller("eve", PART)).await;
    let host = stage.as_caller(&caller("host", WHOLE)).await;
    for (event, has_filters, is_shown) in [
        (profile::OFF_CPU, false, true),
        // They look at the frames of wakers, which are of others.
        (profile::OFF_CPU, true, false),
        ("cpu-clock", true, true),
    ] {
        let mut request = capture("host=\"eigen-1\",namespace=\"eigen-ns\"");
        let asked = request.capture.as_mut().expect("some");
        asked.event = event.to_owned();
        if has_filters {
            asked.frame_filters = vec![agent::FrameFilter {
                op: agent::FrameFilterOp::Keep.into(),
                regex: "run|work|main".to_owned(),
            }];
        }
        let id = kept_capture(&stage, &all, request).await;
        let evidence = added(&all, id).await;
        for (who, channel, expected) in [("eve", &eve, is_shown), ("host", &host, true)] {
            let case = format!("{who}: {event}, filters: {has_filters}");
            let request = wire::FleetCaptureProfileRequest {
                id,
                ..wire::FleetCaptureProfileRequest::default()
            };
            let mut client = CaptureServiceClient::new(channel.clone());
            let itself = client.profile(request).await;
            assert_eq!(itself.is_ok(), expected, "{case}");
            let found = is_evident(channel, evidence).await;
            assert_eq!(found, (expected, expected), "{case}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_captures_within_a_scope_sees_the_evidence_made_of_it() {
    let stage = Stage::set(true).await;
    let eve = stage.as_caller(&caller("eve", PART)).await;
    let id = kept_capture(&stage, &eve, capture("")).await;
    let evidence = added(&eve, id).await;
    assert_eq!(is_evident(&eve, evidence).await, (true, true));
    let other = caller("mallory", "team=eigen-team,namespace=other");
    let mut other = IncidentServiceClient::new(stage.as_caller(&other).await);
    let request = wire::EvidenceProfileRequest {
        id: evidence,
        baseline: false,
    };
    let refused = other.profile(request).await.expect_err("none of theirs");
    assert_eq!(refused.code(), Code::NotFound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_scope_cannot_be_added_to_is_refused_with_the_reason() {
    let stage = Stage::set(true).await;
    for (scope, change, code, reason) in [
        (PART, Change::Probe, Code::PermissionDenied, "complete host"),
        (
            PART,
            Change::Filter,
            Code::PermissionDenied,
            "complete host",
        ),
        (
            WHOLE,
            Change::Ids,
            Code::PermissionDenied,
            "only collectors",
        ),
        (
            "team=eigen-team",
            Change::Nothing,
            Code::PermissionDenied,
            "do not have its labels now",
        ),
        ("zone=eigen", Change::Nothing, Code::NotFound, "no host"),
    ] {
        let mut client = CaptureServiceClient::new(stage.as_caller(&caller("eve", scope)).await);
        let mut request = capture("");
        let asked = request.capture.as_mut().expect("some");
        match change {
            Change::Probe => asked.event = "uprobe:/lib/libc.so:malloc".to_owned(),
            Change::Filter => asked.filter = "prev_state != 0".to_owned(),
            Change::Ids => request.host_ids = vec!["id-eigen-1".to_owned()],
            Change::Nothing => {}
        }
        let refused = client.capture(request).await.expect_err("it is refused");
        assert_eq!(refused.code(), code, "{refused:?}");
        assert!(refused.message().contains(reason), "{refused:?}");
    }
}

enum Change {
    Probe,
    Filter,
    Ids,
    Nothing,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_are_those_whose_labels_are_in_the_scope() {
    let stage = Stage::set(true).await;
    for (scope, expected) in [("team=eigen", 1), ("team=~\".+\"", 2), (PART, 0)] {
        let eve = stage.as_caller(&caller("eve", scope)).await;
        let answer = FleetServiceClient::new(eve)
            .list_members(wire::ListMembersRequest {})
            .await;
        let members = answer.expect("a list").into_inner().members;
        assert_eq!(members.len(), expected, "{scope}: {members:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pins_are_those_with_samples_in_the_scope_and_their_triggers_where_all_of_them_is() {
    let stage = Stage::set(true).await;
    let listed = async |scope: &str, trigger: &str| {
        let eve = stage.as_caller(&caller("eve", scope)).await;
        let request = wire::ListHostPinsRequest {
            trigger: trigger.to_owned(),
            ..wire::ListHostPinsRequest::default()
        };
        let answer = PinServiceClient::new(eve).list(request).await;
        let pins = answer.expect("a list").into_inner().pins.into_iter();
        let mut pins: Vec<_> = pins
            .map(|pin| (pin.hostname, pin.pin.expect("its facts").trigger))
            .collect();
        pins.sort();
        pins
    };
    let pin = |trigger: &str| (SHARED.to_owned(), trigger.to_owned());
    let (own, other) = ("/kubepods/eigen-trigger", "/kubepods/kanarie-trigger");
    assert_eq!(listed(PART, "").await, [pin(""), pin(own)]);
    // Remembered now.
    assert_eq!(listed(PART, "").await, [pin(""), pin(own)]);
    assert_eq!(listed(PART, own).await, [pin(own)]);
    // Asking by a name tells nothing of it.
    assert_eq!(listed(PART, other).await, []);
    assert_eq!(listed(WHOLE, "").await, [pin(own), pin(other)]);
    assert_eq!(listed("namespace=nobody", "").await, []);
    assert_eq!(
        listed("team=eigen-team", "").await,
        [],
        "the host does not have it"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_of_the_store_is_for_those_who_see_all() {
    let stage = Stage::set(true).await;
    let ask = async |channel| {
        let mut client = QueryServiceClient::new(channel);
        let answer = client.status(wire::StatusRequest {}).await;
        answer.expect("a status").into_inner()
    };
    let all = ask(stage.rig.channel().await).await;
    assert_eq!((all.hosts_blind, all.blind_hosts.len()), (2, 2));
    assert!(!all.counters.is_empty() && all.store_bytes_max > 0 && !all.scoped);
    for (scope, whole) in [(PART, false), (WHOLE, true)] {
        let seen = ask(stage.as_caller(&caller("eve", scope)).await).await;
        assert_eq!((&seen.version, seen.scoped), (&all.version, true));
        assert_eq!((seen.kept, seen.store_bytes_max), (all.kept, 0), "{scope}");
        assert_eq!((seen.streams, seen.counters.len()), (0, 0), "{scope}");
        let [blind] = &seen.blind_hosts[..] else {
            panic!("{scope}: {seen:?}");
        };
        assert_eq!(blind.hostname, SHARED, "{scope}");
        let why = blind.why.as_ref().expect("a reason");
        assert_eq!(why.message != why.id, whole, "{scope}: {why:?}");
        assert_eq!(seen.hosts_blind, 1, "{scope}");
    }
}
