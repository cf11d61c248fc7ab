//! What somebody with a scope gets: every call and every download, looked through byte by byte for
//! names that are none of theirs.
//!
//! Whatever is out of the scope has `kanarie` in its name: hosts, labels, functions, files, cgroups,
//! triggers, reasons, notices, units of measure. What is in it has `eigen`.

use crate::rig::{LIMIT, NOW, Options, Rig, SECOND, channel, hello, sequence, start, until};
use axum::body::{Body, to_bytes};
use collector::access::{Caller, Role, Scope};
use collector::identity::{FleetAdmin, Invitation};
use collector::store::{HostKey, LabelSet, NewWindow, Origin, Row, TimeRange, WindowSink};
use collector::time::Clock;
use collector::web;
use hyper::{Request as HttpRequest, StatusCode};
use profile::{
    Dictionary, FrameKind, FrameRef, Moment, Profile, Quality, SampleKey, StackEnd, StackId, Value,
};
use prost::Message;
use proto::agent::{CaptureRequest, Degradation, LabelMatcher, MatchOp, Pin, Severity};
use proto::collector as wire;
use proto::collector::capture_service_client::CaptureServiceClient;
use proto::collector::capture_service_server::CaptureServiceServer;
use proto::collector::evidence_service_client::EvidenceServiceClient;
use proto::collector::fleet_service_client::FleetServiceClient;
use proto::collector::fleet_service_server::FleetServiceServer;
use proto::collector::keep_request::Body as Kept;
use proto::collector::pin_service_client::PinServiceClient;
use proto::collector::pin_service_server::PinServiceServer;
use proto::collector::query_service_client::QueryServiceClient;
use proto::collector::query_service_server::QueryServiceServer;
use proto::collector::symbol_service_client::SymbolServiceClient;
use proto::collector::symbol_service_server::SymbolServiceServer;
use proto::{Chunks, agent};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::fake::control::{ConnectedAgent, Does};
use testkit::fake::member::Host;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Status, Streaming};
use tower::Service;

/// In every name that is out of the scope, and in nothing else.
const CANARY: &str = "kanarie";

/// In names that are in it.
const OWN: &str = "eigen";

/// The host that has samples of both.
const SHARED: &str = "eigen-1";

/// The host that has samples of others alone.
const OTHER: &str = "kanarie-host";

/// A scope of a part of a host.
const PART: &str = "namespace=eigen-ns";

/// A scope of a host as a whole, all of which is its own then.
const WHOLE: &str = "host=eigen-1";

fn caller(name: &str, scope: &str) -> Arc<Caller> {
    Arc::new(Caller {
        name: name.to_owned(),
        role: Role::Admin,
        scope: Some(Scope::parse(scope).expect("a scope")),
    })
}

fn stack(dict: &mut Dictionary, text: &str, module: &str) -> StackId {
    text.split(';').fold(StackId::EMPTY, |stack, function| {
        let kind = match function.starts_with('[') {
            true => FrameKind::Synthetic,
            false => FrameKind::Native,
        };
        let frame = dict.intern_frame(FrameRef {
            function,
            module,
            kind,
            file: module,
            ..FrameRef::default()
        });
        dict.stacks.child(stack, frame)
    })
}

/// What runs in the scope.
fn own_labels() -> Vec<(&'static str, &'static str)> {
    vec![
        ("cgroup", "/kubepods/eigen"),
        ("container_name", "eigen-c"),
        ("namespace", "eigen-ns"),
        ("pod", "eigen-pod"),
        ("comm", "eigen-comm"),
    ]
}

/// What does not.
fn other_labels() -> Vec<(&'static str, &'static str)> {
    vec![
        ("cgroup", "/kubepods/kanarie"),
        ("unit", "kanarie.service"),
        ("container_name", "kanarie-c"),
        ("container.label/kanarie-label", "kanarie-value"),
        ("image", "kanarie-image"),
        ("namespace", "kanarie-ns"),
        ("comm", "kanarie-comm"),
    ]
}

/// Samples of a window: labels, stack, end.
type Sample = (Vec<(&'static str, &'static str)>, &'static str, StackEnd);

fn put(rig: &Rig, host: &str, number: u64, samples: &[Sample]) {
    let mut dict = Dictionary::default();
    let mut label_sets: Vec<LabelSet> = Vec::new();
    let mut rows = Vec::new();
    for (labels, text, end) in samples {
        let pairs = labels.iter().copied().chain([("host", host)]);
        let set = LabelSet::new(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let labels = label_sets.iter().position(|known| *known == set);
        let labels = labels.unwrap_or_else(|| {
            label_sets.push(set);
            label_sets.len() - 1
        });
        let module = match text.contains(CANARY) {
            true => "kanarie.so",
            false => "eigen.so",
        };
        let id = stack(&mut dict, text, module);
        let (count, weight) = (3, 30_000_000);
        rows.push(Row {
            labels: labels as u32,
            stack: dict.content_ids()[id.0 as usize],
            end: *end,
            value: Value { count, weight },
        });
    }
    let start_unix_ns = start(number);
    let window = NewWindow {
        origin: Origin {
            host: HostKey {
                host_id: format!("id-{host}"),
                boot_id: [1; 16],
            },
            sequence: sequence(number),
        },
        range: TimeRange {
            start_unix_ns,
            end_unix_ns: start_unix_ns + 10 * SECOND,
        },
        event: "cpu-clock".to_owned(),
        unit: "nanoseconds".to_owned(),
        period: 10_000_000,
        quality: Quality::default(),
        label_sets,
        rows,
        accounts: Vec::new(),
        dropped_before: None,
        stream: None,
    };
    let taken = rig.store.push(&[window], &dict, NOW).expect("taken");
    assert_eq!(taken, [collector::store::PushOutcome::Stored]);
}

fn said(host: &str, text: &str) -> wire::Hello {
    let mut hello = hello(host, 1);
    let facts = hello.facts.as_mut().expect("facts");
    facts.health = Some(wire::HostHealth {
        degradations: vec![Degradation {
            id: "jit".to_owned(),
            message: text.to_owned(),
            remedy: text.to_owned(),
            severity: Severity::Warning.into(),
            ..Degradation::default()
        }],
        ..wire::HostHealth::default()
    });
    hello
}

/// A profile as a host has it: of both, with waits that others ended.
fn pinned() -> Profile {
    let mut profile = Profile::default();
    for (labels, text) in [
        (
            own_labels(),
            "eigen_main;eigen_poll;[woken by kanarie];kanarie_wake",
        ),
        (own_labels(), "eigen_main;eigen_run"),
        (other_labels(), "kanarie_main;kanarie_run"),
    ] {
        let stack = stack(&mut profile.dict, text, "");
        let pid = [(
            "pid",
            if text.contains("kanarie_main") {
                "77777"
            } else {
                "1"
            },
        )];
        let pairs = labels.iter().copied().chain(pid);
        let labels = profile.dict.intern_labels(pairs);
        let end = StackEnd::Complete;
        let key = SampleKey { labels, stack, end };
        profile.add(
            key,
            Value {
                count: 1,
                weight: 10,
            },
        );
        let (at_ns, weight) = (1, 10);
        profile.moments.list.push(Moment { at_ns, key, weight });
    }
    profile.info.event = profile::OFF_CPU.to_owned();
    profile.info.waits_cause = "kanarie-cause".to_owned();
    profile.moments.start_unix_ns = NOW;
    profile.moments.duration_ns = 10;
    profile
}

async fn pin(rig: &Rig, host: &str, number: u64, cgroup: &str) {
    let pin = Pin {
        id: number,
        trigger: format!("{cgroup}-trigger"),
        cause: format!("{cgroup}-cause"),
        cgroup: cgroup.to_owned(),
        fired_unix_ns: NOW - 60 * SECOND,
        range: Some(agent::TimeRange {
            start_unix_ns: NOW - 300 * SECOND,
            end_unix_ns: NOW,
        }),
        ..Pin::default()
    };
    let head = Kept::Head(wire::PinHead {
        hello: Some(hello(host, 1)),
        pin: Some(pin),
        has_capture: true,
    });
    let profile = match host {
        OTHER => {
            let mut all = pinned();
            let other = all.dict.clone();
            all.samples
                .retain(|key, _| other.label(key.labels, "namespace") == Some("kanarie-ns"));
            all
        }
        _ => pinned(),
    };
    let minutes = Chunks::new(&profile).map(Kept::Minutes);
    let captured = Chunks::new(&profile).map(Kept::Captured);
    let bodies = std::iter::once(head).chain(minutes).chain(captured);
    let requests: Vec<_> = bodies
        .map(|body| wire::KeepRequest { body: Some(body) })
        .collect();
    let mut client = EvidenceServiceClient::new(rig.channel().await);
    let kept = client.keep(tokio_stream::iter(requests)).await;
    kept.expect("the pin is kept");
}

/// A collector with both, and agents that are connected.
struct Stage {
    rig: Rig,
    fleet: FleetAdmin,
    agents: Vec<ConnectedAgent>,
    _dir: tempfile::TempDir,
}

impl Stage {
    /// `others`: what the shared host has of others.
    async fn set(others: bool) -> Stage {
        let dir = tempfile::tempdir().expect("a directory");
        let lasts = Duration::from_secs(86_400);
        let rig = Rig::with(Options {
            fleet: Some((dir.path().join("identity"), lasts)),
            ..Options::default()
        })
        .await;
        let (hosts_at, members) = rig.fleet.clone().expect("it has a fleet");
        for (name, team) in [("eigen-9", "eigen"), ("kanarie-9", "kanarie")] {
            let invitation = Invitation {
                name: name.to_owned(),
                labels: [("team".to_owned(), team.to_owned())].into(),
                ..Invitation::default()
            };
            let now = Clock::system().now_unix_ns() / SECOND;
            let authority = members.authority.key_hash();
            let made = members.registry.invite(&invitation, authority, now);
            let (credential, _) = made.expect("an invitation");
            let (host, credential) = (Host::new(name), credential.reveal());
            let joined = host.join(hosts_at, &credential, now).await;
            joined.expect("it joins");
        }
        for number in [340, 350] {
            let mut shared: Vec<Sample> = vec![
                (own_labels(), "eigen_main;eigen_run", StackEnd::Complete),
                (own_labels(), "eigen_main;[other]", StackEnd::Complete),
                (own_labels(), "[lost]", StackEnd::Lost),
            ];
            let other: Vec<Sample> = vec![
                (
                    other_labels(),
                    "kanarie_main;kanarie_run",
                    StackEnd::Complete,
                ),
                (other_labels(), "kanarie_main;[other]", StackEnd::Complete),
                (other_labels(), "[lost]", StackEnd::Lost),
                (
                    vec![("cgroup", "/kanarie-root")],
                    "[withheld]",
                    StackEnd::Complete,
                ),
            ];
            if others {
                shared.extend(other.clone());
            }
            put(&rig, SHARED, number, &shared);
            put(&rig, OTHER, number, &other);
        }
        let mut agents = Vec::new();
        for host in [SHARED, OTHER] {
            let text = match others || host == OTHER {
                true => "kanarie: a process of somebody cannot be looked at",
                false => "eigen",
            };
            let mut push = crate::rig::PushStream::connect(rig.channel().await)
                .await
                .expect("a stream");
            push.hello(said(host, text)).await;
            let does = match host {
                SHARED => Does::Runs(4),
                _ => Does::Fails,
            };
            agents.push(rig.connect(hello(host, 1), does).await);
        }
        rig.hosts.flush(&rig.open).expect("stored");
        rig.hosts.look();
        pin(&rig, OTHER, 1, "/kubepods/kanarie").await;
        if others {
            pin(&rig, SHARED, 2, "/kubepods/kanarie").await;
        }
        pin(&rig, SHARED, 3, "/kubepods/eigen").await;
        let fleet = FleetAdmin::new(members, hosts_at);
        Stage {
            rig,
            fleet,
            agents,
            _dir: dir,
        }
    }

    /// A connection on which everything is asked by `caller`.
    async fn as_caller(&self, caller: &Arc<Caller>) -> Channel {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0");
        let listener = listener.await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let caller = caller.clone();
        let names = move |mut request: Request<()>| {
            request.extensions_mut().insert(caller.clone());
            Ok::<_, Status>(request)
        };
        let (rig, names) = (&self.rig, &names);
        let server = Server::builder()
            .add_service(QueryServiceServer::with_interceptor(
                rig.queries.clone(),
                names.clone(),
            ))
            .add_service(CaptureServiceServer::with_interceptor(
                rig.control.clone(),
                names.clone(),
            ))
            .add_service(PinServiceServer::with_interceptor(
                rig.pins.clone(),
                names.clone(),
            ))
            .add_service(SymbolServiceServer::with_interceptor(
                rig.symbols.clone(),
                names.clone(),
            ))
            .add_service(FleetServiceServer::with_interceptor(
                self.fleet.clone(),
                names.clone(),
            ));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        channel(address).await
    }
}

/// All that came back, and from which calls.
#[derive(Default)]
struct Log(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    calls: BTreeSet<String>,
    /// What was asked, in words, and all bytes of the answer.
    answers: Vec<(String, Vec<u8>)>,
}

impl Log {
    fn note(&self, call: &str, asked: &str, bytes: Vec<u8>) {
        let mut inner = self.0.lock().expect("no panic");
        inner.calls.insert(call.to_owned());
        inner.answers.push((format!("{call} {asked}"), bytes));
    }

    fn failed(&self, call: &str, asked: &str, status: &Status) {
        let mut bytes = status.message().as_bytes().to_vec();
        bytes.extend_from_slice(status.details());
        bytes.extend_from_slice(format!("{:?}", status.metadata()).as_bytes());
        self.note(call, asked, bytes);
    }

    fn answer<T: Message>(
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
    async fn stream<T: Message + Default>(
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
    fn check(&self, why: &str) {
        let inner = self.0.lock().expect("no panic");
        for (asked, bytes) in &inner.answers {
            let text = String::from_utf8_lossy(bytes).to_lowercase();
            assert!(!text.contains(CANARY), "{why}: {asked}: {text:?}");
            assert!(!text.contains("77777"), "{why}: {asked}: {text:?}");
        }
    }

    /// True when something of its own came back.
    fn has_own(&self, call: &str) -> bool {
        let inner = self.0.lock().expect("no panic");
        let mut answers = inner.answers.iter();
        answers.any(|(asked, bytes)| {
            asked.starts_with(call) && String::from_utf8_lossy(bytes).contains(OWN)
        })
    }
}

/// Selections of a curious person: guesses that would find others. The word is split so that it is
/// not in what answers repeat of the question.
fn selections() -> Vec<wire::Selection> {
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
    all
}

async fn ask_queries(log: &Log, channel: &Channel) {
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
            limit: 0,
        };
        let answer = client.diff(request.clone()).await;
        log.answer(("QueryService/Diff", &request), answer);
        let request = wire::CgroupsRequest { selection };
        let answer = client.cgroups(request.clone()).await;
        log.answer(("QueryService/Cgroups", &request), answer);
    }
    let request = wire::HostsRequest {
        range: Some(agent::TimeRange::default()),
    };
    let answer = client.hosts(request).await;
    log.answer(("QueryService/Hosts", &request), answer);
    let answer = client.status(wire::StatusRequest {}).await;
    log.answer(("QueryService/Status", &""), answer);
}

async fn ask_pins(log: &Log, channel: &Channel) {
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

fn capture(selector: &str) -> wire::FleetCaptureRequest {
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

async fn ask_captures(log: &Log, channel: &Channel, others: u64) {
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
    let answer = asking.list(wire::ListFleetCapturesRequest {}).await;
    log.answer(("CaptureService/List", &""), answer);
}

async fn ask_symbols(log: &Log, channel: &Channel) {
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

async fn ask_fleet(log: &Log, channel: &Channel) {
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
}

fn refusal<T>(answer: &Result<T, Status>) -> Code {
    answer.as_ref().err().map_or(Code::Ok, Status::code)
}

async fn ask_http(log: &Log, stage: &Stage, caller: &Arc<Caller>) {
    let (_stop, ending) = tokio::sync::watch::channel(false);
    let rig = &stage.rig;
    let router = web::router(
        rig.queries.clone(),
        rig.control.clone(),
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
    ];
    let mut paths: Vec<String> = Vec::new();
    for format in formats {
        for query in [
            "from=0&group_by=host,namespace,comm",
            "from=0&selector=namespace%3D~%22k.*%22",
            "from=0&frame=focus:k.n.rie",
        ] {
            paths.push(format!("/api/profile.{format}?{query}"));
        }
    }
    paths.extend(["/metrics", "/healthz", "/api/profile.exe"].map(str::to_owned));
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
}

/// What is in it, where it is packed.
fn unpacked(bytes: &[u8]) -> Vec<u8> {
    use std::io::Read;
    let mut text = Vec::new();
    match flate2::read::GzDecoder::new(bytes).read_to_end(&mut text) {
        Ok(_) => text,
        Err(_) => bytes.to_vec(),
    }
}

/// Every call of the descriptors that people may make of a collector.
fn calls_of_people() -> BTreeSet<String> {
    let set = prost_types::FileDescriptorSet::decode(proto::DESCRIPTORS).expect("descriptors");
    let of_agents = [
        "IngestService",
        "ControlService",
        "EvidenceService",
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

async fn everything(stage: &Stage, scope: &str) -> Log {
    let eve = caller("eve", scope);
    let log = Log::default();
    let channel = stage.as_caller(&eve).await;
    let (others, parts) = capture_of_another(stage).await;
    ask_queries(&log, &channel).await;
    ask_pins(&log, &channel).await;
    ask_captures(&log, &channel, others).await;
    ask_symbols(&log, &channel).await;
    ask_fleet(&log, &channel).await;
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
            "PinService/List",
            "PinService/Profile",
            "CaptureService/Capture",
            "CaptureService/List",
            "http /api/profile.folded",
            "http /api/profile.pb.gz",
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
        assert_eq!(stage.agents[1].captures().len(), 1, "{scope}");
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_scope_cannot_be_added_to_is_refused_with_the_reason() {
    let stage = Stage::set(true).await;
    for (scope, change, code, reason) in [
        (
            PART,
            Change::Probe,
            Code::PermissionDenied,
            "host as a whole",
        ),
        (
            PART,
            Change::Filter,
            Code::PermissionDenied,
            "host as a whole",
        ),
        (WHOLE, Change::Ids, Code::PermissionDenied, "for collectors"),
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
