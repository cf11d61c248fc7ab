//! Every call that a curious person makes, and what came back.

use super::stage::{CANARY, CAPTURED, OWN, OWN_TYPE, Stage};
use crate::rig::LIMIT;
use axum::body::{Body, to_bytes};
use collector::access::Caller;
use collector::web;
use hyper::{Request as HttpRequest, StatusCode};
use prost::Message;
use proto::agent;
use proto::agent::{CaptureRequest, LabelMatcher, MatchOp};
use proto::collector as wire;
use proto::collector::access_service_client::AccessServiceClient;
use proto::collector::add_incident_entry_request::Evidence;
use proto::collector::alert_service_client::AlertServiceClient;
use proto::collector::annotation_service_client::AnnotationServiceClient;
use proto::collector::capture_service_client::CaptureServiceClient;
use proto::collector::fleet_service_client::FleetServiceClient;
use proto::collector::incident_service_client::IncidentServiceClient;
use proto::collector::pin_service_client::PinServiceClient;
use proto::collector::query_service_client::QueryServiceClient;
use proto::collector::save_view_request::Snapshot;
use proto::collector::symbol_service_client::SymbolServiceClient;
use proto::collector::view_service_client::ViewServiceClient;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};
use tower::Service;

/// All that came back, and from which calls.
#[derive(Default)]
pub struct Log(pub Mutex<Inner>);

#[derive(Default)]
pub struct Inner {
    /// The calls.
    pub calls: BTreeSet<String>,
    /// What was asked, in words, and all bytes of the answer.
    pub answers: Vec<(String, Vec<u8>)>,
}

impl Log {
    pub fn note(&self, call: &str, asked: &str, bytes: Vec<u8>) {
        let mut inner = self.0.lock().expect("no panic");
        inner.calls.insert(call.to_owned());
        inner.answers.push((format!("{call} {asked}"), bytes));
    }

    pub fn failed(&self, call: &str, asked: &str, status: &Status) {
        let mut bytes = status.message().as_bytes().to_vec();
        bytes.extend_from_slice(status.details());
        bytes.extend_from_slice(format!("{:?}", status.metadata()).as_bytes());
        self.note(call, asked, bytes);
    }

    pub fn answer<T: Message>(
        &self,
        (call, asked): (&str, &dyn Debug),
        answer: Result<tonic::Response<T>, Status>,
    ) -> Option<T> {
        let asked = format!("{asked:?}");
        match answer {
            Ok(answer) => {
                let answer = answer.into_inner();
                self.note(call, &asked, answer.encode_to_vec());
                Some(answer)
            }
            Err(status) => {
                self.failed(call, &asked, &status);
                None
            }
        }
    }

    /// All messages of a stream; each is shown to `each`.
    pub async fn stream<T: Message + Default>(
        &self,
        (call, asked): (&str, &dyn Debug),
        answer: Result<tonic::Response<Streaming<T>>, Status>,
        mut each: impl AsyncFnMut(&T),
    ) {
        let asked = format!("{asked:?}");
        let mut parts = match answer {
            Ok(parts) => parts.into_inner(),
            Err(status) => return self.failed(call, &asked, &status),
        };
        loop {
            let next = tokio::time::timeout(LIMIT, parts.message()).await;
            match next.expect("in time") {
                Ok(Some(part)) => {
                    each(&part).await;
                    self.note(call, &asked, part.encode_to_vec());
                }
                Ok(None) => return,
                Err(status) => return self.failed(call, &asked, &status),
            }
        }
    }

    /// Fails where a canary is in an answer. Requests are echoed by some answers: those are of the
    /// caller's own words, which have none.
    pub fn check(&self, why: &str) {
        let inner = self.0.lock().expect("no panic");
        for (asked, bytes) in &inner.answers {
            let text = String::from_utf8_lossy(bytes).to_lowercase();
            assert!(!text.contains(CANARY), "{why}: {asked}: {text:?}");
            assert!(!text.contains("4190071"), "{why}: {asked}: {text:?}");
        }
    }

    /// True when something of its own came back.
    pub fn has_own(&self, call: &str) -> bool {
        let inner = self.0.lock().expect("no panic");
        let mut answers = inner.answers.iter();
        answers.any(|(asked, bytes)| {
            asked.starts_with(call) && String::from_utf8_lossy(bytes).contains(OWN)
        })
    }
}

/// Selections of a curious person: guesses that would find others. The word is split so that it is
/// not in what answers repeat of the question.
pub fn selections() -> Vec<wire::Selection> {
    let texts = [
        "",
        "host=~\".*\"",
        "host=~\"k.*\"",
        "namespace=~\"k.*\"",
        "namespace!=\"eigen-ns\"",
        "namespace!~\"eigen.*\"",
        "unit=~\"k.*|\"",
        "comm=~\"k.*\"",
        "cgroup^=\"/\"",
        "host=\"eigen-1\"",
    ];
    let filters = [
        None,
        Some((agent::FrameFilterOp::Keep, "^k")),
        Some((agent::FrameFilterOp::Focus, "k.n.rie")),
        Some((agent::FrameFilterOp::Drop, "^eigen")),
    ];
    let mut all = Vec::new();
    for text in texts {
        for filter in filters {
            let filter = filter.map(|(op, regex)| agent::FrameFilter {
                op: op.into(),
                regex: regex.to_owned(),
            });
            all.push(wire::Selection {
                range: Some(agent::TimeRange::default()),
                selector: text.to_owned(),
                frame_filters: filter.into_iter().collect(),
                ..wire::Selection::default()
            });
        }
    }
    for profile_type in [OWN_TYPE, CAPTURED] {
        for text in ["", "namespace=~\"k.*\"", "__profile_type__=~\".*\""] {
            all.push(wire::Selection {
                range: Some(agent::TimeRange::default()),
                selector: text.to_owned(),
                profile_type: profile_type.to_owned(),
                ..wire::Selection::default()
            });
        }
    }
    all
}

pub async fn ask_queries(log: &Log, channel: &Channel) {
    let mut client = QueryServiceClient::new(channel.clone());
    for selection in selections() {
        let selection = Some(selection);
        let request = wire::LabelNamesRequest {
            selection: selection.clone(),
        };
        let answer = client.label_names(request.clone()).await;
        log.answer(("QueryService/LabelNames", &request), answer);
        for name in [
            "host",
            "unit",
            "cgroup",
            "namespace",
            "comm",
            "image",
            "pod",
            "__profile_type__",
        ] {
            let request = wire::LabelValuesRequest {
                selection: selection.clone(),
                name: name.to_owned(),
                ..wire::LabelValuesRequest::default()
            };
            let answer = client.label_values(request.clone()).await;
            log.answer(("QueryService/LabelValues", &request), answer);
        }
        for by in [&["host"][..], &["namespace", "comm"], &[]] {
            let group_by: Vec<String> = by.iter().map(|&name| name.to_owned()).collect();
            let request = wire::SeriesRequest {
                selection: selection.clone(),
                group_by: group_by.clone(),
                limit: 1,
                ..wire::SeriesRequest::default()
            };
            let answer = client.series(request.clone()).await;
            log.answer(("QueryService/Series", &request), answer);
            let request = wire::ProfileRequest {
                selection: selection.clone(),
                group_by,
                ..wire::ProfileRequest::default()
            };
            let answer = client.profile(request.clone()).await;
            log.stream(("QueryService/Profile", &request), answer, async |_| {})
                .await;
        }
        for by in ["function", "module", "host", "namespace", "comm", "unit"] {
            let request = wire::TopRequest {
                selection: selection.clone(),
                by: by.to_owned(),
                ..wire::TopRequest::default()
            };
            let answer = client.top(request.clone()).await;
            log.answer(("QueryService/Top", &request), answer);
        }
        let request = wire::DiffRequest {
            before: selection.clone(),
            after: selection.clone(),
            ..wire::DiffRequest::default()
        };
        let answer = client.diff(request.clone()).await;
        log.answer(("QueryService/Diff", &request), answer);
        for label in ["", "namespace", "comm"] {
            let request = wire::OverviewRequest {
                selection: selection.clone(),
                service_label: label.to_owned(),
                ..wire::OverviewRequest::default()
            };
            let answer = client.overview(request.clone()).await;
            log.answer(("QueryService/Overview", &request), answer);
        }
        let request = wire::CgroupsRequest { selection };
        let answer = client.cgroups(request.clone()).await;
        log.answer(("QueryService/Cgroups", &request), answer);
    }
    let request = wire::HostsRequest {
        range: Some(agent::TimeRange::default()),
    };
    let answer = client.hosts(request).await;
    log.answer(("QueryService/Hosts", &request), answer);
    let request = wire::ProfileTypesRequest {
        range: Some(agent::TimeRange::default()),
    };
    let answer = client.profile_types(request).await;
    log.answer(("QueryService/ProfileTypes", &request), answer);
    let answer = client.status(wire::StatusRequest {}).await;
    log.answer(("QueryService/Status", &""), answer);
}

/// Annotations of others are there (`stage.rs`): they are neither listed, nor copied, nor removed.
pub async fn ask_annotations(log: &Log, channel: &Channel) {
    let mut client = AnnotationServiceClient::new(channel.clone());
    for kind in ["", "deploy", "note"] {
        let request = wire::ListAnnotationsRequest {
            kind: kind.to_owned(),
            ..wire::ListAnnotationsRequest::default()
        };
        let answer = client.list(request.clone()).await;
        log.answer(("AnnotationService/List", &request), answer);
    }
    for id in 1..4 {
        let request = wire::DeleteAnnotationRequest { id };
        let answer = client.delete(request).await;
        log.answer(("AnnotationService/Delete", &request), answer);
    }
    let request = wire::AddAnnotationRequest {
        annotation: Some(wire::Annotation {
            text: "of nobody in particular".to_owned(),
            ..wire::Annotation::default()
        }),
    };
    let answer = client.add(request.clone()).await;
    log.answer(("AnnotationService/Add", &request), answer);
}

/// Rules of others are there, and groups of rules on everything: neither is listed.
pub async fn ask_alerts(log: &Log, channel: &Channel) {
    let mut client = AlertServiceClient::new(channel.clone());
    for range in [None, Some(agent::TimeRange::default())] {
        let request = wire::ListAlertsRequest { range, limit: 0 };
        let answer = client.list(request).await;
        log.answer(("AlertService/List", &request), answer);
    }
}

/// Incidents of others, and evidence of others in incidents of one's own, are there (`stage.rs`).
pub async fn ask_incidents(log: &Log, channel: &Channel) {
    let mut client = IncidentServiceClient::new(channel.clone());
    let request = wire::ListIncidentsRequest::default();
    let answer = client.list(request).await;
    log.answer(("IncidentService/List", &request), answer);
    for id in 1..5 {
        let answer = client
            .get(wire::GetIncidentRequest { id, markdown: true })
            .await;
        log.answer(("IncidentService/Get", &id), answer);
        let request = wire::SetIncidentStateRequest {
            id,
            state: wire::IncidentState::Acknowledged as i32,
            text: String::new(),
        };
        let answer = client.set_state(request.clone()).await;
        log.answer(("IncidentService/SetState", &request), answer);
        for evidence in [
            Evidence::View(wire::Selection {
                range: Some(agent::TimeRange::default()),
                ..wire::Selection::default()
            }),
            Evidence::Pin(1),
            Evidence::Capture(1),
        ] {
            let request = wire::AddIncidentEntryRequest {
                incident: id,
                evidence: Some(evidence),
                ..wire::AddIncidentEntryRequest::default()
            };
            let answer = client.add_entry(request.clone()).await;
            log.answer(("IncidentService/AddEntry", &request), answer);
        }
    }
    for id in 0..8 {
        for baseline in [false, true] {
            let request = wire::EvidenceProfileRequest { id, baseline };
            let answer = client.profile(request).await;
            log.stream(("IncidentService/Profile", &request), answer, async |_| {})
                .await;
        }
    }
    let request = wire::OpenIncidentRequest {
        title: "of nobody in particular".to_owned(),
        ..wire::OpenIncidentRequest::default()
    };
    let answer = client.open(request.clone()).await;
    log.answer(("IncidentService/Open", &request), answer);
    let request = wire::DeleteIncidentRequest { id: 1 };
    let answer = client.delete(request).await;
    log.answer(("IncidentService/Delete", &request), answer);
}

/// Views of others are there, and a snapshot of others (`stage.rs`).
pub async fn ask_views(log: &Log, channel: &Channel) {
    let mut client = ViewServiceClient::new(channel.clone());
    let request = wire::SaveViewRequest {
        name: "eigen-view".to_owned(),
        address: "#query=namespace%3D%22eigen-ns%22".to_owned(),
        snapshot: Some(Snapshot::View(wire::Selection {
            range: Some(agent::TimeRange::default()),
            ..wire::Selection::default()
        })),
    };
    let answer = client.save(request.clone()).await;
    log.answer(("ViewService/Save", &request), answer);
    let request = wire::ListViewsRequest {};
    let answer = client.list(request).await;
    log.answer(("ViewService/List", &request), answer);
    for id in 1..5 {
        let request = wire::DeleteViewRequest { id };
        let answer = client.delete(request).await;
        log.answer(("ViewService/Delete", &request), answer);
    }
}

pub async fn ask_pins(log: &Log, channel: &Channel) {
    let mut client = PinServiceClient::new(channel.clone());
    for (host, trigger) in [("", ""), ("eigen-1", ""), ("", "/kubepods/eigen-trigger")] {
        let request = wire::ListHostPinsRequest {
            host: host.to_owned(),
            trigger: trigger.to_owned(),
            ..wire::ListHostPinsRequest::default()
        };
        let answer = client.list(request.clone()).await;
        log.answer(("PinService/List", &request), answer);
    }
    for id in 0..5 {
        for captured in [false, true] {
            for matchers in [
                vec![],
                vec![LabelMatcher {
                    label: "namespace".to_owned(),
                    op: MatchOp::NotEqual.into(),
                    value: "eigen-ns".to_owned(),
                }],
            ] {
                let request = wire::PinProfileRequest {
                    id,
                    captured,
                    matchers,
                    group_by: vec!["*".to_owned()],
                    times: true,
                    ..wire::PinProfileRequest::default()
                };
                let answer = client.profile(request.clone()).await;
                log.stream(("PinService/Profile", &request), answer, async |_| {})
                    .await;
            }
        }
    }
}

pub fn capture(selector: &str) -> wire::FleetCaptureRequest {
    wire::FleetCaptureRequest {
        selector: selector.to_owned(),
        max_hosts: 1000,
        capture: Some(CaptureRequest {
            duration_ns: 1_000_000,
            group_by: vec!["*".to_owned()],
            ..CaptureRequest::default()
        }),
        ..wire::FleetCaptureRequest::default()
    }
}

pub async fn ask_captures(log: &Log, channel: &Channel, others: u64) {
    let client = CaptureServiceClient::new(channel.clone());
    let mut asking = client.clone();
    let mut requests: Vec<_> = ["", "host=~\".*\"", "host=~\"k.*\"", "namespace=~\"k.*|\""]
        .map(capture)
        .into();
    let mut by_id = capture("");
    by_id.host_ids = vec![["id-kana", "rie-host"].concat()];
    requests.push(by_id);
    let mut probe = capture("");
    probe.capture.as_mut().expect("some").event = "uprobe:/lib/libc.so:malloc".to_owned();
    requests.push(probe);
    for request in requests {
        let answer = asking.capture(request.clone()).await;
        let ending = client.clone();
        let each = async |part: &wire::FleetCaptureResponse| {
            // It runs until it is cancelled.
            if let Some(wire::fleet_capture_response::Body::Plan(plan)) = &part.body {
                let request = wire::CancelFleetCaptureRequest { id: plan.id };
                let cancelled = ending.clone().cancel(request).await;
                log.answer(("CaptureService/Cancel", &""), cancelled);
            }
        };
        log.stream(("CaptureService/Capture", &request.selector), answer, each)
            .await;
    }
    let cancelled = asking
        .cancel(wire::CancelFleetCaptureRequest { id: others })
        .await;
    let status = cancelled.expect_err("it is not theirs");
    assert_eq!(status.code(), Code::NotFound);
    log.failed("CaptureService/Cancel", "of another", &status);
    let answer = asking.list(wire::ListFleetCapturesRequest::default()).await;
    log.answer(("CaptureService/List", &""), answer);
    ask_kept(log, &client, others).await;
}

/// Every capture that there is or was, and the removal of what is another's.
async fn ask_kept(log: &Log, client: &CaptureServiceClient<Channel>, others: u64) {
    let mut client = client.clone();
    for id in 0..others + 10 {
        for past in [false, true] {
            let request = wire::FleetCaptureProfileRequest {
                id,
                past,
                group_by: vec!["*".to_owned()],
                times: true,
                ..wire::FleetCaptureProfileRequest::default()
            };
            let answer = client.profile(request.clone()).await;
            log.stream(("CaptureService/Profile", &request), answer, async |_| {})
                .await;
        }
    }
    for id in 1..=others {
        let answer = client.delete(wire::DeleteFleetCaptureRequest { id }).await;
        assert_eq!(
            refusal(&answer),
            Code::NotFound,
            "capture {id} is not theirs"
        );
        log.answer(("CaptureService/Delete", &""), answer);
    }
}

pub async fn ask_symbols(log: &Log, channel: &Channel) {
    let mut client = SymbolServiceClient::new(channel.clone());
    let answer = client.list(wire::ListSymbolsRequest { limit: 0 }).await;
    assert_eq!(refusal(&answer), Code::PermissionDenied);
    log.answer(("SymbolService/List", &""), answer);
    let request = wire::UploadSymbolsRequest {
        name: "x".to_owned(),
        data: vec![0; 10],
    };
    let answer = client.upload(tokio_stream::iter([request])).await;
    assert_eq!(refusal(&answer), Code::PermissionDenied);
    log.answer(("SymbolService/Upload", &""), answer);
}

pub async fn ask_fleet(log: &Log, channel: &Channel) {
    let mut client = FleetServiceClient::new(channel.clone());
    let answer = client.list_members(wire::ListMembersRequest {}).await;
    log.answer(("FleetService/ListMembers", &""), answer);
    let answer = client.invite(wire::InviteRequest::default()).await;
    assert_eq!(refusal(&answer), Code::PermissionDenied);
    log.answer(("FleetService/Invite", &""), answer);
    let request = wire::RemoveMemberRequest {
        host: ["kana", "rie-host"].concat(),
    };
    let answer = client.remove_member(request).await;
    assert_eq!(refusal(&answer), Code::PermissionDenied);
    log.answer(("FleetService/RemoveMember", &""), answer);
    let answer = client
        .list_invitations(wire::ListInvitationsRequest {})
        .await;
    assert_eq!(refusal(&answer), Code::PermissionDenied);
    log.answer(("FleetService/ListInvitations", &""), answer);
    let request = wire::RevokeInvitationRequest::default();
    let answer = client.revoke_invitation(request).await;
    assert_eq!(refusal(&answer), Code::PermissionDenied);
    log.answer(("FleetService/RevokeInvitation", &""), answer);
}

pub async fn ask_access(log: &Log, channel: &Channel) {
    let mut client = AccessServiceClient::new(channel.clone());
    let answer = client.who_am_i(wire::WhoAmIRequest {}).await;
    log.answer(("AccessService/WhoAmI", &""), answer);
    let answer = client.add_user(wire::AddUserRequest::default()).await;
    assert_eq!(refusal(&answer), Code::PermissionDenied);
    log.answer(("AccessService/AddUser", &""), answer);
    let answer = client.list_users(wire::ListUsersRequest {}).await;
    assert_eq!(refusal(&answer), Code::PermissionDenied);
    log.answer(("AccessService/ListUsers", &""), answer);
    let answer = client.remove_user(wire::RemoveUserRequest::default()).await;
    assert_eq!(refusal(&answer), Code::PermissionDenied);
    log.answer(("AccessService/RemoveUser", &""), answer);
    let answer = client.audit(wire::AuditRequest::default()).await;
    assert_eq!(refusal(&answer), Code::PermissionDenied);
    log.stream(("AccessService/Audit", &""), answer, async |_| {})
        .await;
    let answer = client.verify_audit(wire::VerifyAuditRequest {}).await;
    assert_eq!(refusal(&answer), Code::PermissionDenied);
    log.answer(("AccessService/VerifyAudit", &""), answer);
    let answer = client.open_page(wire::OpenPageRequest {}).await;
    log.answer(("AccessService/OpenPage", &""), answer);
}

pub fn refusal<T>(answer: &Result<T, Status>) -> Code {
    answer.as_ref().err().map_or(Code::Ok, Status::code)
}

pub async fn ask_http(log: &Log, stage: &Stage, caller: &Arc<Caller>) {
    let (_stop, ending) = tokio::sync::watch::channel(false);
    let rig = &stage.rig;
    let router = web::router(
        web::Entrance::open(),
        web::Answers {
            queries: rig.queries.clone(),
            control: rig.control.clone(),
            pins: rig.pins.clone(),
            annotations: rig.annotations.clone(),
            alerts: rig.alerts.clone(),
            measures: rig.measures.clone(),
            incidents: rig.incidents.clone(),
            pyroscope: Some(rig.pyroscope.clone()),
            senders: rig.senders.clone(),
            page: "http://p.example".into(),
        },
        rig.metrics.clone(),
        ending,
    );
    let mut router = router.layer(axum::Extension(caller.clone()));
    let formats = [
        "folded",
        "pb.gz",
        "speedscope.json",
        "svg",
        "html",
        "json",
        "firefox.json",
        "perf.txt",
        "bundle.html",
        "parquet",
    ];
    let mut paths: Vec<String> = Vec::new();
    for format in formats {
        for query in [
            "from=0&group_by=host,namespace,comm",
            "from=0&selector=namespace%3D~%22k.*%22",
            "from=0&frame=focus:k.n.rie",
            "from=0&type=eigen:space:bytes:space:bytes",
        ] {
            paths.push(format!("/api/profile.{format}?{query}"));
        }
    }
    let steps = "from=0&step=86400&group_by=host,namespace,comm";
    paths.push(format!("/api/profile.parquet?{steps}"));
    for format in formats {
        for id in 0..10 {
            paths.push(format!("/api/capture.{format}?id={id}"));
        }
    }
    for id in 0..5 {
        for query in ["", "&captured=1", "&group_by=host,namespace,comm"] {
            paths.push(format!("/api/pin.json?id={id}{query}"));
            paths.push(format!("/api/pin.folded?id={id}{query}"));
        }
    }
    for id in 1..6 {
        paths.push(format!("/api/incident.md?id={id}"));
        paths.push(format!("/api/incident.html?id={id}"));
        paths.push(format!(
            "/api/evidence.json?id={id}&group_by=host,namespace,comm"
        ));
    }
    let more = [
        "/metrics",
        "/healthz",
        "/api/profile.exe",
        "/api/annotations",
        "/api/alerts",
    ];
    paths.extend(more.map(str::to_owned));
    for path in paths {
        let request = HttpRequest::get(path.as_str()).header("host", "localhost");
        let request = request.body(Body::empty()).expect("a request");
        let response = router.call(request).await.expect("an answer");
        let (head, body) = response.into_parts();
        let mut bytes = format!("{:?} {:?} ", head.status, head.headers).into_bytes();
        let body = to_bytes(body, usize::MAX).await.expect("a body");
        bytes.extend_from_slice(&unpacked(&body));
        if path == "/metrics" {
            assert_eq!(head.status, StatusCode::FORBIDDEN);
        }
        log.note("http", &path, bytes);
    }
    ask_grpc_web(log, &mut router).await;
    ask_pyroscope(log, &mut router).await;
}

/// What Grafana asks, with selectors of everything and of what is out of the scope.
async fn ask_pyroscope(log: &Log, router: &mut axum::Router) {
    const CPU: &str = "process_cpu:cpu:nanoseconds:cpu:nanoseconds";
    // The year 2100.
    const UNTIL_MS: i64 = 4_102_444_800_000;
    for (id, selector) in [
        (CPU, "{}"),
        (CPU, r#"{host=~".*"}"#),
        (CPU, r#"{service_name=~".*"}"#),
        (CPU, r#"{host=~"kanarie.*"}"#),
        (OWN_TYPE, "{}"),
        (OWN_TYPE, r#"{host=~"kanarie.*"}"#),
        (CAPTURED, "{}"),
        (CAPTURED, r#"{host=~".*"}"#),
    ] {
        let of = format!(
            r#""profileTypeID":"{id}","labelSelector":{selector:?},"start":0,"end":{UNTIL_MS}"#
        );
        let matchers = format!(r#""matchers":[{selector:?}],"start":0,"end":0"#);
        for (call, body) in [
            ("ProfileTypes", r#"{"start":0,"end":0}"#.to_owned()),
            ("LabelNames", format!("{{{matchers}}}")),
            (
                "LabelValues",
                format!(r#"{{{matchers},"name":"service_name"}}"#),
            ),
            ("LabelValues", format!(r#"{{{matchers},"name":"host"}}"#)),
            (
                "Series",
                format!(
                    r#"{{{matchers},"labelNames":["service_name","host","__profile_type__"]}}"#
                ),
            ),
            ("Series", format!(r#"{{{matchers}}}"#)),
            (
                "SelectSeries",
                format!(r#"{{{of},"step":1e7,"groupBy":["host","service_name"]}}"#),
            ),
            ("SelectHeatmap", format!(r#"{{{of},"step":1e7}}"#)),
            ("SelectMergeStacktraces", format!("{{{of}}}")),
            ("SelectMergeProfile", format!("{{{of}}}")),
            ("Diff", format!(r#"{{"left":{{{of}}},"right":{{{of}}}}}"#)),
            ("GetProfileStats", "{}".to_owned()),
        ] {
            let request = HttpRequest::post(format!("/querier.v1.QuerierService/{call}"))
                .header("host", "localhost")
                .header("content-type", "application/json")
                .body(Body::from(body.clone()))
                .expect("a request");
            let response = router.call(request).await.expect("an answer");
            assert_eq!(response.status(), StatusCode::OK, "{call} {body}");
            let body = to_bytes(response.into_body(), usize::MAX).await;
            log.note(
                &format!("pyroscope {call}"),
                selector,
                body.expect("a body").to_vec(),
            );
        }
    }
    for (path, id) in [
        ("/pyroscope/render?from=0", CPU),
        ("/pyroscope/render-diff?leftFrom=0&rightFrom=0", CPU),
        ("/pyroscope/render?from=0", OWN_TYPE),
    ] {
        let query = format!("{path}&query={id}&leftQuery={id}&rightQuery={id}");
        let request = HttpRequest::get(query).header("host", "localhost");
        let request = request.body(Body::empty()).expect("a request");
        let response = router.call(request).await.expect("an answer");
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        let body = to_bytes(response.into_body(), usize::MAX).await;
        log.note("pyroscope render", path, body.expect("a body").to_vec());
    }
}

/// The same calls as browsers make them.
pub async fn ask_grpc_web(log: &Log, router: &mut axum::Router) {
    let top = wire::TopRequest {
        selection: selections().into_iter().next(),
        by: "host".to_owned(),
        ..wire::TopRequest::default()
    };
    for (path, message) in [
        ("QueryService/Top", top.encode_to_vec()),
        ("CaptureService/List", Vec::new()),
        ("PinService/List", Vec::new()),
        ("AnnotationService/List", Vec::new()),
        ("AlertService/List", Vec::new()),
        ("IncidentService/List", Vec::new()),
        ("ViewService/List", Vec::new()),
    ] {
        let length = u32::try_from(message.len()).expect("short").to_be_bytes();
        let body = [&[0][..], &length, &message].concat();
        let request = HttpRequest::post(format!("/fleetprof.collector.v1.{path}"))
            .header("host", "localhost")
            .header("content-type", "application/grpc-web+proto")
            .body(Body::from(body))
            .expect("a request");
        let response = router.call(request).await.expect("an answer");
        assert_eq!(response.status(), StatusCode::OK);
        let body = to_bytes(response.into_body(), usize::MAX).await;
        log.note("web", path, body.expect("a body").to_vec());
    }
}

/// What is in it, where it is packed.
pub fn unpacked(bytes: &[u8]) -> Vec<u8> {
    use std::io::Read;
    if bytes.starts_with(b"PAR1") {
        return crate::table::rows(bytes.to_vec()).join("\n").into_bytes();
    }
    let mut text = Vec::new();
    match flate2::read::GzDecoder::new(bytes).read_to_end(&mut text) {
        Ok(_) => text,
        Err(_) => bytes.to_vec(),
    }
}
