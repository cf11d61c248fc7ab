//! What somebody tries who is no member, is none any more, or has what a member has.

use crate::identity::{
    Running, SECOND, check_locked_out, hello_of, now, start, start_ahead, start_with,
};
use crate::login::with_https;
use crate::people::pinned;
use crate::rig::{PushStream, channel, starting, window};
use proto::collector::enrollment_service_client::EnrollmentServiceClient;
use proto::collector::query_service_client::QueryServiceClient;
use proto::collector::{
    EnrollRequest, Hello, InviteRequest, ListMembersRequest, Outcome, RemoveMemberRequest,
    StatusRequest,
};
use proto::credential::Credential;
use proto::pin::Pinned;
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use rustls::client::{
    ClientSessionMemoryCache, ClientSessionStore, Resumption, Tls12ClientSessionValue,
    Tls13ClientSessionValue,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, HandshakeKind, NamedGroup};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use testkit::fake::member::{EnrollError, Host, Membership, renew};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::Code;

/// Longest wait for the other end to close.
const CLOSES: Duration = Duration::from_secs(20);

/// Keeps sessions as a client does that wants to resume them, and counts them.
#[derive(Debug)]
struct Tickets {
    kept: ClientSessionMemoryCache,
    came: AtomicUsize,
}

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, name: ServerName<'static>, group: NamedGroup) {
        self.kept.set_kx_hint(name, group);
    }

    fn kx_hint(&self, name: &ServerName<'_>) -> Option<NamedGroup> {
        self.kept.kx_hint(name)
    }

    fn set_tls12_session(&self, name: ServerName<'static>, value: Tls12ClientSessionValue) {
        self.kept.set_tls12_session(name, value);
    }

    fn tls12_session(&self, name: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.kept.tls12_session(name)
    }

    fn remove_tls12_session(&self, name: &ServerName<'static>) {
        self.kept.remove_tls12_session(name);
    }

    fn insert_tls13_ticket(&self, name: ServerName<'static>, value: Tls13ClientSessionValue) {
        self.came.fetch_add(1, Ordering::Relaxed);
        self.kept.insert_tls13_ticket(name, value);
    }

    fn take_tls13_ticket(&self, name: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.kept.take_tls13_ticket(name)
    }
}

/// How a client speaks TLS that shows this certificate and signs with that key.
fn client(authority: [u8; 32], chain: CertificateDer<'static>, key: &str) -> ClientConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key");
    let key = provider.key_provider.load_private_key(key).expect("a key");
    let shown = SingleCertAndKey::from(CertifiedKey::new(vec![chain], key));
    ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Pinned::new(authority)))
        .with_client_cert_resolver(Arc::new(shown))
}

/// The certificate of a member.
fn shown(membership: &Membership) -> CertificateDer<'static> {
    let pem = membership.certificate.as_bytes();
    CertificateDer::from_pem_slice(pem).expect("a certificate")
}

async fn shake(config: &Arc<ClientConfig>, at: SocketAddr) -> TlsStream<TcpStream> {
    shake_as(config, at, proto::COLLECTOR_NAME).await
}

async fn shake_as(
    config: &Arc<ClientConfig>,
    at: SocketAddr,
    name: &'static str,
) -> TlsStream<TcpStream> {
    try_to_shake(config, at, name).await.expect("a handshake")
}

async fn try_to_shake(
    config: &Arc<ClientConfig>,
    at: SocketAddr,
    name: &'static str,
) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(at).await.expect("a connection");
    let name = ServerName::try_from(name).expect("a name");
    TlsConnector::from(config.clone())
        .connect(name, stream)
        .await
}

/// Says hello in HTTP/2, and reads what comes first; none: the connection ends before that.
async fn greet(stream: &mut TlsStream<TcpStream>) -> Option<usize> {
    let mut greeting = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // Settings without any.
    greeting.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    stream.write_all(&greeting).await.ok()?;
    let mut some = [0; 64];
    let read = timeout(CLOSES, stream.read(&mut some))
        .await
        .expect("in time");
    read.ok().filter(|read| *read > 0)
}

fn authority_of(invitation: &str) -> [u8; 32] {
    Credential::parse(invitation)
        .expect("an invitation")
        .authority
}

async fn remove(running: &Running, host: &str) {
    let request = RemoveMemberRequest {
        host: host.to_owned(),
    };
    let removed = running.admin().await.remove_member(request).await;
    removed.expect("removed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_host_resumes_no_session_because_none_is_given() {
    let dir = tempfile::tempdir().expect("a directory");
    let running = start_with(dir, Arc::default(), with_https).await;
    let host = Host::new("a");
    let invitation = running.invite(InviteRequest::default()).await;
    let membership = host
        .join(running.tls(), &invitation, now())
        .await
        .expect("a member");
    let tickets = Arc::new(Tickets {
        kept: ClientSessionMemoryCache::new(32),
        came: AtomicUsize::new(0),
    });
    let mut config = client(authority_of(&invitation), shown(&membership), &host.key);
    config.resumption = Resumption::store(tickets.clone());
    let mut members = config.clone();
    members.alpn_protocols = vec![b"h2".to_vec()];
    let members = Arc::new(members);
    for _ in 0..2 {
        let mut stream = shake(&members, running.tls()).await;
        let kind = stream.get_ref().1.handshake_kind();
        assert_eq!(kind, Some(HandshakeKind::Full));
        greet(&mut stream).await.expect("it speaks HTTP/2");
    }
    assert_eq!(
        tickets.came.load(Ordering::Relaxed),
        0,
        "a session could be resumed"
    );
    remove(&running, "a").await;
    let stream = shake(&members, running.tls()).await;
    let kind = stream.get_ref().1.handshake_kind();
    assert_eq!(kind, Some(HandshakeKind::Full));
    check_locked_out(&running, &host, &membership).await;
    // The client would resume where it can: the page's listener, which asks for no certificate,
    // gives it sessions.
    let pages = Arc::new(config);
    let https = running.at.https.expect("it listens");
    let mut page = shake_as(&pages, https, "profiles.example.net").await;
    page.write_all(b"GET /healthz HTTP/1.1\r\nHost: profiles.example.net\r\n\r\n")
        .await
        .expect("sent");
    let mut some = [0; 64];
    let read = page.read(&mut some).await.expect("an answer");
    assert!(read > 0);
    assert!(tickets.came.load(Ordering::Relaxed) > 0);
    let page = shake_as(&pages, https, "profiles.example.net").await;
    let kind = page.get_ref().1.handshake_kind();
    assert_eq!(kind, Some(HandshakeKind::Resumed));
}

/// What a counter of the collector says.
async fn counter(running: &Running, name: &str) -> u64 {
    let mut queries = QueryServiceClient::new(channel(running.at.grpc).await);
    let status = queries.status(StatusRequest {}).await.expect("an answer");
    let counters = status.into_inner().counters;
    let found = counters.iter().find(|counter| counter.name == name);
    found.map_or(0, |counter| counter.value)
}

/// Whether the other end has closed a connection.
fn is_closed(stream: &TcpStream) -> bool {
    let mut byte = [0];
    match stream.try_read(&mut byte) {
        Err(error) => error.kind() != ErrorKind::WouldBlock,
        Ok(_) => true,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_half_open_handshakes_than_there_is_room_for_keep_nobody_out() {
    const HALF_OPEN: usize = 700;
    const ROOM: usize = 512;
    // After which a handshake ends by itself.
    const HANDSHAKE: Duration = Duration::from_secs(5);
    let running = start().await;
    let (host, membership) = running.member("a").await;
    let own = host.connect(running.tls(), &membership).await;
    let mut agent = PushStream::connect(own.expect("a connection"))
        .await
        .expect("a stream");
    agent.hello(hello_of("a")).await;
    let stop = Arc::new(AtomicBool::new(false));
    let ends = stop.clone();
    let begin = (now() - 6 * 3600) * SECOND;
    let pushing = tokio::spawn(async move {
        let mut number = 0;
        while !ends.load(Ordering::Relaxed) {
            number += 1;
            let start = begin + number as i64 * SECOND;
            let part = starting(start, window(number, &["x"]));
            let ack = agent.store_part(part, &["x"]).await;
            assert_eq!(ack.outcome, Outcome::Stored as i32, "{number}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        number
    });
    let before = counter(&running, "fleetprof_collector_connections_refused_total").await;
    let mut half = Vec::new();
    let begin = Instant::now();
    for number in 0..HALF_OPEN {
        let mut stream = TcpStream::connect(running.tls())
            .await
            .expect("a connection");
        if number % 2 == 0 {
            // The start of a hello that says that it has 512 bytes.
            stream
                .write_all(&[22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3])
                .await
                .expect("sent");
        }
        half.push(stream);
    }
    // The oldest made room, long before their time was over; the newest are still waited for.
    let evicted = || {
        half.iter()
            .take(HALF_OPEN - ROOM)
            .filter(|one| is_closed(one))
            .count()
    };
    testkit::wait::until("the oldest are closed", || evicted() == HALF_OPEN - ROOM).await;
    let took = begin.elapsed();
    assert!(took < HANDSHAKE, "they ended by themselves: {took:?}");
    assert!(!is_closed(&half[HALF_OPEN - 1]));
    let refused = counter(&running, "fleetprof_collector_connections_refused_total").await;
    assert!(
        refused - before >= (HALF_OPEN - ROOM) as u64,
        "{before} {refused}"
    );
    // Who comes now is served at once: a new host joins and pushes.
    let (other, membership) = running.member("b").await;
    let own = other.connect(running.tls(), &membership).await;
    let mut second = PushStream::connect(own.expect("a connection"))
        .await
        .expect("a stream");
    second.hello(hello_of("b")).await;
    assert!(
        !is_closed(&half[HALF_OPEN - 1]),
        "the handshakes had ended before"
    );
    stop.store(true, Ordering::Relaxed);
    let pushed = pushing.await.expect("every window was taken");
    let windows = running.store.windows();
    let numbers: BTreeSet<u64> = windows
        .iter()
        .map(|window| window.origin.sequence)
        .collect();
    assert!(pushed > 0);
    assert_eq!(
        (windows.len() as u64, numbers.len() as u64),
        (pushed, pushed)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_whose_clock_is_days_off_is_told_that_it_is_the_clock() {
    const DAY: i64 = 86_400;
    // The collector is ahead, so the host is behind: its certificate is not valid yet. It lasts
    // for a week, so who is ahead of it by more than that finds it expired.
    for ahead in [3 * DAY, -8 * DAY] {
        let running = start_ahead(ahead).await;
        let invitation = running.invite(InviteRequest::default()).await;
        let host = Host::new("a");
        let joined = host.join(running.tls(), &invitation, now()).await;
        let error = joined.expect_err("refused");
        assert!(
            matches!(error, EnrollError::Clock { .. }),
            "{ahead} {error:?}"
        );
        assert!(error.to_string().contains("clock"), "{error}");
        // Nothing of the invitation was used up.
        let members = running
            .admin()
            .await
            .list_members(ListMembersRequest {})
            .await;
        assert!(members.expect("a list").into_inner().members.is_empty());
    }
    // Three days ahead are within that week: the host joins, and stays in.
    let running = start_ahead(-3 * DAY).await;
    let (host, membership) = running.member("a").await;
    let renewed = renew(&membership, &host.name, &host.key, now()).await;
    renewed.expect("renews");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signing_request_that_is_sent_again_opens_nothing() {
    let running = start().await;
    let invitation = running
        .invite(InviteRequest {
            hosts_max: 10,
            ..InviteRequest::default()
        })
        .await;
    let authority = authority_of(&invitation);
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let signing = params.serialize_request(&key).expect("a request");
    let request = EnrollRequest {
        signing_request: signing.der().to_vec(),
        host_id: "id-a".to_owned(),
        hostname: "a".to_owned(),
        credential: invitation.clone(),
    };
    let enroll = async |request: EnrollRequest| {
        let stranger = pinned(running.tls(), authority).await.expect("TLS alone");
        let enrolled = EnrollmentServiceClient::new(stranger).enroll(request).await;
        enrolled.map(tonic::Response::into_inner)
    };
    let members = async || {
        let listed = running
            .admin()
            .await
            .list_members(ListMembersRequest {})
            .await;
        listed.expect("a list").into_inner().members.len()
    };
    enroll(request.clone()).await.expect("a member");
    // Whoever saw the request gets a certificate for a key that they do not have.
    let stolen = enroll(request.clone())
        .await
        .expect("the same again")
        .certificate;
    assert_eq!(members().await, 1);
    let other = KeyPair::generate().expect("a key").serialize_pem();
    for (signs, lets_in) in [(&other, false), (&key.serialize_pem(), true)] {
        let mut config = client(authority, CertificateDer::from(stolen.clone()), signs);
        config.alpn_protocols = vec![b"h2".to_vec()];
        // Whether the refusal comes before the end of the handshake is a matter of time.
        let shaken = try_to_shake(&Arc::new(config), running.tls(), proto::COLLECTOR_NAME).await;
        let is_in = match shaken {
            Ok(mut stream) => greet(&mut stream).await.is_some(),
            Err(_) => false,
        };
        assert_eq!(is_in, lets_in);
    }
    // Nor does it make another host.
    let second = EnrollRequest {
        host_id: "id-b".to_owned(),
        hostname: "b".to_owned(),
        ..request.clone()
    };
    let refused = enroll(second).await.expect_err("refused");
    assert_eq!(refused.code(), Code::AlreadyExists, "{refused}");
    assert_eq!(members().await, 1);
    // Nor does it bring a host back that was removed.
    // An invitation of the same second counts as one from after that.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    remove(&running, "a").await;
    let refused = enroll(request).await.expect_err("refused");
    assert_ne!(refused.code(), Code::Ok, "{refused}");
    assert_eq!(members().await, 0);
}

/// All that is answered to these bytes, until the other end closes.
async fn answer_to(at: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(at).await.expect("a connection");
    stream.write_all(bytes).await.expect("sent");
    let mut answer = Vec::new();
    // A reset is an end, too.
    let read = timeout(CLOSES, stream.read_to_end(&mut answer)).await;
    let _ = read.expect("it closes");
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_and_plain_http_get_a_refusal_on_each_port() {
    let dir = tempfile::tempdir().expect("a directory");
    let running = start_with(dir, Arc::default(), with_https).await;
    let https = running.at.https.expect("it listens");
    let garbage: Vec<u8> = (0..200_u8)
        .map(|number| number.wrapping_mul(37) | 0x80)
        .collect();
    let http = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".to_vec();
    let before = counter(&running, "fleetprof_collector_connections_refused_total").await;
    for at in [running.tls(), https] {
        let answer = answer_to(at, &garbage).await;
        // An alert of TLS, that is fatal, and nothing else.
        assert_eq!(answer.len(), 7, "{at} {answer:?}");
        assert_eq!(
            (answer[0], answer[1], answer[5]),
            (21, 3, 2),
            "{at} {answer:?}"
        );
        // A sentence that says which port is meant.
        let answer = answer_to(at, &http).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("HTTP/1.1 400 "), "{at} {answer}");
    }
    let refused = counter(&running, "fleetprof_collector_connections_refused_total").await;
    assert_eq!(refused - before, 4);
    let told = |answer: &[u8]| String::from_utf8_lossy(answer).into_owned();
    let page = told(&answer_to(running.at.http, &http).await);
    assert!(page.starts_with("HTTP/1.1 200 OK"), "{page}");
    let page = told(&answer_to(running.at.http, &garbage).await);
    assert!(page.starts_with("HTTP/1.1 400 Bad Request"), "{page}");
    let grpc = told(&answer_to(running.at.grpc, &http).await);
    assert!(grpc.starts_with("HTTP/1.1 400 Bad Request"), "{grpc}");
    assert!(
        grpc.contains(&format!("the page is at http://{}", running.at.http)),
        "{grpc}"
    );
    // Frames of HTTP/2 alone, of which none answers a call.
    let grpc = answer_to(running.at.grpc, &garbage).await;
    let mut rest = &grpc[..];
    let mut kinds = Vec::new();
    while let [a, b, c, kind, _, _, _, _, _, behind @ ..] = rest {
        let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
        kinds.push(*kind);
        rest = behind.get(length..).unwrap_or_default();
    }
    const SETTINGS: u8 = 4;
    const GOAWAY: u8 = 7;
    assert!(
        kinds.iter().all(|kind| [SETTINGS, GOAWAY].contains(kind)),
        "{grpc:?}"
    );
    // All of them still answer who speaks as one should.
    running.member("a").await;
    counter(&running, "x").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_a_member_with_its_key_gets_in_and_is_told_of() {
    let running = start().await;
    let (host, membership) = running.member("a").await;
    let stream = async |boot: u8| {
        let own = host.connect(running.tls(), &membership).await;
        let mut agent = PushStream::connect(own.expect("a connection"))
            .await
            .expect("a stream");
        let hello = Hello {
            boot_id: vec![boot; 16],
            ..hello_of("a")
        };
        agent.hello(hello).await;
        agent
    };
    let store = async |agent: &mut PushStream, number| {
        let part = starting((now() - 30) * SECOND, window(number, &["x"]));
        agent.store_part(part, &["x"]).await.outcome
    };
    // The copy runs on another machine, so it has another boot.
    let (mut first, mut copy) = (stream(1).await, stream(2).await);
    assert_eq!(store(&mut copy, 1).await, Outcome::Stored as i32);
    assert_eq!(store(&mut first, 1).await, Outcome::Stored as i32);
    let duplicates = async || {
        let lines = running.audit().await.into_iter();
        lines
            .filter(|line| line["action"] == "host-duplicate")
            .collect::<Vec<_>>()
    };
    let mut found = duplicates().await;
    for _ in 0..100 {
        if !found.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        found = duplicates().await;
    }
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(
        (found[0]["who"].as_str(), &found[0]["what"]["host_id"]),
        (Some("a"), &"id-a".into())
    );
    let text = found[0]["what"]["found"].as_str().expect("text");
    assert!(text.contains("two boots"), "{text}");
    // As often as they push, it is one line for the log.
    for number in 2..5 {
        store(&mut copy, number).await;
        store(&mut first, number).await;
    }
    assert_eq!(duplicates().await.len(), 1);
    // Removing the host ends both.
    remove(&running, "a").await;
    first.end().await;
    copy.end().await;
}
