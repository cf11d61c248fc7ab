//! The port for other hosts: who is let in, as whom, and who is not.

use crate::memory::Memory;
use crate::rig::{LIMIT, Options, PushStream, Rig, channel, hello, starting, until, window};
use collector::config::Config;
use collector::identity::{Fleet, Invitation};
use collector::server::{self, Addresses, ServeError};
use collector::store::OpenStore;
use collector::time::Clock;
use proto::agent::CaptureRequest;
use proto::collector::capture_service_client::CaptureServiceClient;
use proto::collector::control_service_client::ControlServiceClient;
use proto::collector::fleet_service_client::FleetServiceClient;
use proto::collector::pin_upload_service_client::PinUploadServiceClient;
use proto::collector::query_service_client::QueryServiceClient;
use proto::collector::{
    ControlRequest, FleetCaptureRequest, Hello, HostsRequest, InviteRequest, ListMembersRequest,
    Outcome, PinHead, RemoveMemberRequest, UploadPinRequest, control_request, upload_pin_request,
};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use testkit::fake::member::{EnrollError, Host, Membership, renew};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic::{Code, Status};

/// Unit: nanoseconds.
pub const SECOND: i64 = 1_000_000_000;

/// A collector that listens for other machines.
pub struct Running {
    /// What it keeps.
    pub store: Arc<Memory>,
    /// Where it listens.
    pub at: Addresses,
    stop: watch::Sender<bool>,
    task: JoinHandle<Result<(), ServeError>>,
    /// Its data.
    pub dir: TempDir,
}

/// Unit: seconds since the Unix epoch.
pub fn now() -> i64 {
    Clock::system().now_unix_ns() / SECOND
}

/// With an empty directory.
pub async fn start() -> Running {
    start_in(tempfile::tempdir().expect("a directory"), Arc::default()).await
}

/// In this directory.
pub async fn start_in(dir: TempDir, store: Arc<Memory>) -> Running {
    start_with(dir, store, |_| {}).await
}

/// With a clock that is so many seconds ahead of the machine's.
pub async fn start_ahead(seconds: i64) -> Running {
    let clock = move || Clock::system().now_unix_ns() + seconds * SECOND;
    let dir = tempfile::tempdir().expect("a directory");
    start_by(Clock::new(clock), dir, Arc::default(), |_| {}).await
}

/// In this directory, with a configuration of its own.
pub async fn start_with(dir: TempDir, store: Arc<Memory>, change: impl Fn(&mut Config)) -> Running {
    start_by(Clock::system(), dir, store, change).await
}

async fn start_by(
    clock: Clock,
    dir: TempDir,
    store: Arc<Memory>,
    change: impl Fn(&mut Config),
) -> Running {
    let mut config = Config::default();
    Path::clone_into(dir.path(), &mut config.data_dir);
    config.listen.grpc.set_port(0);
    config.listen.http.set_port(0);
    config.listen.tls = Some(([127, 0, 0, 1], 0).into());
    change(&mut config);
    let (stop, stopping) = watch::channel(false);
    let (tell, told) = oneshot::channel();
    let served = OpenStore::of(store.clone());
    let task = tokio::spawn(async move {
        let ready = |at| tell.send(at).expect("the test waits");
        server::serve(&config, served, clock, stopping, ready).await
    });
    let at = told.await.expect("it is ready");
    Running {
        store,
        at,
        stop,
        task,
        dir,
    }
}

impl Running {
    /// Where other machines connect.
    pub fn tls(&self) -> std::net::SocketAddr {
        self.at.tls.expect("it listens")
    }

    /// Members, for whoever is on this machine.
    pub async fn admin(&self) -> FleetServiceClient<Channel> {
        FleetServiceClient::new(channel(self.at.grpc).await)
    }

    /// The string of an invitation.
    pub async fn invite(&self, request: InviteRequest) -> String {
        let invited = self.admin().await.invite(request).await;
        invited.expect("an invitation").into_inner().credential
    }

    /// A host that has joined.
    pub async fn member(&self, name: &str) -> (Host, Membership) {
        let host = Host::new(name);
        let invitation = self.invite(InviteRequest::default()).await;
        let membership = host.join(self.tls(), &invitation, now()).await;
        (host, membership.expect("a member"))
    }

    /// Ends it and starts another on the same directory.
    pub async fn restart(self) -> Running {
        self.restart_with(|_| {}).await
    }

    /// The same with a configuration of its own.
    pub async fn restart_with(self, change: impl Fn(&mut Config)) -> Running {
        self.stop.send(true).expect("it listens");
        let ended = tokio::time::timeout(LIMIT, self.task).await;
        ended.expect("it ends").expect("no panic").expect("well");
        start_with(self.dir, self.store, change).await
    }
}

/// A window of now: what the collector takes goes by its clock.
fn window_of_now(stacks: &[&str]) -> proto::collector::WindowPart {
    starting((now() - 30) * SECOND, window(1, stacks))
}

/// A Hello of now.
pub fn hello_of(name: &str) -> Hello {
    Hello {
        now_unix_ns: now() * SECOND,
        ..hello(name, 1)
    }
}

/// How a stream of pushes ends that starts with this.
pub async fn refused_push(channel: Channel, hello: Hello) -> Status {
    match PushStream::connect(channel).await {
        Err(status) => status,
        Ok(mut stream) => {
            stream
                .send(proto::collector::push_request::Body::Hello(hello))
                .await;
            stream.end().await
        }
    }
}

/// The certificate of host `a` is still good for TLS, and opens nothing.
pub async fn check_locked_out(running: &Running, host: &Host, membership: &Membership) {
    let channel = host.connect(running.tls(), membership).await;
    let pushed = refused_push(channel.expect("TLS alone"), hello_of("a")).await;
    assert_eq!(pushed.code(), Code::Unauthenticated, "{pushed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invited_host_pushes_under_the_name_of_the_fleet() {
    let running = start().await;
    let host = Host::new("web");
    let invitation = running
        .invite(InviteRequest {
            name: "web-1".to_owned(),
            labels: [("cluster".to_owned(), "eu".to_owned())].into(),
            ..InviteRequest::default()
        })
        .await;
    let joined = host.join(running.tls(), &invitation, now()).await;
    let membership = joined.expect("a member");
    assert_eq!(membership.name, "web-1");
    assert_eq!(membership.labels["cluster"], "eu");
    let connected = host.connect(running.tls(), &membership).await;
    let mut agent = PushStream::connect(connected.expect("a connection"))
        .await
        .expect("a stream");
    let mut claims = hello_of("web");
    let facts = claims.facts.as_mut().expect("facts");
    facts.hostname = "db-1".to_owned();
    facts.labels.insert("cluster".to_owned(), "us".to_owned());
    agent.hello(claims).await;
    let mut part = window_of_now(&["x"]);
    part.label_sets[0] = crate::rig::labels(&[("cluster", "us"), ("host", "a lie")]);
    let ack = agent.store_part(part, &["x"]).await;
    assert_eq!(ack.outcome, Outcome::Stored as i32);
    let windows = running.store.windows();
    let sets = windows.iter().flat_map(|window| &window.label_sets);
    let stored: Vec<(String, String)> = sets
        .flat_map(|set| set.iter().map(|(k, v)| (k.to_owned(), v.to_owned())))
        .collect();
    assert!(
        stored.contains(&("host".to_owned(), "web-1".to_owned())),
        "{stored:?}"
    );
    assert!(
        stored.contains(&("cluster".to_owned(), "eu".to_owned())),
        "{stored:?}"
    );
    assert!(
        !stored
            .iter()
            .any(|(_, value)| value == "us" || value == "db-1")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_no_member_may_enroll_and_nothing_else() {
    let running = start().await;
    let (member, membership) = running.member("a").await;
    let stranger = Membership {
        certificate: String::new(),
        ..membership.clone()
    };
    let tls = tonic::transport::ClientTlsConfig::new()
        .domain_name(proto::COLLECTOR_NAME)
        .ca_certificates(
            stranger
                .authorities
                .iter()
                .map(tonic::transport::Certificate::from_pem),
        );
    let endpoint = tonic::transport::Endpoint::from_shared(format!("https://{}", running.tls()));
    let endpoint = endpoint
        .expect("an address")
        .tls_config(tls)
        .expect("sound");
    let channel = endpoint.connect().await.expect("TLS alone");
    let pushed = refused_push(channel.clone(), hello_of("a")).await;
    assert_eq!(pushed.code(), Code::Unauthenticated, "{pushed}");
    let asked = QueryServiceClient::new(channel.clone())
        .hosts(HostsRequest::default())
        .await
        .expect_err("refused");
    assert_eq!(asked.code(), Code::Unauthenticated);
    let invited = FleetServiceClient::new(channel)
        .invite(InviteRequest::default())
        .await
        .expect_err("refused");
    assert_eq!(invited.code(), Code::Unauthenticated);
    // A member may not ask what people ask, nor invite others.
    let own = member
        .connect(running.tls(), &membership)
        .await
        .expect("a connection");
    let asked = QueryServiceClient::new(own.clone())
        .hosts(HostsRequest::default())
        .await
        .expect_err("refused");
    assert_eq!(asked.code(), Code::PermissionDenied);
    let invited = FleetServiceClient::new(own)
        .invite(InviteRequest::default())
        .await
        .expect_err("refused");
    assert_eq!(invited.code(), Code::PermissionDenied);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_speaks_for_itself_on_every_stream() {
    let running = start().await;
    let (host, membership) = running.member("a").await;
    running.member("b").await;
    let channel = host
        .connect(running.tls(), &membership)
        .await
        .expect("a connection");
    let pushed = refused_push(channel.clone(), hello_of("b")).await;
    assert_eq!(pushed.code(), Code::PermissionDenied, "{pushed}");
    let request = ControlRequest {
        body: Some(control_request::Body::Hello(hello_of("b"))),
    };
    let opened = ControlServiceClient::new(channel.clone())
        .control(tokio_stream::iter([request]))
        .await;
    let status = match opened {
        Err(status) => status,
        Ok(answers) => answers.into_inner().message().await.expect_err("refused"),
    };
    assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    let head = PinHead {
        hello: Some(hello_of("b")),
        pin: Some(proto::agent::Pin::default()),
        ..PinHead::default()
    };
    let head = UploadPinRequest {
        body: Some(upload_pin_request::Body::Head(head)),
    };
    let kept = PinUploadServiceClient::new(channel)
        .upload(tokio_stream::iter([head]))
        .await
        .expect_err("refused");
    assert_eq!(kept.code(), Code::PermissionDenied, "{kept}");
    // Who tried it is on record, by the name of its certificate.
    let lines = running.restart().await.audit().await;
    let denied = lines.iter().filter(|line| line["action"] == "denied");
    let denied = denied.map(|line| (&line["who"], &line["what"]["call"]));
    let denied: Vec<_> = denied
        .map(|(who, call)| (who.as_str().expect("text"), call.as_str().expect("text")))
        .collect();
    let calls = [
        "IngestService/Push",
        "ControlService/Control",
        "PinUploadService/Upload",
    ];
    assert_eq!(denied, calls.map(|call| ("a", call)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_host_is_cut_off_and_stays_out() {
    let running = start().await;
    let (host, membership) = running.member("a").await;
    let channel = host
        .connect(running.tls(), &membership)
        .await
        .expect("a connection");
    let mut agent = PushStream::connect(channel).await.expect("a stream");
    agent.hello(hello_of("a")).await;
    agent
        .store_part(window_of_now(&["main;work"]), &["main;work"])
        .await;
    let remove = RemoveMemberRequest {
        host: "a".to_owned(),
    };
    running
        .admin()
        .await
        .remove_member(remove)
        .await
        .expect("removed");
    // The stream that is open ends by itself.
    agent.end().await;
    // The certificate is good for a month, and opens nothing.
    check_locked_out(&running, &host, &membership).await;
    let renewed = renew(&membership, &host.name, &host.key, now()).await;
    assert!(
        matches!(renewed, Err(EnrollError::Refused(_))),
        "{renewed:?}"
    );
    // Nobody who captures is told that it is missing.
    let capture = FleetCaptureRequest {
        capture: Some(CaptureRequest {
            event: "cpu-clock".to_owned(),
            duration_ns: SECOND as u64,
            ..CaptureRequest::default()
        }),
        ..FleetCaptureRequest::default()
    };
    let mut captures = CaptureServiceClient::new(crate::rig::channel(running.at.grpc).await);
    let refused = captures.capture(capture).await.expect_err("nobody is left");
    assert_eq!(refused.code(), Code::NotFound, "{refused}");
    assert!(refused.message().contains("were removed"), "{refused}");
    // Also after a restart, and in until it is invited again.
    let running = running.restart().await;
    check_locked_out(&running, &host, &membership).await;
    let invitation = running.invite(InviteRequest::default()).await;
    let joined = host.join(running.tls(), &invitation, now()).await;
    let membership = joined.expect("a member again");
    let channel = host
        .connect(running.tls(), &membership)
        .await
        .expect("a connection");
    let mut agent = PushStream::connect(channel).await.expect("a stream");
    agent.hello(hello_of("a")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_trusts_the_fleet_that_invited_it_and_no_other() {
    let (own, other) = (start().await, start().await);
    let invitation = own.invite(InviteRequest::default()).await;
    let host = Host::new("a");
    let misled = host.join(other.tls(), &invitation, now()).await;
    assert!(
        matches!(misled, Err(EnrollError::WrongFleet { .. })),
        "{misled:?}"
    );
    // The invitation has not been shown to the other, and is good.
    let membership = host
        .join(own.tls(), &invitation, now())
        .await
        .expect("a member");
    let misled = host.connect(other.tls(), &membership).await;
    assert!(misled.is_err());
    // A certificate of another fleet is none.
    let (foreign, foreign_membership) = other.member("b").await;
    let mixed = Membership {
        authorities: membership.authorities.clone(),
        ..foreign_membership
    };
    let refused = match foreign.connect(own.tls(), &mixed).await {
        Err(_) => return,
        Ok(channel) => refused_push(channel, hello_of("b")).await,
    };
    assert_ne!(refused.code(), Code::Ok, "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_and_the_authority_survive_a_restart() {
    let running = start().await;
    let (host, membership) = running.member("a").await;
    let running = running.restart().await;
    let channel = host
        .connect(running.tls(), &membership)
        .await
        .expect("a connection");
    let mut agent = PushStream::connect(channel).await.expect("a stream");
    agent.hello(hello_of("a")).await;
    let members = running
        .admin()
        .await
        .list_members(ListMembersRequest {})
        .await;
    let members = members.expect("a list").into_inner();
    assert_eq!(members.fleet_id, membership.fleet_id);
    assert_eq!(members.members.len(), 1);
    let renewed = Membership {
        collector: running.tls().to_string(),
        ..membership
    };
    let renewed = renew(&renewed, &host.name, &host.key, now()).await;
    assert_eq!(renewed.expect("renews").name, "a");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_tls_holds_nobody_up() {
    let running = start().await;
    let mut silent = Vec::new();
    for _ in 0..200 {
        let stream = tokio::net::TcpStream::connect(running.tls()).await;
        silent.push(stream.expect("a connection"));
    }
    let mut garbage = tokio::net::TcpStream::connect(running.tls())
        .await
        .expect("a connection");
    tokio::io::AsyncWriteExt::write_all(&mut garbage, b"GET / HTTP/1.1\r\n\r\n")
        .await
        .expect("sent");
    let (host, membership) = running.member("a").await;
    let channel = host
        .connect(running.tls(), &membership)
        .await
        .expect("a connection");
    let mut agent = PushStream::connect(channel).await.expect("a stream");
    agent.hello(hello_of("a")).await;
    // Those who say nothing are let go.
    let closed = || {
        let mut buffer = [0; 16];
        let read = silent[0].try_read(&mut buffer);
        read.is_ok_and(|read| read == 0)
    };
    until("silent connections end", closed).await;
}

/// What comes back to a request that is sent in clear, until the connection ends.
async fn in_clear(address: std::net::SocketAddr) -> String {
    let mut stream = tokio::net::TcpStream::connect(address)
        .await
        .expect("a connection");
    let request = b"GET / HTTP/1.1\r\nHost: c1\r\n\r\n";
    tokio::io::AsyncWriteExt::write_all(&mut stream, request)
        .await
        .expect("sent");
    let mut answer = Vec::new();
    let reading = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut answer);
    let _ = tokio::time::timeout(LIMIT, reading).await.expect("in time");
    String::from_utf8(answer).expect("text")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_speaks_in_clear_to_a_port_of_tls_is_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let running = start_with(dir, Arc::default(), |config| {
        config.listen.https = Some(([127, 0, 0, 1], 0).into());
    })
    .await;
    let https = running.at.https.expect("a page");
    for (address, what, code) in [
        (running.tls(), "agent-ctl login", Code::Unauthenticated),
        (https, "https://", Code::FailedPrecondition),
    ] {
        let answer = in_clear(address).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        assert!(answer.contains(what), "{answer}");
        let mut lost = QueryServiceClient::new(channel(address).await);
        let told = lost.hosts(HostsRequest::default()).await;
        let told = told.expect_err("it is in clear");
        assert_eq!(told.code(), code, "{told}");
        assert!(told.message().contains(what), "{told}");
    }
}

/// A host that pushes windows one after the other, renews its certificate whenever it ends, and
/// comes back whatever happens to its connection. Ends when it has pushed so many.
async fn pusher(name: String, place: watch::Receiver<Place>, windows: u64) -> u64 {
    let host = Host::new(&name);
    let invitation = {
        let place = place.borrow();
        let authority = place.fleet.authority.key_hash();
        let made = place
            .fleet
            .registry
            .invite(&Invitation::default(), authority, now());
        made.expect("an invitation").0.reveal()
    };
    let address = place.borrow().address;
    let joined = host.join(address, &invitation, now()).await;
    let mut membership = joined.expect("a member");
    let (mut next, mut connections) = (1, 0);
    while next <= windows {
        let address = place.borrow().address;
        membership.collector = address.to_string();
        // Certificates of two seconds: each connection starts with a new one.
        match renew(&membership, &host.name, &host.key, now()).await {
            Ok(renewed) => membership = renewed,
            // The collector is away, or goes in the middle of it.
            Err(
                EnrollError::Connect { .. } | EnrollError::Late { .. } | EnrollError::Refused(_),
            ) => {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
            Err(other) => panic!("{other}"),
        }
        let Ok(channel) = host.connect(address, &membership).await else {
            continue;
        };
        let Ok(mut stream) = PushStream::connect(channel).await else {
            continue;
        };
        connections += 1;
        let hello = proto::collector::push_request::Body::Hello(hello(&name, 1));
        stream.send(hello).await;
        next = push_on(&mut stream, next, windows).await;
    }
    connections
}

/// Pushes from a window on, until all are pushed or the connection ends; the next one to push.
async fn push_on(stream: &mut PushStream, mut next: u64, windows: u64) -> u64 {
    use proto::collector::push_response::Body;
    while next <= windows {
        stream.part(window(next, &["x"])).await;
        loop {
            match stream.next().await {
                Ok(Body::Welcome(_)) => {}
                Ok(Body::Need(need)) => stream.define(need.sequence, &["x"]).await,
                Ok(Body::Ack(_)) => break,
                Err(_) => return next,
            }
        }
        next += 1;
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    next
}

/// Where the collector is just now.
struct Place {
    address: std::net::SocketAddr,
    fleet: Arc<Fleet>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_of_seconds_and_a_collector_that_is_killed_lose_and_double_nothing() {
    const HOSTS: u64 = 4;
    const WINDOWS: u64 = 200;
    let dir = tempfile::tempdir().expect("a directory");
    let options = || Options {
        fleet: Some((dir.path().join("identity"), Duration::from_secs(2))),
        ..Options::default()
    };
    let store = Arc::<Memory>::default();
    let mut rig = Rig::on(store.clone(), options()).await;
    let place = |rig: &Rig| {
        let (address, fleet) = rig.fleet.clone().expect("it listens");
        Place { address, fleet }
    };
    let (at, told) = watch::channel(place(&rig));
    let hosts: Vec<_> = (0..HOSTS)
        .map(|number| tokio::spawn(pusher(format!("host-{number}"), told.clone(), WINDOWS)))
        .collect();
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_secs(3)).await;
        // It is gone, with all connections, between an answer and the next window.
        rig.stop.send(true).expect("it listens");
        rig = Rig::on(store.clone(), options()).await;
        at.send(place(&rig)).expect("hosts listen");
    }
    for host in hosts {
        let ended = tokio::time::timeout(LIMIT, host).await;
        let connections = ended.expect("in time").expect("no panic");
        assert!(connections > 3, "{connections} connections of one host");
    }
    let mut stored: Vec<_> = store
        .windows()
        .iter()
        .map(|window| (window.origin.host.host_id.clone(), window.origin.sequence))
        .collect();
    let all = stored.len() as u64;
    stored.sort();
    stored.dedup();
    assert_eq!(
        (stored.len() as u64, all),
        (HOSTS * WINDOWS, HOSTS * WINDOWS)
    );
}
