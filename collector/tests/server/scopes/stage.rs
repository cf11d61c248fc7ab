//! A collector that has what is in a scope, and what is not.

use crate::rig::{NOW, Options, Rig, SECOND, channel, hello, sequence, start};
use collector::access::{AccessAdmin, Caller, PageAddress, Role, Scope};
use collector::audit::Audit;
use collector::config::{AlertRule, Rule};
use collector::identity::{FleetAdmin, Invitation};
use collector::senders::SenderOptions;
use collector::store::{
    HostKey, LabelSet, NewWindow, Origin, PROFILE_TYPE, PushOutcome, Row, TimeRange, WindowSink,
};
use collector::time::Clock;
use profile::{
    Dictionary, FrameKind, FrameRef, Profile, Quality, SampleKey, StackEnd, StackId, Timestamp,
    Value,
};
use proto::agent::{Degradation, Pin, Severity};
use proto::collector as wire;
use proto::collector::access_service_server::AccessServiceServer;
use proto::collector::add_incident_entry_request::Evidence;
use proto::collector::alert_service_server::AlertServiceServer;
use proto::collector::annotation_service_server::AnnotationServiceServer;
use proto::collector::capture_service_server::CaptureServiceServer;
use proto::collector::fleet_service_server::FleetServiceServer;
use proto::collector::incident_service_client::IncidentServiceClient;
use proto::collector::incident_service_server::IncidentServiceServer;
use proto::collector::pin_service_server::PinServiceServer;
use proto::collector::pin_upload_service_client::PinUploadServiceClient;
use proto::collector::query_service_server::QueryServiceServer;
use proto::collector::save_view_request::Snapshot;
use proto::collector::symbol_service_server::SymbolServiceServer;
use proto::collector::upload_pin_request::Body as Kept;
use proto::collector::view_service_client::ViewServiceClient;
use proto::collector::view_service_server::ViewServiceServer;
use proto::{Chunks, agent};
use std::sync::Arc;
use std::time::Duration;
use testkit::fake::control::{ConnectedAgent, Does};
use testkit::fake::member::Host;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Channel, Server};
use tonic::{Request, Status};

/// In every name that is out of the scope, and in nothing else.
pub const CANARY: &str = "kanarie";

/// In names that are in it.
pub const OWN: &str = "eigen";

/// Number of the incident that is in it; the one before is not.
pub const OWN_INCIDENT: u64 = 2;

/// The host that has samples of both.
pub const SHARED: &str = "eigen-1";

/// The host that has samples of others alone.
pub const OTHER: &str = "kanarie-host";

/// A profile type of senders, with samples of both.
pub const OWN_TYPE: &str = "eigen:space:bytes:space:bytes";

/// The profile type of the captures.
pub const CAPTURED: &str = "captured:cpu-clock:nanoseconds:cpu-clock:nanoseconds";

/// A profile type with samples of others alone.
const OTHER_TYPE: &str = "kanarie:space:bytes:space:bytes";

/// A scope of a part of a host.
pub const PART: &str = "namespace=eigen-ns";

/// A scope of a host as a whole, all of which is its own then.
pub const WHOLE: &str = "host=eigen-1";

pub fn caller(name: &str, scope: &str) -> Arc<Caller> {
    Arc::new(Caller {
        name: name.to_owned(),
        role: Role::Admin,
        scope: Some(Scope::parse(scope).expect("a scope")),
    })
}

pub fn stack(dict: &mut Dictionary, text: &str, module: &str) -> StackId {
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
pub fn own_labels() -> Vec<(&'static str, &'static str)> {
    vec![
        ("cgroup", "/kubepods/eigen"),
        ("container_name", "eigen-c"),
        ("namespace", "eigen-ns"),
        ("pod", "eigen-pod"),
        ("comm", "eigen-comm"),
        // The samples have it, and no host says it of itself.
        ("team", "eigen-team"),
    ]
}

/// What does not.
pub fn other_labels() -> Vec<(&'static str, &'static str)> {
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
pub type Sample = (Vec<(&'static str, &'static str)>, &'static str, StackEnd);

pub fn put(rig: &Rig, host: &str, number: u64, samples: &[Sample]) {
    let (window, dict) = windowed(host, number, samples);
    let taken = rig.store.push(&[window], &dict, NOW).expect("taken");
    assert_eq!(taken, [PushOutcome::Stored]);
}

/// The same as a sender sends it, of this profile type.
fn send(rig: &Rig, profile_type: &str, (host, number): (&str, u64), samples: &[Sample]) {
    let (mut window, dict) = windowed(host, number, samples);
    window.origin.host.host_id = format!("{host} {profile_type}");
    window.label_sets = window
        .label_sets
        .iter()
        .map(|set| {
            let own = set
                .iter()
                .map(|(name, value)| (name.to_owned(), value.to_owned()));
            LabelSet::new(own.chain([(PROFILE_TYPE.to_owned(), profile_type.to_owned())]))
        })
        .collect();
    let senders = rig.open.senders.as_ref().expect("they are let in");
    let taken = senders.sink.push(&[window], &dict, NOW).expect("taken");
    assert_eq!(taken, [PushOutcome::Stored]);
}

fn windowed(host: &str, number: u64, samples: &[Sample]) -> (NewWindow, Dictionary) {
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
        pressure: None,
        dropped_before: None,
        stream: None,
    };
    (window, dict)
}

pub fn said(host: &str, text: &str) -> wire::Hello {
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
        blind: true,
        ..wire::HostHealth::default()
    });
    hello
}

/// A profile as a host has it: of what is in the scope, and of others, who also end its waits.
fn pinned(own: bool, others: bool) -> Profile {
    let mut profile = Profile::default();
    let wait = match others {
        true => "eigen_main;eigen_poll;[woken by kanarie];kanarie_wake",
        false => "eigen_main;eigen_poll;[woken by eigen];eigen_wake",
    };
    let rows = [
        (own, own_labels(), wait, "1"),
        (own, own_labels(), "eigen_main;eigen_run", "1"),
        (
            others,
            other_labels(),
            "kanarie_main;kanarie_run",
            "4190071",
        ),
    ];
    for (_, labels, text, pid) in rows.into_iter().filter(|row| row.0) {
        let stack = stack(&mut profile.dict, text, "");
        let pairs = labels.iter().copied().chain([("pid", pid)]);
        let labels = profile.dict.intern_labels(pairs);
        let end = StackEnd::Complete;
        let key = SampleKey { labels, stack, end };
        let (at_ns, count, weight) = (1, 1, 10);
        profile.add(key, Value { count, weight });
        profile
            .timestamps
            .list
            .push(Timestamp { at_ns, key, weight });
    }
    profile.info.event = profile::OFF_CPU.to_owned();
    if others {
        profile.info.waits_cause = "kanarie-cause".to_owned();
    }
    profile.timestamps.start_unix_ns = NOW;
    profile.timestamps.duration_ns = 10;
    profile
}

/// `others`: it has samples of others.
pub async fn pin(rig: &Rig, host: &str, (number, cgroup): (u64, &str), others: bool) {
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
    let profile = pinned(host == SHARED, others);
    let minutes = Chunks::new(&profile).map(Kept::Minutes);
    let captured = Chunks::new(&profile).map(Kept::Captured);
    let bodies = std::iter::once(head).chain(minutes).chain(captured);
    let requests: Vec<_> = bodies
        .map(|body| wire::UploadPinRequest { body: Some(body) })
        .collect();
    let mut client = PinUploadServiceClient::new(rig.channel().await);
    let kept = client.upload(tokio_stream::iter(requests)).await;
    kept.expect("the pin is kept");
}

/// Incidents of both, that of the scope with evidence of both. `own`: the selector of what the
/// scope takes as a whole.
async fn incidents(rig: &Rig, own: &str) {
    let mut client = IncidentServiceClient::new(rig.channel().await);
    for (title, host, namespace, selectors) in [
        (
            "kanarie-incident",
            OTHER,
            "kanarie-ns",
            &["namespace=kanarie-ns"][..],
        ),
        (
            "eigen-incident",
            SHARED,
            "eigen-ns",
            &["namespace=eigen-ns", "host=eigen-1", "namespace=kanarie-ns"],
        ),
    ] {
        let pairs = [("host", host), ("namespace", namespace)];
        let labels = pairs.map(|(n, v)| (n.to_owned(), v.to_owned())).into();
        let opened = client.open(wire::OpenIncidentRequest {
            title: title.to_owned(),
            labels,
        });
        let opened = opened.await.expect("opened").into_inner().incident;
        let incident = opened.expect("an incident").id;
        for selector in selectors {
            let view = wire::Selection {
                selector: (*selector).to_owned(),
                range: Some(agent::TimeRange::default()),
                ..wire::Selection::default()
            };
            // As the page sends it.
            let name = match *selector == own {
                true => OWN,
                false => CANARY,
            };
            let entry = wire::AddIncidentEntryRequest {
                incident,
                text: format!("{name}-words"),
                address: format!("#view=profile&query={name}"),
                evidence: Some(Evidence::View(view)),
            };
            // What is not there in this stage cannot be kept.
            let _ = client.add_entry(entry).await;
        }
    }
}

/// A view and a snapshot of somebody without a scope, and of others.
async fn views(rig: &Rig) {
    let mut client = ViewServiceClient::new(rig.channel().await);
    for snapshot in [None, Some("namespace=kanarie-ns")] {
        let view = |selector: &str| wire::Selection {
            selector: selector.to_owned(),
            range: Some(agent::TimeRange::default()),
            ..wire::Selection::default()
        };
        let saved = client.save(wire::SaveViewRequest {
            name: "kanarie-view".to_owned(),
            address: "#query=namespace%3D%22kanarie-ns%22".to_owned(),
            snapshot: snapshot.map(|of| Snapshot::View(view(of))),
        });
        // What is not there in this stage cannot be kept.
        let saved = saved.await;
        assert!(saved.is_ok() || snapshot.is_some(), "{saved:?}");
    }
}

/// A collector with both, and agents that are connected.
pub struct Stage {
    /// The collector.
    pub rig: Rig,
    /// Its members.
    pub fleet: FleetAdmin,
    /// Those of the shared host and of the other.
    pub agents: Vec<ConnectedAgent>,
    _dir: tempfile::TempDir,
}

impl Stage {
    /// `others`: what the shared host has of others.
    pub async fn set(others: bool) -> Stage {
        let dir = tempfile::tempdir().expect("a directory");
        let lasts = Duration::from_secs(86_400);
        let mut options = Options {
            fleet: Some((dir.path().join("identity"), lasts)),
            senders: Some(SenderOptions {
                request_bytes: 1 << 20,
                bytes_per_minute: 1 << 20,
                series: 100,
            }),
            ..Options::default()
        };
        for (name, selector, by) in [
            ("each-namespace", "", "namespace"),
            ("each-host", "", "host"),
            ("kanarie-all", "", ""),
            ("kanarie-rule", "namespace=kanarie-ns", ""),
            ("eigen-rule", "namespace=eigen-ns", ""),
        ] {
            let rule = AlertRule {
                name: name.to_owned(),
                selector: selector.to_owned(),
                when: "cores > 0".to_owned(),
                by: by.to_owned(),
                ..AlertRule::default()
            };
            options
                .alerts
                .rules
                .push(Rule::parse(&rule, &[]).expect("a rule"));
        }
        let rig = Rig::with(options).await;
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
            send(&rig, OWN_TYPE, (SHARED, number), &shared);
            send(&rig, OWN_TYPE, (OTHER, number), &other);
            send(&rig, OTHER_TYPE, (OTHER, number), &other);
        }
        for (text, labels) in [
            (
                "kanarie-deploy",
                vec![("namespace", "kanarie-ns"), ("host", OTHER)],
            ),
            ("kanarie of nobody", vec![]),
            ("kanarie of the host", vec![("host", OTHER)]),
            (
                "eigen-deploy",
                vec![("namespace", "eigen-ns"), ("host", SHARED)],
            ),
        ] {
            let labels = labels.into_iter();
            let annotation = wire::Annotation {
                text: text.to_owned(),
                labels: labels.map(|(n, v)| (n.to_owned(), v.to_owned())).collect(),
                ..wire::Annotation::default()
            };
            let added = rig
                .annotations
                .add(&Caller::local(), String::new(), annotation)
                .await;
            added.expect("kept");
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
        rig.alerts.round().await;
        let own = match others {
            true => PART,
            false => WHOLE,
        };
        incidents(&rig, own).await;
        views(&rig).await;
        pin(&rig, OTHER, (1, "/kubepods/kanarie"), true).await;
        if others {
            pin(&rig, SHARED, (2, "/kubepods/kanarie"), true).await;
        }
        pin(&rig, SHARED, (3, "/kubepods/eigen"), others).await;
        let fleet = FleetAdmin::new(members, hosts_at.to_string(), Audit::off());
        Stage {
            rig,
            fleet,
            agents,
            _dir: dir,
        }
    }

    /// A connection on which everything is asked by `caller`.
    pub async fn as_caller(&self, caller: &Arc<Caller>) -> Channel {
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
            .add_service(AnnotationServiceServer::with_interceptor(
                rig.annotations.clone(),
                names.clone(),
            ))
            .add_service(AlertServiceServer::with_interceptor(
                rig.alerts.clone(),
                names.clone(),
            ))
            .add_service(ViewServiceServer::with_interceptor(
                rig.incidents.clone(),
                names.clone(),
            ))
            .add_service(IncidentServiceServer::with_interceptor(
                rig.incidents.clone(),
                names.clone(),
            ))
            .add_service(SymbolServiceServer::with_interceptor(
                rig.symbols.clone(),
                names.clone(),
            ))
            .add_service(FleetServiceServer::with_interceptor(
                self.fleet.clone(),
                names.clone(),
            ))
            .add_service(AccessServiceServer::with_interceptor(
                AccessAdmin::local(
                    Audit::off(),
                    PageAddress {
                        url: "http://127.0.0.1:7610".to_owned(),
                        asks: false,
                    },
                ),
                names.clone(),
            ));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        channel(address).await
    }
}
