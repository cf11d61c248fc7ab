//! Tests who can connect, and what happens to clients and sockets.

use super::*;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use tokio_stream::StreamExt;
use tonic::transport::ClientTlsConfig;
use tonic::{Code, Request};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

pub(super) const TOKEN: &str = "a-token-of-32-bytes-0123456789ab";

#[tokio::test]
async fn a_socket_that_is_served_is_not_taken() {
    let (directory, running, mut client) = service().await;
    let path = directory.path().join("agent.sock");
    let second = start(ServeOptions::new(unix_at(&path)), FakeHost::new()).await;
    assert!(matches!(second, Err(ServeError::InUse { .. })));
    // Not even when the lock is gone.
    std::fs::remove_file(directory.path().join("agent.sock.lock")).expect("removed");
    let third = start(ServeOptions::new(unix_at(&path)), FakeHost::new()).await;
    assert!(matches!(third, Err(ServeError::InUse { .. })));
    client
        .get_status(agent::GetStatusRequest {})
        .await
        .expect("the first still answers");
    assert!(!running.ended.is_finished());
}

#[tokio::test]
async fn a_stale_socket_is_replaced() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("agent.sock");
    // Closing a listener leaves its file behind.
    drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
    let running = start(ServeOptions::new(unix_at(&path)), FakeHost::new()).await;
    let _running = running.expect("started");
    connect(&path)
        .await
        .get_status(agent::GetStatusRequest {})
        .await
        .expect("answered");
}

#[tokio::test]
async fn what_is_not_a_socket_is_left_alone() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("agent.sock");
    std::fs::write(&path, "precious").expect("written");
    let refused = start(ServeOptions::new(unix_at(&path)), FakeHost::new()).await;
    assert!(matches!(refused, Err(ServeError::NotASocket { .. })));
    assert_eq!(std::fs::read_to_string(&path).expect("there"), "precious");
}

#[tokio::test]
async fn the_socket_has_its_mode_and_its_directory_is_made() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("made").join("agent.sock");
    let listen = Listen::Unix {
        path: path.clone(),
        mode: 0o620,
        group: Some("0".to_owned()),
    };
    // Root and members can set the group; others get an error.
    match start(ServeOptions::new(listen), FakeHost::new()).await {
        Ok(_running) => {
            let mode = std::fs::metadata(&path)
                .expect("there")
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0o620);
        }
        Err(ServeError::Socket { operation, .. }) => assert_eq!(operation, "set the group of"),
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn an_unknown_group_is_an_error() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("agent.sock");
    let group = Some("no such group".to_owned());
    let refused = start(
        ServeOptions::new(Listen::Unix {
            path,
            mode: 0o660,
            group,
        }),
        FakeHost::new(),
    );
    assert!(matches!(refused.await, Err(ServeError::Group { .. })));
}

#[tokio::test]
async fn shutdown_ends_live_streams_and_removes_the_socket() {
    let (directory, running, mut client) = service().await;
    let request = agent::StreamProfilesRequest::default();
    let mut stream = client
        .stream_profiles(request)
        .await
        .expect("answered")
        .into_inner();
    running.stop.send(true).expect("heard");
    let error = stream.message().await.expect_err("ended");
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    running.ended.await.expect("no panic").expect("no error");
    assert!(!directory.path().join("agent.sock").exists());
}

#[tokio::test]
async fn clients_that_do_not_read_lose_their_connection_and_give_way() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("agent.sock");
    let options = ServeOptions {
        stall_timeout: Duration::from_millis(200),
        ..ServeOptions::new(unix_at(&path))
    };
    let running = start(options, FakeHost::new()).await.expect("started");
    running.host.add_large();
    let mut stalled = Vec::new();
    for _ in 0..QUERIES_MAX {
        let request = agent::QueryProfileRequest::default();
        let answer = connect(&path)
            .await
            .query_profile(request)
            .await
            .expect("answered");
        stalled.push(answer.into_inner());
    }
    // All places are taken: this is answered only when one of them has been given up.
    let request = agent::QueryProfileRequest::default();
    let answer = connect(&path)
        .await
        .query_profile(request)
        .await
        .expect("answered");
    assert_eq!(
        assemble(answer.into_inner())
            .await
            .expect("complete")
            .0
            .total()
            .count,
        20_000
    );
    let first = stalled.swap_remove(0);
    assert!(
        first.collect::<Vec<_>>().await.iter().any(Result::is_err),
        "it was cut off"
    );
}

#[tokio::test]
async fn clients_that_read_slowly_keep_no_query_waiting() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("agent.sock");
    // None of them is cut off in the time of this test.
    let options = ServeOptions::new(unix_at(&path));
    let running = start(options, FakeHost::new()).await.expect("started");
    running.host.add_large();
    let ask = async || {
        let request = agent::QueryProfileRequest::default();
        let answer = connect(&path).await.query_profile(request).await;
        answer.expect("answered").into_inner()
    };
    let mut slow = Vec::new();
    for _ in 0..2 * QUERIES_MAX {
        let mut answer = ask().await;
        answer.message().await.expect("a chunk");
        slow.push(answer);
    }
    let answer = tokio::time::timeout(STALL_TIMEOUT / 3, ask()).await;
    let (profile, _) = assemble(answer.expect("in time")).await.expect("complete");
    assert_eq!(profile.total().count, 20_000);
    drop(slow);
}

pub(super) fn free_port() -> SocketAddr {
    let localhost = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let listener = TcpListener::bind((localhost, 0)).expect("a port");
    listener.local_addr().expect("an address")
}

pub(super) fn token_file(directory: &Path) -> PathBuf {
    let path = directory.join("token");
    std::fs::write(&path, format!("{TOKEN}\n")).expect("written");
    path
}

pub(super) async fn status_with(channel: Channel, token: Option<&str>) -> Result<(), Code> {
    let mut request = Request::new(agent::GetStatusRequest {});
    if let Some(token) = token {
        let value = format!("Bearer {token}").parse().expect("a header");
        request.metadata_mut().insert("authorization", value);
    }
    let answer = AgentServiceClient::new(channel).get_status(request).await;
    answer.map(drop).map_err(|error| error.code())
}

#[tokio::test]
async fn tcp_answers_to_the_token_only() {
    let directory = tempfile::tempdir().expect("a directory");
    let address = free_port();
    let token_file = Some(token_file(directory.path()));
    let listen = Listen::Tcp {
        address,
        tls: None,
        token_file,
    };
    let _running = start(ServeOptions::new(listen), FakeHost::new())
        .await
        .expect("started");
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an endpoint");
    let channel = endpoint.connect().await.expect("connected");
    assert_eq!(status_with(channel.clone(), Some(TOKEN)).await, Ok(()));
    let wrong = TOKEN.replace('9', "8");
    assert_eq!(
        status_with(channel.clone(), Some(&wrong)).await,
        Err(Code::Unauthenticated)
    );
    assert_eq!(
        status_with(channel.clone(), None).await,
        Err(Code::Unauthenticated)
    );
    let listed = ServerReflectionClient::new(channel.clone())
        .server_reflection_info(tokio_stream::iter([Default::default()]))
        .await;
    assert_eq!(listed.expect_err("refused").code(), Code::Unauthenticated);
    HealthClient::new(channel)
        .check(health_of(""))
        .await
        .expect("health is open");
}

/// Where a service listens with TLS and a token, and the certificate that clients have to trust.
pub(super) fn tls_listen(directory: &Path) -> (Listen, SocketAddr, String) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let (cert_file, key_file) = (directory.join("cert"), directory.join("key"));
    std::fs::write(&cert_file, made.cert.pem()).expect("written");
    std::fs::write(&key_file, made.signing_key.serialize_pem()).expect("written");
    let address = free_port();
    let listen = Listen::Tcp {
        address,
        tls: Some(TlsFiles {
            cert_file,
            key_file,
            client_ca_file: None,
        }),
        token_file: Some(token_file(directory)),
    };
    (listen, address, made.cert.pem())
}

fn secure(address: SocketAddr, tls: ClientTlsConfig) -> Endpoint {
    let endpoint = Endpoint::from_shared(format!("https://{address}")).expect("an endpoint");
    endpoint.tls_config(tls).expect("a config")
}

/// What leads to such a service for a client that trusts its certificate.
pub(super) fn trusting(address: SocketAddr, ca: &str) -> Endpoint {
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(ca))
        .domain_name("localhost");
    secure(address, tls)
}

#[tokio::test]
async fn tls_serves_who_trusts_the_certificate() {
    let directory = tempfile::tempdir().expect("a directory");
    let (listen, address, ca) = tls_listen(directory.path());
    let _running = start(ServeOptions::new(listen), FakeHost::new())
        .await
        .expect("started");
    let channel = trusting(address, &ca).connect().await;
    assert_eq!(
        status_with(channel.expect("connected"), Some(TOKEN)).await,
        Ok(())
    );
    let strange = ClientTlsConfig::new().domain_name("localhost");
    let refused = secure(address, strange).connect().await;
    assert!(
        refused.is_err(),
        "a client that does not trust the certificate"
    );
}

#[tokio::test]
async fn tcp_without_protection_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let everywhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let token = Some(token_file(directory.path()));
    for (address, token_file) in [(free_port(), None), (everywhere, token)] {
        let listen = Listen::Tcp {
            address,
            tls: None,
            token_file,
        };
        let refused = start(ServeOptions::new(listen), FakeHost::new()).await;
        assert!(
            matches!(refused, Err(ServeError::Unprotected { .. })),
            "{address}"
        );
    }
}

pub(super) fn health_of(service: &str) -> tonic_health::pb::HealthCheckRequest {
    tonic_health::pb::HealthCheckRequest {
        service: service.to_owned(),
    }
}

#[tokio::test]
async fn health_says_serving() {
    let (directory, _running, _client) = service().await;
    let channel = channel(&directory.path().join("agent.sock")).await;
    let mut client = HealthClient::new(channel);
    for service in ["", "fleetprof.agent.v1.AgentService"] {
        let answer = client.check(health_of(service)).await.expect("answered");
        assert_eq!(
            answer.into_inner().status(),
            ServingStatus::Serving,
            "{service}"
        );
    }
}

#[tokio::test]
async fn a_daemon_that_does_not_do_its_work_still_answers() {
    let (directory, running, _client) = service().await;
    let channel = channel(&directory.path().join("agent.sock")).await;
    let mut client = HealthClient::new(channel);
    running.host.sick.store(true, Ordering::Relaxed);
    let started = std::time::Instant::now();
    let mut status = async |service| {
        let answer = client.check(health_of(service)).await.expect("answered");
        answer.into_inner().status()
    };
    while status("").await != ServingStatus::NotServing {
        assert!(started.elapsed() < Duration::from_secs(30), "never said");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let service = "fleetprof.agent.v1.AgentService";
    assert_eq!(status(service).await, ServingStatus::Serving);
}

#[tokio::test]
async fn reflection_lists_the_service() {
    let (directory, _running, _client) = service().await;
    let channel = channel(&directory.path().join("agent.sock")).await;
    let request = tonic_reflection::pb::v1::ServerReflectionRequest {
        message_request: Some(MessageRequest::ListServices(String::new())),
        ..Default::default()
    };
    let answer = ServerReflectionClient::new(channel)
        .server_reflection_info(tokio_stream::iter([request]))
        .await;
    let mut answers = answer.expect("answered").into_inner();
    let answer = answers
        .message()
        .await
        .expect("no error")
        .expect("an answer");
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("not a list: {answer:?}");
    };
    let names: Vec<String> = list
        .service
        .into_iter()
        .map(|service| service.name)
        .collect();
    assert!(
        names.contains(&"fleetprof.agent.v1.AgentService".to_owned()),
        "{names:?}"
    );
    assert!(
        names.contains(&"grpc.health.v1.Health".to_owned()),
        "{names:?}"
    );
}
