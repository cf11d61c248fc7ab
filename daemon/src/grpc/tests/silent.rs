//! Tests that peers that open a connection and do not use it shut nobody out.

use super::sockets::{TOKEN, health_of, status_with, tls_listen, trusting};
use super::*;
use proto::calls::Caller;
use tokio_stream::StreamExt;
use tonic::Code;
use tonic_health::pb::health_client::HealthClient;

/// What a peer that falls silent has sent before.
#[derive(Clone, Copy, Debug)]
enum Silent {
    /// It only connects.
    Connected,
    /// A part of a ClientHello that is larger than an HTTP/2 preface.
    HalfHello,
    /// The TLS handshake, and the preface of HTTP/2 inside it.
    Handshake,
    /// A byte of the preface each 100 ms.
    Slowly,
    /// The one call that takes no token and never ends.
    Watches,
}

const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// A peer as it is when it falls silent; it stays connected as long as what is returned lives.
async fn fall_silent(silent: Silent, address: SocketAddr, ca: &str) -> Box<dyn Send> {
    use tokio::io::AsyncWriteExt;
    let mut tcp = tokio::net::TcpStream::connect(address)
        .await
        .expect("connected");
    // A server that wants no more of it resets the connection: that is its right.
    match silent {
        Silent::Connected => {}
        Silent::HalfHello => {
            let mut hello = vec![22, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3];
            hello.resize(60, 7);
            let _ = tcp.write_all(&hello).await;
        }
        Silent::Handshake => {
            // The client library says its preface after the handshake, and nothing without a call.
            return Box::new(trusting(address, ca).connect().await);
        }
        Silent::Watches => {
            let watch = async {
                let channel = trusting(address, ca).connect().await.ok()?;
                let mut client = HealthClient::new(channel);
                let told = client.watch(health_of("")).await.ok()?;
                Some((client, told))
            };
            // One who finds no place waits for it.
            return Box::new(tokio::time::timeout(Duration::from_secs(2), watch).await);
        }
        Silent::Slowly => {
            return Box::new(AbortOnDrop(tokio::spawn(async move {
                for &byte in HTTP2.iter().cycle() {
                    if tcp.write_all(&[byte]).await.is_err() {
                        return;
                    }
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            })));
        }
    }
    Box::new(tcp)
}

struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A client with a token asks while more silent peers than there are places hold on to theirs.
async fn answers_beside(silent: Silent) {
    let directory = tempfile::tempdir().expect("a directory");
    let (listen, address, ca) = tls_listen(directory.path());
    let _running = start(ServeOptions::new(listen), FakeHost::new())
        .await
        .expect("started");
    let mut peers = Vec::new();
    for _ in 0..CONNECTIONS_MAX + 10 {
        peers.push(fall_silent(silent, address, &ca).await);
    }
    let asked = async {
        let channel = trusting(address, &ca).connect().await;
        status_with(channel.expect("connected"), Some(TOKEN)).await
    };
    // Before any of the peers is over its own time.
    let answer = tokio::time::timeout(Duration::from_secs(8), asked).await;
    assert_eq!(answer.expect("in time"), Ok(()), "beside {silent:?}");
    drop(peers);
}

macro_rules! answers_beside {
    ($($name:ident: $silent:ident,)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                answers_beside(Silent::$silent).await;
            }
        )*
    };
}

answers_beside! {
    peers_that_connect_and_say_nothing_shut_nobody_out: Connected,
    peers_with_half_a_hello_shut_nobody_out: HalfHello,
    peers_silent_after_the_handshake_shut_nobody_out: Handshake,
    slow_peers_shut_nobody_out: Slowly,
    peers_that_watch_health_shut_nobody_out: Watches,
}

#[tokio::test]
async fn a_place_whose_call_ends_goes_to_the_one_who_waits() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("agent.sock");
    let mut bound = listen::unix(&path, 0o600, None).expect("listens");
    let (mut clients, mut calls, mut served) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..CONNECTIONS_MAX {
        let client = tokio::net::UnixStream::connect(&path).await;
        let mut client = client.expect("connected");
        client.write_all(HTTP2).await.expect("said");
        clients.push(client);
        let conn = bound.incoming.next().await.expect("a connection");
        let mut conn = conn.expect("accepted");
        calls.push(conn.connect_info().calls().start());
        served.push(tokio::spawn(async move {
            let _ = conn.read_to_end(&mut Vec::new()).await;
        }));
    }
    let client = tokio::net::UnixStream::connect(&path).await;
    clients.push(client.expect("connected"));
    let waits = tokio::time::timeout(Duration::from_millis(500), bound.incoming.next()).await;
    assert!(waits.is_err(), "all places are in use");
    calls.pop();
    // Long before the one without a call is over its own time.
    let waits = tokio::time::timeout(Duration::from_secs(30), bound.incoming.next()).await;
    assert!(waits.is_ok(), "it got the place");
}

#[tokio::test]
async fn peers_on_the_unix_socket_without_a_call_shut_nobody_out() {
    use tokio::io::AsyncWriteExt;
    let (directory, _running, _client) = service().await;
    let path = directory.path().join("agent.sock");
    let mut peers = Vec::new();
    for number in 0..CONNECTIONS_MAX + 10 {
        let mut peer = tokio::net::UnixStream::connect(&path)
            .await
            .expect("connected");
        if number % 2 == 0 {
            let _ = peer.write_all(HTTP2).await;
        }
        peers.push(peer);
    }
    let asked = async {
        let mut client = connect(&path).await;
        client
            .get_status(agent::GetStatusRequest {})
            .await
            .map(|_| ())
    };
    let answer = tokio::time::timeout(Duration::from_secs(8), asked).await;
    answer.expect("in time").expect("answered");
    drop(peers);
}

#[tokio::test]
async fn a_client_with_a_call_under_way_keeps_its_connection() {
    let (directory, running, mut client) = service().await;
    let path = directory.path().join("agent.sock");
    let stream = client
        .stream_profiles(agent::StreamProfilesRequest::default())
        .await;
    let mut stream = stream.expect("answered").into_inner();
    let mut peers = Vec::new();
    for _ in 0..3 * CONNECTIONS_MAX {
        peers.push(
            tokio::net::UnixStream::connect(&path)
                .await
                .expect("connected"),
        );
    }
    connect(&path)
        .await
        .get_status(agent::GetStatusRequest {})
        .await
        .expect("answered");
    running.stop.send(true).expect("heard");
    let error = stream.message().await.expect_err("ended");
    assert_eq!(
        error.code(),
        Code::Unavailable,
        "it was there until the end"
    );
}
